# SPDX-License-Identifier: GPL-2.0-or-later
"""A job with a session that the driver's checkpoint took away and brought back on another GPU.

Its process then knows the new GPU by the old one's number. Left to choose its GPU itself, as it does after a
cooperative suspend, it took the wrong one: found by the soak, as two jobs on one GPU.
"""

from __future__ import annotations

import pytest

from controller.errors import NodeError
from controller.nodes.protocol import ErrorKind
from controller.nodes.remote import RemoteNodes

from .conftest import MIB, NODE, Rig
from .test_yield_and_resume import checkpoint, digests, prepare, resume

STEPS = ("--steps", "600", "--minibatch-ms", "50", "--memory-mb", "64", "--state-kb", "8")


def test_it_is_not_asked_to_choose_its_gpu_again(rig: Rig) -> None:
    undisturbed = rig.start(1, *STEPS, gpus="3", managed=False)

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [1], [1, 2])
        job = rig.start(2, *STEPS, gpus="1", binding="1,2")
        rig.wait_for_steps(job, 3)
        await checkpoint(nodes, 2)
        await resume(nodes, 2, [2], [1, 2])
        assert rig.held()[1] == 0 and rig.held()[2] > 64 * MIB

        with pytest.raises(NodeError) as refused:
            await nodes.pause(NODE, job.job_id, floor_step=0, wait_seconds=5.0, sole=True)
        assert refused.value.kind == ErrorKind.NOT_COOPERATIVE.value
        assert "moved by the driver" in refused.value.message

        await checkpoint(nodes, 2)
        assert rig.held()[2] == 0
        await resume(nodes, 2, [1], [1, 2])
        assert rig.held()[1] > 64 * MIB and rig.held()[2] == 0
        assert digests(job.wait()) == digests(undisturbed.wait())

    rig.run(scenario)
