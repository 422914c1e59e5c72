"""What several clients ask of one session: the bridge asks for them, and they wait for its outcome.

Owns the two kinds of entry that this takes. A question is the bridge's own request at the
server; a waiter is a client's request that is not sent itself. Who asks what, and when,
is decided in `resources.py` and `levels.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from msgspec import Raw, Struct

from bridge.core.era import Era
from bridge.core.inflight import Client, Entry, Kind
from bridge.core.jsonrpc import (
    INVALID_RESPONSE,
    SERVER_EXITED,
    SERVER_UNAVAILABLE,
    SHUTTING_DOWN,
    TIMED_OUT,
    Id,
    Members,
    Message,
    request_line,
    result_line,
)
from bridge.core.tables import Tables

GIVEN_UP: Final[Members] = {"reason": Raw(b'"whoever asked for it has given up"')}
"""Why a question is cancelled."""


class Account(Protocol):
    """Whatever asks the server on account of clients."""

    def settled(self, question: Question, message: Message | None) -> None:
        """The server has answered; None: it could not be read."""

    def late(self, question: Question) -> None:
        """The server has not answered in time, and was told that nobody waits any more."""

    def gave_up(self, number: int) -> None:
        """A client that waited has cancelled its request, or is gone."""


class Question(Entry, kw_only=True, gc=False):
    """A request of the bridge's own at a child."""

    number: int
    account: Account


class Waiter(Struct):
    """A client's request that waits for a question's outcome. No child knows of it."""

    client: Client
    id: Id
    came_at: float
    account: Account
    asked: int
    """What it asks for; what that means is the account's to say."""


Waiters = dict[int, Waiter]


class Desk:
    """Asks the legacy server, and answers who waits."""

    __slots__ = ("_last", "_tables", "freed")

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._last = 0
        self.freed: list[Client] = []
        """Clients of which a request has ended: their next ones may go, or they may."""

    @property
    def open(self) -> bool:
        """Whether the server may be asked something now."""
        child = self._tables.served.get(Era.LEGACY)
        return child is not None and not child.blocked and not self._tables.stopping

    def ask(self, account: Account, method: str, params: dict[str, object]) -> Question:
        """Ask the server, which must be open for it."""
        tables = self._tables
        child = tables.served[Era.LEGACY]
        number = tables.mint()
        question = Question(Kind.QUESTION, child, None, sent_at=tables.now, number=number, account=account)
        child.inflight[number] = question
        if tables.limits.request_timeout is not None:
            tables.attention.due = True
        line = bytes(request_line(number, method, params))
        tables.outbox.put(child, Raw(tables.codec_up.unmark(line)))
        return question

    def cancel(self, question: Question) -> None:
        """Nobody waits for the answer any more."""
        self._tables.abandon(question.number, question, GIVEN_UP)

    def wait(self, client: Client, id: Id, account: Account, asked: int) -> tuple[int, Waiter]:
        """Have a client's request wait; the caller puts it where it waits."""
        self._last -= 1  # no upstream id is negative
        number = self._last
        waiter = Waiter(client, id, self._tables.now, account, asked)
        client.inflight[number] = id
        self._tables.waiters[number] = waiter
        return number, waiter

    def _end(self, number: int, waiter: Waiter) -> tuple[Client, Id]:
        client = waiter.client
        del client.inflight[number]
        del self._tables.waiters[number]
        self.freed.append(client)
        return client, waiter.id

    def end_all(self, waiters: Waiters) -> list[tuple[Client, Id]]:
        """Take all out; return whom the caller has to tell why."""
        ended = [self._end(number, waiter) for number, waiter in waiters.items()]
        waiters.clear()
        return ended

    def grant(self, number: int, waiter: Waiter) -> None:
        """Answer that it is done, since the server is in that state already."""
        client, id = self._end(number, waiter)
        self._tables.outbox.put(client, result_line(id, {}))

    def pass_on(self, waiters: Iterable[tuple[int, Waiter]], message: Message | None) -> None:
        """Give everybody the server's answer; None: it could not be read."""
        tables = self._tables
        for number, waiter in waiters:
            client, id = self._end(number, waiter)
            if message is None:
                text = "the server's response was not valid JSON-RPC"
                tables.refuse(client, id, INVALID_RESPONSE, text, "invalid_response", delivered=True)
            else:
                message.id = id
                tables.stats.responses += 1
                tables.outbox.put(client, Raw(tables.codec_up.render(message)))

    def refuse_exited(self, waiters: Waiters) -> None:
        """The server is gone before it answered."""
        text = "the server exited before it answered; it may have carried the request out"
        self._refuse(waiters, SERVER_EXITED, text, "server_exited", delivered=True)

    def refuse_late(self, waiters: Waiters) -> None:
        """The server has not answered in time."""
        text = f"the server did not answer within {self._tables.limits.request_timeout:g} s"
        self._refuse(waiters, TIMED_OUT, text, "request_timeout", delivered=True)

    def refuse_stopping(self, waiters: Waiters) -> None:
        """The bridge stops, and the server was not asked."""
        self._refuse(waiters, SHUTTING_DOWN, "the bridge is shutting down", "shutting_down")

    def refuse_old(self, waiters: Waiters, oldest: float) -> None:
        """There is no server: those that came at this time or before wait no longer."""
        old = {number: waiter for number, waiter in waiters.items() if waiter.came_at <= oldest}
        text = "the server is not running, and did not come back in time"
        self._refuse(old, SERVER_UNAVAILABLE, text, "server_unavailable")
        for number in old:
            waiters.pop(number, None)

    def _refuse(
        self, waiters: Waiters, code: int, text: str, reason: str, *, delivered: bool = False
    ) -> None:
        for number, waiter in waiters.items():
            client, id = self._end(number, waiter)
            self._tables.refuse(client, id, code, text, reason, delivered=delivered)
