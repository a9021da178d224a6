# SPDX-License-Identifier: GPL-2.0-or-later
"""Who holds memory on which GPU: NVML's processes joined with Slurm's jobs.

The rule everything rests on: a GPU counts as free only when NVML was read and no process is on it. A
reading that failed, a process of unknown origin, a size the driver does not tell: all of these are busy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from controller.agent.deadline import Deadline
from controller.agent.gpus import GpuReader, GpuReading, Reading
from controller.agent.processes import Processes
from controller.nodes.protocol import GpuProcess, JobId


@dataclass(frozen=True, slots=True)
class Holder(GpuProcess):
    """A process on a GPU."""

    gpu: int
    exists: bool

    def __str__(self) -> str:
        whose = f"job {self.job_id}" if self.job_id is not None else "no job"
        return f"process {self.pid} of {whose} holds {self.memory_bytes >> 20} MiB on GPU {self.gpu}"


@dataclass(frozen=True, slots=True)
class Occupancy:
    """All GPUs of the node and their holders at one instant."""

    reading: Reading
    holders: tuple[Holder, ...]

    def on(self, gpu: int) -> tuple[Holder, ...]:
        """Who holds memory on a GPU."""
        return tuple(holder for holder in self.holders if holder.gpu == gpu)

    def of_job(self, job_id: int) -> tuple[Holder, ...]:
        """All that a job holds."""
        return tuple(holder for holder in self.holders if holder.job_id == job_id)

    def bytes_by_gpu(self, job_id: int) -> dict[int, int]:
        """What a job holds on each GPU it is on."""
        total: dict[int, int] = {}
        for holder in self.of_job(job_id):
            total[holder.gpu] = total.get(holder.gpu, 0) + holder.memory_bytes
        return total

    def unreadable(self, gpus: Iterable[int]) -> list[str]:
        """Complaints about GPUs that do not exist or could not be read."""
        found = []
        for index in gpus:
            gpu = self.reading.gpu(index)
            if gpu is None:
                known = ", ".join(str(other.index) for other in self.reading.gpus) or "none"
                found.append(f"there is no GPU {index}; this node has {known}")
            elif not gpu.healthy:
                found.append(f"GPU {index} cannot be read or has uncorrected memory errors")
        return found

    def others(
        self, gpus: Iterable[int], allowed: Collection[int], allowance: Callable[[int], int]
    ) -> list[Holder]:
        """Holders on these GPUs that are none of the `allowed` jobs; `allowance` says how many bytes another
        job may keep on each GPU while it is off them."""
        found = []
        for gpu in gpus:
            for holder in self.on(gpu):
                job_id = holder.job_id
                if job_id in allowed:
                    continue
                if job_id is None or self.bytes_by_gpu(job_id)[gpu] > allowance(job_id):
                    found.append(holder)
        return found


def survey(reader: GpuReader, processes: Processes, deadline: Deadline) -> Occupancy:
    """Look at all GPUs now. Raises NvmlUnavailable."""
    reading = reader.read(deadline)
    holders = []
    for gpu in reading.gpus:
        for process in gpu.listed:
            if process.memory_bytes == 0:
                continue  # it has called cuInit, or counted the devices, and has no context
            holder = _holder(gpu, process.pid, process.memory_bytes, processes)
            # Of no job, graphics are the node's own (an X server stays for ever), and so are the processes by
            # which agents call the driver; a job's are in the way.
            own = process.graphics or processes.calls_the_driver(process.pid)
            if holder.job_id is not None or not own:
                holders.append(holder)
    return Occupancy(reading, tuple(holders))


def _holder(gpu: GpuReading, pid: int, memory_bytes: int | None, processes: Processes) -> Holder:
    # A size the driver does not tell could be anything up to all that is in use, and is not nothing.
    size = max(1, gpu.memory_used_bytes) if memory_bytes is None else memory_bytes
    job_id, exists = processes.job_of(pid), processes.start_time_ticks(pid) is not None
    return Holder(pid, None if job_id is None else JobId(job_id), processes.uid(pid), size, gpu.index, exists)
