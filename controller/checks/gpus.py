# SPDX-License-Identifier: GPL-2.0-or-later
"""The nodes as Slurm has them: GRES types of one GPU each, shards, features, state. Pure."""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from controller.checks.finding import Finding, Level, Subject
from controller.checks.slurm_files import release_of
from controller.checks.slurm_options import RECONFIGURE, RESTART
from controller.cluster import replies
from controller.cluster.gres import Gres, node_gpus, parse_gres, split_type
from controller.cluster.port import ClusterGpu
from controller.cluster.raw import NodeRecord
from controller.cluster.states import POWERED_OFF, node_up, powered_off

_OF_GPUS = re.compile(r"(?:gpu|shard)\b|$")


class KnownNode(NamedTuple):
    """A node with GPUs, as Slurm has it."""

    record: NodeRecord
    gpus: tuple[ClusterGpu, ...]
    gres: tuple[Gres, ...] | None
    """None: what is configured makes no sense."""

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def models(self) -> list[str]:
        """That it has GPUs of, by its features and by its types."""
        features = [f.removeprefix("gandiva_") for f in self.record.features if f.startswith("gandiva_")]
        return [*features, *(gpu.model for gpu in self.gpus)]


def gpu_nodes(reply: str) -> tuple[KnownNode, ...]:
    """The nodes with GPUs in a reply of `scontrol show nodes --json`. Raises ClusterUnavailable."""
    found = []
    for record in replies.nodes(reply, "reading the nodes"):
        gres: tuple[Gres, ...] | None
        try:
            gres, gpus = parse_gres(record.gres), node_gpus(record.gres)
        except ValueError:
            gres, gpus = None, ()
        has_gpus = gres is None or any(item.name == "gpu" for item in gres)
        node = KnownNode(record, gpus, gres)
        if has_gpus or node.models:
            found.append(node)
    return tuple(found)


def left_out(node: KnownNode, models: Collection[str]) -> bool:
    """Whether its GPUs are as they were before Gandiva: no shard is of a single GPU of these models."""
    kinds = (split_type(item.type) for item in node.gres or () if item.name == "shard")
    ours = node.gpus or any(kind and kind[0] in models for kind in kinds)
    return node.gres is not None and not ours


def not_shared(node: KnownNode, models: Mapping[str, str], slurm_conf: Path) -> Finding:
    """About a node that is left out where others are not: a site may begin with some. `models`: theirs, by
    the types that ordinary jobs write for them."""
    subject, gres, record = Subject(node.name, "GRES"), node.record.gres or "none", node.record
    for feature in [f"gandiva_{models[item.type]}" for item in node.gres or () if item.type in models]:
        if feature not in record.features:
            return subject.warning(
                f"{gres}: an ordinary job that names the type finds nodes with the feature {feature} only",
                _feature_line(node, slurm_conf, feature),
            )
    own = any(item.name == "shard" for item in node.gres or ())
    shards = "shards of the site's own" if own else "no shards"
    return subject.ok(f"{gres}: {shards}, so for ordinary jobs only")


def _feature_line(node: KnownNode, slurm_conf: Path, feature: str) -> str:
    features = ",".join([*node.record.features, feature])
    return f"NodeName={node.name} in {slurm_conf}: Feature={features}, {RECONFIGURE}"


def judge_node(node: KnownNode, slurm_conf: Path, slurm_release: str) -> Iterator[Finding]:
    yield from _state(node, slurm_conf)
    if node.record.release and release_of(node.record.release) != release_of(slurm_release):
        yield Subject(node.name, "slurmd").warning(
            f"slurmd is {node.record.release}, slurmctld {slurm_release}",
            "finish the upgrade; the SPANK plugin must be the one for the node's Slurm",
        )
    yield from _gres(node, slurm_conf)


def _state(node: KnownNode, slurm_conf: Path) -> Iterator[Finding]:
    subject = Subject(node.name, "state")
    record = node.record
    state = "+".join(record.state)
    resume = f"scontrol update nodename={node.name} state=resume"
    if node_up(record.state):
        yield subject.ok(state)
    elif "gres/" in record.reason:
        yield subject.error(
            f"{state}: {record.reason}",
            f"make Gres= of NodeName={node.name} in {slurm_conf} and {slurm_conf.parent}/gres.conf agree "
            f"(gandiva config slurm writes both), {RESTART}, then {resume}",
        )
    elif powered_off(record.state) and not record.reason:
        yield subject.warning(f"{state}: {POWERED_OFF}", f"in {slurm_conf}: SuspendExcNodes, {RECONFIGURE}")
    elif "UNKNOWN" in record.state and not record.reason:
        there = f"check again in a minute; if it still is: systemctl status slurmd on {node.name}"
        yield subject.warning(f"{state}: its slurmd has not registered since slurmctld began", there)
    else:
        why = record.reason or "no reason given"
        yield subject.warning(f"{state}: {why}", f"{resume}, when it is in order")


def gres_remedy(node: KnownNode, slurm_conf: Path, model: str, count: int, shards: int) -> str:
    """What `Gres=` in slurm.conf should say: of the GPUs, and what the node has besides."""
    names = [f"{model}_{index}" for index in range(count)]
    others = [one for one in re.split(r",(?![^(]*\))", node.record.gres) if not _OF_GPUS.match(one)]
    gres = ",".join([f"gpu:{n}:1" for n in names] + [f"shard:{n}:{shards}" for n in names] + others)
    return f"NodeName={node.name} in {slurm_conf}: Gres={gres}, gres.conf likewise, {RESTART}"


def _gres(node: KnownNode, slurm_conf: Path) -> Iterator[Finding]:
    record, gpus = node.record, node.gpus
    items = [item for item in node.gres or () if item.name == "gpu"]
    single = [kind for item in items if (kind := split_type(item.type))]
    model = [*(model for model, _ in single), *node.models, "MODEL"][0]
    depth = max((gpu.shards for gpu in gpus), default=0) or 16
    configured = sum(item.count for item in items)
    count = max([configured, *(index + 1 for _, index in single)])
    level, indices, models = Level.ERROR, [gpu.index for gpu in gpus], sorted({gpu.model for gpu in gpus})
    if len(gpus) != configured or not gpus:
        found = f"{record.gres or 'none'}: a GPU without a type of its own (MODEL_0, …) cannot be shared"
    elif indices != list(range(len(gpus))):
        found = f"the types name the GPUs {indices}: the indices must be NVML's, from 0 on"
    elif len(models) > 1:
        found = f"GPUs of several models: {', '.join(models)}; a node must have one"
    elif bad := [gpu for gpu in gpus if gpu.shards < 2]:
        found = f"GPU {bad[0].index} has {bad[0].shards} shards: nothing can take turns on it"
    elif len({gpu.shards for gpu in gpus}) > 1:
        counts = ", ".join(f"{model}_{gpu.index}: {gpu.shards}" for gpu in gpus)
        level, found = Level.WARNING, f"the GPUs have different numbers of shards ({counts})"
    else:
        level, found = Level.OK, f"{len(gpus)} GPUs {model}_0 to {model}_{len(gpus) - 1}, {depth} shards each"
    change = "" if level is Level.OK else gres_remedy(node, slurm_conf, model, count, depth)
    yield Finding(level, node.name, "GRES", found, change)
    feature = f"gandiva_{model}"
    if gpus and feature not in record.features:
        yield Subject(node.name, "feature").error(
            f"{feature} is missing: --gres=gpu:{model}:N of ordinary jobs finds no node",
            _feature_line(node, slurm_conf, feature),
        )
