# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of moves and of presets: one table of the settings file each."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from controller.settings.base import Section, setting

MOVE_NAMES = ("pack", "defragment", "locality", "balance", "separate", "grow")
"""Moves that come with Gandiva."""


class TrialSettings(Section):
    """Trials of the moves pack, separate and grow: something is changed for some jobs, their rates are
    measured, and what gained nothing is undone."""

    trial_seconds: float = setting(
        60.0,
        "How long a trial takes until rates are compared with those before; at least 20 mini-batches of each "
        "job, however long they take.",
        gt=0,
        le=86400,
    )
    gain_fraction: float = setting(
        0.05,
        "What was tried is kept where it gains more than this. separate and grow: the job's rate has risen "
        "by more. pack: the sum of both rates, each relative to that alone, exceeds 1 by more; jobs that "
        "take turns have just 1.",
        ge=0,
        le=10,
    )
    cooldown_seconds: float = setting(
        3600.0,
        "How long the result of a trial holds for all jobs of the same models on the same type and number of "
        "GPUs. Jobs without a model (--gandiva-model) are tried one by one.",
        ge=0,
        le=1e7,
    )


class MigrationSettings(Section):
    """When a job migrates, whichever move wants it (defragment, locality, balance, separate)."""

    cost_seconds: float = setting(
        60.0,
        "What a migration takes, from the last mini-batch to the first one elsewhere, until the parts of it "
        "were measured: checkpoint and requeue, start, and load.",
        ge=0,
        le=86400,
    )
    horizon_seconds: float = setting(
        600.0, "How long the gain counts; less where a job declared that it ends sooner.", gt=0, le=1e7
    )
    gain_ratio: float = setting(
        3.0,
        "The gain in GPU-seconds must exceed the cost, that of all GPUs that migrate, so many times.",
        ge=0,
        le=1e6,
    )
    cooldown_seconds: float = setting(
        600.0, "A job migrates once in so long, and once in so long others do for it.", ge=0, le=1e7
    )
    most_at_once: int = setting(4, "So many jobs at most are on their way at a time.", ge=1, le=10_000)


class DefragmentSettings(Section):
    """The move defragment: jobs migrate from a nearly free node, for one that waits and needs it."""

    free_fraction: float = setting(
        0.75, "A node is cleared only where at least so much of its GPUs is free.", ge=0, le=1
    )


class LocalitySettings(Section):
    """The move locality: a gang that is spread over nodes is brought together when there is room."""

    assumed_gain_fraction: float = setting(
        0.33,
        "So much more a gang is assumed to do where it is brought together, until its model was measured or "
        "declared spread and together. The mean of four models in Tiresias, figure 3.",
        ge=0,
        le=100,
    )


class SeparateSettings(Section):
    """The move separate: a job that has become slower beside others of its node goes elsewhere on trial."""

    loss_fraction: float = setting(
        0.1,
        "A job is slow where it does less, by more than this, than the most that was measured of it, or of a "
        "job of its model, on as many GPUs of the type.",
        ge=0,
        lt=1,
    )
    look_seconds: float = setting(60.0, "Rates are looked at so often at least.", ge=1, le=86400)


class GrowSettings(Section):
    """The move grow: jobs with --gandiva-gpus take GPUs of their node that no job needs, and give them back
    when one may need them."""

    idle_seconds: float = setting(
        300.0,
        "A job grows once the free GPUs of its node have been free for so long, and no job that could use "
        "them waits. It shrinks at once.",
        ge=0,
        le=1e7,
    )
    in_place: bool = setting(
        False,
        "Jobs with --gandiva-gpus that are suspended with the help of their sessions are bound to all GPUs "
        "of their node, and change their size there without a requeue. Slurm gives these GPUs to no "
        "ordinary job meanwhile.",
    )


class GandivaSettings(Section):
    """Affinity placement and weighted fair time-slicing (OSDI'18)."""

    slice_seconds: float = setting(
        60.0,
        "How long a job runs before the next one on its node gets its turn. The paper uses 60 s: a switch "
        "(a mini-batch, the copy of the GPU state and two calls to Slurm) is then a small part of it.",
        ge=0.5,
        le=86400,
    )
    max_jobs_per_gpu: int = setting(
        4,
        "How many jobs may take turns on a GPU, on average over a node; more wait in the queue. Slurm's "
        "shard count per GPU (the over-subscription depth) is a second limit.",
        ge=1,
        le=64,
    )
    priority_by_qos: dict[str, Annotated[int, Field(ge=-1000, le=1000)]] = setting(
        {},
        "Priority class per Slurm QOS; a QOS that is not named has class 0. A job is never suspended for "
        "one of a lower class.",
    )


def _rising(limits: list[float]) -> list[float]:
    if any(later <= earlier for earlier, later in pairwise(limits)):
        raise ValueError("must be rising numbers, such as [3600, 36000]")
    return limits


Limits = Annotated[list[Annotated[float, Field(gt=0, le=1e12)]], AfterValidator(_rising)]


class QueueSettings(Section):
    """What tiresias-las and tiresias-gittins share: queues, promotion, consolidation."""

    queue_limits: Limits = setting(
        [3600.0],
        "Attained service (GPU-seconds) at which a job leaves queue 1, 2, … for the next one. K limits make "
        "K+1 queues.",
        max_length=32,
    )
    service: Literal["gpu-seconds", "seconds"] = setting(
        "gpu-seconds",
        "What attained service is measured in. gpu-seconds: size of the gang times time on GPUs (two-"
        "dimensional). seconds: time on GPUs alone.",
    )
    promote_knob_ratio: float = setting(
        8.0,
        "A job that has waited so many times as long as it has run goes back to queue 1 (PROMOTEKNOB). "
        "0: never.",
        ge=0,
        le=1e6,
    )
    promote_waiting: Literal["since-last-run", "since-promotion"] = setting(
        "since-last-run",
        "Which waiting counts for promotion: that since it last ran, or all since its last promotion.",
    )
    order: Literal["start-time", "queue-entry", "least-service"] = setting(
        "start-time",
        "Order inside a queue. start-time: by first start, jobs that never started last. queue-entry: those "
        "that run first, then by the time they entered the queue (the authors' simulator). least-service, of "
        "tiresias-las: there are no queues, the job with the least attained service is first at all times.",
    )
    demotion: Literal["exact", "at-events"] = setting(
        "exact",
        "When a job is moved to the next queue. exact: when its service reaches the limit. at-events: by one "
        "queue at most with each event, the next look being planned as (limit - seconds on GPUs) / GPUs, "
        "which is late for gangs (the authors' simulator).",
    )
    interval_seconds: float = setting(
        60.0,
        "How often orders that change while jobs run (Gittins index, least-service) are made anew "
        "while jobs wait. 0: with each decision.",
        ge=0,
        le=86400,
    )
    consolidate: Literal["skewed", "always", "never"] = setting(
        "skewed",
        "Which jobs must be on as few nodes as possible: those whose model is dominated by one tensor, all, "
        "or none.",
    )
    pack_limit_fraction: float = setting(
        0.38,
        "Skew (largest tensor / model size) above which a model counts as skewed, until enough jobs ran both "
        "ways to fit it (PACKLIMIT).",
        ge=0,
        le=1,
    )
    fit_pack_limit: bool = setting(True, "Fit pack_limit_fraction to the step times seen in both placements.")
    consolidate_wait_seconds: float = setting(
        3600.0,
        "A skewed job that has waited so long for a consolidated place takes any. 0: it waits for ever.",
        ge=0,
        le=1e9,
    )


class TiresiasGittinsSettings(Section):
    """Tiresias-G: Gittins index in each queue, from the distribution of the GPU time of finished jobs."""

    mode: Literal["textbook", "tiresias-sim", "tiresias-sim-integer"] = setting(
        "textbook",
        "The index as defined, or the table of the authors' simulator (its denominator takes whole sizes of "
        "jobs instead of what is left of them), or that table with the integer division it is run with.",
    )
    quantum: Literal["fixed", "sup", "queue"] = setting(
        "fixed",
        "Service quantum of the index: quantum_gpu_seconds, the best one (sup), or the limit of the job's "
        "queue.",
    )
    quantum_gpu_seconds: float = setting(3250.0, "The fixed quantum.", gt=0, le=1e12)
    preemption_seconds: float = setting(
        5.0,
        "GPU time that a preemption costs. A job that has started keeps its place before the others of its "
        "queue for 20 times as long, so that at most a twentieth of the GPU time goes into it. 0: no limit.",
        ge=0,
        le=86400,
    )
    distribution: str = setting(
        "",
        "CSV file with a column `duration`: GPU-seconds of finished jobs to begin with. Empty: learn from "
        "the first jobs that end; until then the order is that of tiresias-las.",
    )
    samples_kept: int = setting(
        1000,
        "So many of the last finished jobs are the distribution, which is kept over restarts. 0: jobs that "
        "end are not taken into it.",
        ge=0,
        le=100000,
    )
    samples_needed: int = setting(20, "From how many samples on the index is used.", ge=1, le=100000)
