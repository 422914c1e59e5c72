"""Subscriptions over real processes (section 5 of the contract)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Shared
from tests.support.bridge import RunningBridge, running_bridge, server_command
from tests.support.client import (
    LOG_LEVEL,
    SUBSCRIPTION_ID,
    Message,
    RawClient,
    notification,
    same_id,
    subscription_of,
)
from tests.support.scripts import content, env, error_of, lines_of, script, state, state_until

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"
UPDATED = "notifications/resources/updated"


async def nothing_more(*clients: RawClient) -> None:
    """Fail if a client is sent anything before the answer to its next request."""
    for client in clients:
        id = await client.start_call("is there anything before this?", id="probe")
        assert (await client.recv())["id"] == id
        assert client.unread == []


def listens_at(record: Path) -> list[Message]:
    """Every `subscriptions/listen` the server has received."""
    found = [json.loads(line) for line in lines_of(record)]
    return [message for message in found if message.get("method") == "subscriptions/listen"]


async def test_a_change_reaches_each_holder_under_its_own_id_and_nobody_else(
    shared: Shared, transport: int
) -> None:
    """Reported: gateways passed client-to-server only, or sent one user's changes to all."""
    ids: list[Any] = ["a", 1, "1", 2**53 + 1, ""]
    holders = [await shared.bridge.connect(transport) for _ in ids]
    async with await shared.bridge.connect(0) as other:
        uri = f"test://{transport}"
        for holder, id in zip(holders, ids, strict=True):
            await holder.listen(id=id, resourceSubscriptions=[uri])
        order = {"method": UPDATED, "params": {"uri": uri, "n": 1.0}, "count": 3}
        await other.start_call("do", notify=order, id=1)
        for holder, id in zip(holders, ids, strict=True):
            for number in range(3):
                message = await holder.recv()
                assert message["method"] == UPDATED
                assert same_id(subscription_of(message), id)
                assert message["params"]["uri"] == uri
                assert message["params"]["_meta"]["example.com/n"] == number
        assert (await other.recv())["id"] == 1
        await nothing_more(other, *holders)
    for holder in holders:
        holder.close()


async def test_equal_listens_share_one_subscription_at_the_server_and_differing_ones_do_not(
    tmp_path: Path,
) -> None:
    record = tmp_path / "record"
    async with running_bridge(*server_command("scripted.py"), env=env(record=record)) as bridge:
        clients = [await bridge.connect() for _ in range(7)]
        wanted: dict[str, Any] = {"resourceSubscriptions": ["a://", "b://"], "toolsListChanged": True}
        equal: dict[str, Any] = {"toolsListChanged": True, "promptsListChanged": False}
        await clients[0].listen(**wanted)
        await clients[1].listen(**equal, resourceSubscriptions=["b://", "a://"])
        await clients[2].listen(resourceSubscriptions=["b://", "a://", "b://"], toolsListChanged=True)
        assert len(listens_at(record)) == 1
        await clients[3].listen(toolsListChanged=True)
        assert len(listens_at(record)) == 2
        # What the bridge does not know, and what is one client's alone, is not shared.
        for client, params, meta in (
            (clients[4], {"notifications": {**wanted, "vendor": True}}, {}),
            (clients[5], {"notifications": wanted}, {"progressToken": 1}),
            (clients[6], {"notifications": wanted}, {LOG_LEVEL: "info"}),
        ):
            await client.start("subscriptions/listen", params, id="l", meta=meta)
            await client.notification(ACKNOWLEDGED, subscription="l")
        assert len(listens_at(record)) == 5
        for client in clients:
            client.close()


async def test_who_joins_late_is_acknowledged_from_the_grant_alone(shared: Shared) -> None:
    """Nothing of the first holder's acknowledgement but what was granted."""
    async with await shared.bridge.connect(0) as first, await shared.bridge.connect(1) as late:
        wanted = {"notifications": {"resourceSubscriptions": ["late://1", "late://2"]}}
        grant = {"resourceSubscriptions": ["late://1"]}
        await first.call("do", next={"subscriptions/listen": {"grant": grant}})
        await first.start("subscriptions/listen", wanted, id="first")
        got = await first.recv()
        assert got["params"]["notifications"] == grant
        await late.start("subscriptions/listen", wanted, id=7)
        got = await late.recv()
        assert got == {
            "jsonrpc": "2.0",
            "method": ACKNOWLEDGED,
            "params": {"notifications": grant, "_meta": {SUBSCRIPTION_ID: 7}},
        }


async def test_those_who_join_while_it_opens_wait_for_the_servers_word(shared: Shared) -> None:
    async with await shared.bridge.connect(0) as a, await shared.bridge.connect(0) as b:
        await a.call("do", next={"subscriptions/listen": {"hold": "opening"}})
        for client in (a, b):
            await client.start(
                "subscriptions/listen", {"notifications": {"promptsListChanged": True}}, id="w"
            )
        await nothing_more(a, b)
        await a.start_call("release", id="r", release="opening")
        for client in (a, b):
            got = await client.notification(ACKNOWLEDGED, subscription="w")
            assert got["params"]["notifications"] == {"promptsListChanged": True}


async def test_a_refusal_goes_to_all_who_wait_and_the_next_listen_asks_again(shared: Shared) -> None:
    refusal = {"code": -32602, "message": "no such resource", "data": {"x": 1.5}}
    async with await shared.bridge.connect(0) as a, await shared.bridge.connect(0) as b:
        wanted = {"notifications": {"resourceSubscriptions": ["refused://"]}}
        await a.call("do", next={"subscriptions/listen": {"hold": "refusing", "refuse": refusal}})
        await a.start("subscriptions/listen", wanted, id=1)
        await b.start("subscriptions/listen", wanted, id="one")
        await nothing_more(a, b)
        await a.start_call("release", id="r", release="refusing")
        assert (await a.response(1))["error"] == refusal
        assert (await b.response("one"))["error"] == refusal
        await b.listen(id="again", resourceSubscriptions=["refused://"])


async def test_when_one_holder_ends_only_its_own_ends_and_the_last_one_ends_it_at_the_server(
    shared: Shared, transport: int
) -> None:
    async with (
        await shared.bridge.connect(transport) as a,
        await shared.bridge.connect(transport) as b,
        await shared.bridge.connect(0) as other,
    ):
        uri = f"end://{transport}"
        changed = {"method": UPDATED, "params": {"uri": uri}}

        def held(seen: dict[str, Any]) -> int:
            return sum(
                uri in listen["granted"].get("resourceSubscriptions", []) for listen in seen["listens"]
            )

        for client in (a, b):
            await client.listen(id="l", resourceSubscriptions=[uri])
        await a.cancel("l", "enough")
        await nothing_more(a)
        await other.call("do", notify=changed)
        assert subscription_of(await b.recv()) == "l"
        await nothing_more(a)
        assert held(await state(other)) == 1
        await b.cancel("l")
        await state_until(other, lambda seen: held(seen) == 0)
        await other.call("do", notify={**changed, "force": True})
        await nothing_more(a, b)
        # A newcomer opens a new one, and its late predecessor does not disturb it.
        await a.listen(id="l", resourceSubscriptions=[uri])
        assert held(await state(other)) == 1


async def test_a_holder_that_leaves_ends_its_own_and_the_others_go_on(shared: Shared) -> None:
    async with await shared.bridge.connect(0) as stays, await shared.bridge.connect(0) as other:
        leaves = await shared.bridge.connect(0)
        for client in (leaves, stays):
            await client.listen(id="l", resourceSubscriptions=["leave://"])
        leaves.abort()
        for _ in range(5):
            await other.call("do", notify={"method": UPDATED, "params": {"uri": "leave://"}})
            assert subscription_of(await stays.recv()) == "l"


@pytest.mark.parametrize("how", ["result", "cancelled", "both"])
async def test_a_subscription_the_server_ends_is_ended_for_each_holder_under_its_own_id(
    shared: Shared, how: str
) -> None:
    """Reported: the closing answer, and the server's cancellation of a listen, were not passed on."""
    async with await shared.bridge.connect(0) as a, await shared.bridge.connect(1) as b:
        # The only ones at the server: `end_listen` ends all there are.
        await state_until(a, lambda seen: not seen["listens"])
        await a.listen(id=5, promptsListChanged=True)
        await b.listen(id="five", promptsListChanged=True)
        await a.start_call("do", id="end", end_listen={"how": how})
        for client, id in ((a, 5), (b, "five")):
            ended = await client.recv()
            if how == "result":
                assert same_id(ended["id"], id)
                assert ended["result"]["resultType"] == "complete"
                assert same_id(subscription_of(ended), id)
            else:
                # A response that comes behind the cancellation answers nothing any more.
                assert ended["method"] == "notifications/cancelled"
                assert ended["params"] == {"requestId": id, "reason": "scripted"}
        assert (await a.recv())["id"] == "end"
        await nothing_more(a, b)
        # It is over: a cancel reaches nobody, a new listen is a new subscription.
        await a.cancel(5)
        await a.listen(id=5, promptsListChanged=True)


async def test_what_comes_before_the_acknowledgement_or_after_the_end_reaches_nobody(shared: Shared) -> None:
    async with await shared.bridge.connect(0) as a, await shared.bridge.connect(0) as other:
        await other.call("do", next={"subscriptions/listen": {"ack": False}})
        await a.start("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id="l")
        await state_until(other, lambda seen: len(seen["listens"]) > 0)
        await other.call("do", notify={"method": TOOLS})
        await nothing_more(a)
        await a.cancel("l")


async def test_a_half_close_ends_listens_gracefully_and_answers_the_rest(
    shared: Shared, transport: int
) -> None:
    async with await shared.bridge.connect(transport) as client, await shared.bridge.connect(0) as other:
        uri = f"half://{transport}"
        await client.listen(id="l", resourceSubscriptions=[uri])
        await client.start_call("do", id=1, delay_ms=100)
        client.half_close()
        got = {message["id"]: message for message in map(json.loads, await client.expect_eof())}
        assert set(got) == {"l", 1}
        assert subscription_of(got["l"]) == "l"
        assert got["l"]["result"]["resultType"] == "complete"
        await state_until(
            other,
            lambda seen: not any(uri in str(listen["granted"]) for listen in seen["listens"]),
        )


async def test_listens_do_not_count_as_requests_in_flight_and_have_a_limit_of_their_own() -> None:
    options = ["--max-in-flight", "1", "--max-subscriptions", "2"]
    async with (
        running_bridge(*server_command("scripted.py"), options=options) as bridge,
        await bridge.connect() as client,
        await bridge.connect() as other,
    ):
        for number in range(2):
            await client.listen(id=number, resourceSubscriptions=[f"r://{number}"])
        answer = await client.request("subscriptions/listen", {"notifications": {}}, id="third")
        assert error_of(answer) == (-31003, "too_many_subscriptions", False)
        assert "result" in await client.call("do")
        await other.listen(id=0, toolsListChanged=True)
        await client.cancel(0)
        await client.listen(id="third", resourceSubscriptions=["r://3"])


async def kill_server(bridge: RunningBridge, client: RawClient) -> int:
    """SIGKILL for the server's process; returns its number."""
    pid = int(content(await client.call("pid"))["pid"])
    os.kill(pid, signal.SIGKILL)
    await bridge.wait_log(rf"pid {pid}\) ended")
    return pid


async def test_after_a_restart_holders_see_no_second_acknowledgement_but_each_change_they_may_have_missed(
    tmp_path: Path,
) -> None:
    record = tmp_path / "record"
    async with (
        running_bridge(
            *server_command("scripted.py"), listen=["unix", "tcp"], env=env(record=record)
        ) as bridge,
        await bridge.connect(0) as a,
        await bridge.connect(1) as b,
        await bridge.connect(0) as c,
        await bridge.connect(0) as other,
    ):
        shared: dict[str, Any] = {"toolsListChanged": True, "resourceSubscriptions": ["x://1", "x://2"]}
        await a.listen(id="a", **shared)
        await b.listen(id=1, **shared)
        await c.listen(id="c", promptsListChanged=True)
        await kill_server(bridge, other)
        for client, id in ((a, "a"), (b, 1)):
            got = [await client.recv() for _ in range(3)]
            assert all(same_id(subscription_of(message), id) for message in got)
            kinds = sorted((message["method"], message["params"].get("uri")) for message in got if message)
            assert kinds == sorted([(TOOLS, None), (UPDATED, "x://1"), (UPDATED, "x://2")], key=str)
        assert (await c.recv())["method"] == PROMPTS
        # Then updates flow again, and late joiners find it open.
        await other.call("do", notify={"method": UPDATED, "params": {"uri": "x://2"}})
        for client in (a, b):
            assert (await client.recv())["params"]["uri"] == "x://2"
        await other.listen(id="late", **shared)
        await nothing_more(a, b, c, other)
        ids = [message["id"] for message in listens_at(record)]
        assert len(ids) == len(set(ids)) == 4, "each opened again once, under a new id"


async def test_what_is_held_is_opened_again_before_requests_that_wait(tmp_path: Path) -> None:
    record = tmp_path / "record"
    async with (
        running_bridge(*server_command("scripted.py"), env=env(record=record)) as bridge,
        await bridge.connect() as a,
        await bridge.connect() as b,
    ):
        await a.listen(id="a", toolsListChanged=True)
        await kill_server(bridge, b)
        await b.call("after the restart")
        assert (await a.recv())["method"] == TOOLS
    lines = [json.loads(line) for line in lines_of(record)]
    names = [line["params"].get("name", line["method"]) for line in lines if "id" in line]
    assert names.index("after the restart") > len(names) - 1 - names[::-1].index("subscriptions/listen")


async def test_a_holder_that_cancelled_while_the_server_was_gone_is_not_opened_again(tmp_path: Path) -> None:
    record = tmp_path / "record"
    settings = [{}, {"start_delay_ms": 300}]
    variables = env(record=record, settings=settings, starts=tmp_path / "starts")
    async with (
        running_bridge(*server_command("scripted.py"), env=variables) as bridge,
        await bridge.connect() as a,
        await bridge.connect() as b,
    ):
        await a.listen(id=1, toolsListChanged=True)
        await a.listen(id=2, promptsListChanged=True)
        await kill_server(bridge, b)
        await a.cancel(1)
        assert (await a.recv())["method"] == PROMPTS
        await nothing_more(a)
        assert len(listens_at(record)) == 3


async def test_a_smaller_grant_after_a_restart_ends_a_listen_and_a_refusal_is_passed_on(
    tmp_path: Path,
) -> None:
    refusal = {"code": -32602, "message": "not any more"}
    listen = {"subscriptions/listen": {"grant": {"toolsListChanged": True}}}
    settings = [{}, {"methods": listen}, {"methods": {"subscriptions/listen": {"refuse": refusal}}}]
    async with (
        running_bridge(
            *server_command("scripted.py"), env=env(settings=settings, starts=tmp_path / "starts")
        ) as bridge,
        await bridge.connect() as a,
        await bridge.connect() as b,
        await bridge.connect() as other,
    ):
        await a.listen(id="a", toolsListChanged=True, promptsListChanged=True)
        await b.listen(id="b", toolsListChanged=True)
        await kill_server(bridge, other)
        ended = await a.recv()
        assert (ended["id"], subscription_of(ended), ended["result"]["resultType"]) == ("a", "a", "complete")
        assert (await b.recv())["method"] == TOOLS
        await kill_server(bridge, other)
        assert (await b.recv()) == {"jsonrpc": "2.0", "id": "b", "error": refusal}
        await nothing_more(a, b)


async def test_a_listen_starts_a_server_that_ended_in_order(tmp_path: Path) -> None:
    async with (
        running_bridge(*server_command("scripted.py"), env=env(starts=tmp_path / "starts")) as bridge,
        await bridge.connect() as client,
    ):
        await client.start_call("do", crash={"when": "after", "code": 0}, id=1)
        assert "result" in await client.response(1)
        await bridge.wait_log("ended: exit status 0")
        await client.listen(id="l", toolsListChanged=True)
        # And who holds one needs it running: it comes back by itself.
        await client.call("do", crash={"when": "after", "code": 0})
        assert (await client.recv())["method"] == TOOLS
        assert len(lines_of(tmp_path / "starts")) == 3


async def test_notifications_of_one_subscription_keep_their_order_among_hundreds(shared: Shared) -> None:
    async with await shared.bridge.connect(0) as a, await shared.bridge.connect(1) as b:
        for client in (a, b):
            await client.listen(id="l", resourceSubscriptions=["order://"])
        order = {"method": UPDATED, "params": {"uri": "order://"}, "count": 500}
        await a.start_call("do", id=1, notify=order)
        for client in (a, b):
            numbers = [(await client.recv())["params"]["_meta"]["example.com/n"] for _ in range(500)]
            assert numbers == list(range(500))
        assert (await a.recv())["id"] == 1


async def test_progress_and_logs_of_a_listen_of_ones_own_come_under_its_token(shared: Shared) -> None:
    async with await shared.bridge.connect(0) as a:
        meta = {"progressToken": "t", LOG_LEVEL: "info", **script(progress=1, logs=1)}
        wanted = {"notifications": {"toolsListChanged": True}}
        await a.start("subscriptions/listen", wanted, id="own", meta=meta)
        assert (await a.notification("notifications/progress"))["params"]["progressToken"] == "t"
        await a.notification("notifications/message")
        await a.notification(ACKNOWLEDGED, subscription="own")
        await a.cancel("own")


async def test_a_listener_is_not_told_of_another_ones_cancelled_listen(shared: Shared) -> None:
    async with await shared.bridge.connect(0) as a, await shared.bridge.connect(0) as b:
        await asyncio.gather(a.listen(id=1, promptsListChanged=True), b.listen(id=1, promptsListChanged=True))
        await a.send(notification("notifications/cancelled", {"requestId": 1, "reason": "mine"}))
        await nothing_more(a, b)
