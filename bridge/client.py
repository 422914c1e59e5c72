"""One client connection: its transport, what it has not read yet, and how its end is noticed.

Owns the socket. Never looks into what goes through it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final, Protocol, cast

from bridge.core.outbox import Control, Key
from bridge.hangup import HangupWatch, hung_up
from bridge.insist import insist
from bridge.listener import Listener, peer_allowed, prepare_connection

_log = logging.getLogger("bridge.client")

WRITE_HIGH: Final = 64 * 1024
"""Unread output, in bytes, above which a client is watched: below it nothing is counted."""
WRITE_LOW: Final = 16 * 1024

CLOSE_TIMEOUT: Final = 5.0
"""How long a client has to read what it is still sent before its connection is cut, in seconds."""

TURN_BYTES: Final = 128 * 1024
"""A client that sends so much at once is read on only in the next turn of the event loop, in bytes: libuv
would read up to 32 times, 8 MiB, from one connection that always fills its buffer of 250 KiB."""

HANGUP_GRACE: Final = 0.2
"""How long the last bytes of a client that has closed may take to be read, in seconds."""


class ClientOwner(Protocol):
    """Who is told what happens on a connection; always from the event loop."""

    hangups: HangupWatch

    def client_connected(self, connection: ClientConnection) -> Key | None:
        """A client is here; None if it is not served, and then `connection` was told why."""

    def client_refused(self, listener: Listener) -> None:
        """Somebody connected who may not, and was sent away without a word."""

    def client_data(self, key: Key, data: bytes) -> None:
        """It sent bytes, cut anywhere."""

    def client_turn(self, key: Key) -> None:
        """It is its turn again: see `Control.TURN`."""

    def client_eof(self, key: Key) -> None:
        """It stopped sending and may still read."""

    def client_gone(self, key: Key) -> None:
        """It is gone: it neither sends nor reads. May come twice."""

    def client_lost(self, connection: ClientConnection) -> None:
        """Its connection is closed: the last call."""

    def client_congested(self, connection: ClientConnection) -> None:
        """It does not read as fast as it is sent to."""


class ClientConnection(asyncio.Protocol):
    """A connection accepted at a listener.

    Args:
        buffer_limit: bytes of unread output above which the client is cut when more is to be sent. One
            whole message always fits.
        linger: how long one that has stopped sending may take to read its last answers, in seconds.
    """

    __slots__ = (
        "_buffer_limit",
        "_closing",
        "_fd",
        "_gone",
        "_half_closed",
        "_linger",
        "_listener",
        "_owner",
        "_paused",
        "_timer",
        "_transport",
        "_turn_owed",
        "_yielding",
        "congested",
        "key",
        "send",
    )

    def __init__(self, owner: ClientOwner, listener: Listener, buffer_limit: int, linger: float) -> None:
        self._owner = owner
        self._listener = listener
        self._buffer_limit = buffer_limit
        self._linger = linger
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._fd = -1
        self._closing = False
        self._gone = False
        self._half_closed = False
        self._paused = False
        self._turn_owed = False
        self._yielding = False
        self.key: Key | None = None
        self.congested = False
        self.send: Callable[[bytes], None] = _drop
        """Write bytes. A client that has left too much unread is cut instead."""

    # --- From the transport. Each is a boundary: an exception costs this connection and no other.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        self._transport = transport
        sock: socket.socket = transport.get_extra_info("socket")
        try:
            if not peer_allowed(self._listener, sock):
                transport.abort()
                self._owner.client_refused(self._listener)
                return
            transport.set_write_buffer_limits(high=WRITE_HIGH, low=WRITE_LOW)
            self.send = transport.write
            if sock.family == socket.AF_UNIX:
                # For the whole life of the connection, reading or not: a full close is seen at once.
                self._fd = sock.fileno()
                self._owner.hangups.watch(self._fd, self._hung_up)
            else:
                prepare_connection(sock)
            self.key = self._owner.client_connected(self)
        except Exception:
            self._fail()

    def data_received(self, data: bytes) -> None:
        if not self._closing:
            try:
                self._owner.client_data(self.key, data)  # type: ignore[arg-type]  # set, or it is closing
                if len(data) >= TURN_BYTES:
                    self._yield_turn()
            except Exception:
                self._fail()

    def eof_received(self) -> bool:
        if self.key is None or self._closing:
            return False
        try:
            if self._gone or (self._fd >= 0 and hung_up(self._fd)):
                self.abort()
                return False
            self._half_closed = True
            self._owner.client_eof(self.key)
        except Exception:
            self._fail()
        return True  # it may still read: closing is the owner's to say

    def connection_lost(self, exc: Exception | None) -> None:
        insist(asyncio.get_running_loop(), self._lost)

    def _lost(self) -> None:
        if self._fd >= 0:
            self._owner.hangups.forget(self._fd, self._hung_up)
            self._fd = -1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._end()
        self._transport = None
        self._owner.client_lost(self)

    def pause_writing(self) -> None:
        try:
            self.congested = True
            if not self._closing:
                self.send = self._send_watched
            self._owner.client_congested(self)
        except Exception:
            self._fail()

    def resume_writing(self) -> None:
        self.congested = False
        if self._transport is not None and not self._closing:
            self.send = self._transport.write

    # --- For the owner

    @property
    def strict(self) -> bool:
        """Whether anybody's browser can write to it."""
        return self._listener.address.kind == "tcp"

    @property
    def unread(self) -> int:
        """Bytes it was sent and has not read, as far as they are still here."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def control(self, what: Control) -> None:
        """Stop or go on reading from the client."""
        transport = self._transport
        if transport is None or self._closing:
            return
        if what is Control.PAUSE:
            self._paused = True
            transport.pause_reading()
        elif what is Control.TURN:
            self._turn_owed = True
            self._yield_turn()
        else:
            self._paused = False
            if not self._yielding:
                transport.resume_reading()

    def close(self) -> None:
        """Close behind what was sent; cut if that is not read in time.

        That is `CLOSE_TIMEOUT`, or longer for a client that waits for nothing but its last answers.
        """
        if self._transport is None or self._closing:
            return
        self._end()
        self._set_timer(max(CLOSE_TIMEOUT, self._linger) if self._half_closed else CLOSE_TIMEOUT)
        self._transport.close()

    def abort(self) -> None:
        """Cut the connection now; what was not read is lost."""
        self._end()
        try:
            if self.key is not None:
                self._owner.client_gone(self.key)
        finally:
            if self._transport is not None:
                self._transport.abort()

    # --- Inside

    def _end(self) -> None:
        """Nothing more is read or written."""
        self._closing = True
        self.send = _drop

    def _send_watched(self, data: bytes) -> None:
        """`send` to a client that does not read as fast as it is sent to."""
        transport = self._transport
        if transport is None:
            return
        if transport.get_write_buffer_size() > self._buffer_limit:
            _log.warning("client %s left %d bytes unread and was cut", self.key, self.unread)
            self._end()
            # Not at once: what else the core has returned is written first. The cancellation of a request
            # would overtake it.
            loop = asyncio.get_running_loop()
            loop.call_soon(insist, loop, self.abort)
            return
        self._owner.client_congested(self)
        transport.write(data)

    def _hung_up(self) -> None:
        """Both directions are closed by the peer. What it wrote before may not have been read yet."""
        self._fd = -1  # the watch calls once, and has forgotten the descriptor by now
        try:
            self._gone = True
            if self._closing or self._paused or self.key is None:
                self.abort()
            else:
                self._set_timer(HANGUP_GRACE)
        except Exception:
            self._fail()

    def _yield_turn(self) -> None:
        """Let the others be read before more is read from here."""
        if self._transport is None or self._closing or self._yielding:
            return
        if self._turn_owed or not self._paused:
            self._yielding = True
            self._transport.pause_reading()
            loop = asyncio.get_running_loop()
            loop.call_soon(insist, loop, self._take_turn)

    def _take_turn(self) -> None:
        self._yielding = False
        if self._turn_owed and not self._closing:
            self._turn_owed = False
            try:
                self._owner.client_turn(self.key)  # type: ignore[arg-type]  # set, or it is closing
            except Exception:
                self._fail()
        if self._transport is not None and not (self._closing or self._paused or self._yielding):
            self._transport.resume_reading()

    def _set_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, insist, loop, self.abort)

    def _fail(self) -> None:
        _log.exception("client %s was cut: a fault of the bridge", self.key)
        self.abort()


def _drop(data: bytes) -> None:
    """`send` to a connection that is closing, or not open yet."""
