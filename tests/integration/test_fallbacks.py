"""Without what only Linux has: each feature switched off in the whole bridge, as macOS lacks it (section 8).

A `sitecustomize` takes the feature away from the interpreter before the bridge is loaded.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.bridge import ROOT, run_command, running_bridge, server_command
from tests.support.scripts import content, error_of, state_until

COMMAND = server_command("scripted.py")

OFF = {
    "pidfd": "import os\ndel os.pidfd_open\n",
    "waitid": "import os\ndel os.pidfd_open, os.waitid\n",
    "pipe sizes": "import fcntl\ndel fcntl.F_SETPIPE_SZ\n",
    "epoll": "import select\ndel select.epoll\n",
    "peer credentials": "import socket\ndel socket.SO_PEERCRED\n",
    "small ones": (
        "import resource, socket, time\n"
        "del time.pthread_getcpuclockid, resource.prlimit\n"
        "del socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT\n"
    ),
}
OFF["all of it"] = "".join(code for name, code in OFF.items() if name != "pidfd")


def without(feature: str, tmp_path: Path) -> dict[str, str]:
    """The environment of a bridge that has to do without."""
    (tmp_path / "sitecustomize.py").write_text(OFF[feature])
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}


@pytest.mark.parametrize("feature", OFF)
async def test_without_a_feature_of_linux_the_bridge_keeps_its_promises(tmp_path: Path, feature: str) -> None:
    variables = without(feature, tmp_path)
    async with running_bridge(*COMMAND, listen=["unix", "tcp"], env=variables) as bridge:
        for index in range(2):
            async with await bridge.connect(index) as client, await bridge.connect(index) as other:
                # A large message each way.
                assert "result" in await client.call("do", size=2_000_000, text="x" * 2_000_000)
                # A client that leaves takes its requests along, if only at the next sign of it.
                await other.start_call("do", hold="for ever")
                await state_until(client, lambda seen: len(seen["running"]) == 1)
                other.abort()
                await state_until(client, lambda seen: len(seen["running"]) == 0)
                # A server that is killed costs one error, and the next one serves.
                await client.start_call("do", id="lost", hold="for ever")
                os.kill(content(await client.call("do"))["pid"], signal.SIGKILL)
                assert error_of(await client.response("lost")) == (-31001, "server_exited", True)
                assert "result" in await client.call("do")
        # One that is only half dead is replaced, too.
        async with await bridge.connect() as client:
            for how in ("stdout", "stdin"):
                await client.call("do", close_stdout=how == "stdout", close_stdin=how == "stdin")
                await bridge.wait_log(f"closed its {how}")
                assert "result" in await client.call("do")
        assert await bridge.stop() == 0


@pytest.mark.parametrize("feature", ["pidfd", "waitid", "all of it"])
async def test_without_it_a_kill_of_the_bridge_leaves_nothing_either(tmp_path: Path, feature: str) -> None:
    command = server_command("deaf.py", "--grandchild")
    async with running_bridge(*command, env=without(feature, tmp_path), expect_exit=None) as bridge:
        async with await bridge.connect() as client:
            await client.call("do")
        bridge.signal(signal.SIGKILL)
        assert await bridge.wait() == -signal.SIGKILL
        await bridge.no_process_left()


async def test_without_peer_credentials_what_needs_them_is_refused(tmp_path: Path) -> None:
    variables = without("peer credentials", tmp_path)
    for listen, options in (("unix:@mcpb-none", []), (f"unix:{tmp_path}/s", ["--allow-uid", "0"])):
        done = await run_command("--listen", listen, *options, "--", *COMMAND, env=variables)
        assert done.code == 2
        assert "Linux" in done.stderr
        assert done.stderr.count("\n") == 1
