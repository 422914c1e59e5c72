"""Run the real command as a process of its own, and make sure that nothing of it stays behind.

Every process below a bridge inherits a mark in its environment, so that leftovers are found by what they
are, also when they changed their process group or session, and never by their name.
"""

# ruff: noqa: ASYNC109 - a wait that runs out must fail the test with the log of the bridge

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.support.client import RawClient

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ROOT / "tests" / "servers"

# A process that starts on a loaded machine with two cores; a pass never waits for it.
START_TIMEOUT = 20.0
# The contract allows 10 s from the signal to the exit; what comes on top is for the loaded machine.
STOP_TIMEOUT = 15.0
# The guard kills what is left of a bridge one second after the bridge has gone.
LEFTOVER_TIMEOUT = 4.0

_MARK = "BRIDGE_TEST_MARK"
_LISTENING = re.compile(r"listening on ((?:unix|tcp|tls|systemd):[^\"\n]+)")


class BridgeExited(AssertionError):
    """The bridge ended before it was ready."""

    def __init__(self, code: int, stderr: str) -> None:
        super().__init__(f"the bridge exited with {code} before it was ready\n{stderr}")
        self.code = code
        self.stderr = stderr


def server_command(script: str, *args: str) -> list[str]:
    """The command that runs `tests/servers/SCRIPT` (without site-packages: it starts faster)."""
    return [sys.executable, "-S", str(SERVERS / script), *args]


def demo_server_command() -> list[str]:
    """The command that runs the demo server of the package."""
    return [sys.executable, "-m", "bridge", "demo-server"]


def _environment(mark: str, extra: Mapping[str, str] | None) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **(extra or {}), _MARK: mark}


def marked_processes(mark: str) -> dict[int, str]:
    """Living processes whose environment has `mark`: pid to command line. Empty where there is no /proc."""
    found: dict[int, str] = {}
    needle = f"{_MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        # A process may go at any moment; a zombie has an empty environment and does not count.
        with contextlib.suppress(OSError):
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(entry.name)] = command.decode(errors="replace").strip()
    return found


async def wait_until(condition: Any, timeout: float = 10.0, what: str = "the condition") -> Any:
    """Poll `condition()` until it is true, return its value; AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout} s")
        await asyncio.sleep(0.01)
    return value


class _Output:
    """Collects what a process writes to a pipe, in a thread, so that the process never blocks on it."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self.data = bytearray()
        self._pipe = pipe
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._pipe:
            while data := os.read(self._pipe.fileno(), 65536):
                self.data += data

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)


class RunningBridge:
    """A bridge that is ready. `address` is its first listener's, `addresses` are all, as it logged them."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str) -> None:
        assert process.stderr is not None
        assert process.stdout is not None
        self.process = process
        self.mark = mark
        self.addresses: list[str] = []
        self._stderr = _Output(process.stderr)
        self._stdout = _Output(process.stdout)

    @property
    def address(self) -> str:
        return self.addresses[0]

    @property
    def pid(self) -> int:
        return self.process.pid

    def stderr_text(self) -> str:
        """What the bridge has written to stderr up to now."""
        return bytes(self._stderr.data).decode(errors="replace")

    def stdout_bytes(self) -> bytes:
        """What the bridge has written to stdout; it must stay empty."""
        return bytes(self._stdout.data)

    async def connect(self, index: int = 0, **options: Any) -> RawClient:
        """A new client of listener number `index`."""
        return await RawClient.connect(self.addresses[index], **options)

    async def wait_log(self, pattern: str, *, count: int = 1, timeout: float = 10.0) -> list[str]:
        """Wait until `count` log lines match the regular expression; returns all that do."""

        def matching() -> list[str] | None:
            lines = [line for line in self.stderr_text().splitlines() if re.search(pattern, line)]
            return lines if len(lines) >= count else None

        try:
            lines: list[str] = await wait_until(matching, timeout, f"{count} x /{pattern}/ in the log")
        except AssertionError as error:
            raise AssertionError(f"{error}; stderr:\n{self.stderr_text()}") from None
        return lines

    def processes(self) -> dict[int, str]:
        """All living processes below the bridge (servers, their children, the guard), without itself."""
        found = marked_processes(self.mark)
        found.pop(self.process.pid, None)
        return found

    def server_pids(self, part: str = "tests/servers/") -> list[int]:
        """The processes below the bridge whose command line has `part`, oldest pid first."""
        return sorted(pid for pid, command in self.processes().items() if part in command)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def wait(self, timeout: float = STOP_TIMEOUT) -> int:
        """Wait until the bridge has ended; returns its exit code (-9: killed by SIGKILL)."""
        try:
            code = await asyncio.to_thread(self.process.wait, timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s; stderr:\n{self.stderr_text()}") from None
        await asyncio.to_thread(self._stderr.join, 2.0)
        return code

    async def stop(self, timeout: float = STOP_TIMEOUT) -> int:
        """SIGTERM, wait, return the exit code; idempotent."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return await self.wait(timeout)

    async def no_process_left(self, timeout: float = LEFTOVER_TIMEOUT) -> None:
        """AssertionError if a process of this bridge still lives after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while left := marked_processes(self.mark):
            if time.monotonic() > deadline:
                raise AssertionError(f"left behind: {left}; stderr:\n{self.stderr_text()}")
            await asyncio.sleep(0.02)

    def kill_all(self) -> None:
        """SIGKILL for everything that carries this bridge's mark; for the failure path."""
        for _ in range(3):  # a process may fork while we look
            for pid in marked_processes(self.mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    async def _wait_ready(self, listeners: int, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            # Only whole lines of the bridge itself: the server may say "listening on", too.
            log = [line for line in self.stderr_text().split("\n")[:-1] if "[server]" not in line]
            self.addresses = [found[1].strip() for line in log if (found := _LISTENING.search(line))]
            if len(self.addresses) >= listeners:
                return
            if self.process.poll() is not None:
                await asyncio.to_thread(self._stderr.join, 2.0)
                raise BridgeExited(self.process.returncode, self.stderr_text())
            if time.monotonic() > deadline:
                raise AssertionError(f"not ready after {timeout} s; stderr:\n{self.stderr_text()}")
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running_bridge(
    *command: str,
    options: Sequence[str] = (),
    listen: str | Sequence[str] = "unix",
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    expect_exit: int | None = 0,
    start_timeout: float = START_TIMEOUT,
    leftover_timeout: float = LEFTOVER_TIMEOUT,
    python: Sequence[str] = (),
    wrapper: Sequence[str] = (),
    faults: bool = False,
) -> AsyncIterator[RunningBridge]:
    """Run `mcp-bridge --listen ... OPTIONS -- COMMAND` and yield it when it is ready.

    Args:
        command: the server's command; none leaves `--` away (for `--config`).
        options: further options.
        listen: "unix" (a short private path), "tcp" (127.0.0.1, a free port), an ADDR, or several of these.
        env: variables on top of the test's own environment.
        expect_exit: the exit code of the SIGTERM at the end, if the test has not stopped it; None: any.
        leftover_timeout: how long processes may take to go after the bridge has ended, in seconds.
        python: options of the interpreter, such as `-X dev`.
        faults: the test itself has put faults into it, so tracebacks in the log are as they should be.
        wrapper: a command that runs the bridge as its own process or below it, and passes signals on.

    Raises:
        BridgeExited: it ended before it was ready; `code` and `stderr` say how.
        AssertionError: it left a process behind, wrote to stdout, logged a traceback or ended otherwise
            than expected.
    """
    private = tempfile.mkdtemp(prefix="mb-")
    wanted = [listen] if isinstance(listen, str) else list(listen)
    argv = [*wrapper, sys.executable, *python, "-m", "bridge"]
    for number, address in enumerate(wanted):
        if address == "unix":
            address = f"unix:{private}/{number}.sock"
        elif address == "tcp":
            address = "tcp:127.0.0.1:0"
        argv += ["--listen", address]
    argv += options
    if command:
        argv += ["--", *command]
    mark = uuid.uuid4().hex
    process = subprocess.Popen(  # noqa: ASYNC220 - forking takes a millisecond; its pipes have threads
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(mark, env),
        cwd=cwd,
    )
    bridge = RunningBridge(process, mark)
    try:
        await bridge._wait_ready(len(wanted), start_timeout)
        yield bridge
        stopped_here = process.poll() is None
        code = await bridge.stop()
        await bridge.no_process_left(leftover_timeout)
        text = bridge.stderr_text()
        if stopped_here and expect_exit is not None:
            assert code == expect_exit, f"exit code {code}, expected {expect_exit}; stderr:\n{text}"
        assert not bridge.stdout_bytes(), f"the bridge wrote to stdout: {bridge.stdout_bytes()[:300]!r}"
        own = [line for line in text.splitlines() if "[server]" not in line]
        assert faults or not any("Traceback (most recent" in line for line in own), (
            f"a traceback in the log:\n{text}"
        )
    except BaseException as error:
        if not isinstance(error, BridgeExited) and (text := bridge.stderr_text()):
            error.add_note("the bridge's stderr:\n" + text[-8000:])
        raise
    finally:
        bridge.kill_all()
        shutil.rmtree(private, ignore_errors=True)


@dataclass(frozen=True)
class Completed:
    """How a run of the command ended; `code` is negative for a signal."""

    code: int
    stdout: bytes
    stderr: str


async def run_command(
    *argv: str,
    input: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout: float = 20.0,
) -> Completed:
    """Run `mcp-bridge ARGV...` to its end: for usage errors, `connect`, `demo` and the like.

    Raises AssertionError if it does not end within `timeout` seconds; nothing of it is left then.
    """
    mark = uuid.uuid4().hex

    def run() -> Completed:
        process = subprocess.Popen(
            [sys.executable, "-m", "bridge", *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(mark, env),
            cwd=cwd,
        )
        try:
            stdout, stderr = process.communicate(input, timeout)
        except subprocess.TimeoutExpired:
            for pid in marked_processes(mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.kill()
            _, stderr = process.communicate()
            raise AssertionError(
                f"{argv} still running after {timeout} s; stderr:\n{stderr.decode(errors='replace')}"
            ) from None
        return Completed(process.returncode, stdout, stderr.decode(errors="replace"))

    return await asyncio.to_thread(run)
