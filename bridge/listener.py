"""The listening sockets of a bridge: `open_listener` opens them, `Listener.close` gives them up.

Owns what can be listened on, and the options of accepted TCP connections. It never accepts a connection:
whoever serves passes `Listener.sock` to the event loop. How a Unix socket gets its path and loses it again is
`bridge.socket_file`, who may use it `bridge.peers`, what a service manager hands down `bridge.activation`.
"""

from __future__ import annotations

import errno
import os
import socket

from bridge.address import Address
from bridge.errors import ConfigError, ListenError
from bridge.peers import ANYBODY, PeerPolicy, can_tell_peers
from bridge.socket_file import SocketFile, open_socket_file, show

TYPE_CHECKING = False  # as in bridge.address: listening comes first in a start, so this module stays cheap
if TYPE_CHECKING:
    from typing import NoReturn

# With port 0 and two addresses the port that is free at one may be taken at the other.
_PORT_TRIES = 16
# Behaviour contract for TCP: a peer that vanished is noticed after 15 s of silence and 3 probes 5 s apart.
_KEEPALIVE_IDLE_S = 15
_KEEPALIVE_INTERVAL_S = 5
_KEEPALIVE_PROBES = 3


class Listener:
    """One listening socket.

    On Python 3.13 and later asyncio removes the path of a Unix server when it closes, by the name the socket
    was bound to, which is not where it stands now: pass `cleanup_socket=False` there. `close` does it right.

    Attributes:
        address: the real address: port 0 replaced by the port in use, a host name by the IP address.
        sock: bound, listening, non-blocking, close-on-exec.
        peers: who may connect, where the system tells who it is.
    """

    __slots__ = ("_file", "address", "peers", "sock")

    def __init__(
        self,
        address: Address,
        sock: socket.socket,
        file: SocketFile | None = None,
        *,
        peers: PeerPolicy = ANYBODY,
    ) -> None:
        self.address = address
        self.sock = sock
        self.peers = peers
        self._file = file

    def in_place(self) -> bool:
        """Whether the path still leads to this socket; True for what has no path.

        False means that somebody deleted or replaced the file, or moved a directory above it: new clients do
        not get here. Costs one `stat`.
        """
        return self._file is None or self._file.is_at(self.address.path)

    def close(self) -> None:
        """Stop listening. Remove the path if device and inode are still those of this socket.

        Idempotent. May block for a second if another process holds the directory's lock; then, and if the
        directory can no longer be written, the file stays: stale, so that the next bridge replaces it.
        """
        if self._file is not None:
            # Before the socket: a newcomer finds no file rather than a dead one.
            self._file.remove()
            self._file = None
        self.sock.close()


def open_listener(
    address: Address,
    *,
    mode: int = 0o600,
    group: int | None = None,
    peers: PeerPolicy = ANYBODY,
    insecure: bool = False,
    backlog: int = 4096,
) -> list[Listener]:
    """Open the listening socket of an address, or several where a host name has several IP addresses.

    `tcp:localhost:PORT` listens on 127.0.0.1 and ::1, at one port, leaving out what the machine does not
    have. Our choice: an IPv6 address never takes IPv4 connections, so `tcp:[::]:PORT` is IPv6 only, whatever
    the system's default; to have both, listen on `tcp:0.0.0.0:PORT` too.

    Blocks: up to 5 s for the lock of a Unix socket's directory, and on a host name as long as the resolver.

    Args:
        address: "unix", "abstract" or "tcp"; relative paths count from the working directory.
        mode: permission bits of a Unix socket in the file system, exact whatever the umask.
        group: the group it is given to; None: as the system does it.
        peers: who may connect to a Unix socket.
        insecure: allow TCP addresses that other machines can reach.
        backlog: connections that may wait to be accepted; the system may cap it (Linux: net.core.somaxconn).

    Raises:
        ConfigError: a kind this version does not serve, an unknown host, an address that other machines can
            reach without `insecure`, or `peers` where the system does not tell who connects.
        ListenError: in use, not a socket, directory missing or not writable, or whatever the system says.
    """
    if peers.restricted and address.kind == "unix" and not can_tell_peers():
        raise ConfigError("this system does not tell who connects: --allow-uid and --allow-gid need Linux")
    try:
        if address.kind == "unix":
            return [_open_unix(address, mode, group, peers, backlog)]
        if address.kind == "abstract":
            return [_open_abstract(address, peers, backlog)]
        if address.kind == "tcp":
            return _open_tcp(address, insecure, backlog)
    except OSError as error:
        # Out of descriptors or memory; what is particular to an address has been said by now.
        raise ListenError(f"cannot listen on {show(str(address))}: {error.strerror or error}") from error
    raise ConfigError(f"cannot listen on {address}: {address.kind}: is not supported by this version")


def peer_allowed(listener: Listener, conn: socket.socket) -> bool:
    """Whether the peer of an accepted connection may be served."""
    return listener.peers.allows(conn, abstract=listener.address.kind == "abstract")


def prepare_connection(sock: socket.socket) -> None:
    """Set what an accepted TCP connection needs: no Nagle delay, keepalive of 15 s and 3 probes 5 s apart.

    Takes a plain socket or what `transport.get_extra_info("socket")` returns. Does nothing to a Unix socket,
    and never raises: a peer that is gone already is noticed by the transport.
    """
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # What macOS calls TCP_KEEPALIVE is TCP_KEEPIDLE elsewhere.
    idle: int | None = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))
    settings: list[tuple[int, int | None, int]] = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_TCP, idle, _KEEPALIVE_IDLE_S),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPINTVL", None), _KEEPALIVE_INTERVAL_S),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPCNT", None), _KEEPALIVE_PROBES),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    ]
    try:
        for level, option, value in settings:
            if option is not None:
                sock.setsockopt(level, option, value)
    except (OSError, ValueError):
        return


def _open_unix(address: Address, mode: int, group: int | None, peers: PeerPolicy, backlog: int) -> Listener:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        file = open_socket_file(sock, address.path, mode=mode, group=group, backlog=backlog)
        return Listener(address, sock, file, peers=peers)
    except BaseException:
        sock.close()
        raise


# --- Abstract Unix sockets
# -------------------------------------------------------------------------------------


def _open_abstract(address: Address, peers: PeerPolicy, backlog: int) -> Listener:
    if not can_tell_peers():
        # Without credentials every user of the machine could connect, and only Linux has the names at all.
        raise ConfigError(f"cannot listen on {show(str(address))}: abstract sockets exist on Linux only")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(b"\0" + os.fsencode(address.path))
        sock.listen(backlog)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            # The name goes with its owner: a stale one does not exist.
            reason = "in use, a process listens there: stop it or choose another name"
            raise ListenError(f"{show(str(address))} is {reason}") from None
        raise ListenError(f"cannot listen on {show(str(address))}: {error.strerror or error}") from error
    return Listener(address, sock, peers=peers)


_Target = tuple[socket.AddressFamily, str, int]  # family, numeric host, IPv6 scope id


def _open_tcp(address: Address, insecure: bool, backlog: int) -> list[Listener]:
    targets = _resolve(address)
    if not insecure:
        for _, host, _ in targets:
            # By what the name resolves to, not by the name: this is what gets bound.
            if not is_loopback_host(host):
                raise ConfigError(
                    f"{address} can be reached from other machines ({host}), and whoever connects acts with "
                    "the server's authority: use tcp:127.0.0.1:PORT, a Unix socket or --insecure"
                )
    for _ in range(_PORT_TRIES):
        listeners = _bind_all(address, targets, backlog)
        if listeners:
            return listeners
    raise ListenError(f"cannot listen on {address}: found no port that is free at each of its addresses")


def _resolve(address: Address) -> list[_Target]:
    if address.host in ("localhost", "localhost."):
        # RFC 6761, 6.3: always loopback, without asking anybody. /etc/hosts often has only one family.
        return [(socket.AF_INET, "127.0.0.1", 0), (socket.AF_INET6, "::1", 0)]
    try:
        # Bytes, because a str makes Python load its IDNA tables, for a name that is ASCII anyway. The
        # resolver has time limits of its own (resolv.conf: timeout, attempts).
        found = socket.getaddrinfo(address.host.encode("ascii"), None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            raise ListenError(
                f"cannot listen on {address}: no name server answers for {address.host}"
            ) from None
        raise ConfigError(
            f"cannot listen on {address}: unknown host {address.host} ({error.strerror})"
        ) from None
    targets: list[_Target] = []
    for family, _, _, _, sockaddr in found:
        host = str(sockaddr[0])
        scope = sockaddr[3] if len(sockaddr) == 4 else 0
        if host.startswith("::ffff:") and "." in host:
            # An IPv4 address in IPv6 spelling cannot be bound by a socket for IPv6 only.
            family, host = socket.AF_INET, host.removeprefix("::ffff:")
        target = (family, host.partition("%")[0], int(scope))
        if target not in targets:
            targets.append(target)
    return targets


def is_loopback_host(host: str) -> bool:
    """Whether only this machine reaches a numeric address."""
    return host == "::1" or (":" not in host and host.startswith("127."))


def _bind_all(address: Address, targets: list[_Target], backlog: int) -> list[Listener]:
    """Bind all addresses at one port; an empty list if the port chosen for the first is taken at another."""
    listeners: list[Listener] = []
    port = address.port
    missing: OSError | None = None
    for target in targets:
        try:
            sock = _bind_tcp(target, port, backlog)
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) and len(targets) > 1:
                missing = error  # a machine without IPv6, or a name that has addresses elsewhere as well
                continue
            for listener in listeners:
                listener.close()
            if error.errno == errno.EADDRINUSE and port != address.port:
                return []
            _refuse_tcp(address, target, error)
        port = sock.getsockname()[1]
        _, host, scope = target
        listeners.append(Listener(Address("tcp", host=f"{host}%{scope}" if scope else host, port=port), sock))
    if not listeners and missing is not None:
        _refuse_tcp(address, targets[-1], missing)
    return listeners


def _bind_tcp(target: _Target, port: int, backlog: int) -> socket.socket:
    family, host, scope = target
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restart must not wait for the TIME_WAIT of old connections. It never lets two listen at one port.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((host, port, 0, scope))
        else:
            sock.bind((host, port))
        # With SO_REUSEADDR two can bind at once; the second one's listen says EADDRINUSE.
        sock.listen(backlog)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _refuse_tcp(address: Address, target: _Target, error: OSError) -> NoReturn:
    code = error.errno or 0
    reason = {
        errno.EADDRINUSE: f"port in use by another process on {target[1]}: stop it or choose another",
        errno.EACCES: f"user {os.geteuid()} may not take this port: choose one above 1023",
        errno.EADDRNOTAVAIL: f"{target[1]} is not an address of this machine",
        errno.EAFNOSUPPORT: f"this machine has no support for {target[1]}",
    }.get(code, os.strerror(code) if code else str(error))
    raise ListenError(f"cannot listen on {address}: {reason}") from error
