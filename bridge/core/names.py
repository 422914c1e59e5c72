"""Names in `params` and `_meta` that the bridge translates, and those that a server could take for them.

A server that reads names without regard to case would take `PROGRESSTOKEN` for a token, and report to it
what belongs to another client. So nothing goes on under a name that looks like a translated one.

Spec: 2026-07-28 basic, "_meta"; basic/patterns/progress.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, Raw, UnsetType

from bridge.core.codec import FAULTS, decode_call
from bridge.core.jsonrpc import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROGRESS_TOKEN,
    PROTOCOL_VERSION,
    SUBSCRIPTION_ID,
    Call,
    Members,
    Meta,
    PlainMeta,
    decode_members,
    decode_meta,
    encoder,
)

NO_META: Final = Meta()

# Names that need no second look; all others are compared with those that are translated.
KNOWN_PARAMS: Final = frozenset(
    {"_meta", "name", "arguments", "uri", "cursor", "ref", "argument", "context", "notifications", "level"}
    | {
        "inputResponses",
        "requestState",
        "protocolVersion",
        "capabilities",
        "clientInfo",
        "requestId",
        "reason",
        "task",
        "taskId",
    }
)
KNOWN_META: Final = frozenset(
    {PROGRESS_TOKEN, PROTOCOL_VERSION, CLIENT_INFO, CLIENT_CAPABILITIES, LOG_LEVEL}
    | {"traceparent", "tracestate", "baggage"}
)
TRANSLATED: Final = frozenset(
    {"_meta", "requestId", "task", "taskId"} | {PROGRESS_TOKEN, PROTOCOL_VERSION, LOG_LEVEL, SUBSCRIPTION_ID}
)
_FOLDED: Final = frozenset(name.casefold() for name in TRANSLATED)


def drop_look_alikes(members: Members) -> bool:
    """Take out what differs from a translated name by case alone; return whether there was anything."""
    alike = [name for name in members if name.casefold() in _FOLDED and name not in TRANSLATED]
    for name in alike:
        del members[name]
    return bool(alike)


def meta_of(message: Call) -> Meta:
    """What the bridge needs of a message's `params._meta`; all unset where there is none."""
    params = message.params
    raw = params.get("_meta") if type(params) is dict else None
    return NO_META if raw is None else decode_meta(raw) or NO_META


def look(params: Members) -> Meta:
    """What the bridge needs of a request's `_meta`; look-alikes are taken out of it and of `params`."""
    if not params.keys() <= KNOWN_PARAMS:
        drop_look_alikes(params)
    raw = params.get("_meta")
    meta = None if raw is None else decode_meta(raw)
    if raw is None or meta is None:
        return NO_META
    members = decode_members(raw)
    assert members is not None
    if not members.keys() <= KNOWN_META and drop_look_alikes(members):
        params["_meta"] = Raw(encoder.encode(members))
    return meta


def ordinary(line: bytes) -> tuple[Call, Raw | UnsetType] | None:
    """A client's request that has names in its `params` which the schemas do not know, and its `_meta`.

    None if it needs a longer look.
    """
    if line[:1] != b"{":
        return None
    try:
        message = decode_call(line)
    except FAULTS:
        return None
    params = message.params
    if type(params) is not dict:
        return None  # `params` stands there twice
    drop_look_alikes(params)
    return message, params.get("_meta", UNSET)


def put_token(message: Call, meta: PlainMeta, token: int) -> None:
    """Have a request go on with another token in its `_meta`."""
    meta.token = token  # type: ignore[assignment]  # encoded with its fellows
    params = message.params
    if type(params) is dict:
        params["_meta"] = meta  # type: ignore[assignment]  # as above
    else:
        params.meta = meta  # type: ignore[union-attr]  # a PlainParams


def remove_token(params: Members) -> bool:
    """Take a notification's token out: it names nothing, but a server could take it for a stranger's.

    Returns:
        Whether there was one.
    """
    drop_look_alikes(params)
    members = decode_members(params["_meta"]) if "_meta" in params else None
    if members is None:
        return False
    removed = members.pop(PROGRESS_TOKEN, None) is not None
    if drop_look_alikes(members) or removed:
        params["_meta"] = Raw(encoder.encode(members))
    return removed
