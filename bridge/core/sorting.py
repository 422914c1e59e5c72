"""Which clients need a server process of their own: told by what their `initialize` declares.

Owns a client's bytes until that is known. Answers nothing.

Spec: 2025-11-25 basic/lifecycle, "Capability Negotiation".
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, Struct

from bridge.core.codec import Codec
from bridge.core.era import DISCOVER, INITIALIZE
from bridge.core.jsonrpc import Message, decode_members, decode_meta
from bridge.core.legacy import PING

UNDECIDED: Final = frozenset({DISCOVER, PING})
"""Requests that a client may send before `initialize`."""


class Sorted(Struct, frozen=True):
    """What is to be done with bytes of a client.

    `shared` is for the shared server. `apart` is for a server of the client's own: None while nobody
    knows that it needs one. `decided`: the client need not be looked at again.
    """

    shared: bytes
    apart: bytes | None = None
    decided: bool = False


class Sorter:
    """Looks at one client's first lines.

    Args:
        codec: of lines from clients.
        names: capabilities of a client that need a server process of its own.
        limit: the longest line, in bytes; who writes a longer one shares.
        strict: the connection came by TCP; see `Router.client_opened`.
    """

    __slots__ = ("_codec", "_kept", "_limit", "_names", "_strict")

    def __init__(self, codec: Codec, names: frozenset[str], limit: int, *, strict: bool) -> None:
        self._codec = codec
        self._names = names
        self._limit = limit
        self._strict = strict
        self._kept = bytearray()

    @property
    def buffered(self) -> int:
        """Bytes of a line whose end has not come."""
        return len(self._kept)

    def feed(self, data: bytes) -> Sorted:
        """Take what one read has brought."""
        kept = self._kept
        if self._strict:
            self._strict = False  # that goes for its first byte alone
            if data[:1] != b"{":
                return Sorted(data, decided=True)  # it is cut for that
        searched = len(kept)
        kept += data
        begin = 0
        end = kept.find(b"\n", searched)
        while end >= 0:
            decision = self._look(bytes(kept[begin:end]))
            if decision is not None:
                shared = bytes(kept) if decision else bytes(kept[:begin])
                apart = None if decision else bytes(kept[begin:])
                kept.clear()
                return Sorted(shared, apart, decided=True)
            begin = end + 1
            end = kept.find(b"\n", begin)
        if len(kept) - begin > self._limit:
            begin = len(kept)
        shared = bytes(kept[:begin])
        del kept[:begin]
        return Sorted(shared)

    def finish(self) -> Sorted:
        """The client has stopped sending: its last line may be whole without a newline."""
        rest = bytes(self._kept)
        self._kept.clear()
        decision = self._look(rest)
        return Sorted(b"", rest, decided=True) if decision is False else Sorted(rest, decided=True)

    def _look(self, line: bytes) -> bool | None:
        """Whether the writer of this line shares; None: that is still open."""
        message = self._codec.decode_line(line)
        if not isinstance(message, Message) or message.id is UNSET or message.method is UNSET:
            return None
        params = message.params
        if type(params) is not dict:
            return None
        raw = params.get("_meta")
        meta = None if raw is None else decode_meta(raw)
        modern = meta is not None and meta.version is not UNSET
        if message.method in UNDECIDED:
            return None
        if modern and message.method != INITIALIZE:
            return True  # servers of the modern era ask nothing of a client
        if message.method != INITIALIZE:
            return None
        raw = params.get("capabilities")
        declared = (None if raw is None else decode_members(raw)) or {}
        return self._names.isdisjoint(declared)
