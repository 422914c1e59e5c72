"""The signals a bridge answers to, and the moments at which it must not: its first ones and its last ones.

What each of them does is `bridge.lifecycle`.
"""

from __future__ import annotations

import os
import signal
from typing import Final, NoReturn

SERVED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


def exit_on_early_signals() -> None:
    """Until the event loop takes over there is nothing to stop: SIGTERM and SIGINT end the process, exit 0.

    The system's own way would be a death by signal, a traceback (SIGINT), or nothing at all: as PID 1 of a
    container a process does not get signals it has no handler for, and a stop would wait for the SIGKILL.

    SIGHUP is to replace the server, and there is none yet: it must not end the bridge.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)
    # A handler and not SIG_IGN, which every process that is started meanwhile would inherit.
    signal.signal(signal.SIGHUP, _nothing)


def block_signals() -> None:
    """Keep the served signals from this thread, for good.

    For threads beside the event loop's, and for the very end: a closed loop gives a signal its default action
    back, and a second SIGTERM that comes just then would turn an orderly exit into a death by signal.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SERVED)


def _exit(number: int, frame: object) -> NoReturn:
    os._exit(0)


def _nothing(number: int, frame: object) -> None:
    """Go on."""
