# SPDX-License-Identifier: GPL-2.0-or-later
"""The decorator of values against the data class that it stands for."""

import copy
import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import pytest

from controller.model.value import empty, value


@value
class Pair:
    """Two numbers."""

    first: int
    second: float = 2.0


@value
class Digest:
    """A field that follows from another, and that no caller gives."""

    text: str
    length: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", len(self.text))


@value(kw_only=True)
class Wide:
    """Named fields alone; the default of one is made anew each time."""

    later: int = 0
    needed: str
    table: Mapping[str, int] = field(default_factory=empty)
    items: list[int] = field(default_factory=list)


@value
class Longer(Pair):
    """A subclass with one more."""

    third: str = "x"


@value
class One:
    """A single field."""

    only: object


class TestValue:
    def test_is_made_as_a_data_class_is(self) -> None:
        assert (Pair(1).first, Pair(1).second, Pair(1, 3).second, Pair(second=4, first=1).second) == (
            1,
            2,
            3,
            4,
        )
        assert repr(Pair(1)) == "Pair(first=1, second=2.0)"
        assert Digest("four").length == 4
        assert [Wide(needed="a").table, Wide(needed="a").later, Longer(1).third] == [{}, 0, "x"]
        first, second = Wide(needed="a"), Wide(needed="a")
        assert first.items is not second.items
        assert [each.name for each in fields(Longer)] == ["first", "second", "third"]

    def test_refuses_the_arguments_that_a_data_class_refuses(self) -> None:
        for wrong in (
            lambda: Pair(),  # type: ignore[call-arg]
            lambda: Pair(1, 2, 3),  # type: ignore[call-arg]
            lambda: Pair(1, third=3),  # type: ignore[call-arg]
            lambda: Wide("a"),  # type: ignore[call-arg,arg-type]
            lambda: Wide(later=1),  # type: ignore[call-arg]
            lambda: Digest("a", 1),  # type: ignore[call-arg]
        ):
            with pytest.raises(TypeError):
                wrong()

    def test_nothing_of_it_can_be_changed(self) -> None:
        pair = Pair(1)
        with pytest.raises(FrozenInstanceError):
            pair.first = 2  # type: ignore[misc]
        with pytest.raises((FrozenInstanceError, TypeError)):  # (Python's own say about unknown names)
            pair.other = 2  # type: ignore[attr-defined]
        with pytest.raises(FrozenInstanceError):
            del pair.first
        assert pair == Pair(1)
        assert not hasattr(pair, "__dict__")

    def test_is_compared_by_content_with_its_own_kind(self) -> None:
        @dataclass(frozen=True)
        class Other:
            first: int
            second: float

        assert Pair(1) == Pair(1, 2.0) != Pair(2)
        assert Pair(1) != Other(1, 2.0)  # type: ignore[comparison-overlap]
        assert Pair(1) != Longer(1, 2.0, "x")
        assert len({Pair(1), Pair(1), Pair(2), One((1, 2)), One((1, 2))}) == 3
        with pytest.raises(TypeError):
            hash(One([]))

    @pytest.mark.parametrize("made", [Pair(1), Digest("four"), Longer(1, 2, "y"), One("a")])
    def test_survives_copies(self, made: object) -> None:
        copies = [copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))]
        assert copies == [made] * 3
        assert [type(each) for each in copies] == [type(made)] * 3

    def test_can_be_replaced(self) -> None:
        assert replace(Longer(1), second=5.0) == Longer(1, 5.0, "x")
        assert replace(Digest("four"), text="a").length == 1
