# SPDX-License-Identifier: GPL-2.0-or-later
"""Rounds: priorities, the global list, leases, and that jobs receive what they are allocated (SPEC 3.5)."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from controller.model import (
    Changes,
    Configuration,
    Job,
    JobId,
    Memory,
    Node,
    Phase,
    Placement,
    Plan,
    Problem,
    ProblemKind,
    Rate,
    Reason,
    Snapshot,
    gpu_type,
    reason_of,
)
from controller.policies.allocations.allocation import Allocated, AllocationError, Given
from controller.policies.allocations.table import FractionTable
from controller.policies.mechanisms.rounds.selection import priority
from controller.policies.mechanisms.rounds.settings import RoundSettings
from controller.policies.placement.draft import Draft
from controller.settings.policies import PolicySettings
from tests.unit.policies.ideal import Ideal, cluster, gpu_set, make_job, make_node
from tests.unit.policies.presets import preset, rounds

TYPES = ("a-v100", "b-p100", "c-k80")
"""In the order of the example: ties go by the name of the type."""


class Fixed:
    """The same fractions always, by job and type."""

    def __init__(self, fractions: Mapping[int, Mapping[str, float]]) -> None:
        self.fractions = fractions

    def begin(self, given: Given) -> Problem | Allocated:
        known = {job.id: self.fractions.get(job.id, {}) for job in given.jobs}
        return Allocated(
            fractions={(job_id,): row for job_id, row in known.items()}, objective=0.0, status="optimal"
        )

    def read(self, *_: object) -> FractionTable:
        raise AssertionError("nothing was asked")


def table(rows: Sequence[Sequence[float]]) -> dict[int, dict[str, float]]:
    return {number: dict(zip(TYPES, row, strict=True)) for number, row in enumerate(rows, 1)}


def nodes() -> list[Node]:
    """One GPU of each type."""
    return [make_node(f"n{i}", 1, model=name) for i, name in enumerate(TYPES)]


def rounds_of(
    fractions: Mapping[int, Mapping[str, float]],
    jobs: Sequence[Job],
    count: int,
    check: bool = True,
    **settings: object,
) -> tuple[Ideal, list[dict[str, int]]]:
    """One GPU of each type. Returns who is on each type, round by round."""
    chosen = RoundSettings.model_validate({"change_types": True, "reset_seconds": 1e6, **settings})
    ideal = Ideal(lambda: rounds(Fixed(fractions), chosen), nodes(), jobs, check=check)
    history: list[dict[str, int]] = []
    for number in range(count):
        ideal.run(until=360.0 * number + 1)
        where = {gpu.node: int(j.id) for j in ideal.jobs.values() for gpu in j.placement.gpus}
        history.append({name: where[f"n{i}"] for i, name in enumerate(TYPES) if f"n{i}" in where})
    return ideal, history


EXAMPLE = table([[0.6, 0.4, 0], [0.2, 0.6, 0.2], [0.2, 0, 0.8]])


def test_v17_priorities() -> None:
    received = table([[3, 1, 0], [1, 3, 0], [0, 0, 4]])
    found = [[priority(EXAMPLE[j][t], received[j][t]) for t in TYPES] for j in (1, 2, 3)]
    assert found == [
        [pytest.approx(0.2), 0.4, 0.0],
        [0.2, pytest.approx(0.2), math.inf],
        [math.inf, 0.0, 0.2],
    ]


def test_v18_the_global_list_from_zero() -> None:
    _, history = rounds_of(EXAMPLE, [make_job(number) for number in (1, 2, 3)], 10)
    rounds = ["".join(str(row[t] - 1) for t in TYPES) for row in history]
    assert rounds == ["012", "102", "201", "012", "012"] * 2
    for number, row in EXAMPLE.items():
        for name in TYPES:
            assert sum(r[name] == number for r in history) == pytest.approx(10 * row[name])


def random_fractions(seed: int) -> dict[int, dict[str, float]]:
    """Of three to six jobs, who use every type up."""
    draw = random.Random(seed)
    rows = [[draw.random() ** 3 for _ in TYPES] for _ in range(draw.randint(3, 6))]
    for _ in range(300):
        sums = [math.fsum(column) for column in zip(*rows, strict=True)]
        rows = [[x / s for x, s in zip(row, sums, strict=True)] for row in rows]
        rows = [[x / max(1.0, math.fsum(row)) for x in row] for row in rows]
    return table(rows)


@pytest.mark.parametrize("seed", range(6))
def test_what_jobs_receive_comes_to_what_they_are_allocated(seed: int) -> None:
    """Where they leave some room, less than a round is missing, however many there are."""
    fractions, most = random_fractions(seed), 1.0
    fractions = {number: {t: 0.85 * x for t, x in row.items()} for number, row in fractions.items()}
    jobs = [make_job(number) for number in fractions]
    _, history = rounds_of(fractions, jobs, 200, check=False)
    for count in (25, 50, 100, 200):
        for number, row in fractions.items():
            for name in TYPES:
                had = sum(found.get(name) == number for found in history[:count])
                assert had >= count * row[name] - most, (count, number, name)


@pytest.mark.parametrize(("seed", "missing"), list(enumerate([1.4, 2.0, 11.4, 2.0, 2.0, 2.2])))
def test_where_fractions_use_up_all_time_some_rounds_are_missing(seed: int, missing: float) -> None:
    """The list may pass over a job that it would have to take for that: docs/gavel.md has these figures."""
    fractions = random_fractions(seed)
    _, history = rounds_of(fractions, [make_job(number) for number in fractions], 200, check=False)
    short = [
        200 * row[name] - sum(found.get(name) == number for found in history)
        for number, row in fractions.items()
        for name in TYPES
    ]
    assert max(short) == pytest.approx(missing, abs=0.05)


def test_jobs_stop_only_when_their_round_is_over_and_others_take_their_gpus() -> None:
    chosen = RoundSettings(change_types=True, reset_seconds=1e6)
    ideal = Ideal(lambda: rounds(Fixed(EXAMPLE), chosen), nodes(), [make_job(n) for n in EXAMPLE])
    stops: list[tuple[float, JobId]] = []

    def watch(snapshot: Snapshot, plan: Plan) -> None:
        stops.extend((snapshot.time, i) for i, t in plan.targets.items() if not t.placement.gpus)

    ideal.on_plan = watch
    ideal.run(until=3600.0)
    assert stops and all(time % 360 == 0 for time, _ in stops)
    # Rounds 4 to 6 (from 1080 s on) go to the same jobs: their leases are extended.
    assert not [time for time, _ in stops if time in (1440.0, 1800.0)]


def test_gpus_that_no_fraction_takes_go_to_others_and_do_not_count() -> None:
    fractions = {1: {"a-v100": 1.0}, 2: {"a-v100": 0.5}}
    ideal, history = rounds_of(fractions, [make_job(1), make_job(2)], 4)
    assert all(len(row) == 2 for row in history)
    assert [row["a-v100"] for row in history] == [1, 2, 1, 1]
    said = [words for words in ideal.reasons.values() if "does not count" in words]
    assert said and "which no job with a part of them takes" in said[0]
    assert reason_of(said[0]) is Reason.ITS_TURN
    extra = [note[2] for note in ideal.notes.values() if note is not None]
    assert sum(extra) > 0 and ideal.notes[JobId(1)] is not None
    received = dict(ideal.usage[JobId(2)].seconds_by_type)
    assert set(received) > {"a-v100"}


def test_a_job_is_never_on_a_type_that_it_does_not_ask_for() -> None:
    jobs = [make_job(n, duration=1000.0) for n in (1, 2, 3, 4)]
    wanted = {JobId(1): ("b-p100",), JobId(2): ("b-p100", "c-k80")}
    jobs = [replace(j, request=replace(j.request, gpu_types=wanted.get(j.id, ()))) for j in jobs]
    ideal = Ideal(preset("gavel-las", change_types=True), nodes(), jobs)

    def watch(snapshot: Snapshot, plan: Plan) -> None:
        for job_id, target in plan.targets.items():
            models = {gpu_type(frozenset({gpu}), snapshot.nodes) for gpu in target.placement.gpus}
            assert models <= set(wanted.get(job_id, TYPES))

    ideal.on_plan = watch
    assert len(ideal.run().ends) == 4


def test_a_job_that_slurm_has_bound_stays_on_its_type() -> None:
    jobs = [make_job(n) for n in range(1, 6)]
    ideal = Ideal(preset("gavel-las"), nodes(), jobs, bound=True)
    where: dict[JobId, set[str]] = {}
    for turn in range(20):
        ideal.run(until=360.0 * turn + 1)
        for job in ideal.jobs.values():
            if job.placement.gpus:
                where.setdefault(job.id, set()).add(gpu_type(job.placement.gpus, ideal.nodes))
    assert len(where) == 5 and all(len(types) == 1 for types in where.values())
    assert "where it is bound" in " ".join(ideal.reasons.values())


@pytest.mark.parametrize("throughputs", ["aware", "agnostic"])
def test_aware_jobs_get_the_types_that_they_are_fast_on(throughputs: str) -> None:
    """The second model makes hardly a step on one of the two types."""
    jobs = [make_job(1, model="any"), make_job(2, model="picky")]
    ideal = Ideal(preset("gavel-las", change_types=True, throughputs=throughputs), nodes()[::2], jobs)
    fast = {"any": (4.0, 4.0), "picky": (9.0, 0.1)}
    ideal.rates = {
        model: {Configuration(t, 1): Rate(r) for t, r in zip(TYPES[::2], speeds, strict=True)}
        for model, speeds in fast.items()
    }
    ideal.run(until=36000.0)
    usage = ideal.usage[JobId(2)].stopped(ideal.now)
    assert usage.seconds == pytest.approx(ideal.now)
    part = usage.seconds_by_type["a-v100"] / ideal.now
    assert part > 0.65 if throughputs == "aware" else part == pytest.approx(0.5, abs=0.02)


SPEEDS = {"bound": (40.0, 20.0, 10.0), "fed": (12.1, 11.8, 11.1)}
"""A model that its GPU holds up, and one that waits for its data, by type."""


def steps_of(throughputs: str) -> dict[str, float]:
    """What four jobs of each model do in 300 rounds on two GPUs of each type, when those that wait for data
    were there first: by model, the steps of the one that did the fewest."""
    nodes = [make_node(f"n{i}", 2, model=name) for i, name in enumerate(TYPES)]
    jobs = [make_job(n, model="fed") for n in range(1, 5)]
    jobs += [make_job(n, model="bound", submit=1000.0) for n in range(5, 9)]
    jobs = [replace(job, may_migrate=True, starts_anywhere=True) for job in jobs]
    policy = preset("gavel-las", throughputs=throughputs)
    ideal = Ideal(policy, nodes, jobs, bound=True, check=False)
    ideal.rates = {
        model: {Configuration(t, 1): Rate(r) for t, r in zip(TYPES, speeds, strict=True)}
        for model, speeds in SPEEDS.items()
    }
    ideal.run(until=300 * 360.0)
    done: dict[str, list[float]] = {}
    for job in jobs:
        had = ideal.usage[job.id].stopped(ideal.now).seconds_by_type
        speeds = dict(zip(TYPES, SPEEDS[job.request.model or ""], strict=True))
        done.setdefault(job.request.model or "", []).append(sum(s * speeds[t] for t, s in had.items()))
    return {model: min(steps) for model, steps in done.items()}


def test_aware_las_does_more_steps_than_its_agnostic_twin_where_jobs_change_types() -> None:
    """By the optimum each job does 1.21 times as many."""
    aware, agnostic = steps_of("aware"), steps_of("agnostic")
    assert aware["bound"] > 1.15 * agnostic["bound"]
    assert aware["fed"] > 1.15 * agnostic["fed"]


class ToFirst:
    """A move: the second job continues on the first node when that is free."""

    def propose(self, snapshot: Snapshot, draft: Draft) -> None:
        first, second = gpu_set("n1:0"), draft.of(JobId(2))
        if second.gpus == gpu_set("n2:0") and not any(
            p.allocation & first for p in draft.placements.values()
        ):
            draft.put(JobId(2), Placement(first, first))


@pytest.mark.parametrize("migration_seconds", [50.0, 500.0])
def test_gpus_promised_to_a_job_that_a_move_sent_on_are_kept_for_it(migration_seconds: float) -> None:
    """A round ends meanwhile, or not."""
    jobs = [make_job(1, duration=5.0), make_job(2), make_job(3, submit=10.0)]
    jobs = [replace(job, may_migrate=True) for job in jobs]
    fractions = {n: {"a100": 0.5} for n in (1, 2, 3)}
    ideal = Ideal(lambda: rounds(Fixed(fractions), RoundSettings(), moves=(ToFirst(),)), cluster(2, 1), jobs)
    ideal.migration_seconds = migration_seconds
    ideal.run(until=20.0)
    assert ideal.running() == {3} and ideal.jobs[JobId(3)].placement.gpus == gpu_set("n2:0")
    ideal.run(until=migration_seconds + 20.0)
    assert ideal.running() == {2, 3} and ideal.jobs[JobId(2)].placement.gpus == gpu_set("n1:0")


class Refusing(Fixed):
    """An allocation that fails from the third job on."""

    def begin(self, given: Given) -> Problem | Allocated:
        if len(given.jobs) > 2:
            raise AllocationError("no more than two jobs")
        return super().begin(given)


def test_a_failed_allocation_costs_nothing_but_age() -> None:
    chosen = RoundSettings(change_types=True, refill=False)
    fractions = {1: {"a-v100": 1.0}, 2: {"a-v100": 0.0}}
    jobs = [make_job(1), make_job(2), make_job(3, submit=400.0)]
    ideal = Ideal(lambda: rounds(Refusing(fractions), chosen), nodes()[:1], jobs)
    ideal.run(until=700.0)
    assert ideal.running() == {1}
    assert ideal.common["rounds"]["error"] == "no more than two jobs"
    ideal.run(until=1000.0)  # the third has an equal part, and had nothing yet
    assert ideal.running() == {3}
    assert ideal.timeline.preemptions == 1


def test_where_the_allocation_fails_from_the_start_parts_are_by_weight() -> None:
    jobs = [make_job(1, weight=4.0), make_job(2), make_job(3)]
    chosen = RoundSettings(round_seconds=10.0, refill=False)
    ideal = Ideal(lambda: rounds(Refusing({}), chosen), nodes()[:1], jobs, bound=True)
    ideal.run(until=3600.0)
    had = [ideal.usage[JobId(number)].ran(ideal.now) for number in (1, 2, 3)]
    assert had == pytest.approx([2400.0, 600.0, 600.0], abs=40.0)


def test_a_job_in_the_middle_of_a_switch_is_counted_like_before_and_after() -> None:
    """Its program is off the GPU, and Slurm has not suspended it yet. Without it the others would be told
    other fractions for a moment."""
    counted: list[set[int]] = []

    class Counting(Fixed):
        def begin(self, given: Given) -> Problem | Allocated:
            counted.append({job.id for job in given.jobs})
            return super().begin(given)

    half = {1: {"a-v100": 0.5}, 2: {"a-v100": 0.5}}
    ideal = Ideal(
        lambda: rounds(Counting(half), RoundSettings()), nodes()[:1], [make_job(1), make_job(2)], check=False
    )
    ideal.run(until=10.0)
    (number,) = ideal.running()
    gpus = ideal.jobs[JobId(number)].placement.gpus
    ideal.change(number, placement=Placement(frozenset(), gpus), phase=Phase.YIELDED, switching=True)
    ideal.change(number, may_start=False, may_stop=False)
    ideal.step()
    assert counted == [{1, 2}]


def test_a_gang_does_not_keep_allox_from_the_other_jobs() -> None:
    """Of three jobs of one GPU each has its turn; the gang has the GPUs that they leave."""
    jobs = [make_job(1, 1, 720.0), make_job(2, 1, 360.0), make_job(3, 1, 600.0), make_job(4, 2, 600.0)]
    policy = preset("allox", round_seconds=60.0)
    ideal = Ideal(policy, cluster(1, 2), jobs)
    ideal.run(until=300.0)
    assert ideal.common["rounds"]["error"] == ""
    assert len(ideal.running()) == 2 and 4 not in ideal.running()
    assert ideal.reasons[JobId(4)] == "waits for its turn: it is allocated no part of the time"
    assert reason_of(ideal.reasons[JobId(4)]) is Reason.WAITS_FOR_TURN
    ideal.run(until=1500.0)
    assert {1, 2, 3} == set(ideal.timeline.ends) and ideal.running() == {4}
    assert "which no job with a part of them takes" in ideal.reasons[JobId(4)]


def test_a_damaged_memory_counts_as_none() -> None:
    ideal = Ideal(preset("gavel-las"), nodes(), [make_job(1), make_job(2)])
    ideal.run(until=400.0)
    ideal.common = {"rounds": {"due": "soon", "asked": 3, "problem": [1]}}
    ideal.notes = {JobId(1): (1, 2, 3, 4, 5, 6), JobId(2): ("x", "y", None, 1, [], "t", 0, 0, 0, "nan")}
    ideal.restart()
    ideal.run(until=4000.0)
    assert ideal.running() == {1, 2}


@pytest.mark.parametrize(
    ("chosen", "reads"),
    [
        ({"name": "tiresias-las"}, False),
        ({"name": "gandiva", "moves": ["pack"]}, True),
        ({"name": "gavel-las"}, True),
        ({"name": "./mine.py:Mine"}, True),
    ],
)
def test_orders_alone_read_no_rates(chosen: dict[str, Any], reads: bool) -> None:
    assert PolicySettings(**chosen).reads_rates is reads


class Late(Fixed):
    """Its problem is never solved."""

    def begin(self, given: Given) -> Problem | Allocated:
        return Problem(ProblemKind.LINEAR, {"jobs": len(given.jobs)})


@pytest.mark.parametrize("away_seconds", [0.0, 10_000.0])
def test_jobs_wait_longer_for_the_first_allocation_also_after_a_time_without_controller(
    away_seconds: float,
) -> None:
    made = rounds(Late({}), RoundSettings())
    node = make_node("n1", 1, model="a-v100")
    memory = Memory({"rounds": {"due": 100.0, "reset_at": 0.0, "solved": "before"}}, {})
    now = 100.0 + away_seconds
    snapshot = Snapshot(time=now, nodes={"n1": node}, jobs={JobId(1): make_job(1)})
    plan = made.plan(snapshot, memory if away_seconds else Memory())
    assert not plan.targets and plan.problems and plan.wake_at == pytest.approx(now + 30.0)
    later = replace(snapshot, time=now + 29.0, changed=Changes(frozenset(), frozenset()))
    assert not made.plan(later, Memory()).targets
    at_last = replace(later, time=now + 30.1)
    assert set(made.plan(at_last, Memory()).targets) == {JobId(1)}
