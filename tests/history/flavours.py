"""What the checker's clients do. Each flavour is a coroutine with random numbers of its own (the client's).

A flavour sends about as many requests as it is told to, and ends its connection.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tests.history.client import MODERN, Client
from tests.history.record import Sent
from tests.history.server import filter_key
from tests.history.session import LEVELS, PAGE

URIS: Final = tuple(f"demo:{n}" for n in range(6))
PARTS: Final = ("demo:0/part", "demo:0/part/deep", "demo:1/part")
"""A subscription to the whole is told of these, too."""

SUBSCRIBED: Final = (
    *URIS[:2],
    *URIS[:2],
    "demo:0/part",
    "demo:0/",
    "demo:2",
    "demo:slow",
    "demo:slow-refuse",
)
"""In a legacy session: few, so that many clients hold the same."""

# What the server does with a request, and how often in a thousand. The rest is a plain echo.
DOES: Final[tuple[tuple[str, float], ...]] = (
    ("delay:3", 60),
    ("delay:15", 40),
    ("delay:120", 20),
    ("stubborn:30", 20),
    ("double", 30),
    ("progress:3", 50),
    ("error", 20),
    ("damaged:both", 3),
    ("damaged:neither", 3),
    ("damaged:cut", 4),
    ("damaged:tail", 3),
    ("damaged:utf8", 3),
    ("big:20000", 6),
    ("big:250000", 1),
    ("huge:1200000", 0.3),
    ("foreign", 12),
    ("split", 6),
    ("garbage", 12),
    ("stderr:60000", 1.5),
    ("stall:120", 0.7),
    ("log:2", 30),
    ("ask:sampling/createMessage", 4),
    ("ask:ping", 4),
    ("emit", 40),
    ("say", 15),
    ("end:result", 2),
    ("end:cancel", 2),
    ("changed", 6),
    ("crash", 4),
)
_NAMES: Final = [name for name, _ in DOES] + ["echo"]
_WEIGHTS: Final = [weight for _, weight in DOES] + [1000 - sum(weight for _, weight in DOES)]


def some_do(client: Client) -> str:
    """What the server is to do with the next request."""
    do = client.rng.choices(_NAMES, _WEIGHTS)[0]
    if do == "emit":
        return f"emit:{client.rng.choice([*URIS, *PARTS, 'tools', 'demo:slow'])}"
    if do == "say":
        return f"say:{client.rng.choice(LEVELS)}"
    if do.startswith("end:"):
        return f"{do}/{client.rng.choice(URIS)}"
    return do


def pad(client: Client) -> int:
    """The size of the next request, in bytes: most are small."""
    dice = client.rng.random()
    return 0 if dice < 0.93 else client.rng.randrange(1000, 9000) if dice < 0.995 else 60_000


async def opened(client: Client) -> None:
    """What must come first: nothing, or the legacy handshake, waited for or not."""
    if client.connection.era == "legacy":
        hello = [client.initialize(), b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n']
        await client.send(*hello)
        if client.rng.random() < 0.7:
            await client.settled()


async def steady(client: Client, requests: int) -> None:
    """Some requests at a time, each answered before there are more."""
    await opened(client)
    window = client.rng.choice((1, 4, 16, 40))
    sent = 0
    while sent < requests and not client.closed.is_set():
        lines = []
        for _ in range(window):
            lines.append(client.call(some_do(client), pad(client)))
            if client.rng.random() < 0.03:
                lines.append(client.notification())
            if client.connection.era == "legacy" and client.rng.random() < 0.02:
                lines.append(ping(client))
            if client.rng.random() < 0.01:
                lines += refused(client)
        sent += window
        await client.send(*lines, cut=client.rng.random() < 0.05)
        if not await client.settled(window // 2):
            break
    await client.settled()
    await client.close(waited=True)


def ping(client: Client) -> bytes:
    """A legacy ping: the bridge answers it."""
    client.seq += 1
    id = client.new_id()
    client._note(Sent(time.monotonic(), client.seq, "ping", id))
    client._owe(id)
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": "ping"}).encode() + b"\n"


async def burst(client: Client, requests: int) -> None:
    """All at once, more than the bridge passes on at a time; then it waits."""
    await opened(client)
    lines = []
    for _ in range(requests):
        lines.append(client.call(some_do(client)))
        if client.rng.random() < 0.05:
            lines.append(client.notification())
    await client.push(*lines)
    await client.settled()
    await client.close(waited=True)


async def pusher(client: Client, requests: int) -> None:
    """Large requests as fast as they go, however slow the server is."""
    await opened(client)
    for _ in range(min(requests, 40)):
        await client.push(client.call(client.rng.choice(("echo", "delay:3")), client.rng.randrange(150_000)))
        await asyncio.sleep(0.002)
    await client.settled()
    await client.close(waited=True)


async def canceller(client: Client, requests: int) -> None:
    """Gives up a good part of what it asks, soon or late."""
    if client.style == "same":
        client.style = "count"
    await opened(client)
    for _ in range(requests // 10):
        lines, ids = [], []
        for _ in range(10):
            do = client.rng.choice(("late", "hang", "stubborn:20", "delay:10", "progress:3", "echo"))
            lines.append(client.call(do))
            ids.append((client.last.id, do))
        await client.send(*lines)
        await asyncio.sleep(client.rng.choice((0, 0, 0.005, 0.03)))
        # Some that may be answered already, and one that nobody sent: in the space of the server's ids.
        cancels = [client.cancel(id) for id, do in ids if do in ("late", "hang") or client.rng.random() < 0.4]
        cancels += [client.cancel(client.rng.randrange(100_000, 100_500)), client.call()]
        await client.send(*cancels)
        if not await client.settled():
            break
    await client.send(client.call())
    await client.settled()
    await client.close(waited=True)


async def vanisher(client: Client, requests: int) -> None:
    """Is gone while it is owed something."""
    await opened(client)
    lines = [client.call(some_do(client)) for _ in range(min(requests, 60))]
    lines += [client.call(client.rng.choice(("hang", "delay:400", "late"))) for _ in range(5)]
    await client.send(*lines)
    if client.rng.random() < 0.6:
        await client.settled(client.rng.randrange(60))
    if client.connection.transport == "tcp" or client.rng.random() < 0.5:
        await client.abort()
    else:
        await client.close()


async def half_closer(client: Client, requests: int) -> None:
    """Stops sending at once after a burst, and reads until the bridge closes."""
    await opened(client)
    if client.connection.era == "modern" and client.rng.random() < 0.5:
        await client.send(client.listen("half", {"toolsListChanged": True}, "tools"))
    await client.send(
        *(client.call(client.rng.choice(("echo", "delay:40"))) for _ in range(min(requests, 50)))
    )
    if client.rng.random() < 0.2:
        await client.send(client.call("hang"))
    client.half_close()
    if not client.closed.is_set():
        await client.until(client.closed.is_set)
    await client.close(waited=True)


async def sleeper(client: Client, requests: int) -> None:
    """Does not read for a while, then does."""
    await opened(client)
    client.read(False)
    await client.push(*(client.call("big:20000") for _ in range(min(requests, 40))))
    await asyncio.sleep(client.rng.random())
    client.read(True)
    await client.settled()
    await client.close(waited=True)


async def never_reader(client: Client, requests: int) -> None:
    """Asks for much, and reads nothing."""
    await opened(client)
    client.read(False)
    await client.push(*(client.call("big:250000") for _ in range(min(requests, 60))), client.call("hang"))
    await client.until(client.closed.is_set, client.rng.uniform(0.5, 2))
    await client.abort()


BAD: Final[tuple[tuple[bytes, int, Any], ...]] = (
    (b"not JSON", -32700, None),
    (b'{"jsonrpc":"2.0","id":1,"method":"tools/call"', -32700, None),
    (b'{"jsonrpc":"2.0","id":"\xff","method":"x"}', -32700, None),
    (b"GET / HTTP/1.1", -32700, None),
    (b'{"jsonrpc":"2.0","method":"tools/call","id":null,"params":{}}', -32600, None),
    (b'{"jsonrpc":"2.0","method":"tools/call","id":1.5,"params":{}}', -32600, None),
    (b'{"jsonrpc":"2.0","method":"tools/call","id":[1],"params":{}}', -32600, None),
    (b'{"jsonrpc":"2.0","method":"tools/call","id":"' + b"i" * 1100 + b'","params":{}}', -32600, None),
    (b"[]", -32600, None),
    (b'[{"jsonrpc":"2.0","id":1,"method":"tools/call"}]', -32600, None),
    (b"7", -32600, None),
    (b'{"jsonrpc":"1.0","id":"odd","method":"tools/call"}', -32600, "odd"),
    (b'{"jsonrpc":"2.0","id":"odd"}', -32600, "odd"),
    (b'{"jsonrpc":"2.0","id":"odd","method":7}', -32600, "odd"),
    (b'{"jsonrpc":"2.0","id":"odd","method":"x","params":7}', -32600, "odd"),
    (b'{"jsonrpc":"2.0","id":"odd","method":"x","params":' + b"[" * 200 + b"]" * 200 + b"}", -32600, "odd"),
    (b'{"jsonrpc":"2.0","id":"big","method":"x","params":{"x":"' + b"x" * 600_000 + b'"}}', -31004, "big"),
)

SILENT: Final = (
    b'{"jsonrpc":"2.0","id":5,"result":{"mark":"forged"}}\n',
    b'{"jsonrpc":"2.0","id":"ask-1","result":{}}\n',
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":5,"progress":1}}\n',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}\n',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5.0}}\n',
    b"\n",
    b"  \t \r\n",
)
"""Lines that earn nothing."""


def silent(client: Client) -> tuple[bytes, ...]:
    """Those that a client of this kind may send: what would go through to its own server it may not."""
    return SILENT[3:] if client.connection.apart else SILENT


def refused(client: Client) -> list[bytes]:
    """A line that is valid JSON, and no request; or one that means nothing."""
    rng = client.rng
    if rng.random() < 0.4:
        return [rng.choice(silent(client))]
    line, code, id = rng.choice([bad for bad in BAD if bad[1] != -32700 and bad[1] != -31004])
    return [client.bad(line, code, id=id)]


async def garbler(client: Client, requests: int) -> None:
    """Sends much that is no message, between requests."""
    await opened(client)
    stranger = False
    for _ in range(max(1, requests // 8)):
        if client.closed.is_set():
            break
        lines = [client.call() for _ in range(4)]
        for _ in range(client.rng.randrange(1, 4)):
            line, code, id = client.rng.choice(BAD)
            if code == -32700 and client.connection.transport == "tcp" and client.rng.random() < 0.9:
                continue
            stranger = stranger or (code == -32700 and client.connection.transport == "tcp")
            lines.append(client.bad(line, code, id=id))
        lines.append(client.rng.choice(silent(client)))
        await client.send(*lines, cut=client.rng.random() < 0.2)
        if not await client.settled():
            break
    if not stranger and client.rng.random() < 0.2:
        stranger = True
        await client.settled()
        await client.send(*(client.bad(b"garbage", -32700) for _ in range(12)))
    if stranger:  # then the bridge is the one to close
        await client.until(client.closed.is_set)
        await client.close()
    else:
        await client.settled()
        await client.close(waited=True)


async def subscriber(client: Client, requests: int) -> None:
    """Holds subscriptions while others, and it, make the server notify."""
    await opened(client)
    if client.connection.era == "legacy":
        await steady(client, min(requests, 60))
        return
    rng = client.rng
    held: list[Any] = []
    for n in range(max(2, requests // 25)):
        if client.closed.is_set():
            break
        filter: dict[str, Any] = {}
        if rng.random() < 0.3:
            filter["toolsListChanged"] = True
        uris = rng.sample(URIS, rng.randrange(1, 3))
        if rng.random() < 0.4:  # what many ask for
            filter.clear()
            uris = [URIS[0]]
        elif rng.random() < 0.1:
            uris = ["demo:slow"]
        elif rng.random() < 0.05:
            uris = ["demo:refuse"]
        filter["resourceSubscriptions"] = uris
        id = n if rng.random() < 0.5 else f"s{n}"
        id = id if rng.random() < 0.9 else -1 - n
        # Its requests use other ids: a response must say by itself what it answers.
        client.last_id = max(client.last_id, 10_000)
        if client.style == "same":
            client.style = "count"
        key = filter_key(filter)
        await client.send(client.listen(id, filter, key, shared=rng.random() < 0.85))
        held.append(id)
        if rng.random() < 0.5:
            await client.until(lambda: acknowledged(client) >= len(held) // 2, 1.0)
        await client.send(*(client.call(f"emit:{rng.choice([*uris, *URIS])}") for _ in range(12)))
        await client.settled(4)
        if len(held) > 3 or rng.random() < 0.3:
            await client.send(client.cancel(held.pop(rng.randrange(len(held)))), client.call())
    await client.settled()
    if rng.random() < 0.3:
        await client.abort()
    elif rng.random() < 0.3:
        client.half_close()
        await client.until(client.closed.is_set)
        await client.close(waited=True)
    else:
        await client.close()


async def sharer(client: Client, requests: int) -> None:
    """A legacy client that subscribes, sets levels and makes tasks, as many others do in the same session."""
    rng = client.rng
    if client.style == "same":
        client.style = "count"
    await opened(client)
    await client.settled()
    for _ in range(max(3, requests // 16)):
        if client.closed.is_set():
            break
        lines = []
        for _ in range(rng.choice((1, 1, 2, 3))):
            dice = rng.random()
            if dice < 0.45:
                lines.append(client.share("subscribe", rng.choice(SUBSCRIBED)))
            elif dice < 0.7:
                lines.append(client.share("unsubscribe", rng.choice(SUBSCRIBED)))
            elif dice < 0.8:
                lines.append(client.share("level", rng.choice(LEVELS)))
            else:
                do = rng.choice(("task:25", "task:9", "task:hang"))
                lines.append(client.call(do, method="tools/call", task={}))
        await client.send(*lines)
        if rng.random() < 0.7:
            await client.settled()
        dos = [f"emit:{rng.choice([*SUBSCRIBED, *URIS, *PARTS])}" for _ in range(6)]
        dos += [f"say:{rng.choice(LEVELS)}" for _ in range(3)]
        rng.shuffle(dos)
        lines = about_tasks(client) + [client.call(do) for do in dos]
        # The last one is a plain request: with its answer everything before it has come.
        await client.send(*lines, client.call())
        if not await client.settled(rng.choice((0, 4))):
            break
    await client.settled()
    if rng.random() < 0.4:
        await client.abort()
    else:
        await client.close(waited=True)


def about_tasks(client: Client) -> list[bytes]:
    """Questions about tasks: its own, others', and all there are."""
    rng = client.rng
    lines = []
    if client.tasks and rng.random() < 0.6:
        method = rng.choice(("tasks/get", "tasks/get", "tasks/result", "tasks/cancel"))
        task = rng.choice(client.tasks)
        lines.append(client.call("about-task", method=method, about=task, taskId=task))
    foreign = [task for task in client.stuck.tasks[-20:] if task not in client.tasks]
    if foreign and rng.random() < 0.5:
        task = rng.choice(foreign)
        method = rng.choice(("tasks/get", "tasks/result", "tasks/cancel"))
        lines.append(client.call("about-task", method=method, about=task, codes=(-32602,), taskId=task))
    if rng.random() < 0.5:
        lines.append(client.call("tasks", method="tasks/list"))
        lines.append(client.call("tasks", method="tasks/list", cursor=str(PAGE * rng.randrange(4))))
    return lines


def acknowledged(client: Client) -> int:
    """How many acknowledgements have come."""
    return sum(
        getattr(event, "message", None) is not None
        and event.message.get("method") == "notifications/subscriptions/acknowledged"  # type: ignore[union-attr]  # it has one
        for event in client.connection.events
    )


async def prober(client: Client, requests: int) -> None:
    """Asks what the server speaks, as hosts do on a sibling, and vanishes."""
    mark = client.mark()
    client._note(Sent(time.monotonic(), client.seq, "call", 0, mark, "echo"))
    params = f'"arguments":{{"mark":"{mark}","do":"echo"}},"_meta":{{{MODERN}}}'
    line = f'{{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{{{params}}}}}\n'
    await client.push(line.encode())
    await asyncio.sleep(client.rng.choice((0, 0.01)))
    await client.abort()


Flavour = Callable[[Client, int], Awaitable[None]]

FLAVOURS: Final[tuple[tuple[Flavour, float], ...]] = (
    (steady, 30),
    (burst, 14),
    (pusher, 3),
    (canceller, 14),
    (vanisher, 10),
    (half_closer, 8),
    (sleeper, 3),
    (never_reader, 2),
    (garbler, 7),
    (subscriber, 24),
    (sharer, 16),
)
