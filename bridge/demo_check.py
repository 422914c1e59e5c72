"""What one client of the demo sent, and whether what it receives is its own: used by `mcp-bridge demo`.

Pure: it is told what was sent and received, and says what is wrong with it. It takes nothing on trust: ids
and tokens are compared with their JSON types, texts with the client's own, and whatever is not expected is a
fault.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]

SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"
LOG_LEVEL_KEY = "io.modelcontextprotocol/logLevel"

TOOLS_CHANGED = "notifications/tools/list_changed"
RESOURCE_UPDATED = "notifications/resources/updated"

# Key of what a legacy client holds without asking. Other keys are ids as JSON, so it is none of them.
SESSION = "session"


@dataclass
class Sent:
    """A request that was sent: what its response must say, and what may come before it."""

    id: str | int
    what: str
    answer: str | None = None
    label: str | None = None
    token: str | int | None = None
    steps: int = 0
    logs: int = 0
    done: int = 0
    cancelled: bool = False


@dataclass
class Held:
    """A subscription, or what a legacy session is told of as one: the filter it asked for, and how many
    changes of each kind are due and have come.
    """

    name: str
    wanted: Object
    acknowledged: bool = False
    due: dict[str, int] = field(default_factory=dict)
    came: dict[str, int] = field(default_factory=dict)

    def wants(self, method: str) -> bool:
        if method == TOOLS_CHANGED:
            return bool(self.wanted.get("toolsListChanged"))
        return method == RESOURCE_UPDATED and bool(self.wanted.get("resourceSubscriptions"))


class Expectations:
    """What one client has a right to. `faults` collects what was wrong; `received` counts all messages."""

    def __init__(self, name: str, *, legacy: bool = False) -> None:
        self.name = name
        self.legacy = legacy
        self.received = 0
        self.faults: list[str] = []
        self._open: dict[str, Sent] = {}
        self._held: dict[str, Held] = {}

    def sent(self, request: Sent) -> None:
        """A request went out."""
        self._open[json.dumps(request.id)] = request

    def subscribed(self, id: str | int, wanted: Object) -> None:
        """A `subscriptions/listen` with this filter went out."""
        name = json.dumps(id)
        self._held[name] = Held(f"subscription {name}", wanted)

    def opened_session(self) -> None:
        """`notifications/initialized` goes out: from now on a legacy client is told of changes.

        Of the list of tools alone: what else there is must be subscribed to.
        """
        self._held[SESSION] = Held("its session", {"toolsListChanged": True}, acknowledged=True)

    def cancelled(self, id: str | int) -> None:
        """The request was cancelled: it must not be answered. Progress may have been on its way already."""
        # A bad bridge may have let it be answered already.
        if sent := self._open.get(json.dumps(id)):
            sent.cancelled = True

    def change(self, method: str) -> None:
        """Something has been changed that every subscription to it must be told once."""
        for held in self._held.values():
            if held.wants(method):
                held.due[method] = held.due.get(method, 0) + 1

    def missing(self) -> list[str]:
        """What must still come, in words; empty when all is there."""
        waiting = [sent for sent in self._open.values() if not sent.cancelled]
        texts = [f"{self.name}: the response to id {sent.id!r}" for sent in waiting]
        for held in self._held.values():
            if not held.acknowledged:
                texts.append(f"{self.name}: the acknowledgement of {held.name}")
            for method, due in held.due.items():
                if held.came.get(method, 0) < due:
                    texts.append(f"{self.name}: {method} on {held.name}")
        return texts

    def not_running(self, id: str | int) -> list[str]:
        """The same for the first progress of one request."""
        sent = self._open.get(json.dumps(id))
        return [f"{self.name}: the first progress of id {id!r}"] if sent and not sent.done else []

    def receive(self, line: bytes) -> tuple[str, str, bool]:
        """Judge one line.

        Returns:
            Two short texts for a reader, what it belongs to ("id 4") and what it says, and whether it is
            in order. If it is not, `faults` has one more line.
        """
        self.received += 1
        faults = len(self.faults)
        try:
            message = json.loads(line)
            belongs, says = self._judge(message)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            belongs, says = "?", ascii(line.decode(errors="replace"))
            self._fault(f"not understood ({error!r}): {says[:200]}")
        return belongs, says, len(self.faults) == faults

    def _fault(self, text: str) -> None:
        self.faults.append(f"{self.name}: {text}")

    def _judge(self, message: Object) -> tuple[str, str]:
        if "method" not in message:
            return self._response(message)
        method, params = message["method"], message.get("params", {})
        if "id" in message:
            self._fault(f"a request, {method}: no client of a shared server ever gets one")
            return "?", method
        if method == "notifications/progress":
            return self._progress(params)
        if method == "notifications/message":
            return self._log(params)
        return self._change(method, params)

    def _response(self, message: Object) -> tuple[str, str]:
        belongs = f"id {json.dumps(message['id'])}"
        if "result" in message:
            says = _text_of(message["result"])
        else:
            says = f"error {message['error']['code']}: {message['error']['message']}"
        sent = self._open.pop(json.dumps(message["id"]), None)
        if sent is None:
            self._fault(f"a response to {belongs}, which is not waited for: {says}")
        elif sent.cancelled:
            self._fault(f"a response to {belongs}, which was cancelled: {says}")
        elif "result" not in message:
            self._fault(f"{belongs} ({sent.what}) failed: {says}")
        elif sent.answer is not None and says != sent.answer:
            self._fault(f"the response to {belongs} says {says!r} instead of {sent.answer!r}")
        elif sent.done < sent.steps and sent.token is not None:
            self._fault(f"{belongs} was answered after {sent.done} of {sent.steps} progress notifications")
        elif sent.logs:
            self._fault(f"{belongs} was answered before its log message came")
        elif ("resultType" in message["result"]) == self.legacy:
            self._fault(f"{belongs} was answered as in the other era")
        return belongs, says

    def _progress(self, params: Object) -> tuple[str, str]:
        token = json.dumps(params["progressToken"])
        belongs, says = (
            f"token {token}",
            f"step {params['progress']} of {params['total']}, {params['message']}",
        )
        for sent in self._open.values():
            if sent.token is not None and json.dumps(sent.token) == token:
                break
        else:
            self._fault(f"progress for {belongs}, which is not in use: {says}")
            return belongs, says
        sent.done += 1
        wanted = f"step {sent.done} of {sent.steps}, {sent.label}"
        if says != wanted:
            self._fault(f"progress for {belongs} says {says!r} instead of {wanted!r}")
        return belongs, says

    def _log(self, params: Object) -> tuple[str, str]:
        label = params["data"]["label"]
        for sent in self._open.values():
            if sent.logs and sent.label == label:
                sent.logs -= 1
                break
        else:
            self._fault(f"a log message nobody here asked for: {label}")
        return "log", str(label)

    def _change(self, method: str, params: Object) -> tuple[str, str]:
        says = method.removeprefix("notifications/")
        if self.legacy and SUBSCRIPTION_KEY not in params.get("_meta", {}):
            id, belongs, name = SESSION, "session", "its session"
        else:
            id = json.dumps(params["_meta"][SUBSCRIPTION_KEY])
            belongs, name = f"sub {id}", f"subscription {id}"
        held = self._held.get(id)
        if held is None:
            self._fault(f"{method} for {name}, which is not open here")
        elif method == "notifications/subscriptions/acknowledged":
            says = "acknowledged"
            if held.acknowledged:
                self._fault(f"{name} was acknowledged twice")
            elif params["notifications"] != held.wanted:
                self._fault(f"{name} was granted {params['notifications']}, not {held.wanted}")
            held.acknowledged = True
        elif not held.acknowledged:
            self._fault(f"{method} on {name} before its acknowledgement")
        elif not held.wants(method):
            self._fault(f"{method} on {name}, which asked for {held.wanted}")
        else:
            held.came[method] = held.came.get(method, 0) + 1
            if held.came[method] > held.due.get(method, 0):
                self._fault(f"{method} on {name} came more often than it happened")
            if method == RESOURCE_UPDATED and params["uri"] not in held.wanted["resourceSubscriptions"]:
                self._fault(f"{name} was told of {params['uri']}, not {held.wanted}")
        return belongs, says


def _text_of(result: Object) -> str:
    """What a result of the demo server says, in one text."""
    if "supportedVersions" in result:
        return "speaks " + ", ".join(result["supportedVersions"])
    if "protocolVersion" in result:
        return f"speaks {result['protocolVersion']}"
    if "tools" in result:
        return " ".join(tool["name"] for tool in result["tools"])
    content = result["contents"] if "contents" in result else result["content"]
    return str(content[0]["text"])
