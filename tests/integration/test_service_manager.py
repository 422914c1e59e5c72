"""Under systemd: handed-down sockets, notifications, its watchdog (section 8, section 1 for `systemd:`).

`tests/support/activator.py` does what systemd does for a socket unit. Where systemd's own
`systemd-socket-activate` is installed, the same is done with that, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.bridge import (
    ROOT,
    BridgeExited,
    run_command,
    running_bridge,
    server_command,
    wait_until,
)
from tests.support.client import RawClient
from tests.support.scripts import content, env

COMMAND = server_command("scripted.py")
ACTIVATOR = [sys.executable, "-S", str(ROOT / "tests" / "support" / "activator.py")]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short path, for socket addresses."""
    with tempfile.TemporaryDirectory(prefix="mb-") as path:
        yield Path(path)


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


class Manager:
    """The service manager's end of the notifications."""

    def __init__(self, path: Path) -> None:
        self.variables = {"NOTIFY_SOCKET": str(path)}
        self.messages: list[dict[str, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)

    def close(self) -> None:
        self._socket.close()

    def read(self) -> list[dict[str, str]]:
        """All messages up to now."""
        with contextlib.suppress(BlockingIOError):
            while True:
                lines = self._socket.recv(4096).decode().split("\n")
                self.messages.append(dict(line.split("=", 1) for line in lines))
        return self.messages

    def names(self) -> list[str]:
        """The first name of each message, statuses and watchdogs left out."""
        firsts = [next(iter(message)) for message in self.read()]
        return [name for name in firsts if name not in ("STATUS", "WATCHDOG")]

    def statuses(self) -> list[str]:
        return [message["STATUS"] for message in self.read() if "STATUS" in message]

    async def told(self, name: str, count: int = 1) -> None:
        """Wait until it was sent so often."""
        await wait_until(
            lambda: sum(name in message for message in self.read()) >= count, what=f"{count} x {name}"
        )


@pytest.fixture
def manager(place: Path) -> Iterator[Manager]:
    manager = Manager(place / "notify")
    yield manager
    manager.close()


# --- Sockets


async def test_handed_down_sockets_are_served_and_never_removed(place: Path) -> None:
    wrapper = [*ACTIVATOR, f"unix:{place}/a=one", f"unix:@{place.name}=two", "tcp:127.0.0.1:0=two", "--"]
    listen = ["systemd:one", "systemd:two"]
    async with running_bridge(*COMMAND, listen=listen, wrapper=wrapper) as bridge:
        lines = await bridge.wait_log("listening on", count=3)
        addresses = [line.partition("listening on ")[2] for line in lines]
        assert addresses[:2] == [f"unix:{place}/a", f"unix:@{place.name}"]
        assert addresses[2].startswith("tcp:127.0.0.1:")
        pids = set()
        for address in addresses:
            async with await RawClient.connect(address) as client:
                pids.add(content(await client.call("do"))["pid"])
        (pid,) = pids
        # The server has none of it: no descriptor, no variable.
        assert set(map(int, os.listdir(f"/proc/{pid}/fd"))) <= {0, 1, 2}
        assert b"LISTEN_" not in environment_of(pid)
        assert await bridge.stop() == 0
    assert stat.S_ISSOCK((place / "a").stat().st_mode)


async def test_a_plain_listener_and_handed_down_ones_work_side_by_side(place: Path) -> None:
    wrapper = [*ACTIVATOR, f"unix:{place}/a", f"unix:{place}/spare=spare", "--"]
    async with running_bridge(*COMMAND, listen=["unix", "systemd:unknown"], wrapper=wrapper) as bridge:
        for index in range(2):
            async with await bridge.connect(index) as client:
                assert "result" in await client.call("do")
        await bridge.wait_log("no --listen takes were closed: spare")
        with pytest.raises(ConnectionRefusedError):
            await RawClient.connect(f"unix:{place}/spare")


async def test_a_bridge_that_was_handed_nothing_says_so_and_ends(place: Path) -> None:
    done = await run_command("--listen", "systemd:", "--", *COMMAND)
    assert done.code == 2
    assert "no sockets were handed down" in done.stderr
    assert done.stderr.count("\n") == 1
    wrapper = [*ACTIVATOR, f"unix:{place}/a=one", "--"]
    with pytest.raises(BridgeExited) as caught:
        async with running_bridge(*COMMAND, listen="systemd:two", wrapper=wrapper):
            pass
    assert caught.value.code == 2
    assert "none is so named: one" in caught.value.stderr


@contextlib.asynccontextmanager
async def listening_manager(*command: str, socket: Path) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A manager that starts the bridge at the first connection: systemd's own tool, or ours (at once)."""
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)  # noqa: ASYNC220 - a millisecond
    try:
        await wait_until(socket.exists)
        yield process
    finally:
        process.kill()
        process.communicate()


async def test_systemds_own_tool_starts_the_bridge_at_the_first_connection(place: Path) -> None:
    bridge = [sys.executable, "-m", "bridge", "--listen", "systemd:mcp", "--", *COMMAND]
    path = place / "s"
    runs = [[*ACTIVATOR, f"unix:{path}=mcp", "--", *bridge]]
    tool = shutil.which("systemd-socket-activate")
    if tool is not None:  # a part of systemd, which no container has
        runs.append([tool, "-l", str(path), "--fdname=mcp", "-E", "PYTHONPATH", *bridge])
    for command in runs:
        async with listening_manager(*command, socket=path) as process:
            async with await RawClient.connect(f"unix:{path}") as client:
                assert "result" in await client.call("do")
            process.terminate()
            assert await asyncio.to_thread(process.wait, 15) == 0
            assert path.exists()
        path.unlink()


# --- Notifications


async def test_the_manager_is_told_how_things_stand(manager: Manager) -> None:
    async with running_bridge(*COMMAND, env={**manager.variables}) as bridge:
        await manager.told("READY")
        async with await bridge.connect() as client:
            pid = content(await client.call("do"))["pid"]
            await wait_until(lambda: f"serving; the server runs (pid {pid})" in manager.statuses())
            os.kill(pid, signal.SIGKILL)
            await wait_until(lambda: "serving; the server ended (killed by SIGKILL)" in manager.statuses())
        bridge.signal(signal.SIGHUP)
        await manager.told("READY", 2)
        assert await bridge.stop() == 0
    assert manager.names() == ["READY", "RELOADING", "READY", "STOPPING"]
    (reload,) = [message for message in manager.messages if "RELOADING" in message]
    assert int(reload["MONOTONIC_USEC"]) > 0
    assert manager.statuses()[-1] == "stopping"
    assert all("WATCHDOG" not in message for message in manager.messages)


async def told_status(manager: Manager, *parts: str) -> None:
    """Wait until the last status is made of just these parts."""
    wanted = "; ".join(parts)
    await wait_until(lambda: manager.statuses()[-1:] == [wanted], what=f"status {wanted!r}")


async def test_the_status_names_who_serves_throughout_replacements(manager: Manager, tmp_path: Path) -> None:
    """Also after one that failed: it named the process that was stopped."""
    settings = [{}, {"start_delay_ms": 60_000}, {"start_delay_ms": 60_000}, {}]
    variables = {**manager.variables, **env(starts=tmp_path / "starts", settings=settings)}
    options = ["--probe-timeout", "0.2", "--start-timeout", "0.5"]
    async with (
        running_bridge(*COMMAND, options=options, env=variables) as bridge,
        await bridge.connect() as client,
    ):
        old = content(await client.call("do"))["pid"]
        running = f"the server runs (pid {old})"
        await told_status(manager, "serving", running)
        bridge.signal(signal.SIGHUP)
        await told_status(manager, "serving", running, "being replaced")
        await bridge.wait_log("was not replaced")
        await told_status(manager, "serving", running)
        await client.start_call("do", id="held", hold="it")
        bridge.signal(signal.SIGHUP)
        await told_status(manager, "serving", running, "being replaced")
        await bridge.wait_log("was not replaced", count=2)
        await told_status(manager, "serving", running)
        bridge.signal(signal.SIGHUP)
        await bridge.wait_log("the server was replaced")
        new = content(await client.call("do"))["pid"]
        await told_status(manager, "serving", f"the server runs (pid {new})", "1 old process ends")
        await client.cancel("held")
        await told_status(manager, "serving", f"the server runs (pid {new})")
        bridge.signal(signal.SIGTERM)
        await told_status(manager, "stopping")
    assert [name for name in manager.names() if name != "RELOADING"] == ["READY"] * 4 + ["STOPPING"]


async def test_the_status_names_both_eras_servers(manager: Manager) -> None:
    variables = {**manager.variables, **env(settings={"era": "dual"})}
    async with running_bridge(*COMMAND, env=variables) as bridge, await bridge.connect() as client:
        pids = [content(await client.call("do"))["pid"]]
        await client.initialize()
        seen = await client.legacy_request("tools/call", {"name": "do", "arguments": {}})
        pids.append(content(seen)["pid"])
        await told_status(manager, "serving", f"the servers run (pids {pids[0]}, {pids[1]})")


async def test_the_status_counts_clients_with_a_process_of_their_own(manager: Manager) -> None:
    options = ["--sharing", "isolated"]
    async with running_bridge(*COMMAND, options=options, env=manager.variables) as bridge:
        await told_status(manager, "serving")
        async with await bridge.connect() as one, await bridge.connect() as other:
            await one.call("do")
            await told_status(manager, "serving", "1 client has a process of their own")
            await other.call("do")
            await told_status(manager, "serving", "2 clients have a process of their own")
        await told_status(manager, "serving")


async def test_it_is_ready_only_when_it_can_be_connected_to(manager: Manager) -> None:
    async with running_bridge(*COMMAND, listen=["unix", "unix", "tcp"], env=manager.variables) as bridge:
        await manager.told("READY")
        for index in range(3):
            await (await bridge.connect(index)).__aexit__(None, None, None)


async def test_a_bridge_that_gives_up_says_why(manager: Manager, tmp_path: Path) -> None:
    variables = {**manager.variables, "STARTS": str(tmp_path / "starts")}
    command = server_command("crash.py", "3")
    options = ["--max-restarts", "1"]
    async with running_bridge(*command, options=options, env=variables, expect_exit=None) as bridge:
        assert await bridge.wait() == 1
    assert manager.names() == ["READY", "STOPPING"]
    # It is what `systemctl status` shows from then on.
    assert "failed to start" in manager.statuses()[-1]


async def test_the_managers_variables_do_not_reach_the_server(manager: Manager) -> None:
    variables = {**manager.variables, "WATCHDOG_USEC": "3000000"}
    async with running_bridge(*COMMAND, env=variables) as bridge, await bridge.connect() as client:
        pid = content(await client.call("do"))["pid"]
        environment = environment_of(pid)
        assert b"NOTIFY_SOCKET" not in environment
        assert b"WATCHDOG_USEC" not in environment


# --- The watchdog, fed by the loop

HANG: Any = """
import threading, time
from bridge import watchdog
watchdog.LIMIT_S = 0.5
watchdog.LoopWatchdog.__init__.__kwdefaults__["limit"] = 0.5
from bridge.hub import Hub

def the_place_where_it_hangs():
    time.sleep(3)

Hub._replace_servers = lambda self: (the_place_where_it_hangs(), self._life.replaced())
"""


async def test_a_loop_that_hangs_shows_where_and_feeds_no_watchdog(manager: Manager, tmp_path: Path) -> None:
    """Hazard: no progress for 5 s (here 0.5). SIGHUP stands in for a bug that blocks the loop."""
    (tmp_path / "sitecustomize.py").write_text(HANG)
    variables = {
        **manager.variables,
        "WATCHDOG_USEC": "200000",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
    }
    async with running_bridge(*COMMAND, env=variables) as bridge:
        await manager.told("WATCHDOG", 3)
        bridge.signal(signal.SIGHUP)
        await bridge.wait_log("the event loop has hung for")
        assert "in the_place_where_it_hangs" in bridge.stderr_text()
        before = len(manager.read())
        # Still hanging: more than one watchdog's time passes before it goes on.
        await bridge.wait_log("the event loop goes on")
        hung = manager.read()[before:]
        assert sum("WATCHDOG" in message for message in hung) <= 1
        await manager.told("WATCHDOG", sum("WATCHDOG" in message for message in manager.read()) + 2)


async def test_stopping_feeds_it_to_the_end(manager: Manager) -> None:
    variables = {**manager.variables, "WATCHDOG_USEC": "100000", **env(settings={"ignore_eof": True})}
    options = ["--stop-grace", "0.5"]
    async with running_bridge(*COMMAND, options=options, env=variables) as bridge:
        await manager.told("WATCHDOG")
        bridge.signal(signal.SIGTERM)
        await manager.told("STOPPING")
        await manager.told("WATCHDOG", sum("WATCHDOG" in message for message in manager.read()) + 3)


async def test_what_a_watchdog_kills_shows_its_stacks_and_leaves_no_server() -> None:
    """systemd ends a process that no longer feeds it with SIGABRT; also when no Python code can run."""
    async with running_bridge(*server_command("deaf.py", "--grandchild"), expect_exit=None) as bridge:
        async with await bridge.connect() as client:
            await client.call("do")
        bridge.signal(signal.SIGABRT)
        assert await bridge.wait() == -signal.SIGABRT
        text = bridge.stderr_text()
        assert "Fatal Python error: Aborted" in text
        assert "most recent call first" in text
        await bridge.no_process_left()
