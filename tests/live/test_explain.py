# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva explain` and the commands around it, asked about real jobs of a real Slurm."""

from __future__ import annotations

import csv
import json
import re
import signal

import pytest

from tests.live.support import QUICK, Site

pytestmark = pytest.mark.live


def explain(site: Site, job: object, user: str = "alice") -> str:
    """What it says, with its line breaks taken out."""
    done = site.cluster.exec("login", ["gandiva", "explain", str(job)], user=user, check=False)
    return " ".join((done.stdout + done.stderr).split())


def told(site: Site, job: object, *words: str) -> None:
    """Wait until the explanation has all these words (the controller looks at jobs in cycles of its loop)."""
    said = ""

    def all_there() -> bool:
        nonlocal said
        said = explain(site, job)
        return all(word in said for word in words)

    try:
        site.wait(f"{words} about job {job}", all_there, 60)
    except AssertionError:
        pytest.fail(f"{words} not in: {said}\n{site.queue()}\n{site.log_tail()}")


def test_jobs_that_share_wait_are_held_or_are_not_ours(site: Site) -> None:
    site.leave_one_gpu()
    ordinary = site.submitted[0]
    first = site.train("alice", "--gandiva", "--gres=gpu:1", "--job-name=first")
    site.wait_on_gpu(first)
    second = site.train("bob", "--gandiva", "--gres=gpu:1", "--job-name=second")
    site.wait_on_gpu(second)
    told(site, first, f"Job {first} (first, alice) is suspended and waits for its turn",
         "next nothing: it goes on by itself", "On its GPUs now", f"{second} second bob")  # fmt: skip
    told(site, first, "is on its GPUs", "why its turn")

    large = site.train("alice", "--gandiva", "--gres=gpu:4", "--job-name=large")
    told(site, large, "waits in the queue", "why no node", "next nothing: it starts when there is room")
    held = site.train("alice", "--gandiva", "--gres=gpu:1", "--hold")
    told(site, held, "why held by its user", f"next scontrol release {held}")
    after = site.train("alice", "--gandiva", "--gres=gpu:1", f"--dependency=afterok:{first}")
    told(site, after, f"why waits for other jobs: afterok:{first}")
    later = site.train("alice", "--gandiva", "--gres=gpu:1", "--begin=now+1hour")
    told(site, later, "why not to begin before 20")

    array = site.train("alice", "--gandiva", "--gres=gpu:4", "--array=0-2")
    told(site, f"{array}_1", f"task {array}_1 (wrap, alice) waits in the queue")
    told(site, array, *(f"task {array}_{n}" for n in range(3)))

    told(site, ordinary, "is an ordinary Slurm job", "state RUNNING", "submitted without --gandiva")
    told(site, 999_999, "there is no job 999999: neither the controller nor Slurm knows it")
    told(site, f"{first}_7", f"Slurm knows no job {first}_7")
    site.cluster.exec("login", ["scancel", str(large)], user="alice")
    told(site, large, "is over: CANCELLED", "until it ended, without having started")

    replayed_as_recorded(site, first, second)
    in_the_report_page(site, first, second)


def replayed_as_recorded(site: Site, *jobs: int) -> None:
    """A decision that a signal asked for."""

    def recorded() -> list[str]:
        return re.findall(r"decision recorded; .*gandiva replay (\S+)", site.log())

    site.cluster.kill_controller(signal.SIGUSR1)
    site.wait("the record in the log", lambda: bool(recorded()))
    path = recorded()[-1]
    mode = site.cluster.exec("ctl", ["stat", "-c", "%a", path]).stdout.strip()
    assert mode == "600", "job names are in it"
    said = site.cluster.exec("ctl", ["gandiva", "replay", path]).stdout
    assert "The same decision as recorded." in said
    for job in jobs:
        assert re.search(rf"job {job} \(1 GPU\) ((goes on|is left alone) on n2:3|.*: \w+)", said), said
    words = site.cluster.exec("ctl", ["gandiva", "replay", "--json", "--job", str(jobs[0]), path]).stdout
    assert json.loads(words)["as_recorded"] is True


def in_the_report_page(site: Site, *jobs: int) -> None:
    """The times that these had on GPUs, and why they were over."""
    words = ["gandiva", "report", "-a", "-S", "now-1hours", "--html", "r.html"]
    done = site.cluster.exec("login", words, user="alice")
    assert re.search(r"r\.html: \d+ jobs, \d+ times on GPUs", done.stdout)
    page = site.cluster.read_file("login", "/home/alice/r.html")
    (text,) = re.findall(r'id="data">(.*?)</script>', page, re.S)
    data = json.loads(text)
    assert len(data["gpus"]) == 8 and {gpu[2] for gpu in data["gpus"]} == {"a100"}
    known = {job[0]: index for index, job in enumerate(data["jobs"])}
    for job in jobs:
        assert known[str(job)] in data["slices"]["job"]
    assert any("slice over" in reason for reason in data["reasons"])


def test_a_trace_from_this_clusters_accounting_is_simulated(site: Site) -> None:
    begin = ""

    def no_other_job() -> bool:
        """Since a time of the cluster's own clock: this machine may be in another zone."""
        nonlocal begin
        begin = site.cluster.exec("login", ["date", "+%Y-%m-%dT%H:%M:%S"]).stdout.strip()
        return not site.cluster.exec("login", ["sacct", "-a", "-X", "-n", "-S", begin, "-E", "now"]).stdout

    site.wait("jobs of the tests before to be over for the accounting", no_other_job)
    jobs = [site.train("alice", "--gandiva", f"--gres=gpu:{gpus}", steps=20, gpus=gpus) for gpus in (1, 1, 2)]
    assert set(site.wait_ended(jobs).values()) == {"COMPLETED"}
    trace = "/shared/tmp/trace.txt"

    def in_accounting() -> bool:
        command = ["gandiva", "trace", "sacct", "-S", begin, "-E", "now", "-o", trace]
        done = site.cluster.exec("login", command, check=False)
        return done.exit_code == 0 and "3 jobs with GPUs" in done.stderr

    site.wait("three jobs in the accounting", in_accounting, 60)
    text = site.cluster.read_file("login", trace)
    rows = list(csv.DictReader(text.splitlines(), delimiter="|"))
    given = [re.findall(r"gres/gpu=(\d)", row["AllocTRES"]) for row in rows]
    assert given == [["1"], ["1"], ["2"]], "GPUs, not the shards that Slurm gave them"
    assert {row["JobID"] for row in rows} >= {str(job) for job in jobs}
    command = ["gandiva", "simulate", "--trace", trace, "--trace-format", "sacct", "--cluster", "a100:4",
               "--gpus-per-node", "4", "--policy", "fifo", "--json"]  # fmt: skip
    outcome = json.loads(site.cluster.exec("login", command).stdout)
    assert outcome["completed"] == outcome["jobs"] == 3


@pytest.mark.breaks
@pytest.mark.settings(
    suspend={**QUICK["suspend"], "step_deadline_seconds": 2.0, "offload_deadline_seconds": 2.0}
)
def test_jobs_that_failed_cannot_be_suspended_or_are_on_a_lost_node(site: Site) -> None:
    failed = site.submit("bob", "exit 3", "--gandiva", "--gres=gpu:1")
    site.wait_ended([failed])
    told(site, failed, "is over: FAILED", "exit code 3:0", "next see the end of its output")
    site.leave_one_gpu()
    stubborn = site.train("alice", "--gandiva", "--gres=gpu:1", no_step=True)
    site.wait_on_gpu(stubborn)
    site.cluster.exec("n2", ["mockgpu", "inject", "lock-timeout", "--job", str(stubborn)])
    try:
        site.train("bob", "--gandiva", "--gres=gpu:1", steps=10)
        told(
            site,
            stubborn,
            "note could not be suspended since",
            "next call step() of its session",
            "Events",
        )
    finally:
        site.cluster.exec("n2", ["mockgpu", "inject", "--clear"])
    site.cluster.exec("n2", "pkill -x sshd; pkill -x sshd-session; pkill -f '[g]andiva-agent'; true")
    try:
        told(
            site,
            stubborn,
            "is in an unknown state: one of its nodes does not answer",
            "next ask your administrators",
        )
    finally:
        site.cluster.start_services()


@pytest.mark.nightly
def test_a_job_that_moved_says_so(site: Site) -> None:
    """Six jobs on four GPUs float from GPU to GPU."""
    jobs = [site.train("alice", "--gandiva", "--gres=gpu:1", "-w", "n1") for _ in range(6)]
    site.wait_on_gpu(*jobs)
    moved: list[int] = []

    def somebody_moved() -> bool:
        moved[:] = [row["job_id"] for row in site.report() if row["moves"] and row["job_id"] in jobs]
        return bool(moved)

    site.wait("a move", somebody_moved, 90)
    said = explain(site, moved[0])
    assert re.search(r"[1-9]\d* moves?\b", said) and len(set(re.findall(r"n1:[0-3]\b", said))) > 1, said
