"""Every published client with every published server, through the bridge, two clients at a time.

A client and a server that have an era in common are joined; a client that has none is told so. The table in
the README has a cell for each test here. Clients of one kind begin with the same ids, and most use the
id as progress token, so what is told apart by what a client wrote would get mixed up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
import pytest_asyncio
from _pytest.mark import ParameterSet

from tests.real.clients import CLIENTS, ERA_NOT_SERVED, MODERN, ClientKind, Surroundings, refused
from tests.real.drivers import Json, Refused
from tests.real.servers import SERVERS, Part, ServerKind
from tests.support.bridge import RunningBridge, running_bridge

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

# What each client asks at the same time. The Inspector starts a process for each.
CALLS = 5
INSPECTOR_CALLS = 1
TIMEOUT = 30.0

# What the SDKs of TypeScript say when they find no version in common.
NOT_OFFERED = "did not offer pinned protocol version 2026-07-28"


@dataclass(frozen=True)
class Served:
    """A server behind a bridge."""

    kind: ServerKind
    part: Part
    bridge: RunningBridge

    def questions(self, numbers: range) -> list[tuple[str, Json]]:
        """The calls that ask these questions."""
        return [(tool, arguments) for tool, arguments, _ in map(self.part.ask, numbers)]

    def check(self, answers: list[str | Refused], numbers: range) -> None:
        """Each answer, or error that a server gives for an answer, is the one to its own question."""
        assert len(answers) == len(numbers)
        for number, answer in zip(numbers, answers, strict=True):
            expected = self.part.ask(number)[2]
            assert expected in (answer.message if isinstance(answer, Refused) else answer)


class Farm:
    """One bridge at a time: it serves a server for as long as the tests ask for the same."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory, service: str) -> None:
        self._folders = tmp_path_factory
        self._service = service
        self._kind: ServerKind | None = None
        self._served: Served | None = None
        self._stack = AsyncExitStack()

    async def serve(self, kind: ServerKind) -> Served:
        """The server behind its bridge, which all clients share, in whatever order and of whatever era."""
        if self._served is None or self._kind is not kind:
            await self.close()
            part = kind.make(self._folders.mktemp(kind.name), self._service)
            bridge = await self._stack.enter_async_context(running_bridge(*part.command, env=part.env))
            self._kind, self._served = kind, Served(kind, part, bridge)
        return self._served

    async def close(self) -> None:
        """Stop the bridge; AssertionError if it leaves anything behind."""
        self._kind = self._served = None
        await self._stack.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def farm(tmp_path_factory: pytest.TempPathFactory, service: str) -> AsyncIterator[Farm]:
    farm = Farm(tmp_path_factory, service)
    yield farm
    await farm.close()


def common(server: ServerKind, client: ClientKind) -> str | None:
    """The version a client and a server meet in, if they do."""
    return next((era for era in client.eras if era in server.eras), None)


def cells(*, meet: bool) -> list[ParameterSet]:
    """Every server with every client that has, or has not, an era in common with it."""
    return [
        pytest.param(server, client, id=f"{server.name}-{client.name}")
        for server in SERVERS
        for client in CLIENTS
        if (common(server, client) is not None) is meet
    ]


@pytest.mark.parametrize(("server", "client"), cells(meet=True))
async def test_two_clients_at_a_time_get_their_own_answers(
    server: ServerKind, client: ClientKind, farm: Farm, surroundings: Surroundings
) -> None:
    """Contract, "Eras and sharing": whoever has an era in common with the server is served."""
    served = await farm.serve(server)
    calls = INSPECTOR_CALLS if client.name.startswith("inspector") else CALLS
    first, second = range(calls), range(calls, 2 * calls)
    address = served.bridge.address
    async with (
        asyncio.timeout(TIMEOUT),
        client.open(surroundings, address) as one,
        client.open(surroundings, address) as two,
    ):
        answers = await asyncio.gather(one.ask(served.questions(first)), two.ask(served.questions(second)))
        served.check(answers[0], first)
        served.check(answers[1], second)
        assert one.version == two.version == common(server, client)


@pytest.mark.parametrize(("server", "client"), cells(meet=False))
async def test_a_client_whose_era_is_not_served_is_told_so(
    server: ServerKind, client: ClientKind, farm: Farm, surroundings: Surroundings
) -> None:
    """Contract, "Eras and sharing": one clear error at once, naming what is served and what to do."""
    served = await farm.serve(server)
    async with asyncio.timeout(TIMEOUT):
        refusal = await refused(client, surroundings, served.bridge.address, served.questions(range(1))[0])
    if NOT_OFFERED in refusal.message:
        # These ask first, are told what a legacy server says to that, and say the rest themselves.
        assert client.eras == (MODERN,)
        return
    assert "is not served here" in refusal.message
    assert "use a client that speaks" in refusal.message
    if not client.name.startswith("inspector"):  # which prints the text alone
        assert refusal.code == ERA_NOT_SERVED
        assert refusal.data["reason"] == "era_not_served"
        assert set(server.eras) <= set(refusal.data["supported"])
