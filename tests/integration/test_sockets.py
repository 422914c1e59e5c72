"""Unix sockets as other users and other programs meet them (section 9)."""

from __future__ import annotations

import grp
import json
import os
import pwd
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.bridge import ROOT, run_command, running_bridge, server_command
from tests.umask_starts import UID, intruded, listen_again_and_again

COMMAND = server_command("scripted.py")

# Only root can become another user.
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user may enter, with a short path."""
    with tempfile.TemporaryDirectory(prefix="mb-", dir="/tmp") as path:
        os.chmod(path, 0o755)
        yield Path(path)


ASK = """
import json, os, socket, sys
address, uid, gids = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
os.setgroups(gids[1:])
os.setgid(gids[0])
os.setuid(uid)
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(10)
try:
    sock.connect("\\0" + address[1:] if address[0] == "@" else address)
    sock.sendall(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\\n')
    data = sock.recv(65536)
except PermissionError:
    data = b"no permission"
except (ConnectionResetError, BrokenPipeError):
    data = b""
print(data.decode() or "cut")
"""


def ask_as(address: str, uid: int, *gids: int) -> str:
    """What another user (root only) gets to a `ping`: "answered", "cut" at once, or "no permission"."""
    argv = [sys.executable, "-S", "-c", ASK, address.removeprefix("unix:"), str(uid), json.dumps(gids)]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    return "answered" if said.startswith('{"') else said


def bridge_at(address: str, options: Sequence[str]):  # type: ignore[no-untyped-def]  # as running_bridge
    return running_bridge(*COMMAND, listen=address, options=options)


# --- Permissions of the file


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ([], 0o600),
        (["--socket-mode", "0666"], 0o666),
        (["--socket-group", str(os.getegid())], 0o660),
        (["--socket-group", grp.getgrgid(os.getegid()).gr_name], 0o660),
        (["--socket-group", str(os.getegid()), "--socket-mode", "0620"], 0o620),
    ],
)
async def test_the_file_has_the_mode_and_group_that_were_asked_for(
    place: Path, options: list[str], mode: int
) -> None:
    path = place / "s"
    async with bridge_at(f"unix:{path}", options) as bridge, await bridge.connect() as client:
        found = path.stat()
        assert found.st_mode & 0o7777 == mode
        assert found.st_gid == os.getegid()
        assert "result" in await client.call("do")


@needs_root
async def test_the_group_of_a_socket_lets_another_user_in_and_nobody_else(place: Path) -> None:
    address = f"unix:{place}/s"
    async with bridge_at(address, ["--socket-group", "4321"]):
        assert (place / "s").stat().st_gid == 4321
        assert ask_as(address, UID, UID, 4321) == "answered"
        assert ask_as(address, UID, 4321) == "answered"
        assert ask_as(address, UID, UID) == "no permission"


@needs_root
def test_the_group_that_a_socket_had_before_is_never_let_in() -> None:
    """The group is set before the mode: else the bridge's own group would be let in for a moment."""
    with intruded() as (place, intruder):
        before = os.getegid()
        os.setegid(UID)
        try:
            listen_again_and_again(place / "s", 1000, mode=0o660, group=4321)
        finally:
            os.setegid(before)
    assert intruder.counts["denied"] > 0
    assert intruder.counts["connected"] == intruder.counts["reached"] == 0


@needs_root
async def test_under_umask_000_another_user_who_connects_in_a_loop_is_never_let_in() -> None:
    """Hazard: the mode that the umask leaves, until a chmod."""
    with intruded() as (place, intruder):
        listen_again_and_again(place / "s", 10_000)
        for _ in range(3):  # the whole command
            async with running_bridge(*COMMAND, listen=f"unix:{place}/s"):
                pass
    assert intruder.counts["connected"] == intruder.counts["reached"] == 0
    assert intruder.counts["denied"] > 0


@needs_root
async def test_the_other_user_is_let_in_where_the_mode_says_so() -> None:
    """That the tests above would notice."""
    with intruded() as (place, intruder):
        async with (
            running_bridge(*COMMAND, listen=f"unix:{place}/s", options=["--socket-mode", "0666"]) as bridge,
            await bridge.connect() as client,
        ):
            assert "result" in await client.call("do")
    assert intruder.counts["connected"] > 0


AS_ANOTHER = f"""
import os, sys
# Root alone may be able to read them.
import asyncio, ctypes, grp, pwd, uvloop, bridge.cli, bridge.hub, bridge.options
os.setgroups([]); os.setgid({UID}); os.setuid({UID})
sys.exit(bridge.cli.main(sys.argv[1:]))
"""


def test_a_group_that_one_is_not_in_is_refused_and_nothing_is_left(place: Path) -> None:
    os.chmod(place, 0o777)
    runner = ["-c", AS_ANOTHER] if os.geteuid() == 0 else ["-m", "bridge"]
    group = "4321" if os.geteuid() == 0 else "0"
    options = ["--listen", f"unix:{place}/s", "--socket-group", group, "--", "true"]
    argv = [sys.executable, *runner, *options]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert "is not a member" in done.stderr
    assert done.stderr.count("\n") == 1
    assert os.listdir(place) == []


@pytest.mark.parametrize("option", ["--socket-group", "--allow-uid", "--allow-gid"])
@pytest.mark.parametrize("value", ["no-such-name", "-1", "4294967295", "99999999999", "1 2", ""])
async def test_users_and_groups_that_are_none_are_refused(option: str, value: str) -> None:
    done = await run_command("--listen", "unix:/tmp/x", f"{option}={value}", "--", "server")
    assert done.code == 2
    assert option in done.stderr
    assert done.stderr.count("\n") == 1


# --- The credentials of the peer


@needs_root
@pytest.mark.parametrize("kind", ["path", "abstract"])
async def test_named_users_and_groups_are_served_and_others_cut(place: Path, kind: str) -> None:
    address = f"unix:{place}/s" if kind == "path" else f"unix:@{place.name}"
    options = ["--socket-mode", "0666", "--allow-uid", "1111", "--allow-uid", "nobody", "--allow-gid", "2222"]
    nobody = pwd.getpwnam("nobody").pw_uid
    async with bridge_at(address, options) as bridge:
        assert ask_as(address, 1111, 1) == "answered"
        assert ask_as(address, nobody, 1) == "answered"
        assert ask_as(address, 3333, 2222) == "answered"
        assert ask_as(address, 3333, 1, 5, 2222) == "answered"
        assert ask_as(address, 3333, 1111) == "cut"
        assert ask_as(address, 2222, 3333) == "cut"
        assert ask_as(address, 0, 0) == "answered"
        assert "a client of another user was refused" in bridge.stderr_text()
        async with await bridge.connect() as client:
            assert "result" in await client.call("do")


@needs_root
async def test_the_files_mode_holds_beside_what_is_allowed(place: Path) -> None:
    address = f"unix:{place}/s"
    async with bridge_at(address, ["--allow-uid", "1111"]):
        assert ask_as(address, 1111, 1) == "no permission"


@needs_root
async def test_an_abstract_socket_serves_no_other_user_unless_one_is_allowed(place: Path) -> None:
    address = f"unix:@{place.name}"
    async with bridge_at(address, []) as bridge:
        for _ in range(50):
            assert ask_as(address, UID, 0) == "cut"
            if bridge.stderr_text().count("was refused") >= 5:
                break
        async with await bridge.connect() as client:
            assert "result" in await client.call("do")


async def test_our_own_user_is_always_served(place: Path) -> None:
    options = ["--allow-uid", "1111", "--allow-gid", "2222"]
    for address in (f"unix:{place}/s", f"unix:@{place.name}"):
        async with bridge_at(address, options) as bridge, await bridge.connect() as client:
            assert "result" in await client.call("do")


async def test_nobody_is_told_that_tcp_is_restricted_when_it_cannot_be() -> None:
    done = await run_command("--listen", "tcp:127.0.0.1:0", "--allow-uid", "0", "--", "server")
    assert done.code == 2
    assert "need a Unix socket" in done.stderr
    async with running_bridge(*COMMAND, listen=["unix", "tcp"], options=["--allow-uid", "0"]) as bridge:
        await bridge.wait_log("serves every user of this machine")
        async with await bridge.connect(1) as client:
            assert "result" in await client.call("do")


# --- The path


def replace(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))


def sockets_in(place: Path) -> list[str]:
    return [str(path.relative_to(place)) for path in place.rglob("*") if path.is_socket()]


@pytest.mark.parametrize("how", ["deleted", "replaced", "directory moved"])
async def test_a_path_that_goes_while_it_is_served_is_warned_of_within_10_s(place: Path, how: str) -> None:
    folder = place / "d"
    folder.mkdir()
    path = folder / "s"
    async with bridge_at(f"unix:{path}", []) as bridge, await bridge.connect() as client:
        if how == "deleted":
            path.unlink()
        elif how == "replaced":
            replace(path)
        else:
            folder.rename(place / "moved")
        await bridge.wait_log("was deleted, moved or replaced: nobody can connect there", timeout=10)
        # Who is connected stays, and at the end the stranger's file, too; ours goes, wherever it is now.
        assert "result" in await client.call("do")
        assert await bridge.stop() == 0
        assert sockets_in(place) == (["d/s"] if how == "replaced" else [])
