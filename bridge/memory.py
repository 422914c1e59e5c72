"""All buffers of a bridge together: bounded, and given back.

Owns the list of clients that are slow to read. What is held where is asked of those who hold it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from bridge.client import ClientConnection
from bridge.core.outbox import Key
from bridge.tuning import give_memory_back

_log = logging.getLogger("bridge")

UNCHECKED: Final = 4 * 1024 * 1024
"""How many bytes may come in before all buffers are added up, whether anybody is slow to read or not."""

SWOLLEN: Final = 32 * 1024 * 1024
"""When all buffers together have held more than so many bytes, the memory is given back once they are empty:
the allocator would keep what lies below anything that is still in use."""

GIVE_BACK: Final = 0.1
"""How long after that, in seconds: who was cut a moment ago still holds what it was to be sent."""


class Memory:
    """Keeps all buffers together within bounds: the client that holds most is cut.

    Args:
        limit: in bytes.
        connections: all clients; one that is cut is taken out.
        held_for: bytes held for one client, beside what its connection has not been able to send.
        held_else: bytes held for nobody in particular.
        tick_soon: called when `needs_tick` may have become true.
    """

    __slots__ = (
        "_congested",
        "_connections",
        "_held_else",
        "_held_for",
        "_limit",
        "_swollen",
        "_tick_soon",
        "_unchecked",
    )

    def __init__(
        self,
        limit: int,
        connections: dict[Key, ClientConnection],
        held_for: Callable[[Key], int],
        held_else: Callable[[], int],
        tick_soon: Callable[[], None],
    ) -> None:
        self._limit = limit
        self._connections = connections
        self._held_for = held_for
        self._held_else = held_else
        self._tick_soon = tick_soon
        self._congested: dict[Key, ClientConnection] = {}
        self._unchecked = 0
        self._swollen = False

    @property
    def needs_tick(self) -> bool:
        """Whether `enforce` is to be called again in a while."""
        return bool(self._congested) or self._swollen

    def came(self, size: int) -> None:
        """Bytes have come in: lines without an end, and queues, grow without anybody being slow to read."""
        self._unchecked += size
        if self._unchecked > UNCHECKED:
            self.enforce()

    def congested(self, key: Key, connection: ClientConnection) -> None:
        """A client does not read as fast as it is sent to."""
        self._congested[key] = connection
        self._tick_soon()

    def forget(self, key: Key) -> None:
        """A client is gone."""
        self._congested.pop(key, None)

    def enforce(self) -> None:
        """Add all buffers up, and cut who holds most until they are within the limit."""
        self._unchecked = 0
        for key in [key for key, connection in self._congested.items() if not connection.congested]:
            del self._congested[key]
        while True:
            held = {key: c.unread + self._held_for(key) for key, c in self._connections.items()}
            total = sum(held.values()) + self._held_else()
            self._weigh(total)
            if total <= self._limit or not held:
                return
            key = max(held, key=held.__getitem__)
            if not held[key]:
                return
            _log.warning("client %d was cut: of %d bytes in all buffers it had %d", key, total, held[key])
            self._connections.pop(key).abort()

    def _weigh(self, total: int) -> None:
        """Give memory back to the system when much was held and little is."""
        if total > SWOLLEN:
            self._swollen = True
            self._tick_soon()
        elif self._swollen and total < SWOLLEN // 4:
            self._swollen = False
            asyncio.get_running_loop().call_later(GIVE_BACK, give_memory_back)
