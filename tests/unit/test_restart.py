"""When a server process is started, started again and given up (the restart policy, without any process)."""

from __future__ import annotations

import pytest

from bridge.core.restart import (
    BASE_DELAY_S,
    FORGET_AFTER_S,
    MAX_DELAY_S,
    Action,
    Decision,
    RestartPolicy,
    State,
)


def state(policy: RestartPolicy) -> State:
    """The state, read afresh: mypy would take it for unchanged between two looks at the property."""
    return policy.state


def started(now: float = 100.0, **settings: object) -> RestartPolicy:
    """A policy whose first process runs since `now` and has said nothing."""
    policy = RestartPolicy(**settings)  # type: ignore[arg-type]  # keyword settings passed on as they are
    assert policy.needed(now) == Decision(Action.START)
    assert policy.spawned(now) == Decision(Action.NONE)
    return policy


def crash(policy: RestartPolicy, now: float, **how: object) -> Decision:
    """The process dies with status 1 in the middle of the jitter's range, and a request waits."""
    arguments = {"status": 1, "waiting": True, **how}
    return policy.ended(now, 0.0, **arguments)  # type: ignore[arg-type]  # as above


def restart(policy: RestartPolicy, at: float | None) -> float:
    """The wait is over and the next process runs; returns the time of its start."""
    assert at is not None
    assert policy.due(at)
    policy.spawned(at)
    return at


def test_a_new_policy_starts_the_first_process_when_it_is_needed() -> None:
    policy = RestartPolicy()
    assert state(policy) is State.IDLE
    assert policy.needed(-5.0) == Decision(Action.START)
    assert state(policy) is State.STARTING


def test_a_start_that_was_ordered_is_not_ordered_twice() -> None:
    """Spawning takes time; a second request that comes meanwhile must not make a second process."""
    policy = RestartPolicy()
    policy.needed(0.0)
    assert policy.needed(0.0).action is Action.NONE
    policy.spawned(0.1)
    assert policy.needed(0.2).action is Action.NONE
    policy.spoke(0.3)
    assert policy.needed(0.4).action is Action.NONE


def test_running_is_earned_by_the_first_valid_message() -> None:
    policy = started()
    assert state(policy) is State.STARTING
    assert policy.spoke(100.1) == Decision(Action.NONE)
    assert state(policy) is State.RUNNING
    assert policy.spoke(100.2) == Decision(Action.NONE)
    assert state(policy) is State.RUNNING


def test_delays_double_from_a_tenth_of_a_second_to_ten_seconds() -> None:
    """Contract 8, "Restart: 0.1 s doubling to 10 s". The server speaks each time, so that it is never given
    up.
    """
    policy, now, delays = started(0.0), 0.0, []
    for _ in range(10):
        policy.spoke(now)
        decision = crash(policy, now)
        assert decision.action is Action.WAIT
        assert decision.at is not None
        delays.append(round(decision.at - now, 6))
        now = restart(policy, decision.at)
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]


@pytest.mark.parametrize(("jitter", "factor"), [(-1.0, 0.8), (1.0, 1.2), (0.5, 1.1)])
def test_jitter_moves_the_delay_by_at_most_a_fifth(jitter: float, factor: float) -> None:
    policy = started(0.0)
    decision = policy.ended(0.0, jitter, status=1, waiting=False)
    assert decision.at == pytest.approx(BASE_DELAY_S * factor)


def test_a_good_handshake_does_not_forget_the_back_off() -> None:
    """Contract 8: "forgotten after 10 s of life (uptime, not a good handshake)"."""
    policy = started(0.0)
    decision = crash(policy, 0.0)
    now = restart(policy, decision.at)
    policy.spoke(now)
    decision = crash(policy, now + FORGET_AFTER_S - 0.01)
    assert decision.at == pytest.approx(now + FORGET_AFTER_S - 0.01 + 2 * BASE_DELAY_S)


def test_ten_seconds_of_life_forget_the_back_off() -> None:
    policy, now = started(0.0), 0.0
    for _ in range(4):
        now = restart(policy, crash(policy, now).at)
    policy.spoke(now)
    now += FORGET_AFTER_S
    assert crash(policy, now) == Decision(Action.START)  # the back-off is for exits before that only
    policy.spawned(now)
    assert crash(policy, now).at == pytest.approx(now + BASE_DELAY_S)


def test_an_exit_with_0_after_an_answer_is_restarted_at_once_if_something_waits() -> None:
    """Contract 8: the back-off "applies to every exit before that, exit 0 too"."""
    policy = started(0.0)
    policy.spoke(0.5)
    decision = crash(policy, 1.0, status=0)
    assert decision == Decision(Action.WAIT, 1.0 + BASE_DELAY_S)
    assert policy.failed_starts == 0


@pytest.mark.parametrize("spoke", [False, True])
def test_an_exit_with_0_and_nothing_asked_waits_for_need(spoke: bool) -> None:
    """Contract 8: "Exit 0 with nothing asked is no failure: the next start waits for need"."""
    policy = started(0.0)
    if spoke:
        policy.spoke(0.1)
    assert crash(policy, 20.0, status=0, waiting=False) == Decision(Action.IDLE)
    assert state(policy) is State.IDLE
    assert not policy.due(1e9)
    assert policy.failed_starts == 0
    assert policy.needed(20.0) == Decision(Action.START)


def test_a_need_that_comes_during_the_back_off_of_an_idle_server_waits_it_out() -> None:
    policy = started(0.0)
    assert crash(policy, 1.0, status=0, waiting=False).action is Action.IDLE
    assert policy.needed(1.01) == Decision(Action.WAIT, 1.1)
    assert state(policy) is State.BACKOFF
    assert policy.needed(1.02) == Decision(Action.WAIT, 1.1)
    assert not policy.due(1.09)
    assert policy.due(1.1)
    assert not policy.due(1.1)  # ordered once


def test_a_need_after_the_time_starts_at_once_although_the_timer_is_late() -> None:
    policy = started(0.0)
    assert crash(policy, 1.0).at == 1.1
    assert policy.needed(1.2) == Decision(Action.START)
    assert not policy.due(1.2)


@pytest.mark.parametrize(("status", "waiting"), [(1, False), (1, True), (-9, False), (-9, True), (0, True)])
def test_five_failed_starts_in_a_row_are_the_end(status: int, waiting: bool) -> None:
    """Contract 8: "a non-zero exit, a signal, or an exit with requests waiting, before one valid message"."""
    policy, now = started(0.0), 0.0
    for count in range(1, 5):
        decision = crash(policy, now, status=status, waiting=waiting)
        assert decision.action is Action.WAIT
        assert policy.failed_starts == count
        assert not policy.exhausted
        now = restart(policy, decision.at)
    assert crash(policy, now, status=status, waiting=waiting) == Decision(Action.GIVE_UP)
    assert state(policy) is State.FATAL
    assert policy.exhausted
    assert policy.needed(now + 60.0).action is Action.NONE
    assert not policy.due(now + 60.0)
    assert policy.stopping().action is Action.NONE
    assert state(policy) is State.FATAL


def test_a_failed_start_counts_however_long_it_took() -> None:
    """A server that needs 15 s to fail is started at once (back-off forgotten), but is given up all the
    same.
    """
    policy, now = started(0.0), 0.0
    for _ in range(4):
        now += 15.0
        assert crash(policy, now) == Decision(Action.START)
        policy.spawned(now)
    assert crash(policy, now + 15.0) == Decision(Action.GIVE_UP)


def test_one_valid_message_ends_the_row_of_failed_starts() -> None:
    policy, now = started(0.0), 0.0
    for _ in range(4):
        now = restart(policy, crash(policy, now).at)
    policy.spoke(now)
    assert policy.failed_starts == 0
    now = restart(policy, crash(policy, now).at)
    for _ in range(4):
        now = restart(policy, crash(policy, now).at)
    assert crash(policy, now).action is Action.GIVE_UP


def test_a_start_that_did_not_fail_ends_the_row_of_failed_starts() -> None:
    policy, now = started(0.0), 0.0
    for _ in range(4):
        now = restart(policy, crash(policy, now).at)
    decision = crash(policy, now, status=0, waiting=False)
    assert decision.action is Action.IDLE
    assert policy.failed_starts == 0


@pytest.mark.parametrize("most", [0, 1])
def test_max_restarts_of_0_or_1_gives_up_at_the_first_failed_start(most: int) -> None:
    assert crash(started(0.0, max_restarts=most), 1.0) == Decision(Action.GIVE_UP)


def test_a_process_that_cannot_be_made_is_a_failed_start() -> None:
    policy = RestartPolicy(max_restarts=2)
    policy.needed(0.0)
    assert policy.spawn_failed(0.0, 0.0, False) == Decision(Action.WAIT, BASE_DELAY_S)
    assert policy.failed_starts == 1
    assert policy.due(BASE_DELAY_S)
    assert policy.spawn_failed(BASE_DELAY_S, 0.0, True) == Decision(Action.GIVE_UP)


def test_one_child_of_several_never_ends_the_bridge() -> None:
    """Contract 7: a further era's child "refuses that era, with back-off, and never ends the bridge"."""
    policy, now = started(0.0, sole=False, max_restarts=2), 0.0
    now = restart(policy, crash(policy, now).at)
    assert crash(policy, now) == Decision(Action.IDLE)
    assert policy.exhausted
    assert state(policy) is State.IDLE
    decision = policy.needed(now)
    assert decision == Decision(Action.WAIT, now + 2 * BASE_DELAY_S)
    now = restart(policy, decision.at)
    assert crash(policy, now) == Decision(Action.IDLE)  # still exhausted: one more try for each need, no more
    now = restart(policy, policy.needed(now).at)
    policy.spoke(now)
    assert not policy.exhausted


def test_the_last_child_left_can_end_the_bridge_again() -> None:
    policy, now = started(0.0, sole=False, max_restarts=2), 0.0
    now = restart(policy, crash(policy, now).at)
    policy.sole = True
    assert crash(policy, now) == Decision(Action.GIVE_UP)


@pytest.mark.parametrize("status", [0, 1, -15])
@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("life", [1.0, 100.0])
def test_restart_never_gives_up_at_any_end(status: int, waiting: bool, life: float) -> None:
    policy = started(0.0, mode="never")
    policy.spoke(0.5)
    assert policy.ended(life, 0.0, status=status, waiting=waiting) == Decision(Action.GIVE_UP)
    assert state(policy) is State.FATAL


def test_restart_never_gives_up_when_no_process_can_be_made() -> None:
    policy = RestartPolicy(mode="never")
    policy.needed(0.0)
    assert policy.spawn_failed(0.0, 0.0, True) == Decision(Action.GIVE_UP)


@pytest.mark.parametrize("mode", ["always", "never"])
def test_an_exit_on_the_era_probe_is_no_failure_and_is_replaced_at_once(mode: str) -> None:
    """Contract 7: "A child that exits on the probe is legacy and is started again at once; that is no
    failure".
    """
    policy = started(0.0, mode=mode, max_restarts=1)
    assert crash(policy, 0.1, excused=True) == Decision(Action.START)
    assert policy.failed_starts == 0
    policy.spawned(0.2)
    policy.spoke(0.3)
    assert state(policy) is State.RUNNING


def test_an_excused_end_leaves_the_back_off_as_it_was() -> None:
    policy = started(0.0)
    now = restart(policy, crash(policy, 0.0).at)
    assert crash(policy, now, excused=True) == Decision(Action.START)
    policy.spawned(now)
    assert crash(policy, now).at == pytest.approx(now + 2 * BASE_DELAY_S)


@pytest.mark.parametrize("excused", [False, True])
def test_a_process_that_nobody_can_use_is_followed_by_another_only_when_there_is_a_need(
    excused: bool,
) -> None:
    """Contract 7: a further era's process whose handshake was refused is stopped; that is no failure."""
    policy = started(0.0, max_restarts=1)
    assert crash(policy, 0.1, retired=True, excused=excused, waiting=False) == Decision(Action.IDLE)
    assert policy.failed_starts == 0
    assert policy.needed(0.2) == Decision(Action.START)


def test_a_need_that_arose_while_such_a_process_was_stopped_is_seen_to_at_once() -> None:
    policy = started(0.0, max_restarts=1)
    assert crash(policy, 0.1, retired=True, waiting=True) == Decision(Action.START)
    assert policy.failed_starts == 0


def test_stopping_before_any_process_or_during_the_back_off_is_stopped_at_once() -> None:
    policy = RestartPolicy()
    assert policy.stopping() == Decision(Action.NONE)
    assert state(policy) is State.STOPPED
    assert policy.needed(1.0).action is Action.NONE
    policy = started(0.0)
    crash(policy, 0.0)
    policy.stopping()
    assert state(policy) is State.STOPPED
    assert not policy.due(1e9)


def test_a_stop_during_a_spawn_waits_for_the_process_that_is_coming() -> None:
    """A stop while the server starts leaves no process behind: the spawn is awaited, then stopped."""
    policy = RestartPolicy()
    policy.needed(0.0)
    policy.stopping()
    assert state(policy) is State.STOPPING
    assert policy.needed(0.0).action is Action.NONE
    assert policy.spawned(0.1).action is Action.NONE
    assert state(policy) is State.STOPPING
    assert policy.spoke(0.2).action is Action.NONE
    policy.stopping()
    assert crash(policy, 0.3, status=-15) == Decision(Action.NONE)
    assert state(policy) is State.STOPPED


def test_a_stop_during_a_spawn_that_fails_is_stopped() -> None:
    policy = RestartPolicy()
    policy.needed(0.0)
    policy.stopping()
    assert policy.spawn_failed(0.1, 0.0, True).action is Action.NONE
    assert state(policy) is State.STOPPED


@pytest.mark.parametrize("how", [{"excused": True}, {"status": 0, "waiting": False}, {}])
def test_no_end_starts_anything_once_the_bridge_stops(how: dict[str, object]) -> None:
    policy = started(0.0)
    policy.spoke(0.1)
    policy.stopping()
    assert crash(policy, 50.0, **how) == Decision(Action.NONE)
    assert state(policy) is State.STOPPED


def test_a_message_of_a_process_that_is_gone_earns_nothing() -> None:
    policy = started(0.0)
    crash(policy, 0.0)
    assert policy.due(1.0)
    assert policy.spoke(1.0) == Decision(Action.NONE)
    assert state(policy) is State.STARTING
    assert policy.failed_starts == 1


def test_the_next_process_has_to_speak_for_itself() -> None:
    policy = started(0.0, max_restarts=1)
    policy.spoke(0.1)
    restart(policy, crash(policy, 0.2).at)
    assert crash(policy, 1.0).action is Action.GIVE_UP


def test_events_that_cannot_happen_are_bugs_in_the_caller() -> None:
    policy = RestartPolicy()
    with pytest.raises(ValueError, match="never started"):
        crash(policy, 0.0)
    with pytest.raises(ValueError, match="impossible in state idle: a process runs"):
        policy.spawned(0.0)
    with pytest.raises(ValueError, match="not ordered"):
        policy.spawn_failed(0.0, 0.0, False)
    policy = started()
    with pytest.raises(ValueError, match="second process"):
        policy.spawned(101.0)
    with pytest.raises(ValueError, match="not ordered"):
        policy.spawn_failed(101.0, 0.0, False)
    crash(policy, 102.0)
    with pytest.raises(ValueError, match="never started"):
        crash(policy, 103.0)


def test_the_longest_delay_is_a_fifth_above_ten_seconds() -> None:
    policy, now = started(0.0), 0.0
    for _ in range(12):
        policy.spoke(now)
        decision = policy.ended(now, 1.0, status=-9, waiting=False)
        longest = decision.at
        assert longest is not None
        last, now = now, restart(policy, longest)
    assert now - last == pytest.approx(MAX_DELAY_S * 1.2)
