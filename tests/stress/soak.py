"""A long mixed load with a server's death a minute: does anything grow that nobody needs?

The load is the history checker's: both eras, subscriptions, cancellations, progress, slow and deaf readers,
clients that come and go, and each round is judged. Between rounds, when nobody is connected and nothing is at
the servers, memory and descriptors are looked at: what they do over the time is the result.
"""

from __future__ import annotations

import asyncio
import pickle
import random
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.history.nemesis import MARK, Nemesis, process, send
from tests.history.record import History, Sample, Sent, Violation
from tests.history.run import OPTIONS, Observer, Profile, Round
from tests.support.bridge import ROOT, running_bridge, server_command

PER_ROUND: Final = 4000
"""Requests between two looks at a quiet bridge."""

PATIENCE: Final = 180.0
"""How long a client waits for what it is owed, in seconds: half an hour on a busy machine has bad moments."""

WARM: Final = 0.2
"""The part of the samples that is the allocator's warming up: the slope is that of the others."""


class Reaper(Nemesis):
    """Kills one process at a time, regularly, and does nothing else.

    Args:
        every: seconds between two deaths.
    """

    def __init__(self, folder: Path, mark: str, rng: random.Random, every: float) -> None:
        super().__init__(folder, mark, rng, lambda: None, 0.0)
        self._every = every

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._every)
            living = self._living()
            if living:
                _, pid = self._rng.choice(living)
                with process(pid, self._mark) as descriptor:
                    if descriptor is not None:
                        self.kills += 1
                        send(descriptor, signal.SIGKILL)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line with the least squares through points; 0 if they do not say."""
    count = len(points)
    if count < 2:
        return 0.0
    x_mean = sum(x for x, _ in points) / count
    y_mean = sum(y for _, y in points) / count
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / spread if spread else 0.0


@dataclass
class Soaked:
    """What came of it."""

    requests: int = 0
    kills: int = 0
    deaths: int = 0
    peak: int = 0
    seconds: float = 0.0
    quiet: list[Sample] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)

    @property
    def settled(self) -> list[Sample]:
        """The samples behind the warming up."""
        return self.quiet[int(len(self.quiet) * WARM) :]

    @property
    def memory_slope(self) -> float:
        """KiB a minute."""
        return slope([(sample.at / 60, sample.rss / 1024) for sample in self.settled])

    @property
    def descriptor_slope(self) -> float:
        """Descriptors a minute."""
        return slope([(sample.at / 60, sample.descriptors) for sample in self.settled])

    def __str__(self) -> str:
        if not self.quiet:
            return f"nothing was measured: {len(self.violations)} violations"
        first, middle, last = self.quiet[0], self.settled[0], self.quiet[-1]
        kib = [sample.rss >> 10 for sample in (first, middle, last)]
        return (
            f"{self.seconds / 60:.1f} min, {self.requests} requests, {self.kills} kills "
            f"({self.deaths} deaths), {len(self.quiet)} looks at a quiet bridge: "
            f"memory {kib[0]} KiB at first, {kib[1]} warmed up, {kib[2]} at last, {self.peak >> 10} at the "
            f"peak, slope {self.memory_slope:+.1f} KiB/min; "
            f"descriptors {first.descriptors}, {middle.descriptors}, {last.descriptors}, "
            f"slope {self.descriptor_slope:+.3f}/min; {len(self.violations)} violations"
        )


def save(path: Path, log: str, history: History) -> None:
    """Keep what shows how a promise was broken."""
    path.write_bytes(pickle.dumps((log, history)))


async def soak(
    minutes: float,
    seed: int,
    *,
    every: float = 60.0,
    per_round: int = PER_ROUND,
    rounds: int = 10**6,
    listen: Sequence[str] = ("unix", "tcp"),
    package: Path = ROOT,
    keep: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Soaked:
    """Run the load so long, or until a promise is broken.

    Args:
        every: seconds between two kills.
        per_round: requests between two looks.
        rounds: looks at most.
        package: the folder with the `bridge` package to run.
        keep: where the bridge's log and the round's history go if a promise is broken.
        tell: is told now and then how it goes, in a line.
    """
    soaked = Soaked()
    begun = time.monotonic()
    mark = uuid.uuid4().hex
    profile = Profile(seed, per_round, listen, patience=PATIENCE)
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        env = {
            "HISTORY_DIR": name,
            # A death a minute and no more: several in a row would be a measurement of the back-off.
            "HISTORY_NO_DEATHS": "1",
            MARK: mark,
            "PYTHONPATH": str(package),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = server_command("../history/server.py")
        async with running_bridge(
            *command, options=OPTIONS, listen=list(listen), env=env, cwd=package
        ) as bridge:
            observer = Observer(folder, bridge)
            warm = Round(profile, 0, bridge, observer)
            await warm.warm_up()
            await warm.quiesce()
            soaked.violations += warm.judge()
            observer.next_round()
            reaper = Reaper(folder, mark, random.Random(seed), every)
            killing = asyncio.create_task(reaper.run())
            number = 0
            try:
                while time.monotonic() - begun < minutes * 60 and number < rounds:
                    number += 1
                    if soaked.violations:
                        break
                    each = Round(profile, number, bridge, observer)
                    watching = asyncio.create_task(each.watch())
                    try:
                        await each.traffic(per_round)
                    finally:
                        watching.cancel()
                        await asyncio.gather(watching, return_exceptions=True)
                    await each.quiesce()
                    soaked.violations += each.judge()
                    if soaked.violations and keep is not None:
                        save(keep, bridge.stderr_text(), each.history)
                    soaked.quiet.append(observer.samples[-1])
                    soaked.peak = max(soaked.peak, *(sample.rss for sample in observer.samples))
                    soaked.kills, soaked.deaths = reaper.kills, observer.deaths
                    soaked.seconds = time.monotonic() - begun
                    soaked.requests += sum(
                        isinstance(event, Sent) and event.kind not in ("cancel", "note")
                        for connection in each.history.connections
                        for event in connection.events
                    )
                    if number % 10 == 1:
                        tell(str(soaked))
                    observer.next_round()
            finally:
                killing.cancel()
                await asyncio.gather(killing, return_exceptions=True)
            if soaked.violations:
                bridge.kill_all()
    return soaked
