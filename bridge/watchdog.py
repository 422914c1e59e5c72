"""Notices that the event loop hangs, and shows where.

A thread asks the loop for a sign of life every second. If none comes for five seconds in which the loop could
have run, the stacks of all threads go to the log. "Could have run" is the point: on a machine that has no
processor time to give, in a container that is throttled, or in a process that was stopped, everything is
late, nothing hangs, and a stack would only mislead.

| what the loop's thread did meanwhile | counts as hanging |
|---|---|
| computed | yes, the processor time it took |
| waited for a lock, a file, a pipe | yes |
| waited for a processor (Linux tells that) | no |
| nothing, and this thread came late too | no |

What this cannot see while it lasts is C code that never lets go of the interpreter: then this thread cannot
run either. systemd's watchdog can: the loop itself feeds it, and so no longer does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Final

from bridge.signals import block_signals

_log = logging.getLogger("bridge")

LIMIT_S: Final = 5.0
"""Nothing the loop does takes a tenth of this, and nobody's patience is over yet."""

CHECKS: Final = 5
"""How often a sign of life is asked for while the limit runs: with five it is met within a fifth."""


class StallMeter:
    """How long the loop has hung, by fair count. Pure: all times are passed in, in seconds."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._told = False
        self.waited = 0.0
        """Since the last sign of life."""
        self.hung = 0.0
        """Of that, what the loop is to blame for."""

    def alive(self) -> bool:
        """The loop gave a sign. Returns whether it had been reported as hanging."""
        told, self._told = self._told, False
        self.waited = self.hung = 0.0
        return told

    def silent(self, passed: float, *, late: float, busy: float, queued: float) -> bool:
        """The loop gave no sign for another while.

        Args:
            passed: how long that was.
            late: by how much of it the one who measures was late itself.
            busy: processor time the loop's thread took in it.
            queued: time it was ready to run and waited for a processor.

        Returns:
            Whether it hangs, once for each time it does.
        """
        self.waited += passed
        fair = max(busy, passed - max(late, queued))
        self.hung += min(max(fair, 0.0), passed)
        if self.hung < self._limit or self._told:
            return False
        self._told = True
        return True


class ThreadTimes:
    """What the system says about one thread: the processor time it took, and how long it waited for some.

    Both are 0.0 for ever where the system does not tell.
    """

    def __init__(self, thread: int, native: int) -> None:
        """Args: `threading.get_ident()` and `threading.get_native_id()` of a thread of this process."""
        self._clock: int | None = None
        if hasattr(time, "pthread_getcpuclockid"):
            self._clock = time.pthread_getcpuclockid(thread)
        self._folder = f"/proc/self/task/{native}"
        self._queued = self._busy = 0.0
        self.read(0.0)

    def read(self, passed: float) -> tuple[float, float]:
        """Seconds since the last call: (busy, queued). `passed`: how long that call is ago."""
        busy_before, queued_before = self._busy, self._queued
        if self._clock is not None:
            self._busy = time.clock_gettime(self._clock)
        busy = self._busy - busy_before
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"{self._folder}/schedstat") as file:
            self._queued = int(file.read().split()[1]) / 1e9
        queued = self._queued - queued_before
        if busy + queued < passed / 2 and self._runnable():
            # A wait for a processor is booked when it ends; this one goes on.
            queued = passed - busy
        return busy, queued

    def _runnable(self) -> bool:
        try:
            with open(f"{self._folder}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] == "R"
        except (OSError, IndexError):
            return False


class LoopWatchdog:
    """The thread that watches the loop it was made in.

    Args:
        limit: seconds of hanging that are reported.
        report: called from the thread, with the seconds and the stacks.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        limit: float = LIMIT_S,
        report: Callable[[float, str], None] | None = None,
    ) -> None:
        self._loop = loop
        self._limit = limit
        self._report = report or _log_stacks
        self._signs = 0  # written by the loop, read by the thread
        self._over = threading.Event()
        self._times = ThreadTimes(threading.get_ident(), threading.get_native_id())
        self._thread = threading.Thread(target=self._run, name="loop-watchdog", daemon=True)

    def start(self) -> None:
        """Start watching. Without a thread to be had (a limit on processes) nothing is watched."""
        try:
            self._thread.start()
        except (RuntimeError, MemoryError):
            _log.warning("no thread to be had: a hanging event loop would go unnoticed")

    def close(self) -> None:
        """Watch no more; idempotent, and waits for nothing."""
        self._over.set()

    def _sign(self) -> None:
        self._signs += 1

    def _run(self) -> None:
        block_signals()
        meter = StallMeter(self._limit)
        every = self._limit / CHECKS
        asked = 0  # how many signs were asked for
        slow_told = False
        before = time.monotonic()
        while not self._over.wait(every):
            now = time.monotonic()
            passed, before = now - before, now
            busy, queued = self._times.read(passed)
            if self._signs == asked:
                waited = meter.waited
                if meter.alive():
                    _log.warning("the event loop goes on, after %.1f s", waited)
                slow_told = False
                try:
                    self._loop.call_soon_threadsafe(self._sign)
                except RuntimeError:  # it is closed
                    return
                asked += 1
            elif meter.silent(passed, late=passed - every, busy=busy, queued=queued):
                self._report(meter.hung, stacks())
            elif meter.waited >= self._limit and meter.hung < self._limit / 2 and not slow_told:
                slow_told = True
                _log.warning("no processor time: the event loop has waited for some for %.1f s", meter.waited)


def stacks() -> str:
    """The stacks of all threads, the main thread's last, as text. No values: only where each one is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: (item[0] == main, item[0]))
    return "\n".join(
        f"thread {names.get(ident, ident)} (most recent call last):\n"
        + "".join(traceback.format_stack(frame)).rstrip()
        for ident, frame in frames
    )


def task_stacks(loop: asyncio.AbstractEventLoop) -> str:
    """Where each task of a loop waits; to be called from the loop's thread."""
    lines = []
    for task in sorted(asyncio.all_tasks(loop), key=asyncio.Task.get_name):
        frames = task.get_stack()
        where = "".join(
            traceback.format_list(traceback.StackSummary.extract((f, f.f_lineno) for f in frames))
        )
        lines.append(f"{task.get_name()} (most recent call last):\n{where}".rstrip())
    return "\n".join(lines)


def _log_stacks(hung: float, text: str) -> None:
    _log.error("the event loop has hung for %.1f s; where all threads are:", hung, extra={"exc": text})
