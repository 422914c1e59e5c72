"""The committed inputs: for each target a file with one input a line (zlib, base64), the shortest first."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "corpus"


def read(target: str) -> list[bytes]:
    """The inputs of a target; none if it has no file yet."""
    file = FOLDER / f"{target}.txt"
    return [_unpacked(line) for line in file.read_text().splitlines()] if file.is_file() else []


def write(target: str, inputs: Iterable[bytes]) -> None:
    """Replace the inputs of a target."""
    FOLDER.mkdir(exist_ok=True)
    ordered = sorted(set(inputs), key=lambda one: (len(one), one))
    packed = (base64.b64encode(zlib.compress(one, 9)).decode() for one in ordered)
    (FOLDER / f"{target}.txt").write_text("".join(f"{line}\n" for line in packed))


def _unpacked(line: str) -> bytes:
    return zlib.decompress(base64.b64decode(line))
