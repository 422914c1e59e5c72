"""The test command's own promise: a test that did not run is a failure, and says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import allowed_patterns

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"


def run_suite(folder: Path, body: str, *options: str, listed: str = "") -> tuple[int, str]:
    """Run pytest on one made-up test module beside a copy of the real conftest."""
    (folder / "conftest.py").write_text(CONFTEST.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "kernel_forbids.txt").write_text(listed, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (folder / "test_made_up.py").write_text("import pytest\n" + body, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pytest.ini", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


SKIPPED = "def test_runs(): pass\n@pytest.mark.skip(reason='no such part')\ndef test_hides(): pass\n"
WHOLE_MODULE = "pytest.importorskip('no_such_module_anywhere')\n"
XFAILED = "def test_runs(): pass\n@pytest.mark.xfail(reason='known')\ndef test_hides(): assert False\n"
XPASSED = "def test_runs(): pass\n@pytest.mark.xfail(reason='known')\ndef test_hides(): pass\n"


@pytest.mark.parametrize("body", [SKIPPED, XFAILED, XPASSED], ids=["skip", "xfail", "xpass"])
def test_a_test_that_did_not_run_or_need_not_pass_fails_the_session(tmp_path: Path, body: str) -> None:
    code, output = run_suite(tmp_path, body, "--no-skips")
    assert code == 1, output
    assert "skipped tests are failures here" in output
    assert "test_made_up.py::test_hides: " in output


def test_a_module_that_skips_itself_fails_the_session(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("def test_runs(): pass\n", encoding="utf-8")
    code, output = run_suite(tmp_path, WHOLE_MODULE, "--no-skips")
    assert code == 1, output
    assert "test_made_up.py: " in output


def test_without_the_option_a_skip_is_a_skip(tmp_path: Path) -> None:
    code, output = run_suite(tmp_path, SKIPPED)
    assert code == 0, output


def test_a_listed_skip_is_allowed(tmp_path: Path) -> None:
    listed = "# comment\n\ntest_made_up.py::test_hid* # this kernel has no such call\n"
    code, output = run_suite(tmp_path, SKIPPED, "--no-skips", listed=listed)
    assert code == 0, output


def test_the_list_allows_nothing_but_what_it_names(tmp_path: Path) -> None:
    listed = "test_made_up.py::test_runs # another test\n"
    code, output = run_suite(tmp_path, SKIPPED, "--no-skips", listed=listed)
    assert code == 1, output


def test_a_listed_pattern_without_a_reason_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match="needs a reason"):
        allowed_patterns("test_made_up.py::test_hides\n")


def test_the_list_in_the_repository_is_well_formed() -> None:
    allowed_patterns(CONFTEST.with_name("kernel_forbids.txt").read_text(encoding="utf-8"))
