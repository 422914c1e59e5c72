"""Moving what waits into a server's stdin: for the shared servers, and for those of single clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bridge.child import Child
from bridge.core.outbox import Key
from bridge.stdin import STDIN_HIGH


class Pumped(Protocol):
    """A server's place in the bridge."""

    key: Key
    pumping: bool

    @property
    def child(self) -> Child | None: ...


def pump(port: Pumped, move: Callable[[Key, int], bool]) -> None:
    """Move what waits into a server's stdin, as far as it takes it.

    Args:
        move: moves so many bytes, more or less, and says whether there is more that could be moved.
    """
    if port.pumping:
        return  # the loop below goes on with it
    port.pumping = True
    try:
        more = True
        while more and (child := port.child) is not None and not child.ending:
            # One more than the mark: up to the mark the transport says nothing.
            room = STDIN_HIGH + 1 - child.unsent
            if room <= 0:
                break
            more = move(port.key, room)
    finally:
        port.pumping = False
