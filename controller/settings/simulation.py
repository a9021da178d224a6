# SPDX-License-Identifier: GPL-2.0-or-later
"""The table [simulation]: durations of a simulated cluster, and how idealised it is."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from controller.settings.base import ByteSize, Section, setting
from controller.settings.policies import GAVEL, MaybeOwnPart

ShareName = Annotated[str, StringConstraints(pattern=r"^[^/\s|]+(/[^/\s|]+)?$")]


class SimulationSettings(Section):
    """The cluster that `gandiva simulate` makes; the daemon does not read it."""

    placement: Literal["nodes", "count"] = setting(
        "nodes",
        "nodes: GPUs are in nodes, gangs need room there. count: GPUs of one type are one pool, without "
        "fragments or places (as idealised simulators have it).",
    )
    round_seconds: Annotated[float, Field(ge=0, le=86400)] = setting(
        0.0, "Decisions are made only at multiples of this time, and jobs end there. 0: at every event."
    )
    reset_floor_seconds: Annotated[float, Field(ge=0, le=86400)] = setting(
        0.0,
        "Least time between two moments at which who runs is decided; jobs that come and GPUs that become "
        "free in between wait for the next. Needs round_seconds.",
    )
    progress: MaybeOwnPart = setting(
        "",
        "A class of a site's own that says how jobs get on with their work and when they end "
        "(controller/cluster/progress.py). Empty: with the time that they have GPUs.",
    )
    measure_rates: bool = setting(
        True,
        "Jobs tell how far they are, so that rates are measured. false: policies know the rates that "
        "--rates declares, and no others.",
    )
    coalesce_seconds: float = setting(
        0.0, "Wait after an event for others that belong to it, before deciding.", ge=0, le=60
    )
    rpc_seconds: float = setting(0.005, "One call to Slurm.", ge=0, le=60)
    start_seconds: float = setting(0.5, "From release in Slurm to running.", ge=0, le=3600)
    step_seconds: float = setting(
        0.5, "Wait for the end of a mini-batch when a job is suspended.", ge=0, le=3600
    )
    suspend_seconds: float = setting(0.5, "Copy of the GPU state to host memory.", ge=0, le=3600)
    resume_seconds: float = setting(0.5, "Copy back to the GPUs.", ge=0, le=3600)
    requeue_seconds: float = setting(1.5, "Slurm's part of a requeue.", ge=0, le=3600)
    restart_seconds: Annotated[float, Field(ge=0, le=86400)] = setting(
        20.0,
        "Time on its GPUs that a requeued job needs until it trains again (start of the framework, loading).",
    )
    checkpoint_bytes: ByteSize = setting(
        "2GiB", "Size of a job's checkpoint where the trace does not say; written before a requeue."
    )
    checkpoint_bytes_per_second: ByteSize = setting(
        "1GiB", "Speed of writing and reading checkpoints. 0: free."
    )
    max_gpus: Annotated[int, Field(ge=0, le=1_000_000)] = setting(
        0,
        "Jobs may grow to so many GPUs (--gandiva-gpus), where policy.moves has grow; jobs over several "
        "nodes do not. 0: only those of which a trace says it.",
    )
    stores: bool = setting(
        False,
        "The sessions of all jobs have a checkpoint store: a job that is preempted by suspend can migrate "
        "from it, as one that is requeued can from its own checkpoint. false: only those of "
        "jobs of which a trace says it.",
    )
    doubling_ratio: Annotated[float, Field(ge=1, le=2)] = setting(
        1.8,
        "How much faster a job is with twice the GPUs that it asked for, where no table of throughputs says "
        "it; with four times as many the square of that. 2: in proportion.",
    )
    drop_unfinishable: bool = setting(
        False, "Leave out jobs that the cluster can never run, instead of refusing the trace."
    )

    shares: dict[ShareName, Annotated[float, Field(ge=0, le=1e9)]] = setting(
        {},
        "Slurm's shares of accounts and users, for policy.fair_share and gavel-hierarchical: `account` or "
        "`account/user` -> shares. One that is not named has 1. Nothing is known of what users have used.",
    )

    @model_validator(mode="before")
    @classmethod
    def _without_leases(cls, values: Any) -> Any:
        """Keys of earlier releases that said nothing."""
        leases = ("lease_seconds", "lease_failures")
        if not isinstance(values, dict) or not any(key in values for key in leases):
            return values
        if any(values.get(key) for key in leases):
            raise ValueError(f"{' and '.join(leases)} are progress now: {GAVEL}")
        return {key: value for key, value in values.items() if key not in leases}

    @model_validator(mode="after")
    def _agree(self) -> "SimulationSettings":
        if self.reset_floor_seconds and not self.round_seconds:
            raise ValueError(
                f"reset_floor_seconds is {self.reset_floor_seconds:g} but round_seconds is 0: "
                "give the length of the rounds at whose boundaries is decided"
            )
        if self.progress and self.round_seconds:
            raise ValueError("progress and round_seconds both say when jobs end: leave one of them out")
        return self
