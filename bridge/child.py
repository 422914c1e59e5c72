"""The server's process: how it is started, spoken to, watched and ended.

A `Child` owns one operating-system process with its process group, its pipes and whatever watches them.
It knows nothing of messages: bytes go in, bytes come out, and its owner is told once that it is over. It
never starts another.

    spawn ──► alive ──► it exits, or loses stdin or stdout ──► stdout read ──► group ──► reaped,
                └─────► stop(): end of input, SIGTERM,    ──►  to its end      killed    child_ended
                        SIGKILL, until it exits

The pipes are real ones. uvloop's own subprocess API would hand the server sockets, which cannot be opened
again as `/dev/stdin`, and leave copies of them in the server, so that a closed stdout goes unnoticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from bridge.errors import SpawnError
from bridge.insist import insist
from bridge.outputs import PipeReader, StderrLines, drain
from bridge.process import ExitWatch, Started, start_guarded
from bridge.reaper import release
from bridge.stdin import ServerStdin

if TYPE_CHECKING:
    from bridge.guard import Guard
    from bridge.hangup import HangupWatch

__all__ = ["Child", "ChildOwner", "kill_unless_stopped", "spawn"]

logger = logging.getLogger("bridge")

# What a server wrote before it died is in its pipe and read in no time, while a grandchild may hold the pipe
# for ever.
DRAIN_S = 0.2
# A server that ends may close stdout a moment before; one that lives on without it is of no use to anybody.
EOF_PATIENCE_S = 1.0
# Between SIGTERM and SIGKILL: all stops together have to end before a container's 10 s are over.
TERM_GRACE_S = 1.0
# A killed process is gone in milliseconds, unless the kernel holds it (a dead network file system): it is
# then reported as ended, and reaped whenever it goes.
KILL_PATIENCE_S = 2.0


class ChildOwner(Protocol):
    """Who is told what happens to a child: always from the event loop, never before `spawn` has returned."""

    def child_data(self, child: Child, data: bytes) -> None:
        """Bytes the server wrote to stdout, cut anywhere."""

    def child_blocked(self, child: Child) -> None:
        """More than 1 MiB is unsent; may come from within `Child.write`."""

    def child_writable(self, child: Child) -> None:
        """No more than 256 KiB is unsent again."""

    def child_ending(self, child: Child) -> None:
        """It has exited, or closed stdin or stdout: what is written to it from now on would be lost.

        Once at most, before `child_ended`; may come from within `Child.write`.
        """

    def child_ended(self, child: Child) -> None:
        """Exactly once and last: stdout has been read to its end, the group is killed, `status` is set."""


class Child:
    """One running server process; `spawn` makes it.

    Attributes:
        pid: its process id, which is also that of its process group and session.
        status: None while it lives, then the exit status, or minus the number of the signal that killed it.
        started_at: when it was started, in seconds by the clock of the event loop.
        ending: it has exited, or closed stdin or stdout: nothing new will be answered, and `child_ended`
            follows. What is written to it now may be lost.
        unread: once it is ending: bytes that were written to it and that it had not read. 0 if the system
            does not tell.
    """

    def __init__(
        self,
        owner: ChildOwner,
        process: subprocess.Popen[bytes],
        *,
        guard: Guard | None,
        hangups: HangupWatch | None,
        relay: Callable[[bytes], None] | None,
    ) -> None:
        """Private: use `spawn`."""
        loop = asyncio.get_running_loop()
        self.pid: int = process.pid
        self.status: int | None = None
        self.started_at: float = loop.time()
        self.ending = False
        self.unread = 0
        self._loop = loop
        self._owner = owner
        self._process = process
        self._guard = guard
        self._ended: asyncio.Future[None] = loop.create_future()

        self._stdin = ServerStdin(self, hangups)
        self._stdout: asyncio.ReadTransport | None = None
        self._stderr: asyncio.ReadTransport | None = None
        self._stdout_fd = self._stderr_fd = -1
        self._lines = StderrLines(relay)

        # What is known so far; `_review` decides what follows from it.
        self._early: list[bytes] | None = []  # stdout from before the owner may be called; then None
        self._stdin_lost = False  # the server closed it
        self._stdout_over = False
        self._stderr_over = False
        self._exited = False  # it was seen to have exited; not reaped yet
        self._reaped = False
        self._over = False
        self._cause = ""  # why the bridge killed it, for `describe_status`
        self._term_at: float | None = None  # when `stop` turns to SIGTERM; None: nobody asked it to stop

        self._eof_timer: asyncio.TimerHandle | None = None
        self._drain_timer: asyncio.TimerHandle | None = None
        self._stop_timer: asyncio.TimerHandle | None = None
        self._kill_timer: asyncio.TimerHandle | None = None
        ExitWatch(loop, process, self._exit_seen)  # kept by the loop, which may outlive this child

    # --- For the owner

    def write(self, data: bytes) -> None:
        """Send bytes to the server's stdin. Never raises; ignored once stdin is gone."""
        self._stdin.write(data)

    @property
    def unsent(self) -> int:
        """Bytes that wait for room in the server's stdin."""
        return 0 if self._over else self._stdin.unsent

    def stderr_tail(self) -> str:
        """The last 16 KiB the server wrote to stderr, decoded with replacement."""
        return self._lines.tail()

    def describe_status(self) -> str:
        """How it ended, for people: "exit status 3", "killed by SIGKILL"."""
        if self.status is None:
            return "running"
        if self.status >= 0:
            return f"exit status {self.status}"
        if self.status == -signal.SIGKILL and self._cause:
            return f"killed by the bridge, since it had {self._cause}"
        try:
            return f"killed by {signal.Signals(-self.status).name}"
        except ValueError:  # real-time signals have no names
            return f"killed by signal {-self.status}"

    async def stop(self, grace: float) -> None:
        """End the server in the order of the specification: end of input, SIGTERM, SIGKILL to its group.

        What is unsent is still written while `grace` lasts, and stdout is read all the while. Returns after
        `child_ended`: at the latest `grace` and some 3 s later. May be called again, and by several at once:
        the shortest grace counts. Cancelling the call does not undo it.

        Args:
            grace: seconds between the end of input and SIGTERM; SIGKILL follows a second later.

        Spec: 2025-11-25 basic/lifecycle, "Shutdown", stdio.
        """
        self._begin_stop(grace)
        await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Send SIGKILL to the whole group, now; `child_ended` follows. Ignored after that."""
        if self._over:
            return
        self._signal(signal.SIGKILL)
        if self._kill_timer is None:
            self._kill_timer = self._loop.call_later(KILL_PATIENCE_S, insist, self._loop, self._settle)

    # --- Starting

    async def _connect(self, started: Started) -> None:
        """Attach the pipes to the loop. `_begin` has to follow, whatever happens."""
        loop = self._loop
        stdout, stderr = started.stdout, started.stderr
        pending = [pipe for pipe in (started.stdin, stdout, stderr) if pipe is not None]
        try:
            await self._stdin.connect(loop, pending.pop(0))
            self._stdout_fd = pending.pop(0).fileno()
            self._stdout, _ = await loop.connect_read_pipe(
                lambda: PipeReader(self._stdout_data, self._stdout_end), stdout
            )
            if stderr is not None:
                self._stderr_fd = pending.pop(0).fileno()
                self._stderr, _ = await loop.connect_read_pipe(
                    lambda: PipeReader(self._lines.feed, self._stderr_end), stderr
                )
            self._stdin.open()
        except BaseException:
            # The loop has closed the pipe it failed on; the later ones are still ours.
            for pipe in pending:
                pipe.close()
            self.kill()
            raise
        finally:
            self._stdout_over |= self._stdout is None
            self._stderr_over |= self._stderr is None

    def _begin(self) -> None:
        """From here on the owner is called."""
        early, self._early = self._early, None
        for data in early or ():
            self._stdout_data(data)
        if self.ending:
            self._owner.child_ending(self)
        self._review()

    def _abandon(self, connecting: asyncio.Task[None]) -> None:
        """Nobody wants this child: end it, and tell nobody."""
        self._owner = _Nobody()
        self.kill()
        connecting.add_done_callback(lambda _: insist(self._loop, self._begin))

    # --- Noticing

    def _no_more(self) -> None:
        """It is about to end: what is written to it from now on could only be lost."""
        if not self.ending:
            self.ending = True
            self.unread = self._stdin.unread
            if self._early is None:
                insist(self._loop, self._owner.child_ending, self)

    def _exit_seen(self) -> None:
        self._exited = True
        self._no_more()
        if self._over:
            self._reap()  # it was given up as one that cannot be killed
        else:
            self._review()

    def _stdout_data(self, data: bytes) -> None:
        if self._early is not None:
            self._early.append(data)
            return
        if self._over:
            return
        try:
            self._owner.child_data(self, data)
        except Exception:
            self._fail()

    def _stdout_end(self) -> None:
        self._stdout_over = True
        self._no_more()
        self._review()

    def _stderr_end(self) -> None:
        self._stderr_over = True

    # --- From stdin

    def stdin_lost(self) -> None:
        self._stdin_lost = True
        self._no_more()
        self._stdin.drop()
        self._review()

    def stdin_full(self) -> None:
        try:
            self._owner.child_blocked(self)
        except Exception:
            self._fail()

    def stdin_flows(self) -> None:
        try:
            if not self.ending:
                self._owner.child_writable(self)
        except Exception:
            self._fail()

    def _fail(self) -> None:
        """What was on its way is lost, and who waits for it would wait for ever: its end settles them all."""
        logger.exception("bug: the server is killed, since what it takes or writes could not be handled")
        self._cause = "met a bug of the bridge"
        self.kill()

    # --- Ending

    def _review(self) -> None:
        """Go on from what is known now: any order of the same events leads to the same end."""
        if self._over or self._early is not None:
            return
        stopping = self._term_at is not None
        if self._exited and self._stdout_over:
            self._settle()
        elif self._exited or (self._stdin_lost and not stopping):
            # What it wrote last is still read. One that lost its stdin gets the same time to exit by itself,
            # with a status of its own.
            self._stdin.drop()
            if self._drain_timer is None:
                self._drain_timer = self._loop.call_later(DRAIN_S, insist, self._loop, self._finish)
        elif self._stdout_over and not stopping and self._eof_timer is None:
            # While it stops it may take its time over what it does after closing stdout: `stop` bounds it.
            self._eof_timer = self._loop.call_later(EOF_PATIENCE_S, insist, self._loop, self._finish)

    def _begin_stop(self, grace: float) -> None:
        term_at = self._loop.time() + grace
        if self._over or (self._term_at is not None and self._term_at <= term_at):
            return
        self._term_at = term_at
        self._stdin.end()  # after what is buffered
        _cancel(self._eof_timer, self._stop_timer)
        if not self._exited:  # it had lost its stdin: from now on the deadlines of `stop` hold
            _cancel(self._drain_timer)
            self._drain_timer = None
        self._stop_timer = self._loop.call_at(term_at, insist, self._loop, self._terminate)

    def _terminate(self) -> None:
        self._signal(signal.SIGTERM)
        self._stdin.drop()
        self._stop_timer = self._loop.call_later(TERM_GRACE_S, insist, self._loop, self.kill)

    def _finish(self) -> None:
        """Stdout has been read for as long as it is owed."""
        if self._exited:
            self._settle()
            return
        self._cause = "closed its stdin" if self._stdin_lost else "closed its stdout"
        self.kill()  # then it exits, and `_review` goes on

    def _settle(self) -> None:
        """The last step: the process has exited, or it cannot be killed."""
        if self._over:
            return
        # While its leader is not reaped, the number of the group can belong to nobody else.
        self._signal(signal.SIGKILL)
        # What the group wrote last is in the pipes now, even if the loop was too busy to look in time.
        if self._stdout is not None and not self._stdout_over:
            drain(self._stdout, self._stdout_fd, self._stdout_data)
        if self._stderr is not None and not self._stderr_over:
            drain(self._stderr, self._stderr_fd, self._lines.feed)
        self._lines.end()
        self._over = True
        try:
            self._let_go()
        finally:  # whoever waits for it would wait for ever
            insist(self._loop, self._owner.child_ended, self)
            if not self._ended.done():
                self._ended.set_result(None)

    def _let_go(self) -> None:
        """Keep nothing of the process."""
        _cancel(self._eof_timer, self._drain_timer, self._stop_timer, self._kill_timer)
        if self._exited:
            self._reap()
        else:
            logger.error("the server process %d cannot be killed; it is given up", self.pid)
            self.status = -signal.SIGKILL
        self._stdin.drop()
        for reader in (self._stdout, self._stderr):
            if reader is not None:
                reader.close()

    def _reap(self) -> None:
        """Release the process id. Nothing may be sent to the group from then on."""
        if self._guard is not None:
            self._guard.remove(self.pid)
        self._reaped = True
        status = self._process.wait()  # at once: it has exited
        release(self.pid)
        if self.status is None:
            self.status = status

    def _signal(self, number: signal.Signals) -> None:
        if not self._reaped:
            # Nobody is left in the group; or (EPERM) only who has become another user.
            with contextlib.suppress(OSError):
                os.killpg(self.pid, number)


async def spawn(
    owner: ChildOwner,
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    guard: Guard | None,
    hangups: HangupWatch | None,
    relay: Callable[[bytes], None] | None,
    stderr: Literal["relay", "inherit", "null"],
    started: Started | None = None,
) -> Child:
    """Start a server in its own session and process group, with nothing open but stdin, stdout and stderr.

    If the call is cancelled, the process is killed before the cancellation goes on, and the owner hears
    nothing of it.

    Args:
        owner: is told what happens once this has returned.
        command: the program, looked up in the PATH of `env`, and its arguments. A relative path counts from
            `cwd`.
        env: the whole environment of the server.
        cwd: its working directory; None: the bridge's.
        guard: lists the group while the child lives; None: if the bridge is killed, nobody ends the server.
        hangups: notices a closed stdin before anything is written to it; None: left to the event loop.
        relay: gets each line of stderr without its newline, cut at 8 KiB; None: lines go nowhere.
        stderr: "relay": as said, with a tail kept; "inherit": it is the bridge's own; "null": it is dropped.
        started: the process, if it was started before and is on the guard's list.

    Raises:
        SpawnError: the command cannot be run (exit code 126) or was not found (127).
    """
    if started is None:
        started = start_guarded(command, env=env, cwd=cwd, stderr=stderr, guard=guard)
    child = Child(owner, started.process, guard=guard, hangups=hangups, relay=relay)
    # A task of its own, since nobody can tell who closes a pipe whose attaching was cancelled halfway.
    connecting = asyncio.create_task(child._connect(started))
    try:
        await asyncio.shield(connecting)
    except asyncio.CancelledError:
        child._abandon(connecting)
        await asyncio.shield(child._ended)
        raise
    except Exception as error:
        child._abandon(connecting)
        raise SpawnError(f"the pipes of the server cannot be watched: {error}") from error
    child._loop.call_soon(insist, child._loop, child._begin)  # not at once: this returns to its caller first
    return child


def kill_unless_stopped(child: Child, stopping: asyncio.Task[None]) -> None:
    """To be called when `Child.stop` is over: if that failed, its caller would wait for the end for ever."""
    if not stopping.cancelled() and stopping.exception() is not None:
        logger.error("bug: a server could not be stopped; killing it", exc_info=stopping.exception())
        insist(child._loop, child.kill)


class _Nobody:
    """The owner of an abandoned child."""

    def child_data(self, child: Child, data: bytes) -> None: ...

    def child_blocked(self, child: Child) -> None: ...

    def child_writable(self, child: Child) -> None: ...

    def child_ending(self, child: Child) -> None: ...

    def child_ended(self, child: Child) -> None: ...


def _cancel(*timers: asyncio.TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()
