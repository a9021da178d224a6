# SPDX-License-Identifier: GPL-2.0-or-later
"""What `gandiva explain` says of jobs in rounds."""

from __future__ import annotations

from controller.model import JobId, Reason, Why
from controller.policies.mechanisms.rounds.member import ALONE, LEAST_FRACTION, Member

_NAMED = 4
"""So many parts are named."""


def fractions(member: Member) -> str:
    """`0.40 of the time on v100, 0.10 on k80 beside job 12`."""
    named = [
        (_where(gpu_type, beside), account.fraction)
        for (gpu_type, beside), account in sorted(member.accounts.items())
        if account.fraction >= LEAST_FRACTION
    ]
    if not named:
        return "no part of the time" if member.allocated else "a part that is being computed"
    if len(named) > _NAMED:
        named.sort(key=lambda part: -part[1])
    (first, most), *others = named
    rest = "".join(f", {fraction:.2f} on {where}" for where, fraction in others[: _NAMED - 1])
    more = f" and {len(named) - _NAMED} smaller parts" if len(named) > _NAMED else ""
    return f"{most:.2f} of the time on {first}{rest}{more}"


def _where(gpu_type: str, beside: JobId) -> str:
    return f"{gpu_type or 'GPUs'}{'' if beside == ALONE else f' beside job {beside}'}"


def starts(member: Member) -> str:
    """It is on GPUs from now on."""
    where = member.assigned
    if not where:
        return "goes on where Slurm has bound it: its GPUs are free"
    if member.extra:
        return f"runs on {where}, which no job with a part of them takes: this does not count as its own part"
    return f"its turn on {_where(where, member.beside)}: it is allocated {fractions(member)}"


def shares(member: Member) -> str:
    """It stays on its GPUs, beside another job than before, or alone."""
    if member.beside == ALONE:
        return "has its GPUs to itself in this round"
    return f"shares its GPUs with job {member.beside} in this round: it is allocated {fractions(member)}"


def stops(member: Member) -> Why:
    """It is off its GPUs from now on."""
    if member.assigned:
        words = f"goes on with GPUs of type {member.assigned}: it is allocated {fractions(member)}"
        return Why(Reason.MIGRATES, words)
    return Why(Reason.TURN_OVER, f"its round is over: it is allocated {fractions(member)}")


def waits(member: Member) -> Why:
    """It is off its GPUs."""
    if member.assigned:
        where = _where(member.assigned, member.beside)
        return Why(Reason.WAITS_FOR_GPUS, f"its turn on {where}: it starts when its GPUs are free")
    bound = f"; it stays on {member.hosted}, where Slurm has bound it" if member.hosted else ""
    return Why(Reason.WAITS_FOR_TURN, f"waits for its turn: it is allocated {fractions(member)}{bound}")
