# SPDX-License-Identifier: GPL-2.0-or-later
"""Random traces: each plan equals one from nothing (asserted by Ideal), gangs are whole, no GPU runs two
jobs, and all jobs end."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from controller.model import Job, Profile
from controller.policies.mechanisms.frame import Frame
from controller.policies.mechanisms.gang_lanes import GangLanes
from controller.policies.mechanisms.slice_lanes import SliceLanes
from controller.policies.moves.pack import Pack
from controller.policies.orders.fair_share import FairShare
from controller.policies.orders.gittins import Gittins
from controller.policies.orders.order import Order
from controller.policies.orders.queues import Queues
from controller.policies.orders.simple import Continuous, Fifo, Remaining
from controller.policies.placement.consolidation import Consolidation
from controller.policies.protocol import Policy
from controller.policies.settings import QueueSettings, TiresiasGittinsSettings, TrialSettings
from tests.unit.policies.ideal import GIB, Ideal, make_job, make_node

LIMITS = QueueSettings(queue_limits=[20.0, 60.0], promote_knob_ratio=1.0)
GITTINS = TiresiasGittinsSettings(samples_needed=3, quantum_gpu_seconds=20.0)
GITTINS_LIMITS = QueueSettings(queue_limits=[20.0], interval_seconds=7.0)
ORDERS: dict[str, Callable[[], Order]] = {
    "fifo": Fifo,
    "srsf": lambda: Remaining(service=True),
    "las": lambda: Queues(LIMITS),
    "las-entry": lambda: Queues(LIMITS.model_copy(update={"order": "queue-entry", "demotion": "at-events"})),
    "las-entry-exact": lambda: Queues(LIMITS.model_copy(update={"order": "queue-entry"})),
    "continuous": lambda: Continuous(epoch_seconds=7.0),
    "gittins": lambda: Gittins(GITTINS_LIMITS, GITTINS),
}


def jobs(seed: int) -> list[Job]:
    draw, submit, made = random.Random(seed), 0.0, list[Job]()
    for number in range(1, 26):
        gpus = draw.choice([1, 1, 1, 2, 2, 4, 8])
        nodes = draw.choice([None, None, 1]) if gpus <= 4 else None
        job = make_job(number, gpus, draw.choice([3.0, 11.5, 40.0]), submit=submit, nodes=nodes)
        weight = draw.choice([1.0, 1.0, 2.0, 0.5])
        request = replace(job.request, may_pack=draw.random() < 0.5, weight=weight)
        made.append(replace(job, request=request, priority_class=draw.choice([0, 0, 0, 1])))
        submit += draw.choice([0.0, 0.0, 2.5, 9.0])
    return made


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(4))
def test_gangs(order: str, bound: bool, seed: int) -> None:
    preempt, keep = order != "fifo", 5.0 if seed == 3 else 0.0

    def make() -> Policy:
        moves = [Pack(TrialSettings(trial_seconds=3.0, cooldown_seconds=30.0))] if seed % 2 else []
        consolidation = Consolidation("always" if seed == 2 else "never", wait_seconds=30.0)
        return Frame(GangLanes(ORDERS[order](), consolidation, preempt=preempt), moves)

    ideal = Ideal(make, [make_node(f"n{i}", 4) for i in range(3)], jobs(seed), bound=bound, keep_seconds=keep)
    ideal.profiles = {job.id: Profile(peak_memory_bytes=20 * GIB) for job in ideal.arrivals}
    ideal.speed = lambda job, beside: 0.45 if beside and job.id % 4 == 0 else 1.0 - 0.4 * len(beside)
    assert len(ideal.run().ends) == 25


@pytest.mark.parametrize("seed", range(12))
def test_slices(seed: int) -> None:
    def make() -> Policy:
        return Frame(SliceLanes(FairShare(5.0), slice_seconds=5.0))

    ideal = Ideal(make, [make_node(f"n{i}", 4) for i in range(3)], jobs(seed), bound=True)
    assert len(ideal.run().ends) == 25
