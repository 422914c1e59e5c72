"""From server processes that belong to one client each: what becomes of each line.

Everything that is a message goes to the client, but for responses to nothing.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET

from bridge.core import jsonrpc
from bridge.core.framing import HEAD_KEPT, Block, OverlongEnd, OverlongStart
from bridge.core.inflight import Child, id_key
from bridge.core.jsonrpc import (
    Id,
    Message,
    Refusal,
    encoder,
)
from bridge.core.pair import CANCELLED, Pair, Pairs
from bridge.core.tables import NoticeKind

MAX_QUESTIONS: Final = 4096
"""Requests of one server that its client has not answered; a client may never answer any."""


class FromServers(Pairs):
    """Hands on what servers say, and ask."""

    __slots__ = ()

    def _is_cut_off(self, segment: Any) -> bool:
        """Whether what a child wrote last is no whole message."""
        return type(self._tables.codec_up.decode_line(segment[:-1])) is Refusal

    def _segment(self, pair: Pair, child: Child, segment: Any) -> None:
        if type(segment) is OverlongStart:
            child.overlong_head = segment.head
            if self._damaged(pair, child, segment.head, b"", too_long=True):
                child.overlong_head = b""
            return
        if type(segment) is OverlongEnd:
            head, child.overlong_head = child.overlong_head, b""
            if head:
                self._damaged(pair, child, head, segment.tail, too_long=True)
            return
        codec = self._tables.codec_up
        messages = codec.decode_block(segment)
        if messages is not None:
            for message in messages:
                self._said(pair, child, message)
            return
        for line in bytes(segment).split(b"\n")[:-1]:
            decoded = codec.decode_line(line)
            if type(decoded) is Refusal:
                self._damaged(pair, child, line[:HEAD_KEPT], line[-HEAD_KEPT:], too_long=False)
            elif decoded is not None:
                self._said(pair, child, decoded)  # type: ignore[arg-type]  # a Message

    def _damaged(self, pair: Pair, child: Child, head: Block, tail: bytes, *, too_long: bool) -> bool:
        """A line that is no message: whoever waits for it is told, if that is certain. Whether it was."""
        tables = self._tables
        found = self._trusted(pair, bytes(head).removeprefix(b"\xef\xbb\xbf"), tail)
        if found is None and too_long and not tail:
            return False  # its end may tell
        tables.stats.noise += 1
        tables.note(NoticeKind.NOISE, child.key, bytes(head[:512]))
        if found is not None:
            asked = self._take(pair, found)
            tables.stats.invalid_responses += 1
            if too_long:
                text = f"the server's response is longer than {tables.limits.max_message} bytes"
                tables.refuse(
                    pair.client, asked.id, jsonrpc.TOO_LARGE, text, "message_too_large", delivered=True
                )
            else:
                self._broken(pair, asked.id)
            self._feed(pair)
        return found is not None

    def _broken(self, pair: Pair, id: Id) -> None:
        text = "the server's response was not valid JSON-RPC"
        self._tables.refuse(
            pair.client, id, jsonrpc.INVALID_RESPONSE, text, "invalid_response", delivered=True
        )

    @staticmethod
    def _trusted(pair: Pair, head: bytes, tail: bytes) -> tuple[type, object] | None:
        """The request that a damaged line answers: as `glance.trusted_id`, for any id on the way."""
        for key, several in pair.asked.items():
            id = encoder.encode(several[0].id)
            front = head.startswith(
                (
                    b'{"jsonrpc":"2.0","id":%b,"result":' % id,
                    b'{"jsonrpc":"2.0","id":%b,"error":' % id,
                )
            )
            back = tail.rstrip().endswith(
                (b',"jsonrpc":"2.0","id":%b}' % id, b',"id":%b,"jsonrpc":"2.0"}' % id)
            )
            if front or (back and head.startswith((b'{"result":', b'{"error":'))):
                return key
        return None

    def _said(self, pair: Pair, child: Child, message: Message) -> None:
        """A valid message of a child."""
        tables = self._tables
        client = pair.client
        child.spoke = True
        method, id = message.method, message.id
        if method is UNSET:
            self._response(pair, message)
        elif id is not UNSET:
            if client.eof_at is not None or client.closing or child.closing:
                self._refuse_question(pair, id, jsonrpc.INTERNAL_ERROR, "the client does not answer any more")
            elif len(pair.questions) >= MAX_QUESTIONS:
                self._refuse_question(pair, id, jsonrpc.OVERLOADED, "too many requests are not answered")
            else:
                pair.questions[id_key(id)] = id
                tables.outbox.put(client, message)
        else:
            params = message.params
            if method == CANCELLED and type(params) is dict and "requestId" in params:
                named = tables.codec_up.read_id(params["requestId"])
                if named is not None:
                    pair.questions.pop(id_key(named), None)
            tables.stats.notifications_down += 1
            tables.outbox.put(client, message)

    def _response(self, pair: Pair, message: Message) -> None:
        tables = self._tables
        id = message.id
        if id is UNSET or id_key(id) not in pair.asked:
            if message.result is UNSET and message.error is UNSET:
                tables.stats.noise += 1
            else:
                tables.stats.dropped_responses += 1
            return
        pair.probed = False
        self._take(pair, id_key(id))
        if (message.result is UNSET) is (message.error is UNSET):
            tables.stats.invalid_responses += 1
            self._broken(pair, id)
        else:
            tables.stats.responses += 1
            tables.outbox.put(pair.client, message)
        self._feed(pair)
