"""Replacing the servers while they are in use: the new ones are ready before the old ones go.

Owns one replacement from its request to the end of the last old process. Speaks to
nobody itself: `seats.py` makes the new processes ready, and asks here what follows.
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from bridge.core.era import Era, Greeting
from bridge.core.inflight import Child, Kind
from bridge.core.jsonrpc import Members
from bridge.core.tables import NOBODY, NoticeKind, Seat, Tables

REPLACED: Final[Members] = {"reason": Raw(b'"the server is being replaced"')}
"""Why a subscription ends at an old process."""

MAX_DRAINING: Final = 4
"""How many old processes may go on answering at once; with one more the oldest is stopped. Each costs what a
server costs, for up to `swap_drain`. Four is what two replacements of both eras leave: an update and its
correction cost nobody an answer, and a script that sends SIGHUP again and again does not fill the machine."""


class Swap:
    """One replacement that is under way.

    `seats`: of the new processes. `eras`: those that must be ready before anything changes, in the order of
    their seats; none while nobody is served, and then it is enough that the first process runs.
    """

    __slots__ = ("eras", "greeting", "ready", "seats")

    def __init__(self, seats: tuple[Seat, Seat]) -> None:
        self.seats = seats
        self.eras: list[Era] = []
        self.ready: dict[Era, tuple[Seat, Child]] = {}
        self.greeting: Greeting | None = None
        """What the new legacy server said."""

    def brings(self, era: Era) -> bool:
        """Whether who waits for an era's server is to wait for this."""
        return not self.eras or era in self.eras


class Swaps:
    """Begins replacements, one at a time; watches the old processes go."""

    __slots__ = ("_again", "_tables", "current", "retiring")

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._again = False
        self.current: Swap | None = None
        self.retiring: dict[int, Seat] = {}
        """Seats of old processes, by number."""

    def begin(self) -> None:
        """Start the new processes. While a replacement is under way, one more is remembered.

        Where nobody is served, the first new process takes over as soon as it runs.
        """
        tables = self._tables
        if self.current is not None:
            self._again = True
            return
        self.current = Swap(tables.new_seats())
        if not self.adopt():
            tables.note(NoticeKind.NEED_CHILD, NOBODY, seat=self.current.seats[0].number)

    def adopt(self) -> bool:
        """Have the replacement be one for every era that is served now; return whether one was added.

        A server that was away when it began may be back, or a client may have needed the other era: nobody
        is to lose a server for which there is no new one yet.
        """
        assert self.current is not None
        tables = self._tables
        added = [era for era in tables.served if era not in self.current.eras]
        for era in added:
            seat = self.current.seats[len(self.current.eras)]
            self.current.eras.append(era)
            seat.era = era
            if seat.child is None:
                tables.note(NoticeKind.NEED_CHILD, NOBODY, seat=seat.number)
        return bool(added)

    def forget(self) -> None:
        """What was learnt of the old servers says nothing of the new ones."""
        tables = self._tables
        decided = tables.limits.era
        for era in Era:
            if decided is None or era is decided:
                tables.refusals.pop(era, None)
        if not tables.sessions:  # (who has one is compared with what the new server says)
            tables.greeting = None

    def is_new(self, seat: Seat) -> bool:
        """Whether a seat is one of the replacement that is under way."""
        return self.current is not None and seat in self.current.seats

    def is_over(self, seat: Seat) -> bool:
        """Whether what a seat's process says of itself matters no more: it is replaced, or stopped."""
        return seat.replaced or seat.number in self.retiring

    def fail(self, why: str) -> None:
        """A new process will not be ready: the old ones stay."""
        assert self.current is not None
        tables = self._tables
        for seat in self.current.seats:
            tables.drop_seat(seat)
            if seat.child is not None:
                self._retire(seat, seat.child)
        self.current = None
        tables.note(NoticeKind.SWAP_FAILED, NOBODY, why.encode())
        self._finished()

    def ready(self, seat: Seat, child: Child, era: Era) -> bool:
        """A new process is ready; return whether there is one for each era that is served."""
        assert self.current is not None
        self.current.ready[era] = (seat, child)
        return len(self.current.ready) == len(self.current.eras) and not self.adopt()

    def commit(self) -> list[Child]:
        """From here on the new processes are the servers; return the old ones that were served.

        The caller opens the eras at the new ones.
        """
        assert self.current is not None
        tables = self._tables
        old = list(tables.served.values())
        until = tables.now + tables.limits.swap_drain
        for seat in tables.seats:
            child = seat.child
            if child is None:
                tables.drop_seat(seat)
                continue
            seat.drain_until = until
            child.muted = True
            self.retiring[seat.number] = seat
        self.current.seats[0].first_need = tables.seats[0].first_need
        tables.seats = self.current.seats
        for seat in tables.seats:
            seat.down_since = tables.now  # who waits is given time for their start
        tables.served.clear()
        self.forget()
        self.current = None
        tables.note(NoticeKind.SWAPPED, NOBODY)
        tables.attention.due = True
        return old

    def settle(self) -> None:
        """Stop the old processes that have nothing more to answer, whose time is up, or that are too many."""
        tables = self._tables
        draining: list[tuple[Seat, Child]] = []
        for seat in list(self.retiring.values()):
            child = seat.child
            if child is None:
                del self.retiring[seat.number]
                tables.drop_seat(seat)
            elif not seat.replaced:
                busy = any(entry.kind is Kind.REQUEST for entry in child.inflight.values())
                if busy and tables.now < seat.drain_until:
                    draining.append((seat, child))
                else:
                    self._retire(seat, child)
        for seat, child in draining[:-MAX_DRAINING]:
            self._retire(seat, child)

    def _retire(self, seat: Seat, child: Child) -> None:
        seat.replaced = True
        self._tables.note(NoticeKind.RETIRE_CHILD, child.key, seat=seat.number)

    def committed(self) -> None:
        """The new processes serve: begin what was asked for meanwhile."""
        self._finished()

    def _finished(self) -> None:
        if self._again:
            self._again = False
            self.begin()
