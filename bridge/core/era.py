"""Which era a child speaks: the bridge's own first words to it, as a table of states.

Owns what one child was asked about its era and what it said. Never decides who
receives a client's message, nor which child a client is served by.

Spec: 2026-07-28 basic/versioning; basic/transports, "stdio: Backward Compatibility";
2025-11-25 basic/lifecycle.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from bridge.core.codec import Codec
from bridge.core.jsonrpc import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION,
    Members,
    Message,
    decode_members,
    request_line,
)
from bridge.core.limits import Era as Era

MODERN_VERSION: Final = "2026-07-28"
"""The newest modern revision this bridge was written against; it is what the probe names."""

LEGACY_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""The legacy revisions this bridge knows, oldest first. It asks servers for the last."""

DISCOVER: Final = "server/discover"
INITIALIZE: Final = "initialize"

UNSUPPORTED_VERSION: Final = -32022
"""The specification's UnsupportedProtocolVersion."""


class Phase(enum.Enum):
    """How far a child has come."""

    FRESH = "nobody has spoken to it"
    PROBING = "the bridge's server/discover is on its way"
    LATE = "it has not answered the probe in time, and may yet"
    SPURNED = "it refused the modern era, and nothing else was asked of it"
    INITIALIZING = "the bridge's initialize is on its way"
    OVERTAKING = "the bridge's initialize is on its way, behind a probe that it may yet answer"
    YIELDING = "it answered the probe as a modern server does, with initialize on its way"
    MODERN = "it is served without a handshake"
    LEGACY = "its session is open"
    USELESS = "it refused initialize"


class Event(enum.Enum):
    """What can happen to a child's handshake."""

    NEED_MODERN = "a client needs the modern era"
    NEED_LEGACY = "a client needs the legacy era"
    DISCOVERED = "it answered the probe as a modern server does"
    SPURNED = "it answered the probe with a refusal"
    PROBE_EXPIRED = "it did not answer the probe in time"
    INITIALIZED = "it answered initialize"
    REFUSED = "it refused initialize"


class Action(enum.Enum):
    """What follows from an event for the rest of the bridge."""

    PROBE = "write the probe"
    INITIALIZE = "write initialize"
    OPEN_MODERN = "serve modern clients with it"
    OPEN_LEGACY = "serve legacy clients with it"
    REFUSE_MODERN = "modern clients cannot be served"
    REFUSE_LEGACY = "legacy clients cannot be served"
    WAIT = "go on waiting, and let legacy clients go ahead"


# What is missing changes nothing: a second answer, an answer to what was given up. A
# DiscoverResult that comes while initialize is on its way decides nothing yet: which of the
# two the child has settled on is known only from its answer to the second. If it opens a
# session, it is legacy; if it turns it down, then because the probe had settled it.
TRANSITIONS: Final[dict[tuple[Phase, Event], tuple[Phase, Action | None]]] = {
    (Phase.FRESH, Event.NEED_MODERN): (Phase.PROBING, Action.PROBE),
    (Phase.FRESH, Event.NEED_LEGACY): (Phase.INITIALIZING, Action.INITIALIZE),
    (Phase.PROBING, Event.DISCOVERED): (Phase.MODERN, Action.OPEN_MODERN),
    (Phase.PROBING, Event.SPURNED): (Phase.SPURNED, Action.REFUSE_MODERN),
    (Phase.PROBING, Event.PROBE_EXPIRED): (Phase.LATE, Action.WAIT),
    (Phase.LATE, Event.DISCOVERED): (Phase.MODERN, Action.OPEN_MODERN),
    (Phase.LATE, Event.SPURNED): (Phase.SPURNED, Action.REFUSE_MODERN),
    (Phase.LATE, Event.NEED_LEGACY): (Phase.OVERTAKING, Action.INITIALIZE),
    # Only after the refusal was forgotten: until then nobody needs it.
    (Phase.SPURNED, Event.NEED_MODERN): (Phase.PROBING, Action.PROBE),
    (Phase.SPURNED, Event.NEED_LEGACY): (Phase.INITIALIZING, Action.INITIALIZE),
    (Phase.INITIALIZING, Event.INITIALIZED): (Phase.LEGACY, Action.OPEN_LEGACY),
    (Phase.INITIALIZING, Event.REFUSED): (Phase.USELESS, Action.REFUSE_LEGACY),
    (Phase.OVERTAKING, Event.DISCOVERED): (Phase.YIELDING, None),
    (Phase.OVERTAKING, Event.SPURNED): (Phase.INITIALIZING, Action.REFUSE_MODERN),
    (Phase.OVERTAKING, Event.INITIALIZED): (Phase.LEGACY, Action.OPEN_LEGACY),
    (Phase.OVERTAKING, Event.REFUSED): (Phase.USELESS, Action.REFUSE_LEGACY),
    (Phase.YIELDING, Event.INITIALIZED): (Phase.LEGACY, Action.OPEN_LEGACY),
    (Phase.YIELDING, Event.REFUSED): (Phase.MODERN, Action.OPEN_MODERN),
}

UNANSWERED_PROBE: Final = frozenset({Phase.PROBING, Phase.LATE, Phase.OVERTAKING})
"""In which a child may yet answer the probe, or exit on it."""

AWAITING_GREETING: Final = frozenset({Phase.INITIALIZING, Phase.OVERTAKING, Phase.YIELDING})
"""In which a child has yet to answer `initialize`."""


class Discovered(Struct, frozen=True):
    """A DiscoverResult, as far as the bridge must know it."""

    supportedVersions: list[str] = []


class _RefusalData(Struct):
    supported: list[str] = []


class _Refusal(Struct):
    """An error to the probe or to `initialize`, as far as the bridge must know it."""

    code: int = 0
    message: str = ""
    data: Raw = Raw(b"null")


_decode_discovered: Final = msgspec.json.Decoder(Discovered).decode
_decode_refusal: Final = msgspec.json.Decoder(_Refusal).decode
_decode_refusal_data: Final = msgspec.json.Decoder(_RefusalData).decode
_decode_text: Final = msgspec.json.Decoder(str).decode


class Greeting(Struct, frozen=True):
    """What a legacy server said to the bridge's `initialize`: what every client's is answered from."""

    result: Members
    """Of its InitializeResult; owned."""
    version: str
    capabilities: bytes

    def same_session(self, other: Greeting) -> bool:
        """Whether a client that was greeted with the other may go on with this one."""
        return self.version == other.version and self.capabilities == other.capabilities


class Handshake:
    """The first words between the bridge and one child.

    Args:
        version: the bridge's own version, told to the server.
        decided: the era the operator decided on, if any: then no answer to the probe, and
            no silence, says otherwise.
    """

    __slots__ = ("_version", "behind_probe", "deadline", "decided", "phase")

    def __init__(self, *, version: str, decided: Era | None = None) -> None:
        self._version = version
        self.decided = decided
        self.phase = Phase.FRESH
        self.deadline: float | None = None
        """When the child has been silent for too long; whoever asked it sets it."""
        self.behind_probe = 0
        """Bytes that were written behind an unanswered probe: a child that exits on the probe may leave them
        unread."""

    @property
    def era(self) -> Era | None:
        """The era it is served in, if it is."""
        return _SERVED.get(self.phase)

    def happen(self, event: Event) -> Action | None:
        """Take note of an event; return what follows, or None if nothing does."""
        if self.decided is Era.MODERN and event in (Event.SPURNED, Event.PROBE_EXPIRED):
            event = Event.DISCOVERED
        step = TRANSITIONS.get((self.phase, event))
        if step is None:
            return None
        self.phase, action = step
        if self.phase not in AWAITING_GREETING:
            self.deadline = None
        return action

    def probe(self, upstream_id: int) -> Raw:
        """The probe to write."""
        meta = {
            PROTOCOL_VERSION: MODERN_VERSION,
            CLIENT_INFO: {"name": "mcp-bridge", "version": self._version},
            CLIENT_CAPABILITIES: {},
        }
        return request_line(upstream_id, DISCOVER, {"_meta": meta})

    def initialize(self, upstream_id: int) -> Raw:
        """The `initialize` to write: with no capabilities, so that the server need not call back."""
        params = {
            "protocolVersion": LEGACY_VERSIONS[-1],
            "capabilities": {},
            "clientInfo": {"name": "mcp-bridge", "version": self._version},
        }
        line = request_line(upstream_id, INITIALIZE, params)
        if self.phase is Phase.OVERTAKING:
            self.behind_probe = len(memoryview(line)) + 1
        return line


_SERVED: Final = {Phase.MODERN: Era.MODERN, Phase.LEGACY: Era.LEGACY}


class Verdict(Struct, frozen=True):
    """What the answer to a probe, or to `initialize`, says of an era.

    `spoken`: the server serves it. Otherwise `lasting` says that it never will, `error` is its
    own error if it sent one.
    """

    spoken: bool
    supported: list[str] = []
    lasting: bool = False
    error: Raw | None = None


def read_probe(message: Message | None, codec: Codec) -> Verdict:
    """What a server's answer to `server/discover` says of the modern era.

    Args:
        message: the response; None if it could not be read.

    Any result is a modern server's, and so is UnsupportedProtocolVersion if it lists
    versions; every other error is a legacy server's, whatever its code.
    """
    if message is None:
        return Verdict(False)
    if message.error is UNSET:
        try:
            supported = _decode_discovered(codec.owned(message, message.result)).supportedVersions  # type: ignore[arg-type]  # one of the two is set
        except (msgspec.DecodeError, RecursionError):
            supported = []
        return Verdict(True, supported)
    code, listed, error = _read_error(Raw(codec.owned(message, message.error)))
    modern = [version for version in listed if version not in LEGACY_VERSIONS]
    if code == UNSUPPORTED_VERSION and modern:
        return Verdict(True, modern)
    return Verdict(False, listed, code in (METHOD_NOT_FOUND, UNSUPPORTED_VERSION) or bool(listed), error)


def read_initialize(message: Message | None, codec: Codec) -> Verdict | Greeting:
    """What a server's answer to `initialize` says of the legacy era: a greeting, or that it is refused."""
    if message is None:
        return Verdict(False)
    if message.error is not UNSET:
        code, listed, error = _read_error(Raw(codec.owned(message, message.error)))
        return Verdict(False, listed, code in (METHOD_NOT_FOUND, UNSUPPORTED_VERSION) or bool(listed), error)
    members = decode_members(message.result)  # type: ignore[arg-type]  # one of the two is set
    try:
        version = _decode_text(members["protocolVersion"]) if members else ""
    except (KeyError, msgspec.DecodeError):
        version = ""
    if not members or not version:
        return Verdict(False)
    owned = {name: Raw(codec.owned(message, value)) for name, value in members.items()}
    return Greeting(owned, version, bytes(owned.get("capabilities", Raw(b"{}"))))


def _read_error(error: Raw) -> tuple[int, list[str], Raw]:
    """Code, versions it names, and the bytes of an error object."""
    try:
        refusal = _decode_refusal(error)
    except (msgspec.DecodeError, RecursionError):
        return 0, [], error
    try:
        supported = _decode_refusal_data(refusal.data).supported
    except (msgspec.DecodeError, RecursionError):
        supported = []
    return refusal.code, supported, error


def negotiate(asked: str, served: str) -> str:
    """The version a legacy client is told: its own if the bridge knows it and the server is not older."""
    return asked if asked in LEGACY_VERSIONS and asked <= served else served
