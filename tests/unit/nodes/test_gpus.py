# SPDX-License-Identifier: GPL-2.0-or-later
"""Readings with a deadline, and what counts as busy."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from controller.agent.deadline import Deadline
from controller.agent.gpus import (
    GpuReader,
    GpuReading,
    Holder,
    NvmlSource,
    NvmlUnavailable,
    Occupancy,
    ProcessReading,
    Reading,
    describe,
    model_slug,
    survey,
)
from controller.agent.identity import SlurmJobs
from controller.agent.process_table import ProcessTable
from controller.agent.processes import Processes
from controller.model import JobId

GPU = GpuReading(0, "GPU-0", "a100", 1000, 0, 0.0, healthy=True)


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA A100-SXM4-80GB", "nvidia_a100-sxm4-80gb"),
        ("NVIDIA H100 80GB HBM3", "nvidia_h100_80gb_hbm3"),
        ("NVIDIA GeForce RTX 2080 Ti", "nvidia_geforce_rtx_2080_ti"),
        ("Tesla T4", "tesla_t4"),
        ("", "gpu"),
        ("X" * 300, "x" * 200),
    ],
)
def test_model_slug(name: str, slug: str) -> None:
    assert model_slug(name) == slug


def test_describe() -> None:
    assert describe([2]) == "GPU 2"
    assert describe([0, 1, 3]) == "GPUs 0, 1 and 3"


class Source:
    """NVML that can be made to hang or fail."""

    def __init__(self) -> None:
        self.reads = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self.error: Exception | None = None

    def read(self) -> Reading:
        self.reads += 1
        self.go_on.wait(60)
        if self.error is not None:
            raise self.error
        return Reading("580.1", (replace(GPU, memory_used_bytes=self.reads),))


def test_a_reading_is_always_a_fresh_one() -> None:
    source = Source()
    reader = GpuReader(source)
    assert reader.last() == Reading("", ())
    assert [reader.read(Deadline(10)).gpus[0].memory_used_bytes for _ in range(3)] == [1, 2, 3]


def test_a_hanging_nvml_costs_a_deadline_and_leaves_the_last_reading_unhealthy() -> None:
    source = Source()
    reader = GpuReader(source)
    reader.read(Deadline(10))
    source.go_on.clear()
    for _ in range(2):
        with pytest.raises(NvmlUnavailable, match=r"not answered within 0\.1 s"):
            reader.read(Deadline(0.05 + 0.05))
    assert source.reads == 2  # one hangs, no others pile up behind it
    assert [(gpu.memory_used_bytes, gpu.healthy) for gpu in reader.last().gpus] == [(1, False)]
    source.go_on.set()
    # The reading that hung was begun before this question: it does not count as its answer.
    assert reader.read(Deadline(10)).gpus[0].memory_used_bytes == 3


def test_an_error_is_told_and_forgotten() -> None:
    source = Source()
    reader = GpuReader(source)
    source.error = RuntimeError("driver mismatch")
    with pytest.raises(NvmlUnavailable, match="driver mismatch"):
        reader.read(Deadline(10))
    source.error = None
    assert reader.read(Deadline(10)).gpus[0].healthy


def listed(monkeypatch: pytest.MonkeyPatch, **lists: list[tuple[int, int | None]]) -> Reading:
    """A reading through pynvml of one GPU, of which NVML lists these processes (pid, bytes)."""
    import pynvml

    answers: dict[str, Any] = {
        "nvmlInit": None,
        "nvmlSystemGetDriverVersion": "580.1",
        "nvmlDeviceGetCount": 1,
        "nvmlDeviceGetHandleByIndex": 0,
        "nvmlDeviceGetName": "NVIDIA A100",
        "nvmlDeviceGetUUID": "GPU-0",
        "nvmlDeviceGetMinorNumber": 0,
        "nvmlDeviceGetPciInfo": SimpleNamespace(busId="00000000:07:00.0"),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=1000, used=500, free=0),
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=0),
        "nvmlDeviceGetTotalEccErrors": 0,
    }
    for kind in ("Compute", "MPSCompute", "Graphics"):
        found = [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in lists.get(kind, [])]
        answers[f"nvmlDeviceGet{kind}RunningProcesses"] = found
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, lambda *_args, _answer=answer, **_options: _answer)
    return NvmlSource().read()


class Card:
    """A GPU as NVML has it. `error`: what every question about it raises."""

    def __init__(self, minor: int, bus: str) -> None:
        self.minor, self.bus, self.uuid = minor, bus, f"GPU-of-{bus}"
        self.error: Exception | None = None
        self.handle: Exception | None = None
        self.ecc = 0


class Driver:
    """NVML with cards in its own order: by what is on the PCI bus."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *minors: int) -> None:
        import pynvml

        self.cards = [Card(minor, f"00000000:{place:02X}:00.0") for place, minor in enumerate(minors)]
        monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "580.1")
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(self.cards))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", self.handle)
        answers: dict[str, Any] = {
            "MinorNumber": lambda card: card.minor,
            "PciInfo": lambda card: SimpleNamespace(busId=card.bus),
            "Name": lambda _: "NVIDIA A100",
            "UUID": lambda card: card.uuid,
            "MemoryInfo": lambda card: SimpleNamespace(total=1000, used=card.minor, free=0),
            "UtilizationRates": lambda _: SimpleNamespace(gpu=0),
            "TotalEccErrors": lambda card: card.ecc,
            **dict.fromkeys(
                [f"{kind}RunningProcesses" for kind in ("Compute", "Graphics", "MPSCompute")], list_
            ),
        }
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", self.asking(answer))

    def handle(self, number: int) -> Card:
        card = self.cards[number]
        if card.handle is not None:
            raise card.handle
        return card

    @staticmethod
    def asking(answer: Any) -> Any:
        def ask(card: Card, *_: Any, **__: Any) -> Any:
            if card.error is not None:
                raise card.error
            return answer(card)

        return ask


def list_(_: Card) -> list[Any]:
    return []


def found(reading: Reading) -> dict[int, tuple[str, bool]]:
    return {gpu.index: (gpu.uuid, gpu.healthy) for gpu in reading.gpus}


def test_a_gpu_is_known_by_its_minor_number(monkeypatch: pytest.MonkeyPatch) -> None:
    Driver(monkeypatch, 2, 0, 1)
    reading = NvmlSource().read()
    assert [(gpu.index, gpu.uuid[-7:-5], gpu.memory_used_bytes) for gpu in reading.gpus] == [
        (0, "01", 0),
        (1, "02", 1),
        (2, "00", 2),
    ]
    assert reading.as_cuda_counts([0, 1, 2]) == [2, 0, 1]
    assert reading.as_cuda_counts([1, 2]) == [2, 1]


def test_a_gpu_that_fell_off_the_bus_is_named_and_the_others_keep_their_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pynvml

    driver = Driver(monkeypatch, 0, 1, 2)
    source = NvmlSource()
    source.read()
    driver.cards[1].error = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    lost = source.read()
    assert [gpu.healthy for gpu in lost.gpus] == [True, False, True]
    assert lost.gpus[1].reason == "it has fallen off the bus"
    # After a new nvmlInit: the driver lists one less.
    del driver.cards[1]
    source._initialized = False
    gone = source.read()
    assert [(gpu.index, gpu.healthy, gpu.memory_used_bytes) for gpu in gone.gpus] == [
        (0, True, 0),
        (1, False, 1),
        (2, True, 2),
    ]
    assert gone.gpus[1].reason == "the driver does not list it any more: it has fallen off the bus"
    assert gone.as_cuda_counts([0, 1, 2]) == [0, 2]


def test_of_a_gpu_that_never_said_which_it_is_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that begins beside a GPU that was lost before."""
    import pynvml

    driver = Driver(monkeypatch, 0, 1, 2)
    driver.cards[1].handle = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    assert found(NvmlSource().read()) == {
        0: (driver.cards[0].uuid, True),
        2: (driver.cards[2].uuid, True),
    }


def test_each_bad_gpu_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    driver = Driver(monkeypatch, 0, 1)
    driver.cards[0].ecc = 1
    driver.cards[1].error = pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
    source = NvmlSource()
    assert found(source.read()) == {0: (driver.cards[0].uuid, False)}, (
        "which one the other is it has not said"
    )
    driver.cards[1].error = None
    source.read()
    driver.cards[1].error = pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
    reading = source.read()
    assert [gpu.reason for gpu in reading.gpus] == [
        "it has uncorrected memory errors (ECC)",
        "NVML cannot read it: Timeout",
    ]
    assert Occupancy(reading, ()).unreadable([1]) == ["GPU 1 is not usable: NVML cannot read it: Timeout"]


def test_memory_of_graphics_counts_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulator that a job renders with (EGL, Vulkan) is in NVML's list of graphics processes only."""
    reading = listed(monkeypatch, Compute=[(50, 100), (51, 60)], Graphics=[(51, 60), (52, 40), (53, 5)])
    assert reading.gpus[0].listed == (
        ProcessReading(50, 100),
        ProcessReading(51, 60),
        ProcessReading(52, 40, graphics=True),
        ProcessReading(53, 5, graphics=True),
    )


def test_graphics_of_no_job_are_the_nodes_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An X server stays for ever, with a few MiB on each GPU."""
    for pid in (51, 52):
        (tmp_path / str(pid)).mkdir()
    (tmp_path / "52" / "cgroup").write_text("6:freezer:/slurm/uid_1000/job_12/step_0\n")
    reading = listed(monkeypatch, Compute=[(51, 60)], Graphics=[(52, 40), (53, 5)])
    source = Source()
    monkeypatch.setattr(source, "read", lambda: reading)
    seen = survey(
        GpuReader(source), Processes(SlurmJobs("n1", lambda _: None, ProcessTable(tmp_path))), Deadline(10)
    )
    assert [(found.pid, found.job_id, found.memory_bytes) for found in seen.holders] == [
        (51, None, 60),
        (52, 12, 40),
    ]


def occupancy(*holders: Holder, healthy: bool = True) -> Occupancy:
    reading = Reading("580", tuple(replace(GPU, index=index, healthy=healthy) for index in range(2)))
    return Occupancy(reading, holders)


def holder(job: int | None, size: int, gpu: int = 0, pid: int = 1) -> Holder:
    return Holder(pid, None if job is None else JobId(job), 1000, size, gpu, exists=True)


def test_who_is_in_the_way() -> None:
    allowance = {5: 100}
    seen = occupancy(holder(5, 60, pid=1), holder(5, 40, pid=2), holder(6, 1, gpu=1, pid=3))
    assert seen.others([0], {7}, lambda job: allowance.get(job, 0)) == []
    assert [found.pid for found in seen.others([1], {7}, lambda job: allowance.get(job, 0))] == [3]
    assert seen.others([1], {6}, lambda _: 0) == []
    assert seen.others([1], {7, 6}, lambda _: 0) == [], "it may be beside this one"
    assert len(seen.others([0, 1], {7, 6}, lambda _: 0)) == 2, "and beside no other"
    over = occupancy(holder(5, 60, pid=1), holder(5, 41, pid=2))
    assert len(over.others([0], {7}, lambda job: allowance.get(job, 0))) == 2
    unknown = occupancy(holder(None, 1))
    assert len(unknown.others([0], {7}, lambda _: 1 << 40)) == 1


def test_what_cannot_be_read_is_named() -> None:
    assert occupancy().unreadable([0, 1]) == []
    assert occupancy(healthy=False).unreadable([1])[0].startswith("GPU 1 is not usable")
    assert occupancy().unreadable([4]) == ["there is no GPU 4; this node has 0, 1"]


def test_a_size_the_driver_does_not_tell_is_not_nothing() -> None:
    from controller.agent.gpus import _holder

    processes = Processes(SlurmJobs("n1", lambda _: None))
    reading = replace(GPU, memory_used_bytes=700, listed=(ProcessReading(1, None),))
    assert _holder(reading, 1, None, processes).memory_bytes == 700
    assert _holder(replace(reading, memory_used_bytes=0), 1, None, processes).memory_bytes == 1
