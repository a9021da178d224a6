# SPDX-License-Identifier: GPL-2.0-or-later
"""Two jobs that allow it run on one GPU at the same time, and go on so where that is faster than in turns;
everything that tells of them agrees."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.live.gpu_history import held_seconds, overlaps
from tests.live.support import QUICK, TRAIN, Site

pytestmark = pytest.mark.live

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
PACKING = {
    **QUICK["policy"],
    "moves": ["pack"],
    "pack": {"trial_seconds": 3.0, "gain_fraction": 0.3},
}
"""Two of `COMMAND` do 1.7 times together what they do in turns, two of `HEAVY` just as much: what the machine
does to rates of three seconds makes no difference."""


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


def test_two_jobs_share_a_gpu_and_a_third_never_does(site: Site) -> None:
    plain = site.submit("alice", COMMAND, "--no-gandiva", "--gres=gpu:1")
    assert site.wait_ended([plain], 90)[plain] == "COMPLETED"
    site.cluster.stop_controller()
    site.start_controller(policy=PACKING)
    site.leave_one_gpu()

    first = site.submit("alice", COMMAND, "--gandiva-pack=yes", MODEL, "--gres=gpu:1")
    site.wait_on_gpu(first)
    second = site.submit("bob", COMMAND, "--gandiva-pack=yes", MODEL, "--gres=gpu:1")
    site.wait_on_gpu(second)
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

    third = site.submit("carol", COMMAND, "--gandiva-pack=no", MODEL, "--gres=gpu:1")
    unsaid = site.submit("bob", COMMAND, "--gandiva", MODEL, "--gres=gpu:1")
    states = site.wait_ended([first, second, third, unsaid], 240)
    assert set(states.values()) == {"COMPLETED"}, states

    found = site.holds()
    pairs = {frozenset({one.job_id, other.job_id}) for one, other in overlaps(found)}
    assert pairs == {frozenset({first, second})}
    together = sum(min(one.end, other.end) - max(one.start, other.start) for one, other in overlaps(found))
    assert together > 3.0, "they were on the GPU together for a moment only"
    for user, job in (("alice", first), ("bob", second), ("carol", third), ("bob", unsaid)):
        assert site.digest(user, job) == site.digest("alice", plain)
    rows = {row["job_id"]: row for row in site.report()}
    end = max(hold.end for hold in found)
    held = {job: held_seconds(found, job, 0, end) for job in (first, second, third, unsaid)}
    for job, seen in held.items():
        # From Slurm's start to the first memory a job loads its program.
        loads = min(hold.start for hold in found if hold.job_id == job) - rows[job]["start_time"]
        assert rows[job]["run_seconds"] == pytest.approx(loads + seen, rel=0.15, abs=1.0)
    # Steps that jobs did for each second that the GPU was theirs, together and in turns.
    packed = 2 * STEPS / (held[first] + held[second] - together)
    in_turns = 2 * STEPS / (held[third] + held[unsaid])
    print(f"steps per GPU second: {packed:.1f} packed, {in_turns:.1f} in turns")
    assert packed > 1.15 * in_turns


def test_an_allocation_gives_two_jobs_one_gpu_at_the_same_time(site: Site) -> None:
    """In rounds, by what is declared of the pair; once both have shown how much memory they need."""
    site.cluster.stop_controller()
    alone = {"model": "paired", "gpu_type": "a100", "gpus": 1, "samples_per_second": 800.0}
    rates = [alone, {**alone, "models_beside": ["paired"], "samples_per_second": 680.0}]
    site.declare_rates(rates)
    allocation = {"round_seconds": 4.0, "space_sharing": True}
    site.start_controller(policy={**QUICK["policy"], "name": "gavel-las", "gavel-las": allocation})
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


def test_packed_jobs_know_their_share_of_the_memory(site: Site) -> None:
    """Neither may take what the other has had, and a job that is alone again may take all of it."""
    site.cluster.stop_controller()
    site.start_controller(policy=PACKING)
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


def test_two_jobs_that_fill_the_gpu_are_packed_measured_and_parted(site: Site) -> None:
    site.cluster.stop_controller()
    site.start_controller(policy=PACKING)
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


def test_one_of_a_pair_is_cancelled_and_the_other_runs_on(site: Site) -> None:
    site.cluster.stop_controller()
    site.start_controller(policy=PACKING)
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
