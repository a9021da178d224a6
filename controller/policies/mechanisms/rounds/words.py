# SPDX-License-Identifier: GPL-2.0-or-later
"""What `gandiva explain` says of jobs in rounds."""

from __future__ import annotations

from controller.policies.mechanisms.rounds.choosing import LEAST_FRACTION
from controller.policies.mechanisms.rounds.member import Member


def fractions(member: Member) -> str:
    """`0.40 of the time on v100, 0.10 on k80`."""
    named = [
        (gpu_type, account.fraction)
        for gpu_type, account in sorted(member.accounts.items())
        if account.fraction >= LEAST_FRACTION
    ]
    if not named:
        return "no part of the time" if member.allocated else "a part that is being computed"
    (first, most), *others = named
    rest = "".join(f", {fraction:.2f} on {gpu_type or 'GPUs'}" for gpu_type, fraction in others)
    return f"{most:.2f} of the time on {first or 'GPUs'}{rest}"


def starts(member: Member) -> str:
    """It is on GPUs from now on."""
    where = member.assigned
    if not where:
        return "goes on where Slurm has bound it: its GPUs are free"
    if member.extra_from is not None:
        return f"runs on {where}, which no job with a part of them takes: this does not count as its own part"
    return f"its turn on {where}: it is allocated {fractions(member)}"


def stops(member: Member) -> str:
    """It is off its GPUs from now on."""
    if member.assigned:
        return f"goes on with GPUs of type {member.assigned}: it is allocated {fractions(member)}"
    return f"its round is over: it is allocated {fractions(member)}"


def waits(member: Member, nowhere: str) -> str:
    """It is off its GPUs. `nowhere`: why no node can ever take it."""
    if nowhere:
        return nowhere
    if member.assigned:
        return f"its turn on {member.assigned}: it starts when its GPUs are free"
    bound = f"; it stays on {member.hosted}, where Slurm has bound it" if member.hosted else ""
    return f"waits for its turn: it is allocated {fractions(member)}{bound}"
