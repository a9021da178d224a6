# SPDX-License-Identifier: GPL-2.0-or-later
"""What Slurm users are used to, with Gandiva jobs: arrays, dependencies, srun, salloc, scancel, …"""

from __future__ import annotations

import pytest

from tests.live.support import KILLED_AGAIN_SECONDS, TRAIN, Site

pytestmark = pytest.mark.live


def assert_taking_turns(site: Site, jobs: list[int]) -> None:
    """Else the test shows nothing: one GPU for all of them, and at least one was taken off it."""
    found = [hold for hold in site.holds() if hold.job_id in jobs]
    assert len({(hold.node, hold.gpu) for hold in found}) == 1, found
    suspends = {row["job_id"]: row["suspends"] for row in site.report() if row["job_id"] in jobs}
    assert sum(suspends.values()) >= 1, suspends


@pytest.mark.smoke
def test_array_tasks_are_jobs_of_their_own_and_the_limit_holds(site: Site) -> None:
    command = f"{TRAIN} --steps 40 --minibatch-ms 50 --memory-mb 512"
    array = site.submit("alice", command, "--gandiva", "--gres=gpu:1", "--array=0-5%2")
    most = 0
    tasks: set[str] = set()

    def ended() -> bool:
        nonlocal most
        lines = site.cluster.exec("ctl", ["squeue", "-h", "-r", "-t", "all", "-o", "%F %K %T"]).stdout
        states = {
            task: state
            for job, task, state in (line.split() for line in lines.splitlines())
            if job == str(array)
        }
        tasks.update(states)
        most = max(most, sum(state in ("RUNNING", "SUSPENDED") for state in states.values()))
        return len(states) == 6 and set(states.values()) == {"COMPLETED"}

    site.wait("six completed tasks", ended, 90)
    assert tasks == {"0", "1", "2", "3", "4", "5"}
    assert most == 2, "the array's limit is two at a time, and two fit"


def test_a_list_of_tasks_that_slurm_shortens_is_started_task_by_task(site: Site) -> None:
    """Slurm's clients cut a list of tasks at 64 bytes. Bound as one job, all would start on one GPU."""
    wanted = [1, 103, 206, 308, *(n + n % 2 for n in range(410, 1000, 41))]
    numbers = ",".join(str(n) for n in wanted)
    assert len(numbers) > 64
    command = f"{TRAIN} --steps 10 --minibatch-ms 50 --memory-mb 512"
    array = site.submit("alice", command, "--gandiva", "--gres=gpu:1", f"--array={numbers}")

    def states() -> dict[int, str]:
        lines = site.cluster.exec("ctl", ["squeue", "-h", "-r", "-t", "all", "-o", "%F %K %T"]).stdout
        rows = [line.split() for line in lines.splitlines()]
        return {int(task): state for job, task, state in rows if job == str(array) and task.isdigit()}

    site.wait(
        "all tasks completed",
        lambda: sorted(states()) == sorted(wanted) and set(states().values()) == {"COMPLETED"},
        120,
    )
    # (That no two had memory on one GPU is seen after every test.)
    assert len({hold.job_id for hold in site.holds()}) == len(wanted)


def test_dependency_and_begin_time_are_kept(site: Site) -> None:
    first = site.train("alice", "--gandiva", "--gres=gpu:1", steps=60)
    second = site.train("alice", "--gandiva", "--gres=gpu:1", f"--dependency=afterok:{first}", steps=10)
    later = site.train("bob", "--gandiva", "--gres=gpu:1", "--begin=now+8", steps=10)
    never = site.train("bob", "--gandiva", "--gres=gpu:1", f"--dependency=afternotok:{first}", steps=10)
    states = site.wait_ended([first, second, later], 90)
    assert set(states.values()) == {"COMPLETED"}, states
    jobs = {job: site.job(job) for job in (first, second, later)}
    assert jobs[second]["StartTime"] >= jobs[first]["EndTime"]
    assert jobs[later]["StartTime"] >= jobs[later]["EligibleTime"] > jobs[later]["SubmitTime"]
    assert site.state(never) == "PENDING"


def test_suspended_time_does_not_count_as_run_time(site: Site) -> None:
    site.leave_one_gpu()
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:1", "--time=10", steps=240) for _ in range(2)]
    site.wait_on_gpu(*jobs)
    assert set(site.wait_ended(jobs, 180).values()) == {"COMPLETED"}
    rows = {row["job_id"]: row for row in site.report()}
    for job in jobs:
        shown = site.job(job)
        hours, minutes, seconds = map(int, shown["RunTime"].split(":"))
        slurm_seconds = hours * 3600 + minutes * 60 + seconds
        # Slurm counts from its resume to its suspend, the report what lies between the switches.
        switching = sum(done.seconds for done in site.operations() if done.job_id == job)
        assert -4 <= slurm_seconds - rows[job]["run_seconds"] <= 4 + switching
        assert rows[job]["suspended_seconds"] > 4 + switching, "more than what the two may differ by"


@pytest.mark.smoke
def test_srun_and_salloc_take_turns_like_batch_jobs(site: Site) -> None:
    done = site.cluster.exec(
        "login",
        [
            "srun",
            "--gandiva",
            "--gres=gpu:1",
            "--mem=100M",
            "bash",
            "-c",
            "echo $GANDIVA_JOB $CUDA_VISIBLE_DEVICES",
        ],
        user="alice",
        timeout_seconds=60,
    )
    assert done.stdout.split() == ["1", "0"]
    done = site.cluster.exec(
        "login",
        [
            "salloc",
            "--gandiva",
            "--gres=gpu:2",
            "--mem=100M",
            "srun",
            "bash",
            "-c",
            "echo $CUDA_VISIBLE_DEVICES",
        ],
        user="alice",
        timeout_seconds=60,
    )
    assert done.stdout.split() == ["0,1"]


def test_steps_one_after_the_other_survive_being_suspended_between_them(site: Site) -> None:
    site.leave_one_gpu()
    # A slice is over in the middle of a step: a suspend that meets a step being started fails, and with short
    # steps the job is over before the next try.
    step = f"srun {TRAIN} --steps 100 --minibatch-ms 50 --memory-mb 512"
    jobs = [
        site.submit(user, f"{step} && {step} && echo both", "--gandiva", "--gres=gpu:1")
        for user in ("alice", "bob")
    ]
    assert set(site.wait_ended(jobs, 120).values()) == {"COMPLETED"}
    for user, job in zip(("alice", "bob"), jobs, strict=True):
        assert "both" in site.output(user, job)
    assert_taking_turns(site, jobs)


def test_jobs_that_are_often_between_two_steps_never_share_a_gpu(site: Site) -> None:
    """A step that is being started when its job is suspended runs on (docs/slurm-facts.md): `site` looks at
    the end that no two jobs ever had memory on one GPU."""
    site.leave_one_gpu()
    step = f"srun {TRAIN} --steps 2 --minibatch-ms 50 --memory-mb 512"
    # A suspend that meets a step being started fails and is tried again later, so the jobs go on until turns
    # were taken.
    command = f"until [ -e ~/$SLURM_JOB_ID.enough ]; do {step} || exit 1; done; echo all"
    jobs = [site.submit(user, command, "--gandiva", "--gres=gpu:1") for user in ("alice", "bob")]

    def turns() -> dict[int, int]:
        return {row["job_id"]: row["suspends"] for row in site.report() if row["job_id"] in jobs}

    site.wait("turns to be taken", lambda: len(turns()) == 2 and min(turns().values()) >= 2, 240)
    for user, job in zip(("alice", "bob"), jobs, strict=True):
        site.cluster.exec("login", ["touch", f"/home/{user}/{job}.enough"], user=user)
    assert set(site.wait_ended(jobs, 120).values()) == {"COMPLETED"}
    for user, job in zip(("alice", "bob"), jobs, strict=True):
        assert "all" in site.output(user, job)
    assert_taking_turns(site, jobs)


@pytest.mark.smoke
def test_cancelled_while_suspended_or_queued_it_is_gone(site: Site) -> None:
    site.leave_one_gpu()
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:1") for _ in range(3)]
    site.wait_on_gpu(*jobs[:2])
    site.wait("one suspended", lambda: "SUSPENDED" in site.states(jobs).values())
    states = site.states(jobs)
    suspended = [job for job, state in states.items() if state == "SUSPENDED"]
    site.cluster.exec("login", ["scancel", *map(str, suspended)], user="alice")
    site.wait_ended(suspended, KILLED_AGAIN_SECONDS)
    left = [job for job in jobs if job not in suspended]

    def on_gpu_seconds() -> float:
        return sum(h.seconds for h in site.holds() if h.job_id in left)

    before = on_gpu_seconds()
    site.wait("the others to go on", lambda: on_gpu_seconds() > before + 4)

    def blocks() -> set[str]:
        listed = [site.cluster.exec(node, ["ls", "/run/gandiva"]).stdout.split() for node in site.nodes]
        return {name for names in listed for name in names}

    site.wait("its control block to go", lambda: not {str(job) for job in suspended} & blocks())


def test_owner_cannot_jump_the_queue(site: Site) -> None:
    """A GPU is free and no controller is there: nothing but the hold keeps the job from it."""
    site.leave_one_gpu()
    site.cluster.stop_controller()
    waiting = site.train("bob", "--gandiva", "--gres=gpu:1", steps=20)
    # It drops a hold of their own, never that of Gandiva (docs/plugin.md).
    for change in (
        ["release", str(waiting)],
        ["update", f"jobid={waiting}", "priority=1000"],
        ["update", f"jobid={waiting}", "gres=gpu:1", "nodelist=n2"],
        ["update", f"jobid={waiting}", "nice=-100"],
        ["top", str(waiting)],
        ["release", str(waiting)],
    ):
        site.cluster.exec("login", ["scontrol", *change], user="bob", check=False)
        assert site.job(waiting)["Priority"] == "0", change
    # Submitted later, started at once: the GPU was free all the time, and Slurm gives it away.
    ordinary = site.submit("bob", "sleep 600", "--no-gandiva", "--gres=gpu:1", "-w", "n2")
    site.wait_state(ordinary, "RUNNING", timeout_seconds=30)
    site.cluster.exec("login", ["scancel", str(ordinary)], user="bob")
    site.wait_ended([ordinary])
    assert site.state(waiting) == "PENDING"
    site.start_controller()
    assert site.wait_ended([waiting], 60)[waiting] == "COMPLETED", "the controller lets it start"


def test_owner_files_tell_whose_gpu_it_is(site: Site) -> None:
    """/run/gpustat/<uuid>, which dashboards read to map a GPU to its job."""
    job = site.train("alice", "--gandiva", "--gres=gpu:2", "-w", "n1", gpus=2)
    site.wait_on_gpu(job)
    listing = site.cluster.exec("n1", "cd /run/gpustat && grep -H . * || true").stdout
    owners = [line for line in listing.splitlines() if f":{job} " in line]
    assert len(owners) == 2, listing
    site.cluster.exec("login", ["scancel", str(job)], user="alice")
    site.wait_ended([job])
    site.wait(
        "empty owner files",
        lambda: f":{job} " not in site.cluster.exec("n1", "cd /run/gpustat && grep -H . * || true").stdout,
        20,
    )


def test_requeued_by_its_owner_it_waits_for_its_turn_again(site: Site) -> None:
    """An owner's requeue passes by job_submit: what Slurm would start again out of turn is held first."""
    site.leave_one_gpu()
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:1", "--requeue", steps=120) for _ in range(2)]
    site.wait_on_gpu(*jobs)
    running: list[int] = []

    def one_runs() -> bool:
        """Not so in the middle of a switch."""
        running[:] = [job for job, state in site.states(jobs).items() if state == "RUNNING"]
        return bool(running)

    site.wait("one that runs", one_runs)
    site.cluster.exec("login", ["scontrol", "requeue", str(running[0])], user="alice")
    states = site.wait_ended(jobs, 120)
    assert set(states.values()) == {"COMPLETED"}, states
    assert int(site.job(running[0])["Restarts"]) == 1
