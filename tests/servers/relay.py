"""A stand-in for a bridge, small enough to be read: correct by default, or with one fault of a bad one.

`python relay.py ADDRESS FAULT COMMAND [ARG ...]` listens on `unix:PATH`, starts COMMAND once and serves it to
many clients with rewritten ids, tokens and subscription ids; SIGTERM ends it with status 0. It is here to
try whether a check of bridges notices the faults; FAULT is `none` or one of `FAULTS`. Clients are numbered
0, 1, ... as they connect, and a fault that crosses gives what is for one client to the other of a pair.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"

FAULTS = {
    "cross-answers": "answers of `echo` go to the other client",
    "cross-progress": "progress goes to the other client",
    "cross-subscriptions": "changes of the list of tools go to the other client",
    "broadcast-logs": "log messages go to everybody",
    "keep-upstream-id": "answers carry the id the relay made",
    "id-as-string": "answers carry the id as a string",
    "keep-upstream-token": "progress carries the token the relay made",
    "token-as-string": "progress carries the token as a string",
    "keep-subscription-id": "notifications carry the subscription id the relay made",
    "lose-answer": "answers of `resources/read` are lost",
    "lose-change": "changes of resources are lost",
    "lose-progress": "the second progress notification is lost",
    "lose-acknowledgement": "subscriptions are never acknowledged",
    "double-answer": "answers of `echo` come twice",
    "double-change": "changes of resources come twice",
    "double-acknowledgement": "subscriptions are acknowledged twice",
    "late-progress": "progress comes once more after the answer",
    "ignore-cancel": "cancellations are not passed on",
    "cross-cancel": "a cancellation ends the same id of every client",
    "no-subscription-id": "changes come without subscription id",
    "send-request": "a request is sent to the clients",
    "send-garbage": "a line that is no JSON is sent to the clients",
    "hang-up": "the connection ends at `resources/read`",
    "exit-status": "it ends with status 3",
    "leave-socket": "it leaves its socket behind",
    "ignore-sigterm": "SIGTERM does not end it",
    "die": "it exits at `resources/read`",
}


@dataclass
class Client:
    number: int
    sock: socket.socket
    partial: bytes = b""


@dataclass
class Entry:
    client: Client
    id: Any
    method: str
    tool: str
    token: Any
    progress: list[Message] = field(default_factory=list)


class Relay:
    def __init__(self, fault: str, command: list[str], path: str) -> None:
        self.fault = fault
        self.path = path
        self.last = 1000
        self.entries: dict[int, Entry] = {}
        self.clients: list[Client] = []
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.partial = b""

    def to_server(self, message: Message) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(message).encode() + b"\n")
        self.child.stdin.flush()

    def to_client(self, client: Client, message: Message) -> None:
        client.sock.sendall(json.dumps(message).encode() + b"\n")

    def other(self, client: Client) -> Client:
        return self.clients[client.number ^ 1]

    # Client to server.

    def client_line(self, client: Client, message: Message) -> None:
        params = message["params"]
        if message["method"] == "notifications/cancelled":
            if self.fault == "ignore-cancel":
                return
            for upstream, entry in list(self.entries.items()):
                mine = entry.client is client or self.fault == "cross-cancel"
                if mine and entry.id == params["requestId"]:
                    self.to_server({**message, "params": {**params, "requestId": upstream}})
                    del self.entries[upstream]
            return
        self.last += 1
        meta = params["_meta"]
        entry = Entry(
            client, message["id"], message["method"], params.get("name", ""), meta.get("progressToken")
        )
        self.entries[self.last] = entry
        if entry.token is not None:
            meta = {**meta, "progressToken": self.last}
        self.to_server({**message, "id": self.last, "params": {**params, "_meta": meta}})
        if entry.method == "resources/read":
            if self.fault == "hang-up":
                client.sock.shutdown(socket.SHUT_RDWR)
            if self.fault == "die":
                self.end(5)

    # Server to client.

    def server_line(self, message: Message) -> None:
        if "method" not in message:
            self.response(message)
            return
        params = message["params"]
        if message["method"] == "notifications/progress":
            self.progress(message, self.entries.get(params["progressToken"]))
        elif message["method"] == "notifications/message":
            askers = [entry.client for entry in self.entries.values() if entry.tool == "slow"]
            for client in self.clients if self.fault == "broadcast-logs" else askers[:1]:
                self.to_client(client, message)
        else:
            self.subscription(message, self.entries.get(params["_meta"][SUBSCRIPTION_ID]))

    def response(self, message: Message) -> None:
        upstream = message["id"]
        entry = self.entries.pop(upstream, None)
        if entry is None or (self.fault == "lose-answer" and entry.method == "resources/read"):
            return
        answer = {**message, "id": entry.id}
        if self.fault == "keep-upstream-id":
            answer["id"] = upstream
        if self.fault == "id-as-string":
            answer["id"] = str(entry.id)
        crossed = self.fault == "cross-answers" and entry.tool == "echo"
        self.to_client(self.other(entry.client) if crossed else entry.client, answer)
        if self.fault == "double-answer" and entry.tool == "echo":
            self.to_client(entry.client, answer)
        if self.fault == "late-progress" and entry.progress:
            self.to_client(entry.client, entry.progress[-1])
        if self.fault == "send-request" and entry.method == "server/discover":
            self.to_client(entry.client, {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {}})
        if self.fault == "send-garbage" and entry.method == "server/discover":
            entry.client.sock.sendall(b"Server ready\n")

    def progress(self, message: Message, entry: Entry | None) -> None:
        if entry is None:
            return
        token = message["params"]["progressToken"] if self.fault == "keep-upstream-token" else entry.token
        token = str(token) if self.fault == "token-as-string" else token
        restored = {**message, "params": {**message["params"], "progressToken": token}}
        entry.progress.append(restored)
        if self.fault == "lose-progress" and len(entry.progress) == 2:
            return
        client = self.other(entry.client) if self.fault == "cross-progress" else entry.client
        self.to_client(client, restored)

    def subscription(self, message: Message, entry: Entry | None) -> None:
        if entry is None:
            return
        acknowledged = message["method"] == "notifications/subscriptions/acknowledged"
        updated = message["method"] == "notifications/resources/updated"
        if (self.fault == "lose-acknowledgement" and acknowledged) or (
            self.fault == "lose-change" and updated
        ):
            return
        params = {**message["params"], "_meta": {SUBSCRIPTION_ID: entry.id}}
        if self.fault == "keep-subscription-id":
            params = message["params"]
        if self.fault == "no-subscription-id" and not acknowledged:
            params = {**params, "_meta": {}}
        crossed = self.fault == "cross-subscriptions" and not acknowledged and not updated
        times = 1 + (self.fault == "double-change" and updated)
        times += self.fault == "double-acknowledgement" and acknowledged
        for _ in range(times):
            target = self.other(entry.client) if crossed else entry.client
            self.to_client(target, {**message, "params": params})

    # Life.

    def end(self, status: int) -> None:
        self.child.kill()
        self.child.wait()
        if self.fault != "leave-socket":
            os.unlink(self.path)
        os._exit(status)

    def serve(self) -> None:
        ignore = self.fault == "ignore-sigterm"
        status = 3 if self.fault == "exit-status" else 0
        signal.signal(signal.SIGTERM, signal.SIG_IGN if ignore else lambda *_: self.end(status))
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.path)
        listener.listen()
        assert self.child.stdout is not None
        selector = selectors.DefaultSelector()
        selector.register(listener, selectors.EVENT_READ, "accept")
        selector.register(self.child.stdout, selectors.EVENT_READ, "server")
        while True:
            for key, _ in selector.select():
                if key.data == "accept":
                    client = Client(len(self.clients), listener.accept()[0])
                    self.clients.append(client)
                    selector.register(client.sock, selectors.EVENT_READ, client)
                elif key.data == "server":
                    *lines, self.partial = (self.partial + os.read(key.fd, 65536)).split(b"\n")
                    for line in lines:
                        self.server_line(json.loads(line))
                elif data := key.data.sock.recv(65536):
                    *lines, key.data.partial = (key.data.partial + data).split(b"\n")
                    for line in lines:
                        self.client_line(key.data, json.loads(line))
                else:
                    selector.unregister(key.data.sock)


if __name__ == "__main__":
    Relay(sys.argv[2], sys.argv[3:], sys.argv[1].removeprefix("unix:")).serve()
