"""How it scales: rate, CPU and memory against clients, size of messages, subscribers."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass

from tests.bench.endpoints import BRIDGE, DIRECT, Endpoint
from tests.bench.work import Sample, Work, compare

CLIENTS = [1, 10, 100, 1000, 3000, 10_000]
SIZES = [100, 1000, 10_000, 100_000, 1_000_000, 4_000_000, 16_000_000]
# The longest request that the bridge passes on by default is 10 MiB.
REQUEST_SIZES = [size for size in SIZES if size < 10 << 20]
SUBSCRIBERS = [1, 10, 100, 1000]
# Descriptors that a process needs beside its connections.
SPARE_DESCRIPTORS = 200


@dataclass(frozen=True)
class Curve:
    """One curve: what grows, in which unit, and the work for each value."""

    name: str
    grows: str
    values: list[int]
    work: Callable[[int], Work]
    endpoints: list[Endpoint]


CURVES = [
    Curve("clients", "clients, 1 in flight", CLIENTS, lambda n: Work("clients", n), [BRIDGE]),
    Curve("results", "bytes in a result", SIZES, lambda n: Work("size", tool=f"plain-{n}"), [DIRECT, BRIDGE]),
    Curve(
        "requests",
        "bytes in a request",
        REQUEST_SIZES,
        lambda n: Work("size", tool="sink", pad=n),
        [DIRECT, BRIDGE],
    ),
    Curve(
        "shared",
        "subscribers to the same",
        SUBSCRIBERS,
        lambda n: Work("shared", n, modern=True, burst=10),
        [BRIDGE],
    ),
    Curve(
        "distinct",
        "subscribers to something else each",
        SUBSCRIBERS,
        lambda n: Work("distinct", n, modern=True, burst=10, distinct=True),
        [BRIDGE],
    ),
]

Points = list[tuple[int, dict[str, Sample]]]


def draw(curve: Curve, *, rounds: int, seconds: float, processes: int) -> Points:
    """Measure a curve, and print each point as it is found."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - SPARE_DESCRIPTORS
    unit = curve.work(1).unit
    head = f"{curve.grows:<36}{unit + '/s':>10}{'p50 us':>12}{'p99 us':>12}{'CPU us/' + unit:>13}{'MB':>8}"
    print(head + (f"{'direct/s':>11}" if DIRECT in curve.endpoints else ""), flush=True)
    points: Points = []
    for value in curve.values:
        work = curve.work(value)
        if work.clients > most:
            print(f"  {value:<34,}the system allows {most} descriptors", flush=True)
            continue
        found = compare(work, curve.endpoints, rounds=rounds, seconds=seconds, processes=processes)
        each = found[BRIDGE.name]
        direct = f"{found[DIRECT.name].rate:11.0f}" if DIRECT.name in found else ""
        print(
            f"  {value:<34,}{each.rate:10.0f}{each.p50:12.1f}{each.p99:12.1f}{each.cpu_us:13.2f}"
            f"{each.memory / 1e6:8.1f}{direct}",
            flush=True,
        )
        points.append((value, found))
    return points
