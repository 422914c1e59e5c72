"""The README's table "Sharing a legacy server": cells that no other test is about, with real processes.

What sharing does with each feature is in `test_shared_sessions.py`, what isolation does with requests of the
server in `test_isolated.py`. Here: what is counted in a shared session goes through in one that is not, and
where some clients share and others do not, each kind fares as its own.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_eras import Server
from tests.integration.test_isolated import AUTO, ISOLATED, initialize
from tests.integration.test_shared_sessions import (
    LEGACY,
    call,
    lines,
    log,
    set_level,
    subscribe,
    unsubscribe,
    updated,
)
from tests.support.bridge import wait_until
from tests.support.client import legacy_request, notification
from tests.support.scripts import error_of

CHANGED = notification("notifications/tools/list_changed")
STATUS = notification("notifications/tasks/status", {"taskId": "t", "status": "working"})
TOLD = [updated(), CHANGED, log("debug"), STATUS]
"""What a server may say of its own accord."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path


async def test_what_a_shared_session_counts_goes_through_where_none_is_shared(path: Path) -> None:
    server = Server(path, LEGACY)
    async with server.run(*ISOLATED) as bridge, await bridge.connect() as one, await bridge.connect() as two:
        for client in (one, two):
            await initialize(client)
            assert "result" in await subscribe(client)
            assert "result" in await subscribe(client)
            assert "result" in await unsubscribe(client)
            assert "result" in await set_level(client, "alert")
            for method in ("tasks/list", "tasks/get"):
                assert "result" in await client.legacy_request(method, {"taskId": "anybody's"})
        await call(one, raw_before=lines(*TOLD))
        assert [await one.recv() for _ in TOLD] == TOLD
        await call(two)
        assert one.unread == two.unread == []
        for start in (1, 2):
            assert server.methods(start)[2:] == [
                "resources/subscribe",
                "resources/subscribe",
                "resources/unsubscribe",
                "logging/setLevel",
                "tasks/list",
                "tasks/get",
                "tools/call",
            ]


async def test_beside_clients_with_their_own_process_the_others_share_as_ever(path: Path) -> None:
    """auto: counted subscriptions, levels of one's own, tasks of one's own; `roots/list` is refused."""
    server = Server(path, LEGACY)
    async with server.run(*AUTO) as bridge:
        one, two, own = [await bridge.connect() for _ in range(3)]
        await initialize(one, roots={"listChanged": True})
        await initialize(two)
        await initialize(own, sampling={}, roots={})
        for client in (one, two, own):
            assert "result" in await subscribe(client)
        assert "result" in await set_level(one, "debug")
        assert "result" in await set_level(two, "alert")
        assert error_of(await two.legacy_request("tasks/get", {"taskId": "t"}))[0] == -32602
        await one.send(notification("notifications/roots/list_changed"))
        asks = legacy_request("roots/list", id="q")
        await call(two, raw_before=lines(asks, *TOLD))
        assert [await one.recv() for _ in range(3)] == [updated(), CHANGED, log("debug")]
        assert [await two.recv() for _ in range(2)] == [updated(), CHANGED]
        await call(own, raw_before=lines(asks, updated()))
        assert [await own.recv() for _ in range(2)] == [asks, updated()]
        await call(one)
        assert one.unread == two.unread == own.unread == []
        shared = server.received(1)
        assert [message.get("method") for message in shared].count("resources/subscribe") == 1
        assert not [message for message in shared if message.get("method", "").startswith("tasks/")]
        assert "notifications/roots/list_changed" not in [message.get("method") for message in shared]
        [answer] = [message for message in shared if message.get("id") == "q"]
        assert answer["error"]["code"] == -32601
        for client in (one, two, own):
            client.close()


@pytest.mark.parametrize("whose", ["shared", "own"])
async def test_where_some_share_and_some_do_not_the_end_of_a_process_is_its_own_clients_affair(
    path: Path, whose: str
) -> None:
    """auto: who shares stays connected, and holds what it held; who does not is closed."""
    server = Server(path, LEGACY)
    async with server.run(*AUTO) as bridge, await bridge.connect() as one, await bridge.connect() as own:
        await initialize(one)
        await subscribe(one)
        await initialize(own, sampling={})
        pids = [(await call(client))["pid"] for client in (one, own)]
        held: dict[str, Any] = {"name": "x", "arguments": {"hold": "never"}}
        for client in (one, own):
            await client.send(legacy_request("tools/call", held, id="held"))
        await wait_until(lambda: all(server.methods(n).count("tools/call") == 2 for n in (1, 2)))
        os.kill(pids[whose == "own"], signal.SIGKILL)
        if whose == "own":
            assert error_of(await own.response("held")) == (-31001, "server_exited", True)
            assert await own.expect_eof() == []
            assert (await call(one))["pid"] == pids[0]
            return
        assert error_of(await one.response("held")) == (-31001, "server_exited", True)
        assert (await call(one))["pid"] == server.pid(3)
        assert server.methods(3)[:3] == ["initialize", "notifications/initialized", "resources/subscribe"]
        assert updated() in [json.loads(told) for told in one.unread]
        assert (await call(own))["pid"] == pids[1]


async def test_where_some_share_and_some_do_not_sighup_replaces_what_is_shared(path: Path) -> None:
    """auto: who shares goes on with the new process, who does not with its own; nobody gets an error."""
    server = Server(path, LEGACY)
    async with server.run(*AUTO) as bridge, await bridge.connect() as one, await bridge.connect() as own:
        await initialize(one)
        await subscribe(one)
        await initialize(own, sampling={})
        own_pid = (await call(own))["pid"]
        bridge.signal(signal.SIGHUP)
        await bridge.wait_log("replaced")
        assert (await call(one))["pid"] == server.pid(3)
        assert server.methods(3)[:3] == ["initialize", "notifications/initialized", "resources/subscribe"]
        assert (await call(own))["pid"] == own_pid
