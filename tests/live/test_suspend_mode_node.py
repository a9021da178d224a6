# SPDX-License-Identifier: GPL-2.0-or-later
"""`suspend.mode = "node"`: jobs take turns while Slurm says RUNNING, for clients that misread SUSPENDED.

submitit is such a client: it takes a SUSPENDED job for a finished one.
"""

from __future__ import annotations

import json

import pytest

from tests.live.gpu_history import held_seconds, overlaps
from tests.live.support import EXAMPLES, KILLED_AGAIN_SECONDS, QUICK, SLICE_SECONDS, Site

pytestmark = pytest.mark.live

PYTHON = "/opt/gandiva/venv/bin/python"

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
jobs = [executor.submit(train, 240) for _ in range(2)]
seen = {{job.job_id: [] for job in jobs}}
while not all(job.done() for job in jobs):
    for job in jobs:
        state = job.state
        if state not in seen[job.job_id]:
            seen[job.job_id].append(state)
    time.sleep(0.2)
print(json.dumps({{"states": seen, "results": {{job.job_id: job.result() for job in jobs}}}}))
"""


def start(site: Site, mode: str) -> None:
    site.cluster.stop_controller()
    site.start_controller(suspend={**QUICK["suspend"], "mode": mode})


def leave_one_gpu(site: Site) -> None:
    job = site.submit("carol", "sleep 600", "--no-gandiva", "--gres=gpu:3", "-w", "n2")
    site.wait_state(job, "RUNNING")


def test_submitit_sees_its_jobs_to_their_end(site: Site) -> None:
    start(site, "node")
    leave_one_gpu(site)
    site.cluster.write_file("login", "/home/alice/client.py", CLIENT)
    done = site.cluster.exec("login", [PYTHON, "client.py"], user="alice", timeout_seconds=120, check=False)
    assert done.exit_code == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert all("digest" in result for result in answer["results"].values())
    for states in answer["states"].values():
        assert "SUSPENDED" not in states
    found = site.holds()
    assert overlaps(found) == []
    for job in answer["states"]:
        turns = [h for h in found if h.job_id == int(job) and h.node == "n2"]
        assert len(turns) >= 2, f"job {job} was never off its GPU, so nothing was shown: {turns}"


def test_slurm_says_running_all_the_time_and_the_turns_are_fair(site: Site) -> None:
    start(site, "node")
    leave_one_gpu(site)
    jobs = [
        site.train("alice", "--gandiva", "--gres=gpu:1", "-w", "n2"),
        # An unmodified program: the driver takes it off the GPU.
        site.train("bob", "--gandiva", "--gres=gpu:1", "-w", "n2", no_step=True),
        # It has nothing on its GPU: the agent stops it.
        site.submit("alice", "sleep 600", "--gandiva", "--gres=gpu:1", "-w", "n2"),
    ]
    site.wait_on_gpu(*jobs[:2])
    seen: set[str] = set()
    sleeps: set[str] = set()
    mine = "ps -o user=,stat= -C sleep | grep ^alice; true"  # there is a sleep of carol's, too

    def enough_turns() -> bool:
        seen.update(site.states(jobs).values())
        sleeps.update(line.split()[1][0] for line in site.cluster.exec("n2", mine).stdout.splitlines())
        found = site.holds()
        turns = all(sum(h.job_id == job and h.seconds > 1 for h in found) >= 5 for job in jobs[:2])
        return turns and sleeps >= {"S", "T"}

    site.wait("five turns of each, the third job stopped and going on", enough_turns, 150)
    assert seen <= {"RUNNING", "PENDING"}, seen
    found = site.holds()
    assert overlaps(found) == []
    # Whole rotations only: from one turn of the one to its last, so that each has as many.
    turns = sorted(h.start for h in found if h.job_id == jobs[1])
    one, two = (held_seconds(found, job, turns[0], turns[-1]) for job in jobs[:2])
    assert one == pytest.approx(two, abs=1.5 * SLICE_SECONDS), "one may have had a turn more"
    site.cluster.exec("login", ["scancel", str(jobs[2])], user="alice")
    assert site.wait_ended([jobs[2]], KILLED_AGAIN_SECONDS) == {jobs[2]: "CANCELLED"}


def test_from_one_mode_to_the_other_with_jobs_off_their_gpus(site: Site) -> None:
    leave_one_gpu(site)
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:1", "-w", "n2", steps=600) for _ in range(2)]
    site.wait_on_gpu(*jobs)
    site.wait("one suspended", lambda: "SUSPENDED" in site.states(jobs).values())
    start(site, "node")
    site.wait("both running for Slurm", lambda: set(site.states(jobs).values()) == {"RUNNING"}, 30)
    start(site, "slurm")
    site.wait("one suspended again", lambda: "SUSPENDED" in site.states(jobs).values(), 30)
    assert set(site.wait_ended(jobs, 180).values()) == {"COMPLETED"}
