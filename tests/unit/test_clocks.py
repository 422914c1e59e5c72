"""No wait depends on the time of day: when the system's clock is set, nothing ends too early or never."""

from __future__ import annotations

import ast
from pathlib import Path

import bridge

OF_THE_DAY = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime", "ctime"}


def test_only_the_log_asks_for_the_time_of_day() -> None:
    """All else uses the monotonic clock: the loop's, or `time.monotonic`."""
    asked = set()
    for file in Path(bridge.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
                continue
            if node.value.id in ("time", "datetime", "date") and node.attr in OF_THE_DAY:
                asked.add(file.name)
            assert (node.value.id, node.attr) != ("time", "CLOCK_REALTIME"), file
    assert asked == {"logs.py"}
