"""Short ways to say what the scripted server is to do, and to look at what it has received."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.support.bridge import wait_until
from tests.support.client import Message, RawClient

SCRIPT_KEY = "example.com/script"


def b64(*pieces: bytes) -> list[str]:
    """Bytes for `raw_before`, `raw_instead` and `raw_after`, each piece written by itself."""
    return [base64.b64encode(piece).decode() for piece in pieces]


def script(**steps: Any) -> Mapping[str, Any]:
    """`meta` of a request of any method: what the scripted server is to do with it."""
    return {SCRIPT_KEY: steps}


def content(response: Message) -> dict[str, Any]:
    """What a scripted server says about the call it answers."""
    seen: dict[str, Any] = response["result"]["structuredContent"]
    return seen


async def state(client: RawClient, id: Any = None) -> dict[str, Any]:
    """What the scripted server knows; its lines before this call have been handled."""
    return content(await client.call("state", id=id))


def error_of(response: Message) -> tuple[int, str, bool]:
    """An error of the bridge's own: code, reason, delivered."""
    error = response["error"]
    data = error["data"]
    assert data["source"] == "mcp-bridge"
    assert error["message"]
    return error["code"], data["reason"], data["delivered"]


def lines_of(path: Path) -> list[bytes]:
    """The lines in a record, or in the file that counts starts; none if it does not exist."""
    return path.read_bytes().splitlines(keepends=True) if path.exists() else []


async def recorded(path: Path, mark: str) -> bytes:
    """The first line with `mark` that the server has received, with its newline."""

    def found() -> bytes | None:
        data = path.read_bytes() if path.exists() else b""
        for line in data.split(b"\n")[:-1]:
            if mark.encode() in line:
                return line + b"\n"
        return None

    line: bytes = await wait_until(found, what=f"a line with {mark!r} at the server")
    return line


def env(*, record: Path | None = None, starts: Path | None = None, settings: Any = None) -> dict[str, str]:
    """The environment of a bridge whose scripted server is set up so."""
    variables: dict[str, str] = {}
    if record is not None:
        variables["RECORD"] = os.fspath(record)
    if starts is not None:
        variables["STARTS"] = os.fspath(starts)
    if settings is not None:
        variables["SCRIPT"] = json.dumps(settings)
    return variables


async def state_until(client: RawClient, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Ask for the server's state until it is as wanted; AssertionError after 10 s."""
    deadline = time.monotonic() + 10
    while True:
        seen = await state(client)
        if condition(seen):
            return seen
        assert time.monotonic() < deadline, f"the server's state did not become as wanted: {seen}"
        await asyncio.sleep(0.005)
