"""Where clients come in: all listeners of a bridge, from the first client to closing.

Owns the listening sockets of one bridge and the event loop's servers on them. They are opened by
`binding.py`; who a client is and what becomes of it is `hub.py`'s and `client.py`'s.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from bridge.binding import BACKLOG
from bridge.listener import Listener

_log = logging.getLogger("bridge")

PATH_CHECK: Final = 5.0
"""How often, in seconds, a Unix socket's path is looked at: without it nobody can connect."""

_CLEANS_UP: Final = hasattr(os, "process_cpu_count")
"""From Python 3.13 on (which has that function too) a Unix server removes its path unless told not to."""


class Acceptor:
    """The listeners of one bridge.

    Args:
        listeners: opened, all of them; they are the acceptor's to close.
        accept: makes the protocol of a new connection.
    """

    def __init__(self, listeners: Sequence[Listener], accept: Callable[[Listener], asyncio.Protocol]) -> None:
        self._accept = accept
        self._loop = asyncio.get_running_loop()
        self._listeners = listeners
        self._servers: list[asyncio.AbstractServer] = []
        self._missing: set[Listener] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def serve(self) -> None:
        """Accept clients, and log the real addresses."""
        for listener in self._listeners:
            self._servers.append(await self._serve(listener))
        for listener in self._listeners:
            _log.info("listening on %s", listener.address)
        if any(listener.address.kind == "unix" for listener in self._listeners):
            self._timer = self._loop.call_later(PATH_CHECK, self._check_paths)

    async def _serve(self, listener: Listener) -> asyncio.AbstractServer:
        def accept() -> asyncio.Protocol:
            try:
                return self._accept(listener)
            except Exception:
                # libuv would never accept again where one connection was left standing.
                _log.exception("a client was turned away: a fault of the bridge")
                return TurnedAway()

        if listener.address.kind == "tcp":
            return await self._loop.create_server(accept, sock=listener.sock, backlog=BACKLOG)
        # The path is the listener's to remove: it knows whether it is still ours.
        options: dict[str, Any] = {"cleanup_socket": False} if _CLEANS_UP else {}
        return await self._loop.create_unix_server(accept, sock=listener.sock, backlog=BACKLOG, **options)

    def close(self) -> None:
        """Accept no more, and remove the paths that are ours; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        for listener in self._listeners:
            listener.close()
        for server in self._servers:
            server.close()

    def _check_paths(self) -> None:
        self._timer = self._loop.call_later(PATH_CHECK, self._check_paths)
        for listener in self._listeners:
            if listener.in_place():
                self._missing.discard(listener)
            elif listener not in self._missing:  # once is enough: nothing will mend it but a restart
                self._missing.add(listener)
                _log.warning(
                    "%s was deleted, moved or replaced: nobody can connect there; restart the bridge",
                    listener.address,
                )


class TurnedAway(asyncio.Protocol):
    """A connection that is closed as it comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
