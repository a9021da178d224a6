# SPDX-License-Identifier: GPL-2.0-or-later
"""`suspend.mode = "node"`: jobs take turns while Slurm says RUNNING, for clients that misread SUSPENDED.

submitit is such a client: it takes a SUSPENDED job for a finished one.
"""

from __future__ import annotations

import collections
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.live.gpu_history import overlaps
from tests.live.hurry import hurried
from tests.live.slices import POLICY
from tests.live.support import EXAMPLES, KILLED_AGAIN_SECONDS, PYTHON, QUICK, Site

NODE = {**QUICK["suspend"], "mode": "node"}
pytestmark = [pytest.mark.live, pytest.mark.settings(policy=POLICY, suspend=NODE)]
STEPS = 1000
"""Of submitit's jobs: more than the test waits for."""

CLIENT = f"""
import json, subprocess, sys, time
import submitit

def train(steps):
    command = ["python3", "{EXAMPLES}/train_mock.py", "--steps", str(steps), "--minibatch-ms", "50"]
    done = subprocess.run(command + ["--memory-mb", "512"], check=True, capture_output=True, text=True)
    return done.stdout

executor = submitit.AutoExecutor(folder="submitit")
executor.update_parameters(
    timeout_min=10, slurm_gpus_per_node=1, slurm_mem="200M",
    slurm_additional_parameters={{"gandiva": True, "nodelist": "n2"}},
)
jobs = [executor.submit(train, {STEPS}) for _ in range(2)]
seen = {{job.job_id: [] for job in jobs}}
while not all(job.done() for job in jobs):
    for job in jobs:
        state = job.state
        if state not in seen[job.job_id]:
            seen[job.job_id].append(state)
    time.sleep(0.2)
print(json.dumps({{"states": seen, "results": {{job.job_id: job.result() for job in jobs}}}}))
"""


def leave_one_gpu(site: Site) -> None:
    job = site.submit("carol", "sleep 600", "--no-gandiva", "--gres=gpu:3", "-w", "n2")
    site.wait_state(job, "RUNNING")


def test_slurm_says_running_while_jobs_take_turns_and_submitit_sees_its_jobs_to_their_end(site: Site) -> None:
    """Five jobs on one GPU: one that calls step(), an unmodified one, which the driver takes off the GPU, one
    that has nothing on its GPU, which the agent stops, and two of submitit."""
    leave_one_gpu(site)
    jobs = [
        site.train("alice", "--gandiva", "--gres=gpu:1", "-w", "n2"),
        site.train("bob", "--gandiva", "--gres=gpu:1", "-w", "n2", no_step=True),
        site.submit("alice", "sleep 1800", "--gandiva", "--gres=gpu:1", "-w", "n2"),
    ]
    site.wait_on_gpu(*jobs[:2])
    site.cluster.write_file("login", "/home/alice/client.py", CLIENT)
    turns: collections.Counter[int] = collections.Counter()
    seen: set[str] = set()
    sleeps: set[str] = set()
    mine = "ps -o user=,stat= -C sleep | grep ^alice; true"  # there is a sleep of carol's, too

    def all_turned(times: int, begin: float) -> bool:
        seen.update(site.cluster.exec("ctl", "squeue -h -u alice,bob -o %T").stdout.split())
        sleeps.update(line.split()[1][0] for line in site.cluster.exec("n2", mine).stdout.splitlines())
        begun = [h.job_id for h in site.holds() if h.node == "n2" and h.start > begin]
        turns.clear()
        turns.update(begun)
        return len(turns) == 4 and min(turns.values()) >= times

    with ThreadPoolExecutor(1) as beside:
        command = [PYTHON, "client.py"]
        client = beside.submit(site.cluster.exec, "login", command, user="alice", timeout_seconds=240)
        site.wait("all of them on the GPU", lambda: all_turned(1, 0.0), 120)
        site.wait("two more turns of each", partial(all_turned, 2, site.clock()), 120)
        assert max(turns.values()) - min(turns.values()) <= 1, "they go round"
        site.wait("the sleep stopped and going on", lambda: all_turned(2, 0.0) and sleeps >= {"S", "T"})
        with hurried(site):
            client.result()
    answer = json.loads(client.result().stdout.splitlines()[-1])
    assert all("digest" in result for result in answer["results"].values())
    assert not any("SUSPENDED" in states for states in answer["states"].values())
    assert len(answer["states"]) == 2 and seen <= {"RUNNING", "PENDING"}, seen
    assert overlaps(site.holds()) == []
    site.cluster.exec("login", ["scancel", str(jobs[2])], user="alice")
    assert site.wait_ended([jobs[2]], KILLED_AGAIN_SECONDS) == {jobs[2]: "CANCELLED"}


def test_from_one_mode_to_the_other_with_jobs_off_their_gpus(site: Site) -> None:
    leave_one_gpu(site)
    jobs = [
        site.train("alice", "--gandiva", "--gres=gpu:1", "-w", "n2", steps=STEPS, memory_mb=512)
        for _ in range(2)
    ]
    site.wait_on_gpu(*jobs)
    assert set(site.states(jobs).values()) == {"RUNNING"}
    site.lead(policy=POLICY)
    site.wait("one suspended", lambda: "SUSPENDED" in site.states(jobs).values())
    site.lead(policy=POLICY, suspend=NODE)
    site.wait("both running for Slurm", lambda: set(site.states(jobs).values()) == {"RUNNING"})
    with hurried(site):
        assert set(site.wait_ended(jobs).values()) == {"COMPLETED"}
