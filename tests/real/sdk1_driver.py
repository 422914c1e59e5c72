"""Clients of the official Python SDK 1.x that the tests drive: run by the Python of `.venv-sdk1`.

One JSON object a line on stdin, one on stdout for each, by its "id"; what each operation takes and gives
stands in `drivers.py`. A client is a `ClientSession` over a socket: this SDK has no transport for that, but
takes any pair of message streams.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

# The checks of types run in the environment of SDK 2.x, where these have other signatures.
mcp: Any = importlib.import_module("mcp")
message_module: Any = importlib.import_module("mcp.shared.message")
types: Any = importlib.import_module("mcp.types")

READ_SIZE = 65536


@asynccontextmanager
async def streams(address: str) -> AsyncIterator[tuple[Any, Any]]:
    """One connection to `unix:/path`, as the pair of streams that a `ClientSession` takes."""
    connection = await anyio.connect_unix(address.removeprefix("unix:"))
    to_client, client_reads = anyio.create_memory_object_stream[Any](0)
    client_writes, from_client = anyio.create_memory_object_stream[Any](0)

    async def read() -> None:
        partial = b""
        async with to_client:
            try:
                while True:
                    *lines, partial = (partial + await connection.receive(READ_SIZE)).split(b"\n")
                    for line in lines:
                        message = types.JSONRPCMessage.model_validate_json(line)
                        await to_client.send(message_module.SessionMessage(message))
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # one of the two has ended the connection

    async def write() -> None:
        async with from_client:
            async for message in from_client:
                body = message.message.model_dump_json(by_alias=True, exclude_none=True)
                await connection.send(body.encode() + b"\n")

    async with connection, client_reads, client_writes, anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        yield client_reads, client_writes
        tasks.cancel_scope.cancel()


def refusal(error: Any) -> dict[str, Any]:
    return {"code": error.error.code, "message": error.error.message, "data": error.error.data}


class Answers:
    """What a client called `name` answers to whatever a server asks; it notes in `events` what that was."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.events: list[str] = []

    async def _work(self, context: Any, kind: str) -> None:
        self.events.append(kind)
        if context.meta is not None and context.meta.progressToken is not None:
            await context.session.send_progress_notification(context.meta.progressToken, 1)

    async def sample(self, context: Any, params: Any) -> Any:
        await self._work(context, "sampling")
        text = types.TextContent(type="text", text=f"sampled by {self._name}")
        return types.CreateMessageResult(role="assistant", content=text, model="none")

    async def elicit(self, context: Any, params: Any) -> Any:
        if params.mode == "url":
            await self._work(context, f"url {params.url}")
            return types.ElicitResult(action="accept")
        await self._work(context, "form")
        return types.ElicitResult(action="accept", content={"name": self._name})

    async def roots(self, context: Any) -> Any:
        await self._work(context, "roots")
        return types.ListRootsResult.model_validate({"roots": [{"uri": f"file:///{self._name}"}]})

    def session(self) -> dict[str, Any]:
        """How a `ClientSession` is told of them."""
        return {
            "client_info": types.Implementation(name=self._name, version="1.0.0"),
            "sampling_callback": self.sample,
            "elicitation_callback": self.elicit,
            "list_roots_callback": self.roots,
        }


class Opened:
    """A client, whose whole life is one task: the SDK must leave its contexts where it entered them."""

    def __init__(self, address: str, name: str | None) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[str] = loop.create_future()
        self._done = asyncio.Event()
        self._session: Any = None
        self.answers = None if name is None else Answers(name)
        self._life = asyncio.create_task(self._live(address))

    async def _live(self, address: str) -> None:
        try:
            how = {} if self.answers is None else self.answers.session()
            async with streams(address) as (read, write), mcp.ClientSession(read, write, **how) as session:
                self._session = session
                self.ready.set_result((await session.initialize()).protocolVersion)
                await self._done.wait()
        except Exception as error:
            if self.ready.done():
                raise
            self.ready.set_exception(error)

    async def ask(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            result = await self._session.call_tool(name, arguments)
        except mcp.McpError as error:
            return refusal(error)
        return {"text": "".join(getattr(block, "text", "") for block in result.content)}

    async def close(self) -> None:
        self._done.set()
        await self._life


class Driver:
    def __init__(self) -> None:
        self._clients: dict[int, Opened] = {}

    async def open(self, handle: int, address: str, name: str | None = None) -> dict[str, Any]:
        opened = Opened(address, name)
        version = await opened.ready
        self._clients[handle] = opened
        return {"version": version}

    async def ask(self, handle: int, calls: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
        client = self._clients[handle]
        return {"answers": await asyncio.gather(*(client.ask(name, given) for name, given in calls))}

    async def events(self, handle: int, count: int) -> dict[str, Any]:
        answers = self._clients[handle].answers
        assert answers is not None
        assert len(answers.events) >= count, "all that a server asks is asked within a call"
        events, answers.events = answers.events, []
        return {"events": events}

    async def close(self, handle: int) -> dict[str, Any]:
        await self._clients.pop(handle).close()
        return {}

    async def answer(self, line: bytes) -> None:
        request = json.loads(line)
        id, operation = request.pop("id"), request.pop("op")
        try:
            reply = await getattr(self, operation)(**request)
        except BaseExceptionGroup as group:
            reply = {"refused": refusal(_only(group))}
        except mcp.McpError as error:
            reply = {"refused": refusal(error)}
        print(json.dumps({"id": id, **reply}), flush=True)


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception that task groups have wrapped, however often."""
    [error] = group.exceptions
    return _only(error) if isinstance(error, BaseExceptionGroup) else error


async def main() -> None:
    driver = Driver()
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    async with asyncio.TaskGroup() as tasks:
        while line := await reader.readline():
            tasks.create_task(driver.answer(line))


if __name__ == "__main__":
    asyncio.run(main())
