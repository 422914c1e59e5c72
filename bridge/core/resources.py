"""Legacy resource subscriptions: which clients hold which URI, and what the shared server was told of it.

Owns the count of each URI. The server is asked at the first holder and told at the last;
requests about one URI are carried out one after the other, in the order they came, so that
a client is told "done" only by the server, or when the server is in that state already.

Spec: 2025-11-25 server/resources, "Subscriptions".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import UNSET, Raw

from bridge.core.accounts import Desk, Question, Waiters
from bridge.core.inflight import Child, Client, Session
from bridge.core.jsonrpc import INVALID_PARAMS, OVERLOADED, Call, Id, Message, notification_line
from bridge.core.tables import NOBODY, NoticeKind, Tables

SUBSCRIBE: Final = "resources/subscribe"
UNSUBSCRIBE: Final = "resources/unsubscribe"
UPDATED: Final = "notifications/resources/updated"

# A listen of the modern era names any number of URIs at once; here each is a request of its
# own. Servers publish hundreds of resources, and hosts subscribe to all of them.
MAX_OF_CLIENT: Final = 1024
MAX_IN_ALL: Final = 16384

# A URI in an update is looked up by its prefixes while they are few and short; what is
# longer is compared with each subscription instead.
LOOKED_UP: Final = 64
LOOKED_UP_BYTES: Final = 4096

_decode_text: Final = msgspec.json.Decoder(str).decode


class Resource:
    """One URI: who holds it, what the server was asked, and who waits for that."""

    __slots__ = ("_owner", "asked_on", "holders", "joined", "later", "missed", "on", "question", "raw", "uri")

    def __init__(self, owner: Resources, uri: str, raw: bytes) -> None:
        self._owner = owner
        self.uri = uri
        self.raw = Raw(raw)
        """As its first client spelled it."""
        self.holders: dict[int, Client] = {}
        self.on: bool | None = False
        """Whether the server holds the subscription; None: nobody knows."""
        self.question: Question | None = None
        self.asked_on = False
        """What the question asks for."""
        self.joined: Waiters = {}
        """Who waits for the question's answer."""
        self.later: Waiters = {}
        """Whose turn has not come."""
        self.missed = False
        """The server was started again: holders may have missed an update."""

    @property
    def wanted(self) -> bool:
        """Whether a server is needed for it."""
        return bool(self.holders or self.later)

    def settled(self, question: Question, message: Message | None) -> None:
        """See `Account`. (A process that another has taken the place of may answer, too.)"""
        if question is self.question:
            self._owner.settled(self, message)

    def late(self, question: Question) -> None:
        """See `Account`."""
        if question is self.question:
            self._owner.late(self)

    def gave_up(self, number: int) -> None:
        """See `Account`."""
        self._owner.gave_up(self, number)


class Resources:
    """Counts subscriptions, and keeps the server in the state that they add up to."""

    __slots__ = ("_delayed", "_desk", "_table", "_tables", "holders")

    def __init__(self, tables: Tables, desk: Desk) -> None:
        self._tables = tables
        self._desk = desk
        self._table: dict[str, Resource] = {}
        self._delayed: dict[str, Resource] = {}
        """What the server is to be asked once its stdin takes more."""
        self.holders = 0
        """Of all URIs together."""

    @property
    def wanted(self) -> bool:
        """Whether a server is needed for any of them."""
        return any(resource.wanted for resource in self._table.values())

    # -- clients -------------------------------------------------------------------

    def take(self, client: Client, session: Session, child: Child, message: Call, id: Id, on: bool) -> None:
        """A client subscribes, or unsubscribes; its turn has come, and the server takes requests."""
        tables = self._tables
        params = message.params
        raw = params.get("uri") if type(params) is dict else None
        try:
            uri = _decode_text(raw) if raw is not None else None
        except msgspec.DecodeError:
            uri = None
        if raw is None or uri is None:
            tables.refuse(client, id, INVALID_PARAMS, "`uri` must be a string", "invalid_params")
            return
        resource = self._table.get(uri)
        if on and uri not in session.resources:
            full = len(session.resources) >= MAX_OF_CLIENT or self.holders >= MAX_IN_ALL
            if full or (resource is None and len(self._table) >= MAX_IN_ALL):
                text = "too many resource subscriptions: end one first"
                tables.refuse(client, id, OVERLOADED, text, "too_many_subscriptions")
                return
        if resource is None:
            owned = tables.codec_down.owned(message, raw)
            resource = self._table[uri] = Resource(self, uri, owned)
        number, waiter = self._desk.wait(client, id, resource, int(on))
        if resource.question is not None and resource.asked_on is on and not resource.later:
            resource.joined[number] = waiter
        else:
            resource.later[number] = waiter
            self.advance(resource)

    def left(self, client: Client, session: Session) -> None:
        """A client is gone, and with it what it held."""
        held = list(session.resources.values())
        for resource in held:
            self._let_go(resource, client)
        for resource in held:
            self.advance(resource)

    def gave_up(self, resource: Resource, number: int) -> None:
        """A client does not wait any longer. A subscription that nobody else wants is called back."""
        if resource.later.pop(number, None) is None:
            del resource.joined[number]
            question = resource.question
            assert question is not None
            if resource.asked_on and not resource.joined and not resource.holders:
                resource.question = None
                resource.on = None
                self._desk.cancel(question)
        self.advance(resource)

    def _hold(self, resource: Resource, client: Client) -> None:
        session = client.session
        assert session is not None
        if client.key not in resource.holders:
            resource.holders[client.key] = client
            if not session.resources:
                session.resources = {}
            session.resources[resource.uri] = resource
            self.holders += 1

    def _let_go(self, resource: Resource, client: Client) -> None:
        session = client.session
        assert session is not None
        if resource.holders.pop(client.key, None) is not None:
            del session.resources[resource.uri]
            self.holders -= 1

    # -- the server ----------------------------------------------------------------

    def advance(self, resource: Resource) -> None:
        """Carry out whose turn has come; then bring the server to the state that is wanted."""
        desk = self._desk
        if resource.question is not None:
            return
        while resource.later:
            number, waiter = next(iter(resource.later.items()))
            if waiter.asked:
                done = resource.on is True
            else:
                self._let_go(resource, waiter.client)
                done = bool(resource.holders)  # for their sake the server is not told
            if not done:
                self._ask(resource, bool(waiter.asked))
                return
            if waiter.asked:
                self._hold(resource, waiter.client)
            del resource.later[number]
            desk.grant(number, waiter)
        if resource.holders and not resource.on:
            self._ask(resource, True)
        elif not resource.holders and resource.on is not False:
            self._ask(resource, False)
        elif not resource.holders:
            self._table.pop(resource.uri, None)
            self._delayed.pop(resource.uri, None)

    def _ask(self, resource: Resource, on: bool) -> None:
        """Ask the server, for all whose turn it is, as soon as it can be asked."""
        if not self._desk.open:
            self._delayed[resource.uri] = resource
            return
        resource.asked_on = on
        for number, waiter in list(resource.later.items()):
            if bool(waiter.asked) is not on:
                break
            resource.joined[number] = resource.later.pop(number)
        method = SUBSCRIBE if on else UNSUBSCRIBE
        resource.question = self._desk.ask(resource, method, {"uri": resource.raw})

    def settled(self, resource: Resource, message: Message | None) -> None:
        """The server has answered: everybody who waited is told the same."""
        resource.question = None
        joined, resource.joined = resource.joined, {}
        done = message is not None and message.error is UNSET
        if resource.asked_on:
            # Of what could not be read nobody knows whether it was carried out.
            resource.on = None if message is None else done
            if done:
                for waiter in joined.values():
                    self._hold(resource, waiter.client)
        else:
            # If it was refused: there is nothing more that could be done about it.
            resource.on = False
        self._desk.pass_on(joined.items(), message)
        if resource.asked_on:
            self._caught_up(resource, done)
        self.advance(resource)

    def _caught_up(self, resource: Resource, done: bool) -> None:
        """Who held it before the server was started again may have missed something; or has lost it."""
        tables = self._tables
        if resource.missed:
            resource.missed = False
            line = notification_line(UPDATED, {"uri": resource.raw})
            line = Raw(tables.codec_up.unmark(bytes(line)))
            for client in resource.holders.values():
                tables.stats.notifications_down += 1
                tables.outbox.put(client, line)
        if not done and resource.holders:
            tables.note(NoticeKind.SUBSCRIPTION_LOST, NOBODY, bytes(resource.raw))
            for client in list(resource.holders.values()):
                self._let_go(resource, client)

    def opened(self) -> None:
        """A new process has a session: tell it what clients hold, before anything else."""
        for resource in list(self._table.values()):
            self.advance(resource)

    def writable(self) -> None:
        """The server's stdin takes more."""
        delayed, self._delayed = self._delayed, {}
        for resource in delayed.values():
            self.advance(resource)

    def closed(self, *, exited: bool) -> None:
        """The process is gone, and with it what it knew; not `exited`: another takes its place already."""
        self._delayed.clear()
        for resource in list(self._table.values()):
            resource.on = False
            resource.question = None
            resource.missed = bool(resource.holders)
            joined, resource.joined = resource.joined, {}
            if exited:
                self._desk.refuse_exited(joined)
            else:
                resource.later = {**joined, **resource.later}
            if not resource.wanted:
                del self._table[resource.uri]

    def late(self, resource: Resource) -> None:
        """The server has not answered in time, and its question was cancelled."""
        self._desk.refuse_late(resource.joined)
        resource.joined.clear()
        self.settled(resource, None)

    def expire(self, oldest: float) -> None:
        """There is no server: whoever came at this time or before waits no longer."""
        for resource in self._table.values():
            self._desk.refuse_old(resource.later, oldest)
        self._forget_unwanted()

    def give_up(self) -> list[tuple[Client, Id]]:
        """Take out whoever waits for a turn; the caller tells them why."""
        ended = [told for r in self._table.values() for told in self._desk.end_all(r.later)]
        self._forget_unwanted()
        return ended

    def _forget_unwanted(self) -> None:
        for resource in list(self._table.values()):
            if not resource.wanted and resource.question is None:
                del self._table[resource.uri]

    def drain(self) -> None:
        """The bridge stops: what the server was not asked yet is refused."""
        for resource in self._table.values():
            self._desk.refuse_stopping(resource.later)
            resource.later.clear()

    # -- updates -------------------------------------------------------------------

    def updated(self, message: Message, params: dict[str, Raw]) -> None:
        """A resource has changed: whoever holds its URI, or a part of it that ends at a slash, is told."""
        tables = self._tables
        raw = params.get("uri")
        try:
            uri = "" if raw is None else _decode_text(raw)
        except msgspec.DecodeError:
            uri = ""
        told: dict[int, Client] = {}
        for resource in self._covering(uri):
            told.update(resource.holders)
        if not told:
            tables.stats.dropped_notifications += 1
            return
        line = Raw(tables.codec_up.render(message))
        tables.stats.notifications_down += tables.outbox.put_to_all(told.values(), line)

    def _covering(self, uri: str) -> Iterator[Resource]:
        """The subscriptions to a URI, and to what it is a part of."""
        table = self._table
        if len(uri) > LOOKED_UP_BYTES or uri.count("/") > LOOKED_UP:
            for known, resource in table.items():
                if uri == known or _is_part(uri, known):
                    yield resource
            return
        if uri in table:
            yield table[uri]
        at = uri.find("/")
        while at >= 0:
            for known in (uri[:at], uri[: at + 1]):
                if known != uri and known in table:
                    yield table[known]
            at = uri.find("/", at + 1)


def _is_part(uri: str, whole: str) -> bool:
    return uri.startswith(whole) and len(uri) > len(whole) and (whole.endswith("/") or uri[len(whole)] == "/")


def held_bytes(session: Session) -> int:
    """What a client's subscriptions take, in bytes."""
    return sum(len(memoryview(resource.raw)) for resource in session.resources.values())
