# SPDX-License-Identifier: GPL-2.0-or-later
"""What the controller makes of Slurm's jobs and nodes, whatever adapter read them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cluster.port import JobState
from controller.cluster.records import (
    array_rooms,
    array_tasks,
    host_names,
    shares_record,
    slurm_job,
    slurm_node,
)
from controller.cluster.replies import any_jobs, gandiva_jobs, nodes
from controller.errors import ClusterUnavailable
from controller.model import GpuId, JobId, Reason, reason_of
from tests.unit.cluster.factories import job_record, node_record, running_record

NOW = 2000.0


def test_the_pyslurm_workers_load_no_more_than_they_need() -> None:
    code = "import sys, controller.cluster.pyslurm_worker; print('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"


def test_a_bound_job_that_runs() -> None:
    job = slurm_job(running_record("gres/shard:a100_1:1,gres/shard:a100_3:1", "n[1-2]"), now=NOW)
    assert job.binding == {GpuId(node, index) for node in ("n1", "n2") for index in (1, 3)}
    assert not job.exclusive_gpus
    assert job.start_time == 1010


@pytest.mark.parametrize("gres", ["gres/gpu:2", ""])
def test_a_job_that_got_past_the_hold_holds_whole_gpus(gres: str) -> None:
    job = slurm_job(running_record(gres, "n1"), now=NOW)
    assert job.exclusive_gpus
    assert job.binding == frozenset()


def test_a_requeued_job_that_completes_still_holds_its_gpus() -> None:
    record = running_record("gres/shard:a100_1:1", "n1", state=("PENDING", "COMPLETING"), priority=0)
    job = slurm_job(record, now=NOW)
    assert job.state is JobState.COMPLETING
    assert job.binding == {GpuId("n1", 1)}


def test_a_bound_job_that_waits_holds_nothing() -> None:
    job = slurm_job(job_record(gres="gres/shard:a100_1:1"), now=NOW)
    assert job.binding == frozenset()


def test_an_unknown_state_counts_as_holding_its_gpus(caplog: pytest.LogCaptureFixture) -> None:
    job = slurm_job(running_record("gres/shard:a100_1:1", "n1", state=("MYSTERY",)), now=NOW)
    assert job.state is JobState.COMPLETING
    assert job.binding == {GpuId("n1", 1)}
    assert "MYSTERY" in caplog.text


@pytest.mark.parametrize(
    ("changes", "eligible"),
    [
        ({}, True),
        ({"dependency": "afterok:3(unfulfilled)"}, False),
        ({"begin_time": 3000}, False),
        ({"begin_time": 1500}, True),
        ({"begin_time": 3000, "reason": "job requeued in held state", "submit_time": 2900}, True),
        ({"array_tasks": "0-3%2"}, False),
        ({"array_tasks": "1,3,5,7,9,11,1..."}, False),
        ({"array_tasks": "5,...%1"}, False),
        ({"array_tasks": "what?"}, False),
        ({"array_tasks": "4"}, True),
        ({"state": ("RUNNING",)}, False),
    ],
)
def test_eligible(changes: dict[str, object], eligible: bool) -> None:
    assert slurm_job(job_record(**changes), now=NOW).eligible is eligible


@pytest.mark.parametrize(
    ("changes", "room", "words"),
    [
        ({}, True, ""),
        (
            {"dependency": "afterok:3(unfulfilled)", "begin_time": 3000},
            True,
            "waits for other jobs: afterok:3(",
        ),
        ({"dependency": "afterok:3," * 9999}, True, "waits for other jobs: afterok:3,"),
        ({"begin_time": 86_400 * 366}, True, "not to begin before 197"),
        ({"begin_time": 4_102_444_800}, True, "held by its user (scontrol hold, sbatch --hold)"),
        ({"reason": "JobHeldAdmin"}, True, "held by an operator (scontrol hold)"),
        ({"reason": "MaxRequeue"}, True, "held by Slurm (MaxRequeue)"),
        ({"array_limit": 2}, False, "waits for its array's limit: 2 tasks at a time (%2)"),
        ({"array_limit": 1}, False, "waits for its array's limit: 1 task at a time (%1)"),
        ({"array_tasks": "4-9%2", "array_limit": 2}, False, "waits for its array's limit: 2 tasks"),
        ({"array_tasks": "64-999"}, True, "waits for tasks of its array that come before it"),
        ({"state": ("RUNNING",)}, True, ""),
    ],
)
def test_what_keeps_a_job_from_starting(changes: dict[str, object], room: bool, words: str) -> None:
    said = slurm_job(job_record(**changes), now=NOW, array_room=room).obstacle
    assert said.startswith(words) and bool(said) is bool(words) and len(said) < 250


def test_a_running_job_is_not_held_even_with_priority_zero() -> None:
    record = running_record("gres/shard:a100_1:1", "n1", state=("SUSPENDED",), priority=0)
    job = slurm_job(record, now=NOW)
    assert not job.held and not job.user_hold


@pytest.mark.parametrize(
    ("state", "priority", "held"),
    [
        ("SUSPENDED", 0, True),
        ("RUNNING", 0, True),  # held while it runs; with suspend.mode = "node" it may be off its GPUs
        ("RUNNING", 1, False),  # what is left of a hold that a resume has made void
    ],
)
def test_an_operators_hold_of_a_job_with_an_allocation(state: str, priority: int, held: bool) -> None:
    fields = {"state": (state,), "priority": priority, "reason": "JobHeldAdmin"}
    job = slurm_job(running_record("gres/shard:a100_1:1", "n1", **fields), now=NOW)
    assert job.user_hold is held and bool(job.obstacle) is held and not job.held
    assert (reason_of(job.obstacle) is Reason.HELD) is held
    assert "scontrol release" in job.obstacle or not held


def test_killed_by_a_signal() -> None:
    record = running_record("", "n1", state=("FAILED",), exit_signal=9, end_time=1500)
    job = slurm_job(record, now=NOW)
    assert (job.exit_code, job.end_time, job.state_name) == (137, 1500, "FAILED")


@pytest.mark.parametrize(
    ("fields", "deadline_at", "duration_seconds"),
    [
        ({"deadline": 9000, "time_limit_minutes": 30}, 9000.0, 1800.0),
        ({"deadline": 9000}, 9000.0, None),
        ({"time_limit_minutes": 30}, None, None),
    ],
)
def test_a_job_with_a_deadline_needs_its_time_limit(
    fields: dict[str, int], deadline_at: float | None, duration_seconds: float | None
) -> None:
    job = slurm_job(job_record(**fields), now=NOW)
    assert (job.deadline_at, job.duration_seconds) == (deadline_at, duration_seconds)


def test_cores_per_node_round_up() -> None:
    assert slurm_job(running_record("gres/shard:a100_1:1", "n[1-2]", cpus=5), now=NOW).cpus_per_node == 3
    assert slurm_job(job_record(cpus=4, min_nodes=2), now=NOW).cpus_per_node == 2


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[1-3,07],login", ("n1", "n2", "n3", "n07", "login")),
        ("n1,n1,n[1-2]", ("n1", "n2")),
        ("n[1-,n2", ("n[1-", "n2")),
        ("a b;$(x)", ("a b;$(x)",)),
    ],
)
def test_host_lists_of_users(expression: str, names: tuple[str, ...]) -> None:
    assert host_names(expression) == names


@given(st.text(max_size=60))
def test_no_host_list_raises(expression: str) -> None:
    assert isinstance(host_names(expression), tuple)


def test_task_numbers() -> None:
    assert array_tasks(job_record(array_tasks="0-3,7,10-20:5")) == (0, 1, 2, 3, 7, 10, 15, 20)
    assert array_tasks(job_record(array_tasks="0-2%1")) == (0, 1, 2)
    assert array_tasks(job_record(array_tasks="0-...")) == ()
    # Slurm shows 64 bytes of a list; the number in front of the dots may be a part of one.
    assert array_tasks(job_record(array_tasks="1,3-5,1...%2")) == (1, 3, 4, 5)


def test_no_more_task_numbers_than_asked_for_and_the_lowest_first() -> None:
    array = job_record(array_tasks="1-9:2,2,20-4000000%5")
    assert array_tasks(array, 4) == (1, 2, 3, 5)
    assert array_tasks(array, 0) == ()


def test_what_a_record_stands_for_is_told_without_listing_its_tasks() -> None:
    """An array may have millions of tasks, and this is asked several times a look. (These would not fit into
    any memory.)"""
    array = job_record(array_job_id=7, array_tasks="0-9999999999999999,7%2")
    assert shares_record(array)
    assert array_tasks(array, 3) == (0, 1, 2)
    assert shares_record(job_record(array_job_id=7, array_tasks="0-" + "9" * 100))


def test_only_records_of_several_tasks_are_shared() -> None:
    assert shares_record(job_record(array_job_id=7, array_tasks="0-1"))
    assert not shares_record(job_record(array_job_id=7, array_tasks="4"))
    assert not shares_record(job_record(array_job_id=7, array_task_id=0))
    assert not shares_record(job_record())


@pytest.mark.parametrize("tasks", ["1,3,5,7,1...", "5,...", "0-...", "what?"])
def test_a_list_of_tasks_that_is_cut_short_is_of_several(tasks: str) -> None:
    """Taken for one task the record would be bound and released, and all its tasks start on its GPUs."""
    assert shares_record(job_record(array_job_id=7, array_tasks=tasks))
    assert not shares_record(job_record(array_job_id=7, array_task_id=3, array_tasks=tasks))


def test_an_array_limit_leaves_room_for_the_lowest_tasks() -> None:
    task = job_record(array_job_id=7, array_limit=2)
    records = [
        task._replace(id=7, array_task_id=3),
        task._replace(id=8, array_task_id=0, state=("SUSPENDED",), priority=0),
        task._replace(id=9, array_task_id=1),
        task._replace(id=10, array_task_id=2),
        task._replace(id=11, array_task_id=4, state=("COMPLETED",)),
    ]
    assert array_rooms(records) == {9: True, 10: False, 7: False}


def test_a_released_task_takes_its_place_before_it_runs() -> None:
    task = job_record(array_job_id=7, array_limit=1)
    records = [task._replace(id=8, array_task_id=0, priority=10), task._replace(id=9, array_task_id=1)]
    assert array_rooms(records) == {9: False}


def test_arrays_without_a_limit_have_room() -> None:
    assert array_rooms([job_record(array_job_id=7, array_task_id=1)]) == {}


def test_a_node_without_sensible_gres_has_no_gpus(caplog: pytest.LogCaptureFixture) -> None:
    node = slurm_node(node_record("n1", gres="gpu:a:b:c"), {})
    assert node.gpus == ()
    assert "n1" in caplog.text


def test_whole_gpus_with_and_without_a_known_job() -> None:
    used = "gpu:a100_0:1(IDX:0),gpu:a100_2:1(IDX:2)"
    node = slurm_node(node_record("n1", gres_used=used), {GpuId("n1", 2): JobId(5), GpuId("n2", 1): JobId(5)})
    assert node.ordinary_gpus == {0: None, 2: 5}


def test_a_node_without_an_address_is_reached_by_its_name() -> None:
    assert slurm_node(node_record("n1", address=""), {}).address == "n1"


@pytest.mark.parametrize("reply", ["", "{", "[]", "{}", '{"jobs": {}}', '{"jobs": [1]}', '{"nodes": null}'])
def test_replies_that_make_no_sense(reply: str) -> None:
    for parse in (gandiva_jobs, any_jobs, nodes):
        with pytest.raises(ClusterUnavailable, match="reading"):
            parse(reply, "reading")
