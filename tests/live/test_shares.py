# SPDX-License-Identifier: GPL-2.0-or-later
"""Users share GPUs by Slurm's own shares, however many jobs they have."""

from __future__ import annotations

import pytest

from tests.live.gpu_history import overlaps
from tests.live.rounds import wait_allocated
from tests.live.slices import POLICY, parts_of
from tests.live.support import QUICK, SLICE_SECONDS, Site

ROUND_SECONDS = 4.0
READ_OFTEN = {"shares_interval_seconds": 1.0}
HIERARCHICAL = {
    **QUICK["policy"],
    "name": "gavel-hierarchical",
    "rounds": {"round_seconds": ROUND_SECONDS},
}
pytestmark = [
    pytest.mark.live,
    pytest.mark.settings(policy={**POLICY, "fair_share": True}, cluster=READ_OFTEN),
]


def test_turns_follow_shares_and_weights(site: Site) -> None:
    """What sbatch is told of weights and sacctmgr of shares counts, also while sshare does not answer. Else
    bob would have a fifth of the time, or each of alice's jobs a quarter."""
    site.leave_one_gpu()
    heavy, light = (site.train("alice", f"--gandiva-weight={weight}", "--gres=gpu:1") for weight in (3, 1))
    other = site.train("bob", "--gandiva", "--gres=gpu:1")
    site.wait_on_gpu(heavy, light, other)
    parts = parts_of(site, [other, heavy, light], 14)
    assert parts == pytest.approx([1 / 2, 3 / 8, 1 / 8], abs=0.1)
    assert overlaps(site.holds()) == []

    def wait_told(percent: int) -> None:
        words = f"alice's share there is {percent}%, for 2 jobs"
        site.wait(words, lambda: words in site.explained(heavy))

    wait_told(50)
    try:
        site.cluster.exec("ctl", "sacctmgr -i modify user bob set fairshare=3")
        wait_told(25)
    finally:
        site.cluster.exec("ctl", "sacctmgr -i modify user bob set fairshare=1")
    wait_told(50)

    place = site.cluster.exec("ctl", "command -v sshare").stdout.strip()
    site.cluster.exec("ctl", ["mv", place, f"{place}.away"])
    try:
        site.wait("the complaint", lambda: "the shares of users are not known anew" in site.log())
        wait_told(50)
    finally:
        site.cluster.exec("ctl", ["mv", f"{place}.away", place])
    site.wait("the end of it", lambda: "shares: are read again" in site.log())
    assert site.log().count("the shares of users are not known anew") == 1


@pytest.mark.nightly
@pytest.mark.settings(policy={**QUICK["policy"], "fair_share": True})
def test_four_jobs_of_one_user_have_as_much_as_one_of_another(site: Site) -> None:
    site.leave_one_gpu()
    many = [site.train("alice", "--gandiva", "--gres=gpu:1") for _ in range(4)]
    site.wait_on_gpu(*many)
    one = site.train("bob", "--gandiva", "--gres=gpu:1")
    site.wait_on_gpu(one)
    parts = site.measured([one, *many], 16 * SLICE_SECONDS)
    assert parts[0] == pytest.approx(1 / 2, abs=0.12), parts
    told = site.explained(many[0])
    assert "alice's share there is 50%, for 4 jobs" in told, told

    command = "sacctmgr -i modify user bob set fairshare=3"
    try:
        site.cluster.exec("ctl", command)
        parts = site.measured([one, *many], 24 * SLICE_SECONDS)
        assert parts[0] == pytest.approx(3 / 4, abs=0.12), parts
    finally:
        site.cluster.exec("ctl", "sacctmgr -i modify user bob set fairshare=1")


def in_the_tree(site: Site) -> list[int]:
    """Jobs of alice and bob, who share what their account has, and of carol, who has all that hers has."""
    site.leave_one_gpu()
    return [site.train(user, "--gandiva", "--gres=gpu:1") for user in ("alice", "alice", "bob", "carol")]


def wait_shared(site: Site, jobs: list[int], *parts: float) -> None:
    wait_allocated(site, {job: {"a100": part} for job, part in zip(jobs, parts, strict=True)})


@pytest.mark.settings(policy=HIERARCHICAL)
def test_an_allocation_follows_the_tree_of_accounts_and_users(site: Site) -> None:
    """The tree that sshare prints, and what sacctmgr changes of it."""
    jobs = in_the_tree(site)
    wait_shared(site, jobs, 1 / 8, 1 / 8, 1 / 4, 1 / 2)
    try:
        site.cluster.exec("ctl", "sacctmgr -i modify account vision set fairshare=3")
        wait_shared(site, jobs, 3 / 16, 3 / 16, 3 / 8, 1 / 4)
    finally:
        site.cluster.exec("ctl", "sacctmgr -i modify account vision set fairshare=1")


@pytest.mark.nightly
@pytest.mark.settings(policy=HIERARCHICAL)
def test_received_time_follows_the_tree_of_accounts_and_users(site: Site) -> None:
    jobs = in_the_tree(site)
    wait_shared(site, jobs, 1 / 8, 1 / 8, 1 / 4, 1 / 2)
    site.wait_on_gpu(*jobs)
    parts = site.measured(jobs, 16 * ROUND_SECONDS)
    assert parts[3] == pytest.approx(1 / 2, abs=0.12), parts
    assert parts[2] == pytest.approx(1 / 4, abs=0.12), parts
