# SPDX-License-Identifier: GPL-2.0-or-later
"""From rows of the journal to messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from controller.api.messages import JobMessage, TimelineMessage, TimelineSliceMessage
from controller.journal import JobRecord, JobRow, Slice


def job_message(row: JobRow) -> JobMessage:
    """A row of the journal as the API shows it (without what only the running controller knows)."""
    values = {**_values(row), **_values(row.record)}
    return JobMessage.model_validate({**values, "job_id": row.record.id})


def timeline_message(slices: Sequence[Slice], time: float, limit: int) -> TimelineMessage:
    """Slices of the journal as the API shows them."""
    messages = [TimelineSliceMessage.model_validate(piece) for piece in slices]
    return TimelineMessage(time=time, slices=messages, truncated=len(messages) == limit)


def _values(known: JobRow | JobRecord) -> dict[str, Any]:
    return {field.name: getattr(known, field.name) for field in fields(known)}
