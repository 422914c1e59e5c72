"""Which requests may be sent once more when the server ended before it answered (`--replay safe`).

Owns the list. A request is on it only if a server does nothing for it but read, so that
running twice is the same as running once. `tools/call` never is.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from bridge.core.era import DISCOVER
from bridge.core.jsonrpc import Call

SAFE: Final = frozenset({DISCOVER, "resources/read", "prompts/get", "completion/complete"})

LIST: Final = "/list"

UNSAFE_PARAMS: Final = frozenset({"inputResponses", "requestState", "task"})
"""They go on with what this very process has begun, or have it begin something."""

KEPT: Final = 16 * 1024
"""The longest line that is kept until its answer comes, in bytes: who only reads says little, and a client
may have 256 requests at the server."""


def is_safe(message: Call) -> bool:
    """Whether a request may run twice."""
    method, params = message.method, message.params
    assert method is not UNSET
    lists = method.endswith(LIST)
    if not lists and method not in SAFE:
        return False
    if type(params) is not dict:
        return params is UNSET
    # A cursor is the process's own that gave it out.
    return params.keys().isdisjoint(UNSAFE_PARAMS) and not (lists and "cursor" in params)
