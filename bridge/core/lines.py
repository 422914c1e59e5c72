"""From bytes of a client to its messages: lines, and what becomes of those that are none.

Owns what a client is told of a line that is no message. What becomes of a message is
decided by whoever reads the lines: `downstream.py` or `isolated.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Final

from msgspec import UNSET, UnsetType

from bridge.core import jsonrpc
from bridge.core.codec import ARRAY, CR, is_utf8, lines_of
from bridge.core.framing import Block, OverlongEnd, OverlongStart, Segment
from bridge.core.glance import guess_id
from bridge.core.inflight import Client
from bridge.core.jsonrpc import Call, Id, Message, Refusal
from bridge.core.outbox import Control
from bridge.core.tables import NoticeKind, Tables

REWRITE_ROOM: Final = 64
"""By how many bytes an upstream id and token can lengthen a request at most."""

TURN_LINES: Final = 1000
"""So many lines of one client are looked at one by one, at several microseconds each, before others have
their turn. One read may bring a hundred thousand of them; those of plain messages are not counted."""


class ClientLines:
    """Reads what clients write. Subclasses carry the messages out."""

    __slots__ = ("_codec", "_measured", "_tables")

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._codec = tables.codec_down
        # A rewritten line can be longer than it came: near the limit each is measured.
        self._measured = tables.limits.max_request - REWRITE_ROOM

    def message(self, client: Client, message: Call, measured: bool) -> None:
        """Take a valid message of a client.

        Args:
            measured: it may be too long once it is rewritten.
        """

    def quick(self, client: Client, lines: Iterator[bytes], short: int) -> bytes | None:
        """Carry out plain lines of a client for as long as they are ordinary.

        Args:
            short: see `Codec.short`.

        Returns:
            The first that is not, taken out of `lines`; None if there is none.
        """
        return next(lines, None)

    def cut(self, client: Client, why: bytes) -> None:
        """Disconnect a client for what it did, behind what it is still sent."""

    def data(self, client: Client, data: bytes) -> None:
        """Take what one read from a client brought."""
        framer = client.framer
        if client.greeted and not framer.busy and data[-1:] == b"\n" and len(data) <= self._measured:
            # The common case: nothing is copied, nothing is kept.
            if CR not in data and data.isascii():
                lines = BytesIO(data)
                short = self._codec.short if ARRAY in data else self._codec.short_flat
                line = self.quick(client, lines, short)
                if line is not None:
                    self._lines(client, line, lines, short, plain=True, quick=True)
            else:
                self.block(client, data)
            return
        if not client.greeted and data:
            client.greeted = True
            if client.strict and data[:1] != b"{":
                # A web page can have a browser POST to a port; its first byte gives it away.
                self._bad_line(client, "the first byte of a TCP connection must be `{`", data)
                return
        segments = framer.feed(data)
        if client.deferred:
            segments = [*client.deferred, *segments]
        self._segments(client, segments)

    def turn(self, client: Client) -> None:
        """Go on with what was left for another turn."""
        client.framer.feed(b"")  # it says again by itself whether it is busy
        self._segments(client, client.deferred)

    def _segments(self, client: Client, segments: Sequence[Segment]) -> None:
        client.deferred = ()
        for number, segment in enumerate(segments, 1):
            if client.closing:
                return
            if type(segment) is OverlongStart or type(segment) is OverlongEnd:
                self._overlong(client, segment)
                continue
            self.block(client, segment)  # type: ignore[arg-type]  # what is left of the union
            if client.deferred:
                client.deferred = [*client.deferred, *segments[number:]]
                return

    def finish(self, client: Client) -> None:
        """A client has stopped sending: its last line counts without a newline, if it is a whole message.

        Unless it is cut for what stands before that.
        """
        while client.deferred:
            self.turn(client)
        if client.closing:
            return
        for segment in client.framer.finish():
            if type(segment) is OverlongEnd:
                self._overlong(client, segment)
            elif type(self._tables.codec_down.decode_line(segment[:-1])) is not Refusal:  # type: ignore[index]  # see above
                self.block(client, segment)  # type: ignore[arg-type]  # what is left of the union
            else:
                self._tables.stats.bad_lines += 1

    def block(self, client: Client, block: Block) -> None:
        """Take whole lines."""
        plain = CR not in block and (block.isascii() or is_utf8(block))
        quick = plain and len(block) <= self._measured
        short = self._codec.short if ARRAY in block else self._codec.short_flat
        lines = lines_of(block)
        line = self.quick(client, lines, short) if quick else next(lines, None)
        if line is not None:
            self._lines(client, line, lines, short, plain=plain, quick=quick)

    def _lines(
        self, client: Client, line: bytes, lines: Iterator[bytes], short: int, *, plain: bool, quick: bool
    ) -> None:
        """Take a line that needs a look of its own, and those behind it.

        Args:
            quick: those behind it may be for `quick`.
        """
        left = TURN_LINES
        while True:
            if not self._line(client, line, plain):
                if client.closing:
                    return
                left -= 1
                if not left:
                    self._defer(client, lines.read() if type(lines) is BytesIO else b"".join(lines))
                    return
            following = self.quick(client, lines, short) if quick else next(lines, None)
            if following is None:
                return
            line = following

    def _defer(self, client: Client, rest: bytes) -> None:
        if rest:
            client.deferred = [rest]
            client.framer.busy = True
            self._tables.outbox.control(client, Control.TURN)

    def _line(self, client: Client, line: bytes, plain: bool) -> bool:
        """Take one line, whatever it holds; return whether that was done soon, and more may follow."""
        if line == b"\n":
            return False
        codec = self._codec
        decoded = codec.decode_plain_line(line) if plain else codec.decode_line(line)
        if type(decoded) is Refusal:
            self._refused_line(client, decoded, line)
        elif decoded is not None:
            client.bad_lines = 0
            self.message(client, decoded, len(line) > self._measured)  # type: ignore[arg-type]  # a Message
            return plain and type(decoded) is Message and not client.closing
        return False

    def _refused_line(self, client: Client, refusal: Refusal, line: Block) -> None:
        if refusal.code == jsonrpc.PARSE_ERROR:
            self._bad_line(client, refusal.reason, line)
            return
        tables = self._tables
        tables.stats.bad_lines += 1
        tables.note(NoticeKind.BAD_LINE, client.key, _trace(refusal.reason, line))
        tables.refuse(client, refusal.id, refusal.code, refusal.reason, "invalid_request")

    def _bad_line(self, client: Client, reason: str, line: Block) -> None:
        tables = self._tables
        tables.stats.bad_lines += 1
        client.bad_lines += 1
        tables.note(NoticeKind.BAD_LINE, client.key, _trace(reason, line))
        tables.refuse(client, UNSET, jsonrpc.PARSE_ERROR, reason, "parse_error")
        if client.strict or client.bad_lines >= tables.limits.bad_lines:
            self.cut(client, b"too many lines that are not JSON")

    def _overlong(self, client: Client, segment: OverlongStart | OverlongEnd) -> None:
        """A line over the limit: its sender is told once, as soon as its id is known or can never be."""
        if type(segment) is OverlongStart:
            id = guess_id(segment.head, b"")
            client.overlong_told = id is not None
            if id is None:
                return
        else:
            if client.overlong_told:
                return
            assert type(segment) is OverlongEnd
            id = guess_id(b"", segment.tail)
        self._too_large(client, UNSET if id is None else id)

    def _too_large(self, client: Client, id: Id | UnsetType) -> None:
        limit = self._tables.limits.max_request
        self._tables.refuse(
            client, id, jsonrpc.TOO_LARGE, f"the message is longer than {limit} bytes", "message_too_large"
        )

    def _invalid(self, client: Client, id: Id | UnsetType, why: str) -> None:
        self._tables.stats.bad_lines += 1
        self._tables.refuse(client, id, jsonrpc.INVALID_REQUEST, why, "invalid_request")


def _trace(reason: str, line: Block) -> bytes:
    """What was wrong, and after a newline the line: it may be of a message, and not for every log."""
    return reason.encode() + b"\n" + bytes(line[:512]).removesuffix(b"\n")
