"""How long it takes until the first answer, from the start of a process."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench.endpoints import BRIDGE, ECHO, ROOT, START_TIMEOUT, Running
from tests.bench.messages import INITIALIZE

# The bridge answers this itself, with an error. No server is asked.
NONSENSE = b"nonsense"
# A server that never answers.
SILENT = [sys.executable, "-S", "-E", "-c", "import sys; sys.stdin.read()"]
IMPORTS = "import asyncio, uvloop, msgspec"


@dataclass(frozen=True)
class Start:
    """One kind of start: `ms` is the median, `above_ms` the median of what it took longer than `above`."""

    name: str
    ms: float
    above: str
    above_ms: float


def _run(*arguments: str) -> float:
    """A bare interpreter, from start to end."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True)
    return time.perf_counter() - begin


def _bridge(first: bytes, server: Sequence[str]) -> float:
    """A bridge, from its start to the answer to a client that connects as soon as it can."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        path = f"{folder}/s"
        command = ["-m", "bridge", "--listen", f"unix:{path}", "--log-level", "error", "--", *server]
        begin = time.perf_counter()
        process = _start(*command)
        try:
            while True:
                with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(OSError):
                    sock.connect(path)
                    sock.settimeout(START_TIMEOUT)
                    sock.sendall(first + b"\n")
                    if sock.recv(1 << 16):
                        return time.perf_counter() - begin
                if time.perf_counter() - begin > START_TIMEOUT or process.poll() is not None:
                    raise SystemExit("bench: the bridge did not answer after its start")
                time.sleep(0.0002)
        finally:
            _end(process)


def _start(*arguments: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, env=env, stdin=pipe, stdout=pipe, bufsize=0
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.communicate(timeout=START_TIMEOUT)


def _pipes(*arguments: str) -> float:
    """A process that speaks on its pipes, from its start to its first answer."""
    begin = time.perf_counter()
    process = _start(*arguments)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(INITIALIZE + b"\n")
        if not process.stdout.read(1):
            raise SystemExit(f"bench: no answer from {arguments}")
        return time.perf_counter() - begin
    finally:
        _end(process)


def starts(rounds: int) -> list[Start]:
    """Each kind of start, so many times, in turn."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        target = Running(BRIDGE, Path(folder))
        try:
            assert isinstance(target.address, str)
            _pipes("-m", "bridge", "connect", target.address)  # the server is up behind it
            return _starts(rounds, target.address)
        finally:
            target.stop()


def _starts(rounds: int, address: str) -> list[Start]:
    bare, imports, server = "python -S -c pass", f'python -I -c "{IMPORTS}"', "the server alone, on its pipes"
    kinds: list[tuple[str, Callable[[], float], str]] = [
        (bare, lambda: _run("-S", "-c", "pass"), ""),
        (imports, lambda: _run("-I", "-c", IMPORTS), ""),
        (server, lambda: _pipes(*ECHO[1:]), ""),
        ("the bridge's own first answer", lambda: _bridge(NONSENSE, SILENT), imports),
        ("the server's first answer through it", lambda: _bridge(INITIALIZE, ECHO), server),
        ("connect: first answer through it", lambda: _pipes("-m", "bridge", "connect", address), bare),
    ]
    taken: dict[str, list[float]] = {name: [] for name, _, _ in kinds}
    for _ in range(rounds):
        for name, start, _ in kinds:
            taken[name].append(start() * 1000)
    found = []
    for name, _, above in kinds:
        more = [a - b for a, b in zip(taken[name], taken[above], strict=True)] if above else [0.0]
        found.append(Start(name, median(taken[name]), above, median(more)))
    return found


def table(found: Sequence[Start]) -> str:
    """The result as text."""
    lines = [f"{'start to ...':<46}{'ms':>8}"]
    for each in found:
        above = f"   {each.above_ms:+.1f} to {each.above}" if each.above else ""
        lines.append(f"  {each.name:<44}{each.ms:8.1f}{above}")
    return "\n".join(lines)
