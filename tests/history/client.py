"""One connection of the checker. It writes down what it sends before it does, and what comes as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import struct
import time
from typing import Any, Final, cast

from tests.history.record import Connection, Ended, Received, Sent, id_key

BLOB: Final = re.compile(rb'"blob":(\[[^\]]*\])')
MODERN: Final = (
    '"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}'
)

PATIENCE: Final = 25.0
"""How long, in seconds, a client waits for what it is owed: a back-off, a freeze and a busy machine."""

ODDITIES: Final = (
    b"",
    b'"plain"',
    b"1e400,-0,1E2,0.10",
    b'"\\ud83d","\\udc00\\ud800"',
    b'"\\u00e9\xc3\xa9\xf0\x9f\x98\x80\\/\\u002f"',
    b"123456789012345678901234567890",
    b'{"id":1,"id":2,"_meta":{"progressToken":1}}',
    b'"\\\\","\\"","{[","\\r\\n"',
    b'{"a":{"b":{"c":null}}},true , false',
)
"""Inside of a blob: what a bridge must not touch."""


class Stuck(asyncio.Event):
    """Set once a client has waited in vain: then nobody waits any more.

    Args:
        patience: how long each client waits, in seconds.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        super().__init__()
        self.patience = patience
        self.tasks: list[str] = []
        """Names of tasks, of whatever client: what others can guess."""


class Client(asyncio.Protocol):
    """One connection.

    Args:
        connection: its record, which grows.
        rng: its own random numbers.
        round: for the marks.
        stuck: shared by all clients of a round.
    """

    def __init__(self, connection: Connection, rng: random.Random, round: int, stuck: Stuck) -> None:
        self.connection = connection
        self.rng = rng
        self.round = round
        self.stuck = stuck
        self.open: dict[tuple[type, object], int] = {}
        """Requests without an outcome, as far as the client knows, and that will have one."""
        self.last = Sent(0.0, 0, "")
        self.errors = 0
        """Errors that bad lines without an id have earned and that have not come."""
        self.seq = 0
        self.requests = 0
        self.last_id = 0
        self.style = rng.choice(("count", "count", "text", "mixed", "same"))
        if connection.apart and self.style == "same":
            self.style = "count"  # its server sees these ids, and would be right to refuse
        self.tasks: list[str] = []
        """Its own ones."""
        self.closed = asyncio.Event()
        self.changed = asyncio.Event()
        self._partial = b""
        self._behind: list[bytes] | None = None
        """Answers that wait for the end of a line that is being sent in pieces, while one is."""
        self._transport: asyncio.Transport | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._ended = False

    # -- from the transport ----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        *lines, self._partial = (self._partial + data).split(b"\n")
        events = self.connection.events
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                events.append(Received(now, None, line[:400]))
                continue
            blob = BLOB.search(line)
            events.append(Received(now, message, blob[1] if blob else b""))
            if "method" in message:
                if "id" in message and self.connection.apart:
                    self._answer(message)
                continue
            self._learn(message)
            if "id" not in message:
                self.errors -= 1
            else:
                key = id_key(message["id"]) if not isinstance(message["id"], list | dict) else None
                if key in self.open:
                    self._done(key)
        self.changed.set()

    def _answer(self, message: dict[str, Any]) -> None:
        """Answer a request of the server's, at once."""
        mark = (message.get("params") or {}).get("mark", "-")
        self.seq += 1
        self._note(Sent(time.monotonic(), self.seq, "answer", message["id"], do=mark))
        line = {"jsonrpc": "2.0", "id": message["id"], "result": {"mark": mark}}
        answer = json.dumps(line).encode() + b"\n"
        if self._behind is None:
            self._write(answer)
        else:
            self._behind.append(answer)

    def _learn(self, message: dict[str, Any]) -> None:
        """Remember a task that a request has made."""
        result = message.get("result")
        task = result.get("task") if isinstance(result, dict) else None
        if isinstance(task, dict):
            self.tasks.append(task["taskId"])
            self.stuck.tasks.append(task["taskId"])

    def _done(self, key: tuple[type, object]) -> None:
        if self.open[key] > 1:
            self.open[key] -= 1
        else:
            del self.open[key]

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("eof" if exc is None else "reset")
        self.closed.set()
        self.changed.set()
        self._flowing.set()

    def pause_writing(self) -> None:
        self._flowing.clear()

    def resume_writing(self) -> None:
        self._flowing.set()

    def _end(self, how: str, waited: bool = False) -> None:
        if not self._ended:
            self._ended = True
            self.connection.events.append(Ended(time.monotonic(), how, waited))

    # -- sending ---------------------------------------------------------------------

    def new_id(self) -> Any:
        """The next request's id: all clients use the same ones, some use one for everything."""
        self.last_id += 1
        n = self.last_id
        if self.style == "same":
            return 1
        if self.style == "text":
            return str(n)
        if self.style == "mixed":
            m = n // 6  # some of six look alike
            return (m, str(m), -1 - m, f'a"\\é{m}', 2**53 + m, f"{m}" * 40)[n % 6]
        return n

    def mark(self) -> str:
        """Names the next thing that is sent."""
        self.seq += 1
        return f"{self.round}.{self.connection.number}.{self.seq}"

    def call(
        self,
        do: str = "echo",
        pad: int = 0,
        method: str = "",
        about: str = "",
        codes: tuple[int, ...] = (),
        **members: Any,
    ) -> bytes:
        """A request's line; it is written down as sent.

        Args:
            method: [one that means nothing to the bridge].
            about: the task it names.
            codes: errors it is to earn.
            members: further ones of `params`.
        """
        rng, mark = self.rng, self.mark()
        id = self.new_id()
        inside = rng.choice(ODDITIES)
        if pad:
            inside = b'"' + b"p" * pad + b'"' + (b"," if inside else b"") + inside
        blob = b"[" + inside + b"]"
        name = do.partition(":")[0]
        token: Any = None
        meta = ""
        if name in ("progress", "late", "task") or rng.random() < 0.05:
            token = id if rng.random() < 0.7 else rng.choice((7, "7", "token", 0))
            meta = f',"progressToken":{json.dumps(token)}'
            if name == "echo" and rng.random() < 0.1:
                meta, token = ',"progressToken":57.0', None
        if name == "log":
            meta += ',"io.modelcontextprotocol/logLevel":"debug"'
        modern = self.connection.era == "modern"
        if modern:
            meta = MODERN + meta
        meta = f',"_meta":{{{meta.removeprefix(",")}}}' if meta else ""
        some = rng.choice(("tools/call", "tools/call", "resources/read", "example/anything"))
        method = method or some
        more = b"".join(
            b"%s:%s," % (json.dumps(n).encode(), json.dumps(v).encode()) for n, v in members.items()
        )
        params = more + b'"name":"x","arguments":{"mark":"%s","do":"%s","blob":%s}%s' % (
            mark.encode(),
            do.encode(),
            blob,
            meta.encode(),
        )
        line = self._spelled(json.dumps(id).encode(), method.encode(), params)
        self._note(Sent(time.monotonic(), self.seq, "call", id, mark, do, token, blob, about, codes))
        if name not in ("hang", "late"):
            self._owe(id)
        return line

    def _spelled(self, id: bytes, method: bytes, params: bytes) -> bytes:
        form = self.rng.randrange(40)
        if form == 0:
            return b'{"params":{%s},"method":"%s","jsonrpc":"2.0","id":%s}\n' % (params, method, id)
        if form == 1:  # the last of two keys counts, however it is spelled
            return b'{"jsonrpc":"2.0","id":999,"method":"%s","params":{%s},"\\u0069d":%s}\n' % (
                method,
                params,
                id,
            )
        if form == 2:  # who takes a CR for a line's end would run a second request
            hidden = b'{"x":\r{"jsonrpc":"2.0","id":999,"method":"tools/call","params":{}}\r}'
            return b'{"jsonrpc":"2.0","id":%s,"method":"%s","params":{%s,"hidden":%s}}\r\n' % (
                id,
                method,
                params,
                hidden,
            )
        if form == 3 and self.seq > 5:  # on TCP not as the first
            spaced = (
                b'\xef\xbb\xbf{ "jsonrpc" : "2.0", "id": %s, "method": "%s", "params": { %s }, "x": null }\n'
            )
            return spaced % (id, method, params)
        return b'{"jsonrpc":"2.0","id":%s,"method":"%s","params":{%s}}\n' % (id, method, params)

    def listen(self, id: Any, filter: dict[str, Any], key: str, *, shared: bool = True) -> bytes:
        """A subscription's line; it is written down as sent."""
        self.seq += 1
        mark = ""
        params: dict[str, Any] = {"notifications": filter, "_meta": json.loads("{" + MODERN + "}")}
        if not shared:  # an unknown member: it may mean anything, so nobody shares it
            mark = params["mark"] = f"{self.round}.{self.connection.number}.{self.seq}"
        line = {"jsonrpc": "2.0", "id": id, "method": "subscriptions/listen", "params": params}
        self._note(Sent(time.monotonic(), self.seq, "listen", id, mark, filter=key))
        return json.dumps(line).encode() + b"\n"

    def share(self, kind: str, what: str) -> bytes:
        """A request about the session: subscribe, unsubscribe or level; `what`: URI or level."""
        self.seq += 1
        id = f"session-{self.seq}"
        method = "logging/setLevel" if kind == "level" else f"resources/{kind}"
        self._note(Sent(time.monotonic(), self.seq, kind, id, filter=what))
        self._owe(id)
        params = {"level" if kind == "level" else "uri": what}
        return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n"

    def initialize(self) -> bytes:
        """The legacy handshake's first line."""
        self.seq += 1
        id = self.new_id()
        info = {"name": "client", "version": "1"}
        can: dict[str, Any] = {"sampling": {}} if self.connection.apart else {}
        params = {"protocolVersion": "2025-06-18", "capabilities": can, "clientInfo": info}
        self._note(Sent(time.monotonic(), self.seq, "initialize", id))
        self._owe(id)
        line = {"jsonrpc": "2.0", "id": id, "method": "initialize", "params": params}
        return json.dumps(line).encode() + b"\n"

    def cancel(self, id: Any) -> bytes:
        """A cancellation's line."""
        self.seq += 1
        self._note(Sent(time.monotonic(), self.seq, "cancel", id))
        self.open.pop(id_key(id), None)
        params = {"requestId": id, "reason": "no longer needed"}
        line = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        return json.dumps(line).encode() + b"\n"

    def notification(self) -> bytes:
        """A notification's line that the server is to see."""
        mark = self.mark()
        self._note(Sent(time.monotonic(), self.seq, "note", None, mark))
        params: dict[str, Any] = {"mark": mark}
        if self.connection.era == "modern":
            params["_meta"] = json.loads("{" + MODERN + "}")
        line = {"jsonrpc": "2.0", "method": "notifications/example", "params": params}
        return json.dumps(line).encode() + b"\n"

    def bad(self, line: bytes, *codes: int, id: Any = None) -> bytes:
        """A line that earns an error of the bridge's own."""
        self.seq += 1
        self._note(Sent(time.monotonic(), self.seq, "bad", id, codes=codes))
        if id is not None:
            self._owe(id)
        else:
            self.errors += 1
        return line + b"\n"

    def _note(self, sent: Sent) -> None:
        self.last = sent
        if not self._ended:
            self.connection.events.append(sent)
            self.requests += sent.kind not in ("cancel", "note", "answer")

    def _owe(self, id: Any) -> None:
        key = id_key(id)
        self.open[key] = self.open.get(key, 0) + 1

    async def send(self, *lines: bytes, cut: bool = False) -> None:
        """Write lines, and wait while the socket is full. `cut`: in pieces that mean nothing."""
        if self._transport is None or self._ended:
            return
        data = b"".join(lines)
        if cut:
            behind: list[bytes] = []
            self._behind = behind
            for begin in range(0, len(data), max(1, len(data) // 7)):
                self._write(data[begin : begin + max(1, len(data) // 7)])
                await asyncio.sleep(0.001)
            self._behind = None
            self._write(b"".join(behind))
        else:
            self._write(data)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._flowing.wait(), self.stuck.patience)

    async def push(self, *lines: bytes) -> None:
        """Write lines, however full the socket is."""
        self._write(b"".join(lines))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._ended:
            with contextlib.suppress(RuntimeError):  # closed, and nobody was told yet
                self._transport.write(data)

    # -- waiting ---------------------------------------------------------------------

    async def settled(self, at_most: int = 0) -> bool:
        """Wait until no more than so many requests are without outcome; False if that was in vain."""
        return await self.until(lambda: len(self.open) + self.errors <= at_most)

    async def until(self, condition: Any, patience: float | None = None) -> bool:
        """Wait for a condition that messages make true; False if the connection ends, or in vain."""
        deadline = time.monotonic() + (self.stuck.patience if patience is None else patience)
        while not condition():
            self.changed.clear()
            left = deadline - time.monotonic()
            if left <= 0 or self.stuck.is_set():
                if left <= 0 and patience is None:
                    self.stuck.set()
                return False
            if self.closed.is_set():
                return False
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.changed.wait(), min(left, 1.0))
        return True

    def received(self, test: Any) -> bool:
        """Whether a message for which `test` holds has come."""
        return any(
            isinstance(event, Received) and event.message is not None and test(event.message)
            for event in self.connection.events
        )

    # -- reading and ending ----------------------------------------------------------

    def read(self, yes: bool) -> None:
        """Go on, or stop, reading."""
        if self._transport is not None and not self._ended:
            if yes:
                self._transport.resume_reading()
            else:
                self.connection.lazy = True
                self._transport.pause_reading()

    def half_close(self) -> None:
        """Send no more; what is owed can still be read."""
        if self._transport is not None and not self._ended:
            self.connection.events.append(Ended(time.monotonic(), "half"))
            self._transport.write_eof()

    async def close(self, *, waited: bool = False) -> None:
        """Close in order."""
        self._end("close", waited)
        if self._transport is not None:
            self._transport.close()
            await self._gone()

    async def abort(self) -> None:
        """Vanish: on TCP with a reset, as when a process is killed with unread data."""
        self._end("abort")
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            with contextlib.suppress(OSError, AttributeError):  # it may be closed already, or gone
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
            await self._gone()

    async def _gone(self) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.closed.wait(), 2)
        if not self.closed.is_set() and self._transport is not None:
            self._transport.abort()


async def connect(address: str, client: Client) -> bool:
    """Connect a client to `unix:/path` or `tcp:HOST:PORT`; False if nobody listens there any more."""
    loop = asyncio.get_running_loop()
    kind, _, rest = address.partition(":")
    try:
        if kind == "unix":
            await loop.create_unix_connection(lambda: client, rest)
        else:
            host, _, port = rest.rpartition(":")
            await loop.create_connection(lambda: client, host, int(port))
    except OSError:
        return False
    return True
