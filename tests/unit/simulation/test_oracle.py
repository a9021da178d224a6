# SPDX-License-Identifier: GPL-2.0-or-later
"""One history, gone through in different ways, is the same history: with complete views and with differences,
with plans made from nothing and with incremental ones, with the journal in a file and in memory, with resyncs
and without.

Much goes wrong in it: nodes are drained, agents and slurmctld do not answer, answers get lost, jobs are
cancelled, held and resumed by their users, and the controller is killed.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from controller.act.recorder import Recorder
from controller.cluster.port import JobState
from controller.cluster.simulated import SlurmCosts, make_nodes, request_text
from controller.journal import Journal
from controller.journal.memory import MemoryJournal
from controller.loop.loop import Controller
from controller.loop.pacing import PaceSettings
from controller.model import JobId, Memory
from controller.nodes.simulated import NodeCosts
from controller.policies.allocations.worker import answers
from controller.policies.assemble import make_policy
from controller.policies.protocol import Policy
from controller.settings.loading import parse_settings
from controller.simulation.virtual_time import VirtualClock, run_virtual
from controller.solver import ImmediateSolver
from tests.contract.troubled import TroubledCluster, TroubledNodes
from tests.unit.draws import NIGHTLY, some
from tests.unit.simulation.afresh import Afresh

POLICIES = (
    '[policy]\nname = "gandiva"\n[policy.gandiva]\nslice_seconds = 20.0\n',
    '[policy]\nname = "gandiva"\nmoves = ["pack"]\n[policy.gandiva]\nslice_seconds = 20.0\n',
    '[policy]\nname = "tiresias-las"\n[policy.tiresias]\nqueue_limits = [60.0, 200.0]\n',
    '[policy]\nname = "tiresias-las"\nmoves = ["pack"]\n[policy.tiresias]\nqueue_limits = [20.0, 60.0]\n',
    '[policy]\nname = "tiresias-gittins"\n[policy.tiresias-gittins]\nsamples_needed = 2\n'
    "quantum_gpu_seconds = 50.0\n[policy.tiresias]\ninterval_seconds = 10.0\n",
    '[policy]\nname = "srtf"\nmoves = ["pack"]\n[requests]\nsuspend = "requeue"\n',
    '[policy]\nname = "fifo"\n',
    '[policy]\nname = "gavel-las"\n[policy.rounds]\nround_seconds = 20.0\nreset_seconds = 60.0\n',
    '[policy]\nname = "gavel-las"\nmoves = ["pack"]\n[requests]\nsuspend = "requeue"\n'
    "[policy.rounds]\nround_seconds = 20.0\nchange_types = true\n",
)
BY_SEED = POLICIES * 3
"""Each seed is a history of its own."""
SUSPEND = """[suspend]
step_deadline_seconds = 5.0
retry_after_seconds = 20.0
start_deadline_seconds = 10.0
preempt_exempt_ratio = 2.0
"""
NODES, GPUS, JOBS, SECONDS = 2, 4, 20, 900.0


@dataclass(frozen=True)
class Way:
    """How the history is gone through."""

    deltas: bool = False
    """The adapters answer with differences."""
    afresh: bool = False
    """Every plan is made from nothing but the snapshot and the journal."""
    file: bool = False
    """The journal is a file."""
    resync_seconds: float = math.inf


PLAIN = Way()
ALL_AT_ONCE = Way(deltas=True, afresh=True, file=True)
"""Without resyncs, which mend what differences leave out."""
OTHERS = (Way(deltas=True), Way(afresh=True), Way(file=True), Way(True, True, True, resync_seconds=7.0))
"""They say which it is."""


class Told:
    """A recorder that also notes down what it is told."""

    def __init__(self, recorder: Recorder, events: list[tuple[Any, ...]]) -> None:
        self._recorder, self._events = recorder, events

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._recorder, name)

        def tell(*arguments: Any) -> Any:
            self._events.append((asyncio.get_running_loop().time(), name, *arguments))
            return call(*arguments)

        return tell


class History:
    """One of them: what people and machines do at which time follows from the seed alone."""

    def __init__(self, seed: int, way: Way, folder: Path) -> None:
        self._rng = random.Random(seed)
        self._way, self._folder = way, folder
        self._settings = parse_settings(BY_SEED[seed] + SUSPEND)
        nodes = {node.name: node for node in make_nodes([f"n{i}" for i in range(NODES)], GPUS)}
        self.cluster = TroubledCluster(
            nodes,
            SlurmCosts(0.005, 0.3, 0.2),
            keep_ended=seed % 2 == 0,
            deltas=way.deltas,
            tells_durations=True,
        )
        self.nodes = TroubledNodes(self.cluster, NodeCosts(0.2, 0.1, 0.1), deltas=way.deltas)
        self.events: list[tuple[Any, ...]] = []
        self._memory = MemoryJournal()
        self._running: asyncio.Task[None] | None = None
        self._controller: Controller | None = None
        self._journal: Journal | None = None

    async def run(self) -> list[tuple[Any, ...]]:
        """All that happened."""
        self.cluster.on_end = lambda job: self._note("ends", job.id, job.state_name, job.done_seconds)
        loop = asyncio.get_running_loop()
        for number in range(1, JOBS + 1):
            loop.call_at(self._rng.uniform(0, SECONDS / 6), self._submit, self._job(number))
        for _ in range(12):
            loop.call_at(self._rng.uniform(0, SECONDS / 2), *self._accident())
        kills = sorted(self._rng.uniform(20, SECONDS / 2) for _ in range(self._rng.randint(0, 2)))
        for until in (*kills, SECONDS):
            self._start()
            await asyncio.sleep(until - loop.time())
            await self._kill()
            await asyncio.sleep(3.0 if until < SECONDS else 0.0)
        return self.events

    # -- the controller ---------------------------------------------------------------------------------

    def _start(self) -> None:
        self.cluster.reconnect()
        self.nodes.reconnect()
        self._journal = Journal(self._folder / "journal.sqlite") if self._way.file else self._memory
        policy: Policy = make_policy(self._settings.policy)
        if self._way.afresh:
            policy = Afresh(lambda: make_policy(self._settings.policy), self._remembered)
        self._controller = Controller(
            self._settings,
            self.cluster,
            self.nodes,
            self._journal,
            VirtualClock(),
            solver=ImmediateSolver(answers),
            policy=policy,
            pace=PaceSettings(interval_seconds=1.0, resync_seconds=self._way.resync_seconds),
            recorder=cast(Any, Told(Recorder(self._journal), self.events)),
        )
        self._running = asyncio.create_task(self._controller.run(asyncio.Event()))

    def _remembered(self) -> Memory:
        assert self._journal is not None
        name = self._settings.policy.name
        return Memory(self._journal.load_state(f"policy:{name}") or {}, self._journal.notes(name))

    async def _kill(self) -> None:
        """Between two turns: what is recorded is committed then, whatever the journal is."""
        assert self._controller is not None and self._running is not None and self._journal is not None
        self._running.cancel()
        self._controller.executor.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await asyncio.sleep(0)
        self._journal.commit()
        if self._way.file:
            self._journal.close()
        self._note("killed")

    def _note(self, *what: Any) -> None:
        self.events.append((asyncio.get_running_loop().time(), *what))

    # -- people and machines ----------------------------------------------------------------------------

    def _job(self, number: int) -> dict[str, Any]:
        rng = self._rng
        nodes = rng.choice((1, 1, 1, 1, 2))
        gpus = nodes * rng.choice((1, 1, 1, 2, 4))
        method = rng.choice((None, None, "requeue", "transparent"))
        text = request_text(
            gpus, nodes=nodes, weight=rng.choice((1.0, 2.0)), suspend=method, pack=rng.random() < 0.7
        )
        changes = {
            "state_bytes": rng.choice((2**30, 2**32)),
            "requeue": rng.random() < 0.9,
            "exit_code": rng.choice((0, 0, 1)),
            "restart_seconds": 2.0,
        }
        if rng.random() < 0.1:
            self.nodes.stubborn.add(JobId(number))
        if rng.random() < 0.1:
            self.nodes.idle.add(JobId(number))
        return {"request": text, "work_seconds": rng.uniform(5, 200), **changes}

    def _submit(self, job: dict[str, Any]) -> None:
        self._note("submitted", self.cluster.submit(**job))

    def _accident(self) -> tuple[Any, ...]:
        rng, node = self._rng, f"n{self._rng.randrange(NODES)}"
        seconds, job_id = rng.uniform(2, 60), JobId(rng.randint(1, JOBS))
        return rng.choice(
            (
                (self._drain, node, seconds),
                (self._silence, node, seconds),
                (self._down, seconds / 3),
                (self._lose, rng.randint(1, 3), rng.randint(1, 3)),
                (self._cancel, job_id),
                (self._to, job_id, JobState.SUSPENDED, JobState.RUNNING),
                (self._to, job_id, JobState.RUNNING, JobState.SUSPENDED),
                (self._hold, job_id, seconds),
            )
        )

    def _drain(self, node: str, seconds: float) -> None:
        self.cluster.set_node(node, up=False, state="DRAINED", reason="fan")
        back = {"up": True, "state": "IDLE", "reason": ""}
        asyncio.get_running_loop().call_later(seconds, lambda: self.cluster.set_node(node, **back))

    def _silence(self, node: str, seconds: float) -> None:
        self.nodes.unreachable.add(node)
        asyncio.get_running_loop().call_later(seconds, self.nodes.unreachable.discard, node)

    def _down(self, seconds: float) -> None:
        self.cluster.unavailable = True
        asyncio.get_running_loop().call_later(seconds, setattr, self.cluster, "unavailable", False)

    def _lose(self, of_slurm: int, of_nodes: int) -> None:
        self.cluster.lose_answers += of_slurm
        self.nodes.lose_answers += of_nodes

    def _cancel(self, job_id: JobId) -> None:
        job = self.cluster.jobs.get(job_id)
        if job is not None and job.state is not JobState.ENDED:
            self.cluster.cancel(job_id)

    def _to(self, job_id: JobId, before: JobState, after: JobState) -> None:
        """Its user does it, or an operator."""
        job = self.cluster.jobs.get(job_id)
        if job is not None and job.state is before:
            self.cluster._to(job, after)

    def _hold(self, job_id: JobId, seconds: float) -> None:
        job = self.cluster.jobs.get(job_id)
        if job is not None and job.state is JobState.PENDING:
            self._eligible(job_id, False)
            asyncio.get_running_loop().call_later(seconds, self._eligible, job_id, True)

    def _eligible(self, job_id: JobId, eligible: bool) -> None:
        if (job := self.cluster.jobs.get(job_id)) is not None:
            job.eligible = eligible
            self.cluster.touch(job_id)


def gone_through(seed: int, way: Way, folder: Path) -> list[tuple[Any, ...]]:
    """The events of one history."""

    async def main() -> list[tuple[Any, ...]]:
        return await History(seed, way, folder).run()

    return run_virtual(main())


def one_of_each(seed: int) -> bool:
    return seed < len(POLICIES)


@pytest.mark.parametrize("seed", some(range(len(BY_SEED)), one_of_each))
def test_a_history_is_the_same_in_whatever_way_it_is_gone_through(seed: int, tmp_path: Path) -> None:
    plain = gone_through(seed, PLAIN, tmp_path)
    assert sum(event[1] == "operation_begins" for event in plain) >= JOBS, "hardly anything happened"
    for number, way in enumerate((ALL_AT_ONCE, *OTHERS) if NIGHTLY else (ALL_AT_ONCE,)):
        folder = tmp_path / str(number)
        folder.mkdir()
        other = gone_through(seed, way, folder)
        for one, another in zip(plain, other, strict=False):
            assert another == one, way
        assert len(other) == len(plain), way
