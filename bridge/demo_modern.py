"""The modern era (2026-07-28) of the demo server: no handshake, subscriptions by `subscriptions/listen`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bridge.demo_tools import (
    CLOCK,
    CLOCK_URI,
    INSTRUCTIONS,
    INVALID_PARAMS,
    INVALID_REQUEST,
    LATER,
    LOG_LEVELS,
    METHOD_NOT_FOUND,
    SERVER_INFO,
    VERSION_KEY,
    Demo,
    Key,
    Later,
    Object,
    Refusal,
    Request,
    no_cursor,
    params_of,
    text_of,
    token_checked,
)

MODERN_VERSION = "2026-07-28"

CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL_KEY = "io.modelcontextprotocol/logLevel"
SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"

UNSUPPORTED_VERSION = -32022


@dataclass
class Subscription:
    """An open `subscriptions/listen`: what was granted, in the shape of the filter."""

    id: str | int
    granted: Object

    def wants_tools(self) -> bool:
        return "toolsListChanged" in self.granted

    def wants_clock(self) -> bool:
        return CLOCK_URI in self.granted.get("resourceSubscriptions", ())


class ModernDemo(Demo):
    """The server as modern clients know it."""

    def __init__(
        self,
        write: Callable[[bytes], None],
        tick_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(write, tick_s, clock)
        self._subscriptions: dict[Key, Subscription] = {}

    # Dispatch.

    def request(self, id: str | int, method: str, params: Any) -> Object | Later:
        """Find the method of a request. Raises Refusal.

        Spec: 2026-07-28 basic/versioning: a request names its version in `_meta`; `initialize` asks for an
        era that is not spoken here.
        """
        if method == "initialize":
            raise unsupported_version(params.get("protocolVersion") if isinstance(params, dict) else None)
        handler = MODERN.get(method)
        if handler is None:
            raise Refusal(METHOD_NOT_FOUND, f"Method not found: {method}")
        meta = params_of(params).get("_meta")
        if not isinstance(meta, dict) or VERSION_KEY not in meta:
            raise Refusal(INVALID_PARAMS, f"Missing _meta member: {VERSION_KEY}")
        if meta[VERSION_KEY] != MODERN_VERSION:
            raise unsupported_version(meta[VERSION_KEY])
        if not isinstance(meta.get(CAPABILITIES_KEY), dict):
            raise Refusal(INVALID_PARAMS, f"Missing _meta member: {CAPABILITIES_KEY}")
        if meta.get(LOG_LEVEL_KEY, LOG_LEVELS[0]) not in LOG_LEVELS:
            raise Refusal(INVALID_PARAMS, f"Unknown log level; one of: {', '.join(LOG_LEVELS)}")
        request = Request(id, params, token_checked(meta))
        if request.key in self.slow_calls or request.key in self._subscriptions:
            raise Refusal(INVALID_REQUEST, "This id is in flight")
        return handler(self, request)

    def notification(self, method: str, params: Any) -> None:
        """`notifications/cancelled` ends what it names; anything else, and an unknown id, is ignored."""
        if method == "notifications/cancelled" and (key := self.cancelled(params)):
            self._subscriptions.pop(key, None)

    def respond(self, id: str | int, result: Object) -> None:
        """Send a result; every modern result says that it is complete and whose it is."""
        meta = {"io.modelcontextprotocol/serverInfo": SERVER_INFO, **result.pop("_meta", {})}
        self.send({"jsonrpc": "2.0", "id": id, "result": {"resultType": "complete", **result, "_meta": meta}})

    # Methods.

    def discover(self, request: Request) -> Object:
        return {
            "supportedVersions": [MODERN_VERSION],
            "capabilities": {
                "tools": {"listChanged": True},
                "resources": {"subscribe": True},
                "logging": {},
            },
            "instructions": INSTRUCTIONS,
            "ttlMs": 3_600_000,
            "cacheScope": "public",
        }

    def list_tools(self, request: Request) -> Object:
        no_cursor(request)
        return {"tools": self.tools(), "ttlMs": 5_000, "cacheScope": "public"}

    def list_resources(self, request: Request) -> Object:
        no_cursor(request)
        return {"resources": [CLOCK], "ttlMs": 3_600_000, "cacheScope": "public"}

    def read_resource(self, request: Request) -> Object:
        uri = text_of(request.params, "uri")
        if uri != CLOCK_URI:
            raise Refusal(INVALID_PARAMS, "Resource not found", {"uri": uri})
        return {"contents": self.clock_contents(), "ttlMs": 0, "cacheScope": "public"}

    def listen(self, request: Request) -> Later:
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
        self._subscriptions[request.key] = subscription
        if subscription.wants_clock():
            self.start_ticking()
        return LATER

    # Who is told of what.

    def tools_changed(self) -> None:
        self._publish("notifications/tools/list_changed", {}, Subscription.wants_tools)

    def clock_moved(self) -> None:
        self._publish("notifications/resources/updated", {"uri": CLOCK_URI}, Subscription.wants_clock)

    def clock_watched(self) -> bool:
        return any(subscription.wants_clock() for subscription in self._subscriptions.values())

    def subscriptions_open(self) -> int:
        return len(self._subscriptions)

    def _publish(self, method: str, params: Object, wanted: Callable[[Subscription], bool]) -> None:
        """Send one notification on each subscription that `wanted` accepts.

        Spec: 2026-07-28, subscriptions: only granted kinds, each with the subscription id.
        """
        for subscription in self._subscriptions.values():
            if wanted(subscription):
                self.notify(method, {**params, "_meta": {SUBSCRIPTION_KEY: subscription.id}})

    def log(self, request: Request, level: str, data: Object) -> None:
        """Send a log message if the request asked for its level.

        Spec: 2026-07-28 server/utilities/logging: none without `_meta`'s log level.
        """
        asked = request.meta.get(LOG_LEVEL_KEY)
        if asked is not None and LOG_LEVELS.index(level) >= LOG_LEVELS.index(asked):
            self.notify("notifications/message", {"level": level, "logger": "demo", "data": data})


MODERN: Mapping[str, Callable[[ModernDemo, Request], Object | Later]] = {
    "server/discover": ModernDemo.discover,
    "tools/list": ModernDemo.list_tools,
    "tools/call": ModernDemo.call_tool,
    "resources/list": ModernDemo.list_resources,
    "resources/read": ModernDemo.read_resource,
    "subscriptions/listen": ModernDemo.listen,
}


def unsupported_version(requested: Any) -> Refusal:
    """The error that tells a client which versions it may use. Spec: 2026-07-28 basic/versioning."""
    data: Object = {"supported": [MODERN_VERSION], "requested": str(requested or "")}
    return Refusal(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
