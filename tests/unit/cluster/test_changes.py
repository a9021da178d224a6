# SPDX-License-Identifier: GPL-2.0-or-later
"""What the pyslurm worker says of jobs that it has told before, and jobs that did not change."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from controller.cluster import pyslurm_worker
from controller.cluster.adapter import SlurmCluster
from controller.cluster.command import CommandTransport, Load
from controller.cluster.partitions import Partition
from controller.cluster.port import ClusterView
from controller.cluster.pyslurm import READ_ALL_SECONDS, PyslurmTransport
from controller.cluster.raw import JobRecord
from controller.cluster.records import slurm_job
from controller.journal.memory import MemoryJournal
from controller.model import JobId
from controller.observe.identities import Identities
from controller.observe.slurm_cache import SlurmCache
from tests.unit.cluster.factories import PARTITIONS, job_record, node_record


class Slurm:
    """Stands in for slurmctld behind a worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: dict[int, JobRecord] = {}
        self.reads = 0
        """How often all jobs were read."""
        self.changed = False
        monkeypatch.setattr(pyslurm_worker, "_all_jobs", self._all_jobs)
        monkeypatch.setattr(pyslurm_worker, "_Asked", lambda _: self)
        monkeypatch.setattr(pyslurm_worker, "_jobs", pyslurm_worker._Jobs())

    def _all_jobs(self, _: object) -> Any:
        self.reads += 1
        return dict(self.records), []

    def put(self, *records: JobRecord) -> None:
        self.changed = True
        self.records.update({record.id: record for record in records})

    def unchanged(self) -> bool:
        changed, self.changed = self.changed, False
        return not changed


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(monkeypatch)


class Transport(PyslurmTransport):
    """Its worker is here."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[list[int]] = []
        """Ids of the jobs in each answer."""

    async def _call(self, verb: str, *arguments: Any, what: str, job_id: JobId | None = None) -> Any:
        nodes = SimpleNamespace(load=lambda: SimpleNamespace(data={}))
        answer = pyslurm_worker._load(SimpleNamespace(Nodes=nodes), *arguments)
        self.sent.append([job[0] for job in answer[2]])
        await asyncio.sleep(0.02 / len(self.sent))  # the last one arrives first
        return answer


async def test_only_what_changed_is_sent_and_quiet_jobs_are_not_read(slurm: Slurm) -> None:
    transport = Transport()
    slurm.put(*(job_record(id=i) for i in (1, 2, 3)))
    for _ in range(5):
        assert [job.id for job in (await transport.load()).jobs] == [1, 2, 3]
    assert transport.sent == [[1, 2, 3], [], [], [], []]
    reads = slurm.reads
    assert (await transport.load()).jobs is (await transport.load()).jobs
    assert slurm.reads == reads, "slurmctld said that nothing changed"
    slurm.put(job_record(id=2, priority=9), job_record(id=4))
    del slurm.records[3]
    load = await transport.load()
    assert [(job.id, job.priority) for job in load.jobs] == [(1, 0), (2, 9), (4, 0)]
    assert transport.sent[-1] == [2, 4]


async def test_another_worker_and_a_resync_send_everything(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = Transport()
    slurm.put(job_record(id=1))
    await transport.load()
    monkeypatch.setattr(pyslurm_worker, "_jobs", pyslurm_worker._Jobs())
    await transport.load()
    assert transport.sent == [[1], [1]]
    for _ in range(3):
        await transport.load()
    reads = slurm.reads
    transport._read_all_at -= READ_ALL_SECONDS
    await transport.load()
    assert (transport.sent[-1], slurm.reads) == ([1], reads + 1)


async def test_looks_at_the_same_time_build_on_each_other(slurm: Slurm) -> None:
    transport = Transport()
    slurm.put(job_record(id=1), job_record(id=2))
    await transport.load()
    del slurm.records[1]
    loads = await asyncio.gather(*(transport.load() for _ in range(3)))
    assert [[job.id for job in load.jobs] for load in loads] == [[2], [2], [2]]


async def test_jobs_as_before_are_not_made_again_until_a_begin_time_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Quiet(CommandTransport):
        records = (job_record(id=1, begin_time=2000), job_record(id=2))

        async def load(self) -> Load:
            return Load(self.records, (node_record("n1"),), {})

        async def partitions(self) -> tuple[Partition, ...]:
            return PARTITIONS

    cluster = SlurmCluster(Quiet(), deadline_seconds=5)
    views = []
    for now in (1000.0, 1500.0, 2000.0, 2001.0):
        monkeypatch.setattr("time.time", lambda now=now: now)
        views.append(await cluster.observe())
    assert [view.jobs[0].eligible for view in views] == [False, False, True, True]
    assert views[0].jobs is views[1].jobs and views[2].jobs is views[3].jobs
    assert [view.time for view in views] == [1000.0, 1500.0, 2000.0, 2001.0]


def test_the_same_jobs_again_are_no_change_but_for_one_that_was_withheld() -> None:
    cache = SlurmCache(Identities(MemoryJournal(), lambda *_: None))
    first = slurm_job(job_record(id=1, submit_time=1000), now=5000.0)
    other = replace(first, user="mallory", submit_time=4000.0)
    whole = ClusterView(5000.0, (first,), ())
    assert cache.take(whole)[0] == {1}
    assert cache.take(whole)[0] == set()
    reused = ClusterView(5001.0, (other,), ())
    assert (cache.take(reused)[0], dict(cache.jobs)) == ({1}, {})
    assert (cache.take(reused)[0], cache.jobs[JobId(1)]) == ({1}, other)
    empty = ClusterView(5002.0, (), (), complete=False)
    assert cache.take(empty)[0] == set()
    assert (cache.take(replace(empty, complete=True))[0], dict(cache.jobs)) == ({1}, {})
