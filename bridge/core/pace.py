"""How fast server processes are started that end before they have said anything.

For clients with a process each: any number of processes may run, so `restart.py`, which keeps one alive, does
not fit. Nobody is held up while starts succeed. After a failed one the next waits, ever longer, and goes
alone; what it comes to decides for all who wait. Never waits itself or reads a clock.
"""

from __future__ import annotations

from typing import Final

from bridge.core.outbox import Key
from bridge.core.restart import BASE_DELAY_S, FORGET_AFTER_S, JITTER_SHARE, MAX_DELAY_S

_NEVER: Final = float("-inf")


class Pace:
    """When the next process may be started.

    `now` is monotonic seconds. A process that was started is to be reported once more: by `spoke`, `failed`
    or `ended`; what is said of any other changes nothing.
    """

    __slots__ = ("_delay", "_failed_at", "_not_before", "_started", "_trial", "failures")

    def __init__(self) -> None:
        self.failures = 0
        """Failed starts in a row; those of processes that ran side by side count once."""
        self._delay = BASE_DELAY_S
        self._failed_at = _NEVER
        self._not_before = _NEVER
        self._started: dict[Key, float] = {}
        """Processes that have not spoken, and when they were started."""
        self._trial: Key | None = None
        """The one process that was started since the last failure."""

    def ready_at(self, now: float) -> float:
        """When the next process may be started: `now`, or later."""
        if not self.failures:
            return now
        if self._trial is not None:
            # One that lives so long was not ended by its own start, though it may have been asked nothing.
            return max(now, self._started[self._trial] + FORGET_AFTER_S)
        return max(now, self._not_before)

    def started(self, key: Key, now: float) -> None:
        """A process is started; `ready_at` allowed it."""
        self._started[key] = now
        if self.failures:
            self._trial = key

    def spoke(self, key: Key) -> bool:
        """A process has said something valid: starts are worth their while. Whether anybody was held up."""
        if self._started.pop(key, None) is None or not self.failures:
            return False
        self.forget()
        return True

    def failed(self, key: Key, now: float, jitter: float) -> bool:
        """A process has ended by itself before it said anything, or could not be started.

        Args:
            jitter: -1 to 1, drawn evenly: bridges whose servers share a cause of death keep out of step.

        Returns:
            Whether it is a further failure: one that was started before the last failure came is not.
        """
        started = self._take(key)
        if started is None or started < self._failed_at:
            return False
        if now - started >= FORGET_AFTER_S:
            self._delay = BASE_DELAY_S
        self.failures += 1
        self._failed_at = now
        self._not_before = now + self._delay * (1.0 + JITTER_SHARE * jitter)
        self._delay = min(2 * self._delay, MAX_DELAY_S)
        return True

    def ended(self, key: Key) -> None:
        """A process that has said nothing was stopped, which tells nothing."""
        self._take(key)

    def forget(self) -> None:
        """The server is another one, or works again: nobody has to wait."""
        self.failures = 0
        self._delay = BASE_DELAY_S
        self._trial = None

    def _take(self, key: Key) -> float | None:
        if self._trial == key:
            self._trial = None
        return self._started.pop(key, None)
