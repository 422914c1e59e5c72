"""What the process asks of the system for itself, once, at the start.

Each is an extra: failure is ignored.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys

TYPE_CHECKING = False  # the options need it, and these are read before anything slow is imported
if TYPE_CHECKING:
    from typing import Final

# Buffers of a large message come and go; without these glibc gives them back to the system and
# asks again for each one. The values are those above which nothing was gained.
_MALLOC_OPTIONS: Final = (
    (-3, 32 * 1024 * 1024),  # M_MMAP_THRESHOLD
    (-1, 64 * 1024 * 1024),  # M_TRIM_THRESHOLD
    (-2, 1024 * 1024),  # M_TOP_PAD
)


DESCRIPTORS_KEPT: Final = 50
"""Not for clients: a server that is started takes some ten, the bridge itself about twenty."""


def tune_allocator() -> None:
    """Keep the memory of large messages for the next one (glibc only)."""
    if sys.platform != "linux":
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in _MALLOC_OPTIONS:
            mallopt(option, value)


def give_memory_back() -> None:
    """Give the system what the allocator keeps and nobody uses (glibc only); some ms for 100 MiB."""
    if sys.platform != "linux":
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def occupy_standard_descriptors() -> None:
    """Open what of 0, 1 and 2 the parent has closed, before a socket takes the number.

    What is meant for stderr would go to a client then, and libuv aborts when it closes one of them.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.open(os.devnull, os.O_RDWR)  # the lowest number that is free


def raise_descriptor_limit() -> tuple[int, int]:
    """Allow as many connections as the system permits.

    Returns:
        The limit as it was, soft and hard; servers are started with it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def most_connections() -> int | None:
    """How many connections leave enough descriptors for the server and its next start; None: any number."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else max(1, soft - DESCRIPTORS_KEPT)


def restore_descriptor_limit(pid: int, limit: tuple[int, int]) -> None:
    """Give a server the limit the bridge was started with: some programs walk over every descriptor."""
    prlimit = getattr(resource, "prlimit", None)
    if prlimit is not None:
        with contextlib.suppress(OSError, ValueError):
            prlimit(pid, resource.RLIMIT_NOFILE, limit)
