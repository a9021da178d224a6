# SPDX-License-Identifier: GPL-2.0-or-later
"""Named compositions of order, lanes and moves. To add one: a function here, and its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from controller.policies.allocations.as_problem import AsProblem
from controller.policies.allocations.settings import KEYS, READ_HISTORY, READ_PREVIOUS
from controller.policies.mechanisms.frame import Frame
from controller.policies.mechanisms.gang_lanes import GangLanes
from controller.policies.mechanisms.rounds.settings import TERMS
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

if TYPE_CHECKING:
    from controller.settings.policies import PolicySettings

Moves: TypeAlias = Sequence[Move]
Preset: TypeAlias = "Callable[[PolicySettings, Moves], Policy]"


def gangs(
    order: Order,
    moves: Moves,
    *,
    consolidation: Consolidation | None = None,
    preempt: bool = True,
    backfill: bool = True,
) -> Policy:
    """An order over the whole cluster."""
    lanes = GangLanes(order, consolidation or Consolidation(), preempt=preempt, backfill=backfill)
    return Frame(lanes, moves)


def _sorted(order: Order) -> Preset:
    """In this order alone."""
    return lambda settings, moves: gangs(order, moves, backfill=settings.backfill)


def _gandiva(settings: PolicySettings, moves: Moves) -> Policy:
    own = settings.gandiva
    order, seconds = FairShare(own.slice_seconds), own.slice_seconds
    return Frame(SliceLanes(order, slice_seconds=seconds, max_jobs_per_gpu=own.max_jobs_per_gpu), moves)


def _tiresias(order: Order, settings: PolicySettings, moves: Moves) -> Policy:
    shared = settings.tiresias
    consolidation = Consolidation(
        shared.consolidate, shared.pack_limit_fraction, shared.fit_pack_limit, shared.consolidate_wait_seconds
    )
    return gangs(order, moves, consolidation=consolidation, backfill=settings.backfill)


def _tiresias_las(settings: PolicySettings, moves: Moves) -> Policy:
    shared = settings.tiresias
    order: Order = Queues(shared)
    if shared.order == "least-service":
        gpu_time = shared.service == "gpu-seconds"
        order = Continuous(epoch_seconds=shared.interval_seconds, gpu_time=gpu_time)
    return _tiresias(order, settings, moves)


def _tiresias_gittins(settings: PolicySettings, moves: Moves) -> Policy:
    own = settings.tiresias_gittins
    samples = read_sizes(Path(own.distribution)) if own.distribution else []
    return _tiresias(Gittins(settings.tiresias, own, samples), settings, moves)


def pairs_jobs(settings: PolicySettings) -> bool:
    """Whether the allocation of these settings gives two jobs the same GPUs."""
    return bool(settings.in_use.get("policy.allocation.space_sharing", settings.name == "gavel-gandiva"))


def _rounds(settings: PolicySettings, moves: Moves) -> Policy:
    """The allocation of this name in rounds."""
    # NumPy takes a moment to load, and most policies have no allocation.
    from controller.policies.mechanisms.rounds.given import Terms
    from controller.policies.mechanisms.rounds.policy import Rounds

    name, table = settings.name, settings.allocation
    reads = {key: getattr(table, key) for key in TERMS.get(name, ())}
    terms = Terms(**reads, previous=name in READ_PREVIOUS, history=name in READ_HISTORY)
    stated, pairs = AsProblem(name, table), pairs_jobs(settings)
    return Frame(Rounds(stated, settings.rounds, name=name, terms=terms, pairs=pairs), moves)


WEIGHED_BY_NODE = frozenset({"gandiva"})
"""Presets that read weights of jobs which compete on each node."""
WEIGHED = WEIGHED_BY_NODE | {"gavel-ftf", "gavel-hierarchical", "gavel-las", "isolated"}
"""Presets that read weights."""
PRESETS: Mapping[str, Preset] = {
    "fifo": lambda _settings, moves: gangs(Fifo(), moves, preempt=False, backfill=False),
    "fifo-skip": lambda _settings, moves: gangs(Fifo(), moves, preempt=False),
    "gandiva": _gandiva,
    "sjf": _sorted(Smallest()),
    "srsf": _sorted(Remaining(service=True)),
    "srtf": _sorted(Remaining()),
    "tiresias-gittins": _tiresias_gittins,
    "tiresias-las": _tiresias_las,
    **dict.fromkeys(KEYS, _rounds),
}
"""Composition by name, from the table [policy] and the moves that follow it."""
