# SPDX-License-Identifier: GPL-2.0-or-later
"""What every adapter of the node port must do.

A test module makes a subclass and a fixture `site`, which gives the tests a `Site`: the port under test, and
what Slurm and the jobs do by other means.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import pytest

from controller.errors import NodeError, NodeUnreachable
from controller.model import JobId
from controller.nodes.port import NodePort, NodeSample
from controller.nodes.protocol import NodeJob, NodePhase
from tests.contract.adding_up import Samples

NO_JOB = JobId(999_999)
DEADLINE_SECONDS = 60.0


class Site(Protocol):
    """One node with at least four GPUs around the port under test."""

    port: NodePort
    node: str
    uid: int
    """Whose jobs are."""
    samples: Samples
    """Of the port."""

    async def submit(self) -> JobId:
        """A job that waits."""
        ...

    async def start(self, job_id: JobId, binding: Sequence[int], *, store: bool = False) -> None:
        """Slurm starts a job that was prepared; it has a session, and memory on the GPUs it may use. `store`:
        and a checkpoint store."""
        ...

    async def freeze(self, job_id: JobId) -> None:
        """Slurm suspends it."""
        ...

    async def thaw(self, job_id: JobId) -> None:
        """Slurm resumes it."""
        ...

    async def end(self, job_id: JobId) -> None:
        """It ends."""
        ...

    async def cut(self) -> None:
        """The node answers nothing any more."""
        ...


async def until(what: str, look: Callable[[], Awaitable[bool]]) -> None:
    """Look until it is so; fail at the deadline."""
    give_up_at = time.monotonic() + DEADLINE_SECONDS
    while not await look():
        assert time.monotonic() < give_up_at, f"not within {DEADLINE_SECONDS:g} s: {what}"
        await asyncio.sleep(0.05)


async def prepared(
    site: Site,
    job_id: JobId,
    gpus: Sequence[int],
    *,
    binding: Sequence[int] = (),
    beside: frozenset[JobId] = frozenset(),
) -> None:
    await site.port.prepare(
        site.node,
        job_id,
        uid=site.uid,
        gpus=gpus,
        binding=binding or gpus,
        deadline_seconds=DEADLINE_SECONDS,
        beside=beside,
    )


async def running(
    site: Site,
    *gpus: int,
    binding: Sequence[int] = (),
    beside: frozenset[JobId] = frozenset(),
    store: bool = False,
) -> JobId:
    """A job that runs on these GPUs."""
    job_id = await site.submit()
    await prepared(site, job_id, gpus, binding=binding, beside=beside)
    await site.start(job_id, binding or gpus, store=store)
    return job_id


async def leave(site: Site, job_id: JobId) -> None:
    """Take a job off its GPUs, all the way."""
    pause = await site.port.pause(site.node, job_id, floor_step=0, wait_seconds=DEADLINE_SECONDS, sole=True)
    assert pause.all_blocked
    offload = await site.port.offload(
        site.node,
        job_id,
        residual_limit_bytes=0,
        release_context=True,
        deadline_seconds=DEADLINE_SECONDS,
    )
    assert offload.left_bytes == 0 and not offload.empty
    await site.freeze(job_id)
    await site.port.stop(site.node, job_id, deadline_seconds=DEADLINE_SECONDS)


async def come_back(
    site: Site,
    job_id: JobId,
    *gpus: int,
    binding: Sequence[int] = (),
    beside: frozenset[JobId] = frozenset(),
) -> None:
    await site.port.resume(
        site.node,
        job_id,
        gpus=gpus,
        binding=binding or gpus,
        deadline_seconds=DEADLINE_SECONDS,
        beside=beside,
    )


async def sample(site: Site) -> NodeSample:
    """What the node shows now."""
    seen = (await site.samples.look())[site.node]
    assert isinstance(seen, NodeSample), seen
    return seen


async def block(site: Site, job_id: JobId) -> NodeJob | None:
    return (await sample(site)).jobs.get(job_id)


async def holders(site: Site) -> dict[int, set[JobId | None]]:
    """Jobs with memory, by GPU; GPUs without are left out."""
    found = {gpu.index: {p.job_id for p in gpu.processes} for gpu in (await sample(site)).gpus}
    return {index: jobs for index, jobs in found.items() if jobs}


class NodePortContract:
    """For all adapters."""

    async def test_gpus_of_an_idle_node(self, site: Site) -> None:
        seen = await sample(site)
        assert seen.node == site.node
        assert [gpu.index for gpu in seen.gpus] == list(range(len(seen.gpus)))
        assert len(seen.gpus) >= 4
        assert all(gpu.healthy and gpu.memory_bytes > gpu.memory_used_bytes for gpu in seen.gpus)
        assert await holders(site) == {}
        assert dict(seen.jobs) == {}

    async def test_a_prepared_job_has_a_block_and_no_memory(self, site: Site) -> None:
        job_id = await site.submit()
        for _ in range(2):  # an answer may get lost, and the call be repeated
            await prepared(site, job_id, (1, 2))
        found = await block(site, job_id)
        assert found is not None
        assert (found.phase, tuple(found.gpus), tuple(found.ranks)) == (NodePhase.RUNNING, (1, 2), ())
        assert await holders(site) == {}
        await site.port.forget(site.node, job_id)
        await site.port.forget(site.node, job_id)
        assert await block(site, job_id) is None

    async def test_a_running_job_is_seen_on_its_gpus(self, site: Site) -> None:
        job_id = await running(site, 1, 2)
        found = await block(site, job_id)
        assert found is not None
        assert found.phase is NodePhase.RUNNING and found.ranks
        assert await holders(site) == {1: {job_id}, 2: {job_id}}
        living = await site.port.living(site.node, job_id, deadline_seconds=DEADLINE_SECONDS)
        assert living.processes > 0
        living = await site.port.living(site.node, NO_JOB, deadline_seconds=DEADLINE_SECONDS)
        assert living.processes == 0

    async def test_gpus_with_anothers_memory_are_refused(self, site: Site) -> None:
        first, second = await running(site, 0), await site.submit()
        with pytest.raises(NodeError) as caught:
            await prepared(site, second, (0,))
        assert caught.value.kind == "gpu_busy"
        assert await block(site, second) is None
        await prepared(site, second, (1,))
        assert await holders(site) == {0: {first}}

    async def test_jobs_that_may_be_beside_each_other_share_gpus(self, site: Site) -> None:
        first = await running(site, 0)
        second = await running(site, 0, beside=frozenset({first}))
        assert await holders(site) == {0: {first, second}}
        third = await site.submit()
        with pytest.raises(NodeError) as caught:
            await prepared(site, third, (0,), beside=frozenset({first}))
        assert caught.value.kind == "gpu_busy"

    async def test_a_job_leaves_its_gpus_and_comes_back(self, site: Site) -> None:
        job_id = await running(site, 0)
        await leave(site, job_id)
        found = await block(site, job_id)
        assert found is not None and found.phase is NodePhase.YIELDED and tuple(found.gpus) == (0,)
        assert await holders(site) == {}
        await site.thaw(job_id)
        await come_back(site, job_id, 0)
        found = await block(site, job_id)
        assert found is not None and found.phase is NodePhase.RUNNING
        assert await holders(site) == {0: {job_id}}

    async def test_it_comes_back_to_other_gpus(self, site: Site) -> None:
        job_id = await running(site, 0, binding=(0, 1, 2, 3))
        found = await block(site, job_id)
        assert found is not None and found.movable
        await leave(site, job_id)
        await site.thaw(job_id)
        await come_back(site, job_id, 3, binding=(0, 1, 2, 3))
        assert await holders(site) == {3: {job_id}}

    async def test_its_gpus_are_anothers_meanwhile(self, site: Site) -> None:
        first = await running(site, 0)
        await leave(site, first)
        second = await running(site, 0)
        await site.thaw(first)
        with pytest.raises(NodeError) as caught:
            await come_back(site, first, 0)
        assert caught.value.kind == "gpu_busy"
        assert await holders(site) == {0: {second}}
        await come_back(site, first, 0, beside=frozenset({second}))
        assert await holders(site) == {0: {first, second}}

    async def test_every_step_may_be_repeated(self, site: Site) -> None:
        job_id = await running(site, 0)
        for _ in range(2):
            await site.port.pause(site.node, job_id, floor_step=0, wait_seconds=DEADLINE_SECONDS, sole=True)
        for _ in range(2):
            await site.port.offload(
                site.node,
                job_id,
                residual_limit_bytes=0,
                release_context=True,
                deadline_seconds=DEADLINE_SECONDS,
            )
        await site.freeze(job_id)
        for _ in range(2):
            await site.port.stop(site.node, job_id, deadline_seconds=DEADLINE_SECONDS)
        await site.thaw(job_id)
        for _ in range(2):
            await come_back(site, job_id, 0)
        assert await holders(site) == {0: {job_id}}

    async def test_a_pause_is_undone_by_resume(self, site: Site) -> None:
        job_id = await running(site, 0)
        await site.port.pause(site.node, job_id, floor_step=0, wait_seconds=DEADLINE_SECONDS, sole=True)
        found = await block(site, job_id)
        assert found is not None and found.phase is NodePhase.PAUSING
        await come_back(site, job_id, 0)
        found = await block(site, job_id)
        assert found is not None and found.phase is NodePhase.RUNNING

    async def test_a_job_without_a_store_saves_nothing_and_goes_on(self, site: Site) -> None:
        job_id = await running(site, 0)
        save = functools.partial(site.port.save, site.node, job_id, deadline_seconds=DEADLINE_SECONDS)
        with pytest.raises(NodeError) as caught:
            await save()
        assert caught.value.kind == "bad_request", "it is not paused"
        await site.port.pause(site.node, job_id, floor_step=0, wait_seconds=DEADLINE_SECONDS, sole=True)
        with pytest.raises(NodeError) as caught:
            await save()
        assert caught.value.kind == "unsupported"
        found = await block(site, job_id)
        assert found is not None and found.phase is NodePhase.RUNNING and not found.has_store

    async def test_a_yielded_job_saves_while_another_has_its_gpus(self, site: Site) -> None:
        first = await running(site, 0, store=True)
        found = await block(site, first)
        assert found is not None and found.has_store and not found.saves_yielded
        await leave(site, first)
        found = await block(site, first)
        assert found is not None and found.has_store and found.saves_yielded
        save = functools.partial(site.port.save, site.node, first, deadline_seconds=DEADLINE_SECONDS)
        with pytest.raises(NodeError) as caught:
            await save()
        assert caught.value.kind == "halted", "Slurm has not resumed it"
        second = await running(site, 0)
        await site.thaw(first)
        saved = await save()
        assert saved.generation == 1
        again = await save()
        assert (again.step, again.generation) == (saved.step, 1), "an answer may get lost"
        found = await block(site, first)
        assert found is not None and found.phase is NodePhase.YIELDED
        assert await holders(site) == {0: {second}}
        # It is not requeued after all.
        await site.freeze(first)
        await site.port.stop(site.node, first, deadline_seconds=DEADLINE_SECONDS)
        await leave(site, second)
        await site.thaw(first)
        await come_back(site, first, 0)
        assert await holders(site) == {0: {first}}

    async def test_a_yielded_job_without_a_store_saves_nothing_and_stays_off(self, site: Site) -> None:
        job_id = await running(site, 0)
        await leave(site, job_id)
        await site.thaw(job_id)
        with pytest.raises(NodeError) as caught:
            await site.port.save(site.node, job_id, deadline_seconds=DEADLINE_SECONDS)
        assert caught.value.kind == "unsupported"
        found = await block(site, job_id)
        assert found is not None and found.phase is NodePhase.YIELDED and not found.saves_yielded
        assert await holders(site) == {}

    async def test_a_job_with_memory_on_its_gpus_has_not_left(self, site: Site) -> None:
        job_id = await running(site, 0)
        with pytest.raises(NodeError):
            await site.port.stop(site.node, job_id, deadline_seconds=DEADLINE_SECONDS)
        assert await holders(site) == {0: {job_id}}

    async def test_nothing_is_done_to_unknown_jobs(self, site: Site) -> None:
        calls = (
            site.port.pause(site.node, NO_JOB, floor_step=0, wait_seconds=1.0, sole=True),
            site.port.stop(site.node, NO_JOB, deadline_seconds=DEADLINE_SECONDS),
            come_back(site, NO_JOB, 0),
        )
        for call in calls:
            with pytest.raises(NodeError) as caught:
                await call
            assert caught.value.kind == "unknown_job"

    async def test_the_programs_of_a_job_are_known_and_can_be_read_ahead(self, site: Site) -> None:
        job_id = await running(site, 0)
        files = await site.port.mapped(site.node, job_id, deadline_seconds=DEADLINE_SECONDS)
        assert files and all(path.startswith("/") for path in files)
        assert not await site.port.mapped(site.node, NO_JOB, deadline_seconds=DEADLINE_SECONDS)
        await site.port.warm(site.node, uid=site.uid, files=files, deadline_seconds=DEADLINE_SECONDS)

    async def test_a_job_that_ended_is_off_its_gpus(self, site: Site) -> None:
        job_id = await running(site, 0)
        await site.end(job_id)

        async def gone() -> bool:
            return await holders(site) == {}

        await until("an empty GPU", gone)

    async def test_a_node_that_does_not_answer_is_told_as_such(self, site: Site) -> None:
        job_id = await running(site, 0)
        await sample(site)
        await site.cut()
        began = time.monotonic()
        assert isinstance((await site.samples.look())[site.node], NodeUnreachable)
        with pytest.raises(NodeUnreachable):
            await site.port.pause(site.node, job_id, floor_step=0, wait_seconds=0.2, sole=True)
        assert time.monotonic() - began < DEADLINE_SECONDS
