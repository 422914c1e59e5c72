"""What both directions share: limits, tables, the counter of upstream ids, and the way out.

Owns the state of the core. Decides nothing: `downstream.py` and `upstream.py` do.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import Any, Final

from msgspec import Raw, Struct, UnsetType

from bridge.core.inflight import Child, Client, Entry, Logger
from bridge.core.jsonrpc import Codec, Id, Members, error_line, notification_line
from bridge.core.outbox import Key, Outbox
from bridge.core.stats import Stats

NOTICES_KEPT: Final = 64
"""At most this many notices wait for the shell; it takes them after each call."""

NOBODY: Final = Key(0)
"""In a notice: it is about no connection and no child."""

ABANDONED_LOGS_S: Final = 30.0
"""How long, in seconds, an abandoned request counts as a possible owner of a log notification."""

LOGGERS_KEPT: Final = 4096
"""So many requests that asked for logs are told apart; a client may give up any number in the 30 s."""

CANCEL_MEMBERS_KEPT: Final = 4096
"""The longest `params`, in bytes, that a cancellation brings along while stdin is blocked."""


class Limits(Struct, frozen=True):
    """Every bound of the core, with its default. Sizes in bytes, times in seconds."""

    max_request: int = 10 * 1024 * 1024 - 1
    """A line to the server. A longer one ends any server on the TypeScript SDK."""
    max_message: int = 64 * 1024 * 1024
    """A line from the server."""
    max_depth: int = 128
    """Nesting of a client's message. SDK servers never answer at 200."""
    max_in_flight: int = 256
    """Requests of one client at the server."""
    max_queued: int = 4096
    """Lines of one client that wait."""
    max_queued_bytes: int = 16 * 1024 * 1024
    max_subscriptions: int = 64
    """Of one client."""
    max_subscriptions_all: int = 4096
    bad_lines: int = 10
    """Lines in a row that are not JSON, after which a connection is closed."""
    restart_wait: float = 30.0
    """How long a request waits while there is no server process."""
    probe_timeout: float = 10.0
    linger: float = 60.0
    """How long a client that has stopped sending is still answered."""
    request_timeout: float | None = None
    paused_bytes: int = 256 * 1024
    """A client whose queue is longer is not read while stdin is blocked."""
    paused_lines: int = 64
    turn_bytes: int = 16 * 1024
    """What one client may move into stdin before it is the next one's turn."""
    broadcast_logs: bool = False
    """Log notifications that several clients could have asked for go to each of them: a leak."""
    probe_early: bool = False
    """The era is decided: a child is made ready before a client needs it."""


class NoticeKind(enum.Enum):
    """What an operator may want to know."""

    NEED_CHILD = "a server process is wanted"
    READY = "the server is ready"
    NOISE = "the server wrote a line that is no message"
    BAD_LINE = "a client wrote a line that is no message"
    CLIENT_CUT = "a client was disconnected"
    SERVER_REQUEST = "the server sent a request"
    AMBIGUOUS_LOG = "a log notification that several clients could have asked for"


class Notice(Struct, frozen=True):
    """Something to log. `detail` is what a peer wrote: escape it, and cut it."""

    kind: NoticeKind
    key: Key
    detail: bytes = b""


class Tables:
    """The state of one bridge."""

    __slots__ = (
        "child",
        "clients",
        "codec_down",
        "codec_up",
        "down_since",
        "holders",
        "last_id",
        "limits",
        "lingering",
        "notices",
        "now",
        "outbox",
        "queued_bytes",
        "stats",
        "stopping",
        "supported",
        "version",
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
        self.clients: dict[Key, Client] = {}
        self.waiting: OrderedDict[Key, Client] = OrderedDict()
        """Clients with lines in their queue, in the order of their turns."""
        self.lingering: dict[Key, Client] = {}
        """Clients that have stopped sending and are still owed something."""
        self.child: Child | None = None
        self.down_since = 0.0
        """When the last child that was ready ended."""
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

    def mint(self) -> int:
        """A new upstream id: below 2**53, which every JSON parser keeps, and never used before."""
        self.last_id += 1
        return self.last_id

    def note(self, kind: NoticeKind, key: Key, detail: bytes = b"") -> None:
        """Tell the shell. What exceeds the bound is only in the counters."""
        if len(self.notices) < NOTICES_KEPT:
            self.notices.append(Notice(kind, key, detail[:512]))

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

    def end(self, child: Child, upstream_id: int, entry: Entry) -> None:
        """Take an entry out of its client's table; the caller has taken it out of the child's."""
        if entry.client is not None:
            entry.client.inflight.pop(upstream_id, None)
        if entry.logs:
            child.loggers.pop(upstream_id, None)

    def abandon(self, child: Child, upstream_id: int, entry: Entry, rest: Members) -> None:
        """Cancel a request at the server, and forget it.

        Args:
            rest: further members of the cancellation's `params`.
        """
        del child.inflight[upstream_id]
        if entry.client is not None:
            entry.client.inflight.pop(upstream_id, None)
        if entry.logs:
            del child.loggers[upstream_id]
            # Beyond the bound they are one, which no response can end before its time.
            name = upstream_id if len(child.loggers) < LOGGERS_KEPT else 0
            child.loggers[name] = Logger(None, self.now + ABANDONED_LOGS_S)
        self.cancel(child, upstream_id, rest)

    def cancel(self, child: Child, upstream_id: int, rest: Members) -> None:
        """Write a cancellation. It passes window and queue, and a blocked stdin."""
        if child.blocked and sum(len(memoryview(value)) for value in rest.values()) > CANCEL_MEMBERS_KEPT:
            rest = {}
        self.stats.cancels += 1
        line = notification_line("notifications/cancelled", {**rest, "requestId": upstream_id})
        self.outbox.put(child, Raw(self.codec_up.unmark(bytes(line))))

    def settle(self, client: Client) -> None:
        """Close a client that has stopped sending once nothing is owed to it."""
        if client.eof_at is not None and client.idle:
            self.lingering.pop(client.key, None)
            self.outbox.close(client)


LEFT: Final[Members] = {"reason": Raw(b'"the client disconnected"')}
"""Why a request is cancelled whose client is gone."""
