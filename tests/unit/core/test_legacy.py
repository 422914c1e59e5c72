"""Legacy clients that share one session with the server (section 7, "Legacy, shared")."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bridge.core.era import LEGACY_VERSIONS, Era
from bridge.core.legacy import OWN
from bridge.core.tables import NoticeKind
from tests.unit.core.scenario import (
    CLOSE,
    INITIALIZED,
    ROOM,
    Json,
    Scenario,
    asked_to_initialize,
    cancelled,
    discovered,
    error,
    greeting,
    initialize,
    left,
    legacy,
    line,
    listen,
    not_served,
    notification,
    probe,
    progress,
    refusal,
    request,
    result,
)

ROOTS_CHANGED = notification("notifications/roots/list_changed")
PING: Json = {"jsonrpc": "2.0", "id": 0, "method": "ping"}
TOOLS_CHANGED = notification("notifications/tools/list_changed")


def shared(
    clients: str = "AB", *, said: Json | None = None, era_decided: bool = True, **limits: Any
) -> Scenario:
    """A legacy server, with which the bridge has made its handshake; every client has a session."""
    s = Scenario(clients, era=Era.LEGACY if era_decided else None, **limits)
    if era_decided:
        s.server(said or greeting(1))
    for name in clients:
        s.client(name, initialize("i"))
    if not era_decided:
        s.server(said or greeting(1))
    return s


# -- the handshake


def test_every_clients_initialize_is_answered_from_the_one_handshake() -> None:
    s = Scenario("ABC", era=None)
    s.client("A", initialize(0)).expect(server=asked_to_initialize(1))
    s.client("B", initialize("0")).expect()
    s.server(greeting(1)).expect(server=INITIALIZED, A=greeting(0), B=greeting("0"))
    s.client("C", initialize("a")).expect(C=greeting("a"))


def test_a_repeated_initialize_is_answered_like_the_first() -> None:
    """One SDK's server refuses a second one."""
    s = shared("A")
    s.client("A", initialize(7), initialize(7)).expect(A=[greeting(7), greeting(7)])
    s.client("A", legacy(1)).expect(server=legacy(2))
    s.client("A", initialize(8)).expect(A=greeting(8))
    s.server(result(2)).expect(A=result(1))


def test_an_initialize_that_is_repeated_before_it_is_answered_is_answered_as_often() -> None:
    s = Scenario("A", era=None)
    s.client("A", initialize(1), initialize(1), legacy(2), initialize(3)).expect(
        server=asked_to_initialize(1)
    )
    s.server(greeting(1)).expect(server=[INITIALIZED, legacy(2)], A=[greeting(1), greeting(1), greeting(3)])


def test_initialize_is_answered_while_the_server_is_busy() -> None:
    s = shared()
    s.client("A", legacy(1))
    s.block()
    s.join("C")
    s.client("C", initialize(1)).expect(C=greeting(1))


def test_initialize_is_answered_while_the_server_is_away() -> None:
    s = shared()
    s.crash()
    s.join("C")
    s.client("C", initialize(1)).expect(C=greeting(1))
    out = s.client("C", legacy(2))
    out.expect()
    assert out.seats(NoticeKind.NEED_CHILD) == [0]


def test_what_the_server_said_is_passed_on_as_it_was() -> None:
    """Section 2: no number, escape, unknown member or key order of a peer is altered."""
    s = Scenario("A", era=None)
    s.client("A", initialize(1))
    said = (
        rb'"serverInfo":{"name":"\u00e9\ud83d","version":1e400},"instructions":"a\/b",'
        rb'"_meta":{"x":[1.0,-0]},"vendor":null'
    )
    whole = b'{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{},' + said
    assert said in s.server(whole + b"}}\n").bytes("A")
    s.join("B")
    assert said in s.client("B", initialize(1)).bytes("B")


@pytest.mark.parametrize("asked", LEGACY_VERSIONS)
@pytest.mark.parametrize("served", LEGACY_VERSIONS)
def test_a_client_is_told_its_own_version_unless_the_servers_is_older(asked: str, served: str) -> None:
    s = shared("A", said=greeting(1, served))
    s.client("A", initialize(1, asked)).expect(A=greeting(1, min(asked, served)))


@pytest.mark.parametrize(
    "asked", ["2026-07-28", "2099-01-01", "2025-01-01", "1.0", "", "\ud83d", None, 5, ["2024-11-05"], {}]
)
@pytest.mark.parametrize("served", ["2024-11-05", "2025-11-25"])
def test_a_client_that_asks_for_an_unknown_version_is_told_the_servers(asked: object, served: str) -> None:
    s = shared("A", said=greeting(1, served))
    asking = json.dumps(initialize(1, asked)).encode() + b"\n"
    s.client("A", asking).expect(A=greeting(1, served))


def test_a_client_of_a_server_with_an_unknown_version_is_told_its_own_if_that_is_not_newer() -> None:
    s = shared("A", said=greeting(1, "2025-07-01"))
    s.client("A", initialize(1, "2025-06-18")).expect(A=greeting(1, "2025-06-18"))
    s.client("A", initialize(1, "2025-11-25")).expect(A=greeting(1, "2025-07-01"))


@pytest.mark.parametrize("params", [{}, None, [], [{"protocolVersion": "2024-11-05"}]])
def test_an_initialize_that_names_no_version_is_told_the_servers(params: object) -> None:
    s = shared("A", said=greeting(1, "2025-06-18"))
    s.client("A", {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).expect(
        A=greeting(1, "2025-06-18")
    )


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"{}", b"{}"),
        (b"5", b"{}"),
        (b'{"logging":{},"tasks":{"list":{}},"x":1.0}', b'{"logging":{},"tasks":{"list":{}},"x":1.0}'),
        (
            b'{"resources":{"subscribe":true,"listChanged":5}}',
            b'{"resources":{"subscribe":true,"listChanged":5}}',
        ),
    ],
)
def test_capabilities_of_any_shape_are_told(said: bytes, told: bytes) -> None:
    s = Scenario("A", era=None)
    s.client("A", initialize(1))
    whole = b'{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":%s}}\n'
    assert s.server(whole % said).bytes("A") == whole % told


def test_a_server_that_told_no_capabilities_has_none() -> None:
    s = shared("A", said=result(1, {"protocolVersion": "2025-11-25"}))
    s.client("A", initialize(1)).expect(A=result(1, {"protocolVersion": "2025-11-25", "capabilities": {}}))


@pytest.mark.parametrize(
    ("declared", "costs"),
    [
        ({}, None),
        ({"experimental": {}}, None),
        ({"roots": {}}, b"roots"),
        (
            {"roots": {"listChanged": True}, "sampling": {}, "elicitation": {}},
            b"sampling, elicitation, roots",
        ),
    ],
)
def test_a_client_that_could_be_asked_something_is_told_in_the_log_what_sharing_costs_it(
    declared: Json, costs: bytes | None
) -> None:
    s = shared("A")
    out = s.client("A", initialize(1, **declared))
    told = [notice.detail for notice in out.notices if notice.kind is NoticeKind.SHARED_SESSION]
    assert told == ([] if costs is None else [costs])


def test_capabilities_of_a_client_that_are_no_object_cost_nothing() -> None:
    s = shared("A")
    s.client("A", legacy(1, "initialize", capabilities=5)).expect(A=greeting(1))


# -- what comes before, and behind


def test_a_request_before_initialize_is_refused() -> None:
    s = Scenario("A", era=Era.LEGACY)
    for id, method in enumerate(["tools/list", "resources/subscribe", "logging/setLevel", "tasks/list"]):
        s.client("A", legacy(id, method)).expect(A=refusal(-32600, "not_initialized", id=id))


def test_a_request_before_initialize_is_refused_while_others_have_a_session() -> None:
    s = shared("A")
    s.join("B")
    s.client("B", legacy(1)).expect(B=refusal(-32600, "not_initialized", id=1))
    s.client("B", initialize(2), legacy(3)).expect(B=greeting(2), server=legacy(2))


def test_a_ping_before_initialize_is_answered() -> None:
    s = Scenario("A", era=None)
    s.client("A", PING).expect(A=result(0))


def test_ping_is_answered_by_the_bridge_at_any_time() -> None:
    s = shared("A")
    s.client("A", PING).expect(A=result(0))
    s.block()
    s.client("A", legacy(1), PING).expect(A=result(0))
    s.crash().expect()
    s.client("A", PING).expect(A=result(0))


def test_a_ping_behind_initialize_does_not_wait() -> None:
    s = Scenario("A", era=None)
    s.client("A", initialize(1), PING).expect(server=asked_to_initialize(1), A=result(0))


def test_a_modern_ping_is_the_servers() -> None:
    s = Scenario("A")
    s.client("A", request(1, "ping")).expect(server=request(2, "ping"))


def test_an_initialize_with_the_meta_of_the_modern_era_opens_a_session_all_the_same() -> None:
    """It selects the legacy era for the whole process: no modern server that others share is sent one."""
    s = Scenario("AB", era=None)
    s.client("A", request(1)).expect(server=probe(1))
    s.server(discovered(1)).expect(server=request(2))
    modern = {**initialize(1)["params"], "_meta": request(1)["params"]["_meta"]}
    for line_ in (legacy(1, "initialize", **modern), legacy(2, "initialize", **modern)):
        s.client("B", line_).expect()
    s.open(1).expect(second=asked_to_initialize(3))
    s.second(greeting(3)).expect(second=INITIALIZED, B=[greeting(1), greeting(2)])


def test_what_is_pipelined_behind_initialize_waits_for_its_answer_in_order() -> None:
    s = Scenario("A", era=None)
    s.client(
        "A", initialize(1), INITIALIZED, legacy(2, "a"), notification("n"), legacy(3, "tasks/get", taskId="t")
    ).expect(server=asked_to_initialize(1))
    s.client("A", legacy(4, "b"))
    s.server(greeting(1)).expect(
        server=[INITIALIZED, legacy(2, "a"), notification("n"), legacy(3, "b")],
        A=[greeting(1), refusal(-32602, "unknown_task", id=3)],
    )


def test_initialize_is_never_cancelled_and_what_is_behind_it_is() -> None:
    s = Scenario("A", era=None)
    s.client("A", initialize(1), legacy(1), legacy(2)).expect(server=asked_to_initialize(1))
    s.client("A", cancelled(1), cancelled(2)).expect()
    s.server(greeting(1)).expect(server=INITIALIZED, A=greeting(1))
    s.client("A", cancelled(1)).expect()
    assert s.stats.cancels == 0


def test_a_client_that_leaves_while_it_initializes_cancels_nothing() -> None:
    s = Scenario("A", era=None)
    s.client("A", initialize(1), legacy(2))
    s.leave("A").expect()
    assert s.sizes == {}
    s.server(greeting(1)).expect(server=INITIALIZED)


def test_a_client_that_was_refused_may_initialize_again() -> None:
    s = Scenario("A", era=None, server=False)
    s.client("A", initialize(1))
    s.wait(30).expect(A=refusal(-31002, "server_unavailable", id=1))
    s.client("A", legacy(2)).expect(A=refusal(-32600, "not_initialized", id=2))
    s.client("A", initialize(3), legacy(4))
    s.open().expect(server=asked_to_initialize(1))
    s.server(greeting(1)).expect(server=[INITIALIZED, legacy(2)], A=greeting(3))


def test_what_was_behind_an_initialize_that_was_not_served_in_time_has_no_session() -> None:
    s = Scenario("A", era=None, server=False)
    s.client("A", initialize(1))
    s.now += 1
    s.client("A", legacy(2))
    s.wait(29).expect(A=refusal(-31002, "server_unavailable", id=1))
    s.open().expect(server=asked_to_initialize(1))
    s.server(greeting(1)).expect(server=INITIALIZED, A=refusal(-32600, "not_initialized", id=2))


def test_a_session_stays_open_when_the_era_is_refused_for_a_while() -> None:
    s = shared("A")
    s.crash()
    s.client("A", legacy(1))
    s.exhaust().expect(A=not_served(1, Era.LEGACY))
    s.wait(30)
    s.client("A", legacy(2)).expect()
    s.open().expect(server=asked_to_initialize(2))
    s.server(greeting(2)).expect(server=[INITIALIZED, legacy(3)])


# -- requests


def test_legacy_requests_are_routed_like_any_other() -> None:
    s = shared()
    s.client("A", legacy(1, "x", _meta={"progressToken": "t"})).expect(
        server=legacy(2, "x", _meta={"progressToken": 2})
    )
    s.client("B", legacy(1, "x", _meta={"progressToken": "t"})).expect(
        server=legacy(3, "x", _meta={"progressToken": 3})
    )
    s.server(progress(3), progress(2), progress("t"), progress(4)).expect(A=progress("t"), B=progress("t"))
    s.server(result(3, "b"), error(2)).expect(A=error(1), B=result(1, "b"))
    s.server(progress(2), result(2)).expect()
    assert s.router.in_flight == 0


def test_a_legacy_request_without_params_is_one() -> None:
    s = shared("A")
    bare: Json = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    s.client("A", bare).expect(server={**bare, "id": 2})
    s.client("A", {**bare, "params": [1]}).expect(server={**bare, "id": 3, "params": [1]})


def test_a_legacy_request_is_cancelled_when_its_client_leaves() -> None:
    s = shared()
    s.client("A", legacy(1), legacy(2))
    s.leave("A").expect(server=[left(2), left(3)])
    assert s.sizes == {"clients": 1, "sessions": 1}


def test_a_client_may_cancel_its_legacy_request() -> None:
    s = shared()
    s.client("A", legacy(1))
    s.client("B", cancelled(1)).expect()
    s.client("A", cancelled(1, reason="r")).expect(server=cancelled(2, reason="r"))
    s.server(result(2)).expect()


def test_a_legacy_listen_is_a_request_like_any_other() -> None:
    """The method is of the modern era; without its `_meta` it opens no subscription."""
    s = shared("A")
    s.client("A", legacy(1, "subscriptions/listen", notifications={})).expect(
        server=legacy(2, "subscriptions/listen", notifications={})
    )
    assert s.sizes == {"clients": 1, "sessions": 1, "in_flight": 1}


def test_a_modern_request_of_a_name_that_is_looked_after_is_the_servers() -> None:
    s = Scenario("A")
    for number, method in enumerate(sorted(OWN - {"initialize"})):
        s.client("A", request("x", method)).expect(server=request(number + 2, method))


# -- clients' notifications and responses


def test_what_a_client_says_of_its_own_session_ends_at_the_bridge() -> None:
    s = shared("A")
    own_progress = notification("notifications/progress", progressToken=1)
    s.client("A", INITIALIZED, ROOTS_CHANGED, own_progress).expect()
    assert s.stats.dropped_notifications_up == 3


def test_a_client_without_a_session_may_say_the_same() -> None:
    s = Scenario("A", era=None)
    s.client("A", INITIALIZED, ROOTS_CHANGED).expect()


def test_other_notifications_of_a_session_go_to_its_server_in_their_place() -> None:
    s = shared("A")
    s.client("A", legacy(1), notification("n"), legacy(2)).expect(
        server=[legacy(2), notification("n"), legacy(3)]
    )


def test_a_notification_of_a_client_without_a_session_goes_to_no_legacy_server() -> None:
    s = Scenario("A", era=Era.LEGACY)
    s.server(greeting(1))
    s.client("A", notification("n")).expect()
    assert s.stats.dropped_notifications_up == 1


def test_a_notification_of_a_session_starts_no_child() -> None:
    s = shared("A")
    s.crash()
    out = s.client("A", notification("n"))
    out.expect()
    assert out.told() == []
    assert s.sizes == {"clients": 1, "sessions": 1}


def test_a_clients_responses_are_dropped() -> None:
    s = shared("A")
    s.client("A", result(1), error(2), result("x")).expect()
    assert s.stats.dropped_responses_up == 3


# -- the server's notifications


@pytest.mark.parametrize("what", ["tools", "prompts", "resources"])
@pytest.mark.parametrize("params", [{"params": {}}, {"params": {"_meta": {"x": 1}}}, {"params": None}, {}])
def test_a_changed_list_is_told_to_every_client_that_is_initialized(what: str, params: Json) -> None:
    s = shared("ABC")
    s.join("D")
    s.join("E")
    for name in "ACD":  # D has no session
        s.client(name, INITIALIZED)
    changed = {"jsonrpc": "2.0", "method": f"notifications/{what}/list_changed", **params}
    s.server(changed).expect(A=changed, C=changed)
    assert s.stats.notifications_down == 2


def test_a_client_that_has_left_is_told_nothing() -> None:
    s = shared()
    s.client("A", INITIALIZED)
    s.leave("A")
    s.server(TOOLS_CHANGED).expect()


def test_a_changed_list_before_the_session_is_open_is_told_to_nobody() -> None:
    s = Scenario("A", era=None)
    s.client("A", initialize(1), INITIALIZED)
    s.server(TOOLS_CHANGED).expect()
    s.server(greeting(1)).expect(server=INITIALIZED, A=greeting(1))
    s.server(TOOLS_CHANGED).expect(A=TOOLS_CHANGED)


def test_a_changed_list_keeps_its_unpaired_surrogates() -> None:
    s = shared("A")
    s.client("A", INITIALIZED)
    changed = (
        rb'{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"a":"\ud83d"}}' + b"\n"
    )
    assert s.server(changed).bytes("A") == changed


def test_a_changed_list_of_another_eras_server_is_not_the_sessions() -> None:
    s = Scenario("AB", era=None)
    s.client("A", request(1))
    s.server(discovered(1))
    s.client("B", initialize(1), INITIALIZED)
    s.open(1)
    s.second(greeting(3))
    s.second(TOOLS_CHANGED).expect(B=TOOLS_CHANGED)
    s.server(TOOLS_CHANGED).expect()


@pytest.mark.parametrize(
    "said",
    [
        notification("notifications/message", level="info", data=1),
        notification("notifications/message", data=1),
        {"jsonrpc": "2.0", "method": "notifications/message"},
        notification("notifications/resources/updated", uri="u"),
        notification("notifications/resources/updated", uri=5),
        notification("notifications/resources/updated"),
        {"jsonrpc": "2.0", "method": "notifications/resources/updated"},
        notification("notifications/tasks/status", taskId="t"),
        notification("notifications/tasks/status"),
        notification("notifications/cancelled", requestId=2),
        notification("notifications/subscriptions/acknowledged"),
        notification("notifications/other"),
        {"jsonrpc": "2.0", "method": "notifications/other"},
    ],
)
def test_other_notifications_of_a_shared_server_reach_nobody(said: Json) -> None:
    s = shared()
    for name in "AB":
        s.client(name, INITIALIZED, legacy(1))
    s.server(said).expect()
    assert s.stats.dropped_notifications == 1


# -- the server's requests


@pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create", "roots/list", "other"])
@pytest.mark.parametrize("id", [0, "x", -1, 2])
def test_a_request_of_a_shared_server_is_refused_and_reaches_no_client(method: str, id: int | str) -> None:
    s = shared()
    s.client("A", legacy(1))
    out = s.server(legacy(id, method))
    out.expect(server=refusal(-32601, "not_shared", id=id))
    assert out.told() == [NoticeKind.SERVER_REQUEST]
    # It is told in the log once, and answered each time.
    out = s.server(legacy(id, method))
    out.expect(server=refusal(-32601, "not_shared", id=id))
    assert out.told() == []
    s.server(result(2)).expect(A=result(1))


def test_a_ping_of_the_server_is_answered_by_the_bridge() -> None:
    s = shared("A")
    s.server(PING, {**PING, "id": "p"}).expect(server=[result(0), result("p")])


def test_a_ping_of_the_server_is_answered_while_it_initializes() -> None:
    s = Scenario("A", era=None)
    s.client("A", initialize(1))
    s.server(PING).expect(server=result(0))


def test_a_server_that_asks_and_does_not_read_is_not_answered() -> None:
    """What it is not told does not pile up."""
    s = shared("A")
    s.block()
    s.server(PING, legacy(1, "roots/list")).expect()
    assert s.stats.dropped_requests == 2


def test_a_request_of_a_modern_server_is_not_answered() -> None:
    s = Scenario("A")
    s.server(PING, legacy(1, "roots/list")).expect()
    assert s.stats.dropped_requests == 2


def test_a_method_with_an_unpaired_surrogate_is_quoted_as_it_was() -> None:
    s = shared("A")
    answer = s.server(rb'{"jsonrpc":"2.0","id":1,"method":"a\ud83d"}' + b"\n").bytes("server")
    assert rb"a\ud83d is not available" in answer


# -- restarts


def test_after_a_restart_the_handshake_comes_before_any_request() -> None:
    s = shared()
    s.client("A", legacy(1))
    s.crash().expect(A=refusal(-31001, "server_exited", id=1, delivered=True))
    s.client("A", legacy(2))
    s.client("B", legacy(3))
    s.open().expect(server=asked_to_initialize(3))
    s.client("A", legacy(4)).expect()
    s.server(greeting(3)).expect(server=[INITIALIZED, legacy(4), legacy(5), legacy(6)])
    s.server(result(4, "x")).expect(A=result(2, "x"))


def test_the_handshake_is_made_again_for_sessions_that_ask_nothing() -> None:
    s = Scenario("A", era=None)
    s.client("A", initialize(1), INITIALIZED)
    s.server(greeting(1))
    s.crash().expect()
    s.open().expect(server=asked_to_initialize(2))
    s.server(greeting(2)).expect(server=INITIALIZED, A=TOOLS_CHANGED)
    s.server(TOOLS_CHANGED).expect(A=TOOLS_CHANGED)


def test_without_sessions_the_handshake_waits_for_a_need() -> None:
    s = Scenario("A", era=None)
    s.client("A", initialize(1))
    s.server(greeting(1))
    s.leave("A")
    s.crash()
    s.open().expect()
    s.join("B")
    s.client("B", initialize(1), legacy(2)).expect(B=greeting(1), server=asked_to_initialize(2))


def test_sessions_outlive_a_server_that_comes_back_the_same() -> None:
    """The rest of what it says may differ: its own version, say."""
    s = shared("A")
    s.crash()
    s.client("A", legacy(1))
    s.open()
    said = greeting(2)
    said["result"]["serverInfo"]["version"] = "2"
    s.server(said).expect(server=[INITIALIZED, legacy(3)])
    s.client("A", initialize(9)).expect(A={**said, "id": 9})


@pytest.mark.parametrize(
    "said", [greeting(2, "2025-06-18"), greeting(2, capabilities={"tools": {}}), greeting(2, capabilities={})]
)
def test_clients_are_closed_when_the_server_comes_back_another_so_that_they_initialize_again(
    said: Json,
) -> None:
    s = shared("ABC")
    s.join("D")
    s.crash()
    s.client("A", legacy(1))
    s.leave("C")
    s.open().expect(server=asked_to_initialize(2))
    out = s.server(said)
    out.expect(server=INITIALIZED, A=CLOSE, B=CLOSE)
    assert out.told().count(NoticeKind.CLIENT_CUT) == 2
    assert s.sizes == {"clients": 1}
    s.client("D", initialize(1)).expect(D={**said, "id": 1})
    s.client("D", legacy(2)).expect(server=legacy(3))


def test_a_client_that_was_greeted_while_the_server_was_away_is_closed_like_the_others() -> None:
    s = shared("A")
    s.crash()
    s.join("B")
    s.client("B", initialize(1), legacy(2)).expect(B=greeting(1))
    s.open().expect(server=asked_to_initialize(2))
    s.server(greeting(2, "2024-11-05")).expect(server=INITIALIZED, A=CLOSE, B=CLOSE)


def test_a_client_of_both_eras_that_is_closed_gives_up_what_it_has_at_the_modern_server() -> None:
    s = Scenario("A", era=None)
    s.client("A", request(1))
    s.server(discovered(1))
    s.client("A", initialize(2))
    s.open(1)
    s.second(greeting(3))
    s.crash(1)
    s.open(1)
    s.second(greeting(4, "2024-11-05")).expect(second=INITIALIZED, server=left(2), A=CLOSE)


def test_a_server_that_refuses_the_handshake_for_old_sessions_is_not_asked_over_and_over() -> None:
    s = shared("A", era_decided=False)
    s.crash()
    s.open().expect(server=asked_to_initialize(2))
    out = s.server(error(2, -32603, "no"))
    out.expect()
    assert out.seats(NoticeKind.REPLACE_CHILD) == [0]
    s.crash()
    s.open().expect()
    s.client("A", legacy(1)).expect(A=not_served(1, Era.LEGACY))
    s.wait(30)
    s.client("A", legacy(2)).expect(server=asked_to_initialize(3))
    s.server(greeting(3)).expect(server=[INITIALIZED, legacy(4)])


@pytest.mark.parametrize("seat", [0, 1])
def test_a_server_that_went_over_to_the_modern_era_leaves_its_sessions_refused(seat: int) -> None:
    s = Scenario("AB", era=None)
    if seat:
        s.client("B", request(1))
        s.server(discovered(1), result(2))
    s.client("A", initialize(1))
    if seat:
        s.open(1)
    asked = 3 if seat else 1
    s.server(greeting(asked), seat=seat)
    s.crash(seat)
    s.open(seat)
    s.server(error(asked + 1, -32022, "no", data={"supported": ["2026-07-28"]}), seat=seat).expect()
    s.crash(seat)
    s.open(seat).expect()
    s.client("A", legacy(1)).expect(A=not_served(1, Era.LEGACY))


def test_the_last_words_of_a_legacy_server_are_delivered_and_free_nothing_at_it() -> None:
    s = shared("A", max_in_flight=1)
    s.client("A", legacy(1), legacy(2))
    s.server(line(result(2, "x"))[:-1])
    s.crash().expect(A=result(1, "x"))
    s.open().expect(server=asked_to_initialize(3))
    s.server(greeting(3)).expect(server=[INITIALIZED, legacy(4)])


def test_a_greeting_in_the_last_words_opens_nothing() -> None:
    s = Scenario("A", era=None)
    s.client("A", initialize(1))
    s.server(line(greeting(1))[:-1])
    out = s.crash()
    out.expect()
    assert out.told() == []
    s.open().expect(server=asked_to_initialize(2))


# -- leaving


def test_a_client_that_has_stopped_sending_gets_its_greeting_and_its_answers() -> None:
    s = Scenario("A", era=None)
    s.client("A", initialize(1), legacy(2))
    s.eof("A").expect()
    s.server(greeting(1)).expect(server=[INITIALIZED, legacy(2)], A=greeting(1))
    s.server(result(2)).expect(A=[result(2), CLOSE])


def test_a_session_that_owes_nothing_ends_with_the_last_byte() -> None:
    s = shared("A")
    s.eof("A").expect(A=CLOSE)
    s.leave("A")
    assert s.sizes == {}


def test_a_client_that_lingers_too_long_is_cut_and_its_legacy_requests_are_cancelled() -> None:
    s = shared("A")
    s.client("A", legacy(1))
    s.eof("A")
    s.wait(60).expect(A=CLOSE, server=left(2))
    assert s.sizes == {}


def test_a_lingering_client_that_waits_to_be_initialized_is_cut_in_the_end() -> None:
    s = Scenario("A", era=None)
    s.client("A", initialize(1))
    s.eof("A")
    s.wait(60).expect(A=CLOSE)
    assert s.sizes == {}


def test_everything_is_empty_when_all_sessions_have_gone() -> None:
    s = shared("AB")
    s.client("A", INITIALIZED, legacy(1), notification("n"))
    s.client("B", legacy(1), listen("L"))
    s.leave("A")
    s.leave("B")
    assert s.sizes == {}
    assert s.router.in_flight == 0


def test_a_flood_of_initializes_costs_one_handshake() -> None:
    s = Scenario("A", era=None)
    s.client("A", *(initialize(number) for number in range(100))).expect(server=asked_to_initialize(1))
    s.server(greeting(1)).expect(server=INITIALIZED, A=[greeting(number) for number in range(100)])


def test_an_initialize_that_waited_in_vain_ends_no_session_that_a_later_one_has_opened() -> None:
    """The end of the server then met a session that was none, and nobody was told of it."""
    s = Scenario("BA", era=None)
    s.client("B", initialize(1), legacy(2, text="x" * ROOM))
    s.client("A", initialize(1))
    assert s.server(greeting(1)).bytes("A") == b""  # B's request is all that stdin takes
    s.client("A", initialize(2)).expect(A=greeting(2))
    s.crash().expect(B=refusal(-31001, "server_exited", id=2, delivered=True))
    s.wait(30).expect(A=refusal(-31002, "server_unavailable", id=1))
    s.open().expect(server=asked_to_initialize(3))
    s.server(greeting(3))
    s.client("A", legacy(3)).expect(server=legacy(4))
    s.crash().expect(A=refusal(-31001, "server_exited", id=3, delivered=True))


def test_a_bare_notification_of_a_session_goes_to_its_server() -> None:
    s = shared("A")
    bare: Json = {"jsonrpc": "2.0", "method": "n"}
    s.client("A", bare).expect(server=bare)
