"""Random clients, servers, crashes and timers, against a model (section 10, invariants 1 to 3).

The era is decided ahead here, and the modern one; `test_router_eras.py` has both.

Every event is put to three: a router that gets each line by itself, cut at a random place; a router that
gets the lines of one read together; and the model. What they write must be the same, message for message.
Beside that, what was written is judged without the model: whose is each marker, and what did it come to?

`BRIDGE_MODEL_EXAMPLES=20000 pytest tests/property/test_router_model.py` runs it long, on other examples
each time.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from bridge.core.era import Era
from bridge.core.outbox import Control, Key, Output
from bridge.core.router import Router
from bridge.core.subscriptions import MAX_OPENINGS
from bridge.core.tables import ABANDONED_LOGS_S, Limits, NoticeKind
from tests.property import router_model as model
from tests.property.router_model import SUBSCRIPTION, Model
from tests.unit.core.scenario import (
    CLOSE,
    PREFIX,
    Item,
    Json,
    acknowledged,
    cancelled,
    changed,
    closing,
    line,
    listen,
    log,
    notification,
    parse,
    progress,
    request,
    result,
)

EXAMPLES: Final = os.environ.get("BRIDGE_MODEL_EXAMPLES")

IDS: Final = (1, "1", 0, "", 2)
TOKENS: Final = (None, None, 1, "1", 2, 57.0)
FILTERS: Final[tuple[Json, ...]] = (
    {"toolsListChanged": True},
    {"resourceSubscriptions": ["u"]},
    {"toolsListChanged": True, "resourceSubscriptions": ["u", "v"]},
)
MAX_REQUEST: Final = 2000
MAX_MESSAGE: Final = 3000

number = st.integers(0, 31)
chance = st.integers(0, 11)


def pick(items: Any, n: int) -> Any:
    """One of some things: small numbers are the oldest."""
    items = list(items)
    return items[n % len(items)]


def canonical(item: Item) -> str:
    return json.dumps(item, sort_keys=True) if isinstance(item, dict) else repr(item)


def by_key(outputs: list[Output]) -> dict[int, list[bytes | Control]]:
    """What each destination was written, in order."""
    found: dict[int, list[bytes | Control]] = {}
    for key, data in outputs:
        found.setdefault(key, []).append(data)
    return found


def joined(pieces: list[bytes | Control]) -> tuple[bytes, int, list[Control]]:
    """All bytes, how often it was closed, and what the shell was told."""
    written = [piece for piece in pieces if isinstance(piece, bytes)]
    controls = [piece for piece in pieces if isinstance(piece, Control)]
    return b"".join(written), written.count(CLOSE), controls


class TheRouter(RuleBasedStateMachine):
    """The three, and what can happen to them."""

    @initialize(timed=st.booleans(), clients=st.integers(0, 4), child=chance)
    def begin(self, timed: bool, clients: int, child: int) -> None:
        timeout = 45.0 if timed else None
        limits = Limits(
            max_request=MAX_REQUEST,
            max_message=MAX_MESSAGE,
            max_in_flight=model.WINDOW,
            max_queued=model.QUEUE,
            max_subscriptions=model.LISTENS,
            max_subscriptions_all=model.LISTENS_ALL,
            bad_lines=model.BAD_LINES,
            restart_wait=model.RESTART_WAIT,
            linger=model.LINGER,
            probe_timeout=model.PROBE,
            paused_lines=model.PAUSED,
            request_timeout=timeout,
            turn_bytes=1,
            era=Era.MODERN,
        )
        assert (model.OPENINGS, model.LOGS) == (MAX_OPENINGS, ABANDONED_LOGS_S)
        self.fine = Router(limits, salt=b"one salt of many")
        self.coarse = Router(limits, salt=b"another salt ...")
        self.now = 1000.0
        self.model = Model(timeout, self.now)
        self.last_key = 0
        self.server: int | None = None
        self.seen: dict[int, Json] = {}
        """What the present child was sent, by upstream id."""
        self.used: set[int] = set()
        """Every upstream id there was."""
        self.open: set[int] = set()
        """Clients the shell has open."""
        self.marker = 0
        self.asked: dict[int, tuple[int, object, object]] = {}
        """By marker of a request: its client, id and token."""
        self.settled: dict[int, int] = {}
        """By marker: how many results it had."""
        self.by_id: dict[tuple[int, str], list[int]] = {}
        """By client and id: the requests under it, whose outcomes are counted together."""
        self.outcomes: dict[tuple[int, str], int] = {}
        self.given_up: set[tuple[int, str]] = set()
        self.stopped = False
        self.agreed = True
        """False once anything was not as it should be: there is nothing more to be learned then."""
        for _ in range(clients):
            self.client_connects(1)
        if child < 11:
            self.child_starts()
            self.child_answers(0)

    # -- to the three, and back

    def judge(self, fine: list[Output], coarse: list[Output]) -> None:
        """Compare what was written with the other router's and the model's."""
        self.agreed = False
        apart, together = by_key(fine), by_key(coarse)
        assert together.keys() == apart.keys()
        items: dict[int, list[Item]] = {}
        for key, pieces in apart.items():
            assert key == self.server or key in self.open, f"{key} is not open"
            assert joined(pieces) == joined(together[key])
            items[key] = [
                item
                for piece in pieces
                for item in (
                    [piece] if isinstance(piece, Control) or not piece else map(parse, piece.splitlines())
                )
            ]
        wanted = self.model.take()
        for key in items.keys() | wanted.keys():
            got_items = [self.of_probe(item) for item in items.get(key, [])]
            self.same_order(got_items, wanted.get(key, []))
        for key, got_items in items.items():
            for item in got_items:
                if key == self.server:
                    self.server_got(item)
                else:
                    self.client_got(key, item)
        self.agreed = True

    @staticmethod
    def same_order(got: list[Item], wanted: list[Item]) -> None:
        """Messages in order; what the shell is told besides, in its own order."""
        for control in (False, True):
            written = [canonical(item) for item in got if isinstance(item, Control) is control]
            right = [canonical(item) for item in wanted if isinstance(item, Control) is control]
            assert written == right, (written, right)

    @staticmethod
    def of_probe(item: Item) -> Item:
        if isinstance(item, dict) and item.get("method") == "server/discover":
            return {"probe": item["id"]}
        return item

    def server_got(self, item: Item) -> None:
        assert isinstance(item, dict)
        if "id" in item:
            up = item["id"]
            assert up not in self.used
            self.used.add(up)
            self.seen[up] = item
            token = item["params"]["_meta"].get("progressToken")
            assert token is None or token == up
        elif item["method"] == "notifications/cancelled":
            assert item["params"]["requestId"] in self.seen

    def client_got(self, key: int, item: Item) -> None:
        """Without the model: nothing another client's, and each request one outcome."""
        if item == CLOSE:
            self.open.discard(key)
            return
        if isinstance(item, Control):
            return
        assert isinstance(item, dict)
        params = item.get("params", {})
        if "id" in item or "requestId" in params:  # the server may end a listen with a cancellation
            name = (key, json.dumps(item["id"] if "id" in item else params["requestId"]))
            self.outcomes[name] = self.outcomes.get(name, 0) + 1
            assert self.outcomes[name] <= len(self.by_id[name])
        marker = item.get("result", {}).get("marker")
        if marker is not None:
            client, id, _ = self.asked[marker]
            assert client == key
            assert model.same(id, item["id"])
            assert marker not in self.settled
            self.settled[marker] = 1
        if "progressToken" in params and "marker" in params:  # a listen's has none
            client, _, token = self.asked[params["marker"]]
            assert client == key
            assert model.same(token, params["progressToken"])
            assert params["marker"] not in self.settled
        if SUBSCRIPTION in params.get("_meta", {}):
            assert (key, json.dumps(params["_meta"][SUBSCRIPTION])) in self.by_id

    def both(self, name: str, *args: Any) -> None:
        """One event, the same for both routers."""
        fine = self.event(self.fine, name, *args)
        coarse = self.event(self.coarse, name, *args)
        self.judge(fine, coarse)
        self.pump()

    @staticmethod
    def event(router: Router, name: str, *args: Any) -> list[Output]:
        outputs = getattr(router, name)(*args)
        return outputs if isinstance(outputs, list) else []

    def pump(self) -> None:
        """As the shell does: a child that has become ready gets what waits."""
        ready = [
            sum(notice.kind is NoticeKind.READY for notice in router.take_notices())
            for router in (self.fine, self.coarse)
        ]
        assert ready == [self.model.became_ready] * 2
        if self.model.became_ready:
            self.model.became_ready = False
            self.writable(1000)
        self.agree()

    def agree(self) -> None:
        self.agreed = False
        assert self.fine.stats == self.coarse.stats
        sizes = self.fine.table_sizes()
        assert sizes == self.coarse.table_sizes()
        assert sizes["waiting"] == len(self.model.turns)
        assert sizes["clients"] == len(self.model.clients)
        assert sizes["holders"] == sum(len(client.holders) for client in self.model.clients.values())
        assert sizes["shares"] == len(self.model.shares)
        assert sizes["in_flight"] == sum(
            entry is not None for entry in (self.model.child.sent.values() if self.model.child else ())
        )
        assert self.fine.buffered_all == sum(self.fine.buffered(Key(key)) for key in self.model.clients)
        child = self.model.child
        if child is not None and child.phase == "ready" and not child.blocked and not child.pumping:
            for client in self.model.turns.values():
                assert len(client.asks) >= model.WINDOW, "a line waits for nothing"
        self.agreed = True

    def lines(self, key: int, data: list[bytes], cut: int, name: str) -> None:
        """Lines of one read: each by itself, in two pieces; and all at once."""
        fine: list[Output] = []
        for one in data:
            at = min(cut, len(one) - 1)
            for piece in (one[:at], one[at:]):
                if piece:
                    fine += self.event(self.fine, name, Key(key), piece, self.now)
        coarse = self.event(self.coarse, name, Key(key), b"".join(data), self.now)
        self.judge(fine, coarse)
        self.pump()

    # -- clients

    def client_connects(self, strict: int) -> None:
        if len(self.open) > 4 or self.stopped:
            return
        self.last_key += 1
        self.open.add(self.last_key)
        for router in (self.fine, self.coarse):
            router.client_opened(Key(self.last_key), strict=strict == 0)
        self.model.opened(self.last_key, strict == 0)

    def senders(self) -> list[int]:
        return sorted(
            key for key, client in self.model.clients.items() if client.eof_at is None and not client.paused
        )

    def new_request(self, key: int, kind: int, n: int, token: Any, logs: bool) -> Json:
        self.marker += 1
        id = pick(IDS, n)
        meta: Json = {}
        if token is not None:
            meta["progressToken"] = token
        if logs:
            meta[PREFIX + "logLevel"] = "info"
        self.asked[self.marker] = (key, id, token)
        self.by_id.setdefault((key, json.dumps(id)), []).append(self.marker)
        if kind == 0:
            return listen(id, meta=meta, **pick(FILTERS, n // 5))
        if kind == 1:
            return listen(id, meta={**meta, "marker": self.marker}, **pick(FILTERS, n // 5))
        return request(id, "tools/call", meta=meta, marker=self.marker)

    @precondition(lambda self: self.senders())
    @rule(
        who=number,
        what=st.lists(st.tuples(st.integers(0, 7), number), min_size=1, max_size=4),
        regrets=chance,
    )
    def client_asks(self, who: int, what: list[tuple[int, int]], regrets: int) -> None:
        """Requests and listens as most of them are; sometimes all are given up at once."""
        key = pick(self.senders(), who)
        messages = [self.new_request(key, kind, n, "t" if n & 1 else None, n > 25) for kind, n in what]
        if regrets == 11:
            self.given_up |= {(key, json.dumps(id)) for id in IDS}
            messages += map(cancelled, IDS)
        for message in messages:
            self.model.message(key, message)
        self.lines(key, list(map(line, messages)), 1000, "client_data")

    @precondition(lambda self: self.senders())
    @rule(
        who=number,
        what=st.lists(
            st.tuples(chance, number, st.sampled_from(TOKENS), st.booleans()), min_size=1, max_size=4
        ),
        cut=st.integers(0, 200),
    )
    def client_writes(self, who: int, what: list[tuple[int, int, Any, bool]], cut: int) -> None:
        key = pick(self.senders(), who)
        data = []
        for kind, n, token, logs in what:
            if kind <= 7:
                message = self.new_request(key, kind, n, token, logs)
                self.model.message(key, message)
            elif kind == 8:
                self.marker += 1
                message = notification("x", marker=self.marker)
                self.model.message(key, message)
            elif kind <= 10:
                id = pick(IDS, n)
                message = cancelled(id, reason=f"{n}")
                self.given_up.add((key, json.dumps(id)))
                self.model.message(key, message)
            else:
                data.append(self.oddity(key, n))
                continue
            data.append(line(message))
        self.lines(key, data, cut, "client_data")

    def oddity(self, key: int, n: int) -> bytes:
        """A line of a client that is nothing to forward."""
        id = pick(IDS, n)
        kind = n // 5
        if kind <= 1:
            self.model.junk(key)
            return b"?\n"
        if kind == 2:
            message = result(id, {})
        elif kind == 3:
            message = {"jsonrpc": "2.0", "id": id}
        elif kind == 4:
            message = request(id, "initialize")
            del message["params"]["_meta"][PREFIX + "protocolVersion"]
        else:
            self.by_id.setdefault((key, json.dumps(id)), []).append(0)
            self.model.overlong(key, id)
            return line(request(id, "x", pad="x" * 2 * MAX_REQUEST))
        if kind != 2:
            self.by_id.setdefault((key, json.dumps(id)), []).append(0)
        self.model.message(key, message)
        return line(message)

    def client_stops_sending(self, who: int, n: int, tail: int) -> None:
        if not self.senders():
            return
        key = pick(self.senders(), who)
        if tail <= 3:
            message = self.new_request(key, 5, n, None, False)
            self.model.message(key, message)
            self.lines_without_end(key, line(message)[:-1])
        elif tail == 4:
            self.lines_without_end(key, b'{"half')
        self.model.eof(key)
        self.both("client_eof", Key(key), self.now)

    def lines_without_end(self, key: int, data: bytes) -> None:
        for router in (self.fine, self.coarse):
            assert router.client_data(Key(key), data, self.now) == []

    def client_is_gone(self, who: int) -> None:
        if not self.open | self.model.clients.keys():
            return
        key = pick(sorted(self.open | self.model.clients.keys()), who)
        self.open.discard(key)
        self.model.gone(key)
        self.both("client_closed", Key(key), self.now)

    # -- the server

    @precondition(lambda self: self.server is None and not self.stopped)
    @rule()
    def child_starts(self) -> None:
        self.last_key += 1
        self.server = self.last_key
        self.seen = {}
        self.model.child_opened(self.last_key)
        self.both("server_opened", Key(self.last_key), self.now)

    @precondition(lambda self: self.server is not None)
    @rule(
        what=st.lists(st.tuples(chance, number, chance), min_size=1, max_size=5),
        cut=st.integers(0, 200),
    )
    def child_writes(self, what: list[tuple[int, int, int]], cut: int) -> None:
        assert self.server is not None
        data = [self.server_line(kind, n, how) for kind, n, how in what]
        self.lines(self.server, data, cut, "server_data")

    @precondition(lambda self: self.server is not None and self.model.child and self.model.child.sent)
    @rule(n=number)
    def child_answers(self, n: int) -> None:
        """Of what is open, one: otherwise little would ever end well."""
        assert self.server is not None
        assert self.model.child is not None
        if not self.model.child.sent:
            return
        up = pick(self.model.child.sent, n)
        kind = 8 if isinstance(self.model.child.sent[up], model.Share) else 0
        self.lines(self.server, [self.server_line(kind, n, 0, up)], 1000, "server_data")

    @precondition(lambda self: self.server is not None and self.shares())
    @rule(n=number, more=st.lists(st.tuples(st.integers(5, 10), chance), max_size=3))
    def child_acknowledges(self, n: int, more: list[tuple[int, int]]) -> None:
        """A subscription, and says some more of it."""
        assert self.server is not None
        up = pick(self.shares(), n)
        data = [self.server_line(8, n, 0, up)]
        data += [self.server_line(kind, n, how, up) for kind, how in more]
        self.lines(self.server, data, 1000, "server_data")

    def shares(self) -> list[int]:
        child = self.model.child
        return [] if child is None else [up for up, it in child.sent.items() if isinstance(it, model.Share)]

    def server_line(self, kind: int, n: int, how: int, up: Any = None) -> bytes:
        if up is None:
            live = self.model.child.sent if self.model.child is not None and n < 24 else None
            up = 999 if n == 31 or not self.seen else pick(live or sorted(self.seen, reverse=True), n)
        marker = self.seen.get(up, {}).get("params", {}).get("marker")
        params: Json = {} if marker is None else {"marker": marker}
        if how == 11:
            up = pick((str(up), float(up), -up), n)
        if kind <= 4:
            body: Json = {"result": params}
            if how in (1, 2):
                body = {"error": {"code": 1, "message": "m", "data": params}}
            elif how == 3:
                body = {"result": {**params, "_meta": {SUBSCRIPTION: up}}}
            elif how == 4:
                body = {}
            elif how == 5:
                body = {"result": params, "error": {"code": 1, "message": "m"}}
            elif how == 6 and isinstance(up, int) and up >= 0:
                if isinstance(self.model.known(up), model.Ask):
                    self.model.response(up, {"long": True})
                    return line(result(up, "x" * 2 * MAX_MESSAGE))
            elif how == 7 and isinstance(up, int) and up >= 0:
                if self.model.child is not None and up in self.model.child.sent:
                    self.model.response(up, {"broken": True})
                return b'{"jsonrpc":"2.0","id":%d,"result":{"x":?}}\n' % up
            message = {"jsonrpc": "2.0", "id": up, **body}
            self.model.response(up, body)
        elif kind == 5:
            message = progress(up, **params)
            self.model.progress(up, message)
        elif kind == 6:
            message = log(n)
            self.model.log(message)
        elif kind in (7, 8):
            wanted = self.seen.get(up, {}) if isinstance(up, int) else {}
            grant = wanted.get("params", {}).get("notifications", {}) if how else {}
            if kind == 8 and how == 0:
                grant = wanted.get("params", {}).get("notifications", {})
            message = acknowledged(up, **grant)
            self.model.grant(up, grant)
        elif kind == 9:
            message = changed(up, "x", n=n)
            self.model.changed(up, message)
        elif kind == 10 and how < 4:
            message = cancelled(up, reason="down")
            self.model.torn_down(up, message)
        elif how % 3 == 0:
            message = {"jsonrpc": "2.0", "id": up, "method": "roots/list"}
        elif how % 3 == 1:
            message = notification("notifications/tools/list_changed")
        else:
            return b"noise\n"
        return line(message)

    def child_ends(self, n: int, last_words: int) -> None:
        if self.server is None:
            return
        key = Key(self.server or 0)
        words: tuple[object, Json] | None = None
        if last_words <= 3 and self.seen:
            up = pick(sorted(self.seen, reverse=True), n)
            text = line(result(up, {}))
            tail = text[:-1] if last_words <= 1 else text[:-4]
            words = (up, {"result": {}}) if last_words <= 1 else None
            for router in (self.fine, self.coarse):
                assert router.server_data(key, tail, self.now) == []
        self.model.child_closed(words)
        self.server = None
        self.both("server_closed", key, self.now)

    @precondition(lambda self: self.model.ready_child())
    @rule(room=st.sampled_from((0, 0, 0, 1, 2, 1000)))
    def stdin(self, room: int) -> None:
        """It is full, or takes so many lines."""
        if room:
            self.writable(room)
            return
        for router in (self.fine, self.coarse):
            router.server_blocked(Key(self.server or 0))
        self.model.block()

    def writable(self, room: int) -> None:
        key = Key(self.server or 0)
        for _ in range(room if room < 1000 else 1):
            more = self.model.writable(1 if room < 1000 else room)
            size = 1 if room < 1000 else 1 << 30
            fine, fine_more = self.fine.server_writable(key, size, self.now)
            coarse, coarse_more = self.coarse.server_writable(key, size, self.now)
            self.judge(fine, coarse)
            assert (fine_more, coarse_more) == (more, more)
        self.agree()

    # -- time and the end

    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.model.now = self.now
        self.model.tick()
        self.both("tick", self.now)

    def bridge_stops(self, how: int) -> None:
        if how == 30 and not self.stopped:
            self.model.drain()
            self.both("drain", self.now)
        elif how == 31 and not self.stopped:
            self.stopped = True
            self.model.stop()
            self.both("stop", self.now)

    @precondition(lambda self: self.server is not None and not self.stopped and self.model.shares)
    @rule(n=number, last_words=chance, times=st.integers(1, 3))
    def child_is_replaced(self, n: int, last_words: int, times: int) -> None:
        """While there are subscriptions, up to the point where those are opened again."""
        for _ in range(times):
            self.child_ends(n, last_words)
            self.child_starts()
            self.child_answers(0)

    @rule(what=chance, n=number, how=number)
    def seldom(self, what: int, n: int, how: int) -> None:
        """What ends much, and so must not happen all the time."""
        if what <= 1:
            self.client_connects(how)
        elif what <= 4:
            self.time_passes(pick((1, 5, 5, 10, 10, 31, 61), n))
        elif what <= 6:
            self.client_stops_sending(n, how % 5, how % 7)
        elif what <= 8:
            self.client_is_gone(n)
        elif what <= 9:
            self.child_ends(n, how % 8)
        else:
            self.bridge_stops(how)

    def teardown(self) -> None:
        if not hasattr(self, "agreed") or not self.agreed:
            return
        self.everything_is_answered()
        for key in sorted(self.model.clients):
            self.open.discard(key)
            self.model.gone(key)
            self.both("client_closed", Key(key), self.now)
        for router in (self.fine, self.coarse):
            assert not any(router.table_sizes().values()), router.table_sizes()
            assert router.buffered_all == router.in_flight == 0

    def everything_is_answered(self) -> None:
        """A server that does what it should: then every request has had its one outcome."""
        if self.server is None and not self.stopped:
            self.child_starts()
        if self.server is None:
            return
        self.writable(1000)
        for _ in range(1000):
            child = self.model.child
            assert child is not None
            owed = [up for up, entry in child.sent.items() if not isinstance(entry, model.Share)]
            if not owed:
                break
            self.lines(self.server, [self.server_line(0, 0, 0, owed[0])], 1000, "server_data")
        assert not any("id" in item for client in self.model.turns.values() for item, _ in client.waiting)
        child = self.model.child
        assert child is not None
        for up, entry in list(child.sent.items()):
            if isinstance(entry, model.Share):
                self.model.response(up, closing(up))
                self.lines(self.server, [line(closing(up))], 1000, "server_data")
        for name, markers in self.by_id.items():
            key = name[0]
            if name not in self.given_up and key in self.open:
                assert self.outcomes.get(name, 0) == len(markers), name


TheRouter.TestCase.settings = settings(
    max_examples=int(EXAMPLES) if EXAMPLES else 300,
    stateful_step_count=60 if EXAMPLES else 40,
    deadline=None,
    derandomize=not EXAMPLES,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
    database=None,
)

TestTheRouter = TheRouter.TestCase
