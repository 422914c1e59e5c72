"""Processes in which SDKs run that cannot run in the tests' own: TypeScript 1.x and 2.x, Python 1.x.

A driver holds any number of clients, each under a number of the test's. It takes one JSON object a line and
answers each with one, by its "id":

    open      handle, and how: `address` (Python) or `sdk`, `mode`, `command`, `env` (TypeScript), and
              `confirm`, what it says when it is asked for input; or `name`: a client of that name, which
              answers with it whatever a server asks; gives "version", the protocol version
    ask       handle, `calls`: [[TOOL, ARGUMENTS], ...], all at once; gives "answers": for each {"text"}, or
              {"code", "message", "data"} of an error
    give_up   handle, `tool`: call it, and cancel the call as soon as it reports progress
    listen    handle, `filter`; gives "granted"
    events    handle, `count`: wait until there are so many; gives "events" and forgets them. What changed and
              what the client was asked for
    unlisten  handle: end the subscription
    close     handle

An operation that an error ends is answered with {"refused": {"code", "message", "data"}}.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.setup_parts import NODE_PARTS, SDK1_VENV, node_home, venv_python
from tests.support.bridge import ROOT

Json = dict[str, Any]

# A client that starts on a busy machine and asks once; a pass never waits for it.
TIMEOUT = 20.0
# The answers of some servers are long lines.
LINE_LIMIT = 1 << 26


class Refused(Exception):
    """A client, or one of its requests, got an error: code (None if the SDK's own has none), text, data."""

    def __init__(self, code: int | str | None, message: str, data: Any) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.data = data


class Driver:
    """A running driver. Its clients go with it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._ids = itertools.count(1)
        self._handles = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Json]] = {}
        self._reading = asyncio.create_task(self._read())

    async def do(self, op: str, **members: Any) -> Json:
        """Have the driver do something and return its answer; raises Refused, TimeoutError."""
        assert self._process.stdin is not None
        id = next(self._ids)
        future = self._pending[id] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(json.dumps({"id": id, "op": op, **members}).encode() + b"\n")
        try:
            async with asyncio.timeout(TIMEOUT):
                answer: Json = await future
        finally:
            del self._pending[id]
        if "refused" in answer:
            raise Refused(**answer["refused"])
        return answer

    @asynccontextmanager
    async def client(self, **how: Any) -> AsyncIterator[DrivenClient]:
        """A client of this driver, connected; raises Refused."""
        handle = next(self._handles)
        opened = await self.do("open", handle=handle, **how)
        try:
            yield DrivenClient(self, handle, opened["version"])
        finally:
            await self.do("close", handle=handle)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            answer = json.loads(line)
            future = self._pending.get(answer.pop("id"))
            if future is not None and not future.done():
                future.set_result(answer)
        for future in self._pending.values():
            if not future.done():
                future.set_exception(EOFError("the driver has ended"))

    async def end(self) -> None:
        """End the driver and its clients; AssertionError if it does not end well."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            async with asyncio.timeout(TIMEOUT):
                assert await self._process.wait() == 0
                await self._reading
        finally:
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading


class DrivenClient:
    """One client of a driver; `version` is the protocol version it speaks."""

    def __init__(self, driver: Driver, handle: int, version: str) -> None:
        self._driver = driver
        self._handle = handle
        self.version = version

    async def ask(self, calls: Sequence[tuple[str, Json]]) -> list[str | Refused]:
        """Call tools, all at once; for each the text of its result, or the error."""
        answer = await self._driver.do("ask", handle=self._handle, calls=calls)
        return [reply["text"] if "text" in reply else Refused(**reply) for reply in answer["answers"]]

    async def give_up(self, tool: str) -> None:
        """Call a tool, and cancel the call as soon as it reports progress."""
        await self._driver.do("give_up", handle=self._handle, tool=tool)

    async def listen(self, filter: Json) -> Json:
        """Open a subscription; returns what the server granted."""
        granted: Json = (await self._driver.do("listen", handle=self._handle, filter=filter))["granted"]
        return granted

    async def events(self, count: int) -> list[str]:
        """Wait for so many and return all there were: "updated URI", "tools", or what it was asked for."""
        events: list[str] = (await self._driver.do("events", handle=self._handle, count=count))["events"]
        return events

    async def unlisten(self) -> None:
        """End the subscription."""
        await self._driver.do("unlisten", handle=self._handle)


@asynccontextmanager
async def _running(command: Sequence[str]) -> AsyncIterator[Driver]:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=LINE_LIMIT
    )
    driver = Driver(process)
    try:
        yield driver
    finally:
        await driver.end()


def node() -> str:
    """The Node.js of the test environment."""
    return str(node_home() / "bin" / "node")


def npm_part(path: str) -> str:
    """A file of the installed npm packages, for example `@scope/name/dist/index.js`."""
    return str(NODE_PARTS / "node_modules" / path)


def typescript_driver() -> contextlib.AbstractAsyncContextManager[Driver]:
    """A driver with clients of the TypeScript SDKs 1.x and 2.x."""
    return _running([node(), str(NODE_PARTS / "driver.mjs")])


def python1_driver() -> contextlib.AbstractAsyncContextManager[Driver]:
    """A driver with clients of the Python SDK 1.x."""
    return _running([str(venv_python(SDK1_VENV)), str(Path(__file__).with_name("sdk1_driver.py"))])


def shim_environment() -> dict[str, str]:
    """What a client must hand down to `mcp-bridge connect`: a checkout need not be installed to be tested."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path}
