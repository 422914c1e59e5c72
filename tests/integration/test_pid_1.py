"""As PID 1 of a container, and below an init (section 8): in a PID namespace of its own.

Listed in `tests/kernel_forbids.txt`, since a sandbox may forbid new namespaces.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.support.bridge import ROOT, RunningBridge, running_bridge, server_command, wait_until
from tests.support.client import RawClient
from tests.support.scripts import content

ORPHANS = server_command("orphans.py")
# Root of a user namespace, if not of the machine, may make the others. `--kill-child`: nothing of it stays.
UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
if os.geteuid() != 0:
    UNSHARE[1:1] = ["--user", "--map-root-user"]
# "as PID 1", and below an init: a stand-in, and the real one where it is installed.
BELOW = {"alone": [], "init": [sys.executable, "-S", str(ROOT / "tests" / "support" / "init.py")]}
if tini := shutil.which("tini"):
    BELOW["tini"] = [tini, "--"]


@pytest.fixture(autouse=True, scope="module")
def namespaces() -> None:
    done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, timeout=20)
    if done.returncode != 0:
        pytest.skip(f"no new PID namespace here: {done.stderr.strip()}")


def proc(pid: int, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


def below(pid: int) -> list[int]:
    """The children of a process."""
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def state_of(pid: int) -> str:
    """One letter: Z is a zombie; "" if the process is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


class Contained:
    """A bridge in a PID namespace; the numbers are those outside of it."""

    def __init__(self, bridge: RunningBridge, client: RawClient, init: int) -> None:
        self.bridge = bridge
        self.client = client
        self.init = init

    def zombies(self) -> list[int]:
        """Of the namespace's PID 1: what was left to it and not waited for."""
        return [pid for pid in below(self.init) if state_of(pid) == "Z"]

    def signal(self, number: signal.Signals) -> None:
        """To PID 1, as a container's stop sends it."""
        os.kill(self.init, number)


@contextlib.asynccontextmanager
async def contained(wrapper: Sequence[str], *options: str) -> AsyncIterator[Contained]:
    async with (
        running_bridge(*ORPHANS, wrapper=[*UNSHARE, *wrapper], options=options, expect_exit=None) as bridge,
        await bridge.connect() as client,
    ):
        (init,) = below(bridge.pid)
        inside = Contained(bridge, client, init)
        yield inside
        # The harness signals unshare, which passes nothing on.
        if bridge.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                inside.signal(signal.SIGTERM)
            await bridge.wait()


@pytest.mark.parametrize("how", BELOW)
async def test_orphans_are_reaped_and_the_servers_own_status_is_kept(how: str) -> None:
    """Hazard: whoever waits for any process steals the exit status of the server."""
    async with contained(BELOW[how]) as inside:
        bridge, client = inside.bridge, inside.client
        assert content(await client.call("do", orphans=100))["orphans"] == 100
        await wait_until(lambda: not inside.zombies(), what="all orphans reaped")
        for code in (3, 4):
            # Orphans and the server itself end together.
            await client.call("do", orphans=50, exit=code)
            await bridge.wait_log(f"ended: exit status {code}")
        await wait_until(lambda: not inside.zombies(), what="all orphans reaped")
        assert "result" in await client.call("do")


@pytest.mark.parametrize("how", BELOW)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_of_the_container_stops_in_order(how: str, number: signal.Signals) -> None:
    async with contained(BELOW[how]) as inside:
        await inside.client.call("do", orphans=10)
        inside.signal(number)
        assert await inside.client.expect_eof() == []
        assert await inside.bridge.wait() == 0
        assert "stopping" in inside.bridge.stderr_text()
        await inside.bridge.no_process_left()


async def test_as_pid_1_a_dead_guard_is_replaced_without_a_zombie() -> None:
    async with contained([]) as inside:
        await inside.client.call("do")
        # The guard is a child of ours, too, which its owner has to reap.
        (guard,) = [pid for pid in below(inside.init) if b"mcp-bridge-guard" in proc(pid, "cmdline")]
        os.kill(guard, signal.SIGKILL)
        await wait_until(lambda: state_of(guard) == "Z")
        # What is behind it is reaped all the same once it is: the next line to the guard notices its end.
        await inside.client.call("do", orphans=20, exit=5)
        await inside.bridge.wait_log("the guard process had died and was started again")
        await inside.bridge.wait_log("exit status 5")
        await wait_until(lambda: not inside.zombies(), what="all reaped")
        assert "result" in await inside.client.call("do")


async def test_elsewhere_a_bridge_waits_for_nobody_but_its_own() -> None:
    """Below an init the orphans are not the bridge's."""
    async with contained(BELOW["init"]) as inside:
        await inside.client.call("do", orphans=5)
        text = proc(below(inside.init)[0], "status").decode()
        caught = int(text.partition("SigCgt:")[2].split()[0], 16)
        assert not caught & 1 << (signal.SIGCHLD - 1)
