"""A client and the server process that is its own: what is on the way between them.

Owns the tables of one pair. Ids stay as the peers chose them, since nobody else shares the child.
Decides nothing: `pair_clients.py`, `pair_servers.py` and `isolated.py` do.
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw, Struct

from bridge.core import jsonrpc
from bridge.core.era import DISCOVER, LEGACY_VERSIONS, Era
from bridge.core.inflight import Child, Client, Queue, Queued, id_key
from bridge.core.jsonrpc import (
    SUBSCRIPTION_ID,
    Call,
    Id,
    Members,
    Message,
    error_line,
    notification_line,
    result_line,
)
from bridge.core.lines import ClientLines
from bridge.core.outbox import Control, Key
from bridge.core.subscriptions import FULL, LISTEN
from bridge.core.tables import LEFT, NoticeKind, Tables

CANCELLED: Final = "notifications/cancelled"
NEVER: Final = float("-inf")


class Asked(Struct, gc=False):
    """One request of a client that was written to its child."""

    id: Id
    method: str
    sent_at: float


class Pair:
    """One client, and the child that is its own."""

    __slots__ = ("asked", "child", "client", "count", "listens", "probed", "questions", "queue", "wanted")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.child: Child | None = None
        self.asked: dict[tuple[type, object], list[Asked]] = {}
        """Requests on the way, by id: a client may use one twice."""
        self.count = 0
        """How many of them take a place in the window."""
        self.listens = 0
        """How many of them are a `subscriptions/listen`, and take none."""
        self.questions: dict[tuple[type, object], Id] = {}
        """The child's own requests that the client has not answered."""
        self.queue = Queue(client, Era.LEGACY)
        self.wanted = False
        """A child was asked for."""
        self.probed = False
        """Nothing but `server/discover` was ever written to the child, and it has answered nothing."""

    @property
    def idle(self) -> bool:
        """Whether nothing is owed to the client."""
        return not self.asked and not self.queue


class Pairs(ClientLines):
    """What both directions do with pairs."""

    __slots__ = ("_not_probed_until", "_pairs")

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self._pairs: dict[Key, Pair] = {}
        """By the client's key."""
        self._not_probed_until = NEVER
        """Until then the server is not asked for the modern era, since it exits on that."""

    def _want(self, pair: Pair) -> None:
        """Ask for a child, for what waits."""
        pair.wanted = True
        self._tables.note(NoticeKind.NEED_CHILD, pair.client.key, pair.queue.head().method.encode())

    def _refuse_probe(self, pair: Pair, id: Id, *, delivered: bool = False) -> None:
        self._tables.refuse(
            pair.client,
            id,
            jsonrpc.METHOD_NOT_FOUND,
            "the server exited when it was asked for the modern era of MCP: use `initialize`",
            "era_not_served",
            delivered=delivered,
            supported=[*LEGACY_VERSIONS],
        )

    def _is_too_large(self, message: Call) -> bool:
        limit = self._tables.limits.max_request
        return len(self._tables.codec_down.render(message)) > limit

    def _push(self, pair: Pair, item: Queued) -> bool:
        limits = self._tables.limits
        queue = pair.queue
        if len(queue) >= limits.max_queued or queue.bytes + len(item.line) > limits.max_queued_bytes:
            return False
        queue.push(item)
        self._tables.attention.due = True
        if pair.child is not None and pair.child.blocked and not queue.paused and self._is_long(queue):
            queue.paused = True
            self._tables.outbox.control(pair.client, Control.PAUSE)
        return True

    def _send(self, pair: Pair, child: Child, message: Call, id: Id, method: str) -> None:
        tables = self._tables
        pair.asked.setdefault(id_key(id), []).append(Asked(id, method, tables.now))
        if method == LISTEN:
            pair.listens += 1
            tables.holders += 1
        else:
            pair.count += 1
        if method != DISCOVER:
            pair.probed = False
        tables.stats.requests += 1
        if tables.limits.request_timeout is not None:
            tables.attention.due = True
        tables.outbox.put(child, message)

    def _may_listen(self, pair: Pair, id: Id) -> bool:
        """Whether a client may listen once more; it is told if not."""
        limits = self._tables.limits
        if pair.listens < limits.max_subscriptions and self._tables.holders < limits.max_subscriptions_all:
            return True
        self._tables.refuse(pair.client, id, jsonrpc.OVERLOADED, FULL, "too_many_subscriptions")
        return False

    def _take(self, pair: Pair, key: tuple[type, object], asked: Asked | None = None) -> Asked:
        """A request has ended: the oldest with this id, or the one that is named."""
        several = pair.asked[key]
        one = several[0] if asked is None else asked
        several.remove(one)
        if not several:
            del pair.asked[key]
        if one.method == LISTEN:
            pair.listens -= 1
            self._tables.holders -= 1
        else:
            pair.count -= 1
        return one

    def _take_all(self, pair: Pair) -> list[Asked]:
        taken = [one for several in pair.asked.values() for one in several]
        pair.asked.clear()
        pair.count = 0
        self._tables.holders -= pair.listens
        pair.listens = 0
        return taken

    def _feed(self, pair: Pair, room: int | None = None) -> bool:
        """Move what waits to the child, as far as it may; return whether more could be moved."""
        tables = self._tables
        queue, child = pair.queue, pair.child
        moved = 0
        more = False
        while queue and child is not None and not child.blocked:
            if room is not None and moved >= room:
                more = True
                break
            item = queue.head()
            if item.id is not None and not item.listen and pair.count >= tables.limits.max_in_flight:
                break
            queue.pop()
            moved += len(item.line)
            message = tables.codec_down.decode_plain_line(item.line)
            assert isinstance(message, Message)
            if item.id is None:
                pair.probed = False
                tables.stats.notifications_up += 1
                tables.outbox.put(child, message)
            elif not item.listen or self._may_listen(pair, item.id):
                self._send(pair, child, message, item.id, item.method)
        if queue.paused and not self._is_long(queue):
            self._resume(pair)
        self._settle(pair)
        return more

    def _is_long(self, queue: Queue) -> bool:
        limits = self._tables.limits
        return queue.bytes > limits.paused_bytes or len(queue) > limits.paused_lines

    def _resume(self, pair: Pair) -> None:
        pair.queue.paused = False
        self._tables.outbox.control(pair.client, Control.RESUME)

    def _settle(self, pair: Pair) -> None:
        """Close a client that has stopped sending once nothing is owed to it."""
        if pair.client.eof_at is not None and pair.idle:
            self._tables.outbox.close(pair.client)

    def _refuse_queued(self, pair: Pair, code: int, text: str, reason: str) -> None:
        for item in pair.queue.clear():
            if item.id is not None:
                self._tables.refuse(pair.client, item.id, code, text, reason)
        if pair.queue.paused:
            self._resume(pair)
        self._settle(pair)

    def _refuse_questions(self, pair: Pair) -> None:
        """The client will not answer: its child is told."""
        questions = list(pair.questions.values())
        pair.questions.clear()
        for id in questions:
            self._refuse_question(pair, id, jsonrpc.INTERNAL_ERROR, "the client does not answer any more")

    def _refuse_question(self, pair: Pair, id: Id, code: int, text: str) -> None:
        assert pair.child is not None
        line = bytes(error_line(id, code, text, "client_gone"))
        self._tables.outbox.put(pair.child, Raw(self._tables.codec_up.unmark(line)))

    def _cancel(self, child: Child, id: Id, rest: Members) -> None:
        self._tables.stats.cancels += 1
        line = bytes(notification_line(CANCELLED, {**rest, "requestId": id}))
        self._tables.outbox.put(child, Raw(self._tables.codec_up.unmark(line)))

    def _complete(self, pair: Pair, id: Id) -> None:
        """The graceful response that ends a listen."""
        self._tables.stats.responses += 1
        result = {"resultType": "complete", "_meta": {SUBSCRIPTION_ID: id}}
        self._tables.outbox.put(pair.client, result_line(id, result))

    def _end_listens(self, pair: Pair) -> None:
        for key, several in list(pair.asked.items()):
            for asked in [one for one in several if one.method == LISTEN]:
                self._take(pair, key, asked)
                assert pair.child is not None
                self._cancel(pair.child, asked.id, LEFT)
                self._complete(pair, asked.id)
