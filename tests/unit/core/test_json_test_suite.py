"""Each file of a public JSON test suite as a line, as `params`, in `params`, and from the server.

What becomes of each is a committed table; the rules that it must keep are tested beside it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from bridge.core.era import Era
from tests.support.json_test_suite import Case, cases, read
from tests.unit.core.scenario import Scenario, greeting, initialize, legacy

CASES = cases()


def session() -> Scenario:
    """A client of a legacy server: `params` need hold nothing there. The next upstream id is 2."""
    s = Scenario("A", era=Era.LEGACY)
    s.server(greeting(1))
    s.client("A", initialize(0))
    return s


def codes(text: bytes) -> list[int]:
    """Of the errors that a client was told."""
    return [json.loads(line)["error"]["code"] for line in text.splitlines()]


def as_params(value: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"x","params":' + value + b"}\n"


def as_member(value: bytes) -> bytes:
    return as_params(b'{"v":' + value + b"}")


def ask(line: bytes) -> tuple[list[int] | str, Any]:
    """What becomes of a request, and the `params` that the server gets."""
    out = session().client("A", line)
    sent = out.bytes("server")
    if not sent:
        return codes(out.bytes("A")), None
    assert not out.bytes("A")
    assert sent.count(b"\n") == 1
    return "passed on", read(sent)["params"]


@pytest.fixture(params=["y", "n", "i", "t"])
def some(request: pytest.FixtureRequest) -> list[Case]:
    """The cases of one kind."""
    return [case for case in CASES if case.name[0] == request.param]


def must_be_good(case: Case) -> bool:
    return case.name[0] == "y" or (case.name[0] == "t" and "_invalid_codepoint" not in case.name)


def test_as_a_line_of_a_client(some: list[Case]) -> None:
    """None of them is a message."""
    for case in some:
        out = session().client("A", case.data + b"\n")
        assert codes(out.bytes("A")) == case.line, case.name
        assert not out.bytes("server"), case.name
        if must_be_good(case) and b"\n" not in case.data.strip():
            assert case.line == [-32600], case.name
        assert set(case.line) <= {-32700, -32600}, case.name


def test_as_params(some: list[Case]) -> None:
    for case in some:
        outcome, params = ask(as_params(case.value))
        assert outcome == case.params, case.name
        if outcome == "passed on":
            assert params == read(case.value), case.name
            assert case.name[0] != "n"
        elif must_be_good(case):
            assert outcome == [-32600], case.name
            assert not isinstance(read(case.value), dict | list), case.name


def test_in_params(some: list[Case]) -> None:
    for case in some:
        outcome, params = ask(as_member(case.value))
        assert outcome == case.member, case.name
        if outcome == "passed on":
            assert params == {"v": read(case.value)}, case.name
            assert case.name[0] != "n", case.name
        else:
            assert not must_be_good(case), case.name


def test_as_a_line_of_the_server(some: list[Case]) -> None:
    for case in some:
        s = session()
        assert not s.server(case.data + b"\n").outputs, case.name
        assert s.stats.noise == case.noise, case.name


def test_as_a_result(some: list[Case]) -> None:
    for case in some:
        s = session()
        s.client("A", legacy(7, "x"))
        got = s.server(b'{"jsonrpc":"2.0","id":2,"result":' + case.value + b"}\n").bytes("A")
        if case.result == "passed on":
            assert read(got) == {"jsonrpc": "2.0", "id": "7", "result": read(case.value)}, case.name
            assert case.name[0] != "n", case.name
        else:
            assert codes(got) == [case.result], case.name
            assert not must_be_good(case), case.name


def test_the_whole_suite_is_in_the_table() -> None:
    kinds = [case.name[0] for case in CASES]
    assert {kind: kinds.count(kind) for kind in "ynit"} == {"y": 95, "n": 188, "i": 35, "t": 22}
