"""How fast processes are started that end before they have said anything (section 8, isolated clients)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bridge.core.outbox import Key
from bridge.core.pace import Pace

ONE, TWO, THREE, FOUR = (Key(number) for number in range(1, 5))


def fail(pace: Pace, key: Key, now: float, jitter: float = 0.0) -> float:
    """A process is started and ends at once; how long the next one waits."""
    pace.started(key, now)
    assert pace.failed(key, now, jitter)
    return pace.ready_at(now) - now


def test_nobody_is_held_up_while_starts_succeed() -> None:
    pace = Pace()
    for key in (ONE, TWO, THREE):
        assert pace.ready_at(5.0) == 5.0
        pace.started(key, 5.0)
    assert not pace.spoke(ONE)
    pace.ended(TWO)
    assert pace.ready_at(5.0) == 5.0


def test_after_a_failed_start_the_next_one_waits_ever_longer() -> None:
    pace = Pace()
    now, waits = 100.0, []
    for _ in range(9):
        waits.append(round(fail(pace, ONE, now), 6))
        now = pace.ready_at(now)
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert pace.failures == 9


def test_bridges_of_one_machine_keep_out_of_step() -> None:
    assert round(fail(Pace(), ONE, 0.0, 1.0), 6) == 0.12
    assert round(fail(Pace(), ONE, 0.0, -1.0), 6) == 0.08


def test_processes_that_fail_side_by_side_are_one_failure() -> None:
    """Thirty clients that come at once to a server that is broken do not make the next one wait for ever."""
    pace = Pace()
    for key in (ONE, TWO, THREE):
        pace.started(key, 0.0)
    assert pace.failed(ONE, 0.05, 0.0)
    assert not pace.failed(TWO, 0.06, 0.0)
    assert pace.failures == 1
    assert round(pace.ready_at(0.06), 6) == 0.15


def test_after_a_failure_one_goes_alone_and_the_others_wait_for_what_it_comes_to() -> None:
    pace = Pace()
    fail(pace, ONE, 0.0)
    pace.started(TWO, 0.1)
    assert pace.ready_at(0.2) == 10.1
    assert pace.spoke(TWO)
    assert pace.ready_at(0.3) == 0.3
    assert pace.failures == 0
    # And its own end says nothing of starting any more.
    assert not pace.failed(TWO, 0.4, 0.0)
    assert round(fail(pace, THREE, 0.4), 6) == 0.1


def test_one_that_is_stopped_before_it_said_anything_tells_nothing() -> None:
    pace = Pace()
    fail(pace, ONE, 0.0)
    pace.started(TWO, 0.1)
    pace.ended(TWO)
    assert pace.ready_at(0.2) == 0.2
    assert pace.failures == 1


def test_one_that_lives_on_in_silence_holds_up_the_others_no_longer_than_a_start_may_fail() -> None:
    pace = Pace()
    fail(pace, ONE, 0.0)
    pace.started(TWO, 0.1)
    assert pace.ready_at(10.1) == 10.1
    pace.started(THREE, 10.1)
    assert pace.ready_at(11.0) == 20.1
    # Who ends late was not ended by its start: the wait begins anew.
    pace.ended(THREE)
    assert pace.failed(TWO, 12.0, 0.0)
    assert round(pace.ready_at(12.0), 6) == 12.1


def test_a_server_that_is_another_one_from_now_on_starts_at_once() -> None:
    pace = Pace()
    fail(pace, ONE, 0.0)
    fail(pace, TWO, 0.1)
    pace.started(THREE, 0.3)
    pace.forget()
    assert pace.ready_at(0.3) == 0.3
    assert pace.failed(THREE, 0.4, 0.0)
    assert round(pace.ready_at(0.4), 6) == 0.5


def test_what_is_said_of_others_changes_nothing() -> None:
    pace = Pace()
    assert not pace.failed(ONE, 0.0, 0.0)
    assert not pace.spoke(ONE)
    pace.ended(ONE)
    assert pace.ready_at(1.0) == 1.0


@given(st.lists(st.tuples(st.floats(0.0, 0.5), st.floats(-1.0, 1.0)), max_size=60))
def test_a_server_that_always_fails_is_started_at_most_so_often(steps: list[tuple[float, float]]) -> None:
    """However often clients come: by the end of `t` seconds a dozen, and one each eight seconds."""
    pace = Pace()
    now, starts = 0.0, 0
    for number, (step, jitter) in enumerate(steps):
        now += step * 20
        if pace.ready_at(now) <= now:
            fail(pace, Key(number), now, jitter)
            starts += 1
    assert starts <= 12 + now / 8
