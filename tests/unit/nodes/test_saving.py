# SPDX-License-Identifier: GPL-2.0-or-later
"""A job writes its state into its checkpoint store when its agent asks for it, and goes on from there."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from checkpointing.store.store import Store
from controller.errors import NodeError
from controller.model import JobId
from controller.nodes.protocol import NodePhase, RankState, Saved
from controller.nodes.remote import RemoteNodes
from tests.unit.halting import halt

from .conftest import NODE, Job, Rig, job_sample
from .test_yield_and_resume import QUICK, digests, offload, prepare, resume


async def save(nodes: RemoteNodes, job_id: int, seconds: float = 20.0) -> Saved:
    """Pause it and have it save."""
    paused = await nodes.pause(NODE, JobId(job_id), floor_step=0, wait_seconds=60.0, sole=True)
    saved = await nodes.save(NODE, JobId(job_id), deadline_seconds=seconds)
    assert saved.step >= paused.target_step
    return saved


def published(folder: Path) -> list[tuple[int, int]]:
    """Number and step of every generation."""
    manifests = sorted(folder.glob("generation-*/manifest.json"))
    return [(int(m.parent.name[-8:]), json.loads(m.read_text())["step"]) for m in manifests]


def start(rig: Rig, job_id: int, store: Path, *words: str, **place: object) -> Job:
    return rig.start(job_id, *QUICK, "--store", str(store), *words, **place)  # type: ignore[arg-type]


def test_two_ranks_are_killed_after_a_save_and_go_on_elsewhere(rig: Rig, tmp_path: Path) -> None:
    store = tmp_path / "store"
    undisturbed = rig.start(1, *QUICK, ranks=2, gpus="2,3", managed=False)

    async def scenario(nodes: RemoteNodes) -> None:
        expected = digests(undisturbed.wait())
        await prepare(nodes, 2, [0, 1], [0, 1])
        job = start(rig, 2, store, ranks=2, gpus="0,1")
        rig.wait_for_steps(job, 10)
        assert (await job_sample(nodes, job)).has_store
        saved = await save(nodes, 2)
        assert published(store) == [(saved.generation, saved.step)]
        again = await nodes.save(NODE, JobId(2), deadline_seconds=60.0)
        assert (again.step, again.generation) == (saved.step, saved.generation), "a lost answer is repeated"
        seen = await job_sample(nodes, job)
        assert seen.phase is NodePhase.PAUSING
        assert {(rank.state, rank.steps_done) for rank in seen.ranks} == {(RankState.BLOCKED, saved.step)}
        job.kill()
        assert [len(job.steps(rank)) for rank in (0, 1)] == [saved.step] * 2, "no step after the saved one"
        await nodes.forget(NODE, JobId(2))

        await prepare(nodes, 2, [2, 3], [2, 3])
        rig.environ["SLURM_RESTART_COUNT"] = "1"
        moved = start(rig, 2, store, ranks=2, gpus="2,3")
        assert digests(moved.wait()) == expected
        steps = [line["step"] for line in moved.steps()]
        assert steps == [*range(1, saved.step + 1), *range(saved.step + 1, 601)], "none twice, none left out"

    rig.run(scenario)


def test_after_a_save_it_can_go_on_where_it_is(rig: Rig, tmp_path: Path) -> None:
    undisturbed = rig.start(1, *QUICK, gpus="3", managed=False)

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = start(rig, 2, tmp_path / "store", gpus="0")
        found = []
        for steps in (5, 20):
            rig.wait_for_steps(job, steps)
            saved = await save(nodes, 2)
            found.append((saved.generation, saved.step))
            await resume(nodes, 2, [0], [0])
        assert published(tmp_path / "store") == found and [number for number, _ in found] == [1, 2]
        assert digests(job.wait()) == digests(undisturbed.wait())

    rig.run(scenario)


def test_after_a_save_it_can_leave_its_gpus(rig: Rig, tmp_path: Path) -> None:
    """It is paused already; the state of that step is what it has off them."""
    undisturbed = rig.start(1, *QUICK, gpus="3", managed=False)

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = start(rig, 2, tmp_path / "store", gpus="0")
        rig.wait_for_steps(job, 5)
        saved = await save(nodes, 2)
        await offload(nodes, 2)
        assert len(job.steps()) == saved.step and rig.held()[0] == 0
        await resume(nodes, 2, [0], [0])
        assert digests(job.wait()) == digests(undisturbed.wait())

    rig.run(scenario)


def test_a_store_that_cannot_be_written_leaves_the_job_at_work(rig: Rig, tmp_path: Path) -> None:
    store = tmp_path / "store"

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = start(rig, 2, store, gpus="0")
        rig.wait_for_steps(job, 5)
        store.rename(tmp_path / "gone")
        store.touch()
        with pytest.raises(NodeError, match=r"rank 0 of job 2 cannot save: StoreError") as caught:
            await save(nodes, 2)
        assert caught.value.kind == "not_cooperative"
        assert (await job_sample(nodes, job)).phase is NodePhase.RUNNING
        store.unlink()
        (tmp_path / "gone").rename(store)
        assert (await save(nodes, 2)).generation == 1, "the next one is another one"
        await resume(nodes, 2, [0], [0])
        job.wait()

    rig.run(scenario)


def test_a_save_that_misses_its_deadline_is_taken_back(rig: Rig, tmp_path: Path) -> None:
    """One of two ranks is stopped: there is no generation, and the job goes on. It has not heard of the
    save, and is part of the next one."""
    store = tmp_path / "store"

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0, 1], [0, 1])
        job = start(rig, 2, store, ranks=2, gpus="0,1")
        rig.wait_for_steps(job, 5)
        await nodes.pause(NODE, JobId(2), floor_step=0, wait_seconds=60.0, sole=True)
        halt(job.processes[1].pid)
        with pytest.raises(NodeError, match="its checkpoint was not published") as caught:
            await nodes.save(NODE, JobId(2), deadline_seconds=1.0)
        assert caught.value.kind == "deadline"
        assert published(store) == []
        job.processes[1].send_signal(signal.SIGCONT)
        assert (await job_sample(nodes, job)).phase is NodePhase.RUNNING
        assert (await save(nodes, 2)).generation == 1
        await resume(nodes, 2, [0, 1], [0, 1])
        job.wait()

    rig.run(scenario)


def test_the_store_opens_with_its_own_commands(rig: Rig, tmp_path: Path) -> None:
    """What a job has written is an ordinary generation."""

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = start(rig, 2, tmp_path / "store", gpus="0")
        rig.wait_for_steps(job, 5)
        saved = await save(nodes, 2)
        found = Store(tmp_path / "store", rank=0, world_size=1).restore()
        assert found is not None and (found.step, found.number) == (saved.step, saved.generation)
        job.kill()

    rig.run(scenario)
