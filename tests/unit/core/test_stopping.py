"""The bridge stops: what waits is refused, what runs may finish, subscriptions end (section 8, "Stop")."""

from __future__ import annotations

from bridge.core.outbox import Control
from tests.unit.core.scenario import (
    CLOSE,
    Scenario,
    acknowledged,
    cancelled,
    changed,
    closing,
    ended,
    listen,
    notification,
    refusal,
    request,
    result,
)

STOPPING = "the bridge is stopping"


def test_what_waits_and_what_still_comes_is_refused() -> None:
    """-31005, `delivered: false`."""
    s = Scenario(clients="AB", max_in_flight=1)
    s.client("A", request(1, "x"), request(2, "x"), notification("n"))
    s.drain().expect(A=refusal(-31005, "shutting_down", id=2))
    s.client("A", request(3, "x")).expect(A=refusal(-31005, "shutting_down", id=3))
    s.client("B", listen("L"), notification("n")).expect(B=refusal(-31005, "shutting_down", id="L"))
    s.client("B", {"jsonrpc": "2.0", "id": 5, "method": "initialize"}).expect(
        B=refusal(-31005, "shutting_down", id=5)
    )
    assert not s.router.needed()
    assert s.router.in_flight == 1


def test_requests_in_flight_may_finish() -> None:
    s = Scenario()
    s.client("A", request(1, "x"))
    s.drain().expect()
    s.server(result(2, {})).expect(A=result(1, {}))
    assert s.router.in_flight == 0


def test_requests_in_flight_may_be_given_up() -> None:
    s = Scenario()
    s.client("A", request(1, "x"))
    s.drain()
    s.client("A", cancelled(1)).expect(server=cancelled(2))


def test_subscriptions_end_with_a_graceful_response() -> None:
    s = Scenario(clients="ABC")
    s.client("A", listen("a", toolsListChanged=True))
    s.client("B", listen("b", toolsListChanged=True))
    s.server(acknowledged(2))
    s.client("C", listen("c", promptsListChanged=True))
    s.drain().expect(A=closing("a"), B=closing("b"), C=closing("c"), server=[ended(2), ended(3)])
    s.server(changed(2), result(2, {})).expect()
    assert s.sizes == {"clients": 3}


def test_subscriptions_end_while_there_is_no_server() -> None:
    s = Scenario()
    s.client("A", listen("a", toolsListChanged=True))
    s.server(acknowledged(2))
    s.crash()
    s.drain().expect(A=closing("a"))
    assert s.sizes == {"clients": 1}


def test_a_client_that_stopped_sending_is_closed_when_it_is_owed_nothing() -> None:
    s = Scenario(max_in_flight=1)
    s.client("A", request(1, "x"), request(2, "x"))
    s.eof("A")
    s.drain().expect(A=refusal(-31005, "shutting_down", id=2))
    s.server(result(2, {})).expect(A=[result(1, {}), CLOSE])


def test_what_waits_for_a_server_that_does_not_come_is_refused_and_its_client_closed() -> None:
    s = Scenario(server=False)
    s.client("A", request(1, "x"))
    s.eof("A")
    s.drain().expect(A=[refusal(-31005, "shutting_down", id=1), CLOSE])


def test_a_client_that_was_not_read_is_read_to_be_refused() -> None:
    s = Scenario(paused_lines=1)
    s.block()
    s.client("A", request(1, "x"), request(2, "x")).expect(A=Control.PAUSE)
    s.drain().expect(
        A=[refusal(-31005, "shutting_down", id=1), refusal(-31005, "shutting_down", id=2), Control.RESUME]
    )


def test_a_server_that_exits_during_the_drain_ends_what_it_had() -> None:
    s = Scenario()
    s.client("A", request(1, "x"))
    s.drain()
    s.crash().expect(A=refusal(-31001, "server_exited", id=1, delivered=True))


def test_when_the_time_is_up_what_runs_is_refused_and_everybody_closed() -> None:
    """-31005, `delivered: true`."""
    s = Scenario(clients="AB")
    s.client("A", request(1, "x"), request("b", "x"))
    s.drain()
    s.stop().expect(
        A=[
            refusal(-31005, "shutting_down", id=1, delivered=True),
            refusal(-31005, "shutting_down", id="b", delivered=True),
            CLOSE,
        ],
        B=CLOSE,
        server=[cancelled(2, reason=STOPPING), cancelled(3, reason=STOPPING)],
    )
    assert s.sizes == {}
    s.server(result(2, {})).expect()
    s.leave("A").expect()
    s.client("B", request(1, "x")).expect()


def test_a_stop_without_a_drain_leaves_nobody_without_an_answer() -> None:
    """A second signal skips the drain, not the answers."""
    s = Scenario(max_in_flight=1)
    s.client("A", listen("L"), request(1, "x"), request(2, "x"))
    s.stop().expect(
        A=[
            refusal(-31005, "shutting_down", id=2),
            closing("L"),
            refusal(-31005, "shutting_down", id=1, delivered=True),
            CLOSE,
        ],
        server=[ended(2), cancelled(3, reason=STOPPING)],
    )
    assert s.sizes == {}


def test_a_stop_without_a_server_closes_everybody() -> None:
    s = Scenario(clients="AB", server=False)
    s.client("A", request(1, "x"))
    s.stop().expect(A=[refusal(-31005, "shutting_down", id=1), CLOSE], B=CLOSE)
    assert s.sizes == {}


def test_a_stop_while_the_server_is_probed_says_nothing_to_it() -> None:
    s = Scenario(server=False)
    s.open()
    s.stop().expect(A=CLOSE)


def test_a_client_that_is_being_closed_is_not_closed_twice() -> None:
    s = Scenario()
    s.eof("A").expect(A=CLOSE)
    s.stop().expect()
    assert s.sizes == {}
