"""Random clients of both eras, and servers of either, of both and of none (sections 7 and 10).

Every event is put to two routers, one of which gets each line by itself and cut: what they write must be the
same. What is written is judged by what must hold whatever happens: a request has one outcome, at the client
that asked; a process is asked for its era once, and is sent nothing of the other; a session's requests come
behind its greeting; a process that was replaced, or is to replace another, is sent nothing new and tells
nobody anything; nobody waits for ever; nothing is left when all have gone. Of what clients of one session
hold (subscriptions, levels, tasks) nobody is told another's; the server is asked about one thing at a time,
and in the end it is in the state that they add up to.

`BRIDGE_MODEL_EXAMPLES=20000 pytest --timeout 0 tests/property/test_router_eras.py` runs it long, on other
examples each time.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from bridge.core.era import LEGACY_VERSIONS, Era
from bridge.core.levels import LEVELS
from bridge.core.outbox import Control, Key, Output
from bridge.core.router import Router
from bridge.core.seats import REMEMBERED_S
from bridge.core.tables import Limits, NoticeKind
from tests.unit.core.scenario import (
    CLOSE,
    INITIALIZED,
    PREFIX,
    Item,
    Json,
    cancelled,
    closing,
    discovered,
    greeting,
    legacy,
    line,
    listen,
    notification,
    parse,
    progress,
    request,
    result,
)
from tests.unit.core.scenario import initialize as client_initialize
from tests.unit.core.sessions import log, updated

EXAMPLES: Final = os.environ.get("BRIDGE_MODEL_EXAMPLES")

IDS: Final = (1, "1", 0, "")
REFUSALS: Final[tuple[Json, ...]] = (
    {"code": -32601, "message": "Method not found"},
    {"code": -32602, "message": "no"},
    {"code": -32022, "message": "no", "data": {"supported": ["2026-07-28"]}},
    {"code": -32022, "message": "no", "data": {"supported": ["2025-06-18"]}},
)
URIS: Final = ("a", "a/b", "c")
CAPABLE: Final[Json] = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True},
    "logging": {},
    "tasks": {"list": {}, "cancel": {}},
}
STATUS: Final = ("working", "failed")
QUESTIONS: Final = ("resources/subscribe", "resources/unsubscribe", "logging/setLevel", "tasks/cancel")
LIST_CHANGED: Final = notification("notifications/tools/list_changed")
RESTART_WAIT: Final = 30
PROBE: Final = 10
START: Final = 20
SWAP_DRAIN: Final = 15
ROOM: Final = 1 << 30

number = st.integers(0, 31)
chance = st.integers(0, 11)
wish = st.integers(0, 17)


def pick(items: Any, n: int) -> Any:
    """One of some things: small numbers are the oldest."""
    items = list(items)
    return items[n % len(items)]


class Process:
    """One server process, and what it was sent and said."""

    def __init__(self, key: Key, seat: int) -> None:
        self.key = key
        self.seat = seat
        self.sent: dict[int, Json] = {}
        """Requests it has not answered, by upstream id."""
        self.known: dict[int, Json] = {}
        """Requests it was ever sent."""
        self.given_up: set[int] = set()
        self.probes = 0
        self.initializes = 0
        self.discovered = False
        self.greeted: Json | None = None
        """What it said to `initialize`."""
        self.initialized = False
        self.modern = False
        """It was sent a modern client's request."""
        self.asked: list[object] = []
        """Ids of its own requests that were not answered."""
        self.stopped = False
        self.ready = False
        self.subscribed: set[str] = set()
        self.carried_out: dict[str, int] = {}
        """The last question about each URI ("": the level) that was answered."""
        self.level: str | None = None


class Peer:
    """One client, and what it has been told."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.open = True
        self.sending = True
        self.paused = False
        self.session = False
        self.initialized = False
        self.holds: set[str] = set()
        """URIs that it was told it has subscribed to."""
        self.unsure: set[str] = set()
        """URIs of which it does not know."""
        self.level: str | None = None
        self.unsure_of_level = False
        self.tasks: set[str] = set()
        self.asking: dict[str, Json] = {}
        """Its requests about these that were not answered, by id."""


class TheEras(RuleBasedStateMachine):
    """Two routers, and what can happen to them."""

    @initialize(era=st.sampled_from((None, None, None, Era.MODERN, Era.LEGACY)), clients=st.integers(0, 4))
    def begin(self, era: Era | None, clients: int) -> None:
        limits = Limits(
            max_in_flight=2,
            max_queued=4,
            restart_wait=RESTART_WAIT,
            probe_timeout=PROBE,
            start_timeout=START,
            swap_drain=SWAP_DRAIN,
            paused_lines=1,
            turn_bytes=1,
            era=era,
        )
        self.era = era
        self.fine = Router(limits, salt=b"one salt of many")
        self.coarse = Router(limits, salt=b"another salt ...")
        self.now = 1000.0
        self.last_key = 0
        self.processes: dict[int, Process] = {}
        """By seat."""
        self.wanted = {0}
        """Seats whose process the shell starts: it was asked to, or somebody waited at the last one's end."""
        self.late: set[int] = set()
        """Seats that are given up, and whose process may be on its way."""
        self.seats = self.fine.seats
        """As they were before the last event."""
        self.speaking: Process | None = None
        """Whose words are being judged."""
        self.peers: dict[Key, Peer] = {}
        self.used: set[int] = set()
        self.marker = 0
        self.asked: dict[int, tuple[Key, object, object]] = {}
        """By marker of a request: its client, id and token."""
        self.by_id: dict[tuple[Key, str], int] = {}
        """By client and id: how many requests were sent under it."""
        self.outcomes: dict[tuple[Key, str], int] = {}
        self.excused: set[tuple[Key, str]] = set()
        """Requests that were cancelled have an outcome or none."""
        self.listens: set[tuple[Key, str]] = set()
        """Requests that end with their connection, or with the bridge."""
        self.terms: tuple[object, object] | None = None
        """Version and capabilities that the legacy server told last."""
        self.updates: dict[Key, list[str]] = {}
        self.heard: set[Key] = set()
        self.tasks_made = 0
        self.refused_levels = False
        self.drained = False
        self.fine_so_far = True
        for _ in range(clients):
            self.connect()

    # -- to both, and back

    def event(self, name: str, *args: Any) -> None:
        """One event, the same for both routers."""
        fine = getattr(self.fine, name)(*args)
        coarse = getattr(self.coarse, name)(*args)
        self.judge(fine or [], coarse or [])

    def lines(self, name: str, key: Key, data: list[bytes], cut: int) -> None:
        """Lines of one read: each by itself, in two pieces; and all at once."""
        fine: list[Output] = []
        for one in data:
            at = min(cut, len(one) - 1)
            for piece in (one[:at], one[at:]):
                if piece:
                    fine += getattr(self.fine, name)(key, piece, self.now)
        coarse = getattr(self.coarse, name)(key, b"".join(data), self.now)
        self.speaking = next((process for process in self.processes.values() if process.key == key), None)
        self.judge(fine, coarse)

    def judge(self, fine: list[Output], coarse: list[Output]) -> None:
        """Compare what was written, look at it, and do what the shell is asked to do."""
        self.fine_so_far = False
        assert self.joined(fine) == self.joined(coarse)
        children = {process.key: process for process in self.processes.values()}
        sessions = [peer for peer in self.peers.values() if peer.session and peer.open and peer.sending]
        for key, data in fine:
            if key in children:
                continue
            peer = self.peers[key]
            assert peer.open
            if isinstance(data, Control):
                peer.paused = data is Control.PAUSE
            elif data == CLOSE:
                peer.open = False
            else:
                for text in data.splitlines():
                    self.client_got(peer, parse(text))
        for key, data in fine:
            if key in children:
                assert isinstance(data, bytes)
                for text in data.splitlines():
                    self.server_got(children[key], parse(text))
        notices = self.fine.take_notices()
        kinds = [(notice.kind, notice.seat) for notice in notices]
        assert kinds == [(notice.kind, notice.seat) for notice in self.coarse.take_notices()]
        assert self.fine.stats == self.coarse.stats
        assert self.fine.table_sizes() == self.coarse.table_sizes()
        for notice in notices:
            if notice.kind is NoticeKind.SUBSCRIPTION_LOST:
                for peer in self.peers.values():
                    if json.loads(notice.detail) in peer.holds:
                        peer.unsure.add(json.loads(notice.detail))
        for kind, seat in kinds:
            if kind is NoticeKind.NEED_CHILD:
                assert seat not in self.processes
                self.wanted.add(seat)
            elif kind in (NoticeKind.REPLACE_CHILD, NoticeKind.RETIRE_CHILD):
                assert not self.processes[seat].stopped
                self.processes[seat].stopped = True
            elif kind in (NoticeKind.SWAPPED, NoticeKind.SWAP_FAILED):
                given_up = {seat for seat in self.wanted if not self.counts(seat)}
                self.wanted -= given_up
                self.late |= given_up
        # A process that was asked for may be long in coming, but it must have been asked for. While a
        # replacement is on its way, that is the one; if it fails, the shell starts what is needed.
        for seat in self.fine.seats:
            if self.fine.needed(seat) and not self.drained and not self.fine.replacing:
                if (NoticeKind.SWAP_FAILED, 0) in kinds and seat not in self.processes:
                    self.wanted.add(seat)
                assert seat in self.processes or seat in self.wanted, f"nobody starts {seat}"
        self.speaking = None
        self.seats = self.fine.seats
        self.fine_so_far = True
        for kind, seat in kinds:
            if kind is NoticeKind.READY:
                self.processes[seat].ready = True
                self.legacy_is_ready(self.processes[seat], sessions)
                self.make_room(seat)

    def counts(self, seat: int) -> bool:
        """Whether a seat's process serves, is to serve, or is to replace another."""
        return seat in self.fine.seats or self.fine.is_new(seat)

    def legacy_is_ready(self, process: Process, sessions: list[Peer]) -> None:
        """Those who were greeted by another server must initialize again; the others go on."""
        if process.greeted is not None and process.initialized:
            said = process.greeted["result"]
            terms = (said["protocolVersion"], said["capabilities"])
            if self.terms is not None:
                assert {peer.open for peer in sessions} <= {terms == self.terms}
            self.terms = terms

    @staticmethod
    def joined(outputs: list[Output]) -> dict[Key, tuple[bytes, int, list[Control]]]:
        found: dict[Key, tuple[bytes, int, list[Control]]] = {}
        for key, data in outputs:
            written, closes, controls = found.get(key, (b"", 0, []))
            if isinstance(data, Control):
                found[key] = (written, closes, [*controls, data])
            else:
                found[key] = (written + data, closes + (data == CLOSE), controls)
        return found

    def server_got(self, process: Process, item: Item) -> None:
        """A process is sent what belongs to its era, in the right order, and nothing once it is to stop."""
        assert isinstance(item, dict)
        method, id = item.get("method"), item.get("id")
        params = item.get("params", {})
        if method is None:
            assert id in process.asked
            process.asked.remove(id)
        elif id is not None:
            assert isinstance(id, int)
            assert id not in self.used
            assert not process.stopped
            self.used.add(id)
            process.sent[id] = process.known[id] = item
            if "marker" in params:
                self.routed(
                    process, item, "_meta" in params and PREFIX + "protocolVersion" in params["_meta"]
                )
            elif method.startswith(("resources/", "logging/", "tasks/")):
                assert process.initialized
                self.asked_for_all(process, item)
            elif method == "server/discover":
                assert not process.initializes
                assert not process.discovered
                process.probes += 1
            else:
                assert method == "initialize"
                process.initializes += 1
                assert process.initializes == 1
        elif item == INITIALIZED:
            assert process.greeted
            assert not process.initialized
            process.initialized = True
        elif method == "notifications/cancelled":
            # Of the bridge's own questions about eras none is cancelled.
            known = process.known[params["requestId"]]
            assert "marker" in known["params"] or known["method"] in QUESTIONS
            process.given_up.add(params["requestId"])
        else:
            assert method == "x"

    def asked_for_all(self, process: Process, item: Json) -> None:
        """The bridge asks something on account of clients: about one thing at a time."""
        about = self.about(item)
        same = [
            other
            for id, other in process.sent.items()
            if id not in process.given_up and self.about(other) == about
        ]
        assert same == [item], same

    @staticmethod
    def about(item: Json) -> object:
        if item["method"].startswith("resources/"):
            return item["params"]["uri"]
        return item["method"] if item["method"] == "logging/setLevel" else item["id"]

    def routed(self, process: Process, item: Json, modern: bool) -> None:
        """A client's request has come to a process."""
        # (Two processes may be ready at the same tick, the old one first.)
        assert process.seat in (*self.seats, *self.fine.seats)
        client, _, token = self.asked[item["params"]["marker"]]
        if item["method"] == "tasks/get":
            assert item["params"]["taskId"] in self.peers[client].tasks
        sent = item["params"].get("_meta", {}).get("progressToken")
        assert sent == (None if token is None else item["id"])
        if modern:
            process.modern = True
            assert process.probes
        else:
            assert process.initialized
            assert self.peers[client].session
        assert not (process.modern and process.initialized)

    def client_got(self, peer: Peer, item: Json) -> None:
        """Nothing of another's, and no more outcomes than requests."""
        params = item.get("params", {})
        if item.get("method") == "notifications/progress":
            client, _, token = self.asked[params["marker"]]
            assert (client, token) == (peer.key, params["progressToken"])
            return
        if item == LIST_CHANGED:
            assert peer.session
            assert peer.initialized
            assert self.speaking is None or self.speaking.seat in self.fine.seats
            return
        if item.get("method") == "notifications/resources/updated":
            assert any(
                params["uri"] == uri or params["uri"].startswith(uri + "/")
                for uri in peer.holds | peer.unsure
            ), item
            peer_updates = self.updates.setdefault(peer.key, [])
            peer_updates.append(params["uri"])
            return
        if item.get("method") == "notifications/message":
            assert peer.level is not None or peer.unsure_of_level
            if not peer.unsure_of_level:
                assert LEVELS.index(params["level"]) >= LEVELS.index(peer.level or "")
            self.heard.add(peer.key)
            return
        if item.get("method") == "notifications/tasks/status":
            assert params["taskId"] in peer.tasks
            return
        assert "method" not in item, item
        if item["id"] in peer.asking:
            self.told_what_it_holds(peer, peer.asking.pop(item["id"]), item)
        name = (peer.key, json.dumps(item["id"]))
        self.outcomes[name] = self.outcomes.get(name, 0) + 1
        assert self.outcomes[name] <= self.by_id[name], name
        said = item.get("result", {})
        if "marker" in said:
            client, id, _ = self.asked.pop(said["marker"])
            assert client == peer.key
            assert json.dumps(id) == json.dumps(item["id"])
            if "task" in said:
                peer.tasks.add(said["task"]["taskId"])
            for task in said.get("tasks", []):
                assert task["taskId"] in peer.tasks
        elif "protocolVersion" in said:
            assert said["protocolVersion"] in LEGACY_VERSIONS
            peer.session = True
        elif "error" in item and item["error"].get("data", {}).get("reason") == "not_initialized":
            assert not peer.session

    def told_what_it_holds(self, peer: Peer, asked: Json, item: Json) -> None:
        """A request about a subscription or a level was answered."""
        if asked["method"] == "logging/setLevel":
            if "result" in item:
                peer.level = asked["params"]["level"]
                peer.unsure_of_level = any(
                    other["method"] == "logging/setLevel" for other in peer.asking.values()
                )
            elif item["error"].get("data", {}).get("source") != "mcp-bridge":
                peer.unsure_of_level = True
            return
        uri = asked["params"]["uri"]
        if "result" not in item:
            peer.unsure.add(uri)
        elif asked["method"] == "resources/subscribe":
            peer.holds.add(uri)
        else:
            peer.holds.discard(uri)
        later = [other for other in peer.asking.values() if other["params"].get("uri") == uri]
        if later:
            peer.unsure.add(uri)
        elif "result" in item:
            peer.unsure.discard(uri)

    # -- clients

    def connect(self) -> None:
        if len(self.peers) < 6 and not self.drained:
            self.last_key += 1
            key = Key(self.last_key)
            self.peers[key] = Peer(key)
            for router in (self.fine, self.coarse):
                router.client_opened(key)

    def senders(self) -> list[Peer]:
        return [peer for peer in self.peers.values() if peer.open and peer.sending and not peer.paused]

    def new(self, peer: Peer, kind: int, n: int) -> Json:
        """A message of a client."""
        self.marker += 1
        id = pick(IDS, n)
        if kind == 0:
            return notification("x")
        if kind == 1:
            self.excused.add((peer.key, json.dumps(id)))
            return cancelled(id)
        if kind == 2:
            peer.initialized = True
            return INITIALIZED
        name = (peer.key, json.dumps(id))
        self.by_id[name] = self.by_id.get(name, 0) + 1
        token = "t" if n & 8 else None
        meta: Json = {} if token is None else {"progressToken": token}
        if kind == 3:
            return legacy(id, "ping")
        if kind <= 5:
            return client_initialize(id, pick((*LEGACY_VERSIONS, "2026-07-28", 5), n))
        if kind in (6, 12, 13, 17):
            id = f"r{self.marker}"
            self.by_id[name] -= 1
            self.by_id[(peer.key, json.dumps(id))] = 1
            if kind == 6:
                asked = legacy(id, "logging/setLevel", level=pick(LEVELS, n))
                peer.unsure_of_level = True
            else:
                method = "resources/unsubscribe" if kind == 13 else "resources/subscribe"
                asked = legacy(id, method, uri=pick(URIS, n))
                peer.unsure.add(pick(URIS, n))
            peer.asking[id] = asked
            return asked
        self.asked[self.marker] = (peer.key, id, token)
        if kind <= 8:
            return legacy(id, "x", marker=self.marker, _meta=meta)
        if kind == 14:
            return legacy(id, "x", marker=self.marker, _meta=meta, task={})
        if kind == 15:
            return legacy(id, "tasks/get", taskId=f"t{n}", marker=self.marker, _meta=meta)
        if kind == 16:
            return legacy(id, "tasks/list", marker=self.marker, _meta=meta)
        if kind == 9:
            return request(id, "server/discover", meta=meta, marker=self.marker)
        if kind == 11:
            return request(id, "x", meta=meta, marker=self.marker)
        self.asked[self.marker] = (peer.key, id, None)
        self.listens.add(name)
        # With an unknown member it is not shared.
        message = listen(id, toolsListChanged=True)
        message["params"]["marker"] = self.marker
        return message

    @precondition(lambda self: self.senders())
    @rule(
        who=number,
        what=st.lists(st.tuples(wish, number), min_size=1, max_size=4),
        cut=st.integers(0, 200),
    )
    def client_writes(self, who: int, what: list[tuple[int, int]], cut: int) -> None:
        peer = pick(self.senders(), who)
        messages = [self.new(peer, kind, n) for kind, n in what]
        self.lines("client_data", peer.key, list(map(line, messages)), cut)

    @precondition(lambda self: self.senders())
    @rule(who=number, n=number)
    def client_opens_its_session(self, who: int, n: int) -> None:
        """As a legacy client does: the handshake, and a request behind it."""
        peer = pick(self.senders(), who)
        messages = [self.new(peer, 4, 4), self.new(peer, 2, 0), self.new(peer, 7, n)]
        self.lines("client_data", peer.key, list(map(line, messages)), 1000)

    @precondition(lambda self: self.senders())
    @rule(who=number, n=number)
    def client_probes(self, who: int, n: int) -> None:
        """As a modern client does."""
        peer = pick(self.senders(), who)
        messages = [self.new(peer, 9, n), self.new(peer, 11, n)]
        self.lines("client_data", peer.key, list(map(line, messages)), 1000)

    @precondition(lambda self: any(peer.session for peer in self.senders()))
    @rule(who=number, what=st.lists(st.tuples(st.sampled_from((6, 12, 12, 13, 17)), number), min_size=1))
    def client_shares(self, who: int, what: list[tuple[int, int]]) -> None:
        """As a client of a shared session does: subscriptions and levels."""
        peer = pick([peer for peer in self.senders() if peer.session], who)
        messages = [self.new(peer, kind, n) for kind, n in what[:3]]
        self.lines("client_data", peer.key, list(map(line, messages)), 1000)

    @precondition(lambda self: any(peer.asking for peer in self.senders()))
    @rule(who=number, n=number)
    def client_gives_up(self, who: int, n: int) -> None:
        """What it has asked for of the session: it never knows what came of it."""
        peer = pick([peer for peer in self.senders() if peer.asking], who)
        id = pick(peer.asking, n)
        del peer.asking[id]
        self.excused.add((peer.key, json.dumps(id)))
        self.lines("client_data", peer.key, [line(cancelled(id))], 1000)

    def client_stops_sending(self, n: int) -> None:
        if self.senders():
            peer = pick(self.senders(), n)
            peer.sending = False
            self.event("client_eof", peer.key, self.now)

    def client_is_gone(self, n: int) -> None:
        if self.peers:
            peer = pick(self.peers.values(), n)
            peer.open = False
            self.event("client_closed", peer.key, self.now)
            del self.peers[peer.key]

    # -- servers

    @precondition(lambda self: self.startable())
    @rule(n=number)
    def child_starts(self, n: int) -> None:
        seat = pick(self.startable(), n)
        self.wanted.discard(seat)
        self.last_key += 1
        process = self.processes[seat] = Process(Key(self.last_key), seat)
        self.event("server_opened", Key(self.last_key), self.now, seat)
        if seat in self.late:
            self.late.discard(seat)
            process.stopped = True

    def startable(self) -> list[int]:
        return [] if self.drained else sorted((self.wanted | self.late) - self.processes.keys())

    @precondition(lambda self: any(process.ready for process in self.processes.values()))
    @rule(n=number, how=chance)
    def replacement_goes_well(self, n: int, how: int) -> None:
        """At once; what is said on either side of it comes while both processes are there."""
        if how > 4 or self.drained:
            return
        if not self.trials():
            self.event("replace_servers", self.now)
        trials = self.trials()
        for seat in trials:
            if seat not in self.processes:
                self.child_starts(self.startable().index(seat))
        for seat in trials:
            process = self.processes.get(seat)
            if process is not None and process.sent and not process.ready:
                up = next(iter(process.sent))
                answer = self.server_line(process, 11, n, up) if how == 0 else self.good_answer(process, up)
                self.lines("server_data", process.key, [answer, line(LIST_CHANGED)], 1000)
        for process in list(self.processes.values()):
            data = [line(LIST_CHANGED), self.server_line(process, 4, n), self.server_line(process, n % 3, n)]
            self.lines("server_data", process.key, data, 1000)
        self.time_passes(pick((0.1, SWAP_DRAIN), n))
        if how % 2:
            for process in [process for process in self.processes.values() if process.stopped]:
                self.end(process, True)

    @rule(how=chance)
    def servers_are_replaced(self, how: int) -> None:
        """Twice in a row now and then: one more is remembered."""
        for _ in range((how <= 2) + (how == 0)):
            if not self.drained:
                self.event("replace_servers", self.now)

    def trials(self) -> list[int]:
        """Seats whose process is to replace another."""
        return sorted(seat for seat in self.wanted | self.processes.keys() if self.fine.is_new(seat))

    @precondition(lambda self: self.trials())
    @rule(n=number, how=chance)
    def replacement_goes_on(self, n: int, how: int) -> None:
        """It starts, and answers as it should; seldom it does not."""
        seat = pick(self.trials(), n)
        if seat not in self.processes:
            if how and not self.drained:
                self.child_starts(self.startable().index(seat))
            else:
                self.exhaust(seat)
        elif how == 0:
            self.end(self.processes[seat], n % 2 == 0)
        elif self.processes[seat].sent:
            process = self.processes[seat]
            self.lines(
                "server_data", process.key, [self.good_answer(process, next(iter(process.sent)))], 1000
            )

    @precondition(lambda self: self.processes)
    @rule(
        who=number,
        what=st.lists(st.tuples(chance, number), min_size=1, max_size=4),
        cut=st.integers(0, 200),
    )
    def child_writes(self, who: int, what: list[tuple[int, int]], cut: int) -> None:
        process = pick(self.processes.values(), who)
        data = [self.server_line(process, kind, n) for kind, n in what]
        self.lines("server_data", process.key, data, cut)

    @precondition(lambda self: any(process.sent for process in self.processes.values()))
    @rule(who=number, n=number)
    def child_answers(self, who: int, n: int) -> None:
        """As it should: otherwise little would ever end well."""
        process = pick([process for process in self.processes.values() if process.sent], who)
        self.lines("server_data", process.key, [self.good_answer(process, pick(process.sent, n))], 1000)

    def good_answer(self, process: Process, up: int) -> bytes:
        asked = process.sent.pop(up)
        method = asked["method"]
        if method == "initialize":
            process.greeted = greeting(up, capabilities=CAPABLE)
            return line(process.greeted)
        if method in QUESTIONS and "marker" not in asked["params"]:
            # Questions are carried out in the order in which they came, in whatever order they are answered:
            # one that was given up may be answered last.
            about = asked["params"].get("uri", "")
            if up > process.carried_out.get(about, 0):
                process.carried_out[about] = up
                if method == "logging/setLevel":
                    process.level = asked["params"]["level"]
                elif method == "resources/subscribe":
                    process.subscribed.add(about)
                elif method == "resources/unsubscribe":
                    process.subscribed.discard(about)
            return line(result(up))
        if method == "tasks/list":
            tasks = [{"taskId": f"t{number}"} for number in range(32)]
            return line(result(up, {"tasks": tasks, "marker": asked["params"]["marker"]}))
        if "task" in asked["params"]:
            self.tasks_made += 1
            task = {"taskId": f"t{self.tasks_made % 32}", "status": "working"}
            return line(result(up, {"task": task, "marker": asked["params"]["marker"]}))
        if "marker" in asked["params"]:
            if asked["method"] == "subscriptions/listen":
                return line(closing(up))
            return line(result(up, {"marker": asked["params"]["marker"]}))
        process.discovered = True
        return line(discovered(up))

    def questions(self) -> list[tuple[Process, int]]:
        """What the bridge itself has asked, and of whom."""
        return [
            (process, up)
            for process in self.processes.values()
            for up, asked in process.sent.items()
            if "marker" not in asked["params"]
        ]

    @precondition(lambda self: self.questions())
    @rule(who=number, kind=st.integers(6, 11), n=number)
    def child_settles(self, who: int, kind: int, n: int) -> None:
        """It answers the bridge's own question in one of many ways, and says what it likes behind it."""
        process, up = pick(self.questions(), who)
        data = [self.server_line(process, kind, n, up), line(LIST_CHANGED), self.server_line(process, 2, n)]
        self.lines("server_data", process.key, data, 1000)

    def server_line(self, process: Process, kind: int, n: int, up: int | None = None) -> bytes:
        """Anything a server may write. `up`: what it answers, if it answers anything."""
        if kind == 0:
            return b"noise\n"
        if kind == 1:
            said = (
                LIST_CHANGED,
                updated(pick(URIS, n // 4)),
                log(pick(LEVELS, n // 4)),
                notification(
                    "notifications/tasks/status", taskId=f"t{n}", status=pick(("working", "failed"), n)
                ),
            )
            return line(pick(said, n))
        if kind == 2:
            id = pick(("p", 7, -1), n)
            process.asked.append(id)
            return line(legacy(id, pick(("ping", "roots/list"), n)))
        if kind == 3 or not process.sent:
            return line(result(pick((999_999, "1", 1.5), n)))
        if up is None:
            up = pick(process.sent, n)
        params = process.sent[up]["params"]
        method = process.sent[up]["method"]
        if kind <= 5:
            return line(progress(up, marker=params.get("marker")))
        if kind <= 8:
            return self.good_answer(process, up)
        del process.sent[up]
        if method in QUESTIONS and "marker" not in params:
            self.refused_levels = True
        if kind == 9:
            return b'{"jsonrpc":"2.0","id":%d,"result":{"x":?}}\n' % up
        if method == "initialize" and kind == 11:
            process.greeted = greeting(up, pick(LEGACY_VERSIONS, n), pick(({}, CAPABLE), n))
            return line(process.greeted)
        fault = pick(REFUSALS, n)
        if method == "server/discover" and "marker" not in params:
            # One that lists modern versions is a modern server's.
            process.discovered = fault is REFUSALS[2] or self.era is Era.MODERN
        return line({"jsonrpc": "2.0", "id": up, "error": fault})

    def child_ends(self, n: int, how: int) -> None:
        if self.processes:
            process = pick(self.processes.values(), n)
            if how <= 2 and process.sent:
                words = self.good_answer(process, pick(process.sent, n))[:-1]
                for router in (self.fine, self.coarse):
                    assert router.server_data(process.key, words, self.now) == []
            self.end(process, how % 2 == 0)

    def end(self, process: Process, exited: bool) -> None:
        """A process is gone; the shell starts another if there is a reason to."""
        seat = process.seat
        before = dict(self.processes)
        self.wanted.add(seat)
        fine = self.fine.server_closed(process.key, self.now, exited=exited)
        coarse = self.coarse.server_closed(process.key, self.now, exited=exited)
        del self.processes[seat]
        self.judge(fine, coarse)
        assert before.keys() - self.processes.keys() == {seat}
        if not (self.fine.needed(seat) or seat == self.fine.seats[0]):
            self.wanted.discard(seat)

    @precondition(lambda self: self.processes)
    @rule(who=number)
    def stdin_is_blocked(self, who: int) -> None:
        process = pick(self.processes.values(), who)
        self.event("server_blocked", process.key)

    @precondition(lambda self: self.processes)
    @rule(who=number)
    def stdin_takes_more(self, who: int) -> None:
        self.make_room(pick(self.processes, who))

    def make_room(self, seat: int) -> None:
        key = self.processes[seat].key
        fine, fine_more = self.fine.server_writable(key, ROOM, self.now)
        coarse, coarse_more = self.coarse.server_writable(key, ROOM, self.now)
        assert fine_more is coarse_more is False
        self.judge(fine, coarse)

    # -- time and the end

    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.event("tick", self.now)

    @precondition(lambda self: self.processes)
    @rule(how=chance)
    def nothing_happens(self, how: int) -> None:
        """For so long that a probe has expired, or every refusal which is not for good is forgotten."""
        self.time_passes(PROBE)
        if how <= 5:
            self.time_passes(START)
            self.time_passes(REMEMBERED_S)

    @precondition(lambda self: any(process.ready for process in self.processes.values()))
    @rule(n=number, how=chance)
    def child_is_replaced(self, n: int, how: int) -> None:
        """One that served ends, and the next is there at once."""
        if how <= 5 and not self.drained:
            process = pick([process for process in self.processes.values() if process.ready], n)
            self.wanted.add(process.seat)
            self.end(process, how % 2 == 0)
            if process.seat in self.wanted:
                self.child_starts(self.startable().index(process.seat))

    @rule(what=chance, n=number, how=number)
    def seldom(self, what: int, n: int, how: int) -> None:
        """What ends much, and so must not happen all the time."""
        if what <= 2:
            self.connect()
        elif what <= 5:
            self.time_passes(pick((0.1, 1, 5, 10, 10, START, RESTART_WAIT), n))
        elif what == 6:
            self.client_stops_sending(n)
        elif what == 7:
            self.client_is_gone(n)
        elif what <= 9:
            self.child_ends(n, how % 6)
        elif what == 10:
            seats = sorted(self.wanted - self.processes.keys())
            if seats:
                self.exhaust(pick(seats, how))
        elif how == 31 and not self.drained:
            self.drain()

    def exhaust(self, seat: int) -> None:
        """It cannot be started; and it is started again only if it is needed."""
        self.wanted.discard(seat)
        self.event("server_exhausted", seat, self.now)
        assert not self.fine.needed(seat) or self.fine.replacing

    def drain(self) -> None:
        self.drained = True
        self.event("drain", self.now)

    def teardown(self) -> None:
        if not hasattr(self, "fine_so_far") or not self.fine_so_far:
            return
        if self.marker % 2:
            self.everything_goes_well()
        else:
            self.nobody_says_anything_any_more()
        assert self.unanswered() <= self.listens
        if not self.drained:
            self.drain()
        assert not self.unanswered()
        for peer in list(self.peers.values()):
            self.event("client_closed", peer.key, self.now)
        for router in (self.fine, self.coarse):
            assert not any(router.table_sizes().values()), router.table_sizes()
            assert router.buffered_all == router.in_flight == 0
        for _ in range(3):  # one more replacement may have been remembered
            for seat in self.trials():
                if seat in self.processes:
                    self.end(self.processes[seat], True)
                elif self.fine.is_new(seat):
                    self.exhaust(seat)
        for process in list(self.processes.values()):
            if process.seat not in self.fine.seats:
                self.end(process, True)
        self.time_passes(1000)
        assert not self.fine.needs_tick
        assert len(self.fine._tables._seats) == 2

    def unanswered(self) -> set[tuple[Key, str]]:
        """Requests of clients that are there which have had no outcome."""
        there = {peer.key for peer in self.peers.values() if peer.open}
        return {
            name
            for name, count in self.by_id.items()
            if name[0] in there and name not in self.excused and self.outcomes.get(name, 0) != count
        }

    def everything_goes_well(self) -> None:
        """Servers start and answer as they should: then nobody waits."""
        for _ in range(1000):
            for peer in [peer for peer in self.peers.values() if not peer.open]:
                self.event("client_closed", peer.key, self.now)
                del self.peers[peer.key]
            while self.startable():
                self.child_starts(0)
            for seat in list(self.processes):
                self.make_room(seat)
            stopped = [process for process in self.processes.values() if process.stopped]
            busy = [process for process in self.processes.values() if process.sent]
            if stopped:
                self.end(stopped[0], False)
            elif busy:
                up = next(iter(busy[0].sent))
                self.lines("server_data", busy[0].key, [self.good_answer(busy[0], up)], 1000)
            elif self.unanswered():
                self.time_passes(10)
            else:
                self.the_session_adds_up()
                return

    def the_session_adds_up(self) -> None:
        """Nothing is on its way: the server holds what its clients hold, and each hears of its own."""
        for process in self.processes.values():
            serves = process.seat in self.fine.seats and not process.stopped
            if not process.initialized or not process.ready or not serves or self.drained:
                continue
            peers = [peer for peer in self.peers.values() if peer.open and peer.session]
            for uri in URIS:
                sure = [peer for peer in peers if uri in peer.holds - peer.unsure]
                maybe = [peer for peer in peers if uri in peer.unsure]
                if sure or not maybe:
                    assert (uri in process.subscribed) is bool(sure), uri
                self.updates.clear()
                self.lines("server_data", process.key, [line(updated(uri))], 1000)
                for peer in sure:
                    assert uri in self.updates.get(peer.key, []), uri
            self.heard.clear()
            self.lines("server_data", process.key, [line(log("emergency"))], 1000)
            deaf = [peer for peer in peers if peer.level is not None and not peer.unsure_of_level]
            assert {peer.key for peer in deaf} <= self.heard
            levels = [LEVELS.index(peer.level or "") for peer in deaf]
            if levels and not any(peer.unsure_of_level for peer in peers) and not self.refused_levels:
                assert process.level == LEVELS[min(levels)]

    def nobody_says_anything_any_more(self) -> None:
        """Servers are silent, and then gone: everybody is told in the end."""
        while self.startable():
            self.child_starts(0)
        for _ in range(20):
            self.time_passes(10)
            for seat in list(self.processes):
                self.make_room(seat)
        for process in list(self.processes.values()):
            if not process.ready and not process.stopped:
                assert not self.fine.needed(process.seat), "somebody waits for a silent server for ever"
            self.end(process, False)
        for _ in range(5):
            self.time_passes(RESTART_WAIT)


TheEras.TestCase.settings = settings(
    max_examples=int(EXAMPLES) if EXAMPLES else 200,
    stateful_step_count=60 if EXAMPLES else 40,
    deadline=None,
    derandomize=not EXAMPLES,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
    database=None,
)

TestTheEras = TheEras.TestCase
