"""The first and the last moments of a bridge: what it inherits, signals that come early (sections 1, 8)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bridge import ROOT, marked_processes, run_command, server_command, wait_until
from tests.support.client import RawClient
from tests.support.scripts import content

COMMAND = server_command("scripted.py")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short path, for socket addresses."""
    with tempfile.TemporaryDirectory(prefix="mb-") as path:
        yield Path(path)


def start(path: Path, *, redirect: str = "", mark: str = "") -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "bridge", "--listen", f"unix:{path}/s", "--drain", "0.2", "--", *COMMAND]
    return subprocess.Popen(
        ["/bin/sh", "-c", f'exec "$@" {redirect}', "sh", *argv],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "BRIDGE_TEST_MARK": mark},
    )


def what(pid: int, fd: int) -> str:
    """What a descriptor of a process is."""
    return os.readlink(f"/proc/{pid}/fd/{fd}")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
async def test_descriptors_that_a_parent_has_closed_become_no_socket_and_no_pipe(
    place: Path, closed: str
) -> None:
    """Hazard: a client's connection as descriptor 2 gets the log of the bridge."""
    process = start(place, redirect=closed)
    try:
        await wait_until((place / "s").exists)
        async with await RawClient.connect(f"unix:{place}/s") as client:
            pid = content(await client.call("do", stderr="words of the server"))["pid"]
            assert "result" in await client.call("do")
            assert client.unread == []
        for fd, redirection in enumerate(["<&-", ">&-", "2>&-"]):
            if redirection in closed.split():
                assert what(process.pid, fd) == "/dev/null"
        assert set(os.listdir(f"/proc/{pid}/fd")) == {"0", "1", "2"}
        process.terminate()
        _, stderr = await asyncio.to_thread(process.communicate, None, 15)
        assert process.returncode == 0
        assert ("words of the server" in stderr.decode()) is ("2>&-" not in closed)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("module", ["uvloop", "bridge.hub", "bridge.acceptor"])
async def test_a_signal_while_the_bridge_is_loaded_is_a_stop(
    tmp_path: Path, place: Path, number: signal.Signals, module: str
) -> None:
    """As PID 1 of a container it would else be lost, and SIGINT would be a traceback."""
    (tmp_path / "sitecustomize.py").write_text(
        f"""
import os, sys, time
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {int(number)})
            time.sleep(10)
sys.meta_path.insert(0, Finder())
"""
    )
    variables = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = await run_command("--listen", f"unix:{place}/s", "--", *COMMAND, env=variables)
    assert (done.code, done.stderr, done.stdout) == (0, "", b"")
    assert os.listdir(place) == []


async def test_a_signal_at_any_moment_of_the_start_leaves_nothing(place: Path) -> None:
    """Before the interpreter has come to the bridge's code the system's own action applies: death by it."""
    began = time.monotonic()
    process = start(place)
    await wait_until((place / "s").exists)
    took = time.monotonic() - began
    process.terminate()
    await asyncio.to_thread(process.communicate, None, 15)
    for percent in range(5, 125, 10):
        mark = f"early-{os.urandom(6).hex()}"
        process = start(place, mark=mark)
        await asyncio.sleep(took * percent / 100)  # not a wait for anything: a moment like any other
        process.terminate()
        _, stderr = await asyncio.to_thread(process.communicate, None, 15)
        assert process.returncode in (0, -signal.SIGTERM), stderr
        await wait_until(lambda mark=mark: not marked_processes(mark), what="nothing is left")
        assert os.listdir(place) == []


async def test_on_windows_the_command_says_in_one_line_that_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.platform = 'win32'\n")
    variables = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = await run_command("--listen", f"unix:{tmp_path}/s", "--", *COMMAND, env=variables)
    assert done.code == 2
    assert done.stderr == "mcp-bridge: Windows is not supported: run it under WSL\n"
    assert done.stdout == b""


async def test_a_stop_does_not_wait_for_a_stderr_that_nobody_reads(place: Path) -> None:
    """SIGQUIT writes stacks: they go the way of the log, which is bounded and never waited for."""
    process = start(place)
    try:
        assert process.stderr is not None
        await wait_until((place / "s").exists)
        async with await RawClient.connect(f"unix:{place}/s") as client:
            for _ in range(3):
                await client.call("do", stderr_bytes=200_000)
            await client.call("do", stderr_bytes=200_000)
        fill = os.open(f"/proc/{process.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(fill, b"x" * 4096)
        os.close(fill)
        process.send_signal(signal.SIGQUIT)
        assert await asyncio.to_thread(process.wait, 10) == 1
        assert not (place / "s").exists()
    finally:
        process.kill()
        process.communicate()
