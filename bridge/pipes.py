"""The pipes to a server: opening and emptying them, and what the event loop needs to carry them.

Nothing here knows of processes.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import logging
import os
import termios
from collections.abc import Callable
from typing import cast

from bridge.insist import insist

__all__ = ["Pipe", "PipeReader", "StderrLines", "drain", "enlarge", "open_pipe"]

logger = logging.getLogger("bridge")

# The most an unprivileged process may ask for by default. Beside 64 KiB, the system's own size, it carries
# messages of 4 KB and more a fifth faster.
PIPE_SIZE = 1 << 20
READ_SIZE = 256 << 10
# So much at once, and a pipe is read on only in the next turn of the event loop: libuv would read up to 32
# times from one that is never empty, 8 MiB, before it looks at anything else, a signal for one.
TURN_BYTES = 128 << 10
# A line of stderr is cut here: what a server writes must not grow in memory if it never writes a newline.
STDERR_LINE = 8 << 10
# Enough for the last traceback, which is shown when the server crashes.
STDERR_TAIL = 16 << 10


class Pipe:
    """A descriptor, closed at most once: what the loop's pipe transports need of a file."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """The descriptor, -1 once it is closed."""
        return self._fd

    def close(self) -> None:
        """Close the descriptor; idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            # uvloop has closed the descriptor itself a moment before.
            with contextlib.suppress(OSError):
                os.close(fd)


class PipeReader(asyncio.Protocol):
    """Passes on what comes out of a pipe, and its end (possibly twice)."""

    def __init__(self, on_data: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self._on_data = on_data
        self._on_end = on_end
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)  # uvloop's are no subclass of it

    def data_received(self, data: bytes) -> None:
        self._on_data(data)
        transport = self._transport
        if len(data) >= TURN_BYTES and transport is not None and not transport.is_closing():
            transport.pause_reading()
            loop = asyncio.get_running_loop()
            loop.call_soon(insist, loop, self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> None:
        self._on_end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_end()


class StderrLines:
    """Cuts stderr into lines and keeps its tail, both in bounded memory.

    Args:
        relay: gets each line without its newline; of a longer line than 8 KiB only the start. None: nobody.
    """

    __slots__ = ("_line", "_relay", "_skipping", "_tail")

    def __init__(self, relay: Callable[[bytes], None] | None) -> None:
        self._relay = relay
        self._line = bytearray()  # a line whose newline has not come
        self._skipping = False  # that line has been cut and relayed: nothing counts until its newline
        self._tail = bytearray()

    def feed(self, data: bytes) -> None:
        """Take what was read."""
        self._tail += data[-STDERR_TAIL:]
        if len(self._tail) > 4 * STDERR_TAIL:  # seldom, so that small writes do not cost a copy each
            del self._tail[:-STDERR_TAIL]
        if self._relay is None:
            return
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._add(data, start, end)
            if not self._skipping:
                self._emit()
            self._skipping = False
            start = end + 1
        self._add(data, start, len(data))
        if len(self._line) >= STDERR_LINE:
            self._emit()
            self._skipping = True

    def end(self) -> None:
        """The last line needs no newline."""
        if self._line:
            self._emit()

    def tail(self) -> str:
        """The last 16 KiB, decoded with replacement."""
        return self._tail[-STDERR_TAIL:].decode("utf-8", "replace")

    def _add(self, data: bytes, start: int, end: int) -> None:
        if not self._skipping:
            self._line += data[start : min(end, start + STDERR_LINE - len(self._line))]

    def _emit(self) -> None:
        line = bytes(self._line)
        self._line.clear()
        if self._relay is not None:
            try:
                self._relay(line)
            except Exception:  # would close the pipe, and the server's next write to stderr would end it
                logger.exception("bug: a line of the server's stderr could not be relayed")


def open_pipe(readers: list[Pipe], writers: list[Pipe]) -> tuple[Pipe, Pipe]:
    """Open a close-on-exec pipe and put its ends on the two lists. Raises OSError."""
    reader_fd, writer_fd = os.pipe()
    reader, writer = Pipe(reader_fd), Pipe(writer_fd)
    readers.append(reader)
    writers.append(writer)
    return reader, writer


def enlarge(pipe: Pipe) -> None:
    """Give a pipe the size that serves throughput best, if the system lets us."""
    # AttributeError: no Linux. EPERM: this user's pipes hold all they may already; 64 KiB serve as well.
    with contextlib.suppress(AttributeError, OSError):
        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, PIPE_SIZE)


def drain(transport: asyncio.ReadTransport, fd: int, on_data: Callable[[bytes], None]) -> None:
    """Stop reading through the loop, and pass on what is in the pipe now, at most what a pipe can hold.

    Never waits. For the last moment of a pipe: the transport is not to be resumed afterwards.
    """
    if transport.is_closing():
        return
    transport.pause_reading()
    taken = 0
    while taken < PIPE_SIZE:
        try:
            data = os.read(fd, READ_SIZE)
        except OSError:  # EAGAIN: empty, and somebody still holds the other end
            return
        if not data:
            return
        taken += len(data)
        on_data(data)


def unread_bytes(fd: int) -> int:
    """How many bytes of a pipe nobody has read yet, asked at either end; 0 if the system does not tell."""
    if fd < 0:
        return 0
    answer = array.array("i", [0])
    try:
        fcntl.ioctl(fd, termios.FIONREAD, answer)
    except OSError:
        return 0
    return answer[0]
