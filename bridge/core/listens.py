"""What listens look like: what one asks for, what it was granted, and a notification for many of them.

Owns the wire types of `subscriptions/listen`, and nothing else: who holds what is
decided in `subscriptions.py`.

Spec: 2026-07-28 basic/patterns/subscriptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from bridge.core.jsonrpc import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    PROGRESS_TOKEN,
    PROTOCOL_VERSION,
    SUBSCRIPTION_ID,
    Members,
    Message,
    Meta,
    OddMessage,
    decode_members,
    encoder,
)
from bridge.core.tables import Tables

if TYPE_CHECKING:
    from bridge.core.subscriptions import Holder

MAX_SHARED_FILTER: Final = 256 * 1024
"""A filter longer than this, in bytes, is not compared with others: to sort a million URIs holds
everybody up for seconds."""


class Filter(Struct, frozen=True, forbid_unknown_fields=True):
    """`params.notifications` of a listen that can be shared."""

    toolsListChanged: bool = False
    promptsListChanged: bool = False
    resourcesListChanged: bool = False
    resourceSubscriptions: list[str] = []


class Grant(Struct, frozen=True):
    """`params.notifications` of an acknowledgement, as far as the bridge must know it."""

    toolsListChanged: bool | None = None
    promptsListChanged: bool | None = None
    resourcesListChanged: bool | None = None
    resourceSubscriptions: list[str] | None = None

    def covers(self, other: Grant) -> bool:
        """Whether everything the other grants is granted here."""
        return (
            bool(self.toolsListChanged) >= bool(other.toolsListChanged)
            and bool(self.promptsListChanged) >= bool(other.promptsListChanged)
            and bool(self.resourcesListChanged) >= bool(other.resourcesListChanged)
            and set(self.resourceSubscriptions or ()) >= set(other.resourceSubscriptions or ())
        )

    @property
    def size(self) -> int:
        """How many change notifications `changes` makes at most."""
        return 3 + len(self.resourceSubscriptions or ())

    def changes(self) -> list[tuple[str, dict[str, Any]]]:
        """One change notification, method and params, for each thing that is granted."""
        kinds = (
            (self.toolsListChanged, "notifications/tools/list_changed"),
            (self.promptsListChanged, "notifications/prompts/list_changed"),
            (self.resourcesListChanged, "notifications/resources/list_changed"),
        )
        lists: list[tuple[str, dict[str, Any]]] = [(method, {}) for granted, method in kinds if granted]
        uris = dict.fromkeys(self.resourceSubscriptions or ())
        return lists + [("notifications/resources/updated", {"uri": uri}) for uri in uris]


class _SharedMeta(Struct, forbid_unknown_fields=True):
    """`params._meta` of a listen that can be shared: nothing in it is one client's alone."""

    version: str = field(name=PROTOCOL_VERSION)
    capabilities: Any = field(name=CLIENT_CAPABILITIES)
    info: Raw | UnsetType = field(default=UNSET, name=CLIENT_INFO)


_decode_filter: Final = msgspec.json.Decoder(Filter).decode
_decode_grant: Final = msgspec.json.Decoder(Grant).decode
_decode_shared_meta: Final = msgspec.json.Decoder(_SharedMeta).decode
_canonical: Final = msgspec.json.Encoder(order="deterministic").encode

ShareKey = tuple[bool, bool, bool, bytes, str, bytes]
"""The URIs as one piece of JSON: a million of them take many times their bytes one by one."""


def share_key(params: Members, meta: Meta) -> ShareKey | None:
    """What two listens must have in common to be one at the server; None if this one is not shared."""
    if params.keys() != {"_meta", "notifications"} or meta.token is not UNSET or meta.log_level is not UNSET:
        return None
    if len(memoryview(params["notifications"])) > MAX_SHARED_FILTER:
        return None
    try:
        wanted = _decode_filter(params["notifications"])
        shared = _decode_shared_meta(params["_meta"])
        capabilities = _canonical(shared.capabilities)
    except (msgspec.DecodeError, RecursionError):
        return None
    uris = encoder.encode(sorted(set(wanted.resourceSubscriptions)))
    return (
        wanted.toolsListChanged,
        wanted.promptsListChanged,
        wanted.resourcesListChanged,
        uris,
        shared.version,
        capabilities,
    )


class FanOut:
    """Writes one notification for many holders: encoded once, with each one's own id put in.

    Holders whose ids are spelled alike get the same object.
    """

    __slots__ = ("_before", "_behind", "_lines", "_tables")

    def __init__(self, tables: Tables, message: Message, meta: Members) -> None:
        self._tables = tables
        self._lines: dict[bytes, Raw] = {}
        codec = tables.codec_up
        params = message.params
        assert isinstance(params, dict)
        before, behind = _around(meta, SUBSCRIPTION_ID)
        outer_before, outer_behind = _around(params, "_meta")
        extra = message.extra if type(message) is OddMessage else {}
        tail = b"".join(b"," + encoder.encode(name) + b":" + bytes(value) for name, value in extra.items())
        head = b'{"jsonrpc":"2.0","method":' + encoder.encode(message.method) + b',"params":'
        self._before = codec.unmark(head + outer_before + before)
        self._behind = codec.unmark(behind + outer_behind + tail + b"}")

    def send(self, holder: Holder) -> None:
        """Put the notification for one holder."""
        id = encoder.encode(holder.id)
        line = self._lines.get(id)
        if line is None:
            line = self._lines[id] = Raw(self._before + id + self._behind)
        self._tables.stats.notifications_down += 1
        self._tables.outbox.put(holder.client, line)


def _around(members: Members, name: str) -> tuple[bytes, bytes]:
    """A JSON object's bytes before and behind the value of one of its members."""
    before: list[bytes] = []
    behind: list[bytes] = []
    side = before
    for key, value in members.items():
        if key == name:
            side.append(encoder.encode(key) + b":")
            side = behind
        else:
            side.append(encoder.encode(key) + b":" + bytes(value))
    first = b"{" + b",".join(before)
    return first, b"".join(b"," + item for item in behind) + b"}"


def with_token(meta: Raw, upstream_id: int) -> Raw:
    """The `_meta` of a listen with its progress token replaced by the upstream id."""
    members = decode_members(meta) or {}
    members[PROGRESS_TOKEN] = Raw(b"%d" % upstream_id)
    return Raw(encoder.encode(members))


def parse_grant(grant: Raw) -> Grant:
    """What an acknowledgement granted; nothing if that cannot be read."""
    try:
        return _decode_grant(grant)
    except (msgspec.DecodeError, RecursionError):
        return Grant()
