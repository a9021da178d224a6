# SPDX-License-Identifier: GPL-2.0-or-later
"""From rows of the journal to messages."""

from __future__ import annotations

from collections.abc import Sequence

from controller.api.messages import EventMessage, JobMessage, TimelineMessage, TimelineSliceMessage
from controller.journal import Event, JobRow, Slice


def job_message(row: JobRow) -> JobMessage:
    """A row of the journal as the API shows it (without what only the running controller knows)."""
    record = row.record
    return JobMessage(
        job_id=record.id,
        name=record.name,
        user=record.user,
        account=record.account,
        partition=record.partition,
        state=record.state,
        gpus=record.gpus,
        weight=record.weight,
        submit_time=record.submit_time,
        start_time=record.start_time,
        end_time=record.end_time,
        run_seconds=row.run_seconds,
        gpu_seconds=row.gpu_seconds,
        slices=row.slices,
        suspends=record.suspends,
        moves=record.moves,
        step_seconds=record.step_seconds,
        exit_code=record.exit_code,
        peak_memory_bytes=record.peak_memory_bytes,
        utilization_fraction=record.utilization_fraction,
        last_gpus=[str(gpu) for gpu in sorted(row.last_gpus)],
        on_gpus=row.on_gpus,
        reason=row.reason,
        request=dict(record.request),
    )


def event_message(event: Event) -> EventMessage:
    """An event as the API shows it."""
    return EventMessage(
        time=event.time, kind=event.kind, message=event.message, node=event.node, job_id=event.job_id
    )


def timeline_message(slices: Sequence[Slice], time: float, limit: int) -> TimelineMessage:
    """Slices of the journal as the API shows them."""
    messages = [
        TimelineSliceMessage(
            job_id=s.job_id,
            start=s.start,
            end=s.end,
            gpus=[str(gpu) for gpu in sorted(s.gpus)],
            reason=s.reason,
        )
        for s in slices
    ]
    return TimelineMessage(time=time, slices=messages, truncated=len(messages) == limit)
