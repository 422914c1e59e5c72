"""Windows, queues and a server that does not read: who waits, and who never does (section 6)."""

from __future__ import annotations

from bridge.core.holdings import QUEUED_ROOM
from bridge.core.outbox import Control
from tests.unit.core.scenario import (
    Json,
    Outcome,
    Scenario,
    acknowledged,
    cancelled,
    changed,
    left,
    line,
    listen,
    log,
    notification,
    progress,
    refusal,
    request,
    result,
)

KB: str = "x" * 1024


def whose(out: Outcome) -> str:
    """Of each request to the server, in order, the letter of its client."""
    return "".join(item["params"]["who"] for item in out.items("server") if isinstance(item, dict))


def requests(who: str, count: int, size: str = "") -> list[Json]:
    return [request(n, "x", who=who, size=size) for n in range(count)]


# -- the window


def test_requests_beyond_the_window_wait_and_follow_one_by_one() -> None:
    """`--max-in-flight`."""
    s = Scenario(max_in_flight=2)
    s.client("A", *[request(n, "x") for n in range(4)]).expect(server=[request(2, "x"), request(3, "x")])
    assert s.router.in_flight == 2
    s.server(result(3, {})).expect(A=result(1, {}), server=request(4, "x"))
    s.server(result(2, {}), result(4, {})).expect(A=[result(0, {}), result(2, {})], server=request(5, "x"))
    assert not s.router.needed()
    s.server(result(5, {})).expect(A=result(3, {}))
    assert s.sizes == {"clients": 1}


def test_each_client_has_a_window_of_its_own() -> None:
    s = Scenario(clients="AB", max_in_flight=1)
    s.client("A", request(1, "x"), request(2, "x"))
    s.client("B", request(1, "x")).expect(server=request(3, "x"))


def test_a_full_window_of_requests_that_wait_moves_on_with_every_kind_of_end() -> None:
    s = Scenario(max_in_flight=1)
    s.client("A", *[request(n, "x") for n in range(3)])
    s.server(b'{"jsonrpc":"2.0","id":2}\n').expect(
        A=refusal(-31008, "invalid_response", id=0, delivered=True), server=request(3, "x")
    )
    s.client("A", cancelled(1)).expect(server=[cancelled(3), request(4, "x")])


def test_a_request_never_passes_one_that_waits() -> None:
    """Section 10: order holds per client."""
    s = Scenario(max_in_flight=1)
    s.client("A", request(1, "x"), request(2, "x"))
    s.client("A", request(3, "x")).expect()
    s.server(result(2, {})).expect(A=result(1, {}), server=request(3, "x"))
    s.server(result(3, {})).expect(A=result(2, {}), server=request(4, "x"))


def test_notifications_do_not_use_up_what_a_response_freed() -> None:
    s = Scenario(max_in_flight=1)
    big = notification("n", v=KB * 40)
    s.client("A", request(1, "x"), request(2, "x"), big, request(3, "x"))
    s.server(result(2, {})).expect(A=result(1, {}), server=[request(3, "x"), big])
    s.server(result(3, {})).expect(A=result(2, {}), server=request(4, "x"))


def test_a_notification_waits_only_behind_requests_that_still_wait() -> None:
    s = Scenario(max_in_flight=1)
    s.client("A", request(1, "x"), request(2, "x"), notification("n"))
    s.client("A", cancelled(2)).expect(server=notification("n"))


# -- the queue


def test_a_queue_holds_so_many_lines() -> None:
    """Beyond it -31003, `delivered: false`; the connection is read on (hazard 72)."""
    s = Scenario(server=False, max_queued=2)
    out = s.client("A", *[request(n, "x") for n in range(4)], notification("n"))
    out.expect(A=[refusal(-31003, "overloaded", id=2), refusal(-31003, "overloaded", id=3)])
    assert s.stats.dropped_notifications_up == 1
    s.start().expect(server=[request(2, "x"), request(3, "x")])


def test_a_queue_holds_so_many_bytes() -> None:
    s = Scenario(server=False, max_queued_bytes=3000)
    s.client("A", request(1, "x", v=KB), request(2, "x", v=KB), request(3, "x", v=KB)).expect(
        A=refusal(-31003, "overloaded", id=3)
    )
    s.client("A", request(4, "x")).expect()


def test_a_full_queue_of_one_client_is_no_matter_to_the_others() -> None:
    s = Scenario(clients="AB", server=False, max_queued=1)
    s.client("A", request(1, "x"), request(2, "x"))
    s.client("B", request(1, "x")).expect()


def test_what_waits_is_counted_in_bytes() -> None:
    s = Scenario(clients="AB", server=False)
    s.client("A", request(1, "x"))
    s.client("B", request(1, "x"), b'{"half')
    # A queue of short lines takes several times their bytes.
    assert s.router.buffered(s.key("A")) == len(line(request(1, "x"))) - 1 + QUEUED_ROOM
    assert s.router.buffered(s.key("B")) == s.router.buffered(s.key("A")) + 6
    s.start()
    assert s.router.buffered(s.key("A")) == 0
    assert s.router.buffered(s.key("B")) == 6
    s.leave("B")
    assert s.router.buffered(s.key("B")) == 0


# -- stdin that is blocked


def test_nothing_but_cancels_is_moved_into_a_blocked_stdin() -> None:
    s = Scenario(clients="AB")
    s.client("A", request(1, "x"))
    s.block()
    s.client("A", request(2, "x"), notification("n"), listen("L", toolsListChanged=True)).expect()
    s.client("B", request(1, "x")).expect()
    s.client("A", cancelled(1)).expect(server=cancelled(2))
    s.unblock().expect(
        server=[
            request(3, "x"),
            notification("n"),
            listen(4, toolsListChanged=True),
            request(5, "x"),
        ]
    )


def test_responses_are_delivered_while_stdin_is_blocked_and_set_nothing_free() -> None:
    """The classic pipe deadlock cannot arise (hazard 11)."""
    s = Scenario(max_in_flight=1)
    s.client("A", request(1, "x"), request(2, "x"))
    s.block()
    s.server(result(2, {})).expect(A=result(1, {}))
    s.unblock().expect(server=request(3, "x"))


def test_a_client_that_leaves_is_cancelled_into_a_blocked_stdin() -> None:
    s = Scenario()
    s.client("A", request(1, "x"), listen("L", toolsListChanged=True))
    s.block()
    s.client("A", request(2, "x"))
    s.leave("A").expect(server=[left(3), left(2)])
    assert s.sizes == {}
    s.unblock().expect()


def test_a_cancel_takes_only_small_members_into_a_blocked_stdin() -> None:
    """What passes every limit must itself be small."""
    s = Scenario()
    s.client("A", *[request(n, "x") for n in range(3)])
    s.client("A", cancelled(0, reason=KB * 8)).expect(server=cancelled(2, reason=KB * 8))
    s.block()
    s.client("A", cancelled(1, reason=KB * 8)).expect(server=cancelled(3))
    s.client("A", cancelled(2, reason=KB)).expect(server=cancelled(4, reason=KB))


def test_a_client_is_read_while_its_queue_is_short() -> None:
    """Only a client whose own queue holds over 64 requests is not read, and only while stdin is blocked."""
    s = Scenario(clients="AB", paused_lines=3)
    s.block()
    s.client("A", *requests("A", 3)).expect()
    s.client("A", *requests("A", 2)).expect(A=Control.PAUSE)
    s.client("B", *requests("B", 1)).expect()
    s.join("C")
    s.client("C", *requests("C", 1)).expect()
    out = s.unblock()
    assert out.items("A") == [Control.RESUME]
    assert len(out.items("server")) == 7


def test_a_client_whose_queue_holds_many_bytes_is_not_read() -> None:
    s = Scenario(paused_bytes=2000)
    s.block()
    s.client("A", *requests("A", 1, KB)).expect()
    s.client("A", *requests("A", 1, KB)).expect(A=Control.PAUSE)


def test_a_client_with_a_long_queue_is_read_while_stdin_is_not_blocked() -> None:
    """Its window is full: that is its own affair."""
    s = Scenario(max_in_flight=1, paused_lines=3)
    s.client("A", *requests("A", 10))
    assert s.router.needed()
    s.block()
    s.client("A", request(10, "x")).expect(A=Control.PAUSE)
    s.unblock().expect(A=Control.RESUME)
    assert s.router.needed()


def test_a_client_with_a_long_queue_is_not_read_while_stdin_fills_up_again() -> None:
    """Else each turn of a slow server has every client read once more, and all queues grow to the limit."""
    s = Scenario(paused_lines=3, turn_bytes=1)
    s.block()
    s.client("A", *requests("A", 6)).expect(A=Control.PAUSE)
    for _ in range(2):
        out = s.unblock(1)
        assert out.more
        assert out.items("A") == []
        assert len(out.items("server")) == 1
        s.block()
    out = s.unblock(1)
    assert out.more
    assert out.items("A") == [Control.RESUME]  # what is left is short enough
    out = s.unblock()
    assert not out.more
    assert len(out.items("server")) == 3


def test_a_client_that_takes_back_what_waits_is_read_again() -> None:
    """Its queue is empty: nothing would ever wake it again."""
    s = Scenario(paused_lines=3)
    s.block()
    s.client("A", *requests("A", 4), *[cancelled(n) for n in range(4)]).expect(
        A=[Control.PAUSE, Control.RESUME]
    )
    assert s.sizes == {"clients": 1}
    s.unblock().expect()


def test_a_client_that_was_not_read_is_read_when_the_child_is_gone() -> None:
    s = Scenario(paused_lines=3)
    s.block()
    s.client("A", *requests("A", 4))
    s.crash().expect(A=Control.RESUME)
    assert len(s.start().items("server")) == 4


def test_a_client_that_was_not_read_and_left_is_told_nothing() -> None:
    s = Scenario(paused_lines=3)
    s.block()
    s.client("A", *requests("A", 4))
    s.leave("A").expect()
    s.unblock().expect()


# -- whose turn it is


def test_queues_feed_stdin_round_robin() -> None:
    """A flood from one client delays the others by no more than their share."""
    s = Scenario(clients="ABC", turn_bytes=3 * 1024)
    s.block()
    s.client("A", *requests("A", 9, KB))
    s.client("B", *requests("B", 2, KB))
    s.client("C", *requests("C", 4, KB))
    assert whose(s.unblock()) == "AAA" + "BB" + "CCC" + "AAA" + "C" + "AAA"


def test_stdin_is_given_no_more_than_it_has_room_for() -> None:
    s = Scenario(clients="AB", turn_bytes=1024)
    s.block()
    s.client("A", *requests("A", 4, KB))
    s.client("B", *requests("B", 4, KB))
    first = s.unblock(room=3000)
    assert (whose(first), first.more) == ("ABA", True)
    second = s.unblock(room=3000)
    assert (whose(second), second.more) == ("BAB", True)
    third = s.unblock(room=30_000)
    assert (whose(third), third.more) == ("AB", False)


def test_a_response_does_not_let_a_flood_pass_those_whose_turn_it_is() -> None:
    s = Scenario(clients="AB", turn_bytes=1024)
    s.block()
    s.client("A", *requests("A", 4, KB))
    s.client("B", *requests("B", 2, KB))
    assert whose(s.unblock(room=1000)) == "A"
    s.server(result(2, {})).expect(A=result(0, {}))
    assert whose(s.unblock()) == "BABAA"
    s.client("A", *requests("A", 1))
    s.server(result(3, {})).expect(B=result(0, {}))


def test_a_request_does_not_pass_those_of_its_client_whose_turn_has_not_come() -> None:
    """Section 10: order holds per client, also while its window and stdin have room."""
    s = Scenario(turn_bytes=1024)
    s.block()
    s.client("A", request(1, "x", v=KB), request(2, "x", v=KB))
    assert s.unblock(room=1000).more
    s.client("A", request(3, "x"), notification("n"), listen("L")).expect()
    s.unblock().expect(server=[request(3, "x", v=KB), request(4, "x"), notification("n"), listen(5)])


def test_a_client_whose_window_is_full_gives_its_turn_away() -> None:
    s = Scenario(clients="AB", max_in_flight=1)
    s.client("A", *requests("A", 3))
    s.block()
    s.client("B", *requests("B", 1))
    out = s.unblock()
    assert (whose(out), out.more) == ("B", False)
    assert whose(s.server(result(2, {}))) == "A"


def test_a_newcomer_need_not_wait_for_what_others_have_queued() -> None:
    s = Scenario(clients="A", max_in_flight=1)
    s.client("A", *requests("A", 100))
    s.join("B")
    assert whose(s.client("B", *requests("B", 1))) == "B"


def test_there_is_nothing_to_move_into_a_child_that_is_not_ready() -> None:
    s = Scenario(server=False)
    s.client("A", request(1, "x"))
    s.open()
    out = s.unblock()
    out.expect()
    assert not out.more


def test_stdin_of_a_child_that_is_gone_is_nothing() -> None:
    """A late report of the shell's about it."""
    s = Scenario()
    s.client("A", request(1, "x"))
    s.crash()
    s.block()
    out = s.unblock()
    assert (out.outputs, out.more) == ([], False)
    s.server(result(2, {})).expect()
    s.crash().expect()
    assert s.stats.children_closed == 1


# -- a batch


def test_lines_of_one_read_are_written_at_once() -> None:
    """One write a destination, however many messages."""
    s = Scenario(clients="AB")
    out = s.client("A", *requests("A", 50))
    assert [name for name, _ in out.outputs] == ["server"]
    s.client("B", request(1, "x", meta={"progressToken": 1}))
    out = s.server(*[result(n, {}) for n in range(2, 52)], progress(52), result(52, {}))
    assert sorted(name for name, _ in out.outputs) == ["A", "B"]


def test_lines_may_be_cut_anywhere() -> None:
    """Section 10: any split of the bytes, the same messages (hazard 47)."""
    s = Scenario(clients="AB")
    got = b"".join(s.client("A", bytes([byte])).bytes("server") for byte in line(request("ž", "x", v="ž")))
    assert got == line(request(2, "x", v="ž"))
    whole = line(result(2, "ž")) + line(log("dropped")) + line(notification("n"))
    assert b"".join(s.server(bytes([byte])).bytes("A") for byte in whole) == line(result("ž", "ž"))


def test_order_holds_for_one_client_between_responses_progress_and_subscriptions() -> None:
    s = Scenario()
    s.client("A", request(1, "x", meta={"progressToken": 9}), listen("L", toolsListChanged=True))
    s.server(progress(2), acknowledged(3), changed(3), progress(2), result(2, {}), changed(3)).expect(
        A=[progress(9), acknowledged("L"), changed("L"), progress(9), result(1, {}), changed("L")]
    )
