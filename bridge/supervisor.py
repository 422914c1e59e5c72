"""Carries out what `core/restart.py` decides: starts the server, starts it again, stops it.

Owns the child process and the time of the next start. Never looks into what the
server says: `hub.py` does.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final, Protocol

from bridge.child import Child, kill_unless_stopped
from bridge.config import Settings
from bridge.core.restart import Action, Decision, RestartPolicy, State
from bridge.errors import SpawnError
from bridge.insist import insist
from bridge.launcher import Launcher
from bridge.logs import printable

_log = logging.getLogger("bridge.server")

TAIL_LINES: Final = 20
"""How many of the server's last stderr lines are shown when it is given up."""


class ServerOwner(Protocol):
    """Who is told what happens to the server; always from the event loop."""

    def server_started(self, seat: int, child: Child) -> None:
        """A process runs; the one before has ended."""

    def server_data(self, seat: int, data: bytes) -> None:
        """It wrote bytes to stdout, cut anywhere."""

    def server_blocked(self, seat: int) -> None:
        """Its stdin is full; may come from within `Child.write`."""

    def server_writable(self, seat: int) -> None:
        """Its stdin takes more."""

    def server_ended(self, seat: int, child: Child) -> None:
        """It is gone, and all it wrote was given to `server_data`."""

    def server_needed(self, seat: int) -> bool:
        """Whether anybody waits for it."""

    def server_replaced(self, seat: int) -> bool:
        """Whether the bridge itself is the reason why the last process ended."""

    def server_is_sole(self, seat: int) -> bool:
        """Whether the bridge has no use without it."""

    def server_is_trial(self, seat: int) -> bool:
        """Whether it is to replace another, and has this one start to do so."""

    def server_exhausted(self, seat: int) -> None:
        """It cannot be kept alive, and the bridge goes on without it for a while."""

    def server_given_up(self, exit_code: int, reason: str) -> None:
        """There will be no server any more: the bridge ends."""


class Supervisor:
    """Keeps one server process running while somebody may need it.

    Args:
        seat: which of the bridge's server processes it is.
        first: it may be asked for either era; a further one is there for its own alone.
    """

    def __init__(
        self,
        settings: Settings,
        owner: ServerOwner,
        seat: int,
        launcher: Launcher,
        *,
        first: bool,
    ) -> None:
        self._settings = settings
        self._owner = owner
        self._seat = seat
        self._launcher = launcher
        self._first = first
        self._loop = asyncio.get_running_loop()
        self._policy = RestartPolicy(max_restarts=settings.max_restarts, mode=settings.restart)
        self._spawning: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._announced: float | None = None
        self._stopping = False
        self._ever_started = False
        self._retiring = False
        self._ending: asyncio.Task[None] | None = None
        self._last_end = ""
        self._last_words: list[str] = []
        self.child: Child | None = None

    @property
    def state(self) -> str:
        """How the server stands, in a word."""
        return self._policy.state.value

    def start(self) -> None:
        """Start the server, if it neither runs nor is about to: at first, and when somebody needs it."""
        if self._policy.state is State.FATAL:
            self._owner.server_exhausted(self._seat)
        else:
            self._follow(self._policy.needed(self._loop.time()))

    def replace(self, *, retire: bool) -> None:
        """Stop the process that runs. `retire`: start another only when somebody needs it, not at once."""
        if self.child is not None:
            self._retiring = retire
            child = self.child
            self._ending = self._loop.create_task(child.stop(self._settings.stop_grace))
            self._ending.add_done_callback(lambda task: kill_unless_stopped(child, task))

    def resume(self) -> None:
        """No other process takes its place after all: go on, or give up, as if none had been tried."""
        self._policy.sole = self._owner.server_is_sole(self._seat)
        if self._policy.state is State.FATAL:
            self._give_up()
        elif self._owner.server_needed(self._seat):
            self.start()

    def dismiss(self) -> None:
        """Start it no more; what runs may go on until `replace` or `stop`."""
        self._policy.stopping()
        if self._timer is not None:
            self._timer.cancel()

    @property
    def idle(self) -> bool:
        """Whether no process runs, and none is being started."""
        return self.child is None and self._spawning is None

    def spoke(self) -> None:
        """A valid message has come from the server."""
        self._policy.spoke(self._loop.time())

    async def stop(self, grace: float) -> None:
        """Start it no more, and end it if it runs; see `Child.stop`."""
        self._stopping = True
        self.dismiss()
        if self._spawning is not None:
            # The spawn is awaited, not cancelled: what it started must be ended in order.
            await asyncio.wait([self._spawning])
        if self.child is not None:
            await self.child.stop(grace)

    # --- From the child

    def child_data(self, child: Child, data: bytes) -> None:
        try:
            self._owner.server_data(self._seat, data)
        except Exception:
            # What was on its way to the clients is lost; with the child's end each of them is told.
            _log.exception("the server is replaced: a fault of the bridge")
            child.kill()

    def child_blocked(self, child: Child) -> None:
        self._owner.server_blocked(self._seat)

    def child_writable(self, child: Child) -> None:
        self._owner.server_writable(self._seat)

    def child_ending(self, child: Child) -> None:
        # What still comes for it waits for the next one.
        self._owner.server_blocked(self._seat)

    def child_ended(self, child: Child) -> None:
        self.child = None
        self._launcher.ended()
        self._last_end = child.describe_status()
        self._last_words = child.stderr_tail().splitlines()[-TAIL_LINES:]
        owner, seat = self._owner, self._seat
        owner.server_ended(seat, child)
        replaced = owner.server_replaced(seat)
        retired = self._retiring or (replaced and not self._first)
        if not self._stopping:
            level = logging.INFO if child.status == 0 or replaced else logging.WARNING
            _log.log(level, "the server (pid %d) ended: %s", child.pid, self._last_end)
        self._policy.sole = owner.server_is_sole(seat)
        decision = self._policy.ended(
            self._loop.time(),
            random.uniform(-1, 1),
            status=0 if child.status is None else child.status,
            waiting=owner.server_needed(seat),
            excused=replaced,
            retired=retired,
        )
        self._retiring = False
        insist(self._loop, self._follow, decision)

    # --- Inside

    def _follow(self, decision: Decision) -> None:
        """Carry out a decision. For the policy that is done already: so this is insisted on by itself."""
        if decision.action is Action.START:
            self._begin()
        elif decision.action is Action.WAIT and self._owner.server_is_trial(self._seat):
            self._owner.server_exhausted(self._seat)
        elif decision.action is Action.WAIT:
            assert decision.at is not None
            if decision.at != self._announced:  # every request that waits asks anew
                self._announced = decision.at
                _log.info("the server is started again in %.1f s", max(0.0, decision.at - self._loop.time()))
                self._set_timer(decision.at)
        elif decision.action is Action.IDLE:
            if self._policy.exhausted:
                _log.warning("the server is given up for a while: %s", self._last_end)
                self._owner.server_exhausted(self._seat)
            else:
                _log.info("the server is started again when somebody needs it")
        elif decision.action is Action.GIVE_UP:
            self._give_up()

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, insist, self._loop, self._due, at)

    def _due(self, at: float) -> None:
        now = self._loop.time()
        if self._policy.due(now):  # true once
            insist(self._loop, self._begin)
        elif now < at:  # the loop's clock is coarser than the policy's
            self._timer = self._loop.call_later(0.001, insist, self._loop, self._due, at)

    def _begin(self) -> None:
        if self._stopping:  # since it was first tried
            return
        self._spawning = self._loop.create_task(self._spawn())
        self._spawning.add_done_callback(self._spawn_over)

    def _spawn_over(self, spawning: asyncio.Task[None]) -> None:
        """A start that failed in a way that nobody has thought of is a failed start all the same."""
        error = None if spawning.cancelled() else spawning.exception()
        if error is None:
            return
        _log.error("a start of the server failed: a fault of the bridge", exc_info=error)
        if self.child is not None:
            self.child.kill()
        elif self._spawning is spawning:
            self._spawning = None
            insist(self._loop, self._start_failed, "a fault of the bridge")

    async def _spawn(self) -> None:
        try:
            child = await self._launcher.launch(self, shared=True)
        except SpawnError as error:
            self._spawning = None
            insist(self._loop, self._spawn_failed, error)
            return
        self._spawning = None
        self._ever_started = True
        self.child = child
        self._policy.spawned(self._loop.time())
        _log.info("the server runs (pid %d)", child.pid)
        self._owner.server_started(self._seat, child)

    def _spawn_failed(self, error: SpawnError) -> None:
        sole = self._owner.server_is_sole(self._seat)
        if not self._ever_started and sole and not self._stopping:
            # A wrong command is the operator's mistake, and waiting does not mend it.
            self._policy.stopping()
            self._owner.server_given_up(error.exit_code, str(error))
            return
        self._start_failed(str(error))

    def _start_failed(self, why: str) -> None:
        self._last_end = why
        self._last_words = []
        _log.warning("the server could not be started: %s", printable(why))
        now = self._loop.time()
        self._policy.sole = self._owner.server_is_sole(self._seat)
        needed = self._owner.server_needed(self._seat)
        decision = self._policy.spawn_failed(now, random.uniform(-1, 1), needed)
        insist(self._loop, self._follow, decision)

    def _give_up(self) -> None:
        if not self._policy.sole:
            self._owner.server_exhausted(self._seat)
            return
        if self._settings.restart == "never":
            reason = f"the server ended ({self._last_end}), and --restart never is set"
        else:
            reason = (
                f"the server failed to start {self._policy.failed_starts} times in a row "
                f"(last: {self._last_end}): run the command by hand to see why"
            )
        if self._last_words:
            reason += "; its last lines:" + "".join("\n  | " + printable(line) for line in self._last_words)
        self._owner.server_given_up(1, reason)
