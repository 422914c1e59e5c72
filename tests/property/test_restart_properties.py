"""The restart policy under any order of events and times."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from bridge.core.restart import (
    BASE_DELAY_S,
    FORGET_AFTER_S,
    MAX_DELAY_S,
    Action,
    Decision,
    RestartPolicy,
    State,
)

JITTERS = st.floats(-1.0, 1.0)
# Rounding of `now + delay` for the times that are drawn here.
SLACK = 1e-6


class Supervisor(RuleBasedStateMachine):
    """A caller that counts its own processes and starts, and believes nothing that the policy says about
    them.
    """

    @initialize(
        now=st.floats(0.0, 1e6),
        most=st.integers(0, 6),
        mode=st.sampled_from(["always", "always", "never"]),
        sole=st.booleans(),
    )
    def begin(self, now: float, most: int, mode: str, sole: bool) -> None:
        self.now = now
        self.most = max(1, most)
        self.mode = mode
        self.policy = RestartPolicy(max_restarts=most, mode=mode, sole=sole)  # type: ignore[arg-type]  # str
        self.alive = self.ordered = self.spoken = self.stopped = self.given_up = False
        self.since = now
        self.failed = 0
        self.at: float | None = None

    def heed(self, decision: Decision) -> None:
        """Check what holds for every decision, and carry it out."""
        if decision.action is Action.START:
            assert not self.alive, "START while a child is alive"
            assert not self.ordered, "START while another start is under way"
            assert not self.stopped
            assert not self.given_up
            self.ordered, self.at = True, None
        elif decision.action is Action.WAIT:
            assert not self.alive
            assert decision.at is not None
            assert decision.at - self.now <= MAX_DELAY_S * 1.2 + SLACK
            self.at = decision.at
        elif decision.action is Action.GIVE_UP:
            assert self.mode == "never" or (self.policy.sole and self.failed >= self.most)
            self.given_up, self.at = True, None
        elif decision.action is Action.IDLE:
            self.at = None
        assert (decision.at is not None) == (decision.action is Action.WAIT)

    def check_end(self, decision: Decision, life: float) -> None:
        if decision.action is Action.WAIT:
            assert decision.at is not None
            assert life < FORGET_AFTER_S
            assert decision.at - self.now >= BASE_DELAY_S * 0.8 - SLACK
        if self.stopped:
            assert decision.action is Action.NONE
            assert self.policy.state is State.STOPPED
        self.heed(decision)

    @rule(seconds=st.one_of(st.floats(0.0, 0.5), st.floats(0.0, 30.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def need(self) -> None:
        before = self.at
        decision = self.policy.needed(self.now)
        if before is not None and self.now < before:
            assert decision == Decision(Action.WAIT, before)
        self.heed(decision)

    @rule()
    def timer(self) -> None:
        expected = self.at is not None and self.now >= self.at and not self.stopped
        assert self.policy.due(self.now) is expected
        if expected:
            self.heed(Decision(Action.START))

    @precondition(lambda self: self.ordered)
    @rule(works=st.booleans(), jitter=JITTERS, waiting=st.booleans())
    def spawn(self, works: bool, jitter: float, waiting: bool) -> None:
        self.ordered = False
        if works:
            assert self.policy.spawned(self.now).action is Action.NONE
            self.alive, self.spoken, self.since = True, False, self.now
        else:
            self.failed += 1
            self.check_end(self.policy.spawn_failed(self.now, jitter, waiting), 0.0)

    @rule()
    def message(self) -> None:
        assert self.policy.spoke(self.now).action is Action.NONE
        if self.alive:
            self.spoken, self.failed = True, 0

    @precondition(lambda self: self.alive)
    @rule(jitter=JITTERS, status=st.sampled_from([0, 0, 1, -9]), waiting=st.booleans(), excused=st.booleans())
    def end(self, jitter: float, status: int, waiting: bool, excused: bool) -> None:
        self.alive = False
        if not excused:
            bad = not self.spoken and (status != 0 or waiting)
            self.failed = self.failed + 1 if bad else 0
        life = self.now - self.since
        decision = self.policy.ended(self.now, jitter, status=status, waiting=waiting, excused=excused)
        assert self.policy.failed_starts == self.failed
        if not excused and not self.stopped and self.mode == "always":
            if status == 0 and not waiting:
                assert decision.action is Action.IDLE
            elif self.failed >= self.most:
                assert decision.action is (Action.GIVE_UP if self.policy.sole else Action.IDLE)
            else:
                assert decision.action is (Action.START if life >= FORGET_AFTER_S else Action.WAIT)
        self.check_end(decision, life)

    @rule(sole=st.booleans())
    def others_come_and_go(self, sole: bool) -> None:
        self.policy.sole = sole

    @precondition(lambda self: not self.stopped)
    @rule(really=st.integers(0, 9))
    def stop(self, really: int) -> None:
        if really:
            return  # most runs should see more than a stop
        assert self.policy.stopping().action is Action.NONE
        self.stopped, self.at = not self.given_up, None


TestAnyOrderOfEvents = Supervisor.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


@given(jitters=st.lists(JITTERS, min_size=1, max_size=40), life=st.floats(0.0, FORGET_AFTER_S - 0.001))
@settings(deadline=None)
def test_every_delay_is_the_doubled_one_within_a_fifth_and_forgotten_after_ten_seconds_of_life(
    jitters: list[float], life: float
) -> None:
    policy, now, nominal = RestartPolicy(), 0.0, BASE_DELAY_S
    policy.needed(now)
    for jitter in jitters:
        policy.spawned(now)
        policy.spoke(now)
        now += life
        decision = policy.ended(now, jitter, status=1, waiting=True)
        assert decision.action is Action.WAIT
        assert decision.at is not None
        assert nominal * 0.8 - SLACK <= decision.at - now <= nominal * 1.2 + SLACK
        nominal, now = min(2 * nominal, MAX_DELAY_S), decision.at
        assert policy.due(now)
    policy.spawned(now)
    policy.spoke(now)
    now += FORGET_AFTER_S + SLACK
    assert policy.ended(now, 1.0, status=1, waiting=True) == Decision(Action.START)
    policy.spawned(now)
    after = policy.ended(now, 1.0, status=1, waiting=True)
    assert after.at is not None
    assert abs(after.at - now - BASE_DELAY_S * 1.2) <= SLACK
