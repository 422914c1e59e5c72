"""What only one era has, and both eras at once, with published parts: through the bridge, several clients.

Contract, "Eras and sharing" and "Subscriptions"; spec 2026-07-28, basic/patterns/mrtr and subscriptions.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio
from mcp import Client, MCPError
from mcp.client.session import ClientRequestContext
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged
from mcp_types import ElicitRequestFormParams, ElicitRequestParams, ElicitResult, TextContent

from tests.real.clients import CLIENTS, ERA_NOT_SERVED, LEGACY, MODERN, Surroundings, connect_argv, refused
from tests.real.drivers import DrivenClient, Driver, Refused, node, shim_environment
from tests.real.servers import SERVERS
from tests.setup_parts import NODE_PARTS
from tests.support.bridge import RunningBridge, running_bridge
from tests.support.sdk import socket_transport

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

TIMEOUT = 30.0
# Rounds in which a legacy and a modern client ask at the same time, and questions each asks in one.
ROUNDS = 3
CALLS = 4

KINDS = {kind.name: kind for kind in CLIENTS}


@pytest.mark.parametrize(
    "clients", [("python1-socket", "python2-pinned"), ("typescript1", "typescript2-auto")]
)
@pytest.mark.parametrize("name", ["git", "grafana"])
async def test_a_legacy_and_a_modern_client_share_one_dual_era_server_at_once(
    name: str,
    clients: tuple[str, str],
    surroundings: Surroundings,
    service: str,
    tmp_path: Path,
) -> None:
    """Contract, "Eras and sharing": a second era gets a process of its own; neither disturbs the other."""
    [kind] = [kind for kind in SERVERS if kind.name == name]
    part = kind.make(tmp_path, service)
    legacy, modern = (KINDS[client] for client in clients)
    async with (
        asyncio.timeout(TIMEOUT),
        running_bridge(*part.command, env=part.env) as bridge,
        legacy.open(surroundings, bridge.address) as old,
        modern.open(surroundings, bridge.address) as new,
    ):
        assert (old.version, new.version) == (LEGACY, MODERN)
        for round in range(ROUNDS):
            numbers = range(2 * CALLS * round, 2 * CALLS * (round + 1))
            asked = [part.ask(number) for number in numbers]
            calls = [(tool, arguments) for tool, arguments, _ in asked]
            answers = await asyncio.gather(old.ask(calls[:CALLS]), new.ask(calls[CALLS:]))
            for (_, _, expected), answer in zip(asked, [*answers[0], *answers[1]], strict=True):
                assert isinstance(answer, str), answer
                assert expected in answer
        assert len(bridge.server_pids(part.program)) == 2


@pytest.mark.parametrize("name", ["grafana", "context7"])
async def test_clients_of_both_eras_go_on_after_their_servers_were_killed(
    name: str, surroundings: Surroundings, service: str, tmp_path: Path
) -> None:
    """Contract, "The child": clients stay connected; the legacy session is opened again first."""
    [kind] = [kind for kind in SERVERS if kind.name == name]
    part = kind.make(tmp_path, service)
    async with (
        asyncio.timeout(TIMEOUT),
        running_bridge(*part.command, env=part.env) as bridge,
        KINDS["typescript1"].open(surroundings, bridge.address) as old,
        KINDS["python2-auto"].open(surroundings, bridge.address) as new,
    ):
        for number in range(2):
            tool, arguments, expected = part.ask(number)
            for answers in await asyncio.gather(old.ask([(tool, arguments)]), new.ask([(tool, arguments)])):
                assert expected in str(answers[0])
            pids = bridge.server_pids(part.program)
            assert len(pids) == 2
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            # Asked sooner, a client might be told that the server exited, which would be right, too.
            await bridge.wait_log("killed by SIGKILL", count=2 * (number + 1))


# What servers of the legacy era say to `server/discover`, the first message of a client of both eras: the
# SDKs of Python and TypeScript in their own words; that of Rust exits, and the bridge answers in its place.
REFUSALS = {
    "sqlite": (-32602, "Invalid request parameters"),
    "everything": (-32601, "Method not found"),
    "cnb": (-32601, "the server exited when it was asked"),
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_a_client_of_both_eras_falls_back_on_a_legacy_servers_own_error(
    name: str, service: str, tmp_path: Path
) -> None:
    """Spec 2026-07-28, basic/transports, "stdio: Backward Compatibility": whatever the error."""
    [kind] = [kind for kind in SERVERS if kind.name == name]
    part = kind.make(tmp_path, service)
    code, message = REFUSALS[name]
    tool, arguments, expected = part.ask(0)
    async with (
        asyncio.timeout(TIMEOUT),
        running_bridge(*part.command, env=part.env) as bridge,
        await bridge.connect() as one,
        await bridge.connect() as two,
    ):
        for client in (one, two):
            error = (await client.request("server/discover"))["error"]
            assert error["code"] == code
            assert message in error["message"]
        for client in (one, two):
            assert (await client.initialize())["result"]["protocolVersion"] == LEGACY
            answer = await client.legacy_request("tools/call", {"name": tool, "arguments": arguments})
            assert expected in str(answer)
        # Whichever process was asked first: one is left, and it was no failure that another had to go.
        assert len(bridge.server_pids(part.program)) == 1
        own = [line for line in bridge.stderr_text().splitlines() if not line.startswith("[server]")]
        assert all(" info " in line for line in own), own


@pytest.mark.parametrize("name", ["time", "context7", "grafana"])
async def test_a_client_that_discovers_and_initializes_all_the_same_is_served_in_both_eras(
    name: str, service: str, tmp_path: Path
) -> None:
    """Contract, "Eras and sharing": one host does so; alone, most such servers refuse the second."""
    [kind] = [kind for kind in SERVERS if kind.name == name]
    part = kind.make(tmp_path, service)
    tool, arguments, expected = part.ask(0)
    async with (
        asyncio.timeout(TIMEOUT),
        running_bridge(*part.command, env=part.env) as bridge,
        await bridge.connect() as client,
    ):
        assert MODERN in (await client.request("server/discover"))["result"]["supportedVersions"]
        assert (await client.initialize())["result"]["protocolVersion"] == LEGACY
        answer = await client.legacy_request("tools/call", {"name": tool, "arguments": arguments})
        assert expected in str(answer["result"])
        assert expected in str((await client.call(tool, **arguments))["result"])


@pytest.mark.parametrize(("era", "version"), [("legacy", LEGACY), ("modern", MODERN)])
async def test_the_operator_can_decide_on_one_era_of_a_dual_era_server(
    era: str, version: str, surroundings: Surroundings, service: str, tmp_path: Path
) -> None:
    """Contract, "Eras and sharing": `--era` decides ahead; clients of both eras follow, others are told."""
    [kind] = [kind for kind in SERVERS if kind.name == "time"]
    part = kind.make(tmp_path, service)
    other = {"legacy": "python2-pinned", "modern": "python1-socket"}[era]
    async with (
        asyncio.timeout(TIMEOUT),
        running_bridge(*part.command, options=["--era", era]) as bridge,
        KINDS["python2-auto"].open(surroundings, bridge.address) as one,
        KINDS["typescript2-auto"].open(surroundings, bridge.address) as two,
    ):
        assert one.version == two.version == version
        tool, arguments, expected = part.ask(0)
        for client in (one, two):
            [answer] = await client.ask([(tool, arguments)])
            assert expected in str(answer)
        refusal = await refused(KINDS[other], surroundings, bridge.address, (tool, arguments))
        assert refusal.code == ERA_NOT_SERVED
        assert f"started with --era {era}" in refusal.message
        assert len(bridge.server_pids(part.program)) == 1


# Servers of the official SDKs 2.x with what no published one has: both ask for input and tell of changes.
FEATURES = {
    "python": (sys.executable, str(Path(__file__).with_name("feature_server.py"))),
    "typescript": (node(), str(NODE_PARTS / "modern_server.mjs")),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=FEATURES)
async def features(request: pytest.FixtureRequest) -> AsyncIterator[RunningBridge]:
    """A bridge before such a server, for all tests that take it."""
    async with running_bridge(*FEATURES[request.param]) as bridge:
        yield bridge


def typescript_client(
    driver: Driver, bridge: RunningBridge, **how: str
) -> AbstractAsyncContextManager[DrivenClient]:
    """A modern client of the TypeScript SDK 2.x, through `mcp-bridge connect`."""
    command = connect_argv(bridge.address)
    return driver.client(sdk=2, mode="modern", command=command, env=shim_environment(), **how)


def python_client(bridge: RunningBridge, word: str = "") -> Client:
    """A client of the Python SDK 2.x, which answers `word` to whatever it is asked."""

    async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        return ElicitResult(action="accept", content={"word": f"{word} to {params.message}"})

    return Client(socket_transport(bridge.address), elicitation_callback=answer)


async def call(client: Client, tool: str, **arguments: str) -> str:
    """Call a tool; return the text of its result."""
    result = await client.call_tool(tool, arguments)
    text = "".join(block.text for block in result.content if isinstance(block, TextContent))
    assert not result.is_error, text
    return text


async def test_clients_that_are_asked_for_input_at_once_each_answer_their_own_question(
    features: RunningBridge, typescript: Driver
) -> None:
    """Spec 2026-07-28, basic/patterns/mrtr: the retry has a new id and brings back the state untouched."""

    def expected(name: str, label: str) -> str:
        return f"{label}: {label} was confirmed with {name} to A word for {label}?"

    async def python(client: Client, name: str) -> None:
        labels = [f"{name}-{number}" for number in range(CALLS)]
        answers = await asyncio.gather(*(call(client, "confirm", label=label) for label in labels))
        assert answers == [expected(name, label) for label in labels]

    async def driven(client: DrivenClient, name: str) -> None:
        labels = [f"{name}-{number}" for number in range(CALLS)]
        answers = await client.ask([("confirm", {"label": label}) for label in labels])
        assert answers == [expected(name, label) for label in labels]

    async with (
        asyncio.timeout(TIMEOUT),
        python_client(features, "Ada") as ada,
        python_client(features, "Bob") as bob,
        typescript_client(typescript, features, confirm="Cai") as cai,
        typescript_client(typescript, features, confirm="Dee") as dee,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(python(ada, "Ada"))
        tasks.create_task(python(bob, "Bob"))
        tasks.create_task(driven(cai, "Cai"))
        tasks.create_task(driven(dee, "Dee"))


async def test_modern_clients_with_a_server_process_each_answer_its_questions(typescript: Driver) -> None:
    """Contract, "Eras and sharing": isolated, everything goes through, whatever the era."""
    options = ("--sharing", "isolated")
    async with (
        asyncio.timeout(TIMEOUT),
        running_bridge(*FEATURES["typescript"], options=options) as bridge,
        python_client(bridge, "Ada") as ada,
        typescript_client(typescript, bridge, confirm="Cai") as cai,
        ada.listen(resource_subscriptions=["note://1"]) as of_ada,
    ):
        await cai.listen({"resourceSubscriptions": ["note://1"]})
        answer = await call(ada, "confirm", label="a")
        assert answer == "a: a was confirmed with Ada to A word for a?"
        assert await cai.ask([("confirm", {"label": "c"})]) == [
            "c: c was confirmed with Cai to A word for c?"
        ]
        # What one server tells is its own client's alone.
        await cai.ask([("touch", {"uri": "note://1"})])
        assert await cai.events(1) == ["updated note://1"]
        await call(ada, "touch", uri="note://1")
        assert await anext(of_ada) == ResourceUpdated("note://1")
        assert await cai.events(0) == []
        assert len(bridge.server_pids("modern_server")) == 2


async def test_a_legacy_client_that_could_be_asked_for_input_is_not_since_the_server_is_shared(
    typescript: Driver,
) -> None:
    """Contract, "Legacy, shared": the server is told of no client's capabilities; the log says so."""
    async with asyncio.timeout(TIMEOUT), running_bridge(*FEATURES["python"]) as bridge:
        how = {"command": connect_argv(bridge.address), "env": shim_environment(), "confirm": "Eve"}
        async with typescript.client(sdk=1, mode="legacy", **how) as eve:
            [answer] = await eve.ask([("confirm", {"label": "x"})])
        assert isinstance(answer, Refused), answer
        assert "did not declare the form elicitation capability" in answer.message
        await bridge.wait_log("what a shared server is not told of: elicitation")


async def test_subscribers_hear_what_they_subscribed_to_and_nothing_else(
    features: RunningBridge, typescript: Driver
) -> None:
    """Contract, "Subscriptions": equal listens share one; each has its own id; who leaves hears no more."""
    both = {"toolsListChanged": True, "resourceSubscriptions": ["note://1"]}
    async with (
        asyncio.timeout(TIMEOUT),
        python_client(features) as ada,
        python_client(features) as bob,
        typescript_client(typescript, features) as cai,
        typescript_client(typescript, features) as dee,
        ada.listen(resource_subscriptions=["note://1"]) as of_ada,
        bob.listen(resource_subscriptions=["note://2"]) as of_bob,
    ):
        # These two have the same id, too.
        assert await cai.listen(both) == await dee.listen(both) == both
        await call(ada, "touch", uri="note://1")
        assert await anext(of_ada) == ResourceUpdated("note://1")
        assert await cai.events(1) == await dee.events(1) == ["updated note://1"]
        await call(bob, "grow", name=f"grown-{uuid4().hex}")
        assert await cai.events(1) == await dee.events(1) == ["tools"]
        await cai.unlisten()
        # The answer on the same connection says that the bridge has dealt with what came before the question.
        await cai.ask([("touch", {"uri": "note://3"})])
        await call(bob, "touch", uri="note://1")
        await call(bob, "touch", uri="note://2")
        assert await dee.events(1) == ["updated note://1"]
        assert await anext(of_ada) == ResourceUpdated("note://1")
        # Nothing came before it: not for a resource that it did not name, nor for the tools.
        assert await anext(of_bob) == ResourceUpdated("note://2")
        await cai.ask([("touch", {"uri": "note://1"})])
        assert await cai.events(0) == []
        assert await dee.events(1) == ["updated note://1"]


async def test_subscribers_hear_of_changes_again_after_the_server_was_killed(
    features: RunningBridge, typescript: Driver
) -> None:
    """Contract, "Subscriptions": listens are opened again; what may have been missed is announced once."""
    async with (
        asyncio.timeout(TIMEOUT),
        python_client(features) as ada,
        typescript_client(typescript, features) as cai,
        ada.listen(tools_list_changed=True, resource_subscriptions=["note://1"]) as of_ada,
    ):
        await cai.listen({"resourceSubscriptions": ["note://1"]})
        [pid] = features.server_pids("_server.")
        os.kill(pid, signal.SIGKILL)
        assert {await anext(of_ada), await anext(of_ada)} == {ResourceUpdated("note://1"), ToolsListChanged()}
        assert await cai.events(1) == ["updated note://1"]
        await call(ada, "touch", uri="note://1")
        assert await anext(of_ada) == ResourceUpdated("note://1")
        assert await cai.events(1) == ["updated note://1"]


async def test_a_third_partys_server_acknowledges_what_several_clients_listen_to(
    typescript: Driver, service: str, tmp_path: Path
) -> None:
    """Contract, "Subscriptions": who joins later is acknowledged as the first was."""
    [kind] = [kind for kind in SERVERS if kind.name == "excel"]
    part = kind.make(tmp_path, service)
    async with (
        asyncio.timeout(TIMEOUT),
        running_bridge(*part.command, env=part.env) as bridge,
        python_client(bridge) as ada,
        typescript_client(typescript, bridge) as cai,
        typescript_client(typescript, bridge) as dee,
        ada.listen(tools_list_changed=True) as of_ada,
    ):
        assert of_ada.honored.tools_list_changed is True
        assert await cai.listen({"toolsListChanged": True}) == {"toolsListChanged": True}
        assert await dee.listen({"toolsListChanged": True}) == {"toolsListChanged": True}


async def test_a_server_that_refuses_listens_refuses_each_clients_with_its_own_error(
    typescript: Driver, service: str, tmp_path: Path
) -> None:
    """Contract, "Subscriptions": a refusal goes to whoever asked, and the next listen asks again."""
    [kind] = [kind for kind in SERVERS if kind.name == "context7"]
    part = kind.make(tmp_path, service)
    async with (
        asyncio.timeout(TIMEOUT),
        running_bridge(*part.command, env=part.env) as bridge,
        python_client(bridge) as ada,
        typescript_client(typescript, bridge) as cai,
    ):
        for _ in range(2):
            with pytest.raises(MCPError, match="Subscription limit reached") as to_ada:
                await ada.listen(tools_list_changed=True).__aenter__()
            assert to_ada.value.error.code == -32603
            with pytest.raises(Refused, match="Subscription limit reached") as to_cai:
                await cai.listen({"toolsListChanged": True})
            assert to_cai.value.code == -32603
        tool, arguments, expected = part.ask(0)
        assert expected in await call(ada, tool, **arguments)
