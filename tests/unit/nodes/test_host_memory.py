# SPDX-License-Identifier: GPL-2.0-or-later
"""Room for the copy of GPU memory, from made-up control groups of both versions."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from controller.agent import leaving
from controller.agent.control_block import CheckpointedProcess
from controller.agent.deadline import Deadline
from controller.agent.gpus import GpuReader, NvmlSource
from controller.agent.host_memory import HostMemory
from controller.agent.node import AgentSettings, Node
from controller.nodes.protocol import AgentError, ErrorKind, NodePhase

MIB = 1 << 20
V1 = "9:cpuset:/slurm\n5:memory:/slurm/uid_5/job_7/step_0\n0::/\n"
V2 = "0::/system.slice/slurmstepd.scope/job_7/step_0\n"


class Machine:
    """A /proc with one process, 42, and its control groups."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        (self.proc / "42").mkdir(parents=True)
        self.memory = HostMemory(self.proc, self.cgroups)

    def available(self, mib: int) -> None:
        (self.proc / "meminfo").write_text(f"MemFree: 1 kB\nMemAvailable:   {mib << 10} kB\n")

    def process_in(self, cgroup: str) -> None:
        (self.proc / "42" / "cgroup").write_text(cgroup)

    def group(self, path: str, **files: str) -> None:
        folder = self.cgroups / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text + "\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.available(1000)
    return made


def tightest(machine: Machine) -> tuple[int, str]:
    room = min(machine.memory.rooms(42), key=lambda room: room.free_bytes)
    return room.free_bytes, room.limit


def test_without_limits_it_is_what_the_machine_has(machine: Machine) -> None:
    machine.process_in("0::/\n")
    assert tightest(machine) == (1000 * MIB, "this node's memory")


@pytest.mark.parametrize("cgroup", ["0::/\n", "0::/docker/abc\n"])
def test_in_a_container_its_own_group_is_where_groups_are_mounted(machine: Machine, cgroup: str) -> None:
    """With a namespace of its own, and without."""
    machine.process_in(cgroup)
    machine.group(".", memory__max=str(300 * MIB), memory__current=str(100 * MIB))
    assert tightest(machine)[0] == 200 * MIB


def test_version_1_counts_the_limits_above_and_what_the_kernel_can_take_back(machine: Machine) -> None:
    machine.process_in(V1)
    unlimited = str(2**63 - 4096)
    machine.group(
        "memory/slurm/uid_5/job_7/step_0",
        memory__limit_in_bytes=unlimited,
        memory__usage_in_bytes=str(50 * MIB),
    )
    machine.group(
        "memory/slurm/uid_5/job_7",
        memory__limit_in_bytes=str(400 * MIB),
        memory__usage_in_bytes=str(150 * MIB),
        memory__stat=f"cache {90 * MIB}\ntotal_inactive_file {30 * MIB}",
    )
    assert tightest(machine) == (280 * MIB, "the limit of 400 MiB of job_7")


def test_version_2_and_the_machine_when_that_is_less(machine: Machine) -> None:
    machine.process_in(V2)
    machine.group(
        "system.slice/slurmstepd.scope/job_7",
        memory__max=str(4000 * MIB),
        memory__current=str(500 * MIB),
    )
    machine.group("system.slice/slurmstepd.scope/job_7/step_0", memory__max="max", memory__current="1")
    assert tightest(machine) == (1000 * MIB, "this node's memory")
    machine.available(9000)
    assert tightest(machine) == (3500 * MIB, "the limit of 4000 MiB of job_7")


def test_what_cannot_be_read_bounds_nothing(tmp_path: Path) -> None:
    assert HostMemory(tmp_path, tmp_path).rooms(42) == []


def test_a_copy_that_does_not_fit_is_refused_with_what_to_do(machine: Machine, tmp_path: Path) -> None:
    machine.process_in("0::/\n")
    node = Node(AgentSettings("n1", tmp_path, None), GpuReader(NvmlSource()), driver=None)  # type: ignore[arg-type]
    node.host_memory = machine.memory
    node.require_host_memory({42: 1000 * MIB}, 7, Deadline(0), stays=True)
    with pytest.raises(AgentError, match=r"2000 MiB .* job 7 .* are left .* more --mem \(in a s") as refused:
        node.require_host_memory({42: 1000 * MIB, 43: 1000 * MIB}, 7, Deadline(0), stays=True)
    assert refused.value.kind is ErrorKind.HOST_MEMORY


def test_jobs_that_leave_at_once_are_not_promised_the_same_memory(machine: Machine, tmp_path: Path) -> None:
    """All of a node's jobs change at the end of a turn. Past the machine's memory the kernel kills one."""
    machine.process_in("0::/\n")
    node = Node(AgentSettings("n1", tmp_path / "run", None), GpuReader(NvmlSource()), driver=None)  # type: ignore[arg-type]
    node.host_memory = machine.memory
    node.blocks.block(7).create(os.getuid())
    with node.job(7, Deadline(10)):
        node.require_host_memory({42: 600 * MIB}, 7, Deadline(0), stays=True)
        node.require_host_memory(
            {42: 600 * MIB}, 7, Deadline(0), stays=True
        )  # it asks again: that is its own
        node.require_host_memory({42: 400 * MIB}, 8, Deadline(0), stays=True)
        with pytest.raises(AgentError, match=r"600 MiB .* job 9 .* other jobs are just leaving") as refused:
            node.require_host_memory({42: 600 * MIB}, 9, Deadline(0), stays=True)
        assert refused.value.kind is ErrorKind.HOST_MEMORY
    # What job 7 took is taken by now, or was not needed.
    node.require_host_memory({42: 600 * MIB}, 9, Deadline(0), stays=True)


def test_what_trials_under_one_limit_are_promised_is_added_up(machine: Machine, tmp_path: Path) -> None:
    """All steps of an allocation have its one limit; a job beside it has its own."""
    node = Node(AgentSettings("n1", tmp_path, None), GpuReader(NvmlSource()), driver=None)  # type: ignore[arg-type]
    node.host_memory = machine.memory
    machine.available(9000)
    for pid, job in ((42, "job_7/step_0"), (43, "job_7/step_1"), (44, "job_8/step_0")):
        (machine.proc / str(pid)).mkdir(exist_ok=True)
        (machine.proc / str(pid) / "cgroup").write_text(f"0::/slurm/{job}\n")
    for job in ("job_7", "job_8"):
        machine.group(f"slurm/{job}", memory__max=str(1000 * MIB), memory__current=str(0))
    node.require_host_memory({42: 600 * MIB}, 1, Deadline(0), stays=True)
    node.require_host_memory({44: 600 * MIB}, 2, Deadline(0), stays=True)
    with pytest.raises(AgentError, match=r"600 MiB .* job 3 .* limit of 1000 MiB of job_7, where other jobs"):
        node.require_host_memory({43: 600 * MIB}, 3, Deadline(0), stays=True)


def test_copies_of_gpu_memory_have_a_budget(machine: Machine, tmp_path: Path) -> None:
    """Sessions keep their buffers, the driver does not. What a save copies for a moment does not count."""
    settings = AgentSettings("n1", tmp_path / "run", None, trials=True, host_memory_bytes=500 * MIB)
    node = Node(settings, GpuReader(NvmlSource()), driver=None)  # type: ignore[arg-type]
    node.host_memory = machine.memory
    by_driver = CheckpointedProcess(pid=42, start_time_ticks=1, gpus=(0,), memory_bytes={0: 200 * MIB})
    for job_id, phase in ((7, NodePhase.YIELDED), (8, NodePhase.RUNNING)):
        block = node.blocks.block(job_id)
        block.create(os.getuid())
        block.change(node.state(block), phase=phase, host_bytes=50 * MIB, checkpointed=(by_driver,))
    with pytest.raises(AgentError, match=r"210 MiB of .* job 8 .* 200 MiB are left of the 500 MiB of host_m"):
        node.require_host_memory({42: 210 * MIB}, 8, Deadline(0), stays=True)
    node.require_host_memory({42: 210 * MIB}, 8, Deadline(0), stays=False)
    node.host_memory.release(8)
    node.require_host_memory({42: 150 * MIB}, 9, Deadline(0), stays=True)
    with pytest.raises(AgentError, match=r"200 MiB are left .* just leaving"):
        node.require_host_memory({42: 150 * MIB}, 10, Deadline(0), stays=True)


@pytest.mark.parametrize(("before", "taken", "kept"), [(0, 8, 8), (8, 8, 8), (8, 0, 8), (8, 2, 10)], ids=str)
def test_what_sessions_keep_in_host_memory(before: int, taken: int, kept: int) -> None:
    """Objects with hooks state all that they have each time, PyTorch what it needs besides its buffers."""
    assert leaving._kept_bytes(before, taken) == kept


def test_a_context_that_leaves_later_is_beside_what_left_first(machine: Machine, tmp_path: Path) -> None:
    node = Node(AgentSettings("n1", tmp_path, None), GpuReader(NvmlSource()), driver=None)  # type: ignore[arg-type]
    node.host_memory = machine.memory
    node.require_host_memory({42: 700 * MIB}, 7, Deadline(0), stays=True)
    node.require_host_memory({42: 50 * MIB}, 7, Deadline(0), stays=True)
    with pytest.raises(AgentError, match="other jobs are just leaving"):
        node.require_host_memory({42: 400 * MIB}, 8, Deadline(0), stays=True)


def test_jobs_in_the_middle_of_leaving_do_not_wait_for_each_other(machine: Machine, tmp_path: Path) -> None:
    """After its state a job's CUDA context is taken off: by then it has taken what it was promised first."""
    machine.process_in("0::/\n")
    node = Node(AgentSettings("n1", tmp_path, None), GpuReader(NvmlSource()), driver=None)  # type: ignore[arg-type]
    node.host_memory = machine.memory
    for job_id in (7, 8):
        node.require_host_memory({42: 450 * MIB}, job_id, Deadline(0), stays=True)
    machine.available(100)
    for job_id in (7, 8):
        node.require_host_memory({42: 50 * MIB}, job_id, Deadline(0), stays=True)


def test_who_does_not_fit_beside_others_waits_for_them(machine: Machine, tmp_path: Path) -> None:
    machine.process_in("0::/\n")
    node = Node(AgentSettings("n1", tmp_path / "run", None), GpuReader(NvmlSource()), driver=None)  # type: ignore[arg-type]
    node.host_memory = machine.memory
    node.blocks.block(7).create(os.getuid())
    leaving, go_on = threading.Event(), threading.Event()

    def leave() -> None:
        with node.job(7, Deadline(10)):
            node.require_host_memory({42: 600 * MIB}, 7, Deadline(0), stays=True)
            leaving.set()
            go_on.wait(60)

    other = threading.Thread(target=leave, daemon=True)
    other.start()
    assert leaving.wait(60)
    threading.Timer(0.05, go_on.set).start()
    node.require_host_memory({42: 600 * MIB}, 9, Deadline(60), stays=True)
    assert go_on.is_set()
    other.join(60)
