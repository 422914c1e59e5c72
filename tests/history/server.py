"""The server of the history checker: each request says what is to be done with it.

Started by the bridge as `python -S server.py`. It speaks both eras, but each process only that of its first
request; one whose first words are a client's own is that client's alone ("apart").

What it does is in its log, `$HISTORY_DIR/log.NAME`, before anybody can see an effect of it: one event a line,
tab-separated, with the clock's monotonic seconds. `record.py` lists the events. `$HISTORY_DIR/lives` has a
line for each process that starts ("S") and for each that settles on an era ("E": modern, legacy, or apart).

A request says what to do in `params.arguments`: `mark` (unique), `do` (NAME or NAME:ARGUMENT, see does.py),
`blob` (an array without `]` inside, handed back byte for byte).
"""

from __future__ import annotations

import heapq
import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.history.session import Session

BLOB: Final = re.compile(rb'"blob":(\[[^\]]*\])')
PREFIX: Final = "io.modelcontextprotocol/"
READ: Final = 256 * 1024
STRAY: Final = 99
"""Progress from this number on is nobody's, and the bridge is to drop it where it looks."""
# Deaths that cost everybody a longer back-off than this are saved for later.
PATIENCE: Final = 2.0
# The bridge forgets a back-off after so long a life, in seconds.
FORGOTTEN: Final = 10.0


def next_delay(starts: list[float], death: float) -> float:
    """How long the bridge waits after a death, in seconds: about.

    Args:
        starts: when the processes of one era were started, in order; the last one dies.
    """
    delay = 0.1
    if not starts:
        return delay
    for start, end in zip(starts, [*starts[1:], death], strict=True):
        lived = end - start - (delay if end != death else 0)
        delay = 0.1 if lived >= FORGOTTEN else min(delay * 2, 10.0)
    return delay


def starts_of(text: str, era: str) -> list[float]:
    """When the processes of an era were started, from the file of lives; since they were last replaced.

    A replacement makes the bridge forget the back-off. The nemesis notes each ("R").
    """
    lines = [line.split("\t") for line in text.splitlines()]
    names = {line[1] for line in lines if line[0] == "E" and line[2] == era}
    since = max((float(line[3]) for line in lines if line[0] == "R"), default=0.0)
    starts = (float(line[3]) for line in lines if line[0] == "S" and line[1] in names)
    return [start for start in starts if start >= since]


class Request:
    """One that is not answered yet."""

    __slots__ = ("blob", "do", "extra", "id", "mark", "method", "params", "token", "uid")

    def __init__(
        self, uid: Any, mark: str, do: str, token: Any, blob: bytes, method: str, params: dict[str, Any]
    ) -> None:
        self.uid = uid
        self.id = json.dumps(uid).encode()
        """As it is spelled."""
        self.mark = mark
        self.do = do
        self.token = token
        self.blob = blob
        self.method = method
        self.params = params
        self.extra = b""
        """Further members of the result."""


class Listen:
    """One subscription."""

    __slots__ = ("acknowledged", "count", "filter", "key", "uid")

    def __init__(self, uid: Any, filter: dict[str, Any], key: str) -> None:
        self.uid = uid
        self.filter = filter
        self.key = key
        self.acknowledged = False
        self.count = 0


def filter_key(wanted: dict[str, Any]) -> str:
    """A subscription's filter as one word."""
    tools = ["tools"] if wanted.get("toolsListChanged") else []
    return ",".join(tools + sorted(set(wanted.get("resourceSubscriptions", []))))


Do = Callable[["Server", Request, str], None]


class Server:
    """One process."""

    def __init__(
        self,
        folder: str,
        does: Mapping[str, Do],
        deaths: Sequence[str],
        session: Callable[[Server], Session],
        capabilities: dict[str, Any],
    ) -> None:
        self.session = session(self)
        self.capabilities = capabilities
        self.apart = False
        """It serves one client, which speaks to it itself."""
        self.folder = folder
        self.does = does
        self.deaths = deaths
        self.name = os.urandom(5).hex()
        self.started = time.monotonic()
        flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY
        self.log_fd = os.open(f"{folder}/log.{self.name}", flags, 0o600)
        self.lives_fd = os.open(f"{folder}/lives", flags, 0o600)
        os.write(self.lives_fd, f"S\t{self.name}\t{os.getpid()}\t{self.started}\n".encode())
        self.era = ""
        self.notes: list[str] = []
        self.out: list[bytes] = []
        self.open: dict[Any, Request] = {}
        self.listens: dict[Any, Listen] = {}
        self.asked: dict[str, str] = {}
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.serial = 0
        self.stall = 0.0
        self.now = self.started

    # -- log and output ------------------------------------------------------------

    def note(self, *fields: Any) -> None:
        kind, *rest = fields
        self.notes.append("\t".join([kind, f"{self.now:.6f}", *map(str, rest)]) + "\n")

    def flush(self) -> None:
        """First the log, then what others see, then that they can see it."""
        out = b"".join(self.out)
        self.out.clear()
        if out:
            self.write_notes()
            view = memoryview(out)
            while view:
                view = view[os.write(1, view) :]
            self.now = time.monotonic()
            self.note("F")
        self.write_notes()

    def write_notes(self) -> None:
        if self.notes:
            os.write(self.log_fd, "".join(self.notes).encode(errors="backslashreplace"))
            self.notes.clear()

    def later(self, ms: float, what: Callable[[], None]) -> None:
        self.serial += 1
        heapq.heappush(self.timers, (self.now + ms / 1000, self.serial, what))

    def run(self) -> None:
        buffer = b""
        while True:
            wait = max(0.0, self.timers[0][0] - time.monotonic()) if self.timers else None
            ready, _, _ = select.select([0], [], [], wait)
            data = os.read(0, READ) if ready else b""
            self.now = time.monotonic()  # not before: what was read must not seem older than its cause
            if ready:
                if not data:
                    self.note("D", "end of input")
                    self.flush()
                    return
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    self.line(line)
            while self.timers and self.timers[0][0] <= self.now:
                heapq.heappop(self.timers)[2]()
            self.flush()
            if self.stall:
                stall, self.stall = self.stall, 0.0
                time.sleep(stall)

    # -- what comes ------------------------------------------------------------------

    def line(self, line: bytes) -> None:
        if b"\r" in line:
            self.note("X", "a raw CR came through")
        try:
            message = json.loads(line)
        except ValueError:
            self.note("X", f"no JSON: {line[:200]!r}")
            return
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            self.note("X", f"no message: {line[:200]!r}")
            return
        method = message.get("method")
        if method is None:
            self.response(message)
        elif "id" in message:
            self.request(message["id"], method, message.get("params") or {}, line)
        elif method == "notifications/cancelled":
            self.cancelled(message.get("params", {}).get("requestId"))
        elif method == "notifications/initialized":
            pass
        else:
            self.note("N", (message.get("params") or {}).get("mark", "-"), method)

    def response(self, message: dict[str, Any]) -> None:
        if self.apart:
            if not self.session.answered(message):
                self.note("X", f"a response nobody waits for: {json.dumps(message)[:200]}")
            return
        asked = self.asked.pop(str(message.get("id")), None)
        if asked is None or ("error" in message) is not (asked == "sampling/createMessage"):
            self.note("X", f"a response nobody waits for: {json.dumps(message)[:200]}")
        else:
            self.note("Q", asked)

    def cancelled(self, uid: Any) -> None:
        self.note("C", json.dumps(uid))
        request = self.open.get(uid)
        if request is not None and request.do.startswith("stubborn"):
            return
        self.open.pop(uid, None)
        self.listens.pop(uid, None)
        if request is not None and request.do.startswith("late"):
            self.write(self.result(request, 0), "A", json.dumps(uid), 0)
            self.progress(request, 99)

    def request(self, uid: Any, method: str, params: dict[str, Any], line: bytes) -> None:
        meta = params.get("_meta") or {}
        era = "modern" if PREFIX + "protocolVersion" in meta or method == "server/discover" else "legacy"
        own = (meta.get(PREFIX + "clientInfo") or params.get("clientInfo") or {}).get("name") == "mcp-bridge"
        if not self.era:
            self.era = era
            self.apart = not own
            name = "apart" if self.apart else era
            os.write(self.lives_fd, f"E\t{self.name}\t{name}\n".encode())
            self.note("B", name)
            if era == "legacy" and method != "initialize":
                self.note("X", f"{method} before initialize")
        elif self.era != era:
            self.note("X", f"{method} of the {era} era in a {self.era} process")
        if type(uid) not in ((int, str) if self.apart else (int,)) or uid in self.open or uid in self.listens:
            self.note("X", f"the id {uid!r} of {method}")
        if own or (self.apart and method == "initialize"):
            self.handshake(uid, method)
            return
        if era == "legacy" and self.session.takes(uid, method, params):
            return
        if method == "subscriptions/listen":
            self.listen(uid, params)
            return
        arguments = params.get("arguments") or {}
        blob = BLOB.search(line)
        token = meta.get("progressToken")
        do = arguments.get("do", "echo")
        if do == "crash":
            do = self.death()
        mark = arguments.get("mark", "-")
        request = Request(uid, mark, do, token, blob[1] if blob else b"[]", method, params)
        self.note("R", json.dumps(uid), request.mark, do, "-" if token is None else json.dumps(token))
        if request.mark in ("-", "smuggled"):
            self.note("X", f"a request without a mark of its own: {line[:300]!r}")
        self.open[uid] = request
        name, _, argument = do.partition(":")
        self.does[name](self, request, argument)

    def handshake(self, uid: Any, method: str) -> None:
        self.note("H", method)
        if method == "server/discover":
            body: dict[str, Any] = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        elif method == "initialize":
            body = {
                "protocolVersion": "2025-11-25",
                "capabilities": self.capabilities,
                "serverInfo": {"name": "history", "version": "1"},
            }
        else:
            self.note("X", f"{method} of the bridge's own")
            return
        self.out.append(json.dumps({"jsonrpc": "2.0", "id": uid, "result": body}).encode() + b"\n")

    def death(self) -> str:
        """What a request for a crash gets: a kind of death, or an answer where it would cost too much."""
        if "HISTORY_NO_DEATHS" in os.environ:  # somebody else sees to them
            return "echo"
        with open(f"{self.folder}/lives", encoding="utf-8") as lives:
            text = lives.read()
        starts = starts_of(text, self.era)
        if not self.apart and (not starts or next_delay(starts, self.now) > PATIENCE):
            return "echo"
        return self.deaths[text.count("S\t") % len(self.deaths)]

    # -- what goes -------------------------------------------------------------------

    def write(self, line: bytes, *fields: Any) -> None:
        self.note(*fields)
        self.out.append(line)

    def result(self, request: Request, n: int) -> bytes:
        """The answer's line, in one of the spellings that servers use."""
        body = b'{"resultType":"complete","mark":"%s","n":%d%s,"blob":%s}' % (
            request.mark.encode(),
            n,
            request.extra,
            request.blob,
        )
        uid = request.id
        form = request.uid % 16 if isinstance(request.uid, int) else len(uid) % 16
        if form == 1:
            return b'{"result":%s,"jsonrpc":"2.0","id":%s}\n' % (body, uid)
        if form == 2:
            return b'{"jsonrpc":"2.0","id":%s,"result":%s,"unknown":[1,{}]}\n' % (uid, body)
        if form == 3:
            return b'{"jsonrpc": "2.0", "id": %s, "result": %s}\r\n' % (uid, body)
        if form == 4:
            return b'\xef\xbb\xbf{"jsonrpc":"2.0","id":%s,"result":%s}\n' % (uid, body)
        return b'{"jsonrpc":"2.0","id":%s,"result":%s}\n' % (uid, body)

    def answer(self, request: Request, times: int = 1) -> None:
        if self.open.pop(request.uid, None) is None:
            return
        for n in range(times):
            self.write(self.result(request, n), "A", request.id.decode(), n)

    def fail(self, request: Request, code: int) -> None:
        """Answer with an error."""
        del self.open[request.uid]
        error = {"code": code, "message": "as asked", "data": {"mark": request.mark, "n": 0}}
        line = json.dumps({"jsonrpc": "2.0", "id": request.uid, "error": error}).encode() + b"\n"
        self.write(line, "A", request.id.decode(), 0)

    def progress(self, request: Request, n: int) -> None:
        if request.token is not None and not (self.apart and n >= STRAY):
            params = {"progressToken": request.token, "progress": n, "message": request.mark}
            line = {"jsonrpc": "2.0", "method": "notifications/progress", "params": params}
            self.write(json.dumps(line).encode() + b"\n", "P", request.id.decode(), n)

    def notify(self, method: str, params: dict[str, Any]) -> bytes:
        return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n"

    def die(self, how: str) -> None:
        """Never returns."""
        self.now = time.monotonic()
        self.note("D", how)
        self.write_notes()
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit({"exit0": 0, "exit3": 3}.get(how, 1))

    # -- subscriptions ---------------------------------------------------------------

    def listen(self, uid: Any, params: dict[str, Any]) -> None:
        wanted = params.get("notifications") or {}
        key = filter_key(wanted)
        self.note("L", json.dumps(uid), key, params.get("mark", "-"))
        if "refuse" in key:
            error = {"code": -32602, "message": "no such resource"}
            line = json.dumps({"jsonrpc": "2.0", "id": uid, "error": error}).encode() + b"\n"
            self.write(line, "Z", json.dumps(uid), "refused")
            return
        listen = self.listens[uid] = Listen(uid, wanted, key)
        if "slow" in key:
            if not self.apart:  # there it would go through
                self.emit(listen, "demo:slow")
            self.later(60, lambda: self.acknowledge(listen))
        else:
            self.acknowledge(listen)

    def acknowledge(self, listen: Listen) -> None:
        if listen.uid in self.listens:
            listen.acknowledged = True
            params = {"notifications": listen.filter, "_meta": {PREFIX + "subscriptionId": listen.uid}}
            self.write(
                self.notify("notifications/subscriptions/acknowledged", params),
                "K",
                json.dumps(listen.uid),
                listen.key,
            )

    def emit(self, listen: Listen, uri: str) -> None:
        params: dict[str, Any] = {"mark": f"{self.name}/{json.dumps(listen.uid)}/{listen.count}/{listen.key}"}
        params["_meta"] = {PREFIX + "subscriptionId": listen.uid}
        method = "notifications/tools/list_changed"
        if uri != "tools":
            method = "notifications/resources/updated"
            params["uri"] = uri
        self.write(self.notify(method, params), "S", json.dumps(listen.uid), listen.count)
        listen.count += 1

    def emit_all(self, uri: str) -> None:
        for listen in list(self.listens.values()):
            # (Before the acknowledgement only where the bridge is to hold it back.)
            if uri in listen.key.split(",") and (listen.acknowledged or not self.apart):
                self.emit(listen, uri)

    def end_all(self, argument: str) -> None:
        how, _, uri = argument.partition("/")
        for listen in list(self.listens.values()):
            if uri in listen.key.split(","):
                del self.listens[listen.uid]
                meta = {PREFIX + "subscriptionId": listen.uid}
                if how == "result":
                    result = {"resultType": "complete", "_meta": meta}
                    line = json.dumps({"jsonrpc": "2.0", "id": listen.uid, "result": result}).encode() + b"\n"
                else:
                    line = self.notify("notifications/cancelled", {"requestId": listen.uid})
                self.write(line, "Z", json.dumps(listen.uid), how)


if __name__ == "__main__":
    # Without site-packages and from wherever the bridge runs it: the package is found by this file's place.
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from tests.history.does import DEATHS, DOES
    from tests.history.session import CAPABILITIES, Session

    # The bridge's end, or its wish that this process ends: nothing to tell anybody.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    try:
        Server(os.environ["HISTORY_DIR"], DOES, DEATHS, Session, CAPABILITIES).run()
    except BrokenPipeError:
        sys.stderr.close()
        os._exit(1)
