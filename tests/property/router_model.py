"""What the router must do, once more, as simply as it can be said: on parsed messages, without bytes.

Nothing here is shared with the router but the helpers that spell messages in tests. Each method is one
event; what every destination must be written for it is in `out` until `take` is called. Clients and
children are named by their keys.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from typing import Any, Final

from bridge.core.outbox import Control
from tests.unit.core.scenario import (
    CLOSE,
    MODERN,
    PREFIX,
    Item,
    Json,
    acknowledged,
    cancelled,
    changed,
    closing,
    ended,
    left,
    refusal,
)

WINDOW: Final = 2
QUEUE: Final = 4
LISTENS: Final = 2
LISTENS_ALL: Final = 5
BAD_LINES: Final = 3
PAUSED: Final = 1
RESTART_WAIT: Final = 30
LINGER: Final = 60
PROBE: Final = 10
OPENINGS: Final = 3
LOGS: Final = 30

SUBSCRIPTION: Final = PREFIX + "subscriptionId"
LISTEN: Final = "subscriptions/listen"


def same(one: object, other: object) -> bool:
    """Whether two ids are one: `1`, `"1"` and `1.0` are three."""
    return json.dumps(one) == json.dumps(other)


def is_token(token: object) -> bool:
    return isinstance(token, str) or (isinstance(token, int) and not isinstance(token, bool))


def granted(grant: Json) -> set[str]:
    """What a grant grants: kinds, and URIs."""
    kinds = {name for name, value in grant.items() if value is True}
    return kinds | {"uri:" + uri for uri in grant.get("resourceSubscriptions", [])}


class Ask:
    """A request at the server."""

    def __init__(self, client: Client, id: object, token: object, logs: bool, sent_at: float) -> None:
        self.client = client
        self.id = id
        self.token = token
        self.logs = logs
        self.sent_at = sent_at


class Share:
    """A listen at the server."""

    def __init__(self, key: str | None, message: Json, token: object, logs: bool) -> None:
        self.key = key
        self.message = message
        self.token = token
        self.logs = logs
        self.holders: list[Holder] = []
        self.up: int | None = None
        self.open = False
        self.grant: Json = {}
        self.openings = 0


class Holder:
    """A client's part in a listen."""

    def __init__(self, client: Client, id: object, share: Share) -> None:
        self.client = client
        self.id = id
        self.share = share
        self.granted: Json | None = None


class Client:
    def __init__(self, key: int, strict: bool) -> None:
        self.key = key
        self.strict = strict
        self.bad = 0
        self.waiting: deque[tuple[Json, float]] = deque()
        self.asks: dict[int, Ask] = {}
        self.holders: list[Holder] = []
        self.paused = False
        self.eof_at: float | None = None
        self.closed = False


class Child:
    def __init__(self, key: int) -> None:
        self.key = key
        self.phase = "fresh"
        self.deadline: float | None = None
        self.blocked = False
        self.pumping = False
        self.gone = False
        self.sent: dict[int, Ask | Share | None] = {}
        """By upstream id; None for the probe."""
        self.loggers: dict[int, tuple[Client | None, float]] = {}


class Model:
    """The bridge, told to serve the modern era. `timeout` is `--request-timeout`."""

    def __init__(self, timeout: float | None, now: float) -> None:
        self.timeout = timeout
        self.now = now
        self.last = 0
        self.clients: dict[int, Client] = {}
        self.turns: OrderedDict[int, Client] = OrderedDict()
        self.lingering: list[Client] = []
        self.shares: list[Share] = []
        self.child: Child | None = None
        self.down_since = 0.0
        self.stopping = False
        self.became_ready = False
        self.out: dict[int, list[Item]] = {}

    def take(self) -> dict[int, list[Item]]:
        out, self.out = self.out, {}
        return out

    def say(self, to: Client | Child, item: Item) -> None:
        if not (to.closed if isinstance(to, Client) else to.gone):
            self.out.setdefault(to.key, []).append(item)

    def refuse(
        self, client: Client, id: Any, code: int, reason: str, *, delivered: bool = False, **more: Any
    ) -> None:
        self.say(client, refusal(code, reason, id=id, delivered=delivered, **more))

    # -- clients

    def opened(self, key: int, strict: bool) -> None:
        self.clients[key] = Client(key, strict)

    def junk(self, key: int) -> None:
        """A line that is not JSON."""
        client = self.clients.get(key)
        if client is None:
            return
        client.bad += 1
        self.refuse(client, None, -32700, "parse_error")
        if client.strict or client.bad >= BAD_LINES:
            self.cut(client)

    def overlong(self, key: int, id: object) -> None:
        client = self.clients.get(key)
        if client is not None:
            self.refuse(client, id, -31004, "message_too_large")

    def message(self, key: int, message: Json) -> None:
        """A valid line of a client, or JSON that is no message (an object without a method)."""
        client = self.clients.get(key)
        if client is None:
            return
        client.bad = 0
        method = message.get("method")
        if method is None:
            if "result" not in message:
                self.refuse(client, message.get("id"), -32600, "invalid_request")
        elif method == "notifications/cancelled":
            self.cancel(client, message["params"])
        elif "id" not in message:
            self.notification(client, message)
        else:
            self.request(client, message)

    def ready_child(self) -> Child | None:
        return self.child if self.child is not None and self.child.phase == "ready" else None

    def request(self, client: Client, message: Json) -> None:
        id = message["id"]
        if self.stopping:
            self.refuse(client, id, -31005, "shutting_down")
            return
        if PREFIX + "protocolVersion" not in message["params"]["_meta"]:
            self.refuse(client, id, -31006, "era_not_served", supported=["2026-07-28"])
            return
        listen = message["method"] == LISTEN
        child = self.ready_child()
        free = child is not None and not client.waiting and not child.blocked
        if child is not None and free and (listen or len(client.asks) < WINDOW):
            self.forward(client, message, child)
            return
        if listen and not self.has_room(client):
            self.refuse(client, id, -31003, "too_many_subscriptions")
        elif len(client.waiting) >= QUEUE:
            self.refuse(client, id, -31003, "overloaded")
        else:
            self.enqueue(client, message)
            if self.child is not None:
                self.need(self.child)

    def notification(self, client: Client, message: Json) -> None:
        silent = self.child is None or self.child.phase == "fresh"
        if self.stopping or (silent and not client.waiting):
            return
        child = self.ready_child()
        if child is not None and not client.waiting and not child.blocked:
            self.forward(client, message, child)
        elif len(client.waiting) < QUEUE:
            self.enqueue(client, message)

    def enqueue(self, client: Client, message: Json) -> None:
        client.waiting.append((message, self.now))
        self.turns.setdefault(client.key, client)
        blocked = self.child is not None and self.child.blocked
        if blocked and not client.paused and len(client.waiting) > PAUSED:
            client.paused = True
            self.say(client, Control.PAUSE)

    def need(self, child: Child) -> None:
        if child.phase == "fresh":
            child.phase = "probing"
            child.deadline = self.now + PROBE
            self.last += 1
            child.sent[self.last] = None
            self.say(child, {"probe": self.last})

    def forward(self, client: Client, message: Json, child: Child) -> None:
        """A line leaves a client for the server."""
        if "id" not in message:
            self.say(child, message)
            return
        params = message["params"]
        meta = dict(params["_meta"])
        token = meta.pop("progressToken", None)
        token = token if is_token(token) else None
        logs = PREFIX + "logLevel" in meta
        plain = {**message, "params": {**params, "_meta": meta}}
        if message["method"] == LISTEN:
            alone = (
                logs or plain["params"]["_meta"].keys() != MODERN.keys() or "progressToken" in params["_meta"]
            )
            self.listen(client, plain, token, logs, alone, child)
            return
        self.last += 1
        ask = Ask(client, message["id"], token, logs, self.now)
        client.asks[self.last] = child.sent[self.last] = ask
        if logs:
            child.loggers[self.last] = (client, 0)
        self.write(child, plain, token)

    def write(self, child: Child, message: Json, token: object) -> None:
        params = message["params"]
        meta = params["_meta"] if token is None else {**params["_meta"], "progressToken": self.last}
        self.say(child, {**message, "id": self.last, "params": {**params, "_meta": meta}})

    def cancel(self, client: Client, params: Json) -> None:
        id = params["requestId"]
        rest = {name: value for name, value in params.items() if name != "requestId"}
        before = len(client.waiting)
        client.waiting = deque(
            (message, at)
            for message, at in client.waiting
            if "id" not in message or not same(message["id"], id)
        )
        found = len(client.waiting) != before
        for holder in [holder for holder in client.holders if same(holder.id, id)]:
            found = True
            self.drop_holder(holder, cancelled(0, **rest))
        for up, ask in [(up, ask) for up, ask in client.asks.items() if same(ask.id, id)]:
            found = True
            self.abandon(up, ask, cancelled(up, **rest))
        if found:
            self.feed(client)

    def abandon(self, up: int, ask: Ask, message: Json) -> None:
        child = self.child
        assert child is not None
        del child.sent[up]
        del ask.client.asks[up]
        if ask.logs:
            child.loggers[up] = (None, self.now + LOGS)
        self.say(child, message)

    def eof(self, key: int) -> None:
        client = self.clients.get(key)
        if client is None or client.eof_at is not None:
            return
        client.eof_at = self.now
        self.lingering.append(client)
        waiting, client.waiting = client.waiting, deque()
        for message, at in waiting:
            if message.get("method") == LISTEN:
                self.say(client, closing(message["id"]))
            else:
                client.waiting.append((message, at))
        for holder in list(client.holders):
            self.drop_holder(holder, left(0))
            self.say(client, closing(holder.id))
        self.after(client)

    def gone(self, key: int) -> None:
        client = self.clients.get(key)
        if client is not None:
            client.closed = True
            self.leave(client)

    def leave(self, client: Client) -> None:
        del self.clients[client.key]
        self.turns.pop(client.key, None)
        client.waiting.clear()
        for holder in list(client.holders):
            self.drop_holder(holder, left(0))
        for up, ask in list(client.asks.items()):
            self.abandon(up, ask, left(up))

    def cut(self, client: Client) -> None:
        self.leave(client)
        self.close(client)

    def close(self, client: Client) -> None:
        self.say(client, CLOSE)
        client.closed = True

    def settle(self, client: Client) -> None:
        if client.eof_at is not None and not client.asks and not client.waiting and not client.holders:
            self.close(client)

    # -- waiting

    def feed(self, client: Client) -> None:
        child = self.ready_child()
        if child is not None and not child.blocked and not child.pumping:
            while self.move(client, child):
                pass
        self.after(client)

    def move(self, client: Client, child: Child) -> bool:
        """Move one line, if it may be moved."""
        if not client.waiting:
            return False
        message, _ = client.waiting[0]
        if "id" in message and message["method"] != LISTEN and len(client.asks) >= WINDOW:
            return False
        client.waiting.popleft()
        self.forward(client, message, child)
        return True

    def after(self, client: Client) -> None:
        if not client.waiting:
            self.turns.pop(client.key, None)
        if len(client.waiting) <= PAUSED:
            self.resume(client)
        self.settle(client)

    def resume(self, client: Client) -> None:
        if client.paused:
            client.paused = False
            self.say(client, Control.RESUME)

    def block(self) -> None:
        if self.child is not None:
            self.child.blocked = True

    def writable(self, lines: float) -> bool:
        """Stdin has room for so many lines."""
        child = self.child
        if child is None:
            return False
        child.blocked = False
        if child.phase != "ready":
            return False
        passed = 0
        while self.turns and passed < len(self.turns):
            if lines <= 0:
                child.pumping = True
                return True
            client = next(iter(self.turns.values()))
            moved = self.move(client, child)
            lines -= moved
            passed = 0 if moved else passed + 1
            self.turns.move_to_end(client.key)
            if not client.waiting:
                self.after(client)
            elif len(client.waiting) <= PAUSED:
                self.resume(client)
        child.pumping = False
        for client in self.turns.values():
            self.resume(client)
        return False

    # -- subscriptions

    def has_room(self, client: Client) -> bool:
        held = sum(len(other.holders) for other in self.clients.values())
        return len(client.holders) < LISTENS and held < LISTENS_ALL

    def listen(
        self, client: Client, message: Json, token: object, logs: bool, alone: bool, child: Child
    ) -> None:
        id = message["id"]
        if not self.has_room(client):
            self.refuse(client, id, -31003, "too_many_subscriptions")
            return
        key = None if alone else json.dumps(message["params"]["notifications"], sort_keys=True)
        share = next((share for share in self.shares if key is not None and share.key == key), None)
        if share is None:
            share = Share(key, message, token, logs)
            self.shares.append(share)
            holder = Holder(client, id, share)
            share.holders.append(holder)
            client.holders.append(holder)
            self.open(share, child)
            return
        holder = Holder(client, id, share)
        share.holders.append(holder)
        client.holders.append(holder)
        if share.open:
            holder.granted = share.grant
            self.say(client, acknowledged(id, **share.grant))

    def open(self, share: Share, child: Child) -> None:
        self.last += 1
        share.up = self.last
        child.sent[self.last] = share
        if share.logs:
            child.loggers[self.last] = (share.holders[0].client, 0)
        self.write(child, share.message, share.token)

    def unhold(self, holder: Holder) -> None:
        holder.share.holders.remove(holder)
        holder.client.holders.remove(holder)

    def drop_holder(self, holder: Holder, message: Json) -> None:
        self.unhold(holder)
        if not holder.share.holders:
            self.close_share(holder.share, message)

    def close_share(self, share: Share, message: Json) -> None:
        self.shares.remove(share)
        child = self.child
        if share.up is not None and child is not None:
            del child.sent[share.up]
            if share.logs:
                child.loggers[share.up] = (None, self.now + LOGS)
            params = {**message["params"], "requestId": share.up}
            self.say(child, {**message, "params": params})

    def end_share(self, share: Share) -> list[Holder]:
        """The server has ended it; whom it served."""
        self.shares.remove(share)
        holders = list(share.holders)
        for holder in holders:
            self.unhold(holder)
        return holders

    # -- the server

    def child_opened(self, key: int) -> None:
        self.child = child = Child(key)
        self.need(child)

    def make_ready(self, child: Child) -> None:
        if child.phase == "probing":
            child.phase = "ready"
            child.deadline = None
            if not child.gone:
                self.became_ready = True
                for share in list(self.shares):
                    self.open(share, child)

    def response(self, up: object, body: Json, child: Child | None = None) -> None:
        """A response: `body` holds `result`, `error`, both or neither; `long` says that it is too long."""
        child = child or self.child
        if child is None:
            return
        valid = ("result" in body) != ("error" in body)
        known = isinstance(up, int) and not isinstance(up, bool) and up in child.sent
        if not known:
            if isinstance(up, int) and ("result" in body or "error" in body):
                child.loggers.pop(up, None)
            return
        assert isinstance(up, int)
        entry = child.sent.pop(up)
        child.loggers.pop(up, None)
        long = "long" in body
        if entry is None:
            self.make_ready(child)
        elif isinstance(entry, Ask):
            client = entry.client
            del client.asks[up]
            if valid:
                self.say(client, {**body, "jsonrpc": "2.0", "id": entry.id})
            elif long:
                self.refuse(client, entry.id, -31004, "message_too_large", delivered=True)
            else:
                self.refuse(client, entry.id, -31008, "invalid_response", delivered=True)
            if client.waiting:
                self.feed(client)
            self.settle(client)
        else:
            for holder in self.end_share(entry):
                if valid:
                    self.say(holder.client, {**own(body, holder.id), "jsonrpc": "2.0", "id": holder.id})
                else:
                    self.refuse(holder.client, holder.id, -31008, "invalid_response", delivered=True)
                self.settle(holder.client)

    def progress(self, token: object, message: Json) -> None:
        entry = self.known(token)
        if entry is not None and entry.token is not None:
            client = entry.client if isinstance(entry, Ask) else entry.holders[0].client
            self.say(client, {**message, "params": {**message["params"], "progressToken": entry.token}})

    def known(self, up: object) -> Ask | Share | None:
        if self.child is None or type(up) is not int:
            return None
        return self.child.sent.get(up)

    def log(self, message: Json) -> None:
        if self.child is not None:
            owners = {id(client): client for client, _ in self.child.loggers.values()}
            if len(owners) == 1:
                [owner] = owners.values()
                if owner is not None:
                    self.say(owner, message)

    def grant(self, up: object, grant: Json) -> None:
        share = self.known(up)
        if not isinstance(share, Share) or share.open:
            return
        share.open = True
        share.openings = 0
        share.grant = grant
        for holder in list(share.holders):
            if holder.granted is None:
                holder.granted = grant
                self.say(holder.client, acknowledged(holder.id, **grant))
            elif granted(grant) >= granted(holder.granted):
                if holder.granted.get("toolsListChanged"):
                    self.say(holder.client, changed(holder.id))
                for uri in holder.granted.get("resourceSubscriptions", []):
                    self.say(holder.client, changed(holder.id, "resources/updated", uri=uri))
            else:
                self.unhold(holder)
                self.say(holder.client, closing(holder.id))
                self.settle(holder.client)
        if not share.holders:
            self.close_share(share, ended(0))

    def changed(self, up: object, message: Json) -> None:
        share = self.known(up)
        if isinstance(share, Share) and share.open:
            for holder in share.holders:
                meta = {**message["params"]["_meta"], SUBSCRIPTION: holder.id}
                self.say(holder.client, {**message, "params": {**message["params"], "_meta": meta}})

    def torn_down(self, up: object, message: Json) -> None:
        share = self.known(up)
        if isinstance(share, Share):
            assert self.child is not None
            assert isinstance(up, int)
            del self.child.sent[up]
            self.child.loggers.pop(up, None)
            for holder in self.end_share(share):
                self.say(holder.client, {**message, "params": {**message["params"], "requestId": holder.id}})
                self.settle(holder.client)

    def child_closed(self, last_words: tuple[object, Json] | None = None) -> None:
        """`last_words`: a whole response without its newline."""
        child = self.child
        if child is None:
            return
        child.gone = True
        self.child = None
        if last_words is not None:
            self.response(*last_words, child)
        if child.phase == "ready":
            self.down_since = self.now
        for up, entry in child.sent.items():
            if isinstance(entry, Ask):
                del entry.client.asks[up]
                self.refuse(entry.client, entry.id, -31001, "server_exited", delivered=True)
                self.settle(entry.client)
        for share in list(self.shares):
            if share.up is None:
                continue
            share.up = None
            if share.open:
                share.open = False
                continue
            share.openings += 1
            if share.openings >= OPENINGS:
                for holder in self.end_share(share):
                    self.refuse(holder.client, holder.id, -31001, "server_exited", delivered=True)
                    self.settle(holder.client)
        for client in self.turns.values():
            self.resume(client)

    # -- time and the end

    def tick(self) -> None:
        now = self.now
        oldest = now - RESTART_WAIT
        if self.child is None and self.down_since <= oldest:
            for client in list(self.turns.values()):
                while client.waiting and client.waiting[0][1] <= oldest:
                    message, _ = client.waiting.popleft()
                    if "id" in message:
                        self.refuse(client, message["id"], -31002, "server_unavailable")
                self.after(client)
        self.lingering = [client for client in self.lingering if not client.closed]
        for client in self.lingering:
            if client.eof_at is not None and now - client.eof_at >= LINGER:
                self.cut(client)
        child = self.child
        if child is None:
            return
        if child.deadline is not None and now >= child.deadline:
            self.make_ready(child)
        for up, (owner, until) in list(child.loggers.items()):
            if owner is None and now >= until:
                del child.loggers[up]
        if self.timeout is not None:
            for up, entry in list(child.sent.items()):
                if isinstance(entry, Ask) and now - entry.sent_at >= self.timeout:
                    self.abandon(up, entry, cancelled(up, reason="request timeout"))
                    self.refuse(entry.client, entry.id, -31007, "request_timeout", delivered=True)
                    self.feed(entry.client)

    def drain(self) -> None:
        self.stopping = True
        for client in list(self.turns.values()):
            while client.waiting:
                message, _ = client.waiting.popleft()
                if "id" in message:
                    self.refuse(client, message["id"], -31005, "shutting_down")
            self.after(client)
        for share in list(self.shares):
            for holder in list(share.holders):
                self.unhold(holder)
                self.say(holder.client, closing(holder.id))
                self.settle(holder.client)
            self.close_share(share, ended(0))

    def stop(self) -> None:
        self.drain()
        for up, entry in list(self.child.sent.items()) if self.child else []:
            if isinstance(entry, Ask):
                self.abandon(up, entry, cancelled(up, reason="the bridge is stopping"))
                self.refuse(entry.client, entry.id, -31005, "shutting_down", delivered=True)
        for client in list(self.clients.values()):
            self.leave(client)
            self.close(client)


def own(body: Json, id: object) -> Json:
    """A response to a listen with a holder's own subscription id."""
    result = body.get("result")
    if isinstance(result, dict) and SUBSCRIPTION in result.get("_meta", {}):
        return {**body, "result": {**result, "_meta": {**result["_meta"], SUBSCRIPTION: id}}}
    return body
