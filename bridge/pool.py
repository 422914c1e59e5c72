"""Server processes for clients that have one each: started for a client, stopped with it.

Owns these processes and the spare ones. What they are sent and what they say is
`core/isolated.py`'s; where it goes is `hub.py`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Final, Protocol

from bridge.child import Child, kill_unless_stopped
from bridge.config import Settings
from bridge.core.codec import Codec
from bridge.core.era import INITIALIZE
from bridge.core.isolated import Isolated
from bridge.core.outbox import Control, Key, Output
from bridge.core.pace import Pace
from bridge.core.sorting import Sorted, Sorter
from bridge.core.tables import NoticeKind
from bridge.errors import SpawnError
from bridge.insist import insist
from bridge.launcher import Launcher
from bridge.logs import printable
from bridge.news import News
from bridge.pump import pump
from bridge.turns import Turns

_log = logging.getLogger("bridge.server")

EARLY_KEPT: Final = 64 * 1024
"""What a spare process may write before anybody speaks to it, in bytes; a banner is no more than that."""

# A server that does not stay up while it is idle is no good as a spare: it is tried again, ever more seldom.
SPARE_BASE_S: Final = 1.0
SPARE_MAX_S: Final = 60.0


class PoolOwner(Protocol):
    """Who is told what happens; always from the event loop."""

    def new_key(self) -> Key:
        """A key that nobody had before."""

    def pool_port(self, key: Key, port: Process | None) -> None:
        """Where output for a process goes from now on; None: nowhere."""

    def pool_outputs(self, outputs: list[Output]) -> None:
        """What is to be written."""

    def pool_shared(self, key: Key, data: bytes) -> None:
        """A client's bytes are for the shared server."""

    def pool_tick(self) -> None:
        """There is something that `tick` has to watch."""

    def server_given_up(self, exit_code: int, reason: str) -> None:
        """There will be no server any more: the bridge ends."""


class Process:
    """One server process and whose it is; where the core's output for it goes."""

    __slots__ = ("child", "client", "early", "key", "pool", "pumping", "spoke", "stopping")

    def __init__(self, pool: Pool, key: Key) -> None:
        self.pool = pool
        self.key = key
        self.child: Child | None = None
        self.client: Key | None = None
        """None while it is spare."""
        self.early = bytearray()
        """What it wrote while it was."""
        self.pumping = False
        self.spoke = False
        self.stopping = False

    @property
    def goes(self) -> bool:
        """Whether another may have its place in a moment."""
        return self.stopping or (self.child is not None and self.child.ending)

    # --- As a port

    def send(self, data: bytes) -> None:
        if self.child is not None:
            self.child.write(data)

    def close(self) -> None:
        """The core never closes a server: the pool does."""

    def control(self, what: Control) -> None:
        """A server is always read."""

    # --- From the child

    def child_data(self, child: Child, data: bytes) -> None:
        self.pool.data(self, data)

    def child_blocked(self, child: Child) -> None:
        self.pool.blocked(self)

    def child_writable(self, child: Child) -> None:
        self.pool.pump(self)

    def child_ending(self, child: Child) -> None:
        self.pool.ending(self)

    def child_ended(self, child: Child) -> None:
        self.pool.ended(self, child)


class Pool:
    """Clients with a process of their own, and those of which that is not decided yet.

    Args:
        settings: `sharing` says who is served here: all clients, or those whose capabilities need it.
    """

    def __init__(
        self,
        settings: Settings,
        owner: PoolOwner,
        launcher: Launcher,
        *,
        salt: bytes,
    ) -> None:
        self._settings = settings
        self._owner = owner
        self._launcher = launcher
        self._loop = asyncio.get_running_loop()
        self._core = Isolated(settings.limits, salt=salt)
        self._codec = Codec(salt, settings.limits.max_depth)
        self._sorters: dict[Key, Sorter] = {}
        self._apart: set[Key] = set()
        self._processes: dict[Key, Process] = {}
        self._spares: OrderedDict[Key, Process] = OrderedDict()
        self._starting: dict[Key, asyncio.Task[None]] = {}
        self._turns = Turns(self._go_on)
        self._ends: set[asyncio.Task[None]] = set()
        self._ever_started = False
        self._stopping = False
        self._spare_delay = SPARE_BASE_S
        self._spare_timer: asyncio.TimerHandle | None = None
        self._news = News()

    # --- What the hub may ask

    @property
    def in_flight(self) -> int:
        """Requests at the servers."""
        return self._core.in_flight

    @property
    def unsent(self) -> int:
        """Bytes that wait for room in the servers' stdin."""
        return sum(p.child.unsent for p in self._processes.values() if p.child is not None)

    @property
    def processes(self) -> int:
        """How many clients have a process of their own."""
        return sum(process.client is not None for process in self._processes.values())

    @property
    def needs_tick(self) -> bool:
        """Whether `tick` has anything to watch."""
        return self._core.needs_tick

    def buffered(self, key: Key) -> int:
        """Bytes that are held for one client here."""
        sorter = self._sorters.get(key)
        early = 0 if sorter is None else sorter.buffered
        return early + self._core.buffered(key)

    # --- Clients. Each call says whether the shared server is to hear of the event, too.

    def start(self) -> None:
        """The bridge serves: have the spare processes ready."""
        self._refill()

    def client_opened(self, key: Key, *, strict: bool) -> bool:
        """A client has connected."""
        if self._settings.sharing == "isolated":
            self._open(key, strict)
            return False
        limit = self._settings.limits.max_request
        names = frozenset(self._settings.isolate_for)
        self._sorters[key] = Sorter(self._codec, names, limit, strict=strict)
        return True

    def client_data(self, key: Key, data: bytes) -> bool:
        """A client has sent bytes."""
        if key in self._apart:
            self._deliver(self._core.client_data(key, data, self._loop.time()))
            return False
        sorter = self._sorters.get(key)
        if sorter is None:
            return True
        self._sorted(key, sorter.feed(data))
        return False

    def client_turn(self, key: Key) -> None:
        """It is a client's turn again, if it is one of those that are served here."""
        if key in self._apart:
            self._deliver(self._core.client_turn(key, self._loop.time()))

    def client_eof(self, key: Key) -> bool:
        """A client has stopped sending."""
        sorter = self._sorters.get(key)
        if sorter is not None:
            self._sorted(key, sorter.finish())
        if key not in self._apart:
            return True
        self._deliver(self._core.client_eof(key, self._loop.time()))
        return False

    def client_gone(self, key: Key) -> bool:
        """A client is gone. May come twice."""
        self._sorters.pop(key, None)
        self._turns.drop(key)
        if key in self._apart:
            self._apart.discard(key)
            self._deliver(self._core.client_closed(key, self._loop.time()))
        return True

    def _open(self, key: Key, strict: bool) -> None:
        self._apart.add(key)
        self._core.client_opened(key, strict=strict)

    def _sorted(self, key: Key, verdict: Sorted) -> None:
        if verdict.decided:
            del self._sorters[key]
        if verdict.shared:
            self._owner.pool_shared(key, verdict.shared)
        if verdict.apart is not None:
            # Whatever it asked before, of the shared server, that one still answers.
            self._open(key, strict=False)
            self._deliver(self._core.client_data(key, verdict.apart, self._loop.time()))

    # --- Processes

    def data(self, process: Process, data: bytes) -> None:
        """A process has written bytes."""
        if process.client is None:
            if process.stopping:
                return  # it may go on writing all the while
            if len(process.early) + len(data) <= EARLY_KEPT:
                process.early += data
            else:
                _log.warning("a spare server wrote more than a banner, and is stopped")
                self._stop(process)
            return
        self._deliver(self._core.server_data(process.key, data, self._loop.time()))
        if not process.spoke and self._core.spoke(process.key):
            process.spoke = True
            if self._turns.spoke(process.key):
                self._go_on()

    def blocked(self, process: Process) -> None:
        """A process takes no more for now."""
        self._core.server_blocked(process.key)

    def ending(self, process: Process) -> None:
        """A process is about to be gone, and reads nothing any more: no client is to be given it."""
        self._core.server_blocked(process.key)
        self._lose_spare(process)

    def pump(self, process: Process) -> None:
        """Move what waits into a process's stdin, as far as it takes it."""
        pump(process, self._move)

    def _move(self, key: Key, room: int) -> bool:
        outputs, more = self._core.server_writable(key, room, self._loop.time())
        self._deliver(outputs)
        return more

    def ended(self, process: Process, child: Child) -> None:
        """A process is gone, and all it wrote was given to `data`. May come again if it failed halfway."""
        self._launcher.ended()
        first = self._processes.pop(process.key, None) is not None
        if first and not process.stopping and not self._stopping:
            level = logging.INFO if child.status == 0 else logging.WARNING
            _log.log(level, "the server (pid %d) ended: %s", child.pid, child.describe_status())
        if process.client is not None:
            exited = child.status is not None and child.status >= 0 and not child.unread
            now = self._loop.time()
            self._deliver(self._core.server_closed(process.key, now, exited=exited))
        self._turns.ended(process.key)
        self._owner.pool_port(process.key, None)
        self._lose_spare(process)
        self._go_on()

    @property
    def _has_room(self) -> bool:
        return len(self._processes) + len(self._starting) < self._settings.max_children

    def _go_on(self) -> None:
        """Something has changed: whoever waits and whose turn it is has a process now, or is refused."""
        if self._stopping:
            return
        for client, pace in self._turns.due():
            now = self._loop.time()
            if not self._core.still_needed(client):
                self._turns.drop(client)
            elif self._spares or self._has_room:
                self._turns.drop(client)
                self._serve(client, pace, now)
            elif not any(process.goes for process in self._processes.values()):
                self._turns.drop(client)
                self._deliver(self._core.server_failed(client, now, full=True))
        self._refill()

    def _serve(self, client: Key, pace: Pace, now: float) -> None:
        """There is a process for a client."""
        if self._spares:
            _, process = self._spares.popitem(last=False)
            self._spare_delay = SPARE_BASE_S
            pace.started(process.key, now)
            self._give(process, client)
        else:
            pace.started(self._begin(client), now)

    def _refill(self) -> None:
        wanted = self._settings.spare - len(self._spares) - sum(1 for key in self._starting if key < 0)
        while wanted > 0 and self._has_room and self._spare_timer is None and not self._stopping:
            wanted -= 1
            self._begin(None)

    def _lose_spare(self, process: Process) -> None:
        """A process has ended, or is about to: if it was a spare one, another takes its place."""
        if self._spares.pop(process.key, None) is not None:
            self._spare_later()

    def _spare_later(self) -> None:
        """A spare process has ended by itself: start another after a while."""
        if self._spare_timer is None and not self._stopping:
            self._spare_timer = self._loop.call_later(self._spare_delay, insist, self._loop, self._spare_due)
            self._spare_delay = min(2 * self._spare_delay, SPARE_MAX_S)

    def _spare_due(self) -> None:
        self._spare_timer = None
        self._refill()

    def _begin(self, client: Key | None) -> Key:
        """Start a process, for a client or as a spare one; its key."""
        process = Process(self, self._owner.new_key())
        # Spare ones are told by the sign; a client waits for one start at most.
        name = Key(-process.key) if client is None else process.key
        starting = self._starting[name] = self._loop.create_task(self._start(name, process, client))
        starting.add_done_callback(lambda task: self._start_over(task, name, process, client))
        return process.key

    async def _start(self, name: Key, process: Process, client: Key | None) -> None:
        try:
            child = await self._launcher.launch(process)
        except SpawnError as error:
            del self._starting[name]
            self._failed(error, process.key, client)
            return
        del self._starting[name]
        self._ever_started = True
        process.child = child
        self._processes[process.key] = process
        _log.info("the server runs (pid %d)%s", child.pid, "" if client is None else f", for client {client}")
        if self._stopping:
            self._stop(process)
        elif client is None:
            self._spares[process.key] = process
            self._go_on()  # a client may have come to wait meanwhile
        else:
            self._give(process, client)

    def _start_over(
        self, starting: asyncio.Task[None], name: Key, process: Process, client: Key | None
    ) -> None:
        """A start that failed in a way that nobody has thought of is a failed start all the same."""
        error = None if starting.cancelled() else starting.exception()
        if error is None:
            return
        _log.error("a start of the server failed: a fault of the bridge", exc_info=error)
        if process.child is not None:
            process.child.kill()
        elif self._starting.pop(name, None) is not None:
            self._ever_started = True  # it is no wrong command
            insist(self._loop, self._failed, SpawnError("a fault of the bridge"), process.key, client)

    def _give(self, process: Process, client: Key) -> None:
        """A process is a client's from now on."""
        assert process.child is not None
        process.client = client
        self._owner.pool_port(process.key, process)
        now = self._loop.time()
        self._deliver(self._core.server_opened(process.key, client, now))
        if process.early:
            early = bytes(process.early)
            process.early.clear()
            self._deliver(self._core.server_data(process.key, early, now))
        if process.child.ending:
            self._core.server_blocked(process.key)

    def _failed(self, error: SpawnError, key: Key, client: Key | None) -> None:
        if not self._ever_started and not self._stopping and self._settings.sharing == "isolated":
            # A wrong command is the operator's mistake, and waiting does not mend it.
            self._owner.server_given_up(error.exit_code, str(error))
            return
        _log.warning("the server could not be started: %s", printable(str(error)))
        self._turns.failed(key)
        if client is None:
            self._spare_later()
        else:
            self._deliver(self._core.server_failed(client, self._loop.time()))
        self._go_on()

    def _stop(self, process: Process) -> None:
        if process.child is not None and not process.stopping:
            process.stopping = True
            self._spares.pop(process.key, None)
            child = process.child
            end = self._loop.create_task(child.stop(self._settings.stop_grace))
            self._ends.add(end)
            end.add_done_callback(lambda task: kill_unless_stopped(child, task))
            end.add_done_callback(self._ends.discard)

    def replace(self) -> None:
        """The server is to be another one from now on: spare processes go; clients keep theirs."""
        _log.info("SIGHUP: clients that have a server process keep it; whoever comes has another")
        for process in list(self._spares.values()):
            self._stop(process)
        self._core.forget_eras()
        self._turns.forget()
        self._go_on()

    # --- Time and the end

    def tick(self) -> None:
        """Carry out what is due."""
        self._deliver(self._core.tick(self._loop.time()))

    def drain(self) -> None:
        """What waits, and what still comes, is refused."""
        self._deliver(self._core.drain(self._loop.time()))

    def stop_clients(self) -> None:
        """The time is up for what is at the servers; every client is closed."""
        self._deliver(self._core.stop(self._loop.time()))

    async def stop(self, grace: float) -> None:
        """Start nothing any more, and end every process."""
        self._stopping = True
        if self._spare_timer is not None:
            self._spare_timer.cancel()
        self._turns.stop()
        while self._starting:
            # A spawn is awaited, not cancelled: what it started must be ended in order.
            await asyncio.wait(list(self._starting.values()))
        children = [process.child for process in self._processes.values() if process.child is not None]
        await asyncio.gather(*(child.stop(grace) for child in children))

    def _deliver(self, outputs: list[Output]) -> None:
        self._owner.pool_outputs(outputs)
        if self._core.attention.due:
            self._core.attention.due = False
            for notice in self._core.take_notices():
                self._attend(notice.kind, notice.key, notice.detail)
            if self._core.needs_tick:
                self._owner.pool_tick()

    def _attend(self, kind: NoticeKind, key: Key, detail: bytes) -> None:
        if kind is NoticeKind.NEED_CHILD:
            self._turns.add(key, handshake=detail == INITIALIZE.encode())
            self._go_on()
        elif kind is NoticeKind.CHILD_FAILED:
            self._turns.failed(key)
        elif kind is NoticeKind.RETIRE_CHILD:
            process = self._processes.get(key)
            if process is not None:
                self._stop(process)
        else:
            self._news.tell(kind, key, detail, self._loop.time())
