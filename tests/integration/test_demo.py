"""`mcp-bridge demo` judges a bridge: a right one passes, and each kind of fault is noticed."""

from __future__ import annotations

import functools
import io
import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bridge import demo
from tests.servers.relay import FAULTS
from tests.support.bridge import SERVERS, run_command

DEMO_SERVER = "import sys; from bridge.demo_server import main; sys.exit(main(sys.argv[1:]))"

# What the demo must say about each fault of the relay, as a regular expression.
NOTICED = {
    "cross-answers": r"A: the response to id 5 says 'bananas from B' instead of 'apples from A'",
    "cross-progress": r"A: progress for token 7 says 'step 1 of 3, bananas'",
    "cross-subscriptions": r"B: notifications/tools/list_changed on subscription 2, which asked for",
    "broadcast-logs": r"B: a log message nobody here asked for: apples",
    "keep-upstream-id": r"A: a response to id 1001, which is not waited for",
    "id-as-string": r'A: a response to id "1", which is not waited for',
    "keep-upstream-token": r"A: progress for token 10\d\d, which is not in use",
    "token-as-string": r'A: progress for token "7", which is not in use',
    "keep-subscription-id": r"subscriptions/acknowledged for subscription 10\d\d, which is not open",
    "lose-answer": r"not within .* A: the response to id 7; B: the response to id 7",
    "lose-change": r"not within .* A: notifications/resources/updated on subscription 3",
    "lose-progress": r"A: progress for token 7 says 'step 3 of 3, apples' instead of 'step 2 of 3",
    "lose-acknowledgement": r"not within .* B: the acknowledgement of subscription 3",
    "double-answer": r"A: a response to id 5, which is not waited for",
    "double-change": r"B: notifications/resources/updated on subscription 2 came more often",
    "double-acknowledgement": r"A: subscription 2 was acknowledged twice",
    "late-progress": r"A: progress for token 7, which is not in use",
    "ignore-cancel": r"A: a response to id 8, which was cancelled",
    "cross-cancel": r"not within .* B: the response to id 8",
    "no-subscription-id": r"A: not understood \(KeyError",
    "send-request": r"A: a request, ping",
    "send-garbage": r"A: not understood \(JSONDecodeError",
    "hang-up": r"(the bridge ended the connection of A|A cannot write to the bridge)",
    "exit-status": r"the bridge exited with 3 instead of 0",
    "leave-socket": r"the bridge left its socket behind",
    "ignore-sigterm": r"the bridge did not stop within",
    # Who is about to write when it ends notices by that.
    "die": r"(the bridge ended (the connection of|with 5)|cannot write to the bridge)",
    "one-process": r"C: id 1 \(initialize\) failed: error -32022",
    "modern-shape": r"C: id 1 was answered as in the other era",
    "cross-eras": r"A: .*response to id 11.* '?figs from C",
    "cross-eras-progress": r"A: progress for token 7 .*step 1 of 3, figs",
    "cross-eras-cancel": r"not within .* A: the response to id 13",
    "lose-session-answer": r"not within .* C: the response to id 9",
    "ignore-session-cancel": r"C: a response to id 13, which was cancelled",
    "lose-session-change": r"not within .* C: notifications/tools/list_changed on its session",
    "double-session-change": r"C: notifications/tools/list_changed on its session came more often",
    "leak-session-change": r"A: not understood \(KeyError",
    "leak-change": r"C: notifications/tools/list_changed on its session came more often",
}

# A cancelled call, one of A's and one of C's, had one to three steps of progress.
OK = r"^OK: (28|29|30) messages to A, 17 to B, 1[0-2] to C, nothing crossed$"


def command_of(fault: str, address: str) -> list[str]:
    relay = [sys.executable, "-S", str(SERVERS / "relay.py"), address, fault]
    return [*relay, sys.executable, "-c", DEMO_SERVER, "--tick", "0"]


def show(fault: str) -> tuple[int, str]:
    """Run the demo against the relay with a fault; its exit code and what it printed."""
    out = io.StringIO()
    code = demo.show(functools.partial(command_of, fault), out)
    return code, out.getvalue()


@pytest.fixture(scope="module")
def shown() -> dict[str, tuple[int, str]]:
    """The demo against the right relay and against each fault; several at once, since they mostly wait."""
    with (
        tempfile.TemporaryDirectory(prefix="d-") as directory,
        pytest.MonkeyPatch.context() as patch,
        ThreadPoolExecutor(6) as pool,
    ):
        # What never comes is waited for briefly; temporary files have a short place of their own.
        patch.setattr(demo, "STEP_TIMEOUT_S", 4.0)
        patch.setattr(demo, "STOP_TIMEOUT_S", 2.0)
        patch.setattr(tempfile, "tempdir", directory)
        names = ["none", *FAULTS]
        results = dict(zip(names, pool.map(show, names), strict=True))
        assert os.listdir(directory) == [], "the demo left files behind"
    return results


def test_a_bridge_that_keeps_clients_apart_passes(shown: dict[str, tuple[int, str]]) -> None:
    code, text = shown["none"]
    assert code == 0, text
    assert re.search(OK, text, re.MULTILINE), text
    assert "WRONG" not in text
    assert text.isascii()


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_bridge_with_a_fault_does_not_pass(fault: str, shown: dict[str, tuple[int, str]]) -> None:
    code, text = shown[fault]
    assert code == 1, f"{FAULTS[fault]}: not noticed\n{text}"
    assert re.search(rf"^WRONG .*{NOTICED[fault]}", text, re.MULTILINE), text
    assert re.search(r"^FAILED: ", text, re.MULTILINE)
    assert "OK:" not in text


async def test_the_command_shows_that_nothing_crosses_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Contract section 1: `mcp-bridge demo`, run outside the checkout."""
    with tempfile.TemporaryDirectory(prefix="d-") as directory:
        completed = await run_command("demo", env={"TMPDIR": directory}, cwd=tmp_path, timeout=40)
        left = os.listdir(directory)
    assert completed.code == 0, completed
    assert re.search(OK.encode(), completed.stdout, re.MULTILINE)
    assert completed.stderr == ""
    assert left == []


def test_a_bridge_that_cannot_start_fails_at_once_and_its_log_is_shown() -> None:
    out = io.StringIO()
    code = demo.show(lambda _: [sys.executable, "-c", "import sys; sys.exit('no such thing')"], out)
    assert code == 1
    assert "ended with 1 before it listened" in out.getvalue()
    assert "no such thing" in out.getvalue()


def test_the_columns_are_aligned(shown: dict[str, tuple[int, str]]) -> None:
    rows = [line for line in shown["none"][1].splitlines() if " | " in line or line.endswith(" |")]
    assert len(rows) > 40
    assert len({line.index("|") for line in rows}) == 1
