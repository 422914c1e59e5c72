"""PID 1 inherits every orphan of its container: each has to be waited for, or it stays a zombie for ever.

A bridge started as a container's command is PID 1. Its own children, the servers and the guard, are reaped
by whoever started them, who needs their exit status and their process id until then; `claim` and `release`
tell which those are.
"""

from __future__ import annotations

import contextlib
import os
import signal

from bridge.insist import insist

TYPE_CHECKING = False  # children are claimed before anything slow is imported: see bridge.headstart
if TYPE_CHECKING:
    import asyncio
    from typing import Final

LOOK_AGAIN_S: Final = 0.1
"""When a child of our own hides what is behind it: it is reaped by its owner within a moment."""

ORPHANS_A_TURN: Final = 256
"""How many orphans are reaped in one turn of the loop: thousands may die at once, and others want a turn."""

# Of the whole process, as its children are.
_own: set[int] = set()


def claim(pid: int) -> None:
    """This child has an owner that waits for it. To be called right after it was started."""
    _own.add(pid)


def release(pid: int) -> None:
    """Its owner has waited for it: the number may be a stranger's from now on."""
    _own.discard(pid)


class Reaper:
    """Waits for orphans, in the thread of the event loop. Start it only where orphans come to: as PID 1."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._later: asyncio.TimerHandle | None = None
        self._called = False
        # Not the loop's own way: uvloop keeps this signal to itself. It wakes up for it all the same.
        signal.signal(signal.SIGCHLD, self._child_ended)
        self.reap()  # what died before

    def close(self) -> None:
        """Reap no more."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if self._later is not None:
            self._later.cancel()

    def _child_ended(self, number: int, frame: object) -> None:
        # Between any two instructions of the main thread: not the moment to do anything.
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(insist, self._loop, self.reap)

    def reap(self) -> None:
        """Wait for every orphan that has ended; the bridge's own children are left alone."""
        import logging  # has been imported long since, by the event loop

        self._called = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        for _ in range(ORPHANS_A_TURN):
            # A look that takes nothing away: only then is it known whose child it is.
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            if found.si_pid in _own:
                # The system shows the same one until it is reaped, and no signal comes for those behind it.
                break
            with contextlib.suppress(ChildProcessError):
                os.waitpid(found.si_pid, 0)
            logging.getLogger("bridge").debug("an orphan (pid %d) was reaped", found.si_pid)
        self._later = self._loop.call_later(LOOK_AGAIN_S, insist, self._loop, self.reap)
