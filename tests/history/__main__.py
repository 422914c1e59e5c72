"""The long profile: `python3 -m tests.history --requests 1000000 --seed N --listen unix|tcp`.

It exits with 1 if a promise was broken, and says which; the same seed with `--round K` runs that round alone.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from tests import setup_parts


def main() -> None:
    setup_parts.need_the_environment("tests.history", "uvloop", "msgspec")
    # Only now: they need the environment.
    import uvloop

    from tests.history.run import Profile, run

    parser = argparse.ArgumentParser(prog="python3 -m tests.history", description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=20_000, help="at least so many [%(default)s]")
    parser.add_argument("--seed", type=int, help="[a new one]")
    parser.add_argument("--listen", choices=("unix", "tcp", "both"), default="both", help="[%(default)s]")
    parser.add_argument(
        "--sharing", choices=("shared", "auto", "isolated"), default="shared", help="[%(default)s]"
    )
    parser.add_argument("--round", type=int, help="only this round")
    parser.add_argument(
        "--replacing",
        type=float,
        default=0.06,
        help="share of replacements (SIGHUP) in what befalls the servers [%(default)s]",
    )
    parser.add_argument("--keep", type=Path, help="where the history of a bad round is kept, pickled")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(10**6)
    listen = ("unix", "tcp") if options.listen == "both" else (options.listen,)
    begun = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - begun:7.1f} s  {line}", flush=True)

    tell(f"seed {seed}")
    profile = Profile(
        seed,
        options.requests,
        listen,
        sharing=options.sharing,
        only=options.round,
        keep=options.keep,
        replacing=options.replacing,
    )
    outcome = uvloop.run(run(profile, tell))
    for violation in outcome.violations[:50]:
        tell(f"VIOLATION {violation}")
    tell(f"seed {seed}: {outcome}")
    sys.exit(1 if outcome.violations else 0)


if __name__ == "__main__":
    main()
