"""Sockets that a service manager hands down (sd_listen_fds(3)); the descriptors are real ones from 3 on.

Each test runs in a process of its own, in which these numbers can be had.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.activation import Inherited
from bridge.address import parse_address
from bridge.errors import ConfigError
from tests.support.bridge import ROOT

ACTIVATOR = ROOT / "tests" / "support" / "activator.py"

PRELUDE = """
import os, socket, sys
from bridge.activation import Inherited
from bridge.address import parse_address
from bridge.errors import ConfigError
from bridge.peers import PeerPolicy

def refused(inherited, text, **options):
    try:
        inherited.take(parse_address(text), **options)
    except ConfigError as error:
        return str(error)
    raise AssertionError(f"{text} was taken")
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short path, for socket addresses."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="mb-") as path:
        yield Path(path)


def activated(code: str, *sockets: str, pass_pid: bool = True) -> str:
    """Run code in a process that was handed these sockets down; what it prints."""
    options = [] if pass_pid else ["--no-pid"]
    done = subprocess.run(
        [
            *(sys.executable, str(ACTIVATOR), *options, *sockets, "--"),
            *(sys.executable, "-c", PRELUDE + textwrap.dedent(code)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sockets_are_taken_by_name_with_the_addresses_they_are_bound_to(place: Path) -> None:
    code = """
        inherited = Inherited.from_environment()
        for name in ("b", "a"):
            for listener in inherited.take(parse_address(f"systemd:{name}")):
                sock = listener.sock
                print(name, listener.address, sock.fileno(), sock.getblocking(), sock.get_inheritable())
        print(inherited.close_rest(), refused(inherited, "systemd:c"))
    """
    said = activated(
        code, f"unix:{place}/1=a", f"unix:@{place.name}=b", f"unix:{place}/2=a", f"unix:{place}/3=c"
    )
    assert said.splitlines() == [
        f"b unix:@{place.name} 4 False False",
        f"a unix:{place}/1 3 False False",
        f"a unix:{place}/2 5 False False",
        "['c'] cannot listen on systemd:c: another --listen has that socket already",
    ]


def test_without_a_name_all_are_taken_once(place: Path) -> None:
    code = """
        inherited = Inherited.from_environment()
        print(*[listener.address for listener in inherited.take(parse_address("systemd:"))])
        print(inherited.close_rest())
        print(refused(inherited, "systemd:"))
    """
    first, rest, again = activated(code, f"unix:{place}/1", "tcp:127.0.0.1:0").splitlines()
    assert first.startswith(f"unix:{place}/1 tcp:127.0.0.1:")
    assert rest == "[]"
    assert "another --listen" in again


def test_closing_a_listener_leaves_the_path_and_the_managers_socket(place: Path) -> None:
    code = f"""
        keep = os.dup(3)
        (listener,) = Inherited.from_environment().take(parse_address("systemd:"))
        assert listener.in_place()
        listener.close()
        client = socket.socket(socket.AF_UNIX)
        client.connect("{place}/1")
        print("still there")
    """
    assert activated(code, f"unix:{place}/1") == "still there\n"
    assert stat.S_ISSOCK(os.stat(place / "1").st_mode)


@pytest.mark.parametrize(
    ("socket", "reason"),
    [
        ("dgram:{place}/1", "not a stream socket"),
        ("file:{place}/1", "not a socket"),
        ("tcp:0.0.0.0:0", "reached from other machines"),
    ],
)
def test_what_nobody_can_or_should_listen_on_is_refused(place: Path, socket: str, reason: str) -> None:
    code = """
        print(refused(Inherited.from_environment(), "systemd:"))
        os.fstat(3)
    """
    said = activated(code, socket.format(place=place))
    assert reason in said
    assert said.count("\n") == 1


def test_a_connection_is_not_a_listener() -> None:
    code = """
        ours, theirs = socket.socketpair()
        os.dup2(ours.fileno(), 3)
        print(refused(Inherited.from_environment(), "systemd:"))
    """
    assert "Accept=no" in activated(code, "unix:@" + os.urandom(8).hex())


def test_other_machines_can_reach_it_only_if_that_is_wanted() -> None:
    code = """
        (listener,) = Inherited.from_environment().take(parse_address("systemd:"), insecure=True)
        print(listener.address)
    """
    assert activated(code, "tcp:0.0.0.0:0").startswith("tcp:0.0.0.0:")


def test_who_may_connect_is_checked_as_elsewhere() -> None:
    code = """
        policy = PeerPolicy(frozenset({1234}))
        inherited = Inherited.from_environment()
        del socket.SO_PEERCRED
        print(refused(inherited, "systemd:", peers=policy))
    """
    assert "need Linux" in activated(code, "unix:@" + os.urandom(8).hex())


def test_a_name_that_none_has_is_refused_with_those_there_are(place: Path) -> None:
    code = """print(refused(Inherited.from_environment(), "systemd:mcp"))"""
    said = activated(code, f"unix:{place}/1=one", f"unix:{place}/2=two", f"unix:{place}/3=two")
    assert said == "cannot listen on systemd:mcp: of the sockets handed down none is so named: one, two\n"


def test_sockets_for_another_process_are_not_ours(place: Path) -> None:
    code = """print(refused(Inherited.from_environment(), "systemd:"))"""
    assert "is for another process (LISTEN_PID)" in activated(code, f"unix:{place}/1", pass_pid=False)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({}, "no sockets were handed down"),
        ({"LISTEN_FDS": "0"}, "no sockets were handed down"),
        ({"LISTEN_FDS": "many"}, "no sockets were handed down"),
        ({"LISTEN_FDS": "-1"}, "no sockets were handed down"),
        ({"LISTEN_FDS": "99999999999999"}, "no sockets were handed down"),
        ({"LISTEN_FDS": "2", "LISTEN_FDNAMES": "one"}, "1 names"),
        ({"LISTEN_FDS": "99999"}, "is closed"),
    ],
)
def test_announcements_that_are_none_or_wrong_are_refused(variables: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Inherited.from_environment({"LISTEN_PID": str(os.getpid()), **variables}).take(
            parse_address("systemd:")
        )
