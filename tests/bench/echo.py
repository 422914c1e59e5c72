"""An MCP server for measurements: it answers whole chunks at once, so that it is not what is measured.

`python -S echo.py`; no options. It serves both eras. A `tools/call` is steered by the name of the tool; its
one argument is `text`, which must hold neither `"` nor a backslash:

    echo        the text
    sink        its first 24 bytes
    plain-N     the text and N more bytes
    quoted-N    the text and N more bytes of JSON in a string, full of escapes
    progress-N  the text, after N `notifications/progress`
    emit-N      the text, after N notifications on each subscription

Lines of the shape that the load generator and the bridge write are taken by pattern; any other line is read
as JSON, with the same answer.
"""

from __future__ import annotations

import contextlib
import os
import re

READ = 256 << 10
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
# Numbers of notifications come around after so many, so that their bytes can be foreseen.
SEQUENCE = 100

META = (
    b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    b'"io.modelcontextprotocol/clientCapabilities":{}}'
)
CALL = b'"method":"tools/call","params":{"name":"echo","arguments":{"text":"'
RESULT = b'"result":{"content":[{"type":"text","text":"'
# Small requests for `echo` become their answers by two replacements: before the text, and behind it.
# Once as the bridge writes them, with the id first, and once as clients on the TypeScript SDK do; without
# and with what a modern request carries.
FIRST = (b'{"jsonrpc":"2.0","id":', b"," + CALL, b"," + RESULT)
LAST = (b'{"method":"tools/call"', b"{" + CALL, b"{" + RESULT)
ENDS = {
    FIRST: ((b'"}}}\n', b'"}]}}\n'), (b'"},' + META + b"}}\n", b'"}]}}\n')),
    LAST: ((b'"}},"jsonrpc"', b'"}]},"jsonrpc"'), (b'"},' + META + b'},"jsonrpc"', b'"}]},"jsonrpc"')),
}
SMALL = 512

# Around the text of any call; the text itself is skipped with a search, which is faster.
HEAD = re.compile(
    rb'\{(?:"jsonrpc":"2\.0","id":(?P<id>\d++),)?+'
    rb'"method":"tools/call","params":\{"name":"(?P<name>[\w-]++)","arguments":\{"text":"'
)
TAIL = re.compile(
    rb'"\}(?:,"_meta":\{(?:"io[^{}]++\{\},?+)?+(?:"progressToken":(?P<token>\d++))?+\})?+\}'
    rb'(?:,"jsonrpc":"2\.0","id":(?P<id>\d++))?+\}\n'
)

BEFORE_ID = b'{"jsonrpc":"2.0","id":'
AFTER_TEXT = b'"}]}'
PROGRESS = (
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%%b,"progress":%d}}\n'
)
ESCAPED = rb"{\"id\": 123, \"name\": \"value\", \"ok\": true},\n"


def filler(size: int, quoted: bool) -> bytes:
    """Text of `size` bytes, as it stands in a JSON string."""
    if not quoted:
        return b"x" * size
    return (ESCAPED * (size // len(ESCAPED))).ljust(size, b"x")


class Echo:
    """The answers, and what is subscribed to."""

    def __init__(self) -> None:
        self.subscriptions: dict[bytes, bytes] = {}  # id as JSON -> notification up to its number
        self.sequence = 0
        self.fillers: dict[str, bytes] = {}

    def chunk(self, data: bytes) -> bytes:
        """The answers to whole lines."""
        if data.find(b"\n", 0, SMALL) >= 0:
            count = data.count(b"\n")
            shape = FIRST if data.startswith(FIRST[0]) else LAST
            middle = data.replace(shape[1], shape[2])
            for end, new_end in ENDS[shape]:
                answer = middle.replace(end, new_end)
                grown = len(shape[2]) - len(shape[1]) + len(new_end) - len(end)
                if len(answer) == len(data) + count * grown:
                    return answer
        out: list[bytes | memoryview] = []
        begin = 0
        while begin < len(data):
            begin = self.line(data, begin, out)
        return b"".join(out)

    def line(self, data: bytes, begin: int, out: list[bytes | memoryview]) -> int:
        """Add the answer to the line that begins there to `out`; where the next one begins."""
        head = HEAD.match(data, begin)
        if head is not None:
            text_end = data.find(b'"', head.end())
            tail = TAIL.match(data, text_end)
            if tail is not None:
                id = head["id"] or tail["id"]
                text = memoryview(data)[head.end() : text_end]
                self.call(out, id, head["name"].decode(), text, tail["token"], last=head["id"] is None)
                return tail.end()
        end = data.index(b"\n", begin)
        self.any_line(out, data[begin:end])
        return end + 1

    def call(
        self,
        out: list[bytes | memoryview],
        id: bytes,
        name: str,
        text: bytes | memoryview,
        token: bytes | None,
        *,
        last: bool = False,
    ) -> None:
        """The answer to a `tools/call`. `id` and `token` are JSON; `last`: the id goes to the end, too."""
        tool, _, number = name.partition("-")
        more = b""
        if tool == "sink":
            text = text[:24]
        elif tool in ("plain", "quoted"):
            if name not in self.fillers:
                self.fillers[name] = filler(int(number), tool == "quoted")
            more = self.fillers[name]
        elif tool == "progress" and token is not None:
            count = int(number)
            if name not in self.fillers:
                self.fillers[name] = b"".join([PROGRESS % (i + 1) for i in range(count)])
            out.append(self.fillers[name] % ((token,) * count))
        elif tool == "emit":
            self.emit(out, int(number))
        if last:
            out += (b"{", RESULT, text, more, AFTER_TEXT, b',"jsonrpc":"2.0","id":', id, b"}\n")
        else:
            out += (BEFORE_ID, id, b",", RESULT, text, more, AFTER_TEXT, b"}\n")

    def emit(self, out: list[bytes | memoryview], count: int) -> None:
        """Notifications on each subscription."""
        for _ in range(count):
            end = b'"seq":"%03d"}}\n' % self.sequence
            self.sequence = (self.sequence + 1) % SEQUENCE
            out += [start + end for start in self.subscriptions.values()]

    def any_line(self, out: list[bytes | memoryview], line: bytes) -> None:
        """The answer to a line of any shape."""
        import json

        def dump(value: object) -> bytes:
            return json.dumps(value, separators=(",", ":")).encode()

        message = json.loads(line)
        method, params = message.get("method"), message.get("params") or {}
        if method == "notifications/cancelled":
            self.subscriptions.pop(dump(params.get("requestId")), None)
        if "id" not in message or method is None:
            return
        id = dump(message["id"])
        if method == "tools/call":
            token = params.get("_meta", {}).get("progressToken")
            text = dump(params["arguments"]["text"])[1:-1]
            self.call(out, id, params["name"], text, None if token is None else dump(token))
            return
        if method == "subscriptions/listen":
            out.append(self.listen(id, params["notifications"]))
            return
        server = {"name": "bench-echo", "version": "1"}
        result: dict[str, object] = {}
        if method == "initialize":
            version = params.get("protocolVersion", "2025-06-18")
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
        elif method == "server/discover":
            result = {
                "resultType": "complete",
                "supportedVersions": ["2026-07-28"],
                "capabilities": {
                    "tools": {"listChanged": True},
                    "resources": {"subscribe": True},
                },
                "ttlMs": 0,
                "cacheScope": "private",
                "_meta": {"io.modelcontextprotocol/serverInfo": server},
            }
        elif method == "tools/list":
            schema = {"type": "object", "properties": {"text": {"type": "string"}}}
            result = {"tools": [{"name": "echo", "inputSchema": schema}]}
        out.append(b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (id, dump(result)))

    def listen(self, id: bytes, wanted: dict[str, object]) -> bytes:
        """Open a subscription: its acknowledgement."""
        import json

        meta = b'"_meta":{"%b":%b},' % (SUBSCRIPTION.encode(), id)
        uris = wanted.get("resourceSubscriptions")
        if isinstance(uris, list):
            method, uri = b"resources/updated", b'"uri":%b,' % json.dumps(uris[0]).encode()
        else:
            method, uri = b"tools/list_changed", b""
        start = b'{"jsonrpc":"2.0","method":"notifications/%b","params":{%b%b'
        self.subscriptions[id] = start % (method, meta, uri)
        granted = json.dumps(wanted, separators=(",", ":")).encode()
        return start % (b"subscriptions/acknowledged", meta, b'"notifications":%b}}\n' % granted)


def main() -> None:
    chunk = Echo().chunk
    held: list[bytes] = []
    while data := os.read(0, READ):
        end = data.rfind(b"\n") + 1
        if not end:
            held.append(data)
            continue
        whole, rest = (data, b"") if end == len(data) else (data[:end], data[end:])
        if held:
            whole = b"".join((*held, whole))
        held = [rest] if rest else []
        answer = memoryview(chunk(whole))
        while answer:
            answer = answer[os.write(1, answer) :]


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main()
