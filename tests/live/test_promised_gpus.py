# SPDX-License-Identifier: GPL-2.0-or-later
"""A job migrates to the last GPU of another node, which an ordinary job waits for all the time."""

from __future__ import annotations

import pytest

from tests.live.support import Site

DEFRAGMENTS = {"name": "fifo-skip", "moves": ["defragment"]}
pytestmark = [pytest.mark.live, pytest.mark.settings(policy=DEFRAGMENTS)]
LEAVES_SLOWLY = (
    "trap 'touch told-$SLURM_JOB_ID; until [ -e go-$SLURM_JOB_ID ]; do sleep 0.1; done; exit 0' TERM; "
    "while true; do sleep 0.2; done"
)
"""Its checkpoint takes as long as the test wants, or Slurm's KillWait of five seconds."""


def reservations(site: Site) -> list[str]:
    """The controller's own jobs."""
    done = site.cluster.exec("ctl", ["squeue", "-h", "-u", "gandiva", "-t", "PD,R,S,CG", "-o", "%j %N %b"])
    return done.stdout.splitlines()


def node(site: Site, job_id: int) -> str:
    return site.job(job_id).get("NodeList", "")


def ordinary(site: Site, where: str, gpus: int, *options: str) -> int:
    """Of bob, on so many whole GPUs."""
    return site.submit("bob", "sleep 900", "--no-gandiva", "-w", where, f"--gres=gpu:{gpus}", *options)


@pytest.mark.parametrize(
    "killed",
    [
        pytest.param(False, id="controller lives", marks=pytest.mark.nightly),
        pytest.param(True, id="controller is killed", marks=pytest.mark.breaks),
    ],
)
def test_an_ordinary_job_does_not_get_the_gpu_that_a_job_migrates_to(site: Site, killed: bool) -> None:
    """slurmctld looks for room for the ordinary job all the time, and keeps the GPU for the other one from
    its reservation to its start, also without a controller."""
    full = ordinary(site, "n2", 4)
    site.wait_state(full, "RUNNING")
    mover = site.submit("alice", LEAVES_SLOWLY, "--gandiva", "--gandiva-suspend=requeue", "--gres=gpu:1")
    site.wait_state(mover, "RUNNING")
    assert node(site, mover) == "n1"
    rest = ordinary(site, "n1", 3)
    site.wait_state(rest, "RUNNING")
    site.cluster.exec("ctl", ["scancel", str(full)])
    site.wait("n2 free", lambda: site.state(full) == "CANCELLED")
    half = ordinary(site, "n2", 2)
    site.wait_state(half, "RUNNING")
    stays = site.submit("alice", "sleep 900", "--gandiva", "--gandiva-migrate=no", "--gres=gpu:1")
    site.wait_state(stays, "RUNNING")
    assert node(site, stays) == "n2"
    site.cluster.exec("ctl", ["scancel", str(rest)])
    site.wait("n1 free but for one GPU", lambda: site.state(rest) == "CANCELLED")

    gang = site.submit("carol", "sleep 900", "--gandiva", "--gres=gpu:4")
    site.wait("a reservation", lambda: any(f"-{mover} n2 " in line for line in reservations(site)))
    told = f"until [ -e told-{mover} ]; do sleep 0.05; done"
    site.cluster.exec("login", told, user="alice", timeout_seconds=60)
    if killed:
        site.cluster.kill_controller()
    wants = ordinary(site, "n2", 1)
    site.cluster.exec("login", ["touch", f"go-{mover}"], user="alice")
    if killed:
        site.wait("the job to have left", lambda: site.job(mover)["JobState"] == "PENDING")
        assert site.state(wants) == "PENDING"
        site.start_controller(policy=DEFRAGMENTS)

    seen = set()

    def arrived() -> bool:
        seen.add(site.state(wants))
        return node(site, mover) == "n2" and site.state(mover) == "RUNNING"

    site.wait(f"job {mover} on n2", arrived)
    site.wait("the reservation to be gone", lambda: not reservations(site))
    site.wait_state(gang, "RUNNING")
    assert seen == {"PENDING"}
    assert site.state(wants) == "PENDING"
    assert node(site, gang) == "n1"
    site.cluster.exec("ctl", ["scancel", str(mover)])
    site.wait_state(wants, "RUNNING")
