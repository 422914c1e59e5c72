"""The server's stdin: what is written to it, how much waits, and that the server has closed it.

Nothing here knows of processes: `child.py` decides what follows.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, Protocol

from bridge.insist import insist
from bridge.pipes import Pipe, unread_bytes

if TYPE_CHECKING:
    from bridge.hangup import HangupWatch

__all__ = ["STDIN_HIGH", "ServerStdin", "StdinOwner"]

# Unsent stdin above HIGH is reported as full, below LOW as flowing again, in bytes. Enough for the server
# never to wait for us, and no more than that is lost with it. uvloop's own low mark would be 16 bytes.
STDIN_HIGH: Final = 1 << 20
STDIN_LOW: Final = 256 << 10


class StdinOwner(Protocol):
    """Who is told what happens to a server's stdin."""

    def stdin_lost(self) -> None:
        """The server has closed it, or is gone; may come from within `write` and `open`, and twice."""

    def stdin_full(self) -> None:
        """More than 1 MiB is unsent; may come from within `write`."""

    def stdin_flows(self) -> None:
        """No more than 256 KiB is unsent again."""


class ServerStdin(asyncio.Protocol):
    """The write end of one server's stdin. `connect` and then `open` have to be called first.

    Args:
        hangups: notices that the server closes it before anything is written to it; None: left to the loop.
    """

    def __init__(self, owner: StdinOwner, hangups: HangupWatch | None) -> None:
        self._owner = owner
        self._hangups = hangups
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._fd = -1
        self._accepting = False

    async def connect(self, loop: asyncio.AbstractEventLoop, pipe: Pipe) -> None:
        """Attach the pipe to the loop, which owns it from then on; it is closed if that fails."""
        self._fd = pipe.fileno()
        self._transport, _ = await loop.connect_write_pipe(lambda: self, pipe)

    def open(self) -> None:
        """Take data from now on."""
        transport = self._transport
        assert transport is not None
        if transport.is_closing():  # closed by the server already
            self._owner.stdin_lost()
            return
        transport.set_write_buffer_limits(high=STDIN_HIGH, low=STDIN_LOW)
        self._accepting = True
        if self._hangups is not None:
            with contextlib.suppress(OSError):  # the system's limit of watches: the next write will tell
                self._hangups.watch(self._fd, self._owner.stdin_lost)

    def write(self, data: bytes) -> None:
        """Send bytes. Never raises; ignored once it is closed, on whichever side."""
        if self._accepting and self._transport is not None:
            try:
                self._transport.write(data)
            except Exception:  # uvloop: RuntimeError, once the pipe is closed on the server's account
                self._owner.stdin_lost()

    @property
    def unsent(self) -> int:
        """Bytes that wait for room in the pipe."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def unread(self) -> int:
        """Bytes that were written and that the server has not read; 0 if the system does not tell."""
        return self.unsent + unread_bytes(self._fd)

    def end(self) -> None:
        """Take nothing more, and close the pipe behind what is unsent."""
        self._accepting = False
        self._unwatch()
        if self._transport is not None:
            self._transport.close()

    def drop(self) -> None:
        """Close the pipe with whatever is unsent; idempotent."""
        self._accepting = False
        self._unwatch()
        # The stock loop's transport does not bear being aborted when it is closed already.
        transport = self._transport
        if transport is not None and (not transport.is_closing() or transport.get_write_buffer_size()):
            transport.abort()

    def _unwatch(self) -> None:
        """To be called before the descriptor is closed: its number may be another child's a moment later."""
        if self._hangups is not None and self._fd >= 0:
            self._hangups.forget(self._fd)
        self._fd = -1

    def _closed(self) -> None:
        """The transport is closing: by the server's doing, if it was not ours."""
        if self._accepting:
            self._owner.stdin_lost()
        else:
            self._unwatch()

    # --- As the loop's protocol

    def eof_received(self) -> None:  # uvloop: nobody can read the pipe any more
        self._closed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed()

    def pause_writing(self) -> None:
        insist(self._loop, self._full)

    def resume_writing(self) -> None:
        insist(self._loop, self._flows)

    def _full(self) -> None:
        if self._accepting:
            self._owner.stdin_full()

    def _flows(self) -> None:
        # Said once: if it went by unheard, nothing would be moved into stdin any more.
        if self._accepting:
            self._owner.stdin_flows()
