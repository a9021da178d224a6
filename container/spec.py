# SPDX-License-Identifier: GPL-2.0-or-later
"""The description of a mini cluster."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

Role = Literal["login", "ctl", "db", "node"]
Slug = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]

_HOST_LIST: Final = re.compile(r"([a-z][a-z0-9-]*?)(?:(\d+)|\[(\d+)-(\d+)\])")
_FIRST_PORT: Final = 17001
_ONE_PER_CONTAINER: Final = 1


def expand(names: str) -> tuple[str, ...]:
    """The names in a simple host list.

    Raises:
        ValueError: it is neither `n1` nor `n[1-8]`.
    """
    match = _HOST_LIST.fullmatch(names)
    if match is None:
        raise ValueError(f"{names!r}: expected a host list such as n1 or n[1-8]")
    prefix, single, first, last = match.groups()
    if single is not None:
        return (names,)
    return tuple(f"{prefix}{number:0{len(first)}}" for number in range(int(first), int(last) + 1))


@dataclass(frozen=True, slots=True)
class MockGpu:
    """What NVML says about a GPU, and how fast it is against an A100."""

    nvml_name: str
    memory_mib: int
    speed: float


_MODELS: Final[Mapping[str, MockGpu]] = {
    "a100": MockGpu("NVIDIA A100-SXM4-80GB", 80 * 1024, 1.0),
    "h100": MockGpu("NVIDIA H100 80GB HBM3", 80 * 1024, 2.0),
    "v100": MockGpu("Tesla V100-SXM2-32GB", 32 * 1024, 0.4),
    "p100": MockGpu("Tesla P100-PCIE-16GB", 16 * 1024, 0.2),
    "k80": MockGpu("Tesla K80", 11441, 0.1),
}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class User(_Part):
    """An ordinary user; the home folder is on the shared volume."""

    name: Slug
    uid: Annotated[int, Field(ge=1000, le=60000)]
    account: Slug


class NodeGroup(_Part):
    """GPU nodes that are alike."""

    names: str = "n[1-2]"
    """`n1` or `n[1-2]`."""
    cpus: Annotated[int, Field(ge=1)] = 16
    """What Slurm believes; more than there are is fine."""
    memory_mib: Annotated[int, Field(ge=1)] = 8192
    gpu_model: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$")] = "a100"
    gpus: Annotated[int, Field(ge=1, le=16)] = 4
    gpu_memory_mib: Annotated[int, Field(ge=1)] | None = None
    """Memory of a mock GPU; None: as that model has it."""
    gpu_speed: Annotated[float, Field(gt=0)] | None = None
    """Speed of a mock GPU, an A100 being 1; None: as that model has it."""
    gpu_copy_rate: Annotated[str, Field(pattern=r"^(0|\d+(\.\d+)?[MG]iB)$")] = "12GiB"
    """Between host and GPU, per second: about half of what PCIe 4 allows. 0: copies take no time."""
    gpu_device_map: Literal["strict", "lenient"] = "strict"
    """Whether the driver refuses to move a process that sees only some of the GPUs (`mockgpu --help`)."""
    gpu_init_only: Literal["listed", "hidden"] = "listed"
    """Whether NVML lists processes that only called cuInit."""
    nodes_per_container: Annotated[int, Field(ge=1, le=64)] = _ONE_PER_CONTAINER
    """More than 1: several slurmd share a container (and its device files), for big clusters."""

    @model_validator(mode="after")
    def _expands(self) -> NodeGroup:
        expand(self.names)
        return self

    @property
    def gpu(self) -> MockGpu:
        """What the mock GPUs are."""
        model = _MODELS.get(self.gpu_model, MockGpu(f"NVIDIA {self.gpu_model.upper()}", 16 * 1024, 1.0))
        return MockGpu(
            model.nvml_name, self.gpu_memory_mib or model.memory_mib, self.gpu_speed or model.speed
        )


class Partition(_Part):
    """A Slurm partition."""

    name: Slug
    nodes: str
    default: bool = False
    options: Mapping[str, str] = {}


class ClusterSpec(_Part):
    """Everything that can be chosen about a mini cluster; the default is two nodes with four GPUs each."""

    name: Slug = "dev"
    """Of the mini cluster: containers, network and volumes are named and labelled after it."""
    slurm_name: Slug = "mini"
    release: Slug = "forky"
    """Debian release of the image: forky has Slurm 26.05, trixie 24.11."""
    install: Literal["sources", "packages"] = "sources"
    """How Gandiva gets onto the hosts: from this checkout, or as a site would, from its Debian packages."""
    torch: bool = False
    """Whether the hosts have Debian's PyTorch, built for the CPU. Not with `install = "packages"`."""
    nodes: tuple[NodeGroup, ...] = (NodeGroup(),)
    partitions: tuple[Partition, ...] = ()
    """None given: one, `gpu`, with all nodes."""
    users: tuple[User, ...] = (
        User(name="alice", uid=2001, account="vision"),
        User(name="bob", uid=2002, account="vision"),
        User(name="carol", uid=2003, account="speech"),
    )
    oversubscription_depth: Annotated[int, Field(ge=2, le=1024)] = 16
    gandiva_default: Literal["on", "off"] = "off"
    """Whether GPU jobs without any --gandiva flag are time-sliced."""
    slurm_conf: tuple[str, ...] = ()
    """Lines at the end of slurm.conf; they win."""
    controller: Mapping[str, Any] = {}
    """Settings of the Gandiva controller, as in gandiva.toml."""

    @model_validator(mode="after")
    def _nodes_differ(self) -> ClusterSpec:
        names = self.node_names
        if len(set(names)) != len(names):
            raise ValueError("nodes: a name is in two groups")
        return self

    @model_validator(mode="after")
    def _torch_is_with_sources(self) -> ClusterSpec:
        if self.torch and self.install == "packages":
            raise ValueError("torch: only with install = sources")
        return self

    @property
    def node_names(self) -> tuple[str, ...]:
        """All Slurm nodes, in order."""
        return tuple(name for group in self.nodes for name in expand(group.names))

    @property
    def effective_partitions(self) -> tuple[Partition, ...]:
        """The partitions, with the default one where none is described."""
        every = ",".join(group.names for group in self.nodes)
        return self.partitions or (Partition(name="gpu", nodes=every, default=True),)

    @property
    def hosts(self) -> tuple[Host, ...]:
        """All containers, servers first."""
        servers = (Host("db", "db"), Host("ctl", "ctl"), Host("login", "login"))
        hosts: list[Host] = []
        for group in self.nodes:
            names = expand(group.names)
            size = group.nodes_per_container
            for start in range(0, len(names), size):
                members = names[start : start + size]
                name = members[0] if size == _ONE_PER_CONTAINER else f"gpuhost{len(hosts) + 1}"
                hosts.append(Host(name, "node", members, group))
        return (*servers, *hosts)

    def host_of(self, name: str) -> Host:
        """The container of a host or node.

        Raises:
            KeyError: there is none of that name.
        """
        for host in self.hosts:
            if name == host.name or name in host.nodes:
                return host
        raise KeyError(f"no host {name!r} in the cluster: {', '.join(host.name for host in self.hosts)}")


@dataclass(frozen=True, slots=True)
class Host:
    """One container."""

    name: str
    role: Role
    nodes: tuple[str, ...] = ()
    group: NodeGroup | None = None

    @property
    def shared(self) -> bool:
        """Several slurmd live here."""
        return self.group is not None and self.group.nodes_per_container > _ONE_PER_CONTAINER

    @property
    def ports(self) -> tuple[int, ...]:
        """Ports of the slurmd here, when there are several."""
        return tuple(range(_FIRST_PORT, _FIRST_PORT + len(self.nodes))) if self.shared else ()


def load(path: Path) -> ClusterSpec:
    """Read a specification from TOML; the keys are the fields of :class:`ClusterSpec`."""
    with path.open("rb") as file:
        return ClusterSpec.model_validate(tomllib.load(file))
