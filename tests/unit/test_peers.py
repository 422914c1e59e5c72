"""Who may use a Unix socket (section 9): credentials as the kernel tells them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge import peers
from bridge.peers import ANYBODY, PeerPolicy, peer_credentials, peer_groups, stands_for_strangers

STRANGER = 54321
NO_IDS: frozenset[int] = frozenset()


@pytest.fixture
def conn() -> Iterator[socket.socket]:
    """A connection; its peer is this process, or whoever a test says."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours


def peer(monkeypatch: pytest.MonkeyPatch, uid: int, gid: int, *groups: int) -> None:
    """Let the peer be somebody else, whom only root could become here."""
    monkeypatch.setattr(peers, "peer_credentials", lambda conn: (uid, gid))
    monkeypatch.setattr(peers, "peer_groups", lambda conn: frozenset(groups))


def test_the_kernel_tells_user_and_groups(conn: socket.socket) -> None:
    assert peer_credentials(conn) == (os.geteuid(), os.getegid())
    assert peer_groups(conn) == frozenset(os.getgroups())


def test_nothing_is_known_of_a_closed_connection_or_of_tcp() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    theirs.close()
    assert peer_credentials(ours) is None
    assert peer_groups(ours) == frozenset()
    with socket.socket() as tcp:
        assert peer_credentials(tcp) is None
        assert PeerPolicy(frozenset({STRANGER})).allows(tcp, abstract=False)


def test_with_nobody_named_the_file_decides_and_an_abstract_socket_is_for_us_and_root(
    conn: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not ANYBODY.restricted
    for uid, abstract in ((os.geteuid(), True), (0, True), (STRANGER, False)):
        peer(monkeypatch, uid, uid)
        assert ANYBODY.allows(conn, abstract=abstract)
    peer(monkeypatch, STRANGER, 0, 0)
    assert not ANYBODY.allows(conn, abstract=True)


@pytest.mark.parametrize("abstract", [False, True])
@pytest.mark.parametrize(
    ("uids", "gids", "who", "allowed"),
    [
        ({1001}, NO_IDS, (1001, 1001), True),
        ({1001}, NO_IDS, (STRANGER, 1001, 1001), False),
        (NO_IDS, {1001}, (STRANGER, 1001), True),
        (NO_IDS, {1001}, (STRANGER, STRANGER, 7, 1001), True),
        (NO_IDS, {1001}, (1001, STRANGER, 7), False),
        ({1001, 1002}, {7}, (1002, 1), True),
        ({1001, 1002}, {7}, (1003, 1, 2, 3), False),
        ({1001}, NO_IDS, (0, 0), True),  # root is never locked out
        (NO_IDS, {0}, (STRANGER, STRANGER), False),
    ],
)
def test_with_somebody_named_they_and_we_and_root_are_let_in_and_nobody_else(
    conn: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    uids: set[int],
    gids: set[int],
    who: tuple[int, ...],
    allowed: bool,
    abstract: bool,
) -> None:
    policy = PeerPolicy(frozenset(uids), frozenset(gids))
    assert policy.restricted
    assert policy.allows(conn, abstract=abstract)  # we ourselves
    peer(monkeypatch, *who)
    assert policy.allows(conn, abstract=abstract) is allowed


def test_who_cannot_be_told_is_not_let_in(conn: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SO_PEERCRED is missing (macOS)."""
    monkeypatch.delattr(socket, "SO_PEERCRED")
    assert not peers.can_tell_peers()
    assert ANYBODY.allows(conn, abstract=False)
    assert not ANYBODY.allows(conn, abstract=True)
    assert not PeerPolicy(frozenset({os.geteuid()})).allows(conn, abstract=False)


def test_the_user_that_stands_for_all_others_in_a_container_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a user namespace every unmapped user looks like "nobody"."""
    files = {
        "/proc/self/uid_map": "0 100000 65536\n",
        "/proc/sys/kernel/overflowuid": "65534\n",
    }

    def fake(path: str) -> object:
        copy = tmp_path / path.replace("/", "_")
        copy.write_text(files[path])
        return copy.open()

    monkeypatch.setattr("builtins.open", fake)
    assert stands_for_strangers(65534, "uid")
    assert not stands_for_strangers(1000, "uid")
    files["/proc/self/uid_map"] = "         0          0 4294967295\n"
    assert not stands_for_strangers(65534, "uid")
