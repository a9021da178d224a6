# SPDX-License-Identifier: GPL-2.0-or-later
"""The jobs of a trace on a simulated cluster: which of them can run there, how much work they are, and how
fast they go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from controller.cluster.simulated_job import SimulatedJob, request_text
from controller.errors import GandivaError
from controller.model import JobId
from controller.policies.placement.groups import Spreads
from controller.settings.simulation import SimulationSettings
from controller.simulation.cluster_spec import ClusterSpec
from controller.simulation.ground_truth import GroundTruth, Throughputs, tensor_bytes
from controller.simulation.traces import TraceError, TraceJob
from controller.simulation.traces.base import without_number
from controller.simulation.traces.formats import model_slug

_LEAVE_OUT = " (--set simulation.drop_unfinishable=true leaves such jobs out)"


class Workload:
    """The jobs of one trace, with the numbers that Slurm gives them."""

    def __init__(
        self,
        trace: Path,
        jobs: Sequence[TraceJob],
        cluster: ClusterSpec,
        throughputs: Throughputs,
        costs: SimulationSettings,
    ) -> None:
        """`trace`: for messages. Raises GandivaError where a job cannot run here, or none can."""
        self._trace, self._cluster, self._costs = trace, cluster, costs
        self._throughputs = throughputs
        self._types = cluster.models
        self._counting = costs.placement == "count"
        self._ground_truth = GroundTruth(
            throughputs, self._types[0], not self._counting, costs.doubling_ratio
        )
        self._spreads = Spreads((node.gpus[0].model, len(node.gpus)) for node in cluster.nodes)
        self._largest_node = max(len(node.gpus) for node in cluster.nodes)
        self._type_of = {node.name: node.gpus[0].model for node in cluster.nodes}
        self._available = cache(cluster.of_types)
        self._work: dict[JobId, float] = {}
        """Seconds on the reference type."""
        self.jobs: dict[JobId, TraceJob] = {}
        """Those that can run, by submission."""
        for number, job in enumerate(map(self._here, jobs), start=1):
            work = self._work_of(job)
            if work is not None:
                self.jobs[JobId(number)], self._work[JobId(number)] = job, work
        if not self.jobs:
            raise GandivaError(f"{trace}: none of its jobs can run on this cluster")

    def submit_time(self, job: TraceJob) -> float:
        """When Slurm gets it: at the next boundary of a round, where there are rounds."""
        quantum = self._costs.round_seconds
        return math.ceil(job.submit_seconds / quantum - 1e-9) * quantum if quantum else job.submit_seconds

    def as_submitted(self, job_id: JobId) -> SimulatedJob:
        job, costs = self.jobs[job_id], self._costs
        usable = self._usable(job)
        most = costs.max_gpus if job.max_gpus is None else job.max_gpus
        largest, whole = tensor_bytes(job.model)
        speed = costs.checkpoint_bytes_per_second
        move_seconds = (whole or costs.checkpoint_bytes) / speed if speed else 0.0
        return SimulatedJob(
            id=job_id,
            user=job.user,
            account=job.account,
            qos=job.qos,
            partition=job.partition,
            request=request_text(
                job.gpus,
                nodes=None if self._counting else job.nodes,
                weight=job.weight,
                pack=job.may_pack,
                model=model_slug(job.model) or None,
                gpu_types=job.gpu_types if usable == self._types else usable,
                max_gpus=most if most > job.gpus else None,
            ),
            work_seconds=self._work[job_id],
            steps_per_second=self._ground_truth.steps_per_second(job.model, job.gpus) or 1.0,
            submit_time=job.submit_seconds,
            name=job.id,
            state_bytes=whole,
            largest_tensor_bytes=largest,
            checkpoint_seconds=move_seconds,
            restart_seconds=costs.restart_seconds + move_seconds if costs.restart_seconds else 0.0,
        )

    def has_store(self, job_id: JobId) -> bool:
        said = self.jobs[job_id].has_store
        return self._costs.stores if said is None else said

    def rate(self, job: SimulatedJob, beside: Sequence[SimulatedJob], gpus: int) -> float:
        """How fast it goes on so many GPUs, beside these jobs."""
        trace = self.jobs[job.id]
        spread = len(job.nodes) > -(-trace.gpus // self._largest_node)
        size = trace.gpus if beside else gpus
        if not self._throughputs.alone and not spread and not beside and size == trace.gpus:
            return 1.0
        others = [self.jobs[other.id] for other in beside]
        return self._ground_truth.relative_rate(
            trace.model,
            trace.gpus,
            self._type_of[job.nodes[0]],
            spread=spread,
            beside=[(other.model, other.gpus) for other in others],
            size=size,
        )

    def _here(self, job: TraceJob) -> TraceJob:
        """The job without what this cluster does not know, if its trace is a record of another one."""
        if not job.recorded:
            return job
        known = {name for node in self._cluster.nodes for name in node.partitions or ()}
        types = (kind if kind in self._types else without_number(kind) for kind in job.gpu_types)
        here = replace(
            job,
            gpu_types=tuple(dict.fromkeys(kind for kind in types if kind in self._types)),
            partition=",".join(name for name in job.partition.split(",") if name in known),
        )
        fits = self._spreads.counts(here.gpus, here.nodes, self._usable(here))
        return here if fits else replace(here, nodes=None)

    def _usable(self, job: TraceJob) -> tuple[str, ...]:
        """Those of the types that a job may use, all or the ones it names, where its throughput is not 0."""
        types = job.gpu_types or self._types
        return tuple(t for t in types if self._throughputs.rate(t, job.model, job.gpus) != 0)

    def _why_not(self, job: TraceJob) -> tuple[str, str]:
        """The column that keeps it from running here, and why, in words; none: it can."""
        available = self._available(job.gpu_types, job.partition)
        if job.gpus > available:
            types = "+".join(job.gpu_types)
            where = f"partition {job.partition}" if job.partition else "the cluster"
            return job.gpus_column, f" wants {job.gpus} GPUs, {where} has {available} {types}".rstrip()
        usable = self._usable(job)
        if not usable:
            types, gpus = ", ".join(job.gpu_types or self._types), f"{job.gpus} GPU{'s' * (job.gpus > 1)}"
            return "", f": the throughput of {job.model!r} with {gpus} is 0 on {types}"
        why = self._spreads.why_not(job.gpus, None if self._counting else job.nodes, usable)
        return job.gpus_column, f": {why}" if why else ""

    def _work_of(self, job: TraceJob) -> float | None:
        """Seconds on the reference type; None: left out. Raises TraceError."""
        drop = self._costs.drop_unfinishable
        column, why = self._why_not(job)
        if why and drop:
            return None
        if why:
            raise TraceError(self._trace, job.line, column, f"job {job.id}{why}{_LEAVE_OUT}")
        if job.duration_seconds is not None:
            return job.duration_seconds
        assert job.steps is not None
        rate = self._ground_truth.steps_per_second(job.model, job.gpus)
        if not rate and not drop:
            where = f"on {self._ground_truth.reference_type} with {job.gpus} GPUs"
            problem = f"the table of throughputs has no rate of {job.model!r} {where}"
            if not self._throughputs.alone:
                problem = "how long its steps take is not known: --throughputs names the table that says so"
            raise TraceError(self._trace, job.line, "job_type", problem)
        return job.steps / rate if rate else None
