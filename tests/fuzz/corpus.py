"""The committed inputs: for each target a file with one input a line (zlib, base64), the shortest first."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "corpus"

BY_HAND: Final[dict[str, tuple[bytes, ...]]] = {
    "codec": (
        b'{"jsonrpc":"2.0",\r"id":7,"params":{"x":[\r{"id":9,"method":"p"}\r]},"method":"m"}\r',
        b'\xef\xbb\xbf{"jsonrpc":"2.0","method":"m","params":{"a":1,"\\u0061":[1e400,-0,1.0]},"m\\u0065thod":"n"}',
        b'{"jsonrpc":"2.0","id":"\\uD83D\\uDE00","method":"\\ud83d","params":["\\\\ud83d\\\\\\ud83d\\ude00\\ude00"]}',
        *(
            b'{"jsonrpc":"2.0","id":1,"result":"\\ud83d%s"}' % bad
            for bad in (b"\\ud8", b"\\uDxyz", b"\\u12", b"\xff")
        ),
        b'{"jsonrpc":"2.0","ID":1,"id":2,"PARAMS":[],"\xc5\xbfesult":1,"re\xc5\xbfult":2,"method":"m"}',
        b'{"jsonrpc":"2.0","method":"m","params":{"a":[[["]]]",{}]]]}}',
        b'{"jsonrpc":"2.0","method":"m","params":' + b'[{"a":' * 9 + b"1" + b"}]" * 9 + b"}",
        b'{"jsonrpc":"2.0","id":1,"method":"m"}\n{"jsonrpc":"2.0","id":1,"result":{}}\n{"jsonrpc":"2.0","error":1}',
    ),
    "framer": (),
    "router": (),
}
"""What matters although it reaches no code of its own, so that minimising would drop it."""


def read(target: str) -> list[bytes]:
    """The inputs of a target: those written by hand, and what its file holds."""
    file = FOLDER / f"{target}.txt"
    lines = file.read_text().splitlines() if file.is_file() else []
    return [*BY_HAND[target], *map(_unpacked, lines)]


def write(target: str, inputs: Iterable[bytes]) -> None:
    """Replace the inputs of a target."""
    FOLDER.mkdir(exist_ok=True)
    ordered = sorted(set(inputs), key=lambda one: (len(one), one))
    packed = (base64.b64encode(zlib.compress(one, 9)).decode() for one in ordered)
    (FOLDER / f"{target}.txt").write_text("".join(f"{line}\n" for line in packed))


def _unpacked(line: str) -> bytes:
    return zlib.decompress(base64.b64decode(line))
