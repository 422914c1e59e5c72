"""Writing log lines to stderr without ever waiting for it.

Owns: the thread that writes to descriptor 2, the two log formats, the escaping of what peers sent, and the
relay of the server's stderr. Never: decides what is worth logging.

Whoever reads our stderr may stop reading, its disk may be full, or it may be closed. None of that may stop
the event loop or raise in it, so lines go through a queue that is bounded in bytes to a daemon thread. Lines
that do not fit, or that cannot be written, are lost; they are counted, and the count is told as soon as
writing works again.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import select
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

from bridge.errors import ConfigError
from bridge.signals import block_signals

Format = Literal["text", "json"]

# Some thousands of lines: rides out a reader that is busy for a moment; a stuck one costs no more.
QUEUE_BYTES: Final = 1024 * 1024
# What a queued line costs besides its bytes (the object, its place): many short lines are bounded too.
LINE_OVERHEAD_BYTES: Final = 64
# What is joined into one write: few calls under load, and little that is lost with one failed write.
BATCH_BYTES: Final = 64 * 1024
# If the system allows no more threads, asking again for each line would make every line expensive.
THREAD_RETRY_S: Final = 5.0
# A stderr that somebody else made non-blocking is polled; this bounds one wait, so that `close` is noticed.
POLL_MS: Final = 500
# A message is one line that a person reads. A traceback keeps its end, which names the error.
MESSAGE_CHARS: Final = 4096
TRACEBACK_CHARS: Final = 16 * 1024
# The server may log a burst at its start; beyond this rate it would drown what the bridge has to say.
RELAY_LINES_PER_S: Final = 200
# The child's reader cuts at the same length; what the escaping adds is cut here.
RELAY_CHARS: Final = 8 * 1024

_NEWLINE: Final = b"\n"
# Colours and the like (ECMA-48 control sequences): removed rather than escaped, for legibility.
_ANSI: Final = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
# What every `LogRecord` has; anything else came in with `extra=`.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LogWriter:
    """Lines to a descriptor, written by a thread of its own; no method waits for it, except `close`, bounded.

    Args:
        fd: where to write; it is never closed and its flags are never changed. Descriptor 2, if it is closed,
            is opened on /dev/null first: otherwise the next socket would get that number, and logs would go
            to a peer.
        fmt: how `StderrRelay` and the notes about lost lines are written.
    """

    def __init__(self, fd: int = 2, *, fmt: Format = "text") -> None:
        self.fmt: Format = fmt
        self._fd = fd
        # Reentrant, and so is SimpleQueue: a finalizer may log while the same thread is inside `write`.
        self._lock = threading.RLock()
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._queued = 0
        self._lost = 0
        self._lost_total = 0
        self._torn = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._retry_at = 0.0
        if fd == 2:
            _occupy_stderr()
        self._start_thread()

    @property
    def lost(self) -> int:
        """Lines lost since the start, told or not."""
        return self._lost_total

    def write(self, line: bytes) -> None:
        """Queue one line; the newline is added. If it cannot be taken it is counted as lost. Never raises."""
        size = len(line) + 1 + LINE_OVERHEAD_BYTES
        with self._lock:
            if self._closed or self._queued + size > QUEUE_BYTES or not self._has_thread():
                self._lost += 1
                self._lost_total += 1
                return
            self._queued += size
        self._queue.put(line + _NEWLINE)

    def close(self, timeout: float = 1.0) -> None:
        """Write what is queued, for at most `timeout` seconds; later lines are lost. Idempotent."""
        with self._lock:
            first, self._closed = not self._closed, True
            thread = self._thread
        if thread is None:
            return
        if first:
            self._queue.put(None)
        thread.join(timeout)

    def _has_thread(self) -> bool:
        return self._thread is not None or (time.monotonic() >= self._retry_at and self._start_thread())

    def _start_thread(self) -> bool:
        thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError):
            # No more threads (a limit on processes, memory). Logging is not worth dying for, nor is waiting.
            self._retry_at = time.monotonic() + THREAD_RETRY_S
            return False
        self._thread = thread
        return True

    def _run(self) -> None:
        """The thread: joins what is there into one write, until `close`."""
        block_signals()
        open_ = True
        while open_:
            lines = [self._queue.get()]
            size = len(lines[0] or b"")
            while size < BATCH_BYTES and not self._queue.empty():
                lines.append(self._queue.get())
                size += len(lines[-1] or b"")
            batch = [line for line in lines if line is not None]
            open_ = len(batch) == len(lines)
            works = self._deliver(batch)
            if works and self._queue.empty():
                # Nothing may follow for hours: tell now what was lost meanwhile.
                self._deliver([])

    def _deliver(self, batch: list[bytes]) -> bool:
        """Write a note about what was lost, if anything, and a batch; false if any of it is lost."""
        with self._lock:
            lost = self._lost
        notes = [self._note(lost)] if lost else []
        done = self._write_all(notes + batch)
        told = len(notes) <= done
        missing = len(batch) - max(0, done - len(notes))
        # Before the lock: no call between load and store, since one could run a finalizer that logs.
        size = sum(map(len, batch)) + len(batch) * LINE_OVERHEAD_BYTES
        with self._lock:
            if told:
                self._lost -= lost
            self._lost += missing
            self._lost_total += missing
            # Only now: what this thread holds counts against the limit until it is written.
            self._queued -= size
        return told and not missing

    def _write_all(self, lines: list[bytes]) -> int:
        """Write lines, and return how many of them were written completely."""
        # The end of a line that was torn by a failure, lest the next one is glued to it.
        start = _NEWLINE if self._torn and lines else b""
        data = memoryview(start + b"".join(lines))
        at = 0
        while at < len(data):
            try:
                at += os.write(self._fd, data[at:])
            except BlockingIOError:
                if not self._writable():
                    break
            except OSError:
                break
        if at:
            self._torn = data[at - 1] != _NEWLINE[0]
        done, end = 0, len(start)
        for line in lines:
            end += len(line)
            if end > at:
                break
            done += 1
        return done

    def _writable(self) -> bool:
        """Wait until a non-blocking descriptor takes more; false if the writer is closed before that."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        while True:
            # A closed or hung up descriptor is ready too: the next write says so.
            if poll.poll(POLL_MS):
                return True
            if self._closed:
                return False

    def _note(self, lost: int) -> bytes:
        text = f"{lost} log lines were lost: stderr was full, blocked or failing"
        return _render(self.fmt, time.time(), "warning", "bridge.logs", text, {}) + _NEWLINE


def _occupy_stderr() -> None:
    """If descriptor 2 is closed, put /dev/null there (see `LogWriter`)."""
    try:
        os.fstat(2)
    except OSError:
        try:
            null = os.open(os.devnull, os.O_RDWR)
            if null == 2:
                os.set_inheritable(2, True)
            else:
                # 0 or 1 is closed as well; `null` stays there, for the same reason.
                os.dup2(null, 2)
        except OSError:
            # No /dev/null in a bare chroot: lines are lost, as on any other stderr that fails.
            return


def printable(data: bytes | str, limit: int = 200) -> str:
    """Show what a peer sent in a log line: one line, no control characters, at most `limit` characters.

    Bytes are read as UTF-8; what is not UTF-8, and every character that is not printable (newlines, CR, ESC,
    NUL, C1 controls, line and paragraph separators, direction marks, surrogates), appears as an escape
    (`\\n`, `\\x1b`, `\\u202e`). A backslash stays as it is. What was cut ends in `...`, beyond the limit. The
    cost does not depend on the length of `data`.
    """
    cut = len(data) > limit
    if isinstance(data, bytes):
        # A character takes at most 4 bytes; the one that this may split is beyond the limit.
        cut = len(data) > 4 * limit
        text = data[: 4 * limit + 4].decode("utf-8", "backslashreplace")
    else:
        text = data[: limit + 1]
    if len(text) <= limit and not cut and text.isprintable():
        return text
    shown: list[str] = []
    room = limit
    for char in text:
        # Not `unicode_escape` for printable ones: they would all become ASCII.
        piece = char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode("ascii")
        room -= len(piece)
        if room < 0:
            cut = True
            break
        shown.append(piece)
    return "".join(shown) + ("..." if cut else "")


class RateLimit:
    """A token bucket: `burst` at once, then `rate` a second. `now` is monotonic seconds, passed in."""

    def __init__(self, rate: float, burst: float) -> None:
        self.dropped = 0
        """Refusals since the last time something was allowed; read it before `allow`."""
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at = float("-inf")

    def allow(self, now: float) -> bool:
        """Whether one more may pass at `now`; a refusal is counted in `dropped`, a permission clears it."""
        if now > self._at:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
            self._at = now
        if self._tokens < 1.0:
            self.dropped += 1
            return False
        self._tokens -= 1.0
        self.dropped = 0
        return True


class StderrRelay:
    """Passes lines of the server's stderr on to a `LogWriter`, marked `[server]` and escaped.

    The first `RELAY_LINES_PER_S` of a second pass (a bucket would let twice as many through in the first
    one); the next that does is preceded by a line that says how many were dropped. With the JSON format each
    line is an object of the logger "server".
    """

    def __init__(self, writer: LogWriter, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer = writer
        self._clock = clock
        self._since = float("-inf")
        self._passed = 0
        self._dropped = 0

    def __call__(self, line: bytes) -> None:
        """Relay one line, without its newline. Never blocks, never raises."""
        now = self._clock()
        if now - self._since >= 1.0:
            self.flush()
            self._since, self._passed = now, 0
        if self._passed >= RELAY_LINES_PER_S:
            self._dropped += 1
            return
        self._passed += 1
        if b"\x1b" in line:
            line = _ANSI.sub(b"", line)
        # A tab is layout, and harmless; a CR before the newline is how some servers end a line.
        text = line.rstrip(b"\r").expandtabs(8)
        self._put(printable(text, RELAY_CHARS))

    def flush(self) -> None:
        """Tell what was dropped and not told yet; for the end of a server, after which no line follows."""
        if self._dropped:
            self._put(f"({self._dropped} lines dropped: more than {RELAY_LINES_PER_S} a second)")
            self._dropped = 0

    def _put(self, text: str) -> None:
        if self._writer.fmt == "json":
            self._writer.write(_render("json", time.time(), "info", "server", text, {}))
        else:
            self._writer.write(b"[server] " + text.encode())


def setup_logging(*, level: str, fmt: Format) -> LogWriter:
    """Send the process's logging to stderr through a `LogWriter`, and return that, to be closed at the end.

    The logger "bridge" and those below it log from `level` up; other libraries (asyncio, aiohttp) from
    "warning" up, since their records would else be written to stderr by a handler that blocks. A second call
    replaces the first.

    Raises:
        ConfigError: `level` is none of debug, info, warning, error.
    """
    number = _LEVELS.get(level)
    if number is None:
        raise ConfigError(f"unknown log level {printable(level)!r}: use one of {', '.join(_LEVELS)}")
    writer = LogWriter(fmt=fmt)
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _WriterHandler)]:
        root.removeHandler(old)
    root.addHandler(_WriterHandler(writer))
    logging.getLogger("bridge").setLevel(number)
    return writer


_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class _WriterHandler(logging.Handler):
    """Renders records and hands them to a `LogWriter`; a record that cannot be rendered costs itself only."""

    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._render(record)
        except Exception as error:
            # Whatever an argument's __str__ did; logging must not raise in its caller.
            text = f"a log record could not be rendered ({type(error).__name__})"
            line = _render(self._writer.fmt, record.created, "error", record.name, text, {})
        self._writer.write(line)

    def _render(self, record: logging.LogRecord) -> bytes:
        fields = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info and record.exc_info[1] is not None:
            trace = "".join(traceback.format_exception(record.exc_info[1]))
            fields["exc"] = trace[-TRACEBACK_CHARS:].rstrip()
        level = record.levelname.lower()
        return _render(self._writer.fmt, record.created, level, record.name, record.getMessage(), fields)


def _render(fmt: Format, at: float, level: str, name: str, text: str, fields: Mapping[str, object]) -> bytes:
    """One line, without its newline; in text those of a traceback follow, indented."""
    text = printable(text, MESSAGE_CHARS)
    whole, part = divmod(at, 1.0)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    if fmt == "json":
        record = {"ts": f"{stamp}.{int(part * 1000):03d}Z", "level": level, "logger": name, "msg": text}
        # The four above are what every reader relies on; no extra field takes their place.
        more = {key: _plain(value) for key, value in fields.items() if key not in record}
        return msgspec.json.encode({**record, **more})
    exc = fields.get("exc")
    pairs = [f" {key}={_quoted(value)}" for key, value in fields.items() if key != "exc"]
    # Our own loggers need no name; a library's does.
    source = "" if name.partition(".")[0] == "bridge" else f"{name}: "
    lines = [f"{stamp}Z {level} {source}{text}{''.join(pairs)}"]
    if isinstance(exc, str):
        lines += ["    " + printable(line, MESSAGE_CHARS) for line in exc.split("\n")]
    return "\n".join(lines).encode()


def _plain(value: object) -> str | int | float | bool | None:
    """A field as JSON has it: scalars as they are, all else as escaped text."""
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int) and abs(value) < 2**63:
        return value
    if isinstance(value, str):
        # Newlines are escaped by the encoder and are worth keeping in a traceback; nothing else is.
        return "\n".join(printable(line, MESSAGE_CHARS) for line in value[:TRACEBACK_CHARS].split("\n"))
    return printable(value if isinstance(value, bytes) else str(value), MESSAGE_CHARS)


def _quoted(value: object) -> str:
    """A field as text: in quotes if it would not be told from its surroundings."""
    text = printable(value if isinstance(value, bytes) else str(value), MESSAGE_CHARS)
    return text if text and not set(text) & {" ", '"', "="} else '"' + text.replace('"', '\\"') + '"'
