"""The demo server in the legacy era, checked against that era's schema; and the choice between the eras."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from bridge.demo_legacy import LEGACY, LEGACY_VERSIONS
from bridge.demo_server import DUAL, LEGACY_ONLY, MODERN_ONLY, DemoServer
from tests.support import schema
from tests.support.client import legacy_request, modern_request, notification

Message = dict[str, Any]

CLOCK = {"uri": "demo://clock"}
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "raw-client", "version": "1.0.0"},
}


def assert_valid(message: Message, definition: str) -> None:
    schema.assert_valid(message, definition, schema.LEGACY)


class Scenario:
    """A demo server with a clock that a test moves; checks every message it sends against the schema."""

    def __init__(self, era: str = DUAL, *, tick_s: float = 0.0, opened: bool = True) -> None:
        self.now = 0.0
        self.sent: list[Message] = []
        self.server = DemoServer(self._write, tick_s, lambda: self.now, era=era)
        if opened:
            self.request("hello", "initialize", HELLO)
            assert self.send(notification("notifications/initialized")) == []

    def _write(self, data: bytes) -> None:
        assert data.endswith(b"\n")
        assert data.count(b"\n") == 1
        message = json.loads(data)
        assert_valid(message, "JSONRPCMessage")
        if "method" in message:
            assert_valid(message, "ServerNotification")
        self.sent.append(message)

    def send(self, message: Message) -> list[Message]:
        self.server.line(json.dumps(message).encode())
        sent, self.sent = self.sent, []
        return sent

    def messages(self, id: Any, method: str, params: Message | None = None) -> list[Message]:
        return self.send(legacy_request(method, params, id=id))

    def request(self, id: Any, method: str, params: Message | None = None) -> Message:
        """A request that is answered at once, and with nothing else."""
        (response,) = self.messages(id, method, params)
        return response

    def call(self, id: Any, tool: str, meta: Message | None = None, **arguments: Any) -> list[Message]:
        params: Message = {"name": tool, "arguments": arguments}
        return self.messages(id, "tools/call", params if meta is None else {**params, "_meta": meta})

    def cancel(self, id: Any) -> list[Message]:
        return self.send(notification("notifications/cancelled", {"requestId": id}))

    def after(self, seconds: float) -> list[Message]:
        """Let time pass, in steps of 10 ms."""
        for _ in range(round(seconds * 100)):
            self.now += 0.01
            self.server.demo.run_due()
        sent, self.sent = self.sent, []
        return sent


# The session.


@pytest.mark.parametrize(
    ("asked", "agreed"),
    [
        *((version, version) for version in LEGACY_VERSIONS),
        ("2026-07-28", "2025-11-25"),
        ("2024-10-07", "2025-11-25"),
        ("", "2025-11-25"),
    ],
)
def test_initialize_agrees_on_the_version_asked_for_or_offers_the_newest(asked: str, agreed: str) -> None:
    """Spec 2025-11-25 basic/lifecycle, "Version Negotiation"."""
    response = Scenario(opened=False).request(0, "initialize", {**HELLO, "protocolVersion": asked})
    assert_valid(response["result"], "InitializeResult")
    assert response["id"] == 0
    assert response["result"]["protocolVersion"] == agreed
    assert response["result"]["serverInfo"]["name"] == "mcp-bridge-demo"
    assert response["result"]["capabilities"] == {
        "tools": {"listChanged": True},
        "resources": {"subscribe": True},
        "logging": {},
    }


@pytest.mark.parametrize(
    "wrong", [{"protocolVersion": 1}, {"capabilities": None}, {"clientInfo": "me"}, {"_meta": 1}]
)
def test_an_initialize_that_lacks_what_it_must_say_is_invalid_params(wrong: Message) -> None:
    s = Scenario(opened=False)
    assert s.request(1, "initialize", {**HELLO, **wrong})["error"]["code"] == -32602
    assert s.request(2, "tools/list")["error"]["code"] == -32602


def test_before_the_session_is_open_only_ping_is_answered() -> None:
    """Spec 2025-11-25 basic/lifecycle, "Initialization"."""
    s = Scenario(opened=False)
    assert s.request(1, "ping")["result"] == {}
    for method in sorted(LEGACY.keys() - {"ping"}):
        assert s.request(2, method)["error"]["code"] == -32602
    assert "result" in s.request(3, "initialize", HELLO)
    assert "result" in s.request(4, "tools/list")


def test_a_second_initialize_is_answered_like_the_first() -> None:
    """As servers on the Python and TypeScript SDKs do."""
    s = Scenario()
    first = s.request(1, "initialize", HELLO)
    assert s.request(1, "initialize", HELLO) == first
    assert len(s.call(2, "toggle")) == 2


@pytest.mark.parametrize(
    ("method", "params", "definition"),
    [
        ("ping", None, "EmptyResult"),
        ("tools/list", None, "ListToolsResult"),
        ("tools/list", {}, "ListToolsResult"),
        ("tools/call", {"name": "echo", "arguments": {"text": "hello"}}, "CallToolResult"),
        ("tools/call", {"name": "touch"}, "CallToolResult"),
        ("resources/list", {}, "ListResourcesResult"),
        ("resources/read", CLOCK, "ReadResourceResult"),
        ("resources/subscribe", CLOCK, "EmptyResult"),
        ("resources/unsubscribe", CLOCK, "EmptyResult"),
        ("logging/setLevel", {"level": "warning"}, "EmptyResult"),
    ],
)
@pytest.mark.parametrize("id", [1, "1", 0, "", -7, 9007199254740993])
def test_every_method_answers_in_the_shape_of_the_schema_under_the_id_it_was_given(
    method: str, params: Message | None, definition: str, id: Any
) -> None:
    """Spec 2025-11-25: schema; JSON-RPC 2.0 section 5: the id comes back with its type."""
    response = Scenario().request(id, method, params)
    assert_valid(response, "JSONRPCResultResponse")
    assert_valid(response["result"], definition)
    assert response["id"] == id
    assert type(response["id"]) is type(id)
    modern = {"resultType", "ttlMs", "cacheScope", "_meta"}
    assert not modern & response["result"].keys()


# Calls.


@pytest.mark.parametrize("token", ["t", "7", 7, 0, ""])
def test_slow_reports_progress_under_the_token_of_the_request_and_then_answers(token: str | int) -> None:
    """Spec 2025-11-25 basic/utilities/progress."""
    s = Scenario()
    assert s.call(5, "slow", {"progressToken": token}, steps=2, delay_ms=100, label="mine") == []
    *progress, response = s.after(1)
    assert [m["params"] for m in progress] == [
        {"progressToken": token, "progress": n, "total": 2, "message": "mine"} for n in (1, 2)
    ]
    assert response["id"] == 5
    assert response["result"]["content"] == [{"type": "text", "text": "mine: 2 steps"}]


def test_a_cancelled_call_sends_nothing_more_and_others_go_on() -> None:
    """Spec 2025-11-25 basic/utilities/cancellation."""
    s = Scenario()
    s.call(1, "slow", {"progressToken": 1}, steps=5, delay_ms=100)
    s.call("1", "slow", steps=1, delay_ms=200)
    s.after(0.15)
    assert s.cancel(1) == []
    assert [m["id"] for m in s.after(2)] == ["1"]
    assert s.cancel(1) == s.cancel("unknown") == s.cancel(None) == []


def test_an_id_in_flight_is_refused_for_a_second_request() -> None:
    s = Scenario()
    s.call(1, "slow")
    assert s.request(1, "tools/list")["error"]["code"] == -32600
    assert "result" in s.request("1", "tools/list")


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("tools/call", {"name": "nosuch"}, -32602),
        ("tools/call", {"name": "echo", "arguments": {}}, -32602),
        ("tools/call", {"name": "echo", "_meta": {"progressToken": 1.5}}, -32602),
        ("tools/list", {"cursor": "x"}, -32602),
        ("tools/list", {"_meta": 1}, -32602),
        ("resources/read", {}, -32602),
        ("resources/read", {"uri": "demo://other"}, -32002),
        ("resources/subscribe", {"uri": "demo://other"}, -32002),
        ("resources/unsubscribe", {"uri": "demo://other"}, -32002),
        ("logging/setLevel", {"level": "loud"}, -32602),
        ("logging/setLevel", {}, -32602),
        ("server/discover", {}, -32601),
        ("subscriptions/listen", {"notifications": {}}, -32601),
        ("prompts/list", {}, -32601),
        ("", {}, -32601),
    ],
)
def test_what_cannot_be_done_is_answered_with_its_code(method: str, params: Message, code: int) -> None:
    """Spec 2025-11-25 server/tools and server/resources, "Error Handling"; JSON-RPC 2.0 section 5.1."""
    response = Scenario().request(1, method, params)
    assert_valid(response, "JSONRPCErrorResponse")
    assert response["error"]["code"] == code


def test_params_that_are_no_object_are_invalid_params() -> None:
    wrong: list[Any] = [[], None, 1, "x"]
    for params in wrong:
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}
        assert Scenario().send(message)[0]["error"]["code"] == -32602


# Notifications of the session.


def test_a_changed_list_of_tools_is_told_to_the_session_once_the_client_has_initialized() -> None:
    """Spec 2025-11-25 server/tools, "List Changed Notification"; basic/lifecycle."""
    s = Scenario(opened=False)
    s.send(notification("notifications/initialized"))  # too early: it opens nothing
    s.request(1, "initialize", HELLO)
    assert len(s.call(2, "toggle")) == 1
    s.send(notification("notifications/initialized"))
    changed, response = s.call(3, "toggle")
    assert_valid(changed, "ToolListChangedNotification")
    assert "_meta" not in changed.get("params", {})
    assert response["result"]["content"][0]["text"] == "extra is hidden"


def test_the_list_of_tools_changes_with_toggle() -> None:
    s = Scenario()
    before = {tool["name"] for tool in s.request(1, "tools/list")["result"]["tools"]}
    s.call(2, "toggle")
    after = {tool["name"] for tool in s.request(3, "tools/list")["result"]["tools"]}
    assert after - before == {"extra"}


def test_an_update_is_told_once_however_often_the_client_subscribed_and_not_after_it_unsubscribed() -> None:
    """Spec 2025-11-25 server/resources, "Subscriptions"."""
    s = Scenario()
    assert len(s.call(1, "touch")) == 1
    s.request(2, "resources/subscribe", CLOCK)
    s.request(3, "resources/subscribe", CLOCK)
    updated, touched = s.call(4, "touch")
    assert_valid(updated, "ResourceUpdatedNotification")
    assert updated["params"] == CLOCK
    assert touched["result"]["content"][0]["text"] == "2"
    contents = s.request(5, "resources/read", CLOCK)["result"]["contents"]
    assert contents == [{**CLOCK, "mimeType": "text/plain", "text": "2"}]
    s.request(6, "resources/unsubscribe", CLOCK)
    assert len(s.call(7, "touch")) == 1


def test_the_counter_moves_on_by_itself_only_while_the_client_is_subscribed_to_it() -> None:
    s = Scenario(tick_s=0.2)
    assert s.after(1) == []
    s.request(1, "resources/subscribe", CLOCK)
    assert len(s.after(1.05)) == 5
    s.request(2, "resources/unsubscribe", CLOCK)
    assert s.after(1) == []


@pytest.mark.parametrize(("level", "count"), [(None, 0), ("debug", 1), ("info", 1), ("error", 0)])
def test_log_messages_are_sent_from_the_level_that_was_set(level: str | None, count: int) -> None:
    """Spec 2025-11-25 server/utilities/logging; before a level is set, none: our choice."""
    s = Scenario()
    if level is not None:
        s.request(1, "logging/setLevel", {"level": level})
    messages = s.call(2, "slow", label="mine")
    assert [m["params"]["data"]["label"] for m in messages] == ["mine"] * count


# The choice between the eras: spec 2026-07-28 basic/versioning; as the official Python SDK makes it.


def test_after_a_modern_request_initialize_is_refused_with_the_versions_there_are() -> None:
    s = Scenario(opened=False)
    s.send(modern_request("tools/list", id=1))
    response = s.request(2, "initialize", HELLO)
    schema.assert_valid(response, "UnsupportedProtocolVersionError")
    assert response["error"]["code"] == -32022
    assert response["error"]["data"] == {"supported": ["2026-07-28"], "requested": "2025-11-25"}
    assert s.request(3, "tools/list")["error"]["code"] == -32602
    assert "result" in s.send(modern_request("tools/list", id=4))[0]


@pytest.mark.parametrize("method", ["server/discover", "tools/list", "ping", "no/such"])
def test_after_initialize_a_modern_request_is_an_invalid_request(method: str) -> None:
    s = Scenario()
    assert s.send(modern_request(method, id=1))[0]["error"]["code"] == -32600
    assert "result" in s.request(2, "tools/list")


def test_the_first_request_decides_even_if_it_is_refused_and_a_notification_does_not() -> None:
    s = Scenario(opened=False)
    s.send(notification("notifications/initialized"))
    assert s.send(modern_request("no/such", id=1))[0]["error"]["code"] == -32601
    assert s.request(2, "initialize", HELLO)["error"]["code"] == -32022
    s = Scenario(opened=False)
    assert s.request(1, "tools/list")["error"]["code"] == -32602
    assert s.send(modern_request("server/discover", id=2))[0]["error"]["code"] == -32600


def test_an_initialize_that_names_a_modern_version_in_its_meta_is_a_legacy_one() -> None:
    s = Scenario(opened=False)
    assert "protocolVersion" in s.send(modern_request("initialize", HELLO, id=1))[0]["result"]


def test_a_server_of_the_legacy_era_alone_does_not_know_discover_and_looks_at_no_meta() -> None:
    """As servers on SDKs from before the modern era: refused, and then served in the legacy era."""
    s = Scenario(LEGACY_ONLY, opened=False)
    assert s.send(modern_request("server/discover", id=1))[0]["error"]["code"] == -32601
    assert "result" in s.request(2, "initialize", HELLO)
    (response,) = s.send(modern_request("tools/list", id=3))
    assert "resultType" not in response["result"]


def test_a_server_of_the_modern_era_alone_refuses_initialize_as_the_first_request() -> None:
    s = Scenario(MODERN_ONLY, opened=False)
    assert s.request(1, "initialize", HELLO)["error"]["code"] == -32022
    assert "result" in s.send(modern_request("server/discover", id=2))[0]


@pytest.mark.parametrize(
    ("options", "answers"),
    [
        ([], ["result", -32600]),
        (["--era", "dual"], ["result", -32600]),
        (["--era", "legacy"], ["result", -32601]),
        (["--era", "modern"], [-32022, "result"]),
    ],
)
def test_the_process_speaks_the_eras_it_was_told_to(options: list[str], answers: list[Any]) -> None:
    code = "import sys; from bridge.demo_server import main; sys.exit(main(sys.argv[1:]))"
    lines = [legacy_request("initialize", HELLO, id=1), modern_request("server/discover", id=2)]
    completed = subprocess.run(
        [sys.executable, "-c", code, *options],
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    responses = [json.loads(line) for line in completed.stdout.splitlines()]
    assert [m["error"]["code"] if "error" in m else "result" for m in responses] == answers
