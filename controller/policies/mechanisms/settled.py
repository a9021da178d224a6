# SPDX-License-Identifier: GPL-2.0-or-later
"""Gangs off their GPUs that have no choice of GPUs: they start once these are free, in whatever order and
round."""

from collections.abc import Iterable

from controller.model import Placement
from controller.policies.mechanisms import sentences
from controller.policies.mechanisms.row import Row
from controller.policies.placement.draft import Draft
from controller.policies.placement.free import Free
from controller.policies.placement.gangs import find


def let_arrive(draft: Draft, rows: Iterable[Row]) -> list[Row]:
    """Jobs that a move has sent elsewhere start where their GPUs are promised to them. Returns those that
    do."""
    arrived = []
    for row in sorted(rows, key=lambda row: row.id):
        promised = draft.of(row.id)
        if promised.allocation and not promised.gpus:
            draft.put(row.id, Placement(promised.allocation, promised.allocation))
            if row.job.promised_size:
                draft.say(row.id, sentences.resized(row.job))
            arrived.append(row)
    return arrived


def let_return(draft: Draft, free: Free, rows: Iterable[Row]) -> None:
    """A node that is being drained gets empty when the jobs bound to it have ended: those that are off their
    GPUs go on there when all of them are idle."""
    for row in rows:
        gpus = find(free, row.job)
        if gpus is not None and not draft.of(row.id).gpus:
            draft.put(row.id, Placement(gpus, row.job.placement.allocation))
