"""Steps that the event loop must not lose.

A callback that raises is logged by the loop and forgotten. Where it was the only one who would have reaped a
process, read on, or set the next timer, something then waits for ever. Such a step is insisted on.
"""

from __future__ import annotations

TYPE_CHECKING = False  # processes are started before anything slow is imported: see bridge.headstart
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from typing import Final, ParamSpec

    P = ParamSpec("P")

RETRY_S: Final = 0.05
"""How long, in seconds, after a step that has failed it is tried again: memory or descriptors that were short
may be there by then, and nobody waits long."""

TRIES: Final = 4
"""A fault that does not pass is not tried for ever."""


def insist(
    loop: asyncio.AbstractEventLoop, step: Callable[P, object], *args: P.args, **kwargs: P.kwargs
) -> None:
    """Carry out a step, now; one that raises is logged, and tried again a few times. Never raises.

    Args:
        step: may be carried out again after it has failed halfway.
    """
    _try(loop, TRIES, lambda: step(*args, **kwargs))


def _try(loop: asyncio.AbstractEventLoop, left: int, step: Callable[[], object]) -> None:
    try:
        step()
    except Exception:
        import logging  # has been imported long since, by the event loop

        logging.getLogger("bridge").exception(
            "bug: a step failed; %s", "it is tried again" if left > 1 else "it is given up"
        )
        if left > 1:
            loop.call_later(RETRY_S, _try, loop, left - 1, step)
