"""A server that reads everything and never writes a byte.

`python silent.py`; it exits 0 at the end of its input.

Environment:
    RECORD: a file to which every received line is appended.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    record = os.environ.get("RECORD")
    log = open(record, "ab", buffering=0) if record else None  # noqa: SIM115 - open as long as the process
    for line in sys.stdin.buffer:
        if log is not None:
            log.write(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
