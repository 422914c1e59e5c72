"""The first and the last moments of a bridge: what it inherits, signals that come early (sections 1, 8)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bridge import (
    ROOT,
    marked_processes,
    run_command,
    running_bridge,
    server_command,
    wait_until,
)
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


def at_import(path: Path, module: str, code: str) -> dict[str, str]:
    """Variables with which the bridge runs `code`, which has `os` and `time`, as it imports `module`."""
    (path / "sitecustomize.py").write_text(
        f"""
import os, sys, time
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
{textwrap.indent(code, " " * 12)}
sys.meta_path.insert(0, Finder())
"""
    )
    return {"PYTHONPATH": os.pathsep.join([str(path), str(ROOT)]), "PYTHONDONTWRITEBYTECODE": "1"}


def until_it_runs(place: Path) -> str:
    """Code that waits for a server that was started with `noted`; the bridge ends with 9 if none comes."""
    return f"""\
deadline = time.monotonic() + 15
while not os.path.exists({str(place / "runs")!r}):
    if time.monotonic() > deadline:
        os._exit(9)
    time.sleep(0.01)
"""


def noted(place: Path) -> list[str]:
    """The command of a server that leaves a file behind when it runs."""
    return ["/bin/sh", "-c", f'echo $$ >{place}/new; mv {place}/new {place}/runs; exec "$@"', "sh", *COMMAND]


def alive(place: Path) -> bool:
    """Whether the server that was started with `noted` exists still."""
    return Path("/proc", (place / "runs").read_text().strip()).exists()


SLOW = ["asyncio", "msgspec", "uvloop", "bridge.hub", "bridge.acceptor"]


@pytest.mark.parametrize("module", SLOW)
async def test_the_server_is_started_before_what_takes_long_to_import(
    tmp_path: Path, place: Path, module: str
) -> None:
    """Both take time: together no longer than the slower one."""
    variables = at_import(tmp_path, module, until_it_runs(place))
    async with running_bridge(*noted(place), env=variables) as bridge, await bridge.connect() as client:
        assert content(await client.call("do"))["pid"] == int((place / "runs").read_text())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGQUIT, 1)])
@pytest.mark.parametrize("module", ["uvloop", "bridge.hub", "bridge.acceptor"])
async def test_a_signal_while_the_bridge_is_loaded_is_a_stop(
    tmp_path: Path, place: Path, number: signal.Signals, code: int, module: str
) -> None:
    """As PID 1 of a container it would else be lost, and SIGINT would be a traceback."""
    then = f"os.kill(os.getpid(), {int(number)})\ntime.sleep(10)\n"
    variables = at_import(tmp_path, module, until_it_runs(place) + then)
    done = await run_command("--listen", f"unix:{place}/s", "--", *noted(place), env=variables)
    assert (done.code, done.stderr, done.stdout) == (code, "", b"")
    assert os.listdir(place) == ["runs"]
    assert not alive(place)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_before_anything_was_opened_is_a_stop_too(
    tmp_path: Path, place: Path, number: signal.Signals
) -> None:
    then = f"os.kill(os.getpid(), {int(number)})\ntime.sleep(10)\n"
    variables = at_import(tmp_path, "bridge.options", then)
    done = await run_command("--listen", f"unix:{place}/s", "--", *noted(place), env=variables)
    assert (done.code, done.stderr, done.stdout) == (0, "", b"")
    assert os.listdir(place) == []


async def test_a_sighup_while_the_bridge_is_loaded_changes_nothing(tmp_path: Path, place: Path) -> None:
    """The server was started a moment ago."""
    then = f"os.kill(os.getpid(), {int(signal.SIGHUP)})\n"
    variables = at_import(tmp_path, "bridge.hub", until_it_runs(place) + then)
    async with running_bridge(*noted(place), env=variables) as bridge, await bridge.connect() as client:
        assert content(await client.call("do"))["pid"] == int((place / "runs").read_text())
        assert "replac" not in bridge.stderr_text()


async def test_nothing_is_left_if_the_bridge_cannot_be_loaded(tmp_path: Path, place: Path) -> None:
    """A broken installation, say. The server runs by then."""
    variables = at_import(tmp_path, "bridge.hub", until_it_runs(place) + "raise ImportError('no hub')\n")
    done = await run_command("--listen", f"unix:{place}/s", "--", *noted(place), env=variables)
    assert done.code == 1
    assert "no hub" in done.stderr
    assert os.listdir(place) == ["runs"]
    assert not alive(place)


async def test_nothing_runs_on_if_the_bridge_is_killed_while_it_is_loaded(
    tmp_path: Path, place: Path
) -> None:
    """The guard knows the server from its first moment."""
    variables = at_import(tmp_path, "bridge.hub", until_it_runs(place) + "os.kill(os.getpid(), 9)\n")
    # One that would not end by itself at the end of its input.
    command = [*noted(place)[: -len(COMMAND)], "sleep", "1000"]
    done = await run_command("--listen", f"unix:{place}/s", "--", *command, env=variables)
    assert done.code == -signal.SIGKILL
    await wait_until(lambda: not alive(place), what="the server is gone")


@pytest.mark.parametrize("wrong", ["listen", "admin", "option"])
async def test_no_server_is_started_by_a_bridge_that_cannot_serve(place: Path, wrong: str) -> None:
    (place / "taken").write_text("a file")
    options = {
        "listen": ["--listen", f"unix:{place}/taken"],
        "admin": ["--admin", f"unix:{place}/taken"],
        "option": ["--max-clients", "none"],
    }[wrong]
    done = await run_command("--listen", f"unix:{place}/s", *options, "--", *noted(place))
    assert done.code == (2 if wrong == "option" else 1)
    assert done.stderr.count("\n") == 1
    assert os.listdir(place) == ["taken"]


async def test_a_server_that_ends_while_the_bridge_is_loaded_is_started_again(
    tmp_path: Path, place: Path
) -> None:
    """It is seen to have ended once the loop runs, and what it wrote last is not lost."""
    gone = until_it_runs(place) + "time.sleep(0.1)\n"
    variables = at_import(tmp_path, "bridge.hub", gone)
    once = f'if [ -e {place}/runs ]; then exec "$@"; fi; echo its last words >&2; touch {place}/runs; exit 3'
    async with running_bridge("/bin/sh", "-c", once, "sh", *COMMAND, env=variables) as bridge:
        await bridge.wait_log(r"the server \(pid \d+\) ended: exit status 3")
        await bridge.wait_log(r"\[server\] its last words")
        async with await bridge.connect() as client:
            assert "result" in await client.call("do")


async def test_a_signal_at_any_moment_of_the_start_leaves_nothing(place: Path) -> None:
    """Before the interpreter has come to the bridge's code the system's own action applies: death by it."""
    began = time.monotonic()
    process = start(place)
    await wait_until((place / "s").exists)
    async with await RawClient.connect(f"unix:{place}/s") as client:
        await client.call("do")
    took = time.monotonic() - began
    process.terminate()
    await asyncio.to_thread(process.communicate, None, 15)
    for percent in range(5, 125, 8):
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
