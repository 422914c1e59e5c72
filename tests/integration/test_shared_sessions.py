"""What clients share of one legacy session, with real processes and real clients (section 7)."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from bridge.core.era import LEGACY_VERSIONS
from tests.integration.test_eras import Server
from tests.support.bridge import demo_server_command, running_bridge, wait_until
from tests.support.client import Message, RawClient, legacy_request, notification
from tests.support.scripts import b64, content, error_of

URI = "demo://one"
CAPABILITIES = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "logging": {},
    "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
}
LEGACY = {"era": "legacy", "capabilities": CAPABILITIES}


def lines(*messages: Message) -> list[str]:
    return b64(*(json.dumps(message).encode() + b"\n" for message in messages))


def updated(uri: str = URI) -> Message:
    return notification("notifications/resources/updated", {"uri": uri})


def log(level: str) -> Message:
    return notification("notifications/message", {"level": level, "data": "x"})


async def call(client: RawClient, **arguments: Any) -> dict[str, Any]:
    """A tool call; what the server says about it."""
    return content(await client.legacy_request("tools/call", {"name": "x", "arguments": arguments}))


async def subscribe(client: RawClient, uri: str = URI) -> Message:
    return await client.legacy_request("resources/subscribe", {"uri": uri})


async def unsubscribe(client: RawClient, uri: str = URI) -> Message:
    return await client.legacy_request("resources/unsubscribe", {"uri": uri})


async def set_level(client: RawClient, level: str) -> Message:
    return await client.legacy_request("logging/setLevel", {"level": level})


def levels_set(server: Server) -> list[str]:
    """The levels that the first process was told, in order."""
    received = server.received(1)
    return [message["params"]["level"] for message in received if message["method"] == "logging/setLevel"]


async def settled(*clients: RawClient) -> None:
    """Whatever the server wrote before is with these clients."""
    for client in clients:
        await call(client)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path


async def test_subscriptions_are_counted_and_updates_reach_subscribers_alone(path: Path) -> None:
    server = Server(path, LEGACY)
    async with server.run() as bridge, await bridge.connect() as one, await bridge.connect() as two:
        three = await bridge.connect()
        for client in (one, two, three):
            greeting = await client.initialize()
            assert greeting["result"]["capabilities"] == CAPABILITIES
        assert "result" in await subscribe(one)
        assert await subscribe(two) == {"jsonrpc": "2.0", "id": 2, "result": {}}
        await call(three, raw_before=lines(updated(), updated(URI + "/part"), updated("demo://other")))
        for client in (one, two):
            assert await client.recv() == updated()
            assert await client.recv() == updated(URI + "/part")
        assert await unsubscribe(one) == {"jsonrpc": "2.0", "id": 3, "result": {}}
        await call(three, raw_before=lines(updated()))
        assert await two.recv() == updated()
        await settled(one, three)
        assert one.unread == two.unread == three.unread == []
        # The last one does not say goodbye.
        two.close()
        await wait_until(lambda: server.methods(1).count("resources/unsubscribe") == 1)
        assert server.methods(1).count("resources/subscribe") == 1
        three.close()


async def test_a_refused_subscription_is_every_waiting_clients_own_error(path: Path) -> None:
    fault = {"code": -32002, "message": "Resource not found"}
    slow = {"delay_ms": 300, "error": fault}
    server = Server(path, {**LEGACY, "methods": {"resources/subscribe": slow}})
    async with server.run() as bridge, await bridge.connect() as one, await bridge.connect() as two:
        for client in (one, two):
            await client.initialize()
        for client in (one, two):
            await client.send(legacy_request("resources/subscribe", {"uri": URI}, id="s"))
        for client in (one, two):
            assert (await client.response("s"))["error"] == fault
        assert server.methods(1).count("resources/subscribe") == 1
        await call(one, raw_before=lines(updated()))
        await settled(two)
        assert one.unread == two.unread == []


async def test_each_client_hears_logs_of_its_own_level(path: Path) -> None:
    server = Server(path, LEGACY)
    async with server.run() as bridge, await bridge.connect() as one, await bridge.connect() as two:
        three = await bridge.connect()
        for client in (one, two, three):
            await client.initialize()
        assert "result" in await set_level(one, "warning")
        assert "result" in await set_level(two, "debug")
        await call(three, raw_before=lines(log("debug"), log("error")))
        assert (await two.recv(), await two.recv()) == (log("debug"), log("error"))
        assert await one.recv() == log("error")
        await settled(one, two, three)
        assert one.unread == two.unread == three.unread == []
        two.close()
        await wait_until(lambda: levels_set(server) == ["warning", "debug", "warning"])
        three.close()


async def test_a_task_is_its_makers_alone(path: Path) -> None:
    server = Server(path, LEGACY)
    task = {"taskId": "t1", "status": "working", "ttl": None, "createdAt": "now", "lastUpdatedAt": "now"}
    other = {**task, "taskId": "t2"}
    async with server.run() as bridge, await bridge.connect() as one, await bridge.connect() as two:
        for client in (one, two):
            await client.initialize()
        for client, made in ((one, task), (two, other)):
            asked = {"name": "x", "arguments": {"result": {"task": made}}, "task": {}}
            assert (await client.legacy_request("tools/call", asked))["result"] == {"task": made}
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            assert error_of(await two.legacy_request(method, {"taskId": "t1"}))[:2] == (
                -32602,
                "unknown_task",
            )
            assert "result" in await one.legacy_request(method, {"taskId": "t1"})
        listing = {"next": {"tasks/list": {"result": {"tasks": [task, other], "nextCursor": "2"}}}}
        await call(one, **listing)
        listed = await one.legacy_request("tasks/list")
        assert listed["result"] == {"tasks": [task], "nextCursor": "2"}
        status = notification("notifications/tasks/status", other)
        related = {
            "level": "info",
            "data": 1,
            "_meta": {"io.modelcontextprotocol/related-task": {"taskId": "t2"}},
        }
        await set_level(one, "debug")
        await set_level(two, "debug")
        await call(one, raw_before=lines(status, notification("notifications/message", related)))
        assert await two.recv() == status
        assert (await two.recv())["params"] == related
        await settled(one, two)
        assert one.unread == two.unread == []
        two.close()
        await wait_until(lambda: server.methods(1).count("tasks/cancel") == 2)


@pytest.mark.parametrize("served", LEGACY_VERSIONS)
async def test_clients_of_every_version_are_told_one_that_both_know(path: Path, served: str) -> None:
    greeting = {"protocolVersion": served, "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
    server = Server(path, {**LEGACY, "methods": {"initialize": {"result": greeting}}})
    async with server.run() as bridge:
        for asked in (*LEGACY_VERSIONS, "2099-01-01"):
            async with await bridge.connect() as client:
                told = (await client.initialize(asked))["result"]["protocolVersion"]
                assert told == (asked if asked <= served else served)
                assert await call(client)


async def test_after_kill_9_a_session_goes_on_as_it_was(path: Path) -> None:
    """Handshake, subscriptions and level come first; clients are told of what they may have missed."""
    server = Server(path, LEGACY)
    async with server.run() as bridge, await bridge.connect() as one, await bridge.connect() as two:
        for client in (one, two):
            await client.initialize()
        await subscribe(one)
        await set_level(two, "info")
        await one.send(legacy_request("tools/call", {"name": "x", "arguments": {"hold": "never"}}, id="held"))
        await wait_until(lambda: server.methods(1).count("tools/call") == 1)
        os.kill(server.pid(1), signal.SIGKILL)
        assert error_of(await one.response("held")) == (-31001, "server_exited", True)
        assert (await call(two))["pid"] == server.pid(2)
        assert server.methods(2) == [
            "initialize",
            "notifications/initialized",
            "resources/subscribe",
            "logging/setLevel",
            "tools/call",
        ]
        kinds = [f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")]
        for client in (one, two):
            assert [(await client.recv())["method"] for _ in kinds] == kinds
        assert await one.recv() == updated()
        await call(one, raw_before=lines(updated(), log("info")))
        assert await one.recv() == updated()
        assert await two.recv() == log("info")
        await settled(one, two)
        assert one.unread == two.unread == []


async def test_a_server_that_ends_in_order_is_started_again_for_what_clients_hold(path: Path) -> None:
    server = Server(path, LEGACY)
    async with server.run() as bridge, await bridge.connect() as client:
        await client.initialize()
        await subscribe(client)
        await client.send(
            legacy_request(
                "tools/call", {"name": "x", "arguments": {"crash": {"when": "after", "code": 0}}}, id=9
            )
        )
        await client.notification("notifications/resources/updated")
        assert server.starts == 2
        assert server.methods(2)[-1] == "resources/subscribe"


async def test_each_eras_process_is_restarted_alone_and_keeps_what_its_clients_hold(path: Path) -> None:
    server = Server(path, {"era": "dual", "capabilities": CAPABILITIES})
    async with server.run() as bridge, await bridge.connect() as new, await bridge.connect() as old:
        listening = await new.listen(resourceSubscriptions=[URI])
        await old.initialize()
        await subscribe(old)
        modern, legacy = server.pid(1), server.pid(2)
        os.kill(legacy, signal.SIGKILL)
        await old.notification("notifications/resources/updated")
        assert content(await new.call("x"))["pid"] == modern
        assert new.unread == []
        os.kill(modern, signal.SIGKILL)
        await new.notification("notifications/resources/updated", subscription=listening)
        assert (await call(old))["pid"] == server.pid(3)
        assert [json.loads(line)["method"] for line in old.unread] == [
            f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")
        ]


async def test_two_clients_watch_the_demo_servers_clock() -> None:
    async with (
        running_bridge(*demo_server_command(), "--era", "legacy") as bridge,
        await bridge.connect() as one,
        await bridge.connect() as two,
        await bridge.connect() as three,
    ):
        for client in (one, two, three):
            await client.initialize()
        assert (await subscribe(one, "demo://clock"))["result"] == {}
        assert (await subscribe(two, "demo://clock"))["result"] == {}
        assert (await subscribe(three, "demo://none"))["error"]["code"] == -32002
        for client in (one, two):
            tick = await client.notification("notifications/resources/updated")
            assert tick["params"] == {"uri": "demo://clock"}
        assert (await unsubscribe(one, "demo://clock"))["result"] == {}
        await two.notification("notifications/resources/updated")
        await two.notification("notifications/resources/updated")
        await one.legacy_request("tools/list")
        assert len([line for line in one.unread if b"updated" in line]) <= 1  # from before it unsubscribed
        assert three.unread == []
