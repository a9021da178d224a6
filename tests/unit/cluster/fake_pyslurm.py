# SPDX-License-Identifier: GPL-2.0-or-later
"""Stands in for pyslurm in the worker process. What it does is in the file `plan` beside it."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__version__ = "0.0"
_FILE = Path(__file__).with_name("plan")
_START: str = json.loads(_FILE.read_text()).get("start", "")

if _START == "exit":
    print("fatal: Could not establish a configuration source", file=sys.stderr, flush=True)
    os._exit(1)
if _START == "raise":
    raise ImportError("libslurm.so.45: cannot open shared object file")


_FIELDS = """
    account admin_comment allocated_nodes allocated_tres array_id array_task_id array_tasks_parallel
    array_tasks_waiting comment deadline dependencies eligible_time end_time excluded_nodes exit_code
    exit_code_signal gres_per_node is_requeueable max_nodes memory_per_cpu partition qos requested_tres
    requeue_count required_nodes start_time state_reason submit_time time_limit
"""
"""All empty, unless a test says otherwise."""


class RPCError(Exception):
    def __init__(self, errno: int, message: str) -> None:
        super().__init__(message)
        self.errno = errno


def _behave(call: str) -> Any:
    """Do what the file says for this call."""
    plan: dict[str, Any] = json.loads(_FILE.read_text())
    with _FILE.with_name("calls").open("a") as calls:
        calls.write(call + "\n")
    step = plan.get(call.split("(")[0], {})
    print("libraries print what they like")
    if "errno" in step:
        raise RPCError(step["errno"], step["message"])
    if "bug" in step:
        raise ValueError(step["bug"])
    if "exit" in step:
        print("free(): invalid pointer", file=sys.stderr, flush=True)
        os._exit(134)
    if "sleep" in step:
        time.sleep(step["sleep"])
    return step


def _record(fields: dict[str, Any]) -> Any:
    """`raises`: fields that cannot be read, as pyslurm's GRES for a request without a number."""

    def unreadable(_record: Any) -> Any:
        raise IndexError("list index out of range")

    raises = fields.pop("raises", ())
    kind = type("Record", (SimpleNamespace,), dict.fromkeys(raises, property(unreadable)))
    return kind(**{name: value for name, value in fields.items() if name not in raises})


def _job(fields: dict[str, Any]) -> Any:
    empty = dict.fromkeys(_FIELDS.split())
    some = {"user_id": 0, "name": "", "state": "PENDING", "priority": 0, "num_nodes": 1, "cpus": 1}
    job = _record({**empty, **some, "memory_per_node": 100, **fields})
    if job.allocated_tres is not None:
        job.allocated_tres = SimpleNamespace(gres=job.allocated_tres)
    return job


class Jobs:
    @staticmethod
    def load() -> Any:
        jobs = [_job(fields) for fields in _behave("Jobs.load")["jobs"]]
        return SimpleNamespace(data={"mini": {job.id: job for job in jobs}})


class Nodes:
    @staticmethod
    def load() -> Any:
        nodes = _behave("Nodes.load").get("nodes", [])
        return SimpleNamespace(data={"mini": {node["name"]: _record(node) for node in nodes}})


class JobSubmitDescription:
    def __init__(self, **fields: Any) -> None:
        self.fields = fields


class Job:
    def __init__(self, job_id: int) -> None:
        self.id = job_id

    @staticmethod
    def load(job_id: int) -> Any:
        return _job(_behave(f"Job.load({job_id})")["job"])

    def modify(self, changes: JobSubmitDescription) -> None:
        _behave(f"modify({self.id}, {json.dumps(changes.fields)})")

    def release(self) -> None:
        _behave(f"release({self.id})")

    def suspend(self) -> None:
        _behave(f"suspend({self.id})")

    def unsuspend(self) -> None:
        _behave(f"unsuspend({self.id})")
