"""The judge is a pure function: histories in which one thing is wrong, and the rule that says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.history.judge import judge
from tests.history.record import (
    Connection,
    Ended,
    Event,
    History,
    Life,
    Received,
    Rules,
    Sample,
    Sent,
    parse_log,
)

SUB = "io.modelcontextprotocol/subscriptionId"


def log(*lines: str) -> list[str]:
    """Lines of a server's log, a tenth of a second apart; spaces stand for tabs, and `_` for spaces."""
    return [
        "\t".join([line.split()[0], f"{n / 10}", *(field.replace("_", " ") for field in line.split()[1:])])
        for n, line in enumerate(lines, 1)
    ]


def life(
    *lines: str, name: str = "one", era: str = "modern", dead: bool = False, killed: bool = False
) -> Life:
    return Life(name, 1000, 0.0, era, dead, parse_log(log(*lines)), killed)


def client(*events: Event, number: int = 1, transport: str = "unix", era: str = "modern") -> Connection:
    return Connection(number, transport, era, list(events))


def sent(seq: int = 1, do: str = "echo", id: Any = 1, at: float = 0.0, number: int = 1, **more: Any) -> Sent:
    return Sent(at, seq, "call", id, f"1.{number}.{seq}", do, **more)


def listen(seq: int = 1, id: Any = "s", at: float = 0.0, filter: str = "demo:1") -> Sent:
    return Sent(at, seq, "listen", id, filter=filter)


def came(message: dict[str, Any], at: float = 1.0, blob: bytes = b"[]") -> Received:
    return Received(at, {"jsonrpc": "2.0", **message}, blob)


def answer(seq: int = 1, id: Any = 1, n: int = 0, number: int = 1, at: float = 1.0) -> Received:
    result = {"resultType": "complete", "mark": f"1.{number}.{seq}", "n": n, "blob": []}
    return came({"id": id, "result": result}, at)


def refusal(code: int, id: Any = 1, delivered: bool = True, at: float = 1.0) -> Received:
    data = {"source": "mcp-bridge", "reason": "", "delivered": delivered}
    return came({"id": id, "error": {"code": code, "message": "", "data": data}}, at)


def progress(number: int, token: Any, mark: str = "1.1.1") -> Received:
    params = {"progressToken": token, "progress": number, "message": mark}
    return came({"method": "notifications/progress", "params": params})


def acknowledged(id: Any = "s", at: float = 1.0) -> Received:
    params = {"notifications": {"resourceSubscriptions": ["demo:1"]}, "_meta": {SUB: id}}
    return came({"method": "notifications/subscriptions/acknowledged", "params": params}, at)


def updated(mark: str | None, id: Any = "s", uri: str = "demo:1", at: float = 1.0) -> Received:
    params: dict[str, Any] = {"uri": uri, "_meta": {SUB: id}}
    if mark is not None:
        params["mark"] = mark
    return came({"method": "notifications/resources/updated", "params": params}, at)


def closed(at: float = 9.0, waited: bool = True) -> Ended:
    return Ended(at, "close", waited)


def rules(*lives: Life, clients: list[Connection], **more: Any) -> set[str]:
    history = History(1, Rules(), clients, list(lives), **more)
    return {violation.rule for violation in judge(history)}


SERVED = ("R 7 1.1.1 echo -", "A 7 0", "F")


def test_a_request_that_was_answered_once_breaks_nothing() -> None:
    assert rules(life(*SERVED), clients=[client(sent(), answer(), closed())]) == set()


def test_nothing_at_all_breaks_nothing() -> None:
    assert rules(clients=[]) == set()


WRONG: dict[str, tuple[tuple[str, ...], list[Event]]] = {
    "no-outcome": (("R 7 1.1.1 echo -",), [sent(), closed()]),
    "two-outcomes": (SERVED, [sent(), answer(), answer(), closed()]),
    "wrong-id": (SERVED, [sent(), answer(id="1"), closed()]),
    "altered": (SERVED, [sent(blob=b"[1e400]"), answer(), closed()]),
    "foreign-response": (SERVED, [sent(), answer(), answer(seq=1, number=2), closed()]),
    "ran-twice": ((*SERVED, "R 8 1.1.1 echo -", "A 8 0", "F"), [sent(), answer(), closed()]),
    "wrong-outcome": (SERVED, [sent(), refusal(-32603), closed()]),
    "lost-answer": (SERVED, [sent(), refusal(-31001), closed()]),
    "broken-promise": (("R 7 1.1.1 hang -",), [sent(do="hang"), refusal(-31002, delivered=False), closed()]),
    "not-cancelled": (("R 7 1.1.1 hang -",), [sent(do="hang"), Ended(2.0, "abort")]),
    "wrongly-cancelled": (("R 7 1.1.1 hang -", "C 7"), [sent(do="hang"), Ended(2.0, "abort")]),
    "closed-without-cause": (SERVED, [sent(), answer(), Ended(2.0, "eof")]),
    "no-message": (SERVED, [sent(), answer(), Received(1.0, None, b"\xff"), closed()]),
    "stray-progress": (SERVED, [sent(), answer(), progress(0, "t"), closed()]),
    "lost-progress": (
        ("R 7 1.1.1 progress:1 7", "P 7 0", "A 7 0", "F"),
        [sent(do="progress:1", token="t"), answer(), closed()],
    ),
    "stray-log": (
        SERVED,
        [
            sent(),
            answer(),
            came({"method": "notifications/message", "params": {"data": "1.2.1"}}),
            closed(),
        ],
    ),
    "stray-notification": (
        SERVED,
        [sent(), answer(), came({"method": "notifications/tools/list_changed"}), closed()],
    ),
    "stray-request": (
        SERVED,
        [sent(), answer(), came({"method": "sampling/createMessage", "id": 1}), closed()],
    ),
    "server-saw": (("X a raw CR", *SERVED), [sent(), answer(), closed()]),
    "order": (
        ("R 7 1.1.2 echo -", "A 7 0", "R 8 1.1.1 echo -", "A 8 0", "F"),
        [sent(1), sent(2, id=2), answer(1), answer(2, id=2), closed()],
    ),
    "reused-upstream-id": (
        (*SERVED, "R 7 1.1.2 echo -", "A 7 0", "F"),
        [sent(1), answer(1), sent(2, id=2), answer(2, id=2), closed()],
    ),
    "half-close-lost": (
        ("R 7 1.1.1 hang -", "C 7"),
        [sent(do="hang"), Ended(0.0, "half"), Ended(0.5, "eof")],
    ),
    "no-end": (SERVED, [sent(), answer(), Ended(1.0, "half"), closed()]),
}


@pytest.mark.parametrize("rule", WRONG)
def test_what_is_wrong_is_named(rule: str) -> None:
    lines, events = WRONG[rule]
    assert rule in rules(life(*lines), clients=[client(*events)])


def test_an_answer_behind_the_cancellation_must_not_be_delivered() -> None:
    lines = ("R 7 1.1.1 late -", "C 7", "A 7 0", "F")
    cancel = Sent(0.05, 2, "cancel", 1)
    assert rules(life(*lines), clients=[client(sent(do="late"), cancel, closed())]) == set()
    found = rules(life(*lines), clients=[client(sent(do="late"), cancel, answer(), closed())])
    assert found == {"after-cancel"}


def test_an_answer_that_crosses_the_cancellation_is_allowed() -> None:
    lines = ("R 7 1.1.1 echo -", "A 7 0", "F", "C 7")
    events: list[Event] = [sent(), Sent(0.05, 2, "cancel", 1), answer(), closed()]
    assert rules(life(*lines), clients=[client(*events)]) == set()


def test_an_answer_long_after_the_cancellation_is_not() -> None:
    """A later request of the same client was answered: the bridge had read the cancellation."""
    lines = ("R 7 1.1.1 echo -", "A 7 0", "F", "R 8 1.1.3 echo -", "A 8 0", "F")
    cancel = Sent(0.05, 2, "cancel", 1)
    events: list[Event] = [sent(), cancel, sent(3, id=3), answer(3, id=3), answer(), closed()]
    assert rules(life(*lines), clients=[client(*events)]) == {"after-cancel"}


def test_an_error_for_a_dead_server_needs_a_dead_server() -> None:
    events: list[Event] = [sent(do="crash"), refusal(-31001), closed()]
    lines = ("R 7 1.1.1 crash:before/exit3 -", "D exit3")
    assert rules(life(*lines, dead=True), clients=[client(*events)]) == set()
    assert rules(life(*lines), clients=[client(*events)]) >= {"wrong-outcome"}


def test_an_error_for_a_dead_server_claims_that_it_was_delivered() -> None:
    events: list[Event] = [sent(do="crash"), refusal(-31001, delivered=False), closed()]
    lines = ("R 7 1.1.1 crash:before/exit3 -", "D exit3")
    assert "broken-promise" in rules(life(*lines, dead=True), clients=[client(*events)])


def test_an_answer_that_the_dead_server_had_not_written_whole_is_not_missed() -> None:
    lines = ("R 7 1.1.1 echo -", "A 7 0")
    assert rules(life(*lines, dead=True), clients=[client(sent(), refusal(-31001), closed())]) == set()


def test_errors_without_a_mark_go_to_the_request_they_fit() -> None:
    """A client that uses one id for everything: each of its requests has its own outcome."""
    lines = ("R 7 1.1.1 delay:9 -", "R 8 1.1.2 damaged:cut -", "W 8", "F", "A 7 0", "F")
    first, second = sent(1, do="delay:9"), sent(2, do="damaged:cut")
    events: list[Event] = [first, second, refusal(-31008), answer(1), closed()]
    assert rules(life(*lines), clients=[client(*events)]) == set()


def test_an_error_without_a_mark_is_not_of_a_process_that_dies_later() -> None:
    """One id for everything, and two processes in turn: the first to die owes the first error."""
    young = life("R 7 1.1.1 log:1 -", "G 7 0", "D exit3", dead=True)
    old = life("R 8 1.1.2 hang -", name="old", dead=True)
    young.events[-2].at = young.events[-1].at = 2.0
    said = came(
        {"method": "notifications/message", "params": {"level": "info", "data": "1.1.1", "n": 0}}, 2.0
    )
    events: list[Event] = [
        sent(1, do="log:1"),
        sent(2, do="hang"),
        refusal(-31001, at=1.0),
        said,
        refusal(-31001, at=3.0),
        closed(4.0),
    ]
    assert "stray-log" not in rules(young, old, clients=[client(*events)])


def test_an_error_without_a_mark_is_of_no_request_that_is_spoken_of_later() -> None:
    """The same, read late by the client: both processes have died by then."""
    young = life("R 7 1.1.1 progress:1 7", "P 7 0", "D exit3", dead=True)
    old = life("R 8 1.1.2 hang -", name="old", dead=True)
    events: list[Event] = [
        sent(1, do="progress:1", token="t"),
        sent(2, do="hang"),
        refusal(-31001, at=9.0),
        progress(0, "t"),
        refusal(-31001, at=9.0),
        closed(10.0),
    ]
    assert "stray-progress" not in rules(young, old, clients=[client(*events)])


def test_a_broken_answer_is_owed_to_none_but_its_asker() -> None:
    assert rules(life(*SERVED), clients=[client(sent(), refusal(-31008), closed())]) >= {"wrong-outcome"}


def test_a_wait_must_have_been_as_long_as_the_error_says() -> None:
    soon: list[Event] = [sent(), refusal(-31002, delivered=False, at=3.0), closed()]
    late: list[Event] = [sent(), refusal(-31002, delivered=False, at=30.1), closed(40.0)]
    assert rules(clients=[client(*soon)]) == {"wrong-outcome"}
    assert rules(clients=[client(*late)]) == set()


def test_a_bad_line_earns_one_error() -> None:
    bad = Sent(0.0, 1, "bad", codes=(-32700,))
    error = came({"error": {"code": -32700, "message": ""}})
    assert rules(clients=[client(bad, error, closed())]) == set()
    assert rules(clients=[client(bad, closed())]) == {"no-outcome"}
    assert rules(clients=[client(bad, error, error, closed())]) == {"two-outcomes"}


def test_a_stranger_on_tcp_may_be_closed() -> None:
    bad = Sent(0.0, 1, "bad", codes=(-32700,))
    end = Ended(1.0, "eof")
    assert rules(clients=[client(bad, end, transport="tcp")]) == set()
    assert rules(clients=[client(bad, end)]) == {"closed-without-cause"}
    assert rules(clients=[client(*[bad] * 10, end)]) == set()


LISTENED = ("L 7 demo:1 -", "K 7 demo:1", "S 7 0", "F")


def test_a_subscription_that_is_served_breaks_nothing() -> None:
    lines = (*LISTENED, "C 7")
    events: list[Event] = [listen(), acknowledged(at=0.25), updated("one/7/0/demo:1"), Ended(0.45, "close")]
    assert rules(life(*lines), clients=[client(*events)]) == set()


@pytest.mark.parametrize(("deaths", "broken"), [(2, {"wrong-outcome"}), (3, set())])
def test_a_subscription_is_given_up_after_three_servers_that_never_acknowledged_it(
    deaths: int, broken: set[str]
) -> None:
    first = life("L 7 demo:1 -", "K 7 demo:1", "D exit3", dead=True)
    later = [Life(f"later{n}", 1000, 0.5, "modern", True, parse_log(log("D exit3"))) for n in range(deaths)]
    events: list[Event] = [listen(), acknowledged(at=0.25), refusal(-31001, "s"), closed()]
    assert rules(first, *later, clients=[client(*events)]) & {"wrong-outcome"} == broken


SUBSCRIPTIONS: dict[str, tuple[tuple[str, ...], list[Event]]] = {
    "unacknowledged": (LISTENED, [listen(), updated("one/7/0/demo:1"), acknowledged(), closed()]),
    "stray-subscription": (LISTENED, [listen(), acknowledged(), updated("one/7/0/demo:2"), closed()]),
    "wrong-id": (
        (*LISTENED, "Z 7 result"),
        [listen(), acknowledged(), came({"id": "s", "result": {"_meta": {SUB: 7}}}), closed()],
    ),
    "two-outcomes": (LISTENED, [listen(), acknowledged(), acknowledged(), closed()]),
    "no-outcome": (("L 7 demo:1 -",), [listen(), closed()]),
    "not-cancelled": (LISTENED, [listen(), acknowledged(), closed()]),
    "wrongly-cancelled": ((*LISTENED, "C 7"), [listen(), acknowledged(at=0.3), closed()]),
    "lost-notification": (
        (*LISTENED, "S 7 1", "S 7 2", "F"),
        [listen(), acknowledged(), updated("one/7/0/demo:1"), updated("one/7/2/demo:1"), closed()],
    ),
    "wrong-outcome": (
        LISTENED,
        [listen(), acknowledged(), came({"id": "s", "result": {"_meta": {SUB: "s"}}}), closed()],
    ),
}


@pytest.mark.parametrize("rule", SUBSCRIPTIONS)
def test_what_is_wrong_with_a_subscription_is_named(rule: str) -> None:
    lines, events = SUBSCRIPTIONS[rule]
    assert rule in rules(life(*lines), clients=[client(*events)])


def test_every_holder_of_a_shared_subscription_gets_what_came_before_its_next_answer() -> None:
    lines = ("L 7 demo:1 -", "K 7 demo:1", "S 7 0", "R 8 1.1.2 echo -", "A 8 0", "F", "C 7")
    end = Ended(0.65, "close")
    events: list[Event] = [listen(), acknowledged(at=0.25), sent(2, id=2), answer(2, id=2), end]
    assert rules(life(*lines), clients=[client(*events)]) == {"lost-notification"}
    events.insert(2, updated("one/7/0/demo:1"))
    assert rules(life(*lines), clients=[client(*events)]) == set()


def test_after_a_restart_a_holder_is_told_what_it_may_have_missed() -> None:
    lives = (
        life(*LISTENED, dead=True),
        life(*(line.replace("7", "9") for line in LISTENED), "C 9", name="two"),
    )
    events: list[Event] = [listen(), acknowledged(at=0.15), updated("one/7/0/demo:1")]
    last: list[Event] = [updated("two/9/0/demo:1"), Ended(0.45, "close")]
    assert rules(*lives, clients=[client(*events, *last)]) == {"missed-change"}
    assert rules(*lives, clients=[client(*events, updated(None), *last)]) == set()


REPLACED = life(*LISTENED, "C 7", "D end_of_input", dead=True)
"""Told to cancel at 0.5 what its client holds."""


def successor(*lines: str, dead: bool = False) -> Life:
    """One that was spoken to at 0.1, and is asked from 0.5 on what the lines say."""
    return life("B modern", *["Q ping"] * 3, *lines, name="two", dead=dead)


@pytest.mark.parametrize(
    ("new", "rule"),
    [
        (successor("L 9 demo:1 -", "K 9 demo:1", "S 9 0", *["Q ping"] * 3, "C 9"), None),
        (successor("D exit3", dead=True), None),
        (successor(), "wrongly-cancelled"),
        (successor("L 9 demo:2 -", *["Q ping"] * 5, "C 9"), "wrongly-cancelled"),
        (
            life(*["Q ping"] * 6, "B modern", "L 9 demo:1 -", *["Q ping"] * 4, "C 9", name="two"),
            "wrongly-cancelled",
        ),
    ],
    ids=["asked again", "dead", "not asked again", "asked for something else", "not ready yet"],
)
def test_a_replaced_process_is_told_to_cancel_what_goes_on_at_the_new_one(
    new: Life, rule: str | None
) -> None:
    events: list[Event] = [listen(), acknowledged(at=0.25), updated("one/7/0/demo:1"), Ended(0.95, "close")]
    assert rules(REPLACED, new, clients=[client(*events)]) == ({rule} if rule else set())


def test_what_a_process_says_to_holders_counts_until_another_has_taken_over() -> None:
    lines = ("L 7 demo:1 -", "K 7 demo:1", "S 7 0", "R 8 1.1.2 echo -", "A 8 0", "F", "C 7")
    again = ("L 9 demo:1 -", *["Q ping"] * 5, "C 9")
    for ready_at, broken in ((0.5, set()), (0.7, {"lost-notification"})):
        new = life(*["Q ping"] * round(ready_at * 10 - 1), "B modern", *again, name="two")
        events: list[Event] = [
            *(listen(), acknowledged(at=0.25), sent(2, id=2), answer(2, id=2, at=0.65)),
            Ended(ready_at + 0.65, "close"),
        ]
        old = life(*lines, *["Q ping"] * 5)
        assert rules(old, new, clients=[client(*events)]) - {"wrongly-cancelled"} == broken


def test_a_replaced_process_answers_all_it_was_sent() -> None:
    stopped = life("R 7 1.1.1 hang -", "D end_of_input", dead=True)
    killed = life("R 7 1.1.1 hang -", dead=True)
    events: list[Event] = [sent(do="hang"), refusal(-31001), closed()]
    assert rules(stopped, clients=[client(*events)]) == {"lost-request"}
    assert rules(killed, clients=[client(*events)]) == set()
    # Where that was not written to the log, no other may have been stopped in order.
    assert rules(life("D end_of_input", dead=True), clients=[client(*events)]) == {"wrong-outcome"}


def test_one_that_was_replaced_again_and_again_may_be_stopped() -> None:
    later = [life("B modern", name=f"later {number}") for number in range(3)]
    stopped = life("B modern", "R 7 1.1.1 hang -", "D end_of_input", dead=True)
    for each in later:
        each.started = 0.1
    events: list[Event] = [sent(do="hang"), refusal(-31001), closed()]
    assert rules(stopped, *later, clients=[client(*events)]) == set()
    assert rules(stopped, *later[:2], clients=[client(*events)]) == {"lost-request"}


def test_legacy_clients_are_told_of_restarts_only() -> None:
    told = came({"method": "notifications/tools/list_changed", "params": {}})
    lives = [life("H initialize", name=name, era="legacy") for name in ("one", "two")]
    for count in (1, 2):
        connection = client(*[told] * count, closed(), era="legacy")
        broken = {"stray-notification"} if count == 2 else set()
        assert rules(*lives, clients=[connection]) == broken


def test_a_change_that_nobody_announced_is_not_made_up() -> None:
    events: list[Event] = [listen(), acknowledged(at=0.25), updated(None), Ended(0.45, "close")]
    assert rules(life(*LISTENED, "C 7"), clients=[client(*events)]) == {"stray-subscription"}


MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("rule", "last"),
    [
        ("memory", Sample(9.0, 200 * MIB, 20, 4, True)),
        ("memory", Sample(9.0, 900 * MIB, 20)),
        ("descriptors", Sample(9.0, 40 * MIB, 21, 4, True)),
        ("processes", Sample(9.0, 40 * MIB, 20, 5, True)),
    ],
)
def test_the_bridge_stays_within_bounds(rule: str, last: Sample) -> None:
    first = Sample(0.0, 40 * MIB, 20, 4, True)
    make: Callable[[Sample], set[str]] = lambda sample: rules(clients=[], samples=[first, sample])  # noqa: E731 - shorter than a function
    assert make(first) == set()
    assert make(Sample(9.0, 40 * MIB, 20, 4, True)) == set()
    assert make(last) == {rule}


def test_a_process_for_the_other_era_may_have_been_started_meanwhile() -> None:
    first, last = Sample(0.0, 40 * MIB, 20, 2, True), Sample(9.0, 40 * MIB, 24, 3, True)
    assert rules(clients=[], samples=[first, last]) == set()
    one_more = Sample(9.0, 40 * MIB, 25, 3, True)
    assert rules(clients=[], samples=[first, one_more]) == {"descriptors"}


def test_a_fault_that_the_bridge_logged_is_a_violation() -> None:
    assert rules(clients=[], faults=["Traceback (most recent call last)"]) == {"bridge-fault"}
