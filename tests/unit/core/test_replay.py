"""`--replay safe`: what only reads goes once more to the next process (section 8 of the contract)."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.core.era import Era
from bridge.core.jsonrpc import LOG_LEVEL
from bridge.core.replay import KEPT
from bridge.core.tables import NoticeKind
from tests.unit.core.scenario import (
    Json,
    Scenario,
    cancelled,
    greeting,
    legacy,
    log,
    notification,
    progress,
    refusal,
    request,
    result,
)
from tests.unit.core.sessions import LISTS, session

SAFE = (
    "server/discover",
    "tools/list",
    "example/list",
    "resources/templates/list",
    "resources/read",
    "prompts/get",
    "completion/complete",
)


def scenario(clients: str = "A", **limits: Any) -> Scenario:
    return Scenario(clients, replay_safe=True, **limits)


@pytest.mark.parametrize("method", SAFE)
def test_what_only_reads_is_sent_once_more_under_a_new_id_and_token(method: str) -> None:
    s = scenario()
    s.client("A", request("a", method, meta={"progressToken": "mine"})).expect(
        server=request(2, method, meta={"progressToken": 2})
    )
    s.crash().expect()
    assert s.router.needed()
    assert s.stats.replayed == 1
    s.start().expect(server=request(4, method, meta={"progressToken": 4}))
    s.server(progress(4, progress=1), result(4, {"x": 1})).expect(
        A=[progress("mine", progress=1), result("a", {"x": 1})]
    )
    assert s.sizes == {"clients": 1}
    assert s.router.buffered_all == 0


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "x"}),
        ("tools/call/list/x", {}),
        ("tools/list", {"cursor": "c"}),
        ("resources/read", {"uri": "u", "inputResponses": {}}),
        ("resources/read", {"uri": "u", "requestState": "s"}),
        ("prompts/get", {"name": "p", "task": {}}),
        ("resources/read", {"uri": "u" * KEPT}),
    ],
    ids=["a call", "a longer name", "a page", "answers", "a state", "a task", "a long one"],
)
def test_what_may_do_more_than_read_is_never_sent_again(method: str, params: Json) -> None:
    s = scenario()
    s.client("A", request(1, method, **params))
    s.crash().expect(A=refusal(-31001, "server_exited", id=1, delivered=True))
    assert s.stats.replayed == 0


def test_parameters_that_are_no_object_say_nothing_about_what_they_do() -> None:
    s = session("A", replay_safe=True)
    s.client("A", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": ["c"]})
    s.crash().expect(A=refusal(-31001, "server_exited", id=1, delivered=True))


def test_what_is_close_to_the_limit_of_a_line_is_never_sent_again() -> None:
    """Under a later and longer id it could be refused as too long, after it was delivered."""
    s = scenario(max_request=600)
    s.client("A", request(1, "resources/read", uri="u" * 380)).expect(
        server=request(2, "resources/read", uri="u" * 380)
    )
    s.crash().expect(A=refusal(-31001, "server_exited", id=1, delivered=True))


def test_without_the_option_nothing_is_sent_again() -> None:
    s = Scenario()
    s.client("A", request(1, "tools/list"))
    s.crash().expect(A=refusal(-31001, "server_exited", id=1, delivered=True))


def test_it_is_sent_again_only_once() -> None:
    s = scenario()
    s.client("A", request(1, "tools/list"))
    s.crash().expect()
    s.start().expect(server=request(4, "tools/list"))
    s.crash().expect(A=refusal(-31001, "server_exited", id=1, delivered=True))
    s.start().expect()


def test_what_was_sent_before_comes_first_and_in_its_order() -> None:
    s = scenario(max_in_flight=3)
    lines = [request(n, "tools/list") for n in range(5)]
    lines[1] = request(1, "tools/call")
    s.client("A", *lines)
    s.crash().expect(A=refusal(-31001, "server_exited", id=1, delivered=True))
    s.client("A", notification("n"))
    s.start().expect(server=[request(n, "tools/list") for n in (6, 7, 8)])
    s.server(result(7, {})).expect(A=result(2, {}), server=[request(9, "tools/list"), notification("n")])


def test_whose_client_has_left_or_given_up_is_not_sent_again() -> None:
    s = scenario("AB")
    s.client("A", request(1, "tools/list"))
    s.client("B", request(1, "tools/list"), request(2, "tools/list"))
    s.crash().expect()
    s.leave("A").expect()
    s.client("B", cancelled(1)).expect()
    s.start().expect(server=request(6, "tools/list"))
    s.server(result(6, {})).expect(B=result(2, {}))


def test_what_its_client_has_heard_of_is_not_sent_again() -> None:
    """It has seen progress, or logs that may be of any of its requests that asked for some."""
    s = scenario("AB")
    asking = {LOG_LEVEL: "debug"}
    s.client("A", request(1, "tools/list", meta={"progressToken": 1}), request(2, "tools/list"))
    s.server(progress(2, progress=1)).expect(A=progress(1, progress=1))
    s.client("B", request(3, "tools/list", meta=asking), request(4, "tools/list"))
    s.server(log("x")).expect(B=log("x"))
    s.crash().expect(
        A=refusal(-31001, "server_exited", id=1, delivered=True),
        B=refusal(-31001, "server_exited", id=3, delivered=True),
    )
    s.start().expect(server=[request(7, "tools/list"), request(8, "tools/list")])


def test_a_response_that_cannot_be_read_is_no_reason_to_ask_again() -> None:
    """The server has answered, if badly: only its end counts."""
    s = scenario()
    s.client("A", request(1, "tools/list"))
    s.server({"jsonrpc": "2.0", "id": 2}).expect(A=refusal(-31008, "invalid_response", id=1, delivered=True))
    s.crash().expect()
    assert not s.router.needed()


def test_logs_of_another_client_are_nobody_elses_news() -> None:
    s = scenario("AB", broadcast_logs=True)
    s.client("A", request(1, "tools/list", meta={LOG_LEVEL: "debug"}))
    s.client("B", request(1, "tools/list"))
    s.server(log("x")).expect(A=log("x"))
    s.crash().expect(A=refusal(-31001, "server_exited", id=1, delivered=True))
    s.start().expect(server=request(5, "tools/list"))


def test_logs_that_each_may_own_are_news_to_each() -> None:
    s = scenario("AB", broadcast_logs=True)
    for name in "AB":
        s.client(name, request(1, "tools/list", meta={LOG_LEVEL: "debug"}))
    s.server(log("x")).expect(A=log("x"), B=log("x"))
    exited = refusal(-31001, "server_exited", id=1, delivered=True)
    s.crash().expect(A=exited, B=exited)


def test_what_cannot_be_sent_again_after_all_may_have_been_carried_out() -> None:
    """`delivered: false` promises that no server has seen it."""
    s = scenario("AB")
    s.client("A", request(1, "tools/list"))
    s.crash().expect()
    s.client("B", request(2, "tools/list")).expect()
    s.wait(s.limits.restart_wait).expect(
        A=refusal(-31002, "server_unavailable", id=1, delivered=True),
        B=refusal(-31002, "server_unavailable", id=2),
    )


def test_a_stop_while_it_waits_says_so_too() -> None:
    s = scenario()
    s.client("A", request(1, "tools/list"))
    s.crash()
    s.drain().expect(A=refusal(-31005, "shutting_down", id=1, delivered=True))


def test_nothing_is_kept_for_another_process_once_the_bridge_stops() -> None:
    s = scenario()
    s.client("A", request(1, "tools/list"))
    s.drain().expect()
    s.crash().expect(A=refusal(-31001, "server_exited", id=1, delivered=True))


def test_a_queue_that_is_full_takes_nothing_back() -> None:
    s = scenario(max_in_flight=3, max_queued=2)
    s.client("A", *[request(n, "tools/list") for n in range(5)])
    s.crash().expect(
        A=[refusal(-31001, "server_exited", id=n, delivered=True) for n in range(3)],
    )
    s.start().expect(server=[request(6, "tools/list"), request(7, "tools/list")])


def test_a_server_that_is_refused_from_now_on_leaves_nothing_waiting() -> None:
    s = scenario()
    s.client("A", request(1, "tools/list"))
    s.crash().expect()
    out = s.exhaust()
    [answer] = out.items("A")
    assert isinstance(answer, dict)
    assert answer["error"]["data"]["delivered"] is True


def test_a_legacy_request_waits_until_the_session_is_made_again() -> None:
    s = session("A", replay_safe=True)
    s.client("A", notification("notifications/initialized"))
    s.client("A", legacy(1, "resources/read", uri="u")).expect(server=legacy(2, "resources/read", uri="u"))
    out = s.crash()
    out.expect()
    assert out.seats(NoticeKind.NEED_CHILD) == [0]
    [hello] = s.open().items("server")
    assert isinstance(hello, dict)
    capabilities = {
        "tools": {"listChanged": True},
        "prompts": {},
        "resources": {"subscribe": True, "listChanged": True},
        "logging": {},
        "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
    }
    s.server(greeting(hello["id"], capabilities=capabilities)).expect(
        A=LISTS,
        server=[notification("notifications/initialized"), legacy(4, "resources/read", uri="u")],
    )
    s.server(result(4, {})).expect(A=result(1, {}))


def test_what_is_kept_counts_as_held() -> None:
    s = scenario()
    s.client("A", request(1, "resources/read", uri="u" * 5000), request(2, "tools/call", text="t" * 5000))
    assert 5000 < s.router.buffered(s.key("A")) < 6000
    s.server(result(2, {}), result(3, {}))
    assert s.router.buffered(s.key("A")) == 0


def test_a_half_closed_client_is_still_there() -> None:
    s = scenario()
    s.client("A", request(1, "tools/list"))
    s.eof("A").expect()
    s.crash().expect()
    s.start().expect(server=request(4, "tools/list"))
    assert s.server(result(4, {})).items("A")[0] == result(1, {})


def test_with_a_new_process_in_service_it_goes_there_at_once() -> None:
    """The old one ends before it has answered what it was sent before the swap."""
    s = scenario(era=Era.MODERN)
    s.client("A", request(1, "tools/list"), request(2, "tools/call"))
    s.swap()
    new = s.router.seats[0] + 2
    s.start(new)
    out = s.crash(0)
    assert out.items("A") == [refusal(-31001, "server_exited", id=2, delivered=True)]
    assert out.items(f"seat{new}") == [request(5, "tools/list")]
