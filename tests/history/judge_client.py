"""What one client got, compared with what it sent and with what the server did."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from tests.history.judge_listens import ListenJudge
from tests.history.judge_sessions import KINDS, UNKNOWN, SessionJudge
from tests.history.record import (
    Connection,
    Ended,
    History,
    Life,
    Message,
    Received,
    Sent,
    Violation,
    id_key,
    same,
    show,
)

if TYPE_CHECKING:
    from tests.history.judge import Facts, Served

UNANSWERED: Final = frozenset({"hang", "late"})
"""What the server does with a request that it never answers by itself."""

SERVER_EXITED: Final = -31001
SERVER_UNAVAILABLE: Final = -31002
OVERLOADED: Final = -31003
TOO_LARGE: Final = -31004
INVALID_RESPONSE: Final = -31008

MANY: Final = 3
"""Replacements of one process after which the bridge may stop it although it still owes answers."""
CLOSING: Final = 3.0
"""How long after its process's death, in seconds, a client is closed at the latest, on a busy machine."""

BAD_LINES: Final = 10
"""In a row: then the bridge may close a Unix connection; on TCP after the first."""


BRIDGES_OWN = [
    {"jsonrpc": "2.0", "method": f"notifications/{kind}/list_changed", "params": {}}
    for kind in ("tools", "prompts", "resources")
]
"""What the bridge itself tells legacy clients when their server was started again; servers mark theirs."""


class Asked:
    """A request of this client."""

    __slots__ = ("cancelled", "cancelled_seq", "outcome", "progress", "sent", "sure")

    def __init__(self, sent: Sent) -> None:
        self.sent = sent
        self.outcome: Message | None = None
        self.cancelled: float | None = None
        self.cancelled_seq = 0
        self.sure = False
        """The bridge has surely seen the cancellation: a later request was answered."""
        self.progress: list[int] = []


class ClientJudge:
    """Judges one connection."""

    def __init__(
        self, history: History, connection: Connection, facts: Facts, found: list[Violation]
    ) -> None:
        self.history = history
        self.connection = connection
        self.facts = facts
        self.found = found
        self.name = f"client {connection.number} ({connection.transport}, {connection.era})"
        self.by_mark: dict[str, Asked] = {}
        self.open: dict[tuple[type, object], list[Asked]] = {}
        self.unread_bad: list[Sent] = []
        self.listens = ListenJudge(self)
        self.sessions = SessionJudge(self)
        self.bad_in_row = 0
        self.provoked = False
        self.half: Ended | None = None
        self.end: Ended | None = None
        self.gone_at: float | None = None
        self.last_answered = -1
        self.changes: set[str] = set()
        self.told: Counter[str] = Counter()
        self.reached: dict[str, int] = {}
        """For each server process: the position in its log up to which its output has surely come here.

        While it serves: what one that was replaced says on its own is nobody's.
        """
        self.to_come = Counter(mentioned(e) for e in connection.events if isinstance(e, Received))
        """How often each request is still mentioned by what is received later."""
        self.now = 0.0
        """When the event happened that is being looked at."""

    def complain(self, rule: str, what: str) -> None:
        self.found.append(Violation(rule, f"{self.name}: {what}"))

    # -- the connection's events, in order -------------------------------------------

    def judge(self) -> None:
        for event in self.connection.events:
            self.now = event.at
            if isinstance(event, Sent):
                self._sent(event)
            elif isinstance(event, Received):
                self.to_come[mentioned(event)] -= 1
                self._received(event)
            elif event.how == "half":
                self.half = event
                self.listens.over()
                self.sessions.over(event.at)
            elif self.end is None:
                self.end = event
                self.sessions.over(event.at)
        self._ended()

    def abandoned_at(self, mark: str) -> float | None:
        """When a request was given up: cancelled, or its connection ended. None: it was not."""
        asked = self.by_mark.get(mark)
        times = [] if asked is None or asked.cancelled is None else [asked.cancelled]
        if self.gone_at is not None:
            times.append(self.gone_at)
        return min(times, default=None)

    def _sent(self, sent: Sent) -> None:
        if sent.kind in ("cancel",):
            for asked in self.open.get(id_key(sent.id), []):
                if asked.cancelled is None and asked.sent.kind != "initialize":
                    asked.cancelled, asked.cancelled_seq = sent.at, sent.seq
            self.listens.cancel(sent)
            return
        if sent.kind == "bad":
            # Only a line that is no JSON counts; what else is wrong shows that the client is no stranger.
            self.bad_in_row = self.bad_in_row + 1 if -32700 in sent.codes else 0
            if -32700 in sent.codes and (self.connection.transport == "tcp" or self.bad_in_row >= BAD_LINES):
                self.provoked = True
            if sent.id is None:
                self.unread_bad.append(sent)
                return
        else:
            self.bad_in_row = 0
        if sent.kind == "note":
            return
        if sent.kind == "answer":
            self.sessions.answers(sent)
            return
        asked = Asked(sent)
        if sent.mark:
            self.by_mark[sent.mark] = asked
        if sent.kind in KINDS:
            self.sessions.sent(sent)
        if sent.kind == "listen":
            self.listens.open(sent)
        else:
            self.open.setdefault(id_key(sent.id), []).append(asked)

    def _received(self, received: Received) -> None:
        message = received.message
        if message is None:
            self.complain("no-message", f"received {received.blob[:200]!r}")
        elif "method" in message:
            self._notified(message)
        elif "id" not in message:
            self._without_id(message)
        elif not self.listens.response(message):
            self._response(message, received)

    # -- responses -------------------------------------------------------------------

    def _without_id(self, message: Message) -> None:
        code = message.get("error", {}).get("code")
        for sent in self.unread_bad:
            if code in sent.codes:
                self.unread_bad.remove(sent)
                return
        self.complain("two-outcomes", f"an error that no line earned: {show(message)}")

    def _response(self, message: Message, received: Received) -> None:
        mark = mark_of(message)
        if mark is not None:
            asked = self.by_mark.get(mark)
            if asked is None:
                self.complain("foreign-response", f"received {show(message)}")
                return
            if not same(message["id"], asked.sent.id):
                self.complain("wrong-id", f"{asked.sent.id!r} of {mark} came back as {message['id']!r}")
        else:
            asked = self._unmarked(message)
            if asked is None:
                self.complain("two-outcomes", f"nobody asked for {show(message)}")
                return
        self._outcome(asked, message, received)

    def _unmarked(self, message: Message) -> Asked | None:
        """Whose a response without a mark must be: of the requests with its id, one that fits best."""
        candidates = self.open.get(id_key(message["id"]), [])
        if len(candidates) == 1:
            return candidates[0]
        error = message.get("error")
        return min(candidates, key=lambda asked: self._rank(asked, error), default=None)

    def _rank(self, asked: Asked, error: Any) -> tuple[int, bool]:
        """How badly an unmarked response would fit a request: some clients use one id for everything."""
        run = next(iter(self.facts.served.get(asked.sent.mark, [])), None)
        name = asked.sent.do.split(":")[0]
        code = error.get("code") if isinstance(error, dict) else None
        if code in asked.sent.codes:
            rank = 0
        elif asked.sent.mark and self.to_come[asked.sent.mark]:
            rank = 9  # its outcome comes behind all else that is said of it
        elif not isinstance(error, dict):
            rank = 0 if asked.sent.kind in ("initialize", "ping", *KINDS) else 9
        elif code in (INVALID_RESPONSE, TOO_LARGE):
            right = name == ("damaged" if code == INVALID_RESPONSE else "huge")
            rank = 9 if not right or run is None else 1 - run.instead
        elif error.get("data", {}).get("delivered") is False:
            rank = 0 if run is None else 9
        elif run is None:
            rank = 1
        elif run.flushed or run.at > self.now or not run.life.died or run.life.events[-1].at > self.now:
            rank = 9  # its process has died, but it was alive when the client read this
        else:
            rank = 0 if run.answered is None and not run.instead else 2
        return rank, asked.cancelled is not None

    def _given_up(self, life: Life, at: float) -> bool:
        """Whether the bridge stopped a shared process that owed an answer, without many younger ones."""
        if life.apart or not life.stopped:
            return False
        return sum(other.settled <= at for other in self.facts.successors(life)) < MANY

    def _died(self, asked: Asked) -> bool:
        runs = self.facts.served.get(asked.sent.mark, [])
        return any(run.life.died and not run.flushed and not run.instead for run in runs)

    def _outcome(self, asked: Asked, message: Message, received: Received) -> None:
        sent = asked.sent
        what = f"{sent.mark or sent.kind} ({sent.do or sent.kind}, id {sent.id!r})"
        if asked.outcome is not None:
            self.complain("two-outcomes", f"{what}: {show(asked.outcome)} and {show(message)}")
            return
        asked.outcome = message
        same_id = self.open.get(id_key(sent.id), [])
        if asked in same_id:
            same_id.remove(asked)
        if asked.sure:
            self.complain("after-cancel", f"{what} was answered long after it was cancelled: {show(message)}")
        self._note_answered(sent.seq)
        if sent.kind in KINDS:
            self.sessions.settled(sent, message)
        run = next(iter(self.facts.served.get(sent.mark, [])), None) if sent.mark else None
        error = message.get("error")
        own = isinstance(error, dict) and isinstance(error.get("data"), dict) and error["data"].get("source")
        if isinstance(error, dict) and own == "mcp-bridge":
            self._own_error(asked, error, run, what, received.at)
        elif "error" in message and self.sessions.fits(sent, error):
            pass
        elif sent.codes or (sent.kind in KINDS and "error" in message):
            self.complain("wrong-outcome", f"{what} earned {show(message)}")
        elif sent.kind == "call":
            self._server_answer(asked, message, run, what, received)

    def _note_answered(self, seq: int) -> None:
        """The bridge has surely read everything before the request that it answers now."""
        if seq <= self.last_answered:
            return
        self.last_answered = seq
        for group in self.open.values():
            for asked in group:
                if asked.cancelled is not None and asked.cancelled_seq < seq:
                    asked.sure = True
        self.listens.answered(seq)

    def _server_answer(
        self, asked: Asked, message: Message, run: Served | None, what: str, received: Received
    ) -> None:
        sent = asked.sent
        name = sent.do.split(":")[0]
        result = message.get("result")
        if run is None or run.answered is None:
            if name != "late" or run is None or run.cancelled is None:
                self.complain("wrong-outcome", f"{what} was never answered by the server: {show(message)}")
            return
        if received.at < self.facts.replaced_from.get(run.life.name, received.at):
            self.reached[run.life.name] = max(self.reached.get(run.life.name, -1), run.answered)
        if run.cancelled is not None and run.cancelled < run.answered:
            self.complain("after-cancel", f"{what} was answered after its cancellation, and delivered")
        if "error" in message:
            if name not in ("error", "about-task"):
                self.complain("altered", f"{what} earned {show(message)}")
            return
        if not isinstance(result, dict):
            self.complain("altered", f"{what} earned {show(message)}")
            return
        if result.get("n") != 0:
            self.complain("two-outcomes", f"{what}: copy {result.get('n')} of its answer was delivered")
        grown = name == "big" and received.blob[: len(sent.blob) - 1] == sent.blob[:-1]
        if received.blob != sent.blob and not grown and not run.do.startswith("crash:big"):
            self.complain("altered", f"{what}: sent {sent.blob[:200]!r}, received {received.blob[:200]!r}")
        if "id" in message and set(message) - {"jsonrpc", "id", "result", "unknown"}:
            self.complain("altered", f"{what}: strange members in {show(message)}")
        self.sessions.result(asked, run.life, result)
        if sent.token is not None and asked.progress != run.progress:
            self.complain("lost-progress", f"{what}: {run.progress} was sent, {asked.progress} came")

    def _own_error(self, asked: Asked, error: Message, run: Served | None, what: str, at: float) -> None:
        """An error of the bridge's own: is it true, and was there reason for it?"""
        sent = asked.sent
        code, delivered = error.get("code"), error["data"].get("delivered")
        name = sent.do.split(":")[0]
        if delivered is False and run is not None:
            self.complain("broken-promise", f"{what} was refused as never delivered, and ran: {show(error)}")
        if run is not None and run.flushed and (run.cancelled is None or run.cancelled > (run.answered or 0)):
            self.complain("lost-answer", f"{what} was answered by the server, and earned {show(error)}")
        if sent.codes:
            fits = code in sent.codes
        elif code == INVALID_RESPONSE:
            fits = name == "damaged" and run is not None and delivered is True
        elif code == TOO_LARGE:
            fits = name == "huge" and run is not None and delivered is True
        elif code == SERVER_EXITED:
            died = run.life.died if run is not None else self.facts.deaths
            fits = died and (delivered is True or (self.connection.apart and run is None))
            if fits and run is not None and self._given_up(run.life, at):
                self.complain("lost-request", f"{what} was given up by a bridge that stopped its server")
        elif code == UNKNOWN and name == "about-task":
            fits = delivered is False and run is None and self.sessions.forgotten(sent.filter, at)
        elif code == SERVER_UNAVAILABLE:
            fits = delivered is False and at - sent.at >= self.history.rules.restart_wait - 0.5
        elif code == OVERLOADED:
            waiting = sum(len(group) for group in self.open.values())
            fits = delivered is False and waiting >= self.history.rules.max_queued
        else:
            fits = False
        if not fits:
            self.complain("wrong-outcome", f"{what} earned {show(error)}")

    # -- notifications ---------------------------------------------------------------

    def _notified(self, message: Message) -> None:
        method = message["method"]
        params = message.get("params") or {}
        if "id" in message:
            if not self.sessions.question(message):
                self.complain("stray-request", f"received {show(message)}")
        elif method == "notifications/progress":
            self._progress(params, message)
        elif self.connection.era == "legacy" and self.sessions.notification(method, params, message):
            pass
        elif method == "notifications/message":
            asked = self.by_mark.get(str(params.get("data")))
            if asked is None:
                self.complain("stray-log", f"received {show(message)}")
            elif asked.outcome is not None or not asked.sent.do.startswith("log"):
                self.complain("stray-log", f"received {show(message)} after its request had ended")
        elif self.listens.notification(method, params, message):
            pass
        elif message in BRIDGES_OWN and self.connection.era == "legacy":
            # After a restart, since changes may have been missed.
            self.told[method] += 1
            if self.told[method] >= sum(life.era == "legacy" for life in self.facts.lives):
                self.complain("stray-notification", f"without a restart came {show(message)}")
        elif method == "notifications/tools/list_changed" and self.connection.era == "legacy":
            mark = str(params.get("mark"))
            if not mark.endswith("/legacy") or mark in self.changes:
                self.complain("stray-notification", f"received {show(message)}")
            self.changes.add(mark)
        else:
            self.complain("stray-notification", f"received {show(message)}")

    def _progress(self, params: dict[str, Any], message: Message) -> None:
        asked = self.by_mark.get(str(params.get("message")))
        over = asked is not None and asked.outcome is not None and not asked.sent.do.startswith("task")
        if asked is None or asked.sent.token is None or over or asked.sure:
            self.complain("stray-progress", f"received {show(message)}")
        elif not same(params.get("progressToken"), asked.sent.token):
            self.complain("wrong-id", f"token {asked.sent.token!r} came back in {show(message)}")
        else:
            number = params.get("progress", -1)
            if number >= 99 or (asked.progress and number <= asked.progress[-1]):
                self.complain("stray-progress", f"received {show(message)}")
            asked.progress.append(number)

    # -- the end ---------------------------------------------------------------------

    def _ended(self) -> None:
        self.listens.over()
        self.listens.complete()
        self.sessions.complete()
        end = self.end
        if end is None:
            self.complain("no-outcome", "the connection was never ended; the history is not complete")
            return
        if self.connection.lazy and not end.waited:
            self.gone_at = 0.0  # it may have been cut at any time, without seeing it
            self._closed_by_bridge(end)
        elif end.how in ("eof", "reset"):
            self.gone_at = 0.0 if self.half is None and self.provoked else end.at
            if self.half is not None:
                self.gone_at = self.half.at + self.history.rules.linger * 0.9
            self._closed_by_bridge(end)
        else:
            self.gone_at = end.at
            if self.half is not None:
                self.gone_at = min(end.at, self.half.at + self.history.rules.linger * 0.9)
            if end.waited:
                self._outlives(end)
                self._all_settled(end)
                if self.half is not None:
                    self.complain("no-end", "it stopped sending, was owed nothing, and was not closed")

    def _unsettled(self) -> list[Asked]:
        return [asked for group in self.open.values() for asked in group if asked.cancelled is None]

    def _all_settled(self, end: Ended) -> None:
        for asked in self._unsettled():
            if asked.sent.do.split(":")[0] not in UNANSWERED or self._died(asked):
                waited = end.at - asked.sent.at
                what = f"{asked.sent.mark or asked.sent.kind} ({asked.sent.do}, id {asked.sent.id!r})"
                self.complain("no-outcome", f"{what} for {waited:.1f} s")
        for sent in self.unread_bad:
            self.complain("no-outcome", f"a bad line earned none of {sent.codes}")
        self.listens.all_settled()

    def _outlives(self, end: Ended) -> None:
        """A client whose own process has died is closed."""
        for life in self.history.lives:
            if life.apart and self.connection.number in self.facts.owners[life.name] and life.died:
                deaths = [event.at for event in life.events if event.kind == "D"]
                if deaths and end.at - deaths[0] > CLOSING:
                    self.complain("no-end", f"its process {life.name} died, and it was not closed")

    def _closed_by_bridge(self, end: Ended) -> None:
        if self._lost_its_process(end):
            return
        if self.half is None:
            if not self.connection.lazy and not self.provoked:
                self.complain(
                    "closed-without-cause", f"{end.how}, with {len(self._unsettled())} requests open"
                )
            return
        if end.at - self.half.at < self.history.rules.linger:
            left = self._unsettled()
            if left and not self.connection.lazy and not self.provoked:
                marks = ", ".join(f"{asked.sent.mark} ({asked.sent.do})" for asked in left[:5])
                self.complain(
                    "half-close-lost", f"closed {end.at - self.half.at:.2f} s after it, owing {marks}"
                )
            self.listens.half_closed()

    def _lost_its_process(self, end: Ended) -> bool:
        """Whether its own process has died: then the bridge closes, once everything is answered."""
        if not self.connection.apart:
            return False
        number = self.connection.number
        died = [life for life in self.history.lives if life.apart and life.died]
        own = [life for life in died if number in self.facts.owners[life.name]]
        for asked in self._unsettled():
            runs = self.facts.served.get(asked.sent.mark, [])
            if any(run.life in own for run in runs) and not self.connection.lazy:
                self.complain("no-outcome", f"{asked.sent.mark} ({asked.sent.do}), when its process had died")
        # One that never got a request may be anybody's.
        return bool(own) or any(not self.facts.owners[life.name] for life in died)


def mentioned(received: Received) -> str:
    """The mark of the request that something received is about, or nothing."""
    message = received.message or {}
    params = message.get("params")
    if not isinstance(params, dict):
        return mark_of(message) or ""
    return str(params.get("message") or params.get("data") or "")


def mark_of(message: Message) -> str | None:
    """The mark that a server's response carries, if it does."""
    body = message.get("result")
    if not isinstance(body, dict):
        error = message.get("error")
        body = error.get("data") if isinstance(error, dict) else None
    mark = body.get("mark") if isinstance(body, dict) else None
    return mark if isinstance(mark, str) else None
