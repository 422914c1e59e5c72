"""What goes over the wire in a measurement, encoded before it begins.

A client's requests stand in a ring: so many of them, of equal length, one behind the other, and once more so
that no piece of them ever wraps around. The answers it must get stand in a second ring. To check what was
read, ids and texts, is then one comparison of bytes with the place in the ring where they must be.

All clients use the same ids, on purpose; what tells them apart is the tag in the text.
"""

from __future__ import annotations

import json
from typing import Any

from tests.bench.echo import META, PROGRESS, RESULT, filler

TAG = b"c%05d-%07d"  # client, id
FIRST_ID = 1_000_000
INITIALIZE = (
    b'{"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},'
    b'"clientInfo":{"name":"bench","version":"1"}},"jsonrpc":"2.0","id":0}'
)
INITIALIZED = b'{"method":"notifications/initialized","jsonrpc":"2.0"}'

# The least and the most memory that the ring of one client takes, in bytes, before it is doubled.
RING_LEAST = 4 << 10
RING_MOST = 2 << 20


class Ring:
    """The requests of one client and the answers to them.

    Args:
        client: its number, part of each text.
        tool: one that `echo.py` knows.
        pad: bytes of text in a request beside the tag.
        modern: with what a request of the modern era carries.
        count: how many; at least as many as there are in flight at once.
        id_last: answers have their id behind the result.
    """

    def __init__(
        self, client: int, tool: str, pad: int, *, modern: bool, count: int, id_last: bool = False
    ) -> None:
        self.count = count
        kind, _, number = tool.partition("-")
        more = filler(int(number), kind == "quoted") if kind in ("plain", "quoted") else b""
        padding = b"y" * pad
        requests, answers = [], []
        for id in range(FIRST_ID, FIRST_ID + count):
            text = TAG % (client, id) + padding
            requests.append(request(id, tool, text, modern=modern))
            if kind == "progress":
                answers += [PROGRESS % step % (b"%d" % id) for step in range(1, int(number) + 1)]
            answers.append(answer(id, (text[:24] if kind == "sink" else text) + more, id_last=id_last))
        self.request_size = len(requests[0]) + 1
        self.requests = b"\n".join((*requests, *requests, b""))
        once = b"".join(answers)
        self.answer_size = len(once) // count
        self.answers = once + once
        self.requests_size = self.request_size * count
        self.answers_size = len(once)


def ring_count(depth: int, size: int, clients: int) -> int:
    """How many requests of `size` bytes (the answer counted) a ring should have, for so many clients."""
    room = min(max(RING_LEAST, RING_MOST // clients), RING_MOST)
    return max(2 * depth, min(1024, room // size))


def request(id: int, tool: str, text: bytes, *, modern: bool) -> bytes:
    """A `tools/call`, its members in the order of the TypeScript SDK."""
    meta = b""
    if modern:
        meta = b"," + META
    if tool.startswith("progress"):
        token = b'"progressToken":%d}' % id
        meta = b',"_meta":{' + token if not modern else meta[:-1] + b"," + token
    return (
        b'{"method":"tools/call","params":{"name":"%b","arguments":{"text":"%b"}%b},"jsonrpc":"2.0","id":%d}'
        % (tool.encode(), text, meta, id)
    )


def answer(id: int, text: bytes, *, id_last: bool) -> bytes:
    """The response to it."""
    body = RESULT + text + b'"}]}'
    if id_last:
        return b'{%b,"jsonrpc":"2.0","id":%d}\n' % (body, id)
    return b'{"jsonrpc":"2.0","id":%d,%b}\n' % (id, body)


def result_text(message: dict[str, Any]) -> bytes | None:
    """The text of a response, as it stands in its JSON; None if it is none."""
    try:
        text = message["result"]["content"][0]["text"]
    except (KeyError, IndexError, TypeError):
        return None
    return json.dumps(text).encode()[1:-1]
