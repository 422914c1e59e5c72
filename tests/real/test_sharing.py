"""Published legacy servers with clients that share them, or have a process each.

Contract, "Eras and sharing", the legacy part; README, "Sharing a legacy server".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.real.drivers import node, npm_part
from tests.real.servers import QUESTIONS, cnb_part, everything_part, grafana_part, memory_part, sqlite_part
from tests.support.bridge import RunningBridge, running_bridge, wait_until
from tests.support.client import Message, RawClient, legacy_request, notification

pytestmark = pytest.mark.real

TIMEOUT = 60.0
GRAPH = "memory://knowledge-graph"
PARAMS = {"protocolVersion": "2025-11-25", "clientInfo": {"name": "raw", "version": "1"}}


async def call(client: RawClient, name: str, **arguments: Any) -> Message:
    return await client.legacy_request("tools/call", {"name": name, "arguments": arguments}, timeout=TIMEOUT)


def methods(lines: Iterable[bytes]) -> list[str]:
    """Of notifications that nobody has taken; list-changed ones are everybody's."""
    found = [json.loads(line)["method"] for line in lines]
    return [method for method in found if not method.endswith("list_changed")]


async def test_clients_that_subscribe_to_the_memory_servers_graph_hear_of_each_others_changes(
    tmp_path: Path,
) -> None:
    part = memory_part(tmp_path, "")
    async with (
        asyncio.timeout(TIMEOUT),
        running_bridge(*part.command, env=part.env) as bridge,
        await bridge.connect() as ada,
        await bridge.connect() as bob,
        await bridge.connect() as cai,
    ):
        for client in (ada, bob, cai):
            greeting = await client.initialize()
            assert greeting["result"]["capabilities"]["resources"]["subscribe"] is True
        for client in (ada, bob):
            assert (await client.legacy_request("resources/subscribe", {"uri": GRAPH}))["result"] == {}
        entity = {"name": "new", "entityType": "number", "observations": []}
        assert "result" in await call(cai, "create_entities", entities=[entity])
        for client in (ada, bob):
            update = await client.notification("notifications/resources/updated")
            assert update["params"]["uri"] == GRAPH
        assert (await ada.legacy_request("resources/unsubscribe", {"uri": GRAPH}))["result"] == {}
        assert "result" in await call(cai, "delete_entities", entityNames=["new"])
        await bob.notification("notifications/resources/updated")
        await call(ada, "read_graph")
        assert methods(ada.unread) == methods(bob.unread) == methods(cai.unread) == []
        assert len(bridge.server_pids(part.program)) == 1


async def test_the_everything_servers_logs_and_tasks_are_told_apart(tmp_path: Path) -> None:
    part = everything_part(tmp_path, "")
    async with (
        asyncio.timeout(TIMEOUT),
        running_bridge(*part.command, env=part.env, leftover_timeout=10) as bridge,
        await bridge.connect() as ada,
        await bridge.connect() as bob,
        await bridge.connect() as cai,
    ):
        for client in (ada, bob, cai):
            await client.initialize()
        for client, level in ((ada, "info"), (bob, "error")):
            assert (await client.legacy_request("logging/setLevel", {"level": level}))["result"] == {}
        # It logs each subscription, as info.
        uri = "demo://resource/dynamic/text/1"
        assert (await cai.legacy_request("resources/subscribe", {"uri": uri}))["result"] == {}
        said = await ada.notification("notifications/message")
        assert uri in said["params"]["data"]
        await call(cai, "toggle-subscriber-updates")
        update = await cai.notification("notifications/resources/updated")
        assert update["params"]["uri"] == uri
        research = {"name": "simulate-research-query", "arguments": {"topic": "bridges"}, "task": {}}
        made = await ada.legacy_request("tools/call", research)
        task = {"taskId": made["result"]["task"]["taskId"]}
        assert (await ada.legacy_request("tasks/get", task))["result"]["taskId"] == task["taskId"]
        assert (await bob.legacy_request("tasks/get", task))["error"]["code"] == -32602
        listed = (await ada.legacy_request("tasks/list"))["result"]["tasks"]
        assert [one["taskId"] for one in listed] == [task["taskId"]]
        assert (await bob.legacy_request("tasks/list"))["result"]["tasks"] == []
        assert "result" in await ada.legacy_request("tasks/cancel", task)
        for client in (ada, bob):
            await call(client, "echo", message="x")
        assert "notifications/tasks/status" not in methods(bob.unread)
        assert "notifications/message" not in methods(bob.unread) + methods(cai.unread)
        assert "notifications/resources/updated" not in methods(ada.unread) + methods(bob.unread)


class WithRoots:
    """A client that says which directory is its root whenever it is asked."""

    def __init__(self, client: RawClient, root: Path) -> None:
        self.client = client
        self.root = root
        self.asked = 0

    async def open(self) -> None:
        roots = {"roots": {"listChanged": True}}
        await self.client.legacy_request("initialize", {**PARAMS, "capabilities": roots})
        await self.client.send(notification("notifications/initialized"))

    async def answer(self) -> None:
        """Wait until it is asked."""
        asks = await self.client.matching(lambda message: message.get("method") == "roots/list")
        self.asked += 1
        roots = {"roots": [{"uri": self.root.as_uri()}]}
        await self.client.send({"jsonrpc": "2.0", "id": asks["id"], "result": roots})

    async def allowed(self) -> str:
        return str((await call(self.client, "list_allowed_directories"))["result"]["content"][0]["text"])


def filesystem(folder: Path) -> tuple[str, ...]:
    for name in ("common", "ada", "bob"):
        (folder / name).mkdir()
        (folder / name / "file.txt").write_text(f"of {name}\n")
    index = npm_part("@modelcontextprotocol/server-filesystem/dist/index.js")
    return node(), index, str(folder / "common")


async def two_with_roots(bridge: RunningBridge, folder: Path) -> list[WithRoots]:
    clients = [WithRoots(await bridge.connect(), folder / name) for name in ("ada", "bob")]
    for client in clients:
        await client.open()
    return clients


async def test_clients_that_share_the_filesystem_server_do_not_change_each_others_directories(
    tmp_path: Path,
) -> None:
    command = filesystem(tmp_path)
    async with asyncio.timeout(TIMEOUT), running_bridge(*command) as bridge:
        clients = await two_with_roots(bridge, tmp_path)
        for client in clients:
            await client.client.send(notification("notifications/roots/list_changed"))
            allowed = await client.allowed()
            assert "common" in allowed
            assert "ada" not in allowed
            assert "bob" not in allowed
        assert all(client.client.unread == [] for client in clients)
        for client in clients:
            client.client.close()


@pytest.mark.parametrize(
    "options", [("--sharing", "isolated"), ("--sharing", "auto", "--isolate-for", "roots")]
)
async def test_clients_with_a_filesystem_server_each_have_their_own_directories(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    command = filesystem(tmp_path)
    async with asyncio.timeout(TIMEOUT), running_bridge(*command, options=options) as bridge:
        clients = await two_with_roots(bridge, tmp_path)
        for client in clients:
            await client.answer()
        for client in clients:
            own, other = ("ada", "bob") if client.root.name == "ada" else ("bob", "ada")

            async def settled(client: WithRoots = client, own: str = own) -> bool:
                return own in await client.allowed()

            while not await settled():  # it takes a moment to take the roots in
                pass
            path = str(client.root / "file.txt")
            read = await call(client.client, "read_text_file", path=path)
            assert f"of {own}" in str(read["result"]["content"])
            stranger = str(tmp_path / other / "file.txt")
            assert (await call(client.client, "read_text_file", path=stranger))["result"]["isError"] is True
        for client in clients:
            client.client.close()
        left = 0 if "isolated" in options else 1
        await wait_until(lambda: len(bridge.server_pids("server-filesystem")) == left)


async def test_a_shared_server_that_asks_its_client_gets_an_error_and_no_client_hears_of_it(
    tmp_path: Path,
) -> None:
    """server-everything offers the tools that ask to clients that say they answer: the bridge does not."""
    part = everything_part(tmp_path, "")
    async with (
        asyncio.timeout(TIMEOUT),
        running_bridge(*part.command, env=part.env, leftover_timeout=10) as bridge,
        await bridge.connect() as client,
    ):
        await client.send(
            legacy_request("initialize", {**PARAMS, "capabilities": {"sampling": {}, "roots": {}}}, id=1),
            notification("notifications/initialized"),
        )
        await client.response(1)
        await bridge.wait_log("a client offers what a shared server is not told of.*sampling, roots")
        listed = await client.legacy_request("tools/list")
        names = {tool["name"] for tool in listed["result"]["tools"]}
        assert not names & {"trigger-sampling-request", "get-roots-list", "trigger-elicitation-request"}
        assert methods(client.unread) == []


# By the Python SDK 1.x, in Go and in Rust; with what each says to a level.
PARTS = {"sqlite": sqlite_part, "grafana": grafana_part, "cnb": cnb_part}
LEVELS = {"sqlite": -32601, "grafana": None, "cnb": -32601}
# How many processes there are for two clients that declare that they can be asked and two that do not, and
# how many when all have left.
SHARING = {
    "isolated": (("--sharing", "isolated"), 4, 0),
    "auto": (("--sharing", "auto"), 3, 1),
}


@pytest.mark.parametrize("sharing", SHARING)
@pytest.mark.parametrize("name", PARTS)
async def test_servers_in_three_languages_are_shared_or_every_clients_own(
    name: str, sharing: str, tmp_path: Path, service: str
) -> None:
    """Four clients at once, two of which can be asked; each uses the ids and tokens of the others, too."""
    part = PARTS[name](tmp_path, service)
    options, together, left = SHARING[sharing]
    share = QUESTIONS // 4

    async def use(client: RawClient, number: int) -> None:
        capabilities: dict[str, Any] = {"sampling": {}} if number % 2 else {}
        greeting = await client.legacy_request("initialize", {**PARAMS, "capabilities": capabilities})
        assert greeting["result"]["protocolVersion"] == PARAMS["protocolVersion"]
        await client.send(notification("notifications/initialized"))
        for _ in range(2):
            asked = [part.ask(share * number + id) for id in range(share)]
            for id, (tool, arguments, _) in enumerate(asked):
                params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": id}}
                await client.send(legacy_request("tools/call", params, id=id))
            for id, (_, _, expected) in enumerate(asked):
                # Some answer with an error, which says to what as well.
                answer = json.dumps(await client.response(id, TIMEOUT))
                assert json.dumps(expected)[1:-1] in answer
        settled = await client.legacy_request("logging/setLevel", {"level": "info"})
        assert settled.get("error", {}).get("code") == LEVELS[name]

    async with (
        asyncio.timeout(TIMEOUT),
        running_bridge(*part.command, options=options, env=part.env) as bridge,
    ):
        clients = [await bridge.connect() for _ in range(4)]
        await asyncio.gather(*(use(client, number) for number, client in enumerate(clients)))
        assert len(bridge.server_pids(part.program)) == together
        for client in clients:
            assert methods(client.unread) == []
            client.close()
        await wait_until(lambda: len(bridge.server_pids(part.program)) == left)


async def memo(client: RawClient) -> str:
    read = await client.legacy_request("resources/read", {"uri": "memo://insights"})
    return str(read["result"]["contents"][0]["text"])


@pytest.mark.parametrize("shared", [True, False])
async def test_the_sqlite_servers_memo_is_everybodys_or_each_clients_own(
    tmp_path: Path, shared: bool
) -> None:
    """It keeps what it was told in its memory, and tells of changes though it takes no subscriptions."""
    part = sqlite_part(tmp_path, "")
    async with (
        asyncio.timeout(TIMEOUT),
        running_bridge(*part.command, options=() if shared else ("--sharing", "isolated")) as bridge,
        await bridge.connect() as ada,
        await bridge.connect() as bob,
    ):
        for client in (ada, bob):
            await client.initialize()
            refused = await client.legacy_request("resources/subscribe", {"uri": "memo://insights"})
            assert refused["error"]["code"] == -32601
        assert "result" in await call(ada, "append_insight", insight="bridges carry")
        assert "bridges carry" in await memo(ada)
        assert ("bridges carry" in await memo(bob)) is shared
        # Who shares hears of what it has subscribed to; who has a process of its own hears all that it says.
        told = [] if shared else ["notifications/resources/updated"]
        assert methods(ada.unread) == told
        assert methods(bob.unread) == []
