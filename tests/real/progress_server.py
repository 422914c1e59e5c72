"""A server of the official Python SDK 2.x whose one tool reports progress; run as a process by the tests.

The published servers that tests/real shares report none.
"""

from __future__ import annotations

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("progress")


@server.tool()
async def count(label: str, steps: int, context: Context) -> str:
    """Report `steps` times progress with `label` in the message, then return `label`."""
    for step in range(1, steps + 1):
        await context.report_progress(step, steps, f"{label}/{step}")
    return label


if __name__ == "__main__":
    server.run("stdio")
