# SPDX-License-Identifier: GPL-2.0-or-later
"""What Prometheus is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from controller.act.actions import Action, Place, Resume, Suspend
from controller.act.recorder import Outcome, Step
from controller.api.live import Health, LiveState
from controller.api.metrics import OPERATIONS, Metrics
from controller.cluster.adapter import CALLS, OUTCOMES, measured
from controller.cluster.command import CommandTransport
from controller.daemon.measuring import CycleMeter, MeasuringRecorder
from controller.errors import ClusterRefused, ClusterUnavailable, NodeError, UnknownJob
from controller.journal import MemoryJournal
from controller.model import GpuId, JobId, Moved, Phase, Reason, Snapshot, Verdict
from controller.nodes import protocol
from controller.nodes.remote import RemoteNodes

from . import scene

DOCS = Path(__file__).resolve().parents[3] / "docs"
N1 = frozenset({GpuId("n1", 0)})


@pytest.fixture
def metrics(tmp_path: Path) -> Metrics:
    scene.write_journal(tmp_path / "journal")
    return Metrics(scene.live_state(), tmp_path / "journal")


def families(metrics: Metrics) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(metrics.exposition().decode())}


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """One sample; None: there is none."""
    return metrics.registry.get_sample_value(name, labels)


def test_the_present_comes_from_the_last_turn(metrics: Metrics) -> None:
    assert value(metrics, "gandiva_up") == 1
    assert value(metrics, "gandiva_jobs", phase="running") == 2
    assert value(metrics, "gandiva_job_gpus", phase="running") == 3
    assert value(metrics, "gandiva_jobs", phase="stuck") == 0
    assert value(metrics, "gandiva_gpus", use="idle") == 2
    assert value(metrics, "gandiva_gpus", use="ordinary") == 1
    assert value(metrics, "gandiva_jobs_in_transition") == 1
    assert value(metrics, "gandiva_ticks_total") == 3600
    assert value(metrics, "gandiva_oldest_queued_job_age_seconds") == 1000
    gpu = {"node": "n1", "gpu": "0", "model": "a100"}
    assert value(metrics, "gandiva_gpu_utilization_ratio", **gpu) == 0.97
    assert value(metrics, "gandiva_gpu_memory_used_bytes", **gpu) == int(20 * scene.GIB * 0.97)
    assert value(metrics, "gandiva_gpu_jobs", **gpu) == 2, "one on it, one bound to it and off it"
    size = value(metrics, "gandiva_journal_size_bytes", file="main")
    assert size is not None and size > 4096
    assert (value(metrics, "gandiva_journal_disk_free_bytes") or 0) > 0
    assert (value(metrics, "process_resident_memory_bytes") or 0) > 1e6


def test_jobs_that_wait_are_counted_by_reason(metrics: Metrics) -> None:
    """Those on GPUs are not; what is plain text is `other`."""
    counted = {reason: value(metrics, "gandiva_jobs_waiting", reason=reason.value) for reason in Reason}
    assert {reason: count for reason, count in counted.items() if count} == {
        Reason.WAITS_FOR_TURN: 1,
        Reason.OTHER: 1,
    }
    assert None not in counted.values(), "all series are there from the start"


def test_before_the_first_turn_there_is_no_invented_zero(tmp_path: Path) -> None:
    fresh = Metrics(LiveState(), tmp_path / "none")
    assert value(fresh, "gandiva_up") == 0
    assert value(fresh, "gandiva_jobs", phase="running") is None
    assert value(fresh, "gandiva_journal_size_bytes", file="main") == 0
    assert value(fresh, "gandiva_operations_total", kind="suspend", outcome="failed") == 0


def test_names_follow_the_conventions(metrics: Metrics) -> None:
    for name, family in families(metrics).items():
        assert name.startswith(("gandiva_", "process_")), name
        assert family.documentation.endswith("."), name
        for sample in family.samples:
            if family.type == "counter":
                assert sample.name.endswith("_total"), sample
            assert not set(sample.labels) & {"job", "job_id", "user", "name"}, "labels without a bound"
        if family.type == "histogram" or "time" in family.documentation.lower():
            assert name.endswith(("_seconds", "_ratio")), name


def test_a_switch_is_taken_to_pieces(metrics: Metrics) -> None:
    recorder = MeasuringRecorder(MemoryJournal(), metrics)
    old, new = JobId(1), JobId(2)
    recorder.slice_begins(old, N1, 10.0)
    suspend = recorder.operation_begins(Suspend(old, "its slice is over"), N1, 100.0)
    resume = recorder.operation_begins(Resume(new, "its turn", N1), N1, 100.0)
    recorder.operation_step(resume, Step.CLAIM, 100.0)
    recorder.operation_step(suspend, Step.PAUSE, 100.0)
    recorder.operation_step(suspend, Step.OFFLOAD, 100.5)
    recorder.slice_ends(old, "its slice is over", 102.5)
    recorder.operation_step(suspend, Step.SLURM_SUSPEND, 102.5)
    recorder.operation_ends(suspend, Outcome.DONE, "", 102.75)
    recorder.operation_step(resume, Step.SLURM_RESUME, 102.75)
    recorder.operation_step(resume, Step.NODE_RESUME, 103.0)
    recorder.slice_begins(new, N1, 104.5)
    recorder.operation_ends(resume, Outcome.DONE, "", 104.5)
    steps = {
        step: value(metrics, "gandiva_step_duration_seconds_sum", step=step.value)
        for step in (Step.PAUSE, Step.OFFLOAD, Step.SLURM_SUSPEND, Step.CLAIM, Step.NODE_RESUME)
    }
    assert steps == {
        Step.PAUSE: 0.5, Step.OFFLOAD: 2.0, Step.SLURM_SUSPEND: 0.25, Step.CLAIM: 2.75, Step.NODE_RESUME: 1.5,
    }  # fmt: skip
    assert value(metrics, "gandiva_switch_gap_seconds_sum") == 2.0
    assert value(metrics, "gandiva_switch_gap_seconds_count") == 1
    assert value(metrics, "gandiva_operation_duration_seconds_sum", kind="suspend") == 2.75
    assert value(metrics, "gandiva_operations_total", kind="resume", outcome="done") == 1


def test_an_idle_gpu_is_no_gap(metrics: Metrics) -> None:
    recorder = MeasuringRecorder(MemoryJournal(), metrics)
    recorder.slice_begins(JobId(1), N1, 10.0)
    recorder.slice_ends(JobId(1), "job ended", 20.0)
    place = recorder.operation_begins(Place(JobId(2), "a free GPU", N1, N1), N1, 50.0)
    recorder.slice_begins(JobId(2), N1, 51.0)
    recorder.operation_ends(place, Outcome.DONE, "", 51.0)
    assert value(metrics, "gandiva_switch_gap_seconds_count") == 0


def test_moves_are_counted_by_what_became_of_them(metrics: Metrics) -> None:
    recorder = MeasuringRecorder(MemoryJournal(), metrics)
    recorder.moved(Moved("pack", Verdict.TRIED, JobId(1)), "on trial", 10.0)
    recorder.moved(Moved("pack", Verdict.KEPT, JobId(1), 1.6), "kept", 20.0)
    recorder.moved(Moved("pack", Verdict.UNDONE, JobId(1), 0.9), "slower", 30.0)
    for verdict in ("tried", "kept", "undone"):
        assert value(metrics, "gandiva_moves_total", move="pack", verdict=verdict) == 1
    assert value(metrics, "gandiva_move_gain_ratio_count", move="pack") == 2
    assert value(metrics, "gandiva_move_gain_ratio_sum", move="pack") == pytest.approx(2.5)


def test_a_failure_is_counted_where_it_happened(metrics: Metrics) -> None:
    recorder = MeasuringRecorder(MemoryJournal(), metrics)
    number = recorder.operation_begins(Suspend(JobId(1), "cycle"), N1, 0.0)
    recorder.operation_step(number, Step.PAUSE, 0.0)
    recorder.operation_step(number, Step.OFFLOAD, 1.0)
    recorder.operation_step(number, Step.UNDO, 61.0)
    recorder.operation_ends(number, Outcome.FAILED, "rank 1 …", 62.0)
    assert value(metrics, "gandiva_step_failures_total", step="offload") == 1
    assert value(metrics, "gandiva_step_failures_total", step="undo") == 0
    assert value(metrics, "gandiva_step_duration_seconds_count", step="offload") is None
    assert value(metrics, "gandiva_operations_total", kind="suspend", outcome="failed") == 1
    assert value(metrics, "gandiva_operation_duration_seconds_count", kind="suspend") is None


def test_waiting_counts_from_submission_to_the_first_start(metrics: Metrics) -> None:
    meter = CycleMeter(metrics)

    def cycle(*jobs: Any) -> None:
        meter.completed(scene.cycle(Snapshot(time=scene.NOW, nodes={}, jobs={job.id: job for job in jobs})))

    queued = scene.job(1, "alice", Phase.QUEUED, frozenset())
    cycle(queued, scene.job(2, "bob", Phase.RUNNING, N1))
    cycle(queued)
    assert value(metrics, "gandiva_queue_wait_seconds_count") == 0
    started = scene.job(1, "alice", Phase.RUNNING, N1, start_time=scene.NOW - 970)
    cycle(started)
    cycle(started)
    assert value(metrics, "gandiva_queue_wait_seconds_count") == 1
    assert value(metrics, "gandiva_queue_wait_seconds_sum") == 30
    assert value(metrics, "gandiva_observe_duration_seconds_count") == 4


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (None, "ok"),
        (UnknownJob("gone"), "unknown_job"),
        (ClusterRefused("no"), "refused"),
        (ClusterUnavailable("down"), "unavailable"),
        (asyncio.CancelledError(), "cut_off"),
        (RuntimeError("bug"), "error"),
    ],
)
async def test_calls_to_slurm_by_outcome(
    metrics: Metrics, failure: BaseException | None, outcome: str
) -> None:
    class Fake:
        def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, None]]:
            async def call(*_arguments: object, **_named: object) -> None:
                if failure is not None:
                    raise failure

            return call

    transport: CommandTransport = measured(Fake(), metrics)  # type: ignore[arg-type]
    for call in CALLS:
        arguments: list[object] = [] if call == "load" else [JobId(1)]
        if call in ("bind", "unbind", "split", "end"):
            arguments.append(None)
        named = {"begin_now": True} if call == "unbind" else {}
        if failure is None:
            await getattr(transport, call)(*arguments, **named)
        else:
            with pytest.raises(type(failure)):
                await getattr(transport, call)(*arguments, **named)
    counted = {
        (sample.labels["call"], sample.labels["outcome"]): sample.value
        for sample in families(metrics)["gandiva_slurm_calls"].samples
    }
    assert counted == {(call, other): float(other == outcome) for call in CALLS for other in OUTCOMES}
    timed = value(metrics, "gandiva_slurm_call_duration_seconds_count", call="suspend")
    assert timed == 1


async def test_requests_to_agents_by_outcome(metrics: Metrics, monkeypatch: pytest.MonkeyPatch) -> None:
    from controller.nodes import remote

    answers: list[dict[str, Any] | NodeError] = [{}, NodeError("n1", "gpu_busy", "no"), {"job_id": "x"}]

    class FakeConnection:
        hello = None

        def __init__(self, _transport: object, _node: str, address: str, *_more: object) -> None:
            self.address = address

        async def request(self, _verb: str, _args: object, _deadline_seconds: float) -> dict[str, Any]:
            answer = answers.pop(0)
            if isinstance(answer, NodeError):
                raise answer
            return answer

    monkeypatch.setattr(remote, "Connection", FakeConnection)
    nodes = RemoteNodes(None, measures=metrics)  # type: ignore[arg-type]
    await nodes.set_nodes({"n1": "n1"})
    await nodes.forget("n1", JobId(1))
    with pytest.raises(NodeError):
        await nodes.forget("n1", JobId(1))
    with pytest.raises(NodeError):
        await nodes.hello("n1", 1.0)
    calls = {
        (verb, outcome): value(metrics, "gandiva_agent_calls_total", verb=verb, outcome=outcome)
        for verb, outcome in (("forget", "ok"), ("forget", "gpu_busy"), ("hello", "internal"))
    }
    assert set(calls.values()) == {1.0}, calls
    assert value(metrics, "gandiva_agent_call_duration_seconds_count", verb="forget") == 2
    assert "forget" in protocol.VERBS


def test_every_kind_of_operation_has_its_series() -> None:
    assert set(OPERATIONS) == {kind.__name__.lower() for kind in Action.__subclasses__()}


def test_a_hostile_node_name_stays_one_label() -> None:
    live = LiveState()
    node = scene.node('n"1\n\\')
    seen = Snapshot(time=0.0, nodes={node.name: node}, jobs={})
    live.publish(scene.cycle(seen), Health("gandiva", 0.0))
    found = families(Metrics(live, Path("/nowhere")))["gandiva_node_up"].samples
    assert [sample.labels["node"] for sample in found] == ['n"1\n\\']


def test_the_page_names_exactly_the_metrics_there_are(metrics: Metrics) -> None:
    """docs/monitoring.md, the table: name, type, labels."""
    rows: dict[str, tuple[str, tuple[str, ...]]] = {}
    for line in (DOCS / "monitoring.md").read_text().splitlines():
        if line.startswith("| `gandiva_"):
            name, kind, labels, _ = (cell.strip() for cell in line.strip("|").split("|"))
            rows[name.strip("`")] = (kind, tuple(word.strip("` ") for word in labels.split(",") if word))
    there: dict[str, tuple[str, tuple[str, ...]]] = {}
    metrics.step("pause", 1.0)
    metrics.operation("place", "done", 1.0)
    metrics.slurm_call("load", "ok", 1.0)
    metrics.agent_call("observe", "ok", 1.0)
    metrics.move("pack", "kept", 1.2)
    for family in metrics.registry.collect():
        if family.name.startswith("gandiva_"):
            kind = "gauge" if family.type == "info" else family.type
            name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
            used = {label for sample in family.samples for label in sample.labels if label != "le"}
            there[name] = (kind, tuple(sorted(used)))
    assert {name: (kind, tuple(sorted(labels))) for name, (kind, labels) in rows.items()} == there
