"""A Unix socket's place in the file system: taken safely, given up safely.

Owns the steps that leave no moment at which something is wrong:

1. an flock on the directory itself, so that bridges which want one path come one after the other;
2. a look at what has the name: only a socket of ours that nobody listens on may be replaced;
3. bind under a private temporary name, mode 0600 from its first moment, then the wanted mode, then listen;
4. into its place in one step: whoever can see the path is served there.

On Linux every path is spelled `/proc/self/fd/N/name`, so that paths longer than the 107 bytes of a socket
address work. Where that is missing the plain path is used, and one that is too long is refused with the
limit. It knows nothing of addresses, TCP or connections: that is `bridge.listener`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time

from bridge.errors import ListenError

# A binder holds the lock for a few milliseconds. Whoever holds it for seconds is stuck or hostile, and
# waiting on would turn into a start that hangs without a word.
_LOCK_WAIT_S = 5.0
# At a stop the event loop is blocked while this runs. A socket file left behind is stale and so harmless.
_LOCK_WAIT_AT_CLOSE_S = 1.0
_LOCK_POLL_S = 0.01
# sun_path without its NUL: 108 bytes on Linux, 104 on macOS and the BSDs.
_MAX_SUN_PATH = 107 if hasattr(socket, "SO_PEERCRED") else 103
# Names drawn at random when a stranger has made the usual temporary name his own.
_TEMPORARY_NAME_TRIES = 4
# Opens the file as such (Linux): needs no permission on it, connects to nothing, and pins its inode.
_O_PATH: int | None = getattr(os, "O_PATH", None)
_SELF_FD = "/proc/self/fd"

_FILE_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFREG: "a file",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a fifo",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# What file systems without hard links answer to link().
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class _Directory:
    """The directory a socket stands in: kept open, lockable, with a short way to name what is in it.

    Kept open, so that it is still the same one at the end if it was renamed or the path leads elsewhere.

    Attributes:
        short: whether `path` gives short names however long the directory's own path is.
        shown: the path, fit for a message.
    """

    __slots__ = ("_prefix", "fd", "short", "shown")

    def __init__(self, path: str) -> None:
        """Open it. Raises ListenError."""
        self.shown = show(path or ".")
        try:
            self.fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            reason = {
                errno.ENOENT: "does not exist: create it first",
                errno.ENOTDIR: "is not a directory",
                errno.EACCES: f"cannot be read by user {os.geteuid()}, which is needed to lock it",
            }.get(error.errno or 0, f"cannot be opened: {error.strerror}")
            raise ListenError(f"directory {self.shown} {reason}") from None
        self.short = False
        self._prefix = path
        # Asked, not assumed: /proc may be missing or belong to another pid namespace.
        with contextlib.suppress(OSError):
            self.short = os.path.samestat(os.stat(f"{_SELF_FD}/{self.fd}"), os.fstat(self.fd))
        if self.short:
            self._prefix = f"{_SELF_FD}/{self.fd}"

    def close(self) -> None:
        # Closing alone would not do if a fork has just copied the descriptor: the copy would keep the lock.
        with contextlib.suppress(OSError):
            self.unlock()
        os.close(self.fd)

    def path(self, name: str) -> str:
        """How to spell a name in this directory for calls that take no descriptor, bind and connect."""
        return os.path.join(self._prefix, name)

    def lock(self, wait_s: float) -> bool:
        """Lock it against other bridges; False if that took too long. Raises OSError if it has no locks.

        The lock is on the directory, not on a file in it: there is nothing to leave behind, or to delete
        under the feet of whoever holds it. The kernel gives it up when its holder dies.
        """
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
            # Polled, for a blocking flock cannot be given a time limit without signals.
            time.sleep(_LOCK_POLL_S)

    def unlock(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def lstat(self, name: str) -> os.stat_result | None:
        """What has the name, symbolic links not followed; None if nothing has. Raises OSError."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None


class SocketFile:
    """A socket's place in the file system, and its identity: what may be removed and what may not."""

    __slots__ = ("_directory", "_identity", "_name", "_pin")

    def __init__(self, directory: _Directory, name: str, pin: int | None, identity: tuple[int, int]) -> None:
        self._directory = directory
        self._name = name
        # Held open, because a file system gives a freed inode number to the next file that is made. The
        # socket pins its inode too, but the event loop may close that before us.
        self._pin = pin
        self._identity = identity

    def is_ours(self) -> bool:
        try:
            found = self._directory.lstat(self._name)
        except OSError:
            return False
        return found is not None and (found.st_dev, found.st_ino) == self._identity

    def is_at(self, path: str) -> bool:
        """Whether this path, from the root or the working directory, leads to it: there clients look."""
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return self.is_ours()  # a directory above that we may not pass (any more), but clients may
        return (found.st_dev, found.st_ino) == self._identity

    def remove(self) -> None:
        """Unlink the name if it is still ours, and forget everything. Never raises."""
        # Under the lock, or another bridge could move its socket there between the look and the unlink. If
        # the directory is gone or no longer writable the file stays: the next start expects a stale socket.
        with contextlib.suppress(OSError):
            if self._directory.lock(_LOCK_WAIT_AT_CLOSE_S) and self.is_ours():
                os.unlink(self._name, dir_fd=self._directory.fd)
        if self._pin is not None:
            os.close(self._pin)
        self._directory.close()


def open_socket_file(
    sock: socket.socket, path: str, *, mode: int, group: int | None = None, backlog: int
) -> SocketFile:
    """Bind an unbound Unix socket to a path and let it listen there.

    Blocks for up to 5 s if another process holds the lock of the directory.

    Args:
        mode: the permission bits the file has when it appears, whatever the umask.
        group: the group it belongs to when it appears; None: as the system does it.

    Raises:
        ListenError: for whatever reason; nothing is left behind then, and what had the path is untouched.
    """
    head, name = os.path.split(path)
    directory = _Directory(head)
    shown = show(f"unix:{path}")
    try:
        _lock(directory)
        _dead_socket_at(shown, directory, name)
        file = _bind_and_place(sock, shown, directory, name, mode, group, backlog)
        directory.unlock()
    except OSError as error:
        directory.close()
        code = error.errno or 0
        reason = {
            errno.EACCES: f"directory {directory.shown} cannot be written or searched by user {os.geteuid()}",
            errno.EPERM: f"directory {directory.shown} does not allow it (sticky, or no place for sockets)",
            errno.EROFS: f"directory {directory.shown} is on a read-only file system",
            errno.ENOENT: f"directory {directory.shown} has been deleted",
            errno.ENAMETOOLONG: f"a file name of {len(os.fsencode(name))} bytes is too long",
        }.get(code, error.strerror or str(error))
        raise ListenError(f"cannot listen on {shown}: {reason}") from error
    except BaseException:
        directory.close()
        raise
    return file


def _lock(directory: _Directory) -> None:
    try:
        locked = directory.lock(_LOCK_WAIT_S)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ListenError(
            f"directory {directory.shown} cannot be locked ({reason}): choose a local one"
        ) from None
    if not locked:
        raise ListenError(
            f"directory {directory.shown} has been locked by another process for {_LOCK_WAIT_S:.0f} s: "
            "find it with lsof or fuser, or choose another directory"
        )


def _dead_socket_at(shown: str, directory: _Directory, name: str) -> bool:
    """Whether a stale socket that may be replaced has this name; False if the name is free.

    Raises:
        ListenError: the name is taken by somebody who listens, or by what is not a socket of ours.
        OSError: the look itself failed.
    """
    found = directory.lstat(name)
    if found is None:
        return False
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFSOCK:
        what = _FILE_KINDS.get(kind, "no socket")
        raise ListenError(f"{shown} is {what}, not a socket: remove it or choose another path")
    refused = _probe(directory, name)
    if refused == errno.ENOENT:
        return False
    if refused in (0, errno.EAGAIN):
        # EAGAIN: its backlog is full. Somebody who is slow, but somebody.
        raise ListenError(f"{shown} is in use, a process listens there: stop it or choose another path")
    if refused != errno.ECONNREFUSED:
        reason = os.strerror(refused)
        raise ListenError(f"{shown} is in use by another program ({reason}): choose another path")
    if os.geteuid() not in (0, found.st_uid):
        owner = found.st_uid
        raise ListenError(f"{shown} is a dead socket of user {owner}: have it removed or choose another path")
    return True


def _probe(directory: _Directory, name: str) -> int:
    """Connect to a Unix socket and close at once: 0 if somebody listens, else the errno.

    Non-blocking: a full backlog answers EAGAIN at once instead of waiting for an accept that may never come.
    A live bridge sees a client that says nothing and leaves.
    """
    pin = -1
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            if directory.short and _O_PATH is not None:
                # Through its own descriptor: the name alone may be longer than a socket address.
                pin = os.open(name, _O_PATH | os.O_NOFOLLOW, dir_fd=directory.fd)
                return probe.connect_ex(f"{_SELF_FD}/{pin}")
            return probe.connect_ex(_checked(directory.path(name)))
        except FileNotFoundError:
            return errno.ENOENT
        finally:
            if pin >= 0:
                os.close(pin)


def _bind_and_place(
    sock: socket.socket,
    shown: str,
    directory: _Directory,
    name: str,
    mode: int,
    group: int | None,
    backlog: int,
) -> SocketFile:
    """Bind under a temporary name, finish the socket there, move it to its place. The lock is held.

    Raises ListenError or OSError, and then leaves nothing behind.
    """
    if not directory.short:
        _checked(directory.path(name))  # its clients need the plain path too
    temporary = _bind_temporary(sock, directory)
    pin: int | None = None
    try:
        if _O_PATH is not None:
            pin = os.open(temporary, _O_PATH | os.O_NOFOLLOW, dir_fd=directory.fd)
            made = os.fstat(pin)
        else:
            made = os.stat(temporary, dir_fd=directory.fd, follow_symlinks=False)
        if group is not None:
            # First: with the mode already set, the group it had before would be let in for a moment.
            _give_to_group(shown, directory, temporary, pin, group)
        if pin is not None and directory.short:
            # By descriptor: nobody can put a link to another file in its way.
            os.chmod(f"{_SELF_FD}/{pin}", mode)
        else:
            os.chmod(temporary, mode, dir_fd=directory.fd)
        sock.listen(backlog)
        _move(shown, directory, temporary, name)
    except BaseException:
        if pin is not None:
            os.close(pin)
        _unlink_quietly(directory, temporary)
        raise
    return SocketFile(directory, name, pin, (made.st_dev, made.st_ino))


def _give_to_group(shown: str, directory: _Directory, temporary: str, pin: int | None, group: int) -> None:
    try:
        if pin is not None and directory.short:
            os.chown(f"{_SELF_FD}/{pin}", -1, group)  # by descriptor, as the mode
        else:
            os.chown(temporary, -1, group, dir_fd=directory.fd, follow_symlinks=False)
    except PermissionError:
        raise ListenError(
            f"cannot give {shown} to group {group}: user {os.geteuid()} is not a member; add it to the "
            "group, or choose one of its own"
        ) from None


def _bind_temporary(sock: socket.socket, directory: _Directory) -> str:
    """Bind under a name of no interest to anybody, mode 0600, and return that name.

    The name is the same each time for one user: whoever holds the lock knows that what has it was left by a
    binder that died, so at most one of them can ever lie about.
    """
    usual = f".mcpb-{os.geteuid()}"
    for name in [usual, usual, *(f".mcpb-{os.urandom(6).hex()}" for _ in range(_TEMPORARY_NAME_TRIES))]:
        try:
            _bind_private(sock, _checked(directory.path(name)))
            return name
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        found = directory.lstat(name)
        if found is not None and stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid():
            _unlink_quietly(directory, name)
    raise ListenError(f"directory {directory.shown} gives no free temporary name: clear its .mcpb-* files")


def _bind_private(sock: socket.socket, path: str) -> None:
    """Bind so that the file has mode 0600 or less from its first moment.

    Otherwise it has what the umask leaves, 0777 at worst, until a chmod: long enough for another user to
    connect, and a connection once made stays.
    """
    try:
        # Linux makes the file with the mode of the socket's descriptor less the umask.
        os.fchmod(sock.fileno(), 0o600)
    except OSError:
        # Elsewhere only the umask remains. It is the whole process's, so a file that another thread makes
        # just now gets a narrower mode; the bridge binds before it starts threads that make files.
        before = os.umask(0o177)
        try:
            sock.bind(path)
        finally:
            os.umask(before)
    else:
        sock.bind(path)


def _move(shown: str, directory: _Directory, temporary: str, name: str) -> None:
    """Give the finished socket its name in one step, over a stale socket or over nothing at all."""
    # Looked at once more, for programs that know nothing of our lock. Comparing inode numbers would not do:
    # the next file that is made may get the number of a socket that was deleted.
    if not _dead_socket_at(shown, directory, name):
        try:
            # Not rename: that would replace a file somebody has made since the look. link fails instead.
            os.link(temporary, name, src_dir_fd=directory.fd, dst_dir_fd=directory.fd, follow_symlinks=False)
        except FileExistsError:
            raise ListenError(f"{shown} was taken by another program during the start: try again") from None
        except NotImplementedError:
            pass  # Python's word for a system without linkat()
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
        else:
            _unlink_quietly(directory, temporary)
            return
    os.rename(temporary, name, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)


def _unlink_quietly(directory: _Directory, name: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=directory.fd)


def _checked(path: str) -> str:
    """The path, if it fits into a socket address. Raises ListenError."""
    size = len(os.fsencode(path))
    if size > _MAX_SUN_PATH:
        raise ListenError(
            f"socket path {show(path)} has {size} bytes; without {_SELF_FD} the limit is {_MAX_SUN_PATH}: "
            "choose a shorter one"
        )
    return path


def show(text: str) -> str:
    """For a message: as it is if that is harmless, else escaped, so that it stays one readable line."""
    return text if text.isprintable() else ascii(text)
