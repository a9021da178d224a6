# SPDX-License-Identifier: GPL-2.0-or-later
"""What answers with differences amount to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from controller.cluster.port import ClusterJob, ClusterNode, ClusterPort, ClusterView
from controller.errors import NodeError
from controller.model import GpuSet, JobId, Share
from controller.nodes.port import NodePort, NodeSample
from tests.contract.passing_on import PassingOn


class AddedUp(PassingOn):
    """A cluster port whose views are complete, whether those of the port behind it are or not."""

    def __init__(self, port: ClusterPort) -> None:
        self._port = port
        self.last: ClusterView | None = None
        """What the port behind it answered last."""
        self._jobs: dict[JobId, ClusterJob] = {}
        self._nodes: dict[str, ClusterNode] = {}

    async def observe(self) -> ClusterView:
        self.last = view = await self._port.observe()
        if view.complete:
            self._jobs, self._nodes = {}, {}
        self._jobs = {i: job for i, job in self._jobs.items() if i not in view.gone}
        self._jobs.update({job.id: job for job in view.jobs})
        self._nodes.update({node.name: node for node in view.nodes})
        jobs, nodes = tuple(self._jobs.values()), tuple(self._nodes.values())
        return replace(view, jobs=jobs, nodes=nodes, complete=True, gone=frozenset())

    async def shares(self) -> tuple[Share, ...]:
        return await self._port.shares()

    async def reservations(self) -> Mapping[JobId, GpuSet]:
        return await self._port.reservations()

    async def close(self) -> None:
        await self._port.close()

    async def _call(self, method: str, job_id: JobId, *arguments: Any) -> Any:
        return await getattr(self._port, method)(job_id, *arguments)


class Samples:
    """The last of each node, whether a node port leaves some out or not."""

    def __init__(self, port: NodePort) -> None:
        self._port = port
        self._known: dict[str, NodeSample | NodeError] = {}

    async def look(self) -> Mapping[str, NodeSample | NodeError]:
        """Of all nodes."""
        self._known.update(await self._port.observe(3.0))
        return self._known
