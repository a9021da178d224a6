# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs and nodes as any adapter reads them from Slurm. Standard library only: the pyslurm workers load it."""

import re
from typing import NamedTuple

PREFIX = "gandiva:"
"""What `admin_comment` starts with in our jobs, and in no others: users cannot write it."""

TRIAL_PREFIX = "gandiva-trial:"
"""What the word starts with by which a user says in a job's comment what it is to its search."""
_MAX_COMMENT = 4096
_TRIAL_WORD = re.compile(rf"(?:^|[\s;])({TRIAL_PREFIX}[a-z0-9.,=]{{0,64}})(?=$|[\s;])")


def trial_word(comment: str) -> str:
    """The first such word in a job's comment, unread; empty where there is none. Users put what they like
    into comments: the rest does not count, nor does what lies behind 4,096 characters."""
    found = _TRIAL_WORD.search(comment[:_MAX_COMMENT]) if TRIAL_PREFIX in comment else None
    return found.group(1) if found else ""


class JobRecord(NamedTuple):
    """A job as Slurm says it, in plain types. Times are seconds since the epoch, 0: not set."""

    id: int
    uid: int
    user: str
    name: str
    account: str
    partition: str
    qos: str
    state: tuple[str, ...]
    """Base state and flags, or just the one word that slurmctld would show."""
    reason: str
    priority: int
    dependency: str
    """Not yet fulfilled dependencies."""
    begin_time: int
    submit_time: int
    start_time: int
    end_time: int
    request: str
    """`admin_comment`."""
    gres: str
    """GRES asked for per node (`tres_per_node`)."""
    nodes: str
    """Allocated nodes, a host list."""
    excluded_nodes: str
    min_nodes: int
    max_nodes: int
    """0: no limit."""
    cpus: int
    memory_per_node_mib: int
    restarts: int
    exit_code: int
    exit_signal: int
    array_job_id: int
    """0: not part of an array."""
    array_task_id: int
    """-1: none, or the record of all tasks that are still pending."""
    array_tasks: str
    """Tasks that share this record, such as `0-5,9`; empty for a single task."""
    array_limit: int
    """How many tasks of the array may run at once; 0: any."""
    trial: str = ""
    """The word in its comment that says what it is to its search."""
    deadline: int = 0
    """`--deadline`: it is to have ended then."""
    time_limit_minutes: int = 0
    """0: none."""
    may_requeue: bool = True
    """Not `--no-requeue`; its owner may change that at any time."""


class NodeRecord(NamedTuple):
    """A node as Slurm says it, in plain types."""

    name: str
    address: str
    state: tuple[str, ...]
    reason: str
    gres: str
    """Configured."""
    gres_used: str
    """Empty where the adapter does not know."""
    cpus: int
    """Those that jobs can get."""
    memory_mib: int
    """What jobs can get, in all."""
    memory_allocated_mib: int
    features: tuple[str, ...]
    release: str = ""
    """Of its slurmd; empty where the adapter does not know."""
