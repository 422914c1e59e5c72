"""What the tests of shared legacy sessions have in common."""

from __future__ import annotations

from typing import Any

from bridge.core.era import Era
from tests.unit.core.scenario import Json, Scenario, greeting, initialize, legacy, notification

CAPABLE: Json = {
    "tools": {"listChanged": True},
    "prompts": {},
    "resources": {"subscribe": True, "listChanged": True},
    "logging": {},
    "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
}
"""What a server says that has everything that is shared."""

LISTS = [
    notification("notifications/tools/list_changed"),
    notification("notifications/resources/list_changed"),
]
"""What its clients are told after it was started again."""


def session(clients: str = "AB", *, capabilities: Json | None = None, **limits: Any) -> Scenario:
    """A legacy server with everything, and clients that have a session; upstream ids go on with 2."""
    s = Scenario(clients, era=Era.LEGACY, **limits)
    s.server(greeting(1, capabilities=CAPABLE if capabilities is None else capabilities))
    for name in clients:
        s.client(name, initialize("i"))
    return s


def subscribe(id: object, uri: object = "u") -> Json:
    return legacy(id, "resources/subscribe", uri=uri)


def unsubscribe(id: object, uri: object = "u") -> Json:
    return legacy(id, "resources/unsubscribe", uri=uri)


def updated(uri: object = "u", **more: object) -> Json:
    return notification("notifications/resources/updated", uri=uri, **more)


def set_level(id: object, level: object) -> Json:
    return legacy(id, "logging/setLevel", level=level)


def log(level: object, **more: object) -> Json:
    return notification("notifications/message", level=level, data="x", **more)
