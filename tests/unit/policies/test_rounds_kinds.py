# SPDX-License-Identifier: GPL-2.0-or-later
"""Rounds where it matters whether a gang is on few nodes or on many (SPEC 3.3, placement sensitivity)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from controller.model import Configuration, Job, JobId, Plan, Rate, Snapshot
from controller.policies.mechanisms.rounds.kinds import is_scattered, kinds, scattered, type_of_kind
from controller.policies.mechanisms.rounds.member import Member
from controller.policies.mechanisms.rounds.settings import RoundSettings
from controller.policies.protocol import Policy
from tests.unit.policies.ideal import Ideal, make_job, make_node
from tests.unit.policies.presets import preset, rounds
from tests.unit.policies.test_rounds import Fixed

RATES = {"lm": (111.0, 33.4), "resnet": (9.5, 11.1)}
"""Steps per second of gangs of 4 GPUs on one V100 node and on two, as in Gavel's data."""
FEW, MANY = "v100", "v100 scattered"


def gang(number: int, model: str, nodes: int | None = None, gpus: int = 4) -> Job:
    return make_job(number, gpus, model=model, nodes=nodes)


def ideal(policy: Callable[[], Policy], jobs: list[Job], *, nodes: int = 2, bound: bool = False) -> Ideal:
    """Nodes of 4 GPUs."""
    made = Ideal(policy, [make_node(f"n{i}", 4, model="v100") for i in range(nodes)], jobs, bound=bound)
    made.rates = {
        model: {Configuration("v100", 4, n): Rate(rate) for n, rate in enumerate(both, 1)}
        for model, both in RATES.items()
    }
    return made


def fixed(fractions: Mapping[int, Mapping[str, float]], sensitive: bool = True) -> Callable[[], Policy]:
    chosen = RoundSettings(placement_sensitive=sensitive, reset_seconds=1e6, refill=False)
    return lambda: rounds(Fixed(fractions), chosen)


def nodes_of(made: Ideal, number: int) -> int:
    return len({gpu.node for gpu in made.jobs[JobId(number)].placement.gpus})


def test_kinds_of_a_type() -> None:
    assert kinds(["v100"]) == {FEW, MANY}
    assert scattered(FEW) == MANY and type_of_kind(MANY) == type_of_kind(FEW) == FEW
    assert is_scattered(MANY) and not is_scattered(FEW)


def test_a_gang_is_placed_as_it_is_allocated() -> None:
    made = ideal(fixed({1: {MANY: 1.0}, 2: {FEW: 1.0}}), [gang(1, "resnet"), gang(2, "lm")], nodes=3)
    made.run(until=1.0)
    assert (nodes_of(made, 1), nodes_of(made, 2)) == (2, 1)
    made.run(until=2000.0)
    assert (nodes_of(made, 1), nodes_of(made, 2)) == (2, 1)
    assert made.timeline.preemptions == 0


def test_time_on_few_nodes_and_on_many_is_counted_apart() -> None:
    made = ideal(fixed({1: {FEW: 0.25, MANY: 0.75}}), [gang(1, "resnet")])
    history = []
    for number in range(12):
        made.run(until=360.0 * number + 1)
        history.append(nodes_of(made, 1))
    assert (history.count(1), history.count(2)) == (3, 9)
    member = Member(made.jobs[JobId(1)], usage=made.usage[JobId(1)])
    member.recall(made.notes[JobId(1)])
    member.types = (FEW, MANY)
    now = 12 * 360.0
    received = [member.received((kind, JobId(0)), now) for kind in (FEW, MANY)]
    assert received == [pytest.approx(3 * 360.0), pytest.approx(9 * 360.0)]


def test_a_gang_that_finds_no_room_on_few_nodes_has_others_beyond_its_part() -> None:
    """The first is on both nodes, so that no node is whole."""
    made = ideal(fixed({1: {MANY: 1.0}, 2: {FEW: 1.0}}), [gang(1, "lm"), gang(2, "lm")])
    made.run(until=1.0)
    notes = [made.notes[JobId(number)] or () for number in (1, 2)]
    assert [(note[0], note[4]) for note in notes] == [(MANY, False), (MANY, True)]
    assert (nodes_of(made, 1), nodes_of(made, 2)) == (2, 2)


@pytest.mark.parametrize(
    ("job", "sensitive"),
    [
        (gang(1, "resnet"), False),
        (gang(1, "resnet", nodes=1), True),
        (gang(1, "unknown"), True),
        (gang(1, "resnet", gpus=1), True),
    ],
)
def test_other_jobs_have_one_kind_of_each_type(job: Job, sensitive: bool) -> None:
    made = ideal(preset("gavel-las", placement_sensitive=sensitive), [job])
    made.run(until=1.0)
    note = made.notes[JobId(1)]
    assert note is not None and MANY not in note and FEW in note
    assert nodes_of(made, 1) == 1


def test_the_allocation_chooses_the_faster_kind_within_the_same_gpus() -> None:
    made = ideal(
        preset("gavel-max-throughput", placement_sensitive=True, normalised=True, round_seconds=10.0),
        [gang(1, "resnet"), gang(2, "lm")],
        nodes=4,
    )
    asked: list[Mapping[str, str]] = []

    def watch(_: Snapshot, plan: Plan) -> None:
        asked.extend(problem.data["given"][6] for problem in plan.problems.values())

    made.on_plan = watch
    made.run(until=100.0)
    assert asked and asked[0] == {MANY: FEW}
    assert (nodes_of(made, 1), nodes_of(made, 2)) == (2, 1)
    assert "of the time on v100 scattered" in made.reasons[JobId(1)]


def test_a_bound_gang_counts_as_it_is_bound() -> None:
    made = ideal(fixed({1: {MANY: 1.0}}), [gang(1, "resnet")], bound=True)
    made.run(until=500.0)
    assert nodes_of(made, 1) == 2
    made.run(until=2000.0)
    note = made.notes[JobId(1)]
    assert note is not None and note[0] == MANY and note[4] is False
