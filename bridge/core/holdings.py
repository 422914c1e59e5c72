"""How much the core holds, and for whom: added up where it is asked, from the tables alone."""

from __future__ import annotations

from typing import Final

from bridge.core.inflight import Client
from bridge.core.resources import held_bytes
from bridge.core.tables import Tables

QUEUED_ROOM: Final = 300
"""What a line that waits takes besides its bytes, in bytes: without it a queue of short lines would take
many times what is counted."""


def held_for(tables: Tables, client: Client) -> int:
    """Bytes held for one client: its queues, its unfinished line, what opens its listens."""
    queued = sum(queue.bytes + len(queue) * QUEUED_ROOM for queue in client.waiting.values())
    kept = sum(holder.share.size for holder in client.holders.values())
    subscribed = 0 if client.session is None else held_bytes(client.session)
    if tables.limits.replay_safe:
        for child in tables.children.values():
            entries = [child.inflight[number] for number in client.inflight if number in child.inflight]
            kept += sum(len(one.again.line) + QUEUED_ROOM for one in entries if one.again is not None)
    return client.unread + queued + kept + subscribed


def held_of_servers(tables: Tables) -> int:
    """Bytes held of children's unfinished lines."""
    return sum(child.framer.buffered for child in tables.children.values())
