"""How the bridge stands, in one line for `systemctl status`."""

from __future__ import annotations

from collections.abc import Sequence


def standing(
    serving: Sequence[int],
    *,
    server: str = "",
    replacing: bool = False,
    old: int = 0,
    own: int = 0,
) -> str:
    """Say what serves the clients.

    Args:
        serving: process ids of the servers that all clients share, the first one's first.
        server: what is to be said of the shared server if none of its processes runs; empty: nothing.
        replacing: new ones are being made ready to take their place.
        old: how many replaced or superfluous ones have not ended yet.
        own: how many clients have a process of their own.
    """
    parts = ["serving"]
    if serving:
        name = "pid" if len(serving) == 1 else "pids"
        verb = "the server runs" if len(serving) == 1 else "the servers run"
        parts.append(f"{verb} ({name} {', '.join(map(str, serving))})")
    elif server:
        parts.append(server)
    if replacing:
        parts.append("being replaced")
    if old:
        parts.append(f"{old} old {'process ends' if old == 1 else 'processes end'}")
    if own:
        parts.append(f"{own} {'client has' if own == 1 else 'clients have'} a process of their own")
    return "; ".join(parts)
