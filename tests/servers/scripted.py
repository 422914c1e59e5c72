"""A server that does what the request asks of it: the faults of real servers, on demand.

`python scripted.py`. A request is scripted by the `arguments` of its `tools/call`, by
`params._meta["example.com/script"]` of any other method, by an earlier `{"next": {METHOD: SCRIPT}}`, or by
`$SCRIPT`. Without a script it is answered at once. A script is an object; its steps run in this order:

    stop_reading_ms: N     read nothing from stdin for N ms, beginning now
    stderr_bytes: N        write N bytes to stderr (lines of 100 bytes; "stderr_endless": true: no newline)
    stderr: TEXT           write TEXT and a newline to stderr
    spawn: {...}           start a grandchild that sleeps "seconds" (60) and is in the result as "grandchild";
                           "setsid", "ignore_term", "hold_stdout": true or false
    next: {METHOD: SCRIPT} the script of the next request METHOD that comes (several queue up)
    release: NAME          let the request go that is held under NAME
    raw_before: [B64 ...]  write these bytes (base64), exactly, before anything else; @ID@ and @TOKEN@ in them
                           become the request's id and progress token as JSON
    progress: N            N progress notifications with the request's token ("token": ANY forces another one;
                           without either there are none), "interval_ms" apart, total N
    logs: N                N notifications/message, level "log_level" (info), data {"text": "log_text",
                           "n": i}, whether the request asked for them or not ("polite": true: only if so)
    delay_ms: N            wait
    hold: NAME             wait until another request says {"release": NAME}
    notify: {...}          "method", "params", "count" (1): to every open subscription that was granted it;
                           "to": [0, 2] only to these, by age; "force": true whether granted or not;
                           "untagged": true one without subscription id. `_meta["example.com/n"]` counts
                           from 0
    end_listen: {...}      end subscriptions: "how": "result", "cancelled" or "both"; "to" as above
    crash: {...}           "when": "before", "mid" (half of the answer's line) or "after" the answer;
                           "code": N or "signal": N
    raw_instead: [B64 ...] write these bytes and no answer
    answer: false          no answer
    error: {...}           answer with this error;  result: {...}  answer with this result
    size: N                add N bytes of padding to the result
    repeat: N              write the answer N times (1)
    late_progress: N       N progress notifications after the answer
    raw_after: [B64 ...]   as raw_before
    close_stdin: true      close stdin and read no more (a script with waits: only after the next line)
    close_stdout: true     close stdout

A request that waits (delay, hold, interval) does not keep others waiting. `notifications/cancelled` ends it
without an answer ("answer_cancelled": true: it is answered all the same, at once). `subscriptions/listen`
is acknowledged with what it asks for; its script may say "grant": FILTER, "refuse": ERROR, "ack": false, and
any step above. The result of a `tools/call` has {"name", "arguments", "pid", "start", "was_cancelled"}
as text and as `structuredContent`; of the tool `state` {"pid", "start", "listens", "running",
"cancelled", "responses", "count"}: what it knows of, and how many lines it has received.

Environment:
    RECORD: a file to which every received line is appended, byte for byte; "@START@" in it becomes the
        number of the start.
    STARTS: a file that counts the starts, one line with the pid each.
    SCRIPT: JSON, an object, or a list of objects for the first, second, ... start (the last one stays):
        "start_delay_ms", "banner" (base64, written to stdout first), "stderr" (text), "exit" (code, at once),
        "ignore_term", "ignore_eof": true; "era": "modern" (default), "legacy" or "dual";
        "methods": {METHOD: SCRIPT} for each request METHOD without a script of its own;
        "capabilities": object.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
SCRIPT_KEY = "example.com/script"
COUNT_KEY = "example.com/n"

CAPABILITIES = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "logging": {},
}
# Which member of a filter grants a change notification.
GRANTED_BY = {
    "notifications/tools/list_changed": "toolsListChanged",
    "notifications/prompts/list_changed": "promptsListChanged",
    "notifications/resources/list_changed": "resourcesListChanged",
}
# A script with one of these waits, so it gets a thread of its own.
WAITS = ("delay_ms", "hold", "interval_ms")
# No wait here outlives a test.
LONGEST_WAIT = 120.0

Object = dict[str, Any]


@dataclass
class Listen:
    id: Any
    granted: Object

    def grants(self, method: str, params: Object) -> bool:
        if method == "notifications/resources/updated":
            return params.get("uri") in self.granted.get("resourceSubscriptions", [])
        return bool(self.granted.get(GRANTED_BY.get(method, "")))


class Server:
    def __init__(self, settings: Object, start: int) -> None:
        self.settings = settings
        self.start = start
        self.era = settings.get("era", "modern")
        self.changed = threading.Condition()
        self.writing = threading.Lock()
        # By id as JSON, because 1 and "1" are two ids.
        self.running: dict[str, Object] = {}
        self.cancelled: list[Any] = []
        self.listens: list[Listen] = []
        self.next: dict[str, list[Object]] = {}
        self.released: set[str] = set()
        self.responses: list[Object] = []
        self.count = 0
        self.pause_until = 0.0
        self.stop_reading = False

    # Writing.

    def write(self, data: bytes) -> None:
        # A bridge that has gone or a stdout closed on purpose is no fault of this program.
        with self.writing, contextlib.suppress(OSError):
            while data:
                data = data[os.write(1, data) :]

    def send(self, message: Object) -> None:
        self.write(line_of(message))

    def raw(self, pieces: list[str], request: Object) -> None:
        for piece in pieces:
            self.write(filled(base64.b64decode(piece), request))

    # Scripts.

    def script_of(self, request: Object) -> Object:
        method, params = request["method"], request.get("params") or {}
        script = params.get("_meta", {}).get(SCRIPT_KEY)
        if script is None and method == "tools/call":
            script = params.get("arguments") or None
        if script is None and self.next.get(method):
            script = self.next[method].pop(0)
        if script is None:
            script = self.settings.get("methods", {}).get(method, {})
        return script if isinstance(script, dict) else {}

    def wait(self, seconds: float, key: str, name: str | None = None) -> None:
        """Wait for the time, for the release of `name`, or for the cancellation of the request `key`."""
        deadline = time.monotonic() + min(seconds, LONGEST_WAIT)
        with self.changed:
            while key in self.running and name not in self.released:
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                self.changed.wait(left)
            if name is not None and key in self.running:
                self.released.discard(name)

    def run(self, request: Object, script: Object) -> None:
        key = json.dumps(request["id"])
        grandchild = self.prepare(request, script)
        self.progress_and_logs(request, script, key)
        if "delay_ms" in script:
            self.wait(script["delay_ms"] / 1000, key)
        if "hold" in script:
            self.wait(LONGEST_WAIT, key, script["hold"])
        if "notify" in script:
            self.notify(script["notify"])
        if "end_listen" in script:
            self.end_listen(script["end_listen"])
        with self.changed:
            cancelled = key not in self.running
            self.running.pop(key, None)
        if not cancelled or script.get("answer_cancelled"):
            self.answer(request, script, grandchild, cancelled)

    def prepare(self, request: Object, script: Object) -> int | None:
        if "stop_reading_ms" in script:
            self.pause_until = time.monotonic() + script["stop_reading_ms"] / 1000
        if "stderr_bytes" in script:
            line = b"e" * 100 if script.get("stderr_endless") else b"e" * 99 + b"\n"
            write_all(2, (line * (script["stderr_bytes"] // 100 + 1))[: script["stderr_bytes"]])
        if "stderr" in script:
            write_all(2, script["stderr"].encode() + b"\n")
        grandchild = spawn(script["spawn"]) if "spawn" in script else None
        for method, later in script.get("next", {}).items():
            self.next.setdefault(method, []).append(later)
        if "release" in script:
            with self.changed:
                self.released.add(script["release"])
                self.changed.notify_all()
        self.raw(script.get("raw_before", []), request)
        return grandchild

    def progress_and_logs(self, request: Object, script: Object, key: str) -> None:
        meta = (request.get("params") or {}).get("_meta", {})
        interval = script.get("interval_ms", 0) / 1000
        token = script.get("token", meta.get("progressToken"))
        steps, logs = script.get("progress", 0), script.get("logs", 0)
        if script.get("polite") and LOG_LEVEL not in meta:
            logs = 0
        for number in range(max(steps, logs)):
            if number < steps and token is not None:
                self.progress(token, number + 1, steps)
            if number < logs:
                data = {"text": script.get("log_text", "scripted"), "n": number}
                params = {"level": script.get("log_level", "info"), "data": data}
                self.send({"jsonrpc": "2.0", "method": "notifications/message", "params": params})
            if interval:
                self.wait(interval, key)
                if key not in self.running:
                    return

    def progress(self, token: Any, value: int, total: int) -> None:
        params = {"progressToken": token, "progress": value, "total": total}
        self.send({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

    def answer(self, request: Object, script: Object, grandchild: int | None, cancelled: bool) -> None:
        crash = script.get("crash", {})
        if crash.get("when") == "before":
            leave(crash)
        response: Object | None = {"jsonrpc": "2.0", "id": request["id"]}
        if "raw_instead" in script:
            self.raw(script["raw_instead"], request)
            response = None
        elif script.get("answer") is False:
            response = None
        elif "error" in script:
            response = {"jsonrpc": "2.0", "id": request["id"], "error": script["error"]}
        elif request["method"] == "subscriptions/listen":
            response = self.listen_answer(request, script)
        else:
            result = script["result"] if "result" in script else self.result(request, grandchild, cancelled)
            if "error" in result and set(result) == {"error"}:
                response = {"jsonrpc": "2.0", "id": request["id"], "error": result["error"]}
            else:
                if "size" in script:
                    result["padding"] = "x" * script["size"]
                response = {"jsonrpc": "2.0", "id": request["id"], "result": result}
        if response is not None:
            line = line_of(response)
            if crash.get("when") == "mid":
                self.write(line[: len(line) // 2])
                leave(crash)
            self.write(line * script.get("repeat", 1))
        token = script.get("token", (request.get("params") or {}).get("_meta", {}).get("progressToken"))
        for number in range(script.get("late_progress", 0)):
            self.progress(token, number + 1000, 2000)
        self.raw(script.get("raw_after", []), request)
        if crash:
            leave(crash)
        if script.get("close_stdin"):
            self.stop_reading = True
        if script.get("close_stdout"):
            with self.writing:
                os.close(1)

    def result(self, request: Object, grandchild: int | None, cancelled: bool) -> Object:
        method, params = request["method"], request.get("params") or {}
        modern = VERSION_KEY in params.get("_meta", {})
        if method == "server/discover":
            return self.discover()
        if method == "initialize":
            return self.initialize(params)
        seen: Object = {"method": method, "params": params}
        if method == "tools/call":
            seen = {"name": params.get("name"), "arguments": params.get("arguments", {})}
            if params.get("name") == "state":
                seen = self.state()
        seen = {**seen, "pid": os.getpid(), "start": self.start, "was_cancelled": cancelled}
        if grandchild is not None:
            seen["grandchild"] = grandchild
        result: Object = {"content": [{"type": "text", "text": json.dumps(seen)}], "structuredContent": seen}
        return {"resultType": "complete", **result} if modern else result

    def state(self) -> Object:
        with self.changed:
            return {
                "listens": [{"id": listen.id, "granted": listen.granted} for listen in self.listens],
                "running": [request["id"] for request in self.running.values()],
                "cancelled": list(self.cancelled),
                "responses": list(self.responses),
                "count": self.count,
            }

    # Eras.

    def discover(self) -> Object:
        if self.era == "legacy":
            return {"error": {"code": -32601, "message": "Method not found"}}
        return {
            "resultType": "complete",
            "supportedVersions": ["2026-07-28"] + (["2025-11-25"] if self.era == "dual" else []),
            "capabilities": self.settings.get("capabilities", CAPABILITIES),
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "scripted", "version": "1.0.0"}},
        }

    def initialize(self, params: Object) -> Object:
        requested = params.get("protocolVersion", "")
        if self.era == "modern":
            data = {"supported": ["2026-07-28"], "requested": requested}
            return {"error": {"code": -32022, "message": "Unsupported protocol version", "data": data}}
        return {
            "protocolVersion": min(requested, "2025-11-25"),
            "capabilities": self.settings.get("capabilities", CAPABILITIES),
            "serverInfo": {"name": "scripted", "version": "1.0.0"},
        }

    # Subscriptions.

    def listen_answer(self, request: Object, script: Object) -> Object | None:
        if "refuse" in script:
            return {"jsonrpc": "2.0", "id": request["id"], "error": script["refuse"]}
        granted = script.get("grant", request["params"].get("notifications", {}))
        # Booked first: the client's cancellation may follow its acknowledgement at once.
        with self.changed:
            self.listens.append(Listen(request["id"], granted))
        if script.get("ack") is not False:
            params = {"_meta": {SUBSCRIPTION_ID: request["id"]}, "notifications": granted}
            method = "notifications/subscriptions/acknowledged"
            self.send({"jsonrpc": "2.0", "method": method, "params": params})
        return None

    def chosen(self, order: Object) -> list[Listen]:
        with self.changed:
            if "to" not in order:
                return list(self.listens)
            return [self.listens[index] for index in order["to"] if index < len(self.listens)]

    def notify(self, order: Object) -> None:
        method, params = order["method"], order.get("params", {})
        targets: list[Listen | None] = [
            listen for listen in self.chosen(order) if order.get("force") or listen.grants(method, params)
        ]
        if order.get("untagged"):
            targets = [None]
        for number in range(order.get("count", 1)):
            for target in targets:
                meta = {**params.get("_meta", {}), COUNT_KEY: number}
                if target is not None:
                    meta[SUBSCRIPTION_ID] = target.id
                self.send({"jsonrpc": "2.0", "method": method, "params": {**params, "_meta": meta}})

    def end_listen(self, order: Object) -> None:
        for listen in self.chosen(order):
            if order["how"] in ("cancelled", "both"):
                params = {"requestId": listen.id, "reason": "scripted"}
                self.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
            if order["how"] in ("result", "both"):
                result = {"resultType": "complete", "_meta": {SUBSCRIPTION_ID: listen.id}}
                self.send({"jsonrpc": "2.0", "id": listen.id, "result": result})
            with self.changed:
                self.listens.remove(listen)

    # Reading.

    def handle(self, message: Object) -> None:
        if "method" not in message:
            with self.changed:
                self.responses.append(message)
        elif "id" not in message:
            if message["method"] == "notifications/cancelled":
                self.cancel((message.get("params") or {}).get("requestId"))
        else:
            script = self.script_of(message)
            with self.changed:
                self.running[json.dumps(message["id"])] = message
            if any(name in script for name in WAITS):
                threading.Thread(target=self.run, args=(message, script), daemon=True).start()
            else:
                self.run(message, script)

    def cancel(self, id: Any) -> None:
        with self.changed:
            self.cancelled.append(id)
            self.running.pop(json.dumps(id), None)
            self.listens = [listen for listen in self.listens if json.dumps(listen.id) != json.dumps(id)]
            self.changed.notify_all()

    def serve(self, record: int | None) -> None:
        rest = b""
        while not self.stop_reading:
            if (pause := self.pause_until - time.monotonic()) > 0:
                time.sleep(pause)
            data = os.read(0, 65536)
            if not data:
                return
            if record is not None:
                write_all(record, data)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.strip():
                    self.count += 1
                    self.handle(json.loads(line))
                if self.stop_reading:
                    break
        os.close(0)
        time.sleep(LONGEST_WAIT)


def line_of(message: Object) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def filled(data: bytes, request: Object) -> bytes:
    token = (request.get("params") or {}).get("_meta", {}).get("progressToken")
    data = data.replace(b"@ID@", json.dumps(request["id"]).encode())
    return data.replace(b"@TOKEN@", json.dumps(token).encode())


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    with contextlib.suppress(OSError):
        while view:
            view = view[os.write(fd, view[:65536]) :]


def spawn(order: Object) -> int:
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if order.get("ignore_term") else ""
    code = f"import signal, time; {ignore}time.sleep({order.get('seconds', 60)})"
    quiet = None if order.get("hold_stdout") else subprocess.DEVNULL
    return subprocess.Popen(
        [sys.executable, "-S", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=quiet,
        stderr=quiet,
        start_new_session=bool(order.get("setsid")),
    ).pid


def leave(crash: Object) -> None:
    if "signal" in crash:
        os.kill(os.getpid(), crash["signal"])
        time.sleep(LONGEST_WAIT)
    os._exit(crash.get("code", 1))


def main() -> int:
    start = 1
    if starts := os.environ.get("STARTS"):
        with open(starts, "a+b", buffering=0) as file:
            file.write(b"%d\n" % os.getpid())
            file.seek(0)
            start = len(file.readlines())
    scripts = json.loads(os.environ.get("SCRIPT", "{}"))
    settings = scripts[min(start, len(scripts)) - 1] if isinstance(scripts, list) else scripts
    if settings.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "stderr" in settings:
        write_all(2, settings["stderr"].encode() + b"\n")
    time.sleep(settings.get("start_delay_ms", 0) / 1000)
    if "banner" in settings:
        write_all(1, base64.b64decode(settings["banner"]))
    if "exit" in settings:
        os._exit(settings["exit"])
    record = os.environ.get("RECORD", "").replace("@START@", str(start))
    server = Server(settings, start)
    server.serve(os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) if record else None)
    if settings.get("ignore_eof"):
        time.sleep(LONGEST_WAIT)
    # Not sys.exit: threads of held requests must not delay the end.
    os._exit(0)


if __name__ == "__main__":
    main()
