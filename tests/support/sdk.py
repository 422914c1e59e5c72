"""The official Python SDK (2.x) as a client of the bridge: over a socket, and through `mcp-bridge connect`.

The SDK has no transport for JSON lines on a socket, but takes any async context manager that yields a pair
of message streams: `socket_transport` is one, written as the SDK's own stdio transport is.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp import StdioServerParameters
from mcp.client._transport import TransportStreams
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from tests.support.bridge import ROOT

# As much as the SDK reads from the pipe of a stdio server at once.
_READ_SIZE = 65536


def script(name: str) -> str:
    """The path of a program that `requirements/test.txt` installs; the environment need not be active."""
    return os.path.join(sysconfig.get_path("scripts"), name)


def connect_command(address: str) -> StdioServerParameters:
    """What a host's configuration says to reach the bridge: the SDK starts it as any stdio server."""
    # The SDK hands down only HOME, PATH and the like; a checkout need not be installed to be tested.
    return StdioServerParameters(
        command=sys.executable, args=["-m", "bridge", "connect", address], env={"PYTHONPATH": str(ROOT)}
    )


async def _open(address: str) -> anyio.abc.SocketStream:
    kind, _, rest = address.partition(":")
    if kind == "unix":
        return await anyio.connect_unix(rest)
    host, _, port = rest.rpartition(":")
    return await anyio.connect_tcp(host.strip("[]"), int(port))


@asynccontextmanager
async def socket_transport(
    address: str, sent: list[dict[str, Any]] | None = None
) -> AsyncIterator[TransportStreams]:
    """One connection to `unix:/path` or `tcp:HOST:PORT`, for `mcp.Client(...)`.

    Each message the client sends is also appended to `sent`. A line that is no message reaches the client as
    an exception, as with the SDK's own transports. Raises OSError if it cannot connect.
    """
    stream = await _open(address)
    to_client, client_reads = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    client_writes, from_client = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        partial = b""
        async with to_client:
            try:
                while True:
                    *lines, partial = (partial + await stream.receive(_READ_SIZE)).split(b"\n")
                    for line in lines:
                        await to_client.send(_parse(line))
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # the bridge or the client has ended the connection

    async def write() -> None:
        async with from_client:
            async for message in from_client:
                if sent is not None:
                    sent.append(message.message.model_dump(by_alias=True, exclude_unset=True))
                body = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await stream.send(body.encode() + b"\n")

    async with stream, client_reads, client_writes, anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        try:
            yield client_reads, client_writes
        finally:
            tasks.cancel_scope.cancel()


def _parse(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error
