"""The load generator: one process of those that make the load. `python -S -m tests.bench.load`.

It reads what to do as one line of JSON on stdin, connects its clients, writes `ready`, waits for a line with
two times (CLOCK_MONOTONIC, seconds), begins at once, counts what is answered between the two, and writes one
line of JSON: `done`, `latencies` (pairs of microseconds and how many), `error` (null, or the first fault).
"""

from __future__ import annotations

import gc
import json
import resource
import select
import sys
import time
from typing import Any

from tests.bench.fanout import fan_out, prepare
from tests.bench.http_client import HttpClient
from tests.bench.lines import LineClient, Wrong
from tests.bench.messages import Ring, ring_count

Client = LineClient | HttpClient

# How long answers may take that are still due when the measurement is over, in seconds.
LAST_ANSWERS = 30.0


def histogram(latencies: list[tuple[int, int]]) -> list[tuple[float, int]]:
    """Latencies in ns and their counts, as a histogram: microseconds, in steps of 1 % or less."""
    counts: dict[int, int] = {}
    for ns, count in latencies:
        shift = max(0, ns.bit_length() - 8)
        key = (ns >> shift) << shift
        counts[key] = counts.get(key, 0) + count
    return [(key / 1000, counts[key]) for key in sorted(counts)]


def connect(spec: dict[str, Any]) -> list[Client]:
    """The clients of this process, each ready to send."""
    clients: list[Client] = []
    modern: bool = spec["modern"]
    address = spec["address"]
    kind = HttpClient if isinstance(address, str) and address.startswith("http:") else LineClient
    for number in range(spec["first"], spec["first"] + spec["clients"]):
        client: Client = kind(address, number)
        id_last = client.handshake(modern=modern)
        # A probe of the sizes: the shortest ring there is.
        probe = Ring(number, spec["tool"], spec["pad"], modern=modern, count=1)
        count = ring_count(spec["depth"], probe.request_size + probe.answer_size, spec["all_clients"])
        ring = Ring(number, spec["tool"], spec["pad"], modern=modern, count=count, id_last=id_last)
        client.load(ring, spec["depth"], together=spec["together"])
        clients.append(client)
    return clients


def run(clients: list[Client], begin: int, end: int) -> tuple[int, list[tuple[int, int]]]:
    """Keep all clients busy until `end`; what was answered from `begin` on, and how long each took."""
    now_ns = time.monotonic_ns
    poller = select.epoll()
    by_fd: dict[int, Client] = {}
    for client in clients:
        client.begin()
        by_fd[client.read_fd] = by_fd[client.write_fd] = client
        poller.register(client.read_fd, select.EPOLLIN)

    def watch(client: Client, writing: bool) -> None:
        if client.read_fd == client.write_fd:
            poller.modify(client.read_fd, select.EPOLLIN | (select.EPOLLOUT if writing else 0))
        elif writing:
            poller.register(client.write_fd, select.EPOLLOUT)
        else:
            poller.unregister(client.write_fd)

    for client in clients:
        if not client.send_more(client.depth, now_ns()):
            watch(client, True)
    done_in_time = 0
    in_flight = len(clients) * clients[0].depth
    latencies: list[tuple[int, int]] = []
    while in_flight:
        events = poller.poll(LAST_ANSWERS)
        if not events:
            raise Wrong(f"{in_flight} answers did not come within {LAST_ANSWERS:.0f} s")
        for fd, event in events:
            client = by_fd[fd]
            if event & select.EPOLLOUT and client.flush():
                watch(client, False)
            if not event & ~select.EPOLLOUT:
                continue
            count = client.read()
            if not count:
                continue
            now = now_ns()
            in_flight -= count
            measured = begin <= now < end
            if measured:
                done_in_time += count
            times = client.times
            left = count
            while left:
                first = times[0]
                part = min(left, first[1])
                if measured:
                    latencies.append((now - first[0], part))
                left -= part
                if part == first[1]:
                    times.popleft()
                else:
                    first[1] -= part
            if now < end:
                if client.together:
                    count = 0 if times else client.depth
                if count:
                    was_blocked = client.sent < client.wanted
                    in_flight += count
                    if not client.send_more(count, now) and not was_blocked:
                        watch(client, True)
    return done_in_time, latencies


def raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def perform(spec: dict[str, Any]) -> dict[str, Any]:
    """Do what `spec` says; what was measured. Raises Wrong or OSError."""
    fanning = spec["burst"] > 0
    subscribers = prepare(spec) if fanning else []
    clients = [] if fanning else connect(spec)
    # What is made from now on is dropped at once; walking over the rings would only take time.
    gc.disable()
    print("ready", flush=True)
    begin, end = (int(float(word) * 1e9) for word in sys.stdin.readline().split())
    try:
        if spec["idle"]:
            sys.stdin.readline()
            return {"done": 0, "latencies": []}
        if fanning:
            done, latencies = fan_out(subscribers, spec["burst"], spec["rate"], begin, end)
        else:
            done, latencies = run(clients, begin, end)
    finally:
        for client in (*clients, *subscribers):
            client.close()
    return {"done": done, "latencies": histogram(latencies)}


def main() -> None:
    raise_descriptor_limit()
    spec = json.loads(sys.stdin.readline())
    try:
        outcome = {**perform(spec), "error": None}
    except (Wrong, OSError, ValueError) as error:
        outcome = {"done": 0, "latencies": [], "error": f"{type(error).__name__}: {error}"}
    print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
