"""The core's one entrance: a method for each thing that can happen.

Bytes and events in, `(destination, bytes)` out, in the order to write. The router
never waits, reads a clock, draws a random number or logs: same calls in, same bytes
out. `downstream.py` and `upstream.py` hold the decisions, `tables.py` the state.
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from bridge.core import jsonrpc
from bridge.core.downstream import Downstream
from bridge.core.era import Era, Handshake
from bridge.core.holdings import held_for, held_of_servers
from bridge.core.inflight import Child, Client, Kind
from bridge.core.legacy import LegacySessions
from bridge.core.outbox import Key, Output
from bridge.core.seats import Seats
from bridge.core.stats import Stats
from bridge.core.subscriptions import Subscriptions
from bridge.core.tables import Attention, Limits, Notice, Tables
from bridge.core.upstream import Upstream
from bridge.core.waiting import Waiting

LINE_ROOM: Final = 1024
"""What a client's line may be longer than the limit as it comes, in bytes: white space goes."""


class Router:
    """Multiplexes many clients onto one server.

    Args:
        limits: every bound.
        salt: bytes no peer can guess; see `Codec`.
        version: the bridge's own version, told to servers.

    Every method takes `now`, monotonic seconds, where time matters, and returns what
    is to be written. A key that is not open is a bug in the caller and raises KeyError,
    except where a method says that it may be closed already.
    """

    __slots__ = (
        "_clients",
        "_downstream",
        "_legacy",
        "_seats",
        "_subscriptions",
        "_tables",
        "_upstream",
        "_waiting",
    )

    def __init__(self, limits: Limits, *, salt: bytes, version: str = "0") -> None:
        self._tables = tables = Tables(limits, salt=salt, version=version)
        self._clients = tables.clients
        self._subscriptions = Subscriptions(tables)
        self._waiting = Waiting(tables)
        self._legacy = legacy = LegacySessions(tables)
        self._seats = Seats(tables, self._subscriptions, self._waiting, legacy)
        self._downstream = Downstream(tables, self._subscriptions, self._waiting, self._seats, legacy)
        self._upstream = Upstream(tables, self._subscriptions, self._downstream, self._seats, legacy)

    # -- what the shells may ask -------------------------------------------------

    @property
    def stats(self) -> Stats:
        """The counters."""
        return self._tables.stats

    def needed(self, seat: int = 0) -> bool:
        """Whether anybody waits for the server process of a seat: a request, a listen, a subscription."""
        found = self._tables.seat(seat)
        return found is not None and self._seats.seat_wanted(found)

    def replaced(self, seat: int = 0) -> bool:
        """Whether the bridge itself is the reason why the last process of a seat ended: no failure."""
        found = self._tables.seat(seat)
        return found is None or found.replaced

    @property
    def seats(self) -> tuple[int, int]:
        """The numbers of the seats whose processes serve, or are to serve; the first process's first."""
        first, second = self._tables.seats
        return first.number, second.number

    def is_first(self, seat: int) -> bool:
        """Whether a seat's process may be asked for either era."""
        found = self._tables.seat(seat)
        return found is not None and found.first

    def is_new(self, seat: int) -> bool:
        """Whether a seat's process is to replace another, and may do so only once."""
        found = self._tables.seat(seat)
        return found is not None and self._seats.swaps.is_new(found)

    @property
    def replacing(self) -> bool:
        """Whether new processes are being made ready to replace those that serve."""
        return self._seats.swaps.current is not None

    @property
    def in_flight(self) -> int:
        """Requests at the servers, the bridge's own and open subscriptions not counted."""
        return sum(len(client.inflight) for client in self._tables.clients.values())

    @property
    def ready(self) -> bool:
        """Whether there is a server that is sent requests."""
        return bool(self._tables.served)

    def spoke(self, key: Key) -> bool:
        """Whether a child has written a valid message. False if it is not open."""
        child = self._tables.children.get(key)
        return child is not None and child.spoke

    def buffered(self, key: Key) -> int:
        """Bytes the core holds for one client: its queues, its unfinished line, what opens its listens.

        0 if it is not open.
        """
        client = self._tables.clients.get(key)
        return 0 if client is None else held_for(self._tables, client)

    @property
    def buffered_all(self) -> int:
        """Bytes the core holds for all clients and children together."""
        return self.buffered_of_servers + sum(self.buffered(key) for key in self._tables.clients)

    @property
    def buffered_of_servers(self) -> int:
        """Bytes the core holds of children's unfinished lines."""
        return held_of_servers(self._tables)

    def table_sizes(self) -> dict[str, int]:
        """How many entries each table has. All zero once every client is gone."""
        tables = self._tables
        children = tables.children.values()
        entries = [entry for child in children for entry in child.inflight.values()]
        return {
            "clients": len(tables.clients),
            "waiting": sum(len(queues) for queues in tables.waiting.values()),
            "queued_bytes": tables.queued_bytes,
            "lingering": len(tables.lingering),
            "sessions": len(tables.sessions),
            "initialized": len(tables.initialized),
            "holders": tables.holders,
            "resource_holders": self._legacy.resources.holders,
            "tasks": self._legacy.tasks.count,
            "shares": len(self._subscriptions),
            "in_flight": sum(entry.kind in (Kind.REQUEST, Kind.LISTEN) for entry in entries),
            "child_shares": sum(len(child.shares) for child in children),
        }

    def take_notices(self) -> list[Notice]:
        """What an operator may want to know since the last call. Must be called after each method."""
        notices, self._tables.notices = self._tables.notices, []
        return notices

    @property
    def has_notices(self) -> bool:
        """Whether `take_notices` would return anything."""
        return bool(self._tables.notices)

    @property
    def attention(self) -> Attention:
        """To be looked at after each call: only if it is due there can be notices, or need of a tick."""
        return self._tables.attention

    # -- clients -----------------------------------------------------------------

    def client_opened(self, key: Key, *, strict: bool = False) -> None:
        """A client has connected.

        Args:
            key: new; it names the connection from now on.
            strict: the connection came by TCP, where anybody's browser can write.
        """
        tables = self._tables
        tables.stats.clients_opened += 1
        tables.clients[key] = Client(key, strict=strict, max_line=tables.limits.max_request + LINE_ROOM)

    def client_data(self, key: Key, data: bytes, now: float) -> list[Output]:
        """A client has written bytes, cut anywhere. After its close they are ignored."""
        self.collect(key, data, now)
        return self._tables.outbox.flush()

    def collect(self, key: Key, data: bytes, now: float) -> None:
        """Do as `client_data` does, but keep what is to be written for the next call, or for `flush`.

        What several clients wrote at the same time is then written to the server at once.
        """
        client = self._clients.get(key)
        if client is not None:
            self._tables.now = now
            self._downstream.data(client, data)

    def flush(self) -> list[Output]:
        """What `collect` has kept."""
        return self._tables.outbox.flush()

    def client_turn(self, key: Key, now: float) -> list[Output]:
        """Go on with what a client wrote: see `Control.TURN`. May be closed already."""
        tables = self._tables
        client = tables.clients.get(key)
        if client is None:
            return []
        tables.now = now
        self._downstream.turn(client)
        return tables.outbox.flush()

    def client_eof(self, key: Key, now: float) -> list[Output]:
        """A client has stopped sending but still reads.

        What it sent is answered, its subscriptions end, then it is closed. May be closed already.
        """
        tables = self._tables
        client = tables.clients.get(key)
        if client is None or client.eof_at is not None:
            return []
        tables.now = now
        tables.attention.due = True
        self._downstream.finish(client)
        if client.closing:  # it was cut for what it wrote last
            return tables.outbox.flush()
        client.eof_at = now
        tables.lingering[key] = client
        self._downstream.end_listens(client)
        return tables.outbox.flush()

    def client_closed(self, key: Key, now: float) -> list[Output]:
        """A client is gone: one cancellation for each of its requests at the server.

        May be closed already.
        """
        tables = self._tables
        client = tables.clients.get(key)
        if client is None:
            return []
        tables.now = now
        client.closing = True
        self._downstream.leave(client)
        self._downstream.feed_freed()
        return tables.outbox.flush()

    # -- the server --------------------------------------------------------------

    def server_opened(self, key: Key, now: float, seat: int = 0) -> list[Output]:
        """A child has been started in a seat. The one before must be closed.

        Args:
            key: new; it names the child from now on.
            seat: which process it is: 0, or 1 for the further era's; see `Notice.seat`.
        """
        tables = self._tables
        tables.now = now
        tables.attention.due = True
        tables.stats.children_opened += 1
        handshake = Handshake(version=tables.version, decided=tables.limits.era)
        child = Child(key, seat, handshake, max_line=tables.limits.max_message, now=now)
        tables.children[key] = child
        found = tables.seat(seat)
        if found is not None:
            self._seats.opened(found, child)
        return tables.outbox.flush()

    def server_data(self, key: Key, data: bytes, now: float) -> list[Output]:
        """A child has written bytes to its stdout, cut anywhere. May be closed already."""
        tables = self._tables
        child = tables.children.get(key)
        if child is None:
            return []
        tables.now = now
        self._upstream.data(child, data)
        return tables.outbox.flush()

    def server_blocked(self, key: Key) -> None:
        """A child's stdin holds more than it should. May be closed already."""
        child = self._tables.children.get(key)
        if child is not None:
            child.blocked = True

    def server_writable(self, key: Key, room: int, now: float) -> tuple[list[Output], bool]:
        """A child's stdin takes more: move what waits, each client in its turn. May be closed already.

        Args:
            room: how many bytes, more or less.

        Returns:
            What to write, and whether there is more that could be moved.
        """
        tables = self._tables
        child = tables.children.get(key)
        if child is None:
            return [], False
        tables.now = now
        child.blocked = False
        era = child.handshake.era
        if era is Era.LEGACY:
            self._legacy.writable()
        more = self._downstream.pump(child, room)
        if era is not None and not more:
            # Before that it is about to be blocked again, and each client would be read once more every time.
            self._waiting.resume(era)
        self._downstream.feed_freed()
        return tables.outbox.flush(), more

    def server_closed(self, key: Key, now: float, *, exited: bool = True, unread: int = 0) -> list[Output]:
        """A child is gone, and all it wrote has been given to `server_data`.

        Every request that was written to it gets its error now; those that wait go to
        the next child, and subscriptions are opened there again. May be closed already.

        Args:
            exited: by itself, with whatever status; False: it was killed by a signal.
            unread: bytes that were written to it and that it had not read.
        """
        tables = self._tables
        child = tables.children.get(key)
        if child is None:
            return []
        tables.now = now
        tables.attention.due = True
        # First of all nothing is written to it any more, whatever its last words set free.
        del tables.children[key]
        child.closing = True
        era = child.handshake.era
        seat = tables.seat(child.seat)
        if era is not None and tables.served.get(era) is child:
            del tables.served[era]
        self._upstream.finish(child)
        tables.stats.children_closed += 1
        kept = self._put_back(child)
        for upstream_id, entry in list(child.inflight.items()):
            id = None if entry.client is None else entry.client.inflight.pop(upstream_id, None)
            if entry.client is not None and id is not None:
                tables.refuse(
                    entry.client,
                    id,
                    jsonrpc.SERVER_EXITED,
                    "the server exited before it answered; it may have carried the request out",
                    "server_exited",
                    delivered=True,
                )
                tables.settle(entry.client)
        child.inflight.clear()
        self._subscriptions.child_closed(child)
        self._legacy.closed(child, exited=True)
        if era is not None:
            self._waiting.resume(era)
        if seat is not None:
            self._seats.closed(seat, child, exited=exited, unread=unread)
        for client in kept:
            self._downstream.feed(client)  # another process may be there already
        if kept and era is not None and era not in tables.served and self._seats.wanted(era):
            self._seats.need(era)
        self._downstream.feed_freed()
        return tables.outbox.flush()

    def _put_back(self, child: Child) -> list[Client]:
        """Have what may be sent again wait in its old order; return whose it is."""
        tables = self._tables
        era = child.handshake.era
        clients: dict[Key, Client] = {}
        if not tables.limits.replay_safe or era is None or tables.stopping or self._seats.refusal(era):
            return []
        for upstream_id, entry in reversed(list(child.inflight.items())):
            client, again = entry.client, entry.again
            if client is not None and again is not None and self._waiting.put_back(client, era, again):
                client.inflight.pop(upstream_id, None)
                del child.inflight[upstream_id]
                tables.stats.replayed += 1
                clients[client.key] = client
        return [*clients.values()]

    def server_exhausted(self, seat: int, now: float) -> list[Output]:
        """The process of a seat cannot be kept alive, and the bridge goes on without it for a while."""
        self._tables.now = now
        found = self._tables.seat(seat)
        if found is not None:
            self._seats.exhausted(found)
        self._downstream.feed_freed()
        return self._tables.outbox.flush()

    def replace_servers(self, now: float) -> list[Output]:
        """Start a new process for each era that is served; once all are ready, they are the servers.

        An era that comes to be served meanwhile is waited for, too.

        The old ones then answer what they were sent, and are stopped. Ends with a notice:
        SWAPPED or SWAP_FAILED. While one replacement is under way, one more is remembered.
        """
        self._tables.now = now
        self._seats.swaps.begin()
        return self._tables.outbox.flush()

    # -- time --------------------------------------------------------------------

    @property
    def needs_tick(self) -> bool:
        """Whether `tick` has anything to watch."""
        tables = self._tables
        swaps = self._seats.swaps
        if tables.lingering or swaps.retiring or swaps.current is not None or self._seats.awaits_retry:
            return True
        for era in Era:
            if era not in tables.served and (tables.waiting[era] or self._seats.wanted(era)):
                return True
        timed = tables.limits.request_timeout is not None
        for child in tables.children.values():
            if child.handshake.deadline is not None or child.loggers or (timed and child.inflight):
                return True
        return False

    def tick(self, now: float) -> list[Output]:
        """Carry out what is due. To be called several times a second while `needs_tick`."""
        tables = self._tables
        tables.now = now
        for era in Era:
            if tables.waiting[era]:
                self._waiting.expire(era, self._seats.seat_serving(era))
        self._legacy.expire(self._seats.seat_serving(Era.LEGACY))
        self._seats.retry()
        linger = tables.limits.linger
        for client in list(tables.lingering.values()):
            if client.eof_at is not None and now - client.eof_at >= linger:
                self._downstream.cut(client, b"it stopped sending, and its answers did not come in time")
        self._seats.swaps.settle()
        for child in list(tables.children.values()):
            self._seats.tick(child)
            for upstream_id, logger in list(child.loggers.items()):
                if logger.client is None and now >= logger.until:
                    del child.loggers[upstream_id]
            self._time_out(child)
        self._downstream.feed_freed()
        return tables.outbox.flush()

    def _time_out(self, child: Child) -> None:
        tables = self._tables
        timeout = tables.limits.request_timeout
        if timeout is None:
            return
        for upstream_id, entry in list(child.inflight.items()):
            if entry.kind is Kind.QUESTION and tables.now - entry.sent_at >= timeout:
                tables.abandon(upstream_id, entry, {"reason": Raw(b'"request timeout"')})
                self._legacy.late(entry)
            elif entry.client is not None:
                if tables.now - entry.sent_at < timeout:
                    break  # the table is in the order of sending
                client = entry.client
                id = tables.abandon(upstream_id, entry, {"reason": Raw(b'"request timeout"')})
                assert id is not None
                tables.refuse(
                    client,
                    id,
                    jsonrpc.TIMED_OUT,
                    f"the server did not answer within {timeout:g} s",
                    "request_timeout",
                    delivered=True,
                )
                self._downstream.feed(client)

    # -- stopping ----------------------------------------------------------------

    def drain(self, now: float) -> list[Output]:
        """The bridge is to stop: what waits, and what still comes, is refused; subscriptions end."""
        self._tables.now = now
        self._drain()
        return self._tables.outbox.flush()

    def _drain(self) -> None:
        tables = self._tables
        tables.stopping = True
        for queues in tables.waiting.values():
            for queue in list(queues.values()):
                self._waiting.refuse(
                    queue, jsonrpc.SHUTTING_DOWN, "the bridge is shutting down", "shutting_down"
                )
        self._subscriptions.shut_down(tables.served.get(Era.MODERN))
        self._legacy.drain()
        self._downstream.feed_freed()

    def stop(self, now: float) -> list[Output]:
        """The time is up: what is at the servers is given up, and every client is closed."""
        tables = self._tables
        tables.now = now
        self._drain()
        for client in list(tables.clients.values()):
            for upstream_id, id in list(client.inflight.items()):
                tables.give_up(client, upstream_id, {"reason": Raw(b'"the bridge is stopping"')})
                tables.refuse(
                    client,
                    id,
                    jsonrpc.SHUTTING_DOWN,
                    "the bridge is shutting down; the server may have carried the request out",
                    "shutting_down",
                    delivered=True,
                )
            self._downstream.leave(client)
            tables.outbox.close(client)
        return tables.outbox.flush()
