"""What all tests share: a skip that hides nothing.

`--no-skips`, which the test command sets, makes every skipped or expected-to-fail test a failure of the
session, unless its node id matches a pattern in `tests/kernel_forbids.txt`. A missing part, a renamed tool
or a typo in a condition can therefore never turn into a quietly green run.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ALLOWED = Path(__file__).with_name("kernel_forbids.txt")

_skips: dict[str, str] = {}


def allowed_patterns(text: str) -> list[str]:
    """The node id patterns of a list like `kernel_forbids.txt`: one a line, each with its ` # reason`.

    Raises pytest.UsageError for a line that gives no reason.
    """
    patterns = []
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        pattern, mark, reason = line.partition(" # ")
        if not mark or not reason.strip():
            raise pytest.UsageError(f"{ALLOWED.name}: {line!r} needs a reason: 'PATTERN # reason'")
        patterns.append(pattern.strip())
    return patterns


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skips",
        action="store_true",
        help=f"fail if a test was skipped or expected to fail, unless tests/{ALLOWED.name} lists it",
    )


def _note(report: pytest.CollectReport | pytest.TestReport) -> None:
    # An expected failure is reported as "skipped", an unexpected pass as "passed" with the same mark
    # (or as "failed" under xfail_strict); neither may stand in for a test.
    expected = hasattr(report, "wasxfail")
    if not report.skipped and not expected:
        return
    if isinstance(report.longrepr, tuple):
        reason = str(report.longrepr[2])
    else:
        reason = f"expected to fail: {getattr(report, 'wasxfail', '')}"
    _skips[report.nodeid] = reason


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def _forbidden(config: pytest.Config) -> dict[str, str]:
    if not config.getoption("--no-skips"):
        return {}
    patterns = allowed_patterns(ALLOWED.read_text(encoding="utf-8"))
    # "[" stands for itself in a node id with parameters, not for a set of characters.
    patterns = [pattern.replace("[", "[[]") for pattern in patterns]
    return {
        nodeid: reason
        for nodeid, reason in _skips.items()
        if not any(fnmatchcase(nodeid, pattern) for pattern in patterns)
    }


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus == pytest.ExitCode.OK and _forbidden(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    forbidden = _forbidden(config)
    if not forbidden:
        return
    terminalreporter.section("skipped tests are failures here", red=True, bold=True)
    for nodeid, reason in sorted(forbidden.items()):
        terminalreporter.line(f"{nodeid}: {reason}")
    terminalreporter.line(f"Make them run, or list what a kernel cannot do in tests/{ALLOWED.name}.")
