# SPDX-License-Identifier: GPL-2.0-or-later
"""The cluster description: what `gandiva config slurm` reads (docs/interfaces.md, section 6)."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, BaseModel, Field, model_validator

from controller.cluster import hostlist
from controller.cluster.gres import Gres, parse_gres, type_id
from controller.errors import GandivaError
from controller.model import GPU_MODEL, MAX_WEIGHT
from controller.settings.base import Section, matching, parse_toml, read_file, wrong

MAX_FILE_BYTES = 1 << 20
_USER_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


class SlurmConfigError(GandivaError):
    """Slurm's configuration cannot be made."""


class DescriptionError(SlurmConfigError):
    """The cluster description cannot be used. `problems`: one line for each wrong key: where, what value,
    what is allowed."""

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{source}: {problem}" for problem in self.problems))


HostList = Annotated[str, AfterValidator(hostlist.checked)]
Model = Annotated[
    str,
    matching(GPU_MODEL, "must be letters, digits and ._-, none of .- first, such as a100 or Tesla-K80", 64),
]
"""As the site's GRES types are called. Those of single GPUs are made of it: a100_0, a100_1, …"""
HostName = Annotated[str, matching(r"[A-Za-z0-9][A-Za-z0-9.-]*", "must be a host name", 253)]
Feature = Annotated[str, matching(r"[A-Za-z0-9_.-]+", "must be letters, digits and _.-", 64)]
Name = Annotated[str, matching(r"[A-Za-z0-9_-]+", "must be letters, digits and _-", 64)]
ConfigKey = Annotated[str, matching(r"[A-Za-z]+", "must be letters, as Slurm's keys are", 64)]
ConfigValue = Annotated[str, matching(r"[^\s#]+", "must be a value without blanks and #", 1024)]
"""A value on a line of slurm.conf, which a blank or a # ends."""
_IN_DEV = "must be a file in /dev that ends in %d, such as /dev/nvidia%d"
_DEVICE = matching(r"/dev/[A-Za-z0-9/_-]*%d", _IN_DEV, 256)
_PORTS = matching(r"[0-9]+|\[[0-9,-]+\]", "must be a port, or several such as [17001-17004]", 65536)
_MOUNTPOINT = matching(r"/[A-Za-z0-9/_.-]+", "must be an absolute path of letters, digits and /_.-", 4096)


def _without(*keys: str) -> AfterValidator:
    """Options of a line, without those that other keys of the description make. Slurm ignores their case."""
    ours = {key.lower() for key in keys}

    def check(options: Mapping[str, str]) -> Mapping[str, str]:
        if own := next((key for key in options if key.lower() in ours), None):
            raise ValueError(f"{own} has a key of its own here")
        if len({key.lower() for key in options}) < len(options):
            raise ValueError("a key is there twice, in another case")
        return options

    return AfterValidator(check)


def _user(value: object) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32 - 2:
        return value
    if isinstance(value, str) and _USER_NAME.fullmatch(value):
        return value
    raise ValueError("expected a user's name or number")


NODE_KEYS: Mapping[str, str] = {
    "names": "NodeName",
    "host": "NodeHostname",
    "address": "NodeAddr",
    "ports": "Port",
    "cpus": "CPUs",
    "sockets": "Sockets",
    "cores_per_socket": "CoresPerSocket",
    "threads_per_core": "ThreadsPerCore",
    "memory_mib": "RealMemory",
    "mem_spec_limit": "MemSpecLimit",
    "core_spec_count": "CoreSpecCount",
    "tmp_disk": "TmpDisk",
    "weight": "Weight",
    "state": "State",
}
"""Keys of a `[[nodes]]` table that are keys of Slurm's NodeName line, in the order of that."""

Weight = Annotated[float, Field(ge=0.1, le=MAX_WEIGHT, strict=False)]
User = Annotated[int | str, pydantic.PlainValidator(_user)]
"""A user, by name or number."""


class _Table(Section):
    @model_validator(mode="after")
    def _agree(self) -> "_Table":
        if problem := next(iter(self._problems()), None):
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterable[str]:
        """What its keys say against each other."""
        return ()


class Cluster(_Table):
    """`[cluster]`: what holds for all nodes."""

    name: Name
    controller_host: HostName | None = None
    """Host of slurmctld. Left out: the fragment has no ClusterName, no SlurmctldHost (a site has its own)."""
    database_host: HostName | None = None
    """Host of slurmdbd. Left out: the fragment sets up no accounting."""
    slurm_user: User = "slurm"
    """Slurm's own user (SlurmUser in slurm.conf), by name or number."""
    oversubscription_depth: Annotated[int, Field(ge=2, le=1024)] = 16
    """How many time-sliced jobs may be bound to one GPU at once (shards per GPU)."""
    default_memory_mib_per_cpu: Annotated[int, Field(ge=1)] | None = None
    """Memory of a job that requests none. Left out: the least that a node has for each CPU. Without a default
    Slurm allocates a whole node's memory to such a job, and no other job can share its GPUs."""
    suspend_grace_seconds: Annotated[int, Field(ge=0, le=60)] = 2
    """Slurm's time between SIGTSTP and the freezing of a suspended step."""


class Nodes(_Table):
    """One `[[nodes]]` table: nodes that are alike."""

    names: HostList
    cpus: Annotated[int, Field(ge=1, le=65_536)]
    memory_mib: Annotated[int, Field(ge=1)]
    gpu_model: Model | None = None
    gpus: Annotated[int, Field(ge=0, le=256)] = 0
    gpu_device: Annotated[str, _DEVICE] = "/dev/nvidia%d"
    """Device file of a GPU; %d is its index on the node."""
    sockets: Annotated[int, Field(ge=1)] | None = None
    cores_per_socket: Annotated[int, Field(ge=1)] | None = None
    threads_per_core: Annotated[int, Field(ge=1)] | None = None
    features: Sequence[Feature] = ()
    gres: ConfigValue | None = None
    """Further GRES, as on Slurm's NodeName line: `localtmp:3000`. Those with device files need lines of the
    site's own in gres.conf."""
    weight: Annotated[int, Field(ge=0)] | None = None
    tmp_disk: Annotated[int, Field(ge=0)] | None = None
    mem_spec_limit: Annotated[int, Field(ge=0)] | None = None
    """MiB that no job gets."""
    core_spec_count: Annotated[int, Field(ge=0)] | None = None
    state: Literal["CLOUD", "DOWN", "DRAIN", "EXTERNAL", "FAIL", "FAILING", "FUTURE", "UNKNOWN"] | None = None
    options: Annotated[
        Mapping[ConfigKey, ConfigValue], _without(*NODE_KEYS.values(), "Gres", "Feature", "Features")
    ] = {}
    """Further keys of Slurm's NodeName line."""
    host: HostList | None = None
    """NodeHostname, where it differs from the names (several slurmd on one host)."""
    address: HostList | None = None
    ports: Annotated[str, _PORTS] | None = None

    def _problems(self) -> Iterable[str]:
        if (self.gpu_model is None) == bool(self.gpus):
            yield f"gpu_model is {self.gpu_model!r} but gpus is {self.gpus}: give both, or neither"
        others = {item.name for item in self.others}
        if (self.gres and not others) or (self.gpus and others & {"gpu", "shard", "mps"}):
            yield f"gres is {self.gres!r}: expected others than those that gpu_model and gpus make"
        if (reserved := self.mem_spec_limit or 0) >= self.memory_mib:
            yield f"mem_spec_limit is {reserved} of {self.memory_mib} MiB: nothing is left for jobs"
        count = len(hostlist.expand(self.names))
        for key, value in (("address", self.address), ("ports", self.ports)):
            given = len(hostlist.expand(value)) if value is not None else 1
            if given not in (1, count):
                yield f"{key} {value!r} gives {given} values for {count} nodes: expected 1 or {count}"
        if count > 1 and self.ports is None and self.host is not None:
            yield 'several nodes on one host need ports, such as "[17001-17004]"'

    @property
    def others(self) -> tuple[Gres, ...]:
        """The further GRES. Raises ValueError."""
        return parse_gres(self.gres or "")

    @property
    def job_memory_mib(self) -> int:
        """What jobs can get."""
        return max(1, self.memory_mib - (self.mem_spec_limit or 0))


class NodeSet(_Table):
    """One `[[node_sets]]` table: a name for nodes, or for those with a feature."""

    name: Name
    nodes: HostList | None = None
    feature: Feature | None = None


class Partition(_Table):
    name: Name
    nodes: HostList
    """Nodes and node sets, or ALL."""
    default: bool = False
    options: Annotated[Mapping[ConfigKey, ConfigValue], _without("partitionname", "nodes", "default")] = {}
    """Further keys of Slurm's PartitionName line, such as MaxTime."""


class Gandiva(_Table):
    """`[gandiva]`: what the job_submit module enforces."""

    default: Literal["on", "off"] = "off"
    """Whether a GPU job with neither --gandiva nor --no-gandiva is time-sliced."""
    partitions: Sequence[Name] = ()
    """Partitions in which --gandiva is allowed; none named: all."""
    max_weight: Weight = 4.0
    """Largest weight that counts. These three are the same as in `[requests]` of gandiva.toml: the controller
    applies those, the job_submit module states these to users at submission."""
    max_weight_by_account: Mapping[str, Weight] = {}
    max_weight_by_qos: Mapping[str, Weight] = {}
    gpu_aliases: Mapping[Model, str] = {}
    """Other names that users write for a gpu_model."""
    controller_users: Sequence[User] = ("gandiva",)
    """Users, besides root and SlurmUser, who may release and bind held jobs: numbers, or names in /etc/passwd
    of slurmctld's host."""


class Cgroup(_Table):
    """`[cgroup]`: what Slurm constrains. Without devices a job can open GPUs that are not its own."""

    constrain_devices: bool = True
    constrain_cores: bool = False
    """Slurm gives a suspended job's cores to the next one and resumes the first on them all the same
    (docs/ordinary-jobs.md): tied to cores, two running jobs may share some while others are idle."""
    constrain_memory: bool = True
    mountpoint: Annotated[str, _MOUNTPOINT] | None = None


class ClusterDescription(_Table):
    cluster: Cluster
    nodes: Sequence[Nodes]
    partitions: Sequence[Partition]
    node_sets: Sequence[NodeSet] = ()
    gandiva: Gandiva = Gandiva()
    cgroup: Cgroup = Cgroup()

    def _problems(self) -> Iterable[str]:
        nodes = Counter(name for group in self.nodes for name in hostlist.expand(group.names))
        partitions, sets = (Counter(each.name for each in some) for some in (self.partitions, self.node_sets))
        for key, names in (("nodes", nodes), ("partitions", partitions), ("node_sets", sets)):
            for name in (name for name, count in names.items() if count > 1 or name.upper() == "DEFAULT"):
                yield f"{key}: {name} is described twice, or a word of Slurm's: expected another name"
        tables: tuple[Partition | NodeSet, ...] = (*self.partitions, *self.node_sets)
        for each in tables:
            key = "partitions" if isinstance(each, Partition) else "node_sets"
            for name in (name for name in self.members(each) if name not in nodes):
                yield f"{key}: {each.name} has the node {name}, in no [[nodes]] table"
        if empty := [each.name for each in self.node_sets if each.nodes is each.feature is None]:
            yield f"node_sets: {empty[0]} has neither nodes nor feature: expected one of them"
        if len(defaults := [partition.name for partition in self.partitions if partition.default]) > 1:
            yield f"partitions: {' and '.join(defaults)} have default = true: expected one at most"
        if unknown := [name for name in self.gandiva.partitions if name not in partitions]:
            expected = ", ".join(partitions)
            yield f"gandiva.partitions: {unknown[0]!r} is not a partition: expected {expected}"
        shared = {type_id(each): each for each in self.shared_types}
        own = [item.type for group in self.nodes for item in group.others if item.name in ("gpu", "shard")]
        for name in (*own, *self.models, *self.gandiva.gpu_aliases):
            if same := shared.get(type_id(name)):
                yield f"type {name}: Slurm takes it for {same}, a shared GPU: expected another name"
        for alias, model in self.gandiva.gpu_aliases.items():
            if alias in (*own, *self.models) or model not in self.models:
                expected = f"another name, no node's, for one of {', '.join(self.models)}"
                yield f"gandiva.gpu_aliases: {alias} = {model!r}: expected {expected}"
        if not any(group.gpus for group in self.nodes):
            yield "nodes: none has GPUs: give gpu_model and gpus for at least one [[nodes]] table"

    @property
    def models(self) -> list[str]:
        return sorted({group.gpu_model for group in self.nodes if group.gpu_model is not None})

    @property
    def shared_types(self) -> set[str]:
        """The GRES types of the GPUs that Gandiva shares: each of one GPU."""
        return {f"{group.gpu_model}_{index}" for group in self.nodes for index in range(group.gpus)}

    def features_of(self, group: Nodes) -> list[str]:
        """An ordinary `gpu:<model>:N` finds nodes by the feature of the model, shared or not."""
        own = {item.type for item in group.others if item.name == "gpu"}
        models = [m for m in self.models if m in own or (group.gpus and m == group.gpu_model)]
        return [*group.features, *(f"gandiva_{model}" for model in models)]

    def members(self, each: Partition | NodeSet) -> list[str]:
        if (each.nodes or "").upper() == "ALL":
            return [name for group in self.nodes for name in hostlist.expand(group.names)]
        found = hostlist.expand(each.nodes) if each.nodes else ()
        if isinstance(each, NodeSet):
            by_feature = [group.names for group in self.nodes if each.feature in self.features_of(group)]
            return [*found, *(name for names in by_feature for name in hostlist.expand(names))]
        sets = {node_set.name: node_set for node_set in self.node_sets}
        return [node for name in found for node in (self.members(sets[name]) if name in sets else (name,))]

    def nodes_of(self, partition: Partition) -> tuple[tuple[Nodes, int], ...]:
        """The kinds of nodes of a partition, each with how many of them the partition has."""
        members = set(self.members(partition))
        counts = ((group, len(members & set(hostlist.expand(group.names)))) for group in self.nodes)
        return tuple((group, count) for group, count in counts if count)


def parse(text: str, source: str = "cluster description") -> ClusterDescription:
    """Check a description given as TOML text; `source` is how messages name it. Raises DescriptionError,
    which names each unknown key, wrong type and value out of range."""
    data = parse_toml(text, lambda problem: DescriptionError(source, [problem]))
    try:
        return ClusterDescription.model_validate(data)
    except pydantic.ValidationError as error:
        raise DescriptionError(source, [_problem(item) for item in error.errors()]) from error


def load(path: Path) -> ClusterDescription:
    """Read and check the description in a file. Raises SlurmConfigError, also for one over 1 MiB."""
    data = read_file(path, MAX_FILE_BYTES, SlurmConfigError)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise DescriptionError(str(path), [f"is not UTF-8: {error}"]) from error
    return parse(text, str(path))


def _problem(error: Mapping[str, Any]) -> str:
    """One line for one of pydantic's findings: key, what was wrong, the value."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]]
    key = "".join(parts).removeprefix(".")
    prefix = f"{key}: " if key else ""
    if error["type"] == "extra_forbidden":
        return f"{prefix}unknown key; {_allowed_keys(error['loc'])}"
    if error["type"] == "missing":
        return f"{prefix}missing, and there is no default"
    value = error["input"]
    # Not for tables: the message names the keys that disagree.
    shown = "" if isinstance(value, (dict, list, BaseModel)) else f" (got {value!r})"
    return f"{prefix}{wrong(error)}{shown}"


def _allowed_keys(location: tuple[str | int, ...]) -> str:
    tables: tuple[type[BaseModel], ...] = (Cluster, Nodes, Partition, NodeSet, Gandiva, Cgroup)
    named = dict(zip(ClusterDescription.model_fields, tables, strict=True)) if len(location) > 1 else {}
    model = named.get(str(location[0]), ClusterDescription)
    return "allowed are " + ", ".join(model.model_fields)
