"""From the server: who receives each line a child writes.

Owns the decisions towards the clients. Nothing is guessed: a message whose owner is
not certain reaches nobody.

Spec: 2026-07-28 basic, "Responses" and "Notifications"; basic/patterns/progress and
subscriptions; server/utilities/logging.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Final

from msgspec import UNSET, Raw

from bridge.core import jsonrpc
from bridge.core.codec import (
    CR,
    FAULTS,
    decode_message,
    decode_plain_message,
    is_utf8,
    lines_of,
    salvage_id,
)
from bridge.core.downstream import CANCELLED, Downstream
from bridge.core.era import AWAITING_GREETING, Phase
from bridge.core.framing import Block, OverlongEnd, OverlongStart
from bridge.core.glance import trusted_id
from bridge.core.inflight import Child, Client, Entry, Kind, owners
from bridge.core.jsonrpc import (
    PROGRESS_TOKEN,
    SUBSCRIPTION_ID,
    Message,
    PlainMessage,
    Refusal,
    decode_members,
    plain_integer,
)
from bridge.core.legacy import LegacySessions
from bridge.core.seats import Seats
from bridge.core.subscriptions import ACKNOWLEDGED, Subscriptions
from bridge.core.tables import NoticeKind, Tables

PROGRESS: Final = "notifications/progress"
LOG: Final = "notifications/message"

ODD_BLOCKS: Final = 16
"""When a server writes something that is no `PlainMessage`, as many of the blocks that follow are not tried
as such: for what it is, it is likely to write more of it."""

MAY_BEGIN: Final = b"{ \t\r\n\xef"
"""First bytes of a line that may hold a message, or nothing. A server may print other lines by the
thousand."""

LEGACY_PHASES: Final = frozenset({*AWAITING_GREETING, Phase.LEGACY})
"""In which a child may ask something of its client."""


class Upstream:
    """Routes what servers write."""

    __slots__ = ("_downstream", "_legacy", "_seats", "_subscriptions", "_tables")

    def __init__(
        self,
        tables: Tables,
        subscriptions: Subscriptions,
        downstream: Downstream,
        seats: Seats,
        legacy: LegacySessions,
    ) -> None:
        self._tables = tables
        self._subscriptions = subscriptions
        self._downstream = downstream
        self._seats = seats
        self._legacy = legacy

    # -- lines -----------------------------------------------------------------

    def data(self, child: Child, data: bytes) -> None:
        """Take what one read from a child's stdout brought."""
        child.wrote = True
        framer = child.framer
        if not framer.busy and data.endswith(b"\n") and len(data) <= framer.limit:
            self.block(child, data)
            return
        for segment in framer.feed(data):
            if type(segment) is OverlongStart or type(segment) is OverlongEnd:
                self._overlong(child, segment)
            else:
                self.block(child, segment)  # type: ignore[arg-type]  # what is left of the union

    def finish(self, child: Child) -> None:
        """The child's stdout has ended: half a line is none, a whole one counts without its newline."""
        for segment in child.framer.finish():
            if type(segment) is OverlongEnd:
                continue
            if type(self._tables.codec_up.decode_line(segment[:-1])) is not Refusal:  # type: ignore[index]  # see `data`
                self.block(child, segment)  # type: ignore[arg-type]  # what is left of the union
            else:  # cut off, not damaged: its asker is told that the server has gone
                self._tables.stats.noise += 1

    def block(self, child: Child, block: Block) -> None:
        """Take whole lines."""
        plain = CR not in block and (block.isascii() or is_utf8(block))
        lines = BytesIO(block) if type(block) is bytes else lines_of(block)
        decode: Callable[[bytes], Message] = decode_plain_message
        if child.odd_blocks:
            child.odd_blocks -= 1
            decode = decode_message
        while (line := self._quick(child, lines, decode) if plain else next(lines, None)) is not None:
            self._line(child, line, plain)
            if child.odd_blocks:
                decode = decode_message

    def _line(self, child: Child, line: bytes, plain: bool) -> None:
        """Take one line, whatever it holds."""
        if line == b"\n":
            return
        if line[0] not in MAY_BEGIN:
            self._damaged(child, line, None, too_long=False)
            return
        codec = self._tables.codec_up
        decoded = codec.decode_plain_line(line) if plain else codec.decode_line(line)
        if type(decoded) is Refusal:
            self._damaged(child, line, salvage_id(line), too_long=False)
        elif decoded is not None:
            child.spoke = True
            self._message(child, decoded)  # type: ignore[arg-type]  # a Message

    def _overlong(self, child: Child, segment: OverlongStart | OverlongEnd) -> None:
        """A line over the limit: its asker is told as soon as the id can be trusted."""
        if type(segment) is OverlongStart:
            child.overlong_head = segment.head
            known = trusted_id(segment.head, b"")
            if known is not None:
                self._damaged(child, segment.head, known, too_long=True)
                child.overlong_head = b""
            return
        assert type(segment) is OverlongEnd
        head, child.overlong_head = child.overlong_head, b""
        if head:
            self._damaged(child, head, trusted_id(head, segment.tail), too_long=True)

    def _damaged(self, child: Child, line: Block, known: int | None, *, too_long: bool) -> None:
        """A line that is no message: whoever waits for it is told, if that is certain."""
        tables = self._tables
        tables.stats.noise += 1
        tables.note(NoticeKind.NOISE, child.key, bytes(line[:512]).removesuffix(b"\n"))
        entry = None if known is None else child.inflight.pop(known, None)
        if entry is not None:
            assert known is not None
            self._settle_broken(child, known, entry, too_long=too_long)

    def _settle_broken(self, child: Child, upstream_id: int, entry: Entry, *, too_long: bool = False) -> None:
        tables = self._tables
        tables.stats.invalid_responses += 1
        id = tables.end(upstream_id, entry)
        if entry.kind is Kind.PROBE or entry.kind is Kind.INITIALIZE:
            self._seats.answered(child, entry, None)
            self._downstream.feed_freed()
        elif entry.kind is Kind.QUESTION:
            self._legacy.settled(entry, None)
            self._downstream.feed_freed()
        elif entry.kind is Kind.LISTEN:
            assert entry.share is not None
            self._subscriptions.broken(child, entry.share)
        else:
            client = entry.client
            assert client is not None
            assert id is not None
            if too_long:
                limit = tables.limits.max_message
                text = f"the server's response is longer than {limit} bytes"
                tables.refuse(client, id, jsonrpc.TOO_LARGE, text, "message_too_large", delivered=True)
            else:
                text = "the server's response was not valid JSON-RPC"
                tables.refuse(client, id, jsonrpc.INVALID_RESPONSE, text, "invalid_response", delivered=True)
            self._answered(client)

    # -- messages --------------------------------------------------------------

    def _quick(
        self, child: Child, lines: Iterator[bytes], decode: Callable[[bytes], Message]
    ) -> bytes | None:
        """Pass plain lines of a child on for as long as they are ordinary.

        Args:
            decode: `decode_plain_message`, or `decode_message` where that is likely to refuse most.

        Returns:
            The first that is not, taken out of `lines`; None if there is none.
        """
        inflight = child.inflight
        pop = inflight.pop
        touched = self._tables.outbox.touched
        passed = reported = 0
        reports = not self._tables.limits.replay_safe  # what its client has heard of is noted
        last = None
        told: object = None
        line: bytes | None
        for line in lines:
            try:
                message = decode(line)
            except FAULTS:
                if line[0] not in MAY_BEGIN:
                    self._damaged(child, line, None, too_long=False)
                    continue
                if decode is decode_plain_message:
                    child.odd_blocks = ODD_BLOCKS
                break
            method = message.method
            number = message.id
            if method is UNSET:
                # What is no integer is no key of the table.
                entry = pop(number, None)  # type: ignore[arg-type]  # see above
                if entry is None:
                    break
                told = None  # it may be the one that progress was told of
                if (message.result is UNSET) is (message.error is UNSET):
                    child.spoke = True
                    self._response(child, message, entry)
                    last = None
                    continue
                if entry is not last:  # and so perhaps not of the client of the response before
                    client = entry.client
                    if client is None or entry.noted or client.waiting or client.eof_at is not None:
                        child.spoke = True
                        self._response(child, message, entry)
                        last = None
                        continue
                    last = entry
                    ids = client.inflight
                    out = client.out  # who is closing has nothing in flight
                    if not out:
                        touched.append(client)
                message.id = ids.pop(number)  # type: ignore[arg-type]  # it is an entry's number
                out.append(message)
                passed += 1
            elif type(message) is not PlainMessage:
                if number is not UNSET:
                    break
                child.spoke = True
                self._called(child, message, method)
                last = told = None
            elif reports and number is UNSET and (report := message.params):
                if report.token != told:  # and so not of the request of the progress before
                    entry = inflight.get(report.token)  # type: ignore[arg-type]  # as it came it is an int
                    if entry is None or entry.token is None or entry.client is None:
                        break
                    told = report.token
                    token = entry.token
                    their = entry.client.out
                    if not their:
                        touched.append(entry.client)
                report.token = token
                their.append(message)
                reported += 1
            else:
                break
        else:
            line = None
        if passed or reported:
            child.spoke = True
            self._tables.stats.responses += passed
            self._tables.stats.notifications_down += reported
        return line

    def _message(self, child: Child, message: Message) -> None:
        """One valid message, whatever it is."""
        if message.method is not UNSET:
            self._called(child, message, message.method)
            return
        # Of an id with half a surrogate pair, which is none of the bridge's, no table could be asked.
        entry = None if type(message.id) is Raw else child.inflight.pop(message.id, None)  # type: ignore[arg-type]  # what is no integer is no key
        self._response(child, message, entry)

    def _response(self, child: Child, message: Message, entry: Entry | None) -> None:
        """A response. Its entry is out of the child's table."""
        tables = self._tables
        if entry is None:
            self._unasked(child, message)
            return
        upstream_id = message.id
        assert type(upstream_id) is int
        if (message.result is UNSET) is (message.error is UNSET):
            self._settle_broken(child, upstream_id, entry)
            return
        if entry.kind is Kind.REQUEST and entry.noted:
            self._noted(child, upstream_id, entry, message)
        id = tables.end(upstream_id, entry)
        if entry.kind is Kind.REQUEST:
            client = entry.client
            assert client is not None
            assert id is not None
            message.id = id
            tables.stats.responses += 1
            tables.outbox.put(client, message)
            self._answered(client)
        elif entry.kind is Kind.LISTEN:
            self._subscriptions.answered(child, entry.share, message)  # type: ignore[arg-type]  # a listen has a share
        elif entry.kind is Kind.QUESTION:
            self._legacy.settled(entry, message)
            self._downstream.feed_freed()
        else:
            self._seats.answered(child, entry, message)
            self._downstream.feed_freed()
            if tables.stale_sessions:
                self._downstream.end_sessions()

    def _noted(self, child: Child, upstream_id: int, entry: Entry, message: Message) -> None:
        """A response to a request that asked for logs, or that has to do with tasks."""
        child.loggers.pop(upstream_id, None)
        interest = child.interests.pop(upstream_id, None)
        if interest is not None:
            self._legacy.tasks.answered(child, interest, upstream_id, entry, message)

    def _unasked(self, child: Child, message: Message) -> None:
        if message.result is UNSET and message.error is UNSET:
            self._tables.stats.noise += 1
            self._tables.note(NoticeKind.NOISE, child.key, b"an object that is no message")
        else:
            self._tables.stats.dropped_responses += 1
            if type(message.id) is int:
                child.loggers.pop(message.id, None)

    def _answered(self, client: Client) -> None:
        """A request of a client has ended: its next one may go, or it may."""
        if client.waiting:
            self._downstream.feed(client)
        if client.eof_at is not None:
            self._tables.settle(client)

    # -- notifications and requests --------------------------------------------

    def _called(self, child: Child, message: Message, method: str) -> None:
        tables = self._tables
        id = message.id
        legacy = child.handshake.phase in LEGACY_PHASES
        if id is not UNSET:
            if legacy:
                self._legacy.asked(child, message, id, method)
                return
            # Modern servers ask nothing, and their clients must not be asked to answer.
            tables.stats.dropped_requests += 1
            if not child.asked:
                child.asked = True
                tables.note(NoticeKind.SERVER_REQUEST, child.key, method.encode(errors="replace"))
            return
        params = message.params
        if method == PROGRESS and type(params) is dict:
            self._progress(child, message, params)
        elif child.muted and method != LOG:
            tables.stats.dropped_notifications += 1
        elif legacy:
            self._legacy.notified(child, message, method)
        elif type(params) is not dict:
            tables.stats.dropped_notifications += 1
        elif method == LOG:
            self._log(child, message)
        elif method == CANCELLED:
            self._torn_down(child, message, params)
        else:
            self._subscribed(child, message, method, params)

    def _progress(self, child: Child, message: Message, params: dict[str, Raw]) -> None:
        """To the request whose token it names, under the token its client chose."""
        raw = params.get(PROGRESS_TOKEN)
        upstream_id = None if raw is None else plain_integer(raw)
        entry = None if upstream_id is None else child.inflight.get(upstream_id)
        if entry is None or entry.token is None:
            # A task's progress goes on behind the response to the request that made it.
            task = None if upstream_id is None else child.task_tokens.get(upstream_id)
            if task is None or task.token is None:
                self._tables.stats.dropped_progress += 1
                return
            client, token = task.client, task.token
        else:
            token = entry.token
            entry.again = None  # its client has heard of it
            client = entry.client  # type: ignore[assignment]  # seen to next
            if client is None:  # a listen with a token is nobody else's
                assert entry.share is not None
                client = next(iter(entry.share.holders.values())).client
        params[PROGRESS_TOKEN] = token
        self._tables.stats.notifications_down += 1
        # The token is spelled as the client wrote it, so it is not for the marker's undoing.
        self._tables.outbox.put(client, message)

    def _log(self, child: Child, message: Message) -> None:
        """To the one client that can own it."""
        tables = self._tables
        possible = list(owners(child.loggers))
        if len(possible) == 1 or (tables.limits.broadcast_logs and possible):
            for client in possible:
                if client is None:
                    tables.stats.dropped_notifications += 1
                else:
                    tables.stats.notifications_down += 1
                    tables.outbox.put(client, Raw(tables.codec_up.render(message)))
                    self._heard(child, client)
        elif possible:
            tables.stats.ambiguous_logs += 1
            tables.note(NoticeKind.AMBIGUOUS_LOG, child.key, tables.codec_up.render(message))
        else:
            tables.stats.dropped_notifications += 1

    def _heard(self, child: Child, client: Client) -> None:
        """A client was told something that any of its requests may have caused."""
        if self._tables.limits.replay_safe:
            for upstream_id, logger in child.loggers.items():
                if logger.client is client:
                    child.inflight[upstream_id].again = None

    def _torn_down(self, child: Child, message: Message, params: dict[str, Raw]) -> None:
        """The server cancels: only a listen is its to cancel."""
        raw = params.get("requestId")
        upstream_id = None if raw is None else plain_integer(raw)
        share = None if upstream_id is None else child.shares.get(upstream_id)
        if share is None:
            self._tables.stats.dropped_notifications += 1
        else:
            self._subscriptions.cancelled(child, share, message)

    def _subscribed(self, child: Child, message: Message, method: str, params: dict[str, Raw]) -> None:
        """To every client that holds the subscription it names."""
        raw_meta = params.get("_meta")
        members = None if raw_meta is None else decode_members(raw_meta)
        raw = None if members is None else members.get(SUBSCRIPTION_ID)
        upstream_id = None if raw is None else plain_integer(raw)
        share = None if upstream_id is None else child.shares.get(upstream_id)
        if share is None:
            self._tables.stats.dropped_notifications += 1
            return
        assert members is not None
        if method == ACKNOWLEDGED:
            self._subscriptions.acknowledged(child, share, message, members)
        else:
            self._subscriptions.notify(share, message, members)
