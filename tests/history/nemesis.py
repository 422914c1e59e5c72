"""What befalls the server's processes from outside: they are killed, frozen and thawed, replaced.

A process is signalled only through a descriptor of its own (a pidfd), and only after its environment was
found to carry the mark of this run: a number that was reused meanwhile can hit nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tests.history.server import PATIENCE, next_delay, starts_of

MARK: Final = "HISTORY_MARK"
"""The environment variable by which the server's processes are known."""

FREEZES: Final = (0.05, 0.2, 0.6, 1.2)
"""For how long a process is frozen, in seconds. A client waits longer than the last."""


BACK: Final = (0.1, 0.3)
"""How long after its death, in seconds, the next process of an era is being started, more or less."""


@contextlib.contextmanager
def process(pid: int, mark: str) -> Iterator[int | None]:
    """A descriptor of a process of this run; None if there is no such process any more."""
    if pid <= 1:
        raise ValueError(f"{pid} is no server's process id")
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        yield None
        return
    try:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            environment = []
        yield descriptor if f"{MARK}={mark}".encode() in environment else None
    finally:
        os.close(descriptor)


class Nemesis:
    """Kills and freezes, at times and in ways that its random numbers say.

    Args:
        folder: where the server's processes log.
        mark: by which they are known.
        replace: has the bridge replace all of them.
        replacing: how often it does that, as a share of all it does.
    """

    def __init__(
        self, folder: Path, mark: str, rng: random.Random, replace: Callable[[], None], replacing: float
    ) -> None:
        self._lives = folder / "lives"
        self._mark = mark
        self._rng = rng
        self._replace = replace
        self._replacing = replacing
        self.kills = 0
        self.killed: set[int] = set()
        """Process ids."""
        self.replacements = 0
        self.freezes = 0

    async def run(self) -> None:
        """Until cancelled. Whoever is frozen is thawed then, too."""
        while True:
            await asyncio.sleep(self._rng.uniform(0.3, 1.2))
            living = self._living()
            if not living:
                continue
            era, pid = self._rng.choice(living)
            with process(pid, self._mark) as descriptor:
                if self._rng.random() < self._replacing:
                    if descriptor is not None and self._rng.random() < 0.5 and self._may_kill(era):
                        # So that it may be back when the new process of the other era is not ready yet.
                        self._kill(descriptor, pid)
                        await asyncio.sleep(self._rng.uniform(*BACK))
                    self._have_replaced()
                    continue
                if descriptor is None:
                    continue
                if self._rng.random() < 0.5:
                    if self._may_kill(era):
                        self._kill(descriptor, pid)
                else:
                    self.freezes += 1
                    send(descriptor, signal.SIGSTOP)
                    try:
                        await asyncio.sleep(self._rng.choice(FREEZES))
                        if self._rng.random() < 0.2 and self._may_kill(era):
                            self._kill(descriptor, pid)
                    finally:
                        send(descriptor, signal.SIGCONT)

    def _kill(self, descriptor: int, pid: int) -> None:
        self.kills += 1
        self.killed.add(pid)
        send(descriptor, signal.SIGKILL)

    def _have_replaced(self) -> None:
        self.replacements += 1
        with open(self._lives, "a", encoding="utf-8") as lives:
            lives.write(f"R\t-\t-\t{time.monotonic()}\n")
        self._replace()

    def _text(self) -> str:
        return self._lives.read_text(encoding="utf-8") if self._lives.exists() else ""

    def _living(self) -> list[tuple[str, int]]:
        """Era and pid of the newest process of each era."""
        lines = [line.split("\t") for line in self._text().splitlines()]
        pids = {line[1]: int(line[2]) for line in lines if line[0] == "S"}
        return list({line[2]: (line[2], pids[line[1]]) for line in lines if line[0] == "E"}.values())

    def _may_kill(self, era: str) -> bool:
        """A death that would cost everybody a long back-off is put off."""
        return era == "apart" or next_delay(starts_of(self._text(), era), time.monotonic()) <= PATIENCE


def send(descriptor: int, number: signal.Signals) -> None:
    """Signal the process of a descriptor; nothing happens if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(descriptor, number)
