"""A stdio server with every tool, prompt and resource that the conformance suite asks a server for.

Run as a process by `python3 -m tests.conformance`. It is of both eras, by the official Python SDK 2.x, and
written to it at its lowest level: the suite looks at exact results, so nothing here is generated.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError

Context = ServerRequestContext[Any, Any]
ToolResult = types.CallToolResult | types.InputRequiredResult
ToolHandler = Callable[[Context, types.CallToolRequestParams], Awaitable[ToolResult]]

# A red and a blue pixel side by side, and a quarter of a millisecond of silence.
IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAABCAIAAAB7QOjdAAAADUlEQVR42mP4zwAE/wEHAAH/PX2MSQAAAABJRU5ErkJggg=="
AUDIO = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQIAAACAgA=="
# Not a secret: a request state of one child must hold in the next one, as a front may start many.
STATE_KEY = b"conformance fixture"
# Between the parts of a tool that tells how it gets on: enough for a client to see them apart.
STEP = 0.05
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}

bus = InMemorySubscriptionBus()
TOOLS: dict[str, tuple[types.Tool, ToolHandler]] = {}


def tool(description: str, schema: dict[str, Any] | None = None) -> Callable[[ToolHandler], ToolHandler]:
    """Register a function as the tool of its own name; a trailing underscore is no part of the name."""

    def register(handler: ToolHandler) -> ToolHandler:
        name = handler.__name__.rstrip("_")
        listed = types.Tool(name=name, description=description, input_schema=schema or NO_ARGUMENTS)
        TOOLS[name] = (listed, handler)
        return handler

    return register


def one_string(name: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}


def text(value: str) -> types.TextContent:
    return types.TextContent(type="text", text=value)


def image() -> types.ImageContent:
    return types.ImageContent(type="image", data=IMAGE, mime_type="image/png")


def embedded(uri: str, mime_type: str, value: str) -> types.EmbeddedResource:
    contents = types.TextResourceContents(uri=uri, mime_type=mime_type, text=value)
    return types.EmbeddedResource(type="resource", resource=contents)


def said(value: str) -> types.CallToolResult:
    return types.CallToolResult(content=[text(value)])


# Contents


@tool("One text")
async def test_simple_text(context: Context, params: types.CallToolRequestParams) -> ToolResult:
    return said("This is a simple text response for testing.")


@tool("One image")
async def test_image_content(context: Context, params: types.CallToolRequestParams) -> ToolResult:
    return types.CallToolResult(content=[image()])


@tool("One sound")
async def test_audio_content(context: Context, params: types.CallToolRequestParams) -> ToolResult:
    return types.CallToolResult(content=[types.AudioContent(type="audio", data=AUDIO, mime_type="audio/wav")])


@tool("One embedded resource")
async def test_embedded_resource(context: Context, params: types.CallToolRequestParams) -> ToolResult:
    content = embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    return types.CallToolResult(content=[content])


@tool("A text, an image and an embedded resource")
async def test_multiple_content_types(context: Context, params: types.CallToolRequestParams) -> ToolResult:
    resource = embedded(
        "test://mixed-content-resource", "application/json", json.dumps({"test": "data", "value": 123})
    )
    return types.CallToolResult(content=[text("Multiple content types test:"), image(), resource])


@tool("A tool that fails")
async def test_error_handling(context: Context, params: types.CallToolRequestParams) -> ToolResult:
    content = text("This tool intentionally returns an error for testing")
    return types.CallToolResult(content=[content], is_error=True)


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
async def json_schema_2020_12_tool(context: Context, params: types.CallToolRequestParams) -> ToolResult:
    return said("ok")


# Notifications


@tool("Three log messages")
async def test_tool_with_logging(context: Context, params: types.CallToolRequestParams) -> ToolResult:
    for number, what in enumerate(("started", "processing data", "completed")):
        if number:
            await asyncio.sleep(STEP)
        await context.session.send_log_message(
            "info", f"Tool execution {what}", related_request_id=context.request_id
        )
    return said("Tool with logging executed successfully")


TOOLS["test_logging_tool"] = (
    types.Tool(name="test_logging_tool", description="Three log messages", input_schema=NO_ARGUMENTS),
    test_tool_with_logging,
)


@tool("Three steps of progress")
async def test_tool_with_progress(context: Context, params: types.CallToolRequestParams) -> ToolResult:
    for done in (0, 50, 100):
        if done:
            await asyncio.sleep(STEP)
        await context.session.report_progress(done, 100, f"Completed step {done} of 100")
    return said("done")


@tool("Say that the list of tools has changed")
async def test_trigger_tool_change(context: Context, params: types.CallToolRequestParams) -> ToolResult:
    await bus.publish(ToolsListChanged())
    return said("told")


@tool("Say that the list of prompts has changed")
async def test_trigger_prompt_change(context: Context, params: types.CallToolRequestParams) -> ToolResult:
    await bus.publish(PromptsListChanged())
    return said("told")


# Requests to the client, as until 2025-11-25


@tool("Ask the client's model", one_string("prompt"))
async def test_sampling(context: Context, params: types.CallToolRequestParams) -> ToolResult:
    prompt = str((params.arguments or {}).get("prompt", ""))
    answer = await context.session.create_message(
        messages=[types.SamplingMessage(role="user", content=text(prompt))],
        max_tokens=100,
        related_request_id=context.request_id,
    )
    given = answer.content.text if isinstance(answer.content, types.TextContent) else "no text"
    return said(f"LLM response: {given}")


async def ask(context: Context, message: str, properties: dict[str, Any], required: list[str]) -> ToolResult:
    """Ask the user for `properties`, a JSON Schema for each, and say what came."""
    schema = {"type": "object", "properties": properties, "required": required}
    answer = await context.session.elicit_form(message, schema, context.request_id)
    content = json.dumps(answer.content or {})
    return said(f"Elicitation completed: action={answer.action}, content={content}")


@tool("Ask the user", one_string("message"))
async def test_elicitation(context: Context, params: types.CallToolRequestParams) -> ToolResult:
    message = str((params.arguments or {}).get("message", ""))
    names = ["username", "email"]
    return await ask(context, message, {name: {"type": "string"} for name in names}, names)


@tool("Ask the user, with a default for each primitive type")
async def test_elicitation_sep1034_defaults(
    context: Context, params: types.CallToolRequestParams
) -> ToolResult:
    properties = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    return await ask(context, "Please check your data", properties, [])


def titled(*names: str) -> list[dict[str, Any]]:
    return [{"const": name, "title": name.title()} for name in names]


@tool("Ask the user, with each kind of enumeration")
async def test_elicitation_sep1330_enums(context: Context, params: types.CallToolRequestParams) -> ToolResult:
    names = ["one", "two", "three"]
    properties: dict[str, Any] = {
        "untitledSingle": {"type": "string", "enum": names},
        "titledSingle": {"type": "string", "oneOf": titled(*names)},
        "legacyEnum": {"type": "string", "enum": names, "enumNames": ["One", "Two", "Three"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": names}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled(*names)}},
    }
    return await ask(context, "Please choose", properties, [])


# Multi-round-trip requests, as since 2026-07-28


def elicitation(message: str, name: str, kind: str = "string") -> types.ElicitRequest:
    schema = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def sampling(prompt: str) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=text(prompt))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[message], max_tokens=100)
    )


def signature(plain: str) -> str:
    return hmac.new(STATE_KEY, plain.encode(), hashlib.sha256).hexdigest()


def sealed(plain: str) -> str:
    return f"{plain}.{signature(plain)}"


def opened(state: str | None) -> str:
    """What was sealed, "" for none; MCPError if somebody has changed it."""
    if state is None:
        return ""
    plain, _, mark = state.rpartition(".")
    if not hmac.compare_digest(mark.encode(), signature(plain).encode()):
        raise MCPError(types.INVALID_PARAMS, "The request state is not one of this server")
    return plain


def round_trip(
    params: types.CallToolRequestParams, requests: dict[str, types.InputRequest], state: str | None = None
) -> ToolResult:
    """One round: ask for `requests`, if an answer is missing; with `state` the answers must bring it back."""
    given = params.input_responses or {}
    plain = opened(params.request_state)
    if requests.keys() <= given.keys() and plain == (state or ""):
        answers = {name: given[name].model_dump(mode="json", exclude_none=True) for name in requests}
        return said("state-ok " + json.dumps(answers))
    return types.InputRequiredResult(
        input_requests=requests, request_state=None if state is None else sealed(state)
    )


@tool("Needs the user's name")
async def test_input_required_result_elicitation(
    context: Context, params: types.CallToolRequestParams
) -> ToolResult:
    return round_trip(params, {"user_name": elicitation("What is your name?", "name")})


@tool("Needs a word of the client's model")
async def test_input_required_result_sampling(
    context: Context, params: types.CallToolRequestParams
) -> ToolResult:
    return round_trip(params, {"capital_question": sampling("What is the capital of France?")})


@tool("Needs the client's roots")
async def test_input_required_result_list_roots(
    context: Context, params: types.CallToolRequestParams
) -> ToolResult:
    return round_trip(params, {"client_roots": types.ListRootsRequest()})


@tool("Needs a confirmation and its own state")
async def test_input_required_result_request_state(
    context: Context, params: types.CallToolRequestParams
) -> ToolResult:
    return round_trip(params, {"confirm": elicitation("Go on?", "ok", "boolean")}, "asked")


@tool("Needs a confirmation and its own state, unchanged")
async def test_input_required_result_tampered_state(
    context: Context, params: types.CallToolRequestParams
) -> ToolResult:
    return round_trip(params, {"confirm": elicitation("Go on?", "ok", "boolean")}, "asked")


@tool("Needs three different inputs")
async def test_input_required_result_multiple_inputs(
    context: Context, params: types.CallToolRequestParams
) -> ToolResult:
    requests: dict[str, types.InputRequest] = {
        "user_name": elicitation("What is your name?", "name"),
        "greeting": sampling("Write a greeting"),
        "client_roots": types.ListRootsRequest(),
    }
    return round_trip(params, requests, "asked")


@tool("Needs two inputs, one after the other")
async def test_input_required_result_multi_round(
    context: Context, params: types.CallToolRequestParams
) -> ToolResult:
    if opened(params.request_state) in ("", "first") and not (
        params.request_state is not None and "step1" in (params.input_responses or {})
    ):
        return round_trip(params, {"step1": elicitation("Step 1: your name?", "name")}, "first")
    return round_trip(params, {"step2": elicitation("Step 2: your colour?", "color")}, "second")


@tool("Needs only what the client can give")
async def test_input_required_result_capabilities(
    context: Context, params: types.CallToolRequestParams
) -> ToolResult:
    able = context.session.client_capabilities or types.ClientCapabilities()
    requests: dict[str, types.InputRequest] = {}
    if able.elicitation is not None:
        requests["user_name"] = elicitation("What is your name?", "name")
    if able.sampling is not None:
        requests["greeting"] = sampling("Write a greeting")
    if able.roots is not None:
        requests["client_roots"] = types.ListRootsRequest()
    return round_trip(params, requests) if requests else said("nothing to ask")


@tool("Needs a confirmation, if the client can ask for it")
async def test_streaming_elicitation(context: Context, params: types.CallToolRequestParams) -> ToolResult:
    return round_trip(params, {"confirm": elicitation("Go on?", "ok", "boolean")})


@tool("Needs the client to have a model")
async def test_missing_capability(context: Context, params: types.CallToolRequestParams) -> ToolResult:
    able = context.session.client_capabilities
    if able is None or able.sampling is None:
        # MissingRequiredClientCapabilityError of 2026-07-28.
        raise MCPError(-32021, "sampling is required", {"requiredCapabilities": {"sampling": {}}})
    return said("ok")


async def list_tools(context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[listed for listed, _ in TOOLS.values()])


async def call_tool(context: Context, params: types.CallToolRequestParams) -> ToolResult:
    if params.name not in TOOLS:
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
    return await TOOLS[params.name][1](context, params)


# Resources

STATIC_TEXT = "test://static-text"
STATIC_BINARY = "test://static-binary"
WATCHED = "test://watched-resource"
TEMPLATE = ("test://template/", "/data")


async def list_resources(
    context: Context, params: types.PaginatedRequestParams | None
) -> types.ListResourcesResult:
    known = ((STATIC_TEXT, "text/plain"), (STATIC_BINARY, "image/png"), (WATCHED, "text/plain"))
    return types.ListResourcesResult(
        resources=[
            types.Resource(uri=uri, name=uri.partition("://")[2], description="A resource", mime_type=kind)
            for uri, kind in known
        ]
    )


async def list_templates(
    context: Context, params: types.PaginatedRequestParams | None
) -> types.ListResourceTemplatesResult:
    template = types.ResourceTemplate(
        uri_template="{id}".join(TEMPLATE),
        name="template",
        description="A resource for each id",
        mime_type="application/json",
    )
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(
    context: Context, params: types.ReadResourceRequestParams
) -> types.ReadResourceResult | types.InputRequiredResult:
    uri = str(params.uri)
    contents: types.TextResourceContents | types.BlobResourceContents
    if uri == STATIC_BINARY:
        contents = types.BlobResourceContents(uri=uri, mime_type="image/png", blob=IMAGE)
    elif uri in (STATIC_TEXT, WATCHED):
        value = f"This is the content of {uri}."
        contents = types.TextResourceContents(uri=uri, mime_type="text/plain", text=value)
    elif uri.startswith(TEMPLATE[0]) and uri.endswith(TEMPLATE[1]):
        which = uri.removeprefix(TEMPLATE[0]).removesuffix(TEMPLATE[1])
        value = json.dumps({"id": which, "templateTest": True, "data": f"Data for ID: {which}"})
        contents = types.TextResourceContents(uri=uri, mime_type="application/json", text=value)
    else:
        raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": uri})
    return types.ReadResourceResult(contents=[contents])


async def subscribe(context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
    return types.EmptyResult()


async def unsubscribe(context: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
    return types.EmptyResult()


# Prompts, completion and the log level


def argument(name: str) -> types.PromptArgument:
    return types.PromptArgument(name=name, description=f"What {name} is", required=True)


PROMPTS = [
    types.Prompt(name="test_simple_prompt", description="One text"),
    types.Prompt(
        name="test_prompt_with_arguments",
        description="One text of two arguments",
        arguments=[argument("arg1"), argument("arg2")],
    ),
    types.Prompt(
        name="test_prompt_with_embedded_resource",
        description="An embedded resource and a text",
        arguments=[argument("resourceUri")],
    ),
    types.Prompt(name="test_prompt_with_image", description="An image and a text"),
    types.Prompt(name="test_input_required_result_prompt", description="Needs a word of the user"),
]


async def list_prompts(
    context: Context, params: types.PaginatedRequestParams | None
) -> types.ListPromptsResult:
    return types.ListPromptsResult(prompts=PROMPTS)


async def get_prompt(
    context: Context, params: types.GetPromptRequestParams
) -> types.GetPromptResult | types.InputRequiredResult:
    given = params.arguments or {}
    contents: list[types.ContentBlock]
    match params.name:
        case "test_simple_prompt":
            contents = [text("This is a simple prompt for testing.")]
        case "test_prompt_with_arguments":
            contents = [
                text(f"Prompt with arguments: arg1='{given.get('arg1')}', arg2='{given.get('arg2')}'")
            ]
        case "test_prompt_with_embedded_resource":
            uri = given.get("resourceUri", "")
            resource = embedded(uri, "text/plain", "Embedded resource content for testing.")
            contents = [resource, text("Please process the embedded resource above.")]
        case "test_prompt_with_image":
            contents = [image(), text("Please analyze the image above.")]
        case "test_input_required_result_prompt":
            if "user_context" not in (params.input_responses or {}):
                asked: dict[str, types.InputRequest] = {"user_context": elicitation("Context?", "context")}
                return types.InputRequiredResult(input_requests=asked)
            contents = [text("A prompt with what the user gave.")]
        case _:
            raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")
    return types.GetPromptResult(
        messages=[types.PromptMessage(role="user", content=content) for content in contents]
    )


async def complete(context: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    known = ["paris", "park", "party"]
    found = [word for word in known if word.startswith(params.argument.value)]
    return types.CompleteResult(completion=types.Completion(values=found, total=len(found), has_more=False))


async def set_level(context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
    return types.EmptyResult()


async def main() -> None:
    hint = CacheHint(ttl_ms=60_000, scope="public")
    server: Server[Any] = Server(
        "conformance-fixture",
        version="1",
        cache_hints={
            "tools/list": hint,
            "prompts/list": hint,
            "resources/list": hint,
            "resources/templates/list": hint,
            "resources/read": hint,
        },
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        on_subscriptions_listen=ListenHandler(bus),
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_completion=complete,
        on_set_logging_level=set_level,
    )
    changes = NotificationOptions(prompts_changed=True, tools_changed=True)
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options(changes))


if __name__ == "__main__":
    asyncio.run(main())
