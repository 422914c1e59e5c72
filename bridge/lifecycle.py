"""A bridge's life as the outside steers it: signals, the service manager, and being PID 1.

Owns when the bridge ends and with which exit code. How it ends, in which order and with which errors, is
`hub.py`'s.

| signal | what happens |
|---|---|
| SIGTERM, SIGINT | `over` is set to 0: a stop in order; the second one sets `hurried`: no more waiting |
| SIGQUIT | the stacks of all threads and tasks go to the log; `over` is set to 1, `hurried` |
| SIGHUP | the servers are replaced: `replace` is called |
| SIGCHLD | as PID 1 only: orphans are reaped, see `bridge.reaper` |
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable

from bridge.insist import insist
from bridge.notify import Notifier
from bridge.reaper import Reaper
from bridge.watchdog import LoopWatchdog, stacks, task_stacks

_log = logging.getLogger("bridge")


class Lifecycle:
    """From the first signal handler to the last.

    Args:
        replace: called at SIGHUP, from the loop; `replaced` has to be called when it is done.

    Attributes:
        over: the exit code, once it is known that the bridge ends.
        notifier: tells the service manager how things stand.
    """

    def __init__(self, replace: Callable[[], None], *, notifier: Notifier | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._replace = replace
        self.notifier = Notifier.from_environment() if notifier is None else notifier
        self.over: asyncio.Future[int] = self._loop.create_future()
        self._hurry = asyncio.Event()
        self._watchdog = LoopWatchdog(self._loop)
        self._reaper: Reaper | None = None
        self._feeding: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Answer to signals from now on, and be watched."""
        add, loop = self._loop.add_signal_handler, self._loop
        add(signal.SIGTERM, insist, loop, self._asked_to_stop, "SIGTERM")
        add(signal.SIGINT, insist, loop, self._asked_to_stop, "SIGINT")
        add(signal.SIGQUIT, insist, loop, self._asked_to_quit)
        add(signal.SIGHUP, insist, loop, self._asked_to_replace)
        if os.getpid() == 1:
            self._reaper = Reaper(self._loop)
        self._watchdog.start()
        self._feed()

    def ready(self) -> None:
        """Every listener accepts."""
        self.notifier.ready()

    def replaced(self) -> None:
        """What `replace` began is done, or has failed: the servers stand as they will for now."""
        if not self.over.done():
            self.notifier.ready()

    def end(self, code: int, why: str = "stopping") -> None:
        """The bridge ends, by itself or as it was asked to; the first reason counts.

        Args:
            why: what the service manager shows from now on, also when the bridge has gone.
        """
        if not self.over.done():
            self.over.set_result(code)
            self.notifier.stopping()
            self.notifier.status(why)

    @property
    def hurried(self) -> bool:
        """Whether nobody is to be waited for any more."""
        return self._hurry.is_set()

    async def pause(self, seconds: float) -> None:
        """Wait, but no longer than until somebody is in a hurry."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), seconds)

    def finish(self) -> None:
        """The last step. Signals stay with the loop until that is closed, so that none of them kills."""
        self._watchdog.close()
        if self._feeding is not None:
            self._feeding.cancel()
        if self._reaper is not None:
            self._reaper.close()
        self.notifier.close()

    def _asked_to_stop(self, name: str) -> None:
        if self.over.done():
            self._hurry.set()
            return
        _log.info("%s: stopping", name)
        self.end(0)

    def _asked_to_quit(self) -> None:
        text = "\n".join([task_stacks(self._loop), stacks()])
        _log.warning("SIGQUIT: stopping at once; where everything is:", extra={"exc": text})
        self._hurry.set()
        self.end(1)

    def _asked_to_replace(self) -> None:
        if not self.over.done():
            self.notifier.reloading()
            self._replace()

    def _feed(self) -> None:
        """Feed the service manager's watchdog: from the loop, so that it starves when the loop hangs."""
        if self.notifier.watchdog_s is not None:
            self._feeding = self._loop.call_later(self.notifier.watchdog_s, insist, self._loop, self._feed)
            self.notifier.watchdog()
