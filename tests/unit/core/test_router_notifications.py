"""Notifications and requests of the server, notifications of clients: who gets which."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.core import upstream
from bridge.core.codec import decode_plain_message
from bridge.core.jsonrpc import PlainMessage
from bridge.core.tables import LOGGERS_KEPT, NoticeKind
from bridge.core.upstream import ODD_BLOCKS
from tests.unit.core.scenario import (
    PREFIX,
    Json,
    Scenario,
    cancelled,
    changed,
    line,
    listen,
    log,
    notification,
    progress,
    request,
    result,
)

LOGS: Json = {PREFIX + "logLevel": "info"}


# -- notifications of clients (section 3, row "other notification")


def test_a_notification_keeps_its_place_among_the_requests() -> None:
    s = Scenario()
    note = notification("x/y", v=1)
    s.client("A", request(1, "a"), note, request(2, "b")).expect(
        server=[request(2, "a"), note, request(3, "b")]
    )
    assert s.stats.notifications_up == 1


def test_a_notification_keeps_its_place_in_the_queue() -> None:
    s = Scenario(max_in_flight=1)
    note = notification("x/y", v=1)
    s.client("A", request(1, "a"), request(2, "b"), note).expect(server=request(2, "a"))
    s.server(result(2, {})).expect(A=result(1, {}), server=[request(3, "b"), note])


def test_a_notification_never_starts_a_child() -> None:
    s = Scenario(server=False)
    out = s.client("A", notification("x/y"))
    out.expect()
    assert out.told() == []
    assert s.stats.dropped_notifications_up == 1
    assert s.sizes == {"clients": 1}


def test_a_notification_does_not_make_the_bridge_speak_to_a_child() -> None:
    """Section 7: in no era until a client shows which it needs; a notification shows none."""
    s = Scenario(server=False, era=None)
    s.open()
    s.client("A", notification("x/y")).expect()
    assert s.stats.dropped_notifications_up == 1
    s.eof("A").expect(A=b"")


def test_a_notification_behind_a_request_waits_with_it_for_a_child() -> None:
    s = Scenario(server=False)
    note = notification("x/y")
    s.client("A", request(1, "a"), note)
    assert s.start().expect(server=[request(2, "a"), note])


def test_a_notification_that_is_left_alone_in_a_queue_wants_no_child() -> None:
    """Section 3: it never starts a child, also when its request is given up."""
    s = Scenario(server=False)
    s.client("A", request(1, "a"), notification("x/y"), cancelled(1))
    assert not s.router.needed()
    s.wait(30).expect()
    assert s.sizes == {"clients": 1}


def test_a_notification_of_a_client_that_asked_nothing_waits_while_a_child_is_probed() -> None:
    s = Scenario(clients="AB", server=False)
    s.open()
    note = notification("x/y")
    s.client("B", note).expect()
    s.server(result(1, {})).expect(server=note)


@pytest.mark.parametrize(
    "method", ["notifications/initialized", "notifications/roots/list_changed", "notifications/progress"]
)
def test_notifications_of_a_session_end_at_the_bridge(method: str) -> None:
    """A modern server knows none of them; a client's progress would answer a token it was not given."""
    s = Scenario()
    s.client("A", notification(method, progressToken=2)).expect()
    assert s.stats.dropped_notifications_up == 1


def test_a_progress_token_in_a_notification_of_a_client_is_removed() -> None:
    s = Scenario()
    s.client("A", notification("x/y", _meta={"progressToken": 2, "a": 1})).expect(
        server=notification("x/y", _meta={"a": 1})
    )
    s.client("A", notification("x/y", _meta={"a": 1})).expect(server=notification("x/y", _meta={"a": 1}))
    s.client("A", notification("x/y", _meta=5)).expect(server=notification("x/y", _meta=5))
    s.client("A", {"jsonrpc": "2.0", "method": "x/y"}).expect(server={"jsonrpc": "2.0", "method": "x/y"})
    assert s.stats.removed_tokens == 1


# -- progress (section 4, row `notifications/progress`)


def test_progress_goes_to_the_client_whose_request_it_is() -> None:
    s = Scenario(clients="AB")
    s.client("A", request(1, "x", meta={"progressToken": "t"}))
    s.client("B", request(1, "x", meta={"progressToken": "t"}))
    s.server(progress(3, message="b"), progress(2, message="a", total=5)).expect(
        A=progress("t", message="a", total=5), B=progress("t", message="b")
    )
    assert s.stats.notifications_down == 2


@pytest.mark.parametrize("spelled", [b"7", b'"t"', b"7.0"])
def test_a_token_comes_back_as_it_was_spelled(spelled: bytes) -> None:
    s = Scenario()
    sent = line(request(1, "x", meta={"progressToken": "?"})).replace(b'"?"', spelled)
    s.client("A", sent)
    got = s.server(progress(2)).bytes("A")
    assert got == (b"" if spelled == b"7.0" else line(progress("?")).replace(b'"?"', spelled))


def test_a_token_with_half_a_surrogate_pair_comes_back() -> None:
    s = Scenario()
    s.client("A", line(request(1, "x", meta={"progressToken": "?"})).replace(b'"?"', b'"\\ud83d"'))
    assert b'"progressToken":"\\ud83d"' in s.server(progress(2)).bytes("A")
    escaped = line(progress(2)).replace(b'"progress":1', b'"progress":1,"message":"\\udead"')
    both = s.server(escaped).bytes("A")
    assert b'"progressToken":"\\ud83d"' in both
    assert b'"message":"\\udead"' in both


def test_progress_of_one_read_comes_in_its_order_and_before_the_response() -> None:
    s = Scenario()
    s.client("A", request(1, meta={"progressToken": "t"}))
    s.server(progress(2, progress=1), progress(2, progress=2), result(2)).expect(
        A=[progress("t", progress=1), progress("t", progress=2), result(1)]
    )


def test_one_notification_out_of_the_ordinary_costs_a_server_the_quick_way_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was never tried again."""
    tried: list[bytes] = []

    def counted(line: bytes) -> PlainMessage:
        tried.append(line)
        return decode_plain_message(line)

    s = Scenario()
    monkeypatch.setattr(upstream, "decode_plain_message", counted)
    s.server(log("x"))
    assert len(tried) == 1
    for _ in range(ODD_BLOCKS):
        s.server(progress(9))
    assert len(tried) == 1
    s.server(progress(9))
    s.server(progress(9))
    assert len(tried) == 3


def test_progress_of_one_read_that_goes_to_several_in_turn_goes_to_each() -> None:
    s = Scenario(clients="AB")
    s.client("A", request(1, "x", meta={"progressToken": "t"}), request(2, "x", meta={"progressToken": "u"}))
    s.client("B", request(1, "x", meta={"progressToken": "t"}))
    said = [progress(number, progress=value) for value, number in enumerate([2, 2, 3, 4, 2, 4, 4])]
    s.server(*said).expect(
        A=[progress(token, progress=value) for token, value in (("t", 0), ("t", 1), ("u", 2), ("t", 4))],
        B=[progress("t", progress=value) for value in (3, 5, 6)],
    )


def test_progress_behind_the_response_in_one_read_is_dropped() -> None:
    s = Scenario()
    s.client("A", request(1, "x", meta={"progressToken": "t"}))
    s.server(progress(2, progress=1), result(2, {}), progress(2, progress=2)).expect(
        A=[progress("t", progress=1), result(1, {})]
    )
    assert s.stats.dropped_progress == 1


def test_progress_of_a_request_that_was_answered_is_dropped() -> None:
    """Hosts hang up on a stray token; real servers send it late."""
    s = Scenario()
    s.client("A", request(1, "x", meta={"progressToken": "t"}))
    s.server(result(2, {}), progress(2)).expect(A=result(1, {}))
    assert s.stats.dropped_progress == 1


@pytest.mark.parametrize("token", ["2", 2.0, 3, -2, None, [2]])
def test_progress_under_a_token_that_was_not_sent_is_dropped(token: object) -> None:
    s = Scenario()
    s.client("A", request(1, "x", meta={"progressToken": "t"}))
    s.server(progress(token)).expect()
    assert s.stats.dropped_progress == 1


def test_progress_without_a_token_is_dropped() -> None:
    s = Scenario()
    s.client("A", request(1, "x", meta={"progressToken": "t"}))
    s.server(notification("notifications/progress", progress=1)).expect()
    assert s.stats.dropped_progress == 1


def test_progress_is_never_invented_for_a_request_without_a_token() -> None:
    s = Scenario()
    s.client("A", request(1, "x"))
    s.server(progress(2)).expect()
    assert s.stats.dropped_progress == 1


def test_progress_for_the_bridges_own_probe_is_dropped() -> None:
    s = Scenario(server=False)
    s.open()
    s.server(progress(1)).expect()
    assert s.stats.dropped_progress == 1


# -- log messages (section 4, row `notifications/message`)


def test_a_log_message_goes_to_the_one_client_that_asked_for_logs() -> None:
    s = Scenario(clients="AB")
    s.client("A", request(1, "x", meta=LOGS), request(2, "x", meta=LOGS))
    s.client("B", request(1, "x"))
    s.server(log("hello")).expect(A=log("hello"))
    assert s.stats.notifications_down == 1


def test_a_log_message_that_two_clients_could_own_goes_to_the_bridges_log() -> None:
    """Section 4: not to a guess; broadcasting it is a data leak."""
    s = Scenario(clients="AB")
    s.client("A", request(1, "x", meta=LOGS))
    s.client("B", request(1, "x", meta=LOGS))
    out = s.server(log("secret"))
    out.expect()
    assert out.told() == [NoticeKind.AMBIGUOUS_LOG]
    assert out.notices[0].detail == line(log("secret"))[:-1]
    assert s.stats.ambiguous_logs == 1
    s.server(result(2, {}), log("B's")).expect(A=result(1, {}), B=log("B's"))


def test_broadcasting_ambiguous_log_messages_can_be_asked_for() -> None:
    """`--ambiguous-logs broadcast`."""
    s = Scenario(clients="ABC", broadcast_logs=True)
    s.client("A", request(1, "x", meta=LOGS))
    s.client("B", request(1, "x", meta=LOGS))
    s.client("C", request(1, "x"))
    s.server(log("all")).expect(A=log("all"), B=log("all"))
    s.client("A", cancelled(1))
    s.server(log("rest")).expect(B=log("rest"))
    assert s.stats.dropped_notifications == 1
    s.server(result(3, {}), result(2, {}), log("none")).expect(B=result(1, {}))
    assert s.stats.dropped_notifications == 2


def test_a_log_message_nobody_asked_for_is_dropped_and_counted() -> None:
    s = Scenario()
    s.client("A", request(1, "x"))
    s.server(log("x")).expect()
    assert s.stats.dropped_notifications == 1


def test_an_answered_request_owns_no_log_message_any_more() -> None:
    s = Scenario()
    s.client("A", request(1, "x", meta=LOGS))
    s.server(result(2, {}), log("x")).expect(A=result(1, {}))
    assert not s.router.needs_tick


def test_a_request_answered_by_damage_owns_no_log_message_any_more() -> None:
    s = Scenario(clients="AB")
    s.client("A", request(1, "x", meta=LOGS))
    s.client("B", request(1, "x", meta=LOGS))
    s.server(b'{"jsonrpc":"2.0","id":2}\n')
    s.server(log("x")).expect(B=log("x"))


def test_an_abandoned_request_may_still_own_log_messages_until_its_response() -> None:
    """Section 4: A's late log must not reach B."""
    s = Scenario(clients="AB")
    s.client("A", request(1, "x", meta=LOGS))
    s.client("B", request(1, "x", meta=LOGS))
    s.client("A", cancelled(1))
    s.server(log("A's or B's")).expect()
    assert s.stats.ambiguous_logs == 1
    s.server(result(2, {}), log("B's")).expect(B=log("B's"))


def test_an_abandoned_request_is_forgotten_as_an_owner_after_30_seconds() -> None:
    s = Scenario(clients="AB")
    s.client("A", request(1, "x", meta=LOGS))
    s.leave("A")
    s.client("B", request(1, "x", meta=LOGS))
    assert s.router.needs_tick
    s.wait(29.9)
    s.server(log("?")).expect()
    s.wait(0.1)
    s.server(log("B's")).expect(B=log("B's"))


def test_an_abandoned_request_is_forgotten_as_an_owner_with_its_child() -> None:
    s = Scenario(clients="AB")
    s.client("A", request(1, "x", meta=LOGS))
    s.client("A", cancelled(1))
    s.crash()
    s.start()
    s.client("B", request(1, "x", meta=LOGS))
    s.server(log("B's")).expect(B=log("B's"))


def test_a_log_message_that_only_an_abandoned_request_can_own_is_dropped() -> None:
    s = Scenario(clients="AB")
    s.client("A", request(1, "x", meta=LOGS), cancelled(1))
    out = s.server(log("A's"))
    out.expect()
    assert s.stats.dropped_notifications == 1
    assert out.told() == []


def test_any_number_of_abandoned_requests_is_remembered_in_bounded_memory() -> None:
    """A client can ask and cancel all day; its logs still reach nobody else."""
    s = Scenario(clients="AB")
    flood = [item for n in range(LOGGERS_KEPT + 50) for item in (request(n, "x", meta=LOGS), cancelled(n))]
    s.client("A", *flood)
    child: Any = next(iter(s.router._tables.children.values()))  # the only table that has no count of its own
    assert len(child.loggers) == LOGGERS_KEPT + 1
    s.client("B", request(1, "x", meta=LOGS))
    s.server(*[result(2 + n, {}) for n in range(LOGGERS_KEPT)])
    s.server(log("?")).expect()
    s.wait(30)
    s.server(log("B's")).expect(B=log("B's"))


def test_a_listen_that_asks_for_logs_can_own_a_log_message() -> None:
    s = Scenario(clients="AB")
    s.client("A", listen("L", meta=LOGS, toolsListChanged=True))
    s.server(log("A's")).expect(A=log("A's"))
    s.client("A", cancelled("L")).expect(server=cancelled(2))
    s.server(log("nobody's")).expect()
    assert s.stats.dropped_notifications == 1


def test_a_log_message_comes_through_as_it_was_written() -> None:
    s = Scenario()
    s.client("A", request(1, "x", meta=LOGS))
    odd = line(log("?")).replace(b'"?"', b'"\\ud83d"').replace(b"}}", b'},"vendor":1}')
    assert s.server(odd).bytes("A") == odd


# -- the rest of section 4


def test_a_request_of_the_server_reaches_nobody_and_is_told_once() -> None:
    """Section 4, row "request": a client must not write responses; hazard 34."""
    s = Scenario(clients="AB")
    s.client("A", request(1, "x"))
    ask = {"jsonrpc": "2.0", "id": 2, "method": "roots/list"}
    out = s.server(ask)
    out.expect()
    assert out.told() == [NoticeKind.SERVER_REQUEST]
    assert out.notices[0].detail == b"roots/list"
    assert s.server(ask).expect().told() == []
    assert s.stats.dropped_requests == 2
    s.server(result(2, {})).expect(A=result(1, {}))


def test_the_next_child_is_told_of_again() -> None:
    s = Scenario()
    ask = {"jsonrpc": "2.0", "id": 2, "method": "roots/list"}
    s.server(ask)
    s.crash()
    s.start()
    assert s.server(ask).told() == [NoticeKind.SERVER_REQUEST]


@pytest.mark.parametrize(
    "note",
    [
        notification("notifications/tools/list_changed"),
        notification("notifications/tools/list_changed", _meta={}),
        notification("notifications/tools/list_changed", _meta=5),
        changed(99),
        changed("2"),
        changed(2.0),
        {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"},
        {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": [1]},
        {"jsonrpc": "2.0", "method": "notifications/message"},
        {"jsonrpc": "2.0", "method": "notifications/message", "params": None},
    ],
)
def test_a_notification_that_names_no_open_subscription_is_dropped(note: Json) -> None:
    """Section 4, row "other notification": modern clients get only what they asked for; hazards 32, 33."""
    s = Scenario()
    s.client("A", request(1, "x"), listen("L", toolsListChanged=True))
    s.server(note).expect()
    assert s.stats.dropped_notifications == 1


@pytest.mark.parametrize("id", [2, 99, "3", 3.0, None])
def test_a_cancellation_of_the_server_that_names_no_listen_is_dropped(id: object) -> None:
    """A server has only listens to cancel: request 2 is a client's."""
    s = Scenario()
    s.client("A", request(1, "x"), listen("L", toolsListChanged=True))
    s.server(cancelled(id)).expect()
    assert s.stats.dropped_notifications == 1
    s.server(notification("notifications/cancelled")).expect()
    s.server(result(2, {})).expect(A=result(1, {}))


def test_a_notification_for_a_client_that_is_gone_is_dropped() -> None:
    """Cases: it ended the process."""
    s = Scenario(clients="AB")
    s.client("A", request(1, "x", meta={"progressToken": "t", **LOGS}))
    s.leave("A")
    s.server(progress(2), log("x"), result(2, {})).expect()
    assert s.stats.dropped_responses == 1
