"""Clients that come and go, a hundred thousand of them: nothing of them may stay.

Half of them by Unix socket, half by TCP; each does one of `KINDS`. Memory and descriptors are looked at
while nobody is connected: behind a warm-up, and at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from dataclasses import dataclass
from typing import Final

from tests.stress.flow import COMMAND, MIB, Way, descriptors, memory
from tests.support.bridge import RunningBridge, running_bridge, wait_until
from tests.support.client import RawClient
from tests.support.scripts import content

TOGETHER: Final = 20
"""Connected at the same time."""

PATIENCE: Final = 30.0
"""How long one operation on a socket may take on a busy machine, in seconds."""

KINDS: Final = ("silent", "asks", "half-closes", "hangs up", "aborts", "says half a line")
"""What a client does: nothing; ask, read, close; ask, stop sending, read to the end; ask and close without
reading; the same with a reset; go in the middle of a line."""

WAY: Final = Way()
ASK: Final = WAY.request("tools/list", {}, 1)


@dataclass(frozen=True)
class Left:
    """What was open and resident before and after."""

    count: int
    descriptors: tuple[int, int]
    rss: tuple[int, int]

    def __str__(self) -> str:
        before, after = self.rss
        return (
            f"{self.count} connects: descriptors {self.descriptors[0]} before, {self.descriptors[1]} after; "
            f"resident {before >> 10} KiB before, {after >> 10} after ({(after - before) / 1024:+.0f} KiB)"
        )


def dial(address: str) -> socket.socket:
    """A blocking connection."""
    kind, _, rest = address.partition(":")
    if kind == "unix":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(PATIENCE)
        sock.connect(rest)
    else:
        host, _, port = rest.rpartition(":")
        sock = socket.create_connection((host, int(port)), PATIENCE)
    return sock


def act(sock: socket.socket, kind: str) -> None:
    """Do what a client of a kind does, to the end of its connection."""
    with sock:
        if kind == "silent":
            return
        if kind == "says half a line":
            sock.sendall(ASK[:40])
            return
        sock.sendall(ASK)
        if kind == "aborts":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif kind == "asks":
            assert sock.recv(65536).startswith(b"{")
        elif kind == "half-closes":
            sock.shutdown(socket.SHUT_WR)
            answer = b""
            while data := sock.recv(65536):
                answer += data
            assert answer.endswith(b"}\n"), answer


def come_and_go(addresses: list[str], count: int, rng: random.Random) -> None:
    """So many clients, some of them together. Blocks."""
    for begin in range(0, count, TOGETHER):
        size = min(TOGETHER, count - begin)
        with contextlib.ExitStack() as stack:
            socks = [stack.enter_context(dial(addresses[n % len(addresses)])) for n in range(size)]
            for sock in socks:
                act(sock, rng.choice(KINDS))


async def quiet(bridge: RunningBridge, fewest: int | None) -> tuple[int, int]:
    """Descriptors and resident bytes once all that came are gone."""
    async with await bridge.connect() as client:
        # The server has heard of all of them, too.
        await client.send(WAY.call("last", "state"))
        assert content(await client.response("last", timeout=60))
        count = descriptors(bridge)
    if fewest is not None:
        await wait_until(lambda: descriptors(bridge) <= fewest, timeout=60, what="no descriptor is left open")
    else:
        await wait_until(lambda: descriptors(bridge) < count, timeout=60, what="the last client is gone")
    return descriptors(bridge), memory(bridge)[0]


async def connects(count: int, *, warm_up: int = 2000, seed: int = 1, allowed: int = 2 * MIB) -> Left:
    """Let clients come and go, and see what stays.

    Args:
        count: how many, behind a warm-up of `warm_up`.
        allowed: by how much the resident memory may grow, in bytes.
    """
    rng = random.Random(seed)
    async with running_bridge(*COMMAND, listen=["unix", "tcp"]) as bridge:
        async with await bridge.connect() as first:
            assert isinstance(first, RawClient)
            await first.call("do")
        await asyncio.to_thread(come_and_go, bridge.addresses, warm_up, rng)
        before, start = await quiet(bridge, None)
        await asyncio.to_thread(come_and_go, bridge.addresses, count, rng)
        after, end = await quiet(bridge, before)
        left = Left(count, (before, after), (start, end))
        assert after == before, str(left)
        assert end - start <= allowed, str(left)
        return left
