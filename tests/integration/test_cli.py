"""The command line, the addresses and the sockets of a serving bridge (sections 1 and 9 of the contract)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import stat
import sys
import uuid
from pathlib import Path

import pytest

from tests.support.bridge import BridgeExited, run_command, running_bridge, server_command, wait_until
from tests.support.client import RawClient, encode, modern_request
from tests.support.scripts import content, env, error_of, lines_of

COMMAND = server_command("scripted.py")
LISTEN = ["--listen", "unix:/no/such/directory/s"]

# Every option of section 1 that this version has, with the unit and the default its help must show.
OPTIONS = {
    "--listen": ("ADDR", None),
    "--socket-mode": ("MODE", "0600; 0660 with --socket-group"),
    "--socket-group": ("GROUP", "the system's choice"),
    "--allow-uid": ("USER", None),
    "--allow-gid": ("GROUP", None),
    "--insecure": ("", None),
    "--admin": ("ADDR", "off"),
    "--era": ("{auto,modern,legacy}", "auto"),
    "--env": ("NAME=VALUE", None),
    "--sharing": ("{shared,isolated,auto}", "shared"),
    "--isolate-for": ("NAMES", "sampling,elicitation"),
    "--max-children": ("N", "32"),
    "--spare": ("N", "0"),
    "--cwd": ("DIR", "the bridge's"),
    "--server-stderr": ("{relay,inherit,null}", "relay"),
    "--restart": ("{always,never}", "always"),
    "--replay": ("{off,safe}", "off"),
    "--max-restarts": ("N", "5"),
    "--restart-wait": ("SECONDS", "30"),
    "--probe-timeout": ("SECONDS", "10"),
    "--start-timeout": ("SECONDS", "120"),
    "--max-clients": ("N", "1024"),
    "--max-in-flight": ("N", "256"),
    "--max-subscriptions": ("N", "64"),
    "--max-request": ("SIZE", "10MiB less 1"),
    "--max-message": ("SIZE", "64MiB"),
    "--max-depth": ("N", "128"),
    "--client-buffer": ("SIZE", "16MiB"),
    "--max-buffered": ("SIZE", "256MiB"),
    "--request-timeout": ("SECONDS", "off"),
    "--linger": ("SECONDS", "60"),
    "--drain": ("SECONDS", "5"),
    "--stop-grace": ("SECONDS", "1"),
    "--swap-drain": ("SECONDS", "600"),
    "--ambiguous-logs": ("{log,broadcast}", "log"),
    "--log-format": ("{text,json}", "text"),
    "--log-level": ("{info,debug,warning,error}", "info"),
    "--version": ("", None),
    "--help": ("", None),
}


# Usage.


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--"],
        ["--", "server"],
        ["server"],
        ["serve", "--listen", "unix:/tmp/x", "--", "server"],
        [*LISTEN],
        [*LISTEN, "--"],
        [*LISTEN, "--", ""],
        [*LISTEN, "server"],
        ["--listen"],
        ["--listen", "--", "server"],
        *(
            ["--listen", address, "--", "server"]
            for address in (
                "",
                "unix:",
                "/tmp/x.sock",
                "tcp:8080",
                "tcp:127.0.0.1",
                "tcp:127.0.0.1:",
                "tcp:127.0.0.1:65536",
                "tcp:127.0.0.1:-1",
                "tcp:127.0.0.1:http",
                "tcp:::1:80",
                "tcp:[::1]",
                "http://127.0.0.1:80",
                "nonsense:\x1b[31m\nsecond line",
                "unix:@" + "x" * 200,
                "tls:127.0.0.1:1",
                "systemd:",
                "tcp:0.0.0.0:0",
                "tcp:[::]:0",
                "tcp:192.0.2.1:0",
                "tcp:no such host:1",
            )
        ),
        *(
            [*LISTEN, option, value, "--", "server"]
            for option, value in (
                ("--max-request", "0"),
                ("--max-request", "-1"),
                ("--max-request", "10MB"),
                ("--max-request", "1.5MiB"),
                ("--max-request", "x\ny"),
                ("--max-message", ""),
                ("--max-clients", "0"),
                ("--max-clients", "many"),
                ("--max-depth", "1e3"),
                ("--drain", "-1"),
                ("--drain", "nan"),
                ("--drain", "inf"),
                ("--drain", "soon"),
                ("--request-timeout", "never"),
                ("--socket-mode", "rw"),
                ("--socket-mode", "9999"),
                ("--env", "NOVALUE"),
                ("--env", "=x"),
                ("--era", "ancient"),
                ("--restart", "maybe"),
                ("--replay", "all"),
                ("--server-stderr", "file"),
                ("--log-level", "loud"),
                ("--log-format", "xml"),
                ("--ambiguous-logs", "all"),
                ("--admin", "nowhere"),
                ("--no-such-option", "1"),
                ("--no-such\noption", "1"),
                ("--max-req", "1000"),
                ("--drain", "--"),
            )
        ),
        ["connect"],
        ["connect", "nonsense"],
        ["connect", "--wait", "soon", "unix:/tmp/x"],
        ["connect", "unix:/tmp/x", "more"],
    ],
    ids=lambda argv: " ".join(argv)[:60].encode("unicode_escape").decode() or "nothing",
)
async def test_wrong_usage_is_one_line_and_exit_2(argv: list[str]) -> None:
    done = await run_command(*argv)
    assert done.code == 2, done.stderr
    assert done.stdout == b""
    assert "Traceback" not in done.stderr
    assert done.stderr.endswith("\n")
    assert done.stderr.count("\n") == 1, done.stderr
    assert "\x1b" not in done.stderr
    assert re.match(r"mcp-bridge( connect)?: .{15}", done.stderr)


async def test_help_names_every_option_with_its_unit_and_default_and_fits_a_terminal() -> None:
    done = await run_command("--help", env={"COLUMNS": "80"})
    assert (done.code, done.stderr) == (0, "")
    text = done.stdout.decode()
    usage, *rest = text.splitlines()
    assert all(len(line) <= 80 for line in rest)
    assert len(usage) < 100
    entries = re.split(r"\n(?=  -)|\n\n", text)
    found: dict[str, tuple[str, str | None]] = {}
    for entry in entries:
        if match := re.match(r"  (?:-\w, )?(--[\w-]+)(?: (\S+))?", entry):
            default = re.search(r"\[([^\]]+)\]$", " ".join(entry.split()))
            metavar = match[2] if match[2] and re.fullmatch(r"\{.*\}|[A-Z=]+", match[2]) else ""
            found[match[1]] = (metavar, default[1] if default else None)
    assert found == OPTIONS
    for word in ("connect ADDR", "unix:/path", "unix:@", "tcp:HOST:PORT", "[::1]", "exit status", "HUP"):
        assert word in text


async def test_version_is_one_line() -> None:
    done = await run_command("--version")
    assert (done.code, done.stderr) == (0, "")
    assert re.fullmatch(rb"mcp-bridge \d+\.\d+\.\d+\S*\n", done.stdout)


async def test_what_follows_the_two_dashes_belongs_to_the_server(tmp_path: Path) -> None:
    script = tmp_path / "server"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/args\nexec {" ".join(COMMAND)}\n')
    script.chmod(0o755)
    args = ["--help", "--", "--listen", "two words", "", "*"]
    async with running_bridge(str(script), *args) as bridge, await bridge.connect() as client:
        await client.call("do")
    assert (tmp_path / "args").read_text() == "".join(arg + "\n" for arg in args)


# Listening.


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as sock:
        sock.bind(("::1", 0))
        return True
    return False


async def test_several_listeners_of_all_kinds_serve_one_server(tmp_path: Path, starts: Path) -> None:
    name = f"@mcp-bridge-test-{uuid.uuid4().hex}"
    listen = ["unix", "tcp", f"unix:{name}", f"unix:{tmp_path}/second", "tcp:localhost:0"]
    async with running_bridge(*COMMAND, listen=listen, env=env(starts=starts)) as bridge:
        assert bridge.addresses[2] == f"unix:{name}"
        assert all(not address.endswith(":0") for address in bridge.addresses)
        for index in range(len(bridge.addresses)):
            async with await bridge.connect(index) as client:
                assert content(await client.call("do"))["start"] == 1
    assert len(lines_of(starts)) == 1


@pytest.fixture
def starts(tmp_path: Path) -> Path:
    """The file in which a server counts its starts."""
    return tmp_path / "starts"


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
async def test_ipv6_is_written_in_brackets() -> None:
    async with running_bridge(*COMMAND, listen="tcp:[::1]:0") as bridge:
        assert re.fullmatch(r"tcp:\[::1\]:[1-9]\d+", bridge.address)
        async with await bridge.connect() as client:
            await client.call("do")


@pytest.mark.parametrize("wrong", ["tcp in use", "unix in use", "file", "no directory"])
async def test_no_server_is_started_unless_every_listener_is_bound(
    tmp_path: Path, starts: Path, wrong: str
) -> None:
    with socket.socket() as taken, socket.socket(socket.AF_UNIX) as live:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        live.bind(str(tmp_path / "live"))
        live.listen()
        (tmp_path / "file").touch()
        address = {
            "tcp in use": f"tcp:127.0.0.1:{taken.getsockname()[1]}",
            "unix in use": f"unix:{tmp_path}/live",
            "file": f"unix:{tmp_path}/file",
            "no directory": f"unix:{tmp_path}/none/s",
        }[wrong]
        good = tmp_path / "good"
        argv = ["--listen", f"unix:{good}", "--listen", address, "--", *COMMAND]
        done = await run_command(*argv, env=env(starts=starts))
    assert done.code == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert "good" not in os.listdir(tmp_path)
    assert lines_of(starts) == [], "a server was started"


async def test_a_second_bridge_on_a_live_path_leaves_and_the_first_is_untouched() -> None:
    async with running_bridge(*COMMAND) as bridge, await bridge.connect() as client:
        path = bridge.address.removeprefix("unix:")
        before = os.stat(path).st_ino
        done = await run_command("--listen", bridge.address, "--", *COMMAND)
        assert done.code == 1
        assert done.stderr.count("\n") == 1
        assert "in use" in done.stderr or "already" in done.stderr
        assert os.stat(path).st_ino == before
        await client.call("do")
        async with await bridge.connect() as other:
            await other.call("do")


async def test_a_socket_left_by_a_crash_is_replaced(tmp_path: Path) -> None:
    """Reported: a socket file left by a crash blocked every later start, for days."""
    address = f"unix:{tmp_path}/s"
    async with running_bridge(*COMMAND, listen=address, expect_exit=None) as bridge:
        bridge.signal(signal.SIGKILL)
        await bridge.wait()
        assert (tmp_path / "s").is_socket()
    async with running_bridge(*COMMAND, listen=address) as bridge, await bridge.connect() as client:
        await client.call("do")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("kind", ["file", "directory", "link", "link to nothing", "fifo"])
async def test_what_is_no_socket_is_never_touched(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "s"
    if kind == "file":
        path.write_text("precious")
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "target")
        if kind == "link":
            (tmp_path / "target").write_text("precious")
    before = path.lstat()
    done = await run_command("--listen", f"unix:{path}", "--", *COMMAND)
    assert done.code == 1
    assert done.stderr.count("\n") == 1
    after = path.lstat()
    assert (after.st_ino, after.st_mtime, after.st_size) == (before.st_ino, before.st_mtime, before.st_size)
    assert set(os.listdir(tmp_path)) <= {"s", "target"}


async def test_what_took_the_sockets_place_is_not_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with running_bridge(*COMMAND, listen=f"unix:{path}"):
        path.unlink()
        path.write_text("somebody else's")
    assert path.read_text() == "somebody else's"


async def test_the_path_of_a_bridge_that_was_replaced_stays_with_the_new_one(tmp_path: Path) -> None:
    """Reported: the race of two bridges for one path; the one that leaves takes nothing with it."""
    address = f"unix:{tmp_path}/s"
    async with running_bridge(*COMMAND, listen=address) as first:
        (tmp_path / "s").unlink()
        async with running_bridge(*COMMAND, listen=address) as second:
            await first.wait_log("deleted, moved or replaced", timeout=15)
            assert await first.stop() == 0
            async with await second.connect() as client:
                await client.call("do")


@pytest.mark.parametrize(("options", "mode"), [([], 0o600), (["--socket-mode", "0660"], 0o660)])
async def test_the_mode_of_a_socket_does_not_depend_on_the_umask(
    tmp_path: Path, options: list[str], mode: int
) -> None:
    """Reported: no option for the mode. Under umask 000 a socket would be open to everybody."""
    for mask in (0o000, 0o077):
        previous = os.umask(mask)
        try:
            async with running_bridge(*COMMAND, options=options, listen=f"unix:{tmp_path}/s"):
                os.umask(previous)
                assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == mode
        finally:
            os.umask(previous)


async def test_long_and_relative_paths_are_served(tmp_path: Path) -> None:
    """Reported: the limit of a socket's path, without the name and the limit in the message."""
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    async with running_bridge(*COMMAND, listen=f"unix:{deep}/s") as bridge, await bridge.connect() as client:
        await client.call("do")
    async with (
        running_bridge(*COMMAND, listen="unix:relative", cwd=tmp_path),
        await RawClient.connect(f"unix:{tmp_path}/relative") as client,
    ):
        await client.call("do")
    assert not (tmp_path / "relative").exists()


async def test_tcp_that_others_can_reach_needs_insecure() -> None:
    done = await run_command("--listen", "tcp:0.0.0.0:0", "--", *COMMAND)
    assert done.code == 2
    assert "--insecure" in done.stderr
    async with running_bridge(*COMMAND, options=["--insecure"], listen="tcp:0.0.0.0:0") as bridge:
        port = bridge.address.rpartition(":")[2]
        async with await RawClient.connect(f"tcp:127.0.0.1:{port}") as client:
            await client.call("do")
    done = await run_command("--listen", "tcp:127.0.0.1:0", "--admin", "tcp:0.0.0.0:0", "--", *COMMAND)
    assert done.code == 2
    assert "--insecure" in done.stderr


async def test_a_port_just_left_can_be_used_again_at_once() -> None:
    async with running_bridge(*COMMAND, listen="tcp") as bridge, await bridge.connect() as client:
        await client.call("do")
        address = bridge.address
        await bridge.stop()  # the bridge closes first: its side waits in TIME_WAIT
        await client.expect_eof()
    async with running_bridge(*COMMAND, listen=address) as bridge, await bridge.connect() as client:
        await client.call("do")


# Health, logs, imports.


async def get(address: str, path: str) -> tuple[int, dict[str, object]]:
    """One HTTP request; status and body."""
    host, _, port = address.removeprefix("tcp:").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


async def test_health_is_served_beside_the_clients_and_says_when_the_server_is_ready(tmp_path: Path) -> None:
    settings = [{}, {"start_delay_ms": 600}]
    variables = env(starts=tmp_path / "starts", settings=settings)
    options = ["--admin", "tcp:127.0.0.1:0", "--era", "modern"]
    async with running_bridge(*COMMAND, options=options, env=variables) as bridge:
        (line,) = await bridge.wait_log("health at")
        address = line.rpartition(" ")[2]
        await bridge.wait_log("the server is ready")
        assert (await get(address, "/healthz"))[0] == 200
        assert await get(address, "/readyz") == (200, {"ready": True, "state": "running"})
        async with await bridge.connect() as client:
            os.kill(content(await client.call("do"))["pid"], signal.SIGKILL)
            await bridge.wait_log("killed by SIGKILL")
            status, body = await get(address, "/readyz")
            assert (status, body["ready"]) == (503, False)
            assert (await get(address, "/healthz"))[0] == 200
            await client.call("do")
            assert (await get(address, "/readyz"))[0] == 200


async def test_json_logs_are_one_object_a_line() -> None:
    options = ["--log-format", "json", "--log-level", "debug"]
    async with running_bridge(
        *COMMAND, options=options, env=env(settings={"stderr": 'a "quoted" word'})
    ) as bridge:
        async with await bridge.connect() as client:
            await client.send(b"{bad \xff\x1b line\n")
            assert error_of(await client.recv())[0] == -32700
            await client.call("do", crash={"when": "after"})
            await client.call("do")
        await bridge.stop()
        own = [line for line in bridge.stderr_text().splitlines() if not line.startswith("[server]")]
        assert len(own) > 5
        assert all(isinstance(json.loads(line), dict) for line in own)


async def test_the_least_that_is_logged_is_an_option(tmp_path: Path) -> None:
    with contextlib.suppress(BridgeExited):
        async with running_bridge(
            *server_command("crash.py", "3"),
            options=["--log-level", "error", "--max-restarts", "1"],
            start_timeout=10,
        ):
            raise AssertionError("it cannot become ready: no line says where it listens")
    done = await run_command(
        *["--listen", f"unix:{tmp_path}/s", "--log-level", "error", "--max-restarts", "1"],
        *["--server-stderr", "null", "--", *server_command("crash.py", "3")],
    )
    assert done.code == 1
    assert len(done.stderr.splitlines()) == 1
    assert " error " in done.stderr


def imported(stderr: str) -> set[str]:
    """The top-level packages a process has imported, from what PYTHONPROFILEIMPORTTIME made it write."""
    own = [line for line in stderr.splitlines() if "[server]" not in line]
    return {
        line.rpartition("|")[2].strip().partition(".")[0] for line in own if line.startswith("import time:")
    }


async def test_each_command_imports_only_what_it_needs(tmp_path: Path) -> None:
    """A host starts `connect` for every session, and a bridge without --admin serves no HTTP."""
    profile = {"PYTHONPROFILEIMPORTTIME": "1"}
    async with running_bridge(*COMMAND, env=profile) as bridge:
        line = encode(modern_request("tools/list", id=1))
        done = await run_command("connect", bridge.address, input=line, env=profile)
        assert done.code == 0
        assert json.loads(done.stdout)["id"] == 1
        heavy = {"uvloop", "msgspec", "aiohttp", "asyncio", "logging", "argparse", "typing", "dataclasses"}
        assert imported(done.stderr) & heavy == set()
        assert "bridge" in imported(done.stderr)
        serving = imported(bridge.stderr_text())
        assert {"uvloop", "msgspec"} <= serving
        assert "aiohttp" not in serving
    async with running_bridge(*COMMAND, options=["--admin", "tcp:127.0.0.1:0"], env=profile) as bridge:
        assert "aiohttp" in imported(bridge.stderr_text())


async def test_connect_says_in_one_line_that_nobody_is_there(tmp_path: Path) -> None:
    done = await run_command("connect", f"unix:{tmp_path}/none")
    assert done.code == 1
    assert done.stdout == b""
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


async def test_connect_ends_with_an_error_when_the_bridge_goes(tmp_path: Path) -> None:
    async with running_bridge(*COMMAND) as bridge:
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "bridge", "connect", bridge.address],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(encode(modern_request("tools/list", id=1)))
        assert json.loads(await asyncio.wait_for(process.stdout.readline(), 10))["id"] == 1
        await bridge.stop()
        assert await asyncio.wait_for(process.wait(), 10) == 1
        assert (await process.stderr.read()).count(b"\n") == 1
        process.stdin.close()


async def test_a_bridge_that_is_being_started_can_be_stopped(tmp_path: Path) -> None:
    async with running_bridge(*COMMAND, listen=["unix", "tcp"], expect_exit=None) as bridge:
        bridge.signal(signal.SIGTERM)
        assert await bridge.wait() == 0
        await wait_until(lambda: not os.path.exists(bridge.address.removeprefix("unix:")))
