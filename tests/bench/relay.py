"""Moves bytes between clients and servers of their own, and does nothing else: the floor for Python.

`python -S relay.py SOCKET COMMAND [ARG ...]` listens on a Unix socket and starts the command for each client.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys

READ = 256 << 10


def main(path: str, command: list[str]) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(4096)
    poller = select.epoll()
    poller.register(listener, select.EPOLLIN)
    to: dict[int, int] = {}
    kept: dict[int, tuple[socket.socket, subprocess.Popen[bytes]]] = {}
    while True:
        for fd, _ in poller.poll():
            if fd == listener.fileno():
                client, _ = listener.accept()
                server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
                assert server.stdin is not None
                assert server.stdout is not None
                to[client.fileno()] = server.stdin.fileno()
                to[server.stdout.fileno()] = client.fileno()
                kept[client.fileno()] = client, server
                poller.register(client, select.EPOLLIN)
                poller.register(server.stdout, select.EPOLLIN)
                continue
            if fd not in to:
                continue
            data = os.read(fd, READ)
            if data:
                view = memoryview(data)
                while view:  # blocking, both ways
                    view = view[os.write(to[fd], view) :]
            elif fd in kept:
                client, server = kept.pop(fd)
                assert server.stdin is not None
                assert server.stdout is not None
                del to[fd], to[server.stdout.fileno()]
                poller.unregister(server.stdout)
                client.close()
                server.stdin.close()
                server.stdout.close()
                server.wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(sys.argv[1], sys.argv[2:])
