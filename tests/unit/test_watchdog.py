"""The watchdog of the event loop: a loop that hangs is told from a machine that has no time for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest
import uvloop

from bridge.watchdog import LoopWatchdog, StallMeter, ThreadTimes, stacks, task_stacks
from tests.support.bridge import ROOT, wait_until

WAIT_S = 10.0


# --- The count


def test_what_hangs_for_the_limit_is_reported_once() -> None:
    meter = StallMeter(5.0)
    told = [meter.silent(1.0, late=0.0, busy=0.0, queued=0.0) for _ in range(20)]
    assert told.index(True) == 4
    assert told.count(True) == 1
    assert meter.waited == 20.0
    assert meter.alive()
    assert not meter.alive()
    assert [meter.silent(1.0, late=0.0, busy=1.0, queued=0.0) for _ in range(5)][-1]


@pytest.mark.parametrize(
    ("why", "late", "busy", "queued"),
    [
        ("the machine is busy with others", 0.0, 0.1, 0.9),
        ("the container is throttled: this thread is late as well", 0.9, 0.1, 0.0),
        ("the process was stopped", 0.95, 0.0, 0.0),
        ("both are known", 0.9, 0.1, 0.9),
    ],
)
def test_no_processor_time_is_no_hanging(why: str, late: float, busy: float, queued: float) -> None:
    meter = StallMeter(5.0)
    # After ten times the limit what it did count is a tenth of the time.
    told = [meter.silent(1.0, late=late, busy=busy, queued=queued) for _ in range(40)]
    assert not any(told), why
    assert meter.waited == 40.0


def test_a_starved_loop_that_hangs_all_the_same_is_found_by_the_time_it_computed() -> None:
    """Half the time it waited for a processor; what it had it used up, and gave no sign."""
    meter = StallMeter(5.0)
    told = [meter.silent(1.0, late=0.0, busy=0.5, queued=0.5) for _ in range(10)]
    assert told == [False] * 9 + [True]


def test_one_who_computes_without_letting_this_thread_run_hangs() -> None:
    """C code that keeps the interpreter: this thread is late, because of that."""
    assert StallMeter(5.0).silent(8.0, late=7.0, busy=7.9, queued=0.0)


def test_what_the_system_says_is_never_taken_for_more_than_the_time_that_passed() -> None:
    meter = StallMeter(5.0)
    meter.silent(1.0, late=-0.5, busy=3.0, queued=-2.0)
    assert meter.hung == 1.0
    meter.silent(1.0, late=9.0, busy=0.0, queued=9.0)
    assert meter.hung == 1.0


def test_a_thread_that_computes_is_seen_to_be_busy() -> None:
    times = ThreadTimes(threading.get_ident(), threading.get_native_id())
    began = time.thread_time()
    while time.thread_time() - began < 0.05:
        pass
    busy, queued = times.read(0.05)
    assert busy >= 0.05
    assert queued >= 0.0
    assert times.read(1.0)[0] < 0.05


def test_where_the_system_tells_nothing_the_times_are_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside Linux: no /proc and no clock of a thread."""
    monkeypatch.delattr(time, "pthread_getcpuclockid")
    times = ThreadTimes(threading.get_ident(), 2**30)
    assert times.read(1.0) == (0.0, 0.0)


# --- The thread


def watched(
    work: Callable[[], None], limit: float = 0.2, until: Callable[[], bool] = lambda: True
) -> list[tuple[float, str]]:
    """What is reported of a loop that does `work` and then goes on until a condition holds."""
    reports: list[tuple[float, str]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        watchdog = LoopWatchdog(loop, limit=limit, report=lambda hung, text: reports.append((hung, text)))
        watchdog.start()
        await asyncio.sleep(limit / 2)
        work()
        await wait_until(until)
        watchdog.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    return reports


def the_place_where_it_hangs() -> None:
    time.sleep(1.0)


def the_place_where_it_computes() -> None:
    # By its own processor time: a starved machine takes longer, and the same is found.
    began = time.thread_time()
    while time.thread_time() - began < 0.6:
        pass


@pytest.mark.parametrize("work", [the_place_where_it_hangs, the_place_where_it_computes])
def test_a_loop_that_hangs_is_shown_with_the_place(
    work: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    reports = watched(work, until=lambda: "goes on" in caplog.text)
    assert len(reports) == 1
    hung, text = reports[0]
    assert hung >= 0.2
    assert work.__name__ in text
    assert text.rindex("thread ") == text.index("thread MainThread")
    assert "goes on, after" in caplog.text


def test_a_loop_that_works_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    began = time.monotonic()
    assert watched(lambda: None, until=lambda: time.monotonic() - began > 1.0) == []
    assert caplog.text == ""


def test_a_watchdog_of_a_closed_loop_ends() -> None:
    async def main() -> LoopWatchdog:
        watchdog = LoopWatchdog(asyncio.get_running_loop(), limit=0.1)
        watchdog.start()
        return watchdog

    with asyncio.Runner() as runner:
        watchdog = runner.run(main())
    watchdog._thread.join(WAIT_S)
    assert not watchdog._thread.is_alive()


def test_without_threads_nothing_is_watched_and_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        watchdog = LoopWatchdog(asyncio.get_running_loop())
        monkeypatch.setattr(threading.Thread, "start", refuse)
        watchdog.start()
        watchdog.close()

    asyncio.run(main())
    assert "unnoticed" in caplog.text


# --- Processes that get no time

# argv: the processor to stay on (-1: any), the niceness, the limit.
GO: Final = """
import os, sys
if int(sys.argv[1]) >= 0: os.sched_setaffinity(0, {int(sys.argv[1])})
os.nice(int(sys.argv[2]))
"""
BURN: Final = (
    GO
    + """
while True: pass
"""
)
LOOP: Final = (
    GO
    + """
import asyncio, logging, time
import uvloop
from bridge.watchdog import LoopWatchdog
logging.basicConfig(stream=sys.stdout, format="%(message)s")
async def main():
    watchdog = LoopWatchdog(asyncio.get_running_loop(), limit=float(sys.argv[3]))
    watchdog.start()
    print("ready", flush=True)
    while True:
        await asyncio.sleep(0.001)
        began = time.thread_time()
        while time.thread_time() - began < 0.01: pass
        print("turn", flush=True)
asyncio.Runner(loop_factory=uvloop.new_event_loop).run(main())
"""
)


@contextlib.contextmanager
def python(code: str, *argv: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, argv)], cwd=ROOT, stdout=subprocess.PIPE, bufsize=0
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_for(process: subprocess.Popen[bytes], seconds: float) -> str:
    """What it says until it has said something again after `seconds`."""
    assert process.stdout is not None
    deadline = time.monotonic() + seconds
    said = b""
    while time.monotonic() < deadline or not said.endswith(b"turn\n"):
        line = process.stdout.readline()
        if line == b"":
            break
        said = said[-4096:] + line if line == b"turn\n" else said + line
    return said.decode()


def test_a_process_that_was_stopped_for_a_while_did_not_hang() -> None:
    with python(LOOP, -1, 0, 0.3) as process:
        read_for(process, 0.2)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.5)  # the thing itself: longer than the limit
        os.kill(process.pid, signal.SIGCONT)
        assert "has hung" not in read_for(process, 0.5)


def test_a_process_that_others_leave_no_processor_did_not_hang() -> None:
    """Everybody on one processor, and this one with the lowest priority."""
    processor = min(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(python(LOOP, processor, 19, 0.3))
        read_for(process, 0.0)
        for _ in range(3):
            stack.enter_context(python(BURN, processor, 0))
        said = read_for(process, 1.5)
    assert "has hung" not in said


# --- What is shown


async def test_stacks_name_threads_and_tasks_and_where_they_are() -> None:
    async def waits_here() -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(waits_here(), name="the waiting one")
    await asyncio.sleep(0)
    text = task_stacks(asyncio.get_running_loop())
    assert "the waiting one (most recent call last):" in text
    assert "in waits_here" in text
    task.cancel()
    assert "thread MainThread (most recent call last):" in stacks()
    assert "in test_stacks_name_threads" in stacks()
