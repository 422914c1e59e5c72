"""Bytes to lines: where a line begins and ends, and nothing about what it says.

Owns the unfinished line of one connection. Never decodes, never looks for
anything but the newline, and never searches a byte twice.

Spec: 2026-07-28 basic/transports, "stdio": one message a line, ended by a newline.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

Block = bytes | bytearray
"""One or more whole lines, each with its newline, in the order they came."""

HEAD_KEPT: Final = 4096
"""How much of the beginning and of the end of a line over the limit is kept, in
bytes: enough for an `id` of 1 KiB (the longest that is served) and its neighbours."""


class OverlongStart(Struct, frozen=True):
    """A line has grown over the limit; what follows of it is skipped as it comes.

    `head` is its first 4 KiB, or as much as the limit if that is less, so that an
    `id` in front can be answered at once.
    """

    head: bytes


class OverlongEnd(Struct, frozen=True):
    """The newline of an overlong line has come. `tail` is what stood before it, 4 KiB at most."""

    tail: bytes


Segment = Block | OverlongStart | OverlongEnd


_NOTHING: Final = bytearray()
"""One for all connections: most of them hold nothing most of the time. Never added to."""


class LineFramer:
    """Cut one byte stream into blocks of whole lines.

    Args:
        limit: the longest unfinished line that is buffered, in bytes without its
            newline. A longer one is reported and skipped without being buffered.

    The unfinished line lives in one bytearray, which is handed out when its
    newline comes, not copied.
    """

    __slots__ = ("_head_kept", "_held", "_skipping", "_tail", "busy", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.busy = False
        """The next byte goes on with a line that has begun. If it is not, whole lines need no `feed`."""
        self._head_kept = min(HEAD_KEPT, limit)
        self._held = _NOTHING
        self._tail = b""
        self._skipping = False

    @property
    def buffered(self) -> int:
        """Bytes held for the unfinished line."""
        return len(self._held)

    def feed(self, data: bytes) -> list[Segment]:
        """Take what one read brought; return the lines it completed, in order.

        Any split of the same bytes gives the same lines.
        """
        segments = self._cut(data)
        self.busy = bool(self._held) or self._skipping
        return segments

    def _cut(self, data: bytes) -> list[Segment]:
        if not self.busy and data.endswith(b"\n") and len(data) <= self.limit:
            return [data]
        segments: list[Segment] = []
        if self._skipping:
            end = data.find(b"\n")
            if end < 0:
                self._tail = (self._tail + data)[-HEAD_KEPT:]
                return segments
            segments.append(OverlongEnd((self._tail + data[:end])[-HEAD_KEPT:]))
            self._skipping = False
            self._tail = b""
            data = data[end + 1 :]
        end = data.rfind(b"\n") + 1
        if end == 0:
            self._hold(data, segments)
            return segments
        block: Block
        if self._held:
            self._held += data[:end]
            block = self._held
            self._held = _NOTHING
        else:
            block = data[:end]
        if len(block) > self.limit:
            self._sieve(block, segments)
        else:
            segments.append(block)
        if end < len(data):
            self._hold(data[end:], segments)
        return segments

    def _sieve(self, block: Block, segments: list[Segment]) -> None:
        """Part the lines over the limit from the others: how they were cut up must not matter."""
        good = begin = 0
        while begin < len(block):
            end = block.find(b"\n", begin)
            if end - begin > self.limit:
                if begin > good:
                    segments.append(block[good:begin])
                line = block[begin:end]
                segments.append(OverlongStart(bytes(line[: self._head_kept])))
                segments.append(OverlongEnd(bytes(line[-HEAD_KEPT:])))
                good = end + 1
            begin = end + 1
        if begin > good:
            segments.append(block[good:begin])

    def _hold(self, data: bytes, segments: list[Segment]) -> None:
        if not self._held:
            self._held = bytearray()
        self._held += data
        if len(self._held) > self.limit:
            segments.append(OverlongStart(bytes(self._held[: self._head_kept])))
            self._tail = bytes(self._held[-HEAD_KEPT:])
            self._held = _NOTHING
            self._skipping = True

    def finish(self) -> list[Segment]:
        """The stream has ended: return its last line if that lacked its newline."""
        segments: list[Segment] = []
        if self._skipping:
            segments.append(OverlongEnd(self._tail))
        elif self._held:
            self._held += b"\n"
            segments.append(self._held)
        self._held = _NOTHING
        self._tail = b""
        self._skipping = self.busy = False
        return segments
