"""Every published server the bridge is tried with, and questions to it whose answers show which they answer.

No server reaches beyond this machine: those that ask a service on the network get a stand-in for it, or a
question they answer without.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.real.clients import LEGACY, MODERN
from tests.real.drivers import Json, node, npm_part
from tests.setup_parts import NODE_PARTS, SDK1_VENV
from tests.support.sdk import script

# How many different questions a server can be asked.
QUESTIONS = 24

Ask = Callable[[int], tuple[str, Json, str]]
"""From a question's number: the tool, its arguments, and what must be in the answer."""


@dataclass(frozen=True)
class Part:
    """How a server is started, and what it is asked."""

    command: tuple[str, ...]
    ask: Ask
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def program(self) -> str:
        """The name that a server's process has in its command line, and no other below a bridge has."""
        return Path(self.command[1] if self.command[0] == node() else self.command[0]).name


@dataclass(frozen=True)
class ServerKind:
    """A published server: `eras` are the protocol versions it speaks.

    `make(folder, service)` prepares it; `service` is the URL of a stand-in for what it asks on the network.
    """

    name: str
    eras: tuple[str, ...]
    make: Callable[[Path, str], Part]


class _Echo(BaseHTTPRequestHandler):
    """A stand-in for any service: its JSON answer to a GET says what was asked for."""

    def do_GET(self) -> None:
        body = json.dumps({"uid": self.path, "name": self.path}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def stand_in() -> Iterator[str]:
    """The URL of a running stand-in for what servers would ask on the network."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# A proxy of the surroundings must not come between the servers and what runs on this machine.
NO_PROXY = {
    name: "" for proxy in ("http_proxy", "https_proxy", "all_proxy") for name in (proxy, proxy.upper())
}


def git_part(folder: Path, _: str) -> Part:
    """mcp-server-git on a repository with a commit for each question."""
    repository = folder / "repository"
    identity = ["-c", "user.name=Ada Example", "-c", "user.email=ada@example.com"]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(repository), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.strip()

    repository.mkdir()
    git("init", "--quiet")
    revisions = []
    for number in range(QUESTIONS):
        (repository / "file.txt").write_text(f"content {number:03}\n")
        git("add", "file.txt")
        git("commit", "--quiet", "--message", f"Commit {number:03}")
        revisions.append(git("rev-parse", "HEAD"))

    def ask(number: int) -> tuple[str, Json, str]:
        arguments = {"repo_path": str(repository), "revision": revisions[number]}
        return "git_show", arguments, f"+content {number:03}"

    return Part((script("mcp-server-git"), "--repository", str(repository)), ask)


def time_part(_: Path, __: str) -> Part:
    """mcp-server-time, asked to convert a different time for each question."""

    def ask(number: int) -> tuple[str, Json, str]:
        time = f"{number % 24:02}:{number % 60:02}"
        arguments = {"source_timezone": "UTC", "time": time, "target_timezone": "Asia/Kolkata"}
        return "convert_time", arguments, f"T{time}:00+00:00"

    return Part((script("mcp-server-time"), "--local-timezone", "UTC"), ask)


def sqlite_part(folder: Path, _: str) -> Part:
    """mcp-server-sqlite, asked for a number."""

    def ask(number: int) -> tuple[str, Json, str]:
        return "read_query", {"query": f"SELECT {number} AS number"}, f"{{'number': {number}}}"

    command = str(SDK1_VENV / "bin" / "mcp-server-sqlite")
    return Part((command, "--db-path", str(folder / "data.sqlite")), ask)


def everything_part(_: Path, __: str) -> Part:
    """server-everything, asked to echo."""

    def ask(number: int) -> tuple[str, Json, str]:
        return "echo", {"message": f"question {number:03}"}, f"Echo: question {number:03}"

    return Part((node(), npm_part("@modelcontextprotocol/server-everything/dist/index.js")), ask)


def filesystem_part(folder: Path, _: str) -> Part:
    """server-filesystem on a directory with a file for each question."""
    files = folder / "files"
    files.mkdir()
    for number in range(QUESTIONS):
        (files / f"{number:03}.txt").write_text(f"content {number:03}\n")

    def ask(number: int) -> tuple[str, Json, str]:
        return "read_text_file", {"path": str(files / f"{number:03}.txt")}, f"content {number:03}"

    return Part((node(), npm_part("@modelcontextprotocol/server-filesystem/dist/index.js"), str(files)), ask)


def memory_part(folder: Path, _: str) -> Part:
    """server-memory with an entity for each question."""
    graph = folder / "memory.jsonl"
    nodes = (
        {"type": "entity", "name": f"node {number:03}", "entityType": "number", "observations": []}
        for number in range(QUESTIONS)
    )
    graph.write_text("\n".join(json.dumps(entity) for entity in nodes))

    def ask(number: int) -> tuple[str, Json, str]:
        return "open_nodes", {"names": [f"node {number:03}"]}, f'"node {number:03}"'

    command = (node(), npm_part("@modelcontextprotocol/server-memory/dist/index.js"))
    return Part(command, ask, {"MEMORY_FILE_PATH": str(graph)})


def context7_part(_: Path, service: str) -> Part:
    """context7-mcp, whose answer is what the stand-in for its service says."""

    def ask(number: int) -> tuple[str, Json, str]:
        arguments = {"libraryId": f"/example/library-{number:03}", "query": "how"}
        return "query-docs", arguments, f"library-{number:03}"

    environment = {**NO_PROXY, "CONTEXT7_API_URL": service, "DO_NOT_TRACK": "1"}
    return Part((node(), npm_part("@upstash/context7-mcp/dist/index.js")), ask, environment)


def grafana_part(_: Path, service: str) -> Part:
    """mcp-grafana, which finds the data source it is asked for at the stand-in."""

    def ask(number: int) -> tuple[str, Json, str]:
        return "get_datasource", {"uid": f"source-{number:03}"}, f"source-{number:03}"

    environment = {**NO_PROXY, "GRAFANA_URL": service, "DO_NOT_TRACK": "1"}
    return Part((script("mcp-grafana"),), ask, environment)


def cnb_part(_: Path, __: str) -> Part:
    """cnb-rs-mcp, asked what it cannot read: its error says what that was."""

    def ask(number: int) -> tuple[str, Json, str]:
        wrong = number + 0.5
        return "cnb_get_issue", {"repo": "example/example", "number": wrong}, f"floating point `{wrong}`"

    return Part((script("cnb-rs-mcp"),), ask, {"CNB_TOKEN": "none", "CNB_DOMAIN": "example.com"})


def excel_part(folder: Path, _: str) -> Part:
    """excel-mcp-server, asked for workbooks that are not there."""

    def ask(number: int) -> tuple[str, Json, str]:
        name = f"book-{number:03}.xlsx"
        return "describe_workbook", {"path": name}, f"{name} does not exist"

    return Part((script("excel-mcp-server"), "stdio", "--allow-dir", str(folder)), ask)


def modern_part(_: Path, __: str) -> Part:
    """A server of the TypeScript SDK 2.x that refuses the legacy era: none of the published ones does."""

    def ask(number: int) -> tuple[str, Json, str]:
        return "echo", {"text": f"question {number:03}"}, f"question {number:03}"

    return Part((node(), str(NODE_PARTS / "modern_server.mjs")), ask)


DUAL = (MODERN, LEGACY)

SERVERS = (
    ServerKind("git", DUAL, git_part),
    ServerKind("time", DUAL, time_part),
    ServerKind("excel", DUAL, excel_part),
    ServerKind("context7", DUAL, context7_part),
    ServerKind("grafana", DUAL, grafana_part),
    ServerKind("sqlite", (LEGACY,), sqlite_part),
    ServerKind("everything", (LEGACY,), everything_part),
    ServerKind("filesystem", (LEGACY,), filesystem_part),
    ServerKind("memory", (LEGACY,), memory_part),
    ServerKind("cnb", (LEGACY,), cnb_part),
    ServerKind("modern-only", (MODERN,), modern_part),
)
