"""What clients of a legacy session were told: updates, logs and tasks that are theirs, and no others.

What a client holds is known for sure between the answer to its request and its next request about the
same; in between it may be one or the other, and nothing is judged by it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.history.record import Life, Logged, Message, Sent, Violation, show
from tests.history.session import LEVELS, RELATED, covers

if TYPE_CHECKING:
    from tests.history.judge import Facts
    from tests.history.judge_client import Asked, ClientJudge

KINDS = frozenset({"subscribe", "unsubscribe", "level"})
"""Requests about what a client holds."""

UNKNOWN = -32602
"""No such task, for this client."""


@dataclass(slots=True)
class Said:
    """A notification of the session: about `what` (a URI, a level, a task)."""

    number: str
    what: str
    task: str
    at: float
    position: int


@dataclass(slots=True)
class Told:
    """A request about the session that came to the server: a URI and whether on, or a level."""

    uid: str
    what: str
    on: bool | None
    at: float
    position: int
    answered: int | None = None
    """Position of its answer in the log."""


@dataclass(slots=True)
class Made:
    """A task."""

    mark: str
    do: str
    life: Life
    position: int
    cancelled_at: float | None = None
    """By the bridge."""
    given_up: bool = False
    """By its client."""


@dataclass(slots=True)
class LifeSession:
    """What one process was told and said of its session."""

    life: Life
    told: list[Told] = field(default_factory=list)
    updates: dict[str, Said] = field(default_factory=dict)
    """By number."""
    logs: dict[str, Said] = field(default_factory=dict)
    statuses: dict[str, Said] = field(default_factory=dict)
    listed: dict[str, list[str]] = field(default_factory=dict)
    """Tasks, by the mark of who asked."""
    first: float | None = None
    """When its first request of a client came."""
    first_position: int = 0
    asked: dict[str, int] = field(default_factory=dict)
    """Positions of its own requests to its client, by mark."""
    replied: dict[str, tuple[int, float, str]] = field(default_factory=dict)
    """Position, time and kind of the answers to them."""


def read(
    event: Logged, position: int, session: LifeSession, marks: dict[str, tuple[str, str]], facts: Facts
) -> None:
    """Take one event of a process. `marks`: mark and do of its requests, by upstream id."""
    kind, fields, at = event.kind, event.fields, event.at
    if kind == "R" and session.first is None:
        session.first, session.first_position = at, position
    elif kind in "uv":
        session.told.append(Told(fields[0], fields[1], kind == "u", at, position))
    elif kind == "s":
        session.told.append(Told(fields[0], fields[1], None, at, position))
    elif kind == "a":
        for told in session.told:
            if told.uid == fields[0]:
                told.answered = position
    elif kind == "m":
        session.updates[fields[0]] = Said(fields[0], fields[1], "-", at, position)
    elif kind == "g":
        session.logs[fields[0]] = Said(fields[0], fields[1], fields[2], at, position)
    elif kind == "i":
        session.statuses[fields[0]] = Said(fields[0], fields[1], fields[1], at, position)
    elif kind == "t":
        mark, do = marks[fields[0]]
        facts.tasks[fields[1]] = Made(mark, do, session.life, position)
    elif kind == "x":
        if fields[1] in facts.tasks:
            facts.tasks[fields[1]].cancelled_at = at
    elif kind == "y":
        facts.tasks[fields[1]].given_up = True
    elif kind == "l":
        session.listed[marks[fields[0]][0]] = fields[1].split(",") if fields[1] else []
    elif kind == "q":
        session.asked[fields[0]] = position
    elif kind == "Q" and session.life.apart:
        session.replied[fields[0]] = (position, at, fields[1])


@dataclass(slots=True)
class Held:
    """A time in which a client surely held something."""

    what: str
    since: float
    until: float | None = None
    reached: dict[str, int] | None = None
    """See `ClientJudge.reached`: as it was at its end."""

    def at(self, at: float) -> bool:
        """Whether it was held then."""
        return self.since < at and (self.until is None or at < self.until)


class Account:
    """One URI, or the level, of one client."""

    __slots__ = ("maybe", "open", "pending")

    def __init__(self) -> None:
        self.open: Held | None = None
        self.pending = 0
        self.maybe: set[str] = set()
        """What it may hold besides, or instead."""


class SessionJudge:
    """Judges what one connection was told of its session."""

    def __init__(self, client: ClientJudge) -> None:
        self._client = client
        self._uris: dict[str, Account] = {}
        self._level = Account()
        self.held: list[Held] = []
        """URIs."""
        self.levels: list[Held] = []
        self.got: set[tuple[str, str]] = set()
        """Life and number of every notification."""
        self._last: dict[str, int] = {}
        self._own: dict[str, list[float]] = {}
        """When the bridge itself said that a URI has changed."""
        self._made: dict[str, float] = {}
        """When it learnt of a task of its own."""
        self._questions: set[str] = set()
        self._answered: list[tuple[str, int]] = []
        """Marks of what it has answered, and the number of that line."""
        self._over: dict[str, int] | None = None

    def _account(self, sent: Sent) -> Account:
        return self._level if sent.kind == "level" else self._uris.setdefault(sent.filter, Account())

    def sent(self, sent: Sent) -> None:
        """It asks for something: from here on nothing is sure."""
        account = self._account(sent)
        account.pending += 1
        self._end(account, sent.at)
        if sent.kind != "unsubscribe":
            account.maybe.add(sent.filter)

    def _end(self, account: Account, at: float) -> None:
        held, account.open = account.open, None
        if held is not None:
            account.maybe.add(held.what)
            held.until = at
            held.reached = dict(self._client.reached)

    def settled(self, sent: Sent, message: Message) -> None:
        """It was answered."""
        account = self._account(sent)
        account.pending -= 1
        done = "result" in message
        if done and sent.kind == "subscribe" and "refuse" in sent.filter:
            self._client.complain("wrong-outcome", f"the server refuses {sent.filter}: {show(message)}")
        if account.pending or not done:
            return
        account.maybe.clear()
        if sent.kind != "unsubscribe" and self._over is None:
            account.open = Held(sent.filter, self._client.now)
            (self.levels if sent.kind == "level" else self.held).append(account.open)

    def fits(self, sent: Sent, error: Any) -> bool:
        """Whether an error of the server's is right."""
        if sent.kind in KINDS:
            return isinstance(error, dict) and error.get("code") == UNKNOWN and "refuse" in sent.filter
        return self._client.connection.apart and isinstance(error, dict) and error.get("code") in sent.codes

    def forgotten(self, task: str, at: float) -> bool:
        """Whether a task of its own may be unknown: its process is gone, or was replaced."""
        made = self._client.facts.tasks.get(task)
        return made is None or made.life.died or self._client.facts.replaced(made.life, at)

    # -- notifications -----------------------------------------------------------------

    def notification(self, method: str, params: dict[str, Any], message: Message) -> bool:
        """Take a notification; False if it is none of a session's."""
        client = self._client
        task = ((params.get("_meta") or {}).get(RELATED) or {}).get("taskId", "-")
        if method == "notifications/resources/updated":
            self._updated(str(params.get("uri")), params.get("mark"), message)
        elif method == "notifications/message":
            said = self._said(str(params.get("data")), "logs", message)
            if said is not None and (said.what != params.get("level") or said.task != task):
                client.complain("altered", f"received {show(message)}")
            elif said is not None:
                if task != "-" and not self._is_own(task):
                    client.complain("stray-task", f"received {show(message)}")
                least = self._level.open.what if self._level.open is not None else None
                maybe = self._level.maybe | ({least} if least is not None else set())
                if not any(LEVELS.index(said.what) >= LEVELS.index(each) for each in maybe):
                    client.complain("stray-log", f"at {least or 'no level'} received {show(message)}")
        elif method == "notifications/tasks/status":
            said = self._said(str(params.get("mark")), "statuses", message)
            if said is not None and (said.what != params.get("taskId") or not self._is_own(said.what)):
                client.complain("stray-task", f"received {show(message)}")
        else:
            return False
        return True

    def _updated(self, uri: str, mark: str | None, message: Message) -> None:
        client = self._client
        if mark is None:
            self._own.setdefault(uri, []).append(client.now)
            may = uri in self._uris and self._may_hold(self._uris[uri])
            shared = [life for life in client.history.lives if life.era == "legacy"]
            lives = 0 if client.connection.apart else len(shared)
            if not may or len(self._own[uri]) >= lives:
                client.complain("stray-update", f"without a restart came {show(message)}")
            return
        said = self._said(mark, "updates", message)
        if said is None:
            return
        if said.what != uri:
            client.complain("altered", f"received {show(message)}")
        if not any(covers(each, uri) and self._may_hold(account) for each, account in self._uris.items()):
            client.complain("stray-update", f"received {show(message)}")

    @staticmethod
    def _may_hold(account: Account) -> bool:
        return account.open is not None or bool(account.maybe)

    def _is_own(self, task: str) -> bool:
        made = self._client.facts.tasks.get(task)
        return made is not None and made.mark in self._client.by_mark

    def _said(self, mark: str, which: str, message: Message) -> Said | None:
        """What the server has said under this mark: once, and in its order."""
        client = self._client
        life, _, number = mark.partition("/")
        session = client.facts.sessions.get(life)
        known: dict[str, Said] = {} if session is None else getattr(session, which)
        said = known.get(number)
        if said is None:
            client.complain("stray-notification", f"nobody said {show(message)}")
            return None
        if (life, number) in self.got:
            client.complain("stray-notification", f"it came twice: {show(message)}")
        elif int(number) < self._last.get(life, -1):
            client.complain("order", f"behind {self._last[life]} came {show(message)}")
        self.got.add((life, number))
        self._last[life] = int(number)
        return said

    # -- tasks -------------------------------------------------------------------------

    def result(self, asked: Asked, life: Life, result: dict[str, Any]) -> None:
        """A request about tasks was answered by the server."""
        client, sent = self._client, asked.sent
        name = sent.do.partition(":")[0]
        if name == "task" and isinstance(result.get("task"), dict):
            self._made[result["task"]["taskId"]] = client.now
        elif name == "about-task" and result.get("taskId") != sent.filter:
            client.complain("altered", f"of {sent.filter}: {result}")
        elif name == "tasks":
            wanted = client.facts.sessions[life.name].listed.get(sent.mark, [])
            if not client.connection.apart:
                wanted = [task for task in wanted if self._is_own(task)]
            got = [task.get("taskId") for task in result.get("tasks", [])]
            if got != wanted:
                client.complain("stray-task", f"{sent.mark} listed {got[:9]}, not {wanted[:9]}")

    # -- the requests of its own process ------------------------------------------------

    def question(self, message: Message) -> bool:
        """Take a request of the server's; False if it cannot be for this client."""
        mark = str((message.get("params") or {}).get("mark"))
        if not self._client.connection.apart or mark not in self._client.by_mark or mark in self._questions:
            return False
        self._questions.add(mark)
        return True

    def answers(self, sent: Sent) -> None:
        """It answers one."""
        self._answered.append((sent.do, sent.seq))

    # -- the end -----------------------------------------------------------------------

    def over(self, at: float) -> None:
        """From here on nothing is owed."""
        if self._over is None:
            self._over = dict(self._client.reached)
            for account in (self._level, *self._uris.values()):
                self._end(account, at)

    def complete(self) -> None:
        """What the server said of what it surely held, before an answer that came, has come, too."""
        client = self._client
        if client.connection.lazy or client.connection.era != "legacy":
            return
        facts, over = client.facts, self._over or {}
        for name, session in facts.sessions.items():
            end = over.get(name, -1)
            for said in session.updates.values():
                if any(covers(each.what, said.what) and self._due(each, said, name) for each in self.held):
                    self._missing(session, said, f"update of {said.what}")
            for said in session.logs.values():
                loud = any(
                    LEVELS.index(said.what) >= LEVELS.index(each.what) and self._due(each, said, name)
                    for each in self.levels
                )
                if loud and (said.task == "-" or self._made.get(said.task, said.at) < said.at):
                    self._missing(session, said, f"{said.what} log {said.task}")
            for said in session.statuses.values():
                if said.what in self._made and said.position < end:
                    self._missing(session, said, f"state of {said.what}")
            self._asked(session, end)
            self._replayed(session)

    @staticmethod
    def _due(held: Held, said: Said, life: str) -> bool:
        reached = -1 if held.reached is None else held.reached.get(life, -1)
        return held.at(said.at) and said.position < reached

    def _missing(self, session: LifeSession, said: Said, what: str) -> None:
        client = self._client
        if (session.life.name, said.number) in self.got or client.facts.serves_out(session.life, said.at):
            return
        client.complain("lost-notification", f"never got {said.number} of {session.life.name}: {what}")

    def _asked(self, session: LifeSession, end: int) -> None:
        """Its own process asked, and was answered, before anything that was sent later."""
        client = self._client
        for mark, position in session.asked.items():
            if mark in client.by_mark and position < end and mark not in self._questions:
                client.complain("lost-question", f"{mark} was asked by {session.life.name}")
        if not client.connection.apart:
            return
        for mark, seq in self._answered:
            replied = session.replied.get(mark)
            if mark not in session.asked:
                continue
            later = [
                run
                for asked in client.by_mark.values()
                if asked.sent.seq > seq
                for run in client.facts.served.get(asked.sent.mark, [])
            ]
            if later and (replied is None or any(run.position < replied[0] for run in later)):
                client.complain("lost-question", f"the answer to {mark} came late, or never: {replied}")
        for mark, (_, at, how) in session.replied.items():
            there = client.half is None and client.end is not None and client.end.at > at
            there = there and not client.provoked
            if mark in client.by_mark and (how == "wrong" or (how == "error" and there)):
                client.complain("lost-question", f"{mark} was answered with: {how}")

    def _replayed(self, session: LifeSession) -> None:
        """A process that came while something was held was told of it before any client's request."""
        client, life = self._client, session.life
        if life.era != "legacy" or client.connection.apart or session.first is None:
            return
        for held in self.held:
            if not (held.since < life.started and held.at(session.first)):
                continue
            told = [each for each in session.told if each.on and each.what == held.what]
            if not told or told[0].position > session.first_position:
                client.complain("not-replayed", f"{held.what} to {life.name}")
            reached = -1 if held.reached is None else held.reached.get(life.name, -1)
            answered = told[0].answered if told else None
            told_of_it = any(at > life.started for at in self._own.get(held.what, ()))
            if answered is not None and answered < reached and not told_of_it:
                client.complain("missed-change", f"{held.what} after {life.name} came")
        for held in self.levels:
            if held.since < life.started and held.at(session.first):
                levels = [
                    each
                    for each in session.told
                    if each.on is None and each.position < session.first_position
                ]
                if not levels or LEVELS.index(levels[-1].what) > LEVELS.index(held.what):
                    client.complain("not-replayed", f"the level {held.what} to {life.name}")


def judge_sessions(facts: Facts, clients: dict[int, ClientJudge], found: list[Violation]) -> None:
    """What the server was told is what clients hold, and nobody's task outlives him."""
    for session in facts.sessions.values():
        if session.life.apart:
            continue
        for told in session.told:
            if told.on is not False or facts.serves_out(session.life, told.at):
                continue
            holders = [
                client.name
                for client in clients.values()
                if not client.connection.apart
                for held in client.sessions.held
                if held.what == told.what and held.at(told.at)
                if client.gone_at is None or client.gone_at > told.at
            ]
            if holders:
                found.append(Violation("wrongly-unsubscribed", f"{told.what}, held by {holders[0]}"))
    for name, task in facts.tasks.items():
        owner = next((client for client in clients.values() if task.mark in client.by_mark), None)
        if owner is None or task.life.apart:
            continue
        learnt = owner.by_mark[task.mark].outcome is not None
        if task.cancelled_at is not None:
            if owner.gone_at is None or owner.gone_at > task.cancelled_at:
                found.append(Violation("wrongly-cancelled", f"task {name} of {owner.name}, who is there"))
            continue
        lives = task.do == "task:hang" and not task.life.dead and not task.given_up
        if learnt and lives and owner.gone_at is not None:
            found.append(Violation("not-cancelled", f"task {name} of {owner.name}, who has left"))
