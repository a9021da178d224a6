# SPDX-License-Identifier: GPL-2.0-or-later
"""The mock under the real pynvml (nvidia-ml-py), in a process of its own because it stays loaded."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from tests.unit.mock_gpu.bench import CONTEXT, GIB, Node

pytest.importorskip("pynvml", reason="needs nvidia-ml-py")


def nvml(node: Node, body: str, *, strict: bool = True) -> Any:
    """What `result` is after this code, run under pynvml on the node. Not strict: without `handles`."""
    script = (
        "import json, subprocess, time\nfrom pynvml import *\nnvmlInit()\n"
        f"count = nvmlDeviceGetCount() if {strict} else 0\n"
        "handles = [nvmlDeviceGetHandleByIndex(i) for i in range(count)]\n"
        "def code(function, *arguments):\n"
        "    try: function(*arguments)\n"
        "    except NVMLError as error: return error.value\n"
        "    return 0\n"
        "def inject(*arguments):\n"
        f"    subprocess.run(['{node.command}', 'inject', *arguments], check=True, capture_output=True)\n"
        + textwrap.dedent(body)
        + "\nprint(json.dumps(result))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=node.environ(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_a_monitor_asks(node: Node) -> None:
    job = node.worker()
    job.ask("alloc", 0, GIB)
    job.ask("spin", 0, 60_000_000, 60)  # it goes on all the time
    found = nvml(
        node,
        """
        busy, idle = handles
        memory = nvmlDeviceGetMemoryInfo(busy)
        second = nvmlDeviceGetMemoryInfo(busy, nvmlMemory_v2)
        processes = nvmlDeviceGetComputeRunningProcesses(busy)
        samples = nvmlDeviceGetProcessUtilization(busy, 0)
        result = dict(
            driver=nvmlSystemGetDriverVersion(), cuda=nvmlSystemGetCudaDriverVersion_v2(),
            nvml=nvmlSystemGetNVMLVersion(),
            names=[nvmlDeviceGetName(h) for h in handles], uuids=[nvmlDeviceGetUUID(h) for h in handles],
            minors=[nvmlDeviceGetMinorNumber(h) for h in handles],
            by_uuid=nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID(nvmlDeviceGetUUID(idle))),
            by_bus=nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId(nvmlDeviceGetPciInfo(idle).busId)),
            memory=[memory.total, memory.free, memory.used], second=[second.total, second.free, second.used],
            processes=[[p.pid, p.usedGpuMemory] for p in processes],
            idle_processes=nvmlDeviceGetComputeRunningProcesses(idle),
            busy=nvmlDeviceGetUtilizationRates(busy).gpu, idle=nvmlDeviceGetUtilizationRates(idle).gpu,
            samples=[[s.pid, s.smUtil] for s in samples],
            idle_samples=code(nvmlDeviceGetProcessUtilization, idle, 0),
            temperature=nvmlDeviceGetTemperature(busy, NVML_TEMPERATURE_GPU),
            temperature_v=nvmlDeviceGetTemperatureV(busy, NVML_TEMPERATURE_GPU),
            power=nvmlDeviceGetPowerUsage(busy), limit=nvmlDeviceGetEnforcedPowerLimit(busy),
            mode=nvmlDeviceGetComputeMode(busy), mig=nvmlDeviceGetMigMode(busy),
            ecc=nvmlDeviceGetTotalEccErrors(busy, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC),
            ancestor=nvmlDeviceGetTopologyCommonAncestor(busy, idle),
            p2p=nvmlDeviceGetP2PStatus(busy, idle, NVML_P2P_CAPS_INDEX_NVLINK),
            clock=nvmlDeviceGetClockInfo(busy, NVML_CLOCK_SM), serial=nvmlDeviceGetSerial(busy),
            bad_index=code(nvmlDeviceGetHandleByIndex, 9), bad_uuid=code(nvmlDeviceGetHandleByUUID, "GPU-0"),
            fan=code(nvmlDeviceGetFanSpeed, busy), error=str(NVMLError(NVML_ERROR_GPU_IS_LOST)),
        )
        nvmlShutdown()
        result["after"] = code(nvmlDeviceGetName, busy)
        """,
    )
    used = CONTEXT + GIB
    assert found["driver"] == "580.95.05"
    assert found["cuda"] == 13000
    assert found["names"] == ["NVIDIA A100-SXM4-80GB"] * 2
    assert found["uuids"] == [gpu["uuid"] for gpu in node.show()["gpus"]] == job.ask("uuids")
    assert found["minors"] == [0, 1]
    assert found["by_uuid"] == found["by_bus"] == 1
    assert found["memory"] == found["second"] == [80 * GIB, 80 * GIB - used, used]
    assert found["processes"] == [[job.pid, used]]
    assert found["idle_processes"] == []
    assert found["busy"] > 0 == found["idle"]
    ((pid, share),) = found["samples"]
    assert pid == job.pid
    assert 0 < share <= found["busy"]
    assert found["idle_samples"] == 6  # NOT_FOUND
    assert found["temperature"] == found["temperature_v"] > 32
    assert 60_000 < found["power"] < found["limit"]
    assert (found["mode"], found["mig"], found["ecc"], found["ancestor"], found["p2p"]) == (
        0,
        [0, 0],
        0,
        10,
        0,
    )
    assert (found["bad_index"], found["bad_uuid"], found["fan"], found["after"]) == (2, 6, 3, 1)
    assert found["error"] == "GPU is lost"


def test_a_checkpointed_process_is_not_listed(node: Node) -> None:
    job, agent = node.worker(), node.bare_worker()
    count = """
        processes = nvmlDeviceGetComputeRunningProcesses(handles[0])
        result = [len(processes), nvmlDeviceGetMemoryInfo(handles[0]).used]
        """
    assert nvml(node, count) == [1, CONTEXT]
    agent.ask("lock", job.pid, 1000)
    agent.ask("checkpoint", job.pid)
    assert nvml(node, count) == [0, 0]


def test_many_processes_need_two_calls(node: Node) -> None:
    workers = {node.worker().pid for _ in range(4)}
    raw = """
        from ctypes import byref, c_uint
        import pynvml
        function = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetComputeRunningProcesses_v3")
        count = c_uint(0)
        sizing = [function(handles[0], byref(count), None), count.value]
        count, room = c_uint(2), (c_nvmlProcessInfo_v3_t * 2)()
        short = [function(handles[0], byref(count), room), count.value]
        pids = [p.pid for p in nvmlDeviceGetComputeRunningProcesses(handles[0])]
        result = dict(sizing=sizing, short=short, pids=pids)
        """
    found = nvml(node, raw)
    assert found["sizing"] == found["short"] == [7, 4]  # INSUFFICIENT_SIZE, and how many there are
    assert set(found["pids"]) == workers


def test_only_the_jobs_gpus_are_there(bare_node: Node) -> None:
    node = bare_node.init(gpus=4)
    (node.devices / "nvidia0").unlink()
    (node.devices / "nvidia3").unlink()
    assert nvml(node, "result = [nvmlDeviceGetMinorNumber(h) for h in handles]") == [1, 2]


ORDER = """
    def about(h):
        return [nvmlDeviceGetMinorNumber(h), nvmlDeviceGetPciInfo(h).busId, nvmlDeviceGetUUID(h)]
    result = [about(h) for h in handles]
"""


def test_nvml_and_cuda_count_in_pci_order_whatever_the_minor_numbers_are(bare_node: Node) -> None:
    node = bare_node.init("--minors", "2,0,1", gpus=3)
    uuids = [gpu["uuid"] for gpu in node.show()["gpus"]]
    found = nvml(node, ORDER)
    assert [minor for minor, _, _ in found] == [2, 0, 1]
    assert [bus_id for _, bus_id, _ in found] == [f"00000000:{bus}:00.0" for bus in ("07", "0F", "17")]
    assert [uuid for _, _, uuid in found] == [uuids[minor] for minor in (2, 0, 1)]
    worker = node.worker(device=None)
    assert worker.ask("uuids") == [uuids[minor] for minor in (2, 0, 1)]
    (node.devices / "nvidia0").unlink()  # what a job's cgroup forbids
    assert [minor for minor, _, _ in nvml(node, ORDER)] == [2, 1]
    narrow = node.worker(device=0, CUDA_VISIBLE_DEVICES="1")
    assert node.on_gpu(1) == {narrow.pid: CONTEXT}
    assert node.run("init", "--gpus", "2", "--minors", "0,0", check=False).returncode == 2


def test_a_gpu_that_fell_off_the_bus_renumbers_those_behind_it(bare_node: Node) -> None:
    node = bare_node.init(gpus=3)
    uuids = [gpu["uuid"] for gpu in node.show()["gpus"]]
    found = nvml(
        node,
        """
        inject("gpu-lost", "--gpu", "1")
        before = [nvmlDeviceGetCount(), code(nvmlDeviceGetName, handles[1])]
        before += [nvmlDeviceGetMinorNumber(handles[2])]
        nvmlShutdown()
        nvmlInit()
        count = nvmlDeviceGetCount()
        after = [nvmlDeviceGetMinorNumber(nvmlDeviceGetHandleByIndex(i)) for i in range(count)]
        result = dict(before=before, after=after)
        """,
    )
    assert found == {"before": [3, 15, 2], "after": [0, 2]}
    assert node.worker(device=None).ask("uuids") == [uuids[0], uuids[2]]
    node.run("inject", "--clear")
    node.run("inject", "gpu-lost", "--gpu", "1", "--value", "1")
    found = nvml(node, "result = [nvmlDeviceGetCount(), code(nvmlDeviceGetHandleByIndex, 1)]\n", strict=False)
    assert found == [3, 15]


def test_no_driver(bare_node: Node) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import pynvml; pynvml.nvmlInit()"],
        env=bare_node.environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "NVMLError_DriverNotLoaded" in done.stderr


def test_faults_that_monitoring_meets(node: Node) -> None:
    found = nvml(
        node,
        """
        lost, fine = handles
        inject("ecc", "--gpu", "1", "--value", "3")
        inject("nvml-error", "--value", "999", "--call", "nvmlDeviceGetPowerUsage", "--count", "1")
        errors = [code(nvmlDeviceGetPowerUsage, fine) for _ in range(2)]
        ecc = nvmlDeviceGetTotalEccErrors(fine, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC)
        inject("nvml-hang", "--value", "1", "--call", "nvmlDeviceGetName", "--count", "1")
        began = time.monotonic()
        nvmlDeviceGetName(fine)
        hung = time.monotonic() - began
        inject("gpu-lost", "--gpu", "0")
        gone = [code(nvmlDeviceGetName, h) for h in handles] + [code(nvmlDeviceGetHandleByIndex, 0)]
        inject("--clear")
        result = dict(errors=errors, ecc=ecc, hung=hung, gone=gone, back=code(nvmlDeviceGetName, lost))
        """,
    )
    assert found["errors"] == [999, 0]
    assert found["ecc"] == 3
    assert found["hung"] >= 1
    assert found["gone"] == [15, 0, 15]
    assert found["back"] == 0


@pytest.mark.parametrize("listed", [True, False])
def test_a_process_that_only_called_cuinit(bare_node: Node, listed: bool) -> None:
    node = bare_node.init("--init-only", "listed" if listed else "hidden")
    worker = node.worker(device=None, CUDA_VISIBLE_DEVICES="1")
    ask = """
        lists = [nvmlDeviceGetComputeRunningProcesses(handle) for handle in handles]
        result = [[[process.pid, process.usedGpuMemory] for process in found] for found in lists]
    """
    assert nvml(node, ask) == [[], [[worker.pid, 0]] if listed else []]
    worker.ask("context", 0)
    assert nvml(node, ask) == [[], [[worker.pid, CONTEXT]]]
