# SPDX-License-Identifier: GPL-2.0-or-later
"""Real jobs in turn on real GPUs of a real Slurm (the GPUs are mocks, and keep a history)."""

from __future__ import annotations

import json
import math
import time

import pytest

from tests.live.gpu_history import held_seconds, overlaps
from tests.live.hurry import hurried
from tests.live.slices import POLICY
from tests.live.support import EXAMPLES, QUICK, SLICE_SECONDS, TRAIN, Site

pytestmark = [pytest.mark.live, pytest.mark.settings(policy=POLICY)]
LONG_SLICES = pytest.mark.settings(policy=QUICK["policy"])
STEPS = 600
"""Half a minute of mini-batches: more than any test waits for."""


@pytest.mark.nightly
@LONG_SLICES
def test_shares_follow_weights_and_gpus_are_shared_fairly(site: Site) -> None:
    """Two things at once, to save time: on n2 weights 2:1 on one GPU, on n1 six equal jobs on four GPUs."""
    filler = site.submit("carol", "sleep 600", "--no-gandiva", "--gres=gpu:3", "-w", "n2")
    site.wait_state(filler, "RUNNING")
    heavy = site.train("alice", "--gandiva-weight=2", "--gres=gpu:1", "-w", "n2")
    site.wait_on_gpu(heavy)
    light = site.train("bob", "--gandiva-weight=1", "--gres=gpu:1", "-w", "n2")
    six = [
        site.train(user, "--gandiva", "--gres=gpu:1", "-w", "n1")
        for user in ("alice", "bob", "carol", "alice", "bob", "carol")
    ]
    site.wait_on_gpu(heavy, light, *six)

    begin = time.time()
    time.sleep(SLICE_SECONDS * 20)
    end = time.time()
    found = site.holds()

    assert overlaps(found) == []
    # Whole rotations only: from one turn of the light job to its last, so that no slice is cut off.
    turns = sorted(h.start for h in found if h.job_id == light)
    slices = sum(h.job_id in (heavy, light) and h.seconds > 1 for h in found)
    assert slices >= 12
    heavy_seconds, light_seconds = (held_seconds(found, job, turns[0], turns[-1]) for job in (heavy, light))
    assert heavy_seconds / light_seconds == pytest.approx(2.0, rel=0.1)
    shares = [held_seconds(found, job, begin, end) for job in six]
    each, ideal = sum(shares) / len(six), (end - begin) * 4 / len(six)
    # What is lost between turns grows with what else this machine does; that it is shared alike must not.
    assert 0.75 < each / ideal < 1.02
    # A job is one slice ahead or behind at most, at both ends, and may have had all its losses or none.
    for seconds in shares:
        assert seconds == pytest.approx(each, abs=2.0 * SLICE_SECONDS + max(0.0, ideal - each))

    before, rows, after = site.holds(), {row["job_id"]: row for row in site.report()}, site.holds()
    for job in (heavy, light, *six):
        # From Slurm's start to the first memory it loads its program; at the report it may be on a GPU.
        loads = min(h.start for h in after if h.job_id == job) - rows[job]["start_time"]
        least, most = (loads + held_seconds(found, job, 0, math.inf) for found in (before, after))
        reported = rows[job]["run_seconds"]
        assert 0.85 * least <= reported <= 1.15 * most, f"report and GPU history differ for job {job}"


def undisturbed(site: Site, command: str, *options: str) -> str:
    """The final state of a run alone, whose mini-batches take as little time as they can."""
    words = command.replace("--minibatch-ms 50", "--minibatch-ms 1")
    job = site.submit("alice", words, "--no-gandiva", *options)
    assert site.wait_ended([job])[job] == "COMPLETED"
    return site.digest("alice", job)


def suspends(site: Site, *jobs: int) -> list[int]:
    """How often each of them has been taken off its GPUs, as far as the controller has seen them yet."""
    rows = {row["job_id"]: row["suspends"] for row in site.report()}
    return [rows.get(job, 0) for job in jobs]


def test_gangs_stop_at_one_step_and_their_results_are_those_of_an_undisturbed_run(site: Site) -> None:
    """A job of two ranks over two nodes and one of all GPUs of the second node, in turn with another job of
    two ranks."""
    over_two = ("-N2", "--ntasks-per-node=1", "--gres=gpu:1")
    ranks = f"srun {TRAIN} --steps {STEPS} --minibatch-ms 50 --memory-mb 512"
    four = f"{TRAIN} --steps {STEPS} --minibatch-ms 50 --memory-mb 512 --gpus 4"
    plain = [undisturbed(site, ranks, *over_two), undisturbed(site, four, "--gres=gpu:4")]
    filler = site.submit("carol", "sleep 1800", "--no-gandiva", "--gres=gpu:3", "-w", "n1")
    site.wait_state(filler, "RUNNING")
    rival = site.submit("bob", ranks.replace(str(STEPS), "100000"), "--gandiva", *over_two)
    gangs = [
        site.submit("alice", ranks, "--gandiva", *over_two),
        site.submit("alice", four, "--gandiva", "--gres=gpu:4"),
    ]
    site.wait("each of them suspended", lambda: min(suspends(site, rival, *gangs)) >= 1, 120)
    with hurried(site):
        assert set(site.wait_ended(gangs).values()) == {"COMPLETED"}
        assert site.state(rival) in ("RUNNING", "SUSPENDED"), "they share to the end"
    assert [site.digest("alice", job) for job in gangs] == plain
    found = site.holds()
    assert overlaps(found) == []
    shared = {h.gpu for h in found if h.node == "n1" and h.job_id in (rival, gangs[0])}
    assert len(shared) == 1, "both had to have the GPU that was left"


@pytest.mark.smoke
def test_all_ways_to_take_a_job_off_its_gpu(site: Site) -> None:
    """In turn on one GPU: a job that calls step(); two that never do, whose state survives the driver's
    checkpoint all the same; one that is stopped with SIGTERM, saves by itself, and goes on from there."""
    site.leave_one_gpu()
    command = f"{TRAIN} --steps {STEPS} --minibatch-ms 50"
    alone = undisturbed(site, command, "--gres=gpu:1")
    saves = f"exec {command} --checkpoint-dir $HOME/ck-$SLURM_JOB_ID"
    requeued = site.submit("alice", saves, "--gandiva-suspend=requeue", "--gres=gpu:1", "--requeue")
    jobs = [
        site.submit("alice", command, "--gandiva", "--gres=gpu:1"),
        site.submit("alice", f"{command} --no-step", "--gandiva", "--gres=gpu:1"),
        site.submit("alice", f"{command} --no-step", "--gandiva-suspend=transparent", "--gres=gpu:1"),
    ]
    site.wait("each of them suspended", lambda: min(suspends(site, *jobs)) >= 1, 120)
    site.wait("the other requeued", lambda: int(site.job(requeued)["Restarts"]) >= 1, 120)
    with hurried(site):
        assert set(site.wait_ended([requeued, *jobs]).values()) == {"COMPLETED"}
    assert {site.digest("alice", job).split()[-1] for job in (requeued, *jobs)} == {alone.split()[-1]}
    assert overlaps(site.holds()) == []


@pytest.mark.nightly
@LONG_SLICES
def test_job_that_nothing_can_suspend_keeps_its_gpu_and_is_named(site: Site) -> None:
    """It never calls step() and the driver cannot lock it: nobody else may have its GPU."""
    site.leave_one_gpu()
    stubborn = site.train("alice", "--gandiva", "--gres=gpu:1", no_step=True)
    site.wait_on_gpu(stubborn)
    site.cluster.exec("n2", ["mockgpu", "inject", "lock-timeout", "--job", str(stubborn)])
    try:
        other = site.train("bob", "--gandiva", "--gres=gpu:1", steps=10)
        site.wait(
            "the failure in the log",
            lambda: f"job {stubborn} (user alice): could not be taken off" in site.log(),
        )
        time.sleep(2 * SLICE_SECONDS)
        assert site.state(stubborn) == "RUNNING"
        assert other not in {h.job_id for h in site.holds()}
    finally:
        site.cluster.exec("n2", ["mockgpu", "inject", "--clear"])
    assert site.wait_ended([other], 90)[other] == "COMPLETED", (
        "once it can be suspended, the other gets its turn"
    )
    assert overlaps(site.holds()) == []


@pytest.mark.nightly
@LONG_SLICES
def test_a_torchrun_like_job_and_another_take_turns(site: Site) -> None:
    """Two processes below one launcher, whose CUDA contexts and communicators stay on the GPUs."""
    site.kept_bytes = 1000 << 20
    command = (
        f"python3 {EXAMPLES}/mockrun.py 2 {EXAMPLES}/train_mock.py --keep-context --steps 200"
        " --minibatch-ms 50 --memory-mb 8192"
    )
    plain = site.submit("alice", command, "--no-gandiva", "--gres=gpu:2", "-w", "n2")
    assert site.wait_ended([plain], 90)[plain] == "COMPLETED"
    filler = site.submit("carol", "sleep 600", "--no-gandiva", "--gres=gpu:2", "-w", "n2")
    site.wait_state(filler, "RUNNING")
    two = site.submit("alice", command, "--gandiva", "--gres=gpu:2", "-w", "n2")
    site.wait_on_gpu(two)
    other = site.submit("bob", command, "--gandiva", "--gres=gpu:2", "-w", "n2")
    site.wait_on_gpu(other)
    told = site.explained(two)
    shown = json.loads(
        site.cluster.exec("login", ["gandiva", "explain", str(two), "--json"], user="alice").stdout
    )
    if shown["live"]["phase"] == "suspended":  # (the other may have had its turn already)
        assert "1000 MiB of n2:" in told and len(shown["live"]["left_on"]) == 2
    states = site.wait_ended([two, other], 180)
    assert set(states.values()) == {"COMPLETED"}, states
    rows = {row["job_id"]: row for row in site.report()}
    assert rows[two]["suspends"] >= 2 and rows[other]["suspends"] >= 1
    assert site.digest("alice", two) == site.digest("alice", plain)
    found = site.holds()
    assert overlaps(found) == []
    assert len([h for h in found if h.job_id == two]) >= 6, "it was off both GPUs twice"


@pytest.mark.smoke
def test_ordinary_and_gandiva_jobs_never_share_a_gpu(site: Site) -> None:
    """More of both than there are GPUs: each kind has to wait for GPUs that the other one has."""
    filler = site.submit("carol", "sleep 1800", "--no-gandiva", "--gres=gpu:4", "-w", "n1")
    site.wait_state(filler, "RUNNING")
    gandiva = [site.train("alice", "--gandiva", "--gres=gpu:1") for _ in range(6)]
    site.wait("all four GPUs in use", lambda: len({h.gpu for h in site.holds()}) == 4)
    command = f"{TRAIN} --no-step --steps {STEPS} --minibatch-ms 50 --memory-mb 512"
    ordinary = [
        site.submit("bob", command, "--no-gandiva", gres)
        for gres in ("--gres=gpu:1", "--gres=gpu:a100:1", "--gpus=1")
    ]
    assert set(site.states(ordinary).values()) == {"PENDING"}, (
        "GPUs with Gandiva jobs are not Slurm's to give"
    )
    site.cluster.exec("ctl", ["scancel", *map(str, gandiva)])
    site.wait_on_gpu(*ordinary)
    whole = site.train("alice", "--gandiva", "--gres=gpu:4", "-w", "n2", gpus=4)
    site.wait("the reason why it waits", lambda: "no node can take its" in site.explained(whole))
    with hurried(site):
        assert set(site.wait_ended(ordinary).values()) == {"COMPLETED"}
    site.wait_on_gpu(whole)
    found = site.holds()
    used = {job: {h.gpu for h in found if h.job_id == job} for job in (whole, *ordinary)}
    assert used.pop(whole) == {0, 1, 2, 3} and all(used.values())
    assert overlaps(found) == []


def test_a_job_can_open_its_own_gpu_only(site: Site) -> None:
    probe = (
        "import errno,os\n"
        "for n in range(4):\n"
        "    try: os.close(os.open(f'/dev/nvidia{n}', os.O_RDWR)); word = 'OPENED'\n"
        "    except OSError as e: word = errno.errorcode[e.errno]\n"
        "    print(n, word)\n"
    )
    site.cluster.write_file("login", "/shared/tmp/probe.py", probe)
    job = site.submit("alice", "python3 /shared/tmp/probe.py", "--gandiva", "--gres=gpu:1")
    assert site.wait_ended([job])[job] == "COMPLETED"
    words = dict(line.split() for line in site.output("alice", job).splitlines())
    assert sorted(words.values()) == ["ENXIO", "EPERM", "EPERM", "EPERM"], words


def test_examples_run_as_a_user_would_run_them(site: Site) -> None:
    jobs = [
        int(
            site.cluster.exec(
                "login",
                ["sbatch", "--parsable", f"{EXAMPLES}/{script}", "--steps", "20", "--minibatch-ms", "20"],
                user="alice",
                env={"EXAMPLES": EXAMPLES},
            ).stdout
        )
        for script in ("train_mock.sbatch", "train_mock_ranks.sbatch", "train_plain.sbatch")
    ]
    site.submitted += jobs
    states = site.wait_ended(jobs, 120)
    assert set(states.values()) == {"COMPLETED"}, states
