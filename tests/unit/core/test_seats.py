"""Which process serves which era, and what is learnt from its first words (section 7)."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.core.era import LEGACY_VERSIONS, Era
from bridge.core.outbox import Control
from bridge.core.seats import REMEMBERED_S
from bridge.core.tables import NoticeKind
from tests.unit.core.scenario import (
    CLOSE,
    INITIALIZED,
    PREFIX,
    Json,
    Scenario,
    acknowledged,
    asked_to_initialize,
    cancelled,
    discovered,
    error,
    greeting,
    initialize,
    legacy,
    line,
    listen,
    not_served,
    notification,
    probe,
    refusal,
    request,
    result,
)

MODERN, LEGACY = Era.MODERN, Era.LEGACY
READY, NEED, REPLACE, RETIRE, REFUSED = (
    NoticeKind.READY,
    NoticeKind.NEED_CHILD,
    NoticeKind.REPLACE_CHILD,
    NoticeKind.RETIRE_CHILD,
    NoticeKind.ERA_REFUSED,
)

NO_METHOD: Json = {"code": -32601, "message": "Method not found"}
LEGACY_ONLY: Json = {"code": -32022, "message": "no", "data": {"supported": ["2025-06-18"]}}


def auto(clients: str = "AB", **limits: Any) -> Scenario:
    """A server that nobody has spoken to, and no era that was decided ahead."""
    return Scenario(clients, **{"era": None, **limits})


def discover(id: object) -> Json:
    return request(id, "server/discover")


def modern_first(clients: str = "AB", **limits: Any) -> Scenario:
    """A modern need has had the bridge probe the server; nothing was answered. A's request is 1."""
    s = auto(clients, **limits)
    s.client("A", request(1)).expect(server=probe(1))
    return s


def both_waiting(**limits: Any) -> Scenario:
    """The server is silent to the probe; A waits in the modern era, B in the legacy one, which went ahead."""
    s = modern_first(**limits)
    s.client("B", initialize(1)).expect()
    s.wait(10).expect(server=asked_to_initialize(2))
    return s


def modern_served(clients: str = "AB", **limits: Any) -> Scenario:
    """The first process is modern, and idle."""
    s = modern_first(clients, **limits)
    s.server(discovered(1)).expect(server=request(2))
    s.server(result(2)).expect(A=result(1))
    return s


def legacy_served(clients: str = "AB", **limits: Any) -> Scenario:
    """The first process is legacy, and idle; A has a session."""
    s = auto(clients, **limits)
    s.client("A", initialize(1)).expect(server=asked_to_initialize(1))
    s.server(greeting(1)).expect(server=INITIALIZED, A=greeting(1))
    return s


# -- needs


def test_nobody_speaks_to_a_child_until_a_client_shows_which_era_it_needs() -> None:
    s = auto()
    s.client("A", legacy(1, "ping")).expect(A=result(1))
    s.client("A", legacy(2, "tools/list")).expect(A=refusal(-32600, "not_initialized", id=2))
    s.client("A", notification("n"), cancelled(3), result(4)).expect()
    s.wait(1000).expect()
    assert not s.router.needed()
    assert not s.router.ready


@pytest.mark.parametrize(
    "first",
    [
        request(1, "tools/list"),
        request(1, "ping"),
        {"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"_meta": {PREFIX + "protocolVersion": None}}},
        {"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"_meta": {PREFIX + "protocolVersion": [1]}}},
        {"jsonrpc": "2.0", "id": 1, "method": "server/discover"},
        listen(1, toolsListChanged=True),
    ],
)
def test_a_request_is_modern_if_it_names_its_version_whatever_the_value_or_is_a_discover(first: Json) -> None:
    s = auto()
    s.client("A", first).expect(server=probe(1))
    assert s.router.needed(0)
    assert not s.router.needed(1)


@pytest.mark.parametrize(
    "meta", [None, {}, {"progressToken": 1}, {PREFIX + "clientInfo": {}}, 5, request(1)["params"]["_meta"]]
)
def test_any_other_request_belongs_to_the_connections_legacy_session(meta: object) -> None:
    """And so does every `initialize`: a server that is sent one is a legacy one from then on."""
    s = auto()
    asked = initialize(1)
    if meta is not None:
        asked["params"]["_meta"] = meta
    s.client("A", asked).expect(server=asked_to_initialize(1))


def test_an_initialize_without_params_is_one() -> None:
    s = auto()
    s.client("A", {"jsonrpc": "2.0", "id": 1, "method": "initialize"}).expect(server=asked_to_initialize(1))
    s.server(greeting(1, "2025-06-18")).expect(server=INITIALIZED, A=greeting(1, "2025-06-18"))


def test_a_need_that_comes_before_the_child_is_seen_to_as_soon_as_it_runs() -> None:
    s = auto(server=False)
    out = s.client("A", request(1))
    out.expect()
    assert out.seats(NEED) == [0]
    s.open().expect(server=probe(1))
    s = auto(server=False)
    assert s.client("A", initialize(1)).seats(NEED) == [0]
    s.open().expect(server=asked_to_initialize(1))


@pytest.mark.parametrize("legacy_is_first", [False, True])
def test_the_first_need_decides_what_a_child_is_asked_that_starts_with_both_waiting(
    legacy_is_first: bool,
) -> None:
    s = auto(server=False)
    lines = [initialize(1), request(2)] if legacy_is_first else [request(2), initialize(1)]
    for each in lines:
        s.client("A", each).expect()
    out = s.open()
    out.expect(server=asked_to_initialize(1) if legacy_is_first else probe(1))
    # In the first case it is known already that the modern era needs a process of its own.
    assert out.seats(NEED) == ([1] if legacy_is_first else [])


def test_a_first_need_that_has_gone_before_the_child_came_is_none() -> None:
    s = auto(server=False)
    s.client("A", request(1))
    s.leave("A")
    s.open().expect()
    s.client("B", initialize(1)).expect(server=asked_to_initialize(1))


def test_the_first_need_is_forgotten_with_the_child_when_nobody_waits() -> None:
    s = auto("ABC", server=False)
    s.client("A", initialize(1))
    s.leave("A")
    s.open().expect()
    s.crash().expect()
    s.client("B", request(1))
    s.client("C", initialize(1))
    s.open().expect(server=probe(1))


def test_a_need_while_the_child_is_away_is_no_second_first() -> None:
    s = auto(server=False)
    s.client("A", request(1))
    s.client("B", initialize(1))
    s.open().expect(server=probe(1))
    s.crash(exited=False).expect()
    s.open().expect(server=probe(2))


# -- the first need is modern


def test_a_discover_result_makes_the_child_modern() -> None:
    s = modern_first()
    out = s.server(discovered(1))
    out.expect(server=request(2))
    assert READY in out.told()
    assert s.router.ready


@pytest.mark.parametrize("said", [{}, [], None, 5, "x", {"supportedVersions": 5}, {"supportedVersions": [5]}])
def test_a_result_of_any_kind_is_a_modern_servers(said: object) -> None:
    s = modern_first()
    s.server({"jsonrpc": "2.0", "id": 1, "result": said}).expect(server=request(2))


@pytest.mark.parametrize("listed", [["2026-07-28"], ["2027-01-01"], ["2025-11-25", "2026-07-28"]])
def test_an_unsupported_version_that_lists_modern_ones_makes_the_child_modern(listed: list[str]) -> None:
    """2026-07-28, stdio: Backward Compatibility. Its clients are told the rest by the server itself."""
    s = modern_first()
    s.server(error(1, -32022, "no", data={"supported": listed})).expect(server=request(2))


TWO_VERSIONS = ["2025-06-18", "2025-11-25"]
OTHER_ERRORS: list[Json] = [
    {"code": -32601, "message": "Method not found"},
    {"code": -32602, "message": "Invalid request parameters"},
    {"code": -32603, "message": "Subscription limit reached"},
    {"code": 0, "message": ""},
    {"code": -32022, "message": "no"},
    {"code": -32022, "message": "no", "data": {"supported": []}},
    {"code": -32022, "message": "no", "data": {"supported": TWO_VERSIONS}},
    {"code": -32022, "message": "no", "data": {"supported": "2026-07-28"}},
    {"code": -32022, "message": "no", "data": {"supported": [1]}},
    {"code": -32022, "message": "no", "data": [1]},
    {"code": "strange", "message": {"b": 1}},
]


@pytest.mark.parametrize("fault", OTHER_ERRORS)
def test_any_other_error_is_a_legacy_servers_whatever_its_code(fault: Json) -> None:
    """The fallback is never keyed to one error code."""
    s = modern_first()
    s.client("A", discover("d")).expect()
    answer = {"jsonrpc": "2.0", "id": 1, "error": fault}
    out = s.server(answer)
    # For a discover it is the server's own; for the rest the bridge's, with what to do.
    data = fault.get("data")
    named = data["supported"] if isinstance(data, dict) and data["supported"] == TWO_VERSIONS else []
    out.expect(A=[not_served(1, MODERN, *named), {**answer, "id": "d"}])
    assert out.told() == [REFUSED]
    s.client("B", initialize(1)).expect(server=asked_to_initialize(2))
    s.server(greeting(2)).expect(server=INITIALIZED, B=greeting(1))


def test_an_error_that_is_no_object_is_a_refusal() -> None:
    s = modern_first()
    s.client("A", discover("d")).expect()
    s.server({"jsonrpc": "2.0", "id": 1, "error": "no"}).expect(
        A=[not_served(1, MODERN), {"jsonrpc": "2.0", "id": "d", "error": "no"}]
    )


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"jsonrpc":"2.0","id":1,"result":{"a":\xff}}\n',
        b'{"jsonrpc":"2.0","id":1,"result":{]}\n',
        b'{"jsonrpc":"2.0","id":1}\n',
        b'{"jsonrpc":"2.0","id":1,"result":{},"error":{}}\n',
        b'{"jsonrpc":"2.0","id":1,"result":"' + b"x" * 5000 + b'"}\n',
    ],
)
def test_a_damaged_answer_to_the_probe_is_a_refusal_for_a_while(damaged: bytes) -> None:
    s = modern_first(max_message=4000)
    s.client("A", discover("d")).expect()
    s.client("B", initialize(1))
    s.server(damaged).expect(
        A=[not_served(1, MODERN), not_served("d", MODERN, code=-32601)], server=asked_to_initialize(2)
    )
    s.server(greeting(2)).expect(server=INITIALIZED, B=greeting(1))
    s.wait(REMEMBERED_S)
    assert s.client("A", discover("e")).seats(NEED) == [1]


def test_an_object_that_answers_nothing_answers_no_probe() -> None:
    s = modern_first()
    s.server(b'{"jsonrpc":"2.0"}\n', discovered(7), discovered("1")).expect()
    s.server(discovered(1)).expect(server=request(2))


def test_the_server_is_quoted_with_its_unpaired_surrogates() -> None:
    """Section 2: no escape of a peer is altered."""
    s = modern_first()
    s.client("A", discover("d")).expect()
    fault = rb'"error":{"code":-32601,"message":"\ud83d","data":{"\udc00":1e400}}'
    out = s.server(rb'{"jsonrpc":"2.0","id":1,' + fault + b"}\n")
    assert out.bytes("A").endswith(rb'{"jsonrpc":"2.0","id":"d",' + fault + b"}\n")


def test_a_legacy_need_that_comes_during_the_probe_waits_for_it() -> None:
    s = modern_first()
    s.client("B", initialize(1)).expect()
    s.wait(9.9).expect()
    s.server(error(1, -32601, "Method not found")).expect(
        A=not_served(1, MODERN), server=asked_to_initialize(2)
    )
    s.server(greeting(2)).expect(server=INITIALIZED, B=greeting(1))


def test_a_legacy_need_during_the_probe_gets_a_process_of_its_own_if_the_first_is_modern() -> None:
    s = modern_first()
    s.client("B", initialize(1))
    out = s.server(discovered(1))
    out.expect(server=request(2))
    assert out.seats(NEED) == [1]
    s.open(1).expect(second=asked_to_initialize(3))
    s.second(greeting(3)).expect(second=INITIALIZED, B=greeting(1))


# -- silence


def test_a_waiting_legacy_need_goes_ahead_on_the_same_child_after_the_probe_timeout() -> None:
    s = modern_first()
    s.client("B", initialize(1))
    assert s.router.needs_tick
    s.wait(9.99).expect()
    out = s.wait(0.01)
    out.expect(server=asked_to_initialize(2))
    assert out.told() == []
    s.server(greeting(2)).expect(server=INITIALIZED, B=greeting(1))


def test_the_probe_timeout_runs_from_the_writing_of_the_probe() -> None:
    s = auto(probe_timeout=3.0)
    s.wait(1000)
    s.client("A", request(1)).expect(server=probe(1))
    s.client("B", initialize(1))
    s.wait(2.9).expect()
    s.wait(0.1).expect(server=asked_to_initialize(2))


def test_a_legacy_need_that_comes_after_the_probe_timeout_goes_ahead_at_once() -> None:
    s = modern_first()
    s.wait(11).expect()
    s.client("B", initialize(1)).expect(server=asked_to_initialize(2))


def test_a_modern_need_waits_while_the_child_is_silent_and_young() -> None:
    """`uvx` may be downloading."""
    s = modern_first()
    s.wait(10).expect()
    s.wait(109.9).expect()
    assert s.router.needs_tick
    out = s.wait(0.1)
    out.expect(A=not_served(1, MODERN))
    assert out.told() == [REFUSED]
    assert not s.router.needs_tick


def test_a_modern_need_that_waits_is_served_by_a_late_discover_result() -> None:
    s = modern_first()
    s.wait(100).expect()
    s.server(discovered(1)).expect(server=request(2))


def test_a_modern_need_that_waits_is_told_of_a_late_refusal() -> None:
    s = modern_first()
    s.client("A", discover("d"))
    s.wait(100).expect()
    s.server(error(1, -32601, "x")).expect(A=[not_served(1, MODERN), error("d", -32601, "x")])
    s.client("B", initialize(1)).expect(server=asked_to_initialize(2))


@pytest.mark.parametrize("noise", [b"Server ready\n", b"Ser", line(notification("n"))])
def test_a_modern_need_does_not_wait_for_a_child_that_has_written_and_not_answered(noise: bytes) -> None:
    s = modern_first()
    s.server(noise).expect()
    s.wait(10).expect()
    s.wait(0.1).expect(A=not_served(1, MODERN))


def test_a_modern_need_is_refused_once_a_late_child_writes_something_else() -> None:
    s = modern_first()
    s.wait(50).expect()
    s.server(b"Server ready\n").expect()
    s.wait(0.1).expect(A=not_served(1, MODERN))


def test_a_late_discover_result_decides_at_once_when_initialize_was_given_up_before() -> None:
    """Nothing would end the wait for the answer to `initialize` any more."""
    s = both_waiting()
    s.wait(110).expect(A=not_served(1, MODERN))
    s.wait(10).expect(B=not_served(1, LEGACY))
    s.server(discovered(1)).expect()
    s.client("A", request(3)).expect()
    s.wait(0.1).expect(server=request(3))


def test_a_child_that_is_no_longer_young_has_the_probe_timeout_and_no_more() -> None:
    s = auto()
    s.wait(500)
    s.client("A", request(1)).expect(server=probe(1))
    s.wait(10).expect()
    s.wait(0.1).expect(A=not_served(1, MODERN))


def test_after_a_silent_childs_refusal_a_new_modern_need_is_refused_again_and_waits_for_nothing() -> None:
    """It is remembered for 30 s, then asked for again; but every wait has its bound."""
    s = modern_first()
    s.wait(10)
    s.wait(110).expect(A=not_served(1, MODERN))
    s.client("A", request(2)).expect(A=not_served(2, MODERN))
    s.wait(REMEMBERED_S)
    s.client("A", request(3)).expect()
    assert s.router.needs_tick
    s.wait(0.1).expect(A=not_served(3, MODERN))
    s.server(discovered(1)).expect()
    s.client("A", request(4)).expect(server=request(2))


def test_a_modern_need_waits_on_while_a_legacy_one_has_gone_ahead() -> None:
    s = both_waiting()
    s.client("A", request(2)).expect()
    s.wait(109.9).expect()
    s.wait(0.1).expect(A=[not_served(1, MODERN), not_served(2, MODERN)])
    # And the legacy one as long from its own question.
    s.wait(9.9).expect()
    s.wait(0.1).expect(B=not_served(1, LEGACY))


def test_a_modern_need_does_not_wait_on_for_a_child_that_writes_something_else() -> None:
    s = both_waiting()
    s.server(b"Server ready\n").expect()
    s.wait(0.1).expect(A=not_served(1, MODERN))
    s.server(greeting(2)).expect(server=INITIALIZED, B=greeting(1))


def test_a_modern_need_goes_to_a_process_of_its_own_once_the_silent_child_opens_a_session() -> None:
    s = both_waiting()
    out = s.server(greeting(2))
    out.expect(server=INITIALIZED, B=greeting(1))
    assert out.seats(NEED) == [1]
    s.open(1).expect(second=probe(3))
    s.second(discovered(3)).expect(second=request(4))


def test_what_a_legacy_client_says_in_each_meta_takes_no_request_of_it_to_the_other_era() -> None:
    """A `_meta` is recognised by its bytes: one that names no version was taken for a modern one, if it came
    while neither era's server took requests."""
    s = auto()
    s.client("A", initialize(1))
    s.server(greeting(1))
    s.block()
    s.client("A", legacy(2, _meta={"traceparent": "t"})).expect()
    s.unblock().expect(server=legacy(2, _meta={"traceparent": "t"}))
    s.client("B", request(1))
    s.open(1).expect(second=probe(3))
    s.second(discovered(3)).expect(second=request(4))
    s.client("A", legacy(3, _meta={"traceparent": "t"})).expect(server=legacy(5, _meta={"traceparent": "t"}))


def test_subscriptions_that_wait_for_a_silent_child_are_refused_like_requests() -> None:
    s = modern_first()
    s.server(discovered(1))
    s.client("A", listen("L", toolsListChanged=True))
    s.server(acknowledged(3, toolsListChanged=True), result(2))
    s.crash().expect()
    s.open().expect(server=probe(4))
    s.wait(10).expect()
    assert s.router.needs_tick
    s.wait(110).expect(A=not_served("L", MODERN, delivered=True))
    assert s.sizes == {"clients": 2}


# -- late discover results


def test_a_late_discover_result_before_initialize_was_written_makes_the_child_modern() -> None:
    s = modern_first()
    s.wait(10)
    s.server(discovered(1)).expect(server=request(2))
    out = s.client("B", initialize(1))
    out.expect()
    assert out.seats(NEED) == [1]


def test_a_late_discover_result_is_kept_in_mind_until_initialize_is_answered() -> None:
    """A session that opens wins."""
    s = both_waiting()
    s.server(discovered(1)).expect()
    s.wait(5).expect()
    out = s.server(greeting(2))
    out.expect(server=INITIALIZED, B=greeting(1))
    assert out.seats(NEED) == [1]


def test_a_late_discover_result_and_a_refused_initialize_make_the_child_modern() -> None:
    """It turned down `initialize` because the probe had settled it; another child may open a session."""
    s = both_waiting()
    s.server(discovered(1)).expect()
    out = s.server(error(2, -32022, "pinned", data={"supported": ["2026-07-28"]}))
    out.expect(server=request(3))
    assert out.seats(NEED) == [1]
    assert REPLACE not in out.told()
    s.open(1).expect(second=asked_to_initialize(4))
    s.second(greeting(4)).expect(second=INITIALIZED, B=greeting(1))


def test_a_late_discover_result_and_silence_to_initialize_make_the_child_modern() -> None:
    """No `initialize` was answered on it."""
    s = both_waiting()
    s.server(discovered(1)).expect()
    s.wait(119.9).expect()
    out = s.wait(0.1)
    out.expect(server=request(3))
    assert out.seats(NEED) == [1]
    s.server(greeting(2)).expect()


def test_a_late_discover_result_after_initialize_was_answered_is_only_remembered() -> None:
    s = both_waiting()
    s.server(b"noise\n")
    s.wait(0.1).expect(A=not_served(1, MODERN))
    s.server(greeting(2)).expect(server=INITIALIZED, B=greeting(1))
    s.server(discovered(1, "2026-07-28", "2027-01-01")).expect()
    s.client("B", legacy(2)).expect(server=legacy(3))
    # The era is refused no more.
    assert s.client("A", request(2)).seats(NEED) == [1]


def test_a_late_discover_result_after_a_refused_initialize_says_nothing_to_a_child_that_is_stopped() -> None:
    s = both_waiting()
    out = s.server(error(2, -32601, "no"))
    out.expect(B=not_served(1, LEGACY))
    assert out.seats(REPLACE) == [0]
    s.server(discovered(1)).expect()
    # Only that the era is spoken.
    s.client("A", request(2)).expect()
    assert s.router.replaced()
    s.crash(exited=False).expect()
    s.open().expect(server=probe(3))
    s.server(discovered(3)).expect(server=[request(4), request(5)])


def test_a_late_refusal_while_initialize_is_on_its_way_is_told_at_once() -> None:
    s = both_waiting()
    s.client("A", discover("d")).expect()
    s.server(error(1, -32601, "no")).expect(A=[not_served(1, MODERN), error("d", -32601, "no")])
    assert s.router.needs_tick
    s.server(greeting(2)).expect(server=INITIALIZED, B=greeting(1))
    s.client("A", discover("e")).expect(A=error("e", -32601, "no"))


def test_a_late_refusal_does_not_end_the_wait_for_initialize() -> None:
    s = both_waiting()
    s.server(error(1, -32601, "no"))
    s.wait(119.9).expect()
    s.wait(0.1).expect(B=not_served(1, LEGACY))


def test_a_late_refusal_after_initialize_was_answered_says_nothing() -> None:
    s = both_waiting()
    s.server(greeting(2))
    s.server(error(1, -32601, "no")).expect()
    s.open(1).expect(second=probe(3))


def test_a_second_answer_to_the_probe_is_dropped() -> None:
    s = modern_served()
    s.server(discovered(1), error(1, -32601, "no")).expect()
    assert s.stats.dropped_responses == 2


# -- exit on the probe


@pytest.mark.parametrize("silence", [0.0, 50.0])
def test_a_child_that_exits_on_the_probe_is_legacy_and_started_again_unprobed(silence: float) -> None:
    """Strict servers do so; it is no failure."""
    s = modern_first()
    s.client("A", discover("d"))
    s.wait(silence)
    out = s.crash()
    out.expect(A=[not_served(1, MODERN), not_served("d", MODERN, code=-32601)])
    assert out.told() == [REFUSED]
    assert s.router.replaced()
    s.open().expect()
    assert not s.router.replaced()
    s.client("A", discover("e")).expect(A=not_served("e", MODERN, code=-32601))
    s.client("B", initialize(1)).expect(server=asked_to_initialize(2))


def test_a_child_that_exits_on_the_probe_with_initialize_behind_it_is_started_again_unprobed() -> None:
    """It slept before it read."""
    s = both_waiting()
    s.crash().expect(A=not_served(1, MODERN))
    assert s.router.replaced()
    s.open().expect(server=asked_to_initialize(3))
    s.server(greeting(3)).expect(server=INITIALIZED, B=greeting(1))


def test_a_child_that_reads_line_by_line_may_exit_on_the_probe_with_initialize_unread() -> None:
    s = both_waiting()
    s.crash(unread=len(line(asked_to_initialize(2)))).expect(A=not_served(1, MODERN))
    assert s.router.replaced()
    s.open().expect(server=asked_to_initialize(3))


def test_a_child_that_has_not_read_all_of_the_probe_did_not_exit_on_it() -> None:
    s = both_waiting()
    s.crash(unread=len(line(asked_to_initialize(2))) + 1).expect()
    assert not s.router.replaced()
    s = modern_first()
    s.crash(unread=1).expect()
    assert not s.router.replaced()


def test_a_child_that_wrote_a_notification_and_exits_on_the_probe_is_legacy_all_the_same() -> None:
    s = modern_first()
    s.server(notification("notifications/message", level="info", data=1)).expect()
    s.crash().expect(A=not_served(1, MODERN))
    assert s.router.replaced()


def test_a_legacy_need_that_waited_for_the_probe_is_served_by_the_next_child_at_once() -> None:
    s = modern_first()
    s.client("B", initialize(1))
    s.crash().expect(A=not_served(1, MODERN))
    assert s.router.needed()
    s.open().expect(server=asked_to_initialize(2))


def test_a_child_that_is_killed_while_it_is_probed_proves_nothing() -> None:
    s = modern_first()
    out = s.crash(exited=False)
    out.expect()
    assert out.told() == []
    assert not s.router.replaced()
    assert s.router.needed()
    s.open().expect(server=probe(2))


def test_a_child_that_exits_without_having_been_asked_proves_nothing() -> None:
    s = auto()
    s.crash()
    assert not s.router.replaced()
    s.open()
    s.client("A", request(1)).expect(server=probe(1))


def test_a_child_that_exits_on_initialize_proves_nothing() -> None:
    s = auto()
    s.client("A", initialize(1))
    s.crash().expect()
    assert not s.router.replaced()
    s.open().expect(server=asked_to_initialize(2))


def test_a_server_that_was_modern_before_and_exits_on_the_probe_is_only_broken() -> None:
    s = modern_served()
    s.crash()
    s.client("A", request(2))
    s.open().expect(server=probe(3))
    s.crash().expect()
    assert not s.router.replaced()


def test_a_server_that_was_modern_and_is_not_any_more_may_turn_out_to_be_strict() -> None:
    s = modern_served()
    s.crash()
    s.client("A", request(2))
    s.open()
    s.server(error(3, -32603, "no")).expect(A=not_served(2, MODERN))
    s.wait(REMEMBERED_S)
    s.client("A", request(3)).expect(server=probe(4))
    s.crash().expect(A=not_served(3, MODERN))
    assert s.router.replaced()


def test_an_exit_on_the_probe_is_remembered_for_a_while() -> None:
    s = modern_first()
    s.crash()
    s.open()
    s.wait(REMEMBERED_S - 0.1)
    s.client("A", request(2)).expect(A=not_served(2, MODERN))
    s.wait(0.1)
    s.client("A", request(3)).expect(server=probe(2))


# -- refusals of the modern era


@pytest.mark.parametrize(
    ("fault", "lasting"),
    [
        ({"code": -32601, "message": "Method not found"}, True),
        ({"code": -32022, "message": "no"}, True),
        ({"code": -32602, "message": "no", "data": {"supported": ["2025-06-18"]}}, True),
        ({"code": -32602, "message": "Invalid request parameters"}, False),
        ({"code": -32603, "message": "no", "data": {"supported": []}}, False),
    ],
)
def test_a_refusal_that_cannot_be_an_accident_lasts_and_any_other_is_remembered_for_a_while(
    fault: Json, lasting: bool
) -> None:
    """-32601, -32022 or an error that names versions; else 30 s."""
    s = modern_first()
    s.server({"jsonrpc": "2.0", "id": 1, "error": fault})
    s.wait(REMEMBERED_S - 0.1)
    s.client("A", discover("d")).expect(A={"jsonrpc": "2.0", "id": "d", "error": fault})
    s.wait(0.1)
    again = s.client("A", discover("e"))
    if lasting:
        again.expect(A={"jsonrpc": "2.0", "id": "e", "error": fault})
    else:
        again.expect(server=probe(2))
        s.server(discovered(2)).expect(server=discover(3))


def test_the_client_whose_era_is_refused_is_told_which_versions_are_served() -> None:
    """-31006 with `data.supported`."""
    s = modern_first()
    s.client("B", initialize(1))
    s.server(error(1, -32601, "no"))
    s.server(greeting(2, "2025-03-26"))
    s.client("A", request(2)).expect(A=not_served(2, MODERN, "2024-11-05", "2025-03-26"))


def test_the_versions_that_a_refused_probe_names_are_the_ones_that_are_served() -> None:
    s = modern_first()
    s.server({"jsonrpc": "2.0", "id": 1, "error": LEGACY_ONLY}).expect(A=not_served(1, MODERN, "2025-06-18"))


def test_the_versions_that_a_refused_initialize_names_are_the_ones_that_are_served() -> None:
    """Nobody has probed it: this is all that is known of it."""
    s = auto()
    s.client("A", initialize(1))
    named = {"supported": ["2025-11-25", "2027-01-01"]}
    s.server(error(1, -32022, "no", data=named)).expect(A=not_served(1, LEGACY, "2027-01-01"))
    s.open()
    s.client("B", initialize(2)).expect(B=not_served(2, LEGACY, "2027-01-01"))


def test_the_refusal_names_both_eras_and_what_to_do() -> None:
    s = modern_first()
    out = s.server(error(1, -32601, "no"))
    text = out.bytes("A").decode()
    for part in ("modern era", "2026-07-28", "legacy era", "2025-11-25", "use a client"):
        assert part in text


def test_notifications_that_wait_for_a_refused_era_are_dropped() -> None:
    s = modern_first()
    s.client("A", notification("n"))
    s.server(error(1, -32601, "no")).expect(A=not_served(1, MODERN))
    s.client("A", notification("n")).expect()
    assert s.sizes == {"clients": 2}


def test_a_refusal_reads_on_and_closes_whom_it_concerns() -> None:
    """A client that was not read is read again; one that has stopped sending is closed."""
    s = modern_first(paused_lines=1)
    s.server(discovered(1))
    s.block()
    s.client("A", request(2), request(3), request(4)).expect(A=Control.PAUSE)
    s.crash().expect(
        A=[refusal(-31001, "server_exited", id=1, delivered=True), Control.RESUME],
    )
    s.eof("A").expect()
    s.open().expect(server=probe(3))
    s.server(error(3, -32601, "no")).expect(
        A=[*(not_served(id, MODERN) for id in (2, 3, 4)), CLOSE],
    )


def test_a_modern_child_whose_successor_refuses_is_replaced_by_none_and_its_subscriptions_end() -> None:
    s = modern_served()
    s.client("A", listen("L", toolsListChanged=True))
    s.server(acknowledged(3, toolsListChanged=True))
    s.crash()
    s.open().expect(server=probe(4))
    s.server(error(4, -32601, "no")).expect(A=not_served("L", MODERN, delivered=True))
    assert s.sizes == {"clients": 2}
    # The process is undecided again.
    s.client("B", initialize(1)).expect(server=asked_to_initialize(5))


# -- the first need is legacy


def test_the_bridge_initializes_with_no_capabilities_and_says_so_when_it_is_done() -> None:
    s = auto()
    s.client("A", initialize(1, "2024-11-05", roots={}, sampling={})).expect(server=asked_to_initialize(1))
    out = s.server(greeting(1))
    out.expect(server=INITIALIZED, A=greeting(1, "2024-11-05"))
    assert READY in out.told()


def test_a_refused_initialize_has_the_child_replaced_and_the_era_refused() -> None:
    s = auto()
    s.client("A", initialize(1), legacy(2), INITIALIZED, notification("n"))
    s.client("A", {"jsonrpc": "2.0", "id": 3, "method": "ping"})
    out = s.server(error(1, -32022, "no", data={"supported": ["2026-07-28"]}))
    out.expect(A=[not_served(1, LEGACY), not_served(2, LEGACY)])
    assert out.seats(REPLACE) == [0]
    assert s.router.replaced(0)
    s.server(greeting(1)).expect()
    s.crash().expect()
    s.open().expect()
    assert not s.router.replaced(0)
    s.client("A", initialize(4)).expect(A=not_served(4, LEGACY))
    s.client("A", legacy(5)).expect(A=not_served(5, LEGACY))
    s.client("A", legacy(6, "ping")).expect(A=result(6))
    s.client("B", request(1)).expect(server=probe(2))
    s.server(discovered(2, "2026-07-28", "2027-01-01")).expect(server=request(3))
    s.client("A", initialize(7)).expect(A=not_served(7, LEGACY, "2026-07-28", "2027-01-01"))


@pytest.mark.parametrize(
    ("said", "lasting"),
    [
        ({"error": {"code": -32601, "message": "no"}}, True),
        ({"error": {"code": -32022, "message": "no"}}, True),
        ({"error": {"code": 0, "message": "no", "data": {"supported": ["2026-07-28"]}}}, True),
        ({"error": {"code": -32602, "message": "no"}}, False),
        ({"error": 5}, False),
        ({"result": {}}, False),
        ({"result": []}, False),
        ({"result": {"protocolVersion": 5}}, False),
        ({"result": {"protocolVersion": ""}}, False),
        ({}, False),
    ],
)
def test_what_refuses_initialize_and_for_how_long(said: Json, lasting: bool) -> None:
    s = auto()
    s.client("A", initialize(1))
    out = s.server({"jsonrpc": "2.0", "id": 1, **said})
    out.expect(A=not_served(1, LEGACY))
    assert out.seats(REPLACE) == [0]
    s.crash(exited=False)
    s.open().expect()
    s.wait(REMEMBERED_S - 0.1)
    s.client("A", initialize(2)).expect(A=not_served(2, LEGACY))
    s.wait(0.1)
    again = s.client("A", initialize(3))
    if lasting:
        again.expect(A=not_served(3, LEGACY))
    else:
        again.expect(server=asked_to_initialize(2))


def test_a_client_whose_initialize_was_refused_has_no_session() -> None:
    s = auto()
    s.client("A", initialize(1))
    s.server(error(1, -32602, "no")).expect(A=not_served(1, LEGACY))
    s.crash()
    s.open()
    s.wait(REMEMBERED_S)
    s.client("A", legacy(2)).expect(A=refusal(-32600, "not_initialized", id=2))


def test_an_initialize_that_is_never_answered_is_refused_after_the_start_timeout() -> None:
    s = auto()
    s.wait(50)
    s.client("A", initialize(1)).expect(server=asked_to_initialize(1))
    s.wait(119.9).expect()
    out = s.wait(0.1)
    out.expect(A=not_served(1, LEGACY))
    # It may be slow: it is not stopped.
    assert out.told() == [REFUSED]
    assert not s.router.needs_tick


def test_a_new_need_of_a_child_that_never_answers_waits_for_nothing() -> None:
    s = auto()
    s.client("A", initialize(1))
    s.wait(120).expect(A=not_served(1, LEGACY))
    s.wait(REMEMBERED_S)
    s.client("A", initialize(2)).expect()
    assert s.router.needs_tick
    s.wait(0.1).expect(A=not_served(2, LEGACY))


def test_an_answer_to_initialize_is_never_too_late() -> None:
    s = auto()
    s.client("A", initialize(1))
    s.wait(120).expect(A=not_served(1, LEGACY))
    s.server(greeting(1)).expect(server=INITIALIZED)
    s.client("A", initialize(2)).expect(A=greeting(2))


def test_a_replaced_child_is_told_nothing_more() -> None:
    s = auto()
    s.client("A", initialize(1))
    s.server(error(1, -32603, "no"))
    s.wait(REMEMBERED_S)
    s.client("A", initialize(2)).expect()
    s.client("B", request(1)).expect()
    s.crash().expect()
    s.open().expect(server=asked_to_initialize(2))


# -- the second era


def test_the_second_era_has_a_process_of_its_own_only_when_somebody_needs_it() -> None:
    s = modern_served()
    s.wait(3600).expect()
    assert not s.router.needed(1)
    out = s.client("B", initialize(1), legacy(2))
    out.expect()
    assert set(out.seats(NEED)) == {1}
    assert s.router.needed(1)
    assert not s.router.needed(0)
    s.open(1).expect(second=asked_to_initialize(3))
    s.second(greeting(3)).expect(second=[INITIALIZED, legacy(4)], B=greeting(1))
    s.second(result(4)).expect(B=result(2))
    s.client("A", request(5)).expect(server=request(5))


def test_a_modern_need_of_a_legacy_server_gets_a_process_of_its_own() -> None:
    s = legacy_served()
    assert s.client("B", request(1)).seats(NEED) == [1]
    s.open(1).expect(second=probe(2))
    s.second(discovered(2)).expect(second=request(3))
    s.client("A", legacy(2)).expect(server=legacy(4))


def test_a_modern_need_while_the_first_child_is_initializing_gets_a_process_of_its_own() -> None:
    """Nothing was asked of that child but `initialize`: it can only be legacy."""
    s = auto()
    s.client("A", initialize(1))
    assert s.client("B", request(1)).seats(NEED) == [1]
    s.open(1).expect(second=probe(2))
    s.second(discovered(2)).expect(second=request(3))
    s.server(greeting(1)).expect(server=INITIALIZED, A=greeting(1))


def test_a_second_process_that_refuses_the_modern_era_is_stopped_until_it_is_needed() -> None:
    s = legacy_served()
    s.client("B", discover(1))
    s.open(1)
    out = s.second(error(2, -32602, "no"))
    out.expect(B=error(1, -32602, "no"))
    assert out.seats(RETIRE) == [1]
    assert s.router.replaced(1)
    s.second(discovered(2)).expect()
    s.crash(1, exited=False).expect()
    assert not s.router.needed(1)
    s.client("B", request(2)).expect(B=not_served(2, MODERN))
    s.wait(REMEMBERED_S)
    assert s.client("B", request(3)).seats(NEED) == [1]
    s.open(1).expect(second=probe(3))


def test_a_second_process_that_is_being_stopped_is_asked_nothing_more() -> None:
    s = legacy_served()
    s.client("B", discover(1))
    s.open(1)
    s.second(error(2, -32602, "no"))
    s.wait(REMEMBERED_S)
    s.client("B", request(2)).expect()
    s.crash(1)
    assert s.router.needed(1)
    s.open(1).expect(second=probe(3))


def test_a_second_process_that_refuses_the_legacy_era_is_stopped_until_it_is_needed() -> None:
    s = modern_served()
    s.client("B", initialize(1))
    s.open(1)
    out = s.second(error(3, -32602, "no"))
    out.expect(B=not_served(1, LEGACY))
    assert out.seats(RETIRE) == [1]
    s.crash(1).expect()
    s.client("A", request(2)).expect(server=request(4))


def test_a_second_process_that_exits_on_the_probe_is_legacy_and_no_failure() -> None:
    s = legacy_served()
    s.client("B", discover(1))
    s.open(1).expect(second=probe(2))
    s.crash(1).expect(B=not_served(1, MODERN, code=-32601))
    assert s.router.replaced(1)
    assert not s.router.needed(1)
    s.client("A", legacy(2)).expect(server=legacy(3))


def test_a_second_process_that_cannot_be_kept_alive_refuses_its_era_for_a_while() -> None:
    s = modern_served()
    s.client("B", initialize(1), legacy(2))
    for _ in range(3):
        s.open(1)
        s.crash(1).expect()
    out = s.exhaust(1)
    out.expect(B=[not_served(1, LEGACY), not_served(2, LEGACY)])
    assert out.told() == [REFUSED]
    assert not s.router.needed(1)
    s.client("B", initialize(3)).expect(B=not_served(3, LEGACY))
    s.client("A", request(2)).expect(server=request(6))
    s.wait(REMEMBERED_S)
    assert s.client("B", initialize(4)).seats(NEED) == [1]


def test_a_first_process_that_cannot_be_kept_alive_refuses_its_era_while_there_is_a_second() -> None:
    s = legacy_served()
    s.client("B", request(1))
    s.open(1)
    s.second(discovered(2))
    s.crash(0)
    s.client("A", legacy(2)).expect()
    s.exhaust(0).expect(A=not_served(2, LEGACY))
    s.client("B", request(2)).expect(second=request(4))
    s.wait(REMEMBERED_S)
    assert s.client("A", legacy(3)).seats(NEED) == [0]


def test_an_undecided_process_that_cannot_be_kept_alive_refuses_both_eras() -> None:
    s = auto(server=False)
    s.client("A", request(1), initialize(2))
    s.exhaust(0).expect(A=[not_served(1, MODERN), not_served(2, LEGACY)])


def test_listens_of_an_era_that_cannot_be_kept_alive_end() -> None:
    s = legacy_served()
    s.client("B", listen("L", toolsListChanged=True))
    s.open(1)
    s.second(discovered(2))
    s.second(acknowledged(3, toolsListChanged=True)).expect(B=acknowledged("L", toolsListChanged=True))
    s.crash(1).expect()
    assert s.router.needed(1)
    s.exhaust(1).expect(B=not_served("L", MODERN, delivered=True))
    assert s.sizes == {"clients": 2, "sessions": 1}


def test_the_second_process_is_started_again_for_its_sessions_and_the_first_for_its_own_need() -> None:
    s = modern_served()
    s.client("B", initialize(1))
    s.open(1)
    s.second(greeting(3))
    s.crash(1).expect()
    s.crash(0).expect()
    s.open(1).expect(second=asked_to_initialize(4))
    s.open(0).expect()
    s.client("A", request(2)).expect(server=probe(5))


def test_a_modern_child_that_comes_again_is_asked_again_only_when_it_is_needed() -> None:
    s = modern_served()
    s.crash().expect()
    s.open().expect()
    assert not s.router.needed()
    s.client("B", initialize(1)).expect()
    s.client("A", request(2)).expect(server=probe(3))


# -- many at the first moment


@pytest.mark.parametrize("legacy_is_first", [False, True])
def test_fifty_clients_of_both_eras_cause_one_probe_and_one_initialize(legacy_is_first: bool) -> None:
    names = [chr(number) for number in range(0x100, 0x100 + 50)]
    s = auto("", server=False)
    for name in names:
        s.join(name)
    parity = 0 if legacy_is_first else 1
    olds = [name for number, name in enumerate(names) if number % 2 == parity]
    news = [name for name in names if name not in olds]
    for name in names:
        s.client(name, initialize(0) if name in olds else discover(0))
    written = s.open().items("server")
    assert written == [asked_to_initialize(1) if legacy_is_first else probe(1)]
    if legacy_is_first:
        s.open(1).expect(second=probe(2))
        s.server(greeting(1)).expect(server=INITIALIZED, **{name: greeting(0) for name in olds})
        out = s.second(discovered(2)).items("second")
    else:
        out = s.server(discovered(1)).items("server")
    assert len(out) == 25
    assert all(isinstance(each, dict) and each["method"] == "server/discover" for each in out)
    if not legacy_is_first:
        [asked] = s.open(1).items("second")
        assert isinstance(asked, dict)
        s.second(greeting(asked["id"])).expect(second=INITIALIZED, **{name: greeting(0) for name in olds})
    for name in news + olds:
        s.leave(name)
    assert s.sizes == {}


# -- clients that come and go


def test_a_client_that_probes_and_vanishes_disturbs_nothing() -> None:
    """Some hosts probe on a sibling connection."""
    s = auto()
    s.client("A", discover("server-discover-probe-1")).expect(server=probe(1))
    s.leave("A").expect()
    s.client("B", discover("server-discover-probe-1")).expect()
    s.server(discovered(1)).expect(server=discover(2))
    s.leave("B").expect(server=cancelled(2, reason="the client disconnected"))
    s.server(discovered(2)).expect()
    s.join("C")
    s.client("C", request(1)).expect(server=request(3))
    assert s.sizes == {"clients": 1, "in_flight": 1}


def test_a_client_that_probes_a_legacy_server_and_vanishes_disturbs_nothing() -> None:
    s = auto()
    s.client("A", discover(1))
    s.client("B", initialize(1))
    s.leave("A").expect()
    s.server(error(1, -32601, "no")).expect(server=asked_to_initialize(2))
    s.server(greeting(2)).expect(server=INITIALIZED, B=greeting(1))


def test_one_client_falls_back_from_discover_to_initialize_on_one_connection() -> None:
    s = auto()
    s.client("A", discover("probe")).expect(server=probe(1))
    s.server(error(1, -32601, "no")).expect(A=error("probe", -32601, "no"))
    s.client("A", initialize(1)).expect(server=asked_to_initialize(2))
    s.server(greeting(2)).expect(server=INITIALIZED, A=greeting(1))
    s.client("A", INITIALIZED, legacy(2)).expect(server=legacy(3))
    s.server(result(3)).expect(A=result(2))


def test_one_client_may_use_both_eras_on_one_connection() -> None:
    s = modern_served("A")
    s.client("A", initialize(1))
    s.open(1)
    s.second(greeting(3)).expect(second=INITIALIZED, A=greeting(1))
    s.client("A", request(5), legacy(5)).expect(server=request(4), second=legacy(5))
    s.second(result(5, "old")).expect(A=result(5, "old"))
    s.client("A", cancelled(5)).expect(server=cancelled(4))
    s.client("A", request(6), legacy(7))
    s.leave("A").expect(
        server=cancelled(6, reason="the client disconnected"),
        second=cancelled(7, reason="the client disconnected"),
    )
    assert s.sizes == {}


def test_a_discover_without_meta_is_modern_on_a_connection_with_a_session_too() -> None:
    s = legacy_served()
    s.client("A", legacy(2), {"jsonrpc": "2.0", "id": 3, "method": "server/discover"}).expect(
        server=legacy(2)
    )
    s.open(1).expect(second=probe(3))


def test_an_answer_of_one_eras_child_settles_nothing_at_the_other() -> None:
    """Tables belong to one child."""
    s = modern_served("A")
    s.client("A", initialize(1))
    s.open(1)
    s.second(greeting(3))
    s.client("A", request(5), legacy(6))
    s.second(result(4)).expect()
    s.server(result(5)).expect()
    assert s.router.in_flight == 2
    s.server(result(4, "new")).expect(A=result(5, "new"))
    s.second(result(5, "old")).expect(A=result(6, "old"))


# -- an era that was decided ahead


def test_a_decided_modern_era_makes_the_child_ready_before_anybody_needs_it() -> None:
    s = Scenario(server=False, era=MODERN)
    s.open().expect(server=probe(1))
    assert s.server(discovered(1)).told() == [READY]


@pytest.mark.parametrize("said", [discovered(1), error(1, -32601, "no"), {"jsonrpc": "2.0", "id": 1}])
def test_a_decided_modern_era_takes_any_answer_for_ready(said: Json) -> None:
    s = Scenario(server=False, era=MODERN)
    s.open()
    s.client("A", request(1))
    s.server(said).expect(server=request(2))


def test_a_decided_modern_era_takes_silence_for_ready() -> None:
    s = Scenario(server=False, era=MODERN)
    s.open()
    s.client("A", request(1))
    s.wait(9.9).expect()
    s.wait(0.1).expect(server=request(2))


def test_a_decided_modern_era_takes_an_exit_on_the_probe_for_a_fault() -> None:
    s = Scenario(server=False, era=MODERN)
    s.open()
    s.crash().expect()
    assert not s.router.replaced()
    s.open().expect(server=probe(2))


def test_a_decided_modern_era_refuses_legacy_clients_for_good() -> None:
    s = Scenario(era=MODERN)
    s.client("A", initialize(1)).expect(A=not_served(1, LEGACY, "2026-07-28"))
    s.wait(3600)
    s.client("A", initialize(2)).expect(A=not_served(2, LEGACY, "2026-07-28"))
    s.client("A", legacy(3, "ping")).expect(A=result(3))


def test_a_decided_legacy_era_makes_the_child_ready_before_anybody_needs_it() -> None:
    s = Scenario(server=False, era=LEGACY)
    s.open().expect(server=asked_to_initialize(1))
    out = s.server(greeting(1))
    out.expect(server=INITIALIZED)
    assert out.told() == [READY]
    s.client("A", initialize(1)).expect(A=greeting(1))


def test_a_decided_legacy_era_refuses_modern_clients_as_a_legacy_server_would() -> None:
    """From -32601 to a discover a client of both eras goes on to `initialize`."""
    s = Scenario(era=LEGACY)
    s.client("A", discover(1)).expect(A=not_served(1, MODERN, code=-32601))
    s.client("A", request(2)).expect(A=not_served(2, MODERN))
    s.wait(3600)
    s.client("A", request(3)).expect(A=[not_served(3, MODERN)])


def test_a_decided_legacy_era_that_the_server_refuses_is_refused_to_everybody() -> None:
    s = Scenario(era=LEGACY)
    s.client("A", initialize(1))
    out = s.server(error(1, -32602, "no"))
    out.expect(A=not_served(1, LEGACY))
    assert out.seats(REPLACE) == [0]
    s.crash()
    s.open().expect()
    s.wait(REMEMBERED_S)
    s.client("A", initialize(2)).expect(server=asked_to_initialize(2))


# -- the end


def test_a_drain_refuses_what_waits_for_either_era() -> None:
    s = both_waiting()
    s.client("B", legacy(2))
    s.drain().expect(
        A=refusal(-31005, "shutting_down", id=1),
        B=[refusal(-31005, "shutting_down", id=1), refusal(-31005, "shutting_down", id=2)],
    )
    s.server(greeting(2)).expect(server=INITIALIZED)
    s.client("B", initialize(3)).expect(B=refusal(-31005, "shutting_down", id=3))
    s.client("B", legacy(4, "ping")).expect(B=refusal(-31005, "shutting_down", id=4))


def test_a_stop_gives_up_what_is_at_either_server() -> None:
    s = modern_served("AB")
    s.client("B", initialize(1))
    s.open(1)
    s.second(greeting(3))
    s.client("A", request(2))
    s.client("B", legacy(2))
    assert s.router.in_flight == 2
    s.stop().expect(
        A=[refusal(-31005, "shutting_down", id=2, delivered=True), CLOSE],
        B=[refusal(-31005, "shutting_down", id=2, delivered=True), CLOSE],
        server=cancelled(4, reason="the bridge is stopping"),
        second=cancelled(5, reason="the bridge is stopping"),
    )
    assert s.sizes == {}
    s.crash(0).expect()
    s.crash(1).expect()


def test_the_bridges_own_questions_are_not_requests_in_flight() -> None:
    s = both_waiting()
    assert s.router.in_flight == 0
    assert "in_flight" not in s.sizes


def test_every_wait_for_an_era_is_over_when_its_clients_are_gone() -> None:
    s = both_waiting()
    s.leave("A")
    s.leave("B")
    assert s.sizes == {}
    s.wait(1000).expect()
    assert not s.router.needs_tick
    s.server(discovered(1), greeting(2)).expect(server=INITIALIZED)


def test_requests_wait_for_a_second_process_no_longer_than_for_the_first() -> None:
    """`--restart-wait`."""
    s = modern_served()
    s.client("B", initialize(1), legacy(2))
    s.wait(29.9).expect()
    s.wait(0.1).expect(B=[refusal(-31002, "server_unavailable", id=id) for id in (1, 2)])
    assert not s.router.needed(1)
    # The session was never opened.
    s.client("B", legacy(3)).expect(B=refusal(-32600, "not_initialized", id=3))


def test_known_versions_are_in_order() -> None:
    assert list(LEGACY_VERSIONS) == sorted(LEGACY_VERSIONS)
    assert max(LEGACY_VERSIONS) < "2026-07-28"


def test_an_era_that_the_operator_decided_against_stays_refused_whatever_becomes_of_the_server() -> None:
    s = Scenario("A", era=LEGACY)
    s.client("A", initialize(1)).expect()
    s.server(error(1)).expect(A=not_served(1, LEGACY))
    s.crash().expect()
    s.exhaust().expect()
    s.wait(REMEMBERED_S).expect()
    out = s.client("A", request(2))
    out.expect(A=not_served(2, MODERN))
    assert out.told() == []
