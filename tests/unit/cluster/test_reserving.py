# SPDX-License-Identifier: GPL-2.0-or-later
"""Reservations: the command that makes one, what squeue says of them, and the start of the job."""

from __future__ import annotations

import pytest

from controller.cluster.reserved import Reserved
from controller.cluster.reserving import BUSY, FIRST_PRIORITY, Reservation, parse, salloc
from controller.errors import ClusterRefused, ClusterUnavailable, UnknownJob
from controller.model import GpuId, GpuSet, JobId
from tests.unit.cluster.factories import job_record
from tests.unit.cluster.test_command import Fake, calls, fake, known
from tests.unit.cluster.test_slurm_cluster import FakeTransport

__all__ = ["fake"]
JOB, OWN = JobId(17), JobId(40)


def gpus(*names: str) -> GpuSet:
    return frozenset(GpuId(name[:2], int(name[3:])) for name in names)


class Transport(FakeTransport):
    """With reservations."""

    def __init__(self, *made: Reservation) -> None:
        super().__init__(job_record(id=JOB, partition="gpu"))
        self.made = list(made)

    async def reserve(self, job_id: JobId, *arguments: object) -> None:
        await self._did("reserve", job_id, *arguments)
        self.made.append(Reservation(OWN, job_id, gpus("n1:2")))

    async def reservations(self) -> tuple[Reservation, ...]:
        return tuple(self.made)

    async def unreserve(self, own_id: JobId) -> None:
        await self._did("unreserve", own_id)
        self.made = [each for each in self.made if each.id != own_id]

    async def prefer(self, job_id: JobId, priority: int) -> None:
        await self._did("prefer", job_id, priority)


def test_one_shard_of_each_gpu_one_core_and_little_memory() -> None:
    command = salloc(JOB, "gpu", ("shard:a100_0", "shard:a100_3"), ("n1", "n2"), 90.0)
    assert command[:3] == ["salloc", "--no-shell", "--quiet"]
    assert set(command[3:]) == {
        "--immediate=2", "--priority=4000000000", "--job-name=gandiva-reservation-17", "--partition=gpu",
        "--nodelist=n1,n2", "--nodes=2", "--ntasks-per-node=1", "--mem=1M", "--time=2",
        "--gres=shard:a100_0:1,shard:a100_3:1",
    }  # fmt: skip


def test_reservations_among_the_controllers_own_jobs() -> None:
    text = (
        "40|gandiva-reservation-17|n1|gres/shard:a100_2:1\n"
        "41|gandiva-reservation-18|n[1-2]|gres/shard:a100_0:1,gres/shard:a100_3:1\n"
        "42|gandiva-reservation-19||gres/shard:a100_0:1\n"
        "43|a job of the administrator|n1|N/A\n"
        "44|gandiva-reservation-x|n1|N/A\n"
    )
    assert parse(text) == (
        Reservation(OWN, JOB, gpus("n1:2")),
        Reservation(JobId(41), JobId(18), gpus("n1:0", "n1:3", "n2:0", "n2:3")),
        Reservation(JobId(42), JobId(19), frozenset()),
    )
    assert parse("") == ()


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (f"salloc: error: {BUSY}", ClusterRefused),
        ("salloc: error: Unable to contact slurm controller (connect failure)", ClusterUnavailable),
        ("salloc: error: Invalid account or account/partition combination specified", ClusterRefused),
    ],
)
async def test_what_salloc_says(fake: Fake, said: str, error: type[Exception]) -> None:
    fake("salloc", f"echo '{said}' >&2; exit 1")
    with pytest.raises(error):
        await known().reserve(JOB, "gpu", ("shard:a100_0",), ("n1",), 60.0)
    assert len(calls()) == 1


async def test_a_job_with_a_reservation_starts_before_all_others() -> None:
    transport = Transport()
    reserved = Reserved(transport)
    await reserved.release(JOB)
    assert transport.calls == [("release", JOB)]
    await reserved.make(JOB, gpus("n1:2"), ("shard:a100_2",), ("n1",), 60.0)
    await reserved.make(JOB, gpus("n1:2"), ("shard:a100_2",), ("n1",), 60.0)
    transport.calls.clear()
    await reserved.release(JOB)
    assert transport.calls == [("suspend", OWN), ("release", JOB), ("prefer", JOB, FIRST_PRIORITY)]


async def test_a_job_that_has_started_has_its_own_priority_again() -> None:
    transport = Transport(Reservation(OWN, JOB, gpus("n1:2")))
    reserved = Reserved(transport)
    transport.records[JOB] = job_record(id=JOB, partition="gpu", priority=77)
    await reserved.release(JOB)
    await reserved.end(JOB)
    assert transport.calls[-2:] == [("unreserve", OWN), ("prefer", JOB, 77)]
    await reserved.end(JOB)
    assert transport.calls[-1] == ("prefer", JOB, 77), "once"


async def test_one_that_slurm_has_forgotten_is_not_suspended_under_its_old_id() -> None:
    """A slurmctld that was killed gives the numbers of jobs of its last seconds out again."""
    transport = Transport()
    reserved = Reserved(transport)
    await reserved.make(JOB, gpus("n1:2"), ("shard:a100_2",), ("n1",), 60.0)
    transport.made.clear()
    transport.calls.clear()
    await reserved.release(JOB)
    assert transport.calls == [("release", JOB)]


async def test_another_controller_finds_it() -> None:
    transport = Transport(Reservation(OWN, JOB, gpus("n1:2")))
    reserved = Reserved(transport)
    await reserved.release(JOB)
    assert ("suspend", OWN) in transport.calls
    assert await reserved.look() == {JOB: gpus("n1:2")}
    await reserved.end(JOB)
    assert transport.calls[-1] == ("unreserve", OWN)
    await reserved.release(JOB)
    assert transport.calls[-1] == ("release", JOB)


async def test_one_that_has_ended_keeps_nothing_from_starting() -> None:
    transport = Transport(Reservation(OWN, JOB, gpus("n1:2")))
    reserved = Reserved(transport)
    await reserved.look()
    transport.failures = {"suspend": UnknownJob("gone"), "prefer": ClusterRefused("it has ended, too")}
    await reserved.release(JOB)
    assert ("release", JOB) in transport.calls
    transport.failures = {"unreserve": UnknownJob("gone")}
    await reserved.end(JOB)
