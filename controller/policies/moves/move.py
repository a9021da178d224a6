# SPDX-License-Identifier: GPL-2.0-or-later
"""What a move is: a change of where jobs are, beside whom, or how large, proposed after the mechanism
decided.

A move never stops a job that the mechanism runs, and starts a waiting one only beside such a job or on what
the move freed.
"""

from collections.abc import Set
from typing import Protocol

from controller.model import GpuId, JobId, Snapshot
from controller.policies.placement.draft import Draft
from controller.policies.placement.sharing import refusal_to_share


class Move(Protocol):
    """One kind of move. Pure: all it knows is in the snapshot and the draft."""

    def propose(self, snapshot: Snapshot, draft: Draft) -> None:
        """Change the draft (`put`), and say why (`say`)."""


class Checked:
    """A site's own move, with a check that it keeps the rules: whatever it proposes, no job loses its GPUs to
    it, and none is put beside another one that it may not be beside.

    Raises ValueError naming the move and the job where a rule is broken."""

    def __init__(self, move: Move, name: str) -> None:
        self._move, self._name = move, name

    def propose(self, snapshot: Snapshot, draft: Draft) -> None:
        ran, mark = {i for i, placement in draft.placements.items() if placement.gpus}, draft.mark()
        self._move.propose(snapshot, draft)
        changed = draft.put_since(mark)
        for job_id in sorted(changed):
            problem = _problem(snapshot, draft, job_id, ran=job_id in ran)
            if problem:
                raise ValueError(f"{self._name}: job {job_id} {problem}")
        if changed:
            self._check_sharing(snapshot, draft, changed)

    def _check_sharing(self, snapshot: Snapshot, draft: Draft, changed: Set[JobId]) -> None:
        on: dict[GpuId, list[JobId]] = {}
        for job_id, placement in draft.placements.items():
            for gpu in placement.gpus:
                on.setdefault(gpu, []).append(job_id)
        for job_id in sorted(changed):
            placement = draft.of(job_id)
            others = {other for gpu in placement.gpus for other in on[gpu]} - {job_id}
            if others != placement.shares_with or len(others) > 1:
                words = f"is put beside {sorted(others)}, and says that it shares with"
                raise ValueError(f"{self._name}: job {job_id} {words} {sorted(placement.shares_with)}")
            for other in others:
                why = refusal_to_share(snapshot, snapshot.jobs[job_id], snapshot.jobs[other], placement.gpus)
                if why:
                    raise ValueError(f"{self._name}: job {job_id} may not be beside job {other}: {why}")


def _problem(snapshot: Snapshot, draft: Draft, job_id: JobId, *, ran: bool) -> str:
    """What is wrong with the placement of a job; empty: nothing."""
    job, placement = snapshot.jobs.get(job_id), draft.of(job_id)
    if job is None:
        return "is not in the snapshot"
    if ran and not placement.gpus:
        return "is stopped, which is for the order alone to decide"
    if placement.gpus and not job.placement.gpus and not job.may_start:
        return "is started, and may not be (may_start)"
    if placement.gpus and job.placement.gpus not in (frozenset(), placement.gpus) and not job.may_move:
        return "is moved, and may not be (may_move)"
    if placement.gpus and len(placement.gpus) != job.gpus:
        return f"gets {len(placement.gpus)} GPUs instead of {job.gpus}"
    if not placement.gpus <= placement.allocation:
        return "gets GPUs outside of its allocation"
    if job.placement.allocation and placement.allocation != job.placement.allocation:
        return "gets another allocation than it was given"
    return ""
