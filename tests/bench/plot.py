"""Draw what `python3 -m tests.bench` measured. `plot.py FILE.png < RESULTS.json`, with matplotlib.

What there is to draw: works (the bridge beside direct pipes and socat), peers, or curves.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import matplotlib  # type: ignore[import-not-found]  # only where pictures are made, see peers.py
import matplotlib.pyplot as plt  # type: ignore[import-not-found]  # the same

COLOURS = ["#1b6ca8", "#9aa5b1", "#c9b458", "#b5544a", "#6f9a6f"]
BRIDGE = "mcp-bridge"


def colours(names: list[str]) -> dict[str, str]:
    """The bridge first, always in the same colour."""
    ordered = [name for name in (BRIDGE, *names) if name in names]
    return dict(zip(dict.fromkeys(ordered), COLOURS, strict=False))


def names_of(works: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for work in works for name in work["results"]))


def bars(axes: Any, works: list[dict[str, Any]], value: str, title: str) -> None:
    """A group of horizontal bars for each work, on a logarithmic scale."""
    names = names_of(works)
    colour = colours(names)
    height = 0.84 / len(names)
    for place, name in enumerate(names):
        rows = [(row, work["results"][name]) for row, work in enumerate(works) if name in work["results"]]
        at = [row + (place - (len(names) - 1) / 2) * height for row, _ in rows]
        drawn = axes.barh(at, [each[value] for _, each in rows], height, color=colour[name], label=name)
        axes.bar_label(drawn, [f"{each[value]:,.0f}" for _, each in rows], padding=2, fontsize=6.5)
    axes.set_yticks(range(len(works)), [work["work"]["name"].removeprefix("peers: ") for work in works])
    axes.invert_yaxis()
    axes.set_xscale("log")
    # From a whole decade on, and with room for the numbers: a bar's length says nothing else.
    least = min(each[value] for work in works for each in work["results"].values())
    axes.set_xlim(left=10 ** math.floor(math.log10(max(least, 1.0))))
    axes.margins(x=0.08)
    axes.set_title(title, loc="left", x=-0.3, fontsize=10, fontweight="bold")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(names), frameon=False, fontsize=8)


def draw_works(report: dict[str, Any]) -> Any:
    """Rates of everything, and latencies where only one request is in flight."""
    peers = [work for work in report["works"] if work["work"]["name"].startswith("peers")]
    works = [work for work in report["works"] if work not in peers and not work["work"]["burst"]]
    panels = [
        (group, value, title)
        for group, value, title in (
            (works, "rate", "Requests a second"),
            (peers, "rate", "One in flight: requests a second"),
            (peers, "p50", "The same: median latency, us"),
        )
        if group
    ]
    figure, all_axes = plt.subplots(
        len(panels),
        figsize=(10, sum(1.2 + 0.16 * sum(len(w["results"]) for w in group) for group, _, _ in panels)),
        gridspec_kw={"height_ratios": [3 + sum(len(w["results"]) for w in group) for group, _, _ in panels]},
        squeeze=False,
    )
    for axes, (group, value, title) in zip(all_axes[:, 0], panels, strict=True):
        bars(axes, group, value, title)
    return figure


def draw_curves(report: dict[str, Any]) -> Any:
    """Rate, CPU and memory over what grows."""
    curves = report["curves"]
    figure, all_axes = plt.subplots(len(curves), 3, figsize=(12, 2.6 * len(curves)), squeeze=False)
    for row, curve in zip(all_axes, curves.values(), strict=True):
        for axes, (value, title) in zip(
            row,
            (
                ("rate", f"{curve['unit']}s a second"),
                ("cpu_us", f"CPU us a {curve['unit']}"),
                ("memory", "memory, MB"),
            ),
            strict=True,
        ):
            names = list(dict.fromkeys(name for _, found in curve["points"] for name in found))
            colour = colours(names)
            for name in names:
                points = [(at, found[name][value]) for at, found in curve["points"] if name in found]
                if not any(y for _, y in points):
                    continue
                scale = 1e6 if value == "memory" else 1
                xs, ys = [at for at, _ in points], [y / scale for _, y in points]
                axes.plot(xs, ys, "o-", color=colour[name], label=name, markersize=4)
            axes.set_xscale("log")
            if value != "memory":
                axes.set_yscale("log")
            else:
                axes.set_ylim(0, 1.15 * max(max(line.get_ydata()) for line in axes.get_lines()))
            axes.set_title(title, loc="left", fontsize=9)
            axes.set_xlabel(curve["grows"], fontsize=9)
            axes.grid(alpha=0.3)
        row[0].legend(frameon=False, fontsize=8)
    return figure


def main() -> None:
    report = json.load(sys.stdin)
    matplotlib.use("Agg")
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure = draw_curves(report) if "curves" in report else draw_works(report)
    machine = report["machine"]
    shown = (
        f"{machine['CPUs']} · Linux {machine['kernel']} · Python {machine['Python']} · {machine['versions']}"
    )
    figure.text(0.01, 0.002, shown, fontsize=7, color="#666666")
    figure.tight_layout(rect=(0, 0.012, 1, 1))
    figure.savefig(sys.argv[1], dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    main()
