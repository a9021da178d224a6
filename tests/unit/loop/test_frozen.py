# SPDX-License-Identifier: GPL-2.0-or-later
"""The data classes of `controller.frozen` behave like the standard library's."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, field, fields, replace
from typing import Any, get_type_hints

import pytest

from controller.actions import Place
from controller.cluster.port import ClusterView, SlurmJob
from controller.frozen import dataclass
from controller.loop import Tick
from controller.model import Gpu, Job, Node, Profile, Request, Snapshot
from controller.nodes.port import GpuProcess, GpuSample, NodeJob, NodeSample, RankSample

CLASSES: list[Any] = [
    *(ClusterView, SlurmJob, Gpu, Job, Node, Profile, Request, Snapshot, Place, Tick),
    *(GpuProcess, GpuSample, NodeJob, NodeSample, RankSample),
]


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float = 2.0
    names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class UsualPoint:
    x: float
    y: float = 2.0
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """Has four fields: its objects are made in another way."""

    begin: Point
    end: Point
    width: float = 1.0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Open:
    x: int
    seen: list[int] = field(default_factory=list)


@dataclass
class Doubled:
    x: int

    def __post_init__(self) -> None:
        self.x *= 2


@pytest.mark.parametrize("cls", CLASSES)
def test_every_field_arrives_and_none_can_be_changed(cls: Any) -> None:
    values = {f.name: object() for f in fields(cls)}
    made = cls(**values)
    assert type(made) is cls
    for name, value in values.items():
        assert getattr(made, name) is value
        with pytest.raises(FrozenInstanceError):
            setattr(made, name, 1)
        with pytest.raises(FrozenInstanceError):
            delattr(made, name)
    with pytest.raises((AttributeError, TypeError)):
        made.another = 1


def test_like_the_usual_kind() -> None:
    assert repr(Point(1.0)) == repr(UsualPoint(1.0)).replace("Usual", "")
    point = Point(1.0, names=("a",))
    assert (point.x, point.y, point.names) == (1.0, 2.0, ("a",))
    assert point == Point(1.0, 2.0, ("a",)) != Point(1.0, 2.5, ("a",))
    usual: object = UsualPoint(1.0, 2.0, ("a",))
    assert point != usual
    assert hash(point) == hash(UsualPoint(1.0, 2.0, ("a",)))
    assert replace(point, x=3.0) == Point(3.0, 2.0, ("a",))
    assert pickle.loads(pickle.dumps(point)) == copy.deepcopy(point) == copy.copy(point) == point
    assert get_type_hints(Point.__init__) == get_type_hints(UsualPoint.__init__)
    assert list(inspect.signature(Point).parameters) == ["x", "y", "names"]
    assert Point.__match_args__ == UsualPoint.__match_args__
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        Point()  # type: ignore[call-arg]


def test_first_use_may_be_any_method_and_may_fail() -> None:
    def made() -> Any:
        @dataclass(frozen=True, slots=True)
        class Fresh:
            x: int

        return Fresh

    with pytest.raises(TypeError, match=r"Fresh\.__init__\(\) missing 1 required positional argument: 'x'"):
        made()()
    fresh = made()
    assert fresh(1) == fresh(x=1) and fresh(1) != fresh(2) and fresh(1) != 1
    assert {fresh(1): "a"}[fresh(1)] == "a"
    assert made()(1) != made()(1)  # (two classes of one name)


def test_each_object_has_a_default_of_its_own() -> None:
    line = Line(Point(0), Point(1))
    assert line.labels == {} and line.labels is not Line(Point(0), Point(1)).labels
    assert Line(Point(0), Point(1), labels={"a": "b"}).labels == {"a": "b"}
    made, other = Open(1), Open(1)
    made.seen.append(5)
    assert (made.seen, other.seen) == ([5], [])


def test_what_is_not_frozen_can_be_changed_and_has_no_hash() -> None:
    made = Open(1)
    made.x = 7
    assert made == Open(7) and repr(made) == "Open(x=7, seen=[])"
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made
    with pytest.raises(TypeError, match="unhashable"):
        hash(made)
    assert Doubled(4).x == 8


def test_methods_of_the_class_itself_stay() -> None:
    @dataclass(frozen=True, slots=True)
    class Named:
        name: str
        note: str = ""

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named) and other.name == self.name

        def __hash__(self) -> int:
            return 5

        def __repr__(self) -> str:
            return self.name

    assert Named("a", "b") == Named("a", "c") and hash(Named("a")) == 5 and repr(Named("a")) == "a"


def test_what_is_not_supported_is_refused() -> None:
    with pytest.raises(TypeError, match="Hidden: a field that is no plain parameter"):

        @dataclass(frozen=True, slots=True)
        class Hidden:
            entries: tuple[int, ...] = field(default=(), repr=False)

    with pytest.raises(TypeError, match="Derived: nothing can be derived"):

        class Derived(Point):
            """Its objects would become points."""
