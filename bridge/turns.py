"""Whose turn it is among the clients that wait for a server process of their own.

Owns who waits, how long after failed starts, and the timer for that. What a turn comes to is `pool.py`'s.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator

from bridge.core.outbox import Key
from bridge.core.pace import Pace
from bridge.insist import insist

_log = logging.getLogger("bridge.server")


class Turns:
    """Clients that wait, in the order in which they came.

    Args:
        go_on: called when a turn may have come by time alone.
    """

    def __init__(self, go_on: Callable[[], None]) -> None:
        self._go_on = go_on
        self._loop = asyncio.get_running_loop()
        self._waiting: OrderedDict[Key, Pace] = OrderedDict()
        # A client that begins with anything but a handshake may well be why its process ends at once: it
        # holds up only its like.
        self._of_handshakes = Pace()
        self._of_others = Pace()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def _paces(self) -> tuple[Pace, Pace]:
        return self._of_handshakes, self._of_others

    def add(self, client: Key, *, handshake: bool) -> None:
        """A client waits. `handshake`: that is what its process will hear first."""
        self._waiting[client] = self._of_handshakes if handshake else self._of_others

    def drop(self, client: Key) -> None:
        """It does not wait any more, if it did."""
        self._waiting.pop(client, None)

    def due(self) -> Iterator[tuple[Key, Pace]]:
        """Whose turn it is, one after the other: the pace is to be told of a process that is started for it.

        Who is not dropped goes on waiting; those whose turn has not come are looked at again when it does.
        """
        # One and the same time for all: what is not due now is so when the timer goes off.
        now = self._loop.time()
        for client, pace in list(self._waiting.items()):
            if self._waiting.get(client) is pace and pace.ready_at(now) <= now:
                yield client, pace
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        later = [at for at in (pace.ready_at(now) for pace in set(self._waiting.values())) if at > now]
        if later:
            self._timer = self._loop.call_at(min(later), insist, self._loop, self._go_on)

    def spoke(self, process: Key) -> bool:
        """A process has said something valid. Whether clients were held up until now."""
        if not any(pace.spoke(process) for pace in self._paces):
            return False
        _log.info("the server starts as it should again")
        return True

    def failed(self, process: Key) -> None:
        """A process has ended before it said anything, or could not be started."""
        now = self._loop.time()
        for pace in self._paces:
            if pace.failed(process, now, random.uniform(-1, 1)):
                wait = pace.ready_at(now) - now
                times = "once" if pace.failures == 1 else f"{pace.failures} times in a row"
                _log.warning("the server failed to start %s: the next one waits %.1f s", times, wait)

    def ended(self, process: Key) -> None:
        """A process has ended otherwise, or its failure was told."""
        for pace in self._paces:
            pace.ended(process)

    def forget(self) -> None:
        """The server is to be another one from now on: nobody has to wait for the sake of the old one."""
        for pace in self._paces:
            pace.forget()

    def stop(self) -> None:
        """Nobody's turn comes any more."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
