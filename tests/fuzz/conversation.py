"""A conversation of several clients with their servers, from any bytes, through two routers at once.

The bytes are a script with a step on each line. One router gets the bytes as the script cuts them, the
other one at a time: what they write must be the same, and what must hold whatever happens is judged.

| step | what happens |
|---|---|
| first line | its first byte chooses the era, the timeout, replay, a process for each client |
| `A...` `B...` `C...` | that client writes the rest and a newline; `a` `b` `c`: without a newline |
| `S...` `T...` | the server in the first or the second seat writes it; `s` `t`: without a newline |
| `E` `F` + number | the server in the first or the second seat gives a good answer to that open request |
| `P` `Q` + number | it reports progress on it; `L` `M`: a notification of that subscription |
| `H` + client | the client stops sending; `X`: it is gone; `N`: it connects again |
| `K` `J` | the process in the first or second seat ends |
| `V` `W` | its stdin is full; and takes more |
| `Y` + number | so many seconds pass |
| `R` `D` `Z` | servers are replaced; the bridge drains; and stops |

`^` in a step stands for a newline, `@` for a mark of the client that writes. A mark goes to the server with
the request, and comes back with what the server says of it: no other client may see it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, Final

from bridge.core.era import Era
from bridge.core.isolated import Isolated
from bridge.core.outbox import Control, Key, Output
from bridge.core.router import Router
from bridge.core.tables import Limits, NoticeKind
from tests.property.oracle import expected

PREFIX: Final = "io.modelcontextprotocol/"
MARK: Final = re.compile(rb"~([ABC])")
MAX_LINE: Final = 900
DEPTH: Final = Limits().max_depth
STEPS: Final = 80
"""More steps of a script are not carried out: what needs more is found in fewer."""
BODIES: Final[dict[str, dict[str, Any]]] = {
    "server/discover": {"supportedVersions": ["2026-07-28"]},
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "tasks": {}},
        "serverInfo": {"name": "s", "version": "0"},
    },
}
"""Good answers, by method."""


class Side:
    """One router with its clients and processes, and all that each was written."""

    def __init__(self, limits: Limits) -> None:
        self.router = self.make(limits)
        self.now = 0.0
        self.last = 0
        self.written: dict[Key, bytes] = {}
        self.names: dict[Key, str] = {}
        self.clients: dict[str, Key] = {}
        self.ended: set[Key] = set()
        """Clients that have stopped sending."""
        self.processes: dict[int, Key] = {}
        for name in "ABC":
            self.join(name)
        self.begin()
        self.settle()

    def make(self, limits: Limits) -> Any:
        """The router, or what has its methods as far as they are used here."""
        return Router(limits, salt=b"sixteen bytes!!!", version="1")

    def begin(self) -> None:
        self.open(self.seat(second=False))

    def seat(self, second: bool) -> int:
        """The number of the first or the second seat."""
        return int(self.router.seats[second])

    def key(self, name: str) -> Key:
        self.last += 1
        key = Key(self.last)
        self.written[key] = b""
        self.names[key] = name
        return key

    def took(self, outputs: list[Output]) -> None:
        for key, data in outputs:
            if data is Control.TURN:
                self.took(self.router.client_turn(key, self.now))
            elif not isinstance(data, Control):
                self.written[key] += data

    def join(self, name: str) -> None:
        if name not in self.clients:
            key = self.clients[name] = self.key(name)
            self.router.client_opened(key, strict=name == "C")

    def open(self, seat: int) -> None:
        if seat not in self.processes:
            key = self.processes[seat] = self.key(f"server {seat}")
            self.took(self.router.server_opened(key, self.now, seat))

    def end(self, seat: int) -> None:
        key = self.processes.pop(seat, None)
        if key is not None:
            self.took(self.router.server_closed(key, self.now))

    def restart(self, seat: int) -> None:
        """The process of a seat ends, and is started again if that is due."""
        self.end(seat)
        if seat == self.seat(second=False) or self.router.needed(seat):
            self.open(seat)

    def replace(self) -> None:
        self.took(self.router.replace_servers(self.now))

    def settle(self) -> None:
        """Do what the router asks for, as the shells would."""
        for _ in range(20):  # more cannot be asked for by one step
            self.router.attention.due = False
            notices = self.router.take_notices()
            if not notices:
                return
            for notice in notices:
                kind, seat = notice.kind, notice.seat
                if kind is NoticeKind.NEED_CHILD:
                    self.open(seat)
                elif kind is NoticeKind.READY:
                    self.writable(seat)
                elif kind is NoticeKind.REPLACE_CHILD or kind is NoticeKind.RETIRE_CHILD:
                    self.end(seat)
                    if kind is NoticeKind.REPLACE_CHILD:
                        self.open(seat)
        raise AssertionError("the router asks for more and more")

    def writable(self, seat: int) -> None:
        key = self.processes.get(seat)
        more = key is not None
        while more:
            assert key is not None
            outputs, more = self.router.server_writable(key, 1 << 16, self.now)
            self.took(outputs)

    def leave(self) -> None:
        """All clients go, then all processes: nothing is left."""
        for key in self.clients.values():
            self.took(self.router.client_closed(key, self.now))
        sizes = self.router.table_sizes()
        assert not any(sizes.values()), sizes
        assert self.router.in_flight == 0
        for seat in list(self.processes):
            self.end(seat)
        assert self.router.buffered_all == 0

    def check(self) -> None:
        """What is true of every line, at any time."""
        for key, text in self.written.items():
            name = self.names[key]
            assert not text or text.endswith(b"\n")
            assert b"\r" not in text
            text.decode()
            if len(name) == 1:
                assert {mark.decode() for mark in MARK.findall(text)} <= {name}, (name, text)


class Pairs(Side):
    """The same for clients with a process each: A's is in the first seat, B's in the second, C has none."""

    def make(self, limits: Limits) -> Any:
        return Isolated(limits, salt=b"sixteen bytes!!!")

    def begin(self) -> None:
        """A process is started once its client needs it."""

    def seat(self, second: bool) -> int:
        return int(second)

    def open(self, seat: int) -> None:
        name = "AB"[seat]
        if seat not in self.processes and name in self.clients:
            key = self.processes[seat] = self.key(f"process of {name}")
            self.took(self.router.server_opened(key, self.clients[name], self.now))

    def restart(self, seat: int) -> None:
        self.end(seat)

    def replace(self) -> None:
        """Their processes are not replaced."""

    def settle(self) -> None:
        for _ in range(20):
            self.router.attention.due = False
            notices = self.router.take_notices()
            if not notices:
                return
            for notice in notices:
                if notice.kind is NoticeKind.NEED_CHILD:
                    name = self.names[notice.key]
                    if name == "C":
                        self.took(self.router.server_failed(notice.key, self.now, full=True))
                    else:
                        self.open("AB".index(name))
                elif notice.kind is NoticeKind.RETIRE_CHILD and notice.key in self.processes.values():
                    self.end(next(seat for seat, key in self.processes.items() if key == notice.key))
        raise AssertionError("it asks for more and more")

    def leave(self) -> None:
        for key in self.clients.values():
            self.took(self.router.client_closed(key, self.now))
        for seat in list(self.processes):
            self.end(seat)
        sizes = self.router.table_sizes()
        assert not any(sizes.values()), sizes
        assert self.router.in_flight == 0

    def check(self) -> None:
        super().check()
        for key, text in self.written.items():
            owner = self.names[key][-1]
            assert {mark.decode() for mark in MARK.findall(text)} <= {owner}, (self.names[key], text)


class Conversation:
    """The script, carried out on two sides."""

    def __init__(self, config: int) -> None:
        era = (None, Era.MODERN, Era.LEGACY)[config % 3]
        limits = Limits(
            max_request=MAX_LINE,
            max_message=MAX_LINE,
            max_in_flight=2,
            max_queued=5,
            max_subscriptions=3,
            max_subscriptions_all=5,
            bad_lines=4,
            paused_lines=1,
            era=era,
            request_timeout=20.0 if config & 4 else None,
            replay_safe=bool(config & 64),
        )
        kind = Pairs if config & 8 else Side
        self.coarse, self.fine = self.sides = kind(limits), kind(limits)
        self.said: dict[Key, bytes] = {}
        self.answered: set[int] = set()
        """Upstream ids that got a good answer; another answer to them is the script's own."""

    def key_of_seat(self, second: bool) -> tuple[int, Key | None]:
        seat = self.coarse.seat(second)
        return seat, self.coarse.processes.get(seat)

    def asked(self, key: Key) -> list[dict[str, Any]]:
        """The requests that a process was sent, without what it has answered or is to forget."""
        open: dict[int, dict[str, Any]] = {}
        for text in self.coarse.written[key].splitlines():
            message = json.loads(text)
            if "id" in message and "method" in message:
                open[message["id"]] = message
            elif message.get("method") == "notifications/cancelled":
                open.pop(message["params"]["requestId"], None)
        return [message for id, message in open.items() if id not in self.answered]

    def step(self, what: str, rest: bytes) -> None:
        if what in "ABCabc":
            name = what.upper()
            key = self.coarse.clients.get(name)
            if key is not None and key not in self.coarse.ended:
                rest = rest.replace(b"~", b"!").replace(b"@", b"~" + name.encode()).replace(b"^", b"\n")
                self.client(key, rest + b"\n" * what.isupper())
        elif what in "STst":
            rest = rest.replace(b"~", b"!").replace(b"^", b"\n")
            self.server(what in "Tt", rest + b"\n" * what.isupper())
        elif what in "EFPQLM":
            self.answer(what, rest)
        else:
            for side in self.sides:
                self.event(side, what, rest)

    def client(self, key: Key, data: bytes) -> None:
        self.said[key] = self.said.get(key, b"") + data
        coarse, fine = self.sides
        coarse.took(coarse.router.client_data(key, data, coarse.now))
        for at in range(len(data)):
            fine.took(fine.router.client_data(key, data[at : at + 1], fine.now))

    def server(self, second: bool, data: bytes) -> None:
        _, key = self.key_of_seat(second)
        if key is None:
            return
        coarse, fine = self.sides
        coarse.took(coarse.router.server_data(key, data, coarse.now))
        for at in range(len(data)):
            fine.took(fine.router.server_data(key, data[at : at + 1], fine.now))

    def answer(self, what: str, rest: bytes) -> None:
        """A good answer, progress or notification, with the mark of the one who asked."""
        second = what in "FQM"
        _, key = self.key_of_seat(second)
        asked = [] if key is None else self.asked(key)
        if not asked:
            return
        request = asked[((rest or b"0")[0] - 48) % len(asked)]
        id, method = request["id"], request["method"]
        params = request.get("params")
        marks = MARK.findall(json.dumps(params).encode())
        who = {"who": ["~" + mark.decode() for mark in marks]}
        if what in "PQ":
            answer = {
                "method": "notifications/progress",
                "params": {"progressToken": id, "progress": 1, **who},
            }
        elif what in "LM":
            meta = {PREFIX + "subscriptionId": id}
            answer = {
                "method": "notifications/subscriptions/acknowledged",
                "params": {"_meta": meta, "notifications": params.get("notifications") if params else {}},
            }
            if rest[1:2] > b"A":
                answer = {"method": "notifications/resources/updated", "params": {"_meta": meta, **who}}
        elif method == "subscriptions/listen":
            self.answered.add(id)
            answer = {
                "id": id,
                "result": {"_meta": {PREFIX + "subscriptionId": id}, "resultType": "complete"},
            }
        else:
            self.answered.add(id)
            answer = {"id": id, "result": BODIES.get(method, who)}
        self.server(second, json.dumps({"jsonrpc": "2.0", **answer}).encode() + b"\n")

    def event(self, side: Side, what: str, rest: bytes) -> None:
        router, now = side.router, side.now
        number = rest[0] if rest else 0
        name = "ABC"[(number - 65) % 3]
        key = side.clients.get(name)
        if what == "H" and key is not None:
            side.ended.add(key)
            side.took(router.client_eof(key, now))
        elif what == "X" and key is not None:
            del side.clients[name]
            side.took(router.client_closed(key, now))
        elif what == "N":
            side.join(name)
        elif what in "KJ":
            side.restart(side.seat(what == "J"))
        elif what in "VW":
            seat = side.seat(number % 2 == 1)
            process = side.processes.get(seat)
            if what == "W":
                side.writable(seat)
            elif process is not None:
                router.server_blocked(process)
        elif what == "Y":
            side.now += number
            side.took(router.tick(side.now))
        elif what == "R":
            side.replace()
        elif what == "D":
            side.took(router.drain(now))
        elif what == "Z":
            side.took(router.stop(now))

    def agree(self) -> None:
        coarse, fine = self.sides
        for side in self.sides:
            side.settle()
        assert coarse.written == fine.written
        assert coarse.router.stats == fine.router.stats
        assert coarse.router.table_sizes() == fine.router.table_sizes()
        coarse.check()

    def outcomes(self) -> None:
        """No client has more responses under an id than it wrote requests under it."""
        for key, name in self.coarse.names.items():
            if len(name) != 1:
                continue
            asked: Counter[str] = Counter()
            for said in self.said.get(key, b"").split(b"\n"):
                if len(said) > MAX_LINE:
                    return  # what is too long is told about under an id that is guessed
                outcome = expected(said, DEPTH)
                if outcome is None:
                    continue
                id = outcome[2 if outcome[0] == "refused" else 1]
                if isinstance(id, int | str):
                    asked[json.dumps(id)] += 1
            got: Counter[str] = Counter()
            for text in self.coarse.written[key].splitlines():
                message = json.loads(text)
                if "id" in message and "method" not in message:
                    got[json.dumps(message["id"])] += 1
            assert got <= asked, (name, got - asked)

    def leave(self) -> None:
        for side in self.sides:
            side.leave()


def converse(data: bytes) -> None:
    """Carry a script out; AssertionError if anything is not as it must be."""
    first, *steps = data.split(b"\n")[: STEPS + 1]
    talk = Conversation(first[0] if first else 0)
    talk.agree()
    for step in steps:
        if step:
            talk.step(chr(step[0]), step[1:])
            talk.agree()
    talk.outcomes()
    talk.leave()
