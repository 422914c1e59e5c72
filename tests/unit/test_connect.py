"""The `connect` command, run as a process of its own between real descriptors and real sockets.

The tests play the host, which holds the command's stdin and stdout, and the bridge, which holds the socket.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge import connect
from bridge.address import Address, parse_address

ROOT = Path(__file__).resolve().parents[2]
RUN = "import sys; from bridge.connect import main; sys.exit(main(sys.argv[1:]))"
# Writes a byte to stdout at each pause between two attempts.
RUN_AND_TELL_OF_WAITING = (
    f"import os, time; sleep = time.sleep; time.sleep = lambda s: (os.write(1, b'.'), sleep(s)); {RUN}"
)
# Everything here takes milliseconds; this only turns a hang into a failure.
LIMIT = 10.0
MIB = 1024 * 1024

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `mcp-bridge connect` with these arguments; pipes unless told otherwise. Killed after the test."""
    with contextlib.ExitStack() as stack:

        def run(*argv: str, code: str = RUN, **options: Any) -> subprocess.Popen[bytes]:
            for name in ("stdin", "stdout", "stderr"):
                options.setdefault(name, subprocess.PIPE)
            process = subprocess.Popen([sys.executable, "-c", code, *argv], bufsize=0, cwd=ROOT, **options)
            stack.callback(process.wait, LIMIT)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    stack.callback(pipe.close)
            stack.callback(process.kill)
            return process

        yield run


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s")


@pytest.fixture
def bridge(path: str) -> Iterator[socket.socket]:
    """A listening Unix socket at `path`."""
    with socket.socket(socket.AF_UNIX) as listener:
        listen(listener, path)
        yield listener


def listen(listener: socket.socket, address: Any) -> None:
    listener.settimeout(LIMIT)
    listener.bind(address)
    listener.listen()


def accept(listener: socket.socket) -> socket.socket:
    conn = listener.accept()[0]
    conn.settimeout(LIMIT)
    return conn


def receive(conn: socket.socket, size: int | None = None) -> bytes:
    """`size` bytes, or everything up to the end."""
    data = bytearray()
    while size is None or len(data) < size:
        piece = conn.recv(MIB if size is None else size - len(data))
        if not piece:
            break
        data += piece
    return bytes(data)


def read_fd(fd: int, size: int) -> bytes:
    """`size` bytes from a blocking or non-blocking descriptor, within the limit."""
    data = b""
    deadline = time.monotonic() + LIMIT
    while len(data) < size and time.monotonic() < deadline:
        if select.select([fd], [], [], 0.1)[0]:
            piece = os.read(fd, size - len(data))
            if not piece:
                break
            data += piece
    return data


def outcome(process: subprocess.Popen[bytes]) -> tuple[bytes, str, int]:
    """What is left on stdout, stderr, and the exit code, once stdin has been closed."""
    stdout, stderr = process.communicate(timeout=LIMIT)
    return stdout, (stderr or b"").decode(), process.returncode


def one_line(text: str) -> str:
    assert text.startswith("mcp-bridge connect: ")
    assert text.endswith("\n")
    line = text.removesuffix("\n")
    assert line.isprintable()
    return line


@contextlib.contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    thread.join(LIMIT)
    assert not thread.is_alive()


def pattern(size: int) -> bytes:
    """Bytes in which a lost, doubled or moved block shows."""
    return b"".join(number.to_bytes(4, "big") for number in range(size // 4))


# --- copying --------------------------------------------------------------------------------------


def test_every_byte_is_copied_both_ways_as_it_is(start: Start, bridge: socket.socket, path: str) -> None:
    """The shim does not parse: no byte value, line end or broken UTF-8 is special to it."""
    every = bytes(range(256)) + b"\r\n\xff\xfe\0{not json\n" + "\u2028".encode()
    process = start(f"unix:{path}")
    with accept(bridge) as conn:
        assert process.stdin is not None
        process.stdin.write(every)
        assert receive(conn, len(every)) == every
        conn.sendall(every[::-1])
        assert process.stdout is not None
        assert read_fd(process.stdout.fileno(), len(every)) == every[::-1]
        process.stdin.close()
        process.stdin = None
        assert receive(conn) == b""
    assert outcome(process) == (b"", "", 0)


def test_the_end_of_stdin_is_a_half_close_and_late_answers_still_arrive(
    start: Start, bridge: socket.socket, path: str
) -> None:
    """Contract, section 9: after its own EOF and the last answer, exit 0."""
    process = start(f"unix:{path}")
    with accept(bridge) as conn:
        assert process.stdin is not None
        process.stdin.write(b"ask\n")
        process.stdin.close()
        process.stdin = None
        assert receive(conn) == b"ask\n"
        for answer in (b"one\n", b"two\n", b"three"):
            conn.sendall(answer)
            assert process.stdout is not None
            assert read_fd(process.stdout.fileno(), len(answer)) == answer
            assert process.poll() is None
    assert outcome(process) == (b"", "", 0)


def test_silence_is_not_the_end_of_input(start: Start, bridge: socket.socket, path: str) -> None:
    """Reported elsewhere: an idle timeout was taken for EOF, EOF for an empty line."""
    process = start(f"unix:{path}")
    with accept(bridge) as conn:
        conn.sendall(b"ready\n")
        assert process.stdout is not None
        read_fd(process.stdout.fileno(), 6)
        used = cpu_seconds(process.pid)
        conn.settimeout(0.3)
        with pytest.raises(TimeoutError):
            conn.recv(1)
        assert process.poll() is None
        assert cpu_seconds(process.pid) - used < 0.1
        conn.settimeout(LIMIT)
        assert process.stdin is not None
        process.stdin.write(b"\n")
        assert receive(conn, 1) == b"\n"
        process.stdin.close()
        process.stdin = None
        assert receive(conn) == b""
    assert outcome(process) == (b"", "", 0)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("order", ["echo", "answers first", "questions first"])
def test_twenty_mebibytes_each_way_arrive_whole_whoever_reads_first(
    order: str, start: Start, bridge: socket.socket, path: str
) -> None:
    """Neither direction waits for the other: a bridge or host that only writes for a while blocks nobody."""
    data = pattern(20 * MIB)
    got: list[bytes] = []
    process = start(f"unix:{path}")
    with accept(bridge) as conn:

        def serve() -> None:
            if order == "echo":
                with in_thread(lambda: got.append(receive(conn))):
                    conn.sendall(data)
            elif order == "answers first":
                conn.sendall(data)
                got.append(receive(conn))
            else:
                got.append(receive(conn))
                conn.sendall(data)
            conn.close()

        with in_thread(serve):
            stdout, stderr = process.communicate(data, timeout=30)
    assert (stdout == data, stderr, process.returncode) == (True, b"", 0)
    assert got == [data]


# --- kinds of stdin and stdout --------------------------------------------------------------------


class Host:
    """The host's side of stdin: `theirs` is given to the command, `send` and `end` act on ours."""

    def __init__(self, kind: str, tmp_path: Path) -> None:
        self.kind = kind
        self.lines = b""
        self.ours = -1
        if kind == "pipe":
            self.theirs, self.ours = os.pipe()
        elif kind == "socketpair":
            one, two = socket.socketpair()
            self.theirs, self.ours = one.detach(), two.detach()
        elif kind == "tty":
            self.ours, self.theirs = pty.openpty()
            tty.setraw(self.theirs)
            # Raw but for Ctrl-D, which is how a terminal says end.
            attributes = termios.tcgetattr(self.theirs)
            attributes[3] |= termios.ICANON
            termios.tcsetattr(self.theirs, termios.TCSANOW, attributes)
        elif kind == "file":
            (tmp_path / "in").write_bytes(b"ask\n")
            self.theirs = os.open(tmp_path / "in", os.O_RDONLY)
        elif kind == "/dev/null":
            self.theirs = os.open("/dev/null", os.O_RDONLY)
        self.talks = kind in ("pipe", "socketpair", "tty")

    def send(self, data: bytes) -> None:
        os.write(self.ours, data)

    def end(self) -> None:
        if self.kind == "tty":
            os.write(self.ours, b"\x04")
        elif self.ours >= 0:
            os.close(self.ours)
            self.ours = -1

    def close(self) -> None:
        for fd in (self.ours, self.theirs):
            if fd >= 0:
                os.close(fd)


@pytest.mark.parametrize("kind", ["pipe", "socketpair", "tty", "file", "/dev/null"])
def test_stdin_may_be_anything_that_can_be_read(
    kind: str, start: Start, bridge: socket.socket, path: str, tmp_path: Path
) -> None:
    """Hosts give pipes, Node hosts give sockets, people give terminals and files."""
    with contextlib.closing(Host(kind, tmp_path)) as host:
        process = start(f"unix:{path}", stdin=host.theirs)
        with accept(bridge) as conn:
            if host.talks:
                host.send(b"ask\n")
                assert receive(conn, 4) == b"ask\n"
                host.end()
                assert receive(conn) == b""
            else:
                assert receive(conn) == (b"ask\n" if kind == "file" else b"")
            conn.sendall(b"answer\n")
        assert outcome(process) == (b"answer\n", "", 0)


@pytest.mark.parametrize("nonblocking", [False, True], ids=["blocking", "non-blocking"])
@pytest.mark.parametrize("kind", ["pipe", "socketpair", "tty"])
def test_the_flags_of_inherited_descriptors_stay_as_they_are(
    kind: str, nonblocking: bool, start: Start, bridge: socket.socket, path: str, tmp_path: Path
) -> None:
    """Reported elsewhere: O_NONBLOCK set on a shared descriptor made another reader see EOF."""
    with (
        contextlib.closing(Host(kind, tmp_path)) as host,
        contextlib.closing(Host("pipe", tmp_path)) as stdout,
        contextlib.closing(Host("pipe", tmp_path)) as stderr,
    ):
        theirs = (host.theirs, stdout.ours, stderr.ours)
        for fd in theirs:
            os.set_blocking(fd, not nonblocking)
        before = [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in theirs]
        process = start(f"unix:{path}", stdin=theirs[0], stdout=theirs[1], stderr=theirs[2])
        with accept(bridge) as conn:
            host.send(b"ask\n")
            assert receive(conn, 4) == b"ask\n"
            conn.sendall(b"answer\n")
            assert read_fd(stdout.theirs, 7) == b"answer\n"
            assert [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in theirs] == before
        assert process.wait(LIMIT) == 1
        assert [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in theirs] == before


def test_nonblocking_stdin_and_stdout_are_waited_for_without_loss(
    start: Start, bridge: socket.socket, path: str
) -> None:
    """A host may share descriptors that it made non-blocking itself."""
    data = pattern(4 * MIB)
    got: list[bytes] = []
    stdin, theirs_in = socket.socketpair()
    stdout, theirs_out = os.pipe()
    # A small pipe, so that each write is a partial one.
    fcntl.fcntl(theirs_out, fcntl.F_SETPIPE_SZ, 4096)
    with stdin, theirs_in, open(stdout, "rb", buffering=0) as reader:
        theirs_in.setblocking(False)
        os.set_blocking(theirs_out, False)
        process = start(f"unix:{path}", stdin=theirs_in, stdout=theirs_out)
        theirs_in.close()
        os.close(theirs_out)
        stdin.settimeout(LIMIT)

        def host() -> None:
            stdin.sendall(data)
            stdin.shutdown(socket.SHUT_WR)

        def serve() -> None:
            with accept(bridge) as conn:
                got.append(receive(conn))
                conn.sendall(data)

        with in_thread(serve), in_thread(host):
            assert reader.readall() == data
        assert got == [data]
        assert outcome(process)[1:] == ("", 0)


def closing(*fds: int) -> Callable[[], None]:
    def close() -> None:
        for fd in fds:
            os.close(fd)

    return close


def test_a_closed_stdin_is_an_ended_one(start: Start, bridge: socket.socket, path: str) -> None:
    """Without care the socket would become descriptor 0 and be fed with its own bytes."""
    process = start(f"unix:{path}", stdin=None, preexec_fn=closing(0))
    with accept(bridge) as conn:
        conn.sendall(b"answer\n")
        assert receive(conn) == b""
    assert outcome(process) == (b"answer\n", "", 0)


def test_a_closed_stdout_ends_it_at_the_first_answer(start: Start, bridge: socket.socket, path: str) -> None:
    process = start(f"unix:{path}", stdout=None, preexec_fn=closing(1))
    with accept(bridge) as conn:
        conn.sendall(b"answer\n")
        assert process.wait(LIMIT) == 1
        assert receive(conn) == b""
    assert process.stderr is not None
    assert "stdout is closed" in one_line(process.stderr.read().decode())


def test_with_all_three_closed_it_still_ends_by_itself(
    start: Start, bridge: socket.socket, path: str
) -> None:
    process = start(f"unix:{path}", stdin=None, stdout=None, stderr=None, preexec_fn=closing(0, 1, 2))
    with accept(bridge) as conn:
        assert receive(conn) == b""
    assert process.wait(LIMIT) == 0


def test_a_stdin_that_cannot_be_read_is_an_error_after_the_answers(
    start: Start, bridge: socket.socket, path: str, tmp_path: Path
) -> None:
    write_only = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    try:
        process = start(f"unix:{path}", stdin=write_only)
    finally:
        os.close(write_only)
    with accept(bridge) as conn:
        assert receive(conn) == b""
        conn.sendall(b"answer\n")
    stdout, stderr, code = outcome(process)
    assert (stdout, code) == (b"answer\n", 1)
    assert "stdin cannot be read" in one_line(stderr)


# --- a bridge that is not there, or goes away -----------------------------------------------------


def test_without_a_bridge_it_says_how_to_start_one_and_exits_1(start: Start, path: str) -> None:
    """Contract, section 9: the bridge never there -> one line on stderr, exit 1."""
    process = start(f"unix:{path}")
    stdout, stderr, code = outcome(process)
    assert (stdout, code) == (b"", 1)
    assert f"mcp-bridge --listen unix:{path} -- COMMAND" in one_line(stderr)
    assert "no such socket" in stderr


def test_a_socket_without_a_listener_is_a_bridge_that_is_not_there(start: Start, path: str) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(path)
    stdout, stderr, code = outcome(start(f"unix:{path}"))
    assert (stdout, code) == (b"", 1)
    assert "nobody listens" in one_line(stderr)


def test_a_tcp_port_without_a_listener_is_a_bridge_that_is_not_there(start: Start) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        stdout, stderr, code = outcome(start(f"tcp:127.0.0.1:{port}"))
    assert (stdout, code) == (b"", 1)
    assert "nobody listens" in one_line(stderr)


def test_a_file_that_is_no_socket_is_reported_without_waiting(start: Start, path: str) -> None:
    Path(path).write_bytes(b"")
    stdout, stderr, code = outcome(start(f"unix:{path}", "--wait", "60"))
    assert (stdout, code) == (b"", 1)
    assert "not a socket" in one_line(stderr)


def test_an_odd_path_is_escaped_in_the_message(start: Start, tmp_path: Path) -> None:
    _, stderr, code = outcome(start(f"unix:{tmp_path}/a\nb\x1b[1m\udcff"))
    assert code == 1
    one_line(stderr)


def test_a_bridge_that_closes_first_has_everything_delivered_and_exit_1(
    start: Start, bridge: socket.socket, path: str
) -> None:
    """Contract, section 9: the bridge gone -> one line, exit 1. stdin is open and silent meanwhile."""
    data = pattern(300 * 1024)
    process = start(f"unix:{path}")

    def send_and_close() -> None:
        conn.sendall(data)
        conn.close()

    with accept(bridge) as conn, in_thread(send_and_close):
        assert process.stdout is not None
        assert read_fd(process.stdout.fileno(), len(data)) == data
        assert process.wait(LIMIT) == 1
    assert process.stderr is not None
    assert f"the bridge at unix:{path} closed" in one_line(process.stderr.read().decode())


@pytest.mark.parametrize("family", ["unix", "tcp"])
def test_what_the_bridge_sent_before_closing_survives_a_failed_write(
    family: str, start: Start, tmp_path: Path
) -> None:
    """A failed write to the socket must not end the command before the receive buffer is empty."""
    data = pattern(128 * 1024)
    with socket.socket(socket.AF_UNIX if family == "unix" else socket.AF_INET) as listener:
        listen(listener, str(tmp_path / "s") if family == "unix" else ("127.0.0.1", 0))
        name = listener.getsockname()
        process = start(f"unix:{name}" if family == "unix" else f"tcp:127.0.0.1:{name[1]}")
        with accept(listener) as conn:
            assert process.stdin is not None
            assert process.stdout is not None
            conn.sendall(data)
            # The reading end works, so its part of the data has arrived before the bridge closes.
            assert read_fd(process.stdout.fileno(), 1) == data[:1]
        # Closed. The host does not read stdout yet, and writes until nobody takes it any more.
        os.set_blocking(process.stdin.fileno(), False)
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            for _ in range(1024):
                if process.stdin.write(b"x" * 4096) is None:
                    break
        assert read_fd(process.stdout.fileno(), len(data) - 1) == data[1:]
        assert process.wait(LIMIT) == 1
    assert process.stderr is not None
    assert "closed the connection" in one_line(process.stderr.read().decode())


def test_a_bridge_that_closed_before_stdin_ended_is_not_mistaken_for_an_orderly_end(
    start: Start, bridge: socket.socket, path: str
) -> None:
    """Also when stdin ends while the last answers still wait for a host that reads slowly."""
    data = pattern(200 * 1024)
    process = start(f"unix:{path}")
    with accept(bridge) as conn:
        conn.sendall(data)
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    stdout, stderr, code = outcome(process)
    assert (stdout == data, code) == (True, 1)
    assert "closed the connection" in one_line(stderr)


def test_the_end_of_stdin_after_the_bridge_has_gone_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, with the second thread certainly first: the main one is busy with a slow stdout."""
    monkeypatch.setattr(connect, "_read_stdin", lambda: b"")
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        upload = connect._Upload(ours)
        with in_thread(upload.run):
            pass
    assert (upload.broken, upload.ended) == (True, False)


def test_a_reset_after_the_end_of_stdin_is_an_error(start: Start, bridge: socket.socket, path: str) -> None:
    """The bridge was killed with requests unread: their answers are missing, so this is no success."""
    process = start(f"unix:{path}")
    with accept(bridge) as conn:
        assert process.stdin is not None
        process.stdin.write(b"ask\n")
        process.stdin.close()
        process.stdin = None
        poller = select.poll()
        poller.register(conn, select.POLLRDHUP)
        assert poller.poll(LIMIT * 1000)
    stdout, stderr, code = outcome(process)
    assert (stdout, code) == (b"", 1)
    assert "closed the connection" in one_line(stderr)


def test_a_restarted_bridge_ends_one_command_and_serves_the_next(start: Start, path: str) -> None:
    """Our choice: end clearly, and let the host start again. Nothing is sent twice."""
    with socket.socket(socket.AF_UNIX) as listener:
        listen(listener, path)
        first = start(f"unix:{path}")
        accept(listener).close()
        assert first.wait(LIMIT) == 1
    second = start(f"unix:{path}", "--wait", "10")
    os.unlink(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listen(listener, path)
        with accept(listener) as conn:
            conn.sendall(b"hello\n")
            assert second.stdin is not None
            second.stdin.close()
            second.stdin = None
            assert receive(conn) == b""
        assert outcome(second) == (b"hello\n", "", 0)


# --- waiting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stale", [False, True], ids=["absent", "stale"])
def test_wait_tries_again_until_the_bridge_listens(
    stale: bool, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is the test's, so that at least three attempts have certainly failed."""
    pauses: list[float] = []
    with socket.socket(socket.AF_UNIX) as listener:
        if stale:
            listener.bind(path)

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                if not stale:
                    listener.bind(path)
                listener.listen()

        monkeypatch.setattr(time, "sleep", sleep)
        sock = connect._connect(parse_address(f"unix:{path}"), 60)
        sock.close()
    assert len(pauses) == 3
    assert pauses == sorted(pauses)
    assert max(pauses) <= 0.25


def test_wait_gives_up_after_the_time_given(start: Start, path: str) -> None:
    began = time.monotonic()
    stdout, stderr, code = outcome(start(f"unix:{path}", "--wait=0.4"))
    assert time.monotonic() - began >= 0.4
    assert (stdout, code) == (b"", 1)
    assert "no such socket" in one_line(stderr)


def test_nothing_of_stdin_is_taken_before_the_bridge_is_there(
    start: Start, path: str, tmp_path: Path
) -> None:
    """What a host wrote early is not lost by a wait that fails."""
    (tmp_path / "in").write_bytes(b"ask\n")
    with open(tmp_path / "in", "rb") as stdin:
        assert outcome(start(f"unix:{path}", "--wait", "0.1", stdin=stdin))[2] == 1
        assert stdin.read() == b"ask\n"


def test_a_full_backlog_is_a_busy_bridge_that_is_waited_for(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst of clients: the bridge is there, so even without --wait this is no failure."""
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as stack:
        listener.bind(path)
        listener.listen(0)
        while True:
            filler = stack.enter_context(socket.socket(socket.AF_UNIX))
            filler.setblocking(False)
            if filler.connect_ex(path) == errno.EAGAIN:
                break
        accepted: list[socket.socket] = []

        def sleep(seconds: float) -> None:
            accepted.append(stack.enter_context(listener.accept()[0]))

        monkeypatch.setattr(time, "sleep", sleep)
        monkeypatch.setattr(connect, "_ATTEMPT_SECONDS", 0.5)
        connect._connect(parse_address(f"unix:{path}"), 0).close()
        assert accepted


# --- a host that goes away ------------------------------------------------------------------------


def test_a_host_that_closes_stdout_ends_it_although_stdin_stays_open(
    start: Start, bridge: socket.socket, path: str
) -> None:
    """EPIPE: the other thread is blocked in a read of stdin that nothing can interrupt."""
    process = start(f"unix:{path}")
    with accept(bridge) as conn:
        assert process.stdout is not None
        process.stdout.close()
        conn.sendall(b"answer\n")
        assert process.wait(LIMIT) == 1
    assert process.stderr is not None
    assert "stdout is closed" in one_line(process.stderr.read().decode())


def test_a_host_that_closes_stdout_ends_it_although_the_bridge_does_not_read(
    start: Start, bridge: socket.socket, path: str
) -> None:
    """The other thread is blocked in a write to the socket."""
    process = start(f"unix:{path}")
    with accept(bridge) as conn:
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        deadline = time.monotonic() + LIMIT
        # Full for 0.3 s: socket buffer and pipe hold all they can.
        while select.select([], [process.stdin], [], 0.3)[1] and time.monotonic() < deadline:
            process.stdin.write(b"x" * 65536)
        process.stdout.close()
        conn.sendall(b"answer\n")
        assert process.wait(LIMIT) == 1


@pytest.mark.parametrize("kind", ["pipe", "socketpair"])
def test_a_host_that_died_closes_the_connection_in_full(
    kind: str, start: Start, bridge: socket.socket, path: str
) -> None:
    """A half-close would let the bridge work for up to its --linger for answers that nobody reads."""
    if kind == "pipe":
        ours, theirs = os.pipe()
    else:
        one, two = socket.socketpair()
        ours, theirs = one.detach(), two.detach()
    process = start(f"unix:{path}", stdout=theirs)
    os.close(theirs)
    with accept(bridge) as conn:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
        assert receive(conn) == b""
        assert process.poll() is None
        os.close(ours)
        poller = select.poll()
        poller.register(conn, 0)
        assert poller.poll(LIMIT * 1000), "the bridge sees no full close"
        assert process.wait(LIMIT) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("while_", ["copying", "waiting"])
def test_a_signal_ends_it_at_once_and_without_a_word(
    number: signal.Signals, while_: str, start: Start, path: str
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        if while_ == "copying":
            listen(listener, path)
            process = start(f"unix:{path}")
            with accept(listener) as conn:
                conn.sendall(b"x")
                assert process.stdout is not None
                read_fd(process.stdout.fileno(), 1)
                process.send_signal(number)
                assert process.wait(LIMIT) == -number
        else:
            process = start(f"unix:{path}", "--wait", "60", code=RUN_AND_TELL_OF_WAITING)
            assert process.stdout is not None
            read_fd(process.stdout.fileno(), 1)
            process.send_signal(number)
            assert process.wait(LIMIT) == -number
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_an_interrupt_that_the_shell_ignores_stays_ignored(
    start: Start, bridge: socket.socket, path: str
) -> None:
    """A shell without job control starts background jobs so: Ctrl-C is for the foreground."""
    process = start(f"unix:{path}", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    with accept(bridge) as conn:
        process.send_signal(signal.SIGINT)
        conn.sendall(b"answer\n")
        assert process.stdout is not None
        assert read_fd(process.stdout.fileno(), 7) == b"answer\n"
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
        assert receive(conn) == b""
    assert outcome(process) == (b"", "", 0)


def test_a_full_stderr_does_not_keep_it_from_ending(start: Start, path: str) -> None:
    """Every wait has a bound, also that for a host that does not read the log."""
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, b"x" * 65536)
        os.set_blocking(writing, True)
        assert start(f"unix:{path}", stderr=writing).wait(LIMIT) == 1
    finally:
        os.close(reading)
        os.close(writing)


# --- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("long", ["directory", "name"])
def test_a_path_longer_than_a_socket_address_works(long: str, start: Start, tmp_path: Path) -> None:
    """sun_path has 108 bytes; real paths under a home directory or a CI workspace have more."""
    directory = tmp_path / ("d" * 120 if long == "directory" else "d")
    directory.mkdir()
    target = directory / ("s" * 200 if long == "name" else "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listen(listener, str(tmp_path / "t"))
        os.rename(tmp_path / "t", target)
        process = start(f"unix:{target}", stdin=subprocess.DEVNULL)
        with accept(listener) as conn:
            conn.sendall(b"hello")
        assert process.stdout is not None
        assert process.stdout.read() == b"hello"


def test_a_relative_path_is_relative_to_the_working_directory(
    path: str, bridge: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(os.path.dirname(path))
    connect._connect(parse_address("unix:s"), 0).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_tcp_is_connected_to_by_address_and_by_name(host: str, start: Start) -> None:
    with contextlib.ExitStack() as stack:
        family = socket.AF_INET6 if host == "::1" else socket.AF_INET
        listener = stack.enter_context(socket.socket(family))
        listen(listener, ("::1" if host == "::1" else "127.0.0.1", 0))
        name = f"[{host}]" if ":" in host else host
        process = start(f"tcp:{name}:{listener.getsockname()[1]}", stdin=subprocess.DEVNULL)
        with accept(listener) as conn:
            conn.sendall(b"hello")
            assert receive(conn) == b""
        assert outcome(process) == (b"hello", "", 0)


def test_an_abstract_socket_is_connected_to(start: Start) -> None:
    name = f"mcp-bridge-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listen(listener, f"\0{name}")
        process = start(f"unix:@{name}", stdin=subprocess.DEVNULL)
        with accept(listener) as conn:
            conn.sendall(b"hello")
            assert receive(conn) == b""
        assert outcome(process) == (b"hello", "", 0)


def test_a_tcp_socket_connected_to_itself_is_told_from_a_bridge() -> None:
    """Trying a local port again and again, one is in the end given that port and meets oneself."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())
        assert connect._talks_to_itself(sock)
    with socket.socket() as listener, socket.socket() as sock:
        listen(listener, ("127.0.0.1", 0))
        sock.connect(listener.getsockname())
        assert not connect._talks_to_itself(sock)


def test_a_connection_to_itself_counts_as_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The port that the system picks cannot be forced, so the finding is faked."""
    monkeypatch.setattr(connect, "_talks_to_itself", lambda sock: True)
    with socket.socket() as listener:
        listen(listener, ("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            connect._connect(parse_address(f"tcp:127.0.0.1:{listener.getsockname()[1]}"), 0)


# --- the command line -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ([], "no address"),
        (["unix:/x", "unix:/y"], "unexpected argument 'unix:/y'"),
        (["--", "unix:/x", "-y"], "unexpected argument '-y'"),
        (["--wat", "unix:/x"], "unknown option '--wat'"),
        (["unix:/x", "--wait"], "--wait needs a number"),
        (["unix:/x", "--wait", "soon"], "--wait needs a number"),
        (["unix:/x", "--wait=-1"], "--wait needs a number"),
        (["unix:/x", "--wait=nan"], "--wait needs a number"),
        (["unix:/x", "--wait=inf"], "--wait needs a number"),
        (["unix:"], "no path"),
        (["tcp:localhost"], "no port"),
        (["tcp:localhost:0"], "port 0"),
        (["tls:localhost:8443"], "does not support tls:"),
        (["systemd:"], "does not support systemd:"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_2(
    argv: list[str], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Contract, section 1: exit code 2 for usage."""
    assert connect.main(argv) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert reason in one_line(err)


def test_arguments_are_read_in_any_order() -> None:
    expected = (Address("unix", path="/x"), 2.5)
    for argv in (["unix:/x", "--wait", "2.5"], ["--wait=2.5", "unix:/x"], ["--wait", "2.5", "--", "unix:/x"]):
        assert connect._parse_arguments(argv) == expected


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_goes_to_stdout(option: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert connect.main([option]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("usage: mcp-bridge connect ADDR [--wait SECONDS]\n")
    assert err == ""


def test_it_loads_no_module_that_makes_a_start_slow() -> None:
    """A host starts this for each session, some twice. Measured by what is loaded, since clocks differ."""
    code = (
        "import os, sys; before = set(sys.modules); import bridge.connect;"
        "print(*sorted(m for m in set(sys.modules) - before if not m.startswith('bridge')))"
    )
    # -S: site may load modules of its own, for instance for editable installs.
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, timeout=LIMIT)
    loaded = set(done.stdout.decode().split())
    assert done.returncode == 0, done.stderr
    assert loaded <= {"__future__", "_socket", "errno", "select", "stat", "time"}
