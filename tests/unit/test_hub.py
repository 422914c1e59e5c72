"""What the hub itself tells a client, at moments that no test of the whole command can choose."""

from __future__ import annotations

import json
from typing import cast

from bridge.client import ClientConnection
from bridge.config import Settings
from bridge.headstart import HeadStart
from bridge.hub import Hub
from bridge.logs import LogWriter


class FakeConnection:
    """A connection that keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self) -> None:
        self.closed = True


async def test_a_client_that_comes_while_the_bridge_stops_is_told_that_it_stops() -> None:
    """It was accepted a moment before the listeners were closed; "too many clients" is not why."""
    writer = LogWriter()
    hub = Hub(Settings(command=("server",), listen=()), writer, HeadStart())
    try:
        await hub._drain(0)
        connection = FakeConnection()
        assert hub.client_connected(cast(ClientConnection, connection)) is None
        (line,) = connection.sent
        error = json.loads(line)["error"]
        assert (error["code"], error["data"]["reason"], error["data"]["delivered"]) == (
            -31005,
            "shutting_down",
            False,
        )
        assert connection.closed
    finally:
        await hub._shut()
        writer.close()
