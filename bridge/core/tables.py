"""What both directions share: limits, tables, the counter of upstream ids, and the way out.

Owns the state of the core. Decides nothing: `downstream.py` and `upstream.py` do.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw, Struct, UnsetType

from bridge.core.codec import Codec
from bridge.core.era import Era, Greeting
from bridge.core.inflight import Child, Client, Entry, Logger, Queue
from bridge.core.jsonrpc import Id, Members, error_line, notification_line
from bridge.core.limits import Limits as Limits
from bridge.core.outbox import Key, Outbox
from bridge.core.stats import Stats

if TYPE_CHECKING:
    from bridge.core.accounts import Waiter

NOTICES_KEPT: Final = 64
"""At most this many notices wait for the shell; it takes them after each call."""

NOBODY: Final = Key(0)
"""In a notice: it is about no connection and no child."""

ABANDONED_LOGS_S: Final = 30.0
"""How long, in seconds, an abandoned request counts as a possible owner of a log notification."""

LOGGERS_KEPT: Final = 4096
"""So many requests that asked for logs are told apart; a client may give up any number in the 30 s."""

CANCEL_MEMBERS_KEPT: Final = 4096
"""The longest `params`, in bytes, that a cancellation brings along while stdin is blocked, and that one
cancellation of a client brings along for each of several requests."""


class NoticeKind(enum.Enum):
    """What an operator may want to know."""

    NEED_CHILD = "a server process is wanted"
    REPLACE_CHILD = "the server is to be stopped and started again"
    RETIRE_CHILD = "the server is to be stopped until it is needed"
    CHILD_FAILED = "the server ended before it said anything"
    READY = "the server is ready"
    SWAPPED = "the server was replaced"
    SWAP_FAILED = "the server was not replaced"
    ERA_REFUSED = "an era is not served"
    SHARED_SESSION = "a client offers what a shared server is not told of"
    NOISE = "the server wrote a line that is no message"
    BAD_LINE = "a client wrote a line that is no message"
    CLIENT_CUT = "a client was disconnected"
    SERVER_REQUEST = "the server sent a request"
    SUBSCRIPTION_LOST = "the server was started again, and refused what clients had subscribed to"
    AMBIGUOUS_LOG = "a log notification that several clients could have asked for"


TO_BE_DONE: Final = frozenset(
    {
        NoticeKind.NEED_CHILD,
        NoticeKind.REPLACE_CHILD,
        NoticeKind.RETIRE_CHILD,
        NoticeKind.CHILD_FAILED,
        NoticeKind.READY,
        NoticeKind.SWAPPED,
        NoticeKind.SWAP_FAILED,
    }
)
"""Notices that are no mere news. One call of the core makes a few of them at most."""


class Notice(Struct, frozen=True):
    """Something to log or to do. `detail` is what a peer wrote: escape it, and cut it."""

    kind: NoticeKind
    key: Key
    detail: bytes = b""
    seat: int = 0
    """Which server process it is about, where it is about one."""


class Attention:
    """Raised by the core when a shell has more to do than to write, which is seldom.

    `due`: there may be notices, or something to be watched by ticks. The shell lowers it.
    """

    __slots__ = ("due",)

    def __init__(self) -> None:
        self.due = False


class Seat:
    """The place of one server process, which may be started again many times.

    The first is undecided until its process has settled on an era. The second exists
    for the other era, once somebody needs it.
    """

    __slots__ = (
        "child",
        "down_since",
        "drain_until",
        "era",
        "first",
        "first_need",
        "number",
        "proven",
        "replaced",
    )

    def __init__(self, number: int, *, first: bool) -> None:
        self.number = number
        self.first = first
        """Its process may be asked for either era; the other seat's is there for its own alone."""
        self.drain_until = 0.0
        """Of a process that was replaced: how long it may go on answering."""
        self.child: Child | None = None
        self.era: Era | None = None
        self.first_need: Era | None = None
        """What was needed first of a process that is still undecided."""
        self.proven = False
        """A process was served here, in this era."""
        self.replaced = False
        """The bridge itself is the reason why the process ends."""
        self.down_since = 0.0
        """When the last process that was served ended."""


class EraRefusal(Struct, frozen=True):
    """Why an era is not served for now."""

    why: str
    until: float | None = None
    """None: for as long as the bridge lives."""
    error: Raw | None = None
    """The server's own error to the bridge's question, if it sent one."""
    supported: list[str] = []
    """Versions of the other era that this error named."""


class Tables:
    """The state of one bridge."""

    __slots__ = (
        "_last_seat",
        "_seats",
        "attention",
        "children",
        "clients",
        "codec_down",
        "codec_up",
        "greeting",
        "holders",
        "initialized",
        "last_id",
        "limits",
        "lingering",
        "notices",
        "now",
        "outbox",
        "queued_bytes",
        "refusals",
        "seats",
        "served",
        "sessions",
        "stale_sessions",
        "stats",
        "stopping",
        "supported",
        "version",
        "waiters",
        "waiting",
    )

    def __init__(self, limits: Limits, *, salt: bytes, version: str) -> None:
        self.limits = limits
        self.version = version
        self.stats = Stats()
        self.codec_down = Codec(salt, limits.max_depth)
        self.codec_up = Codec(salt)
        self.outbox = Outbox(self.codec_up)
        self.notices: list[Notice] = []
        self.attention = Attention()
        self.clients: dict[Key, Client] = {}
        self.waiting: dict[Era, OrderedDict[Key, Queue]] = {era: OrderedDict() for era in Era}
        """For each era the clients' queues that are not empty, in the order of their turns."""
        self.initialized: dict[Key, Client] = {}
        """Of those that have a session, who may be told of changes."""
        self.sessions: dict[Key, Client] = {}
        """Clients that have a legacy session, in the order in which they opened it."""
        self.lingering: dict[Key, Client] = {}
        """Clients that have stopped sending and are still owed something."""
        self.stale_sessions = False
        """The legacy server came back as another one: clients must open their sessions anew."""
        self._seats: dict[int, Seat] = {}
        self._last_seat = -1
        self.seats = self.new_seats()
        """Of the processes that serve, or are to serve. Those of old ones go on by number."""
        self.children: dict[Key, Child] = {}
        self.served: dict[Era, Child] = {}
        """The child that is sent each era's requests, if there is one."""
        self.refusals: dict[Era, EraRefusal] = {}
        self.greeting: Greeting | None = None
        """What the legacy server last said; clients are greeted from it while it is away, too."""
        self.waiters: dict[int, Waiter] = {}
        """Requests that wait for others', by numbers that are no upstream ids."""
        self.now = 0.0
        """Monotonic seconds, as of the call that is being carried out."""
        self.last_id = 0
        self.queued_bytes = 0
        """Of the queues of all clients together."""
        self.holders = 0
        """Subscriptions of all clients together."""
        self.stopping = False
        self.supported: list[str] = []
        """Modern versions the server named when it was last asked."""

    def new_seats(self) -> tuple[Seat, Seat]:
        """Two seats whose numbers were never used before."""
        self._last_seat += 2
        pair = Seat(self._last_seat - 1, first=True), Seat(self._last_seat, first=False)
        pair[0].era = self.limits.era
        self._seats.update({seat.number: seat for seat in pair})
        return pair

    def seat(self, number: int) -> Seat | None:
        """A seat by its number; None once it was given up."""
        return self._seats.get(number)

    def drop_seat(self, seat: Seat) -> None:
        """Give a seat up. Its process, if it has one, is to be stopped."""
        self._seats.pop(seat.number, None)

    def mint(self) -> int:
        """A new upstream id: below 2**53, which every JSON parser keeps, and never used before."""
        self.last_id += 1
        return self.last_id

    def note(self, kind: NoticeKind, key: Key, detail: bytes = b"", seat: int = 0) -> None:
        """Tell the shell. What exceeds the bound is only in the counters, but for what is to be done."""
        self.attention.due = True
        if len(self.notices) < NOTICES_KEPT or kind in TO_BE_DONE:
            notice = Notice(kind, key, detail[:512], seat)
            # Each of thousands of requests that come at once and wait for a process needs the same one.
            if kind is not NoticeKind.NEED_CHILD or notice not in self.notices:
                self.notices.append(notice)

    def refuse(
        self,
        client: Client,
        id: Id | UnsetType,
        code: int,
        message: str,
        reason: str,
        *,
        delivered: bool = False,
        **more: Any,
    ) -> None:
        """Answer a client with an error of the bridge's own. See `error_line`."""
        self.stats.refused += 1
        self.outbox.put(client, error_line(id, code, message, reason, delivered=delivered, **more))

    def end(self, upstream_id: int, entry: Entry) -> Id | None:
        """Take a request out of its client's table; the caller has taken it out of the child's.

        Returns:
            The id as the client wrote it.
        """
        if entry.noted:
            entry.child.loggers.pop(upstream_id, None)
            entry.child.interests.pop(upstream_id, None)
        return None if entry.client is None else entry.client.inflight.pop(upstream_id, None)

    def give_up(self, client: Client, upstream_id: int, rest: Members) -> None:
        """Forget a request of a client: cancel it at the server, or no longer have it wait for others'."""
        if client.inflight.pop(upstream_id, None) is None:
            return  # what others gave up a moment ago may have answered it
        waiter = self.waiters.pop(upstream_id, None)
        if waiter is not None:
            waiter.account.gave_up(upstream_id)
            return
        for child in self.children.values():
            entry = child.inflight.get(upstream_id)
            if entry is not None:
                self.abandon(upstream_id, entry, rest)
                return

    def abandon(self, upstream_id: int, entry: Entry, rest: Members) -> Id | None:
        """Cancel a request at the server, and forget it.

        Args:
            rest: further members of the cancellation's `params`.

        Returns:
            The id as the client wrote it.
        """
        child = entry.child
        id = None if entry.client is None else entry.client.inflight.pop(upstream_id, None)
        del child.inflight[upstream_id]
        if entry.noted:
            child.interests.pop(upstream_id, None)
        if upstream_id in child.loggers:
            self.attention.due = True
            del child.loggers[upstream_id]
            # Beyond the bound they are one, which no response can end before its time.
            name = upstream_id if len(child.loggers) < LOGGERS_KEPT else 0
            child.loggers[name] = Logger(None, self.now + ABANDONED_LOGS_S)
        self.cancel(child, upstream_id, rest)
        return id

    def cancel(self, child: Child, upstream_id: int, rest: Members) -> None:
        """Write a cancellation. It passes window and queue, and a blocked stdin."""
        if child.blocked:
            rest = short_members(rest)
        self.stats.cancels += 1
        line = self._cancellation(upstream_id, rest)
        # It may have been short enough with the client's id; a server must never get a longer one.
        if len(line) > self.limits.max_request:
            line = self._cancellation(upstream_id, {})
        self.outbox.put(child, Raw(line))

    def _cancellation(self, upstream_id: int, rest: Members) -> bytes:
        line = notification_line("notifications/cancelled", {**rest, "requestId": upstream_id})
        return self.codec_up.unmark(bytes(line))

    def settle(self, client: Client) -> None:
        """Close a client that has stopped sending once nothing is owed to it."""
        if client.eof_at is not None and client.idle:
            self.lingering.pop(client.key, None)
            self.outbox.close(client)


def short_members(rest: Members) -> Members:
    """Further members of a cancellation if they are few; none if they are more than can be written often."""
    return rest if sum(len(memoryview(value)) for value in rest.values()) <= CANCEL_MEMBERS_KEPT else {}


LEFT: Final[Members] = {"reason": Raw(b'"the client disconnected"')}
"""Why a request is cancelled whose client is gone."""
