# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of the presets that serve an allocation in rounds: the rounds', and those of all allocations."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from controller.policies.allocations.allocation import Inside
from controller.policies.allocations.settings import AllocationSettings
from controller.settings.base import Section, setting


class RoundSettings(Section):
    """Rounds, in which allox, isolated, proportional and the policies of Gavel give GPUs to jobs."""

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


class AllocationTable(AllocationSettings):
    """The allocation that is served in rounds. What an allocation does not read has no effect on it."""

    prices: dict[str, Annotated[float, Field(gt=0, le=1e9)]] = setting(
        {}, "Of one GPU for an hour, by type: { v100 = 3.1, k80 = 0.8 }. A type that is not named costs 1."
    )
    deadline_ratio: float = setting(
        0.0,
        "A job without a deadline of its own is to end within so many times its declared duration from its "
        "submission. 0: it has no deadline.",
        ge=0,
        le=1e6,
    )
    inside: Inside = setting(
        "fairness",
        "How the jobs of a Slurm account share what the account has. fairness: users by their shares, and a "
        "user's jobs by their weights. fifo: one after the other by arrival.",
    )
    inside_of: dict[str, Inside] = setting(
        {}, 'The same for some accounts: { vision = "fifo" }. Others have `inside`.', max_length=10_000
    )


TERMS: Mapping[str, tuple[str, ...]] = {
    "gavel-cost": ("prices",),
    "gavel-cost-slo": ("prices", "deadline_ratio"),
    "gavel-hierarchical": ("inside", "inside_of"),
}
"""Keys that the rounds read for an allocation."""
