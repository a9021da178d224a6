# SPDX-License-Identifier: GPL-2.0-or-later
"""Each field of a job says what it is called after."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import pytest

from controller.cluster.port import ClusterGpu, ClusterJob, ClusterNode, JobState
from controller.cluster.simulated import SimulatedJob
from controller.errors import NodeError
from controller.model import (
    Configuration,
    FailedSuspends,
    GpuId,
    Job,
    JobId,
    Phase,
    Placement,
    Rate,
    Request,
    Size,
    Unsuspendable,
)
from controller.nodes.port import NodeSample
from controller.nodes.protocol import GpuProcess, GpuSample, NodeJob, NodePhase
from controller.observe.jobs import InFlight, Seen, changes_at, make_job
from controller.observe.memory import JobMemory
from controller.observe.node_cache import NodeCache
from controller.observe.nodes import make_node
from controller.observe.rates import Rates
from tests.contract.troubled import TroubledCluster
from tests.unit.loop.world import run

GPUS = frozenset({GpuId("n1", 0), GpuId("n1", 1)})


def a_job(**changes: Any) -> ClusterJob:
    job = ClusterJob(
        id=JobId(7),
        user="alice",
        uid=2001,
        name="train",
        account="lab",
        partition="gpu",
        qos="high",
        state=JobState.RUNNING,
        state_name="RUNNING",
        reason="None",
        held=False,
        user_hold=False,
        eligible=True,
        request="gandiva:{}",
        submit_time=100.0,
        start_time=200.0,
        end_time=None,
        binding=GPUS,
        exclusive_gpus=False,
        nodes=("n1",),
        cpus_per_node=3,
        memory_per_node_bytes=4,
        restart_count=5,
        excluded_nodes=frozenset({"n8"}),
        duration_seconds=6000.0,
    )
    return replace(job, **changes)


def seen(**facts: Any) -> Seen:
    request = Request(size=Size.exactly(2))
    return replace(Seen(job=a_job(), request=request, on_nodes={}, memory=JobMemory(), now=300.0), **facts)


def test_fields_of_a_job_are_not_mistaken_for_each_other() -> None:
    request = Request(size=Size.exactly(1), nodelist=("n1", "n2"))
    failed = FailedSuspends(2, 240.0, "it hangs", Unsuspendable.KEEP)
    memory = JobMemory(
        first_start=201.0,
        held_until=290.0,
        unsuspendable_until=800.0,
        keeps_until=700.0,
        failed_suspends=failed,
        promised=frozenset({GpuId("n9", 0)}),
    )
    block = NodeJob(JobId(7), NodePhase.RUNNING, (1,), movable=True)
    facts = seen(request=request, on_nodes={"n1": block}, memory=memory, priority_class=2)
    job = make_job(facts)
    assert job == Job(
        id=JobId(7),
        user="alice",
        request=request,
        phase=Phase.RUNNING,
        submit_time=100.0,
        name="train",
        account="lab",
        qos="high",
        partition="gpu",
        uid=2001,
        priority_class=2,
        placement=Placement(frozenset({GpuId("n1", 1)}), GPUS),
        last=frozenset({GpuId("n1", 1)}),
        may_move=True,
        may_stop=False,
        start_time=201.0,
        memory_per_node_bytes=4,
        cpus_per_node=3,
        excluded_nodes=frozenset({"n8"}),
        required_nodes=frozenset({"n1", "n2"}),
        keeps_until=700.0,
        failed_suspends=failed,
    )
    held = a_job(state=JobState.PENDING, held=True, eligible=False, obstacle="held", nodes=())
    waiting = make_job(seen(job=held))
    assert (waiting.phase, waiting.obstacle) == (Phase.INELIGIBLE, "held")
    assert changes_at(facts, job) == 700.0
    later = make_job(replace(facts, now=800.0))
    assert later.may_stop and later.keeps_until is None
    assert changes_at(replace(facts, now=800.0), later) is None


def test_a_gang_that_is_back_on_one_of_its_nodes_holds_the_gpus_of_that_one() -> None:
    """Its resume failed on the other: jobs that are stuck there must be able to go on, or both would wait."""
    gang = frozenset({GpuId("n1", 0), GpuId("n2", 0)})
    slurm_job = a_job(binding=gang, nodes=("n1", "n2"))
    phases = {"n1": NodePhase.RUNNING, "n2": NodePhase.YIELDED}
    blocks = {name: NodeJob(JobId(7), phase, (0,)) for name, phase in phases.items()}

    job = make_job(seen(job=slurm_job, on_nodes=blocks))
    assert job.phase is Phase.STUCK
    assert (job.placement.gpus, job.last) == (frozenset({GpuId("n1", 0)}), gang)
    with_memory = replace(blocks["n2"], trespasses=(0,))
    job = make_job(seen(job=slurm_job, on_nodes={**blocks, "n2": with_memory}))
    assert job.placement.gpus == gang, "its memory is not off them"


@pytest.mark.parametrize("silent", ["n1", "n2"])
def test_where_one_node_does_not_answer_it_does_not_matter_what_the_other_says(silent: str) -> None:
    block = NodeJob(JobId(7), NodePhase.YIELDED, (0,), trespasses=(0,))
    on_nodes = {"n1": block, "n2": block, silent: NodeError(silent, "timeout", "no answer")}
    assert make_job(seen(on_nodes=on_nodes)).phase is Phase.UNKNOWN


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.SUSPENDED])
def test_a_job_that_is_being_switched_is_stuck_only_without_its_operation(state: JobState) -> None:
    """The state that a policy must never take for free GPUs; only its name says whether somebody is at it."""
    block = NodeJob(JobId(7), NodePhase.PAUSING, (0, 1))

    def job(flight: InFlight | None) -> Job:
        return make_job(seen(job=a_job(state=state), on_nodes={"n1": block}, flight=flight))

    alone, leaves, resumes = job(None), job(InFlight(leaves=True)), job(InFlight(GPUS, GPUS, resumes=True))
    assert (alone.phase, leaves.phase, resumes.phase) == (Phase.STUCK, Phase.SUSPENDING, Phase.RESUMING)
    assert job(InFlight(GPUS, GPUS)).phase is Phase.STARTING
    assert alone.placement.gpus == leaves.placement.gpus == resumes.placement.gpus == GPUS
    assert replace(leaves, phase=Phase.STUCK, switching=False, leaving=False) == alone
    assert replace(resumes, phase=Phase.STUCK, switching=False) == alone
    assert not any((job.may_start or job.may_stop or job.may_move) for job in (alone, leaves, resumes))


def test_memory_of_processes_that_nobody_knows_keeps_a_gpu_from_all_jobs() -> None:
    """One of no job, or of a job that Slurm does not know; not one that an ordinary job may have there."""
    known: Any = {JobId(7): MagicMock(id=JobId(7), binding=frozenset({GpuId("n1", 0)}))}

    def healthy(process: GpuProcess, ordinary: dict[int, JobId | None] | None = None) -> bool:
        gpu = GpuSample(0, "GPU-0", "a100", 80, 10, 0.0, True, (process,))
        slurm_node = ClusterNode(
            name="n1",
            gpus=(ClusterGpu(0, "a100", 16),),
            up=True,
            state="IDLE",
            reason="",
            cpus=1,
            memory_bytes=0,
            memory_allocated_bytes=0,
            ordinary_gpus=ordinary or {},
        )
        return make_node(slurm_node, NodeSample("n1", 300.0, (gpu,), {}), known).gpus[0].healthy

    assert healthy(GpuProcess(11, JobId(7), 2001, 5))
    assert not healthy(GpuProcess(11, None, 0, 5))
    assert not healthy(GpuProcess(11, JobId(8), 2001, 5))
    assert healthy(GpuProcess(11, JobId(8), 2001, 5), {0: JobId(8)})
    assert healthy(GpuProcess(11, None, 0, 0))


def test_fields_of_a_simulated_job_are_not_mistaken_either() -> None:
    async def scenario() -> None:
        cluster = TroubledCluster({}, tells_durations=True)
        job = SimulatedJob(
            id=JobId(7),
            user="alice",
            request="gandiva:{}",
            work_seconds=6000.0,
            submit_time=100.0,
            uid=2001,
            state=JobState.ENDED,
            state_name="FAILED",
            held=False,
            eligible=True,
            binding=GPUS,
            nodes=("n1",),
            start_time=200.0,
            end_time=300.0,
            restart_count=5,
            exit_code=3,
            name="train",
            comment="mine; gandiva-trial:exclusive",
            memory_per_node_bytes=4,
            deadline_at=900.0,
        )
        cluster.add(job)
        assert dataclasses.asdict(await cluster.job(JobId(7))) == {
            "id": 7,
            "user": "alice",
            "uid": 2001,
            "name": "train",
            "account": "research",
            "partition": "gpu",
            "qos": "normal",
            "state": JobState.ENDED,
            "state_name": "FAILED",
            "reason": "None",
            "held": False,
            "user_hold": False,
            "eligible": True,
            "request": "gandiva:{}",
            "trial": "gandiva-trial:exclusive",
            "submit_time": 100.0,
            "start_time": 200.0,
            "end_time": 300.0,
            "binding": GPUS,
            "exclusive_gpus": False,
            "nodes": ("n1",),
            "cpus_per_node": 1,
            "memory_per_node_bytes": 4,
            "restart_count": 5,
            "excluded_nodes": frozenset(),
            "exit_code": 3,
            "duration_seconds": 6000.0,
            "deadline_at": 900.0,
            "may_requeue": True,
            "obstacle": "",
        }

    run(scenario)


def test_rates_that_an_earlier_release_saved_are_read() -> None:
    """Its rows end with where the rate came from."""
    saved, again = Rates(), Rates()
    saved.load([["resnet50", "a100", 2, 1, ["bert"], 120.0, 60.0, 1000.0, "measured"]])
    again.load(json.loads(json.dumps(saved.dump())))
    (found,) = again.table["resnet50"].items()
    assert found == (Configuration("a100", 2, 1, ("bert",)), Rate(120.0, 60.0, 1000.0))


def test_a_job_on_a_bad_gpu_stays_unless_it_trespasses_itself() -> None:
    """Two jobs that both take one GPU for their own must be able to leave it."""

    def may_stop(bad: frozenset[GpuId], *trespasses: int) -> bool:
        block = NodeJob(JobId(7), NodePhase.RUNNING, (1,), trespasses=trespasses)
        request = Request(size=Size.exactly(1))
        return make_job(seen(request=request, on_nodes={"n1": block}, bad=bad)).may_stop

    own, other = GpuId("n1", 1), GpuId("n1", 0)
    assert may_stop(frozenset()) and may_stop(frozenset({other}))
    assert not may_stop(frozenset({own}))
    assert may_stop(frozenset({own}), 1)


@pytest.mark.parametrize("ability", ["movable", "resizable", "has_store", "saves_yielded"])
def test_a_job_that_gains_an_ability_on_a_node_differs(ability: str) -> None:
    cache, block = NodeCache(), NodeJob(JobId(7), NodePhase.RUNNING, (0,))
    changed: Any = {ability: True}
    for now, shown in enumerate((block, replace(block, **changed))):
        differences = cache.take({"n1": NodeSample("n1", now, (), {JobId(7): shown})})
    assert differences.jobs == {7}
