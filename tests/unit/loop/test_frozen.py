# SPDX-License-Identifier: GPL-2.0-or-later
"""Classes that are made quickly are frozen data classes like others."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import Any, get_type_hints

import pytest

from controller.actions import Place
from controller.slurm.port import ClusterView, SlurmJob
from controller.frozen import quickly_made
from controller.loop import Tick
from controller.model import Gpu, Job, Node, Profile, Request, Snapshot
from controller.nodes.port import GpuProcess, GpuSample, NodeJob, NodeSample, RankSample

CLASSES: list[Any] = [
    *(ClusterView, SlurmJob, Gpu, Job, Node, Profile, Request, Snapshot, Place, Tick),
    *(GpuProcess, GpuSample, NodeJob, NodeSample, RankSample),
]


@quickly_made
@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float = 2.0
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Usual:
    x: float
    y: float = 2.0
    names: tuple[str, ...] = ()


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
    point = Point(1.0, names=("a",))
    assert (point.x, point.y, point.names) == (1.0, 2.0, ("a",))
    assert point == Point(1.0, 2.0, ("a",))
    assert hash(point) == hash(Usual(1.0, 2.0, ("a",)))
    assert repr(point) == "Point(x=1.0, y=2.0, names=('a',))"
    assert replace(point, x=3.0) == Point(3.0, 2.0, ("a",))
    assert pickle.loads(pickle.dumps(point)) == copy.deepcopy(point) == point
    assert get_type_hints(Point.__init__) == get_type_hints(Usual.__init__)
    assert list(inspect.signature(Point).parameters) == ["x", "y", "names"]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        Point()  # type: ignore[call-arg]


def test_what_is_not_supported_is_refused() -> None:
    with pytest.raises(TypeError, match="List: fields with a factory"):

        @quickly_made
        @dataclass(frozen=True, slots=True)
        class List:
            entries: tuple[int, ...] = field(default_factory=tuple)
