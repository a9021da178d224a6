# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm's GRES strings, and bindings as such strings. Pure functions.

Slurm writes GRES in five ways:

    gpu:a100_0:1(S:0-1),shard:a100_0:16(S:0-1)      what a node has
    gpu:a100_0:1(IDX:0),shard:a100_2:1(1/16)        what is in use on a node
    gpu:a100_0:1(IDX:0),shard:a100_2:1(0/16,1/16)   what a job has on a node
    gres/gpu:2,gres/shard:a100_2:1                  what a job asks for
    cpu=1,mem=100M,node=1,gres/shard=2              trackable resources

A GPU's type is `<model>_<index>` (docs/interfaces.md, section 1), so a type names one GPU of a node.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from controller.cluster.port import ClusterGpu
from controller.model import GPU_MODEL, GpuSet, by_node, on_nodes

_OUTSIDE_PARENTHESES = re.compile(r",(?![^()]*\))")
_TYPE = re.compile(rf"({GPU_MODEL})_([0-5]?[0-9]|6[0-3])")
"""Of a single GPU. A node has 64 at most, as for agents: `rtx_8000` and `a100_80` are a site's own."""
_COUNT = re.compile(r"([0-9]+)([KMGTP]?)")
_SCALE = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_EMPTY = frozenset({"", "(null)", "N/A"})


@dataclass(frozen=True, slots=True)
class Gres:
    """One item of a GRES string."""

    name: str
    """`gpu`, `shard`, …"""
    type: str
    """Empty: any."""
    count: int
    indices: tuple[int, ...] = ()
    """GPUs it stands for, where Slurm says so."""


def parse_gres(text: str) -> tuple[Gres, ...]:
    """Parse any of the five ways but the last. Raises ValueError."""
    if text in _EMPTY:
        return ()
    return tuple(_parse_item(item, text) for item in _OUTSIDE_PARENTHESES.split(text))


def _parse_item(item: str, text: str) -> Gres:
    body, _, detail = item.partition("(")
    if body.endswith(":") and detail.startswith("null)"):  # `gpu:(null):0(IDX:N/A)`: no type
        body, _, detail = (body + detail.removeprefix("null):")).partition("(")
    name, *rest = re.split("[:=]", body.removeprefix("gres/").removeprefix("gres:"))
    rest = [word for word in rest if word != "no_consume"]
    count = 1
    if rest and (match := _COUNT.fullmatch(rest[-1])):
        count = int(match[1]) * _SCALE[match[2]]
        rest.pop()
    if not name or len(rest) > 1:
        raise ValueError(f"{item!r} in GRES {text!r}: expected NAME[:TYPE][:COUNT]")
    return Gres(name, rest[0] if rest else "", count, _indices(detail.removesuffix(")")))


def _indices(detail: str) -> tuple[int, ...]:
    """The GPUs of `IDX:0,2-3`, or those with a share in `0/16,1/16`. Sockets (`S:0-1`) name none."""
    if detail.startswith("IDX:"):
        text = detail.removeprefix("IDX:")
        return () if text in _EMPTY else tuple(chain.from_iterable(index_ranges(text)))
    shares = detail.split(",")
    if len(shares) > 1 and all("/" in share for share in shares):
        return tuple(i for i, share in enumerate(shares) if not share.startswith("0/"))
    return ()


def index_ranges(text: str) -> list[range]:
    """Parse `0,2-3,8-12:2` into ranges, which cost the same whatever their length. Raises ValueError."""
    ranges: list[range] = []
    for part in text.split(",") if text else ():
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        ranges.append(range(int(first), int(last or first) + 1, int(step or 1)))
    return ranges


def tres_memory_mib(text: str) -> int | None:
    """Memory in a string of trackable resources, in MiB; None where it says none."""
    match = re.search(r"(?:^|,)mem=([0-9]+(?:\.[0-9]+)?)([KMGTP]?)(?:,|$)", text)
    if match is None:
        return None
    bytes_ = float(match[1]) * _SCALE[match[2] or "M"]
    return int(bytes_ // 2**20)


def split_type(type_: str) -> tuple[str, int] | None:
    """Model and index of a GRES type; None for a type that names no single GPU."""
    match = _TYPE.fullmatch(type_)
    return (match[1], int(match[2])) if match else None


def taken_for_one(types: Iterable[str]) -> str:
    """What to say of different types that are the same to Slurm; empty: there are none."""
    first: dict[int, str] = {}
    pairs = [(first.setdefault(type_id(each), each), each) for each in sorted(set(types))]
    same = ", ".join(f"{one} for {other}" for one, other in pairs if one != other)
    return same and f"Slurm takes {same}: an ordinary job that asks for exactly one can get the other"


def type_id(type_: str) -> int:
    """What Slurm compares types by: the sum of their bytes, each shifted by its place (`gres_build_id`)."""
    return sum(byte << 8 * (place % 4) for place, byte in enumerate(type_.encode())) % 2**32


def node_gpus(configured: str) -> tuple[ClusterGpu, ...]:
    """The GPUs of a node, by index, from its configured GRES. GPUs whose type names no single GPU are
    not ours and are left out, also where the site has called them so: `v100_32`. Raises ValueError."""
    found: dict[int, ClusterGpu] = {}
    items = parse_gres(configured)
    shards = {item.type: item.count for item in items if item.name == "shard"}
    for item in items:
        split = split_type(item.type)
        if item.name == "gpu" and item.count == 1 and split is not None:
            model, index = split
            found[index] = ClusterGpu(index=index, model=model, shards=shards.get(item.type, 0))
    return tuple(found[index] for index in sorted(found)) if 0 in found else ()


def indices_of(name: str, text: str) -> frozenset[int]:
    """The GPUs, by index, that GRES of this name (`gpu`, `shard`) stand for: from the type, else as Slurm
    numbers them. Raises ValueError."""
    found: set[int] = set()
    for item in parse_gres(text):
        if item.name == name and item.count > 0:
            split = split_type(item.type)
            found.update([split[1]] if split is not None else item.indices)
    return frozenset(found)


@lru_cache(maxsize=20_000)
def binding_of(requested: str, nodes: tuple[str, ...]) -> GpuSet:
    """The GPUs a running job holds as shards: GRES is per node, so the same ones on each of its nodes. The
    same object at every look, so that comparing looks need not compare GPUs. Raises ValueError."""
    return on_nodes(nodes, indices_of("shard", requested))


def bound_gres(binding: GpuSet, models: Mapping[str, str]) -> tuple[str, ...]:
    """The GRES, such as `shard:a100_0`, that make Slurm allocate exactly `binding` when a job asks for one of
    each on each of its nodes. `models`: the GPU model of each of these.

    Raises ValueError: the binding is empty, or differs in indices or model between nodes: Slurm's GRES
    requests are per node.
    """
    indices = by_node(binding)
    if not indices:
        raise ValueError("a binding needs at least one GPU")
    if len(set(indices.values())) > 1:
        said = "; ".join(f"{node}: {list(on_node)}" for node, on_node in indices.items())
        raise ValueError(f"Slurm's GRES is per node, so a binding has the same indices on each: {said}")
    kinds = sorted({models[node] for node in indices})
    if len(kinds) > 1:
        raise ValueError(f"a binding is of one GPU model, not of {', '.join(kinds)}")
    (on_each,) = set(indices.values())
    return tuple(f"shard:{kinds[0]}_{index}" for index in on_each)
