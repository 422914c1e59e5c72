"""Clients that leave, wait or do not read (section 6 of the contract)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.bridge import RunningBridge, running_bridge, server_command, wait_until
from tests.support.client import RawClient, encode, modern_request
from tests.support.scripts import content, env, error_of, lines_of, recorded, state, state_until

COMMAND = server_command("scripted.py")
UPDATED = "notifications/resources/updated"


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """A server that reads nothing for a while, however long the test takes."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def pid_of_server(client: RawClient) -> int:
    return int(content(await client.call("pid"))["pid"])


async def send_until_refused(client: RawClient, data: bytes) -> bytes:
    """Write until the bridge has read nothing for a while; returns what is left to write."""
    refused = 0
    while data and refused < 20:
        sent = client.send_some(data)
        data = data[sent:]
        refused = 0 if sent else refused + 1
        await asyncio.sleep(0 if sent else 0.01)
    return data


def fill_lines(number: int) -> bytes:
    """Requests of 64 KiB, with the ids from 0 on."""
    call = {"name": "fill", "arguments": {"text": "f" * 65536}}
    return b"".join(encode(modern_request("tools/call", call, id=id)) for id in range(number))


async def block_stdin(client: RawClient, number: int = 60) -> bytes:
    """Send a frozen server more than its stdin takes; returns what the bridge does not read any more."""
    rest = await send_until_refused(client, fill_lines(number))
    assert rest, "stdin took it all"
    return rest


def descriptors(bridge: RunningBridge) -> int:
    """How many files, sockets and pipes the bridge has open."""
    return len(os.listdir(f"/proc/{bridge.pid}/fd"))


# Leaving.


async def test_a_client_that_vanishes_with_an_endless_request_is_noticed_at_once() -> None:
    """Nothing is written to it that could fail: a full close is told from a half-close all the same."""
    async with running_bridge(*COMMAND) as bridge, await bridge.connect() as other:
        for _ in range(3):
            client = await bridge.connect()
            await client.start_call("do", id=1, hold="for ever")
            await state_until(other, lambda seen: len(seen["running"]) == 1)
            client.close()
            await state_until(other, lambda seen: not seen["running"])
        assert len((await state(other))["cancelled"]) == 3


async def test_a_client_that_vanishes_is_noticed_although_it_is_not_read(tmp_path: Path) -> None:
    """While stdin is blocked its socket is not read; its end is seen at once, and what it sent is dropped."""
    record = tmp_path / "record"
    async with running_bridge(*COMMAND, env=env(record=record)) as bridge:
        flood, client = await bridge.connect(), await bridge.connect()
        pid = await pid_of_server(flood)
        with frozen(pid):
            await block_stdin(flood)
            paused = encode(modern_request("paused", {"text": "p" * 9000}, id=1))
            assert await send_until_refused(client, paused * 200)
            before = descriptors(bridge)
            client.close()
            await wait_until(lambda: descriptors(bridge) < before, what="its descriptor is closed")
        flood.close()
        async with await bridge.connect() as last:
            await last.call("last")
        assert b'"paused"' not in record.read_bytes()


async def test_a_tcp_client_that_closed_is_noticed_at_the_first_failed_write() -> None:
    async with running_bridge(*COMMAND, listen=["tcp", "unix"]) as bridge, await bridge.connect(1) as other:
        client = await bridge.connect(0)
        await client.start_call("do", id=1, meta={"progressToken": 1}, progress=2000, interval_ms=5, hold="x")
        await client.notification("notifications/progress")
        client.close()
        seen = await state_until(other, lambda seen: not seen["running"])
        assert len(seen["cancelled"]) == 1


@pytest.fixture
async def both() -> AsyncIterator[RunningBridge]:
    async with running_bridge(*COMMAND, listen=["unix", "tcp"], options=["--linger", "0.5"]) as bridge:
        yield bridge


@pytest.mark.parametrize("index", [0, 1], ids=["unix", "tcp"])
async def test_a_half_closed_client_gets_every_answer_and_then_the_end(
    both: RunningBridge, index: int
) -> None:
    """`printf ... | nc -N`: a burst and an end of input; nothing of it is lost."""
    async with await both.connect(index) as client:
        await client.send(*(modern_request("tools/list", id=id) for id in range(300)))
        await client.start_call("do", id="slow", delay_ms=100)
        client.half_close()
        ids = [json.loads(line)["id"] for line in await client.expect_eof()]
        assert ids == [*range(300), "slow"]


@pytest.mark.parametrize("index", [0, 1], ids=["unix", "tcp"])
async def test_a_half_closed_client_with_nothing_owed_is_closed_at_once(
    both: RunningBridge, index: int
) -> None:
    async with await both.connect(index) as client:
        await client.call("do")
        client.half_close()
        assert await client.expect_eof(timeout=5) == []
    async with await both.connect(index) as client:
        client.half_close()
        assert await client.expect_eof(timeout=5) == []


@pytest.mark.parametrize("index", [0, 1], ids=["unix", "tcp"])
async def test_what_a_half_closed_client_waits_for_too_long_is_cancelled(
    both: RunningBridge, index: int
) -> None:
    async with await both.connect(index) as client, await both.connect(0) as other:
        await client.start_call("do", id=1, hold="longer than it lingers")
        client.half_close()
        assert await client.expect_eof() == []
        seen = await state_until(other, lambda seen: not seen["running"])
        assert len(seen["cancelled"]) == 1
        await other.call("do")


# Waiting.


async def test_requests_over_the_window_wait_their_turn_in_order(tmp_path: Path) -> None:
    record = tmp_path / "record"
    options = ["--max-in-flight", "2"]
    async with (
        running_bridge(*COMMAND, options=options, env=env(record=record)) as bridge,
        await bridge.connect() as client,
        await bridge.connect() as other,
    ):
        for id in range(2):
            await client.start_call("do", id=id, hold=f"h{id}", mark=f"number {id}.")
        for id in range(2, 10):
            await client.start_call("do", id=id, mark=f"number {id}.")
        await recorded(record, "number 1.")
        assert "result" in await other.call("do")  # somebody else's window is open
        assert b"number 2." not in record.read_bytes()
        await other.call("release", release="h0")
        assert [(await client.recv())["id"] for _ in range(9)] == [0, *range(2, 10)]
        await other.call("release", release="h1")
        assert (await client.recv())["id"] == 1
    assert re.findall(rb"number (\d)", record.read_bytes()) == [b"%d" % id for id in range(10)]


async def test_a_queue_that_is_full_answers_overloaded_and_keeps_its_word() -> None:
    """`delivered: false` promises that the server never saw it; what was accepted is answered."""
    options = ["--max-in-flight", "1"]
    async with (
        running_bridge(*COMMAND, options=options) as bridge,
        await bridge.connect() as client,
        await bridge.connect() as other,
    ):
        await other.call("do")  # until the server is ready the first one waits, too
        await client.start_call("do", id="first", hold="full")
        await client.send(*(modern_request("tools/list", id=id) for id in range(4100)))
        for id in range(4096, 4100):
            answer = await client.recv()
            assert answer["id"] == id
            assert error_of(answer) == (-31003, "overloaded", False)
        await other.call("release", release="full")
        assert (await client.recv())["id"] == "first"
        assert [(await client.recv())["id"] for _ in range(4096)] == list(range(4096))


async def test_while_the_server_reads_nothing_newcomers_are_served_and_nothing_is_lost() -> None:
    """A frozen server: who floods is not read, everybody else is, and all of it is answered later."""
    async with running_bridge(*COMMAND, listen=["unix", "tcp"]) as bridge:
        flood = await bridge.connect()
        pid = await pid_of_server(flood)
        with frozen(pid):
            rest = await block_stdin(flood)
            newcomers = [await bridge.connect(index) for index in (0, 1, 0, 1)]
            for client in newcomers:
                await client.start_call("newcomer", id=1)
                # The bridge reads them and answers what it can answer itself.
                await client.send(b"{}\n")
                assert error_of(await client.recv())[0] == -32600
        for client in newcomers:
            assert content(await client.response(1))["name"] == "newcomer"
            client.close()
        sending = asyncio.create_task(flood.send(rest))
        for id in range(60):
            assert (await flood.recv())["id"] == id
        await sending
        flood.close()


async def test_a_flood_does_not_delay_others_by_more_than_their_share(tmp_path: Path) -> None:
    """Round robin, told by the order in which the server reads, not by time."""
    record = tmp_path / "record"
    async with running_bridge(*COMMAND, env=env(record=record)) as bridge:
        block, flood, quiet = [await bridge.connect() for _ in range(3)]
        pid = await pid_of_server(flood)

        def calls(name: str, number: int) -> bytes:
            call = {"name": name, "arguments": {"text": "t" * 16384}}
            return b"".join(encode(modern_request("tools/call", call, id=id)) for id in range(number))

        with frozen(pid):
            await block_stdin(block)
            rest = await send_until_refused(flood, calls("flood", 100))
            await quiet.send(calls("quiet", 10), b"{}\n")
            await quiet.recv()  # an error: all before it has been read
        sending = asyncio.create_task(flood.send(rest))
        for id in range(10):
            await quiet.response(id)
        for id in range(100):
            await flood.response(id)
        await sending
        names = re.findall(rb'"name":"(flood|quiet)"', record.read_bytes())
        last = len(names) - names[::-1].index(b"quiet")
        assert names.count(b"quiet") == 10
        assert names[:last].count(b"flood") <= 12, "one turn each"
        for client in (block, flood, quiet):
            client.close()


async def test_cancels_pass_requests_that_wait_for_a_blocked_server(tmp_path: Path) -> None:
    record = tmp_path / "record"
    async with running_bridge(*COMMAND, env=env(record=record)) as bridge:
        client, flood = await bridge.connect(), await bridge.connect()
        await client.start_call("do", id="held", hold="to be cancelled")
        pid = await pid_of_server(client)
        with frozen(pid):
            await block_stdin(flood)
            for id in range(5):
                await client.start_call("behind", id=id)
            await client.cancel("held", "it must pass")
            await client.send(b"{}\n")
            await client.recv()
        for id in range(5):
            await client.response(id)
        text = record.read_bytes()
        assert text.index(b"it must pass") < text.index(b'"behind"')
        client.close()
        flood.close()


async def test_a_server_that_does_not_read_for_a_while_is_not_killed() -> None:
    async with running_bridge(*COMMAND) as bridge, await bridge.connect() as client:
        pid = await pid_of_server(client)
        await client.start_call("do", id="pause", stop_reading_ms=600)
        rest = await send_until_refused(client, fill_lines(60))
        sending = asyncio.create_task(client.send(rest))
        assert [await client.response(id) for id in range(60)]
        await sending
        assert await pid_of_server(client) == pid


# Not reading.


async def test_a_client_that_never_reads_is_cut_and_the_others_notice_nothing() -> None:
    """Reported: pending sends piled up in memory, or a bound by number dropped answers."""
    options = ["--client-buffer", "1MiB"]
    async with running_bridge(*COMMAND, options=options, listen=["unix", "tcp"]) as bridge:
        for index in (0, 1):
            deaf = await bridge.connect(index, receive_buffer=4096)
            other = await bridge.connect(index)
            await deaf.listen(id="l", resourceSubscriptions=["x://"])
            await other.listen(id="l", resourceSubscriptions=["x://"])
            order = {"method": UPDATED, "params": {"uri": "x://", "pad": "p" * 2048}, "count": 250}
            total = 0
            for _ in range(10):
                await other.start_call("do", notify=order, id="n")
                numbers = [(await other.recv())["params"]["_meta"]["example.com/n"] for _ in range(250)]
                assert numbers == list(range(250))
                assert (await other.recv())["id"] == "n"
                total += 250
            await bridge.wait_log("unread and was cut", count=index + 1)
            # Nothing was dropped from the middle of what it can still read.
            lines = await deaf.expect_eof()
            got = [json.loads(line)["params"]["_meta"]["example.com/n"] for line in lines]
            assert got == [number % 250 for number in range(len(got))]
            assert len(got) < total
            await other.call("do")
            deaf.close()
            other.close()


async def test_the_requests_of_a_client_that_is_cut_are_cancelled() -> None:
    options = ["--client-buffer", "64KiB"]
    async with running_bridge(*COMMAND, options=options) as bridge, await bridge.connect() as other:
        deaf = await bridge.connect(receive_buffer=4096)
        await deaf.start_call("do", id=1, hold="of the deaf one")
        for id in range(2, 6):
            await deaf.start_call("do", id=id, size=1024 * 1024)
        await bridge.wait_log("unread and was cut")
        seen = await state_until(other, lambda seen: not seen["running"])
        assert len(seen["cancelled"]) >= 1
        deaf.close()


async def test_the_cancellation_of_a_client_that_is_cut_never_overtakes_the_request(tmp_path: Path) -> None:
    """The answer that has it cut lets its next request go: that ran for nobody, and was never cancelled."""
    record = tmp_path / "record"
    options = ["--client-buffer", "64KiB", "--max-in-flight", "1"]
    async with (
        running_bridge(*COMMAND, options=options, env=env(record=record)) as bridge,
        await bridge.connect(receive_buffer=4096) as deaf,
    ):
        for id in range(8):
            await deaf.start_call("do", id=id, size=1024 * 1024)
        await bridge.wait_log("unread and was cut")
        given_up = json.loads(await recorded(record, "notifications/cancelled"))["params"]["requestId"]
        ids = [message.get("id") for message in map(json.loads, lines_of(record))]
        assert ids[-2:] == [given_up, None]


async def test_one_whole_message_always_fits_and_a_slow_reader_gets_it() -> None:
    options = ["--client-buffer", "4KiB"]
    async with (
        running_bridge(*COMMAND, options=options) as bridge,
        await bridge.connect(receive_buffer=4096) as client,
        await bridge.connect() as other,
    ):
        id = await client.start_call("do", size=4 * 1024 * 1024)
        await state_until(other, lambda seen: seen["count"] > 2 and not seen["running"])
        assert len((await client.response(id))["result"]["padding"]) == 4 * 1024 * 1024
        assert "result" in await client.call("do")


async def test_the_server_is_read_although_no_client_reads() -> None:
    """Else server and bridge would wait for each other for ever."""
    async with running_bridge(*COMMAND) as bridge, await bridge.connect() as other:
        deaf = await bridge.connect(receive_buffer=4096)
        for id in range(8):
            await deaf.start_call("do", id=id, size=1024 * 1024)
        assert "result" in await other.call("do")
        for id in range(8):
            await deaf.response(id)
        deaf.close()


async def test_above_the_total_of_all_buffers_the_largest_client_is_closed() -> None:
    options = ["--max-buffered", "4MiB"]
    async with running_bridge(*COMMAND, options=options) as bridge, await bridge.connect() as other:
        small = await bridge.connect(receive_buffer=4096)
        large = await bridge.connect(receive_buffer=4096)
        await small.start_call("do", id=1, size=512 * 1024)
        await state_until(other, lambda seen: not seen["running"])
        for id in range(8):
            await large.start_call("do", id=id, size=1024 * 1024)
        await bridge.wait_log("was cut: of")
        large_lines = await large.expect_eof()
        assert len(large_lines) < 8
        assert len((await small.response(1))["result"]["padding"]) == 512 * 1024
        await other.call("do")
        small.close()
        large.close()


async def test_half_lines_count_into_the_total_of_all_buffers() -> None:
    options = ["--max-buffered", "4MiB"]
    async with running_bridge(*COMMAND, options=options) as bridge:
        clients = [await bridge.connect() for _ in range(3)]
        start = b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"p":"'
        for client, size in zip(clients, (1, 3, 1), strict=True):
            with contextlib.suppress(OSError):
                await client.send(start + b"x" * size * 1024 * 1024)
        await bridge.wait_log("was cut: of")
        assert await clients[1].expect_eof() == []
        for client in (clients[0], clients[2]):
            await client.send(b'"}}\n')
            assert (await client.recv())["id"] == 1  # of a request without `_meta`: refused, not cut
        for client in clients:
            client.close()
        async with await bridge.connect() as last:
            await last.call("do")


# Coming.


@pytest.mark.parametrize("listen", ["unix", "tcp"])
async def test_a_connection_too_many_gets_one_error_and_the_end(listen: str) -> None:
    options = ["--max-clients", "2"]
    async with running_bridge(*COMMAND, options=options, listen=listen) as bridge:
        first, second = await bridge.connect(), await bridge.connect()
        await first.call("do")
        async with await bridge.connect() as third:
            (line,) = await third.expect_eof()
            answer = json.loads(line)
            assert "id" not in answer
            assert error_of(answer) == (-31003, "too_many_clients", False)
        await second.call("do")
        first.close()

        async def room() -> None:
            while True:
                async with await bridge.connect() as fourth:
                    await fourth.start_call("do", id=1)
                    if (await fourth.recv()).get("id") == 1:
                        return
                await asyncio.sleep(0.01)

        await asyncio.wait_for(room(), 10)
        second.close()


async def test_a_client_that_says_nothing_costs_nobody_anything() -> None:
    """Reported: an idle timeout was taken for the end of input."""
    async with running_bridge(*COMMAND, listen=["unix", "tcp"]) as bridge:
        idle = [await bridge.connect(number % 2) for number in range(100)]
        async with await bridge.connect() as client:
            await client.call("do")
        for client in idle[:4]:
            await client.expect_nothing(0.05)
            await client.call("do")
        for client in idle:
            client.close()


async def test_hundreds_of_clients_that_come_and_go_leave_no_descriptor_behind() -> None:
    async with running_bridge(*COMMAND, listen=["unix", "tcp"]) as bridge, await bridge.connect() as other:
        await other.call("do")
        before = descriptors(bridge)
        for number in range(300):
            client = await bridge.connect(number % 2)
            if number % 4 == 1:
                await client.send(encode(modern_request("tools/list", id=1)))
            if number % 4 == 2:
                await client.send(b"\xff\xff\xff\n{")
            if number % 4 == 3:
                await client.listen(toolsListChanged=True)
            client.abort()
        await wait_until(lambda: descriptors(bridge) <= before, what="all descriptors are closed")
        assert (await state(other))["listens"] == []


async def test_the_servers_memory_of_a_client_is_gone_with_it(tmp_path: Path) -> None:
    """A new connection gets nothing of an old one's, whatever ids it uses."""
    record = tmp_path / "record"
    async with running_bridge(*COMMAND, env=env(record=record)) as bridge, await bridge.connect() as other:
        old = await bridge.connect()
        await old.start_call(
            "do", id=1, meta={"progressToken": 1}, hold="old", answer_cancelled=True, progress=1
        )
        await old.notification("notifications/progress")
        await old.listen(id=2, toolsListChanged=True)
        old.close()
        await state_until(other, lambda seen: not seen["running"] and not seen["listens"])
        async with await bridge.connect() as new:
            await new.start_call("do", id=1, meta={"progressToken": 1}, hold="new")
            await other.call("do", notify={"method": "notifications/tools/list_changed", "force": True})
            await new.expect_nothing(0.05)
            await other.call("release", release="new")
            assert (await new.recv())["id"] == 1
    assert sum(b"notifications/cancelled" in line for line in lines_of(record)) == 2


# What the system does to a connection.


@pytest.mark.parametrize("kind", ["unix", "tcp"])
async def test_a_bridge_out_of_descriptors_serves_who_is_there_and_newcomers_once_it_can(kind: str) -> None:
    """Hazard: an accept that fails at once ends the bridge, or keeps it busy. Newcomers may be cut."""
    async with running_bridge(*COMMAND, listen=[kind]) as bridge, await bridge.connect() as old:
        assert "result" in await old.call("do")
        pid = bridge.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")), hard))
        newcomers = [await bridge.connect() for _ in range(3)]
        for _ in range(50):
            assert "result" in await old.call("do")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        async with await bridge.connect() as late:
            assert "result" in await late.call("do")
        for newcomer in newcomers:
            newcomer.close()


@pytest.mark.parametrize("kind", ["unix", "tcp"])
async def test_a_connection_that_is_reset_while_it_is_written_to_costs_nobody_anything(kind: str) -> None:
    """Hazard: an exception of the write that nobody expected."""
    async with running_bridge(*COMMAND, listen=[kind]) as bridge, await bridge.connect() as other:
        for _ in range(10):
            client = await bridge.connect()
            for id in range(4):
                await client.start_call("do", id=id, pad="x" * 500_000)
            # Until the first answer has come, and more than the socket takes is on its way.
            assert (await client.recv())["id"] == 0
            client.abort()
        assert "result" in await other.call("do")
        assert "Traceback" not in bridge.stderr_text()
        assert "fault" not in bridge.stderr_text()
