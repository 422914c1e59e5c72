"""The health endpoint, asked by a real HTTP client over Unix and loopback sockets."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
import uvloop

from bridge import admin
from bridge.address import parse_address
from bridge.admin import AdminServer, Health, start_admin
from bridge.errors import ConfigError, ListenError

BOUND_S = 10.0
Serve = Callable[..., Awaitable[AdminServer]]


class State:
    """What the hub would report, set by the test."""

    def __init__(self) -> None:
        self.health = Health(ready=True, state="running")

    def __call__(self) -> Health:
        return self.health


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
async def serve(state: State) -> AsyncIterator[Serve]:
    """Start endpoints; all are closed at the end of the test."""
    servers: list[AdminServer] = []

    async def start(address: str, health: Callable[[], Health] = state, **how: bool) -> AdminServer:
        server = await start_admin(parse_address(address), health, **how)
        servers.append(server)
        return server

    yield start
    for server in servers:
        async with asyncio.timeout(BOUND_S):
            await server.close()


async def ask(
    where: str | Path, path: str, method: str = "GET", data: bytes | None = None
) -> tuple[int, bytes, dict[str, str]]:
    """One request to a port ("127.0.0.1:1234") or a Unix socket; returns status, body, headers."""
    connector = aiohttp.UnixConnector(str(where)) if isinstance(where, Path) else aiohttp.TCPConnector()
    host = "bridge.example.com" if isinstance(where, Path) else where
    timeout = aiohttp.ClientTimeout(total=BOUND_S)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        session.request(method, f"http://{host}{path}", data=data) as response,
    ):
        return response.status, await response.read(), dict(response.headers)


def port_of(server: AdminServer) -> str:
    return f"127.0.0.1:{server.addresses[0].port}"


async def raw(path: Path, data: bytes) -> bytes:
    """What comes back for raw bytes, up to the end of the connection."""
    async with asyncio.timeout(BOUND_S):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(data)
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


async def test_a_unix_socket_tells_that_the_loop_runs(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "a"
    await serve(f"unix:{path}")
    status, body, headers = await ask(path, "/healthz")
    assert (status, body) == (200, b'{"alive":true}\n')
    assert headers["Content-Type"] == "application/json"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Server"] == "mcp-bridge"
    assert path.stat().st_mode & 0o777 == 0o600


async def test_ready_is_200_and_not_ready_is_503_while_alive_stays_200(serve: Serve, state: State) -> None:
    where = port_of(await serve("tcp:127.0.0.1:0"))
    assert (await ask(where, "/readyz"))[:2] == (200, b'{"ready":true,"state":"running"}\n')
    state.health = Health(ready=False, state="backoff")
    assert (await ask(where, "/readyz"))[:2] == (503, b'{"ready":false,"state":"backoff"}\n')
    assert (await ask(where, "/healthz"))[0] == 200


async def test_a_query_does_not_hide_the_path(serve: Serve) -> None:
    where = port_of(await serve("tcp:127.0.0.1:0"))
    assert (await ask(where, "/readyz?verbose=1"))[0] == 200


async def test_head_has_the_status_and_no_body(serve: Serve, state: State) -> None:
    state.health = Health(ready=False, state="starting")
    where = port_of(await serve("tcp:127.0.0.1:0"))
    assert (await ask(where, "/readyz", "HEAD"))[:2] == (503, b"")
    assert (await ask(where, "/healthz", "HEAD"))[:2] == (200, b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_other_methods_are_refused(serve: Serve, method: str) -> None:
    where = port_of(await serve("tcp:127.0.0.1:0"))
    status, _, headers = await ask(where, "/healthz", method, b"body")
    assert status == 405
    assert headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/", "/healthz/", "/readyz/x", "/metrics"])
async def test_other_paths_are_not_found(serve: Serve, path: str) -> None:
    where = port_of(await serve("tcp:127.0.0.1:0"))
    assert (await ask(where, path))[0] == 404


async def test_a_fault_in_the_report_is_not_ready_and_costs_one_answer(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Health:
        raise ZeroDivisionError

    where = port_of(await serve("tcp:127.0.0.1:0", broken))
    assert (await ask(where, "/readyz"))[:2] == (503, b'{"ready":false,"state":"unknown"}\n')
    assert (await ask(where, "/healthz"))[0] == 200
    assert "could not be read" in caplog.text


async def test_each_connection_is_closed_after_its_answer(serve: Serve, tmp_path: Path) -> None:
    """So that a client that pipelines and never reads holds nothing."""
    path = tmp_path / "a"
    await serve(f"unix:{path}")
    answer = await raw(path, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
    assert answer.count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize(
    "data",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + b"\0" * 40 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"\r\n\r\n\0\xff\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_refused_and_harms_nobody(
    serve: Serve, tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a"
    await serve(f"unix:{path}")
    answer = await raw(path, data)
    assert answer == b"" or answer.startswith((b"HTTP/1.0 400", b"HTTP/1.1 400"))
    assert (await ask(path, "/healthz"))[0] == 200
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def test_a_silent_or_dripping_peer_is_closed(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every wait has a bound; here it is shortened, to see it pass."""
    monkeypatch.setattr(admin, "REQUEST_TIMEOUT_S", 0.2)
    path = tmp_path / "a"
    await serve(f"unix:{path}")
    assert await raw(path, b"") == b""
    assert await raw(path, b"GET /healthz HTTP/1.1\r\nHost") == b""


async def test_connections_beyond_the_bound_are_closed_and_room_is_made_again(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "MAX_CONNECTIONS", 2)
    path = tmp_path / "a"
    await serve(f"unix:{path}")
    async with asyncio.timeout(BOUND_S):
        held = [await asyncio.open_unix_connection(str(path)) for _ in range(2)]
        assert await raw(path, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n") == b""
        for _, writer in held:
            writer.close()
        answer = b""
        while not answer.startswith(b"HTTP/1.1 200"):
            answer = await raw(path, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")


async def test_closing_removes_the_socket_and_cuts_who_is_connected(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "a"
    server = await serve(f"unix:{path}")
    async with asyncio.timeout(BOUND_S):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"GET /heal")
        assert (await ask(path, "/healthz"))[0] == 200
        await asyncio.gather(server.close(), server.close())
        assert await reader.read() == b""
        writer.close()
    assert not path.exists()
    with pytest.raises(OSError):  # noqa: PT011  # gone or refused, as the system has it
        await asyncio.open_unix_connection(str(path))


async def test_closing_cuts_a_peer_that_sends_a_body_for_ever(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "a"
    server = await serve(f"unix:{path}")
    async with asyncio.timeout(BOUND_S):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\nabc")
        assert (await reader.readline()).startswith(b"HTTP/1.1 405")
        await server.close()
        writer.close()


async def test_an_address_other_machines_can_reach_needs_the_insecure_flag(serve: Serve) -> None:
    with pytest.raises(ConfigError):
        await serve("tcp:0.0.0.0:0")
    server = await serve("tcp:0.0.0.0:0", insecure=True)
    assert (await ask(port_of(server), "/healthz"))[0] == 200


async def test_an_address_in_use_is_an_error_of_one_line(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "a"
    await serve(f"unix:{path}")
    with pytest.raises(ListenError) as error:
        await serve(f"unix:{path}")
    assert "\n" not in str(error.value)
    assert (await ask(path, "/healthz"))[0] == 200


async def test_a_loop_that_cannot_serve_leaves_no_socket_behind(
    tmp_path: Path, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of the loop cannot be forced, hence the mock."""

    async def fail(server: AdminServer) -> None:
        raise OSError("no")

    monkeypatch.setattr(AdminServer, "start", fail)
    path = tmp_path / "a"
    with pytest.raises(OSError, match="no"):
        await start_admin(parse_address(f"unix:{path}"), state)
    assert not path.exists()


async def test_an_abstract_socket_serves_our_own_user_and_refuses_strangers(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An abstract socket has no mode, so the peer's user is checked (contract 9)."""
    name = f"mcp-bridge-admin-{os.getpid()}"
    await serve(f"unix:@{name}")

    async def get() -> bytes:
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        async with asyncio.timeout(BOUND_S):
            await asyncio.get_running_loop().sock_connect(sock, b"\0" + name.encode())
            reader, writer = await asyncio.open_unix_connection(sock=sock)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = await reader.read()
            writer.close()
            return answer

    assert (await get()).startswith(b"HTTP/1.1 200")
    monkeypatch.setattr(admin, "peer_allowed", lambda listener, conn: False)
    assert (await get()).startswith(b"HTTP/1.1 403")


def test_uvloop_serves_both_kinds_of_socket_and_stops(state: State, tmp_path: Path) -> None:
    """The bridge runs on uvloop, the other tests on the standard loop."""

    async def scenario() -> None:
        path = tmp_path / "a"
        async with asyncio.timeout(BOUND_S):
            for address in (f"unix:{path}", "tcp:127.0.0.1:0"):
                server = await start_admin(parse_address(address), state)
                where = path if address.startswith("unix:") else port_of(server)
                assert (await ask(where, "/readyz"))[0] == 200
                await server.close()
        assert not path.exists()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
