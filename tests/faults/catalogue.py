# SPDX-License-Identifier: GPL-2.0-or-later
"""All faults, and the short list of one of each kind."""

from __future__ import annotations

from collections.abc import Sequence

from tests.faults.enumerated import POINTS, enumerated, make
from tests.faults.fault import Fault
from tests.faults.parts import PARTS
from tests.faults.scenarios import (
    damaged_journal,
    full_disk_at_start,
    lost_answers,
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
        twice(),
        *two_controllers(),
        *damaged_journal(),
        full_disk_at_start(),
        random_kills(200),
    ]
    return sorted(found, key=lambda fault: _order(found, fault))


def _order(found: Sequence[Fault], fault: Fault) -> int:
    """Groups as they first come."""
    return next(index for index, other in enumerate(found) if other.group == fault.group)


def quick() -> list[Fault]:
    """Each part once, each at another place."""
    return [make(part, POINTS[(3 * number + 9) % len(POINTS)], "before") for number, part in enumerate(PARTS)]


def matching(faults: Sequence[Fault], words: Sequence[str]) -> list[Fault]:
    """Those whose name contains all the words."""
    return [fault for fault in faults if all(word in fault.name for word in words)]
