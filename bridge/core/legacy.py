"""The legacy session: one with the server, made by the bridge, and one with each client, answered from it.

Owns what sharing a session means: what the bridge answers itself, what it refuses, and
who is told of changes. Requests that pass are routed like any other.

Spec: 2025-11-25 basic/lifecycle; server/utilities; client features.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

from bridge.core.era import INITIALIZE, Greeting, negotiate
from bridge.core.inflight import Child, Client, Session
from bridge.core.jsonrpc import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Call,
    Id,
    Message,
    decode_members,
    encoder,
    error_line,
    result_line,
)
from bridge.core.tables import NoticeKind, Tables

PING: Final = "ping"
INITIALIZED: Final = "notifications/initialized"

# Each needs accounts of its own before it can be shared: who subscribed, whose level it is,
# whose task. Half-shared they would tell one client what is another's.
NOT_SHARED: Final = {
    "resources/subscribe": "resource subscriptions",
    "resources/unsubscribe": "resource subscriptions",
    "logging/setLevel": "log levels",
    "tasks/get": "tasks",
    "tasks/list": "tasks",
    "tasks/result": "tasks",
    "tasks/cancel": "tasks",
}

OWN: Final = frozenset({INITIALIZE, PING, *NOT_SHARED})
"""Legacy methods that the bridge answers itself."""

LIST_CHANGED: Final = frozenset(
    {
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
    }
)

COSTS: Final = ("sampling", "elicitation", "roots")
"""Capabilities of clients that a shared server is not told of."""

_decode_text: Final = msgspec.json.Decoder(str).decode


class LegacySessions:
    """Answers for the server where a session is shared."""

    __slots__ = ("_tables",)

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    # -- clients -------------------------------------------------------------------

    def answers(self, client: Client, message: Call, id: Id, method: str) -> bool:
        """Answer a legacy request if it is the bridge's to answer; return whether it was."""
        tables = self._tables
        if method == PING:
            tables.outbox.put(client, result_line(id, {}))
            return True
        if method == INITIALIZE:
            if tables.greeting is None:
                return False
            self.greet(client, message, id, tables.greeting)
            return True
        if client.session is None:
            tables.refuse(
                client,
                id,
                INVALID_REQUEST,
                "`initialize` must come first (or, in the modern era, "
                "the request's _meta must name its protocol version)",
                "not_initialized",
            )
            return True
        what = NOT_SHARED.get(method)
        if what is None or not client.session.open:  # what is behind `initialize` waits for its answer
            return False
        tables.refuse(
            client,
            id,
            METHOD_NOT_FOUND,
            f"{what} are not shared by this version of the bridge: give this client a server of its own",
            "not_shared",
        )
        return True

    def greet(self, client: Client, message: Call, id: Id, greeting: Greeting) -> None:
        """Answer a client's `initialize` from what the server said to the bridge's."""
        tables = self._tables
        params = message.params if type(message.params) is dict else {}
        asked = greeting.version
        if "protocolVersion" in params:
            try:
                asked = _decode_text(params["protocolVersion"])
            except msgspec.DecodeError:
                asked = greeting.version
        result: dict[str, Any] = dict(greeting.result)
        result["protocolVersion"] = negotiate(asked, greeting.version)
        result["capabilities"] = shared_capabilities(greeting.capabilities)
        tables.outbox.put(client, Raw(encoder.encode({"jsonrpc": "2.0", "id": id, "result": result})))
        if client.session is None:
            client.session = Session()
        client.session.open = True
        tables.sessions[client.key] = client
        declared = decode_members(params.get("capabilities", Raw(b"{}"))) or {}
        costs = [name for name in COSTS if name in declared]
        if costs:
            tables.note(NoticeKind.SHARED_SESSION, client.key, ", ".join(costs).encode())

    def notified(self, client: Client, method: str) -> None:
        """A client's notification about its own session: it ends at the bridge."""
        if method == INITIALIZED and client.session is not None:
            client.session.initialized = True

    # -- the server ----------------------------------------------------------------

    def asked(self, child: Child, message: Message, id: Id, method: str) -> None:
        """A request of a shared server: no client is asked, since nobody knows which it means."""
        if child.blocked:
            # It asks and does not read: what it is not told does not pile up.
            self._tables.stats.dropped_requests += 1
            return
        if method == PING:
            self._tables.outbox.put(child, result_line(id, {}))
            return
        self._tables.stats.dropped_requests += 1
        if not child.asked:
            child.asked = True
            self._tables.note(NoticeKind.SERVER_REQUEST, child.key, method.encode(errors="replace"))
        text = f"{method} is not available: this server is shared by several clients"
        answer = bytes(error_line(id, METHOD_NOT_FOUND, text, "not_shared"))
        self._tables.outbox.put(child, Raw(self._tables.codec_up.unmark(answer)))

    def changed(self, message: Message) -> None:
        """A list has changed: every client with a session is told."""
        tables = self._tables
        line = Raw(tables.codec_up.render(message))
        for client in tables.sessions.values():
            if client.session is not None and client.session.initialized:
                tables.stats.notifications_down += 1
                tables.outbox.put(client, line)


def shared_capabilities(capabilities: bytes) -> Raw:
    """A server's capabilities without those that are not shared, so that no client relies on them."""
    members = decode_members(capabilities)
    if members is None:
        return Raw(b"{}")
    members.pop("logging", None)
    members.pop("tasks", None)
    resources = decode_members(members["resources"]) if "resources" in members else None
    if resources is not None and resources.pop("subscribe", None) is not None:
        members["resources"] = Raw(encoder.encode(resources))
    return Raw(encoder.encode(members))
