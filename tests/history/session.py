"""The legacy session at the history checker's server: subscriptions, levels, tasks, and what it asks itself.

A process that its bridge initializes serves many clients; to try the bridge it says more than it should:
updates nobody subscribed to, logs below the level. One that a client initializes ("apart") is that client's
alone, and says only what it is asked for: all of it goes through.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.history.server import Request, Server

LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
RELATED: Final = "io.modelcontextprotocol/related-task"
OVER: Final = frozenset({"completed", "cancelled"})
PAGE: Final = 25
KEPT: Final = 120
"""So many tasks are known; of older ones nobody asks any more."""
CAPABILITIES: Final[dict[str, Any]] = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True},
    "logging": {},
    "tasks": {"list": {}, "cancel": {}},
}


def covers(subscribed: str, uri: str) -> bool:
    """Whether a subscription to one URI is to hear of another: the same, or a part of it."""
    return uri == subscribed or uri.startswith(subscribed.rstrip("/") + "/")


class Session:
    """What one process remembers of its session."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.subscribed: set[str] = set()
        self.level: str | None = None
        self.tasks: dict[str, str] = {}
        """State by name."""
        self.asking: dict[Any, Request | None] = {}
        """Its own requests to its one client, by id: which of the client's waits for it."""

    # -- what it is asked without a mark: by the bridge, or by its one client ---------

    def takes(self, uid: Any, method: str, params: dict[str, Any]) -> bool:
        """Carry out a request that no client has marked; False if it is none of these."""
        server, name = self.server, json.dumps(uid)
        if method in ("resources/subscribe", "resources/unsubscribe"):
            uri, on = params["uri"], method == "resources/subscribe"
            server.note("u" if on else "v", name, uri)
            refused = on and "refuse" in uri

            def answer() -> None:
                if not refused:
                    (self.subscribed.add if on else self.subscribed.discard)(uri)
                self._reply(uid, not refused)

            if "slow" in uri:
                server.later(40, answer)
            else:
                answer()
        elif method == "logging/setLevel":
            server.note("s", name, params["level"])
            self.level = params["level"]
            self._reply(uid, True)
        elif method == "tasks/cancel" and "arguments" not in params:
            known = params["taskId"] in self.tasks
            server.note("x", name, params["taskId"])
            if known:
                self.tasks[params["taskId"]] = "cancelled"
            self._reply(uid, known)
        elif method == "ping":
            self._reply(uid, True)
        else:
            return False
        return True

    def _reply(self, uid: Any, done: bool) -> None:
        line: dict[str, Any] = {"jsonrpc": "2.0", "id": uid}
        if done:
            line["result"] = {}
        else:
            line["error"] = {"code": -32602, "message": "no such thing"}
        self.server.write(json.dumps(line).encode() + b"\n", "a", json.dumps(uid), "ok" if done else "no")

    # -- what it says -----------------------------------------------------------------

    def update(self, uri: str) -> None:
        """A resource has changed."""
        server = self.server
        if server.apart and not any(covers(each, uri) for each in self.subscribed):
            return
        server.serial += 1
        params = {"uri": uri, "mark": f"{server.name}/{server.serial}"}
        server.write(server.notify("notifications/resources/updated", params), "m", server.serial, uri)

    def log(self, level: str, task: str = "-") -> None:
        """A log message of the session, or of one of its tasks."""
        server = self.server
        if server.apart and (self.level is None or LEVELS.index(level) < LEVELS.index(self.level)):
            return
        server.serial += 1
        params: dict[str, Any] = {"level": level, "data": f"{server.name}/{server.serial}"}
        if task != "-":
            params["_meta"] = {RELATED: {"taskId": task}}
        server.write(server.notify("notifications/message", params), "g", server.serial, level, task)

    def status(self, task: str, status: str) -> None:
        """A task's state, if it is not over."""
        server = self.server
        if self.tasks.get(task, "cancelled") in OVER:
            return
        self.tasks[task] = status
        server.serial += 1
        params = {"taskId": task, "status": status, "mark": f"{server.name}/{server.serial}"}
        server.write(server.notify("notifications/tasks/status", params), "i", server.serial, task)

    # -- tasks ------------------------------------------------------------------------

    def make(self, request: Request, argument: str) -> None:
        """A request that is to be carried out as a task: answered at once, told of later."""
        server = self.server
        server.serial += 1
        task = f"{server.name}-{server.serial}"
        self.tasks[task] = "working"
        while len(self.tasks) > KEPT:
            del self.tasks[next(iter(self.tasks))]
        server.note("t", json.dumps(request.uid), task)
        request.extra = b',"task":%s' % json.dumps({"taskId": task, "status": "working"}).encode()
        server.answer(request)

        def step() -> None:
            if self.tasks.get(task) == "working":
                server.progress(request, 1)
                self.log("error", task)
                self.status(task, "working")

        server.later(4, step)
        if argument != "hang":
            server.later(float(argument), lambda: self.status(task, "completed"))

    def about(self, request: Request) -> None:
        """`tasks/get`, `tasks/result` or `tasks/cancel`, with a mark: by a client."""
        server = self.server
        task = request.params.get("taskId", "")
        if task not in self.tasks:
            server.fail(request, -32602)
            return
        if request.method == "tasks/cancel":
            self.tasks[task] = "cancelled"
            server.note("y", request.id.decode(), task)
        state = json.dumps({"taskId": task, "status": self.tasks[task]}).encode()
        request.extra = b"," + state[1:-1]
        server.answer(request)

    def page(self, request: Request) -> None:
        """`tasks/list`: whoever's they are."""
        names = list(self.tasks)
        begin = int(request.params.get("cursor", "0"))
        some = names[begin : begin + PAGE]
        listed: dict[str, Any] = {"tasks": [{"taskId": name, "status": self.tasks[name]} for name in some]}
        if begin + PAGE < len(names):
            listed["nextCursor"] = str(begin + PAGE)
        self.server.note("l", json.dumps(request.uid), ",".join(some))
        request.extra = b"," + json.dumps(listed).encode()[1:-1]
        self.server.answer(request)

    # -- what it asks -----------------------------------------------------------------

    def ask(self, request: Request, method: str) -> None:
        """Ask its one client, and answer the request once that was answered."""
        server = self.server
        server.serial += 1
        id = request.uid if server.serial % 2 else f"ask-{server.serial}"
        self.asking[id] = request
        line = {"jsonrpc": "2.0", "id": id, "method": method, "params": {"mark": request.mark}}
        server.write(json.dumps(line).encode() + b"\n", "q", request.mark)

    def answered(self, message: dict[str, Any]) -> bool:
        """Take an answer; False if it is to nothing that was asked."""
        id = message.get("id")
        request = self.asking.pop(id, None) if isinstance(id, int | str) else None
        if request is None:
            return False
        good = (message.get("result") or {}).get("mark") == request.mark
        self.server.note("Q", request.mark, "result" if good else "error" if "error" in message else "wrong")
        self.server.answer(request)
        return True
