# SPDX-License-Identifier: GPL-2.0-or-later
"""Gavel's rounds on three GPU types of different speed."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from tests.live.rounds import (
    FAULTS,
    TYPES,
    accounted,
    answer_for,
    error_of,
    intervals,
    read_journal,
    solvers,
    status,
    wait_allocated,
    wait_event,
)
from tests.live.support import PYTHON, QUICK, Site

ROUND_SECONDS = 4.0
DEADLINE_SECONDS = 12.0
"""Of an allocation whose solver hangs. Before that, after 5 s, a job that came has a part by its weight."""
RATES = {"bound": {"v100": 40.0, "p100": 20.0, "k80": 10.0}, "fed": {"v100": 10.0, "p100": 9.0, "k80": 8.0}}
"""Declared: a model that its GPU holds up, and one that waits for its data."""
SAMPLES_PER_STEP = 32
READ_RATES = """\
import json, sqlite3
journal = sqlite3.connect("file:/var/lib/gandiva/journal.sqlite?mode=ro", uri=True, timeout=10)
row = journal.execute("SELECT value FROM state WHERE key = 'models'").fetchone()
print(json.dumps(json.loads(row[0])["rates"] if row else []))
"""


def policy(name: str, **settings: Any) -> Mapping[str, Any]:
    return {**QUICK["policy"], "name": name, name: settings}


LAS = policy(
    "gavel-las",
    round_seconds=ROUND_SECONDS,
    throughputs="agnostic",
    deadline_seconds=DEADLINE_SECONDS,
)
"""Types count as equal: measured rates do not change what is allocated."""
pytestmark = [pytest.mark.live, pytest.mark.xdist_group("gpu-types"), pytest.mark.settings(policy=LAS)]


def train_pair(site: Site, user: str, types: str, weight: float = 1, *options: str, **arguments: Any) -> int:
    """A job of two GPUs: a type has room for one of them at a time."""
    limits = (f"--gandiva-gpu-types={types}", f"--gandiva-weight={weight}", "--gres=gpu:2")
    return site.train(user, "--gandiva", *limits, *options, gpus=2, memory_mb=512, **arguments)


def test_time_and_steps_on_each_type_follow_what_is_allocated(site: Site) -> None:
    """One of five jobs changes its type by way of its checkpoint store: Slurm starts it again and again. What
    each receives comes near its fractions all the same: with equal parts of each type the error is 0.25. Jobs
    go as fast as the type that they are on, and that is what the controller measures."""
    site.cluster.exec("login", "rm -rf types-store *.steps", user="alice")
    model = f"lstm-{site.clock():.0f}"
    parts: dict[int, dict[str, float]] = {}
    for types, weight, row in (
        ("v100,p100", 1.5, {"n1": 0.5, "n2": 0.25}),
        ("v100", 2, {"n1": 0.5}),
        ("p100", 3, {"n2": 0.75}),
        ("k80", 3, {"n3": 0.75}),
        ("k80", 1, {"n3": 0.25}),
    ):
        work: dict[str, Any] = {"minibatch_ms": 30, "utilisation": 100, "log": f"{len(parts)}.steps"}
        work |= {"store": "types-store"} if len(row) > 1 else {}
        parts[train_pair(site, "alice", types, weight, f"--gandiva-model={model}", **work)] = row
    wait_allocated(site, {job: {TYPES[at]: part for at, part in row.items()} for job, row in parts.items()})
    site.wait_on_gpu(*parts, timeout_seconds=120)
    begin = site.clock()

    def error() -> float:
        """Unknown, 1, before each has had two turns on each of its types."""
        slices, now = accounted(site), site.clock()
        begun = Counter((each.job_id, each.node) for each in slices if each.gpu == 0 and each.start > begin)
        least = min(begun[job, node] for job, row in parts.items() for node in row)
        return error_of(slices, parts, begin, now, gpus=2) if least >= 2 else 1.0

    site.wait("time by what is allocated", lambda: error() < 0.12, 300)
    holds = site.holds()
    for job, row in parts.items():
        assert {hold.node for hold in holds if hold.job_id == job} == set(row)

    def steps(number: int, node: str) -> list[float]:
        """Seconds that they took there."""
        here = [h for h in site.holds() if h.job_id == list(parts)[number] and (h.node, h.gpu) == (node, 0)]
        return intervals(site, "alice", f"{number}.steps", here)

    # What else this machine does adds to the time of some.
    changing, v100, p100, k80 = (
        statistics.quantiles(steps(*where), n=4)[0] for where in ((0, "n2"), (1, "n1"), (2, "n2"), (3, "n3"))
    )
    assert p100 / v100 == pytest.approx(2, rel=0.2)
    assert k80 / p100 == pytest.approx(2, rel=0.2)
    assert changing == pytest.approx(p100, rel=0.2)

    def differences() -> dict[str, float]:
        """By type: the rate that the controller has measured, by that of the steps that a job logged."""
        rows = json.loads(site.cluster.exec("ctl", [PYTHON, "-c", READ_RATES], user="gandiva").stdout)
        mine = [row for row in rows if row[0] == model]
        assert all(row[2:5] == [2, 1, []] for row in mine), mine
        logged = {TYPES[f"n{number}"]: statistics.fmean(steps(number, f"n{number}")) for number in (1, 2, 3)}
        return {row[1]: row[5] * logged[row[1]] / SAMPLES_PER_STEP for row in mine}

    # Types differ by a factor of 2.
    equal = dict.fromkeys(TYPES.values(), pytest.approx(1, abs=0.3))
    site.wait("a rate for each type, by its speed", lambda: differences() == equal, 120)


@pytest.mark.breaks
def test_a_solver_that_is_killed_hangs_or_lies_costs_nothing_but_age(site: Site) -> None:
    """Jobs have turns by the last allocation, one that comes too; a new process solves the next problem, by
    which each has its part. What went wrong is in `gandiva status` until then."""
    jobs = {train_pair(site, "alice", "k80", weight, minibatch_ms=5): weight for weight in (3, 1)}
    site.wait_on_gpu(*jobs)

    def late() -> int:
        return train_pair(site, "bob", "k80", minibatch_ms=5)

    def wait_shared(*more: int) -> None:
        weights = {**jobs, **dict.fromkeys(more, 1)}
        wait_allocated(
            site, {job: {"k80": weight / sum(weights.values())} for job, weight in weights.items()}
        )

    def wait_trouble(fault: str, begin: float, other_than: str) -> float:
        """When it is over."""
        said = f"problem gavel-las is not solved: {FAULTS[fault]}"
        site.wait(said, lambda: f"problem     {said}" in status(site).stdout)
        failed_at = wait_event(site, "trouble", said, begin)
        solved_at = wait_event(site, "recovered", "solver gavel-las: solves it again", failed_at)
        site.wait("no problem", lambda: status(site).exit_code == 0)
        assert other_than not in solvers(site)
        return solved_at

    wait_shared()
    (killed,) = solvers(site)
    site.cluster.exec("ctl", ["kill", "-9", killed])
    first = late()
    wait_shared(first)
    (hangs,) = solvers(site)
    assert hangs != killed

    begin = site.clock()
    site.cluster.exec("ctl", ["kill", "-STOP", hangs])
    second = late()
    by_last = {job: weight / 5 for job, weight in {**jobs, first: 1}.items()} | {second: 1 / 6}
    wait_allocated(site, {job: {"k80": part} for job, part in by_last.items()})
    solved_at = wait_trouble("hangs", begin, hangs)
    turns = f"SELECT 1 FROM decisions WHERE job_id = {second} AND time < {solved_at}"
    assert read_journal(site, turns), "it had no turn meanwhile"
    wait_shared(first, second)

    (lies,) = solvers(site)
    begin = site.clock()
    answer_for(site, lies, "no numbers")
    site.cluster.exec("ctl", ["scancel", str(first)])
    wait_trouble("no numbers", begin, lies)
    wait_shared(second)
    assert set(site.states([*jobs, second]).values()) <= {"RUNNING", "SUSPENDED"}


def declare_rates(site: Site) -> None:
    """In place of all that is known of the models."""
    rates = [
        {"model": model, "gpu_type": gpu_type, "gpus": 1, "samples_per_second": 32 * rate}
        for model, by_type in RATES.items()
        for gpu_type, rate in by_type.items()
    ]
    site.declare_rates(rates)


@pytest.mark.settings(
    policy=policy(
        "gavel-cost-slo", round_seconds=ROUND_SECONDS, prices={"v100": 10.0, "p100": 6.0, "k80": 1.0}
    )
)
def test_a_job_with_a_deadline_gets_the_gpus_that_it_needs_for_it(site: Site) -> None:
    """The slow GPUs do the most for their price. A job that needs ten minutes of the fast ones and has twelve
    cannot end in time on the slow ones."""
    declare_rates(site)
    options = {"cheap": (), "due": ("--time=10", "--deadline=now+12minutes")}
    jobs = {
        name: site.train("alice", "--gandiva", "--gandiva-model=bound", "--gres=gpu:1", *more)
        for name, more in options.items()
    }
    site.wait_on_gpu(*jobs.values())
    begin = site.clock()
    site.wait("the end of a round", lambda: site.clock() > begin + ROUND_SECONDS)
    holds = site.holds()
    on = {name: {TYPES[hold.node] for hold in holds if hold.job_id == job} for name, job in jobs.items()}
    assert on == {"cheap": {"k80"}, "due": {"v100"}}
