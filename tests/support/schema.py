"""Check messages against the protocol's own JSON schemas (`tests/data/mcp-REVISION.schema.json`).

It knows the few keywords those schemas use and fails on any other, so that nothing goes unchecked. `format`
is the exception: of its values, `uri` is checked for a scheme, the others are not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[1] / "data"

# Keywords that say nothing about an instance on their own.
_SILENT = {"$schema", "$comment", "$defs", "description", "default"}


MODERN = "2026-07-28"
LEGACY = "2025-11-25"


@cache
def _definitions(revision: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((DATA / f"mcp-{revision}.schema.json").read_text())
    definitions: dict[str, Any] = schema["$defs"]
    return definitions


def assert_valid(instance: Any, definition: str, revision: str = MODERN) -> None:
    """AssertionError if `instance` is not what the schema calls `definition`, with every fault found."""
    definitions = _definitions(revision)
    faults = list(_faults(instance, definitions[definition], definition, definitions))
    assert not faults, f"not a {definition} of {revision}: {'; '.join(faults)}\n{json.dumps(instance)[:2000]}"


def _is(instance: Any, type_name: str) -> bool:
    if type_name in ("integer", "number"):
        kinds: tuple[type, ...] = (int,) if type_name == "integer" else (int, float)
        return isinstance(instance, kinds) and not isinstance(instance, bool)
    return isinstance(
        instance,
        {"string": str, "boolean": bool, "object": dict, "array": list, "null": type(None)}[type_name],
    )


def _faults(instance: Any, schema: Any, where: str, definitions: dict[str, Any]) -> Iterator[str]:
    if schema in ({}, True):
        return
    for keyword, value in schema.items():
        match keyword:
            case "$ref":
                yield from _faults(instance, definitions[value.removeprefix("#/$defs/")], where, definitions)
            case "type":
                names = [value] if isinstance(value, str) else value
                if not any(_is(instance, name) for name in names):
                    yield f"{where}: {instance!r} is no {value}"
            case "const":
                if instance != value:
                    yield f"{where}: {instance!r} is not {value!r}"
            case "enum":
                if instance not in value:
                    yield f"{where}: {instance!r} is none of {value}"
            case "anyOf":
                if all(list(_faults(instance, option, where, definitions)) for option in value):
                    yield f"{where}: fits none of {[option.get('$ref', option) for option in value]}"
            case "allOf":
                for option in value:
                    yield from _faults(instance, option, where, definitions)
            case "required":
                if isinstance(instance, dict):
                    yield from (f"{where}: lacks {name}" for name in value if name not in instance)
            case "properties":
                if isinstance(instance, dict):
                    for name, option in value.items():
                        if name in instance:
                            yield from _faults(instance[name], option, f"{where}.{name}", definitions)
            case "additionalProperties":
                if isinstance(instance, dict):
                    for name in instance.keys() - schema.get("properties", {}).keys():
                        if value is False:
                            yield f"{where}: {name} is not known"
                        else:
                            yield from _faults(instance[name], value, f"{where}.{name}", definitions)
            case "items":
                if isinstance(instance, list):
                    for index, item in enumerate(instance):
                        yield from _faults(item, value, f"{where}[{index}]", definitions)
            case "maxItems":
                if isinstance(instance, list) and len(instance) > value:
                    yield f"{where}: more than {value} items"
            case "minimum" | "maximum":
                if _is(instance, "number") and (
                    instance < value if keyword == "minimum" else instance > value
                ):
                    yield f"{where}: {instance} breaks the {keyword} {value}"
            case "format":
                if value == "uri" and isinstance(instance, str) and ":" not in instance:
                    yield f"{where}: {instance!r} is no URI"
            case _ if keyword not in _SILENT:
                raise NotImplementedError(f"keyword {keyword!r} at {where}")
