"""The guard: nothing of a server is left when the bridge is killed with SIGKILL."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bridge import guard as guard_module
from bridge.guard import Guard

WAIT_S = 10.0
# The guard's second and a slow machine; for a user it is still "nothing is left".
GONE_S = 5.0
SHELLS = [path for name in ("sh", "dash", "bash", "ash", "ksh", "mksh") if (path := shutil.which(name))]

# A bridge reduced to one child and the guard; prints the pids of the guard and the server, then idles.
BRIDGE = """
import asyncio, os, sys, uvloop
from bridge.child import spawn
from bridge.guard import Guard
from bridge.hangup import HangupWatch

class Owner:
    def child_data(self, child, data): sys.stdout.write(data.decode()); sys.stdout.flush()
    def child_blocked(self, child): pass
    def child_writable(self, child): pass
    def child_ending(self, child): pass
    def child_ended(self, child): print("ended", flush=True)

async def main():
    guard = Guard.start()
    hangups = HangupWatch(asyncio.get_running_loop())
    child = await spawn(Owner(), sys.argv[1:], env=os.environ, cwd=None, guard=guard, hangups=hangups,
                        relay=None, stderr="null")
    print(guard.pid, child.pid, flush=True)
    await asyncio.sleep(600)

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""

DEAF = """
trap '' TERM INT HUP
(while :; do sleep 1000; done) & echo $!
while :; do sleep 1000; done
"""


def running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def ignores(pid: int, number: int) -> bool:
    """Whether a process ignores a signal: the shell takes a moment to get to its first line."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigIgn:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def wait_until(condition: Callable[[], object], seconds: float = WAIT_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def sleepers() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Makes processes that lead a group of their own and sleep."""
    made: list[subprocess.Popen[bytes]] = []

    def make() -> subprocess.Popen[bytes]:
        made.append(subprocess.Popen(["sleep", "1000"], start_new_session=True))
        return made[-1]

    yield make
    for process in made:
        process.kill()
        process.wait()


@pytest.fixture
def guard() -> Iterator[Guard]:
    guard = Guard.start()
    assert guard is not None
    yield guard
    guard.close()


@contextlib.contextmanager
def reduced_bridge(*command: str) -> Iterator[tuple[subprocess.Popen[str], int, int, int]]:
    """A running bridge process with its guard, server and the first number its server printed."""
    bridge = subprocess.Popen(
        [sys.executable, "-c", BRIDGE, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    )
    groups: list[int] = []
    try:
        assert bridge.stdout is not None
        guard_pid, server = map(int, bridge.stdout.readline().split())
        assert min(guard_pid, server) > 1
        groups += [guard_pid, server]
        other = int(bridge.stdout.readline())
        yield bridge, guard_pid, server, other
    finally:
        bridge.kill()
        bridge.communicate()
        # Only the two groups made here, never a number a server printed: killing "group 1" is killing
        # every process.
        for pgid in groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pgid, signal.SIGKILL)


# --- kill -9


def test_a_deaf_server_and_its_children_are_gone_after_kill_9_of_the_bridge() -> None:
    """Contract, the child: also a server that ignores the end of its input and SIGTERM."""
    with reduced_bridge("sh", "-c", DEAF) as (bridge, guard_pid, server, other):
        bridge.kill()
        bridge.wait()
        wait_until(lambda: not any(map(running, (server, other, guard_pid))), GONE_S)


def test_the_guard_outlives_the_process_group_of_the_bridge_and_polite_signals() -> None:
    """A terminal's Ctrl-C, or a service manager's SIGTERM to all, reaches every process of the bridge."""
    with reduced_bridge("sh", "-c", DEAF) as (bridge, guard_pid, server, other):
        wait_until(lambda: ignores(guard_pid, signal.SIGTSTP))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
            os.kill(guard_pid, number)
        assert os.getsid(guard_pid) == guard_pid
        os.killpg(bridge.pid, signal.SIGKILL)
        bridge.wait()
        wait_until(lambda: not any(map(running, (server, other, guard_pid))), GONE_S)


def test_a_server_has_time_to_end_by_itself_when_the_bridge_is_killed(tmp_path: Path) -> None:
    """Contract: no parent-death signal, which kills before a clean exit at the end of input."""
    mark = tmp_path / "clean"
    server_code = f"echo $$; cat > /dev/null; sleep 0.3; echo clean > '{mark}'"
    with reduced_bridge("sh", "-c", server_code) as (bridge, guard_pid, server, _):
        bridge.kill()
        bridge.wait()
        wait_until(lambda: not running(server) and not running(guard_pid), GONE_S)
        assert mark.read_text() == "clean\n"


# A bridge that is killed when it has just started its server, before it can list it.
KILLED_AT_ONCE = """
import os, signal, sys
from bridge import child, guard, process
def killed(*args):
    os.kill(os.getpid(), signal.SIGKILL)
guard.Guard.add = killed
keeper = guard.Guard.start()
import asyncio
asyncio.run(child.spawn(None, sys.argv[1:], env=os.environ, cwd=None, guard=keeper, hangups=None, relay=None,
                        stderr="inherit"))
"""


def test_a_server_that_was_just_started_goes_too_if_the_bridge_is_killed_before_it_is_listed() -> None:
    argv = [sys.executable, "-c", KILLED_AT_ONCE, "/bin/sh", "-c", "echo $$ >&2; " + DEAF]
    # It reads no stdin, so that nothing but the guard ends it.
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as bridge:
        assert bridge.stderr is not None
        pid = int(bridge.stderr.readline())
        assert bridge.wait(WAIT_S) == -signal.SIGKILL
        assert pid > 1
        try:
            wait_until(lambda: not running(pid), GONE_S)
        finally:
            if running(pid):
                os.killpg(pid, signal.SIGKILL)


def test_a_server_that_could_not_be_started_is_expected_no_more(guard: Guard) -> None:
    """The guard has nothing to wait for then, and ends at once."""
    guard.expect(12345)
    guard.expect(0)
    process = guard._process
    assert process is not None
    began = time.monotonic()
    os.close(guard._pipe)
    assert process.wait(WAIT_S) == 0
    guard._pipe = os.open(os.devnull, os.O_WRONLY)
    assert time.monotonic() - began < 1.0, "the second of grace was not waited for"


def test_children_left_by_a_server_that_ended_politely_are_gone_too() -> None:
    """Reported: kill the wrapper only."""
    with reduced_bridge("sh", "-c", "sleep 1000 & echo $!; cat > /dev/null") as (bridge, _, server, other):
        bridge.kill()
        bridge.wait()
        wait_until(lambda: not running(server) and not running(other), GONE_S)


# --- The list


@pytest.mark.parametrize("shell", SHELLS)
def test_only_listed_groups_are_killed_by_any_shell(
    shell: str, sleepers: Callable[[], subprocess.Popen[bytes]]
) -> None:
    """The script keeps to POSIX."""
    guard = Guard.start([shell])
    assert guard is not None
    assert guard.pid is not None
    listed, removed, stranger, late = (sleepers() for _ in range(4))
    for process in (listed, removed, late):
        guard.add(process.pid)
    guard.remove(removed.pid)
    guard.remove(removed.pid)
    guard.remove(stranger.pid)
    # The bridge dies: nothing closes the list, the pipe just ends.
    os.close(guard._pipe)
    assert guard._process is not None
    assert guard._process.wait(WAIT_S) == 0
    assert listed.wait(WAIT_S) == late.wait(WAIT_S) == -signal.SIGKILL
    assert removed.poll() is None
    assert stranger.poll() is None


def test_with_nothing_listed_the_guard_ends_at_once(sleepers: Callable[[], subprocess.Popen[bytes]]) -> None:
    guard = Guard.start()
    assert guard is not None
    pid = guard.pid
    assert pid is not None
    process = sleepers()
    guard.add(process.pid)
    guard.remove(process.pid)
    before = len(os.listdir("/proc/self/fd"))
    shell = guard._process
    guard.close()
    assert shell is not None
    assert shell.returncode == 0, "it did not end by itself"
    assert not os.path.exists(f"/proc/{pid}")  # reaped, too
    assert len(os.listdir("/proc/self/fd")) == before - 1
    assert process.poll() is None
    guard.close()  # idempotent
    guard.add(process.pid)
    guard.remove(process.pid)
    assert guard.pid is None


def test_numbers_that_mean_every_process_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`kill(-1)` reaches everybody. Nothing may come of it here even if the refusal is broken."""
    told: list[bytes] = []
    monkeypatch.setattr(Guard, "_tell", lambda self, line: told.append(line))
    monkeypatch.setattr(os, "killpg", lambda pgid, number: None)
    guard = Guard.start()
    assert guard is not None
    for pgid in (-1, 0, 1):
        with pytest.raises(ValueError, match="no process group"):
            guard.add(pgid)
    guard.close()
    assert told == []


def test_closing_kills_what_is_still_listed(sleepers: Callable[[], subprocess.Popen[bytes]]) -> None:
    guard = Guard.start()
    assert guard is not None
    process = sleepers()
    guard.add(process.pid)
    shell = guard._process
    guard.close()
    assert process.wait(WAIT_S) == -signal.SIGKILL
    assert shell is not None
    assert shell.returncode == 0, "it waited for a second, though nothing was left to wait for"


def test_a_guard_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait has a bound."""
    monkeypatch.setattr(guard_module, "CLOSE_TIMEOUT_S", 0.1)
    guard = Guard.start()
    assert guard is not None
    assert guard.pid is not None
    pid = guard.pid
    os.kill(pid, signal.SIGSTOP)
    guard.close()
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"))


def test_the_guard_keeps_nothing_of_the_bridge_open(guard: Guard, tmp_path: Path) -> None:
    """Not its directory, not its output, no inherited descriptor."""
    assert guard.pid is not None
    base = Path(f"/proc/{guard.pid}")
    wait_until(lambda: (base / "cmdline").read_bytes().endswith(b"mcp-bridge-guard\0"))
    assert os.readlink(base / "cwd") == "/"
    assert os.readlink(base / "fd/1") == os.readlink(base / "fd/2") == "/dev/null"
    assert sorted(os.listdir(base / "fd")) in (["0", "1", "2"], ["0", "1", "10", "2"], ["0", "1", "2", "255"])
    assert not os.get_inheritable(guard._pipe)


# --- What can happen to the guard


def test_without_a_shell_there_is_a_warning_and_no_guard(caplog: pytest.LogCaptureFixture) -> None:
    """Contract: "Without `sh`: a warning"."""
    before = len(os.listdir("/proc/self/fd"))
    with caplog.at_level(logging.WARNING):
        assert Guard.start(["/no/such/sh", "no-such-sh"]) is None
    assert "no sh to run" in caplog.text
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_second_shell_is_tried_when_the_first_is_missing() -> None:
    guard = Guard.start(["/no/such/sh", "sh"])
    assert guard is not None
    guard.close()


def test_a_guard_that_was_killed_is_replaced_with_the_whole_list(
    guard: Guard, sleepers: Callable[[], subprocess.Popen[bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = (sleepers() for _ in range(3))
    guard.add(first.pid)
    guard.add(second.pid)
    old = guard.pid
    assert old is not None
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: not running(old))
    guard.add(third.pid)
    assert guard.pid not in (None, old)
    assert not os.path.exists(f"/proc/{old}")
    assert "started again" in caplog.text
    guard.remove(second.pid)
    assert guard._process is not None
    os.close(guard._pipe)
    assert guard._process.wait(WAIT_S) == 0
    guard._pipe = os.open("/dev/null", os.O_WRONLY)  # for `close`, which ends the test
    assert first.wait(WAIT_S) == third.wait(WAIT_S) == -signal.SIGKILL
    assert second.poll() is None
    guard._groups.clear()


def test_a_guard_that_is_stuck_is_replaced_and_kills_nobody(
    guard: Guard, sleepers: Callable[[], subprocess.Popen[bytes]]
) -> None:
    """Stopped, its pipe fills up; a write must not block the bridge. Its list is still wanted alive."""
    process = sleepers()
    guard.add(process.pid)
    old = guard.pid
    assert old is not None
    os.kill(old, signal.SIGSTOP)
    other = sleepers()
    for _ in range(20000):
        guard.add(other.pid)
        guard.remove(other.pid)
        if guard.pid != old:
            break
    assert guard.pid not in (None, old)
    wait_until(lambda: not os.path.exists(f"/proc/{old}"))
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)  # longer than the second a guard waits at the end of its list
    guard.remove(process.pid)


def test_a_guard_that_cannot_be_replaced_costs_a_warning_only(
    sleepers: Callable[[], subprocess.Popen[bytes]], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    shell = tmp_path / "shell"
    shell.symlink_to("/bin/sh")
    guard = Guard.start([str(shell)])
    assert guard is not None
    assert guard.pid is not None
    pid = guard.pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not running(pid))
    shell.unlink()
    process = sleepers()
    before = len(os.listdir("/proc/self/fd"))
    guard.add(process.pid)
    assert guard.pid is None
    assert "may outlive" in caplog.text
    assert len(os.listdir("/proc/self/fd")) == before - 1
    guard.remove(process.pid)
    guard.add(process.pid)
    guard.remove(process.pid)
    guard.close()
    assert process.poll() is None


def test_a_new_guard_that_dies_at_once_is_given_up(
    guard: Guard, sleepers: Callable[[], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that always dies must not be started again and again; it is made to by a failing write."""
    process = sleepers()
    monkeypatch.setattr(Guard, "_write", lambda self, line: False)
    guard.add(process.pid)
    assert guard.pid is None
    guard.remove(process.pid)
