# SPDX-License-Identifier: GPL-2.0-or-later
"""Each field of a job says what it is called after."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest.mock import MagicMock

from controller.slurm.port import JobState, SlurmGpu, SlurmJob, SlurmNode
from controller.slurm.simulated import SimulatedCluster, SimulatedJob
from controller.memory import JobMemory
from controller.model import GpuId, Job, JobId, Phase, Profile, Request
from controller.nodes.port import GpuProcess, GpuSample, NodeJob, NodePhase, NodeSample
from controller.observation import make_job, make_node
from controller.simulation.virtual_time import run_virtual

GPUS = frozenset({GpuId("n1", 0), GpuId("n1", 1)})


def test_fields_of_a_job_are_not_mistaken_for_each_other() -> None:
    slurm_job = SlurmJob(
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
        required_nodes=frozenset({"n1"}),
        duration_seconds=6000.0,
    )
    request = Request(1, nodelist=("n1", "n2"))
    memory = JobMemory(
        run_seconds=10.0,
        gpu_seconds=30.0,
        running_since=250.0,
        running_on=frozenset({GpuId("n1", 1)}),
        first_start=201.0,
        not_before=900.0,
        unsuspendable_until=800.0,
        profile=Profile(utilization_fraction=0.5),
    )
    node_job = NodeJob(JobId(7), NodePhase.RUNNING, (1,), movable=True)
    samples: dict[str, NodeSample] = {"n1": NodeSample("n1", 300.0, (), {JobId(7): node_job})}
    classes = {"high": 2}
    assert make_job(slurm_job, request, samples, memory, classes.__getitem__, 300.0, 299.0) == Job(
        id=JobId(7),
        user="alice",
        request=request,
        phase=Phase.RUNNING,
        submit_time=100.0,
        name="train",
        account="lab",
        partition="gpu",
        uid=2001,
        priority_class=2,
        binding=GPUS,
        running_on=frozenset({GpuId("n1", 1)}),
        movable=True,
        suspendable=False,
        start_time=201.0,
        run_seconds=60.0,
        gpu_seconds=80.0,
        accrues_since=299.0,
        duration_seconds=6000.0,
        memory_per_node_bytes=4,
        cpus_per_node=3,
        excluded_nodes=frozenset({"n8"}),
        required_nodes=frozenset({"n1", "n2"}),
        not_before=900.0,
        profile=Profile(utilization_fraction=0.5),
    )


def test_memory_of_processes_that_nobody_knows_keeps_a_gpu_from_all_jobs() -> None:
    """One of no job, or of a job that Slurm does not know; not one that an ordinary job may have there."""
    known: Any = {JobId(7): MagicMock(id=JobId(7), binding=frozenset({GpuId("n1", 0)}))}

    def healthy(process: GpuProcess, ordinary: dict[int, JobId | None] | None = None) -> bool:
        gpu = GpuSample(0, "GPU-0", "a100", 80, 10, 0.0, True, (process,))
        slurm_node = SlurmNode("n1", (SlurmGpu(0, "a100", 16),), True, "IDLE", "", 1, 0, 0, ordinary or {})
        return make_node(slurm_node, NodeSample("n1", 300.0, (gpu,), {}), known).gpus[0].healthy

    assert healthy(GpuProcess(11, JobId(7), 2001, 5))
    assert not healthy(GpuProcess(11, None, 0, 5))
    assert not healthy(GpuProcess(11, JobId(8), 2001, 5))
    assert healthy(GpuProcess(11, JobId(8), 2001, 5), {0: JobId(8)})
    assert healthy(GpuProcess(11, None, 0, 0))


def test_fields_of_a_simulated_job_are_not_mistaken_either() -> None:
    async def scenario() -> None:
        cluster = SimulatedCluster({}, tells_durations=True)
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
            memory_per_node_bytes=4,
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
            "required_nodes": frozenset(),
            "exit_code": 3,
            "duration_seconds": 6000.0,
        }

    run_virtual(scenario())
