# SPDX-License-Identifier: GPL-2.0-or-later
"""`/metrics` for Prometheus: prefix `gandiva_`, base units, counters end in `_total`.

Gauges of the present come from the last cycle when Prometheus scrapes; events are counted as they happen, by
`Metrics`, which is the daemon's `Measures`. No label names jobs or users: their number has no bound.
"""

import os
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from controller import __version__
from controller.act.recorder import Outcome, Step
from controller.api.live import LiveState, Published
from controller.api.messages import GpuMessage, GpusMessage
from controller.cluster.adapter import CALLS
from controller.cluster.adapter import OUTCOMES as CALL_OUTCOMES
from controller.model import ON_GPU, Phase, Reason, Verdict
from controller.policies.settings import MOVE_NAMES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
USES = ("running", "ordinary", "idle", "unavailable")
OPERATIONS = ("place", "suspend", "resume", "resize", "requeue", "migrate", "save", "cancel", "withdraw")

CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
"""Seconds, from one call to an idle slurmctld to the longest deadlines."""
WAIT_BUCKETS = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 72 * 3600, 7 * 24 * 3600)
"""Seconds."""
GAINS = (0.5, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0)
_OFF_GPUS = {phase.value for phase in Phase if phase not in ON_GPU}
_JUDGED = {Verdict.KEPT.value, Verdict.UNDONE.value}


class Metrics:
    """The metrics of one controller. Implements `Measures`; safe to read from any thread."""

    def __init__(self, live: LiveState, journal: Path) -> None:
        """`journal`: the file whose size and free space are exported."""
        # All series begin with the process.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        registry.register(_Now(live, journal))
        ProcessCollector(registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"gandiva_{name}", text, labels, registry=registry)

        def seconds(name: str, text: str, *labels: str, buckets: Sequence[float] = CALL_BUCKETS) -> Histogram:
            return Histogram(f"gandiva_{name}_seconds", text, labels, buckets=buckets, registry=registry)

        self._operations = counter("operations", "Operations that are over.", "kind", "outcome")
        text = "Time of operations that were carried out, waiting for their GPUs included."
        self._operation_seconds = seconds("operation_duration", text, "kind")
        self._steps = seconds("step_duration", "Time of the steps that operations consist of.", "step")
        self._step_failures = counter("step_failures", "Operations that failed, by the step.", "step")
        self._gap = seconds("switch_gap", "Time a GPU was without a job between two jobs of a switch.")
        text = "Time from a job's submission to its first start."
        self._waits = seconds("queue_wait", text, buckets=WAIT_BUCKETS)
        text = "Time a cycle of the loop took to observe Slurm and all nodes."
        self._observe = seconds("observe_duration", text)
        self._plan = seconds("plan_duration", "Time a cycle of the loop took to decide.")
        self._moves = counter("moves", "Jobs that moves changed, by what became of it.", "move", "verdict")
        text = "Throughput of the jobs of a trial, relative to that before it."
        self._gains = Histogram("gandiva_move_gain_ratio", text, ["move"], buckets=GAINS, registry=registry)
        self._slurm_calls = counter("slurm_calls", "Calls to Slurm.", "call", "outcome")
        text = "Time of calls to Slurm, however they ended."
        self._slurm_seconds = seconds("slurm_call_duration", text, "call")
        self._agent_calls = counter("agent_calls", "Requests to node agents.", "verb", "outcome")
        self._agent_seconds = seconds(
            "agent_call_duration", "Time of requests to node agents, however they ended.", "verb"
        )
        # These series exist from the start: else the first failure is no increase.
        for kind, outcome in product(OPERATIONS, Outcome):
            self._operations.labels(kind, outcome.value)
        for step in Step:
            self._step_failures.labels(step.value)
        for call, call_outcome in product(CALLS, CALL_OUTCOMES):
            self._slurm_calls.labels(call, call_outcome)

    def slurm_call(self, call: str, outcome: str, duration_seconds: float) -> None:
        self._slurm_calls.labels(call, outcome).inc()
        self._slurm_seconds.labels(call).observe(duration_seconds)

    def agent_call(self, verb: str, outcome: str, duration_seconds: float) -> None:
        self._agent_calls.labels(verb, outcome).inc()
        self._agent_seconds.labels(verb).observe(duration_seconds)

    def step(self, step: str, duration_seconds: float) -> None:
        self._steps.labels(step).observe(duration_seconds)

    def step_failed(self, step: str) -> None:
        self._step_failures.labels(step).inc()

    def operation(self, kind: str, outcome: str, duration_seconds: float) -> None:
        self._operations.labels(kind, outcome).inc()
        if outcome == Outcome.DONE.value:
            self._operation_seconds.labels(kind).observe(duration_seconds)

    def move(self, name: str, verdict: str, gain: float | None) -> None:
        self._moves.labels(name, verdict).inc()
        if gain is not None and verdict in _JUDGED:
            self._gains.labels(name).observe(gain)

    def switch_gap(self, duration_seconds: float) -> None:
        self._gap.observe(duration_seconds)

    def queue_wait(self, duration_seconds: float) -> None:
        self._waits.observe(duration_seconds)

    def cycle(self, observe_seconds: float, plan_seconds: float) -> None:
        self._observe.observe(observe_seconds)
        self._plan.observe(plan_seconds)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)


class _Now(Collector):
    """What the last cycle of the loop saw. Before the first one `gandiva_up` is 0 and most series are
    absent."""

    def __init__(self, live: LiveState, journal: Path) -> None:
        self._live = live
        self._journal = journal

    def describe(self) -> Iterable[Metric]:
        """Nothing: so that the registry does not collect once to learn the names."""
        return ()

    def collect(self) -> Iterator[Metric]:
        published = self._live.latest
        yield _gauge("up", "1 once the loop has observed the cluster.", float(published is not None))
        yield InfoMetricFamily("gandiva_build", "The controller.", {"version": __version__})
        yield from self._journal_metrics()
        if published is not None:
            yield from _loop(published)
            yield from _counts(published.message)
            yield from _nodes(published.message)

    def _journal_metrics(self) -> Iterator[Metric]:
        sizes = {"main": _size(self._journal), "wal": _size(Path(f"{self._journal}-wal"))}
        yield _by("journal_size_bytes", "Size of the journal's files.", "file", sizes, sizes)
        try:
            disk = os.statvfs(self._journal.parent)
        except OSError:
            return
        free = float(disk.f_bavail * disk.f_frsize)
        yield _gauge("journal_disk_free_bytes", "Free space where the journal is.", free)


def _loop(published: Published) -> Iterator[Metric]:
    health = published.health
    yield _gauge("start_time_seconds", "When the controller started, since the epoch.", health.started)
    ticks = Metric("gandiva_ticks", "Cycles of the loop that were completed.", "counter")
    ticks.add_sample("gandiva_ticks_total", {}, float(health.ticks))
    yield ticks
    yield _gauge("last_turn_age_seconds", "Time since the last complete cycle.", published.age_seconds)
    yield _gauge("problems", "Problems now; see gandiva status.", float(len(health.problems)))
    yield InfoMetricFamily("gandiva_policy", "The policy in force.", {"policy": health.policy})


def _counts(message: GpusMessage) -> Iterator[Metric]:
    jobs = Tally(job.phase for job in message.jobs)
    asked = Tally(job.phase for job in message.jobs for _ in range(job.gpus))
    phases = [phase.value for phase in Phase]
    yield _by("jobs", "Gandiva jobs by phase.", "phase", phases, jobs)
    yield _by("job_gpus", "GPUs that these jobs ask for.", "phase", phases, asked)
    why = Tally(job.reason_code for job in message.jobs if job.phase in _OFF_GPUS)
    text = "Gandiva jobs that are not on GPUs, by the kind of reason (docs/reports.md)."
    yield _by("jobs_waiting", text, "reason", [reason.value for reason in Reason], why)
    queued = [job.submit_time for job in message.jobs if job.phase == Phase.QUEUED.value]
    oldest = max(0.0, message.time - min(queued)) if queued else 0.0
    yield _gauge("oldest_queued_job_age_seconds", "Age of the job that waits longest; 0: none waits.", oldest)
    yield _by("gpus", "GPUs by use.", "use", USES, message.uses())
    packed = sum(bool(job.shares_with) for job in message.jobs)
    yield _gauge("jobs_packed", "Jobs that share their GPUs with another one.", float(packed))
    resized = sum(bool(job.running_on) and 0 < job.asked_gpus != job.gpus for job in message.jobs)
    yield _gauge("jobs_resized", "Jobs on another number of GPUs than they asked for.", float(resized))
    trials = Tally(job.move for job in message.jobs if job.verdict == Verdict.TRIED.value)
    yield _by("jobs_on_trial", "Jobs of which a trial goes on, by move.", "move", MOVE_NAMES, trials)
    switching = sum(job.busy for job in message.jobs)
    yield _gauge("jobs_in_transition", "Jobs in the middle of an operation.", float(switching))


def _nodes(message: GpusMessage) -> Iterator[Metric]:
    up = {node.name: int(node.available) for node in message.nodes}
    yield _by("node_up", "Whether jobs can start on a node.", "node", up, up)
    bound = Tally(gpu for job in message.jobs for gpu in job.binding or job.running_on)
    gpus = [(node.name, gpu) for node in message.nodes for gpu in node.gpus]
    for name, text, value in _OF_A_GPU:
        family = GaugeMetricFamily(f"gandiva_gpu_{name}", text, labels=["node", "gpu", "model"])
        for node_name, gpu in gpus:
            number = bound[f"{node_name}:{gpu.ordinal}"] if value is None else value(gpu)
            if number is not None:
                family.add_metric([node_name, str(gpu.ordinal), gpu.model], float(number))
        yield family


_OF_A_GPU: tuple[tuple[str, str, Callable[[GpuMessage], float | None] | None], ...] = (
    ("utilization_ratio", "Utilisation of a GPU as NVML says it.", lambda gpu: gpu.utilization_fraction),
    ("memory_used_bytes", "Memory in use on a GPU.", lambda gpu: gpu.memory_used_bytes),
    ("memory_bytes", "Memory of a GPU.", lambda gpu: gpu.memory_bytes),
    (
        "memory_left_bytes",
        "Memory that jobs keep on a GPU while they are off it.",
        lambda gpu: sum(gpu.left_by.values()),
    ),
    ("healthy", "Whether a GPU can be read.", lambda gpu: gpu.healthy),
    ("jobs", "Gandiva jobs that have a GPU in their allocation, on it or off it.", None),
)
"""Name, text and value of each; without a value: how many jobs are bound to it."""


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"gandiva_{name}", text, value=value)


def _by(name: str, text: str, label: str, words: Iterable[str], counts: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(f"gandiva_{name}", text, labels=[label])
    for word in words:
        family.add_metric([word], float(counts.get(word, 0)))
    return family


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
