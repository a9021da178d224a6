# SPDX-License-Identifier: GPL-2.0-or-later
"""The driver refuses to restore a process on another GPU: the job stays off, and goes on where it was."""

from __future__ import annotations

import pytest

from controller.errors import NodeError
from controller.nodes.protocol import ErrorKind, NodePhase
from controller.nodes.remote import RemoteNodes

from .conftest import MIB, NODE, Job, Rig, job_sample
from .test_yield_and_resume import checkpoint, digests, prepare, resume

STEPS = ("--steps", "600", "--minibatch-ms", "50", "--memory-mb", "64", "--state-kb", "8", "--no-step")
DRIVER = """
from checkpointing import cuda_driver
restore = cuda_driver.CudaProcess.restore
def restore_without_a_map(process, gpu_map=None):
    if gpu_map:
        raise cuda_driver.CudaError("cuCheckpointProcessRestore", {code}, "REFUSED")
    restore(process)
cuda_driver.CudaProcess.restore = restore_without_a_map
"""


def refuse_maps(rig: Rig) -> None:
    """As drivers are reported to where CUDA_VISIBLE_DEVICES of the process is narrowed."""
    rig.mockgpu("init", "--gpus", "4", "--node", NODE, "--jobs", "environment", "--device-map", "strict")


def fail_with(rig: Rig, code: int) -> None:
    """In another way, from the next agent on."""
    (rig.folder / "site").mkdir()
    (rig.folder / "site" / "sitecustomize.py").write_text(DRIVER.format(code=code))
    rig.transport = rig.agents(PYTHONPATH=f"{rig.folder / 'site'}:{rig.environ['PYTHONPATH']}")


async def suspended(nodes: RemoteNodes, rig: Rig) -> Job:
    await prepare(nodes, 2, [1], [0, 1, 2])
    job = rig.start(2, *STEPS, gpus="1", binding="0,1,2")
    rig.wait_for_steps(job, 3)
    await checkpoint(nodes, 2)
    return job


@pytest.mark.parametrize("code", [None, 304])
def test_a_job_whose_map_is_refused_stays_off_and_goes_on_where_it_was(rig: Rig, code: int | None) -> None:
    if code is None:
        refuse_maps(rig)
    else:
        fail_with(rig, code)
    undisturbed = rig.start(1, *STEPS, gpus="3", managed=False)

    async def scenario(nodes: RemoteNodes) -> None:
        job = await suspended(nodes, rig)
        assert (await job_sample(nodes, job)).movable
        with pytest.raises(NodeError, match="cannot move from GPU 1 to GPU 2") as refused:
            await resume(nodes, 2, [2], [0, 1, 2])
        assert refused.value.kind == ErrorKind.UNSUPPORTED.value
        seen = await job_sample(nodes, job)
        assert (seen.phase, seen.gpus, seen.movable) == (NodePhase.YIELDED, (1,), False)
        assert "cannot move" in seen.error
        assert rig.held()[1] == rig.held()[2] == 0
        # The GPU that it was to have is anybody's, and it is not tried again.
        await prepare(nodes, 4, [2], [2])
        with pytest.raises(NodeError, match="cannot move") as refused:
            await resume(nodes, 2, [2], [0, 1, 2])
        assert refused.value.kind == ErrorKind.UNSUPPORTED.value

        await resume(nodes, 2, [1], [0, 1, 2])
        seen = await job_sample(nodes, job)
        assert (seen.phase, seen.gpus, seen.movable, seen.error) == (NodePhase.RUNNING, (1,), False, "")
        assert rig.held()[1] > 64 * MIB
        # Not the next time either.
        await checkpoint(nodes, 2)
        assert not (await job_sample(nodes, job)).movable
        await resume(nodes, 2, [1], [0, 1, 2])
        assert digests(job.wait()) == digests(undisturbed.wait())

    rig.run(scenario)


def test_an_agent_that_was_killed_before_the_refusal_changes_nothing(rig: Rig) -> None:
    """The next agent finds the job on its way to the GPU that it cannot have."""
    refuse_maps(rig)

    async def scenario(nodes: RemoteNodes) -> None:
        job = await suspended(nodes, rig)
        note = rig.run_dir / "2" / "agent.json"
        text = note.read_text()
        assert '"gpus":[1],"binding"' in text and '"yielded"' in text
        note.write_text(
            text.replace('"yielded"', '"pausing"').replace('"gpus":[1],"binding"', '"gpus":[2],"binding"')
        )
        with pytest.raises(NodeError, match="cannot move from GPU 1 to GPU 2"):
            await resume(nodes, 2, [2], [0, 1, 2])
        seen = await job_sample(nodes, job)
        assert (seen.phase, seen.gpus, seen.movable) == (NodePhase.YIELDED, (1,), False)
        await resume(nodes, 2, [1], [0, 1, 2])
        at = len(job.steps())
        rig.wait_for_steps(job, at + 3)

    rig.run(scenario)
