"""`mcp-bridge connect ADDR`: a stdio MCP server that is a bridge's socket.

Hosts start a command and talk to its stdin and stdout; this is the command for a server that already runs
behind a bridge. It copies bytes both ways and never looks at them. Two threads with blocking calls do it, one
for each direction, so that neither can hold up the other: the main thread copies from the socket to stdout
and decides how the command ends, a second one copies from stdin to the socket.

What it never does is change a flag of a descriptor it inherited. O_NONBLOCK belongs to the open file, which
the host or a shell may share: to set it here would make *their* next read fail.

A host starts this for every session, some of them twice, so only modules that load in well under a
millisecond are imported: `_socket` and `_signal` are the C halves of `socket` and `signal`, which build enums
for 3 to 5 ms.
"""

from __future__ import annotations

import _socket
import _thread
import errno
import os
import select
import stat
import sys
import time

from bridge.address import Address, parse_address
from bridge.descriptors import fill_closed_descriptors
from bridge.errors import BridgeError, ConfigError

TYPE_CHECKING = False  # `typing` itself is too slow to import here
if TYPE_CHECKING:
    import signal as _signal
    from typing import NoReturn
else:
    import _signal

_STDIN, _STDOUT, _STDERR = 0, 1, 2

# What a pipe holds; more cannot be read at once.
_READ_BYTES = 64 * 1024
# A little over the send buffer of a Unix socket (208 KiB): one call empties it.
_RECEIVE_BYTES = 256 * 1024
# One attempt to connect. A bridge accepts in microseconds; one that has not within this is not there.
_ATTEMPT_SECONDS = 10.0
# Between attempts under --wait: short at first, since the bridge is usually being started by the same script,
# then long enough to cost nothing.
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 0.25
# How long a full stderr may hold up the end of the command.
_COMPLAIN_MILLISECONDS = 1000
# sun_path has 108 bytes on Linux, 104 elsewhere, and ends with a NUL.
_MAX_SOCKET_PATH = 107 if sys.platform == "linux" else 103
# A TCP peer that vanished without a word is noticed after 15 + 3 * 5 seconds, as the bridge does on its side.
_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))

# These say "not there yet"; anything else does not get better by waiting. EAGAIN: the backlog is full.
_NOT_YET = frozenset(
    {
        errno.ENOENT,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EAGAIN,
        errno.ETIMEDOUT,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
    }
)

_HELP = """\
usage: mcp-bridge connect ADDR [--wait SECONDS]

A stdio MCP server that is the socket of a running bridge: stdin is copied to it and what it sends to stdout.
Ends with 0 when stdin has ended and the bridge has sent its last answer, with 1 if the bridge is not there
or goes away.

  ADDR             unix:/path, unix:@abstract, tcp:HOST:PORT or tcp:[::1]:PORT
  --wait SECONDS   keep trying for so long if the bridge is not there yet [0]
  -h, --help       show this
"""


def main(argv: list[str]) -> int:
    """Run `connect` with the arguments after the word `connect`.

    Returns:
        The exit code; 2 for wrong arguments, with one line on stderr. The others are those of `run`.
    """
    try:
        if "-h" in argv or "--help" in argv:
            os.write(_STDOUT, _HELP.encode())
            return 0
        address, wait = _parse_arguments(argv)
        return run(address, wait)
    except BridgeError as error:
        _complain(str(error))
        return error.exit_code


def run(address: Address, wait: float) -> int:
    """Copy stdin to the bridge at `address` and what it sends to stdout, until one of them ends.

    Must be called from the main thread, and the process should exit with what it returns: a thread may still
    be reading stdin then. SIGINT and SIGTERM end the process at once without a word.

    Args:
        address: where the bridge listens.
        wait: seconds for which to try again while nobody listens there; 0 tries once.

    Returns:
        0 after the end of stdin and the bridge's last answer; 1, with one line on stderr, if the bridge is
        not there, if it closes before stdin has ended, or if stdout cannot be written.

    Raises:
        ConfigError: `address` is of a kind that a client cannot connect to.
    """
    _refuse_unsupported(address)
    _end_on_signals()
    fill_closed_descriptors()
    where = _shown(address)
    try:
        sock = _connect(address, wait)
    except OSError as error:
        _complain(_explain(address, error))
        return 1
    upload = _Upload(sock)
    try:
        _thread.start_new_thread(upload.run, ())
    except RuntimeError:
        _complain("the system refuses another thread; raise the limit of processes (ulimit -u)")
        return 1
    reset = _download(sock)
    if reset is None:
        return 1
    if upload.failure:
        _complain(upload.failure)
        return 1
    if reset or upload.broken or not upload.ended:
        _complain(f"the bridge at {where} closed the connection; see its log, then start this command again")
        return 1
    return 0


def _download(sock: _socket.socket) -> bool | None:
    """Copy from the socket to stdout until the bridge closes.

    Returns:
        False if it closed in order, True if the connection was reset; None if stdout failed, as reported.
    """
    buffer = bytearray(_RECEIVE_BYTES)
    view = memoryview(buffer)
    while True:
        try:
            size = sock.recv_into(buffer)
        except OSError:
            # Linux hands out what has arrived before it reports a reset, so nothing is lost here.
            return True
        if size == 0:
            return False
        try:
            _write_stdout(view[:size])
        except OSError as error:
            _complain(_stdout_failed(error))
            return None


class _Upload:
    """The second thread: stdin to the socket, its end as a half-close.

    Attributes:
        ended: stdin has ended. Set before the bridge can know, so that its close always finds it set.
        broken: the bridge was gone before stdin ended.
        failure: one line if stdin could not be read, else "".
    """

    def __init__(self, sock: _socket.socket) -> None:
        self.ended = False
        self.broken = False
        self.failure = ""
        self._sock = sock

    def run(self) -> None:
        try:
            self._copy()
        except BaseException as error:
            # The thread's boundary. The main one would go on as if the host had nothing more to say.
            _end_process(f"stdin can no longer be copied: {type(error).__name__}")

    def _copy(self) -> None:
        while True:
            try:
                data = _read_stdin()
            except OSError as error:
                # A terminal that hung up, or a descriptor for writing only. What was read is still answered.
                self.failure = f"stdin cannot be read: {error.strerror}; give this command a pipe as stdin"
                data = b""
            if not data:
                break
            try:
                self._sock.sendall(data)
            except OSError:
                # The bridge closed. What it sent before still lies in the receive buffer: the main thread
                # delivers it, finds the end behind it and says so. To exit from here would lose it.
                self.broken = True
                return
        if _closed_by_peer(self._sock):
            # Gone before stdin ended; the main thread, busy with a slow stdout, may not have seen it yet.
            self.broken = True
            return
        self.ended = True
        try:
            self._sock.shutdown(_socket.SHUT_WR)
        except OSError:
            self.broken = True
            return
        # A half-close asks the bridge to finish what is in flight. If the host died, nobody reads that:
        # then close fully, so that the bridge cancels. A mask of 0 still reports that the reader has gone.
        poller = select.poll()
        poller.register(_STDOUT, 0)
        if any(events & (select.POLLERR | select.POLLHUP) for _, events in poller.poll()):
            _end_process(_stdout_failed(OSError(errno.EPIPE, "")))


def _read_stdin() -> bytes:
    while True:
        try:
            return os.read(_STDIN, _READ_BYTES)
        except BlockingIOError:
            # Whoever shares this open file made it non-blocking; that is theirs to change.
            _wait_for(_STDIN, select.POLLIN)


def _write_stdout(data: memoryview) -> None:
    while data:
        try:
            data = data[os.write(_STDOUT, data) :]
        except BlockingIOError:
            _wait_for(_STDOUT, select.POLLOUT)


def _wait_for(fd: int, events: int, milliseconds: int | None = None) -> bool:
    poller = select.poll()
    poller.register(fd, events)
    return bool(poller.poll(milliseconds))


def _closed_by_peer(sock: _socket.socket) -> bool:
    gone = select.POLLHUP | select.POLLERR
    if sys.platform == "linux":
        gone |= select.POLLRDHUP
    poller = select.poll()
    poller.register(sock.fileno(), gone)
    return any(events & gone for _, events in poller.poll(0))


def _connect(address: Address, wait: float) -> _socket.socket:
    """A blocking socket connected to `address`; the last OSError once `wait` seconds have gone."""
    started = time.monotonic()
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            return _attempt(address)
        except OSError as error:
            # A name that does not resolve may belong to a container that is still to start.
            if error.errno not in _NOT_YET and not isinstance(error, (_socket.gaierror, TimeoutError)):
                raise
            # A full backlog is a bridge that is there and busy: as good as a slow accept.
            patience = max(wait, _ATTEMPT_SECONDS) if error.errno == errno.EAGAIN else wait
            left = started + patience - time.monotonic()
            if left <= 0:
                raise
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _attempt(address: Address) -> _socket.socket:
    if address.kind == "abstract":
        return _open(_socket.AF_UNIX, b"\0" + os.fsencode(address.path))
    if address.kind == "unix":
        return _attempt_path(os.fsencode(address.path))
    # As bytes, since getaddrinfo() loads the IDNA tables for a str.
    found = _socket.getaddrinfo(address.host.encode(), address.port, 0, _socket.SOCK_STREAM)
    failure = OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))
    for family, _, _, _, sockaddr in found:
        try:
            return _open(family, sockaddr)
        except OSError as error:
            failure = error
    raise failure


def _attempt_path(path: bytes) -> _socket.socket:
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        # connect() says "refused" to any file, as if it were worth waiting.
        raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK))
    if len(path) <= _MAX_SOCKET_PATH:
        return _open(_socket.AF_UNIX, path)
    if sys.platform != "linux" or not os.path.isdir("/proc/self/fd"):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    # The kernel follows this link to the socket itself, so neither the directory nor the name has to fit.
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        return _open(_socket.AF_UNIX, b"/proc/self/fd/%d" % fd)
    finally:
        os.close(fd)


def _open(family: int, sockaddr: bytes | tuple[object, ...]) -> _socket.socket:
    sock = _socket.socket(family, _socket.SOCK_STREAM)
    try:
        sock.settimeout(_ATTEMPT_SECONDS)
        sock.connect(sockaddr)
        if family != _socket.AF_UNIX:
            if _talks_to_itself(sock):
                raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                if hasattr(_socket, name):
                    sock.setsockopt(_socket.IPPROTO_TCP, getattr(_socket, name), value)
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return sock


def _talks_to_itself(sock: _socket.socket) -> bool:
    # Who tries a local port of the ephemeral range again and again is some day given that very port as its
    # own: TCP then connects the socket to itself.
    return bool(sock.getsockname() == sock.getpeername())


def _refuse_unsupported(address: Address) -> None:
    shown = _shown(address)
    if address.kind in ("tls", "systemd"):
        reason = f"connect does not support {address.kind}: in this version"
        raise ConfigError(f"{reason}; example: mcp-bridge connect unix:/run/mcp.sock")
    if address.kind == "tcp" and address.port == 0:
        raise ConfigError(
            f"{shown} has port 0, which only a listener can use; take the port that the bridge logs"
        )
    if address.kind == "abstract" and sys.platform != "linux":
        raise ConfigError(f"{shown} is abstract, which only Linux knows; example: unix:/tmp/mcp.sock")


def _end_on_signals() -> None:
    if os.getpid() == 1:
        # The default action does not apply to PID 1 of a container.
        _signal.signal(_signal.SIGTERM, _exit_by_signal)
        _signal.signal(_signal.SIGINT, _exit_by_signal)
    elif _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        # Python's KeyboardInterrupt would come as a traceback. An ignored SIGINT, as a shell gives to
        # background jobs, stays ignored.
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def _exit_by_signal(number: int, frame: object) -> NoReturn:
    os._exit(128 + number)


def _stdout_failed(error: OSError) -> str:
    if error.errno in (errno.EPIPE, errno.EBADF, errno.ECONNRESET):
        return "stdout is closed, so nobody can receive what the bridge sends"
    return f"stdout cannot be written: {error.strerror}"


def _end_process(line: str) -> NoReturn:
    """End from the second thread, with exit code 1.

    Not `sys.exit`, which only ends the thread it is called in; the main one may be blocked in a read or a
    write that no other thread can interrupt. Nothing is left to flush: all output goes through `os.write`.
    """
    _complain(line)
    os._exit(1)


def _complain(line: str) -> None:
    """Write one line to stderr, unless it stays full for a second or is closed."""
    try:
        if _wait_for(_STDERR, select.POLLOUT, _COMPLAIN_MILLISECONDS):
            os.write(_STDERR, f"mcp-bridge connect: {line}\n".encode(errors="backslashreplace"))
    except OSError:
        pass


def _shown(address: Address) -> str:
    text = str(address)
    return text if text.isprintable() else repr(text)


def _explain(address: Address, error: OSError) -> str:
    where = _shown(address)
    start = f"start it with: mcp-bridge --listen {where} -- COMMAND (or let this wait: --wait SECONDS)"
    if isinstance(error, _socket.gaierror):
        return f"no bridge at {where}: the host name is unknown; check it, or write the IP address"
    if error.errno == errno.ENOENT:
        return f"no bridge at {where}: there is no such socket; {start}"
    if error.errno == errno.ECONNREFUSED:
        return f"no bridge at {where}: nobody listens there; {start}"
    if error.errno == errno.ENOTSOCK:
        return f"no bridge at {where}: that is not a socket; give the address that the bridge logs"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"may not connect to {where}: permission denied; run this as the user who started the bridge"
    if error.errno == errno.ENAMETOOLONG:
        return f"cannot connect to {where}: the path is over {_MAX_SOCKET_PATH} bytes; choose a shorter one"
    if error.errno == errno.EAGAIN:
        return f"the bridge at {where} does not accept connections; see its log, or restart it"
    reason = error.strerror or str(error)
    return f"no bridge at {where}: {reason}; check the address and that the bridge runs"


def _parse_arguments(argv: list[str]) -> tuple[Address, float]:
    usage = "usage: mcp-bridge connect ADDR [--wait SECONDS]"
    addresses: list[str] = []
    wait = 0.0
    arguments = iter(argv)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if argument == "--":
            addresses.extend(arguments)
        elif name == "--wait":
            wait = _seconds(value if equals else next(arguments, ""))
        elif argument.startswith("-"):
            raise ConfigError(f"unknown option {argument!r}; {usage}")
        else:
            addresses.append(argument)
    if len(addresses) != 1:
        problem = f"unexpected argument {addresses[1]!r}" if addresses else "no address"
        raise ConfigError(f"{problem}; {usage}")
    return parse_address(addresses[0]), wait


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    # NaN fails the comparison, and a wait without an end is nobody's wish.
    if not 0 <= seconds < float("inf"):
        raise ConfigError(f"--wait needs a number of seconds, not {text!r}; example: --wait 30")
    return seconds
