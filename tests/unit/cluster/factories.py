# SPDX-License-Identifier: GPL-2.0-or-later
"""Records as an adapter would read them, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

from controller.cluster.partitions import Partition
from controller.cluster.raw import JobRecord, NodeRecord

REQUEST = 'gandiva:{"v":1,"gpus_per_node":2,"nodes":1,"weight":1,"site":{}}'

_JOB = JobRecord(
    id=7,
    uid=1001,
    user="alice",
    name="train",
    account="users",
    partition="gpu",
    qos="normal",
    state=("PENDING",),
    reason="JobHeldUser",
    priority=0,
    dependency="",
    begin_time=0,
    submit_time=1000,
    start_time=0,
    end_time=0,
    request=REQUEST,
    gres="gres/gpu:2",
    nodes="",
    excluded_nodes="",
    min_nodes=1,
    max_nodes=1,
    cpus=1,
    memory_per_node_mib=100,
    restarts=0,
    exit_code=0,
    exit_signal=0,
    array_job_id=0,
    array_task_id=-1,
    array_tasks="",
    array_limit=0,
)

_NODE = NodeRecord(
    name="n1",
    address="10.0.0.1",
    state=("IDLE",),
    reason="",
    gres=",".join([f"gpu:a100_{i}:1" for i in range(4)] + [f"shard:a100_{i}:16" for i in range(4)]),
    gres_used="",
    cpus=16,
    memory_mib=8192,
    memory_allocated_mib=0,
    features=("gandiva_a100",),
)


PARTITIONS = (Partition("gpu", ("n1", "n2"), "", by_option=False),)


def job_record(**fields: Any) -> JobRecord:
    """A waiting job for two GPUs, with some fields changed."""
    return _JOB._replace(**fields)


def running_record(gres: str, nodes: str, **fields: Any) -> JobRecord:
    """A job that runs on these."""
    changed = {"state": ("RUNNING",), "priority": 100, "start_time": 1010, "gres": gres, "nodes": nodes}
    return _JOB._replace(**{**changed, **fields})


def node_record(name: str, **fields: Any) -> NodeRecord:
    """A node with four GPUs, with some fields changed."""
    return _NODE._replace(**{"name": name, **fields})
