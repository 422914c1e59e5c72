"""The JSON-RPC envelope: its codes and members, what a decoded message is, and the bridge's own lines.

How bytes become messages is `codec.py`'s.

Spec: JSON-RPC 2.0; 2026-07-28 basic, "Messages" and "Error Codes".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from bridge.core.glance import MAX_ID_BYTES

Members: TypeAlias = dict[str, Raw]
"""The members of one JSON object: decoded keys, each once; values as bytes."""

# What a message may hold is more than what the fast path decodes into it.
if TYPE_CHECKING:
    Id: TypeAlias = int | str | Raw
    Params: TypeAlias = Members | Raw | UnsetType | None
    Reported: TypeAlias = int | Raw
else:
    Id = int | str
    Params = Members | UnsetType | None
    Reported = int

# JSON-RPC's own codes.
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
# The bridge's own: outside -32768..-32000, which belongs to JSON-RPC and to MCP.
SERVER_EXITED: Final = -31001
SERVER_UNAVAILABLE: Final = -31002
OVERLOADED: Final = -31003
TOO_LARGE: Final = -31004
SHUTTING_DOWN: Final = -31005
ERA_NOT_SERVED: Final = -31006
TIMED_OUT: Final = -31007
INVALID_RESPONSE: Final = -31008

SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
PROTOCOL_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
PROGRESS_TOKEN: Final = "progressToken"


class Call(Struct, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A request or a notification, or what is neither: a message without `result` and `error`.

    It is what the fast path makes of a client's line; see `Message`.
    """

    jsonrpc: Literal["2.0"]
    id: Id | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Params = UNSET


class Message(Call, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """One JSON-RPC message: the envelope decoded, everything below it as bytes.

    An `id` is an int or a str, and `Raw` only for a string with an unpaired
    surrogate escape; `params` is `Raw` only for an array.
    `gc=False`: a message holds no reference that could lead back to it, and one
    is made for every line.
    """

    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class OddMessage(Message, gc=False, omit_defaults=True):
    """A message from the careful path that `encode_lines` could not write as it is.

    `extra` holds the envelope's unknown members; `marked` says that surrogate
    escapes are spelled with the codec's marker and must be put back.
    """

    extra: Members = field(default_factory=dict)
    marked: bool = False


class PlainParams(Struct, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The `params` of MCP's ordinary requests, which need no look at their names. They go on in this order.

    Spec: 2026-07-28 and 2025-11-25 schemas, the requests of a client.
    """

    name: Raw | UnsetType = UNSET
    arguments: Raw | UnsetType = UNSET
    uri: Raw | UnsetType = UNSET
    cursor: Raw | UnsetType = UNSET
    ref: Raw | UnsetType = UNSET
    argument: Raw | UnsetType = UNSET
    context: Raw | UnsetType = UNSET
    meta: Raw | UnsetType = field(default=UNSET, name="_meta")


class PlainCall(Call, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """What most calls are: see `PlainParams`."""

    params: PlainParams | UnsetType | None = UNSET  # type: ignore[assignment]  # not to be asked for members


class Report(Struct, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The `params` of an ordinary progress notification."""

    token: Reported = field(name=PROGRESS_TOKEN)
    """The upstream id, and then the client's own token."""
    progress: Raw | UnsetType = UNSET
    total: Raw | UnsetType = UNSET
    message: Raw | UnsetType = UNSET


class PlainMessage(Message, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """What most messages of a server are: responses and progress."""

    method: Literal["notifications/progress"] | UnsetType = UNSET
    params: Report | UnsetType | None = UNSET  # type: ignore[assignment]  # not to be asked for members


class Meta(Struct, gc=False):
    """What the bridge reads of a request's `params._meta`; every other member is skipped."""

    token: Raw | UnsetType = field(default=UNSET, name=PROGRESS_TOKEN)
    log_level: Raw | UnsetType = field(default=UNSET, name=LOG_LEVEL)
    version: Raw | UnsetType = field(default=UNSET, name=PROTOCOL_VERSION)
    subscription: Raw | UnsetType = field(default=UNSET, name=SUBSCRIPTION_ID)


class PlainMeta(Struct, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A `_meta` in which nothing but the progress token is to be translated."""

    token: Raw | UnsetType = field(default=UNSET, name=PROGRESS_TOKEN)
    version: Raw | UnsetType = field(default=UNSET, name=PROTOCOL_VERSION)
    info: Raw | UnsetType = field(default=UNSET, name=CLIENT_INFO)
    capabilities: Raw | UnsetType = field(default=UNSET, name=CLIENT_CAPABILITIES)
    traceparent: Raw | UnsetType = UNSET
    tracestate: Raw | UnsetType = UNSET
    baggage: Raw | UnsetType = UNSET


class Refusal(Struct, frozen=True):
    """A line that is no message: the error code it earns, why, and its `id` if that could be read."""

    code: int
    reason: str
    id: Id | UnsetType = UNSET


encoder: Final = msgspec.json.Encoder()
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_meta: Final = msgspec.json.Decoder(Meta).decode
_decode_plain_meta: Final = msgspec.json.Decoder(PlainMeta).decode


def decode_members(raw: Raw | bytes) -> Members | None:
    """The members of a JSON object, each key once (the last one wins); None if it is no object."""
    try:
        return _decode_members(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def decode_meta(raw: Raw) -> Meta | None:
    """What the bridge needs of a `_meta` that was validated with its line; None if it is no object."""
    try:
        return _decode_meta(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def decode_plain_meta(raw: Raw) -> PlainMeta | None:
    """A `_meta` that was validated with its line, its token a copy; None if it needs a second look."""
    try:
        meta = _decode_plain_meta(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    if meta.token is not UNSET:
        token = bytes(meta.token)
        if not is_token(token):
            return None
        meta.token = Raw(token)
    return meta


def plain_integer(raw: Raw | bytes) -> int | None:
    """The value of a JSON number that is spelled as a non-negative plain integer, else None.

    Only such a number can be an id or a token the bridge minted: `5.0` and `"5"` name
    nothing.
    """
    text = bytes(raw)
    return int(text) if text.isdigit() and len(text) <= 16 else None


def is_token(raw: bytes) -> bool:
    """Whether a progress token is a string or a plain integer, and short enough to keep."""
    if len(raw) > MAX_ID_BYTES:
        return False
    return raw[:1] == b'"' or raw.removeprefix(b"-").isdigit()


def error_line(
    id: Id | UnsetType, code: int, message: str, reason: str, *, delivered: bool = False, **more: Any
) -> Raw:
    """An error response of the bridge's own, as a line without its newline.

    Args:
        id: of the request, as the client wrote it; UNSET if it could not be read,
            and then the response has no `id`.
        code: a JSON-RPC code, or one of the bridge's own.
        message: one sentence for a person, saying what to do if there is anything to do.
        reason: the same for a program, a word that never changes.
        delivered: whether the server may have seen the request. False promises that
            it has not, so that sending it again is safe.
        more: further members of `error.data`.
    """
    data = {"source": "mcp-bridge", "reason": reason, "delivered": delivered, **more}
    body: dict[str, Any] = {"jsonrpc": "2.0"}
    if id is not UNSET:
        body["id"] = id
    body["error"] = {"code": code, "message": message, "data": data}
    return Raw(encoder.encode(body))


def notification_line(method: str, params: dict[str, Any]) -> Raw:
    """A notification of the bridge's own, as a line without its newline."""
    return Raw(encoder.encode({"jsonrpc": "2.0", "method": method, "params": params}))


def request_line(id: int, method: str, params: dict[str, Any]) -> Raw:
    """A request of the bridge's own, as a line without its newline."""
    return Raw(encoder.encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))


def result_line(id: Id, result: dict[str, Any]) -> Raw:
    """A response of the bridge's own, as a line without its newline."""
    return Raw(encoder.encode({"jsonrpc": "2.0", "id": id, "result": result}))
