# SPDX-License-Identifier: GPL-2.0-or-later
"""What moves did is seen by users: simulated runs with packs, a migration, a job that grows and a search, in
the report, `explain`, the live view, the page for browsers and the metrics."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from rich.console import Console

from controller.api.answers import Answers
from controller.api.live import Health, LiveState
from controller.api.messages import ExplainMessage, GpusMessage, JobsMessage, TimelineMessage
from controller.api.metrics import Metrics
from controller.cluster.simulated_job import SimulatedJob, request_text
from controller.journal import JournalReader
from controller.journal.memory import MemoryJournal
from controller.loop.loop import Cycle
from controller.model import JobId
from controller.reports.explain import explain
from controller.reports.html.page import ALONE, GUEST, HOST, Contents, page_data
from controller.reports.report import join
from controller.reports.table import LONG_FORMAT, Layout, parse_format, render
from controller.reports.top.frame import Frame
from controller.reports.top.view import View
from controller.reports.trials import trial_rows
from controller.settings.loading import parse_settings
from controller.simulation.cluster_spec import parse_cluster
from controller.simulation.driver import Simulation
from controller.simulation.ground_truth import Throughputs
from controller.simulation.traces import TraceJob

RATES = {1: 8.0, 2: 15.0, 4: 28.0}
TRUTH = Throughputs(
    {("v100", "vae", gpus): rate for gpus, rate in RATES.items()},
    {("v100", "vae", gpus, "vae", gpus): 0.8 * rate for gpus, rate in RATES.items()},
)
PACKS = """
[policy]
name = "tiresias-las"
moves = ["pack"]
[policy.tiresias]
queue_limits = [300.0]
[requests]
suspend = "requeue"
"""
MOVES = """
[policy]
name = "fifo-skip"
moves = ["defragment", "grow"]
[policy.grow]
idle_seconds = 30
[requests]
suspend = "requeue"
"""


def job(number: int, submit: float, gpus: int, seconds: float, *, most: int | None = None) -> TraceJob:
    return TraceJob(
        str(number),
        submit,
        gpus,
        seconds,
        number + 1,
        model="vae",
        may_pack=most is None,
        max_gpus=most,
        nodes=1,
    )


@dataclass
class Seen:
    """What was shown of a run."""

    answers: Answers
    """At its end."""
    metrics: Metrics
    tops: list[str] = field(default_factory=list)
    """The live view, whenever something had changed."""
    gauges: list[str] = field(default_factory=list)
    """The metrics then."""

    def jobs(self) -> JobsMessage:
        return JobsMessage.model_validate_json(self.answers.get("/v1/jobs", {}).body)

    def explained(self, job_id: int) -> str:
        answer = ExplainMessage.model_validate_json(self.answers.get(f"/v1/explain/{job_id}", {}).body)
        return "\n".join(explain(answer, rows=20, columns=160))

    def page(self) -> dict[str, object]:
        timeline = TimelineMessage.model_validate_json(self.answers.get("/v1/timeline", {}).body)
        rows = join(self.jobs(), {})
        # Pages are JSON for the script.
        made = page_data(Contents(rows, timeline.slices, None, 0.0, 8000.0, 8000.0))
        return dict(json.loads(json.dumps(made)))


def written(memory: MemoryJournal, path: Path) -> None:
    """The journal of a simulation, in a file."""
    memory.flush()
    with closing(sqlite3.connect(path)) as file:
        memory.file.connection.backup(file)


def run(settings: str, jobs: list[TraceJob], gpus: int, folder: Path, *, search: str | None = None) -> Seen:
    live, path = LiveState(), folder / "journal.sqlite"
    metrics = Metrics(live, path)
    seen = Seen(Answers(live, JournalReader(path), metrics=metrics), metrics)
    before = ""

    def see(cycle: Cycle) -> None:
        nonlocal before
        for moved in cycle.plan.moved:
            metrics.move(moved.move, moved.verdict.value, moved.gain)
        live.publish(cycle, Health("p", 0.0))
        shape = str(sorted((i, j.placement, cycle.moved.get(i)) for i, j in cycle.snapshot.jobs.items()))
        if shape != before and cycle.snapshot.jobs:
            before = shape
            seen.tops.append(top(seen))
            seen.gauges.append(metrics.exposition().decode())

    cluster = parse_cluster(f"v100:{gpus}", min(4, gpus))
    simulation = Simulation(Path("t"), jobs, cluster, parse_settings(settings), TRUTH, on_cycle=see)
    workload = simulation._workload
    as_submitted = workload.as_submitted

    def submitted(job_id: JobId) -> SimulatedJob:
        made = as_submitted(job_id)
        request = request_text(workload.jobs[job_id].gpus, pack=True, model="vae", search=search)
        return replace(made, request=request) if search else made

    workload.as_submitted = submitted  # type: ignore[method-assign]
    simulation.run()
    written(simulation.journal, path)
    live.latest = None
    return seen


def top(seen: Seen) -> str:
    message = GpusMessage.model_validate_json(seen.answers.get("/v1/gpus", {}).body)
    console = Console(width=100, file=io.StringIO(), color_system=None)
    with console.capture() as capture:
        console.print(Frame(message, View()))
    return capture.get()


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """A search of two light jobs on one GPU, which are packed, and kept so."""
    jobs = [job(1, 0.0, 1, 900.0), job(2, 1.0, 1, 900.0)]
    yield run(PACKS, jobs, 1, tmp_path_factory.mktemp("packs"), search="lr")


@pytest.fixture(scope="module")
def moves(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Job 7 migrates so that the gang 4 finds a server, and grows when it is alone there."""
    jobs = [
        job(1, 0.0, 1, 4000.0),
        job(2, 1.0, 3, 300.0),
        job(3, 2.0, 2, 4000.0),
        job(4, 700.0, 4, 300.0),
        job(5, 3.0, 2, 3000.0),
        job(6, 4.0, 2, 1500.0),
        job(7, 3600.0, 1, 9000.0, most=4),
    ]
    yield run(MOVES, jobs, 8, tmp_path_factory.mktemp("moves"))


def table(seen: Seen, columns: str) -> list[list[str]]:
    lines = list(render(join(seen.jobs(), {}), Layout(parse_format(columns), header=False, delimiter="|")))
    return [line.split("|") for line in lines]


def test_the_report_counts_packs_trials_and_sizes(packs: Seen, moves: Seen) -> None:
    assert table(packs, "JobID,Packs,Trials,Gain,Sizes") == [
        ["1", "1", "1", "1.60x", "1"],
        ["2", "1", "1", "1.60x", "1"],
    ]
    found = {row[0]: row[1:] for row in table(moves, "JobID,Packs,Trials,Gain,Sizes,Moves")}
    assert found["7"] == ["0", "1", "3.50x", "1-4", "2"]
    assert found["4"] == ["0", "0", "", "4", "0"]


def test_columns_of_the_long_report_line_up(packs: Seen) -> None:
    head, dashes, *lines = render(join(packs.jobs(), {}), Layout(parse_format(LONG_FORMAT)))
    at = head.index("Packs")
    for title in ("Sizes", "Packs", "Trials", "Gain"):
        end = head.index(title) + len(title)
        assert dashes[end - 1] == "-" and dashes[end] == " "
    assert [line[at : at + 5].strip() for line in lines] == ["1", "1"]


def test_explain_says_what_was_tried_and_what_it_gained(packs: Seen, moves: Seen) -> None:
    packed, grown = packs.explained(2), moves.explained(7)
    assert "was changed 1 pack, 1 trial; measured last: 1.60x of what was before" in packed
    assert "pack-tried joins job 1 on its GPUs" in packed and "pack-kept  shares its GPUs" in packed
    assert "on 1-4 GPUs" in grown
    assert "defragment-planned continues on" in grown
    # One below the other, however long the longest kind is.
    events = grown.partition("Events\n")[2].splitlines()
    assert (
        len({line.index(word) for line in events for word in ("continues on", "grows from") if word in line})
        == 1
    )


def test_the_live_view_shows_trials_company_and_sizes(packs: Seen, moves: Seen) -> None:
    assert any("n1:0 with 2 (on trial)" in text for text in packs.tops)
    assert any("n1:0 with 1 (1.60x)" in text for text in packs.tops)
    assert any("n2:0-3 (1 asked, on trial)" in text for text in moves.tops)
    assert any("n2:0-3 (1 asked, 3.50x)" in text for text in moves.tops)


def test_the_page_draws_guests_in_their_hosts_and_counts_gpus_once(packs: Seen, moves: Seen) -> None:
    page = packs.page()
    slices, jobs = page["slices"], page["jobs"]
    assert isinstance(slices, dict) and isinstance(jobs, list)
    parts = sorted((slices["job"][n], part) for n, part in enumerate(slices["part"]) if part != ALONE)
    assert parts == [(0, HOST), (1, GUEST)]
    assert [row[-4:] for row in jobs] == [["1", 1, 1, pytest.approx(1.6)]] * 2
    tiles = page["tiles"]
    assert isinstance(tiles, list) and float(tiles[0][1].split()[0]) <= 1.0
    grown = moves.page()["jobs"]
    assert isinstance(grown, list) and grown[6][-4:] == ["1-4", 0, 1, pytest.approx(3.5)]


def test_metrics_count_moves_and_those_under_way(packs: Seen, moves: Seen) -> None:
    counted = packs.metrics.exposition().decode() + moves.metrics.exposition().decode()
    for line in (
        'gandiva_moves_total{move="pack",verdict="kept"} 2.0',
        'gandiva_move_gain_ratio_sum{move="pack"} 3.2',
        'gandiva_moves_total{move="defragment",verdict="planned"} 1.0',
        'gandiva_moves_total{move="grow",verdict="kept"} 1.0',
        'gandiva_move_gain_ratio_sum{move="grow"} 3.5',
    ):
        assert line in counted, line
    assert any("gandiva_jobs_packed 2.0" in text for text in packs.gauges)
    assert any('gandiva_jobs_on_trial{move="pack"} 2.0' in text for text in packs.gauges)
    assert any('gandiva_jobs_on_trial{move="grow"} 1.0' in text for text in moves.gauges)
    assert any("gandiva_jobs_resized 1.0" in text for text in moves.gauges)
    assert 'gandiva_jobs_on_trial{move="pack"} 0.0' in packs.gauges[-1]


def test_the_trials_of_the_search_are_listed(packs: Seen) -> None:
    jobs = packs.jobs()
    rows = trial_rows(jobs, GpusMessage(time=0.0), ["lr"])
    assert [(row["search"], row["job_id"]) for row in rows] == [("lr", 1), ("lr", 2)]
    assert [job.gain for job in jobs.jobs] == [1.6, 1.6]
