"""The judge: a history in, the broken promises out. A pure function.

What it judges is the sentence that the bridge's behaviour rests on: every request has exactly one outcome
(one response, one error, or the end of its connection), at the connection that asked, with exactly what
belongs to it; no notification reaches a client it is not for; nothing runs twice; what a client abandons is
cancelled at the server; all that in bounded memory.

Here is what can be said from the server's side and of the bridge's process; `judge_client.py` looks at what
each client got, `judge_listens.py` at its subscriptions.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tests.history.judge_client import ClientJudge
from tests.history.judge_sessions import LifeSession, Made, judge_sessions, read
from tests.history.record import History, Life, Logged, Violation

UNREAD = 5.0
"""How old, in seconds, what a process wrote may be when a busy bridge reads it: maybe of a replaced one."""

DAMAGED = frozenset({"damaged", "huge"})
"""What the server does with a request that has no answer a client could be given."""


@dataclass(slots=True)
class Served:
    """What became of one request at the server."""

    life: Life
    uid: str
    mark: str
    do: str
    at: float
    position: int = 0
    """In the log."""
    answered: int | None = None
    """Position of the first answer in the log."""
    flushed: bool = False
    """The answer was in the pipe, whole."""
    instead: bool = False
    """Something else was written instead of an answer."""
    cancelled: int | None = None
    """Position of the cancellation in the log."""
    cancelled_at: float = 0.0
    progress: list[int] = field(default_factory=list)
    """Numbers written before the answer, and flushed with it."""


@dataclass(slots=True)
class Heard:
    """What became of one listen at the server."""

    life: Life
    uid: str
    filter: str
    mark: str
    at: float
    ended: bool = False
    cancelled_at: float | None = None


@dataclass(slots=True)
class Emission:
    """A notification of a subscription that can only be the one its filter's holders share."""

    life: str
    uid: str
    number: int
    at: float
    position: int


@dataclass(slots=True)
class Facts:
    """The server's side of a history."""

    served: dict[str, list[Served]] = field(default_factory=dict)
    """By mark."""
    heard: dict[tuple[str, str], Heard] = field(default_factory=dict)
    """By life and upstream id."""
    deaths: bool = False
    """A process has ended that the bridge had not stopped in order."""
    lives: list[Life] = field(default_factory=list)
    last_heard: dict[tuple[str, str], int] = field(default_factory=dict)
    """By life and filter: the id of the last such listen that it was asked for."""
    emitted: dict[str, list[Emission]] = field(default_factory=dict)
    """By filter: what every holder of that filter's shared subscription must be told."""
    replaced_from: dict[str, float] = field(default_factory=dict)
    """By life: before that it surely was not replaced by another."""
    sessions: dict[str, LifeSession] = field(default_factory=dict)
    """By life."""
    tasks: dict[str, Made] = field(default_factory=dict)
    owners: dict[str, set[int]] = field(default_factory=dict)
    """Connections whose requests came to a process, by its name."""

    def successors(self, life: Life) -> list[Life]:
        """Processes of the same era that may have taken over from one."""
        return [
            other
            for other in self.lives
            if other.era == life.era
            and other is not life
            and (other.started > life.started or other.settled > life.settled)
            and not life.gone_before(other.settled)
        ]

    def moved(self, heard: Heard) -> bool:
        """Whether a listen was cancelled since another process had taken over, and had been ready to.

        That one is asked for the same, unless it dies before it can read it.
        """
        assert heard.cancelled_at is not None
        for other in self.lives if not heard.life.apart else ():
            if other is heard.life or other.era != heard.life.era or other.settled > heard.cancelled_at:
                continue
            # Ids tell the order in which the bridge asked: one that was frozen reads what came long ago.
            again = self.last_heard.get((other.name, heard.filter), -1) > int(heard.uid)
            if again or (other.dead and other.settled > heard.life.settled):
                return True
        return False

    def replaced(self, life: Life, at: float) -> bool:
        """Whether a process may have been replaced by then, and serves out its time."""
        return not life.apart and at >= self.replaced_from[life.name]

    def serves_out(self, life: Life, at: float) -> bool:
        """Whether what a process wrote at that time may be read when it is replaced already."""
        return self.replaced(life, at + UNREAD)


def judge(history: History) -> list[Violation]:
    """Every promise that this history shows to be broken; empty if all were kept."""
    found: list[Violation] = []
    deaths = any(life.died and (life.apart or not life.stopped) for life in history.lives)
    facts = Facts(deaths=deaths, lives=history.lives)
    for life in history.lives:
        facts.replaced_from[life.name] = min(
            (other.settled for other in facts.successors(life)), default=float("inf")
        )
    uids: Counter[int] = Counter()
    for life in history.lives:
        _read_life(life, facts, uids, found)
    for uid, count in uids.items():
        if count > 1:
            found.append(Violation("reused-upstream-id", f"{uid} was used {count} times"))
    for mark, runs in facts.served.items():
        if len(runs) > 1:
            where = ", ".join(f"{run.life.name} as {run.uid}" for run in runs)
            found.append(Violation("ran-twice", f"{mark} ({runs[0].do}) at {where}"))
    clients = {each.number: ClientJudge(history, each, facts, found) for each in history.connections}
    for client in clients.values():
        client.judge()
    _judge_cancels(facts, clients, found)
    _judge_listens(facts, clients, found)
    judge_sessions(facts, clients, found)
    _judge_processes(history, facts, clients, found)
    _judge_order(history, found)
    _judge_bridge(history, found)
    return found


def _read_life(life: Life, facts: Facts, uids: Counter[int], found: list[Violation]) -> None:
    """What one process saw and did."""
    by_uid: dict[str, Served] = {}
    unflushed: list[Served] = []
    initialized = 0
    shared: dict[str, set[str]] = {}
    marks: dict[str, tuple[str, str]] = {}
    questions: set[str] = set()
    session = facts.sessions[life.name] = LifeSession(life)
    facts.owners[life.name] = set()
    acknowledged: set[str] = set()
    for position, event in enumerate(life.events):
        kind, fields = event.kind, event.fields
        if kind == "R":
            uid, mark, do, _ = fields
            _used(life, uid, uids)
            marks[uid] = (mark, do)
            facts.owners[life.name].add(connection_of(mark))
            by_uid[uid] = served = Served(life, uid, mark, do, event.at, position)
            facts.served.setdefault(mark, []).append(served)
        elif kind == "L":
            _used(life, fields[0], uids)
            uid, filter, mark = fields
            facts.heard[life.name, uid] = Heard(life, uid, filter, mark, event.at)
            if not life.apart:  # elsewhere ids are the clients' own
                facts.last_heard[life.name, filter] = int(uid)
            if mark == "-":
                shared.setdefault(filter, set()).add(uid)
        elif kind == "K":
            acknowledged.add(fields[0])
        elif kind == "S":
            filter = facts.heard[life.name, fields[0]].filter
            only = shared.get(filter) == {fields[0]} and fields[0] in acknowledged
            if only:
                emission = Emission(life.name, fields[0], int(fields[1]), event.at, position)
                facts.emitted.setdefault(filter, []).append(emission)
        elif kind == "A":
            if fields[1] == "0" and fields[0] in by_uid:
                by_uid[fields[0]].answered = position
                unflushed.append(by_uid[fields[0]])
        elif kind == "W":
            by_uid[fields[0]].instead = True
        elif kind == "F":
            for served in unflushed:
                served.flushed = True
            unflushed.clear()
        elif kind == "P":
            if fields[0] in by_uid and by_uid[fields[0]].answered is None:
                by_uid[fields[0]].progress.append(int(fields[1]))
        elif kind == "C":
            if fields[0] not in questions:
                _cancelled(life, event, position, by_uid, facts, found)
            _no_longer_shared(facts, life, shared, fields[0])
        elif kind == "Z":
            facts.heard[life.name, fields[0]].ended = True
            _no_longer_shared(facts, life, shared, fields[0])
        elif kind == "H":
            initialized += fields[0] == "initialize"
        elif kind in "uvsx" and not life.apart:
            _used(life, fields[0], uids)
            questions.add(fields[0])
        elif kind == "X":
            found.append(Violation("server-saw", f"{life.name}: {fields[0]}"))
        read(event, position, session, marks, facts)
    if initialized > 1 and not life.apart:  # there a client says what it likes
        found.append(Violation("server-saw", f"{life.name}: {initialized} times `initialize`"))


def _used(life: Life, uid: str, uids: Counter[int]) -> None:
    """An id came to a process. Where the bridge chooses them none comes twice."""
    if not life.apart:
        uids[int(uid)] += 1


def _no_longer_shared(facts: Facts, life: Life, shared: dict[str, set[str]], uid: str) -> None:
    heard = facts.heard.get((life.name, uid))
    if heard is not None:
        shared.get(heard.filter, set()).discard(uid)


def _cancelled(
    life: Life,
    event: Logged,
    position: int,
    by_uid: dict[str, Served],
    facts: Facts,
    found: list[Violation],
) -> None:
    uid = event.fields[0]
    if uid in by_uid:
        by_uid[uid].cancelled = position
        by_uid[uid].cancelled_at = event.at
    elif (life.name, uid) in facts.heard:
        facts.heard[life.name, uid].cancelled_at = event.at
    else:
        found.append(
            Violation("wrongly-cancelled", f"{life.name} was told to cancel {uid}, which it never got")
        )


def _judge_cancels(facts: Facts, clients: dict[int, ClientJudge], found: list[Violation]) -> None:
    """What was abandoned is cancelled at the server, and nothing else is."""
    for mark, runs in facts.served.items():
        client = clients.get(connection_of(mark))
        if client is None:
            continue
        for run in runs:
            since = client.abandoned_at(mark)
            if run.cancelled is not None and (since is None or since > run.cancelled_at):
                found.append(
                    Violation("wrongly-cancelled", f"{mark} ({run.do}), which its client had not given up")
                )
            over = run.life.dead and (run.life.died or not run.life.ended_in_order)
            done = run.answered is not None or run.cancelled is not None or over
            if not done and run.do.split(":")[0] not in DAMAGED and since is not None:
                found.append(Violation("not-cancelled", f"{mark} ({run.do}) in {run.life.name} as {run.uid}"))


def _judge_listens(facts: Facts, clients: dict[int, ClientJudge], found: list[Violation]) -> None:
    """A subscription at the server lives as long as it has holders."""
    for heard in facts.heard.values():
        if heard.cancelled_at is None:
            if not heard.ended and not heard.life.dead:
                found.append(
                    Violation("not-cancelled", f"listen {heard.uid} ({heard.filter}) in {heard.life.name}")
                )
            continue
        if facts.moved(heard):
            continue  # what it served goes on at the new one
        found += [
            Violation("wrongly-cancelled", f"listen {heard.uid} ({heard.filter}), held by {client.name}")
            for client in clients.values()
            if not heard.life.apart or client.connection.number in facts.owners[heard.life.name]
            for listen in client.listens.listens
            if listen.sent.filter == heard.filter
            and (heard.mark if heard.mark != "-" else "") == listen.sent.mark
            and (not heard.life.apart or heard.uid == json.dumps(listen.sent.id))
            and listen.held_at(heard.cancelled_at, client)
        ]


def _judge_processes(
    history: History, facts: Facts, clients: dict[int, ClientJudge], found: list[Violation]
) -> None:
    """Each client meets the process it is to meet: one of its own, or the one for all."""
    for life in history.lives:
        owners = facts.owners[life.name]
        if life.apart and len(owners) > 1:
            found.append(Violation("wrong-process", f"{life.name} was to be one client's: {owners}"))
        found += [
            Violation("wrong-process", f"{clients[number].name} came to {life.name}")
            for number in owners & clients.keys()
            if clients[number].connection.apart is not life.apart
        ]
    for client in clients.values():
        own = [name for name, owners in facts.owners.items() if client.connection.number in owners]
        if client.connection.apart and len(own) > 1:
            found.append(Violation("wrong-process", f"{client.name} came to {own}"))


def _judge_order(history: History, found: list[Violation]) -> None:
    """What a client sent arrives in its order, in each process."""
    for life in history.lives:
        last: dict[int, int] = {}
        seen: set[str] = set()
        for event in life.events:
            if event.kind == "R":
                mark = event.fields[1]
            elif event.kind == "N":
                mark = event.fields[0]
                if mark in seen:
                    found.append(Violation("ran-twice", f"notification {mark} at {life.name}"))
                seen.add(mark)
            else:
                continue
            if mark.count(".") != 2:
                continue
            _, connection, seq = map(int, mark.split("."))
            if seq < last.get(connection, -1):
                found.append(
                    Violation("order", f"{mark} came to {life.name} after {connection}/{last[connection]}")
                )
            last[connection] = seq


PROCESS_DESCRIPTORS: Final = 4
"""What the bridge holds for each process of a server."""


def _judge_bridge(history: History, found: list[Violation]) -> None:
    """The bridge lives on, within bounds."""
    rules = history.rules
    found += [Violation("bridge-fault", fault) for fault in history.faults]
    peak = max((sample.rss for sample in history.samples), default=0)
    if peak > rules.max_rss:
        found.append(Violation("memory", f"{peak >> 20} MiB resident at the peak"))
    quiet = [sample for sample in history.samples if sample.quiet]
    if len(quiet) < 2:
        return
    first, last = quiet[0], quiet[-1]
    if last.rss - first.rss > rules.max_growth:
        found.append(Violation("memory", f"grew from {first.rss >> 20} to {last.rss >> 20} MiB"))
    # The process of the other era may have been started meanwhile, and be kept: three pipes and its end.
    more = PROCESS_DESCRIPTORS * max(0, last.processes - first.processes)
    if last.descriptors > first.descriptors + more:
        found.append(Violation("descriptors", f"{first.descriptors} before, {last.descriptors} after"))
    if last.processes > rules.max_processes:
        found.append(Violation("processes", f"{last.processes} are left"))


def connection_of(mark: str) -> int:
    """The number of the connection that a mark names; -1 if it is none."""
    parts = mark.split(".")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else -1
