"""Flow control: what the bridge holds, and for whom it goes on, when one side does not take what it gets.

Each function takes a load's size, returns the figures, and raises AssertionError where a promise of section 6
of the contract is broken. Memory is the most that was ever resident (`VmHWM`), so nothing can hide between
two looks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.bridge import RunningBridge, running_bridge, server_command, wait_until
from tests.support.client import RawClient, encode, legacy_request, modern_request
from tests.support.scripts import content, env

COMMAND: Final = server_command("scripted.py")

MIB: Final = 1 << 20


@dataclass(frozen=True)
class Way:
    """How clients and bridge meet."""

    transport: str = "unix"
    era: str = "modern"
    sharing: str = "shared"

    def __str__(self) -> str:
        return f"{self.transport}-{self.era}-{self.sharing}"

    def options(self, *more: str) -> list[str]:
        """Of the bridge."""
        return [*more, "--sharing", self.sharing]

    def request(self, method: str, params: dict[str, Any], id: Any) -> bytes:
        """A request's line."""
        make = modern_request if self.era == "modern" else legacy_request
        return encode(make(method, params, id=id))

    def call(self, id: Any, name: str = "do", **arguments: Any) -> bytes:
        """A call's line."""
        return self.request("tools/call", {"name": name, "arguments": arguments}, id)

    async def connect(self, bridge: RunningBridge, **options: Any) -> RawClient:
        """A client that has been greeted."""
        client = await bridge.connect(**options)
        if self.era == "legacy":
            assert "result" in await client.initialize()
        return client

    async def ask(self, client: RawClient, id: Any, name: str = "do", **arguments: Any) -> dict[str, Any]:
        """Call and return what the server says about it."""
        await client.send(self.call(id, name, **arguments))
        return content(await client.response(id))


@contextlib.asynccontextmanager
async def bridge_for(
    way: Way, *options: str, record: Path | None = None, era: str = "dual"
) -> AsyncIterator[RunningBridge]:
    """A bridge with the scripted server, ready in the era of the way."""
    settings = {"era": era}
    async with running_bridge(
        *COMMAND,
        options=way.options(*options),
        listen=way.transport,
        env=env(record=record, settings=settings),
    ) as bridge:
        yield bridge


def memory(bridge: RunningBridge) -> tuple[int, int]:
    """What is resident of a bridge, and the most that ever was, in bytes."""
    status = Path(f"/proc/{bridge.pid}/status").read_text(encoding="ascii")
    found = {name: int(value) << 10 for name, value in re.findall(r"^(\w+):\s+(\d+) kB$", status, re.M)}
    return found["VmRSS"], found["VmHWM"]


def descriptors(bridge: RunningBridge) -> int:
    """How many files, sockets and pipes a bridge has open."""
    return len(os.listdir(f"/proc/{bridge.pid}/fd"))


@contextlib.contextmanager
def frozen(pids: Sequence[int]) -> Iterator[None]:
    """Servers that do nothing for a while, however long that is."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


FILLING: Final = 200
"""Requests that are more than sockets, stdin and a queue take."""


def filling(way: Way, name: str) -> bytes:
    """So many requests, with small answers."""
    return b"".join(way.call(id, name, text="f" * 65536, result={"ok": id}) for id in range(FILLING))


async def push(client: RawClient, data: bytes) -> bytes:
    """Write until the bridge has read nothing for a while; return what is left."""
    refused = 0
    while data and refused < 20:
        sent = client.send_some(data)
        data = data[sent:]
        refused = 0 if sent else refused + 1
        await asyncio.sleep(0 if sent else 0.01)
    return data


@dataclass(frozen=True)
class Held:
    """What a load has cost."""

    start: int
    peak: int
    after: int
    answered: int
    cut: int

    def __str__(self) -> str:
        return (
            f"{self.start / MIB:.1f} MiB resident at first, {self.peak / MIB:.1f} at the peak, "
            f"{self.after / MIB:.1f} at last; {self.answered} answers read, {self.cut} clients cut"
        )


async def never_read(
    way: Way,
    *options: str,
    deaf: int = 16,
    answers: int = 120,
    size: int = 250_000,
    limit: int = 300 * MIB,
) -> Held:
    """Clients that ask for large answers and read none, beside one that reads its own.

    Args:
        options: of the bridge.
        deaf: how many never read.
        answers: how many each of them asks for.
        size: bytes of an answer.
        limit: the most that may be resident.
    """
    async with bridge_for(way, *options) as bridge:
        reader = await way.connect(bridge)
        await way.ask(reader, 0)
        start, _ = memory(bridge)
        clients = [await way.connect(bridge, receive_buffer=4096) for _ in range(deaf)]
        answered = 0
        left = set(clients)
        for turn in range(answers):
            # All of them at the same pace: so that what they leave unread is together as much as can be.
            for client in list(left):
                try:
                    client.send_some(way.call(turn, size=size))
                except OSError:  # it was cut
                    left.remove(client)
            answered += 1
            await way.ask(reader, answered, size=size)
        # Until all of it has been answered or was nobody's any more: the reader's last one is behind it.
        for _ in range(20):
            answered += 1
            await way.ask(reader, answered, size=size)
        cut = len(re.findall(r"was cut", bridge.stderr_text()))
        _, peak = memory(bridge)
        for client in clients:
            client.close()
        before = descriptors(bridge)
        await wait_until(lambda: descriptors(bridge) <= before, what="the deaf ones are gone")
        answered += 1
        await way.ask(reader, answered)
        # What was held is given back within a moment.
        with contextlib.suppress(AssertionError):
            await wait_until(lambda: memory(bridge)[0] < start + 10 * MIB, timeout=5)
        after, _ = memory(bridge)
        reader.close()
        assert peak < limit, f"{peak / MIB:.1f} MiB resident with {deaf} clients that never read"
        return Held(start, peak, after, answered, cut)


async def freeze(
    way: Way,
    *,
    clients: int = 16,
    requests: int = 60,
    size: int = 200_000,
    newcomers: int = 4,
    limit: int = 150 * MIB,
) -> Held:
    """A frozen server, clients that go on pushing large requests, newcomers meanwhile; then a thaw.

    Args:
        clients: how many push.
        requests: how many each of them has to send.
        size: bytes of a request.
        newcomers: how many come meanwhile.
        limit: the most that may be resident.
    """
    # Modern processes are shared in every mode but this one, where each client's has to be frozen.
    apart = way.sharing == "isolated"
    async with bridge_for(way) as bridge:
        pushers = [await way.connect(bridge) for _ in range(clients)]
        pids = {(await way.ask(client, "pid"))["pid"] for client in (pushers if apart else pushers[:1])}
        assert len(pids) == (clients if apart else 1)
        start, _ = memory(bridge)
        with frozen(sorted(pids)):
            # Small answers: what is measured is what waits for the server.
            lines = b"".join(way.call(id, text="p" * size, result={"ok": id}) for id in range(requests))
            rest = await asyncio.gather(*(push(client, lines) for client in pushers))
            assert all(rest), "who pushes into a frozen server is not read for ever"
            new = [await bridge.connect() for _ in range(0 if apart else newcomers)]
            for client in new:
                if way.era == "legacy":
                    assert "result" in await client.initialize()
                    assert (await client.legacy_request("ping"))["result"] == {}
                await client.send(way.call("new", text="n"), b"{}\n")
                # It is read, and answered as far as the bridge can.
                assert (await client.recv())["error"]["code"] == -32600
            _, peak = memory(bridge)
        sending = [
            asyncio.create_task(client.send(data, timeout=60))
            for client, data in zip(pushers, rest, strict=True)
        ]
        answered = 0
        answered = 0

        async def read(client: RawClient, *ids: Any) -> None:
            nonlocal answered
            for id in ids:
                assert "result" in await client.response(id, timeout=60)
                answered += 1

        await asyncio.gather(
            *(read(client, "new") for client in new), *(read(client, *range(requests)) for client in pushers)
        )
        await asyncio.gather(*sending)
        _, peak = memory(bridge)
        for client in [*pushers, *new]:
            client.close()
        async with await way.connect(bridge) as last:
            await way.ask(last, "last")
            after, _ = memory(bridge)
        assert peak < limit, f"{peak / MIB:.1f} MiB resident with {clients} clients at a frozen server"
        return Held(start, peak, after, answered, 0)


async def take_turns(way: Way, folder: Path, *, flood: int = 100, quiet: int = 10) -> int:
    """A flood beside a client with a few requests: how much of the flood overtakes these, in requests.

    Told by the order in which the server reads, not by any clock. Both wait for a server that is frozen.
    """
    record = folder / f"record-{way}"
    async with bridge_for(way, record=record) as bridge:
        block, loud, other = [await way.connect(bridge) for _ in range(3)]
        pid = (await way.ask(loud, "pid"))["pid"]
        padding = "t" * 16384
        with frozen([pid]):
            blocked = await push(block, filling(way, "block"))
            assert blocked
            rest = await push(loud, b"".join(way.call(id, "flood", text=padding) for id in range(flood)))
            few = b"".join(way.call(id, "quiet", text=padding) for id in range(quiet))
            await other.send(few, b"{}\n")
            await other.recv()  # an error: all before it has been read
        sending = [asyncio.create_task(block.send(blocked)), asyncio.create_task(loud.send(rest))]
        for client, count in ((other, quiet), (loud, flood), (block, FILLING)):
            for id in range(count):
                await client.response(id, timeout=30)
        await asyncio.gather(*sending)
        for client in (block, loud, other):
            client.close()
    names = re.findall(rb'"name":"(flood|quiet)"', record.read_bytes())
    last = len(names) - names[::-1].index(b"quiet")
    overtaken = names[:last].count(b"flood")
    assert names.count(b"quiet") == quiet
    assert overtaken <= quiet + 2, f"{overtaken} requests of a flood came before {quiet} of another client"
    return overtaken


async def cancel_first(way: Way, folder: Path, *, behind: int = 5) -> None:
    """A cancellation passes requests that wait: for a server that does not read, and for room in a window."""
    record = folder / f"record-{way}"
    apart = way.sharing == "isolated"
    async with bridge_for(way, "--max-in-flight", "40", record=record) as bridge:
        client, loud = await way.connect(bridge), await way.connect(bridge)
        pid = (await way.ask(client, "pid"))["pid"]
        await client.send(way.call("held", hold="to be cancelled"))
        if not apart:  # a client with a process of its own fills its stdin itself, and then is not read
            with frozen([pid]):
                rest = await push(loud, filling(way, "fill"))
                assert rest
                await client.send(*(way.call(f"behind{n}", "behind") for n in range(behind)))
                await client.cancel("held", "it must pass the queue")
                await client.send(b"{}\n")
                await client.recv()  # an error: all before it has been read
            sending = asyncio.create_task(loud.send(rest))
            for id in range(FILLING):
                await loud.response(id, timeout=30)
            await sending
            for n in range(behind):
                await client.response(f"behind{n}")
        # What waits for room in its client's window is passed, too.
        await client.send(*(way.call(f"window{n}", hold="window") for n in range(40)))
        await client.send(*(way.call(f"after{n}", "after") for n in range(behind)))
        for n in range(3):
            await client.cancel(f"window{n}", "it must pass the window")
        for n in range(behind):
            await client.response(f"after{n}")
        client.abort()
        loud.abort()
    text = record.read_bytes()
    if not apart:
        assert text.index(b"it must pass the queue") < text.index(b'"behind"')
    assert text.index(b"it must pass the window") < text.index(b'"after"')
