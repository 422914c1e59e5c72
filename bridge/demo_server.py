"""A small MCP server on stdin and stdout, to try a bridge with: `mcp-bridge demo-server`.

It speaks both eras as servers on the official SDKs do: its first request decides which, for as long as the
process lives. What there is to call and to read is in `demo_tools`, what each era makes of it in
`demo_modern` and `demo_legacy`; here are the lines, the choice of the era, and the process.

One thread does everything: it waits for input or for the next thing that is due, whichever comes first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Callable
from typing import Any

from bridge.demo_legacy import LegacyDemo
from bridge.demo_modern import ModernDemo
from bridge.demo_tools import (
    CLOCK_URI,
    INVALID_REQUEST,
    PARSE_ERROR,
    VERSION_KEY,
    Demo,
    Later,
    Object,
    Refusal,
    is_id,
)

# The values of `--era`.
DUAL, MODERN_ONLY, LEGACY_ONLY = ERAS = ("dual", "modern", "legacy")

# A longer line is answered with an error and not kept: the demo has no use for it.
MAX_LINE_BYTES = 16 * 1024 * 1024


class DemoServer:
    """Lines in, lines out.

    Args:
        write, tick_s, clock: see `Demo`.
        era: one of `ERAS`: both, or as a server that knows only one.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        tick_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        *,
        era: str = DUAL,
    ) -> None:
        self._dual = era == DUAL
        self._undecided = self._dual
        self._modern = ModernDemo(write, tick_s, clock)
        # Whatever is no modern request opens the legacy era; what comes before any request belongs to it.
        self.demo: Demo = self._modern if era == MODERN_ONLY else LegacyDemo(write, tick_s, clock)

    def line(self, line: bytes) -> None:
        """Handle one line from the client. Whatever is in it, this never raises."""
        if not line.strip():
            return
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            self._error(PARSE_ERROR, "Parse error")
            return
        if not isinstance(message, dict) or not isinstance(message.get("method"), str):
            # A response is nobody's here: this server sends no requests.
            if not isinstance(message, dict) or not ("result" in message or "error" in message):
                self._error(INVALID_REQUEST, "Invalid Request")
            return
        if "id" not in message:
            self.demo.notification(message["method"], message.get("params"))
            return
        id = message["id"]
        if not is_id(id):
            self._error(INVALID_REQUEST, "Invalid request id")
            return
        try:
            result = self._request(id, message["method"], message.get("params", {}))
        except Refusal as refusal:
            self.demo.send({"jsonrpc": "2.0", "id": id, "error": refusal.error})
        else:
            if not isinstance(result, Later):
                self.demo.respond(id, result)

    def line_too_long(self) -> None:
        """Answer a line that was not kept."""
        self._error(INVALID_REQUEST, "Line too long")

    def _error(self, code: int, message: str) -> None:
        self.demo.send({"jsonrpc": "2.0", "error": {"code": code, "message": message}})

    def _request(self, id: str | int, method: str, params: Any) -> Object | Later:
        """Hand a request to the era that is spoken; the first one decides that. Raises Refusal.

        Our choice, where the spec is silent: as the official Python SDK. A request with the modern version in
        its `_meta` opens the modern era, any other and every `initialize` the legacy one, and a request of
        the era that was not opened is refused. (A server that knows only the legacy era looks at no `_meta`.)
        """
        modern = method != "initialize" and names_version(params)
        if self._undecided and modern:
            self.demo = self._modern
        self._undecided = False
        if self._dual and modern and self.demo is not self._modern:
            text = f"This connection was opened in the legacy era: {VERSION_KEY} does not belong here"
            raise Refusal(INVALID_REQUEST, text)
        return self.demo.request(id, method, params)


def names_version(params: Any) -> bool:
    """Whether a request says in its `_meta` which version it is of, as only modern ones do."""
    meta = params.get("_meta") if isinstance(params, dict) else None
    return isinstance(meta, dict) and VERSION_KEY in meta


def serve(read_fd: int, write_fd: int, *, tick_s: float, era: str = DUAL) -> None:
    """Serve until the end of input. Raises OSError when the other side no longer reads."""

    def write(data: bytes) -> None:
        while data:
            data = data[os.write(write_fd, data) :]

    server = DemoServer(write, tick_s, era=era)
    partial = bytearray()
    skipping = False  # inside a line that is too long
    while True:
        readable, _, _ = select.select([read_fd], [], [], server.demo.run_due())
        if not readable:
            continue
        data = os.read(read_fd, 65536)
        if not data:
            if partial and not skipping:
                server.line(bytes(partial))  # a last line counts without its newline
            return
        *lines, rest = data.split(b"\n")
        for line in lines:
            if not skipping:
                server.line(bytes(partial + line))
            partial.clear()
            skipping = False
        if not skipping:
            partial += rest
        if len(partial) > MAX_LINE_BYTES:
            server.line_too_long()
            partial.clear()
            skipping = True


def main(argv: list[str]) -> int:
    """`mcp-bridge demo-server [--tick SECONDS] [--era ERA]`.

    Returns 0 at the end of input or when the client is gone.
    """
    parser = argparse.ArgumentParser(
        prog="mcp-bridge demo-server",
        description="A small MCP server on stdin and stdout, to try a bridge with.",
    )
    parser.add_argument(
        "--tick",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help=f"how often {CLOCK_URI} changes by itself while somebody is subscribed; 0: never [1]",
    )
    parser.add_argument(
        "--era",
        choices=ERAS,
        default=DUAL,
        help="dual: the first request decides, as with the official SDKs; modern, legacy: only that [dual]",
    )
    options = parser.parse_args(argv)
    if not 0 <= options.tick <= 3600:
        parser.error("--tick: 0 to 3600 seconds")
    # The client has gone, or somebody at a terminal has had enough: both are ordinary ends.
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        serve(sys.stdin.fileno(), sys.stdout.fileno(), tick_s=options.tick, era=options.era)
    return 0
