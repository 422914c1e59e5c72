"""The guard: what ends the server processes when the bridge itself is killed with SIGKILL.

One guard stands beside each bridge: a few lines of `sh` in a session of their own, which read from a pipe
which process groups are alive. When the bridge is gone, however it went, the kernel closes that pipe; the
guard then gives the servers a second to end by themselves at their end of input, and kills what is left of
their groups.

This module owns the guard's process and its list. It starts and stops no server.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

from bridge.reaper import claim, release
from bridge.warn import warn

TYPE_CHECKING = False  # the guard comes before anything slow is imported: see bridge.headstart
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Guard"]

# `/bin/sh` is where POSIX systems have it; the bare name finds it through PATH where they do not.
SHELLS = ("/bin/sh", "sh")

# At end of file with nothing listed the shell has only to exit. A loaded machine may take a while to let it.
CLOSE_TIMEOUT_S = 1.0

# `+ PGID` lists a group, `- PGID` takes it off the list. `? INODE` says that a process is about to be started
# whose stdin is the pipe of that number, 0 that it was not: if the bridge is killed before it can say which
# process that became, the pipe tells (Linux; it needs `readlink`). Signals are ignored because a stop that
# goes to every process (a service manager's SIGTERM to the whole cgroup) must not end the guard before the
# bridge; at end of file it ends by itself. A number on the list could in that second come to mean another
# group, but the system hands numbers out in turn. Without `sleep` there is no second of grace.
SCRIPT = """\
trap '' HUP INT QUIT TERM PIPE ALRM USR1 USR2 TSTP TTIN TTOU
alive=
starting=
while read -r op group; do
  case $op in
    '?') starting=${group#0} ;;
    +) alive="$alive $group"
       starting= ;;
    -) rest=
       for g in $alive; do [ "$g" = "$group" ] || rest="$rest $g"; done
       alive=$rest ;;
  esac
done
[ -n "$alive$starting" ] || exit 0
sleep 1
if [ -n "$starting" ]; then
  for process in /proc/[0-9]*; do
    if [ "$(readlink "$process/fd/0")" = "pipe:[$starting]" ] && [ "${process#/proc/}" -gt 1 ]; then
      alive="$alive ${process#/proc/}"
    fi
  done
fi
for g in $alive; do kill -s KILL -- "-$g"; done
"""


class Guard:
    """The guard of one bridge; `Guard.start()` makes it.

    Nothing the guard does makes a method raise. None waits for the guard, but `close` for at most two
    seconds. Not thread-safe.
    """

    __slots__ = ("_groups", "_pipe", "_process", "_shells")

    def __init__(self, process: subprocess.Popen[bytes], pipe: int, shells: Sequence[str]) -> None:
        """Private: use `Guard.start`."""
        self._process: subprocess.Popen[bytes] | None = process
        self._pipe = pipe
        self._shells = shells
        self._groups: dict[int, None] = {}

    @classmethod
    def start(cls, shells: Sequence[str] = SHELLS) -> Guard | None:
        """Start the guard's process.

        Args:
            shells: the POSIX shells to try, in this order.

        Returns:
            The guard, or None, with a warning logged, if no shell can be run.
        """
        started = _launch(shells)
        if started is None:
            warn("no sh to run: servers may outlive a bridge that is killed with SIGKILL")
            return None
        return cls(*started, shells)

    @property
    def pid(self) -> int | None:
        """The guard's process id; None when there is no guard."""
        return self._process.pid if self._process is not None else None

    def expect(self, pipe: int) -> None:
        """Say that a server is about to be started; `add` has to follow, or `expect(0)` if it was not.

        Args:
            pipe: the inode of the pipe that becomes its stdin.
        """
        self._tell(b"? %d\n" % pipe)

    def add(self, pgid: int) -> None:
        """List a process group: from now on it does not outlive the bridge by more than about a second.

        Raises:
            ValueError: `pgid` is 1 or less, a bug in the caller: killing "group 1" is killing every process.
        """
        if pgid <= 1:
            raise ValueError(f"{pgid} is no process group of a server")
        self._groups[pgid] = None
        self._tell(b"+ %d\n" % pgid)

    def remove(self, pgid: int) -> None:
        """Take a group off the list.

        To be called while its leader is not reaped yet: then the system may give the number to a stranger.
        """
        if pgid in self._groups:
            del self._groups[pgid]
            self._tell(b"- %d\n" % pgid)

    def close(self) -> None:
        """End the guard and reap it; idempotent.

        Groups that are still listed are killed here, so that the guard has nothing to wait for.
        """
        for pgid in list(self._groups):
            with contextlib.suppress(OSError):
                os.killpg(pgid, signal.SIGKILL)
            self.remove(pgid)
        process, self._process = self._process, None
        if process is None:
            return
        os.close(self._pipe)
        try:
            process.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _end(process)
        release(process.pid)

    def _tell(self, line: bytes) -> None:
        """Write a line to the guard. One that died or is stuck is replaced, once for each line."""
        if self._process is None or self._write(line):
            return
        # Killed before its pipe is closed: at end of file it would kill groups that are alive and wanted.
        _end(self._process)
        os.close(self._pipe)
        self._process = None
        started = _launch(self._shells)
        if started is not None:
            self._process, self._pipe = started
            if all(self._write(b"+ %d\n" % pgid) for pgid in self._groups):
                warn("the guard process had died and was started again")
                return
            _end(self._process)
            os.close(self._pipe)
            self._process = None
        warn("the guard process died: servers may outlive a bridge killed with SIGKILL")

    def _write(self, line: bytes) -> bool:
        """Whether the line went into the pipe. Lines below PIPE_BUF go in whole or not at all."""
        try:
            os.write(self._pipe, line)
        except OSError:  # EPIPE: it died. EAGAIN: stopped, for thousands of lines.
            return False
        return True


def _launch(shells: Sequence[str]) -> tuple[subprocess.Popen[bytes], int] | None:
    """Start the script in the first shell that runs: its process and our end of its pipe, or None."""
    # Nothing of the bridge's environment but PATH, for `sleep`, and the standard places should it be odd.
    env = {"PATH": os.pathsep.join([*os.get_exec_path(), *os.defpath.split(os.pathsep)])}
    try:
        reader, writer = (
            os.pipe()
        )  # close-on-exec: no server may hold the end that tells of the bridge's death
    except OSError:
        return None
    try:
        os.set_blocking(writer, False)
        for shell in shells:
            with contextlib.suppress(OSError):
                process = subprocess.Popen(
                    [shell, "-c", SCRIPT, "mcp-bridge-guard"],  # the last is $0, for whoever looks at `ps`
                    stdin=reader,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env=env,
                    start_new_session=True,
                )
                claim(process.pid)
                return process, writer
    finally:
        os.close(reader)
    os.close(writer)
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill and reap the guard; one that cannot be killed is left to the system."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(CLOSE_TIMEOUT_S)
    release(process.pid)
