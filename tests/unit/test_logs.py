"""Log lines: written without waiting, escaped, bounded; with real pipes and real processes."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import logs
from bridge.errors import ConfigError
from bridge.logs import LogWriter, RateLimit, StderrRelay, printable, setup_logging

BOUND_S = 10.0


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that another thread brings about."""
    end = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        threading.Event().wait(0.005)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        try:
            os.close(fd)
        except OSError:
            continue  # the test closed it


@pytest.fixture
def set_up(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LogWriter]]:
    """`setup_logging` that writes to the pipe, without pytest's handlers (they raise), undone later."""
    root, ours = logging.getLogger(), logging.getLogger("bridge")
    level = ours.level
    monkeypatch.setattr(logs.LogWriter.__init__, "__defaults__", (pipe[1],))

    def call(level: str, fmt: logs.Format) -> LogWriter:
        root.handlers[:] = [each for each in root.handlers if isinstance(each, logs._WriterHandler)]
        return setup_logging(level=level, fmt=fmt)

    yield call
    root.handlers[:] = [each for each in root.handlers if not isinstance(each, logs._WriterHandler)]
    ours.setLevel(level)


def drain(fd: int) -> list[bytes]:
    """Everything up to the end of the pipe, as lines."""
    data = b""
    while chunk := os.read(fd, 65536):
        data += chunk
    return data.splitlines()


def closed_and_read(writer: LogWriter, pipe: tuple[int, int]) -> list[bytes]:
    """The lines of a writer, which is closed by this."""
    writer.close()
    os.close(pipe[1])
    return drain(pipe[0])


def run(code: str, **how: object) -> subprocess.CompletedProcess[bytes]:
    """Run Python code in a process of its own, which has to end in time."""
    arguments = {"stdout": subprocess.PIPE, **how}
    return subprocess.run([sys.executable, "-c", code], timeout=30, check=False, **arguments)  # type: ignore[call-overload,no-any-return]  # keyword arguments passed on


# The writer


def test_lines_are_written_in_order_with_a_newline_each(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1])
    for number in range(500):
        writer.write(b"line %d" % number)
    assert closed_and_read(writer, pipe) == [b"line %d" % number for number in range(500)]
    assert writer.lost == 0


def test_a_line_is_written_without_waiting_for_the_next_or_for_close(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1])
    writer.write(b"now")
    assert os.read(pipe[0], 100) == b"now\n"
    writer.close()


def test_a_blocked_reader_loses_lines_and_is_told_how_many(pipe: tuple[int, int]) -> None:
    """What is above the bound is lost and counted; what was queued comes whole, later."""
    writer = LogWriter(pipe[1])
    line = b"x" * 999
    for _ in range(3000):
        writer.write(line)
    lost = writer.lost
    assert 3000 - lost <= (logs.QUEUE_BYTES + 65536 + 4096) // 1000
    assert lost > 1500
    lines: list[bytes] = []
    reading = threading.Thread(target=lambda: lines.extend(drain(pipe[0])))
    reading.start()
    until(lambda: any(b"log lines were lost" in each for each in lines) or writer._lost == 0)
    writer.write(b"later")
    writer.close()
    os.close(pipe[1])
    reading.join(BOUND_S)
    assert lines.count(line) == 3000 - lost
    notes = [each for each in lines if b"log lines were lost" in each]
    # Told once or twice: a busy machine may have let the writer begin in the middle of the loop.
    told = [int(each.split(b" warning ")[1].split()[0]) for each in notes]
    assert 1 <= len(told) <= 2
    assert sum(told) == lost
    assert lines[-1] == b"later"


def test_many_short_lines_are_bounded_too(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1])
    for _ in range(200_000):
        writer.write(b"")
    assert writer.lost > 100_000
    assert writer._queued <= logs.QUEUE_BYTES
    os.close(pipe[0])  # the thread's write fails now
    writer.close()


def test_a_line_larger_than_the_queue_is_lost_alone(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1])
    writer.write(b"y" * (logs.QUEUE_BYTES + 1))
    writer.write(b"after")
    lines = closed_and_read(writer, pipe)
    assert b"after" in lines
    assert sum(b"1 log lines were lost" in each for each in lines) == 1
    assert len(lines) == 2


def test_a_full_disk_loses_lines_and_raises_nothing() -> None:
    """/dev/full fails each write with ENOSPC, as a full disk does."""
    with open("/dev/full", "wb", buffering=0) as full:
        writer = LogWriter(full.fileno())
        for _ in range(10):
            writer.write(b"lost")
        writer.close()
        assert writer.lost == 10


def test_the_count_is_told_when_a_failing_stderr_works_again(tmp_path: Path) -> None:
    """The descriptor first leads to /dev/full, then to a file, as if somebody had made room."""
    fd = os.open("/dev/full", os.O_WRONLY)
    writer = LogWriter(fd)
    writer.write(b"one")
    writer.write(b"two")
    until(lambda: writer.lost == 2)
    target = tmp_path / "log"
    with target.open("wb") as file:
        os.dup2(file.fileno(), fd)
    writer.write(b"three")
    writer.close()
    os.close(fd)
    note, last = target.read_bytes().splitlines()
    assert b" warning 2 log lines were lost" in note
    assert last == b"three"


def test_the_count_is_told_at_close_if_no_further_line_comes(tmp_path: Path) -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    writer = LogWriter(fd, fmt="json")
    writer.write(b"one")
    until(lambda: writer.lost == 1)
    target = tmp_path / "log"
    with target.open("wb") as file:
        os.dup2(file.fileno(), fd)
    writer.close()
    os.close(fd)
    record = json.loads(target.read_bytes())
    assert record["msg"].startswith("1 log lines were lost")
    assert record["level"] == "warning"


def test_a_reader_that_is_gone_loses_lines_and_raises_nothing(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    writer = LogWriter(pipe[1])
    writer.write(b"to nobody")
    writer.close()
    assert writer.lost == 1


def test_a_non_blocking_stderr_is_waited_for(pipe: tuple[int, int]) -> None:
    """Another process that shares our stderr may have made it non-blocking; the flag is left as it is."""
    os.set_blocking(pipe[1], False)
    writer = LogWriter(pipe[1])
    for _ in range(300):
        writer.write(b"z" * 999)
    lines: list[bytes] = []
    reading = threading.Thread(target=lambda: lines.extend(drain(pipe[0])))
    reading.start()
    until(lambda: writer._queued == 0)
    writer.close()
    assert not os.get_blocking(pipe[1])
    os.close(pipe[1])
    reading.join(BOUND_S)
    assert lines == [b"z" * 999] * 300


def test_close_gives_up_on_a_non_blocking_stderr_that_stays_full(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    writer = LogWriter(pipe[1])
    for _ in range(100):
        writer.write(b"z" * 999)
    began = time.monotonic()
    writer.close(timeout=BOUND_S)
    assert time.monotonic() - began < BOUND_S
    assert writer.lost > 0


def test_a_torn_line_is_ended_before_the_next(pipe: tuple[int, int], tmp_path: Path) -> None:
    """A pipe takes the beginning of a line only, then a file the next: that stands on a line of its own."""
    os.set_blocking(pipe[1], False)
    fd = os.dup(pipe[1])
    writer = LogWriter(fd)
    writer.write(b"w" * 200_000)  # a pipe takes 64 KiB
    os.read(pipe[0], 1)
    until(lambda: writer._queue.empty())
    os.close(pipe[0])
    until(lambda: writer.lost == 1)
    target = tmp_path / "log"
    with target.open("wb") as file:
        os.dup2(file.fileno(), fd)
    writer.write(b"next")
    writer.close()
    os.close(fd)
    start, note, last = target.read_bytes().split(b"\n")[:3]
    assert start == b""
    assert b"1 log lines were lost" in note
    assert last == b"next"


def test_lines_after_close_are_lost_and_close_may_be_repeated(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1])
    writer.close()
    writer.close()
    writer.write(b"late")
    assert writer.lost == 1


def test_without_a_thread_lines_are_dropped_and_the_next_try_is_later(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on processes cannot be forced on root, hence the mock."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        writer = LogWriter(pipe[1])
        writer.write(b"one")
    writer.write(b"two")  # threads may be had again, but this is too soon
    assert writer.lost == 2
    writer._retry_at = 0.0
    writer.write(b"three")
    lines = closed_and_read(writer, pipe)
    assert len(lines) == 2
    assert b"2 log lines were lost" in lines[0]
    assert lines[1] == b"three"


def test_closing_a_writer_that_never_had_a_thread_returns_at_once(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    writer = LogWriter(pipe[1])
    writer.close()


# As descriptor 2 of a real process

FLOOD = """
import logging, sys
from bridge.logs import setup_logging
writer = setup_logging(level="info", fmt="text")
for number in range(5000):
    logging.getLogger("bridge").info("x" * 1000)
writer.close()
print("done", writer.lost, flush=True)
"""


def test_a_process_whose_stderr_nobody_reads_does_its_work_and_exits(pipe: tuple[int, int]) -> None:
    """Hazard: a full stderr pipe blocks whoever writes to it, for ever."""
    ended = run(FLOOD, stderr=pipe[1])
    assert ended.returncode == 0
    word, lost = ended.stdout.split()
    assert word == b"done"
    assert int(lost) > 3000


def test_a_process_whose_log_disk_is_full_does_its_work_and_exits() -> None:
    with open("/dev/full", "wb") as full:
        ended = run(FLOOD, stderr=full)
    assert ended.returncode == 0
    assert ended.stdout == b"done 5000\n"


def test_a_process_that_starts_with_stderr_closed_never_logs_into_a_later_descriptor() -> None:
    """The next descriptor opened would be number 2: a listening socket, a client, the server's pipe."""
    code = """
import os
os.close(2)
import logging
from bridge.logs import setup_logging
writer = setup_logging(level="info", fmt="text")
reader, other = os.pipe()
assert 2 not in (reader, other)
logging.getLogger("bridge").info("to nobody")
writer.close()
os.set_blocking(reader, False)
try:
    os.read(reader, 1)
except BlockingIOError:
    print("nothing", os.get_inheritable(2), flush=True)
"""
    ended = run(code)
    assert ended.stdout == b"nothing True\n"
    assert ended.returncode == 0


def test_a_process_that_starts_with_all_descriptors_closed_still_logs_to_nobody() -> None:
    code = """
import os, sys
out = os.dup(1)
for fd in (0, 1, 2):
    os.close(fd)
from bridge.logs import LogWriter
writer = LogWriter()
writer.write(b"to nobody")
writer.close()
os.write(out, os.readlink("/proc/self/fd/2").encode())
"""
    assert run(code, stdin=subprocess.DEVNULL).stdout == b"/dev/null"


# Formats


def test_text_lines_have_time_level_message_and_fields(
    pipe: tuple[int, int], set_up: Callable[..., LogWriter]
) -> None:
    writer = set_up(level="info", fmt="text")
    logger = logging.getLogger("bridge.hub")
    logger.debug("not shown")
    logger.info("client %d came", 7, extra={"client": 7, "why": "a b", "none": ""})
    logger.warning("evil\r\n2026-01-01T00:00:00Z error forged\x1b[2J", extra={"peer": b"\xff\n"})
    try:
        raise ValueError("first\nsecond\x1b")
    except ValueError:
        logger.exception("failed")
    logging.getLogger("asyncio").info("not shown")
    logging.getLogger("asyncio").error("slow")
    lines = [line.decode() for line in closed_and_read(writer, pipe)]
    assert lines[0][10] == "T"
    assert lines[0][19:] == 'Z info client 7 came client=7 why="a b" none=""'
    assert lines[1][19:] == (r"Z warning evil\r\n2026-01-01T00:00:00Z error forged\x1b[2J peer=\xff\n")
    assert lines[2][19:] == "Z error failed"
    assert lines[3] == "    Traceback (most recent call last):"
    trace = lines[4:-1]
    assert all(line.startswith("    ") for line in trace)
    assert trace[-2:] == ["    ValueError: first", r"    second\x1b"]
    assert lines[-1][19:] == "Z error asyncio: slow"


def test_json_lines_are_one_object_each_whatever_is_logged(
    pipe: tuple[int, int], set_up: Callable[..., LogWriter]
) -> None:
    class Broken:
        def __str__(self) -> str:
            raise ZeroDivisionError

    writer = set_up(level="debug", fmt="json")
    logger = logging.getLogger("bridge.hub")
    fields = {"client": 7, "ok": True, "part": 0.5, "nan": float("nan"), "no": None, "big": 2**70}
    logger.debug("one", extra={**fields, "raw": b"\xff", "ts": "mine", "path": "a\udcff\x9b", "list": [1]})
    logger.info("two\nlines\u2028")
    logger.info("%s", Broken())
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        logger.exception("failed")
    StderrRelay(writer)(b"from the server \xff")
    lines = closed_and_read(writer, pipe)
    one, two, broken, failed, server = map(json.loads, lines)
    assert one["ts"].endswith("Z")
    assert len(one["ts"]) == len("2026-01-01T00:00:00.000Z")
    del one["ts"]
    assert one == {
        "level": "debug",
        "logger": "bridge.hub",
        "msg": "one",
        **fields,
        "nan": None,
        "big": str(2**70),
        "raw": r"\xff",
        "path": r"a\udcff\x9b",
        "list": "[1]",
    }
    assert two["msg"] == r"two\nlines\u2028"
    assert broken["msg"] == "a log record could not be rendered (ZeroDivisionError)"
    assert failed["exc"].endswith("ValueError: first\nsecond")
    assert server["logger"] == "server"
    assert server["msg"] == r"from the server \xff"


def test_setting_up_twice_writes_each_line_once(
    pipe: tuple[int, int], set_up: Callable[..., LogWriter]
) -> None:
    set_up(level="info", fmt="json").close()
    writer = set_up(level="info", fmt="text")
    logging.getLogger("bridge").info("once")
    assert len(closed_and_read(writer, pipe)) == 1


def test_an_unknown_level_is_a_usage_error() -> None:
    with pytest.raises(ConfigError, match="unknown log level 'loud': use one of debug, info"):
        setup_logging(level="loud", fmt="text")


# Escaping


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"plain", "plain"),
        ("grüße 你好".encode(), "grüße 你好"),
        (b"a\nb\rc\td\0", r"a\nb\rc\td\x00"),
        (b"\x1b[31mred", r"\x1b[31mred"),
        (b"\xff\xfe", r"\xff\xfe"),
        (b"cut \xe4\xbd", r"cut \xe4\xbd"),
        ("\x7f\x85\x9b\u2028\u202e\ud83d", r"\x7f\x85\x9b\u2028\u202e\ud83d"),
        ("back\\slash", "back\\slash"),
        ("", ""),
    ],
)
def test_what_a_peer_sent_is_escaped(data: bytes | str, shown: str) -> None:
    """Contract 1: "what a peer sent is escaped and cut"."""
    assert printable(data) == shown


def test_what_a_peer_sent_is_cut() -> None:
    assert printable("x" * 200) == "x" * 200
    assert printable("x" * 201) == "x" * 200 + "..."
    assert printable(b"x" * 10_000_000, 10) == "x" * 10 + "..."
    assert printable("é".encode() * 10, 10) == "é" * 10
    assert printable("é" * 11, 10) == "é" * 10 + "..."
    assert printable("\U0001f600".encode() * 11, 10) == "\U0001f600" * 10 + "..."
    assert printable("\n" * 3, 5) == r"\n\n..."


@given(st.one_of(st.binary(max_size=300), st.text(st.characters(), max_size=300)), st.integers(0, 80))
def test_no_input_makes_a_second_line_or_more_than_the_limit(data: bytes | str, limit: int) -> None:
    shown = printable(data, limit)
    assert shown.isprintable()
    assert len(shown) <= limit + 3
    shown.encode()
    if isinstance(data, str) and data.isprintable() and len(data) <= limit:
        assert shown == data


# Rates


def test_a_rate_limit_allows_a_burst_then_the_rate_and_counts_the_rest() -> None:
    limit = RateLimit(2.0, 3.0)
    assert [limit.allow(0.0) for _ in range(5)] == [True, True, True, False, False]
    assert limit.dropped == 2
    assert not limit.allow(0.4)
    assert limit.allow(0.5)
    assert limit.dropped == 0
    assert not limit.allow(0.1)  # a clock that goes back gives nothing
    assert [limit.allow(100.0) for _ in range(4)] == [True, True, True, False]


def test_the_relay_passes_200_lines_a_second_and_says_how_many_it_dropped(pipe: tuple[int, int]) -> None:
    """Hazard 14: "200 a second, a count of what was dropped"."""
    now = 50.0
    writer = LogWriter(pipe[1])
    relay = StderrRelay(writer, clock=lambda: now)
    for number in range(1000):
        now = 50.0 + number / 1001
        relay(b"line %d" % number)
    now = 51.0
    relay(b"after")
    relay.flush()  # nothing more to tell
    for _ in range(300):
        relay(b"again")
    relay.flush()
    lines = closed_and_read(writer, pipe)
    assert lines[:200] == [b"[server] line %d" % number for number in range(200)]
    assert lines[200:202] == [b"[server] (800 lines dropped: more than 200 a second)", b"[server] after"]
    assert lines[202:] == [b"[server] again"] * 199 + [
        b"[server] (101 lines dropped: more than 200 a second)"
    ]


def test_the_relay_escapes_what_could_confuse_a_terminal_and_drops_colours(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1])
    relay = StderrRelay(writer)
    relay(b"\x1b[1;32mready\x1b[0m\r")
    relay(b"\x1b]0;title\x07 \xff a\tb")
    relay("grüße".encode())
    relay(b"v" * 9000)
    assert closed_and_read(writer, pipe) == [
        b"[server] ready",
        rb"[server] \x1b]0;title\x07 \xff a  b",
        "[server] grüße".encode(),
        b"[server] " + b"v" * 8192 + b"...",
    ]
