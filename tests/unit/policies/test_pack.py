# SPDX-License-Identifier: GPL-2.0-or-later
"""Two jobs that allow it share GPUs, and no others ever do."""

from __future__ import annotations

from dataclasses import replace

from controller.model import Job, JobId, Profile
from controller.policies.mechanisms.gang_lanes import GangLanes
from controller.policies.mechanisms.in_order import InOrder
from controller.policies.moves.pack import Pack
from controller.policies.orders.fifo import Fifo
from controller.policies.orders.remaining import Remaining
from controller.policies.placement.consolidation import Consolidation
from tests.unit.policies.ideal import GIB, Ideal, cluster, make_job


def fifo() -> InOrder:
    return InOrder(Fifo(), GangLanes(Consolidation(), preempt=False), preempt=False, moves=[Pack()])


def srtf() -> InOrder:
    return InOrder(Remaining(), GangLanes(Consolidation()), moves=[Pack()])


def packable(number: int, gpus: int, duration: float, submit: float = 0.0) -> Job:
    job = make_job(number, gpus, duration, submit=submit)
    return replace(job, request=replace(job.request, may_pack=True))


def profiled(ideal: Ideal, **peaks: int) -> Ideal:
    ideal.profiles = {JobId(int(n[1:])): Profile(peak_memory_bytes=gib * GIB) for n, gib in peaks.items()}
    return ideal


def test_two_that_allow_it_run_at_once() -> None:
    jobs = [packable(1, 1, 10), packable(2, 1, 10), make_job(3, 1, 10)]
    ideal = profiled(Ideal(fifo, cluster(1, 1), jobs), j1=30, j2=30, j3=1)
    timeline = ideal.run()
    assert timeline.ends == {1: 10, 2: 10, 3: 20}
    assert "shares the GPUs of job 1" in ideal.reasons[JobId(2)]


def test_not_where_memory_is_short_or_unknown() -> None:
    jobs = [packable(1, 1, 10), packable(2, 1, 10)]
    assert profiled(Ideal(fifo, cluster(1, 1), jobs), j1=50, j2=30).run().ends == {1: 10, 2: 20}
    assert profiled(Ideal(fifo, cluster(1, 1), jobs), j1=30).run().ends == {1: 10, 2: 20}


def test_a_guest_whose_host_ended_has_the_gpu_alone() -> None:
    jobs = [packable(1, 1, 5), packable(2, 1, 20), make_job(3, 1, 10)]
    timeline = profiled(Ideal(fifo, cluster(1, 1), jobs), j1=30, j2=30).run()
    assert timeline.ends == {1: 5, 2: 20, 3: 30}


def test_a_guest_leaves_with_its_host() -> None:
    jobs = [packable(1, 1, 50), packable(2, 1, 60), make_job(3, 1, 10, submit=5)]
    timeline = profiled(Ideal(srtf, cluster(1, 1), jobs), j1=30, j2=30).run()
    assert timeline.runs[3] == [(5, 15)]
    assert timeline.runs[1][0] == (0, 5)
    assert timeline.runs[2][0] == (0, 5)
