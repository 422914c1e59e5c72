"""Which server process serves which era: the first words to each, and what is learnt from the answers.

Owns the two seats: the first process's, undecided until a client shows what it needs,
and the other era's. Never looks at a client's messages.

Spec: 2026-07-28 basic/versioning; basic/transports, "stdio: Backward Compatibility".
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw

from bridge.core.era import (
    AWAITING_GREETING,
    DISCOVER,
    LEGACY_VERSIONS,
    MODERN_VERSION,
    UNANSWERED_PROBE,
    Action,
    Era,
    Event,
    Greeting,
    Phase,
    Verdict,
    read_initialize,
    read_probe,
)
from bridge.core.inflight import Child, Client, Entry, Kind
from bridge.core.jsonrpc import ERA_NOT_SERVED, METHOD_NOT_FOUND, Id, Message, encoder, notification_line
from bridge.core.legacy import LegacySessions
from bridge.core.subscriptions import Subscriptions
from bridge.core.swap import REPLACED, Swaps
from bridge.core.tables import NOBODY, EraRefusal, NoticeKind, Seat, Tables
from bridge.core.waiting import Waiting

REMEMBERED_S: Final = 30.0
"""How long, in seconds, a refusal is remembered that may have been an accident."""

NAMES: Final = {
    Era.MODERN: f"the modern era of MCP ({MODERN_VERSION}, without a handshake)",
    Era.LEGACY: f"the legacy era of MCP ({LEGACY_VERSIONS[-1]} and earlier, with `initialize`)",
}

NEEDS: Final = {Era.MODERN: Event.NEED_MODERN, Era.LEGACY: Event.NEED_LEGACY}


class Seats:
    """Speaks to children first, and says which of them serves whom."""

    __slots__ = ("_legacy", "_subscriptions", "_tables", "_waiting", "swaps")

    def __init__(
        self, tables: Tables, subscriptions: Subscriptions, waiting: Waiting, legacy: LegacySessions
    ) -> None:
        self._tables = tables
        self._legacy = legacy
        self._subscriptions = subscriptions
        self._waiting = waiting
        self.swaps = Swaps(tables)
        decided = tables.limits.era
        if decided is not None:
            why = f"the bridge was started with --era {decided.value}"
            tables.refusals[decided.other] = EraRefusal(why)

    # -- needs -------------------------------------------------------------------

    def refusal(self, era: Era) -> EraRefusal | None:
        """Why an era is not served, if that is known."""
        refusal = self._tables.refusals.get(era)
        if refusal is not None and refusal.until is not None and self._tables.now >= refusal.until:
            del self._tables.refusals[era]
            return None
        return refusal

    def wanted(self, era: Era) -> bool:
        """Whether anybody needs an era's server: a request, a subscription, a session."""
        tables = self._tables
        if era is Era.MODERN and len(self._subscriptions):
            return True
        if era is Era.LEGACY and self._legacy.wanted and self.refusal(era) is None:
            return True
        return any(queue.has_requests for queue in tables.waiting[era].values())

    def seat_wanted(self, seat: Seat) -> bool:
        """Whether anybody needs the process of this seat."""
        return any(self.wanted(era) for era in Era if self._seat_of(era) is seat)

    def seat_serving(self, era: Era) -> Seat:
        """The seat whose process serves an era, or will."""
        return self._seat_of(era) or self._tables.seats[0]

    def _seat_of(self, era: Era) -> Seat | None:
        """The seat an era belongs to; None if it must have one of its own that nobody has needed yet."""
        first, second = self._tables.seats
        if era in (first.era, second.era):
            return first if first.era is era else second
        if first.era is not None:
            return None
        if era is Era.MODERN and first.child is not None:
            # One that was probed first may still turn out to be modern.
            return None if first.child.handshake.phase is Phase.INITIALIZING else first
        return first

    @property
    def awaits_retry(self) -> bool:
        """Whether the bridge itself will ask for the legacy server again, for what clients hold."""
        refusal = self._tables.refusals.get(Era.LEGACY)
        return refusal is not None and refusal.until is not None and self._legacy.wanted

    def retry(self) -> None:
        """If a refusal was remembered long enough: see whether clients still hold what needs a server."""
        if self.awaits_retry and self.refusal(Era.LEGACY) is None:
            self._reconsider()

    def approached(self, era: Era) -> bool:
        """Whether an era's server is being spoken to, and may soon be served."""
        if self.refusal(era) is not None:
            return False
        seat = self._seat_of(era)
        return seat is not None and seat.child is not None and seat.child.handshake.phase is not Phase.FRESH

    def need(self, era: Era) -> None:
        """A client needs an era's server, and it is not served: see to it."""
        seat = self._seat_of(era)
        if seat is None:
            seat = self._tables.seats[1]
            seat.era = era
        elif seat.era is None and seat.first_need is None:
            seat.first_need = era
        if seat.child is None:
            self._tables.note(NoticeKind.NEED_CHILD, NOBODY, seat=seat.number)
        else:
            self._speak(seat, seat.child, era)

    def _speak(self, seat: Seat, child: Child, era: Era) -> None:
        self._tables.attention.due = True
        if seat.replaced:  # it is being stopped
            return
        handshake = child.handshake
        self._carry_out(seat, child, handshake.happen(NEEDS[era]), None)
        if era is Era.LEGACY and handshake.phase in AWAITING_GREETING and handshake.deadline is None:
            # It was waited for in vain before: the next tick says so again.
            handshake.deadline = self._tables.now

    def _reconsider(self) -> None:
        """Something has changed: see to the needs that nobody sees to, the first first."""
        first = self._tables.seats[0]
        order = [Era.LEGACY, Era.MODERN] if first.first_need is Era.LEGACY else [Era.MODERN, Era.LEGACY]
        for era in order:
            # (Nobody waits for an era that is refused.)
            if era not in self._tables.served and self.wanted(era):
                self.need(era)

    # -- the life of a child -------------------------------------------------------

    def opened(self, seat: Seat, child: Child) -> None:
        """A process runs in a seat: speak to it if its era is decided, or somebody waits."""
        tables = self._tables
        seat.child = child
        seat.replaced = False
        swap = self.swaps.current
        if swap is not None and seat in swap.seats:
            child.muted = True
            if swap.eras or self.swaps.adopt():
                assert seat.era is not None
                self._speak(seat, child, seat.era)
                return
            self._swap()  # nobody is served: that it runs is all there is to wait for
        era = seat.era
        decided = tables.limits.era
        if decided is not None:
            if self.refusal(decided) is None:
                self._speak(seat, child, decided)
        elif era is Era.LEGACY and tables.sessions and self.refusal(era) is None:
            # Their sessions go on: the handshake is made again before anything else.
            self._speak(seat, child, era)
        else:
            self._reconsider()

    def closed(self, seat: Seat, child: Child, *, exited: bool, unread: int) -> None:
        """The process of a seat is gone.

        Args:
            exited: by itself, with whatever status; False: a signal killed it.
            unread: bytes that were written to it and that it had not read.
        """
        tables = self._tables
        phase = child.handshake.phase
        seat.child = None
        if self.swaps.is_new(seat):
            self.swaps.fail("the new process ended before it was ready")
            return
        if seat not in tables.seats:
            self.swaps.settle()
            return
        era = child.handshake.era
        if era is not None:
            seat.down_since = tables.now
        read = unread <= child.handshake.behind_probe
        if exited and read and phase in UNANSWERED_PROBE and not seat.proven and tables.limits.era is None:
            # Strict legacy servers do so at any request before `initialize`.
            seat.replaced = True
            self._refuse(
                Era.MODERN, EraRefusal("the server exited when it was asked", tables.now + REMEMBERED_S)
            )
        if not self.seat_wanted(seat):
            seat.first_need = None

    def exhausted(self, seat: Seat) -> None:
        """The process of a seat cannot be kept alive: its era is refused for a while.

        Unless another is on its way to take its place: for that one its clients wait.
        """
        if self.swaps.is_new(seat):
            self.swaps.fail("the new process cannot be started")
            return
        swap = self.swaps.current
        until = self._tables.now + REMEMBERED_S
        for era in Era:
            if self._seat_of(era) is seat and (swap is None or not swap.brings(era)):
                self._refuse(era, EraRefusal("its server process cannot be kept alive", until))

    def answered(self, child: Child, entry: Entry, message: Message | None) -> None:
        """A child has answered the bridge's own question.

        Args:
            message: the response; None if it could not be read.
        """
        seat = self._tables.seat(child.seat)
        if child.closing or seat is None or self.swaps.is_over(seat):  # these were its last words
            return
        if entry.kind is Kind.PROBE:
            verdict = read_probe(message, self._tables.codec_up)
            if verdict.spoken:
                # Whatever this child is asked next: there is no reason any more to refuse the era.
                self._tables.supported = verdict.supported
                self._tables.refusals.pop(Era.MODERN, None)
            event = Event.DISCOVERED if verdict.spoken else Event.SPURNED
            handshake = child.handshake
            self._carry_out(seat, child, handshake.happen(event), verdict)
            if handshake.phase is Phase.YIELDING and handshake.deadline is None:
                # `initialize` was waited for in vain already: the next tick says so again.
                handshake.deadline = self._tables.now
        else:
            greeting = read_initialize(message, self._tables.codec_up)
            event = Event.INITIALIZED if isinstance(greeting, Greeting) else Event.REFUSED
            self._carry_out(seat, child, child.handshake.happen(event), greeting)

    def tick(self, child: Child) -> None:
        """Look whether a child has been silent for too long."""
        handshake = child.handshake
        tables = self._tables
        seat = tables.seat(child.seat)
        if seat is None or self.swaps.is_over(seat):
            return
        if handshake.phase in (Phase.LATE, Phase.OVERTAKING):
            # It may be starting still, as long as it has not written a byte.
            old = tables.now >= child.opened_at + tables.limits.start_timeout
            if (child.wrote or old) and (self.swaps.is_new(seat) or self.wanted(Era.MODERN)):
                self._refuse_silent(seat, Era.MODERN)
        if handshake.deadline is None or tables.now < handshake.deadline:
            return
        handshake.deadline = None
        if handshake.phase is Phase.PROBING:
            self._carry_out(seat, child, handshake.happen(Event.PROBE_EXPIRED), None)
        elif handshake.phase is Phase.YIELDING:
            # It speaks modern, and no `initialize` was answered on it.
            self._carry_out(seat, child, handshake.happen(Event.REFUSED), None)
        else:
            self._refuse_silent(seat, Era.LEGACY)

    def _refuse_silent(self, seat: Seat, era: Era) -> None:
        if self.swaps.is_new(seat):
            self.swaps.fail("the new process did not answer in time")
            return
        self._refuse(era, EraRefusal("the server did not answer in time", self._tables.now + REMEMBERED_S))

    def _carry_out(
        self, seat: Seat, child: Child, action: Action | None, said: Verdict | Greeting | None
    ) -> None:
        """Do what follows from an event of a child's handshake."""
        self._tables.attention.due = True
        if action is None:
            return
        limits = self._tables.limits
        if action is Action.PROBE:
            self._ask(child, Kind.PROBE, limits.probe_timeout)
        elif action is Action.INITIALIZE:
            self._ask(child, Kind.INITIALIZE, limits.start_timeout)
        elif action is Action.WAIT:
            self._reconsider()
        elif action is Action.OPEN_MODERN:
            self._open(seat, child, Era.MODERN)
        elif action is Action.OPEN_LEGACY:
            assert isinstance(said, Greeting)
            self._greeted(seat, child, said)
            self._open(seat, child, Era.LEGACY)
        else:
            era = Era.MODERN if action is Action.REFUSE_MODERN else Era.LEGACY
            self._turned_down(seat, child, era, said if isinstance(said, Verdict) else Verdict(False))

    def _ask(self, child: Child, kind: Kind, timeout: float) -> None:
        tables = self._tables
        upstream_id = tables.mint()
        child.inflight[upstream_id] = Entry(kind, child, None)
        child.handshake.deadline = tables.now + timeout
        handshake = child.handshake
        question = handshake.probe if kind is Kind.PROBE else handshake.initialize
        tables.outbox.put(child, question(upstream_id))

    def _greeted(self, seat: Seat, child: Child, greeting: Greeting) -> None:
        """A legacy session is open."""
        self._tables.outbox.put(child, notification_line("notifications/initialized", {}))
        if self.swaps.is_new(seat):
            assert self.swaps.current is not None
            self.swaps.current.greeting = greeting
        else:
            self._take(greeting)

    def _take(self, greeting: Greeting) -> None:
        """Greet clients with this from now on; those that know another session must begin anew."""
        tables = self._tables
        before, tables.greeting = tables.greeting, greeting
        if before is not None and not greeting.same_session(before):
            tables.stale_sessions = True

    def _open(self, seat: Seat, child: Child, era: Era) -> None:
        """A child may be sent an era's requests: first what clients hold, then what waits."""
        tables = self._tables
        if self.swaps.is_new(seat):
            if self.swaps.ready(seat, child, era):
                self._swap()
            return
        seat.era = era
        seat.proven = True
        tables.served[era] = child
        tables.refusals.pop(era, None)
        tables.note(NoticeKind.READY, child.key, era.value.encode(), seat.number)
        if era is Era.MODERN:
            self._subscriptions.open_again(child)
        else:
            self._legacy.opened(child)
        self._reconsider()

    def _swap(self) -> None:
        """All new processes are ready: have them serve from now on."""
        swap = self.swaps.current
        assert swap is not None
        for old in self.swaps.commit():
            self._subscriptions.move(old, REPLACED)
            self._legacy.closed(old, exited=False)
        if swap.greeting is not None:
            self._take(swap.greeting)
        for seat in swap.seats:
            if seat.child is not None:
                seat.child.muted = False
        for era, (seat, child) in swap.ready.items():
            self._open(seat, child, era)
        self.swaps.committed()

    def _turned_down(self, seat: Seat, child: Child, era: Era, verdict: Verdict) -> None:
        """A server has refused an era."""
        tables = self._tables
        if self.swaps.is_new(seat):
            self.swaps.fail(f"the new process refused {NAMES[era]}")
            return
        until = None if verdict.lasting else tables.now + REMEMBERED_S
        modern = era is Era.MODERN
        others = [version for version in verdict.supported if (version in LEGACY_VERSIONS) is modern]
        refusal = EraRefusal("the server refused it", until, verdict.error, others)
        if era is Era.LEGACY or not seat.first:
            # It is of no use as it is. The first seat's process may serve the other era anew.
            self._stop(seat, NoticeKind.REPLACE_CHILD if seat.first else NoticeKind.RETIRE_CHILD)
        seat.proven = False
        if seat.first:
            seat.era = tables.limits.era
        self._refuse(era, refusal)
        self._reconsider()

    def _stop(self, seat: Seat, how: NoticeKind) -> None:
        assert seat.child is not None
        seat.replaced = True
        self._tables.note(how, seat.child.key, seat=seat.number)

    # -- refusing ------------------------------------------------------------------

    def _refuse(self, era: Era, refusal: EraRefusal) -> None:
        """Remember that an era is not served, and tell whoever waits for it."""
        tables = self._tables
        tables.refusals[era] = refusal
        tables.note(NoticeKind.ERA_REFUSED, NOBODY, f"{era.value}: {refusal.why}".encode())
        for queue in list(tables.waiting[era].values()):
            for item in self._waiting.drop(queue):
                if item.id is not None:
                    self.refuse(queue.client, item.id, item.method, era, refusal, delivered=item.sent)
            if era is Era.LEGACY and queue.client.session is not None and not queue.client.session.open:
                queue.client.session = None
            self._waiting.after(queue)
        if era is Era.LEGACY:
            for client, id in self._legacy.give_up():
                self.refuse(client, id, "", era, refusal)
        else:
            for holder in self._subscriptions.end_all():
                # It may have been written to a process before: what has an owner was sent once.
                self.refuse(holder.client, holder.id, "", era, refusal, delivered=True)

    def refuse(
        self, client: Client, id: Id, method: str, era: Era, refusal: EraRefusal, *, delivered: bool = False
    ) -> None:
        """Answer a request of an era that is not served.

        `server/discover` gets the server's own error, or what a legacy server says: from
        that a client of both eras goes on to `initialize`.
        """
        tables = self._tables
        if era is Era.MODERN:
            newest = tables.greeting.version if tables.greeting is not None else LEGACY_VERSIONS[-1]
            known = [str(version) for version in LEGACY_VERSIONS if version <= newest]
            supported = known if tables.greeting is not None else refusal.supported or known
        else:
            supported = tables.supported or refusal.supported or [MODERN_VERSION]
        if method == DISCOVER:
            if refusal.error is not None:
                tables.stats.refused += 1
                answer = {"jsonrpc": "2.0", "id": id, "error": refusal.error}
                tables.outbox.put(client, Raw(encoder.encode(answer)))
                return
            code = METHOD_NOT_FOUND
        else:
            code = ERA_NOT_SERVED
        text = f"{NAMES[era]} is not served here: {refusal.why}; use a client that speaks {NAMES[era.other]}"
        tables.refuse(client, id, code, text, "era_not_served", delivered=delivered, supported=supported)
