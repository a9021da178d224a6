# SPDX-License-Identifier: GPL-2.0-or-later
"""Which actions lead from what is observed to what is planned. Pure."""

from collections.abc import Iterable, Mapping

from controller.act.actions import (
    FREES,
    Action,
    Cancel,
    Migrate,
    Place,
    Requeue,
    Resize,
    Resume,
    Save,
    Suspend,
    Withdraw,
)
from controller.model import (
    IN_HOST_MEMORY,
    GpuId,
    GpuSet,
    Job,
    JobId,
    Phase,
    Placement,
    Reason,
    Snapshot,
    StateAt,
    SuspendMethod,
    Target,
    Trespass,
    Unsaved,
    Unsuspendable,
    Why,
    reason_of,
)


def diff(
    snapshot: Snapshot,
    targets: Mapping[JobId, Target],
    reasons: Mapping[JobId, str],
    looked_at: Iterable[JobId],
    *,
    suspend_in_slurm: bool,
    default_method: SuspendMethod,
    trespass: Trespass = Trespass.KEEP,
) -> list[Action]:
    """The actions for the jobs that changed or have a target, those that free GPUs first.

    A job without a target stays as it is; one whose parts disagree is recovered all the same, and one that
    trespasses goes its way out, `trespass`. Nothing is done to jobs in transition, to held ones, or to those
    whose state is not known.
    """
    actions: list[Action] = []
    waited_for: GpuSet | None = None
    for job_id in sorted({*looked_at, *targets}):
        job = snapshot.jobs.get(job_id)
        if job is None or job.switching:
            continue
        reason = reasons.get(job_id, "")
        action = _way_out(job, trespass) if job.trespasses else None
        target = targets.get(job_id) or Target(job.placement)  # it stays as it is
        action = action or _action(job, target, reason, suspend_in_slurm, default_method)
        if action is None and job.unsaved and job.held_until is None:
            if waited_for is None and job.unsaved is Unsaved.MUCH:
                waited_for = _waited_for(snapshot)
            action = _save(job, waited_for or frozenset())
        if action is not None:
            actions.append(action)
    return sorted(actions, key=lambda action: not isinstance(action, FREES))


def _waited_for(snapshot: Snapshot) -> GpuSet:
    """GPUs in the allocations of jobs that are off them, or are to begin there: who has them leaves soon."""
    waiting = (job for job in snapshot.jobs.values() if not job.placement.gpus)
    return frozenset[GpuId]().union(*(job.allocation for job in waiting))


def _save(job: Job, waited_for: GpuSet) -> Action | None:
    least = Unsaved.MUCH if waited_for.isdisjoint(job.placement.gpus) else Unsaved.TOO_MUCH
    due = job.phase in IN_HOST_MEMORY or job.unsaved >= least
    words = "its state is written into its checkpoint store from time to time"
    return Save(job.id, Why(Reason.SAVED, words)) if due else None


def _way_out(job: Job, trespass: Trespass) -> Action | None:
    words = Why(
        Reason.TRESPASSES,
        "it has memory on GPUs not its own: its script set CUDA_VISIBLE_DEVICES, or a process stayed there",
    )
    if trespass is Trespass.CANCEL:
        return Cancel(job.id, words)
    may_requeue = trespass is Trespass.REQUEUE and job.may_requeue
    return Requeue(job.id, words, trespasses=True) if may_requeue else None


def _action(
    job: Job, target: Target, reason: str, suspend_in_slurm: bool, method: SuspendMethod
) -> Action | None:
    wanted, to_store = target.placement, target.keep is StateAt.STORE
    elsewhere = bool(wanted.gpus) and to_store
    if job.phase is Phase.STARTING:
        return Withdraw(job.id, Why(Reason.REPAIRED, "stale release; job re-held"))
    if job.held_until is not None:
        return None
    match job.phase:
        case Phase.STUCK:
            # Its memory may be on its GPUs: no other job can have them, so the way out is to let it run.
            why = Why(Reason.REPAIRED, "recovers an incomplete suspend or resume")
            return Resume(job.id, why, job.last)
        case Phase.QUEUED if wanted.gpus:
            return Place(job.id, reason, wanted.gpus, wanted.allocation)
        case Phase.SUSPENDED | Phase.YIELDED if elsewhere:
            return _start_again(job, wanted, reason)
        case Phase.SUSPENDED | Phase.YIELDED if wanted.gpus:
            return Resume(job.id, reason, wanted.gpus)
        case Phase.YIELDED if suspend_in_slurm:
            return Suspend(job.id, reason or Why(Reason.REPAIRED, "completes an incomplete suspend"))
        case Phase.RUNNING if wanted.gpus != job.placement.gpus:
            if elsewhere:
                return _start_again(job, wanted, reason)
            if wanted.gpus and len(wanted.gpus) != job.gpus:
                resizes = job.may_resize_here and wanted.gpus <= job.placement.allocation
                return Resize(job.id, _behind("changes its size", reason), wanted.gpus) if resizes else None
            if not wanted.gpus and to_store and job.may_migrate:
                return to_the_queue(job, reason)
            return _leave(job, bool(wanted.gpus), reason, method)
    return None


def _start_again(job: Job, wanted: Placement, reason: str) -> Action | None:
    """Stop it; where it goes on is promised to it."""
    if len(wanted.gpus) != job.gpus:
        return to_the_queue(job, _behind("changes its size", reason)) if job.may_resize else None
    if not job.may_migrate:
        return None
    return to_the_queue(job, _behind("migrates", reason), wanted.allocation)


def _behind(words: str, reason: str) -> Why:
    return Why(reason_of(reason), f"{words}: {reason}")


def to_the_queue(job: Job, reason: str, reserve: GpuSet = frozenset()) -> Action:
    """It starts again from its store where it has one, else from a checkpoint of its own."""
    return (Migrate if job.has_store else Requeue)(job.id, reason, reserve)


def _leave(job: Job, moves: bool, reason: str, method: SuspendMethod) -> Action | None:
    """Take a running job off its GPUs, for others or to go on elsewhere."""
    if not job.may_stop:
        return None
    failed = job.failed_suspends
    if failed is not None and failed.way_out is not Unsuspendable.KEEP:
        words = f"it cannot be suspended (failed attempts: {failed.tries}): {failed.why}"
        why = Why(Reason.CANNOT_BE_SUSPENDED, words)
        saves = job.has_store and job.may_migrate
        if moves:
            return None
        if failed.way_out is Unsuspendable.CANCEL:
            return Cancel(job.id, why)
        if saves:
            return Migrate(job.id, why)
        if failed.way_out is Unsuspendable.REQUEUE and job.may_requeue:
            return Requeue(job.id, why)
    if moves:
        reason = reason or Why(Reason.ITS_TURN, "its turn")
        return Suspend(job.id, _behind("moves to other GPUs of its node", reason))
    # A job that grew by starting again waits with the size that it asked for; one that grew in place may have
    # nothing to start from.
    grew = job.gpus != job.request.size.wanted and job.may_resize and not job.may_resize_here
    by_requeue = job.may_requeue and (job.request.suspend or method) is SuspendMethod.REQUEUE
    if by_requeue or grew:
        return to_the_queue(job, reason)
    return Suspend(job.id, reason, bool(job.unsaved) and not job.saves_off)
