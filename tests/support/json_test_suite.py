"""Every file of a public JSON test suite, and what becomes of it at either side of the bridge.

The table is `tests/data/json_test_suite/cases.jsonl`. Its files are from `nst/JSONTestSuite` (MIT, see the
licence beside them), commit 1ef36fa01286573e846ac449e8683f8833c5b26a: names that begin with `y_` are valid
JSON, with `n_` are not, with `i_` may be either; `t_` are its files of texts that parsers tend to alter.
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

FILE: Final = Path(__file__).resolve().parents[1] / "data" / "json_test_suite" / "cases.jsonl"


class Case(Struct, frozen=True):
    """One file of the suite, and its rows of the table. A newline of a valid text becomes a space there."""

    name: str
    line: list[int]
    """As a line of a client: the codes of the errors that it gets."""
    params: Literal["passed on"] | list[int]
    """As the `params` of a request: passed on, or the errors."""
    member: Literal["passed on"] | list[int]
    """As a member of the `params` of a request."""
    noise: int
    """As a line of the server: how many lines are dropped as noise."""
    result: Literal["passed on"] | int
    """As the `result` of a response: passed on, or the error that the asker gets."""
    packed: str
    """The bytes of the file: zlib, base64."""

    @property
    def data(self) -> bytes:
        """The file, as it is."""
        return zlib.decompress(base64.b64decode(self.packed))

    @property
    def value(self) -> bytes:
        """What stands for a value in a message: where the text may be valid, it is on one line."""
        return self.data if self.name.startswith("n_") else self.data.replace(b"\n", b" ")


def cases() -> list[Case]:
    """All of them, in the order of their names."""
    return [msgspec.json.decode(line, type=Case) for line in FILE.read_bytes().splitlines()]


def read(text: bytes) -> Any:
    """A JSON text as the standard library reads it, numbers as they are spelled."""
    return json.loads(text.decode(), parse_int=str, parse_float=str)
