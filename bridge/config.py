"""Settings of a serving bridge: every default, with its unit. Frozen once the command line is read.

Owns the values and nothing else; `cli.py` reads them, the shells and the core obey them.
"""

from __future__ import annotations

import os

from bridge.core.frozen import Frozen
from bridge.core.limits import Limits
from bridge.peers import ANYBODY

TYPE_CHECKING = False  # it is read before the server is started: see bridge.headstart
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final, Literal

    from bridge.address import Address
    from bridge.peers import PeerPolicy

MIB: Final = 1024 * 1024

OWN_VARIABLES: Final = frozenset(
    # They speak to the bridge's own process, and would mislead the server's.
    {"LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC"}
)


class Settings(Frozen):
    """What the operator asked for. Sizes in bytes, times in seconds."""

    listen: tuple[Address, ...]
    command: tuple[str, ...]
    admin: Address | None = None
    insecure: bool = False
    """TCP addresses that other machines can reach are allowed."""
    socket_mode: int = 0o600
    socket_group: int | None = None
    """The group that Unix sockets are given to; None: as the system does it."""
    peers: PeerPolicy = ANYBODY
    """Who may use Unix sockets."""
    env: tuple[tuple[str, str], ...] = ()
    """Set for the server, beside what the bridge itself was given."""
    cwd: str | None = None
    sharing: Literal["shared", "isolated", "auto"] = "shared"
    """Who has a server process of its own: no client, each, or those that `isolate_for` says."""
    isolate_for: tuple[str, ...] = ("sampling", "elicitation")
    """Capabilities of clients; with `auto`, who declares one of them has a process of its own."""
    max_children: int = 32
    """Processes of clients that have one each, spare ones included."""
    spare: int = 0
    server_stderr: Literal["relay", "inherit", "null"] = "relay"
    restart: Literal["always", "never"] = "always"
    max_restarts: int = 5
    drain: float = 5.0
    stop_grace: float = 1.0
    client_buffer: int = 16 * MIB
    max_buffered: int = 256 * MIB
    max_clients: int = 1024
    log_format: Literal["text", "json"] = "text"
    log_level: str = "info"
    limits: Limits = Limits()

    def server_environment(self, own: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The whole environment of the server."""
        return {name: value for name, value in own.items() if name not in OWN_VARIABLES} | dict(self.env)
