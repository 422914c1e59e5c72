"""What a request may ask of the history checker's server: each fault by its name.

A function gets the server, the request and the argument behind the colon.
"""

from __future__ import annotations

import json
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.history.server import Do, Request, Server

GARBAGE: Final = (
    b"\xff\xfe\x00\x01 binary",
    b"Starting up, please wait...",
    b"",
    b"   \t\r",
    b"[]",
    b"{}",
    b'"text"',
    b'{"jsonrpc":"2.0"}',
    b'{"jsonrpc":"2.0","id":',
    b'[{"jsonrpc":"2.0","id":1,"result":{}}]',
    b'{"a":' * 400 + b"1" + b"}" * 400,
    b"\xef\xbb\xbf",
    b'{"jsonrpc":"2.0","method":7}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}',
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"nobody","progress":1}}',
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}',
)


def _echo(server: Server, request: Request, argument: str) -> None:
    server.answer(request)


def _delay(server: Server, request: Request, argument: str) -> None:
    server.later(float(argument), lambda: server.answer(request))


def _progress(server: Server, request: Request, argument: str) -> None:
    count = int(argument)

    def step(n: int) -> None:
        if request.uid in server.open:
            server.progress(request, n)

    for n in range(count):
        server.later(4 * n, partial(step, n))
    server.later(4 * count, lambda: server.answer(request))
    server.later(4 * count + 6, lambda: server.progress(request, 100))  # after the answer: nobody's


def _nothing(server: Server, request: Request, argument: str) -> None:
    pass


def _instead(server: Server, request: Request, line: bytes) -> None:
    del server.open[request.uid]
    server.write(line + b"\n", "W", request.id.decode())


def _error(server: Server, request: Request, argument: str) -> None:
    server.fail(request, -32050)


def _damaged(server: Server, request: Request, argument: str) -> None:
    head = b'{"jsonrpc":"2.0","id":%s,' % request.id
    mark = request.mark.encode()
    lines = {
        "both": head + b'"result":{"mark":"%s"},"error":{"code":1,"message":""}}' % mark,
        "neither": head[:-1] + b"}",
        "cut": head + b'"result":{"mark":"%s",}' % mark,
        "tail": b'{"result":{"mark":"%s",},"jsonrpc":"2.0","id":%s}' % (mark, request.id),
        "utf8": head + b'"result":{"mark":"%s","x":"\xff"}}' % mark,
    }
    _instead(server, request, lines[argument])


def _huge(server: Server, request: Request, argument: str) -> None:
    pad = b"x" * int(argument)
    _instead(server, request, b'{"jsonrpc":"2.0","id":%s,"result":{"pad":"%s"}}' % (request.id, pad))


def _big(server: Server, request: Request, argument: str) -> None:
    comma = b"," if len(request.blob) > 2 else b""
    request.blob = request.blob[:-1] + comma + b'"' + b"b" * int(argument) + b'"]'
    server.answer(request)


def _foreign(server: Server, request: Request, argument: str) -> None:
    mark = request.mark.encode()
    uid = 0 if server.apart else request.uid  # where a client's own ids come, its next one may be this
    for id in (b"%d" % (uid + 10**9), b'"%d%s"' % (uid, b"!" * server.apart), b"null", b"%d.0" % uid, b"[1]"):
        server.out.append(b'{"jsonrpc":"2.0","id":%s,"result":{"mark":"%s","n":7,"blob":[]}}\n' % (id, mark))
    server.answer(request)


def _split(server: Server, request: Request, argument: str) -> None:
    """The answer in pieces, with time between them. Nothing else may be written meanwhile."""
    server.flush()
    if server.open.pop(request.uid, None) is None:
        return
    server.note("A", request.id.decode(), 0)
    server.write_notes()
    line = server.result(request, 0)
    for begin in range(0, len(line), max(1, len(line) // 3)):
        os.write(1, line[begin : begin + max(1, len(line) // 3)])
        time.sleep(0.001)
    server.note("F")


def _garbage(server: Server, request: Request, argument: str) -> None:
    garbage = GARBAGE[:-3] if server.apart else GARBAGE  # the last ones would go through
    for n in range(3):
        server.out.append(garbage[(server.serial + n) % len(garbage)] + b"\n")
    server.serial += 3
    server.answer(request)


def _stderr(server: Server, request: Request, argument: str) -> None:
    line = b"the server complains " + b"." * 80 + b"\n"
    for _ in range(int(argument) // len(line)):
        os.write(2, line)
    server.answer(request)


def _stall(server: Server, request: Request, argument: str) -> None:
    server.answer(request)
    server.stall = float(argument) / 1000


def _log(server: Server, request: Request, argument: str) -> None:
    for n in range(int(argument)):
        if server.era == "legacy":
            server.session.log("info")
            continue
        params = {"level": "info", "data": request.mark, "n": n}
        server.write(server.notify("notifications/message", params), "G", request.id.decode())
    server.later(3, lambda: server.answer(request))


def _ask(server: Server, request: Request, argument: str) -> None:
    if server.apart and server.era == "legacy":
        server.session.ask(request, argument)
        return
    if server.apart:  # no server of that era asks; it would go through
        server.answer(request)
        return
    server.serial += 1
    id = f"ask-{server.serial}"
    if server.era == "legacy":
        server.asked[id] = argument
    line = {"jsonrpc": "2.0", "id": id, "method": argument, "params": {"mark": request.mark}}
    server.out.append(json.dumps(line).encode() + b"\n")
    server.answer(request)


def _emit(server: Server, request: Request, argument: str) -> None:
    if server.era == "legacy":
        server.session.update(argument)
    server.emit_all(argument)
    server.answer(request)


def _say(server: Server, request: Request, argument: str) -> None:
    if server.era == "legacy":
        server.session.log(argument)
    server.answer(request)


def _task(server: Server, request: Request, argument: str) -> None:
    server.session.make(request, argument)


def _about_task(server: Server, request: Request, argument: str) -> None:
    server.session.about(request)


def _tasks(server: Server, request: Request, argument: str) -> None:
    server.session.page(request)


def _end(server: Server, request: Request, argument: str) -> None:
    server.end_all(argument)
    server.answer(request)


def _changed(server: Server, request: Request, argument: str) -> None:
    server.serial += 1
    params = {"mark": f"{server.name}/-/{server.serial}/{server.era}"}
    if server.apart and server.era == "modern":  # it names no subscription, and would go through
        server.answer(request)
        return
    server.write(server.notify("notifications/tools/list_changed", params), "T", server.serial)
    server.answer(request)


def _crash(server: Server, request: Request, argument: str) -> None:
    when, _, how = argument.partition("/")
    server.flush()
    if when == "big":  # more than is read at once
        request.blob = b'["' + b"b" * 400_000 + b'"]'
    line = server.result(request, 0)
    if when == "mid":
        os.write(1, line[: len(line) // 2])
    elif when != "before":
        server.note("A", request.id.decode(), 0)
        server.write_notes()
        os.write(1, line.rstrip(b"\r\n") if when == "tail" else line)
        server.note("F")
    server.die(how)


def _orphan(server: Server, request: Request, argument: str) -> None:
    """Die, and leave a process that holds every pipe."""
    server.flush()
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)
    server.die("exit3")


def _close(server: Server, request: Request, argument: str) -> None:
    """Close one pipe, and live."""
    server.flush()
    server.note("D", f"closed {argument}")
    server.write_notes()
    os.close({"stdin": 0, "stdout": 1}[argument])
    time.sleep(20)
    os._exit(0)


DEATHS: Final = (
    "crash:before/killed",
    "crash:after/exit3",
    "crash:mid/exit3",
    "crash:tail/exit3",
    "crash:big/exit3",
    "orphan",
    "crash:mid/killed",
    "crash:tail/exit3",
    "crash:big/exit3",
    "close:stdout",
    "crash:after/exit0",
    "crash:before/exit3",
    "close:stdin",
    "crash:after/killed",
)
"""What a request for a crash gets, in turn with each start of a process, so that every kind has its turn."""

DOES: Final[dict[str, Do]] = {
    "echo": _echo,
    "double": lambda server, request, argument: server.answer(request, 2),
    "delay": _delay,
    "stubborn": _delay,
    "progress": _progress,
    "hang": _nothing,
    "late": _nothing,
    "error": _error,
    "damaged": _damaged,
    "huge": _huge,
    "big": _big,
    "foreign": _foreign,
    "split": _split,
    "garbage": _garbage,
    "stderr": _stderr,
    "stall": _stall,
    "log": _log,
    "ask": _ask,
    "emit": _emit,
    "say": _say,
    "task": _task,
    "about-task": _about_task,
    "tasks": _tasks,
    "end": _end,
    "changed": _changed,
    "crash": _crash,
    "orphan": _orphan,
    "close": _close,
}
