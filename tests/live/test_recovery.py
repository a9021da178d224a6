# SPDX-License-Identifier: GPL-2.0-or-later
"""The controller dies; the jobs do not notice."""

from __future__ import annotations

import random
import time

import pytest

from tests.live.gpu_history import overlaps
from tests.live.support import Site

pytestmark = pytest.mark.live


@pytest.mark.smoke
def test_killed_in_mid_switch_every_job_goes_on(site: Site) -> None:
    rng = random.Random(20261121)
    for n, node in ((4, "n1"), (2, "n2")):
        job = site.submit("carol", "sleep 600", "--no-gandiva", f"--gres=gpu:{n}", "-w", node)
        site.wait_state(job, "RUNNING")
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:1", steps=200) for _ in range(4)]
    site.wait_on_gpu(*jobs[:2])
    kills = 0
    for _ in range(8):
        # At a random moment of the next three seconds: a switch is going on about half of the time.
        time.sleep(rng.uniform(0.2, 3.2))
        site.cluster.kill_controller(9)
        kills += 1
        assert not site.cluster.controller_running()
        site.start_controller()
    states = site.wait_ended(jobs, 180)
    assert set(states.values()) == {"COMPLETED"}, states
    assert kills == 8
    assert overlaps(site.holds()) == []


@pytest.mark.smoke
def test_jobs_keep_running_without_a_controller_and_none_stays_suspended(site: Site) -> None:
    for n, node in ((4, "n1"), (3, "n2")):
        job = site.submit("carol", "sleep 600", "--no-gandiva", f"--gres=gpu:{n}", "-w", node)
        site.wait_state(job, "RUNNING")
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:1", steps=80) for _ in range(2)]
    site.wait_on_gpu(*jobs)
    site.cluster.stop_controller()
    states = site.states(jobs)
    assert sorted(states.values()) in (["RUNNING", "SUSPENDED"], ["COMPLETED", "SUSPENDED"]), states
    (suspended,) = [job for job, state in states.items() if state == "SUSPENDED"]
    time.sleep(2)
    site.start_controller()
    assert set(site.wait_ended(jobs, 90).values()) == {"COMPLETED"}
    rows = {row["job_id"]: row for row in site.report()}
    assert rows[suspended]["run_seconds"] > 0


def test_second_controller_is_refused(site: Site) -> None:
    done = site.cluster.exec(
        "ctl",
        ["gandiva", "daemon", "-D", "--config", "/etc/gandiva/gandiva.toml"],
        user="gandiva",
        check=False,
    )
    assert done.exit_code == 1
    assert "another controller" in done.stderr + done.stdout
    assert site.cluster.controller_running()
