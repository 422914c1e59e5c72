"""Random clients of one shared legacy session, compared with a model (section 7, `--sharing shared`).

Every event is put to the model and to two routers, one of which gets each line by itself and cut: what they
write must be the same, to everybody and in order. So subscriptions are counted and carried out one after the
other, levels are summed up, tasks are their makers', and all of it is told to the next process before any
request; nothing is told to whom it is not due, and nothing is withheld.

`BRIDGE_MODEL_EXAMPLES=20000 pytest --timeout 0 tests/property/test_sessions_model.py` runs it long, on other
examples each time.
"""

from __future__ import annotations

import os
from typing import Any, Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from bridge.core.era import Era
from bridge.core.outbox import Key, Output
from bridge.core.router import Router
from bridge.core.tables import Limits, NoticeKind
from tests.property.sessions_model import (
    CAPABLE,
    LEVELS,
    RELATED,
    RESTART_WAIT,
    Ask,
    Model,
    Question,
)
from tests.unit.core.scenario import (
    INITIALIZED,
    VERSION,
    Item,
    Json,
    cancelled,
    greeting,
    legacy,
    line,
    notification,
    parse,
    progress,
)
from tests.unit.core.scenario import initialize as initialize_line

EXAMPLES: Final = os.environ.get("BRIDGE_MODEL_EXAMPLES")

URIS: Final = ("a", "a/b", "a/", "c")
UPDATED: Final = (*URIS, "a/b/c", "ab", "d")
TASKS: Final = tuple(f"t{n}" for n in range(6))
ROOM: Final = 1 << 30

number = st.integers(0, 31)
chance = st.integers(0, 15)


def pick(items: Any, n: int) -> Any:
    items = list(items)
    return items[n % len(items)]


def said(item: Item) -> Item:
    """A message as its sender meant it: the text of an error of the bridge's own says nothing new."""
    if isinstance(item, dict) and (item.get("error") or {}).get("data", {}).get("source") == "mcp-bridge":
        return {**item, "error": {**item["error"], "message": ""}}
    return item


class TheSession(RuleBasedStateMachine):
    """Two routers, a model, and what can happen to them."""

    @initialize(clients=st.integers(1, 3))
    def begin(self, clients: int) -> None:
        limits = Limits(restart_wait=RESTART_WAIT, era=Era.LEGACY)
        self.fine = Router(limits, salt=b"one salt of many", version=VERSION)
        self.coarse = Router(limits, salt=b"another salt ...", version=VERSION)
        self.now = 1000.0
        self.model = Model(self.now)
        self.last_key = 0
        self.last_ids: dict[int, int] = {}
        """Of each client: all use the same ones."""
        self.seats: dict[int, int] = {}
        """Of each process that runs."""
        self.stopped: set[int] = set()
        self.fine_so_far = True
        self.open_child(0)
        self.child_is_greeted(0)
        for _ in range(clients):
            self.connect()

    def new_key(self) -> int:
        self.last_key += 1
        return self.last_key

    # -- comparing

    def event(self, name: str, *args: Any, **more: Any) -> None:
        fine = getattr(self.fine, name)(*args, **more)
        coarse = getattr(self.coarse, name)(*args, **more)
        self.judge(fine or [], coarse or [])

    def lines(self, name: str, key: int, data: list[bytes], cut: int) -> None:
        fine: list[Output] = []
        for one in data:
            at = min(cut, len(one) - 1)
            for piece in (one[:at], one[at:]):
                if piece:
                    fine += getattr(self.fine, name)(Key(key), piece, self.now)
        coarse = getattr(self.coarse, name)(Key(key), b"".join(data), self.now)
        self.judge(fine, coarse)

    def judge(self, fine: list[Output], coarse: list[Output]) -> None:
        self.fine_so_far = False
        wanted = {key: [said(item) for item in items] for key, items in self.model.out.items()}
        self.model.out = {}
        for outputs in (fine, coarse):
            found: dict[int, list[Item]] = {}
            for key, data in outputs:
                assert isinstance(data, bytes)
                assert data
                found.setdefault(key, []).extend(said(parse(text)) for text in data.splitlines())
            assert found == wanted
        notices = self.fine.take_notices()
        assert [(n.kind, n.seat) for n in self.coarse.take_notices()] == [(n.kind, n.seat) for n in notices]
        sizes = self.fine.table_sizes()
        assert sizes == self.coarse.table_sizes()
        assert sizes["resource_holders"] == sum(len(r.holders) for r in self.model.resources.values())
        assert sizes["tasks"] == sum(len(child.tasks) for child in self.model.children.values())
        self.fine_so_far = True
        for notice in notices:
            if notice.kind is NoticeKind.READY:
                self.make_room(notice.key)
            elif notice.kind is NoticeKind.RETIRE_CHILD:
                self.stopped.add(notice.key)

    def make_room(self, key: int) -> None:
        self.model.pump()
        fine, more = self.fine.server_writable(Key(key), ROOM, self.now)
        coarse, _ = self.coarse.server_writable(Key(key), ROOM, self.now)
        assert not more
        self.judge(fine, coarse)

    # -- clients

    def connect(self) -> None:
        """Most begin as they should."""
        key = self.new_key()
        for router in (self.fine, self.coarse):
            router.client_opened(Key(key))
        self.model.opened(key)
        if key % 4:
            self.send(key, [initialize_line("i"), INITIALIZED], 1000)

    def send(self, key: int, messages: list[Json], cut: int) -> None:
        for message in messages:
            self.model.message(key, message)
        self.lines("client_data", key, list(map(line, messages)), cut)

    def new(self, key: int, kind: int, n: int) -> Json:
        """A message of a client. No id comes twice on one connection."""
        last = self.last_ids[key] = self.last_ids.get(key, 0) + 1
        id = f"r{last}"
        meta: Json = {"_meta": {"progressToken": f"p{n}"}} if n & 8 else {}
        if kind == 0:
            return pick((INITIALIZED, initialize_line(id), legacy(id, "ping")), n)  # type: ignore[no-any-return]  # of messages
        if kind == 1:
            return cancelled(f"r{max(0, last - 1 - n % 12)}")
        if kind <= 5:
            return legacy(id, "resources/subscribe", uri=pick(URIS, n))
        if kind <= 7:
            return legacy(id, "resources/unsubscribe", uri=pick(URIS, n))
        if kind <= 9:
            return legacy(id, "logging/setLevel", level=pick(LEVELS, n))
        if kind <= 11:
            return legacy(id, "tools/call", task={}, **meta)
        if kind == 12:
            return legacy(id, "tasks/list", cursor=str(n), **meta)
        if kind == 13:
            method = pick(("tasks/get", "tasks/result", "tasks/cancel"), n)
            return legacy(id, method, taskId=pick(TASKS, n // 3), **meta)
        return legacy(id, "x", **meta)

    @precondition(lambda self: self.model.clients)
    @rule(
        who=number,
        what=st.lists(st.tuples(chance, number), min_size=1, max_size=5),
        cut=st.integers(0, 150),
    )
    def client_writes(self, who: int, what: list[tuple[int, int]], cut: int) -> None:
        key = pick(self.model.clients, who)
        self.send(key, [self.new(key, kind, n) for kind, n in what], cut)

    def client_is_gone(self, n: int) -> None:
        if self.model.clients:
            self.leave(pick(self.model.clients, n))

    def leave(self, key: int) -> None:
        self.model.gone(key)
        self.event("client_closed", Key(key), self.now)

    # -- servers

    def open_child(self, seat: int, new: bool = False) -> int:
        key = self.new_key()
        self.seats[key] = seat
        self.model.child_opened(key, new)
        self.event("server_opened", Key(key), self.now, seat)
        return key

    def child_is_greeted(self, n: int) -> None:
        """A process that was asked for its session has one."""
        asked = [
            (key, up)
            for key, child in self.model.children.items()
            for up, entry in child.sent.items()
            if entry == "initialize"
        ]
        if asked:
            key, up = pick(asked, n)
            answer = greeting(up, capabilities=CAPABLE)
            self.model.answered(key, up, {"result": answer["result"]})
            self.lines("server_data", key, [line(answer)], 1000)

    @precondition(lambda self: not self.model.child)
    @rule(n=number)
    def child_comes_back(self, n: int) -> None:
        if not any(not child.retired for child in self.model.children.values()):
            self.open_child(self.fine.seats[0])
        if n % 4:
            self.child_is_greeted(n)

    def answerable(self) -> list[tuple[int, int]]:
        return [
            (key, up)
            for key, child in self.model.children.items()
            for up, entry in child.sent.items()
            if entry != "initialize"
        ]

    @precondition(lambda self: self.answerable())
    @rule(who=number, what=st.lists(st.tuples(number, number), min_size=1, max_size=4))
    def child_answers(self, who: int, what: list[tuple[int, int]]) -> None:
        key = pick([key for key, _ in self.answerable()], who)
        data = []
        for which, n in what:
            ups = [up for other, up in self.answerable() if other == key]
            if not ups:
                break
            up = pick(ups, which)
            body = self.body(self.model.children[key].sent[up], n)
            self.model.answered(key, up, body)
            data.append(
                line({"jsonrpc": "2.0", "id": up, **body})
                if body
                else b'{"jsonrpc":"2.0","id":%d,"result":?}\n' % up
            )
        self.lines("server_data", key, data, 1000)

    @precondition(lambda self: self.model.child and self.model.clients)
    @rule(kind=st.sampled_from((2, 2, 8, 10)), n=number)
    def clients_hold_the_same(self, kind: int, n: int) -> None:
        """Everybody asks for much the same, and has it: only then there is anything to count."""
        for key in list(self.model.clients):
            self.send(key, [self.new(key, kind, n if kind == 2 else n + key)], 1000)
        for _ in range(20):
            if not self.answerable():
                return
            key, up = self.answerable()[0]
            body = self.body(self.model.children[key].sent[up], 1 + n % 24)
            self.model.answered(key, up, body)
            self.lines("server_data", key, [line({"jsonrpc": "2.0", "id": up, **body})], 1000)

    @staticmethod
    def body(entry: Any, n: int) -> Json:
        """What a server may answer; empty: what nobody can read."""
        if n == 31:
            return {}
        if n > 26:
            return {"error": {"code": -32602, "message": "no"}}
        if isinstance(entry, Ask) and entry.message["method"] == "tasks/list":
            listed = [{"taskId": name, "status": "working"} for name in TASKS[n % 3 :]]
            return {"result": {"tasks": listed, "nextCursor": str(n)}}
        if isinstance(entry, Ask) and entry.message["method"].startswith("tasks/"):
            name = entry.message["params"]["taskId"]
            return {"result": {"taskId": name, "status": pick(("working", "completed"), n)}}
        if isinstance(entry, Ask) and "task" in entry.message["params"] and n % 4:
            return {
                "result": {"task": {"taskId": pick(TASKS, n), "status": pick(("working", "failed"), n // 6)}}
            }
        return {"result": {} if isinstance(entry, Question) else {"n": n}}

    @precondition(lambda self: self.model.children)
    @rule(
        who=number,
        what=st.lists(st.tuples(chance, number, number), min_size=1, max_size=4),
        cut=st.integers(0, 150),
    )
    def child_says(self, who: int, what: list[tuple[int, int, int]], cut: int) -> None:
        """Anything: what is due goes to whom it is due, and nobody else hears of it."""
        key = pick(self.model.children, who)
        child = self.model.children[key]
        if not child.ready:
            return
        data = []
        for kind, n, m in what:
            if kind == 0:
                asks = legacy(n, pick(("ping", "roots/list", "sampling/createMessage"), m))
                self.model.asks_client(key, asks)
                data.append(line(asks))
                continue
            ups = [up for other, up in self.answerable() if other == key]
            if kind >= 12 and ups:  # between what is told to many, something for one
                up = pick(ups, n)
                body = self.body(child.sent[up], m % 24)
                self.model.answered(key, up, body)
                data.append(line({"jsonrpc": "2.0", "id": up, **body}))
                continue
            about: Json = {"_meta": {RELATED: {"taskId": pick(TASKS, m)}}}
            tokens = [*child.sent, *child.tokens, 99]
            message = pick(
                (
                    notification("notifications/resources/updated", uri=pick(UPDATED, n)),
                    notification("notifications/resources/updated", uri=pick(UPDATED, n)),
                    notification("notifications/message", level=pick(LEVELS, n), data=m),
                    notification("notifications/message", level=pick(LEVELS, n), data=m, **about),
                    notification(
                        "notifications/tasks/status",
                        taskId=pick(TASKS, m),
                        status=pick(("working", "completed"), n),
                    ),
                    notification(
                        pick(("notifications/tools/list_changed", "notifications/elicitation/complete"), n)
                    ),
                    notification("notifications/elicitation/complete", **about),
                    progress(pick(tokens, n)),
                ),
                kind,
            )
            self.model.notifies(key, message)
            data.append(line(message))
        self.lines("server_data", key, data, cut)

    def child_ends(self, n: int) -> None:
        if self.model.children:
            self.end(pick(self.model.children, n))

    def end(self, key: int) -> None:
        self.model.child_closed(key)
        del self.seats[key]
        self.event("server_closed", Key(key), self.now)

    @precondition(lambda self: self.stopped & self.seats.keys())
    @rule()
    def child_is_stopped(self) -> None:
        self.end(min(self.stopped & self.seats.keys()))

    @precondition(lambda self: self.model.child)
    @rule(how=chance)
    def server_is_replaced(self, how: int) -> None:
        """At once: what the old process was asked by clients it still answers."""
        if how > 3 or len(self.model.children) > 3:
            return
        before = set(self.fine.seats)
        self.event("replace_servers", self.now)
        [seat] = [seat for seat in range(max(before) + 1, max(before) + 3) if self.fine.is_new(seat)][:1]
        self.open_child(seat, new=True)
        self.child_is_greeted(0)

    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.model.now = self.now
        self.model.tick()
        self.event("tick", self.now)

    @rule(what=chance, n=number)
    def seldom(self, what: int, n: int) -> None:
        if what <= 3:
            if len(self.model.clients) < 4:
                self.connect()
        elif what <= 6:
            self.time_passes(pick((0.1, 10, RESTART_WAIT), n))
        elif what <= 9:
            self.client_is_gone(n)
        elif what == 10:
            self.child_ends(n)

    def teardown(self) -> None:
        if not hasattr(self, "fine_so_far") or not self.fine_so_far:
            return
        for key in list(self.model.clients):
            self.leave(key)
        sizes = self.fine.table_sizes()
        assert not any(sizes.values()), sizes


TheSession.TestCase.settings = settings(
    max_examples=int(EXAMPLES) if EXAMPLES else 70,
    stateful_step_count=60 if EXAMPLES else 40,
    deadline=None,
    derandomize=not EXAMPLES,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
    database=None,
)

TestTheSession = TheSession.TestCase
