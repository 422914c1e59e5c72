"""Faults of the bridge that the checker must find: the check of the checker.

    .venv/bin/python -m tests.history.breakages [--seeds 5] [--only NAME ...]

Each is a replacement of text in a copy of the package. A text that does not stand there exactly once is an
error: then the code has changed, and the fault must be put in anew. Only what is found by a rule that it
breaks is found.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import uvloop

from tests.history.breakage import Breakage
from tests.history.breakage import breakage as _breakage
from tests.history.breakages_sharing import SHARING
from tests.history.run import Profile, run
from tests.support.bridge import ROOT

REQUESTS: Final = 20_000
"""As in the normal test run, in rounds that are judged one by one, so that what is found is found soon."""
APART_REQUESTS: Final = 5_000
"""Where each client has a process of its own."""
PER_ROUND: Final = 5_000
OFTEN: Final = 0.5
"""Of all that befalls the servers, where a fault shows only when they are replaced."""
PATIENCE: Final = 10.0
"""Where something is surely broken nobody need wait for long."""


BREAKAGES: Final = (
    _breakage(
        "a cancelled request's late answer is delivered",
        "after-cancel",
        (
            "core/tables.py",
            "        if client.inflight.pop(upstream_id, None) is None:\n",
            "        if client.inflight.get(upstream_id) is None:\n",
        ),
        (
            "core/tables.py",
            "entry.client.inflight.pop(upstream_id, None)\n        del child.inflight[upstream_id]\n",
            "entry.client.inflight.get(upstream_id)\n",
        ),
    ),
    _breakage(
        "what a client leaves behind is not cancelled",
        "not-cancelled",
        (
            "core/downstream.py",
            "            tables.give_up(client, upstream_id, LEFT)",
            "            [child.inflight.pop(upstream_id, None) for child in tables.children.values()]",
        ),
    ),
    _breakage(
        "a cancellation ends every client's request with that id",
        "wrongly-cancelled",
        (
            "core/downstream.py",
            "        mine = [number for number, asked in client.inflight.items() if id_key(asked) == key]\n",
            "        mine = [(other, number) for other in tables.clients.values()"
            " for number, asked in other.inflight.items() if id_key(asked) == key]\n",
        ),
        (
            "core/downstream.py",
            "        for number in mine:\n            tables.give_up(client, number, rest)\n",
            "        for other, number in mine:\n            tables.give_up(other, number, rest)\n",
        ),
    ),
    _breakage(
        "1 and the string 1 are one id",
        "wrongly-cancelled no-outcome",
        (
            "core/inflight.py",
            "return (Raw, bytes(id)) if type(id) is Raw else (type(id), id)",
            "return (str, str(id))",
        ),
    ),
    _breakage(
        "ids come back as strings",
        "wrong-id",
        (
            "core/upstream.py",
            "message.id = ids.pop(number)",
            "message.id = str(ids.pop(number))",
        ),
    ),
    _breakage(
        "answers go to the client that came last",
        "foreign-response",
        (
            "core/upstream.py",
            "                    out = client.out  # who is closing has nothing in flight\n",
            "                    client = next(reversed(self._tables.clients.values()))\n"
            "                    out = client.out\n",
        ),
    ),
    _breakage(
        "who is told what others are told gets another's answers, too",
        "foreign-response",
        (
            "core/outbox.py",
            "                    piece = common_piece\n",
            "                    pass\n",
        ),
    ),
    _breakage(
        "a second answer is delivered, too",
        "two-outcomes",
        (
            "core/upstream.py",
            "                entry = pop(number, None)  #",
            "                entry = inflight.get(number)  #",
        ),
        (
            "core/upstream.py",
            "message.id = ids.pop(number)",
            "message.id = _SEEN.setdefault(number, ids.pop(number, None))",
        ),
        (
            "core/upstream.py",
            'LOG: Final = "notifications/message"\n',
            'LOG: Final = "notifications/message"\n_SEEN = {}\n',
        ),
    ),
    _breakage(
        "a response with both result and error is passed on",
        "wrong-outcome",
        (
            "core/upstream.py",
            "                if (message.result is UNSET) is (message.error is UNSET):\n",
            "                if False:\n",
        ),
    ),
    _breakage(
        "a dead server's last line counts only with its newline",
        "lost-answer",
        (
            "core/router.py",
            "        self._upstream.finish(child)\n        tables.stats.children_closed",
            "        tables.stats.children_closed",
        ),
    ),
    _breakage(
        "what waited is sent twice",
        "ran-twice",
        (
            "core/downstream.py",
            "                self._pass(client, child, message, item.id, item.method, meta, queue",
            "                self._send(client, child, self._decoded(item), meta)\n"
            "                self._pass(client, child, message, item.id, item.method, meta, queue",
        ),
    ),
    _breakage(
        "what waits is lost when the server dies",
        "no-outcome",
        (
            "core/router.py",
            "        self._subscriptions.child_closed(child)\n",
            "        self._subscriptions.child_closed(child)\n"
            "        for queue in list(tables.waiting[era].values()) if era else ():\n"
            "            self._waiting.drop(queue)\n            self._waiting.after(queue)\n",
        ),
    ),
    _breakage(
        "what was at the dead server is refused as never delivered",
        "broken-promise wrong-outcome",
        (
            "core/router.py",
            '                    "server_exited",\n                    delivered=True,',
            '                    "server_exited",\n                    delivered=False,',
        ),
    ),
    _breakage(
        "notifications overtake requests of their client that wait",
        "order",
        (
            "core/downstream.py",
            "        if child is not None and era not in client.waiting and not child.blocked:\n"
            "            self._send_notification(",
            "        if child is not None and not child.blocked:\n            self._send_notification(",
        ),
    ),
    _breakage(
        "upstream ids start anew with each process",
        "reused-upstream-id",
        (
            "core/router.py",
            "        tables.stats.children_opened += 1\n",
            "        tables.stats.children_opened += 1\n        tables.last_id = 0\n",
        ),
    ),
    _breakage(
        "a CR is passed on",
        "server-saw",
        ("core/codec.py", 'line = line.replace(b"\\r", b" ").strip(_BLANK)', "line = line.strip(_BLANK)"),
    ),
    _breakage(
        "progress goes to some client",
        "stray-progress",
        (
            "core/upstream.py",
            "                report.token = token\n",
            "                stranger = next(iter(self._tables.clients.values()))\n"
            "                their = stranger.out\n"
            "                if not their:\n"
            "                    touched.append(stranger)\n"
            "                report.token = token\n",
        ),
        (
            "core/upstream.py",
            "        params[PROGRESS_TOKEN] = token\n        self._tables",
            "        client = next(iter(self._tables.clients.values()))\n"
            "        params[PROGRESS_TOKEN] = token\n        self._tables",
        ),
    ),
    _breakage(
        "progress carries the bridge's token",
        "wrong-id",
        ("core/upstream.py", "                report.token = token\n", ""),
        (
            "core/upstream.py",
            "        params[PROGRESS_TOKEN] = token\n        self._tables",
            "        self._tables",
        ),
    ),
    _breakage(
        "progress is sometimes dropped",
        "lost-progress",
        (
            "core/upstream.py",
            "        if entry is None or entry.token is None:\n",
            "        if entry is None or entry.token is None or upstream_id % 5 == 0:\n",
        ),
        (
            "core/upstream.py",
            "            elif reports and number is UNSET and (report := message.params):\n",
            "            elif message.params and message.params.token % 5 == 0:\n"
            "                continue\n"
            "            elif reports and number is UNSET and (report := message.params):\n",
        ),
    ),
    _breakage(
        "a log message goes to all who could own it",
        "stray-log",
        (
            "core/upstream.py",
            "if len(possible) == 1 or (tables.limits.broadcast_logs and possible):",
            "if possible:",
        ),
    ),
    _breakage(
        "a legacy change is told to everybody",
        "stray-notification",
        (
            "core/legacy.py",
            "tables.outbox.put_to_all(tables.initialized.values(), line)",
            "tables.outbox.put_to_all(tables.clients.values(), line)",
        ),
    ),
    _breakage(
        "listens that ask for different resources are shared",
        "stray-subscription altered",
        (
            "core/listens.py",
            "    uris = encoder.encode(sorted(set(wanted.resourceSubscriptions)))",
            '    uris = b""',
        ),
    ),
    _breakage(
        "notifications come before the acknowledgement",
        "unacknowledged",
        (
            "core/subscriptions.py",
            "        if share.state is not State.OPEN:  # the acknowledgement comes first, always",
            "        if False:",
        ),
    ),
    _breakage(
        "only the first holder is notified",
        "lost-notification",
        (
            "core/subscriptions.py",
            "        for holder in share.holders.values():\n            fan.send(holder)",
            "        for holder in list(share.holders.values())[:1]:\n            fan.send(holder)",
        ),
    ),
    _breakage(
        "a subscription outlives its last holder",
        "not-cancelled",
        (
            "core/subscriptions.py",
            "        if not holder.share.holders:\n            self._close(child, holder.share, rest)",
            "        if not holder.share.holders:\n            self._drop(holder.share, child)",
        ),
    ),
    _breakage(
        "a holder that leaves ends the subscription for all",
        "wrongly-cancelled lost-notification",
        (
            "core/subscriptions.py",
            "        if not holder.share.holders:\n            self._close(child, holder.share, rest)",
            "        if not holder.share.holders:\n            self._close(child, holder.share, rest)\n"
            "        elif child is not None and holder.share.upstream_id:\n"
            "            self._tables.cancel(child, holder.share.upstream_id, rest)",
        ),
    ),
    _breakage(
        "holders are not told what they may have missed",
        "missed-change",
        (
            "core/subscriptions.py",
            "                self._changed(holder, granted_before)\n",
            "                pass\n",
        ),
    ),
    _breakage(
        "a client that stops sending is closed at once",
        "half-close-lost",
        (
            "core/tables.py",
            "if client.eof_at is not None and client.idle:",
            "if client.eof_at is not None:",
        ),
    ),
    _breakage(
        "a client that stops sending is never closed",
        "no-end",
        (
            "core/tables.py",
            "            self.lingering.pop(client.key, None)\n            self.outbox.close(client)",
            "            self.lingering.pop(client.key, None)",
        ),
    ),
    _breakage(
        "what the server wrote is kept for ever",
        "memory",
        (
            "core/upstream.py",
            "        child.wrote = True\n",
            "        child.wrote = True\n        kept.append(data * 12)\n",
        ),
        (
            "core/upstream.py",
            'LOG: Final = "notifications/message"\n',
            'LOG: Final = "notifications/message"\nkept = []\n',
        ),
    ),
    _breakage(
        "a replaced process is stopped while it owes answers",
        "lost-request",
        (
            "core/swap.py",
            "                if busy and tables.now < seat.drain_until:\n",
            "                if False:\n",
        ),
        replacing=OFTEN,
    ),
    _breakage(
        "a server that comes back during a replacement is stopped with the old ones",
        "wrongly-cancelled",
        ("core/swap.py", " and not self.adopt()\n", "\n"),
        replacing=OFTEN,
    ),
    _breakage(
        "subscriptions stay at the replaced process",
        "not-cancelled lost-notification missed-change no-outcome",
        ("core/seats.py", "            self._subscriptions.move(old, REPLACED)\n", ""),
        replacing=OFTEN,
    ),
    _breakage(
        "the descriptor of each server process stays open",
        "descriptors",
        (
            "process.py",
            "        os.close(self._pidfd)\n",
            "",
        ),
    ),
    *SHARING,
)


class DoesNotApply(Exception):
    """The code that a breakage changes has changed."""


@contextmanager
def broken(breakage: Breakage | None) -> Iterator[Path]:
    """A folder with a copy of the package, and the fault in it (None: no fault)."""
    with tempfile.TemporaryDirectory(prefix="broken-") as name:
        folder = Path(name)
        shutil.copytree(ROOT / "bridge", folder / "bridge", ignore=shutil.ignore_patterns("__pycache__"))
        for file, old, new in breakage.edits if breakage is not None else ():
            path = folder / "bridge" / file
            text = path.read_text(encoding="utf-8")
            if text.count(old) != 1:
                assert breakage is not None
                raise DoesNotApply(f"{breakage.name!r}: {text.count(old)} times in bridge/{file}: {old!r}")
            path.write_text(text.replace(old, new), encoding="utf-8")
        yield folder


def find(breakage: Breakage, seed: int) -> tuple[bool, str]:
    """Run the short profile on a broken copy: whether it was found by what it breaks, and by what."""
    with broken(breakage) as folder:
        outcome = uvloop.run(
            run(
                Profile(
                    seed,
                    REQUESTS if breakage.sharing == "shared" else APART_REQUESTS,
                    per_round=PER_ROUND,
                    sharing=breakage.sharing,
                    package=folder,
                    patience=PATIENCE,
                    replacing=breakage.replacing,
                )
            )
        )
    rules = {violation.rule for violation in outcome.violations}
    return bool(rules & breakage.rules), ", ".join(sorted(rules)) or "nothing"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog=".venv/bin/python -m tests.history.breakages", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, default=5, help="four of five must find each [%(default)s]")
    parser.add_argument("--only", nargs="*", help="names, or parts of them")
    options = parser.parse_args()
    missed = 0
    for breakage in BREAKAGES:
        if options.only and not any(part in breakage.name for part in options.only):
            continue
        begun = time.monotonic()
        results: list[tuple[bool, str]] = []
        found, wanted = 0, math.ceil(options.seeds * 0.8)
        for seed in range(1, options.seeds + 1):
            results.append(find(breakage, seed))
            found = sum(result for result, _ in results)
            if found == wanted or len(results) - found > options.seeds - wanted:
                break  # the others would change nothing
        enough = found >= wanted
        missed += not enough
        how = next(text for hit, text in results if hit) if enough else [text for _, text in results]
        seconds = time.monotonic() - begun
        verdict = "found " if enough else "MISSED"
        print(f"{verdict} {found}/{len(results)}  {breakage.name} ({seconds:.0f} s)  by {how}", flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
