# SPDX-License-Identifier: GPL-2.0-or-later
"""Limits and weights for a GPU type, of which Slurm counts nothing: each GPU has a type of its own. Pure."""

import re
from collections.abc import Collection, Iterable, Iterator

from controller.checks.finding import Finding, Subject
from controller.checks.slurm_options import SlurmOptions

SACCTMGR = (("sacctmgr", "-P", "show", "qos"), ("sacctmgr", "-P", "show", "assoc"))
"""With headers: which columns there are differs between releases."""
_TYPED = re.compile(r"(gres/gpu):([^=,:\s]+)", re.IGNORECASE)
_BILLING = re.compile(r"^PartitionName=(.+?) \w+=.* (TRESBillingWeights)=(\S+)", re.MULTILINE)


def judge_types(
    options: SlurmOptions, partitions: str, tables: Iterable[str], types: Collection[str]
) -> Iterator[Finding]:
    """`partitions`: as scontrol prints them; `tables`: as SACCTMGR does; `types`: of all nodes' GPUs."""
    subject, known = Subject("slurm", "GPU types"), {kind.lower() for kind in types}
    owners: dict[tuple[str, str], list[str]] = {}
    for owner, key, value in [*_configured(options), *_weighed(partitions), *_limited(tables)]:
        owners.setdefault((key, value), []).append(owner)
    lost = {said: [k for _, k in _TYPED.findall(said[1]) if k.lower() not in known] for said in owners}
    if not any(lost.values()):
        yield subject.ok("no limit and no weight is for a type that no GPU has")
    for (key, value), gone in ((said, gone) for said, gone in lost.items() if gone):
        first, more = owners[key, value][:3], len(owners[key, value]) - 3
        whose = ", ".join(first) + (f" and {more} more" if more > 0 else "")
        untyped = _TYPED.sub(r"\1", value)
        named = f"type{'s' if len(gone) > 1 else ''} {', '.join(gone)}"
        yield subject.warning(
            f"{key}={value} of {whose}: no GPU has the {named}, so it counts nothing",
            f"{key}={untyped} counts ordinary jobs on GPUs of all types: give it to the QOS or the line of "
            "a partition that has nodes of one type only; Gandiva jobs: docs/ordinary-jobs.md, Limits and "
            "weights by GPU type",
        )


def _configured(options: SlurmOptions) -> Iterator[tuple[str, str, str]]:
    for key in ("AccountingStorageTRES", "PriorityWeightTRES"):
        yield str(options.file), key, options.get(key)


def _weighed(partitions: str) -> Iterator[tuple[str, str, str]]:
    for name, key, value in _BILLING.findall(partitions):
        yield f"partition {name}", key, value


def _limited(tables: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    for table in tables:
        header, *lines = [line.split("|") for line in table.splitlines()] or [[]]
        for row in (dict(zip(header, line, strict=False)) for line in lines):
            account, user = row.get("Account"), row.get("User")
            owner = f"QOS {row.get('Name')}" if account is None else f"account {account}"
            for key, value in row.items():
                if "TRES" in key:
                    yield f"user {user} of {account}" if user else owner, key, value
