"""Another user who connects to every socket of a directory, in a loop.

`python intruder.py DIRECTORY UID` (as root): becomes that user, writes "ready", and at the end of its input
one line of JSON: how often it was let in ("connected": to somebody who listens; "reached": to a socket that
nobody listened on, which no permission kept it from) and how often it was kept out ("denied").
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys


def main() -> None:
    directory, uid = sys.argv[1], int(sys.argv[2])
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    os.chdir(directory)
    counts = {"connected": 0, "reached": 0, "denied": 0}
    names: set[str] = set()
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        # The usual temporary name and every other one that has been seen: each is tried all the time, since
        # a moment is all there would be.
        names |= {".mcpb-0", "s", *os.listdir(".")}
        for name in names:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.setblocking(False)
                try:
                    sock.connect(name)
                    counts["connected"] += 1
                except PermissionError:
                    counts["denied"] += 1
                except ConnectionRefusedError:
                    counts["reached"] += 1
                except OSError:
                    continue  # not there
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
