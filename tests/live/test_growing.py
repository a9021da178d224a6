# SPDX-License-Identifier: GPL-2.0-or-later
"""A job that allows it grows when its neighbours leave, and shrinks when others come (SPEC 1.6)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.live.support import EXAMPLES, QUICK, Site

pytestmark = pytest.mark.live

ADAPTIVE = ("--gandiva-gpus=1-4", "--gandiva-suspend=requeue", "--gres=gpu:1", "--requeue")
IDLE_SECONDS = 4.0
WORK = {"gpus": 4, "minibatch_ms": 20, "utilisation": 100, "memory_mb": 512}
"""Four parts, on however many GPUs there are: each GPU computes its parts one after the other."""


def start(site: Site, name: str, *, in_place: bool = False, idle_seconds: float = IDLE_SECONDS) -> None:
    """A controller with this policy, whose jobs grow once GPUs are idle for so long."""
    site.cluster.stop_controller()
    grow = {"idle_seconds": idle_seconds, "trial_seconds": 3.0, "in_place": in_place}
    site.start_controller(policy={**QUICK["policy"], "name": name, "moves": ["grow"], "grow": grow})


def start_without_growth(site: Site, name: str, *, in_place: bool = False) -> None:
    """Until the controller is started anew no job grows, however long the test takes to submit others."""
    start(site, name, in_place=in_place, idle_seconds=3600.0)


def undisturbed(site: Site, steps: int) -> str:
    """What it computes on four GPUs of its own, with mini-batches as short as they can be."""
    options = ("--no-gandiva", "--gres=gpu:4")
    plain = site.train("alice", *options, steps=steps, **{**WORK, "minibatch_ms": 1})
    assert site.wait_ended([plain], 200) == {plain: "COMPLETED"}
    return site.digest("alice", plain)


def shown(site: Site, job_id: int) -> dict[str, Any]:
    """`gandiva explain --json`: what the controller has of the job now; empty once it is over."""
    done = site.cluster.exec("login", ["gandiva", "explain", str(job_id), "--json"], user="alice")
    return dict(json.loads(done.stdout)["live"] or {})


def shards(site: Site, job_id: int) -> int:
    """GPUs that Slurm has given a job that runs."""
    job = site.job(job_id)
    return job["TresPerNode"].count("shard:") if job["JobState"] == "RUNNING" else 0


def runs_on(site: Site, job_id: int, gpus: int) -> None:
    """Wait until it does: Slurm, the controller and the GPUs' own history agree."""

    def agree() -> bool:
        names = shown(site, job_id).get("running_on", [])
        if len(names) != gpus or shards(site, job_id) != gpus:
            return False
        on_n1 = [hold for hold in site.holds() if hold.node == "n1"]
        now = max(hold.end for hold in on_n1)
        return {f"n1:{h.gpu}" for h in on_n1 if h.job_id == job_id and h.end == now} == set(names)

    site.wait(f"job {job_id} on {gpus} GPUs", agree)


def test_one_two_four_two_one(site: Site) -> None:
    start_without_growth(site, "gandiva")
    other = site.submit("carol", "sleep 900", "--no-gandiva", "--gres=gpu:4", "-w", "n2")
    site.wait_state(other, "RUNNING")
    extra = {**WORK, "checkpoint_dir": "adaptive", "checkpoint_every": 50}
    job = site.train("alice", *ADAPTIVE, steps=3000, **extra)
    one = site.train("bob", "--gandiva", "--gres=gpu:1")
    two = site.train("bob", "--gandiva", "--gres=gpu:2", gpus=2)
    site.wait_on_gpu(job, one, two)
    runs_on(site, job, 1)
    start(site, "gandiva")

    site.cluster.exec("login", ["scancel", str(one)], user="bob")
    runs_on(site, job, 2)
    site.cluster.exec("login", ["scancel", str(two)], user="bob")
    runs_on(site, job, 4)
    told = site.explained(job)
    assert "asked for 1 GPU (1-4), weight 1" in told and "grows from 2 to 4 GPUs" in told

    two = site.train("bob", "--gandiva", "--gres=gpu:2", gpus=2)
    runs_on(site, job, 2)
    site.wait_on_gpu(two)
    one = site.train("bob", "--gandiva", "--gres=gpu:1")
    runs_on(site, job, 1)
    site.wait_on_gpu(one)
    # With slices one that came to a full server is bound to all of its GPUs, and floats. It may have been off
    # them for another when the job shrank.
    site.wait(
        "each on as many GPUs as it asked for",
        lambda: [len(shown(site, other)["running_on"]) for other in (two, one)] == [2, 1],
    )
    site.cluster.exec("login", ["scancel", str(one), str(two), str(other)], user="root")

    assert site.wait_ended([job], 300) == {job: "COMPLETED"}
    assert site.digest("alice", job) == undisturbed(site, 3000)
    (row,) = site.report("-j", str(job))
    assert row["gpus"] == 1 and row["gpu_seconds"] > row["run_seconds"]


IN_PLACE = ("--gandiva-gpus=1-4", "--gandiva-suspend=cooperative", "--gres=gpu:1", "--requeue")


def uses(site: Site, job_id: int, gpus: int) -> None:
    """Wait until it does: the controller and the GPUs' own history agree, and Slurm has given it all four."""

    def agree() -> bool:
        names = shown(site, job_id).get("running_on", [])
        if len(names) != gpus or shards(site, job_id) != 4:
            return False
        on_n1 = [hold for hold in site.holds() if hold.node == "n1"]
        now = max(hold.end for hold in on_n1)
        return {f"n1:{h.gpu}" for h in on_n1 if h.job_id == job_id and h.end == now} == set(names)

    site.wait(f"job {job_id} on {gpus} of its 4 GPUs", agree)


def resizes(site: Site, job_id: int) -> int:
    """How often the controller has begun to change the job's size in place."""
    return sum(done.job_id == job_id and done.kind == "resize" for done in site.operations())


def test_one_two_four_two_one_in_place(site: Site) -> None:
    """The same process from its first step to its last, and the numbers of a run on four GPUs."""
    start_without_growth(site, "fifo", in_place=True)
    other = site.submit("carol", "sleep 900", "--no-gandiva", "--gres=gpu:4", "-w", "n2")
    site.wait_state(other, "RUNNING")
    job = site.train("alice", *IN_PLACE, steps=3000, **WORK)
    site.wait_on_gpu(job)
    uses(site, job, 1)
    one = site.train("bob", "--gandiva", "--gres=gpu:1")
    two = site.train("bob", "--gandiva", "--gres=gpu:2", gpus=2)
    site.wait_on_gpu(job, one, two)
    start(site, "fifo", in_place=True)

    site.cluster.exec("login", ["scancel", str(one)], user="bob")
    uses(site, job, 2)
    site.cluster.exec("login", ["scancel", str(two)], user="bob")
    uses(site, job, 4)
    told = site.explained(job)
    assert "asked for 1 GPU (1-4), weight 1" in told and "grows from 2 to 4 GPUs" in told

    two = site.train("bob", "--gandiva", "--gres=gpu:2", gpus=2)
    uses(site, job, 2)
    site.wait_on_gpu(two)
    one = site.train("bob", "--gandiva", "--gres=gpu:1")
    uses(site, job, 1)
    site.wait_on_gpu(one)
    site.cluster.exec("login", ["scancel", str(one), str(two), str(other)], user="root")

    assert site.wait_ended([job], 300) == {job: "COMPLETED"}
    assert site.job(job)["Restarts"] == "0"
    assert site.digest("alice", job) == undisturbed(site, 3000)
    (row,) = site.report("-j", str(job))
    assert row["gpus"] == 1 and row["gpu_seconds"] > row["run_seconds"]


def test_a_killed_controller_is_followed_by_one_that_goes_on_with_the_growth(site: Site) -> None:
    """Killed again and again, each time a resize has just begun, until one was not in time."""
    start_without_growth(site, "fifo", in_place=True)
    job = site.train("alice", *IN_PLACE, steps=5000, **WORK)
    uses(site, job, 1)
    start(site, "fifo", in_place=True)
    known, kills = 0, 0
    for _ in range(3):
        one = site.train("bob", "--gandiva", "--gres=gpu:1", "-w", "n1", steps=100)

        site.wait("a change of size", lambda before=known: resizes(site, job) > before)  # type: ignore[misc]
        site.cluster.kill_controller()
        kills += 1
        start(site, "fifo", in_place=True)
        known = resizes(site, job)
        site.wait_ended([one])
    uses(site, job, 4)
    assert kills == 3 and site.job(job)["Restarts"] == "0"
    assert site.wait_ended([job], 300) == {job: "COMPLETED"}
    assert site.digest("alice", job) == undisturbed(site, 5000)


@pytest.mark.parametrize("kept", ["--overall 24", "--per-rank 8"])
def test_one_rank_for_each_gpu_in_place(site: Site, kept: str) -> None:
    """1, 2, 4, 2, 1 with `gandiva.ranks`: the ranks are started anew, the job and its launcher go on, and
    every sample counts once."""
    start_without_growth(site, "gandiva", in_place=True)
    work = f"{EXAMPLES}/train_ranks.py --samples 14400 --sample-ms 10 {kept} --folder"
    other = site.submit("carol", "sleep 900", "--no-gandiva", "--gres=gpu:4", "-w", "n2")
    site.wait_state(other, "RUNNING")
    folder = f"ranks{kept.split()[0]}"
    job = site.submit("alice", f"exec python3 -m gandiva.ranks {work} {folder}", *IN_PLACE)
    site.wait_on_gpu(job)
    uses(site, job, 1)
    one = site.train("bob", "--gandiva", "--gres=gpu:1")
    two = site.train("bob", "--gandiva", "--gres=gpu:2", gpus=2)
    site.wait_on_gpu(one, two)
    start(site, "gandiva", in_place=True)
    for gone, gpus in ((one, 2), (two, 4)):
        site.cluster.exec("login", ["scancel", str(gone)], user="bob")
        uses(site, job, gpus)
    two = site.train("bob", "--gandiva", "--gres=gpu:2", gpus=2)
    uses(site, job, 2)
    one = site.train("bob", "--gandiva", "--gres=gpu:1")
    uses(site, job, 1)
    site.wait_on_gpu(one, two)
    site.cluster.exec("login", ["scancel", str(one), str(two), str(other)], user="root")

    assert site.wait_ended([job], 300) == {job: "COMPLETED"}
    assert site.job(job)["Restarts"] == "0"
    told = site.output("alice", job)
    started = [line.split()[2] for line in told.splitlines() if line.startswith("gandiva.ranks: started")]
    assert started[:5] == ["1", "2", "4", "2", "1"], told
    plain = f"PYTHONPATH=/opt/gandiva/src python3 -m gandiva.ranks {work} plain-{folder}"
    plain_job = site.submit("alice", plain, "--no-gandiva", "--gres=gpu:4")
    assert site.wait_ended([plain_job], 200) == {plain_job: "COMPLETED"}
    ends = [site.output("alice", each).splitlines()[-1].partition(": ")[2] for each in (job, plain_job)]
    assert ends[0].startswith("14400 samples") and ends[0] == ends[1]
