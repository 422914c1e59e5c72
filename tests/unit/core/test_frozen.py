"""Records that never change: what the operator decides is read everywhere and written nowhere."""

from __future__ import annotations

import pytest

from bridge.config import Settings
from bridge.core.frozen import Frozen
from bridge.core.limits import Era, Limits


class Box(Frozen):
    """One member that has to be given, one that has a default."""

    size: int
    lid: str = "flat"


def test_a_member_that_is_not_given_has_its_default() -> None:
    box = Box(size=3)
    assert (box.size, box.lid) == (3, "flat")
    assert Box(size=3, lid="round").lid == "round"


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({}, "size"),
        ({"lid": "round"}, "size"),
        ({"size": 1, "hinge": 2}, "hinge"),
        ({"hinge": 2}, "hinge, size"),
    ],
)
def test_a_wrong_member_or_a_missing_one_is_an_error_that_names_it(
    values: dict[str, object], wrong: str
) -> None:
    """A mistyped limit must not go by unnoticed, with the default in its place."""
    with pytest.raises(TypeError, match=f"^Box: unknown or missing: {wrong}$"):
        Box(**values)  # type: ignore[arg-type]  # that is what is tested


def test_nothing_can_be_changed_added_or_taken_away() -> None:
    box = Box(size=3)
    with pytest.raises(AttributeError, match="Box is immutable"):
        box.size = 4  # type: ignore[misc]  # that is what is tested
    with pytest.raises(AttributeError, match="Box is immutable"):
        del box.size
    with pytest.raises(AttributeError, match="Box is immutable"):
        box.hinge = 4
    assert box.size == 3
    assert not hasattr(box, "__dict__")


def test_two_are_equal_if_their_members_are() -> None:
    assert Box(size=3) == Box(lid="flat", size=3)
    assert Box(size=3) != Box(size=4)
    assert Box(size=3) != (3, "flat")
    assert len({Box(size=3), Box(size=3), Box(size=4)}) == 2


def test_it_shows_its_members() -> None:
    assert repr(Box(size=3)) == "Box(size=3, lid='flat')"


def test_settings_and_limits_are_such_records() -> None:
    limits = Limits(max_depth=5, era=Era.LEGACY)
    assert (limits.max_depth, limits.era, limits.restart_wait) == (5, Era.LEGACY, 30.0)
    settings = Settings(listen=(), command=("x",), limits=limits)
    assert settings == Settings(listen=(), command=("x",), limits=Limits(max_depth=5, era=Era.LEGACY))
    assert settings != Settings(listen=(), command=("x",))
