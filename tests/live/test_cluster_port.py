# SPDX-License-Identifier: GPL-2.0-or-later
"""The contract of the cluster port on a real Slurm, for both of its real adapters.

The port runs on the host of slurmctld as the user `gandiva`, as the controller does; alice submits.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from container.cluster import MiniCluster
from controller.model import GpuId, GpuSet, JobId
from controller.slurm.gres import indices_of
from controller.slurm.hostlist import expand
from tests.contract import port_server
from tests.contract.cluster_port_contract import RealSlurmContract
from tests.contract.remote_port import RemotePort

DEADLINE_SECONDS = 5.0
SERVER = "/opt/gandiva/tests/port_server.py"
SERVER_SOURCE = Path(port_server.__file__).read_text()
PYTHON = "/opt/gandiva/venv/bin/python"


class LiveWorld:
    """A mini cluster without a controller."""

    def __init__(self, cluster: MiniCluster, port: RemotePort) -> None:
        self.cluster = cluster
        self.port = port
        self.nodes = cluster.spec.node_names
        self.deadline_seconds = DEADLINE_SECONDS

    async def submit(self, *options: str, gpus_per_node: int = 1, nodes: int = 1) -> JobId:
        shape = [f"--gres=gpu:{gpus_per_node}"] if gpus_per_node else []
        shape += [f"--nodes={nodes}"] if nodes else []
        return await self._sbatch("exec sleep 600", "--gandiva", *shape, *options)

    async def submit_short(self, exit_code: int) -> JobId:
        return await self._sbatch(f"exit {exit_code}", "--gandiva", "--gres=gpu:1")

    async def submit_ordinary(self, gpus: int) -> JobId:
        return await self._sbatch("exec sleep 600", f"--gres=gpu:{gpus}", "--nodes=1")

    async def _sbatch(self, script: str, *options: str) -> JobId:
        # Little memory unless said otherwise, so that jobs can share a small node.
        memory = [] if any(option.startswith("--mem") for option in options) else ["--mem=50"]
        command = ["sbatch", "--parsable", "--output=/dev/null", *memory, *options, "--wrap", script]
        return JobId(int((await self._run(command, "alice")).strip().split(";")[0]))

    async def allocated(self, job_id: JobId) -> GpuSet:
        text = await self.operator("scontrol", "--details", "show", "job", str(job_id))
        # The id of an array stands for all of its tasks.
        (job,) = (part for part in text.split("\n\n") if part.startswith(f"JobId={job_id} "))
        return frozenset(
            GpuId(node, index)
            for nodes, gres in re.findall(r"^\s+Nodes=(\S+) .*GRES=(\S+)$", job, re.MULTILINE)
            for node in expand(nodes)
            for index in indices_of("shard", gres)
        )

    async def user(self, *command: str) -> str:
        return await self._run(list(command), "alice")

    async def operator(self, *command: str) -> str:
        return await self._run(list(command), "root")

    async def frozen(self, job_id: JobId) -> bool:
        # Both versions of control groups; SIGSTOP shows as T in the process state.
        script = (
            "for p in /proc/[0-9]*; do grep -qs job_$1/ $p/cgroup || continue; "
            "c=$(grep -s -o '/slurm.*job_.*' $p/cgroup | head -1); "
            "cat /sys/fs/cgroup/freezer$c/freezer.state 2>/dev/null; "
            "grep -s -h frozen.1 /sys/fs/cgroup$c/cgroup.events; grep -s -h '^State' $p/status; done; true"
        )
        command = ["bash", "-c", script, "frozen", str(job_id)]
        for _ in range(50):
            done = await asyncio.to_thread(self.cluster.exec, self.nodes[0], command)
            if "State" in done.stdout:
                break
            # Slurm says RUNNING, and takes a suspend, before the node has begun it.
            await asyncio.sleep(0.1)
        assert "State" in done.stdout, f"job {job_id} has no process on {self.nodes[0]}"
        return re.search(r"FROZEN|FREEZING|frozen 1|State:\s+T", done.stdout) is not None

    async def hang(self) -> None:
        await self._signal(signal.SIGSTOP)

    async def recover(self) -> None:
        await self._signal(signal.SIGCONT)

    async def _signal(self, number: signal.Signals) -> None:
        await asyncio.to_thread(self.cluster.service("ctl", "slurmctld").kill, number)

    async def _run(self, command: list[str], user: str) -> str:
        done = await asyncio.to_thread(self.cluster.exec, "login", command, user=user, check=False)
        assert done.exit_code == 0, f"{user}: {command}: {done.stderr or done.stdout}"
        return done.stdout


@pytest.fixture(params=["pyslurm", "command"])
async def world(request: pytest.FixtureRequest, cluster: MiniCluster) -> AsyncIterator[LiveWorld]:
    if request.param == "pyslurm" and not has_pyslurm(cluster):
        pytest.skip("this image has no pyslurm for its Slurm")
    cluster.stop_controller()
    cluster.write_file("ctl", SERVER, SERVER_SOURCE)
    port = await RemotePort.start(
        *("docker", "exec", "-i", "-u", "gandiva", "-w", "/", f"gandiva-{cluster.name}-ctl"),
        *(PYTHON, SERVER, request.param, str(DEADLINE_SECONDS)),
    )
    try:
        yield LiveWorld(cluster, port)
    finally:
        await port.close()


def has_pyslurm(cluster: MiniCluster) -> bool:
    """Whether the cluster's Slurm is one that pyslurm can talk to."""
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('pyslurm') is None)"
    return cluster.exec("ctl", [PYTHON, "-c", code], check=False).exit_code == 0


class TestClusterPort(RealSlurmContract):
    """Both adapters keep the contract."""
