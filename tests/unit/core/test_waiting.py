"""What clients sent and no server was given yet: a queue for each client and era (sections 6 and 8)."""

from __future__ import annotations

from typing import Any

from bridge.core.era import Era
from bridge.core.outbox import Control
from tests.unit.core.scenario import (
    CLOSE,
    INITIALIZED,
    Scenario,
    asked_to_initialize,
    cancelled,
    closing,
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
    refusal,
    request,
    result,
)


def both(clients: str = "A", **limits: Any) -> Scenario:
    """The first process serves the modern era and the second the legacy one; every client has a session."""
    s = Scenario(clients, **{"era": None, **limits})
    first = clients[0]
    s.client(first, request("first")).expect(server=probe(1))
    s.server(discovered(1))
    s.server(result(2)).expect(**{first: result("first")})
    for name in clients:
        s.client(name, initialize("i"))
    s.open(1)
    s.second(greeting(3))
    return s


def test_the_queues_of_the_two_eras_are_independent() -> None:
    s = both()
    s.block(0)
    s.client("A", request(1), legacy(2), notification("n"), request(3)).expect(
        second=[legacy(4), notification("n")]
    )
    s.unblock(seat=0).expect(server=[request(5), request(6)])


def test_a_legacy_server_that_is_blocked_holds_no_modern_request_back() -> None:
    s = both()
    s.block(1)
    s.client("A", legacy(1), request(2), legacy(3)).expect(server=request(4))
    s.unblock(seat=1).expect(second=[legacy(5), legacy(6)])


def test_requests_of_an_era_that_has_no_server_yet_hold_the_other_back_in_nothing() -> None:
    s = Scenario("A", era=None)
    s.client("A", request(1))
    s.server(discovered(1))
    s.client("A", initialize(2), legacy(3), request(4)).expect(server=request(3))
    s.server(result(3), result(2)).expect(A=[result(4), result(1)])
    s.open(1).expect(second=asked_to_initialize(4))
    s.second(greeting(4)).expect(second=[INITIALIZED, legacy(5)], A=greeting(2))


def test_the_window_is_a_clients_and_counts_both_eras() -> None:
    s = both(max_in_flight=1)
    s.client("A", request(1), legacy(2), request(3)).expect(server=request(4))
    s.server(result(4)).expect(A=result(1), second=legacy(5))
    s.second(result(5)).expect(A=result(2), server=request(6))
    s.server(result(6)).expect(A=result(3))


def test_a_client_that_is_not_read_for_both_servers_is_read_on_when_both_take_its_lines() -> None:
    s = both(paused_lines=1)
    s.block(0)
    s.block(1)
    s.client("A", request(1), request(2)).expect(A=Control.PAUSE)
    s.client("A", legacy(3), legacy(4)).expect()
    s.unblock(seat=0).expect(server=[request(4), request(5)])
    s.unblock(seat=1).expect(second=[legacy(6), legacy(7)], A=Control.RESUME)


def test_a_client_that_is_not_read_is_read_on_when_the_server_it_waits_for_has_gone() -> None:
    s = both(paused_lines=1)
    s.block(1)
    s.client("A", legacy(1), legacy(2)).expect(A=Control.PAUSE)
    s.crash(1).expect(A=Control.RESUME)


def test_a_cancellation_finds_what_waits_for_either_server() -> None:
    s = both()
    s.block(0)
    s.block(1)
    s.client("A", request(1), legacy(1), request(2))
    s.client("A", cancelled(1)).expect()
    s.unblock(seat=1).expect()
    s.unblock(seat=0).expect(server=request(4))


def test_each_queue_has_its_bound() -> None:
    s = both(max_queued=1)
    s.block(0)
    s.block(1)
    s.client("A", request(1), legacy(2)).expect()
    s.client("A", request(3), legacy(4), notification("n")).expect(
        A=[refusal(-31003, "overloaded", id=3), refusal(-31003, "overloaded", id=4)]
    )


def test_an_initialize_that_finds_the_queue_full_opens_no_session() -> None:
    s = Scenario("A", era=None, max_queued_bytes=1)
    s.client("A", initialize(1)).expect(A=refusal(-31003, "overloaded", id=1))
    s.client("A", legacy(2)).expect(A=refusal(-32600, "not_initialized", id=2))
    assert s.sizes == {"clients": 1}


def test_an_initialize_that_is_too_long_is_refused() -> None:
    s = Scenario("A", era=None, max_request=300)
    big = initialize(1)
    big["params"]["padding"] = "x" * 300
    s.client("A", big).expect(A=refusal(-31004, "message_too_large", id=1))


def test_requests_of_each_era_wait_for_their_own_process() -> None:
    """`--restart-wait` runs while no process of that era is alive."""
    s = both()
    s.crash(1)
    s.client("A", legacy(1))
    s.now += 10
    s.crash(0).expect()
    s.client("A", request(2))
    s.wait(19.9).expect()
    s.wait(0.1).expect(A=refusal(-31002, "server_unavailable", id=1))
    s.open(0).expect(server=probe(4))
    s.wait(9).expect()
    s.server(discovered(4)).expect(server=request(5))


def test_half_close_waits_for_the_answers_of_both_eras() -> None:
    s = both()
    s.client("A", request(1), legacy(2), listen("L"))
    s.eof("A").expect(A=closing("L"), server=left(6))
    s.server(result(4)).expect(A=result(1))
    s.second(result(5)).expect(A=[result(2), CLOSE])


def test_half_close_waits_for_what_has_no_server_yet() -> None:
    s = Scenario("A", era=None)
    s.client("A", request(1), initialize(2))
    s.eof("A").expect()
    s.server(error(1, -32601, "no")).expect(A=not_served(1, Era.MODERN), server=asked_to_initialize(2))
    s.server(greeting(2)).expect(server=INITIALIZED, A=[greeting(2), CLOSE])


def test_a_last_line_without_its_newline_counts_in_either_era() -> None:
    s = both()
    s.client("A", line(legacy(1))[:-1]).expect()
    s.eof("A").expect(second=legacy(4))
    s.second(result(4)).expect(A=[result(1), CLOSE])


def test_a_client_that_leaves_takes_both_its_queues_with_it() -> None:
    s = both("AB")
    s.block(0)
    s.block(1)
    s.client("A", request(1), legacy(2))
    s.client("B", legacy(3))
    s.leave("A").expect()
    s.unblock(seat=0).expect()
    s.unblock(seat=1).expect(second=legacy(4))
    s.leave("B").expect(second=left(4))
    assert s.sizes == {}


def test_clients_take_turns_at_the_legacy_server() -> None:
    s = both("AB", turn_bytes=1)
    s.block(1)
    s.client("A", legacy(1, "a"), legacy(2, "a"), legacy(3, "a"))
    s.client("B", legacy(1, "b"))
    s.unblock(seat=1).expect(second=[legacy(4, "a"), legacy(5, "b"), legacy(6, "a"), legacy(7, "a")])


def test_room_at_one_server_moves_nothing_to_the_other() -> None:
    s = both()
    s.block(1)
    s.client("A", legacy(1))
    s.unblock(seat=0).expect()
    s.unblock(seat=1).expect(second=legacy(4))


def test_a_child_that_serves_nobody_yet_is_moved_nothing() -> None:
    s = Scenario("A", era=None)
    s.client("A", request(1)).expect(server=probe(1))
    s.unblock().expect()
    s.crash(exited=False)
    assert s.router.server_writable(s.key("server"), 1000, s.now) == ([], False)


def test_what_is_refused_when_its_turn_comes_takes_no_place_at_the_server() -> None:
    s = Scenario("A", era=None)
    s.client("A", initialize(1), legacy(2, "tasks/cancel"), legacy(3))
    s.server(greeting(1)).expect(
        server=[INITIALIZED, legacy(2)], A=[greeting(1), refusal(-32602, "unknown_task", id=2)]
    )
    assert s.router.in_flight == 1


def test_a_queue_of_notifications_alone_is_no_need() -> None:
    s = both()
    s.block(1)
    s.client("A", notification("n"))
    s.crash(1).expect()
    assert not s.router.needed(1)
