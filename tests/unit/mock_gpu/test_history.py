# SPDX-License-Identifier: GPL-2.0-or-later
"""The history: complete, in order, and able to tell when two jobs were on one GPU at once."""

from __future__ import annotations

import random
import signal
import time

from tests.unit.mock_gpu.bench import CONTEXT, GIB, MIB, Node, wait_until


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
    node.worker(device=0)  # no job at all
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
    assert node.overlaps("--min-bytes", "300MiB") == []
    told = node.run("overlaps", check=False)
    assert told.returncode == 1
    assert "GPU 0: jobs 1 (1324 MiB) and 2 (300 MiB)" in told.stdout


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
    for _ in range(30):
        worker.ask("spin", 0, 2000, 50)
    worker.ask("sync", 0)
    worker.ask("destroy", 0)
    busy = [event for event in node.history("--job", "1") if event["event"] == "busy"]
    assert len(busy) <= 2  # a job's kernels are too many to be noted one by one
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
    wait_until(lambda: node.used() == 0, seconds=1)
    assert node.history()[-1]["event"] == "exit"
