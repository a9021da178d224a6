# SPDX-License-Identifier: GPL-2.0-or-later
"""Named compositions of order, lanes and moves. To add one: a function here, and its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from controller.policies.allocations.as_problem import AsProblem
from controller.policies.allocations.settings import (
    READ_HISTORY,
    READ_PREVIOUS,
    SETTINGS,
    GavelGandivaSettings,
    SharingSettings,
)
from controller.policies.mechanisms.frame import Frame
from controller.policies.mechanisms.gang_lanes import GangLanes
from controller.policies.mechanisms.ordered import Ordered
from controller.policies.mechanisms.rounds.given import Terms
from controller.policies.mechanisms.rounds.policy import Rounds
from controller.policies.mechanisms.rounds.settings import (
    GavelCostSettings,
    GavelCostSloSettings,
    GavelHierarchicalSettings,
)
from controller.policies.mechanisms.slice_lanes import SliceLanes
from controller.policies.moves.move import Move
from controller.policies.orders.fair_share import FairShare
from controller.policies.orders.gittins import Gittins
from controller.policies.orders.order import Order
from controller.policies.orders.queues import Queues
from controller.policies.orders.samples import read_sizes
from controller.policies.orders.simple import Continuous, Fifo, Remaining, Smallest
from controller.policies.placement.consolidation import Consolidation
from controller.policies.protocol import Policy
from controller.policies.settings import (
    GandivaSettings,
    QueueSettings,
    TiresiasGittinsSettings,
    TiresiasLasSettings,
)

Moves: TypeAlias = Sequence[Move]


def gangs(
    order: Order,
    moves: Moves,
    *,
    consolidation: Consolidation | None = None,
    preempt: bool = True,
    backfill: bool = True,
) -> Policy:
    """An order over the whole cluster."""
    lanes = GangLanes(consolidation or Consolidation(), preempt=preempt, backfill=backfill)
    return Frame(Ordered(order, lanes, preempt=preempt), moves)


def _sorted(order: Order) -> Callable[[Any, Moves], Policy]:
    """In this order alone."""
    return lambda settings, moves: gangs(order, moves, backfill=settings.backfill)


def _gandiva(settings: GandivaSettings, moves: Moves) -> Policy:
    lanes = SliceLanes(slice_seconds=settings.slice_seconds, max_jobs_per_gpu=settings.max_jobs_per_gpu)
    return Frame(Ordered(FairShare(settings.slice_seconds), lanes), moves)


def _tiresias(order: Order, settings: QueueSettings, moves: Moves) -> Policy:
    consolidation = Consolidation(
        settings.consolidate,
        settings.pack_limit_fraction,
        settings.fit_pack_limit,
        settings.consolidate_wait_seconds,
    )
    return gangs(order, moves, consolidation=consolidation, backfill=settings.backfill)


def _tiresias_las(settings: TiresiasLasSettings, moves: Moves) -> Policy:
    order: Order = Queues(settings)
    if not settings.discretised:
        gpu_time = settings.service == "gpu-seconds"
        order = Continuous(epoch_seconds=settings.interval_seconds, gpu_time=gpu_time)
    return _tiresias(order, settings, moves)


def _tiresias_gittins(settings: TiresiasGittinsSettings, moves: Moves) -> Policy:
    samples = read_sizes(Path(settings.distribution)) if settings.distribution else []
    return _tiresias(Gittins(settings, samples), settings, moves)


def _in_rounds(name: str) -> Callable[[Any, Moves], Policy]:
    """The allocation of this name."""
    return lambda settings, moves: _rounds(name, settings, moves, Terms())


def _cost(settings: GavelCostSettings, moves: Moves) -> Policy:
    return _rounds("gavel-cost", settings, moves, Terms(prices=settings.prices))


def _cost_slo(settings: GavelCostSloSettings, moves: Moves) -> Policy:
    terms = Terms(prices=settings.prices, deadline_ratio=settings.deadline_ratio)
    return _rounds("gavel-cost-slo", settings, moves, terms)


def _hierarchical(settings: GavelHierarchicalSettings, moves: Moves) -> Policy:
    terms = Terms(inside=settings.inside, inside_of=settings.inside_of)
    return _rounds("gavel-hierarchical", settings, moves, terms)


def pairs_jobs(settings: Any) -> bool:
    """Whether the allocation of these settings gives two jobs the same GPUs."""
    if isinstance(settings, SharingSettings):
        return settings.space_sharing
    return isinstance(settings, GavelGandivaSettings)


def _rounds(name: str, settings: Any, moves: Moves, terms: Terms) -> Policy:
    """The allocation of this name in rounds."""
    stated = AsProblem(name, settings)
    terms = replace(terms, previous=name in READ_PREVIOUS, history=name in READ_HISTORY)
    return Frame(Rounds(stated, settings, name=name, terms=terms, pairs=pairs_jobs(settings)), moves)


WEIGHED_BY_SERVER = frozenset({"gandiva"})
"""Presets that read weights of jobs which compete on each server."""
WEIGHED = WEIGHED_BY_SERVER | {"gavel-ftf", "gavel-hierarchical", "gavel-las", "isolated"}
"""Presets that read weights."""
PRESETS: Mapping[str, Callable[[Any, Moves], Policy]] = {
    "fifo": lambda settings, moves: gangs(Fifo(), moves, preempt=False, backfill=settings.skip),
    "fifo-skip": lambda _settings, moves: gangs(Fifo(), moves, preempt=False),
    "gandiva": _gandiva,
    "sjf": _sorted(Smallest()),
    "srsf": _sorted(Remaining(service=True)),
    "srtf": _sorted(Remaining()),
    "tiresias-gittins": _tiresias_gittins,
    "tiresias-las": _tiresias_las,
    **{name: _in_rounds(name) for name in SETTINGS},
    "gavel-cost": _cost,
    "gavel-cost-slo": _cost_slo,
    "gavel-hierarchical": _hierarchical,
}
"""Composition by name, from its settings and the moves that follow it."""
