"""What one call of the core puts out, for whom and in which order."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from bridge.core.codec import Codec
from bridge.core.jsonrpc import Message, OddMessage
from bridge.core.outbox import Control, Key, Lane, Outbox

CODEC = Codec(b"0123456789abcdef")


def message(id: int) -> Message:
    return Message("2.0", id, "m")


def test_each_destination_gets_one_piece_with_its_messages_in_order() -> None:
    outbox = Outbox(CODEC)
    a, b = Lane(Key(1)), Lane(Key(2))
    outbox.put(a, message(1))
    outbox.put(b, message(2))
    outbox.put(a, Raw(b'{"ready":true}'))
    outbox.put(a, message(3))
    (first, to_a), (second, to_b) = outbox.flush()
    assert (first, second) == (1, 2)
    assert isinstance(to_a, bytes)
    lines = to_a.split(b"\n")
    assert [json.loads(line).get("id", "ready") for line in lines[:-1]] == [1, "ready", 3]
    assert lines[-1] == b""
    assert to_b == b'{"jsonrpc":"2.0","id":2,"method":"m"}\n'


@pytest.mark.parametrize("odd", [False, True])
def test_what_is_told_to_many_is_told_to_them_whatever_others_are_sent_in_between(odd: bool) -> None:
    """The piece that several share is theirs: never the one that was written last."""
    outbox = Outbox(CODEC)
    lanes = [Lane(Key(number)) for number in range(4)]
    told = Raw(b'{"told":"many"}')
    outbox.put(lanes[0], told)
    outbox.put(lanes[1], OddMessage("2.0", 1, "m", extra={}, marked=False) if odd else message(1))
    outbox.put(lanes[2], told)
    outbox.put(lanes[3], Raw(b'{"told":"one"}'))
    pieces = dict(outbox.flush())
    assert pieces[Key(0)] == pieces[Key(2)] == b'{"told":"many"}\n'
    assert pieces[Key(0)] is pieces[Key(2)]
    assert pieces[Key(1)] == b'{"jsonrpc":"2.0","id":1,"method":"m"}\n'
    assert pieces[Key(3)] == b'{"told":"one"}\n'


def told(outbox: Outbox) -> dict[int, list[object]]:
    """What each destination is to be written."""
    return {key: [json.loads(line) for line in bytes(data).splitlines()] for key, data in outbox.flush()}  # type: ignore[arg-type]  # no controls


def test_what_all_are_told_is_one_piece_for_all() -> None:
    outbox = Outbox(CODEC)
    lanes = [Lane(Key(number)) for number in range(3)]
    for line in (b"[1]", b"[2]"):
        assert outbox.put_to_all(lanes, Raw(line)) == 3
    (_, first), *others = outbox.flush()
    assert first == b"[1]\n[2]\n"
    assert [key for key, _ in others] == [1, 2]
    assert all(piece is first for _, piece in others)
    assert outbox.flush() == []


def test_what_all_are_told_keeps_its_place_before_and_behind_what_one_is_told() -> None:
    """Whether that is put, or entered by the quick paths themselves."""
    for quick in (False, True):
        outbox = Outbox(CODEC)
        a, b, c = (Lane(Key(number)) for number in range(3))

        def tell(lane: Lane, line: bytes, outbox: Outbox = outbox, quick: bool = quick) -> None:
            if quick:
                if not lane.out:
                    outbox.touched.append(lane)
                lane.out.append(Raw(line))
            else:
                outbox.put(lane, Raw(line))

        outbox.put_to_all([a, b], Raw(b"1"))
        tell(b, b"2")
        outbox.put_to_all([a, b], Raw(b"3"))
        tell(c, b"4")
        outbox.put_to_all([b, c], Raw(b"5"))
        assert told(outbox) == {0: [1, 3], 1: [1, 2, 3, 5], 2: [4, 5]}
        outbox.put_to_all([a, b], Raw(b"6"))
        tell(b, b"7")
        tell(c, b"8")
        assert told(outbox) == {0: [6], 1: [6, 7], 2: [8]}


def test_others_may_be_told_behind_what_all_are_told() -> None:
    outbox = Outbox(CODEC)
    a, b, c = (Lane(Key(number)) for number in range(3))
    outbox.put_to_all([a, b], Raw(b"1"))
    outbox.put_to_all([b, c], Raw(b"2"))
    assert told(outbox) == {0: [1], 1: [1, 2], 2: [2]}


def test_who_is_closed_behind_what_all_are_told_is_told_it() -> None:
    outbox = Outbox(CODEC)
    a, b = Lane(Key(0)), Lane(Key(1))
    outbox.put_to_all([a, b], Raw(b"1"))
    outbox.close(b)
    outbox.put_to_all([a, b], Raw(b"2"))
    outbox.control(a, Control.PAUSE)
    assert outbox.flush() == [(0, b"1\n2\n"), (1, b"1\n"), (1, b""), (0, Control.PAUSE)]


def test_what_is_told_to_all_is_not_told_to_who_is_being_closed() -> None:
    outbox = Outbox(CODEC)
    leaving, staying = Lane(Key(1)), Lane(Key(2))
    outbox.close(leaving)
    assert outbox.put_to_all([leaving, staying], Raw(b"{}")) == 1
    assert outbox.flush() == [(1, b""), (2, b"{}\n")]


def test_what_was_flushed_is_not_flushed_again() -> None:
    outbox = Outbox(CODEC)
    lane = Lane(Key(1))
    outbox.put(lane, message(1))
    outbox.control(lane, Control.PAUSE)
    assert len(outbox.flush()) == 2
    assert outbox.flush() == []
    outbox.put(lane, message(2))
    assert outbox.flush() == [(1, b'{"jsonrpc":"2.0","id":2,"method":"m"}\n')]


def test_a_message_is_written_as_it_is_at_the_flush() -> None:
    """The router puts a message once it is complete; nothing is encoded before that."""
    outbox = Outbox(CODEC)
    lane = Lane(Key(1))
    one = message(1)
    outbox.put(lane, one)
    one.id = "restored"
    assert outbox.flush() == [(1, b'{"jsonrpc":"2.0","id":"restored","method":"m"}\n')]


def test_an_odd_message_among_plain_ones_keeps_its_place_and_its_members() -> None:
    outbox = Outbox(CODEC)
    lane = Lane(Key(1))
    odd = CODEC.decode_line(b'{"jsonrpc":"2.0","id":2,"result":"\\ud83d","x":1e400}')
    assert type(odd) is OddMessage
    outbox.put(lane, message(1))
    outbox.put(lane, odd)
    outbox.put(lane, message(3))
    assert outbox.flush() == [
        (
            1,
            b'{"jsonrpc":"2.0","id":1,"method":"m"}\n'
            b'{"jsonrpc":"2.0","id":2,"result":"\\ud83d","x":1e400}\n'
            b'{"jsonrpc":"2.0","id":3,"method":"m"}\n',
        )
    ]
    outbox.put(lane, message(4))
    assert outbox.flush() == [(1, b'{"jsonrpc":"2.0","id":4,"method":"m"}\n')]


def test_a_destination_is_closed_behind_what_was_put_for_it() -> None:
    outbox = Outbox(CODEC)
    lane = Lane(Key(7))
    outbox.put(lane, message(1))
    outbox.close(lane)
    assert outbox.flush() == [(7, b'{"jsonrpc":"2.0","id":1,"method":"m"}\n'), (7, b"")]


def test_a_destination_with_nothing_to_write_is_closed_too() -> None:
    outbox = Outbox(CODEC)
    lane = Lane(Key(7))
    outbox.close(lane)
    assert outbox.flush() == [(7, b"")]


def test_a_destination_is_closed_once() -> None:
    outbox = Outbox(CODEC)
    lane = Lane(Key(7))
    outbox.close(lane)
    outbox.close(lane)
    assert outbox.flush() == [(7, b"")]
    outbox.close(lane)
    assert outbox.flush() == []


def test_nothing_follows_a_close() -> None:
    """Neither when something stands before the close, nor when nothing does, nor in a later call."""
    outbox = Outbox(CODEC)
    a, b = Lane(Key(1)), Lane(Key(2))
    outbox.put(a, message(1))
    for lane in (a, b):
        outbox.close(lane)
        outbox.put(lane, message(2))
    assert outbox.flush() == [(1, b'{"jsonrpc":"2.0","id":1,"method":"m"}\n'), (1, b""), (2, b"")]
    outbox.put(a, message(3))
    assert outbox.flush() == []


def test_controls_are_given_out_in_order_behind_the_bytes() -> None:
    outbox = Outbox(CODEC)
    lane = Lane(Key(1))
    outbox.control(lane, Control.PAUSE)
    outbox.put(lane, message(1))
    outbox.control(lane, Control.RESUME)
    assert outbox.flush() == [
        (1, b'{"jsonrpc":"2.0","id":1,"method":"m"}\n'),
        (1, Control.PAUSE),
        (1, Control.RESUME),
    ]
