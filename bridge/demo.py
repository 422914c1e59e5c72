"""Show the main job: one server, clients of both eras with equal ids and tokens, and nothing crosses.

`mcp-bridge demo` starts a bridge and the demo server as processes of their own, on a private socket, is all
clients itself, prints what each of them sends and receives, and judges it (`demo_check`). First two modern
clients share a process of the server; then a modern and a legacy one are served side by side, each era by a
process of its own. It is one thread; every wait has a bound.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from bridge.demo_check import LOG_LEVEL_KEY, RESOURCE_UPDATED, TOOLS_CHANGED, Expectations, Object, Sent

# The bridge binds its socket within 0.2 s; this is for a machine that is busy with something else.
START_TIMEOUT_S = 15.0
# Everything the clients wait for takes less than a second, the start of the server included.
STEP_TIMEOUT_S = 10.0
# How long the clients listen for what should not come: the messages of a bridge that crosses them are fast.
QUIET_S = 0.3
# A bridge stops within 10 s at its defaults.
STOP_TIMEOUT_S = 12.0

CLOCK_URI = "demo://clock"
META: Object = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "mcp-bridge-demo-client", "version": "1.0.0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
HELLO: Object = {
    "protocolVersion": "2025-11-25",
    "clientInfo": {"name": "mcp-bridge-demo-client", "version": "1.0.0"},
    "capabilities": {},
}


class DemoFailed(Exception):
    """The demo cannot go on; the message says why, in one line."""


class Screen:
    """Two columns, one for each client, a line for each message, in the order of time. ASCII only."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._left = ""
        columns = shutil.get_terminal_size((100, 24)).columns
        self._width = max(36, min(60, (columns - 3) // 2))

    def text(self, line: str = "") -> None:
        self._out.write(line + "\n")
        self._out.flush()

    def columns(self, left: Expectations, right: Expectations) -> None:
        """From now on these two clients have the columns."""
        self._left = left.name
        self.row(*(f"client {one.name}{', legacy' if one.legacy else ''}" for one in (left, right)))

    def row(self, left: str, right: str) -> None:
        width = self._width
        self.text(f"{_cut(left, width):<{width}} | {_cut(right, width)}".rstrip())

    def message(self, client: str, mark: str, belongs: str, says: str) -> None:
        """One message of a client: mark ">" sent, "<" received, "!" received and wrong."""
        cell = f"{mark} {belongs:<7} {ascii(says)[1:-1]}"
        self.row(*((cell, "") if client == self._left else ("", cell)))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


@dataclass
class Client:
    """One connection: sends requests, tells `expected` about them, and reads what comes."""

    sock: socket.socket
    screen: Screen
    expected: Expectations
    partial: bytearray = field(default_factory=bytearray)
    ended: bool = False

    @property
    def name(self) -> str:
        return self.expected.name

    def _send(self, message: Object, belongs: str, says: str) -> None:
        self.screen.message(self.name, ">", belongs, says)
        try:
            self.sock.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise DemoFailed(f"{self.name} cannot write to the bridge: {error}") from None

    def request(self, method: str, params: Object, sent: Sent, meta: Object | None = None) -> None:
        """Send a request that must be answered as `sent` says."""
        self.expected.sent(sent)
        meta = {**({} if self.expected.legacy else META), **(meta or {})}
        if meta:
            params = {**params, "_meta": meta}
        message = {"jsonrpc": "2.0", "id": sent.id, "method": method, "params": params}
        self._send(message, f"id {json.dumps(sent.id)}", sent.what)

    def initialize(self, id: int) -> None:
        """Ask for a legacy session."""
        self.request("initialize", HELLO, Sent(id, "initialize", f"speaks {HELLO['protocolVersion']}"))

    def initialized(self) -> None:
        """Say that the legacy session has begun."""
        self.expected.opened_session()
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"}, "session", "initialized")

    def call(self, id: int, tool: str, arguments: Object, answer: str, what: str) -> None:
        """`tools/call` that must return the text `answer`."""
        self.request("tools/call", {"name": tool, "arguments": arguments}, Sent(id, what, answer))

    def echo(self, id: int, text: str) -> None:
        """Have a text repeated that names this client."""
        text = f"{text} from {self.name}"
        self.call(id, "echo", {"text": text}, text, f"echo {text}")

    def call_slow(
        self, id: int, token: int, label: str, *, steps: int, delay_ms: int, logs: bool = False
    ) -> None:
        """`slow` with progress under `token`, all of it marked with `label`; with `logs` one log message."""
        arguments = {"steps": steps, "delay_ms": delay_ms, "label": label}
        sent = Sent(
            id, f"slow {label}, token {token}", f"{label}: {steps} steps", label, token, steps, int(logs)
        )
        meta: Object = {"progressToken": token}
        if logs:
            sent.what += ", with logs"
            meta[LOG_LEVEL_KEY] = "info"
        self.request("tools/call", {"name": "slow", "arguments": arguments}, sent, meta)

    def listen(self, id: int, wanted: Object, what: str) -> None:
        """Open a subscription with the filter `wanted`."""
        self.expected.subscribed(id, wanted)
        params = {"notifications": wanted, "_meta": META}
        message = {"jsonrpc": "2.0", "id": id, "method": "subscriptions/listen", "params": params}
        self._send(message, f"id {id}", f"listen to {what}")

    def cancel(self, id: int) -> None:
        """Cancel an own request."""
        self.expected.cancelled(id)
        params = {"requestId": id}
        message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        self._send(message, f"id {id}", "cancel")

    def read(self) -> None:
        """Read what there is, print and judge it."""
        try:
            data = self.sock.recv(65536)
        except OSError:
            data = b""
        self.ended = not data
        self.partial += data
        *lines, rest = bytes(self.partial).split(b"\n")
        self.partial = bytearray(rest)
        for line in lines:
            belongs, says, right = self.expected.receive(line)
            self.screen.message(self.name, "<" if right else "!", belongs, says)


def pump(clients: list[Client], seconds: float, missing: Callable[[], list[str]] | None) -> None:
    """Read from all clients until `missing()` is empty; without it, for `seconds`.

    Raises:
        DemoFailed: something is still missing after `seconds`, or a connection ended.
    """
    deadline = time.monotonic() + seconds
    while missing is None or missing():
        left = deadline - time.monotonic()
        if left <= 0:
            if missing is None:
                return
            raise DemoFailed(f"not within {seconds:g} s: {'; '.join(missing())}")
        readable, _, _ = select.select([client.sock for client in clients], [], [], left)
        for client in clients:
            if client.sock in readable:
                client.read()
                if client.ended:
                    raise DemoFailed(f"the bridge ended the connection of {client.name}")


@contextlib.contextmanager
def scene(clients: list[Client], title: str) -> Iterator[None]:
    """A step of the demo: what is sent in it, and then the wait for all that belongs to it."""
    screen = clients[0].screen
    screen.text()
    screen.text(f"-- {title}")
    yield
    pump(clients, STEP_TIMEOUT_S, lambda: [text for client in clients for text in client.expected.missing()])


def cancel_one(clients: list[Client], id: int, canceller: Client) -> None:
    """Both call `slow` under one id and one new token; `canceller` cancels its own."""
    for client, fruit in zip(clients, ("cherries", "dates"), strict=True):
        client.call_slow(id, id + 1, fruit, steps=3, delay_ms=200)
    # Both are seen to run: a cancel that hits the wrong one must find it.
    pump(clients, STEP_TIMEOUT_S, lambda: [t for client in clients for t in client.expected.not_running(id)])
    canceller.cancel(id)


def nothing_more(clients: list[Client]) -> None:
    """All has come: what comes still is a fault."""
    screen = clients[0].screen
    screen.text()
    screen.text("-- nothing more may come")
    pump(clients, QUIET_S, None)


def play_modern(a: Client, b: Client) -> None:
    """Two modern clients. Raises DemoFailed."""
    both = [a, b]
    with scene(both, "both ask what the server is"):
        for client in both:
            client.request("server/discover", {}, Sent(1, "server/discover", "speaks 2026-07-28"))
    with scene(both, "both subscribe under equal ids: sub 2 differs, sub 3 is the same and is shared"):
        a.listen(2, {"toolsListChanged": True}, "tools")
        b.listen(2, {"resourceSubscriptions": [CLOCK_URI]}, "the clock")
        for client in both:
            client.listen(
                3, {"toolsListChanged": True, "resourceSubscriptions": [CLOCK_URI]}, "tools and the clock"
            )
    with scene(both, "both call, under equal ids and equal progress tokens; only A asks for logs"):
        for client, fruit in ((a, "apples"), (b, "bananas")):
            client.call_slow(4, 7, fruit, steps=3, delay_ms=60, logs=client is a)
            client.echo(5, fruit)
    with scene(both, "A moves the clock on, B changes the list of tools: whoever subscribed is told"):
        for client in both:
            client.expected.change(RESOURCE_UPDATED)
            client.expected.change(TOOLS_CHANGED)
        a.call(6, "touch", {}, "1", "touch")
        b.call(6, "toggle", {}, "extra is shown", "toggle")
    with scene(both, "both read the clock"):
        for client in both:
            client.request("resources/read", {"uri": CLOCK_URI}, Sent(7, f"read {CLOCK_URI}", "1"))
    with scene(both, "both call under id 8; A cancels its own, B's goes on"):
        cancel_one(both, 8, a)
    nothing_more(both)


def play_eras(a: Client, c: Client) -> None:
    """A modern client and a legacy one. Raises DemoFailed."""
    both = [a, c]
    with scene(both, "C asks for a legacy session: its era gets a server process of its own"):
        c.initialize(1)
    with scene(both, "both list the tools: A's process shows extra since B's toggle, C's does not"):
        c.initialized()
        tools = "echo slow touch toggle"
        a.request("tools/list", {}, Sent(9, "tools/list", f"{tools} extra"))
        c.request("tools/list", {}, Sent(9, "tools/list", tools))
    with scene(both, "both call, under equal ids and equal progress tokens"):
        for client, fruit in ((a, "apples"), (c, "figs")):
            client.call_slow(10, 7, fruit, steps=3, delay_ms=60)
            client.echo(11, fruit)
    with scene(
        both, "each changes its server's list of tools: A is told where it subscribed, C in its session"
    ):
        for client, answer in ((a, "extra is hidden"), (c, "extra is shown")):
            client.expected.change(TOOLS_CHANGED)
            client.call(12, "toggle", {}, answer, "toggle")
    with scene(both, "both call under id 13; C cancels its own, A's goes on"):
        cancel_one(both, 13, c)
    nothing_more(both)


def connect(path: str, process: subprocess.Popen[bytes]) -> socket.socket:
    """Connect to the bridge as soon as it listens. Raises DemoFailed."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(path)
        except OSError as error:
            sock.close()
            if process.poll() is not None:
                raise DemoFailed(f"the bridge ended with {process.returncode} before it listened") from None
            if time.monotonic() > deadline:
                raise DemoFailed(f"the bridge does not listen after {START_TIMEOUT_S:g} s: {error}") from None
            time.sleep(0.02)
        else:
            # No write of the demo is large: a bridge that does not read for so long has failed.
            sock.settimeout(STEP_TIMEOUT_S)
            return sock


def stop(process: subprocess.Popen[bytes], path: str) -> list[str]:
    """Stop the bridge as an operator would; returns what was wrong with that."""
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return [f"the bridge did not stop within {STOP_TIMEOUT_S:g} s"]
    faults = [] if code == 0 else [f"the bridge exited with {code} instead of 0"]
    if os.path.lexists(path):
        faults.append("the bridge left its socket behind")
    return faults


def bridge_command(address: str) -> list[str]:
    """The command of a bridge with the demo server, whose clock stands still unless it is touched."""
    module = [sys.executable, "-m", "bridge"]
    return [*module, "--listen", address, "--", *module, "demo-server", "--tick", "0"]


def environment() -> dict[str, str]:
    """The environment in which `python -m bridge` is this very package, also run from a checkout."""
    env = dict(os.environ)
    root = Path(__file__).resolve().parents[1]
    if root.name not in ("site-packages", "dist-packages"):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), env.get("PYTHONPATH")]))
    return env


def show(command: Callable[[str], list[str]], out: TextIO) -> int:
    """Run the demo against the bridge that `command(address)` starts; returns 0 if nothing was wrong."""
    screen = Screen(out)
    # mkdtemp makes it with mode 0700. Short, since a socket's path has 107 bytes at most.
    directory = tempfile.mkdtemp(prefix="mcp-bridge-demo-")
    path = os.path.join(directory, "mcp.sock")
    log = Path(directory, "bridge.log")
    faults: list[str] = []
    checks = [Expectations("A"), Expectations("B"), Expectations("C", legacy=True)]
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        argv = command(f"unix:{path}")
        screen.text(f"One server, one bridge, clients of both eras. Socket: {path}")
        screen.text("> sent, < received, with the ids as each client sees them")
        with log.open("wb") as stderr:
            # In the private directory: `-m` looks for the package in the working directory first.
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, cwd=directory, env=environment()
            )
        stack.callback(_end, process)

        def join(check: Expectations) -> Client:
            return Client(stack.enter_context(connect(path, process)), screen, check)

        try:
            a, b = (join(check) for check in checks[:2])
            screen.text()
            screen.columns(a.expected, b.expected)
            play_modern(a, b)
            b.sock.close()
            screen.text()
            screen.text("B leaves, C comes")
            c = join(checks[2])
            screen.text()
            screen.columns(a.expected, c.expected)
            play_eras(a, c)
        except DemoFailed as error:
            faults.append(str(error))
        if process.poll() is None:
            faults += stop(process, path)
        elif not faults:
            faults.append(f"the bridge ended with {process.returncode}")
        faults = [*(fault for check in checks for fault in check.faults), *faults]
        screen.text()
        for fault in faults:
            screen.text(f"WRONG {ascii(fault)[1:-1]}")
        if faults:
            for line in log.read_bytes().decode(errors="replace").splitlines()[-20:]:
                screen.text(f"log   {ascii(line)[1:-1]}")
            screen.text(f"FAILED: {len(faults)} things were wrong")
            return 1
    first, *others = checks
    counts = "".join(f", {check.received} to {check.name}" for check in others)
    screen.text(f"OK: {first.received} messages to {first.name}{counts}, nothing crossed")
    return 0


def _end(process: subprocess.Popen[Any]) -> None:
    """Let nothing of the bridge outlive the demo, whatever happened to it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main(argv: list[str]) -> int:
    """`mcp-bridge demo`. Returns 0 if nothing crossed, was missing or came late; else 1."""
    parser = argparse.ArgumentParser(
        prog="mcp-bridge demo",
        description="Start a bridge with the demo server, be three of its clients, judge what they get.",
    )
    parser.parse_args(argv)
    # As with Ctrl-C: leave through `finally`, so that the bridge is stopped and the directory removed.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        return show(bridge_command, sys.stdout)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Nobody reads any more (`| head`): without this the interpreter complains at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
