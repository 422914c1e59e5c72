"""Pipes as the operating system has them: opened, sized, closed once. Nothing here knows of processes.

What the event loop needs to read one is `bridge.outputs`.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import termios

__all__ = ["PIPE_SIZE", "Pipe", "enlarge", "open_pipe", "unread_bytes"]

# The most an unprivileged process may ask for by default. Beside 64 KiB, the system's own size, it carries
# messages of 4 KB and more a fifth faster.
PIPE_SIZE = 1 << 20


class Pipe:
    """A descriptor, closed at most once: what the loop's pipe transports need of a file."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """The descriptor, -1 once it is closed."""
        return self._fd

    def close(self) -> None:
        """Close the descriptor; idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            # uvloop has closed the descriptor itself a moment before.
            with contextlib.suppress(OSError):
                os.close(fd)


def open_pipe(readers: list[Pipe], writers: list[Pipe]) -> tuple[Pipe, Pipe]:
    """Open a close-on-exec pipe and put its ends on the two lists. Raises OSError."""
    reader_fd, writer_fd = os.pipe()
    reader, writer = Pipe(reader_fd), Pipe(writer_fd)
    readers.append(reader)
    writers.append(writer)
    return reader, writer


def enlarge(pipe: Pipe) -> None:
    """Give a pipe the size that serves throughput best, if the system lets us."""
    # AttributeError: no Linux. EPERM: this user's pipes hold all they may already; 64 KiB serve as well.
    with contextlib.suppress(AttributeError, OSError):
        fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, PIPE_SIZE)


def unread_bytes(fd: int) -> int:
    """How many bytes of a pipe nobody has read yet, asked at either end; 0 if the system does not tell."""
    if fd < 0:
        return 0
    answer = array.array("i", [0])
    try:
        fcntl.ioctl(fd, termios.FIONREAD, answer)
    except OSError:
        return 0
    return answer[0]
