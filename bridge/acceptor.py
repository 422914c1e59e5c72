"""Where clients come in: all listeners of a bridge, from binding to closing.

Owns the listening sockets of one bridge and the event loop's servers on them. Who a client is and what
becomes of it is `hub.py`'s and `client.py`'s.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any, Final

from bridge.activation import Inherited
from bridge.config import Settings
from bridge.errors import ConfigError
from bridge.listener import Listener, open_listener

_log = logging.getLogger("bridge")

BACKLOG: Final = 4096
"""Connections that may wait to be accepted: all clients of a bridge that was just restarted come at once."""

PATH_CHECK: Final = 5.0
"""How often, in seconds, a Unix socket's path is looked at: without it nobody can connect."""

_CLEANS_UP: Final = hasattr(os, "process_cpu_count")
"""From Python 3.13 on (which has that function too) a Unix server removes its path unless told not to."""


class Acceptor:
    """The listeners of one bridge.

    Args:
        accept: makes the protocol of a new connection.
    """

    def __init__(self, settings: Settings, accept: Callable[[Listener], asyncio.Protocol]) -> None:
        self._settings = settings
        self._accept = accept
        self._loop = asyncio.get_running_loop()
        self._listeners: list[Listener] = []
        self._servers: list[asyncio.AbstractServer] = []
        self._missing: set[Listener] = set()
        self._timer: asyncio.TimerHandle | None = None

    def bind(self) -> None:
        """Open all of them; nobody is accepted yet.

        Raises:
            ConfigError, ListenError: one cannot be opened. `close` closes those that were.
        """
        settings = self._settings
        inherited: Inherited | None = None
        for address in settings.listen:
            if address.kind == "systemd":
                if inherited is None:
                    inherited = Inherited.from_environment()
                self._listeners += inherited.take(address, peers=settings.peers, insecure=settings.insecure)
            else:
                self._listeners += open_listener(
                    address,
                    mode=settings.socket_mode,
                    group=settings.socket_group,
                    peers=settings.peers,
                    insecure=settings.insecure,
                    backlog=BACKLOG,
                )
        if inherited is not None and (names := inherited.close_rest()):
            _log.warning("sockets handed down that no --listen takes were closed: %s", ", ".join(names))
        self._check_peers()

    def _check_peers(self) -> None:
        """Who may use TCP cannot be told: nobody should believe that it was restricted."""
        if not self._settings.peers.restricted:
            return
        open_to_all = [listener.address for listener in self._listeners if listener.address.kind == "tcp"]
        if len(open_to_all) == len(self._listeners):
            raise ConfigError("--allow-uid and --allow-gid need a Unix socket: nobody can tell who uses TCP")
        for address in open_to_all:
            _log.warning(
                "%s serves every user of this machine: --allow-uid and --allow-gid end at TCP", address
            )

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
