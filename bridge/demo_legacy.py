"""The legacy era (2024-11-05 to 2025-11-25) of the demo server: one session, opened by `initialize`.

What was added to a message after the version that was agreed on is sent all the same: a client ignores
members it does not know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from bridge.demo_tools import (
    CLOCK,
    CLOCK_URI,
    INSTRUCTIONS,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LOG_LEVELS,
    METHOD_NOT_FOUND,
    SERVER_INFO,
    Demo,
    Later,
    Object,
    Refusal,
    Request,
    no_cursor,
    params_of,
    text_of,
    token_checked,
)

# Oldest first.
LEGACY_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")

# Spec: 2025-11-25 server/resources, "Error Handling".
RESOURCE_NOT_FOUND = -32002

# Spec: 2025-11-25 basic/lifecycle, "Initialization": nothing else may come before the session is open.
BEFORE_SESSION = ("initialize", "ping")


class LegacyDemo(Demo):
    """The server as legacy clients know it."""

    def __init__(
        self,
        write: Callable[[bytes], None],
        tick_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(write, tick_s, clock)
        self._open = False
        # The client has said `notifications/initialized`: from now on it may be told of changes.
        self._told_of_changes = False
        self._subscribed: set[str] = set()
        # Our choice, which the spec leaves to the server: no log messages before the client sets a level.
        self._log_from = len(LOG_LEVELS)

    # Dispatch.

    def request(self, id: str | int, method: str, params: Any) -> Object | Later:
        """Find the method of a request. Raises Refusal."""
        handler = LEGACY.get(method)
        if handler is None:
            raise Refusal(METHOD_NOT_FOUND, f"Method not found: {method}")
        meta = params_of(params).get("_meta", {})
        if not isinstance(meta, dict):
            raise Refusal(INVALID_PARAMS, "_meta must be an object")
        if not self._open and method not in BEFORE_SESSION:
            raise Refusal(INVALID_PARAMS, f"{method} came before initialize")
        request = Request(id, params, token_checked(meta))
        if request.key in self.slow_calls:
            raise Refusal(INVALID_REQUEST, "This id is in flight")
        return handler(self, request)

    def notification(self, method: str, params: Any) -> None:
        """Only what opens the session or cancels a call means something here."""
        if method == "notifications/initialized":
            self._told_of_changes = self._open
        elif method == "notifications/cancelled":
            self.cancelled(params)

    def respond(self, id: str | int, result: Object) -> None:
        self.send({"jsonrpc": "2.0", "id": id, "result": result})

    # Methods.

    def initialize(self, request: Request) -> Object:
        """Open the session, or open it anew: official servers let a client do that at any time.

        Spec: 2025-11-25 basic/lifecycle, "Version Negotiation": the version asked for if there is one, else
        the newest.
        """
        asked = text_of(request.params, "protocolVersion")
        for name in ("capabilities", "clientInfo"):
            if not isinstance(request.params.get(name), dict):
                raise Refusal(INVALID_PARAMS, f"{name} must be an object")
        self._open = True
        return {
            "protocolVersion": asked if asked in LEGACY_VERSIONS else LEGACY_VERSIONS[-1],
            "capabilities": {
                "tools": {"listChanged": True},
                "resources": {"subscribe": True},
                "logging": {},
            },
            "serverInfo": SERVER_INFO,
            "instructions": INSTRUCTIONS,
        }

    def ping(self, request: Request) -> Object:
        return {}

    def list_tools(self, request: Request) -> Object:
        no_cursor(request)
        return {"tools": self.tools()}

    def list_resources(self, request: Request) -> Object:
        no_cursor(request)
        return {"resources": [CLOCK]}

    def read_resource(self, request: Request) -> Object:
        known_uri(request)
        return {"contents": self.clock_contents()}

    def subscribe(self, request: Request) -> Object:
        self._subscribed.add(known_uri(request))
        self.start_ticking()
        return {}

    def unsubscribe(self, request: Request) -> Object:
        self._subscribed.discard(known_uri(request))
        return {}

    def set_level(self, request: Request) -> Object:
        level = text_of(request.params, "level")
        if level not in LOG_LEVELS:
            raise Refusal(INVALID_PARAMS, f"Unknown log level; one of: {', '.join(LOG_LEVELS)}")
        self._log_from = LOG_LEVELS.index(level)
        return {}

    # Who is told of what: there is one session, and one client.

    def tools_changed(self) -> None:
        if self._told_of_changes:
            self.send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})

    def clock_moved(self) -> None:
        if self.clock_watched():
            self.notify("notifications/resources/updated", {"uri": CLOCK_URI})

    def clock_watched(self) -> bool:
        return CLOCK_URI in self._subscribed

    def subscriptions_open(self) -> int:
        return len(self._subscribed)

    def log(self, request: Request, level: str, data: Object) -> None:
        if LOG_LEVELS.index(level) >= self._log_from:
            self.notify("notifications/message", {"level": level, "logger": "demo", "data": data})


LEGACY: Mapping[str, Callable[[LegacyDemo, Request], Object | Later]] = {
    "initialize": LegacyDemo.initialize,
    "ping": LegacyDemo.ping,
    "tools/list": LegacyDemo.list_tools,
    "tools/call": LegacyDemo.call_tool,
    "resources/list": LegacyDemo.list_resources,
    "resources/read": LegacyDemo.read_resource,
    "resources/subscribe": LegacyDemo.subscribe,
    "resources/unsubscribe": LegacyDemo.unsubscribe,
    "logging/setLevel": LegacyDemo.set_level,
}


def known_uri(request: Request) -> str:
    """The URI that a request names, which must be one of ours. Raises Refusal."""
    uri = text_of(request.params, "uri")
    if uri != CLOCK_URI:
        raise Refusal(RESOURCE_NOT_FOUND, "Resource not found", {"uri": uri})
    return uri
