"""A server that writes what no server may write, and otherwise behaves.

`python garbage.py`: at its start it writes a banner, blank lines, a line of spaces, binary, invalid UTF-8,
half a JSON object, JSON that is no object, a batch, and a response nobody asked for. Then it answers as a
modern server, each answer after a line of noise; answers have a byte order mark before, CR LF behind, or
spaces around them, in turn. `tools/call` returns `{"name": ..., "arguments": ..., "pid": ...}`.
It exits 0 at the end of its input, after a last line that has no newline.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

BOM = b"\xef\xbb\xbf"

START = (
    BOM + b"Starting garbage server v1.0 ...\n"
    b"\n\n   \t \r\n"
    b"\x00\x01\x02\x80\xff\xfe\r\r\r\n"
    b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"\xff"}}\n'
    b'{"jsonrpc":"2.0","id":1,"resu\n'
    b'42\n"text"\nnull\n[]\n{}\n'
    b'[{"jsonrpc":"2.0","id":1,"result":{}}]\n'
    b'{"jsonrpc":"2.0","id":"nobody asked","result":{"resultType":"complete"}}\n'
    b'{"jsonrpc":"2.0","id":null,"result":{"resultType":"complete"}}\n'
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"nobody","progress":1}}\n'
    b"Content-Length: 12\r\n\r\n"
)

# What stands before and behind an answer, one after the other.
DRESS = ((BOM, b"\n"), (b"", b"\r\n"), (b"  \t", b" \r \n"), (b"", b"\n"))


def discover_result() -> dict[str, Any]:
    return {
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "garbage", "version": "1.0.0"}},
    }


def main() -> int:
    out = sys.stdout.buffer
    out.write(START)
    out.flush()
    count = 0
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "method" not in message or "id" not in message:
            continue
        params = message.get("params") or {}
        seen = {"name": params.get("name"), "arguments": params.get("arguments"), "pid": os.getpid()}
        result = {"resultType": "complete", "content": [], "structuredContent": seen}
        if message["method"] == "server/discover":
            result = discover_result()
        before, behind = DRESS[count % len(DRESS)]
        count += 1
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
        out.write(b"debug: handling " + message["method"].encode() + b"\n" + before + body + behind)
        out.flush()
    out.write(b"bye")
    out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
