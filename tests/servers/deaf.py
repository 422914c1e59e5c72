"""A server that ignores SIGTERM, SIGINT, SIGHUP and the end of its input; only SIGKILL ends it.

`python deaf.py [--grandchild]`: until its input ends it answers `server/discover`, and every other request
with `{"pid": ..., "grandchild": ...}`. With `--grandchild` it starts, in its own process group, one process
that is as deaf and holds its stdout and stderr open.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

DEAF = (
    "import signal, time\n"
    "for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(s, signal.SIG_IGN)\n"
    "while True: time.sleep(60)\n"
)


def discover_result() -> dict[str, Any]:
    return {
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "deaf", "version": "1.0.0"}},
    }


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    grandchild = None
    if "--grandchild" in sys.argv[1:]:
        grandchild = subprocess.Popen([sys.executable, "-S", "-c", DEAF], stdin=subprocess.DEVNULL).pid
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "method" not in message or "id" not in message:
            continue
        pids = {"pid": os.getpid(), "grandchild": grandchild}
        result = {"resultType": "complete", "content": [], "structuredContent": pids}
        if message["method"] == "server/discover":
            result = discover_result()
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()
    while True:
        time.sleep(60)


if __name__ == "__main__":
    sys.exit(main())
