"""From the clients: what becomes of each message a client writes.

Owns the decisions towards the server: who may send, what waits, what is refused.
Never reads what a server wrote.

Spec: 2026-07-28 basic, "Requests"; basic/patterns/cancellation, progress.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import UNSET, Raw

from bridge.core import jsonrpc
from bridge.core.codec import FAULTS, decode_plain_call
from bridge.core.era import DISCOVER, INITIALIZE, Era
from bridge.core.inflight import Child, Client, Entry, Kind, Logger, Queue, Queued, Session, id_key
from bridge.core.jsonrpc import (
    PROGRESS_TOKEN,
    Call,
    Id,
    Message,
    Meta,
    decode_members,
    decode_plain_meta,
    encoder,
    is_token,
)
from bridge.core.legacy import OWN, PING, LegacySessions
from bridge.core.lines import REWRITE_ROOM, ClientLines
from bridge.core.names import NO_META, look, meta_of, ordinary, put_token, remove_token
from bridge.core.replay import KEPT, is_safe
from bridge.core.seats import Seats
from bridge.core.subscriptions import LISTEN, Subscriptions
from bridge.core.tables import LEFT, NoticeKind, Tables, short_members
from bridge.core.waiting import Waiting

CANCELLED: Final = "notifications/cancelled"

# They speak of the connection's own session, which a shared server does not have.
# (`progress` of a client answers a token of the server's, and a modern one has none.)
ENDS_AT_BRIDGE: Final = frozenset(
    {"notifications/initialized", "notifications/roots/list_changed", "notifications/progress"}
)

SPECIAL: Final = OWN | {LISTEN, DISCOVER, UNSET}
"""Methods that are never simply passed on, in one era or the other; and none at all."""

# What every message looks at, without a second name to look up.
MODERN: Final = Era.MODERN
LEGACY: Final = Era.LEGACY
REQUEST: Final = Kind.REQUEST

USUAL_META_KEPT: Final = 1024
"""A `_meta` that a client sends with every request is recognised up to this length, in bytes."""


class Downstream(ClientLines):
    """Carries out what clients ask."""

    __slots__ = ("_legacy", "_seats", "_subscriptions", "_waiting")

    def __init__(
        self,
        tables: Tables,
        subscriptions: Subscriptions,
        waiting: Waiting,
        seats: Seats,
        legacy: LegacySessions,
    ) -> None:
        super().__init__(tables)
        self._subscriptions = subscriptions
        self._waiting = waiting
        self._seats = seats
        self._legacy = legacy

    def cut(self, client: Client, why: bytes) -> None:
        """Disconnect a client for what it did, behind what it is still sent."""
        tables = self._tables
        tables.stats.clients_cut += 1
        tables.note(NoticeKind.CLIENT_CUT, client.key, why)
        self.leave(client)
        tables.outbox.close(client)
        self.feed_freed()

    # -- messages --------------------------------------------------------------

    def quick(self, client: Client, lines: Iterator[bytes], short: int) -> bytes | None:
        """Pass ordinary requests on: see `ClientLines`."""
        tables = self._tables
        limits = tables.limits
        if client.waiting or tables.stopping or limits.replay_safe:  # what may be sent again is kept
            return next(lines, None)
        # Here each may go straight to its server, but for those that need a second look.
        modern = tables.served.get(MODERN)
        if modern is not None and modern.blocked:
            modern = None
        legacy = tables.served.get(LEGACY)
        if legacy is not None and (legacy.blocked or client.session is None or legacy.tasks is not None):
            legacy = None  # (a session is open, since nothing of it waits; tasks need a second look)
        inflight = client.inflight
        touched = tables.outbox.touched
        now = tables.now
        first = upstream_id = tables.last_id
        last = first + limits.max_in_flight - len(inflight)
        owner = None
        line: bytes | None
        try:
            for line in lines:
                token: Raw | None = None
                try:
                    message: Call = decode_plain_call(line)
                except FAULTS:
                    odd = ordinary(line)
                    if odd is None:
                        break
                    message, raw = odd
                else:
                    params = message.params
                    raw = params.meta if params else UNSET  # type: ignore[union-attr]  # as it came
                id = message.id
                if (
                    id is UNSET
                    or message.method in SPECIAL
                    or (len(line) > short and not self._codec.is_bounded(line, id))
                    or upstream_id >= last
                ):
                    break
                if raw is UNSET:
                    child = legacy
                elif raw == client.usual_meta:  # as the one before: nothing in it is to be translated
                    child = modern
                else:
                    meta = decode_plain_meta(raw)
                    if meta is None:
                        break
                    child = legacy if meta.version is UNSET else modern
                    if meta.token is not UNSET:
                        token = meta.token
                    elif meta.version is not UNSET and len(memoryview(raw)) <= USUAL_META_KEPT:
                        client.usual_meta = raw.copy()
                if child is None:
                    break
                if child is not owner:  # and so not the one of the request before
                    owner = child
                    entry = Entry(REQUEST, child, client, None, now)
                    asked = child.inflight
                    out = child.out
                    if not out:
                        touched.append(child)
                upstream_id += 1
                inflight[upstream_id] = id
                if token is None:
                    asked[upstream_id] = entry
                else:
                    asked[upstream_id] = Entry(REQUEST, child, client, token, now)
                    put_token(message, meta, upstream_id)  # type: ignore[arg-type]  # it is the meta's
                message.id = upstream_id
                out.append(message)
            else:
                line = None
        finally:  # whatever happens, no upstream id may be used twice
            if upstream_id > first:
                client.bad_lines = 0
                tables.last_id = upstream_id
                tables.stats.requests += upstream_id - first
                if limits.request_timeout is not None:
                    tables.attention.due = True
        return line

    def message(self, client: Client, message: Call, measured: bool) -> None:
        """One valid message, whatever it is: see `ClientLines`."""
        id = message.id
        method = message.method
        answers = isinstance(message, Message) and (message.result is not UNSET or message.error is not UNSET)
        if method is UNSET:
            if answers:
                self._tables.stats.dropped_responses_up += 1  # no server's request reaches a client
            else:
                self._invalid(client, id, "`method` is missing")
        elif answers:
            self._invalid(client, id, "a request or notification has neither `result` nor `error`")
        elif id is UNSET:
            self._notification(client, message, method, measured)
        else:
            self._request(client, message, id, method, measured)

    def _request(self, client: Client, message: Call, id: Id, method: str, measured: bool) -> None:
        tables = self._tables
        meta = look(message.params) if type(message.params) is dict else NO_META
        if tables.stopping:
            tables.refuse(client, id, jsonrpc.SHUTTING_DOWN, "the bridge is shutting down", "shutting_down")
            return
        # Either era has one method that is its own whatever `_meta` says: a server that is sent `initialize`
        # is a legacy one from then on, for all.
        modern = method == DISCOVER or (meta.version is not UNSET and method != INITIALIZE)
        era = Era.MODERN if modern else Era.LEGACY
        refusal = None if not modern and method == PING else self._seats.refusal(era)
        if refusal is not None:
            self._seats.refuse(client, id, method, era, refusal)
            return
        if not modern and self._legacy.answers(client, message, id, method):
            return
        if measured and self._is_too_large(message, meta):
            self._too_large(client, id)
            return
        listen = modern and method == LISTEN
        opens = not modern and method == INITIALIZE
        child = tables.served.get(era)
        if child is not None and era not in client.waiting and not child.blocked:
            if listen:
                self._subscriptions.listen(client, message, meta, child)
                return
            if len(client.inflight) < tables.limits.max_in_flight:
                self._pass(client, child, message, id, method, meta, modern)
                self.feed_freed()
                return
        if listen and not self._subscriptions.has_room(client):
            self._subscriptions.refuse_full(client, id)
            return
        line = tables.codec_down.render(message)
        if not self._waiting.push(client, era, Queued(line, id, tables.now, method, listen, opens)):
            tables.refuse(
                client,
                id,
                jsonrpc.OVERLOADED,
                "too many requests of this client wait: send it again when some are answered",
                "overloaded",
            )
            return
        if opens and client.session is None:
            client.session = Session()
        if child is None:
            self._seats.need(era)

    def _is_too_large(self, message: Call, meta: Meta = NO_META) -> bool:
        """Whether a message would be too long once its id and its token are the bridge's."""
        size = len(self._tables.codec_down.render(message))
        digits = len(str(self._tables.last_id + 1))
        if message.id is not UNSET:
            size += digits - len(encoder.encode(message.id))
        if meta.token is not UNSET:
            size += digits - len(memoryview(meta.token))
        return size > self._tables.limits.max_request

    def _pass(
        self,
        client: Client,
        child: Child,
        message: Call,
        id: Id,
        method: str,
        meta: Meta,
        modern: bool,
        waited: Queued | None = None,
    ) -> None:
        """A request's turn has come: send it, unless it is carried out together with others' or refused.

        Args:
            waited: what it was in its client's queue, if it was there.
        """
        again = None
        if self._tables.limits.replay_safe and not (waited is not None and waited.sent) and is_safe(message):
            line = self._tables.codec_down.render(message) if waited is None else waited.line
            if len(line) <= min(KEPT, self._measured):  # so it cannot be too long under a later id
                arrived_at = self._tables.now if waited is None else waited.arrived_at
                again = Queued(line, id, arrived_at, method, sent=True)
        if modern:
            self._send(client, child, message, meta).again = again
        elif not self._legacy.takes(client, child, message, id, method):
            interest = self._legacy.tasks.interest(child, message, method)
            entry = self._send(client, child, message, meta)
            entry.again = again
            if interest is not None:
                entry.noted = True
                child.interests[self._tables.last_id] = interest

    def _send(self, client: Client, child: Child, message: Call, meta: Meta) -> Entry:
        """Book a request, and write it under its upstream id."""
        tables = self._tables
        tables.last_id = upstream_id = tables.last_id + 1
        token = None
        if meta.token is not UNSET:
            spelled = tables.codec_down.owned(message, meta.token)
            params = message.params
            assert type(params) is dict
            members = decode_members(params["_meta"])
            assert members is not None
            if is_token(spelled):
                token = Raw(spelled)
                members[PROGRESS_TOKEN] = upstream_id  # type: ignore[assignment]  # encoded with its fellows
            else:
                # A server that spells it in another way would hit a stranger.
                del members[PROGRESS_TOKEN]
                tables.stats.removed_tokens += 1
            params["_meta"] = members  # type: ignore[assignment]  # encoded with its fellows
        entry = Entry(REQUEST, child, client, token, tables.now)
        client.inflight[upstream_id] = message.id  # type: ignore[assignment]  # a request has one
        child.inflight[upstream_id] = entry
        if meta.log_level is not UNSET:
            entry.noted = True
            tables.attention.due = True
            child.loggers[upstream_id] = Logger(client)
        message.id = upstream_id
        tables.stats.requests += 1
        if tables.limits.request_timeout is not None:
            tables.attention.due = True
        tables.outbox.put(child, message)
        return entry

    # -- notifications ---------------------------------------------------------

    def _notification(self, client: Client, message: Call, method: str, measured: bool) -> None:
        tables = self._tables
        if method == CANCELLED:
            self._cancelled(client, message)
            return
        if method in ENDS_AT_BRIDGE or tables.stopping:
            self._legacy.said(client, method)
            tables.stats.dropped_notifications_up += 1
            return
        era = Era.LEGACY if client.session is not None and meta_of(message).version is UNSET else Era.MODERN
        child = tables.served.get(era)
        if child is None and era not in client.waiting and not self._seats.approached(era):
            # It starts no child, and shows no need of an era.
            tables.stats.dropped_notifications_up += 1
            return
        if measured and self._is_too_large(message):
            tables.stats.dropped_notifications_up += 1
            return
        if child is not None and era not in client.waiting and not child.blocked:
            self._send_notification(child, message)
            return
        line = tables.codec_down.render(message)
        if not self._waiting.push(client, era, Queued(line, None, tables.now)):
            tables.stats.dropped_notifications_up += 1

    def _send_notification(self, child: Child, message: Call) -> None:
        params = message.params
        if type(params) is dict:
            self._tables.stats.removed_tokens += remove_token(params)
        self._tables.stats.notifications_up += 1
        self._tables.outbox.put(child, message)

    def _cancelled(self, client: Client, message: Call) -> None:
        """A client gives a request up: it, and nobody else's, ends."""
        tables = self._tables
        params = message.params
        id = None
        if type(params) is dict and "requestId" in params:
            id = tables.codec_down.read_id(params["requestId"])
        if id is None:
            tables.stats.dropped_notifications_up += 1
            return
        assert type(params) is dict
        tables.stats.removed_tokens += remove_token(params)
        rest = {name: value for name, value in params.items() if name != "requestId"}
        found = self._waiting.remove(client, id)
        found += self._subscriptions.client_cancelled(client, id, rest, tables.served.get(Era.MODERN))
        key = id_key(id)
        mine = [number for number, asked in client.inflight.items() if id_key(asked) == key]
        for number in mine:
            tables.give_up(client, number, rest)
            rest = short_members(rest)  # one line of a client is not to become hundreds as long
        if found or mine:
            self.feed(client)
        else:
            tables.stats.dropped_notifications_up += 1

    # -- turns -----------------------------------------------------------------

    def feed(self, client: Client) -> None:
        """A client's window has room again, or its queue is shorter: move what waits as far as it may."""
        self._feed(client)
        self.feed_freed()

    def feed_freed(self) -> None:
        """Requests have ended that waited for the outcome of others': their clients' next ones may go.

        To be called behind whatever may have ended some, and never from within a move.
        """
        freed = self._legacy.desk.freed
        for client in freed:  # which may free more
            self._feed(client)
        freed.clear()

    def _feed(self, client: Client) -> None:
        for era, queue in list(client.waiting.items()):
            child = self._tables.served.get(era)
            if child is not None and not child.blocked and not child.pumping:
                # Its window was full, or nothing would wait: this moves no more than was freed.
                self._move(queue, child, self._tables.limits.max_queued_bytes)
            self._waiting.after(queue)
        self._tables.settle(client)

    def _move(self, queue: Queue, child: Child, quantum: int) -> int:
        """Move a client's waiting lines to a child that takes them; return their bytes.

        Args:
            quantum: bytes after which it is another client's turn.
        """
        tables = self._tables
        client = queue.client
        sent = 0
        while queue and sent < quantum:
            item = queue.head()
            if (
                item.id is not None
                and not item.listen
                and not item.opens
                and len(client.inflight) >= tables.limits.max_in_flight
            ):
                break
            self._waiting.pop(queue)
            sent += len(item.line)
            message = self._decoded(item)
            if item.id is None:
                self._send_notification(child, message)
                continue
            if queue.era is Era.LEGACY and self._legacy.answers(client, message, item.id, item.method):
                continue
            meta = meta_of(message)
            # Its upstream id may have grown by a digit since it came.
            if len(item.line) > tables.limits.max_request - REWRITE_ROOM and self._is_too_large(
                message, meta
            ):
                self._too_large(client, item.id)
            elif item.listen:
                self._subscriptions.listen(client, message, meta, child)
            else:
                self._pass(client, child, message, item.id, item.method, meta, queue.era is MODERN, item)
        return sent

    def _decoded(self, item: Queued) -> Call:
        message = self._tables.codec_down.decode_plain_line(item.line)
        assert isinstance(message, Message)
        return message

    def pump(self, child: Child, room: int) -> bool:
        """Move waiting lines to a child, each client in its turn.

        Args:
            room: bytes that may be moved, more or less.

        Returns:
            Whether there is more that could be moved.
        """
        tables = self._tables
        era = child.handshake.era
        if era is None or tables.served.get(era) is not child:
            return False
        waiting = tables.waiting[era]
        fruitless = 0
        while waiting and fruitless < len(waiting):
            if room <= 0:
                child.pumping = True
                return True
            queue = next(iter(waiting.values()))
            sent = self._move(queue, child, tables.limits.turn_bytes)
            room -= sent
            fruitless = 0 if sent else fruitless + 1
            if queue:
                waiting.move_to_end(queue.client.key)
                self._waiting.shortened(queue)
            else:
                self._waiting.after(queue)
        child.pumping = False
        return False

    # -- leaving ---------------------------------------------------------------

    def end_listens(self, client: Client) -> None:
        """A client has stopped sending: its listens end, those that wait too."""
        tables = self._tables
        for item in self._waiting.take_listens(client):
            self._subscriptions.finish(client, item.id)  # type: ignore[arg-type]  # a request has an id
        for holder in list(client.holders.values()):
            self._subscriptions.leave(holder, LEFT, tables.served.get(Era.MODERN))
            self._subscriptions.finish(client, holder.id)
        tables.settle(client)

    def end_sessions(self) -> None:
        """The legacy server came back as another one: its clients must begin anew."""
        tables = self._tables
        tables.stale_sessions = False
        for client in list(tables.sessions.values()):
            tables.note(NoticeKind.CLIENT_CUT, client.key, b"the server came back with another session")
            self.leave(client)
            tables.outbox.close(client)
        self.feed_freed()

    def leave(self, client: Client) -> None:
        """Forget a client: cancel what it has at the servers, end what it holds."""
        tables = self._tables
        tables.clients.pop(client.key, None)
        tables.sessions.pop(client.key, None)
        tables.initialized.pop(client.key, None)
        tables.lingering.pop(client.key, None)
        self._waiting.forget(client)
        for holder in list(client.holders.values()):
            self._subscriptions.leave(holder, LEFT, tables.served.get(Era.MODERN))
        for upstream_id in list(client.inflight):
            tables.give_up(client, upstream_id, LEFT)
        self._legacy.left(client)
