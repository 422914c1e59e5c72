"""Subscriptions: which clients hold which upstream `subscriptions/listen`.

Owns every share and every holder. A share is one listen at the server; holders are
the clients' listens that it stands for. Shares outlive the child: on the next one
they are opened again.

Spec: 2026-07-28 basic/patterns/subscriptions.
"""

from __future__ import annotations

import enum
from typing import Final

from msgspec import UNSET, Raw, Struct, field

from bridge.core.inflight import Child, Client, Entry, Kind, Logger, id_key
from bridge.core.jsonrpc import (
    INVALID_RESPONSE,
    OVERLOADED,
    PROGRESS_TOKEN,
    SERVER_EXITED,
    SUBSCRIPTION_ID,
    Call,
    Id,
    Members,
    Message,
    Meta,
    OddMessage,
    decode_members,
    encoder,
    is_token,
    notification_line,
    result_line,
)
from bridge.core.listens import FanOut, Grant, ShareKey, parse_grant, share_key, with_token
from bridge.core.tables import Tables, short_members

LISTEN: Final = "subscriptions/listen"
ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"

FULL: Final = "too many subscriptions: end one first"
"""What a client is told that has as many as it may."""

ENDED: Final[Members] = {"reason": Raw(b'"the bridge has ended the subscription"')}
"""Why a listen is cancelled that no client has given up."""

MAX_OPENINGS: Final = 3
"""How many children in a row may end before they acknowledge a listen. A listen that
kills its server must not kill every one that follows."""

MAX_CHANGES: Final = 1024
"""A holder is told of so many changes that it may have missed once the server was started again. With more,
its listen ends instead, as when less is granted: a million URIs would be a million messages at once."""
MAX_CHANGES_IN_ALL: Final = 16384
"""The same, for all holders of one subscription: more takes too long for one turn."""


class State(enum.Enum):
    """What a share is doing. `REOPENING`: its child is gone, or the next one was just asked."""

    OPENING = "opening"
    OPEN = "open"
    REOPENING = "reopening"
    GONE = "gone"


class Holder(Struct, gc=False):
    """One listen of one client. `gc=False`: taken out of every table by name."""

    number: int
    client: Client
    id: Id
    token: Raw | None
    share: Share
    granted: Raw | None = None
    """What its acknowledgement said; None until it has been sent one. See `Grant`."""


class Share(Struct, gc=False):
    """One listen at the server, for the clients that asked for the same."""

    number: int
    key: ShareKey | None
    """None if it is not shared."""
    request: Call
    """What opens it, with nothing in it that pins a read buffer."""
    state: State = State.OPENING
    upstream_id: int | None = None
    """Of the listen at the present child; None while it is not written."""
    holders: dict[int, Holder] = field(default_factory=dict)
    grant: Raw | None = None
    """What the server acknowledged, as bytes: see `ShareKey`."""
    size: int = 0
    """Of what opens it, of its key and its grant, in bytes: they are kept as long as the share."""
    openings: int = 0
    """Children that ended without an acknowledgement, in a row."""
    logs: bool = False


class Subscriptions:
    """Open, join, fan out, end."""

    __slots__ = ("_all", "_next", "_shared", "_tables")

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._shared: dict[ShareKey, Share] = {}
        self._all: dict[int, Share] = {}
        """By number, oldest first: what is opened again after a restart."""
        self._next = 0

    def __len__(self) -> int:
        """How many subscriptions the server is to hold."""
        return len(self._all)

    def has_room(self, client: Client) -> bool:
        """Whether a client may listen once more; if not, `refuse_full` tells it."""
        limits = self._tables.limits
        return (
            len(client.holders) < limits.max_subscriptions
            and self._tables.holders < limits.max_subscriptions_all
        )

    def refuse_full(self, client: Client, id: Id) -> None:
        """Tell a client that it may not listen once more."""
        self._tables.refuse(client, id, OVERLOADED, FULL, "too_many_subscriptions")

    def listen(self, client: Client, message: Call, meta: Meta, child: Child) -> None:
        """A client's `subscriptions/listen`: join what is open already, or open it.

        Args:
            child: it is ready, and its stdin takes more.
        """
        id = message.id
        params = message.params
        assert id is not UNSET
        assert isinstance(params, dict)
        if not self.has_room(client):
            self.refuse_full(client, id)
            return
        codec = self._tables.codec_down
        token = None if meta.token is UNSET else Raw(codec.owned(message, meta.token))
        if token is not None and not is_token(bytes(token)):
            members = decode_members(params["_meta"])
            assert members is not None
            del members[PROGRESS_TOKEN]
            params["_meta"] = Raw(encoder.encode(members))
            token = None
            self._tables.stats.removed_tokens += 1
        key = None if type(message) is OddMessage else share_key(params, meta)
        share = None if key is None else self._shared.get(key)
        if share is not None:
            holder = self._hold(share, client, id, None)
            if share.state is State.OPEN:
                self._acknowledge(holder)
            return
        self._next += 1
        size = sum(len(memoryview(value)) for value in params.values()) + (0 if key is None else len(key[3]))
        share = Share(self._next, key, _owned(message), size=size, logs=meta.log_level is not UNSET)
        self._all[share.number] = share
        if key is not None:
            self._shared[key] = share
        self._hold(share, client, id, token)
        self._open(share, child)

    def _hold(self, share: Share, client: Client, id: Id, token: Raw | None) -> Holder:
        self._next += 1
        holder = Holder(self._next, client, id, token, share)
        share.holders[holder.number] = holder
        if not client.holders:
            client.holders = {}
        client.holders[holder.number] = holder
        self._tables.holders += 1
        return holder

    def _open(self, share: Share, child: Child) -> None:
        upstream_id = self._tables.mint()
        share.upstream_id = upstream_id
        child.shares[upstream_id] = share
        first = next(iter(share.holders.values()))
        child.inflight[upstream_id] = Entry(
            Kind.LISTEN, child, None, first.token, self._tables.now, share, noted=share.logs
        )
        if share.logs or self._tables.limits.request_timeout is not None:
            self._tables.attention.due = True
        if share.logs:
            child.loggers[upstream_id] = Logger(first.client)
        request = share.request
        request.id = upstream_id
        if first.token is not None:
            params = request.params
            assert isinstance(params, dict)
            params["_meta"] = with_token(params["_meta"], upstream_id)
        self._tables.stats.requests += 1
        self._tables.outbox.put(child, Raw(self._tables.codec_down.render(request)))

    def open_again(self, child: Child) -> None:
        """A new child is ready: open on it what clients still hold, before anything else."""
        for share in list(self._all.values()):
            self._open(share, child)

    def move(self, old: Child, rest: Members) -> None:
        """A child is replaced: what it serves is cancelled there, and waits for `open_again`."""
        for upstream_id, share in list(old.shares.items()):
            share.upstream_id = None
            share.state = State.REOPENING if share.grant is not None else State.OPENING
            self._tables.abandon(upstream_id, old.inflight[upstream_id], rest)
        old.shares.clear()

    def child_closed(self, child: Child) -> None:
        """A child is gone: what it served waits for the next one."""
        for share in list(child.shares.values()):
            share.upstream_id = None
            if share.state is State.OPEN:
                share.state = State.REOPENING
            else:
                share.openings += 1
            if share.openings >= MAX_OPENINGS:
                for holder in self._drop(share):
                    self._tables.refuse(
                        holder.client,
                        holder.id,
                        SERVER_EXITED,
                        f"the server exited {MAX_OPENINGS} times before it acknowledged this subscription",
                        "server_exited",
                        delivered=True,
                    )
                    self._tables.settle(holder.client)
        child.shares.clear()

    def acknowledged(self, child: Child, share: Share, message: Message, members: Members) -> None:
        """The server's acknowledgement: the first message to each holder that waits for it.

        Args:
            members: of the message's `params._meta`.
        """
        params = message.params
        assert isinstance(params, dict)
        if share.state is State.OPEN:
            self._tables.stats.dropped_notifications += 1
            return
        share.state = State.OPEN
        share.openings = 0
        grant = params.get("notifications", Raw(b"{}"))
        if share.grant is not None:
            share.size -= len(memoryview(share.grant))
        share.grant = Raw(self._tables.codec_up.owned(message, grant))
        share.size += len(memoryview(share.grant))
        fan = FanOut(self._tables, message, members)
        covered: dict[bytes, Grant | None] = {}
        room = MAX_CHANGES_IN_ALL
        for holder in list(share.holders.values()):
            if holder.granted is None:
                holder.granted = share.grant
                fan.send(holder)
                continue
            # Holders of one share were granted the same, or nearly: each grant is read once.
            before = bytes(holder.granted)
            if before not in covered:
                granted = parse_grant(holder.granted)
                covered[before] = granted if parse_grant(share.grant).covers(granted) else None
            granted_before = covered[before]
            if granted_before is not None and granted_before.size <= min(MAX_CHANGES, room):
                room -= granted_before.size
                self._changed(holder, granted_before)
            else:
                self._end(holder)
                self.finish(holder.client, holder.id)
                self._tables.settle(holder.client)
        if not share.holders:
            self._close(child, share, ENDED)

    def _acknowledge(self, holder: Holder) -> None:
        """To a late joiner: from the grant alone."""
        share = holder.share
        holder.granted = share.grant
        params = {"notifications": share.grant, "_meta": {SUBSCRIPTION_ID: holder.id}}
        self._tables.stats.notifications_down += 1
        self._tables.outbox.put(holder.client, notification_line(ACKNOWLEDGED, params))

    def _changed(self, holder: Holder, granted: Grant) -> None:
        """Changes may have been missed: one notification of each kind a holder was granted."""
        for method, params in granted.changes():
            params["_meta"] = {SUBSCRIPTION_ID: holder.id}
            self._tables.stats.notifications_down += 1
            self._tables.outbox.put(holder.client, notification_line(method, params))

    def notify(self, share: Share, message: Message, members: Members) -> None:
        """A notification of a subscription: to each holder, under its own id.

        Args:
            members: of the message's `params._meta`.
        """
        if share.state is not State.OPEN:  # the acknowledgement comes first, always
            self._tables.stats.dropped_notifications += 1
            return
        fan = FanOut(self._tables, message, members)
        for holder in share.holders.values():
            fan.send(holder)

    def cancelled(self, child: Child, share: Share, message: Message) -> None:
        """The server tears a subscription down: each holder is told under its own id."""
        assert share.upstream_id is not None
        self._tables.end(share.upstream_id, child.inflight.pop(share.upstream_id))
        params = message.params
        assert isinstance(params, dict)
        raw_meta = params.get("_meta")
        for holder in self._drop(share, child):
            if raw_meta is not None:
                members = decode_members(raw_meta)
                if members is not None and SUBSCRIPTION_ID in members:
                    members[SUBSCRIPTION_ID] = _raw(holder.id)
                    params["_meta"] = Raw(encoder.encode(members))
            params["requestId"] = _raw(holder.id)
            self._tables.stats.notifications_down += 1
            self._tables.outbox.put(holder.client, Raw(self._tables.codec_up.render(message)))
            self._tables.settle(holder.client)

    def answered(self, child: Child, share: Share, message: Message) -> None:
        """The server's response to a listen: the subscription has ended, or is refused."""
        members = None if message.result is UNSET else decode_members(message.result)
        meta = decode_members(members["_meta"]) if members and "_meta" in members else None
        for holder in self._drop(share, child):
            message.id = holder.id
            if members is not None and meta is not None and SUBSCRIPTION_ID in meta:
                meta[SUBSCRIPTION_ID] = _raw(holder.id)
                members["_meta"] = Raw(encoder.encode(meta))
                message.result = Raw(encoder.encode(members))
            self._tables.stats.responses += 1
            self._tables.outbox.put(holder.client, Raw(self._tables.codec_up.render(message)))
            self._tables.settle(holder.client)

    def broken(self, child: Child, share: Share) -> None:
        """The response to a listen could not be read: it ends all the same."""
        for holder in self._drop(share, child):
            self._tables.refuse(
                holder.client,
                holder.id,
                INVALID_RESPONSE,
                "the server's response was not valid JSON-RPC",
                "invalid_response",
                delivered=True,
            )
            self._tables.settle(holder.client)

    def client_cancelled(self, client: Client, id: Id, rest: Members, child: Child | None) -> int:
        """A client ends its listens with this id; return how many it had."""
        key = id_key(id)
        mine = [holder for holder in client.holders.values() if id_key(holder.id) == key]
        for holder in mine:
            self.leave(holder, rest, child)
            rest = short_members(rest)
        return len(mine)

    def leave(self, holder: Holder, rest: Members, child: Child | None) -> None:
        """One holder is gone. With the last one the share goes, before the server is told."""
        self._end(holder)
        if not holder.share.holders:
            self._close(child, holder.share, rest)

    def finish(self, client: Client, id: Id) -> None:
        """Send a client the graceful response that ends a listen. `settle` comes behind the last one."""
        self._tables.stats.responses += 1
        result = {"resultType": "complete", "_meta": {SUBSCRIPTION_ID: id}}
        self._tables.outbox.put(client, result_line(id, result))

    def end_all(self) -> list[Holder]:
        """The era is served no more: take every holder out; the caller tells them why."""
        return [holder for share in list(self._all.values()) for holder in self._drop(share)]

    def shut_down(self, child: Child | None) -> None:
        """The bridge stops: every listen ends with a graceful response."""
        for share in list(self._all.values()):
            for holder in list(share.holders.values()):
                self._end(holder)
                self.finish(holder.client, holder.id)
                self._tables.settle(holder.client)
            self._close(child, share, ENDED)

    def _end(self, holder: Holder) -> None:
        del holder.share.holders[holder.number]
        del holder.client.holders[holder.number]
        self._tables.holders -= 1

    def _drop(self, share: Share, child: Child | None = None) -> list[Holder]:
        """Take a share out of every table; return whom it served."""
        holders = list(share.holders.values())
        for holder in holders:
            self._end(holder)
        share.state = State.GONE
        self._all.pop(share.number, None)
        if share.key is not None:
            self._shared.pop(share.key, None)
        if child is not None and share.upstream_id is not None:
            child.shares.pop(share.upstream_id, None)
        return holders

    def _close(self, child: Child | None, share: Share, rest: Members) -> None:
        """End a share that nobody holds: out of the tables first, so that a newcomer opens a new one."""
        upstream_id = share.upstream_id
        self._drop(share, child)
        if upstream_id is not None:
            assert child is not None
            self._tables.abandon(upstream_id, child.inflight[upstream_id], rest)


def _owned(message: Call) -> Call:
    """A copy of a listen that may be kept: nothing in it pins a read buffer."""
    params = message.params
    assert isinstance(params, dict)
    kept = {name: value.copy() for name, value in params.items()}
    if type(message) is OddMessage:
        extra = {name: value.copy() for name, value in message.extra.items()}
        return OddMessage("2.0", message.id, message.method, kept, extra=extra, marked=message.marked)
    return Call("2.0", message.id, message.method, kept)


def _raw(id: Id) -> Raw:
    return id if type(id) is Raw else Raw(encoder.encode(id))
