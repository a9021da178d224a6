# SPDX-License-Identifier: GPL-2.0-or-later
"""The controller dies or is stopped; the jobs do not notice.

What every step leaves when it is cut off is tested in `tests/unit/loop` and by the faults. Here: what a real
slurmctld and real jobs do without a controller, and what the next one makes of it."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.live.gpu_history import overlaps
from tests.live.hurry import hurried
from tests.live.slices import POLICY
from tests.live.support import PYTHON, Site

pytestmark = [pytest.mark.live, pytest.mark.breaks, pytest.mark.settings(policy=POLICY)]

MANY = 3000
"""Steps, more than any test waits for: they end `hurried`."""
RELEASES = pytest.mark.settings(daemon={"at_stop": "release"})
DUMPS = Path(__file__).resolve().parents[1] / "unit" / "journal" / "schemas"

KILL_IN_OPERATION = """\
import json, os, pathlib, sqlite3, sys, time
journal = sqlite3.connect("file:/var/lib/gandiva/journal.sqlite?mode=ro", uri=True, timeout=10)
open_operations = "SELECT op_id, kind, step FROM operations WHERE end IS NULL"
pid = int(pathlib.Path("/run/slurm/gandiva.pid").read_text())
deadline = time.monotonic() + 90
while not journal.execute(open_operations).fetchall():
    assert time.monotonic() < deadline, "no operation began"
    time.sleep(0.005)
time.sleep(float(sys.argv[1]))
os.kill(pid, 9)
def lives():
    try:
        return ") Z" not in pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
while lives():
    time.sleep(0.01)
print(json.dumps(journal.execute(open_operations).fetchall()))
"""
"""Kills the controller some time after an operation has begun; prints which are under way then, and where."""
OUTCOMES = """\
import sqlite3, sys
journal = sqlite3.connect("file:/var/lib/gandiva/journal.sqlite?mode=ro", uri=True, timeout=10)
print(*(o for (o,) in journal.execute(f"SELECT outcome FROM operations WHERE op_id IN ({sys.argv[1]})")))
"""


@pytest.mark.parametrize(
    "delays",
    [
        pytest.param((0.0, 0.1), id="two kills", marks=pytest.mark.smoke),
        pytest.param([n / 16 for n in range(8)], id="eight kills", marks=pytest.mark.nightly),
    ],
)
def test_killed_in_mid_switch_every_job_goes_on(site: Site, delays: Sequence[float]) -> None:
    """`kill -9` so many seconds after an operation has begun, which the journal tells. What Slurm shows of a
    job whose switch was cut off differs between its releases."""
    for n, node in ((4, "n1"), (2, "n2")):
        job = site.submit("carol", "sleep 600", "--no-gandiva", f"--gres=gpu:{n}", "-w", node)
        site.wait_state(job, "RUNNING")
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:1", steps=MANY) for _ in range(4)]
    site.wait_on_gpu(*jobs[:2])
    cut_off: dict[int, str] = {}
    for delay in delays:
        code = [PYTHON, "-c", KILL_IN_OPERATION, str(delay)]
        done = site.cluster.exec("ctl", code, user="gandiva", timeout_seconds=120)
        assert not site.cluster.controller_running()
        cut_off |= {number: f"{kind}: {step}" for number, kind, step in json.loads(done.stdout)}
        site.start_controller(policy=POLICY)
    site.wait_on_gpu(*jobs)
    with hurried(site):
        states = site.wait_ended(jobs, 240)
    assert set(states.values()) == {"COMPLETED"}, states
    assert len(cut_off) >= len(delays) / 2, f"few kills came in the middle of a switch: {cut_off}"
    assert len(set(cut_off.values())) >= len(delays) / 4, f"always at the same step: {cut_off}"
    numbers = ",".join(map(str, cut_off))
    outcomes = site.cluster.exec("ctl", [PYTHON, "-c", OUTCOMES, numbers], user="gandiva").stdout.split()
    assert outcomes == ["interrupted"] * len(cut_off), "the next controller found them half done"
    assert overlaps(site.holds()) == []


# -- the orderly end ---------------------------------------------------------------------------------------


def test_without_a_controller_slurm_leaves_jobs_as_they_are(site: Site) -> None:
    """Those on their GPUs run on, suspended ones stay so, and slurmctld starts none that waits for its turn:
    not on GPUs that are free, and whatever its owner tries."""
    beside = site.submit("carol", "sleep 600", "--no-gandiva", "--gres=gpu:3", "-w", "n1")
    site.wait_state(beside, "RUNNING")
    options = ("--gandiva", "--gres=gpu:4", "-w", "n2")
    jobs = [site.train("alice", *options, steps=MANY, log="$SLURM_JOB_ID.steps") for _ in range(2)]
    site.wait_on_gpu(*jobs)
    queued = site.submit("bob", "true", "--gandiva", "--gres=gpu:4", "-w", "n1")
    site.wait("the controller to know it", lambda: len(site.report("-j", str(queued))) == 1)
    site.cluster.stop_controller()
    assert "jobs stay as they are" in site.log_tail()
    states = site.states(jobs)
    assert sorted(states.values()) == ["RUNNING", "SUSPENDED"], states
    ((running, suspended),) = [
        (a, b) for a in jobs for b in jobs if (states[a], states[b]) == ("RUNNING", "SUSPENDED")
    ]

    late = site.train("bob", "--gandiva", "--gres=gpu:1", "-w", "n1", steps=20)
    # It drops a hold of their own, never that of Gandiva (docs/plugin.md).
    for change in (
        ["release", str(late)],
        ["update", f"jobid={late}", "priority=1000"],
        ["update", f"jobid={late}", "gres=gpu:1", "nodelist=n2"],
        ["update", f"jobid={late}", "nice=-100"],
        ["top", str(late)],
        ["release", str(late)],
    ):
        site.cluster.exec("login", ["scontrol", *change], user="bob", check=False)
        assert site.job(late)["Priority"] == "0", change
    # Submitted later, started at once: the GPU was free all the time, and Slurm gives it away.
    ordinary = site.submit("bob", "sleep 600", "--no-gandiva", "--gres=gpu:1", "-w", "n1")
    site.wait_state(ordinary, "RUNNING")
    before = steps_done(site, running)
    site.wait("steps without a controller", lambda: steps_done(site, running) > before + 20)
    assert site.job(queued)["Priority"] == "0"
    assert site.states([*jobs, queued, late]) == {**states, queued: "PENDING", late: "PENDING"}

    site.cluster.exec("ctl", ["scancel", str(ordinary), str(beside)])
    site.start_controller(policy=POLICY)
    with hurried(site):
        ended = site.wait_ended([*jobs, queued, late], 180)
    assert set(ended.values()) == {"COMPLETED"}, "the controller lets them start and go on"
    rows = {row["job_id"]: row for row in site.report()}
    assert rows[suspended]["run_seconds"] > 0


def steps_done(site: Site, job: int) -> int:
    """Of alice's job, as its log has them."""
    return len(site.cluster.read_file("login", f"/home/alice/{job}.steps").splitlines())


@RELEASES
def test_stop_and_release_leaves_what_slurm_can_end_alone(site: Site) -> None:
    """Suspended jobs go on where they can, waiting jobs become Slurm's; the next controller takes over what
    is left."""
    fill_n2(site)
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:4", "-w", "n1", steps=MANY) for _ in range(2)]
    site.wait_on_gpu(*jobs)
    # It fits n2 only, which is full of an ordinary job: it waits in our queue.
    waiting = site.submit(
        "bob", "hostname; echo gpus=$CUDA_VISIBLE_DEVICES", "--gandiva", "--gres=gpu:3", "-w", "n2"
    )
    afterwards = site.submit("bob", "true", "--gandiva", "--gres=gpu:1", "-d", f"afterany:{waiting}")
    own_hold = site.submit("bob", "true", "--gandiva", "--gres=gpu:1", "--hold")
    site.wait_state(waiting, "PENDING")
    site.wait("the controller to know them", lambda: len(site.report("-j", str(own_hold))) == 1)
    site.cluster.stop_controller()
    log = site.log_tail()
    assert "2 waiting jobs given to Slurm" in log, log
    states = site.states(jobs)
    assert sorted(states.values()) == ["RUNNING", "SUSPENDED"], states
    (suspended,) = [job for job, state in states.items() if state == "SUSPENDED"]
    assert (
        f"still suspended, until a controller starts, because other jobs are on their GPUs: jobs {suspended}"
        in log
    )
    # Nobody leads now. Slurm alone ends all but the suspended one.
    (running,) = set(jobs) - {suspended}
    ordinary = site.submitted[0]
    site.cluster.exec("ctl", ["scancel", str(ordinary)])
    with hurried(site):
        ended = site.wait_ended([running, waiting, afterwards], 180)
        assert set(ended.values()) == {"COMPLETED"}, ended
        output = site.output("bob", waiting)
        assert "n2" in output and len(output.split("gpus=")[1].split(",")) == 3, output
        assert site.state(own_hold) == "PENDING", "its user's hold counts"
        assert site.state(suspended) == "SUSPENDED"
        # With a controller again it ends, too.
        site.start_controller(policy=POLICY)
        assert site.wait_ended([suspended], 120) == {suspended: "COMPLETED"}


@pytest.mark.nightly
@RELEASES
def test_a_suspended_job_goes_on_at_the_stop_when_its_gpus_are_free(site: Site) -> None:
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:4", "-w", "n1", steps=MANY) for _ in range(2)]
    site.wait_on_gpu(*jobs)
    site.wait("one to have its turn", lambda: sorted(site.states(jobs).values()) == ["RUNNING", "SUSPENDED"])
    # While the controller is stopped the one that runs is cancelled; all it hears then is that it must end.
    running: list[int] = []
    for _ in range(5):
        site.cluster.kill_controller(signal.SIGSTOP)
        time.sleep(3)  # agents end what was asked of them
        running = [job for job, state in site.states(jobs).items() if state == "RUNNING"]
        if len(running) == 1:
            break
        site.cluster.kill_controller(signal.SIGCONT)  # in the middle of a switch: once more
        time.sleep(1)
    assert len(running) == 1, site.queue()
    site.cluster.exec("ctl", ["scancel", *map(str, running)])
    site.wait_ended(running)
    pid = site.cluster.exec("ctl", ["cat", "/var/lib/gandiva/journal.sqlite.lock"]).stdout.strip()
    site.cluster.exec("ctl", ["sh", "-c", f"kill -TERM {pid}; kill -CONT {pid}"])
    site.wait("the controller to end", lambda: not site.cluster.controller_running(), 60)
    rest = [job for job in jobs if job not in running]
    with hurried(site):
        assert set(site.wait_ended(rest, 120).values()) == {"COMPLETED"}
    assert not site.cluster.controller_running()


# -- the journal -------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_damaged_journal_costs_no_job_anything(site: Site) -> None:
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:4", "-w", "n1", steps=MANY) for _ in range(2)]
    site.wait_on_gpu(*jobs)
    site.cluster.kill_controller(9)
    damage = (
        "cd /var/lib/gandiva && for f in journal.sqlite journal.sqlite-wal; do "
        "dd if=/dev/urandom of=$f bs=512 seek=1 count=40 conv=notrunc status=none; done"
    )
    site.cluster.exec("ctl", damage, user="gandiva")
    site.start_controller(policy=POLICY)
    log = site.log()
    assert log.count("is damaged") == 1, log[-3000:]
    with hurried(site):
        assert set(site.wait_ended(jobs, 180).values()) == {"COMPLETED"}
    status = site.cluster.exec("login", ["gandiva", "status"], user="alice", check=False)
    assert status.exit_code == 1 and "problem" in status.stdout and "set aside as" in status.stdout
    verified = site.cluster.exec("ctl", ["gandiva", "journal", "verify"], user="gandiva")
    assert verified.stdout.endswith("The journal is consistent.\n")
    (aside,) = site.cluster.exec(
        "ctl", "ls /var/lib/gandiva/*.damaged-* | grep -v -e -wal -e -shm"
    ).stdout.split()
    assert site.cluster.exec("ctl", ["gandiva", "journal", "verify", aside], check=False).exit_code == 1
    refused = site.cluster.exec("ctl", ["gandiva", "journal", "vacuum"], user="gandiva", check=False)
    assert refused.exit_code == 1 and "leads with the journal" in refused.stderr
    site.cluster.stop_controller()
    done = site.cluster.exec("ctl", ["gandiva", "journal", "vacuum"])
    assert "rows deleted" in done.stdout
    site.cluster.exec("ctl", "rm -f /var/lib/gandiva/*.damaged-*")
    site.start_controller(policy=POLICY)


# -- upgrade -----------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_newer_controller_takes_over_a_running_cluster(site: Site) -> None:
    """From the controller that wrote the oldest journal there is: jobs that run, are suspended and wait."""
    fill_n2(site)
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:4", "-w", "n1", steps=MANY) for _ in range(2)]
    site.wait_on_gpu(*jobs)
    submitted = {row["job_id"]: row["submit_time"] for row in site.report()}[jobs[0]]
    site.cluster.stop_controller()
    assert sorted(site.states(jobs).values()) == ["RUNNING", "SUSPENDED"]
    waiting = site.train("bob", "--gandiva", "--gres=gpu:4", "-w", "n1", steps=50)
    old = (DUMPS / "v1.sql").read_text()
    # The numbers in the dump become those of the jobs that are there.
    old = old.replace('"usage" VALUES(7,', f'"usage" VALUES({jobs[0]},').replace(
        '"jobs" VALUES(7,', f'"jobs" VALUES({jobs[0]},'
    )
    old = old.replace(",2,2.0,1000.0,", f",2,2.0,{submitted},")
    old = re.sub(r'("slices" VALUES\(\d+),7,', rf"\1,{jobs[0]},", old)
    old = re.sub(r'("operations" VALUES\(\d+),7,', rf"\1,{jobs[0]},", old)
    make = (
        "import sqlite3, sys, pathlib; p = pathlib.Path('/var/lib/gandiva/journal.sqlite'); "
        "[f.unlink() for f in p.parent.glob('journal.sqlite*') if not f.name.endswith('.lock')]; "
        "sqlite3.connect(p).executescript(sys.stdin.read())"
    )
    site.cluster.exec("ctl", ["python3", "-c", make], user="gandiva", stdin=old)
    site.start_controller(policy=POLICY)
    log = site.log()
    assert f"job {jobs[0]}: suspend was interrupted after step 'offload'" in log
    site.wait(
        "what the old controller had counted to go on",
        lambda: [row["suspends"] >= 3 for row in site.report("-j", str(jobs[0]))] == [True],
    )
    with hurried(site):
        ended = site.wait_ended([*jobs, waiting], 240)
    assert set(ended.values()) == {"COMPLETED"}, ended
    assert site.cluster.exec("ctl", ["gandiva", "journal", "verify"]).exit_code == 0


def fill_n2(site: Site) -> None:
    """An ordinary job has all of the second node."""
    job = site.submit("carol", "sleep 600", "--no-gandiva", "--gres=gpu:4", "-w", "n2")
    site.wait_state(job, "RUNNING")
