# SPDX-License-Identifier: GPL-2.0-or-later
"""The allocations by name."""

from collections.abc import Callable, Mapping

from controller.policies.allocations.allocation import Allocation
from controller.policies.allocations.cost import Cost, CostInTime
from controller.policies.allocations.finish_time import FinishTime
from controller.policies.allocations.random_pairs import RandomPairs
from controller.policies.allocations.settings import AllocationSettings
from controller.policies.allocations.shares import Isolated, Proportional
from controller.policies.allocations.strategy_proof import StrategyProof
from controller.policies.allocations.sums import Fifo, MaxThroughput
from controller.policies.allocations.together import Makespan, MaxMin
from controller.policies.allocations.water_filling import WaterFilling
from controller.policies.allocations.whole_gpus import Allox, ShortestFirst

ALLOCATIONS: Mapping[str, Callable[[AllocationSettings], Allocation]] = {
    "allox": Allox,
    "gavel-cost": Cost,
    "gavel-cost-slo": CostInTime,
    "gavel-fifo": Fifo,
    "gavel-ftf": FinishTime,
    "gavel-gandiva": RandomPairs,
    "gavel-hierarchical": WaterFilling,
    "gavel-las": MaxMin,
    "gavel-makespan": Makespan,
    "gavel-max-throughput": MaxThroughput,
    "gavel-sjf": ShortestFirst,
    "gavel-strategy-proof": StrategyProof,
    "isolated": lambda _settings: Isolated(),
    "proportional": lambda _settings: Proportional(),
}
"""From the settings."""
