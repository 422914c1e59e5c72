"""The full-size loads: `python3 -m tests.stress NAME`; `--help` lists them.

It exits with 1 if a promise was broken. Run one at a time: what they measure is a whole machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tests import setup_parts


def tell(line: str) -> None:
    print(line, flush=True)


async def readers(options: argparse.Namespace) -> None:
    """16 clients that never read answers of 250 KB: below 300 MiB, and the others are answered."""
    from tests.stress.flow import Way, never_read

    for transport in ("unix", "tcp"):
        for era in ("modern", "legacy"):
            way = Way(transport, era)
            tell(f"{way}: {await never_read(way)}")


async def frozen(options: argparse.Namespace) -> None:
    """A frozen server and 16 clients that push requests of 200 KB: below 150 MiB, and nothing is lost."""
    from tests.stress.flow import Way, freeze

    for sharing in ("shared", "isolated"):
        for transport in ("unix", "tcp"):
            for era in ("modern", "legacy"):
                way = Way(transport, era, sharing)
                tell(f"{way}: {await freeze(way, requests=200 if sharing == 'shared' else 60)}")


async def turns(options: argparse.Namespace) -> None:
    """A flood beside a few requests, and cancellations: told by the order of what is forwarded."""
    from tests.stress.flow import Way, cancel_first, take_turns

    with tempfile.TemporaryDirectory() as name:
        for transport in ("unix", "tcp"):
            for era in ("modern", "legacy"):
                way = Way(transport, era)
                overtaken = await take_turns(way, Path(name), flood=400, quiet=12)
                tell(f"{way}: {overtaken} of 400 requests of a flood came before the last of 12 others")
                for sharing in ("shared", "isolated"):
                    way = Way(transport, era, sharing)
                    await cancel_first(way, Path(name))
                    tell(f"{way}: cancellations pass what waits")


async def faults(options: argparse.Namespace) -> None:
    """An exception in each place where the event loop calls the bridge."""
    from tests.stress.faults import everything

    wrong = await everything(tell)
    assert not wrong, f"{len(wrong)} went wrong"


async def connects(options: argparse.Namespace) -> None:
    """100,000 clients that come and go in every way: the same descriptors, memory within 2 MiB."""
    from tests.stress.connects import connects

    tell(str(await connects(options.count, warm_up=5000)))


async def soak(options: argparse.Namespace) -> None:
    """30 minutes of mixed load with a server's death a minute: the slope of memory and descriptors."""
    from tests.stress.soak import soak

    soaked = await soak(options.minutes, options.seed, tell=tell)
    tell(str(soaked))
    for violation in soaked.violations[:50]:
        tell(f"VIOLATION {violation}")
    assert not soaked.violations
    assert not soaked.descriptor_slope


LOADS: dict[str, Callable[[argparse.Namespace], Coroutine[Any, Any, None]]] = {
    load.__name__: load for load in (readers, frozen, turns, faults, connects, soak)
}


def main() -> None:
    setup_parts.need_the_environment("tests.stress", "uvloop", "msgspec")
    names = "\n".join(f"  {name:9} {load.__doc__}" for name, load in LOADS.items())
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.stress",
        description=names,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=LOADS)
    parser.add_argument("--count", type=int, default=100_000, help="connects [%(default)s]")
    parser.add_argument("--minutes", type=float, default=30.0, help="of the soak [%(default)s]")
    parser.add_argument("--seed", type=int, default=1, help="of the soak [%(default)s]")
    options = parser.parse_args()
    begun = time.monotonic()
    try:
        asyncio.run(LOADS[options.name](options))
    except AssertionError as error:
        raise SystemExit(f"{options.name}: {error}") from None
    tell(f"{options.name}: as promised, in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
