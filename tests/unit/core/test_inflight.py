"""The tables of what is on the way and of what waits: who asked, in which order, under which id."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from bridge.core.era import Era, Handshake
from bridge.core.inflight import NOTHING, Child, Client, Logger, Queue, Queued, id_key, owners
from bridge.core.jsonrpc import Id
from bridge.core.outbox import Key


def queued(id: Id | None, line: bytes = b"0123456789") -> Queued:
    return Queued(line, id, 0.0)


def client(key: int = 1) -> Client:
    return Client(Key(key), strict=False, max_line=100)


def child() -> Child:
    return Child(Key(9), 1, Handshake(version="1"), max_line=100, now=5.0)


IDS: list[Id] = [1, "1", 0, "", -7, 2**70, "a", Raw(b'"\\ud83d"'), '"\\ud83d"']


def test_ids_of_other_types_never_meet() -> None:
    """`1` is not `"1"`, and `1 == True == 1.0` in Python is no reason that they meet in a table."""
    assert len({id_key(id) for id in IDS}) == len(IDS)
    assert id_key(1) != id_key(True)
    assert id_key(Raw(b'"\\ud83d"')) == id_key(Raw(b'"\\ud83d"'))


def test_a_queue_gives_out_what_it_took_in_order() -> None:
    queue = Queue(client(), Era.MODERN)
    items = [queued(1), queued(None), queued("1"), queued(1), queued(None)]
    for item in items:
        queue.push(item)
    assert len(queue) == 5
    assert queue.bytes == 50
    for number, item in enumerate(items):
        assert queue.head() is item
        assert queue.pop() is item
        assert queue.bytes == 40 - 10 * number
    assert not queue


@pytest.mark.parametrize("id", IDS)
def test_every_request_with_an_id_is_removed_and_no_other(id: Id) -> None:
    """One host sends `id: 1` for everything: a cancellation ends all of them."""
    queue = Queue(client(), Era.MODERN)
    others = [queued(other) for other in IDS if id_key(other) != id_key(id)]
    for other in others:
        queue.push(queued(id))
        queue.push(other)
    queue.push(queued(None))
    assert queue.remove(id) == len(others)
    assert queue.remove(id) == 0
    assert queue.bytes == 10 * len(queue)
    assert [queue.pop() for _ in range(len(others))] == others
    assert queue.pop().id is None
    assert not queue


def test_a_request_that_was_taken_is_not_removed_again() -> None:
    queue = Queue(client(), Era.MODERN)
    queue.push(queued(1, b"first"))
    queue.push(queued(1, b"second"))
    assert queue.pop().line == b"first"
    assert queue.remove(1) == 1
    assert queue.bytes == 0
    queue.push(queued(1, b"third"))
    assert queue.pop().line == b"third"
    assert queue.remove(1) == 0


def test_an_empty_queue_has_no_head() -> None:
    """Asking it for one is a bug in the caller."""
    queue = Queue(client(), Era.MODERN)
    with pytest.raises(StopIteration):
        queue.head()
    with pytest.raises(KeyError):
        queue.pop()


def test_a_cleared_queue_gives_out_everything_and_keeps_nothing() -> None:
    queue = Queue(client(), Era.MODERN)
    items = [queued(1), queued(None), queued("x")]
    for item in items:
        queue.push(item)
    assert queue.clear() == items
    assert (len(queue), queue.bytes) == (0, 0)
    assert queue.remove(1) == 0
    assert queue.clear() == []
    queue.push(items[2])
    assert queue.head() is items[2]


def test_a_queue_knows_whether_it_holds_a_request() -> None:
    """Notifications alone start no child."""
    queue = Queue(client(), Era.MODERN)
    queue.push(queued(None))
    assert not queue.has_requests
    queue.push(queued(0))
    assert queue.has_requests
    queue.pop()
    queue.pop()
    assert not queue.has_requests
    queue.push(queued(0))
    queue.remove(0)
    assert not queue.has_requests


def test_a_client_is_idle_when_nothing_is_owed_to_it() -> None:
    one = client()
    assert one.idle
    one.waiting = {Era.LEGACY: Queue(one, Era.LEGACY)}
    assert not one.idle
    one.waiting = NOTHING
    one.inflight[5] = 1
    assert not one.idle
    one.inflight.clear()
    holder: Any = object()
    one.holders = {5: holder}
    assert not one.idle


def test_each_possible_owner_of_a_log_is_named_once() -> None:
    """Several requests of one client are one owner; abandoned ones are a possible owner without a name."""
    one, two = client(1), client(2)
    loggers = {5: Logger(one), 6: Logger(None, 30.0), 7: Logger(two), 8: Logger(one), 9: Logger(None, 31.0)}
    assert list(owners(loggers)) == [one, None, two]
    assert list(owners({})) == []


def test_a_new_child_has_been_told_nothing() -> None:
    new = child()
    assert (new.key, new.seat, new.opened_at, new.framer.limit) == (9, 1, 5.0, 100)
    assert not new.spoke
    assert not new.wrote
    assert not new.blocked
    assert not new.inflight
    assert not new.out


def test_an_initialize_is_not_removed_by_its_id() -> None:
    """Section 7: it is never cancelled; what is behind it may be."""
    queue = Queue(client(), Era.LEGACY)
    first = Queued(b"0123456789", 1, 0.0, opens=True)
    for item in (first, queued(1), queued(1)):
        queue.push(item)
    assert queue.remove(1) == 2
    assert queue.remove(1) == 0
    assert queue.bytes == 10
    assert queue.has_requests
    assert queue.pop() is first


def test_listens_are_taken_out_in_order_and_nothing_else_is() -> None:
    queue = Queue(client(), Era.MODERN)
    items = [Queued(b"0123456789", id, 0.0, listen=id in "ab") for id in "axby"]
    for item in items:
        queue.push(item)
    assert queue.take_listens() == [items[0], items[2]]
    assert queue.bytes == 20
    assert [queue.pop(), queue.pop()] == [items[1], items[3]]
