"""Bytes of any kind and in any pieces, from either side: nothing raises, nothing depends on the pieces.

`oracle.py` knows what is right.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from bridge.core import glance
from bridge.core.codec import Codec, salvage_id
from bridge.core.framing import HEAD_KEPT, LineFramer, OverlongEnd, OverlongStart, Segment
from bridge.core.glance import guess_id, too_deep, trusted_id
from bridge.core.jsonrpc import (
    Message,
    OddMessage,
    Refusal,
    decode_members,
    decode_meta,
    is_token,
    plain_integer,
)
from tests.property.oracle import (
    BOM,
    cut_up,
    expected,
    flat,
    found,
    naive_depth,
    parse,
    pieces,
    shown,
    spelled_twice,
)
from tests.support.plainly import decode_block, decode_lines

SALT = b"0123456789abcdef"
# A small limit of depth, so that short lines reach it.
SHALLOW = 5
DOWN, UP = Codec(SALT, SHALLOW), Codec(SALT)

many = settings(max_examples=400, deadline=None)

# -- lines that are JSON, or nearly ------------------------------------------------

# The same half of a pair is always spelled in the same way: keys that differ in that alone stay two.
TEXTS = [
    *[
        b"",
        b"a",
        b"a",
        b"b",
        b"x y",
        b"[",
        b"]]",
        b"{[",
        b"}",
        b",",
        b":",
        b"\\\\",
        b'\\"',
        b'\\"[',
        b"\\\\\\\\",
    ],
    *[
        b"\\u0061",
        b"\\n",
        b"\\/",
        b"\\u005c",
        b"\\u0022",
        b"\\u0000",
        b"\\ud83d\\ude00",
        b"\\\\ud83d",
        b"\\\\\\\\u",
    ],
    *[b"\\ud83d", b"\\ud83d", b"\\uDE00", b"\\ud83dx", b"\\ud800\\ud800", b"\x7f", b"jsonrpc", b"2.0"],
    *["é".encode(), "😀".encode(), "\u2028".encode(), BOM, b'\\",\\"id\\":7}', b"~30313233:d83d;"],
]
BAD_TEXTS = [
    b"\xff",
    b"\xe2\x82",
    b"\xed\xa0\xbd",
    b"\xc0\xa2",
    b"\\x",
    b"\\u12",
    b"\x00",
    b"\t",
    b"\r",
    b"\\",
]
NUMBERS = [
    *[
        b"0",
        b"-0",
        b"1",
        b"-7",
        b"1.0",
        b"0.10",
        b"1e400",
        b"-1E+400",
        b"1E2",
        b"9007199254740993",
        b"9" * 400,
    ],
    *[b"18446744073709551616", b"1e-9999"],
]
BAD_VALUES = [
    b"01",
    b"1.",
    b".5",
    b"-",
    b"NaN",
    b"Infinity",
    b"tru",
    b"",
    b"'a'",
    b"[1,]",
    b'{"a":1,}',
    b"1 2",
    b'"',
]
SPACES = [b"", b"", b"", b"", b" ", b"\t", b"\r", b" \r "]
KEYS = [
    *[b"jsonrpc", b"id", b"method", b"params", b"result", b"error", b"id", b"params", b"result"],
    *[b"\\u0069d", b"m\\u0065thod", b"param\\u0073", b"extra", b"", b"\\ud83d", b"_meta", b"x"],
]

spaces = st.sampled_from(SPACES)
strings = st.lists(st.sampled_from(TEXTS), max_size=3).map(lambda parts: b'"' + b"".join(parts) + b'"')
scalars = st.one_of(strings, st.sampled_from(NUMBERS), st.sampled_from([b"null", b"true", b"false"]))


def array(items: list[bytes], space: bytes) -> bytes:
    return b"[" + space + (space + b",").join(items) + b"]"


def object_(pairs: list[tuple[bytes, bytes]], space: bytes) -> bytes:
    return (
        b"{" + (space + b",").join(space + key + space + b":" + space + value for key, value in pairs) + b"}"
    )


values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.builds(array, st.lists(inner, max_size=4), spaces),
        st.builds(object_, st.lists(st.tuples(strings, inner), max_size=4), spaces),
    ),
    max_leaves=12,
)
objects = st.builds(object_, st.lists(st.tuples(strings, values), max_size=4), spaces)
ids = st.one_of(strings, st.sampled_from(NUMBERS), values)
# Wide nesting of its own, since a recursive strategy rarely goes deep.
deep = st.builds(
    lambda kinds, core: (
        b"".join(b"[" if k else b'{"[":' for k in kinds)
        + core
        + b"".join(b"]" if k else b"}" for k in reversed(kinds))
    ),
    st.lists(st.booleans(), max_size=9),
    scalars,
)


@st.composite
def envelopes(draw: st.DrawFn, valid: bool = False) -> bytes:
    """One object with the members of a message, more or less."""
    pairs = [(b"jsonrpc", b'"2.0"')]
    if draw(st.booleans()):
        pairs.append((b"id", draw(st.sampled_from([b"1", b'"a"']) if valid else ids)))
    if draw(st.booleans()):
        pairs.append((b"method", draw(strings)))
    if draw(st.booleans()):
        pairs.append((b"params", draw(objects if valid else st.one_of(objects, objects, values, deep))))
    if draw(st.booleans()):
        pairs.append((draw(st.sampled_from([b"result", b"error", b"extra"])), draw(st.one_of(values, deep))))
    if not valid:
        more = draw(st.lists(st.tuples(st.sampled_from(KEYS), values), max_size=2))
        pairs = draw(st.permutations(pairs + more)) if draw(st.booleans()) else pairs
    line = object_([(b'"' + key + b'"', value) for key, value in pairs], draw(spaces))
    return draw(st.sampled_from([b"", b"", b"", BOM, b" ", b"\r"])) + line + draw(spaces)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A message with a few bytes changed."""
    line = draw(envelopes())
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(line)))
        cut = draw(st.sampled_from([0, 0, 1, 1, 2, 20]))
        put = draw(
            st.one_of(
                st.sampled_from([*BAD_TEXTS, *BAD_VALUES, *TEXTS, b"\n", b"}{", b"\r", b"{"]),
                st.binary(max_size=3),
            )
        )
        line = line[:at] + put + line[at + cut :]
    return line.replace(b"\n", b" ")


lines = st.one_of(
    envelopes(),
    envelopes(valid=True),
    mutated(),
    st.lists(envelopes(), min_size=2, max_size=2).map(b" ".join),
    st.one_of(values, st.sampled_from([b"", b" \t\r", BOM, b"Server ready", *BAD_VALUES])),
    st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")),
)
streams = st.lists(lines, max_size=5).map(b"\n".join)
codecs = st.sampled_from([DOWN, UP])


# -- properties ---------------------------------------------------------------------


@many
@given(codecs, lines)
@example(DOWN, b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[[[[1]]]]}}')
@example(UP, b'{"jsonrpc":"2.0","id":"\\ud83d","method":"\\ud83d","\\ud83d":"\\ud83d"}')
def test_a_line_is_what_an_independent_parser_says_it_is(codec: Codec, line: bytes) -> None:
    decoded = codec.decode_line(line)
    outcome, truth = found(codec, decoded), expected(line, SHALLOW if codec is DOWN else 0)
    assert outcome == truth
    if outcome and truth:
        assert [type(part) for part in outcome] == [type(part) for part in truth]


@many
@given(codecs, st.lists(lines, max_size=3))
def test_the_fast_path_says_what_the_careful_one_says_or_nothing(codec: Codec, some: list[bytes]) -> None:
    block = b"".join(line + b"\n" for line in some)
    careful = [codec.decode_line(line) for line in some]
    assert [shown(codec, one) for one in decode_lines(codec, block)] == [shown(codec, one) for one in careful]
    fast = decode_block(codec, block)
    if fast is None:
        return
    assert [type(decoded) for decoded in careful] == [Message] * len(fast)
    assert [shown(codec, one) for one in fast] == [shown(codec, one) for one in careful]


plain_members = st.lists(
    st.one_of(
        st.tuples(st.just("id"), st.one_of(st.integers(), st.text(max_size=80))),
        st.tuples(st.just("method"), st.text(max_size=5)),
        st.tuples(st.just("params"), st.dictionaries(st.text(max_size=3), st.integers(), max_size=3)),
        st.tuples(st.sampled_from(["result", "error"]), st.floats(allow_nan=False, allow_infinity=False)),
    ),
    max_size=4,
).map(lambda pairs: {"jsonrpc": "2.0", **dict(pairs)})


@many
@given(codecs, st.lists(plain_members, min_size=1, max_size=4), st.booleans())
def test_plain_messages_go_the_fast_path(codec: Codec, objects: list[dict[str, Any]], ascii: bool) -> None:
    """Otherwise the property above would hold for a fast path that says nothing."""
    block = b"".join(json.dumps(one, ensure_ascii=ascii).encode() + b"\n" for one in objects)
    fast = decode_block(codec, block)
    assert fast is not None
    assert [json.loads(codec.render(message)) for message in fast] == objects


@many
@given(codecs, st.one_of(envelopes(valid=True), lines))
def test_a_message_is_written_with_every_value_as_it_came(codec: Codec, line: bytes) -> None:
    """Each key once, with its last value; below the envelope and `params` the very bytes."""
    decoded = codec.decode_line(line)
    if not isinstance(decoded, Message) or spelled_twice(line):
        return
    written = codec.render(decoded)
    assert b"\n" not in written
    assert b"\r" not in written
    keys = [key for key, _ in parse(written)]
    assert len(keys) == len(set(keys))
    came = pieces(line.removeprefix(BOM).replace(b"\r", b" "))
    goes = pieces(written)
    assert goes.keys() == came.keys()
    for key, value in came.items():
        if key in ("jsonrpc", "id", "method"):
            assert json.loads(goes[key]) == json.loads(value)
        elif key == "params" and value.startswith(b"{"):
            assert pieces(goes[key]) == pieces(value)
            names = [name for name, _ in parse(goes[key])]
            assert len(names) == len(set(names))
        else:
            assert goes[key] == value
    # Written once more it is the same again, and neither way of writing differs.
    once_more = codec.decode_line(written)
    assert isinstance(once_more, Message)
    assert codec.render(once_more) == written
    assert codec.encode_lines([decoded, once_more]) == (written + b"\n") * 2


@many
@given(st.one_of(values, deep, objects), st.integers(1, 8), st.integers(1, 30))
def test_depth_is_what_a_naive_counter_says(line: bytes, limit: int, piece: int) -> None:
    truth = naive_depth(line) > limit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(glance, "_PIECE", piece)  # so that a line is looked at in several pieces
        assert too_deep(line, limit) is truth
        assert too_deep(bytearray(line), limit) is truth


def split(stream: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({min(cut, len(stream)) for cut in cuts} | {len(stream)})
    return [stream[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


limits = st.one_of(st.integers(1, 60), st.sampled_from([HEAD_KEPT, 1 << 20]))
long_lines = st.integers(4000, 9000).map(lambda size: bytes(range(11, 255)) * (size // 244))


@many
@given(
    st.one_of(streams, st.lists(st.one_of(lines, long_lines), max_size=4).map(b"\n".join)),
    limits,
    st.lists(st.integers(0, 300), max_size=8),
)
def test_any_split_of_the_bytes_gives_the_same_lines(stream: bytes, limit: int, cuts: list[int]) -> None:
    truth = cut_up(stream, limit)
    step = max(1, len(stream) // 200)  # one byte at a time, but for the long ones
    for chunks in (
        [stream],
        split(stream, cuts),
        [stream[at : at + step] for at in range(0, len(stream), step)],
    ):
        framer = LineFramer(limit)
        segments: list[Segment] = []
        for chunk in chunks:
            segments += framer.feed(chunk)
            assert framer.buffered <= limit
        segments += framer.finish()
        assert flat(segments) == truth
        assert not framer.busy


@many
@given(
    codecs,
    streams,
    st.one_of(st.integers(1, 80), st.just(1 << 20)),
    st.lists(st.integers(0, 300), max_size=8),
)
def test_any_split_of_the_bytes_gives_the_same_messages(
    codec: Codec, stream: bytes, limit: int, cuts: list[int]
) -> None:
    seen = []
    for chunks in ([stream], split(stream, cuts), [stream[at : at + 1] for at in range(len(stream))]):
        framer = LineFramer(limit)
        results: list[object] = []
        for segments in [*(framer.feed(chunk) for chunk in chunks), framer.finish()]:
            for segment in segments:
                if isinstance(segment, (OverlongStart, OverlongEnd)):
                    results.append(segment)
                else:
                    results += [shown(codec, decoded) for decoded in decode_lines(codec, segment)]
        seen.append(results)
    assert seen[0] == seen[1] == seen[2]


@many
@given(st.one_of(lines, st.binary(max_size=200)), st.integers(0, 250))
def test_no_bytes_raise(line: bytes, at: int) -> None:
    for codec in (DOWN, UP):
        for block in (line, line + b"\n", bytearray(line)):
            fast = decode_block(codec, block)
            assert fast is None or all(type(message) is Message for message in fast)
            decoded = codec.decode_line(block)
            assert decoded is None or type(decoded) in (Message, OddMessage, Refusal)
    head, tail = line[:at], line[at:]
    for function in (guess_id, trusted_id):
        known = function(head, tail)
        assert known is None or len(json.dumps(known, ensure_ascii=False)) <= 1024
    for part in (line, head, tail):
        salvage_id(part)
        decode_members(part)
        decode_meta(Raw(part))
        plain_integer(part)
        is_token(part)


@many
@given(envelopes(valid=True), st.integers(1, 9999), st.sampled_from([b"\xff", b"\xe2\x82", b"\xc0\xa2"]))
def test_a_response_with_bad_utf8_alone_is_known_by_its_id(line: bytes, id: int, bad: bytes) -> None:
    """Wherever the id stands; a request or notification of the server's own is not taken for one."""
    value = parse(line.removeprefix(BOM))
    whole = line.rstrip()[:-1] + b',"z":"' + bad + b'","\\u0069d":%d}' % id
    if b"\\ud8" in line or b"\\uDE" in line:
        return  # two faults: only the trusted spellings count
    assert isinstance(UP.decode_line(whole), Refusal)
    assert salvage_id(whole) == (None if "method" in dict(value) else id)


@many
@given(
    st.integers(1, 10**15), st.sampled_from([b"result", b"error"]), st.binary(max_size=60), st.integers(0, 3)
)
def test_a_damaged_response_is_known_by_a_trusted_end(
    id: int, name: bytes, damage: bytes, where: int
) -> None:
    number = b"%d" % id
    version = b'"jsonrpc":"2.0"'
    line = (
        b"{" + version + b',"id":' + number + b',"' + name + b'":' + damage + b"}",
        b'{"' + name + b'":' + damage + b"," + version + b',"id":' + number + b"}",
        b'{"' + name + b'":' + damage + b',"id":' + number + b"," + version + b"} \r",
        b"{"
        + version
        + b',"id":'
        + number
        + b',"'
        + name
        + b'":'
        + damage
        + b","
        + version
        + b',"id":'
        + number
        + b"}",
    )[where]
    assert trusted_id(line[:HEAD_KEPT], line[-HEAD_KEPT:]) == id or where == 0
    other = line.replace(number + b',"' + name, b"17" + number + b',"' + name)
    if where == 3:
        assert trusted_id(other, other) is None
