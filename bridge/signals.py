"""The signals a bridge answers to, and the moments at which it must not: its first ones and its last ones.

What each of them does is `bridge.lifecycle`.
"""

from __future__ import annotations

import contextlib
import os
import signal

TYPE_CHECKING = False  # this comes first of all, and `typing` takes time to load
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Final

SERVED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


class EarlySignals:
    """Until the event loop takes over, SIGTERM and SIGINT end the process with 0 and SIGQUIT with 1.

    The system's own way would be a death by signal, a traceback (SIGINT), or nothing at all: as PID 1 of a
    container a process does not get signals it has no handler for, and a stop would wait for the SIGKILL.

    SIGHUP is to replace the server, and the one there may be is new: it must not end the bridge.
    """

    def __init__(self) -> None:
        self._undo: Callable[[], None] | None = None
        self._held = False
        self._code: int | None = None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, self._asked)
        # A handler and not SIG_IGN, which every process that is started meanwhile would inherit.
        signal.signal(signal.SIGHUP, _nothing)

    @contextlib.contextmanager
    def held(self, undo: Callable[[], None]) -> Iterator[None]:
        """Make what has to be undone before the process may end: a signal waits until all of it is made.

        Blocking the signals instead would hand the mask down to every process that is started.

        Args:
            undo: called before the process ends, from the signal handler. Once, but possibly at any moment.
        """
        self._held = True
        try:
            yield
        finally:
            self._undo = undo
            self._held = False
            if self._code is not None:
                self._end(self._code)

    def _asked(self, number: int, frame: object) -> None:
        if self._code is not None:
            return  # it is under way
        self._code = 1 if number == signal.SIGQUIT else 0
        if not self._held:
            self._end(self._code)

    def _end(self, code: int) -> None:
        try:
            if self._undo is not None:
                self._undo()
        finally:
            os._exit(code)


def block_signals() -> None:
    """Keep the served signals from this thread, for good.

    For threads beside the event loop's, and for the very end: a closed loop gives a signal its default action
    back, and a second SIGTERM that comes just then would turn an orderly exit into a death by signal.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SERVED)


def _nothing(number: int, frame: object) -> None:
    """Go on."""
