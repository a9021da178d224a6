# SPDX-License-Identifier: GPL-2.0-or-later
"""The job_submit module: ordinary jobs, time-slicing by default, changes of jobs, broken installations."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.unit.slurm_plugin.standin import Slurmctld

GPU2: dict[str, Any] = {"script": "#!/bin/sh\n", "tres_per_node": "gres/gpu:2"}
EITHER: list[dict[str, str]] = [{}, {"no_gandiva": "(null)"}]
NO_VAL = 0xFFFFFFFE
INFINITE = 0xFFFFFFFF


@pytest.mark.parametrize(
    "job",
    [
        {},
        {"tres_per_node": "gres/gpu:2"},
        {"tres_per_job": "gres/gpu:99"},
        {"tres_per_node": "gres/gpu:a100_1:1"},
        {"tres_per_node": "gres/nic:2", "features": "fat"},
        {"tres_per_node": "gres/shard:0"},
        {"tres_per_task": "cpu:2,mem:1G,license/matlab:1", "shared": 0, "priority": 0},
    ],
)
def test_ordinary_jobs_are_left_alone(slurmctld: Slurmctld, job: Mapping[str, Any]) -> None:
    for options in EITHER:
        answer = slurmctld.submit(options, **job)
        assert (answer.rc, answer.said, answer.fields) == (0, [], {})


@pytest.mark.parametrize(
    ("job", "changes"),
    [
        ({"tres_per_node": "gres/gpu:a100:2"}, {"tres_per_node": "gres/gpu:2"}),
        ({"tres_per_node": "gres/gpu:a100"}, {"tres_per_node": "gres/gpu:1"}),
        ({"tres_per_job": "gres/gpu:a100:2"}, {"tres_per_job": "gres/gpu:2"}),
        ({"tres_per_socket": "gres/gpu:a100:1"}, {"tres_per_socket": "gres/gpu:1"}),
        ({"tres_per_task": "cpu:2,gres/gpu:a100:1"}, {"tres_per_task": "cpu:2,gres/gpu:1"}),
        ({"tres_per_node": "gres/nic:1,gres/gpu:a100:2"}, {"tres_per_node": "gres/nic:1,gres/gpu:2"}),
        (
            {"tres_per_job": "gres/gpu:a100:4", "tres_per_node": "gres/gpu:a100:2"},
            {"tres_per_job": "gres/gpu:4", "tres_per_node": "gres/gpu:2"},
        ),
    ],
)
def test_a_model_becomes_a_feature(
    slurmctld: Slurmctld, job: dict[str, Any], changes: dict[str, Any]
) -> None:
    answer = slurmctld.submit(**job)
    assert answer.rc == 0 and answer.said == []
    assert answer.fields == {**changes, "features": "gandiva_a100"}


@pytest.mark.parametrize(
    ("constraint", "combined"),
    [
        ("fat", "fat&gandiva_a100"),
        ("fat&ssd", "fat&ssd&gandiva_a100"),
        ("fat|ssd", "(fat|ssd)&gandiva_a100"),
        ("gandiva_a100", "gandiva_a100"),
    ],
)
def test_the_users_constraint_stays(slurmctld: Slurmctld, constraint: str, combined: str) -> None:
    answer = slurmctld.submit(tres_per_node="gres/gpu:a100:1", features=constraint)
    assert answer.fields["features"] == combined


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"tres_per_node": "gres/gpu:a100:1", "features": "[a|b]"}, "counts and brackets"),
        ({"tres_per_job": "gres/gpu:a100:1,gres/gpu:h100:1"}, "a job gets one type"),
        ({"tres_per_node": "gres/shard:1"}, "shards belong to time-sliced jobs"),
        ({"tres_per_job": "gres/shard:a100_0:1"}, "shards belong to time-sliced jobs"),
        ({"tres_per_node": "shard"}, "shards belong to time-sliced jobs"),
    ],
)
def test_ordinary_jobs_refused(slurmctld: Slurmctld, job: Mapping[str, Any], message: str) -> None:
    answer = slurmctld.submit(**job)
    assert answer.rc != 0 and answer.fields == {}
    assert len(answer.said) == 1 and message in answer.said[0]


@pytest.mark.parametrize("default", ["off", "on"])
def test_the_controller_may_reserve_shards(make_slurmctld: Callable[..., Slurmctld], default: str) -> None:
    site = make_slurmctld(default=default)
    shards: dict[str, Any] = {"tres_per_node": "gres/shard:a100_0:1", "name": "gandiva-reservation-7"}
    answer = site.submit(uid=997, **shards)
    assert (answer.rc, answer.fields, answer.said) == (0, {}, [])
    assert site.submit({"gandiva": ""}, uid=997, **shards).rc != 0
    assert site.submit(**shards).rc != 0, "no user may"
    assert site.submit(uid=997, **{**shards, "name": "test"}).rc != 0, "nothing else may be in a shard"


def test_srun_with_a_type(slurmctld: Slurmctld) -> None:
    srun = ["GANDIVA_CLIENT=srun"]
    assert slurmctld.submit(srun, tres_per_node="gres/gpu:a100:1").rc == 0
    answer = slurmctld.submit(srun, tres_per_job="gres/gpu:a100:1")
    assert answer.rc != 0 and "--gres=gpu:a100:N only" in answer.said[0]


def test_what_srun_inherits_has_no_type_either(slurmctld: Slurmctld) -> None:
    environment = {
        "SLURM_GPUS": "a100:2",
        "SLURM_TRES_PER_TASK": "cpu:2,gres/gpu:a100:1",
        "SLURM_GPUS_PER_NODE": "3",
        "A": "a100:2",
    }
    answer = slurmctld.submit(tres_per_job="gres/gpu:a100:2", environment=environment)
    assert answer.environment == {
        "SLURM_GPUS": "2",
        "SLURM_TRES_PER_TASK": "cpu:2,gres/gpu:1",
        "SLURM_GPUS_PER_NODE": "3",
        "A": "a100:2",
    }


# --- time-slicing by default ------------------------------------------------


def test_default_on(make_slurmctld: Callable[..., Slurmctld]) -> None:
    site = make_slurmctld(default="on", partitions=["gpu"])
    assert site.submit(**GPU2).request["gpus_per_node"] == 2
    assert site.submit({"no_gandiva": "(null)"}, **GPU2).fields == {}
    assert site.submit(script="#!/bin/sh\n").fields == {}
    assert site.submit(**GPU2, partition="both").fields == {}
    refused = site.submit({"gandiva": ""}, **GPU2, partition="both")
    assert refused.rc != 0 and "partition both has no time-slicing: use gpu" in refused.said[0]


def test_a_job_of_scrontab_is_ordinary_and_the_reason_is_true(
    make_slurmctld: Callable[..., Slurmctld],
) -> None:
    """Slurm's request for it has het_job_offset 0."""
    answer = make_slurmctld(default="on").submit(**GPU2, cron_job=True, het_job_offset=0)
    assert answer.rc == 0 and answer.fields == {}
    assert len(answer.said) == 1 and "not time-sliced" in answer.said[0] and "scrontab" in answer.said[0]


def test_default_on_does_not_refuse_what_cannot_be_time_sliced(
    make_slurmctld: Callable[..., Slurmctld],
) -> None:
    site = make_slurmctld(default="on")
    answer = site.submit(script="#!/bin/sh\n", tres_per_node="gres/gpu:a100:2", shared=0)
    assert answer.rc == 0
    assert answer.fields == {"tres_per_node": "gres/gpu:2", "features": "gandiva_a100"}
    assert len(answer.said) == 1 and "not time-sliced" in answer.said[0] and "--exclusive" in answer.said[0]
    assert site.submit(tres_per_node="gres/shard:1").rc != 0


# --- changes of jobs ---------------------------------------------------------

OURS = {"admin_comment": 'gandiva:{"v":1}', "tres_per_node": "gres/gpu:2"}


@pytest.mark.parametrize(
    "change",
    [
        {"tres_per_node": "gres/gpu:1"},
        {"tres_per_job": "gres/gpu:1"},
        {"tres_per_node": "gres/shard:a100_0:1"},
        {"req_nodes": "n1"},
        {"features": "fat"},
        {"min_nodes": 2},
        {"max_nodes": 2},
        {"shared": 0},
        {"bitflags": 2**45},  # requeue=expedite
        {"reservation": "r"},
        {"priority": 100},
        # Emptied, between binding and start: it would start on GPUs that nobody made free.
        {"req_nodes": ""},
        {"tres_per_node": ""},
        {"features": ""},
        {"reservation": ""},
    ],
)
def test_owners_cannot_loosen_the_binding(slurmctld: Slurmctld, change: Mapping[str, Any]) -> None:
    answer = slurmctld.modify(OURS, **change)
    assert answer.rc == 2002 and answer.fields == {}
    assert len(answer.said) == 1 and answer.said[0].startswith("gandiva: ")
    for uid in (0, 64030, 997, 5):
        # Root, SlurmUser, the controller, and an operator (Slurm lets no other stranger through).
        trusted = slurmctld.modify(OURS, uid=uid, **change)
        assert (trusted.rc, trusted.fields, trusted.said) == (0, {}, [])


@pytest.mark.parametrize(
    ("item", "flag"),
    [('"suspend":"requeue"', "--gandiva-suspend=requeue"), ('"migrate":true', "--gandiva-migrate=yes")],
)
def test_an_owner_cannot_forbid_the_requeue_that_was_asked_for(
    slurmctld: Slurmctld, item: str, flag: str
) -> None:
    record = {**OURS, "admin_comment": f'gandiva:{{"v":1,{item}}}'}
    answer = slurmctld.modify(record, requeue=0)
    assert answer.rc == 2002 and answer.fields == {}
    assert f"requeue=0 contradicts {flag}" in answer.said[0]
    assert slurmctld.modify(record, requeue=1).rc == 0
    assert slurmctld.modify(OURS, requeue=0).rc == 0


def test_owners_may_change_what_does_not_matter(slurmctld: Slurmctld) -> None:
    answer = slurmctld.modify(
        OURS, time_limit=5, comment="x", dependency="afterok:1", name="n", exc_nodes="n1"
    )
    assert (answer.rc, answer.fields) == (0, {})


def test_an_owners_hold_is_a_begin_time_and_release_undoes_it(slurmctld: Slurmctld) -> None:
    held = slurmctld.modify(OURS, priority=0)
    assert held.rc == 0 and held.fields == {"begin_time": 4102444800, "priority": NO_VAL}
    before = int(time.time())
    released = slurmctld.modify(OURS, priority=INFINITE)
    assert released.rc == 0 and released.fields["priority"] == NO_VAL
    # time(2), which Lua reads, may be some milliseconds behind.
    assert before - 1 <= released.fields["begin_time"] <= time.time()


def test_slurm_itself_releases_what_it_may_hold_after_a_failed_run(slurmctld: Slurmctld) -> None:
    before = int(time.time())
    released = slurmctld.modify({**OURS, "restart_cnt": 1}, priority=INFINITE)
    assert released.rc == 0 and released.fields.keys() == {"begin_time"}
    assert before + 59 <= released.fields["begin_time"] <= time.time() + 60


@pytest.mark.parametrize("state", [1, 2])
def test_running_jobs_are_neither_held_nor_released(slurmctld: Slurmctld, state: int) -> None:
    answer = slurmctld.modify({**OURS, "job_state": state}, priority=0)
    assert answer.rc != 0 and "only a waiting job can be held" in answer.said[0]
    released = slurmctld.modify({**OURS, "job_state": state}, priority=INFINITE)
    assert released.rc == 0 and released.fields == {"priority": NO_VAL}


def test_changes_of_ordinary_jobs(slurmctld: Slurmctld) -> None:
    record = {"features": "fat&gandiva_h100"}
    answer = slurmctld.modify(record, tres_per_node="gres/gpu:a100:1")
    assert answer.fields == {"tres_per_node": "gres/gpu:1", "features": "fat&gandiva_a100"}
    assert slurmctld.modify(record, tres_per_node="gres/shard:1").rc != 0
    assert slurmctld.modify(record, priority=0).fields == {}


# --- installations that are not right ----------------------------------------


@pytest.mark.parametrize(
    "settings",
    [{"version": 2}, {"default": "maybe"}, {"max_weight": "a lot"}, {"models": "a100"}, {"trusted_users": 7}],
)
def test_wrong_settings_do_not_stop_ordinary_jobs(
    make_slurmctld: Callable[..., Slurmctld], settings: Mapping[str, Any]
) -> None:
    site = make_slurmctld(**settings)
    key = next(iter(settings))
    assert len(site.loading) == 1 and f"gandiva_settings.lua: {key}: expected" in site.loading[0]
    assert site.submit(**GPU2).rc == 0
    refused = site.submit({"gandiva": ""}, **GPU2)
    assert refused.rc != 0 and "tell the administrator" in refused.said[0]
    assert site.modify({}, priority=0).rc == 0
    assert site.modify(OURS, priority=INFINITE).rc != 0


def test_an_unknown_user_in_the_settings_is_told(make_slurmctld: Callable[..., Slurmctld]) -> None:
    site = make_slurmctld(trusted_users=["root", "no-such-user-here"])
    assert site.loading == [
        "error: gandiva: settings: user no-such-user-here is not in /etc/passwd here: give the number"
    ]
    assert site.submit({"gandiva": ""}, **GPU2).rc == 0


@pytest.mark.parametrize("name", ["tres_per_node", "admin_comment"])
def test_a_fault_inside_refuses_our_jobs_and_lets_others_pass(slurmctld: Slurmctld, name: str) -> None:
    ordinary = slurmctld.submit(**GPU2, explode=name)
    assert (ordinary.raised, ordinary.rc, ordinary.said) == (False, 0, [])
    assert any("internal error in job_submit" in line for line in ordinary.logged)
    ours = slurmctld.submit({"gandiva": ""}, **GPU2, explode=name)
    assert not ours.raised and ours.rc != 0 and "internal error" in ours.said[0]
