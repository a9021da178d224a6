# SPDX-License-Identifier: GPL-2.0-or-later
"""What the controller makes of the records that any adapter fills in: the port's types. So all adapters mean
the same by `held`, `eligible` or `up`."""

import functools
import heapq
import itertools
import logging
import math
import time
from collections.abc import Iterable, Mapping

from controller.cluster.gres import binding_of, index_ranges, indices_of, node_gpus, parse_gres
from controller.cluster.hostlist import BETWEEN_NAMES, expand
from controller.cluster.port import ALLOCATED, OVER, ClusterJob, ClusterNode, JobState
from controller.cluster.raw import JobRecord, NodeRecord
from controller.cluster.states import (
    POWERED_OFF,
    begin_reached,
    held_by_other,
    job_state,
    node_up,
    powered_off,
    state_name,
)
from controller.model import GpuId, GpuSet, JobId, Reason, Why

log = logging.getLogger(__name__)

_MIB = 2**20
_MOST_CHARS = 200
_CUT_SHORT = "..."
"""Ends a list of array tasks of more than 64 bytes (SLURM_BITSTR_LEN); the number before it may be cut."""


@functools.lru_cache(maxsize=4_096)
def host_names(expression: str) -> tuple[str, ...]:
    """The names in a host list, in order, each once. What does not parse (users write these lists) counts as
    a name that no node has."""
    names: dict[str, None] = {}
    for item in BETWEEN_NAMES.split(expression) if expression else ():
        try:
            names.update(dict.fromkeys(expand(item)))
        except ValueError:
            names[item] = None
    return tuple(names)


def slurm_job(record: JobRecord, *, now: float, array_room: bool = True) -> ClusterJob:
    """The port's view of a job. `array_room`: whether its array's limit lets another task run."""
    state = job_state(record.state)
    if state is None:
        log.warning("job %d is in states %s, unknown here: taken as COMPLETING", record.id, record.state)
        state = JobState.COMPLETING
    allocated = state in ALLOCATED
    nodes = host_names(record.nodes) if allocated or state is JobState.ENDED else ()
    pending = state is JobState.PENDING
    held = pending and record.priority == 0
    begin = float(record.begin_time) if record.begin_time else None
    may_be_held = held or (allocated and record.priority == 0)
    other_hold = held_by_other(record.state, record.reason, begin, waits=pending) if may_be_held else ""
    unmet = _unmet(record, begin, now, array_room) if pending else ""
    return ClusterJob(
        id=JobId(record.id),
        user=record.user,
        uid=record.uid,
        name=record.name,
        account=record.account,
        partition=record.partition,
        qos=record.qos,
        state=state,
        state_name=state_name(record.state),
        reason="" if record.reason == "None" else record.reason,
        held=held,
        user_hold=bool(other_hold),
        eligible=pending and not unmet,
        obstacle=Why(Reason.HELD, other_hold) if other_hold else unmet,
        request=record.request,
        trial=record.trial,
        submit_time=float(record.submit_time),
        # A job cancelled while it waits gets a start time too.
        start_time=float(record.start_time) if record.start_time and nodes else None,
        end_time=float(record.end_time) if record.end_time and state in OVER else None,
        binding=_binding(record, nodes) if allocated else frozenset(),
        exclusive_gpus=allocated and _holds_whole_gpus(record),
        nodes=nodes,
        cpus_per_node=math.ceil(record.cpus / max(len(nodes) or record.min_nodes, 1)),
        memory_per_node_bytes=record.memory_per_node_mib * _MIB,
        restart_count=record.restarts,
        excluded_nodes=frozenset(host_names(record.excluded_nodes)),
        deadline_at=float(record.deadline) if record.deadline else None,
        may_requeue=record.may_requeue,
        duration_seconds=(60.0 * record.time_limit_minutes or None) if record.deadline else None,
        exit_code=128 + record.exit_signal if record.exit_signal else record.exit_code,
    )


def _unmet(record: JobRecord, begin: float | None, now: float, array_room: bool) -> str:
    """What keeps a pending job from being eligible, in words; empty: nothing."""
    if record.dependency:
        return f"waits for other jobs: {record.dependency[:_MOST_CHARS]}"
    if not begin_reached(begin, record.submit_time, record.reason, now):
        return f"not to begin before {time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(begin))}"
    if not array_room:
        limit = record.array_limit
        return (
            f"waits for its array's limit: {limit} {'task' if limit == 1 else 'tasks'} at a time (%{limit})"
        )
    return "waits for tasks of its array that come before it" if shares_record(record) else ""


def _binding(record: JobRecord, nodes: tuple[str, ...]) -> GpuSet:
    """A request for shards of one GPU each cannot be met but by these GPUs, so it says what was allocated."""
    try:
        return binding_of(record.gres, nodes)
    except ValueError as error:
        log.warning("job %d: %s; it counts as having no GPUs: see scontrol show job", record.id, error)
        return frozenset()


def _holds_whole_gpus(record: JobRecord) -> bool:
    """Whether it runs on GRES `gpu`. A request that is not per node (`--gpus`) was never bound."""
    try:
        asked = parse_gres(record.gres)
    except ValueError:
        return True
    return not record.gres or any(item.name == "gpu" and item.count > 0 for item in asked)


def array_tasks(record: JobRecord, limit: int | None = None) -> tuple[int, ...]:
    """The task numbers behind one record, ascending, without the `%limit`; of a list that Slurm has cut short
    those that are still whole. `limit`: no more than so many, the lowest: an array may have millions."""
    try:
        spans = index_ranges(whole_part(record.array_tasks))
    except ValueError as error:
        log.warning("job %d: array tasks %r: %s; they wait", record.id, record.array_tasks, error)
        return ()
    return tuple(itertools.islice(heapq.merge(*spans), limit))


def whole_part(array_tasks: str) -> str:
    """A list of tasks without its limit, and without a number that is cut short."""
    text = array_tasks.partition("%")[0]
    return text.rpartition(",")[0] if text.endswith(_CUT_SHORT) else text


def shares_record(record: JobRecord) -> bool:
    """Whether several array tasks share this record, so that it cannot be bound before they are split. Where
    Slurm does not say all of them, or what it says makes no sense, they are several. (Asked several times a
    look: the tasks are not listed for it.)"""
    if record.array_task_id >= 0 or not record.array_tasks:
        return False
    if _CUT_SHORT in record.array_tasks:
        return True
    try:
        return sum(map(len, index_ranges(whole_part(record.array_tasks)))) != 1
    except (ValueError, OverflowError):  # a range of more than a machine word has no length
        return True


def array_rooms(records: Iterable[JobRecord]) -> Mapping[int, bool]:
    """For each pending, held task of an array with a limit: whether the array may run it now.

    Tasks that are allocated or released take the array's places; the lowest task numbers get the rest.
    """
    taken: dict[int, int] = {}
    waiting: dict[int, list[JobRecord]] = {}
    for record in records:
        if not record.array_job_id or not record.array_limit:
            continue
        state = job_state(record.state)
        if state is JobState.PENDING and record.priority == 0:
            waiting.setdefault(record.array_job_id, []).append(record)
        elif state is not JobState.ENDED:
            taken[record.array_job_id] = taken.get(record.array_job_id, 0) + 1
    rooms: dict[int, bool] = {}
    for array, tasks in waiting.items():
        tasks.sort(key=lambda record: (record.array_task_id < 0, record.array_task_id))
        for place, record in enumerate(tasks, start=taken.get(array, 0)):
            rooms[record.id] = place < record.array_limit
    return rooms


def slurm_node(
    record: NodeRecord, whole_gpu_jobs: Mapping[GpuId, JobId], partitions: Mapping[str, str] | None = None
) -> ClusterNode:
    """The port's view of a node.

    Args:
        whole_gpu_jobs: the GPUs held as GRES `gpu`, with the job that holds each.
        partitions: those that it is in, as in `ClusterNode`.
    """
    try:
        gpus = node_gpus(record.gres)
        used = indices_of("gpu", record.gres_used)
    except ValueError as error:
        log.warning("node %s: %s; its GPUs are not used: gandiva check says more", record.name, error)
        gpus, used = (), frozenset()
    ordinary: dict[int, JobId | None] = dict.fromkeys(sorted(used))
    ordinary.update({gpu.ordinal: job for gpu, job in whole_gpu_jobs.items() if gpu.node == record.name})
    return ClusterNode(
        name=record.name,
        gpus=gpus,
        up=node_up(record.state),
        state="+".join(record.state),
        reason=record.reason or (POWERED_OFF if powered_off(record.state) else ""),
        cpus=record.cpus,
        memory_bytes=record.memory_mib * _MIB,
        memory_allocated_bytes=record.memory_allocated_mib * _MIB,
        ordinary_gpus=ordinary,
        address=record.address or record.name,
        features=record.features,
        partitions=partitions,
    )
