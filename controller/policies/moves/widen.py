# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs that may change their size in place are bound to all GPUs of their server when they start, and float
there: what they grow into is in their allocation then (SPEC 1.6)."""

from __future__ import annotations

from controller.model import Job, Placement, Snapshot
from controller.policies.moves.free import bindings
from controller.policies.placement.draft import Draft


def widen(snapshot: Snapshot, draft: Draft) -> None:
    """Those that this plan places on GPUs of one server, and that have no promise elsewhere."""
    bound = bindings(snapshot)
    for job_id in sorted(draft.put_since()):
        job, placement = snapshot.jobs[job_id], draft.of(job_id)
        names = {gpu.node for gpu in placement.allocation}
        if not _starts_here(job, placement) or len(names) != 1:
            continue
        node = snapshot.nodes[names.pop()]
        if node.unconfined:
            continue  # it could use all of them at once
        room = {gpu.id for gpu in node.gpus if gpu.usable and bound[gpu.id] < gpu.shards}
        draft.put(job_id, Placement(placement.gpus, placement.allocation | room))


def _starts_here(job: Job, placement: Placement) -> bool:
    new = job.may_resize_here and not job.placement.allocation and not job.promised
    return new and bool(placement.gpus) and not placement.shares_with
