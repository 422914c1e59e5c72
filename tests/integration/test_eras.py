"""Servers of each era, and of none, as real processes with real clients (section 7).

Where a test needs a deadline to pass it sets a short one and waits for what follows from it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.support.bridge import RunningBridge, running_bridge, server_command, wait_until
from tests.support.client import Message, RawClient, legacy_request, modern_request, notification
from tests.support.scripts import b64, content, env, error_of

NO_METHOD = {"code": -32601, "message": "Method not found"}
SILENT = {"answer": False}
STRICT = {"crash": {"when": "before", "code": 1}}


class Server:
    """The scripted server with one setting for each start (the last one stays), and what it received."""

    def __init__(self, path: Path, *settings: dict[str, Any]) -> None:
        self.starts_file = path / "starts"
        self.path = path
        self.variables = env(
            record=path / "record-@START@", starts=self.starts_file, settings=list(settings or [{}])
        )

    @property
    def starts(self) -> int:
        return len(self.starts_file.read_bytes().splitlines()) if self.starts_file.exists() else 0

    def pid(self, start: int) -> int:
        return int(self.starts_file.read_bytes().splitlines()[start - 1])

    def received(self, start: int) -> list[Message]:
        """The messages that the process of this start was sent."""
        record = self.path / f"record-{start}"
        lines = record.read_bytes().split(b"\n")[:-1] if record.exists() else []
        return [json.loads(line) for line in lines]

    def methods(self, start: int) -> list[str]:
        return [message["method"] for message in self.received(start)]

    def count(self, method: str) -> int:
        """How often any process was sent a request of this method by anybody."""
        return sum(self.methods(start).count(method) for start in range(1, self.starts + 1))

    def run(self, *options: str) -> AbstractAsyncContextManager[RunningBridge]:
        return running_bridge(*server_command("scripted.py"), options=options, env=self.variables)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path


def of_method(method: str, script: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Settings of a server that treats each request of one method so."""
    return {"methods": {method: script}, **more}


def discovering(script: dict[str, Any], **more: Any) -> dict[str, Any]:
    return of_method("server/discover", script, **more)


async def legacy_call(client: RawClient, **arguments: Any) -> dict[str, Any]:
    """A tool call in the legacy session; what the server says about it."""
    params = {"name": "x", "arguments": arguments}
    return content(await client.legacy_request("tools/call", params))


async def discover(client: RawClient) -> Message:
    return await client.request("server/discover")


def timeouts(probe: float, start: float = 60.0) -> Sequence[str]:
    return ("--probe-timeout", str(probe), "--start-timeout", str(start))


# -- which era


async def test_a_dual_era_server_gets_a_process_for_each_era_and_each_is_asked_once(path: Path) -> None:
    server = Server(path, {"era": "dual"})
    async with server.run() as bridge, await bridge.connect() as new, await bridge.connect() as old:
        modern = content(await new.call("x"))
        assert (await old.initialize())["result"]["serverInfo"]["name"] == "scripted"
        legacy = await legacy_call(old)
        assert modern["pid"] != legacy["pid"]
        assert server.starts == 2
        assert server.methods(1) == ["server/discover", "tools/call"]
        assert server.methods(2) == ["initialize", "notifications/initialized", "tools/call"]


async def test_nobody_speaks_to_a_server_until_a_client_needs_it(path: Path) -> None:
    server = Server(path, {"era": "dual"})
    async with server.run() as bridge, await bridge.connect() as client:
        await wait_until(lambda: server.starts == 1)
        assert (await client.legacy_request("ping"))["result"] == {}
        assert server.received(1) == []
        await client.initialize()
        assert server.methods(1)[0] == "initialize"


async def test_a_client_that_falls_back_from_discover_is_served_on_the_same_connection(path: Path) -> None:
    """As the official SDKs' clients of both eras do."""
    server = Server(path, {"era": "legacy"})
    async with server.run() as bridge, await bridge.connect() as client:
        assert (await discover(client))["error"] == NO_METHOD
        await client.initialize()
        assert (await legacy_call(client))["name"] == "x"
        assert server.starts == 1


@pytest.mark.parametrize("supported", [["2026-07-28"], ["2025-11-25", "2027-01-01"]])
async def test_an_unsupported_version_that_lists_modern_ones_is_a_modern_server(
    path: Path, supported: list[str]
) -> None:
    fault = {"code": -32022, "message": "no", "data": {"supported": supported}}
    server = Server(path, discovering({"error": fault}))
    async with server.run() as bridge, await bridge.connect() as client:
        assert content(await client.call("x"))["name"] == "x"
        assert server.starts == 1


@pytest.mark.parametrize(
    "fault",
    [
        {"code": -32022, "message": "no", "data": {"supported": ["2025-11-25"]}},
        {"code": -32022, "message": "no"},
        {"code": -32602, "message": "Invalid request parameters"},
        {"code": -32603, "message": "no"},
    ],
)
async def test_any_other_error_to_the_probe_is_a_legacy_server(path: Path, fault: dict[str, Any]) -> None:
    server = Server(path, discovering({"error": fault}, era="legacy"))
    async with server.run() as bridge, await bridge.connect() as new, await bridge.connect() as old:
        assert error_of(await new.call("x")) == (-31006, "era_not_served", False)
        assert (await discover(new))["error"] == fault
        await old.initialize()
        assert await legacy_call(old)
        assert server.starts == 1
        assert server.count("server/discover") == 1


async def test_the_client_of_a_modern_server_that_only_speaks_legacy_is_told_at_once(path: Path) -> None:
    server = Server(path, {"era": "modern"})
    async with server.run() as bridge, await bridge.connect() as new, await bridge.connect() as old:
        response = await old.legacy_request("initialize", {"protocolVersion": "2025-11-25"})
        assert error_of(response) == (-31006, "era_not_served", False)
        assert response["error"]["data"]["supported"] == ["2026-07-28"]
        assert content(await new.call("x"))["name"] == "x"
        again = await old.legacy_request("initialize", {"protocolVersion": "2025-11-25"})
        assert error_of(again) == (-31006, "era_not_served", False)
        # The process that refused was replaced by one that was asked nothing but the modern era.
        await wait_until(lambda: server.starts == 2)
        assert server.methods(2) == ["server/discover", "tools/call"]


async def test_the_era_may_be_decided_ahead_and_makes_the_server_ready_before_a_client_comes(
    path: Path,
) -> None:
    server = Server(path, {"era": "dual"})
    async with server.run("--era", "legacy") as bridge:
        await bridge.wait_log("the server is ready, in the legacy era")
        async with await bridge.connect() as client:
            error = (await discover(client))["error"]
            assert (error["code"], error["data"]["reason"]) == (-32601, "era_not_served")
            await client.initialize()
            assert await legacy_call(client)
        assert server.starts == 1
        assert server.count("server/discover") == 0


async def test_a_decided_modern_era_needs_no_answer_to_the_probe(path: Path) -> None:
    server = Server(path, discovering(SILENT))
    async with server.run("--era", "modern", *timeouts(0.3)) as bridge, await bridge.connect() as client:
        assert content(await client.call("x"))["name"] == "x"
        response = await client.legacy_request("initialize", {"protocolVersion": "2025-11-25"})
        assert error_of(response) == (-31006, "era_not_served", False)


# -- silence, and answers that come late


async def test_a_legacy_client_goes_ahead_on_a_server_that_is_silent_to_the_probe(path: Path) -> None:
    server = Server(path, discovering(SILENT, era="legacy"))
    options = timeouts(0.5, 2.0)
    async with server.run(*options) as bridge, await bridge.connect() as new, await bridge.connect() as old:
        waiting = await new.start_call("x")
        await old.initialize()
        assert await legacy_call(old)
        assert server.methods(1) == [
            "server/discover",
            "initialize",
            "notifications/initialized",
            "tools/call",
        ]
        # The modern need has a process of its own by now, which is as silent.
        assert error_of(await new.response(waiting)) == (-31006, "era_not_served", False)
        assert await legacy_call(old)


async def test_a_modern_client_of_a_server_that_is_silent_to_everything_is_told_in_the_end(
    path: Path,
) -> None:
    server = Server(path, {"methods": {"server/discover": SILENT, "initialize": SILENT}})
    options = timeouts(0.3, 1.0)
    async with server.run(*options) as bridge, await bridge.connect() as new, await bridge.connect() as old:
        waiting = await new.start_call("x")
        response = await old.legacy_request("initialize", {"protocolVersion": "2025-11-25"})
        assert error_of(await new.response(waiting)) == (-31006, "era_not_served", False)
        assert error_of(response) == (-31006, "era_not_served", False)
        # Nothing was killed: it only did not answer.
        assert server.starts == 1
        assert len(bridge.server_pids()) == 1


async def test_a_modern_client_waits_for_a_server_that_answers_after_the_probe_timeout(path: Path) -> None:
    server = Server(path, discovering({"delay_ms": 900}))
    async with server.run(*timeouts(0.2)) as bridge, await bridge.connect() as client:
        assert content(await client.call("x"))["name"] == "x"
        assert server.starts == 1
        assert server.count("server/discover") == 1


async def test_a_server_that_sleeps_before_it_reads_serves_the_client_that_waited(path: Path) -> None:
    """A launcher may be downloading."""
    server = Server(path, {"start_delay_ms": 1000})
    async with server.run(*timeouts(0.2)) as bridge, await bridge.connect() as client:
        assert content(await client.call("x"))["name"] == "x"
        assert server.starts == 1


async def test_a_late_discover_result_gives_way_to_a_session_that_opens(path: Path) -> None:
    slow = {"delay_ms": 1200}
    server = Server(path, discovering(slow, era="dual"))
    options = timeouts(0.3)
    async with server.run(*options) as bridge, await bridge.connect() as new, await bridge.connect() as old:
        waiting = await new.start_call("x")
        await old.initialize()
        legacy = await legacy_call(old)
        modern = content(await new.response(waiting))
        assert legacy["pid"] == server.pid(1)
        assert modern["pid"] == server.pid(2)
        assert (await legacy_call(old))["pid"] == server.pid(1)


async def test_a_late_discover_result_and_a_refused_initialize_make_the_process_modern(path: Path) -> None:
    """As a server does that the probe has pinned to the modern era; another process opens the session."""
    pinned = {"code": -32022, "message": "pinned", "data": {"supported": ["2026-07-28"]}}
    late = {
        "server/discover": {"delay_ms": 900},
        "initialize": {"delay_ms": 1200, "error": pinned},
    }
    server = Server(path, {"methods": late}, {"era": "legacy"})
    options = timeouts(0.3)
    async with server.run(*options) as bridge, await bridge.connect() as new, await bridge.connect() as old:
        waiting = await new.start_call("x")
        await old.initialize()
        assert content(await new.response(waiting))["pid"] == server.pid(1)
        assert (await legacy_call(old))["pid"] == server.pid(2)
        assert server.starts == 2


async def test_noise_on_stdout_ends_the_wait_of_a_modern_client(path: Path) -> None:
    """It has started, then, and does not answer."""
    banner = {"banner": "U2VydmVyIHJlYWR5Cg=="}
    server = Server(path, discovering(SILENT, **banner))
    async with server.run(*timeouts(0.5)) as bridge, await bridge.connect() as client:
        assert error_of(await client.call("x")) == (-31006, "era_not_served", False)


async def test_a_first_need_long_after_the_start_is_served_like_an_early_one(path: Path) -> None:
    server = Server(path)
    async with server.run(*timeouts(60, 0.2)) as bridge, await bridge.connect() as client:
        await wait_until(lambda: server.starts == 1)
        await asyncio.sleep(0.5)  # older than --start-timeout
        assert content(await client.call("x"))["name"] == "x"


async def test_a_first_need_long_after_the_start_of_a_silent_server_has_the_probe_timeout(path: Path) -> None:
    server = Server(path, discovering(SILENT))
    async with server.run(*timeouts(0.5, 0.2)) as bridge, await bridge.connect() as client:
        await wait_until(lambda: server.starts == 1)
        await asyncio.sleep(0.5)  # older than --start-timeout
        assert error_of(await client.call("x")) == (-31006, "era_not_served", False)


# -- exits on the probe


async def test_a_server_that_exits_on_the_probe_is_started_again_unprobed(path: Path) -> None:
    server = Server(path, discovering(STRICT, era="legacy"))
    # One failed start would end the bridge.
    async with server.run("--max-restarts", "1") as bridge, await bridge.connect() as client:
        error = (await discover(client))["error"]
        assert (error["code"], error["data"]["reason"]) == (-32601, "era_not_served")
        await client.initialize()
        assert (await legacy_call(client))["pid"] == server.pid(2)
        assert server.methods(2)[0] == "initialize"
        assert (await discover(client))["error"]["code"] == -32601
        assert server.starts == 2
        assert not [line for line in bridge.stderr_text().splitlines() if "WARNING" in line.upper()]


async def test_a_legacy_client_that_waited_for_the_probe_survives_the_servers_exit(path: Path) -> None:
    server = Server(path, discovering(STRICT, era="legacy", start_delay_ms=300))
    options = ("--max-restarts", "1")
    async with server.run(*options) as bridge, await bridge.connect() as new, await bridge.connect() as old:
        waiting = await new.start_call("x")
        await old.initialize()
        assert error_of(await new.response(waiting)) == (-31006, "era_not_served", False)
        assert (await legacy_call(old))["pid"] == server.pid(2)


async def test_a_server_that_sleeps_and_then_exits_on_the_probe_is_started_again_unprobed(
    path: Path,
) -> None:
    """The legacy client had gone ahead by then: both questions lay before it."""
    server = Server(path, discovering(STRICT, era="legacy", start_delay_ms=1000))
    options = ("--max-restarts", "1", *timeouts(0.2))
    async with server.run(*options) as bridge, await bridge.connect() as new, await bridge.connect() as old:
        waiting = await new.start_call("x")
        await old.initialize()
        assert error_of(await new.response(waiting)) == (-31006, "era_not_served", False)
        assert server.methods(1) == ["server/discover", "initialize"]
        assert server.methods(2)[0] == "initialize"
        assert (await legacy_call(old))["pid"] == server.pid(2)


async def test_a_server_that_reads_line_by_line_may_leave_initialize_unread_when_it_exits_on_the_probe() -> (
    None
):
    """It has read what it exits on: that is no failed start, of which one would end this bridge."""
    server = """
import json, os, sys, time
time.sleep(1)
while True:
    line = b""
    while not line.endswith(b"\\n"):
        line += os.read(0, 1) or sys.exit(0)
    message = json.loads(line)
    if message["method"] == "server/discover":
        sys.exit(1)
    if "id" in message:
        info = {"name": "s", "version": "0"}
        known = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": info}
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": known}
        os.write(1, json.dumps(answer).encode() + b"\\n")
"""
    options = ("--max-restarts", "1", *timeouts(0.2))
    command = (sys.executable, "-S", "-c", server)
    async with (
        running_bridge(*command, options=options) as bridge,
        await bridge.connect() as new,
        await bridge.connect() as old,
    ):
        waiting = await new.start_call("x")
        await old.initialize()
        assert error_of(await new.response(waiting)) == (-31006, "era_not_served", False)
        await old.send(legacy_request("x", id="x"))
        assert "result" in await old.response("x")


async def test_a_second_process_that_exits_on_the_probe_is_not_started_again(path: Path) -> None:
    server = Server(path, discovering(STRICT, era="legacy"))
    options = ("--max-restarts", "1")
    async with server.run(*options) as bridge, await bridge.connect() as old, await bridge.connect() as new:
        await old.initialize()
        assert error_of(await new.call("x")) == (-31006, "era_not_served", False)
        await bridge.wait_log("started again when somebody needs it")
        assert (await legacy_call(old))["pid"] == server.pid(1)
        assert server.starts == 2
        assert bridge.server_pids() == [server.pid(1)]


# -- many clients, and clients that vanish


async def test_a_client_that_probes_and_vanishes_disturbs_nothing(path: Path) -> None:
    """Some hosts probe on a sibling connection, which they kill."""
    server = Server(path, {"era": "dual", "start_delay_ms": 300})
    async with server.run() as bridge:
        for _ in range(3):
            sibling = await bridge.connect()
            await sibling.send(modern_request("server/discover", id="server-discover-probe-1"))
            sibling.abort()
        async with await bridge.connect() as new, await bridge.connect() as old:
            assert "supportedVersions" in (await discover(new))["result"]
            assert content(await new.call("x"))["pid"] == server.pid(1)
            await old.initialize()
            assert (await legacy_call(old))["pid"] == server.pid(2)
        assert server.starts == 2
        assert server.methods(1).count("initialize") == 0


async def test_fifty_clients_of_both_eras_at_the_first_moment_cause_one_probe_and_one_initialize(
    path: Path,
) -> None:
    server = Server(path, {"era": "dual", "start_delay_ms": 300})

    async def modern(number: int) -> int:
        async with await bridge.connect() as client:
            seen = content(await client.call(f"m{number}"))
            assert seen["name"] == f"m{number}"
            pid: int = seen["pid"]
            return pid

    async def legacy(number: int) -> int:
        async with await bridge.connect() as client:
            assert (await client.initialize())["result"]["protocolVersion"] == "2025-11-25"
            params = {"name": f"l{number}", "arguments": {}}
            seen = content(await client.legacy_request("tools/call", params))
            assert seen["name"] == f"l{number}"
            pid: int = seen["pid"]
            return pid

    async with server.run() as bridge:
        pids = await asyncio.gather(*((modern if n % 2 else legacy)(n) for n in range(50)))
        assert server.starts == 2
        assert server.count("server/discover") == 1
        assert server.count("initialize") == 1
        assert len(set(pids[0::2])) == len(set(pids[1::2])) == 1
        assert set(pids[0::2]) != set(pids[1::2])


# -- processes that die


async def test_a_second_era_whose_process_cannot_live_refuses_that_era_and_ends_nothing(path: Path) -> None:
    server = Server(path, {"era": "dual"}, {"exit": 3})
    options = ("--max-restarts", "2")
    async with server.run(*options) as bridge, await bridge.connect() as new, await bridge.connect() as old:
        first = content(await new.call("x"))["pid"]
        response = await old.legacy_request("initialize", {"protocolVersion": "2025-11-25"})
        assert error_of(response) == (-31006, "era_not_served", False)
        await bridge.wait_log("given up for a while")
        starts = server.starts
        assert starts == 3
        response = await old.legacy_request("initialize", {"protocolVersion": "2025-11-25"})
        assert error_of(response) == (-31006, "era_not_served", False)
        assert content(await new.call("x"))["pid"] == first
        assert server.starts == starts


async def test_kill_9_of_the_modern_process_is_no_business_of_legacy_clients(path: Path) -> None:
    server = Server(path, {"era": "dual"})
    async with server.run() as bridge, await bridge.connect() as new, await bridge.connect() as old:
        listening = await new.listen(toolsListChanged=True)
        await old.initialize()
        held = await new.start_call("x", hold="never")
        await old.send(legacy_request("tools/call", {"name": "x", "arguments": {"hold": "go"}}, id="held"))
        await wait_until(lambda: server.methods(2).count("tools/call") == 1)
        await wait_until(lambda: server.methods(1).count("tools/call") == 1)
        os.kill(server.pid(1), signal.SIGKILL)
        assert error_of(await new.response(held)) == (-31001, "server_exited", True)
        # The subscription is opened again, and its holder is told what it may have missed.
        await new.notification("notifications/tools/list_changed", subscription=listening)
        assert content(await new.call("x"))["pid"] == server.pid(3)
        assert server.methods(3)[:2] == ["server/discover", "subscriptions/listen"]
        await legacy_call(old, release="go")
        assert content(await old.response("held"))["pid"] == server.pid(2)
        assert old.unread == []


async def test_kill_9_of_the_legacy_process_costs_its_clients_what_was_in_flight(path: Path) -> None:
    """The handshake is made again before any request; the sessions go on."""
    server = Server(path, {"era": "dual"})
    async with server.run() as bridge, await bridge.connect() as new, await bridge.connect() as old:
        await old.initialize()
        other = await bridge.connect()
        await other.initialize()
        held = await new.start_call("x", hold="go")
        await old.send(legacy_request("tools/call", {"name": "x", "arguments": {"hold": "never"}}, id="held"))
        await wait_until(lambda: server.methods(1).count("tools/call") == 1)
        await wait_until(lambda: server.methods(2).count("tools/call") == 1)
        os.kill(server.pid(1), signal.SIGKILL)
        assert error_of(await old.response("held")) == (-31001, "server_exited", True)
        assert (await legacy_call(old))["pid"] == server.pid(3)
        assert (await legacy_call(other))["pid"] == server.pid(3)
        assert server.methods(3) == [
            "initialize",
            "notifications/initialized",
            "tools/call",
            "tools/call",
        ]
        # A newcomer is greeted like the others.
        async with await bridge.connect() as third:
            await third.initialize()
        assert server.count("initialize") == 2
        await new.call("x", release="go")
        assert content(await new.response(held))["pid"] == server.pid(2)
        # It may have other lists now.
        kinds = [f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")]
        for client, told in ((new, []), (old, kinds), (other, kinds)):
            assert [json.loads(line)["method"] for line in client.unread] == told
        other.close()


async def test_legacy_clients_are_closed_when_the_server_comes_back_with_other_capabilities(
    path: Path,
) -> None:
    server = Server(path, {"era": "legacy"}, {"era": "legacy", "capabilities": {"tools": {}}})
    async with server.run() as bridge, await bridge.connect() as old:
        await old.initialize()
        os.kill(server.pid(1), signal.SIGKILL)
        assert await old.expect_eof() == []
        async with await bridge.connect() as client:
            assert (await client.initialize())["result"]["capabilities"] == {"tools": {}}


async def test_initialize_is_answered_while_the_legacy_process_is_away(path: Path) -> None:
    server = Server(path, {"era": "legacy"}, {"era": "legacy", "start_delay_ms": 1500})
    async with server.run() as bridge, await bridge.connect() as old:
        await old.initialize()
        os.kill(server.pid(1), signal.SIGKILL)
        await bridge.wait_log("ended: killed by SIGKILL")
        async with await bridge.connect() as client:
            await client.initialize(timeout=1.0)
            assert (await legacy_call(client))["pid"] == server.pid(2)


# -- sessions


async def test_a_changed_list_is_told_to_initialized_clients_and_a_servers_request_to_nobody(
    path: Path,
) -> None:
    server = Server(path, {"era": "legacy"})
    async with server.run() as bridge, await bridge.connect() as old, await bridge.connect() as other:
        await old.initialize()
        await other.legacy_request("initialize", {"protocolVersion": "2025-06-18"})
        asks = json.dumps({"jsonrpc": "2.0", "id": "ask", "method": "roots/list"}).encode() + b"\n"
        changed = json.dumps(notification("notifications/tools/list_changed")).encode() + b"\n"
        await legacy_call(old, raw_before=b64(asks, changed))
        await old.notification("notifications/tools/list_changed")
        assert old.unread == []
        # The server's request was refused before it got this call.
        state = content(await other.legacy_request("tools/call", {"name": "state", "arguments": {}}))
        [answer] = state["responses"]
        assert (answer["id"], answer["error"]["code"]) == ("ask", -32601)
        assert other.unread == []


async def test_what_is_pipelined_behind_initialize_is_answered_behind_it(path: Path) -> None:
    server = Server(path, {"era": "legacy", "start_delay_ms": 300})
    async with server.run() as bridge, await bridge.connect() as client:
        await client.send(
            legacy_request("initialize", {"protocolVersion": "2024-11-05", "capabilities": {}}, id=1),
            notification("notifications/initialized"),
            legacy_request("tools/call", {"name": "x", "arguments": {}}, id=2),
        )
        client.half_close()
        first, second = await client.recv(), await client.recv()
        assert (first["id"], first["result"]["protocolVersion"]) == (1, "2024-11-05")
        assert (second["id"], content(second)["name"]) == (2, "x")
        await client.expect_eof()


async def test_a_stop_ends_the_processes_of_both_eras(path: Path) -> None:
    server = Server(path, {"era": "dual"})
    async with server.run() as bridge, await bridge.connect() as new, await bridge.connect() as old:
        await new.call("x")
        await old.initialize()
        held = await new.start_call("x", hold="never")
        await old.send(legacy_request("tools/call", {"name": "x", "arguments": {"hold": "never"}}, id="held"))
        await wait_until(lambda: server.methods(2).count("tools/call") == 1)
        bridge.signal(signal.SIGTERM)
        bridge.signal(signal.SIGINT)  # in a hurry
        assert error_of(await new.response(held)) == (-31005, "shutting_down", True)
        assert error_of(await old.response("held")) == (-31005, "shutting_down", True)
        assert await bridge.wait() == 0
