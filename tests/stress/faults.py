"""An exception in each place where the event loop calls the bridge: one client at most is harmed.

A copy of the package gets one more line in each entry that `entries.py` finds: it raises once, when it is
told to by a file. Then the bridge is brought to run through it, and it is seen whether the witnesses, clients
that have nothing to do with it, are still served, and whether the very thing that failed works the next time.

Requests at a server whose bytes could not be handled get an error each: their outcome. No connection but the
one the fault was met on is lost.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.history.breakages import broken
from tests.stress.entries import Source, _functions, guarded
from tests.stress.flow import COMMAND, MIB, Way, descriptors, frozen, memory, push
from tests.support.bridge import RunningBridge, running_bridge, wait_until
from tests.support.client import RawClient
from tests.support.scripts import content, env

FAULT: Final = '''\
"""Raises once, where it is told to."""

import os

ARMED = os.environ["BRIDGE_FAULT"]


def fault(name: str) -> None:
    try:
        with open(ARMED) as file:
            armed = file.read()
    except OSError:
        return
    if armed == name:
        os.unlink(ARMED)
        raise RuntimeError("a fault was put here: " + name)
'''

WAY: Final = Way()

PATIENCE: Final = 15.0
"""How long the bridge may take to be as before on a busy machine, in seconds."""

EXCUSED: Final = {
    "reaper:Reaper.reap": "only as PID 1, and the next child that ends wakes it again",
    "process:ExitWatch._poll": "only where there is no pidfd",
    "acceptor:TurnedAway.connection_made": "only behind another fault",
    "child:kill_unless_stopped": "only behind another fault",
    "supervisor:Supervisor._spawn_over": "only behind another fault",
    "supervisor:Supervisor._start_failed": "only behind another fault",
    "supervisor:Supervisor._spawn_failed": "only for a command that cannot be run",
    "pool:Pool._start_over": "only behind another fault",
    "pool:Pool._failed": "only behind another fault",
    "hub:Hub.client_refused": "only for another user, whose connection is cut already",
    "stdin:ServerStdin.eof_received": "the watch for hang-ups has seen it before",
    "outputs:PipeReader.connection_made": "sets an attribute and calls nothing",
    "lifecycle:Lifecycle._asked_to_quit": "the bridge ends with it",
    "pool:Pool._go_on": "called again for the next client that comes or goes",
}
"""Entries without a fault, and why."""


@contextlib.contextmanager
def faulty() -> Iterator[Path]:
    """A folder with a copy of the package that raises where it is told to."""
    with broken(None) as folder:
        package = folder / "bridge"
        entries = Source(package).entries
        for path in package.glob("*.py"):
            text = path.read_text(encoding="utf-8")
            places = {}
            for owner, node in _functions(ast.parse(text)):
                name = f"{path.stem}:{owner + '.' if owner else ''}{node.name}"
                if name in entries and name not in EXCUSED:
                    places[guarded(node)] = name
            if places:
                path.write_text(_with_faults(text, places), encoding="utf-8")
        (package / "faults.py").write_text(FAULT, encoding="utf-8")
        yield folder


def _with_faults(text: str, places: dict[int, str]) -> str:
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if number in places:
            indentation = line[: len(line) - len(line.lstrip())]
            lines.append(f'{indentation}_fault("{places[number]}")\n')
        lines.append(line)
        if line.startswith("from __future__"):
            lines.append("from bridge.faults import fault as _fault\n")
    return "".join(lines)


class Ground:
    """A bridge with faults to be, its witnesses, and what it can be made to do."""

    def __init__(self, bridge: RunningBridge, armed: Path) -> None:
        self.bridge = bridge
        self.armed = armed
        self.witnesses: list[RawClient] = []
        self.lost = 0

    async def begin(self) -> None:
        """Have witnesses."""
        for index in (0, 0, 1):
            client = await self.bridge.connect(index)
            await client.call("do")
            self.witnesses.append(client)

    async def witnessed(self) -> None:
        """Every witness but one is served; who was lost is replaced."""
        lost = []
        for client in self.witnesses:
            try:
                # It may be answered with an error, if a server ended: that is an outcome.
                id = await client.start_call("do")
                await client.response(id, timeout=PATIENCE)
            except (AssertionError, OSError):
                lost.append(client)
        assert len(lost) <= 1, f"{len(lost)} of {len(self.witnesses)} witnesses were harmed"
        for client in lost:
            self.lost += 1
            self.witnesses.remove(client)
            client.close()
            self.witnesses.append(await self.bridge.connect(0))
        for index in (0, 1):
            async with await self.bridge.connect(index) as client:
                deadline = time.monotonic() + PATIENCE
                while "result" not in await client.response(await client.start_call("do"), timeout=PATIENCE):
                    assert time.monotonic() < deadline, "no server comes back"
                client.abort()

    async def meet(self, entry: str, stimulus: Callable[[Ground], Awaitable[None]]) -> None:
        """Have an entry fail once, and see what it costs."""
        self.armed.write_text(entry)
        for _ in range(2):
            with contextlib.suppress(AssertionError, OSError, TimeoutError):
                await asyncio.wait_for(stimulus(self), PATIENCE)
            if not self.armed.exists():
                break
        assert not self.armed.exists(), "the entry was not reached"
        await self.witnessed()
        await asyncio.wait_for(stimulus(self), 3 * PATIENCE)  # as if nothing had been
        await self.witnessed()


async def talk(ground: Ground) -> None:
    """Clients of both kinds ask, stop sending, and read to the end."""
    for index in (0, 1):
        async with await ground.bridge.connect(index) as client:
            assert "result" in await client.call("do", text="t" * 50_000)
            await client.start_call("do", id="last")
            client.half_close()
            lines = await client.expect_eof()
            assert len(lines) == 1


async def leave(ground: Ground) -> None:
    """Clients are gone while they are owed something."""
    for index in (0, 1):
        async with await ground.bridge.connect(index) as client:
            await client.call("do")
            await client.start_call("do", hold="for ever")
            client.abort()
    await asyncio.sleep(0.3)


async def many(ground: Ground) -> None:
    """More lines at once than one turn takes."""
    async with await ground.bridge.connect() as client:
        await client.send(b"\n".join([b"{}"] * 2500) + b"\n")
        for _ in range(2500):
            assert (await client.recv())["error"]["code"] == -32600


async def crowd(ground: Ground) -> None:
    """Several clients ask at once, again and again."""
    clients = [await ground.bridge.connect(n % 2) for n in range(8)]
    try:
        for _ in range(10):
            ids = [await client.start_call("do") for client in clients]
            for client, id in zip(clients, ids, strict=True):
                assert "result" in await client.response(id)
    finally:
        for client in clients:
            client.abort()


async def deaf(ground: Ground) -> None:
    """A client does not read for a while."""
    async with await ground.bridge.connect(receive_buffer=4096) as client:
        await client.send(WAY.call(1, size=MIB))
        await asyncio.sleep(0.3)
        assert "result" in await client.response(1)


async def linger(ground: Ground) -> None:
    """A client stops sending, and its answer does not come in time; it does not read that either."""
    async with await ground.bridge.connect() as client:
        await client.start_call("do", hold="longer")
        client.half_close()
        assert await client.expect_eof() == []


async def stall(ground: Ground) -> None:
    """The server does not read for a while."""
    async with await ground.bridge.connect() as client:
        pid = content(await client.call("pid"))["pid"]
        lines = b"".join(WAY.call(id, text="s" * 60_000, result={}) for id in range(60))
        with frozen([pid]):
            rest = await push(client, lines)
        while rest:
            rest = rest[client.send_some(rest) :]
            await asyncio.sleep(0)
        for id in range(60):
            await client.response(id)


async def swell(ground: Ground) -> None:
    """Much is held, and then little."""
    clients = [await ground.bridge.connect(receive_buffer=4096) for _ in range(4)]
    start, _ = memory(ground.bridge)
    for client in clients:
        await client.send(WAY.call(1, size=14 * MIB))
    await wait_until(lambda: memory(ground.bridge)[0] > start + 50 * MIB, timeout=PATIENCE)
    await asyncio.sleep(0.3)
    for client in clients:
        client.abort()
    await asyncio.sleep(0.6)


async def replace(ground: Ground) -> None:
    """The server is replaced."""
    pattern = "the server was (?:not )?replaced"
    done = len(re.findall(pattern, ground.bridge.stderr_text()))
    ground.bridge.signal(signal.SIGHUP)
    lines = await ground.bridge.wait_log(pattern, count=done + 1, timeout=PATIENCE)
    assert "was replaced" in lines[-1]
    await asyncio.sleep(0.1)


async def crash(ground: Ground) -> None:
    """The server crashes."""
    async with await ground.bridge.connect() as client:
        await client.start_call("do", id=1, crash={"when": "before"})
        assert "error" in await client.response(1, timeout=PATIENCE)
        assert "result" in await client.response(await client.start_call("do", id=2), timeout=PATIENCE)


async def close_stdout(ground: Ground) -> None:
    """The server closes its stdout, and lives on."""
    async with await ground.bridge.connect() as client:
        await client.start_call("do", id=1, close_stdout=True)
        await client.response(1, timeout=PATIENCE)
        assert await client.response(await client.start_call("do", id=2), timeout=PATIENCE)


async def close_stdin(ground: Ground) -> None:
    """The server closes its stdin, and lives on."""
    async with await ground.bridge.connect() as client:
        await client.start_call("do", id=1, close_stdin=True)
        await client.response(1, timeout=PATIENCE)
        assert await client.response(await client.start_call("do", id=2), timeout=PATIENCE)


async def stderr(ground: Ground) -> None:
    """The server writes to stderr."""
    async with await ground.bridge.connect() as client:
        assert await client.call("do", stderr_bytes=50_000)


async def health(ground: Ground) -> None:
    """Somebody asks how it is."""
    [address] = re.findall(r"health at tcp:127.0.0.1:(\d+)", ground.bridge.stderr_text())
    reader, writer = await asyncio.open_connection("127.0.0.1", int(address))
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: example.com\r\n\r\n")
        assert (await reader.readline()).endswith(b"200 OK\r\n")
    finally:
        writer.close()


async def pause(ground: Ground) -> None:
    """Nothing happens for a while."""
    await asyncio.sleep(1.5)


async def long_pause(ground: Ground) -> None:
    """Nothing happens for as long as between two looks at the sockets' paths."""
    await asyncio.sleep(5.5)


async def kill_spare(ground: Ground) -> None:
    """A process that nobody uses ends."""
    pids = ground.bridge.server_pids()
    used = {content(await client.call("pid"))["pid"] for client in ground.witnesses}
    spare = [pid for pid in pids if pid not in used]
    assert spare
    for pid in spare:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await wait_until(lambda: set(ground.bridge.server_pids()) - used - set(spare), timeout=PATIENCE)


Stimulus = Callable[[Ground], Awaitable[None]]

# ground -> entry -> what leads there
SHARED: Final[dict[str, Stimulus]] = {
    "acceptor:Acceptor.accept": talk,
    "client:ClientConnection._lost": talk,
    "client:ClientConnection._take_turn": many,
    "client:ClientConnection._hung_up": leave,
    "client:ClientConnection.abort": leave,
    "client:ClientConnection.connection_made": talk,
    "client:ClientConnection.data_received": talk,
    "client:ClientConnection.eof_received": talk,
    "client:ClientConnection.pause_writing": deaf,
    "client:ClientConnection.resume_writing": deaf,
    "hangup:HangupWatch._ready": leave,
    "hub:Hub._tick": linger,
    "hub:Hub.client_congested": deaf,
    "hub:Hub.client_connected": talk,
    "hub:Hub.client_data": talk,
    "hub:Hub.client_eof": talk,
    "hub:Hub.client_gone": leave,
    "hub:Hub.client_lost": talk,
    "hub:Hub.client_turn": many,
    "admin:AdminServer._connection": health,
    "outputs:PipeReader._read_on": deaf,
    "outputs:StderrLines.feed": stderr,
    "lifecycle:Lifecycle._asked_to_replace": replace,
    "lifecycle:Lifecycle._feed": pause,
    "supervisor:Supervisor._spawn": replace,
    "supervisor:Supervisor.child_ending": replace,
    "supervisor:Supervisor.child_ended": replace,
    "child:Child._begin": replace,
    "child:Child._connect": replace,
    "child:Child._exit_seen": replace,
    "child:Child._settle": replace,
    "child:Child._stdout_end": replace,
    "child:Child._stderr_end": replace,
    "child:Child.stop": replace,
    "stdin:ServerStdin.connection_lost": replace,
    "hub:Hub._flush": crowd,
    "outputs:PipeReader.connection_lost": replace,
    "outputs:PipeReader.eof_received": replace,
    "process:ExitWatch._exited": replace,
    "hub:Hub._tidy": replace,
}
SLOW: Final[dict[str, Stimulus]] = {
    "acceptor:Acceptor._check_paths": long_pause,
    "tuning:give_memory_back": swell,
    "watchdog:LoopWatchdog._sign": pause,
    "stdin:ServerStdin._full": stall,
    "stdin:ServerStdin._flows": stall,
    "child:Child.stdin_full": stall,
    "child:Child.stdin_flows": stall,
    "supervisor:Supervisor.child_blocked": stall,
    "supervisor:Supervisor.child_writable": stall,
}
# Each costs a server, and the next one is started later: a bridge for each.
DEADLY: Final[dict[str, Stimulus]] = {
    "supervisor:Supervisor.child_data": talk,
    "child:Child._stdout_data": talk,
    "outputs:PipeReader.data_received": talk,
    "supervisor:Supervisor._due": crash,
    "supervisor:Supervisor._begin": crash,
    "supervisor:Supervisor._follow": crash,
    "child:Child._finish": close_stdout,
    "child:Child.stdin_lost": close_stdin,
}
STUBBORN: Final[dict[str, Stimulus]] = {
    "child:Child._terminate": replace,
    "child:Child.kill": replace,
}
APART: Final[dict[str, Stimulus]] = {
    "pool:Pool._start": talk,
    "pool:Pool.client_data": talk,
    "pool:Pool.client_eof": talk,
    "pool:Pool.client_gone": leave,
    "pool:Pool.client_turn": many,
    "pool:Process.child_blocked": stall,
    "pool:Process.child_writable": stall,
    "pool:Process.child_data": talk,
    "pool:Process.child_ending": talk,
    "pool:Process.child_ended": talk,
    "pool:Pool._spare_due": kill_spare,
}
ENDING: Final = ("lifecycle:Lifecycle._asked_to_stop", "admin:AdminServer._close")

OPTIONS: Final = ("--linger", "0.3", "--stop-grace", "0.3", "--admin", "tcp:127.0.0.1:0")


@contextlib.asynccontextmanager
async def ground(
    folder: Path, *options: str, settings: object = None, witnesses: bool = True
) -> AsyncIterator[Ground]:
    """A bridge from a folder of `faulty`; at the end nothing may have been left open."""
    armed = folder / "armed"
    armed.unlink(missing_ok=True)
    variables = {
        **env(settings={"era": "modern"} if settings is None else settings),
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "BRIDGE_FAULT": str(armed),
        "NOTIFY_SOCKET": "@example.com-nobody",
        "WATCHDOG_USEC": "400000",
    }
    async with running_bridge(
        *COMMAND, options=[*OPTIONS, *options], listen=["unix", "tcp"], env=variables, cwd=folder, faults=True
    ) as bridge:
        made = Ground(bridge, armed)
        if witnesses:
            await made.begin()
            before = descriptors(bridge)
        yield made
        if witnesses:
            await wait_until(
                lambda: descriptors(bridge) <= before, timeout=PATIENCE, what="nothing left open"
            )
            for client in made.witnesses:
                client.close()


async def meet_all(
    folder: Path, stimuli: dict[str, Stimulus], *options: str, settings: object = None
) -> list[str]:
    """Have each of some entries fail once in one bridge; return what went wrong."""
    wrong = []
    async with ground(folder, *options, settings=settings) as made:
        for entry, stimulus in stimuli.items():
            try:
                await made.meet(entry, stimulus)
            except (AssertionError, TimeoutError, OSError) as error:
                made.armed.unlink(missing_ok=True)
                wrong.append(f"{entry}: {type(error).__name__}: {str(error)[:300]}")
    return wrong


async def end_with(folder: Path, entry: str) -> None:
    """A fault at the end of the bridge: it ends all the same."""
    async with ground(folder, witnesses=False) as made:
        made.armed.write_text(entry)
        async with await made.bridge.connect() as client:
            await client.call("do")
        assert await made.bridge.stop() == 0
        assert not made.armed.exists(), "the entry was not reached"


async def everything(tell: Callable[[str], None] = print, only: Sequence[str] = ()) -> list[str]:
    """All entries; return what went wrong."""
    wrong: list[str] = []

    def some(stimuli: dict[str, Stimulus]) -> dict[str, Stimulus]:
        return {k: v for k, v in stimuli.items() if not only or any(part in k for part in only)}

    with faulty() as folder:
        for stimuli, options, settings in (
            (SHARED, (), None),
            (SLOW, (), None),
            (STUBBORN, (), {"era": "modern", "ignore_eof": True, "ignore_term": True}),
            (APART, ("--sharing", "isolated", "--spare", "1"), None),
            *(({entry: stimulus}, (), None) for entry, stimulus in DEADLY.items()),
        ):
            if chosen := some(stimuli):
                begun = time.monotonic()
                found = await meet_all(folder, chosen, *options, settings=settings)
                wrong += found
                tell(f"{len(chosen)} entries, {len(found)} wrong, {time.monotonic() - begun:.1f} s")
                for line in found:
                    tell(f"  {line}")
        for entry in ENDING:
            if not only or any(part in entry for part in only):
                try:
                    await end_with(folder, entry)
                except AssertionError as error:
                    wrong.append(f"{entry}: {error}")
                    tell(f"  {wrong[-1][:400]}")
    return wrong
