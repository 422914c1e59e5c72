"""With what each server process is started, whoever asks for it."""

from __future__ import annotations

from bridge.child import Child, ChildOwner, spawn
from bridge.config import Settings
from bridge.hangup import HangupWatch
from bridge.headstart import HeadStart
from bridge.logs import StderrRelay
from bridge.tuning import restore_descriptor_limit


class Launcher:
    """Starts the operator's command.

    Args:
        settings: the command, its environment, directory and stderr.
        start: has the guard, and the first process for all clients if it was started already.
        relay: of the servers' stderr, if the settings say that it is relayed.
        descriptor_limit: what servers are started with; see `tuning.raise_descriptor_limit`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        start: HeadStart,
        hangups: HangupWatch,
        relay: StderrRelay,
        descriptor_limit: tuple[int, int] | None,
    ) -> None:
        self._settings = settings
        self._start = start
        self._hangups = hangups
        self._relay = relay
        self._descriptor_limit = descriptor_limit

    async def launch(self, owner: ChildOwner, *, shared: bool = False) -> Child:
        """Start one process; `owner` is told what happens to it once this has returned.

        Args:
            shared: it serves all clients: the first of these may run already.

        Raises:
            SpawnError: see `spawn`.
        """
        settings = self._settings
        started = self._start.take_server() if shared else None
        child = await spawn(
            owner,
            settings.command,
            env=settings.server_environment(),
            cwd=settings.cwd,
            guard=self._start.guard,
            hangups=self._hangups,
            relay=self._relay if settings.server_stderr == "relay" else None,
            stderr=settings.server_stderr,
            started=started,
        )
        # One that was started ahead has it already: it came before the bridge's own was raised.
        if started is None and self._descriptor_limit is not None:
            restore_descriptor_limit(child.pid, self._descriptor_limit)
        return child

    def ended(self) -> None:
        """A process has ended: what was held back of its stderr is written."""
        self._relay.flush()
