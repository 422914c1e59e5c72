"""The container and deployment files: linted, valid, and in agreement with each other and with the probe."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import sysconfig
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from bridge.address import parse_address
from bridge.admin import Health, start_admin

ROOT = Path(__file__).resolve().parents[2]
PROBE = ROOT / "deploy" / "probe.py"
DOCKERFILE = ROOT / "Dockerfile"
MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    return loaded


def pod() -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "sidecar.yaml").read_text())
    spec: dict[str, Any] = loaded["spec"]["template"]["spec"]
    return spec


def instructions(name: str) -> list[str]:
    """The arguments of every instruction `name` in the Dockerfile, continuation lines joined."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    return re.findall(rf"^{name} +(.*)$", text, re.MULTILINE)


def test_the_dockerfile_passes_hadolint() -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_the_manifests_are_valid_kubernetes(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        kubernetes_validate.validate(document, "1.37", strict=True)


def test_the_validator_would_notice_a_wrong_field() -> None:
    document = yaml.safe_load(MANIFESTS[0].read_text())
    document["spec"]["template"]["spec"]["initContainers"][0]["restartPolice"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, "1.37", strict=True)


def test_the_image_runs_the_command_as_an_unprivileged_user() -> None:
    assert instructions("USER") == ["10001:10001"]
    assert json.loads(instructions("ENTRYPOINT")[0]) == ["mcp-bridge"]
    assert instructions("HEALTHCHECK")[0].endswith('CMD ["mcp-bridge-probe", "healthz"]')


def test_the_image_installs_only_what_is_locked() -> None:
    """Every install either checks hashes or gets no index to take anything from."""
    installs = [
        part for run in instructions("RUN") for part in run.split("&&") if " install --no-cache" in part
    ]
    assert len(installs) == 3
    for command in installs:
        words = shlex.split(command)
        assert "--require-hashes" in words or "--no-index" in words, command


def test_the_image_context_has_what_the_dockerfile_copies() -> None:
    """The ignore file lists what may enter the image; a file it forgets breaks the build."""
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [line for line in instructions("COPY") if not line.startswith("--from")]
    sources = {source for line in copied for source in shlex.split(line)[:-1]}
    assert sources == allowed
    assert all((ROOT / source).exists() for source in sources)


@pytest.mark.parametrize("lock", ["build", "run", "sdk1", "test"])
def test_the_locks_hold_hashes_and_name_no_place(lock: str) -> None:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    assert "://" not in text
    for requirement in re.split(r"\n(?=\S)", text.strip()):
        assert "==" in requirement
        assert "--hash=sha256:" in requirement, requirement


def test_the_npm_lock_holds_hashes_and_names_no_place() -> None:
    text = (ROOT / "tests" / "real" / "node" / "package-lock.json").read_text()
    assert "://" not in text
    packages = json.loads(text)["packages"]
    assert all(
        package.get("integrity", "").startswith("sha512-") for name, package in packages.items() if name
    )


def test_compose_shares_the_socket_between_bridge_and_client() -> None:
    services = compose()["services"]
    bridge, client = services["bridge"], services["client"]
    assert bridge["volumes"] == client["volumes"] == ["socket:/run/mcp"]
    assert "socket" in compose()["volumes"]
    assert bridge["image"] == client["image"]
    assert client["depends_on"]["bridge"]["condition"] == "service_healthy"
    assert bridge["healthcheck"]["test"] == ["CMD", "mcp-bridge-probe", "healthz"]
    for service in (bridge, client):
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_compose_sends_one_line_of_json() -> None:
    request = compose()["services"]["client"]["environment"]["REQUEST"]
    assert "\n" not in request
    assert json.loads(request)["method"] == "tools/list"


def test_the_sidecar_runs_beside_the_application_as_the_same_user() -> None:
    """A socket of mode 0600 can be opened by its owner alone."""
    spec = pod()
    [sidecar], [app] = spec["initContainers"], spec["containers"]
    assert sidecar["restartPolicy"] == "Always"
    assert spec["securityContext"]["runAsUser"] == 10001
    for container in (sidecar, app):
        context = container["securityContext"]
        assert "runAsUser" not in context
        assert context["readOnlyRootFilesystem"]
        assert not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert {"name": "mcp-socket", "mountPath": "/run/mcp"} in container["volumeMounts"]


def _options(arguments: list[str], name: str) -> list[str]:
    before = arguments[: arguments.index("--")]
    return [value for option, value in pairwise(before) if option == name]


@pytest.mark.parametrize("where", ["image", "compose", "sidecar"])
def test_the_admin_endpoint_is_where_the_probes_look(where: str) -> None:
    arguments = {
        "image": lambda: json.loads(instructions("CMD")[0]),
        "compose": lambda: compose()["services"]["bridge"]["command"],
        "sidecar": lambda: pod()["initContainers"][0]["args"],
    }[where]()
    assert _options(arguments, "--admin") == ["unix:/run/mcp/admin.sock"]
    assert _options(arguments, "--listen") == ["unix:/run/mcp/mcp.sock"]
    assert 'DEFAULT_ADDRESS = "unix:/run/mcp/admin.sock"' in PROBE.read_text()


def probe(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, str(PROBE), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    return done.returncode, done.stdout.strip()


@pytest.mark.parametrize("kind", ["unix", "tcp"])
async def test_the_probe_tells_healthy_from_ready_at_the_admin_endpoint(kind: str, tmp_path: Path) -> None:
    """Against the bridge's own endpoint, so that neither can change without the other."""
    health = Health(ready=False, state="backoff")
    wanted = f"unix:{tmp_path}/a.sock" if kind == "unix" else "tcp:127.0.0.1:0"
    server = await start_admin(parse_address(wanted), lambda: health)
    try:
        [address] = map(str, server.addresses)
        code, line = await asyncio.to_thread(probe, "healthz", address)
        assert (code, line[:12]) == (0, "healthz: 200")
        code, line = await asyncio.to_thread(probe, "readyz", address)
        assert (code, line[:11]) == (1, "readyz: 503")
        assert "backoff" in line
        health = Health(ready=True, state="running")
        code, line = await asyncio.to_thread(probe, "readyz", address)
        assert (code, line[:11]) == (0, "readyz: 200")
    finally:
        await server.close()


@pytest.mark.parametrize("address", ["unix:/nowhere/admin.sock", "tcp:127.0.0.1:1", "udp:x", "unix:"])
def test_the_probe_fails_with_one_line_where_nobody_answers(address: str) -> None:
    code, line = probe("healthz", address)
    assert code == 1
    assert line.startswith(f"healthz: no answer from {address}: ")


def test_the_probe_gives_up_on_a_bridge_that_does_not_answer(tmp_path: Path) -> None:
    """A probe that hung would pile up processes in the container."""
    path = str(tmp_path / "a.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()  # takes connections into its backlog and serves nobody
        code, line = probe("healthz", f"unix:{path}")
    assert code == 1
    assert "timed out" in line


def test_the_probe_is_a_program() -> None:
    assert os.access(PROBE, os.X_OK)
    assert PROBE.read_text().startswith("#!/usr/bin/env python3\n")
