"""What isolated clients are owed, once more, as simply as it can be said: on parsed messages, without bytes.

Nothing here is shared with `bridge.core.isolated` but the helpers that spell messages in tests. Each method
is one event; what every destination must be written for it is in `out` until `take` is called, and what the
shell is asked for in `needs` (clients) and `stops` (processes).
"""

from __future__ import annotations

import json
from typing import Any, Final

from bridge.core.era import LEGACY_VERSIONS
from bridge.core.outbox import Control
from tests.unit.core.scenario import CLOSE, Item, Json, cancelled, closing, left, refusal

WINDOW: Final = 2
QUEUE: Final = 4
LISTENS: Final = 2
LISTENS_ALL: Final = 3
PAUSED: Final = 1
BAD_LINES: Final = 3
RESTART_WAIT: Final = 30
LINGER: Final = 60
REMEMBERED: Final = 30

LISTEN: Final = "subscriptions/listen"
DISCOVER: Final = "server/discover"


def key(id: object) -> str:
    """`1`, `"1"` and `1.0` are three."""
    return json.dumps(id)


class Ask:
    """A request at the process."""

    def __init__(self, message: Json, at: float) -> None:
        self.message = message
        self.id = message["id"]
        self.listen = message["method"] == LISTEN
        self.at = at


class Client:
    """A client, and the process that is its own."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.child: int | None = None
        self.blocked = False
        self.wanted = False
        self.untouched = False
        """The process was asked nothing but what it speaks, and has answered nothing."""
        self.queue: list[tuple[Json, float]] = []
        self.asks: dict[str, list[Ask]] = {}
        self.questions: dict[str, Any] = {}
        self.paused = False
        self.bad = 0
        self.eof_at: float | None = None
        self.closed = False

    def at_child(self) -> list[Ask]:
        return [ask for group in self.asks.values() for ask in group]

    @property
    def listens(self) -> int:
        return sum(ask.listen for ask in self.at_child())

    @property
    def full(self) -> bool:
        return sum(not ask.listen for ask in self.at_child()) >= WINDOW


class Model:
    """The bridge. `timeout` is `--request-timeout`."""

    def __init__(self, timeout: float | None, now: float) -> None:
        self.timeout = timeout
        self.now = now
        self.clients: dict[int, Client] = {}
        self.children: dict[int, Client] = {}
        self.stopping = False
        self.not_modern_until = 0.0
        """Until then nobody's process is asked for the modern era: one has exited on that."""
        self.out: dict[int, list[Item]] = {}
        self.needs: list[int] = []
        self.stops: list[int] = []

    def say(self, client: Client, item: Item) -> None:
        if not client.closed:
            self.out.setdefault(client.key, []).append(item)

    def tell(self, client: Client, item: Item) -> None:
        assert client.child is not None
        self.out.setdefault(client.child, []).append(item)

    def refuse(
        self, client: Client, id: Any, code: int, reason: str, delivered: bool = False, **more: Any
    ) -> None:
        self.say(client, refusal(code, reason, id=id, delivered=delivered, **more))

    def close(self, client: Client) -> None:
        self.say(client, CLOSE)
        client.closed = True

    # -- clients

    def junk(self, number: int) -> None:
        """A line that is not JSON."""
        client = self.clients[number]
        client.bad += 1
        self.refuse(client, None, -32700, "parse_error")
        if client.bad >= BAD_LINES:
            self.leave(client, "the client disconnected")
            self.close(client)

    def message(self, number: int, message: Json) -> None:
        client = self.clients.get(number)
        if client is None:
            return
        client.bad = 0
        method = message.get("method")
        if method is None:
            self.answer(client, message)
        elif method == "notifications/cancelled":
            self.cancel(client, message)
        elif "id" not in message:
            self.notification(client, message)
        else:
            self.request(client, message)

    def answer(self, client: Client, message: Json) -> None:
        """It never waits: not behind requests, not for a process that does not read."""
        if client.child is not None and client.questions.pop(key(message["id"]), None) is not None:
            self.tell(client, message)

    def cancel(self, client: Client, message: Json) -> None:
        name = key(message["params"]["requestId"])
        client.queue = [
            (line, at)
            for line, at in client.queue
            if "id" not in line or key(line["id"]) != name or line["method"] == "initialize"
        ]
        given_up = [ask for ask in client.asks.get(name, []) if ask.message["method"] != "initialize"]
        for ask in given_up:
            self.forget(client, ask)
        if given_up:
            self.tell(client, message)
        self.feed(client)

    def notification(self, client: Client, message: Json) -> None:
        if self.stopping:
            return
        progress = message["method"] == "notifications/progress"
        if client.child is not None and not client.blocked and (progress or not client.queue):
            client.untouched = False
            self.tell(client, message)
        elif client.child is not None or client.queue:
            self.enqueue(client, message)

    def request(self, client: Client, message: Json) -> None:
        if self.stopping:
            self.refuse(client, message["id"], -31005, "shutting_down")
            return
        if (
            message["method"] == DISCOVER
            and client.child is None
            and not client.queue
            and self.now < self.not_modern_until
        ):
            self.not_modern(client, message["id"], False)
            return
        if message["method"] == LISTEN and not self.may_listen(client, message["id"]):
            return
        free = client.child is not None and not client.blocked and not client.queue
        if free and (message["method"] == LISTEN or not client.full):
            self.pass_on(client, message)
        elif not self.enqueue(client, message):
            self.refuse(client, message["id"], -31003, "overloaded")
        elif client.child is None and not client.wanted:
            client.wanted = True
            self.needs.append(client.key)

    def may_listen(self, client: Client, id: Any) -> bool:
        if client.listens < LISTENS and self.listens < LISTENS_ALL:
            return True
        self.refuse(client, id, -31003, "too_many_subscriptions")
        return False

    @property
    def listens(self) -> int:
        return sum(client.listens for client in self.clients.values())

    def enqueue(self, client: Client, message: Json) -> bool:
        if len(client.queue) >= QUEUE:
            return False
        client.queue.append((message, self.now))
        if client.blocked and len(client.queue) > PAUSED and not client.paused:
            client.paused = True
            self.say(client, Control.PAUSE)
        return True

    def pass_on(self, client: Client, message: Json) -> None:
        if "id" in message:
            client.asks.setdefault(key(message["id"]), []).append(Ask(message, self.now))
            client.untouched = client.untouched and message["method"] == DISCOVER
        else:
            client.untouched = False
        self.tell(client, message)

    def feed(self, client: Client, lines: float = float("inf")) -> bool:
        """Move what waits, so many lines at most; whether there was no room for more."""
        while client.queue and client.child is not None and not client.blocked:
            if lines <= 0:
                self.relax(client)
                return True
            message = client.queue[0][0]
            if "id" in message and message["method"] != LISTEN and client.full:
                break
            del client.queue[0]
            lines -= 1
            if message.get("method") != LISTEN or self.may_listen(client, message["id"]):
                self.pass_on(client, message)
        self.relax(client)
        return False

    def relax(self, client: Client) -> None:
        if len(client.queue) <= PAUSED:
            self.resume(client)
        if client.eof_at is not None and not client.asks and not client.queue and not client.closed:
            self.close(client)

    def resume(self, client: Client) -> None:
        if client.paused:
            client.paused = False
            self.say(client, Control.RESUME)

    def refuse_queued(self, client: Client, code: int, reason: str) -> None:
        queue, client.queue = client.queue, []
        for message, _ in queue:
            if "id" in message:
                self.refuse(client, message["id"], code, reason)
        self.resume(client)
        self.relax(client)

    def refuse_questions(self, client: Client) -> None:
        for id in client.questions.values():
            self.tell(client, refusal(-32603, "client_gone", id=id))
        client.questions.clear()

    def end_listens(self, client: Client) -> None:
        for ask in client.at_child():
            if ask.listen:
                self.forget(client, ask)
                self.tell(client, left(ask.id))
                self.say(client, closing(ask.id))

    def forget(self, client: Client, ask: Ask) -> None:
        group = client.asks[key(ask.id)]
        group.remove(ask)
        if not group:
            del client.asks[key(ask.id)]

    def eof(self, number: int) -> None:
        client = self.clients[number]
        client.eof_at = self.now
        self.refuse_questions(client)
        waiting = [message for message, _ in client.queue if message.get("method") == LISTEN]
        client.queue = [(m, at) for m, at in client.queue if m.get("method") != LISTEN]
        for message in waiting:
            self.say(client, closing(message["id"]))
        self.end_listens(client)
        self.relax_closed(client)

    def relax_closed(self, client: Client) -> None:
        """As `relax`, where nothing is read on: who has stopped sending is not paused any longer either."""
        if not client.asks and not client.queue and not client.closed:
            self.close(client)

    def gone(self, number: int) -> None:
        client = self.clients.get(number)
        if client is not None:
            client.closed = True
            self.leave(client, "the client disconnected")

    def leave(self, client: Client, why: str) -> None:
        """Its process is told to give up, told that nobody answers, and stopped."""
        del self.clients[client.key]
        client.queue.clear()
        if client.child is not None:
            for ask in client.at_child():
                if ask.message["method"] != "initialize":
                    self.tell(client, cancelled(ask.id, reason=why))
            self.refuse_questions(client)
            self.stops.append(client.child)

    # -- processes

    def started(self, child: int, number: int) -> None:
        client = self.clients.get(number)
        if client is None or client.child is not None:
            self.stops.append(child)
            return
        client.child = child
        client.wanted = False
        client.untouched = True
        client.blocked = False
        self.children[child] = client
        self.feed(client)

    def failed(self, number: int, full: bool) -> None:
        client = self.clients.get(number)
        if client is not None:
            client.wanted = False
            reason = "too_many_children" if full else "server_unavailable"
            self.refuse_queued(client, -31003 if full else -31002, reason)

    def blocked(self, child: int) -> None:
        self.children[child].blocked = True

    def writable(self, child: int, lines: float) -> bool:
        client = self.children[child]
        client.blocked = False
        more = self.feed(client, lines)
        if not more:
            self.resume(client)
        return more

    def says(self, child: int, message: Json, *, dead: bool = False) -> None:
        """A valid message of a process, or a response with neither result nor error."""
        client = self.children.get(child)
        if client is None:
            return
        if "method" not in message:
            self.response(client, message)
        elif "id" in message:
            if dead:
                pass
            elif client.eof_at is not None or client.closed:
                self.tell(client, refusal(-32603, "client_gone", id=message["id"]))
            else:
                client.questions[key(message["id"])] = message["id"]
                self.say(client, message)
        else:
            if message["method"] == "notifications/cancelled":
                name = key(message["params"]["requestId"])
                if client.questions.pop(name, None) is None:
                    for ask in client.asks.get(name, []):
                        if ask.listen:
                            self.forget(client, ask)
                            break
            self.say(client, message)

    def response(self, client: Client, message: Json) -> None:
        group = client.asks.get(key(message["id"]))
        if group is None:
            return
        client.untouched = False
        self.forget(client, group[0])
        if ("result" in message) != ("error" in message):
            self.say(client, message)
        else:
            self.refuse(client, message["id"], -31008, "invalid_response", True)
        self.feed(client)

    def damaged(self, child: int, id: object) -> None:
        """A line that is no JSON, with the head of a response to this."""
        client = self.children[child]
        group = client.asks.get(key(id))
        if group is not None:
            self.forget(client, group[0])
            self.refuse(client, group_id(group, id), -31008, "invalid_response", True)
            self.feed(client)

    def died(self, child: int, exited: bool, last_words: Json | None) -> None:
        client = self.children[child]
        alive = client.key in self.clients
        client.blocked = True  # nothing is moved to it any more
        if last_words is not None:
            self.says(child, last_words, dead=True)
        del self.children[child]
        client.child = None
        client.blocked = False
        client.questions.clear()
        if not alive:
            return
        asks, client.asks = client.at_child(), {}
        if exited and client.untouched and asks:
            for ask in asks:
                self.not_modern(client, ask.id, True)
            self.not_modern_until = self.now + REMEMBERED
            if client.queue:
                client.wanted = True
                self.needs.append(client.key)
            self.relax_closed(client) if client.eof_at is not None else None
            return
        for ask in asks:
            self.refuse(client, ask.id, -31001, "server_exited", True)
        self.refuse_queued(client, -31001, "server_exited")
        del self.clients[client.key]
        self.close(client)

    def not_modern(self, client: Client, id: Any, delivered: bool) -> None:
        self.refuse(client, id, -32601, "era_not_served", delivered, supported=[*LEGACY_VERSIONS])

    # -- time and the end

    def tick(self) -> None:
        for client in list(self.clients.values()):
            if client.eof_at is not None and self.now - client.eof_at >= LINGER:
                self.leave(client, "the client disconnected")
                self.close(client)
                continue
            if client.child is None and client.queue and client.queue[0][1] <= self.now - RESTART_WAIT:
                client.wanted = False
                self.refuse_queued(client, -31002, "server_unavailable")
            if self.timeout is not None and client.child is not None:
                for ask in client.at_child():
                    if not ask.listen and self.now - ask.at >= self.timeout:
                        self.forget(client, ask)
                        self.tell(client, cancelled(ask.id, reason="request timeout"))
                        self.refuse(client, ask.id, -31007, "request_timeout", True)
                self.feed(client)

    def drain(self) -> None:
        self.stopping = True
        for client in list(self.clients.values()):
            self.refuse_queued(client, -31005, "shutting_down")
            self.end_listens(client)
            self.relax(client)

    def stop(self) -> None:
        self.drain()
        for client in list(self.clients.values()):
            for ask in client.at_child():
                self.refuse(client, ask.id, -31005, "shutting_down", True)
            self.leave(client, "the bridge is stopping")
            self.close(client)


def group_id(group: list[Ask], id: object) -> object:
    """The id that an answer carries: as it came."""
    return group[0].id if group else id
