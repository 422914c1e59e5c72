"""The server's process: real processes on both event loops, started, spoken to, crashed and stopped."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import uvloop

from bridge import child as child_module
from bridge.child import Child, spawn
from bridge.errors import SpawnError
from bridge.guard import Guard
from bridge.hangup import HangupWatch, hung_up
from bridge.outputs import StderrLines

WAIT_S = 10.0
MIB = 1 << 20
LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [uvloop.new_event_loop, asyncio.new_event_loop]
PATH = {"PATH": os.environ.get("PATH", os.defpath)}


class Owner:
    """Keeps what a child tells it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.events: list[str] = []
        self.ending: list[Child] = []
        self.spawned = False
        self.changed = asyncio.Event()
        self.on_data: Callable[[Child], None] = lambda child: None
        self.at_end: dict[str, object] = {}

    def child_data(self, child: Child, data: bytes) -> None:
        assert self.spawned, "data before spawn had returned"
        assert "ended" not in self.events, "data after the end"
        self.data += data
        self.changed.set()
        self.on_data(child)

    def child_blocked(self, child: Child) -> None:
        self.events.append("blocked")
        self.changed.set()

    def child_writable(self, child: Child) -> None:
        self.events.append("writable")
        self.changed.set()

    def child_ending(self, child: Child) -> None:
        assert child.ending
        assert child not in self.ending
        self.ending.append(child)

    def child_ended(self, child: Child) -> None:
        assert self.spawned, "ended before spawn had returned"
        self.events.append("ended")
        self.at_end = {"status": child.status, "runs": running(child.pid)}
        self.changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def ended(self) -> None:
        await self.until(lambda: "ended" in self.events)

    async def line(self) -> bytes:
        """The first line, which scripts use to say that they are ready."""
        await self.until(lambda: b"\n" in self.data)
        return bytes(self.data[: self.data.index(b"\n")])


class ListingGuard(Guard):
    """A guard that remembers the groups it was told of, and whether each was unreaped when it was removed."""

    __slots__ = ("added", "removed")

    added: list[int]
    removed: list[tuple[int, bool]]

    def add(self, pgid: int) -> None:
        self.added.append(pgid)
        super().add(pgid)

    def remove(self, pgid: int) -> None:
        if pgid in self._groups:
            self.removed.append((pgid, exists(pgid)))
        super().remove(pgid)


class ErrorLog(logging.Handler):
    """Keeps what is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


class Bench:
    """What a bridge has around its children; checks at the end that nothing is left of them."""

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.loop = asyncio.get_running_loop()
        self.hangups = HangupWatch(self.loop)
        guard = ListingGuard.start()
        assert isinstance(guard, ListingGuard)
        self.guard = guard
        self.guard.added, self.guard.removed = [], []
        self.lines: list[bytes] = []
        self.complaints: list[dict[str, Any]] = []
        self.log = ErrorLog()
        logging.getLogger("bridge").addHandler(self.log)
        self.loop.set_exception_handler(lambda loop, context: self.complaints.append(context))

    async def spawn(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] = PATH,
        cwd: str | None = None,
        hangups: bool = True,
        stderr: Literal["relay", "inherit", "null"] = "relay",
    ) -> tuple[Child, Owner]:
        owner = Owner()
        child = await spawn(
            owner,
            command,
            env=env,
            cwd=cwd,
            guard=self.guard,
            hangups=self.hangups if hangups else None,
            relay=self.lines.append,
            stderr=stderr,
        )
        owner.spawned = True
        return child, owner

    async def python(self, code: str, **options: Any) -> tuple[Child, Owner]:
        return await self.spawn([sys.executable, "-ISc", code], **options)

    async def close(self) -> None:
        # SIGKILL has been sent; a grandchild needs a moment to die of it.
        await settled(lambda: not any(group_lives(pid) for pid in self.guard.added))
        assert self.hangups._callbacks == {}, "still watching a closed descriptor"
        self.hangups.close()
        self.guard.close()
        logging.getLogger("bridge").removeHandler(self.log)
        assert sorted(pid for pid, _ in self.guard.removed) == sorted(self.guard.added)
        assert all(unreaped for _, unreaped in self.guard.removed), "reaped before the guard let go of it"
        assert self.complaints == []
        assert self.log.messages == []


def on_each_loop(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test with a `Bench` on uvloop and on the stock loop."""

    @pytest.mark.parametrize("new_loop", LOOPS, ids=["uvloop", "asyncio"])
    def run(new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path) -> None:
        async def body() -> None:
            bench = Bench(tmp_path)
            try:
                async with asyncio.timeout(4 * WAIT_S):
                    await test(bench)
            finally:
                await bench.close()

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(body())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


def exists(pid: int) -> bool:
    """Whether the number belongs to a process, be it a zombie."""
    return os.path.exists(f"/proc/{pid}")


def running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def group_lives(pgid: int) -> bool:
    """Whether a process group has a member that runs."""
    for name in os.listdir("/proc"):
        if name.isdigit() and running(int(name)):
            try:
                if os.getpgid(int(name)) == pgid:
                    return True
            except ProcessLookupError:
                continue
    return False


async def gone(pid: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while running(pid):  # noqa: ASYNC110 - nobody tells of the end of a stranger
            await asyncio.sleep(0.01)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- An ordinary life


@on_each_loop
async def test_bytes_go_in_and_out_and_the_end_is_told_once(bench: Bench) -> None:
    """Contract: real pipes for its stdio."""
    child, owner = await bench.spawn(["cat"])
    assert child.status is None
    assert child.describe_status() == "running"
    assert child.started_at <= bench.loop.time()
    assert len(bench.hangups._callbacks) == 1
    child.write(b"one\n")
    child.write(b"two\n")
    await owner.until(lambda: owner.data == b"one\ntwo\n")
    assert owner.ending == []
    await child.stop(WAIT_S)
    assert owner.ending == [child]
    assert child.unread == 0
    assert owner.events == ["ended"]
    assert owner.at_end == {"status": 0, "runs": False}
    assert child.describe_status() == "exit status 0"
    assert bench.guard.removed == [(child.pid, True)]


@on_each_loop
async def test_it_is_known_what_a_server_that_exited_had_not_read(bench: Bench) -> None:
    """Contract section 7: who exits on the probe is a legacy server, who fails before it reads is not."""
    child, owner = await bench.python("import os, time; os.read(0, 4); time.sleep(0.2)")
    child.write(b"one\ntwo\n")
    await owner.until(lambda: "ended" in owner.events)
    assert owner.ending == [child]
    assert child.unread == 4


@on_each_loop
async def test_a_server_may_open_dev_stdin_and_dev_stdout(bench: Bench) -> None:
    """uvloop's own subprocesses have sockets there, which cannot be opened."""
    child, owner = await bench.spawn(["sh", "-c", "cat /dev/stdin > /dev/stdout"])
    child.write(b"x\n")
    assert await owner.line() == b"x"
    await child.stop(WAIT_S)
    assert child.status == 0


@on_each_loop
async def test_a_server_leads_its_own_session_and_inherits_three_descriptors_only(bench: Bench) -> None:
    """Contract: own session and process group; only its three descriptors."""
    loose = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(loose, True)
    try:
        _child, owner = await bench.python(
            "import os\n"
            "there = lambda fd: os.path.exists(f'/proc/self/fd/{fd}')\n"
            "print(os.getpid() == os.getsid(0) == os.getpgid(0), sorted(filter(there, os.listdir('/proc/self/fd'))))"  # noqa: E501 - a script
        )
        await owner.ended()
    finally:
        os.close(loose)
    assert owner.data == b"True ['0', '1', '2']\n"


@on_each_loop
async def test_the_environment_is_the_mapping_and_nothing_else(bench: Bench) -> None:
    """Contract: environment, `--cwd`."""
    _, owner = await bench.spawn(["env"], env={**PATH, "A": "b c"}, cwd=str(bench.tmp))
    await owner.ended()
    assert sorted(owner.data.splitlines()) == sorted([b"A=b c", b"PATH=" + PATH["PATH"].encode()])
    _, owner = await bench.spawn(["pwd", "-P"], cwd=str(bench.tmp))
    await owner.ended()
    assert owner.data.decode().strip() == str(bench.tmp.resolve())


@on_each_loop
async def test_the_command_is_found_through_the_servers_own_path(bench: Bench) -> None:
    """Our choice: `--env PATH=...` decides which program runs."""
    tool = bench.tmp / "only-here"
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    for command, cwd in (["only-here"], None), (["./only-here"], str(bench.tmp)):
        _, owner = await bench.spawn(command, env={"PATH": str(bench.tmp)}, cwd=cwd)
        await owner.ended()
        assert owner.data == b"found\n"


@on_each_loop
async def test_an_ignored_sigchld_does_not_lose_the_exit_status(bench: Bench) -> None:
    """Some parents hand it down; the system would then reap by itself."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        child, owner = await bench.spawn(["sh", "-c", "exit 7"])
        await owner.ended()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert child.status == 7


# --- Crashes and other ends


@on_each_loop
async def test_all_a_server_wrote_before_it_crashed_is_delivered(bench: Bench) -> None:
    """Reported: an answer written just before the exit; the pipe may be full of them."""
    child, owner = await bench.python("import os; os.write(1, b'x' * 1000000); os.kill(os.getpid(), 9)")
    await owner.ended()
    assert len(owner.data) == 1000000
    assert child.status == -signal.SIGKILL
    assert child.describe_status() == "killed by SIGKILL"


@on_each_loop
async def test_a_busy_loop_does_not_cost_what_a_dead_server_wrote(bench: Bench) -> None:
    """The time for reading may be over before the loop looks at the pipe at all."""
    child, owner = await bench.python("import os; os.write(1, b'x' * 1000000 + b'end\\n'); os._exit(3)")
    bench.loop.call_soon(time.sleep, 0.6)  # a stand-in for a loop that is busy; nothing is waited for
    await owner.ended()
    assert owner.data[-4:] == b"end\n"
    assert len(owner.data) == 1000004
    assert child.describe_status() == "exit status 3"


@on_each_loop
async def test_what_nobody_has_read_when_the_time_is_over_is_still_delivered(bench: Bench) -> None:
    """As above, forced: the loop never gets to the pipes, which a grandchild holds open besides."""
    child, owner = await bench.spawn(["sh", "-c", "sleep 1000 & read x; echo out; echo err >&2; exit 3"])
    assert child._stdout is not None
    assert child._stderr is not None
    child._stdout.pause_reading()
    child._stderr.pause_reading()
    child.write(b"go\n")
    await owner.ended()
    assert owner.data == b"out\n"
    assert bench.lines == [b"err"]
    assert child.stderr_tail() == "err\n"


@on_each_loop
async def test_what_a_server_writes_at_once_waits_until_spawn_has_returned(bench: Bench) -> None:
    """The owner would be called for a child it does not know yet; it checks that itself."""
    bench.loop.call_soon(time.sleep, 0.2)  # not waited for: it holds up the loop right after the start
    child, owner = await bench.spawn(["sh", "-c", "echo early; exit 2"])
    await owner.ended()
    assert owner.data == b"early\n"
    assert child.status == 2


@on_each_loop
async def test_half_a_line_before_a_crash_comes_as_it_is(bench: Bench) -> None:
    """Reported: what to make of it is the framer's business."""
    child, owner = await bench.python("import os; os.write(1, b'{}\\n{\"jso'); os._exit(1)")
    await owner.ended()
    assert owner.data == b'{}\n{"jso'
    assert child.status == 1


@on_each_loop
async def test_a_grandchild_that_holds_the_pipes_dies_with_the_server(bench: Bench) -> None:
    """Reported: the exit is seen, not the end of the pipe; the group goes."""
    child, owner = await bench.spawn(["sh", "-c", "sleep 1000 & echo $!; exit 3"])
    await owner.ended()
    assert child.status == 3
    assert owner.at_end == {"status": 3, "runs": False}
    await gone(int(owner.data))


@on_each_loop
async def test_a_grandchild_in_its_own_session_does_not_hold_up_the_end(bench: Bench) -> None:
    """Reported: it cannot be reached through the group, but nobody waits for it."""
    child, owner = await bench.spawn(["setsid", "-f", "sh", "-c", "echo $$; exec sleep 1000"])
    await owner.line()
    await owner.ended()
    stranger = int(owner.data)
    try:
        assert child.status == 0
        assert running(stranger)
    finally:
        os.kill(stranger, signal.SIGKILL)
    await gone(stranger)


@on_each_loop
async def test_a_grandchild_that_floods_stdout_does_not_hold_up_the_end(bench: Bench) -> None:
    """Contract: read to its end, but for 200 ms at most."""
    child, owner = await bench.spawn(["sh", "-c", "setsid yes & echo $!; exit 3"])
    await owner.ended()
    assert child.status == 3
    await gone(int(await owner.line()))  # SIGPIPE: our end is closed


@pytest.mark.parametrize("write", [False, True], ids=["noticed", "written to"])
def test_a_server_that_closed_its_stdin_is_ended(write: bool, tmp_path: Path) -> None:
    """Contract, the child: with the hang-up watch, and by EPIPE alone."""

    @on_each_loop
    async def closes_stdin(bench: Bench) -> None:
        child, owner = await bench.python(
            "import os, time; os.close(0); os.write(1, b'closed\\n'); time.sleep(1000)", hangups=not write
        )
        await owner.line()
        for _ in range(20):
            child.write(b"x" * 1000)
        await owner.ended()
        assert owner.at_end == {"status": -signal.SIGKILL, "runs": False}
        assert child.describe_status() == "killed by the bridge, since it had closed its stdin"
        assert child.unsent == 0
        child.write(b"ignored")

    for new_loop in LOOPS:
        closes_stdin(new_loop=new_loop, tmp_path=tmp_path)


@on_each_loop
async def test_a_server_that_closes_its_stdin_on_its_way_out_keeps_its_own_status(bench: Bench) -> None:
    """Our choice: the 200 ms are also its time to exit by itself; exit 0 is no crash."""
    child, owner = await bench.python(
        "import os, time; os.close(0); os.close(1); time.sleep(0.02); os._exit(5)"
    )
    await owner.ended()
    assert child.status == 5


@on_each_loop
async def test_a_server_that_closed_its_stdin_before_anybody_looked_is_ended(bench: Bench) -> None:
    """Closed before the pipe is even attached to the loop."""
    bench.loop.call_soon(time.sleep, 0.2)  # not waited for: it holds up the loop right after the start
    child, owner = await bench.python("import os, time; os.close(0); time.sleep(1000)")
    await owner.ended()
    assert child.status == -signal.SIGKILL


@on_each_loop
async def test_a_server_that_closed_its_stdout_is_ended_after_a_second(bench: Bench) -> None:
    """Contract, the child: "closes stdout (after 1 s)"."""
    child, owner = await bench.python("import os, time; os.write(1, b'bye'); os.close(1); time.sleep(1000)")
    await owner.ended()
    assert bench.loop.time() - child.started_at > 0.9
    assert owner.data == b"bye"
    assert child.describe_status() == "killed by the bridge, since it had closed its stdout"


@on_each_loop
async def test_a_server_that_closes_stdout_and_exits_within_a_second_keeps_its_status(bench: Bench) -> None:
    """Contract: "closes stdout (after 1 s)"."""
    child, owner = await bench.python("import os, time; os.close(1); time.sleep(0.3); os._exit(4)")
    await owner.ended()
    assert child.status == 4


@on_each_loop
async def test_kill_ends_the_whole_group_at_once(bench: Bench) -> None:
    child, owner = await bench.spawn(["sh", "-c", "sleep 1000 & echo $!; wait"])
    other = int(await owner.line())
    child.kill()
    child.kill()
    await owner.ended()
    child.kill()
    assert child.status == -signal.SIGKILL
    await gone(other)


@on_each_loop
async def test_a_bug_in_the_owner_ends_the_server_instead_of_losing_messages(bench: Bench) -> None:
    """Our choice: one broad handler at each boundary, which costs one connection and no more."""

    def fail(child: Child) -> None:
        raise RuntimeError("made up")

    child, owner = await bench.spawn(["sh", "-c", "echo x; sleep 1000"])
    owner.on_data = fail
    await owner.ended()
    assert child.describe_status() == "killed by the bridge, since it had met a bug of the bridge"
    assert "could not be handled" in bench.log.messages.pop()


@on_each_loop
async def test_a_bug_in_the_owner_does_not_keep_a_server_that_closed_its_stdin(bench: Bench) -> None:
    """It would have lived on, and whoever writes to it would wait for ever."""

    faults = [RuntimeError("made up")]

    def fail_once(child: Child) -> None:
        if faults:
            raise faults.pop()
        owner.ending.append(child)

    child, owner = await bench.spawn(["sh", "-c", "exec 0<&-; echo x; exec sleep 1000"])
    owner.child_ending = fail_once  # type: ignore[method-assign]  # a fault that cannot be forced
    await owner.ended()
    assert child.describe_status() == "killed by the bridge, since it had closed its stdin"
    await settled(lambda: owner.ending == [child])
    assert "a step failed" in bench.log.messages.pop()


@on_each_loop
async def test_the_end_is_told_whatever_fails_about_it(bench: Bench) -> None:
    """Who waits for it, `stop` for one, would wait for ever."""
    child, owner = await bench.spawn(["sh", "-c", "read x; exit 3"])
    drop = child._stdin.drop

    def fail() -> None:
        drop()
        if child._over:
            raise RuntimeError("made up")

    child._stdin.drop = fail  # type: ignore[method-assign]  # a fault that cannot be forced
    child.write(b"\n")
    await owner.ended()
    async with asyncio.timeout(WAIT_S):
        await child.stop(0)
    assert owner.at_end["status"] == 3
    await settled(lambda: bool(bench.log.messages or bench.complaints))
    bench.log.messages.clear()
    bench.complaints.clear()
    for reader in (child._stdout, child._stderr):
        assert reader is not None
        reader.close()


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (0, "exit status 0"),
        (3, "exit status 3"),
        (-9, "killed by SIGKILL"),
        (-11, "killed by SIGSEGV"),
        (-40, "killed by signal 40"),
    ],
)
async def test_the_status_is_described_in_words(status: int, text: str) -> None:
    owner = Owner()
    child = await spawn(
        owner, ["true"], env=PATH, cwd=None, guard=None, hangups=None, relay=None, stderr="null"
    )
    owner.spawned = True
    await owner.ended()
    child.status = status
    assert child.describe_status() == text


# --- Stopping


@on_each_loop
async def test_stop_closes_stdin_first_and_lets_the_server_end_by_itself(bench: Bench) -> None:
    """Spec, basic/lifecycle, "Shutdown": end of input comes first."""
    child, owner = await bench.python(
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, lambda *a: os._exit(9))\n"
        "print('ready', flush=True)\n"
        "while os.read(0, 100): pass\n"
        "os._exit(2)"
    )
    await owner.line()
    await child.stop(WAIT_S)
    assert child.status == 2
    await child.stop(WAIT_S)  # idempotent
    assert owner.events == ["ended"]


@on_each_loop
async def test_a_server_that_ignores_the_end_of_its_input_gets_sigterm(bench: Bench) -> None:
    child, owner = await bench.python(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *a: os._exit(9))\n"
        "print('ready', flush=True)\n"
        "time.sleep(1000)"
    )
    await owner.line()
    await child.stop(0.05)
    assert child.status == 9


@on_each_loop
async def test_a_deaf_server_and_its_deaf_grandchild_are_killed(bench: Bench) -> None:
    """Contract, stopping: SIGKILL in the end, to the group."""
    child, owner = await bench.spawn(
        ["sh", "-c", "trap '' TERM INT HUP; sleep 1000 & echo $!; wait; sleep 1000"]
    )
    other = int(await owner.line())
    await child.stop(0.05)
    assert child.status == -signal.SIGKILL
    await gone(other)


@on_each_loop
async def test_stop_first_sends_what_is_still_unsent(bench: Bench) -> None:
    """The interface: stdin is closed after what is buffered."""
    child, owner = await bench.python(
        "import os, sys\nos.write(1, b'ready\\n')\nprint(len(sys.stdin.buffer.read()))"
    )
    child.write(b"x" * 3 * MIB)
    assert child.unsent > 0
    await child.stop(WAIT_S)
    assert owner.data == b"ready\n%d\n" % (3 * MIB)
    assert child.status == 0


@on_each_loop
async def test_stop_ends_a_server_that_never_reads_what_is_unsent(bench: Bench) -> None:
    """Reported: closing never completes for a peer that does not read."""
    child, owner = await bench.python("import time; time.sleep(1000)")
    child.write(b"x" * 3 * MIB)
    await owner.until(lambda: "blocked" in owner.events)
    await child.stop(0.05)
    assert child.status == -signal.SIGTERM
    assert owner.events == ["blocked", "ended"]


@on_each_loop
async def test_stdout_is_read_while_the_server_stops(bench: Bench) -> None:
    """Our choice: a server blocked on a full pipe cannot exit."""
    child, owner = await bench.python(
        "import os, sys\nsys.stdin.read()\nfor _ in range(5): sys.stdout.write('x' * 1000000)"
    )
    await child.stop(WAIT_S)
    assert len(owner.data) == 5000000
    assert child.status == 0


@on_each_loop
async def test_a_stopping_server_may_close_stdout_early_and_take_its_grace(bench: Bench) -> None:
    """Our choice: the second for a lost stdout is for running servers; a stop has deadlines of its own."""
    child, owner = await bench.python(
        "import os, time\nos.read(0, 1)\nos.close(1)\ntime.sleep(1.3)\nos._exit(6)"
    )
    await child.stop(WAIT_S)
    assert child.status == 6
    assert owner.events == ["ended"]


@on_each_loop
async def test_several_stops_at_once_end_together_by_the_shortest_grace(bench: Bench) -> None:
    child, owner = await bench.spawn(["sleep", "1000"])
    patient = asyncio.create_task(child.stop(600.0))
    await asyncio.sleep(0)
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(patient, child.stop(0.05), child.stop(300.0))
    assert child.status == -signal.SIGTERM
    assert owner.events == ["ended"]


@on_each_loop
async def test_a_cancelled_stop_goes_on_by_itself(bench: Bench) -> None:
    child, owner = await bench.spawn(["cat"])
    stopping = asyncio.create_task(child.stop(WAIT_S))
    other = asyncio.create_task(child.stop(WAIT_S))
    await asyncio.sleep(0)
    stopping.cancel()
    await other
    assert child.status == 0
    assert owner.events == ["ended"]
    assert stopping.cancelled()


@on_each_loop
async def test_stop_overtakes_the_end_of_a_server_that_lost_its_stdin(bench: Bench) -> None:
    child, owner = await bench.python(
        "import os, time; os.close(0); print('closed', flush=True); time.sleep(0.4); os._exit(8)"
    )
    await owner.line()
    await asyncio.sleep(0)
    await child.stop(WAIT_S)
    assert child.status == 8


@on_each_loop
async def test_stop_from_within_the_last_data_is_harmless(bench: Bench) -> None:
    tasks: list[asyncio.Task[None]] = []
    _child, owner = await bench.python("import os; os.write(1, b'x' * 100); os._exit(0)")
    owner.on_data = lambda child: tasks.append(asyncio.create_task(child.stop(0.0)))
    await owner.ended()
    await asyncio.gather(*tasks)
    assert owner.events == ["ended"]


# --- Back-pressure


@on_each_loop
async def test_a_server_that_does_not_read_is_reported_and_never_killed(bench: Bench) -> None:
    """Contract: blocked above 1 MiB, writable below 256 KiB. Contract: merely not reading is no fault."""
    child, owner = await bench.python(
        "import os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        "print('ready', flush=True)\n"
        "signal.sigwait([signal.SIGUSR1])\n"
        "sys.stdout.write(str(len(sys.stdin.buffer.read())))"
    )
    await owner.line()
    written = 0
    while "blocked" not in owner.events:
        assert child.unsent <= MIB
        child.write(b"x" * 65536)
        written += 65536
        assert written < 4 * MIB
    assert child.unsent > MIB
    at_writable: list[int] = []
    told = owner.child_writable

    def note(child: Child) -> None:
        at_writable.append(child.unsent)
        told(child)

    owner.child_writable = note  # type: ignore[method-assign]  # looks at the very moment of the call
    await asyncio.sleep(0.3)  # longer than any of the bounds that end a faulty server
    assert child.status is None
    os.kill(child.pid, signal.SIGUSR1)
    await owner.until(lambda: "writable" in owner.events)
    assert at_writable[0] <= MIB // 4
    await child.stop(WAIT_S)
    assert owner.data == b"ready\n%d" % written
    assert owner.events == ["blocked", "writable", "ended"]


@on_each_loop
async def test_a_server_that_writes_much_before_it_reads_anything_does_not_deadlock(bench: Bench) -> None:
    """Reported: stdout is always read."""
    child, owner = await bench.python(
        "import sys\n"
        "for _ in range(8): sys.stdout.write('x' * 1000000)\n"
        "sys.stdout.flush()\n"
        "print(len(sys.stdin.buffer.read()))"
    )
    child.write(b"y" * 8 * MIB)
    await child.stop(WAIT_S)
    assert owner.data == b"x" * 8000000 + b"%d\n" % (8 * MIB)


@on_each_loop
async def test_writes_to_a_dead_server_never_raise(bench: Bench) -> None:
    """Reported: the `initialized` notification hits a closed pipe."""
    child, owner = await bench.spawn(["true"])
    async with asyncio.timeout(WAIT_S):
        while "ended" not in owner.events:
            child.write(b"x" * 1000)
            await asyncio.sleep(0)
    child.write(b"x")
    assert child.unsent == 0
    assert child.status == 0


@on_each_loop
async def test_the_write_that_finds_the_pipe_broken_does_not_raise(bench: Bench) -> None:
    """A broken pipe: one loop warns, the other may raise from `write`."""
    child, owner = await bench.python("import os, time; os.close(0); time.sleep(1000)", hangups=False)
    deadline = time.monotonic() + WAIT_S
    while not hung_up(child._stdin._fd) and time.monotonic() < deadline:
        time.sleep(0.01)  # noqa: ASYNC251 - the loop must not find out by itself
    child.write(b"x")
    child.write(b"x")
    await owner.ended()
    assert child.describe_status() == "killed by the bridge, since it had closed its stdin"


# --- stderr


@on_each_loop
async def test_stderr_comes_line_by_line_and_its_tail_is_kept(bench: Bench) -> None:
    child, owner = await bench.python(
        "import os, sys\nos.write(2, b'one\\n\\ntw'); os.write(2, b'o\\n\\xff last')\nos._exit(1)"
    )
    await owner.ended()
    assert bench.lines == [b"one", b"", b"two", b"\xff last"]
    assert child.stderr_tail() == "one\n\ntwo\n\ufffd last"


@on_each_loop
async def test_a_flood_of_stderr_without_newline_neither_blocks_nor_grows(bench: Bench) -> None:
    """Reported: always drained, lines cut at 8 KiB, the last 16 KiB kept."""
    child, owner = await bench.python(
        "import os\n"
        "for _ in range(64): os.write(2, b'x' * 65536)\n"
        "os.write(2, b'END\\nnext\\n')\n"
        "print('answer', flush=True)\n"
        "os.read(0, 1)"
    )
    assert await owner.line() == b"answer"
    await child.stop(WAIT_S)
    assert bench.lines == [b"x" * 8192, b"next"]
    assert child.stderr_tail() == "x" * (16384 - 9) + "END\nnext\n"


@on_each_loop
async def test_a_flood_of_stderr_lines_does_not_stop_the_answers(bench: Bench) -> None:
    child, owner = await bench.python(
        "import os\n"
        "for _ in range(100): os.write(2, b'line\\n' * 10000)\n"
        "print('answer', flush=True)\n"
        "os.read(0, 1)"
    )
    assert await owner.line() == b"answer"
    await child.stop(WAIT_S)
    assert len(bench.lines) == 1000000
    assert set(bench.lines) == {b"line"}


@on_each_loop
async def test_the_last_words_on_stderr_are_there_when_the_end_is_told(bench: Bench) -> None:
    """Contract: shown when it crashes. The exit is often seen before the pipe is read."""
    for _ in range(20):
        child, owner = await bench.spawn(["sh", "-c", "echo broken >&2; exit 1"])
        await owner.ended()
        assert child.stderr_tail() == "broken\n"


@on_each_loop
async def test_stderr_can_be_the_bridges_own_or_nothing(bench: Bench) -> None:
    """`--server-stderr relay|inherit|null`."""
    show = "import os; s = os.fstat(2); print(s.st_dev, s.st_ino)"
    ours, null = os.fstat(2), os.stat("/dev/null")
    modes: list[tuple[Literal["inherit", "null"], os.stat_result]] = [("inherit", ours), ("null", null)]
    for mode, expected in modes:
        child, owner = await bench.python(show, stderr=mode)
        await owner.ended()
        assert owner.data == b"%d %d\n" % (expected.st_dev, expected.st_ino)
        assert child.stderr_tail() == ""


# --- Starting, and failing to


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Things that cannot be run, each in its own way."""
    for name, text, mode in (
        ("plain", "#!/bin/sh\n", 0o644),
        ("odd", "#!/no/such/interpreter\n", 0o755),
        ("nothing", "neither program nor script", 0o755),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("command", "code", "reason"),
    [
        (["no-such-command"], 127, "'no-such-command' was not found in PATH"),
        (["./no-such-command"], 127, "'./no-such-command' was not found"),
        ([""], 127, "'' was not found in PATH"),
        ([], 126, "no server command"),
        (["plain"], 126, "permission denied"),
        (["./plain", "secret"], 126, "permission denied"),
        (["odd"], 126, "interpreter in its first line"),
        (["./nothing"], 126, "cannot run this kind of file"),
        (["./folder"], 126, "it is a directory"),
        (["plain/x"], 127, "was not found"),
        (["./plain\n\x1b[31m"], 127, "'./plain\\n\\x1b[31m' was not found"),
        (["sh", "secret" * 1000000], 126, "longer than the system allows"),
        (["sh", "secret\0"], 126, "NUL"),
    ],
)
async def test_a_command_that_cannot_run_says_why_in_one_line(
    files: Path, command: list[str], code: int, reason: str
) -> None:
    """Contract: 126/127, with one line that says what; the arguments are not shown."""
    before = open_descriptors()
    env = {"PATH": f"{files}:{PATH['PATH']}"}
    owner = Owner()
    with pytest.raises(SpawnError) as caught:
        await spawn(
            owner, command, env=env, cwd=str(files), guard=None, hangups=None, relay=None, stderr="relay"
        )
    assert caught.value.exit_code == code
    message = str(caught.value)
    assert reason in message
    assert "\n" not in message
    assert "secret" not in message
    assert len(message) < 500
    assert open_descriptors() == before
    assert owner.events == []


@pytest.mark.parametrize(("cwd", "reason"), [("gone", "No such file"), ("plain", "Not a directory")])
async def test_a_bad_working_directory_is_named(files: Path, cwd: str, reason: str) -> None:
    with pytest.raises(SpawnError, match=f"in the directory '.*{cwd}': {reason}") as caught:
        await spawn(
            Owner(),
            ["true"],
            env=PATH,
            cwd=str(files / cwd),
            guard=None,
            hangups=None,
            relay=None,
            stderr="relay",
        )
    assert caught.value.exit_code == 126


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EAGAIN, "limit of processes"),
        (errno.ENOMEM, "out of memory"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
async def test_a_failed_fork_is_a_spawn_error_and_leaks_nothing(
    monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    """Reported: A full process table cannot be had in a test, so Popen is made to fail."""

    def fail(*args: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "Popen", fail)
    before = open_descriptors()
    with pytest.raises(SpawnError, match=reason):
        await spawn(
            Owner(), ["true"], env=PATH, cwd=None, guard=None, hangups=None, relay=None, stderr="relay"
        )
    assert open_descriptors() == before


@on_each_loop
async def test_running_out_of_descriptors_is_a_spawn_error_and_leaks_nothing(bench: Bench) -> None:
    """Whatever the step it happens at, from the first pipe to the last thing that is opened."""
    await warm_up(bench)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = open_descriptors()
    used = {int(fd) for fd in os.listdir("/proc/self/fd")}
    failed = succeeded = 0
    for limit in itertools.count(min(set(range(len(used) + 1)) - used)):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            child, owner = await bench.spawn(["cat"])
        except SpawnError as error:
            failed += "too many files" in str(error)
        else:
            succeeded += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if succeeded:
            await child.stop(WAIT_S)
            assert owner.events == ["ended"]
        if succeeded == 3:
            break
    await settled(lambda: open_descriptors() == before)
    assert failed >= 6  # at each of the pipes' ends, at least


@on_each_loop
async def test_a_cancelled_spawn_leaves_no_process(bench: Bench) -> None:
    """Reported: SIGTERM while the server starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child_module, "KILL_PATIENCE_S", 1000.0)  # the exit has to be seen, not given up on
        await cancel_spawns(bench)


async def cancel_spawns(bench: Bench) -> None:
    await warm_up(bench)
    before = open_descriptors()
    for turns in range(8):
        starting = asyncio.create_task(bench.spawn(["sh", "-c", "echo $$; exec sleep 1000"]))
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        try:
            child, _ = await starting
        except asyncio.CancelledError:
            pass
        else:  # it was faster
            child.kill()
            await child.stop(0)
        assert not any(exists(pid) for pid in bench.guard.added)
        assert len(bench.guard.removed) == len(bench.guard.added)
    assert bench.guard.added
    await settled(lambda: open_descriptors() == before)


@on_each_loop
async def test_a_loop_that_shuts_down_in_the_middle_of_a_spawn_leaves_no_process(bench: Bench) -> None:
    """`asyncio.run` cancels every task, that which attaches the pipes too."""
    for turns in range(1, 6):
        starting = asyncio.create_task(bench.spawn(["sleep", "1000"]))
        others = asyncio.all_tasks()
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in {starting} | (asyncio.all_tasks() - others):
            task.cancel()
        results = await asyncio.gather(starting, return_exceptions=True)
        if not isinstance(results[0], BaseException):
            await results[0][0].stop(0)
        await settled(lambda: not any(group_lives(pid) for pid in bench.guard.added))
    assert bench.guard.added


async def warm_up(bench: Bench) -> None:
    """Let the loop open what it opens once and keeps, as uvloop does with its first pipe."""
    child, _ = await bench.spawn(["cat"])
    await child.stop(WAIT_S)
    await asyncio.sleep(0)


async def settled(condition: Callable[[], bool]) -> None:
    """Wait for what the loop does a turn or two later, such as closing a descriptor."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - about the loop's own state, of which nobody tells
            await asyncio.sleep(0.001)


@on_each_loop
async def test_two_hundred_rounds_leak_no_descriptor(bench: Bench) -> None:
    """uvloop's subprocess API leaks some each time."""

    async def one(kind: int) -> None:
        if kind == 0:
            child, owner = await bench.spawn(["cat"])
            child.write(b"x\n")
            await child.stop(WAIT_S)
        elif kind == 1:
            child, owner = await bench.spawn(["sh", "-c", "echo a; echo b >&2; exit 1"])
            await owner.ended()
        elif kind == 2:
            child, owner = await bench.spawn(["sleep", "1000"])
            child.write(b"x" * 2 * MIB)
            child.kill()
            await owner.ended()
        else:
            with pytest.raises(SpawnError):
                await bench.spawn(["no-such-command"])

    await warm_up(bench)
    before = open_descriptors()
    for number in range(200):
        await one(number % 4)
    await settled(lambda: open_descriptors() <= before)


# --- Where the system offers less


def refuse(*args: object) -> int:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


@pytest.fixture(params=["no pidfd", "pidfd forbidden", "no waitid either", "no pipe sizes"])
def less(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A system without one of the extras of Linux."""
    if request.param == "no pipe sizes":
        monkeypatch.delattr(fcntl, "F_SETPIPE_SZ")
    elif request.param == "pidfd forbidden":
        monkeypatch.setattr(os, "pidfd_open", refuse)
    else:
        monkeypatch.delattr(os, "pidfd_open")
        if request.param == "no waitid either":
            monkeypatch.delattr(os, "waitid")
    return request.param  # type: ignore[no-any-return]  # a parameter has no type of its own


def test_a_child_lives_and_ends_the_same_without_the_extras_of_linux(less: str, tmp_path: Path) -> None:
    """Contract: plain fallbacks, each tested by switching the extra off."""

    @on_each_loop
    async def life(bench: Bench) -> None:
        child, owner = await bench.spawn(["cat"])
        child.write(b"x\n")
        assert await owner.line() == b"x"
        await child.stop(WAIT_S)
        assert child.status == 0
        child, owner = await bench.spawn(["sh", "-c", "sleep 1000 & echo $!; exit 3"])
        await owner.ended()
        assert child.status == 3
        await gone(int(owner.data))
        child, owner = await bench.python("import os; os.write(1, b'x' * 60000); os._exit(4)")
        await owner.ended()
        assert (len(owner.data), child.status) == (60000, 4)
        child, owner = await bench.spawn(["sleep", "1000"])
        child.kill()
        await owner.ended()
        assert child.status == -signal.SIGKILL
        if less == "no waitid either":
            # There the process has to be reaped to know that it exited; nothing to check.
            bench.guard.removed[:] = [(pid, True) for pid, _ in bench.guard.removed]

    for new_loop in LOOPS:
        life(new_loop=new_loop, tmp_path=tmp_path)


def test_a_process_that_cannot_be_killed_is_given_up_and_reaped_when_it_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every wait has a bound. The kernel holds such processes; here the signal is swallowed."""

    @on_each_loop
    async def unkillable(bench: Bench) -> None:
        real = os.killpg
        with monkeypatch.context() as patch:
            patch.setattr(os, "killpg", lambda pgid, number: None)
            patch.setattr(child_module, "KILL_PATIENCE_S", 0.1)
            child, owner = await bench.spawn(["sleep", "1000"])
            child.kill()
            await owner.ended()
            assert child.status == -signal.SIGKILL
            assert "cannot be killed" in bench.log.messages.pop()
            assert bench.guard.removed == []  # if the bridge goes now, the guard tries once more
            await child.stop(0)
        real(child.pid, signal.SIGTERM)
        await settled(lambda: bool(bench.guard.removed))
        assert child.status == -signal.SIGKILL
        assert owner.events == ["ended"]

    for new_loop in LOOPS:
        unkillable(new_loop=new_loop, tmp_path=tmp_path)


def test_the_pipes_hold_a_mebibyte(tmp_path: Path) -> None:
    """Measured: worth a fifth of the throughput for messages of 4 KB."""

    @on_each_loop
    async def sizes(bench: Bench) -> None:
        _, owner = await bench.python(
            "import fcntl; print(fcntl.fcntl(0, fcntl.F_GETPIPE_SZ), fcntl.fcntl(1, fcntl.F_GETPIPE_SZ))"
        )
        await owner.ended()
        assert owner.data == b"1048576 1048576\n"

    for new_loop in LOOPS:
        sizes(new_loop=new_loop, tmp_path=tmp_path)


def test_importing_it_starts_nothing() -> None:
    """A module that is imported at start-up must not fork or open anything."""
    count = "print(len(os.listdir('/proc/self/fd')))"
    code = f"import os; {count}; import bridge.child, bridge.guard; {count}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=WAIT_S)
    before, after = done.stdout.split()
    assert before == after


def test_lines_of_stderr_are_the_same_for_any_split() -> None:
    """Any split of the bytes: the same lines."""
    text = (
        b"a\n\n"
        + b"b" * 8191
        + b"\n"
        + b"c" * 8192
        + b"\n"
        + b"d" * 8193
        + b"\ne\r\n"
        + b"f" * 20000
        + b"\ng"
    )
    expected = [b"a", b"", b"b" * 8191, b"c" * 8192, b"d" * 8192, b"e\r", b"f" * 8192, b"g"]
    for size in (1, 2, 3, 7, 100, 4096, 8191, 8192, 8193, 10000, len(text)):
        lines: list[bytes] = []
        splitter = StderrLines(lines.append)
        for start in range(0, len(text), size):
            splitter.feed(text[start : start + size])
        splitter.end()
        assert lines == expected, size
        assert splitter.tail() == text[-16384:].decode()
    for _ in range(100):
        splitter.feed(b"x" * 10000)
    assert len(splitter._tail) < 100000
    assert len(splitter._line) <= 8192
