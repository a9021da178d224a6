# SPDX-License-Identifier: GPL-2.0-or-later
"""Two jobs that ask for it and ran alone share GPUs, and no others ever do (SPEC 1.4). Trials:
test_pack_trials.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from controller.model import Configuration, Job, JobId, Phase, Profile, Rate, Reason, reason_of
from controller.policies import budget
from controller.policies.protocol import Policy
from tests.unit.policies.ideal import GIB, Ideal, cluster, gpu_set, make_job, running, suspended
from tests.unit.policies.presets import preset

FIFO, SRTF = preset("fifo", "pack"), preset("srtf", "pack")
GANDIVA = preset("gandiva", "pack", slice_seconds=60.0)
GPU = gpu_set("n1:0")


def packable(
    number: int, duration: float | None = None, gpus: int = 1, *, submit: float = 0.0, may: bool = True
) -> Job:
    job = make_job(number, gpus, duration, submit=submit, model="m")
    return replace(job, request=replace(job.request, may_pack=may))


def ideal(make: Callable[[], Policy], jobs: list[Job], nodes: int = 1, gpus: int = 1, **peaks: int) -> Ideal:
    """On GPUs of 80 GiB; `j1=30` is the measured peak of job 1 in GiB. Their model's rates are known."""
    made = Ideal(make, cluster(nodes, gpus), jobs, bound=make is GANDIVA)
    made.rates = {"m": {Configuration("a100", size): Rate(10.0) for size in (1, 2)}}
    made.profiles = {JobId(int(n[1:])): Profile(peak_memory_bytes=gib * GIB) for n, gib in peaks.items()}
    return made


def test_two_that_allow_it_run_at_once() -> None:
    c = ideal(FIFO, [packable(1, 10), packable(2, 10), packable(3, 10, may=False)], j1=30, j2=30, j3=1)
    c.step()
    assert c.running() == {1, 2}
    both = "their memory fits together, and their rates are being compared"
    assert c.reasons[JobId(1)] == f"shares its GPUs with job 2: {both}"
    assert c.reasons[JobId(2)] == f"joins job 1 on its GPUs: {both}"
    assert c.run().ends == {1: 10, 2: 10, 3: 20}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_both_have_to_ask_for_it(first: bool, second: bool) -> None:
    c = ideal(FIFO, [packable(1, 10, may=first), packable(2, 10, may=second)], j1=1, j2=1)
    assert c.run().ends == ({1: 10, 2: 10} if first and second else {1: 10, 2: 20})


@pytest.mark.parametrize("peaks", [{"j1": 50, "j2": 30}, {"j1": 30}, {"j2": 30}, {}])
def test_not_where_memory_is_short_or_was_not_measured(peaks: dict[str, int]) -> None:
    assert ideal(FIFO, [packable(1, 10), packable(2, 10)], **peaks).run().ends == {1: 10, 2: 20}


def test_what_others_of_its_model_had_is_no_measurement_of_the_job() -> None:
    c = ideal(FIFO, [packable(1, 10), packable(2, 10)], j1=10)
    c.models = {"m": Profile(peak_memory_bytes=10 * GIB)}
    assert c.run().ends == {1: 10, 2: 20}


def test_no_more_than_two() -> None:
    c = ideal(FIFO, [packable(n, 10) for n in (1, 2, 3, 4)], j1=10, j2=10, j3=10, j4=10)
    assert c.run().ends == {1: 10, 2: 10, 3: 20, 4: 20}


def test_nothing_is_packed_while_there_is_room() -> None:
    c = ideal(FIFO, [packable(1, 10), packable(2, 10)], gpus=2, j1=10, j2=10)
    c.step()
    assert len({job.placement.gpus for job in c.jobs.values()}) == 2


def test_gangs_of_one_size_only() -> None:
    jobs = [packable(1, 10, 2), packable(2, 10, 2), packable(3, 10, 1)]
    assert ideal(FIFO, jobs, gpus=2, j1=30, j2=30, j3=1).run().ends == {1: 10, 2: 10, 3: 20}


def test_classes_are_not_mixed() -> None:
    jobs = [replace(packable(1, 10), priority_class=1), packable(2, 10)]
    assert ideal(FIFO, jobs, j1=10, j2=10).run().ends == {1: 10, 2: 20}


def test_the_guest_joins_the_host_that_leaves_the_most_memory() -> None:
    jobs = [packable(n, 10) for n in (1, 2, 3)]
    c = ideal(FIFO, jobs, gpus=2, j1=30, j2=10, j3=30)
    c.step()
    assert c.jobs[JobId(3)].placement.shares_with == {2}


def test_only_where_slurm_can_bind_another_job() -> None:
    c = ideal(FIFO, [packable(1, 10), packable(2, 10)], j1=10, j2=10)
    node = c.nodes["n1"]
    c.nodes["n1"] = replace(node, gpus=tuple(replace(gpu, shards=1) for gpu in node.gpus))
    assert c.run().ends == {1: 10, 2: 20}


def test_a_guest_whose_host_ended_has_the_gpu_alone() -> None:
    c = ideal(FIFO, [packable(1, 5), packable(2, 20), packable(3, 10, may=False)], j1=30, j2=30)
    c.run(until=6)
    assert not c.jobs[JobId(2)].placement.shares_with
    alone = "has its GPUs to itself again: the job that it shared them with has left them"
    assert c.reasons[JobId(2)] == alone
    assert c.run().ends == {1: 5, 2: 20, 3: 30}


def test_a_host_whose_guest_ended_has_the_gpu_alone_until_the_next_one_joins() -> None:
    c = ideal(FIFO, [packable(1, 20), packable(2, 5), packable(3, 5, submit=9)], j1=30, j2=30, j3=30)
    c.run(until=6)
    assert not c.jobs[JobId(1)].placement.shares_with
    assert c.run().ends == {1: 20, 2: 5, 3: 14}


def test_a_guest_leaves_with_its_host() -> None:
    jobs = [packable(1, 50), packable(2, 60), packable(3, 10, submit=5, may=False)]
    c = ideal(SRTF, jobs, j1=30, j2=30)
    c.run(until=5)
    c.events()
    reasons = c.plan().reasons
    assert reasons[JobId(1)] == "stops for jobs before it: waits for a free GPU"
    assert reasons[JobId(2)] == "stops with job 1, which it shared GPUs with: others come before that one"
    timeline = c.run()
    assert timeline.runs[3] == [(5, 15)]
    assert timeline.runs[1] == [(0, 5), (15, 60)]
    assert timeline.runs[2] == [(0, 5), (15, 70)]


def pair(**changes: bool) -> list[Job]:
    """Jobs 1 and 2 on one GPU. `changes`: of the guest."""
    jobs = [running(packable(n), GPU) for n in (1, 2)]
    jobs = [
        replace(job, placement=replace(job.placement, shares_with=frozenset({JobId(3 - job.id)})))
        for job in jobs
    ]
    return [jobs[0], replace(jobs[1], **changes)]  # type: ignore[arg-type]


def test_they_are_separated_when_a_peak_grows_beyond_what_fits() -> None:
    c = ideal(FIFO, pair(), j1=30, j2=30)
    c.step()
    assert c.running() == {1, 2}
    c.profiles[JobId(1)] = Profile(peak_memory_bytes=60 * GIB)
    c.change(1)
    c.step()
    assert c.running() == {1}
    assert not c.jobs[JobId(1)].placement.shares_with
    c.step()
    assert reason_of(c.reasons[JobId(2)]) is Reason.WAITS_FOR_GPUS


def test_the_guest_is_told_why_they_are_separated() -> None:
    c = ideal(FIFO, pair(), j1=60, j2=30)
    c.events()
    plan = c.plan()
    why = "their memory, 60.0 and 30.0 GiB, does not fit into 72.0 GiB"
    assert plan.reasons[JobId(2)] == f"stops sharing GPUs with job 1: {why}"


def test_jobs_that_did_not_ask_are_separated_whatever_moves_are_set() -> None:
    first, second = pair()
    refusing = replace(second, request=replace(second.request, may_pack=False))
    c = ideal(preset("fifo"), [first, refusing], j1=10, j2=10)
    c.step()
    assert c.running() == {1}


def test_jobs_that_overlap_are_no_pair_and_all_their_gpus_are_taken() -> None:
    """Such as where one was started behind the controller's back."""
    first, second = packable(1, gpus=2), packable(2, gpus=2)
    jobs = [running(first, gpu_set("n1:0", "n1:1")), running(second, gpu_set("n1:1", "n1:2"))]
    jobs = [
        replace(j, placement=replace(j.placement, shares_with=frozenset({JobId(3 - j.id)}))) for j in jobs
    ]
    c = ideal(FIFO, [jobs[0], replace(jobs[1], may_stop=False), packable(3, 1.0)], gpus=3, j1=1, j2=1, j3=1)
    c.check = False
    c.events()
    plan = c.policy.plan(c.snapshot(c.changed), c.memory())
    assert not plan.targets, "no GPU is free, the third is not put beside one of them"
    c.change(2, may_stop=True)
    c.first = True
    plan = c.policy.plan(c.snapshot(c.changed), c.memory())
    assert not plan.targets[JobId(2)].placement.gpus
    assert plan.reasons[JobId(2)] == "stops: job 1 is on some of its GPUs"


def test_a_host_stays_while_its_guest_cannot_be_stopped() -> None:
    """No other job may come beside the guest."""
    c = ideal(SRTF, [*pair(may_stop=False), packable(3, 1.0)], j1=30, j2=30)
    c.step()
    assert c.running() == {1, 2}
    c.change(2, may_stop=True)
    c.step()
    assert c.running() == {3}


def test_in_slices_two_that_allow_it_do_not_take_turns() -> None:
    jobs = [replace(packable(n), request=replace(packable(n).request, nodes=1)) for n in (1, 2)]
    c = ideal(GANDIVA, jobs, j1=30)
    c.step()
    assert c.running() == {1}, "the second has not been measured yet"
    c.now = 60.0
    c.step()
    assert c.running() == {2}
    c.profiles[JobId(2)] = Profile(peak_memory_bytes=30 * GIB)
    c.change(2)
    c.step()
    assert c.running() == {2}, "the one with the lower id stands for both, so it has to be the host"
    c.now = 120.0
    assert c.slices(4) == [{1, 2}] * 4
    assert not c.timeline.preemptions > 2


def test_in_slices_a_third_takes_turns_with_both() -> None:
    jobs = [suspended(packable(n, may=n < 3), GPU) for n in (1, 2, 3)]
    c = ideal(GANDIVA, jobs, j1=30, j2=30, j3=30)
    c.check = False
    history = c.slices(9)
    assert {3} in history and {1, 2} in history
    assert all(jobs in ({3}, {1, 2}, {2}) for jobs in history)


def test_a_suspended_guest_joins_only_on_gpus_that_slurm_bound_it_to() -> None:
    elsewhere = suspended(packable(2), gpu_set("n2:0"))
    c = ideal(FIFO, [running(packable(1), GPU), elsewhere, running(packable(3, may=False), gpu_set("n2:0"))])
    c.profiles = {JobId(n): Profile(peak_memory_bytes=10 * GIB) for n in (1, 2, 3)}
    c.nodes |= {node.name: node for node in cluster(2, 1)}
    c.step()
    assert c.running() == {1, 3}


def test_a_job_in_transition_is_no_host() -> None:
    first = replace(running(packable(1), GPU), phase=Phase.STARTING, may_stop=False, switching=True)
    c = ideal(FIFO, [first, packable(2)], j1=10, j2=10)
    c.step()
    assert c.running() == {1}
    c.change(1, phase=Phase.RUNNING, may_stop=True, switching=False)
    c.step()
    assert c.running() == {1, 2}


def test_pairs_are_made_in_portions_and_all_come_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def packed(portion: int, looks: int) -> tuple[list[int], dict[int, frozenset[JobId]], dict[int, float]]:
        monkeypatch.setattr(budget, "PAIR", budget.LOOKS // portion)
        monkeypatch.setattr(budget, "SEEN", looks)
        jobs = [packable(n, 10) for n in range(1, 11)]
        c = ideal(FIFO, jobs, gpus=5, **{f"j{n}": 30 for n in range(1, 11)})
        joins: list[int] = []
        c.on_plan = lambda _snapshot, plan: joins.append(
            sum(target.placement.guest(i) for i, target in plan.targets.items())
        )
        c.step()
        pairs = {int(job.id): job.placement.shares_with for job in c.jobs.values()}
        return joins, pairs, c.run().ends

    at_once, pairs, ends = packed(250, 250)
    assert max(at_once) == 5
    for portion, looks in ((2, 250), (250, 2), (2, 3)):
        in_portions, same_pairs, same_ends = packed(portion, looks)
        assert max(in_portions) == 2
        assert same_ends == ends and all(same_pairs.values())
        # Who joins whom depends on which hosts are looked at together.
        assert looks < 250 or same_pairs == pairs


def test_hosts_beyond_those_that_one_plan_looks_at_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first four never share, so the plans after the first one go on with others, and begin anew."""
    monkeypatch.setattr(budget, "SEEN", 2)
    jobs = [packable(n, 10, may=n > 4) for n in range(1, 8)]
    c = ideal(FIFO, jobs, gpus=5, **{f"j{n}": 30 for n in range(1, 8)})
    c.step()
    assert c.jobs[JobId(5)].placement.shares_with == {6}
    assert c.run().ends == {1: 10, 2: 10, 3: 10, 4: 10, 5: 10, 6: 10, 7: 20}


@pytest.mark.parametrize(("guest", "host"), [(4, 1), (3, 2)])
def test_a_guest_on_trial_joins_its_host_and_others_try_none_that_is_on_trial(
    monkeypatch: pytest.MonkeyPatch, guest: int, host: int
) -> None:
    """Job 1 is on trial with job 4. The host that is tried first, for the memory that it leaves, is the other
    one in both cases."""
    monkeypatch.setattr(budget, "TRIED", 1)
    jobs = [running(packable(n), gpu_set(f"n1:{n}")) for n in (1, 2)]
    jobs += [replace(packable(n), may_start=n == guest) for n in (3, 4)]
    first, second = (40, 10) if guest == 4 else (10, 40)
    c = ideal(FIFO, jobs, gpus=3, j1=first, j2=second, j3=20, j4=20)
    c.nodes["n1"] = replace(c.nodes["n1"], gpus=c.nodes["n1"].gpus[1:])
    trial = ["pack", "m + m on 1 x 1 a100", [1, 4], [10.0, 10.0], 0.0, 0.0, False]
    c.common["moves"] = {"trials": {"open": [trial], "judged": {}}}
    c.step()
    assert c.jobs[JobId(guest)].placement.shares_with == {host}
