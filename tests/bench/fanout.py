"""Notifications to many subscribers: one more client asks for them, and every delivery is checked."""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any

from tests.bench.echo import META, SEQUENCE
from tests.bench.lines import READ, LineClient, Wrong
from tests.bench.messages import request

LISTEN_ID = 7
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
# How many notifications are taken up at once before the measurement: more would pile up in the bridge.
LEARN = 10
# How long a notification may take, in seconds.
LATEST = 30.0


class Subscriber(LineClient):
    """A client that only listens."""

    def listen(self, *, distinct: bool) -> None:
        """Subscribe, and wait until that is acknowledged; `distinct`: to what nobody else does."""
        wanted: dict[str, object] = {"toolsListChanged": True}
        if distinct:
            wanted = {"resourceSubscriptions": [f"bench://{self.number:05d}"]}
        self.tell(
            b'{"method":"subscriptions/listen","params":{"notifications":%b,%b},"jsonrpc":"2.0","id":%d}'
            % (json.dumps(wanted).encode(), META, LISTEN_ID)
        )
        message = self.next_message()
        if message.get("method") != "notifications/subscriptions/acknowledged":
            raise Wrong(f"client {self.number}: not acknowledged: {message}")

    def learn(self, lines: list[bytes], *, distinct: bool, known: dict[bytes, bytes]) -> None:
        """Check each of the notifications that are going around, by value; from now on bytes are compared.

        Args:
            lines: all of them, in order, as they came.
            known: those that were found right before, so that equal ones are checked and kept once.
        """
        ring = b"".join(lines)
        if ring not in known:
            # The server has been counting since it started.
            first = int(json.loads(lines[0])["params"]["seq"])
            for number, line in enumerate(lines, first):
                params = json.loads(line)["params"]
                uri = f"bench://{self.number:05d}" if distinct else None
                if (
                    params["seq"] != f"{number % SEQUENCE:03d}"
                    or params["_meta"][SUBSCRIPTION] != LISTEN_ID
                    or params.get("uri") != uri
                ):
                    raise Wrong(f"client {self.number}: not for it, or not in order: {line!r}")
            if distinct:
                known.clear()
            known[ring] = ring * 2
        self.expected = known[ring]
        self.size = len(lines[0])
        self.got = 0
        os.set_blocking(self.read_fd, False)

    def next_line(self) -> bytes:
        """Wait for a line; with its newline."""
        while b"\n" not in self.rest:
            data = os.read(self.read_fd, READ)
            if not data:
                raise Wrong(f"client {self.number}: the connection ended")
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        return line + b"\n"

    def take(self) -> tuple[int, int]:
        """Read once; the first and the last but one of the notifications that came whole. Raises Wrong."""
        data = os.read(self.read_fd, READ)
        before = self.got
        if not data or not self.expected.startswith(data, before % (self.size * SEQUENCE)):
            raise Wrong(f"client {self.number}: not the notification that was due: {data[:200]!r}")
        self.got = before + len(data)
        return before // self.size, self.got // self.size


def prepare(spec: dict[str, Any]) -> list[Subscriber]:
    """The subscribers, and behind them the client that asks."""
    subscribers = []
    for number in range(spec["clients"]):
        subscriber = Subscriber(spec["address"], number)
        subscriber.listen(distinct=spec["distinct"])
        subscribers.append(subscriber)
    asker = Subscriber(spec["address"], spec["clients"])
    lines: list[list[bytes]] = [[] for _ in subscribers]
    for _ in range(0, SEQUENCE, LEARN):
        asker.ask(request(1, f"emit-{LEARN}", b"x", modern=True))
        for subscriber, learnt in zip(subscribers, lines, strict=True):
            learnt += [subscriber.next_line() for _ in range(LEARN)]
    known: dict[bytes, bytes] = {}
    for subscriber, learnt in zip(subscribers, lines, strict=True):
        subscriber.learn(learnt, distinct=spec["distinct"], known=known)
    return [*subscribers, asker]


def fan_out(
    clients: list[Subscriber], burst: int, rate: float, begin: int, end: int
) -> tuple[int, list[tuple[int, int]]]:
    """Have `burst` notifications emitted, again and again until `end`.

    Args:
        rate: how often in a second; 0: each time as soon as all of the last have arrived.

    Returns:
        Deliveries from `begin` on, and how long each took from the request that caused it.
    """
    *subscribers, asker = clients
    ask = request(1, f"emit-{burst}", b"x", modern=True) + b"\n"
    poller = select.epoll()
    by_fd = {subscriber.read_fd: subscriber for subscriber in subscribers}
    for fd in by_fd:
        poller.register(fd, select.EPOLLIN)
    poller.register(asker.read_fd, select.EPOLLIN)
    period = int(1e9 / rate) if rate else 0
    times: list[int] = []  # when each burst was due
    due = time.monotonic_ns()
    missing = delivered = 0
    latencies: list[tuple[int, int]] = []
    while True:
        now = time.monotonic_ns()
        while now < end and (now >= due if period else not missing):
            times.append(due if period else now)
            due += period
            missing += burst * len(subscribers)
            os.write(asker.write_fd, ask)
        if now >= end and not missing:
            break
        wait = min(LATEST, max(0, due - now) / 1e9) if period and now < end else LATEST
        events = poller.poll(wait)
        if not events and wait == LATEST:
            raise Wrong(f"{missing} notifications did not come within {LATEST:.0f} s")
        for fd, _ in events:
            if fd == asker.read_fd:
                os.read(fd, READ)
                continue
            first, last = by_fd[fd].take()
            missing -= last - first
            now = time.monotonic_ns()
            if begin <= now < end:
                delivered += last - first
                latencies += [(now - times[number // burst], 1) for number in range(first, last)]
    return delivered, latencies
