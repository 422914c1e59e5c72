"""Flow control at a small size, over each kind of socket, in both eras, shared and isolated.

What one side does not take is held within bounds, and costs nobody else anything (section 6 of the contract).
`python3 -m tests.stress` has the same at full size.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stress.flow import MIB, Way, bridge_for, cancel_first, freeze, memory, never_read, take_turns
from tests.support.bridge import wait_until
from tests.support.scripts import b64, error_of

SHARED = [Way("unix", "modern"), Way("tcp", "legacy")]
EACH = [Way("unix", "legacy"), Way("tcp", "modern", "isolated")]


@pytest.mark.parametrize("way", SHARED[:1], ids=str)
async def test_clients_that_never_read_stop_nobody_and_the_memory_they_took_is_given_back(way: Way) -> None:
    """Each stays just below what cuts one, and together they are above what all may have."""
    held = await never_read(way, "--max-buffered", "40MiB", deaf=4, answers=64, limit=100 * MIB)
    assert held.cut
    assert held.peak > held.start + 35 * MIB, "it has to be a load"
    assert held.after < held.start + 20 * MIB


@pytest.mark.parametrize("way", [SHARED[0], EACH[1]], ids=str)
async def test_a_frozen_server_costs_little_memory_and_nothing_is_lost_when_it_thaws(way: Way) -> None:
    """Also while it thaws: each time it had read a little all clients were read again, without end."""
    held = await freeze(way, clients=8 if way.sharing == "shared" else 3, requests=80, limit=60 * MIB)
    assert held.answered >= 240


@pytest.mark.parametrize("way", SHARED[1:], ids=str)
async def test_a_flood_takes_turns_with_a_few_requests(way: Way, tmp_path: Path) -> None:
    await take_turns(way, tmp_path, flood=40, quiet=6)


@pytest.mark.parametrize("way", SHARED[1:], ids=str)
async def test_cancellations_pass_queue_and_window(way: Way, tmp_path: Path) -> None:
    await cancel_first(way, tmp_path)


async def test_what_a_server_has_begun_to_write_counts_into_the_total_of_all_buffers() -> None:
    """Half a line of the server's and an unread answer are together over the limit."""
    way = Way()
    async with bridge_for(way, "--max-buffered", "5MiB") as bridge:
        other = await way.connect(bridge)
        deaf = await way.connect(bridge, receive_buffer=4096)
        await deaf.send(way.call(1, size=3 * MIB))
        await way.ask(other, 1)
        assert "was cut" not in bridge.stderr_text()
        await other.send(way.call(2, raw_instead=b64(b"x" * 3 * MIB)))
        await bridge.wait_log("was cut: of")
        await other.send(way.call(3, raw_before=b64(b"\n")))
        assert "result" in await other.response(3)
        deaf.close()
        other.close()


@pytest.mark.parametrize("way", EACH[1:], ids=str)
async def test_a_request_that_takes_too_long_is_given_up_in_every_mode(way: Way) -> None:
    """`--request-timeout`: the client is told, the server too, and what waited behind it goes on."""
    async with bridge_for(way, "--request-timeout", "0.3", "--max-in-flight", "1") as bridge:
        client = await way.connect(bridge)
        await client.send(way.call(1, hold="for ever"), way.call(2))
        assert error_of(await client.response(1)) == (-31007, "request_timeout", True)
        assert "result" in await client.response(2)
        seen = await way.ask(client, 3, "state")
        assert len(seen["cancelled"]) == 1
        client.close()


@pytest.mark.parametrize("way", EACH[1:], ids=str)
async def test_a_client_too_many_is_turned_away_and_takes_nothing_with_it(way: Way) -> None:
    """`--max-clients`: one error, then the end; who is there stays, and a place that is free is given."""
    async with bridge_for(way, "--max-clients", "3") as bridge:
        there = [await way.connect(bridge) for _ in range(3)]
        for _ in range(20):
            async with await bridge.connect() as more:
                assert error_of(await more.recv()) == (-31003, "too_many_clients", False)
                assert await more.expect_eof() == []
        there.pop().close()

        async def place() -> bool:
            async with await bridge.connect() as client:
                await client.send(b"{}\n")
                return bool((await client.recv())["error"]["code"] == -32600)

        for _ in range(200):
            if await place():
                break
        else:
            raise AssertionError("a place that is free is given to nobody")
        for client in there:
            assert await way.ask(client, "there")
            client.close()


async def test_a_large_message_is_no_memory_for_ever() -> None:
    """The allocator keeps what was used once; that is given back when there was much of it."""
    way = Way()
    async with bridge_for(way) as bridge:
        start, _ = memory(bridge)
        deaf = [await way.connect(bridge, receive_buffer=4096) for _ in range(4)]
        for client in deaf:
            await client.send(way.call(1, size=15 * MIB))
        await wait_until(lambda: memory(bridge)[0] > start + 55 * MIB, what="they hold much")
        for client in deaf:
            client.close()
        await wait_until(lambda: memory(bridge)[0] < start + 20 * MIB, what="it is given back")
