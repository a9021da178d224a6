# SPDX-License-Identifier: GPL-2.0-or-later
"""Free GPUs are scattered over two nodes, and a job waits for four on one: running jobs write their state
into their checkpoint stores, move, and go on from the step that they had reached. A suspended job does so
from host memory, and moves to GPUs that others have left.

When jobs migrate, and what becomes of them when a step fails, is tested in `tests/unit/loop/test_migrating*`.
Here: what Slurm and the GPUs see of it, and that every step of the training is done once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.live.gpu_history import overlaps
from tests.live.hurry import hurried
from tests.live.support import KILLED_AGAIN_SECONDS, QUICK, TRAIN, Site

pytestmark = pytest.mark.live

STEPS = 2000
"""More than any test waits for: they end `hurried`."""
SLICE_SECONDS = 5.0
BALANCES = pytest.mark.settings(
    policy={
        "name": "gandiva",
        "moves": ["balance"],
        "gandiva": {"slice_seconds": SLICE_SECONDS, "max_jobs_per_gpu": 8},
        "migration": {"cost_seconds": 10.0},
    }
)
DEFRAGMENTS = pytest.mark.settings(
    policy={
        **QUICK["policy"],
        "name": "fifo-skip",
        "moves": ["defragment"],
        "defragment": {"free_fraction": 0.5},
    }
)


@dataclass
class Training:
    """A job that keeps its state in a store, and logs its steps."""

    site: Site
    name: str
    ranks: int = 1
    steps: int = STEPS
    options: tuple[str, ...] = ()
    """For sbatch."""

    def words(self, minibatch_ms: int) -> str:
        seed = sum(self.name.encode())
        run = f"srun --ntasks={self.ranks} " if self.ranks > 1 else ""
        return (
            f"{run}{TRAIN} --steps {self.steps} --seed {seed} --memory-mb 512 --minibatch-ms {minibatch_ms}"
        )

    def submit(self) -> int:
        words = f"{self.words(100)} --store store-{self.name} --log {self.name}-%r.log"
        self.job = self.site.submit("alice", words, *self.shape, "--gandiva", *self.options)
        self.site.wait_on_gpu(self.job)
        return self.job

    def submit_undisturbed(self) -> int:
        """The same without Gandiva, whose mini-batches take as little time as they can."""
        return self.site.submit("alice", self.words(1), *self.shape, "--no-gandiva")

    @property
    def shape(self) -> tuple[str, ...]:
        return (f"--gres=gpu:{self.ranks}", f"--ntasks={self.ranks}", "--nodes=1")

    def log(self, rank: int = 0) -> list[dict[str, Any]]:
        text = self.site.cluster.read_file("login", f"/home/alice/{self.name}-{rank}.log")
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def node(self) -> str:
        return self.site.job(self.job).get("NodeList", "")

    def explain(self) -> dict[str, Any]:
        words = ["gandiva", "explain", str(self.job), "--json"]
        return dict(json.loads(self.site.cluster.exec("login", words, user="alice").stdout))


def block(site: Site, node: str, gpus: int) -> int:
    """An ordinary job that keeps others from a node."""
    job = site.submit("carol", "sleep 900", "--no-gandiva", f"--gres=gpu:{gpus}", "-w", node)
    site.wait_state(job, "RUNNING")
    return job


def cancel(site: Site, job: int) -> None:
    site.cluster.exec("ctl", ["scancel", str(job)])
    site.wait_ended([job], KILLED_AGAIN_SECONDS)


def scattered(site: Site, on_n1: list[Training], on_n2: list[Training]) -> None:
    """Jobs that are free to choose their node run on these."""
    site.cluster.exec("login", "rm -rf /home/alice/store-* /home/alice/*.log", user="alice")
    other = block(site, "n2", 4)
    for each in on_n1:
        each.submit()
    cancel(site, other)
    other = block(site, "n1", 4 - sum(each.ranks for each in on_n1))
    for each in on_n2:
        each.submit()
    cancel(site, other)
    assert [each.node() for each in (*on_n1, *on_n2)] == ["n1"] * len(on_n1) + ["n2"] * len(on_n2)


def gang(site: Site) -> int:
    """The job for which there is no place."""
    words = f"{TRAIN} --gpus 4 --steps 40 --memory-mb 512"
    return site.submit("bob", words, "--gandiva", "--gres=gpu:4", "--nodes=1")


def check_moved(each: Training, to: str) -> None:
    """It is there, did every step once, and the journal says what became of it and when."""
    told = each.explain()
    (published,) = [e for e in told["events"] if e["kind"] == "checkpointed"]
    # One that came to nothing (a reservation that was refused, say) is tried again.
    decided = [d for d in told["decisions"] if d["action"] == "migrate"]
    *_, migrates = [d for d in decided if d["time"] <= published["time"]]
    assert decided[-1] == migrates, "it moved once"
    step = int(published["message"].split()[1])
    for rank in range(each.ranks):
        log = each.log(rank)
        assert [line["step"] for line in log] == list(range(1, each.steps + 1)), "each step once"
        before, after = log[step - 1], log[step]
        assert set(before["gpus"]).isdisjoint(after["gpus"])
        print(
            f"\njob {each.job} rank {rank}: moved to {to} at step {step}: "
            f"{after['time'] - migrates['time']:.1f} s from the decision to the first step there, "
            f"{after['time'] - before['time']:.1f} s without a step, "
            f"{published['time'] - migrates['time']:.1f} s until its checkpoint was published"
        )
    assert f"goes on from step {step}" in each.site.output("alice", each.job)
    assert to in migrates["reason"]


def end_as_if_undisturbed(site: Site, trainings: Sequence[Training], *others: int) -> None:
    """They end, and these other jobs, and have computed what runs of their own compute."""
    jobs, plain = [each.job for each in trainings], [each.submit_undisturbed() for each in trainings]
    with hurried(site):
        assert set(site.wait_ended([*jobs, *plain, *others], 300).values()) == {"COMPLETED"}
    assert [site.digest("alice", job) for job in jobs] == [site.digest("alice", job) for job in plain]


@pytest.mark.nightly
@DEFRAGMENTS
def test_jobs_migrate_for_a_gang_and_end_as_if_undisturbed(site: Site) -> None:
    movers = [Training(site, "first"), Training(site, "second")]
    stays = Training(site, "stays", ranks=2)
    scattered(site, movers, [stays])
    told = site.explained(movers[0].job)
    assert "to another node, from its checkpoint store" in told
    waits = gang(site)
    site.wait_on_gpu(waits, timeout_seconds=90)
    assert site.job(waits)["NodeList"] == "n1"
    end_as_if_undisturbed(site, [*movers, stays], waits)
    for each in movers:
        check_moved(each, "n2")


@DEFRAGMENTS
def test_a_job_of_two_ranks_migrates_for_a_gang(site: Site) -> None:
    """Slurm starts both ranks again on the GPUs that were kept for them, from one generation of the store."""
    mover = Training(site, "ranks", ranks=2)
    # These two would have to go both for the other node to be free, and one must not.
    others = [Training(site, "third"), Training(site, "never", options=("--gandiva-migrate=no",))]
    scattered(site, others, [mover])
    assert "to another node, from its checkpoint store" in site.explained(mover.job)
    waits = gang(site)
    site.wait_on_gpu(waits, timeout_seconds=90)
    assert site.job(waits)["NodeList"] == "n2"
    site.wait_on_gpu(mover.job)
    assert [each.node() for each in others] == ["n1", "n1"]
    end_as_if_undisturbed(site, [mover], waits)
    check_moved(mover, "n1")


@pytest.mark.nightly
@DEFRAGMENTS
def test_a_checkpoint_that_cannot_be_written_leaves_the_job_at_work(site: Site) -> None:
    mover, other = Training(site, "full"), Training(site, "beside", ranks=2)
    scattered(site, [mover], [other])
    break_store(site, mover)
    waits = gang(site)
    site.wait("the failure to be told", lambda: "migrate-failed" in json.dumps(mover.explain()["events"]))
    assert site.state(waits) == "PENDING" and mover.node() == "n1"
    failed, *_ = [e["message"] for e in mover.explain()["events"] if e["kind"] == "migrate-failed"]
    assert "rank 0 of job" in failed and "cannot save" in failed
    cancel(site, waits)
    end_as_if_undisturbed(site, [mover])
    assert [line["step"] for line in mover.log()] == list(range(1, STEPS + 1))
    assert len({tuple(line["gpus"]) for line in mover.log()}) == 1, "it was on one GPU all the time"


def break_store(site: Site, mover: Training) -> None:
    """Nothing can be written there any more."""
    store = f"/home/alice/store-{mover.name}"
    site.cluster.exec("login", f"mv {store} {store}.gone && touch {store}", user="alice")


def turns(site: Site, mover: Training) -> list[int]:
    """Five jobs take turns on the four GPUs of n1, and n2 is an ordinary job's. The mover has the fewest
    turns, and the others must not migrate. Returns these, and the ordinary job."""
    site.cluster.exec("login", "rm -rf /home/alice/store-* /home/alice/*.log", user="alice")
    ordinary = block(site, "n2", 4)
    mover.submit()
    options = ("--gandiva", "--gres=gpu:1", "--nodes=1", "--gandiva-weight=20", "--gandiva-migrate=no")
    others = [site.train("bob", *options) for _ in range(4)]
    site.wait_on_gpu(*others, timeout_seconds=90)
    assert {mover.node(), *(site.job(each)["NodeList"] for each in others)} == {"n1"}
    return [*others, ordinary]


@BALANCES
def test_a_suspended_job_goes_to_gpus_that_became_free(site: Site) -> None:
    """It saves from host memory, though Slurm has frozen it and others have its GPU, and is requeued from
    there."""
    mover = Training(site, "waits")
    *others, ordinary = turns(site, mover)
    site.wait_state(mover.job, "SUSPENDED", timeout_seconds=90)
    reached = mover.log()[-1]
    cancel(site, ordinary)
    site.wait("the job on n2", lambda: mover.node() == "n2")
    site.wait("the job to go on", lambda: mover.log()[-1]["step"] > reached["step"])
    end_as_if_undisturbed(site, [mover])
    check_moved(mover, "n2")
    told = mover.explain()
    (migrates,) = [d for d in told["decisions"] if d["action"] == "migrate"]
    (published,) = [e for e in told["events"] if e["kind"] == "checkpointed"]
    assert "it waits for a turn where it is bound" in migrates["reason"]
    assert int(published["message"].split()[1]) == reached["step"], "where it was suspended"
    later = {d["action"] for d in told["decisions"] if d["time"] > migrates["time"]}
    assert not later & {"resume", "suspend"}
    found = site.holds()
    assert overlaps(found) == []
    own = [hold for hold in found if hold.job_id == mover.job]
    assert all(hold.end < migrates["time"] for hold in own if hold.node == "n1"), "no GPU while it was saved"
    assert [hold.start > published["time"] for hold in own if hold.node == "n2"] == [True]
    assert {site.state(each) for each in others} <= {"RUNNING", "SUSPENDED"}


@pytest.mark.nightly
@BALANCES
def test_a_suspended_job_that_cannot_be_saved_stays_suspended(site: Site) -> None:
    mover = Training(site, "keeps")
    *others, ordinary = turns(site, mover)
    site.wait_state(mover.job, "SUSPENDED", timeout_seconds=90)
    break_store(site, mover)
    cancel(site, ordinary)
    site.wait("the failure to be told", lambda: "migrate-failed" in json.dumps(mover.explain()["events"]))
    site.wait_state(mover.job, "SUSPENDED")
    assert mover.node() == "n1"
    for each in others:
        cancel(site, each)
    end_as_if_undisturbed(site, [mover])
    assert [line["step"] for line in mover.log()] == list(range(1, STEPS + 1)), "each step once"
    assert overlaps(site.holds()) == []
