"""Clients with a server process each: everything goes through, both ways.

Owns the pairs of a client and its child. Ids, tokens and whatever else names something
stay as they are, since nobody else shares the child. Still every request has one outcome,
requests wait where the child does not read, and a client's answers never wait behind them.

Has the same kind of interface as `router.py`: bytes and events in, what is to be written out.

Spec: 2025-11-25 basic/lifecycle, client features; 2026-07-28 basic.
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from bridge.core import jsonrpc
from bridge.core.era import INITIALIZE, Handshake
from bridge.core.framing import OverlongEnd
from bridge.core.holdings import QUEUED_ROOM
from bridge.core.inflight import Child, Client
from bridge.core.jsonrpc import (
    Members,
)
from bridge.core.outbox import Key, Output
from bridge.core.pair import NEVER, Pair
from bridge.core.pair_clients import FromClients
from bridge.core.pair_servers import FromServers
from bridge.core.router import LINE_ROOM
from bridge.core.seats import REMEMBERED_S
from bridge.core.stats import Stats
from bridge.core.subscriptions import LISTEN
from bridge.core.tables import LEFT, Attention, Limits, Notice, NoticeKind, Tables

STOPPING: Final[Members] = {"reason": Raw(b'"the bridge is stopping"')}
LATE: Final[Members] = {"reason": Raw(b'"request timeout"')}


class Isolated(FromClients, FromServers):
    """Joins each client with a child of its own.

    Args:
        limits: every bound, as for a `Router`.
        salt: see `Codec`.

    Notices ask for what a shell is to do: NEED_CHILD (`key` is the client's, `detail` the method of its first
    request) and RETIRE_CHILD (`key` is the child's). CHILD_FAILED (the same) says that a start was in vain.
    """

    __slots__ = ("_children",)

    def __init__(self, limits: Limits, *, salt: bytes) -> None:
        super().__init__(Tables(limits, salt=salt, version=""))
        self._children: dict[Key, Pair] = {}

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

    def still_needed(self, client: Key) -> bool:
        """Whether a client that waits for a child still needs one; if not, its next request asks again."""
        pair = self._pairs.get(client)
        if pair is None:
            return False
        pair.wanted = bool(pair.queue)
        return pair.wanted

    def spoke(self, key: Key) -> bool:
        """Whether a child has written a valid message. False if it is not open."""
        pair = self._children.get(key)
        return pair is not None and pair.child is not None and pair.child.spoke

    def forget_eras(self) -> None:
        """The server is to be another one from now on."""
        self._not_probed_until = NEVER

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
        queued = pair.queue.bytes + len(pair.queue) * QUEUED_ROOM
        return pair.client.unread + queued + child

    def table_sizes(self) -> dict[str, int]:
        """How many entries each table has. All zero once every client is gone."""
        pairs = self._pairs.values()
        return {
            "clients": len(self._pairs),
            "children": len(self._children),
            "in_flight": sum(len(asked) for pair in pairs for asked in pair.asked.values()),
            "holders": self._tables.holders,
            "questions": sum(len(pair.questions) for pair in pairs),
            "queued": sum(len(pair.queue) for pair in pairs),
        }

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

    def client_turn(self, key: Key, now: float) -> list[Output]:
        """Go on with what a client wrote: see `Control.TURN`. May be closed already."""
        pair = self._pairs.get(key)
        if pair is None:
            return []
        self._tables.now = now
        self.turn(pair.client)
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
        if pair.client.closing:  # it was cut for what it wrote last
            return tables.outbox.flush()
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
        pair.queue.paused = False  # nobody is there to read on
        child = pair.child
        if child is None:
            return
        for asked in self._take_all(pair):
            if asked.method != INITIALIZE:
                self._cancel(child, asked.id, why)
        self._refuse_questions(pair)
        tables.note(NoticeKind.RETIRE_CHILD, child.key)

    def server_opened(self, key: Key, client: Key, now: float) -> list[Output]:
        """A child runs for a client. One whose client is gone, or has one already, is to be stopped at once.

        (Who has waited in vain for a start, and has asked again, may be given both.)
        """
        tables = self._tables
        tables.now = now
        tables.attention.due = True
        pair = self._pairs.get(client)
        if pair is None or pair.child is not None:
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
        more = self._feed(pair, room)
        if pair.queue.paused and not more:
            # Before that it is about to be blocked again, and the client would be read once more every time.
            self._resume(pair)
        return self._tables.outbox.flush(), more

    def server_closed(self, key: Key, now: float, *, exited: bool = True) -> list[Output]:
        """A child is gone: its client's requests are answered, then its connection is closed.

        One that exits on the first `server/discover` is a strict legacy server: its client is told so, and
        the next request has another child. For a while other clients are told without one. May be closed
        already.
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
        child.blocked = True  # whatever its last words set free is not written to it any more
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
            self._gone(pair, child)
        return tables.outbox.flush()

    def _not_modern(self, pair: Pair) -> None:
        """Its child has exited on the probe; the client goes on to `initialize` by itself."""
        self._not_probed_until = self._tables.now + REMEMBERED_S
        for asked in self._take_all(pair):
            self._refuse_probe(pair, asked.id, delivered=True)
        if pair.queue:
            self._want(pair)
        self._settle(pair)

    def _gone(self, pair: Pair, child: Child) -> None:
        tables = self._tables
        client = pair.client
        if not child.spoke:
            tables.note(NoticeKind.CHILD_FAILED, child.key)
        for asked in self._take_all(pair):
            text = "the server exited before it answered; it may have carried the request out"
            tables.refuse(client, asked.id, jsonrpc.SERVER_EXITED, text, "server_exited", delivered=True)
        text = "the server exited before it was sent this request"
        self._refuse_queued(pair, jsonrpc.SERVER_EXITED, text, "server_exited")
        del self._pairs[client.key]
        tables.outbox.close(client)

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
                pair.wanted = False
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
