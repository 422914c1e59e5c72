"""Notice that a peer is gone, without reading from it.

A client that has hung up looks like one that has only finished sending: reading gives end of file for both,
and nothing at all while reading is paused. The kernel knows the difference: EPOLLHUP comes after a full close
only. So clients of Unix sockets stand, for their whole life, in an epoll of their own with an empty event
mask, where only EPOLLHUP and EPOLLERR are reported, and the event loop watches that epoll as one more
readable descriptor.

| descriptor | reported when |
|---|---|
| Unix stream socket | the peer closed it, or shut down both directions |
| writing end of a pipe | the last reader closed it (a child that closed its stdin) |
| reading end of a pipe | the last writer closed it |
| TCP socket | it was reset, a keepalive or retransmission failed, or both directions are finished |

A hazard for whoever ends a half-closed connection: after our own `shutdown(SHUT_WR)` both directions of a
Unix socket are finished, which is EPOLLHUP as well, though the peer may still be reading. Call `forget`
first.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import Callable

# How many callbacks run in one turn of the event loop: thousands may leave at once, and others want their
# turn. The epoll is level-triggered, so the rest comes in the next turn.
_MAX_EVENTS_A_TURN = 256


class HangupWatch:
    """One auxiliary epoll, watched by the event loop. Not thread-safe: use it from the loop's thread.

    Where the system has no epoll (macOS) it watches nothing: `active` is False, `watch` does nothing, and
    callers have `hung_up` to ask when they see end of file.

    Attributes:
        active: whether callbacks will ever be called.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Open the epoll and register it with the loop. Raises OSError when descriptors run out."""
        self._loop = loop
        self._callbacks: dict[int, Callable[[], None]] = {}
        self.active = hasattr(select, "epoll")
        if self.active:
            self._open()

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` once, from the loop, when the peer of `fd` is gone; `fd` is then no longer watched.

        A peer that is gone already is reported in the loop's next turn. A descriptor that is being watched
        gets the new callback in place of the old one.

        Raises:
            OSError: `fd` is not open, or is a regular file, or the system's limit of watches is reached.
        """
        if not self.active:
            return
        with contextlib.suppress(FileExistsError):
            self._epoll.register(fd, 0)
        self._callbacks[fd] = callback

    def forget(self, fd: int, callback: Callable[[], None] | None = None) -> None:
        """Watch `fd` no longer. Idempotent; `fd` may be closed already.

        Args:
            callback: if given, only if this is the one to be called. Whoever forgets only after `fd` was
                closed passes
                it, since the number may by then belong to a new connection.
        """
        registered = self._callbacks.get(fd)
        if registered is None or (callback is not None and callback != registered):
            return
        del self._callbacks[fd]
        # An error says that it was closed, and with that gone from the epoll.
        with contextlib.suppress(OSError):
            self._epoll.unregister(fd)

    def close(self) -> None:
        """Watch nothing any more and free the epoll. Idempotent; fine after the loop has been closed."""
        if self.active:
            self.active = False
            self._callbacks.clear()
            self._shut()

    def _open(self) -> None:
        self._epoll = select.epoll()
        try:
            self._loop.add_reader(self._epoll.fileno(), self._ready)
        except BaseException:
            self._epoll.close()
            raise

    def _shut(self) -> None:
        # In this order: the loop has to let go of the number before it can mean another file.
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _ready(self) -> None:
        for _ in range(_MAX_EVENTS_A_TURN):
            # One at a time: a callback may close other descriptors and open new ones under the same numbers,
            # and events fetched before that would hit strangers.
            events = self._epoll.poll(0, 1) if self.active else []
            if not events:
                return
            fd = events[0][0]
            callback = self._callbacks.pop(fd, None)
            if callback is None or not hung_up(fd):
                self._drop_ghost(fd, callback)
                continue
            # At once, since the event would come again and again. Before the callback, which may close the
            # descriptor.
            try:
                self._epoll.unregister(fd)
            except OSError:
                self._drop_ghost(fd, None)
            # If it fails the loop reports that, and calls again for the others: they are still in the epoll.
            callback()

    def _drop_ghost(self, fd: int, callback: Callable[[], None] | None) -> None:
        """Get rid of a registration whose descriptor was closed while a duplicate of it lives on.

        The kernel ties a registration to the open file, not to its number: it stays, reports for ever, and
        cannot be removed once the number is closed or means another file. Only a new epoll helps.
        """
        if callback is not None:
            self._callbacks[fd] = callback
        self.active = False  # in case the next lines fail: better blind than using a closed epoll
        self._shut()
        self._open()
        self.active = True
        for known in list(self._callbacks):
            try:
                self._epoll.register(known, 0)
            except OSError:
                del self._callbacks[known]  # closed without a word to us


def hung_up(fd: int) -> bool:
    """Whether the peer of `fd` is gone at this moment: POLLHUP or POLLERR. Never waits.

    False for a descriptor that is closed or negative: nobody can be told from nothing there.
    """
    if fd < 0:
        return False
    poll = select.poll()
    poll.register(fd, 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))
