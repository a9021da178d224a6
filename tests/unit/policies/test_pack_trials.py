# SPDX-License-Identifier: GPL-2.0-or-later
"""Two jobs share GPUs on trial, and go on so only where that is faster than taking turns (SPEC 1.4, 1.7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from controller.model import Configuration, Job, JobId, Moved, Profile, Rate, Snapshot, StateAt, Verdict
from controller.policies import budget
from controller.policies.moves.trials import Trials
from controller.policies.placement.draft import Draft
from controller.policies.protocol import Policy
from controller.policies.settings import TrialSettings
from tests.unit.policies.ideal import GIB, Ideal, cluster, gpu_set, make_job, running, suspended
from tests.unit.policies.presets import preset
from tests.unit.policies.test_pack import packable

FIFO = preset("fifo", "pack")
GANDIVA = preset("gandiva", "pack", slice_seconds=60.0)
TRIED = "their memory fits together, and their rates are being compared"
BESIDE = {"light": 0.8, "heavy": 0.4}
"""Rate of a model beside another one, relative to that alone."""


def of_model(number: int, model: str | None, duration: float | None = None) -> Job:
    job = packable(number, duration)
    return replace(job, request=replace(job.request, model=model, nodes=1))


def ideal(jobs: list[Job], make: Callable[[], Policy] = GANDIVA, gpus: int = 1) -> Ideal:
    """Peaks are known. Job 1 of a model without a known rate goes 10 samples/s alone, job 2 20, and so on."""
    made = Ideal(make, cluster(1, gpus), jobs, bound=make is GANDIVA)
    made.profiles = {job.id: Profile(peak_memory_bytes=10 * GIB) for job in jobs}

    def speed(job: Job, beside: list[Job]) -> float:
        both = [job, *beside]
        slow = min(BESIDE[str(each.request.model or "light")] for each in both) if beside else 1.0
        return 10.0 * job.id * slow

    made.speed = speed
    return made


def known_alone(c: Ideal) -> Ideal:
    """Every model goes 10 samples/s alone, and so do the jobs."""
    c.rates = {model: {Configuration("a100", 1): Rate(10.0)} for model in BESIDE}
    speed = c.speed
    assert speed is not None
    c.speed = lambda job, beside: speed(job, beside) / job.id
    return c


def together(c: Ideal) -> set[frozenset[int]]:
    return {
        frozenset({int(job.id), *map(int, job.placement.shares_with)})
        for job in c.jobs.values()
        if job.placement.shares_with
    }


def steps(c: Ideal, seconds: float, every: float = 5.0) -> list[set[frozenset[int]]]:
    """Who share GPUs, as time goes on."""
    history, end = [], c.now + seconds
    while c.now < end:
        c.now += every
        c.step()
        history.append(together(c))
    return history


def test_light_jobs_run_alone_first_and_are_then_kept_together() -> None:
    c = ideal([of_model(1, None), of_model(2, None)])
    c.step()
    assert c.running() == {1}, "neither was measured alone"
    steps(c, 115.0)
    assert c.running() == {2}
    history = steps(c, 600.0)
    assert history[0] == {frozenset({1, 2})}, "on trial, as soon as both are known"
    assert all(pairs == {frozenset({1, 2})} for pairs in history)
    for one, other in ((1, 2), (2, 1)):
        words = f"shares its GPUs with job {other}: together they do 1.60 times what they do in turns"
        assert c.reasons[JobId(one)] == words
    assert c.running() == {1, 2}


def test_heavy_jobs_are_parted_after_their_trial_and_left_so_until_the_cooldown_is_over() -> None:
    c = known_alone(ideal([of_model(1, "heavy"), of_model(2, "heavy")]))
    c.step()
    assert together(c) == {frozenset({1, 2})}
    assert c.reasons[JobId(2)] == f"joins job 1 on its GPUs: {TRIED}"
    history = steps(c, 600.0)
    tried = [5.0 * number for number, pairs in enumerate(history, start=1) if pairs]
    assert tried == [5.0 * number for number in range(1, 12)], "for a minute, and not again"
    assert [bool(pairs) for pairs in steps(c, 3300.0)].count(True) == 12, "one more minute, an hour later"


def test_of_plans_that_follow_one_another_at_once_the_last_one_judges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget, "SEEN", 2)
    refusing = [packable(n, may=False) for n in (2, 3, 4, 5)]
    c = known_alone(
        ideal([of_model(1, "light"), *refusing, *(of_model(n, "light") for n in (6, 7))], FIFO, 5)
    )
    c.step()
    c.now = 60.0
    c.step()
    assert together(c) == {frozenset({1, 6})}, "on trial, with the second round"
    at_once: list[tuple[bool, bool]] = []
    c.on_plan = lambda snapshot, plan: at_once.append((plan.wake_at <= snapshot.time, bool(plan.moved)))
    c.now = 119.0
    c.step()
    c.now = 120.0
    at_once.clear()
    c.step()
    assert at_once[:2] == [(True, False), (False, True)]
    assert together(c) == {frozenset({1, 6})}, "kept"


@pytest.mark.parametrize(("model", "kept"), [("light", True), ("heavy", False)])
def test_rounds_judge_a_trial_and_remember_it(model: str, kept: bool) -> None:
    """A restart in the middle forgets nothing."""
    rounds = preset("gavel-las", "pack", round_seconds=600.0)
    c = known_alone(ideal([of_model(1, model), of_model(2, model)], rounds))
    c.step()
    assert together(c) == {frozenset({1, 2})}, "on trial"
    history = steps(c, 30.0)
    c.restart()
    history += steps(c, 270.0)
    assert [bool(pairs) for pairs in history] == [kept or number < 12 for number in range(1, 61)]
    (score, _at) = c.common["moves"]["trials"]["judged"].popitem()[1]
    assert score == pytest.approx(1.6 if kept else 0.8)


def test_both_are_told_what_the_trial_showed() -> None:
    c = known_alone(ideal([of_model(1, "heavy"), of_model(2, "heavy")]))
    c.step()
    steps(c, 55.0)
    c.now += 5.0
    plan = c.plan()
    undone = [Moved("pack", Verdict.UNDONE, JobId(i), pytest.approx(0.8)) for i in (1, 2)]  # type: ignore[arg-type]
    assert list(plan.moved) == undone
    gain = "together they do 0.80 times what they do in turns"
    assert plan.reasons[JobId(2)] == f"stops sharing GPUs with job 1: {gain}"
    assert plan.reasons[JobId(1)] == f"has its GPUs to itself again, without job 2: {gain}"
    assert not plan.targets[JobId(2)].placement.gpus
    assert plan.targets[JobId(1)].placement.gpus == gpu_set("n1:0")


def test_the_next_host_is_tried_when_the_first_one_failed() -> None:
    jobs = [of_model(1, "heavy", 900), of_model(2, "light", 900), of_model(3, "light", 900)]
    c = known_alone(ideal(jobs, FIFO, gpus=2))
    c.profiles[JobId(1)] = Profile(peak_memory_bytes=10 * GIB, utilization_fraction=0.2)
    c.step()
    assert together(c) == {frozenset({1, 3})}, "the GPU that is used least comes first"
    history = steps(c, 300.0)
    assert history[20] == history[-1] == {frozenset({2, 3})}


def test_the_guest_that_uses_its_gpu_least_comes_first() -> None:
    jobs = [of_model(number, "light", 900) for number in (1, 2, 3)]
    c = known_alone(ideal(jobs, FIFO))
    c.profiles[JobId(3)] = Profile(peak_memory_bytes=10 * GIB, utilization_fraction=0.1)
    c.step()
    assert together(c) == {frozenset({1, 3})}


def test_what_is_known_of_the_models_needs_no_other_trial() -> None:
    c = known_alone(ideal([of_model(1, "light", 100), of_model(2, "light", 900)], FIFO))
    steps(c, 70.0)
    c.add(of_model(3, "light", 900))
    c.profiles[JobId(3)] = Profile(peak_memory_bytes=10 * GIB)
    steps(c, 50.0)
    assert together(c) == {frozenset({2, 3})}
    why = "together such jobs do 1.60 times what they do in turns"
    assert c.reasons[JobId(3)] == f"joins job 2 on its GPUs: {why}"
    assert not c.common["moves"]["trials"]["open"]


def test_a_kept_pair_is_parted_when_it_becomes_slower_than_in_turns() -> None:
    c = known_alone(ideal([of_model(1, "light", 9000), of_model(2, "light", 9000)], FIFO))
    history = steps(c, 300.0)
    assert history[-1] == {frozenset({1, 2})}
    c.speed = lambda _job, beside: 4.9 if beside else 10.0
    c.now += 5.0
    c.events()
    plan = c.plan()
    assert plan.reasons[JobId(2)].endswith("together they do 0.98 times what they do in turns")
    assert not any(steps(c, 600.0))


@pytest.mark.parametrize(("rate", "kept"), [(5.3, True), (5.2, False)])
def test_five_percent_more_than_in_turns_are_needed(rate: float, kept: bool) -> None:
    c = known_alone(ideal([of_model(1, "light", 9000), of_model(2, "light", 9000)], FIFO))
    c.speed = lambda _job, beside: rate if beside else 10.0
    assert bool(steps(c, 120.0)[-1]) is kept


def test_jobs_that_were_not_measured_alone_are_not_packed() -> None:
    c = ideal([of_model(1, "light", 900), of_model(2, "light", 900)])
    c.speed = None
    assert not any(steps(c, 900.0))


def test_a_trial_that_shows_no_rates_ends() -> None:
    c = known_alone(ideal([of_model(1, "light", 9000), of_model(2, "light", 9000)], FIFO))
    c.speed = None
    history = steps(c, 620.0)
    assert history[118] and not history[-1]
    assert c.reasons[JobId(2)] == "waits for a free GPU"


def test_rates_are_waited_for_ever_more_seldom() -> None:
    c = known_alone(ideal([of_model(1, "light", 9000), of_model(2, "light", 9000)], FIFO))
    c.speed = None
    c.events()
    looks, wake = list[float](), c.settle()
    while together(c) or not looks:
        c.now = wake
        looks.append(c.now)
        wake = c.settle()
    waits = [after - before for before, after in pairwise(looks)][:-1]
    assert looks[0] == 60.0 and looks[-1] == 600.0
    assert waits == sorted(waits) and waits[-1] > 5 * waits[0] and len(looks) < 15


def waiting_pair(*, may_migrate: bool) -> Ideal:
    """Jobs 1 and 2 run; 3 is the guest of 1 by now, for 2 does not share."""
    jobs = [replace(of_model(n, "light", 9000.0), may_migrate=may_migrate) for n in (1, 2, 3)]
    jobs[1] = replace(jobs[1], request=replace(jobs[1].request, may_pack=False))
    return known_alone(ideal(jobs, FIFO, gpus=2))


def test_a_guest_goes_to_gpus_that_are_free() -> None:
    c = waiting_pair(may_migrate=True)
    c.run(until=399.0)
    assert together(c) == {frozenset({1, 3})}
    c.remove(2)
    plan = c.step()
    assert plan.targets[JobId(3)].placement.gpus == gpu_set("n1:1")
    assert plan.targets[JobId(3)].keep is StateAt.STORE
    assert plan.reasons[JobId(3)] == "stops sharing GPUs with job 1: 1 GPUs of n1 are free"
    assert plan.reasons[JobId(1)] == "has its GPUs to itself again, without job 3: 1 GPUs of n1 are free"
    assert not together(c)


def test_a_guest_that_may_not_migrate_stays() -> None:
    c = waiting_pair(may_migrate=False)
    c.run(until=399.0)
    c.remove(2)
    c.step()
    assert together(c) == {frozenset({1, 3})}


def test_a_trial_goes_on_over_slices_that_a_third_job_ends() -> None:
    jobs = [suspended(of_model(n, "light"), gpu_set("n1:0")) for n in (1, 2, 3)]
    jobs[2] = replace(jobs[2], request=replace(jobs[2].request, may_pack=False))
    c = known_alone(ideal(jobs, preset("gandiva", "pack", slice_seconds=25.0)))
    c.bound = True
    steps(c, 600.0)
    assert c.common["moves"]["trials"]["judged"] == {
        "pack light + light on 1 x 1 a100": [1.6, pytest.approx(200, abs=150)]
    }
    assert {frozenset({1, 2})} in steps(c, 200.0)


def test_another_controller_goes_on_with_the_trial() -> None:
    c = known_alone(ideal([of_model(1, "heavy"), of_model(2, "heavy")]))
    c.step()
    steps(c, 30.0)
    c.restart()
    history = steps(c, 60.0)
    assert [bool(pairs) for pairs in history] == [True] * 5 + [False] * 7


@pytest.mark.parametrize("damaged", [[], {"trials": 3}, {"trials": {"open": [[1]], "judged": {}}}])
def test_a_damaged_memory_is_one_with_nothing_in_it(damaged: Any) -> None:
    c = known_alone(ideal([of_model(1, "light"), of_model(2, "light")]))
    c.common["moves"] = damaged
    c.step()
    assert together(c) == {frozenset({1, 2})}


class Nothing:
    """No mechanism plans."""

    def change(self, *_: object) -> None: ...
    def restore(self, *_: object) -> None: ...


def test_jobs_of_a_trial_are_busy_for_all_moves() -> None:
    jobs = {JobId(n): running(make_job(n), gpu_set(f"n1:{n}")) for n in (1, 2, 3)}
    snapshot = Snapshot(time=5.0, nodes={}, jobs=jobs)
    draft = Draft(Nothing())
    long = TrialSettings(trial_seconds=60.0, cooldown_seconds=60.0)
    one = Trials(snapshot, draft, "one", long)
    one.begin("this", {JobId(1): 1.0, JobId(2): 1.0})
    one.judge("that", 1.5)
    one.save()
    other = Trials(snapshot, draft, "other", TrialSettings(trial_seconds=60.0, cooldown_seconds=1.0))
    assert [other.busy(job_id) for job_id in jobs] == [True, True, False]
    assert other.of(JobId(1)) is None and other.score("that") is None
    other.save()
    assert Trials(snapshot, draft, "one", long).score("that") == 1.5
    late = replace(snapshot, time=66.0, jobs={JobId(1): jobs[JobId(1)]})
    again = Trials(late, draft, "one", long)
    assert again.score("that") is None
    assert again.ripe(lambda _: True) == [] and not again.busy(JobId(1)), "one of its jobs has ended"


@pytest.mark.parametrize("doubled", [[2, 3], [1, 2]])
def test_of_a_memory_in_which_a_job_is_on_two_trials_nothing_is_kept(doubled: list[int]) -> None:
    """One of them would never end. `doubled`: the jobs of the second."""
    jobs = {JobId(n): running(make_job(n), gpu_set(f"n1:{n}")) for n in (1, 2, 3)}
    rows = [["one", "what", ids, [1.0, 1.0], 5.0, 0.0, False] for ids in ([1, 2], doubled)]
    snapshot, draft = Snapshot(time=5.0, nodes={}, jobs=jobs), Draft(Nothing())
    draft.remembered["trials"] = {"open": rows, "judged": {"one that": [1.5, 5.0]}}
    settings = TrialSettings(trial_seconds=60.0, cooldown_seconds=60.0)
    trials = Trials(snapshot, draft, "one", settings)
    assert not any(map(trials.busy, jobs)) and trials.score("that") is None
    draft.remembered["trials"] = {"open": rows[:1], "judged": {"one that": [1.5, 5.0]}}
    trials = Trials(snapshot, draft, "one", settings)
    assert trials.busy(JobId(2)) and not trials.busy(JobId(3)) and trials.score("that") == 1.5
