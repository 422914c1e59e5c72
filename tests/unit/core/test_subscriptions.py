"""Subscriptions: what is shared, who is told what, and how each one ends (section 5)."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from tests.unit.core.scenario import (
    MODERN,
    PREFIX,
    Json,
    Scenario,
    acknowledged,
    cancelled,
    changed,
    closing,
    error,
    left,
    line,
    listen,
    notification,
    progress,
    refusal,
    request,
    result,
)

TOOLS: Json = {"toolsListChanged": True}


def opened(clients: str = "AB", **limits: Any) -> Scenario:
    """A scenario whose clients all hold one open subscription, id "L" and its client's letter."""
    s = Scenario(clients=clients, **limits)
    for name in clients:
        s.client(name, listen("L" + name, **TOOLS))
    s.server(acknowledged(2, **TOOLS))
    return s


# -- what is shared


@pytest.mark.parametrize(
    "alike",
    [
        {"toolsListChanged": True},
        {"toolsListChanged": True, "promptsListChanged": False},
        {"toolsListChanged": True, "resourceSubscriptions": []},
    ],
)
def test_listens_that_ask_for_the_same_are_one_at_the_server(alike: Json) -> None:
    """The filter as a set, after dropping `false`."""
    s = Scenario(clients="AB")
    s.client("A", listen("a", **TOOLS)).expect(server=listen(2, **TOOLS))
    s.client("B", listen("b", **alike)).expect()
    s.server(acknowledged(2, **TOOLS)).expect(A=acknowledged("a", **TOOLS), B=acknowledged("b", **TOOLS))
    s.server(changed(2)).expect(A=changed("a"), B=changed("b"))


def test_the_uris_of_a_filter_are_a_set() -> None:
    s = Scenario(clients="AB")
    s.client("A", listen("a", resourceSubscriptions=["x", "y"]))
    s.client("B", listen("b", resourceSubscriptions=["y", "x", "x"])).expect()


def test_the_name_of_the_client_does_not_keep_listens_apart() -> None:
    s = Scenario(clients="AB")
    s.client("A", listen("a", meta={PREFIX + "clientInfo": {"name": "a"}}, **TOOLS))
    s.client("B", listen("b", meta={PREFIX + "clientInfo": {"name": "b"}}, **TOOLS)).expect()


def test_one_client_may_hold_the_same_subscription_twice() -> None:
    s = Scenario()
    s.client("A", listen("a", **TOOLS), listen("b", **TOOLS)).expect(server=listen(2, **TOOLS))
    s.server(acknowledged(2, **TOOLS), changed(2)).expect(
        A=[acknowledged("a", **TOOLS), acknowledged("b", **TOOLS), changed("a"), changed("b")]
    )


@pytest.mark.parametrize(
    "other",
    [
        listen("b", promptsListChanged=True),
        listen("b", toolsListChanged=True, promptsListChanged=True),
        listen("b", toolsListChanged=True, resourcesListChanged=True),
        listen("b", toolsListChanged=True, resourceSubscriptions=["u"]),
        listen("b", meta={PREFIX + "protocolVersion": "2027-01-01"}, **TOOLS),
        listen("b", meta={PREFIX + "clientCapabilities": {"x": {}}}, **TOOLS),
        listen("b", meta={"vendor": 1}, **TOOLS),
        listen("b", vendor=True, **TOOLS),
        listen("b", toolsListChanged=None),
        listen("b", toolsListChanged=True, resourceSubscriptions=[5]),
        request("b", "subscriptions/listen", notifications=TOOLS, vendor=1),
        request("b", "subscriptions/listen"),
        {**listen("b", **TOOLS), "vendor": 1},
        {
            **listen("b"),
            "params": {
                "notifications": TOOLS,
                "_meta": {PREFIX + "protocolVersion": MODERN[PREFIX + "protocolVersion"]},
            },
        },
    ],
)
def test_a_listen_that_differs_or_holds_anything_unknown_is_not_shared(other: Json) -> None:
    s = Scenario(clients="AB")
    s.client("A", listen("a", **TOOLS))
    s.client("B", other).expect(server={**other, "id": 3})
    s.server(acknowledged(3)).expect(B=acknowledged("b"))
    s.server(acknowledged(2)).expect(A=acknowledged("a"))


def test_a_listen_with_a_progress_token_is_its_own_and_gets_its_progress() -> None:
    s = Scenario(clients="AB")
    s.client("A", listen("a", **TOOLS))
    s.client("B", listen("b", meta={"progressToken": "t"}, **TOOLS)).expect(
        server=listen(3, meta={"progressToken": 3}, **TOOLS)
    )
    s.server(progress(3), progress(2)).expect(B=progress("t"))
    s.client("B", cancelled("b"))
    s.server(progress(3)).expect()
    assert s.stats.dropped_progress == 2


def test_a_listen_with_more_uris_than_are_soon_compared_is_its_own() -> None:
    """Section 5: nobody waits for seconds because somebody names a million resources."""
    s = Scenario(clients="AB")
    uris = [f"file:///{n}" for n in range(20000)]
    s.client("A", listen("a", resourceSubscriptions=uris)).expect(
        server=listen(2, resourceSubscriptions=uris)
    )
    s.client("B", listen("b", resourceSubscriptions=uris)).expect(
        server=listen(3, resourceSubscriptions=uris)
    )


def test_what_is_kept_of_a_listen_takes_no_more_memory_than_is_counted() -> None:
    """Section 6, `--max-buffered`: a list of short texts takes many times its bytes once it is decoded."""
    s = Scenario()
    kinds = [[f"{kind}{n:05}" for n in range(5000)] for kind in "abcdefgh"]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for kind, uris in zip("abcdefgh", kinds, strict=True):
            listened = s.client("A", listen(kind, resourceSubscriptions=uris)).items("server")[0]
            assert isinstance(listened, dict)
            s.server(acknowledged(listened["id"], resourceSubscriptions=uris))
            del listened
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert kept < 2 * s.router.buffered(s.key("A"))


def test_a_listen_whose_token_was_removed_is_its_own() -> None:
    s = Scenario(clients="AB")
    s.client("A", listen("a", **TOOLS))
    s.client("B", listen("b", meta={"progressToken": 57.0}, **TOOLS)).expect(server=listen(3, **TOOLS))


def test_a_listen_with_a_log_level_is_its_own() -> None:
    s = Scenario(clients="AB")
    meta = {PREFIX + "logLevel": "info"}
    s.client("A", listen("a", meta=meta, **TOOLS))
    s.client("B", listen("b", meta=meta, **TOOLS)).expect(server=listen(3, meta=meta, **TOOLS))


# -- the acknowledgement


def test_the_acknowledgement_comes_first_always() -> None:
    s = Scenario()
    s.client("A", listen("a", **TOOLS))
    s.server(changed(2)).expect()
    assert s.stats.dropped_notifications == 1
    s.server(acknowledged(2, **TOOLS), changed(2)).expect(A=[acknowledged("a", **TOOLS), changed("a")])


def test_a_second_acknowledgement_is_dropped() -> None:
    s = opened()
    s.server(acknowledged(2, **TOOLS)).expect()
    assert s.stats.dropped_notifications == 1


def test_a_late_joiner_is_acknowledged_from_the_grant_alone() -> None:
    """Never from another client's `_meta`."""
    s = Scenario(clients="AB")
    s.client("A", listen("a", **TOOLS))
    grant = acknowledged(2, toolsListChanged=True, vendor=[1])
    secret = {**grant["params"]["_meta"], "vendor/trace": "A's"}
    s.server({**grant, "params": {**grant["params"], "_meta": secret, "more": 1}})
    s.client("B", listen("b", **TOOLS)).expect(B=acknowledged("b", toolsListChanged=True, vendor=[1]))
    s.server(changed(2)).expect(A=changed("a"), B=changed("b"))


def test_a_late_joiner_gets_nothing_before_its_acknowledgement() -> None:
    s = opened("A")
    s.join("B")
    s.server(changed(2)).expect(A=changed("LA"))
    s.client("B", listen("b", **TOOLS)).expect(B=acknowledged("b", **TOOLS))
    assert s.stats.requests == 1


def test_an_acknowledgement_without_a_grant_grants_nothing() -> None:
    s = Scenario(clients="AB")
    s.client("A", listen("a", **TOOLS))
    bare = changed(2, "subscriptions/acknowledged")
    s.server(bare).expect(A=changed("a", "subscriptions/acknowledged"))
    s.client("B", listen("b", **TOOLS)).expect(B=acknowledged("b"))


def test_a_grant_that_cannot_be_read_is_passed_on_and_grants_nothing() -> None:
    s = Scenario(clients="AB")
    s.client("A", listen("a", **TOOLS))
    odd = acknowledged(2, toolsListChanged="yes")
    s.server(odd).expect(A=acknowledged("a", toolsListChanged="yes"))
    s.client("B", listen("b", **TOOLS)).expect(B=acknowledged("b", toolsListChanged="yes"))
    s.crash()
    s.start().expect(server=listen(4, **TOOLS))
    s.server(acknowledged(4, **TOOLS)).expect()


# -- fan-out


def test_a_notification_reaches_every_holder_in_order_under_its_own_id() -> None:
    """Section 4, row "notification with a subscription id"."""
    s = opened("ABC")
    out = s.server(changed(2, "a"), changed(2, "b", n=1), changed(2, "c"))
    out.expect(
        A=[changed("LA", "a"), changed("LA", "b", n=1), changed("LA", "c")],
        B=[changed("LB", "a"), changed("LB", "b", n=1), changed("LB", "c")],
        C=[changed("LC", "a"), changed("LC", "b", n=1), changed("LC", "c")],
    )
    assert s.stats.notifications_down == 12


def test_everything_else_of_a_notification_comes_through_byte_for_byte() -> None:
    s = Scenario(clients="ABC")
    s.client("A", listen("\u017e", **TOOLS))
    s.client("B", listen(7, **TOOLS))
    s.client("C", line(listen("?", **TOOLS)).replace(b'"?"', b'"\\ud83d"')).expect(server=listen(3, **TOOLS))
    s.server(acknowledged(2), acknowledged(3))
    text = (
        b'{"jsonrpc":"2.0","method":"n\\u00e9","params":{"v":1E2,"_meta":{"a":"\\udead","%ssubscriptionId":2,"z":-0},'
        b'"w":[1.0]},"vendor":{"x":1e400}}\n' % PREFIX.encode()
    )
    plain = text.replace(b"\\u00e9", "\u00e9".encode())
    out = s.server(text, text.replace(b'Id":2', b'Id":3'))
    assert out.bytes("A") == plain.replace(b'Id":2', 'Id":"\u017e"'.encode())
    assert out.bytes("B") == plain.replace(b'Id":2', b'Id":7')
    assert out.bytes("C") == plain.replace(b'Id":2', b'Id":"\\ud83d"')


def test_holders_with_the_same_id_get_the_same_line() -> None:
    s = Scenario(clients="AB")
    s.client("A", listen(1, **TOOLS))
    s.client("B", listen(1, **TOOLS))
    s.server(acknowledged(2), changed(2)).expect(
        A=[acknowledged(1), changed(1)], B=[acknowledged(1), changed(1)]
    )


# -- ending


@pytest.mark.parametrize("leaver", ["A", "B"])
def test_when_one_holder_cancels_only_it_ends(leaver: str) -> None:
    s = opened()
    s.client(leaver, cancelled("L" + leaver)).expect()
    stays = "B" if leaver == "A" else "A"
    s.server(changed(2)).expect(**{stays: changed("L" + stays)})


def test_when_one_holder_leaves_only_it_ends() -> None:
    s = opened()
    s.leave("A").expect()
    s.server(changed(2)).expect(B=changed("LB"))


def test_the_last_holder_that_cancels_ends_it_at_the_server() -> None:
    s = opened()
    s.client("A", cancelled("LA", reason="x"))
    s.client("B", cancelled("LB", reason="y")).expect(server=cancelled(2, reason="y"))
    s.server(changed(2)).expect()
    s.server(result(2, {})).expect()
    assert s.sizes == {"clients": 2}


def test_the_last_holder_that_leaves_ends_it_at_the_server() -> None:
    s = opened()
    s.leave("A").expect()
    s.leave("B").expect(server=left(2))
    assert s.sizes == {}


def test_a_newcomer_after_the_last_holder_always_opens_a_new_one() -> None:
    """The share leaves the table before the cancel is written."""
    s = opened("A")
    s.client("A", cancelled("LA"), listen("new", **TOOLS)).expect(server=[cancelled(2), listen(3, **TOOLS)])


def test_a_cancel_before_the_acknowledgement_ends_it() -> None:
    s = Scenario()
    s.client("A", listen("a", **TOOLS))
    s.client("A", cancelled("a")).expect(server=cancelled(2))
    s.server(acknowledged(2, **TOOLS)).expect()
    assert s.stats.dropped_notifications == 1


def test_a_cancel_ends_every_listen_with_its_id_and_no_other() -> None:
    s = Scenario()
    s.client("A", listen(1, **TOOLS), listen(1, promptsListChanged=True), listen("1", **TOOLS))
    s.client("A", cancelled(1)).expect(server=cancelled(3))
    s.server(acknowledged(2)).expect(A=acknowledged("1"))


def test_a_cancel_of_anothers_listen_reaches_nobody() -> None:
    s = opened()
    s.client("A", cancelled("LB"), cancelled(2)).expect()
    assert s.stats.dropped_notifications_up == 2
    s.server(changed(2)).expect(A=changed("LA"), B=changed("LB"))


def test_a_cancel_of_a_listen_that_waits_removes_it() -> None:
    s = Scenario(server=False)
    s.client("A", listen("a", **TOOLS), cancelled("a"))
    assert not s.router.needed()
    s.start().expect()


def test_a_refusal_goes_to_all_who_wait_each_under_its_own_id_and_the_next_one_asks_again() -> None:
    s = Scenario(clients="ABC")
    s.client("A", listen("a", **TOOLS))
    s.client("B", listen("b", **TOOLS))
    s.server(error(2, -32602, data={"x": 1})).expect(
        A=error("a", -32602, data={"x": 1}), B=error("b", -32602, data={"x": 1})
    )
    assert s.sizes == {"clients": 3}
    s.client("C", listen("c", **TOOLS)).expect(server=listen(3, **TOOLS))


def test_a_graceful_end_restores_id_and_subscription_id() -> None:
    """Section 4, row "response, known id"; hazard 70."""
    s = opened()
    s.server(closing(2)).expect(A=closing("LA"), B=closing("LB"))
    s.server(changed(2)).expect()
    assert s.sizes == {"clients": 2}


def test_the_rest_of_a_graceful_end_comes_through() -> None:
    s = opened()
    text = b'{"jsonrpc":"2.0","id":2,"result":{"v":1E2,"_meta":{"a":[-0],"%ssubscriptionId":2},"w":1}}\n'
    text %= PREFIX.encode()
    out = s.server(text)
    assert out.bytes("A") == text.replace(b":2,", b':"LA",').replace(b'Id":2', b'Id":"LA"')


@pytest.mark.parametrize("value", [{}, {"_meta": {}}, {"_meta": 7}, {"_meta": {"a": 1}}, 5])
def test_a_response_to_a_listen_without_a_subscription_id_is_passed_on_as_it_is(value: object) -> None:
    s = opened()
    s.server(result(2, value)).expect(A=result("LA", value), B=result("LB", value))


@pytest.mark.parametrize("body", ["", ',"result":{},"error":{}'])
def test_a_response_to_a_listen_with_both_or_neither_ends_it_with_an_error(body: str) -> None:
    """Section 4: -31008."""
    s = opened()
    s.server(b'{"jsonrpc":"2.0","id":2%s}\n' % body.encode()).expect(
        A=refusal(-31008, "invalid_response", id="LA", delivered=True),
        B=refusal(-31008, "invalid_response", id="LB", delivered=True),
    )
    assert s.sizes == {"clients": 2}


def test_a_damaged_response_to_a_listen_ends_it_with_an_error() -> None:
    s = opened()
    s.server(b'{"jsonrpc":"2.0","id":2,"result":?}\n').expect(
        A=refusal(-31008, "invalid_response", id="LA", delivered=True),
        B=refusal(-31008, "invalid_response", id="LB", delivered=True),
    )
    assert s.sizes == {"clients": 2}


def test_a_cancellation_of_the_server_reaches_each_holder_under_its_own_id() -> None:
    """Section 4, row `notifications/cancelled`: the subscription ends, a response is dropped."""
    s = opened()
    meta = {PREFIX + "subscriptionId": 2, "a": 1}
    s.server(cancelled(2, reason="bye", _meta=meta)).expect(
        A=cancelled("LA", reason="bye", _meta={**meta, PREFIX + "subscriptionId": "LA"}),
        B=cancelled("LB", reason="bye", _meta={**meta, PREFIX + "subscriptionId": "LB"}),
    )
    s.server(closing(2), changed(2), cancelled(2)).expect()
    assert (s.stats.dropped_responses, s.stats.dropped_notifications) == (1, 2)
    assert s.sizes == {"clients": 2}


@pytest.mark.parametrize("rest", [{}, {"_meta": {"a": 1}}, {"_meta": 5}])
def test_a_cancellation_of_the_server_without_a_subscription_id_comes_through(rest: Json) -> None:
    s = opened()
    s.server(cancelled(2, **rest)).expect(A=cancelled("LA", **rest), B=cancelled("LB", **rest))


def test_a_client_that_ended_may_listen_again() -> None:
    s = opened("A")
    s.server(closing(2))
    s.client("A", listen("LA", **TOOLS)).expect(server=listen(3, **TOOLS))


# -- limits


def test_listens_do_not_count_as_requests_in_flight() -> None:
    s = Scenario(max_in_flight=1)
    s.client("A", request(1, "x"), listen("a", **TOOLS)).expect(server=[request(2, "x"), listen(3, **TOOLS)])
    assert s.router.in_flight == 1


def test_a_listen_whose_turn_it_is_does_not_wait_for_the_window() -> None:
    s = Scenario(max_in_flight=1)
    s.client("A", request(1, "x"), request(2, "x"), listen("a", **TOOLS)).expect(server=request(2, "x"))
    s.server(result(2, {})).expect(A=result(1, {}), server=[request(3, "x"), listen(4, **TOOLS)])


def test_a_client_may_hold_so_many_subscriptions() -> None:
    """`--max-subscriptions`: -31003."""
    s = Scenario(clients="AB", max_subscriptions=2)
    s.client("A", listen(1, **TOOLS), listen(2, **TOOLS), listen(3, **TOOLS)).expect(
        server=listen(2, **TOOLS), A=refusal(-31003, "too_many_subscriptions", id=3)
    )
    s.client("B", listen(1, **TOOLS)).expect()
    s.client("A", cancelled(1), listen(3, **TOOLS)).expect()
    s.server(acknowledged(2)).expect(A=[acknowledged(2), acknowledged(3)], B=acknowledged(1))


def test_all_clients_together_may_hold_so_many_subscriptions() -> None:
    s = Scenario(clients="ABC", max_subscriptions_all=2)
    s.client("A", listen(1, **TOOLS))
    s.client("B", listen(1, **TOOLS))
    s.client("C", listen(1, **TOOLS)).expect(C=refusal(-31003, "too_many_subscriptions", id=1))
    s.leave("A")
    s.client("C", listen(1, **TOOLS)).expect()


def test_listens_that_waited_are_counted_when_they_are_opened() -> None:
    s = Scenario(server=False, max_subscriptions=1)
    s.client("A", listen(1, **TOOLS), listen(2, **TOOLS)).expect()
    s.start().expect(server=listen(2, **TOOLS), A=refusal(-31003, "too_many_subscriptions", id=2))


def test_a_listen_for_which_there_is_no_room_does_not_wait_to_be_refused() -> None:
    s = Scenario(max_subscriptions=1)
    s.client("A", listen(1, **TOOLS))
    s.crash()
    s.client("A", listen(2, **TOOLS)).expect(A=refusal(-31003, "too_many_subscriptions", id=2))


def test_a_listen_waits_in_its_place() -> None:
    s = Scenario()
    s.block()
    s.client("A", request(1, "x"), listen("a", **TOOLS), notification("n")).expect()
    s.unblock().expect(server=[request(2, "x"), listen(3, **TOOLS), notification("n")])


def test_a_listen_is_not_too_big_to_be_kept_in_the_bytes_it_came_in() -> None:
    """What is kept for a restart holds an odd message's members too."""
    s = Scenario()
    odd = line({**listen("a", resourceSubscriptions=["?"]), "vendor": 1}).replace(b'"?"', b'"\\ud83d"')
    first = s.client("A", odd).bytes("server")
    assert first == odd.replace(b'"a"', b"2")
    s.server(acknowledged(2))
    s.crash()
    assert s.start().bytes("server") == odd.replace(b'"a"', b"4")


def test_what_opens_a_subscription_is_kept_and_counts_as_its_holders() -> None:
    """Section 6: `--max-buffered` bounds what is kept for clients."""
    s = Scenario()
    long = listen("L", resourceSubscriptions=["x" * 5000])
    s.client("A", long)
    assert 10000 < s.router.buffered(s.key("A")) < 11000  # its key says the same once more
    s.client("A", cancelled("L"))
    assert s.router.buffered(s.key("A")) == 0
