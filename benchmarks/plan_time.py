# SPDX-License-Identifier: GPL-2.0-or-later
"""How long one decision of policy `gandiva` takes, by the size of the cluster:
`python -m benchmarks.plan_time`.

The cluster is full and over-subscribed two to one. Each round all servers' slices have ended at the same
moment, the dearest there is; decisions are made, and carried out at once, until every server has had its
turn. Every decision is measured, in CPU time (other load disturbs it less) and in wall time, twice: with
snapshots that say what changed, as in simulation, and with snapshots that do not and in which every job is a
new object, as in the daemon (whose adapters keep bindings; and which keeps the snapshot before, so that it is
not the policy that throws it away). Prints median, 99th percentile and maximum.
"""

from __future__ import annotations

import argparse
import gc
import math
import time
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.table import Table

from controller.model import Assignment, Changes, Gpu, GpuId, Job, JobId, Node, Phase, Plan, Request, Snapshot
from controller.policies.gandiva import Gandiva, GandivaSettings

GPUS_PER_NODE = 8
SLICE_SECONDS = 60.0


@dataclass
class Result:
    """Of one size. Times in seconds, one for each decision."""

    jobs: int
    first_seconds: float = 0.0
    """CPU time of the plan that is made from nothing."""
    cpu_seconds: list[float] = field(default_factory=list)
    wall_seconds: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    """Decisions for each turn of all servers."""


def make_snapshot(gpus: int) -> Snapshot:
    """A full cluster: on each server eight exact one-GPU jobs that run and eight floating ones that wait."""
    nodes, jobs = {}, {}
    number = 0
    for index in range(gpus // GPUS_PER_NODE):
        name = f"n{index}"
        ids = [GpuId(name, i) for i in range(GPUS_PER_NODE)]
        nodes[name] = Node(name, tuple(Gpu(g, "a100", 80 << 30, memory_used_bytes=0, shards=16) for g in ids))
        everywhere = frozenset(ids)
        for gpu in ids:
            for binding, phase in ((frozenset({gpu}), Phase.RUNNING), (everywhere, Phase.SUSPENDED)):
                number += 1
                jobs[JobId(number)] = Job(
                    id=JobId(number),
                    user="alice",
                    request=Request(gpus=1),
                    phase=phase,
                    submit_time=float(number),
                    binding=binding,
                    running_on=frozenset({gpu}),
                    movable=True,
                    run_seconds=float(number % 600),
                    accrues_since=0.0 if phase is Phase.RUNNING else None,
                )
    return Snapshot(0.0, nodes, jobs)


def carried_out(job: Job, assignment: Assignment, now: float) -> Job:
    """The job after its part of the plan."""
    if assignment.run:
        return replace(job, phase=Phase.RUNNING, running_on=assignment.gpus, accrues_since=now)
    return replace(job, phase=Phase.SUSPENDED, run_seconds=job.run_seconds_at(now), accrues_since=None)


def switches(jobs: dict[JobId, Job], plan: Plan) -> dict[JobId, Assignment]:
    """What the plan changes."""
    looked_at = plan.changed if plan.changed is not None else jobs.keys()
    found = {}
    for job_id in looked_at:
        assignment = plan.assignments[job_id]
        job = jobs[job_id]
        runs = job.phase is Phase.RUNNING
        if assignment.run != runs or (runs and assignment.gpus != job.running_on):
            found[job_id] = assignment
    return found


def brought_up_to_date(jobs: dict[JobId, Job], now: float) -> dict[JobId, Job]:
    """New objects, with the times up to now, as the daemon makes them at every look."""
    return {
        job_id: replace(
            job,
            run_seconds=job.run_seconds_at(now),
            accrues_since=None if job.accrues_since is None else now,
            running_on=frozenset([GpuId(*gpu) for gpu in job.running_on]) if job.floating else job.binding,
        )
        for job_id, job in jobs.items()
    }


def measure(gpus: int, rounds: int, *, told: bool) -> Result:
    """`rounds` turns of all servers."""
    policy = Gandiva(GandivaSettings(slice_seconds=SLICE_SECONDS))
    snapshot = make_snapshot(gpus)
    jobs = dict(snapshot.jobs)
    result = Result(len(jobs))
    before = replace(snapshot, serial=1)
    begin = time.process_time()
    plan = policy.plan(before, {})
    result.first_seconds = time.process_time() - begin
    changed = switches(jobs, plan)
    for turn in range(1, rounds + 1):
        now = turn * 2 * SLICE_SECONDS
        decisions = 0
        while True:
            jobs = dict(jobs)
            for job_id, assignment in changed.items():
                jobs[job_id] = carried_out(jobs[job_id], assignment, now)
            if told:
                changes = Changes(before.serial, frozenset(changed), frozenset())
                seen = replace(snapshot, time=now, jobs=jobs, serial=before.serial + 1, changes=changes)
            else:
                jobs = brought_up_to_date(jobs, now)
                seen = replace(snapshot, time=now, jobs=jobs)
            gc.collect()
            cpu, wall = time.process_time(), time.perf_counter()
            plan = policy.plan(seen, plan.state)
            result.cpu_seconds.append(time.process_time() - cpu)
            result.wall_seconds.append(time.perf_counter() - wall)
            decisions, before = decisions + 1, seen
            changed = switches(jobs, plan)
            if not changed and (plan.wake_at is None or plan.wake_at > now):
                break
        result.rounds.append(decisions)
    return result


def words(seconds: list[float]) -> str:
    """Median, 99th percentile, maximum."""
    ordered = sorted(seconds)
    p99 = ordered[math.ceil(0.99 * len(ordered)) - 1]
    return f"{ordered[len(ordered) // 2] * 1e3:.1f} / {p99 * 1e3:.1f} / {ordered[-1] * 1e3:.1f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 5000, 10000], metavar="GPUS")
    parser.add_argument("--calls", type=int, default=5, metavar="ROUNDS", help="turns of all servers")
    options = parser.parse_args()
    table = Table(
        "GPUs",
        "jobs",
        "snapshots",
        "decisions a turn",
        "from nothing",
        "CPU ms: median / p99 / max",
        "wall ms",
        title="One decision, policy gandiva, all slices over at once",
    )
    for size in options.sizes:
        for told in (True, False):
            result = measure(size, options.calls, told=told)
            table.add_row(
                f"{size:,}",
                f"{result.jobs:,}",
                "say what changed" if told else "do not",
                f"{sum(result.rounds) / len(result.rounds):.0f}",
                f"{result.first_seconds * 1e3:.0f} ms",
                words(result.cpu_seconds),
                words(result.wall_seconds),
            )
    Console().print(table)


if __name__ == "__main__":
    main()
