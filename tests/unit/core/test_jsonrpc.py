"""What a line is, and what is left of it when it is written again.

Every line goes both ways, from clients (with a limit of nesting) and from servers (without), and through the
fast path as well wherever that takes it.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from msgspec import UNSET, Raw

from bridge.core import glance, jsonrpc
from bridge.core.codec import Codec, salvage_id
from bridge.core.framing import HEAD_KEPT
from bridge.core.glance import MAX_ID_BYTES, guess_id, too_deep, trusted_id
from bridge.core.jsonrpc import (
    INVALID_REQUEST,
    PARSE_ERROR,
    Message,
    OddMessage,
    Refusal,
    decode_members,
    decode_meta,
    error_line,
    is_token,
    notification_line,
    plain_integer,
    request_line,
    result_line,
)
from tests.support.plainly import decode_block

SALT = b"0123456789abcdef"
DEPTH = 128
CODECS = {"from a client": Codec(SALT, DEPTH), "from a server": Codec(SALT)}
DOWN, UP = CODECS.values()


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> Codec:
    return CODECS[request.param]


def request(params: bytes = b"{}", id: bytes = b"1", method: bytes = b'"m"', more: bytes = b"") -> bytes:
    return b'{"jsonrpc":"2.0","id":' + id + b',"method":' + method + b',"params":' + params + more + b"}"


def response(body: bytes, id: bytes = b"1", name: bytes = b"result") -> bytes:
    return b'{"jsonrpc":"2.0","id":' + id + b',"' + name + b'":' + body + b"}"


def decode(codec: Codec, line: bytes) -> Message | Refusal | None:
    """Decode one line in both ways, and see that the fast one says the same or nothing."""
    careful = codec.decode_line(line)
    fast = decode_block(codec, line + b"\n")
    if fast is not None:
        assert type(careful) is Message
        assert [str(message) for message in fast] == [str(careful)] or "Raw" in str(careful)
        assert [codec.render(message) for message in fast] == [codec.render(careful)]
    return careful


def message(codec: Codec, line: bytes) -> Message:
    decoded = decode(codec, line)
    assert isinstance(decoded, Message), decoded
    return decoded


def again(codec: Codec, line: bytes) -> bytes:
    """The line as the bridge writes it when it changes nothing."""
    decoded = message(codec, line)
    written = codec.render(decoded)
    assert codec.encode_lines([decoded, Raw(b"1")]) == written + b"\n1\n"
    return written


def refused(codec: Codec, line: bytes, code: int) -> Refusal:
    decoded = decode(codec, line)
    assert isinstance(decoded, Refusal), decoded
    assert decoded.code == code
    return decoded


def nested(levels: int, kind: str = "[", core: bytes = b"1") -> bytes:
    """`levels` levels of arrays, of objects, or of both in turn."""
    begin, end = b"", b""
    for level in range(levels):
        if kind == "[" or (kind == "mixed" and level % 2):
            begin, end = begin + b"[", b"]" + end
        else:
            begin, end = begin + b'{"a":', b"}" + end
    return begin + core + end


# -- lines --------------------------------------------------------------------

LONG = b'{"pad":"%s"}' % (b"x" * 500)
"""Makes a line so long that the codec does not part the lines of its block."""


@pytest.mark.parametrize("line", [b"", b" ", b"\r", b"\t \r\t", b"\xef\xbb\xbf", b"\xef\xbb\xbf \r"])
def test_a_blank_line_is_nothing(codec: Codec, line: bytes) -> None:
    assert decode(codec, line) is None


@pytest.mark.parametrize("first", [b"{}", LONG])
def test_the_fast_path_leaves_a_blank_line_to_the_careful_one(codec: Codec, first: bytes) -> None:
    line = request(first)
    for block in (
        b"\n",
        line + b"\n\n",
        b"\n" + line + b"\n",
        line + b"\n \n",
        line + b"\n\n" + line + b"\n",
    ):
        assert decode_block(codec, block) is None


def test_no_bytes_are_no_messages(codec: Codec) -> None:
    assert decode_block(codec, b"") == []


@pytest.mark.parametrize("before", [b"", b" ", b"\t", b"\r", b"\xef\xbb\xbf", b"\xef\xbb\xbf\t"])
@pytest.mark.parametrize("behind", [b"", b" ", b"\t\r", b"\r"])
def test_white_space_and_a_bom_around_a_message_are_dropped(
    codec: Codec, before: bytes, behind: bytes
) -> None:
    """A text-mode server ends its lines with CR LF; an editor or a shell puts a BOM in front of any line."""
    assert again(codec, before + request() + behind) == request()


@pytest.mark.parametrize("line", [b" \xef\xbb\xbf" + request(), b"\xef\xbb\xbf\xef\xbb\xbf" + request()])
def test_a_bom_that_does_not_begin_the_line_is_no_json(codec: Codec, line: bytes) -> None:
    refused(codec, line, PARSE_ERROR)


def test_every_line_of_a_block_is_a_message(codec: Codec) -> None:
    block = b"".join(request(id=b"%d" % number) + b"\n" for number in range(5))
    decoded = decode_block(codec, block)
    assert decoded is not None
    assert [one.id for one in decoded] == [0, 1, 2, 3, 4]
    assert codec.encode_lines(list(decoded)) == block


def test_a_block_may_be_the_framers_own_buffer(codec: Codec) -> None:
    decoded = decode_block(codec, bytearray(request(b'{"a":1.50}') + b"\n"))
    assert decoded is not None
    assert codec.render(decoded[0]) == request(b'{"a":1.50}')


@pytest.mark.parametrize("between", [b"", b" ", b"\t", b"\r", b"\r\r"])
def test_two_messages_on_one_line_are_none(codec: Codec, between: bytes) -> None:
    line = request() + between + request(id=b"2")
    assert decode_block(codec, line + b"\n") is None
    assert decode_block(codec, request() + b"\n" + line + b"\n") is None
    assert decode_block(codec, request(LONG) + b"\n" + line + b"\n") is None
    refused(codec, line, PARSE_ERROR)


def test_one_message_over_two_lines_is_none(codec: Codec) -> None:
    for cut in (b',"id"', b',"method"', b"{}"):
        block = request().replace(cut, b"\n" + cut) + b"\n"
        assert decode_block(codec, block) is None
        for line in block.split(b"\n")[:-1]:
            refused(codec, line, PARSE_ERROR)


@pytest.mark.parametrize("before", [b"", request(LONG) + b"\n"])
def test_a_message_over_two_lines_and_two_on_one_do_not_make_up_for_each_other(
    codec: Codec, before: bytes
) -> None:
    """As many lines as messages, and still not one on each."""
    block = b'{"jsonrpc":"2.0","method":"a"}{"jsonrpc":"2.0",\n"method":"b"}\n'
    assert decode_block(codec, before + block) is None
    block = b'{"jsonrpc":"2.0","method":"a","params":{}\n}{"jsonrpc":"2.0","method":"b"}\n'
    assert decode_block(codec, before + block) is None
    block = b'{"jsonrpc":"2.0","method":"a"}{"jsonrpc":"2.0","params":\n{},"method":"b"}\n'
    assert decode_block(codec, before + block) is None


# -- CR: one line must stay one line for whoever reads text ---------------------


SMUGGLED = b'{"jsonrpc":"2.0","id":999,"method":"ping"}'


@pytest.mark.parametrize("cr", [b"\r", b"\r\r", b" \r\t"])
def test_a_raw_cr_smuggles_no_second_message(codec: Codec, cr: bytes) -> None:
    """Servers that read text, as those on the Python SDK do, end a line at a CR and answer what follows."""
    line = request(b'{"x":' + cr + SMUGGLED + cr + b"}", id=b"7")
    written = again(codec, line)
    assert b"\r" not in written
    assert json.loads(written) == json.loads(line)
    assert written.count(SMUGGLED) == 1


def test_a_cr_anywhere_between_tokens_becomes_a_space(codec: Codec) -> None:
    tokens = [
        b"{",
        b'"jsonrpc"',
        b":",
        b'"2.0"',
        b",",
        b'"result"',
        b":",
        b"[",
        b"1",
        b",",
        b"null",
        b"]",
        b"}",
    ]
    written = again(codec, b"\r".join(tokens))
    assert b"\r" not in written
    assert json.loads(written) == {"jsonrpc": "2.0", "result": [1, None]}


@pytest.mark.parametrize("text", [b'"a\rb"', b"1\r2", b"tr\rue", b'"\\\rn"'])
def test_a_cr_inside_a_token_is_no_json(codec: Codec, text: bytes) -> None:
    """Validity is judged before the CR becomes a space: `"a b"` would be somebody's valid string."""
    refused(codec, request(b'{"x":' + text + b"}"), PARSE_ERROR)


def test_an_escaped_cr_stays_escaped(codec: Codec) -> None:
    line = request(b'{"x":"a\\r\\u000d\\n' + SMUGGLED.replace(b'"', b'\\"') + b'"}')
    assert again(codec, line) == line


# -- UTF-8 ----------------------------------------------------------------------

BAD_UTF8 = [
    b"\xff",
    b"\xfe\xff",
    b"\xc0\xa2",
    b"\x80",
    b"\xe2\x82",
    b"\xed\xa0\xbd",
    b"\xf4\x90\x80\x80",
    b"\xc3(",
]


@pytest.mark.parametrize("bad", BAD_UTF8)
def test_bad_utf8_is_refused_wherever_it_stands(codec: Codec, bad: bytes) -> None:
    """One such byte ends a server on an older Python SDK; msgspec looks at none below the envelope."""
    lines = [
        request(b'{"x":"' + bad + b'"}'),
        request(b'{"' + bad + b'":1}'),
        request(b'{"_meta":{"a":["' + bad + b'"]}}'),
        request(id=b'"' + bad + b'"'),
        request(method=b'"' + bad + b'"'),
        request(more=b',"x":"' + bad + b'"'),
        request(more=b',"' + bad + b'":1'),
        response(b'"' + bad + b'"'),
        response(b'{"message":"' + bad + b'"}', name=b"error"),
        bad,
        request() + bad,
    ]
    for line in lines:
        assert decode_block(codec, line + b"\n") is None
        assert "UTF-8" in refused(codec, line, PARSE_ERROR).reason


def test_characters_of_every_length_pass(codec: Codec) -> None:
    line = request('{"é":"é\u2028\u2029€😀\ufeff\x7f"}'.encode(), id='"é😀"'.encode(), method='"é"'.encode())
    assert again(codec, line) == line


def test_half_a_character_at_a_lines_end_is_not_completed_by_the_next_line(codec: Codec) -> None:
    assert decode_block(codec, b'{"jsonrpc":"2.0","method":"\xe2\n\x82\xac"}\n') is None


# -- JSON -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        *[b"01", b"-01", b"1.", b".5", b"-", b"+1", b"1e", b"1e+", b"0x1", b"1.5.5", b"--1", b"1_000"],
        *[b"NaN", b"Infinity", b"-Infinity", b"nan", b"tru", b"True", b"nulll", b"undefined", b"'a'"],
        *[b'"\\x41"', b'"\\u00"', b'"\\u00g0"', b'"\\', b'"', b'"\x00"', b'"\x1f"', b'"\t"', b'"\\ud83d\\u"'],
        *[
            b"[1,]",
            b"[,1]",
            b"[1 2]",
            b'{"a":1,}',
            b'{"a"}',
            b'{"a":}',
            b"{a:1}",
            b"{1:1}",
            b"[",
            b"{",
            b"[}",
        ],
        *[b"/**/1", b"1//", b"\x0c1", b"\x0b1", b"\xc2\xa01", b"\x00", b""],
    ],
)
def test_what_is_no_json_is_refused_also_where_nobody_looks(codec: Codec, value: bytes) -> None:
    for line in (
        request(b'{"a":' + value + b"}"),
        request(b'{"_meta":{"a":' + value + b"}}"),
        request(more=b',"x":' + value),
        response(b"[" + value + b",0]"),
    ):
        assert refused(codec, line, PARSE_ERROR).id is UNSET


@pytest.mark.parametrize(
    "line",
    [
        b"Server ready",
        b"GET / HTTP/1.1",
        b"Content-Length: 12",
        b"{not json",
        b"\x16\x03\x01",
        b"{}{",
        b"\x00",
    ],
)
def test_what_is_no_json_at_all_is_refused(codec: Codec, line: bytes) -> None:
    refused(codec, line, PARSE_ERROR)


EXACT = [
    *[
        b"1e400",
        b"-1E+400",
        b"1E2",
        b"1e-9999",
        b"-0",
        b"-0.0",
        b"0.10",
        b"1.0",
        b"100000000000000000000000.5",
    ],
    *[b"9" * 400, b"-" + b"9" * 5000, b"9007199254740993", b"0." + b"1" * 400],
    *[b'"\\u0041\\/\\b\\f"', b'"\\u00e9"', b'"\\ud83d\\uDe00"', b'"\\u0000"', '"é"'.encode()],
    *[
        b'{"b":1,"a":2,"b":3}',
        b'{"\\u0061":1,"a":2}',
        b'[ 1 ,\t{ "x" : [ ] } ]',
        b'{"":{"":{}}}',
        b"null",
        b"true",
    ],
]


@pytest.mark.parametrize("value", EXACT)
def test_no_value_is_altered(codec: Codec, value: bytes) -> None:
    """Below what the bridge must translate every byte stays: numbers, escapes, order, spaces, duplicates."""
    for line in (
        request(b'{"name":' + value + b',"x":[' + value + b"]}"),
        request(b'{"_meta":{"a":' + value + b',"progressToken":' + value + b"}}"),
        request(b"[" + value + b"]"),
        response(value),
        response(value, name=b"error"),
        request(more=b',"x":' + value),
    ):
        assert again(codec, line) == line
        surrogate = line[:-1] + b',"y":"\\ud83d"}'
        assert again(codec, surrogate) == surrogate


def test_unknown_members_of_the_envelope_go_on(codec: Codec) -> None:
    line = request(more=b',"_meta":{"a":1E2},"vendor":[ 1 ],"\\u0078":null,"":-0')
    decoded = message(codec, line)
    assert type(decoded) is OddMessage
    assert {name: bytes(raw) for name, raw in decoded.extra.items()} == {
        "_meta": b'{"a":1E2}',
        "vendor": b"[ 1 ]",
        "x": b"null",
        "": b"-0",
    }
    assert again(codec, line) == line.replace(b"\\u0078", b"x")


def test_a_decoded_message_is_written_with_a_new_id(codec: Codec) -> None:
    for more in (b"", b',"x":1', b',"x":"\\ud83d"'):
        decoded = message(codec, request(id=b'"mine"', more=more))
        decoded.id = 17
        assert codec.render(decoded) == request(id=b"17", more=more)


# -- duplicate and escaped keys ---------------------------------------------------


def test_of_a_repeated_member_the_last_counts_and_is_the_only_one(codec: Codec) -> None:
    """A server that takes the first one must not see another `id`, method or token than the bridge saw."""
    cases = {
        b'{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}': b'{"jsonrpc":"2.0","id":2,"method":"m"}',
        b'{"jsonrpc":"2.0","id":null,"\\u0069d":2,"method":"m"}': b'{"jsonrpc":"2.0","id":2,"method":"m"}',
        b'{"jsonrpc":"1","jsonrpc":"2.0","method":1,"m\\u0065thod":"m"}': b'{"jsonrpc":"2.0","method":"m"}',
        b'{"jsonrpc":"2.0","params":[1],"params":{}}': b'{"jsonrpc":"2.0","params":{}}',
        b'{"jsonrpc":"2.0","result":1,"result":2}': b'{"jsonrpc":"2.0","result":2}',
        b'{"jsonrpc":"2.0","method":"m","x":1,"x":2}': b'{"jsonrpc":"2.0","method":"m","x":2}',
        request(b'{"a":1,"_meta":{"x":1},"\\u005fmeta":{"y":2},"\\u0061":2}'): request(
            b'{"a":2,"_meta":{"y":2}}'
        ),
        b'{"jsonrpc":"2.0","id":1,"id":2,"x":"\\ud83d"}': b'{"jsonrpc":"2.0","id":2,"x":"\\ud83d"}',
    }
    for line, expected in cases.items():
        assert again(codec, line) == expected


def test_a_repeated_member_whose_last_value_is_bad_is_refused(codec: Codec) -> None:
    refused(codec, b'{"jsonrpc":"2.0","id":1,"id":null,"method":"m"}', INVALID_REQUEST)
    refused(codec, b'{"jsonrpc":"2.0","jsonrpc":"1.0","method":"m"}', INVALID_REQUEST)


def test_members_below_are_each_once_too() -> None:
    members = decode_members(b'{"progressToken":1,"progress\\u0054oken":2}')
    assert members is not None
    assert {name: bytes(raw) for name, raw in members.items()} == {"progressToken": b"2"}


@pytest.mark.parametrize("raw", [b"[]", b"1", b"null", b'"a"', b"", b"{", b"[" * 100_000])
def test_what_is_no_object_has_no_members(raw: bytes) -> None:
    assert decode_members(raw) is None
    assert decode_meta(Raw(raw)) is None


def test_meta_is_read_for_what_the_bridge_needs() -> None:
    meta = decode_meta(
        Raw(
            b'{"progressToken":"t","io.modelcontextprotocol/logLevel":"info","other":[{}],'
            b'"io.modelcontextprotocol/protocolVersion":1,"io.modelcontextprotocol/subscriptionId":2}'
        )
    )
    assert meta is not None
    read = (meta.token, meta.log_level, meta.version, meta.subscription)
    assert [bytes(raw) for raw in read if raw is not UNSET] == [b'"t"', b'"info"', b"1", b"2"]
    assert decode_meta(Raw(b"{}")) == jsonrpc.Meta()


# -- unpaired surrogate escapes ----------------------------------------------------

HALVES = [
    b"\\ud83d",
    b"\\uDE00",
    b"\\uDE00\\uD83D",
    b"\\ud83d\\ud83d\\ude00",
    b"\\ud83d\\ude00\\ude00",
    b"\\ud83dud83d",
    b"\\ud83d\\u0041",
    b"\\ud83d\\n\\ude00",
    b"\\\\\\ud83d",
    b"\\\\\\\\\\ud83d\\\\ud83d",
    b"\\\\ud83d\\udfff",
    b'\\"\\ud800\\"',
    b"\\uDBFF\\uDBFF\\uDBFF",
    "é\\ud83d😀".encode(),
]


@pytest.mark.parametrize("half", HALVES)
def test_half_a_surrogate_pair_survives_wherever_it_stands(codec: Codec, half: bytes) -> None:
    """`"\\ud83d"` is what a server writes that cut an emoji in two: legal JSON, refused by msgspec."""
    text = b'"' + half + b'"'
    for line in (
        request(b'{"x":' + text + b"}"),
        request(b'{"a":[{"b":[1E2,' + text + b"]}]}"),
        request(b'{"_meta":{"x":' + text + b',"progressToken":' + text + b"}}"),
        request(b"[" + text + b"]"),
        request(b"{" + text + b":1}"),
        request(b'{"a":{' + text + b":1}}"),
        request(b"{}", id=text),
        request(b"{}", method=text),
        request(b"{}", more=b',"x":' + text),
        request(b"{}", more=b"," + text + b":1e400"),
        response(text),
        response(b'{"content":[{"type":"text","text":' + text + b"}]}"),
        response(text, name=b"error"),
        response(text, id=text),
    ):
        written = again(codec, line)
        assert json.loads(written) == json.loads(line)
        # Names, methods and ids are decoded, so an escape beside the half may be spelled anew.
        anew = half == "é\\ud83d😀".encode() or b"\\u0041" in half or b"\\ud83d\\ude00" in half
        assert written == line or anew
        assert re.findall(rb"(?i)\\ud[89a-f]..", written) == re.findall(rb"(?i)\\ud[89a-f]..", line) or anew


def test_a_value_beside_half_a_pair_is_not_altered(codec: Codec) -> None:
    line = response(b'{"text":"\\ud83d","pair":"\\ud83d\\uDE00","n":[1e400,1E2,-0,' + b"9" * 400 + b"]}")
    assert again(codec, line) == line


def test_an_escaped_backslash_makes_no_escape(codec: Codec) -> None:
    line = response(b'"\\\\ud83d"')
    assert type(message(codec, line)) is Message
    assert again(codec, line) == line


def test_half_a_pair_does_not_make_bad_json_good(codec: Codec) -> None:
    for line in (
        request(b'{"x":"\\ud83d\\u12"}'),
        request(b'{"x":"\\ud83d"'),
        request(b'{"x":\\ud83d}'),
        b"\\ud83d",
        request(b'{"x":"\\ud83d"}') + b"}",
        request(b'{"x":"\\ud83d\r"}'),
        request(b'{"x":"\\ud83d\\ud83"}'),
        request(b'{"x":"\\ud83d\\uDxyz"}'),
        request(b'{"x":"\\ud83d\\ud"}'),
        request(b'{"x":"\\ud83d' + b"\xff" + b'"}'),
    ):
        refused(codec, line, PARSE_ERROR)


def test_an_id_with_half_a_pair_is_kept_as_it_was_written(codec: Codec) -> None:
    decoded = message(codec, request(id=b'"a\\ud83d"'))
    assert type(decoded.id) is Raw
    assert bytes(decoded.id) == b'"a\\ud83d"'
    assert bytes(error_line(decoded.id, 1, "m", "r")).startswith(b'{"jsonrpc":"2.0","id":"a\\ud83d","error"')
    answer = message(codec, response(b"{}"))
    answer.id = decoded.id
    assert codec.render(answer) == response(b"{}", id=b'"a\\ud83d"')


def test_a_whole_pair_beside_half_a_pair_is_read(codec: Codec) -> None:
    """An id is the same one however the rest of its line is spelled: a cancellation names it in another."""
    decoded = message(codec, request(b'{"x":"\\ud83d"}', id=b'"\\uD83D\\uDE00\\ud7a3"'))
    assert decoded.id == "😀힣"


def effort(work: Callable[[], object]) -> int:
    """How many functions are called, in Python and in C."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("half", [b"\\ud83d", b"\\uDE00", b"\\ud83d\\uDE00", b"\\\\\\ud83d"])
def test_any_number_of_surrogate_escapes_takes_the_same_few_steps(codec: Codec, half: bytes) -> None:
    """Ten megabytes of them held everybody up for seconds."""

    def survive(number: int) -> None:
        line = request(b'{"x":"\\ud83d' + half * number + b'"}')
        assert codec.render(message(codec, line)) == line

    assert effort(lambda: survive(20_000)) == effort(lambda: survive(20))


def test_a_kept_value_is_as_the_peer_spelled_it(codec: Codec) -> None:
    for line in (request(b'{"t":"a"}'), request(b'{"t":"a"}', more=b',"x":1')):
        decoded = message(codec, line)
        assert type(decoded.params) is dict
        assert codec.owned(decoded, decoded.params["t"]) == b'"a"'
    decoded = message(codec, request(b'{"t":"a\\ud83d"}'))
    assert type(decoded.params) is dict
    assert codec.owned(decoded, decoded.params["t"]) == b'"a\\ud83d"'


def test_a_peer_that_guessed_the_marker_gains_nothing(codec: Codec) -> None:
    """It cannot, since it never sees one; if it did, its text would not become an escape of half a pair."""
    spelled = b"~" + base64.b64encode(SALT)[:12] + b":d83d;"
    plain = response(b'"' + spelled + b'"')
    assert again(codec, plain) == plain
    refused(codec, response(b'["' + spelled + b'","\\ud83d"]'), PARSE_ERROR)


# -- depth --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["[", "{", "mixed"])
def test_a_client_may_nest_128_levels_and_no_more(kind: str) -> None:
    """The message itself is the first level. SDK servers never answer at 200."""
    for shell, used in ((b'{"x":%s}', 2), (b"[%s]", 2)):
        for core in (b"1", b'"[{"', b'"\\"[{\\\\"'):
            good = request(shell.replace(b"%s", nested(DEPTH - used, kind, core)))
            assert again(DOWN, good) == good
            bad = request(shell.replace(b"%s", nested(DEPTH - used + 1, kind, core)), id=b'"seven"')
            refusal = refused(DOWN, bad, INVALID_REQUEST)
            assert refusal.id == "seven"
            assert "128" in refusal.reason
            assert again(UP, bad) == bad


def test_depth_counts_in_every_member(codec: Codec) -> None:
    for line in (
        response(nested(DEPTH)),
        request(more=b',"x":' + nested(DEPTH)),
        request(b'{"_meta":{"x":' + nested(DEPTH) + b"}}"),
    ):
        if codec is UP:
            assert again(codec, line) == line
        else:
            assert refused(codec, line, INVALID_REQUEST).id == 1


def test_brackets_are_not_depth() -> None:
    """Wide is not deep, and a bracket in a string is none."""
    for value in (
        b"[" + b"[]," * 5000 + b"{}]",
        b'["' + b"[{" * 5000 + b'"]',
        b'["' + b'\\"[' * 5000 + b'"]',
        b'["' + b"\\\\" * 5001 + b'",[[]],"' + b"[{" * 200 + b'"]',
        b"[" + b'"[","]","{",[[]],' * 20_000 + b"1]",
        b'{"[[":"]","' + b"{" * 300 + b'":' + nested(DEPTH - 3) + b"}",
    ):
        line = request(value)
        assert again(DOWN, line) == line


def test_depth_is_found_however_far_in(codec: Codec) -> None:
    """A long line is looked through in pieces."""
    for filler in (b'"[","]",[[]],' * 20_000, b"[[{}]]," * 50_000, b'"' + b"{" * 70_000 + b'",'):
        line = request(b"[" + filler + nested(DEPTH - 1) + b"]")
        if codec is UP:
            assert again(codec, line) == line
        else:
            assert refused(codec, line, INVALID_REQUEST).id == 1
        good = request(b"[" + filler + nested(DEPTH - 2) + b"]")
        assert again(codec, good) == good


@pytest.mark.parametrize("limit", [2, 3, 10, 127, 129, 200])
def test_another_limit_of_depth_holds_as_exactly(limit: int) -> None:
    codec = Codec(SALT, limit)
    good = request(nested(limit - 1, "{"))
    assert again(codec, good) == good
    bad = request(nested(limit, "{"))
    assert decode_block(codec, bad + b"\n") is None
    assert refused(codec, bad, INVALID_REQUEST).id == 1


def test_a_limit_of_one_level_admits_what_has_no_object_below() -> None:
    codec = Codec(SALT, 1)
    assert (
        again(codec, b'{"jsonrpc":"2.0","id":1,"result":"[["}') == b'{"jsonrpc":"2.0","id":1,"result":"[["}'
    )
    refused(codec, request(), INVALID_REQUEST)


@pytest.mark.parametrize("levels", [1000, 100_000])
@pytest.mark.parametrize("kind", ["[", "{"])
def test_nesting_no_parser_takes_is_refused_with_its_id(codec: Codec, levels: int, kind: str) -> None:
    """Beyond the interpreter's limit the parser raises RecursionError, which is no DecodeError."""
    begin = b"[" * levels if kind == "[" else b'{"a":' * levels
    end = (b"]" if kind == "[" else b"}") * levels
    line = request(begin + b"1" + end, id=b'"seven"')
    decoded = decode(codec, line)
    if isinstance(decoded, Refusal):
        assert decoded.code == INVALID_REQUEST
        assert decoded.id == "seven"
    else:  # a newer interpreter takes 1,000 levels, and a server may write what it likes
        assert codec is UP
        assert levels == 1000
    half = decode(codec, request(begin + b'"\\ud83d"' + end))
    assert not isinstance(half, Refusal) or half.code in (INVALID_REQUEST, PARSE_ERROR)
    assert isinstance(decode(codec, request(begin)), Refusal)


def test_too_deep_nesting_without_a_readable_id_is_refused_without_one(codec: Codec) -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    line = b'{"jsonrpc":"2.0","params":' + deep + b',"id":7,"method":"m"}'
    assert refused(codec, line, INVALID_REQUEST).id is UNSET


@pytest.mark.parametrize("before", [1, 20, 38, 39, 40, 41, 60, 100, 125, 126, 127])
def test_depth_counts_on_both_sides_of_a_long_text(before: int) -> None:
    """Nothing opens within the text, and next to nothing else stands between the brackets."""
    for size in (0, 100, 300, 4000):
        for levels in (DEPTH - 1, DEPTH):  # and the envelope
            inner = nested(levels - before, "{").replace(b'"a"', b'""')
            text = b'{"":"' + b"x" * size + b'","a":' + inner + b"}"
            line = request(nested(before - 1, "{", text).replace(b'"a"', b'""'))
            assert isinstance(DOWN.decode_plain_line(line), Refusal) is (levels == DEPTH), (size, levels)


def test_looking_for_depth_takes_little_memory() -> None:
    """An ordinary message may carry megabytes of source code, full of brackets, in one string."""
    megabyte = 1 << 20
    for value in (
        b'["' + b"[{" * 200 + b"x" * 4 * megabyte + b'"]',
        b'["' + b"[{" * 200 + b"\\n" * 2 * megabyte + b'"]',
        b"[" + b'["["],' * (megabyte // 2) + b"1]",
    ):
        line = request(value)
        tracemalloc.start()
        try:
            assert not too_deep(line, DEPTH)
            assert tracemalloc.get_traced_memory()[1] < 6 * len(line)
        finally:
            tracemalloc.stop()


def test_looking_for_depth_looks_at_eight_brackets_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they are: ten megabytes of brackets held everybody up for half a second."""
    looked_at = 0

    def accumulate(items: Iterable[int], initial: int) -> Iterable[int]:
        nonlocal looked_at
        items = [*items]
        looked_at += len(items)
        return itertools.accumulate(items, initial=initial)

    monkeypatch.setattr(glance, "accumulate", accumulate)
    for unit in (b"[],", b'{"a":1},', b"[" * 120 + b"]" * 120 + b",", b'["[",{"a":"[[["}],'):
        line = request(b"[" + unit * (200_000 // len(unit)) + b"1]")
        looked_at = 0
        assert not too_deep(line, DEPTH)
        assert looked_at <= len(line) // 8 + 8


def test_depth_is_looked_for_in_one_line_of_a_block() -> None:
    deep, flat = request(nested(DEPTH)), request()
    assert decode_block(DOWN, flat + b"\n" + deep + b"\n") is None


# -- ids -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (b"1", 1),
        (b'"1"', "1"),
        (b"0", 0),
        (b'""', ""),
        (b"-7", -7),
        (b"9007199254740993", 9007199254740993),
        (b"18446744073709551616", 18446744073709551616),
        (b"-" + b"1" * 400, -int("1" * 400)),
        (b"1" * 1024, int("1" * 1024)),
        (b'"a\\"b"', 'a"b'),
        (b'"\\\\\\n"', "\\\n"),
        (b'"1.0"', "1.0"),
        (b'"true"', "true"),
        ('"é😀"'.encode(), "é😀"),
        (b'"' + b"x" * 1022 + b'"', "x" * 1022),
    ],
)
def test_an_id_keeps_its_type_and_value(codec: Codec, written: bytes, value: int | str) -> None:
    for line in (request(id=written), response(b"{}", id=written)):
        decoded = message(codec, line)
        assert type(decoded.id) is type(value)
        assert decoded.id == value
        assert again(codec, line) == line


def test_an_escape_in_an_id_may_be_spelled_anew(codec: Codec) -> None:
    assert message(codec, request(id=b'"\\u0041\\ud83d\\ude00\\/"')).id == "A😀/"


@pytest.mark.parametrize(
    "written",
    [
        *[b"null", b"true", b"false", b"[1]", b"{}", b"1.5", b"1.0", b"1e2", b"-1.0", b"1E400"],
        *[
            b"1" * 1025,
            b"-" + b"1" * 1024,
            b"1" * 5000,
            b'"' + b"x" * 1023 + b'"',
            b'"' + b"x" * 100_000 + b'"',
        ],
        # Longer as written than the value is.
        *[
            b'"' + b"\\u0041" * 171 + b'"',
            b'"' + b"\\ud83d\\ude00" * 86 + b'"',
            b'"' + b"\\ud83d" * 171 + b'"',
        ],
    ],
)
def test_an_id_of_another_kind_or_over_1_kib_is_refused_without_it(codec: Codec, written: bytes) -> None:
    for line in (request(id=written), response(b"{}", id=written), request(id=written, more=b',"x":1')):
        assert decode_block(codec, line + b"\n") is None
        assert refused(codec, line, INVALID_REQUEST).id is UNSET


@pytest.mark.parametrize(
    "written",
    [b'"' + b"\\u0041" * 170 + b'"', b'"' + b"\\ud83d\\ude00" * 85 + b'"', b'"' + b"\\ud83d" * 170 + b'"'],
)
def test_an_id_of_1_kib_as_written_is_served(codec: Codec, written: bytes) -> None:
    assert len(written) <= MAX_ID_BYTES
    assert message(codec, request(id=written)).id is not UNSET


def test_an_id_of_a_cancelled_request_is_read_like_any_id(codec: Codec) -> None:
    assert codec.read_id(Raw(b"5")) == 5
    assert codec.read_id(Raw(b'"5"')) == "5"
    for raw in (b"null", b"5.0", b"[5]", b'"' + b"x" * 1023 + b'"'):
        assert codec.read_id(Raw(raw)) is None
    marked = message(codec, request(b'{"requestId":"\\ud83d","list":["\\ud83d"]}')).params
    assert type(marked) is dict
    read = codec.read_id(marked["requestId"])
    assert type(read) is Raw
    assert bytes(read) == b'"\\ud83d"'
    assert codec.read_id(marked["list"]) is None


# -- the envelope ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b"1",
        b'"a"',
        b"null",
        b"true",
        b"[]",
        b"[" + request() + b"]",
        b"[" + request() + b"," + request() + b"]",
        b"{}",
    ],
)
def test_valid_json_that_is_no_message_is_an_invalid_request(codec: Codec, line: bytes) -> None:
    refusal = refused(codec, line, INVALID_REQUEST)
    assert refusal.id is UNSET
    assert ("batch" in refusal.reason) is line.startswith(b"[")


@pytest.mark.parametrize(
    "version", [b"", b'"jsonrpc":"1.0",', b'"jsonrpc":2.0,', b'"jsonrpc":null,', b'"jsonrpc":"2",']
)
def test_another_version_of_json_rpc_is_an_invalid_request(codec: Codec, version: bytes) -> None:
    for more in (b"", b',"x":"\\ud83d"'):
        assert (
            refused(codec, b"{" + version + b'"id":"a","method":"m"' + more + b"}", INVALID_REQUEST).id == "a"
        )


def test_the_version_may_be_spelled_with_escapes(codec: Codec) -> None:
    line = b'{"jsonrpc":"2\\u002e0","method":"m"}'
    assert again(codec, line) == b'{"jsonrpc":"2.0","method":"m"}'


@pytest.mark.parametrize("method", [b"null", b"1", b"[]", b"{}", b"true"])
def test_a_method_that_is_no_string_is_an_invalid_request(codec: Codec, method: bytes) -> None:
    assert refused(codec, request(method=method), INVALID_REQUEST).id == 1


@pytest.mark.parametrize("params", [b"1", b'"a"', b"true", b"false", b"-0", b'"{}"'])
def test_params_that_are_a_scalar_are_an_invalid_request(codec: Codec, params: bytes) -> None:
    for more in (b"", b',"x":"\\ud83d"'):
        assert refused(codec, request(params, more=more), INVALID_REQUEST).id == 1


@pytest.mark.parametrize(
    ("params", "kind"),
    [(b"null", type(None)), (b"[1,{}]", Raw), (b"[]", Raw), (b"{}", dict), (b'{"a":1}', dict)],
)
def test_params_that_are_null_or_an_array_or_an_object_pass(codec: Codec, params: bytes, kind: type) -> None:
    assert type(message(codec, request(params)).params) is kind
    for more in (b"", b',"x":1', b',"x":"\\ud83d"'):
        line = request(params, more=more)
        assert again(codec, line) == line


def test_what_is_not_there_stays_away(codec: Codec) -> None:
    for line in (
        b'{"jsonrpc":"2.0"}',
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","method":"m"}',
        b'{"jsonrpc":"2.0","method":""}',
        b'{"jsonrpc":"2.0","id":1,"result":null}',
        b'{"jsonrpc":"2.0","id":1,"result":1,"error":2}',
        b'{"jsonrpc":"2.0","error":{}}',
    ):
        assert again(codec, line) == line
        decoded = message(codec, line)
        present = json.loads(line)
        for name in ("id", "method", "params", "result", "error"):
            assert (getattr(decoded, name) is UNSET) is (name not in present)


def test_members_come_in_any_order_and_with_any_white_space(codec: Codec) -> None:
    line = b' { "params" :\t{ "a" : 1 } ,"method": "m" , "id" : 1,"jsonrpc":"2.0" } '
    assert again(codec, line) == request(b'{"a":1}')


# -- numbers and tokens the bridge minted -------------------------------------------------


@pytest.mark.parametrize(("raw", "value"), [(b"5", 5), (b"0", 0), (b"9007199254740991", 9007199254740991)])
def test_a_plain_integer_is_read(raw: bytes, value: int) -> None:
    assert plain_integer(raw) == value
    assert plain_integer(Raw(raw)) == value


@pytest.mark.parametrize(
    "raw", [b"5.0", b'"5"', b"-5", b"5e0", b"null", b"true", b"1" * 17, b"", b"[5]", b"\xb2"]
)
def test_what_is_no_plain_integer_names_nothing(raw: bytes) -> None:
    assert plain_integer(raw) is None


@pytest.mark.parametrize("raw", [b"5", b"-5", b"0", b'"a"', b'""', b"1" * 1024, b'"' + b"x" * 1022 + b'"'])
def test_a_string_or_a_plain_integer_is_a_token(raw: bytes) -> None:
    assert is_token(raw)


@pytest.mark.parametrize(
    "raw",
    [b"5.0", b"1e2", b"null", b"true", b"[]", b"{}", b"-", b"--5", b"1" * 1025, b'"' + b"x" * 1023 + b'"'],
)
def test_anything_else_or_a_longer_one_is_no_token(raw: bytes) -> None:
    """A server that echoes `57.0` as `57` would hit a stranger."""
    assert not is_token(raw)


# -- ids of lines that are no message ---------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"m","params":{', 7),
        (b'{"jsonrpc":"2.0","method":"m","id":"a\\"b","params":{', 'a"b'),
        (b' { "id" : -7 , "x', -7),
        (b'\xef\xbb\xbf{"id":"",', ""),
        (b'{"method":"m","id":0,', 0),
        (b'{"id":' + b"1" * 1024 + b",", int("1" * 1024)),
        (b'{"id":"' + b"x" * 1022 + b'",', "x" * 1022),
        (b'{"id":' + b"1" * 1025 + b",", None),
        (b'{"id":-' + b"1" * 1024 + b",", None),
        (b'{"id":"' + b"\\n" * 600 + b'",', None),
        (b'{"id":7', None),
        (b'{"id":07,', None),
        (b'{"id":7.5,', None),
        (b'{"id":null,', None),
        (b'{"id":"\xff",', None),
        (b'{"id":"\xe2\x82",', None),
        (b'{"id":"\\ud83d",', None),
        (b'{"id":"\\x",', None),
        (b'{"params":{"id":7,', None),
        (b'["id":7,', None),
        (b"", None),
    ],
)
def test_the_id_of_a_client_is_guessed_from_the_head(head: bytes, id: int | str | None) -> None:
    guess = guess_id(head, b"")
    assert (type(guess), guess) == (type(id), id)


@pytest.mark.parametrize(
    ("tail", "id"),
    [
        (b'}}},"id":7}', 7),
        (b'}}} , "id" : "a" } \r', "a"),
        (b'"}},"id":7,"jsonrpc":"2.0"}', 7),
        (b'}},"id":7}}', None),
        (b'}},"id":7,"method":"m"}', None),
        (b'"id":7}', None),
        (b',"id":7.0}', None),
        (b"", None),
    ],
)
def test_the_id_of_a_client_is_guessed_from_the_tail(tail: bytes, id: int | str | None) -> None:
    guess = guess_id(b'{"params":', tail)
    assert (type(guess), guess) == (type(id), id)


HEAD = b'{"jsonrpc":"2.0","id":7,"result":'


@pytest.mark.parametrize(
    ("head", "tail", "id"),
    [
        (HEAD, b"}}", 7),
        (HEAD, b"", 7),
        (b"\xef\xbb\xbf" + HEAD, b"", 7),
        (b'{"jsonrpc":"2.0","id":7,"error":{"code":1', b"", 7),
        (b'{"jsonrpc":"2.0","id":9007199254740991,"result":', b"", 9007199254740991),
        (b'{"result":{"a":', b'},"jsonrpc":"2.0","id":7}', 7),
        (b'{"error":{"a":', b'},"id":7,"jsonrpc":"2.0"} \r', 7),
        # Both ends name one.
        (HEAD, b',"jsonrpc":"2.0","id":7}', 7),
        (HEAD, b',"jsonrpc":"2.0","id":8}', None),
        (HEAD, b',"id":8,"jsonrpc":"2.0"}', None),
        # Text that only looks like it.
        (b" " + HEAD, b"", None),
        (b'{"jsonrpc": "2.0", "id": 7, "result": ', b"", None),
        (b'{"id":7,"jsonrpc":"2.0","result":', b"", None),
        (b'{"jsonrpc":"2.0","id":"7","result":', b"", None),
        (b'{"jsonrpc":"2.0","id":7.0,"result":', b"", None),
        (b'{"jsonrpc":"2.0","id":-7,"result":', b"", None),
        (b'{"jsonrpc":"2.0","id":07,"result":', b"", None),
        (b'{"jsonrpc":"2.0","id":12345678901234567,"result":', b"", None),
        (b'{"jsonrpc":"2.0","id":7,"method":"m","result":', b"", None),
        (b'{"jsonrpc":"2.0","id":7,"method":"m","params":', b',"jsonrpc":"2.0","id":7}', None),
        (b'{"jsonrpc":"2.0","method":"m","params":{', b',"jsonrpc":"2.0","id":7}', None),
        (b'{"params":"' + HEAD, b',"jsonrpc":"2.0","id":7}', None),
        (b'{"result":{"a":', b'},"jsonrpc":"2.0","id":7}}', None),
        (b'{"result":{"a":', b'},\\"jsonrpc\\":\\"2.0\\",\\"id\\":7}', None),
        (b'{"result":{"a":', b'},"jsonrpc":"2.0","id":07}', None),
        (b'{"result":{"a":', b'},"id":7}', None),
        (b'{"result":{"a":', b'},"jsonrpc":"2.0","id":"7"}', None),
        (b'["result":', b',"jsonrpc":"2.0","id":7}', None),
        (b"log: " + HEAD, b',"jsonrpc":"2.0","id":7}', None),
    ],
)
def test_the_id_of_a_damaged_response_is_trusted_in_a_few_spellings(
    head: bytes, tail: bytes, id: int | None
) -> None:
    assert trusted_id(head, tail) == id


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    ("line", "id"),
    [
        # Damaged in the middle, or cut off.
        (HEAD + b'{"a":tru}}', 7),
        (HEAD + b'{"a":"', 7),
        (b'{"result":nope,"jsonrpc":"2.0","id":7}', 7),
        (HEAD + b'nope,"jsonrpc":"2.0","id":8}', None),
        # Too deep.
        (HEAD + DEEP + b"}", 7),
        (b'{"result":' + DEEP + b',"id":7,"jsonrpc":"2.0"}', 7),
        (b'{"jsonrpc":"2.0","id":7,"method":"m","params":' + DEEP + b"}", None),
        (b'{"jsonrpc":"2.0","method":"m","params":' + DEEP + b',"id":7}', None),
        # Bad UTF-8 is the only fault: decoded as usual, wherever the id stands.
        (b'{"id" : 7, "jsonrpc":"2.0","result":"\xff"}', 7),
        (b'{"jsonrpc":"2.0","result":{"id":8,"x":"\xff,\\"id\\":9"},"\\u0069d":7,"x":1}', 7),
        (b'\xef\xbb\xbf{"jsonrpc":"2.0","result":"\xff","id":7}\r', 7),
        (b'{"jsonrpc":"2.0","id":8,"result":"\xff","id":7}', 7),
        (b'{"jsonrpc":"2.0","id":7,"method":"m","params":{"x":"\xff"}}', None),
        (b'{"jsonrpc":"2.0","id":"7","result":"\xff"}', None),
        (b'{"jsonrpc":"2.0","id":7.0,"result":"\xff"}', None),
        (b'{"jsonrpc":"2.0","result":"\xff"}', None),
        (b'[{"jsonrpc":"2.0","id":7,"result":"\xff"}]', None),
        # And another fault besides: only the trusted spellings.
        (HEAD + b'"\xff"', 7),
        (b'{"id":7,"jsonrpc":"2.0","result":"\xff"', None),
        # Valid JSON, no message.
        (b'{"id":7,"result":{}}', 7),
        (b'{"jsonrpc":"1.0","id":7,"error":{}}', 7),
        (b'{"jsonrpc":"2.0","id":7,"method":1}', None),
        (b'{"jsonrpc":"2.0","id":7,"method":"m","params":1}', None),
        (b'[{"jsonrpc":"2.0","id":7,"result":{}}]', None),
        (b"7", None),
        (b"Server ready, id 7", None),
        (b"\xff", None),
    ],
)
def test_a_refused_line_of_a_server_is_only_a_response_if_that_is_certain(
    line: bytes, id: int | None
) -> None:
    """-31008 goes to whoever asked. A request of the server's own may have the same id, and is no answer."""
    assert isinstance(UP.decode_line(line), Refusal)
    assert salvage_id(line) == id
    assert salvage_id(bytearray(line)) == id


def test_only_the_ends_of_a_line_are_searched_for_an_id() -> None:
    padding = b" " * HEAD_KEPT
    assert salvage_id(b"{" + padding + HEAD[1:] + b"tru}") is None
    assert salvage_id(b'{"result":tru,"jsonrpc":"2.0","id":7}' + padding) is None


# -- the bridge's own lines ----------------------------------------------------------------------


def test_an_error_of_the_bridge_says_whether_the_server_saw_the_request() -> None:
    line = bytes(error_line("a", -31003, "too many", "overloaded", supported=["x"]))
    assert json.loads(line) == {
        "jsonrpc": "2.0",
        "id": "a",
        "error": {
            "code": -31003,
            "message": "too many",
            "data": {"source": "mcp-bridge", "reason": "overloaded", "delivered": False, "supported": ["x"]},
        },
    }
    assert json.loads(bytes(error_line(0, 1, "", "", delivered=True)))["error"]["data"]["delivered"] is True


def test_an_error_without_a_readable_id_has_no_id() -> None:
    assert "id" not in json.loads(bytes(error_line(UNSET, PARSE_ERROR, "m", "r")))


def test_the_bridges_own_lines_are_messages(codec: Codec) -> None:
    lines: list[tuple[Raw, dict[str, Any]]] = [
        (notification_line("n", {"a": Raw(b"1e400")}), {"method": "n", "params": {"a": float("inf")}}),
        (request_line(3, "r", {}), {"id": 3, "method": "r", "params": {}}),
        (result_line("x", {"a": 1}), {"id": "x", "result": {"a": 1}}),
        (error_line(10**400, 1, "m\n", "r"), {"id": 10**400}),
    ]
    for raw, expected in lines:
        line = bytes(raw)
        assert b"\n" not in line
        message(codec, line)
        assert expected.items() <= json.loads(line).items()
