"""What the process asks of the system for itself, once, at the start.

Each is an extra: failure is ignored.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from typing import Final

# Buffers of a large message come and go; without these glibc gives them back to the system and
# asks again for each one. The values are those above which nothing was gained.
_MALLOC_OPTIONS: Final = (
    (-3, 32 * 1024 * 1024),  # M_MMAP_THRESHOLD
    (-1, 64 * 1024 * 1024),  # M_TRIM_THRESHOLD
    (-2, 1024 * 1024),  # M_TOP_PAD
)


def tune_allocator() -> None:
    """Keep the memory of large messages for the next one (glibc only)."""
    if sys.platform != "linux":
        return
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in _MALLOC_OPTIONS:
            mallopt(option, value)


def raise_descriptor_limit() -> tuple[int, int]:
    """Allow as many connections as the system permits.

    Returns:
        The limit as it was, soft and hard; servers are started with it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def restore_descriptor_limit(pid: int, limit: tuple[int, int]) -> None:
    """Give a server the limit the bridge was started with: some programs walk over every descriptor."""
    prlimit = getattr(resource, "prlimit", None)
    if prlimit is not None:
        with contextlib.suppress(OSError, ValueError):
            prlimit(pid, resource.RLIMIT_NOFILE, limit)
