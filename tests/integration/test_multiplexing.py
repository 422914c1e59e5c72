"""Many clients on one server: everything to the one it belongs to (sections 3 and 4 of the contract)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Shared
from tests.support.bridge import running_bridge, server_command, wait_until
from tests.support.client import LOG_LEVEL, MODERN_META, NoMessage, RawClient, modern_request, notification
from tests.support.scripts import b64, content, env, error_of, lines_of, recorded, script, state, state_until

META = json.dumps(dict(MODERN_META), separators=(",", ":")).encode()
LOGS = {LOG_LEVEL: "debug"}


async def upstream_id(shared: Shared, mark: str) -> int:
    """The id under which the server got the request with `mark`."""
    id = json.loads(await recorded(shared.record, mark))["id"]
    assert type(id) is int
    return id


async def until_cancelled(client: RawClient, id: int) -> None:
    """Wait until the server has read the cancellation of its request `id`."""
    await state_until(client, lambda seen: id in seen["cancelled"])


async def nothing_came(*clients: RawClient) -> None:
    """Fail if a client was sent anything up to now: what the server writes next would come behind it."""
    for client in clients:
        id = await client.start_call("is there anything before this?", id="probe")
        assert (await client.recv())["id"] == id
        assert client.unread == []


# Ids.


async def test_two_clients_with_the_same_id_and_token_get_their_own(shared: Shared, transport: int) -> None:
    """Reported: tables keyed by the clients' own ids or tokens gave answers to another tenant."""
    async with await shared.bridge.connect(transport) as a, await shared.bridge.connect(0) as b:
        token = {"progressToken": 1}
        await a.start_call("slow", id=1, meta=token, progress=1, hold=f"a{transport}", who="a")
        assert (await a.recv())["params"]["progressToken"] == 1
        await b.start_call("fast", id=1, meta=token, progress=2, who="b")
        got = [await b.recv() for _ in range(3)]
        assert [message.get("method") for message in got] == ["notifications/progress"] * 2 + [None]
        assert {message["params"]["progressToken"] for message in got[:2]} == {1}
        assert content(got[2])["arguments"]["who"] == "b"
        await b.call("release", release=f"a{transport}")
        assert content(await a.recv())["arguments"]["who"] == "a"
        await nothing_came(a, b)


async def test_eight_clients_with_equal_ids_each_get_all_of_their_own_answers(shared: Shared) -> None:
    clients = [await shared.bridge.connect(number % 2) for number in range(8)]

    async def run(number: int) -> None:
        client = clients[number]
        for id in range(100):
            steps = {"delay_ms": (id * 7 + number) % 5} if id % 10 == 0 else {}
            await client.start_call("do", id=id, meta={"progressToken": id}, progress=1, me=number, **steps)
        answers, progress = {}, []
        for _ in range(200):
            message = await client.recv()
            if "method" in message:
                progress.append(message["params"]["progressToken"])
            else:
                answers[message["id"]] = content(message)["arguments"]["me"]
        assert answers == dict.fromkeys(range(100), number)
        assert sorted(progress) == list(range(100))
        await nothing_came(client)

    await asyncio.gather(*map(run, range(8)))
    for client in clients:
        client.close()


IDS = [
    b"1",
    b'"1"',
    b"0",
    b'""',
    b"-7",
    b"9007199254740993",
    b"1" + b"0" * 400,
    b'"a\\"b"',
    b'"true"',
    b'" "',
    '"größer 🙂"'.encode(),
    b'"\\ud83d"',
    b'"' + b"k" * 1022 + b'"',
]


async def test_ids_of_every_kind_come_back_as_they_were(client: RawClient) -> None:
    """Reported: a gateway answered id 0 with "0", and strict clients gave up in the handshake."""
    line = b'{"jsonrpc":"2.0","id":%s,"method":"tools/list","params":{"_meta":%s}}\n'
    await client.send(*(line % (id, META) for id in IDS))
    for id in IDS:
        raw = await client.recv_raw()
        assert raw.startswith(b'{"jsonrpc":"2.0","id":%s,"result":' % id)


async def test_ids_that_differ_only_by_type_are_different_requests(shared: Shared, client: RawClient) -> None:
    ids: list[Any] = [1, "1", 0, "0", "", "-1", -1, "null"]
    mark = f"types {client.sock.family}"
    for id in ids:
        await client.start_call("do", id=id, hold=f"{mark} {id!r}", mark=f"{mark} {id!r}")
    await client.cancel(1)
    await client.cancel("-1")
    async with await shared.bridge.connect(0) as other:
        for id in ids:
            await other.call("release", release=f"{mark} {id!r}")
    for id in ids:
        if id not in (1, "-1") or type(id) is not type({1: 1, "-1": "-1"}[id]):
            assert content(await client.response(id))["arguments"]["mark"] == f"{mark} {id!r}"
    await nothing_came(client)


@pytest.mark.parametrize(
    "id", ["null", "true", "false", "[]", "{}", "1.5", "1.0", "1e2", '"%s"' % ("k" * 1023)]
)
async def test_an_id_no_request_may_have_is_refused_without_one(
    shared: Shared, client: RawClient, id: str
) -> None:
    before = (await state(client))["count"]
    line = b'{"jsonrpc":"2.0","id":%s,"method":"tools/list","params":{"_meta":%s}}\n'
    await client.send(line % (id.encode(), META))
    answer = await client.recv()
    assert "id" not in answer
    assert error_of(answer) == (-32600, "invalid_request", False)
    assert (await state(client))["count"] == before + 1


async def test_an_id_in_flight_twice_gets_two_responses(unix_client: RawClient) -> None:
    """One host sends `id: 1` for everything. Reported: empty answers that hang for minutes, 1 % of calls."""
    for number in range(3):
        await unix_client.start_call("do", id=1, hold=f"twice {number}", number=number)
    for number in (2, 0, 1):
        await unix_client.call("release", id=2, release=f"twice {number}")
    numbers = {content(await unix_client.response(1))["arguments"]["number"] for _ in range(3)}
    assert numbers == {0, 1, 2}
    await nothing_came(unix_client)


async def test_a_cancel_of_an_id_in_flight_twice_ends_both(shared: Shared, unix_client: RawClient) -> None:
    for number in (1, 2):
        await unix_client.start_call("do", id=1, hold="never", mark=f"both end {number}")
    ids = [await upstream_id(shared, f"both end {number}") for number in (1, 2)]
    await unix_client.cancel(1)
    cancelled = (await state(unix_client))["cancelled"]
    assert set(ids) <= set(cancelled)
    await nothing_came(unix_client)


async def test_upstream_ids_are_plain_integers_and_never_used_twice(tmp_path: Path) -> None:
    """Also not by the next process."""
    record = tmp_path / "record"
    async with (
        running_bridge(*server_command("scripted.py"), env=env(record=record)) as bridge,
        await bridge.connect() as client,
    ):
        for _ in range(3):
            for id in (1, 1, "1"):
                await client.call("do", id=id)
            await client.call("do", id=1, crash={"when": "before"})
    ids = [json.loads(line).get("id") for line in lines_of(record)]
    assert len(ids) >= 12
    assert len(set(ids)) == len(ids)
    assert all(type(id) is int and 0 < id < 2**53 for id in ids)


# Cancelling.


async def test_a_cancel_reaches_the_server_under_its_upstream_id_and_ends_only_its_own(
    shared: Shared, transport: int
) -> None:
    """Reported: cancellations ended at the gateway, and work went on."""
    mark = f"cancel {transport}"
    async with await shared.bridge.connect(transport) as a, await shared.bridge.connect(0) as b:
        await a.start_call("do", id=1, hold=mark, mark=f"{mark} a")
        await b.start_call("do", id=1, hold=mark, mark=f"{mark} b")
        own, other = await upstream_id(shared, f"{mark} a"), await upstream_id(shared, f"{mark} b")
        params = f'{{"requestId":1,"reason":"{mark}","n":1.0}}'
        await a.send(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":%s}\n' % params.encode())
        await until_cancelled(b, own)
        seen = await state(b)
        assert other not in seen["cancelled"]
        assert own not in seen["running"]
        assert other in seen["running"]
        passed_on = json.loads(await recorded(shared.record, f'"reason":"{mark}"'), parse_float=str)
        assert passed_on["params"] == {"requestId": own, "reason": mark, "n": "1.0"}
        await b.call("release", release=mark)
        assert content(await b.response(1))["arguments"]["mark"] == f"{mark} b"
        await nothing_came(a, b)


async def test_a_cancel_of_what_is_not_ones_own_reaches_nobody(shared: Shared, transport: int) -> None:
    """Not of an upstream id, not of another client's request, not of an answered one, not of `"1"` for 1."""
    mark = f"foreign {transport}"
    async with await shared.bridge.connect(transport) as a, await shared.bridge.connect(0) as b:
        await b.start_call("do", id=7, hold=mark, mark=mark)
        id = await upstream_id(shared, mark)
        await a.call("do", id="answered")
        before = (await state(a))["count"]
        for wrong in (7, "7", id, str(id), "answered", 0, None, True, 1.5, [7], {"id": 7}):
            await a.cancel(wrong)
        await a.send(notification("notifications/cancelled"), notification("notifications/cancelled", {}))
        await b.cancel("7")
        await nothing_came(a)
        seen = await state(b)
        assert id in seen["running"]
        assert id not in seen["cancelled"]
        assert seen["count"] == before + 2
        await b.call("release", release=mark)
        assert content(await b.response(7))["arguments"]["mark"] == mark


async def test_a_cancel_right_after_the_answer_is_not_passed_on(shared: Shared, client: RawClient) -> None:
    """Reported: old servers crash on a cancellation that races with the answer."""
    before = (await state(client))["count"]
    for id in range(20):
        await client.call("do", id=id)
        await client.cancel(id)
    await nothing_came(client)
    assert (await state(client))["count"] == before + 22


async def test_a_late_answer_to_a_cancelled_request_is_dropped(shared: Shared, client: RawClient) -> None:
    mark = f"late answer {client.sock.family}"
    await client.start_call(
        "do", id=1, meta={"progressToken": 1}, hold=mark, answer_cancelled=True, mark=mark
    )
    id = await upstream_id(shared, mark)
    await client.cancel(1)
    await until_cancelled(client, id)
    await nothing_came(client)
    # Its id may be used again at once, and its old answer is not taken for the new one's.
    assert content(await client.call("do", id=1, mark="new"))["arguments"] == {"mark": "new"}


async def test_a_cancelled_request_that_waits_is_never_sent(tmp_path: Path) -> None:
    record = tmp_path / "record"
    options = ["--max-in-flight", "1"]
    async with (
        running_bridge(*server_command("scripted.py"), options=options, env=env(record=record)) as bridge,
        await bridge.connect() as client,
        await bridge.connect() as other,
    ):
        await client.start_call("do", id=1, hold="first", mark="first")
        await recorded(record, "first")
        for id in (2, 3, 3, 4):
            await client.start_call(f"number {id}", id=id)
        await client.cancel(3)
        await client.cancel(2)
        await other.call("release", release="first")
        assert [(await client.recv())["id"] for _ in range(2)] == [1, 4]
        await nothing_came(client)
    assert re.findall(rb"number \d", record.read_bytes()) == [b"number 4"]
    assert b"notifications/cancelled" not in record.read_bytes()


# Leaving.


@pytest.mark.parametrize(("index", "how"), [(0, "close"), (1, "abort")], ids=["unix", "tcp"])
async def test_a_client_that_leaves_has_its_requests_cancelled_at_the_server(
    shared: Shared, index: int, how: str
) -> None:
    """Reported: requests given up by the client ran on in the server; or its end took others along."""
    mark = f"leave {index}"
    async with await shared.bridge.connect(index) as a, await shared.bridge.connect(index) as b:
        await b.start_call("do", id=1, hold=mark, mark=f"{mark} stays")
        for id in (1, 2):
            await a.start_call("do", id=id, hold=mark, mark=f"{mark} {id}", answer_cancelled=True)
        ids = [await upstream_id(shared, f"{mark} {id}") for id in (1, 2)]
        getattr(a, how)()
        for id in ids:
            await until_cancelled(b, id)
        # A newcomer with the same ids gets nothing of what was answered late.
        async with await shared.bridge.connect(index) as c:
            assert content(await c.call("do", id=1, mark="newcomer"))["arguments"] == {"mark": "newcomer"}
            await nothing_came(c)
        await b.call("release", id=2, release=mark)
        assert content(await b.response(1))["arguments"]["mark"] == f"{mark} stays"
        await nothing_came(b)


async def test_clients_that_leave_uncleanly_by_the_hundred_leave_nothing_behind(shared: Shared) -> None:
    """Reported: clean-up only on the polite path, so that entries piled up."""
    for number in range(200):
        client = await shared.bridge.connect(number % 2)
        await client.start_call("do", id=1, hold="never", mark="hundreds")
        if number % 3:
            await client.send(b'{"jsonrpc":"2.0","id":2,"meth')
        client.abort()
    async with await shared.bridge.connect(0) as last:
        await state_until(last, lambda seen: not seen["running"])


async def test_a_notification_for_a_client_that_is_gone_ends_nothing(shared: Shared, transport: int) -> None:
    """Reported: a list_changed right after a disconnect ended the process."""
    async with await shared.bridge.connect(0) as other:
        for _ in range(10):
            client = await shared.bridge.connect(transport)
            await client.listen(toolsListChanged=True)
            client.abort()
            await other.call("do", notify={"method": "notifications/tools/list_changed", "count": 20})
        assert "result" in await other.call("do")


# What a server says to the one who asked.


async def test_progress_goes_to_its_request_alone_under_the_token_its_client_chose(
    shared: Shared, client: RawClient
) -> None:
    tokens: list[Any] = [1, "1", 0, "", -5, 'a"b', 2**53 + 1, "größer"]
    async with await shared.bridge.connect(0) as other:
        await other.start_call("do", id=1, meta={"progressToken": 1}, hold="progress of another")
        for token in tokens:
            await client.start_call("do", id="x", meta={"progressToken": token}, progress=2)
            for _ in range(2):
                got = (await client.recv())["params"]["progressToken"]
                assert got == token
                assert type(got) is type(token)
            assert (await client.recv())["id"] == "x"
        await client.call("release", release="progress of another")
        assert (await other.recv())["id"] == 1


async def test_a_token_with_a_lone_surrogate_comes_back_as_it_was_spelled(unix_client: RawClient) -> None:
    meta = META[:-1] + b',"progressToken":"\\ud83d"}'
    params = b'{"name":"do","arguments":{"progress":1,"note":"\\udc00"},"_meta":%s}' % meta
    await unix_client.send(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%s}\n' % params)
    assert b'"progressToken":"\\ud83d"' in await unix_client.recv_raw()
    assert (await unix_client.recv())["id"] == 1


@pytest.mark.parametrize("token", [57.0, None, True, [1], {"a": 1}, 1e300])
async def test_a_token_that_is_neither_text_nor_integer_is_removed(
    shared: Shared, unix_client: RawClient, token: Any
) -> None:
    """A server that echoes 57.0 as 57 would hit a stranger."""
    mark = f"token {token!r}".encode().hex()
    await unix_client.start_call("do", id=1, meta={"progressToken": token}, progress=1, mark=mark)
    assert (await unix_client.recv())["id"] == 1
    assert b"progressToken" not in await recorded(shared.record, mark)


async def test_progress_nobody_can_own_is_dropped_and_never_invented(client: RawClient) -> None:
    """Hosts hang up on a progress notification with a token they do not know; real servers send them late."""
    line = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{%s"progress":1}}\n'
    tokens = (b"", b'"progressToken":null,', b'"progressToken":@ID@.0,', b'"progressToken":"@ID@",')
    more = (b'"progressToken":999999999,', b'"progressToken":0,', b'"progressToken":-1,')
    raw = b64(*(line % token for token in tokens + more))
    raw += b64(b'{"jsonrpc":"2.0","method":"notifications/progress"}\n')
    # Asked without a token, with one, and after the answer.
    own = b64(line % b'"progressToken":@ID@,')
    await client.start_call("do", id=1, raw_before=own + raw, token=1, progress=1, late_progress=1)
    assert (await client.recv())["id"] == 1
    await client.start_call("do", id=2, meta={"progressToken": "t"}, raw_before=raw, late_progress=3)
    assert (await client.recv())["id"] == 2
    await nothing_came(client)


async def test_answers_nobody_asked_for_are_dropped(client: RawClient) -> None:
    ids = (b"0", b"-1", b"999999999", b'"@ID@"', b"@ID@.0", b"@ID@e0", b"null", b"true", b"[@ID@]", b"{}")
    lines = [b'{"jsonrpc":"2.0","id":%s,"result":{"stray":1}}\n' % id for id in ids]
    lines += [b'{"jsonrpc":"2.0","error":{"code":-32700,"message":"whose?"}}\n', b'{"jsonrpc":"2.0"}\n']
    lines += [b'[{"jsonrpc":"2.0","id":@ID@,"result":{"batch":1}}]\n', b"{}\n", b"1\n", b"null\n"]
    answer = await client.call("do", id=1, raw_before=b64(*lines))
    assert content(answer)["name"] == "do"
    await nothing_came(client)


async def test_an_answer_given_twice_comes_once(client: RawClient) -> None:
    await client.start_call("do", id=1, repeat=3)
    assert (await client.recv())["id"] == 1
    await nothing_came(client)


async def test_a_request_of_a_modern_server_reaches_nobody_and_gets_no_answer(client: RawClient) -> None:
    """Modern servers ask nothing; a client must not be made to write responses."""
    lines = b64(
        *(b'{"jsonrpc":"2.0","id":%s,"method":"roots/list"}\n' % id for id in (b"@ID@", b"1", b'"s"'))
    )
    await client.start_call("do", id=1, raw_before=lines)
    assert (await client.recv())["id"] == 1
    await nothing_came(client)
    assert (await state(client))["responses"] == []


async def test_a_notification_without_a_subscription_goes_to_nobody(
    shared: Shared, client: RawClient
) -> None:
    async with await shared.bridge.connect(0) as listening:
        await listening.listen(toolsListChanged=True, id="l")
        order = {"method": "notifications/tools/list_changed", "untagged": True}
        await client.start_call("do", id=1, notify=order)
        assert (await client.recv())["id"] == 1
        order = {"method": "notifications/example", "untagged": True, "params": {"_meta": {"a": 1}}}
        await client.start_call("do", id=2, notify=order)
        assert (await client.recv())["id"] == 2
        await nothing_came(client, listening)


async def test_logs_go_to_the_one_client_whose_request_asked_for_them(shared: Shared, transport: int) -> None:
    """Reported: such messages went to every client, one user's page into the other's log."""
    async with await shared.bridge.connect(transport) as a, await shared.bridge.connect(0) as b:
        await b.start_call("do", id=1, hold="without logs")
        await a.start_call("do", id=1, meta=LOGS, logs=2, log_text="for a")
        for number in range(2):
            assert (await a.recv())["params"]["data"] == {"text": "for a", "n": number}
        assert (await a.recv())["id"] == 1
        # Nobody asked: nobody gets them.
        await a.start_call("do", id=2, logs=2)
        assert (await a.recv())["id"] == 2
        await b.call("release", id=3, release="without logs")
        assert (await b.recv())["id"] == 1
        await nothing_came(a, b)


async def two_that_ask_for_logs(bridge_options: list[str], run: Callable[..., Any]) -> None:
    async with (
        running_bridge(*server_command("scripted.py"), options=bridge_options) as bridge,
        await bridge.connect() as a,
        await bridge.connect() as b,
    ):
        await a.start_call("do", id=1, meta=LOGS, hold="a")
        await state_until(b, lambda seen: len(seen["running"]) == 1)
        await run(bridge, a, b)


async def test_logs_several_clients_could_own_go_to_the_bridges_log() -> None:
    async def run(bridge: Any, a: RawClient, b: RawClient) -> None:
        await b.start_call("do", id=1, meta=LOGS, logs=1, log_text="whose\u001b[1m?")
        assert (await b.recv())["id"] == 1
        await nothing_came(a, b)
        (line,) = await bridge.wait_log("whose")
        assert "\x1b" not in line
        await b.call("release", release="a")
        assert (await a.recv())["id"] == 1
        # One is left that can own them.
        await b.start_call("do", id=2, meta=LOGS, logs=1, log_text="b's own")
        assert (await b.recv())["params"]["data"]["text"] == "b's own"

    await two_that_ask_for_logs([], run)


async def test_an_abandoned_request_still_counts_as_an_owner_of_logs_until_its_answer() -> None:
    async def run(bridge: Any, a: RawClient, b: RawClient) -> None:
        await a.start_call("do", id=2, meta=LOGS, hold="late", answer_cancelled=True)
        await state_until(b, lambda seen: len(seen["running"]) == 2)
        await b.call("release", release="a")
        assert (await a.recv())["id"] == 1
        # What it still logs after its cancellation must not become b's.
        await a.start_call("do", id=3, meta=LOGS, answer=False)
        await a.cancel(3)
        await a.cancel(2)
        await b.start_call("do", id=1, meta=LOGS, logs=1, log_text="of the abandoned?")
        assert (await b.recv())["id"] == 1
        await bridge.wait_log("of the abandoned")
        await nothing_came(a, b)

    await two_that_ask_for_logs([], run)


async def test_ambiguous_logs_can_be_broadcast_to_those_who_asked() -> None:
    async def run(bridge: Any, a: RawClient, b: RawClient) -> None:
        async with await bridge.connect() as c:
            await c.start_call("do", id=1, hold="c")
            await b.start_call("do", id=1, meta=LOGS, logs=1, log_text="to both")
            for client in (a, b):
                assert (await client.recv())["params"]["data"]["text"] == "to both"
            assert (await b.recv())["id"] == 1
            await nothing_came(a, b, c)

    await two_that_ask_for_logs(["--ambiguous-logs", "broadcast"], run)


# What clients write besides requests.


async def test_a_notification_gets_no_answer_and_goes_on_in_its_place(
    shared: Shared, client: RawClient
) -> None:
    """JSON-RPC 2.0, 4.1. Reported: gateways answered or rejected messages without an id."""
    mark = f"in place {client.sock.family}"
    messages: list[Any] = []
    for number in range(10):
        messages.append(modern_request("tools/call", {"name": f"{mark} r{number}"}, id=number))
        messages.append(notification("notifications/x", {"mark": f"{mark} n{number}", "n": 1}))
    messages.append(notification("notifications/without_params"))
    await client.send(*messages)
    assert [(await client.recv())["id"] for _ in range(10)] == list(range(10))
    await nothing_came(client)
    await recorded(shared.record, f"{mark} n9")
    order = re.findall(mark.encode() + rb" ([rn]\d)", shared.record.read_bytes())
    assert order == [b"%c%d" % (kind, number) for number in range(10) for kind in b"rn"]


async def test_what_only_a_session_of_ones_own_knows_ends_at_the_bridge(
    shared: Shared, client: RawClient
) -> None:
    before = (await state(client))["count"]
    await client.send(
        notification("notifications/initialized"),
        notification("notifications/roots/list_changed"),
        notification("notifications/progress", {"progressToken": 1, "progress": 1}),
    )
    assert (await state(client))["count"] == before + 1
    await nothing_came(client)


async def test_a_client_that_answers_what_nobody_asked_is_ignored(shared: Shared, client: RawClient) -> None:
    before = (await state(client))["count"]
    await client.send(
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": "1", "error": {"code": 1, "message": "no"}},
        {"jsonrpc": "2.0", "error": {"code": -32700, "message": "no"}},
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "no"}},
    )
    assert (await state(client))["count"] == before + 1


@pytest.mark.parametrize(
    ("line", "id"),
    [
        (b"{}", None),
        (b"[]", None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]', None),
        (b"42", None),
        (b'"text"', None),
        (b"null", None),
        (b"true", None),
        (b'{"id":5,"method":"tools/list"}', 5),
        (b'{"jsonrpc":"1.0","id":5,"method":"tools/list"}', 5),
        (b'{"jsonrpc":2.0,"id":"five","method":"tools/list"}', "five"),
        (b'{"jsonrpc":"2.0","id":5}', 5),
        (b'{"jsonrpc":"2.0","id":5,"method":7}', 5),
        (b'{"jsonrpc":"2.0","id":5,"method":null}', 5),
        (b'{"jsonrpc":"2.0","id":5,"method":"tools/list","params":3}', 5),
        (b'{"jsonrpc":"2.0","id":5,"method":"tools/list","result":{}}', 5),
    ],
)
async def test_json_that_is_no_message_is_refused_and_the_connection_lives(
    shared: Shared, client: RawClient, line: bytes, id: Any
) -> None:
    """Go servers exit on some of these lines. Batches existed in 2025-03-26 alone, and SDKs refused them."""
    before = (await state(client))["count"]
    if line[:1] == b"{" or client.sock.family.name == "AF_UNIX":
        await client.send(line + b"\n")
    else:
        await client.send(b" " + line + b"\n")  # not the first byte of the connection
    answer = await client.recv()
    assert answer.get("id") == id
    assert ("id" in answer) is (id is not None)
    assert error_of(answer) == (-32600, "invalid_request", False)
    assert (await state(client))["count"] == before + 1
    await nothing_came(client)


async def test_every_method_a_server_may_know_is_passed_on_with_its_answer(client: RawClient) -> None:
    """The bridge knows no list of methods: results and errors come back as the server gave them."""
    error = {"code": -32099, "message": "über", "data": [1.5, {"a": None}]}
    answer = await client.request("vendor/anything", {"a": [1]}, meta=script(error=error))
    assert answer["error"] == error
    result = {"resultType": "input_required", "requestState": "opaque", "inputRequests": {}}
    answer = await client.request("tools/call", {"name": "x"}, meta=script(result=result))
    assert answer["result"] == result


async def test_discover_is_answered_by_the_server_itself(shared: Shared, client: RawClient) -> None:
    answer = await client.request("server/discover", id="d")
    assert answer["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "scripted"


async def test_the_bridge_asks_a_server_for_its_era_once_for_all_clients(tmp_path: Path) -> None:
    """Reported: each client's handshake went to the one server; the era was guessed anew by each."""
    record = tmp_path / "record"
    async with running_bridge(*server_command("scripted.py"), env=env(record=record)) as bridge:
        clients = [await bridge.connect() for _ in range(5)]
        await asyncio.gather(*(client.call("do") for client in clients))
        for client in clients:
            client.close()
    (probe,) = [json.loads(line) for line in lines_of(record) if b"server/discover" in line]
    # It claims nothing for clients it does not know: a server would rely on it.
    assert probe["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] == {}


async def test_requests_sent_while_the_era_is_not_known_wait_in_order(tmp_path: Path) -> None:
    record = tmp_path / "record"
    slow = {
        "methods": {"server/discover": {"delay_ms": 300, "result": {"supportedVersions": ["2026-07-28"]}}}
    }
    async with (
        running_bridge(*server_command("scripted.py"), env=env(record=record, settings=slow)) as bridge,
        await bridge.connect() as client,
    ):
        for id in range(20):
            await client.start_call(f"number {id:02}", id=id)
        assert [(await client.recv())["id"] for _ in range(20)] == list(range(20))
    found = re.findall(rb"number (\d\d)", record.read_bytes())
    assert found == [b"%02d" % id for id in range(20)]


async def test_one_servers_silence_does_not_stop_what_comes_after_the_probes_time() -> None:
    """Reported: the era was guessed from a probe's timeout. Here a late answer is understood as well."""
    slow = {"methods": {"server/discover": {"hold": "probe"}}}
    options = ["--era", "modern", "--probe-timeout", "0.2"]
    async with (
        running_bridge(*server_command("scripted.py"), options=options, env=env(settings=slow)) as bridge,
        await bridge.connect() as client,
    ):
        assert content(await client.call("do", id=1))["name"] == "do"
        await client.call("release", release="probe")
        await nothing_came(client)


async def test_a_client_that_only_discovers_and_leaves_disturbs_nobody(
    shared: Shared, client: RawClient
) -> None:
    """Some hosts probe on a connection of their own, and close it at once."""
    for _ in range(20):
        async with await shared.bridge.connect(0) as sibling:
            await sibling.start("server/discover")
    await nothing_came(client)


async def test_no_answer_comes_for_a_request_the_server_never_answers(unix_client: RawClient) -> None:
    """Nothing is invented: only a limit of its own (--request-timeout) would end it."""
    await unix_client.start_call("do", id=1, answer=False)
    with pytest.raises(NoMessage):
        await unix_client.response(1, timeout=0.2)
    await unix_client.cancel(1)


async def test_a_request_the_server_does_not_answer_in_time_is_given_up(tmp_path: Path) -> None:
    record = tmp_path / "record"
    options = ["--request-timeout", "0.3"]
    async with (
        running_bridge(*server_command("scripted.py"), options=options, env=env(record=record)) as bridge,
        await bridge.connect() as client,
    ):
        await client.start_call("do", id=1, hold="for ever", mark="to be given up")
        id = json.loads(await recorded(record, "to be given up"))["id"]
        assert error_of(await client.recv()) == (-31007, "request_timeout", True)
        await until_cancelled(client, id)
        await wait_until(lambda: b"notifications/cancelled" in record.read_bytes())
