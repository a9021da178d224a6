# SPDX-License-Identifier: GPL-2.0-or-later
"""The history: complete, in order, and able to tell when two jobs were on one GPU at once."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.mock_gpu.bench import CONTEXT, EXAMPLES, GIB, MIB, Node, wait_until


def test_one_job_after_the_other_is_no_overlap(node: Node) -> None:
    for job_id in (1, 2):
        worker = node.worker(job=job_id)
        worker.ask("alloc", 0, GIB)
        worker.kill()  # found dead only when the next one comes
    assert node.overlaps() == []
    assert node.run("overlaps", check=False).returncode == 0
    jobs = [(event["job_id"], event["event"]) for event in node.history()]
    assert jobs == [(j, e) for j in (1, 2) for e in ("context-create", "alloc", "reap")]


def test_two_jobs_at_once_are_an_overlap(node: Node) -> None:
    before_ns = time.time_ns()
    one, other = node.worker(job=1), node.worker(job=2)
    one.ask("alloc", 0, GIB)
    node.worker(job=3, device=1)  # on another GPU
    other.ask("destroy", 0)
    other.ask("context", 0)
    (first, second) = node.overlaps()
    assert (first["gpu"], first["job_ids"], first["peak_bytes"]) == (0, [1, 2], [CONTEXT + GIB, CONTEXT])
    assert before_ns < first["start_ns"] < first["end_ns"] < second["start_ns"] < time.time_ns()
    assert second["end_ns"] is None  # still so
    one.kill()
    other.kill()
    assert node.overlaps()[1]["end_ns"] is not None
    assert len(node.overlaps("--since", str(second["start_ns"]))) == 1
    # Contexts that stay while a job is suspended can be left out.
    assert node.overlaps("--min-bytes", "400MiB") == []
    told = node.run("overlaps", check=False)
    assert told.returncode == 1
    assert "GPU 0: job 1 (1424 MiB) and job 2 (400 MiB)" in told.stdout


def test_a_process_of_no_job_counts_by_itself(node: Node) -> None:
    alone, job, other = node.worker(), node.worker(job=1), node.worker()
    found = [(o["job_ids"], o["pids_of_no_job"]) for o in node.overlaps()]
    assert found == [([0, 1], [alone.pid, 0]), ([0, 0], [alone.pid, other.pid]), ([1, 0], [0, other.pid])]
    told = node.run("overlaps", check=False).stdout
    assert f"GPU 0: process {alone.pid} of no job (400 MiB) and job 1 (400 MiB)" in told
    job.kill()


@pytest.fixture
def control_group() -> Iterator[Path]:
    """One as Slurm makes it for job 77."""
    made: list[Path] = []
    for mount in (Path("/sys/fs/cgroup/freezer"), Path("/sys/fs/cgroup")):
        if mount == Path("/sys/fs/cgroup") and not (mount / "cgroup.procs").exists():
            continue
        with contextlib.suppress(OSError):
            folder = mount
            for name in (f"slurm_mock{os.getpid()}", "uid_0", "job_77", "step_0"):
                folder /= name
                folder.mkdir()
                made.insert(0, folder)
            break
    if len(made) < 4:
        for folder in made:
            folder.rmdir()
        pytest.skip("no control group can be made here")
    yield made[0]
    for folder in made:
        wait_until(lambda folder=folder: not (folder / "cgroup.procs").read_text())  # type: ignore[misc]
        folder.rmdir()


def test_the_environment_does_not_tell_the_job(bare_node: Node, control_group: Path) -> None:
    """A job that gives itself another's number, or none, is still seen beside that other."""
    node = bare_node.init("--jobs", "slurm")
    node.worker(job=5).ask("alloc", 0, GIB)  # outside of all jobs, whatever it says
    liar = node.bare_worker(job=5)
    (control_group / "cgroup.procs").write_text(f"{liar.pid}\n")
    liar.ask("init")
    liar.ask("context", 0)
    (found,) = node.overlaps()
    assert found["job_ids"] == [0, 77]
    assert {event["job_id"] for event in node.history()} == {0, 77}
    liar.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be Slurm's process")
def test_without_control_groups_slurms_own_process_tells_the_job(bare_node: Node, tmp_path: Path) -> None:
    node = bare_node.init("--jobs", "slurm")
    shell = tmp_path / "slurmstepd"
    shutil.copy("/bin/sh", shell)
    body = f"import sys; sys.path.insert(0, {str(EXAMPLES)!r}); import mockcuda; mockcuda.init(); " + (
        "mockcuda.Context(0); print('there', flush=True); input()"
    )
    step = subprocess.Popen(
        ["slurmstepd: [78.batch]", "-c", f'{sys.executable} -c "{body}"; true'],
        executable=shell,
        env=node.environ(SLURM_JOB_ID="5"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert step.stdout is not None and step.stdin is not None
    assert step.stdout.readline() == "there\n"
    assert [event["job_id"] for event in node.history()] == [78]
    step.communicate("\n")


def test_two_processes_of_one_job_are_no_overlap(node: Node) -> None:
    node.worker(job=1)
    node.worker(job=1)
    assert node.overlaps() == []


def test_a_checkpointed_job_gives_way(node: Node) -> None:
    one, agent = node.worker(job=1), node.bare_worker()
    agent.ask("lock", one.pid, 1000)
    agent.ask("checkpoint", one.pid)
    other = node.worker(job=2)
    other.finish()
    agent.ask("restore", one.pid)
    agent.ask("unlock", one.pid)
    assert node.overlaps() == []
    node.worker(job=2)
    assert len(node.overlaps()) == 1


def test_a_cleared_history_begins_with_what_is_held(node: Node) -> None:
    one = node.worker(job=1)
    one.ask("alloc", 0, GIB)
    node.run("clear-history")
    (held,) = node.history()
    assert (held["event"], held["job_id"], held["held_bytes"]) == ("held", 1, CONTEXT + GIB)
    node.worker(job=2)
    assert [overlap["job_ids"] for overlap in node.overlaps()] == [[1, 2]]


def test_busy_time_is_kept_in_sums(node: Node) -> None:
    worker = node.worker(job=1)
    began = time.monotonic()
    for _ in range(300):
        worker.ask("spin", 0, 200, 50)
    worker.ask("sync", 0)
    worker.ask("destroy", 0)
    seconds = time.monotonic() - began
    busy = [event for event in node.history("--job", "1") if event["event"] == "busy"]
    assert len(busy) <= 2 + seconds  # one a second: a job's kernels are too many to be noted one by one
    assert sum(event["busy_ns"] for event in busy) >= 59_000_000


def test_whatever_happens_to_the_processes_the_history_adds_up(bare_node: Node) -> None:
    node = bare_node.init("--context-memory", "50MiB")
    chance = random.Random(1)
    workers = [node.worker(job=1 + i, device=i % 2) for i in range(4)]
    for round_number in range(60):
        i = chance.randrange(len(workers))
        for _ in range(8):  # many changes under way, and then a signal into the middle of them
            workers[i].send("alloc", 0, chance.choice([1000, 3 * MIB, 100 * MIB]))
        if chance.random() < 0.2:
            workers[i].kill()
            workers[i] = node.worker(job=100 + round_number, device=chance.randrange(2))
        else:
            workers[i].signal(signal.SIGSTOP)
            node.used()  # a stopped process holds nobody up
            workers[i].signal(signal.SIGCONT)
            for _ in range(8):
                workers[i].answer()
    for worker in workers:
        worker.kill()
    state = node.show()
    assert [gpu["used_bytes"] for gpu in state["gpus"]] == [0, 0]
    assert state["history"]["dropped"] == 0
    held: dict[tuple[int, int], int] = {}
    used = [0, 0]
    last_ns = 0
    for number, event in enumerate(node.history()):
        assert event["sequence"] == number
        assert event["time_ns"] > last_ns
        last_ns = event["time_ns"]
        if event["event"] == "busy":
            continue
        key = (event["process"], event["gpu"])
        held[key] = held.get(key, 0) + event["change_bytes"]
        used[event["gpu"]] += event["change_bytes"]
        assert event["held_bytes"] == held[key]
        assert event["gpu_used_bytes"] == used[event["gpu"]]
    assert used == [0, 0]


def test_memory_is_free_as_soon_as_the_process_has_ended(node: Node) -> None:
    worker = node.worker(job=1)
    worker.finish()
    wait_until(lambda: node.used() == 0)
    assert node.history()[-1]["event"] == "exit"
