# SPDX-License-Identifier: GPL-2.0-or-later
"""The simulated cluster: `v100:36,p100:36` with `--gpus-per-node N`, or a TOML file (`cluster_file`)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from controller.cluster.port import ClusterNode
from controller.cluster.simulated import idle_node, in_one_partition
from controller.errors import GandivaError
from controller.model import GPU_MODEL
from controller.simulation.traces.base import MAX_GPUS

_ENTRY = rf"({GPU_MODEL}):([0-9]{{1,7}})"


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Nodes in order."""

    nodes: tuple[ClusterNode, ...]

    @property
    def gpus(self) -> int:
        return sum(len(node.gpus) for node in self.nodes)

    def of_types(self, types: tuple[str, ...], partition: str = "") -> int:
        """GPUs of these types, of all types when none is named, in a partition, or in all."""
        if not types and not partition:
            return self.gpus
        known = (node for node in self.nodes if not types or node.gpus[0].model in types)
        return sum(len(n.gpus) for n in known if in_one_partition(partition, [n]))

    @property
    def models(self) -> tuple[str, ...]:
        """GPU types, in order of appearance."""
        return tuple(dict.fromkeys(gpu.model for node in self.nodes for gpu in node.gpus))

    def counted(self, *, by_node: bool) -> ClusterSpec:
        """The same GPUs without places and partitions: a gang fits wherever enough GPUs of one type are free.

        One node for each type; of a single type one node for each GPU, which is quicker. `by_node`: for a
        policy that takes turns on nodes, so that gangs need room on one.
        """
        if len(self.models) == 1 and not by_node:
            nodes = [(f"{self.models[0]}-{number}", self.models[0], 1) for number in range(1, self.gpus + 1)]
        else:
            nodes = [(model, model, self.of_types((model,))) for model in self.models]
        made = (idle_node(*node, "", 1 << 20, 1 << 60) for node in nodes)
        return ClusterSpec(tuple(replace(node, partitions=None) for node in made))


def parse_cluster(text: str, gpus_per_node: int) -> ClusterSpec:
    """From the command line: entries `model:count`, or the name of a TOML file. Raises GandivaError."""
    if re.fullmatch(f"{_ENTRY}(,{_ENTRY})*", text):
        entries = [(model, int(count)) for model, count in re.findall(_ENTRY, text)]
        if sum(count for _, count in entries) > MAX_GPUS:
            raise GandivaError(f"--cluster {text}: more than {MAX_GPUS:,} GPUs in all")
        nodes: list[ClusterNode] = []
        for model, count in entries:
            for first in range(0, count, gpus_per_node):
                size = min(gpus_per_node, count - first)
                nodes.append(idle_node(f"n{len(nodes) + 1}", model, size, "", 128, 2**40))
        if not nodes:
            raise GandivaError(f"--cluster {text}: no GPUs at all")
        return ClusterSpec(tuple(nodes))
    path = Path(text)
    if path.suffix != ".toml" and (not os.access(path, os.F_OK) or path.is_dir()):
        raise GandivaError(
            f"--cluster {text}: neither entries such as v100:36,k80:12 (type, number of GPUs) nor a TOML file"
        )
    from controller.simulation.cluster_file import read_nodes

    return ClusterSpec(tuple(read_nodes(path)))
