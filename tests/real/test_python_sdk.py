"""Two clients of the official Python SDK 2.x share published servers through the bridge.

All SDK clients begin with the same ids and use the id as progress token, so anything that is told apart by
what a client wrote would get mixed up here at once.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp_types import TextContent

from tests.real.servers import QUESTIONS, Part, git_part, time_part
from tests.support.bridge import RunningBridge, running_bridge
from tests.support.client import modern_request
from tests.support.sdk import connect_command, script, socket_transport

pytestmark = pytest.mark.real

# Requests each client has in flight at the same time: half of all the questions, so that none is asked twice.
CALLS = QUESTIONS // 2
# A whole test's work takes a second or two; servers written in Python start slowly on a busy machine.
TIMEOUT = 60.0
# A line over 10 MiB ends some servers; the bridge's default limit is just below.
OVERLONG = 12_000_000

Sent = list[dict[str, Any]]
Target = AbstractAsyncContextManager[Any] | StdioServerParameters


PARTS = {"git": git_part, "time": time_part}


@asynccontextmanager
async def reachable(part: Part, way: str) -> AsyncIterator[Callable[[Sent], Target]]:
    """A bridge before `part`, and what makes a client's way to it: "unix", "tcp" or "connect"."""
    async with running_bridge(*part.command, listen="tcp" if way == "tcp" else "unix") as bridge:
        if way == "connect":
            yield lambda _: connect_command(bridge.address)
        else:
            yield lambda sent: socket_transport(bridge.address, sent)


async def ask_all(client: Client, part: Part, questions: range) -> None:
    """Ask all questions at once; each answer must be its own, under whatever id."""

    async def progress(progress: float, total: float | None, message: str | None) -> None:
        raise AssertionError("these servers report no progress")

    async def ask(number: int) -> None:
        tool, arguments, expected = part.ask(number)
        result = await client.call_tool(tool, arguments, progress_callback=progress)
        text = "".join(block.text for block in result.content if isinstance(block, TextContent))
        assert not result.is_error, text
        assert expected in text

    async with asyncio.TaskGroup() as tasks:
        for number in questions:
            tasks.create_task(ask(number))


def check_premise(first: Sent, second: Sent) -> None:
    """What makes these tests worth something, no choice of ours: the clients used the same ids and tokens."""
    used: list[set[int]] = []
    for sent in (first, second):
        calls = [message for message in sent if message.get("method") == "tools/call"]
        assert all(call["params"]["_meta"]["progressToken"] == call["id"] for call in calls)
        used.append({call["id"] for call in calls})
    # Not all: in between the SDK lists the tools, whenever it needs a schema, with an id from the same count.
    assert len(used[0] & used[1]) >= CALLS // 2


@pytest.mark.parametrize("way", ["unix", "tcp", "connect"])
@pytest.mark.parametrize("name", PARTS)
async def test_two_sdk_clients_each_get_their_own_results(name: str, way: str, tmp_path: Path) -> None:
    """Contract, "the sentence at the top"; ids and tokens: spec 2026-07-28, basic, "Requests"."""
    part = PARTS[name](tmp_path, "")
    first: Sent = []
    second: Sent = []
    async with (
        asyncio.timeout(TIMEOUT),
        reachable(part, way) as target,
        Client(target(first)) as one,
        Client(target(second)) as two,
    ):
        assert one.protocol_version == two.protocol_version == "2026-07-28"
        for _ in range(2):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(ask_all(one, part, range(CALLS)))
                tasks.create_task(ask_all(two, part, range(CALLS, 2 * CALLS)))
    if way != "connect":
        check_premise(first, second)


async def test_two_sdk_clients_each_get_the_progress_of_their_own_requests() -> None:
    """Contract, "Server to client"; spec 2026-07-28, basic/patterns/progress: tokens are the asker's own."""
    steps = 5

    async def count(client: Client, label: str) -> None:
        reported: list[tuple[float, str | None]] = []

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            reported.append((progress, message))

        arguments = {"label": label, "steps": steps}
        result = await client.call_tool("count", arguments, progress_callback=progress)
        assert [block.text for block in result.content if isinstance(block, TextContent)] == [label]
        assert reported == [(step, f"{label}/{step}") for step in range(1, steps + 1)]

    server = Path(__file__).with_name("progress_server.py")
    sent: tuple[Sent, Sent] = ([], [])
    async with (
        asyncio.timeout(TIMEOUT),
        running_bridge(sys.executable, str(server)) as bridge,
        Client(socket_transport(bridge.address, sent[0])) as one,
        Client(socket_transport(bridge.address, sent[1])) as two,
        asyncio.TaskGroup() as tasks,
    ):
        for number in range(CALLS):
            tasks.create_task(count(one, f"one-{number}"))
            tasks.create_task(count(two, f"two-{number}"))
    check_premise(*sent)


async def test_a_client_that_leaves_in_the_middle_does_not_disturb_the_other(tmp_path: Path) -> None:
    """Contract, "Clients: leaving": what it had in flight is cancelled, everybody else goes on."""
    part = git_part(tmp_path, "")
    async with asyncio.timeout(TIMEOUT), reachable(part, "unix") as target, Client(target([])) as staying:
        for _ in range(5):
            async with Client(target([])) as leaving:
                tool, arguments, _expected = part.ask(0)
                pending = [asyncio.create_task(leaving.call_tool(tool, arguments)) for _ in range(4)]
                await ask_all(staying, part, range(2))
            await asyncio.gather(*pending, return_exceptions=True)
        await ask_all(staying, part, range(CALLS))


# What a Go server dies of, and what other servers answer with an error to everybody; then what looks odd
# and is allowed.
HOSTILE: dict[str, bytes] = {
    "not JSON": b"{not json",
    "no object": b'"hello"',
    "a batch": b'[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"ping"}]',
    "an empty batch": b"[]",
    "an empty object": b"{}",
    "no jsonrpc member": b'{"id":1,"method":"tools/list"}',
    "truncated JSON": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{',
    "id true": b'{"jsonrpc":"2.0","id":true,"method":"tools/list"}',
    "id object": b'{"jsonrpc":"2.0","id":{},"method":"tools/list"}',
    "id array": b'{"jsonrpc":"2.0","id":[1],"method":"tools/list"}',
    "id fraction": b'{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}',
    "id null": b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}',
    "method number": b'{"jsonrpc":"2.0","id":1,"method":7}',
    "a blank line": b" \t\r",
    "bad UTF-8": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"\xff\xfe"}}',
    "a duplicate id": b'{"jsonrpc":"2.0","id":7,"method":"tools/list","id":8}',
    "a response to nothing": b'{"jsonrpc":"2.0","id":424242,"result":{}}',
    "an error to nothing": b'{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":"m"}}',
    "a header": b"Content-Length: 12\r\n\r",
    "deep nesting": b'{"jsonrpc":"2.0","id":1,"method":"x","params":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "an over-long line": b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"x":"' + b"y" * OVERLONG + b'"}}',
}
BEYOND_DOUBLE = 2**53 + 1


@asynccontextmanager
async def grafana() -> AsyncIterator[tuple[RunningBridge, Client]]:
    """A bridge before mcp-grafana, which is written in Go, and one well-behaved client."""
    environment = {"DO_NOT_TRACK": "1", "GRAFANA_URL": "http://127.0.0.1:9"}  # nothing listens there
    async with (
        running_bridge(script("mcp-grafana"), env=environment) as bridge,
        Client(socket_transport(bridge.address)) as neighbour,
    ):
        yield bridge, neighbour


async def still_served(bridge: RunningBridge, neighbour: Client, pid: int) -> None:
    """The same server process answers a client that did nothing wrong."""
    # There is no Grafana behind it, so the tool fails; that the server says so shows that it was asked.
    result = await neighbour.call_tool("list_datasources", {})
    assert result.is_error
    assert bridge.server_pids("mcp-grafana") == [pid]


async def test_a_hostile_client_cannot_end_a_go_server_that_another_client_uses() -> None:
    """Contract, "Client to server": nothing malformed reaches the server, which exits on most of this."""
    async with asyncio.timeout(TIMEOUT), grafana() as (bridge, neighbour):
        assert len((await neighbour.list_tools()).tools) > 50
        [pid] = bridge.server_pids("mcp-grafana")
        for name, line in HOSTILE.items():
            async with await bridge.connect() as hostile:
                await hostile.send(line + b"\n")
                # Sent on the same connection after it: its response says that the line was dealt with.
                answer = await hostile.request("tools/list", id="after")
                assert "result" in answer, (name, answer)
            await still_served(bridge, neighbour, pid)


async def test_odd_but_legal_lines_are_answered_by_a_go_server() -> None:
    """Contract, "Client to server": ids come back as they were, CRLF is white space, ids may repeat."""
    async with asyncio.timeout(TIMEOUT), grafana() as (bridge, neighbour):
        await neighbour.list_tools()
        [pid] = bridge.server_pids("mcp-grafana")
        async with await bridge.connect() as odd:
            for id in (BEYOND_DOUBLE, -7, 0, "", "1", 'a"b'):
                assert "result" in await odd.request("tools/list", id=id)
            await odd.send(modern_request("tools/list", id=1), modern_request("tools/list", id=1))
            assert "result" in await odd.response(1)
            assert "result" in await odd.response(1)
            crlf = b'{"jsonrpc":"2.0",\r"id":2,"method":"server/discover","params":%s}\r\n'
            meta = b'{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
            meta += b'"io.modelcontextprotocol/clientInfo":{"name":"odd","version":"1"},'
            meta += b'"io.modelcontextprotocol/clientCapabilities":{}}}'
            await odd.send(crlf % meta)
            assert "result" in await odd.response(2)
        await still_served(bridge, neighbour, pid)
