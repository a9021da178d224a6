# SPDX-License-Identifier: GPL-2.0-or-later
"""A job that allows it grows when its neighbours leave, and shrinks when others come (SPEC 1.6).

When it does is tested on virtual time in `tests/unit/loop/test_growing.py` and `test_resizing.py`. Here: what
Slurm gives it each time, which GPUs it uses then, and that its results stay those of an undisturbed run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.live.hurry import hurried
from tests.live.support import EXAMPLES, QUICK, Site

pytestmark = pytest.mark.live

REQUEUED = ("--gandiva-gpus=1-4", "--gandiva-suspend=requeue", "--gres=gpu:1", "--requeue")
IN_PLACE = ("--gandiva-gpus=1-4", "--gandiva-suspend=cooperative", "--gres=gpu:1", "--requeue")
WORK = {"gpus": 4, "minibatch_ms": 200, "utilisation": 100, "memory_mb": 512}
"""Four parts, on however many GPUs there are: each GPU computes its parts one after the other. So slowly that
no rate is known, or one that what else the machine does cannot hide: a growth that seems to gain nothing is
undone."""
STEPS = 2000
"""More than any test waits for: they end `hurried`."""
SIZES = pytest.mark.parametrize(
    ("leave", "come"),
    [
        pytest.param([3], [2], id="one four two"),
        pytest.param([1, 2], [2, 1], id="one two four two one", marks=pytest.mark.nightly),
    ],
)
"""GPUs of its neighbours that leave one after the other, and of those that come."""


def growing(name: str, *, in_place: bool) -> dict[str, Any]:
    """The settings of a policy whose jobs grow soon after GPUs became free."""
    grow = {"idle_seconds": 2.0, "trial_seconds": 1.0, "cooldown_seconds": 5.0, "in_place": in_place}
    return {**QUICK["policy"], "name": name, "moves": ["grow"], "grow": grow}


def undisturbed(site: Site) -> int:
    """The same on four GPUs of its own."""
    return site.train("alice", "--no-gandiva", "--gres=gpu:4", "-w", "n2", steps=STEPS, **WORK)


def shown(site: Site, job_id: int) -> dict[str, Any]:
    """`gandiva explain --json`: what the controller has of the job now; empty once it is over."""
    done = site.cluster.exec("login", ["gandiva", "explain", str(job_id), "--json"], user="alice")
    return dict(json.loads(done.stdout)["live"] or {})


def shards(site: Site, job_id: int) -> int:
    """GPUs that Slurm has given a job that runs."""
    job = site.job(job_id)
    return job["TresPerNode"].count("shard:") if job["JobState"] == "RUNNING" else 0


def used(site: Site, job_id: int) -> set[str]:
    """GPUs of n1 on which it has memory at this moment, as these say."""
    seen = json.loads(site.cluster.exec("n1", ["mockgpu", "show", "--json"]).stdout)
    own = [gpu for process in seen["processes"] if process["job_id"] == job_id for gpu in process["gpus"]]
    return {f"n1:{gpu['gpu']}" for gpu in own if gpu["used_bytes"]}


def wait_size(site: Site, job_id: int, gpus: int, *, of: int | None = None) -> None:
    """Until it is on so many GPUs, of those that Slurm has given it (no others, or all four): Slurm, the
    controller and the GPUs agree."""

    def agree() -> bool:
        on = used(site, job_id)
        return (
            len(on) == gpus
            and shards(site, job_id) == (of or gpus)
            and on == set(shown(site, job_id).get("running_on", []))
        )

    site.wait(f"job {job_id} on {gpus} GPUs", agree)


def neighbour(site: Site, gpus: int, *options: str) -> int:
    return site.train("bob", "--gandiva", f"--gres=gpu:{gpus}", *options, gpus=gpus)


def follow(
    site: Site, start: Callable[[], int], leave: Sequence[int], come: Sequence[int], *, of: int | None = None
) -> int:
    """Start the job beside neighbours that leave it one GPU of n1, let these leave and others come. Each time
    it has what they do not need."""
    other = site.submit("carol", "sleep 900", "--no-gandiva", "--gres=gpu:4", "-w", "n2")
    site.wait_state(other, "RUNNING")
    neighbours = {gpus: neighbour(site, gpus) for gpus in leave}
    site.wait_on_gpu(*neighbours.values())
    job = start()
    wait_size(site, job, 1, of=of)
    size = 1
    for gpus in leave:
        site.cluster.exec("login", ["scancel", str(neighbours.pop(gpus))], user="bob")
        wait_size(site, job, size + gpus, of=of)
        told = site.explained(job)
        assert "asked for 1 GPU (1-4), weight 1" in told
        assert f"grows from {size} to {size + gpus} GPUs" in told
        size += gpus
    for gpus in come:
        neighbours[gpus] = neighbour(site, gpus)
        size -= gpus
        wait_size(site, job, size, of=of)
        site.wait_on_gpu(neighbours[gpus])
    # With slices one that came to a full server is bound to all of its GPUs, and floats. It may have been off
    # them for another when the job shrank.
    site.wait(
        "each on as many GPUs as it asked for",
        lambda: all(len(shown(site, each)["running_on"]) == gpus for gpus, each in neighbours.items()),
    )
    site.cluster.exec("login", ["scancel", str(other)], user="root")
    return job


def check_end(site: Site, job: int) -> None:
    """It computes what an undisturbed run does, and is accounted as what it was."""
    plain = undisturbed(site)
    with hurried(site):
        assert site.wait_ended([job, plain], 300) == {job: "COMPLETED", plain: "COMPLETED"}
    assert site.digest("alice", job) == site.digest("alice", plain)
    (row,) = site.report("-j", str(job))
    assert row["gpus"] == 1 and row["gpu_seconds"] > row["run_seconds"]


@pytest.mark.settings(policy=growing("gandiva", in_place=False))
@SIZES
def test_by_a_requeue(site: Site, leave: list[int], come: list[int]) -> None:
    """Slurm starts the same job with another number of GPUs, from its own checkpoint."""
    site.cluster.exec("login", "rm -rf adaptive", user="alice")
    saves = {"checkpoint_dir": "adaptive", "checkpoint_every": 200}
    job = follow(site, lambda: site.train("alice", *REQUEUED, steps=STEPS, **WORK, **saves), leave, come)
    check_end(site, job)


@pytest.mark.settings(policy=growing("fifo", in_place=True))
@SIZES
def test_in_place(site: Site, leave: list[int], come: list[int]) -> None:
    """The same process from its first step to its last: its control group lets it through to all four."""
    job = follow(site, lambda: site.train("alice", *IN_PLACE, steps=STEPS, **WORK), leave, come, of=4)
    check_end(site, job)
    assert site.job(job)["Restarts"] == "0"


def resizes(site: Site, job_id: int) -> int:
    """How often the controller has begun to change the job's size in place."""
    return sum(done.job_id == job_id and done.kind == "resize" for done in site.operations())


@pytest.mark.nightly
@pytest.mark.breaks
@pytest.mark.settings(policy=growing("fifo", in_place=True))
def test_a_killed_controller_is_followed_by_one_that_goes_on_with_the_growth(site: Site) -> None:
    """Killed again and again, each time a change of its size has just begun."""

    def killed_when_it_changes(known: int) -> None:
        site.wait("a change of size", lambda: resizes(site, job) > known)
        site.cluster.kill_controller()
        site.start_controller(policy=growing("fifo", in_place=True))

    job = site.train("alice", *IN_PLACE, "-w", "n1", steps=STEPS, **WORK)
    wait_size(site, job, 4, of=4)
    for _ in range(2):
        known = resizes(site, job)
        one = neighbour(site, 1, "-w", "n1")
        killed_when_it_changes(known)
        site.wait_on_gpu(one)
        known = resizes(site, job)
        site.cluster.exec("login", ["scancel", str(one)], user="bob")
        killed_when_it_changes(known)
        wait_size(site, job, 4, of=4)
    check_end(site, job)
    assert site.job(job)["Restarts"] == "0"


@pytest.mark.nightly
@pytest.mark.settings(policy=growing("gandiva", in_place=True))
@pytest.mark.parametrize("kept", ["--overall 24", "--per-rank 8"])
def test_one_rank_for_each_gpu_in_place(site: Site, kept: str) -> None:
    """1, 2, 4, 2, 1 with `gandiva.ranks`: the ranks are started anew, the job and its launcher go on, and
    every sample counts once."""
    work = f"{EXAMPLES}/train_ranks.py --samples 57600 --sample-ms 10 {kept} --folder"
    folder = f"ranks{kept.split()[0]}"
    site.cluster.exec("login", f"rm -rf ./{folder} ./plain-{folder}", user="alice")
    run = f"exec python3 -m gandiva.ranks {work} {folder}"
    job = follow(site, lambda: site.submit("alice", run, *IN_PLACE), [1, 2], [2, 1], of=4)
    plain = f"PYTHONPATH=/opt/gandiva/src python3 -m gandiva.ranks {work} plain-{folder}"
    plain_job = site.submit("alice", plain, "--no-gandiva", "--gres=gpu:4", "-w", "n2")
    with hurried(site):
        assert set(site.wait_ended([job, plain_job], 300).values()) == {"COMPLETED"}
    assert site.job(job)["Restarts"] == "0"
    told = site.output("alice", job)
    started = [line.split()[2] for line in told.splitlines() if line.startswith("gandiva.ranks: started")]
    assert started[:5] == ["1", "2", "4", "2", "1"], told
    ends = [site.output("alice", each).splitlines()[-1].partition(": ")[2] for each in (job, plain_job)]
    assert ends[0].startswith("57600 samples") and ends[0] == ends[1]
