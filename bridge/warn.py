"""Warnings of the first moments, which come before logging has been imported: kept, and logged after that."""

from __future__ import annotations

_kept: list[tuple[str, tuple[object, ...]]] | None = None


def warn(text: str, *args: object) -> None:
    """Log a warning of the bridge, as `logging` does, or keep it if `hold` was called."""
    if _kept is None:
        import logging

        logging.getLogger("bridge").warning(text, *args)
    else:
        _kept.append((text, args))


def hold() -> None:
    """Keep what is to be logged from now on."""
    global _kept
    _kept = []


def release() -> None:
    """Logging is set up: log what was kept, and all else at once."""
    global _kept
    kept, _kept = _kept or [], None
    for text, args in kept:
        warn(text, *args)
