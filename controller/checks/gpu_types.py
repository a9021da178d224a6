# SPDX-License-Identifier: GPL-2.0-or-later
"""Limits and weights for a GPU type, of which Slurm counts nothing: each GPU has a type of its own. Pure."""

import re
from collections.abc import Collection, Iterable, Iterator

from controller.checks.finding import Finding, Subject, some
from controller.checks.slurm_options import SlurmOptions

SACCTMGR = (("sacctmgr", "-P", "show", "qos"), ("sacctmgr", "-P", "show", "assoc"))
"""With headers: which columns there are differs between releases."""
_TYPED = re.compile(r"gres/gpu:([^=,:\s]+)", re.IGNORECASE)
_BILLING = re.compile(r"^PartitionName=(.+?) \w+=.* TRESBillingWeights=(\S+)", re.MULTILINE)


def judge_types(
    options: SlurmOptions, partitions: str, tables: Iterable[str], types: Collection[str]
) -> Iterator[Finding]:
    """`partitions`: as scontrol prints them; `tables`: as SACCTMGR does; `types`: of all nodes' GPUs."""
    subject, known = Subject("slurm", "GPU types"), {kind.lower() for kind in types}
    owners: dict[tuple[str, str], list[str]] = {}
    for owner, key, value in _said(options, partitions, tables):
        owners.setdefault((key, value), []).append(owner)
    lost = {said: [k for k in _TYPED.findall(said[1]) if k.lower() not in known] for said in owners}
    if not any(lost.values()):
        yield subject.ok("no limit and no weight is for a type that no GPU has")
    for (key, value), gone in ((said, gone) for said, gone in lost.items() if gone):
        yield subject.warning(
            f"{key}={value} of {some(owners[key, value])}: no GPU is of type {', '.join(gone)}, so it counts "
            "nothing",
            f"{key}={_TYPED.sub('gres/gpu', value)} counts ordinary jobs on GPUs of all types: give it to a "
            "partition's QOS or line, with nodes of one type only; Gandiva jobs: docs/ordinary-jobs.md, "
            "Limits and weights by GPU type",
        )


def _said(options: SlurmOptions, partitions: str, tables: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Whose limits and weights, the key, and the value."""
    for key in ("AccountingStorageTRES", "PriorityWeightTRES"):
        yield str(options.file), key, options.get(key)
    for name, value in _BILLING.findall(partitions):
        yield f"partition {name}", "TRESBillingWeights", value
    for header, *lines in ([line.split("|") for line in table.splitlines()] for table in tables if table):
        for row in (dict(zip(header, line, strict=False)) for line in lines):
            owner = f"account {row['Account']}" if "Account" in row else f"QOS {row.get('Name')}"
            owner = f"user {row['User']} of {row['Account']}" if row.get("User") else owner
            yield from ((owner, key, value) for key, value in row.items() if "TRES" in key)
