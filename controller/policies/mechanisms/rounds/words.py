# SPDX-License-Identifier: GPL-2.0-or-later
"""What `gandiva explain` says of jobs in rounds."""

from controller.model import JobId, Reason, Why
from controller.policies.mechanisms.rounds.in_force import ALONE, InForce
from controller.policies.mechanisms.rounds.member import Member

_NAMED = 4
"""So many parts are named."""


def fractions(job_id: JobId, in_force: InForce) -> str:
    """`0.40 of the time on v100, 0.10 on k80 beside job 12`."""
    parts = sorted(in_force.of(job_id).items())
    named = [(_where(*slot), round(100.0 * fraction) / 100) for slot, fraction in parts]
    if not named:
        return "no part of the time" if in_force.counts(job_id) else "a part that is being computed"
    if len(named) > _NAMED:
        named.sort(key=lambda part: -part[1])
    (first, most), *others = named
    rest = "".join(f", {fraction:.2f} on {where}" for where, fraction in others[: _NAMED - 1])
    more = f" and {len(named) - _NAMED} smaller parts" if len(named) > _NAMED else ""
    return f"{most:.2f} of the time on {first}{rest}{more}"


def _where(gpu_type: str, beside: JobId) -> str:
    return f"{gpu_type or 'GPUs'}{'' if beside == ALONE else f' beside job {beside}'}"


def starts(member: Member, in_force: InForce) -> str:
    """It is on GPUs from now on."""
    where = member.assigned
    if not where:
        return "goes on where it is bound: its GPUs are free"
    if member.extra:
        return f"runs on {where}, which no job with a part of them takes: this does not count as its own part"
    return f"its turn on {_where(where, member.beside)}: it is allocated {fractions(member.id, in_force)}"


def shares(member: Member, in_force: InForce) -> str:
    """It stays on its GPUs, beside another job than before, or alone."""
    if member.beside == ALONE:
        return "has its GPUs to itself in this round"
    part = fractions(member.id, in_force)
    return f"shares its GPUs with job {member.beside} in this round: it is allocated {part}"


def stops(member: Member, in_force: InForce) -> Why:
    """It is off its GPUs from now on."""
    part = fractions(member.id, in_force)
    if member.assigned:
        words = f"goes on with GPUs of type {member.assigned}: it is allocated {part}"
        return Why(Reason.MIGRATES, words)
    return Why(Reason.TURN_OVER, f"its round is over: it is allocated {part}")


def waits(member: Member, in_force: InForce) -> Why:
    """It is off its GPUs."""
    if member.assigned:
        where = _where(member.assigned, member.beside)
        return Why(Reason.WAITS_FOR_GPUS, f"its turn on {where}: it starts when its GPUs are free")
    bound = f"; it stays on {member.hosted}, where it is bound" if member.hosted else ""
    part = fractions(member.id, in_force)
    return Why(Reason.WAITS_FOR_TURN, f"waits for its turn: it is allocated {part}{bound}")
