"""Processes as the operating system has them: starting one on pipes, saying why not, seeing it exit."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess

from bridge.errors import SpawnError
from bridge.insist import insist
from bridge.pipes import Pipe, enlarge, open_pipe
from bridge.reaper import claim

TYPE_CHECKING = False  # the first server is started before anything slow is imported: see bridge.headstart
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal

    from bridge.guard import Guard

__all__ = ["ExitWatch", "Started", "has_exited", "start_guarded", "start_process"]

# How often to ask whether a process has exited, where there is no pidfd to tell.
EXIT_POLL_S = 0.05
# A name longer than this tells nobody more when it is shown whole.
NAME_LIMIT = 200

_REASONS = {
    errno.ENOEXEC: "the system cannot run this kind of file (a script needs a first line such as #!/bin/sh)",
    errno.E2BIG: "its arguments and environment are longer than the system allows",
    errno.EAGAIN: "the limit of processes is reached (ulimit -u)",
    errno.ENOMEM: "the system is out of memory",
    errno.EMFILE: "too many files are open (ulimit -n)",
    errno.ENFILE: "too many files are open in the whole system",
    errno.ETXTBSY: "the file is being written to",
}


class Started:
    """A process that runs, and our ends of its pipes; `stderr` is None if that is not a pipe."""

    __slots__ = ("process", "stderr", "stdin", "stdout")

    def __init__(
        self, process: subprocess.Popen[bytes], stdin: Pipe, stdout: Pipe, stderr: Pipe | None
    ) -> None:
        self.process = process
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr


def start_process(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    stderr: Literal["relay", "inherit", "null"],
    announce: Callable[[int], None] | None = None,
) -> Started:
    """Run a command in its own session and process group, with nothing open but stdin, stdout and stderr.

    Blocks until the program runs, which takes a millisecond. Whoever reaps the process has to `release` it.

    Args:
        announce: called just before the process is started, with the inode of the pipe that becomes its
            stdin, and with 0 if it could not be started.

    Raises:
        SpawnError: the command cannot be run (exit code 126) or was not found (127).
    """
    if not command:
        raise SpawnError("there is no server command to run")
    _let_children_be_waited_for()
    ours: list[Pipe] = []
    theirs: list[Pipe] = []
    try:
        stdin_end, stdin = open_pipe(theirs, ours)
        stdout, stdout_end = open_pipe(ours, theirs)
        enlarge(stdin)
        enlarge(stdout)
        stderr_pipe: Pipe | None = None
        stderr_target: int | None = subprocess.DEVNULL if stderr == "null" else None
        if stderr == "relay":
            stderr_pipe, stderr_end = open_pipe(ours, theirs)
            stderr_target = stderr_end.fileno()
        if announce is not None:
            announce(os.fstat(stdin_end.fileno()).st_ino)
        process = subprocess.Popen(
            list(command),
            stdin=stdin_end.fileno(),
            stdout=stdout_end.fileno(),
            stderr=stderr_target,
            cwd=cwd,
            env=dict(env),
            close_fds=True,
            start_new_session=True,
        )
    except BaseException as error:
        if announce is not None:
            announce(0)
        for pipe in ours:
            pipe.close()
        if isinstance(error, OSError | ValueError):
            raise _explain(error, command, env, cwd) from error
        raise
    finally:
        for pipe in theirs:
            pipe.close()
    claim(process.pid)
    return Started(process, stdin, stdout, stderr_pipe)


def start_guarded(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    stderr: Literal["relay", "inherit", "null"],
    guard: Guard | None,
) -> Started:
    """As `start_process`, with the process on the guard's list before anybody speaks to it.

    A bridge that is killed in between has at least announced it. Raises SpawnError.
    """
    announce = None if guard is None else guard.expect
    started = start_process(command, env=env, cwd=cwd, stderr=stderr, announce=announce)
    if guard is not None:
        guard.add(started.process.pid)
    return started


class ExitWatch:
    """Calls back, once and from the loop, when a process has exited. It is not reaped by that.

    Where the system has no pidfd the process is asked about regularly; macOS before Python 3.13 cannot even
    be asked without reaping it.
    """

    __slots__ = ("_callback", "_loop", "_pidfd", "_process")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, process: subprocess.Popen[bytes], callback: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._process = process
        self._callback = callback
        self._pidfd = -1
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except (AttributeError, OSError):  # not Linux, an old one, a sandbox that forbids it, no descriptors
            loop.call_later(EXIT_POLL_S, self._poll)
        else:
            loop.add_reader(self._pidfd, self._exited)

    def _poll(self) -> None:
        if has_exited(self._process):
            insist(self._loop, self._callback)
        else:
            self._loop.call_later(EXIT_POLL_S, self._poll)

    def _exited(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        insist(self._loop, self._callback)


def has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process has exited. It is not reaped by that, but on macOS."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except AttributeError:  # macOS: reaped here, a moment before its group is killed
        return process.poll() is not None
    except ChildProcessError:  # somebody else has reaped it
        return True


def _let_children_be_waited_for() -> None:
    """Undo an ignored SIGCHLD, which some parents hand down.

    The system would reap each child by itself: its exit status would be lost, and the number of its group
    free for others at once.
    """
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _explain(
    error: OSError | ValueError, command: Sequence[str], env: Mapping[str, str], cwd: str | None
) -> SpawnError:
    """What Popen raised, as one line. Arguments and environment are never quoted: they hold secrets."""
    name = _quoted(command[0])
    if not isinstance(error, OSError):
        reason = "it, its arguments or its environment hold a NUL or what else no program can be given"
        return SpawnError(f"cannot run {name}: {reason}")
    if cwd is not None and error.filename == cwd and not (os.path.isdir(cwd) and os.access(cwd, os.X_OK)):
        return SpawnError(f"cannot run {name} in the directory {_quoted(cwd)}: {error.strerror}")
    if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
        reason = _REASONS.get(error.errno or 0) or error.strerror or "it cannot be started"
        return SpawnError(f"cannot run {name}: {reason}")
    path = _find(command[0], env, cwd)
    if path is None:
        where = "" if os.sep in command[0] else " in PATH"
        return SpawnError(f"the server's command {name} was not found{where}", 127)
    if os.path.isdir(path):
        reason = "it is a directory"
    elif error.errno == errno.EACCES:
        reason = "permission denied (is it executable?)"
    else:
        reason = "the interpreter in its first line, or the loader it needs, does not exist"
    return SpawnError(f"cannot run {name}: {reason}")


def _quoted(name: str) -> str:
    return ascii(name)[:NAME_LIMIT]


def _find(name: str, env: Mapping[str, str], cwd: str | None) -> str | None:
    """The file a command name stands for, executable or not; None if there is none."""
    folders = [""] if os.sep in name else os.get_exec_path(env)
    for folder in folders:
        path = os.path.join(cwd or "", folder, name)
        if name and os.path.lexists(path):
            return path
    return None
