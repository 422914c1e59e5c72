"""What the hub itself tells a client, at moments that no test of the whole command can choose."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from bridge.client import ClientConnection
from bridge.config import Settings
from bridge.core.limits import Era, Limits
from bridge.headstart import HeadStart
from bridge.hub import Hub
from bridge.logs import LogWriter


class FakeConnection:
    """A connection that keeps what it is sent."""

    strict = False
    unread = 0

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


class FakeServer:
    """Stands for a process, and for what keeps it running."""

    pid = 1
    ending = False
    unsent = 0

    def __init__(self) -> None:
        self.read: list[list[dict[str, Any]]] = []
        """What each write to its stdin brought."""

    def write(self, data: bytes) -> None:
        self.read.append([json.loads(line) for line in data.splitlines()])

    def spoke(self) -> None: ...


async def test_what_several_clients_write_in_one_turn_of_the_loop_reaches_the_server_in_one_write() -> None:
    """A write for each would cost the server, and the bridge, several times as much."""
    writer = LogWriter()
    settings = Settings(command=("server",), listen=(), limits=Limits(era=Era.LEGACY))
    hub = Hub(settings, writer, HeadStart())
    server: Any = FakeServer()
    hub._supervisors[0] = server
    try:
        hub.server_started(0, server)
        ((greeting,),) = server.read
        answer = {"protocolVersion": greeting["params"]["protocolVersion"], "capabilities": {}}
        answer["serverInfo"] = {"name": "s", "version": "1"}
        hub.server_data(0, dumps({"jsonrpc": "2.0", "id": greeting["id"], "result": answer}))
        clients = [FakeConnection() for _ in range(3)]
        keys = [hub.client_connected(cast(ClientConnection, client)) for client in clients]

        def ask(*numbers: int) -> None:
            for number in numbers:
                key = keys[number]
                assert key is not None
                hub.client_data(key, dumps({"jsonrpc": "2.0", "id": 7, "method": "x"}))

        def answer_all() -> None:
            asked = [message["id"] for write in server.read for message in write]
            server.read.clear()
            hub.server_data(0, b"".join(dumps({"jsonrpc": "2.0", "id": id, "result": {}}) for id in asked))

        for key in keys:
            assert key is not None
            hub.client_data(key, dumps({**greeting, "id": 0}))
            hub.client_data(key, dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}))
        server.read.clear()
        # Nobody knows yet that there will be others: each goes at once.
        ask(0, 1)
        assert [len(write) for write in server.read] == [1, 1]
        answer_all()
        # Two were answered at the same time, so others may come with the first.
        ask(0, 1, 2)
        assert server.read == []
        await asyncio.sleep(0)
        assert [len(write) for write in server.read] == [3]
        answer_all()
        # No others have come: the next one goes at once.
        ask(0)
        assert server.read == []
        await asyncio.sleep(0)
        assert [len(write) for write in server.read] == [1]
        answer_all()
        ask(0)
        assert [len(write) for write in server.read] == [1]
        assert [len(client.sent) for client in clients] == [4, 3, 2]
    finally:
        del hub._supervisors[0]
        hub._connections.clear()
        await hub._shut()
        writer.close()


def dumps(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
