"""One client connection, without a bridge around it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from bridge import client
from bridge.address import parse_address
from bridge.client import TURN_BYTES, ClientConnection
from bridge.core.outbox import Control, Key
from bridge.hangup import HangupWatch
from bridge.listener import Listener, open_listener


class Transport(asyncio.Transport):
    """Notes what a connection asks of it."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__({"socket": sock})
        self.reading = True
        self.aborted = asyncio.Event()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None: ...

    def abort(self) -> None:
        self.aborted.set()


class Owner:
    """Takes everything from everybody."""

    def __init__(self) -> None:
        self.hangups = HangupWatch(asyncio.get_running_loop())
        self.got = b""
        self.turns = 0

    def client_connected(self, connection: ClientConnection) -> Key | None:
        return Key(1)

    def client_refused(self, listener: Listener) -> None: ...

    def client_data(self, key: Key, data: bytes) -> None:
        self.got += data

    def client_turn(self, key: Key) -> None:
        self.turns += 1

    def client_eof(self, key: Key) -> None: ...

    def client_gone(self, key: Key) -> None: ...

    def client_lost(self, connection: ClientConnection) -> None: ...

    def client_congested(self, connection: ClientConnection) -> None: ...


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours


def connected(sock: socket.socket, path: str) -> tuple[ClientConnection, Transport]:
    [listener] = open_listener(parse_address(f"unix:{path}"))
    listener.close()
    connection = ClientConnection(Owner(), listener, 1 << 20, 60.0)
    transport = Transport(sock)
    connection.connection_made(transport)
    return connection, transport


async def test_who_sends_much_is_read_on_after_the_others(sock: socket.socket, tmp_path: object) -> None:
    """Section 6: a flood from one client delays the others by no more than their share."""
    connection, transport = connected(sock, f"{tmp_path}/s")
    connection.data_received(b"\n" * (TURN_BYTES - 1))
    assert transport.reading
    connection.data_received(b"\n" * TURN_BYTES)
    assert not transport.reading
    await asyncio.sleep(0)
    assert transport.reading


@pytest.mark.parametrize("paused", [False, True])
async def test_what_is_left_of_a_read_is_gone_on_with_in_the_next_turn_before_more_is_read(
    sock: socket.socket, tmp_path: object, paused: bool
) -> None:
    """A paused client's lines are taken, too: they were read."""
    connection, transport = connected(sock, f"{tmp_path}/s")
    owner = connection._owner
    assert isinstance(owner, Owner)
    if paused:
        connection.control(Control.PAUSE)
    connection.control(Control.TURN)
    connection.control(Control.TURN)
    assert not transport.reading
    assert owner.turns == 0
    await asyncio.sleep(0)
    assert owner.turns == 1
    assert transport.reading is not paused
    connection.control(Control.TURN)
    connection.close()
    await asyncio.sleep(0)
    assert owner.turns == 1


async def test_a_fault_in_a_turn_costs_the_connection_and_no_more(
    sock: socket.socket, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, transport = connected(sock, f"{tmp_path}/s")
    monkeypatch.setattr(Owner, "client_turn", None)
    connection.control(Control.TURN)
    await asyncio.sleep(0)
    assert transport.aborted.is_set()


async def test_a_turn_given_away_is_no_reason_to_read_who_is_not_to_be_read(
    sock: socket.socket, tmp_path: object
) -> None:
    """Section 6: a client whose queue is full is not read until the core says so."""
    connection, transport = connected(sock, f"{tmp_path}/s")
    connection.data_received(b"\n" * TURN_BYTES)
    connection.control(Control.PAUSE)
    await asyncio.sleep(0)
    assert not transport.reading
    connection.control(Control.RESUME)
    assert transport.reading
    connection.data_received(b"\n" * TURN_BYTES)
    connection.control(Control.PAUSE)
    connection.control(Control.RESUME)
    assert not transport.reading
    await asyncio.sleep(0)
    assert transport.reading


async def test_who_only_reads_its_last_answers_has_the_linger_time_for_it(
    monkeypatch: pytest.MonkeyPatch, sock: socket.socket, tmp_path: object
) -> None:
    """Section 6, half-close: `printf ... | nc -N` into something slow loses no half of an answer."""
    monkeypatch.setattr(client, "CLOSE_TIMEOUT", 0.01)
    half_closed, last_words = connected(sock, f"{tmp_path}/s")
    assert half_closed.eof_received()
    half_closed.close()
    other, sock_of_other = socket.socketpair()
    with other, sock_of_other:
        closed, transport = connected(other, f"{tmp_path}/s")
        closed.close()
        await asyncio.wait_for(transport.aborted.wait(), 5)
    assert not last_words.aborted.is_set()
    half_closed.connection_lost(None)
