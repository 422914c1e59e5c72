"""A stand-in for a bridge, small enough to be read: correct by default, or with one fault of a bad one.

`python relay.py ADDRESS FAULT COMMAND [ARG ...]` listens on `unix:PATH`, starts COMMAND once and serves it to
many modern clients with rewritten ids, tokens and subscription ids; for a legacy client, the only one, it
starts it once more. SIGTERM ends it with status 0. It is here to try whether a check of bridges notices the
faults; FAULT is `none` or one of `FAULTS`. A fault that crosses gives what is for one client to another that
is there.
"""

from __future__ import annotations

import contextlib
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
    "one-process": "the legacy client is served by the process of the modern ones",
    "modern-shape": "answers to the legacy client look like modern ones",
    "cross-eras": "answers of `echo` for the legacy client go to the modern one",
    "cross-eras-progress": "progress for the legacy client goes to the modern one",
    "cross-eras-cancel": "a cancellation of the legacy client ends the same id of every client",
    "lose-session-answer": "answers of `tools/list` for the legacy client are lost",
    "ignore-session-cancel": "cancellations of the legacy client are not passed on",
    "lose-session-change": "the legacy client is not told of changes",
    "double-session-change": "the legacy client is told of changes twice",
    "leak-session-change": "changes in the legacy session are told to everybody",
    "leak-change": "changes of the modern list of tools are told in the legacy session too",
}


@dataclass(eq=False)
class Client:
    sock: socket.socket
    legacy: bool = False
    partial: bytes = b""


@dataclass(eq=False)
class Child:
    process: subprocess.Popen[bytes]
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
        self.command = command
        self.path = path
        self.last = 1000
        self.selector = selectors.DefaultSelector()
        self.entries: dict[int, Entry] = {}
        self.clients: list[Client] = []
        self.modern = self.start()
        self.legacy: Child | None = None

    def start(self) -> Child:
        child = Child(subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert child.process.stdout is not None
        self.selector.register(child.process.stdout, selectors.EVENT_READ, child)
        return child

    def to_server(self, client: Client, message: Message) -> None:
        child = self.modern
        if client.legacy and self.fault != "one-process":
            child = self.legacy = self.legacy or self.start()
        assert child.process.stdin is not None
        child.process.stdin.write(json.dumps(message).encode() + b"\n")
        child.process.stdin.flush()

    def to_client(self, client: Client, message: Message) -> None:
        with contextlib.suppress(OSError):  # it may have gone
            client.sock.sendall(json.dumps(message).encode() + b"\n")

    def other(self, client: Client) -> Client:
        return next(other for other in self.clients if other is not client)

    # Client to server.

    def client_line(self, client: Client, message: Message) -> None:
        method, params = message["method"], message.get("params", {})
        if method == "initialize":
            client.legacy = True
        if method == "notifications/cancelled":
            self.cancel(client, message)
            return
        if "id" not in message:
            self.to_server(client, message)
            return
        self.last += 1
        meta = params.get("_meta", {})
        entry = Entry(client, message["id"], method, params.get("name", ""), meta.get("progressToken"))
        self.entries[self.last] = entry
        if entry.token is not None:
            params = {**params, "_meta": {**meta, "progressToken": self.last}}
        self.to_server(client, {**message, "id": self.last, "params": params})
        if entry.method == "resources/read":
            if self.fault == "hang-up":
                client.sock.shutdown(socket.SHUT_RDWR)
            if self.fault == "die":
                self.end(5)

    def cancel(self, client: Client, message: Message) -> None:
        if self.fault == "ignore-cancel" or (self.fault == "ignore-session-cancel" and client.legacy):
            return
        everybody = self.fault == "cross-cancel" or (self.fault == "cross-eras-cancel" and client.legacy)
        for upstream, entry in list(self.entries.items()):
            if (entry.client is client or everybody) and entry.id == message["params"]["requestId"]:
                self.end_request(upstream, entry)

    def end_request(self, upstream: int, entry: Entry) -> None:
        message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": upstream}}
        self.to_server(entry.client, message)
        del self.entries[upstream]

    def client_gone(self, client: Client) -> None:
        self.clients.remove(client)
        for upstream, entry in list(self.entries.items()):
            if entry.client is client:
                self.end_request(upstream, entry)

    # Server to client.

    def server_line(self, message: Message) -> None:
        if "method" not in message:
            self.response(message)
            return
        params = message.get("params", {})
        if message["method"] == "notifications/progress":
            self.progress(message, self.entries.get(params["progressToken"]))
        elif message["method"] == "notifications/message":
            askers = [entry.client for entry in self.entries.values() if entry.tool == "slow"]
            for client in self.clients if self.fault == "broadcast-logs" else askers[:1]:
                self.to_client(client, message)
        elif "_meta" in params:
            self.subscription(message, self.entries.get(params["_meta"][SUBSCRIPTION_ID]))
        else:
            self.session_change(message)

    def response(self, message: Message) -> None:
        upstream = message["id"]
        entry = self.entries.pop(upstream, None)
        if entry is None or (self.fault == "lose-answer" and entry.method == "resources/read"):
            return
        legacy = entry.client.legacy
        if self.fault == "lose-session-answer" and legacy and entry.method == "tools/list":
            return
        answer = {**message, "id": entry.id}
        if self.fault == "keep-upstream-id":
            answer["id"] = upstream
        if self.fault == "id-as-string":
            answer["id"] = str(entry.id)
        if self.fault == "modern-shape" and legacy:
            answer["result"] = {**answer["result"], "resultType": "complete"}
        crossed = self.fault == "cross-answers" or (self.fault == "cross-eras" and legacy)
        crossed = crossed and entry.tool == "echo"
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
        crossed = self.fault == "cross-progress"
        crossed = crossed or (self.fault == "cross-eras-progress" and entry.client.legacy)
        self.to_client(self.other(entry.client) if crossed else entry.client, restored)

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
        if self.fault == "leak-change" and not acknowledged and not updated:
            self.session_change({"jsonrpc": "2.0", "method": message["method"]})

    def session_change(self, message: Message) -> None:
        if self.fault == "lose-session-change":
            return
        for client in self.clients:
            if client.legacy or self.fault == "leak-session-change":
                for _ in range(1 + (self.fault == "double-session-change")):
                    self.to_client(client, message)

    # Life.

    def end(self, status: int) -> None:
        for child in filter(None, (self.modern, self.legacy)):
            child.process.kill()
            child.process.wait()
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
        self.selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select():
                source = key.data
                if source is None:
                    client = Client(listener.accept()[0])
                    self.clients.append(client)
                    self.selector.register(client.sock, selectors.EVENT_READ, client)
                    continue
                data = os.read(key.fd, 65536)
                if not data:
                    self.selector.unregister(key.fileobj)
                    if isinstance(source, Client):
                        self.client_gone(source)
                    continue
                *lines, source.partial = (source.partial + data).split(b"\n")
                for line in lines:
                    if isinstance(source, Child):
                        self.server_line(json.loads(line))
                    else:
                        self.client_line(source, json.loads(line))


if __name__ == "__main__":
    Relay(sys.argv[2], sys.argv[3:], sys.argv[1].removeprefix("unix:")).serve()
