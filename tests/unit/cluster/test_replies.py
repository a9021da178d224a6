# SPDX-License-Identifier: GPL-2.0-or-later
"""The command adapter's parsers, on what each Slurm release really answers."""

from __future__ import annotations

import json

import pytest

from controller.cluster.commands import error_of_text
from controller.cluster.port import ClusterJob, JobState
from controller.cluster.records import array_rooms, array_tasks, shares_record, slurm_job, slurm_node
from controller.cluster.replies import any_jobs, gandiva_jobs, nodes
from controller.errors import ClusterRefused, ClusterUnavailable, UnknownJob
from controller.model import GpuId, JobId
from tests.unit.cluster import recordings

pytestmark = pytest.mark.parametrize("release", recordings.RELEASES)

NOW = 1_800_000_000.0
"""After the recordings, before any begin time in them."""


def jobs(release: str) -> dict[str, ClusterJob]:
    records, _ = gandiva_jobs(recordings.text(release, "squeue"), "test")
    return {record.name: slurm_job(record, now=NOW) for record in records}


def gpu(node: str, *ordinals: int) -> frozenset[GpuId]:
    return frozenset(GpuId(node, ordinal) for ordinal in ordinals)


def test_only_gandiva_jobs_are_jobs(release: str) -> None:
    found = jobs(release)
    assert "ordinary" not in found
    assert all(job.request.startswith("gandiva:") for job in found.values())


def test_a_gang_on_two_nodes(release: str) -> None:
    gang = jobs(release)["gang"]
    assert gang.state is JobState.RUNNING
    assert gang.binding == gpu("n1", 2, 3) | gpu("n2", 2, 3)
    assert gang.nodes == ("n1", "n2")
    assert not gang.exclusive_gpus
    assert gang.user == "alice"
    assert gang.account and gang.partition == "gpu" and gang.qos == "normal"
    assert gang.memory_per_node_bytes == 50 * 2**20
    assert gang.start_time is not None and gang.start_time >= gang.submit_time
    assert gang.end_time is None, "the end its time limit would bring is no end"


def test_a_suspended_floating_job(release: str) -> None:
    floating = jobs(release)["floating"]
    assert floating.state is JobState.SUSPENDED
    assert floating.binding == gpu("n1", 2, 3)
    assert not floating.held, "priority 0 is how Slurm keeps it suspended"


def test_a_suspended_job_that_an_operator_holds(release: str) -> None:
    whole = json.loads(recordings.text(release, "squeue"))
    (floating,) = [job for job in whole["jobs"] if job["name"] == "floating"]
    floating["state_reason"] = "JobHeldAdmin"
    records, _ = gandiva_jobs(json.dumps(whole), "test")
    (held,) = [record for record in records if record.name == "floating"]
    assert slurm_job(held, now=NOW).user_hold and not jobs(release)["floating"].user_hold


def test_waiting_jobs(release: str) -> None:
    found = jobs(release)
    eligible = {name: (job.held, job.user_hold, job.eligible) for name, job in found.items()}
    assert eligible["waiting"] == (True, False, True)
    assert eligible["per-job"] == (True, False, True)
    assert eligible["requeued"] == (True, False, True)
    assert eligible["after"] == (True, False, False)
    assert eligible["user-hold"] == (True, True, False)
    assert eligible["later"] == (True, True, False), "the same begin time"
    assert found["after"].obstacle.startswith("waits for other jobs: after")
    assert found["user-hold"].obstacle == found["later"].obstacle != ""
    assert found["requeued"].restart_count == 1
    assert found["waiting"].binding == frozenset()
    assert found["picky"].excluded_nodes == {"n1"}


def test_a_deadline_and_a_time_limit(release: str) -> None:
    """As the release writes both, with other numbers."""
    reply = json.loads(recordings.text(release, "squeue"))
    (waiting,) = (job for job in reply["jobs"] if job["name"] == "waiting")
    assert waiting["deadline"]["number"] == 0 and jobs(release)["waiting"].deadline_at is None
    waiting["deadline"]["number"] = 1_900_000_000
    waiting["time_limit"] = {**waiting["time_limit"], "set": True, "infinite": False, "number": 90}
    records, _ = gandiva_jobs(json.dumps(reply), "test")
    (record,) = (record for record in records if record.name == "waiting")
    assert (record.deadline, record.time_limit_minutes) == (1_900_000_000, 90)


def test_a_failed_job(release: str) -> None:
    failed = jobs(release)["failed"]
    assert failed.state is JobState.ENDED
    assert (failed.state_name, failed.exit_code) == ("FAILED", 3)
    assert failed.end_time is not None
    assert failed.binding == frozenset()


def test_an_array_is_one_record_until_it_is_split(release: str) -> None:
    records, _ = gandiva_jobs(recordings.text(release, "squeue"), "test")
    (array,) = (record for record in records if record.name == "array")
    assert shares_record(array)
    assert array_tasks(array) == (2, 3, 4, 5, 6)
    assert array.array_limit == 2
    assert array.array_job_id == array.id
    assert not jobs(release)["array"].eligible
    assert array_rooms([array]) == {array.id: True}


def test_whole_gpus_and_who_has_them(release: str) -> None:
    records, whole = gandiva_jobs(recordings.text(release, "squeue"), "test")
    ids = {record.id for record in records}
    assert set(whole) == gpu("n2", 0, 1)
    (owner,) = set(whole.values())
    assert owner not in ids
    found = {
        record.name: slurm_node(record, whole) for record in nodes(recordings.text(release, "nodes"), "test")
    }
    assert found["n2"].ordinary_gpus == {0: owner, 1: owner}
    assert found["n1"].ordinary_gpus == {}


def test_whole_gpus_are_known_even_when_their_job_is_not(release: str) -> None:
    found = {
        record.name: slurm_node(record, {}) for record in nodes(recordings.text(release, "nodes"), "test")
    }
    assert found["n2"].ordinary_gpus == {0: None, 1: None}


def test_nodes(release: str) -> None:
    found = {
        record.name: slurm_node(record, {}) for record in nodes(recordings.text(release, "nodes"), "test")
    }
    assert found["n1"].up
    assert not found["n2"].up
    assert found["n2"].reason.startswith("two words")
    assert "DRAIN" in found["n2"].state
    for node in found.values():
        assert [card.index for card in node.gpus] == [0, 1, 2, 3]
        assert {card.model for card in node.gpus} == {"a100"}
        assert node.cpus > 0 and node.memory_bytes > 0
        assert node.address == node.name
        assert "gandiva_a100" in node.features
    # The gang, the suspended job (it keeps its memory); on n2 the ordinary job.
    assert found["n1"].memory_allocated_bytes == 100 * 2**20
    assert found["n2"].memory_allocated_bytes == 100 * 2**20


def test_one_job(release: str) -> None:
    (record,) = any_jobs(recordings.text(release, "job"), "test")
    assert slurm_job(record, now=NOW) == jobs(release)["gang"]
    assert any_jobs(recordings.text(release, "unknown_job"), "test") == ()


KINDS = {
    "unknown-requeue": UnknownJob,
    "unknown-release": UnknownJob,
    "unknown-hold": UnknownJob,
    "unknown-update": UnknownJob,
    "unknown-show": UnknownJob,
    # slurmctld does not answer these: SlurmCluster looks for the job afterwards.
    "unknown-suspend": ClusterUnavailable,
    "unknown-resume": ClusterUnavailable,
    "pending-suspend": ClusterRefused,
    "pending-resume": ClusterRefused,
    "running-resume": ClusterRefused,
    "running-bind": ClusterRefused,
    "ended-suspend": ClusterRefused,
    "ended-release": ClusterRefused,
    "ended-update": ClusterRefused,
    "pending-bad-node": ClusterRefused,
    "pending-bad-gres": ClusterRefused,
    "down-suspend": ClusterUnavailable,
    "down-show": ClusterUnavailable,
}


def test_error_messages(release: str) -> None:
    recorded = recordings.errors(release)
    assert set(recorded) == set(KINDS)
    for situation, said in recorded.items():
        assert said["exit_code"] != 0, f"{situation}: scontrol must say that it failed"
        error = error_of_text(said["stderr"], situation, JobId(1))
        assert type(error) is KINDS[situation], f"{situation}: {error}"


def test_a_field_of_the_wrong_type_is_named(release: str) -> None:
    whole = json.loads(recordings.text(release, "squeue"))
    for job in whole["jobs"]:
        job["restart_cnt"] = "many"
    with pytest.raises(ClusterUnavailable, match="restart_cnt"):
        gandiva_jobs(json.dumps(whole), "reading the jobs")


def test_fields_of_later_releases_are_ignored(release: str) -> None:
    whole = json.loads(recordings.text(release, "squeue"))
    for job in whole["jobs"]:
        job["something_new"] = {"set": True}
    assert gandiva_jobs(json.dumps(whole), "test") == gandiva_jobs(recordings.text(release, "squeue"), "test")


def test_what_slurm_keeps_for_the_system_is_not_for_jobs(release: str) -> None:
    """CoreSpecCount and MemSpecLimit: a job placed on these would not start."""
    answer = json.loads(recordings.text(release, "nodes"))
    answer["nodes"][0] |= {"cpus": 16, "effective_cpus": 14, "real_memory": 8192, "specialized_memory": 1024}
    node = nodes(json.dumps(answer), "test")[0]
    assert (node.cpus, node.memory_mib) == (14, 7168)
