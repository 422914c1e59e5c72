"""The server's process: its end, its restart, its stop (section 8 of the contract)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.bridge import (
    ROOT,
    BridgeExited,
    RunningBridge,
    running_bridge,
    server_command,
    wait_until,
)
from tests.support.client import RawClient, subscription_of
from tests.support.scripts import content, env, error_of, lines_of, recorded, state, state_until

COMMAND = server_command("scripted.py")


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def starts(tmp_path: Path) -> Path:
    """The file in which a server counts its starts."""
    return tmp_path / "starts"


@contextlib.asynccontextmanager
async def served(
    *command: str, options: Sequence[str] = (), settings: Any = None, starts: Path | None = None, **more: Any
) -> AsyncIterator[tuple[RunningBridge, RawClient]]:
    """A bridge of the scripted server, and a client."""
    variables = env(settings=settings, starts=starts)
    async with (
        running_bridge(*(command or COMMAND), options=options, env=variables, **more) as bridge,
        await bridge.connect() as client,
    ):
        yield bridge, client


# Its end.


@pytest.mark.parametrize(
    ("crash", "answered"),
    [
        ({"when": "before", "code": 3}, False),
        ({"when": "before", "signal": 9}, False),
        ({"when": "before", "code": 0}, False),
        ({"when": "mid", "code": 0}, False),
        ({"when": "after", "signal": 11}, True),
        ({"when": "after", "code": 0}, True),
    ],
)
async def test_a_server_that_ends_costs_what_was_in_flight_one_error_and_the_next_one_serves_on(
    crash: dict[str, Any], answered: bool
) -> None:
    """Reported: the death was noticed, but calls ran into a timeout of minutes and nothing reconnected.

    An answer that was written before the end still comes.
    """
    async with served() as (bridge, client), await bridge.connect() as other:
        await client.start_call("do", id=1, hold="for ever")
        await other.start_call("do", id=1, hold="for ever")
        await state_until(other, lambda seen: len(seen["running"]) == 2)
        await client.start_call("do", id=2, crash=crash)
        got = {message["id"]: message for message in [await client.recv() for _ in range(2)]}
        assert error_of(got[1]) == (-31001, "server_exited", True)
        if answered:
            assert "result" in got[2]
        else:
            assert error_of(got[2]) == (-31001, "server_exited", True)
        assert error_of(await other.recv()) == (-31001, "server_exited", True)
        # No connection closes, and each one is served by the next process.
        for one in (client, other):
            assert "result" in await one.call("do", id=1)
            assert one.unread == []


async def test_a_killed_server_is_noticed_while_it_is_idle_and_started_again(starts: Path) -> None:
    async with served(starts=starts) as (bridge, client):
        pid = content(await client.call("do"))["pid"]
        os.kill(pid, signal.SIGKILL)
        await bridge.wait_log("killed by SIGKILL")
        assert content(await client.call("do"))["start"] == 2


async def test_requests_that_wait_while_it_is_down_are_answered_by_the_next_process(starts: Path) -> None:
    settings = [{}, {"start_delay_ms": 300}]
    async with served(starts=starts, settings=settings) as (bridge, client):
        await client.call("do", crash={"when": "after", "code": 1})
        await bridge.wait_log("exit status 1")
        for id in range(50):
            await client.start_call("do", id=id)
        assert [content(await client.response(id))["start"] for id in range(50)] == [2] * 50
        assert bridge.stderr_text().count("started again") == 1, "one line a change of state"


async def test_a_server_that_ended_in_order_is_started_when_somebody_needs_it(starts: Path) -> None:
    """Reported: exit status 0 was not seen as something to recover from."""
    async with served(starts=starts) as (bridge, client):
        for start in range(2, 5):
            await client.call("do", crash={"when": "after", "code": 0})
            await bridge.wait_log("ended: exit status 0", count=start - 1)
            # A notification is no need.
            await client.send({"jsonrpc": "2.0", "method": "notifications/x"})
            assert content(await client.call("do"))["start"] == start


async def test_a_server_that_ends_before_anybody_needs_it_waits_for_need(starts: Path) -> None:
    async with served(starts=starts, settings=[{"exit": 0}, {}]) as (bridge, client):
        await bridge.wait_log("ended: exit status 0")
        await bridge.wait_log("when somebody needs it")
        assert len(lines_of(starts)) == 1
        assert content(await client.call("do"))["start"] == 2


async def test_a_server_that_fails_a_few_starts_and_recovers_serves_who_waited(starts: Path) -> None:
    """Reported: no back-off, no ceiling, and the previous start was not awaited."""
    command = server_command("crash.py", "7")
    variables = {"STARTS": str(starts), "UNTIL": "4"}
    async with running_bridge(*command, env=variables) as bridge, await bridge.connect() as client:
        assert content(await client.call("do"))["start"] == 4
        delays = [float(found) for found in re.findall(r"again in ([\d.]+) s", bridge.stderr_text())]
        assert len(delays) == 3
        assert delays == sorted(delays)
        assert len(bridge.server_pids("crash.py")) == 1


@pytest.mark.parametrize(("code", "said"), [("3", "exit status 3"), ("-9", "SIGKILL")])
async def test_a_server_that_never_starts_ends_the_bridge_with_its_last_words(
    starts: Path, code: str, said: str
) -> None:
    """Hazard: a crash loop. Five failed starts in a row, then one message and exit 1."""
    command = server_command("crash.py", code)
    async with running_bridge(*command, env={"STARTS": str(starts)}, expect_exit=None) as bridge:
        assert await bridge.wait(timeout=20) == 1
        assert len(lines_of(starts)) == 5
        text = bridge.stderr_text()
        assert said in text
        assert "| crash.py: start 5" in text
        assert "5 times in a row" in text


async def test_the_number_of_failed_starts_is_an_option_and_a_client_is_told(starts: Path) -> None:
    # It does not crash before there is a client: the bridge ends with the second time.
    go = starts.with_name("go")
    wait = f'until [ -e {go} ]; do sleep 0.05; done; exec "$@"'
    command = ["/bin/sh", "-c", wait, "sh", *server_command("crash.py", "3")]
    options = ["--max-restarts", "2"]
    async with running_bridge(
        *command, options=options, env={"STARTS": str(starts)}, expect_exit=None
    ) as bridge:
        async with await bridge.connect() as client:
            await client.start_call("do", id=1)
            go.touch()
            lines = await client.expect_eof()
        assert [error_of(json.loads(line)) for line in lines] == [(-31005, "shutting_down", False)]
        assert await bridge.wait() == 1
        assert len(lines_of(starts)) == 2


@pytest.mark.parametrize(
    ("make", "code", "said"),
    [
        (None, 127, "not found"),
        ("#!/bin/sh\n", 126, "permission denied"),
        ("#!/no/such/interpreter\n", 126, "interpreter"),
        ("", 126, "directory"),
    ],
    ids=["missing", "not executable", "no interpreter", "directory"],
)
async def test_a_command_that_cannot_be_run_ends_the_bridge_at_once_with_one_line(
    tmp_path: Path, make: str | None, code: int, said: str
) -> None:
    command = tmp_path / "server"
    if make == "":
        command.mkdir()
    elif make is not None:
        command.write_text(make)
        if "no/such" in make:
            command.chmod(0o755)
    with contextlib.suppress(BridgeExited):
        async with running_bridge(str(command), "--token=hunter2", expect_exit=None) as bridge:
            assert await bridge.wait() == code
            lines = [line for line in bridge.stderr_text().splitlines() if " info " not in line]
            assert len(lines) == 1
            assert said in lines[0]
            assert "hunter2" not in bridge.stderr_text()
            return
    raise AssertionError("it listens before it starts its server")


async def test_a_command_that_is_gone_after_the_first_start_is_a_failed_start(tmp_path: Path) -> None:
    command = tmp_path / "server"
    command.write_text(f"#!/bin/sh\nexec {' '.join(COMMAND)}\n")
    command.chmod(0o755)
    async with served(str(command)) as (bridge, client):
        await client.call("do")
        command.rename(tmp_path / "away")
        await client.start_call("do", id=1, crash={"when": "before"})
        await client.recv()
        await bridge.wait_log("could not be started")
        (tmp_path / "away").rename(command)
        assert "result" in await client.call("do")


async def test_restart_never_ends_the_bridge_with_its_server() -> None:
    async with served(options=["--restart", "never"], expect_exit=None) as (bridge, client):
        await client.start_call("do", id=1, crash={"when": "before", "code": 7}, stderr="famous last words")
        assert error_of(await client.recv())[:2] == (-31001, "server_exited")
        await client.expect_eof()
        assert await bridge.wait() == 1
        assert "exit status 7" in bridge.stderr_text()
        assert "| famous last words" in bridge.stderr_text()


async def test_who_waits_for_a_server_too_long_is_told_that_it_never_saw_the_request(starts: Path) -> None:
    """-31001 with `delivered: true` comes at once; -31002 with `delivered: false` after --restart-wait."""
    settings = [{}, {"exit": 1}, {"exit": 1}, {"exit": 1}, {"exit": 1}, {}]
    options = ["--restart-wait", "0.3", "--max-restarts", "50"]
    async with served(starts=starts, settings=settings, options=options) as (_, client):
        await client.start_call("do", id="delivered", crash={"when": "before"})
        assert error_of(await client.response("delivered")) == (-31001, "server_exited", True)
        await client.start_call("do", id="waits")
        assert error_of(await client.response("waits")) == (-31002, "server_unavailable", False)
        await wait_until(lambda: len(lines_of(starts)) >= 6, timeout=15)
        assert "result" in await client.call("do", id="served again")


# How it can be half dead.


async def test_a_server_that_closes_stdout_is_replaced(starts: Path) -> None:
    async with served(starts=starts) as (bridge, client):
        await client.start_call("do", id="lost", hold="for ever")
        pid = content(await client.call("do", close_stdout=True))["pid"]
        assert error_of(await client.response("lost")) == (-31001, "server_exited", True)
        assert not alive(pid)
        assert content(await client.call("do"))["start"] == 2
        assert "closed its stdout" in bridge.stderr_text()


async def test_a_server_that_closes_stdin_is_replaced_before_anything_is_written(starts: Path) -> None:
    async with served(starts=starts) as (bridge, client):
        pid = content(await client.call("do", close_stdin=True))["pid"]
        await bridge.wait_log("closed its stdin")
        assert not alive(pid)
        assert content(await client.call("do"))["start"] == 2


@pytest.mark.parametrize("ignore_term", [False, True])
async def test_a_grandchild_that_keeps_the_pipes_open_hides_no_death_and_goes_with_its_group(
    starts: Path, ignore_term: bool
) -> None:
    async with served(starts=starts) as (_, client):
        order = {"hold_stdout": True, "ignore_term": ignore_term}
        answer = await client.call("do", spawn=order, crash={"when": "after", "signal": 9})
        seen = content(answer)
        await wait_until(lambda: not alive(seen["pid"]))
        await client.send(b"{}\n")
        await client.recv()  # the bridge knows of the exit by now, and is still reading stdout
        assert content(await client.call("do"))["start"] == 2
        assert not alive(seen["grandchild"])


async def test_a_server_that_floods_stderr_is_never_blocked_by_it() -> None:
    """Reported: an unread stderr pipe blocks the server after 64 KiB, and it looks merely silent."""
    async with served() as (bridge, client):
        assert "result" in await client.call("do", stderr_bytes=4 * 1024 * 1024)
        assert "result" in await client.call("do", stderr_bytes=1024 * 1024, stderr_endless=True)
        await client.call("do", stderr="the last line")
        relayed = [line for line in bridge.stderr_text().splitlines() if "[server]" in line]
        assert 100 < len(relayed) < 2000, "rate-limited"


@pytest.mark.parametrize("flood", ["x\\n", "{}\\n", "\\0"])
async def test_a_server_that_never_stops_writing_starves_nobody_and_can_be_stopped(flood: str) -> None:
    """Section 8: all within 10 s, whatever the server does; the loop would read 8 MiB from it at a time."""
    code = f"import os\nwhile True: os.write(1, b'{flood}' * 32768)"
    async with running_bridge(sys.executable, "-c", code) as bridge:
        await bridge.wait_log("the server wrote a line that is no message" if "n" in flood else "server runs")
        async with await bridge.connect() as client:
            for _ in range(3):
                assert "result" in await client.legacy_request("ping")
        assert await bridge.stop() == 0


async def test_its_stderr_is_relayed_line_by_line_with_a_mark() -> None:
    async with served(settings={"stderr": "one\n\x1b[31mtwo"}) as (bridge, client):
        await client.call("do", stderr="three")
        lines = [line.partition("[server] ")[2] for line in await bridge.wait_log(r"\[server\]", count=3)]
        assert lines[0] == "one"
        assert lines[1].endswith("two")
        assert lines[2] == "three"


async def test_its_stderr_can_be_inherited_or_dropped() -> None:
    for how, expected in (("inherit", True), ("null", False)):
        async with served(options=["--server-stderr", how], settings={"stderr": "raw words"}) as (
            bridge,
            client,
        ):
            await client.call("do", stderr_bytes=200_000)
            assert ("raw words\n" in bridge.stderr_text()) is expected
            assert "[server]" not in bridge.stderr_text()


# What it is given.


async def test_it_gets_the_environment_and_the_directory_it_was_given(tmp_path: Path) -> None:
    """Reported: allow-lists of variables that were too short. Everything is passed but the bridge's own."""
    script = tmp_path / "server"
    script.write_text(f"#!/bin/sh\nenv > {tmp_path}/env\npwd > {tmp_path}/pwd\nexec {' '.join(COMMAND)}\n")
    script.chmod(0o755)
    (tmp_path / "work").mkdir()
    options = [
        "--env",
        "FOO=bar=baz",
        "--env",
        "EMPTY=",
        "--env",
        "HOME=/example",
        "--cwd",
        str(tmp_path / "work"),
    ]
    variables = {"INHERITED": "yes", "LISTEN_FDS": "3", "NOTIFY_SOCKET": "@x", "LISTEN_PID": "1"}
    async with (
        running_bridge("../server", options=options, env=variables) as bridge,
        await bridge.connect() as client,
    ):
        await client.call("do")
    seen = (tmp_path / "env").read_text().splitlines()
    assert {"FOO=bar=baz", "EMPTY=", "HOME=/example", "INHERITED=yes"} <= set(seen)
    assert not any(line.startswith(("LISTEN_", "NOTIFY_SOCKET")) for line in seen)
    assert (tmp_path / "pwd").read_text().strip() == str((tmp_path / "work").resolve())


async def test_it_has_three_descriptors_and_a_session_of_its_own() -> None:
    async with served(listen=["unix", "tcp"]) as (bridge, client):
        pid = content(await client.call("do"))["pid"]
        open_there = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
        assert open_there <= {0, 1, 2}
        assert os.getsid(pid) == pid == os.getpgid(pid)
        assert os.getsid(pid) != os.getsid(bridge.pid)


async def test_its_arguments_and_variables_are_not_logged(starts: Path) -> None:
    options = ["--env", "TOKEN=hunter2"]
    async with served(*COMMAND, "--password=hunter3", options=options, starts=starts) as (bridge, client):
        await client.call("hunter4", crash={"when": "after"})
        await client.call("do")
        assert not re.search("hunter", bridge.stderr_text())


# Stopping.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_answers_what_is_in_flight_and_refuses_what_comes(number: signal.Signals) -> None:
    async with served() as (bridge, client), await bridge.connect() as other:
        await client.listen(id="l", toolsListChanged=True)
        await client.start_call("do", id=1, hold="drain")
        await state_until(other, lambda seen: len(seen["running"]) == 1)
        path = bridge.address.removeprefix("unix:")
        bridge.signal(number)
        ended = await client.recv()
        assert (ended["id"], subscription_of(ended), ended["result"]["resultType"]) == ("l", "l", "complete")
        await wait_until(lambda: not os.path.exists(path), what="the socket is gone")
        with pytest.raises(OSError):  # noqa: PT011 - refused or not there
            await bridge.connect()
        await other.start_call("do", id="new")
        assert error_of(await other.recv()) == (-31005, "shutting_down", False)
        os.kill(bridge.pid, 0)
        # What was in flight ends by itself; a server that is asked to is still spoken to.
        await client.cancel(1)
        assert [json.loads(line) for line in await client.expect_eof()] == []
        assert await bridge.wait() == 0


async def test_a_request_that_ends_while_the_bridge_stops_is_answered(tmp_path: Path) -> None:
    async with served() as (bridge, client):
        await client.start_call("do", id=1, delay_ms=400)
        await state_until(client, lambda seen: len(seen["running"]) == 1)
        bridge.signal(signal.SIGTERM)
        assert "result" in await client.response(1)
        assert await client.expect_eof() == []
        assert await bridge.wait() == 0


async def test_what_does_not_end_in_time_gets_its_error_and_queued_requests_theirs() -> None:
    options = ["--drain", "0.3", "--max-in-flight", "2"]
    async with served(options=options) as (bridge, client):
        for id in range(2):
            await client.start_call("do", id=id, hold="for ever")
        await client.start_call("queued", id="queued")
        async with await bridge.connect() as other:
            await state_until(other, lambda seen: len(seen["running"]) == 2)
        bridge.signal(signal.SIGTERM)
        assert error_of(await client.response("queued")) == (-31005, "shutting_down", False)
        for id in range(2):
            assert error_of(await client.response(id)) == (-31005, "shutting_down", True)
        assert await client.expect_eof() == []
        assert await bridge.wait() == 0


async def test_a_second_signal_skips_the_drain() -> None:
    async with served(options=["--drain", "3600"]) as (bridge, client):
        await client.start_call("do", id=1, hold="for ever")
        await state_until(client, lambda seen: len(seen["running"]) == 1)
        bridge.signal(signal.SIGTERM)
        await bridge.wait_log("stopping")
        bridge.signal(signal.SIGTERM)
        assert error_of(await client.response(1)) == (-31005, "shutting_down", True)
        assert await bridge.wait(timeout=8) == 0


async def test_sigquit_shows_the_stacks_and_stops_at_once() -> None:
    async with served(options=["--drain", "3600"], expect_exit=None) as (bridge, client):
        pid = content(await client.call("do"))["pid"]
        await client.start_call("do", id=1, hold="for ever")
        await state_until(client, lambda seen: len(seen["running"]) == 1)
        bridge.signal(signal.SIGQUIT)
        assert await bridge.wait(timeout=8) == 1
        assert "thread MainThread (most recent call last)" in bridge.stderr_text()
        assert not alive(pid)


async def test_the_server_is_stopped_by_the_end_of_its_input_first(tmp_path: Path) -> None:
    """Reported: only SIGTERM, or a plain kill. Grace times are options."""
    record = tmp_path / "record"
    code = (
        "import os, signal, sys, time\n"
        f"log = open({str(record)!r}, 'a', buffering=1)\n"
        "signal.signal(signal.SIGTERM, lambda *_: log.write('term\\n'))\n"
        "sys.stdin.read(); log.write('eof\\n'); print('still heard', flush=True)\n"
        "for _ in range(2000): time.sleep(0.01)\n"
    )
    command = [sys.executable, "-S", "-c", code]
    async with running_bridge(*command, options=["--stop-grace", "0.2"]) as bridge:
        await wait_until(record.exists)
        assert await bridge.stop() == 0
    assert record.read_text() == "eof\nterm\n"


async def test_a_deaf_server_and_its_grandchild_are_killed() -> None:
    command = server_command("deaf.py", "--grandchild")
    async with running_bridge(*command, options=["--stop-grace", "0.1"]) as bridge:
        async with await bridge.connect() as client:
            seen = content(await client.call("do"))
        began = time.monotonic()
        assert await bridge.stop() == 0
        assert time.monotonic() - began < 10, "the contract's bound"
        assert not alive(seen["pid"])
        assert not alive(seen["grandchild"])


async def test_a_stop_while_the_server_starts_or_waits_to_be_started_leaves_nothing(starts: Path) -> None:
    settings = [{"start_delay_ms": 60_000, "ignore_term": True}]
    async with running_bridge(
        *COMMAND, env=env(settings=settings), options=["--stop-grace", "0.1"]
    ) as bridge:
        await wait_until(lambda: bridge.server_pids())
        assert await bridge.stop() == 0
    command = server_command("crash.py", "1")
    async with running_bridge(*command, env={"STARTS": str(starts)}) as bridge:
        await bridge.wait_log("again in")
        assert await bridge.stop() == 0


async def test_kill_9_of_the_bridge_leaves_nothing_behind() -> None:
    """Reported: a thousand orphans. Also a deaf server with a grandchild, which sees no end of input."""
    command = server_command("deaf.py", "--grandchild")
    async with running_bridge(*command, expect_exit=None) as bridge:
        async with await bridge.connect() as client:
            seen = content(await client.call("do"))
        bridge.signal(signal.SIGKILL)
        assert await bridge.wait() == -signal.SIGKILL
        await bridge.no_process_left()
        assert not alive(seen["grandchild"])


async def test_kill_9_of_a_wrapper_alone_takes_what_it_started_with_it(starts: Path) -> None:
    """Reported: the wrapper in between (`npx`, `uvx`) hid the parent's death from the server."""
    wrapper = ["/bin/sh", "-c", '"$@"; exit $?', "sh", *COMMAND]
    async with served(*wrapper, starts=starts) as (bridge, client):
        inner = content(await client.call("do"))["pid"]
        outer = os.getpgid(inner)
        assert outer != inner
        os.kill(outer, signal.SIGKILL)
        await bridge.wait_log("killed by SIGKILL")
        assert content(await client.call("do"))["start"] == 2
        assert not alive(inner)


@contextlib.contextmanager
def started_by_a_shell(prefix: str, redirect: str, address: str) -> Iterator[subprocess.Popen[bytes]]:
    """A bridge that a shell starts with descriptors or limits of its own choice; its output goes nowhere."""
    argv = [sys.executable, "-m", "bridge", "--listen", address, "--", *COMMAND]
    process = subprocess.Popen(
        ["/bin/sh", "-c", f'{prefix} exec "$@" {redirect}', "sh", *argv],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        yield process
        assert process.stdout.read() == b""
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_a_bridge_that_may_open_few_files_keeps_some_for_its_server(tmp_path: Path) -> None:
    """Hazard: as many clients as there are descriptors, and the server that crashed could not be started."""
    path = tmp_path / "s"
    with started_by_a_shell("ulimit -n 70;", "", f"unix:{path}") as process:
        await wait_until(path.exists)
        address = f"unix:{path}"
        clients = [await RawClient.connect(address) for _ in range(100)]
        first, *rest = clients
        assert error_of(await first.call("do", crash={"when": "before"}))[0] == -31001
        assert "result" in await first.call("do")
        assert error_of(await rest[-1].recv()) == (-31003, "too_many_clients", False)
        for client in rest:
            client.close()

        async def newcomer() -> None:
            while True:
                async with await RawClient.connect(address) as client:
                    await client.start_call("do", id=1)
                    if (await client.recv()).get("id") == 1:
                        return

        await asyncio.wait_for(newcomer(), 10)
        first.close()
        process.terminate()
        assert await asyncio.to_thread(process.wait, 10) == 0


@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/full", "<&-", ">&-", "<&- >&- 2>&-"])
async def test_a_standard_descriptor_that_is_closed_or_full_costs_nobody_anything(
    tmp_path: Path, redirect: str
) -> None:
    """No log goes into a client's socket that has got the number, and the end is in order."""
    path = tmp_path / "s"
    with started_by_a_shell("", redirect, f"unix:{path}") as process:
        await wait_until(path.exists)
        async with await RawClient.connect(f"unix:{path}") as client:
            for id in range(3):
                answer = await client.call("do", id=id, stderr_bytes=200_000)
                assert "result" in answer
            await client.send(b"{bad\n")
            assert (await client.recv())["error"]["code"] == -32700
        process.terminate()
        assert await asyncio.to_thread(process.wait, 10) == 0
        assert not path.exists()


async def test_a_server_that_burns_time_while_it_fails_starves_nobody(starts: Path) -> None:
    """Reported: a server that spins and then exits starved the gateway. Back-off counts from its end."""
    code = (
        "import sys, time\n"
        f"open({str(starts)!r}, 'a').write('x\\n')\n"
        "end = time.monotonic() + 0.2\n"
        "while time.monotonic() < end: pass\n"
        "sys.exit(1)\n"
    )
    async with running_bridge(sys.executable, "-S", "-c", code) as bridge, await bridge.connect() as client:
        await bridge.wait_log("again in", count=2)
        await client.send(b"{}\n")
        assert error_of(await client.recv())[0] == -32600
        assert len(bridge.server_pids("time.monotonic")) <= 1
        assert len(lines_of(starts)) <= 4


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_what_only_reads_is_sent_once_more_if_that_is_allowed(starts: Path, era: str) -> None:
    """`--replay safe`: the read that killed its server twice gets its error, a call after the first time."""
    settings = {"era": era, "methods": {"resources/read": {"crash": {"when": "before"}}}}
    options = ["--replay", "safe"]
    async with (
        running_bridge(
            *COMMAND, options=options, env=env(starts=starts, settings=[settings, {"era": era}])
        ) as bridge,
        await bridge.connect() as client,
    ):
        if era == "legacy":
            await client.initialize()
        ask = client.request if era == "modern" else client.legacy_request
        answer = await ask("resources/read", {"uri": "x://"}, id="read")
        assert "result" in answer
        assert len(lines_of(starts)) == 2
    async with (
        running_bridge(*COMMAND, options=options, env=env(settings=[settings])) as bridge,
        await bridge.connect() as client,
    ):
        if era == "legacy":
            await client.initialize()
        ask = client.request if era == "modern" else client.legacy_request
        assert error_of(await ask("resources/read", {"uri": "x://"})) == (-31001, "server_exited", True)
        call = {"name": "do", "arguments": {"crash": {"when": "before"}}}
        assert error_of(await ask("tools/call", call)) == (-31001, "server_exited", True)


async def test_sighup_does_not_end_the_bridge() -> None:
    async with served() as (bridge, client):
        bridge.signal(signal.SIGHUP)
        await bridge.wait_log("SIGHUP")
        assert "result" in await client.call("do")


async def test_what_was_sent_before_a_crash_reaches_the_next_process_only_if_it_was_never_written(
    tmp_path: Path, starts: Path
) -> None:
    """Nothing a client sent runs twice."""
    record = tmp_path / "record"
    variables = env(record=record, starts=starts)
    options = ["--max-in-flight", "3"]
    async with (
        running_bridge(*COMMAND, options=options, env=variables) as bridge,
        await bridge.connect() as client,
    ):
        for id in range(10):
            await client.start_call("do", id=id, hold="x" if id < 3 else "", mark=f"number {id}.")
        await recorded(record, "number 2.")
        async with await bridge.connect() as other:
            seen = await state(other)
            os.kill(seen["pid"], signal.SIGKILL)
        for id in range(3):
            assert error_of(await client.response(id)) == (-31001, "server_exited", True)
        lines = await wait_until(lambda: (found := record.read_bytes()).count(b"number") >= 6 and found)
        await client.cancel(3)
        assert lines
        client.close()
    found = re.findall(rb"number (\d)", record.read_bytes())
    assert len(found) == len(set(found)), "no request was written twice"
