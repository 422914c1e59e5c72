"""The committed inputs: for each target a file with one input a line, in base64, the shortest first."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "corpus"


def read(target: str) -> list[bytes]:
    """The inputs of a target; none if it has no file yet."""
    file = FOLDER / f"{target}.txt"
    return [base64.b64decode(line) for line in file.read_text().splitlines()] if file.is_file() else []


def write(target: str, inputs: Iterable[bytes]) -> None:
    """Replace the inputs of a target."""
    FOLDER.mkdir(exist_ok=True)
    lines = [
        base64.b64encode(one).decode() + "\n" for one in sorted(set(inputs), key=lambda one: (len(one), one))
    ]
    (FOLDER / f"{target}.txt").write_text("".join(lines))
