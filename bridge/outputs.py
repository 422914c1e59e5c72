"""What a server writes, stdout and stderr: read from its pipes, and emptied at their end.

Nothing here knows of processes: `child.py` decides what follows.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import cast

from bridge.insist import insist
from bridge.pipes import PIPE_SIZE

__all__ = ["PipeReader", "StderrLines", "drain"]

logger = logging.getLogger("bridge")

READ_SIZE = 256 << 10
# So much at once, and a pipe is read on only in the next turn of the event loop: libuv would read up to 32
# times from one that is never empty, 8 MiB, before it looks at anything else, a signal for one.
TURN_BYTES = 128 << 10
# A line of stderr is cut here: what a server writes must not grow in memory if it never writes a newline.
STDERR_LINE = 8 << 10
# Enough for the last traceback, which is shown when the server crashes.
STDERR_TAIL = 16 << 10


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
