"""Every published client the bridge is tried with: each SDK, each era it speaks, each way to the bridge.

A `ClientKind` opens clients of one such combination; all clients of a kind begin with the same ids.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mcp import Client, MCPError
from mcp_types import TextContent

from tests.real.drivers import TIMEOUT, Driver, Json, Refused, node, npm_part, shim_environment
from tests.support.sdk import connect_command, socket_transport

MODERN = "2026-07-28"
LEGACY = "2025-11-25"

# The bridge's error for an era that is not served.
ERA_NOT_SERVED = -31006


class Opened(Protocol):
    """A connected client."""

    @property
    def version(self) -> str:
        """The protocol version it speaks."""

    async def ask(self, calls: Sequence[tuple[str, Json]]) -> list[str | Refused]:
        """Call tools, all at once; for each the text of its result, or the error."""


@dataclass(frozen=True)
class Surroundings:
    """What clients need to be opened."""

    typescript: Driver
    python1: Driver
    folder: Path


Open = Callable[[Surroundings, str], AbstractAsyncContextManager[Opened]]


@dataclass(frozen=True)
class ClientKind:
    """A kind of client: `eras` are the protocol versions it may settle on, the one it prefers first.

    `open(surroundings, address)` connects one; raises Refused.
    """

    name: str
    eras: tuple[str, ...]
    open: Open


class _Python2:
    """A client of the Python SDK 2.x, which runs in the tests' own process."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.version = client.protocol_version

    async def ask(self, calls: Sequence[tuple[str, Json]]) -> list[str | Refused]:
        return await asyncio.gather(*(self._call(*call) for call in calls))

    async def _call(self, name: str, arguments: Json) -> str | Refused:
        try:
            result = await self._client.call_tool(name, arguments)
        except MCPError as error:
            return refusal(error)
        return "".join(block.text for block in result.content if isinstance(block, TextContent))


def refusal(error: MCPError) -> Refused:
    """The server's error as a client of the Python SDK 2.x raises it."""
    return Refused(error.error.code, error.error.message, error.error.data)


def only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The exception that task groups have wrapped, however often; fails if there are several."""
    [error] = group.exceptions
    return only(error) if isinstance(error, BaseExceptionGroup) else error


def _python2(way: str, mode: str) -> Open:
    @asynccontextmanager
    async def open(_: Surroundings, address: str) -> AsyncIterator[Opened]:
        target = connect_command(address) if way == "connect" else socket_transport(address)
        try:
            async with Client(target, mode=MODERN if mode == "modern" else mode) as client:
                yield _Python2(client)
        except BaseExceptionGroup as group:
            error = only(group)
            raise (refusal(error) if isinstance(error, MCPError) else error) from group

    return open


def _python1(surroundings: Surroundings, address: str) -> AbstractAsyncContextManager[Opened]:
    return surroundings.python1.client(address=address)


def connect_argv(address: str) -> list[str]:
    """`mcp-bridge connect`, as a host's configuration has it."""
    return [sys.executable, "-m", "bridge", "connect", address]


def _typescript(sdk: int, mode: str) -> Open:
    def open(surroundings: Surroundings, address: str) -> AbstractAsyncContextManager[Opened]:
        how = {"sdk": sdk, "mode": mode, "command": connect_argv(address), "env": shim_environment()}
        return surroundings.typescript.client(**how)

    return open


class _Inspector:
    """The Inspector's command line: one process for each call, which connects, calls and ends."""

    def __init__(self, era: str, address: str, folder: Path) -> None:
        self._era = era
        self._address = address
        self._folder = folder
        self._log = Path(tempfile.mkdtemp(dir=folder)) / "written.jsonl"

    @property
    def version(self) -> str:
        """The version its requests named; known once it has asked."""
        for line in self._log.read_text().splitlines():
            message = json.loads(line)
            if message["method"] == "initialize":
                return str(message["params"]["protocolVersion"])
            if message["method"] == "tools/call":
                return str(message["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"])
        raise AssertionError("it has called no tool")

    async def ask(self, calls: Sequence[tuple[str, Json]]) -> list[str | Refused]:
        return await asyncio.gather(*(self._call(*call) for call in calls))

    async def _call(self, name: str, arguments: Json) -> str | Refused:
        # What it writes is put down on its way, since it does not say which era it has settled on.
        down = 'log=$1; shift; { tee /dev/fd/3 3>&1 >>"$log"; } | "$@"'
        spy = ["sh", "-c", down, "sh", str(self._log)]
        command = [node(), npm_part("@modelcontextprotocol/inspector/clients/cli/build/index.js"), "--cli"]
        command += ["--protocol-era", self._era, "--format", "json", "--method", "tools/call"]
        command += ["--tool-name", name, "--tool-args-json", json.dumps(arguments)]
        command += ["--", *spy, *connect_argv(self._address)]
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # It keeps a catalog in the home directory.
            env={**os.environ, **shim_environment(), "HOME": str(self._folder)},
        )
        try:
            async with asyncio.timeout(TIMEOUT):
                stdout, stderr = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return _inspector_answer(stdout.decode(), stderr.decode())


def _inspector_answer(stdout: str, stderr: str) -> str | Refused:
    """What one run of the Inspector has printed: the result on stdout, or an error among stderr's lines."""
    if stdout.strip():
        content = json.loads(stdout)["result"]["content"]
        return "".join(block.get("text", "") for block in content)
    errors = [line for line in stderr.splitlines() if line.startswith('{"error"')]
    assert errors, f"the Inspector has printed neither a result nor an error: {stderr}"
    error = json.loads(errors[-1])["error"]
    return Refused(error["code"], error["message"], None)


def _inspector(era: str) -> Open:
    @asynccontextmanager
    async def open(surroundings: Surroundings, address: str) -> AsyncIterator[Opened]:
        yield _Inspector(era, address, surroundings.folder)

    return open


CLIENTS = (
    ClientKind("python1-socket", (LEGACY,), _python1),
    ClientKind("python2-socket-auto", (MODERN, LEGACY), _python2("socket", "auto")),
    ClientKind("python2-auto", (MODERN, LEGACY), _python2("connect", "auto")),
    ClientKind("python2-legacy", (LEGACY,), _python2("connect", "legacy")),
    ClientKind("python2-pinned", (MODERN,), _python2("connect", "modern")),
    ClientKind("typescript1", (LEGACY,), _typescript(1, "legacy")),
    ClientKind("typescript2-auto", (MODERN, LEGACY), _typescript(2, "auto")),
    ClientKind("typescript2-legacy", (LEGACY,), _typescript(2, "legacy")),
    ClientKind("typescript2-pinned", (MODERN,), _typescript(2, "modern")),
    ClientKind("inspector-auto", (MODERN, LEGACY), _inspector("auto")),
    ClientKind("inspector-legacy", (LEGACY,), _inspector("legacy")),
    ClientKind("inspector-modern", (MODERN,), _inspector("modern")),
)


async def refused(
    kind: ClientKind, surroundings: Surroundings, address: str, call: tuple[str, Json]
) -> Refused:
    """The error a client gets when it connects or, if it does not notice then, when it first calls a tool."""
    try:
        async with kind.open(surroundings, address) as opened:
            [answer] = await opened.ask([call])
    except Refused as refusal:
        return refusal
    assert isinstance(answer, Refused), answer
    return answer
