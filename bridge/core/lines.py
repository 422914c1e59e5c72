"""From bytes of a client to its messages: lines, and what becomes of those that are none.

Owns what a client is told of a line that is no message. What becomes of a message is
decided by whoever reads the lines: `downstream.py` or `isolated.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import UNSET, UnsetType

from bridge.core import jsonrpc
from bridge.core.framing import Block, OverlongEnd, OverlongStart, Segment
from bridge.core.glance import guess_id
from bridge.core.inflight import Client
from bridge.core.jsonrpc import Call, Id, Refusal
from bridge.core.outbox import Control
from bridge.core.tables import NoticeKind, Tables

REWRITE_ROOM: Final = 64
"""By how many bytes an upstream id and token can lengthen a request at most."""

TURN_LINES: Final = 1000
"""So many lines of one client are looked at one by one, at several microseconds each, before others have
their turn. One read may bring a hundred thousand of them; those that are decoded at once are not counted."""


class ClientLines:
    """Reads what clients write. Subclasses carry the messages out."""

    __slots__ = ("_decode_calls", "_measured", "_tables")

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._decode_calls: Callable[[Block], Sequence[Call] | None] = tables.codec_down.decode_calls
        # A rewritten line can be longer than it came: near the limit each is measured.
        self._measured = tables.limits.max_request - REWRITE_ROOM

    def messages(self, client: Client, messages: Sequence[Call], measured: bool = False) -> None:
        """Take valid messages of one client, in order.

        Args:
            measured: some may be too long once they are rewritten.
        """

    def cut(self, client: Client, why: bytes) -> None:
        """Disconnect a client for what it did, behind what it is still sent."""

    def data(self, client: Client, data: bytes) -> None:
        """Take what one read from a client brought."""
        framer = client.framer
        if client.greeted and not framer.busy and data[-1:] == b"\n" and len(data) <= framer.limit:
            # The common case: nothing is copied, nothing is kept.
            messages = self._decode_calls(data)
            if messages is None:
                self._careful(client, data)
            else:
                self.messages(client, messages, len(data) > self._measured)
            return
        if not client.greeted and data:
            client.greeted = True
            if client.strict and data[:1] != b"{":
                # A web page can have a browser POST to a port; its first byte gives it away.
                self._bad_line(client, "the first byte of a TCP connection must be `{`", data)
                return
        segments = framer.feed(data)
        if client.deferred:
            segments = client.deferred + segments
        self._segments(client, segments)

    def turn(self, client: Client) -> None:
        """Go on with what was left for another turn."""
        client.framer.feed(b"")  # it says again by itself whether it is busy
        self._segments(client, client.deferred)

    def _segments(self, client: Client, segments: Sequence[Segment]) -> None:
        client.deferred = []
        for number, segment in enumerate(segments, 1):
            if client.closing:
                return
            if type(segment) is OverlongStart or type(segment) is OverlongEnd:
                self._overlong(client, segment)
                continue
            self.block(client, segment)  # type: ignore[arg-type]  # what is left of the union
            if client.deferred:
                client.deferred += segments[number:]
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
        messages = self._decode_calls(block)
        if messages is None:
            self._careful(client, block)
        else:
            self.messages(client, messages, len(block) > self._measured)

    def _careful(self, client: Client, block: Block) -> None:
        """Take whole lines one by one: some of them are not plain."""
        decode_line = self._tables.codec_down.decode_line
        *lines, rest = block.split(b"\n", TURN_LINES)
        for line in lines:
            decoded = decode_line(line)
            if decoded is None:
                continue
            if type(decoded) is Refusal:
                self._refused_line(client, decoded, line)
                if client.closing:
                    return
            else:
                self.messages(client, [decoded], len(line) > self._measured)  # type: ignore[list-item]  # a Message
        if rest:
            client.deferred = [rest]
            client.framer.busy = True
            self._tables.outbox.control(client, Control.TURN)

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
    return reason.encode() + b"\n" + bytes(line[:512])
