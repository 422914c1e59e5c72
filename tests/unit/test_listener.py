"""Listening sockets, against the real kernel: contract section 9, "Sockets and trust"."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from bridge import listener as listener_module
from bridge import peers as peers_module
from bridge import socket_file
from bridge.address import Address, parse_address
from bridge.errors import ConfigError, ListenError
from bridge.listener import Listener, open_listener, peer_allowed, prepare_connection
from bridge.peers import peer_credentials

WAIT_S = 10.0
NOBODY = 65534
LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]

# A bridge reduced to its listener: opens when a line comes, says how it went, ends at end of input.
BINDER = """
import sys
from bridge.address import parse_address
from bridge.errors import ListenError
from bridge.listener import open_listener
print("ready", flush=True)
sys.stdin.readline()
try:
    listeners = open_listener(parse_address(sys.argv[1]))
except ListenError as error:
    print("lost", error, flush=True)
else:
    print("won", flush=True)
    sys.stdin.readline()
    for listener in listeners:
        listener.close()
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short path that every user may enter, other than pytest's own."""
    with tempfile.TemporaryDirectory(prefix="mcpb") as path:
        os.chmod(path, 0o755)
        yield Path(path)


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    """`os.umask`, undone at the end."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def unix(path: Path | str) -> Address:
    return parse_address(f"unix:{path}")


def open_one(address: Address, *, mode: int = 0o600, backlog: int = 100) -> Listener:
    (listener,) = open_listener(address, mode=mode, backlog=backlog)
    return listener


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def connect(path: Path | str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(WAIT_S)
    client.connect(str(path))
    return client


def assert_serves(listener: Listener, path: Path | str) -> None:
    """A client that connects at the path arrives at this listener."""
    with connect(path) as client:
        listener.sock.settimeout(WAIT_S)
        # Probes of other bridges may stand before it in the queue; they have left, and say nothing.
        while True:
            conn, _ = listener.sock.accept()
            with conn:
                client.sendall(b"x")
                conn.settimeout(WAIT_S)
                if conn.recv(1) == b"x":
                    break
        listener.sock.setblocking(False)


def stale_socket(path: Path) -> None:
    """What a process leaves that was killed: a socket file nobody listens on."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def start_as_other_user(work: Callable[[], str]) -> Callable[[], str]:
    """Run `work` in a child process as uid 65534 if we are root, else as we are.

    Returns a function that waits for its end and gives what `work` returned.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            os.write(writer, work().encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)

    def finish() -> str:
        with os.fdopen(reader) as stream:
            said = stream.read()
        _, status = os.waitpid(pid, 0)
        assert status == 0
        return said

    return finish


def as_other_user(work: Callable[[], str]) -> str:
    return start_as_other_user(work)()


def refusal(address: Address, **options: Any) -> str:
    with pytest.raises(ListenError) as caught:
        open_listener(address, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 1
    return message


# --- a free path


def test_a_unix_listener_serves_at_its_path_owner_only(place: Path) -> None:
    path = place / "s.sock"
    listener = open_one(unix(path))
    assert listener.address == unix(path)
    assert mode_of(path) == 0o600
    assert os.listdir(place) == ["s.sock"]
    assert listener.sock.getblocking() is False
    assert listener.sock.get_inheritable() is False
    assert_serves(listener, path)
    listener.close()
    assert os.listdir(place) == []


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_the_mode_is_exact_whatever_the_umask(
    place: Path, umask: Callable[[int], int], mask: int, mode: int
) -> None:
    umask(mask)
    listener = open_one(unix(place / "s"), mode=mode)
    umask(0o022)
    assert mode_of(place / "s") == mode
    listener.close()


@pytest.mark.parametrize("mask", [0o000, 0o077])
@pytest.mark.parametrize("fchmod_works", [True, False])
def test_no_name_ever_has_a_wider_mode(
    place: Path,
    umask: Callable[[int], int],
    monkeypatch: pytest.MonkeyPatch,
    mask: int,
    fchmod_works: bool,
) -> None:
    """Contract 9: mode 0600 whatever the umask. The second way is for systems without fchmod on sockets."""
    umask(mask)
    seen: list[int] = []
    real_listen, real_link = socket.socket.listen, os.link

    def look() -> None:
        seen.extend(mode_of(place / name) for name in os.listdir(place))

    class Watched(socket.socket):
        def bind(self, address: object) -> None:
            super().bind(address)  # type: ignore[arg-type]  # socket's own type is private to typeshed
            look()

        def listen(self, backlog: int = 0) -> None:
            look()
            real_listen(self, backlog)
            look()

    def link(*args: str, **options: int) -> None:
        look()
        real_link(*args, **options)  # type: ignore[arg-type]  # passed on as it came
        look()

    def no_fchmod(fd: int, mode: int) -> None:
        raise OSError(errno.EINVAL, "fchmod on a socket")

    monkeypatch.setattr(os, "link", link)
    if not fchmod_works:
        monkeypatch.setattr(os, "fchmod", no_fchmod)
    sock = Watched(socket.AF_UNIX)
    file = socket_file.open_socket_file(sock, str(place / "s"), mode=0o600, backlog=5)
    assert len(seen) >= 5
    assert all(mode & ~0o600 == 0 for mode in seen), [oct(mode) for mode in seen]
    assert umask(mask) == mask
    file.remove()
    sock.close()


def test_another_user_cannot_connect(place: Path) -> None:
    """Contract 9: owner only. Without root there is no other user, so the owner is locked out instead."""
    path = place / "s"
    listener = open_one(unix(path), mode=0o600 if os.geteuid() == 0 else 0o066)

    def attempt() -> str:
        with socket.socket(socket.AF_UNIX) as client:
            return errno.errorcode.get(client.connect_ex(str(path)), "connected")

    assert as_other_user(attempt) == "EACCES"
    os.chmod(path, 0o666)
    assert as_other_user(attempt) == "connected"  # it was the mode that kept it out
    listener.close()


def test_another_user_who_keeps_trying_never_gets_in(place: Path, umask: Callable[[int], int]) -> None:
    """The window between bind and chmod: a stranger hammers both names while sockets come and go."""
    umask(0o000)
    owner = os.geteuid()
    stop_read, stop_write = os.pipe()
    tried_read, tried_write = os.pipe()

    def hammer() -> str:
        os.close(stop_write)
        found = 0
        while not select.select([stop_read], [], [], 0)[0]:
            for name in (f".mcpb-{owner}", "s"):
                with socket.socket(socket.AF_UNIX) as client:
                    client.setblocking(False)
                    code = client.connect_ex(str(place / name))
                found += code == errno.EACCES
                # Without root the stranger is the owner, who may enter.
                if code in (0, errno.EAGAIN) and os.geteuid() != owner:
                    return f"got in at {name}"
            if found >= 20 or os.geteuid() == owner:
                os.set_blocking(tried_write, False)
                with contextlib.suppress(BlockingIOError):
                    os.write(tried_write, b"x")
        return "kept out"

    finish = start_as_other_user(hammer)
    os.close(tried_write)
    deadline = time.monotonic() + WAIT_S
    # Until the stranger has met a socket that was there often enough.
    while not select.select([tried_read], [], [], 0)[0] and time.monotonic() < deadline:
        for _ in range(20):
            open_one(unix(place / "s")).close()
    os.close(stop_write)
    assert finish() == "kept out"
    assert os.read(tried_read, 1) == b"x"
    os.close(tried_read)
    os.close(stop_read)


def test_a_relative_path_is_removed_at_close_wherever_the_process_is_then(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    listener = open_one(unix("s"))
    assert_serves(listener, place / "s")
    monkeypatch.chdir("/")
    listener.close()
    assert os.listdir(place) == []


def test_a_renamed_directory_does_not_keep_the_socket_from_being_removed(place: Path) -> None:
    (place / "a").mkdir()
    listener = open_one(unix(place / "a" / "s"))
    (place / "a").rename(place / "b")
    listener.close()
    assert os.listdir(place / "b") == []


def test_paths_longer_than_a_socket_address_work(place: Path) -> None:
    """Reported: typed error or a hashed short path as way out. Ours: /proc/self/fd/N."""
    deep = place / ("d" * 150) / ("e" * 150)
    deep.mkdir(parents=True)
    path = deep / ("n" * 200)
    dead = open_one(unix(path))
    dead.sock.close()  # as after a crash: the file stays
    listener = open_one(unix(path))
    assert "in use" in refusal(unix(path))
    pin = os.open(path, os.O_PATH)
    assert_serves(listener, f"/proc/self/fd/{pin}")
    os.close(pin)
    listener.close()
    assert os.listdir(deep) == []
    dead.close()


def test_a_file_name_too_long_for_the_file_system_is_refused(place: Path) -> None:
    assert "a file name of 300 bytes is too long" in refusal(unix(place / ("n" * 300)))


# --- a path that is taken


def test_the_stale_socket_of_a_killed_bridge_is_replaced(place: Path) -> None:
    """Reported: a socket file left by a crash blocks every later start, for days."""
    path = place / "s"
    command = [sys.executable, "-c", BINDER, f"unix:{path}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n"
        assert process.stdout.readline() == "won\n"
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT_S)
    assert path.is_socket()
    listener = open_one(unix(path))
    assert_serves(listener, path)
    assert os.listdir(place) == ["s"]
    listener.close()
    assert os.listdir(place) == []


def test_a_live_socket_is_refused_and_stays_untouched(place: Path) -> None:
    path = place / "s"
    listener = open_one(unix(path))
    before = path.lstat()
    assert "in use" in refusal(unix(path))
    assert os.path.samestat(before, path.lstat())
    assert os.listdir(place) == ["s"]
    # All the live bridge sees of it is one client that comes and goes.
    listener.sock.settimeout(WAIT_S)
    conn, _ = listener.sock.accept()
    assert conn.recv(1) == b""
    conn.close()
    assert_serves(listener, path)
    listener.close()


def test_a_live_socket_with_a_full_backlog_is_refused_at_once(place: Path) -> None:
    path = place / "s"
    listener = open_one(unix(path), backlog=0)
    clients = []
    while True:
        client = socket.socket(socket.AF_UNIX)
        clients.append(client)
        client.setblocking(False)
        if client.connect_ex(str(path)) == errno.EAGAIN:
            break
    started = time.monotonic()
    assert "in use, a process listens there" in refusal(unix(path))
    assert time.monotonic() - started < 2
    assert listener.in_place()
    for client in clients:
        client.close()
    listener.close()


def test_a_live_socket_of_another_type_is_refused(place: Path) -> None:
    path = place / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        assert "another program" in refusal(unix(path))
    assert path.is_socket()


@pytest.mark.parametrize("kind", ["directory", "file", "symbolic link", "dangling", "link to socket", "fifo"])
def test_what_is_not_a_socket_is_never_touched(place: Path, kind: str) -> None:
    """Rows 77 of the failure modes: the reason is given, nothing is deleted."""
    path, aim = place / "s", place / "aim"
    if kind == "directory":
        path.mkdir()
    elif kind == "file":
        path.write_text("precious")
    elif kind == "symbolic link":
        aim.write_text("precious")
        path.symlink_to(aim)
    elif kind == "dangling":
        path.symlink_to(aim)
    elif kind == "link to socket":
        stale_socket(aim)
        path.symlink_to(aim)
    else:
        os.mkfifo(path)
    before, listing = path.lstat(), sorted(os.listdir(place))
    said = refusal(unix(path))
    assert "not a socket" in said
    assert ("symbolic link" if kind in ("dangling", "link to socket") else kind) in said
    assert os.path.samestat(before, path.lstat())
    assert sorted(os.listdir(place)) == listing
    if kind == "file":
        assert path.read_text() == "precious"


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("hard_links", [False, True])
def test_a_file_made_during_the_start_is_not_replaced(
    place: Path, monkeypatch: pytest.MonkeyPatch, stale: bool, hard_links: bool
) -> None:
    """Somebody who takes no lock, in the moment between the look and the move."""
    path = place / "s"
    if stale:
        stale_socket(path)

    def listen(sock: socket.socket, backlog: int) -> None:
        path.unlink(missing_ok=True)
        path.write_text("precious")  # on ext4 it gets the inode number of the socket just deleted

    def link(*args: str, **options: int) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(socket.socket, "listen", listen)
    if not hard_links:
        monkeypatch.setattr(os, "link", link)
    assert "is a file, not a socket" in refusal(unix(path))
    assert path.read_text() == "precious"
    assert os.listdir(place) == ["s"]


def test_a_file_made_at_the_very_last_moment_is_not_replaced(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def link(*args: str, **options: int) -> None:
        (place / "s").write_text("precious")
        real(*args, **options)  # type: ignore[arg-type]  # passed on as it came

    monkeypatch.setattr(os, "link", link)
    assert "during the start" in refusal(unix(place / "s"))
    assert (place / "s").read_text() == "precious"
    assert os.listdir(place) == ["s"]


def test_a_dead_socket_of_another_user_is_left_to_its_owner(place: Path) -> None:
    """Our choice: only root replaces what belongs to somebody else."""
    stale_socket(place / "s")
    os.chmod(place / "s", 0o666)
    os.chmod(place, 0o777)

    def attempt() -> str:
        try:
            open_one(unix(place / "s")).close()
        except ListenError as error:
            return str(error)
        return "replaced"

    said = as_other_user(attempt)
    if os.geteuid() == 0:
        assert "dead socket of user 0" in said
        assert (place / "s").is_socket()
    else:
        assert said == "replaced"  # it was ours


# --- the directory


def test_a_missing_directory_is_named(place: Path) -> None:
    assert f"directory {place}/no/where does not exist" in refusal(unix(place / "no" / "where" / "s"))


def test_a_file_in_the_place_of_the_directory_is_named(place: Path) -> None:
    (place / "f").write_text("")
    assert "is not a directory" in refusal(unix(place / "f" / "s"))


@pytest.mark.parametrize(
    ("mode", "reason"),
    [(0o555, "cannot be written"), (0o333, "cannot be read"), (0o444, "cannot be written or searched")],
)
def test_a_directory_without_permission_is_named(place: Path, mode: int, reason: str) -> None:
    os.chmod(place, mode)

    def attempt() -> str:
        try:
            open_one(unix(place / "s")).close()
        except ListenError as error:
            return str(error)
        return "opened"

    said = as_other_user(attempt)
    os.chmod(place, 0o700)
    assert str(place) in said
    assert reason in said
    assert os.listdir(place) == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.EROFS, "read-only file system"),
        (errno.ENOENT, "has been deleted"),
        (errno.EPERM, "does not allow it"),
        (errno.ENOSPC, "No space left"),
    ],
)
def test_other_faults_of_the_file_system_are_one_clear_line(
    place: Path, monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    def bind(sock: socket.socket, path: str) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(socket.socket, "bind", bind)
    before = open_descriptors()
    assert reason in refusal(unix(place / "s"))
    assert open_descriptors() == before


def test_control_characters_in_a_path_do_not_reach_the_terminal(place: Path) -> None:
    said = refusal(Address("unix", path=f"{place}/no\x1b[31m\ndir/s"))
    assert "\\x1b" in said


def test_no_descriptor_stays_open_after_refusals_and_closes(place: Path) -> None:
    stale_socket(place / "s")
    before = open_descriptors()
    listener = open_one(unix(place / "s"))
    refusal(unix(place / "s"))
    (place / "f").write_text("")
    refusal(unix(place / "f"))
    listener.close()
    assert open_descriptors() == before


# --- the lock


def test_a_lock_that_is_never_given_up_is_refused_in_bounded_time(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_file, "_LOCK_WAIT_S", 0.1)
    holder = os.open(place, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    assert "locked by another process" in refusal(unix(place / "s"))
    os.close(holder)
    open_one(unix(place / "s")).close()


def test_a_lock_that_is_given_up_is_waited_for(place: Path) -> None:
    holder = os.open(place, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    timer = threading.Timer(0.1, os.close, [holder])
    timer.start()
    listener = open_one(unix(place / "s"))
    timer.join()
    assert listener.in_place()
    listener.close()


def test_the_lock_is_not_kept_while_serving(place: Path) -> None:
    one, two = open_one(unix(place / "1")), open_one(unix(place / "2"))
    assert_serves(one, place / "1")
    assert_serves(two, place / "2")
    one.close()
    two.close()


def test_a_file_system_without_locks_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    assert "cannot be locked" in refusal(unix(place / "s"))


def test_at_close_a_lock_held_by_another_leaves_a_stale_file_in_bounded_time(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_file, "_LOCK_WAIT_AT_CLOSE_S", 0.1)
    listener = open_one(unix(place / "s"))
    holder = os.open(place, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    listener.close()
    assert (place / "s").is_socket()
    os.close(holder)
    open_one(unix(place / "s")).close()
    assert os.listdir(place) == []


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_bridges_that_race_for_a_path_exactly_one_wins(place: Path, stale: bool) -> None:
    """Row 76: the winner is untouched by the others."""
    path = place / "s"
    command = [sys.executable, "-c", BINDER, f"unix:{path}"]
    for _ in range(3):
        if stale:
            stale_socket(path)
        with contextlib.ExitStack() as stack:
            racers = [
                stack.enter_context(
                    subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
                    )
                )
                for _ in range(6)
            ]
            said = []
            for racer in racers:
                assert racer.stdout is not None
                assert racer.stdout.readline() == "ready\n"
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write("\n")
            for racer in racers:
                assert racer.stdout is not None
                said.append(racer.stdout.readline())
            assert sorted(line.split()[0] for line in said) == ["lost"] * 5 + ["won"], said
            assert all("in use" in line for line in said if line.startswith("lost"))
            assert os.listdir(place) == ["s"]
            connect(path).close()
        assert os.listdir(place) == []


# --- names of binders that died


def test_the_temporary_name_of_a_binder_that_died_is_used_again(place: Path) -> None:
    leftover = place / f".mcpb-{os.geteuid()}"
    stale_socket(leftover)
    listener = open_one(unix(place / "s"))
    assert os.listdir(place) == ["s"]
    assert_serves(listener, place / "s")
    listener.close()


def test_a_stranger_on_the_temporary_name_is_in_nobodys_way(place: Path) -> None:
    squat = place / f".mcpb-{os.geteuid()}"
    squat.mkdir()
    listener = open_one(unix(place / "s"))
    assert sorted(os.listdir(place)) == [squat.name, "s"]
    listener.close()
    assert os.listdir(place) == [squat.name]


def test_a_directory_without_a_free_temporary_name_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bind(sock: socket.socket, path: str) -> None:
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

    monkeypatch.setattr(socket.socket, "bind", bind)
    assert "temporary name" in refusal(unix(place / "s"))


# --- systems that lack something: each fallback by switching its better way off


@pytest.mark.parametrize("lacks", ["/proc", "O_PATH", "hard links", "linkat", "all"])
def test_without_a_named_extra_everything_else_still_works(
    place: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    def link(*args: str, **options: int) -> None:
        if lacks == "linkat":
            raise NotImplementedError("link: follow_symlinks unavailable on this platform")
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if lacks in ("/proc", "all"):
        monkeypatch.setattr(socket_file, "_SELF_FD", "/nonexistent")
    if lacks in ("O_PATH", "all"):
        monkeypatch.setattr(socket_file, "_O_PATH", None)
    if lacks in ("hard links", "linkat", "all"):
        monkeypatch.setattr(os, "link", link)
    path = place / "s"
    for prepared in ("free", "stale"):
        if prepared == "stale":
            stale_socket(path)
        listener = open_one(unix(path), mode=0o640)
        assert mode_of(path) == 0o640
        assert "in use" in refusal(unix(path))
        assert_serves(listener, path)
        assert os.listdir(place) == ["s"]
        listener.close()
        assert os.listdir(place) == []


def test_without_proc_a_path_that_is_too_long_is_refused_with_the_limit(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_file, "_SELF_FD", "/nonexistent")
    path = place / ("n" * 120)
    said = refusal(unix(path))
    assert f"{len(str(path))} bytes" in said
    assert "limit is 107" in said
    assert os.listdir(place) == []
    stale_socket(place / "x")
    (place / "x").rename(path)
    assert "limit is 107" in refusal(unix(path))
    assert path.is_socket()


# --- giving it up


def test_close_is_idempotent_and_survives_a_deleted_file(place: Path) -> None:
    listener = open_one(unix(place / "s"))
    assert listener.in_place()
    (place / "s").unlink()
    assert not listener.in_place()
    listener.close()
    listener.close()
    assert listener.sock.fileno() == -1


@pytest.mark.parametrize("kind", ["file", "socket"])
def test_close_leaves_what_has_replaced_the_socket(place: Path, kind: str) -> None:
    """Row 78: own file only is unlinked."""
    path = place / "s"
    first = open_one(unix(path))
    path.unlink()
    if kind == "file":
        path.write_text("precious")
        first.close()
        assert path.read_text() == "precious"
        return
    second = open_one(unix(path))
    assert not first.in_place()
    first.close()
    assert second.in_place()
    assert_serves(second, path)
    second.close()


def test_a_reused_inode_number_is_not_taken_for_ours(place: Path) -> None:
    """File systems give a freed inode number to the next file; closing the socket must not free it for us."""
    path = place / "s"
    first = open_one(unix(path))
    mine = path.lstat().st_ino
    first.sock.close()  # asyncio's server closes it before `Listener.close` is called
    path.unlink()
    for _ in range(50):
        stale_socket(path)
        assert path.lstat().st_ino != mine
        path.unlink()
    stale_socket(path)
    first.close()
    assert path.is_socket()


def test_close_with_the_directory_deleted_is_quiet(place: Path) -> None:
    (place / "d").mkdir()
    listener = open_one(unix(place / "d" / "s"))
    (place / "d" / "s").unlink()
    (place / "d").rmdir()
    listener.close()


@pytest.mark.parametrize("new_loop", LOOPS)
def test_an_event_loop_serves_the_socket_and_close_removes_the_path(
    place: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    path = place / "s"

    async def serve() -> bytes:
        class Greeter(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                transport = cast(asyncio.WriteTransport, transport)  # uvloop's are not instances of it
                conn = transport.get_extra_info("socket")
                assert peer_credentials(conn) == (os.geteuid(), os.getegid())
                assert peer_allowed(listener, conn)
                prepare_connection(conn)
                transport.write(b"hello")
                transport.close()

        loop = asyncio.get_running_loop()
        listener = open_one(unix(path))
        # Python 3.13 would remove a path by itself, by the temporary name: not if asked so.
        options: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
        server = await loop.create_unix_server(Greeter, sock=listener.sock, **options)
        reader, writer = await asyncio.open_unix_connection(str(path))
        got = await reader.read()
        writer.close()
        server.close()
        listener.close()
        return got

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(asyncio.wait_for(serve(), WAIT_S)) == b"hello"
    assert os.listdir(place) == []


# --- abstract sockets


def abstract() -> Address:
    return parse_address(f"unix:@mcpb-test-{os.urandom(6).hex()}")


def test_an_abstract_listener_serves_and_a_second_one_is_refused() -> None:
    address = abstract()
    listener = open_one(address)
    assert listener.address == address
    assert "in use" in refusal(address)
    assert_serves(listener, f"\0{address.path}")
    assert listener.in_place()
    listener.close()
    open_one(address).close()


def test_an_abstract_peer_must_be_our_user_or_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract 9: an abstract socket has no mode."""
    address = abstract()
    listener = open_one(address)
    listener.sock.settimeout(WAIT_S)

    def visit() -> str:
        connect(f"\0{address.path}").close()
        return ""

    with connect(f"\0{address.path}"):
        conn, _ = listener.sock.accept()
        assert peer_allowed(listener, conn)
    as_other_user(visit)
    visitor, _ = listener.sock.accept()
    stranger = NOBODY if os.geteuid() == 0 else os.geteuid()
    assert (peer_credentials(visitor) or (None,))[0] == stranger
    # Without root the visitor is we ourselves, so it is the bridge that becomes somebody else.
    if os.geteuid() != 0:
        monkeypatch.setattr(os, "geteuid", lambda: stranger + 1)
        assert peer_allowed(listener, conn) is False
    assert peer_allowed(listener, visitor) is False
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    assert peer_allowed(listener, visitor) is True
    monkeypatch.setattr(peers_module, "peer_credentials", lambda conn: (0, 0))
    assert peer_allowed(listener, visitor) is True
    monkeypatch.undo()
    visitor.close()
    assert peer_allowed(listener, visitor) is False
    conn.close()
    listener.close()


def test_without_peer_credentials_there_are_no_abstract_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_PEERCRED")
    with pytest.raises(ConfigError, match="Linux only"):
        open_listener(abstract())
    a, b = socket.socketpair()
    assert peer_credentials(a) is None
    a.close()
    b.close()


# --- TCP


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture
def ipv6() -> None:
    if not has_ipv6():
        pytest.skip("no IPv6 here")


def close_all(listeners: list[Listener]) -> None:
    for listener in listeners:
        listener.close()


def tcp_connect(address: Address) -> socket.socket:
    return socket.create_connection((address.host, address.port), WAIT_S)


def test_tcp_port_0_is_replaced_by_the_port_in_use() -> None:
    listener = open_one(parse_address("tcp:127.0.0.1:0"))
    assert listener.address.host == "127.0.0.1"
    assert listener.address.port == listener.sock.getsockname()[1] != 0
    assert listener.sock.getblocking() is False
    assert listener.sock.get_inheritable() is False
    tcp_connect(listener.address).close()
    assert listener.in_place()
    assert peer_allowed(listener, listener.sock)
    assert peer_credentials(listener.sock) is None
    listener.close()
    listener.close()


def test_a_tcp_port_in_use_is_refused() -> None:
    listener = open_one(parse_address("tcp:127.0.0.1:0"))
    assert "in use" in refusal(listener.address)
    tcp_connect(listener.address).close()
    listener.close()


def test_a_tcp_port_can_be_taken_again_at_once_after_a_restart() -> None:
    listener = open_one(parse_address("tcp:127.0.0.1:0"))
    client = tcp_connect(listener.address)
    listener.sock.settimeout(WAIT_S)
    conn, _ = listener.sock.accept()
    conn.close()  # the bridge's end first: it is the one that stays in TIME_WAIT
    assert client.recv(1) == b""
    client.close()
    listener.close()
    open_one(listener.address).close()


def test_an_ipv6_listener_serves(ipv6: None) -> None:
    listener = open_one(parse_address("tcp:[::1]:0"))
    assert str(listener.address) == f"tcp:[::1]:{listener.address.port}"
    tcp_connect(listener.address).close()
    listener.close()


def test_localhost_ipv6_and_ipv4_share_one_port(ipv6: None) -> None:
    listeners = open_listener(parse_address("tcp:localhost:0"))
    assert [listener.address.host for listener in listeners] == ["127.0.0.1", "::1"]
    assert len({listener.address.port for listener in listeners}) == 1
    for listener in listeners:
        tcp_connect(listener.address).close()
    said = refusal(parse_address(f"tcp:localhost:{listeners[0].address.port}"))
    assert "in use" in said
    close_all(listeners)


def test_an_ipv6_wildcard_does_not_take_ipv4(ipv6: None) -> None:
    """Our choice: two addresses, two --listen."""
    (six,) = open_listener(parse_address("tcp:[::]:0"), insecure=True)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", six.address.port), WAIT_S)
    (four,) = open_listener(parse_address(f"tcp:0.0.0.0:{six.address.port}"), insecure=True)
    socket.create_connection(("::1", six.address.port), WAIT_S).close()
    four.close()
    six.close()


def test_localhost_on_a_machine_without_the_other_family_has_one_listener(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = listener_module._bind_tcp
    for code in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):

        def bind(
            target: tuple[socket.AddressFamily, str, int], port: int, backlog: int, code: int = code
        ) -> socket.socket:
            if target[0] == socket.AF_INET6:
                raise OSError(code, os.strerror(code))
            return real(target, port, backlog)

        monkeypatch.setattr(listener_module, "_bind_tcp", bind)
        (listener,) = open_listener(parse_address("tcp:localhost:0"))
        assert listener.address.host == "127.0.0.1"
        listener.close()


def test_a_port_that_is_taken_at_the_second_address_only_is_tried_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = listener_module._bind_tcp
    refused: list[int] = []

    def bind(target: tuple[socket.AddressFamily, str, int], port: int, backlog: int) -> socket.socket:
        if target[1] == "127.0.0.2" and len(refused) < tries:
            refused.append(port)
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        return real(target, port, backlog)

    def resolve(address: Address) -> list[tuple[socket.AddressFamily, str, int]]:
        return [(socket.AF_INET, "127.0.0.1", 0), (socket.AF_INET, "127.0.0.2", 0)]

    monkeypatch.setattr(listener_module, "_bind_tcp", bind)
    monkeypatch.setattr(listener_module, "_resolve", resolve)
    before = open_descriptors()
    tries = 3
    listeners = open_listener(parse_address("tcp:localhost:0"))
    assert len(listeners) == 2
    assert len(refused) == 3
    assert 0 not in refused
    close_all(listeners)
    tries = 1000
    assert "no port that is free" in refusal(parse_address("tcp:localhost:0"))
    assert open_descriptors() == before


@pytest.mark.parametrize(
    "text", ["tcp:0.0.0.0:0", "tcp:[::]:0", "tcp:192.0.2.1:0", "tcp:[::ffff:192.0.2.1]:0"]
)
def test_an_address_that_others_can_reach_is_refused_without_insecure(text: str) -> None:
    """Contract 9: exit 2."""
    with pytest.raises(ConfigError, match="--insecure") as caught:
        open_listener(parse_address(text))
    assert caught.value.exit_code == 2


def test_insecure_allows_every_address() -> None:
    (listener,) = open_listener(parse_address("tcp:0.0.0.0:0"), insecure=True)
    assert listener.address.host == "0.0.0.0"
    socket.create_connection(("127.0.0.1", listener.address.port), WAIT_S).close()
    listener.close()


def test_a_name_is_judged_by_what_it_resolves_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that looks harmless may lead out; a name that is loopback needs no flag."""
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::ffff:127.0.0.1", 0, 0, 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found)
    (listener,) = open_listener(parse_address("tcp:me.example.com:0"))  # the same address in two spellings
    assert listener.address.host == "127.0.0.1"
    listener.close()
    found.append((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0)))
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        open_listener(parse_address("tcp:me.example.com:0"))


def test_a_name_with_one_address_elsewhere_listens_on_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("198.51.100.7", 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: found)
    (listener,) = open_listener(parse_address("tcp:me.example.com:0"), insecure=True)
    assert listener.address.host == "127.0.0.1"
    listener.close()
    del found[1]
    found.append((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("198.51.100.8", 0)))
    assert "not an address of this machine" in refusal(parse_address("tcp:me.example.com:0"), insecure=True)


def test_an_address_of_another_machine_is_refused() -> None:
    said = refusal(parse_address("tcp:198.51.100.7:0"), insecure=True)
    assert "not an address of this machine" in said


@pytest.mark.parametrize(
    ("code", "expected"),
    [(socket.EAI_NONAME, ConfigError), (socket.EAI_AGAIN, ListenError)],
)
def test_an_unknown_host_is_a_usage_error_and_a_silent_name_server_is_not(
    monkeypatch: pytest.MonkeyPatch, code: int, expected: type[Exception]
) -> None:
    def getaddrinfo(*args: object, **options: object) -> None:
        raise socket.gaierror(code, "as the resolver says")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(expected, match=r"nowhere\.example\.com"):
        open_listener(parse_address("tcp:nowhere.example.com:0"))


def test_a_port_below_1024_without_privilege_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(sock: socket.socket, address: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(socket.socket, "bind", bind)
    assert "above 1023" in refusal(parse_address("tcp:127.0.0.1:80"))


@pytest.mark.parametrize("text", ["tls:127.0.0.1:0", "systemd:", "systemd:mcp"])
def test_kinds_of_later_versions_are_usage_errors(text: str) -> None:
    with pytest.raises(ConfigError, match="not supported by this version"):
        open_listener(parse_address(text))


@pytest.mark.parametrize("text", ["unix:s", "unix:@mcpb-none", "tcp:127.0.0.1:0"])
def test_running_out_of_descriptors_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def no_socket(*args: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socket", no_socket)
    assert "Too many open files" in refusal(parse_address(text))


@pytest.mark.parametrize("new_loop", LOOPS)
def test_accepted_tcp_connections_get_keepalive_and_no_delay(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Contract 6: keepalive 15 s + 3 x 5 s. Plain sockets and those of both event loops' transports."""
    wanted = {
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
        (socket.IPPROTO_TCP, socket.TCP_NODELAY): 1,
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 15,
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 5,
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 3,
    }

    def settings(sock: socket.socket) -> dict[tuple[int, int], int]:
        return {(level, name): sock.getsockopt(level, name) for level, name in wanted}

    async def serve() -> None:
        accepted: asyncio.Future[asyncio.Transport] = loop.create_future()
        lost = asyncio.Event()

        class Server(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                accepted.set_result(cast(asyncio.Transport, transport))  # uvloop's are not instances of it

            def connection_lost(self, exc: Exception | None) -> None:
                # The transport lets go of its socket right after this call.
                loop.call_soon(lost.set)

        server = await loop.create_server(Server, sock=listener.sock)
        client = tcp_connect(listener.address)
        transport = await accepted
        conn = transport.get_extra_info("socket")
        prepare_connection(conn)
        assert settings(conn) == wanted
        transport.abort()
        client.close()
        server.close()
        await asyncio.wait_for(lost.wait(), WAIT_S)
        prepare_connection(conn)  # gone already: no complaint

    with asyncio.Runner(loop_factory=new_loop) as runner:
        loop = runner.get_loop()
        listener = open_one(parse_address("tcp:127.0.0.1:0"))
        runner.run(asyncio.wait_for(serve(), WAIT_S))
        listener.close()
    with socket.socket() as plain:
        prepare_connection(plain)
        assert {option: bool(value) for option, value in settings(plain).items()} == dict.fromkeys(
            wanted, True
        )
