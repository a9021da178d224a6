# SPDX-License-Identifier: GPL-2.0-or-later
"""What a site makes of its users' jobs: limits of weights, jobs that cannot be suspended, short jobs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.live.gpu_history import overlaps
from tests.live.support import QUICK, TRAIN, Site

RULES = {"unsuspendable": "cancel", "unsuspendable_tries": 2, "retry_after_seconds": 12.0}
pytestmark = [
    pytest.mark.live,
    pytest.mark.settings(
        requests={"max_weight_by_account": {"vision": 2.0}},
        suspend={**QUICK["suspend"], "step_deadline_seconds": 3.0, **RULES},
    ),
]


def test_a_weight_above_the_limit_is_said_at_submission_and_counts_as_the_limit(site: Site) -> None:
    command = [
        "sbatch",
        "--parsable",
        "--mem=100M",
        "--gandiva-weight=50",
        "--gres=gpu:1",
        "--wrap",
        "sleep 60",
    ]
    done = site.cluster.exec("login", command, user="alice")
    job = int(done.stdout.strip())
    # (The mini cluster's description has no limit for the account: its default is what sbatch knows.)
    assert "gandiva: --gandiva-weight=50 counts as 4, the limit of this site" in done.stderr
    site.wait_state(job, "RUNNING")
    assert "weight 50, counted as 2 (limit of account vision)" in site.explained(job)
    (row,) = (row for row in site.report() if row["job_id"] == job)
    assert (row["weight"], row["request"]["weight_asked"]) == (2.0, 50.0)


def test_a_job_that_cannot_be_suspended_is_cancelled_and_its_user_reads_why(site: Site) -> None:
    """Two processes on one GPU, without a session: neither they nor the driver can take them off it."""
    filler = site.submit("carol", "sleep 600", "--no-gandiva", "--gres=gpu:3", "-w", "n2")
    site.wait_state(filler, "RUNNING")
    one = f"{TRAIN} --no-step --steps 100000 --minibatch-ms 50 --memory-mb 256"
    stubborn = site.submit("alice", f"{one} & {one} & wait", "--gandiva", "--gres=gpu:1", "-w", "n2")
    site.wait_on_gpu(stubborn)
    waiting = site.train("bob", "--gandiva", "--gres=gpu:1", "-w", "n2", steps=40)
    site.wait("a failed suspend", lambda: "could not be suspended since" in site.explained(stubborn))
    warned = site.cluster.exec("login", ["gandiva", "report", "--no-sacct"], user="alice").stderr
    assert f"warning: job {stubborn} (alice) on n2:3 could not be suspended since" in warned

    assert site.wait_ended([stubborn, waiting]) == {stubborn: "CANCELLED", waiting: "COMPLETED"}
    shown = site.cluster.exec("login", ["scontrol", "show", "job", str(stubborn)], user="alice").stdout
    assert "Comment=it cannot be suspended (failed attempts: 2): " in shown
    assert "cancelled it cannot be suspended (failed attempts: 2)" in site.explained(stubborn)
    assert overlaps(site.holds()) == []


def test_jobs_of_a_moment_have_run(site: Site) -> None:
    jobs = [site.submit("alice", "true", "--gandiva", "--gres=gpu:1") for _ in range(4)]
    assert set(site.wait_ended(jobs).values()) == {"COMPLETED"}
    numbers = ",".join(map(str, jobs))

    def ended() -> list[dict[str, Any]]:
        return [row for row in site.report("-j", numbers) if row["end_time"]]

    site.wait("their ends in the report", lambda: len(ended()) == len(jobs))
    for row in ended():
        assert row["slices"] == 1 and row["start_time"] is not None, row
        assert row["run_seconds"] <= row["elapsed_seconds"] + 1.0, row
    for job in jobs:
        said = site.explained(job)
        assert "from submission to start" in said and "without having started" not in said, said
