# SPDX-License-Identifier: GPL-2.0-or-later
"""A job leaves its GPUs and comes back, through a real agent, real processes and mock GPUs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from controller.errors import NodeError
from controller.model import JobId
from controller.nodes.protocol import ErrorKind, NodePhase, Offload, RankState
from controller.nodes.remote import RemoteNodes
from tests.unit.halting import halt

from .conftest import CONTEXT_BYTES, MIB, NODE, PATIENCE_SECONDS, Rig, eventually, job_sample, sample

QUICK = ("--minibatch-ms", "60", "--memory-mb", "64", "--steps", "600")
"""Half a minute, for what must not end meanwhile; `Job.wait()` makes half a second of what is left."""
AT_ONCE = ("--minibatch-ms", "1")
"""For a run that others are compared with: the result does not depend on it."""


def digests(results: list[dict[str, object]]) -> list[object]:
    return [result["digest"] for result in results]


async def prepare(
    nodes: RemoteNodes, job_id: int, gpus: list[int], binding: list[int], beside: Sequence[int] = ()
) -> None:
    await nodes.prepare(
        NODE,
        JobId(job_id),
        uid=os.getuid(),
        gpus=gpus,
        binding=binding,
        beside=frozenset(map(JobId, beside)),
        deadline_seconds=60.0,
    )


async def offload(
    nodes: RemoteNodes, job_id: int, *, release_context: bool = False, limit: int = 0, stop: bool = True
) -> int:
    paused = await nodes.pause(NODE, JobId(job_id), floor_step=0, wait_seconds=60.0, sole=True)
    assert paused.all_blocked
    assert {rank.steps_done for rank in paused.ranks} == {paused.target_step}
    done = await nodes.offload(
        NODE,
        JobId(job_id),
        residual_limit_bytes=limit,
        release_context=release_context,
        deadline_seconds=60.0,
    )
    assert done.stopped_step == paused.target_step
    if stop:
        await nodes.stop(NODE, JobId(job_id), deadline_seconds=60.0)
    return done.left_bytes


async def checkpoint(nodes: RemoteNodes, job_id: int, limit: int = 0) -> Offload:
    done = await nodes.checkpoint(NODE, JobId(job_id), residual_limit_bytes=limit, deadline_seconds=60.0)
    await nodes.stop(NODE, JobId(job_id), deadline_seconds=60.0)
    return done


async def resume(
    nodes: RemoteNodes, job_id: int, gpus: list[int], binding: list[int], beside: Sequence[int] = ()
) -> None:
    await nodes.resume(
        NODE,
        JobId(job_id),
        gpus=gpus,
        binding=binding,
        beside=frozenset(map(JobId, beside)),
        deadline_seconds=60.0,
    )


def test_two_ranks_stop_at_one_step_and_end_as_if_nothing_had_happened(rig: Rig) -> None:
    undisturbed = rig.start(1, *QUICK, ranks=2, gpus="2,3", managed=False)

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0, 1], [0, 1])
        job = rig.start(2, *QUICK, ranks=2, gpus="0,1")
        for steps in (5, 20, 40):
            rig.wait_for_steps(job, steps)
            assert await offload(nodes, 2) == 0
            assert {gpu: rig.held()[gpu] for gpu in (0, 1)} == {0: 0, 1: 0}
            seen = await job_sample(nodes, job)
            assert seen.phase is NodePhase.YIELDED
            assert {rank.state for rank in seen.ranks} == {RankState.OFFLOADED}
            await resume(nodes, 2, [0, 1], [0, 1])
            seen = await job_sample(nodes, job)
            assert seen.phase is NodePhase.RUNNING
            assert {rank.state for rank in seen.ranks} == {RankState.RUNNING}
        assert digests(job.wait()) == digests(undisturbed.wait())

    rig.run(scenario)


def test_a_job_that_lets_go_of_its_context_comes_back_on_another_gpu(rig: Rig) -> None:
    undisturbed = rig.start(1, *QUICK, gpus="3", managed=False)

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0, 1, 2])
        job = rig.start(2, *QUICK, gpus="0", binding="0,1,2")
        rig.wait_for_steps(job, 5)
        await offload(nodes, 2)
        assert (await job_sample(nodes, job)).movable
        await resume(nodes, 2, [2], [0, 1, 2])
        at = len(job.steps())
        rig.wait_for_steps(job, at + 5)
        seen = await sample(nodes)
        assert seen.jobs[job.job_id].gpus == (2,)
        # (The undisturbed job on the fourth may have ended.)
        assert [gpu.memory_used_bytes > 0 for gpu in seen.gpus[:3]] == [False, False, True]
        assert [process.job_id for process in seen.gpus[2].processes] == [2]
        assert {seen.gpus[2].uuid} == set(job.steps()[-1]["gpus"])
        assert digests(job.wait()) == digests(undisturbed.wait())

    rig.run(scenario)


def test_a_job_that_lets_go_of_its_contexts_comes_back_on_another_number_of_gpus(rig: Rig) -> None:
    """1, 2, 4, 1, with its four parts spread over them."""
    work = (*QUICK, "--gpus", "4")
    undisturbed = rig.start(1, *work, *AT_ONCE, gpus="3", managed=False)

    async def scenario(nodes: RemoteNodes) -> None:
        binding = [0, 1, 2, 3]
        await prepare(nodes, 2, [0], binding)
        job = rig.start(2, *work, gpus="0", binding="0,1,2,3")
        for gpus in ([0, 1], [0, 1, 2, 3], [2]):
            rig.wait_for_steps(job, len(job.steps()) + 5)
            assert (await job_sample(nodes, job)).resizable
            await offload(nodes, 2)
            assert (await job_sample(nodes, job)).resizable
            undisturbed.wait()
            await resume(nodes, 2, gpus, binding)
            await resume(nodes, 2, gpus, binding)
            rig.wait_for_steps(job, len(job.steps()) + 5)
            seen = await sample(nodes)
            assert seen.jobs[job.job_id].gpus == tuple(gpus) and not seen.jobs[job.job_id].trespasses
            assert [gpu.index for gpu in seen.gpus if gpu.memory_used_bytes] == gpus
        assert digests(job.wait()) == digests(undisturbed.wait())

    rig.run(scenario)


def test_a_session_that_does_not_say_so_keeps_its_number_of_gpus(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0, 1])
        job = rig.start(2, *QUICK, "--keep-context", gpus="0", binding="0,1")
        rig.wait_for_steps(job, 5)
        assert not (await job_sample(nodes, job)).resizable
        await offload(nodes, 2, limit=CONTEXT_BYTES)
        with pytest.raises(NodeError, match="it has 1 GPUs, not 2") as refused:
            await resume(nodes, 2, [0, 1], [0, 1])
        assert refused.value.kind == ErrorKind.UNSUPPORTED.value
        assert (await job_sample(nodes, job)).phase is NodePhase.YIELDED
        await resume(nodes, 2, [0], [0, 1])
        job.wait()

    rig.run(scenario)


def test_an_unmodified_job_is_suspended_by_the_driver_and_moved(rig: Rig) -> None:
    undisturbed = rig.start(1, *QUICK, gpus="3", managed=False)

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [1], [1, 2])
        job = rig.start(2, *QUICK, "--no-step", gpus="1")
        rig.wait_for_steps(job, 5)
        with pytest.raises(NodeError) as refused:
            await nodes.pause(NODE, job.job_id, floor_step=0, wait_seconds=1.0, sole=True)
        assert refused.value.kind == ErrorKind.NOT_COOPERATIVE.value
        for _ in range(2):  # the second call finds it done
            done = await checkpoint(nodes, 2)
            assert (done.left_bytes, done.empty) == (0, False)
        assert rig.held()[1] == 0
        assert (await job_sample(nodes, job)).movable
        await resume(nodes, 2, [2], [1, 2])
        assert rig.held()[1] == 0
        assert rig.held()[2] > 64 * MIB
        assert digests(job.wait()) == digests(undisturbed.wait())

    rig.run(scenario)


def test_what_stays_on_the_gpu_is_refused_or_allowed_and_binds_the_job_to_it(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0, 1])
        job = rig.start(2, *QUICK, "--steps", "2000", "--no-step", gpus="0")
        rig.wait_for_steps(job, 2)
        before = rig.held()[0]
        rig.mockgpu("inject", "checkpoint-leak", "--gpu", "0", "--value", f"{MIB}", "--count", "1")
        with pytest.raises(NodeError) as refused:
            await nodes.checkpoint(NODE, job.job_id, residual_limit_bytes=0, deadline_seconds=60.0)
        assert refused.value.kind == ErrorKind.LEFT_ON_GPU.value
        # It is back on its GPU, because what stayed there was more than allowed.
        assert (await job_sample(nodes, job)).phase is NodePhase.RUNNING
        assert rig.held()[0] >= before
        rig.mockgpu("inject", "checkpoint-leak", "--gpu", "0", "--value", f"{MIB}", "--count", "1")
        done = await checkpoint(nodes, 2, CONTEXT_BYTES)
        assert 0 < done.left_bytes <= CONTEXT_BYTES
        seen = await job_sample(nodes, job)
        assert (seen.phase, seen.movable) == (NodePhase.YIELDED, False)
        # What it was allowed to leave is not in the way of the next job.
        await prepare(nodes, 3, [0], [0])
        with pytest.raises(NodeError) as refused:
            await resume(nodes, 2, [1], [0, 1])
        assert refused.value.kind == ErrorKind.UNSUPPORTED.value
        await resume(nodes, 2, [0], [0, 1])
        job.wait()

    rig.run(scenario)


def test_a_gpu_in_use_is_given_to_nobody(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = rig.start(2, *QUICK, "--steps", "100000", gpus="0")
        rig.wait_for_steps(job, 2)
        with pytest.raises(NodeError) as refused:
            await prepare(nodes, 3, [0], [0])
        assert refused.value.kind == ErrorKind.GPU_BUSY.value
        assert "job 2" in refused.value.message
        assert not (rig.run_dir / "3").exists()
        await offload(nodes, 2)
        await prepare(nodes, 3, [0], [0])
        other = rig.start(3, *QUICK, "--steps", "100000", gpus="0")
        rig.wait_for_steps(other, 2)
        with pytest.raises(NodeError) as refused:
            await resume(nodes, 2, [0], [0])
        assert refused.value.kind == ErrorKind.GPU_BUSY.value
        assert (await job_sample(nodes, job)).phase is NodePhase.YIELDED
        other.kill()
        await resume(nodes, 2, [0], [0])

    rig.run(scenario)


def test_a_job_of_which_nothing_is_known_any_more_comes_back_to_a_free_gpu_only(rig: Rig) -> None:
    """Its command says that it was asked to leave, not whether it did."""

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = rig.start(2, *QUICK, "--steps", "100000", gpus="0")
        rig.wait_for_steps(job, 2)
        await offload(nodes, 2, release_context=True)
        await prepare(nodes, 3, [0], [0])
        other = rig.start(3, *QUICK, "--steps", "100000", gpus="0")
        rig.wait_for_steps(other, 2)
        (rig.run_dir / "2" / "agent.json").write_text("{")
        held = rig.held()[0]
        with pytest.raises(NodeError) as refused:
            await resume(nodes, 2, [0], [0])
        assert refused.value.kind == ErrorKind.GPU_BUSY.value
        assert rig.held()[0] == held
        other.kill()
        await resume(nodes, 2, [0], [0])
        assert rig.held()[0] > 64 * MIB

    rig.run(scenario)


def test_a_job_that_has_not_started_may_be_moved_to_a_free_gpu_only(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = rig.start(2, *QUICK, "--steps", "100000", gpus="0")
        rig.wait_for_steps(job, 2)
        await prepare(nodes, 3, [1], [0, 1, 2])
        with pytest.raises(NodeError) as refused:
            await resume(nodes, 3, [0], [0, 1, 2])
        assert refused.value.kind == ErrorKind.GPU_BUSY.value
        await resume(nodes, 3, [2], [0, 1, 2])
        assert (rig.run_dir / "3" / "visible").read_text() == "2\n"

    rig.run(scenario)


def test_a_job_that_lives_here_is_not_prepared_once_more(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        await prepare(nodes, 2, [0], [0])  # the answer was lost: nothing lives yet
        job = rig.start(2, *QUICK, "--steps", "100000", gpus="0")
        rig.wait_for_steps(job, 2)
        before = (await job_sample(nodes, job)).ranks
        with pytest.raises(NodeError) as refused:
            await prepare(nodes, 2, [0], [0])
        assert refused.value.kind == ErrorKind.GPU_BUSY.value
        assert "job 2 is here already" in refused.value.message
        assert len((await job_sample(nodes, job)).ranks) == len(before) == 1
        job.kill()
        await prepare(nodes, 2, [0], [0])

    rig.run(scenario)


def test_a_gpu_that_cannot_be_read_is_busy(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await sample(nodes)
        rig.mockgpu("inject", "gpu-lost", "--gpu", "1")
        await prepare(nodes, 2, [0], [0])
        with pytest.raises(NodeError) as refused:
            await prepare(nodes, 3, [1], [1])
        assert refused.value.kind == ErrorKind.GPU_BUSY.value
        assert [gpu.healthy for gpu in (await sample(nodes)).gpus] == [True, False, True, True]
        with pytest.raises(NodeError) as refused:
            await prepare(nodes, 4, [9], [9])
        assert "no GPU 9" in refused.value.message
        rig.mockgpu("inject", "--clear")
        rig.mockgpu("inject", "nvml-error")
        with pytest.raises(NodeError) as refused:
            await prepare(nodes, 4, [2], [2])
        assert refused.value.kind == ErrorKind.GPU_BUSY.value
        seen = await sample(nodes)
        assert [gpu.healthy for gpu in seen.gpus] == [False] * 4

    rig.run(scenario)


def test_a_pause_that_misses_its_deadline_is_taken_back(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = rig.start(2, *QUICK, gpus="0")
        rig.wait_for_steps(job, 3)
        halt(job.pid)
        with pytest.raises(NodeError) as missed:
            await nodes.pause(NODE, job.job_id, floor_step=0, wait_seconds=0.3, sole=True)
        assert missed.value.kind == ErrorKind.DEADLINE.value
        assert "stopped" in missed.value.message
        assert (await job_sample(nodes, job)).phase is NodePhase.RUNNING
        os.kill(job.pid, signal.SIGCONT)
        job.wait()

    rig.run(scenario)


def test_a_stopped_process_cannot_be_checkpointed_and_the_error_says_so(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = rig.start(2, *QUICK, "--no-step", gpus="0")
        rig.wait_for_steps(job, 3)
        halt(job.pid)
        with pytest.raises(NodeError) as refused:
            await nodes.checkpoint(NODE, job.job_id, residual_limit_bytes=0, deadline_seconds=0.6)
        assert refused.value.kind == ErrorKind.DEADLINE.value
        assert f"process {job.pid} is stopped" in refused.value.message
        os.kill(job.pid, signal.SIGCONT)
        await nodes.checkpoint(NODE, job.job_id, residual_limit_bytes=0, deadline_seconds=60.0)
        halt(job.pid)
        with pytest.raises(NodeError) as refused:
            await nodes.resume(NODE, job.job_id, gpus=[0], binding=[0], deadline_seconds=0.5)
        assert refused.value.kind == ErrorKind.HALTED.value
        assert rig.held()[0] == 0
        os.kill(job.pid, signal.SIGCONT)
        await resume(nodes, 2, [0], [0])
        job.wait()

    rig.run(scenario)


def test_a_suspended_job_survives_being_stopped_in_between(rig: Rig) -> None:
    undisturbed = rig.start(1, *QUICK, gpus="3", managed=False)

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = rig.start(2, *QUICK, gpus="0")
        rig.wait_for_steps(job, 3)
        await offload(nodes, 2, stop=False)
        halt(job.pid)
        await nodes.stop(NODE, job.job_id, deadline_seconds=60.0)
        os.kill(job.pid, signal.SIGCONT)
        await resume(nodes, 2, [0], [0])
        assert digests(job.wait()) == digests(undisturbed.wait())

    rig.run(scenario)


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_job_that_is_still_frozen_is_not_put_back(rig: Rig) -> None:
    """Neither one with a session nor one without GPU memory, which nobody would miss: the error says it."""

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = rig.start(2, *QUICK, gpus="0")
        rig.wait_for_steps(job, 3)
        await offload(nodes, 2, stop=False)
        await prepare(nodes, 3, [1], [1])
        empty = rig.start_other(3, "sh", "-c", "sleep 60 & wait")
        await nodes.checkpoint(NODE, empty.job_id, residual_limit_bytes=0, deadline_seconds=60.0)
        eventually("the shell's child", lambda: children(empty.pid))
        halted = [job.pid, empty.pid, *children(empty.pid)]
        for pid in halted:
            halt(pid)
        for job_id in (2, 3):
            await nodes.stop(NODE, JobId(job_id), deadline_seconds=60.0)
        for job_id, gpu in ((2, 0), (3, 1)):
            with pytest.raises(NodeError) as refused:
                await nodes.resume(NODE, JobId(job_id), gpus=[gpu], binding=[gpu], deadline_seconds=0.3)
            assert refused.value.kind == ErrorKind.HALTED.value
        seen = (await sample(nodes)).jobs
        assert {seen[JobId(job_id)].phase for job_id in (2, 3)} == {NodePhase.YIELDED}
        for pid in halted:
            os.kill(pid, signal.SIGCONT)
        await resume(nodes, 3, [1], [1])
        await resume(nodes, 2, [0], [0])
        job.wait()

    rig.run(scenario)


def test_two_jobs_that_return_to_one_gpu_at_once_do_not_both_get_it(rig: Rig) -> None:
    """As a killed controller's agent and the next one's may be asked to."""

    async def scenario(nodes: RemoteNodes) -> None:
        for number in (2, 3):
            await prepare(nodes, number, [0], [0])
            job = rig.start(number, *QUICK, gpus="0")
            rig.wait_for_steps(job, 2)
            await offload(nodes, number)
        answers = await asyncio.gather(
            *(resume(nodes, number, [0], [0]) for number in (2, 3)), return_exceptions=True
        )
        refused = [answer for answer in answers if isinstance(answer, NodeError)]
        assert len(refused) == 1 and refused[0].kind == ErrorKind.GPU_BUSY.value, answers
        phases = [job.phase for job in (await sample(nodes)).jobs.values()]
        assert sorted(phases) == [NodePhase.RUNNING, NodePhase.YIELDED]
        assert {process.job_id for process in (await sample(nodes)).gpus[0].processes} in ({2}, {3})

    rig.run(scenario)


def test_a_gpu_that_another_job_is_returning_to_is_not_free(rig: Rig) -> None:
    """NVML sees nothing there before its memory is back: a restore takes seconds."""

    async def scenario(nodes: RemoteNodes) -> None:
        for number in (2, 3):
            await prepare(nodes, number, [0], [0])
            job = rig.start(number, *QUICK, gpus="0")
            rig.wait_for_steps(job, 2)
            await offload(nodes, number)
        note = rig.run_dir / "3" / "agent.json"
        note.write_text(note.read_text().replace('"yielded"', '"pausing"'))
        with pytest.raises(NodeError, match="job 3 is pausing on GPU 0") as refused:
            await resume(nodes, 2, [0], [0])
        assert refused.value.kind == ErrorKind.GPU_BUSY.value

    rig.run(scenario)


def test_a_job_that_is_on_no_gpu_yet_yields_as_empty(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        done = await nodes.checkpoint(NODE, JobId(2), residual_limit_bytes=0, deadline_seconds=60.0)
        assert done.empty
        job = rig.start(2, *QUICK, "--no-step", gpus="0")
        with pytest.raises(NodeError) as refused:
            await nodes.stop(NODE, JobId(2), deadline_seconds=0.2)
        assert refused.value.kind in (ErrorKind.DEADLINE.value, ErrorKind.LEFT_ON_GPU.value)
        os.kill(job.pid, signal.SIGCONT)
        rig.wait_for_steps(job, 1)
        halt(job.pid)
        with pytest.raises(NodeError) as refused:
            await nodes.stop(NODE, JobId(2), deadline_seconds=60.0)
        assert refused.value.kind == ErrorKind.LEFT_ON_GPU.value
        assert (await job_sample(nodes, job)).phase is NodePhase.RUNNING
        os.kill(job.pid, signal.SIGCONT)

    rig.run(scenario)


def test_an_empty_job_has_not_left_while_a_step_of_it_is_being_started(rig: Rig, tmp_path: Path) -> None:
    """Slurm's suspend does not reach that step: it would run on the GPU of the next job."""
    program = tmp_path / "slurmstepd"
    shutil.copy("/bin/sleep", program)
    number = 41_200  # no other test's: the title of a step names no node
    steps: list[subprocess.Popen[bytes]] = []

    def start_step() -> None:
        steps.append(subprocess.Popen([f"slurmstepd: [{number}.1]", "60"], executable=program))

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, number, [0], [0])
        job = rig.start_other(number, "sleep", "60")
        start_step()
        await nodes.checkpoint(NODE, job.job_id, residual_limit_bytes=0, deadline_seconds=60.0)
        with pytest.raises(NodeError, match="step 1 is still being started") as refused:
            await nodes.stop(NODE, job.job_id, deadline_seconds=1.5)
        steps[0].kill()
        steps[0].wait()
        assert refused.value.kind == ErrorKind.DEADLINE.value
        assert (await job_sample(nodes, job)).phase is NodePhase.PAUSING
        await nodes.stop(NODE, job.job_id, deadline_seconds=60.0)
        assert (await job_sample(nodes, job)).phase is NodePhase.YIELDED

    try:
        rig.run(scenario)
    finally:
        for step in steps:
            step.kill()
            step.wait()


def test_an_empty_job_has_left_only_when_its_processes_are_stopped(rig: Rig) -> None:
    """In suspend mode `node` the agent stops them itself, and lets them run again."""

    def state(pid: int) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = rig.start_other(2, "sh", "-c", "sleep 60 & wait")
        done = await nodes.checkpoint(NODE, job.job_id, residual_limit_bytes=0, deadline_seconds=60.0)
        assert done.empty
        # A controller that dies now must not find it off its GPU: it may start CUDA any moment.
        assert (await job_sample(nodes, job)).phase is NodePhase.PAUSING
        await nodes.stop(NODE, job.job_id, deadline_seconds=60.0)
        assert (await job_sample(nodes, job)).phase is NodePhase.YIELDED
        assert state(job.pid) == "T"
        await resume(nodes, 2, [0], [0])
        assert (await job_sample(nodes, job)).phase is NodePhase.RUNNING
        eventually("the shell's sleep", lambda: state(job.pid) == "S")

    rig.run(scenario)


@pytest.mark.parametrize("fault", ["checkpoint-fail", "lock-timeout"])
def test_a_driver_that_cannot_suspend_leaves_the_job_running(rig: Rig, fault: str) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = rig.start(2, *QUICK, "--no-step", gpus="0")
        rig.wait_for_steps(job, 3)
        rig.mockgpu("inject", fault)
        with pytest.raises(NodeError) as failed:
            await nodes.checkpoint(NODE, job.job_id, residual_limit_bytes=0, deadline_seconds=2.0)
        expected = ErrorKind.DRIVER if fault == "checkpoint-fail" else ErrorKind.DEADLINE
        assert failed.value.kind == expected.value
        seen = await job_sample(nodes, job)
        assert seen.phase is NodePhase.RUNNING
        assert failed.value.message in seen.error
        rig.mockgpu("inject", "--clear")
        job.wait()

    rig.run(scenario)


def test_a_failed_restore_fails_the_job_on_the_node_and_can_be_tried_again(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = rig.start(2, *QUICK, "--no-step", gpus="0")
        rig.wait_for_steps(job, 3)
        await nodes.checkpoint(NODE, job.job_id, residual_limit_bytes=0, deadline_seconds=60.0)
        rig.mockgpu("inject", "restore-fail")
        with pytest.raises(NodeError) as failed:
            await resume(nodes, 2, [0], [0])
        assert failed.value.kind == ErrorKind.DRIVER.value
        seen = await job_sample(nodes, job)
        assert seen.phase is NodePhase.FAILED
        assert "Restore" in seen.error
        rig.mockgpu("inject", "--clear")
        await resume(nodes, 2, [0], [0])
        job.wait()

    rig.run(scenario)


def test_jobs_on_several_gpus_or_processes_are_not_checkpointed(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0, 1], [0, 1])
        wide = rig.start(2, *QUICK, "--no-step", "--gpus", "2", "--steps", "100000", gpus="0,1")
        await prepare(nodes, 3, [2, 3], [2, 3])
        many = rig.start(3, *QUICK, "--no-step", "--steps", "100000", ranks=2, gpus="2,3")
        for job in (wide, many):
            rig.wait_for_steps(job, 2)
            with pytest.raises(NodeError) as refused:
                await nodes.checkpoint(NODE, job.job_id, residual_limit_bytes=0, deadline_seconds=5.0)
            assert refused.value.kind == ErrorKind.UNSUPPORTED.value
            at = len(job.steps())
            rig.wait_for_steps(job, at + 2)

    rig.run(scenario)


def test_four_gpus_in_one_process_yield_together(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0, 1, 2, 3], [0, 1, 2, 3])
        job = rig.start(2, *QUICK, "--gpus", "4", gpus="0,1,2,3")
        rig.wait_for_steps(job, 3)
        await offload(nodes, 2)
        assert set(rig.held().values()) == {0}
        await resume(nodes, 2, [0, 1, 2, 3], [0, 1, 2, 3])
        stirred = digests(job.wait())
        undisturbed = rig.start(1, *QUICK, "--gpus", "4", gpus="0,1,2,3", managed=False)
        assert digests(undisturbed.wait()) == stirred

    rig.run(scenario)


def test_owner_files_follow_every_switch(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        uuids = {gpu.index: gpu.uuid for gpu in (await sample(nodes)).gpus}

        def owners() -> dict[int, str]:
            return {
                index: (rig.gpustat / uuid).read_text()
                for index, uuid in uuids.items()
                if (rig.gpustat / uuid).exists()
            }

        await prepare(nodes, 2, [0], [0, 1])
        assert owners() == {0: f"2 {os.getuid()}\n"}
        job = rig.start(2, *QUICK, "--steps", "100000", gpus="0", binding="0,1")
        rig.wait_for_steps(job, 2)
        await offload(nodes, 2)
        assert owners() == {}
        await resume(nodes, 2, [1], [0, 1])
        assert owners() == {1: f"2 {os.getuid()}\n"}
        assert (rig.run_dir / "2" / "visible").read_text() == "1\n"
        job.kill()
        await nodes.forget(NODE, JobId(2))
        assert owners() == {}
        assert not (rig.run_dir / "2").exists()
        await nodes.forget(NODE, JobId(2))  # a second time is no error

    rig.run(scenario)


def test_a_new_agent_goes_on_where_a_killed_one_stopped(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        await prepare(nodes, 3, [1], [1, 2])
        paused = rig.start(2, *QUICK, gpus="0")
        checkpointed = rig.start(3, *QUICK, "--no-step", gpus="1")
        rig.wait_for_steps(paused, 3)
        rig.wait_for_steps(checkpointed, 3)
        await nodes.pause(NODE, paused.job_id, floor_step=0, wait_seconds=60.0, sole=True)
        await checkpoint(nodes, 3)
        os.kill(rig.transport.channels[-1].pid, signal.SIGKILL)  # type: ignore[attr-defined]

    rig.run(scenario)

    async def afterwards(nodes: RemoteNodes) -> None:
        seen = (await sample(nodes)).jobs
        assert seen[JobId(2)].phase is NodePhase.PAUSING
        assert (seen[JobId(3)].phase, seen[JobId(3)].movable) == (NodePhase.YIELDED, True)
        done = await nodes.offload(
            NODE, JobId(2), residual_limit_bytes=0, release_context=False, deadline_seconds=60.0
        )
        assert done.stopped_step is not None
        await resume(nodes, 3, [2], [1, 2])
        await resume(nodes, 2, [0], [0])
        for job in rig.jobs:
            job.wait()

    rig.run(afterwards)


def test_an_agent_killed_between_lock_and_checkpoint_leaves_nothing_locked(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = rig.start(2, *QUICK, "--no-step", gpus="0")
        rig.wait_for_steps(job, 3)
        await nodes.checkpoint(NODE, job.job_id, residual_limit_bytes=0, deadline_seconds=60.0)
        # As a killed agent would have left it: the intent is written down, the process is locked only.
        state_file = rig.run_dir / "2" / "agent.json"
        state = json.loads(state_file.read_text())
        state_file.write_text(json.dumps({**state, "off": False}))
        rig.cuda_checkpoint("restore", job.pid)
        await resume(nodes, 2, [0], [0])
        job.wait()

    rig.run(scenario)


def test_ranks_are_reported_with_their_progress(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = rig.start(2, *QUICK, "--steps", "100000", "--minibatch-ms", "10", gpus="0")
        rig.wait_for_steps(job, 80)
        rank = (await job_sample(nodes, job)).ranks[0]
        assert rank.steps_done >= 70
        assert rank.samples_done == 32 * rank.steps_done
        assert 0.005 < rank.step_seconds < 1.0
        assert (rank.world_size, rank.state_bytes) == (1, 64 * 1024)
        job.kill()
        gone = await job_sample(nodes, job)
        assert gone.ranks == ()
        assert "has ended" in gone.error

    rig.run(scenario)


def test_an_agent_that_hangs_does_not_keep_a_job_for_ever(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = rig.start_other(2, "sleep", "60")
        first = rig.transport.channels[-1].pid  # type: ignore[attr-defined]
        # It waits for the job's processes to stop, which nobody does, and has the job's lock meanwhile.
        await nodes.checkpoint(NODE, job.job_id, residual_limit_bytes=0, deadline_seconds=60.0)
        lock = rig.run_dir / "2" / "agent.lock"
        before = lock.read_bytes()
        waiting = asyncio.ensure_future(nodes.stop(NODE, job.job_id, deadline_seconds=PATIENCE_SECONDS))
        await asyncio.to_thread(eventually, "the lock", lambda: lock.read_bytes() != before)
        halt(first)
        other = rig.nodes()
        await other.set_nodes({NODE: "here"})
        await other.resume(NODE, job.job_id, gpus=[0], binding=[0], deadline_seconds=PATIENCE_SECONDS)
        assert (await job_sample(other, job)).phase is NodePhase.RUNNING
        with pytest.raises(NodeError):
            await waiting
        await other.close()

    rig.run(scenario)
