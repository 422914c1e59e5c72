"""The head start: what is opened and started before anything slow is imported, and how it is undone."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from bridge import headstart, warn
from bridge.address import parse_address
from bridge.config import Settings
from bridge.errors import ConfigError, ListenError, SpawnError
from bridge.guard import Guard
from bridge.headstart import HeadStart
from bridge.peers import PeerPolicy

ROOT = Path(__file__).parents[2]
WAIT_S = 10.0
# Whatever takes longer to import than the server may wait for.
SLOW = ("aiohttp", "asyncio", "dataclasses", "inspect", "logging", "msgspec", "typing", "uvloop")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short path, for socket addresses."""
    with tempfile.TemporaryDirectory(prefix="mb-") as path:
        yield Path(path)


def settings(
    place: Path,
    *command: str,
    listen: tuple[str, ...] = ("s",),
    admin: str | None = None,
    sharing: Literal["shared", "isolated", "auto"] = "shared",
    peers: PeerPolicy | None = None,
) -> Settings:
    """Those of a bridge that listens in `place`."""
    return Settings(
        listen=tuple(parse_address(name if ":" in name else f"unix:{place}/{name}") for name in listen),
        command=command or ("sleep", "1000"),
        admin=None if admin is None else parse_address(f"unix:{place}/{admin}"),
        sharing=sharing,
        peers=PeerPolicy() if peers is None else peers,
    )


@pytest.fixture
def start() -> Iterator[HeadStart]:
    made = HeadStart()
    yield made
    made.close()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_it_is_made_before_anything_slow_is_imported(place: Path) -> None:
    """A server takes hundreds of milliseconds to start: none of ours may come before them."""
    code = (
        "import sys\n"
        "from bridge.cli import main\n"
        "from bridge.headstart import HeadStart\n"
        "from bridge.signals import EarlySignals\n"
        "make = HeadStart.make\n"
        "def made(start, settings):\n"
        "    make(start, settings)\n"
        f"    print(*sorted(set({SLOW!r}) & set(sys.modules)), start._server.process.pid > 1)\n"
        "    raise SystemExit(start.close())\n"
        "HeadStart.make = made\n"
        f"main(['--listen', 'unix:{place}/s', '--listen', 'tcp:localhost:0', '--', 'sleep', '1000'])\n"
    )
    # Without site-packages, which may bring modules of their own.
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_clients_can_connect_and_the_server_runs(place: Path, start: HeadStart) -> None:
    start.make(settings(place))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"{place}/s")
    server = start.take_server()
    assert server is not None
    try:
        assert server.process.poll() is None
        assert start.guard is not None
        assert server.process.pid in start.guard._groups
        assert start.take_server() is None
    finally:
        server.process.kill()
        server.process.wait()


@pytest.mark.parametrize("sharing", ["shared", "auto"])
def test_what_nobody_took_is_undone(
    place: Path, start: HeadStart, sharing: Literal["shared", "auto"]
) -> None:
    before = open_descriptors()
    start.make(settings(place, sharing=sharing, admin="a"))
    server, guard = start._server, start.guard
    assert server is not None
    assert not isinstance(server, SpawnError)
    assert guard is not None
    pids = [server.process.pid, guard.pid or 0]
    assert sorted(os.listdir(place)) == ["a", "s"]
    start.close()
    assert os.listdir(place) == []
    assert not any(map(alive, pids)), "neither runs, and neither is a zombie"
    assert open_descriptors() == before
    start.close()


@pytest.mark.parametrize("deaf", ["", "trap '' TERM; "], ids=["ends", "deaf"])
def test_the_whole_group_of_the_server_is_ended(place: Path, start: HeadStart, deaf: str) -> None:
    script = f"{deaf}sleep 1000 & echo $! >{place}/new; mv {place}/new {place}/pid; while :; do wait; done"
    start.make(settings(place, "sh", "-c", script))
    deadline = time.monotonic() + WAIT_S
    while not (place / "pid").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    grandchild = int((place / "pid").read_text())
    start.close()
    while alive(grandchild) and "Z" not in Path(f"/proc/{grandchild}/stat").read_text().split():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_server_is_asked_to_end_before_it_is_killed(
    place: Path, start: HeadStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have made something by then that it has to take away."""
    monkeypatch.setattr(headstart, "TERM_GRACE_S", WAIT_S)  # a loaded machine
    # Nothing but what the shell does itself: the signal goes to the whole group.
    tidy = f"trap ': >{place}/tidied; exit' TERM; : >{place}/made; while :; do sleep 0.01; done"
    start.make(settings(place, "sh", "-c", tidy))
    deadline = time.monotonic() + WAIT_S
    while not (place / "made").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    start.close()
    assert sorted(os.listdir(place)) == ["made", "tidied"]


def test_a_server_that_was_taken_is_left_alone(place: Path, start: HeadStart) -> None:
    start.make(settings(place))
    server = start.take_server()
    assert server is not None
    try:
        guard, start.guard = start.guard, None
        start.close()
        assert server.process.poll() is None
    finally:
        server.process.kill()
        server.process.wait()
        assert guard is not None
        guard.close()


def test_with_a_process_for_each_client_none_is_started(place: Path, start: HeadStart) -> None:
    start.make(settings(place, f"{place}/missing", sharing="isolated"))
    assert start.take_server() is None


def test_a_command_that_cannot_be_run_is_told_to_who_asks_for_the_server_and_once(
    place: Path, start: HeadStart
) -> None:
    """Clients and the service manager are served before that, as at any later start."""
    start.make(settings(place, f"{place}/missing"))
    assert os.listdir(place) == ["s"]
    with pytest.raises(SpawnError, match="was not found") as raised:
        start.take_server()
    assert raised.value.exit_code == 127
    assert start.take_server() is None


@pytest.mark.parametrize(
    ("listen", "admin", "peers", "error"),
    [
        (("s", "taken"), None, None, ListenError),
        (("taken", "s"), None, None, ListenError),
        (("s",), "taken", None, ListenError),
        (("s", "tcp:192.0.2.1:0"), None, None, ConfigError),
        (("s", "systemd:"), None, None, ConfigError),
        (("tcp:127.0.0.1:0",), None, PeerPolicy(frozenset({12345})), ConfigError),
    ],
)
def test_no_server_is_started_if_a_listener_cannot_be_opened(
    place: Path,
    start: HeadStart,
    listen: tuple[str, ...],
    admin: str | None,
    peers: PeerPolicy | None,
    error: type[Exception],
) -> None:
    (place / "taken").write_text("a file")
    before = open_descriptors()
    with pytest.raises(error):
        start.make(settings(place, "touch", f"{place}/started", listen=listen, admin=admin, peers=peers))
    assert start._server is None
    assert start.guard is None
    start.close()
    assert os.listdir(place) == ["taken"]
    assert open_descriptors() == before


def test_a_bridge_without_a_guard_starts_the_server_all_the_same(
    place: Path, start: HeadStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Guard, "start", lambda: None)
    start.make(settings(place))
    server = start._server
    assert server is not None
    assert not isinstance(server, SpawnError)
    start.close()
    assert server.process.returncode == -signal.SIGTERM


def test_warnings_wait_until_logging_is_set_up(caplog: pytest.LogCaptureFixture) -> None:
    """In order, and those that come later at once."""
    warn.hold()
    try:
        warn.warn("%s at first", "one")
        warn.warn("100 % of it")
        assert caplog.messages == []
    finally:
        warn.release()
    warn.warn("another")
    warn.release()
    assert caplog.messages == ["one at first", "100 % of it", "another"]
    assert {(record.name, record.levelno) for record in caplog.records} == {("bridge", logging.WARNING)}


# --- Signals


EARLY = (
    "import os, signal, sys, time\n"
    "from bridge.signals import EarlySignals\n"
    "def say(text): sys.stdout.write(text + ' '); sys.stdout.flush()\n"
    "early = EarlySignals()\n"
)


def run(code: str) -> tuple[int, str, str]:
    """A program that begins as `EARLY`: its exit code, stdout and stderr."""
    command = [sys.executable, "-c", EARLY + code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 0), ("SIGINT", 0), ("SIGQUIT", 1)])
def test_an_early_signal_ends_the_process_with_nothing_to_undo(name: str, code: int) -> None:
    assert run(f"os.kill(os.getpid(), signal.{name}); say('lives')") == (code, "", "")


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 0), ("SIGINT", 0), ("SIGQUIT", 1)])
def test_an_early_signal_waits_until_all_is_made_that_it_undoes(name: str, code: int) -> None:
    """In the midst of it nobody knows yet which process was started."""
    program = (
        "with early.held(lambda: say('undone')):\n"
        f"    os.kill(os.getpid(), signal.{name}); say('made')\n"
        "say('lives')"
    )
    assert run(program) == (code, "made undone ", "")


def test_an_early_signal_undoes_what_was_made_even_if_making_it_failed() -> None:
    program = (
        "try:\n"
        "    with early.held(lambda: say('undone')): raise ValueError\n"
        "except ValueError: say('failed')\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "say('lives')"
    )
    assert run(program) == (0, "failed undone ", "")


def test_a_second_early_signal_does_not_cut_the_undoing_short() -> None:
    program = (
        "def undo(): say('begun'); os.kill(os.getpid(), signal.SIGINT); say('undone')\n"
        "with early.held(undo): pass\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "say('lives')"
    )
    assert run(program) == (0, "begun undone ", "")


def test_a_fault_in_the_undoing_does_not_keep_the_process() -> None:
    program = (
        "def undo(): raise OSError\n"
        "with early.held(undo): pass\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "say('lives')"
    )
    assert run(program)[:2] == (0, "")
