"""Clients with a server process each: everything goes through, both ways.

Owns the pairs of a client and its child. Ids, tokens and whatever else names something
stay as they are, since nobody else shares the child. Still every request has one outcome,
requests wait where the child does not read, and a client's answers never wait behind them.

Has the same kind of interface as `router.py`: bytes and events in, what is to be written out.

Spec: 2025-11-25 basic/lifecycle, client features; 2026-07-28 basic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType

from bridge.core import jsonrpc
from bridge.core.era import DISCOVER, INITIALIZE, LEGACY_VERSIONS, Era, Handshake
from bridge.core.framing import HEAD_KEPT, Block, OverlongEnd, OverlongStart
from bridge.core.inflight import Child, Client, Queue, Queued, id_key
from bridge.core.jsonrpc import (
    SUBSCRIPTION_ID,
    Call,
    Id,
    Members,
    Message,
    Refusal,
    encoder,
    error_line,
    notification_line,
    result_line,
)
from bridge.core.lines import ClientLines
from bridge.core.outbox import Control, Key, Output
from bridge.core.router import LINE_ROOM
from bridge.core.stats import Stats
from bridge.core.subscriptions import LISTEN
from bridge.core.tables import LEFT, Attention, Limits, Notice, NoticeKind, Tables

CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"

MAX_QUESTIONS: Final = 4096
"""Requests of one server that its client has not answered; a client may never answer any."""

STOPPING: Final[Members] = {"reason": Raw(b'"the bridge is stopping"')}
LATE: Final[Members] = {"reason": Raw(b'"request timeout"')}


class Asked(Struct, gc=False):
    """One request of a client that was written to its child."""

    id: Id
    method: str
    sent_at: float


class Pair:
    """One client, and the child that is its own."""

    __slots__ = ("asked", "child", "client", "count", "probed", "questions", "queue", "wanted")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.child: Child | None = None
        self.asked: dict[tuple[type, object], list[Asked]] = {}
        """Requests on the way, by id: a client may use one twice."""
        self.count = 0
        """How many of them take a place in the window."""
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


class Isolated(ClientLines):
    """Joins each client with a child of its own.

    Args:
        limits: every bound, as for a `Router`.
        salt: see `Codec`.

    Notices ask for what a shell is to do: NEED_CHILD (`key` is the client's) and RETIRE_CHILD
    (`key` is the child's).
    """

    __slots__ = ("_children", "_pairs")

    def __init__(self, limits: Limits, *, salt: bytes) -> None:
        super().__init__(Tables(limits, salt=salt, version=""))
        self._pairs: dict[Key, Pair] = {}
        self._children: dict[Key, Pair] = {}

    # -- what the shells may ask ---------------------------------------------------

    @property
    def stats(self) -> Stats:
        """The counters."""
        return self._tables.stats

    @property
    def attention(self) -> Attention:
        """As the router's."""
        return self._tables.attention

    @property
    def in_flight(self) -> int:
        """Requests at the servers, open subscriptions not counted."""
        return sum(pair.count for pair in self._pairs.values())

    def take_notices(self) -> list[Notice]:
        """As the router's."""
        notices, self._tables.notices = self._tables.notices, []
        return notices

    def buffered(self, key: Key) -> int:
        """Bytes the core holds for one client. 0 if it is not open."""
        pair = self._pairs.get(key)
        if pair is None:
            return 0
        child = 0 if pair.child is None else pair.child.framer.buffered
        return pair.client.framer.buffered + pair.queue.bytes + child

    def table_sizes(self) -> dict[str, int]:
        """How many entries each table has. All zero once every client is gone."""
        pairs = self._pairs.values()
        return {
            "clients": len(self._pairs),
            "children": len(self._children),
            "in_flight": sum(len(asked) for pair in pairs for asked in pair.asked.values()),
            "questions": sum(len(pair.questions) for pair in pairs),
            "queued": sum(len(pair.queue) for pair in pairs),
        }

    # -- clients -------------------------------------------------------------------

    def client_opened(self, key: Key, *, strict: bool = False) -> None:
        """A client has connected; see `Router.client_opened`. Its child is asked for at its first request."""
        tables = self._tables
        tables.stats.clients_opened += 1
        client = Client(key, strict=strict, max_line=tables.limits.max_request + LINE_ROOM)
        self._pairs[key] = Pair(client)

    def client_data(self, key: Key, data: bytes, now: float) -> list[Output]:
        """A client has written bytes, cut anywhere. After its close they are ignored."""
        pair = self._pairs.get(key)
        if pair is None:
            return []
        self._tables.now = now
        self.data(pair.client, data)
        return self._tables.outbox.flush()

    def client_eof(self, key: Key, now: float) -> list[Output]:
        """A client has stopped sending: what it sent is answered, its subscriptions end, then it is closed.

        Nor can it answer: the child's requests are answered with an error. May be closed already.
        """
        tables = self._tables
        pair = self._pairs.get(key)
        if pair is None or pair.client.eof_at is not None:
            return []
        tables.now = now
        tables.attention.due = True
        self.finish(pair.client)
        pair.client.eof_at = now
        self._refuse_questions(pair)
        for item in pair.queue.take_listens():
            self._complete(pair, item.id)  # type: ignore[arg-type]  # a request has an id
        self._end_listens(pair)
        self._settle(pair)
        return tables.outbox.flush()

    def client_closed(self, key: Key, now: float) -> list[Output]:
        """A client is gone, and its child goes with it. May be closed already."""
        pair = self._pairs.get(key)
        if pair is None:
            return []
        self._tables.now = now
        pair.client.closing = True
        self._leave(pair, LEFT)
        return self._tables.outbox.flush()

    def cut(self, client: Client, why: bytes) -> None:
        """See `ClientLines`."""
        tables = self._tables
        tables.stats.clients_cut += 1
        tables.note(NoticeKind.CLIENT_CUT, client.key, why)
        self._leave(self._pairs[client.key], LEFT)
        tables.outbox.close(client)

    def _leave(self, pair: Pair, why: Members) -> None:
        """Forget a client: cancel what it has at its child, answer what that has asked, have it stopped."""
        tables = self._tables
        del self._pairs[pair.client.key]
        pair.queue.clear()
        child = pair.child
        if child is None:
            return
        for asked in [one for several in pair.asked.values() for one in several]:
            if asked.method != INITIALIZE:
                self._cancel(child, asked.id, why)
        self._refuse_questions(pair)
        tables.note(NoticeKind.RETIRE_CHILD, child.key)

    # -- messages of clients ---------------------------------------------------------

    def messages(self, client: Client, messages: Sequence[Call], measured: bool = False) -> None:
        """See `ClientLines`."""
        pair = self._pairs[client.key]
        client.bad_lines = 0
        for message in messages:
            id, method = message.id, message.method
            answers = isinstance(message, Message) and (
                message.result is not UNSET or message.error is not UNSET
            )
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

    def _is_too_large(self, message: Call) -> bool:
        limit = self._tables.limits.max_request
        return len(self._tables.codec_down.render(message)) > limit

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
        listen = method == LISTEN
        room = listen or pair.count < tables.limits.max_in_flight
        if child is not None and not child.blocked and not pair.queue and room:
            self._send(pair, child, message, id, method)
            return
        item = Queued(tables.codec_down.render(message), id, tables.now, method, listen, method == INITIALIZE)
        if not self._push(pair, item):
            text = "too many requests of this client wait: send it again when some are answered"
            tables.refuse(client, id, jsonrpc.OVERLOADED, text, "overloaded")
        elif child is None and not pair.wanted:
            pair.wanted = True
            tables.note(NoticeKind.NEED_CHILD, client.key)

    def _push(self, pair: Pair, item: Queued) -> bool:
        limits = self._tables.limits
        queue = pair.queue
        if len(queue) >= limits.max_queued or queue.bytes + len(item.line) > limits.max_queued_bytes:
            return False
        queue.push(item)
        self._tables.attention.due = True
        blocked = pair.child is not None and pair.child.blocked
        long = queue.bytes > limits.paused_bytes or len(queue) > limits.paused_lines
        if blocked and long and not queue.paused:
            queue.paused = True
            self._tables.outbox.control(pair.client, Control.PAUSE)
        return True

    def _send(self, pair: Pair, child: Child, message: Call, id: Id, method: str) -> None:
        tables = self._tables
        pair.asked.setdefault(id_key(id), []).append(Asked(id, method, tables.now))
        if method != LISTEN:
            pair.count += 1
        if method != DISCOVER:
            pair.probed = False
        tables.stats.requests += 1
        if tables.limits.request_timeout is not None:
            tables.attention.due = True
        tables.outbox.put(child, message)

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

    def _take(self, pair: Pair, key: tuple[type, object], asked: Asked | None = None) -> Asked:
        """A request has ended: the oldest with this id, or the one that is named."""
        several = pair.asked[key]
        one = several[0] if asked is None else asked
        several.remove(one)
        if not several:
            del pair.asked[key]
        if one.method != LISTEN:
            pair.count -= 1
        return one

    def _feed(self, pair: Pair, room: int | None = None) -> bool:
        """Move what waits to the child, as far as it may; return whether more could be moved."""
        tables = self._tables
        queue, child = pair.queue, pair.child
        moved = 0
        while queue and child is not None and not child.blocked:
            if room is not None and moved >= room:
                return True
            item = queue.head()
            if item.id is not None and not item.listen and pair.count >= tables.limits.max_in_flight:
                break
            queue.pop()
            moved += len(item.line)
            message = tables.codec_down.decode_line(item.line)
            assert isinstance(message, Message)
            if item.id is None:
                pair.probed = False
                tables.stats.notifications_up += 1
                tables.outbox.put(child, message)
            else:
                self._send(pair, child, message, item.id, item.method)
        if queue.paused and not queue:
            queue.paused = False
            tables.outbox.control(pair.client, Control.RESUME)
        self._settle(pair)
        return False

    def _settle(self, pair: Pair) -> None:
        """Close a client that has stopped sending once nothing is owed to it."""
        if pair.client.eof_at is not None and pair.idle:
            self._tables.outbox.close(pair.client)

    # -- children --------------------------------------------------------------------

    def server_opened(self, key: Key, client: Key, now: float) -> list[Output]:
        """A child runs for a client. One whose client is gone is to be stopped at once."""
        tables = self._tables
        tables.now = now
        tables.attention.due = True
        pair = self._pairs.get(client)
        if pair is None:
            tables.note(NoticeKind.RETIRE_CHILD, key)
            return []
        tables.stats.children_opened += 1
        handshake = Handshake(version="")
        pair.child = Child(key, 0, handshake, max_line=tables.limits.max_message, now=now)
        pair.wanted = False
        pair.probed = True
        self._children[key] = pair
        self._feed(pair)
        return tables.outbox.flush()

    def server_failed(self, client: Key, now: float, *, full: bool = False) -> list[Output]:
        """There is no child for a client: what waits is refused, and the next request asks again.

        Args:
            full: since there are too many children already.
        """
        self._tables.now = now
        pair = self._pairs.get(client)
        if pair is not None:
            pair.wanted = False
            if full:
                text = "too many clients have a server process of their own: try again later"
                self._refuse_queued(pair, jsonrpc.OVERLOADED, text, "too_many_children")
            else:
                text = "the server process could not be started"
                self._refuse_queued(pair, jsonrpc.SERVER_UNAVAILABLE, text, "server_unavailable")
        return self._tables.outbox.flush()

    def server_data(self, key: Key, data: bytes, now: float) -> list[Output]:
        """A child has written bytes to its stdout, cut anywhere. May be closed already."""
        pair = self._children.get(key)
        if pair is None:
            return []
        self._tables.now = now
        child = pair.child
        assert child is not None
        for segment in child.framer.feed(data):
            self._segment(pair, child, segment)
        return self._tables.outbox.flush()

    def server_blocked(self, key: Key) -> None:
        """A child's stdin holds more than it should. May be closed already."""
        pair = self._children.get(key)
        if pair is not None:
            assert pair.child is not None
            pair.child.blocked = True

    def server_writable(self, key: Key, room: int, now: float) -> tuple[list[Output], bool]:
        """A child's stdin takes more: see `Router.server_writable`. May be closed already."""
        pair = self._children.get(key)
        if pair is None:
            return [], False
        self._tables.now = now
        assert pair.child is not None
        pair.child.blocked = False
        if pair.queue.paused:
            pair.queue.paused = False
            self._tables.outbox.control(pair.client, Control.RESUME)
        more = self._feed(pair, room)
        return self._tables.outbox.flush(), more

    def server_closed(self, key: Key, now: float, *, exited: bool = True) -> list[Output]:
        """A child is gone: its client's requests are answered, then its connection is closed.

        One that exits on the first `server/discover` is a strict legacy server: its client is told so, and
        the next request has another child. May be closed already.
        """
        tables = self._tables
        pair = self._children.pop(key, None)
        if pair is None:
            return []
        tables.now = now
        tables.attention.due = True
        tables.stats.children_closed += 1
        child = pair.child
        assert child is not None
        child.closing = True
        for segment in child.framer.finish():
            if type(segment) is not OverlongEnd and not self._is_cut_off(segment):
                self._segment(pair, child, segment)
        pair.child = None
        pair.questions.clear()
        if pair.client.key not in self._pairs:
            return tables.outbox.flush()
        if exited and pair.probed and pair.asked:
            self._not_modern(pair)
        else:
            self._gone(pair)
        return tables.outbox.flush()

    def _not_modern(self, pair: Pair) -> None:
        """Its child has exited on the probe; the client goes on to `initialize` by itself."""
        for asked in self._take_all(pair):
            self._tables.refuse(
                pair.client,
                asked.id,
                jsonrpc.METHOD_NOT_FOUND,
                "the server exited when it was asked for the modern era of MCP: use `initialize`",
                "era_not_served",
                delivered=True,
                supported=[*LEGACY_VERSIONS],
            )
        if pair.queue:
            pair.wanted = True
            self._tables.note(NoticeKind.NEED_CHILD, pair.client.key)
        self._settle(pair)

    def _gone(self, pair: Pair) -> None:
        tables = self._tables
        client = pair.client
        for asked in self._take_all(pair):
            text = "the server exited before it answered; it may have carried the request out"
            tables.refuse(client, asked.id, jsonrpc.SERVER_EXITED, text, "server_exited", delivered=True)
        text = "the server exited before it was sent this request"
        self._refuse_queued(pair, jsonrpc.SERVER_EXITED, text, "server_exited")
        del self._pairs[client.key]
        tables.outbox.close(client)

    def _take_all(self, pair: Pair) -> list[Asked]:
        taken = [one for several in pair.asked.values() for one in several]
        pair.asked.clear()
        pair.count = 0
        return taken

    def _refuse_queued(self, pair: Pair, code: int, text: str, reason: str) -> None:
        for item in pair.queue.clear():
            if item.id is not None:
                self._tables.refuse(pair.client, item.id, code, text, reason)
        if pair.queue.paused:
            pair.queue.paused = False
            self._tables.outbox.control(pair.client, Control.RESUME)
        self._settle(pair)

    # -- lines of children -------------------------------------------------------------

    def _is_cut_off(self, segment: Any) -> bool:
        """Whether what a child wrote last is no whole message."""
        return type(self._tables.codec_up.decode_line(segment[:-1])) is Refusal

    def _segment(self, pair: Pair, child: Child, segment: Any) -> None:
        if type(segment) is OverlongStart:
            child.overlong_head = segment.head
            if self._damaged(pair, child, segment.head, b"", too_long=True):
                child.overlong_head = b""
            return
        if type(segment) is OverlongEnd:
            head, child.overlong_head = child.overlong_head, b""
            if head:
                self._damaged(pair, child, head, segment.tail, too_long=True)
            return
        codec = self._tables.codec_up
        messages = codec.decode_block(segment)
        if messages is not None:
            for message in messages:
                self._said(pair, child, message)
            return
        for line in bytes(segment).split(b"\n")[:-1]:
            decoded = codec.decode_line(line)
            if type(decoded) is Refusal:
                self._damaged(pair, child, line[:HEAD_KEPT], line[-HEAD_KEPT:], too_long=False)
            elif decoded is not None:
                self._said(pair, child, decoded)  # type: ignore[arg-type]  # a Message

    def _damaged(self, pair: Pair, child: Child, head: Block, tail: bytes, *, too_long: bool) -> bool:
        """A line that is no message: whoever waits for it is told, if that is certain. Whether it was."""
        tables = self._tables
        found = self._trusted(pair, bytes(head).removeprefix(b"\xef\xbb\xbf"), tail)
        if found is None and too_long and not tail:
            return False  # its end may tell
        tables.stats.noise += 1
        tables.note(NoticeKind.NOISE, child.key, bytes(head[:512]))
        if found is not None:
            asked = self._take(pair, found)
            tables.stats.invalid_responses += 1
            if too_long:
                text = f"the server's response is longer than {tables.limits.max_message} bytes"
                tables.refuse(
                    pair.client, asked.id, jsonrpc.TOO_LARGE, text, "message_too_large", delivered=True
                )
            else:
                self._broken(pair, asked.id)
            self._feed(pair)
        return found is not None

    def _broken(self, pair: Pair, id: Id) -> None:
        text = "the server's response was not valid JSON-RPC"
        self._tables.refuse(
            pair.client, id, jsonrpc.INVALID_RESPONSE, text, "invalid_response", delivered=True
        )

    @staticmethod
    def _trusted(pair: Pair, head: bytes, tail: bytes) -> tuple[type, object] | None:
        """The request that a damaged line answers: as `jsonrpc.trusted_id`, for any id on the way."""
        for key, several in pair.asked.items():
            id = encoder.encode(several[0].id)
            front = head.startswith(
                (
                    b'{"jsonrpc":"2.0","id":%b,"result":' % id,
                    b'{"jsonrpc":"2.0","id":%b,"error":' % id,
                )
            )
            back = tail.rstrip().endswith(
                (b',"jsonrpc":"2.0","id":%b}' % id, b',"id":%b,"jsonrpc":"2.0"}' % id)
            )
            if front or (back and head.startswith((b'{"result":', b'{"error":'))):
                return key
        return None

    def _said(self, pair: Pair, child: Child, message: Message) -> None:
        """A valid message of a child."""
        tables = self._tables
        client = pair.client
        method, id = message.method, message.id
        if method is UNSET:
            self._response(pair, message)
        elif id is not UNSET:
            if client.eof_at is not None or client.closing or child.closing:
                self._refuse_question(pair, id, jsonrpc.INTERNAL_ERROR, "the client does not answer any more")
            elif len(pair.questions) >= MAX_QUESTIONS:
                self._refuse_question(pair, id, jsonrpc.OVERLOADED, "too many requests are not answered")
            else:
                pair.questions[id_key(id)] = id
                tables.outbox.put(client, message)
        else:
            params = message.params
            if method == CANCELLED and type(params) is dict and "requestId" in params:
                named = tables.codec_up.read_id(params["requestId"])
                if named is not None:
                    pair.questions.pop(id_key(named), None)
            tables.stats.notifications_down += 1
            tables.outbox.put(client, message)

    def _response(self, pair: Pair, message: Message) -> None:
        tables = self._tables
        id = message.id
        if id is UNSET or id_key(id) not in pair.asked:
            if message.result is UNSET and message.error is UNSET:
                tables.stats.noise += 1
            else:
                tables.stats.dropped_responses += 1
            return
        pair.probed = False
        self._take(pair, id_key(id))
        if (message.result is UNSET) is (message.error is UNSET):
            tables.stats.invalid_responses += 1
            self._broken(pair, id)
        else:
            tables.stats.responses += 1
            tables.outbox.put(pair.client, message)
        self._feed(pair)

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

    # -- time and the end ----------------------------------------------------------------

    @property
    def needs_tick(self) -> bool:
        """Whether `tick` has anything to watch."""
        timed = self._tables.limits.request_timeout is not None
        return any(
            pair.client.eof_at is not None
            or (pair.child is None and bool(pair.queue))
            or (timed and bool(pair.count))
            for pair in self._pairs.values()
        )

    def tick(self, now: float) -> list[Output]:
        """Carry out what is due. To be called several times a second while `needs_tick`."""
        tables = self._tables
        limits = tables.limits
        tables.now = now
        for pair in list(self._pairs.values()):
            eof_at = pair.client.eof_at
            if eof_at is not None and now - eof_at >= limits.linger:
                self.cut(pair.client, b"it stopped sending, and its answers did not come in time")
                continue
            if (
                pair.child is None
                and pair.queue
                and pair.queue.head().arrived_at <= now - limits.restart_wait
            ):
                text = "the server is not running, and did not start in time"
                self._refuse_queued(pair, jsonrpc.SERVER_UNAVAILABLE, text, "server_unavailable")
            if limits.request_timeout is not None and pair.child is not None:
                self._time_out(pair, pair.child, limits.request_timeout)
        return tables.outbox.flush()

    def _time_out(self, pair: Pair, child: Child, timeout: float) -> None:
        tables = self._tables
        for key, several in list(pair.asked.items()):
            for asked in list(several):
                if asked.method != LISTEN and tables.now - asked.sent_at >= timeout:
                    self._take(pair, key, asked)
                    self._cancel(child, asked.id, LATE)
                    text = f"the server did not answer within {timeout:g} s"
                    tables.refuse(
                        pair.client, asked.id, jsonrpc.TIMED_OUT, text, "request_timeout", delivered=True
                    )
        self._feed(pair)

    def drain(self, now: float) -> list[Output]:
        """The bridge is to stop: what waits, and what still comes, is refused; subscriptions end."""
        tables = self._tables
        tables.now = now
        tables.stopping = True
        for pair in list(self._pairs.values()):
            self._refuse_queued(pair, jsonrpc.SHUTTING_DOWN, "the bridge is shutting down", "shutting_down")
            self._end_listens(pair)
            self._settle(pair)
        return tables.outbox.flush()

    def stop(self, now: float) -> list[Output]:
        """The time is up: what is at the servers is given up, and every client is closed."""
        tables = self._tables
        outputs = self.drain(now)
        for pair in list(self._pairs.values()):
            for asked in [one for several in pair.asked.values() for one in several]:
                text = "the bridge is shutting down; the server may have carried the request out"
                tables.refuse(
                    pair.client, asked.id, jsonrpc.SHUTTING_DOWN, text, "shutting_down", delivered=True
                )
            self._leave(pair, STOPPING)
            tables.outbox.close(pair.client)
        return outputs + tables.outbox.flush()
