"""A raw client: what a test wants to put on the wire, byte for byte, and what comes back.

It reads from its socket only while somebody waits for a message, so a test that does not call `recv`
is a client that does not read. Every wait is bounded by `timeout` seconds.
"""

# ruff: noqa: ASYNC109 - a wait that runs out must fail the test with what was expected and what came instead

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

Message = dict[str, Any]

# What a loaded machine with two cores needs at worst, many times over; a pass never waits for it.
TIMEOUT = 10.0
# Read at most this much at once, so that a reader takes what it needs and leaves the rest in the socket.
READ_SIZE = 256 * 1024

MODERN_META: Mapping[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "raw-client", "version": "1.0.0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"


class Closed(AssertionError):
    """The connection ended while a test waited for a message."""


class NoMessage(AssertionError):
    """No matching message came in time."""


def encode(message: Any) -> bytes:
    """One line: compact JSON and a newline."""
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def modern_request(
    method: str, params: Mapping[str, Any] | None = None, *, id: Any, meta: Mapping[str, Any] | None = None
) -> Message:
    """A modern-era request: `params` with the `_meta` every request must carry, and `meta` on top of it."""
    body = dict(params or {})
    body["_meta"] = {**MODERN_META, **body.get("_meta", {}), **(meta or {})}
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": body}


def legacy_request(method: str, params: Mapping[str, Any] | None = None, *, id: Any) -> Message:
    """A request without `_meta`, as clients up to 2025-11-25 write it."""
    message: Message = {"jsonrpc": "2.0", "id": id, "method": method}
    if params is not None:
        message["params"] = dict(params)
    return message


def notification(method: str, params: Mapping[str, Any] | None = None) -> Message:
    """A notification; without `params` when there are none."""
    message: Message = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = dict(params)
    return message


def same_id(left: Any, right: Any) -> bool:
    """JSON identity: `1`, `"1"`, `1.0` and `true` are four different ids."""
    return type(left) is type(right) and bool(left == right)


def is_response(message: Message, id: Any) -> bool:
    """Whether `message` answers the request `id`."""
    return "method" not in message and "id" in message and same_id(message["id"], id)


def subscription_of(message: Message) -> Any:
    """The subscription id of a notification or of a result; None without one."""
    body = message.get("params") or message.get("result") or {}
    return body.get("_meta", {}).get(SUBSCRIPTION_ID) if isinstance(body, dict) else None


@dataclass
class _Line:
    raw: bytes
    _parsed: Message | None = field(default=None, init=False)

    @property
    def message(self) -> Message:
        """The parsed line; an AssertionError if it is not JSON, because a client must never get that."""
        if self._parsed is None:
            try:
                self._parsed = json.loads(self.raw)
            except ValueError as error:
                raise AssertionError(f"received a line that is not JSON: {self.raw[:300]!r}") from error
            assert isinstance(self._parsed, dict), f"received a line that is no object: {self.raw[:300]!r}"
        return self._parsed


class RawClient:
    """One connection to the bridge.

    Messages that a call does not want stay, in order, for the next call: `request` may be awaited while
    notifications arrive, and several tasks may wait for different messages at once.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._loop = asyncio.get_running_loop()
        # Lines nobody has taken, by number of arrival, so that a call looks at each only once.
        self._lines: dict[int, _Line] = {}
        self._oldest = 0
        self._next = 0
        self._partial = bytearray()
        self._searched = 0
        self._eof = False
        self._reading = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._last_id = 0

    @classmethod
    async def connect(
        cls, address: str, *, receive_buffer: int | None = None, timeout: float = TIMEOUT
    ) -> Self:
        """Connect to `unix:/path`, `unix:@abstract` or `tcp:HOST:PORT`.

        `receive_buffer` sets SO_RCVBUF in bytes (for clients that read slowly). Raises OSError.
        """
        kind, _, rest = address.partition(":")
        loop = asyncio.get_running_loop()
        if kind == "unix":
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        else:
            host, _, port = rest.rpartition(":")
            host = host.strip("[]")
            sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            if receive_buffer is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            async with asyncio.timeout(timeout):
                if kind != "unix":
                    await loop.sock_connect(sock, (host, int(port)))
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                elif rest.startswith("@"):
                    await loop.sock_connect(sock, "\0" + rest[1:])
                else:
                    await _connect_path(loop, sock, rest)
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    # Sending.

    async def send(self, *messages: Any, timeout: float = TIMEOUT) -> None:
        """Write messages in one go: objects as lines, `bytes` as they are. Raises TimeoutError, OSError."""
        data = b"".join(m if isinstance(m, bytes) else encode(m) for m in messages)
        async with asyncio.timeout(timeout), self._writing:
            await self._loop.sock_sendall(self.sock, data)

    def send_some(self, data: bytes) -> int:
        """Write what the socket takes now, without waiting; returns how many bytes that was (0: full)."""
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0

    def new_id(self) -> int:
        """An id this connection has not used yet: 1, 2, 3, ... so that all clients use the same ones."""
        self._last_id += 1
        return self._last_id

    async def start(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        id: Any = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Any:
        """Send a modern request and return its id at once."""
        id = self.new_id() if id is None else id
        await self.send(modern_request(method, params, id=id, meta=meta))
        return id

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        id: Any = None,
        meta: Mapping[str, Any] | None = None,
        timeout: float = TIMEOUT,
    ) -> Message:
        """Send a modern request and return its response (with `result` or `error`)."""
        return await self.response(await self.start(method, params, id=id, meta=meta), timeout=timeout)

    async def legacy_request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        id: Any = None,
        timeout: float = TIMEOUT,
    ) -> Message:
        """Send a request without `_meta` and return its response."""
        id = self.new_id() if id is None else id
        await self.send(legacy_request(method, params, id=id))
        return await self.response(id, timeout=timeout)

    async def initialize(self, version: str = "2025-11-25", *, timeout: float = TIMEOUT) -> Message:
        """The whole legacy handshake; returns the response to `initialize`."""
        params = {
            "protocolVersion": version,
            "capabilities": {},
            "clientInfo": {"name": "raw-client", "version": "1.0.0"},
        }
        response = await self.legacy_request("initialize", params, timeout=timeout)
        await self.send(notification("notifications/initialized"))
        return response

    async def call(
        self, tool: str, *, id: Any = None, meta: Mapping[str, Any] | None = None, **arguments: Any
    ) -> Message:
        """`tools/call` with keyword arguments; returns the response."""
        return await self.request("tools/call", {"name": tool, "arguments": arguments}, id=id, meta=meta)

    async def start_call(
        self, tool: str, *, id: Any = None, meta: Mapping[str, Any] | None = None, **arguments: Any
    ) -> Any:
        """`tools/call` with keyword arguments; returns its id at once."""
        return await self.start("tools/call", {"name": tool, "arguments": arguments}, id=id, meta=meta)

    async def listen(self, *, id: Any = None, timeout: float = TIMEOUT, **notifications: Any) -> Any:
        """Open a subscription, wait for its acknowledgement, return its id.

        Keywords are members of the filter: `toolsListChanged=True`, `resourceSubscriptions=["demo://x"]`.
        """
        id = await self.start("subscriptions/listen", {"notifications": notifications}, id=id)
        await self.notification("notifications/subscriptions/acknowledged", subscription=id, timeout=timeout)
        return id

    async def cancel(self, id: Any, reason: str | None = None) -> None:
        """`notifications/cancelled` for the request `id`."""
        params = {"requestId": id} if reason is None else {"requestId": id, "reason": reason}
        await self.send(notification("notifications/cancelled", params))

    # Receiving.

    async def recv(self, timeout: float = TIMEOUT) -> Message:
        """The next message, whatever it is. Raises Closed, NoMessage."""
        return (await self._take(lambda _: True, timeout, "any message")).message

    async def recv_raw(self, timeout: float = TIMEOUT) -> bytes:
        """The next line as it came, without its newline. Raises Closed, NoMessage."""
        return (await self._take(lambda _: True, timeout, "any line")).raw

    async def response(self, id: Any, timeout: float = TIMEOUT) -> Message:
        """The response to the request `id` (compared with its JSON type)."""
        return await self.matching(lambda m: is_response(m, id), timeout, f"a response to id {id!r}")

    async def response_raw(self, id: Any, timeout: float = TIMEOUT) -> bytes:
        """The line that answers the request `id`, as it came."""
        return (
            await self._take(lambda line: is_response(line.message, id), timeout, f"a response to id {id!r}")
        ).raw

    async def notification(
        self, method: str, *, subscription: Any = None, timeout: float = TIMEOUT
    ) -> Message:
        """The next notification `method`; with `subscription`, the next that carries this subscription id."""

        def wanted(message: Message) -> bool:
            if message.get("method") != method:
                return False
            return subscription is None or same_id(subscription_of(message), subscription)

        return await self.matching(wanted, timeout, f"{method} (subscription {subscription!r})")

    async def matching(
        self, wanted: Callable[[Message], bool], timeout: float = TIMEOUT, what: str = "a matching message"
    ) -> Message:
        """The first message that `wanted` accepts; what came before it stays for later calls."""
        return (await self._take(lambda line: wanted(line.message), timeout, what)).message

    async def expect_nothing(self, seconds: float = 0.2) -> None:
        """Fail if a message is waiting or comes within `seconds`, or if the connection ends."""
        try:
            line = await self._take(lambda _: True, seconds, "nothing")
        except NoMessage:
            return
        raise AssertionError(f"expected nothing, received {line.raw[:500]!r}")

    async def expect_eof(self, timeout: float = TIMEOUT) -> list[bytes]:
        """Wait until the bridge ends the connection (a reset counts); returns the lines that came before."""
        lines: list[bytes] = []
        with contextlib.suppress(Closed):
            async with asyncio.timeout(timeout):
                while True:
                    lines.append((await self._take(lambda _: True, timeout, "the end")).raw)
        return lines

    @property
    def unread(self) -> list[bytes]:
        """Lines that were read from the socket and that no call has taken."""
        return [line.raw for line in self._lines.values()]

    async def _take(self, wanted: Callable[[_Line], bool], timeout: float, what: str) -> _Line:
        seen = 0  # number of the first line this call has not looked at
        try:
            async with asyncio.timeout(timeout):
                while True:
                    async with self._reading:
                        while self._oldest < self._next and self._oldest not in self._lines:
                            self._oldest += 1
                        for number in range(max(seen, self._oldest), self._next):
                            line = self._lines.get(number)
                            if line is not None and wanted(line):
                                return self._lines.pop(number)
                        seen = self._next
                        while not self._split():
                            if self._eof:
                                raise Closed(f"connection ended, expected {what}; left over: {self._left()}")
                            await self._read_some()
        except TimeoutError:
            raise NoMessage(f"expected {what} within {timeout} s; left over: {self._left()}") from None

    def _left(self) -> str:
        return repr([raw[:200] for raw in self.unread[:20]] + [bytes(self._partial[:200])])

    def _split(self) -> bool:
        """Move whole lines out of the partial buffer; whether there were any."""
        if self._partial.find(b"\n", self._searched) < 0:
            self._searched = len(self._partial)
            return False
        *lines, rest = bytes(self._partial).split(b"\n")
        for line in lines:
            self._lines[self._next] = _Line(line)
            self._next += 1
        self._partial = bytearray(rest)
        self._searched = len(rest)
        return True

    async def _read_some(self) -> None:
        # Wait for readiness and read after it in one step: a timeout in between can lose no bytes.
        readable: asyncio.Future[None] = self._loop.create_future()

        def ready() -> None:
            if not readable.done():
                readable.set_result(None)

        self._loop.add_reader(self.sock, ready)
        try:
            await readable
        finally:
            self._loop.remove_reader(self.sock)
        try:
            data = self.sock.recv(READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._partial += data
        else:
            self._eof = True

    # Ending.

    def half_close(self) -> None:
        """End our direction only; what the bridge still writes can be read."""
        self.sock.shutdown(socket.SHUT_WR)

    def abort(self) -> None:
        """End the connection at once: TCP sends a reset (SO_LINGER 0), a Unix socket is simply gone."""
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """Close the socket; idempotent."""
        self.sock.close()


async def _connect_path(loop: asyncio.AbstractEventLoop, sock: socket.socket, path: str) -> None:
    """Connect to a path of any length: long ones go through a descriptor of their directory (Linux)."""
    if len(os.fsencode(path)) < 100:
        await loop.sock_connect(sock, path)
        return
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:
        await loop.sock_connect(sock, f"/proc/self/fd/{directory}/{os.path.basename(path)}")
    finally:
        os.close(directory)
