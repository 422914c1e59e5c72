"""The judge on legacy sessions and on clients with a process of their own: one thing is wrong, and named."""

from __future__ import annotations

from typing import Any

import pytest

from tests.history.record import Connection, Ended, Event, Life, Received, Sent
from tests.history.test_judge import answer, came, life, refusal, rules, sent


def legacy(*events: Event, number: int = 1, apart: bool = False) -> Connection:
    return Connection(number, "unix", "legacy", list(events), apart=apart)


def one(*lines: str, **more: Any) -> Life:
    return life(*lines, **{"era": "legacy", **more})


def asks(kind: str, what: str, seq: int = 1, at: float = 0.0) -> Sent:
    return Sent(at, seq, kind, f"s{seq}", filter=what)


def done(seq: int = 1, at: float = 0.25) -> Received:
    return came({"id": f"s{seq}", "result": {}}, at)


def refused(seq: int = 1, at: float = 0.25) -> Received:
    return came({"id": f"s{seq}", "error": {"code": -32602, "message": ""}}, at)


def updated(uri: str, mark: str | None = None, at: float = 0.7) -> Received:
    params = {"uri": uri, **({} if mark is None else {"mark": mark})}
    return came({"method": "notifications/resources/updated", "params": params}, at)


def logged(level: str, mark: str, at: float = 0.7) -> Received:
    return came({"method": "notifications/message", "params": {"level": level, "data": mark}}, at)


def state(task: str, mark: str, at: float = 0.7) -> Received:
    return came({"method": "notifications/tasks/status", "params": {"taskId": task, "mark": mark}}, at)


def closed(at: float = 9.0) -> Ended:
    return Ended(at, "close", True)


HELD = ("u 1 demo:0", "a 1 ok", "F", "m 5 demo:0/x", "R 2 1.1.2 echo -", "A 2 0", "F")
"""A subscription, an update of a part, and an answer behind it."""

HOLDS: list[Event] = [asks("subscribe", "demo:0"), done()]
THEN: list[Event] = [sent(2, id=2), answer(2, id=2, at=0.8)]


def test_who_holds_a_resource_is_told_of_its_parts() -> None:
    told = updated("demo:0/x", "one/5")
    assert rules(one(*HELD), clients=[legacy(*HOLDS, told, *THEN, closed())]) == set()
    assert rules(one(*HELD), clients=[legacy(*HOLDS, *THEN, closed())]) == {"lost-notification"}


def test_who_holds_nothing_is_told_nothing() -> None:
    told = updated("demo:0/x", "one/5")
    assert rules(one(*HELD), clients=[legacy(*THEN[:1], told, THEN[1], closed())]) == {"stray-update"}
    other = asks("subscribe", "demo:0/y", seq=3)
    events: list[Event] = [other, done(3), *THEN[:1], told, THEN[1], closed()]
    assert rules(one(*HELD), clients=[legacy(*events)]) == {"stray-update"}


def test_who_has_given_up_is_told_nothing_any_more() -> None:
    told = updated("demo:0/x", "one/5", at=0.6)
    events: list[Event] = [*HOLDS, asks("unsubscribe", "demo:0", 3, 0.3), done(3, 0.5)]
    assert rules(one(*HELD), clients=[legacy(*events, told, *THEN, closed())]) == {"stray-update"}
    assert rules(one(*HELD), clients=[legacy(*events, *THEN, closed())]) == set()


def test_in_between_nobody_knows() -> None:
    told = updated("demo:0/x", "one/5", at=0.6)
    events: list[Event] = [*HOLDS, asks("unsubscribe", "demo:0", 3, 0.3), *THEN]
    late: list[Event] = [done(3, 0.9), closed()]
    assert rules(one(*HELD), clients=[legacy(*events, *late)]) == set()
    assert rules(one(*HELD), clients=[legacy(*events[:3], told, *THEN, *late)]) == set()


def test_an_update_comes_once_in_order_and_unaltered() -> None:
    lines = (*HELD, "m 6 demo:0", "F")
    first, second = updated("demo:0/x", "one/5"), updated("demo:0", "one/6")
    for wrong in ([first, first], [updated("demo:0/x", "one/7")]):
        events: list[Event] = [*HOLDS, *wrong, *THEN, closed()]
        assert "stray-notification" in rules(one(*lines), clients=[legacy(*events)])
    assert "order" in rules(one(*lines), clients=[legacy(*HOLDS, second, first, *THEN, closed())])
    assert "altered" in rules(
        one(*HELD), clients=[legacy(*HOLDS, updated("demo:0", "one/5"), *THEN, closed())]
    )


def test_what_the_server_refuses_is_refused() -> None:
    lines = ("u 1 demo:refuse", "a 1 no", "F")
    asked = asks("subscribe", "demo:refuse")
    assert rules(one(*lines), clients=[legacy(asked, refused(), closed())]) == set()
    assert rules(one(*lines), clients=[legacy(asked, done(), closed())]) == {"wrong-outcome"}
    assert rules(one(*HELD[:3]), clients=[legacy(HOLDS[0], refused(), closed())]) == {"wrong-outcome"}


def test_the_server_is_not_told_to_end_what_somebody_holds() -> None:
    lines = ("u 1 demo:0", "a 1 ok", "F", "v 2 demo:0", "a 2 ok", "F")
    assert rules(one(*lines), clients=[legacy(*HOLDS, closed())]) == {"wrongly-unsubscribed"}
    assert rules(one(*lines), clients=[legacy(*HOLDS, closed(0.3))]) == set()


def second(*lines: str) -> Life:
    """A process that came at 0.3 s. The first line is at 0.4 s."""
    new = one(*["Q ping"] * 3, *lines, name="two")
    new.started = 0.3
    return new


def test_the_next_process_is_told_what_is_held_before_anything_else() -> None:
    old = one(*HELD[:3], dead=True)
    ask = ("R 9 1.1.2 echo -", "A 9 0", "F")
    replayed = ("u 7 demo:0", "a 7 ok", "F")
    missed = updated("demo:0", at=0.75)
    events: list[Event] = [*HOLDS, missed, *THEN, closed()]
    assert rules(old, second(*replayed, *ask), clients=[legacy(*events)]) == set()
    assert rules(old, second(*ask), clients=[legacy(*events)]) == {"not-replayed"}
    assert rules(old, second(*ask, *replayed), clients=[legacy(*events)]) == {"not-replayed"}
    events.remove(missed)
    assert rules(old, second(*replayed, *ask), clients=[legacy(*events)]) == {"missed-change"}


def test_the_next_process_is_told_a_level_that_is_verbose_enough() -> None:
    old = one("s 1 info", "a 1 ok", "F", dead=True)
    ask = ("R 9 1.1.2 echo -", "A 9 0", "F")
    events: list[Event] = [asks("level", "info"), done(), *THEN, closed()]
    for level, found in (("info", set()), ("debug", set()), ("error", {"not-replayed"})):
        assert rules(old, second(f"s 7 {level}", *ask), clients=[legacy(*events)]) == found
    assert rules(old, second(*ask), clients=[legacy(*events)]) == {"not-replayed"}


def test_a_change_that_nobody_can_have_missed_is_not_made_up() -> None:
    assert rules(one(*HELD[:3]), clients=[legacy(*HOLDS, updated("demo:0"), closed())]) == {"stray-update"}


LOGS = ("s 1 error", "a 1 ok", "F", "g 5 alert -", "g 6 info -", "R 2 1.1.2 echo -", "A 2 0", "F")


@pytest.mark.parametrize(
    ("level", "heard", "rule"),
    [
        ("error", ["alert"], None),
        ("error", ["alert", "info"], "stray-log"),
        ("error", [], "lost-notification"),
        ("info", ["alert", "info"], None),
        ("info", ["alert"], "lost-notification"),
        (None, [], None),
        (None, ["alert"], "stray-log"),
    ],
)
def test_a_client_hears_what_its_own_level_admits(
    level: str | None, heard: list[str], rule: str | None
) -> None:
    numbers = {"alert": 5, "info": 6}
    asked: list[Event] = [] if level is None else [asks("level", level), done()]
    events = [*asked, *(logged(name, f"one/{numbers[name]}") for name in heard), *THEN, closed()]
    assert rules(one(*LOGS), clients=[legacy(*events)]) == ({rule} if rule else set())


MADE = ("R 1 1.1.1 task:hang -", "t 1 one-4", "A 1 0", "F", "i 5 one-4", "R 2 1.1.2 echo -", "A 2 0", "F")


def made(at: float = 0.45) -> Received:
    result = {"resultType": "complete", "mark": "1.1.1", "n": 0, "blob": [], "task": {"taskId": "one-4"}}
    return came({"id": 1, "result": result}, at)


MAKES: list[Event] = [sent(1, do="task:hang"), made()]


def test_a_tasks_state_comes_to_its_owner_alone() -> None:
    lines = (*MADE, *["Q ping"] * 2, "x 3 one-4")
    told = state("one-4", "one/5")
    owner = legacy(*MAKES, told, *THEN, closed(1.0))
    assert rules(one(*lines), clients=[owner]) == set()
    assert rules(one(*lines), clients=[owner, legacy(told, closed(), number=2)]) == {"stray-task"}
    assert rules(one(*lines), clients=[legacy(*MAKES, *THEN, closed(1.0))]) == {"lost-notification"}


def test_a_task_is_cancelled_when_its_owner_leaves_and_not_before() -> None:
    told = state("one-4", "one/5")
    assert rules(one(*MADE), clients=[legacy(*MAKES, told, *THEN, closed())]) == {"not-cancelled"}
    given_up = (*MADE, "y 2 one-4")
    assert rules(one(*given_up), clients=[legacy(*MAKES, told, *THEN, closed())]) == set()
    early = (*MADE, "x 3 one-4")
    assert rules(one(*early), clients=[legacy(*MAKES, told, *THEN, closed())]) == {"wrongly-cancelled"}


@pytest.mark.parametrize(
    ("names", "found"), [(["one-4"], set()), (["one-4", "one-3"], {"stray-task"}), ([], {"stray-task"})]
)
def test_a_list_of_tasks_names_ones_own(names: list[str], found: set[str]) -> None:
    lines = (*MADE[:4], "R 2 1.1.2 tasks -", "l 2 one-3,one-4", "A 2 0", "F", "y 2 one-4")
    result = {"mark": "1.1.2", "n": 0, "blob": [], "tasks": [{"taskId": name} for name in names]}
    listed = came({"id": 2, "result": result}, 0.8)
    events: list[Event] = [*MAKES, sent(2, do="tasks", id=2), listed, closed()]
    assert rules(one(*lines), clients=[legacy(*events)]) == found


def test_anothers_task_does_not_exist_and_ones_own_does() -> None:
    """-32602 is right for what is another's, and for one's own only once its process is gone."""
    end = ("y 2 one-4",)
    about: dict[str, Any] = {"filter": "one-4", "id": 2}
    error = refusal(-32602, id=2, delivered=False, at=0.8)
    own: list[Event] = [*MAKES, sent(2, do="about-task", **about), error, closed()]
    assert rules(one(*MADE[:4], *end), clients=[legacy(*own)]) == {"wrong-outcome"}
    assert rules(one(*MADE[:4], dead=True), clients=[legacy(*own)]) == set()
    asked = sent(3, do="about-task", id=2, number=2, filter="one-4", codes=(-32602,))
    owner = legacy(*MAKES, closed())
    assert rules(one(*MADE[:4], *end), clients=[owner, legacy(asked, error, closed(), number=2)]) == set()
    ran = ("R 2 1.2.3 about-task -", "A 2 0", "F")
    told = answer(3, id=2, number=2)
    found = rules(one(*MADE[:4], *ran, *end), clients=[owner, legacy(asked, told, closed(), number=2)])
    assert found == {"wrong-outcome"}


# -- a process of one's own


def own(*lines: str, **more: Any) -> Life:
    return life(*lines, **{"era": "apart", "dead": True, **more})


ASKED = (
    "R 1 1.1.1 ask:x -",
    "q 1.1.1",
    "F",
    "Q 1.1.1 result",
    "A 1 0",
    "F",
    "R 2 1.1.3 echo -",
    "A 2 0",
    "F",
)
QUESTION = came({"id": 1, "method": "sampling/createMessage", "params": {"mark": "1.1.1"}}, 0.3)
REPLY = Sent(0.3, 2, "answer", 1, do="1.1.1")
AFTER: list[Event] = [answer(1, at=0.6), sent(3, id=2), answer(3, id=2, at=0.9), Ended(1.0, "close", True)]


def test_a_request_of_ones_own_process_is_asked_and_answered() -> None:
    asker = legacy(sent(1, do="ask:x"), QUESTION, REPLY, *AFTER, apart=True)
    assert rules(own(*ASKED), clients=[asker]) == set()
    deaf = legacy(sent(1, do="ask:x"), *AFTER, apart=True)
    assert rules(own(*ASKED), clients=[deaf]) == {"lost-question"}
    twice = legacy(sent(1, do="ask:x"), QUESTION, QUESTION, REPLY, *AFTER, apart=True)
    assert rules(own(*ASKED), clients=[twice]) == {"stray-request"}
    strange = legacy(QUESTION, Ended(1.0, "close", True), number=2, apart=True)
    assert rules(own(*ASKED), clients=[asker, strange]) == {"stray-request"}


def test_an_answer_does_not_wait_behind_requests_and_is_not_lost() -> None:
    asker = legacy(sent(1, do="ask:x"), QUESTION, REPLY, *AFTER, apart=True)
    late = (*ASKED[:3], ASKED[6], ASKED[3], *ASKED[4:6], *ASKED[7:])
    assert rules(own(*late), clients=[asker]) == {"lost-question"}
    for how in ("error", "wrong"):
        lines = [line.replace("Q 1.1.1 result", f"Q 1.1.1 {how}") for line in ASKED]
        assert rules(own(*lines), clients=[asker]) == {"lost-question"}


def test_a_process_of_ones_own_is_nobody_elses() -> None:
    lines = ("R 1 1.1.1 echo -", "A 1 0", "F", "R 2 1.2.1 echo -", "A 2 0", "F")
    clients = [
        legacy(sent(), answer(at=0.4), closed(), apart=True),
        legacy(sent(number=2, id=2), answer(id=2, number=2), closed(), number=2, apart=True),
    ]
    assert rules(own(*lines), clients=clients) == {"wrong-process"}
    assert rules(one(*lines[:3]), clients=clients[:1]) == {"wrong-process"}
    assert rules(own(*lines[:3]), clients=[legacy(sent(), answer(), closed())]) == {"wrong-process"}


def test_a_client_whose_process_has_died_is_answered_and_closed() -> None:
    died = own("R 1 1.1.1 crash -", "D exit3")
    end = Ended(0.5, "eof")
    told = refusal(-31001, at=0.4)
    assert rules(died, clients=[legacy(sent(do="crash"), told, end, apart=True)]) == set()
    assert rules(died, clients=[legacy(sent(do="crash"), end, apart=True)]) == {"no-outcome"}
    assert rules(died, clients=[legacy(sent(do="crash"), told, closed(), apart=True)]) == {"no-end"}
    stopped = own("R 1 1.1.1 echo -", "A 1 0", "F", killed=False)
    closed_early = legacy(sent(), answer(at=0.4), end, apart=True)
    assert rules(stopped, clients=[closed_early]) == {"closed-without-cause"}
