"""The bridge's first words to a child, as a table of phases."""

from __future__ import annotations

import itertools
import json

import pytest
from msgspec import Raw

from bridge.core.era import DISCOVER, MODERN_VERSION, TRANSITIONS, Event, Handshake, Phase
from bridge.core.jsonrpc import Codec, Message


def handshake() -> Handshake:
    return Handshake(timeout=10.0, version="1.2.3")


def test_a_child_is_spoken_to_by_nobody_until_a_client_needs_it() -> None:
    """Servers on the SDKs pin a process to the era of its first request."""
    fresh = handshake()
    assert fresh.phase is Phase.FRESH
    assert not fresh.ready
    assert fresh.deadline is None


def test_the_probe_is_a_modern_discover_of_the_bridges_own() -> None:
    probing = handshake()
    assert probing.happen(Event.NEED_MODERN)
    line = bytes(probing.probe(17, 100.0))
    assert probing.deadline == 110.0
    assert json.loads(line) == {
        "jsonrpc": "2.0",
        "id": 17,
        "method": DISCOVER,
        "params": {
            "_meta": {
                "io.modelcontextprotocol/protocolVersion": MODERN_VERSION,
                "io.modelcontextprotocol/clientInfo": {"name": "mcp-bridge", "version": "1.2.3"},
                "io.modelcontextprotocol/clientCapabilities": {},
            }
        },
    }
    assert isinstance(Codec(b"0" * 16).decode_line(line), Message)


@pytest.mark.parametrize("event", [Event.ANSWERED, Event.EXPIRED])
def test_a_child_is_served_once_it_answered_or_its_time_is_up(event: Event) -> None:
    probing = handshake()
    probing.happen(Event.NEED_MODERN)
    probing.probe(1, 0.0)
    assert not probing.ready
    assert probing.happen(event)
    assert probing.ready
    assert probing.deadline is None


def test_many_clients_that_need_it_cause_one_probe() -> None:
    probing = handshake()
    assert probing.happen(Event.NEED_MODERN)
    probing.probe(1, 0.0)
    assert not probing.happen(Event.NEED_MODERN)
    assert probing.deadline == 10.0


def test_a_late_answer_changes_nothing() -> None:
    late = handshake()
    for event in (Event.NEED_MODERN, Event.EXPIRED):
        late.happen(event)
    assert not late.happen(Event.ANSWERED)
    assert late.ready


@pytest.mark.parametrize(("phase", "event"), list(itertools.product(Phase, Event)))
def test_nothing_beside_the_table_changes_a_phase(phase: Phase, event: Event) -> None:
    shake = handshake()
    shake.phase = phase
    shake.deadline = 5.0
    if (phase, event) in TRANSITIONS:
        assert shake.happen(event)
        assert shake.phase is TRANSITIONS[phase, event]
    else:
        assert not shake.happen(event)
        assert shake.phase is phase
        assert shake.deadline == 5.0


def test_the_versions_a_server_names_are_learned() -> None:
    shake = handshake()
    shake.learn(Raw(b'{"supportedVersions":["2026-07-28","2027-01-01"],"capabilities":{},"x":[1e400]}'))
    assert shake.supported == ["2026-07-28", "2027-01-01"]


@pytest.mark.parametrize(
    "result",
    [
        None,
        *[b"null", b"[]", b"1", b"{}", b'{"supportedVersions":null}', b'{"supportedVersions":[1]}'],
        *[b'{"supportedVersions":"2026-07-28"}', b'{"supportedVersions":["\\ud83d"]}', b"[" * 100_000],
        b'{"supportedVersions":' + b"[" * 100_000,
    ],
)
def test_a_result_of_another_shape_teaches_nothing(result: bytes | None) -> None:
    shake = handshake()
    shake.learn(None if result is None else Raw(result))
    assert shake.supported == []
