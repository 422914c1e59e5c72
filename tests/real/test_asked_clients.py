"""Clients of all four generations of SDKs that servers ask for samples, input and roots.

Contract, "Eras and sharing": with a process of its own everything goes through both ways, requests of the
server included; where a server is shared no client hears of them. Spec 2025-11-25, client features.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import anyio
import pytest
import pytest_asyncio
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    Implementation,
    ListRootsResult,
    TextContent,
)

from tests.real.clients import LEGACY, Surroundings, connect_argv
from tests.real.drivers import Json, Refused, shim_environment
from tests.real.servers import everything_part
from tests.support.bridge import RunningBridge, running_bridge
from tests.support.sdk import socket_transport

pytestmark = [
    pytest.mark.real,
    pytest.mark.asyncio(loop_scope="module"),
    # It is what clients of these eras may send, and the SDK 2.x says that the next one has none.
    pytest.mark.filterwarnings("ignore:Client-to-server progress is deprecated"),
]

TIMEOUT = 60.0
ASKING = (sys.executable, "-S", "-E", str(Path(__file__).with_name("asking_server.py")))
CAPABILITIES = {"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {"listChanged": True}}
# It works on whatever it is asked until that is given up.
TARRY = "Tarry"


class Asked(Protocol):
    """A client that answers, with its name, whatever a server asks."""

    async def ask(self, calls: Sequence[tuple[str, Json]]) -> list[str | Refused]:
        """Call tools, all at once; for each the text of its result, or the error."""

    async def events(self, count: int) -> list[str]:
        """Wait until it was asked for so much, and return all of it."""

    async def give_up(self, tool: str) -> None:
        """Call a tool, and cancel the call as soon as it reports progress."""


class Python2:
    """Such a client of the Python SDK 2.x, which runs in the tests' own process."""

    def __init__(self, bridge: RunningBridge, name: str, mode: str) -> None:
        self._name = name
        self._events: list[str] = []
        self._more = asyncio.Event()
        self.client = Client(
            socket_transport(bridge.address),
            mode=mode,
            client_info=Implementation(name=name, version="1.0.0"),
            sampling_callback=self._sample,
            elicitation_callback=self._elicit,
            list_roots_callback=self._roots,
        )

    def _note(self, event: str) -> None:
        self._events.append(event)
        self._more.set()

    async def _work(self, context: ClientRequestContext, kind: str) -> None:
        self._note(kind)
        if context.meta is not None and "progress_token" in context.meta:
            await context.session.send_progress_notification(context.meta["progress_token"], 1)
        if self._name == TARRY:
            try:
                await anyio.sleep_forever()
            finally:
                self._note(f"{kind} given up")

    async def _sample(
        self, context: ClientRequestContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult:
        await self._work(context, "sampling")
        text = TextContent(type="text", text=f"sampled by {self._name}")
        return CreateMessageResult(role="assistant", content=text, model="none")

    async def _elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        if isinstance(params, ElicitRequestURLParams):
            await self._work(context, f"url {params.url}")
            return ElicitResult(action="accept")
        await self._work(context, "form")
        return ElicitResult(action="accept", content={"name": self._name})

    async def _roots(self, context: ClientRequestContext) -> ListRootsResult:
        await self._work(context, "roots")
        return ListRootsResult.model_validate({"roots": [{"uri": f"file:///{self._name}"}]})

    async def ask(self, calls: Sequence[tuple[str, Json]]) -> list[str | Refused]:
        results = await asyncio.gather(*(self.client.call_tool(*call) for call in calls))
        blocks = [[block for block in result.content if isinstance(block, TextContent)] for result in results]
        return ["".join(block.text for block in several) for several in blocks]

    async def events(self, count: int) -> list[str]:
        while len(self._events) < count:
            self._more.clear()
            await self._more.wait()
        events, self._events = self._events, []
        return events

    async def give_up(self, tool: str) -> None:
        with anyio.CancelScope() as scope:

            async def progress(progress: float, total: float | None, message: str | None) -> None:
                scope.cancel()

            await self.client.call_tool(tool, {}, progress_callback=progress)
        assert scope.cancelled_caught


SDKS = ("python1", "python2", "typescript1", "typescript2")


# These ask with `server/discover` first, and fall back.
OF_BOTH_ERAS = ("python2-auto", "typescript2-auto")


@asynccontextmanager
async def _python2(bridge: RunningBridge, name: str, mode: str) -> AsyncIterator[Asked]:
    asked = Python2(bridge, name, mode)
    async with asked.client as client:
        assert client.protocol_version == LEGACY
        yield asked


def client(
    sdk: str, surroundings: Surroundings, bridge: RunningBridge, name: str
) -> AbstractAsyncContextManager[Asked]:
    """A client of one of the SDKS, or OF_BOTH_ERAS; those of TypeScript come through `mcp-bridge connect`."""
    sdk, _, mode = sdk.partition("-")
    mode = mode or "legacy"
    if sdk == "python2":
        return _python2(bridge, name, mode)
    if sdk == "python1":
        return surroundings.python1.client(address=bridge.address, name=name)
    how = {"command": connect_argv(bridge.address), "env": shim_environment(), "name": name}
    return surroundings.typescript.client(sdk=int(sdk[-1]), mode=mode, **how)


async def call(client: Asked, tool: str, **arguments: Any) -> Any:
    [answer] = await client.ask([(tool, arguments)])
    assert isinstance(answer, str), answer
    return json.loads(answer)


ISOLATED = ("--sharing", "isolated")
AUTO = ("--sharing", "auto")


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[ISOLATED, AUTO], ids=["isolated", "auto"]
)
async def apart(request: pytest.FixtureRequest) -> AsyncIterator[RunningBridge]:
    """A bridge that gives each client that declares such capabilities a process of its own."""
    async with running_bridge(*ASKING, options=request.param) as bridge:
        yield bridge


@pytest.mark.parametrize("sdk", [*SDKS, *OF_BOTH_ERAS])
async def test_each_client_is_asked_by_its_own_server_and_answers_it(
    apart: RunningBridge, sdk: str, surroundings: Surroundings
) -> None:
    def expected(name: str) -> dict[str, Any]:
        text = {"type": "text", "text": f"sampled by {name}"}
        return {
            "sampling": {"role": "assistant", "content": text, "model": "none"},
            "form": {"action": "accept", "content": {"name": name}},
            "url": {"action": "accept"},
            "roots": {"roots": [{"uri": f"file:///{name}"}]},
        }

    async def one(client: Asked, name: str) -> int:
        for kind, answer in expected(name).items():
            # Its progress came before it, and both under the names that the server has given them.
            assert await call(client, "ask", kind=kind) == {"answer": answer, "progress": [1]}
        assert await client.events(4) == ["sampling", "form", "url https://example.com/login", "roots"]
        state = await call(client, "state")
        assert (state["client"], state["late"]) == (name, [])
        assert state["capabilities"] == CAPABILITIES
        return int(state["pid"])

    async with (
        asyncio.timeout(TIMEOUT),
        client(sdk, surroundings, apart, "Ada") as ada,
        client(sdk, surroundings, apart, "Bob") as bob,
    ):
        pids = await asyncio.gather(one(ada, "Ada"), one(bob, "Bob"))
        assert len(set(pids)) == 2


# The Python SDK 1.x cancels nothing, and hears of nothing while it works on a request.
@pytest.mark.parametrize("sdk", SDKS[1:])
async def test_a_server_and_its_client_give_up_what_they_have_asked_each_other(
    apart: RunningBridge, sdk: str, surroundings: Surroundings
) -> None:
    """Spec 2025-11-25, basic/utilities/cancellation: either side, and nobody answers what was cancelled."""
    async with (
        asyncio.timeout(TIMEOUT),
        client(sdk, surroundings, apart, TARRY) as asked,
        client(sdk, surroundings, apart, "Bob") as bob,
    ):
        for kind, event in (("sampling", "sampling"), ("form", "form"), ("roots", "roots")):
            assert await call(asked, "ask", kind=kind, give_up=True) == {}
            assert await asked.events(2) == [event, f"{event} given up"]
        for _ in range(2):
            await asked.give_up("hang")
        state = await call(asked, "state")
        # Whoever gives a request up need not be told how it ended; if it is, as an error without meaning.
        assert (state["cancelled"], [late for late in state["late"] if "result" in late]) == (2, [])
        state = await call(bob, "state")
        assert (state["cancelled"], state["late"]) == (0, [])
        assert await bob.events(0) == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[RunningBridge]:
    async with running_bridge(*ASKING) as bridge:
        yield bridge


@pytest.mark.parametrize("sdk", SDKS)
async def test_what_a_shared_server_asks_is_refused_and_no_client_hears_of_it(
    shared: RunningBridge, sdk: str, surroundings: Surroundings
) -> None:
    async with (
        asyncio.timeout(TIMEOUT),
        client(sdk, surroundings, shared, "Ada") as ada,
        client(sdk, surroundings, shared, "Bob") as bob,
    ):
        for asking in (ada, bob):
            for kind in ("sampling", "form", "url", "roots"):
                answer = await call(asking, "ask", kind=kind)
                assert (answer["refused"]["code"], answer["progress"]) == (-32601, [])
        states = [await call(one, "state") for one in (ada, bob)]
        assert states[0] == states[1]
        assert (states[0]["client"], states[0]["capabilities"]) == ("mcp-bridge", {})
        assert await ada.events(0) == await bob.events(0) == []


@pytest.mark.parametrize("options", [ISOLATED, AUTO], ids=["isolated", "auto"])
async def test_clients_of_every_sdk_at_once_are_asked_by_servers_of_the_everything_kind(
    options: tuple[str, ...], surroundings: Surroundings, tmp_path: Path
) -> None:
    """server-everything has a tool for each thing it can ask, for clients that say they answer it."""
    part = everything_part(tmp_path, "")

    async def one(bridge: RunningBridge, sdk: str) -> None:
        name = f"a-client-of-{sdk}"
        async with client(sdk, surroundings, bridge, name) as asked:
            calls: list[tuple[str, Json]] = [
                ("trigger-sampling-request", {"prompt": "hi", "maxTokens": 5}),
                ("trigger-elicitation-request", {}),
                ("trigger-url-elicitation", {"url": "https://example.com/login"}),
                ("get-roots-list", {}),
            ]
            answers = await asked.ask(calls)
            wanted = (
                f"sampled by {name}",
                f'"name": "{name}"',
                "https://example.com/login",
                f"file:///{name}",
            )
            for answer, expected in zip(answers, wanted, strict=True):
                assert expected in str(answer)
            # It asks for roots by itself, too, after each handshake.
            heard = {event for event in await asked.events(4) if event != "tools"}  # what has changed
            assert heard == {"sampling", "form", "url https://example.com/login", "roots"}

    async with (
        asyncio.timeout(TIMEOUT),
        running_bridge(*part.command, options=options, env=part.env, leftover_timeout=10) as bridge,
        asyncio.TaskGroup() as tasks,
    ):
        for sdk in SDKS:
            tasks.create_task(one(bridge, sdk))
