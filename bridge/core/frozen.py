"""Records of settings that never change: a frozen dataclass, at a tenth of the price of importing one.

The bridge reads its settings before it starts the server, and the server is to start at once: neither
`dataclasses` (which loads `inspect`) nor msgspec has been imported by then. Reading a member costs what
reading a slot costs.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn, dataclass_transform
else:

    def dataclass_transform(**_):
        """What type checkers know; `typing` takes longer to load than all of this."""
        return lambda cls: cls


@dataclass_transform(kw_only_default=True, frozen_default=True)
class FrozenMeta(type):
    """Makes a slot of each annotated name; what it is set to in the class body is its default."""

    _names: tuple[str, ...]
    _defaults: Mapping[str, object]

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> FrozenMeta:
        names = tuple(body.get("__annotations__", ()))
        defaults = {each: body.pop(each) for each in names if each in body}
        made = super().__new__(cls, name, bases, {**body, "__slots__": names})
        made._names = names
        made._defaults = defaults
        return made


class Frozen(metaclass=FrozenMeta):
    """The base of such a record: made with keywords, compared by value, never changed.

    Raises:
        TypeError: a member that is not there, or one without a default that is not given.
        AttributeError: at an attempt to change it.
    """

    def __init__(self, **values: object) -> None:
        cls = type(self)
        given = {**cls._defaults, **values}
        if len(given) != len(cls._names) or not given.keys() <= set(cls._names):
            wrong = ", ".join(sorted(given.keys() ^ set(cls._names)))
            raise TypeError(f"{cls.__name__}: unknown or missing: {wrong}")
        for name, value in given.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in type(self)._names)

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        pairs = zip(type(self)._names, self._values(), strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in pairs)})"
