"""The supervisor when a step of its own fails: a decision of the policy is carried out all the same."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from bridge.child import Child
from bridge.config import Settings
from bridge.errors import SpawnError
from bridge.launcher import Launcher
from bridge.supervisor import Supervisor

WAIT_S = 10.0


class FakeChild:
    """A process that ends when the test says so."""

    pid = 12345
    status = 1

    def describe_status(self) -> str:
        return "exit status 1"

    def stderr_tail(self) -> str:
        return ""

    async def stop(self, grace: float) -> None: ...


class FakeLauncher:
    """Starts a process at once, and says so."""

    def __init__(self) -> None:
        self.starts: asyncio.Queue[Child] = asyncio.Queue()
        self.fails = 0

    async def launch(self, owner: object, *, shared: bool = False) -> Child:
        if self.fails:
            self.fails -= 1
            raise SpawnError("made up")
        child = cast(Child, FakeChild())
        self.starts.put_nowait(child)
        return child

    def ended(self) -> None:
        pass


class Owner:
    """Whoever needs the server. `fault` names what raises, once."""

    def __init__(self) -> None:
        self.fault = ""
        self.exhausted = asyncio.Event()

    def _meet(self, name: str) -> None:
        if self.fault == name:
            self.fault = ""
            raise RuntimeError("made up")

    def server_started(self, seat: int, child: Child) -> None: ...

    def server_data(self, seat: int, data: bytes) -> None: ...

    def server_blocked(self, seat: int) -> None: ...

    def server_writable(self, seat: int) -> None: ...

    def server_ended(self, seat: int, child: Child) -> None: ...

    def server_needed(self, seat: int) -> bool:
        self._meet("server_needed")
        return True

    def server_replaced(self, seat: int) -> bool:
        return False

    def server_is_sole(self, seat: int) -> bool:
        self._meet("server_is_sole")
        return False

    def server_is_trial(self, seat: int) -> bool:
        self._meet("server_is_trial")
        return False

    def server_exhausted(self, seat: int) -> None:
        self._meet("server_exhausted")
        self.exhausted.set()

    def server_given_up(self, exit_code: int, reason: str) -> None: ...


class Story:
    """One supervisor and its owner."""

    def __init__(self, max_restarts: int = 5) -> None:
        settings = Settings(command=("server",), listen=(), max_restarts=max_restarts)
        self.launcher = FakeLauncher()
        self.owner = Owner()
        self.supervisor = Supervisor(settings, self.owner, 0, cast(Launcher, self.launcher), first=True)

    async def started(self) -> Child:
        async with asyncio.timeout(WAIT_S):
            return await self.launcher.starts.get()


async def test_a_start_that_could_not_be_ordered_when_its_time_had_come_is_ordered_again() -> None:
    """The policy says once that it is time; nobody would have started the server any more."""
    story = Story()
    supervisor = story.supervisor
    begin = supervisor._begin
    supervisor.start()
    child = await story.started()

    faults = [MemoryError()]

    def fail_once() -> None:
        if faults:
            raise faults.pop()
        begin()

    supervisor._begin = fail_once  # type: ignore[method-assign]  # a fault that cannot be forced
    supervisor.child_ended(child)
    await story.started()
    await supervisor.stop(0)


async def test_a_decision_that_could_not_be_carried_out_is_carried_out_again() -> None:
    """The end of a process is settled by then, and cannot be settled twice."""
    story = Story()
    story.supervisor.start()
    child = await story.started()
    story.owner.fault = "server_is_trial"
    story.supervisor.child_ended(child)
    await story.started()

    story = Story(max_restarts=1)
    story.supervisor.start()
    child = await story.started()
    story.owner.fault = "server_exhausted"
    story.supervisor.child_ended(child)
    async with asyncio.timeout(WAIT_S):
        await story.owner.exhausted.wait()


@pytest.mark.parametrize("fault", ["server_is_sole", "server_needed", "server_is_trial"])
async def test_a_failed_start_is_followed_by_another_whatever_fails_about_it(fault: str) -> None:
    story = Story()
    story.launcher.fails = 1
    story.owner.fault = fault
    story.supervisor.start()
    await story.started()


async def test_nothing_is_started_any_more_once_the_bridge_stops() -> None:
    story = Story()
    await story.supervisor.stop(0)
    story.supervisor._begin()
    await asyncio.sleep(0)
    assert story.supervisor.idle
    assert story.launcher.starts.empty()
