"""Where the event loop calls the bridge: found in the source, not listed by hand.

An entry is a function that the loop, or one of the bridge's own callbacks from it, calls with nobody above
who would notice that it failed:

* a method of a transport's protocol (`data_received`, `connection_lost`, ...);
* what is given to `call_soon`, `call_later`, `add_reader`, `add_signal_handler`, `create_task`,
  `add_done_callback` and the like, to a watch, to a server as its factory of protocols, or to `insist`;
* what a child, a client or a pool tells its owner (the `...Owner` protocols).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SKIPPED: Final = ("connect.", "demo", "cli.", "insist.", "signals.", "guard.", "__")
"""Modules whose code runs in other processes, or before there is a loop; and the guard itself."""

TRANSPORTS: Final = frozenset(
    {"connection_made", "data_received", "eof_received", "connection_lost", "pause_writing", "resume_writing"}
)

TAKERS: Final = {
    "call_soon": 0,
    "call_soon_threadsafe": 0,
    "call_later": 1,
    "call_at": 1,
    "add_reader": 1,
    "add_signal_handler": 1,
    "add": 1,
    "add_done_callback": 0,
    "create_task": 0,
    "watch": 1,
    "ExitWatch": 2,
    "create_server": 0,
    "create_unix_server": 0,
}
"""Which argument of a call is a callback (or a coroutine, or a factory)."""


KNOWN: Final = {
    "self._lines.feed": "outputs:StderrLines.feed",
    "self._callback": "child:Child._exit_seen",
    "self._go_on": "pool:Pool._go_on",
    "self._ends.discard": "",
}
"""What cannot be told from the text, and which function it is; empty: none of ours."""


@dataclass(frozen=True)
class Function:
    """One function of the package."""

    file: str
    owner: str
    """Its class; empty if it has none."""
    name: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.owner + '.' if self.owner else ''}{self.name}"


class Source:
    """The package's functions, and which of them are entries."""

    def __init__(self, package: Path) -> None:
        self.trees: dict[str, ast.Module] = {}
        self.functions: list[Function] = []
        self.entries: dict[str, Function] = {}
        self.unresolved: list[str] = []
        self._told: set[str] = set()
        self._guards: set[Function] = set()
        """They do nothing but `insist` on another function, which is the entry then."""
        for path in sorted(package.glob("*.py")):
            if path.name.startswith(SKIPPED):
                continue
            tree = self.trees[path.stem] = ast.parse(path.read_text(encoding="utf-8"))
            for owner, node in _functions(tree):
                function = Function(path.stem, owner, node.name, node.lineno)
                self.functions.append(function)
                last = node.body[-1]
                if len(node.body) == 1 and ast.unparse(last).startswith("insist("):
                    self._guards.add(function)
        for file, tree in self.trees.items():
            self._protocols(file, tree)
        for file, tree in self.trees.items():
            self._callbacks(file, tree)
        for function in self.functions:
            if function.name in self._told:
                self._add(function)

    def _add(self, function: Function) -> None:
        empty = function.owner == "_Nobody" or function.owner.endswith("Owner")
        if not empty and function not in self._guards:
            self.entries[str(function)] = function

    def _protocols(self, file: str, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            bases = {ast.unparse(base) for base in node.bases}
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            if "asyncio.Protocol" in bases:
                for each in methods:
                    if each.name in TRANSPORTS:
                        self._add(Function(file, node.name, each.name, each.lineno))
            elif "Protocol" in bases and node.name in ("ChildOwner", "ClientOwner", "StdinOwner"):
                self._told |= {each.name for each in methods}

    def _callbacks(self, file: str, tree: ast.Module) -> None:
        for owner, node in _functions(tree):
            for call in (each for each in ast.walk(node) if isinstance(each, ast.Call)):
                name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
                place = TAKERS.get(name)
                if name == "add" and "signal." not in ast.unparse(call):
                    continue  # of a set
                if place is None or len(call.args) <= place:
                    continue
                given = call.args[place]
                if ast.unparse(given) == "insist":
                    given = call.args[place + 2]
                self._resolve(file, owner, given, call.lineno)
            for call in (each for each in ast.walk(node) if isinstance(each, ast.Call)):
                if ast.unparse(call.func) == "insist":
                    self._resolve(file, owner, call.args[1], call.lineno)
                elif ast.unparse(call.func) == "PipeReader":
                    for given in call.args:
                        self._resolve(file, owner, given, call.lineno)

    def _resolve(self, file: str, owner: str, given: ast.expr, line: int) -> None:
        if isinstance(given, ast.Lambda):
            given = given.body
        if isinstance(given, ast.Call):
            given = given.args[1] if ast.unparse(given.func) == "insist" else given.func
        text = ast.unparse(given)
        name = text.rpartition(".")[2]
        own = [each for each in self.functions if (each.file, each.owner, each.name) == (file, owner, name)]
        near = [each for each in self.functions if (each.file, each.name) == (file, name)]
        holder = text.rpartition(".")[0].rpartition(".")[2].lstrip("_").capitalize()
        far = [each for each in self.functions if (each.owner, each.name) == (holder, name)]
        found = own if text.startswith("self.") and text.count(".") == 1 else []
        found = found or far or near
        if not found and text in KNOWN:
            found = [each for each in self.functions if str(each) == KNOWN[text]]
        elif not found:
            self.unresolved.append(f"{file}:{line}: {text}")
        for function in found:
            self._add(function)


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with the name of its class; functions within functions count as their class's."""

    def walk(node: ast.AST, owner: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                yield from walk(child, child.name)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield owner, child
                yield from walk(child, owner)
            else:
                yield from walk(child, owner)

    yield from walk(tree, "")


def guarded(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The line before which a fault belongs: the first within a guard, if the function has one."""
    body = node.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and len(body) > 1:
        body = body[1:]
    for statement in ast.walk(node):
        if isinstance(statement, ast.Try) and any(
            handler.type is not None and ast.unparse(handler.type) in ("Exception", "BaseException")
            for handler in statement.handlers
        ):
            return statement.body[0].lineno
    return body[0].lineno
