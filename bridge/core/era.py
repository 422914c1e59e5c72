"""Which era a client needs and a child speaks; the bridge's own first words to a child.

Owns what one child was asked about its era and what it said. Never decides who
receives a client's message.

Spec: 2026-07-28 basic/versioning; basic/transports, "stdio: Backward Compatibility".
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec
from msgspec import Raw, Struct

from bridge.core.jsonrpc import CLIENT_CAPABILITIES, CLIENT_INFO, PROTOCOL_VERSION, request_line

MODERN_VERSION: Final = "2026-07-28"
"""The newest modern revision this bridge was written against; it is what the probe names."""

DISCOVER: Final = "server/discover"


class Era(enum.Enum):
    """How a connection speaks MCP: without a handshake, or with `initialize`."""

    MODERN = "modern"
    LEGACY = "legacy"


class Phase(enum.Enum):
    """How far a child has come."""

    FRESH = "nobody has spoken to it"
    PROBING = "the bridge's server/discover is on its way"
    READY = "it is served"


class Event(enum.Enum):
    """What can happen to a child's handshake."""

    NEED_MODERN = "a client needs the modern era"
    ANSWERED = "it answered the probe"
    EXPIRED = "it did not answer the probe in time"


# Nothing else changes a phase. An answer that comes after the time is up is no event
# any more: the child is served by then.
TRANSITIONS: Final = {
    (Phase.FRESH, Event.NEED_MODERN): Phase.PROBING,
    (Phase.PROBING, Event.ANSWERED): Phase.READY,
    (Phase.PROBING, Event.EXPIRED): Phase.READY,
}


class _Discovered(Struct):
    supportedVersions: list[str] = []


_decode_discovered: Final = msgspec.json.Decoder(_Discovered).decode


class Handshake:
    """The first words between the bridge and one child.

    Args:
        timeout: seconds a child has for its answer to the probe before requests are
            sent to it all the same.
        version: the bridge's own version, told to the server.
    """

    __slots__ = ("_timeout", "_version", "deadline", "phase", "supported")

    def __init__(self, *, timeout: float, version: str) -> None:
        self._timeout = timeout
        self._version = version
        self.phase = Phase.FRESH
        self.deadline: float | None = None
        self.supported: list[str] = []
        """The modern versions the server named, if it did."""

    @property
    def ready(self) -> bool:
        """Whether clients' requests may be written to the child."""
        return self.phase is Phase.READY

    def happen(self, event: Event) -> bool:
        """Take note of an event; return whether it changed the phase."""
        phase = TRANSITIONS.get((self.phase, event))
        if phase is None:
            return False
        self.phase = phase
        if phase is not Phase.PROBING:
            self.deadline = None
        return True

    def probe(self, upstream_id: int, now: float) -> Raw:
        """The probe to write, and the beginning of its time."""
        self.deadline = now + self._timeout
        meta = {
            PROTOCOL_VERSION: MODERN_VERSION,
            CLIENT_INFO: {"name": "mcp-bridge", "version": self._version},
            CLIENT_CAPABILITIES: {},
        }
        return request_line(upstream_id, DISCOVER, {"_meta": meta})

    def learn(self, result: Raw | None) -> None:
        """Read a DiscoverResult; None, or one of another shape, teaches nothing."""
        if result is not None:
            try:
                self.supported = _decode_discovered(result).supportedVersions
            except (msgspec.DecodeError, RecursionError):
                self.supported = []
