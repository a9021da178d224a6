# SPDX-License-Identifier: GPL-2.0-or-later
"""A GPU is its minor number, whatever NVML and CUDA call it, and whichever others have fallen off the bus."""

from __future__ import annotations

import pytest

from controller.errors import NodeError
from controller.model import JobId
from controller.nodes.protocol import ErrorKind
from controller.nodes.remote import RemoteNodes

from .conftest import NODE, Rig, job_sample, sample
from .test_yield_and_resume import QUICK, offload, prepare, resume

EVERY = [0, 1, 2, 3]


def init(rig: Rig, minors: str) -> None:
    rig.mockgpu("init", "--gpus", "4", "--minors", minors, "--node", NODE, "--jobs", "environment")


def positions(rig: Rig, job_id: int) -> str:
    """What SPANK makes of CUDA_VISIBLE_DEVICES for a job that floats."""
    return (rig.run_dir / str(job_id) / "visible").read_text().strip()


def holds(rig: Rig) -> set[int]:
    return {gpu for gpu, size in rig.held().items() if size}


@pytest.mark.parametrize("gpu", EVERY)
def test_where_numbers_and_places_differ_a_floating_job_is_on_the_gpu_that_was_chosen(
    rig: Rig, gpu: int
) -> None:
    init(rig, "3,0,2,1")

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [gpu], EVERY)
        job = rig.start(2, *QUICK, "--steps", "100000", gpus=positions(rig, 2))
        rig.wait_for_steps(job, 2)
        assert holds(rig) == {gpu}
        seen = await sample(nodes)
        assert [card.index for card in seen.gpus] == EVERY
        assert [card.index for card in seen.gpus if card.processes] == [gpu]
        assert seen.jobs[job.job_id].trespasses == ()
        # Off it and back: the agent looks at the right one.
        assert await offload(nodes, 2, release_context=True) == 0
        await resume(nodes, 2, [gpu], EVERY)
        assert (await job_sample(nodes, job)).trespasses == ()

    rig.run(scenario)


def test_beside_a_gpu_that_fell_off_the_bus_the_others_keep_their_numbers(rig: Rig) -> None:
    """Also for an agent that begins afterwards, and so has never seen it."""
    rig.mockgpu("inject", "gpu-lost", "--gpu", "1")

    async def scenario(nodes: RemoteNodes) -> None:
        assert [card.index for card in (await sample(nodes)).gpus] == [0, 2, 3]
        with pytest.raises(NodeError, match="there is no GPU 1; this node has 0, 2, 3"):
            await prepare(nodes, 3, [1], [1])
        await prepare(nodes, 2, [2], EVERY)
        job = rig.start(2, *QUICK, "--steps", "100000", gpus=positions(rig, 2))
        rig.wait_for_steps(job, 2)
        assert holds(rig) == {2}
        assert (await job_sample(nodes, job)).trespasses == ()

    rig.run(scenario)


def test_a_gpu_that_falls_off_is_named_and_the_others_go_on(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await sample(nodes)
        rig.mockgpu("inject", "gpu-lost", "--gpu", "1")
        for _ in range(2):
            found = {card.index: (card.healthy, card.reason) for card in (await sample(nodes)).gpus}
            assert set(found) == set(EVERY)
            assert [index for index, (healthy, _) in found.items() if not healthy] == [1]
            assert "fallen off the bus" in found[1][1]
            # NVML begins anew, and lists one less.
            rig.mockgpu("inject", "nvml-error", "--count", "1", "--call", "nvmlDeviceGetCount_v2")
            unread = (await sample(nodes)).gpus
            assert all(card.reason for card in unread) and not any(card.healthy for card in unread)

    rig.run(scenario)


def test_a_reading_that_fails_while_a_job_leaves_is_no_fault_of_the_jobs(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = rig.start(2, *QUICK, "--steps", "100000", gpus="0")
        rig.wait_for_steps(job, 2)
        await nodes.pause(NODE, JobId(2), floor_step=0, wait_seconds=60.0, sole=True)
        rig.mockgpu("inject", "nvml-error")
        with pytest.raises(NodeError) as refused:
            await nodes.offload(
                NODE, JobId(2), residual_limit_bytes=0, release_context=False, deadline_seconds=60.0
            )
        assert refused.value.kind == ErrorKind.INTERNAL.value
        rig.mockgpu("inject", "--clear")
        await resume(nodes, 2, [0], [0])
        rig.wait_for_steps(job, len(job.steps()) + 2)

    rig.run(scenario)
