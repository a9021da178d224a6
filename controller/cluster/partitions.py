# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm's partitions: which nodes they have, and why Gandiva jobs of one do not start there.

Read from `scontrol show partition --oneliner`: its JSON and pyslurm leave the Exclusive… options out.
"""

import re
from collections.abc import Mapping

from controller.cluster.records import host_names
from controller.errors import ClusterUnavailable
from controller.model import value

SCONTROL = ("scontrol", "--all", "--oneliner", "show", "partition")

_STARTS_JOBS = frozenset({"UP", "DRAIN"})
"""A partition that drains takes no submissions; the jobs that it has still start."""
_FIELD = re.compile(r"(?:^|\s)([A-Za-z]+)=")


@value
class Partition:
    name: str
    nodes: tuple[str, ...]
    obstacle: str
    """Why no Gandiva job of it starts, in words; empty: they do."""
    by_option: bool
    """The obstacle is an option of slurm.conf, not a state."""


def parse_partitions(text: str, what: str) -> tuple[Partition, ...]:
    """What scontrol printed. Raises ClusterUnavailable when it makes no sense."""
    found = [_partition(line) for line in text.splitlines() if line.startswith("PartitionName=")]
    if not found:
        raise ClusterUnavailable(f"{what}: the answer has no partition")
    return tuple(found)


def by_node(partitions: tuple[Partition, ...]) -> Mapping[str, Mapping[str, str]]:
    """For each node its partitions, with the obstacle of each."""
    found: dict[str, dict[str, str]] = {}
    for partition in partitions:
        for node in partition.nodes:
            found.setdefault(node, {})[partition.name] = partition.obstacle
    return found


def _partition(line: str) -> Partition:
    parts = _FIELD.split(line)
    fields = {key: value.strip() for key, value in zip(parts[1::2], parts[2::2], strict=True)}
    name, state, nodes = fields["PartitionName"], fields.get("State", "UP"), fields.get("Nodes", "")
    options = [f"{key}={said}" for key, said in fields.items() if _is_unsound(key, said)]
    obstacle = f"partition {name} has {', '.join(options)}" if options else ""
    if not options and state not in _STARTS_JOBS:
        obstacle = f"partition {name} is {state}"
    return Partition(name, () if nodes == "(null)" else host_names(nodes), obstacle, bool(options))


def _is_unsound(key: str, said: str) -> bool:
    """Whether Slurm gives jobs there more than they ask for, or keeps others from their nodes, so that the
    books of the GPUs would be wrong. `FORCE:1` is one job on each core; `YES` is for jobs that ask for it."""
    if key == "OverSubscribe":
        return said == "EXCLUSIVE" or (said.startswith("FORCE") and said != "FORCE:1")
    return key.startswith("Exclusive") and said != "NO"
