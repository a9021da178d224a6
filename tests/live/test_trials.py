# SPDX-License-Identifier: GPL-2.0-or-later
"""A user says which trials of a search come first, by Slurm's own means; others have turns as before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.live.support import EXAMPLES, PYTHON, SLICE_SECONDS, Site

pytestmark = pytest.mark.live


def trials(site: Site, user: str, *words: str) -> tuple[int, str]:
    """`gandiva trials` on the login node: exit status, and all that it says."""
    done = site.cluster.exec("login", ["gandiva", "trials", *words], user=user, check=False)
    return done.exit_code, done.stdout + done.stderr


def listed(site: Site, search: str) -> dict[int, dict[str, Any]]:
    _, out = trials(site, "alice", "list", search, "--json")
    return {row["job_id"]: row for row in map(json.loads, out.splitlines())}


def test_an_ordinary_user_says_which_trials_come_first(site: Site) -> None:
    site.leave_one_gpu()
    mine = [
        site.train("alice", "--gandiva", "--gandiva-search=lr", "--comment=ablation 3", "--gres=gpu:1")
        for _ in range(3)
    ]
    other = site.train("bob", "--gandiva", "--gres=gpu:1")
    site.wait_on_gpu(*mine, other)
    assert set(listed(site, "lr")) == set(mine)

    code, said = trials(site, "alice", "exclusive", "lr", str(mine[1]))
    assert (code, said) == (0, f"search lr: exclusive: {mine[1]}\n")
    assert "gandiva-trial:exclusive; ablation 3" in site.job(mine[1])["Comment"]
    site.wait("the controller to read it", lambda: listed(site, "lr")[mine[1]]["exclusive"] is True)
    had = site.measured([*mine, other], 16 * SLICE_SECONDS)
    assert had[1] == pytest.approx(3 / 4, abs=0.12), had
    assert had[3] == pytest.approx(1 / 4, abs=0.12), had
    told = site.explained(mine[0])
    assert "priority 1 in search lr" in told, told

    assert trials(site, "alice", "exclusive", "lr")[0] == 0
    assert trials(site, "alice", "priority", str(mine[0]), "4")[0] == 0
    site.wait("the controller to read it", lambda: listed(site, "lr")[mine[0]]["priority"] == 4.0)
    had = site.measured([*mine, other], 24 * SLICE_SECONDS)
    assert had[0] == pytest.approx(1 / 2, abs=0.12), had
    assert had[3] == pytest.approx(1 / 4, abs=0.12), had

    assert trials(site, "alice", "stop", str(mine[2]))[0] == 0
    assert site.wait_ended([mine[2]])[mine[2]] == "CANCELLED"
    assert trials(site, "alice", "stop", str(mine[2]))[0] == 1, "it is over"


def test_no_user_changes_anothers_trial_and_junk_costs_nothing(site: Site) -> None:
    site.leave_one_gpu()
    job = site.train("alice", "--gandiva", "--gandiva-search=width", "--gres=gpu:1")
    site.wait_on_gpu(job)
    for words in (("priority", str(job), "100"), ("stop", str(job))):
        code, said = trials(site, "bob", *words)
        assert code == 1 and ("denied" in said or "Invalid user id" in said), said
    assert trials(site, "bob", "exclusive", "width", str(job))[0] == 1
    junk = "gandiva-trial:priority=1e9 gandiva-trial:exclusive"
    update = ["scontrol", "update", f"JobId={job}", f"Comment={junk}"]
    site.cluster.exec("login", update, user="alice")
    site.wait(
        "the log to say so", lambda: f"job {job} (user alice): its comment does not count" in site.log()
    )
    row = listed(site, "width")[job]
    assert (row["priority"], row["exclusive"], site.state(job)) == (1.0, False, "RUNNING")
    refused = site.cluster.exec(
        "login",
        ["sbatch", "--gandiva-search=a b", "--gres=gpu:1", "--wrap", "true"],
        user="alice",
        check=False,
    )
    assert refused.exit_code != 0 and "--gandiva-search=a b: expected 1 to 64 letters" in refused.stderr


def test_the_driver_of_the_examples(site: Site) -> None:
    site.leave_one_gpu()
    options = "--rates 3,300,1,0.00001 --steps 900 --judge-after 200 --top 1 --look-seconds 1"
    driver = f"{PYTHON} {EXAMPLES}/search_driver.py {options} --trial='--tell 25 --minibatch-ms 15'"
    command = f"cd && PYTHONPATH=/opt/gandiva/src EXAMPLES={EXAMPLES} {driver}"
    done = site.cluster.exec("login", ["bash", "-c", command], user="alice", timeout_seconds=300)
    jobs = [int(job) for job in done.stdout.splitlines()[0].partition("jobs ")[2].split(",")]
    site.submitted += jobs
    states = site.wait_ended(jobs)
    assert [states[job] for job in jobs] == ["COMPLETED", "CANCELLED", "COMPLETED", "CANCELLED"], done.stdout
    assert "exclusive: " in done.stdout
    assert "accuracy 9" in done.stdout, done.stdout
