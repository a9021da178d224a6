# SPDX-License-Identifier: GPL-2.0-or-later
"""The rules that hold at any size, and the evidence: what the mock GPUs, Slurm and the jobs saw."""

from __future__ import annotations

import itertools
import json
import math
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.soak.site import FOLDER, SoakJob, on_all_nodes
from benchmarks.soak.turns import Turn, read
from container.cluster import MiniCluster
from container.spec import Host

CLOCK_SECONDS: Final = 3.0
"""Slurm counts whole seconds, and a start is seen a moment later by each of the three that keep time."""
SWITCH_SECONDS: Final = 2.0
"""The same at every operation on a job. Besides, while an operation is under way (a suspend from the pause to
Slurm's answer, or one that failed and was taken back) the job runs for the one and not for the other."""
TOTAL_SHARE: Final = 0.05
"""By which the sums over all jobs may differ."""
ACCOUNTING_SECONDS: Final = 60.0
"""The ends of all jobs are known everywhere after so long."""
_NOT_OVER: Final = frozenset({"PENDING", "RUNNING", "SUSPENDED", "REQUEUED"})

_OPERATIONS: Final = """
import json, sqlite3
journal = sqlite3.connect("file:/var/lib/gandiva/journal.sqlite?mode=ro", uri=True)
print(json.dumps(journal.execute(
    "SELECT job_id, count(*), total(coalesce(end, begin) - begin) FROM operations GROUP BY job_id"
).fetchall()))
"""


@dataclass(frozen=True)
class Evidence:
    """Everything that is known after a run."""

    jobs: Sequence[SoakJob]
    turns_text: str
    turns: Sequence[Turn]
    digests: Mapping[int, str]
    references: Mapping[int, str]
    slurm: Mapping[int, tuple[str, float]]
    """By job: final state, seconds of running (suspended time left out), of sacct."""
    report: Mapping[int, tuple[str, float]]
    """By job: state, seconds of running, of `gandiva report`."""
    operations: Mapping[int, tuple[int, float]]
    """By job: how many, and how long they took together, of the controller's journal."""
    queue: str
    nodes: str


def gather(cluster: MiniCluster, jobs: Sequence[SoakJob], references: Mapping[int, str]) -> Evidence:
    """Ask everybody."""
    turns_text = cluster.exec(
        "login", f"cd {FOLDER}/turns; grep -H . -r . || true", timeout_seconds=120
    ).stdout
    deadline = time.monotonic() + ACCOUNTING_SECONDS
    # slurmctld tells slurmdbd of an end a moment later, and the controller sees it with its next turn.
    while True:
        slurm, report = accounting(cluster, jobs), reported(cluster)
        if time.monotonic() > deadline or not (_open(slurm, jobs) or _open(report, jobs)):
            break
        time.sleep(1.0)
    return Evidence(
        jobs=jobs,
        turns_text=turns_text,
        turns=read(turns_text),
        digests=digests(cluster, [job for job in jobs if job.short]),
        references=references,
        slurm=slurm,
        report=report,
        operations={
            job_id: (count, seconds)
            for job_id, count, seconds in json.loads(
                cluster.exec("ctl", ["python3", "-c", _OPERATIONS], user="gandiva").stdout
            )
        },
        queue=cluster.exec("ctl", ["squeue", "-h", "-o", "%A %T %r"]).stdout.strip(),
        nodes=cluster.exec("ctl", ["sinfo", "-h", "-N", "-o", "%N %T"]).stdout,
    )


def accounting(cluster: MiniCluster, jobs: Sequence[SoakJob]) -> dict[int, tuple[str, float]]:
    """By job: its state, and seconds of running, of sacct."""
    first = min(job.job_id for job in jobs)
    text = cluster.exec(
        "ctl",
        ["sacct", "-a", "-n", "-X", "-P", "-S", "now-1days", "-o", "JobIDRaw,State,ElapsedRaw"],
        timeout_seconds=60,
    ).stdout
    found = {}
    for line in text.splitlines():
        job_id, state, elapsed = line.split("|")
        if job_id.isdecimal() and int(job_id) >= first:
            found[int(job_id)] = (state.partition(" ")[0], float(elapsed))
    return found


def reported(cluster: MiniCluster) -> dict[int, tuple[str, float]]:
    """The same of `gandiva report`, whose own default begins at midnight."""
    command = ["gandiva", "report", "-a", "-S", "now-1days", "--json", "--deadline", "60"]
    text = cluster.exec("login", command, user="alice", timeout_seconds=90).stdout
    return {
        row["job_id"]: (row["state"], float(row["run_seconds"] or 0.0)) for row in json.loads(text)["jobs"]
    }


def _open(found: Mapping[int, tuple[str, float]], jobs: Sequence[SoakJob]) -> bool:
    """Whether some of these have no end there."""
    return any(found.get(job.job_id, ("PENDING",))[0] in _NOT_OVER for job in jobs)


def digests(cluster: MiniCluster, jobs: Sequence[SoakJob]) -> dict[int, str]:
    """The results that jobs printed; empty where there is none."""
    text = cluster.exec("login", f"cd {FOLDER}/output; grep -H digest -r . || true").stdout
    found: dict[int, list[str]] = {job.job_id: [] for job in jobs}
    for line in text.splitlines():
        match = re.match(r"(?:\./)?(\d+):(rank \d+: done, digest \w+)", line)
        if match and int(match[1]) in found:
            found[int(match[1])].append(match[2])
    return {job_id: "\n".join(sorted(lines)) for job_id, lines in found.items()}


def overlaps(cluster: MiniCluster, host: Host) -> list[str]:
    """Two jobs with memory on one GPU at the same instant, from the histories of all mock GPUs."""
    # What it has to complain of (no such node, a history with gaps) is no good news either.
    script = on_all_nodes("mockgpu overlaps 2>&1", host.nodes)
    said = cluster.exec(host.name, script, timeout_seconds=120, check=False).stdout
    return shared(said, host.nodes)


def shared(said: str, nodes: Sequence[str]) -> list[str]:
    """From what `mockgpu overlaps` said on each of the nodes."""
    broken, node, seen = [], "", set()
    for line in said.splitlines():
        if line.startswith("@ "):
            node = line[2:]
            seen.add(node)
        elif line.strip():
            broken.append(f"two jobs on one GPU of {node}: {line}")
    missing = sorted(set(nodes) - seen)
    if missing:
        broken.append(f"the histories of the GPUs of {', '.join(missing)} could not be looked at")
    return broken


def check(seen: Evidence) -> list[str]:
    """Every rule that was broken, in words."""
    return [
        *_ends(seen),
        *_results(seen),
        *_accounting(seen),
        *_turns(seen),
    ]


def _ends(seen: Evidence) -> list[str]:
    """No job is lost, none stays suspended, no node is out of order."""
    broken = []
    for job in seen.jobs:
        state, _ = seen.slurm.get(job.job_id, ("unknown to sacct", 0.0))
        if state != "COMPLETED":
            broken.append(f"job {job.job_id} ({job.gpus} GPUs) ended as {state}")
        ours = seen.report.get(job.job_id, ("missing in gandiva report", 0.0))[0]
        if ours != state:
            broken.append(f"job {job.job_id}: {state} in sacct, {ours} in gandiva report")
    if seen.queue:
        broken.append(f"still in the queue: {seen.queue}")
    states = Counter(line.split()[1] for line in seen.nodes.splitlines())
    if set(states) != {"idle"}:
        broken.append(f"nodes at the end: {dict(states)}")
    return broken


def _results(seen: Evidence) -> list[str]:
    """A job that was suspended ends with the result of one that was left alone."""
    broken = []
    # A job that was told to stop has done fewer mini-batches than its reference run.
    whole = [job for job in seen.jobs if job.short and _steps(seen, job) == job.steps]
    if not whole:
        broken.append("no short job did all its mini-batches, so no result could be compared")
    for job in whole:
        digest = seen.digests.get(job.job_id, "")
        if digest != seen.references[job.gpus]:
            has = "another result than" if digest else "no result, unlike"
            broken.append(f"job {job.job_id} ({job.gpus} GPUs) has {has} when left alone")
    return broken


def _steps(seen: Evidence, job: SoakJob) -> int:
    return sum(turn.steps for turn in seen.turns if turn.job_id == job.job_id and turn.reports)


def _accounting(seen: Evidence) -> list[str]:
    """Slurm, Gandiva and the jobs agree on how long each job ran."""
    broken = []
    ran: dict[int, float] = {}
    for turn in seen.turns:
        if turn.reports:
            ran[turn.job_id] = ran.get(turn.job_id, 0.0) + turn.end - turn.begin
    totals = [0.0, 0.0, 0.0]
    for job in seen.jobs:
        if job.job_id not in seen.slurm or job.job_id not in seen.report:
            continue  # said already
        slurm = seen.slurm[job.job_id][1]
        _, ours = seen.report[job.job_id]
        itself = ran.get(job.job_id, 0.0)
        count, seconds = seen.operations.get(job.job_id, (0, 0.0))
        allowed = CLOCK_SECONDS + SWITCH_SECONDS * count + seconds
        # A job starts Python before it trains: only more than it was given would be wrong.
        for who, least, value in (("Slurm", -allowed, slurm), ("the job", -math.inf, itself)):
            if not least <= value - ours <= allowed:
                broken.append(
                    f"job {job.job_id}: ran {ours:.1f} s for gandiva report, {value:.1f} s for {who}"
                    f" ({count} operations that took {seconds:.1f} s)"
                )
        for i, value in enumerate((slurm, ours, itself)):
            totals[i] += value
    if abs(totals[0] - totals[1]) > TOTAL_SHARE * totals[1]:
        broken.append(
            f"running time of all jobs: {totals[0]:.0f} s for Slurm, {totals[1]:.0f} s for gandiva report, "
            f"{totals[2]:.0f} s for the jobs"
        )
    return broken


def _turns(seen: Evidence) -> list[str]:
    """No GPU has mini-batches of two jobs at the same time, by the jobs' own word."""
    broken = []
    by_gpu: dict[tuple[str, str], list[Turn]] = {}
    for turn in seen.turns:
        by_gpu.setdefault(turn.gpu, []).append(turn)
    for gpu, group in by_gpu.items():
        group.sort(key=lambda turn: turn.begin)
        for a, b in itertools.pairwise(group):
            if a.job_id != b.job_id and b.begin < a.end:
                broken.append(f"jobs {a.job_id} and {b.job_id} computed on {gpu} at the same time")
    return broken
