# SPDX-License-Identifier: GPL-2.0-or-later
"""What users read of jobs that wait, start, stop and stay: state, cause, and what comes next."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from controller.act.actions import Action, Resume, Withdraw
from controller.act.diff import diff
from controller.model import (
    NOWHERE,
    FailedSuspends,
    Job,
    JobId,
    Phase,
    Placement,
    Profile,
    Reason,
    Snapshot,
    StateAt,
    SuspendMethod,
    Target,
    Trespass,
    Unsuspendable,
    Why,
    reason_of,
)
from tests.unit.policies.ideal import GIB, Ideal, cluster, gpu_set, make_job, make_node, running, suspended
from tests.unit.policies.presets import POLICIES, preset

GPU = gpu_set("n1:0")
GANDIVA = preset("gandiva")
LAS = preset("tiresias-las", queue_limits=[60.0])


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def said(ideal: Ideal, number: int) -> str:
    """Once, what the next plan says of a job."""
    ideal.events()
    ideal.plan()
    return ideal.reasons[JobId(number)]


def reason(ideal: Ideal, number: int) -> Reason:
    """The kind of what was said of it last."""
    return reason_of(ideal.reasons[JobId(number)])


@pytest.mark.parametrize("make", [GANDIVA, *POLICIES.values()], ids=["gandiva", *POLICIES])
def test_a_job_that_did_not_start_is_told_when_it_is_tried_again(make: object) -> None:
    job = make_job(1, may_start=False, held_until=3661.0)
    c = Ideal(make, cluster(1, 1), [job])  # type: ignore[arg-type]
    assert said(c, 1) == "start failed; retry at 01:01:01"
    assert reason(c, 1) is Reason.OPERATION_FAILED
    c.change(1, failed_start=Why(Reason.AT_LIMIT, "AssocGrpGRES"))
    assert said(c, 1) == "start failed (AssocGrpGRES); retry at 01:01:01"
    assert reason(c, 1) is Reason.AT_LIMIT
    c.change(1, may_start=True, held_until=None)
    assert reason_of(said(c, 1)) in (Reason.ITS_TURN, Reason.WAITS_FOR_GPUS, Reason.WAITS_FOR_TURN)


def test_a_suspended_job_that_did_not_go_on() -> None:
    job = replace(suspended(make_job(1), GPU), may_start=False, held_until=60.0)
    assert said(Ideal(LAS, cluster(1, 1), [job]), 1) == "resume failed; retry at 00:01:00"


def test_a_job_that_is_not_eligible_is_not_said_to_wait_for_gpus() -> None:
    c = Ideal(LAS, cluster(1, 1), [running(make_job(1), GPU), make_job(2)])
    assert said(c, 2) == "waits in queue 1 of 2 for a free GPU"
    c.change(2, phase=Phase.INELIGIBLE, may_start=False)
    assert said(c, 2) == "may not start yet"
    assert reason(c, 2) is Reason.NOT_ELIGIBLE
    c.change(2, obstacle="waits for its array's limit: 2 tasks at a time (%2)")
    assert said(c, 2) == "waits for its array's limit: 2 tasks at a time (%2)"
    assert reason(c, 2) is Reason.NOT_ELIGIBLE
    c.change(2, obstacle=Why(Reason.HELD, "held by its user"))
    assert (said(c, 2), reason(c, 2)) == ("held by its user", Reason.HELD)


def test_a_job_that_was_to_leave_and_did_not() -> None:
    c = Ideal(preset("srtf"), cluster(1, 1), [running(make_job(1, 1, 50.0), GPU), make_job(2, 1, 5.0)])
    c.events()
    plan = c.policy.plan(c.snapshot(c.changed), c.memory())
    assert plan.reasons[JobId(1)] == "stops for jobs before it: waits for a free GPU"
    assert reason_of(plan.reasons[JobId(1)]) is Reason.PREEMPTED
    c.first, c.check = False, False
    c.change(1, may_stop=False, held_until=90.0)
    assert said(c, 1) == "keeps its GPUs: an operation on it failed; retry at 00:01:30"
    assert reason(c, 1) is Reason.OPERATION_FAILED
    assert said(c, 2) == "waits for a free GPU"


def test_a_job_that_cannot_be_suspended() -> None:
    c = Ideal(preset("srtf"), cluster(1, 1), [running(make_job(1, 1, 50.0), GPU), make_job(2, 1, 5.0)])
    c.events()
    c.policy.plan(c.snapshot(c.changed), c.memory())
    c.first, c.check = False, False
    c.change(1, may_stop=False)
    assert said(c, 1) == "keeps its GPUs: it cannot be suspended at present"
    assert reason(c, 1) is Reason.CANNOT_BE_SUSPENDED


def test_gangs() -> None:
    c = Ideal(LAS, cluster(2, 4), [make_job(n, 4) for n in (1, 2)])
    assert said(c, 1) == "its turn, and the GPUs are free"
    assert reason(c, 1) is Reason.ITS_TURN
    c.add(make_job(3, 2), make_job(4, 16))
    assert said(c, 3) == "waits in queue 1 of 2 for 2 free GPUs"
    assert said(c, 4) == "16 GPUs, in equal parts on nodes of one GPU model, fit nowhere: a100 has 2 x 4"
    c.add(make_job(5, 8, nodes=1), make_job(6, 1, required_nodes=frozenset({"n7"})))
    assert said(c, 5) == "no node can take its 8 GPUs: only 4 usable GPUs"
    assert said(c, 6) == "no node can take its GPU: not in the job's node list"
    assert reason(c, 3) is Reason.WAITS_FOR_GPUS
    assert {reason(c, number) for number in (4, 5, 6)} == {Reason.NO_NODE_FITS}


def test_gangs_that_are_bound() -> None:
    jobs = [running(make_job(1), GPU), suspended(make_job(2), GPU)]
    c = Ideal(preset("fifo"), cluster(1, 1), jobs)
    assert said(c, 2) == "waits for a free GPU on n1, where it is bound"
    assert reason(c, 2) is Reason.WAITS_FOR_TURN
    c.change_node(replace(c.nodes["n1"], available=False, reason="DRAINED fan"))
    words = "waits for a free GPU on n1, where it is bound; n1 starts no other job (DRAINED fan)"
    assert said(c, 2) == words
    assert reason(c, 2) is Reason.NODE_DRAINS


def test_gangs_that_are_to_be_on_few_nodes() -> None:
    c = Ideal(LAS, cluster(2, 4), [make_job(1, 2), make_job(2, 2), make_job(3, 4)])
    c.step()
    c.profiles[JobId(4)] = Profile(state_bytes=10, largest_tensor_bytes=7)
    c.add(make_job(4, 2))
    assert said(c, 4) == "waits in queue 1 of 2 for 2 free GPUs on as few nodes as possible"


def test_slices() -> None:
    c = Ideal(GANDIVA, [make_node("n1", 1)], [make_job(n, nodes=1) for n in (1, 2, 3)], bound=True)
    assert said(c, 1) == "a node without jobs"
    assert said(c, 2) == "no GPU is free: first turn on n1, 1 of 2 in line"
    assert said(c, 3) == "no GPU is free: first turn on n1, 2 of 2 in line"
    c.now = 60.0
    assert [reason(c, number) for number in (1, 2, 3)] == [Reason.ITS_TURN, *[Reason.WAITS_FOR_TURN] * 2]
    assert said(c, 1) == "slice over, 2 of 2 in line (1.00 slices per weight received)"
    assert (reason(c, 1), reason(c, 2)) == (Reason.TURN_OVER, Reason.ITS_TURN)
    assert c.reasons[JobId(2)] == "its turn (0.00 slices per weight received)"
    assert said(c, 1) == "waits for its turn, 2 of 2 in line (1.00 slices per weight received)"
    c.add(make_job(4, nodes=1, priority_class=1))
    said(c, 4)
    assert c.reasons[JobId(2)].startswith("its GPUs are for jobs before it, ")
    assert reason(c, 2) is Reason.PREEMPTED


def test_jobs_that_no_node_takes() -> None:
    jobs = [make_job(n, nodes=1) for n in (1, 2)]
    c = Ideal(preset("gandiva", max_jobs_per_gpu=1), [make_node("n1", 2)], jobs, bound=True)
    c.step()
    c.add(make_job(3, nodes=1), make_job(4, 2, nodes=1), make_job(5, 4, nodes=1))
    c.add(make_job(6, nodes=1, memory_per_node_bytes=GIB))
    next_step = "; from 00:01:00 on it shares with jobs of other sizes"
    assert said(c, 3) == f"no node has a free GPU, and those shared by 1-GPU jobs are full{next_step}"
    no_peer = "no node has 2 free GPUs, and no 2-GPU job is there to take turns with"
    assert said(c, 4) == no_peer + next_step
    assert said(c, 5) == "no node can take its 4 GPUs: only 2 usable GPUs"
    assert [reason(c, number) for number in (3, 4)] == [Reason.WAITS_FOR_GPUS] * 2
    assert reason(c, 5) is Reason.NO_NODE_FITS
    c.now = 60.0
    assert said(c, 4) == "no node has 2 free GPUs, and those that it could share are full"


def test_operations_that_put_something_right_say_what_they_do() -> None:
    stale = replace(running(make_job(1), GPU), phase=Phase.STARTING, may_stop=False)
    assert actions(stale) == [Withdraw(stale.id, "stale release; job re-held")]
    stuck = replace(running(make_job(2), GPU), phase=Phase.STUCK, may_stop=False)
    assert actions(stuck) == [Resume(stuck.id, "recovers an incomplete suspend or resume", GPU)]


def test_operations_have_the_reason_of_what_they_do() -> None:
    on = running(make_job(1), GPU)
    stale, stuck = (replace(on, phase=phase) for phase in (Phase.STARTING, Phase.STUCK))
    assert [reason_of(made.reason) for made in [*actions(stale), *actions(stuck)]] == [Reason.REPAIRED] * 2
    (out,) = actions(replace(on, trespasses=True))
    assert reason_of(out.reason) is Reason.TRESPASSES
    failed = FailedSuspends(3, 0.0, "rank 0 did not answer", Unsuspendable.CANCEL)
    (over,) = actions(replace(on, failed_suspends=failed), Target(NOWHERE))
    assert reason_of(over.reason) is Reason.CANNOT_BE_SUSPENDED
    there = Target(Placement(gpu_set("n2:0"), gpu_set("n2:0")), StateAt.STORE)
    (away,) = actions(replace(on, may_migrate=True), there, Why(Reason.MIGRATES, "there is room"))
    assert (away.reason, reason_of(away.reason)) == ("migrates: there is room", Reason.MIGRATES)


def actions(job: Job, target: Target | None = None, why: str = "") -> list[Action]:
    """For one job; of a job that trespasses the way out is a requeue."""
    snapshot = Snapshot(time=3600.0, nodes={"n1": make_node("n1", 1)}, jobs={job.id: job})
    return diff(
        snapshot,
        {} if target is None else {job.id: target},
        {job.id: why} if why else {},
        [job.id],
        suspend_in_slurm=True,
        default_method=SuspendMethod.COOPERATIVE,
        trespass=Trespass.REQUEUE,
    )
