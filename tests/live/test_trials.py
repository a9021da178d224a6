# SPDX-License-Identifier: GPL-2.0-or-later
"""A user says which trials of a search come first, by Slurm's own means; others have turns as before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.live.slices import POLICY, parts_of
from tests.live.support import EXAMPLES, PYTHON, QUICK, SLICE_SECONDS, Site

pytestmark = [pytest.mark.live, pytest.mark.settings(policy=POLICY)]


def trials(site: Site, user: str, *words: str) -> tuple[int, str]:
    """`gandiva trials` on the login node: exit status, and all that it says."""
    done = site.cluster.exec("login", ["gandiva", "trials", *words], user=user, check=False)
    return done.exit_code, done.stdout + done.stderr


def new_search(site: Site) -> str:
    """A name that no search of this cluster had before."""
    return f"lr-{site.clock():.0f}"


def listed(site: Site, search: str) -> dict[int, dict[str, Any]]:
    done = site.cluster.exec("login", ["gandiva", "trials", "list", search, "--json"], user="alice")
    return {row["job_id"]: row for row in map(json.loads, done.stdout.splitlines())}


def test_an_ordinary_user_says_which_trials_come_first_and_nobody_else(site: Site) -> None:
    """By comments that slurmctld lets the owner of a job change, and shows to all."""
    site.leave_one_gpu()
    search = new_search(site)
    options = ("--gandiva", f"--gandiva-search={search}", "--gres=gpu:1")
    mine = [site.train("alice", *options, "--comment=ablation 3") for _ in range(3)]
    other = site.train("bob", "--gandiva", "--gres=gpu:1")
    site.wait_on_gpu(*mine, other)
    assert set(listed(site, search)) == set(mine)

    code, said = trials(site, "alice", "exclusive", search, str(mine[1]))
    assert (code, said) == (0, f"search {search}: exclusive: {mine[1]}\n")
    assert "gandiva-trial:exclusive; ablation 3" in site.job(mine[1])["Comment"]
    site.wait("the controller to read it", lambda: listed(site, search)[mine[1]]["exclusive"] is True)
    begin = site.clock()
    site.wait("its turn", lambda: any(hold.job_id == mine[1] and hold.end > begin for hold in site.holds()))
    had = parts_of(site, [*mine, other], 4)
    assert had == pytest.approx([0, 3 / 4, 0, 1 / 4], abs=0.12)

    for words in (
        ("priority", str(mine[1]), "100"),
        ("stop", str(mine[1])),
        ("exclusive", search, str(mine[0])),
    ):
        code, said = trials(site, "bob", *words)
        assert code == 1, said
        assert words[0] == "exclusive" or "denied" in said or "Invalid user id" in said, said
    junk = "gandiva-trial:priority=1e9 gandiva-trial:exclusive"
    site.cluster.exec("login", ["scontrol", "update", f"JobId={mine[2]}", f"Comment={junk}"], user="alice")
    ignored = f"job {mine[2]} (user alice): its comment does not count"
    site.wait("the log to say so", lambda: ignored in site.log())
    row = listed(site, search)[mine[2]]
    assert (row["priority"], row["exclusive"]) == (1.0, False)
    assert site.state(mine[2]) in ("RUNNING", "SUSPENDED")

    assert trials(site, "alice", "exclusive", search)[0] == 0
    assert trials(site, "alice", "priority", str(mine[0]), "4")[0] == 0
    site.wait("the controller to read it", lambda: listed(site, search)[mine[0]]["priority"] == 4.0)
    site.wait("its words", lambda: f"priority 4 in search {search}" in site.explained(mine[0]))
    assert trials(site, "alice", "stop", str(mine[2]))[0] == 0
    assert site.wait_ended([mine[2]])[mine[2]] == "CANCELLED"
    assert trials(site, "alice", "stop", str(mine[2]))[0] == 1, "it is over"
    refused = site.cluster.exec(
        "login",
        ["sbatch", "--gandiva-search=a b", "--gres=gpu:1", "--wrap", "true"],
        user="alice",
        check=False,
    )
    assert refused.exit_code != 0 and "--gandiva-search=a b: expected 1 to 64 letters" in refused.stderr


@pytest.mark.nightly
@pytest.mark.settings(policy=QUICK["policy"])
def test_turns_of_trials_follow_what_their_user_says(site: Site) -> None:
    site.leave_one_gpu()
    search = new_search(site)
    mine = [
        site.train("alice", "--gandiva", f"--gandiva-search={search}", "--comment=ablation 3", "--gres=gpu:1")
        for _ in range(3)
    ]
    other = site.train("bob", "--gandiva", "--gres=gpu:1")
    site.wait_on_gpu(*mine, other)
    assert set(listed(site, search)) == set(mine)

    code, said = trials(site, "alice", "exclusive", search, str(mine[1]))
    assert (code, said) == (0, f"search {search}: exclusive: {mine[1]}\n")
    assert "gandiva-trial:exclusive; ablation 3" in site.job(mine[1])["Comment"]
    site.wait("the controller to read it", lambda: listed(site, search)[mine[1]]["exclusive"] is True)
    had = site.measured([*mine, other], 16 * SLICE_SECONDS)
    assert had[1] == pytest.approx(3 / 4, abs=0.12), had
    assert had[3] == pytest.approx(1 / 4, abs=0.12), had
    told = site.explained(mine[0])
    assert f"priority 1 in search {search}" in told, told

    assert trials(site, "alice", "exclusive", search)[0] == 0
    assert trials(site, "alice", "priority", str(mine[0]), "4")[0] == 0
    site.wait("the controller to read it", lambda: listed(site, search)[mine[0]]["priority"] == 4.0)
    had = site.measured([*mine, other], 24 * SLICE_SECONDS)
    assert had[0] == pytest.approx(1 / 2, abs=0.12), had
    assert had[3] == pytest.approx(1 / 4, abs=0.12), had

    assert trials(site, "alice", "stop", str(mine[2]))[0] == 0
    assert site.wait_ended([mine[2]])[mine[2]] == "CANCELLED"
    assert trials(site, "alice", "stop", str(mine[2]))[0] == 1, "it is over"


@pytest.mark.nightly
@pytest.mark.settings(policy=QUICK["policy"])
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
