"""Faults in the sharing of a legacy session, and in what isolates clients; see `breakages.py`."""

from __future__ import annotations

from typing import Final

from tests.history.breakage import Breakage, breakage

SHARING: Final[tuple[Breakage, ...]] = (
    breakage(
        "an update is told to every client of the session",
        "stray-update",
        (
            "core/resources.py",
            "            told.update(resource.holders)\n",
            "            told.update(tables.sessions)\n",
        ),
    ),
    breakage(
        "an update of a part is not told to who holds the whole",
        "lost-notification",
        ("core/resources.py", "                    yield table[known]\n", "                    pass\n"),
    ),
    breakage(
        "the first to unsubscribe ends it for all",
        "wrongly-unsubscribed",
        (
            "core/resources.py",
            "                done = bool(resource.holders)  #",
            "                done = False  #",
        ),
    ),
    breakage(
        "the first to leave ends its subscriptions for all",
        "wrongly-unsubscribed",
        (
            "core/resources.py",
            "        for resource in held:\n            self.advance(resource)",
            "        for resource in held:\n            if resource.question is None and self._desk.open:\n"
            "                self._ask(resource, False)\n            self.advance(resource)",
        ),
    ),
    breakage(
        "who joins a pending subscription is told that it is done",
        "wrong-outcome",
        (
            "core/resources.py",
            "            resource.joined[number] = waiter\n",
            "            self._hold(resource, client)\n            self._desk.grant(number, waiter)\n",
        ),
    ),
    breakage(
        "subscriptions are not replayed to the next process",
        "not-replayed",
        (
            "core/resources.py",
            "        for resource in list(self._table.values()):\n            self.advance(resource)\n\n"
            "    def writable",
            "\n    def writable",
        ),
    ),
    breakage(
        "holders are not told what they may have missed of a resource",
        "missed-change",
        (
            "core/resources.py",
            "            resource.missed = bool(resource.holders)",
            "            resource.missed = False",
        ),
    ),
    breakage(
        "one client's level counts for all",
        "stray-log",
        (
            "core/levels.py",
            "[client for client in self._hearers.values() if self.admits(client, params)]",
            "list(self._hearers.values())",
        ),
    ),
    breakage(
        "logs come to who never set a level",
        "stray-log",
        (
            "core/levels.py",
            "        hearers = [client for client in self._hearers.values() if self.admits(client, params)]",
            "        hearers = [client for client in tables.sessions.values()"
            " if client.key not in self._hearers or self.admits(client, params)]",
        ),
    ),
    breakage(
        "the level is not replayed to the next process",
        "not-replayed",
        (
            "core/levels.py",
            "        self._told = self._asked = self._question = None\n        joined",
            "        self._asked = self._question = None\n        joined",
        ),
    ),
    breakage(
        "the list of tasks names others'",
        "stray-task",
        (
            "core/tasks.py",
            "        return task is not None and task.client is client\n",
            "        return task is not None\n",
        ),
    ),
    breakage(
        "others reach a task by its name",
        "wrong-outcome broken-promise",
        (
            "core/tasks.py",
            "            if task is None or task.client is not client:",
            "            if task is None:",
        ),
    ),
    breakage(
        "a task's state is told to every client of the session",
        "stray-task",
        (
            "core/legacy.py",
            "                    tables.outbox.put(owner, message)\n",
            "                    for client in tables.sessions.values():\n"
            "                        tables.outbox.put(client, Raw(tables.codec_up.render(message)))\n",
        ),
    ),
    breakage(
        "a task's state is lost",
        "lost-notification",
        (
            "core/tasks.py",
            "            return True, None if task is None else task.client\n        raw",
            "            return True, None\n        raw",
        ),
    ),
    breakage(
        "the tasks of who leaves go on",
        "not-cancelled",
        (
            "core/tasks.py",
            "            if not task.over and not tables.stopping:",
            "            if False:",
        ),
    ),
    breakage(
        "a process asks another client than its own",
        "stray-request",
        (
            "core/pair_servers.py",
            "                pair.questions[id_key(id)] = id\n"
            "                tables.outbox.put(client, message)",
            "                pair.questions[id_key(id)] = id\n"
            "                tables.outbox.put(next(iter(self._pairs.values())).client, message)",
        ),
        sharing="isolated",
    ),
    breakage(
        "an isolated client's answers do not reach its process",
        "lost-question no-outcome",
        (
            "core/pair_clients.py",
            "            del pair.questions[id_key(id)]\n"
            "            self._tables.outbox.put(pair.child, message)",
            "            del pair.questions[id_key(id)]",
        ),
        sharing="isolated",
    ),
    breakage(
        "an isolated client outlives its process",
        "no-end no-outcome",
        (
            "core/isolated.py",
            "        del self._pairs[client.key]\n        tables.outbox.close(client)",
            "",
        ),
        sharing="isolated",
    ),
    breakage(
        "what an isolated client had asked of a dead process is not answered",
        "no-outcome",
        (
            "core/isolated.py",
            "            tables.refuse(client, asked.id, jsonrpc.SERVER_EXITED, text, "
            '"server_exited", delivered=True)\n',
            "            pass\n",
        ),
        sharing="isolated",
    ),
    breakage(
        "cancellations do not reach an isolated client's process",
        "not-cancelled after-cancel",
        (
            "core/pair_clients.py",
            "            tables.stats.cancels += 1\n            tables.outbox.put(pair.child, message)",
            "            tables.stats.cancels += 1",
        ),
        sharing="isolated",
    ),
    breakage(
        "a client that needs a process of its own shares",
        "wrong-process",
        (
            "core/sorting.py",
            "        return self._names.isdisjoint(declared)",
            "        return True",
        ),
        sharing="auto",
    ),
    breakage(
        "a client that needs no process of its own has one",
        "wrong-process",
        (
            "core/sorting.py",
            "        return self._names.isdisjoint(declared)",
            "        return False",
        ),
        sharing="auto",
    ),
)
