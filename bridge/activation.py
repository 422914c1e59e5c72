"""Sockets that a service manager opened: socket activation (`LISTEN_FDS`, `LISTEN_FDNAMES`, `LISTEN_PID`).

The manager listens before the bridge runs and while it is restarted, so that no client is ever refused. What
it hands down are descriptors from 3 on. They are its own: the bridge closes its copies when it stops, and
never removes a path.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from bridge.address import Address
from bridge.errors import ConfigError
from bridge.listener import Listener, is_loopback_host
from bridge.peers import ANYBODY, PeerPolicy, can_tell_peers
from bridge.socket_file import show

# sd_listen_fds(3): SD_LISTEN_FDS_START.
_FIRST = 3
# What systemd calls a socket of an older manager, which passes no names.
_UNNAMED = "unknown"


class Inherited:
    """The sockets that were handed down, each to be taken once."""

    def __init__(self, names: list[str], *, misdirected: bool = False) -> None:
        self._names = names
        self._misdirected = misdirected
        self._left = dict(enumerate(names, _FIRST))

    @classmethod
    def from_environment(cls, env: Mapping[str, str] = os.environ) -> Inherited:
        """Those that the environment announces to this process; none if it announces none.

        Raises:
            ConfigError: what it announces is not there.
        """
        if env.get("LISTEN_PID") != str(os.getpid()):
            return cls([], misdirected="LISTEN_FDS" in env)  # none, or meant for another process
        text = env.get("LISTEN_FDS", "")
        count = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
        names = env["LISTEN_FDNAMES"].split(":") if "LISTEN_FDNAMES" in env else [_UNNAMED] * count
        if len(names) != count:
            raise ConfigError(f"LISTEN_FDNAMES has {len(names)} names for LISTEN_FDS={show(text)} sockets")
        for fd in range(_FIRST, _FIRST + count):
            try:
                os.set_inheritable(fd, False)  # no server may hold them
            except OSError:
                raise ConfigError(f"LISTEN_FDS={count} is announced, but descriptor {fd} is closed") from None
        return cls(names)

    def take(
        self, address: Address, *, peers: PeerPolicy = ANYBODY, insecure: bool = False
    ) -> list[Listener]:
        """Listeners of the sockets that `systemd:` (all) or `systemd:NAME` (those of that name) stands for.

        Their addresses are those they are bound to.

        Raises:
            ConfigError: there is none, it was taken already, it is not a listening stream socket, or other
                machines can reach it and `insecure` is not set.
        """
        if self._misdirected:
            raise ConfigError(
                f"cannot listen on {address}: what was handed down is for another process (LISTEN_PID): let "
                "systemd start mcp-bridge itself, not a wrapper that starts it"
            )
        if not self._names:
            raise ConfigError(
                f"cannot listen on {address}: no sockets were handed down; start this from a socket unit, or "
                "with: systemd-socket-activate -l ADDR COMMAND"
            )
        wanted = [fd for fd, name in enumerate(self._names, _FIRST) if address.path in ("", name)]
        if not wanted:
            names = ", ".join(map(show, dict.fromkeys(self._names)))
            raise ConfigError(
                f"cannot listen on {address}: of the sockets handed down none is so named: {names}"
            )
        if any(fd not in self._left for fd in wanted):
            raise ConfigError(f"cannot listen on {address}: another --listen has that socket already")
        listeners = []
        try:
            for fd in wanted:
                listeners.append(self._open(fd, address, peers, insecure))
                del self._left[fd]
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        return listeners

    def close_rest(self) -> list[str]:
        """Close what nobody took, and return the names."""
        left, self._left = self._left, {}
        for fd in left:
            os.close(fd)
        return list(left.values())

    def _open(self, fd: int, address: Address, peers: PeerPolicy, insecure: bool) -> Listener:
        where = f"cannot listen on {address}: descriptor {fd} ({show(self._names[fd - _FIRST])})"
        try:
            sock = socket.socket(fileno=fd)
        except OSError as error:
            raise ConfigError(f"{where} is not a socket: use ListenStream=") from error
        try:
            real = _address_of(sock, where)
            if not can_tell_peers() and (
                real.kind == "abstract" or (peers.restricted and real.kind == "unix")
            ):
                raise ConfigError(
                    f"{where}: this system does not tell who connects; abstract sockets, --allow-uid and "
                    "--allow-gid need Linux"
                )
            if real.kind == "tcp" and not insecure and not is_loopback_host(real.host):
                raise ConfigError(
                    f"{where} can be reached from other machines ({real}), and whoever connects acts with "
                    "the server's authority: use a Unix socket or --insecure"
                )
            sock.setblocking(False)
        except BaseException:
            sock.detach()  # it is still the manager's affair
            raise
        return Listener(real, sock, peers=peers)


def _address_of(sock: socket.socket, where: str) -> Address:
    """What a listening stream socket is bound to. Raises ConfigError if it is something else."""
    if sock.type != socket.SOCK_STREAM:
        raise ConfigError(f"{where} is not a stream socket: use ListenStream=")
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ConfigError(f"{where} is a connection, not a listening socket: use Accept=no")
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        path = os.fsdecode(name)
        return Address("abstract", path=path[1:]) if path.startswith("\0") else Address("unix", path=path)
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        raise ConfigError(f"{where} is neither a Unix nor a TCP socket")
    return Address("tcp", host=str(name[0]), port=int(name[1]))
