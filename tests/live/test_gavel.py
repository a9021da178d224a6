# SPDX-License-Identifier: GPL-2.0-or-later
"""Gavel's rounds on three GPU types of different speed. These tests have a cluster of their own."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from container.cluster import MiniCluster
from container.images import REPOSITORY_ROOT
from container.spec import load
from tests.live.conftest import own_name, running
from tests.live.gpu_history import Hold
from tests.live.support import QUICK, Site
from tests.live.test_gpu_types import TYPES, step_times

pytestmark = pytest.mark.live

ROUND_SECONDS = 8.0
ROUNDS = 12
MEASURED_SECONDS = 40.0
CHANGING_ROUND_SECONDS = 15.0
CHANGING_ROUNDS = 10
EQUAL = {"bound": 70 / 3, "fed": 9.0}
"""The rates of `RATES`, where a job has as much time on each type."""
RATES = {"bound": {"v100": 40.0, "p100": 20.0, "k80": 10.0}, "fed": {"v100": 10.0, "p100": 9.0, "k80": 8.0}}
"""Declared: a model that its GPU holds up, and one that waits for its data."""
FIND_SOLVER = "pgrep -f '[a]llocations.worker'"


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[MiniCluster]:
    """Three nodes of two GPUs each: v100, p100, k80."""
    if existing := os.environ.get("GANDIVA_TYPES_CLUSTER"):
        yield MiniCluster.attach(existing)
        return
    request.getfixturevalue("engine_ready")
    spec = load(REPOSITORY_ROOT / "container" / "types.toml")
    changes = {"name": own_name("-gavel"), "release": os.environ.get("RELEASE") or spec.release}
    with running(spec.model_copy(update=changes), request.session) as mini:
        yield mini


def start(site: Site, policy: str = "gavel-las", **settings: Any) -> None:
    site.cluster.stop_controller()
    chosen = {"round_seconds": ROUND_SECONDS, **settings}
    site.start_controller(policy={**QUICK["policy"], "name": policy, policy: chosen})


def clock(site: Site) -> float:
    """On all hosts the same."""
    return float(site.cluster.exec("n1", ["date", "+%s.%N"]).stdout)


def pass_seconds(site: Site, seconds: float) -> None:
    until = clock(site) + seconds
    site.wait("the time to be over", lambda: clock(site) >= until, seconds + 60)


def allocated(site: Site, job: int) -> dict[str, float]:
    """The job's fraction of the time on each type, by `gandiva explain`. Empty: it says nothing."""
    told = site.cluster.exec("login", ["gandiva", "explain", str(job)], user="alice").stdout
    parts = " ".join(told.split()).split("it is allocated ")
    named = re.match(r"([01]\.\d\d) of the time on (\w+)((?:, [01]\.\d\d on \w+)*)", parts[-1])
    if named is None:
        return {}
    others = re.findall(r"([01]\.\d\d) on (\w+)", named[3])
    return {gpu_type: float(fraction) for fraction, gpu_type in [(named[1], named[2]), *others]}


def received(holds: list[Hold], job: int, node: str, begin: float, end: float) -> float:
    """Seconds on GPUs of this node."""
    mine = (hold for hold in holds if hold.job_id == job and hold.node == node)
    return sum(max(0.0, min(hold.end, end) - max(hold.start, begin)) for hold in mine)


def four_for_two(site: Site) -> dict[int, tuple[str, float]]:
    """Four jobs for the two GPUs of each type, by job its node and its part: two have three times the weight
    of the others. A job that Slurm has started keeps its GPU, so one of each kind takes turns on each GPU."""
    return {
        site.train(
            "alice", "--gandiva", f"--gandiva-gpu-types={model}", f"--gandiva-weight={weight}", "--gres=gpu:1"
        ): (node, weight / 4)
        for node, model in TYPES.items()
        for weight in (3, 3, 1, 1)
    }


def test_received_time_approaches_what_is_allocated_and_no_job_is_on_another_type(site: Site) -> None:
    """Twelve jobs on six GPUs. What switches cost is lost to all alike: each job is compared with its part of
    what the jobs of its type had."""
    site.cluster.stop_controller()
    jobs = four_for_two(site)
    start(site)
    site.wait_on_gpu(*jobs)
    begin = clock(site)
    pass_seconds(site, ROUNDS * ROUND_SECONDS)
    holds, end = site.holds(), clock(site)
    for job, (node, part) in jobs.items():
        assert allocated(site, job) == {TYPES[node]: pytest.approx(part, abs=0.011)}
        assert {hold.node for hold in holds if hold.job_id == job} == {node}
    errors: list[float] = []
    for number in range(1, int((end - begin) / ROUND_SECONDS) + 1):
        until = begin + number * ROUND_SECONDS
        had = {job: received(holds, job, node, begin, until) for job, (node, _) in jobs.items()}
        whole = {node: sum(had[job] for job in jobs if jobs[job][0] == node) for node in TYPES}
        errors.append(
            max(abs(2 * had[job] / (whole[node] or 1.0) - part) for job, (node, part) in jobs.items())
        )
        used = sum(whole.values()) / (6 * number * ROUND_SECONDS)
        print(f"round {number}: largest error {errors[-1]:.2f} of the time, GPUs in use {used:.2f}")
    assert errors[-1] < 0.1, errors
    assert errors[-1] < errors[0]


def test_a_solver_that_is_killed_costs_nothing_but_age(site: Site) -> None:
    """Rounds go on with the last allocation, and the next one is by a new process."""
    site.cluster.stop_controller()
    jobs = four_for_two(site)
    start(site)
    site.wait_on_gpu(*jobs)
    pids = site.cluster.exec("ctl", FIND_SOLVER).stdout.split()
    assert len(pids) == 1, pids
    site.cluster.exec("ctl", ["kill", "-9", *pids])
    begin = clock(site)
    pass_seconds(site, 5 * ROUND_SECONDS)
    holds, end = site.holds(), clock(site)
    for job, (node, part) in jobs.items():
        assert received(holds, job, node, begin, end) > 0.5 * part * (end - begin), f"job {job} had its turns"
    late = site.train("bob", "--gandiva", "--gandiva-gpu-types=k80", "--gres=gpu:1", steps=20)
    assert site.wait_ended([late], 120) == {late: "COMPLETED"}
    others = site.cluster.exec("ctl", FIND_SOLVER).stdout.split()
    assert len(others) == 1 and others != pids
    assert set(site.states(jobs).values()) <= {"RUNNING", "SUSPENDED"}


def declare_rates(site: Site) -> None:
    """In place of all that is known of the models."""
    table = [
        {"model": model, "gpu_type": gpu_type, "gpus": 1, "samples_per_second": 32 * rate}
        for model, rates in RATES.items()
        for gpu_type, rate in rates.items()
    ]
    site.cluster.write_file("ctl", "/tmp/rates.json", json.dumps({"gandiva_rates": 1, "rates": table}))
    site.cluster.exec("ctl", ["gandiva", "rates", "import", "/tmp/rates.json", "--replace"])


def run_of(site: Site, throughputs: str) -> Mapping[str, list[int]]:
    """Steps that the jobs of each model do in the same time, all of them there from the beginning."""
    site.cluster.stop_controller()
    jobs: dict[int, tuple[str, str]] = {}
    for number in range(3):
        for model, work in (("bound", (25.0, 0.0)), ("fed", (4.0, 80.0))):
            log = f"{throughputs}-{model}-{number}"
            site.cluster.exec("login", ["rm", "-f", log], user="alice")
            job = site.train(
                "alice",
                "--gandiva",
                f"--gandiva-model={model}",
                "--gres=gpu:1",
                minibatch_ms=work[0],
                host_ms=work[1],
                utilisation=100,
                log=log,
            )
            jobs[job] = (model, log)
    declare_rates(site)
    start(site, "gavel-max-throughput", throughputs=throughputs, normalised=True)
    site.wait_on_gpu(*jobs)
    begin = clock(site)
    pass_seconds(site, MEASURED_SECONDS)
    end = begin + MEASURED_SECONDS
    found: dict[str, list[int]] = {model: [] for model in RATES}
    for model, log in jobs.values():
        found[model].append(sum(begin <= at <= end for at in step_times(site, "alice", log)))
    site.cancel_all()
    return found


def test_jobs_do_more_steps_where_throughputs_count(site: Site) -> None:
    """Six jobs on six GPUs: those that their GPUs hold up get the fast ones and stay there."""
    agnostic, aware = run_of(site, "agnostic"), run_of(site, "aware")
    print(f"steps in {MEASURED_SECONDS:g} s: agnostic {agnostic}, aware {aware}")
    assert sum(aware["bound"]) > 1.2 * sum(agnostic["bound"])
    assert min(aware["bound"]) > 1.5 * min(agnostic["bound"])
    assert sum(aware["fed"]) > 0.85 * sum(agnostic["fed"])


def test_a_job_with_a_deadline_gets_the_gpus_that_it_needs_for_it(site: Site) -> None:
    """The slow GPUs do the most for their price. A job that needs ten minutes of the fast ones and has twelve
    cannot end in time on the slow ones."""
    site.cluster.stop_controller()
    options = {"cheap": (), "due": ("--time=10", "--deadline=now+12minutes")}
    jobs = {
        name: site.train("alice", "--gandiva", "--gandiva-model=bound", "--gres=gpu:1", *more)
        for name, more in options.items()
    }
    declare_rates(site)
    start(site, "gavel-cost-slo", prices={"v100": 10.0, "p100": 6.0, "k80": 1.0})
    site.wait_on_gpu(*jobs.values(), timeout_seconds=120)
    pass_seconds(site, 2 * ROUND_SECONDS)
    holds = site.holds()
    on = {name: {TYPES[hold.node] for hold in holds if hold.job_id == job} for name, job in jobs.items()}
    assert on == {"cheap": {"k80"}, "due": {"v100"}}


def las_run(site: Site, throughputs: str) -> Mapping[str, list[int]]:
    """Steps that four jobs of each model do in ten rounds of LAS, all with checkpoint stores. Those that wait
    for data come first."""
    site.cluster.stop_controller()
    site.cluster.exec("login", "rm -rf /home/alice/las-*", user="alice")
    jobs: dict[int, tuple[str, str]] = {}
    for model, work in (("fed", (4.0, 80.0)), ("bound", (25.0, 0.0))):
        for number in range(4):
            name = f"las-{throughputs}-{model}-{number}"
            job = site.train(
                "alice",
                "--gandiva",
                f"--gandiva-model={model}",
                "--gres=gpu:1",
                minibatch_ms=work[0],
                host_ms=work[1],
                utilisation=100,
                log=f"{name}.log",
                store=f"{name}-store",
            )
            jobs[job] = (model, f"{name}.log")
    declare_rates(site)
    start(site, throughputs=throughputs, round_seconds=CHANGING_ROUND_SECONDS)
    site.wait_on_gpu(*jobs, timeout_seconds=120)
    begin = clock(site)
    pass_seconds(site, CHANGING_ROUNDS * CHANGING_ROUND_SECONDS)
    holds, end = site.holds(), clock(site)
    found: dict[str, list[int]] = {model: [] for model in RATES}
    for job, (model, log) in jobs.items():
        found[model].append(sum(begin <= at <= end for at in step_times(site, "alice", log)))
        had = {TYPES[node]: round(received(holds, job, node, begin, end)) for node in TYPES}
        print(f"{throughputs} job {job}, {model}: {found[model][-1]} steps, seconds by type {had}")
    site.cancel_all()
    return found


def test_las_does_more_steps_where_throughputs_count(site: Site) -> None:
    """Eight jobs on six GPUs. A job that is bound changes its type by way of its checkpoint store: by the
    optimum jobs of both models do a fifth more than with the agnostic twin."""
    agnostic, aware = las_run(site, "agnostic"), las_run(site, "aware")
    print(f"steps in {CHANGING_ROUNDS} rounds: agnostic {agnostic}, aware {aware}")
    gains = {model: sum(aware[model]) / sum(agnostic[model]) for model in RATES}
    least = [min(min(run[model]) / EQUAL[model] for model in RATES) for run in (agnostic, aware)]
    print(f"gains {gains}, least share {least}")
    assert sum(gains.values()) > 2.15
    assert min(gains.values()) > 0.85
    assert least[1] > 1.2 * least[0]
