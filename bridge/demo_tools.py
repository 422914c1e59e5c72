"""What the demo server has, in either era: its tools, its one resource and the time.

`Demo` is the part that both eras share. An era (`demo_modern`, `demo_legacy`) says which methods there are,
what a result looks like and who is told of a change. Nothing here opens a file or a socket.
"""

from __future__ import annotations

import heapq
import itertools
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

Object = dict[str, Any]
Key = tuple[type, Any]

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
SERVER_INFO = {"name": "mcp-bridge-demo", "title": "mcp-bridge demo server", "version": "1.0.0"}
INSTRUCTIONS = "A demo: `echo` and `slow` to call, a counter to read and to subscribe to."

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

# Least severe first (RFC 5424): a client that asks for a level gets it and what stands behind it.
LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")

CLOCK_URI = "demo://clock"

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


class Later:
    """The type of `LATER`: the method has taken the request and will answer it, or leaves it open."""


LATER = Later()


@dataclass(frozen=True)
class Request:
    """One request: its id as the client wrote it, `params` (with `_meta`), and what `_meta` says."""

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


class Demo(ABC):
    """All state of the server that does not depend on the era.

    Args:
        write: called with the bytes of whole lines, at once and in order.
        tick_s: how often the counter moves on by itself while somebody is subscribed, in seconds; 0: never.
        clock: the time source, monotonic seconds.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        tick_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.write = write
        self.tick_s = tick_s
        self.clock = clock
        self.counter = 0
        self.extra_shown = False
        self.slow_calls: dict[Key, SlowCall] = {}
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._ticking = False

    # What an era decides.

    @abstractmethod
    def request(self, id: str | int, method: str, params: Any) -> Object | Later:
        """Carry out a request; return its result without what `respond` adds. Raises Refusal."""

    @abstractmethod
    def notification(self, method: str, params: Any) -> None:
        """Take note of a notification; an unknown one is ignored."""

    @abstractmethod
    def respond(self, id: str | int, result: Object) -> None:
        """Send a result."""

    @abstractmethod
    def tools_changed(self) -> None:
        """Tell who wants to know that the list of tools has changed."""

    @abstractmethod
    def clock_moved(self) -> None:
        """Tell who wants to know that the counter has changed."""

    @abstractmethod
    def clock_watched(self) -> bool:
        """Whether anybody is subscribed to the counter."""

    @abstractmethod
    def subscriptions_open(self) -> int:
        """How many subscriptions there are."""

    @abstractmethod
    def log(self, request: Request, level: str, data: Object) -> None:
        """Send a log message about a request if somebody asked for its level."""

    # Messages.

    def send(self, message: Object) -> None:
        self.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def notify(self, method: str, params: Object) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def cancelled(self, params: Any) -> Key | None:
        """End the call that `notifications/cancelled` names; returns its key, None if it names no id."""
        id = params.get("requestId") if isinstance(params, dict) else None
        if not is_id(id):
            return None
        self.slow_calls.pop(id_key(id), None)
        return id_key(id)

    def room_for_one_more(self) -> None:
        # The agenda has an entry for each slow call, also for a cancelled one until its step is due.
        if len(self._agenda) + self.subscriptions_open() >= MAX_OPEN:
            raise Refusal(INTERNAL_ERROR, f"More than {MAX_OPEN} requests are open")

    # Tools.

    def tools(self) -> list[Object]:
        return [*SHOWN_TOOLS, EXTRA_TOOL] if self.extra_shown else list(SHOWN_TOOLS)

    def call_tool(self, request: Request) -> Object | Later:
        name = text_of(request.params, "name")
        handler = TOOLS.get(name)
        if handler is None or (name == "extra" and not self.extra_shown):
            raise Refusal(INVALID_PARAMS, f"Unknown tool: {name}")
        arguments = request.params.get("arguments", {})
        if not isinstance(arguments, dict):
            raise Refusal(INVALID_PARAMS, "arguments must be an object")
        return handler(self, request, arguments)

    def tool_echo(self, request: Request, arguments: Object) -> Object:
        return text_result(text_of(arguments, "text"))

    def tool_touch(self, request: Request, arguments: Object) -> Object:
        self.advance()
        return text_result(str(self.counter))

    def tool_toggle(self, request: Request, arguments: Object) -> Object:
        self.extra_shown = not self.extra_shown
        self.tools_changed()
        return text_result("extra is shown" if self.extra_shown else "extra is hidden")

    def tool_extra(self, request: Request, arguments: Object) -> Object:
        return text_result("extra")

    def tool_slow(self, request: Request, arguments: Object) -> Later:
        self.room_for_one_more()
        steps = number_of(arguments, "steps", 3, 1, MAX_STEPS)
        delay_s = number_of(arguments, "delay_ms", 100, 0, MAX_DELAY_MS) / 1000
        label = text_of(arguments, "label") if "label" in arguments else "slow"
        call = SlowCall(request, steps, delay_s, label, request.meta.get("progressToken"))
        self.slow_calls[request.key] = call
        self.log(request, "info", {"label": label, "event": "started", "steps": steps})
        self.after(delay_s, lambda: self._slow_step(call))
        return LATER

    def _slow_step(self, call: SlowCall) -> None:
        """One step is over: report it, then go on or answer. A cancelled call is no longer in the table."""
        if self.slow_calls.get(call.request.key) is not call:
            return
        call.done += 1
        if call.token is not None:
            params = {"progressToken": call.token, "progress": call.done, "total": call.steps}
            self.notify("notifications/progress", {**params, "message": call.label})
        if call.done < call.steps:
            self.after(call.delay_s, lambda: self._slow_step(call))
            return
        del self.slow_calls[call.request.key]
        self.respond(call.request.id, text_result(f"{call.label}: {call.steps} steps"))

    # The counter and the time.

    def clock_contents(self) -> list[Object]:
        return [{"uri": CLOCK_URI, "mimeType": "text/plain", "text": str(self.counter)}]

    def advance(self) -> None:
        """Move the counter on and tell who is subscribed to it."""
        self.counter += 1
        self.clock_moved()

    def start_ticking(self) -> None:
        """Somebody has subscribed to the counter: from now on it moves by itself."""
        if self.tick_s > 0 and not self._ticking:
            self._ticking = True
            self.after(self.tick_s, self._tick)

    def _tick(self) -> None:
        self._ticking = self.clock_watched()
        if self._ticking:
            self.advance()
            self.after(self.tick_s, self._tick)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Have `run_due` do something no earlier than `seconds` from now."""
        heapq.heappush(self._agenda, (self.clock() + seconds, next(self._order), action))

    def run_due(self) -> float | None:
        """Do everything that is due; returns the seconds until the next thing is, None if there is none."""
        now = self.clock()
        while self._agenda and self._agenda[0][0] <= now:
            heapq.heappop(self._agenda)[2]()
        return max(0.0, self._agenda[0][0] - self.clock()) if self._agenda else None


TOOLS: Mapping[str, Callable[[Demo, Request, Object], Object | Later]] = {
    "echo": Demo.tool_echo,
    "slow": Demo.tool_slow,
    "touch": Demo.tool_touch,
    "toggle": Demo.tool_toggle,
    "extra": Demo.tool_extra,
}


def params_of(params: Any) -> Object:
    """The `params` of a request, which must be an object. Raises Refusal."""
    if not isinstance(params, dict):
        raise Refusal(INVALID_PARAMS, "params must be an object")
    return params


def token_checked(meta: Object) -> Object:
    """The same `_meta`, whose progress token, if it has one, is fit for use. Raises Refusal."""
    if "progressToken" in meta and not is_id(meta["progressToken"]):
        raise Refusal(INVALID_PARAMS, "progressToken must be a string or an integer")
    return meta


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
