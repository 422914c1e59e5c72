"""What is fuzzed: for each target, a function of any bytes that raises where the bridge breaks a promise.

No target needs the fuzzer: the normal run puts the committed corpus through all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from msgspec import Raw

from bridge.core.codec import Codec, salvage_id
from bridge.core.framing import LineFramer, Segment
from bridge.core.glance import guess_id, trusted_id
from bridge.core.jsonrpc import Message, Refusal, decode_members, decode_meta, is_token, plain_integer
from tests.fuzz.conversation import converse
from tests.property.oracle import BOM, cut_up, expected, flat, found, parse, pieces, shown, spelled_twice
from tests.support.plainly import decode_block, decode_lines

SALT: Final = b"0123456789abcdef"
SHALLOW: Final = 5
"""A small limit of depth, so that short lines reach it."""
DOWN, UP = Codec(SALT, SHALLOW), Codec(SALT)

PARSEABLE: Final = 300
"""A line with more brackets is not judged by the oracle, whose parser uses Python's stack for a level."""


def framer(data: bytes) -> None:
    """The first byte says how long a line may be, the second how the rest is cut up.

    Lines are what they are in the whole stream, however it was cut.
    """
    limit, step = [*data[:2], 1, 1][:2]
    limit, step, stream = limit or 1 << 20, step or 1, data[2:]
    truth = cut_up(stream, limit)
    for size in {len(stream) or 1, step, 1}:
        lines = LineFramer(limit)
        segments: list[Segment] = []
        for at in range(0, len(stream), size):
            segments += lines.feed(stream[at : at + size])
            assert lines.buffered <= limit
        segments += lines.finish()
        assert flat(segments) == truth, size
        assert not lines.busy
        assert not lines.buffered


def codec(data: bytes) -> None:
    """Lines, each judged by the standard library's parser, by itself and together with the others."""
    lines = data.split(b"\n")
    for codec, limit in ((DOWN, SHALLOW), (UP, 0)):
        careful = [codec.decode_line(line) for line in lines]
        for line, decoded in zip(lines, careful, strict=True):
            if line.count(b"[") + line.count(b"{") < PARSEABLE:
                _judge(codec, line, decoded, limit)
        block = b"".join(line + b"\n" for line in lines)
        assert [shown(codec, one) for one in decode_lines(codec, block)] == [
            shown(codec, one) for one in careful
        ]
        fast = decode_block(codec, block)
        if fast is not None:
            assert [shown(codec, one) for one in careful] == [shown(codec, one) for one in fast]
    for line in lines:
        _guess(line)


def _judge(codec: Codec, line: bytes, decoded: Message | Refusal | None, limit: int) -> None:
    outcome, truth = found(codec, decoded), expected(line, limit)
    assert outcome == truth
    assert outcome is None or truth is None or [*map(type, outcome)] == [*map(type, truth)]
    if not isinstance(decoded, Message) or spelled_twice(line):
        return
    written = codec.render(decoded)
    assert b"\n" not in written
    assert b"\r" not in written
    keys = [key for key, _ in parse(written)]
    assert len(keys) == len(set(keys))
    came, goes = pieces(line.removeprefix(BOM).replace(b"\r", b" ")), pieces(written)
    envelope = {"jsonrpc", "id", "method", "params", "result", "error"}
    assert goes.keys() == {key for key in came if key in envelope or key.casefold() not in envelope}
    for key in goes:
        if key in ("jsonrpc", "id", "method"):
            assert json.loads(goes[key]) == json.loads(came[key])
        elif key == "params" and came[key].startswith(b"{"):
            assert pieces(goes[key]) == pieces(came[key])
        else:
            assert goes[key] == came[key]


def _guess(line: bytes) -> None:
    head, tail = line[: len(line) // 2], line[len(line) // 2 :]
    for one in (guess_id(head, tail), trusted_id(head, tail)):
        assert one is None or len(json.dumps(one, ensure_ascii=False)) <= 1024
    for text in (line, head, tail):
        decode_members(text)
        decode_meta(Raw(text))
        plain_integer(text)
        is_token(text)
        salvaged = salvage_id(text)
        if salvaged is not None:
            assert b"%d" % salvaged in text


def router(data: bytes) -> None:
    """A script of what clients and servers do: see `conversation.py`."""
    converse(data)


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {"framer": framer, "codec": codec, "router": router}
