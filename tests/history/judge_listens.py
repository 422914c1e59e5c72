"""What one client got on its subscriptions, compared with what it asked for and what the server sent."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tests.history.record import Message, Sent, id_key, same, show
from tests.history.server import PREFIX, filter_key

if TYPE_CHECKING:
    from tests.history.judge_client import ClientJudge

SUBSCRIPTION_ID: Final = PREFIX + "subscriptionId"
REFUSED: Final = -32602
"""What the server says to a listen that it does not want."""
OPENINGS_SPENT: Final = -31001
OPENINGS: Final = 3
"""Processes in a row that may die before they acknowledge a listen."""
"""The bridge gives a listen up that no server lived long enough to acknowledge."""


class Listen:
    """One subscription of this client."""

    __slots__ = (
        "acked_at",
        "changes",
        "dead",
        "ended_at",
        "got",
        "last_life",
        "outcome",
        "reached",
        "sent",
        "streams",
    )

    def __init__(self, sent: Sent) -> None:
        self.sent = sent
        self.acked_at: float | None = None
        self.ended_at: float | None = None
        self.outcome = False
        self.dead = False
        """The bridge has surely seen that it was cancelled."""
        self.streams: dict[tuple[str, str], int] = {}
        """Of each listen at the server that served it: the number of its last notification."""
        self.last_life = ""
        self.got: set[tuple[str, str, int]] = set()
        self.reached: dict[str, int] | None = None
        """See `ClientJudge.reached`: as it was when this ended."""
        self.changes: Counter[str] = Counter()
        """What the bridge itself said may have changed, since the last notification of the server's."""

    def held_at(self, at: float, client: ClientJudge) -> bool:
        """Whether this client surely held it at that time."""
        if self.acked_at is None or self.acked_at >= at:
            return False
        ends = [end for end in (self.ended_at, client.gone_at) if end is not None]
        if client.half is not None:
            ends.append(client.half.at)
        return min(ends, default=at + 1) > at


class ListenJudge:
    """Judges the subscriptions of one connection."""

    def __init__(self, client: ClientJudge) -> None:
        self._client = client
        self.listens: list[Listen] = []
        self._by_id: dict[tuple[type, object], Listen] = {}

    def open(self, sent: Sent) -> None:
        """The client asks for one. Its id is its own on this connection."""
        listen = Listen(sent)
        self.listens.append(listen)
        self._by_id[id_key(sent.id)] = listen

    def cancel(self, sent: Sent) -> None:
        """The client gives one up, if the id is one's."""
        listen = self._by_id.get(id_key(sent.id))
        if listen is not None and listen.ended_at is None:
            listen.ended_at = sent.at
            self._over(listen)

    def answered(self, seq: int) -> None:
        """The bridge has surely read everything before the client's line `seq`."""
        for listen in self.listens:
            if listen.ended_at is not None and listen.sent.seq < seq and self._cancelled_before(listen, seq):
                listen.dead = True

    def _cancelled_before(self, listen: Listen, seq: int) -> bool:
        return any(
            isinstance(event, Sent)
            and event.kind == "cancel"
            and event.seq < seq
            and same(event.id, listen.sent.id)
            for event in self._client.connection.events
        )

    def response(self, message: Message) -> bool:
        """Take a response; False if it is none of a listen's."""
        listen = self._by_id.get(id_key(message["id"]))
        if listen is None:
            return False
        client, name = self._client, f"listen {listen.sent.id!r} ({listen.sent.filter})"
        if listen.outcome:
            client.complain("two-outcomes", f"{name}: {show(message)}")
        elif listen.dead:
            client.complain("after-cancel", f"{name} was answered long after it was cancelled")
        listen.outcome = True
        now = client.now
        self._over(listen)
        if listen.ended_at is None:
            listen.ended_at = now
        error = message.get("error")
        if error is not None:
            refused = error.get("code") == REFUSED and "refuse" in listen.sent.filter
            spent = error.get("code") == OPENINGS_SPENT and client.facts.deaths
            if listen.acked_at is not None and not client.connection.apart:
                spent = spent and self._openings(listen.acked_at) >= OPENINGS
            if not refused and not spent:
                client.complain("wrong-outcome", f"{name} earned {show(message)}")
            return True
        got = (message.get("result") or {}).get("_meta", {}).get(SUBSCRIPTION_ID)
        if not same(got, listen.sent.id):
            client.complain("wrong-id", f"{name} was ended as {got!r}")
        if client.half is None and not self._ended_by_server(listen.sent.filter):
            client.complain("wrong-outcome", f"{name} was ended by nobody")
        return True

    def _ended_by_server(self, filter: str) -> bool:
        return any(heard.filter == filter and heard.ended for heard in self._client.facts.heard.values())

    def _openings(self, acked_at: float) -> int:
        """How many shared processes that were started since an acknowledgement have died."""
        lives = self._client.facts.lives
        return sum(life.died and not life.apart and life.started > acked_at for life in lives)

    def notification(self, method: str, params: dict[str, Any], message: Message) -> bool:
        """Take a notification; False if it names no subscription."""
        client = self._client
        if method == "notifications/cancelled":
            listen = self._by_id.get(id_key(params.get("requestId")))
            if listen is None or listen.outcome or listen.dead:
                client.complain("stray-subscription", f"received {show(message)}")
            else:
                listen.outcome = True
                self._over(listen)
                listen.ended_at = listen.ended_at or client.now
                if not self._ended_by_server(listen.sent.filter):
                    client.complain("wrong-outcome", f"{listen.sent.id!r} was cancelled by nobody")
            return True
        meta = params.get("_meta") or {}
        if SUBSCRIPTION_ID not in meta:
            return False
        listen = self._by_id.get(id_key(meta[SUBSCRIPTION_ID]))
        if listen is None or listen.outcome or listen.dead:
            client.complain("stray-subscription", f"received {show(message)}")
        elif method == "notifications/subscriptions/acknowledged":
            if listen.acked_at is not None:
                client.complain("two-outcomes", f"{listen.sent.id!r} was acknowledged twice")
            listen.acked_at = client.now
            if filter_key(params.get("notifications") or {}) != listen.sent.filter:
                client.complain("altered", f"{listen.sent.filter} was acknowledged as {show(message)}")
        elif listen.acked_at is None:
            client.complain("unacknowledged", f"before its acknowledgement came {show(message)}")
        else:
            self._changed(listen, method, params, message)
        return True

    def _changed(self, listen: Listen, method: str, params: dict[str, Any], message: Message) -> None:
        client = self._client
        kind = "tools" if method == "notifications/tools/list_changed" else str(params.get("uri"))
        wanted = listen.sent.filter.split(",")
        mark = params.get("mark")
        if kind not in wanted and kind != "demo:slow":
            client.complain("stray-subscription", f"{listen.sent.filter} received {show(message)}")
        elif mark is None:
            listen.changes[kind] += 1
            if listen.changes[kind] >= sum(life.era == "modern" for life in client.history.lives):
                client.complain("stray-subscription", f"without a restart came {show(message)}")
        else:
            life, uid, number, key = mark.split("/", 3)
            heard = client.facts.heard.get((life, uid))
            if (
                heard is None
                or key != listen.sent.filter
                or (heard.mark if heard.mark != "-" else "") != listen.sent.mark
            ):
                client.complain("stray-subscription", f"{listen.sent.filter} received {show(message)}")
                return
            last = listen.streams.get((life, uid))
            if last is not None and int(number) != last + 1:
                client.complain(
                    "lost-notification", f"{listen.sent.id!r}: {number} of {uid} came after {last}"
                )
            listen.streams[life, uid] = int(number)
            listen.got.add((life, uid, int(number)))
            if life != listen.last_life:
                if listen.last_life and set(listen.changes) != set(wanted):
                    client.complain(
                        "missed-change", f"{listen.sent.id!r} was not told after a restart: {wanted}"
                    )
                listen.last_life = life
            listen.changes.clear()

    def _over(self, listen: Listen) -> None:
        if listen.reached is None:
            listen.reached = dict(self._client.reached)

    # -- the end -----------------------------------------------------------------------

    def over(self) -> None:
        """From here on nothing is owed on any of them."""
        for listen in self.listens:
            self._over(listen)

    def complete(self) -> None:
        """What the server said to the holders of a shared subscription has come to each of them.

        What a server process wrote before an answer that came here must have come, too.
        """
        client = self._client
        for listen in self.listens:
            if listen.acked_at is None or listen.sent.mark or client.connection.lazy:
                continue
            reached = listen.reached or {}
            for each in client.facts.emitted.get(listen.sent.filter, ()):
                if (
                    each.at > listen.acked_at
                    and each.position < reached.get(each.life, -1)
                    and (each.life, each.uid, each.number) not in listen.got
                ):
                    client.complain(
                        "lost-notification", f"{listen.sent.id!r} never got {each.number} of {each.uid}"
                    )

    def half_closed(self) -> None:
        """The client stopped sending, and the bridge closed in time: each has had its graceful end."""
        for listen in self.listens:
            if listen.ended_at is None and not self._client.connection.lazy:
                self._client.complain("half-close-lost", f"listen {listen.sent.id!r} was not ended")

    def all_settled(self) -> None:
        """The client was ready to wait: none is without acknowledgement or end."""
        for listen in self.listens:
            if listen.acked_at is None and not listen.outcome and listen.ended_at is None:
                self._client.complain("no-outcome", f"listen {listen.sent.id!r} ({listen.sent.filter})")
