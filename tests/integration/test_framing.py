"""Framing and validity over real sockets and pipes, both directions (section 2 of the contract)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.conftest import Shared
from tests.support.bridge import running_bridge, server_command
from tests.support.client import MODERN_META, RawClient, encode, modern_request
from tests.support.scripts import b64, content, env, error_of, recorded, state

META = json.dumps(dict(MODERN_META), separators=(",", ":")).encode()


def call(id: bytes, arguments: bytes, *, name: bytes = b"do", meta: bytes = META) -> bytes:
    """A `tools/call` whose parts are written exactly so, without a newline."""
    params = b'{"name":"%s","arguments":%s,"_meta":%s}' % (name, arguments, meta)
    return b'{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":%s}' % (id, params)


def sent_arguments(line: bytes) -> bytes:
    """The bytes of `arguments` in a line that was made from `call` and has come to the server."""
    found = re.search(rb'"arguments":(.*),"_meta":', line)
    assert found, line
    return found[1]


async def still_served(client: RawClient) -> None:
    """The connection lives, and nothing but the answer to this comes."""
    id = await client.start_call("still served", id="still served")
    assert (await client.recv())["id"] == id


# Where lines end.


async def test_a_raw_cr_inside_a_line_smuggles_no_second_message(shared: Shared, client: RawClient) -> None:
    """Readers in text mode end a line at a bare CR: they answered the hidden id 999 and never 7."""
    hidden = b'\r{"jsonrpc":"2.0","id":999,"method":"ping"}\r'
    mark = f"cr {client.sock.family}"
    await client.send(call(b"7", b'{"x":%s,"mark":"%s"}' % (hidden, mark.encode())) + b"\n")
    assert (await client.recv())["id"] == 7
    line = await recorded(shared.record, mark)
    assert sent_arguments(line).startswith(b'{"x": {"jsonrpc":"2.0","id":999,"method":"ping"} ,')
    assert b"\r" not in shared.record.read_bytes()
    await still_served(client)


async def test_a_raw_cr_from_the_server_never_reaches_a_client(client: RawClient) -> None:
    hidden = b'{"jsonrpc":"2.0","id":@ID@,"result":{"x":\r{"jsonrpc":"2.0","id":7,"result":{}}\r}}\r\n'
    await client.start_call("do", raw_instead=b64(hidden), id=7)
    assert (
        await client.recv_raw()
        == b'{"jsonrpc":"2.0","id":7,"result":{"x": {"jsonrpc":"2.0","id":7,"result":{}} }}'
    )
    await still_served(client)


async def test_thousands_of_refused_lines_are_answered_before_what_is_behind_them(client: RawClient) -> None:
    """They take turns with what others write; the end of what the client sends does not overtake them."""
    await client.send(b"{}\n" * 5000, modern_request("tools/list", id="behind"))
    client.half_close()
    for _ in range(5000):
        assert (await client.recv())["error"]["code"] == -32600
    assert (await client.recv())["id"] == "behind"
    assert await client.expect_eof() == []


async def test_blank_lines_get_no_answer_and_reach_nobody(shared: Shared, client: RawClient) -> None:
    """Reported: blank lines between messages raised validation errors or broke the whole subsystem."""
    for id in (1, 2):
        await client.send(modern_request("tools/list", id=id), b"\n\n", b" \t\r\n", b"\r\n")
        assert (await client.recv())["id"] == id
    await still_served(client)
    assert not re.search(rb"(^|\n)[ \t\r]*\n", shared.record.read_bytes())


async def test_blank_lines_from_the_server_reach_nobody(client: RawClient) -> None:
    blank = b64(b"\n\n", b"  \t \r\n", b"\xef\xbb\xbf\n")
    await client.start_call("do", raw_before=blank, raw_after=blank, id=1)
    assert (await client.recv())["id"] == 1
    await still_served(client)


async def test_a_byte_order_mark_before_any_line_is_dropped(shared: Shared, client: RawClient) -> None:
    """On TCP not before the first: there the first byte must be `{`."""
    bom = b"\xef\xbb\xbf"
    mark = f"bom {client.sock.family}"
    await still_served(client)
    await client.send(bom + call(b"1", b'{"mark":"%s"}' % mark.encode()) + b"\n")
    assert (await client.recv())["id"] == 1
    assert (await recorded(shared.record, mark)).startswith(b"{")
    raw = bom + b'{"jsonrpc":"2.0","id":@ID@,"result":{}}\n'
    await client.start_call("do", raw_instead=b64(raw), id=2)
    assert await client.recv_raw() == b'{"jsonrpc":"2.0","id":2,"result":{}}'


async def test_a_byte_order_mark_may_be_the_first_thing_on_a_unix_socket(unix_client: RawClient) -> None:
    await unix_client.send(b"\xef\xbb\xbf", modern_request("tools/list", id=1))
    assert (await unix_client.recv())["id"] == 1


async def test_a_client_that_ends_lines_with_cr_lf_is_served_with_lf_alone(
    shared: Shared, client: RawClient
) -> None:
    """Reported: text-mode output turned LF into CR LF, and the client saw empty messages."""
    mark = f"crlf {client.sock.family}"
    lines = [call(b"%d" % id, b'{"mark":"%s"}' % mark.encode()) + b"\r\n" for id in range(5)]
    await client.send(b"".join(lines))
    for id in range(5):
        raw = await client.recv_raw()
        assert json.loads(raw)["id"] == id
        assert not raw.endswith(b"\r")
    assert (await recorded(shared.record, mark)).endswith(b"}\n")


async def test_bytes_that_come_one_at_a_time_make_the_same_messages(client: RawClient) -> None:
    """Cut anywhere, in the middle of a character too, on both sides."""
    text = "größer 🙂 \u2028"
    line = encode(modern_request("tools/call", {"name": "do", "arguments": {"text": text}}, id="ä"))
    for byte in line:
        await client.send(bytes([byte]))
        await asyncio.sleep(0)
    assert content(await client.response("ä"))["arguments"] == {"text": text}
    answer = '{"jsonrpc":"2.0","id":@ID@,"result":{"text":"größer 🙂"}}\n'.encode()
    await client.start_call("do", raw_instead=b64(*in_single_bytes(answer)), id=1)
    assert json.loads(await client.recv_raw())["result"] == {"text": "größer 🙂"}


def in_single_bytes(answer: bytes) -> list[bytes]:
    """An answer in single bytes, but for the name of its id, which is filled in."""
    before, _, behind = answer.partition(b"@ID@")
    return [bytes([b]) for b in before] + [b"@ID@"] + [bytes([b]) for b in behind]


async def test_many_messages_in_one_packet_are_all_answered_in_order(client: RawClient) -> None:
    await client.send(*(modern_request("tools/list", id=id) for id in range(500)))
    assert [(await client.recv())["id"] for _ in range(500)] == list(range(500))


async def test_a_whole_last_line_without_its_newline_counts(shared: Shared, transport: int) -> None:
    async with await shared.bridge.connect(transport) as client:
        await client.send(call(b"1", b"{}"))
        client.half_close()
        assert [json.loads(line)["id"] for line in await client.expect_eof()] == [1]


async def test_half_a_last_line_reaches_nobody(shared: Shared, transport: int) -> None:
    async with await shared.bridge.connect(transport) as client:
        mark = f"half a line {transport}"
        whole = call(b"2", b'{"mark":"%s"}' % mark.encode())
        await client.send(call(b"1", b"{}") + b"\n" + whole[:-1])
        client.half_close()
        assert [json.loads(line)["id"] for line in await client.expect_eof()] == [1]
    async with await shared.bridge.connect(transport) as other:
        await still_served(other)
    assert mark.encode() not in shared.record.read_bytes()


# What a line may hold.


@pytest.mark.parametrize(
    "bad",
    [
        b"\xff\xfe",
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"\xff bad utf8"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"\xc3(":1}}',
        b"{not json",
        b'{"jsonrpc":"2.0","id":1,"meth',
        b'{"jsonrpc":"2.0","id":1,"method":"x"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"x"} {"jsonrpc":"2.0","id":2,"method":"x"}',
        b'{"jsonrpc":"2.0","id":1,"method":"tab\there"}',
        b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"n":NaN}}',
        b"\x00\x00",
    ],
)
async def test_what_is_no_json_gets_a_parse_error_without_id_and_is_not_forwarded(
    shared: Shared, unix_client: RawClient, bad: bytes
) -> None:
    """Reported: malformed stdin, and one bad byte, ended servers for everybody."""
    before = (await state(unix_client))["count"]
    await unix_client.send(bad + b"\n")
    answer = await unix_client.recv()
    assert "id" not in answer
    assert error_of(answer) == (-32700, "parse_error", False)
    assert (await state(unix_client))["count"] == before + 1


async def test_on_tcp_the_first_line_that_is_no_json_ends_the_connection(shared: Shared) -> None:
    async with await shared.bridge.connect(1) as client:
        await still_served(client)
        await client.send(b"\xff\xfe\n", modern_request("tools/call", {"name": "after the bad line"}, id=5))
        lines = await client.expect_eof()
    assert [error_of(json.loads(line))[0] for line in lines] == [-32700]
    async with await shared.bridge.connect(1) as other:
        await still_served(other)
    assert b"after the bad line" not in shared.record.read_bytes()


async def test_a_tenth_line_in_a_row_that_is_no_json_closes_a_unix_connection(shared: Shared) -> None:
    async with await shared.bridge.connect(0) as client:
        for _ in range(2):
            await client.send(b"{x\n" * 9)
            assert [(await client.recv())["error"]["code"] for _ in range(9)] == [-32700] * 9
            await still_served(client)  # a valid message: they are counted anew
        await client.send(b"{x\n" * 9)
        assert [(await client.recv())["error"]["code"] for _ in range(9)] == [-32700] * 9
        await client.send(b"{x\n")
        assert len(await client.expect_eof()) == 1


async def test_a_line_the_client_got_wrong_leaves_a_trace_that_is_escaped_and_cut() -> None:
    """Reported: malformed input left no trace on stderr. It must neither flood it. The text itself, which may
    be of a message, is there at `debug` alone.
    """
    command = server_command("scripted.py")
    async with running_bridge(*command) as bridge, await bridge.connect() as client:
        await client.send(b'{"password":"hunter2"\n')
        await client.recv()
        (line,) = await bridge.wait_log("is no message: the line is not valid JSON")
        assert "hunter2" not in bridge.stderr_text()
    debug = ["--log-level", "debug"]
    async with running_bridge(*command, options=debug) as bridge, await bridge.connect() as client:
        await client.send(b"{\x1b[31mtrace of a bad line" + b"y" * 5000 + b"\n")
        await client.recv()
        (line,) = await bridge.wait_log("trace of a bad line")
        assert "\x1b" not in line
        assert len(line) < 600
        assert "key=" in line  # the client's number
        for _ in range(50):
            await client.send(b"1\n" * 10)
        assert {(await client.recv())["error"]["code"] for _ in range(500)} == {-32600}
        await client.start_call("still there")
        await client.recv()
        assert len([line for line in bridge.stderr_text().splitlines() if "is no message" in line]) < 20


async def test_bad_utf8_in_a_response_settles_its_asker_at_once(client: RawClient) -> None:
    """The mirror image of a bad byte on stdin: it must not be passed on, nor hang who waits."""
    raw = b'{"jsonrpc":"2.0","id":@ID@,"result":{"text":"\xff\xfe"}}\n'
    await client.start_call("do", raw_instead=b64(raw), id="x")
    assert error_of(await client.response("x")) == (-31008, "invalid_response", True)
    await still_served(client)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"jsonrpc":"2.0","id":@ID@,"result":{"text":"cut\n',
        b'{"result":{"a":[1,2}},"jsonrpc":"2.0","id":@ID@}\n',
        b'{"error":{"a":[1,2}},"id":@ID@,"jsonrpc":"2.0"}\n',
        b'{"jsonrpc":"2.0","id":@ID@,"result":{},"error":{"code":1,"message":"both"}}\n',
        b'{"jsonrpc":"2.0","id":@ID@}\n',
        b'{"jsonrpc":"2.0","id":@ID@,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    ],
    ids=["truncated", "tail", "tail, other order", "both", "neither", "deep"],
)
async def test_a_damaged_response_whose_id_can_be_trusted_settles_its_asker(
    unix_client: RawClient, raw: bytes
) -> None:
    """Reported: the id was never resolved, and the same page was fetched again and again."""
    await unix_client.start_call("do", raw_instead=b64(raw), id=0)
    assert error_of(await unix_client.response(0)) == (-31008, "invalid_response", True)
    await still_served(unix_client)


async def test_a_damaged_line_whose_id_may_be_part_of_a_text_settles_nobody(unix_client: RawClient) -> None:
    """Only the canonical head, or the tail of a line that starts as a response, proves an id."""
    noise = b'debug {"jsonrpc":"2.0","id":@ID@,"result":{}\n'
    log = b'{"method":"x","params":"\xff","jsonrpc":"2.0","id":@ID@}\n'
    await unix_client.start_call("do", raw_before=b64(noise, log), id=3)
    assert "result" in await unix_client.recv()
    await still_served(unix_client)


@pytest.mark.parametrize(
    ("line", "id"),
    [
        (b'{"jsonrpc":"2.0","id":8,"method":"tools/list","params":{"_meta":%s},"id":9}', 9),
        (b'{"jsonrpc":"2.0","id":8,"method":"tools/list","params":{"_meta":%s},"\\u0069d":9}', 9),
        (b'{"jsonrpc":"2.0","\\u0069d":8,"method":"tools/list","params":{"_meta":%s}}', 8),
        (
            b'{"id":8,"jsonrpc":"2.0","method":"ping","method":"tools/list","params":1,"params":{"_meta":%s}}',
            8,
        ),
    ],
)
async def test_a_key_that_comes_twice_or_escaped_is_forwarded_once(
    shared: Shared, unix_client: RawClient, line: bytes, id: int
) -> None:
    """First-wins and last-wins readers must see the same id, or it smuggles one past the bridge."""
    mark = f"twice {line!r}".encode().hex()
    meta = META[:-1] + b',"example.com/mark":"%s"}' % mark.encode()
    await unix_client.send(line % meta + b"\n")
    assert (await unix_client.recv())["id"] == id
    seen = json.loads(await recorded(shared.record, mark), object_pairs_hook=lambda pairs: pairs)
    names = [name for name, _ in seen]
    assert sorted(names) == ["id", "jsonrpc", "method", "params"]


async def test_a_progress_token_that_comes_twice_or_escaped_is_translated_once(
    shared: Shared, unix_client: RawClient
) -> None:
    meta = META[:-1] + b',"progressToken":"mine","progress\\u0054oken":"other"}'
    arguments = b'{"progress":1,"mark":"token twice"}'
    await unix_client.send(call(b"1", arguments, meta=meta) + b"\n")
    progress = await unix_client.recv()
    assert progress["params"]["progressToken"] == "other"
    assert (await unix_client.recv())["id"] == 1
    line = await recorded(shared.record, "token twice")
    assert len(re.findall(rb'"progress(?:T|\\u0054)oken"', line)) == 1
    assert b"mine" not in line
    assert b"other" not in line


LONE = rb'"\ud83d"'
NUMBERS = (
    rb'{"a":1e400,"b":1E2,"c":-0,"d":1.0,"e":123456789012345678901234567890,"f":0.10,"\u0067":"\u00e9\/"}'
)


@pytest.mark.parametrize(
    "arguments", [NUMBERS, rb'{"cut":"\ud83d","more":' + NUMBERS + rb',"\udc00":"\uD83D\uDE00"}']
)
async def test_values_go_to_the_server_byte_for_byte(
    shared: Shared, client: RawClient, arguments: bytes
) -> None:
    """Numbers, escapes and lone surrogates are the peers' own. Reported: 1e400 became Infinity."""
    mark = f"bytes {client.sock.family} {len(arguments)}"
    name = mark.encode()
    await client.send(call(b"5", arguments, name=name) + b"\n")
    line = await recorded(shared.record, mark)
    assert sent_arguments(line) == arguments
    assert (await client.response(5))["id"] == 5


@pytest.mark.parametrize("value", [NUMBERS, LONE, rb'{"cut":"\ud83d","more":' + NUMBERS + rb"}"])
async def test_values_come_to_the_client_byte_for_byte(client: RawClient, value: bytes) -> None:
    """Reported: lone surrogates of a server poisoned the conversation; results lost digits and `_meta`."""
    result = b'{"structuredContent":%s,"_meta":{"example.com/x":%s},"vendor":[1.50,null]}' % (value, value)
    raw = b'{"jsonrpc":"2.0","id":@ID@,"result":%s,"unknown":%s}\n' % (result, value)
    await client.start_call("do", raw_instead=b64(raw), id="a")
    line = await client.recv_raw()
    assert line == b'{"jsonrpc":"2.0","id":"a","result":%s,"unknown":%s}' % (result, value)


async def test_an_unknown_member_of_a_request_reaches_the_server(
    shared: Shared, unix_client: RawClient
) -> None:
    """Reported: a proxy that rebuilt objects from a model lost what the model did not know."""
    line = call(b"1", b'{"mark":"unknown member"}')[:-1] + b',"vendor":{"n":1.0},"another":"\\ud83d"}\n'
    await unix_client.send(line)
    assert (await unix_client.recv())["id"] == 1
    got = await recorded(shared.record, "unknown member")
    assert got.endswith(b',"vendor":{"n":1.0},"another":"\\ud83d"}\n')


async def test_a_line_separator_in_an_answer_cuts_nothing(unix_client: RawClient) -> None:
    """Reported: one U+2028 blocked the whole channel, fragments failed to parse for ever."""
    text = "a\u2028b\u2029c\u0085d\x0be\x0c"
    raw = '{"jsonrpc":"2.0","id":@ID@,"result":{"t":"a\u2028b\u2029c\u0085d\\u000be\\f"}}\n'.encode()
    await unix_client.start_call("do", raw_instead=b64(raw), id=0)
    assert (await unix_client.response(0))["result"]["t"] == text
    for id in range(1, 11):
        answer = content(await unix_client.call("do", id=id, text=text))
        assert answer["arguments"] == {"text": text}


@pytest.mark.parametrize(("depth", "served"), [(125, True), (200, False), (50_000, False)])
async def test_nesting_deeper_than_the_limit_is_refused_under_its_id(
    shared: Shared, client: RawClient, depth: int, served: bool
) -> None:
    """Reported: a nested request was logged as invalid and never answered."""
    before = (await state(client))["count"]
    await client.send(call(b"7", b"[" * depth + b"]" * depth) + b"\n")
    answer = await client.response(7)
    if served:
        assert "result" in answer
    else:
        assert error_of(answer) == (-32600, "invalid_request", False)
    assert (await state(client))["count"] == before + 1 + served


async def test_brackets_in_a_text_are_no_nesting(client: RawClient) -> None:
    text = '"[{' * 500
    assert content(await client.call("do", text=text))["arguments"] == {"text": text}


# Limits of length.

CAP = 4096
SERVER_CAP = 64 * 1024


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shared]:
    """A bridge with small limits."""
    record = tmp_path_factory.mktemp("small") / "record"
    options = ["--max-request", str(CAP), "--max-message", str(SERVER_CAP)]
    tail = b'{"result":{"padding":"' + b"x" * SERVER_CAP + b'"},"jsonrpc":"2.0","id":@ID@}\n'
    variables = env(record=record, settings={"methods": {"prompts/get": {"raw_instead": b64(tail)}}})
    async with running_bridge(
        *server_command("scripted.py"), options=options, listen=["unix", "tcp"], env=variables
    ) as bridge:
        yield Shared(bridge, record)


def padded(id: bytes, size: int) -> bytes:
    """A call that is `size` bytes long without its newline."""
    bare = call(id, b'{"p":""}')
    return bare.replace(b'""', b'"' + b"p" * (size - len(bare)) + b'"')


async def test_a_line_one_byte_over_the_cap_is_refused_and_the_next_is_served(
    small: Shared, transport: int
) -> None:
    """Reported: no cap on stdin, or resynchronising without a word. The asker is told under its id."""
    async with await small.bridge.connect(transport) as client:
        # Measured as written to the server: the id of one digit there may be longer than here.
        await client.send(padded(b'"to the brim"', CAP) + b"\n")
        assert "result" in await client.response("to the brim")
        lines = [padded(b"8", CAP + 1), padded(b"9", CAP + 2000), padded(b"10", CAP * 10)]
        await client.send(b"\n".join(lines) + b"\n", modern_request("tools/list", id=11))
        for id in (8, 9, 10):
            assert error_of(await client.recv() | {"id": id}) == (-31004, "message_too_large", False)
        assert (await client.recv())["id"] == 11
    longest = max(len(line) for line in small.record.read_bytes().split(b"\n"))
    assert longest <= CAP


async def test_the_id_of_a_line_over_the_cap_is_found_at_its_end_too(small: Shared) -> None:
    async with await small.bridge.connect(0) as client:
        params = b'{"_meta":%s,"p":"%s"}' % (META, b"p" * CAP * 3)
        await client.send(b'{"method":"tools/list","params":%s,"id":"tail","jsonrpc":"2.0"}\n' % params)
        assert error_of(await client.response("tail")) == (-31004, "message_too_large", False)


def memory_kib(pid: int) -> int:
    """The most memory a process has had, in KiB."""
    found = re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1])


async def test_an_endless_line_is_answered_at_once_and_never_buffered(small: Shared, transport: int) -> None:
    async with await small.bridge.connect(transport) as client:
        await still_served(client)
        before = memory_kib(small.bridge.pid)
        await client.send(padded(b"1", CAP * 2)[: CAP * 2])
        assert error_of(await client.response(1)) == (-31004, "message_too_large", False)
        for _ in range(32):
            await client.send(b"x" * 1024 * 1024)
        await client.send(b"\n")
        await still_served(client)
    assert memory_kib(small.bridge.pid) - before < 8 * 1024


async def test_a_response_over_the_cap_costs_its_asker_an_error_and_nobody_else_anything(
    small: Shared, transport: int
) -> None:
    """Reported: registration hangs, or the reader dies, when a list result is long."""
    async with await small.bridge.connect(transport) as client:
        assert "result" in await client.call("do", size=SERVER_CAP - 1000)
        answer = await client.call("do", size=SERVER_CAP, id="too long")
        assert error_of(answer) == (-31004, "message_too_large", True)
        await still_served(client)


async def test_an_endless_line_of_the_server_is_skipped_without_being_buffered(small: Shared) -> None:
    async with await small.bridge.connect(0) as client:
        await still_served(client)
        before = memory_kib(small.bridge.pid)
        answer = await client.call("do", size=48 * 1024 * 1024, id=1)
        assert error_of(answer) == (-31004, "message_too_large", True)
        await still_served(client)
        assert memory_kib(small.bridge.pid) - before < 16 * 1024


async def test_an_overlong_response_with_its_id_at_the_end_settles_its_asker(small: Shared) -> None:
    async with await small.bridge.connect(0) as client:
        answer = await client.request("prompts/get", {"name": "long"}, id="tail")
        assert error_of(answer) == (-31004, "message_too_large", True)
        await still_served(client)


async def test_answers_of_a_mebibyte_and_of_thirty_pass(shared: Shared, transport: int) -> None:
    """Reported: a reader's default of 64 KiB a line killed connections at long results."""
    async with await shared.bridge.connect(transport) as client:
        for size in (1, 30):
            answer = await client.call("do", size=size * 1024 * 1024)
            assert answer["result"]["padding"] == "x" * size * 1024 * 1024


async def test_a_request_of_nine_mebibytes_passes(unix_client: RawClient) -> None:
    text = "y" * 9 * 1024 * 1024
    assert content(await unix_client.call("do", text=text))["arguments"] == {"text": text}


# Strangers.


async def test_a_client_that_frames_with_content_length_is_told_so_and_its_body_is_read(
    shared: Shared,
) -> None:
    """Reported: Content-Length framing as in LSP was used instead of newlines."""
    async with await shared.bridge.connect(0) as client:
        body = encode(modern_request("tools/list", id=1)).rstrip()
        await client.send(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        assert error_of(await client.recv()) == (-32700, "parse_error", False)
        await client.expect_nothing(0.05)  # its line has not ended
        client.half_close()
        assert [json.loads(line)["id"] for line in await client.expect_eof()] == [1]


@pytest.mark.parametrize(
    "first",
    [
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 300\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"Content-Length: 12\r\n\r\n",
        b"\n",
        b" ",
        b"[",
    ],
    ids=["HTTP POST", "HTTP GET", "TLS hello", "Content-Length", "blank line", "space", "batch"],
)
async def test_on_tcp_a_first_byte_other_than_a_brace_cuts_the_connection(
    shared: Shared, first: bytes
) -> None:
    """A web page can have a browser POST to a local port; the request in its body must never run."""
    mark = f"stranger {first!r}".encode().hex()
    async with await shared.bridge.connect(1) as client:
        await client.send(first, modern_request("tools/call", {"name": mark}, id=1))
        answers = [json.loads(line) for line in await client.expect_eof()]
        assert all("id" not in answer for answer in answers)
    async with await shared.bridge.connect(1) as other:
        await still_served(other)
    assert mark.encode() not in shared.record.read_bytes()


async def test_on_tcp_one_byte_is_enough_to_be_cut(shared: Shared) -> None:
    async with await shared.bridge.connect(1) as client:
        await client.send(b"P")
        await client.expect_eof()


# Noise on stdout.


async def test_what_a_server_must_not_write_reaches_nobody_and_loses_nothing(tmp_path: Path) -> None:
    """Reported: a log line on stdout ended the connection; or noise was swallowed without a trace."""
    async with running_bridge(*server_command("garbage.py"), listen=["unix", "tcp"]) as bridge:
        for index in (0, 1):
            async with await bridge.connect(index) as client:
                for id in range(8):
                    seen = content(await client.call("do", id=id, n=id))
                    assert seen["arguments"] == {"n": id}
                assert client.unread == []
                await client.expect_nothing(0.05)
        assert await bridge.wait_log("Starting garbage server")
        noise = [line for line in bridge.stderr_text().splitlines() if "is no message" in line]
        assert 1 <= len(noise) <= 10, "rate-limited"


async def test_half_a_line_at_a_crash_is_never_joined_to_the_next_servers_first_line(tmp_path: Path) -> None:
    """Whatever the next process says first: joined, the two would make a line of their own."""
    banners = (b"", b'"}}\n', b'"}]}}\n', b"ready\n")
    settings: list[dict[str, str]] = [{}] + [{"banner": b64(banner)[0]} for banner in banners]
    variables = env(starts=tmp_path / "starts", settings=settings)
    async with (
        running_bridge(*server_command("scripted.py"), env=variables) as bridge,
        await bridge.connect() as client,
    ):
        for number in range(len(banners)):
            await client.start_call("do", crash={"when": "mid"}, id="x", text="to be cut")
            assert error_of(await client.recv()) == (-31001, "server_exited", True)
            assert content(await client.call("do", id="y"))["start"] == number + 2
            assert client.unread == []


async def test_a_whole_answer_without_its_newline_counts_when_the_server_ends() -> None:
    async with running_bridge(*server_command("scripted.py")) as bridge, await bridge.connect() as client:
        raw = b'{"jsonrpc":"2.0","id":@ID@,"result":{"last":true}}'
        await client.start_call("do", raw_instead=b64(raw), crash={"when": "after", "code": 0}, id=1)
        assert (await client.recv())["result"] == {"last": True}


async def test_an_answer_cut_in_three_writes_is_one_answer(unix_client: RawClient) -> None:
    raw = (b'{"jsonrpc":"2.0",', b'"id":@ID@,"resu', b'lt":{}}\n{"jsonrpc"')
    await unix_client.start_call("do", raw_before=b64(*raw), raw_instead=b64(b':"2.0","method":"x"}\n'), id=1)
    assert (await unix_client.recv())["id"] == 1
    await still_served(unix_client)
