# SPDX-License-Identifier: GPL-2.0-or-later
"""The simulated cluster in a TOML file: the description of the site that `gandiva config slurm` reads, or
this.

[[nodes]]
count = 4
gpu_model = "v100"
gpus = 8
switch = "s1"
cpus = 64
memory = "512GiB"
partitions = ["old"]
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints, ValidationError

from controller.cluster import hostlist
from controller.cluster.port import ClusterNode
from controller.cluster.simulated import idle_node
from controller.cluster.simulated_job import PARTITION
from controller.errors import GandivaError
from controller.settings.base import ByteSize, Section, parse_toml, read_file, wrong
from controller.simulation.traces.base import MAX_GPUS
from controller.slurm_config.description import MAX_FILE_BYTES, DescriptionError, Model, parse

_WORDS = {"missing": "missing, and there is no default", "extra_forbidden": "no such key"}
Partition = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class _Nodes(Section):
    count: Annotated[int, Field(ge=1, le=100_000)] = 1
    gpu_model: Model
    gpus: Annotated[int, Field(ge=1, le=1024)]
    switch: Annotated[str, StringConstraints(max_length=64)] = ""
    cpus: Annotated[int, Field(ge=1, le=100_000)] = 128
    memory: ByteSize = 2**40
    partitions: list[Partition] = Field([PARTITION], min_length=1, max_length=100)


class _File(Section):
    """What a simulation needs to know; a site's own description has `names` instead of `count`."""

    nodes: Annotated[list[_Nodes], Field(min_length=1, max_length=10_000)]


def read_nodes(path: Path) -> list[ClusterNode]:
    """In order. Raises GandivaError: the file cannot be read, or makes no sense."""
    try:
        text = read_file(path, MAX_FILE_BYTES, GandivaError).decode()
        values = parse_toml(text, lambda problem: GandivaError(f"{path}: {problem}"))
        if not values.keys().isdisjoint(("cluster", "partitions")):
            return _of_site(text, path)
        described = _File.model_validate(values)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, e['loc']))}: {_WORDS.get(e['type']) or wrong(e)}" for e in error.errors()
        ]
        keys = ", ".join(_Nodes.model_fields)
        raise GandivaError(
            f"{path}: {'; '.join(problems[:5])} (keys of [[nodes]]: {keys}; a "
            "site's description has [cluster] and [[partitions]] too)"
        ) from None
    except DescriptionError as error:
        raise GandivaError(str(error)) from None
    except ValueError as error:
        raise GandivaError(f"{path}: not valid TOML: {error}") from error
    if sum(group.count * group.gpus for group in described.nodes) > MAX_GPUS:
        raise GandivaError(f"{path}: more than {MAX_GPUS:,} GPUs in all")
    nodes: list[ClusterNode] = []
    for group in described.nodes:
        for _ in range(group.count):
            name = f"n{len(nodes) + 1}"
            node = idle_node(name, group.gpu_model, group.gpus, group.switch, group.cpus, group.memory)
            nodes.append(replace(node, partitions=dict.fromkeys(group.partitions, "")))
    return nodes


def _of_site(text: str, path: Path) -> list[ClusterNode]:
    """The nodes with GPUs of a description that Slurm's configuration is made from."""
    described = parse(text, str(path))
    nodes: list[ClusterNode] = []
    shards = described.cluster.oversubscription_depth
    members = [(each.name, frozenset(described.members(each))) for each in described.partitions]
    for group in described.nodes:
        if group.gpu_model is not None:
            for name in hostlist.expand(group.names):
                memory_bytes = group.job_memory_mib << 20
                node = idle_node(name, group.gpu_model, group.gpus, "", group.cpus, memory_bytes, shards)
                own = [partition for partition, names in members if name in names]
                nodes.append(replace(node, partitions=dict.fromkeys(own, "")))
    return nodes
