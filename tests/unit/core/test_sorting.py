"""Which clients have a server process of their own (section 7, `--sharing auto`)."""

from __future__ import annotations

import pytest

from bridge.core.codec import Codec
from bridge.core.sorting import Sorted, Sorter
from tests.unit.core.scenario import (
    INITIALIZED,
    Json,
    initialize,
    legacy,
    line,
    notification,
    request,
    result,
)

SAMPLING = line(initialize(1, sampling={}))
PLAIN = line(initialize(1, roots={}))
PING = line(legacy("p", "ping"))
DISCOVER = line(request("d", "server/discover"))


def sorter(*, limit: int = 10_000, strict: bool = False) -> Sorter:
    return Sorter(
        Codec(b"sixteen bytes!!!", 128), frozenset(["sampling", "elicitation"]), limit, strict=strict
    )


@pytest.mark.parametrize("before", [b"", PING, DISCOVER, b"junk\n", line(notification("n")), line(result(1))])
def test_who_declares_what_needs_it_is_apart_from_its_initialize_on(before: bytes) -> None:
    rest = line(INITIALIZED) + b'{"half'
    assert sorter().feed(before + SAMPLING + rest) == Sorted(before, SAMPLING + rest, decided=True)


@pytest.mark.parametrize(
    "plain", [PLAIN, line(legacy(1, "initialize", capabilities=5)), line(legacy(1, "initialize"))]
)
def test_who_declares_nothing_of_the_kind_shares(plain: bytes) -> None:
    assert sorter().feed(PING + plain + b"rest") == Sorted(PING + plain + b"rest", decided=True)


def test_who_makes_a_modern_request_shares() -> None:
    asked = line(request(1, "tools/list"))
    assert sorter().feed(asked) == Sorted(asked, decided=True)


def test_an_initialize_is_looked_at_whatever_its_meta_says() -> None:
    """The method is of the legacy era alone."""
    asked = line(request(1, "initialize", capabilities={"sampling": {}}))
    assert sorter().feed(asked) == Sorted(b"", asked, decided=True)


@pytest.mark.parametrize(
    "message",
    [legacy(1, "tools/list"), {"jsonrpc": "2.0", "id": 1, "method": "initialize"}, legacy(1, "x", _meta=5)],
)
def test_who_says_anything_else_is_looked_at_again(message: Json) -> None:
    s = sorter()
    assert s.feed(line(message)) == Sorted(line(message))
    assert s.feed(SAMPLING) == Sorted(b"", SAMPLING, decided=True)


def test_bytes_may_be_cut_anywhere() -> None:
    s = sorter()
    text = PING + SAMPLING
    shared = b""
    for at in range(len(text) - 1):
        verdict = s.feed(text[at : at + 1])
        assert not verdict.decided
        shared += verdict.shared
    assert shared == PING
    assert s.buffered == len(SAMPLING) - 1
    assert s.feed(b"\n") == Sorted(b"", SAMPLING, decided=True)
    assert s.buffered == 0


def test_a_line_that_is_too_long_is_the_shared_servers_to_refuse() -> None:
    s = sorter(limit=10)
    assert s.feed(b"x" * 11) == Sorted(b"x" * 11)
    assert s.feed(b"x" * 11) == Sorted(b"x" * 11)


@pytest.mark.parametrize(
    ("rest", "apart"), [(SAMPLING[:-1], True), (PLAIN[:-1], False), (b"junk", False), (b"", False)]
)
def test_a_last_line_without_an_end_is_looked_at_too(rest: bytes, apart: bool) -> None:
    s = sorter()
    s.feed(rest)
    assert s.finish() == (Sorted(b"", rest, decided=True) if apart else Sorted(rest, decided=True))


def test_a_browser_is_the_shared_servers_to_cut() -> None:
    assert sorter(strict=True).feed(b"GET") == Sorted(b"GET", decided=True)
    s = sorter(strict=True)
    assert s.feed(SAMPLING[:5]) == Sorted(b"")
    assert s.feed(SAMPLING[5:]) == Sorted(b"", SAMPLING, decided=True)


def test_only_the_first_byte_of_a_connection_gives_a_browser_away() -> None:
    """Who wrote an empty line later on, or a blank in front of one, was not cut, and was taken to share."""
    s = sorter(strict=True)
    assert s.feed(PING) == Sorted(PING)
    assert s.feed(b"\n " + SAMPLING) == Sorted(b"\n", b" " + SAMPLING, decided=True)
