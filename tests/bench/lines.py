"""A client of newline framing over sockets or pipes, for measurements: it sends from a ring, and checks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections import deque
from typing import Any

from tests.bench.messages import FIRST_ID, INITIALIZE, INITIALIZED, Ring, request, result_text

READ = 256 << 10


class Wrong(Exception):
    """An answer that this client must not get."""


class LineClient:
    """One connection.

    Args:
        address: `unix:PATH`, `tcp:HOST:PORT`, or the command of a server to speak to directly.
        number: of this client.
    """

    def __init__(self, address: str | list[str], number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.socket: socket.socket | None = None
        if isinstance(address, list):
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(address, stdin=pipe, stdout=pipe, bufsize=0)
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.read_fd, self.write_fd = self.process.stdout.fileno(), self.process.stdin.fileno()
        else:
            kind, _, where = address.partition(":")
            if kind == "unix":
                self.socket = socket.socket(socket.AF_UNIX)
                self.socket.connect(where)
            else:
                host, _, port = where.rpartition(":")
                self.socket = socket.create_connection((host, int(port)))
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.read_fd = self.write_fd = self.socket.fileno()
        self.rest = b""

    # --- Before the measurement: blocking, a line at a time

    def ask(self, line: bytes) -> dict[str, Any]:
        """Send a request and return its response, read as JSON."""
        self.tell(line)
        return self.next_message()

    def tell(self, line: bytes) -> None:
        """Send a line."""
        data = memoryview(line + b"\n")
        while data:
            data = data[os.write(self.write_fd, data) :]

    def next_message(self) -> dict[str, Any]:
        """Wait for a line."""
        while b"\n" not in self.rest:
            data = os.read(self.read_fd, READ)
            if not data:
                raise Wrong(f"client {self.number}: the connection ended")
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def handshake(self, *, modern: bool) -> bool:
        """Begin a session, and ask once; whether the answer had its `id` behind the result."""
        if not modern:
            message = self.ask(INITIALIZE)
            if "result" not in message:
                raise Wrong(f"client {self.number}: no session: {str(message)[:200]}")
            self.tell(INITIALIZED)
        message = self.ask(request(7, "echo", b"hello", modern=modern))
        if message.get("id") != 7 or result_text(message) != b"hello":
            raise Wrong(f"client {self.number}: not the answer: {str(message)[:200]}")
        return next(iter(message)) == "result"

    # --- The measurement: never blocks

    def load(self, ring: Ring, depth: int, *, together: bool = False) -> None:
        """Be ready to keep `depth` requests in flight; `together`: sent when all are answered."""
        os.set_blocking(self.read_fd, False)
        os.set_blocking(self.write_fd, False)
        self.ring = ring
        self.room = memoryview(ring.requests)
        self.depth = depth
        self.together = together
        self.wanted = self.sent = self.got = self.done = 0  # bytes, bytes, bytes, requests
        self.times: deque[list[int]] = deque()  # when so many requests were sent
        self.careful: _Careful | None = None

    def begin(self) -> None:
        """The measurement begins."""

    def send_more(self, count: int, now: int) -> bool:
        """Send so many requests more; whether all of them went out."""
        self.times.append([now, count])
        self.wanted += count * self.ring.request_size
        return self.flush()

    def flush(self) -> bool:
        """Send what is left to send; whether that is all."""
        ring_size = self.ring.requests_size
        while (left := self.wanted - self.sent) > 0:
            begin = self.sent % ring_size
            try:
                self.sent += os.write(self.write_fd, self.room[begin : begin + left])
            except BlockingIOError:
                return False
        return True

    def read(self) -> int:
        """Read once and check it; how many requests are answered by it. Raises Wrong."""
        try:
            data = os.read(self.read_fd, READ)
        except BlockingIOError:
            return 0
        if not data:
            raise Wrong(f"client {self.number}: the connection ended")
        if self.careful is not None:
            return self.careful.take(data)
        ring = self.ring
        got = self.got
        if not ring.answers.startswith(data, got % ring.answers_size):
            self.careful = _Careful(self, got)
            return self.careful.take(data)
        size = ring.answer_size
        self.got = got + len(data)
        done = self.got // size - got // size
        self.done += done
        if self.got * ring.request_size > self.wanted * size:
            raise Wrong(f"client {self.number}: an answer to what was not asked")
        return done

    def close(self) -> None:
        """Hang up; a server of its own ends with it."""
        if self.socket is not None:
            self.socket.close()
        if self.process is not None:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdin.close()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process.stdout.close()


class _Careful:
    """Checks answers that are not the expected bytes, by value: other spelling or order is no fault."""

    def __init__(self, client: LineClient, got: int) -> None:
        self.client = client
        ring = client.ring
        begin = got % ring.answers_size
        # The part of an answer that has been read, and as expected.
        self.rest = ring.answers[begin - begin % ring.answer_size : begin]
        self.asked = got // ring.answer_size
        self.open: dict[int, int] = {}  # requests in flight, by their id: progress that came
        self.lines_each = ring.answers.count(b"\n", 0, ring.answer_size)

    def take(self, data: bytes) -> int:
        """How many requests are answered by `data`."""
        client, ring = self.client, self.client.ring
        asked = client.wanted // ring.request_size
        self.open.update((FIRST_ID + at % ring.count, 0) for at in range(self.asked, asked))
        self.asked = asked
        *lines, self.rest = (self.rest + data).split(b"\n")
        done = 0
        for line in lines:
            message = json.loads(line)
            note = message.get("method") == "notifications/progress"
            id = message["params"].get("progressToken") if note else message.get("id")
            if type(id) is not int or id not in self.open:
                raise Wrong(f"client {client.number}: not for this client: {line[:200]!r}")
            if note:
                self.open[id] += 1
                if message["params"]["progress"] != self.open[id]:
                    raise Wrong(f"client {client.number}: not the progress that was due: {line[:200]!r}")
                continue
            index = id - FIRST_ID
            expected = ring.answers[index * ring.answer_size : (index + 1) * ring.answer_size]
            last = json.loads(expected[expected.rfind(b"\n", 0, -1) + 1 :])
            if result_text(message) != result_text(last) or self.open.pop(id) != self.lines_each - 1:
                raise Wrong(f"client {client.number}: not its text, or not its progress: {line[:200]!r}")
            done += 1
        client.done += done
        return done
