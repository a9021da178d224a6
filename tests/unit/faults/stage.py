# SPDX-License-Identifier: GPL-2.0-or-later
"""A simulated cluster on which things go wrong, and the truth about it."""

from __future__ import annotations

import asyncio
import copy
import math
from collections import deque
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

from controller.act.recorder import Step
from controller.cluster.port import JobState
from controller.cluster.simulated import SimulatedJob
from controller.journal import JobFilter, JournalReader
from controller.model import JobId
from controller.nodes.protocol import NodePhase
from controller.observe.requests import parse_request
from controller.policies.moves.pack import Pack
from controller.policies.presets import PRESETS
from controller.policies.protocol import Policy
from controller.policies.settings import QueueSettings, TrialSettings
from controller.settings.policies import PolicySettings
from tests.unit.faults.faulty import Faults, FaultyCluster, FaultyNodes
from tests.unit.loop.world import World, fifo, gandiva

RETRY_SECONDS = 20.0
START_SECONDS = 20.0
"""How long the controller waits for a start."""
MIN_JOB_AGE_SECONDS = 60.0
REQUEUE_DELAY_SECONDS = 3.0


def policies() -> dict[str, Callable[[], Policy]]:
    """Policies that switch often."""
    queues = QueueSettings(queue_limits=[10.0, 30.0], promote_knob_ratio=2.0)
    settings = PolicySettings(name="tiresias-las", tiresias=queues)
    return {"gandiva": gandiva, "tiresias-las": lambda: PRESETS["tiresias-las"](settings, ()), "fifo": fifo}


def packing_policies() -> dict[str, Callable[[], Policy]]:
    """The same, where jobs share GPUs."""
    queues = QueueSettings(queue_limits=[5.0, 10.0, 30.0], promote_knob_ratio=2.0)
    settings = PolicySettings(name="tiresias-las", tiresias=queues)
    return {
        "gandiva": lambda: gandiva(Pack(TrialSettings())),
        "tiresias-las": lambda: PRESETS["tiresias-las"](settings, (Pack(TrialSettings()),)),
    }


class Stage(World):
    """A world with ports that fail, users, an administrator, and a slurmctld that loses its memory."""

    def __init__(
        self, folder: Path, nodes: int = 2, gpus: int = 2, *, packs: bool = False, **options: Any
    ) -> None:
        """`packs`: two jobs may be on one GPU where the nodes were told so; each goes as fast as alone."""
        options.setdefault("step_deadline_seconds", 5.0)
        options.setdefault("retry_after_seconds", RETRY_SECONDS)
        options.setdefault("start_deadline_seconds", START_SECONDS)
        super().__init__(folder, nodes=nodes, gpus=gpus, **options)
        self.faults = Faults()
        self.port = FaultyCluster(self.cluster, self.faults)
        self.cluster_port = self.port
        self.node_port = FaultyNodes(self.nodes, self.faults)
        self.submitted: list[SimulatedJob] = []
        self.cancelled: set[int] = set()
        self.shared: list[str] = []
        """Instants at which a look at the nodes found two jobs' memory on one GPU. Must stay empty."""
        self.together = 0
        """Such instants at which they may."""
        self._packs = packs
        if packs:
            self.cluster.rate = lambda _job, _beside: 1.0
        self.down_seconds = 0.0
        self.kills = 0
        self.port_was_away = False
        self._saved: deque[tuple[float, int, dict[JobId, SimulatedJob]]] = deque(maxlen=30)
        self._watcher = asyncio.create_task(self._watch())

    def decide_by(self, name: str, makers: Mapping[str, Callable[[], Policy]]) -> None:
        """From the next start on."""
        self.policy_name, self.policy = name, makers[name]()

    # -- the workload -----------------------------------------------------------------------------------

    def submit(self, gpus: int = 1, work_seconds: float = 1e9, **options: object) -> JobId:
        job_id = super().submit(gpus, work_seconds, **options)
        self.submitted.append(self.cluster.jobs[job_id])
        return job_id

    def usual_jobs(self, **options: Any) -> list[JobId]:
        """One of each kind: every step of the executor is taken for some of them."""
        jobs = [self.submit(work_seconds=50, **options) for _ in range(3)]
        jobs.append(self.submit(2, work_seconds=30, **options))
        jobs.append(self.submit(4, nodes=2, work_seconds=20, **options))
        jobs.append(self.submit(work_seconds=40, suspend="requeue", **options))
        jobs.append(self.submit(work_seconds=40, suspend="transparent", **options))
        jobs.append(self.submit(work_seconds=40, **options))
        self.nodes.idle.add(jobs[-1])
        jobs.append(self.submit(work_seconds=40, **options))
        self.nodes.stubborn.add(jobs[-1])
        return jobs

    def before_step(self, act: Callable[[Step, JobId], None]) -> None:
        """Call this before each step that the present controller takes."""
        assert self.controller is not None
        recorder = self.controller.executor.context.recorder
        begins, step_taken = recorder.operation_begins, recorder.operation_step
        job_of: dict[int, JobId] = {}

        def operation_begins(action: Any, gpus: Any, now: float) -> int:
            number = begins(action, gpus, now)
            job_of[number] = action.job_id
            return number

        def operation_step(operation: int, step: Step, now: float) -> None:
            step_taken(operation, step, now)
            act(step, job_of[operation])

        recorder.operation_begins = operation_begins  # type: ignore[method-assign]
        recorder.operation_step = operation_step  # type: ignore[method-assign]

    async def kill_and_wait(self, seconds: float) -> None:
        """kill -9, and nobody there for a while."""
        await self.kill()
        self.kills += 1
        self.down_seconds += seconds
        await asyncio.sleep(seconds)

    # -- people -----------------------------------------------------------------------------------------

    def job_of(self, job_id: JobId) -> SimulatedJob | None:
        job = self.cluster.jobs.get(job_id)
        return None if job is None or job.state is JobState.ENDED else job

    def user_resumes(self, job_id: JobId) -> None:
        job = self.job_of(job_id)
        if job is not None and job.state is JobState.SUSPENDED:
            self.cluster._to(job, JobState.RUNNING)

    def operator_suspends(self, job_id: JobId) -> None:
        job = self.job_of(job_id)
        if job is not None and job.state is JobState.RUNNING:
            self.cluster._to(job, JobState.SUSPENDED)

    def user_cancels(self, job_id: JobId) -> None:
        if self.job_of(job_id) is not None:
            self.cancelled.add(int(job_id))
            self.cluster.cancel(job_id)

    def user_holds(self, job_id: JobId) -> None:
        """For 15 s. What runs already is not touched (job_modify refuses it)."""
        job = self.job_of(job_id)
        if job is not None and job.state is JobState.PENDING:
            job.held, job.eligible = True, False
            self.later(15.0, lambda: setattr(job, "eligible", True))

    def user_updates(self, job_id: JobId) -> None:
        job = self.job_of(job_id)
        if job is not None:
            job.name = "renamed\udcff"

    def user_requeues(self, job_id: JobId) -> None:
        """Not held, as Slurm does it: it starts by itself on its old GPUs when nobody withdraws it."""
        job = self.job_of(job_id)
        if job is not None and job.state in (JobState.RUNNING, JobState.SUSPENDED):
            self._requeue(job)

    def _requeue(self, job: SimulatedJob) -> None:
        job.held = False
        job.restart_count += 1
        job.submit_time = self.cluster.clock()
        self.cluster._to(job, JobState.COMPLETING)
        self.later(0.1, lambda: self.cluster._requeued(job))
        self.later(REQUEUE_DELAY_SECONDS, lambda: self.cluster._start(job))

    def administrator_drains(self, node: str, seconds: float) -> None:
        """Nothing starts there; what is there goes on. The node comes back after that time, or once it is
        empty: jobs that wait for their turn there must get it all the same."""
        self.cluster.set_node(node, up=False, state="DRAINED", reason="fan")
        begin = asyncio.get_running_loop().time()

        def look() -> None:
            allocated = any(node in j.nodes and j.state is not JobState.ENDED for j in self.submitted)
            if not allocated or asyncio.get_running_loop().time() - begin >= seconds:
                self.cluster.set_node(node, up=True, state="IDLE", reason="")
            else:
                self.later(1.0, look)

        self.later(1.0, look)

    # -- machines ---------------------------------------------------------------------------------------

    def agent_lost(self, node: str, seconds: float) -> None:
        self.nodes.unreachable.add(node)
        self.later(seconds, lambda: self.nodes.unreachable.discard(node))

    def node_reboots(self, node: str, seconds: float) -> None:
        """Power off and on again: jobs killed and requeued by Slurm, memory and control blocks gone."""
        self.nodes.unreachable.add(node)
        self.cluster.set_node(node, up=False, state="DOWN", reason="Not responding")
        for job in list(self.cluster.jobs.values()):
            if node in job.nodes and job.state in (JobState.RUNNING, JobState.SUSPENDED):
                for other in job.nodes:
                    self.nodes._blocks[other].pop(job.id, None)
                self._requeue(job)
        self.nodes._blocks[node].clear()

        def back() -> None:
            self.nodes.unreachable.discard(node)
            self.cluster.set_node(node, up=True, state="IDLE", reason="")
            for job in list(self.cluster.jobs.values()):
                if job.state is JobState.PENDING and not job.held:
                    self.cluster._start(job)

        self.later(seconds, back)

    def slurmctld_forgets(self, seconds: float) -> list[JobId]:
        """It comes back with the state it had saved so long ago. Returns the jobs nobody knows any more,
        whose numbers will be given out again."""
        now = asyncio.get_running_loop().time()
        _, next_id, before = next(s for s in reversed(self._saved) if s[0] <= now - seconds)
        lost = []
        for job_id, job in list(self.cluster.jobs.items()):
            old = before.get(job_id)
            if old is None:
                self._kill_processes(job)
                del self.cluster.jobs[job_id]
                self.submitted.remove(job)
                lost.append(job_id)
            elif job.state is not JobState.ENDED:
                started_since = old.state is JobState.PENDING and job.state is not JobState.PENDING
                if started_since:
                    self._kill_processes(job)  # slurmd ends what slurmctld does not know of
                job.held, job.wanted, job.eligible = old.held, old.wanted, old.eligible
                job.restart_count, job.submit_time = old.restart_count, old.submit_time
                job.binding, job.nodes = old.binding, old.nodes
                on_node = (JobState.RUNNING, JobState.SUSPENDED)
                if old.state in on_node and job.state in (JobState.PENDING, JobState.COMPLETING):
                    # It was requeued since: its node says that it is not there, and Slurm requeues it again.
                    self._requeue(job)
                elif job.state is not old.state:
                    self.cluster._to(job, old.state, old.state_name)
                if old.state is JobState.COMPLETING:
                    self.cluster._after(0.1, self.cluster._requeued, job)
        self.cluster._next_id = next_id
        return lost

    def _kill_processes(self, job: SimulatedJob) -> None:
        job.state = JobState.ENDED
        self.cluster.work_changed(job)
        for node in self.cluster.nodes:
            block = self.nodes._blocks[node].get(job.id)
            if block is not None:
                self.nodes._blocks[node].pop(job.id)  # the epilog

    def slurmctld_away(self, seconds: float) -> None:
        """It answers nothing; jobs go on."""
        self.port_was_away = True
        self.cluster.unavailable = True
        self.later(seconds, lambda: setattr(self.cluster, "unavailable", False))

    def old_views(self, age_seconds: float) -> None:
        """The next look shows what was so long ago."""
        self.faults.stale_view_seconds = self.faults.stale_sample_seconds = age_seconds

    def later(self, seconds: float, act: Callable[[], Any]) -> None:
        asyncio.get_running_loop().call_later(seconds, act)

    # -- the truth ----------------------------------------------------------------------------------------

    def _memory_on(self, node: str) -> dict[int, list[JobId]]:
        """Jobs with memory, by GPU."""
        found: dict[int, list[JobId]] = {}
        for job_id, block in self.nodes._blocks[node].items():
            if block.phase is not NodePhase.YIELDED and self.nodes._lives_on(node, job_id):
                for ordinal in block.gpus:
                    found.setdefault(ordinal, []).append(job_id)
        return found

    async def _watch(self) -> None:
        """Look behind everybody's back, ten times a second; save what slurmctld would save."""
        turn = 0
        while True:
            for node in self.cluster.nodes:
                for ordinal, jobs in self._memory_on(node).items():
                    if len(jobs) == 2 and self._packs:
                        self.together += 1  # whether these two may, the nodes check: `violations`
                    elif len(jobs) > 1:
                        now = asyncio.get_running_loop().time()
                        self.shared.append(f"t={now:g}: jobs {jobs} on {node}:{ordinal}")
            if turn % 10 == 0:
                now = asyncio.get_running_loop().time()
                self._purge(now)
                del self.cycles[:-10]
                copies = {job_id: _copy(job) for job_id, job in self.cluster.jobs.items()}
                self._saved.append((now, self.cluster._next_id, copies))
            turn += 1
            await asyncio.sleep(0.1)

    def _purge(self, now: float) -> None:
        """slurmctld forgets jobs some time after their end (MinJobAge)."""
        for job in list(self.cluster.jobs.values()):
            if job.state is JobState.ENDED and (job.end_time or 0.0) < now - MIN_JOB_AGE_SECONDS:
                del self.cluster.jobs[job.id]

    async def all_end(self, limit_seconds: float) -> float:
        """Until all jobs have ended; how long it took."""
        begin = asyncio.get_running_loop().time()
        while unfinished := [j for j in self.submitted if j.state is not JobState.ENDED]:
            now = asyncio.get_running_loop().time()
            if now > begin + limit_seconds:
                states = {int(j.id): (j.state.value, round(j.done_seconds, 1), j.held) for j in unfinished}
                raise AssertionError(f"not ended after {limit_seconds:g} s: {states}")
            await asyncio.sleep(0.5)
        return asyncio.get_running_loop().time() - begin

    async def finish(self) -> None:
        """An orderly end, once everything is settled."""
        await asyncio.sleep(8.0)
        self._watcher.cancel()
        await self.stop()

    def check_all(self, slack_seconds: float = 0.0, exact: Container[JobId] = ()) -> None:
        """Everything that must hold when it is over. `slack_seconds`: time on GPUs per job that nobody can
        know of, since the controller was dead, or told an old story, when it passed (not so for those in
        `exact`)."""
        self.check()
        assert self.shared == [], self.shared[:3]
        rows = {row.record.id: row for row in JournalReader(self.journal_path).jobs(JobFilter())}
        for job in self.submitted:
            row = rows[job.id]
            assert job.state_name == ("CANCELLED" if int(job.id) in self.cancelled else "COMPLETED"), job
            assert (row.record.user, row.record.gpus) == (job.user, _gpus(job)), (
                f"job {job.id}: another job's"
            )
            assert row.record.state == job.state_name, f"job {job.id}: the journal says {row.record.state}"
            assert row.record.end_time is not None and not row.on_gpus, f"job {job.id}: still open"
            # A slice begins when a node has answered and ends when it has: a switch is in it.
            allowed = 0.35 * (row.slices + 1)
            if job.id not in exact:
                allowed += slack_seconds + self.faults.silence_seconds.get(job.id, 0.0)
            if job.id in exact and not job.restart_count:
                assert row.record.submit_time == job.submit_time, f"job {job.id}: submitted at another time"
                assert (row.record.start_time or math.inf) >= job.submit_time, (
                    f"job {job.id}: another's start"
                )
            assert abs(row.run_seconds - job.done_seconds) <= allowed, (
                f"job {job.id}: {row.run_seconds:.2f} s in the journal, {job.done_seconds:.2f} s in truth, "
                f"{row.slices} slices"
            )
        assert not {node: blocks for node, blocks in self.nodes._blocks.items() if blocks}, "blocks left"
        assert self.controller is not None
        assert self.controller.executor._operations == {}
        assert not list(self.controller.executor.context.ledger._held)


def _gpus(job: SimulatedJob) -> int:
    return parse_request(job.request).size.wanted


def _copy(job: SimulatedJob) -> SimulatedJob:
    timer, job.end_timer = job.end_timer, None
    try:
        return copy.copy(job)
    finally:
        job.end_timer = timer
