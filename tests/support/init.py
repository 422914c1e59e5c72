"""An init like tini, in a few lines: runs a command, passes signals on, reaps orphans, exits as that did.

`python init.py COMMAND ARG ...`, as PID 1.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys


def main() -> int:
    child = subprocess.Popen(sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda number, _: child.send_signal(number))
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
