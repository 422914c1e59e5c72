"""Clients that leave: gone at once, half-closed, cut off (section 6), and what is late for them."""

from __future__ import annotations

import pytest

from bridge.core.tables import NoticeKind
from tests.unit.core.scenario import (
    CLOSE,
    Scenario,
    acknowledged,
    cancelled,
    changed,
    closing,
    left,
    line,
    listen,
    notification,
    progress,
    refusal,
    request,
    result,
)

# -- gone


def test_a_client_that_leaves_has_its_requests_cancelled_oldest_first() -> None:
    """Section 6; hazard 38."""
    s = Scenario(clients="AB")
    s.client("A", request(1, "x"), request(2, "x"))
    s.client("B", request(1, "x"))
    s.leave("A").expect(server=[left(2), left(3)])
    assert s.sizes == {"clients": 1, "in_flight": 1}
    s.server(result(2, {}), result(3, {}), result(4, {})).expect(B=result(1, {}))
    assert s.stats.dropped_responses == 2


def test_what_a_client_that_leaves_has_queued_vanishes() -> None:
    s = Scenario(max_in_flight=1)
    s.client("A", request(1, "x"), request(2, "x"), notification("n"))
    s.leave("A").expect(server=left(2))
    assert s.sizes == {}
    assert not s.router.needed()
    s.unblock().expect()


def test_a_client_that_leaves_while_there_is_no_server_leaves_nothing() -> None:
    s = Scenario(server=False)
    s.client("A", request(1, "x"), listen("L", toolsListChanged=True), b'{"half')
    s.leave("A").expect()
    assert s.sizes == {}
    assert s.router.buffered(s.key("A")) == 0
    s.start().expect()


def test_a_client_that_leaves_while_its_subscription_has_no_server_leaves_nothing() -> None:
    s = Scenario()
    s.client("A", listen("L", toolsListChanged=True))
    s.server(acknowledged(2))
    s.crash()
    assert s.router.needed()
    s.leave("A").expect()
    assert s.sizes == {}
    assert not s.router.needed()
    s.start().expect()


def test_a_client_may_be_reported_gone_twice() -> None:
    s = Scenario()
    s.leave("A")
    s.leave("A").expect()
    s.eof("A").expect()
    s.client("A", request(1, "x")).expect()


def test_with_every_client_gone_every_table_is_empty() -> None:
    """Section 10, invariant 3."""
    s = Scenario(clients="ABC", max_in_flight=2)
    for name in "ABC":
        s.client(name, *[request(n, "x", meta={"progressToken": n}) for n in range(4)])
        s.client(name, listen("L", toolsListChanged=True), listen("M", meta={"vendor": 1}))
    for name in "ABC":
        s.leave(name)
    assert s.sizes == {}
    assert s.router.in_flight == 0


# -- half-close


def test_a_client_that_stops_sending_is_still_answered_and_then_closed() -> None:
    """`printf ... | nc -N`; hazard 40."""
    s = Scenario(max_in_flight=1)
    s.client("A", request(1, "x"), request(2, "x", meta={"progressToken": "t"}))
    s.eof("A").expect()
    assert s.sizes["lingering"] == 1
    s.server(result(2, {})).expect(A=result(1, {}), server=request(3, "x", meta={"progressToken": 3}))
    s.server(progress(3)).expect(A=progress("t"))
    s.server(result(3, {})).expect(A=[result(2, {}), CLOSE])
    s.leave("A").expect()
    assert s.sizes == {}
    assert not s.router.needs_tick


def test_a_client_that_stops_sending_and_is_owed_nothing_is_closed_at_once() -> None:
    s = Scenario()
    s.eof("A").expect(A=CLOSE)
    s.eof("A").expect()
    s.leave("A").expect()


def test_the_subscriptions_of_a_client_that_stops_sending_end_first() -> None:
    """Section 6; hazard 41."""
    s = Scenario()
    s.client("A", request(1, "x"), listen("L", toolsListChanged=True), listen("M", promptsListChanged=True))
    s.eof("A").expect(A=[closing("L"), closing("M")], server=[left(3), left(4)])
    s.server(changed(3), result(2, {})).expect(A=[result(1, {}), CLOSE])


def test_the_shared_subscription_of_a_client_that_stops_sending_stays_for_the_others() -> None:
    s = Scenario(clients="AB")
    s.client("A", listen("a", toolsListChanged=True))
    s.client("B", listen("b", toolsListChanged=True))
    s.eof("A").expect(A=[closing("a"), CLOSE])
    s.server(acknowledged(2), changed(2)).expect(B=[acknowledged("b"), changed("b")])


def test_a_subscription_that_waits_ends_with_the_sending_too() -> None:
    """Nobody would ever end it otherwise; no child is started for it."""
    s = Scenario(server=False)
    s.client("A", listen("L", toolsListChanged=True), listen("M", toolsListChanged=True))
    s.eof("A").expect(A=[closing("L"), closing("M"), CLOSE])
    assert not s.router.needed()
    assert s.sizes == {"clients": 1}


def test_a_subscription_that_waits_between_requests_ends_and_they_are_answered() -> None:
    s = Scenario(server=False)
    s.client("A", request(1, "x"), listen("L", toolsListChanged=True), request(2, "x"))
    s.eof("A").expect(A=closing("L"))
    s.start().expect(server=[request(2, "x"), request(3, "x")])
    s.server(result(2, {}), result(3, {})).expect(A=[result(1, {}), result(2, {}), CLOSE])


def test_a_notification_that_only_looks_like_a_listen_is_a_notification() -> None:
    s = Scenario()
    s.block()
    s.client("A", notification("subscriptions/listen"))
    s.eof("A").expect()
    s.unblock().expect(server=notification("subscriptions/listen"), A=CLOSE)


def test_a_last_line_without_a_newline_counts_if_it_is_a_whole_message() -> None:
    """Section 2."""
    s = Scenario()
    s.client("A", line(request(1, "x"))[:-1]).expect()
    s.eof("A").expect(server=request(2, "x"))
    s.server(result(2, {})).expect(A=[result(1, {}), CLOSE])


@pytest.mark.parametrize("tail", [b'{"jsonrpc":"2.0","id":1', b"?", b"[]", b"\xff"])
def test_a_last_line_without_a_newline_that_is_no_message_is_counted_and_forgotten(tail: bytes) -> None:
    s = Scenario()
    s.client("A", tail)
    s.eof("A").expect(A=CLOSE)
    assert s.stats.bad_lines == 1


def test_a_blank_last_line_is_nothing() -> None:
    s = Scenario()
    s.client("A", b"  ")
    s.eof("A").expect(A=CLOSE)
    assert s.stats.bad_lines == 0


def test_a_client_that_stopped_sending_is_not_waited_for_for_ever() -> None:
    """`--linger`: what is left is cancelled."""
    s = Scenario(max_in_flight=1)
    s.client("A", request(1, "x"), request(2, "x"))
    s.eof("A")
    assert s.router.needs_tick
    s.wait(59.9).expect()
    out = s.wait(0.1)
    out.expect(A=CLOSE, server=left(2))
    assert out.told() == [NoticeKind.CLIENT_CUT]
    assert s.sizes == {}
    s.server(result(2, {})).expect()


def test_a_client_that_stopped_sending_leaves_early() -> None:
    s = Scenario()
    s.client("A", request(1, "x"))
    s.eof("A")
    s.leave("A").expect(server=left(2))
    assert s.sizes == {}


def test_a_client_that_stopped_sending_is_closed_when_its_request_is_lost() -> None:
    s = Scenario()
    s.client("A", request(1, "x"))
    s.eof("A")
    s.crash().expect(A=[refusal(-31001, "server_exited", id=1, delivered=True), CLOSE])


def test_a_client_that_stopped_sending_is_closed_when_its_request_times_out() -> None:
    s = Scenario(request_timeout=5.0)
    s.client("A", request(1, "x"))
    s.eof("A")
    s.wait(5).expect(
        A=[refusal(-31007, "request_timeout", id=1, delivered=True), CLOSE],
        server=cancelled(2, reason="request timeout"),
    )


def test_a_client_that_stopped_sending_is_closed_when_nothing_waits_any_more() -> None:
    s = Scenario(server=False)
    s.client("A", request(1, "x"))
    s.eof("A")
    s.wait(30).expect(A=[refusal(-31002, "server_unavailable", id=1), CLOSE])


def test_a_client_whose_last_line_waits_is_closed_when_it_has_gone() -> None:
    s = Scenario()
    s.block()
    s.client("A", notification("n"))
    s.eof("A").expect()
    s.unblock().expect(server=notification("n"), A=CLOSE)


# -- TCP


def test_a_tcp_connection_must_begin_with_a_brace() -> None:
    """Section 3: a web page can POST to a port; hazard 62."""
    s = Scenario(clients="")
    s.join("A", strict=True)
    out = s.client("A", b"POST / HTTP/1.1\r\n\r\n" + line(request(1, "x")))
    out.expect(A=[refusal(-32700, "parse_error"), CLOSE])
    assert out.told() == [NoticeKind.BAD_LINE, NoticeKind.CLIENT_CUT]
    s.client("A", line(request(1, "x"))).expect()
    assert s.sizes == {}


@pytest.mark.parametrize("first", [b" ", b"\n", b"[", b"\xef\xbb\xbf", b"\x16\x03\x01"])
def test_no_other_first_byte_will_do(first: bytes) -> None:
    s = Scenario(clients="")
    s.join("A", strict=True)
    s.client("A", first)
    assert s.stats.clients_cut == 1


def test_a_tcp_connection_is_closed_by_its_first_line_that_is_no_json() -> None:
    s = Scenario(clients="")
    s.join("A", strict=True)
    s.client("A", b"")
    s.client("A", request(1, "x")).expect(server=request(2, "x"))
    s.client("A", b"{x\n", request(2, "x")).expect(A=[refusal(-32700, "parse_error"), CLOSE], server=left(2))


def test_a_tcp_connection_lives_on_after_an_invalid_request() -> None:
    s = Scenario(clients="")
    s.join("A", strict=True)
    s.client("A", b"{}\n", request(1, "x")).expect(
        A=refusal(-32600, "invalid_request"), server=request(2, "x")
    )


def test_a_unix_connection_may_begin_with_anything() -> None:
    s = Scenario()
    s.client("A", b"\n", request(1, "x")).expect(server=request(2, "x"))
