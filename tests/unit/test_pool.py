"""Server processes for clients that have one each: what the pool does when things go wrong.

The processes are stand-ins, as in `tests/property/test_pool_properties.py`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import cast

import pytest

from bridge.child import Child
from bridge.core.outbox import Output
from bridge.pool import EARLY_KEPT
from tests.property.test_pool_properties import Story, end


async def started(max_children: int, spare: int) -> Story:
    """A pool whose spare processes run."""
    story = Story(max_children, spare)
    story.pool.start()
    await story.settle()
    for _, start in story.launcher.pending:
        start.set_result(None)
    story.launcher.pending.clear()
    await story.settle()
    return story


async def test_a_spare_server_that_goes_on_writing_while_it_is_stopped_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    story = await started(1, 1)
    (child,) = story.launcher.children.values()
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            child.say(b"x" * EARLY_KEPT)
        child.say(b"x")
        child.say(b"x" * EARLY_KEPT)
    assert [record.getMessage() for record in caplog.records] == [
        "a spare server wrote more than a banner, and is stopped"
    ]


async def test_a_client_is_not_given_a_spare_process_that_is_about_to_end() -> None:
    """It would be disconnected a moment later. It waits instead, if there is no room for another."""
    story = await started(1, 1)
    (dying,) = story.launcher.children.values()
    dying.ending = True
    dying.owner.child_ending(cast(Child, dying))
    client = story.owner.new_key()
    story.clients[client] = 0
    story.pool.client_opened(client, strict=False)
    story.pool.client_data(client, b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"client":1}}\n')
    assert not dying.heard
    assert not story.owner.told
    end(story, dying)
    await asyncio.sleep(0)
    ((_, start),) = story.launcher.pending
    start.set_result(None)
    story.launcher.pending.clear()
    await asyncio.sleep(0)
    (child,) = story.launcher.children.values()
    assert [message["method"] for message in child.heard] == ["ping"]
    assert client not in story.owner.closed


async def test_the_end_of_a_process_that_failed_halfway_can_be_told_again() -> None:
    """Its place would never be free again."""
    story = await started(1, 0)
    clients = [story.owner.new_key() for _ in range(2)]
    for client in clients:
        story.clients[client] = 0
        story.pool.client_opened(client, strict=False)
    asking = asyncio.ensure_future(story.ask(clients[0]))
    await asking
    ((_, start),) = story.launcher.pending
    start.set_result(None)
    story.launcher.pending.clear()
    await story.settle()
    (child,) = story.launcher.children.values()
    deliver = story.owner.pool_outputs

    def fail(outputs: list[Output]) -> None:
        raise RuntimeError("made up")

    story.owner.pool_outputs = fail  # type: ignore[method-assign]  # a fault that cannot be forced
    with pytest.raises(RuntimeError):
        end(story, child)
    story.owner.pool_outputs = deliver  # type: ignore[method-assign]  # as before
    child.owner.child_ended(cast(Child, child))
    await story.ask(clients[1])
    assert len(story.launcher.pending) == 1
    assert child.owner.key not in story.owner.ports
