"""What the system has no more of, and clocks that jump: the bridge goes on, and is as before afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from pathlib import Path

from tests.history.breakage import Breakage
from tests.history.breakages import broken
from tests.stress.flow import COMMAND, descriptors
from tests.support.bridge import RunningBridge, running_bridge
from tests.support.client import RawClient
from tests.support.scripts import error_of


async def served_again(bridge: RunningBridge, index: int) -> None:
    """A newcomer is answered, sooner or later."""
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(AssertionError, OSError):
                async with await bridge.connect(index) as client:
                    id = await client.start_call("do")
                    if "result" in await client.response(id, timeout=5):
                        return
            await asyncio.sleep(0.05)


def processor_time(pid: int) -> float:
    """Of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_without_a_descriptor_left_who_is_there_is_served_and_later_everybody_again() -> None:
    """Hazard 74: neither accepting nor starting a server works; no busy loop, and both recover."""
    async with running_bridge(*COMMAND, listen=["unix", "tcp"], faults=True) as bridge:
        there = [await bridge.connect(index) for index in (0, 1)]
        for client in there:
            await client.call("do")
        before = descriptors(bridge)
        limit = resource.prlimit(bridge.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(bridge.pid, resource.RLIMIT_NOFILE, (before, limit[1]))
        more: list[RawClient] = []
        try:
            for index in (0, 1) * 6:
                with contextlib.suppress(OSError):
                    more.append(await bridge.connect(index))
            for client in there:
                assert "result" in await client.call("do")
            used = processor_time(bridge.pid)
            await asyncio.sleep(0.5)
            assert processor_time(bridge.pid) - used < 0.3, "it spins"
            # The server crashes now: its next start needs descriptors, too.
            await there[0].start_call("do", id="crash", crash={"when": "before"})
            assert error_of(await there[0].response("crash"))[0] == -31001
            await there[0].start_call("do", id="waits")
            await bridge.wait_log("could not be started.*too many files")
        finally:
            resource.prlimit(bridge.pid, resource.RLIMIT_NOFILE, limit)
        assert "result" in await there[0].response("waits", timeout=20)
        for index in (0, 1):
            await served_again(bridge, index)
        for client in (*there, *more):
            client.close()


FORK = Breakage(
    "no process to be had",
    frozenset(),
    (
        (
            "process.py",
            "        process = subprocess.Popen(\n",
            "        if os.path.exists(os.environ['NO_PROCESS']):\n"
            "            raise BlockingIOError(errno.EAGAIN, 'no more processes')\n"
            "        process = subprocess.Popen(\n",
        ),
    ),
)


async def test_without_a_process_to_be_had_clients_wait_and_are_served_later(tmp_path: Path) -> None:
    """Hazard 9: a failed start like any other; told in a way that says what to do."""
    flag = tmp_path / "none"
    with broken(FORK) as folder:
        variables = {"NO_PROCESS": str(flag), "PYTHONPATH": str(folder)}
        async with (
            running_bridge(*COMMAND, env=variables, cwd=folder) as bridge,
            await bridge.connect() as client,
        ):
            await client.call("do")
            flag.touch()
            await client.start_call("do", id=1, crash={"when": "before"})
            assert error_of(await client.response(1))[0] == -31001
            await client.start_call("do", id=2)
            await bridge.wait_log(r"could not be started.*limit of processes.*ulimit -u")
            flag.unlink()
            assert "result" in await client.response(2, timeout=20)


JUMPS = """
import itertools, time
_real, _count = time.time, itertools.count()
time.time = lambda: _real() + (-1) ** next(_count) * 86400 * 365
time.time_ns = lambda: int(time.time() * 1e9)
"""


async def test_a_wall_clock_that_jumps_by_a_year_changes_nothing(tmp_path: Path) -> None:
    """Hazard 86: deadlines, back-off and rate limits go by the monotonic clock."""
    (tmp_path / "sitecustomize.py").write_text(JUMPS, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")]), os.getcwd()])
    options = ["--request-timeout", "1"]
    async with running_bridge(*COMMAND, options=options, env={"PYTHONPATH": path}) as bridge:
        async with await bridge.connect() as client:
            assert "result" in await client.call("do", delay_ms=300)
            await client.start_call("do", id="late", hold="for ever")
            assert error_of(await client.response("late"))[0] == -31007
            await client.start_call("do", id="crash", crash={"when": "before"})
            assert error_of(await client.response("crash"))[0] == -31001
            assert "result" in await client.call("do")
        years = {line[:4] for line in bridge.stderr_text().splitlines()}
        assert len(years) > 1, "the clock does not jump"
