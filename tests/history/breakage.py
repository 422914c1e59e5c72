"""What a fault of the bridge is that the checker must find; see `breakages.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Breakage:
    """One fault: in `file`, `old` becomes `new`. `rules`: what it must be found by, at least one of them.

    `sharing`: how the bridge must be started for it to show. `replacing`: how often its servers must be
    replaced meanwhile, see `Nemesis`.
    """

    name: str
    rules: frozenset[str]
    edits: tuple[tuple[str, str, str], ...]
    sharing: str = "shared"
    replacing: float = 0.06


def breakage(
    name: str,
    rules: str,
    *edits: tuple[str, str, str],
    sharing: str = "shared",
    replacing: float = 0.06,
) -> Breakage:
    """A fault, its rules as words."""
    return Breakage(name, frozenset(rules.split()), edits, sharing, replacing)
