"""Log levels of clients that share a legacy session (section 7, "Legacy, shared")."""

from __future__ import annotations

import pytest

from bridge.core.era import Era
from bridge.core.levels import LEVELS
from tests.unit.core.scenario import (
    CLOSE,
    INITIALIZED,
    asked_to_initialize,
    cancelled,
    error,
    greeting,
    legacy,
    notification,
    refusal,
    result,
)
from tests.unit.core.sessions import CAPABLE, log, session, set_level

GIVEN_UP = "whoever asked for it has given up"


def test_the_server_logs_what_the_most_verbose_client_wants_and_each_hears_its_own() -> None:
    s = session("ABC")
    s.client("A", set_level(1, "warning")).expect(server=set_level(2, "warning"))
    s.server(result(2)).expect(A=result(1))
    s.client("B", set_level("b", "debug")).expect(server=set_level(3, "debug"))
    s.server(result(3)).expect(B=result("b"))
    s.client("A", set_level(2, "error")).expect(A=result(2))
    for level in LEVELS:
        heard = {"B": log(level)}
        if LEVELS.index(level) >= LEVELS.index("error"):
            heard["A"] = log(level)
        s.server(log(level)).expect(**heard)


def test_a_client_that_never_set_a_level_hears_nothing() -> None:
    s = session()
    s.server(log("emergency")).expect()
    assert s.stats.dropped_notifications == 1


@pytest.mark.parametrize("level", ["loud", 5, None])
def test_a_log_message_of_no_known_level_reaches_nobody(level: object) -> None:
    s = session("A")
    s.client("A", set_level(1, "debug"))
    s.server(result(2))
    s.server(log(level), notification("notifications/message", data=1)).expect()
    assert s.stats.dropped_notifications == 2


@pytest.mark.parametrize("params", [{}, {"level": "loud"}, {"level": 1}, [], None])
def test_a_level_that_is_none_is_refused(params: object) -> None:
    s = session("A")
    message = {"jsonrpc": "2.0", "id": 1, "method": "logging/setLevel", "params": params}
    s.client("A", message).expect(A=refusal(-32602, "invalid_params", id=1))


def test_levels_are_set_one_after_the_other_and_only_where_that_changes_something() -> None:
    s = session("ABC")
    s.client("A", set_level(1, "info")).expect(server=set_level(2, "info"))
    s.client("B", set_level(1, "error")).expect()
    s.client("C", set_level(1, "debug")).expect()
    s.server(result(2)).expect(A=result(1), B=result(1), server=set_level(3, "debug"))
    s.server(log("debug"), log("info")).expect(A=log("info"))
    s.server(result(3)).expect(C=result(1))


def test_a_refused_level_is_the_askers_alone() -> None:
    s = session()
    s.client("A", set_level(1, "info"))
    s.server(result(2))
    s.client("B", set_level(1, "debug")).expect(server=set_level(3, "debug"))
    s.server(error(3, -32601, "no")).expect(B=error(1, -32601, "no"))
    s.server(log("error")).expect(A=log("error"))
    s.client("B", set_level(2, "info")).expect(B=result(2))


def test_a_level_whose_answer_cannot_be_read_is_set_anew_for_those_who_had_one() -> None:
    s = session()
    s.client("A", set_level(1, "info"))
    s.server(result(2))
    s.client("B", set_level(1, "debug"))
    s.server(b'{"jsonrpc":"2.0","id":3,"result":{"x":?}}\n').expect(
        B=refusal(-31008, "invalid_response", id=1, delivered=True), server=set_level(4, "info")
    )
    s.server(b'{"jsonrpc":"2.0","id":4,"result":{"x":?}}\n').expect()
    s.client("B", set_level(2, "info")).expect(server=set_level(5, "info"))


def test_when_a_client_leaves_the_server_logs_less() -> None:
    s = session("ABC")
    for number, (name, level) in enumerate((("A", "error"), ("B", "info"), ("C", "debug"))):
        s.client(name, set_level(1, level))
        s.server(result(2 + number))
    s.leave("C").expect(server=set_level(5, "info"))
    s.server(result(5)).expect()
    s.leave("A").expect()
    # With the last one nobody knows what it was before.
    s.leave("B").expect()
    s.server(log("emergency")).expect()
    s.join("D")


def test_a_level_that_the_server_refuses_on_the_bridges_account_is_not_asked_for_over_and_over() -> None:
    s = session("ABC")
    for number, (name, level) in enumerate((("A", "error"), ("B", "info"), ("C", "debug"))):
        s.client(name, set_level(1, level))
        s.server(result(2 + number))
    s.leave("C").expect(server=set_level(5, "info"))
    s.server(error(5)).expect()
    s.server(log("debug"), log("info")).expect(B=log("info"))
    s.leave("B").expect(server=set_level(6, "error"))


def test_a_client_may_lower_and_raise_its_own_level() -> None:
    s = session("A")
    s.client("A", set_level(1, "debug"))
    s.server(result(2))
    s.client("A", set_level(2, "error")).expect(server=set_level(3, "error"))
    s.server(log("info")).expect(A=log("info"))
    s.server(result(3)).expect(A=result(2))
    s.server(log("info"), log("error")).expect(A=log("error"))


def test_a_level_that_is_cancelled_is_called_back() -> None:
    s = session()
    s.client("A", set_level(1, "info"))
    s.server(result(2))
    s.client("B", set_level(1, "debug"))
    s.client("A", set_level(2, "notice"))
    s.client("B", cancelled(1)).expect(server=[cancelled(3, reason=GIVEN_UP), set_level(4, "notice")])
    s.server(result(3)).expect()
    s.server(result(4)).expect(A=result(2))


def test_a_level_that_waits_and_is_cancelled_is_never_asked_for() -> None:
    s = session()
    s.client("A", set_level(1, "info"))
    s.client("B", set_level(1, "debug"))
    s.client("B", cancelled(1)).expect()
    s.server(result(2)).expect(A=result(1))


def test_nothing_is_asked_of_a_server_that_does_not_read() -> None:
    s = session()
    s.client("A", set_level(1, "debug"))
    s.client("B", set_level(1, "info"))
    s.block()
    s.server(result(2)).expect(A=result(1), B=result(1))
    s.leave("A").expect()
    s.unblock().expect(server=set_level(3, "info"))


def test_a_level_that_waits_for_its_turn_waits_for_a_server_that_does_not_read() -> None:
    s = session()
    s.client("A", set_level(1, "info"))
    s.client("B", set_level(1, "debug"))
    s.block()
    s.server(result(2)).expect(A=result(1))
    s.unblock().expect(server=set_level(3, "debug"))


def test_after_a_restart_the_level_is_set_before_any_request() -> None:
    s = session()
    s.client("A", set_level(1, "info"))
    s.server(result(2))
    s.client("B", set_level(1, "debug"))
    s.crash().expect(B=refusal(-31001, "server_exited", id=1, delivered=True))
    s.client("B", legacy(2))
    s.open().expect(server=asked_to_initialize(4))
    s.server(greeting(4, capabilities=CAPABLE)).expect(server=[INITIALIZED, set_level(5, "info"), legacy(6)])
    s.server(result(5)).expect()
    s.server(log("info")).expect(A=log("info"))


def test_a_level_that_waits_at_a_crash_waits_no_longer_than_any_request() -> None:
    s = session()
    s.client("A", set_level(1, "info"))
    s.client("B", set_level(1, "debug"))
    s.crash().expect(A=refusal(-31001, "server_exited", id=1, delivered=True))
    assert s.router.needed()
    s.wait(30).expect(B=refusal(-31002, "server_unavailable", id=1))
    assert not s.router.needed()


def test_a_process_that_takes_anothers_place_is_asked_what_that_one_was() -> None:
    s = session()
    s.client("A", set_level(1, "info"))
    child = s.router._tables.served[Era.LEGACY]
    s.router._legacy.closed(child, exited=False)
    s.server(result(2)).expect()
    s.router._legacy.opened(child)
    s.client("B", legacy(2)).expect(server=[set_level(3, "info"), legacy(4)])
    s.server(result(3)).expect(A=result(1))


def test_a_level_that_is_not_answered_in_time_is_given_up() -> None:
    s = session("A", request_timeout=5.0)
    s.client("A", set_level(1, "info"))
    s.wait(5).expect(
        A=refusal(-31007, "request_timeout", id=1, delivered=True),
        server=cancelled(2, reason="request timeout"),
    )
    s.client("A", set_level(2, "info")).expect(server=set_level(3, "info"))
    child = s.router._tables.served[Era.LEGACY]
    s.router._legacy.closed(child, exited=False)
    s.wait(5).expect(server=cancelled(3, reason="request timeout"))


def test_at_a_stop_what_waits_is_refused() -> None:
    s = session()
    s.client("A", set_level(1, "info"))
    s.client("B", set_level(1, "debug"))
    s.drain().expect(B=refusal(-31005, "shutting_down", id=1))
    s.server(result(2)).expect(A=result(1))
    s.stop().expect(A=CLOSE, B=CLOSE)


def test_who_joins_late_hears_only_what_comes_then() -> None:
    s = session()
    s.client("A", set_level(1, "debug"))
    s.server(result(2), log("info")).expect(A=[result(1), log("info")])
    s.client("B", set_level(1, "debug")).expect(B=result(1))
    s.server(log("info")).expect(A=log("info"), B=log("info"))
