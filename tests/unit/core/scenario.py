"""A conversation through the router, told in messages: what is put in, and all that must come out.

    s = Scenario(clients="AB")
    s.client("A", request(1, "tools/list")).expect(server=request(2, "tools/list"))
    s.server(result(2, {})).expect(A=result(1, {}))

The server is ready from the start; its probe was upstream id 1, so that the first request is 2.
`expect` names everything that was written: a destination it does not name was written nothing.

    s = Scenario(clients="AB", era=None)
    s.client("A", initialize(1)).expect(server=asked_to_initialize(1))
    s.server(greeting(1)).expect(server=INITIALIZED, A=greeting(1))

Where no era is decided ahead (`era=None`) the process of the first seat, "server", runs from the start, and
nobody has spoken to it. That of the second seat is "second", once it was opened with `open(1)`. Those that
replace others have seats from 2 on, and are called "seat2", "seat3" and so on.
"""

from __future__ import annotations

import json
from typing import Any, Final

from bridge.core.era import LEGACY_VERSIONS, MODERN_VERSION, Era
from bridge.core.jsonrpc import Id
from bridge.core.outbox import Control, Key, Output
from bridge.core.router import Router
from bridge.core.stats import Stats
from bridge.core.tables import Limits, Notice, NoticeKind

Json = dict[str, Any]
Item = Json | bytes | Control

CLOSE: Final = b""
"""Stands for the close of a destination, as in the router's outputs."""

PREFIX: Final = "io.modelcontextprotocol/"
MODERN: Final[Json] = {PREFIX + "protocolVersion": "2026-07-28", PREFIX + "clientCapabilities": {}}
ROOM: Final = 1 << 20
VERSION: Final = "1.2.3"
"""The bridge's own."""

SEATS: Final = {0: "server", 1: "second"}
"""What the processes of the first two seats are called; see `seat_name`."""

CAPABILITIES: Final[Json] = {"tools": {"listChanged": True}}
"""Of a legacy server, unless a test says otherwise."""


def request(id: object, method: str = "tools/call", *, meta: Json | None = None, **params: object) -> Json:
    """A modern request. `meta` is added to what every modern `_meta` holds."""
    whole = {**params, "_meta": {**MODERN, **(meta or {})}}
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": whole}


def listen(id: object, *, meta: Json | None = None, **wanted: object) -> Json:
    """A `subscriptions/listen` with this filter."""
    return request(id, "subscriptions/listen", meta=meta, notifications=wanted)


def notification(method: str, **params: object) -> Json:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def cancelled(id: object, **rest: object) -> Json:
    return notification("notifications/cancelled", requestId=id, **rest)


def left(id: object) -> Json:
    """The cancellation the server gets for a client that is gone."""
    return cancelled(id, reason="the client disconnected")


def ended(id: int) -> Json:
    """The cancellation the server gets for a listen that the bridge has ended."""
    return cancelled(id, reason="the bridge has ended the subscription")


def progress(token: object, **rest: object) -> Json:
    return notification("notifications/progress", progressToken=token, **{"progress": 1, **rest})


def log(data: object) -> Json:
    return notification("notifications/message", level="info", data=data)


def acknowledged(id: object, **granted: object) -> Json:
    meta = {PREFIX + "subscriptionId": id}
    return notification("notifications/subscriptions/acknowledged", _meta=meta, notifications=granted)


def changed(id: object, what: str = "tools/list_changed", **params: object) -> Json:
    """A notification of a subscription."""
    return notification("notifications/" + what, **params, _meta={PREFIX + "subscriptionId": id})


def result(id: object, value: object = None) -> Json:
    return {"jsonrpc": "2.0", "id": id, "result": {} if value is None else value}


def closing(id: object) -> Json:
    """The graceful response that ends a listen."""
    return result(id, {"resultType": "complete", "_meta": {PREFIX + "subscriptionId": id}})


def probe(id: int) -> Json:
    """The `server/discover` that a server gets from the bridge."""
    meta = {
        PREFIX + "protocolVersion": MODERN_VERSION,
        PREFIX + "clientInfo": {"name": "mcp-bridge", "version": VERSION},
        PREFIX + "clientCapabilities": {},
    }
    return {"jsonrpc": "2.0", "id": id, "method": "server/discover", "params": {"_meta": meta}}


def discovered(id: object, *versions: str) -> Json:
    """A modern server's answer to the probe."""
    return result(id, {"supportedVersions": [*(versions or ["2026-07-28"])]})


def legacy(id: object, method: str = "tools/call", **params: object) -> Json:
    """A request of a client's legacy session."""
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def initialize(id: object, version: object = LEGACY_VERSIONS[-1], **capabilities: object) -> Json:
    """A client's `initialize`."""
    info = {"name": "client", "version": "9"}
    return legacy(id, "initialize", protocolVersion=version, capabilities=capabilities, clientInfo=info)


def asked_to_initialize(id: int) -> Json:
    """The `initialize` that a server gets from the bridge."""
    info = {"name": "mcp-bridge", "version": VERSION}
    return legacy(id, "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=info)


def greeting(id: object, version: str = LEGACY_VERSIONS[-1], capabilities: Json | None = None) -> Json:
    """An answer to `initialize`: a server's to the bridge, and the bridge's to a client."""
    told = CAPABILITIES if capabilities is None else capabilities
    info = {"name": "old server", "version": "0"}
    return result(id, {"protocolVersion": version, "capabilities": told, "serverInfo": info})


def seat_name(seat: int) -> str:
    """What the process of a seat is called."""
    return SEATS.get(seat, f"seat{seat}")


INITIALIZED: Final = notification("notifications/initialized")


def not_served(id: Id, era: Era, *supported: str, code: int = -31006, delivered: bool = False) -> Json:
    """What a client gets whose era is not served. `delivered`: some server has seen it."""
    versions = [*LEGACY_VERSIONS] if era is Era.MODERN else [MODERN_VERSION]
    return refusal(code, "era_not_served", id=id, delivered=delivered, supported=[*supported] or versions)


def error(id: object, code: int = -32603, message: str = "no", **data: object) -> Json:
    """An error of the server's."""
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message, **data}}


def refusal(code: int, reason: str, *, id: Id | None = None, delivered: bool = False, **more: object) -> Json:
    """An error of the bridge's own, but for its text; without `id` if there is none."""
    data = {"source": "mcp-bridge", "reason": reason, "delivered": delivered, **more}
    whole: Json = {"jsonrpc": "2.0", "error": {"code": code, "data": data}}
    return whole if id is None else {**whole, "id": id}


def line(message: Json | bytes) -> bytes:
    """A message's line; bytes are taken as they are."""
    if isinstance(message, bytes):
        return message
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _once(pairs: list[tuple[str, Any]]) -> Json:
    members = dict(pairs)
    assert len(members) == len(pairs), f"a key stands twice: {pairs}"
    return members


def parse(text: bytes) -> Json:
    """A message the bridge wrote. Errors of its own have their text checked and taken out."""
    message: Json = json.loads(text, object_pairs_hook=_once)
    assert message["jsonrpc"] == "2.0"
    fault = message.get("error")
    data = fault.get("data") if isinstance(fault, dict) else None
    if isinstance(fault, dict) and isinstance(data, dict) and data.get("source") == "mcp-bridge":
        assert len(fault.pop("message")) > 10
    return message


def _canonical(items: list[Item]) -> list[str]:
    # Python takes 1, 1.0 and True for the same; their spelling in JSON differs.
    return [json.dumps(item, sort_keys=True) if isinstance(item, dict) else repr(item) for item in items]


class Outcome:
    """What one event brought about."""

    def __init__(self, outputs: list[tuple[str, bytes | Control]], notices: list[Notice], more: bool) -> None:
        self.outputs = outputs
        self.notices = notices
        self.more = more

    def bytes(self, name: str) -> bytes:
        """All that was written to one destination, as it was."""
        return b"".join(data for key, data in self.outputs if key == name and isinstance(data, bytes))

    def items(self, name: str) -> list[Item]:
        """The messages to one destination, parsed, and what else it was told."""
        items: list[Item] = []
        for key, data in self.outputs:
            if key == name:
                if isinstance(data, Control) or data == CLOSE:
                    items.append(data)
                else:
                    assert data.endswith(b"\n")
                    items += map(parse, data.splitlines())
        return items

    def expect(self, **wanted: Any) -> Outcome:
        """Compare everything that was written: to each destination an `Item`, or a list of them.

        Bytes are compared as such, messages with the types of what is in them.
        """
        names = {name for name, _ in self.outputs} | wanted.keys()
        for name in sorted(names):
            want = wanted.get(name, [])
            if isinstance(want, bytes) and want != CLOSE:
                assert self.bytes(name) == want, name
            else:
                items: list[Item] = [*want] if isinstance(want, list) else [want]
                assert _canonical(self.items(name)) == _canonical(items), name
        return self

    def told(self) -> list[NoticeKind]:
        """What kinds of notice there were."""
        return [notice.kind for notice in self.notices]

    def seats(self, kind: NoticeKind) -> list[int]:
        """The seats that notices of this kind were about."""
        return [notice.seat for notice in self.notices if notice.kind is kind]


class Scenario:
    """A router with clients of one letter each, and the server processes of two seats.

    Args:
        clients: who is connected.
        server: whether there is a server: one that is ready for requests if the era is the modern one,
            else one that was not spoken to.
        limits: members of `Limits`; `era` is the modern one unless given.
    """

    def __init__(self, clients: str = "A", *, server: bool = True, **limits: Any) -> None:
        self.limits = Limits(**{"era": Era.MODERN, **limits})
        self.router = Router(self.limits, salt=b"sixteen bytes!!!", version=VERSION)
        self.now = 1000.0
        self._last_key = 0
        self._ticking = False
        self._keys: dict[str, Key] = {}
        self._names: dict[Key, str] = {}
        for name in clients:
            self.join(name)
        if server and self.limits.era is Era.MODERN:
            self.start()
        elif server:
            self.open()

    @property
    def stats(self) -> Stats:
        return self.router.stats

    @property
    def sizes(self) -> dict[str, int]:
        """The tables that hold anything."""
        return {name: size for name, size in self.router.table_sizes().items() if size}

    def key(self, name: str) -> Key:
        return self._keys[name]

    def _key(self, name: str) -> Key:
        self._last_key += 1
        key = self._keys[name] = Key(self._last_key)
        self._names[key] = name
        return key

    def _outcome(self, outputs: list[Output], more: bool = False) -> Outcome:
        self._look()
        notices = self.router.take_notices()
        named = [(self._names[key], data) for key, data in outputs]
        for notice in list(notices):
            if notice.kind is NoticeKind.READY:
                # As the shell does: what waits is moved as soon as there is a server for it.
                moved = self.unblock(seat=notice.seat)
                named += moved.outputs
                notices += moved.notices
        return Outcome(named, notices, more)

    def _look(self) -> None:
        """The shell looks only where it is asked to: what it would miss is a fault."""
        due, self.router.attention.due = self.router.attention.due, False
        assert due or not self.router.has_notices
        assert due or self._ticking or not self.router.needs_tick
        self._ticking = self.router.needs_tick

    # -- clients

    def join(self, name: str, *, strict: bool = False) -> None:
        self.router.client_opened(self._key(name), strict=strict)

    def client(self, name: str, *lines: Json | bytes) -> Outcome:
        """A client writes lines, in one read."""
        data = b"".join(map(line, lines))
        return self._outcome(self.router.client_data(self._keys[name], data, self.now))

    def turn(self, name: str) -> Outcome:
        """The others have had their turn."""
        return self._outcome(self.router.client_turn(self._keys[name], self.now))

    def eof(self, name: str) -> Outcome:
        return self._outcome(self.router.client_eof(self._keys[name], self.now))

    def leave(self, name: str) -> Outcome:
        return self._outcome(self.router.client_closed(self._keys[name], self.now))

    # -- the server

    def open(self, seat: int = 0) -> Outcome:
        """A new child."""
        return self._outcome(self.router.server_opened(self._key(seat_name(seat)), self.now, seat))

    def start(self, seat: int = 0) -> Outcome:
        """A new child that answers its probe; what is sent to it then."""
        [asked] = self.open(seat).items(seat_name(seat))
        assert isinstance(asked, dict)
        return self.server(discovered(asked["id"]), seat=seat)

    def server(self, *lines: Json | bytes, seat: int = 0) -> Outcome:
        """The server writes lines, in one read."""
        data = b"".join(map(line, lines))
        return self._outcome(self.router.server_data(self._keys[seat_name(seat)], data, self.now))

    def second(self, *lines: Json | bytes) -> Outcome:
        """The server of the second seat writes lines, in one read."""
        return self.server(*lines, seat=1)

    def crash(self, seat: int = 0, *, exited: bool = True, unread: int = 0) -> Outcome:
        """The server exits; not `exited`: a signal has killed it. `unread`: bytes it had not read."""
        key = self._keys[seat_name(seat)]
        return self._outcome(self.router.server_closed(key, self.now, exited=exited, unread=unread))

    def exhaust(self, seat: int = 0) -> Outcome:
        """The server of a seat cannot be kept alive."""
        return self._outcome(self.router.server_exhausted(seat, self.now))

    def block(self, seat: int = 0) -> None:
        """The server's stdin is full."""
        self.router.server_blocked(self._keys[seat_name(seat)])

    def unblock(self, room: int = ROOM, *, seat: int = 0) -> Outcome:
        """The server's stdin takes `room` bytes."""
        outputs, more = self.router.server_writable(self._keys[seat_name(seat)], room, self.now)
        return self._outcome(outputs, more)

    def swap(self) -> Outcome:
        """The operator asks for new processes."""
        return self._outcome(self.router.replace_servers(self.now))

    # -- time and the end

    def wait(self, seconds: float) -> Outcome:
        """Time passes; then there is a tick."""
        self.now += seconds
        return self._outcome(self.router.tick(self.now))

    def drain(self) -> Outcome:
        return self._outcome(self.router.drain(self.now))

    def stop(self) -> Outcome:
        return self._outcome(self.router.stop(self.now))
