"""Who may connect to a Unix socket: the credentials of the peer, and the rule they are held against.

The kernel tells who called `connect`: user and groups as they were at that moment, whoever uses the
connection later. It knows nothing of the sort for TCP.
"""

from __future__ import annotations

import os
import socket
import struct

# struct ucred: pid, uid, gid.
_UCRED = struct.Struct("iII")
# The supplementary groups of the peer (Linux 4.13). Python has no name for it; the number is that of all
# architectures but three that Python is hardly run on (alpha, parisc, sparc), where asking fails.
_SO_PEERGROUPS = 59
# The most that `getsockopt` takes here: 256 groups. Of a peer with more only the first group counts.
_GROUPS_BYTES = 1024


class PeerPolicy:
    """Which users may use a Unix socket.

    With nothing allowed by name the permissions of the socket file decide, and an abstract socket, which has
    none, serves only our own user and root. With a user or a group allowed, every Unix socket serves our own
    user, root, and whom these name, as far as the file's permissions let them in.

    Root is never locked out: it could become any of the users who are let in. That is every user 0 the kernel
    sees: also root in a container, unless the container has a user namespace of its own.

    Args:
        uids: users allowed beside our own and root.
        gids: groups whose members are allowed, by first or supplementary group.
    """

    __slots__ = ("_gids", "_uids", "restricted")

    def __init__(self, uids: frozenset[int] = frozenset(), gids: frozenset[int] = frozenset()) -> None:
        self._uids = uids
        self._gids = gids
        self.restricted = bool(uids or gids)

    def allows(self, conn: socket.socket, *, abstract: bool) -> bool:
        """Whether the peer of a connection may be served.

        False if the system does not tell who it is, where that matters. Always True for TCP: nobody can tell.
        """
        if conn.family != socket.AF_UNIX or not (abstract or self.restricted):
            return True
        credentials = peer_credentials(conn)
        if credentials is None:
            return False
        uid, gid = credentials
        if uid in (0, os.geteuid()) or uid in self._uids or gid in self._gids:
            return True
        return bool(self._gids) and not self._gids.isdisjoint(peer_groups(conn))


ANYBODY = PeerPolicy()
"""The rule when nothing was said."""


def can_tell_peers() -> bool:
    """Whether this system tells who has connected (Linux)."""
    return hasattr(socket, "SO_PEERCRED")


def peer_credentials(conn: socket.socket) -> tuple[int, int] | None:
    """User id and group id of whoever connected a Unix socket; None if the system does not tell (or TCP)."""
    option: int | None = getattr(socket, "SO_PEERCRED", None)
    if option is None or conn.family != socket.AF_UNIX:
        return None
    try:
        _, uid, gid = _UCRED.unpack(conn.getsockopt(socket.SOL_SOCKET, option, _UCRED.size))
    except (OSError, ValueError, struct.error):
        # Closed meanwhile: asyncio says OSError, uvloop ValueError.
        return None
    return int(uid), int(gid)


def peer_groups(conn: socket.socket) -> frozenset[int]:
    """The supplementary groups of whoever connected a Unix socket; none if the system does not tell."""
    try:
        data = conn.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except (OSError, ValueError):
        return frozenset()
    return frozenset(gid for (gid,) in struct.iter_unpack("I", data[: len(data) // 4 * 4]))


def stands_for_strangers(number: int, kind: str) -> bool:
    """Whether this id is what every user (group) without a number of its own is shown as here.

    In a user namespace, as rootless containers have it, everybody from outside appears as "nobody": allowing
    that one would allow all of them.

    Args:
        kind: "uid" or "gid".
    """
    try:
        with open(f"/proc/self/{kind}_map") as file:
            if file.read().split() == ["0", "0", "4294967295"]:
                return False  # no such namespace: each number is one user
        with open(f"/proc/sys/kernel/overflow{kind}") as file:
            return number == int(file.read())
    except (OSError, ValueError):
        return False
