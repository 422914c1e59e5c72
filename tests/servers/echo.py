"""A modern server that answers everything at once.

`python echo.py`; no options. `server/discover` gets a DiscoverResult, `subscriptions/listen` its
acknowledgement, `tools/call` a result whose text (and `structuredContent`) is
`{"name": ..., "arguments": ..., "pid": ...}`, any other request `{"method": ..., "params": ..., "pid": ...}`.
Notifications are taken silently. It exits 0 at the end of its input.

Environment:
    RECORD: a file to which every received line is appended, byte for byte, before it is answered.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"


def discover_result() -> dict[str, Any]:
    return {
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {
            "tools": {"listChanged": True},
            "prompts": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "logging": {},
        },
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "echo", "version": "1.0.0"}},
    }


def answer(message: dict[str, Any]) -> dict[str, Any]:
    """The one line that `message`, a request, causes."""
    id, method, params = message["id"], message["method"], message.get("params") or {}
    if method == "subscriptions/listen":
        granted = params.get("notifications", {})
        return {
            "jsonrpc": "2.0",
            "method": "notifications/subscriptions/acknowledged",
            "params": {"_meta": {SUBSCRIPTION_ID: id}, "notifications": granted},
        }
    if method == "server/discover":
        result = discover_result()
    else:
        seen = {"method": method, "params": params, "pid": os.getpid()}
        if method == "tools/call":
            arguments = params.get("arguments", {})
            seen = {"name": params.get("name"), "arguments": arguments, "pid": os.getpid()}
        result = {
            "resultType": "complete",
            "content": [{"type": "text", "text": json.dumps(seen)}],
            "structuredContent": seen,
        }
    return {"jsonrpc": "2.0", "id": id, "result": result}


def main() -> int:
    record = os.environ.get("RECORD")
    log = open(record, "ab", buffering=0) if record else None  # noqa: SIM115 - open as long as the process
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        if log is not None:
            log.write(line)
        message = json.loads(line)
        if "method" in message and "id" in message:
            out.write(json.dumps(answer(message), separators=(",", ":")).encode() + b"\n")
            out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
