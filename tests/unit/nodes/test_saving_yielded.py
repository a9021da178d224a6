# SPDX-License-Identifier: GPL-2.0-or-later
"""A job that is off its GPUs writes its state into its checkpoint store from host memory, without a GPU."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from controller.errors import NodeError
from controller.model import JobId
from controller.nodes.protocol import ErrorKind, NodePhase, RankState, Saved
from controller.nodes.remote import RemoteNodes
from tests.unit.halting import halt

from .conftest import NODE, Job, Rig, job_sample
from .test_saving import published, start
from .test_yield_and_resume import QUICK, digests, offload, prepare, resume


async def save(nodes: RemoteNodes, seconds: float = 20.0) -> Saved:
    return await nodes.save(NODE, JobId(2), deadline_seconds=seconds)


async def yielded(
    rig: Rig, nodes: RemoteNodes, store: Path, *words: str, gpus: Sequence[int] = (0,), context: bool = False
) -> Job:
    """Job 2 is off its GPUs, and stopped."""
    await prepare(nodes, 2, [*gpus], [*gpus])
    job = start(rig, 2, store, *words, ranks=len(gpus), gpus=",".join(map(str, gpus)))
    rig.wait_for_steps(job, 10)
    assert not (await job_sample(nodes, job)).saves_yielded, "it is on its GPUs"
    await offload(nodes, 2, release_context=context)
    return job


def states(job: Job) -> set[str]:
    """Of its processes, as the kernel says: T is stopped."""
    stats = [Path(f"/proc/{process.pid}/stat").read_text() for process in job.processes]
    return {stat.rpartition(") ")[2][0] for stat in stats}


async def check_as_before(nodes: RemoteNodes, job: Job) -> None:
    """It is off its GPUs, and none of its processes runs."""
    seen = await job_sample(nodes, job)
    assert seen.phase is NodePhase.YIELDED and seen.saves_yielded
    assert {rank.state for rank in seen.ranks} == {RankState.OFFLOADED}
    assert states(job) == {"T"}


def test_two_ranks_save_beside_the_job_that_has_their_gpus_and_go_on_elsewhere(
    rig: Rig, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    undisturbed = rig.start(1, *QUICK, ranks=2, gpus="2,3", managed=False)

    async def scenario(nodes: RemoteNodes) -> None:
        expected = digests(undisturbed.wait())
        job = await yielded(rig, nodes, store, gpus=(0, 1))
        await check_as_before(nodes, job)
        await prepare(nodes, 3, [0, 1], [0, 1])
        other = rig.start(3, *QUICK, ranks=2, gpus="0,1")
        rig.wait_for_steps(other, 3)
        at = len(job.steps())
        saved = await save(nodes)
        assert published(store) == [(saved.generation, saved.step)] == [(1, at)]
        await check_as_before(nodes, job)
        again = await save(nodes)
        assert (again.step, again.generation) == (saved.step, saved.generation), "a lost answer is repeated"
        shown = json.loads(rig.mockgpu("show", "--json"))["processes"]
        assert {each["job_id"] for each in shown if each["gpus"]} == {3}
        assert len(job.steps()) == at
        job.kill()
        await nodes.forget(NODE, JobId(2))

        await prepare(nodes, 2, [2, 3], [2, 3])
        rig.environ["SLURM_RESTART_COUNT"] = "1"
        moved = start(rig, 2, store, ranks=2, gpus="2,3")
        assert digests(moved.wait()) == expected
        assert [line["step"] for line in moved.steps()] == [*range(1, 601)], "none twice, none left out"
        other.kill()

    rig.run(scenario)


def test_after_a_save_it_can_come_back_where_it_was(rig: Rig, tmp_path: Path) -> None:
    undisturbed = rig.start(1, *QUICK, gpus="3", managed=False)

    async def scenario(nodes: RemoteNodes) -> None:
        job = await yielded(rig, nodes, tmp_path / "store")
        await save(nodes)
        await resume(nodes, 2, [0], [0])
        rig.wait_for_steps(job, 20)
        await offload(nodes, 2)
        assert (await save(nodes)).generation == 2
        await resume(nodes, 2, [0], [0])
        assert digests(job.wait()) == digests(undisturbed.wait())

    rig.run(scenario)


def test_a_store_that_cannot_be_written_leaves_it_off_its_gpus(rig: Rig, tmp_path: Path) -> None:
    store = tmp_path / "store"
    undisturbed = rig.start(1, *QUICK, gpus="3", managed=False)

    async def scenario(nodes: RemoteNodes) -> None:
        job = await yielded(rig, nodes, store)
        store.rename(tmp_path / "gone")
        store.touch()
        for _ in range(2):
            with pytest.raises(NodeError, match=r"rank 0 of job 2 cannot save: StoreError") as caught:
                await save(nodes)
            assert caught.value.kind == "not_cooperative"
            await check_as_before(nodes, job)
        assert rig.held()[0] == 0
        store.unlink()
        (tmp_path / "gone").rename(store)
        assert (await save(nodes)).generation == 1, "the next one is another one"
        await resume(nodes, 2, [0], [0])
        assert digests(job.wait()) == digests(undisturbed.wait())

    rig.run(scenario)


def test_a_job_that_slurm_has_frozen_is_told_as_such(rig: Rig, tmp_path: Path) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = start(rig, 2, tmp_path / "store", gpus="0")
        rig.wait_for_steps(job, 5)
        await offload(nodes, 2, stop=False)
        halt(job.pid)
        await nodes.stop(NODE, JobId(2), deadline_seconds=60.0)
        with pytest.raises(NodeError) as caught:
            await save(nodes)
        assert caught.value.kind == ErrorKind.HALTED.value
        await check_as_before(nodes, job)
        os.kill(job.pid, signal.SIGCONT)
        assert (await save(nodes)).generation == 1
        await check_as_before(nodes, job)

    rig.run(scenario)


def test_a_save_that_misses_its_deadline_is_taken_back(rig: Rig, tmp_path: Path) -> None:
    """One of two ranks stays frozen: there is no generation. It is part of the next one."""
    store = tmp_path / "store"

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0, 1], [0, 1])
        job = start(rig, 2, store, ranks=2, gpus="0,1")
        rig.wait_for_steps(job, 5)
        await offload(nodes, 2, stop=False)
        for process in job.processes:
            halt(process.pid)
        await nodes.stop(NODE, JobId(2), deadline_seconds=60.0)
        job.processes[0].send_signal(signal.SIGCONT)
        with pytest.raises(NodeError, match="its checkpoint was not published") as caught:
            await save(nodes, 3.0)
        assert caught.value.kind == "deadline" and published(store) == []
        await check_as_before(nodes, job)
        job.processes[1].send_signal(signal.SIGCONT)
        assert (await save(nodes)).generation == 1
        await resume(nodes, 2, [0, 1], [0, 1])
        job.wait()

    rig.run(scenario)


def test_a_job_without_a_store_and_one_that_the_driver_holds_cannot(rig: Rig, tmp_path: Path) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 3, [1], [1])
        plain = rig.start(3, *QUICK, gpus="1")
        rig.wait_for_steps(plain, 5)
        await offload(nodes, 3)
        job = await yielded(rig, nodes, tmp_path / "store", "--keep-context", context=True)
        for each, words in ((plain, "no checkpoint store"), (job, "its CUDA context")):
            assert not (await job_sample(nodes, each)).saves_yielded
            with pytest.raises(NodeError, match=words) as caught:
                await nodes.save(NODE, each.job_id, deadline_seconds=60.0)
            assert caught.value.kind == "unsupported"
            assert states(each) == {"T"}

    rig.run(scenario)
