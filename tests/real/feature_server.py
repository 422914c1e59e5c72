"""A server of the official Python SDK 2.x, of both eras, that asks for input and tells what changes.

Run as a process by the tests: the published servers that tests/real shares do neither.
"""

from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import BaseModel

server = MCPServer("features")


class Given(BaseModel):
    """What the user is asked for."""

    word: str


async def ask(label: str) -> Elicit[Given]:
    """The question that `confirm` needs an answer to; `label` is the tool's argument."""
    return Elicit(f"A word for {label}?", Given)


@server.tool()
async def confirm(label: str, given: Annotated[Given, Resolve(ask)]) -> str:
    """Ask for a word (a multi-round-trip request), then say what was confirmed with it."""
    return f"{label}: {label} was confirmed with {given.word}"


@server.tool()
async def touch(uri: str, context: Context) -> str:
    """Tell subscribers that a resource has changed."""
    await context.notify_resource_updated(uri)
    return f"touched {uri}"


@server.tool()
async def grow(name: str, context: Context) -> str:
    """Add a tool, and tell subscribers."""

    def grown() -> str:
        return name

    server.add_tool(grown, name=name)
    await context.notify_tools_changed()
    return f"grown {name}"


@server.resource("note://1")
def note() -> str:
    """Something to subscribe to."""
    return "a note"


if __name__ == "__main__":
    server.run("stdio")
