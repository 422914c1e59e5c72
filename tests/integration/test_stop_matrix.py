"""Every signal in every state: what the bridge exits with, and that it leaves nothing behind (section 8).

One cell of the matrix is one test. A further signal is one more line in `SIGNALS`, a further state one more
function in `STATES`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.bridge import RunningBridge, running_bridge, server_command, wait_until
from tests.support.client import RawClient
from tests.support.scripts import content, env, state_until

# The contract's bound for every path, from the signal to the last process.
BOUND_S = 10.0
# What the bridge would wait for without an end: a signal that skips the drain must not.
NO_DRAIN = ("--drain", "3600")
SHORT = ("--drain", "0.3", "--stop-grace", "0.2")


@dataclass(frozen=True)
class Scene:
    """A bridge in some state, with its clients."""

    bridge: RunningBridge
    clients: tuple[RawClient, ...]


# --- What a signal is sent to


Opener = Callable[[Path, Sequence[str]], contextlib.AbstractAsyncContextManager[Scene]]


@contextlib.asynccontextmanager
async def scripted(
    path: Path, options: Sequence[str], settings: dict[str, Any]
) -> AsyncIterator[tuple[RunningBridge, RawClient]]:
    variables = env(starts=path / "starts", settings=settings)
    async with (
        running_bridge(
            *server_command("scripted.py"), options=options, env=variables, expect_exit=None
        ) as bridge,
        await bridge.connect() as client,
    ):
        yield bridge, client


@contextlib.asynccontextmanager
async def idle(path: Path, options: Sequence[str]) -> AsyncIterator[Scene]:
    async with scripted(path, options, {}) as (bridge, client):
        await client.call("do")
        yield Scene(bridge, (client,))


@contextlib.asynccontextmanager
async def in_flight(path: Path, options: Sequence[str]) -> AsyncIterator[Scene]:
    async with scripted(path, options, {}) as (bridge, client):
        await client.listen(id="l", toolsListChanged=True)
        await client.start_call("do", hold="for ever")
        await state_until(client, lambda seen: len(seen["running"]) == 1)
        yield Scene(bridge, (client,))


@contextlib.asynccontextmanager
async def hung_server(path: Path, options: Sequence[str]) -> AsyncIterator[Scene]:
    """It neither reads nor answers, and heeds neither the end of its input nor SIGTERM."""
    async with scripted(path, options, {"ignore_term": True, "ignore_eof": True}) as (bridge, client):
        await client.start_call("do", stop_reading_ms=60_000, stderr="reads no more", hold="for ever")
        await bridge.wait_log("reads no more")
        yield Scene(bridge, (client,))


@contextlib.asynccontextmanager
async def dead_server(path: Path, options: Sequence[str]) -> AsyncIterator[Scene]:
    """It fails to start, again and again, while somebody waits."""
    command = server_command("crash.py", "3")
    options = [*options, "--max-restarts", "1000"]
    variables = {"STARTS": str(path / "starts")}
    async with (
        running_bridge(*command, options=options, env=variables, expect_exit=None) as bridge,
        await bridge.connect() as client,
    ):
        await client.start_call("do")
        await bridge.wait_log("again in", count=3)
        yield Scene(bridge, (client,))


@contextlib.asynccontextmanager
async def grandchild_on_the_pipes(path: Path, options: Sequence[str]) -> AsyncIterator[Scene]:
    """The server starts a process that holds its stdout and stderr open and heeds no SIGTERM."""
    async with scripted(path, options, {}) as (bridge, client):
        await client.call("do", spawn={"hold_stdout": True, "ignore_term": True})
        yield Scene(bridge, (client,))


@contextlib.asynccontextmanager
async def still_starting(path: Path, options: Sequence[str]) -> AsyncIterator[Scene]:
    """The server process runs and has said nothing yet, and a client waits for it."""
    async with scripted(path, options, {"start_delay_ms": 60_000}) as (bridge, client):
        await client.start_call("do")
        await wait_until(bridge.server_pids)
        yield Scene(bridge, (client,))


@contextlib.asynccontextmanager
async def two_eras(path: Path, options: Sequence[str]) -> AsyncIterator[Scene]:
    """A server process for each era, both busy."""
    async with scripted(path, options, {"era": "dual"}) as (bridge, modern), await bridge.connect() as legacy:
        await legacy.initialize()
        pids = {content(await modern.call("do"))["pid"]}
        busy: dict[str, Any] = {"name": "do", "arguments": {"hold": "for ever"}}
        seen = content(await legacy.legacy_request("tools/call", {"name": "do", "arguments": {}}))
        pids.add(seen["pid"])
        assert len(pids) == 2
        await modern.start_call("do", hold="for ever")
        await legacy.start("tools/call", busy, id="busy")
        await state_until(modern, lambda seen: len(seen["running"]) >= 1)
        yield Scene(bridge, (modern, legacy))


STATES: list[Opener] = [
    idle,
    in_flight,
    hung_server,
    dead_server,
    grandchild_on_the_pipes,
    still_starting,
    two_eras,
]


# --- What is sent, and what has to come of it


async def once(scene: Scene, number: signal.Signals) -> None:
    scene.bridge.signal(number)


async def again_and_again(scene: Scene, number: signal.Signals) -> None:
    """The second one skips the drain. No later one, at whatever moment it comes, changes the exit code."""
    scene.bridge.signal(number)
    await scene.bridge.wait_log("stopping")
    while scene.bridge.process.poll() is None:
        scene.bridge.signal(number)
        await asyncio.sleep(0.002)


async def behind_a_replacement(scene: Scene, number: signal.Signals) -> None:
    """The server is replaced; what has not ended of the old one ends, too."""
    scene.bridge.signal(signal.SIGHUP)
    await scene.bridge.wait_log("the server was replaced")
    scene.bridge.signal(number)


async def during_a_replacement(scene: Scene, number: signal.Signals) -> None:
    scene.bridge.signal(signal.SIGHUP)
    await scene.bridge.wait_log("SIGHUP")
    scene.bridge.signal(number)


@dataclass(frozen=True)
class Signal:
    """A column of the matrix."""

    name: str
    number: signal.Signals
    code: int
    options: tuple[str, ...]
    send: Callable[[Scene, signal.Signals], Awaitable[None]] = once


SIGNALS = [
    Signal("TERM", signal.SIGTERM, 0, SHORT),
    Signal("TERM twice", signal.SIGTERM, 0, (*NO_DRAIN, "--stop-grace", "0.2"), again_and_again),
    Signal("INT", signal.SIGINT, 0, SHORT),
    Signal("QUIT", signal.SIGQUIT, 1, (*NO_DRAIN, "--stop-grace", "0.2")),
    Signal("KILL", signal.SIGKILL, -signal.SIGKILL, NO_DRAIN),
    Signal("HUP, then TERM", signal.SIGTERM, 0, SHORT, behind_a_replacement),
    Signal("HUP, then KILL", signal.SIGKILL, -signal.SIGKILL, NO_DRAIN, behind_a_replacement),
    Signal("TERM during a HUP", signal.SIGTERM, 0, SHORT, during_a_replacement),
    Signal("KILL during a HUP", signal.SIGKILL, -signal.SIGKILL, NO_DRAIN, during_a_replacement),
]


@pytest.mark.parametrize("opener", STATES, ids=lambda opener: opener.__name__)
@pytest.mark.parametrize("column", SIGNALS, ids=lambda column: column.name)
async def test_each_signal_in_each_state_ends_as_said_and_leaves_nothing(
    tmp_path: Path, column: Signal, opener: Opener
) -> None:
    async with opener(tmp_path, column.options) as scene:
        bridge = scene.bridge
        path = bridge.address.removeprefix("unix:")
        began = time.monotonic()
        await column.send(scene, column.number)
        assert await bridge.wait() == column.code
        for client in scene.clients:
            await client.expect_eof()
        await bridge.no_process_left(BOUND_S)
        assert time.monotonic() - began < BOUND_S
        text = bridge.stderr_text()
        assert ("thread MainThread (most recent call last)" in text) is (column.number == signal.SIGQUIT)
        if column.number == signal.SIGKILL:
            # The file may stay, and nothing else; it is no hindrance.
            assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]
            async with (
                running_bridge(*server_command("scripted.py"), listen=bridge.address) as next_one,
                await next_one.connect() as client,
            ):
                assert "result" in await client.call("do")
        assert os.listdir(os.path.dirname(path)) == []
