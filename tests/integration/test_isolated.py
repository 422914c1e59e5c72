"""Clients with a server process each (`--sharing isolated` and `auto`, section 7), with real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_eras import Server
from tests.support.bridge import run_command, running_bridge, server_command, wait_until
from tests.support.client import Message, RawClient, legacy_request, notification
from tests.support.scripts import b64, content, env, error_of

ISOLATED = ("--sharing", "isolated")
AUTO = ("--sharing", "auto")
LEGACY = {"era": "legacy"}

FORM = {"mode": "form", "message": "Name?", "requestedSchema": {"type": "object", "properties": {}}}
URL = {"mode": "url", "message": "Log in", "url": "https://example.com/login", "elicitationId": "e1"}


def lines(*messages: Message) -> list[str]:
    return b64(*(json.dumps(message).encode() + b"\n" for message in messages))


def response(id: Any, result: Any) -> Message:
    return {"jsonrpc": "2.0", "id": id, "result": result}


async def initialize(client: RawClient, **capabilities: Any) -> Message:
    params = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": {"name": "c"}}
    answer = await client.legacy_request("initialize", params)
    await client.send(notification("notifications/initialized"))
    return answer


async def call(client: RawClient, name: str = "x", **arguments: Any) -> dict[str, Any]:
    return content(await client.legacy_request("tools/call", {"name": name, "arguments": arguments}))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path


# -- a process for each


async def test_each_client_has_a_process_of_its_own_that_hears_all_it_says(path: Path) -> None:
    server = Server(path, LEGACY)
    async with server.run(*ISOLATED) as bridge, await bridge.connect() as one, await bridge.connect() as two:
        assert server.starts == 0
        await initialize(one, sampling={}, roots={"listChanged": True})
        await initialize(two)
        first, second = await call(one), await call(two)
        assert {first["pid"], second["pid"]} == {server.pid(1), server.pid(2)}
        await one.send(notification("notifications/roots/list_changed"))
        assert (await one.legacy_request("ping"))["result"]
        received = server.received(1)
        assert [message["method"] for message in received] == [
            "initialize",
            "notifications/initialized",
            "tools/call",
            "notifications/roots/list_changed",
            "ping",
        ]
        assert received[0]["params"]["capabilities"] == {"sampling": {}, "roots": {"listChanged": True}}


@pytest.mark.parametrize("served", ["2024-11-05", "2025-11-25"])
async def test_each_client_settles_its_version_with_its_own_server(path: Path, served: str) -> None:
    """Unlike a shared session, where the bridge answers, and has asked for the newest itself."""
    greeting = {"protocolVersion": served, "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
    server = Server(path, {**LEGACY, "methods": {"initialize": {"result": greeting}}})
    async with server.run(*ISOLATED) as bridge:
        for number, asked in enumerate(("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")):
            async with await bridge.connect() as client:
                assert (await client.initialize(asked))["result"] == greeting
                assert (await call(client))["pid"] == server.pid(number + 1)
                assert server.received(number + 1)[0]["params"]["protocolVersion"] == asked


async def test_ids_tokens_and_unknown_members_go_through_as_they_are(path: Path) -> None:
    server = Server(path, LEGACY)
    async with server.run(*ISOLATED) as bridge, await bridge.connect() as client:
        await initialize(client)
        for id in (0, "", "1", 9007199254740993, -7):
            params = {"name": "x", "arguments": {"progress": 1}, "_meta": {"progressToken": f"t{id}"}}
            await client.send({**legacy_request("tools/call", params, id=id), "extra": {"a": 1}})
            assert (await client.recv())["params"]["progressToken"] == f"t{id}"
            assert content(await client.response(id))["name"] == "x"
        assert server.received(1)[-1]["extra"] == {"a": 1}


@pytest.mark.parametrize(
    ("method", "params", "answer"),
    [
        ("sampling/createMessage", {"messages": [], "maxTokens": 5}, {"role": "assistant", "content": []}),
        ("elicitation/create", FORM, {"action": "accept", "content": {"name": "Ada"}}),
        ("elicitation/create", URL, {"action": "decline"}),
        ("roots/list", {}, {"roots": [{"uri": "file:///a"}]}),
    ],
)
async def test_a_servers_request_reaches_its_own_client_and_the_answer_the_server(
    path: Path, method: str, params: dict[str, Any], answer: dict[str, Any]
) -> None:
    server = Server(path, LEGACY)
    async with server.run(*ISOLATED) as bridge, await bridge.connect() as one, await bridge.connect() as two:
        for client in (one, two):
            await initialize(client)
            await call(client)
        asks = legacy_request(method, {**params, "_meta": {"progressToken": 7}}, id="q")
        done = notification("notifications/elicitation/complete", {"elicitationId": "e1"})
        # An answer goes past requests, and so does the progress of whoever is working on it.
        await one.send(
            legacy_request(
                "tools/call", {"name": "x", "arguments": {"hold": "go", "raw_before": lines(asks)}}, id=9
            )
        )
        assert await one.recv() == asks
        progress = notification("notifications/progress", {"progressToken": 7, "progress": 1})
        await one.send(progress, response("q", answer))
        await wait_until(lambda: server.received(1)[-2:] == [progress, response("q", answer)])
        # Nobody asked: neither an answer to nothing, nor the same one twice.
        await one.send(response("q", answer), response("other", answer))
        await call(one, release="go", raw_before=lines(done))
        assert await one.recv() == done
        state = await call(one, "state")
        assert state["responses"] == [response("q", answer)]
        assert (await call(two, "state"))["responses"] == []
        assert two.unread == []


async def test_a_server_may_cancel_what_it_has_asked(path: Path) -> None:
    server = Server(path, LEGACY)
    async with server.run(*ISOLATED) as bridge, await bridge.connect() as client:
        await initialize(client)
        asks = legacy_request("roots/list", id=5)
        gives_up = notification("notifications/cancelled", {"requestId": 5, "reason": "late"})
        await call(client, raw_before=lines(asks, gives_up))
        assert (await client.recv(), await client.recv()) == (asks, gives_up)
        await client.send(response(5, {"roots": []}))
        assert (await call(client, "state"))["responses"] == []


async def test_a_client_may_cancel_its_request(path: Path) -> None:
    server = Server(path, LEGACY)
    async with server.run(*ISOLATED) as bridge, await bridge.connect() as client:
        await initialize(client)
        held = {"name": "x", "arguments": {"hold": "never"}}
        await client.send(legacy_request("tools/call", held, id="held"))
        await client.cancel("held", "enough")
        await client.cancel("unknown")
        assert (await call(client, "state"))["cancelled"] == ["held"]
        assert client.unread == []


async def test_a_modern_client_may_have_its_own_process_too(path: Path) -> None:
    server = Server(path, {"era": "dual"})
    async with server.run(*ISOLATED) as bridge, await bridge.connect() as one, await bridge.connect() as two:
        listening = await one.listen(toolsListChanged=True)
        assert content(await two.call("x"))["pid"] == server.pid(2)
        changed = {"method": "notifications/tools/list_changed"}
        await one.call("x", notify=changed)
        await one.notification("notifications/tools/list_changed", subscription=listening)
        one.half_close()
        [last] = await one.expect_eof()
        assert json.loads(last)["result"]["resultType"] == "complete"


async def test_a_strict_legacy_server_that_exits_on_the_probe_is_started_again(path: Path) -> None:
    server = Server(path, {"era": "legacy", "methods": {"server/discover": {"crash": {"when": "before"}}}})
    async with server.run(*ISOLATED) as bridge, await bridge.connect() as client:
        error = (await client.request("server/discover"))["error"]
        assert (error["code"], error["data"]["reason"]) == (-32601, "era_not_served")
        await initialize(client)
        assert (await call(client))["pid"] == server.pid(2)


# -- ends


async def test_the_crash_of_one_process_is_its_own_clients_affair(path: Path) -> None:
    server = Server(path, LEGACY)
    async with server.run(*ISOLATED) as bridge, await bridge.connect() as one, await bridge.connect() as two:
        for client in (one, two):
            await initialize(client)
            await call(client)
        held = {"name": "x", "arguments": {"hold": "never"}}
        for client in (one, two):
            await client.send(legacy_request("tools/call", held, id="held"))
        await wait_until(lambda: server.methods(1).count("tools/call") == 2)
        os.kill(server.pid(1), signal.SIGKILL)
        assert error_of(await one.response("held")) == (-31001, "server_exited", True)
        assert await one.expect_eof() == []
        assert (await call(two))["pid"] == server.pid(2)
        # A new connection is a new beginning.
        async with await bridge.connect() as again:
            await initialize(again)
            assert (await call(again))["pid"] == server.pid(3)


async def test_a_process_goes_with_its_client_and_is_told_why(path: Path) -> None:
    server = Server(path, LEGACY)
    async with server.run(*ISOLATED) as bridge:
        async with await bridge.connect() as client:
            await initialize(client)
            asks = legacy_request("roots/list", id="q")
            await call(client, raw_before=lines(asks))
            await client.send(
                legacy_request("tools/call", {"name": "x", "arguments": {"hold": "never"}}, id="held")
            )
            await wait_until(lambda: server.methods(1).count("tools/call") == 2)
        await wait_until(lambda: not bridge.server_pids(), what="the end of the process")
        cancelled, refused = server.received(1)[-2:]
        assert cancelled["params"]["requestId"] == "held"
        assert refused["id"] == "q"
        assert refused["error"]["data"]["reason"] == "client_gone"


async def test_a_client_that_stops_sending_is_still_answered(path: Path) -> None:
    server = Server(path, {**LEGACY, "start_delay_ms": 300})
    async with server.run(*ISOLATED) as bridge, await bridge.connect() as client:
        asks = legacy_request("roots/list", id="q")
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c"}}
        late = {"name": "x", "arguments": {"delay_ms": 200, "raw_before": lines(asks)}}
        await client.send(
            legacy_request("initialize", params, id=1),
            notification("notifications/initialized"),
            legacy_request("tools/call", late, id=2),
        )
        client.half_close()
        assert [json.loads(line)["id"] for line in await client.expect_eof()] == [1, 2]
        # It could not have answered.
        await wait_until(lambda: not bridge.server_pids())
        [refused] = [message for message in server.received(1) if message.get("id") == "q"]
        assert refused["error"]["data"]["reason"] == "client_gone"


async def test_processes_of_clients_that_come_and_go_leave_nothing(path: Path) -> None:
    """50 here; `BRIDGE_TEST_CONNECTS=1000 pytest -k come_and_go tests/integration` takes a thousand."""
    number = int(os.environ.get("BRIDGE_TEST_CONNECTS", "50"))
    server = Server(path, {**LEGACY, "start_delay_ms": 20})
    gate = asyncio.Semaphore(8)

    async def come_and_go(bridge: Any, number: int) -> None:
        async with gate, await bridge.connect() as client:
            params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c"}}
            await client.send(legacy_request("initialize", params, id=1))
            if number % 3:
                await client.response(1)
            if number % 3 == 2:
                assert (await call(client))["name"] == "x"

    async with server.run(*ISOLATED) as bridge:
        await asyncio.gather(*(come_and_go(bridge, n) for n in range(number)))
        await wait_until(lambda: not bridge.server_pids(), what="the end of all processes")
        async with await bridge.connect() as client:
            await initialize(client)


async def test_a_stop_ends_all_processes(path: Path) -> None:
    server = Server(path, LEGACY)
    async with server.run(*ISOLATED) as bridge, await bridge.connect() as one, await bridge.connect() as two:
        await initialize(one)
        await initialize(two)
        held = {"name": "x", "arguments": {"hold": "never"}}
        await one.send(legacy_request("tools/call", held, id="held"))
        await wait_until(lambda: server.methods(1).count("tools/call") == 1)
        bridge.signal(signal.SIGTERM)
        bridge.signal(signal.SIGINT)  # in a hurry
        assert error_of(await one.response("held")) == (-31005, "shutting_down", True)
        assert await two.expect_eof() == []
        assert await bridge.wait() == 0


# -- servers that end at once


class Dying:
    """A server that ends at once as long as `path/broken` exists, and counts its starts."""

    def __init__(self, path: Path, ends: str) -> None:
        self.broken = path / "broken"
        self.broken.touch()
        self.starts_file = path / "tries"
        self.command = (
            "sh",
            "-c",
            f'echo x >>"{self.starts_file}"; if [ -e "{self.broken}" ]; then {ends}; fi; exec "$@"',
            "sh",
            *server_command("scripted.py"),
        )

    @property
    def starts(self) -> int:
        return len(self.starts_file.read_text().splitlines()) if self.starts_file.exists() else 0


# It is killed, and exits with 0 as soon as it is spoken to.
@pytest.mark.parametrize("ends", ["kill -9 $$", "read -r line; exit 0"])
async def test_a_server_that_ends_at_once_is_not_started_as_often_as_clients_connect(
    path: Path, ends: str
) -> None:
    """Section 8: 0.1 s, doubling. Each client is told that its own process has ended, only later."""
    server = Dying(path, ends)
    async with running_bridge(*server.command, options=ISOLATED, env=env(settings=[LEGACY])) as bridge:
        begin = time.monotonic()
        for _ in range(4):
            async with await bridge.connect() as client:
                await client.send(legacy_request("initialize", {"protocolVersion": "2025-11-25"}, id=1))
                assert error_of(await client.response(1)) == (-31001, "server_exited", True)
                assert await client.expect_eof() == []
        # At the least 0.1 + 0.2 + 0.4 s, less the jitter, however fast or slow the machine is.
        assert time.monotonic() - begin >= 0.7 * 0.8
        assert server.starts == 4
        await bridge.wait_log("failed to start 4 times in a row")
        server.broken.unlink()
        # Several wait for the next start; it goes well, and none of the others has to wait any more.
        clients = [await bridge.connect() for _ in range(3)]
        await asyncio.gather(*(initialize(client) for client in clients))
        assert len({(await call(client))["pid"] for client in clients}) == 3
        await bridge.wait_log("the server starts as it should again")
        for client in clients:
            client.close()


async def test_only_one_process_is_tried_while_many_clients_wait_for_a_server_that_ends_at_once(
    path: Path,
) -> None:
    server = Dying(path, "exit 1")
    options = (*ISOLATED, "--restart-wait", "1")
    async with running_bridge(*server.command, options=options, env=env(settings=[LEGACY])) as bridge:
        clients = [await bridge.connect() for _ in range(20)]

        async def ask(client: RawClient) -> tuple[int, str, bool]:
            await client.send(legacy_request("initialize", {"protocolVersion": "2025-11-25"}, id=1))
            return error_of(await client.response(1))

        # These are all let in before the first failure is known.
        await asyncio.gather(*(ask(client) for client in clients[:5]))
        before = server.starts
        told = await asyncio.gather(*(ask(client) for client in clients[5:]))
        # One after 0.1 s, 0.2 s, 0.4 s; the others have waited long enough by then.
        assert server.starts - before <= 4
        assert told.count((-31001, "server_exited", True)) == server.starts - before
        assert told.count((-31002, "server_unavailable", False)) == 15 - (server.starts - before)
        for client in clients:
            client.close()


async def test_sighup_starts_a_server_at_once_that_ended_at_once(path: Path) -> None:
    server = Dying(path, "exit 1")
    options = (*ISOLATED, "--restart-wait", "1")
    async with running_bridge(*server.command, options=options, env=env(settings=[LEGACY])) as bridge:
        while "failed to start 5 times in a row" not in bridge.stderr_text():
            async with await bridge.connect() as client:
                await client.send(legacy_request("initialize", {"protocolVersion": "2025-11-25"}, id=1))
                await client.response(1)
        server.broken.unlink()
        bridge.signal(signal.SIGHUP)
        await bridge.wait_log("SIGHUP")
        async with await bridge.connect() as client:
            # The next start would have waited 1.3 s at the least, longer than a request does.
            assert "result" in await initialize(client)


async def test_a_client_whose_first_words_end_its_server_does_not_hold_up_others(path: Path) -> None:
    """Section 7: a crash is one client's affair."""
    server = Server(path, {**LEGACY, "methods": {"tools/list": {"crash": {"when": "before", "code": 1}}}})
    async with server.run(*ISOLATED) as bridge:
        for _ in range(4):
            async with await bridge.connect() as wild:
                assert error_of(await wild.legacy_request("tools/list"))[1] == "server_exited"
        await bridge.wait_log("failed to start 4 times in a row")
        async with await bridge.connect() as wild, await bridge.connect() as client:
            await wild.send(legacy_request("tools/list", id=1))
            await initialize(client)
            pid = (await call(client))["pid"]
            assert error_of(await wild.response(1))[1] == "server_exited"
            runs = await bridge.wait_log("the server runs", count=6)
            assert f"(pid {pid})" in runs[4]  # and not in the last: that one had to wait
            # A process that has spoken is its client's alone; its end holds nobody up.
            for crash in range(3):
                async with await bridge.connect() as other:
                    await initialize(other)
                    await other.send(
                        legacy_request(
                            "tools/call",
                            {"name": "x", "arguments": {"crash": {"when": "before"}}},
                            id=crash,
                        )
                    )
                    assert error_of(await other.response(crash))[1] == "server_exited"
            assert (await call(client))["name"] == "x"


async def test_a_server_that_exits_on_every_probe_is_asked_once(path: Path) -> None:
    """As those on older Rust SDKs do; clients of both eras ask at each connection."""
    server = Server(path, {"era": "legacy", "methods": {"server/discover": {"crash": {"when": "before"}}}})
    async with server.run(*ISOLATED) as bridge:
        for number in range(3):
            async with await bridge.connect() as client:
                error = (await client.request("server/discover"))["error"]
                assert (error["code"], error["data"]["reason"]) == (-32601, "era_not_served")
                await initialize(client)
                assert (await call(client))["pid"] == server.pid(2 + number)
        assert server.starts == 4


async def test_spare_processes_that_end_when_they_are_spoken_to_are_not_started_without_end(
    path: Path,
) -> None:
    server = Dying(path, "read -r line; exit 1")
    options = (*ISOLATED, "--spare", "2")
    async with running_bridge(*server.command, options=options, env=env(settings=[LEGACY])) as bridge:
        await wait_until(lambda: server.starts == 2)
        for tries in range(1, 5):
            async with await bridge.connect() as client:
                await client.send(legacy_request("initialize", {"protocolVersion": "2025-11-25"}, id=1))
                assert error_of(await client.response(1)) == (-31001, "server_exited", True)
            await wait_until(lambda tries=tries: server.starts == 2 + tries)
        await bridge.wait_log("the next one waits")


# -- bounds


async def test_there_are_only_so_many_processes(path: Path) -> None:
    server = Server(path, LEGACY)
    async with server.run(*ISOLATED, "--max-children", "1") as bridge, await bridge.connect() as two:
        async with await bridge.connect() as one:
            await initialize(one)
            refused = await two.legacy_request("initialize", {"protocolVersion": "2025-11-25"})
            assert error_of(refused) == (-31003, "too_many_children", False)
        # When the other has left there is room.
        await wait_until(lambda: not bridge.server_pids())
        await initialize(two)
        assert (await call(two))["pid"] == server.pid(2)


async def test_a_spare_process_hides_a_slow_start(path: Path) -> None:
    server = Server(path, LEGACY)
    async with server.run(*ISOLATED, "--spare", "2") as bridge:
        await wait_until(lambda: server.starts == 2)
        async with await bridge.connect() as client:
            await initialize(client)
            assert (await call(client))["pid"] in (server.pid(1), server.pid(2))
            await wait_until(lambda: server.starts == 3)
        await wait_until(lambda: len(bridge.server_pids()) == 2)


async def test_a_spare_process_that_ends_is_replaced_after_a_while(path: Path) -> None:
    server = Server(path, LEGACY)
    async with server.run(*ISOLATED, "--spare", "1") as bridge:
        await wait_until(lambda: server.starts == 1)
        os.kill(server.pid(1), signal.SIGKILL)
        await bridge.wait_log("killed by SIGKILL")
        async with await bridge.connect() as client:
            await initialize(client)
            assert (await call(client))["name"] == "x"
        await wait_until(lambda: len(bridge.server_pids()) == 1)


async def test_sighup_replaces_spare_processes_and_leaves_clients_theirs(path: Path) -> None:
    server = Server(path, LEGACY)
    async with server.run(*ISOLATED, "--spare", "1") as bridge, await bridge.connect() as client:
        await wait_until(lambda: server.starts == 1)
        await initialize(client)
        await wait_until(lambda: server.starts == 2)
        bridge.signal(signal.SIGHUP)
        await wait_until(lambda: server.starts == 3)
        assert (await call(client))["pid"] == server.pid(1)


async def test_a_command_that_cannot_be_found_ends_the_bridge_at_the_first_client(path: Path) -> None:
    completed = await run_command(
        "--listen", f"unix:{path}/s", "--sharing", "isolated", "--spare", "1", "--", "/nonexistent/server"
    )
    assert completed.code == 127
    assert "/nonexistent/server" in completed.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--spare", "2", "--max-children", "1"),
        ("--spare", "-1"),
        ("--isolate-for", "a,"),
        ("--sharing", "most"),
    ],
)
async def test_options_that_make_no_sense_are_refused(path: Path, options: tuple[str, ...]) -> None:
    completed = await run_command("--listen", f"unix:{path}/s", *options, "--", "true")
    assert completed.code == 2
    assert len(completed.stderr.splitlines()) == 1


# -- auto


async def test_who_declares_what_needs_it_has_its_own_process_and_others_share(path: Path) -> None:
    server = Server(path, LEGACY)
    async with server.run(*AUTO) as bridge:
        clients = [await bridge.connect() for _ in range(4)]
        one, two, own, other = clients
        for client in (one, two):
            await initialize(client, roots={})
        await initialize(own, sampling={})
        await initialize(other, elicitation={"form": {}})
        pids = [(await call(client))["pid"] for client in clients]
        assert pids[0] == pids[1] == server.pid(1)
        assert len(set(pids)) == 3
        asks = legacy_request("sampling/createMessage", {"messages": []}, id="q")
        await call(own, raw_before=lines(asks))
        assert await own.recv() == asks
        await call(one, raw_before=lines(asks))
        for client in (one, two, other):
            assert client.unread == []
            client.close()
        own.close()
        await wait_until(lambda: len(bridge.server_pids()) == 1)


async def test_which_capabilities_need_it_is_the_operators_to_say(path: Path) -> None:
    server = Server(path, LEGACY)
    options = (*AUTO, "--isolate-for", "roots")
    async with server.run(*options) as bridge, await bridge.connect() as one, await bridge.connect() as two:
        await initialize(one, sampling={})
        await initialize(two, roots={})
        assert (await call(one))["pid"] == server.pid(1)
        assert (await call(two))["pid"] == server.pid(2)


async def test_a_client_that_asks_for_the_modern_era_first_is_sorted_by_its_initialize(path: Path) -> None:
    server = Server(path, LEGACY)
    async with server.run(*AUTO) as bridge, await bridge.connect() as client:
        assert (await client.request("server/discover"))["error"]["code"] == -32601
        assert (await client.legacy_request("ping"))["result"] == {}
        await initialize(client, sampling={})
        assert (await call(client))["pid"] == server.pid(2)
        assert server.received(2)[0]["params"]["capabilities"] == {"sampling": {}}


async def test_modern_clients_share_whatever_they_declare(path: Path) -> None:
    server = Server(path, {"era": "dual"})
    async with server.run(*AUTO) as bridge, await bridge.connect() as one, await bridge.connect() as two:
        for client in (one, two):
            meta: dict[str, Any] = {"io.modelcontextprotocol/clientCapabilities": {"sampling": {}}}
            assert content(await client.call("x", meta=meta))["pid"] == server.pid(1)


async def test_an_initialize_in_pieces_and_without_an_end_is_sorted_all_the_same(path: Path) -> None:
    server = Server(path, LEGACY)
    async with server.run(*AUTO) as bridge, await bridge.connect() as client:
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"sampling": {}},
            "clientInfo": {"name": "c"},
        }
        line = json.dumps(legacy_request("initialize", params, id=1)).encode()
        await client.send(line[:20])
        await asyncio.sleep(0.05)  # so that the pieces are read apart; no harm if they are not
        await client.send(line[20:])
        client.half_close()
        [answer] = await client.expect_eof()
        assert json.loads(answer)["id"] == 1
        # Which of the two processes, the shared one or the client's own, announces itself first is chance.
        (initialized,) = [first for start in (1, 2) for first in server.received(start)[:1]]
        assert initialized["params"]["capabilities"] == {"sampling": {}}
