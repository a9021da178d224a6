# SPDX-License-Identifier: GPL-2.0-or-later
"""The job_submit module: GPU requests in all their spellings, as slurmctld 26.05 shows them to Lua."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.slurm_plugin.standin import Slurmctld

PUBLIC = Path(__file__).parents[2] / "public"
ON = {"gandiva": "(null)"}
BATCH: dict[str, Any] = {"script": "#!/bin/sh\n"}


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        # --gres and --gpus-per-node
        ({"tres_per_node": "gres/gpu:2"}, (2, 1, None)),
        ({"tres_per_node": "gres/gpu"}, (1, 1, None)),
        ({"tres_per_node": "gpu:3"}, (3, 1, None)),
        ({"tres_per_node": "gres:gpu:3"}, (3, 1, None)),
        ({"tres_per_node": "gres/gpu=2"}, (2, 1, None)),
        ({"tres_per_node": "gres/gpu:a100:2"}, (2, 1, None)),
        ({"tres_per_node": "gres/gpu:a100=2"}, (2, 1, None)),
        ({"tres_per_node": "gres/gpu:a100"}, (1, 1, None)),
        ({"tres_per_node": "gres/gpu:a100:1,gres/gpu:a100:2"}, (3, 1, None)),
        ({"tres_per_node": "gres/gpu:2", "min_nodes": 2, "max_nodes": 2}, (2, 2, None)),
        ({"tres_per_node": "gres/gpu:2", "min_nodes": 1, "max_nodes": 4}, (2, 1, None)),
        ({"tres_per_node": "gres/gpu:2", "min_nodes": 2}, (2, 2, None)),
        ({"tres_per_node": "gres/gpu:2", "num_tasks": 4, "ntasks_per_node": 2}, (2, 2, None)),
        ({"tres_per_node": "gres/gpu:2", "num_tasks": 8}, (2, 1, None)),
        ({"tres_per_node": "gres/gpu:2,gres/gpu:0"}, (2, 1, None)),
        # --gpus
        ({"tres_per_job": "gres/gpu:4"}, (None, None, 4)),
        ({"tres_per_job": "gres/gpu:a100:8"}, (None, None, 8)),
        ({"tres_per_job": "gres/gpu:4", "min_nodes": 2, "max_nodes": 2}, (2, 2, None)),
        ({"tres_per_job": "gres/gpu:4", "min_nodes": 1, "max_nodes": 1}, (4, 1, None)),
        ({"tres_per_job": "gres/gpu:4", "tres_per_node": "gres/gpu:2"}, (2, 2, None)),
        ({"tres_per_job": "gres/gpu:4", "num_tasks": 4, "ntasks_per_node": 2}, (2, 2, None)),
        # --gpus-per-task
        ({"tres_per_task": "gres/gpu=1", "num_tasks": 4}, (4, 1, None)),
        ({"tres_per_task": "gres/gpu:1", "num_tasks": 4, "min_nodes": 2, "max_nodes": 2}, (2, 2, None)),
        ({"tres_per_task": "gres/gpu:2", "num_tasks": 4, "ntasks_per_node": 2}, (4, 2, None)),
        ({"tres_per_task": "gres/gpu:1", "ntasks_per_node": 2, "min_nodes": 2, "max_nodes": 2}, (2, 2, None)),
        ({"tres_per_task": "cpu:2,gres/gpu:a100:1", "num_tasks": 2}, (2, 1, None)),
        # both amounts per GPU settle on one node
        ({"tres_per_job": "gres/gpu:2", "cpus_per_tres": "gres/gpu:4"}, (2, 1, None)),
        ({"tres_per_job": "gres/gpu:2", "mem_per_tres": "gres/gpu:1024"}, (2, 1, None)),
    ],
)
def test_accepted(slurmctld: Slurmctld, job: Mapping[str, Any], expected: tuple[int | None, ...]) -> None:
    answer = slurmctld.submit(ON, **BATCH, **job)
    assert answer.rc == 0 and not answer.raised and answer.said == []
    per_node, nodes, gpus = expected
    request = answer.request
    assert (request["gpus_per_node"], request["nodes"], request.get("gpus")) == (per_node, nodes, gpus)
    assert answer.fields["priority"] == 0
    # One spelling is left, so that binding the job leaves nothing behind that contradicts it.
    assert answer.fields["tres_per_node"] == f"gres/gpu:{min(per_node or gpus or 0, 4)}"
    assert answer.fields["tres_per_job"] == "" and answer.fields["tres_per_socket"] == ""
    assert "gpu" not in answer.fields["tres_per_task"]
    if nodes is not None:
        assert answer.fields["min_nodes"] == answer.fields["max_nodes"] == nodes


GPU2: dict[str, Any] = {"tres_per_node": "gres/gpu:2"}


@pytest.mark.parametrize(
    ("options", "job", "message"),
    [
        (ON, {}, "asks for no GPU"),
        (ON, {"tres_per_node": "gres/gpu:0"}, "asks for no GPU"),
        (ON, {"tres_per_node": "gres/gpu:5"}, "5 GPUs per node: in partition gpu a node has 4 at most"),
        (ON, {"tres_per_node": "gres/gpu:1k"}, "1024 GPUs per node"),
        (ON, {"tres_per_node": "gres/gpu:1x"}, "unknown GPU type 1x"),
        (ON, {"tres_per_node": "gres/gpu:a100=x"}, "expected gpu:N or gpu:MODEL:N"),
        (ON, {"tres_per_node": "gres/gpu:-1"}, "unknown GPU type -1|expected gpu:N"),
        (ON, {"tres_per_node": "gres/gpu:99999999999999"}, "expected gpu:N"),
        (ON, {"tres_per_node": "gres/gpu:999999999P"}, "expected gpu:N"),
        (ON, {"tres_per_node": "gres/gpu:a100:999999999P"}, "expected gpu:N"),
        (ON, {"tres_per_node": "gres/gpu:v100:1"}, "unknown GPU type v100: this cluster has a100, h100"),
        (ON, {"tres_per_node": "gres/gpu:h100:1"}, "with GPUs of type h100 has 0 at most"),
        (ON, {"tres_per_node": "gres/gpu:a100_2:1"}, "names one GPU"),
        (ON, {"tres_per_node": "gres/gpu:a100:1,gres/gpu:h100:1", "partition": "both"}, "in one request"),
        (ON, {"tres_per_node": "gres/gpu:2", "min_nodes": 3}, "3 nodes with 2 GPUs each"),
        (ON, {"tres_per_job": "gres/gpu:9"}, "9 GPUs: partition gpu has 8 of one model"),
        pytest.param(
            ON,
            {"tres_per_job": "gres/gpu:5"},
            "a node in partition gpu has 4 at most; ask for --gpus=4 or --gpus=6",
            marks=pytest.mark.public,
        ),
        (ON, {"tres_per_job": "gres/gpu:7"}, "ask for --gpus=6 or --gpus=8"),
        (
            ON,
            {"tres_per_node": "gres/gpu:4", "min_nodes": 3, "partition": "both"},
            "has 2 such nodes of one GPU model",
        ),
        (
            ON,
            {"tres_per_job": "gres/gpu:16", "partition": "both"},
            "16 GPUs: partition both has 8 of one model",
        ),
        (
            ON,
            {"tres_per_job": "gres/gpu:3", "min_nodes": 2, "max_nodes": 2},
            "cannot be spread evenly over 2",
        ),
        (ON, {"tres_per_job": "gres/gpu:4", "tres_per_node": "gres/gpu:3"}, "--gpus=4 contradicts 3"),
        (ON, {"tres_per_job": "gres/gpu:4", **GPU2, "min_nodes": 1}, "--gpus=4 contradicts 2"),
        (ON, {"tres_per_job": "gres/gpu:8", "cpus_per_tres": "gres/gpu:1"}, "--cpus-per-gpu needs --nodes"),
        (ON, {"tres_per_socket": "gres/gpu:1", "sockets_per_node": 2}, "not tied to sockets"),
        (ON, {"tres_per_task": "gres/gpu:1"}, "--gpus-per-task needs --ntasks"),
        (ON, {"tres_per_task": "gres/gpu:1", "num_tasks": 3, "min_nodes": 2}, "evenly over 2 nodes"),
        (ON, {"tres_per_task": "gres/gpu:1", "num_tasks": 2, **GPU2}, "give one of them"),
        (ON, {**GPU2, "ntasks_per_tres": 2}, "--ntasks-per-gpu"),
        (ON, {"tres_per_node": "gres/shard:2"}, "shards are Gandiva's to give"),
        (ON, {"tres_per_node": "gres/gpu:1,gres/mps:50"}, "shards are Gandiva's to give"),
        (ON, {"tres_per_node": "gres/gpu:1,gres/nic:1"}, "no GRES but GPUs"),
        (ON, {**GPU2, "cpus_per_tres": "gres/gpu:1", "num_tasks": 4}, "2 CPUs cannot be shared evenly by 4"),
        (ON, {**GPU2, "cpus_per_tres": "gres/gpu:1", "cpus_per_task": 1}, "give one of them"),
        (ON, {**GPU2, "cpus_per_tres": "gres/shard:1"}, "expected a number for each GPU"),
        (ON, {**GPU2, "mem_per_tres": "gres/gpu:1024", "pn_min_memory": 100}, "give one of them"),
        (ON, {**GPU2, "pn_min_memory": 0}, "--mem=0"),
        (ON, {**GPU2, "shared": 0}, "--exclusive keeps whole nodes"),
        (ON, {**GPU2, "shared": 2}, "--exclusive=user"),
        (ON, {**GPU2, "shared": 3}, "--exclusive=user and =mcs"),
        (ON, {**GPU2, "het_job_offset": 0}, "heterogeneous"),
        (ON, {**GPU2, "het_job_offset": 0, "cron_job": True}, "a job of scrontab"),
        (ON, {**GPU2, "bitflags": 2**45 + 2**10}, "--requeue=expedite"),
        (ON, {**GPU2, "immediate": 1}, "--immediate"),
        (ON, {**GPU2, "reservation": "r"}, "--reservation"),
        (ON, {**GPU2, "features": "fat"}, "--constraint=fat"),
        (ON, {**GPU2, "features": "gandiva_v100"}, "--constraint=gandiva_v100"),
        (ON, {**GPU2, "req_nodes": 'n1"}'}, "--nodelist="),
        (ON, {**GPU2, "priority": 0, "begin_time": 2000000000}, "--hold with --begin"),
        (ON, {**GPU2, "partition": "cpu"}, "a node has 0 at most"),
        ({"gandiva_gpus": "3-4"}, GPU2, "--gandiva-gpus=3-4 does not contain the 2 GPUs"),
        ({"gandiva_gpus": "1-1"}, GPU2, "does not contain"),
        ({"gandiva_suspend": "transparent"}, GPU2, "with one GPU only"),
        ({"gandiva_suspend": "requeue"}, {**GPU2, "requeue": 0}, "--no-requeue forbids"),
        ({"gandiva_migrate": "yes"}, {**GPU2, "requeue": 0}, "--no-requeue forbids"),
        (
            {"gandiva_gpu_types": "h100"},
            {"tres_per_node": "gres/gpu:a100:1"},
            "contradicts --gandiva-gpu-types=h100",
        ),
        (
            {"gandiva_gpu_types": "h100"},
            {**GPU2, "features": "gandiva_a100"},
            "contradicts --gandiva-gpu-types",
        ),
    ],
)
def test_refused_with_one_message_and_nothing_changed(
    slurmctld: Slurmctld, options: Mapping[str, str], job: Mapping[str, Any], message: str
) -> None:
    answer = slurmctld.submit(options, **BATCH, **job)
    assert answer.rc != 0 and not answer.raised
    assert len(answer.said) == 1
    assert answer.said[0].startswith("gandiva: ") and any(
        part in answer.said[0] for part in message.split("|")
    )
    assert answer.fields == {}
    assert answer.logged == []


def test_the_record_is_the_documented_one_byte_for_byte(slurmctld: Slurmctld) -> None:
    assert slurmctld.submit(ON, **BATCH, **GPU2).fields["admin_comment"] == (
        'gandiva:{"v":1,"gpus_per_node":2,"nodes":1,"weight":1,"min_gpus":null,"max_gpus":null,"pack":null,'
        '"migrate":null,"suspend":null,"gpu_types":[],"model":null,"site":{}}'
    )
    flags = {
        "gandiva_weight": "02.50",
        "gandiva_gpus": "1-4",
        "gandiva_pack": "yes",
        "gandiva_migrate": "no",
        "gandiva_suspend": "cooperative",
        "gandiva_gpu_types": "h100,a100",
        "gandiva_model": "resnet-50",
        "gandiva_search": "lr",
    }
    job: dict[str, Any] = {"tres_per_job": "gres/gpu:4", "req_nodes": "n[1-2]", "partition": "both"}
    assert slurmctld.submit(flags, **BATCH, **job).fields["admin_comment"] == (
        'gandiva:{"v":1,"gpus":4,"gpus_per_node":null,"nodes":null,"weight":2.5,"min_gpus":1,"max_gpus":4,'
        '"pack":true,"migrate":false,"suspend":"cooperative","gpu_types":["h100","a100"],"model":"resnet-50",'
        '"search":"lr","nodelist":"n[1-2]","site":{}}'
    )


def test_the_longest_request_fits(slurmctld: Slurmctld) -> None:
    answer = slurmctld.submit(
        {"gandiva_model": "m" * 64, "gandiva_search": "s" * 64}, **BATCH, **GPU2, req_nodes="n" * 256
    )
    assert answer.rc == 0
    assert len(answer.fields["admin_comment"]) <= 1024


def test_what_counts_gpus_is_said_in_tasks_and_nodes(slurmctld: Slurmctld) -> None:
    answer = slurmctld.submit(
        ON,
        **BATCH,
        **GPU2,
        min_nodes=2,
        num_tasks=4,
        cpus_per_tres="gres/gpu:4",
        mem_per_tres="gres/gpu:1024",
    )
    assert answer.rc == 0
    assert answer.fields["cpus_per_tres"] == answer.fields["mem_per_tres"] == ""
    assert answer.fields["cpus_per_task"] == 4  # 4 CPUs * 2 GPUs * 2 nodes / 4 tasks
    assert answer.fields["min_cpus"] == 16
    assert answer.fields["min_mem_per_node"] == 2048


def test_a_model_in_the_request_becomes_a_gpu_type(slurmctld: Slurmctld) -> None:
    jobs: list[dict[str, Any]] = [{"tres_per_job": "gres/gpu:a100:1"}, {**GPU2, "features": "gandiva_a100"}]
    for job in jobs:
        answer = slurmctld.submit(ON, **BATCH, **job)
        assert answer.request["gpu_types"] == ["a100"]


def test_binding_tasks_to_gpus_is_dropped(slurmctld: Slurmctld) -> None:
    answer = slurmctld.submit(
        ON, **BATCH, tres_per_task="cpu:2,gres/gpu:1", num_tasks=2, tres_bind="gres/gpu:per_task:1"
    )
    assert answer.fields["tres_bind"] == ""
    assert answer.fields["tres_per_task"] == "cpu:2"


def test_a_users_hold_is_a_begin_time(slurmctld: Slurmctld) -> None:
    answer = slurmctld.submit(ON, **BATCH, **GPU2, priority=0)
    assert answer.fields["begin_time"] == 4102444800
    assert "begin_time" not in slurmctld.submit(ON, **BATCH, **GPU2).fields
    begun = slurmctld.submit(ON, **BATCH, **GPU2, begin_time=2000000000)
    assert begun.rc == 0 and "begin_time" not in begun.fields


def test_what_slurm_users_expect_is_left_alone(slurmctld: Slurmctld) -> None:
    answer = slurmctld.submit(
        ON,
        **BATCH,
        **GPU2,
        array_inx="0-9%2",
        dependency="afterok:5",
        time_limit=60,
        exc_nodes="n2",
        requeue=0,
    )
    assert answer.rc == 0
    assert not {"array_inx", "dependency", "time_limit", "exc_nodes", "requeue"} & set(answer.fields)


@pytest.mark.public
def test_the_public_script_that_replaces_pythonpath_is_told(slurmctld: Slurmctld) -> None:
    answer = slurmctld.submit(ON, **GPU2, script=(PUBLIC / "pythonpath.sbatch").read_text())
    assert answer.rc == 0 and any("$PYTHONPATH" in said for said in answer.said)


def test_only_batch_jobs_can_be_started_again(slurmctld: Slurmctld) -> None:
    for options in ({"gandiva_suspend": "requeue"}, {"gandiva_migrate": "yes"}):
        answer = slurmctld.submit(options, **GPU2)
        assert answer.rc != 0 and "only a batch job (sbatch)" in answer.said[0]
    assert slurmctld.submit(ON, **GPU2).rc == 0


def test_srun_takes_gres_only(slurmctld: Slurmctld) -> None:
    srun = ["GANDIVA_CLIENT=srun", "_SLURM_SPANK_OPTION_gandiva_gandiva=(null)"]
    assert slurmctld.submit(srun, **GPU2).rc == 0
    answer = slurmctld.submit(srun, tres_per_job="gres/gpu:1")
    assert answer.rc != 0 and "--gres=gpu:N only" in answer.said[0]


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("export PYTHONPATH=/home/alice/lib", True),
        ("  export FOO=1 PYTHONPATH=", True),
        ("PYTHONPATH=. python train.py", True),
        ("setenv PYTHONPATH /home/alice/lib", True),
        ("unset PYTHONPATH", True),
        ("export PYTHONPATH=/home/alice/lib:$PYTHONPATH", False),
        ('export PYTHONPATH="lib${PYTHONPATH:+:$PYTHONPATH}"', False),
        ("# export PYTHONPATH=/home/alice/lib", False),
        ("export MY_PYTHONPATH=/home/alice/lib", False),
        ("echo $PYTHONPATH", False),
    ],
)
def test_a_script_that_replaces_pythonpath_is_told(slurmctld: Slurmctld, line: str, hint: bool) -> None:
    answer = slurmctld.submit(ON, **GPU2, script=f"#!/bin/bash\ncd work\n{line}\npython train.py\n")
    assert answer.rc == 0
    assert any("export PYTHONPATH=" in said and "$PYTHONPATH" in said for said in answer.said) is hint
    ordinary = slurmctld.submit({}, **GPU2, script=f"#!/bin/bash\n{line}\n")
    assert ordinary.said == []
    driven = slurmctld.submit({"gandiva_suspend": "transparent"}, tres_per_node="gres/gpu:1", script=line)
    assert driven.rc == 0 and driven.said == []
