# SPDX-License-Identifier: GPL-2.0-or-later
"""The part of the GPUs that each of some users is due, by Slurm's tree of accounts and users."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from controller.model import Job, Share

ROOT = "root"
"""Slurm's name of the account above all others."""
_DEEPEST = 64
"""Of a tree; where accounts are in a circle, the way up ends here."""
_LEAST_WEIGHT = 1e-3
"""Of an association with no shares: its jobs come after all others, and not never."""


class Member(NamedTuple):
    """A user in an account: a leaf of the tree."""

    account: str
    user: str

    @property
    def name(self) -> str:
        """As in `Snapshot.shares`."""
        return f"{self.account}/{self.user}"


def member_of(job: Job) -> Member:
    """Whose job it is."""
    return Member(job.account, job.user)


def fractions(shares: Mapping[str, Share], members: Iterable[Member]) -> dict[Member, float]:
    """What each of these members is due, as parts that add up to 1.

    At each account its children among these members and their accounts divide its part by their shares; who
    is not among them has none. A user or an account that Slurm does not name counts with one share.
    """
    paths = {member: _path(shares, member) for member in members}
    children: dict[str, dict[str, float]] = {}
    for path in paths.values():
        for parent, name, weight in path:
            children.setdefault(parent, {})[name] = weight
    sums = {parent: sum(weights[name] for name in sorted(weights)) for parent, weights in children.items()}
    found: dict[Member, float] = {}
    for member, path in paths.items():
        part = 1.0
        for parent, _, weight in path:
            part *= weight / sums[parent]
        found[member] = part
    return found


def _path(shares: Mapping[str, Share], member: Member) -> list[tuple[str, str, float]]:
    """(parent, name, weight) from the root down to the member."""
    known = shares.get(member.name)
    above = member.account if member.account in shares else ROOT
    path = [(above, member.name, _weight(known))]
    while len(path) < _DEEPEST and above != ROOT:
        account = shares.get(above)
        parent = (account.parent if account is not None else None) or ROOT
        path.append((parent, above, _weight(account)))
        above = parent
    return path[::-1]


def _weight(share: Share | None) -> float:
    return 1.0 if share is None else max(share.weight, _LEAST_WEIGHT)
