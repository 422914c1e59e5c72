"""Opens all that a bridge listens on, as its settings say; before anybody is accepted or a server started."""

from __future__ import annotations

from bridge.activation import Inherited
from bridge.errors import ConfigError
from bridge.listener import open_listener
from bridge.warn import warn

TYPE_CHECKING = False  # this comes before anything slow is imported: see bridge.headstart
if TYPE_CHECKING:
    from typing import Final

    from bridge.config import Settings
    from bridge.listener import Listener

BACKLOG: Final = 4096
"""Connections that may wait to be accepted: all clients of a bridge that was just restarted come at once."""


def open_listeners(settings: Settings, listeners: list[Listener]) -> None:
    """Open what clients connect to, and put it on a list as soon as it is open: the caller closes it.

    Raises:
        ConfigError, ListenError: one cannot be opened; those on the list are open.
    """
    inherited: Inherited | None = None
    for address in settings.listen:
        if address.kind == "systemd":
            if inherited is None:
                inherited = Inherited.from_environment()
            listeners += inherited.take(address, peers=settings.peers, insecure=settings.insecure)
        else:
            listeners += open_listener(
                address,
                mode=settings.socket_mode,
                group=settings.socket_group,
                peers=settings.peers,
                insecure=settings.insecure,
                backlog=BACKLOG,
            )
    if inherited is not None and (names := inherited.close_rest()):
        warn("sockets handed down that no --listen takes were closed: %s", ", ".join(names))
    if settings.peers.restricted:
        _check_peers(listeners)


def _check_peers(listeners: list[Listener]) -> None:
    """Who may use TCP cannot be told: nobody should believe that it was restricted."""
    open_to_all = [listener.address for listener in listeners if listener.address.kind == "tcp"]
    if len(open_to_all) == len(listeners):
        raise ConfigError("--allow-uid and --allow-gid need a Unix socket: nobody can tell who uses TCP")
    for address in open_to_all:
        warn("%s serves every user of this machine: --allow-uid and --allow-gid end at TCP", address)
