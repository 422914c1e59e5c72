"""What the bytes of a line show without their being decoded: how deep it nests, and which `id` it has.

The second is for lines that cannot be decoded, or are not kept whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import accumulate
from operator import add
from typing import Final

import msgspec

from bridge.core.framing import Block

MAX_ID_BYTES: Final = 1024
"""The longest `id` or progress token that is served, in bytes as written: a table keeps it."""

BOM: Final = b"\xef\xbb\xbf"

_decode_scalar: Final[Callable[[bytes], int | str]] = msgspec.json.Decoder(int | str).decode

# What of a line decides how deep it nests, and what each bracket adds to the depth.
_BESIDE: Final = bytes(set(range(256)) - set(b'[]{}"'))
_QUOTED: Final = re.compile(rb'"[^"]*+"')
_SIGNS: Final = bytes.maketrans(b"[{]}", b"1100")
# Of eight brackets in a byte: how much deeper than before they end, and how much they go at most.
_DEPTHS: Final = [
    [*accumulate((1 if octet >> bit & 1 else -1 for bit in range(7, -1, -1)), initial=0)]
    for octet in range(256)
]
_RISE: Final = bytes(depths[-1] & 0xFF for depths in _DEPTHS)
_PEAK: Final = bytes(max(depths) for depths in _DEPTHS)
# Looking into a line goes by pieces of this many bytes, so that it takes no memory to speak of.
_PIECE: Final = 64 * 1024


def _are_few(line: Block, limit: int) -> bool:
    """Whether a line has no more opening brackets than `limit`.

    They are looked for one by one, so a long text costs next to nothing.
    """
    for bracket in (b"{", b"["):
        at = line.find(bracket)
        while at >= 0:
            limit -= 1
            if limit < 0:
                return False
            at = line.find(bracket, at + 1)
    return True


def too_deep(line: Block, limit: int) -> bool:
    """Whether a valid JSON line nests deeper than `limit` levels."""
    if _are_few(line, limit):
        return False
    # Without escapes every quotation mark begins or ends a string; `""` says nothing, wherever it stands.
    bare = line.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _BESIDE).replace(b'""', b"")
    depth = 0
    open_quote = signs = b""
    for begin in range(0, len(bare), _PIECE):
        piece = open_quote + bare[begin : begin + _PIECE]
        open_quote = b'"' if piece.count(b'"') % 2 else b""
        signs += _QUOTED.sub(b"", piece + open_quote).translate(_SIGNS)
        whole = len(signs) & -8
        if whole:
            # Eight brackets make a byte, so that Python looks at an eighth of what there is.
            octets = int(signs[:whole], 2).to_bytes(whole // 8, "big")
            depths = [*accumulate(memoryview(octets.translate(_RISE)).cast("b"), initial=depth)]
            if max(map(add, depths, octets.translate(_PEAK))) > limit:
                return True
            depth = depths[-1]
            signs = signs[whole:]
    return any(level > limit for level in accumulate((2 * sign - 97 for sign in signs), initial=depth))


_HEAD_ID: Final = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?(?:"method"\s*:\s*"[^"\\]*"\s*,\s*)?'
    rb'"id"\s*:\s*(-?[0-9]{1,1024}|"(?:[^"\\]|\\.){0,1022}")\s*,'
)
_TAIL_ID: Final = re.compile(
    rb',\s*"id"\s*:\s*(-?[0-9]{1,1024}|"(?:[^"\\]|\\.){0,1022}")\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z'
)


def guess_id(head: bytes, tail: bytes) -> int | str | None:
    """The `id` of a client's line that was not decoded whole, from its head or its tail.

    A wrong guess reaches nobody but the client that wrote the line.
    """
    match = _HEAD_ID.match(head.removeprefix(BOM)) or _TAIL_ID.search(tail)
    if match is None or len(match[1]) > MAX_ID_BYTES:
        return None
    try:
        return _decode_scalar(match[1])
    except msgspec.DecodeError:
        return None


_TRUSTED_HEAD: Final = re.compile(rb'\{"jsonrpc":"2\.0","id":([1-9][0-9]{0,15}),"(?:result|error)":')
_TRUSTED_TAIL: Final = re.compile(
    rb',(?:"jsonrpc":"2\.0","id":([1-9][0-9]{0,15})|"id":([1-9][0-9]{0,15}),"jsonrpc":"2\.0")\}\s*\Z'
)


def trusted_id(head: bytes, tail: bytes) -> int | None:
    """The upstream id of a response of the server that is damaged, too long or too deep.

    Only these spellings prove an `id` to be the message's own and not a part of
    some text: `{"jsonrpc":"2.0","id":N,"result"` (or `"error"`) at the beginning, and
    `,"jsonrpc":"2.0","id":N}` (either order) at the end of a line that begins
    `{"result":` or `{"error":`. If both ends name an id they must agree.
    """
    head = head.removeprefix(BOM)
    front = _TRUSTED_HEAD.match(head)
    back = _TRUSTED_TAIL.search(tail)
    last = int(back[1] or back[2]) if back else None
    if front:
        first = int(front[1])
        return first if last is None or last == first else None
    return last if head.startswith((b'{"result":', b'{"error":')) else None


_ID: Final = rb'(-?[0-9]{1,1024}|"(?:[^"\\]|\\.){0,1022}")'
_ANSWER_HEAD: Final = re.compile(rb'\{"jsonrpc":"2\.0","id":' + _ID + rb',"(?:result|error)":')
_ANSWER_TAIL: Final = re.compile(
    rb',(?:"jsonrpc":"2\.0","id":' + _ID + rb'|"id":' + _ID + rb',"jsonrpc":"2\.0")\}\s*\Z'
)


def trusted_text(head: bytes, tail: bytes) -> bytes | None:
    """As `trusted_id`, where ids are whatever a client chose: the `id` as it is spelled."""
    head = head.removeprefix(BOM)
    front = _ANSWER_HEAD.match(head)
    back = _ANSWER_TAIL.search(tail)
    last = (back[1] or back[2]) if back else None
    if front:
        return front[1] if last in (None, front[1]) else None
    return last if head.startswith((b'{"result":', b'{"error":')) else None
