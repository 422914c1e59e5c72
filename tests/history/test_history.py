"""The history checker's short profile, and what keeps it honest."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

from tests.history.breakage import Breakage
from tests.history.breakages import BREAKAGES, DoesNotApply, broken, find
from tests.history.nemesis import MARK, process
from tests.history.run import Profile, run
from tests.history.server import next_delay, starts_of

SEED = int(os.environ.get("HISTORY_SEED", "0")) or random.randrange(1, 10**6)
"""A new one for each run; a failure names it, and the variable brings it back."""


def test_twenty_thousand_requests_find_every_promise_kept() -> None:
    """Contract, first sentence: colliding ids, both eras, unix and tcp, deaths, freezes, bad clients."""
    outcome = uvloop.run(run(Profile(SEED, 20_000)))
    assert not outcome.violations, f"HISTORY_SEED={SEED}: {outcome}\n" + "\n".join(
        map(str, outcome.violations[:20])
    )
    # It would prove nothing if nothing had happened.
    assert outcome.requests >= 20_000
    assert outcome.received > outcome.requests
    assert outcome.deaths >= 3


@pytest.mark.parametrize("sharing", ["isolated", "auto"])
def test_clients_with_processes_of_their_own_find_every_promise_kept(sharing: str) -> None:
    """The same, and what their servers ask them: every answer comes back to the process that asked."""
    outcome = uvloop.run(run(Profile(SEED, 2_000, sharing=sharing)))
    assert not outcome.violations, f"HISTORY_SEED={SEED}: {outcome}\n" + "\n".join(
        map(str, outcome.violations[:20])
    )
    assert outcome.requests >= 2_000
    assert outcome.deaths >= 3  # processes end with their clients


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.name)
def test_each_breakage_still_applies(breakage: Breakage) -> None:
    with broken(breakage) as folder:
        for file, _, _ in breakage.edits:
            source = (folder / "bridge" / file).read_text(encoding="utf-8")
            compile(source, file, "exec")


def test_a_breakage_whose_code_has_changed_is_an_error() -> None:
    gone = Breakage("gone", frozenset({"order"}), (("core/router.py", "no such text", ""),))
    with pytest.raises(DoesNotApply, match="gone"), broken(gone):
        pass


QUICK = (
    "ids come back as strings",
    "upstream ids start anew",
    "a CR is passed on",
    "what waited is sent twice",
)
"""What is found within seconds; the command tries all of them, with several seeds."""


@pytest.mark.parametrize("name", QUICK)
def test_the_short_profile_finds_a_breakage(name: str) -> None:
    breakage = next(each for each in BREAKAGES if each.name.startswith(name))
    found, rules = find(breakage, SEED)
    assert found, f"HISTORY_SEED={SEED}: found {rules}"


def test_the_nemesis_touches_no_process_but_those_of_its_run() -> None:
    mark = "made-up-mark"
    sleeper = [sys.executable, "-c", "import time; time.sleep(30)"]
    environment = {**os.environ, MARK: mark}
    with subprocess.Popen(sleeper) as stranger, subprocess.Popen(sleeper, env=environment) as own:
        try:
            with process(stranger.pid, mark) as descriptor:
                assert descriptor is None
            with process(own.pid, mark) as descriptor:
                assert descriptor is not None
            with process(own.pid, "another") as descriptor:
                assert descriptor is None
        finally:
            stranger.kill()
            own.kill()
    with process(own.pid, mark) as descriptor:
        assert descriptor is None


@pytest.mark.parametrize("pid", [1, 0, -1])
def test_the_nemesis_refuses_numbers_that_mean_others(pid: int) -> None:
    with pytest.raises(ValueError, match="process id"), process(pid, "mark"):
        pass


def test_the_server_knows_how_long_the_bridge_will_wait_after_its_death() -> None:
    assert next_delay([0.0], 1.0) == pytest.approx(0.2)
    assert next_delay([0.0, 1.1], 2.0) == pytest.approx(0.4)
    assert next_delay([0.0, 1.1], 12.0) == pytest.approx(0.1)
    text = "S\tone\t2\t1.0\nE\tone\tmodern\nS\ttwo\t3\t2.0\nE\ttwo\tmodern\n"
    assert starts_of(text, "modern") == [1.0, 2.0]
    replaced = text + "R\t-\t-\t2.5\n"
    assert next_delay(starts_of(replaced, "modern"), 3.0) == pytest.approx(0.1)
    assert starts_of(replaced + "S\tthree\t4\t2.6\nE\tthree\tmodern\n", "modern") == [2.6]


def test_the_checker_needs_no_hooks_in_the_package() -> None:
    package = Path(__file__).resolve().parents[2] / "bridge"
    assert not [path for path in package.rglob("*.py") if "HISTORY_" in path.read_text(encoding="utf-8")]
