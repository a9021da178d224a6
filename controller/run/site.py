# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a study runs: on this machine, or in the Slurm allocation around it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from controller.cluster.allocation import Allocation, allocation
from controller.cluster.children import Children
from controller.cluster.local import Launcher
from controller.cluster.steps import Steps, for_srun, srun
from controller.errors import GandivaError
from controller.model import GpuId
from controller.nodes.child import ChildTransport
from controller.nodes.connection import Transport
from controller.nodes.protocol import GpuInfo
from controller.run.machine import Machine, machine, machines, node_name, run_dir
from controller.run.study import Study

AGENT_STEP = "gandiva-agent"


class Site(Protocol):
    """What is different between the two."""

    @property
    def run_dir(self) -> Path:
        """On each node: of control blocks; here also of the API's socket."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """As of `NodePort.set_nodes`."""

    agent_seconds: float
    """An agent that does not start is started again for so long: on a node that has just come back, and in a
    job that has just begun, Slurm may refuse a step."""

    def transport(self, log: Path | None) -> Transport:
        """Starts the agents, whose standard error is appended to `log`."""

    def machine(self, found: Mapping[str, Sequence[GpuInfo]]) -> Machine:
        """The nodes, of whose GPUs the agents have told. Raises GandivaError: there is nothing to run on."""

    def launcher(self, folder: Path, uuids: Mapping[GpuId, str]) -> Launcher:
        """Starts trials, whose files are in this folder."""


def site(study: Study, folder: Path, gpus: Sequence[str], environ: Mapping[str, str]) -> Site:
    """`folder`: the study's. `gpus`: the wanted ones, where they are to be chosen. Raises GandivaError."""
    found = allocation(environ)
    if found is None or study.launch == "child":
        return _Here(study, folder, gpus, environ)
    if gpus:
        raise GandivaError(
            '--gpus is for one machine: in an allocation give [study] launch = "child" with it'
        )
    return _InAllocation(study, folder, found, environ)


class _Here:
    agent_seconds = 0.0

    def __init__(self, study: Study, folder: Path, gpus: Sequence[str], environ: Mapping[str, str]) -> None:
        self.run_dir = run_dir(folder)
        self._agent = _agent(study, self.run_dir)
        self.addresses = {node_name(): node_name()}
        self._gpus, self._environ = gpus, environ

    def transport(self, log: Path | None) -> Transport:
        return ChildTransport(self._agent, self._environ, log)

    def machine(self, found: Mapping[str, Sequence[GpuInfo]]) -> Machine:
        return machine(found[node_name()], self._gpus, self._environ)

    def launcher(self, folder: Path, uuids: Mapping[GpuId, str]) -> Launcher:
        return Children(folder, self.run_dir, uuids, self._environ)


class _InAllocation:
    agent_seconds = 30.0

    def __init__(self, study: Study, folder: Path, found: Allocation, environ: Mapping[str, str]) -> None:
        self.run_dir = run_dir(folder)
        self._agent = _agent(study, self.run_dir)
        self.addresses = {node: node for node in found.nodes}
        self._allocation, self._environ = found, environ

    def transport(self, log: Path | None) -> Transport:
        def before(node: str) -> list[str]:
            return srun((node,), AGENT_STEP, "--mem=0", "--cpus-per-task=1")

        return ChildTransport(self._agent, for_srun(self._environ), log, before)

    def machine(self, found: Mapping[str, Sequence[GpuInfo]]) -> Machine:
        return machines(found, self._allocation.nodes)

    def launcher(self, folder: Path, uuids: Mapping[GpuId, str]) -> Launcher:
        return Steps(folder, self.run_dir, uuids, self._environ)


def _agent(study: Study, folder: Path) -> tuple[str, ...]:
    """Its arguments."""
    most = study.host_memory_bytes
    budget = () if most is None else ("--host-memory", str(most))
    return ("--trials", "--run-dir", str(folder), "--gpustat-dir", "", *budget)
