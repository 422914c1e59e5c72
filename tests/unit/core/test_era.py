"""The bridge's first words to a child, as a table of phases, and what the answers say (section 7)."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from msgspec import Raw

from bridge.core.codec import Codec
from bridge.core.era import (
    AWAITING_GREETING,
    LEGACY_VERSIONS,
    TRANSITIONS,
    Action,
    Era,
    Event,
    Greeting,
    Handshake,
    Phase,
    Verdict,
    negotiate,
    read_initialize,
    read_probe,
)
from bridge.core.jsonrpc import Message
from tests.unit.core.scenario import asked_to_initialize, probe

CODEC = Codec(b"sixteen bytes!!!")


def handshake(decided: Era | None = None) -> Handshake:
    return Handshake(version="1.2.3", decided=decided)


def answer(text: bytes) -> Message:
    """A response with these members."""
    message = CODEC.decode_line(b'{"jsonrpc":"2.0","id":1,' + text + b"}")
    assert isinstance(message, Message)
    return message


def happen(shake: Handshake, *events: Event) -> list[Action | None]:
    return [shake.happen(event) for event in events]


# -- the table


def test_a_child_is_spoken_to_by_nobody_until_a_client_needs_it() -> None:
    """Servers on the SDKs pin a process to the era of its first request."""
    fresh = handshake()
    assert fresh.phase is Phase.FRESH
    assert fresh.era is None
    assert fresh.deadline is None


def test_the_probe_is_a_modern_discover_of_the_bridges_own() -> None:
    line = bytes(handshake().probe(17))
    assert json.loads(line) == probe(17)
    assert isinstance(CODEC.decode_line(line), Message)


def test_the_initialize_is_the_bridges_own_and_declares_nothing() -> None:
    """So the server never needs to call back one unknown client."""
    line = bytes(handshake().initialize(17))
    assert json.loads(line) == asked_to_initialize(17)
    assert json.loads(line)["params"]["capabilities"] == {}
    assert isinstance(CODEC.decode_line(line), Message)


@pytest.mark.parametrize(("phase", "event"), list(itertools.product(Phase, Event)))
def test_nothing_beside_the_table_changes_a_phase(phase: Phase, event: Event) -> None:
    shake = handshake()
    shake.phase = phase
    shake.deadline = 5.0
    step = TRANSITIONS.get((phase, event))
    action = shake.happen(event)
    if step is None:
        assert action is None
        assert shake.phase is phase
        assert shake.deadline == 5.0
    else:
        assert (shake.phase, action) == step
        # Who waits for `initialize` waits on, whatever the probe says.
        assert shake.deadline == (5.0 if shake.phase in AWAITING_GREETING else None)


def test_many_clients_that_need_it_cause_one_probe() -> None:
    assert happen(handshake(), *3 * [Event.NEED_MODERN]) == [Action.PROBE, None, None]


def test_many_clients_that_need_it_cause_one_initialize() -> None:
    assert happen(handshake(), *3 * [Event.NEED_LEGACY]) == [Action.INITIALIZE, None, None]


@pytest.mark.parametrize("era", Era)
def test_a_child_that_serves_one_era_is_not_asked_for_the_other(era: Era) -> None:
    shake = handshake()
    shake.phase = Phase.MODERN if era is Era.MODERN else Phase.LEGACY
    assert shake.era is era
    assert happen(shake, Event.NEED_MODERN, Event.NEED_LEGACY) == [None, None]
    assert era.other.other is era
    assert era.other is not era


@pytest.mark.parametrize("first", [*Event, None])
@pytest.mark.parametrize("second", [*Event, None])
def test_no_order_of_answers_leaves_a_child_that_was_asked_both_in_both_eras(
    first: Event | None, second: Event | None
) -> None:
    shake = handshake()
    happen(shake, Event.NEED_MODERN, Event.PROBE_EXPIRED, Event.NEED_LEGACY)
    assert shake.phase is Phase.OVERTAKING
    opened = [
        action
        for event in (first, second)
        if event is not None
        for action in happen(shake, event)
        if action in (Action.OPEN_MODERN, Action.OPEN_LEGACY)
    ]
    assert len(opened) <= 1
    assert (shake.era is not None) == bool(opened)


def test_a_session_that_opens_wins_over_a_late_discover_result() -> None:
    shake = handshake()
    happen(shake, Event.NEED_MODERN, Event.PROBE_EXPIRED, Event.NEED_LEGACY, Event.DISCOVERED)
    assert shake.phase is Phase.YIELDING
    assert shake.happen(Event.INITIALIZED) is Action.OPEN_LEGACY


def test_a_late_discover_result_wins_over_a_refused_initialize() -> None:
    shake = handshake()
    happen(shake, Event.NEED_MODERN, Event.PROBE_EXPIRED, Event.NEED_LEGACY, Event.DISCOVERED)
    assert shake.happen(Event.REFUSED) is Action.OPEN_MODERN


@pytest.mark.parametrize("event", [Event.DISCOVERED, Event.SPURNED, Event.PROBE_EXPIRED])
def test_if_the_operator_decided_on_the_modern_era_no_answer_and_no_silence_says_otherwise(
    event: Event,
) -> None:
    shake = handshake(Era.MODERN)
    assert happen(shake, Event.NEED_MODERN, event) == [Action.PROBE, Action.OPEN_MODERN]


def test_if_the_operator_decided_on_the_legacy_era_a_refusal_is_one() -> None:
    shake = handshake(Era.LEGACY)
    assert happen(shake, Event.NEED_LEGACY, Event.REFUSED) == [Action.INITIALIZE, Action.REFUSE_LEGACY]


# -- answers to the probe


@pytest.mark.parametrize(
    ("text", "supported"),
    [
        (b'{"supportedVersions":["2026-07-28","2027-01-01"],"x":[1e400]}', ["2026-07-28", "2027-01-01"]),
        *[(text, []) for text in (b"null", b"[]", b"1", b"{}", b'{"supportedVersions":null}')],
        (b'{"supportedVersions":[1]}', []),
        (b'{"supportedVersions":"2026-07-28"}', []),
        (b'{"supportedVersions":["\\ud83d"]}', []),
        (b'{"supportedVersions":' + b"[" * 900 + b"]" * 900 + b"}", []),
    ],
)
def test_any_result_is_a_modern_servers(text: bytes, supported: list[str]) -> None:
    assert read_probe(answer(b'"result":' + text), CODEC) == Verdict(True, supported)


def test_no_readable_answer_to_the_probe_is_a_refusal_that_does_not_last() -> None:
    assert read_probe(None, CODEC) == Verdict(False)


@pytest.mark.parametrize(
    ("fault", "listed", "lasting"),
    [
        ({"code": -32601, "message": "x"}, [], True),
        ({"code": -32022, "message": "x"}, [], True),
        ({"code": -32022, "data": {"supported": ["2025-11-25"]}}, ["2025-11-25"], True),
        ({"code": -32602, "data": {"supported": ["2026-07-28"]}}, ["2026-07-28"], True),
        ({"code": -32602, "message": "x", "data": {"supported": []}}, [], False),
        ({"code": -32602, "message": "x", "data": "2026-07-28"}, [], False),
        ({"code": -32603, "message": "x"}, [], False),
        ({"code": "-32601", "message": "x"}, [], False),
        ({"code": -32601.5}, [], False),
        ({"code": 10**30}, [], False),
        ({"message": 5}, [], False),
        ({}, [], False),
        (None, [], False),
    ],
)
def test_an_error_is_a_refusal_that_lasts_if_it_cannot_be_an_accident(
    fault: Any, listed: list[str], lasting: bool
) -> None:
    text = json.dumps(fault).encode()
    expected = Verdict(False, listed, lasting, Raw(text))
    assert read_probe(answer(b'"error":' + text), CODEC) == expected
    assert read_initialize(answer(b'"error":' + text), CODEC) == expected


def test_only_an_unsupported_version_that_lists_a_modern_one_is_a_modern_servers() -> None:
    text = b'"error":{"code":-32022,"data":{"supported":["2025-11-25","2027-01-01"]}}'
    assert read_probe(answer(text), CODEC) == Verdict(True, ["2027-01-01"])


def test_an_error_keeps_its_unpaired_surrogates() -> None:
    fault = rb'{"code":-32601,"message":"\ud83d"}'
    assert read_probe(answer(b'"error":' + fault), CODEC).error == Raw(fault)


# -- answers to initialize


def test_a_greeting_is_kept_member_by_member() -> None:
    said = rb'{"protocolVersion":"2025-06-18","capabilities":{"a":1e400},"x":"\ud83d","instructions":"\/"}'
    greeting = read_initialize(answer(b'"result":' + said), CODEC)
    assert isinstance(greeting, Greeting)
    assert (greeting.version, greeting.capabilities) == ("2025-06-18", b'{"a":1e400}')
    assert {name: bytes(value) for name, value in greeting.result.items()} == {
        "protocolVersion": b'"2025-06-18"',
        "capabilities": b'{"a":1e400}',
        "x": rb'"\ud83d"',
        "instructions": rb'"\/"',
    }


@pytest.mark.parametrize(
    "text",
    [
        b"null",
        b"[]",
        b"5",
        b"{}",
        b'{"protocolVersion":5}',
        b'{"protocolVersion":""}',
        b'{"capabilities":{}}',
    ],
)
def test_a_result_without_a_version_is_no_greeting(text: bytes) -> None:
    assert read_initialize(answer(b'"result":' + text), CODEC) == Verdict(False)


def test_no_readable_answer_to_initialize_is_a_refusal_that_does_not_last() -> None:
    assert read_initialize(None, CODEC) == Verdict(False)


def test_a_session_goes_on_if_version_and_capabilities_are_the_same() -> None:
    one = Greeting({"a": Raw(b"1")}, "v", b"{}")
    assert one.same_session(Greeting({}, "v", b"{}"))
    assert not one.same_session(Greeting({"a": Raw(b"1")}, "w", b"{}"))
    assert not one.same_session(Greeting({"a": Raw(b"1")}, "v", b'{"tools":{}}'))


@pytest.mark.parametrize("served", [*LEGACY_VERSIONS, "2025-07-01", "2099-01-01"])
@pytest.mark.parametrize("asked", [*LEGACY_VERSIONS, "2025-07-01", "2099-01-01", ""])
def test_a_client_is_told_a_version_it_asked_for_or_the_servers(asked: str, served: str) -> None:
    told = negotiate(asked, served)
    assert told == (asked if asked in LEGACY_VERSIONS and asked <= served else served)
    assert told <= served
