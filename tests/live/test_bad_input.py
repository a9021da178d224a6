# SPDX-License-Identifier: GPL-2.0-or-later
"""Hostile and mistaken input on a live cluster: one clear error each, and everybody else goes on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tests.live.gpu_history import overlaps
from tests.live.support import Site

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
    "junk": ("head -c 4096 /dev/urandom > 0", "[ $(stat -c %s 0) = 4096 ]"),
    "huge": (
        "truncate -s 1T 0; dd if=/dev/zero of=1 bs=1M count=2 2> /dev/null",
        "[ $(stat -c %s 0) -gt 1000000000000 ] && [ $(stat -c %s 1) = 2097152 ]",
    ),
    "symlink": ("ln -s /etc/shadow 0; ln -s /dev/zero 1", "[ -L 0 ] && [ -L 1 ]"),
    "fifo": ("mkfifo 0", "[ -p 0 ]"),
    "folder": ("mkdir 0", "[ -d 0 ]"),
    "many": (
        "for i in $(seq 1000); do : > $i; done; touch notanumber",
        "[ $(ls | wc -l) = 1001 ]",
    ),
}
"""What a job does in its folder of rank files, and how to see there that it was done."""

SYSLOG = """\
import os, socket
listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
listening.bind("/dev/log")
log = open("/tmp/agent.log", "ab", buffering=0)
while True:
    log.write(listening.recv(65536) + b"\\n")
"""


@pytest.fixture
def agents_log(site: Site) -> Iterator[Callable[[], str]]:
    """What the agents say from now on: nodes of a mini cluster have no syslog of their own."""
    begin = f"rm -f /dev/log /tmp/agent.log; setsid python3 -c '{SYSLOG}' < /dev/null > /dev/null 2>&1 &"
    ready = "for i in $(seq 100); do [ -S /dev/log ] && exit; sleep 0.05; done; exit 1"
    site.cluster.stop_controller()
    for node in site.nodes:
        site.cluster.exec(node, f"{begin}\n{ready}")
    site.start_controller()  # and agents that find the syslog
    yield lambda: "".join(site.cluster.read_file(node, "/tmp/agent.log") for node in site.nodes)
    for node in site.nodes:
        site.cluster.exec(node, "pkill -f '[/]dev/log'; rm -f /dev/log", check=False)


@pytest.mark.parametrize("kind", sorted(HOSTILE))
def test_hostile_control_files_hurt_only_their_owner(
    site: Site, agents_log: Callable[[], str], kind: str
) -> None:
    """The job is suspended all the same, the others have their turns, nothing of ours is upset."""
    site.leave_one_gpu()
    act, proof = HOSTILE[kind]
    script = f"cd /run/gandiva/$SLURM_JOB_ID/ranks; {act}; ls -la | head -5; {proof} && echo done as asked"
    hostile = site.submit("bob", f"{script}; sleep 600", "--gandiva", "--gres=gpu:1")
    site.wait_state(hostile, "RUNNING")
    site.wait("the hostile act", lambda: "done as asked" in site.output("bob", hostile), 30)
    honest = site.train("alice", "--gandiva", "--gres=gpu:1", steps=200)
    assert site.wait_ended([honest], 90)[honest] == "COMPLETED"
    suspends = {row["job_id"]: row["suspends"] for row in site.report()}
    assert suspends[hostile] >= 2 and suspends[honest] >= 1, f"they did not take turns: {suspends}"
    assert site.cluster.controller_running()
    assert "Traceback" not in site.log() and "internal" not in site.log()
    said = agents_log()
    assert f"job {hostile}" in said, f"the agents' log is not read: {said!r}"
    assert "Traceback" not in said and "a bug" not in said, said
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
