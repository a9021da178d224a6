# SPDX-License-Identifier: GPL-2.0-or-later
"""A job opens the GPUs of its turn and no others, and starts only when a controller has put it onto them.

That slurmstepd opens all of a job's GPUs for each step, that the control groups of a real job can be narrowed
and widened under it, and when Slurm starts what by itself, only a real Slurm shows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.gpu_history import overlaps
from tests.live.hurry import hurried
from tests.live.slices import POLICY
from tests.live.support import TRAIN, Site

pytestmark = [pytest.mark.live, pytest.mark.settings(policy=POLICY)]

SWITCHES = 50
STRADDLES_SECONDS = 0.5
"""An attempt that took longer has a suspension in it: which turn it fell into is not known."""
PROBE = """\
import errno, os, sys, time
log = open(sys.argv[1], "a", buffering=1)
while True:
    for gpu in range(4):
        begin = time.time()
        try:
            os.close(os.open(f"/dev/nvidia{gpu}", os.O_RDWR))
        except OSError as error:
            opened = error.errno == errno.ENXIO  # let through; there is no driver behind it
            assert opened or error.errno == errno.EPERM, error
        if opened:
            print(gpu, begin, time.time(), file=log)
    time.sleep(0.005)
"""
"""Opens the device of each GPU, again and again; writes down which let it in, and when."""


def opened(site: Site, job_id: int) -> list[tuple[float, float, int, int]]:
    """Begin, end, GPU and job of each attempt of a probe that was let in."""
    text = site.cluster.exec("n1", ["cat", f"/tmp/opened-{job_id}"], check=False).stdout
    rows = [line.split() for line in text.splitlines() if line.count(" ") == 2]
    found = [(float(begin), float(end), int(gpu), job_id) for gpu, begin, end in rows]
    return [row for row in found if row[1] - row[0] < STRADDLES_SECONDS]


def test_at_every_point_of_fifty_switches_a_job_opens_its_own_gpu_only(site: Site) -> None:
    """On a full node. Two jobs never open a GPU in turns of milliseconds: there is a switch between them."""
    site.cluster.write_file("login", "/shared/tmp/opens.py", PROBE)
    command = "python3 /shared/tmp/opens.py /tmp/opened-$SLURM_JOB_ID"
    options = ("--gandiva", "--gres=gpu:1", "-w", "n1")
    jobs = [site.submit("alice", command, *options) for _ in range(6)]
    jobs += [site.train("bob", *options) for _ in range(2)]

    def switches() -> int:
        done = [o for o in site.operations() if o.kind == "suspend" and o.outcome == "done"]
        return sum(operation.job_id in jobs for operation in done)

    site.wait(f"{SWITCHES} switches", lambda: switches() >= SWITCHES, timeout_seconds=240.0)
    attempts = sorted(row for job in jobs[:6] for row in opened(site, job))
    assert len({job for *_, job in attempts}) == 6
    last: dict[int, tuple[float, int]] = {}
    hands = 0
    for begin, end, gpu, job in attempts:
        before, owner = last.get(gpu, (0.0, job))
        if owner != job:
            hands += 1
            assert begin > before, f"GPU {gpu} of jobs {owner} and {job} at {begin}"
        last[gpu] = max(before, end), job
    # With n GPUs and m jobs it goes from hand to hand once for each slice at most.
    assert 4 <= hands <= SWITCHES * 2, hands


@pytest.mark.public
@pytest.mark.parametrize(
    "script",
    [
        "export CUDA_VISIBLE_DEVICES=0; {train}",
        "unset CUDA_VISIBLE_DEVICES; {train}",
        "srun -n1 env -u CUDA_VISIBLE_DEVICES {train}",
    ],
)
def test_a_script_may_set_cuda_visible_devices(site: Site, script: str) -> None:
    """And has no session: what the driver sees is all that keeps it where it is."""
    command = script.format(train=f"{TRAIN} --no-step --steps 100000 --minibatch-ms 50 --memory-mb 2048")
    jobs = [site.submit("alice", command, "--gandiva", "--gres=gpu:1", "-w", "n1") for _ in range(6)]
    site.wait(
        "all jobs on GPUs", lambda: {h.job_id for h in site.holds()} >= set(jobs), timeout_seconds=120.0
    )
    found = site.holds()
    assert {hold.gpu for hold in found if hold.job_id in jobs} == {0, 1, 2, 3}
    assert overlaps(found) == []


@pytest.mark.breaks
def test_a_start_that_no_controller_chose_waits(site: Site) -> None:
    """Its owner requeues a job while no controller runs; Slurm starts it again by itself."""
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:1", "-w", "n1", steps=4000) for _ in range(6)]
    site.wait("all jobs on GPUs", lambda: {h.job_id for h in site.holds()} >= set(jobs))
    site.cluster.stop_controller()
    runs = [job for job in jobs if site.state(job) == "RUNNING"]
    again = runs[0]
    site.cluster.exec("login", ["scontrol", "requeue", str(again)], user="alice")
    site.wait_state(again, "PENDING")
    before = [hold for hold in site.holds() if hold.job_id == again]

    def starts() -> bool:
        # Slurm's pause after a requeue, two minutes, is of no interest here.
        site.cluster.exec("ctl", ["scontrol", "update", f"jobid={again}", "starttime=now"], check=False)
        return site.state(again) == "RUNNING"

    site.wait("Slurm's own start", starts)
    words = "nobody has prepared this start of the job: this waits"
    site.wait("its message", lambda: words in site.output("alice", again))
    assert [hold for hold in site.holds() if hold.job_id == again] == before
    site.start_controller()
    site.wait("its turn", lambda: len([h for h in site.holds() if h.job_id == again]) > len(before))
    with hurried(site):
        assert set(site.wait_ended(jobs, timeout_seconds=300.0).values()) == {"COMPLETED"}
    assert overlaps(site.holds()) == []


@pytest.fixture
def stepmgr(site: Site) -> Iterator[None]:
    """Slurm's steps are managed on the nodes, by the extern step of each job."""
    path = "/etc/slurm/slurm.conf"
    good = site.cluster.read_file("ctl", path)
    more = "SlurmctldParameters=enable_stepmgr\nPrologFlags=contain\n"
    site.cluster.write_file("ctl", path, good + more)
    site.cluster.exec("ctl", ["scontrol", "reconfigure"])
    yield
    site.cluster.write_file("ctl", path, good)
    site.cluster.exec("ctl", ["scontrol", "reconfigure"])


@pytest.mark.breaks
@pytest.mark.usefixtures("stepmgr")
def test_a_step_in_a_suspended_job_waits(site: Site) -> None:
    """With `enable_stepmgr` srun asks the job's own slurmstepd, which knows of no suspension."""
    steps = 4000
    jobs = [
        site.train("alice", "--gandiva", "--gres=gpu:4", "-w", "n1", gpus=4, steps=steps) for _ in range(2)
    ]
    site.wait("both on the GPUs in turn", lambda: {h.job_id for h in site.holds()} >= set(jobs))

    def suspended() -> list[int]:
        return [job for job in jobs if site.state(job) == "SUSPENDED"]

    site.wait("one suspended", lambda: bool(suspended()))
    step = f"srun --jobid={suspended()[0]} --overlap -n1 --mem=100 {TRAIN} --steps 30 --minibatch-ms 20"
    site.cluster.exec("login", ["bash", "-c", f"{step} > step.out 2>&1 < /dev/null &"], user="alice")
    site.wait(
        "the step's end",
        lambda: "done, digest" in site.cluster.exec("login", ["cat", "step.out"], user="alice").stdout,
    )
    with hurried(site):
        assert set(site.wait_ended(jobs).values()) == {"COMPLETED"}
    assert overlaps(site.holds()) == []
