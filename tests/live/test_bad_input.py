# SPDX-License-Identifier: GPL-2.0-or-later
"""Hostile and mistaken input on a live cluster: one clear error each, and everybody else goes on."""

from __future__ import annotations

import re

import pytest

from tests.live.gpu_history import overlaps
from tests.live.support import SLICE_SECONDS, Site

pytestmark = pytest.mark.live

SETTINGS = "/tmp/bad.toml"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[policy]\nnmae = 'gandiva'\n", ["policy.nmae", "name"]),
        ("[policy.gandiva]\nslice_seconds = 'long'\n", ["policy.gandiva.slice_seconds", "long"]),
        ("[policy.gandiva]\nslice_seconds = -5\n", ["policy.gandiva.slice_seconds", "-5"]),
        ("[cluster]\nadapter = 'carrier pigeon'\n", ["cluster.adapter", "pyslurm", "command"]),
        ("[cluster\n", [SETTINGS, "line 1"]),
    ],
)
def test_bad_settings_are_one_clear_error(site: Site, text: str, expected: list[str]) -> None:
    site.cluster.write_file("ctl", SETTINGS, text)
    done = site.cluster.exec(
        "ctl", ["gandiva", "daemon", "-D", "--config", SETTINGS], user="gandiva", check=False
    )
    assert done.exit_code == 1
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) <= 2, done.stderr
    for word in expected:
        assert word in done.stderr


def test_reload_with_bad_settings_changes_nothing(site: Site) -> None:
    good = site.cluster.read_file("ctl", "/etc/gandiva/gandiva.toml")
    try:
        site.cluster.write_file("ctl", "/etc/gandiva/gandiva.toml", good + "\n[nonsense]\nx = 1\n")
        site.cluster.kill_controller(1)
        site.wait("the refusal in the log", lambda: "not reloaded" in site.log(), 30)
        assert site.cluster.controller_running()
    finally:
        site.cluster.write_file("ctl", "/etc/gandiva/gandiva.toml", good)
    site.cluster.kill_controller(1)
    site.wait("the reload", lambda: "settings reloaded" in site.log(), 30)


HOSTILE = {
    "junk": "head -c 4096 /dev/urandom > $d/ranks/0",
    "huge": "truncate -s 1T $d/ranks/0; dd if=/dev/zero of=$d/ranks/1 bs=1M count=2 2>/dev/null",
    "symlink": "rm -f $d/ranks/0; ln -s /etc/shadow $d/ranks/0; ln -s /dev/zero $d/ranks/1",
    "fifo": "rm -f $d/ranks/0; mkfifo $d/ranks/0",
    "folder": "rm -rf $d/ranks; mkdir $d/ranks; mkdir $d/ranks/0",
    "many": "for i in $(seq 1000); do : > $d/ranks/$i; done; touch $d/ranks/notanumber",
}


@pytest.mark.parametrize("kind", sorted(HOSTILE))
def test_hostile_control_files_hurt_only_their_owner(site: Site, kind: str) -> None:
    """The job keeps its GPU or is suspended some other way; the controller and the others go on."""
    for n, node in ((4, "n1"), (3, "n2")):
        job = site.submit("carol", "sleep 600", "--no-gandiva", f"--gres=gpu:{n}", "-w", node)
        site.wait_state(job, "RUNNING")
    script = f"d=/run/gandiva/$SLURM_JOB_ID; {HOSTILE[kind]}; sleep {2.5 * SLICE_SECONDS:g}"
    hostile = site.submit("bob", script, "--gandiva", "--gres=gpu:1")
    site.wait_state(hostile, "RUNNING", "COMPLETED")
    honest = site.train("alice", "--gandiva", "--gres=gpu:1", steps=20)
    states = site.wait_ended([hostile, honest], 90)
    assert states[honest] == "COMPLETED", states
    assert site.cluster.controller_running()
    assert "Traceback" not in site.log()
    assert overlaps(site.holds()) == []


FILL = """
cd /run/gandiva/$SLURM_JOB_ID/ranks
dd if=/dev/zero of=0 bs=1M count=512; for i in $(seq 5000); do mkdir $i || break; done
for d in .. ../..; do (: > $d/mine) 2>/dev/null && echo WROTE $d; done
echo filled: $(stat -f -c '%a blocks %d inodes' .), of all jobs: $(stat -f -c '%a of %b, %d of %c' ../..)
"""


def test_who_fills_the_control_files_fills_only_their_own(site: Site) -> None:
    """On a GPU of n1 bob's job has written all it can; two of alice's take turns as if it were not there."""
    for n, node in ((3, "n1"), (4, "n2")):
        site.wait_state(
            site.submit("carol", "sleep 600", "--no-gandiva", f"--gres=gpu:{n}", "-w", node), "RUNNING"
        )
    hostile = site.submit("bob", f"{FILL} sleep 600", "--gandiva", "--gres=gpu:1")
    site.wait_state(hostile, "RUNNING")
    site.wait("the filled folder", lambda: "filled:" in site.output("bob", hostile))
    said = site.output("bob", hostile)
    assert "No space left on device" in said and "WROTE" not in said
    counts = re.search(r"filled: 0 blocks 0 inodes, of all jobs: (\d+) of (\d+), (\d+) of (\d+)", said)
    assert counts is not None, said
    free_blocks, blocks, free_inodes, inodes = map(int, counts.groups())
    assert free_blocks > 0.9 * blocks and free_inodes > 0.9 * inodes

    honest = [site.train("alice", "--gandiva", "--gres=gpu:1") for _ in range(2)]
    site.wait_on_gpu(*honest)
    site.wait(
        "three turns of each honest job",
        lambda: all(sum(h.job_id == job and h.seconds > 1 for h in site.holds()) >= 3 for job in honest),
        120,
    )
    reports = {row["job_id"]: row for row in site.report()}
    assert all(reports[job]["suspends"] >= 2 for job in honest), reports
    site.cancel_all()
    left = "ls -A /run/gandiva | grep -v -e leader.json -e lock; grep /run/gandiva/ /proc/mounts"
    site.wait(
        "the removed folders", lambda: not site.cluster.exec("n1", left, check=False).stdout.strip(), 30
    )


def test_users_cannot_forge_a_request(site: Site) -> None:
    forged = 'gandiva:{"v":1,"gpus_per_node":4,"nodes":1,"weight":100}'
    job = site.submit("bob", "sleep 1", "--gandiva", "--gres=gpu:1", "--comment", forged)
    done = site.cluster.exec(
        "login", ["scontrol", "update", f"jobid={job}", f"admincomment={forged}"], user="bob", check=False
    )
    assert done.exit_code != 0
    assert '"gpus_per_node":1' in site.job(job).get("AdminComment", "")
    assert site.wait_ended([job])[job] == "COMPLETED"


def test_users_cannot_write_the_command_file(site: Site) -> None:
    script = (
        "d=/run/gandiva/$SLURM_JOB_ID; ls -la $d; "
        "for f in command visible agent.json; do (echo x > $d/$f) 2>/dev/null && echo WROTE $f; done; "
        "(rm -f $d/command || mv $d $d.old) 2>/dev/null && echo REMOVED; echo done"
    )
    job = site.submit("bob", script, "--gandiva", "--gres=gpu:1")
    site.wait_ended([job])
    text = site.output("bob", job)
    assert "done" in text and "WROTE" not in text and "REMOVED" not in text
