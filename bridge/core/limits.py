"""What the operator decides for the core: its bounds, and the era it speaks. Imports next to nothing: it is
known before the server is started, which comes before everything that takes time to load.
"""

from __future__ import annotations

import enum

from bridge.core.frozen import Frozen


class Era(enum.Enum):
    """How a connection speaks MCP: without a handshake, or with `initialize`."""

    MODERN = "modern"
    LEGACY = "legacy"

    # By identity: the one that Enum brings hashes the name, at ten times the price.
    __hash__ = object.__hash__

    @property
    def other(self) -> Era:
        """The era that this one is not."""
        return Era.LEGACY if self is Era.MODERN else Era.MODERN


class Limits(Frozen):
    """Every bound of the core, with its default. Sizes in bytes, times in seconds."""

    max_request: int = 10 * 1024 * 1024 - 1
    """A line to the server. A longer one ends any server on the TypeScript SDK."""
    max_message: int = 64 * 1024 * 1024
    """A line from the server."""
    max_depth: int = 128
    """Nesting of a client's message. SDK servers never answer at 200."""
    max_in_flight: int = 256
    """Requests of one client at the server."""
    max_queued: int = 4096
    """Lines of one client that wait."""
    max_queued_bytes: int = 16 * 1024 * 1024
    max_subscriptions: int = 64
    """Of one client."""
    max_subscriptions_all: int = 4096
    bad_lines: int = 10
    """Lines in a row that are not JSON, after which a connection is closed."""
    restart_wait: float = 30.0
    """How long a request waits while there is no server process."""
    probe_timeout: float = 10.0
    """How long a child has to answer the probe before legacy clients go ahead."""
    start_timeout: float = 120.0
    """How old a silent child may become before clients are told that it does not serve them."""
    linger: float = 60.0
    """How long a client that has stopped sending is still answered."""
    request_timeout: float | None = None
    swap_drain: float = 600.0
    """How long an old process may take to answer what it was sent before it was replaced."""
    paused_bytes: int = 256 * 1024
    """A client whose queue is longer is not read while stdin is blocked."""
    paused_lines: int = 64
    turn_bytes: int = 16 * 1024
    """What one client may move into stdin before it is the next one's turn."""
    replay_safe: bool = False
    """What only reads is sent once more when its server ended before it answered."""
    broadcast_logs: bool = False
    """Log notifications that several clients could have asked for go to each of them: a leak."""
    era: Era | None = None
    """The era the operator decided on: a child is made ready in it before a client needs it."""
