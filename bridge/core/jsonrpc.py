"""The JSON-RPC envelope: what kind of message a line is, and the lines the bridge writes itself.

Two ways lead from bytes to a `Message`, with the same results:

* `decode_block` takes whole chunks of plain lines in one call. It says no to
  anything out of the ordinary.
* `decode_line` takes one line and knows every case: CR, BOM, unknown members,
  unpaired surrogate escapes, and each kind of refusal.

Both judge the bytes as they were received, and both leave every value below the
members that are named here as the bytes it came in.

Spec: JSON-RPC 2.0; 2026-07-28 basic, "Messages" and "Error Codes".
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from bridge.core.framing import HEAD_KEPT, Block
from bridge.core.glance import BOM, MAX_ID_BYTES, brackets, guess_id, too_deep, trusted_id, trusted_text

Members: TypeAlias = dict[str, Raw]
"""The members of one JSON object: decoded keys, each once; values as bytes."""

# What a message may hold is more than what the fast path decodes into it.
if TYPE_CHECKING:
    Id: TypeAlias = int | str | Raw
    Params: TypeAlias = Members | Raw | UnsetType | None
    Token: TypeAlias = bytes | UnsetType
    Reported: TypeAlias = int | Raw
else:
    Id = int | str
    Params = Members | UnsetType | None
    Token = Raw | UnsetType
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
    """The `params` of MCP's ordinary requests, which need no look at their names.

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

    params: PlainParams | UnsetType | None = UNSET  # type: ignore[assignment]  # see `as_call`

    def as_call(self) -> Call:
        """The same with the members of its `params` by name."""
        params = self.params
        members = decode_members(encoder.encode(params)) if type(params) is PlainParams else params
        return Call(self.jsonrpc, self.id, self.method, members)  # type: ignore[arg-type]  # what is left


class Report(Struct, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The `params` of an ordinary progress notification."""

    token: Reported = field(name=PROGRESS_TOKEN)
    """The upstream id, and then the client's own token."""
    progress: Raw | UnsetType = UNSET
    total: Raw | UnsetType = UNSET
    message: Raw | UnsetType = UNSET


class PlainMessage(Message, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """What most messages of a server are: responses, progress, and what has no `params`."""

    params: Report | UnsetType | None = UNSET  # type: ignore[assignment]  # see `as_message`

    def as_message(self) -> Message:
        """The same with the members of its `params` by name."""
        params = self.params
        members = decode_members(encoder.encode(params)) if type(params) is Report else params
        return Message(self.jsonrpc, self.id, self.method, members, self.result, self.error)  # type: ignore[arg-type]  # what is left


class Meta(Struct, gc=False):
    """What the bridge reads of a request's `params._meta`; every other member is skipped."""

    token: Raw | UnsetType = field(default=UNSET, name=PROGRESS_TOKEN)
    log_level: Raw | UnsetType = field(default=UNSET, name=LOG_LEVEL)
    version: Raw | UnsetType = field(default=UNSET, name=PROTOCOL_VERSION)
    subscription: Raw | UnsetType = field(default=UNSET, name=SUBSCRIPTION_ID)


class PlainMeta(Struct, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A `_meta` in which nothing but the progress token is to be translated."""

    token: Token = field(default=UNSET, name=PROGRESS_TOKEN)
    """As it is spelled."""
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


_Envelope = TypeVar("_Envelope", bound=Call)

encoder: Final = msgspec.json.Encoder()
_plain_messages: Final = msgspec.json.Decoder(PlainMessage)
_messages: Final = msgspec.json.Decoder(Message)
_calls: Final = msgspec.json.Decoder(Call)
_plain_calls: Final = msgspec.json.Decoder(PlainCall)
_decode_members: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_raw: Final = msgspec.json.Decoder(Raw).decode
_decode_scalar: Final[Callable[[bytes], int | str]] = msgspec.json.Decoder(int | str).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_decode_meta: Final = msgspec.json.Decoder(Meta).decode
_decode_plain_meta: Final = msgspec.json.Decoder(PlainMeta).decode

_ENVELOPE: Final = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})

_BLANK: Final = b" \t\r\n"

# What a parser would refuse of an escape that is marked, behind its mark.
_BAD_ESCAPE: Final = re.compile(rb"\\u[dD](?![0-9a-fA-F]{3})")

FEW_ARRAYS: Final = 16
"""So many arrays in a block of lines are found one by one, which is cheaper than to count all brackets."""

# Above this length, in bytes, lines are not split: Python does that byte by byte, and copies them.
_SPLIT: Final = 400

_CR: Final = ord("\r")
_OPENS: Final = ord("{")
_CLOSES: Final = ord("}")


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
    """A `_meta` that was validated with its line, its token as bytes; None if it needs a second look."""
    try:
        meta = _decode_plain_meta(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    if meta.token is not UNSET:
        token = meta.token = bytes(meta.token)
        if not is_token(token):
            return None
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


class Codec:
    """Decode lines and encode messages.

    Args:
        salt: bytes no peer can guess, of at least 9 bytes in service (more add nothing). With them
            surrogate escapes are spelled while they are inside the bridge, so
            that no text of a peer can be taken for one.
        max_depth: the deepest nesting that is accepted, or 0 for the parser's own limit.

    Raises nothing at bytes of any kind: bad input is a `Refusal`.
    """

    __slots__ = ("_flat", "_marker", "_max_depth", "_short")

    def __init__(self, salt: bytes, max_depth: int = 0) -> None:
        # Short, since a text full of such escapes grows by as much for each.
        self._marker = b"~" + binascii.b2a_base64(salt, newline=False)[:12] + b":"
        self._max_depth = max_depth
        # A line of this length can neither nest too deeply nor have too long an `id`: a level takes two
        # bytes, `[]`, or five, `{"":}`.
        self._short = min(MAX_ID_BYTES, 2 * max_depth) if max_depth else MAX_ID_BYTES
        # Nor can one of this length that has few arrays.
        self._flat = min(MAX_ID_BYTES, 5 * (max_depth - FEW_ARRAYS))

    def decode_block(self, block: Block) -> list[Message] | None:
        """Decode a block of a server's plain lines at once; None if any line needs the careful path.

        Plain is a line without CR, BOM, bad UTF-8, deep nesting, unknown member
        or `id` of an unusual type or length, with exactly one message on it.
        """
        return self._decode(block, _messages)

    def decode_plain_block(self, block: Block) -> Sequence[Message] | None:
        """Decode as `decode_block` does, if all are `PlainMessage`; None otherwise."""
        return self._decode(block, _plain_messages)

    def decode_calls(self, block: Block) -> list[Call] | None:
        """Decode a block of a client's plain lines at once: see `decode_block`. A response is not plain."""
        return self._decode(block, _calls)

    def decode_plain_calls(self, block: Block) -> Sequence[Call] | None:
        """Decode as `decode_calls` does; all are `PlainCall` if they can be, and none otherwise."""
        plain = self._decode(block, _plain_calls)
        return self._decode(block, _calls) if plain is None else plain

    def _decode(self, block: Block, decoder: msgspec.json.Decoder[_Envelope]) -> list[_Envelope] | None:
        if _CR in block or not (block.isascii() or _is_utf8(block)):
            return None
        size = len(block)
        end = block.find(b"\n")
        try:
            if end == size - 1:
                message = decoder.decode(block)
                return [message] if size <= self._short or self._are_plain(block, [message]) else None
            if end > _SPLIT:
                messages = decoder.decode_lines(block)
                return messages if self._are_plain(block, messages) else None
            # Line by line: `decode_lines` takes any white space for the end of a line.
            lines = block.split(b"\n")
            if lines.pop():  # no newline at the end: not to be expected
                return None
            messages = [*map(decoder.decode, lines)]
        except (msgspec.DecodeError, RecursionError):
            return None
        if size <= self._short or (longest := max(map(len, lines))) <= self._short:
            return messages
        if longest <= self._flat and brackets(block, FEW_ARRAYS, b"[") <= FEW_ARRAYS:
            return messages
        return messages if self._are_plain(block, messages) else None

    def _are_plain(self, block: Block, messages: Sequence[Call]) -> bool:
        """Whether each message of a block is alone on its line, and neither deep nor with a long `id`.

        A newline between `}` and `{` always parts two messages, so one such newline behind each message
        means one message a line.
        """
        max_depth = self._max_depth
        if max_depth and brackets(block, max_depth) <= max_depth:
            max_depth = 0  # not even all of them together could nest too deeply
        find = block.find
        begin = 0
        for message in messages:
            end = find(b"\n", begin)
            if end < 1 or block[begin] != _OPENS or block[end - 1] != _CLOSES:
                return False
            if max_depth and end - begin > self._short and too_deep(block[begin:end], max_depth):
                return False
            if end - begin > MAX_ID_BYTES and (id := message.id) is not UNSET and _is_long(id):
                return False
            begin = end + 1
        return begin == len(block)

    def decode_line(self, line: Block) -> Message | Refusal | None:
        """Decode one line, whatever it holds; None if it is blank.

        Args:
            line: without its newline.
        """
        line = bytes(line)
        if line.startswith(BOM):
            line = line[len(BOM) :]
        if not line.strip(_BLANK):
            return None
        if not _is_utf8(line):
            return Refusal(PARSE_ERROR, "the line is not valid UTF-8")
        marked = False
        try:
            try:
                _decode_raw(line)
            except msgspec.DecodeError as fault:
                marked_line = self._mark(line)
                if marked_line is None:
                    return Refusal(PARSE_ERROR, f"the line is not valid JSON ({fault})")
                _decode_raw(marked_line)
                line, marked = marked_line, True
        except msgspec.DecodeError as fault:
            return Refusal(PARSE_ERROR, f"the line is not valid JSON ({fault})")
        except RecursionError:
            guess = guess_id(line[:HEAD_KEPT], line[-HEAD_KEPT:])
            return Refusal(
                INVALID_REQUEST, "the message is nested too deeply", UNSET if guess is None else guess
            )
        # Valid JSON holds a CR only as white space. Text-mode readers end a line at
        # it, and so would take what follows for a message of its own.
        line = line.replace(b"\r", b" ").strip(_BLANK)
        members = decode_members(line)
        if members is None:
            what = "batches are not supported" if line.startswith(b"[") else "the message is not an object"
            return Refusal(INVALID_REQUEST, what)
        message = self._envelope(members, marked)
        if self._max_depth and too_deep(line, self._max_depth):
            why = f"the message is nested more than {self._max_depth} levels deep"
            return Refusal(INVALID_REQUEST, why, message.id)
        return message

    def _envelope(self, members: Members, marked: bool) -> Message | Refusal:
        id: Id | UnsetType = UNSET
        raw_id = members.pop("id", None)
        if raw_id is not None:
            read = self.read_id(raw_id)
            if read is None:
                return Refusal(INVALID_REQUEST, "`id` must be a string or an integer of at most 1 KiB")
            id = read
        version = members.pop("jsonrpc", None)
        if version is None or _text(version) != "2.0":
            return Refusal(INVALID_REQUEST, '`jsonrpc` must be "2.0"', id)
        method: str | UnsetType = UNSET
        raw_method = members.pop("method", None)
        if raw_method is not None:
            text = _text(raw_method)
            if text is None:
                return Refusal(INVALID_REQUEST, "`method` must be a string", id)
            method = text
        params: Params = UNSET
        raw_params = members.pop("params", None)
        if raw_params is not None:
            first = bytes(memoryview(raw_params)[:1])
            if first == b"{":
                params = decode_members(raw_params)
            elif first == b"[":
                params = raw_params
            elif first == b"n":
                params = None
            else:
                return Refusal(INVALID_REQUEST, "`params` must be an object or an array", id)
        result = members.pop("result", UNSET)
        error = members.pop("error", UNSET)
        # A peer that reads names without regard to case would take one for what stands for it here.
        members = {name: raw for name, raw in members.items() if name.casefold() not in _ENVELOPE}
        if members or marked or type(params) is Raw:
            return OddMessage("2.0", id, method, params, result, error, members, marked)
        return Message("2.0", id, method, params, result, error)

    def read_id(self, raw: Raw) -> Id | None:
        """An `id` from its bytes; None if it is of a kind that is not served."""
        text = self.unmark(bytes(raw))
        if len(text) > MAX_ID_BYTES:
            return None
        try:
            return _decode_scalar(text)
        except msgspec.DecodeError:
            # A string that is valid JSON, and yet refused, holds an unpaired surrogate escape.
            return Raw(text) if text[:1] == b'"' else None

    def _mark(self, line: bytes) -> bytes | None:
        """Spell each escape from U+D000 on with the marker; None if there is none, or an invalid one.

        Those are the surrogate escapes, and others that need no marking. To find just the unpaired ones takes
        a pattern, and seconds for a text that is full of them; to replace bytes takes next to nothing.
        """
        if self._marker in line:  # nobody can know the marker: chance does not happen
            return None
        # An escape is one only behind an even number of backslashes. No valid UTF-8 has 0xFF.
        plain = line.replace(b"\\\\", b"\xff")
        if _BAD_ESCAPE.search(plain):
            return None
        marked = plain.replace(b"\\ud", self._marker + b"d").replace(b"\\uD", self._marker + b"D")
        return None if marked == plain else marked.replace(b"\xff", b"\\\\")

    def unmark(self, text: bytes) -> bytes:
        """Put the unpaired surrogate escapes back as the peer spelled them."""
        # No pattern: a text full of such escapes would hold everybody up for seconds.
        return text.replace(self._marker, b"\\u")

    def owned(self, message: Call, raw: Raw) -> bytes:
        """The bytes of a value to be kept: a copy that pins no buffer, as the peer spelled it."""
        text = bytes(raw)
        return self.unmark(text) if type(message) is OddMessage and message.marked else text

    def render(self, message: Call) -> bytes:
        """Encode one message as a line without its newline."""
        if type(message) is not OddMessage:
            return encoder.encode(message)
        members: dict[str, Any] = {"jsonrpc": "2.0"}
        for name in ("id", "method", "params", "result", "error"):
            value = getattr(message, name)
            if value is not UNSET:
                members[name] = value
        members.update(message.extra)
        line = encoder.encode(members)
        return self.unmark(line) if message.marked else line

    def encode_lines(self, messages: list[Call | Raw]) -> bytes:
        """Encode messages, each with its newline. `Raw` items are lines that are ready."""
        return encoder.encode_lines(
            [Raw(self.render(m)) if type(m) is OddMessage else m for m in messages]  # see OddMessage
        )


def _is_utf8(block: Block) -> bool:
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_long(id: Id) -> bool:
    # Escapes make a string's bytes more than its characters, and twelve times more at
    # most: what could be too long is measured by the careful path.
    return len(id) > 85 if type(id) is str else type(id) is int and id.bit_length() > 512


def _text(raw: Raw) -> str | None:
    try:
        return _decode_text(raw)
    except msgspec.DecodeError:
        return None


def salvage_id(line: Block) -> int | None:
    """The upstream id of a response of the server that `decode_line` refused; None if none can be trusted.

    The `id` of a `Refusal` is none: it may be a request's of the server's own, or a guess.
    """
    line = bytes(line).removeprefix(BOM)
    members = _mended(line)
    if members is None:
        return trusted_id(line[:HEAD_KEPT], line[-HEAD_KEPT:])
    id = members.get("id")
    return plain_integer(id) if id is not None and "method" not in members else None


def salvage_text(line: Block) -> bytes | None:
    """As `salvage_id`, where ids are whatever a client chose: the `id` as it is spelled."""
    line = bytes(line).removeprefix(BOM)
    members = _mended(line)
    if members is None:
        return trusted_text(line[:HEAD_KEPT], line[-HEAD_KEPT:])
    id = members.get("id")
    return bytes(id) if id is not None and "method" not in members else None


def _mended(line: bytes) -> Members | None:
    # Bad UTF-8 moves no bracket: a line with no other fault decodes once it is replaced.
    return decode_members(line if _is_utf8(line) else line.decode(errors="replace").encode())


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
