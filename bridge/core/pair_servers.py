"""From server processes that belong to one client each: what becomes of each line.

Everything that is a message goes to the client, but for responses to nothing.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET, Raw

from bridge.core import jsonrpc
from bridge.core.codec import are_plain, lines_of, salvage_text
from bridge.core.framing import Block, OverlongEnd, OverlongStart
from bridge.core.glance import trusted_text
from bridge.core.inflight import Child, id_key
from bridge.core.jsonrpc import Id, Message, Refusal
from bridge.core.pair import CANCELLED, Pair, Pairs
from bridge.core.subscriptions import LISTEN
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
            known = trusted_text(segment.head, b"")
            if known is not None and self._asked_as(pair, known) is not None:
                self._damaged(pair, child, segment.head, known, too_long=True)
                child.overlong_head = b""
            return
        if type(segment) is OverlongEnd:
            head, child.overlong_head = child.overlong_head, b""
            if head:
                self._damaged(pair, child, head, trusted_text(head, segment.tail), too_long=True)
            return
        codec = self._tables.codec_up
        plain = are_plain(segment)
        for line in lines_of(segment):
            decoded = codec.decode_plain_line(line) if plain else codec.decode_line(line)
            if type(decoded) is Refusal:
                self._damaged(pair, child, line, salvage_text(line), too_long=False)
            elif decoded is not None:
                self._said(pair, child, decoded)  # type: ignore[arg-type]  # a Message

    def _damaged(self, pair: Pair, child: Child, line: Block, id: bytes | None, *, too_long: bool) -> None:
        """A line that is no message: whoever waits for it is told, if that is certain.

        Args:
            id: that of the response, as it is spelled, if it can be trusted.
        """
        tables = self._tables
        found = None if id is None else self._asked_as(pair, id)
        tables.stats.noise += 1
        tables.note(NoticeKind.NOISE, child.key, bytes(line[:512]).removesuffix(b"\n"))
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

    def _broken(self, pair: Pair, id: Id) -> None:
        text = "the server's response was not valid JSON-RPC"
        self._tables.refuse(
            pair.client, id, jsonrpc.INVALID_RESPONSE, text, "invalid_response", delivered=True
        )

    def _asked_as(self, pair: Pair, text: bytes) -> tuple[type, object] | None:
        """The request on the way whose id is spelled so, in this way or another."""
        id = self._tables.codec_up.read_id(Raw(text))
        # What cannot be read is the same only if it is spelled the same.
        key = (Raw, text) if id is None else id_key(id)
        return key if key in pair.asked else None

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
                    self._withdrawn(pair, id_key(named))
            tables.stats.notifications_down += 1
            tables.outbox.put(client, message)

    def _withdrawn(self, pair: Pair, key: tuple[type, object]) -> None:
        """The server gives up a request of its own, or tears down a subscription."""
        if pair.questions.pop(key, None) is not None:
            return
        listen = next((asked for asked in pair.asked.get(key, ()) if asked.method == LISTEN), None)
        if listen is not None:
            self._take(pair, key, listen)

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
