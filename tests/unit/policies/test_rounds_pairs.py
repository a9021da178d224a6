# SPDX-License-Identifier: GPL-2.0-or-later
"""Rounds with pairs: two jobs on the same GPUs as one row of the allocation (SPEC 3.3, 3.5; vector V15)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from controller.model import (
    Configuration,
    GpuId,
    Job,
    JobId,
    Plan,
    Profile,
    Rate,
    Reason,
    Snapshot,
    reason_of,
)
from controller.policies.mechanisms.rounds import pairs
from controller.policies.mechanisms.rounds.member import Account, Member
from controller.policies.mechanisms.rounds.pairs import PARTNERS, find_pairs
from controller.policies.mechanisms.rounds.speeds import Speeds
from tests.unit.policies.ideal import GIB, Ideal, gpu_set, make_job, make_node, running, suspended
from tests.unit.policies.presets import preset

TYPE = "a-v100"
Beside = Mapping[tuple[str, str], float]
"""Samples per second of the first model beside the second."""


def sharing(number: int, model: str, *, gpus: int = 1, may: bool = True, submit: float = 0.0) -> Job:
    job = make_job(number, gpus, model=model, submit=submit)
    return replace(job, request=replace(job.request, may_pack=may))


def rates(
    beside: Beside, types: Sequence[str] = (TYPE,), gpus: int = 1
) -> dict[str, dict[Configuration, Rate]]:
    """All do one sample per second alone."""
    found: dict[str, dict[Configuration, Rate]] = {}
    for (model, other), rate in beside.items():
        for gpu_type in types:
            for name in (model, other):
                found.setdefault(name, {})[Configuration(gpu_type, gpus)] = Rate(1.0)
            found[model][Configuration(gpu_type, gpus, 1, (other,))] = Rate(rate)
    return found


def ideal(
    jobs: Sequence[Job],
    beside: Beside,
    *,
    gpus: int = 1,
    peaks: Mapping[int, int] | None = None,
    bound: bool = False,
    **settings: object,
) -> Ideal:
    """On GPUs of 80 GiB. `peaks`: GiB by job; 10 where it is not said."""
    chosen = {"space_sharing": True, "change_types": not bound, "reset_seconds": 1e6, **settings}
    made = Ideal(preset("gavel-las", **chosen), [make_node("n1", gpus, model=TYPE)], jobs, bound=bound)
    made.rates = rates(beside)
    sizes = peaks or {}
    made.profiles = {job.id: Profile(peak_memory_bytes=sizes.get(job.id, 10) * GIB) for job in jobs}
    return made


def history(made: Ideal, rounds: int) -> Counter[frozenset[int]]:
    """Which jobs run together, in how many of so many rounds."""
    found: Counter[frozenset[int]] = Counter()
    for number in range(rounds):
        made.run(until=360.0 * number + 1)
        on: dict[GpuId, set[int]] = {}
        for job in made.jobs.values():
            for gpu in job.placement.gpus:
                on.setdefault(gpu, set()).add(int(job.id))
        found.update({frozenset(together) for together in on.values()})
    return found


TWO = [sharing(1, "one"), sharing(2, "other")]


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize(
    ("together", "expected"),
    [
        ((0.7, 0.7), {(1, 2): 80}),
        ((0.4, 0.5), {(1,): 40, (2,): 40}),
        ((0.9, 0.3), {(1, 2): 50, (2,): 30}),
    ],
)
def test_v15_in_rounds(
    together: tuple[float, float], expected: Mapping[tuple[int, ...], int], bound: bool
) -> None:
    beside = {("one", "other"): together[0], ("other", "one"): together[1]}
    found = history(ideal(TWO, beside, bound=bound), 80)
    assert {tuple(sorted(jobs)): count for jobs, count in found.items()} == pytest.approx(
        expected, abs=2 if bound else 1
    )


GOOD = {("one", "other"): 0.9, ("other", "one"): 0.9}


@pytest.mark.parametrize(
    "change",
    [
        {"jobs": [sharing(1, "one"), sharing(2, "other", may=False)]},
        {"peaks": {1: 40, 2: 40}},
        {"peaks": {1: 0}},
        {"jobs": [sharing(1, "one"), replace(sharing(2, "other"), priority_class=1)]},
        {"beside": {("one", "other"): 0.9}},
        {"space_sharing": False},
    ],
)
def test_jobs_that_may_not_share_never_do(change: dict[str, object]) -> None:
    made = ideal(**{"jobs": TWO, "beside": GOOD, **change})  # type: ignore[arg-type]
    assert all(len(jobs) == 1 for jobs in history(made, 10))


def test_a_pair_that_goes_on_is_not_stopped() -> None:
    made = ideal(TWO, GOOD)
    assert history(made, 20) == {frozenset({1, 2}): 20}
    assert made.timeline.preemptions == 0
    assert made.reasons[JobId(2)].startswith(f"its turn on {TYPE} beside job 1: it is allocated 1.00 of")
    assert reason_of(made.reasons[JobId(2)]) is Reason.ITS_TURN


def test_of_two_that_part_one_keeps_the_gpu_and_is_not_stopped() -> None:
    made = ideal(TWO, {("one", "other"): 0.9, ("other", "one"): 0.3})
    stopped: list[int] = []
    said: set[str] = set()

    def watch(_: Snapshot, plan: Plan) -> None:
        said.update(plan.reasons.values())
        stopped.extend(int(i) for i, target in plan.targets.items() if not target.placement.gpus)

    made.on_plan = watch
    found = history(made, 16)
    assert found[frozenset({1, 2})] == 10 and found[frozenset({2})] == 6
    assert stopped and set(stopped) == {1}
    assert "has its GPUs to itself in this round" in said


def test_who_is_left_alone_within_a_round_goes_on_beyond_its_part() -> None:
    made = ideal(TWO, GOOD)
    made.run(until=100.0)
    made.remove(1)
    made.run(until=200.0)
    assert made.running() == {2}
    note = made.notes[JobId(2)]
    assert note is not None and note[4] is True


def test_a_guest_whose_memory_grew_leaves_and_does_not_come_back_in_this_round() -> None:
    made = ideal(TWO, GOOD)
    made.run(until=100.0)
    assert made.running() == {1, 2}
    made.profiles[JobId(1)] = Profile(peak_memory_bytes=70 * GIB)
    made.change(1)
    made.run(until=200.0)
    assert made.running() == {1}
    assert all(len(jobs) == 1 for jobs in history(made, 6))


def test_a_pair_that_cannot_be_stopped_now_goes_on_as_a_pair() -> None:
    made = ideal([*TWO, sharing(3, "heavy", may=False)], GOOD)
    made.run(until=1.0)
    while made.running() != {1, 2}:
        made.run(until=made.now + 360.0)
        assert made.now < 3600
    made.change(1, may_stop=False)
    made.run(until=made.now + 720.0)
    assert made.running() == {1, 2}
    notes = [made.notes[JobId(number)] or () for number in (1, 2)]
    assert [note[3] for note in notes] == [2, 1]


def test_what_a_job_has_beside_another_does_not_count_as_its_part_alone() -> None:
    member = Member(make_job(1), types=(TYPE,))
    alone, pair = (TYPE, JobId(0)), (TYPE, JobId(2))
    member.open([alone, pair], 0.0)
    member.usage = member.usage.started(0.0, 1, TYPE)
    member.assign(TYPE, JobId(2), False, 0.0)
    assert (member.received(alone, 100.0), member.received(pair, 100.0)) == (0.0, 100.0)
    member.settle(100.0)
    member.assign(TYPE, JobId(0), False, 100.0)
    assert (member.received(alone, 130.0), member.received(pair, 130.0)) == (30.0, 100.0)
    member.settle(130.0)
    member.assign(TYPE, JobId(0), True, 130.0)
    assert (member.received(alone, 200.0), member.received(pair, 200.0)) == (30.0, 100.0)
    other = Member(make_job(1))
    other.recall(member.remembered())
    assert other.remembered() == member.remembered()
    member.reset({alone: 100.0, pair: 100.0}, 200.0)
    assert [member.accounts[slot].deficit for slot in (alone, pair)] == [70.0, 0.0]
    assert member.received(alone, 200.0) == member.received(pair, 200.0) == 0.0


def test_a_pair_without_a_part_is_forgotten_at_the_next_reset() -> None:
    member = Member(make_job(1), types=(TYPE,))
    member.accounts = {(TYPE, JobId(0)): Account(), (TYPE, JobId(2)): Account(5.0)}
    member.reset({(TYPE, JobId(0)): 10.0}, 10.0)
    assert list(member.accounts) == [(TYPE, JobId(0))]


def test_pairs_without_a_place_keep_no_gpu_from_the_job_behind_them() -> None:
    """Of eight jobs only the last one has room in the memory of its node; each of the others is in up to
    seven pairs, which have no room either."""
    jobs = [replace(sharing(number, "one"), memory_per_node_bytes=20 * GIB) for number in range(1, 8)]
    made = ideal([*jobs, sharing(8, "one")], {("one", "one"): 0.9})
    made.change_node(replace(made.nodes["n1"], memory_free_bytes=16 * GIB))
    made.run(until=10.0)
    assert made.running() == {8}


# -- which pairs are stated ------------------------------------------------------------------------------


def found_pairs(jobs: Sequence[Job], beside: Beside, *, bound: bool = False) -> list[tuple[int, int]]:
    node = make_node("n1", 4, model=TYPE)
    snapshot = Snapshot(
        time=0.0,
        nodes={"n1": node},
        jobs={job.id: job for job in jobs},
        profiles={job.id: Profile(peak_memory_bytes=GIB) for job in jobs},
        rates=rates(beside),
    )
    members = [Member(job, types=(TYPE,), bound=bound and bool(job.placement.allocation)) for job in jobs]
    found = find_pairs(snapshot, members, Speeds(snapshot.rates))
    return [(int(pair.jobs[0]), int(pair.jobs[1])) for pair in found]


def test_of_models_that_gain_the_same_those_first_by_name_are_chosen() -> None:
    """The order of a set of names depends on the hash seed of the process."""
    models = [f"m{number:02}" for number in range(12)]
    beside = {(one, other): 0.8 for one in models for other in models if one != other}
    found = found_pairs([sharing(number, model) for number, model in enumerate(models, 1)], beside)
    assert found == [(i, j) for i in range(1, PARTNERS + 1) for j in range(i + 1, 13)]


def test_rates_of_a_pair_are_those_of_each_in_the_order_of_its_jobs() -> None:
    beside = {("one", "other"): 0.9, ("other", "one"): 0.3}
    jobs = [sharing(2, "one"), sharing(1, "other")]
    snapshot = Snapshot(
        time=0.0,
        nodes={"n1": make_node("n1", 1, model=TYPE)},
        jobs={job.id: job for job in jobs},
        profiles={job.id: Profile(peak_memory_bytes=GIB) for job in jobs},
        rates=rates(beside),
    )
    (pair,) = find_pairs(snapshot, [Member(job, types=(TYPE,)) for job in jobs], Speeds(snapshot.rates))
    assert (pair.jobs, dict(pair.throughput)) == ((1, 2), {TYPE: (0.3, 0.9)})


def test_pairs_grow_with_the_jobs_and_not_with_their_square() -> None:
    count = 60
    jobs = [sharing(number, "same") for number in range(1, count + 1)]
    found = found_pairs(jobs, {("same", "same"): 0.8})
    assert count <= len(found) <= pairs.PARTNERS * count
    of_each = Counter(number for jobs_of in found for number in jobs_of)
    assert len(of_each) == count and max(of_each.values()) <= 2 * pairs.PARTNERS


def test_two_that_gain_nothing_are_no_pair() -> None:
    jobs = [sharing(1, "one"), sharing(2, "other")]
    assert not found_pairs(jobs, {("one", "other"): 0.4, ("other", "one"): 0.6})
    assert found_pairs(jobs, {("one", "other"): 0.41, ("other", "one"): 0.6})


def test_the_best_partners_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "PARTNERS", 1)
    beside = {("a", "b"): 0.6, ("b", "a"): 0.6, ("a", "c"): 0.9, ("c", "a"): 0.9}
    jobs = [sharing(1, "a"), sharing(2, "b"), sharing(3, "c")]
    # Job 2 has no other choice than job 1.
    assert found_pairs(jobs, beside) == [(1, 2), (1, 3)]


def test_jobs_that_slurm_has_bound_elsewhere_are_no_pair() -> None:
    here, there = gpu_set("n1:0"), gpu_set("n1:1")
    jobs = [
        running(sharing(1, "one"), here),
        suspended(replace(sharing(2, "other"), may_move=False), here),
        suspended(replace(sharing(3, "other"), may_move=False), there),
        sharing(4, "other"),
    ]
    jobs[0] = replace(jobs[0], may_move=False)
    assert found_pairs(jobs, GOOD, bound=True) == [(1, 2), (1, 4)]
    assert found_pairs(jobs, GOOD) == [(1, 2), (1, 3), (1, 4)]


# -- what always holds -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_no_gpu_has_more_than_two_and_all_jobs_end(seed: int, bound: bool) -> None:
    """Each plan equals one from nothing (asserted by `Ideal`)."""
    draw, models, types = random.Random(seed), ("a", "b", "c"), (TYPE, "b-k80")
    beside = {(m, o): draw.uniform(0.4, 0.95) for m in models for o in models}
    jobs, submit = [], 0.0
    for number in range(1, 19):
        size, may = draw.choice([1, 1, 1, 2]), draw.random() < 0.8
        job = sharing(number, draw.choice(models), gpus=size, may=may, submit=submit)
        duration, weight = draw.choice([300.0, 900.0, 2500.0]), draw.choice([1.0, 2.0])
        request = replace(job.request, duration_seconds=duration, weight=weight)
        jobs.append(replace(job, request=request, priority_class=draw.choice([0, 0, 0, 1])))
        submit += draw.choice([0.0, 0.0, 100.0])
    chosen = preset("gavel-las", space_sharing=True, change_types=not bound, refill=seed % 2 == 0)
    made = Ideal(
        chosen, [make_node("n1", 2, model=types[0]), make_node("n2", 3, model=types[1])], jobs, bound=bound
    )
    for size in (1, 2):
        for model, table in rates(beside, types, size).items():
            made.rates.setdefault(model, {}).update(table)
    made.profiles = {job.id: Profile(peak_memory_bytes=draw.choice([10, 30, 45]) * GIB) for job in jobs}
    met: set[frozenset[JobId]] = set()

    def watch(snapshot: Snapshot, plan: Plan) -> None:
        on: dict[GpuId, list[Job]] = {}
        wanted = {i: target.placement for i, target in plan.targets.items()}
        for job_id, job in snapshot.jobs.items():
            placement = wanted.get(job_id, job.placement)
            for gpu in placement.gpus:
                on.setdefault(gpu, []).append(job)
        for together in on.values():
            assert len(together) <= 2
            if len(together) == 2:
                one, other = together
                placements = [wanted.get(j.id, j.placement) for j in together]
                assert placements[0].gpus == placements[1].gpus
                assert placements[0].shares_with == {other.id} and placements[1].shares_with == {one.id}
                assert one.request.may_pack and other.request.may_pack
                assert one.priority_class == other.priority_class
                peaks = [made.profiles[j.id].peak_memory_bytes for j in together]
                assert sum(peaks) <= 0.9 * 80 * GIB
                met.add(frozenset({one.id, other.id}))

    made.on_plan = watch
    assert len(made.run().ends) == 18
    assert met
