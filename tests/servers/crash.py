"""A server that ends at once.

`python crash.py CODE [AFTER]`: exits with CODE (a negative one is a signal: -9 kills itself with SIGKILL)
before it reads or writes anything on stdio, except for one line on stderr, `crash.py: start N`.
With AFTER, only starts number AFTER + 1 and later do so; the first AFTER starts serve (discover, and any
other request with `{"pid": ..., "start": N}`) until a `tools/call` of the tool `exit` ends them with CODE.

Environment:
    STARTS: the file that counts the starts, one line with the pid each (needed for AFTER).
    UNTIL: if set, starts number UNTIL and later serve: a server that fails UNTIL - 1 times and recovers.
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
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "crash", "version": "1.0.0"}},
    }


def leave(code: int) -> None:
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


def main() -> int:
    code = int(sys.argv[1])
    after = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    until = int(os.environ.get("UNTIL", "0"))
    start = 1
    if starts := os.environ.get("STARTS"):
        with open(starts, "a+b", buffering=0) as file:
            file.write(b"%d\n" % os.getpid())
            file.seek(0)
            start = len(file.readlines())
    sys.stderr.write(f"crash.py: start {start}\n")
    sys.stderr.flush()
    if start > after and not (until and start >= until):
        leave(code)
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "method" not in message or "id" not in message:
            continue
        if message["method"] == "tools/call" and message["params"]["name"] == "exit":
            leave(code)
        seen = {"pid": os.getpid(), "start": start}
        result = {"resultType": "complete", "content": [], "structuredContent": seen}
        if message["method"] == "server/discover":
            result = discover_result()
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
