"""No callback that fails costs more than the client it failed for."""

from __future__ import annotations

from pathlib import Path

from tests.stress.entries import Source
from tests.stress.faults import (
    APART,
    DEADLY,
    ENDING,
    EXCUSED,
    SHARED,
    SLOW,
    STUBBORN,
    faulty,
    meet_all,
)
from tests.support.bridge import ROOT

QUICK = (
    "acceptor:Acceptor.accept",
    "client:ClientConnection._lost",
    "client:ClientConnection.connection_made",
    "client:ClientConnection.data_received",
    "client:ClientConnection.eof_received",
    "client:ClientConnection._hung_up",
    "hub:Hub._tick",
    "hub:Hub.client_lost",
    "supervisor:Supervisor._spawn",
    "supervisor:Supervisor.child_ended",
    "child:Child._begin",
    "child:Child._exit_seen",
    "child:Child.stop",
)
"""What each kind of guard is for; `python3 -m tests.stress faults` tries all of them."""


def test_every_entry_from_the_event_loop_is_tried_or_excused() -> None:
    """A new callback must not be forgotten: it needs a stimulus in faults.py, or a reason there."""
    source = Source(ROOT / "bridge")
    tried = {*SHARED, *SLOW, *DEADLY, *STUBBORN, *APART, *ENDING}
    assert source.unresolved == []
    assert set(source.entries) - tried - set(EXCUSED) == set()
    assert tried - set(source.entries) == set()
    assert set(EXCUSED) - set(source.entries) == set()
    assert not tried & set(EXCUSED)


def test_the_faults_go_into_every_entry(tmp_path: Path) -> None:
    with faulty() as folder:
        text = "".join(path.read_text(encoding="utf-8") for path in (folder / "bridge").glob("*.py"))
    for entry in {*SHARED, *SLOW, *DEADLY, *STUBBORN, *APART, *ENDING}:
        assert text.count(f'_fault("{entry}")') == 1, entry


async def test_an_exception_in_a_callback_harms_one_client_at_most() -> None:
    """Hazard 87: everybody else is served on, and the same thing works the next time."""
    chosen = {entry: SHARED[entry] for entry in QUICK}
    with faulty() as folder:
        assert await meet_all(folder, chosen) == []
