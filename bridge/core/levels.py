"""Legacy log levels: what each client wants to hear, and what the shared server was told.

Owns the levels. The server is told the most verbose one that any client has set; each client
hears what its own admits, and one that never set a level hears nothing.

Spec: 2025-11-25 server/utilities/logging.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, Raw

from bridge.core.accounts import Desk, Question, Waiter, Waiters
from bridge.core.inflight import Child, Client, Session
from bridge.core.jsonrpc import INVALID_PARAMS, Call, Id, Message
from bridge.core.tables import Tables

SET_LEVEL: Final = "logging/setLevel"
LOG: Final = "notifications/message"

LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""The most verbose first."""

_decode_text: Final = msgspec.json.Decoder(str).decode


def level_of(raw: Raw | None) -> int | None:
    """The rank of a level; None if it is none."""
    try:
        return None if raw is None else LEVELS.index(_decode_text(raw))
    except (msgspec.DecodeError, ValueError):
        return None


class Levels:
    """Sums up what clients want to hear."""

    __slots__ = (
        "_asked",
        "_counts",
        "_desk",
        "_hearers",
        "_joined",
        "_later",
        "_question",
        "_tables",
        "_told",
    )

    def __init__(self, tables: Tables, desk: Desk) -> None:
        self._tables = tables
        self._desk = desk
        self._hearers: dict[int, Client] = {}
        """Who has set a level."""
        self._counts = [0] * len(LEVELS)
        self._told: int | None = None
        """What the server was told and has accepted; None: nothing, or nobody knows."""
        self._question: Question | None = None
        self._asked: int | None = None
        """What the server was last asked for."""
        self._joined: Waiters = {}
        self._later: Waiters = {}

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for a server."""
        return bool(self._later)

    def take(self, client: Client, child: Child, message: Call, id: Id) -> None:
        """A client sets its level; its turn has come, and the server takes requests."""
        params = message.params
        level = level_of(params.get("level") if type(params) is dict else None)
        if level is None:
            text = f"`level` must be one of {', '.join(LEVELS)}"
            self._tables.refuse(client, id, INVALID_PARAMS, text, "invalid_params")
            return
        number, waiter = self._desk.wait(client, id, self, level)
        self._later[number] = waiter
        self._advance()

    def left(self, client: Client, session: Session) -> None:
        """A client is gone: what the others want to hear may be less."""
        if self._hearers.pop(client.key, None) is not None:
            assert session.level is not None
            self._counts[session.level] -= 1
            self._advance()

    def gave_up(self, number: int) -> None:
        """See `Account`."""
        if self._later.pop(number, None) is None:
            del self._joined[number]
            assert self._question is not None
            self._desk.cancel(self._question)
            self._question = None
            self._told = self._asked = None
        self._advance()

    def _set(self, waiter: Waiter) -> None:
        client = waiter.client
        assert client is not None
        session = client.session
        assert session is not None
        if session.level is not None:
            self._counts[session.level] -= 1
        session.level = waiter.asked
        self._counts[waiter.asked] += 1
        self._hearers[client.key] = client

    def _lowest(self, besides: Waiter | None = None) -> int | None:
        """The most verbose level that is set, or would be with one more."""
        own: int | None = None
        if besides is not None:
            assert besides.client is not None
            assert besides.client.session is not None
            own = besides.client.session.level
        for level, count in enumerate(self._counts):
            if besides is not None and level == besides.asked:
                return level
            if count - (level == own) > 0:
                return level
        return None

    def _advance(self) -> None:
        """Carry out whose turn has come; then have the server log what is wanted."""
        if self._question is not None:
            return
        while self._later:
            number, waiter = next(iter(self._later.items()))
            level = self._lowest(waiter)
            assert level is not None
            if level != self._told:
                if self._desk.open:
                    self._joined[number] = self._later.pop(number)
                    self._ask(level)
                return
            del self._later[number]
            self._set(waiter)
            self._desk.grant(number, waiter)
        level = self._lowest()
        # What it has refused on the bridge's own account it is not asked again and again.
        if level is not None and level not in (self._told, self._asked) and self._desk.open:
            self._ask(level)

    def _ask(self, level: int) -> None:
        self._asked = level
        self._question = self._desk.ask(self, SET_LEVEL, {"level": LEVELS[level]})

    def settled(self, question: Question, message: Message | None) -> None:
        """See `Account`. (A process that another has taken the place of may answer, too.)"""
        if question is not self._question:
            return
        self._question = None
        joined, self._joined = self._joined, {}
        if message is None:
            self._told = None
        elif message.error is UNSET:
            self._told = self._asked
            self._asked = None
            for waiter in joined.values():
                self._set(waiter)
        self._desk.pass_on(joined.items(), message)
        self._advance()

    def late(self, question: Question) -> None:
        """See `Account`."""
        if question is self._question:
            self._desk.refuse_late(self._joined)
            self._joined.clear()
            self.settled(question, None)

    # -- the server ----------------------------------------------------------------

    def opened(self) -> None:
        """A new process has a session: tell it what is wanted."""
        self._advance()

    def writable(self) -> None:
        """The server's stdin takes more."""
        self._advance()

    def closed(self, *, exited: bool) -> None:
        """The process is gone, and with it what it was told; not `exited`: another takes its place."""
        self._told = self._asked = self._question = None
        joined, self._joined = self._joined, {}
        if exited:
            self._desk.refuse_exited(joined)
        else:
            self._later = {**joined, **self._later}

    def expire(self, oldest: float) -> None:
        """There is no server: whoever came at this time or before waits no longer."""
        self._desk.refuse_old(self._later, oldest)

    def give_up(self) -> list[tuple[Client, Id]]:
        """Take out whoever waits for a turn; the caller tells them why."""
        return self._desk.end_all(self._later)

    def drain(self) -> None:
        """The bridge stops: what the server was not asked yet is refused."""
        self._desk.refuse_stopping(self._later)
        self._later.clear()

    # -- log messages --------------------------------------------------------------

    def admits(self, client: Client, params: dict[str, Raw]) -> bool:
        """Whether a client wants to hear a log message."""
        level = level_of(params.get("level"))
        session = client.session
        return (
            level is not None and session is not None and session.level is not None and level >= session.level
        )

    def logged(self, message: Message, params: dict[str, Raw]) -> None:
        """A log message of the session: to each client whose level admits it."""
        tables = self._tables
        hearers = [client for client in self._hearers.values() if self.admits(client, params)]
        if not hearers:
            tables.stats.dropped_notifications += 1
            return
        line = Raw(tables.codec_up.render(message))
        tables.stats.notifications_down += tables.outbox.put_to_all(hearers, line)
