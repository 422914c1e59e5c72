"""A small MCP server on stdin and stdout, to try a bridge with: `mcp-bridge demo-server`.

It owns its tools, its one resource and its subscriptions; it never opens a file or a socket. It speaks the
modern era (2026-07-28). What an era answers is a table of methods (`MODERN`), so that another era is another
table beside it; the methods return plain results and know nothing of ids, versions or envelopes.

One thread does everything: it waits for input or for the next thing that is due, whichever comes first.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import json
import os
import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

Object = dict[str, Any]
Key = tuple[type, Any]

MODERN_VERSION = "2026-07-28"

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL_KEY = "io.modelcontextprotocol/logLevel"
SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"
SERVER_INFO = {"name": "mcp-bridge-demo", "title": "mcp-bridge demo server", "version": "1.0.0"}

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
UNSUPPORTED_VERSION = -32022

# Least severe first (RFC 5424): a client that asks for a level gets it and what stands behind it.
LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

CLOCK_URI = "demo://clock"

# A longer line is answered with an error and not kept: the demo has no use for it.
MAX_LINE_BYTES = 16 * 1024 * 1024
# Calls and subscriptions that are open at once: far more than a demo needs, and a bound.
MAX_OPEN = 10_000
# How long a `slow` call may be asked to take: 100 steps of 10 s.
MAX_STEPS = 100
MAX_DELAY_MS = 10_000


def tool(name: str, description: str, required: Sequence[str] = (), **properties: Object) -> Object:
    """An entry of `tools/list`."""
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"name": name, "title": name.title(), "description": description, "inputSchema": schema}


STEPS: Object = {"type": "integer", "minimum": 1, "maximum": MAX_STEPS, "default": 3}
DELAY: Object = {"type": "integer", "minimum": 0, "maximum": MAX_DELAY_MS, "default": 100}
LABEL: Object = {"type": "string", "description": "Is repeated in everything this call sends."}
SHOWN_TOOLS = (
    tool("echo", "Returns the text it was given.", ["text"], text={"type": "string"}),
    tool(
        "slow",
        "Takes `steps` steps of `delay_ms` milliseconds and reports progress after each.",
        steps=STEPS,
        delay_ms=DELAY,
        label=LABEL,
    ),
    tool("touch", f"Moves the counter behind {CLOCK_URI} on; its subscribers are told."),
    tool("toggle", "Shows or hides the tool `extra`, so that the list of tools changes."),
)
EXTRA_TOOL = tool("extra", "Is there only after `toggle` was called.")
CLOCK: Object = {
    "uri": CLOCK_URI,
    "name": "clock",
    "title": "Clock",
    "description": "A counter: it moves on while somebody is subscribed to it, and when `touch` is called.",
    "mimeType": "text/plain",
}


class Refusal(Exception):
    """A request that gets an error: `code`, `message` and perhaps `data` of the JSON-RPC error object."""

    def __init__(self, code: int, message: str, data: Object | None = None) -> None:
        super().__init__(message)
        self.error: Object = {"code": code, "message": message}
        if data is not None:
            self.error["data"] = data


class _Later:
    """The type of `LATER`: the method has taken the request and will answer it, or leaves it open."""


LATER = _Later()


@dataclass(frozen=True)
class Request:
    """One request: its id as the client wrote it, `params` without and `meta` with what its `_meta` says."""

    id: str | int
    params: Object
    meta: Object

    @property
    def key(self) -> Key:
        return id_key(self.id)


@dataclass
class SlowCall:
    """A call of `slow` in flight."""

    request: Request
    steps: int
    delay_s: float
    label: str
    token: str | int | None
    done: int = 0


@dataclass
class Subscription:
    """An open `subscriptions/listen`: what was granted, in the shape of the filter."""

    id: str | int
    granted: Object

    def wants_clock(self) -> bool:
        return CLOCK_URI in self.granted.get("resourceSubscriptions", ())


Method = Callable[["DemoServer", Request], "Object | _Later"]


@dataclass
class DemoServer:
    """All state of the server. `write` gets each message as one line; `clock` tells monotonic seconds.

    Args:
        write: called with the bytes of whole lines, at once and in order.
        tick_s: how often the counter moves on by itself while somebody is subscribed, in seconds; 0: never.
        clock: the time source.
    """

    write: Callable[[bytes], None]
    tick_s: float = 1.0
    clock: Callable[[], float] = time.monotonic
    counter: int = 0
    extra_shown: bool = False
    slow_calls: dict[Key, SlowCall] = field(default_factory=dict)
    subscriptions: dict[Key, Subscription] = field(default_factory=dict)
    agenda: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    ticking: bool = False
    _order: itertools.count[int] = field(default_factory=itertools.count)

    # Lines in, lines out.

    def line(self, line: bytes) -> None:
        """Handle one line from the client. Whatever is in it, this never raises."""
        if not line.strip():
            return
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            self.send({"jsonrpc": "2.0", "error": {"code": PARSE_ERROR, "message": "Parse error"}})
            return
        if not isinstance(message, dict) or not isinstance(message.get("method"), str):
            # A response is nobody's here: a modern server sends no requests.
            if not isinstance(message, dict) or not ("result" in message or "error" in message):
                self.send(
                    {"jsonrpc": "2.0", "error": {"code": INVALID_REQUEST, "message": "Invalid Request"}}
                )
            return
        if "id" not in message:
            self.notification(message["method"], message.get("params"))
            return
        id = message["id"]
        if not is_id(id):
            self.send({"jsonrpc": "2.0", "error": {"code": INVALID_REQUEST, "message": "Invalid request id"}})
            return
        try:
            result = self.request(id, message["method"], message.get("params", {}))
        except Refusal as refusal:
            self.send({"jsonrpc": "2.0", "id": id, "error": refusal.error})
        else:
            if not isinstance(result, _Later):
                self.respond(id, result)

    def line_too_long(self) -> None:
        """Answer a line that was not kept."""
        self.send({"jsonrpc": "2.0", "error": {"code": INVALID_REQUEST, "message": "Line too long"}})

    def send(self, message: Object) -> None:
        self.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def respond(self, id: str | int, result: Object) -> None:
        """Send a result; every modern result says that it is complete and whose it is."""
        meta = {"io.modelcontextprotocol/serverInfo": SERVER_INFO, **result.pop("_meta", {})}
        self.send({"jsonrpc": "2.0", "id": id, "result": {"resultType": "complete", **result, "_meta": meta}})

    def notify(self, method: str, params: Object) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def publish(self, method: str, params: Object, wanted: Callable[[Subscription], bool]) -> None:
        """Send one notification on each subscription that `wanted` accepts.

        Spec: 2026-07-28, subscriptions: only granted kinds, each with the subscription id.
        """
        for subscription in self.subscriptions.values():
            if wanted(subscription):
                self.notify(method, {**params, "_meta": {SUBSCRIPTION_KEY: subscription.id}})

    # Dispatch.

    def request(self, id: str | int, method: str, params: Any) -> Object | _Later:
        """Find the era of a request, then its method. Raises Refusal.

        Spec: 2026-07-28 basic/versioning: a request names its version in `_meta`; `initialize` asks for an
        era this server does not have.
        """
        if method == "initialize":
            requested = params.get("protocolVersion") if isinstance(params, dict) else None
            raise unsupported_version(requested)
        handler = MODERN.get(method)
        if handler is None:
            raise Refusal(METHOD_NOT_FOUND, f"Method not found: {method}")
        if not isinstance(params, dict):
            raise Refusal(INVALID_PARAMS, "params must be an object")
        meta = params.get("_meta")
        if not isinstance(meta, dict) or VERSION_KEY not in meta:
            raise Refusal(INVALID_PARAMS, f"Missing _meta member: {VERSION_KEY}")
        if meta[VERSION_KEY] != MODERN_VERSION:
            raise unsupported_version(meta[VERSION_KEY])
        if not isinstance(meta.get(CAPABILITIES_KEY), dict):
            raise Refusal(INVALID_PARAMS, f"Missing _meta member: {CAPABILITIES_KEY}")
        if "progressToken" in meta and not is_id(meta["progressToken"]):
            raise Refusal(INVALID_PARAMS, "progressToken must be a string or an integer")
        if meta.get(LOG_LEVEL_KEY, LOG_LEVELS[0]) not in LOG_LEVELS:
            raise Refusal(INVALID_PARAMS, f"Unknown log level; one of: {', '.join(LOG_LEVELS)}")
        request = Request(id, params, meta)
        if request.key in self.slow_calls or request.key in self.subscriptions:
            raise Refusal(INVALID_REQUEST, "This id is in flight")
        return handler(self, request)

    def notification(self, method: str, params: Any) -> None:
        """`notifications/cancelled` ends what it names; anything else, and an unknown id, is ignored."""
        if method != "notifications/cancelled" or not isinstance(params, dict):
            return
        id = params.get("requestId")
        if is_id(id):
            self.slow_calls.pop(id_key(id), None)
            self.subscriptions.pop(id_key(id), None)

    # Methods.

    def discover(self, request: Request) -> Object:
        return {
            "supportedVersions": [MODERN_VERSION],
            "capabilities": {
                "tools": {"listChanged": True},
                "resources": {"subscribe": True},
                "logging": {},
            },
            "instructions": "A demo: `echo` and `slow` to call, a counter to read and to subscribe to.",
            "ttlMs": 3_600_000,
            "cacheScope": "public",
        }

    def list_tools(self, request: Request) -> Object:
        no_cursor(request)
        tools = [*SHOWN_TOOLS, EXTRA_TOOL] if self.extra_shown else list(SHOWN_TOOLS)
        return {"tools": tools, "ttlMs": 5_000, "cacheScope": "public"}

    def list_resources(self, request: Request) -> Object:
        no_cursor(request)
        return {"resources": [CLOCK], "ttlMs": 3_600_000, "cacheScope": "public"}

    def read_resource(self, request: Request) -> Object:
        uri = text_of(request.params, "uri")
        if uri != CLOCK_URI:
            raise Refusal(INVALID_PARAMS, "Resource not found", {"uri": uri})
        contents = {"uri": CLOCK_URI, "mimeType": "text/plain", "text": str(self.counter)}
        return {"contents": [contents], "ttlMs": 0, "cacheScope": "public"}

    def call_tool(self, request: Request) -> Object | _Later:
        name = text_of(request.params, "name")
        handler = TOOLS.get(name)
        if handler is None or (name == "extra" and not self.extra_shown):
            raise Refusal(INVALID_PARAMS, f"Unknown tool: {name}")
        arguments = request.params.get("arguments", {})
        if not isinstance(arguments, dict):
            raise Refusal(INVALID_PARAMS, "arguments must be an object")
        return handler(self, request, arguments)

    def listen(self, request: Request) -> _Later:
        """Grant what this server has, acknowledge that first, then keep the request open."""
        self.room_for_one_more()
        wanted = request.params.get("notifications")
        if not isinstance(wanted, dict):
            raise Refusal(INVALID_PARAMS, "notifications must be an object")
        uris = wanted.get("resourceSubscriptions", [])
        if not isinstance(uris, list) or not all(isinstance(uri, str) for uri in uris):
            raise Refusal(INVALID_PARAMS, "resourceSubscriptions must be a list of strings")
        granted: Object = {}
        if wanted.get("toolsListChanged") is True:
            granted["toolsListChanged"] = True
        if CLOCK_URI in uris:
            granted["resourceSubscriptions"] = [CLOCK_URI]
        subscription = Subscription(request.id, granted)
        params = {"_meta": {SUBSCRIPTION_KEY: request.id}, "notifications": granted}
        self.notify("notifications/subscriptions/acknowledged", params)
        self.subscriptions[request.key] = subscription
        if subscription.wants_clock() and self.tick_s > 0 and not self.ticking:
            self.ticking = True
            self.after(self.tick_s, self.tick)
        return LATER

    def room_for_one_more(self) -> None:
        # The agenda has an entry for each slow call, also for a cancelled one until its step is due.
        if len(self.agenda) + len(self.subscriptions) >= MAX_OPEN:
            raise Refusal(-32603, f"More than {MAX_OPEN} requests are open")

    # Tools.

    def tool_echo(self, request: Request, arguments: Object) -> Object:
        return text_result(text_of(arguments, "text"))

    def tool_touch(self, request: Request, arguments: Object) -> Object:
        self.advance()
        return text_result(str(self.counter))

    def tool_toggle(self, request: Request, arguments: Object) -> Object:
        self.extra_shown = not self.extra_shown
        self.publish(
            "notifications/tools/list_changed", {}, lambda s: s.granted.get("toolsListChanged", False)
        )
        return text_result("extra is shown" if self.extra_shown else "extra is hidden")

    def tool_extra(self, request: Request, arguments: Object) -> Object:
        return text_result("extra")

    def tool_slow(self, request: Request, arguments: Object) -> _Later:
        self.room_for_one_more()
        steps = number_of(arguments, "steps", 3, 1, MAX_STEPS)
        delay_s = number_of(arguments, "delay_ms", 100, 0, MAX_DELAY_MS) / 1000
        label = text_of(arguments, "label") if "label" in arguments else "slow"
        call = SlowCall(request, steps, delay_s, label, request.meta.get("progressToken"))
        self.slow_calls[request.key] = call
        self.log(request, "info", {"label": label, "event": "started", "steps": steps})
        self.after(delay_s, lambda: self.slow_step(call))
        return LATER

    def slow_step(self, call: SlowCall) -> None:
        """One step is over: report it, then go on or answer. A cancelled call is no longer in the table."""
        if self.slow_calls.get(call.request.key) is not call:
            return
        call.done += 1
        if call.token is not None:
            params = {"progressToken": call.token, "progress": call.done, "total": call.steps}
            self.notify("notifications/progress", {**params, "message": call.label})
        if call.done < call.steps:
            self.after(call.delay_s, lambda: self.slow_step(call))
            return
        del self.slow_calls[call.request.key]
        self.respond(call.request.id, text_result(f"{call.label}: {call.steps} steps"))

    def log(self, request: Request, level: str, data: Object) -> None:
        """Send a log message if the request asked for its level.

        Spec: 2026-07-28 server/utilities/logging: none without `_meta`'s log level.
        """
        asked = request.meta.get(LOG_LEVEL_KEY)
        if asked is not None and LOG_LEVELS.index(level) >= LOG_LEVELS.index(asked):
            self.notify("notifications/message", {"level": level, "logger": "demo", "data": data})

    # The counter and the time.

    def advance(self) -> None:
        """Move the counter on and tell who is subscribed to it."""
        self.counter += 1
        self.publish("notifications/resources/updated", {"uri": CLOCK_URI}, Subscription.wants_clock)

    def tick(self) -> None:
        self.ticking = any(s.wants_clock() for s in self.subscriptions.values())
        if self.ticking:
            self.advance()
            self.after(self.tick_s, self.tick)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Have `run_due` do something no earlier than `seconds` from now."""
        heapq.heappush(self.agenda, (self.clock() + seconds, next(self._order), action))

    def run_due(self) -> float | None:
        """Do everything that is due; returns the seconds until the next thing is, None if there is none."""
        now = self.clock()
        while self.agenda and self.agenda[0][0] <= now:
            heapq.heappop(self.agenda)[2]()
        return max(0.0, self.agenda[0][0] - self.clock()) if self.agenda else None


# What each era answers. A legacy era would be a second table, chosen in `DemoServer.request`.
MODERN: Mapping[str, Method] = {
    "server/discover": DemoServer.discover,
    "tools/list": DemoServer.list_tools,
    "tools/call": DemoServer.call_tool,
    "resources/list": DemoServer.list_resources,
    "resources/read": DemoServer.read_resource,
    "subscriptions/listen": DemoServer.listen,
}

TOOLS: Mapping[str, Callable[[DemoServer, Request, Object], Object | _Later]] = {
    "echo": DemoServer.tool_echo,
    "slow": DemoServer.tool_slow,
    "touch": DemoServer.tool_touch,
    "toggle": DemoServer.tool_toggle,
    "extra": DemoServer.tool_extra,
}


def unsupported_version(requested: Any) -> Refusal:
    """The error that tells a client which versions it may use. Spec: 2026-07-28 basic/versioning."""
    data: Object = {"supported": [MODERN_VERSION], "requested": str(requested or "")}
    return Refusal(UNSUPPORTED_VERSION, "Unsupported protocol version", data)


def is_id(value: Any) -> TypeGuard[str | int]:
    """Whether a value may be an id or a progress token: a string or an integer."""
    return isinstance(value, str | int) and not isinstance(value, bool)


def id_key(id: str | int) -> Key:
    """A table key under which `1` and `"1"` are two ids."""
    return type(id), id


def text_result(text: str) -> Object:
    return {"content": [{"type": "text", "text": text}]}


def text_of(params: Object, name: str) -> str:
    """The member `name`, which must be a string. Raises Refusal."""
    value = params.get(name)
    if not isinstance(value, str):
        raise Refusal(INVALID_PARAMS, f"{name} must be a string")
    return value


def number_of(params: Object, name: str, default: int, least: int, most: int) -> int:
    """The member `name`, an integer within bounds. Raises Refusal."""
    value = params.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise Refusal(INVALID_PARAMS, f"{name} must be an integer from {least} to {most}")
    return value


def no_cursor(request: Request) -> None:
    """Every list here is one page, so a cursor can be none of ours. Raises Refusal."""
    if "cursor" in request.params:
        raise Refusal(INVALID_PARAMS, "Invalid cursor")


def serve(read_fd: int, write_fd: int, *, tick_s: float) -> None:
    """Serve until the end of input. Raises OSError when the other side no longer reads."""

    def write(data: bytes) -> None:
        while data:
            data = data[os.write(write_fd, data) :]

    server = DemoServer(write, tick_s)
    partial = bytearray()
    skipping = False  # inside a line that is too long
    while True:
        readable, _, _ = select.select([read_fd], [], [], server.run_due())
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
    """`mcp-bridge demo-server [--tick SECONDS]`. Returns 0 at the end of input or when the client is gone."""
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
    options = parser.parse_args(argv)
    if not 0 <= options.tick <= 3600:
        parser.error("--tick: 0 to 3600 seconds")
    # The client has gone, or somebody at a terminal has had enough: both are ordinary ends.
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        serve(sys.stdin.fileno(), sys.stdout.fileno(), tick_s=options.tick)
    return 0
