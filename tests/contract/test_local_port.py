# SPDX-License-Identifier: GPL-2.0-or-later
"""The contract of the cluster port for trials as child processes, and as steps of an allocation whose srun is
a fake one. All nodes are this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from controller.cluster import allocation, family, local
from controller.cluster.children import Children
from controller.cluster.local import GRACE_SECONDS, LocalCluster
from controller.cluster.port import ClusterNode, ClusterPort, JobState
from controller.cluster.simulated import idle_node, make_nodes, request_text
from controller.cluster.steps import Steps
from controller.cluster.trial import Trial, TrialSpec, write_trial
from controller.errors import ClusterRefused, GandivaError
from controller.model import GpuId, GpuSet, JobId
from tests.contract import fake_srun
from tests.contract.adding_up import AddedUp
from tests.contract.cluster_port_contract import ClusterPortContract, gpus, in_state, running, seen, until

ENDLESS = ("sleep", "600")


class LocalWorld:
    """A study in a folder."""

    launcher: type[Children] = Children

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = dict(os.environ)
        self.cluster_nodes: Sequence[ClusterNode] = (
            *make_nodes(("n1", "n2"), 4),
            idle_node("n3", "v100", 4),
        )
        self.nodes: Sequence[str] = ("n1", "n2")
        self.other_model = "n3"
        self.begin()

    def begin(self) -> None:
        """A supervisor starts."""
        names = {f"{node.name}-{gpu.index}": node for node in self.cluster_nodes for gpu in node.gpus}
        self.uuids = {GpuId(node.name, int(name.rpartition("-")[2])): name for name, node in names.items()}
        trials = self.folder / "trials"
        self.children = self.launcher(trials, self.folder / "run", self.uuids, self.environ)
        self.cluster = LocalCluster(trials, self.cluster_nodes, self.children)
        self.port: ClusterPort = AddedUp(self.cluster)

    async def submit(self, *options: str, gpus_per_node: int = 1, nodes: int = 1) -> JobId:
        assert not options, "sbatch's options are for real Slurm"
        return self.run(*ENDLESS, request=request_text(gpus_per_node * nodes, nodes=nodes))

    async def submit_short(self, exit_code: int) -> JobId:
        return self.run("sh", "-c", f"exit {exit_code}")

    def run(self, *command: str, request: str = "") -> JobId:
        request = request or request_text()
        return self.cluster.submit(TrialSpec(name="t", command=command, directory="/", request=request))

    async def allocated(self, job_id: JobId) -> GpuSet:
        process = self.cluster.trials[job_id].process
        assert process is not None and process.lives()

        async def look() -> set[str]:
            found: list[str] = []
            for pid in [process.pid, *family.below(process.pid)]:
                if command_line(pid)[:2] == [*ENDLESS]:  # the trial's own
                    found += visible(pid)
            return set(found) if len(found) == len(self.cluster.trials[job_id].binding) else set()

        names = await until("the trial's own process", look)
        return frozenset(gpu for gpu, name in self.uuids.items() if name in names)

    async def end(self) -> None:
        for job_id in list(self.cluster.trials):
            await self.cluster.end(job_id, "the test is over")
        if endings := self.cluster._endings.values():
            await asyncio.wait(endings)


def visible(pid: int) -> list[str]:
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return [name for v in variables if v.startswith("CUDA_VISIBLE_DEVICES=") for name in v[21:].split(",")]


class StepsWorld(LocalWorld):
    """The same in an allocation."""

    launcher = Steps

    def __init__(self, folder: Path) -> None:
        (folder / "steps").mkdir()
        (folder / "bin").mkdir()
        for name in ("srun", "scancel", "scontrol"):
            program = folder / "bin" / name
            script = Path(fake_srun.__file__)
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {script} {folder}/steps {name} "$@"\n')
            program.chmod(0o755)
        self._path = pytest.MonkeyPatch()
        self._path.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        self._path.setenv("SLURM_JOB_ID", fake_srun.JOB)
        super().__init__(folder)

    async def end(self) -> None:
        await super().end()
        self._path.undo()


@pytest.fixture(params=[LocalWorld, StepsWorld], ids=["children", "steps"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocalWorld]:
    world: LocalWorld = request.param(tmp_path)
    yield world
    await world.end()


class TestLocalPort(ClusterPortContract):
    """The adapters of gandiva run keep the contract."""


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


async def test_what_a_trial_leaves_behind_ends_with_it(world: LocalWorld) -> None:
    """Whatever it does to get away: a session of its own, another parent, an empty environment."""
    job_id = world.run("sh", "-c", "(env -i setsid sleep 601 &) ; setsid sleep 602 & exit 5")
    await running(world, gpus("n1", 0), job_id)
    assert (await in_state(world, job_id, JobState.ENDED)).exit_code == 5
    for duration in ("601", "602"):
        assert not [pid for pid in family._pids() if duration in command_line(pid)]


async def test_a_supervisor_goes_on_with_trials_that_run(world: LocalWorld) -> None:
    short, long = world.run("sh", "-c", "sleep 0.2; exit 4"), await world.submit()
    await running(world, gpus("n1", 0), short)
    await running(world, gpus("n1", 1), long)
    world.begin()
    assert (await in_state(world, short, JobState.ENDED)).exit_code == 4
    assert (await world.port.job(long)).state is JobState.RUNNING
    assert await world.allocated(long) == gpus("n1", 1)


async def test_a_trial_that_was_being_started_runs_once(world: LocalWorld) -> None:
    """The supervisor was killed after the start, and before it could note it, or before the start."""
    started, waits, ended = await world.submit(), await world.submit(), await world.submit_short(6)
    for ordinal, job_id in enumerate((started, waits, ended)):
        await world.port.bind(job_id, gpus("n1", ordinal))
        place = world.children.place
        trial = world.cluster._to(world.cluster.trials[job_id], JobState.CONFIGURING, held=False, place=place)
        world.children.clear(trial)
        if job_id != waits:
            process = world.children.start(trial)
            await until("it", partial(_ended, process) if job_id == ended else partial(_found, world, trial))
    world.begin()
    assert (await world.port.job(started)).state is JobState.RUNNING
    assert await world.allocated(started) == gpus("n1", 0)
    job = await world.port.job(waits)
    assert job.state is JobState.PENDING and job.held
    job = await in_state(world, ended, JobState.ENDED)
    assert (job.state_name, job.exit_code) == ("FAILED", 6)


async def _ended(process: family.Process) -> bool:
    return not process.lives()


async def _found(world: LocalWorld, trial: Trial) -> bool:
    return world.children.find(trial) is not None


async def test_a_supervisor_ends_what_was_being_ended(world: LocalWorld) -> None:
    again, cancelled = await world.submit(), await world.submit()
    await running(world, gpus("n1", 0), again)
    await running(world, gpus("n1", 1), cancelled)
    await world.port.requeue(again)
    await world.port.end(cancelled, "enough")
    await world.cluster.close()
    world.begin()
    assert (await in_state(world, again, JobState.PENDING)).restart_count == 1
    job = await in_state(world, cancelled, JobState.ENDED)
    assert (job.state_name, job.reason) == ("CANCELLED", "enough")


async def test_a_trial_whose_first_process_is_killed_has_failed(world: LocalWorld) -> None:
    """What it leaves is not forgotten: it runs until that has ended."""
    job_id = world.run("sh", "-c", "trap '' TERM; sleep 603 & wait")
    await running(world, gpus("n1", 0), job_id)
    first = world.cluster.trials[job_id].process
    assert first is not None
    await until("its own processes", partial(_runs, first.pid, "603"))
    rest = family.below(first.pid)
    os.kill(first.pid, signal.SIGKILL)
    await until("its death", lambda: _ended(first))
    assert (await world.port.job(job_id)).state is JobState.RUNNING
    for pid in rest:
        os.kill(pid, signal.SIGKILL)
    job = await in_state(world, job_id, JobState.ENDED)
    assert (job.state_name, job.exit_code) == ("FAILED", 137)
    assert "first process was killed" in job.reason


async def _runs(pid: int, word: str) -> bool:
    return any(command_line(each)[:2] == ["sleep", word] for each in family.below(pid))


async def test_a_trial_has_time_to_end_in_order(world: LocalWorld) -> None:
    job_id = world.run("sh", "-c", "trap 'exit 7' TERM; sleep 604 & wait")
    await running(world, gpus("n1", 0), job_id)
    first = world.cluster.trials[job_id].process
    assert first is not None
    await until("its own processes", partial(_runs, first.pid, "604"))
    await world.port.suspend(job_id)
    await world.port.end(job_id, "enough")
    assert (await in_state(world, job_id, JobState.ENDED)).exit_code == 7


async def test_a_command_that_is_not_there(world: LocalWorld) -> None:
    job_id = world.run("/no/such/program")
    await world.port.bind(job_id, gpus("n1", 0))
    await world.port.release(job_id)
    assert (await in_state(world, job_id, JobState.ENDED)).exit_code == 127
    assert "No such file" in (world.folder / "trials" / f"{job_id}.out").read_text()


@pytest.mark.parametrize("world", [StepsWorld], ids=["steps"], indirect=True)
async def test_a_trial_that_slurm_has_ended_waits_for_another_start(world: LocalWorld) -> None:
    """With its job, whose time limit has passed; whatever status it had time for. One that ends while the job
    goes on has ended by itself."""
    killed, itself = world.run("sh", "-c", "trap 'exit 0' TERM; sleep 605 & wait"), await world.submit()
    await running(world, gpus("n1", 0), killed)
    await running(world, gpus("n1", 1), itself)
    for job_id, state in ((itself, "RUNNING"), (killed, "TIMEOUT")):
        (world.folder / "job").write_text(f"JobState={state} EndTime=Unknown")
        first = world.cluster.trials[job_id].process
        assert first is not None
        await until("its own process", partial(_sleeps, first.pid))
        for pid in family.below(first.pid):
            if command_line(pid)[0] != sys.executable:
                family.send([pid], signal.SIGTERM)
        job = await in_state(world, job_id, JobState.PENDING, JobState.ENDED)
        assert (job.state, job.restart_count) == (
            (JobState.ENDED, 0) if state == "RUNNING" else (JobState.PENDING, 1)
        )


async def _sleeps(pid: int) -> bool:
    return any(command_line(each)[0] == "sleep" for each in family.below(pid))


@pytest.mark.parametrize("world", [StepsWorld], ids=["steps"], indirect=True)
async def test_trials_of_an_allocation_that_is_over_go_on_in_the_next(world: LocalWorld) -> None:
    """Not while the job before lives: its trials may."""
    job_id = await world.submit()
    await running(world, gpus("n1", 0), job_id)
    trial = world.cluster.trials[job_id]
    assert trial.process is not None
    world.environ["SLURM_JOB_ID"] = "78"
    with pytest.raises(GandivaError, match="job 77: go on with the study there, or when it is over"):
        world.begin()
    (world.folder / "job").write_text("JobState=COMPLETED EndTime=Unknown")
    family.send([*family.below(trial.process.pid), trial.process.pid], signal.SIGKILL)
    world.begin()
    job = await world.port.job(job_id)
    assert (job.state, job.restart_count, job.held) == (JobState.PENDING, 1, True)


@pytest.mark.parametrize("world", [StepsWorld], ids=["steps"], indirect=True)
async def test_a_trial_that_has_ended_is_not_run_again_while_slurm_is_asked(world: LocalWorld) -> None:
    job_id = world.run("sh", "-c", "exit 8")
    (world.folder / "scontrol-waits").touch()
    await running(world, gpus("n1", 0), job_id)
    process = world.cluster.trials[job_id].process
    assert process is not None
    await until("its end", lambda: _ended(process))
    assert (await seen(world, job_id)).state is JobState.RUNNING
    requeue = asyncio.create_task(world.port.requeue(job_id))
    await asyncio.sleep(0)
    (world.folder / "scontrol-waits").unlink()
    with pytest.raises(ClusterRefused):
        await requeue
    assert (await world.port.job(job_id)).exit_code == 8


async def test_a_study_that_was_copied_leaves_the_trials_of_the_other_alone(world: LocalWorld) -> None:
    """And begins them anew where they live no more."""
    job_id = await world.submit()
    await running(world, gpus("n1", 0), job_id)
    process = world.cluster.trials[job_id].process
    assert process is not None
    trials = world.folder / "trials"
    other = world.launcher(trials, world.folder / "elsewhere", world.uuids, world.environ)
    with pytest.raises(GandivaError, match=r"trial 1 still runs, begun before .* moved or copied"):
        LocalCluster(trials, world.cluster_nodes, other)
    family.send([*family.below(process.pid), process.pid], signal.SIGKILL)
    await until("its death", lambda: _ended(process))
    job = await LocalCluster(trials, world.cluster_nodes, other).job(job_id)
    assert (job.state, job.restart_count, job.held) == (JobState.PENDING, 1, True)


@pytest.mark.parametrize("world", [StepsWorld], ids=["steps"], indirect=True)
async def test_nothing_waits_for_slurm_to_answer(world: LocalWorld) -> None:
    """How a trial has ended, and a signal to one, can take long. Others go on meanwhile."""
    short, long = world.run("sh", "-c", "exit 8"), await world.submit()
    for name in ("scontrol", "scancel"):
        (world.folder / f"{name}-waits").touch()
    await running(world, gpus("n1", 1), long)
    assert await world.allocated(long)
    await world.port.end(long, "enough")
    await world.port.bind(short, gpus("n1", 0))
    await world.port.release(short)
    process = world.cluster.trials[short].process
    assert process is not None
    await until("its end", lambda: _ended(process))
    began = time.monotonic()
    assert (await seen(world, short)).state is JobState.RUNNING
    assert (await seen(world, long)).state is JobState.COMPLETING
    assert time.monotonic() - began < allocation.SECONDS / 2
    for name in ("scontrol", "scancel"):
        (world.folder / f"{name}-waits").unlink()
    assert (await in_state(world, short, JobState.ENDED)).exit_code == 8
    assert (await in_state(world, long, JobState.ENDED)).state_name == "CANCELLED"


@pytest.mark.parametrize("world", [StepsWorld], ids=["steps"], indirect=True)
async def test_a_step_that_slurm_has_not_begun_can_be_ended(world: LocalWorld) -> None:
    """Nor does a line that the step has not written to its end name anything that scancel gets."""
    (world.folder / "srun-waits").touch()
    (world.folder / "bin" / "scancel").write_text(f"#!/bin/sh\ntouch {world.folder}/cancelled\n")
    job_id = await world.submit()
    await running(world, gpus("n1", 0), job_id)
    (world.folder / "trials" / f"{job_id}.step").write_text("77.")
    began = time.monotonic()
    await world.port.end(job_id, "enough")
    await in_state(world, job_id, JobState.ENDED)
    assert time.monotonic() - began < GRACE_SECONDS, "it had to be killed"
    assert not (world.folder / "cancelled").exists()


async def test_a_disk_that_was_full_for_a_moment_costs_no_trial(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one that has started, and cannot be found in /proc yet, nor one that was ended meanwhile."""
    full: list[str] = []
    write = write_trial

    def refused(path: Path, trial: Trial) -> None:
        if trial.state.value in full:
            full.remove(trial.state.value)
            raise OSError(28, "No space left on device")
        write(path, trial)

    monkeypatch.setattr(local, "write_trial", refused)
    job_id = await world.submit()
    await world.port.bind(job_id, gpus("n1", 0))
    full.append("RUNNING")
    monkeypatch.setattr(world.children, "find", lambda _trial: None)
    with pytest.raises(OSError):
        await world.port.release(job_id)
    await in_state(world, job_id, JobState.RUNNING)
    full.append("PENDING")
    await world.port.requeue(job_id)
    assert (await in_state(world, job_id, JobState.PENDING)).restart_count == 1
    assert full == []
