# SPDX-License-Identifier: GPL-2.0-or-later
"""The allocations by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from controller.policies.allocations.allocation import Allocation
from controller.policies.allocations.allox import Allox
from controller.policies.allocations.allox_reference import AlloxReference
from controller.policies.allocations.cost import Cost
from controller.policies.allocations.finish_time import FinishTime
from controller.policies.allocations.greedy import FirstComeReference, ShortestFirst
from controller.policies.allocations.makespan import Makespan
from controller.policies.allocations.max_min import MaxMin
from controller.policies.allocations.random_pairs import RandomPairs
from controller.policies.allocations.shares import Isolated, Proportional
from controller.policies.allocations.strategy_proof import StrategyProof
from controller.policies.allocations.sums import Fifo, MaxThroughput
from controller.policies.allocations.water_filling import WaterFilling


def _or_reference(exact: Callable[[Any], Allocation], reference: Callable[[Any], Allocation]) -> Any:
    """By `formulation`."""
    return lambda settings: (exact if settings.formulation == "exact" else reference)(settings)


ALLOCATIONS: Mapping[str, Callable[[Any], Allocation]] = {
    "allox": _or_reference(Allox, AlloxReference),
    "gavel-cost": lambda settings: Cost(settings, slo=False),
    "gavel-cost-slo": lambda settings: Cost(settings, slo=True),
    "gavel-fifo": _or_reference(Fifo, FirstComeReference),
    "gavel-ftf": FinishTime,
    "gavel-gandiva": RandomPairs,
    "gavel-hierarchical": WaterFilling,
    "gavel-las": MaxMin,
    "gavel-makespan": Makespan,
    "gavel-max-throughput": MaxThroughput,
    "gavel-sjf": ShortestFirst,
    "gavel-strategy-proof": StrategyProof,
    "isolated": lambda settings: Isolated(settings.formulation == "exact"),
    "proportional": lambda settings: Proportional(settings.formulation == "exact"),
}
"""From the settings of the same name."""
