"""Joins router, clients and server: the only module that sees both sides.

Owns the running bridge: its connections, its servers and the order of its end.
Every callback reads, calls the core, and writes what the core returns, without a
pause in between, so that what one read brought is carried out as a whole.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Final, Protocol

from msgspec import UNSET

from bridge import __version__
from bridge.acceptor import Acceptor
from bridge.child import Child
from bridge.client import ClientConnection
from bridge.config import Settings
from bridge.core.jsonrpc import OVERLOADED, SHUTTING_DOWN, error_line
from bridge.core.outbox import Control, Key, Output
from bridge.core.router import Router
from bridge.core.tables import NoticeKind
from bridge.hangup import HangupWatch
from bridge.insist import insist
from bridge.launcher import Launcher
from bridge.lifecycle import Lifecycle
from bridge.listener import Listener
from bridge.logs import LogWriter, RateLimit, StderrRelay, printable
from bridge.memory import Memory
from bridge.news import News
from bridge.pump import pump
from bridge.standing import standing
from bridge.supervisor import Supervisor
from bridge.tuning import most_connections

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bridge.admin import AdminServer, Health
    from bridge.headstart import HeadStart
    from bridge.pool import Pool

_log = logging.getLogger("bridge")

TICK: Final = 0.1
"""How often, in seconds, deadlines and buffers are looked at while there are any."""

CLOSE_WAIT: Final = 1.0
"""How long, in seconds, clients have at the end of a stop to read what they were sent."""

COLLECTED: Final = 64 * 1024
"""What clients write in one turn of the event loop goes to the server at once, up to this many bytes."""


class Port(Protocol):
    """Where the core's output for one key goes."""

    def send(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def control(self, what: Control) -> None: ...


class ServerPort:
    """The server's stdin."""

    __slots__ = ("child", "key", "pumping", "send", "spoke")

    def __init__(self, key: Key, child: Child) -> None:
        self.key = key
        self.child = child
        self.send = child.write
        self.spoke = False
        self.pumping = False

    def close(self) -> None:
        """The core never closes a server: the supervisor does."""

    def control(self, what: Control) -> None:
        """A server is always read."""


class Hub:
    """A bridge that serves one server.

    Args:
        settings: what the operator asked for.
        writer: of the log.
        start: what has been opened and started already; its maker closes it once the bridge has ended.
        descriptor_limit: what servers are started with; None: as it is.
    """

    def __init__(
        self,
        settings: Settings,
        writer: LogWriter,
        start: HeadStart,
        descriptor_limit: tuple[int, int] | None = None,
    ) -> None:
        self._settings = settings
        self._start = start
        self._loop = asyncio.get_running_loop()
        self._clock: Callable[[], float] = self._loop.time
        self._router = Router(settings.limits, salt=os.urandom(16), version=__version__)
        self._attention = self._router.attention
        self._ports: dict[Key, Port] = {}
        self._connections: dict[Key, ClientConnection] = {}
        self._memory = Memory(
            settings.max_buffered, self._connections, self._held_for, self._held_else, self._tick_soon
        )
        self._crowded = False
        """Several clients are at it: what they write in one turn of the loop is collected."""
        self._collected = 0
        """Bytes that were, in this turn."""
        self._flushing = False
        """The end of the turn is waited for."""
        self._alone = False
        """So far only one client has written in it."""
        self._last_key = 0
        self._children: dict[int, ServerPort] = {}
        self._ever_ready = False
        most = most_connections()
        self._max_clients = settings.max_clients if most is None else min(settings.max_clients, most)
        self._news = News()
        self._ticking = False
        self._refusals = RateLimit(1.0, 5.0)
        self._life = Lifecycle(self._replace_servers)
        self._acceptor = Acceptor(start.listeners, self._accepted)
        self._admin: AdminServer | None = None
        self._stopping = False
        self._last_end = ""
        self.hangups = HangupWatch(self._loop)
        self._launcher = Launcher(
            settings,
            start=start,
            hangups=self.hangups,
            relay=StderrRelay(writer),
            descriptor_limit=descriptor_limit,
        )
        self._supervisors: dict[int, Supervisor] = {}
        self._pool: Pool | None = None
        if settings.sharing != "shared":
            from bridge.pool import Pool

            self._pool = Pool(settings, self, self._launcher, salt=os.urandom(16))

    # --- Life

    async def run(self) -> int:
        """Serve until told to stop; return the exit code.

        Raises:
            OSError: nobody can be accepted; nothing is left behind.
        """
        life = self._life
        life.begin()
        try:
            await self._open()
            self._report()
            life.ready()
            if self._settings.sharing != "isolated":
                self._supervisor(self._router.seats[0]).start()
            if self._pool is not None:
                self._pool.start()
            code = await life.over
            await self._drain(code)
        finally:
            await self._shut()
            life.finish()
        return code

    def _supervisor(self, seat: int) -> Supervisor:
        """Of the server process in a seat: the first, or the further era's once it is needed."""
        supervisor = self._supervisors.get(seat)
        if supervisor is None:
            first = self._router.is_first(seat)
            supervisor = Supervisor(self._settings, self, seat, self._launcher, first=first)
            self._supervisors[seat] = supervisor
        return supervisor

    async def _open(self) -> None:
        settings = self._settings
        if self._start.admin:
            from bridge.admin import serve_admin

            self._admin = await serve_admin(self._start.admin, self.health)
        if self._max_clients < settings.max_clients:
            _log.warning("the limit of open files (ulimit -n) allows %d clients only", self._max_clients)
        await self._acceptor.serve()
        if self._admin is not None:
            for address in self._admin.addresses:
                _log.info("health at %s", address)

    def _accepted(self, listener: Listener) -> ClientConnection:
        settings = self._settings
        return ClientConnection(self, listener, settings.client_buffer, settings.limits.linger)

    def _replace_servers(self) -> None:
        if self._pool is not None:
            self._pool.replace()
        if not self._supervisors:
            self._life.replaced()
            return  # nothing has been started yet: what will be is new
        _log.info("SIGHUP: replacing the server")
        self._deliver(self._router.replace_servers(self._clock()))
        self._report()

    def _replaced(self, why_not: str) -> None:
        """A replacement has ended: who serves no more is started no more."""
        if why_not:
            _log.error("the server was not replaced, the old one goes on: %s", printable(why_not))
        else:
            _log.info("the server was replaced")
        for seat, supervisor in list(self._supervisors.items()):
            if seat not in self._router.seats:
                supervisor.dismiss()
            elif why_not and not self._stopping:
                supervisor.resume()
        self._tidy()
        self._report()
        self._life.replaced()

    def _tidy(self) -> None:
        """Forget the supervisors of old processes that are gone."""
        kept = self._router.seats
        for seat, supervisor in list(self._supervisors.items()):
            if seat not in kept and supervisor.idle and not self._router.is_new(seat):
                del self._supervisors[seat]

    def _report(self) -> None:
        """Tell the service manager how things stand, until the bridge ends."""
        if self._life.over.done():
            return
        kept = self._router.seats
        serving = [self._children[seat].child.pid for seat in kept if seat in self._children]
        server = ""
        if self._settings.sharing != "isolated":
            server = (
                f"the server ended ({self._last_end})" if self._last_end else "the server is being started"
            )
        text = standing(
            serving,
            server=server,
            replacing=self._router.replacing,
            old=sum(seat not in kept and not self._router.is_new(seat) for seat in self._children),
            own=0 if self._pool is None else self._pool.processes,
        )
        self._life.notifier.status(text)

    async def _drain(self, code: int) -> None:
        """Let what is at the server finish, if there is a server and nobody is in a hurry."""
        self._stop_accepting()
        self._deliver(self._router.drain(self._clock()))
        if self._pool is not None:
            self._pool.drain()
        deadline = self._clock() + self._settings.drain
        life = self._life
        while code == 0 and self._in_flight and self._clock() < deadline and not life.hurried:
            await life.pause(0.01)
        if self._pool is not None:
            self._pool.stop_clients()
        self._deliver(self._router.stop(self._clock()))

    @property
    def _in_flight(self) -> int:
        return self._router.in_flight + (0 if self._pool is None else self._pool.in_flight)

    def _stop_accepting(self) -> None:
        self._stopping = True
        self._acceptor.close()

    async def _shut(self) -> None:
        self._stop_accepting()
        grace = self._settings.stop_grace
        ends = [supervisor.stop(grace) for supervisor in self._supervisors.values()]
        if self._pool is not None:
            ends.append(self._pool.stop(grace))
        for fault in await asyncio.gather(*ends, return_exceptions=True):
            if fault is not None:  # the guard sees to the processes
                _log.error("a server was not stopped in order: a fault of the bridge", exc_info=fault)
        deadline = self._clock() + CLOSE_WAIT
        while self._connections and self._clock() < deadline and not self._life.hurried:
            await self._life.pause(0.01)
        for connection in list(self._connections.values()):
            connection.abort()
        if self._admin is not None:
            try:
                await self._admin.close()
            except Exception:
                _log.exception("the health endpoint was not closed: a fault of the bridge")
        if self._start.guard is not None:
            self._start.guard.close()
        self.hangups.close()

    def health(self) -> Health:
        """Whether clients are served, and how the server stands."""
        from bridge.admin import Health

        if self._settings.sharing == "isolated":
            return Health(ready=not self._stopping, state="stopping" if self._stopping else "isolated")
        first = self._router.seats[0]
        state = "stopping" if self._stopping else self._supervisor(first).state
        # A server that ended in order is started for the first request; one that nobody
        # has needed yet is spoken to then.
        waits_for_need = state == "idle" or (
            self._settings.limits.era is None and first in self._children and not self._router.needed(first)
        )
        return Health(ready=not self._stopping and (self._router.ready or waits_for_need), state=state)

    # --- From the clients

    def client_connected(self, connection: ClientConnection) -> Key | None:
        if self._stopping or len(self._connections) >= self._max_clients:
            if self._stopping:
                line = error_line(UNSET, SHUTTING_DOWN, "the bridge is shutting down", "shutting_down")
            else:
                text = "too many clients: try again later"
                line = error_line(UNSET, OVERLOADED, text, "too_many_clients")
            connection.send(bytes(line) + b"\n")
            connection.close()
            return None
        key = self._new_key()
        self._ports[key] = self._connections[key] = connection
        if self._pool is None or self._pool.client_opened(key, strict=connection.strict):
            self._router.client_opened(key, strict=connection.strict)
        return key

    def client_refused(self, listener: Listener) -> None:
        dropped = self._refusals.dropped
        if self._refusals.allow(self._clock()):  # who is refused may try again as fast as the system goes
            more = f" (and {dropped} more)" if dropped else ""
            _log.warning("a client of another user was refused at %s%s", listener.address, more)

    def client_data(self, key: Key, data: bytes) -> None:
        size = len(data)
        if self._pool is None or self._pool.client_data(key, data):
            self._router.collect(key, data, self._clock())
            if not self._crowded or self._attention.due or self._collected > COLLECTED:
                self._collected = 0
                self._deliver(self._router.flush())
            elif not self._flushing:
                self._flushing = self._alone = True
                self._collected = size
                self._loop.call_soon(insist, self._loop, self._flush)
            else:
                self._alone = False
                self._collected += size
        self._memory.came(size)

    def _flush(self) -> None:
        """All that could be read in this turn of the event loop has been."""
        self._flushing = False
        if self._alone:
            self._crowded = False  # nothing was gained
        self._deliver(self._router.flush())

    def client_turn(self, key: Key) -> None:
        if self._pool is not None:
            self._pool.client_turn(key)
        self._deliver(self._router.client_turn(key, self._clock()))

    def client_eof(self, key: Key) -> None:
        if self._pool is None or self._pool.client_eof(key):
            self._deliver(self._router.client_eof(key, self._clock()))

    def client_gone(self, key: Key) -> None:
        if self._pool is not None:
            self._pool.client_gone(key)
        self._deliver(self._router.client_closed(key, self._clock()))

    def client_lost(self, connection: ClientConnection) -> None:
        key = connection.key
        if key is not None:
            self._ports.pop(key, None)
            self._connections.pop(key, None)
            self._memory.forget(key)
            self.client_gone(key)

    def client_congested(self, connection: ClientConnection) -> None:
        if connection.key is not None:
            self._memory.congested(connection.key, connection)

    # --- From the server

    def server_started(self, seat: int, child: Child) -> None:
        port = self._children[seat] = ServerPort(self._new_key(), child)
        self._report()
        self._ports[port.key] = port
        self._deliver(self._router.server_opened(port.key, self._clock(), seat))
        if child.ending:
            self._router.server_blocked(port.key)
        if seat not in self._router.seats and not self._router.is_new(seat):
            self._supervisors[seat].replace(retire=True)  # it came too late for a replacement that failed

    def server_data(self, seat: int, data: bytes) -> None:
        port = self._children[seat]
        outputs = self._router.server_data(port.key, data, self._clock())
        if len(outputs) > 1:
            self._crowded = True
        self._deliver(outputs)
        self._memory.came(len(data))
        if not port.spoke and self._router.spoke(port.key):
            port.spoke = True
            self._supervisors[seat].spoke()

    def server_blocked(self, seat: int) -> None:
        port = self._children.get(seat)
        if port is not None:  # it may end before it is known here
            self._router.server_blocked(port.key)

    def server_writable(self, seat: int) -> None:
        port = self._children.get(seat)
        if port is not None:
            pump(port, self._move)

    def server_ended(self, seat: int, child: Child) -> None:
        port = self._children.get(seat)
        if port is None:
            return  # it was never known here, or this is said once more
        exited = child.status is not None and child.status >= 0
        self._deliver(self._router.server_closed(port.key, self._clock(), exited=exited, unread=child.unread))
        del self._ports[port.key]
        del self._children[seat]
        if seat in self._router.seats:
            self._last_end = child.describe_status()
        else:
            self._loop.call_soon(insist, self._loop, self._tidy)
        self._report()

    def server_needed(self, seat: int) -> bool:
        return self._router.needed(seat)

    def server_replaced(self, seat: int) -> bool:
        return self._router.replaced(seat)

    def server_is_sole(self, seat: int) -> bool:
        kept = self._router.seats
        if seat not in kept or self._router.replacing:  # another may yet take its place
            return False
        return not self._ever_ready or sum(number in self._supervisors for number in kept) == 1

    def server_is_trial(self, seat: int) -> bool:
        return self._router.is_new(seat)

    def server_exhausted(self, seat: int) -> None:
        self._deliver(self._router.server_exhausted(seat, self._clock()))

    def server_given_up(self, exit_code: int, reason: str) -> None:
        _log.error("%s", reason)
        self._life.end(exit_code, reason)

    # --- From the processes of clients that have one each

    def new_key(self) -> Key:
        return self._new_key()

    def pool_port(self, key: Key, port: Port | None) -> None:
        if port is None:
            self._ports.pop(key, None)
        else:
            self._ports[key] = port
        self._report()

    def pool_outputs(self, outputs: list[Output]) -> None:
        self._deliver(outputs)

    def pool_shared(self, key: Key, data: bytes) -> None:
        self._deliver(self._router.client_data(key, data, self._clock()))

    def pool_tick(self) -> None:
        self._tick_soon()

    # --- To both

    def _new_key(self) -> Key:
        self._last_key += 1
        return Key(self._last_key)

    def _deliver(self, outputs: list[Output]) -> None:
        """Write what the core returned, in its order."""
        ports = self._ports
        for key, payload in outputs:
            port = ports.get(key)
            if port is None:
                continue
            if type(payload) is bytes:
                if payload:
                    port.send(payload)
                else:
                    port.close()
            else:
                port.control(payload)  # type: ignore[arg-type]  # what is left of the union
        if self._attention.due:
            self._attend()

    def _attend(self) -> None:
        """Do what the core asks for besides writing."""
        self._attention.due = False
        if self._router.has_notices:
            self._tell()
        if not self._ticking and self._router.needs_tick:
            self._tick_soon()

    def _move(self, key: Key, room: int) -> bool:
        """Move what waits for a shared server: see `pump`."""
        outputs, more = self._router.server_writable(key, room, self._clock())
        self._deliver(outputs)
        return more

    def _tell(self) -> None:
        """Log what the core noticed, and do what it asks for."""
        now = self._clock()
        for notice in self._router.take_notices():
            kind, seat = notice.kind, notice.seat
            if kind is NoticeKind.NEED_CHILD:
                if not self._stopping:
                    self._supervisor(seat).start()
            elif kind is NoticeKind.READY:
                self._ever_ready = True
                _log.info("the server is ready, in the %s era", notice.detail.decode())
                pump(self._children[seat], self._move)
            elif kind is NoticeKind.SWAPPED or kind is NoticeKind.SWAP_FAILED:
                self._replaced(notice.detail.decode())
            elif kind is NoticeKind.REPLACE_CHILD or kind is NoticeKind.RETIRE_CHILD:
                self._supervisors[seat].replace(retire=kind is NoticeKind.RETIRE_CHILD)
            else:
                self._news.tell(kind, notice.key, notice.detail, now)

    # --- Time

    def _tick_soon(self) -> None:
        if not self._ticking:
            self._ticking = True
            self._loop.call_later(TICK, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        pool = self._pool
        try:
            self._deliver(self._router.tick(self._clock()))
            if pool is not None:
                pool.tick()
            self._memory.enforce()
        except Exception:
            _log.exception("a tick was lost: a fault of the bridge")
        if self._memory.needs_tick or self._router.needs_tick or (pool is not None and pool.needs_tick):
            self._tick_soon()

    def _held_for(self, key: Key) -> int:
        return self._router.buffered(key) + (0 if self._pool is None else self._pool.buffered(key))

    def _held_else(self) -> int:
        unsent = sum(port.child.unsent for port in self._children.values())
        return unsent + self._router.buffered_of_servers + (0 if self._pool is None else self._pool.unsent)
