"""SIGHUP replaces the server while it is in use (section 8): nothing is lost, or nothing changes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bridge.core.swap import MAX_DRAINING
from tests.support.bridge import ROOT, RunningBridge, running_bridge, server_command, wait_until
from tests.support.client import RawClient
from tests.support.scripts import content, env, error_of, lines_of, state_until

COMMAND = server_command("scripted.py")
REPLACED = "the server was replaced"
NOT_REPLACED = "the server was not replaced"
CHANGED = "notifications/tools/list_changed"


@pytest.fixture
def starts(tmp_path: Path) -> Path:
    """The file in which a server counts its starts."""
    return tmp_path / "starts"


async def replaced(bridge: RunningBridge, count: int = 1) -> None:
    """SIGHUP, and wait until it was carried out."""
    bridge.signal(signal.SIGHUP)
    await bridge.wait_log(REPLACED, count=count)


async def only(bridge: RunningBridge, pid: int) -> None:
    """Wait until this is the one server process."""
    await wait_until(lambda: bridge.server_pids() == [pid], what=f"{pid} is alone")


# --- Under load


KINDS = [f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")]
"""What legacy clients are told after each replacement."""


def told(lines: list[bytes]) -> list[str]:
    """The methods of notifications."""
    return [json.loads(line)["method"] for line in lines]


class Load:
    """One client that always has requests at the server, and counts what becomes of them."""

    def __init__(self, client: RawClient, number: int, *, modern: bool) -> None:
        self.client = client
        self.number = number
        self.modern = modern
        self.sent = 0
        self.starts: list[int] = []
        self.over = False

    async def run(self) -> None:
        window: list[int] = []
        while not self.over or window:
            while not self.over and len(window) < 4:
                self.sent += 1
                # Some are answered at once, some a little later, so that each process ends with work in hand.
                arguments: dict[str, Any] = {"mark": f"{self.number}/{self.sent}"}
                if self.sent % 3:
                    arguments["delay_ms"] = self.sent % 5 * 10
                params = {"name": "do", "arguments": arguments}
                if self.modern:
                    await self.client.start("tools/call", params, id=self.sent)
                else:
                    await self.client.send(
                        {"jsonrpc": "2.0", "id": self.sent, "method": "tools/call", "params": params}
                    )
                window.append(self.sent)
            id = window.pop(0)
            seen = content(await self.client.response(id))
            assert seen["arguments"]["mark"] == f"{self.number}/{id}"
            self.starts.append(seen["start"])
            await asyncio.sleep(0)


async def test_not_one_request_of_either_era_is_lost_and_subscriptions_go_on(starts: Path) -> None:
    variables = env(starts=starts, settings={"era": "dual"})
    async with running_bridge(*COMMAND, env=variables) as bridge:
        clients = [await bridge.connect() for _ in range(6)]
        for client in clients[3:]:
            await client.initialize()
        loads = [Load(client, n, modern=n < 3) for n, client in enumerate(clients)]
        holders = [await bridge.connect() for _ in range(3)]
        listens = [await holder.listen(toolsListChanged=True) for holder in holders]
        tasks = [asyncio.create_task(load.run()) for load in loads]
        for count in range(1, 4):
            await wait_until(lambda: all(len(load.starts) >= 20 * count for load in loads))  # noqa: B023 - at once
            await replaced(bridge, count)
            for holder, listen in zip(holders, listens, strict=True):
                await holder.notification(CHANGED, subscription=listen)
        for load in loads:
            load.over = True
        await asyncio.gather(*tasks)
        assert all(len(load.starts) == load.sent for load in loads)
        assert len(lines_of(starts)) == 8
        assert all(len(set(load.starts)) >= 3 for load in loads)
        await wait_until(lambda: len(bridge.server_pids()) == 2, what="the old processes are gone")
        for load in loads:
            # Legacy clients are told each time that lists may be others, and nothing else.
            assert told(load.client.unread) == ([] if load.modern else KINDS * 3)
        for holder, listen in zip(holders, listens, strict=True):
            assert holder.unread == []
            await holder.call("do", notify={"method": CHANGED})
            await holder.notification(CHANGED, subscription=listen)
            holder.close()
        for client in clients:
            client.close()


# --- One after the other


async def test_the_old_process_answers_what_it_was_sent_and_ends(starts: Path) -> None:
    async with running_bridge(*COMMAND, env=env(starts=starts)) as bridge, await bridge.connect() as client:
        await client.start_call("do", id="old", hold="it", meta={"progressToken": "t"}, progress=1)
        await client.notification("notifications/progress")
        await replaced(bridge)
        new = content(await client.call("do"))
        assert new["start"] == 2
        assert len(bridge.server_pids()) == 2
        await client.cancel("old")
        await only(bridge, new["pid"])
        await bridge.wait_log(r"the server \(pid \d+\) ended: exit status 0")


async def test_the_old_process_is_ended_after_the_swap_drain(starts: Path) -> None:
    options = ["--swap-drain", "0.3", "--stop-grace", "0.2"]
    async with (
        running_bridge(*COMMAND, options=options, env=env(starts=starts)) as bridge,
        await bridge.connect() as client,
    ):
        await client.start_call("do", id="old", hold="for ever")
        await state_until(client, lambda seen: len(seen["running"]) == 1)
        await replaced(bridge)
        assert error_of(await client.response("old")) == (-31001, "server_exited", True)
        await only(bridge, content(await client.call("do"))["pid"])


async def test_old_processes_that_go_on_answering_are_few(starts: Path) -> None:
    options = ["--stop-grace", "0.2"]
    async with (
        running_bridge(*COMMAND, options=options, env=env(starts=starts)) as bridge,
        await bridge.connect() as client,
    ):
        for count in range(1, MAX_DRAINING + 2):
            await client.start_call("do", id=count, hold="for ever")
            await state_until(client, lambda seen: len(seen["running"]) == 1)
            await replaced(bridge, count)
        assert error_of(await client.response(1)) == (-31001, "server_exited", True)
        await wait_until(lambda: len(bridge.server_pids()) == MAX_DRAINING + 1)
        for count in range(2, MAX_DRAINING + 2):
            await client.cancel(count)
        await only(bridge, content(await client.call("do"))["pid"])
        assert client.unread == []


async def test_the_old_process_may_crash_after_the_swap(starts: Path) -> None:
    async with running_bridge(*COMMAND, env=env(starts=starts)) as bridge, await bridge.connect() as client:
        old = content(await client.call("do"))["pid"]
        await client.start_call("do", id="old", hold="for ever")
        await state_until(client, lambda seen: len(seen["running"]) == 1)
        await replaced(bridge)
        os.kill(old, signal.SIGKILL)
        assert error_of(await client.response("old")) == (-31001, "server_exited", True)
        new = content(await client.call("do"))
        assert new["start"] == 2
        await only(bridge, new["pid"])
    assert len(lines_of(starts)) == 2


async def test_one_more_sighup_is_carried_out_behind_the_first(starts: Path) -> None:
    settings = [{}, {"start_delay_ms": 300}]
    variables = env(starts=starts, settings=settings)
    async with running_bridge(*COMMAND, env=variables) as bridge, await bridge.connect() as client:
        await client.call("do")
        bridge.signal(signal.SIGHUP)
        await bridge.wait_log("SIGHUP")
        await wait_until(lambda: len(lines_of(starts)) == 2)
        for count in range(2, 5):
            bridge.signal(signal.SIGHUP)
            await bridge.wait_log("SIGHUP", count=count)
        await bridge.wait_log(REPLACED, count=2)
        new = content(await client.call("do"))
        assert new["start"] == 3
        await only(bridge, new["pid"])
        await client.call("do")
    assert len(lines_of(starts)) == 3


async def test_a_legacy_session_goes_on_if_the_new_server_says_the_same_and_is_closed_if_not(
    starts: Path,
) -> None:
    settings = [{"era": "legacy"}, {"era": "legacy"}, {"era": "legacy", "capabilities": {"tools": {}}}]
    variables = env(starts=starts, settings=settings)
    params = {"name": "do", "arguments": {}}
    async with running_bridge(*COMMAND, env=variables) as bridge, await bridge.connect() as client:
        await client.initialize()
        await replaced(bridge)
        assert content(await client.legacy_request("tools/call", params))["start"] == 2
        await replaced(bridge, 2)
        # It was told once, after the first replacement, that lists may be others.
        assert told(await client.expect_eof()) == KINDS
        async with await bridge.connect() as again:
            said = await again.initialize()
            assert said["result"]["capabilities"] == {"tools": {}}
            assert content(await again.legacy_request("tools/call", params))["start"] == 3


# --- While not everything runs


class Gate:
    """A server whose starts wait, each until it is let go, and fail from some number on.

    `command` runs it; starts are numbered from 1 by when they begin, not by when they are let go.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        script = folder / "server"
        script.write_text(
            f"#!/bin/sh\ncd '{folder}'\necho x >> begun\nnumber=$(wc -l < begun)\n"
            "while [ -e hold.$number ]; do sleep 0.02; done\n"
            '[ -e fail ] && [ "$number" -ge "$(cat fail)" ] && exit 3\n'
            f"exec {' '.join(COMMAND)}\n"
        )
        script.chmod(0o755)
        self.command = str(script)

    def hold(self, *numbers: int) -> None:
        for number in numbers:
            (self._folder / f"hold.{number}").touch()

    def let_go(self, number: int) -> None:
        (self._folder / f"hold.{number}").unlink()

    def fail_from(self, number: int) -> None:
        (self._folder / "fail").write_text(str(number))

    async def begun(self, count: int) -> None:
        """Wait until so many starts have begun."""
        path = self._folder / "begun"
        await wait_until(lambda: path.exists() and len(lines_of(path)) >= count, what=f"{count} starts")


async def test_an_era_whose_server_was_away_at_the_sighup_is_served_all_the_while(
    tmp_path: Path, starts: Path
) -> None:
    """Hazard: it is back when the other era's new server is ready, and goes with the old one, unreplaced."""
    gate = Gate(tmp_path)
    gate.hold(3, 4, 5)
    variables = env(starts=starts, settings={"era": "dual"})
    call = {"name": "do", "arguments": {}}
    async with (
        running_bridge(gate.command, env=variables) as bridge,
        await bridge.connect() as modern,
        await bridge.connect() as legacy,
    ):
        first = content(await modern.call("do"))["pid"]
        listen = await modern.listen(toolsListChanged=True)
        await legacy.initialize()
        await legacy.legacy_request("tools/call", call)
        os.kill(first, signal.SIGKILL)
        await gate.begun(3)  # the modern one again
        bridge.signal(signal.SIGHUP)
        await gate.begun(4)  # the new legacy one
        gate.let_go(3)
        await modern.notification(CHANGED, subscription=listen)
        gate.let_go(4)
        await gate.begun(5)  # the new modern one, before anything changes
        assert content(await modern.call("do", notify={"method": CHANGED}))["start"] == 3
        await modern.notification(CHANGED, subscription=listen)
        assert content(await legacy.legacy_request("tools/call", call))["start"] == 2
        assert REPLACED not in bridge.stderr_text()
        gate.let_go(5)
        await bridge.wait_log(REPLACED)
        await modern.notification(CHANGED, subscription=listen)
        assert content(await modern.call("do"))["start"] == 5
        assert content(await legacy.legacy_request("tools/call", call))["start"] == 4
        await wait_until(lambda: len(bridge.server_pids()) == 2, what="the old processes are gone")
        assert modern.unread == []


@pytest.mark.parametrize("options", [["--max-restarts", "2"], ["--restart", "never"]])
@pytest.mark.parametrize("comes_up", [True, False])
async def test_a_server_that_dies_for_good_while_its_successor_starts_does_not_end_the_bridge(
    tmp_path: Path, options: list[str], comes_up: bool
) -> None:
    """Unless the successor does not come up either."""
    gate = Gate(tmp_path)
    gate.hold(2)
    async with (
        running_bridge(gate.command, options=options, expect_exit=None) as bridge,
        await bridge.connect() as client,
    ):
        old = content(await client.call("do"))["pid"]
        bridge.signal(signal.SIGHUP)
        await gate.begun(2)
        gate.fail_from(3)
        os.kill(old, signal.SIGKILL)
        await bridge.wait_log("ended: killed by SIGKILL")
        waiting = asyncio.create_task(client.call("do"))
        if "never" not in options:
            await bridge.wait_log("given up for a while")
        if comes_up:
            gate.let_go(2)
            await bridge.wait_log(REPLACED)
            assert content(await waiting)["pid"] != old
            assert await bridge.stop() == 0
        else:
            gate.fail_from(2)
            gate.let_go(2)
            await bridge.wait_log(NOT_REPLACED)
            assert error_of(await waiting)[0] == -31005
            assert await bridge.wait() == 1


# --- It fails


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({"exit": 3}, "ended before it was ready"),
        ({"exit": 0}, "ended before it was ready"),
        ({"era": "legacy"}, "refused"),
        ({"start_delay_ms": 60_000}, "did not answer in time"),
        ({"start_delay_ms": 60_000, "ignore_term": True}, "did not answer in time"),
    ],
)
@pytest.mark.parametrize("restart", ["always", "never"])
async def test_a_new_server_that_does_not_become_ready_leaves_the_old_one(
    starts: Path, second: dict[str, Any], why: str, restart: str
) -> None:
    variables = env(starts=starts, settings=[{}, second, {}])
    options = [
        "--probe-timeout",
        "0.2",
        "--start-timeout",
        "0.6",
        "--restart",
        restart,
        "--max-restarts",
        "1",
    ]
    async with (
        running_bridge(*COMMAND, options=options, env=variables) as bridge,
        await bridge.connect() as client,
    ):
        old = content(await client.call("do"))["pid"]
        await client.start_call("do", id="held", hold="it")
        listen = await client.listen(toolsListChanged=True)
        bridge.signal(signal.SIGHUP)
        (line,) = await bridge.wait_log(NOT_REPLACED)
        assert why in line
        await client.call("do", notify={"method": CHANGED})
        await client.notification(CHANGED, subscription=listen)
        await only(bridge, old)
        await client.call("do", release="it")
        assert content(await client.response("held"))["pid"] == old
        # And the next one is as good as the first.
        await replaced(bridge)
        await client.notification(CHANGED, subscription=listen)
        assert content(await client.call("do"))["start"] == 3
        assert client.unread == []


@pytest.mark.parametrize("restart", ["always", "never"])
@pytest.mark.parametrize("used", [True, False])
async def test_a_new_server_that_cannot_be_run_leaves_the_old_one(
    tmp_path: Path, restart: str, used: bool
) -> None:
    script = tmp_path / "server"
    started = tmp_path / "started"
    script.write_text(f"#!/bin/sh\n: > '{started}'\nexec {' '.join(COMMAND)}\n")
    script.chmod(0o755)
    options = ["--restart", restart, "--max-restarts", "1"]
    async with running_bridge(str(script), options=options) as bridge, await bridge.connect() as client:
        await wait_until(started.exists)  # the shell has opened the script: it may go
        if used:
            await client.call("do")
        script.rename(tmp_path / "away")
        bridge.signal(signal.SIGHUP)
        await bridge.wait_log("could not be started")
        (line,) = await bridge.wait_log(NOT_REPLACED)
        assert "cannot be started" in line
        old = content(await client.call("do"))["pid"]
        (tmp_path / "away").rename(script)
        await replaced(bridge)
        new = content(await client.call("do"))["pid"]
        assert new != old
        await only(bridge, new)


# --- Nobody is served


async def test_a_server_that_nobody_has_used_yet_is_replaced(starts: Path) -> None:
    async with running_bridge(*COMMAND, env=env(starts=starts)) as bridge, await bridge.connect() as client:
        await wait_until(lambda: len(lines_of(starts)) == 1)
        await replaced(bridge)
        new = content(await client.call("do"))
        assert new["start"] == 2
        await only(bridge, new["pid"])


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_who_waits_for_a_server_that_hangs_in_its_start_is_served_by_the_new_one(
    starts: Path, era: str
) -> None:
    variables = env(starts=starts, settings=[{"era": era, "start_delay_ms": 60_000}, {"era": era}])
    async with running_bridge(*COMMAND, env=variables) as bridge, await bridge.connect() as client:
        await wait_until(lambda: len(lines_of(starts)) == 1)
        if era == "modern":
            waiting = asyncio.create_task(client.call("do"))
        else:
            waiting = asyncio.create_task(client.initialize())
        await wait_until(bridge.server_pids)
        await replaced(bridge)
        assert "result" in await waiting
        await wait_until(lambda: len(bridge.server_pids()) == 1)


async def test_who_waits_for_a_server_that_does_not_come_up_is_served_once_it_is_mended(
    tmp_path: Path, starts: Path
) -> None:
    """The operator mends the command, and does not wait for the back-off."""
    variables = env(starts=starts, settings=[{"exit": 3}] * 4 + [{}])
    # (Of an undecided server that has read the probe, an exit says that it is a legacy one.)
    options = ["--max-restarts", "100", "--restart-wait", "60", "--era", "modern"]
    async with (
        running_bridge(*COMMAND, options=options, env=variables) as bridge,
        await bridge.connect() as client,
    ):
        waiting = asyncio.create_task(client.call("do"))
        await bridge.wait_log("again in", count=4)
        await replaced(bridge)
        assert content(await waiting)["start"] == 5


# --- And the bridge stops


@pytest.mark.parametrize("order", ["HUP TERM", "HUP HUP TERM", "TERM HUP", "HUP TERM HUP", "HUP TERM TERM"])
async def test_a_stop_may_come_at_any_moment_of_it(starts: Path, order: str) -> None:
    settings = {"start_delay_ms": 100}
    options = ["--drain", "0.3", "--stop-grace", "0.2"]
    async with (
        running_bridge(*COMMAND, options=options, env=env(starts=starts, settings=settings)) as bridge,
        await bridge.connect() as client,
    ):
        await client.start_call("do", id="held", hold="for ever")
        await state_until(client, lambda seen: len(seen["running"]) == 1)
        for name in order.split():
            bridge.signal(signal.Signals[f"SIG{name}"])
        assert await bridge.wait() == 0
        assert error_of(await client.response("held"))[0] in (-31005, -31001)
        await client.expect_eof()


def test_a_sighup_that_comes_while_the_bridge_is_loading_does_not_end_it() -> None:
    code = (
        "import os, signal, subprocess\n"
        "from bridge.signals import EarlySignals\n"
        "EarlySignals()\n"
        "os.kill(os.getpid(), signal.SIGHUP)\n"
        # What it starts is not made to ignore it.
        "assert subprocess.run(['sh', '-c', 'kill -HUP $$']).returncode == -signal.SIGHUP\n"
        "print('lives')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=20, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"lives\n"), done.stderr
