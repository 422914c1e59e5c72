"""A stdio server with every tool, prompt and resource that the conformance suite asks a server for.

`python -S -E everything_server.py FOLDER`, run by `python3 -m tests.conformance`. It is of both eras and
imports next to nothing: the suite's HTTP front starts a process for each modern request, and the suite waits
half a second for some of them. For the same reason an answer depends on its request alone, and what changes
is told to every process of the same FOLDER.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

Object = dict[str, Any]

MODERN = "2026-07-28"
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
META = "io.modelcontextprotocol/"
VERSION = META + "protocolVersion"
ABILITIES = META + "clientCapabilities"
SUBSCRIPTION_ID = META + "subscriptionId"
INFO = {"name": "conformance-fixture", "version": "1"}
CAPABILITIES: Object = {
    "completions": {},
    "logging": {},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True},
    "tools": {"listChanged": True},
}

# A red and a blue pixel side by side, and a quarter of a millisecond of silence.
IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAABCAIAAAB7QOjdAAAADUlEQVR42mP4zwAE/wEHAAH/PX2MSQAAAABJRU5ErkJggg=="
AUDIO = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQIAAACAgA=="
# Not a secret: a request state of one process must hold in the next one.
STATE_KEY = b"conformance fixture"
# Between the parts of a tool that tells how it gets on: enough for a client to see them apart.
STEP = 0.05
# Longer than any client of the suite takes to answer.
ANSWER_TIMEOUT = 60.0

INVALID_PARAMS = -32602
METHOD_NOT_FOUND = -32601


class Refused(Exception):
    """The error that a request is answered with."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error: Object = {"code": code, "message": message}
        if data is not None:
            self.error["data"] = data


class Server:
    """The two ends of stdio, what the client has asked for, and what it is asked."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._writing = threading.Lock()
        self._asked: dict[int, queue.SimpleQueue[Object]] = {}
        self._listening = threading.Lock()
        self._listens: dict[str, tuple[Any, Object]] = {}
        self._ear: socket.socket | None = None

    def write(self, message: Object) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        with self._writing:
            os.write(1, line)

    def notify(self, method: str, params: Object) -> None:
        self.write({"method": method, "params": params})

    def ask(self, method: str, params: Object) -> Object:
        """Ask the client something; its result. Raises Refused."""
        answers: queue.SimpleQueue[Object] = queue.SimpleQueue()
        id = len(self._asked) + 1
        self._asked[id] = answers
        self.write({"id": id, "method": method, "params": params})
        answer = answers.get(timeout=ANSWER_TIMEOUT)
        if "error" in answer:
            raise Refused(answer["error"]["code"], answer["error"]["message"])
        result: Object = answer["result"]
        return result

    def serve(self) -> None:
        """Answer until stdin ends, each request in a thread of its own."""
        for line in sys.stdin.buffer:
            message = json.loads(line)
            method, id = message.get("method"), message.get("id")
            if method is None:
                self._asked[id].put(message)
            elif id is not None:
                threading.Thread(target=self._answer, args=(message,), daemon=True).start()
            elif method == "notifications/cancelled":
                self._listens.pop(json.dumps(message["params"]["requestId"]), None)

    def _answer(self, message: Object) -> None:
        request = Request(self, message)
        try:
            result = request.result()
        except Refused as refused:
            self.write({"id": request.id, "error": refused.error})
        except Exception as fault:
            self.write({"id": request.id, "error": {"code": -32603, "message": repr(fault)}})
            raise
        else:
            if result is not None:
                self.write({"id": request.id, "result": result})

    # Changes, told through datagram sockets: one for each process that somebody listens to

    def listen(self, id: Any, wanted: Object) -> None:
        with self._listening:
            if self._ear is None:
                self._ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._ear.bind(os.path.join(self._folder, str(os.getpid())))
                threading.Thread(target=self._hear, args=(self._ear,), daemon=True).start()
            granted = {"_meta": {SUBSCRIPTION_ID: id}, "notifications": wanted}
            self.notify("notifications/subscriptions/acknowledged", granted)
            self._listens[json.dumps(id)] = id, wanted

    def _hear(self, ear: socket.socket) -> None:
        while True:
            what = ear.recv(64).decode()
            with self._listening:
                listens = list(self._listens.values())
            for id, wanted in listens:
                if wanted.get(f"{what}ListChanged"):
                    self.notify(f"notifications/{what}/list_changed", {"_meta": {SUBSCRIPTION_ID: id}})

    def changed(self, what: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mouth:
            for name in os.listdir(self._folder):
                with contextlib.suppress(OSError):  # that process has ended
                    mouth.sendto(what.encode(), os.path.join(self._folder, name))


class Request:
    """One request of the client, and what its tools may know of it."""

    def __init__(self, server: Server, message: Object) -> None:
        self.server = server
        self.id = message["id"]
        self.method: str = message["method"]
        params = message.get("params")
        self.params: Object = params if isinstance(params, dict) else {}
        self.arguments: Object = self.params.get("arguments") or {}
        meta = self.params.get("_meta")
        self.meta: Object = meta if isinstance(meta, dict) else {}
        # As official SDKs' servers of both eras: each has one method that is its own, whatever `_meta` says.
        discovers, opens = self.method == "server/discover", self.method == "initialize"
        self.modern = discovers or (VERSION in self.meta and not opens)
        self.able: Object = self.meta.get(ABILITIES) or {}
        self.given: Object = self.params.get("inputResponses") or {}
        """What the client answers to what it was asked for with an earlier response."""

    def result(self) -> Object | None:
        """What the request is answered with; None: nothing yet. Raises Refused."""
        if not self.modern:
            handler = LEGACY_METHODS.get(self.method) or METHODS.get(self.method)
            if handler is None:
                raise Refused(METHOD_NOT_FOUND, "Method not found", self.method)
            return handler(self)
        for key in (VERSION, ABILITIES):
            if key not in self.meta:
                raise Refused(INVALID_PARAMS, f"params._meta is missing {key}")
        if self.meta[VERSION] != MODERN:
            data = {"supported": [MODERN], "requested": self.meta[VERSION]}
            raise Refused(-32022, "Unsupported protocol version", data)
        handler = MODERN_METHODS.get(self.method) or METHODS.get(self.method)
        if handler is None:
            raise Refused(METHOD_NOT_FOUND, "Method not found", self.method)
        result = handler(self)
        if result is None:
            return None
        hints: Object = {}
        if self.method == "server/discover":
            hints = {"ttlMs": 0, "cacheScope": "private"}
        elif self.method.endswith("/list") or self.method in ("resources/templates/list", "resources/read"):
            hints = {"ttlMs": 60_000, "cacheScope": "public"}
        return {"resultType": "complete", **hints, **result, "_meta": {META + "serverInfo": INFO}}

    def need(self, name: str) -> str:
        """A member of the params that must be there."""
        value = self.params.get(name)
        if not isinstance(value, str):
            raise Refused(INVALID_PARAMS, f"`{name}` is missing")
        return value

    def log(self, text: str) -> None:
        if not self.modern or META + "logLevel" in self.meta:
            self.server.notify("notifications/message", {"level": "info", "data": text})

    def report(self, done: int, total: int) -> None:
        if "progressToken" in self.meta:
            params = {"progressToken": self.meta["progressToken"], "progress": done, "total": total}
            self.server.notify("notifications/progress", params)

    def ask(self, method: str, params: Object) -> Object:
        """Ask the client something, as until 2025-11-25; its result. Raises Refused."""
        if self.modern:
            raise Refused(-32600, f"The server may not send {method}")
        return self.server.ask(method, params)

    def ask_user(self, message: str, properties: Object, required: list[str]) -> Object:
        """Ask the user for `properties`, a JSON Schema for each, and say what came."""
        schema = {"type": "object", "properties": properties, "required": required}
        params = {"mode": "form", "message": message, "requestedSchema": schema}
        answer = self.ask("elicitation/create", params)
        content = json.dumps(answer.get("content") or {})
        return said(f"Elicitation completed: action={answer['action']}, content={content}")

    def round_trip(self, requests: dict[str, Object], state: str | None = None) -> Object:
        """One round: ask for what is missing; with `state` the answers must bring it back."""
        given = self.given
        plain = opened(self.params.get("requestState"))
        if requests.keys() <= given.keys() and plain == (state or ""):
            for name, request in requests.items():
                member = ANSWERED_BY[request["method"]]
                if not isinstance(given[name], dict) or member not in given[name]:
                    raise Refused(INVALID_PARAMS, f"The answer to `{name}` is none")
            return said("state-ok " + json.dumps({name: given[name] for name in requests}))
        asks: Object = {"resultType": "input_required", "inputRequests": requests}
        return asks if state is None else {**asks, "requestState": sealed(state)}


# What an answer to a request of the server must hold, by its method.
ANSWERED_BY = {"elicitation/create": "action", "sampling/createMessage": "content", "roots/list": "roots"}

Handler = Callable[[Request], Object | None]
Tool = Callable[[Request], Object]
NO_ARGUMENTS: Object = {"type": "object", "properties": {}}
TOOLS: dict[str, tuple[Object, Tool]] = {}


def tool(description: str, schema: Object | None = None, *more: str) -> Callable[[Tool], Tool]:
    """Register a function as the tool of its own name, and of more names."""

    def register(handler: Tool) -> Tool:
        for name in (handler.__name__, *more):
            listed = {"name": name, "description": description, "inputSchema": schema or NO_ARGUMENTS}
            TOOLS[name] = listed, handler
        return handler

    return register


def one_string(name: str) -> Object:
    return {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}


def text(value: str) -> Object:
    return {"type": "text", "text": value}


def image() -> Object:
    return {"type": "image", "data": IMAGE, "mimeType": "image/png"}


def embedded(uri: str, mime_type: str, value: str) -> Object:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": value}}


def said(value: str) -> Object:
    return {"content": [text(value)]}


# Contents


@tool("One text")
def test_simple_text(request: Request) -> Object:
    return said("This is a simple text response for testing.")


@tool("One image")
def test_image_content(request: Request) -> Object:
    return {"content": [image()]}


@tool("One sound")
def test_audio_content(request: Request) -> Object:
    return {"content": [{"type": "audio", "data": AUDIO, "mimeType": "audio/wav"}]}


@tool("One embedded resource")
def test_embedded_resource(request: Request) -> Object:
    value = "This is an embedded resource content."
    return {"content": [embedded("test://embedded-resource", "text/plain", value)]}


@tool("A text, an image and an embedded resource")
def test_multiple_content_types(request: Request) -> Object:
    value = json.dumps({"test": "data", "value": 123})
    resource = embedded("test://mixed-content-resource", "application/json", value)
    return {"content": [text("Multiple content types test:"), image(), resource]}


@tool("A tool that fails")
def test_error_handling(request: Request) -> Object:
    return {**said("This tool intentionally returns an error for testing"), "isError": True}


@tool(
    "A tool whose schema uses what JSON Schema 2020-12 brought",
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
)
def json_schema_2020_12_tool(request: Request) -> Object:
    return said("ok")


# Notifications


@tool("Three log messages", None, "test_logging_tool")
def test_tool_with_logging(request: Request) -> Object:
    for number, what in enumerate(("started", "processing data", "completed")):
        if number:
            time.sleep(STEP)
        request.log(f"Tool execution {what}")
    return said("Tool with logging executed successfully")


@tool("Three steps of progress")
def test_tool_with_progress(request: Request) -> Object:
    for done in (0, 50, 100):
        if done:
            time.sleep(STEP)
        request.report(done, 100)
    return said("done")


@tool("Say that the list of tools has changed")
def test_trigger_tool_change(request: Request) -> Object:
    request.server.changed("tools")
    return said("told")


@tool("Say that the list of prompts has changed")
def test_trigger_prompt_change(request: Request) -> Object:
    request.server.changed("prompts")
    return said("told")


# Requests to the client, as until 2025-11-25


@tool("Ask the client's model", one_string("prompt"))
def test_sampling(request: Request) -> Object:
    prompt = {"role": "user", "content": text(str(request.arguments.get("prompt", "")))}
    answer = request.ask("sampling/createMessage", {"messages": [prompt], "maxTokens": 100})
    return said(f"LLM response: {answer['content'].get('text', 'no text')}")


@tool("Ask the user", one_string("message"))
def test_elicitation(request: Request) -> Object:
    names = ["username", "email"]
    message = str(request.arguments.get("message", ""))
    return request.ask_user(message, {name: {"type": "string"} for name in names}, names)


@tool("Ask the user, with a default for each primitive type")
def test_elicitation_sep1034_defaults(request: Request) -> Object:
    properties = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    return request.ask_user("Please check your data", properties, [])


def titled(*names: str) -> list[Object]:
    return [{"const": name, "title": name.title()} for name in names]


@tool("Ask the user, with each kind of enumeration")
def test_elicitation_sep1330_enums(request: Request) -> Object:
    names = ["one", "two", "three"]
    properties: Object = {
        "untitledSingle": {"type": "string", "enum": names},
        "titledSingle": {"type": "string", "oneOf": titled(*names)},
        "legacyEnum": {"type": "string", "enum": names, "enumNames": ["One", "Two", "Three"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": names}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled(*names)}},
    }
    return request.ask_user("Please choose", properties, [])


# Multi-round-trip requests, as since 2026-07-28

ROOTS: Object = {"method": "roots/list"}


def elicitation(message: str, name: str, kind: str = "string") -> Object:
    schema = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    params = {"mode": "form", "message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def sampling(prompt: str) -> Object:
    params = {"messages": [{"role": "user", "content": text(prompt)}], "maxTokens": 100}
    return {"method": "sampling/createMessage", "params": params}


def signature(plain: str) -> str:
    return hmac.new(STATE_KEY, plain.encode(), hashlib.sha256).hexdigest()


def sealed(plain: str) -> str:
    return f"{plain}.{signature(plain)}"


def opened(state: str | None) -> str:
    """What was sealed, "" for none; raises Refused if somebody has changed it."""
    if state is None:
        return ""
    plain, _, mark = state.rpartition(".")
    if not hmac.compare_digest(mark.encode(), signature(plain).encode()):
        raise Refused(INVALID_PARAMS, "The request state is not one of this server")
    return plain


@tool("Needs the user's name")
def test_input_required_result_elicitation(request: Request) -> Object:
    return request.round_trip({"user_name": elicitation("What is your name?", "name")})


@tool("Needs a word of the client's model")
def test_input_required_result_sampling(request: Request) -> Object:
    return request.round_trip({"capital_question": sampling("What is the capital of France?")})


@tool("Needs the client's roots")
def test_input_required_result_list_roots(request: Request) -> Object:
    return request.round_trip({"client_roots": ROOTS})


@tool("Needs a confirmation and its own state", None, "test_input_required_result_tampered_state")
def test_input_required_result_request_state(request: Request) -> Object:
    return request.round_trip({"confirm": elicitation("Go on?", "ok", "boolean")}, "asked")


@tool("Needs three different inputs")
def test_input_required_result_multiple_inputs(request: Request) -> Object:
    name, greeting = elicitation("What is your name?", "name"), sampling("Write a greeting")
    return request.round_trip({"user_name": name, "greeting": greeting, "client_roots": ROOTS}, "asked")


@tool("Needs two inputs, one after the other")
def test_input_required_result_multi_round(request: Request) -> Object:
    state = request.params.get("requestState")
    answered = state is not None and "step1" in request.given
    if opened(state) in ("", "first") and not answered:
        return request.round_trip({"step1": elicitation("Step 1: your name?", "name")}, "first")
    return request.round_trip({"step2": elicitation("Step 2: your colour?", "color")}, "second")


@tool("Needs only what the client can give")
def test_input_required_result_capabilities(request: Request) -> Object:
    asks = {
        "elicitation": ("user_name", elicitation("What is your name?", "name")),
        "sampling": ("greeting", sampling("Write a greeting")),
        "roots": ("client_roots", ROOTS),
    }
    requests = dict(ask for capability, ask in asks.items() if capability in request.able)
    return request.round_trip(requests) if requests else said("nothing to ask")


@tool("Needs a confirmation, if the client can ask for it")
def test_streaming_elicitation(request: Request) -> Object:
    return request.round_trip({"confirm": elicitation("Go on?", "ok", "boolean")})


@tool("Needs the client to have a model")
def test_missing_capability(request: Request) -> Object:
    if "sampling" not in request.able:
        # MissingRequiredClientCapabilityError of 2026-07-28.
        raise Refused(-32021, "sampling is required", {"requiredCapabilities": {"sampling": {}}})
    return said("ok")


def list_tools(request: Request) -> Object:
    return {"tools": [listed for listed, _ in TOOLS.values()]}


def call_tool(request: Request) -> Object:
    name = request.need("name")
    if name not in TOOLS:
        raise Refused(INVALID_PARAMS, f"Unknown tool: {name}")
    return TOOLS[name][1](request)


# Resources

STATIC_TEXT = "test://static-text"
STATIC_BINARY = "test://static-binary"
WATCHED = "test://watched-resource"
TEMPLATE = ("test://template/", "/data")


def list_resources(request: Request) -> Object:
    known = ((STATIC_TEXT, "text/plain"), (STATIC_BINARY, "image/png"), (WATCHED, "text/plain"))
    named = ((uri, uri.partition("://")[2], kind) for uri, kind in known)
    return {
        "resources": [
            {"uri": uri, "name": name, "description": "A resource", "mimeType": kind}
            for uri, name, kind in named
        ]
    }


def list_templates(request: Request) -> Object:
    template = {"uriTemplate": "{id}".join(TEMPLATE), "name": "template", "mimeType": "application/json"}
    return {"resourceTemplates": [{**template, "description": "A resource for each id"}]}


def read_resource(request: Request) -> Object:
    uri = request.need("uri")
    if uri == STATIC_BINARY:
        contents = {"mimeType": "image/png", "blob": IMAGE}
    elif uri in (STATIC_TEXT, WATCHED):
        contents = {"mimeType": "text/plain", "text": f"This is the content of {uri}."}
    elif uri.startswith(TEMPLATE[0]) and uri.endswith(TEMPLATE[1]):
        which = uri.removeprefix(TEMPLATE[0]).removesuffix(TEMPLATE[1])
        value = {"id": which, "templateTest": True, "data": f"Data for ID: {which}"}
        contents = {"mimeType": "application/json", "text": json.dumps(value)}
    else:
        raise Refused(INVALID_PARAMS, "Resource not found", {"uri": uri})
    return {"contents": [{"uri": uri, **contents}]}


# Prompts and completion


def argument(name: str) -> Object:
    return {"name": name, "description": f"What {name} is", "required": True}


PROMPTS: list[Object] = [
    {"name": "test_simple_prompt", "description": "One text"},
    {
        "name": "test_prompt_with_arguments",
        "description": "One text of two arguments",
        "arguments": [argument("arg1"), argument("arg2")],
    },
    {
        "name": "test_prompt_with_embedded_resource",
        "description": "An embedded resource and a text",
        "arguments": [argument("resourceUri")],
    },
    {"name": "test_prompt_with_image", "description": "An image and a text"},
    {"name": "test_input_required_result_prompt", "description": "Needs a word of the user"},
]


def list_prompts(request: Request) -> Object:
    return {"prompts": PROMPTS}


def get_prompt(request: Request) -> Object:
    name, given = request.need("name"), request.arguments
    match name:
        case "test_simple_prompt":
            contents = [text("This is a simple prompt for testing.")]
        case "test_prompt_with_arguments":
            values = f"arg1='{given.get('arg1')}', arg2='{given.get('arg2')}'"
            contents = [text(f"Prompt with arguments: {values}")]
        case "test_prompt_with_embedded_resource":
            value = "Embedded resource content for testing."
            resource = embedded(given.get("resourceUri", ""), "text/plain", value)
            contents = [resource, text("Please process the embedded resource above.")]
        case "test_prompt_with_image":
            contents = [image(), text("Please analyze the image above.")]
        case "test_input_required_result_prompt":
            if "user_context" not in request.given:
                asked = {"user_context": elicitation("Context?", "context")}
                return {"resultType": "input_required", "inputRequests": asked}
            contents = [text("A prompt with what the user gave.")]
        case _:
            raise Refused(INVALID_PARAMS, f"Unknown prompt: {name}")
    return {"messages": [{"role": "user", "content": content} for content in contents]}


def complete(request: Request) -> Object:
    known = ["paris", "park", "party"]
    found = [word for word in known if word.startswith(request.params["argument"]["value"])]
    return {"completion": {"values": found, "total": len(found), "hasMore": False}}


# Sessions and subscriptions


def initialize(request: Request) -> Object:
    asked = request.params.get("protocolVersion")
    version = asked if asked in LEGACY else LEGACY[0]
    return {"protocolVersion": version, "capabilities": CAPABILITIES, "serverInfo": INFO}


def nothing(request: Request) -> Object:
    return {}


def discover(request: Request) -> Object:
    return {"supportedVersions": [MODERN], "capabilities": CAPABILITIES}


def listen(request: Request) -> None:
    request.server.listen(request.id, request.params.get("notifications") or {})


METHODS: dict[str, Handler] = {
    "tools/list": list_tools,
    "tools/call": call_tool,
    "resources/list": list_resources,
    "resources/templates/list": list_templates,
    "resources/read": read_resource,
    "prompts/list": list_prompts,
    "prompts/get": get_prompt,
    "completion/complete": complete,
}
LEGACY_METHODS: dict[str, Handler] = {
    "initialize": initialize,
    "ping": nothing,
    "logging/setLevel": nothing,
    "resources/subscribe": nothing,
    "resources/unsubscribe": nothing,
}
MODERN_METHODS: dict[str, Handler] = {"server/discover": discover, "subscriptions/listen": listen}

if __name__ == "__main__":
    Server(sys.argv[1]).serve()
