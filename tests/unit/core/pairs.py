"""A conversation of clients with a server process each, told in messages: see `scenario.py`.

    s = Pairs("A")
    s.client("A", legacy(1)).expect(NEEDS="A")
    s.start("A").expect(a=legacy(1))
    s.server("a", result(1)).expect(A=result(1))

The process of client A is called `a`. `NEEDS` names the clients for which a process was asked, `STOPS` the
processes that are to be stopped.
"""

from __future__ import annotations

from typing import Any

from bridge.core.isolated import Isolated
from bridge.core.outbox import Key, Output
from bridge.core.stats import Stats
from bridge.core.tables import Limits, Notice, NoticeKind
from tests.unit.core.scenario import ROOM, Json, Outcome, line


class PairOutcome(Outcome):
    """What one event brought about."""

    def __init__(self, outcome: Outcome, needs: str, stops: str, notices: list[Notice]) -> None:
        super().__init__(outcome.outputs, outcome.notices, outcome.more)
        self.needs = needs
        self.stops = stops
        self.all_notices = notices

    def expect(self, NEEDS: str = "", STOPS: str = "", **wanted: Any) -> PairOutcome:
        assert (self.needs, self.stops) == (NEEDS, STOPS)
        super().expect(**wanted)
        return self


class Pairs:
    """Clients of one letter each.

    Args:
        clients: who is connected.
        limits: members of `Limits`.
    """

    def __init__(self, clients: str = "A", **limits: Any) -> None:
        self.core = Isolated(Limits(**limits), salt=b"sixteen bytes!!!")
        self.now = 1000.0
        self._last = 0
        self._keys: dict[str, Key] = {}
        self._names: dict[Key, str] = {}
        for name in clients:
            self.join(name)

    @property
    def stats(self) -> Stats:
        return self.core.stats

    @property
    def sizes(self) -> dict[str, int]:
        """The tables that hold anything."""
        return {name: size for name, size in self.core.table_sizes().items() if size}

    def key(self, name: str) -> Key:
        return self._keys[name]

    def _key(self, name: str) -> Key:
        self._last += 1
        key = self._keys[name] = Key(self._last)
        self._names[key] = name
        return key

    def _outcome(self, outputs: list[Output], more: bool = False) -> PairOutcome:
        notices = self.core.take_notices()
        named = [(self._names[key], data) for key, data in outputs]

        def about(kind: NoticeKind) -> str:
            return "".join(self._names[notice.key] for notice in notices if notice.kind is kind)

        rest = [n for n in notices if n.kind not in (NoticeKind.NEED_CHILD, NoticeKind.RETIRE_CHILD)]
        return PairOutcome(
            Outcome(named, rest, more),
            about(NoticeKind.NEED_CHILD),
            about(NoticeKind.RETIRE_CHILD),
            notices,
        )

    def join(self, name: str, *, strict: bool = False) -> None:
        self.core.client_opened(self._key(name), strict=strict)

    def client(self, name: str, *lines: Json | bytes) -> PairOutcome:
        data = b"".join(map(line, lines))
        return self._outcome(self.core.client_data(self._keys[name], data, self.now))

    def turn(self, name: str) -> PairOutcome:
        """The others have had their turn."""
        return self._outcome(self.core.client_turn(self._keys[name], self.now))

    def eof(self, name: str) -> PairOutcome:
        return self._outcome(self.core.client_eof(self._keys[name], self.now))

    def leave(self, name: str) -> PairOutcome:
        return self._outcome(self.core.client_closed(self._keys[name], self.now))

    def start(self, client: str) -> PairOutcome:
        """The client's process runs."""
        key = self._key(client.lower())
        return self._outcome(self.core.server_opened(key, self._keys[client], self.now))

    def fail(self, client: str, *, full: bool = False) -> PairOutcome:
        """There is no process for the client."""
        return self._outcome(self.core.server_failed(self._keys[client], self.now, full=full))

    def server(self, name: str, *lines: Json | bytes) -> PairOutcome:
        data = b"".join(map(line, lines))
        return self._outcome(self.core.server_data(self._keys[name], data, self.now))

    def crash(self, name: str, *, exited: bool = True) -> PairOutcome:
        return self._outcome(self.core.server_closed(self._keys[name], self.now, exited=exited))

    def block(self, name: str) -> None:
        self.core.server_blocked(self._keys[name])

    def unblock(self, name: str, room: int = ROOM) -> PairOutcome:
        return self._outcome(*self.core.server_writable(self._keys[name], room, self.now))

    def wait(self, seconds: float) -> PairOutcome:
        self.now += seconds
        return self._outcome(self.core.tick(self.now))

    def drain(self) -> PairOutcome:
        return self._outcome(self.core.drain(self.now))

    def stop(self) -> PairOutcome:
        return self._outcome(self.core.stop(self.now))
