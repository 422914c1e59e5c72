"""What is measured: started as real processes, each with the same server behind it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
ECHO = [sys.executable, "-S", "-E", str(HERE / "echo.py")]

# Load and server keep the memory of large messages, as the bridge does: what they cost is not the matter.
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    "MALLOC_TOP_PAD_": str(1 << 20),
}

# How long anything may take to start, and to stop before it is killed, in seconds.
START_TIMEOUT = 60.0
STOP_TIMEOUT = 5.0

# A process of its own for each client: more of them would measure the machine's memory.
MOST_SERVERS = 64


@dataclass(frozen=True)
class Endpoint:
    """Something that stands between clients and the echo server.

    Attributes:
        command: what to run, for a folder that is its own; None: clients start the server themselves.
        address: where clients connect then.
        own: whether its own process does the work, so that CPU and memory of that process mean something.
        one_each: it has a server for each client.
    """

    name: str
    command: Callable[[Path], list[str]] | None
    address: Callable[[Path], str | list[str]]
    own: bool = True
    one_each: bool = False
    http: bool = False


def _socket(folder: Path) -> str:
    return f"unix:{folder}/s"


def _bridge(folder: Path) -> list[str]:
    options = ["--listen", _socket(folder), "--max-clients", "20000", "--log-level", "error"]
    for name, value in KEEP_MEMORY.items():
        options += ["--env", f"{name}={value}"]
    return [sys.executable, "-m", "bridge", *options, "--", *ECHO]


def _socat(folder: Path) -> list[str]:
    return ["socat", f"UNIX-LISTEN:{folder}/s,fork,backlog=4096", "EXEC:" + " ".join(ECHO)]


def _relay(folder: Path) -> list[str]:
    return [sys.executable, "-S", "-E", str(HERE / "relay.py"), f"{folder}/s", *ECHO]


DIRECT = Endpoint("direct", None, lambda _: ECHO, own=False, one_each=True)
RELAY = Endpoint("relay", _relay, _socket, one_each=True)
SOCAT = Endpoint("socat", _socat, _socket, own=False, one_each=True)
BRIDGE = Endpoint("mcp-bridge", _bridge, _socket)


def usual() -> list[Endpoint]:
    """What is compared without being asked: direct pipes, `socat` if it is installed, the bridge."""
    return [DIRECT, *([SOCAT] if shutil.which("socat") else []), BRIDGE]


class Running:
    """A started endpoint; `address` is where clients go, `start_ms` what it took until they could."""

    def __init__(self, endpoint: Endpoint, folder: Path) -> None:
        self.endpoint = endpoint
        self.process: subprocess.Popen[bytes] | None = None
        self.address = endpoint.address(folder)
        self.start_ms = 0.0
        if endpoint.command is None:
            return
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        if endpoint in (RELAY, SOCAT):  # for the servers below; the bridge passes it to its own
            env |= KEEP_MEMORY
        with open(folder / "log", "wb") as log:
            begin = time.monotonic()
            self.process = subprocess.Popen(
                endpoint.command(folder),
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            assert isinstance(self.address, str)
            self._wait(self.address, begin)
        except BaseException:
            self.stop()
            print((folder / "log").read_text(errors="replace")[-2000:], file=sys.stderr)
            raise

    def _wait(self, address: str, begin: float) -> None:
        assert self.process is not None
        while True:
            with contextlib.suppress(OSError), connection(address):
                self.start_ms = (time.monotonic() - begin) * 1000
                return
            if self.process.poll() is not None:
                raise SystemExit(f"bench: {self.endpoint.name} ended before anybody could connect")
            if time.monotonic() - begin > START_TIMEOUT:
                raise SystemExit(f"bench: nobody can connect to {self.endpoint.name}")
            time.sleep(0.001)

    def cpu(self) -> float:
        """CPU time of its own process so far, in seconds."""
        return cpu_seconds(self.process.pid) if self.process is not None and self.endpoint.own else 0.0

    def memory(self) -> int:
        """Resident memory of its own process now, in bytes."""
        return resident(self.process.pid) if self.process is not None and self.endpoint.own else 0

    def stop(self) -> None:
        """End it, and what it started."""
        process = self.process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        # What is left of its group, which it leads: it has a session of its own. It is empty for the bridge.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        self.process = None


@contextlib.contextmanager
def connection(address: str) -> Iterator[socket.socket]:
    """A connection to `unix:PATH`, `tcp:HOST:PORT` or `http://HOST:PORT/...`, closed behind."""
    kind, _, where = address.partition(":")
    if kind == "unix":
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(where)
            yield sock
    else:
        host, _, port = where.removeprefix("//").partition("/")[0].rpartition(":")
        with socket.create_connection((host, int(port)), 5) as sock:
            yield sock


def free_port() -> int:
    """A TCP port of this machine that nobody uses now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def cpu_seconds(pid: int) -> float:
    """CPU time of a process: what `utime` and `stime` of /proc/PID/stat add up to, but in nanoseconds."""
    # The number of a process's clock: clock_getcpuclockid(3), which Python does not have.
    return time.clock_gettime((~pid << 3) | 2)


def resident(pid: int) -> int:
    """Resident memory of a process, in bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
