"""Any bytes from either side: the router lives, other clients do not notice, and chunks mean nothing.

Section 10, invariants 4, 5 and 6. Bytes are put together from pieces of lines, so that many come close to
what a line should be.
"""

from __future__ import annotations

import json
from typing import Final
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge.core import lines as lines_of_clients
from bridge.core import upstream
from bridge.core.era import Era
from bridge.core.outbox import Control, Key, Output
from bridge.core.router import Router
from bridge.core.tables import Limits
from tests.unit.core.scenario import (
    INITIALIZED,
    Json,
    acknowledged,
    cancelled,
    changed,
    greeting,
    initialize,
    legacy,
    line,
    listen,
    log,
    notification,
    progress,
    request,
    result,
)

A, B, SERVER = Key(1), Key(2), Key(3)

# What belongs to the bystander has upstream id 2: no piece below can name it.
MESSAGES: Final[tuple[Json, ...]] = (
    request(5, "x", meta={"progressToken": "t"}),
    request("\u017e", "x"),
    listen(5, toolsListChanged=True),
    listen("l", resourceSubscriptions=["u"]),
    cancelled(5),
    cancelled("l"),
    notification("n"),
    result(3, {"a": [1, {"b": None}]}),
    result(4, "\u017e"),
    {"jsonrpc": "2.0", "id": 3, "error": {"code": 1, "message": "m"}},
    progress(3),
    log("x"),
    acknowledged(3),
    acknowledged(4, toolsListChanged=True),
    changed(4),
    cancelled(3),
    {"jsonrpc": "2.0", "id": 7, "method": "roots/list"},
    {"jsonrpc": "2.0", "id": "p", "method": "ping"},
    initialize("i", "2024-11-05"),
    INITIALIZED,
    legacy(5, "x", _meta={"progressToken": "t"}),
    legacy("s", "logging/setLevel"),
    greeting(1),
    notification("notifications/tools/list_changed"),
)
PIECES: Final = (
    b"\n",
    b"\r",
    b" ",
    b"\xef\xbb\xbf",
    b"\xff",
    b"\x00",
    b"\\ud83d",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[" * 200,
    b"]" * 200,
    b",",
    b":",
    b'"id"',
    b'"\\u0069d":3,',
    b'"result":',
    b'"params":',
    b'{"jsonrpc":"1.0","id":3,"result":{}}\n',
    b'{"jsonrpc":"2.0","id":5,"method":"x","params":{"y":1},"params":null}\n',
    b'{"jsonrpc":"2.0","id":3,"result":',
    b',"jsonrpc":"2.0","id":3}\n',
    b"1e400",
    b"x" * 700,
)


def no_two(data: bytes) -> bytes:
    return data.replace(b"2", b"?")


lines = st.sampled_from(MESSAGES).map(line)
scraps = st.builds(lambda whole, n: whole[: n % len(whole)], lines, st.integers(0, 500))
pieces = st.one_of(lines, lines, scraps, st.sampled_from(PIECES), st.binary(max_size=4).map(no_two))
chunks = st.lists(pieces, max_size=6).map(b"".join)


class Bridge:
    """A router with two clients, and all that each destination was written."""

    def __init__(self, era: Era) -> None:
        limits = Limits(max_request=600, max_message=600, max_in_flight=3, bad_lines=50, era=era)
        self.router = Router(limits, salt=b"salt of the test")
        self.written: dict[Key, bytes] = {A: b"", B: b"", SERVER: b""}
        self.router.client_opened(A)
        self.router.client_opened(B)
        self.took(self.router.server_opened(SERVER, 0))
        self.server(line(greeting(1)))
        if era is Era.LEGACY:
            # Not initialized, so that it is told of no changes.
            self.client(B, line(initialize("hello")))
            assert self.written[B] == line(greeting("hello"))
            self.written[B] = b""
        ask = request if era is Era.MODERN else legacy
        self.client(B, line(ask("mine", "x")))
        assert self.written[SERVER].endswith(line(ask(2, "x")))

    def took(self, outputs: list[Output]) -> None:
        for key, data in outputs:
            if not isinstance(data, Control):
                self.written[key] += data

    def said(self) -> dict[Key, list[object]]:
        """What each destination was told. In which order members stand is no matter."""
        return {key: [json.loads(text) for text in data.splitlines()] for key, data in self.written.items()}

    def client(self, key: Key, data: bytes) -> None:
        self.took(self.router.client_data(key, data, 0))

    def server(self, data: bytes) -> None:
        self.took(self.router.server_data(SERVER, data, 0))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(Era), st.lists(st.tuples(st.booleans(), chunks), max_size=12), st.integers(1, 50))
@example(Era.MODERN, [(True, b'{"\xff'), (False, b'{"\xff\n')], 1)
def test_any_bytes_in_any_chunks_are_survived_and_are_nobody_elses_business(
    era: Era, said: list[tuple[bool, bytes]], size: int
) -> None:
    whole, split = Bridge(era), Bridge(era)
    for from_client, data in said:
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        if from_client:
            whole.client(A, data)
            for part in parts:
                split.client(A, part)
        else:
            whole.server(data)
            for part in parts:
                split.server(part)
    for bridge in (whole, split):
        bridge.server(b"\n" + line(result(2, "yours")))
    assert whole.said() == split.said()
    assert whole.router.stats == split.router.stats
    assert whole.router.table_sizes() == split.router.table_sizes()
    assert whole.written[B] == line(result("mine", "yours"))
    for text in whole.written.values():
        assert b"\r" not in text
        text.decode()
    whole.took(whole.router.client_closed(A, 0))
    whole.took(whole.router.client_closed(B, 0))
    assert not any(whole.router.table_sizes().values())


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(Era), st.lists(st.tuples(st.booleans(), st.lists(lines, min_size=1)), max_size=12))
@example(Era.MODERN, [(True, [line(MESSAGES[0])]), (False, [line(progress(3)), line(result(3))])])
@example(Era.LEGACY, [(True, [line(initialize(1)), line(MESSAGES[0])]), (False, [line(progress(3))])])
def test_what_is_decoded_at_once_fares_as_what_is_looked_at_line_by_line(
    era: Era, said: list[tuple[bool, list[bytes]]]
) -> None:
    """Clients' bytes are collected besides, as they are where many write at the same time."""
    quick, careful = Bridge(era), Bridge(era)
    for from_client, texts in said:
        data = b"".join(texts)
        if from_client:
            quick.router.collect(A, data, 0)
        else:
            quick.server(data)
        # No block is plain that has the byte it must not have, and each has a newline.
        with patch.object(lines_of_clients, "CR", ord("\n")), patch.object(upstream, "CR", ord("\n")):
            if from_client:
                careful.client(A, data)
            else:
                careful.server(data)
    quick.took(quick.router.flush())
    assert quick.said() == careful.said()
    assert quick.router.stats == careful.router.stats
    assert quick.router.table_sizes() == careful.router.table_sizes()
