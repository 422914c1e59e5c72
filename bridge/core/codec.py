"""From bytes to messages and back, line by line.

Two ways lead from a line to a `Message`, with the same results:

* The plain decoders take lines of a text that `are_plain` accepts, at a few hundred nanoseconds each. They
  refuse anything out of the ordinary.
* `decode_line` takes any line and knows every case: CR, BOM, unknown members,
  unpaired surrogate escapes, and each kind of refusal.

Both judge the bytes as they were received, and both leave every value below the
members that are named in `jsonrpc.py` as the bytes it came in.

Spec: JSON-RPC 2.0; 2026-07-28 basic, "Messages" and "Error Codes".
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from bridge.core.framing import HEAD_KEPT, Block
from bridge.core.glance import BOM, MAX_ID_BYTES, guess_id, too_deep, trusted_id, trusted_text
from bridge.core.jsonrpc import (
    INVALID_REQUEST,
    PARSE_ERROR,
    Call,
    Id,
    Members,
    Message,
    OddMessage,
    Params,
    PlainCall,
    PlainMessage,
    Refusal,
    decode_members,
    encoder,
    plain_integer,
)

decode_plain_message: Final[Callable[[bytes], PlainMessage]] = msgspec.json.Decoder(PlainMessage).decode
decode_plain_call: Final[Callable[[bytes], PlainCall]] = msgspec.json.Decoder(PlainCall).decode
decode_message: Final[Callable[[bytes], Message]] = msgspec.json.Decoder(Message).decode
decode_call: Final[Callable[[bytes], Call]] = msgspec.json.Decoder(Call).decode

FAULTS: Final = (msgspec.DecodeError, RecursionError)
"""What the decoders above raise at a line that is not for them. They do not look at its depth, nor at the
length of its `id`: see `Codec.is_bounded`."""

_decode_raw: Final = msgspec.json.Decoder(Raw).decode
_decode_scalar: Final[Callable[[bytes], int | str]] = msgspec.json.Decoder(int | str).decode
_decode_text: Final = msgspec.json.Decoder(str).decode

_ENVELOPE: Final = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})

_BLANK: Final = b" \t\r\n"

# What a parser would refuse of an escape that is marked, behind its mark.
_BAD_ESCAPE: Final = re.compile(rb"\\u[dD](?![0-9a-fA-F]{3})")

CR: Final = ord("\r")
ARRAY: Final = ord("[")


class Codec:
    """Decode lines and encode messages.

    Args:
        salt: bytes no peer can guess, of at least 9 bytes in service (more add nothing). With them
            surrogate escapes are spelled while they are inside the bridge, so
            that no text of a peer can be taken for one.
        max_depth: the deepest nesting that is accepted, or 0 for the parser's own limit.

    Raises nothing at bytes of any kind: bad input is a `Refusal`.
    """

    __slots__ = ("_marker", "_max_depth", "short", "short_flat")

    def __init__(self, salt: bytes, max_depth: int = 0) -> None:
        # Short, since a text full of such escapes grows by as much for each.
        self._marker = b"~" + binascii.b2a_base64(salt, newline=False)[:12] + b":"
        self._max_depth = max_depth
        self.short = min(MAX_ID_BYTES, 2 * max_depth) if max_depth else MAX_ID_BYTES
        """A line so long can neither nest too deeply, at two bytes a level, nor have too long an `id`."""
        self.short_flat = min(MAX_ID_BYTES, 5 * max_depth) if max_depth else MAX_ID_BYTES
        """Nor can one so long without an array: there a level takes five."""

    def is_bounded(self, line: bytes, id: Id | UnsetType) -> bool:
        """Whether a valid line neither nests too deeply nor has too long an `id`.

        No may also mean that this is not certain.
        """
        max_depth = self._max_depth
        if max_depth:
            # Most long lines are a long text between a few members: nothing opens within it. Without arrays a
            # level takes four bytes to open, so what is left at both ends does not nest too deeply.
            begin = max_depth * 5 // 4
            end = len(line) - (4 * max_depth - begin)
            if (ARRAY in line or line.find(b"{", begin, max(begin, end)) >= 0) and too_deep(line, max_depth):
                return False
        return len(line) <= MAX_ID_BYTES or id is UNSET or not _is_long(id)

    def decode_plain_line(self, line: bytes) -> Message | Refusal | None:
        """Decode one line of a plain text, as `decode_line` does, but sooner if it is an ordinary one."""
        try:
            message = decode_message(line)
        except FAULTS:
            return self.decode_line(line)
        if len(line) > self.short and not self.is_bounded(line, message.id):
            return self.decode_line(line)
        return message

    def decode_line(self, line: Block) -> Message | Refusal | None:
        """Decode one line, whatever it holds; None if it is blank.

        Args:
            line: with or without its newline.
        """
        line = bytes(line).removesuffix(b"\n").removeprefix(BOM)
        if not line.strip(_BLANK):
            return None
        if not is_utf8(line):
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


def are_plain(block: Block) -> bool:
    """Whether whole lines are UTF-8 without CR, and so may go to the plain decoders one by one."""
    return CR not in block and (block.isascii() or is_utf8(block))


def lines_of(block: Block) -> Iterator[bytes]:
    """Whole lines one by one, each with its newline; what stands behind the last newline as well."""
    if type(block) is bytearray and block.find(b"\n") == len(block) - 1:
        return iter((block,))  # type: ignore[arg-type]  # it is read like bytes, and not copied
    return BytesIO(block)  # sooner than to split it, above all long lines, and one line alone is not copied


def is_utf8(block: Block) -> bool:
    """Whether the bytes are UTF-8."""
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
    return decode_members(line if is_utf8(line) else line.decode(errors="replace").encode())
