"""Clients with a server process each (section 7, `--sharing isolated`)."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.core import pair_servers
from bridge.core.era import LEGACY_VERSIONS
from bridge.core.holdings import QUEUED_ROOM
from bridge.core.lines import TURN_LINES
from bridge.core.outbox import Control, Key
from bridge.core.tables import NoticeKind
from tests.unit.core.pairs import Pairs
from tests.unit.core.scenario import (
    CLOSE,
    INITIALIZED,
    Json,
    cancelled,
    closing,
    error,
    initialize,
    left,
    legacy,
    line,
    listen,
    notification,
    progress,
    refusal,
    request,
    result,
)

NOT_BOOLEANS = (1, "1", 0, "", -7, 2**60)


def started(clients: str = "A", **limits: Any) -> Pairs:
    """Clients whose processes run and have been initialized."""
    s = Pairs(clients, **limits)
    for name in clients:
        s.client(name, initialize("i")).expect(NEEDS=name)
        wanted: dict[str, Any] = {name.lower(): initialize("i")}
        s.start(name).expect(**wanted)
        wanted = {name: result("i")}
        s.server(name.lower(), result("i")).expect(**wanted)
    return s


def gone(id: object, code: int = -32603) -> Json:
    """What a process gets whose client does not answer."""
    return refusal(code, "client_gone", id=id)  # type: ignore[arg-type]  # any id


# -- starting


def test_a_process_is_asked_for_at_the_first_request_and_once() -> None:
    s = Pairs("AB")
    s.client("A", notification("n"), result(1)).expect()
    s.client("A", request(1, "server/discover")).expect(NEEDS="A")
    s.client("A", legacy(2), notification("n")).expect()
    s.start("A").expect(a=[request(1, "server/discover"), legacy(2), notification("n")])
    assert s.stats.dropped_notifications_up == s.stats.dropped_responses_up == 1
    s.client("B", legacy(1)).expect(NEEDS="B")


def test_a_client_that_leaves_while_its_process_starts_has_it_stopped() -> None:
    s = Pairs()
    s.client("A", initialize(1))
    s.leave("A").expect()
    s.start("A").expect(STOPS="a")
    s.server("a", result(1)).expect()
    s.block("a")
    s.unblock("a").expect()
    s.crash("a").expect()
    assert s.sizes == {}


@pytest.mark.parametrize(
    ("full", "told"), [(True, (-31003, "too_many_children")), (False, (-31002, "server_unavailable"))]
)
def test_who_cannot_have_a_process_is_told_and_may_ask_again(full: bool, told: tuple[int, str]) -> None:
    s = Pairs()
    s.client("A", initialize(1), notification("n"), legacy(2))
    s.fail("A", full=full).expect(A=[refusal(*told, id=1), refusal(*told, id=2)])
    s.client("A", initialize(3)).expect(NEEDS="A")
    s.leave("A")
    s.fail("A").expect()


def test_who_has_stopped_sending_and_cannot_have_a_process_is_closed() -> None:
    s = Pairs()
    s.client("A", initialize(1))
    s.eof("A").expect()
    s.fail("A").expect(A=[refusal(-31002, "server_unavailable", id=1), CLOSE])


def test_requests_wait_no_longer_than_any_for_a_process() -> None:
    s = Pairs()
    s.client("A", initialize(1))
    assert s.core.needs_tick
    s.wait(29).expect()
    s.wait(1).expect(A=refusal(-31002, "server_unavailable", id=1))
    assert not s.core.needs_tick


# -- both ways


@pytest.mark.parametrize("id", NOT_BOOLEANS)
def test_ids_and_tokens_stay_as_they_are(id: object) -> None:
    s = started()
    asked = legacy(id, _meta={"progressToken": id})
    s.client("A", asked).expect(a=asked)
    s.server("a", progress(id), result(id, 1.0), progress(id)).expect(
        A=[progress(id), result(id, 1.0), progress(id)]
    )
    s.server("a", result(id), result("other")).expect()
    assert s.stats.dropped_responses == 2


def test_two_requests_of_one_id_have_an_answer_each() -> None:
    s = started()
    s.client("A", legacy(1, "x"), legacy(1, "y")).expect(a=[legacy(1, "x"), legacy(1, "y")])
    s.server("a", result(1, "x"), error(1), result(1)).expect(A=[result(1, "x"), error(1)])


def test_what_is_odd_goes_through_as_it_is() -> None:
    s = started()
    odd = rb'{"jsonrpc":"2.0","id":"\ud83d","method":"x","params":[1e400],"extra":{"a":1.0}}' + b"\n"
    assert s.client("A", odd).bytes("a") == odd
    said = rb'{"jsonrpc":"2.0","id":"\ud83d","result":-0,"extra":"\ud83d"}' + b"\n"
    assert s.server("a", said).bytes("A") == said


def test_a_servers_request_is_answered_by_its_client_once() -> None:
    s = started("AB")
    asks = legacy("q", "sampling/createMessage")
    s.server("a", asks).expect(A=asks)
    s.client("B", result("q")).expect()
    s.client("A", result("q", 1), result("q", 2), error("other"), {"jsonrpc": "2.0", "result": 1}).expect(
        a=result("q", 1)
    )
    assert s.stats.dropped_responses_up == 4


def test_what_a_server_cancels_is_not_answered() -> None:
    s = started()
    s.server("a", legacy("q"), cancelled("q"), cancelled(True), notification("notifications/cancelled"))
    s.client("A", result("q")).expect()


def test_a_server_that_asks_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_servers, "MAX_QUESTIONS", 1)
    s = started()
    s.server("a", legacy(1), legacy(2)).expect(A=legacy(1), a=gone(2, -31003))


def test_answers_and_progress_go_past_what_waits() -> None:
    s = started(max_in_flight=1)
    s.server("a", legacy("q"))
    s.client("A", legacy(1), legacy(2), notification("n")).expect(a=legacy(1))
    s.client("A", progress(1), result("q")).expect(a=[progress(1), result("q")])
    s.server("a", result(1)).expect(A=result(1), a=[legacy(2), notification("n")])


def test_lines_that_are_no_message_are_told_as_ever() -> None:
    s = started()
    s.client("A", b"x\n", b"[]\n", {"jsonrpc": "2.0", "id": 1}, {**legacy(2), "result": 1}).expect(
        A=[
            refusal(-32700, "parse_error"),
            refusal(-32600, "invalid_request"),
            refusal(-32600, "invalid_request", id=1),
            refusal(-32600, "invalid_request", id=2),
        ]
    )
    out = s.client("A", *[b"x\n"] * 12)
    out.expect(A=[refusal(-32700, "parse_error")] * 10 + [CLOSE], STOPS="a")
    s.client("A", legacy(1)).expect()
    assert s.sizes == {"children": 1}


def test_a_client_that_has_left_is_nobody() -> None:
    s = started()
    s.leave("A").expect(STOPS="a")
    s.leave("A").expect()
    s.eof("A").expect()
    assert s.core.buffered(s.key("A")) == 0
    s.server("a", result(1), legacy("q"), notification("n")).expect(a=gone("q"))
    s.crash("a").expect()
    s.crash("a").expect()
    s.server("a", result(1)).expect()
    assert s.core.server_writable(s.key("a"), 1, s.now) == ([], False)
    s.block("a")
    assert s.sizes == {}


# -- limits


def test_a_request_that_is_too_long_is_refused_and_an_answer_costs_the_server_its_answer() -> None:
    s = started(max_request=200)
    s.client("A", legacy(1, x="y" * 200), notification("n", x="y" * 200)).expect(
        A=refusal(-31004, "message_too_large", id=1)
    )
    s.server("a", legacy(5), legacy(6))
    s.client("A", result(5, "y" * 200)).expect(a=gone(5, -31004))
    s.client("A", result(6, "y" * 2000)).expect(a=gone(6, -31004))
    s.client("A", result(7, "y" * 2000)).expect(A=refusal(-31004, "message_too_large", id=7))
    s.client("A", b"y" * 2000 + b"\n").expect(A=refusal(-31004, "message_too_large"))


def test_a_queue_is_bounded() -> None:
    s = Pairs(max_queued=2)
    s.client("A", initialize(1), legacy(2), legacy(3), notification("n")).expect(
        NEEDS="A", A=refusal(-31003, "overloaded", id=3)
    )
    assert s.stats.dropped_notifications_up == 1
    s = Pairs(max_queued_bytes=10)
    s.client("A", initialize(1)).expect(A=refusal(-31003, "overloaded", id=1))


def test_a_client_is_not_read_while_its_process_does_not_read_and_much_waits() -> None:
    s = started(paused_lines=1)
    s.block("a")
    s.client("A", legacy(1)).expect()
    s.client("A", legacy(2), progress(1), legacy(3)).expect(A=Control.PAUSE)
    out = s.unblock("a", 1)
    out.expect(a=legacy(1))  # its stdin is full again: to read the client now would be one read too many
    assert out.more
    assert s.core.buffered(s.key("A")) > 0
    out = s.unblock("a", 80)  # enough for one of them and a part of the next
    out.expect(A=Control.RESUME, a=[legacy(2), progress(1)])  # what is left is short enough
    assert out.more
    s.unblock("a").expect(a=legacy(3))


def test_a_client_with_a_long_queue_is_read_when_its_process_reads_and_its_window_is_full() -> None:
    s = started(paused_lines=1, max_in_flight=1)
    s.block("a")
    s.client("A", legacy(1), legacy(2), legacy(3), legacy(4)).expect(A=Control.PAUSE)
    out = s.unblock("a")
    out.expect(A=Control.RESUME, a=legacy(1))
    assert not out.more


def test_a_client_that_is_not_read_is_read_again_when_its_process_is_gone() -> None:
    s = started(paused_lines=1)
    s.block("a")
    s.client("A", legacy(1), legacy(2)).expect(A=Control.PAUSE)
    s.crash("a").expect(
        A=[
            refusal(-31001, "server_exited", id=1),
            refusal(-31001, "server_exited", id=2),
            CLOSE,
            Control.RESUME,
        ]
    )


def test_a_client_that_is_not_read_is_read_again_when_it_has_given_up_what_waits() -> None:
    s = started(paused_lines=1)
    s.client("A", legacy(1))
    s.block("a")
    s.client("A", legacy(2), legacy(3), cancelled(2), cancelled(3)).expect(A=[Control.PAUSE, Control.RESUME])


def test_an_answer_is_written_to_a_process_that_does_not_read() -> None:
    s = started()
    s.server("a", legacy("q"))
    s.block("a")
    s.client("A", legacy(1), result("q")).expect(a=result("q"))


# -- cancelling


def test_a_cancellation_reaches_the_process_once_and_ends_all_requests_of_that_id() -> None:
    s = started()
    s.client("A", legacy(1), legacy(1))
    s.client("A", cancelled(1, reason="r"), cancelled(1), cancelled(2), cancelled(None)).expect(
        a=cancelled(1, reason="r")
    )
    s.server("a", result(1)).expect()
    assert s.stats.dropped_notifications_up == 3
    assert s.core.in_flight == 0


@pytest.mark.parametrize("params", [{}, [], None])
def test_a_cancellation_of_nothing_is_dropped(params: object) -> None:
    s = started()
    s.client("A", {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}).expect()


def test_what_waits_is_cancelled_without_a_word_and_initialize_never() -> None:
    s = Pairs()
    s.client("A", initialize(1), legacy(2), cancelled(2), cancelled(1))
    s.start("A").expect(a=initialize(1))
    s.client("A", cancelled(1)).expect()
    s.server("a", result(1)).expect(A=result(1))


# -- what servers write wrong


@pytest.mark.parametrize("id", NOT_BOOLEANS)
def test_a_damaged_response_costs_its_asker_an_error_whatever_its_id(id: Any) -> None:
    s = started()
    s.client("A", legacy(id), legacy("rest"))
    text = line(id).strip() if isinstance(id, bytes) else line({"id": id})[6:-2]
    s.server("a", b'{"jsonrpc":"2.0","id":%b,"result":?}\n' % text).expect(
        A=refusal(-31008, "invalid_response", id=id, delivered=True)
    )
    s.client("A", legacy(id))
    s.server("a", b'{"error":?,"id":%b,"jsonrpc":"2.0"}\n' % text).expect(
        A=refusal(-31008, "invalid_response", id=id, delivered=True)
    )


@pytest.mark.parametrize(
    ("id", "answer"),
    [
        ("é", b'{"jsonrpc":"2.0","id":"\\u00e9","result":?}'),
        ("é", b'{"error":?,"jsonrpc":"2.0","id":"\\u00E9"}'),
        ("a/b", b'{"jsonrpc":"2.0","id":"a\\/b","result":?}'),
        (7, b'{"result":{"text":"\xff"}, "id": 7, "jsonrpc":"2.0"}'),
        ("x", b'\xef\xbb\xbf{"jsonrpc":"2.0","id":"x","result":{"text":"\xff"}}'),
        (b'{"jsonrpc":"2.0","id":"\\ud83d","method":"x"}\n', b'{"jsonrpc":"2.0","id":"\\ud83d","result":?}'),
    ],
)
def test_a_damaged_response_finds_its_asker_however_it_is_spelled(id: Any, answer: bytes) -> None:
    """Servers spell ids anew: what counts is the value. Bad UTF-8 alone hides no id (section 2)."""
    s = started()
    raw = isinstance(id, bytes)
    s.client("A", id if raw else legacy(id))
    [error] = s.server("a", answer + b"\n").items("A")
    assert isinstance(error, dict)
    assert error["error"]["code"] == -31008
    assert error["id"] == ("\ud83d" if raw else id)


@pytest.mark.parametrize(
    "answer",
    [
        b'{"jsonrpc":"2.0","id":"y","result":?}',
        b'{"jsonrpc":"2.0","id":01,"result":?}',
        b'{"jsonrpc":"2.0","id":"x","result":?,"jsonrpc":"2.0","id":"y"}',
        b'{"jsonrpc":"2.0","method":"\xff","id":"x"}',
        b'{"jsonrpc":"2.0","result":"\xff"}',
    ],
)
def test_a_damaged_response_that_names_nobody_for_sure_is_nobodys(answer: bytes) -> None:
    s = started()
    s.client("A", legacy("x"))
    s.server("a", answer + b"\n").expect()


def test_a_subscription_that_the_server_tears_down_is_over() -> None:
    """Otherwise who stops sending would be told of its end once more, and each would stay in a table."""
    s = Pairs()
    s.client("A", listen("l"), listen("m", toolsListChanged=True)).expect(NEEDS="A")
    s.start("A")
    s.server("a", cancelled("l")).expect(A=cancelled("l"))
    assert s.sizes["in_flight"] == 1
    s.eof("A").expect(a=left("m"), A=[closing("m"), CLOSE])


def test_a_request_that_the_server_gives_up_ends_no_subscription_of_that_id() -> None:
    s = Pairs()
    s.client("A", listen("l")).expect(NEEDS="A")
    s.start("A")
    s.server("a", legacy("l", "sampling/createMessage"), cancelled("l"))
    assert s.sizes["in_flight"] == 1


def test_a_server_that_gives_up_what_nobody_knows_is_passed_on() -> None:
    s = started()
    s.client("A", legacy("x"))
    s.server("a", cancelled("x"), cancelled("y")).expect(A=[cancelled("x"), cancelled("y")])
    assert s.sizes["in_flight"] == 1


def test_what_the_last_words_of_a_process_set_free_was_never_sent_to_it() -> None:
    s = started(max_in_flight=1)
    s.client("A", legacy(1), legacy(2)).expect(a=legacy(1))
    s.server("a", line(result(1))[:-1]).expect()
    s.crash("a").expect(A=[result(1), refusal(-31001, "server_exited", id=2), CLOSE])


def test_nobody_is_told_to_read_on_who_is_gone() -> None:
    s = started(paused_lines=1)
    s.client("A", legacy(1))
    s.block("a")
    s.client("A", legacy(2), legacy(3)).expect(A=Control.PAUSE)
    s.leave("A").expect(a=left(1), STOPS="a")
    s.server("a", line(result(1))[:-1]).expect()
    s.crash("a").expect()


def test_a_second_process_of_one_client_is_stopped() -> None:
    """Its start took longer than requests wait, and the client has asked again meanwhile."""
    s = Pairs(restart_wait=30)
    s.client("A", initialize(1)).expect(NEEDS="A")
    s.wait(30).expect(A=refusal(-31002, "server_unavailable", id=1))
    s.client("A", initialize(2)).expect(NEEDS="A")
    first = Key(100)
    assert s.core.server_opened(first, s.key("A"), s.now)
    second = Key(101)
    assert s.core.server_opened(second, s.key("A"), s.now) == []
    [notice] = [n for n in s.core.take_notices() if n.kind is NoticeKind.RETIRE_CHILD]
    assert notice.key == second
    assert s.core.server_closed(second, s.now) == []
    assert s.core.server_data(first, line(result(2)), s.now) == [(s.key("A"), line(result(2)))]


def test_a_line_that_is_nothing_is_nobodys() -> None:
    s = started()
    s.client("A", legacy(1))
    out = s.server("a", b"Server ready\n", b"\n", {"jsonrpc": "2.0", "id": 1}, {"jsonrpc": "2.0"})
    out.expect(A=refusal(-31008, "invalid_response", id=1, delivered=True))
    assert out.told() == [NoticeKind.NOISE]
    assert s.stats.noise == 2


@pytest.mark.parametrize("front", [True, False])
def test_a_response_that_is_too_long_is_told_as_soon_as_its_id_is_known(front: bool) -> None:
    s = started(max_message=100)
    s.client("A", legacy(1))
    long = b"x" * 5000
    told = refusal(-31004, "message_too_large", id=1, delivered=True)
    if front:
        s.server("a", b'{"jsonrpc":"2.0","id":1,"result":"' + long).expect(A=told)
        s.server("a", long + b'"}\n').expect()
    else:
        s.server("a", b'{"result":"' + long).expect()
        s.server("a", long + b'","jsonrpc":"2.0","id":1}\n').expect(A=told)
    s.client("A", legacy(2))
    s.server("a", result(2)).expect(A=result(2))


def test_a_long_line_of_nobodys_is_skipped() -> None:
    s = started(max_message=100)
    s.server("a", b"x" * 5000).expect()
    s.server("a", b"x" * 5000 + b"\n").expect()
    assert s.stats.noise == 1


# -- ends


def test_what_is_on_the_way_when_a_process_ends_is_answered_and_then_its_client_is_closed() -> None:
    s = started(max_in_flight=1)
    s.client("A", legacy(1), legacy(2), notification("n"), listen("L"))
    s.crash("a").expect(
        A=[
            refusal(-31001, "server_exited", id=1, delivered=True),
            refusal(-31001, "server_exited", id=2),
            refusal(-31001, "server_exited", id="L"),
            CLOSE,
        ]
    )
    assert s.sizes == {}
    s.leave("A").expect()


def test_a_process_that_ends_idle_closes_its_client() -> None:
    s = started("AB")
    s.crash("a", exited=False).expect(A=CLOSE)
    s.client("B", legacy(1)).expect(b=legacy(1))


def test_the_last_words_count_and_half_a_line_is_none() -> None:
    s = started()
    s.client("A", legacy(1), legacy(2))
    s.server("a", line(result(1))[:-1])
    s.crash("a").expect(A=[result(1), refusal(-31001, "server_exited", id=2, delivered=True), CLOSE])
    s = started(max_message=100)
    s.server("a", b'{"half')
    s.crash("a").expect(A=CLOSE)
    s = started(max_message=100)
    s.server("a", b"x" * 5000)
    s.crash("a").expect(A=CLOSE)
    s = started()
    s.server("a", line(legacy("q"))[:-1])
    s.crash("a").expect(A=CLOSE)


def test_a_process_that_exits_on_the_probe_is_followed_by_another() -> None:
    s = Pairs()
    s.client("A", request(1, "server/discover"))
    s.start("A")
    told = refusal(-32601, "era_not_served", id=1, delivered=True, supported=[*LEGACY_VERSIONS])
    s.crash("a").expect(A=told)
    s.client("A", initialize(2)).expect(NEEDS="A")
    s.start("A").expect(a=initialize(2))
    s.crash("a").expect(A=[refusal(-31001, "server_exited", id=2, delivered=True), CLOSE])


def test_what_waits_behind_the_probe_has_the_other_process() -> None:
    s = Pairs(max_in_flight=1)
    s.client("A", request(1, "server/discover"), initialize(2))
    s.start("A").expect(a=request(1, "server/discover"))
    told = refusal(-32601, "era_not_served", id=1, delivered=True, supported=[*LEGACY_VERSIONS])
    s.crash("a").expect(A=told, NEEDS="A")
    s.start("A").expect(a=initialize(2))


def test_who_asks_next_is_told_that_a_server_exits_on_the_probe_without_another_process() -> None:
    """Section 7: a refusal that may be an accident is remembered for 30 s, or until the server is another."""
    s = Pairs("ABC")
    s.client("A", request(1, "server/discover"))
    s.start("A")
    s.crash("a")
    s.client("A", request(2, "server/discover"), initialize(3)).expect(
        A=refusal(-32601, "era_not_served", id=2, supported=[*LEGACY_VERSIONS]), NEEDS="A"
    )
    # Behind `initialize` it is not the first word: the process may see what it makes of it.
    s.client("A", request(4, "server/discover")).expect()
    s.start("A").expect(a=[initialize(3), request(4, "server/discover")])
    s.client("B", request(1, "server/discover")).expect(
        B=refusal(-32601, "era_not_served", id=1, supported=[*LEGACY_VERSIONS])
    )
    s.wait(30).expect()
    s.client("B", request(2, "server/discover")).expect(NEEDS="B")
    s.start("B")
    s.crash("b")
    s.core.forget_eras()
    s.client("C", request(1, "server/discover")).expect(NEEDS="C")


def test_a_process_that_ends_before_it_said_anything_was_started_in_vain() -> None:
    s = Pairs()
    s.client("A", initialize(1))
    key = s.key("A")
    s.start("A")
    assert not s.core.spoke(s.key("a"))
    assert NoticeKind.CHILD_FAILED in s.crash("a").told()
    assert not s.core.spoke(key)
    s = Pairs()
    s.client("A", initialize(1))
    s.start("A")
    s.server("a", b"a banner\n")
    assert not s.core.spoke(s.key("a"))
    s.server("a", notification("n"))
    assert s.core.spoke(s.key("a"))
    assert NoticeKind.CHILD_FAILED not in s.crash("a").told()


def test_one_that_exits_on_the_probe_or_whose_client_has_left_was_not() -> None:
    s = Pairs("AB")
    s.client("A", request(1, "server/discover"))
    s.start("A")
    assert NoticeKind.CHILD_FAILED not in s.crash("a").told()
    s.client("B", initialize(1))
    s.start("B")
    s.leave("B")
    assert NoticeKind.CHILD_FAILED not in s.crash("b").told()


def test_a_process_is_asked_for_with_what_it_will_hear_first() -> None:
    s = Pairs("AB")
    assert [n.detail for n in s.client("A", initialize(1), legacy(2)).all_notices] == [b"initialize"]
    assert [n.detail for n in s.client("B", legacy(1), initialize(2)).all_notices] == [b"tools/call"]


def test_who_does_not_need_the_process_any_more_that_it_waits_for_asks_anew() -> None:
    s = Pairs()
    s.client("A", legacy(1)).expect(NEEDS="A")
    assert s.core.still_needed(s.key("A"))
    s.client("A", cancelled(1))
    assert not s.core.still_needed(s.key("A"))
    s.client("A", legacy(2)).expect(NEEDS="A")
    s.wait(30).expect(A=refusal(-31002, "server_unavailable", id=2))
    s.client("A", legacy(3)).expect(NEEDS="A")
    s.leave("A")
    assert not s.core.still_needed(s.key("A"))


@pytest.mark.parametrize("said", [notification("n"), legacy(2)])
def test_a_process_that_exits_on_anything_else_has_crashed(said: Json) -> None:
    s = Pairs()
    s.client("A", request(1, "server/discover"))
    s.start("A")
    s.client("A", said)
    assert CLOSE in s.crash("a").items("A")
    s = Pairs()
    s.client("A", request(1, "server/discover"), said)
    s.start("A")
    assert CLOSE in s.crash("a").items("A")


def test_a_process_that_is_killed_on_the_probe_has_crashed() -> None:
    s = Pairs()
    s.client("A", request(1, "server/discover"))
    s.start("A")
    s.crash("a", exited=False).expect(A=[refusal(-31001, "server_exited", id=1, delivered=True), CLOSE])


def test_a_client_that_leaves_cancels_what_is_on_the_way_and_answers_what_was_asked() -> None:
    s = started()
    s.client("A", legacy(1), listen("L"))
    s.server("a", legacy("q"))
    s.client("A", initialize(5))
    s.leave("A").expect(a=[left(1), left("L"), gone("q")], STOPS="a")


def test_a_client_that_has_stopped_sending_is_answered_and_its_listens_end() -> None:
    s = started(max_in_flight=1)
    s.server("a", legacy("q"))
    s.client("A", listen("L"), legacy(1), legacy(2), listen("M"))
    s.eof("A").expect(
        a=[gone("q"), left("L")],
        A=[closing("M"), closing("L")],
    )
    s.eof("A").expect()
    s.server("a", legacy("r"), result(1)).expect(A=result(1), a=[gone("r"), legacy(2)])
    s.server("a", result(2)).expect(A=[result(2), CLOSE])
    s.leave("A").expect(STOPS="a")


def test_a_client_that_owes_and_is_owed_nothing_is_closed_when_it_stops_sending() -> None:
    s = started()
    s.eof("A").expect(A=CLOSE)
    s = Pairs()
    s.eof("A").expect(A=CLOSE)


def test_a_last_line_without_an_end_is_taken() -> None:
    s = Pairs()
    s.client("A", line(initialize(1))[:-1]).expect()
    s.eof("A").expect(NEEDS="A")
    s.start("A").expect(a=initialize(1))
    s.server("a", result(1)).expect(A=[result(1), CLOSE])


def test_a_client_that_lingers_too_long_is_cut() -> None:
    s = started()
    s.client("A", legacy(1))
    s.eof("A")
    assert s.core.needs_tick
    s.wait(60).expect(A=CLOSE, a=left(1), STOPS="a")
    assert s.sizes == {"children": 1}


def test_a_request_that_is_not_answered_in_time_is_given_up() -> None:
    s = started(request_timeout=5.0, max_in_flight=1)
    s.client("A", listen("L"), legacy(1), legacy(2)).expect(a=[listen("L"), legacy(1)])
    assert s.core.needs_tick
    s.wait(4).expect()
    s.wait(1).expect(
        A=refusal(-31007, "request_timeout", id=1, delivered=True),
        a=[cancelled(1, reason="request timeout"), legacy(2)],
    )


def test_a_drain_refuses_what_waits_and_ends_listens() -> None:
    s = started("AB", max_in_flight=1)
    s.client("A", legacy(1), legacy(2), listen("L"))
    s.eof("B")
    s.client("A", listen("M"))
    s.drain().expect(
        A=[
            refusal(-31005, "shutting_down", id=2),
            refusal(-31005, "shutting_down", id="L"),
            refusal(-31005, "shutting_down", id="M"),
        ],
    )
    s.client("A", legacy(3), notification("n")).expect(A=refusal(-31005, "shutting_down", id=3))
    assert s.core.in_flight == 1
    s.server("a", result(1)).expect(A=result(1))


def test_a_drain_ends_the_listens_that_are_open() -> None:
    s = started()
    s.client("A", listen("L"))
    s.drain().expect(A=closing("L"), a=left("L"))


def test_a_stop_gives_up_what_is_on_the_way_and_closes_every_client() -> None:
    s = started("AB")
    s.join("C")
    s.client("A", legacy(1))
    s.stop().expect(
        A=[refusal(-31005, "shutting_down", id=1, delivered=True), CLOSE],
        B=CLOSE,
        C=CLOSE,
        a=cancelled(1, reason="the bridge is stopping"),
        STOPS="ab",
    )
    assert s.sizes == {"children": 2}


def test_bytes_may_be_cut_anywhere() -> None:
    s = started()
    text = line(legacy(1)) + line(INITIALIZED)
    out = b"".join(s.client("A", text[i : i + 1]).bytes("a") for i in range(len(text)))
    assert out == text
    text = line(result(1)) + line(notification("n"))
    out = b"".join(s.server("a", text[i : i + 1]).bytes("A") for i in range(len(text)))
    assert out == text


def test_a_client_over_tcp_that_is_none_is_cut_at_its_first_byte() -> None:
    s = Pairs("")
    s.join("A", strict=True)
    s.client("A", b"GET").expect(A=[refusal(-32700, "parse_error"), CLOSE])
    assert s.core.attention.due
    assert s.core.attention.due


def test_many_lines_that_take_a_look_each_are_looked_at_in_turns() -> None:
    s = Pairs("A")
    no = refusal(-32600, "invalid_request")
    s.client("A", b"{}\n" * (TURN_LINES + 2) + line(legacy(1))).expect(A=[*[no] * TURN_LINES, Control.TURN])
    assert s.core.buffered(s._keys["A"]) == 6 + len(line(legacy(1)))
    s.turn("A").expect(NEEDS="A", A=[no, no])
    s.leave("A").expect()
    s.turn("A").expect()


def test_the_last_line_of_a_client_that_is_cut_for_what_came_before_it_is_not_carried_out() -> None:
    s = Pairs("A", bad_lines=2)
    s.client("A", b"\n" * TURN_LINES + b"?\n?\n" + line(legacy(1))[:-1]).expect(A=Control.TURN)
    s.eof("A").expect(A=[*[refusal(-32700, "parse_error")] * 2, CLOSE])
    assert not any(s.core.table_sizes().values())


def test_a_client_has_so_many_subscriptions_at_most() -> None:
    """They take no place in the window: their table would grow with each."""
    s = started("AB", max_subscriptions=2, max_subscriptions_all=3)
    full = refusal(-31003, "too_many_subscriptions", id="c")
    s.client("A", listen("a"), listen("b"), listen("c")).expect(a=[listen("a"), listen("b")], A=full)
    s.client("B", listen("b"), listen("c")).expect(b=listen("b"), B=full)
    s.server("a", result("a")).expect(A=result("a"))
    s.client("B", listen("c")).expect(b=listen("c"))
    s.client("A", listen("c")).expect(A=full)
    s.leave("B")
    s.client("A", listen("c")).expect(a=listen("c"))
    s.crash("a")
    assert s.sizes == {"children": 1}


def test_a_subscription_too_many_that_has_waited_is_refused_when_its_turn_comes() -> None:
    s = Pairs(max_subscriptions=1)
    s.client("A", listen("a"), listen("b")).expect(NEEDS="A")
    s.start("A").expect(a=listen("a"), A=refusal(-31003, "too_many_subscriptions", id="b"))


def test_a_queue_of_short_lines_counts_for_what_it_takes() -> None:
    s = Pairs()
    s.client("A", *[legacy(id, "m") for id in range(100)])
    assert s.core.buffered(s.key("A")) > 100 * QUEUED_ROOM
