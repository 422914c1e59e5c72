"""A server that exits: what is lost, what waits, and what is opened again (sections 5 and 8)."""

from __future__ import annotations

import pytest

from bridge.core.subscriptions import MAX_CHANGES, MAX_CHANGES_IN_ALL, MAX_OPENINGS
from bridge.core.tables import NoticeKind
from tests.unit.core.scenario import (
    CLOSE,
    Json,
    Outcome,
    Scenario,
    acknowledged,
    cancelled,
    changed,
    closing,
    ended,
    error,
    line,
    listen,
    notification,
    progress,
    refusal,
    request,
    result,
)

TOOLS: Json = {"toolsListChanged": True}
MUCH: Json = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
    "resourceSubscriptions": ["u", "v"],
}


# -- requests


def test_requests_at_a_server_that_exits_fail_and_may_have_been_carried_out() -> None:
    """Section 8: -31001, `delivered: true`; hazards 1 and 4: clients stay connected."""
    s = Scenario(clients="AB")
    s.client("A", request(1, "x"), request("1", "x"))
    s.client("B", request(1, "x"))
    s.crash().expect(
        A=[
            refusal(-31001, "server_exited", id=1, delivered=True),
            refusal(-31001, "server_exited", id="1", delivered=True),
        ],
        B=refusal(-31001, "server_exited", id=1, delivered=True),
    )
    assert s.sizes == {"clients": 2}
    assert not s.router.needed()
    assert not s.router.ready
    assert s.router.in_flight == 0
    assert (s.stats.children_opened, s.stats.children_closed) == (1, 1)


def test_requests_that_wait_go_to_the_next_child() -> None:
    """Section 8: nothing a client sent runs twice, and nothing that was not sent is lost."""
    s = Scenario(max_in_flight=1)
    s.client("A", request(1, "x"), request(2, "x"), notification("n"))
    s.crash().expect(A=refusal(-31001, "server_exited", id=1, delivered=True))
    assert s.router.needed()
    s.start().expect(server=[request(4, "x"), notification("n")])
    s.server(result(4, {})).expect(A=result(2, {}))


def test_requests_that_come_while_there_is_no_server_wait() -> None:
    s = Scenario()
    s.crash()
    out = s.client("A", request(1, "x"))
    out.expect()
    assert out.told() == [NoticeKind.NEED_CHILD]
    s.start().expect(server=request(3, "x"))


def test_thousands_of_requests_that_wait_for_a_server_ask_for_it_once() -> None:
    """What they cost the shell must not grow with their number."""
    s = Scenario()
    s.crash()
    assert s.client("A", *[request(n, "x") for n in range(2000)]).told() == [NoticeKind.NEED_CHILD]
    assert s.client("A", request(2000, "x")).told() == [NoticeKind.NEED_CHILD]


def test_an_answer_the_server_gave_before_it_exited_is_delivered() -> None:
    """Hazard 3."""
    s = Scenario()
    s.client("A", request(1, "x"), request(2, "x"))
    s.server(line(result(2, {}))[:-1]).expect()
    s.crash().expect(A=[result(1, {}), refusal(-31001, "server_exited", id=2, delivered=True)])


@pytest.mark.parametrize(
    "half", [line(result(2, "long"))[:-4], b'{"jsonrpc":"2.0","id":2,"result":{', b"x" * 2000]
)
def test_half_an_answer_is_none_and_is_not_joined_to_the_next_childs_first_line(half: bytes) -> None:
    """Hazard 2."""
    s = Scenario(max_message=1000)
    s.client("A", request(1, "x"))
    s.server(half)
    s.crash().expect(A=refusal(-31001, "server_exited", id=1, delivered=True))
    s.start()
    s.client("A", request(2, "x"))
    s.server(result(4, {})).expect(A=result(2, {}))


def test_the_last_words_of_a_child_send_nothing_to_it_any_more() -> None:
    """What they set free waits for the next child, and is not lost with -31001."""
    s = Scenario(max_in_flight=1)
    s.client("A", request(1, "x"), request(2, "x"))
    s.server(line(result(2, {}))[:-1])
    s.crash().expect(A=result(1, {}))
    s.start().expect(server=request(4, "x"))


def test_an_answer_to_the_probe_in_the_last_words_makes_nothing_ready() -> None:
    s = Scenario()
    s.client("A", listen("L", **TOOLS))
    s.server(acknowledged(2, **TOOLS))
    s.crash()
    s.client("A", request(1, "x"))
    s.open()
    s.server(line(result(3, {}))[:-1])
    out = s.crash()
    out.expect()
    assert out.told() == []
    s.start().expect(server=[listen(5, **TOOLS), request(6, "x")])


def test_the_last_words_may_end_a_subscription() -> None:
    s = Scenario()
    s.client("A", listen("L", **TOOLS))
    s.server(line(acknowledged(2)))
    s.server(line(closing(2))[:-1])
    s.crash().expect(A=closing("L"))
    s.start().expect()


def test_a_grant_in_the_last_words_is_passed_on() -> None:
    s = Scenario()
    s.client("A", listen("L", **TOOLS))
    s.server(line(acknowledged(2, **TOOLS))[:-1])
    s.crash().expect(A=acknowledged("L", **TOOLS))
    s.start()
    s.server(acknowledged(4, **TOOLS)).expect(A=changed("L"))


def test_a_smaller_grant_in_the_last_words_ends_the_subscription() -> None:
    s = Scenario()
    s.client("A", listen("L", **TOOLS))
    s.server(line(acknowledged(2, **TOOLS)))
    s.crash()
    s.start()
    s.server(line(acknowledged(4))[:-1])
    s.crash().expect(A=closing("L"))
    assert s.sizes == {"clients": 1}


# -- the time they wait


def test_requests_wait_so_long_while_no_process_is_alive() -> None:
    """`--restart-wait`: -31002, `delivered: false`."""
    s = Scenario(clients="AB", server=False)
    s.client("A", request(1, "x"), notification("n"))
    s.now += 10
    s.client("B", request(1, "x"))
    assert s.router.needs_tick
    s.wait(19.9).expect()
    s.wait(0.1).expect(A=refusal(-31002, "server_unavailable", id=1))
    s.wait(9.9).expect()
    s.wait(0.1).expect(B=refusal(-31002, "server_unavailable", id=1))
    assert s.sizes == {"clients": 2}
    assert not s.router.needs_tick


def test_only_what_has_waited_so_long_fails() -> None:
    s = Scenario(server=False)
    s.client("A", request(1, "x"))
    s.now += 1
    s.client("A", request(2, "x"))
    s.wait(29).expect(A=refusal(-31002, "server_unavailable", id=1))
    s.start().expect(server=request(2, "x"))


def test_requests_do_not_fail_while_a_process_is_alive() -> None:
    s = Scenario(server=False)
    s.client("A", request(1, "x"))
    s.open()
    s.now += 5
    s.router.tick(s.now)
    s.now += 25
    out = s.wait(0)
    assert out.items("A") == []
    out.expect(server=request(2, "x"))


def test_a_request_that_waited_behind_others_gets_its_time_when_the_server_exits() -> None:
    """It waited for its turn so far, and not for a server."""
    s = Scenario(max_in_flight=1)
    s.client("A", request(1, "x"), request(2, "x"))
    s.now += 1000
    s.crash()
    s.wait(29.9).expect()
    s.wait(0.1).expect(A=refusal(-31002, "server_unavailable", id=2))


def test_a_child_that_was_never_ready_gives_no_new_time() -> None:
    """A server that crashes at every start must not have its clients wait for ever."""
    s = Scenario(server=False)
    s.client("A", request(1, "x"))
    for _ in range(5):
        s.now += 5
        s.open()
        s.crash()
    s.wait(4.9).expect()
    s.wait(0.1).expect(A=refusal(-31002, "server_unavailable", id=1))


def test_subscriptions_wait_for_the_next_child_as_long_as_it_takes() -> None:
    s = Scenario()
    s.client("A", listen("L", **TOOLS))
    s.server(acknowledged(2, **TOOLS))
    s.crash().expect()
    s.wait(1000).expect()
    s.start().expect(server=listen(4, **TOOLS))


# -- subscriptions


def restarted(wanted: Json, granted: Json, clients: str = "A") -> Scenario:
    """A scenario with one open subscription, whose server was restarted; the listen there is 4."""
    s = Scenario(clients=clients)
    for name in clients:
        s.client(name, listen("L" + name, **wanted))
    s.server(acknowledged(2, **granted))
    s.crash().expect()
    s.start().expect(server=listen(4, **wanted))
    return s


def test_subscriptions_are_opened_again_before_queued_requests_under_new_ids() -> None:
    """Section 5."""
    s = Scenario(max_in_flight=1)
    s.client("A", request(1, "x"), listen("L", **TOOLS), listen("M", promptsListChanged=True))
    s.client("A", request(2, "x"))
    s.server(acknowledged(3, **TOOLS))
    s.crash()
    s.client("A", listen("N", **TOOLS))
    s.start().expect(server=[listen(6, **TOOLS), listen(7, promptsListChanged=True), request(8, "x")])


def test_a_holder_sees_no_second_acknowledgement_but_what_it_may_have_missed() -> None:
    """Section 5: one change notification for each granted kind and URI."""
    s = restarted(MUCH, MUCH)
    s.server(acknowledged(4, **MUCH)).expect(
        A=[
            changed("LA", "tools/list_changed"),
            changed("LA", "prompts/list_changed"),
            changed("LA", "resources/list_changed"),
            changed("LA", "resources/updated", uri="u"),
            changed("LA", "resources/updated", uri="v"),
        ]
    )
    s.server(changed(4)).expect(A=changed("LA"))
    s.server(changed(2)).expect()


def test_a_holder_that_may_have_missed_too_much_is_ended_and_may_listen_again() -> None:
    """A million URIs would be a million messages at once."""
    for number, kept in ((MAX_CHANGES - 3, True), (MAX_CHANGES - 2, False)):
        s = Scenario("A")
        wanted: Json = {"resourceSubscriptions": [f"u{n}" for n in range(number)]}
        s.client("A", listen("L", **wanted))
        s.server(acknowledged(2, **wanted))
        s.crash()
        s.start()
        out = s.server(acknowledged(4, **wanted))
        if kept:
            assert len(out.items("A")) == number
            out.expect(
                A=[changed("L", "resources/updated", uri=uri) for uri in wanted["resourceSubscriptions"]]
            )
        else:
            out.expect(A=closing("L"), server=ended(4))
            s.client("A", listen("M", **wanted)).expect(server=listen(5, **wanted))


def test_all_holders_together_are_told_of_so_many_changes_and_no_more() -> None:
    s = Scenario("A", max_subscriptions=100)
    wanted: Json = {"resourceSubscriptions": [f"u{n}" for n in range(MAX_CHANGES - 3)]}
    s.client("A", *[listen(n, **wanted) for n in range(20)])
    s.server(acknowledged(2, **wanted))
    s.crash()
    s.start()
    items = s.server(acknowledged(4, **wanted)).items("A")
    told = MAX_CHANGES_IN_ALL // MAX_CHANGES
    assert items[-4:] == [closing(n) for n in range(told, 20)]
    assert len(items) == told * (MAX_CHANGES - 3) + 20 - told


def test_every_holder_is_told_what_it_may_have_missed() -> None:
    s = restarted(TOOLS, TOOLS, "AB")
    s.server(acknowledged(4, **TOOLS)).expect(A=changed("LA"), B=changed("LB"))


def test_a_larger_grant_than_the_first_is_none_of_the_holders_business() -> None:
    s = restarted(MUCH, TOOLS)
    s.server(acknowledged(4, **MUCH)).expect(A=changed("LA"))


def test_a_grant_that_spells_out_what_it_does_not_grant_covers_the_first() -> None:
    s = restarted(TOOLS, TOOLS)
    s.server(
        acknowledged(4, toolsListChanged=True, promptsListChanged=False, resourceSubscriptions=[])
    ).expect(A=changed("LA"))


@pytest.mark.parametrize(
    "smaller",
    [
        {},
        {**MUCH, "toolsListChanged": False},
        {**MUCH, "promptsListChanged": None},
        {**MUCH, "resourcesListChanged": False},
        {**MUCH, "resourceSubscriptions": ["u"]},
    ],
)
def test_a_smaller_grant_ends_the_holders_listen_gracefully(smaller: Json) -> None:
    """Section 5."""
    s = restarted(MUCH, MUCH)
    s.server(acknowledged(4, **smaller)).expect(A=closing("LA"), server=ended(4))
    assert s.sizes == {"clients": 1}
    s.client("A", listen("M", **MUCH)).expect(server=listen(5, **MUCH))


def test_a_smaller_grant_ends_only_those_who_were_granted_more() -> None:
    s = restarted(TOOLS, TOOLS, "AB")
    s.join("C")
    s.client("C", listen("LC", **TOOLS)).expect()
    s.server(acknowledged(4)).expect(A=closing("LA"), B=closing("LB"), C=acknowledged("LC"))
    s.server(changed(4)).expect(C=changed("LC"))


def test_who_joins_while_it_reopens_waits_for_its_acknowledgement() -> None:
    """Section 5."""
    s = restarted(TOOLS, TOOLS)
    s.join("B")
    s.client("B", listen("LB", **TOOLS)).expect()
    s.server(changed(4)).expect()
    s.server(acknowledged(4, **TOOLS)).expect(A=changed("LA"), B=acknowledged("LB", **TOOLS))


def test_a_refusal_at_the_reopening_ends_the_listen_with_the_servers_error() -> None:
    s = restarted(TOOLS, TOOLS, "AB")
    s.server(error(4, -32602, "no")).expect(A=error("LA", -32602, "no"), B=error("LB", -32602, "no"))
    assert s.sizes == {"clients": 2}


def test_a_listen_that_was_not_acknowledged_yet_is_opened_again_and_acknowledged() -> None:
    s = Scenario()
    s.client("A", listen("L", **TOOLS))
    s.crash().expect()
    s.start().expect(server=listen(4, **TOOLS))
    s.server(acknowledged(4, **TOOLS)).expect(A=acknowledged("L", **TOOLS))


def test_a_subscription_given_up_while_there_is_no_server_is_not_opened_again() -> None:
    s = Scenario()
    s.client("A", listen("L", **TOOLS))
    s.server(acknowledged(2))
    s.crash()
    s.client("A", cancelled("L")).expect()
    assert s.sizes == {"clients": 1}
    s.start().expect()


def test_a_progress_token_of_a_listen_is_translated_anew() -> None:
    s = Scenario()
    s.client("A", listen("L", meta={"progressToken": "t"}, **TOOLS))
    s.crash()
    s.start().expect(server=listen(4, meta={"progressToken": 4}, **TOOLS))
    s.server(progress(2), progress(4)).expect(A=progress("t"))


def poisoned(s: Scenario, times: int) -> list[Outcome]:
    """What comes of a server that exits so often, each time before it acknowledges anything."""
    outcomes = []
    for _ in range(times):
        s.start()
        outcomes.append(s.crash())
    return outcomes


def test_a_listen_that_ends_every_child_before_it_is_acknowledged_is_given_up() -> None:
    """It must not end every child that follows. Our choice."""
    s = Scenario(server=False)
    s.client("A", listen("L", **TOOLS))
    outcomes = poisoned(s, MAX_OPENINGS)
    for outcome in outcomes[:-1]:
        outcome.expect()
    outcomes[-1].expect(A=refusal(-31001, "server_exited", id="L", delivered=True))
    assert s.sizes == {"clients": 1}
    s.start().expect()


def test_a_child_that_acknowledged_a_listen_does_not_count_against_it() -> None:
    s = Scenario()
    s.client("A", listen("L", **TOOLS))
    s.server(acknowledged(2, **TOOLS))
    s.crash().expect()
    for outcome in poisoned(s, MAX_OPENINGS - 1):
        outcome.expect()
    opened = s.start().items("server")[0]
    assert isinstance(opened, dict)
    s.server(acknowledged(opened["id"], **TOOLS)).expect(A=changed("L"))
    s.crash()
    for outcome in poisoned(s, MAX_OPENINGS - 1):
        outcome.expect()


def test_a_child_that_was_never_sent_a_listen_does_not_count_against_it() -> None:
    s = Scenario(server=False)
    s.client("A", listen("L", **TOOLS))
    for _ in range(2 * MAX_OPENINGS):
        s.open()
        s.crash().expect()
    assert s.start().items("server") != []


def test_the_next_child_starts_with_empty_tables() -> None:
    """Section 4: tables belong to one child; a subscription id of the one before is unknown."""
    s = restarted(TOOLS, TOOLS)
    s.server(changed(2), cancelled(2), closing(2)).expect()
    s.server(acknowledged(4, **TOOLS)).expect(A=changed("LA"))


def test_a_server_that_exits_closes_nobody() -> None:
    s = Scenario(clients="AB")
    s.client("A", request(1, "x"))
    out = s.crash()
    assert CLOSE not in out.items("A") + out.items("B")
