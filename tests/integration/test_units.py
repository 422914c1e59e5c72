"""The systemd units: read, checked against what the bridge needs, and their very command run.

systemd itself is in no container image, so that the checks are made here; where `systemd-analyze` is
installed it is asked as well.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.address import parse_address
from bridge.options import parse
from tests.support.bridge import ROOT, RunningBridge, running_bridge, server_command, wait_until
from tests.support.client import RawClient

UNITS = ROOT / "deploy" / "systemd"
SYSTEM = UNITS / "mcp-bridge@.service"
SERVICES = [SYSTEM, UNITS / "user" / "mcp-bridge@.service"]
ALL = sorted(UNITS.rglob("mcp-bridge@.*"))
COMMAND = server_command("scripted.py")

# What systemd.unit(5), systemd.socket(5), systemd.service(5), systemd.exec(5) and systemd.kill(5) know of, as
# far as these units use it: a name outside is a typing mistake, which systemd only logs.
KNOWN = {
    "Unit": {"Description", "Requires", "After"},
    "Install": {"WantedBy"},
    "Socket": {
        *("ListenStream", "FileDescriptorName", "SocketMode", "SocketGroup", "DirectoryMode", "Backlog"),
        "RemoveOnStop",
    },
    "Service": {
        *("Type", "NotifyAccess", "EnvironmentFile", "Environment", "ExecStart", "ExecReload", "WatchdogSec"),
        *(
            "Restart",
            "KillMode",
            "TimeoutStopSec",
            "DynamicUser",
            "User",
            "StateDirectory",
        ),
        *("CacheDirectory", "WorkingDirectory", "UMask", "NoNewPrivileges", "CapabilityBoundingSet"),
        *(
            "AmbientCapabilities",
            "ProtectSystem",
            "ProtectHome",
            "PrivateTmp",
            "PrivateMounts",
            "PrivateDevices",
        ),
        *("PrivateUsers", "ProtectClock", "ProtectControlGroups", "ProtectHostname", "ProtectKernelLogs"),
        *("ProtectKernelModules", "ProtectKernelTunables", "ProtectProc", "RestrictAddressFamilies"),
        *("RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID", "RemoveIPC", "LockPersonality"),
        *("KeyringMode", "SystemCallArchitectures", "SystemCallFilter", "SystemCallErrorNumber"),
    },
}


def read(path: Path) -> dict[str, dict[str, str]]:
    """Section to name to value. Each name stands once, so that nothing is overridden by mistake."""
    unit: dict[str, dict[str, str]] = {}
    section: dict[str, str] = {}
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = unit.setdefault(match[1], {})
            continue
        name, equals, value = line.partition("=")
        assert equals, line
        assert name not in section, line
        section[name] = value
    return unit


def named(path: Path) -> str:
    return str(path.relative_to(UNITS))


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short path, for socket addresses."""
    with tempfile.TemporaryDirectory(prefix="mb-") as path:
        yield Path(path)


def command_of(service: Path) -> list[str]:
    """What `ExecStart=` runs with the test's server as $COMMAND, split as systemd does."""
    words = shlex.split(read(service)["Service"]["ExecStart"])
    assert words[0].endswith("/bin/mcp-bridge")
    assert words[-2:] == ["--", "$COMMAND"]
    return [*words[1:-1], *COMMAND]


@pytest.mark.parametrize("path", ALL, ids=named)
def test_every_directive_is_one_that_systemd_knows(path: Path) -> None:
    unit = read(path)
    kind = {".socket": "Socket", ".service": "Service"}[path.suffix]
    assert set(unit) <= {"Unit", kind, "Install"}
    for section, values in unit.items():
        assert set(values) <= KNOWN[section], section


@pytest.mark.parametrize("service", SERVICES, ids=named)
def test_a_service_fits_its_socket_and_the_bridges_promises(service: Path) -> None:
    unit, socket_unit = read(service), read(service.with_suffix(".socket"))
    assert unit["Unit"]["Requires"] == unit["Unit"]["After"] == "mcp-bridge@%i.socket"
    settings = parse(command_of(service))
    name = socket_unit["Socket"]["FileDescriptorName"]
    assert settings.listen == (parse_address(f"systemd:{name}"),)
    values = unit["Service"]
    # Ready by READY=1; SIGTERM to the bridge alone, which needs its time; SIGHUP replaces the server.
    assert values["Type"] == "notify"
    assert values["NotifyAccess"] == "main"
    assert values["KillMode"] == "mixed"
    assert values["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert (settings.drain, settings.stop_grace) == (5.0, 1.0), "all within 10 s, if these are the defaults"
    assert float(values["TimeoutStopSec"]) > 10
    # The loop must not hang for as long as its watchdog needs to show where, before systemd ends it.
    assert float(values["WatchdogSec"]) > 2 * 7
    # Who gives up is not started again and again: the next connection does that.
    assert values["Restart"] == "on-abnormal"


def test_the_machine_wide_service_gives_up_what_a_server_does_not_need() -> None:
    values = read(SYSTEM)["Service"]
    assert values["DynamicUser"] == "yes"
    assert values["User"] == "mcp-%i"  # else all instances are one user, which may signal and read the others
    assert values["CapabilityBoundingSet"] == values["AmbientCapabilities"] == ""
    assert values["ProtectSystem"] == "strict"
    assert values["SystemCallFilter"] == "@system-service"
    switches = [name for name in values if re.match("NoNew|Protect|Private|Restrict(?!Addr)|Lock", name)]
    assert {values[name] for name in switches} <= {"yes", "strict", "invisible"}
    assert len(switches) >= 18
    assert "MemoryDenyWriteExecute" not in values  # Node.js


@pytest.mark.parametrize("path", [p for p in ALL if p.suffix == ".socket"], ids=named)
def test_a_socket_is_for_its_user_or_a_group_alone(path: Path) -> None:
    values = read(path)["Socket"]
    assert parse_address("unix:" + values["ListenStream"].replace("%i", "x").replace("%t", "/run")).path
    mode = int(values["SocketMode"], 8)
    assert mode & 0o007 == 0
    assert (mode == 0o660) is ("SocketGroup" in values)
    assert values["RemoveOnStop"] == "yes"  # the bridge never removes what it was handed


@pytest.mark.parametrize("service", SERVICES, ids=named)
async def test_the_very_command_of_a_service_serves_its_socket(service: Path, place: Path) -> None:
    name = read(service.with_suffix(".socket"))["Socket"]["FileDescriptorName"]
    activator = [sys.executable, "-S", str(ROOT / "tests" / "support" / "activator.py")]
    listen, address, *_ = command_of(service)
    assert listen == "--listen"
    wrapper = [*activator, f"unix:{place}/s={name}", "--"]
    async with running_bridge(*COMMAND, listen=address, wrapper=wrapper) as bridge:
        await answers(bridge, place)


async def answers(bridge: RunningBridge, place: Path) -> None:
    await wait_until(lambda: "listening on" in bridge.stderr_text())
    async with await RawClient.connect(f"unix:{place}/s") as client:
        assert "result" in await client.call("do")


def test_systemd_itself_finds_nothing_wrong(tmp_path: Path, place: Path) -> None:
    """Where it is installed; the other tests do not need it."""
    tool = shutil.which("systemd-analyze")
    for folder, options in ((UNITS, []), (UNITS / "user", ["--user"])) if tool else ():
        copies = tmp_path / (options[0] if options else "system")
        copies.mkdir()
        for path in folder.glob("mcp-bridge@.*"):
            # The command need not be installed where the units look for it.
            text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", path.read_text())
            (copies / path.name).write_text(text)
        done = subprocess.run(
            [str(tool), "verify", *options, *map(str, copies.iterdir())],
            env={**os.environ, "XDG_RUNTIME_DIR": str(place)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
    if tool:
        # 10 times the score that `security` shows: what the README says, and a bit for other versions.
        argv = [tool, "security", "--offline=true", "--threshold=25", str(SYSTEM)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout
