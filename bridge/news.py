"""What the core noticed, for the log: at most so much of each kind."""

from __future__ import annotations

import logging
from typing import Final

from bridge.core.outbox import Key
from bridge.core.tables import NoticeKind
from bridge.logs import RateLimit, printable

_log = logging.getLogger("bridge")

LEVELS: Final = {
    NoticeKind.ERA_REFUSED: logging.INFO,
    NoticeKind.SHARED_SESSION: logging.INFO,
    NoticeKind.AMBIGUOUS_LOG: logging.INFO,
}
"""Of kinds that are no warnings."""

BEGINNINGS: Final = (b"{", b"[")
BLANK: Final = b" \t\r\xef\xbb\xbf"
"""What may stand before a message in its line, a byte order mark among it."""

UNTOLD: Final = b"it begins like a message; --log-level debug shows it"


class News:
    """Logs what is mere news. Of each kind five at once and one a second; how many were dropped is said."""

    __slots__ = ("_limits",)

    def __init__(self) -> None:
        self._limits: dict[NoticeKind, RateLimit] = {}

    def tell(self, kind: NoticeKind, key: Key, detail: bytes, now: float) -> None:
        """Log one piece of news, or count it.

        Args:
            key: of the connection or the child it is about.
            detail: what a peer wrote.
            now: monotonic seconds.
        """
        limit = self._limits.get(kind)
        if limit is None:
            limit = self._limits[kind] = RateLimit(1.0, 5.0)
        dropped = limit.dropped
        if limit.allow(now):
            more = f" (and {dropped} more of this kind)" if dropped else ""
            level = LEVELS.get(kind, logging.WARNING)
            if not _log.isEnabledFor(logging.DEBUG):
                detail = without_body(kind, detail)
            _log.log(level, "%s%s: %s", kind.value, more, printable(detail), extra={"key": key})


def without_body(kind: NoticeKind, detail: bytes) -> bytes:
    """What may be told of `detail` in any log: what is in a message is for its peers alone.

    A client's line may be half a message, cut anywhere: what was wrong with it, which stands before it, is
    enough. What a server writes beside its messages shows what is wrong with the server.
    """
    if kind is NoticeKind.BAD_LINE:
        return detail.partition(b"\n")[0]
    if kind is NoticeKind.NOISE and detail.lstrip(BLANK).startswith(BEGINNINGS):
        return UNTOLD
    return detail
