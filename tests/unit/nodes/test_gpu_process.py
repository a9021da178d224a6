# SPDX-License-Identifier: GPL-2.0-or-later
"""A training whose GPUs are used by a process of its own: it comes back on another GPU, and on more."""

from __future__ import annotations

from controller.nodes.remote import RemoteNodes

from .conftest import MIB, Rig, job_sample
from .test_yield_and_resume import QUICK, digests, offload, prepare, resume


def test_it_goes_on_on_another_gpu_and_on_more(rig: Rig) -> None:
    parts = (*QUICK, "--gpus", "3")
    undisturbed = digests(rig.start(1, *parts, "--minibatch-ms", "1", gpus="3", managed=False).wait())

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0, 1, 2])
        job = rig.start(2, *parts, "--gpu-process", gpus="0", binding="0,1,2")
        rig.wait_for_steps(job, 3)
        assert await offload(nodes, 2) == 0
        assert not any(rig.held().values())
        seen = await job_sample(nodes, job)
        assert seen.movable and seen.resizable
        for gpus in ([2], [0, 1], [0, 1, 2]):
            await resume(nodes, 2, gpus, [0, 1, 2])
            at = len(job.steps())
            rig.wait_for_steps(job, at + 3)
            held = rig.held()
            assert all((held[gpu] > 64 * MIB) == (gpu in gpus) for gpu in range(3))
            await offload(nodes, 2)
        await resume(nodes, 2, [1], [0, 1, 2])
        assert digests(job.wait()) == undisturbed

    rig.run(scenario)
