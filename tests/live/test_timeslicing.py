# SPDX-License-Identifier: GPL-2.0-or-later
"""Real jobs in turn on real GPUs of a real Slurm (the GPUs are mocks, and keep a history)."""

from __future__ import annotations

import json
import math
import time

import pytest

from tests.live.gpu_history import Hold, held_seconds, overlaps
from tests.live.support import EXAMPLES, SLICE_SECONDS, TRAIN, Site

pytestmark = pytest.mark.live


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


def test_gangs_stop_at_one_step_and_their_results_are_those_of_an_undisturbed_run(site: Site) -> None:
    """A two-rank job over two nodes and a four-GPU job, each in turn with others of its shape."""
    over_two = ("-N2", "--ntasks-per-node=1", "--gres=gpu:1")
    ranks = f"srun {TRAIN} --steps 200 --minibatch-ms 50 --memory-mb 512"
    four = f"{TRAIN} --steps 200 --minibatch-ms 50 --memory-mb 512 --gpus 4"
    plain = {
        "ranks": site.submit("alice", ranks, "--no-gandiva", *over_two),
        "four": site.submit("alice", four, "--no-gandiva", "--gres=gpu:4"),
    }
    assert set(site.wait_ended(plain.values(), 90).values()) == {"COMPLETED"}

    # One GPU is left on each node: both gangs over two nodes must have these two.
    fillers = [
        site.submit("carol", "sleep 600", "--no-gandiva", "--gres=gpu:3", "-w", node) for node in ("n1", "n2")
    ]
    for job in fillers:
        site.wait_state(job, "RUNNING")
    gang = site.submit("alice", ranks, "--gandiva", *over_two)
    site.wait_on_gpu(gang)
    rival = site.submit("bob", ranks.replace("200", "100000"), "--gandiva", *over_two)
    assert_same_result_in_turns(site, gang, [rival], plain["ranks"])
    assert len({(h.node, h.gpu) for h in site.holds() if h.job_id in (gang, rival)}) == 2
    site.cluster.exec("ctl", ["scancel", *map(str, [rival, *fillers])])
    site.wait_ended([rival, *fillers])

    sliced = site.submit("alice", four, "--gandiva", "--gres=gpu:4")
    site.wait_on_gpu(sliced)
    rivals = [site.train("carol", "--gandiva", "--gres=gpu:4", gpus=4) for _ in range(3)]
    assert_same_result_in_turns(site, sliced, rivals, plain["four"])
    assert overlaps(site.holds()) == []


def assert_same_result_in_turns(site: Site, job: int, rivals: list[int], undisturbed: int) -> None:
    """The job of alice's completes, was suspended meanwhile, and computed what it computes undisturbed."""
    assert site.wait_ended([job], 120)[job] == "COMPLETED"
    (row,) = site.report("-j", str(job))
    assert row["suspends"] >= 1, f"job {job} was never suspended: the test shows nothing\n{site.queue()}"
    assert set(site.states(rivals).values()) <= {"RUNNING", "SUSPENDED"}, "they share to the end"
    assert site.digest("alice", job) == site.digest("alice", undisturbed)


@pytest.mark.smoke
def test_unmodified_job_is_suspended_by_the_driver(site: Site) -> None:
    """It never calls step(); its state must survive being taken off the GPU all the same."""
    command = f"{TRAIN} --no-step --steps 160 --minibatch-ms 50 --memory-mb 1024"
    undisturbed = site.submit("alice", command, "--no-gandiva", "--gres=gpu:1")
    assert site.wait_ended([undisturbed], 60)[undisturbed] == "COMPLETED"
    blocker = [
        site.submit("carol", "sleep 600", "--no-gandiva", f"--gres=gpu:{n}", "-w", w)
        for n, w in ((4, "n1"), (3, "n2"))
    ]
    for job in blocker:
        site.wait_state(job, "RUNNING")
    unmodified = site.submit("alice", command, "--gandiva", "--gres=gpu:1")
    explicit = site.submit("bob", command, "--gandiva-suspend=transparent", "--gres=gpu:1")
    states = site.wait_ended([unmodified, explicit], 120)
    assert set(states.values()) == {"COMPLETED"}, states
    rows = {row["job_id"]: row for row in site.report()}
    assert rows[unmodified]["suspends"] >= 1 and rows[explicit]["suspends"] >= 1
    assert site.digest("alice", unmodified) == site.digest("alice", undisturbed)
    assert site.digest("bob", explicit) == site.digest("alice", undisturbed)
    assert overlaps(site.holds()) == []


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
    gandiva = [site.train("alice", "--gandiva", "--gres=gpu:1", steps=200) for _ in range(10)]
    site.wait("all eight GPUs in use", lambda: len({(h.node, h.gpu) for h in site.holds()}) == 8)
    ordinary = [
        site.submit(
            "bob", f"{TRAIN} --no-step --steps 40 --minibatch-ms 50 --memory-mb 512", "--no-gandiva", gres
        )
        for gres in ("--gres=gpu:1", "--gres=gpu:a100:1", "--gpus=1")
    ]
    assert set(site.states(ordinary).values()) == {"PENDING"}, (
        "GPUs with Gandiva jobs are not Slurm's to give"
    )
    site.wait_on_gpu(ordinary[0], timeout_seconds=180)
    gandiva += [site.train("carol", "--gandiva", "--gres=gpu:1", steps=60) for _ in range(9)]
    states = site.wait_ended([*gandiva, *ordinary], 240)
    assert set(states.values()) == {"COMPLETED"}, states
    found = site.holds()
    used = {job: {(h.node, h.gpu) for h in found if h.job_id == job} for job in (*gandiva, *ordinary)}
    by_gandiva = set().union(*(used[job] for job in gandiva))
    assert all(used[job] and used[job] <= by_gandiva for job in ordinary), used
    taken = [h for h in found if h.job_id in ordinary]
    before = [h for o in taken for h in found if h.job_id in gandiva and _same(h, o) and h.end <= o.start]
    after = [h for o in taken for h in found if h.job_id in gandiva and _same(h, o) and h.start >= o.end]
    assert before and after, "no GPU went from a Gandiva job to an ordinary one and back"
    assert overlaps(found) == []


def _same(one: Hold, other: Hold) -> bool:
    return (one.node, one.gpu) == (other.node, other.gpu)


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


@pytest.mark.smoke
def test_requeue_as_the_way_to_suspend(site: Site) -> None:
    """`--gandiva-suspend=requeue`: stopped with SIGTERM, saved by itself, continued from its checkpoint."""
    site.leave_one_gpu()
    command = f"exec {TRAIN} --steps 160 --minibatch-ms 50 --checkpoint-dir $HOME/ck-$SLURM_JOB_ID"
    victim = site.submit("alice", command, "--gandiva-suspend=requeue", "--gres=gpu:1", "--requeue")
    site.wait_on_gpu(victim)
    rival = site.train("bob", "--gandiva", "--gres=gpu:1", steps=100)
    states = site.wait_ended([victim, rival], 180)
    assert set(states.values()) == {"COMPLETED"}, states
    assert int(site.job(victim)["Restarts"]) >= 1, "it was never requeued: the test shows nothing"
    assert overlaps(site.holds()) == []
    plain = site.submit("alice", f"{TRAIN} --steps 160 --minibatch-ms 50", "--no-gandiva", "--gres=gpu:1")
    site.wait_ended([plain])
    assert site.digest("alice", victim).split()[-1] == site.digest("alice", plain).split()[-1]


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
