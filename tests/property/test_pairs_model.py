"""Random isolated clients and their processes, compared with a model (section 7, `--sharing isolated`).

Every event is put to the model and to two cores, one of which gets each line by itself and cut: what they
write, and to whom, must be the same. A client and its process talk as if nothing were between them: ids,
tokens, requests both ways and their answers. Nothing of one pair ever reaches another.

`BRIDGE_MODEL_EXAMPLES=20000 pytest --timeout 0 tests/property/test_pairs_model.py` runs it long, on other
examples each time.
"""

from __future__ import annotations

import os
from typing import Any, Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from bridge.core.isolated import Isolated
from bridge.core.outbox import Control, Key, Output
from bridge.core.tables import Limits, NoticeKind
from tests.property.pairs_model import (
    BAD_LINES,
    LINGER,
    LISTENS,
    LISTENS_ALL,
    PAUSED,
    QUEUE,
    RESTART_WAIT,
    WINDOW,
    Client,
    Model,
)
from tests.unit.core.scenario import (
    CLOSE,
    Item,
    Json,
    cancelled,
    legacy,
    line,
    listen,
    notification,
    parse,
    progress,
    request,
    result,
)
from tests.unit.core.scenario import initialize as initialize_line

EXAMPLES: Final = os.environ.get("BRIDGE_MODEL_EXAMPLES")

IDS: Final = (1, "1", 0, "", -7, 'a"\\é', 2**60)
ROOM: Final = 1 << 30
LINE: Final = 20
"""Less than any line that waits has bytes."""

number = st.integers(0, 31)
chance = st.integers(0, 11)


def pick(items: Any, n: int) -> Any:
    items = list(items)
    return items[n % len(items)]


def said(item: Item) -> Item:
    """A message as the core's lines say it: the text of an error of the bridge's own says nothing new."""
    if isinstance(item, dict) and (item.get("error") or {}).get("data", {}).get("source") == "mcp-bridge":
        return {**item, "error": {**item["error"], "message": ""}}
    return item


class ThePairs(RuleBasedStateMachine):
    """Two cores, a model, and what can happen to them."""

    @initialize(clients=st.integers(1, 3), timeout=st.sampled_from((None, None, 7.0)))
    def begin(self, clients: int, timeout: float | None) -> None:
        limits = Limits(
            max_in_flight=WINDOW,
            max_queued=QUEUE,
            max_subscriptions=LISTENS,
            max_subscriptions_all=LISTENS_ALL,
            paused_lines=PAUSED,
            bad_lines=BAD_LINES,
            restart_wait=RESTART_WAIT,
            linger=LINGER,
            request_timeout=timeout,
        )
        self.fine = Isolated(limits, salt=b"one salt of many")
        self.coarse = Isolated(limits, salt=b"another salt ...")
        self.now = 1000.0
        self.model = Model(timeout, self.now)
        self.last_key = 0
        self.marker = 0
        self.wanted: list[int] = []
        self.processes: dict[int, int] = {}
        """The client of each process that runs."""
        self.stopped: set[int] = set()
        self.fine_so_far = True
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
        wanted, self.model.out = self.model.out, {}
        for outputs in (fine, coarse):
            assert self.items(outputs, controls=False) == {
                key: kept
                for key, items in wanted.items()
                if (kept := [said(item) for item in items if not isinstance(item, Control)])
            }
        assert self.items(fine, controls=True) == {
            key: [item for item in items if isinstance(item, Control)]
            for key, items in wanted.items()
            if any(isinstance(item, Control) for item in items)
        }
        notices = self.fine.take_notices()
        assert self.coarse.take_notices() == notices
        needs = [notice.key for notice in notices if notice.kind is NoticeKind.NEED_CHILD]
        stops = [notice.key for notice in notices if notice.kind is NoticeKind.RETIRE_CHILD]
        assert (needs, stops) == (self.model.needs, self.model.stops)
        self.wanted += self.model.needs
        self.stopped |= set(self.model.stops)
        self.model.needs, self.model.stops = [], []
        assert self.fine.table_sizes() == self.coarse.table_sizes() == self.sizes()
        self.fine_so_far = True

    def sizes(self) -> dict[str, int]:
        clients = self.model.clients.values()
        return {
            "clients": len(clients),
            "children": len(self.model.children),
            "holders": self.model.listens,
            "in_flight": sum(len(client.at_child()) for client in clients),
            "questions": sum(len(client.questions) for client in clients),
            "queued": sum(len(client.queue) for client in clients),
        }

    @staticmethod
    def items(outputs: list[Output], controls: bool) -> dict[int, list[Item]]:
        found: dict[int, list[Item]] = {}
        for key, data in outputs:
            if isinstance(data, Control):
                if controls:
                    found.setdefault(key, []).append(data)
            elif not controls:
                items = [CLOSE] if data == CLOSE else [said(parse(text)) for text in data.splitlines()]
                found.setdefault(key, []).extend(items)
        return found

    # -- clients

    def connect(self) -> None:
        key = self.new_key()
        for core in (self.fine, self.coarse):
            core.client_opened(Key(key))
        self.model.clients[key] = Client(key)

    def senders(self) -> list[int]:
        return [
            key
            for key, client in self.model.clients.items()
            if client.eof_at is None and not client.paused and not client.closed
        ]

    def new(self, key: int, kind: int, n: int) -> Json:
        """A message of a client."""
        self.marker += 1
        id = pick(IDS, n)
        client = self.model.clients[key]
        meta: Json = {"progressToken": id} if n & 8 else {}
        if kind == 0:
            return notification(pick(("x", "notifications/progress"), n), progressToken=1, marker=self.marker)
        if kind == 1:
            if client.asks and n % 4:
                id = pick(client.at_child(), n).id
            return cancelled(id, marker=self.marker)
        if kind == 2:
            return initialize_line(id)
        if kind <= 5:  # an answer, mostly to something that was asked
            id = pick(client.questions.values(), n) if client.questions and kind < 5 else id
            return result(id, {"marker": self.marker})
        if kind == 6:
            return listen(id, toolsListChanged=True)
        if kind == 7:
            return request(id, "server/discover", marker=self.marker)
        if kind == 8:
            return request(id, "x", meta=meta, marker=self.marker)
        return legacy(
            id, pick(("x", "ping", "resources/subscribe", "tasks/get"), n), marker=self.marker, _meta=meta
        )

    @precondition(lambda self: self.senders())
    @rule(
        who=number, what=st.lists(st.tuples(chance, number), min_size=1, max_size=5), cut=st.integers(0, 200)
    )
    def client_writes(self, who: int, what: list[tuple[int, int]], cut: int) -> None:
        key = pick(self.senders(), who)
        data = []
        for kind, n in what:
            if key not in self.model.clients:
                break
            if kind == 11 and n > 24:
                data.append(b"junk\n")
                self.model.junk(key)
                continue
            message = self.new(key, kind, n)
            data.append(line(message))
            self.model.message(key, message)
        self.lines("client_data", key, data, cut)

    @precondition(lambda self: any(client.questions for client in self.model.clients.values()))
    @rule(who=number, n=number)
    def client_answers(self, who: int, n: int) -> None:
        askers = [k for k in self.senders() if self.model.clients[k].questions]
        if askers:
            key = pick(askers, who)
            message = self.new(key, 3, n)
            self.model.message(key, message)
            self.lines("client_data", key, [line(message)], 1000)

    def client_stops_sending(self, n: int) -> None:
        if self.senders():
            key = pick(self.senders(), n)
            self.model.eof(key)
            self.event("client_eof", Key(key), self.now)

    def client_is_gone(self, n: int) -> None:
        if self.model.clients:
            self.leave(pick(self.model.clients, n))

    def leave(self, key: int) -> None:
        self.model.gone(key)
        self.event("client_closed", Key(key), self.now)

    # -- processes

    @precondition(lambda self: self.wanted)
    @rule(n=number, how=chance)
    def child_starts(self, n: int, how: int) -> None:
        client = self.wanted.pop(n % len(self.wanted))
        if how <= 1:
            self.model.failed(client, how == 0)
            self.event("server_failed", Key(client), self.now, full=how == 0)
            return
        key = self.new_key()
        there = client in self.model.clients and self.model.clients[client].child is None
        self.model.started(key, client)
        if there:
            self.processes[key] = client
        self.event("server_opened", Key(key), Key(client), self.now)

    def server_message(self, key: int, kind: int, n: int) -> Json:
        """Anything a process may say."""
        self.marker += 1
        client = self.model.children[key]
        id = pick(IDS, n)
        if kind <= 3 and client.asks:
            id = pick(client.at_child(), n).id
        if kind == 0:
            return progress(id, marker=self.marker)
        if kind == 1:
            return {"jsonrpc": "2.0", "id": id, "error": {"code": -1, "message": "no"}}
        if kind == 2 and n > 24:
            return {"jsonrpc": "2.0", "id": id, "result": {}, "error": {"code": -1, "message": "no"}}
        if kind <= 4:
            return result(id, {"marker": self.marker})
        if kind <= 7:
            method = pick(("sampling/createMessage", "elicitation/create", "roots/list", "ping"), n)
            return legacy(id, method, marker=self.marker, _meta={"progressToken": id})
        if kind == 8:
            return cancelled(id, marker=self.marker)
        return notification(
            pick(("notifications/message", "notifications/tools/list_changed", "y"), n), x=self.marker
        )

    @precondition(lambda self: self.processes)
    @rule(
        who=number, what=st.lists(st.tuples(chance, number), min_size=1, max_size=4), cut=st.integers(0, 200)
    )
    def child_writes(self, who: int, what: list[tuple[int, int]], cut: int) -> None:
        key = pick(self.processes, who)
        data = []
        for kind, n in what:
            if kind == 11 and n > 16:
                id = pick(IDS, n)
                head = line({"jsonrpc": "2.0", "id": id})[:-2]
                data.append(head + b',"result":?}\n')
                self.model.damaged(key, id)
                continue
            message = self.server_message(key, kind, n)
            data.append(line(message))
            self.model.says(key, message)
        self.lines("server_data", key, data, cut)

    @precondition(lambda self: any(client.asks for client in self.model.children.values()))
    @rule(who=number, n=number)
    def child_answers(self, who: int, n: int) -> None:
        """As it should: otherwise little would ever end well."""
        key = pick([k for k, client in self.model.children.items() if client.asks], who)
        message = result(pick(self.model.children[key].at_child(), n).id, {"n": n})
        self.model.says(key, message)
        self.lines("server_data", key, [line(message)], 1000)

    @precondition(lambda self: self.processes)
    @rule(who=number)
    def stdin_is_blocked(self, who: int) -> None:
        key = pick(self.processes, who)
        self.model.blocked(key)
        for core in (self.fine, self.coarse):
            core.server_blocked(Key(key))

    @precondition(lambda self: self.processes)
    @rule(who=number, much=st.booleans())
    def stdin_takes_more(self, who: int, much: bool) -> None:
        key = pick(self.processes, who)
        more = self.model.writable(key, float("inf") if much else 1)
        room = ROOM if much else LINE
        fine, fine_more = self.fine.server_writable(Key(key), room, self.now)
        coarse, coarse_more = self.coarse.server_writable(Key(key), room, self.now)
        assert fine_more == coarse_more == more
        self.judge(fine, coarse)

    def child_ends(self, n: int, how: int) -> None:
        if self.processes:
            self.end(pick(self.processes, n), how % 2 == 0, how >= 6, n)

    def end(self, key: int, exited: bool, words: bool = False, n: int = 0) -> None:
        message = None
        if words:
            message = self.server_message(key, 3, n)
            for core in (self.fine, self.coarse):
                assert core.server_data(Key(key), line(message)[:-1], self.now) == []
        self.model.died(key, exited, message)
        del self.processes[key]
        self.event("server_closed", Key(key), self.now, exited=exited)

    @precondition(lambda self: self.stopped & self.processes.keys())
    @rule(n=number)
    def child_is_stopped(self, n: int) -> None:
        """As it was asked to, after its last words."""
        self.end(pick(sorted(self.stopped & self.processes.keys()), n), False, n % 2 == 0, n)

    # -- time and the end

    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.model.now = self.now
        self.model.tick()
        self.event("tick", self.now)

    @rule(what=chance, n=number, how=chance)
    def seldom(self, what: int, n: int, how: int) -> None:
        if what <= 2:
            if len(self.model.clients) < 4 and not self.model.stopping:
                self.connect()
        elif what <= 4:
            self.time_passes(pick((0.1, 1, 7, RESTART_WAIT, LINGER), n))
        elif what <= 6:
            self.client_stops_sending(n)
        elif what <= 8:
            self.client_is_gone(n)
        elif what <= 10:
            self.child_ends(n, how)
        elif how == 11 and n > 24:
            self.model.drain()
            self.event("drain", self.now)

    def teardown(self) -> None:
        if not hasattr(self, "fine_so_far") or not self.fine_so_far:
            return
        if self.marker % 2:
            self.model.stop()
            self.event("stop", self.now)
        for key in list(self.model.clients):
            self.leave(key)
        for key in list(self.processes):
            self.end(key, True)
        assert not any(self.fine.table_sizes().values())
        assert self.fine.in_flight == 0
        assert not self.fine.needs_tick


ThePairs.TestCase.settings = settings(
    max_examples=int(EXAMPLES) if EXAMPLES else 70,
    stateful_step_count=60 if EXAMPLES else 40,
    deadline=None,
    derandomize=not EXAMPLES,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
    database=None,
)

TestThePairs = ThePairs.TestCase
