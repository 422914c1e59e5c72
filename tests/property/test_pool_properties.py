"""Random comings and goings of clients that have a server process each: never too many, and none twice.

The processes are stand-ins that start, answer and end when the test says so; everything else is the pool.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.child import Child
from bridge.config import Settings
from bridge.core.outbox import Key, Output
from bridge.core.tables import Limits
from bridge.launcher import Launcher
from bridge.pool import Pool, Process
from tests.unit.core.scenario import initialize, legacy, line


class FakeChild:
    """A process that answers whatever it is asked at once."""

    unsent = 0
    unread = False
    status: int | None = 0

    def __init__(self, pid: int, owner: Process) -> None:
        self.pid = pid
        self.owner = owner
        self.ending = False
        self.heard: list[dict[str, Any]] = []
        self.stopped: asyncio.Future[None] | None = None

    def write(self, data: bytes) -> None:
        for text in data.splitlines():
            message = json.loads(text)
            self.heard.append(message)
            if "id" in message:
                answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"pid": self.pid}}
                asyncio.get_running_loop().call_soon(self.say, line(answer))

    def say(self, data: bytes) -> None:
        if not self.ending:
            self.owner.child_data(cast(Child, self), data)

    async def stop(self, grace: float) -> None:
        if self.stopped is None:
            self.stopped = asyncio.get_running_loop().create_future()
        await self.stopped

    def describe_status(self) -> str:
        return "ended"


class FakeLauncher:
    """Starts a process when it is let."""

    def __init__(self) -> None:
        self.pending: list[tuple[Process, asyncio.Future[None]]] = []
        self.children: dict[int, FakeChild] = {}
        self.last_pid = 0

    async def launch(self, owner: Process) -> Child:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pending.append((owner, future))
        await future
        self.last_pid += 1
        child = self.children[self.last_pid] = FakeChild(self.last_pid, owner)
        return cast(Child, child)

    def ended(self) -> None:
        pass


class Owner:
    """What a hub does for its pool."""

    def __init__(self) -> None:
        self.last_key = 0
        self.ports: dict[Key, Process] = {}
        self.told: dict[Key, list[dict[str, Any]]] = {}
        self.closed: set[Key] = set()

    def new_key(self) -> Key:
        self.last_key += 1
        return Key(self.last_key)

    def pool_port(self, key: Key, port: Process | None) -> None:
        if port is None:
            self.ports.pop(key, None)
        else:
            self.ports[key] = port

    def pool_outputs(self, outputs: list[Output]) -> None:
        for key, data in outputs:
            assert isinstance(data, bytes)
            if key in self.ports:
                self.ports[key].send(data)
            elif data:
                self.told.setdefault(key, []).extend(json.loads(text) for text in data.splitlines())
            else:
                self.closed.add(key)

    def pool_shared(self, key: Key, data: bytes) -> None:
        raise AssertionError("nobody shares here")

    def pool_tick(self) -> None:
        pass

    def server_given_up(self, exit_code: int, reason: str) -> None:
        raise AssertionError("there was a process before")


class Story:
    """One pool, and what happens to it."""

    def __init__(self, max_children: int, spare: int) -> None:
        self.launcher = FakeLauncher()
        self.owner = Owner()
        self.max_children, self.spare = max_children, spare
        config = Settings(
            command=("server",),
            listen=(),
            sharing="isolated",
            max_children=max_children,
            spare=spare,
            limits=Limits(),
        )
        self.pool = Pool(config, self.owner, cast(Launcher, self.launcher), salt=b"sixteen bytes!!!")
        self.clients: dict[Key, int] = {}
        """How often each has asked."""

    async def settle(self) -> None:
        for _ in range(12):
            await asyncio.sleep(0)
        self.check()

    def running(self) -> int:
        return len(self.launcher.children) + len(self.launcher.pending)

    def stopping(self) -> bool:
        return any(child.stopped is not None for child in self.launcher.children.values())

    def check(self) -> None:
        assert self.running() <= self.max_children
        # Each process hears one client, and each client is heard by one process at a time.
        masters: dict[int, int] = {}
        for child in self.launcher.children.values():
            names = {message["params"]["client"] for message in child.heard if "client" in message["params"]}
            assert len(names) <= 1
            for name in names:
                assert child.stopped is not None or masters.setdefault(name, child.pid) == child.pid
        idle = [c for c in self.launcher.children.values() if c.owner.client is None and c.stopped is None]
        assert len(idle) <= self.spare
        for client, asked in self.clients.items():
            answers = self.owner.told.get(client, [])
            refused = [answer for answer in answers if "error" in answer]
            assert all(answer["error"]["data"]["reason"] == "too_many_children" for answer in refused)
            if client in self.owner.closed:
                continue
            if len(answers) < asked:  # then something is on its way that will end the wait
                assert self.launcher.pending or self.stopping()

    async def ask(self, client: Key) -> None:
        before = len(self.owner.told.get(client, []))
        full = self.running() >= self.max_children and not self.stopping()
        has = any(child.owner.client == client for child in self.launcher.children.values())
        idle = any(c.owner.client is None and c.stopped is None for c in self.launcher.children.values())
        waits = self.clients[client] > before
        self.clients[client] += 1
        message = initialize("i") if self.clients[client] == 1 else legacy(self.clients[client])
        message["params"]["client"] = client
        self.pool.client_data(client, line(message))
        await self.settle()
        new = self.owner.told.get(client, [])[before:]
        if not has and not waits:
            refused = [answer for answer in new if "error" in answer]
            assert bool(refused) is (full and not idle), (refused, full, idle)


OPS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 7)), max_size=40)


def pick(items: Any, n: int) -> Any:
    items = list(items)
    return items[n % len(items)]


async def tell(max_children: int, spare: int, ops: list[tuple[int, int]]) -> None:
    story = Story(max_children, min(spare, max_children))
    launcher, pool = story.launcher, story.pool
    pool.start()
    await story.settle()
    if launcher.pending:  # the first start succeeds: a command that cannot be run ends the bridge
        launcher.pending.pop(0)[1].set_result(None)
    await story.settle()
    for what, n in ops:
        if what <= 1:
            key = story.owner.new_key()
            story.clients[key] = 0
            pool.client_opened(key, strict=False)
            await story.ask(key)
        elif what == 2 and story.clients:
            key = pick(story.clients, n)
            if key not in story.owner.closed:
                await story.ask(key)
        elif what <= 4 and launcher.pending:
            launcher.pending.pop(n % len(launcher.pending))[1].set_result(None)
        elif what == 5 and story.clients:
            key = pick(story.clients, n)
            pool.client_gone(key)
            del story.clients[key]
        elif what <= 7:
            stopped = [child for child in launcher.children.values() if child.stopped is not None]
            if stopped:
                end(story, pick(stopped, n))
        elif launcher.children:
            # It ends by itself; one that has said nothing would hold up the next, which others test.
            spoke = [child for child in launcher.children.values() if child.heard]
            if spoke:
                end(story, pick(spoke, n))
        await story.settle()
    for key in list(story.clients):
        pool.client_gone(key)
    story.clients.clear()
    for _ in range(100):
        await story.settle()
        stopped = [child for child in launcher.children.values() if child.stopped is not None]
        if stopped:
            end(story, stopped[0])
        elif launcher.pending:
            launcher.pending.pop()[1].set_result(None)
        else:
            break
    # Nothing is left but the spare ones.
    assert len(launcher.children) == story.spare
    ends = asyncio.ensure_future(pool.stop(0))
    for _ in range(20):
        await asyncio.sleep(0)
        for child in list(launcher.children.values()):
            if child.stopped is not None:
                end(story, child)
    await ends
    assert not launcher.children


def end(story: Story, child: FakeChild) -> None:
    del story.launcher.children[child.pid]
    child.ending = True
    if child.stopped is not None and not child.stopped.done():
        child.stopped.set_result(None)
    child.owner.child_ended(cast(Child, child))


@given(max_children=st.integers(1, 4), spare=st.integers(0, 2), ops=OPS)
@settings(deadline=None, max_examples=60)
def test_there_are_never_too_many_processes_and_each_client_has_one_or_is_told(
    max_children: int, spare: int, ops: list[tuple[int, int]]
) -> None:
    """`--max-children` counts spare ones, those being started and those being stopped (section 7)."""
    asyncio.run(tell(max_children, spare, ops))
