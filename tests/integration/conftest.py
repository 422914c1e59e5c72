"""A bridge that several tests of a module share, where sharing it does not weaken them.

It serves the scripted server on a Unix socket and on TCP. A test that ends the server, or fills the bridge,
runs its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.bridge import RunningBridge, running_bridge, server_command
from tests.support.client import RawClient
from tests.support.scripts import env


@dataclass
class Shared:
    """The bridge, and the file its server records every received byte in."""

    bridge: RunningBridge
    record: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shared]:
    record = tmp_path_factory.mktemp("shared") / "record"
    command = server_command("scripted.py")
    async with running_bridge(*command, listen=["unix", "tcp"], env=env(record=record)) as bridge:
        yield Shared(bridge, record)


@pytest.fixture(params=["unix", "tcp"])
def transport(request: pytest.FixtureRequest) -> int:
    """The number of the shared bridge's listener."""
    return ["unix", "tcp"].index(request.param)


@pytest_asyncio.fixture
async def client(shared: Shared, transport: int) -> AsyncIterator[RawClient]:
    """A client of the shared bridge, once by each kind of socket."""
    async with await shared.bridge.connect(transport) as client:
        yield client


@pytest_asyncio.fixture
async def unix_client(shared: Shared) -> AsyncIterator[RawClient]:
    """A client of the shared bridge by Unix socket, where the kind makes no difference."""
    async with await shared.bridge.connect(0) as client:
        yield client
