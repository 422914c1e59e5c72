"""The harness itself: a test that relies on it must fail when it should, and its servers do what they say."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.bridge import BridgeExited, RunningBridge, running_bridge, server_command, wait_until
from tests.support.client import Closed, NoMessage, RawClient, encode, modern_request, subscription_of


@asynccontextmanager
async def raw_pair() -> AsyncIterator[tuple[RawClient, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A raw client and the other end of its connection."""
    ends: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ends.put((reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with await RawClient.connect(f"tcp:127.0.0.1:{port}") as client:
        reader, writer = await ends.get()
        yield client, reader, writer
    writer.close()
    server.close()


async def test_messages_nobody_wanted_yet_stay_in_order_for_later_calls() -> None:
    async with raw_pair() as (client, _, writer):
        for number in range(3):
            writer.write(encode({"jsonrpc": "2.0", "method": "x", "params": {"n": number}}))
        writer.write(encode({"jsonrpc": "2.0", "id": 1, "result": {}}))
        assert (await client.response(1))["result"] == {}
        assert [(await client.recv())["params"]["n"] for _ in range(3)] == [0, 1, 2]


async def test_several_tasks_may_wait_for_different_responses() -> None:
    async with raw_pair() as (client, _, writer):
        waiting = [asyncio.create_task(client.response(id)) for id in (1, "1", 2)]
        await asyncio.sleep(0)
        for id in (2, "1", 1):
            writer.write(encode({"jsonrpc": "2.0", "id": id, "result": {"for": repr(id)}}))
        answers = await asyncio.gather(*waiting)
        assert [answer["result"]["for"] for answer in answers] == ["1", "'1'", "2"]


async def test_an_id_of_another_type_is_no_response() -> None:
    async with raw_pair() as (client, _, writer):
        for id in (True, 1.0, "1"):
            writer.write(encode({"jsonrpc": "2.0", "id": id, "result": {}}))
        with pytest.raises(NoMessage):
            await client.response(1, timeout=0.2)


async def test_expect_nothing_fails_for_a_message_and_for_the_end() -> None:
    async with raw_pair() as (client, _, writer):
        await client.expect_nothing(0.05)
        writer.write(b'{"method":"x"}\n')
        with pytest.raises(AssertionError, match="expected nothing"):
            await client.expect_nothing(5)
        writer.close()
        with pytest.raises(Closed):
            await client.expect_nothing(5)


async def test_the_end_is_seen_after_the_lines_before_it() -> None:
    async with raw_pair() as (client, _, writer):
        writer.write(b'{"a":1}\nhalf')
        writer.close()
        assert await client.expect_eof() == [b'{"a":1}']


async def test_a_line_that_is_not_json_fails_the_test_that_reads_it() -> None:
    async with raw_pair() as (client, _, writer):
        writer.write(b"Server ready\n")
        with pytest.raises(AssertionError, match="not JSON"):
            await client.recv()


async def test_a_client_that_is_not_asked_reads_nothing() -> None:
    """So that a test can be a client that never reads, until the other side can write no more."""
    async with raw_pair() as (_, _, writer):
        writer.write(b"x" * 64 * 1024 * 1024)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 0.3)
        writer.transport.abort()


async def test_abort_resets_the_connection_and_half_close_keeps_the_other_direction() -> None:
    async with raw_pair() as (client, reader, writer):
        client.half_close()
        assert await reader.read() == b""
        writer.write(b"{}\n")
        assert await client.recv() == {}
    async with raw_pair() as (client, reader, _):
        client.abort()
        with pytest.raises(ConnectionResetError):
            await reader.read()


FAKE = """
import os, signal, subprocess, sys, time
address = sys.argv[sys.argv.index("--listen") + 1]
{before}
signal.signal(signal.SIGTERM, lambda *_: os._exit({code}))
{after}
sys.stderr.write("listening on " + address + "\\n")
sys.stderr.flush()
while True:
    time.sleep(1)
"""

Fake = Callable[..., AbstractAsyncContextManager[RunningBridge]]


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """Run a stand-in for the package that does what a test wants to be noticed."""
    package = tmp_path / "bridge"
    package.mkdir()
    (package / "__init__.py").touch()

    def run(
        before: str = "", after: str = "", code: int = 0, **options: Any
    ) -> AbstractAsyncContextManager[RunningBridge]:
        text = FAKE.format(before=textwrap.dedent(before), after=textwrap.dedent(after), code=code)
        (package / "__main__.py").write_text(text)
        return running_bridge("server", env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path, **options)

    return run


async def test_a_bridge_that_behaves_passes_and_its_address_is_the_one_it_logged(fake: Fake) -> None:
    async with fake(listen="tcp") as bridge:
        assert bridge.address == "tcp:127.0.0.1:0"
        assert bridge.processes() == {}
    assert bridge.process.returncode == 0


async def test_a_bridge_that_ends_before_it_is_ready_is_reported_with_code_and_log(fake: Fake) -> None:
    with pytest.raises(BridgeExited, match="bad luck") as raised:
        async with fake(before="sys.exit('bad luck')"):
            pass
    assert raised.value.code == 1


@pytest.mark.parametrize("own_session", [False, True])
async def test_a_process_left_behind_fails_the_test_and_is_killed(fake: Fake, own_session: bool) -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    quiet = "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
    found: list[RunningBridge] = []

    async def leave_one() -> None:
        spawn = f"subprocess.Popen({sleeper!r}, start_new_session={own_session}, {quiet})"
        async with fake(before=spawn, leftover_timeout=0.5) as bridge:
            await wait_until(lambda: len(bridge.server_pids("time.sleep(600)")) == 1)
            found.append(bridge)

    with pytest.raises(AssertionError, match="left behind"):
        await leave_one()
    await found[0].no_process_left()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"code": 3}, "exit code 3, expected 0"),
        ({"after": "os.write(1, b'hello')"}, "wrote to stdout"),
        ({"after": "sys.stderr.write('Traceback (most recent call last)\\\\n')"}, "traceback"),
    ],
)
async def test_what_a_bridge_must_not_do_fails_the_test(
    fake: Fake, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(AssertionError, match=said):
        async with fake(**options):
            pass


async def test_a_bridge_that_does_not_stop_fails_the_test_and_is_killed(fake: Fake) -> None:
    with pytest.raises(AssertionError, match="still running"):
        async with fake(after="signal.signal(signal.SIGTERM, signal.SIG_IGN)") as bridge:
            await bridge.stop(timeout=0.5)
    assert bridge.process.returncode == -signal.SIGKILL


class Server:
    """A scripted server on pipes; what it writes is read like a client's messages."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def send(self, *messages: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(map(encode, messages)))
        await self.process.stdin.drain()

    async def line(self) -> bytes:
        assert self.process.stdout is not None
        async with asyncio.timeout(10):
            return await self.process.stdout.readline()

    async def recv(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await self.line())
        return message

    async def call(self, id: Any, tool: str = "do", **arguments: Any) -> None:
        await self.send(modern_request("tools/call", {"name": tool, "arguments": arguments}, id=id))

    async def state(self) -> dict[str, Any]:
        await self.call("state", "state")
        state: dict[str, Any] = (await self.recv())["result"]["structuredContent"]
        return state


@asynccontextmanager
async def server(script: str, *args: str, **env: str) -> AsyncIterator[Server]:
    process = await asyncio.create_subprocess_exec(
        *server_command(script, *args),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **env},
    )
    try:
        yield Server(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_scripted_holds_a_request_until_another_names_it_and_a_cancel_ends_it() -> None:
    async with server("scripted.py") as s:
        await s.call(1, hold="x")
        await s.call(2, hold="y")
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}
        await s.send(cancel)
        state = await s.state()
        assert (state["running"], state["cancelled"]) == ([1], [2])
        await s.call(3, release="x")
        assert {(await s.recv())["id"] for _ in range(2)} == {1, 3}


async def test_scripted_writes_raw_bytes_with_the_id_and_the_token_of_the_request() -> None:
    async with server("scripted.py") as s:
        arguments = {"raw_instead": [b64(b'{"jsonrpc":"2.0","id":@ID@,"result":@TOKEN@}\n')]}
        params = {"name": "do", "arguments": arguments}
        await s.send(modern_request("tools/call", params, id="7", meta={"progressToken": 8}))
        assert await s.line() == b'{"jsonrpc":"2.0","id":"7","result":8}\n'


async def test_scripted_notifies_and_ends_subscriptions() -> None:
    async with server("scripted.py") as s:
        for id in ("a", "b"):
            listen = {"notifications": {"toolsListChanged": True}}
            await s.send(modern_request("subscriptions/listen", listen, id=id))
            assert subscription_of(await s.recv()) == id
        await s.call(1, notify={"method": "notifications/tools/list_changed", "count": 2})
        assert [subscription_of(await s.recv()) for _ in range(4)] == ["a", "b", "a", "b"]
        assert (await s.recv())["id"] == 1
        await s.call(2, end_listen={"how": "both", "to": [1]})
        assert (await s.recv())["params"]["requestId"] == "b"
        ended = await s.recv()
        assert (ended["id"], subscription_of(ended)) == ("b", "b")
        assert (await s.recv())["id"] == 2
        assert [listen["id"] for listen in (await s.state())["listens"]] == ["a"]


@pytest.mark.parametrize(
    ("crash", "status", "written"),
    [
        ({"when": "before", "code": 3}, 3, "nothing"),
        ({"when": "mid", "code": 0}, 0, "half"),
        ({"when": "after", "signal": 9}, -9, "all"),
    ],
)
async def test_scripted_crashes_when_it_is_told_to(crash: dict[str, Any], status: int, written: str) -> None:
    async with server("scripted.py") as s:
        await s.call(1, crash=crash)
        line = await s.line()
        assert await s.process.wait() == status
        seen = "all" if line.endswith(b"\n") else "half" if line else "nothing"
        assert seen == written


async def test_scripted_takes_scripts_for_other_methods_from_earlier_calls_and_from_its_settings() -> None:
    settings = {"methods": {"tools/list": {"error": {"code": 1, "message": "scripted"}}}}
    async with server("scripted.py", SCRIPT=json.dumps(settings)) as s:
        await s.send(modern_request("tools/list", id=1))
        assert (await s.recv())["error"]["code"] == 1
        await s.call(2, next={"prompts/list": {"result": {"n": 2}}})
        await s.recv()
        await s.send(modern_request("prompts/list", id=3))
        assert (await s.recv())["result"] == {"n": 2}


async def test_scripted_counts_its_starts_and_has_settings_for_each(tmp_path: Path) -> None:
    env = {"STARTS": str(tmp_path / "starts"), "SCRIPT": json.dumps([{"exit": 4}, {}])}
    async with server("scripted.py", **env) as s:
        assert await s.process.wait() == 4
    for start in (2, 3):
        async with server("scripted.py", **env) as s:
            assert (await s.state())["start"] == start


async def test_scripted_closes_stdin_and_lives_on() -> None:
    async with server("scripted.py") as s:
        await s.call(1, close_stdin=True)
        await s.recv()

        async def write_until_it_fails() -> None:
            for _ in range(1000):
                await s.call(2)
                await asyncio.sleep(0.01)

        with pytest.raises(ConnectionError):
            await write_until_it_fails()
        assert s.process.returncode is None


@pytest.mark.parametrize(("code", "status"), [("0", 0), ("7", 7), ("-9", -9)])
async def test_crash_ends_at_once_with_what_it_is_told(code: str, status: int) -> None:
    async with server("crash.py", code) as s:
        assert await s.process.wait() == status


async def test_crash_serves_the_first_starts(tmp_path: Path) -> None:
    starts = str(tmp_path / "starts")
    async with server("crash.py", "5", "1", STARTS=starts) as s:
        await s.call(1)
        assert (await s.recv())["result"]["structuredContent"]["start"] == 1
        await s.call(2, "exit")
        assert await s.process.wait() == 5
    async with server("crash.py", "5", "1", STARTS=starts) as s:
        assert await s.process.wait() == 5


async def test_deaf_survives_the_end_of_its_input_and_sigterm() -> None:
    async with server("deaf.py") as s:
        await s.call(1)
        await s.recv()
        assert s.process.stdin is not None
        s.process.stdin.close()
        s.process.terminate()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(s.process.wait(), 0.3)


async def test_silent_reads_and_records_and_says_nothing(tmp_path: Path) -> None:
    record = tmp_path / "record"
    async with server("silent.py", RECORD=str(record)) as s:
        await s.call(1)
        await wait_until(lambda: record.exists() and record.read_bytes().endswith(b"\n"))
        assert s.process.stdin is not None
        s.process.stdin.close()
        assert await s.line() == b""
        assert await s.process.wait() == 0


async def test_echo_answers_and_records_what_it_receives(tmp_path: Path) -> None:
    record = tmp_path / "record"
    async with server("echo.py", RECORD=str(record)) as s:
        await s.call(1, "x", a=[1])
        seen = (await s.recv())["result"]["structuredContent"]
        assert seen == {"name": "x", "arguments": {"a": [1]}, "pid": s.process.pid}
        assert json.loads(record.read_bytes())["id"] == 1


async def test_garbage_has_an_answer_in_all_its_noise() -> None:
    async with server("garbage.py") as s:
        await s.call(77)
        assert s.process.stdin is not None
        s.process.stdin.close()
        assert s.process.stdout is not None
        lines = (await s.process.stdout.read()).split(b"\n")
        answers = [line for line in lines if line.startswith(b'\xef\xbb\xbf{"jsonrpc": "2.0", "id": 77')]
        assert len(answers) == 1
        assert len(lines) > 15
