"""The specification's own example messages pass unchanged, but for the members that carry identity.

`tests/data/examples/2026-07-28.jsonl` holds every example that revision of the Model Context Protocol
publishes beside its schema, one a line: a whole `message`, a `result` or an `error`, or another `value`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Shared
from tests.support.client import LOG_LEVEL, MODERN_META, SUBSCRIPTION_ID, Message, RawClient
from tests.support.scripts import b64, lines_of, recorded, script, state, state_until

FILE = Path(__file__).parents[1] / "data" / "examples" / "2026-07-28.jsonl"
EXAMPLES = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def of(kind: str) -> list[Any]:
    """The examples of one kind, as parameters."""
    return [pytest.param(entry[kind], id=entry["example"]) for entry in EXAMPLES if kind in entry]


MESSAGES = [entry["message"] for entry in EXAMPLES if "message" in entry]
REQUESTS = [m for m in MESSAGES if "id" in m and "method" in m]
RESPONSES = [m for m in MESSAGES if "id" in m and "method" not in m]
NOTIFICATIONS = {m["method"]: m for m in MESSAGES if "id" not in m}


def compact(value: Any) -> bytes:
    """JSON in the order and spelling of the example, without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def test_every_kind_of_example_is_there() -> None:
    assert len(EXAMPLES) == 129
    assert len(REQUESTS) == 10
    assert len(RESPONSES) == 14
    assert len(NOTIFICATIONS) == 8
    assert all(len(of(kind)) > 3 for kind in ("message", "result", "error", "value"))


@pytest.mark.parametrize("request_message", REQUESTS, ids=lambda m: m["method"])
async def test_a_request_reaches_the_server_unchanged_but_for_its_id(
    shared: Shared, unix_client: RawClient, request_message: Message
) -> None:
    before = len(lines_of(shared.record))
    await unix_client.send(compact(request_message) + b"\n")
    if request_message["method"] == "subscriptions/listen":
        await unix_client.notification("notifications/subscriptions/acknowledged", subscription="listen-1")
        await unix_client.cancel(request_message["id"])
    else:
        assert "result" in await unix_client.response(request_message["id"])
    lines = [json.loads(line) for line in lines_of(shared.record)[before:]]
    (line,) = [line for line in lines if line["method"] == request_message["method"]]
    assert type(line["id"]) is int
    params = request_message["params"]
    turned = {name: value for name, value in params.items() if name != "_meta"} | {"_meta": params["_meta"]}
    # An ordinary request that need not wait for the server has an order of its own.
    expected = [compact({**request_message, "id": line["id"], "params": one}) for one in (params, turned)]
    assert set(lines_of(shared.record)) & {one + b"\n" for one in expected}


async def test_a_cancellation_reaches_the_server_unchanged_but_for_the_id_it_names(
    shared: Shared, unix_client: RawClient
) -> None:
    example = NOTIFICATIONS["notifications/cancelled"]
    await unix_client.start_call("held", id=example["params"]["requestId"], hold="example")
    id = json.loads(await recorded(shared.record, '"name":"held"'))["id"]
    await unix_client.send(compact(example) + b"\n")
    await state_until(unix_client, lambda seen: id in seen["cancelled"])
    line = json.loads(await recorded(shared.record, "User requested cancellation"))
    assert line == {**example, "params": {**example["params"], "requestId": id}}


@pytest.mark.parametrize("response", RESPONSES, ids=lambda m: str(m["id"]))
async def test_a_response_reaches_its_client_byte_for_byte(unix_client: RawClient, response: Message) -> None:
    line = compact({**response, "id": "ID"}).replace(b'"ID"', b"@ID@", 1)
    if response["id"] == "listen-1":
        line = line.replace(b'"listen-1"', b"@ID@")
        wanted = {"notifications": {"promptsListChanged": True}}
        await unix_client.start(
            "subscriptions/listen", wanted, id="listen-1", meta=script(raw_instead=b64(line + b"\n"))
        )
    else:
        await unix_client.start_call("do", id=response["id"], raw_instead=b64(line + b"\n"))
    assert await unix_client.recv_raw() == compact(response)


@pytest.mark.parametrize("result", of("result"))
async def test_a_result_reaches_its_client_byte_for_byte(unix_client: RawClient, result: Any) -> None:
    line = b'{"jsonrpc":"2.0","id":@ID@,"result":%s}\n' % compact(result)
    await unix_client.start_call("do", id="r", raw_instead=b64(line))
    assert await unix_client.recv_raw() == b'{"jsonrpc":"2.0","id":"r","result":%s}' % compact(result)


@pytest.mark.parametrize("error", of("error"))
async def test_an_error_reaches_its_client_byte_for_byte(unix_client: RawClient, error: Any) -> None:
    line = b'{"jsonrpc":"2.0","id":@ID@,"error":%s}\n' % compact(error)
    await unix_client.start_call("do", id=0, raw_instead=b64(line))
    assert await unix_client.recv_raw() == b'{"jsonrpc":"2.0","id":0,"error":%s}' % compact(error)


@pytest.mark.parametrize("value", of("value"))
async def test_any_other_value_passes_byte_for_byte_in_both_directions(
    shared: Shared, unix_client: RawClient, value: Any
) -> None:
    """Parameters, content, schemas, capabilities: as an argument, and as structured content."""
    text = compact(value)
    line = b'{"jsonrpc":"2.0","id":@ID@,"result":{"structuredContent":%s}}\n' % text
    meta = compact({**MODERN_META, **script(raw_instead=b64(line))})
    params = b'{"name":"value","arguments":%s,"_meta":%s}' % (text, meta)
    request = b'{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":%s}\n'
    await unix_client.send(request % (b'"v"', params))
    assert (
        await unix_client.recv_raw() == b'{"jsonrpc":"2.0","id":"v","result":{"structuredContent":%s}}' % text
    )
    assert b',"method":"tools/call","params":%s}\n' % params in shared.record.read_bytes()


async def test_a_progress_notification_reaches_its_request_unchanged(unix_client: RawClient) -> None:
    example = NOTIFICATIONS["notifications/progress"]
    token = example["params"]["progressToken"]
    line = compact(example).replace(compact(token), b"@TOKEN@") + b"\n"
    await unix_client.start_call("do", id=1, meta={"progressToken": token}, raw_before=b64(line))
    assert await unix_client.recv_raw() == compact(example)
    assert (await unix_client.recv())["id"] == 1


async def test_a_log_notification_reaches_who_asked_for_it_unchanged(unix_client: RawClient) -> None:
    example = NOTIFICATIONS["notifications/message"]
    raw = b64(compact(example) + b"\n")
    await unix_client.start_call("do", id=1, meta={LOG_LEVEL: "error"}, raw_before=raw)
    assert await unix_client.recv_raw() == compact(example)
    assert (await unix_client.recv())["id"] == 1


async def test_an_acknowledgement_and_all_that_follows_it_reach_the_holder_unchanged(
    unix_client: RawClient,
) -> None:
    acknowledged = NOTIFICATIONS["notifications/subscriptions/acknowledged"]
    changes = [m for m in NOTIFICATIONS.values() if SUBSCRIPTION_ID in m["params"].get("_meta", {})]
    assert len(changes) == 5

    def written(message: Message, id: str) -> bytes:
        return compact(message).replace(b'"listen-1"', id.encode()) + b"\n"

    (listen,) = [m for m in REQUESTS if m["method"] == "subscriptions/listen"]
    listen = json.loads(compact(listen))
    listen["params"]["_meta"].update(script(ack=False, raw_before=b64(written(acknowledged, "@ID@"))))
    await unix_client.send(compact(listen) + b"\n")
    assert await unix_client.recv_raw() == compact(acknowledged)
    (id,) = [held["id"] for held in (await state(unix_client))["listens"]]
    rest = [m for m in changes if m is not acknowledged]
    await unix_client.start_call("do", id=1, raw_before=b64(*(written(m, str(id)) for m in rest)))
    for message in rest:
        assert await unix_client.recv_raw() == compact(message)
    assert (await unix_client.recv())["id"] == 1
