"""Clients that come and go, and the soak, at a small size."""

from __future__ import annotations

import pytest
import uvloop

from tests.stress.connects import connects
from tests.stress.soak import slope, soak


async def test_two_thousand_clients_that_come_and_go_in_every_way_leave_nothing() -> None:
    left = await connects(2000, warm_up=500)
    assert left.count == 2000


def test_a_short_soak_keeps_every_promise() -> None:
    """So that the long one does not break unseen; what it measures means nothing after seconds."""
    soaked = uvloop.run(soak(0.2, 1, every=0.3, per_round=600, rounds=1))
    assert soaked.violations == []
    assert len(soaked.quiet) == 1
    assert soaked.requests >= 600


def test_a_slope_is_that_of_the_line_with_the_least_squares() -> None:
    assert slope([(0, 1), (1, 3), (2, 5)]) == pytest.approx(2)
    assert slope([(0, 0), (1, 1), (2, 0)]) == pytest.approx(0)
    assert slope([(1, 1)]) == slope([(1, 1), (1, 2)]) == 0
