# SPDX-License-Identifier: GPL-2.0-or-later
"""Two jobs that allow it run on one GPU at the same time, and go on so where that is faster than in turns;
everything that tells of them agrees."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from typing import Any

import pytest

from tests.live.gpu_history import held_seconds, overlaps
from tests.live.hurry import hurried
from tests.live.rounds import intervals
from tests.live.slices import POLICY
from tests.live.support import QUICK, TRAIN, Site

MODEL = "--gandiva-model=small"
"""What is measured of the first run of a model is known of the next: a job that never ran can be packed."""
STEPS = 600
COMMAND = f"{TRAIN} --steps {STEPS} --minibatch-ms 40 --memory-mb 4096"
HEAVY = f"{COMMAND} --utilisation 100"
"""Fills its GPU: two of them take turns, whether they are packed or not."""
LONGER = COMMAND.replace(str(STEPS), str(2 * STEPS))
LARGE = LONGER.replace("4096", "16384")
CONTEXT_MIB = 400
SMALL_MIB, LARGE_MIB, GPU_MIB = 4096 + CONTEXT_MIB, 16384 + CONTEXT_MIB, 80 << 10
LIMIT = "memory limit of each GPU is"
PACKING = {"moves": ["pack"], "trials": {"trial_seconds": 3.0, "gain_fraction": 0.3}}
"""Two of `COMMAND` do 1.7 times together what they do in turns, two of `HEAVY` just as much."""
EAGER = {"moves": ["pack"], "trials": {"trial_seconds": 3.0, "gain_fraction": 0.05, "cooldown_seconds": 5.0}}
"""A trial that a busy machine has spoilt is repeated."""
PAIRED = {
    "name": "gavel-las",
    "rounds": {"round_seconds": 4.0},
    "allocation": {"space_sharing": True},
}
pytestmark = [pytest.mark.live, pytest.mark.settings(policy={**QUICK["policy"], **PACKING})]


def shown(site: Site, job_id: int) -> dict[str, Any]:
    """`gandiva explain --json`: what the controller has of the job now; empty once it is over."""
    done = site.cluster.exec("login", ["gandiva", "explain", str(job_id), "--json"], user="alice")
    return dict(json.loads(done.stdout)["live"] or {})


def parted(site: Site, job_id: int) -> str:
    """What the controller said when it undid the trial of the job; empty before that. (What a trial shows
    lasts three seconds, and `gandiva explain` takes one on a busy machine: the journal keeps it.)"""
    done = site.cluster.exec("login", ["gandiva", "explain", str(job_id), "--json"], user="alice")
    events = json.loads(done.stdout)["events"]
    return " ".join(event["message"] for event in events if event["kind"] == "pack-undone")


def shards(site: Site, job_id: int) -> str:
    """What Slurm gave the job on its node, such as `gres/shard:a100_3:1`."""
    return site.job(job_id)["TresPerNode"]


@pytest.mark.settings(policy={**POLICY, **EAGER})
def test_two_jobs_share_a_gpu_and_a_third_never_does(site: Site) -> None:
    """Slurm binds both to one GPU, by its shards. Jobs that take turns with the pair do not allow it."""
    command = f"{TRAIN} --steps 1000 --memory-mb 4096 --minibatch-ms"
    plain = site.submit("alice", f"{command} 1", "--no-gandiva", "--gres=gpu:1")
    assert site.wait_ended([plain])[plain] == "COMPLETED"
    site.leave_one_gpu()
    # A model of its own: rates of jobs that were hurried are remembered.
    model = f"small-{site.clock():.0f}"
    jobs: dict[str, int] = {}

    def submit(user: str, name: str, option: str) -> int:
        site.cluster.exec("login", ["rm", "-f", f"{name}.log"], user=user)
        words = f"{command} 100 --log {name}.log"
        jobs[name] = site.submit(user, words, option, f"--gandiva-model={model}", "--gres=gpu:1")
        return jobs[name]

    first = submit("alice", "first", "--gandiva-pack=yes")
    known = ["gandiva", "rates", "list", model, "--noheader"]
    site.wait("its rate alone", lambda: model in site.cluster.exec("ctl", known).stdout)
    second = submit("bob", "second", "--gandiva-pack=yes")
    site.wait(
        "both on the GPU",
        lambda: (
            shown(site, first).get("shares_with") == [second]
            and shown(site, second).get("shares_with") == [first]
        ),
    )
    assert shards(site, first) == shards(site, second), "Slurm has bound them to the same GPU"
    assert site.states([first, second]) == {first: "RUNNING", second: "RUNNING"}
    told = site.explained(second, "bob")
    assert f"job {first}, on the same GPUs" in told
    kept = f"shares its GPUs with job {first}: together they do 1."
    site.wait("the end of their trial", lambda: kept in shown(site, second).get("reason", ""))
    rows = {row["job_id"]: row for row in site.report()}
    assert (rows[first]["shares_with"], rows[second]["shares_with"]) == ([second], [first])
    assert rows[first]["last_gpus"] == rows[second]["last_gpus"]

    submit("carol", "third", "--gandiva-pack=no")
    submit("bob", "unsaid", "--gandiva")
    users = {"first": "alice", "second": "bob", "third": "carol", "unsaid": "bob"}
    site.wait_on_gpu(*jobs.values())

    def rates() -> dict[str, float]:
        """Steps in a second of the GPU: of the pair while both are there, of the others in their turns. Empty
        before that is known."""
        found = site.holds()
        times = {name: [hold for hold in found if hold.job_id == job] for name, job in jobs.items()}
        times["first"] = times["second"] = [
            replace(one, start=max(one.start, other.start), end=min(one.end, other.end))
            for one, other in overlaps(found)
        ]
        taken = {name: intervals(site, users[name], f"{name}.log", holds) for name, holds in times.items()}
        if min(map(len, taken.values())) < 12:
            return {}
        return {name: 1 / statistics.median(seconds) for name, seconds in taken.items()}

    site.wait("steps of all of them", lambda: rates() != {}, 120)
    rate = rates()
    print(f"steps in a second of the GPU: {rate}")
    assert rate["first"] + rate["second"] > 1.15 * max(rate["third"], rate["unsaid"])
    with hurried(site):
        assert set(site.wait_ended(jobs.values(), 240).values()) == {"COMPLETED"}

    found = site.holds()
    both = overlaps(found)
    assert {frozenset({one.job_id, other.job_id}) for one, other in both} == {frozenset({first, second})}
    together = sum(min(one.end, other.end) - max(one.start, other.start) for one, other in both)
    assert together > 3.0, "they were on the GPU together for a moment only"
    digest = site.digest("alice", plain)
    assert {site.digest(users[name], job) for name, job in jobs.items()} == {digest}
    limit = f"{LIMIT} {GPU_MIB - SMALL_MIB} MiB"
    assert all(limit in site.output(users[name], jobs[name]) for name in ("first", "second"))
    assert not any(limit in site.output(users[name], jobs[name]) for name in ("third", "unsaid"))

    rows = {row["job_id"]: row for row in site.report()}
    switches = site.operations()
    end = max(hold.end for hold in found)
    for job in jobs.values():
        # From Slurm's start to the first memory a job loads its program.
        loads = min(hold.start for hold in found if hold.job_id == job) - rows[job]["start_time"]
        switching = sum(o.seconds for o in switches if o.job_id == job and o.kind != "place")
        seen = loads + held_seconds(found, job, 0, end)
        assert rows[job]["run_seconds"] == pytest.approx(seen, abs=switching + 1.0)


@pytest.mark.nightly
@pytest.mark.settings(policy={**QUICK["policy"], **PAIRED})
def test_an_allocation_gives_two_jobs_one_gpu_at_the_same_time(site: Site) -> None:
    """In rounds, by what is declared of the pair; once both have shown how much memory they need."""
    alone = {"model": "paired", "gpu_type": "a100", "gpus": 1, "samples_per_second": 800.0}
    rates = [alone, {**alone, "models_beside": ["paired"], "samples_per_second": 680.0}]
    site.declare_rates(rates)
    site.leave_one_gpu()

    first, second, third = (
        site.submit(user, COMMAND, f"--gandiva-pack={pack}", "--gandiva-model=paired", "--gres=gpu:1")
        for user, pack in (("alice", "yes"), ("bob", "yes"), ("carol", "no"))
    )
    site.wait("both on the GPU", lambda: shown(site, second).get("shares_with") == [first], 120)
    assert shown(site, first)["shares_with"] == [second]
    assert site.states([first, second]) == {first: "RUNNING", second: "RUNNING"}
    states = site.wait_ended([first, second, third], 240)
    assert set(states.values()) == {"COMPLETED"}, states
    found = overlaps(site.holds())
    assert {frozenset({one.job_id, other.job_id}) for one, other in found} == {frozenset({first, second})}
    together = sum(min(one.end, other.end) - max(one.start, other.start) for one, other in found)
    assert together > 4.0, "no round together"


@pytest.mark.nightly
def test_packed_jobs_know_their_share_of_the_memory(site: Site) -> None:
    """Neither may take what the other has had, and a job that is alone again may take all of it."""
    site.leave_one_gpu()
    first = site.submit("alice", LONGER, "--gandiva-pack=yes", MODEL, "--gres=gpu:1")
    site.wait_on_gpu(first)
    second = site.submit("bob", LARGE, "--gandiva-pack=yes", "--gandiva-model=large", "--gres=gpu:1")
    # Each has run alone before: until then neither joins the other.
    of_first, of_second = f"{LIMIT} {GPU_MIB - LARGE_MIB} MiB", f"{LIMIT} {GPU_MIB - SMALL_MIB} MiB"
    site.wait("the limit of the first", lambda: of_first in site.output("alice", first))
    site.wait("the limit of the second", lambda: of_second in site.output("bob", second))
    assert f"{LIMIT} 0 MiB" not in site.output("alice", first)
    site.cluster.exec("login", ["scancel", str(second)], user="bob")
    site.wait("no limit", lambda: f"{LIMIT} 0 MiB" in site.output("alice", first))
    assert site.wait_ended([first], 240)[first] == "COMPLETED"


@pytest.mark.nightly
def test_two_jobs_that_fill_the_gpu_are_packed_measured_and_parted(site: Site) -> None:
    site.leave_one_gpu()
    first, second = (
        site.submit(user, HEAVY, "--gandiva-pack=yes", "--gandiva-model=heavy", "--gres=gpu:1")
        for user in ("alice", "bob")
    )
    site.wait("the end of their trial", lambda: bool(parted(site, second)))
    assert f"stops sharing GPUs with job {first}: together they do " in parted(site, second)
    site.wait("each alone again", lambda: shown(site, second).get("shares_with") == [])
    states = site.wait_ended([first, second], 240)
    assert set(states.values()) == {"COMPLETED"}, states
    found = overlaps(site.holds())
    together = sum(min(one.end, other.end) - max(one.start, other.start) for one, other in found)
    assert 0 < together < 15.0, "they were packed once, for a trial"


@pytest.mark.nightly
def test_one_of_a_pair_is_cancelled_and_the_other_runs_on(site: Site) -> None:
    site.leave_one_gpu()
    first = site.submit("alice", COMMAND, "--gandiva-pack=yes", MODEL, "--gres=gpu:1")
    site.wait_on_gpu(first)
    second = site.submit("bob", COMMAND, "--gandiva-pack=yes", MODEL, "--gres=gpu:1")
    site.wait("both on the GPU", lambda: shown(site, second).get("shares_with") == [first])
    (before,) = site.report("-j", str(second))
    site.cluster.exec("login", ["scancel", str(first)], user="alice")
    site.wait("the second alone", lambda: shown(site, second).get("shares_with") == [])
    assert site.wait_ended([second], 120)[second] == "COMPLETED"
    (row,) = site.report("-j", str(second))
    assert row["suspends"] == before["suspends"], "it went on where it was"
