"""When a server process is started, started again, and given up: a table of states, no clock and no process.

The supervisor reports what happened (`spawned`, `spoke`, `ended`, ...) together with the time, and is told
what to do next as a `Decision`. The policy never waits, reads a clock or draws a random number: `now` is
monotonic seconds and `jitter` a number between -1 and 1, both passed in.

Two counts are kept apart, because they are forgotten by different events:

* The back-off (how long to wait) grows with every process that ended young, with whatever status, and is
  forgotten once a process has lived `FORGET_AFTER_S`. A good handshake alone does not forget it: a server
  that answers once and dies would otherwise be restarted in a busy loop.
* The failed starts in a row (when to give up) grow with every process that ended without one valid message,
  and are forgotten by the first start that did not fail. A long life alone does not forget them: a server
  that needs 15 s to fail to start has still never worked.

One policy belongs to one child "seat" (one era, say). It never says START while a process is alive.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal

from msgspec import Struct

# A server that crashed once by chance is back before a person notices; nobody is helped by less than this.
BASE_DELAY_S: Final = 0.1
# The ceiling: a broken server costs at most one start every ten seconds, a repaired one is found within ten.
MAX_DELAY_S: Final = 10.0
# Several bridges on one machine whose servers share a cause of death must not restart them in step.
JITTER_SHARE: Final = 0.2
# A process that lived this long was not killed by its own start; it owes nothing to the ones before it.
FORGET_AFTER_S: Final = 10.0
# Enough to outlast a lock that the last process still held; few enough to report a typo within seconds.
MAX_RESTARTS: Final = 5


class State(Enum):
    """Where one child stands."""

    IDLE = "idle"  # no process, and nobody needs one
    BACKOFF = "backoff"  # no process; the next start has a time
    STARTING = "starting"  # a start was ordered, or a process runs that has not yet said one valid message
    RUNNING = "running"  # a process runs and has spoken
    STOPPING = "stopping"  # asked to stop while a start was under way or a process alive
    STOPPED = "stopped"  # asked to stop, and nothing is left
    FATAL = "fatal"  # given up


class Action(Enum):
    """What the caller is to do now."""

    START = "start"  # spawn a process now; report `spawned` or `spawn_failed`
    WAIT = "wait"  # call `due` at `Decision.at`
    IDLE = "idle"  # nothing, until somebody needs the server; then call `needed`
    GIVE_UP = "give up"  # start no more. If the policy is `sole`, the bridge ends (exit 1)
    NONE = "none"  # nothing changed for the caller


class Decision(Struct, frozen=True):
    """What to do, and for `Action.WAIT` when: `at` is on the clock that `now` came from, in seconds."""

    action: Action
    at: float | None = None


class _Event(Enum):
    """What can happen to a child, as the table below sees it."""

    NEED = "needed, and the back-off is over"
    NEED_EARLY = "needed during the back-off"
    SPAWNED = "a process runs"
    SPOKE = "a valid message came"
    QUIET = "over, with nothing asked"
    AGAIN = "over after a long life"
    AGAIN_LATER = "over after a short life"
    EXCUSED = "over because the bridge wanted it so"
    TIRED = "over, and too many failed starts in a row, but the bridge has other children"
    FINAL = "over for good"
    STOP = "the bridge stops"


_NOTHING: Final = Action.NONE
# The rows of a living (or coming) process: how its end is answered does not depend on whether it had spoken;
# that already went into the choice of the event.
_ENDS: Final = {
    _Event.QUIET: (State.IDLE, Action.IDLE),
    _Event.AGAIN: (State.STARTING, Action.START),
    _Event.AGAIN_LATER: (State.BACKOFF, Action.WAIT),
    _Event.EXCUSED: (State.STARTING, Action.START),
    _Event.TIRED: (State.IDLE, Action.IDLE),
    _Event.FINAL: (State.FATAL, Action.GIVE_UP),
}
# While stopping, any end is the end that was asked for.
_STOPPED: Final = dict.fromkeys(_ENDS, (State.STOPPED, _NOTHING))
# States that nothing leaves; late needs and second stops change nothing.
_OVER: Final = (_Event.NEED, _Event.NEED_EARLY, _Event.STOP)

# A pair that is missing cannot happen unless the caller lost count of its processes: that raises.
_TABLE: Final[dict[State, dict[_Event, tuple[State, Action]]]] = {
    State.IDLE: {
        _Event.NEED: (State.STARTING, Action.START),
        _Event.NEED_EARLY: (State.BACKOFF, Action.WAIT),
        _Event.STOP: (State.STOPPED, _NOTHING),
    },
    State.BACKOFF: {
        _Event.NEED: (State.STARTING, Action.START),
        _Event.NEED_EARLY: (State.BACKOFF, Action.WAIT),
        _Event.STOP: (State.STOPPED, _NOTHING),
    },
    State.STARTING: {
        _Event.NEED: (State.STARTING, _NOTHING),
        _Event.NEED_EARLY: (State.STARTING, _NOTHING),
        _Event.SPAWNED: (State.STARTING, _NOTHING),
        _Event.SPOKE: (State.RUNNING, _NOTHING),
        _Event.STOP: (State.STOPPING, _NOTHING),
        **_ENDS,
    },
    State.RUNNING: {
        _Event.NEED: (State.RUNNING, _NOTHING),
        _Event.NEED_EARLY: (State.RUNNING, _NOTHING),
        _Event.SPOKE: (State.RUNNING, _NOTHING),
        _Event.STOP: (State.STOPPING, _NOTHING),
        **_ENDS,
    },
    State.STOPPING: {
        _Event.NEED: (State.STOPPING, _NOTHING),
        _Event.NEED_EARLY: (State.STOPPING, _NOTHING),
        _Event.SPAWNED: (State.STOPPING, _NOTHING),
        _Event.SPOKE: (State.STOPPING, _NOTHING),
        _Event.STOP: (State.STOPPING, _NOTHING),
        **_STOPPED,
    },
    State.STOPPED: dict.fromkeys(_OVER, (State.STOPPED, _NOTHING)),
    State.FATAL: dict.fromkeys(_OVER, (State.FATAL, _NOTHING)),
}


class _End(Enum):
    """What the end of a process means."""

    QUIET = "no failure, and nobody needs the next one"
    LOST = "a process that had worked is gone, or is missed"
    FAILED = "a failed start"


# (had it spoken, did it exit with 0, is somebody waiting) -> what its end means.
_MEANING: Final[dict[tuple[bool, bool, bool], _End]] = {
    (False, True, False): _End.QUIET,
    (False, True, True): _End.FAILED,
    (False, False, False): _End.FAILED,
    (False, False, True): _End.FAILED,
    (True, True, False): _End.QUIET,
    (True, True, True): _End.LOST,
    (True, False, False): _End.LOST,
    (True, False, True): _End.LOST,
}


class RestartPolicy:
    """Decides when the process of one child is started, again and again.

    A new policy is IDLE: the first `needed` orders the first start.

    Args:
        max_restarts: so many failed starts in a row are the end; 0 gives up at the first, as 1 does.
        mode: "never" gives up at any end that was not excused, whatever its status (`--restart never`).
        sole: whether giving up is for the bridge too: true as long as no child of the bridge was ever ready,
            or this is the only one. May be set at any time, since other children come and go. If false,
            `max_restarts` failed starts make the policy idle instead: `exhausted` is true, the caller refuses
            what waits, and the next need is served after the back-off.

    Every method but the properties raises ValueError if its event cannot happen now (an end without a
    process, a second process): that is a bug in the caller.
    """

    def __init__(
        self,
        *,
        max_restarts: int = MAX_RESTARTS,
        mode: Literal["always", "never"] = "always",
        sole: bool = True,
    ) -> None:
        self.sole = sole
        self._max_restarts = max_restarts
        self._mode = mode
        self._state = State.IDLE
        self._alive = False
        self._spoke = False
        self._failed_starts = 0
        self._delay = BASE_DELAY_S
        self._started_at = 0.0
        # Before the first start there is nothing to wait for, whatever the clock's zero is.
        self._not_before = float("-inf")

    @property
    def state(self) -> State:
        """Where the child stands now."""
        return self._state

    @property
    def failed_starts(self) -> int:
        """Failed starts in a row, for messages and counters."""
        return self._failed_starts

    @property
    def exhausted(self) -> bool:
        """Whether `max_restarts` starts in a row have failed; over with the first start that does not."""
        return self._failed_starts >= max(1, self._max_restarts)

    def needed(self, now: float) -> Decision:
        """Say that the server is needed: by a request, a listen, a legacy subscription, the bridge's start.

        Returns:
            START, WAIT with the time (the back-off runs), or NONE: a process is there or coming, or never
            will be.
        """
        return self._step(_Event.NEED if now >= self._not_before else _Event.NEED_EARLY)

    def due(self, now: float) -> bool:
        """Whether the start that a WAIT announced is to be made now; true once, and then it is ordered.

        False too early (a timer may fire a little before its time: set it again for the same `at`), and when
        the wait is over for another reason.
        """
        return self._state is State.BACKOFF and self.needed(now).action is Action.START

    def spawned(self, now: float) -> Decision:
        """A process runs, since `now`. If the state is STOPPING already, the caller stops it at once."""
        if self._alive:
            raise ValueError("a second process was started while the first is alive")
        decision = self._step(_Event.SPAWNED)
        self._alive = True
        self._spoke = False
        self._started_at = now
        return decision

    def spoke(self, now: float) -> Decision:
        """A valid message came from the process; the first one earns RUNNING, later ones change nothing."""
        del now  # a life is counted from the start; the argument keeps all events alike
        if not self._alive:
            # Said by a process whose end is already settled: it earns nothing for the next one.
            return Decision(_NOTHING)
        self._spoke = True
        self._failed_starts = 0
        return self._step(_Event.SPOKE)

    def spawn_failed(self, now: float, jitter: float, waiting: bool) -> Decision:
        """No process could be made (command gone, fork refused): a failed start, waited for or not.

        Whether the *first* start of a bridge ends it at once (exit 126 and 127) is for the caller to decide.
        """
        del waiting  # an exit with 0 is harmless if nobody waits; a start that was impossible never is
        if self._alive or self._state not in (State.STARTING, State.STOPPING):
            raise ValueError(f"impossible in state {self._state.value}: a start failed that was not ordered")
        self._started_at = now
        return self._over(now, jitter, _End.FAILED)

    def ended(
        self,
        now: float,
        jitter: float,
        *,
        status: int,
        waiting: bool,
        excused: bool = False,
        retired: bool = False,
    ) -> Decision:
        """The process is gone: reaped, its stdout read to the end.

        Args:
            now: monotonic seconds.
            jitter: -1 to 1, drawn evenly.
            status: exit status, negative for a signal.
            waiting: whether anything needs the next process now: queued requests, listens, legacy
                subscriptions.
            excused: the bridge itself is the reason: the process exited on the era probe, or was stopped
                because it refused its handshake. It is replaced at once, in mode "never" too; no failure, and
                neither count changes. The caller sees to it that this cannot go on for ever (the next start
                is not probed).
            retired: nobody can use such a process for now. No failure either, and no other is started
                before there is a need.
        """
        if not self._alive:
            raise ValueError("a process ended that was never started")
        self._alive = False
        if retired and not waiting:
            return self._step(_Event.QUIET)
        if excused or retired:
            return self._step(_Event.EXCUSED)
        return self._over(now, jitter, _MEANING[self._spoke, status == 0, waiting])

    def stopping(self) -> Decision:
        """The bridge stops: nothing is started any more. STOPPED once the last process has ended."""
        return self._step(_Event.STOP)

    def _over(self, now: float, jitter: float, end: _End) -> Decision:
        """Settle both counts for a process (or an attempt) that is over, then move."""
        self._failed_starts = self._failed_starts + 1 if end is _End.FAILED else 0
        old = now - self._started_at >= FORGET_AFTER_S
        if old:
            self._delay = BASE_DELAY_S
            self._not_before = now
        else:
            self._not_before = now + self._delay * (1.0 + JITTER_SHARE * jitter)
            self._delay = min(self._delay * 2.0, MAX_DELAY_S)
        if self._mode == "never":
            return self._step(_Event.FINAL)
        if end is _End.FAILED and self.exhausted:
            return self._step(_Event.FINAL if self.sole else _Event.TIRED)
        if end is _End.QUIET:
            return self._step(_Event.QUIET)
        return self._step(_Event.AGAIN if old else _Event.AGAIN_LATER)

    def _step(self, event: _Event) -> Decision:
        try:
            state, action = _TABLE[self._state][event]
        except KeyError:
            raise ValueError(f"impossible in state {self._state.value}: {event.value}") from None
        self._state = state
        return Decision(action, self._not_before if action is Action.WAIT else None)
