"""What systemd does for a socket unit, in a few lines: listen, then run a command with the sockets.

`python activator.py ADDR[=NAME] ... -- COMMAND ARG ...`. ADDR is `unix:/path`, `unix:@name`,
`tcp:HOST:PORT`, `dgram:/path` (a datagram socket), `file:/path` (a plain file). The command gets them as
descriptors from 3 on, with LISTEN_FDS, LISTEN_FDNAMES and LISTEN_PID of its own process. Real sockets, real
`exec`; `--no-pid` leaves LISTEN_PID as that of another process.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys

_FIRST = 3


def opened(address: str) -> int:
    """A descriptor for one ADDR, listening if it is a stream socket."""
    kind, _, rest = address.partition(":")
    if kind == "file":
        return os.open(rest, os.O_RDWR | os.O_CREAT)
    if kind == "tcp":
        host, _, port = rest.rpartition(":")
        sock = socket.create_server((host, int(port)))
        return sock.detach()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM if kind == "dgram" else socket.SOCK_STREAM)
    sock.bind("\0" + rest[1:] if rest.startswith("@") else rest)
    if kind == "unix":
        sock.listen()
    return sock.detach()


def main() -> None:
    argv = sys.argv[1:]
    other_pid = "--no-pid" in argv[: argv.index("--")]
    wanted = [word for word in argv[: argv.index("--")] if word != "--no-pid"]
    command = argv[argv.index("--") + 1 :]
    names = []
    # Out of the way first: the next one opened could else be closed by the dup2 of the one before.
    high = []
    for word in wanted:
        address, equals, name = word.partition("=")
        names.append(name if equals else "unknown")
        fd = opened(address)
        high.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100))
        os.close(fd)
    for number, fd in enumerate(high):
        os.dup2(fd, _FIRST + number, inheritable=True)
    os.environ["LISTEN_FDS"] = str(len(wanted))
    os.environ["LISTEN_FDNAMES"] = ":".join(names)
    os.environ["LISTEN_PID"] = "1" if other_pid else str(os.getpid())
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
