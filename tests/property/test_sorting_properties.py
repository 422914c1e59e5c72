"""Which clients have a process of their own, whatever their bytes look like (section 7, `auto`)."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.core.codec import Codec
from bridge.core.sorting import Sorter
from tests.unit.core.scenario import MODERN, initialize, legacy, line, notification, request, result

NAMES = ("sampling", "elicitation", "roots")

PLAIN: Any = st.one_of(
    st.sampled_from(
        [
            b"\n",
            b"junk\n",
            b"[]\n",
            line(legacy(1, "ping")),
            line(request(2, "server/discover")),
            line(legacy(3, "server/discover")),
            line(legacy(4, "tools/list")),
            line(notification("notifications/cancelled", requestId=1)),
            line({"jsonrpc": "2.0", "method": "initialize", "params": {"capabilities": {"sampling": {}}}}),
            line(result(5)),
            line({"jsonrpc": "2.0", "id": 6, "method": "x", "params": [MODERN]}),
        ]
    )
)
"""Lines that decide nothing."""


def declares(names: list[str]) -> bytes:
    return line(initialize(9, **{name: {} for name in names}))


DECIDING: Any = st.one_of(
    st.lists(st.sampled_from([*NAMES, "tasks"]), unique=True).map(declares),
    st.just(line(request(8, "tools/list"))),
    st.just(line({"jsonrpc": "2.0", "id": 9, "method": "initialize", "params": {"capabilities": 7}})),
)


def wants_its_own(text: bytes, names: frozenset[str]) -> bool:
    """By the letter of the contract: an `initialize` that declares one of the names."""
    message = json.loads(text)
    declared = message["params"].get("capabilities")
    return message["method"] == "initialize" and isinstance(declared, dict) and bool(names & declared.keys())


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(at % (len(data) + 1) for at in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(marks)]


@given(
    before=st.lists(PLAIN, max_size=5),
    decides=DECIDING,
    behind=st.lists(st.one_of(PLAIN, DECIDING), max_size=3),
    names=st.sets(st.sampled_from(NAMES)),
    cuts=st.lists(st.integers(0, 2000), max_size=8),
    whole=st.booleans(),
)
@settings(deadline=None)
def test_any_split_of_the_bytes_gives_the_same_decision_and_loses_none(
    before: list[bytes], decides: bytes, behind: list[bytes], names: set[str], cuts: list[int], whole: bool
) -> None:
    """Whoever declares what needs a process of its own has one, and what it sent from then on goes there."""
    sorter = Sorter(Codec(b"sixteen bytes!!!", 128), frozenset(names), 1 << 20, strict=False)
    own = wants_its_own(decides, frozenset(names))
    data = b"".join(before) + decides + b"".join(behind)
    if not whole and not behind:
        data = data[:-1]  # the last line counts without its newline once the client has stopped sending
    shared, apart, decided = b"", b"", False
    for piece in [*cut(data, cuts), None]:
        if decided:
            if piece is not None:
                shared, apart = (shared, apart + piece) if own else (shared + piece, apart)
            continue
        verdict = sorter.finish() if piece is None else sorter.feed(piece)
        shared += verdict.shared
        decided = verdict.decided
        if verdict.apart is not None:
            assert decided
            assert own
            apart += verdict.apart
    assert decided
    assert sorter.buffered == 0
    first = len(b"".join(before))
    assert (shared, apart) == ((data[:first], data[first:]) if own else (data, b""))
