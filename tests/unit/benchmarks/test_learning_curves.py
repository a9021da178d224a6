# SPDX-License-Identifier: GPL-2.0-or-later
"""The benchmark of learning curves: its trials, the rules of its drivers, and what it reads from logs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from benchmarks.learning_curve_trial import STEPS, TELL_STEPS, Curve, log_to
from benchmarks.learning_curves import (
    FACTOR,
    LEAST_POINTS,
    POSITIONS,
    RUNGS,
    TRIALS,
    Halving,
    Told,
    best_of,
    judgement,
    made_trials,
    measured,
    told,
)
from benchmarks.learning_curves_report import BEGIN, COLUMNS, END, Row, shown
from benchmarks.workstation import ROOT

GOOD, FAIR, BAD = Curve(0.9, 0.4, 1), Curve(0.7, 0.4, 2), Curve(0.2, 0.4, 3)


def curve(trial: Curve, points: int) -> list[tuple[float, float]]:
    steps = range(TELL_STEPS, points * TELL_STEPS + 1, TELL_STEPS)
    return [(step, trial.accuracy(step)) for step in steps]


def test_the_best_trial_is_where_it_should_be_and_no_rule_stops_it() -> None:
    for seed, position in enumerate(POSITIONS):
        trials = made_trials(position, seed)
        best = best_of(trials)
        assert (len(trials), best) == (TRIALS, round(position * TRIALS) - 1)
        assert trials == made_trials(position, seed) != made_trials(position, seed + 1)
        for points in range(LEAST_POINTS, STEPS // TELL_STEPS + 1):
            curves = {number: curve(trial, points) for number, trial in enumerate(trials)}
            assert str(best) not in judgement(curves, set(curves)).stop
        assert curves[best][-1] == (STEPS, trials[best].final)


def test_what_ends_below_what_was_reached_is_stopped() -> None:
    curves = {0: curve(GOOD, 40), 1: curve(FAIR, 8), 2: curve(BAD, 8), 3: curve(BAD, LEAST_POINTS - 1)}
    judged = judgement(curves, {0, 1, 2, 3})
    assert (sorted(judged.stop), judged.first, judged.unknown) == (["1", "2"], ["0"], ["3"])
    # What was reached counts, also of a trial that is over; others are not judged.
    assert judgement(curves, {1, 3}).stop == ["1"]
    assert judgement({1: curve(FAIR, 8), 2: curve(BAD, 8)}, {1, 2}).first == ["1"]


def test_halving_promotes_the_best_third_and_begins_others_meanwhile() -> None:
    halving = Halving(7, RUNGS, FACTOR)
    assert [halving.next() for _ in range(3)] == [(0, 0), (1, 0), (2, 0)]
    for trial, accuracy in ((0, 0.2), (1, 0.4)):
        halving.result(trial, 0, accuracy)
    assert halving.next() == (3, 0)  # of two results no third is known
    halving.result(2, 0, 0.3)
    assert [halving.next() for _ in range(2)] == [(1, 1), (4, 0)]
    for trial, accuracy in ((3, 0.5), (4, 0.1), (5, 0.6)):
        halving.result(trial, 0, accuracy)
    # Of six results the best two; the second of them, which was promoted earlier, is the third by now.
    assert [halving.next() for _ in range(4)] == [(5, 1), (3, 1), (5, 0), (6, 0)]
    for trial, accuracy in ((1, 0.7), (3, 0.6), (5, 0.65)):
        halving.result(trial, 1, accuracy)
    assert [halving.next() for _ in range(2)] == [(1, 2), None]


def test_a_log_is_read_as_far_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    assert told(path) == []
    log_to(path)(10, 0.25)
    with path.open("a") as file:
        file.write("17000000")
    (line,) = told(path)
    assert (line.step, line.accuracy) == (10, 0.25)


def test_what_is_measured() -> None:
    def lines(pid: int, *steps: tuple[float, int, float]) -> Sequence[Told]:
        return [Told(time, step, accuracy, pid) for time, step, accuracy in steps]

    found = {
        # Ended at 20 before its checkpoint at 10 was followed by another: 10 mini-batches are done twice.
        0: [
            *lines(1, (101, 0, 0.0), (102, 10, 0.3), (103, 20, 0.4)),
            *lines(2, (105, 10, 0.3), (109, 20, 0.4)),
        ],
        1: lines(3, (101, 0, 0.0), (104, 10, 0.5), (112, STEPS, 0.9)),
    }
    assert measured(found, best=1, began=100.0) == {
        "first_seconds": 4.0,
        "best_seconds": 12.0,
        "total_seconds": 12.0,
        "gpu_seconds": (30 + STEPS) * 0.025,
        "points": [(2.0, 0.3), (3.0, 0.4), (4.0, 0.5), (12.0, 0.9)],
    }
    assert measured(found, best=0, began=100.0)["best_seconds"] == math.inf


def test_the_table_compares_with_all_trials_to_their_end() -> None:
    def row(way: str, position: float, best_seconds: float) -> Row:
        return Row(
            way=way,
            position=position,
            load=1.0,
            first_seconds=5.0,
            best_seconds=best_seconds,
            total_seconds=90.0,
            gpu_seconds=200.0,
            points=[(1.0, 0.1)],
        )

    rows = [row("to the end", 0.25, 30.0), row("gandiva", 0.25, 20.0)]
    assert [line[1:5] for line in shown(rows)[1:]] == [
        ("gandiva", "5.0", "20.0", "1.50"),
        ("to the end", "5.0", "30.0", "1.00"),
    ]
    rows += [row("to the end", 0.75, 90.0), row("gandiva", 0.75, 20.0)]
    (ours, _) = [line for line in shown(rows) if line[0] == "mean"]
    assert ours[1:5] == ("gandiva", "5.0", "20.0", "3.00")
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    assert f"{BEGIN}\n| {' | '.join(COLUMNS)} |" in page and END in page
