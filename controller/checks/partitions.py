# SPDX-License-Identifier: GPL-2.0-or-later
"""Partitions with options under which GPUs cannot be shared, and power saving of nodes with GPUs. Pure."""

from collections.abc import Collection, Iterator

from controller.checks.finding import Finding, Subject
from controller.checks.slurm_options import RECONFIGURE, SlurmOptions
from controller.cluster.partitions import Partition
from controller.cluster.records import host_names

_NEVER = ("", "INFINITE", "NONE", "-1")


def judge_partitions(
    partitions: Collection[Partition], nodes: Collection[str], options: SlurmOptions
) -> Iterator[Finding]:
    """About the partitions of these nodes, those with shared GPUs."""
    ours = [each for each in partitions if not set(nodes).isdisjoint(each.nodes)]
    for each in ours:
        subject = Subject("slurm", f"partition {each.name}")
        if each.by_option:
            yield subject.warning(
                f"{each.obstacle.partition(' has ')[2]}: Slurm gives jobs there more than they ask for, or "
                "keeps others out, so Gandiva jobs submitted to it stay held",
                f"in {options.file}: PartitionName={each.name} without it, {RECONFIGURE}; or leave it out of "
                "[gandiva] partitions of the cluster's description",
            )
        else:
            yield subject.ok(each.obstacle or f"{len(each.nodes)} nodes, shared by jobs")
    yield _power(partitions, nodes, options)


def _power(partitions: Collection[Partition], nodes: Collection[str], options: SlurmOptions) -> Finding:
    """Slurm wakes a node for a job that may start, and Gandiva jobs wait held. A node has to be up before a
    job is released to it: its agent prepares the job's control block."""
    subject = Subject("slurm", "power saving")
    if not options.get("SuspendProgram") or options.get("SuspendTime") in _NEVER:
        return subject.ok("no node is switched off")
    kept = set(host_names(options.get("SuspendExcNodes")))
    names = options.words("SuspendExcParts")
    kept.update(node for each in partitions if each.name in names for node in each.nodes)
    missing = sorted(set(nodes) - kept)
    if not missing:
        return subject.ok("nodes with shared GPUs stay on (SuspendExcNodes, SuspendExcParts)")
    some = ",".join(missing[:5]) + (",…" if len(missing) > 5 else "")
    return subject.error(
        f"Slurm switches {some} off when idle, and wakes no node for held jobs: Gandiva jobs wait for ever",
        f"in {options.file}: SuspendExcNodes={some} beside what is there, {RECONFIGURE}",
    )
