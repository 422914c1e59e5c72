"""Upstream id to whose request: the tables of requests on the way, and of those that wait.

A request stands in two tables under its upstream id: in its child's with its entry, and
in its client's with the id that the client knows it by.

Owns every entry from the moment it is booked. An entry ends with its response, its
cancellation, its client, its child, or its deadline, whichever comes first.

Spec: 2026-07-28 basic, "Requests"; basic/patterns/cancellation.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw, Struct, field

from bridge.core.framing import LineFramer, Segment
from bridge.core.jsonrpc import Id
from bridge.core.outbox import Key, Lane

if TYPE_CHECKING:
    from bridge.core.era import Era, Handshake
    from bridge.core.resources import Resource
    from bridge.core.subscriptions import Holder, Share
    from bridge.core.tasks import Interest, Task


class Kind(enum.IntEnum):
    """What to do with the response to an entry's request."""

    REQUEST = 0
    LISTEN = 1
    PROBE = 2
    INITIALIZE = 3
    QUESTION = 4
    """Of the bridge, on account of clients: see `accounts.py`."""


class Entry(Struct, gc=False):
    """What is known of a request that was written to a child. Requests that differ in nothing may share one.

    `gc=False`: entries, clients and tables refer to each other, but every entry is
    taken out of its tables by name, so the collector is never needed.
    """

    kind: Kind
    child: Child
    """Who was asked."""
    client: Client | None
    """Who asked; None for the bridge itself."""
    token: Raw | None = None
    """The progress token as the client spelled it."""
    sent_at: float = 0.0
    share: Share | None = None
    """Of a listen: the subscription it opened."""
    noted: bool = False
    """Whether the child's `loggers` or `interests` know of it."""
    again: Queued | None = None
    """What is sent again if the child ends without an answer; see `replay.py`."""


class Queued(Struct, gc=False):
    """One line of a client that waits for its turn. It pins no read buffer."""

    line: bytes
    id: Id | None
    """None for a notification."""
    arrived_at: float
    method: str = ""
    listen: bool = False
    """A `subscriptions/listen`: it takes no place in the window."""
    opens: bool = False
    """An `initialize`: it is never cancelled."""
    sent: bool = False
    """It was written to a child once already, which ended: it may not be sent a third time."""


class Queue:
    """What one client sent for one era's server and what is not written yet, in order.

    It exists only while something waits, so that a client without anything costs nothing.
    """

    __slots__ = ("_by_id", "_first", "_items", "_next", "bytes", "client", "era", "paused")

    def __init__(self, client: Client, era: Era) -> None:
        self.client = client
        self.era = era
        self.paused = False
        """It is so long that its client is not read."""
        self._items: OrderedDict[int, Queued] = OrderedDict()
        self._by_id: defaultdict[tuple[type, object], list[int]] = defaultdict(list)
        self._next = 0
        self._first = 0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def has_requests(self) -> bool:
        """Whether it holds more than notifications, for which no child is started."""
        return bool(self._by_id)

    def push(self, item: Queued) -> None:
        """Put a line at the end."""
        if item.id is not None:
            self._by_id[id_key(item.id)].append(self._next)
        self._items[self._next] = item
        self._next += 1
        self.bytes += len(item.line)

    def put_back(self, item: Queued) -> None:
        """Put a request at the front."""
        assert item.id is not None
        self._first -= 1
        self._by_id[id_key(item.id)].insert(0, self._first)
        self._items[self._first] = item
        self._items.move_to_end(self._first, last=False)
        self.bytes += len(item.line)

    def head(self) -> Queued:
        """The line whose turn it is. Raises StopIteration if the queue is empty: a bug in the caller."""
        return next(iter(self._items.values()))

    def pop(self) -> Queued:
        """Take the line whose turn it is. Raises KeyError if the queue is empty: a bug in the caller."""
        number, item = self._items.popitem(last=False)
        self.bytes -= len(item.line)
        if item.id is not None:
            self._forget(item.id, number)
        return item

    def remove(self, id: Id) -> int:
        """Take every request with this id out, but no `initialize`; return how many there were."""
        numbers = [n for n in self._by_id.get(id_key(id), ()) if not self._items[n].opens]
        for number in numbers:
            self.bytes -= len(self._items.pop(number).line)
            self._forget(id, number)
        return len(numbers)

    def take_listens(self) -> list[Queued]:
        """Take every `subscriptions/listen` out; return them in order."""
        taken = [(number, item) for number, item in self._items.items() if item.listen]
        for number, item in taken:
            del self._items[number]
            self.bytes -= len(item.line)
            self._forget(item.id, number)  # type: ignore[arg-type]  # a listen is a request
        return [item for _, item in taken]

    def _forget(self, id: Id, number: int) -> None:
        key = id_key(id)
        numbers = self._by_id[key]
        numbers.remove(number)
        if not numbers:
            del self._by_id[key]

    def clear(self) -> list[Queued]:
        """Take everything; return it in order."""
        items = list(self._items.values())
        self._items.clear()
        self._by_id.clear()
        self.bytes = 0
        return items


# One for all clients: thousands may be connected, and idle.
NO_META: Final = Raw()
NOTHING: Final[Any] = MappingProxyType({})
"""Stands for an empty dict that nothing may be put into."""


class Client(Lane):
    """One client connection, and everything the bridge holds for it."""

    __slots__ = (
        "bad_lines",
        "deferred",
        "eof_at",
        "framer",
        "greeted",
        "holders",
        "inflight",
        "overlong_told",
        "session",
        "strict",
        "tasks",
        "usual_meta",
        "waiting",
    )

    def __init__(self, key: Key, *, strict: bool, max_line: int) -> None:
        super().__init__(key)
        self.strict = strict
        """A first byte other than `{`, or one line that is not JSON, ends the connection."""
        self.greeted = False
        """The first byte has come."""
        self.framer = LineFramer(max_line)
        self.deferred: Sequence[Segment] = ()
        """What it wrote that is left for another turn. While there is any, the framer counts as busy."""
        self.inflight: dict[int, Id] = {}
        """Its requests on the way, and those that wait for others': by upstream id, the id it chose."""
        self.holders: dict[int, Holder] = NOTHING
        self.waiting: dict[Era, Queue] = NOTHING
        """What is not written yet, for each era's server that has to do with it."""
        self.usual_meta = NO_META
        """The last `_meta` of a modern request with nothing to translate: the next is likely the same."""
        self.session: Session | None = None
        """What `initialize` settled, if the client has sent one."""
        self.tasks: dict[int, Task] = NOTHING
        """Tasks that its requests have made, by the upstream ids of these."""
        self.bad_lines = 0
        """Lines in a row that were not JSON."""
        self.overlong_told = False
        """Its line over the limit, whose end has not come, was answered."""
        self.eof_at: float | None = None
        """When it stopped sending, if it did: what it sent is still answered."""

    @property
    def unread(self) -> int:
        """Bytes of lines that it wrote and that were not looked at yet."""
        blocks = (one for one in self.deferred if isinstance(one, bytes | bytearray))
        return self.framer.buffered + sum(map(len, blocks))

    @property
    def idle(self) -> bool:
        """Whether nothing is owed to it."""
        return not self.inflight and not self.waiting and not self.holders


class Session(Struct):
    """What a legacy client's `initialize` settles."""

    open: bool = False
    """It was answered; until then what is pipelined behind it waits."""
    initialized: bool = False
    """The client has sent `notifications/initialized`, and may be told of changes."""
    missed: bool = False
    """The server was started again: changes may have been missed."""
    level: int | None = None
    """The rank of the log level it has set, if it has."""
    resources: dict[str, Resource] = field(default_factory=lambda: NOTHING)
    """What it has subscribed to, by URI."""


class Child(Lane):
    """One server process, as the core knows it, and the requests it was sent.

    The tables die with the process; only the counter of ids is shared.
    """

    __slots__ = (
        "asked",
        "blocked",
        "framer",
        "handshake",
        "inflight",
        "interests",
        "loggers",
        "muted",
        "odd_blocks",
        "opened_at",
        "overlong_head",
        "pumping",
        "seat",
        "shares",
        "spoke",
        "task_tokens",
        "tasks",
        "wrote",
    )

    def __init__(self, key: Key, seat: int, handshake: Handshake, *, max_line: int, now: float) -> None:
        super().__init__(key)
        self.seat = seat
        self.framer = LineFramer(max_line)
        self.handshake = handshake
        self.inflight: dict[int, Entry] = {}
        self.shares: dict[int, Share] = {}
        """Subscription id, which is the upstream id of the listen, to subscription."""
        self.loggers: dict[int, Logger] = {}
        self.interests: dict[int, Interest] = {}
        """Requests whose responses say something of tasks."""
        self.tasks: dict[str, Task] | None = None
        """By name; None if it has none."""
        self.task_tokens: dict[int, Task] = {}
        """Progress tokens that outlive the response to their request."""
        self.opened_at = now
        self.blocked = False
        """Its stdin takes no more for now."""
        self.pumping = False
        """Lines that waited are being moved in turns: nobody moves its own past the others."""
        self.muted = False
        """It does not serve, yet or any more: only what belongs to a request it was sent reaches anybody."""
        self.odd_blocks = 0
        """So many of the next blocks it writes are not tried as plain ones."""
        self.asked = False
        """It has sent a request, and that was logged."""
        self.overlong_head = b""
        """Of its line over the limit, while nobody can be told yet."""
        self.spoke = False
        """One valid message has come from it."""
        self.wrote = False
        """One byte has come from it."""


class Logger(Struct):
    """A request that asked for logs, and whose they can be."""

    client: Client | None
    """None once the request was abandoned: its logs are nobody's, but may still come."""
    until: float = 0.0
    """When an abandoned one is forgotten."""


def id_key(id: Id) -> tuple[type, object]:
    """A key under which `1`, `"1"` and `true` never meet."""
    return (Raw, bytes(id)) if type(id) is Raw else (type(id), id)


def owners(loggers: dict[int, Logger]) -> Iterator[Client | None]:
    """Whose a log notification can be: each client once, and None if it can be nobody's."""
    seen: set[Key | None] = set()
    for logger in loggers.values():
        key = logger.client.key if logger.client else None
        if key not in seen:
            seen.add(key)
            yield logger.client
