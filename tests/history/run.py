"""A bridge, rounds of traffic through it, and a judgement after each.

A round goes from a quiet bridge to a quiet bridge: nobody is connected, nothing is at the servers. Its
clients and its nemesis take their random numbers from the seed and the round's number, so that one round can
be run again alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
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

from tests.history.client import PATIENCE, Client, Stuck, connect
from tests.history.flavours import FLAVOURS, Flavour, opened, prober, sharer
from tests.history.judge import judge
from tests.history.nemesis import MARK, Nemesis
from tests.history.record import (
    Connection,
    History,
    Life,
    Received,
    Rules,
    Sample,
    Sent,
    Violation,
    parse_log,
)
from tests.support.bridge import ROOT, RunningBridge, marked_processes, running_bridge, server_command

OPTIONS: Final = (
    *("--max-in-flight", "40"),
    *("--linger", "2"),
    *("--client-buffer", "8MiB"),
    *("--max-request", "512KiB"),
    *("--max-message", "1MiB"),
    *("--max-children", "64"),
)
"""Small limits, so that they are met."""

TOGETHER: Final = 32
"""Clients at the same time."""

QUIET: Final = 8.0
"""How long the bridge has, in seconds, to become quiet after a round."""


@dataclass(frozen=True)
class Profile:
    """What to run."""

    seed: int
    requests: int = 20_000
    listen: Sequence[str] = ("unix", "tcp")
    per_round: int = 20_000
    sharing: str = "shared"
    only: int | None = None
    """Only this round."""
    package: Path = ROOT
    """The folder with the `bridge` package to run."""
    keep: Path | None = None
    """Where the history of a round with a violation is kept, pickled, for whoever looks into it."""
    replacing: float = 0.06
    """How often the nemesis has the servers replaced, as a share of all it does."""
    patience: float = PATIENCE
    """How long a client waits for what it is owed, in seconds."""


@dataclass
class Outcome:
    """What came of it."""

    requests: int = 0
    rounds: int = 0
    deaths: int = 0
    kills: int = 0
    freezes: int = 0
    replacements: int = 0
    received: int = 0
    seconds: float = 0.0
    peak: int = 0
    quiet: list[Sample] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)

    def __str__(self) -> str:
        rss = f"{self.quiet[0].rss >> 20} to {self.quiet[-1].rss >> 20}" if self.quiet else "?"
        fds = f"{self.quiet[0].descriptors} to {self.quiet[-1].descriptors}" if self.quiet else "?"
        return (
            f"{self.requests} requests in {self.rounds} rounds and {self.seconds:.0f} s, {self.received} "
            f"messages received, {self.deaths} server deaths ({self.kills} by the nemesis), "
            f"{self.freezes} freezes, {self.replacements} replacements, "
            f"memory {rss} MiB when quiet, {self.peak >> 20} at the peak, "
            f"descriptors {fds}: "
            f"{len(self.violations)} violations"
        )


class Observer:
    """Reads what the server's processes log, and what the bridge costs."""

    def __init__(self, folder: Path, bridge: RunningBridge) -> None:
        self._folder = folder
        self._bridge = bridge
        self._read = 0
        self._offsets: dict[str, int] = {}
        self.lives: dict[str, Life] = {}
        self.deaths = 0
        self.samples: list[Sample] = []

    def sample(self, *, quiet: bool = False) -> Sample:
        """Look at the bridge's process. Raises OSError if there is none any more."""
        proc = Path(f"/proc/{self._bridge.pid}")
        pages = int((proc / "statm").read_text().split()[1])
        descriptors = len(os.listdir(proc / "fd"))
        processes = len(marked_processes(self._bridge.mark)) if quiet else 0
        sample = Sample(time.monotonic(), pages * 4096, descriptors, processes, quiet)
        self.samples.append(sample)
        return sample

    def read(self) -> None:
        """Take what has been logged since the last time."""
        lives = self._folder / "lives"
        for line in lives.read_text(encoding="utf-8").splitlines() if lives.exists() else []:
            kind, name, *rest = line.split("\t")
            if kind == "S" and name not in self.lives and name not in self._offsets:
                self.lives[name] = Life(name, int(rest[0]), float(rest[1]))
                self._offsets[name] = 0
            elif kind == "E" and name in self.lives:
                self.lives[name].era = rest[0]
        for name, life in self.lives.items():
            # First whether it lives: what it logged before its death is then surely seen.
            if not life.dead and not alive(life.pid, self._bridge.mark):
                life.dead = True
                self.deaths += 1
            with open(self._folder / f"log.{name}", "rb") as log:
                log.seek(self._offsets[name])
                data = log.read()
            data = data[: data.rfind(b"\n") + 1]
            self._offsets[name] += len(data)
            life.events += parse_log(data.decode().splitlines())
            if not life.era:  # it may have settled on one since its line was looked for
                life.era = next((event.fields[0] for event in life.events if event.kind == "B"), "")

    def pending(self) -> int:
        """Requests and listens at living processes that nobody has ended."""
        count = 0
        for life in self.lives.values():
            if life.dead:
                continue
            open: set[str] = set()
            for event in life.events:
                if event.kind in "RL":
                    open.add(event.fields[0])
                elif event.kind in "ACWZ" and event.kind != "F":
                    open.discard(event.fields[0])
            count += len(open)
        return count

    def next_round(self) -> None:
        """Forget what has been judged."""
        for name in [name for name, life in self.lives.items() if life.dead]:
            del self.lives[name]
            os.unlink(self._folder / f"log.{name}")
        for life in self.lives.values():
            life.events = []
        self.samples = [sample for sample in self.samples if sample.quiet][:1]


def alive(pid: int, mark: str) -> bool:
    """Whether a process of this bridge with that number lives. A zombie does not."""
    try:
        return f"BRIDGE_TEST_MARK={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


class Round:
    """One round."""

    def __init__(self, profile: Profile, number: int, bridge: RunningBridge, observer: Observer) -> None:
        self._profile = profile
        self._bridge = bridge
        self._observer = observer
        self._rng = random.Random(f"{profile.seed}/{number}")
        self._stuck = Stuck(profile.patience)
        self._seats = asyncio.Semaphore(TOGETHER)
        rules = Rules(profile.sharing)
        self.history = History(number, rules, samples=observer.samples)

    def _client(self, era: str, address: str) -> Client:
        transport = address.partition(":")[0]
        number = len(self.history.connections)
        rng = random.Random(f"{self._profile.seed}/{self.history.round}/{number}")
        sharing = self._profile.sharing
        apart = sharing == "isolated" or (sharing == "auto" and era == "legacy" and rng.random() < 0.5)
        connection = Connection(number, transport, era, apart=apart)
        self.history.connections.append(connection)
        return Client(connection, rng, self.history.round, self._stuck)

    async def warm_up(self) -> None:
        """Make the server ready in both eras."""
        for era in ("modern", "legacy"):
            for address in self._bridge.addresses:
                client = self._client(era, address)
                if await connect(address, client):
                    await opened(client)
                    await client.send(*(client.call("big:250000") for _ in range(20)))
                    await client.settled()
                    await client.close(waited=True)

    async def traffic(self, requests: int) -> None:
        """The clients, each in its time."""
        tasks = []
        clients: list[Client] = []
        while sum(client.requests for client in clients) < requests:
            flavour = self._rng.choices([f for f, _ in FLAVOURS], [w for _, w in FLAVOURS])[0]
            era = self._rng.choices(("modern", "legacy"), (6, 4))[0]
            if flavour is sharer:
                era = "legacy"
            if self._rng.random() < 0.02:
                flavour, era = prober, "modern"
            # Where each client costs a process there are to be many of them all the same.
            share = self._rng.randrange(40, 400 if self._profile.sharing == "shared" else 120)
            await self._seats.acquire()
            address = self._rng.choice(self._bridge.addresses)
            client = self._client(era, address)
            clients.append(client)

            async def live(
                client: Client = client, flavour: Flavour = flavour, share: int = share, at: str = address
            ) -> None:
                try:
                    if await connect(at, client):
                        await flavour(client, share)
                finally:
                    self._seats.release()

            tasks.append(asyncio.create_task(live()))
            await asyncio.sleep(0)
            if self._bridge.process.poll() is not None or self._stuck.is_set():
                break
        await asyncio.gather(*tasks)

    async def quiesce(self) -> None:
        """Wait until the bridge and its servers have settled everything, as far as they do."""
        deadline = time.monotonic() + QUIET
        calm = 0
        fewest = min((s.descriptors for s in self._observer.samples if s.quiet), default=10**6)
        while True:
            self._observer.read()
            with contextlib.suppress(OSError):
                sample = self._observer.sample()
                if not self._observer.pending() and sample.descriptors <= fewest:
                    calm += 1
                    if calm > 1:  # what was cancelled last has been read, too
                        break
            if time.monotonic() > deadline or self._bridge.process.poll() is not None:
                break
            await asyncio.sleep(0.1)
        with contextlib.suppress(OSError):
            self._observer.sample(quiet=True)

    async def watch(self) -> None:
        """Look at the bridge now and then. Until cancelled."""
        while True:
            with contextlib.suppress(OSError):
                self._observer.sample()
            await asyncio.sleep(0.1)

    def replace(self) -> None:
        """Have the bridge replace the server's processes."""
        self._bridge.signal(signal.SIGHUP)

    def judge(self) -> list[Violation]:
        """What this round has shown."""
        history = self.history
        history.lives = list(self._observer.lives.values())
        text = self._bridge.stderr_text()
        own = [line for line in text.splitlines() if "[server]" not in line]
        history.faults = [line for line in own if "Traceback" in line or "fault of the bridge" in line][:3]
        if self._bridge.process.poll() is not None:
            history.faults.append(f"the bridge ended with {self._bridge.process.returncode}: {own[-3:]}")
        return judge(history)


async def run(profile: Profile, tell: Callable[[str], None] = lambda _: None) -> Outcome:
    """Run a profile to its end, or to the first round with a violation.

    Args:
        tell: is told what happens, a line at a time.
    """
    outcome = Outcome()
    begun = time.monotonic()
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="history-") as name:
        folder = Path(name)
        env = {
            "HISTORY_DIR": name,
            MARK: mark,
            "PYTHONPATH": str(profile.package),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = server_command("../history/server.py")
        try:
            async with running_bridge(
                *command,
                options=(*OPTIONS, "--sharing", profile.sharing),
                listen=list(profile.listen),
                env=env,
                cwd=profile.package,
            ) as bridge:
                await _rounds(profile, bridge, folder, mark, outcome, tell)
                if outcome.violations:
                    bridge.kill_all()
        except AssertionError as error:
            if not outcome.violations:
                outcome.violations.append(Violation("bridge-fault", str(error)))
    outcome.seconds = time.monotonic() - begun
    return outcome


async def _rounds(
    profile: Profile,
    bridge: RunningBridge,
    folder: Path,
    mark: str,
    outcome: Outcome,
    tell: Callable[[str], None],
) -> None:
    observer = Observer(folder, bridge)
    warm = Round(profile, 0, bridge, observer)
    await warm.warm_up()
    await warm.quiesce()
    outcome.violations += warm.judge()
    outcome.quiet.append(observer.samples[-1])
    observer.next_round()
    count = max(1, round(profile.requests / profile.per_round))
    numbers = [profile.only] if profile.only is not None else range(1, count + 1)
    for number in numbers:
        if outcome.violations:
            return
        each = Round(profile, number, bridge, observer)
        rng = random.Random(f"{profile.seed}/{number}/nemesis")
        nemesis = Nemesis(folder, mark, rng, each.replace, profile.replacing)
        helpers = [asyncio.create_task(nemesis.run()), asyncio.create_task(each.watch())]
        try:
            await each.traffic(min(profile.requests, profile.per_round))
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
        await each.quiesce()
        for life in observer.lives.values():
            life.killed = life.pid in nemesis.killed
        outcome.violations += each.judge()
        if outcome.violations and profile.keep is not None:
            profile.keep.write_bytes(pickle.dumps(each.history))
        outcome.rounds += 1
        outcome.kills += nemesis.kills
        outcome.freezes += nemesis.freezes
        outcome.replacements += nemesis.replacements
        outcome.deaths = observer.deaths
        outcome.peak = max(outcome.peak, *(sample.rss for sample in observer.samples))
        outcome.quiet.append(observer.samples[-1])
        for connection in each.history.connections:
            outcome.requests += sum(
                isinstance(event, Sent) and event.kind not in ("cancel", "note", "answer")
                for event in connection.events
            )
            outcome.received += sum(isinstance(event, Received) for event in connection.events)
        sample = outcome.quiet[-1]
        tell(
            f"round {number}: {outcome.requests} requests, {outcome.deaths} deaths, "
            f"{len(outcome.violations)} violations, {sample.rss >> 20} MiB, {sample.descriptors} descriptors"
        )
        observer.next_round()
