"""The legacy session: one with the server, made by the bridge, and one with each client, answered from it.

Owns what sharing a session means: what the bridge answers itself, and who is told what.
The accounts of what clients hold are in `resources.py`, `levels.py` and `tasks.py`. Requests
that pass are routed like any other.

Spec: 2025-11-25 basic/lifecycle; server/utilities; client features.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from bridge.core.accounts import Desk, Question
from bridge.core.era import INITIALIZE, Greeting, Phase, negotiate
from bridge.core.inflight import Child, Client, Entry, Session
from bridge.core.jsonrpc import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Call,
    Id,
    Message,
    decode_members,
    encoder,
    error_line,
    notification_line,
    result_line,
)
from bridge.core.levels import LOG, SET_LEVEL, Levels
from bridge.core.resources import SUBSCRIBE, UNSUBSCRIBE, UPDATED, Resources
from bridge.core.tables import NoticeKind, Seat, Tables
from bridge.core.tasks import NAMING, TASKS_LIST, Tasks

PING: Final = "ping"
INITIALIZED: Final = "notifications/initialized"

ACCOUNTED: Final = frozenset({SUBSCRIBE, UNSUBSCRIBE, SET_LEVEL, TASKS_LIST, *NAMING})
"""Requests that are carried out for a client only after a look at what others hold."""

OWN: Final = frozenset({INITIALIZE, PING, *ACCOUNTED})
"""Legacy methods that are never simply passed on."""

KINDS: Final = ("tools", "prompts", "resources")
"""Lists of a server that can change."""

LIST_CHANGED: Final = frozenset(f"notifications/{kind}/list_changed" for kind in KINDS)

COSTS: Final = ("sampling", "elicitation", "roots")
"""Capabilities of clients that a shared server is not told of."""

_decode_text: Final = msgspec.json.Decoder(str).decode


class _Announced(Struct):
    """One member of a server's capabilities, as far as the bridge must know it."""

    listChanged: bool = False


_decode_announced: Final = msgspec.json.Decoder(_Announced).decode


class LegacySessions:
    """Answers for the server where a session is shared."""

    __slots__ = ("_levels", "_serving", "_tables", "desk", "resources", "tasks")

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.desk = Desk(tables)
        self.resources = Resources(tables, self.desk)
        self._levels = Levels(tables, self.desk)
        self.tasks = Tasks(tables)
        self._serving: Child | None = None
        """The process that knows of what clients hold."""

    @property
    def wanted(self) -> bool:
        """Whether a server is needed for what clients hold, or wait for."""
        return self.resources.wanted or self._levels.wanted

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
        return False

    def takes(self, client: Client, child: Child, message: Call, id: Id, method: str) -> bool:
        """Carry out a request whose turn has come, if it is not simply passed on; return whether it was.

        Args:
            child: it serves the session, and its stdin takes more.
        """
        session = client.session
        assert session is not None
        if method in (SUBSCRIBE, UNSUBSCRIBE):
            self.resources.take(client, session, child, message, id, method == SUBSCRIBE)
            return True
        if method == SET_LEVEL:
            self._levels.take(client, child, message, id)
            return True
        return self.tasks.refuses(client, child, message, id, method)

    def left(self, client: Client) -> None:
        """A client is gone: what it held for itself alone, the server holds no more."""
        self.tasks.left(client)
        session = client.session
        if session is not None:
            self.resources.left(client, session)
            self._levels.left(client, session)

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
        if "capabilities" not in result or not greeting.capabilities.startswith(b"{"):
            result["capabilities"] = {}
        tables.outbox.put(client, Raw(encoder.encode({"jsonrpc": "2.0", "id": id, "result": result})))
        if client.session is None:
            client.session = Session()
        client.session.open = True
        tables.sessions[client.key] = client
        if client.session.initialized:
            tables.initialized[client.key] = client
        declared = decode_members(params.get("capabilities", Raw(b"{}"))) or {}
        costs = [name for name in COSTS if name in declared]
        if costs:
            tables.note(NoticeKind.SHARED_SESSION, client.key, ", ".join(costs).encode())

    def said(self, client: Client, method: str) -> None:
        """A client's notification about its own session: it ends at the bridge."""
        if method == INITIALIZED and client.session is not None:
            client.session.initialized = True
            if client.session.open:
                self._tables.initialized[client.key] = client

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

    def notified(self, child: Child, message: Message, method: str) -> None:
        """A notification of a legacy server that is no progress: to whom it belongs."""
        tables = self._tables
        params = message.params
        if child.handshake.phase is not Phase.LEGACY:
            tables.stats.dropped_notifications += 1
            return
        if type(params) is dict:
            of_task, owner = self.tasks.owner(child, method, params)
            if of_task:
                if owner is None or (method == LOG and not self._levels.admits(owner, params)):
                    tables.stats.dropped_notifications += 1
                else:
                    tables.stats.notifications_down += 1
                    tables.outbox.put(owner, message)
                return
        if method in LIST_CHANGED:
            self._changed(Raw(tables.codec_up.render(message)))
        elif method == UPDATED and type(params) is dict:
            self.resources.updated(message, params)
        elif method == LOG and type(params) is dict:
            self._levels.logged(message, params)
        else:
            tables.stats.dropped_notifications += 1

    def _changed(self, line: Raw) -> None:
        """A list has changed: every client with a session is told."""
        tables = self._tables
        tables.stats.notifications_down += tables.outbox.put_to_all(tables.initialized.values(), line)

    def settled(self, question: Entry, message: Message | None) -> None:
        """The server has answered a question; None: it could not be read."""
        assert type(question) is Question
        question.account.settled(question, message)

    def late(self, question: Entry) -> None:
        """The server has not answered a question in time, and it was cancelled."""
        assert type(question) is Question
        question.account.late(question)

    def opened(self, child: Child) -> None:
        """A new process has a session: tell it what clients hold, and them what they may have missed."""
        tables = self._tables
        greeting = tables.greeting
        assert greeting is not None
        self._serving = child
        members = decode_members(greeting.capabilities) or {}
        child.tasks = {} if "tasks" in members else None
        if tables.stale_sessions:  # they are about to be closed
            return
        self.resources.opened()
        self._levels.opened()
        changed = [
            notification_line(f"notifications/{kind}/list_changed", {})
            for kind in KINDS
            if kind in members and _announces_changes(members[kind])
        ]
        for client in tables.sessions.values():
            session = client.session
            if session is not None and session.missed:
                session.missed = False
                if session.initialized:
                    for line in changed:
                        tables.stats.notifications_down += 1
                        tables.outbox.put(client, line)

    def writable(self) -> None:
        """The server's stdin takes more: ask what could not be asked before."""
        self.resources.writable()
        self._levels.writable()

    def closed(self, child: Child, *, exited: bool) -> None:
        """A process serves no more.

        Args:
            exited: it is gone, and who waited for its answers is told; False: another takes its place, and
                is asked again; this one may go on for a while with what it was asked.
        """
        if exited:
            self.tasks.closed(child)
        if child is self._serving:
            self._serving = None
            self.resources.closed(exited=exited)
            self._levels.closed(exited=exited)
            for client in self._tables.sessions.values():
                assert client.session is not None
                client.session.missed = True

    def expire(self, seat: Seat) -> None:
        """Answer what has waited too long for a process to ask."""
        oldest = self._tables.now - self._tables.limits.restart_wait
        if seat.child is None and seat.down_since <= oldest:
            self.resources.expire(oldest)
            self._levels.expire(oldest)

    def give_up(self) -> list[tuple[Client, Id]]:
        """There will be no server for a while: take out the requests that wait to be asked of it.

        What clients hold stays, for the time when there is one again.
        """
        return self.resources.give_up() + self._levels.give_up()

    def drain(self) -> None:
        """The bridge stops: what the server was not asked yet is refused."""
        self.resources.drain()
        self._levels.drain()


def _announces_changes(capability: Raw) -> bool:
    try:
        return _decode_announced(capability).listChanged
    except (msgspec.DecodeError, RecursionError):
        return False
