"""A public JSON test suite through a real bridge, all in one connection: the table holds there, too."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.support.bridge import running_bridge, server_command
from tests.support.client import MODERN_META
from tests.support.json_test_suite import cases, read

META = json.dumps(dict(MODERN_META)).encode()


def call(id: int, value: bytes) -> bytes:
    """A request that brings `value` along."""
    return b'{"jsonrpc":"2.0","id":%d,"method":"x","params":{"n":%d,"v":%s,"_meta":%s}}\n' % (
        id,
        id,
        value,
        META,
    )


async def test_each_file_of_a_json_test_suite_is_refused_or_comes_to_the_server_as_it_is(
    tmp_path: Path,
) -> None:
    """Behind each file a good request, since ten bad lines in a row would end the connection."""
    record = tmp_path / "record"
    suite = cases()
    expected = [code for case in suite for code in (*case.line, *errors(case.member))]
    command = server_command("echo.py")
    async with (
        running_bridge(*command, env={"RECORD": str(record)}) as bridge,
        await bridge.connect() as client,
    ):

        async def write() -> None:
            for number, case in enumerate(suite):
                good = call(3 * number, b"0"), call(3 * number + 1, b"0")
                await client.send(case.data + b"\n", good[0], call(3 * number + 2, case.value), good[1])
            await client.send(call(3 * len(suite), b'"the end"'))

        writing = asyncio.create_task(write())
        refused = []
        answered = 0
        # The good ones, those passed on, the last one; refusals come in between.
        wanted = 2 * len(suite) + sum(case.member == "passed on" for case in suite) + 1
        while answered < wanted:
            message = await client.recv()
            if "error" in message and message["error"]["code"] in (-32700, -32600):
                refused.append(message["error"]["code"])
            else:
                answered += 1
        await writing
    assert refused == expected
    seen = {}
    for line in record.read_bytes().splitlines():
        message = read(line)
        if message.get("method") == "x":
            seen[int(message["params"]["n"])] = message["params"]["v"]
    for number, case in enumerate(suite):
        if case.member == "passed on":
            assert seen.pop(3 * number + 2) == read(case.value), case.name
    assert not any(number % 3 == 2 for number in seen)


def errors(outcome: str | list[int]) -> list[int]:
    return [] if isinstance(outcome, str) else outcome
