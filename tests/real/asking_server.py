"""A legacy server that asks its client for whatever a tool call says: `python -S -E asking_server.py`.

It imports next to nothing, as tests start one for each client. Tools, whose results are JSON as text:

    ask      "kind": "sampling", "form", "url" or "roots": ask the client, then {"answer": its result} or
             {"refused": its error}, and {"progress": what it reported meanwhile}. With "give_up": true the
             request is cancelled as soon as the client reports progress, and the result is {}
    hang     report progress, then wait until the client cancels the call, and answer nothing
    state    {"client": its name, "capabilities": its capabilities, "cancelled": how many calls it has
             cancelled, "late": its answers to what was cancelled or never asked, "pid"}
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import sys
import threading
from typing import Any

Object = dict[str, Any]

# Longer than any client takes.
TIMEOUT = 60.0
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
ASKS: dict[str, tuple[str, Object]] = {
    "sampling": (
        "sampling/createMessage",
        {"messages": [{"role": "user", "content": {"type": "text", "text": "go on"}}], "maxTokens": 5},
    ),
    "form": ("elicitation/create", {"mode": "form", "message": "Name?", "requestedSchema": FORM}),
    "url": (
        "elicitation/create",
        {"mode": "url", "message": "Log in", "url": "https://example.com/login", "elicitationId": "e1"},
    ),
    "roots": ("roots/list", {}),
}
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("ask", "hang", "state")]


class Server:
    def __init__(self) -> None:
        self._writing = threading.Lock()
        self._ids = itertools.count(1)
        # What the client says of each request that it is asked, by id; its progress by the same.
        self._heard: dict[Any, queue.SimpleQueue[Object]] = {}
        self._hanging: set[str] = set()
        self._client: Object = {}
        self._cancelled = 0
        self._late: list[Object] = []

    def write(self, message: Object) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        with self._writing:
            os.write(1, line)

    def serve(self) -> None:
        for line in sys.stdin.buffer:
            message = json.loads(line)
            method, params = message.get("method"), message.get("params") or {}
            if method is None:
                self._hear(message["id"], message)
            elif method == "notifications/progress":
                self._hear(params["progressToken"], message)
            elif method == "notifications/cancelled":
                self._cancelled += json.dumps(params["requestId"]) in self._hanging
            elif "id" in message:
                threading.Thread(target=self._answer, args=(message, params), daemon=True).start()

    def _hear(self, id: Any, message: Object) -> None:
        heard = self._heard.get(id)
        if heard is None:
            self._late.append(message)
        else:
            heard.put(message)

    def _answer(self, message: Object, params: Object) -> None:
        id, method = message["id"], message["method"]
        result: Object = {}
        if method == "initialize":
            self._client = params
            info = {"name": "asking", "version": "1"}
            version = params["protocolVersion"]
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        elif method == "tools/list":
            result = {"tools": TOOLS}
        elif method == "tools/call":
            if params["name"] == "hang":
                self._hanging.add(json.dumps(id))
                token = params["_meta"]["progressToken"]
                self.write(
                    {"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}
                )
                return
            said = self._state() if params["name"] == "state" else self._ask(**params["arguments"])
            result = {"content": [{"type": "text", "text": json.dumps(said)}]}
        elif method != "ping":
            self.write({"id": id, "error": {"code": -32601, "message": "Method not found"}})
            return
        self.write({"id": id, "result": result})

    def _state(self) -> Object:
        return {
            "client": self._client["clientInfo"]["name"],
            "capabilities": self._client["capabilities"],
            "cancelled": self._cancelled,
            "late": self._late,
            "pid": os.getpid(),
        }

    def _ask(self, kind: str, give_up: bool = False) -> Object:
        method, params = ASKS[kind]
        # A string, as no SDK mints: whoever changes it on the way is found out.
        id = f"ask-{next(self._ids)}"
        heard = self._heard[id] = queue.SimpleQueue()
        self.write({"id": id, "method": method, "params": {**params, "_meta": {"progressToken": id}}})
        progress = []
        while "id" not in (message := heard.get(timeout=TIMEOUT)):
            progress.append(message["params"]["progress"])
            if give_up:
                del self._heard[id]
                gone = {"requestId": id, "reason": "never mind"}
                self.write({"method": "notifications/cancelled", "params": gone})
                return {}
        if "error" in message:
            return {"refused": message["error"], "progress": progress}
        return {"answer": message["result"], "progress": progress}


if __name__ == "__main__":
    Server().serve()
