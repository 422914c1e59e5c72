"""Legacy tasks: which client's request made which task of the shared server.

Owns the names of the tasks of one child. A task is its maker's alone: for anybody else it
does not exist. It is forgotten with its client or its child, or when its client makes
too many.

Spec: 2025-11-25 basic/utilities/tasks.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from bridge.core.inflight import Child, Client, Entry
from bridge.core.jsonrpc import (
    INVALID_PARAMS,
    INVALID_RESPONSE,
    OVERLOADED,
    Call,
    Id,
    Message,
    decode_members,
    encoder,
    request_line,
)
from bridge.core.tables import Tables

RELATED: Final = "io.modelcontextprotocol/related-task"
STATUS: Final = "notifications/tasks/status"
TASKS_CANCEL: Final = "tasks/cancel"
TASKS_LIST: Final = "tasks/list"
NAMING: Final = frozenset({"tasks/get", "tasks/result", TASKS_CANCEL})
"""Requests about one task, which is named by `params.taskId`."""

# Servers keep tasks for minutes or hours and say so; a client that makes more in that time
# loses the oldest that are over, and is refused another while none is.
MAX_OF_CLIENT: Final = 256
MAX_IN_ALL: Final = 16384

LONGEST_NAME: Final = 1024
"""A task's name is kept, in bytes of UTF-8 or a little less."""

OVER: Final = frozenset({"completed", "failed", "cancelled"})
"""States in which a task does nothing any more."""


class Interest(enum.Enum):
    """What is to be looked for in a response."""

    MAKES = "a task that the server may have made"
    LISTS = "tasks of others"
    NAMES = "the state of a task"


class Task(Struct, gc=False):
    """One task. `gc=False`: taken out of every table by name."""

    name: str
    child: Child
    client: Client
    upstream_id: int
    token: Raw | None
    """The progress token of the request that made it: it lives on with the task."""
    over: bool = False


class _State(Struct):
    taskId: str
    status: str = ""


class _Made(Struct):
    task: _State


class _Listed(Struct):
    taskId: str


class _Related(Struct):
    taskId: str


_decode_text: Final = msgspec.json.Decoder(str).decode
_decode_state: Final = msgspec.json.Decoder(_State).decode
_decode_made: Final = msgspec.json.Decoder(_Made).decode
_decode_listed: Final = msgspec.json.Decoder(_Listed).decode
_decode_related: Final = msgspec.json.Decoder(_Related).decode
_decode_items: Final = msgspec.json.Decoder(list[Raw]).decode


class Tasks:
    """Says whose a task is."""

    __slots__ = ("_tables", "count")

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.count = 0
        """Of all clients together."""

    # -- clients -------------------------------------------------------------------

    def refuses(self, client: Client, child: Child, message: Call, id: Id, method: str) -> bool:
        """Refuse what names another's task, or would make one too many; return whether it was refused."""
        params = message.params
        if method in NAMING:
            raw = params.get("taskId") if type(params) is dict else None
            task = self._named(child, raw)
            if task is None or task.client is not client:
                text = "this client has no such task"
                self._tables.refuse(client, id, INVALID_PARAMS, text, "unknown_task")
                return True
        elif type(params) is dict and "task" in params and child.tasks is not None:
            own = client.tasks
            if len(own) >= MAX_OF_CLIENT or self.count >= MAX_IN_ALL:
                old = next((task for task in own.values() if task.over), None)
                if old is None:
                    text = "too many tasks of this client are not over"
                    self._tables.refuse(client, id, OVERLOADED, text, "too_many_tasks")
                    return True
                self._forget(old)
        return False

    def interest(self, child: Child, message: Call, method: str) -> Interest | None:
        """What is to be looked for in the response to a request that is passed on."""
        if method in NAMING:
            return Interest.NAMES
        if method == TASKS_LIST:
            return Interest.LISTS
        params = message.params
        if child.tasks is not None and type(params) is dict and "task" in params:
            return Interest.MAKES
        return None

    def left(self, client: Client) -> None:
        """A client is gone: its tasks are given up, since nobody else may ever know of them."""
        tables = self._tables
        for task in list(client.tasks.values()):
            self._forget(task)
            if not task.over and not tables.stopping:
                # Nobody waits for the answer, so nothing is kept for it: a server may never give it.
                line = bytes(request_line(tables.mint(), TASKS_CANCEL, {"taskId": task.name}))
                tables.outbox.put(task.child, Raw(tables.codec_up.unmark(line)))

    # -- the server ----------------------------------------------------------------

    def closed(self, child: Child) -> None:
        """A child is gone, and its tasks with it."""
        for task in list((child.tasks or {}).values()):
            self._forget(task)

    def answered(
        self, child: Child, interest: Interest, upstream_id: int, entry: Entry, message: Message
    ) -> None:
        """Look into a response that is about to go to its client."""
        assert entry.client is not None
        if message.result is UNSET:
            return
        if interest is Interest.LISTS:
            self._filter(child, entry.client, message)
        elif interest is Interest.NAMES:
            try:
                self._note(child, _decode_state(message.result))
            except (msgspec.DecodeError, RecursionError):
                return  # a result of the task's own, say
        else:
            try:
                made = _decode_made(message.result).task
            except (msgspec.DecodeError, RecursionError):
                return  # the server did it at once
            self._make(child, entry.client, upstream_id, entry.token, made)

    def _make(self, child: Child, client: Client, upstream_id: int, token: Raw | None, made: _State) -> None:
        tasks = child.tasks
        assert tasks is not None
        if made.taskId in tasks or len(made.taskId) > LONGEST_NAME:
            return  # the first one owns it
        task = Task(made.taskId, child, client, upstream_id, token)
        if not client.tasks:
            client.tasks = {}
        tasks[task.name] = client.tasks[upstream_id] = task
        if token is not None:
            child.task_tokens[upstream_id] = task
        self.count += 1
        self._note(child, made)

    def _note(self, child: Child, state: _State) -> None:
        task = (child.tasks or {}).get(state.taskId)
        if task is not None and state.status in OVER:
            task.over = True
            child.task_tokens.pop(task.upstream_id, None)

    def _forget(self, task: Task) -> None:
        assert task.child.tasks is not None
        del task.child.tasks[task.name]
        del task.client.tasks[task.upstream_id]
        task.child.task_tokens.pop(task.upstream_id, None)
        self.count -= 1

    def _filter(self, child: Child, client: Client, message: Message) -> None:
        """Leave a client's own tasks in a page of all."""
        tables = self._tables
        members = decode_members(message.result) or {}  # type: ignore[arg-type]  # it is set
        try:
            items = _decode_items(members["tasks"])
            own = [item for item in items if self._is_own(child, client, item)]
        except (KeyError, msgspec.DecodeError, RecursionError):
            tables.stats.invalid_responses += 1
            data = {"source": "mcp-bridge", "reason": "invalid_response", "delivered": True}
            text = "the server's list of tasks could not be read"
            message.result = UNSET
            message.error = Raw(encoder.encode({"code": INVALID_RESPONSE, "message": text, "data": data}))
            return
        members["tasks"] = Raw(encoder.encode(own))
        message.result = Raw(encoder.encode(members))

    def _is_own(self, child: Child, client: Client, item: Raw) -> bool:
        task = (child.tasks or {}).get(_decode_listed(item).taskId)
        return task is not None and task.client is client

    def _named(self, child: Child, raw: Raw | None) -> Task | None:
        if raw is None or child.tasks is None:
            return None
        try:
            return child.tasks.get(_decode_text(raw))
        except msgspec.DecodeError:
            return None

    # -- notifications -------------------------------------------------------------

    def owner(self, child: Child, method: str, params: dict[str, Raw]) -> tuple[bool, Client | None]:
        """Whether a notification belongs to a task, and to whose; None: to nobody's that is known."""
        if method == STATUS:
            task = self._named(child, params.get("taskId"))
            if task is not None:
                status = params.get("status", Raw(b'""'))
                self._note(child, _State(task.name, _text(status)))
            return True, None if task is None else task.client
        raw = params.get("_meta")
        meta = None if raw is None else decode_members(raw)
        if meta is None or RELATED not in meta:
            return False, None
        try:
            name = _decode_related(meta[RELATED]).taskId
        except msgspec.DecodeError:
            return True, None
        task = (child.tasks or {}).get(name)
        return True, None if task is None else task.client


def _text(raw: Raw) -> str:
    try:
        return _decode_text(raw)
    except msgspec.DecodeError:
        return ""
