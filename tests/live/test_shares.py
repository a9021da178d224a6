# SPDX-License-Identifier: GPL-2.0-or-later
"""Users share GPUs by Slurm's own shares, however many jobs they have."""

from __future__ import annotations

import re

import pytest

from tests.live.gpu_history import held_seconds
from tests.live.support import QUICK, SLICE_SECONDS, Site

pytestmark = pytest.mark.live


def start(site: Site) -> None:
    """Only one GPU is left, on which users share."""
    for count, node in ((4, "n1"), (3, "n2")):
        job = site.submit("carol", "sleep 900", "--no-gandiva", f"--gres=gpu:{count}", "-w", node)
        site.wait_state(job, "RUNNING")
    site.cluster.stop_controller()
    policy = {**QUICK["policy"], "fair_share": True}
    site.start_controller(policy=policy, cluster={"shares_interval_seconds": 1.0})


def measured(site: Site, jobs: list[int], seconds: float) -> list[float]:
    """The part of this time that each had on GPUs, from now on."""
    begin = float(site.cluster.exec("n2", ["date", "+%s.%N"]).stdout)

    def now() -> float:
        return float(site.cluster.exec("n2", ["date", "+%s.%N"]).stdout)

    site.wait("the time to be over", lambda: now() - begin > seconds, seconds + 30)
    found, end = site.holds(), now()
    held = [held_seconds(found, job, begin, end) for job in jobs]
    return [one / sum(held) for one in held]


def test_four_jobs_of_one_user_have_as_much_as_one_of_another(site: Site) -> None:
    start(site)
    many = [site.train("alice", "--gandiva", "--gres=gpu:1") for _ in range(4)]
    site.wait_on_gpu(*many)
    one = site.train("bob", "--gandiva", "--gres=gpu:1")
    site.wait_on_gpu(one)
    parts = measured(site, [one, *many], 16 * SLICE_SECONDS)
    assert parts[0] == pytest.approx(1 / 2, abs=0.12), parts
    told = site.cluster.exec("login", ["gandiva", "explain", str(many[0])], user="alice").stdout
    assert re.search(r"alice's share there is 50%, for 4 jobs", told), told

    command = "sacctmgr -i modify user bob set fairshare=3"
    try:
        site.cluster.exec("ctl", command)
        parts = measured(site, [one, *many], 24 * SLICE_SECONDS)
        assert parts[0] == pytest.approx(3 / 4, abs=0.12), parts
    finally:
        site.cluster.exec("ctl", "sacctmgr -i modify user bob set fairshare=1")


def test_the_last_shares_count_while_they_cannot_be_read(site: Site) -> None:
    start(site)
    place = site.cluster.exec("ctl", "command -v sshare").stdout.strip()
    site.cluster.exec("ctl", ["mv", place, f"{place}.away"])
    try:
        site.wait("the complaint", lambda: "the shares of users are not known anew" in site.log(), 30)
    finally:
        site.cluster.exec("ctl", ["mv", f"{place}.away", place])
    site.wait("the end of it", lambda: "shares: are read again" in site.log(), 30)
    assert site.log().count("the shares of users are not known anew") == 1
