"""What the clients do, and rounds of it against everything that is compared."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.endpoints import KEEP_MEMORY, MOST_SERVERS, ROOT, Endpoint, Running

# Before a round counts: connections are warm, buffers have grown.
WARM_UP = 0.3
# From `ready` of the last generator to the first request, in seconds: each has read its line by then.
HEAD_START = 0.02
# How long generators may take to connect and to end, in seconds.
PATIENCE = 180.0


@dataclass(frozen=True)
class Work:
    """What the clients do.

    Attributes:
        depth: requests in flight on each of the `clients`.
        tool: what is asked of the server, see `echo.py`.
        pad: bytes of text in each request beside a tag of 14.
        modern: requests of the modern era; else with a session begun by `initialize`.
        together: a client sends its next requests when all are answered, so that chunks are alike.
        pinned: all processes on one CPU: a wake-up of another costs more than the work does, and varies.
        burst: notifications to each client in one go; 0: no notifications, but requests.
        rate: bursts in a second; 0: each when the last has arrived.
        distinct: each client has a subscription of its own at the server; else all share one.
    """

    name: str
    clients: int = 1
    depth: int = 1
    tool: str = "echo"
    pad: int = 0
    modern: bool = False
    together: bool = False
    pinned: bool = False
    burst: int = 0
    rate: float = 0.0
    distinct: bool = False

    @property
    def unit(self) -> str:
        """What is counted."""
        return "note" if self.burst else "req"


@dataclass(frozen=True)
class Sample:
    """One round, or medians: requests a second; latencies and own CPU in us; own memory in bytes."""

    rate: float
    p50: float
    p99: float
    cpu_us: float
    memory: float
    ratio: float = 0.0


WORKS = [
    Work("1 client x 1 in flight, one CPU", pinned=True),
    Work("1 client x 64 in flight", depth=64),
    Work("8 clients x 8 in flight", 8, 8),
    Work("64 clients x 8 in flight", 64, 8),
    Work("64 clients x 1 in flight", 64),
    Work("1,000 clients x 1 in flight", 1000),
    Work("8 x 8, 4 progress notifications each", 8, 8, "progress-4"),
    Work("8 x 8, 4 KB both ways", 8, 8, pad=4000),
    Work("1 MB results, plain text", tool="plain-1000000"),
    Work("1 MB results, text full of escapes", tool="quoted-1000000"),
    Work("1 MB requests", tool="sink", pad=1_000_000),
    Work("8 x 8, modern era", 8, 8, modern=True),
    Work("1 notification to 1,000 subscribers", 1000, modern=True, burst=1),
    Work("10 notifications to 1,000 subscribers", 1000, modern=True, burst=10),
    Work("1,000 notifications/s to 100 subscribers", 100, modern=True, burst=1, rate=1000),
]

# What every peer can do: one request in flight on a connection.
PEER_WORKS = [
    Work("peers: 1 client", 1),
    Work("peers: 8 clients", 8),
    Work("peers: 64 clients", 64),
]


def able(endpoint: Endpoint, work: Work) -> bool:
    """Whether this endpoint can do this work."""
    if work.burst and endpoint.one_each:
        return False  # nobody else's server can be made to notify
    if endpoint.one_each and work.clients > MOST_SERVERS:
        return False
    return not endpoint.http or work in PEER_WORKS


class Generators:
    """The processes that make the load, connected and ready."""

    def __init__(self, work: Work, address: str | list[str], processes: int, *, idle: bool = False) -> None:
        self.where = f"{address} with {work.name}"
        processes = 1 if work.burst else max(1, min(processes, work.clients))
        self.processes = []
        first = 0
        for number in range(processes):
            last = work.clients * (number + 1) // processes
            spec = {
                **asdict(work),
                "address": address,
                "first": first,
                "clients": last - first,
                "all_clients": work.clients,
                "idle": idle,
            }
            process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-m", "tests.bench.load"],
                cwd=ROOT,
                env={**os.environ, **KEEP_MEMORY},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self.processes.append(process)
            self._tell(process, json.dumps(spec))
            first = last
        for process in self.processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if line != "ready\n":
                error = json.loads(line or '{"error": "the load generator ended"}')["error"]
                raise SystemExit(f"bench: WRONG, at {self.where}: {error}")

    def go(self, seconds: float, read: Running, warm_up: float) -> tuple[dict[str, Any], float, int]:
        """Measure for so long; what all did together, CPU seconds and memory of `read` meanwhile."""
        begin = time.monotonic() + HEAD_START + warm_up
        for process in self.processes:
            self._tell(process, f"{begin} {begin + seconds}")
        time.sleep(max(0.0, begin - time.monotonic()))
        cpu = read.cpu()
        time.sleep(max(0.0, begin + seconds - time.monotonic()))
        cpu = read.cpu() - cpu
        memory = read.memory()
        return self.end(), cpu, memory

    def end(self) -> dict[str, Any]:
        """Wait for the end; what all did together."""
        total: dict[str, Any] = {"done": 0, "latencies": []}
        for process in self.processes:
            output, _ = process.communicate(timeout=PATIENCE)
            outcome = json.loads(output or '{"error": "the load generator ended"}')
            if outcome["error"]:
                raise SystemExit(f"bench: WRONG, at {self.where}: {outcome['error']}")
            total["done"] += outcome["done"]
            total["latencies"] += outcome["latencies"]
        total["latencies"].sort()
        return total

    def release(self) -> None:
        """Let idle ones go."""
        for process in self.processes:
            self._tell(process, "0 0\n")
        self.end()

    def close(self) -> None:
        """End what is still running, after a failure."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()

    @staticmethod
    def _tell(process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()


@contextlib.contextmanager
def generators(
    work: Work, address: str | list[str], processes: int, *, idle: bool = False
) -> Iterator[Generators]:
    """The load, ready; ended behind."""
    load = Generators(work, address, processes, idle=idle)
    try:
        yield load
    finally:
        load.close()


@contextlib.contextmanager
def one_cpu(wanted: bool) -> Iterator[None]:
    """What is started inside runs on one CPU."""
    before = os.sched_getaffinity(0)
    if wanted:
        os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def running(endpoints: Sequence[Endpoint]) -> Iterator[list[Running]]:
    """The endpoints, started; stopped behind."""
    started: list[Running] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        try:
            for number, endpoint in enumerate(endpoints):
                own = Path(folder, str(number))
                own.mkdir()
                started.append(Running(endpoint, own))
            yield started
        finally:
            for each in started:
                each.stop()


def percentile(latencies: Sequence[tuple[float, int]], share: float) -> float:
    """From sorted pairs of value and count."""
    left = share * sum(count for _, count in latencies)
    for value, count in latencies:
        left -= count
        if left <= 0:
            return value
    return 0.0


def measure(work: Work, target: Running, seconds: float, processes: int, warm_up: float = WARM_UP) -> Sample:
    """One round against one endpoint. SystemExit at the first wrong answer."""
    with generators(work, target.address, processes) as load:
        total, cpu, memory = load.go(seconds, target, warm_up)
    done = max(1, total["done"])
    latencies = total["latencies"]
    return Sample(
        rate=total["done"] / seconds,
        p50=percentile(latencies, 0.5),
        p99=percentile(latencies, 0.99),
        cpu_us=cpu / done * 1e6,
        memory=memory,
    )


def compare(
    work: Work, endpoints: Sequence[Endpoint], *, rounds: int, seconds: float, processes: int
) -> dict[str, Sample]:
    """Rounds of the same work against each endpoint that is able to do it, every other in reverse order.

    Returns:
        For each its medians. `ratio` is the median of the rounds' ratios to the first endpoint's rate: what
        disturbs a round disturbs all of it.
    """
    samples: dict[str, list[Sample]] = {}
    with one_cpu(work.pinned), running([each for each in endpoints if able(each, work)]) as targets:
        for number in range(rounds):
            for target in targets if number % 2 == 0 else reversed(targets):
                sample = measure(work, target, seconds, processes)
                samples.setdefault(target.endpoint.name, []).append(sample)
    first = samples[targets[0].endpoint.name]
    return {
        target.endpoint.name: _medians(samples[target.endpoint.name], [each.rate for each in first])
        for target in targets
    }


def _medians(samples: Sequence[Sample], base: Sequence[float]) -> Sample:
    return Sample(
        rate=median(each.rate for each in samples),
        p50=median(each.p50 for each in samples),
        p99=median(each.p99 for each in samples),
        cpu_us=median(each.cpu_us for each in samples),
        memory=median(each.memory for each in samples),
        ratio=median(each.rate / (of or 1) for each, of in zip(samples, base, strict=True)),
    )


def table(work: Work, results: dict[str, Sample]) -> str:
    """The results as text."""
    unit = work.unit
    head = f"{'':<22}{unit + '/s':>10}{'ratio':>8}{'p50 us':>10}{'p99 us':>10}{'CPU us/' + unit:>12}{'MB':>8}"
    lines = [work.name, head]
    for name, each in results.items():
        cpu = f"{each.cpu_us:12.2f}{each.memory / 1e6:8.1f}" if each.memory else f"{'-':>12}{'-':>8}"
        lines.append(f"  {name:<20}{each.rate:10.0f}{each.ratio:8.3f}{each.p50:10.1f}{each.p99:10.1f}{cpu}")
    return "\n".join(lines)


def idle_memory(endpoint: Endpoint, clients: int, processes: int) -> tuple[float, float]:
    """Resident memory without a client, and what each of so many idle ones adds, in bytes."""
    work = Work("idle", clients=clients)
    with running([endpoint]) as (target,):
        # One client before: what the first one causes is not what each of the others does.
        with generators(Work("first"), target.address, 1, idle=True) as load:
            load.release()
        before = target.memory()
        with generators(work, target.address, processes, idle=True) as load:
            after = target.memory()
            load.release()
    return before, (after - before) / clients
