"""The health endpoint of `--admin`: two HTTP paths for whoever watches over the bridge.

* `/healthz`: 200 as long as the event loop runs. Restart the bridge if it does not answer.
* `/readyz`: 200 if clients are served now, 503 if not; send no clients then, but do not restart.

Owns: the HTTP site, its listeners and its bounds. Never: decides what ready means (the hub does), and never
changes anything: only GET and HEAD are answered. It imports aiohttp, which costs more than the whole rest of
a start, so it is imported only when `--admin` is given.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
from aiohttp import hdrs, web
from aiohttp.http import HttpProcessingError

from bridge.acceptor import TurnedAway
from bridge.address import Address
from bridge.listener import Listener, open_listener, peer_allowed

_log = logging.getLogger(__name__)


def _ours(record: logging.LogRecord) -> bool:
    """False for the fault of a peer: aiohttp would log each bad request as an error, with a traceback."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_http_log = logging.getLogger(f"{__name__}.http")
_http_log.addFilter(_ours)

# Watchers come one at a time; beyond this somebody is holding connections open.
MAX_CONNECTIONS: Final = 64
# One short request is read and answered within milliseconds; a silent or dripping peer is closed after this.
REQUEST_TIMEOUT_S: Final = 5.0
# A body is not wanted; a peer that sends one gets this long to finish, so that it can read the answer.
LINGER_S: Final = 1.0
# What a stop may cost: answers under way take milliseconds, all else is cut.
SHUTDOWN_S: Final = 1.0
# Far above what any prober sends in a request line or in one header field.
MAX_HEADER_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Health:
    """What `/readyz` reports: whether clients are served, and in a word how the server stands ("running")."""

    ready: bool
    state: str


class AdminServer:
    """A running health endpoint; made by `start_admin`.

    Attributes:
        addresses: where it listens, port 0 replaced by the port in use.
    """

    def __init__(self, listeners: list[Listener], health: Callable[[], Health]) -> None:
        self.addresses = [listener.address for listener in listeners]
        self._listeners = listeners
        self._health = health
        self._web = web.Server(
            self._handle,
            logger=_http_log,
            access_log=None,
            keepalive_timeout=REQUEST_TIMEOUT_S,
            lingering_time=LINGER_S,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )
        self._servers: list[asyncio.AbstractServer] = []
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Accept connections on every listener."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            # For Unix sockets too: `create_unix_server` would remove the path by itself on Python 3.13, by a
            # name that is no longer the socket's. Not `web.SockSite`, which has no bound on connections.
            self._servers.append(await loop.create_server(self._connection, sock=listener.sock))

    async def close(self) -> None:
        """Stop listening and cut what is left, within `SHUTDOWN_S` twice over. Idempotent,
        concurrent-safe.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for listener in self._listeners:
            listener.close()
        self._web.pre_shutdown()
        try:
            # The second bound is for aiohttp's own, which stands once for the handler and once for its task.
            await asyncio.wait_for(self._web.shutdown(SHUTDOWN_S), 2 * SHUTDOWN_S)
        except TimeoutError:
            _log.warning("the health endpoint did not stop in time")

    def _connection(self) -> asyncio.Protocol:
        try:
            return TurnedAway() if len(self._web.connections) >= MAX_CONNECTIONS else self._web()
        except Exception:  # libuv would never accept again where one connection was left standing
            _log.exception("a request for the state was turned away: a fault of the bridge")
            return TurnedAway()

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        """Answer one request; the connection is closed after it, so that none can be kept busy."""
        response = self._answer(request)
        response.headers[hdrs.SERVER] = "mcp-bridge"
        response.headers[hdrs.CACHE_CONTROL] = "no-store"
        response.force_close()
        return response

    def _answer(self, request: web.BaseRequest) -> web.Response:
        if not self._allowed(request):
            return _json(403, {"error": "not allowed for this user"})
        if request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            response = _json(405, {"error": "only GET and HEAD"})
            response.headers[hdrs.ALLOW] = "GET, HEAD"
            return response
        if request.path == "/healthz":
            return _json(200, {"alive": True})
        if request.path == "/readyz":
            health = self._now()
            return _json(200 if health.ready else 503, {"ready": health.ready, "state": health.state})
        return _json(404, {"error": "try /healthz or /readyz"})

    def _now(self) -> Health:
        try:
            return self._health()
        except Exception:
            # The boundary: a fault in the report is not ready, and costs this answer only.
            _log.exception("the state of the bridge could not be read")
            return Health(ready=False, state="unknown")

    def _allowed(self, request: web.BaseRequest) -> bool:
        """Whether the peer may ask; all listeners of one address are of one kind."""
        transport = request.transport
        conn = None if transport is None else transport.get_extra_info("socket")
        return conn is not None and peer_allowed(self._listeners[0], conn)


def _json(status: int, body: dict[str, object]) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(body) + b"\n", content_type="application/json"
    )


async def start_admin(
    address: Address, health: Callable[[], Health], *, insecure: bool = False
) -> AdminServer:
    """Serve `/healthz` and `/readyz` at an address.

    Args:
        address: "unix", "abstract" or "tcp".
        health: called for each `/readyz`, from the event loop; must not block.
        insecure: allow TCP addresses that are not loopback, where anybody can read the state.

    Returns:
        The running endpoint; `await close()` it.

    Raises:
        ConfigError: a TCP address that is not loopback, without `insecure`; a kind that cannot be listened
            on.
        ListenError: the address is in use, or the system refuses it.
    """
    return await serve_admin(open_listener(address, insecure=insecure), health)


async def serve_admin(listeners: list[Listener], health: Callable[[], Health]) -> AdminServer:
    """As `start_admin`, on listeners of one address, which are closed if that fails."""
    server = AdminServer(listeners, health)
    try:
        await server.start()
    except BaseException:
        await server.close()
        raise
    return server
