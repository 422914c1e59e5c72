"""From clients that have a server process each: what becomes of each message.

Requests wait where the child does not read; answers to its own never wait behind them.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, UnsetType

from bridge.core import jsonrpc
from bridge.core.era import DISCOVER, INITIALIZE
from bridge.core.inflight import Client, Queued, id_key
from bridge.core.jsonrpc import (
    Call,
    Id,
    Message,
)
from bridge.core.pair import CANCELLED, Pair, Pairs
from bridge.core.subscriptions import LISTEN

PROGRESS: Final = "notifications/progress"


class FromClients(Pairs):
    """Carries out what clients ask, and hands on what they answer."""

    __slots__ = ()

    def message(self, client: Client, message: Call, measured: bool) -> None:
        """See `ClientLines`."""
        pair = self._pairs[client.key]
        id, method = message.id, message.method
        answers = isinstance(message, Message) and (message.result is not UNSET or message.error is not UNSET)
        if method is UNSET:
            if answers:
                self._answer(pair, message, measured)
            else:
                self._invalid(client, id, "`method` is missing")
        elif answers:
            self._invalid(client, id, "a request or notification has neither `result` nor `error`")
        elif id is UNSET:
            self._notification(pair, message, method, measured)
        else:
            self._request(pair, message, id, method, measured)

    def _too_large(self, client: Client, id: Id | UnsetType) -> None:
        pair = self._pairs[client.key]
        if id is not UNSET and id_key(id) in pair.questions and id_key(id) not in pair.asked:
            # It is an answer: who waits for it is the child.
            del pair.questions[id_key(id)]
            limit = self._tables.limits.max_request
            self._refuse_question(pair, id, jsonrpc.TOO_LARGE, f"the answer is longer than {limit} bytes")
            return
        super()._too_large(client, id)

    def _answer(self, pair: Pair, message: Call, measured: bool) -> None:
        """An answer to the child's request: past window and queue, even while the child does not read."""
        id = message.id
        if id is UNSET or pair.child is None or id_key(id) not in pair.questions:
            self._tables.stats.dropped_responses_up += 1
        elif measured and self._is_too_large(message):
            self._too_large(pair.client, id)
        else:
            del pair.questions[id_key(id)]
            self._tables.outbox.put(pair.child, message)

    def _request(self, pair: Pair, message: Call, id: Id, method: str, measured: bool) -> None:
        tables = self._tables
        client = pair.client
        if tables.stopping:
            tables.refuse(client, id, jsonrpc.SHUTTING_DOWN, "the bridge is shutting down", "shutting_down")
            return
        if measured and self._is_too_large(message):
            self._too_large(client, id)
            return
        child = pair.child
        if method == DISCOVER and child is None and not pair.queue and tables.now < self._not_probed_until:
            self._refuse_probe(pair, id)
            return
        listen = method == LISTEN
        if listen and not self._may_listen(pair, id):
            return
        room = listen or pair.count < tables.limits.max_in_flight
        if child is not None and not child.blocked and not pair.queue and room:
            self._send(pair, child, message, id, method)
            return
        item = Queued(tables.codec_down.render(message), id, tables.now, method, listen, method == INITIALIZE)
        if not self._push(pair, item):
            text = "too many requests of this client wait: send it again when some are answered"
            tables.refuse(client, id, jsonrpc.OVERLOADED, text, "overloaded")
        elif child is None and not pair.wanted:
            self._want(pair)

    def _notification(self, pair: Pair, message: Call, method: str, measured: bool) -> None:
        tables = self._tables
        child = pair.child
        if method == CANCELLED:
            self._cancelled(pair, message)
            return
        ahead = child is not None and not child.blocked and (method == PROGRESS or not pair.queue)
        if tables.stopping or (measured and self._is_too_large(message)):
            tables.stats.dropped_notifications_up += 1
        elif ahead:
            pair.probed = False
            tables.stats.notifications_up += 1
            tables.outbox.put(child, message)  # type: ignore[arg-type]  # `ahead` says that there is one
        elif child is None and not pair.queue:
            tables.stats.dropped_notifications_up += 1  # it starts no child
        elif not self._push(pair, Queued(tables.codec_down.render(message), None, tables.now)):
            tables.stats.dropped_notifications_up += 1

    def _cancelled(self, pair: Pair, message: Call) -> None:
        """A client gives a request up: it ends, and its child is told if it knows of it."""
        tables = self._tables
        params = message.params
        raw = params.get("requestId") if type(params) is dict else None
        id = None if raw is None else tables.codec_down.read_id(raw)
        found = 0 if id is None else pair.queue.remove(id)
        at_child = False
        if id is not None:
            for asked in list(pair.asked.get(id_key(id), ())):
                if asked.method != INITIALIZE:
                    self._take(pair, id_key(id), asked)
                    at_child = True
        if at_child:
            assert pair.child is not None
            tables.stats.cancels += 1
            tables.outbox.put(pair.child, message)
        elif not found:
            tables.stats.dropped_notifications_up += 1
        self._feed(pair)
