# SPDX-License-Identifier: GPL-2.0-or-later
"""Users share GPUs by Slurm's own shares, however many jobs they have."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from tests.live.rounds import allocated
from tests.live.support import QUICK, SLICE_SECONDS, Site

pytestmark = pytest.mark.live


FAIR_SHARE = {"fair_share": True}
ROUND_SECONDS = 4.0
HIERARCHICAL = {"name": "gavel-hierarchical", "gavel-hierarchical": {"round_seconds": ROUND_SECONDS}}


def start(site: Site, changes: Mapping[str, Any]) -> None:
    """Only one GPU is left, on which users share. `changes`: in the settings of the policy."""
    site.leave_one_gpu()
    site.cluster.stop_controller()
    cluster = {"shares_interval_seconds": 1.0}
    site.start_controller(policy={**QUICK["policy"], **changes}, cluster=cluster)


def test_four_jobs_of_one_user_have_as_much_as_one_of_another(site: Site) -> None:
    start(site, FAIR_SHARE)
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


def test_an_allocation_follows_the_tree_of_accounts_and_users(site: Site) -> None:
    """Alice and Bob share what their account has, Carol has all that hers has."""
    start(site, HIERARCHICAL)
    jobs = [site.train(user, "--gandiva", "--gres=gpu:1") for user in ("alice", "alice", "bob", "carol")]

    def has(job: int, part: float) -> bool:
        return sum(allocated(site, job).values()) == pytest.approx(part, abs=0.011)

    def wait_allocated(*parts: float) -> None:
        # One after the other: a job that is just switching is told something else.
        for job, part in zip(jobs, parts, strict=True):
            site.wait(f"job {job} at {part} of the time", partial(has, job, part))

    wait_allocated(1 / 8, 1 / 8, 1 / 4, 1 / 2)
    site.wait_on_gpu(*jobs)
    parts = site.measured(jobs, 16 * ROUND_SECONDS)
    assert parts[3] == pytest.approx(1 / 2, abs=0.12), parts
    assert parts[2] == pytest.approx(1 / 4, abs=0.12), parts

    try:
        site.cluster.exec("ctl", "sacctmgr -i modify account vision set fairshare=3")
        wait_allocated(3 / 16, 3 / 16, 3 / 8, 1 / 4)
    finally:
        site.cluster.exec("ctl", "sacctmgr -i modify account vision set fairshare=1")


def test_the_last_shares_count_while_they_cannot_be_read(site: Site) -> None:
    start(site, FAIR_SHARE)
    place = site.cluster.exec("ctl", "command -v sshare").stdout.strip()
    site.cluster.exec("ctl", ["mv", place, f"{place}.away"])
    try:
        site.wait("the complaint", lambda: "the shares of users are not known anew" in site.log(), 30)
    finally:
        site.cluster.exec("ctl", ["mv", f"{place}.away", place])
    site.wait("the end of it", lambda: "shares: are read again" in site.log(), 30)
    assert site.log().count("the shares of users are not known anew") == 1
