# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of the presets that serve an allocation in rounds: the rounds', and the allocation's own."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from controller.policies.allocations import settings as own
from controller.policies.allocations.allocation import Inside
from controller.settings.base import Section, setting


class RoundSettings(Section):
    """What all of them have."""

    round_seconds: float = setting(
        360.0,
        "Length of a round. At its end it is decided who runs in the next one; a job that goes on with its "
        "GPUs is not stopped.",
        ge=1,
        le=86400,
    )
    reset_seconds: float = setting(
        1920.0,
        "The time that jobs received is counted anew with a new allocation, at most so often. The allocation "
        "itself is computed anew at once.",
        ge=0,
        le=1e6,
    )
    refill: bool = setting(
        True,
        "Within a round, GPUs that become free are given to jobs that wait. false: they wait for its end.",
    )
    change_types: bool = setting(
        True,
        "A job that has a checkpoint store, or is suspended by a requeue, changes types by way of its "
        "checkpoint. false: it stays on the type where Slurm has bound it.",
    )
    placement_sensitive: bool = setting(
        False,
        "Time on as few nodes as a gang needs and time on more nodes are allocated apart, where its rates on "
        "both are known, and it is placed so. For jobs that leave the number of nodes to the policy.",
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_options: Any) -> None:
        """A table is described as its allocation is."""
        cls.__doc__ = cls.__doc__ or cls.__bases__[-1].__doc__


class GavelLasSettings(RoundSettings, own.GavelLasSettings): ...


class GavelFifoSettings(RoundSettings, own.GavelFifoSettings): ...


class GavelSjfSettings(RoundSettings, own.GavelSjfSettings): ...


class GavelMakespanSettings(RoundSettings, own.GavelMakespanSettings): ...


class GavelFtfSettings(RoundSettings, own.GavelFtfSettings): ...


class GavelMaxThroughputSettings(RoundSettings, own.GavelMaxThroughputSettings): ...


class PricedSettings(RoundSettings):
    """What the cost policies have besides."""

    prices: dict[str, Annotated[float, Field(gt=0, le=1e9)]] = setting(
        {}, "Of one GPU for an hour, by type: { v100 = 3.1, k80 = 0.8 }. A type that is not named costs 1."
    )


class GavelCostSettings(PricedSettings, own.GavelCostSettings): ...


class GavelCostSloSettings(PricedSettings, own.GavelCostSloSettings):
    deadline_ratio: float = setting(
        0.0,
        "A job without a deadline of its own is to end within so many times its declared duration from its "
        "submission. 0: it has no deadline.",
        ge=0,
        le=1e6,
    )


class GavelHierarchicalSettings(RoundSettings, own.GavelHierarchicalSettings):
    inside: Inside = setting(
        "fairness",
        "How the jobs of a Slurm account share what the account has. fairness: users by their shares, and a "
        "user's jobs by their weights. fifo: one after the other by arrival.",
    )
    inside_of: dict[str, Inside] = setting(
        {}, 'The same for some accounts: { vision = "fifo" }. Others have `inside`.', max_length=10_000
    )


class GavelStrategyProofSettings(RoundSettings, own.GavelStrategyProofSettings): ...


class AlloxSettings(RoundSettings, own.AlloxSettings): ...


class IsolatedSettings(RoundSettings, own.IsolatedSettings): ...


class ProportionalSettings(RoundSettings, own.ProportionalSettings): ...


class GavelGandivaSettings(RoundSettings, own.GavelGandivaSettings): ...
