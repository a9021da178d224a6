# SPDX-License-Identifier: GPL-2.0-or-later
"""All faults, and the short list of one of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.faults.enumerated import POINTS, enumerated, make
from tests.faults.fault import Fault
from tests.faults.migrating import migrating
from tests.faults.parts import PARTS
from tests.faults.scenarios import (
    damaged_journal,
    full_disk_at_start,
    lost_answers,
    no_controller,
    people,
    random_kills,
    slow,
    twice,
    two_controllers,
)


def every() -> list[Fault]:
    """The whole catalogue, groups together."""
    found = [
        *enumerated(),
        *slow(),
        *people(),
        *lost_answers(),
        *migrating(),
        twice(),
        *two_controllers(),
        *no_controller(),
        *damaged_journal(),
        full_disk_at_start(),
        random_kills(200),
    ]
    return sorted(found, key=lambda fault: _order(found, fault))


def _order(found: Sequence[Fault], fault: Fault) -> int:
    """Groups as they first come."""
    return next(index for index, other in enumerate(found) if other.group == fault.group)


def light() -> list[Fault]:
    """One of each kind, but for what takes a minute and more: a node without power, half of the kills."""
    return [fault for fault in quick(kills=10) if not fault.name.endswith("(node)")]


def quick(kills: int = 20) -> list[Fault]:
    """One of each kind. Most share a round, since a look at the books takes longer than a fault."""
    together = [
        # Each part at another place.
        *(make(part, POINTS[(3 * n + 8) % len(POINTS)], "before") for n, part in enumerate(PARTS)),
        _one("controller: suspend, cooperative: after slurm-suspend"),
        _one("node agent: resume, cooperative: during node-resume"),
        _one("agent late: suspend, cooperative: during offload"),
        _one("slurmctld late: resume, cooperative: before slurm-resume"),
        _one("answer lost: suspend, cooperative: 5 in a row"),
        _one("user resumes: suspend, cooperative: before slurm-suspend"),
        _one("no controller: cooperative: its node fails"),
        _one("user cancels: resume, cooperative: before node-resume"),
        _one("user holds: place: before release"),
        _one("user updates: suspend, cooperative: before pause"),
        _one("user requeues: resume, cooperative: before slurm-resume"),
        _one("operator suspends: suspend, cooperative: before pause"),
        _one("administrator drains: place: before await-start"),
        _one("migration, controller: migrate, checkpoint store, its source: after save"),
        _one("migration, reservation: place, checkpoint store, its target: before release"),
    ]
    return [
        *(replace(f, group="one of each kind", detail=f"{f.detail} ({f.group})") for f in together),
        twice(),
        _one("two controllers: suspend, cooperative: before slurm-suspend"),
        _one("journal damaged: before a start: pages overwritten"),
        full_disk_at_start(),
        random_kills(kills),
    ]


def _one(name: str) -> Fault:
    (fault,) = (fault for fault in every() if fault.name == name)
    return fault


def matching(faults: Sequence[Fault], words: Sequence[str]) -> list[Fault]:
    """Those whose name contains all the words."""
    return [fault for fault in faults if all(word in fault.name for word in words)]
