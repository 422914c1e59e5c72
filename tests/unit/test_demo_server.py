"""The demo server in the modern era: a correct server, checked against the protocol's own schema."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from bridge.demo_modern import MODERN
from bridge.demo_server import DUAL, MAX_LINE_BYTES, MODERN_ONLY, DemoServer
from tests.support.client import LOG_LEVEL, MODERN_META, SUBSCRIPTION_ID, modern_request
from tests.support.schema import assert_valid

Message = dict[str, Any]


class Scenario:
    """A demo server with a clock that a test moves; checks every message it sends against the schema."""

    def __init__(self, tick_s: float = 0.0, era: str = DUAL) -> None:
        self.now = 0.0
        self.sent: list[Message] = []
        self.server = DemoServer(self._write, tick_s, lambda: self.now, era=era)

    def _write(self, data: bytes) -> None:
        assert data.endswith(b"\n")
        assert data.count(b"\n") == 1
        message = json.loads(data)
        assert_valid(message, "JSONRPCMessage")
        if "method" in message:
            assert_valid(message, "ServerNotification")
        self.sent.append(message)

    def take(self) -> list[Message]:
        sent, self.sent = self.sent, []
        return sent

    def line(self, line: bytes) -> list[Message]:
        self.server.line(line)
        return self.take()

    def request(
        self, id: Any, method: str, params: Message | None = None, meta: Message | None = None
    ) -> list[Message]:
        return self.line(json.dumps(modern_request(method, params, id=id, meta=meta)).encode())

    def call(self, id: Any, tool: str, meta: Message | None = None, **arguments: Any) -> list[Message]:
        return self.request(id, "tools/call", {"name": tool, "arguments": arguments}, meta)

    def listen(self, id: Any, **wanted: Any) -> list[Message]:
        return self.request(id, "subscriptions/listen", {"notifications": wanted})

    def cancel(self, id: Any) -> list[Message]:
        return self.line(
            json.dumps(
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}
            ).encode()
        )

    def after(self, seconds: float) -> list[Message]:
        """Let time pass, in steps of 10 ms."""
        for _ in range(round(seconds * 100)):
            self.now += 0.01
            self.server.demo.run_due()
        return self.take()


def error_of(messages: list[Message]) -> Message:
    assert len(messages) == 1
    error: Message = messages[0]["error"]
    return error


@pytest.mark.parametrize(
    ("method", "params", "definition"),
    [
        ("server/discover", {}, "DiscoverResultResponse"),
        ("tools/list", {}, "ListToolsResultResponse"),
        ("tools/call", {"name": "echo", "arguments": {"text": "hello"}}, "CallToolResultResponse"),
        ("tools/call", {"name": "touch"}, "CallToolResultResponse"),
        ("resources/list", {}, "ListResourcesResultResponse"),
        ("resources/read", {"uri": "demo://clock"}, "ReadResourceResultResponse"),
    ],
)
@pytest.mark.parametrize("id", [1, "1", 0, "", -7, 9007199254740993])
def test_every_method_answers_in_the_shape_of_the_schema_under_the_id_it_was_given(
    method: str, params: Message, definition: str, id: Any
) -> None:
    """Spec 2026-07-28: schema; JSON-RPC 2.0 section 5: the id comes back with its type."""
    (response,) = Scenario().request(id, method, params)
    assert_valid(response, definition)
    assert response["id"] == id
    assert type(response["id"]) is type(id)
    assert "serverInfo" in str(response["result"]["_meta"])


def test_discover_names_the_version_and_exactly_the_capabilities_there_are() -> None:
    """Spec 2026-07-28 server/discover."""
    (response,) = Scenario().request(1, "server/discover")
    result = response["result"]
    assert result["supportedVersions"] == ["2026-07-28"]
    assert result["capabilities"] == {
        "tools": {"listChanged": True},
        "resources": {"subscribe": True},
        "logging": {},
    }
    assert result["cacheScope"] == "public"
    assert result["ttlMs"] > 0


def test_echo_returns_the_text_it_was_given() -> None:
    (response,) = Scenario().call(1, "echo", text='caf\u00e9 \U0001f600 "\\\n')
    assert response["result"]["content"] == [{"type": "text", "text": 'caf\u00e9 \U0001f600 "\\\n'}]


def test_echo_returns_an_unpaired_surrogate_as_the_escape_it_came_as() -> None:
    s = Scenario()
    line = json.dumps(modern_request("tools/call", {"name": "echo", "arguments": {"text": "\ud83d"}}, id=1))
    (response,) = s.line(line.encode())
    assert response["result"]["content"][0]["text"] == "\ud83d"


@pytest.mark.parametrize("token", ["t", "7", 7, 0, ""])
def test_slow_reports_progress_under_the_token_of_the_request_and_then_answers(token: str | int) -> None:
    """Spec 2026-07-28 basic/patterns/progress."""
    s = Scenario()
    assert s.call(5, "slow", {"progressToken": token}, steps=3, delay_ms=100, label="mine") == []
    first = s.after(0.11)
    assert [m["params"]["progress"] for m in first] == [1]
    *rest, response = s.after(0.3)
    assert [m["params"] for m in first + rest] == [
        {"progressToken": token, "progress": n, "total": 3, "message": "mine"} for n in (1, 2, 3)
    ]
    assert_valid(response, "CallToolResultResponse")
    assert response["id"] == 5
    assert response["result"]["content"][0]["text"] == "mine: 3 steps"
    assert s.after(5) == []


def test_slow_sends_no_progress_without_a_token() -> None:
    s = Scenario()
    s.call(1, "slow", steps=2, delay_ms=10)
    (response,) = s.after(1)
    assert response["id"] == 1


def test_several_slow_calls_run_at_once_and_end_in_their_own_time() -> None:
    s = Scenario()
    s.call("long", "slow", steps=1, delay_ms=900)
    s.call("short", "slow", steps=1, delay_ms=100)
    (echo,) = s.call("between", "echo", text="x")
    assert [echo["id"]] + [m["id"] for m in s.after(1)] == ["between", "short", "long"]


@pytest.mark.parametrize(("level", "count"), [(None, 0), ("debug", 1), ("info", 1), ("error", 0)])
def test_a_log_message_is_sent_only_to_a_request_that_asked_for_its_level(
    level: str | None, count: int
) -> None:
    """Spec 2026-07-28 server/utilities/logging: without a level none may be sent."""
    meta = {} if level is None else {LOG_LEVEL: level}
    messages = Scenario().call(1, "slow", meta, label="mine")
    assert [m["params"]["data"]["label"] for m in messages] == ["mine"] * count


def test_a_cancelled_call_sends_nothing_more() -> None:
    """Spec 2026-07-28 basic/patterns/cancellation."""
    s = Scenario()
    s.call(1, "slow", {"progressToken": 1}, steps=5, delay_ms=100)
    s.call("1", "slow", steps=1, delay_ms=200)
    s.after(0.15)
    assert s.cancel(1) == []
    assert [m["id"] for m in s.after(2)] == ["1"]
    assert s.cancel(1) == s.cancel("unknown") == s.cancel(None) == []


def test_an_id_may_be_used_again_once_its_call_was_cancelled() -> None:
    s = Scenario()
    s.call(1, "slow", steps=3, delay_ms=100, label="old")
    s.cancel(1)
    s.call(1, "slow", steps=1, delay_ms=500, label="new")
    (response,) = s.after(2)
    assert response["result"]["content"][0]["text"] == "new: 1 steps"


def test_an_id_in_flight_is_refused_for_a_second_request() -> None:
    """Spec 2026-07-28 basic: an id must not have been used for a request that is still open."""
    s = Scenario()
    s.listen(1, toolsListChanged=True)
    assert error_of(s.request(1, "tools/list"))["code"] == -32600
    assert "result" in s.request("1", "tools/list")[0]


def test_a_subscription_is_acknowledged_first_with_what_the_server_has() -> None:
    """Spec 2026-07-28 subscriptions: kinds the server lacks are left out of the grant."""
    s = Scenario()
    (ack,) = s.listen(
        "L",
        toolsListChanged=True,
        promptsListChanged=True,
        resourcesListChanged=True,
        resourceSubscriptions=["demo://clock", "demo://other"],
    )
    assert_valid(ack, "SubscriptionsAcknowledgedNotification")
    assert ack["params"] == {
        "_meta": {SUBSCRIPTION_ID: "L"},
        "notifications": {"toolsListChanged": True, "resourceSubscriptions": ["demo://clock"]},
    }


def test_each_subscription_gets_the_kinds_it_was_granted_under_its_own_id() -> None:
    s = Scenario()
    s.listen(1, toolsListChanged=True)
    s.listen("1", resourceSubscriptions=["demo://clock"])
    s.listen(2, toolsListChanged=False)
    *updates, touched = s.call(9, "touch")
    assert [(m["method"], m["params"]["_meta"][SUBSCRIPTION_ID]) for m in updates] == [
        ("notifications/resources/updated", "1")
    ]
    assert touched["id"] == 9
    *changes, _ = s.call(9, "toggle")
    assert [(m["method"], m["params"]["_meta"][SUBSCRIPTION_ID]) for m in changes] == [
        ("notifications/tools/list_changed", 1)
    ]
    assert_valid(changes[0], "ToolListChangedNotification")
    assert_valid(updates[0], "ResourceUpdatedNotification")


def test_a_cancelled_subscription_gets_nothing_more() -> None:
    s = Scenario()
    s.listen(1, resourceSubscriptions=["demo://clock"])
    assert s.cancel(1) == []
    assert len(s.call(2, "touch")) == 1


def test_the_counter_moves_on_by_itself_only_while_somebody_is_subscribed_to_it() -> None:
    s = Scenario(tick_s=0.2)
    s.after(1)
    assert s.server.demo.counter == 0
    s.listen(1, resourceSubscriptions=["demo://clock"])
    s.listen(2, toolsListChanged=True)
    assert len(s.after(1.05)) == s.server.demo.counter == 5
    s.cancel(1)
    s.after(1)
    assert s.server.demo.counter == 5
    s.listen(3, resourceSubscriptions=["demo://clock"])
    s.after(0.45)
    assert s.server.demo.counter == 7


def test_what_is_read_is_the_counter() -> None:
    s = Scenario()
    s.call(1, "touch")
    (response,) = s.request(2, "resources/read", {"uri": "demo://clock"})
    assert response["result"]["contents"] == [{"uri": "demo://clock", "mimeType": "text/plain", "text": "1"}]


def test_the_list_of_tools_changes_with_toggle() -> None:
    s = Scenario()
    before = {tool["name"] for tool in s.request(1, "tools/list")[0]["result"]["tools"]}
    assert error_of(s.call(2, "extra"))["code"] == -32602
    s.call(3, "toggle")
    after = {tool["name"] for tool in s.request(4, "tools/list")[0]["result"]["tools"]}
    assert after - before == {"extra"}
    assert "result" in s.call(5, "extra")[0]


@pytest.mark.parametrize("method", ["ping", "logging/setLevel", "resources/subscribe", "prompts/list", ""])
def test_an_unknown_method_is_method_not_found(method: str) -> None:
    """Spec 2026-07-28 basic, "Error Codes"; the methods of the legacy era are gone."""
    (response,) = Scenario().request(1, method)
    assert_valid(response, "JSONRPCErrorResponse")
    assert response["error"]["code"] == -32601


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {}),
        ("tools/call", {"name": "nosuch"}),
        ("tools/call", {"name": 1}),
        ("tools/call", {"name": "echo", "arguments": []}),
        ("tools/call", {"name": "echo", "arguments": {}}),
        ("tools/call", {"name": "echo", "arguments": {"text": 1}}),
        ("tools/call", {"name": "slow", "arguments": {"steps": 0}}),
        ("tools/call", {"name": "slow", "arguments": {"steps": True}}),
        ("tools/call", {"name": "slow", "arguments": {"delay_ms": 10_001}}),
        ("tools/call", {"name": "slow", "arguments": {"label": 1}}),
        ("tools/list", {"cursor": "x"}),
        ("resources/list", {"cursor": "x"}),
        ("resources/read", {}),
        ("resources/read", {"uri": "demo://other"}),
        ("subscriptions/listen", {}),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": "demo://clock"}}),
    ],
)
def test_wrong_params_are_invalid_params(method: str, params: Message) -> None:
    """Spec 2026-07-28 basic, "Error Codes"; server/tools and server/resources, "Error Handling"."""
    (response,) = Scenario().request(1, method, params)
    assert_valid(response, "JSONRPCErrorResponse")
    assert response["error"]["code"] == -32602


@pytest.mark.parametrize("method", sorted(MODERN))
def test_a_request_without_the_meta_every_request_must_carry_is_invalid_params(method: str) -> None:
    """Spec 2026-07-28 basic/versioning."""
    s = Scenario(era=MODERN_ONLY)
    without_capabilities = {key: value for key, value in MODERN_META.items() if "Capabilities" not in key}
    wrong: list[Any] = [None, [], {}, {"_meta": 1}, {"_meta": {}}, {"_meta": without_capabilities}]
    for params in wrong:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        assert error_of(s.line(json.dumps(message).encode()))["code"] == -32602
    assert error_of(s.line(json.dumps({"id": 1, "method": method}).encode()))["code"] == -32602


@pytest.mark.parametrize("meta", [{"progressToken": 1.5}, {"progressToken": None}, {LOG_LEVEL: "loud"}])
def test_a_wrong_meta_member_is_invalid_params(meta: Message) -> None:
    assert error_of(Scenario().request(1, "tools/list", meta=meta))["code"] == -32602


@pytest.mark.parametrize("version", ["2027-01-01", "2025-11-25", "", 7])
def test_another_version_is_refused_with_the_versions_there_are(version: Any) -> None:
    """Spec 2026-07-28 basic/versioning: UnsupportedProtocolVersion."""
    meta = {"io.modelcontextprotocol/protocolVersion": version}
    (response,) = Scenario().request(1, "server/discover", meta=meta)
    assert_valid(response, "UnsupportedProtocolVersionError")
    assert response["error"]["data"] == {
        "supported": ["2026-07-28"],
        "requested": str(version),
    }


def test_initialize_is_refused_with_the_versions_there_are() -> None:
    """Spec 2026-07-28 basic/versioning: a modern server says so to a legacy client."""
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
    (response,) = Scenario(era=MODERN_ONLY).line(json.dumps(message).encode())
    assert_valid(response, "UnsupportedProtocolVersionError")
    assert response["error"]["data"] == {"supported": ["2026-07-28"], "requested": "2025-11-25"}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"not json", -32700),
        (b'{"jsonrpc":"2.0","id":1,', -32700),
        (b"\xff\xfe\xfd", -32700),
        (b"[" * 100_000, -32700),
        (b"42", -32600),
        (b"[]", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}', -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"tools/list"}', -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}', -32600),
    ],
)
def test_a_line_that_is_no_request_is_answered_and_survived(line: bytes, code: int) -> None:
    """JSON-RPC 2.0 section 5.1; spec 2026-07-28: an error response may lack the id."""
    s = Scenario()
    (response,) = s.line(line)
    assert response["error"]["code"] == code
    assert "id" not in response
    assert "result" in s.request(1, "tools/list")[0]


@pytest.mark.parametrize(
    "line", [b"", b" \t\r", b'{"jsonrpc":"2.0","id":1,"result":{}}', b'{"jsonrpc":"2.0","method":"x/y"}']
)
def test_blank_lines_responses_and_unknown_notifications_are_not_answered(line: bytes) -> None:
    assert Scenario().line(line) == []


def run(data: bytes, *options: str) -> list[Message]:
    """The real process: everything it writes for `data` and the end of input."""
    code = "import sys; from bridge.demo_server import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.run(
        [sys.executable, "-c", code, *options],
        input=data,
        capture_output=True,
        timeout=20,
        check=True,
    )
    assert process.stderr == b""
    return [json.loads(line) for line in process.stdout.splitlines()]


def line_of(id: Any, method: str, params: Message | None = None) -> bytes:
    return json.dumps(modern_request(method, params, id=id)).encode() + b"\n"


def test_the_process_serves_until_the_end_of_its_input_and_ends_with_success() -> None:
    """Spec stdio, "Shutdown"; the last line counts without its newline."""
    messages = run(line_of(1, "server/discover") + b"\n" + line_of(2, "tools/list").rstrip())
    assert [m["id"] for m in messages] == [1, 2]


def test_the_process_skips_a_line_that_is_too_long_and_goes_on() -> None:
    messages = run(b"x" * (MAX_LINE_BYTES + 70_000) + b"\n" + line_of(2, "tools/list"))
    assert [m.get("id") for m in messages] == [None, 2]
    assert messages[0]["error"]["code"] == -32600


def test_a_wrong_option_is_a_usage_error() -> None:
    with pytest.raises(subprocess.CalledProcessError) as raised:
        run(b"", "--tick", "-1")
    assert raised.value.returncode == 2
    assert b"--tick" in raised.value.stderr
