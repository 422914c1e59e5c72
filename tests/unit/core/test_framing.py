"""Where lines begin and end, as the framer of one connection sees it."""

from __future__ import annotations

import pytest

from bridge.core.framing import HEAD_KEPT, LineFramer, OverlongEnd, OverlongStart, Segment

LIMIT = 10


def shown(segments: list[Segment]) -> list[object]:
    """Segments with the blocks as plain bytes, to compare."""
    return [s if isinstance(s, (OverlongStart, OverlongEnd)) else bytes(s) for s in segments]


def fed(framer: LineFramer, *chunks: bytes) -> list[object]:
    return [segment for chunk in chunks for segment in shown(framer.feed(chunk))]


def test_whole_lines_in_one_read_are_one_block() -> None:
    framer = LineFramer(LIMIT)
    chunk = b"one\ntwo\n"
    assert framer.feed(chunk) == [chunk]
    assert not framer.busy
    assert framer.buffered == 0


def test_a_line_waits_for_its_newline() -> None:
    framer = LineFramer(LIMIT)
    assert fed(framer, b"o", b"n", b"e") == []
    assert framer.buffered == 3
    assert framer.busy
    assert fed(framer, b"\n") == [b"one\n"]
    assert not framer.busy


def test_a_read_may_end_one_line_and_begin_another() -> None:
    framer = LineFramer(LIMIT)
    assert fed(framer, b"one\ntw", b"o\nthree\nfo") == [b"one\n", b"two\nthree\n"]
    assert framer.buffered == 2


def test_only_a_newline_ends_a_line() -> None:
    """CR, NEL, VT, FF and the line separators of Unicode end lines for text readers, and none here."""
    framer = LineFramer(100)
    text = "a\rb\x0bc\x0cd\x85e\u2028f\u2029g\r".encode()
    assert fed(framer, text) == []
    assert fed(framer, b"\n") == [text + b"\n"]


def test_an_empty_read_changes_nothing() -> None:
    framer = LineFramer(LIMIT)
    assert fed(framer, b"", b"on", b"", b"e\n", b"") == [b"one\n"]
    assert fed(framer, b"x" * (LIMIT + 1), b"", b"\n", b"") == [
        OverlongStart(b"x" * LIMIT),
        OverlongEnd(b"x" * (LIMIT + 1)),
    ]


@pytest.mark.parametrize("split", [False, True])
def test_a_line_as_long_as_the_limit_is_a_line(split: bool) -> None:
    """The newline does not count."""
    line = b"0123456789\n"
    framer = LineFramer(LIMIT)
    chunks = [bytes([byte]) for byte in line] if split else [line]
    assert fed(framer, *chunks) == [line]


@pytest.mark.parametrize("split", [False, True])
def test_a_line_longer_than_the_limit_is_reported_and_skipped(split: bool) -> None:
    line = b"0123456789x\n"
    framer = LineFramer(LIMIT)
    chunks = [bytes([byte]) for byte in line] if split else [line]
    assert fed(framer, *chunks) == [OverlongStart(b"0123456789"), OverlongEnd(b"0123456789x")]
    assert not framer.busy


def test_the_lines_around_an_overlong_one_are_kept_in_order() -> None:
    long = b"0123456789x"
    expected = [b"a\nb\n", OverlongStart(long[:LIMIT]), OverlongEnd(long), b"c\n"]
    assert fed(LineFramer(LIMIT), b"a\nb\n" + long + b"\nc\n") == expected


def test_overlong_lines_in_a_row_are_each_reported() -> None:
    long = b"0123456789x"
    both = [OverlongStart(long[:LIMIT]), OverlongEnd(long)]
    assert fed(LineFramer(LIMIT), (long + b"\n") * 2) == both * 2


def test_the_line_behind_an_overlong_one_is_whole() -> None:
    framer = LineFramer(LIMIT)
    assert fed(framer, b"x" * 50) == [OverlongStart(b"x" * LIMIT)]
    assert fed(framer, b"y\nok") == [OverlongEnd(b"x" * 50 + b"y")]
    assert fed(framer, b"\n") == [b"ok\n"]


def test_several_short_lines_that_exceed_the_limit_together_are_no_overlong_line() -> None:
    """The limit is for a line, not for what one read brings."""
    chunk = b"01234\n" * 5
    assert b"".join(bytes(s) for s in LineFramer(LIMIT).feed(chunk)) == chunk  # type: ignore[arg-type]  # blocks only
    assert fed(LineFramer(LIMIT), b"01234\n" * 5 + b"x") == [chunk]


def test_an_overlong_line_is_told_before_its_end_has_come() -> None:
    """An endless line is reported when it passes the limit, and then takes no memory."""
    framer = LineFramer(LIMIT)
    assert fed(framer, b"0123456789x") == [OverlongStart(b"0123456789")]
    for _ in range(100):
        assert fed(framer, b"z" * HEAD_KEPT) == []
        assert framer.buffered == 0
        assert len(framer._tail) <= HEAD_KEPT
    assert framer.busy
    assert fed(framer, b"end\n") == [OverlongEnd((b"z" * HEAD_KEPT + b"end")[-HEAD_KEPT:])]


@pytest.mark.parametrize("step", [1, 7, HEAD_KEPT, 100_000])
def test_beginning_and_end_of_an_overlong_line_are_kept_to_read_its_id(step: int) -> None:
    """At most 4 KiB of each, and the same however the line was cut up."""
    line = b"".join(b"%d," % number for number in range(3000))
    framer = LineFramer(5000)
    stream = line + b"\n"
    chunks = [stream[at : at + step] for at in range(0, len(stream), step)]
    assert fed(framer, *chunks) == [OverlongStart(line[:HEAD_KEPT]), OverlongEnd(line[-HEAD_KEPT:])]


def test_the_last_line_counts_without_its_newline() -> None:
    framer = LineFramer(LIMIT)
    fed(framer, b"a\nlast")
    assert shown(framer.finish()) == [b"last\n"]
    assert not framer.busy
    assert framer.finish() == []


def test_a_stream_that_ends_in_an_overlong_line_ends_it() -> None:
    framer = LineFramer(LIMIT)
    fed(framer, b"x" * 20)
    assert shown(framer.finish()) == [OverlongEnd(b"x" * 20)]
    assert not framer.busy
    assert framer.finish() == []


def test_a_stream_that_ends_with_a_newline_has_no_last_line() -> None:
    framer = LineFramer(LIMIT)
    fed(framer, b"a\n")
    assert framer.finish() == []


def test_a_long_line_in_small_pieces_is_handed_out_without_its_neighbours() -> None:
    framer = LineFramer(1 << 20)
    line = b"x" * 300_000
    for at in range(0, len(line), 1000):
        assert framer.feed(line[at : at + 1000]) == []
    assert fed(framer, b"\nnext") == [line + b"\n"]
    assert framer.buffered == 4
