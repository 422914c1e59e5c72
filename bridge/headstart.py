"""What a bridge does before anything that takes time is imported: it listens, and starts the server.

A server takes long to start, and so do the event loop and what else the bridge is made of: both at once take
no longer than the slower one. Clients that connect meanwhile wait in the backlog; what the server writes
waits in its pipe.

| step | if it fails |
|---|---|
| everything is opened that is listened on | exit 2 or 1; no server is started |
| the guard | a warning |
| the first server process, unless each client has its own | kept, and raised when the server is asked for |

Owns what has been made until it is taken, and undoes it at a signal or a failure in between. Imports cheap
parts of the standard library only: no asyncio, no logging, no msgspec.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

from bridge.binding import open_listeners
from bridge.errors import SpawnError
from bridge.guard import Guard
from bridge.listener import open_listener
from bridge.process import has_exited, start_guarded
from bridge.reaper import release

TYPE_CHECKING = False  # `typing` alone takes as long as a start of the guard
if TYPE_CHECKING:
    from typing import Final

    from bridge.config import Settings
    from bridge.listener import Listener
    from bridge.process import Started

TERM_GRACE_S: Final = 1.0
"""Between SIGTERM and SIGKILL, as at any other stop. One that has not come far ends at once."""

LOOK_S: Final = 0.005
"""How often it is looked whether the server has exited: there is no event loop that could tell."""

KILLED_WAIT_S: Final = 1.0
"""A killed process is gone in milliseconds, unless the kernel holds it: then it is left to the system."""


class HeadStart:
    """What is there before the event loop is.

    Attributes:
        listeners: what clients connect to.
        admin: what `--admin` is served on; none without it.
        guard: None: there is no shell to run it, which was said in a warning.
    """

    __slots__ = ("_server", "admin", "guard", "listeners")

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.admin: list[Listener] = []
        self.guard: Guard | None = None
        self._server: Started | SpawnError | None = None

    def make(self, settings: Settings) -> None:
        """Go through the steps. `close` has to follow in the end, whatever happens.

        Raises:
            ConfigError, ListenError: a listener cannot be opened; no process was started.
        """
        # All of them first: a bridge that cannot be reached must not start a server.
        open_listeners(settings, self.listeners)
        if settings.admin is not None:
            self.admin = open_listener(settings.admin, insecure=settings.insecure)
        self.guard = Guard.start()
        if settings.sharing == "isolated":
            return
        try:
            self._server = start_guarded(
                settings.command,
                env=settings.server_environment(),
                cwd=settings.cwd,
                stderr=settings.server_stderr,
                guard=self.guard,
            )
        except SpawnError as error:
            self._server = error

    def take_server(self) -> Started | None:
        """The server process, which is the caller's from now on; None if there is none (any more).

        Raises:
            SpawnError: it could not be started; once, as it is with the process.
        """
        server, self._server = self._server, None
        if isinstance(server, SpawnError):
            raise server
        return server

    def close(self) -> None:
        """Undo what nobody has taken or closed; idempotent. Takes at most some seconds, usually none.

        May be called from a signal handler: imports nothing, and takes no lock that could be held.
        """
        for listener in self.listeners + self.admin:
            listener.close()
        server, self._server = self._server, None
        if server is not None and not isinstance(server, SpawnError):
            self._end(server)
        if self.guard is not None:
            self.guard.close()

    def _end(self, server: Started) -> None:
        """End a server that nobody has spoken to: end of input and SIGTERM at once, then SIGKILL."""
        pid = server.process.pid
        server.stdin.close()  # the others later: a last word must not be the end of it (SIGPIPE)
        _signal_group(pid, signal.SIGTERM)
        deadline = time.monotonic() + TERM_GRACE_S
        while not has_exited(server.process) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        # Before it is reaped: until then the number of the group can belong to nobody else.
        _signal_group(pid, signal.SIGKILL)
        for pipe in (server.stdout, server.stderr):
            if pipe is not None:
                pipe.close()
        if self.guard is not None:
            self.guard.remove(pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(KILLED_WAIT_S)
        release(pid)


def _signal_group(pid: int, number: signal.Signals) -> None:
    if pid > 1:  # group 1 would be every process
        with contextlib.suppress(OSError):
            os.killpg(pid, number)
