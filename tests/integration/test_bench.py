"""The benchmark measures nothing if it does not notice wrong answers: that, and that its command works."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import guard, work
from tests.bench.echo import SEQUENCE, Echo
from tests.bench.endpoints import BRIDGE, DIRECT, ECHO, ROOT, Endpoint, Running
from tests.bench.fanout import LISTEN_ID, SUBSCRIPTION, Subscriber
from tests.bench.lines import Wrong
from tests.bench.load import histogram
from tests.bench.messages import FIRST_ID, request
from tests.bench.work import Work, measure, percentile

# An echo server whose answers are changed by a statement, from the first measured request on.
CHANGED = """
import os, sys
sys.path.insert(0, {root!r})
from tests.bench.echo import Echo
import json
echo = Echo()
for line in sys.stdin.buffer:
    answer = echo.chunk(line)
    if b"c000" in line:
        {statement}
    os.write(1, answer)
"""


def changed(tmp_path: Path, statement: str) -> Running:
    """An endpoint whose server does that to its answers."""
    command = [sys.executable, "-c", CHANGED.format(root=str(ROOT), statement=statement)]
    return Running(Endpoint("changed", None, lambda _: command, own=False), tmp_path)


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param('answer = answer.replace(b"c00001-", b"c00000-")', id="another client's text"),
        pytest.param('answer = answer.replace(b"000001", b"000009")', id="another id"),
        pytest.param('answer = answer.replace(b":1000001", b\':"1000001"\')', id="the id as a string"),
        pytest.param("answer = answer + answer", id="an answer twice"),
        pytest.param(
            'answer = b\'{"jsonrpc":"2.0","id":1000001,"error":{"code":-1,"message":""}}\\n\'', id="an error"
        ),
        pytest.param(
            "answer = answer.replace(b'\"progress\":3', b'\"progress\":2', 1)", id="the same progress twice"
        ),
        pytest.param("answer = answer[answer.index(b'\\n') + 1:]", id="lost progress"),
        pytest.param("sys.exit()", id="no answer"),
    ],
)
def test_a_wrong_answer_ends_the_measurement(tmp_path: Path, statement: str) -> None:
    """Our choice: figures of a bridge that mixes up answers are of no use."""
    target = changed(tmp_path, statement)
    tool = "progress-3" if "progress" in statement or "index" in statement else "echo"
    with pytest.raises(SystemExit, match="WRONG"):
        measure(Work("x", 2, 2, tool), target, 0.2, 1)


@pytest.mark.parametrize("tool", ["echo", "progress-3"])
def test_another_spelling_of_a_right_answer_is_no_fault(tmp_path: Path, tool: str) -> None:
    """Peers write JSON in their own way; values count."""
    respell = 'answer = b"".join(json.dumps(json.loads(x)).encode() + b"\\n" for x in answer.splitlines())'
    sample = measure(Work("x", 2, 4, tool), changed(tmp_path, respell), 0.2, 2)
    assert sample.rate > 0


@pytest.mark.parametrize("tool", ["echo", "sink", "plain-20", "quoted-100", "progress-2"])
@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize("size", [0, 4000])
def test_the_echo_server_answers_alike_by_pattern_and_as_json(tool: str, modern: bool, size: int) -> None:
    """Its fast path must not be faster because it does less."""
    asked = [request(FIRST_ID + n, tool, b"c00001-1000000" + b"y" * size, modern=modern) for n in range(3)]
    spaced = [json.dumps(json.loads(line)).encode() for line in asked]

    def answers(lines: list[bytes]) -> list[object]:
        return [json.loads(line) for line in Echo().chunk(b"\n".join(lines) + b"\n").splitlines()]

    assert answers(asked) == answers(spaced)
    assert len(answers(asked)) == (9 if tool == "progress-2" else 3)


@pytest.mark.parametrize("fault", ["none", "order", "id", "uri"])
def test_a_notification_that_is_not_due_is_noticed(fault: str) -> None:
    """Fan-out is checked at every delivery: sequence, subscription id, and what it is about."""
    echo = Echo()
    echo.listen(b"%d" % LISTEN_ID, {"resourceSubscriptions": ["bench://00003"]})
    out: list[bytes | memoryview] = []
    echo.emit(out, SEQUENCE + 20)
    lines = [bytes(line) for line in out[20:]]
    if fault == "order":
        lines[4], lines[5] = lines[5], lines[4]
    elif fault == "id":
        lines[4] = lines[4].replace(f'{SUBSCRIPTION}":{LISTEN_ID}'.encode(), f'{SUBSCRIPTION}":8'.encode())
    elif fault == "uri":
        lines[4] = lines[4].replace(b"00003", b"00004")
    subscriber = Subscriber(ECHO, 3)
    try:
        if fault == "none":
            subscriber.learn(lines, distinct=True, known={})
        else:
            with pytest.raises(Wrong, match="client 3"):
                subscriber.learn(lines, distinct=True, known={})
    finally:
        subscriber.close()


def test_percentiles_are_right_within_a_hundredth() -> None:
    pairs = histogram([(1000 * n, 1) for n in range(1, 1001)])
    assert percentile(pairs, 0.5) == pytest.approx(500, rel=0.01)
    assert percentile(pairs, 0.99) == pytest.approx(990, rel=0.01)
    assert sum(count for _, count in pairs) == 1000


def test_the_guard_fails_on_a_gross_loss_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Our choice: over 1.5 times what was recorded, twice in a row."""
    record = tmp_path / "guard.json"
    record.write_text(json.dumps({"ratios": {each.name: 2.0 for each in guard.WORKS}}))
    monkeypatch.setattr(guard, "RECORD", record)
    monkeypatch.setattr(guard, "cost", lambda _: guard.Cost(bridge=2.9, floor=1.0))
    assert guard.guard()
    monkeypatch.setattr(guard, "cost", lambda _: guard.Cost(bridge=3.1, floor=1.0))
    assert not guard.guard()
    assert "TOO DEAR" in capsys.readouterr().out


def test_every_guarded_work_has_a_recorded_ratio() -> None:
    recorded = json.loads(guard.RECORD.read_text())["ratios"]
    assert set(recorded) == {each.name for each in guard.WORKS}


def test_the_command_measures_the_bridge_and_says_how(tmp_path: Path) -> None:
    """One command in the README; every work of it is able to run somewhere."""
    assert all(any(work.able(each, one) for each in [DIRECT, BRIDGE]) for one in work.WORKS)
    names = ["8 clients x 8 in flight", "8 x 8, modern", "10 notifications to 1,000"]
    only = [word for name in names for word in ("--only", name)]
    report = tmp_path / "r.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", *only, "--rounds", "1", "--seconds", "0.1", "--json", report],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in names)
    results = json.loads(report.read_text())["works"]
    assert [each["work"]["clients"] for each in results] == [8, 8, 1000]
    assert all(each["results"]["mcp-bridge"]["rate"] > 0 for each in results)
