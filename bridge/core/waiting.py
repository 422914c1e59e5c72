"""What clients sent and no server was given yet.

Owns the queues: who waits, in which order, for how long, and who is not read
meanwhile. What becomes of a line whose turn has come is decided in `downstream.py`.
"""

from __future__ import annotations

from bridge.core.era import Era
from bridge.core.inflight import NOTHING, Client, Queue, Queued
from bridge.core.jsonrpc import SERVER_UNAVAILABLE, Id
from bridge.core.outbox import Control
from bridge.core.tables import Seat, Tables


class Waiting:
    """Puts lines into the clients' queues, and takes out what waits in vain."""

    __slots__ = ("_tables",)

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def push(self, client: Client, era: Era, item: Queued) -> bool:
        """Have a line wait for an era's server; False if the client's queue is full."""
        tables = self._tables
        limits = tables.limits
        queue = client.waiting.get(era)
        size = len(item.line)
        if queue is None:
            if size > limits.max_queued_bytes:
                return False
            queue = self._new_queue(client, era)
        elif len(queue) >= limits.max_queued or queue.bytes + size > limits.max_queued_bytes:
            return False
        queue.push(item)
        tables.attention.due = True
        tables.queued_bytes += size
        child = tables.served.get(era)
        if child is not None and child.blocked and not queue.paused and self._is_long(queue):
            if not any(other.paused for other in client.waiting.values()):
                tables.outbox.control(client, Control.PAUSE)
            queue.paused = True
        return True

    def put_back(self, client: Client, era: Era, item: Queued) -> bool:
        """Have a request wait in front of everything else of its client; False if the queue is full."""
        tables = self._tables
        limits = tables.limits
        queue = client.waiting.get(era)
        if queue is None:
            queue = self._new_queue(client, era)
        elif len(queue) >= limits.max_queued or queue.bytes + len(item.line) > limits.max_queued_bytes:
            return False
        queue.put_back(item)
        tables.queued_bytes += len(item.line)
        return True

    def _new_queue(self, client: Client, era: Era) -> Queue:
        if not client.waiting:
            client.waiting = {}
        queue = client.waiting[era] = self._tables.waiting[era][client.key] = Queue(client, era)
        return queue

    def pop(self, queue: Queue) -> Queued:
        """Take the line whose turn it is. The caller then calls `after`."""
        item = queue.pop()
        self._tables.queued_bytes -= len(item.line)
        return item

    def remove(self, client: Client, id: Id) -> int:
        """Take every request of a client with this id out; return how many there were."""
        found = 0
        for queue in list(client.waiting.values()):
            before = queue.bytes
            found += queue.remove(id)
            self._tables.queued_bytes -= before - queue.bytes
            self.after(queue)
        return found

    def take_listens(self, client: Client) -> list[Queued]:
        """Take every `subscriptions/listen` of a client out; return them in order. The caller settles it."""
        queue = client.waiting.get(Era.MODERN)
        if queue is None:
            return []
        taken = queue.take_listens()
        self._tables.queued_bytes -= sum(len(item.line) for item in taken)
        self._forget_if_empty(queue)
        return taken

    def after(self, queue: Queue) -> None:
        """Forget a queue if it has become empty, and read its client again."""
        self._forget_if_empty(queue)
        self._tables.settle(queue.client)

    def _forget_if_empty(self, queue: Queue) -> None:
        if not queue:
            client = queue.client
            client.waiting = {
                era: other for era, other in client.waiting.items() if other is not queue
            } or NOTHING
            self._tables.waiting[queue.era].pop(queue.client.key, None)
            self._resume(queue)
        else:
            self.shortened(queue)

    def resume(self, era: Era) -> None:
        """An era's server takes lines again: read the clients that were not read for it."""
        for queue in self._tables.waiting[era].values():
            self._resume(queue)

    def shortened(self, queue: Queue) -> None:
        """Lines were taken out of a queue: read its client again if that was all that stood against it."""
        if queue.paused and not self._is_long(queue):
            self._resume(queue)

    def _is_long(self, queue: Queue) -> bool:
        limits = self._tables.limits
        return queue.bytes > limits.paused_bytes or len(queue) > limits.paused_lines

    def _resume(self, queue: Queue) -> None:
        if queue.paused:
            queue.paused = False
            if not any(other.paused for other in queue.client.waiting.values()):
                self._tables.outbox.control(queue.client, Control.RESUME)

    def expire(self, era: Era, seat: Seat) -> None:
        """Answer what has waited too long for an era while its seat has no process."""
        tables = self._tables
        oldest = tables.now - tables.limits.restart_wait
        if seat.child is not None or seat.down_since > oldest:
            return
        for queue in list(tables.waiting[era].values()):
            while queue and queue.head().arrived_at <= oldest:
                self._refuse(
                    queue.client,
                    self.pop(queue),
                    SERVER_UNAVAILABLE,
                    "the server is not running, and did not come back in time",
                    "server_unavailable",
                )
            self.after(queue)

    def refuse(self, queue: Queue, code: int, message: str, reason: str) -> None:
        """Answer everything in a queue with an error."""
        for item in self.drop(queue):
            self._refuse(queue.client, item, code, message, reason)
        self.after(queue)

    def drop(self, queue: Queue) -> list[Queued]:
        """Take everything out of a queue; return it in order. The caller then calls `after`."""
        self._tables.queued_bytes -= queue.bytes
        return queue.clear()

    def forget(self, client: Client) -> None:
        """A client has left: nothing of it waits."""
        for queue in client.waiting.values():
            self._tables.queued_bytes -= queue.bytes
            self._tables.waiting[queue.era].pop(client.key, None)
        client.waiting = NOTHING

    def _refuse(self, client: Client, item: Queued, code: int, message: str, reason: str) -> None:
        if item.id is not None:
            self._tables.refuse(client, item.id, code, message, reason, delivered=item.sent)
            if item.opens and client.session is not None and not client.session.open:
                client.session = None  # (a later `initialize` may have been answered before this one)
