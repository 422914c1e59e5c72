"""Listen again and again under umask 000 while another user tries to get in.

    python -m tests.umask_starts [STARTS]      100,000 unless said otherwise; as root

Prints how often the other user was kept out; exits with 1 if it was ever let in. The normal run does the same
with 10,000 starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bridge.address import Address
from bridge.listener import open_listener

INTRUDER = Path(__file__).parent / "support" / "intruder.py"
# Who nobody is: a user without an entry anywhere.
UID = 54321


class Intruder:
    """The other user at work; `counts` once it is done."""

    counts: dict[str, int]


@contextlib.contextmanager
def intruded() -> Iterator[tuple[Path, Intruder]]:
    """A directory that everybody may use, under umask 000, and another user who tries its sockets."""
    intruder = Intruder()
    before = os.umask(0)
    try:
        with tempfile.TemporaryDirectory(prefix="mb-", dir="/tmp") as name:
            os.chmod(name, 0o777)
            with subprocess.Popen(
                [sys.executable, "-S", str(INTRUDER), name, str(UID)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as process:
                assert process.stdin is not None
                assert process.stdout is not None
                try:
                    assert process.stdout.readline() == "ready\n"
                    yield Path(name), intruder
                    process.stdin.close()
                    intruder.counts = json.loads(process.stdout.readline())
                finally:
                    process.kill()
    finally:
        os.umask(before)


def listen_again_and_again(path: Path, starts: int, *, mode: int = 0o600, group: int | None = None) -> None:
    """Take a path and give it up again, so many times: all that a start does to the file system."""
    for _ in range(starts):
        (listener,) = open_listener(Address("unix", path=str(path)), mode=mode, group=group)
        listener.close()


def main() -> int:
    starts = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with intruded() as (place, intruder):
        listen_again_and_again(place / "s", starts)
    counts = intruder.counts
    print(f"{starts} starts: {counts['denied']} attempts denied, {counts['connected']} let in")
    return 1 if counts["connected"] or counts["reached"] else 0


if __name__ == "__main__":
    sys.exit(main())
