"""What clients of one shared legacy session are owed, as simply as it can be said: on parsed messages.

Nothing here is shared with the router but the helpers that spell messages in tests. Each method is one event;
what every destination must be written for it is in `out`. The server is told to be a legacy one, has every
capability, and tells the same of itself each time unless a test says otherwise.
"""

from __future__ import annotations

from typing import Any, Final

from tests.unit.core.scenario import (
    INITIALIZED,
    Item,
    Json,
    asked_to_initialize,
    cancelled,
    greeting,
    left,
    legacy,
    notification,
    refusal,
    result,
)

LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
OVER: Final = ("completed", "failed", "cancelled")
RELATED: Final = "io.modelcontextprotocol/related-task"
RESTART_WAIT: Final = 30
CHANGED: Final = [notification(f"notifications/{kind}/list_changed") for kind in ("tools", "resources")]
"""What clients are told after a restart."""
NOBODY_WAITS: Final = "whoever asked for it has given up"


def part_of(uri: str, whole: str) -> bool:
    return uri == whole or uri.startswith(whole if whole.endswith("/") else whole + "/")


class Ask:
    """A request of a client: at the server, or (`up` is None) waiting for what the bridge asks there."""

    def __init__(self, client: Client, id: Any, message: Json, serial: int = 0) -> None:
        self.client = client
        self.serial = serial
        self.id = id
        self.message = message


class Client:
    def __init__(self, key: int) -> None:
        self.key = key
        self.session = False
        self.initialized = False
        self.missed = False
        self.level: int | None = None
        self.holds: list[Resource] = []
        self.waiting: list[tuple[Json, float]] = []
        self.closed = False


class Question:
    """What the bridge itself has asked: for whom."""

    def __init__(self, up: int, what: Any, asks: list[Ask]) -> None:
        self.up = up
        self.what = what
        self.asks = asks


class Resource:
    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.holders: list[Client] = []
        self.on: bool | None = False
        """What the server knows; None: nobody can tell."""
        self.question: Question | None = None
        self.later: list[tuple[Ask, float]] = []
        self.missed = False


class Task:
    def __init__(self, name: str, client: Client, up: int, token: object, serial: int) -> None:
        self.name = name
        self.serial = serial
        self.client = client
        self.up = up
        self.token = token
        self.over = False


class Child:
    def __init__(self, key: int, new: bool) -> None:
        self.key = key
        self.new = new
        """It is to replace the one that serves."""
        self.retired = False
        self.ready = False
        self.sent: dict[int, Ask | Question | str] = {}
        """By upstream id; a word for what nobody is told of."""
        self.tasks: dict[str, Task] = {}
        self.tokens: dict[int, Task] = {}


class Model:
    """The bridge, told to serve the legacy era."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.last = 0
        self.clients: dict[int, Client] = {}
        self.turns: list[Client] = []
        self.resources: dict[str, Resource] = {}
        self.child: Child | None = None
        """The one that serves."""
        self.children: dict[int, Child] = {}
        self.told: int | None = None
        self.asked_level: int | None = None
        self.level_question: Question | None = None
        self.level_later: list[tuple[Ask, float]] = []
        self.greeted = False
        self.down_since = 0.0
        self.serial = 0
        self.freed: list[Client] = []
        """Whose requests have ended that waited for others': what they sent behind may go."""
        self.out: dict[int, list[Item]] = {}

    def say(self, client: Client, item: Item) -> None:
        if not client.closed:
            self.out.setdefault(client.key, []).append(item)

    def tell(self, child: Child, item: Item) -> None:
        self.out.setdefault(child.key, []).append(item)

    def refuse(self, ask: Ask, code: int, reason: str, delivered: bool = False) -> None:
        self.say(ask.client, refusal(code, reason, id=ask.id, delivered=delivered))

    def mint(self) -> int:
        self.last += 1
        return self.last

    # -- clients

    def opened(self, key: int) -> None:
        self.clients[key] = Client(key)

    def message(self, key: int, message: Json) -> None:
        client = self.clients[key]
        method, id = message["method"], message.get("id")
        if method == "notifications/initialized":
            client.initialized = client.initialized or client.session
        elif method == "notifications/cancelled":
            self.cancel(client, message["params"]["requestId"])
        elif method == "ping":
            self.say(client, result(id))
        elif method == "initialize":
            assert self.greeted
            self.say(client, greeting(id, capabilities=CAPABLE))
            client.session = True
        elif not client.session:
            self.say(client, refusal(-32600, "not_initialized", id=id))
        elif self.child is None or client.waiting:
            client.waiting.append((message, self.now))
            if client not in self.turns:
                self.turns.append(client)
        else:
            self.serve(client, message)

    def serve(self, client: Client, message: Json) -> None:
        """A request's turn has come."""
        child = self.child
        assert child is not None
        method, params = message["method"], message["params"]
        self.serial += 1
        ask = Ask(client, message["id"], message, self.serial)
        if method in ("resources/subscribe", "resources/unsubscribe"):
            resource = self.resources.setdefault(params["uri"], Resource(params["uri"]))
            question = resource.question
            if question is not None and question.what == wants(ask) and not resource.later:
                question.asks.append(ask)
            else:
                resource.later.append((ask, self.now))
                self.advance(resource)
        elif method == "logging/setLevel":
            self.level_later.append((ask, self.now))
            self.advance_level()
        elif method in ("tasks/get", "tasks/result", "tasks/cancel") and (
            params["taskId"] not in child.tasks or child.tasks[params["taskId"]].client is not client
        ):
            self.refuse(ask, -32602, "unknown_task")
        else:
            up = self.mint()
            child.sent[up] = ask
            meta = {"progressToken": up} if "progressToken" in params.get("_meta", {}) else None
            self.tell(child, {**message, "id": up, "params": {**params, **({"_meta": meta} if meta else {})}})

    def cancel(self, client: Client, id: object) -> None:
        """Ids are unique here."""
        client.waiting = [(message, at) for message, at in client.waiting if message["id"] != id]
        if not client.waiting and client in self.turns:
            self.turns.remove(client)
        self.give_up(client, id, cancelled)

    def give_up(self, client: Client, id: object, spell: Any) -> None:
        """A request is wanted no more; `id` None: none of a client's is."""
        sent = [
            (ask.serial, child, up)
            for child in self.children.values()
            for up, ask in child.sent.items()
            if isinstance(ask, Ask) and ask.client is client and id in (None, ask.id)
        ]
        waiting = [
            (ask.serial, None, ask)
            for ask in self.all_waiting()
            if ask.client is client and id in (None, ask.id)
        ]
        both: list[tuple[int, Child | None, Any]] = [*sent, *waiting]
        for _, child, what in sorted(both, key=lambda each: each[0]):
            if child is not None:
                del child.sent[what]
                self.tell(child, spell(what))
            elif what in self.all_waiting():  # what was given up before may have answered it
                self.withdraw(what)

    def all_waiting(self) -> list[Ask]:
        later = [ask for resource in self.resources.values() for ask, _ in resource.later]
        questions = [resource.question for resource in self.resources.values()] + [self.level_question]
        joined = [ask for question in questions if question is not None for ask in question.asks]
        return later + joined + [ask for ask, _ in self.level_later]

    def withdraw(self, ask: Ask) -> None:
        resource = self.resources.get(ask.message["params"].get("uri", ""))
        if resource is None:
            before = len(self.level_later)
            self.level_later = [(each, at) for each, at in self.level_later if each is not ask]
            if len(self.level_later) == before:
                question, self.level_question = self.level_question, None
                assert question is not None
                self.told = self.asked_level = None
                self.call_back(question)
            self.advance_level()
            return
        before = len(resource.later)
        resource.later = [(each, at) for each, at in resource.later if each is not ask]
        question = resource.question
        if len(resource.later) == before:
            assert question is not None
            question.asks.remove(ask)
            # Nobody wants it any more: it is called back, and then undone.
            if question.what and not question.asks and not resource.holders:
                resource.question = None
                resource.on = None
                self.call_back(question)
        self.advance(resource)

    def call_back(self, question: Question) -> None:
        assert self.child is not None
        del self.child.sent[question.up]
        self.tell(self.child, cancelled(question.up, reason=NOBODY_WAITS))

    def gone(self, key: int) -> None:
        client = self.clients[key]
        client.closed = True
        client.waiting.clear()
        if client in self.turns:
            self.turns.remove(client)
        self.give_up(client, None, left)
        del self.clients[key]
        own = [
            (task, child)
            for child in self.children.values()
            for task in child.tasks.values()
            if task.client is client
        ]
        for task, child in sorted(own, key=lambda each: each[0].serial):
            self.forget(child, task)
            if not task.over:
                up = self.mint()
                child.sent[up] = "forgotten"
                self.tell(child, legacy(up, "tasks/cancel", taskId=task.name))
        held = list(client.holds)
        for resource in held:
            self.let_go(resource, client)
        for resource in held:
            self.advance(resource)
        if client.level is not None:
            client.level = None
            self.advance_level()

    @staticmethod
    def hold(resource: Resource, client: Client) -> None:
        if client not in resource.holders:
            resource.holders.append(client)
            client.holds.append(resource)

    @staticmethod
    def let_go(resource: Resource, client: Client) -> None:
        if client in resource.holders:
            resource.holders.remove(client)
            client.holds.remove(resource)

    @staticmethod
    def forget(child: Child, task: Task) -> None:
        del child.tasks[task.name]
        child.tokens.pop(task.up, None)

    # -- what they hold together

    def advance(self, resource: Resource) -> None:
        """One thing at a time for each URI, in the order it was asked for."""
        while resource.question is None and resource.later:
            ask = resource.later[0][0]
            if wants(ask):
                done = resource.on is True
            else:
                self.let_go(resource, ask.client)
                done = bool(resource.holders)
            if not done:
                if self.child is not None:
                    asks = []
                    while resource.later and wants(resource.later[0][0]) == wants(ask):
                        asks.append(resource.later.pop(0)[0])
                    self.ask(resource, wants(ask), asks)
                return
            resource.later.pop(0)
            if wants(ask):
                self.hold(resource, ask.client)
            self.grant(ask)
        if resource.question is not None or self.child is None:
            return
        if resource.holders and not resource.on:
            self.ask(resource, True, [])
        elif not resource.holders and resource.on is not False:
            self.ask(resource, False, [])
        elif not resource.holders:
            self.resources.pop(resource.uri, None)

    def grant(self, ask: Ask) -> None:
        """The server is in that state already."""
        self.freed.append(ask.client)
        self.say(ask.client, result(ask.id))

    def ask(self, resource: Resource, on: bool, asks: list[Ask]) -> None:
        assert self.child is not None
        up = self.mint()
        resource.question = self.child.sent[up] = Question(up, on, asks)
        self.tell(self.child, legacy(up, f"resources/{'' if on else 'un'}subscribe", uri=resource.uri))

    def advance_level(self) -> None:
        """The server is asked for the most verbose level of all."""
        set_now = [client.level for client in self.clients.values() if client.level is not None]
        while self.level_question is None and self.level_later:
            ask = self.level_later[0][0]
            rank = LEVELS.index(ask.message["params"]["level"])
            others = [c.level for c in self.clients.values() if c.level is not None and c is not ask.client]
            wanted = min([*others, rank])
            if wanted != self.told:
                if self.child is not None:
                    self.level_later.pop(0)
                    self.ask_level(wanted, [ask])
                return
            self.level_later.pop(0)
            ask.client.level = rank
            self.grant(ask)
            set_now = [client.level for client in self.clients.values() if client.level is not None]
        if self.level_question is None and set_now and self.child is not None:
            wanted = min(set_now)
            if wanted not in (self.told, self.asked_level):
                self.ask_level(wanted, [])

    def ask_level(self, level: int, asks: list[Ask]) -> None:
        assert self.child is not None
        up = self.mint()
        self.asked_level = level
        self.level_question = self.child.sent[up] = Question(up, level, asks)
        self.tell(self.child, legacy(up, "logging/setLevel", level=LEVELS[level]))

    def asked_what(self, question: Question) -> Resource | None:
        """The resource that a question is about; None: the level, or what matters no more."""
        return next((r for r in self.resources.values() if r.question is question), None)

    # -- the server

    def child_opened(self, key: int, new: bool) -> None:
        child = self.children[key] = Child(key, new)
        up = self.mint()
        child.sent[up] = "initialize"
        self.tell(child, asked_to_initialize(up))

    def answered(self, key: int, up: int, body: Json) -> None:
        """`body` holds `result` or `error`, or nothing if it could not be read."""
        self.freed.clear()
        child = self.children[key]
        entry = child.sent.pop(up)
        if entry == "initialize":
            self.ready(child)
        elif isinstance(entry, Ask):
            self.say(entry.client, self.passed_on(child, up, entry, body))
        elif isinstance(entry, Question):
            self.settled(entry, body)
        freed, self.freed = self.freed, []
        for client in freed:
            self.feed(client)

    def feed(self, client: Client) -> None:
        while self.child is not None and client.waiting:
            self.serve(client, client.waiting.pop(0)[0])
        if not client.waiting and client in self.turns:
            self.turns.remove(client)

    def passed_on(self, child: Child, up: int, ask: Ask, body: Json) -> Json:
        """A client's answer: of tasks it names its own."""
        if not body:
            return refusal(-31008, "invalid_response", id=ask.id, delivered=True)
        said, params = body.get("result", {}), ask.message["params"]
        if ask.message["method"] == "tasks/list" and "result" in body:
            own = [t for t in said["tasks"] if self.owner(child, t["taskId"]) is ask.client]
            body = {"result": {**said, "tasks": own}}
        elif ask.message["method"].startswith("tasks/") and "status" in said:
            self.note(child, said["taskId"], said["status"])
        elif "task" in params and "task" in said and said["task"]["taskId"] not in child.tasks:
            name = said["task"]["taskId"]
            self.serial += 1
            token = params.get("_meta", {}).get("progressToken")
            task = child.tasks[name] = Task(name, ask.client, up, token, self.serial)
            if task.token is not None:
                child.tokens[up] = task
            self.note(child, name, said["task"]["status"])
        return {"jsonrpc": "2.0", "id": ask.id, **body}

    @staticmethod
    def owner(child: Child, name: str) -> Client | None:
        task = child.tasks.get(name)
        return None if task is None else task.client

    @staticmethod
    def note(child: Child, name: str, status: str) -> None:
        task = child.tasks.get(name)
        if task is not None and status in OVER:
            task.over = True
            child.tokens.pop(task.up, None)

    def settled(self, question: Question, body: Json) -> None:
        """Everybody who waited for it is told the same."""
        resource = self.asked_what(question)
        done = "result" in body

        def tell() -> None:
            for ask in question.asks:
                if body:
                    self.say(ask.client, {"jsonrpc": "2.0", "id": ask.id, **body})
                else:
                    self.refuse(ask, -31008, "invalid_response", True)

        if resource is not None:
            resource.question = None
            if question.what:
                resource.on = done if body else None
                for ask in question.asks if done else []:
                    self.hold(resource, ask.client)
            else:
                resource.on = False
            tell()
            if question.what:
                self.caught_up(resource, done)
            self.advance(resource)
        elif question is self.level_question:
            self.level_question = None
            if done:
                self.told, self.asked_level = question.what, None
                for ask in question.asks:
                    ask.client.level = LEVELS.index(ask.message["params"]["level"])
            elif not body:
                self.told = None
            tell()
            self.advance_level()

    def caught_up(self, resource: Resource, done: bool) -> None:
        if resource.missed:
            resource.missed = False
            for client in resource.holders:
                self.say(client, notification("notifications/resources/updated", uri=resource.uri))
        for client in [] if done else list(resource.holders):
            self.let_go(resource, client)

    def ready(self, child: Child) -> None:
        """It is told of the session, then what is held, before anybody's request."""
        child.ready = True
        self.tell(child, INITIALIZED)
        if child.new:
            child.new = False
            self.replaced_by(child)
        self.child = child
        self.greeted = True
        for resource in list(self.resources.values()):
            self.advance(resource)
        self.advance_level()
        for client in self.clients.values():
            if client.session and client.missed:
                client.missed = False
                for item in CHANGED if client.initialized else ():
                    self.say(client, item)

    def pump(self) -> None:
        """The server's stdin takes more: what waits is moved, each client in its turn."""
        for client in list(self.turns):
            self.feed(client)
        self.freed.clear()

    def replaced_by(self, child: Child) -> None:
        """What the old one was asked on everybody's account the new one is asked again."""
        old = self.child
        if old is None:
            return
        old.retired = True
        self.child = None
        self.lose(exited=False)

    def lose(self, *, exited: bool) -> None:
        """No process knows of the session any more."""
        for resource in list(self.resources.values()):
            question, resource.question = resource.question, None
            resource.on = False
            resource.missed = bool(resource.holders)
            asks = [] if question is None else question.asks
            if exited:
                for ask in asks:
                    self.refuse(ask, -31001, "server_exited", True)
            else:
                resource.later[:0] = [(ask, self.now) for ask in asks]
            if not resource.holders and not resource.later:
                del self.resources[resource.uri]
        question, self.level_question = self.level_question, None
        self.told = self.asked_level = None
        for ask in [] if question is None else question.asks:
            if exited:
                self.refuse(ask, -31001, "server_exited", True)
            else:
                self.level_later.insert(0, (ask, self.now))
        for client in self.clients.values():
            client.missed = client.session

    def child_closed(self, key: int) -> None:
        child = self.children.pop(key)
        for entry in child.sent.values():
            if isinstance(entry, Ask):
                self.refuse(entry, -31001, "server_exited", True)
        if child is self.child:
            self.child = None
            self.down_since = self.now
            self.lose(exited=True)

    def asks_client(self, key: int, message: Json) -> None:
        """A request of the server's: no client hears of it."""
        child = self.children[key]
        if message["method"] == "ping":
            self.tell(child, result(message["id"]))
        else:
            self.tell(child, refusal(-32601, "not_shared", id=message["id"]))

    def notifies(self, key: int, message: Json) -> None:
        child = self.children[key]
        method, params = message["method"], message["params"]
        if method == "notifications/progress":
            self.progress(child, params["progressToken"], message)
            return
        if child is not self.child and (method != "notifications/message" or not child.retired):
            return
        meta = params.get("_meta", {})
        if method == "notifications/tasks/status" or RELATED in meta:
            name = params["taskId"] if method == "notifications/tasks/status" else meta[RELATED]["taskId"]
            owner = self.owner(child, name)
            if method == "notifications/tasks/status":
                self.note(child, name, params["status"])
            if owner is not None and (method != "notifications/message" or admits(owner, params)):
                self.say(owner, message)
            return
        for client in self.clients.values():
            if method == "notifications/resources/updated":
                due = any(
                    part_of(params["uri"], r.uri) for r in self.resources.values() if client in r.holders
                )
            elif method == "notifications/message":
                due = admits(client, params)
            else:
                due = client.initialized and method.endswith("list_changed")
            if due:
                self.say(client, message)

    def progress(self, child: Child, up: object, message: Json) -> None:
        entry = child.sent.get(up) if type(up) is int else None
        task = child.tokens.get(up) if type(up) is int else None
        if isinstance(entry, Ask):
            client, token = entry.client, entry.message["params"].get("_meta", {}).get("progressToken")
        elif task is not None:
            client, token = task.client, task.token
        else:
            return
        if token is not None:
            self.say(client, {**message, "params": {**message["params"], "progressToken": token}})

    # -- time

    def tick(self) -> None:
        oldest = self.now - RESTART_WAIT
        there = any(not child.new and not child.retired for child in self.children.values())
        if there or self.down_since > oldest:
            return
        for client in list(self.turns):
            while client.waiting and client.waiting[0][1] <= oldest:
                message = client.waiting.pop(0)[0]
                self.refuse(Ask(client, message["id"], message), -31002, "server_unavailable")
            if not client.waiting:
                self.turns.remove(client)
        for resource in list(self.resources.values()):
            resource.later = self.expired(resource.later, oldest)
            if not resource.later and not resource.holders:
                del self.resources[resource.uri]
        self.level_later = self.expired(self.level_later, oldest)

    def expired(self, later: list[tuple[Ask, float]], oldest: float) -> list[tuple[Ask, float]]:
        for ask, at in later:
            if at <= oldest:
                self.refuse(ask, -31002, "server_unavailable")
        return [(ask, at) for ask, at in later if at > oldest]


CAPABLE: Final[Json] = {
    "tools": {"listChanged": True},
    "prompts": {},
    "resources": {"subscribe": True, "listChanged": True},
    "logging": {},
    "tasks": {"list": {}, "cancel": {}},
}


def wants(ask: Ask) -> bool:
    return bool(ask.message["method"] == "resources/subscribe")


def admits(client: Client, params: Json) -> bool:
    return client.level is not None and LEVELS.index(params["level"]) >= client.level
