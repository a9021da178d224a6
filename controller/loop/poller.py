# SPDX-License-Identifier: GPL-2.0-or-later
"""Asking Slurm and the nodes, at the same time."""

import asyncio
from collections.abc import Mapping

from controller.cluster.port import ClusterNode, ClusterPort, ClusterView
from controller.nodes.port import NodePort
from controller.observe.node_cache import Sample


class Poller:
    """The two ports, and the addresses that the nodes were given."""

    def __init__(self, cluster: ClusterPort, nodes: NodePort) -> None:
        self._cluster, self._nodes = cluster, nodes
        self._reach: Mapping[str, str] = {}
        self._addresses: Mapping[str, str] = {}
        """Those that settings give."""
        self._unread: dict[str, Sample] = {}
        """What nodes answered while Slurm could not be observed: they need not say it again."""

    async def ask(
        self, known: Mapping[str, ClusterNode], addresses: Mapping[str, str], deadline_seconds: float
    ) -> tuple[ClusterView, Mapping[str, Sample]]:
        """A look at Slurm and at the nodes. Nodes that Slurm names for the first time are asked after it.

        Args:
            known: nodes of the looks before.
            addresses: of nodes whose address is not the one that Slurm knows.

        Raises:
            ClusterError: Slurm cannot be observed. Then no request to nodes is left under way.
        """
        asking = asyncio.create_task(self._nodes.observe(deadline_seconds), name="observe-nodes")
        try:
            view = await self._cluster.observe()
            await asking
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.wait((asking,))
            if not asking.cancelled() and asking.exception() is None:
                self._unread.update(asking.result())
        samples, self._unread = self._unread, {}
        new = [node for node in view.nodes if node.name not in known and node.name not in samples]
        if view.nodes or view.complete or addresses is not self._addresses:
            await self._set_nodes(view, known, addresses)
        if new:
            samples.update(await self._nodes.observe(deadline_seconds))
        return view, samples

    async def _set_nodes(
        self, view: ClusterView, known: Mapping[str, ClusterNode], addresses: Mapping[str, str]
    ) -> None:
        nodes = {node.name: node for node in view.nodes}
        if not view.complete:
            nodes = {**known, **nodes}
        reach = {name: addresses.get(name, node.address or name) for name, node in nodes.items()}
        if reach != self._reach:
            await self._nodes.set_nodes(reach)
            self._reach = reach
        self._addresses = addresses
