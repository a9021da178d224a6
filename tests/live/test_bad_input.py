# SPDX-License-Identifier: GPL-2.0-or-later
"""Hostile and mistaken input on a live cluster: one clear error each, and everybody else goes on.

`tests/unit/nodes` has each hostile file alone, `tests/unit/cli` the settings that no daemon starts with.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from container.cluster import MiniCluster
from tests.live.gpu_history import overlaps
from tests.live.support import Site

pytestmark = pytest.mark.live


@pytest.mark.nightly
@pytest.mark.breaks
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
    "junk": "head -c 4096 /dev/urandom > 0; [ $(stat -c %s 0) = 4096 ]",
    "huge": "truncate -s 1T 0; dd if=/dev/zero of=1 bs=1M count=2 2> /dev/null;"
    " [ $(stat -c %s 0) -gt 1000000000000 ] && [ $(stat -c %s 1) = 2097152 ]",
    "symlink": "ln -s /etc/shadow 0; ln -s /dev/zero 1; [ -L 0 ] && [ -L 1 ]",
    "fifo": "mkfifo 0; [ -p 0 ]",
    "folder": "mkdir 0; [ -d 0 ]",
    "many": "for i in $(seq 1000); do : > $i; done; touch notanumber; [ $(ls | wc -l) = 1001 ]",
    "full": "dd if=/dev/zero of=0 bs=1M count=512; for i in $(seq 5000); do mkdir $i || break; done;"
    " for d in .. ../..; do (: > $d/mine) 2> /dev/null && echo WROTE $d; done;"
    " echo filled: $(stat -f -c '%a blocks %d inodes' .),"
    " of all jobs: $(stat -f -c '%a of %b, %d of %c' ../..)",
    "not_its_own": "d=/run/gandiva/$SLURM_JOB_ID; ls -la $d;"
    " for f in command visible agent.json; do (echo x > $d/$f) 2> /dev/null && echo WROTE $f; done;"
    " (rm -f $d/command || mv $d $d.old) 2> /dev/null && echo WROTE folder; :",
}
"""What a job does in its folder of rank files, and whether that came about."""

SYSLOG = """\
import os, socket
listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
listening.bind("/dev/log")
log = open("/tmp/agent.log", "ab", buffering=0)
while True:
    log.write(listening.recv(65536) + b"\\n")
"""


@pytest.fixture
def agents_log(cluster: MiniCluster) -> Iterator[Callable[[], str]]:
    """What agents say that start from now on: nodes of a mini cluster have no syslog of their own."""
    begin = f"rm -f /dev/log /tmp/agent.log; setsid python3 -c '{SYSLOG}' < /dev/null > /dev/null 2>&1 &"
    ready = "for i in $(seq 1000); do [ -S /dev/log ] && exit; sleep 0.05; done; exit 1"
    nodes = cluster.spec.node_names
    cluster.stop_controller()
    for node in nodes:
        cluster.exec(node, f"{begin}\n{ready}")
    yield lambda: "".join(cluster.read_file(node, "/tmp/agent.log") for node in nodes)
    for node in nodes:
        cluster.exec(node, "pkill -f '[/]dev/log'; rm -f /dev/log", check=False)


@pytest.mark.breaks
@pytest.mark.settings(policy={"name": "gandiva", "gandiva": {"slice_seconds": 1.5, "max_jobs_per_gpu": 8}})
def test_hostile_control_files_hurt_only_their_owner(agents_log: Callable[[], str], site: Site) -> None:
    """All kinds at once, on the GPUs of n2. These jobs are suspended all the same, the honest ones have their
    turns, nothing of ours is upset, and nothing of theirs stays."""
    ordinary = site.submit("carol", "sleep 1800", "--no-gandiva", "--gres=gpu:4", "-w", "n1")
    site.wait_state(ordinary, "RUNNING")
    script = (
        "cd /run/gandiva/$SLURM_JOB_ID/ranks; {}; status=$?; ls -la | head -5; echo done: $status; sleep 1800"
    )
    hostile = {
        kind: site.submit("bob", script.format(act), "--gandiva", "--gres=gpu:1")
        for kind, act in HOSTILE.items()
    }
    for kind, job in hostile.items():
        site.wait(f"the act of {kind}", lambda job=job: "done: 0" in site.output("bob", job))  # type: ignore[misc]
        assert "WROTE" not in site.output("bob", job)
    said = site.output("bob", hostile["full"])
    assert "No space left on device" in said
    counts = re.search(r"filled: 0 blocks 0 inodes, of all jobs: (\d+) of (\d+), (\d+) of (\d+)", said)
    assert counts is not None, said
    free_blocks, blocks, free_inodes, inodes = map(int, counts.groups())
    assert free_blocks > 0.9 * blocks and free_inodes > 0.9 * inodes

    honest = [site.train("alice", "--gandiva", "--gres=gpu:1") for _ in range(2)]
    jobs = {*hostile.values(), *honest}

    def turns() -> set[int]:
        """Jobs that were suspended twice."""
        suspends = Counter(
            each.job_id for each in site.operations() if each.kind == "suspend" and each.outcome == "done"
        )
        return {job for job in jobs if suspends[job] >= 2}

    site.wait("turns of all", lambda: turns() == jobs, 180)
    last = site.train("alice", "--gandiva", "--gres=gpu:1", steps=40)
    assert site.wait_ended([last])[last] == "COMPLETED"
    assert site.cluster.controller_running()
    assert "Traceback" not in site.log() and "internal" not in site.log()
    logged = agents_log()
    unread = hostile.keys() - {"full", "not_its_own"}
    assert {kind for kind in unread if f"job {hostile[kind]}" in logged} == unread, logged
    assert "Traceback" not in logged and "a bug" not in logged, logged
    assert overlaps(site.holds()) == []
    site.cancel_all()
    left = "ls -A /run/gandiva | grep -v -e leader.json -e lock; grep /run/gandiva/ /proc/mounts"
    site.wait("the removed folders", lambda: not site.cluster.exec("n2", left, check=False).stdout.strip())
