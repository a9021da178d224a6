# SPDX-License-Identifier: GPL-2.0-or-later
"""Rounds of many jobs: what one plan does is bounded, and a gang without room costs only what follows it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from controller.model import Configuration, JobId, Plan, Profile, Rate, Snapshot
from controller.policies import budget
from controller.policies.budget import Budget
from controller.policies.mechanisms.rounds import layout
from controller.policies.mechanisms.rounds.selection import Choice, Selection
from tests.unit.policies.ideal import GIB, Ideal, Timeline, make_job, make_node
from tests.unit.policies.presets import preset

TYPES = ("v100", "k80")


def run(seed: int, sizes: tuple[int, ...]) -> tuple[Timeline, Ideal]:
    """Thirty jobs on two nodes of each type."""
    draw = random.Random(seed)
    nodes = [make_node(f"n{i}", 4, model=TYPES[i % 2]) for i in range(4)]
    jobs = [
        make_job(
            n, draw.choice(sizes), float(draw.randint(20, 400)), submit=n // 10 * 33.0, model=f"m{n % 3}"
        )
        for n in range(1, 31)
    ]
    ideal = Ideal(preset("gavel-las", round_seconds=20.0, reset_seconds=60.0), nodes, jobs, check=False)
    where = [Configuration(gpu_type, size) for gpu_type in TYPES for size in set(sizes)]
    ideal.rates = {f"m{m}": {w: Rate(draw.uniform(1, 9)) for w in where} for m in range(3)}
    return ideal.run(), ideal


def small_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "LOOKS", 2)
    monkeypatch.setattr(budget, "WORDS", 1)


@pytest.mark.parametrize("seed", range(3))
def test_in_portions_all_comes_to_the_same(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    at_once, _ = run(seed, (1, 1, 2, 4))
    small_plans(monkeypatch)
    in_portions, _ = run(seed, (1, 1, 2, 4))
    assert in_portions.plans > at_once.plans
    assert in_portions.runs == at_once.runs


def test_a_plan_goes_over_all_jobs_once_if_they_are_many() -> None:
    plan = Budget()
    assert plan.allows(8000) and not plan.allows(8000) and plan.more
    assert not plan.allows(1)
    small = Budget()
    small.spend(200)
    assert small.allows(20_000) and not small.more
    assert not small.allows(20_000)


def test_what_is_said_of_many_jobs_follows_in_the_next_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "WORDS", budget.LOOKS // 3)
    jobs = [make_job(n, 1) for n in range(1, 21)]
    ideal = Ideal(preset("gavel-las"), [make_node("n1", 4, model="v100")], jobs, check=False)
    said: list[int] = []
    ideal.on_plan = lambda _, plan: said.append(len(plan.reasons))
    ideal.run(until=1.0)
    assert max(said) <= 3 + 4
    assert len(ideal.reasons) == 20


# -- the list --------------------------------------------------------------------------------------------


def alone(number: int, gpu_type: str = "v100") -> Choice:
    return Choice((JobId(number),), gpu_type)


def test_what_was_chosen_before_a_refused_choice_stays() -> None:
    order = [alone(n) for n in (1, 2, 3, 4)] + [alone(2, "k80")]
    selection = Selection(
        iter(order), {JobId(n): size for n, size in ((1, 1), (2, 2), (3, 1), (4, 2))}, {"v100": 4, "k80": 2}
    )
    assert selection.go_on() == order[:3]
    assert selection.cut({order[1]}) == order[1:3]
    assert selection.go_on() == order[2:]
    assert selection.chosen == {order[0]: 0, order[2]: 2, order[3]: 3, order[4]: 4}


def test_a_job_that_is_not_there_any_more_is_passed_over() -> None:
    order = [Choice((JobId(1), JobId(2)), "v100"), alone(1), alone(3)]
    selection = Selection(order, {JobId(1): 1, JobId(3): 1}, {"v100": 2})
    assert selection.go_on() == order[1:]


def test_the_list_is_not_read_on_when_no_gpu_is_left() -> None:
    order = iter([alone(1), alone(2), alone(3)])
    Selection(order, {JobId(n): 1 for n in (1, 2, 3)}, {"v100": 1}).go_on()
    assert [choice.jobs for choice in order] == [(3,)]


def test_of_a_pair_without_a_place_neither_goes_on_uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU takes one job at a time: the pair is allocated it, and cannot have it."""
    jobs = [make_job(n, 1, model=f"m{n}") for n in (1, 2)]
    jobs = [replace(job, request=replace(job.request, may_pack=True)) for job in jobs]
    node = make_node("n1", 1, model="v100", shards=1)
    ideal = Ideal(preset("gavel-las", space_sharing=True, round_seconds=20.0), [node], jobs, check=False)
    ideal.profiles = {job.id: Profile(peak_memory_bytes=GIB) for job in jobs}
    for one, other in (("m1", "m2"), ("m2", "m1")):
        rates = {Configuration("v100", 1): Rate(1.0), Configuration("v100", 1, 1, (other,)): Rate(0.9)}
        ideal.rates[one] = rates
    ideal.run(until=10.0)
    assert ideal.running() == {1}
    monkeypatch.setattr(layout, "_TRIES", 1)
    ideal.run(until=30.0)
    assert [number for number in ideal.running() if (ideal.notes[JobId(number)] or ("",))[0] == ""] == []


@pytest.mark.parametrize("what", ["ends", "stays", "is cancelled"])
def test_a_job_may_change_between_laying_out_and_saying_it(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Four jobs take turns on two GPUs. When the second round is laid out, one that is to stop has ended, or
    cannot be stopped; or one that is to start is gone. All others have their turn."""
    jobs = [make_job(n, 1, 1e6) for n in (1, 2, 3, 4)]
    ideal = Ideal(
        preset("gavel-las", round_seconds=20.0), [make_node("n1", 2, model="v100")], jobs, check=False
    )
    ideal.run(until=10.0)
    assert ideal.running() == {1, 2}
    small_plans(monkeypatch)
    laid: list[float] = []

    def watch(_: Snapshot, plan: Plan) -> None:
        if ideal.policy.policy.mechanism._pending is not None and not laid:  # type: ignore[attr-defined]
            assert not plan.targets and plan.wake_at == ideal.now
            laid.append(ideal.now)

    ideal.on_plan = watch
    while not laid:
        ideal.now = max(ideal.now, 20.0)
        ideal.plan()
    if what == "stays":
        ideal.change(1, may_stop=False)
    else:
        ideal.remove(1 if what == "ends" else 3)
    ideal.run(until=30.0)
    allowed = {"ends": [{3, 4}], "stays": [{1, 3}, {1, 4}], "is cancelled": [{1, 4}, {2, 4}]}
    assert ideal.running() in allowed[what]
    ideal.run(until=100.0)
    assert len(ideal.running()) == 2
