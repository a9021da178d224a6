# SPDX-License-Identifier: GPL-2.0-or-later
"""Orders that are polled: no job is asked for its time before that can have come."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.model import Usage
from controller.policies.orders.queues import QueueNote, Queues
from controller.policies.settings import QueueSettings
from tests.unit.policies.ideal import make_job

times = st.integers(0, 50_000).map(lambda tenths: tenths / 10)


@pytest.mark.parametrize("service", ["seconds", "gpu-seconds"])
@given(gpus=st.sampled_from([1, 2, 3, 8, 64]), ran=times, forgiven=times, asked=times, later=times)
def test_no_time_is_earlier_than_the_one_that_was_said_to_be_the_first(
    service: Literal["seconds", "gpu-seconds"],
    gpus: int,
    ran: float,
    forgiven: float,
    asked: float,
    later: float,
) -> None:
    settings = QueueSettings(queue_limits=[3000.0], demotion="at-events", service=service)
    order, job = Queues(settings), make_job(1, gpus, 1e6)
    usage = Usage(seconds=ran, gpu_seconds=ran * gpus, since=1000.0, gpus=gpus)
    forgiven = min(forgiven, ran)
    note = QueueNote(forgiven_seconds=forgiven, forgiven_gpu_seconds=forgiven * gpus)
    now = 1000.0 + asked
    first = order.ask_at(job, usage, note, now, order.until(job, usage, note, now))
    assert order.until(job, usage, note, now + later) >= first
