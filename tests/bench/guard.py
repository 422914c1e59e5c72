"""Has the bridge become grossly dearer? Steady also where many share a machine.

Rates say little there. CPU time for a request does, beside that of a relay that moves the same bytes with the
plainest loop of Python, in the same minute, on one CPU, in chunks that are alike in each run. The least of a
few rounds counts: what disturbs only adds. `guard.json` has the ratios as they were when last recorded.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.bench.endpoints import BRIDGE, RELAY
from tests.bench.work import Work, measure, one_cpu, running

RECORD = Path(__file__).with_name("guard.json")

WORKS = [
    Work("1 client x 1", pinned=True, together=True),
    Work("1 client x 64", depth=64, pinned=True, together=True),
    Work("8 x 8, 4 progress each", 8, 8, "progress-4", pinned=True, together=True),
    Work("8 x 8, modern era, 4 KB", 8, 8, pad=4000, modern=True, pinned=True, together=True),
]

# Only a gross loss fails: another Python, kernel or CPU moves the ratios by less.
TOLERANCE = 1.5

ROUNDS = 3
SECONDS = 0.25
WARM_UP = 0.1


@dataclass(frozen=True)
class Cost:
    """CPU microseconds for a request: of the bridge, and of the relay."""

    bridge: float
    floor: float

    @property
    def ratio(self) -> float:
        """How many times dearer the bridge is."""
        return self.bridge / self.floor


def cost(work: Work) -> Cost:
    """Measure one work."""
    least: dict[str, float] = {}
    with one_cpu(work.pinned), running([RELAY, BRIDGE]) as targets:
        for _ in range(ROUNDS):
            for target in targets:
                taken = measure(work, target, SECONDS, 1, WARM_UP).cpu_us
                name = target.endpoint.name
                least[name] = min(taken, least.get(name, taken))
    return Cost(bridge=least[BRIDGE.name], floor=least[RELAY.name])


def guard() -> bool:
    """Measure, print, and compare with what was recorded; whether all is well."""
    recorded: dict[str, float] = json.loads(RECORD.read_text())["ratios"]
    print(f"{'CPU us a request':<28}{'bridge':>8}{'relay':>8}{'ratio':>8}{'recorded':>10}{'allowed':>9}")
    well = True
    for work in WORKS:
        allowed = recorded[work.name] * TOLERANCE
        found = cost(work)
        if found.ratio > allowed:  # once more, before anybody is alarmed
            found = min(found, cost(work), key=lambda each: each.ratio)
        verdict = ""
        if found.ratio > allowed:
            verdict, well = "  TOO DEAR", False
        print(
            f"  {work.name:<26}{found.bridge:8.2f}{found.floor:8.2f}{found.ratio:8.2f}"
            f"{recorded[work.name]:10.2f}{allowed:9.2f}{verdict}",
            flush=True,
        )
    if not well:
        print("bench: find out why, or record the new ratios with --record and say why in the commit")
    return well


def record() -> None:
    """Measure, and keep the ratios as those to compare with."""
    ratios = {work.name: round(cost(work).ratio, 2) for work in WORKS}
    content = {"python": sys.version.split()[0], "ratios": ratios}
    RECORD.write_text(json.dumps(content, indent=2) + "\n")
    print(RECORD.read_text(), end="")
