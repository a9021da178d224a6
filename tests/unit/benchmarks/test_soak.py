# SPDX-License-Identifier: GPL-2.0-or-later
"""The soak's own arithmetic, and that each of its rules can be broken."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.growth import Sample, growth
from benchmarks.soak import rules, site
from benchmarks.soak.figures import quantile
from benchmarks.soak.rules import Evidence
from benchmarks.soak.site import ENDLESS_STEPS, SoakJob
from benchmarks.soak.turns import in_use, percentile, read, switches

SHORT_STEPS = 60


def _turn(job: str, node: str, gpus: list[str], begin: float, end: float, steps: int = 1) -> str:
    line = {"node": node, "gpus": gpus, "begin": begin, "end": end, "steps": steps}
    return f"./{job}:{json.dumps(line)}\n"


TURNS = (
    _turn("1.0", "m1", ["a", "b"], 0.0, 10.0, steps=20)
    + _turn("2.0", "m1", ["a"], 10.5, 20.0)
    + _turn("1.0", "m1", ["a", "b"], 20.2, 30.0, steps=SHORT_STEPS - 20)
)


def good() -> Evidence:
    """A run in which no rule was broken: a short job of two GPUs, and one of one."""
    return Evidence(
        jobs=(SoakJob(1, "alice", 2, SHORT_STEPS), SoakJob(2, "bob", 1, ENDLESS_STEPS)),
        turns_text=TURNS,
        turns=read(TURNS),
        digests={1: "rank 0: done, digest ff"},
        references={2: "rank 0: done, digest ff"},
        slurm={1: ("COMPLETED", 21.0), 2: ("COMPLETED", 10.0)},
        report={1: ("COMPLETED", 21.5), 2: ("COMPLETED", 9.9)},
        operations={1: (2, 0.4), 2: (1, 0.4)},
        queue="",
        nodes="m1 idle\nm2 idle\n",
    )


def test_turns_of_several_gpus_are_read_and_gaps_are_between_jobs() -> None:
    turns = read(TURNS)
    assert len(turns) == 5
    assert sum(turn.steps for turn in turns if turn.reports and turn.job_id == 1) == SHORT_STEPS
    pairs = switches(turns)
    assert [(a.job_id, b.job_id, b.first) for a, b in pairs] == [(1, 2, True), (2, 1, False)]
    assert [b.begin - a.end for a, b in pairs] == pytest.approx([0.5, 0.2])
    assert in_use(turns, 0.0, 30.0, 3) == [
        (5.0, 2.0),
        (15.0, pytest.approx(0.95)),
        (25.0, pytest.approx(1.96)),
    ]


def test_quantiles() -> None:
    assert percentile([5.0, 1.0, 3.0], 0.5) == 3.0
    assert percentile([], 0.5) == 0.0
    counts = [(0.1, 50.0), (0.2, 90.0), (0.4, 100.0), (float("inf"), 100.0)]
    assert quantile(counts, 0.5) == pytest.approx(0.1)
    assert quantile(counts, 0.7) == pytest.approx(0.15)
    assert quantile(counts, 0.99) == pytest.approx(0.38)
    assert quantile([(0.1, 0.0), (float("inf"), 4.0)], 0.5) == 0.1


def test_nothing_is_said_of_a_good_run() -> None:
    assert rules.check(good()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"slurm": {2: ("COMPLETED", 10.0)}}, "job 1 (2 GPUs) ended as unknown", id="lost"),
        pytest.param(
            {"slurm": {1: ("FAILED", 21.0), 2: ("COMPLETED", 10.0)}}, "ended as FAILED", id="failed"
        ),
        pytest.param(
            {"report": {1: ("CANCELLED", 21.0), 2: ("COMPLETED", 10.0)}},
            "COMPLETED in sacct, CANCELLED",
            id="states differ",
        ),
        pytest.param({"queue": "2 SUSPENDED None"}, "still in the queue", id="suspended at the end"),
        pytest.param({"nodes": "m1 idle\nm2 drained\n"}, "nodes at the end", id="node drained"),
        pytest.param({"digests": {1: "rank 0: done, digest 00"}}, "another result", id="other result"),
        pytest.param({"digests": {}}, "no result, unlike", id="no result"),
        pytest.param({"turns": ()}, "no result could be compared", id="nothing compared"),
        pytest.param(
            {"slurm": {1: ("COMPLETED", 31.0), 2: ("COMPLETED", 10.0)}}, "31.0 s for Slurm", id="accounting"
        ),
        pytest.param(
            {"report": {1: ("COMPLETED", 9.0), 2: ("COMPLETED", 9.9)}, "operations": {}},
            "for the job",
            id="ran more than it was given",
        ),
    ],
)
def test_each_broken_rule_is_said(changes: dict[str, object], words: str) -> None:
    broken = rules.check(replace(good(), **changes))  # type: ignore[arg-type]
    assert any(words in line for line in broken), broken


def test_jobs_that_computed_on_one_gpu_at_the_same_time_are_named() -> None:
    text = _turn("1.0", "m1", ["a"], 0.0, 10.0) + _turn("2.0", "m1", ["a"], 9.0, 12.0)
    broken = rules.check(replace(good(), turns=read(text), digests={}))
    assert [line for line in broken if "same time" in line] == [
        "jobs 1 and 2 computed on ('m1', 'a') at the same time"
    ]


def test_the_waves_want_each_gpu_twice() -> None:
    for nodes in site.SIZES:
        for wave in site.waves(nodes):
            assert sum(want.gpus for want in wave) == nodes * site.GPUS_PER_NODE
            assert any(want.steps < ENDLESS_STEPS for want in wave)


def test_a_node_whose_history_was_not_seen_is_named() -> None:
    assert rules.shared("@ m1\n@ m2\n", ("m1", "m2")) == []
    assert rules.shared("@ m1\n", ("m1", "m2")) == ["the histories of the GPUs of m2 could not be looked at"]
    lacks = "mockgpu: the history lacks 3 events"
    assert rules.shared(f"@ m1\n@ m2\n{lacks}\n", ("m1", "m2")) == [f"two jobs on one GPU of m2: {lacks}"]


def test_growth_is_of_the_second_half() -> None:
    samples = [Sample(hours, 100.0 if hours < 4 else 50 + hours, 0, 1, 1, 0) for hours in range(8)]
    per_hour, grown = growth(samples, lambda sample: sample.resident_mib)
    assert (per_hour, grown) == pytest.approx((1.0, 3.0))
