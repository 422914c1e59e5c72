"""What the checker writes down: the input of the judge.

Clients and server processes share one clock (monotonic seconds), so what happened on both sides can be
compared. A mark `ROUND.CONNECTION.SEQ` names each thing a client sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


@dataclass(slots=True)
class Sent:
    """One line that a client is about to write."""

    at: float
    seq: int
    """Its number on its connection."""
    kind: str
    """call, listen, initialize, ping, refused, cancel, note, bad, answer; subscribe, unsubscribe, level."""
    id: Any = None
    """Of a request, as Python reads it; None without one. Of a cancel: the request it names."""
    mark: str = ""
    do: str = ""
    """What the server is asked to do with it; see server.py."""
    token: Any = None
    """The progress token, if one goes to the server."""
    blob: bytes = b"[]"
    """What must come back byte for byte."""
    filter: str = ""
    """Of a listen. Of a subscription its URI; of a level that; of a question about a task its name."""
    codes: tuple[int, ...] = ()
    """Of a refused or bad line: the errors it may earn."""


@dataclass(slots=True)
class Received:
    """One line that a client has read."""

    at: float
    message: Message | None
    """None: it was no JSON object."""
    blob: bytes = b""
    """Its `blob` as it came, or what could not be read."""


@dataclass(slots=True)
class Ended:
    """One direction of a connection, or both, has ended."""

    at: float
    how: str
    """half (the client stopped sending), close, abort (the client's doing); eof, reset (the bridge's)."""
    waited: bool = False
    """The client was ready to wait for whatever it was owed."""


Event = Sent | Received | Ended


@dataclass(slots=True)
class Connection:
    """What happened on one connection, in order."""

    number: int
    transport: str
    era: str
    events: list[Event] = field(default_factory=list)
    apart: bool = False
    """It has a server process of its own."""
    lazy: bool = False
    """It does not always read, and may be cut for it."""


@dataclass(slots=True)
class Logged:
    """One event of a server process. Kinds, and what `fields` are:

    B era: it settled on one.  H method: a question of the bridge's own.  R uid mark do token: a request.
    L uid filter mark: a listen.  C uid: a cancellation.  N mark method: a notification.
    Q method: a response; or of a client's own process Q mark how.  X text: what must not come.
    A uid n: about to write an answer (n > 0: once more).  W uid: something instead.  P uid n: progress.
    G uid: a log notification.  K uid filter: an acknowledgement.  S uid n: a notification of a subscription.
    Z uid how: the end of a listen.  T n: a list has changed.
    Of a legacy session, subscribe, unsubscribe and setLevel without a mark:  u uid uri.  v uid uri.
    s uid level.  a uid how: their answer (ok, no).  m n uri: an update.  g n level task: a log message.
    t uid task: a task was made.  i n task: its state.  x uid task: cancelled by the bridge.
    y uid task: cancelled by its client.  l uid tasks: a page of a list.  q mark: a request to the client.
    F: everything up to here is in the pipe.  D how: it dies by itself.
    """

    at: float
    kind: str
    fields: list[str]


@dataclass(slots=True)
class Life:
    """One server process."""

    name: str
    pid: int
    started: float
    era: str = ""
    dead: bool = False
    """It is gone, or was ended by the bridge, before the round was judged."""
    events: list[Logged] = field(default_factory=list)
    killed: bool = False
    """By the nemesis."""

    @property
    def apart(self) -> bool:
        """It served one client alone; the bridge ends it when that leaves."""
        return self.era == "apart"

    @property
    def ended_in_order(self) -> bool:
        """Of one that is apart: it read its input to the end."""
        return not self.apart or any(e.kind == "D" and e.fields[0] == "end of input" for e in self.events)

    @property
    def died(self) -> bool:
        """It ended without being asked to by the bridge."""
        if not self.apart:
            return self.dead
        own = any(event.kind == "D" and event.fields[0] != "end of input" for event in self.events)
        return self.killed or own

    @property
    def stopped(self) -> bool:
        """It ended because the bridge had closed its stdin, and for no other reason."""
        last = self.events[-1] if self.events else None
        return self.dead and last is not None and (last.kind, last.fields) == ("D", ["end of input"])

    def gone_before(self, at: float) -> bool:
        """Whether it had died by then, without being asked to."""
        last = self.events[-1].at if self.events else float("-inf")
        return self.dead and not self.stopped and last < at

    @property
    def settled(self) -> float:
        """When it was first spoken to in its era; before everything if that was in an earlier round."""
        at = min((event.at for event in self.events if event.kind == "B"), default=None)
        return at if at is not None else float("-inf") if self.era else float("inf")


@dataclass(slots=True)
class Sample:
    """The bridge at one moment."""

    at: float
    rss: int
    """Bytes."""
    descriptors: int
    processes: int = 0
    """With the bridge itself; 0: not counted."""
    quiet: bool = False
    """No client is connected and nothing is at the servers."""


@dataclass(slots=True)
class Rules:
    """What the bridge was started with, as far as it decides what is right. Seconds and bytes."""

    sharing: str = "shared"
    linger: float = 2.0
    restart_wait: float = 30.0
    max_queued: int = 4096
    max_rss: int = 400 * 1024 * 1024
    max_growth: int = 48 * 1024 * 1024
    """Of resident memory between quiet moments, once the allocator is warm."""
    max_processes: int = 4
    """The bridge, its guard, a server for each era."""


@dataclass(slots=True)
class History:
    """One round: from a quiet bridge to a quiet bridge."""

    round: int
    rules: Rules
    connections: list[Connection] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    """All processes that lived during the round, oldest first; those before it without their old events."""
    samples: list[Sample] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What the bridge itself complained of, or how it ended."""


@dataclass(slots=True, frozen=True)
class Violation:
    """A promise that was not kept."""

    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


def same(one: object, other: object) -> bool:
    """JSON identity: `1`, `"1"`, `1.0` and `true` are four."""
    return type(one) is type(other) and one == other


def id_key(id: object) -> tuple[type, object]:
    """A key under which ids of different JSON types never meet."""
    return (type(id), id)


def parse_log(lines: Iterable[str]) -> list[Logged]:
    """Events of a server process from whole lines of its log."""
    events = []
    for line in lines:
        kind, at, *fields = line.rstrip("\n").split("\t")
        events.append(Logged(float(at), kind, fields))
    return events


def show(message: Message | None, limit: int = 300) -> str:
    """A message for a person to read."""
    return json.dumps(message)[:limit]
