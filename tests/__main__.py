"""The test command: make the test environment, install every real part, run all tests.

    python3 -m tests                    everything, in the environment .venv, three files at a time
    python3 -m tests -- -k framing      arguments after "--" go to pytest, which then takes one at a time
    python3 -m tests --setup-only       make the environment, run no test
    python3 -m tests --coverage -- tests/unit/core      and write .coverage (of the test process itself)

It needs Python 3.11 or later with venv and pip, and git. A test that is skipped is a failure, but for what
`tests/kernel_forbids.txt` lists.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - an older Python must get a sentence, not a traceback
    raise SystemExit("mcp-bridge needs Python 3.11 or later; this is " + sys.version.split()[0])

import argparse
import os
import shutil
from pathlib import Path

from tests import setup_parts

AT_ONCE = ["-n", "3", "--dist", "loadfile"]
"""Most tests wait for processes of their own: three files at a time keep two CPUs busy."""


def check_interpreter(folder: Path) -> None:
    """SystemExit if `folder` is an environment of another Python version than the one that runs."""
    config = folder / "pyvenv.cfg"
    lines = config.read_text(encoding="utf-8").splitlines() if config.is_file() else []
    found = [line.partition("=")[2].strip() for line in lines if line.startswith("version")]
    if found and not found[0].startswith(f"{sys.version_info.major}.{sys.version_info.minor}."):
        raise SystemExit(
            f"setup: {folder} is an environment of Python {found[0]}, this is {sys.version.split()[0]}: "
            "remove it, or name another with --venv"
        )


def make_environment(folder: Path) -> None:
    """The test environment: locked requirements and the package itself, editable. Idempotent."""
    root = setup_parts.ROOT
    lock = root / "requirements" / "test.txt"
    check_interpreter(folder)
    step = setup_parts.Step("test environment", folder, lock, root / "pyproject.toml")
    if step.needed():
        if not setup_parts.venv_python(folder).exists():
            setup_parts.make_venv(folder)
        setup_parts.pip_install(folder, "--require-hashes", "-r", lock)
        # --no-build-isolation: the build tools come from the lock, too.
        setup_parts.pip_install(folder, "--no-deps", "--no-build-isolation", "-e", root)
        step.done()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m tests", description="Set up and run all tests.")
    parser.add_argument("--venv", default=".venv", help="where the test environment is made [%(default)s]")
    parser.add_argument("--setup-only", action="store_true", help="make the environment, run no test")
    parser.add_argument("--coverage", action="store_true", help="measure coverage of the test process")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    options = parser.parse_args()

    if shutil.which("git") is None:
        raise SystemExit("setup: git is missing; the tests serve a git repository: install git")
    os.chdir(setup_parts.ROOT)
    folder = Path(setup_parts.ROOT, options.venv)
    make_environment(folder)
    python = str(setup_parts.venv_python(folder))
    setup_parts.run([python, "-m", "tests.setup_parts"])
    if options.setup_only:
        return
    if options.coverage and not options.pytest:
        parser.error("--coverage sees what runs in one process: name the tests after --")
    runner = ["-m", "coverage", "run", "-m", "pytest"] if options.coverage else ["-m", "pytest"]
    sys.stdout.flush()
    os.execv(python, [python, *runner, "--no-skips", *(options.pytest or AT_ONCE)])


if __name__ == "__main__":
    main()
