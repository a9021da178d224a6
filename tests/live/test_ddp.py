# SPDX-License-Identifier: GPL-2.0-or-later
"""A job of two ranks of real PyTorch, with DistributedDataParallel or fully_shard(), is suspended, migrates
to another node, grows to four ranks and shrinks to two. It learns what it would have learned undisturbed.

What only this shows: collectives of PyTorch (gloo) with ranks that Slurm suspends and starts elsewhere. Its
cluster has Debian's PyTorch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from container.cluster import MiniCluster
from container.spec import ClusterSpec
from tests.live.conftest import own_name, running
from tests.live.support import EXAMPLES, KILLED_AGAIN_SECONDS, QUICK, Site

pytestmark = pytest.mark.live

STEPS = 800
"""At the job's pace more than five minutes: it is told to hurry before."""
FOLDER = "/home/alice/ddp"
JOBSIDE = "/opt/gandiva/jobside"
DDP = pytest.param((), id="ddp", marks=pytest.mark.nightly)
FSDP = pytest.param(("--fsdp",), id="fsdp")
"""Words for examples/train_ddp.py."""
DEADLINES = ("step", "offload", "resume", "start")
SUSPEND = {**QUICK["suspend"], **{f"{name}_deadline_seconds": 90.0 for name in DEADLINES}}
SETTINGS = pytest.mark.settings(
    policy={
        **QUICK["policy"],
        "moves": ["defragment", "grow"],
        "defragment": {"free_fraction": 0.5},
        # What the ranks do here takes as long with four as with two: no growth is judged.
        "grow": {"idle_seconds": 3.0},
        "trials": {"trial_seconds": 3600.0},
    },
    suspend=SUSPEND,
)
BALANCE = pytest.mark.settings(
    policy={
        "name": "gandiva",
        "moves": ["balance"],
        "gandiva": {"slice_seconds": 10.0, "max_jobs_per_gpu": 8},
        "migration": {"cost_seconds": 10.0},
    },
    suspend=SUSPEND,
)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[MiniCluster]:
    """Two nodes with four GPUs each, and PyTorch on them."""
    existing = os.environ.get("GANDIVA_CLUSTER")
    if existing:
        mini = MiniCluster.attach(existing)
        if not mini.spec.torch:
            pytest.skip(f"GANDIVA_CLUSTER={existing} has no PyTorch")
        yield mini
        return
    request.getfixturevalue("engine_ready")
    with running(ClusterSpec(name=own_name("-torch"), torch=True), request.session) as mini:
        yield mini


@dataclass
class Training:
    """The job, and what it has logged."""

    site: Site
    words: tuple[str, ...] = ()
    steps: int = STEPS
    job: int = 0

    def submit(self) -> None:
        """examples/train_ddp.sbatch, whose ranks are on mock GPUs."""
        cluster = self.site.cluster
        cluster.exec("login", ["rm", "-rf", FOLDER])
        script = (Path(__file__).parent / "ddp_on_mock_gpus.py").read_text()
        cluster.write_file("login", f"{FOLDER}/train_ddp.py", script)
        cluster.exec("login", ["chown", "alice", FOLDER])
        variables = f"--export=ALL,EXAMPLES={FOLDER},OMP_NUM_THREADS=1"
        options = ["--parsable", "--mem=3G", "--cpus-per-task=4", "--output=out", variables]
        words = ["sbatch", *options, f"{EXAMPLES}/train_ddp.sbatch", *self.words, "--steps", str(self.steps)]
        done = cluster.exec("login", words, user="alice", workdir=FOLDER)
        self.job = int(done.stdout)

    def log(self) -> list[dict[str, Any]]:
        return read_log(self.site, f"losses-{self.job}.jsonl")

    def wait_steps(self, what: str, there: Callable[[dict[str, Any]], bool], count: int = 5) -> None:
        """Until it has done some steps of which this holds, from now on."""
        begin = len(self.log())
        self.site.wait(
            f"steps {what}: {self.said()}",
            lambda: sum(map(there, self.log()[begin:])) >= count,
            timeout_seconds=180,
        )

    def said(self) -> str:
        try:
            return self.site.cluster.read_file("login", f"{FOLDER}/out")[-2000:]
        except FileNotFoundError:
            return ""

    def finish(self) -> list[dict[str, Any]]:
        """Its log, which has each step once."""
        self.site.cluster.write_file("login", f"{FOLDER}/hurry", "")
        self.site.wait_state(self.job, "COMPLETED", timeout_seconds=300)
        log = self.log()
        assert [line["step"] for line in log] == list(range(1, self.steps + 1)), "each step once"
        return log

    def undisturbed(self, name: str, *starts: tuple[int, int]) -> list[float]:
        """The losses without Slurm. `starts`: for each, how many ranks go on to which step."""
        for ranks, until in starts:
            words = f"--steps {self.steps} --until {until} --store {name}-store --log {name}"
            environ = {
                "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(ranks))),
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": JOBSIDE,
            }
            script = [f"{EXAMPLES}/train_ddp.py", *self.words, *words.split()]
            program = ["python3", "-m", "gandiva.launch", *script]
            self.site.cluster.exec(
                "n1", program, user="alice", workdir=FOLDER, env=environ, timeout_seconds=300
            )
        return [line["loss"] for line in read_log(self.site, name)]

    def decided(self) -> list[tuple[str, str]]:
        """What the controller did with the job, and why."""
        words = ["gandiva", "explain", str(self.job), "--json"]
        told = json.loads(self.site.cluster.exec("login", words, user="alice").stdout)
        return [(each["action"], each["reason"]) for each in told["decisions"]]


def read_log(site: Site, name: str) -> list[dict[str, Any]]:
    try:
        text = site.cluster.read_file("login", f"{FOLDER}/{name}")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def block(site: Site, node: str, gpus: int) -> int:
    """An ordinary job that keeps others from so many GPUs of a node."""
    job = site.submit("carol", "sleep 1800", "--no-gandiva", f"--gres=gpu:{gpus}", "-w", node)
    site.wait_state(job, "RUNNING")
    return job


def other(site: Site, gpus: int, *options: str) -> int:
    """A job of bob's without an end."""
    return site.train("bob", "--gandiva", f"--gres=gpu:{gpus}", "--nodes=1", *options, gpus=gpus)


def cancel(site: Site, *jobs: int) -> None:
    site.cluster.exec("ctl", ["scancel", *map(str, jobs)])
    site.wait_ended(jobs, KILLED_AGAIN_SECONDS)


@pytest.mark.parametrize("words", [DDP, FSDP])
@SETTINGS
def test_a_job_of_two_ranks_is_suspended_migrates_grows_and_shrinks(
    site: Site, words: tuple[str, ...]
) -> None:
    stays = other(site, 2, "--gandiva-migrate=no", "-w", "n2")
    site.wait_on_gpu(stays)
    on_n1, on_n2 = (block(site, node, 2) for node in ("n1", "n2"))
    training = Training(site, words)
    training.submit()
    training.wait_steps("on n1", lambda line: bool(line["node"] == "n1" and line["ranks"] == 2))

    rival = other(site, 2, "-w", "n1")
    site.wait_on_gpu(rival)
    operations = site.operations
    site.wait(
        "two turns of both",
        lambda: sum(each.job_id == training.job and each.kind == "resume" for each in operations()) >= 2,
        timeout_seconds=180,
    )
    cancel(site, rival)
    training.wait_steps("after its turns", lambda line: bool(line["node"] == "n1"))

    gang = other(site, 4)
    cancel(site, on_n1, on_n2)
    training.wait_steps("on n2", lambda line: bool(line["node"] == "n2" and line["ranks"] == 2))
    site.wait_on_gpu(gang)

    cancel(site, stays)
    training.wait_steps("with four ranks", lambda line: bool(line["node"] == "n2" and line["ranks"] == 4))
    last = other(site, 2, "-w", "n2")
    training.wait_steps("with two ranks again", lambda line: bool(line["ranks"] == 2))
    site.wait_on_gpu(last)

    log = training.finish()
    four = [line["step"] for line in log if line["ranks"] == 4]
    begin, end = four[0] - 1, four[-1]
    assert four == list(range(begin + 1, end + 1)), "it grew once, and shrank once"
    decided = training.decided()
    assert {"suspend", "resume"} <= {action for action, _ in decided}
    reasons = [reason for action, reason in decided if action == "migrate"]
    assert [reason.partition(": ")[0] for reason in reasons] == [
        "migrates",
        "changes its size",
        "changes its size",
    ]

    losses = [line["loss"] for line in log]
    plain = training.undisturbed("plain", (2, STEPS))
    assert losses[:begin] == plain[:begin], "with two ranks all the time: bit for bit"
    assert losses == pytest.approx(plain, rel=1e-4), "the sums of four ranks are rounded in another way"
    same_sizes = training.undisturbed("sizes", (2, begin), (4, end), (2, STEPS))
    assert losses == same_sizes, "with the same sizes: bit for bit"
    assert plain[-1] < plain[0] / 20, "it learns"


@pytest.mark.nightly
@pytest.mark.parametrize("words", [DDP, FSDP])
@BALANCE
def test_a_suspended_job_of_two_ranks_migrates(site: Site, words: tuple[str, ...]) -> None:
    ordinary = block(site, "n2", 4)
    training = Training(site, words, steps=300)
    training.submit()
    training.wait_steps("on n1", lambda line: bool(line["node"] == "n1"))
    others = [other(site, 2, "--gandiva-weight=20", "--gandiva-migrate=no") for _ in range(2)]
    site.wait_on_gpu(*others, timeout_seconds=180)
    site.wait_state(training.job, "SUSPENDED", timeout_seconds=180)
    reached = training.log()[-1]["step"]

    cancel(site, ordinary)
    training.wait_steps("on n2", lambda line: bool(line["node"] == "n2"))
    log = training.finish()
    assert [line["node"] for line in log] == ["n1"] * reached + ["n2"] * (training.steps - reached)
    (reason,) = [reason for action, reason in training.decided() if action == "migrate"]
    assert "it waits for a turn where it is bound" in reason
    losses = [line["loss"] for line in log]
    assert losses == training.undisturbed("plain", (2, training.steps)), "bit for bit"
