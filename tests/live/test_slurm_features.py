# SPDX-License-Identifier: GPL-2.0-or-later
"""What Slurm users are used to, with Gandiva jobs: arrays, dependencies, srun, salloc, scancel, …"""

from __future__ import annotations

import pytest

from tests.live.hurry import hurried
from tests.live.slices import POLICY
from tests.live.support import KILLED_AGAIN_SECONDS, TRAIN, Site

pytestmark = [pytest.mark.live, pytest.mark.settings(policy=POLICY)]

MANY = 2000
"""Steps, more than any test waits for: they end `hurried`."""


@pytest.mark.smoke
def test_array_tasks_are_jobs_of_their_own_and_the_limit_holds(site: Site) -> None:
    """GPUs are free all the time: it is Slurm that tells of two at a time."""
    command = f"{TRAIN} --steps {MANY} --minibatch-ms 50 --memory-mb 512"
    array = site.submit("alice", command, "--gandiva", "--gres=gpu:1", "--array=0-3%2")
    limited = ["PENDING", "PENDING", "RUNNING", "RUNNING"]
    site.wait("two tasks", lambda: sorted(tasks_of(site, array).values()) == limited)
    after_them = site.train("alice", "--gandiva", "--gres=gpu:1", steps=10)
    assert site.wait_ended([after_them])[after_them] == "COMPLETED", "there was room for more"
    assert sorted(tasks_of(site, array).values()) == limited
    completed = dict.fromkeys(range(4), "COMPLETED")
    with hurried(site):
        site.wait("four completed tasks", lambda: at_most_two(site, array) == completed, 120)


def tasks_of(site: Site, array: int) -> dict[int, str]:
    """The states of its tasks."""
    lines = site.cluster.exec("ctl", ["squeue", "-h", "-r", "-t", "all", "-o", "%F %K %T"]).stdout
    rows = [line.split() for line in lines.splitlines()]
    return {int(task): state for job, task, state in rows if job == str(array) and task.isdigit()}


def at_most_two(site: Site, array: int) -> dict[int, str]:
    """The same, after a look at the limit."""
    states = tasks_of(site, array)
    assert sum(state in ("RUNNING", "SUSPENDED") for state in states.values()) <= 2, states
    return states


@pytest.mark.nightly
def test_a_list_of_tasks_that_slurm_shortens_is_started_task_by_task(site: Site) -> None:
    """Slurm's clients cut a list of tasks at 64 bytes. Bound as one job, all would start on one GPU."""
    wanted = [1, 103, 206, 308, *(n + n % 2 for n in range(410, 1000, 41))]
    numbers = ",".join(str(n) for n in wanted)
    assert len(numbers) > 64
    command = f"{TRAIN} --steps 10 --minibatch-ms 50 --memory-mb 512"
    array = site.submit("alice", command, "--gandiva", "--gres=gpu:1", f"--array={numbers}")
    completed = dict.fromkeys(wanted, "COMPLETED")
    site.wait("all tasks completed", lambda: tasks_of(site, array) == completed, 180)
    # (That no two had memory on one GPU is seen after every test.)
    assert len({hold.job_id for hold in site.holds()}) == len(wanted)


@pytest.mark.nightly
def test_dependency_and_begin_time_are_kept(site: Site) -> None:
    """slurmctld looks at the dependencies of held jobs once a minute."""
    first = site.train("alice", "--gandiva", "--gres=gpu:1", steps=60)
    second = site.train("alice", "--gandiva", "--gres=gpu:1", f"--dependency=afterok:{first}", steps=10)
    later = site.train("bob", "--gandiva", "--gres=gpu:1", "--begin=now+8", steps=10)
    never = site.train("bob", "--gandiva", "--gres=gpu:1", f"--dependency=afternotok:{first}", steps=10)
    states = site.wait_ended([first, second, later], 180)
    assert set(states.values()) == {"COMPLETED"}, states
    jobs = {job: site.job(job) for job in (first, second, later)}
    assert jobs[second]["StartTime"] >= jobs[first]["EndTime"]
    assert jobs[later]["StartTime"] >= jobs[later]["EligibleTime"] > jobs[later]["SubmitTime"]
    assert site.state(never) == "PENDING"


@pytest.mark.smoke
def test_srun_and_salloc_take_turns_like_batch_jobs(site: Site) -> None:
    for words, expected in (
        (
            "srun --gandiva --gres=gpu:1 --mem=100M bash -c 'echo $GANDIVA_JOB $CUDA_VISIBLE_DEVICES'",
            ["1", "0"],
        ),
        ("salloc --gandiva --gres=gpu:2 --mem=100M srun bash -c 'echo $CUDA_VISIBLE_DEVICES'", ["0,1"]),
    ):
        done = site.cluster.exec("login", words, user="alice", timeout_seconds=120)
        assert done.stdout.split() == expected


@pytest.mark.parametrize(
    ("minibatches", "suspends"),
    [
        # A slice is over in the middle of a step, mostly.
        pytest.param(100, 1, id="long steps"),
        pytest.param(2, 2, id="often between two", marks=pytest.mark.nightly),
    ],
)
def test_jobs_of_many_steps_take_turns_and_never_share_a_gpu(
    site: Site, minibatches: int, suspends: int
) -> None:
    """A suspend that meets a step being started fails, since this runs on (docs/slurm-facts.md), and is tried
    again later. `site` looks at the end that no two jobs ever had memory on one GPU."""
    site.leave_one_gpu()
    step = f"srun {TRAIN} --steps {minibatches} --minibatch-ms 50 --memory-mb 512"
    command = f"until [ -e ~/$SLURM_JOB_ID.enough ]; do {step} || exit 1; done; echo all"
    users = {site.submit(user, command, "--gandiva", "--gres=gpu:1"): user for user in ("alice", "bob")}

    def turns() -> list[int]:
        return [row["suspends"] for row in site.report() if row["job_id"] in users]

    site.wait("turns to be taken", lambda: len(turns()) == 2 and min(turns()) >= suspends, 240)
    for job, user in users.items():
        site.cluster.exec("login", ["touch", f"/home/{user}/{job}.enough"], user=user)
    with hurried(site):
        assert set(site.wait_ended(users, 120).values()) == {"COMPLETED"}
    assert all("all" in site.output(user, job) for job, user in users.items())
    found = [hold for hold in site.holds() if hold.job_id in users]
    assert len({(hold.node, hold.gpu) for hold in found}) == 1, found


@pytest.mark.smoke
def test_owners_cancel_and_requeue_jobs_that_take_turns(site: Site) -> None:
    """A suspended job that is cancelled is gone. An owner's requeue passes by job_submit: what Slurm would
    start again out of turn is held first, and waits for its turn."""
    site.leave_one_gpu()
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:1", "--requeue", steps=MANY) for _ in range(3)]
    site.wait_on_gpu(*jobs[:2])

    def one_that_is(state: str) -> int:
        """Not always in the middle of a switch."""
        found: list[int] = []

        def some() -> bool:
            found[:] = [job for job, seen in site.states(jobs).items() if seen == state]
            return bool(found)

        site.wait(f"one that is {state}", some)
        return found[0]

    gone, before = one_that_is("SUSPENDED"), site.clock()
    site.cluster.exec("login", ["scancel", str(gone)], user="alice")
    site.wait_ended([gone], KILLED_AGAIN_SECONDS)
    jobs.remove(gone)

    def with_a_turn() -> set[int]:
        return {hold.job_id for hold in site.holds() if hold.start > before}

    site.wait("another turn of each of the others", lambda: set(jobs) <= with_a_turn())
    names = "ls /run/gandiva; cut -s -d' ' -f1 /run/gpustat/*; true"
    site.wait(
        "its control block and GPUs to be nobody's",
        lambda: all(str(gone) not in site.cluster.exec(node, names).stdout.split() for node in site.nodes),
    )

    requeued = one_that_is("RUNNING")
    site.cluster.exec("login", ["scontrol", "requeue", str(requeued)], user="alice")

    def its_turn() -> bool:
        # Slurm's pause after a requeue holds for jobs with turns too; its owner may end it.
        site.cluster.exec(
            "login", ["scontrol", "update", f"jobid={requeued}", "starttime=now"], user="alice", check=False
        )
        return site.job(requeued)["Restarts"] == "1" and site.state(requeued) == "RUNNING"

    site.wait("its turn", its_turn)
    with hurried(site):
        ended = site.wait_ended(jobs, 120)
    assert set(ended.values()) == {"COMPLETED"}, ended
    assert site.job(requeued)["Restarts"] == "1"
