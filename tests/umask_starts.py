"""Start bridges again and again under umask 000 while another user tries to get in.

    python3 -m tests.umask_starts [STARTS]                  10,000 whole starts unless said otherwise; as root
    python3 -m tests.umask_starts --listeners [STARTS]      only what a start does to the file system

A whole start is a `mcp-bridge` process of its own with a server, which is asked something and answers, and a
SIGTERM. Two run at a time, at two paths of one directory; 10,000 take about half an hour on two cores. The
normal run does three of them, and 10,000 with `--listeners`.

Prints how often the other user was kept out; exits with 1 if it was ever let in, or a start did not do all
that was said.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bridge.address import Address
from bridge.listener import open_listener
from tests import setup_parts

ROOT = Path(__file__).parent.parent
INTRUDER = ROOT / "tests" / "support" / "intruder.py"
# Who nobody is: a user without an entry anywhere.
UID = 54321

# Two paths, so that they also meet under the lock of their directory.
AT_A_TIME = 2
# For each step of a start, in seconds: a pass never waits so long.
PATIENCE = 60.0
REPORT_EVERY = 500

REQUEST = b"""{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","_meta":{\
"io.modelcontextprotocol/protocolVersion":"2026-07-28",\
"io.modelcontextprotocol/clientCapabilities":{}}}}
"""


class Intruder:
    """The other user at work; `counts` once it is done."""

    counts: dict[str, int]


@contextlib.contextmanager
def intruded() -> Iterator[tuple[Path, Intruder]]:
    """A directory that everybody may use, under umask 000, and another user who tries its sockets."""
    intruder = Intruder()
    before = os.umask(0)
    try:
        with tempfile.TemporaryDirectory(prefix="mb-", dir="/tmp") as name:
            os.chmod(name, 0o777)
            with subprocess.Popen(
                [sys.executable, "-S", str(INTRUDER), name, str(UID)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as process:
                assert process.stdin is not None
                assert process.stdout is not None
                try:
                    assert process.stdout.readline() == "ready\n"
                    yield Path(name), intruder
                    process.stdin.close()
                    intruder.counts = json.loads(process.stdout.readline())
                finally:
                    process.kill()
    finally:
        os.umask(before)


def listen_again_and_again(path: Path, starts: int, *, mode: int = 0o600, group: int | None = None) -> None:
    """Take a path and give it up again, so many times: all that a start does to the file system."""
    for _ in range(starts):
        (listener,) = open_listener(Address("unix", path=str(path)), mode=mode, group=group)
        listener.close()


def start_again_and_again(path: Path, starts: int) -> None:
    """Run the whole command at a path, so many times; AssertionError if one start is not as it should be."""
    for number in range(starts):
        start_once(path)
        if (number + 1) % REPORT_EVERY == 0:
            print(f"{path.name}: {number + 1} of {starts}", flush=True)


def start_once(path: Path) -> None:
    """Start a bridge, have its server answer a request, stop it; AssertionError if that fails."""
    server = [sys.executable, "-S", str(ROOT / "tests" / "servers" / "echo.py")]
    process = subprocess.Popen(
        [sys.executable, "-m", "bridge", "--listen", f"unix:{path}", "--", *server],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    answer = b""
    try:
        with connected(str(path), process) as sock:
            sock.sendall(REQUEST)
            while not answer.endswith(b"\n") and (data := sock.recv(65536)):
                answer += data
            process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert b'"result"' in answer, (answer, log)
    assert process.returncode == 0, (process.returncode, log)
    assert not path.exists(), log


def connected(path: str, process: subprocess.Popen[bytes]) -> socket.socket:
    """A connection to a bridge that is just being started."""
    deadline = time.monotonic() + PATIENCE
    while True:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(PATIENCE)
        try:
            sock.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            sock.close()
            assert time.monotonic() < deadline, "the bridge does not listen"
            assert process.poll() is None, process.communicate()
            time.sleep(0.002)
        else:
            return sock


def main() -> int:
    setup_parts.need_the_environment("tests.umask_starts", "uvloop", "msgspec")
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.umask_starts", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("starts", nargs="?", type=int, default=10_000, help="how many [%(default)s]")
    parser.add_argument("--listeners", action="store_true", help="only what a start does to the file system")
    args = parser.parse_args()
    if os.getuid():
        parser.error("only root can become another user: run it as root")
    before = time.monotonic()
    with intruded() as (place, intruder):
        if args.listeners:
            listen_again_and_again(place / "s", args.starts)
        else:
            with ThreadPoolExecutor(AT_A_TIME) as pool:
                shares = [(args.starts + more) // AT_A_TIME for more in range(AT_A_TIME)]
                paths = [place / f"s{number}" for number in range(AT_A_TIME)]
                list(pool.map(start_again_and_again, paths, shares))
    counts = intruder.counts
    print(
        f"{args.starts} starts in {time.monotonic() - before:.0f} s: {counts['denied']} attempts denied,"
        f" {counts['connected']} let in, {counts['reached']} reached a socket that nobody listened on"
    )
    return 1 if counts["connected"] or counts["reached"] or not counts["denied"] else 0


if __name__ == "__main__":
    sys.exit(main())
