"""New processes take over while the old ones are in use (section 8, "SIGHUP replaces the server")."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.core.era import Era
from bridge.core.seats import REMEMBERED_S
from bridge.core.swap import MAX_DRAINING
from bridge.core.tables import NoticeKind
from tests.unit.core.scenario import (
    CLOSE,
    INITIALIZED,
    PREFIX,
    Json,
    Outcome,
    Scenario,
    acknowledged,
    asked_to_initialize,
    cancelled,
    changed,
    closing,
    discovered,
    error,
    greeting,
    initialize,
    legacy,
    listen,
    log,
    not_served,
    notification,
    probe,
    progress,
    refusal,
    request,
    result,
)
from tests.unit.core.sessions import CAPABLE, session, set_level, subscribe, updated

READY, NEED, RETIRE, SWAPPED, FAILED = (
    NoticeKind.READY,
    NoticeKind.NEED_CHILD,
    NoticeKind.RETIRE_CHILD,
    NoticeKind.SWAPPED,
    NoticeKind.SWAP_FAILED,
)
LIST_CHANGED = notification("notifications/tools/list_changed")
OTHER: Json = {"tools": {}}
"""Capabilities of another session than the one clients know."""


def moved(id: int) -> Json:
    """The cancellation of a listen at the old process."""
    return cancelled(id, reason="the server is being replaced")


def auto(clients: str = "AB", **limits: Any) -> Scenario:
    return Scenario(clients, **{"era": None, **limits})


def modern(clients: str = "AB", **limits: Any) -> Scenario:
    """The first process is modern, and idle; upstream ids go on with 3."""
    s = auto(clients, **limits)
    s.client("A", request(1)).expect(server=probe(1))
    s.server(discovered(1)).expect(server=request(2))
    s.server(result(2)).expect(A=result(1))
    return s


def legacy_session(clients: str = "AB", **limits: Any) -> Scenario:
    """The first process is legacy; A has a session and is told of changes; upstream ids go on with 2."""
    s = auto(clients, **limits)
    s.client("A", initialize(1)).expect(server=asked_to_initialize(1))
    s.server(greeting(1)).expect(server=INITIALIZED, A=greeting(1))
    s.client("A", INITIALIZED).expect()
    return s


def both(**limits: Any) -> Scenario:
    """The first process is modern, the second one legacy; B has a session; upstream ids go on with 4."""
    s = modern(**limits)
    assert s.client("B", initialize(1)).seats(NEED) == [1]
    s.open(1).expect(second=asked_to_initialize(3))
    s.second(greeting(3)).expect(second=INITIALIZED, B=greeting(1))
    s.client("B", INITIALIZED)
    return s


def swapped(s: Scenario, up: int = 3, seat: int = 2) -> Outcome:
    """A modern server is replaced by one like it, whose probe has the upstream id `up`."""
    out = s.swap()
    out.expect()
    assert out.seats(NEED) == [seat]
    s.open(seat).expect(**{f"seat{seat}": probe(up)})
    return s.server(discovered(up), seat=seat)


def gone(s: Scenario, clients: str = "AB") -> None:
    """With every client gone no table holds anything."""
    for name in clients:
        s.leave(name)
    assert s.sizes == {}
    assert s.router.in_flight == 0


def silent_for(s: Scenario, seconds: float) -> Outcome:
    """Time passes, as the shell has it: in ticks, and only while there is something to watch."""
    notices = []
    for _ in range(int(seconds * 2)):
        if not s.router.needs_tick:
            break
        out = s.wait(0.5)
        out.expect()
        notices += out.notices
    return Outcome([], notices, False)


# -- one era


def test_nothing_changes_before_the_new_process_is_ready() -> None:
    s = modern()
    out = s.swap()
    out.expect()
    assert out.seats(NEED) == [2]
    assert (s.router.seats, s.router.is_new(2), s.router.is_new(0)) == ((0, 1), True, False)
    assert s.router.is_first(2)
    s.client("A", request(2)).expect(server=request(3))
    s.open(2).expect(seat2=probe(4))
    s.client("B", request(2)).expect(server=request(5))
    s.server(result(3), result(5)).expect(A=result(2), B=result(2))
    assert not s.router.needed(2)


def test_new_requests_go_to_the_new_process_and_responses_of_the_old_one_still_come() -> None:
    s = modern()
    s.client("A", request(2, meta={"progressToken": "t"})).expect(
        server=request(3, meta={"progressToken": 3})
    )
    out = swapped(s, 4)
    out.expect()
    assert SWAPPED in out.told()
    assert out.seats(READY) == [2]
    assert (s.router.seats, s.router.is_new(2), s.router.ready) == ((2, 3), False, True)
    s.client("A", request(3)).expect(seat2=request(5))
    s.wait(1).expect()
    s.server(progress(3)).expect(A=progress("t"))
    s.server(result(3, {"of": "the old one"})).expect(A=result(2, {"of": "the old one"}))
    out = s.wait(0.1)
    out.expect()
    assert out.seats(RETIRE) == [0]
    assert s.wait(0.1).told() == []
    assert s.router.replaced(0)
    s.crash().expect()
    assert not s.router.needs_tick
    s.server(result(5), seat=2).expect(A=result(3))
    gone(s)


def test_an_idle_old_process_is_stopped_at_the_next_tick() -> None:
    s = modern()
    swapped(s).expect()
    assert s.router.needs_tick
    assert s.wait(0.1).seats(RETIRE) == [0]
    assert not s.router.needed(0)
    s.crash().expect()
    assert s.router.replaced(0)
    assert not s.router.is_first(0)


def test_what_the_old_process_tells_on_its_own_reaches_nobody() -> None:
    s = modern()
    s.client("A", listen(2, toolsListChanged=True)).expect(server=listen(3, toolsListChanged=True))
    s.server(acknowledged(3, toolsListChanged=True)).expect(A=acknowledged(2, toolsListChanged=True))
    s.client("A", request(3)).expect(server=request(4))
    out = swapped(s, 5)
    out.expect(server=moved(3), seat2=listen(6, toolsListChanged=True))
    s.server(changed(3), LIST_CHANGED, cancelled(3), acknowledged(3), closing(3), notification("x")).expect()
    s.server(changed(6), acknowledged(6), cancelled(6)).expect()
    assert s.router.stats.dropped_requests == 0
    s.server(legacy("s", "roots/list")).expect()
    assert s.router.stats.dropped_requests == 1
    s.server(acknowledged(6, toolsListChanged=True), changed(6), seat=2).expect(A=[changed(2), changed(2)])
    s.server(result(4)).expect(A=result(3))
    gone(s)


def test_logs_of_a_request_at_the_old_process_still_come() -> None:
    s = modern()
    wants = {PREFIX + "logLevel": "info"}
    s.client("A", request(2, meta=wants)).expect(server=request(3, meta=wants))
    swapped(s, 4).expect()
    s.server(log("x")).expect(A=log("x"))
    s.server(result(3)).expect(A=result(2))
    s.server(log("y")).expect()


def test_holders_see_one_change_of_each_kind_and_no_second_acknowledgement() -> None:
    s = modern()
    wanted: Json = {"toolsListChanged": True, "promptsListChanged": True, "resourceSubscriptions": ["a:b"]}
    s.client("A", listen(2, **wanted)).expect(server=listen(3, **wanted))
    s.server(acknowledged(3, **wanted)).expect(A=acknowledged(2, **wanted))
    s.client("B", listen("b", **wanted)).expect(B=acknowledged("b", **wanted))
    swapped(s, 4).expect(server=moved(3), seat2=listen(5, **wanted))
    s.client("A", listen(4, **wanted)).expect()  # it joins, and waits for the new acknowledgement

    def changes(id: object) -> list[Json]:
        uri = {"uri": "a:b"}
        return [changed(id), changed(id, "prompts/list_changed"), changed(id, "resources/updated", **uri)]

    s.server(acknowledged(5, **wanted), seat=2).expect(
        A=[*changes(2), acknowledged(4, **wanted)], B=changes("b")
    )
    s.client("B", cancelled("b")).expect()
    s.client("A", cancelled(2), cancelled(4)).expect(seat2=cancelled(5))
    gone(s)


def test_a_smaller_grant_ends_a_listen_and_a_refusal_tells_the_servers_error() -> None:
    s = modern()
    s.client("A", listen(2, toolsListChanged=True)).expect(server=listen(3, toolsListChanged=True))
    s.client("B", listen(2, promptsListChanged=True)).expect(server=listen(4, promptsListChanged=True))
    s.server(acknowledged(3, toolsListChanged=True)).expect(A=acknowledged(2, toolsListChanged=True))
    s.server(acknowledged(4, promptsListChanged=True)).expect(B=acknowledged(2, promptsListChanged=True))
    swapped(s, 5).expect(
        server=[moved(3), moved(4)],
        seat2=[listen(6, toolsListChanged=True), listen(7, promptsListChanged=True)],
    )
    s.server(acknowledged(6), error(7), seat=2).expect(
        A=closing(2), seat2=cancelled(6, reason="the bridge has ended the subscription"), B=error(2)
    )
    assert s.sizes == {"clients": 2}


def test_a_listen_that_was_not_acknowledged_is_acknowledged_by_the_new_process() -> None:
    s = modern()
    s.client("A", listen(2, toolsListChanged=True)).expect(server=listen(3, toolsListChanged=True))
    swapped(s, 4).expect(server=moved(3), seat2=listen(5, toolsListChanged=True))
    s.server(acknowledged(5, toolsListChanged=True), seat=2).expect(A=acknowledged(2, toolsListChanged=True))


def test_a_listen_with_a_token_and_logs_takes_them_along() -> None:
    s = modern()
    wants = {PREFIX + "logLevel": "info"}
    asked = listen(2, meta={**wants, "progressToken": "t"}, toolsListChanged=True)
    s.client("A", asked).expect(server=listen(3, meta={**wants, "progressToken": 3}, toolsListChanged=True))
    swapped(s, 4).expect(
        server=moved(3), seat2=listen(5, meta={**wants, "progressToken": 5}, toolsListChanged=True)
    )
    s.server(progress(3)).expect()
    s.server(progress(5), log("x"), seat=2).expect(A=[progress("t"), log("x")])
    gone(s)


def test_a_client_that_gives_up_or_leaves_is_heard_by_the_process_that_has_its_request() -> None:
    s = modern()
    s.client("A", request(2), request(3)).expect(server=[request(3), request(4)])
    s.client("B", request(2)).expect(server=request(5))
    swapped(s, 6).expect()
    s.client("A", request(4)).expect(seat2=request(7))
    s.client("A", cancelled(2, reason="r")).expect(server=cancelled(3, reason="r"))
    s.server(result(3), progress(3)).expect()
    left = {"reason": "the client disconnected"}
    s.leave("A").expect(server=cancelled(4, **left), seat2=cancelled(7, **left))
    assert s.wait(0.1).told() == []
    s.leave("B").expect(server=cancelled(5, **left))
    assert s.wait(0.1).seats(RETIRE) == [0]
    assert s.sizes == {}


def test_a_client_that_stops_sending_is_closed_after_the_old_process_has_answered() -> None:
    s = modern()
    s.client("A", request(2)).expect(server=request(3))
    swapped(s, 4).expect()
    s.eof("A").expect()
    s.server(result(3)).expect(A=[result(2), CLOSE])


def test_the_window_of_a_client_counts_both_processes() -> None:
    s = modern(max_in_flight=1)
    s.client("A", request(2), request(3)).expect(server=request(3))
    swapped(s, 4).expect()
    s.server(result(3)).expect(A=result(2), seat2=request(5))


def test_what_waited_for_a_blocked_old_process_goes_to_the_new_one() -> None:
    s = modern()
    s.client("A", request(2)).expect(server=request(3))
    s.block()
    s.client("A", request(3), notification("n")).expect()
    swapped(s, 4).expect(seat2=[request(5), notification("n")])
    s.client("A", cancelled(2)).expect(server=cancelled(3))
    out = s.unblock()
    out.expect()
    assert not out.more


def test_the_new_process_is_sent_a_request_timeouts_cancellation_only_for_its_own() -> None:
    s = modern(request_timeout=5)
    s.client("A", request(2)).expect(server=request(3))
    swapped(s, 4).expect()
    s.wait(5).expect(
        server=cancelled(3, reason="request timeout"),
        A=refusal(-31007, "request_timeout", id=2, delivered=True),
    )


def test_the_old_process_is_stopped_after_the_swap_drain_and_its_requests_are_told() -> None:
    s = modern(swap_drain=60)
    s.client("A", request(2)).expect(server=request(3))
    swapped(s, 4).expect()
    assert s.wait(59.9).told() == []
    assert s.wait(0.1).seats(RETIRE) == [0]
    assert s.wait(1).told() == []
    s.server(result(99)).expect()
    s.crash(exited=False).expect(A=refusal(-31001, "server_exited", id=2, delivered=True))
    assert s.sizes == {"clients": 2}


def test_an_answer_that_comes_while_the_old_process_is_being_stopped_counts() -> None:
    s = modern(swap_drain=1)
    s.client("A", request(2)).expect(server=request(3))
    swapped(s, 4).expect()
    assert s.wait(1).seats(RETIRE) == [0]
    s.server(result(3)).expect(A=result(2))


def test_the_old_process_may_crash_after_the_swap() -> None:
    s = modern()
    s.client("A", request(2), listen(3, toolsListChanged=True)).expect(
        server=[request(3), listen(4, toolsListChanged=True)]
    )
    swapped(s, 5).expect(server=moved(4), seat2=listen(6, toolsListChanged=True))
    assert not s.router.replaced(0)
    out = s.crash()
    out.expect(A=refusal(-31001, "server_exited", id=2, delivered=True))
    assert out.told() == []
    assert not s.router.needs_tick
    s.server(acknowledged(6), seat=2).expect(A=acknowledged(3))


def test_the_old_process_may_crash_during_the_swap_and_come_back() -> None:
    s = modern()
    s.client("A", request(2), listen(3, toolsListChanged=True)).expect(
        server=[request(3), listen(4, toolsListChanged=True)]
    )
    s.swap().expect()
    s.open(2).expect(seat2=probe(5))
    s.crash().expect(A=refusal(-31001, "server_exited", id=2, delivered=True))
    assert s.router.needed(0)
    s.client("A", request(4)).expect()
    s.open().expect(server=probe(6))
    out = s.server(discovered(5), seat=2)
    out.expect(seat2=[listen(7, toolsListChanged=True), request(8)])
    s.server(discovered(6)).expect()
    assert s.wait(0.1).seats(RETIRE) == [0]
    s.crash().expect()
    gone(s)


def test_the_old_process_may_be_away_when_the_new_one_is_ready() -> None:
    s = modern()
    s.swap()
    s.open(2).expect(seat2=probe(3))
    s.crash().expect()
    s.server(discovered(3), seat=2).expect()
    assert not s.router.needs_tick
    # One that was on its way already comes too late.
    s.open().expect()
    s.server(result(1), notification("x")).expect()
    s.wait(200).expect()
    s.crash().expect()
    gone(s)


def test_what_the_shell_says_of_a_seat_that_was_given_up_changes_nothing() -> None:
    s = modern()
    swapped(s).expect()
    s.wait(0.1)
    s.crash().expect()
    assert s.exhaust(0).told() == []
    assert not s.router.is_new(0)
    s.client("A", request(2)).expect(seat2=request(4))


def test_the_next_swap_replaces_what_came_with_the_last_one() -> None:
    s = modern()
    s.client("A", request(2)).expect(server=request(3))
    swapped(s, 4).expect()
    s.client("A", request(3)).expect(seat2=request(5))
    swapped(s, 6, 4).expect()
    s.client("A", request(4)).expect(seat4=request(7))
    s.server(result(5), seat=2).expect(A=result(3))
    assert s.wait(0.1).seats(RETIRE) == [2]
    s.server(result(3)).expect(A=result(2))
    assert s.wait(0.1).seats(RETIRE) == [0]
    s.server(result(7), seat=4).expect(A=result(4))


def test_one_more_swap_is_remembered_however_often_it_is_asked_for() -> None:
    s = modern()
    s.swap().expect()
    for _ in range(3):
        assert s.swap().told() == []
    s.open(2).expect(seat2=probe(3))
    out = s.server(discovered(3), seat=2)
    out.expect()
    assert SWAPPED in out.told()
    assert out.seats(NEED) == [4]
    assert s.wait(0.1).seats(RETIRE) == [0]
    s.open(4).expect(seat4=probe(4))
    out = s.server(discovered(4), seat=4)
    assert SWAPPED in out.told()
    assert out.seats(NEED) == []
    assert s.wait(0.1).seats(RETIRE) == [2]


def test_a_remembered_swap_is_tried_after_one_that_failed() -> None:
    s = modern()
    s.swap()
    s.swap()
    s.open(2).expect(seat2=probe(3))
    out = s.crash(2)
    assert out.told() == [FAILED, NEED]
    assert out.seats(NEED) == [4]


# -- two eras, and the legacy one


def test_with_two_eras_nothing_changes_before_both_are_ready() -> None:
    s = both()
    out = s.swap()
    out.expect()
    assert out.seats(NEED) == [2, 3]
    assert (s.router.is_first(2), s.router.is_first(3)) == (True, False)
    s.open(2).expect(seat2=probe(4))
    s.open(3).expect(seat3=asked_to_initialize(5))
    s.server(greeting(5), seat=3).expect(seat3=INITIALIZED)
    s.server(LIST_CHANGED, seat=3).expect()  # it serves nobody yet
    s.client("A", request(2)).expect(server=request(6))
    s.client("B", legacy(2)).expect(second=legacy(7))
    out = s.server(discovered(4), seat=2)
    out.expect(B=LIST_CHANGED)
    assert (out.told().count(SWAPPED), sorted(out.seats(READY))) == (1, [2, 3])
    s.client("A", request(3)).expect(seat2=request(8))
    s.client("B", legacy(3)).expect(seat3=legacy(9))
    s.second(LIST_CHANGED, notification("notifications/message", level="info", data=1)).expect()
    s.server(LIST_CHANGED, seat=3).expect(B=LIST_CHANGED)
    s.second(legacy("q", "ping")).expect(second=result("q"))
    s.second(result(7)).expect(B=result(2))
    assert s.wait(0.1).seats(RETIRE) == [1]
    s.server(result(6)).expect(A=result(2))
    assert s.wait(0.1).seats(RETIRE) == [0]
    s.crash(1).expect()
    s.crash(0).expect()
    gone(s)


def test_the_first_new_process_is_for_the_era_that_was_served_first() -> None:
    s = legacy_session()
    assert s.client("B", request(1)).seats(NEED) == [1]
    s.open(1).expect(second=probe(2))
    s.second(discovered(2)).expect(second=request(3))
    assert s.swap().seats(NEED) == [2, 3]
    s.open(3).expect(seat3=probe(4))
    s.open(2).expect(seat2=asked_to_initialize(5))
    s.server(discovered(4), seat=3).expect()
    s.server(greeting(5), seat=2).expect(seat2=INITIALIZED, A=LIST_CHANGED)
    s.client("A", legacy(2)).expect(seat2=legacy(6))
    s.client("B", request(2)).expect(seat3=request(7))


def test_a_session_goes_on_with_a_new_process_that_says_the_same() -> None:
    s = legacy_session()
    s.client("A", legacy(2)).expect(server=legacy(2))
    s.swap()
    s.open(2).expect(seat2=asked_to_initialize(3))
    # It may have other tools now.
    s.server(greeting(3), seat=2).expect(seat2=INITIALIZED, A=LIST_CHANGED)
    s.client("A", legacy(3)).expect(seat2=legacy(4))
    s.client("B", initialize("b")).expect(B=greeting("b"))
    s.server(result(2)).expect(A=result(2))
    gone(s)


def test_what_a_session_holds_is_moved_to_the_new_process_before_any_request() -> None:
    s = session()
    s.client("A", subscribe(1), set_level(2, "info"))
    s.server(result(2), result(3))
    s.client("B", subscribe(1, "v"), legacy(2))
    s.swap()
    s.open(2).expect(seat2=asked_to_initialize(6))
    s.server(greeting(6, capabilities=CAPABLE), seat=2).expect(
        seat2=[INITIALIZED, subscribe(7), subscribe(8, "v"), set_level(9, "info")]
    )
    s.client("B", legacy(3)).expect(seat2=legacy(10))
    # The old process answers requests, and no more.
    s.server(result(4), updated(), result(5)).expect(B=result(2))
    s.server(result(7), result(8), result(9), seat=2).expect(A=updated(), B=result(1))
    s.server(updated("v"), log("x"), seat=2).expect(A=log("x"), B=updated("v"))


def test_a_task_of_the_old_process_is_none_of_the_new_ones() -> None:
    s = session("A")
    s.client("A", legacy(1, "tools/call", task={}), legacy(2))
    s.server(result(2, {"task": {"taskId": "t", "status": "working"}}))
    s.swap()
    s.open(2).expect(seat2=asked_to_initialize(4))
    s.server(greeting(4, capabilities=CAPABLE), seat=2).expect(seat2=INITIALIZED)
    s.client("A", legacy(3, "tasks/get", taskId="t")).expect(A=refusal(-32602, "unknown_task", id=3))
    assert s.sizes["tasks"] == 1
    s.crash().expect(A=refusal(-31001, "server_exited", id=2, delivered=True))
    assert s.sizes == {"clients": 1, "sessions": 1}


def test_clients_of_a_session_that_is_another_one_now_are_closed() -> None:
    s = legacy_session()
    s.client("A", legacy(2)).expect(server=legacy(2))
    s.client("B", legacy(1, "ping")).expect(B=result(1))
    s.swap()
    s.open(2).expect(seat2=asked_to_initialize(3))
    s.server(greeting(3, capabilities=OTHER), seat=2).expect(
        seat2=INITIALIZED, A=CLOSE, server=cancelled(2, reason="the client disconnected")
    )
    s.client("B", initialize(2)).expect(B=greeting(2, capabilities=OTHER))
    gone(s, "B")


def test_an_era_that_came_meanwhile_has_a_new_process_made_ready_before_anything_changes() -> None:
    s = modern()
    s.swap()
    s.open(2).expect(seat2=probe(3))
    s.client("B", initialize(1), legacy(2)).expect()
    s.open(1).expect(second=asked_to_initialize(4))
    s.second(greeting(4)).expect(second=[INITIALIZED, legacy(5)], B=greeting(1))
    out = s.server(discovered(3), seat=2)
    out.expect()
    assert (out.told(), out.seats(NEED)) == ([NEED], [3])
    s.client("A", request(2)).expect(server=request(6))
    s.client("B", legacy(3)).expect(second=legacy(7))
    s.open(3).expect(seat3=asked_to_initialize(8))
    out = s.server(greeting(8), seat=3)
    out.expect(seat3=INITIALIZED)
    assert sorted(out.seats(READY)) == [2, 3]
    s.client("A", request(3)).expect(seat2=request(9))
    s.client("B", legacy(4)).expect(seat3=legacy(10))
    s.second(result(5), result(7)).expect(B=[result(2), result(3)])
    s.server(result(6)).expect(A=result(2))
    assert sorted(s.wait(0.1).seats(RETIRE)) == [0, 1]


TOOLS: Json = {"toolsListChanged": True}


def modern_away_and_legacy_to_be_replaced() -> Scenario:
    """A has a listen, and its server has died; upstream ids go on with 5."""
    s = both()
    s.client("A", listen(2, **TOOLS)).expect(server=listen(4, **TOOLS))
    s.server(acknowledged(4, **TOOLS)).expect(A=acknowledged(2, **TOOLS))
    s.crash().expect()
    assert s.swap().seats(NEED) == [2]  # in place of the legacy one, the only one that is served
    return s


@pytest.mark.parametrize("early", [True, False])
def test_a_server_that_was_away_at_the_sighup_and_is_back_serves_until_there_is_a_new_one(
    early: bool,
) -> None:
    """Hazard: it was stopped with the replaced one, and nothing was ready to take its place."""
    s = modern_away_and_legacy_to_be_replaced()
    if early:
        s.open(0).expect(server=probe(5))
    s.open(2).expect(seat2=asked_to_initialize(6 if early else 5))
    if not early:
        s.open(0).expect(server=probe(6))
    s.server(discovered(5 if early else 6)).expect(server=listen(7, **TOOLS))
    s.server(acknowledged(7, **TOOLS)).expect(A=changed(2))
    out = s.server(greeting(6 if early else 5), seat=2)
    out.expect(seat2=INITIALIZED)
    assert (out.told(), out.seats(NEED)) == ([NEED], [3])
    s.server(changed(7)).expect(A=changed(2))
    s.open(3).expect(seat3=probe(8))
    out = s.server(discovered(8), seat=3)
    out.expect(server=moved(7), seat3=listen(9, **TOOLS), B=LIST_CHANGED)
    assert sorted(out.seats(READY)) == [2, 3]
    s.server(acknowledged(9, **TOOLS), seat=3).expect(A=changed(2))
    assert s.router.seats == (2, 3)


def test_who_waits_for_a_server_that_is_not_back_at_the_swap_waits_for_a_new_one() -> None:
    s = modern_away_and_legacy_to_be_replaced()
    s.open(2).expect(seat2=asked_to_initialize(5))
    s.open(0).expect(server=probe(6))
    out = s.server(greeting(5), seat=2)
    out.expect(seat2=INITIALIZED, B=LIST_CHANGED)
    assert (SWAPPED in out.told(), out.seats(NEED)) == (True, [3])
    s.server(discovered(6)).expect()
    s.open(3).expect(seat3=probe(7))
    s.server(discovered(7), seat=3).expect(seat3=listen(8, **TOOLS))
    s.server(acknowledged(8, **TOOLS), seat=3).expect(A=changed(2))


def test_an_era_that_came_meanwhile_and_is_not_served_by_a_new_process_leaves_both_old_ones() -> None:
    s = modern()
    s.swap()
    s.open(2).expect(seat2=probe(3))
    s.client("B", initialize(1)).expect()
    s.open(1).expect(second=asked_to_initialize(4))
    s.second(greeting(4)).expect(second=INITIALIZED, B=greeting(1))
    s.server(discovered(3), seat=2).expect()
    out = s.exhaust(3)
    assert (out.told(), out.seats(RETIRE)) == ([RETIRE, FAILED], [2])
    s.client("B", legacy(2)).expect(second=legacy(5))
    unchanged(s, out, "cannot be started", 6, both=True)


@pytest.mark.parametrize("answer", [greeting(3), error(3)])
def test_an_old_process_that_was_still_being_asked_says_nothing_of_the_new_ones(answer: Json) -> None:
    s = modern()
    s.client("B", initialize(1)).expect()
    s.open(1).expect(second=asked_to_initialize(3))
    s.swap()
    s.open(2).expect(seat2=probe(4))
    out = s.server(discovered(4), seat=2)
    out.expect()
    assert out.seats(NEED) == [3]  # for who waits
    s.second(answer).expect()
    assert sorted(s.wait(0.1).seats(RETIRE)) == [0, 1]
    s.second(LIST_CHANGED).expect()
    s.crash(1).expect()
    s.open(3).expect(seat3=asked_to_initialize(5))
    s.server(greeting(5, capabilities=OTHER), seat=3).expect(
        seat3=INITIALIZED, B=greeting(1, capabilities=OTHER)
    )


def test_an_old_process_that_was_still_being_asked_may_stay_silent() -> None:
    s = modern(start_timeout=20)
    s.client("B", initialize(1)).expect()
    s.open(1).expect(second=asked_to_initialize(3))
    swapped(s, 4).expect()
    s.open(3).expect(seat3=asked_to_initialize(5))
    s.wait(19).expect()
    s.server(greeting(5), seat=3).expect(seat3=INITIALIZED, B=greeting(1))
    assert s.wait(2).told() == []
    s.client("B", legacy(2)).expect(seat3=legacy(6))


# -- it fails


def unchanged(s: Scenario, out: Outcome, why: str, up: int, *, both: bool = False) -> None:
    """A swap has failed: the old process goes on, and the reason was told once."""
    [notice] = [notice for notice in out.notices if notice.kind is FAILED]
    assert why in notice.detail.decode()
    assert SWAPPED not in out.told()
    assert s.router.seats == (0, 1)
    assert not s.router.is_new(2)
    s.client("A", request(77)).expect(server=request(up))
    s.server(result(up)).expect(A=result(77))
    # The next one may do better.
    if not both:
        swapped(s, up + 1, 4).expect()


def test_a_new_process_that_exits_leaves_the_old_one() -> None:
    s = modern()
    s.swap()
    s.open(2).expect(seat2=probe(3))
    out = s.crash(2)
    out.expect()
    assert out.seats(RETIRE) == []
    assert s.router.replaced(2)
    unchanged(s, out, "ended before it was ready", 4)


@pytest.mark.parametrize(
    "answer", [error(3, -32601), error(3, -32022, data={"supported": ["2025-06-18"]}), b'{"id":3}\n']
)
def test_a_new_process_that_refuses_its_era_leaves_the_old_one_and_no_memory(answer: Json | bytes) -> None:
    s = modern()
    s.swap()
    s.open(2).expect(seat2=probe(3))
    out = s.server(answer, seat=2)
    out.expect()
    assert out.seats(RETIRE) == [2]
    s.server(discovered(3), seat=2).expect()
    s.client("B", request(1)).expect(server=request(4))
    s.server(result(4)).expect(B=result(1))
    s.wait(0).expect()
    unchanged(s, out, "refused", 5)


def test_a_new_legacy_process_that_refuses_leaves_the_old_one() -> None:
    s = legacy_session()
    s.swap()
    s.open(2).expect(seat2=asked_to_initialize(2))
    out = s.server(error(2), seat=2)
    out.expect()
    assert (out.told(), out.seats(RETIRE)) == ([RETIRE, FAILED], [2])
    s.client("A", legacy(2)).expect(server=legacy(3))
    s.server(LIST_CHANGED).expect(A=LIST_CHANGED)


@pytest.mark.parametrize("wrote", [False, True])
def test_a_new_modern_process_that_is_silent_leaves_the_old_one(wrote: bool) -> None:
    """Nobody else needs time to be watched meanwhile."""
    s = modern(probe_timeout=10, start_timeout=120)
    s.swap()
    s.open(2).expect(seat2=probe(3))
    if wrote:
        s.server(b"hello\n", seat=2).expect()
    out = silent_for(s, 9)
    assert FAILED not in out.told()
    out = silent_for(s, 2)
    assert (FAILED in out.told()) is wrote
    if not wrote:
        assert silent_for(s, 108).told() == []
        out = silent_for(s, 3)
    assert out.seats(RETIRE) == [2]
    unchanged(s, out, "did not answer in time", 4)


def test_a_new_legacy_process_that_is_silent_leaves_the_old_one() -> None:
    s = legacy_session(start_timeout=20)
    s.swap()
    s.open(2).expect(seat2=asked_to_initialize(2))
    assert silent_for(s, 19).told() == []
    out = silent_for(s, 2)
    assert (out.told(), out.seats(RETIRE)) == ([RETIRE, FAILED], [2])
    s.client("A", legacy(2)).expect(server=legacy(3))


def test_a_new_process_that_cannot_be_started_leaves_the_old_one() -> None:
    s = modern()
    s.swap()
    out = s.exhaust(2)
    out.expect()
    unchanged(s, out, "cannot be started", 3)


def test_the_other_new_process_of_a_swap_that_failed_is_stopped_and_tells_nobody_anything() -> None:
    s = both()
    s.swap()
    s.open(2).expect(seat2=probe(4))
    s.open(3).expect(seat3=asked_to_initialize(5))
    s.server(greeting(5, capabilities=OTHER), seat=3).expect(seat3=INITIALIZED)
    out = s.crash(2)
    out.expect()
    assert out.seats(RETIRE) == [3]
    s.server(LIST_CHANGED, seat=3).expect()
    s.client("B", legacy(2), initialize(3)).expect(second=legacy(6), B=greeting(3))
    s.crash(3).expect()
    assert s.wait(0.1).told() == []


def test_a_new_process_that_comes_after_the_swap_has_failed_is_not_spoken_to() -> None:
    s = both()
    s.swap()
    s.open(2).expect(seat2=probe(4))
    s.crash(2).expect()
    s.open(3).expect()
    assert s.router.replaced(3)
    assert not s.router.is_new(3)
    s.server(result(1), notification("x"), seat=3).expect()
    s.crash(3).expect()


# -- nobody is served


def test_a_process_that_nobody_has_spoken_to_is_replaced_as_soon_as_the_new_one_runs() -> None:
    s = auto()
    out = s.swap()
    assert (out.told(), out.seats(NEED)) == ([NEED], [2])
    out = s.open(2)
    out.expect()
    assert out.told() == [SWAPPED]
    assert s.router.seats == (2, 3)
    assert s.wait(0.1).seats(RETIRE) == [0]
    s.client("A", request(1)).expect(seat2=probe(1))
    s.crash().expect()
    s.server(discovered(1), seat=2).expect(seat2=request(2))


def test_a_process_that_nobody_has_spoken_to_stays_if_no_other_can_be_started() -> None:
    s = auto()
    s.swap()
    assert s.exhaust(2).told() == [FAILED]
    s.client("A", request(1)).expect(server=probe(1))


@pytest.mark.parametrize("need", [request(1), initialize(1)])
def test_who_waits_for_a_process_that_is_being_asked_is_served_by_the_new_one(need: Json) -> None:
    s = auto()
    modern_need = need["method"] != "initialize"
    s.client("A", need).expect(server=probe(1) if modern_need else asked_to_initialize(1))
    s.swap().expect()
    out = s.open(2)
    out.expect(seat2=probe(2) if modern_need else asked_to_initialize(2))
    assert SWAPPED in out.told()
    # Its answer comes too late, and so does an exit on the probe.
    s.server(discovered(1) if modern_need else greeting(1)).expect()
    assert s.wait(0.1).seats(RETIRE) == [0]
    s.crash().expect()
    if modern_need:
        s.server(discovered(2), seat=2).expect(seat2=request(3))
    else:
        s.server(greeting(2), seat=2).expect(seat2=INITIALIZED, A=greeting(1))


def test_who_waits_for_a_restart_is_served_by_the_new_process() -> None:
    s = modern()
    s.crash().expect()
    s.client("A", request(2)).expect()
    s.wait(29)
    s.swap()
    s.open(2).expect(seat2=probe(3))
    s.server(discovered(3), seat=2).expect(seat2=request(4))
    s.server(result(4), seat=2).expect(A=result(2))


def test_who_waits_for_a_further_process_is_given_time_for_its_start() -> None:
    s = auto()
    s.client("A", initialize(1)).expect(server=asked_to_initialize(1))
    s.client("B", request(1)).expect()
    s.open(1).expect(second=probe(2))
    s.wait(40).expect()
    s.swap()
    out = s.open(2)
    out.expect(seat2=asked_to_initialize(3))  # whose need was the first
    assert out.seats(NEED) == [3]
    s.wait(29).expect()
    s.open(3).expect(seat3=probe(4))


def test_subscriptions_of_a_process_that_is_away_are_opened_at_the_new_one() -> None:
    s = modern()
    s.client("A", listen(2, toolsListChanged=True)).expect(server=listen(3, toolsListChanged=True))
    s.server(acknowledged(3)).expect(A=acknowledged(2))
    s.crash().expect()
    s.swap()
    s.open(2).expect(seat2=probe(4))
    s.server(discovered(4), seat=2).expect(seat2=listen(5, toolsListChanged=True))


def test_a_server_that_is_served_just_before_the_new_process_runs_hands_over() -> None:
    s = auto()
    s.client("A", request(1)).expect(server=probe(1))
    s.swap()
    s.server(discovered(1)).expect(server=request(2))
    s.client("A", listen(2, toolsListChanged=True)).expect(server=listen(3, toolsListChanged=True))
    s.open(2).expect(seat2=probe(4))
    s.server(result(2)).expect(A=result(1))
    s.client("A", request(3)).expect(server=request(5))
    s.server(discovered(4), seat=2).expect(server=moved(3), seat2=listen(6, toolsListChanged=True))
    s.server(result(5)).expect(A=result(3))


def test_both_eras_that_are_served_just_before_the_new_process_runs_hand_over() -> None:
    s = auto()
    s.client("A", request(1)).expect(server=probe(1))
    s.swap()
    s.server(discovered(1)).expect(server=request(2))
    s.client("B", initialize(1)).expect()
    s.open(1).expect(second=asked_to_initialize(3))
    s.second(greeting(3)).expect(second=INITIALIZED, B=greeting(1))
    out = s.open(2)
    out.expect(seat2=probe(4))
    assert (out.told(), out.seats(NEED)) == ([NEED], [3])
    s.server(discovered(4), seat=2).expect()
    s.open(3).expect(seat3=asked_to_initialize(5))
    assert SWAPPED in s.server(greeting(5), seat=3).told()


# -- the old one cannot be kept alive meanwhile


def test_who_waits_for_a_server_that_is_given_up_during_the_swap_waits_for_the_new_one() -> None:
    s = modern()
    s.swap()
    s.crash().expect()
    s.client("A", request(2), listen(3, toolsListChanged=True)).expect()
    assert s.exhaust().told() == []
    assert s.router.replacing
    s.open(2).expect(seat2=probe(3))
    s.server(discovered(3), seat=2).expect(seat2=[request(4), listen(5, toolsListChanged=True)])
    assert not s.router.replacing


def test_who_waits_for_a_server_that_never_was_ready_waits_for_the_new_one() -> None:
    s = auto()
    s.client("A", initialize(1)).expect(server=asked_to_initialize(1))
    s.crash().expect()
    s.swap()
    assert s.exhaust().told() == []
    s.open(2).expect(seat2=asked_to_initialize(2))
    s.server(greeting(2), seat=2).expect(seat2=INITIALIZED, A=greeting(1))


def test_an_era_that_the_swap_does_not_bring_is_refused_when_its_server_is_given_up() -> None:
    s = modern()
    assert s.client("B", initialize(1)).seats(NEED) == [1]
    s.swap()
    out = s.exhaust(1)
    out.expect(B=not_served(1, Era.LEGACY, "2026-07-28"))
    assert out.told() == [NoticeKind.ERA_REFUSED]


# -- many


def test_of_many_old_processes_that_still_answer_the_oldest_is_stopped() -> None:
    s = modern()
    up, seat = 3, 0
    for number in range(MAX_DRAINING + 1):
        s.client("A", request(10 + number)).expect(**{f"seat{seat}" if seat else "server": request(up)})
        assert s.wait(0.1).seats(RETIRE) == []
        swapped(s, up + 1, seat + 2).expect()
        up, seat = up + 2, seat + 2
    assert s.wait(0.1).seats(RETIRE) == [0]
    assert s.wait(0.1).seats(RETIRE) == []
    s.crash().expect(A=refusal(-31001, "server_exited", id=10, delivered=True))
    s.server(result(5), seat=2).expect(A=result(11))
    assert s.wait(0.1).seats(RETIRE) == [2]


def test_one_more_is_remembered_while_nobody_is_served() -> None:
    s = auto()
    s.client("A", request(1)).expect(server=probe(1))
    s.swap()
    s.swap()
    out = s.open(2)
    out.expect(seat2=probe(2))
    assert out.seats(NEED) == [4]
    out = s.open(4)
    out.expect(seat4=probe(3))
    assert sorted(s.wait(0.1).seats(RETIRE)) == [0, 2]
    s.server(discovered(3), seat=4).expect(seat4=request(4))


# -- a decided era


def test_a_decided_era_is_asked_of_the_new_process_and_the_other_one_stays_refused() -> None:
    s = Scenario("A")  # --era modern
    swapped(s, 2).expect()
    s.client("A", request(1)).expect(seat2=request(3))
    s.client("A", initialize(2)).expect(A=not_served(2, Era.LEGACY))


def test_a_decided_era_that_is_not_served_yet_is_asked_of_the_new_process() -> None:
    s = Scenario("A", server=False, era=Era.LEGACY)
    s.open().expect(server=asked_to_initialize(1))
    s.client("A", initialize(1)).expect()
    s.swap()
    out = s.open(2)
    out.expect(seat2=asked_to_initialize(2))
    assert SWAPPED in out.told()
    s.server(greeting(2), seat=2).expect(seat2=INITIALIZED, A=greeting(1))
    s.client("A", request(2)).expect(A=not_served(2, Era.MODERN))


def test_with_a_decided_modern_era_a_silent_new_process_is_taken_for_ready() -> None:
    s = Scenario("A", probe_timeout=10)
    s.swap()
    s.open(2).expect(seat2=probe(2))
    assert SWAPPED not in silent_for(s, 9).told()
    assert SWAPPED in silent_for(s, 2).told()
    s.client("A", request(1)).expect(seat2=request(3))


# -- what was learnt


def test_refusals_are_forgotten() -> None:
    s = legacy_session()
    s.client("B", request(1)).expect()
    s.open(1).expect(second=probe(2))
    assert s.second(error(2, -32601)).seats(RETIRE) == [1]
    s.crash(1)
    s.client("B", request(2)).expect(B=not_served(2, Era.MODERN))
    s.swap()
    s.open(2).expect(seat2=asked_to_initialize(3))
    s.client("B", request(3)).expect(B=not_served(3, Era.MODERN))
    s.server(greeting(3), seat=2).expect(seat2=INITIALIZED, A=LIST_CHANGED)
    assert s.client("B", request(4)).seats(NEED) == [3]
    s.open(3).expect(seat3=probe(4))
    s.server(discovered(4), seat=3).expect(seat3=request(5))


def test_refusals_stay_after_a_swap_that_failed() -> None:
    s = legacy_session()
    s.client("B", request(1)).expect()
    s.open(1).expect(second=probe(2))
    s.second(error(2, -32601))
    s.swap()
    s.exhaust(2)
    s.wait(2 * REMEMBERED_S)
    s.client("B", request(2)).expect(B=not_served(2, Era.MODERN))


def test_an_era_that_no_process_has_settled_on_is_open_again() -> None:
    """A modern server is away; the new one is strictly legacy, and exits on the probe."""
    s = modern()
    s.crash().expect()
    s.swap()
    s.open(2).expect()
    s.client("A", request(2)).expect(seat2=probe(3))
    s.crash(2).expect(A=not_served(2, Era.MODERN))
    assert s.router.replaced(2)
    s.open(2).expect()
    s.client("B", initialize(1)).expect(seat2=asked_to_initialize(4))


def test_nobody_is_greeted_in_the_name_of_an_old_server() -> None:
    s = legacy_session()
    s.leave("A")
    s.crash().expect()
    s.swap()
    s.open(2).expect()
    s.client("B", initialize(1)).expect(seat2=asked_to_initialize(2))
    s.server(greeting(2, capabilities=OTHER), seat=2).expect(
        seat2=INITIALIZED, B=greeting(1, capabilities=OTHER)
    )


def test_who_still_has_a_session_of_the_old_server_is_closed_if_the_new_one_says_another() -> None:
    s = legacy_session()
    s.crash().expect()
    s.swap()
    s.open(2).expect()
    s.client("A", legacy(2)).expect(seat2=asked_to_initialize(2))
    s.server(greeting(2, capabilities=OTHER), seat=2).expect(seat2=INITIALIZED, A=CLOSE)


# -- the end


@pytest.mark.parametrize("ready", [False, True])
def test_the_bridge_may_stop_during_a_swap(ready: bool) -> None:
    s = modern()
    s.client("A", request(2), listen(3, toolsListChanged=True)).expect(
        server=[request(3), listen(4, toolsListChanged=True)]
    )
    s.swap()
    s.swap()
    s.open(2).expect(seat2=probe(5))
    if ready:
        s.server(discovered(5), seat=2).expect(server=moved(4), seat2=listen(6, toolsListChanged=True))
    upstream = {"seat2": cancelled(6, reason="the bridge has ended the subscription")}
    if not ready:
        upstream = {"server": cancelled(4, reason="the bridge has ended the subscription")}
    s.drain().expect(A=closing(3), **upstream)
    s.client("A", request(4)).expect(A=refusal(-31005, "shutting_down", id=4))
    s.server(result(3)).expect(A=result(2))
    assert s.router.in_flight == 0
    s.stop().expect(A=CLOSE, B=CLOSE)
    s.crash()
    s.crash(2).expect()
    assert s.sizes == {}


def test_a_new_process_that_is_ready_during_the_drain_takes_over_nothing() -> None:
    s = modern()
    s.client("A", request(2)).expect(server=request(3))
    s.swap()
    s.open(2).expect(seat2=probe(4))
    s.drain().expect()
    s.server(discovered(4), seat=2).expect()
    s.server(result(3)).expect(A=result(2))
    s.stop().expect(A=CLOSE, B=CLOSE)


def test_what_is_at_an_old_process_when_the_time_is_up_is_given_up() -> None:
    s = modern()
    s.client("A", request(2)).expect(server=request(3))
    swapped(s, 4).expect()
    s.client("A", request(3)).expect(seat2=request(5))
    s.drain().expect()
    reason = {"reason": "the bridge is stopping"}
    s.stop().expect(
        server=cancelled(3, **reason),
        seat2=cancelled(5, **reason),
        A=[refusal(-31005, "shutting_down", id=id, delivered=True) for id in (2, 3)] + [CLOSE],
        B=CLOSE,
    )
    assert s.sizes == {}


def test_nothing_is_kept_of_any_number_of_swaps() -> None:
    s = modern()
    up, seat = 3, 2
    for _ in range(20):
        swapped(s, up, seat).expect()
        s.wait(0.1)
        s.crash(seat - 2)
        s.swap()
        s.exhaust(seat + 2)
        up, seat = up + 1, seat + 4
        swapped(s, up, seat).expect()
        s.wait(0.1)
        s.crash(seat - 4)
        up, seat = up + 1, seat + 2
    assert len(s.router._tables._seats) == 2
    assert len(s.router._tables.children) == 1
    assert not s.router.needs_tick
