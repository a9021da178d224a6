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
from controller.policies.allocations.settings import (
    AlloxSettings,
    GavelCostSettings,
    GavelCostSloSettings,
    GavelFifoSettings,
    IsolatedSettings,
    ProportionalSettings,
)
from controller.policies.allocations.shares import Isolated, Proportional
from controller.policies.allocations.strategy_proof import StrategyProof
from controller.policies.allocations.sums import Fifo, MaxThroughput
from controller.policies.allocations.water_filling import WaterFilling


def _fifo(settings: GavelFifoSettings) -> Allocation:
    return Fifo(settings) if settings.formulation == "exact" else FirstComeReference(settings)


def _allox(settings: AlloxSettings) -> Allocation:
    return Allox(settings) if settings.formulation == "exact" else AlloxReference(settings)


def _cost(settings: GavelCostSettings) -> Allocation:
    return Cost(settings, slo=False)


def _cost_slo(settings: GavelCostSloSettings) -> Allocation:
    return Cost(settings, slo=True)


def _isolated(settings: IsolatedSettings) -> Allocation:
    return Isolated(settings.formulation == "exact")


def _proportional(settings: ProportionalSettings) -> Allocation:
    return Proportional(settings.formulation == "exact")


ALLOCATIONS: Mapping[str, Callable[[Any], Allocation]] = {
    "allox": _allox,
    "gavel-cost": _cost,
    "gavel-cost-slo": _cost_slo,
    "gavel-fifo": _fifo,
    "gavel-ftf": FinishTime,
    "gavel-gandiva": RandomPairs,
    "gavel-hierarchical": WaterFilling,
    "gavel-las": MaxMin,
    "gavel-makespan": Makespan,
    "gavel-max-throughput": MaxThroughput,
    "gavel-sjf": ShortestFirst,
    "gavel-strategy-proof": StrategyProof,
    "isolated": _isolated,
    "proportional": _proportional,
}
"""From the settings of the same name."""
