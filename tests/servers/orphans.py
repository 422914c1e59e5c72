"""A server that leaves orphans: processes whose parent is gone when they end.

`python orphans.py`: modern; answers every request with `{"pid": ..., "orphans": N}`, the number of orphans
made for it. A `tools/call` may say in its arguments: "orphans": N, made before the answer, each in a session
of its own and ended at once; "exit": CODE, after the answer.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def discover_result() -> dict[str, Any]:
    return {
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "orphans", "version": "1.0.0"}},
    }


def make_orphan() -> None:
    child = os.fork()
    if child == 0:
        os.setsid()
        parent = os.getpid()
        if os.fork() == 0:
            # Until its parent is gone: then its end is its adopter's to see.
            while os.getppid() == parent:
                os.sched_yield()
        os._exit(0)
    os.waitpid(child, 0)


def main() -> int:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "method" not in message or "id" not in message:
            continue
        arguments = message.get("params", {}).get("arguments", {})
        for _ in range(arguments.get("orphans", 0)):
            make_orphan()
        seen = {"pid": os.getpid(), "orphans": arguments.get("orphans", 0)}
        result: dict[str, Any] = {"resultType": "complete", "content": [], "structuredContent": seen}
        if message["method"] == "server/discover":
            result = discover_result()
        sys.stdout.buffer.write(
            json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode() + b"\n"
        )
        sys.stdout.buffer.flush()
        if "exit" in arguments:
            os._exit(arguments["exit"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
