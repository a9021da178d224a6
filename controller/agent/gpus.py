# SPDX-License-Identifier: GPL-2.0-or-later
"""GPUs as NVML sees them, read with a deadline, and which job holds memory on which.

An NVML call can hang for as long as a broken GPU makes the driver wait. All calls are made by one thread;
callers wait for its next reading, and give up at their deadline. A GPU counts as free only when NVML was read
and no process is on it: a reading that failed, a process of unknown origin, a size the driver does not tell,
all of these are busy.

A GPU's index is its minor number, the N of /dev/nvidiaN, as Slurm has it. NVML and CUDA count in PCI order
(its `place`), which is another one on some boards, and changes when a GPU falls off the bus.
"""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, Protocol

from controller.agent.deadline import Deadline
from controller.agent.processes import Processes
from controller.nodes.protocol import MAX_REASON_CHARS, AgentError, ErrorKind, GpuProcess, GpuSample, JobId

NOT_LISTED = "the driver does not list it any more: it has fallen off the bus"


class NvmlUnavailable(AgentError):
    """NVML could not be read in time, or not at all."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorKind.INTERNAL, message)


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """A process that NVML lists. `memory_bytes` is None where the driver does not say."""

    pid: int
    memory_bytes: int | None
    graphics: bool = False
    """It computes nothing there: it renders (EGL, Vulkan), or is an X server."""


@dataclass(frozen=True, slots=True)
class GpuReading(GpuSample):
    """One GPU at one instant, before it is known whose the processes are."""

    listed: tuple[ProcessReading, ...] = ()
    memory_free_bytes: int = 0
    """As NVML says it: the driver keeps some for itself, so total and used do not tell it."""
    place: str = ""
    """On the PCI bus, in the order in which CUDA counts; empty for one that CUDA does not count any more."""

    def bad(self, reason: str) -> "GpuReading":
        """The same, not to be given to a job."""
        return replace(self, healthy=False, reason=self.reason or reason[:MAX_REASON_CHARS])


@dataclass(frozen=True, slots=True)
class Reading:
    """All GPUs of the node at one instant."""

    driver_version: str
    gpus: tuple[GpuReading, ...]

    def gpu(self, index: int) -> GpuReading | None:
        """None when the node has no such GPU."""
        return next((gpu for gpu in self.gpus if gpu.index == index), None)

    def as_cuda_counts(self, gpus: Collection[int]) -> list[int]:
        """Those of these GPUs that CUDA counts, in its order (CUDA_DEVICE_ORDER=PCI_BUS_ID)."""
        return [
            gpu.index for gpu in sorted(self.gpus, key=lambda g: g.place) if gpu.place and gpu.index in gpus
        ]


class GpuSource(Protocol):
    """Whatever reads all GPUs once; raises any exception when it cannot."""

    def read(self) -> Reading:
        """Blocks for as long as it takes."""


def model_slug(name: str) -> str:
    """The whole name of a product, as Slurm's AutoDetect writes it: `nvidia_a100-sxm4-80gb`."""
    return name.lower().replace(" ", "_")[:MAX_REASON_CHARS] or "gpu"


class NvmlSource:
    """Reads through pynvml; finds the library as the loader does (so LD_LIBRARY_PATH can name a mock)."""

    def __init__(self) -> None:
        self._initialized = False
        self._handles: dict[int, Any] = {}
        self._identities: dict[int, GpuReading] = {}
        """Both by NVML's index: they stay as long as the library is initialised."""
        self._last: dict[int, GpuReading] = {}
        """By minor number, since the agent began."""

    def read(self) -> Reading:
        """Raises pynvml's errors when nothing at all can be read; one bad GPU only makes itself unhealthy."""
        import pynvml

        if not self._initialized:
            self._handles, self._identities = {}, {}
            pynvml.nvmlInit()
            self._initialized = True
        try:
            found = {number: self._gpu(pynvml, number) for number in range(int(pynvml.nvmlDeviceGetCount()))}
            gpus = {gpu.index: gpu for gpu in found.values() if gpu is not None}
            gone = {index: replace(gpu.bad(NOT_LISTED), place="") for index, gpu in self._last.items()}
            every = gone | gpus
            version = _text(pynvml.nvmlSystemGetDriverVersion())
            return Reading(version, tuple(every[index] for index in sorted(every)))
        except pynvml.NVMLError:
            # A reloaded driver needs a new nvmlInit; without an end of the old one NVML only counts it.
            self._initialized = False
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
            raise

    def _gpu(self, pynvml: Any, number: int) -> GpuReading | None:
        """By NVML's index. None: which GPU it is was never told, and so it is none that a job can have."""
        try:
            found = self._ask(pynvml, number)
        except pynvml.NVMLError as error:
            self._handles.pop(number, None)
            lost = isinstance(error, pynvml.NVMLError_GpuIsLost)
            why = "it has fallen off the bus" if lost else f"NVML cannot read it: {error}"
            identity = self._identities.get(number)
            if identity is None:
                return None
            return self._last.get(identity.index, identity).bad(why)
        self._last[found.index] = found
        return found

    def _identify(self, pynvml: Any, number: int) -> tuple[Any, GpuReading]:
        if number not in self._handles:
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
            self._identities[number] = GpuReading(
                index=int(pynvml.nvmlDeviceGetMinorNumber(handle)),
                uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
                model=model_slug(_text(pynvml.nvmlDeviceGetName(handle))),
                memory_bytes=0,
                memory_used_bytes=0,
                utilization_fraction=0.0,
                healthy=True,
                place=_text(pynvml.nvmlDeviceGetPciInfo(handle).busId),
            )
            self._handles[number] = handle
        return self._handles[number], self._identities[number]

    def _ask(self, pynvml: Any, number: int) -> GpuReading:
        handle, identity = self._identify(pynvml, number)
        memory = self._memory(pynvml, handle)
        try:
            utilization = int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
        except pynvml.NVMLError_NotSupported:
            utilization = 0.0
        computing = self._listed(pynvml, handle, "Compute", "MPSCompute")
        rendering = self._listed(pynvml, handle, "Graphics")
        processes = [ProcessReading(pid, size) for pid, size in computing.items()]
        rendering_only = rendering.keys() - computing.keys()
        processes += [ProcessReading(pid, rendering[pid], graphics=True) for pid in rendering_only]
        found = replace(
            identity,
            memory_bytes=int(memory.total),
            memory_used_bytes=int(memory.used),
            utilization_fraction=min(1.0, max(0.0, utilization)),
            listed=tuple(sorted(processes, key=lambda process: process.pid)),
            memory_free_bytes=int(memory.free),
        )
        ill = self._has_uncorrected_errors(pynvml, handle)
        return found.bad("it has uncorrected memory errors (ECC)") if ill else found

    @staticmethod
    def _listed(pynvml: Any, handle: Any, *kinds: str) -> dict[int, int | None]:
        """Bytes by pid; not every driver tells of kinds but Compute. One pid may be listed once per GPU
        instance: add up, and unknown stays unknown."""
        used: dict[int, int | None] = {}
        for kind in kinds:
            try:
                listed = getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses")(handle)
            except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound, AttributeError):
                if kind == "Compute":
                    raise
                continue
            for process in listed:
                size, before = process.usedGpuMemory, used.get(int(process.pid), 0)
                used[int(process.pid)] = None if size is None or before is None else before + int(size)
        return used

    @staticmethod
    def _memory(pynvml: Any, handle: Any) -> Any:
        try:
            # Version 2 leaves out what the driver keeps for itself.
            return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_InvalidArgument, AttributeError):
            return pynvml.nvmlDeviceGetMemoryInfo(handle)

    @staticmethod
    def _has_uncorrected_errors(pynvml: Any, handle: Any) -> bool:
        try:
            kind, since = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
            return bool(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, since))
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
            return False


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


class GpuReader:
    """Readings on demand, from one thread, each with a deadline."""

    def __init__(self, source: GpuSource) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._next: Future[Reading] | None = None
        """Asked for and not begun."""
        self._asked: SimpleQueue[Future[Reading]] = SimpleQueue()
        self._last = Reading("", ())
        self._thread: threading.Thread | None = None

    def read(self, deadline: Deadline) -> Reading:
        """A reading that was begun after this call. Raises NvmlUnavailable, saying why, at the deadline or
        when NVML fails."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
                self._thread.start()
            if self._next is None:
                self._next = Future()
                self._asked.put(self._next)
            reading = self._next
        wait([reading], deadline.left_seconds)
        if not reading.done():
            raise NvmlUnavailable(f"NVML has not answered within {deadline.seconds:.1f} s")
        if (error := reading.exception()) is not None:
            raise NvmlUnavailable(f"NVML failed: {error}") from error
        return reading.result()

    def last(self, why: str = "") -> Reading:
        """The last successful reading with every GPU marked unhealthy, for this reason; an empty one before
        the first."""
        last = self._last
        return replace(last, gpus=tuple(gpu.bad(why) for gpu in last.gpus))

    def _run(self) -> None:
        while True:
            reading = self._asked.get()
            with self._lock:
                self._next = None
            try:
                self._last = found = self._source.read()
                reading.set_result(found)
            except Exception as error:
                reading.set_exception(error)


def describe(indices: Sequence[int]) -> str:
    """GPU 2, or GPUs 0, 1 and 3."""
    *others, last = map(str, indices)
    return f"GPUs {', '.join(others)} and {last}" if others else f"GPU {last}"


@dataclass(frozen=True, slots=True)
class Holder(GpuProcess):
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
        return tuple(holder for holder in self.holders if holder.gpu == gpu)

    def of_job(self, job_id: int) -> tuple[Holder, ...]:
        return tuple(holder for holder in self.holders if holder.job_id == job_id)

    def bytes_by_gpu(self, job_id: int) -> dict[int, int]:
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
                found.append(f"GPU {index} is not usable: {gpu.reason}")
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
