# SPDX-License-Identifier: GPL-2.0-or-later
"""The simulated cluster: `v100:36,p100:36` with `--gpus-per-node N`, or a TOML file: the description of the
site that `gandiva config slurm` reads, or this.

[[nodes]]
count = 4
gpu_model = "v100"
gpus = 8
switch = "s1"
cpus = 64
memory = "512GiB"
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints, ValidationError

from controller.errors import GandivaError
from controller.settings.base import ByteSize, Section
from controller.simulation.traces.base import MAX_GPUS
from controller.slurm.port import SlurmNode
from controller.slurm.simulated import idle_node
from controller.slurm_config.description import DescriptionError, Model, parse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

_ENTRY = re.compile(r"([a-z][a-z0-9]{0,31}):([0-9]{1,7})")

_WORDS = {"missing": "missing, and there is no default", "extra_forbidden": "no such key"}


class ClusterSpecError(GandivaError):
    """The description of the cluster makes no sense."""


class _Nodes(Section):
    count: Annotated[int, Field(ge=1, le=100_000)] = 1
    gpu_model: Model
    gpus: Annotated[int, Field(ge=1, le=1024)]
    switch: Annotated[str, StringConstraints(max_length=64)] = ""
    cpus: Annotated[int, Field(ge=1, le=100_000)] = 128
    memory: ByteSize = 2**40


class _File(Section):
    """What a simulation needs to know; a site's own description has `names` instead of `count`."""

    nodes: Annotated[list[_Nodes], Field(min_length=1, max_length=10_000)]


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Nodes in order."""

    nodes: tuple[SlurmNode, ...]

    @property
    def gpus(self) -> int:
        return sum(len(node.gpus) for node in self.nodes)

    def of_types(self, types: tuple[str, ...]) -> int:
        """GPUs of these types; of all types when none is named."""
        if not types:
            return self.gpus
        return sum(len(node.gpus) for node in self.nodes if node.gpus[0].model in types)

    @property
    def models(self) -> tuple[str, ...]:
        """GPU types, in order of appearance."""
        return tuple(dict.fromkeys(gpu.model for node in self.nodes for gpu in node.gpus))

    def counted(self, *, by_server: bool) -> ClusterSpec:
        """The same GPUs without places: a gang fits wherever enough GPUs of one type are free.

        One node for each type; of a single type one node for each GPU, which is quicker. `by_server`: for a
        policy that takes turns on servers, so that gangs need room on one.
        """
        if len(self.models) == 1 and not by_server:
            nodes = [(f"{self.models[0]}-{number}", self.models[0], 1) for number in range(1, self.gpus + 1)]
        else:
            nodes = [(model, model, self.of_types((model,))) for model in self.models]
        return ClusterSpec(tuple(idle_node(*node, "", 1 << 20, 1 << 60) for node in nodes))


def parse_cluster(text: str, gpus_per_node: int) -> ClusterSpec:
    """From the command line: entries `model:count`, or the name of a TOML file. Raises ClusterSpecError."""
    entries = text.split(",")
    if all(_ENTRY.fullmatch(entry) for entry in entries):
        if sum(int(entry.split(":")[1]) for entry in entries) > MAX_GPUS:
            raise ClusterSpecError(f"--cluster {text}: more than {MAX_GPUS:,} GPUs in all")
        nodes: list[SlurmNode] = []
        for entry in entries:
            model, count = entry.split(":")
            nodes += _group(len(nodes), model, int(count), gpus_per_node)
        if not nodes:
            raise ClusterSpecError(f"--cluster {text}: no GPUs at all")
        return ClusterSpec(tuple(nodes))
    path = Path(text)
    if path.suffix != ".toml" and not _is_file(path):
        raise ClusterSpecError(
            f"--cluster {text}: neither entries such as v100:36,k80:12 (type, number of GPUs) nor a TOML file"
        )
    return _read(path)


def _is_file(path: Path) -> bool:
    """(A pipe is as good as one.)"""
    try:
        return path.exists() and not path.is_dir()
    except (OSError, ValueError):  # no name that a file could have
        return False


def _group(first: int, model: str, count: int, gpus_per_node: int) -> list[SlurmNode]:
    sizes = [gpus_per_node] * (count // gpus_per_node)
    if count % gpus_per_node:
        sizes.append(count % gpus_per_node)
    return [idle_node(f"n{first + i + 1}", model, size, "", 128, 2**40) for i, size in enumerate(sizes)]


def _read(path: Path) -> ClusterSpec:
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
        if not values.keys().isdisjoint(("cluster", "partitions")):
            return _of_site(text, path)
        described = _File.model_validate(values)
    except OSError as error:
        raise ClusterSpecError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, e['loc']))}: {_WORDS.get(e['type'], e['msg']).removeprefix('Value error, ')}"
            for e in error.errors()
        ]
        keys = ", ".join(_Nodes.model_fields)
        raise ClusterSpecError(
            f"{path}: {'; '.join(problems[:5])} (keys of [[nodes]]: {keys}; a "
            "site's description has [cluster] and [[partitions]] too)"
        ) from None
    except DescriptionError as error:
        raise ClusterSpecError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise ClusterSpecError(f"{path}: not valid TOML: {error}") from error
    if sum(group.count * group.gpus for group in described.nodes) > MAX_GPUS:
        raise ClusterSpecError(f"{path}: more than {MAX_GPUS:,} GPUs in all")
    nodes: list[SlurmNode] = []
    for group in described.nodes:
        for _ in range(group.count):
            name = f"n{len(nodes) + 1}"
            nodes.append(idle_node(name, group.gpu_model, group.gpus, group.switch, group.cpus, group.memory))
    return ClusterSpec(tuple(nodes))


def _of_site(text: str, path: Path) -> ClusterSpec:
    """The nodes with GPUs of a description that Slurm's configuration is made from."""
    from controller.slurm import hostlist

    described = parse(text, str(path))
    nodes: list[SlurmNode] = []
    shards = described.cluster.oversubscription_depth
    for group in described.nodes:
        if group.gpu_model is not None:
            for name in hostlist.expand(group.names):
                memory_bytes = group.memory_mib << 20
                nodes.append(
                    idle_node(name, group.gpu_model, group.gpus, "", group.cpus, memory_bytes, shards)
                )
    return ClusterSpec(tuple(nodes))
