"""What the core counts, since it never logs.

Owns the counters of one bridge. They only grow.
"""

from __future__ import annotations

from msgspec import Struct


class Stats(Struct):
    """Counters since the bridge started. Units: messages, unless a name says otherwise."""

    clients_opened: int = 0
    clients_cut: int = 0
    """Connections the bridge ended for what the client did: bad lines, unread output."""
    children_opened: int = 0
    children_closed: int = 0

    requests: int = 0
    """Requests of clients that were written to a server."""
    replayed: int = 0
    """Requests of clients that wait to be written once more, since their server ended."""
    responses: int = 0
    """Responses of a server that reached the client that asked."""
    notifications_up: int = 0
    notifications_down: int = 0
    """Notifications delivered, counted once for each client."""
    cancels: int = 0
    """Cancellations written to a server, for a client or because it left."""

    refused: int = 0
    """Requests that the bridge answered with an error of its own."""
    bad_lines: int = 0
    """Lines of clients that were no message."""
    dropped_notifications_up: int = 0
    """Notifications of clients that name nothing, or for which there is no server."""
    dropped_responses_up: int = 0
    """Responses of clients to nobody."""
    removed_tokens: int = 0
    """Progress tokens of clients that were not a string or a plain integer."""

    noise: int = 0
    """Lines of a server that were no message."""
    dropped_responses: int = 0
    """Responses of a server to nobody, or to a request that had ended."""
    dropped_progress: int = 0
    dropped_notifications: int = 0
    """Notifications of a server that belong to no client, or to one that is gone."""
    dropped_requests: int = 0
    """Requests of a modern server; such servers send none."""
    ambiguous_logs: int = 0
    """Log notifications of a server that several clients could have asked for."""
    invalid_responses: int = 0
    """Responses of a server that were damaged, and that cost the asker an error."""
