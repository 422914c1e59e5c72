"""Legacy resource subscriptions of clients that share a session (section 7, "Legacy, shared")."""

from __future__ import annotations

import pytest

from bridge.core import resources
from bridge.core.era import Era
from bridge.core.tables import NoticeKind
from tests.unit.core.scenario import (
    CLOSE,
    INITIALIZED,
    Scenario,
    asked_to_initialize,
    cancelled,
    error,
    greeting,
    initialize,
    left,
    legacy,
    line,
    not_served,
    refusal,
    request,
    result,
)
from tests.unit.core.sessions import CAPABLE, LISTS, session, set_level, subscribe, unsubscribe, updated

GIVEN_UP = "whoever asked for it has given up"


# -- counting


def test_the_server_is_asked_at_the_first_subscriber_and_told_at_the_last() -> None:
    s = session("ABC")
    s.client("A", subscribe(1)).expect(server=subscribe(2))
    s.server(result(2)).expect(A=result(1))
    s.client("B", subscribe("b")).expect(B=result("b"))
    s.client("A", unsubscribe(2)).expect(A=result(2))
    s.client("B", unsubscribe(3)).expect(server=unsubscribe(3))
    s.server(result(3)).expect(B=result(3))
    assert s.sizes == {"clients": 3, "sessions": 3}
    s.client("C", subscribe(1)).expect(server=subscribe(4))


def test_a_client_that_subscribes_twice_counts_once() -> None:
    s = session("A")
    s.client("A", subscribe(1))
    s.server(result(2))
    s.client("A", subscribe(2)).expect(A=result(2))
    assert s.sizes == {"clients": 1, "sessions": 1, "resource_holders": 1}
    s.client("A", unsubscribe(3)).expect(server=unsubscribe(3))


def test_who_joins_a_pending_subscription_shares_its_success() -> None:
    s = session("ABC")
    s.client("A", subscribe(1)).expect(server=subscribe(2))
    s.client("B", subscribe("x")).expect()
    s.client("C", subscribe(7)).expect()
    s.server(result(2, {"_meta": {"a": 1.0}})).expect(
        A=result(1, {"_meta": {"a": 1.0}}),
        B=result("x", {"_meta": {"a": 1.0}}),
        C=result(7, {"_meta": {"a": 1.0}}),
    )
    s.server(updated()).expect(A=updated(), B=updated(), C=updated())


def test_who_joins_a_pending_subscription_shares_its_failure_and_no_count_is_left() -> None:
    s = session()
    s.client("A", subscribe(1))
    s.client("B", subscribe(2))
    s.server(error(2, -32002, "none")).expect(A=error(1, -32002, "none"), B=error(2, -32002, "none"))
    assert s.sizes == {"clients": 2, "sessions": 2}
    s.server(updated()).expect()
    s.client("B", subscribe(3)).expect(server=subscribe(3))


def test_an_answer_that_cannot_be_read_leaves_the_server_in_no_doubt() -> None:
    """It may hold the subscription, which nobody wants then."""
    s = session()
    s.client("A", subscribe(1))
    s.server(b'{"jsonrpc":"2.0","id":2,"result":{"x":?}}\n').expect(
        A=refusal(-31008, "invalid_response", id=1, delivered=True), server=unsubscribe(3)
    )
    s.client("B", subscribe(1)).expect()
    s.server(b'{"jsonrpc":"2.0","id":3,"result":{},"error":{}}\n').expect(server=subscribe(4))
    s.server(result(4)).expect(B=result(1))


def test_a_refused_unsubscribe_is_passed_on_and_leaves_no_count() -> None:
    s = session("A")
    s.client("A", subscribe(1))
    s.server(result(2))
    s.client("A", unsubscribe(2))
    s.server(error(3)).expect(A=error(2))
    s.server(updated()).expect()
    s.client("A", subscribe(3)).expect(server=subscribe(4))


def test_an_unsubscribe_of_what_nobody_holds_is_the_servers_to_answer() -> None:
    s = session()
    s.client("A", unsubscribe(1)).expect(server=unsubscribe(2))
    s.client("B", unsubscribe(1)).expect()
    s.server(error(2, -32002, "none")).expect(A=error(1, -32002, "none"), B=error(1, -32002, "none"))
    assert s.sizes == {"clients": 2, "sessions": 2}


def test_an_unsubscribe_of_what_only_others_hold_changes_nothing() -> None:
    s = session()
    s.client("A", subscribe(1))
    s.server(result(2))
    s.client("B", unsubscribe(1)).expect(B=result(1))
    s.server(updated()).expect(A=updated())


def test_requests_about_one_uri_are_carried_out_one_after_the_other() -> None:
    s = session()
    s.client("A", subscribe(1), unsubscribe(2), subscribe(3)).expect(server=subscribe(2))
    s.client("B", unsubscribe(1)).expect()
    s.server(result(2)).expect(A=result(1), server=unsubscribe(3))
    s.server(result(3)).expect(A=result(2), server=subscribe(4))
    s.server(result(4)).expect(A=result(3), B=result(1))
    s.server(updated()).expect(A=updated())


def test_other_uris_do_not_wait() -> None:
    s = session("A")
    s.client("A", subscribe(1, "u"), subscribe(2, "v"), legacy(3)).expect(
        server=[subscribe(2, "u"), subscribe(3, "v"), legacy(4)]
    )
    s.server(result(3)).expect(A=result(2))


def test_a_uri_with_an_unpaired_surrogate_is_spelled_as_it_came() -> None:
    s = session()
    asked = (
        rb'{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"\u00e9\ud83d"}}' + b"\n"
    )
    assert rb'"uri":"\u00e9\ud83d"' in s.client("A", asked).bytes("server")
    s.server(result(2)).expect(A=result(1))
    s.client("B", asked).expect(B=result(1))
    said = (
        rb'{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"\u00e9\ud83d"}}'
        + b"\n"
    )
    out = s.server(said)
    assert out.bytes("A") == out.bytes("B") == said


@pytest.mark.parametrize("params", [{}, {"uri": 5}, {"uri": None}, [], None])
def test_a_subscription_to_no_uri_is_refused(params: object) -> None:
    s = session("A")
    for method in ("resources/subscribe", "resources/unsubscribe"):
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        s.client("A", message).expect(A=refusal(-32602, "invalid_params", id=1))


def test_a_client_may_hold_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "MAX_OF_CLIENT", 1)
    s = session()
    s.client("A", subscribe(1))
    s.server(result(2))
    s.client("A", subscribe(2, "v")).expect(A=refusal(-31003, "too_many_subscriptions", id=2))
    s.client("A", subscribe(3)).expect(A=result(3))
    s.client("B", subscribe(1, "v")).expect(server=subscribe(3, "v"))


def test_all_clients_together_may_hold_so_many_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "MAX_IN_ALL", 1)
    s = session()
    s.client("A", subscribe(1))
    # What is not answered yet counts, or URIs of a server that never answers would pile up.
    s.client("B", subscribe(1, "v")).expect(B=refusal(-31003, "too_many_subscriptions", id=1))
    s.server(result(2))
    s.client("B", subscribe(2, "u")).expect(B=refusal(-31003, "too_many_subscriptions", id=2))


def test_what_a_client_subscribes_to_counts_as_held_for_it() -> None:
    s = session("A")
    s.client("A", subscribe(1, "u" * 100))
    s.server(result(2))
    assert s.router.buffered(s.key("A")) == 102


# -- updates


@pytest.mark.parametrize(
    ("held", "uri", "told"),
    [
        ("file:///a", "file:///a", True),
        ("file:///a/", "file:///a/b/c", True),
        ("file:///a", "file:///a/b", True),
        ("file:///a", "file:///ab", False),
        ("file:///a/b", "file:///a", False),
        ("file:///a/", "file:///a", False),
        ("file:///", "file:///" + "x/" * 100, True),
        ("file:///x", "file:///" + "x/" * 100, True),
        ("file:///y", "file:///" + "x/" * 100, False),
        ("file:///", "file:///" + "x" * 5000, True),
        ("file:///" + "x" * 5000, "file:///" + "x" * 5000, True),
        ("file:///" + "x" * 4999, "file:///" + "x" * 5000, False),
    ],
)
def test_an_update_reaches_who_subscribed_to_the_uri_or_to_a_part_of_it_that_ends_at_a_slash(
    held: str, uri: str, told: bool
) -> None:
    s = session()
    s.client("A", subscribe(1, held))
    s.server(result(2))
    s.server(updated(uri)).expect(**({"A": updated(uri)} if told else {}))
    assert s.stats.dropped_notifications == (not told)


def test_an_update_comes_once_however_many_subscriptions_cover_it() -> None:
    s = session("A")
    for number, uri in enumerate(("a/", "a", "a/b")):
        s.client("A", subscribe(1, uri))
        s.server(result(2 + number))
    s.server(updated("a/b", title="t")).expect(A=updated("a/b", title="t"))


# -- cancelling and leaving


def test_the_last_subscriber_that_leaves_unsubscribes() -> None:
    s = session()
    for name in "AB":
        s.client(name, subscribe(1), subscribe(2, "v"))
        s.server(result(2), result(3))
    s.leave("A").expect()
    s.leave("B").expect(server=[unsubscribe(4), unsubscribe(5, "v")])
    assert s.sizes == {}
    s.server(result(4), error(5)).expect()


def test_who_subscribes_while_the_last_ones_unsubscribe_is_pending_is_subscribed_anew() -> None:
    s = session()
    s.client("A", subscribe(1))
    s.server(result(2))
    s.leave("A").expect(server=unsubscribe(3))
    s.client("B", subscribe(1)).expect()
    s.server(result(3)).expect(server=subscribe(4))
    s.server(result(4)).expect(B=result(1))


def test_a_subscription_that_is_cancelled_is_called_back_if_nobody_else_wants_it() -> None:
    s = session()
    s.client("A", subscribe(1))
    s.client("A", cancelled(1)).expect(server=[cancelled(2, reason=GIVEN_UP), unsubscribe(3)])
    s.server(result(2)).expect()
    s.server(result(3)).expect()
    s.server(updated()).expect()
    assert s.sizes == {"clients": 2, "sessions": 2}


def test_a_subscription_that_one_of_two_cancels_goes_on_for_the_other() -> None:
    s = session()
    s.client("A", subscribe(1))
    s.client("B", subscribe(1))
    s.client("A", cancelled(1)).expect()
    s.server(result(2)).expect(B=result(1))
    s.server(updated()).expect(B=updated())


def test_a_client_that_leaves_while_it_subscribes_and_unsubscribes_leaves_nothing() -> None:
    s = session()
    s.client("A", subscribe(1), unsubscribe(2), subscribe(3))
    s.leave("A").expect(server=[cancelled(2, reason=GIVEN_UP), unsubscribe(3)])
    s.server(result(3)).expect()
    assert s.sizes == {"clients": 1, "sessions": 1}


def test_an_unsubscribe_that_is_cancelled_goes_on() -> None:
    s = session("A")
    s.client("A", subscribe(1))
    s.server(result(2))
    s.client("A", unsubscribe(2))
    s.client("A", cancelled(2)).expect()
    s.server(result(3)).expect()
    s.server(updated()).expect()
    s.client("A", subscribe(3)).expect(server=subscribe(4))


def test_a_client_that_has_stopped_sending_gets_the_answer_it_waits_for() -> None:
    s = session("A")
    s.client("A", subscribe(1), subscribe(2, "v"))
    s.eof("A").expect()
    s.server(result(2)).expect(A=result(1))
    s.server(result(3)).expect(A=[result(2), CLOSE])
    s.leave("A").expect(server=[unsubscribe(4), unsubscribe(5, "v")])


# -- the window, and a full stdin


def test_a_subscription_takes_a_place_in_the_window_and_frees_it() -> None:
    s = session(max_in_flight=1)
    s.client("A", subscribe(1), legacy(2))
    s.client("B", subscribe(1), legacy(2))
    s.server(result(2)).expect(A=result(1), B=result(1), server=[legacy(3), legacy(4)])


def test_a_flood_of_subscriptions_that_are_in_force_is_answered_in_order() -> None:
    s = session(max_in_flight=1)
    s.client("A", subscribe(1))
    s.server(result(2))
    s.client("A", legacy(2), *(subscribe(number) for number in range(3, 2000)))
    s.server(result(3, "x")).expect(A=[result(2, "x"), *(result(number) for number in range(3, 2000))])


def test_nothing_is_asked_of_a_server_that_does_not_read() -> None:
    s = session()
    s.client("A", subscribe(1))
    s.client("B", subscribe(1))
    s.client("A", unsubscribe(2))
    s.server(result(2)).expect(A=[result(1), result(2)], B=result(1))
    s.block()
    s.leave("B").expect()
    s.client("A", subscribe(3)).expect()
    s.unblock().expect(server=unsubscribe(3))
    s.server(result(3)).expect(server=subscribe(4))
    s.server(result(4)).expect(A=result(3))


def test_what_was_to_be_told_to_a_server_that_did_not_read_is_forgotten_with_it() -> None:
    s = session()
    s.client("A", subscribe(1))
    s.server(result(2))
    s.block()
    s.leave("A").expect()
    s.crash().expect()
    s.open().expect(server=asked_to_initialize(3))
    s.server(greeting(3, capabilities=CAPABLE)).expect(server=INITIALIZED)


# -- restarts


def test_after_a_restart_subscriptions_come_before_any_request_and_holders_are_told_of_changes() -> None:
    s = session("ABC")
    for name in "AB":
        s.client(name, INITIALIZED)
    s.client("A", subscribe(1), subscribe(2, "v"))
    s.server(result(2), result(3))
    s.client("B", subscribe(1))
    s.crash().expect()
    s.client("B", legacy(2))
    s.open().expect(server=asked_to_initialize(4))
    s.server(greeting(4, capabilities=CAPABLE)).expect(
        server=[INITIALIZED, subscribe(5), subscribe(6, "v"), legacy(7)], A=LISTS, B=LISTS
    )
    s.server(result(5)).expect(A=updated(), B=updated())
    s.server(result(6)).expect(A=updated("v"))
    s.server(updated("v")).expect(A=updated("v"))
    s.client("A", subscribe(3)).expect(A=result(3))


def test_a_client_that_came_while_the_server_was_away_has_missed_nothing() -> None:
    s = session("A")
    s.client("A", INITIALIZED)
    s.crash()
    s.join("D")
    s.client("D", initialize("i"), INITIALIZED)
    s.open()
    s.server(greeting(2, capabilities=CAPABLE)).expect(server=INITIALIZED, A=LISTS)


def test_a_server_that_ended_in_order_is_started_again_for_what_clients_hold() -> None:
    s = session("A")
    s.client("A", subscribe(1))
    assert not s.router.needed()
    s.server(result(2))
    assert s.router.needed()
    s.crash()
    assert s.router.needed()
    s.leave("A")
    assert not s.router.needed()


def test_a_subscription_that_the_new_process_refuses_is_lost_and_told_in_the_log() -> None:
    s = session("A")
    s.client("A", subscribe(1))
    s.server(result(2))
    s.crash()
    s.open()
    s.server(greeting(3, capabilities=CAPABLE)).expect(server=[INITIALIZED, subscribe(4)])
    out = s.server(error(4))
    # It reads it again, and sees for itself.
    out.expect(A=updated())
    assert out.told() == [NoticeKind.SUBSCRIPTION_LOST]
    assert s.sizes == {"clients": 1, "sessions": 1}
    s.server(updated()).expect()


def test_a_subscription_on_the_way_at_a_crash_fails_like_any_request_and_what_waited_goes_on() -> None:
    s = session()
    s.client("A", subscribe(1), unsubscribe(2))
    s.client("B", subscribe(1))
    s.crash().expect(A=refusal(-31001, "server_exited", id=1, delivered=True))
    assert s.router.needed()
    s.open()
    s.server(greeting(3, capabilities=CAPABLE)).expect(server=[INITIALIZED, unsubscribe(4)])
    s.server(result(4)).expect(A=result(2), server=subscribe(5))
    s.server(result(5)).expect(B=result(1))


def test_an_unsubscribe_on_the_way_at_a_crash_fails_and_is_done_all_the_same() -> None:
    s = session("A")
    s.client("A", subscribe(1))
    s.server(result(2))
    s.client("A", unsubscribe(2))
    s.crash().expect(A=refusal(-31001, "server_exited", id=2, delivered=True))
    s.open()
    s.server(greeting(4, capabilities=CAPABLE)).expect(server=INITIALIZED)


def test_what_waited_for_its_turn_waits_no_longer_than_any_request_while_there_is_no_server() -> None:
    s = session()
    s.client("A", subscribe(1), unsubscribe(2))
    s.now += 10
    s.client("B", subscribe(1))
    s.crash().expect(A=refusal(-31001, "server_exited", id=1, delivered=True))
    assert s.router.needs_tick
    s.wait(20).expect()
    s.wait(10).expect(
        A=refusal(-31002, "server_unavailable", id=2), B=refusal(-31002, "server_unavailable", id=1)
    )
    assert s.sizes == {"clients": 2, "sessions": 2}
    assert not s.router.needs_tick


def test_subscriptions_of_clients_that_must_initialize_again_are_gone() -> None:
    s = session("A")
    s.client("A", subscribe(1))
    s.server(result(2))
    s.crash()
    s.open()
    s.server(greeting(3, "2024-11-05", capabilities=CAPABLE)).expect(server=INITIALIZED, A=CLOSE)
    assert s.sizes == {}


def test_last_words_that_answer_a_subscription_count() -> None:
    s = session("A")
    s.client("A", subscribe(1))
    s.server(line(result(2))[:-1])
    s.crash().expect(A=result(1))
    s.open()
    s.server(greeting(3, capabilities=CAPABLE)).expect(server=[INITIALIZED, subscribe(4)])


# -- another process takes its place


def test_a_process_that_takes_anothers_place_is_asked_what_that_one_was() -> None:
    """Nobody notices: what was on its way is asked again, and the old process's answer is nobody's."""
    s = session()
    s.client("A", subscribe(1), subscribe(2, "v"))
    s.server(result(2))
    legacy_sessions = s.router._legacy
    child = s.router._tables.served[Era.LEGACY]
    legacy_sessions.closed(child, exited=False)
    legacy_sessions.closed(child, exited=False)
    s.server(result(3)).expect()
    legacy_sessions.opened(child)
    s.client("B", legacy(9)).expect(server=[subscribe(4), subscribe(5, "v"), legacy(6)])
    s.server(result(4), result(5)).expect(A=[updated(), result(2)])


# -- deadlines and the end


def test_a_subscription_that_is_not_answered_in_time_is_given_up() -> None:
    s = session(request_timeout=5.0)
    s.client("A", subscribe(1))
    s.wait(4).expect()
    s.wait(1).expect(
        A=refusal(-31007, "request_timeout", id=1, delivered=True),
        server=[cancelled(2, reason="request timeout"), unsubscribe(3)],
    )
    s.wait(5).expect(server=cancelled(3, reason="request timeout"))
    s.server(result(2), result(3)).expect()
    assert s.sizes == {"clients": 2, "sessions": 2}


def test_a_deadline_of_the_old_process_is_no_business_of_the_new_one() -> None:
    s = session("A", request_timeout=5.0)
    s.client("A", subscribe(1))
    child = s.router._tables.served[Era.LEGACY]
    s.router._legacy.closed(child, exited=False)
    s.wait(5).expect(server=cancelled(2, reason="request timeout"))
    s.router._legacy.opened(child)
    s.client("A", legacy(2)).expect(server=[subscribe(3), legacy(4)])


def test_at_a_stop_what_was_asked_may_be_answered_and_what_waits_is_refused() -> None:
    s = session()
    s.client("A", subscribe(1), unsubscribe(2))
    assert s.router.in_flight == 2
    s.drain().expect(A=refusal(-31005, "shutting_down", id=2))
    assert s.router.in_flight == 1
    s.client("B", subscribe(1)).expect(B=refusal(-31005, "shutting_down", id=1))
    s.stop().expect(
        A=[refusal(-31005, "shutting_down", id=1, delivered=True), CLOSE],
        B=CLOSE,
        server=cancelled(2, reason=GIVEN_UP),
    )
    assert s.sizes == {}


def test_a_client_of_both_eras_subscribes_in_its_session_only() -> None:
    s = Scenario("A", era=None)
    s.client("A", request(1))
    s.client("A", initialize(2))
    s.server({"jsonrpc": "2.0", "id": 1, "result": {"supportedVersions": ["2026-07-28"]}})
    s.client("A", request(3, "resources/subscribe", uri="u")).expect(
        server=request(3, "resources/subscribe", uri="u")
    )
    s.leave("A").expect(server=[left(2), left(3)])


def test_a_resource_that_somebody_holds_stays_when_what_waited_for_its_turn_is_given_up() -> None:
    s = session()
    s.client("B", subscribe(1))
    s.server(result(2))
    s.client("A", subscribe(1, "v"), unsubscribe(2, "v"))
    s.crash().expect(A=refusal(-31001, "server_exited", id=1, delivered=True))
    s.wait(30).expect(A=refusal(-31002, "server_unavailable", id=2))
    assert s.sizes == {"clients": 2, "sessions": 2, "resource_holders": 1}


def test_what_one_request_of_a_leaving_client_sets_free_settles_another_once() -> None:
    s = session()
    s.client("B", subscribe(1))
    s.server(result(2))
    s.client("B", unsubscribe(2))
    s.client("A", subscribe(1), unsubscribe(2), subscribe(3))
    s.server(error(3)).expect(B=error(2), server=subscribe(4))
    s.client("A", cancelled(1)).expect(server=[cancelled(4, reason=GIVEN_UP), unsubscribe(5)])
    s.leave("A").expect()
    s.server(result(5)).expect()
    assert s.sizes == {"clients": 1, "sessions": 1}


def test_a_client_that_leaves_a_server_that_does_not_read_leaves_nothing() -> None:
    s = session()
    s.client("A", subscribe(1), unsubscribe(2), subscribe(3))
    s.block()
    s.server(result(2)).expect(A=result(1))
    s.leave("A").expect()
    s.unblock().expect(server=unsubscribe(3))
    s.server(result(3)).expect()
    assert s.sizes == {"clients": 1, "sessions": 1}


def test_while_no_server_can_be_kept_alive_what_is_held_waits_and_is_asked_for_again() -> None:
    s = Scenario("AB", era=None)
    for name in "AB":
        s.client(name, initialize("i"))
    s.server(greeting(1, capabilities=CAPABLE))
    s.client("A", subscribe(1), subscribe(2, "v"), unsubscribe(3, "v"))
    s.server(result(2)).expect(A=result(1))
    s.client("B", set_level(1, "info"), set_level(2, "debug"))
    s.crash().expect(
        A=refusal(-31001, "server_exited", id=2, delivered=True),
        B=refusal(-31001, "server_exited", id=1, delivered=True),
    )
    s.exhaust().expect(A=not_served(3, Era.LEGACY), B=not_served(2, Era.LEGACY))
    assert not s.router.needed()
    assert s.router.needs_tick
    s.wait(29).expect()
    assert s.wait(1).seats(NoticeKind.NEED_CHILD) == [0]
    assert s.router.needed()
    s.open().expect(server=asked_to_initialize(5))
    s.server(greeting(5, capabilities=CAPABLE)).expect(server=[INITIALIZED, subscribe(6)])
    s.server(result(6)).expect(A=updated())
