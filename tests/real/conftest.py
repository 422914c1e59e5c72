"""What the tests with published parts share: the processes in which other SDKs' clients run.

They start slowly, so one of each serves all tests of a module.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.real.clients import Surroundings
from tests.real.drivers import Driver, python1_driver, typescript_driver
from tests.real.servers import stand_in


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def typescript() -> AsyncIterator[Driver]:
    async with typescript_driver() as driver:
        yield driver


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def python1() -> AsyncIterator[Driver]:
    async with python1_driver() as driver:
        yield driver


@pytest.fixture(scope="module")
def surroundings(
    typescript: Driver, python1: Driver, tmp_path_factory: pytest.TempPathFactory
) -> Surroundings:
    return Surroundings(typescript, python1, tmp_path_factory.mktemp("clients"))


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """The URL of a stand-in for what servers ask on the network."""
    with stand_in() as url:
        yield url
