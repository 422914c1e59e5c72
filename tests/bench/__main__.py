"""Measure the bridge: `python3 -m tests.bench`; --help lists what else there is."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests import setup_parts
from tests.bench.endpoints import BRIDGE, ROOT, usual

HOW_TO_READ = """\
How to read it: bare rates move by a factor of two with what else the machine does; ratios are of the same
rounds and move much less, CPU time least of all. "direct" is the floor: the same load on a server's own
pipes, a server for each client, nothing in between; load and server can do at least that. "CPU us" and "MB"
are of the one process that stands in between. Every answer was checked, its id and its text: a wrong one
ends the run.
"""


def machine() -> dict[str, str]:
    """What is measured, on what."""
    cpu = "?"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    versions = {name: importlib.metadata.version(name) for name in ("uvloop", "msgspec")}
    found = {
        "CPUs": f"{len(os.sched_getaffinity(0))} ({cpu})",
        "kernel": platform.release(),
        "Python": platform.python_version(),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "load before": " ".join(f"{each:.2f}" for each in os.getloadavg()),
    }
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if commit.returncode == 0:
        found["bridge"] = commit.stdout.strip()
    return found


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.bench",
        description="Compare direct pipes, socat if it is installed, and this bridge.",
    )
    add = parser.add_argument
    add(
        "--only",
        action="append",
        metavar="TEXT",
        help='of the works only those with TEXT in their names; "" for none',
    )
    add(
        "--rounds",
        type=int,
        default=5,
        metavar="N",
        help="rounds, of which medians count [%(default)s]",
    )
    add("--seconds", type=float, default=1.0, metavar="S", help="how long each takes [%(default)s]")
    default = max(1, min(4, len(os.sched_getaffinity(0)) // 2))
    add(
        "--generators",
        type=int,
        default=default,
        metavar="N",
        help="processes that make load [%(default)s]",
    )
    add("--peers", action="store_true", help="install other bridges into .parts/ and compare with them")
    add("--curves", action="store_true", help="how it scales, instead")
    add("--guard", action="store_true", help="compare CPU a request with what was recorded, instead; in 20 s")
    add("--record", action="store_true", help="record what --guard compares with, instead")
    add("--json", type=Path, metavar="FILE", help="write the results there, too")
    add("--plot", type=Path, metavar="FILE", help="draw them as PNG; installs matplotlib into .parts/")
    return parser.parse_args()


def comparisons(chosen: argparse.Namespace, report: dict[str, Any]) -> None:
    """Every work against everything that is compared."""
    from tests.bench import peers, starts
    from tests.bench.work import PEER_WORKS, WORKS, compare, idle_memory, table

    endpoints = usual()
    works = [*WORKS]
    if chosen.peers:
        endpoints += peers.installed()
        works += PEER_WORKS
    if chosen.only is not None:
        works = [each for each in works if any(text in each.name for text in chosen.only)]
    print(
        f"{chosen.rounds} rounds of {chosen.seconds:g} s, load from {chosen.generators} process(es)\n",
        flush=True,
    )
    for work in works:
        results = compare(
            work, endpoints, rounds=chosen.rounds, seconds=chosen.seconds, processes=chosen.generators
        )
        print(table(work, results) + "\n", flush=True)
        plain = {name: asdict(each) for name, each in results.items()}
        report.setdefault("works", []).append({"work": asdict(work), "results": plain})
    if chosen.only is not None:
        return
    for clients in (1000, 9000):
        empty, each = idle_memory(BRIDGE, clients, chosen.generators)
        print(f"idle: {empty / 1e6:.1f} MB, and {each / 1024:.2f} KB for each of {clients:,} idle clients")
        report.setdefault("idle", []).append({"clients": clients, "empty": empty, "each": each})
    found = starts.starts(3 * chosen.rounds)
    print("\n" + starts.table(found) + "\n")
    report["starts"] = [asdict(each) for each in found]


def main() -> int:
    chosen = options()
    if sys.platform != "linux":
        raise SystemExit("bench: CPU and memory are read as Linux has them: run it on Linux")
    setup_parts.need_the_environment("tests.bench", "uvloop", "msgspec")
    if chosen.record or chosen.guard:
        from tests.bench import guard

        if chosen.record:
            guard.record()
            return 0
        return 0 if guard.guard() else 1
    report: dict[str, Any] = {"machine": machine()}
    print("\n".join(f"{name}: {value}" for name, value in report["machine"].items()) + "\n", flush=True)
    if chosen.curves:
        from tests.bench import curves

        for curve in curves.CURVES:
            points = curves.draw(
                curve, rounds=chosen.rounds, seconds=chosen.seconds, processes=chosen.generators
            )
            print(flush=True)
            plain = [(value, {n: asdict(each) for n, each in found.items()}) for value, found in points]
            report.setdefault("curves", {})[curve.name] = {
                "grows": curve.grows,
                "unit": {"req": "request", "note": "notification"}[curve.work(1).unit],
                "points": plain,
            }
    else:
        comparisons(chosen, report)
        print(HOW_TO_READ, end="")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(report, indent=1) + "\n")
    if chosen.plot is not None:
        from tests.bench import peers

        script = ROOT / "tests" / "bench" / "plot.py"
        subprocess.run(
            [peers.plot_python(), script, chosen.plot], input=json.dumps(report), text=True, check=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
