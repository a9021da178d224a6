# SPDX-License-Identifier: GPL-2.0-or-later
"""Limits and weights for a GPU type, of which Slurm counts nothing: each GPU has a type of its own. Pure."""

import re
from collections.abc import Collection, Iterable, Iterator

from controller.checks.finding import Finding, Subject
from controller.checks.slurm_options import SlurmOptions
from controller.cluster.gres import taken_for_one
from controller.reports.text import some

SACCTMGR = (("sacctmgr", "-P", "show", "qos"), ("sacctmgr", "-P", "show", "assoc"))
"""With headers: which columns there are differs between releases."""
_TYPED = re.compile(r"gres/gpu:(.+)", re.IGNORECASE)
_BILLING = re.compile(r"^PartitionName=(.+?) \w+=.* TRESBillingWeights=(\S+)", re.MULTILINE)
_OPTIONS = ("AccountingStorageTRES", "PriorityWeightTRES")
_PLACES = dict.fromkeys(_OPTIONS, "") | {"TRESBillingWeights": ": give it to a partition's line"}


def judge_types(
    options: SlurmOptions,
    partitions: str,
    tables: Iterable[str],
    types: Collection[str],
    models: Iterable[str],
) -> Iterator[Finding]:
    """`partitions`: as scontrol prints them; `tables`: as SACCTMGR does; `types`: of all nodes' GPUs;
    `models`: of those that are shared."""
    subject, known = Subject("slurm", "GPU types"), {kind.lower() for kind in types}
    shared = {model.lower() for model in models}
    owners: dict[tuple[str, str], list[str]] = {}
    for owner, key, value in _said(options, partitions, tables):
        owners.setdefault((key, value), []).append(owner)
    well = True
    for (key, value), whose in owners.items():
        lost, items = [], dict[str, str]()
        for item in value.split(","):
            name, sign, amount = item.partition("=")
            kind = typed[1] if (typed := _TYPED.fullmatch(name)) else ""
            if not kind or kind.lower() in known:
                items[name.lower()] = item
            if kind and (kind.lower() in shared or kind.lower() not in known):
                items.setdefault("gres/gpu", f"gres/gpu{sign}{amount}")
                lost.append(kind)
        if lost:
            well = False
            place = _PLACES.get(key, ": give it to a partition's QOS")
            yield subject.warning(
                f"{key}={value} of {some(whose)}: no shared GPU is of type {', '.join(lost)}: it counts none",
                f"{key}={','.join(items.values())} counts ordinary jobs on GPUs of all types{place}"
                f"{place and ', with nodes of one type only'}; Gandiva jobs: docs/ordinary-jobs.md, Limits "
                "and weights by GPU type",
            )
    if well:
        yield subject.ok("no limit and no weight is for a type that no shared GPU has")
    if same := taken_for_one(types):
        yield subject.warning(same, "it adds -C gandiva_MODEL (docs/plugin.md, Ordinary jobs)")


def _said(options: SlurmOptions, partitions: str, tables: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Whose limits and weights, the key, and the value."""
    for key in _OPTIONS:
        yield str(options.file), key, options.get(key)
    for name, value in _BILLING.findall(partitions):
        yield f"partition {name}", "TRESBillingWeights", value
    for header, *lines in ([line.split("|") for line in table.splitlines()] for table in tables if table):
        for row in (dict(zip(header, line, strict=False)) for line in lines):
            owner = f"account {row['Account']}" if "Account" in row else f"QOS {row.get('Name')}"
            owner = f"user {row['User']} of {row['Account']}" if row.get("User") else owner
            yield from ((owner, key, value) for key, value in row.items() if "TRES" in key)
