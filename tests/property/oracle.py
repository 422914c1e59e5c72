"""What lines are, said once more: by the standard library's JSON parser and by scanners of single bytes.

Nothing here is shared with what it judges but the types of the results.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeAlias

from msgspec import UNSET, Raw

from bridge.core.codec import Codec
from bridge.core.framing import HEAD_KEPT, OverlongEnd, OverlongStart, Segment
from bridge.core.jsonrpc import INVALID_REQUEST, PARSE_ERROR, Message, Refusal

BOM = b"\xef\xbb\xbf"


class Number(str):
    """A number as it is spelled."""


class Pairs(list[tuple[str, Any]]):
    """An object with all its members."""


Outcome: TypeAlias = tuple[str, object, object]


def unknown_constant(name: str) -> Any:
    raise ValueError(name)


def parse(line: bytes) -> Any:
    return json.loads(
        line.decode(),
        object_pairs_hook=Pairs,
        parse_int=Number,
        parse_float=Number,
        parse_constant=unknown_constant,
    )


def naive_depth(line: bytes) -> int:
    """The deepest level of a valid JSON text, byte by byte."""
    depth = deepest = at = 0
    quoted = False
    while at < len(line):
        byte = line[at : at + 1]
        if quoted:
            if byte == b"\\":
                at += 1
            quoted = byte != b'"'
        elif byte == b'"':
            quoted = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
        at += 1
    return deepest


def expected(line: bytes, limit: int) -> Outcome | None:
    """What a line is: ("message", id, method), ("refused", code, id), or None if it is blank."""
    line = line.removeprefix(BOM)
    if not line.strip(b" \t\r"):
        return None
    try:
        value = parse(line)
    except ValueError:
        return "refused", PARSE_ERROR, UNSET
    if not isinstance(value, Pairs):
        return "refused", INVALID_REQUEST, UNSET
    members = dict(value)
    id: object = UNSET
    if "id" in members:
        id = members["id"]
        if isinstance(id, Number):
            if not re.fullmatch("-?[0-9]+", id):
                return "refused", INVALID_REQUEST, UNSET
            id = int(id)
        elif not isinstance(id, str):
            return "refused", INVALID_REQUEST, UNSET
    good = type(members.get("jsonrpc")) is str and members["jsonrpc"] == "2.0"
    good = good and type(members.get("method", "")) is str
    good = good and (members.get("params") is None or isinstance(members["params"], list))
    good = good and not (limit and naive_depth(line) > limit)
    return ("message", id, members.get("method", UNSET)) if good else ("refused", INVALID_REQUEST, id)


def found(codec: Codec, decoded: Message | Refusal | None) -> Outcome | None:
    """What the codec made of a line, in the oracle's terms."""
    if decoded is None:
        return None
    id = decoded.id
    if type(id) is Raw:
        id = json.loads(bytes(id))
        assert any("\ud800" <= char <= "\udfff" for char in str(id)), "only such an id is kept raw"
    if isinstance(decoded, Refusal):
        return "refused", decoded.code, id
    written = json.loads(codec.render(decoded))
    return "message", id, written.get("method", UNSET)


def pieces(line: bytes) -> dict[str, bytes]:
    """The members of a valid JSON object: each key's last value, as the bytes it is spelled with."""
    members: dict[str, bytes] = {}
    depth, quoted, begin, at = 0, False, 1, 0
    key: str | None = None
    line = line.strip()
    while at < len(line):
        byte = line[at : at + 1]
        if quoted:
            if byte == b"\\":
                at += 1
            quoted = byte != b'"'
        elif byte == b'"':
            quoted = True
        elif byte == b":" and depth == 1:
            key, begin = json.loads(line[begin:at]), at + 1
        else:
            depth -= byte in b"]}"
            if (byte == b"," and depth == 1) or depth == 0:
                if key is not None:
                    members[key] = line[begin:at].strip()
                key, begin = None, at + 1
            depth += byte in b"[{"
        at += 1
    return members


def spelled_twice(line: bytes) -> bool:
    """Whether a member of a message, or of its `params`, is there twice, under a name beyond U+D000.

    In a line with half a surrogate pair such names are two if they are spelled in two ways.
    """
    members = parse(line.removeprefix(BOM))
    objects = [members, *(value for key, value in members if key == "params" and type(value) is Pairs)]
    names = [[key for key, _ in one if any(char >= "\ud000" for char in key)] for one in objects]
    return any(len(some) != len(set(some)) for some in names)


def shown(codec: Codec, decoded: Message | Refusal | None) -> object:
    if decoded is None:
        return None
    if isinstance(decoded, Refusal):
        id = decoded.id
        return decoded.code, decoded.reason, type(id), bytes(id) if isinstance(id, Raw) else id
    return type(decoded.id), codec.render(decoded)


def flat(segments: list[Segment]) -> list[object]:
    """Segments as single lines, since which lines share a block is not told by the bytes."""
    units: list[object] = []
    for segment in segments:
        if isinstance(segment, (OverlongStart, OverlongEnd)):
            units.append(segment)
        else:
            assert segment.endswith(b"\n")
            units += bytes(segment).split(b"\n")[:-1]
    return units


def cut_up(stream: bytes, limit: int) -> list[object]:
    """What a framer must find in a whole stream, its end included."""
    units: list[object] = []
    parts = stream.split(b"\n")
    for part in parts if parts[-1] else parts[:-1]:
        if len(part) > limit:
            units += [OverlongStart(part[: min(limit, HEAD_KEPT)]), OverlongEnd(part[-HEAD_KEPT:])]
        else:
            units.append(part)
    return units
