"""Requests and their responses: who is answered, under which id, and what is refused."""

from __future__ import annotations

import json

import pytest

from bridge.core import downstream
from bridge.core.era import MODERN_VERSION
from bridge.core.inflight import Client
from bridge.core.lines import TURN_LINES
from bridge.core.outbox import Control, Key
from bridge.core.tables import Limits, NoticeKind, Tables
from tests.unit.core.scenario import (
    CLOSE,
    MODERN,
    Json,
    Scenario,
    cancelled,
    error,
    legacy,
    line,
    listen,
    log,
    notification,
    parse,
    progress,
    refusal,
    request,
    result,
)
from tests.unit.core.sessions import session

DISCOVERED = {"supportedVersions": [MODERN_VERSION]}


# -- ids (section 3, row "request"; section 4, row "response, known id")


def test_each_client_gets_its_own_response_under_its_own_id() -> None:
    """Section 3: two clients with id 1 and "1" are two requests; hazard 63."""
    s = Scenario(clients="AB")
    s.client("A", request(1, "tools/list")).expect(server=request(2, "tools/list"))
    s.client("B", request("1", "tools/list")).expect(server=request(3, "tools/list"))
    s.server(result(3, {"for": "B"})).expect(B=result("1", {"for": "B"}))
    s.server(result(2, {"for": "A"})).expect(A=result(1, {"for": "A"}))
    assert s.stats.responses == 2


def test_what_clients_write_at_the_same_time_goes_to_the_server_in_one_piece() -> None:
    """A write to a pipe costs more than the messages in it; what comes between takes it along."""
    s = Scenario(clients="AB")
    router = s.router
    router.collect(s.key("A"), line(request(1, "x")), s.now)
    router.collect(s.key("B"), line(request(1, "y")), s.now)
    assert router.flush() == [(s.key("server"), line(request(2, "x")) + line(request(3, "y")))]
    assert router.flush() == []
    router.collect(s.key("A"), line(request(2, "z")), s.now)
    s.server(result(3)).expect(B=result(1), server=request(4, "z"))
    s.leave("A")
    router.collect(s.key("A"), line(request(1)), s.now)
    assert router.flush() == []


@pytest.mark.parametrize(
    "spelled",
    [
        "0",
        "1",
        '"1"',
        '""',
        "-7",
        "9007199254740993",
        "18446744073709551616",
        '"a\\"b"',
        '"\\ud83d"',
        '"žluť"',
    ],
)
def test_an_id_comes_back_with_the_type_and_value_it_had(spelled: str) -> None:
    """Section 3, below the table; a gateway that answered id 0 with "0" lost strict clients."""
    s = Scenario()
    s.client("A", b'{"jsonrpc":"2.0","id":%s,' % spelled.encode() + line(request(0, "x")).split(b",", 2)[2])
    out = s.server(result(2, {})).bytes("A")
    assert out == b'{"jsonrpc":"2.0","id":%s,"result":{}}\n' % spelled.encode()


def test_ids_of_one_client_that_look_alike_never_meet() -> None:
    """Section 3: `1` and `"1"` in one table."""
    s = Scenario()
    s.client("A", request(1, "x"), request("1", "x"))
    s.client("A", cancelled("1")).expect(server=cancelled(3))
    s.server(result(3, {})).expect()
    s.server(result(2, {})).expect(A=result(1, {}))


def test_an_upstream_id_is_never_used_twice_not_even_by_the_next_child() -> None:
    """Section 3: one counter for the bridge's life; hazard 71."""
    s = Scenario()
    s.client("A", request(1, "x")).expect(server=request(2, "x"))
    s.server(result(2, {}))
    s.crash()
    s.start()  # its probe is 3
    s.client("A", request(1, "x")).expect(server=request(4, "x"))


def test_an_id_in_flight_twice_gets_two_responses() -> None:
    """Section 3, last row: one host sends `id: 1` for everything."""
    s = Scenario()
    s.client("A", request(1, "x", n=1), request(1, "x", n=2)).expect(
        server=[request(2, "x", n=1), request(3, "x", n=2)]
    )
    s.server(result(3, "second")).expect(A=result(1, "second"))
    s.server(result(2, "first")).expect(A=result(1, "first"))


def test_what_an_unknown_member_is_called_decides_nothing() -> None:
    """Section 2: servers that read names without regard to case (Go's) would take `ID` for the `id`."""
    s = Scenario(clients="AB")
    s.client("B", request(1, "x")).expect(server=request(2, "x"))
    odd = {**request(1, "y"), "ID": 2, "Method": "z", "PARAM\u017f": {}, "Result": 1, "vendor": 1}
    s.client("A", odd).expect(server={**request(3, "y"), "vendor": 1})
    s.server({**result(3, {}), "Id": 7}).expect(A=result(1, {}))


def test_a_cancel_ends_every_request_with_its_id() -> None:
    """Section 3, last row."""
    s = Scenario()
    s.client("A", request(1, "x"), request(1, "x"))
    s.client("A", cancelled(1, reason="late")).expect(
        server=[cancelled(2, reason="late"), cancelled(3, reason="late")]
    )
    assert s.sizes == {"clients": 1}


def test_a_new_connection_gets_nothing_of_the_one_before_with_the_same_ids() -> None:
    """Hazard 50."""
    s = Scenario()
    s.client("A", request(1, "x"))
    s.leave("A")
    s.join("B")
    s.client("B", request(1, "x")).expect(server=request(3, "x"))
    s.server(result(2, "old")).expect()
    s.server(result(3, "new")).expect(B=result(1, "new"))


def test_everything_in_a_payload_comes_through_byte_for_byte() -> None:
    """Section 2: no number, escape, unknown member or key order of a peer is altered."""
    s = Scenario()
    value = (
        b'{"z":1E2,"a":[1.0,-0,1e400,12345678901234567890123],"t":"\\u00e9\\/\xc3\xa9","y": {"b":1 , "a":2}}'
    )
    sent = b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"v":%s,"_meta":%s}}\n' % (
        value,
        json.dumps(MODERN).encode(),
    )
    assert value in s.client("A", sent).bytes("server")
    got = s.server(b'{"result":%s,"id":2,"jsonrpc":"2.0"}\n' % value).bytes("A")
    assert got == b'{"jsonrpc":"2.0","id":1,"result":%s}\n' % value


def test_an_error_with_its_data_comes_through() -> None:
    s = Scenario()
    s.client("A", request("a", "x"))
    s.server(error(2, -32602, "bad", data={"x": [1]})).expect(A=error("a", -32602, "bad", data={"x": [1]}))


def test_unknown_members_of_the_envelope_come_through_both_ways() -> None:
    """Section 2; cases: unknown top-level members vanish in proxies that rebuild objects."""
    s = Scenario()
    s.client("A", {**request(1, "x"), "vendor": 1}).expect(server={**request(2, "x"), "vendor": 1})
    s.server({**result(2, {}), "vendor": [2]}).expect(A={**result(1, {}), "vendor": [2]})


def test_responses_in_any_order_reach_their_requests() -> None:
    s = Scenario(clients="AB")
    s.client("A", request(1, "x"), request(2, "x"))
    s.client("B", request(1, "x"))
    s.server(result(4, "B1"), result(3, "A2"), result(2, "A1")).expect(
        A=[result(2, "A2"), result(1, "A1")], B=result(1, "B1")
    )
    assert s.sizes == {"clients": 2}
    assert s.router.in_flight == 0


# -- progress tokens on requests


@pytest.mark.parametrize("token", ["t", 7, -7, 0, "", "\u00e9"])
def test_a_progress_token_is_replaced_by_the_upstream_id_and_restored(token: str | int) -> None:
    """Section 3, row "request"; two clients choose the same token."""
    s = Scenario(clients="AB")
    s.client("A", request(1, "x", meta={"progressToken": token})).expect(
        server=request(2, "x", meta={"progressToken": 2})
    )
    s.client("B", request(1, "x", meta={"progressToken": token})).expect(
        server=request(3, "x", meta={"progressToken": 3})
    )
    s.server(progress(3)).expect(B=progress(token))
    s.server(progress(2)).expect(A=progress(token))


@pytest.mark.parametrize("token", [57.0, True, None, [1], {"a": 1}, "x" * 1100])
def test_a_progress_token_that_is_no_string_or_plain_integer_is_removed(token: object) -> None:
    """Section 3, below the table: a server that echoes 57.0 as 57 would hit a stranger."""
    s = Scenario()
    s.client("A", request(1, "x", meta={"progressToken": token})).expect(server=request(2, "x"))
    assert s.stats.removed_tokens == 1
    s.server(progress(2)).expect()
    s.server(result(2, {})).expect(A=result(1, {}))


@pytest.mark.parametrize("token", [57.0, True, None, [1], "x" * 1100])
def test_a_token_of_another_kind_is_removed_from_a_listen_too(token: object) -> None:
    """Section 3, below the table."""
    s = Scenario()
    s.client("A", listen("L", meta={"progressToken": token}, toolsListChanged=True)).expect(
        server=listen(2, toolsListChanged=True)
    )
    assert s.stats.removed_tokens == 1


# -- cancelling


def test_a_cancel_is_forwarded_with_the_upstream_id_and_the_rest_of_its_params() -> None:
    """Section 3, row `notifications/cancelled`."""
    s = Scenario()
    s.client("A", request("a", "x"))
    s.client("A", cancelled("a", reason="user", extra={"n": 1})).expect(
        server=cancelled(2, reason="user", extra={"n": 1})
    )
    assert s.stats.cancels == 1
    assert s.sizes == {"clients": 1}


def test_a_cancel_brings_no_progress_token_along() -> None:
    """Section 3: it is the client's own number, and may be a stranger's upstream id."""
    s = Scenario()
    s.client("A", request("a", "x"))
    s.client("A", cancelled("a", _meta={"progressToken": 7, "b": 1})).expect(
        server=cancelled(2, _meta={"b": 1})
    )
    assert s.stats.removed_tokens == 1


def test_a_cancel_is_never_longer_than_the_server_takes() -> None:
    """Section 2, `--max-request`: a longer line ends servers, and a cancel grows with its id."""
    s = Scenario(max_request=2000)
    s.client("A", request(1, "x"))
    fixed = len(line(cancelled(2, reason=""))) - 1
    s.client("A", cancelled(1, reason="r" * (2000 - fixed))).expect(
        server=cancelled(2, reason="r" * (2000 - fixed))
    )
    s.client("A", request(1, "x"))
    s.client("A", cancelled(1, reason="r" * (2001 - fixed))).expect(server=cancelled(3))
    for n in range(10):
        s.client("A", request(n, "x"))
    s.client("A", cancelled(9, reason="r" * (2000 - fixed))).expect(server=cancelled(13))


@pytest.mark.parametrize("what", [request(1, "x"), listen(1, resourceSubscriptions=["u"], other=1)])
def test_a_cancel_of_many_requests_repeats_no_long_members(what: Json) -> None:
    """Section 6: one line of a client must not become hundreds of the same length."""
    s = Scenario()
    s.client("A", *[what] * 60)
    written = s.client("A", cancelled(1, reason="r" * 5000)).items("server")
    assert written == [cancelled(2, reason="r" * 5000), *(cancelled(n) for n in range(3, 62))]
    s.client("A", *[what] * 2)
    s.client("A", cancelled(1, reason="r")).expect(
        server=[cancelled(62, reason="r"), cancelled(63, reason="r")]
    )


def test_what_still_comes_for_a_cancelled_request_is_dropped_and_counted() -> None:
    """Section 3: the entry ends with the cancellation; hazard 24 and 65."""
    s = Scenario()
    s.client("A", request("a", "x", meta={"progressToken": "t"}))
    s.client("A", cancelled("a"))
    s.server(progress(2)).expect()
    s.server(result(2, {})).expect()
    s.server(error(2)).expect()
    assert (s.stats.dropped_progress, s.stats.dropped_responses) == (1, 2)


def test_a_cancel_of_another_clients_request_reaches_nobody() -> None:
    """Hazard 66: ids of the bridge's own space mean nothing to a client."""
    s = Scenario(clients="AB")
    s.client("A", request(1, "x"))
    s.client("B", cancelled(1), cancelled(2), cancelled("1")).expect()
    assert s.stats.dropped_notifications_up == 3
    s.server(result(2, {})).expect(A=result(1, {}))


@pytest.mark.parametrize(
    "params", [None, [1], {}, {"requestId": None}, {"requestId": [1]}, {"requestId": True}]
)
def test_a_cancel_that_names_nothing_is_dropped_and_counted(params: object) -> None:
    """Section 3: "otherwise dropped and counted"."""
    s = Scenario()
    s.client("A", request(1, "x"))
    s.client("A", {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}).expect()
    assert s.stats.dropped_notifications_up == 1
    assert s.router.in_flight == 1


def test_a_cancel_of_an_answered_request_is_dropped_and_counted() -> None:
    """Section 3; cases: old servers crash on a cancellation that races with the answer."""
    s = Scenario()
    s.client("A", request(1, "x"))
    s.server(result(2, {}))
    s.client("A", cancelled(1)).expect()
    assert s.stats.dropped_notifications_up == 1


def test_a_queued_request_that_is_cancelled_never_reaches_the_server() -> None:
    """Section 3: "own request still queued: removed"."""
    s = Scenario(max_in_flight=1)
    s.client("A", request(1, "x"), request(2, "x"), request(3, "x")).expect(server=request(2, "x"))
    s.client("A", cancelled(2)).expect()
    s.server(result(2, {})).expect(A=result(1, {}), server=request(3, "x"))
    assert s.stats.cancels == 0


def test_cancelling_what_is_queued_gives_its_bytes_back() -> None:
    """Section 6: `--max-buffered` counts queues; a count that only grows cuts innocent clients."""
    s = Scenario(server=False)
    s.client("A", request(1, "x"), request(1, "x"), request(2, "x"))
    assert s.router.buffered(s.key("A")) == s.router.buffered_all > s.sizes["queued_bytes"]
    s.client("A", cancelled(1), cancelled(2)).expect()
    assert s.sizes == {"clients": 1}
    assert s.router.buffered_all == 0
    assert not s.router.needed()


def test_a_cancel_makes_room_in_the_window_for_what_is_queued() -> None:
    s = Scenario(max_in_flight=1)
    s.client("A", request(1, "x"), request(2, "x"))
    s.client("A", cancelled(1)).expect(server=[cancelled(2), request(3, "x")])


def test_a_cancel_passes_window_and_queue() -> None:
    """Section 6: client cancels never wait behind requests; hazard 67."""
    s = Scenario(max_in_flight=1)
    s.client("A", request(1, "x"), request(2, "x"), request(3, "x"))
    s.client("A", cancelled(1)).expect(server=[cancelled(2), request(3, "x")])


# -- other lines of a client (section 3)


def test_a_response_of_a_client_is_dropped_and_counted() -> None:
    """Section 3, row "response"; hazard 60: a forged answer reaches nobody."""
    s = Scenario(clients="AB")
    s.client("A", request(1, "x"))
    s.client("B", result(2, "forged"), error(2)).expect()
    assert s.stats.dropped_responses_up == 2
    s.server(result(2, "true")).expect(A=result(1, "true"))


def test_a_line_that_is_no_json_is_answered_with_a_parse_error_without_id() -> None:
    """Section 3, row "not JSON"; hazard 51."""
    s = Scenario()
    out = s.client("A", b"{not json\n")
    out.expect(A=refusal(-32700, "parse_error"))
    assert out.told() == [NoticeKind.BAD_LINE]
    assert s.stats.bad_lines == 1


def test_a_line_that_is_not_utf_8_is_answered_with_a_parse_error_and_not_forwarded() -> None:
    """Section 3, row "not UTF-8"; one such byte ends servers."""
    s = Scenario()
    s.client("A", line(request(1, "x", v="?")).replace(b"?", b"\xff"), request(2, "x")).expect(
        A=refusal(-32700, "parse_error"), server=request(2, "x")
    )


def test_the_tenth_line_in_a_row_that_is_no_json_closes_the_connection() -> None:
    """Section 3, row "not JSON"."""
    s = Scenario()
    s.client("A", request(7, "x"))
    nine = s.client("A", *[b"?\n"] * 9)
    nine.expect(A=[refusal(-32700, "parse_error")] * 9)
    tenth = s.client("A", b"?\n", request(8, "x"))
    tenth.expect(
        A=[refusal(-32700, "parse_error"), CLOSE],
        server=cancelled(2, reason="the client disconnected"),
    )
    assert tenth.told() == [NoticeKind.BAD_LINE, NoticeKind.CLIENT_CUT]
    assert s.stats.clients_cut == 1
    s.client("A", request(9, "x")).expect()
    s.eof("A").expect()
    s.leave("A").expect()
    assert s.sizes == {}


def test_many_lines_that_take_a_look_each_are_looked_at_in_turns() -> None:
    """A read may bring a hundred thousand of them: nobody else was read for most of a second."""
    s = Scenario()
    no = refusal(-32600, "invalid_request")
    flood = b"{}\n" * (2 * TURN_LINES + 5)
    last = line(request(1))
    out = s.client("A", flood + last + b'{"half":')
    out.expect(A=[*[no] * TURN_LINES, Control.TURN])
    assert s.router.buffered(s.key("A")) == 3 * (TURN_LINES + 5) + len(last) + 8
    s.turn("A").expect(A=[*[no] * TURN_LINES, Control.TURN])
    s.turn("A").expect(A=[*[no] * 5], server=request(2))
    assert s.router.buffered(s.key("A")) == 8
    s.turn("A").expect()
    s.client("A", b"1}\n").expect(A=no)
    s.client("A", request(3)).expect(server=request(3))


def test_no_turn_is_asked_for_when_nothing_is_left() -> None:
    s = Scenario()
    no = refusal(-32600, "invalid_request")
    s.client("A", b"{}\n" * TURN_LINES).expect(A=[no] * TURN_LINES)
    s.client("A", request(1)).expect(server=request(2))


def test_what_comes_before_the_turn_has_come_stays_behind_what_is_left() -> None:
    s = Scenario(max_request=2000)
    no = refusal(-32600, "invalid_request")
    s.client("A", b"[]\n" * TURN_LINES + b"[]\n" * 2 + b'{"id":7,' + b" " * 4000)
    out = s.client("A", b"\n" + line(request(1)))
    too_large = refusal(-31004, "message_too_large", id=7)
    out.expect(A=[no, no, too_large], server=request(2))


def test_a_client_that_stops_sending_before_its_turn_has_come_is_answered_all_the_same() -> None:
    s = Scenario()
    no = refusal(-32600, "invalid_request")
    s.client("A", b"{}\n" * 3 * TURN_LINES + line(request(1)))
    out = s.eof("A")
    told = out.items("A")
    assert told.count(no) == 2 * TURN_LINES
    assert out.items("server") == [request(2)]


def test_what_is_left_of_a_client_that_is_cut_or_gone_is_left() -> None:
    s = Scenario("AB", bad_lines=2)
    s.client("A", b"\n" * TURN_LINES + b"?\n?\n" + b"{}\n" * 3)
    s.turn("A").expect(A=[*[refusal(-32700, "parse_error")] * 2, CLOSE])
    s.turn("A").expect()
    s.client("B", b"{}\n" * 2 * TURN_LINES)
    s.leave("B").expect()
    s.turn("B").expect()
    assert not s.sizes


def test_the_last_line_of_a_client_that_is_cut_for_what_came_before_it_is_not_carried_out() -> None:
    """It waited for a server, which was started for nobody."""
    s = Scenario(bad_lines=2, server=False)
    s.client("A", b"\n" * TURN_LINES + b"?\n?\n" + line(request(1))[:-1]).expect(A=Control.TURN)
    out = s.eof("A")
    out.expect(A=[*[refusal(-32700, "parse_error")] * 2, CLOSE])
    assert out.told().count(NoticeKind.NEED_CHILD) == 0
    assert not s.sizes


def test_lines_that_are_decoded_at_once_are_not_counted() -> None:
    s = Scenario(max_in_flight=5000)
    out = s.client("A", *[request(id) for id in range(2 * TURN_LINES)])
    assert len(out.items("server")) == 2 * TURN_LINES
    assert out.items("A") == []


def test_a_valid_message_forgives_the_bad_lines_before_it() -> None:
    """Section 3: "any valid message resets"."""
    s = Scenario()
    for _ in range(3):
        s.client("A", *[b"?\n"] * 9)
        s.client("A", notification("notifications/x"))
    assert s.stats.clients_cut == 0


def test_lines_behind_the_one_that_closed_the_connection_are_ignored() -> None:
    s = Scenario(bad_lines=2, max_request=200)
    tail = s.client("A", b"?\n", b"?\n", b'{"' + b"x" * 3000 + b"\n", request(1, "x"))
    tail.expect(A=[refusal(-32700, "parse_error"), refusal(-32700, "parse_error"), CLOSE])


@pytest.mark.parametrize(
    ("text", "id"),
    [
        (b"1", None),
        (b'"x"', None),
        (b"[]", None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"x"}]', None),
        (b"{}", None),
        (b'{"jsonrpc":"2.0"}', None),
        (b'{"jsonrpc":"2.0","id":5}', 5),
        (b'{"jsonrpc":"2.0","id":5,"params":{}}', 5),
        (b'{"jsonrpc":"1.0","id":5,"method":"x"}', 5),
        (b'{"id":"a","method":"x"}', "a"),
        (b'{"jsonrpc":"2.0","id":5,"method":7}', 5),
        (b'{"jsonrpc":"2.0","id":5,"method":"x","params":7}', 5),
        (b'{"jsonrpc":"2.0","id":5,"method":"x","result":{}}', 5),
        (b'{"jsonrpc":"2.0","method":"x","error":{}}', None),
        (b'{"jsonrpc":"2.0","id":null,"method":"x"}', None),
        (b'{"jsonrpc":"2.0","id":true,"method":"x"}', None),
        (b'{"jsonrpc":"2.0","id":[1],"method":"x"}', None),
        (b'{"jsonrpc":"2.0","id":{},"method":"x"}', None),
        (b'{"jsonrpc":"2.0","id":1.0,"method":"x"}', None),
        (b'{"jsonrpc":"2.0","id":1e0,"method":"x"}', None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"x"}', None),
        (b'{"jsonrpc":"2.0","id":"' + b"x" * 1100 + b'","method":"x"}', None),
        (b'{"jsonrpc":"2.0","id":' + b"1" * 1100 + b',"method":"x"}', None),
        (b'{"jsonrpc":"2.0","id":5,"method":"x","params":' + b"[" * 200 + b"]" * 200 + b"}", 5),
    ],
)
def test_json_that_is_no_message_is_an_invalid_request_and_the_connection_lives(
    text: bytes, id: int | str | None
) -> None:
    """Section 3, row "not an object, no `method`, ..."; hazards 52, 53, 57."""
    s = Scenario()
    s.client("A", text + b"\n").expect(A=refusal(-32600, "invalid_request", id=id))
    assert s.stats.bad_lines == 1
    s.client("A", request(6, "x")).expect(server=request(2, "x"))


def test_invalid_requests_never_close_the_connection() -> None:
    """Section 3: "the connection lives"; only what is not JSON counts."""
    s = Scenario()
    s.client("A", *[b"{}\n"] * 20)
    s.client("A", request(6, "x")).expect(server=request(2, "x"))


def test_a_raw_carriage_return_smuggles_nothing() -> None:
    """Section 2; hazard 55: text-mode readers would take id 999 for a message."""
    s = Scenario()
    hidden = b'{"jsonrpc":"2.0","id":7,"method":"x","params":{"x":\r{"id":999}\r,"_meta":%s}}\r\n'
    out = s.client("A", hidden % json.dumps(MODERN).encode()).bytes("server")
    assert b"\r" not in out
    assert parse(out)["id"] == 2


def test_keys_that_stand_twice_are_forwarded_once() -> None:
    """Section 2; hazard 54."""
    s = Scenario()
    meta = json.dumps(MODERN).encode()[:-1]
    twice = (
        b'{"jsonrpc":"2.0","id":1,"\\u0069d":9,"method":"x","method":"y","params":{"_meta":{}},'
        b'"params":{"_meta":%s,"progressToken":5,"progress\\u0054oken":6}}}\n'
    )
    s.client("A", twice % meta).expect(server=request(2, "y", meta={"progressToken": 2}))
    s.server(progress(2)).expect(A=progress(6))
    s.server(result(2, {})).expect(A=result(9, {}))


# -- the legacy era, which this bridge does not serve


def test_a_legacy_request_gets_an_error_that_names_both_eras() -> None:
    """Section 7: -31006 with `data.supported`, and what to do."""
    s = Scenario()
    old = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25"}}
    out = s.client("A", old)
    text = json.loads(out.bytes("A"))["error"]["message"]
    assert MODERN_VERSION in text
    assert "initialize" in text
    out.expect(A=refusal(-31006, "era_not_served", id=0, supported=["2026-07-28"]))


def test_the_versions_that_are_supported_are_those_the_server_named() -> None:
    s = Scenario(server=False)
    s.open()
    s.server(result(1, {"supportedVersions": ["2026-07-28", "2027-01-01"]}))
    old = {"jsonrpc": "2.0", "id": 0, "method": "tools/list"}
    s.client("A", old).expect(
        A=refusal(-31006, "era_not_served", id=0, supported=["2026-07-28", "2027-01-01"])
    )


@pytest.mark.parametrize("params", [None, [], {}, {"_meta": 5}, {"_meta": {}}])
def test_a_request_without_a_protocol_version_is_of_the_legacy_era(params: object) -> None:
    """Section 7: modern is what has the key in its `_meta`."""
    s = Scenario()
    out = s.client("A", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params})
    out.expect(A=refusal(-31006, "era_not_served", id=1, supported=["2026-07-28"]))


def test_a_discover_is_modern_without_any_meta() -> None:
    """Section 7."""
    s = Scenario()
    plain = {"jsonrpc": "2.0", "id": 1, "method": "server/discover"}
    s.client("A", plain).expect(server={**plain, "id": 2})


def test_a_legacy_ping_is_answered_by_the_bridge() -> None:
    """Section 7: `ping` is answered by the bridge."""
    s = Scenario(server=False)
    s.client("A", {"jsonrpc": "2.0", "id": "p", "method": "ping"}).expect(A=result("p", {}))


# -- waiting for a server


def test_a_request_asks_for_a_child_and_waits_for_it() -> None:
    """Sections 7 and 8: the bridge speaks first, clients' lines wait in their queues."""
    s = Scenario(server=False, era=None)
    out = s.client("A", request(1, "x"))
    out.expect()
    assert out.told() == [NoticeKind.NEED_CHILD]
    assert s.router.needed()
    [probe] = s.open().items("server")
    assert isinstance(probe, dict)
    assert (probe["id"], probe["method"]) == (1, "server/discover")
    assert not s.router.ready
    assert not s.router.spoke(s.key("server"))
    s.client("A", request(2, "x")).expect()
    s.server(result(1, DISCOVERED)).expect(server=[request(2, "x"), request(3, "x")])
    assert s.router.ready
    assert s.router.spoke(s.key("server"))


def test_many_clients_that_wait_cause_one_probe() -> None:
    """Section 7."""
    s = Scenario(clients="AB", server=False, era=None)
    s.open().expect()
    assert len(s.client("A", request(1, "x")).items("server")) == 1
    s.client("B", request(1, "x")).expect()
    s.server(result(1, DISCOVERED)).expect(server=[request(2, "x"), request(3, "x")])


def test_a_child_nobody_needs_is_not_spoken_to() -> None:
    """Section 7: in no era until a client shows which it needs."""
    s = Scenario(server=False, era=None)
    s.open().expect()
    assert not s.router.needed()


def test_a_child_that_does_not_answer_the_probe_is_served_when_its_time_is_up() -> None:
    """A late DiscoverResult is still understood; a damaged one ends the waiting as well."""
    s = Scenario(server=False)
    s.open()
    s.client("A", request(1, "x")).expect()
    assert s.router.needs_tick
    s.wait(9.9).expect()
    s.wait(0.1).expect(server=request(2, "x"))
    assert not s.router.needs_tick
    s.server(result(1, {"supportedVersions": ["2099-01-01"]})).expect()
    s.client("A", {"jsonrpc": "2.0", "id": 1, "method": "y"}).expect(
        A=refusal(-31006, "era_not_served", id=1, supported=["2099-01-01"])
    )


def test_a_damaged_answer_to_the_probe_is_an_answer() -> None:
    s = Scenario(server=False)
    s.open()
    s.client("A", request(1, "x"))
    s.server(b'{"jsonrpc":"2.0","id":1,"result":{"a":?}}\n').expect(server=request(2, "x"))


# -- what the server answers (section 4)


@pytest.mark.parametrize(
    "id",
    ["99", '"2"', "2.0", "2e0", "null", "true", "[2]", "-2", "02", "1" * 30, '"\\ud83d"', '"2\\udc00"'],
)
def test_a_response_under_an_id_that_was_not_sent_is_dropped(id: str) -> None:
    """Section 4: "known" is a plain integer that was sent to this child; hazard 22."""
    s = Scenario()
    s.client("A", request("a", "x"))
    s.server(b'{"jsonrpc":"2.0","id":%s,"result":{}}\n' % id.encode()).expect()
    assert s.stats.dropped_responses + s.stats.noise == 1
    s.server(result(2, {})).expect(A=result("a", {}))


def test_a_response_that_comes_twice_is_delivered_once() -> None:
    """Section 4; hazard 23."""
    s = Scenario()
    s.client("A", request("a", "x"))
    s.server(result(2, 1), result(2, 2), error(2)).expect(A=result("a", 1))
    assert s.stats.dropped_responses == 2


def test_a_response_to_the_child_before_means_nothing_on_this_one() -> None:
    """Section 4: the tables belong to one child."""
    s = Scenario()
    s.client("A", request("a", "x"))
    s.crash()
    s.start()
    s.client("A", request("b", "x")).expect(server=request(4, "x"))
    s.server(result(2, {})).expect()
    assert s.stats.dropped_responses == 1


@pytest.mark.parametrize("body", ["", ',"result":{},"error":{"code":1,"message":"m"}', ',"x":1'])
def test_a_response_with_both_or_neither_of_result_and_error_costs_the_asker_an_error(body: str) -> None:
    """Section 4; hazard 25: -31008, once."""
    s = Scenario()
    s.client("A", request("a", "x"))
    text = b'{"jsonrpc":"2.0","id":2%s}\n' % body.encode()
    s.server(text).expect(A=refusal(-31008, "invalid_response", id="a", delivered=True))
    s.server(text).expect()
    assert s.stats.invalid_responses == 1
    assert s.sizes == {"clients": 1}


def test_an_object_that_is_no_message_is_noise() -> None:
    s = Scenario()
    out = s.server(b'{"jsonrpc":"2.0","id":99}\n', b'{"jsonrpc":"2.0"}\n')
    out.expect()
    assert out.told() == [NoticeKind.NOISE, NoticeKind.NOISE]
    assert s.stats.noise == 2


@pytest.mark.parametrize(
    "text",
    [
        b'{"jsonrpc":"2.0","id":2,"result":{"a":\n',
        b'{"jsonrpc":"2.0","id":2,"error":?}\n',
        b'{"jsonrpc":"2.0","id":2,"result":{"a":"\xff"}}\n',
        b'{"result":{"a":?},"jsonrpc":"2.0","id":2}\n',
        b'{"error":{"a":?},"id":2,"jsonrpc":"2.0"}\n',
        b'{"jsonrpc":"2.0","id":2,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    ],
)
def test_a_damaged_response_whose_id_can_be_trusted_settles_the_asker(text: bytes) -> None:
    """Section 2, last item; hazards 26 and 27."""
    s = Scenario()
    s.client("A", request("a", "x"))
    out = s.server(text)
    out.expect(A=refusal(-31008, "invalid_response", id="a", delivered=True))
    assert out.told() == [NoticeKind.NOISE]
    s.server(result(2, {})).expect()


@pytest.mark.parametrize(
    "text",
    [
        b'{"jsonrpc":"2.0","method":"x","id":2,"params":?}\n',
        b'{"jsonrpc":"2.0","id":2,"method":"roots/list","params":7}\n',
        b'{"jsonrpc":"2.0","id":2,"method":7}\n',
        b'{"jsonrpc":"2.0","method":"x","id":2,"params":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        b'starting ... {"jsonrpc":"2.0","id":2,"result":{}}\n',
        b'[{"jsonrpc":"2.0","id":2,"result":{}}]\n',
        b'{"jsonrpc":"2.0","id":3,"result":{"a":?},"jsonrpc":"2.0","id":2}\n',
        b"Server ready\n",
        b"\xff\xfe\x00\n",
        b'"x"\n',
    ],
)
def test_a_line_of_the_server_that_is_no_message_is_dropped_counted_and_told(text: bytes) -> None:
    """Section 4, last row; hazards 21, 37: the lines behind it are unaffected."""
    s = Scenario()
    s.client("A", request("a", "x"))
    out = s.server(text, result(2, {}))
    out.expect(A=result("a", {}))
    assert out.told() == [NoticeKind.NOISE]
    assert out.notices[0].detail == text[:-1][:512]
    assert s.stats.noise == 1


def test_blank_lines_and_byte_order_marks_are_nothing() -> None:
    """Section 2: both sides."""
    s = Scenario()
    s.client("A", b"\n \t\r\n", b"\xef\xbb\xbf" + line(request(1, "x"))).expect(server=request(2, "x"))
    s.server(b"\n\r\n", b"\xef\xbb\xbf" + line(result(2, {}))).expect(A=result(1, {}))
    assert s.stats.noise == s.stats.bad_lines == 0


def test_only_the_first_noise_waits_for_the_log() -> None:
    """Nothing grows without a bound: what exceeds the notices is only counted."""
    s = Scenario()
    assert len(s.server(*[b"noise\n"] * 100).notices) == 64
    assert s.stats.noise == 100
    assert not s.router.has_notices


# -- length


def test_a_request_over_the_limit_is_refused_with_its_id_and_the_connection_lives() -> None:
    """Section 2: `--max-request`."""
    s = Scenario(max_request=300)
    big = request("a", "x", v="y" * 3000)
    s.client("A", big).expect(A=refusal(-31004, "message_too_large", id="a"))
    s.client("A", request("b", "x")).expect(server=request(2, "x"))


def test_a_request_over_the_limit_is_refused_as_soon_as_its_id_is_known() -> None:
    """The rest of the line is skipped without being buffered, and said once."""
    s = Scenario(max_request=300)
    text = line(request("a", "x", v="y" * 3000))
    s.client("A", text[:2000]).expect(A=refusal(-31004, "message_too_large", id="a"))
    s.client("A", text[2000:-1]).expect()
    assert s.router.buffered_all == 0
    s.client("A", b"\n", request("b", "x")).expect(server=request(2, "x"))


def test_a_request_over_the_limit_whose_id_stands_behind_is_refused_at_its_end() -> None:
    s = Scenario(max_request=300)
    text = b'{"method":"x","params":{"v":"%s"},"id":"z","jsonrpc":"2.0"}\n' % (b"y" * 3000)
    s.client("A", text[:2000]).expect()
    s.client("A", text[2000:]).expect(A=refusal(-31004, "message_too_large", id="z"))


def test_a_line_over_the_limit_without_an_id_is_refused_without_one() -> None:
    s = Scenario(max_request=300)
    s.client("A", b"?" * 3000).expect()
    s.client("A", b"?\n").expect(A=refusal(-31004, "message_too_large"))


def test_a_line_over_the_limit_that_ends_with_the_connection_is_refused() -> None:
    s = Scenario(max_request=300)
    s.client("A", b"?" * 3000)
    s.eof("A").expect(A=[refusal(-31004, "message_too_large"), CLOSE])


def sized(size: int, *, method: str = "x", id: object = 1, meta: Json | None = None) -> Json:
    """A request that is `size` bytes long under upstream id and token 2."""
    empty = len(line(request(2, method, v="", meta=meta))) - 1
    return request(id, method, v="y" * (size - empty), meta=meta)


@pytest.mark.parametrize("method", ["x", "subscriptions/listen"])
def test_the_limit_is_of_the_line_as_the_server_gets_it(method: str) -> None:
    """Section 2: "as written to the child", so that no server is ended by a longer id."""
    s = Scenario(max_request=400)
    fits = s.client("A", sized(400, method=method, id="a long id of a client"))
    assert len(fits.bytes("server")) == 401
    fits.expect(server=sized(400, method=method, id=2))
    s = Scenario(max_request=400)
    s.client("A", sized(401, method=method, id=1)).expect(A=refusal(-31004, "message_too_large", id=1))


def test_the_limit_counts_the_token_as_the_server_gets_it() -> None:
    s = Scenario(max_request=400)
    meta = {"progressToken": 2}
    long = {"progressToken": "a long token of a client"}
    fits = sized(400, meta=meta)
    fits["params"]["_meta"] = {**MODERN, **long}
    assert len(s.client("A", fits).bytes("server")) == 401
    s = Scenario(max_request=400)
    s.client("A", sized(401, meta=meta)).expect(A=refusal(-31004, "message_too_large", id=1))


def test_a_line_with_much_white_space_is_measured_without_it() -> None:
    """What is only white space to JSON does not reach the server."""
    s = Scenario(max_request=400)
    spaced = line(sized(400)).replace(b'"method":', b'"method":' + b" " * 600)
    assert len(s.client("A", spaced).bytes("server")) == 401


def test_a_request_that_waited_is_measured_again_when_its_id_is_known() -> None:
    """Section 2: an id of two digits more would make it too long for the server."""
    s = Scenario(max_request=400, max_in_flight=1)
    s.client("A", *[request(n, "x") for n in range(8)], sized(400, id="last")).expect(server=request(2, "x"))
    for n in range(2, 9):
        s.server(result(n, {})).expect(A=result(n - 2, {}), server=request(n + 1, "x"))
    s.server(result(9, {})).expect(A=[result(7, {}), refusal(-31004, "message_too_large", id="last")])
    assert s.sizes == {"clients": 1}


def test_a_notification_over_the_limit_is_dropped_and_counted() -> None:
    s = Scenario(max_request=300)
    s.client("A", notification("x", v="y" * 400)).expect()
    assert s.stats.dropped_notifications_up == 1
    fits = notification("x", v="y" * 200)
    s.client("A", fits).expect(server=fits)


def test_a_response_over_the_limit_settles_its_asker_at_once() -> None:
    """Section 2: skipped without being buffered; hazards 28, 29."""
    s = Scenario(max_message=300)
    s.client("A", request("a", "x"), request("b", "x"))
    text = line(result(2, "y" * 3000))
    s.server(text[:1000]).expect(A=refusal(-31004, "message_too_large", id="a", delivered=True))
    s.server(text[1000:-1]).expect()
    assert s.router.buffered_all == 0
    s.server(b"\n", result(3, {})).expect(A=result("b", {}))


def test_a_response_over_the_limit_whose_id_stands_behind_settles_its_asker_at_its_end() -> None:
    """Section 2: the tail can be trusted of a line that starts with its result."""
    s = Scenario(max_message=300)
    s.client("A", request("a", "x"))
    text = b'{"result":"%s","jsonrpc":"2.0","id":2}\n' % (b"y" * 3000)
    s.server(text[:1000]).expect()
    s.server(text[1000:]).expect(A=refusal(-31004, "message_too_large", id="a", delivered=True))


def test_a_long_line_that_names_nobody_for_certain_settles_nobody() -> None:
    s = Scenario(max_message=300)
    s.client("A", request("a", "x"))
    s.server(b'{"jsonrpc":"2.0","method":"n","params":{"v":"%s"},"id":2}\n' % (b"y" * 3000)).expect()
    assert s.stats.noise == 1
    s.server(result(2, {})).expect(A=result("a", {}))


# -- the time a request may take


def test_a_request_that_takes_too_long_is_answered_and_cancelled() -> None:
    """Section 6: `--request-timeout`, -31007."""
    s = Scenario(request_timeout=5.0, max_in_flight=1)
    s.client("A", listen("L", toolsListChanged=True), request("a", "x"), request("b", "x"))
    assert s.router.needs_tick
    s.wait(4.9).expect()
    s.wait(0.1).expect(
        A=refusal(-31007, "request_timeout", id="a", delivered=True),
        server=[cancelled(3, reason="request timeout"), request(4, "x")],
    )
    assert s.sizes == {"clients": 1, "holders": 1, "shares": 1, "in_flight": 2, "child_shares": 1}
    s.server(result(3, {})).expect()
    assert s.stats.dropped_responses == 1


def test_the_oldest_requests_time_out_first() -> None:
    s = Scenario(clients="AB", request_timeout=5.0)
    s.client("A", request("a", "x"))
    s.now += 3
    s.client("B", request("b", "x"))
    s.wait(2).expect(
        A=refusal(-31007, "request_timeout", id="a", delivered=True),
        server=cancelled(2, reason="request timeout"),
    )
    s.wait(3).expect(
        B=refusal(-31007, "request_timeout", id="b", delivered=True),
        server=cancelled(3, reason="request timeout"),
    )
    assert not s.router.needs_tick


def test_without_a_limit_a_request_may_take_for_ever() -> None:
    s = Scenario()
    s.client("A", request("a", "x"))
    assert not s.router.needs_tick
    s.wait(1e9).expect()
    s.server(result(2, {})).expect(A=result("a", {}))


def test_a_log_message_of_a_request_in_time_is_watched_too() -> None:
    s = Scenario()
    s.client("A", request("a", "x", meta={"io.modelcontextprotocol/logLevel": "info"}))
    s.server(log("x")).expect(A=log("x"))
    assert s.router.needs_tick


# -- names that differ by case alone: servers that read without regard to case take them for the real ones


@pytest.mark.parametrize("name", ["_META", "_Meta", "requestID", "PROGRESSTOKEN", "progre\u017f\u017fToken"])
def test_a_member_of_params_that_looks_like_a_translated_one_is_dropped(name: str) -> None:
    """Else a server could report to its token, which may be another client's."""
    s = Scenario()
    members: Json = {"name": "x", name: {"progressToken": 2}}
    for id in (1, 2):
        out = s.client("A", request(id, "tools/call", **members))
        out.expect(server=request(id + 1, "tools/call", name="x"))


@pytest.mark.parametrize(
    "name",
    [
        "ProgressToken",
        "PROGRESSTOKEN",
        "progress\u0054o\u212aen",
        "io.modelcontextprotocol/LogLevel",
        "io.modelcontextprotocol/PROTOCOLVERSION",
        "io.modelcontextprotocol/subscriptionid",
    ],
)
@pytest.mark.parametrize("token", [{}, {"progressToken": "t"}])
def test_a_member_of_meta_that_looks_like_a_translated_one_is_dropped(name: str, token: Json) -> None:
    s = Scenario()
    out = s.client("A", request(1, "x", meta={**token, name: 7, "vendor/own": 1}))
    sent = {"progressToken": 2} if token else {}
    out.expect(server=request(2, "x", meta={**sent, "vendor/own": 1}))


def test_the_usual_meta_of_a_client_is_no_way_around_the_second_look() -> None:
    s = Scenario(clients="AB")
    s.client("A", request(1, "x")).expect(server=request(2, "x"))
    s.client("A", request(2, "x")).expect(server=request(3, "x"))
    s.client("A", request(3, "x", _META={"progressToken": 2})).expect(server=request(4, "x"))
    s.client("A", request(4, "x", meta={"progressToken": 9})).expect(
        server=request(5, "x", meta={"progressToken": 5})
    )
    s.client("B", request(1, "x")).expect(server=request(6, "x"))


def test_a_long_meta_is_looked_at_each_time() -> None:
    s = Scenario()
    long: Json = {"vendor/own": "x" * 2000}
    for id in (1, 2):
        s.client("A", request(id, "x", meta=long)).expect(server=request(id + 1, "x", meta=long))


def test_a_notification_carries_nothing_that_looks_like_a_token() -> None:
    s = Scenario()
    s.client("A", notification("x/y", _meta={"progresstoken": 2, "a": 1}, REQUESTID=2)).expect(
        server=notification("x/y", _meta={"a": 1})
    )
    s.client("A", request(1, "x"))
    s.client("A", notification("notifications/cancelled", requestId=1, RequestId=9)).expect(
        server=notification("notifications/cancelled", requestId=2)
    )


def test_a_request_with_a_name_of_nobodys_schema_goes_on_with_it() -> None:
    """Whatever else it brings is translated as ever."""
    s = Scenario(clients="AB")
    for client, id in (("A", 2), ("B", 3)):
        s.client(client, request(7, meta={"progressToken": 7}, name="n", flavour=[1])).expect(
            server=request(id, meta={"progressToken": id}, name="n", flavour=[1])
        )
    alike: Json = {"_META": {"progressToken": 3}, "TaskID": 3}
    s.client("A", request(8, flavour=1, **alike)).expect(server=request(4, flavour=1))
    s.server(progress(3), result(2, "a")).expect(B=progress(7), A=result(7, "a"))


@pytest.mark.parametrize("second", ["null", "[1]", '{"_meta":{"progressToken":1}}'])
def test_a_request_whose_params_stand_there_twice_has_the_second(second: str) -> None:
    """Even if the first has a name of nobody's schema."""
    s = session("A")
    text = '{"jsonrpc":"2.0","id":7,"method":"x","params":{"flavour":1},"params":%s}\n'
    sent = s.client("A", (text % second).encode()).bytes("server")
    assert json.loads(sent) == {**legacy(2, "x"), "params": json.loads(second.replace(":1", ":2"))}


def test_lines_that_are_no_messages_among_others_cost_a_server_nothing_else() -> None:
    s = Scenario()
    s.client("A", request(1), request(2))
    said = b"\nServer ready\n" + line(result(2)) + b"\n\n[INFO] done\n" + line(result(3)) + b"bye\n"
    s.server(said).expect(A=[result(1), result(2)])
    assert s.stats.noise == 3


def test_an_answer_under_too_long_an_id_is_no_valid_message() -> None:
    s = Scenario(server=False)
    s.open()
    s.server(b'{"jsonrpc":"2.0","id":"' + b"x" * 1023 + b'","result":1}\n').expect()
    assert not s.router.spoke(s.key("server"))
    assert s.stats.noise == 1


def test_a_listen_that_goes_to_the_server_is_looked_after() -> None:
    """The scenario sees to it, after each call, that ticks are asked for if they are needed."""
    s = Scenario(request_timeout=20.0)
    s.client("A", listen(1, toolsListChanged=True)).expect(server=listen(2, toolsListChanged=True))
    assert s.router.needs_tick


def test_a_request_that_no_process_knows_any_more_is_forgotten_without_a_word() -> None:
    """Its process has ended a moment ago, and who asked leaves before that has been told."""
    tables = Tables(Limits(), salt=b"0123456789abcdef", version="0")
    one = Client(Key(1), strict=False, max_line=100)
    one.inflight[5] = "x"
    tables.give_up(one, 5, {})
    tables.give_up(one, 6, {})
    assert one.idle
    assert tables.outbox.flush() == []


def test_an_upstream_id_is_not_used_twice_when_the_core_fails_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a response would go to two clients, or to the wrong one."""
    s = Scenario(clients="AB")
    with monkeypatch.context() as patch:
        patch.setattr(downstream, "put_token", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            s.client("A", request(1), request(2, meta={"progressToken": "t"}))
    s.client("B", request(1)).expect(server=[request(2), request(4)])
    s.server(result(4, "b"), result(2, "a")).expect(A=result(1, "a"), B=result(1, "b"))
