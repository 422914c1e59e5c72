"""A client of Streamable HTTP, for peers: one POST at a time on one connection, checked like the others."""

from __future__ import annotations

import json
import os
import socket
from collections import deque
from typing import Any

from tests.bench.lines import READ, Wrong
from tests.bench.messages import FIRST_ID, INITIALIZE, INITIALIZED, Ring, request, result_text


class HttpClient:
    """Has the methods of `LineClient` that `load.py` uses. Legacy era only: the peers know no other."""

    def __init__(self, address: str, number: int) -> None:
        self.number = number
        where, _, self.path = address.removeprefix("http://").partition("/")
        self.host = where
        self.session = b""
        self._open()

    def _open(self) -> None:
        host, _, port = self.host.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.read_fd = self.write_fd = self.socket.fileno()
        self.held = b""

    def post(self, body: bytes) -> bytes:
        """A request as bytes."""
        return (
            b"POST /%b HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\n"
            b"Accept: application/json, text/event-stream\r\n%bContent-Length: %d\r\n\r\n%b"
            % (self.path.encode(), self.host.encode(), self.session, len(body), body)
        )

    def exchange(self, body: bytes) -> tuple[bytes, bytes]:
        """Post and wait; head and body of the answer."""
        self.socket.sendall(self.post(body))
        while True:
            data = os.read(self.read_fd, READ)
            if not data:
                raise Wrong(f"client {self.number}: the connection ended")
            self.held += data
            answer = self.take_answer()
            if answer is not None:
                return answer

    def handshake(self, *, modern: bool) -> bool:
        """Begin a session, and ask once."""
        assert not modern
        head, _ = self.exchange(INITIALIZE)
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"mcp-session-id":
                self.session = b"Mcp-Session-Id: %b\r\nMcp-Protocol-Version: 2025-06-18\r\n" % value.strip()
        self.exchange(INITIALIZED)
        _, body = self.exchange(request(7, "echo", b"hello", modern=False))
        message = event(body)
        if message.get("id") != 7 or result_text(message) != b"hello":
            raise Wrong(f"client {self.number}: not the answer: {body[:200]!r}")
        return False

    def load(self, ring: Ring, depth: int, *, together: bool = False) -> None:
        """Be ready; `depth` must be 1."""
        assert depth == 1
        self.ring = ring
        self.depth = depth
        self.together = together
        size = ring.request_size
        self.posts = [
            self.post(ring.requests[at : at + size - 1]) for at in range(0, ring.requests_size, size)
        ]
        self.wanted = self.sent = self.done = 0
        self.out = memoryview(b"")
        self.times: deque[list[int]] = deque()

    def begin(self) -> None:
        """Open a fresh connection: servers close one on which nothing was asked while others connected."""
        self.socket.close()
        self._open()
        os.set_blocking(self.read_fd, False)

    def send_more(self, count: int, now: int) -> bool:
        """Send one request more."""
        assert count == 1
        self.times.append([now, 1])
        self.out = memoryview(self.posts[self.done % self.ring.count])
        self.wanted += len(self.out)
        return self.flush()

    def flush(self) -> bool:
        """Send what is left to send; whether that is all."""
        while self.out:
            try:
                count = os.write(self.write_fd, self.out)
            except BlockingIOError:
                return False
            self.sent += count
            self.out = self.out[count:]
        return True

    def read(self) -> int:
        """Read once; 1 when the answer is whole and the right one. Raises Wrong."""
        try:
            data = os.read(self.read_fd, READ)
        except BlockingIOError:
            return 0
        if not data:
            raise Wrong(f"client {self.number}: the connection ended")
        self.held += data
        answer = self.take_answer()
        if answer is None:
            return 0
        message = event(answer[1])
        index = self.done % self.ring.count
        size = self.ring.answer_size
        expected = json.loads(self.ring.answers[index * size : (index + 1) * size])
        if message.get("id") != FIRST_ID + index or result_text(message) != result_text(expected):
            raise Wrong(f"client {self.number}: not its answer: {answer[1][:200]!r}")
        self.done += 1
        return 1

    def take_answer(self) -> tuple[bytes, bytes] | None:
        """Head and body of an answer, if it is whole."""
        head, found, rest = self.held.partition(b"\r\n\r\n")
        if not found:
            return None
        if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 202")):
            raise Wrong(f"client {self.number}: {head[:100]!r} {rest[:200]!r}")
        lower = head.lower()
        if b"transfer-encoding: chunked" in lower:
            body = []
            while True:
                size_text, found, rest = rest.partition(b"\r\n")
                if not found:
                    return None
                size = int(size_text, 16)
                if len(rest) < size + 2:
                    return None
                body.append(rest[:size])
                rest = rest[size + 2 :]
                if not size:
                    break
        else:
            size = int(lower.partition(b"content-length:")[2].split(b"\r\n")[0] or b"0")
            if len(rest) < size:
                return None
            body, rest = [rest[:size]], rest[size:]
        self.held = rest
        return head, b"".join(body)

    def close(self) -> None:
        """Hang up."""
        self.socket.close()


def event(body: bytes) -> dict[str, Any]:
    """The response in a body: JSON, or the last event of a stream."""
    if not body.startswith(b"{"):
        lines = [line for line in body.splitlines() if line.startswith(b"data:") and len(line) > 6]
        body = lines[-1][5:] if lines else b"{}"
    message: dict[str, Any] = json.loads(body)
    return message
