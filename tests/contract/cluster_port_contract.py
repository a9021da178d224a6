# SPDX-License-Identifier: GPL-2.0-or-later
"""What every adapter of the cluster port must do.

`ClusterPortContract` holds for all adapters, `SharedClusterContract` for those of clusters that others use
too, `RealSlurmContract` for those with a real Slurm behind them. A test module makes a subclass and a fixture
`world`, which gives the tests a `World`: the port under test, and the rest of the cluster (people who submit,
an operator who looks) by other means. Or it takes the tests one by one (`cases`) and gives each a world.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

import pytest

from controller.cluster.port import ClusterJob, ClusterPort, JobState
from controller.errors import ClusterRefused, ClusterUnavailable, UnknownJob
from controller.model import GpuId, GpuSet, JobId

NO_JOB = JobId(999_999)
PATIENCE_SECONDS = 60.0
"""Less than the two minutes after which Slurm would start a requeued job by itself."""
KILLED_AGAIN_SECONDS = 90.0
"""Slurm may lose the first kill of a job that has just started, and repeats it after a minute."""
HANGS_SECONDS = 60.0
"""A call that takes so long has no deadline."""

Test = TypeVar("Test", bound=Callable[..., Awaitable[None]])


def alone(test: Test) -> Test:
    """Other tests that run on other nodes of the same cluster would disturb this one, or it them."""
    vars(test)["alone"] = True
    return test


class World(Protocol):
    """A cluster around the port under test. It has at least two nodes with four GPUs each."""

    port: ClusterPort
    nodes: Sequence[str]
    other_model: str
    """A node whose GPUs are of another model than those of `nodes`."""

    async def submit(self, *options: str, gpus_per_node: int = 1, nodes: int = 1) -> JobId:
        """A Gandiva job that runs until it is cancelled, submitted by an ordinary user. `options` are
        sbatch's, for real Slurm only."""
        ...

    async def submit_short(self, exit_code: int) -> JobId:
        """A Gandiva job with one GPU that ends at once with this exit code, when it gets to run."""
        ...

    async def allocated(self, job_id: JobId) -> GpuSet:
        """The GPUs that a running Gandiva job has, seen by other means than the port."""
        ...


class SharedWorld(World, Protocol):
    """A world with a slurmctld, and with other people in it."""

    async def submit_ordinary(self, gpus: int) -> JobId:
        """A running job of an ordinary user on whole GPUs of one node, without Gandiva."""
        ...

    async def hang(self) -> None:
        """Make slurmctld stop answering. Once this returns, no call gets an answer."""
        ...

    async def recover(self) -> None:
        """Undo `hang`."""
        ...


class SlurmWorld(SharedWorld, Protocol):
    """A world with a real Slurm."""

    async def user(self, *command: str) -> str:
        """Run a Slurm command as the user who submits; its output. Raises AssertionError when it fails."""
        ...

    async def operator(self, *command: str) -> str:
        """The same as root."""
        ...

    async def begun(self, job_id: JobId) -> None:
        """Wait until a running job's own program runs on the first node: Slurm says RUNNING, and takes a
        cancel or a suspend, before that."""
        ...

    async def frozen(self, job_id: JobId) -> bool:
        """Whether processes of a job on the first node are stopped or frozen there."""
        ...


def gpus(node: str, *ordinals: int) -> GpuSet:
    """GPUs of one node."""
    return frozenset(GpuId(node, ordinal) for ordinal in ordinals)


async def until(
    what: str, look: Callable[[], Awaitable[Any]], timeout_seconds: float = PATIENCE_SECONDS
) -> Any:
    """Look until there is something to see; fail at the deadline."""
    give_up_at = time.monotonic() + timeout_seconds
    while not (seen := await look()):
        assert time.monotonic() < give_up_at, f"not within {timeout_seconds:g} s: {what}"
        await asyncio.sleep(0.05)
    return seen


async def in_state(
    world: World, job_id: JobId, *states: JobState, timeout_seconds: float = PATIENCE_SECONDS
) -> ClusterJob:
    """The job once it is in one of these states."""

    async def look() -> ClusterJob | None:
        job = await world.port.job(job_id)
        return job if job.state in states else None

    what = f"job {job_id} in {[state.value for state in states]}"
    found: ClusterJob = await until(what, look, timeout_seconds)
    return found


async def running(world: World, binding: GpuSet, job_id: JobId | None = None) -> JobId:
    """A job that runs on exactly this binding."""
    nodes = {gpu.node for gpu in binding}
    job_id = job_id or await world.submit(gpus_per_node=len(binding) // len(nodes), nodes=len(nodes))
    await until(f"job {job_id} bound", lambda: _bound(world, job_id, binding), KILLED_AGAIN_SECONDS)
    await world.port.release(job_id)
    await in_state(world, job_id, JobState.RUNNING)
    return job_id


async def _bound(world: World, job_id: JobId, binding: GpuSet) -> bool:
    try:
        await world.port.bind(job_id, binding)
    except ClusterUnavailable:  # it is not through with its last run, and the port says: ask again
        return False
    return True


async def seen(world: World, job_id: JobId) -> ClusterJob:
    """The job as `observe` shows it. It fails when it is not there."""
    view = await world.port.observe()
    found = [job for job in view.jobs if job.id == job_id]
    assert len(found) == 1, f"observe shows job {job_id} {len(found)} times"
    return found[0]


class ClusterPortContract:
    """For all adapters."""

    @alone
    async def test_nodes_and_their_gpus(self, world: World) -> None:
        view = await world.port.observe()
        shown = [node for node in view.nodes if node.name != world.other_model]
        assert sorted(node.name for node in shown) == sorted(world.nodes)
        for node in shown:
            assert node.up
            assert [gpu.index for gpu in node.gpus] == list(range(len(node.gpus)))
            assert len(node.gpus) >= 4
            assert {gpu.model for gpu in node.gpus} == {"a100"}
            assert all(gpu.shards > 1 for gpu in node.gpus)

    async def test_a_submitted_job_waits_for_the_controller(self, world: World) -> None:
        job_id = await world.submit(gpus_per_node=2)
        job = await seen(world, job_id)
        assert job.state is JobState.PENDING
        assert job.held and job.eligible and not job.user_hold
        assert job.request.startswith("gandiva:{")
        assert job.binding == frozenset()
        assert job.nodes == ()
        assert job.start_time is None
        assert job.end_time is None
        assert await world.port.job(job_id) == job

    async def test_a_bound_job_runs_on_exactly_its_gpus(self, world: World) -> None:
        binding = gpus(world.nodes[1], 1, 3)
        job_id = await running(world, binding)
        job = await seen(world, job_id)
        assert job.binding == binding
        assert await world.allocated(job_id) == binding
        assert not job.exclusive_gpus
        assert job.nodes == (world.nodes[1],)
        assert job.start_time is not None

    async def test_a_floating_job_is_bound_to_all_gpus_of_its_node(self, world: World) -> None:
        binding = gpus(world.nodes[0], 0, 1, 2, 3)
        job_id = await world.submit(gpus_per_node=1)
        await running(world, binding, job_id)
        assert (await world.port.job(job_id)).binding == binding
        assert await world.allocated(job_id) == binding

    async def test_jobs_share_gpus(self, world: World) -> None:
        binding = gpus(world.nodes[0], 0, 1)
        first = await running(world, binding)
        second = await running(world, binding)
        assert await world.allocated(first) == binding
        assert await world.allocated(second) == binding
        assert (await world.port.job(first)).state is JobState.RUNNING

    async def test_a_gang_on_two_nodes(self, world: World) -> None:
        binding = gpus(world.nodes[0], 2, 3) | gpus(world.nodes[1], 2, 3)
        job_id = await running(world, binding)
        assert (await world.port.job(job_id)).binding == binding
        assert await world.allocated(job_id) == binding

    async def test_other_indices_on_each_node_cannot_be_bound(self, world: World) -> None:
        job_id = await world.submit(gpus_per_node=1, nodes=2)
        with pytest.raises(ValueError):
            await world.port.bind(job_id, gpus(world.nodes[0], 0) | gpus(world.nodes[1], 1))
        job = await world.port.job(job_id)
        assert job.held and job.eligible

    async def test_gpus_of_two_models_cannot_be_bound(self, world: World) -> None:
        job_id = await world.submit(gpus_per_node=1, nodes=2)
        over_both = gpus(world.nodes[0], 0) | gpus(world.other_model, 0)
        with pytest.raises(ValueError, match="one GPU model"):
            await world.port.bind(job_id, over_both)
        with pytest.raises(ValueError, match="one GPU model"):
            await world.port.reserve(job_id, over_both, 60.0)
        job = await world.port.job(job_id)
        assert job.held and job.eligible
        assert job_id not in await world.port.reservations()

    async def test_gpus_of_a_node_that_is_not_there_cannot_be_bound(self, world: World) -> None:
        job_id = await world.submit()
        with pytest.raises(ClusterRefused):
            await world.port.bind(job_id, gpus("nowhere", 0))
        assert (await world.port.job(job_id)).held

    async def test_a_running_job_cannot_be_bound(self, world: World) -> None:
        binding = gpus(world.nodes[0], 0)
        job_id = await running(world, binding)
        with pytest.raises(ClusterRefused):
            await world.port.bind(job_id, gpus(world.nodes[1], 0))
        assert (await world.port.job(job_id)).binding == binding

    async def test_suspend_and_resume_may_be_repeated(self, world: World) -> None:
        job_id = await running(world, gpus(world.nodes[0], 0))
        for _ in range(2):
            await world.port.suspend(job_id)
            assert (await in_state(world, job_id, JobState.SUSPENDED)).binding == gpus(world.nodes[0], 0)
        for _ in range(2):
            await world.port.resume(job_id)
            await in_state(world, job_id, JobState.RUNNING)

    async def test_a_waiting_job_can_be_neither_suspended_nor_resumed(self, world: World) -> None:
        job_id = await world.submit()
        with pytest.raises(ClusterRefused):
            await world.port.suspend(job_id)
        with pytest.raises(ClusterRefused):
            await world.port.resume(job_id)
        assert (await world.port.job(job_id)).held

    @pytest.mark.parametrize(
        "call", ["job", "unbind", "release", "hold", "suspend", "resume", "requeue"], ids=lambda name: name
    )
    async def test_unknown_jobs(self, world: World, call: str) -> None:
        with pytest.raises(UnknownJob):
            await getattr(world.port, call)(NO_JOB)

    async def test_ending_an_unknown_job(self, world: World) -> None:
        with pytest.raises(UnknownJob):
            await world.port.end(NO_JOB, "why")

    async def test_binding_an_unknown_job(self, world: World) -> None:
        with pytest.raises(UnknownJob):
            await world.port.bind(NO_JOB, gpus(world.nodes[0], 0))

    async def test_a_running_job_cannot_be_held(self, world: World) -> None:
        job_id = await running(world, gpus(world.nodes[0], 0))
        with pytest.raises(ClusterRefused):
            await world.port.hold(job_id)
        assert (await world.port.job(job_id)).state is JobState.RUNNING

    async def test_holding_twice_and_releasing_a_running_job_do_no_harm(self, world: World) -> None:
        job_id = await world.submit()
        await world.port.hold(job_id)
        job = await world.port.job(job_id)
        assert job.held and job.eligible and not job.user_hold
        await running(world, gpus(world.nodes[0], 0), job_id)
        await world.port.release(job_id)
        assert (await world.port.job(job_id)).state is JobState.RUNNING

    async def test_a_requeued_job_waits_and_runs_elsewhere_at_once(self, world: World) -> None:
        job_id = await running(world, gpus(world.nodes[0], 0, 1))
        await world.port.requeue(job_id)
        await world.port.requeue(job_id)  # an answer may get lost, and the call be repeated
        job = await in_state(world, job_id, JobState.PENDING)
        assert job.held and job.eligible and not job.user_hold
        assert job.binding == frozenset()
        assert job.restart_count == 1
        await running(world, gpus(world.nodes[1], 2, 3), job_id)
        assert await world.allocated(job_id) == gpus(world.nodes[1], 2, 3)

    async def test_a_requeued_job_runs_with_more_gpus_and_with_fewer(self, world: World) -> None:
        """Whatever it asked for: its binding says how many."""
        job_id = await running(world, gpus(world.nodes[0], 0))
        for ordinals in ((0, 1, 2, 3), (0, 1), (0,)):
            await world.port.requeue(job_id)
            await running(world, gpus(world.nodes[0], *ordinals), job_id)
            assert await world.allocated(job_id) == gpus(world.nodes[0], *ordinals)
            assert (await world.port.job(job_id)).binding == gpus(world.nodes[0], *ordinals)

    async def test_a_suspended_job_can_be_requeued(self, world: World) -> None:
        job_id = await running(world, gpus(world.nodes[0], 0))
        await world.port.suspend(job_id)
        await world.port.requeue(job_id)
        assert (await in_state(world, job_id, JobState.PENDING, timeout_seconds=KILLED_AGAIN_SECONDS)).held

    async def test_binding_waits_until_a_requeued_job_is_through_with_its_run(self, world: World) -> None:
        job_id = await running(world, gpus(world.nodes[0], 0))
        await world.port.requeue(job_id)
        await running(world, gpus(world.nodes[0], 1), job_id)
        assert await world.allocated(job_id) == gpus(world.nodes[0], 1)

    async def test_an_ended_job_says_how(self, world: World) -> None:
        job_id = await world.submit_short(exit_code=3)
        await world.port.bind(job_id, gpus(world.nodes[0], 0))
        await world.port.release(job_id)
        await in_state(world, job_id, JobState.ENDED)
        job = await seen(world, job_id)
        assert job.state is JobState.ENDED
        assert job.state_name == "FAILED"
        assert job.exit_code == 3
        assert job.start_time is not None and job.end_time is not None
        assert job.start_time <= job.end_time

    async def test_an_ended_job_is_not_run_again(self, world: World) -> None:
        job_id = await world.submit_short(exit_code=0)
        await world.port.bind(job_id, gpus(world.nodes[0], 0))
        await world.port.release(job_id)
        await in_state(world, job_id, JobState.ENDED)
        for call in (world.port.requeue, world.port.hold, world.port.suspend, world.port.resume):
            with pytest.raises(ClusterRefused):
                await call(job_id)
        assert (await world.port.job(job_id)).state_name == "COMPLETED"

    @pytest.mark.parametrize("state", ["pending", "running", "suspended"])
    async def test_a_job_is_ended_with_a_reason(self, world: World, state: str) -> None:
        job_id = await (running(world, gpus(world.nodes[0], 0)) if state != "pending" else world.submit())
        if state == "suspended":
            await world.port.suspend(job_id)
        await world.port.end(job_id, "it cannot be suspended")
        assert (await in_state(world, job_id, JobState.ENDED)).state_name == "CANCELLED"
        await world.port.end(job_id, "an answer may get lost, and the call be repeated")

    async def test_an_unbound_job_is_as_it_was_submitted(self, world: World) -> None:
        job_id = await world.submit(gpus_per_node=2)
        await world.port.bind(job_id, gpus(world.nodes[0], 0, 1))
        await world.port.unbind(job_id)
        assert (await world.port.job(job_id)).held
        await running(world, gpus(world.nodes[1], 0, 1), job_id)
        assert await world.allocated(job_id) == gpus(world.nodes[1], 0, 1)

    async def test_views_one_after_the_other_show_each_job_as_it_is(self, world: World) -> None:
        """An adapter may answer with differences; nothing may be missing from them."""
        waits, runs = await world.submit(), await world.submit(gpus_per_node=2)

        async def same() -> bool:
            return all([await seen(world, i) == await world.port.job(i) for i in (waits, runs)])

        async def look() -> None:
            await until("views that show each job as it is", same)

        await look()
        await running(world, gpus(world.nodes[0], 0, 1), runs)
        await look()
        await world.port.suspend(runs)
        await in_state(world, runs, JobState.SUSPENDED)
        await look()
        await world.port.resume(runs)
        await in_state(world, runs, JobState.RUNNING)
        await look()
        await world.port.requeue(runs)
        await in_state(world, runs, JobState.PENDING, timeout_seconds=KILLED_AGAIN_SECONDS)
        await look()
        await world.port.end(runs, "no reason")
        await in_state(world, runs, JobState.ENDED)
        await look()
        later = await world.submit()
        assert (await seen(world, later)).state is JobState.PENDING


class SharedClusterContract(ClusterPortContract):
    """For adapters of clusters that others use too: a slurmctld, accounts, ordinary jobs."""

    async def test_a_job_says_whose_it_is(self, world: SharedWorld) -> None:
        job = await seen(world, await world.submit())
        assert job.uid > 0
        assert job.account, "limits of weights go by it"
        assert job.qos == "normal"

    async def test_a_jobs_partition_is_one_of_those_of_the_nodes(self, world: SharedWorld) -> None:
        job = await seen(world, await world.submit())
        for node in (await world.port.observe()).nodes:
            assert (node.partitions or {}).get(job.partition) == "", "its jobs start there"
            assert dict(node.ordinary_gpus) == {}
            assert node.memory_bytes > 0
            assert node.address

    async def test_shares_are_a_tree(self, world: SharedWorld) -> None:
        """Each with its parent before it, and a factor of users only."""
        found = await world.port.shares()
        assert {"root", "vision", "vision/alice"} <= {share.name for share in found}
        assert len({share.name for share in found}) == len(found)
        names = {share.name for share in found if share.parent is None}
        for share in found:
            assert share.parent is None or share.parent in names, share
            names.add(share.name)
            assert share.weight >= 0 and 0 <= share.usage_fraction <= 1
            account, _, user = share.name.partition("/")
            assert (share.fair_share is not None) == bool(user)
            assert not user or (share.parent == account and 0 <= (share.fair_share or 0) <= 1)

    async def test_whole_gpus_of_ordinary_jobs(self, world: SharedWorld) -> None:
        job_id = await world.submit_ordinary(2)

        async def look() -> list[tuple[str, int, JobId | None]]:
            nodes = (await world.port.observe()).nodes
            held = [(n.name, index, owner) for n in nodes for index, owner in n.ordinary_gpus.items()]
            # A view of nodes may be later than that of jobs in it.
            return held if all(owner is not None for _, _, owner in held) else []

        held = await until("GPUs of an ordinary job, and whose they are", look)
        assert len(held) == 2
        assert {owner for _, _, owner in held} == {job_id}
        assert len({node for node, _, _ in held}) == 1
        assert job_id not in {job.id for job in (await world.port.observe()).jobs}

    @alone
    async def test_reserved_gpus_are_for_one_job_to_start_on(self, world: SharedWorld) -> None:
        job_id = await world.submit()
        first, second = gpus(world.nodes[0], 1), gpus(world.nodes[0], 2)
        before = {node.name: (node.up, node.ordinary_gpus) for node in (await world.port.observe()).nodes}
        await world.port.reserve(job_id, first, 600.0)
        await world.port.reserve(job_id, first, 600.0)
        assert await world.port.reservations() == {job_id: first}
        await world.port.reserve(job_id, second, 600.0)
        assert await world.port.reservations() == {job_id: second}
        view = await world.port.observe()
        assert {job.id for job in view.jobs if job.state is not JobState.ENDED} == {job_id}
        assert {node.name: (node.up, node.ordinary_gpus) for node in view.nodes} == before
        await running(world, second, job_id)
        assert await world.allocated(job_id) == second
        await world.port.unreserve(job_id)
        await world.port.unreserve(job_id)
        assert await world.port.reservations() == {}
        await world.port.unreserve(NO_JOB)
        assert (await world.port.job(job_id)).state is JobState.RUNNING

    @alone
    async def test_gpus_of_two_nodes_are_reserved_at_once(self, world: SharedWorld) -> None:
        job_id = await world.submit(gpus_per_node=2, nodes=2)
        both = gpus(world.nodes[0], 0, 3) | gpus(world.nodes[1], 0, 3)
        await world.port.reserve(job_id, both, 600.0)
        assert await world.port.reservations() == {job_id: both}
        with pytest.raises(ValueError):
            await world.port.reserve(job_id, gpus(world.nodes[0], 0) | gpus(world.nodes[1], 3), 600.0)
        await world.port.unreserve(job_id)
        assert await world.port.reservations() == {}

    @alone
    async def test_a_gpu_of_an_ordinary_job_cannot_be_reserved(self, world: SharedWorld) -> None:
        await world.submit_ordinary(2)
        job_id = await world.submit()

        async def held() -> GpuSet:
            nodes = (await world.port.observe()).nodes
            return frozenset(GpuId(node.name, index) for node in nodes for index in node.ordinary_gpus)

        one = min(await until("GPUs of an ordinary job", held))
        with pytest.raises(ClusterRefused):
            await world.port.reserve(job_id, frozenset({one}), 600.0)
        assert await world.port.reservations() == {}

    @alone
    async def test_a_slurmctld_that_hangs(self, world: SharedWorld) -> None:
        job_id = await running(world, gpus(world.nodes[0], 0))
        await world.hang()
        try:
            for call in (world.port.observe(), world.port.job(job_id), world.port.suspend(job_id)):
                began = time.monotonic()
                with pytest.raises(ClusterUnavailable):
                    await call
                assert time.monotonic() - began < HANGS_SECONDS
        finally:
            await world.recover()

        async def look() -> bool:
            try:
                await world.port.observe()
            except ClusterUnavailable:
                return False
            return True

        await until("an answer after recovery", look)
        await world.port.resume(job_id)  # the suspend may have taken effect after all
        assert (await seen(world, job_id)).state is JobState.RUNNING


class RealSlurmContract(SharedClusterContract):
    """For adapters with a real Slurm behind them: what users ask for in Slurm's own words."""

    async def test_the_reason_of_an_end_is_what_its_user_reads(self, world: SlurmWorld) -> None:
        job_id = await world.submit("--comment=mine, own")
        await running(world, gpus(world.nodes[0], 0), job_id)
        await world.port.end(job_id, "it cannot be suspended: 'rank' said\n\"no\", twice=2 \u2026")
        await in_state(world, job_id, JobState.ENDED)
        text = await world.user("scontrol", "show", "job", str(job_id))
        assert "Comment=mine, own; it cannot be suspended: ?rank? said??no?, twice=2 ?" in text

    async def test_no_ordinary_job_gets_a_reserved_gpu(self, world: SlurmWorld) -> None:
        """Nor does one that waits hinder the job that they are kept for, which needs all cores left."""
        node = world.nodes[0]
        job_id = await world.submit("--cpus-per-task=4", "--time=60")
        three = ("sbatch", "--parsable", "--no-gandiva", "--output=/dev/null", "--mem=50", "-w", node)
        await world.user(*three, "--gres=gpu:3", "-n12", "--time=30", "--wrap", "exec sleep 600")

        async def free() -> GpuSet:
            found = {each.name: each for each in (await world.port.observe()).nodes}[node]
            left = {gpu.index for gpu in found.gpus} - found.ordinary_gpus.keys()
            return gpus(node, *left) if len(left) == 1 else frozenset()

        last = await until("three GPUs of an ordinary job", free)
        await world.port.reserve(job_id, last, 600.0)
        waits = (
            await world.user(*three, "--gres=gpu:1", "-n1", "--time=30", "--wrap", "exec sleep 600")
        ).strip()
        await world.operator("scontrol", "update", f"JobId={waits}", "Priority=1000")
        state = ("squeue", "--noheader", "--format=%T", f"--jobs={waits}")

        async def considered() -> str:
            text = await world.user("scontrol", "show", "job", waits)
            return text.partition("LastSchedEval=")[2].split()[0]

        async def planned() -> bool:
            return "PLANNED" in await world.operator("scontrol", "show", "node", node)

        await until("Slurm has planned when the waiting job starts", planned)
        await running(world, last, job_id)
        assert await world.user(*state) == "PENDING\n"
        await world.port.unreserve(job_id)
        before = await considered()

        async def again() -> bool:
            return await considered() != before

        await until("Slurm has thought of the waiting job again", again)
        assert await world.user(*state) == "PENDING\n"
        assert await world.allocated(job_id) == last
        # What is for a start ahead of others is not for its next one.
        await world.port.requeue(job_id)
        await in_state(world, job_id, JobState.PENDING)
        await world.operator("scancel", waits)
        await world.port.unbind(job_id)
        await world.port.release(job_id)
        priority = await world.user("squeue", "--noheader", "--format=%Q", f"--jobs={job_id}")
        assert int(priority) < 2**31

    @alone
    async def test_users_cannot_ask_for_shards_nor_pass_for_a_reservation(self, world: SlurmWorld) -> None:
        job_id = await world.submit()
        words = ("sbatch", "--mem=50", f"--job-name=gandiva-reservation-{job_id}", "--wrap", "exec sleep 60")
        with pytest.raises(AssertionError, match="shards belong to time-sliced jobs"):
            await world.user(*words, "--gres=shard:a100_1:1")
        await world.user(*words)
        assert await world.port.reservations() == {}

    async def test_slurms_own_reservation_of_one_gpu_takes_all_cores_of_its_node(
        self, world: SlurmWorld
    ) -> None:
        """Once it does not, it may be what `reserve` makes."""
        node = world.nodes[0]
        words = ("ReservationName=gpu", "StartTime=now", "Duration=1", "Users=root", f"Nodes={node}")
        await world.operator("scontrol", "create", "reservation", *words, "CoreCnt=1", "TRES=gres/gpu=1")
        try:
            text = await world.operator("scontrol", "show", "reservation", "gpu")
            assert "CoreCnt=16" in text and "TRES=cpu=16,gres/gpu=1" in text
        finally:
            await world.operator("scontrol", "delete", "reservation", "gpu")
        with pytest.raises(AssertionError, match="Invalid Trackable RESource"):
            await world.operator("scontrol", "create", "reservation", *words, "TRES=gres/gpu:a100_0=1")

    async def test_a_job_that_may_not_be_requeued_runs_on(self, world: SlurmWorld) -> None:
        job_id = await world.submit("--no-requeue")
        await running(world, gpus(world.nodes[0], 0), job_id)
        with pytest.raises(ClusterRefused):
            await world.port.requeue(job_id)
        assert (await world.port.job(job_id)).state is JobState.RUNNING

    async def test_cores_tasks_and_memory(self, world: SlurmWorld) -> None:
        job_id = await world.submit(
            "--ntasks-per-node=2", "--cpus-per-task=2", "--mem=300", gpus_per_node=2, nodes=2
        )
        binding = gpus(world.nodes[0], 0, 1) | gpus(world.nodes[1], 0, 1)
        await running(world, binding, job_id)
        job = await world.port.job(job_id)
        assert job.binding == binding
        assert job.cpus_per_node == 4
        assert job.memory_per_node_bytes == 300 * 2**20
        nodes = (await world.port.observe()).nodes
        assert {node.memory_allocated_bytes for node in nodes} == {300 * 2**20}

    async def test_memory_per_core(self, world: SlurmWorld) -> None:
        job_id = await world.submit("--mem-per-cpu=50", "--cpus-per-task=3")
        assert (await world.port.job(job_id)).memory_per_node_bytes == 150 * 2**20

    @pytest.mark.parametrize("node_count", [1, 2])
    async def test_gpus_per_job_go_on_as_many_nodes_as_the_controller_says(
        self, world: SlurmWorld, node_count: int
    ) -> None:
        job_id = await world.submit("--gpus=2", gpus_per_node=0, nodes=0)
        per_node = range(2 // node_count)
        binding = frozenset(GpuId(node, index) for node in world.nodes[:node_count] for index in per_node)
        await running(world, binding, job_id)
        assert await world.allocated(job_id) == binding

    async def test_moving_between_one_node_and_two(self, world: SlurmWorld) -> None:
        job_id = await world.submit("--gpus=2", gpus_per_node=0, nodes=0)
        await running(world, gpus(world.nodes[0], 0) | gpus(world.nodes[1], 0), job_id)
        await world.port.requeue(job_id)
        await running(world, gpus(world.nodes[1], 2, 3), job_id)
        assert await world.allocated(job_id) == gpus(world.nodes[1], 2, 3)

    async def test_unbinding_gpus_per_job(self, world: SlurmWorld) -> None:
        job_id = await world.submit("--gpus=2", gpus_per_node=0, nodes=0)
        await world.port.bind(job_id, gpus(world.nodes[0], 0) | gpus(world.nodes[1], 0))
        await world.port.unbind(job_id)
        assert "ReqNodeList=(null)" in await world.user("scontrol", "show", "job", str(job_id))
        await running(world, gpus(world.nodes[1], 1, 2), job_id)
        assert await world.allocated(job_id) == gpus(world.nodes[1], 1, 2)

    async def test_nodes_that_the_user_wants_or_not(self, world: SlurmWorld) -> None:
        first, second = world.nodes[:2]
        wants = await world.submit(f"--nodelist={second}")
        avoids = await world.submit(f"--exclude={first}")
        assert (await world.port.job(avoids)).excluded_nodes == {first}
        await world.port.bind(wants, gpus(first, 0))
        await world.port.unbind(wants)
        assert f"ReqNodeList={second} " in await world.user("scontrol", "show", "job", str(wants))
        await running(world, gpus(second, 0), wants)

    async def test_an_array_becomes_jobs_of_their_own(self, world: SlurmWorld) -> None:
        array = await world.submit("--array=0-3")
        view = await world.port.observe()
        tasks = [job for job in view.jobs if job.request.startswith("gandiva:") and job.id >= array]
        assert len(tasks) == 4
        assert all(job.held and job.eligible for job in tasks)
        for index, job in enumerate(tasks):
            await running(world, gpus(world.nodes[0], index), job.id)
        for index, job in enumerate(tasks):
            assert await world.allocated(job.id) == gpus(world.nodes[0], index)

    async def test_an_array_keeps_its_limit(self, world: SlurmWorld) -> None:
        array = await world.submit("--array=1-5%2")

        async def tasks() -> list[ClusterJob]:
            return [job for job in (await world.port.observe()).jobs if job.id >= array]

        eligible = [job for job in await tasks() if job.eligible]
        assert len(eligible) == 2
        await running(world, gpus(world.nodes[0], 0), eligible[0].id)
        assert len([job for job in await tasks() if job.eligible]) == 1
        await running(world, gpus(world.nodes[0], 1), eligible[1].id)
        assert not [job for job in await tasks() if job.eligible]
        await world.user("scancel", str(eligible[0].id))
        await in_state(world, eligible[0].id, JobState.ENDED)
        assert len([job for job in await tasks() if job.eligible]) == 1

    async def test_dependencies_and_begin_times(self, world: SlurmWorld) -> None:
        first = await world.submit()
        after = await world.submit(f"--dependency=afterany:{first}")
        later = await world.submit("--begin=now+1hour")
        for job_id in (after, later):
            job = await world.port.job(job_id)
            assert job.held and not job.eligible and not job.user_hold
        await world.user("scontrol", "update", f"jobid={later}", "starttime=now")
        assert (await world.port.job(later)).eligible

    async def test_a_deadline(self, world: SlurmWorld) -> None:
        before = time.time()
        job = await world.port.job(await world.submit("--deadline=now+2hours", "--time=30"))
        assert job.deadline_at is not None and job.deadline_at - before == pytest.approx(7200, abs=300)
        assert job.duration_seconds == 1800.0
        plain = await world.port.job(await world.submit("--time=30"))
        assert plain.deadline_at is None and plain.duration_seconds is None

    async def test_a_users_hold(self, world: SlurmWorld) -> None:
        job_id = await world.submit()
        await world.user("scontrol", "hold", str(job_id))
        job = await world.port.job(job_id)
        assert job.held and job.user_hold and not job.eligible
        await world.user("scontrol", "release", str(job_id))
        job = await world.port.job(job_id)
        assert job.held and job.eligible and not job.user_hold

    async def test_submitted_with_a_hold(self, world: SlurmWorld) -> None:
        job_id = await world.submit("--hold")
        job = await world.port.job(job_id)
        assert job.held and job.user_hold
        await world.user("scontrol", "release", str(job_id))
        job = await world.port.job(job_id)
        assert job.held and job.eligible and not job.user_hold

    async def test_an_administrators_hold(self, world: SlurmWorld) -> None:
        job_id = await world.submit()
        await world.operator("scontrol", "hold", str(job_id))
        job = await world.port.job(job_id)
        assert job.held and job.user_hold
        await world.operator("scontrol", "uhold", str(job_id))
        assert not (await world.port.job(job_id)).user_hold

    async def test_an_operators_hold_of_a_suspended_job(self, world: SlurmWorld) -> None:
        """To Slurm it is void: a resume works all the same."""
        job_id = await running(world, gpus(world.nodes[0], 0))
        await world.port.suspend(job_id)
        assert not (await in_state(world, job_id, JobState.SUSPENDED)).user_hold
        await world.operator("scontrol", "hold", str(job_id))
        assert (await world.port.job(job_id)).user_hold
        await world.operator("scontrol", "release", str(job_id))
        assert not (await world.port.job(job_id)).user_hold
        await world.operator("scontrol", "hold", str(job_id))
        await world.port.resume(job_id)
        assert not (await in_state(world, job_id, JobState.RUNNING)).user_hold

    async def test_a_job_released_by_an_administrator_has_whole_gpus(self, world: SlurmWorld) -> None:
        job_id = await world.submit()
        await world.operator("scontrol", "release", str(job_id))
        job = await in_state(world, job_id, JobState.RUNNING)
        assert job.exclusive_gpus
        assert job.binding == frozenset()
        nodes = (await world.port.observe()).nodes
        assert [owner for node in nodes for owner in node.ordinary_gpus.values()] == [job_id]

    async def test_a_drained_node_takes_no_jobs(self, world: SlurmWorld) -> None:
        name = world.nodes[0]
        await world.operator("scontrol", "update", f"nodename={name}", "state=drain", "reason=two words")
        try:
            nodes = {node.name: node for node in (await world.port.observe()).nodes}
            assert not nodes[name].up
            assert nodes[name].reason.startswith("two words")
            assert "DRAIN" in nodes[name].state
            assert nodes[world.nodes[1]].up
        finally:
            await world.operator("scontrol", "update", f"nodename={name}", "state=resume")

    async def test_odd_names_do_no_harm(self, world: SlurmWorld) -> None:
        job_id = await world.submit("--job-name=a'b\"c\\d\te,{}[%\u00e9\u2603")
        assert (await seen(world, job_id)).state is JobState.PENDING

    async def test_a_cancelled_job(self, world: SlurmWorld) -> None:
        job_id = await running(world, gpus(world.nodes[0], 0))
        await world.begun(job_id)
        await world.user("scancel", str(job_id))
        job = await in_state(world, job_id, JobState.ENDED)
        assert job.state_name == "CANCELLED"
        assert job.exit_code == 128 + 15, "as a shell tells SIGTERM"

    async def test_a_job_cancelled_while_it_waits(self, world: SlurmWorld) -> None:
        job_id = await world.submit()
        await world.user("scancel", str(job_id))
        job = await in_state(world, job_id, JobState.ENDED)
        assert (job.start_time, job.nodes, job.binding) == (None, (), frozenset())

    async def test_a_suspend_that_is_undone_at_once(self, world: SlurmWorld) -> None:
        """slurmctld may pass a resume on to the node before the suspend that it follows."""
        job_id = await running(world, gpus(world.nodes[0], 0))
        await world.begun(job_id)
        await world.port.suspend(job_id)
        await until("frozen processes", lambda: world.frozen(job_id))
        for _ in range(3):
            await world.port.resume(job_id)
            await world.port.suspend(job_id)
        await world.port.resume(job_id)

        async def look() -> bool:
            return not await world.frozen(job_id)

        await until("processes that go on", look)

    async def test_many_calls_at_once(self, world: SlurmWorld) -> None:
        jobs = [await world.submit() for _ in range(8)]
        await asyncio.gather(
            *(running(world, gpus(world.nodes[i % 2], i % 4), job) for i, job in enumerate(jobs))
        )
        await asyncio.gather(*(world.port.suspend(job) for job in jobs), world.port.observe())
        assert {(await world.port.job(job)).state for job in jobs} == {JobState.SUSPENDED}
        await asyncio.gather(*(world.port.resume(job) for job in jobs))
        assert {(await world.port.job(job)).state for job in jobs} == {JobState.RUNNING}
