# SPDX-License-Identifier: GPL-2.0-or-later
"""What the live tests do as users and administrators: submit, wait, look."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from container import render
from container.cluster import MiniCluster
from tests.live.gpu_history import EVENTS, OPERATIONS, Hold, Operation, held_seconds, holds

EXAMPLES = "/opt/gandiva/src/examples"
TRAIN = f"python3 {EXAMPLES}/train_mock.py"
SLICE_SECONDS = 3.0
KILLED_AGAIN_SECONDS = 90.0
"""A cancelled job has ended: slurmctld repeats a kill that was lost after a minute."""
PYTHON = "/opt/gandiva/venv/bin/python"
READ_OPERATIONS = """\
import json, sqlite3
journal = sqlite3.connect("file:/var/lib/gandiva/journal.sqlite?mode=ro", uri=True, timeout=10)
columns = "job_id, kind, begin, outcome, coalesce(end - begin, 0) AS seconds"
rows = journal.execute(f"SELECT {columns}, json_extract(detail, '$.gpus') FROM operations")
names = [column[0] for column in rows.description]
print(json.dumps([{**dict(zip(names, row)), "gpus": json.loads(row[-1])} for row in rows]))
"""
"""Prints what the controller decided, from its journal."""
ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"})

QUICK: Mapping[str, Any] = {
    "loop": {"interval_seconds": 0.25},
    "policy": {"name": "gandiva", "gandiva": {"slice_seconds": SLICE_SECONDS, "max_jobs_per_gpu": 8}},
    "suspend": {
        "step_deadline_seconds": 10.0,
        "offload_deadline_seconds": 10.0,
        "resume_deadline_seconds": 20.0,
        "start_deadline_seconds": 20.0,
        "retry_after_seconds": 10.0,
    },
}
"""Controller settings with slices and deadlines of a few seconds."""


@dataclass
class Site:
    """A cluster as its people see it."""

    cluster: MiniCluster
    nodes: tuple[str, ...] = ("n1", "n2")
    submitted: list[int] = field(default_factory=list)
    kept_bytes: int = 0
    """What each process may keep on a GPU while its job is off it."""
    log_end_bytes: int = 0
    """How far the controller's log was read. At first: where it begins to be about this test."""
    _log: str = ""

    def submit(self, user: str, command: str, *options: str, check: bool = True) -> int:
        """`sbatch OPTIONS --wrap COMMAND` in the user's home. Returns the job id."""
        done = self.cluster.exec(
            "login",
            ["sbatch", "--parsable", "--mem=200M", "--output=%j.out", *options, "--wrap", command],
            user=user,
            check=check,
        )
        job_id = int(done.stdout.strip().split(";")[0])
        self.submitted.append(job_id)
        return job_id

    def train(self, user: str, *options: str, steps: int = 100000, **arguments: object) -> int:
        """A training job; `options` are for sbatch, `arguments` for train_mock.py. It can come back on other
        GPUs, unless these say otherwise."""
        anew = not {"no_step", "keep_context"} & arguments.keys()
        arguments = {"minibatch_ms": 50, "memory_mb": 2048, "gpu_process": anew or None, **arguments}
        words = " ".join(
            f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
            for name, value in arguments.items()
            if value is not None
        )
        return self.submit(user, f"{TRAIN} --steps {steps} {words}", *options)

    def leave_one_gpu(self) -> None:
        """Ordinary jobs on all GPUs but one of n2, on a cluster of two nodes with four GPUs each."""
        for count, node in ((4, "n1"), (3, "n2")):
            job = self.submit("carol", "sleep 1800", "--no-gandiva", f"--gres=gpu:{count}", "-w", node)
            self.wait_state(job, "RUNNING")

    def declare_rates(self, rates: Iterable[Mapping[str, Any]]) -> None:
        """In place of all that is known of their models."""
        table = {"gandiva_rates": 1, "rates": list(rates)}
        self.cluster.write_file("ctl", "/tmp/rates.json", json.dumps(table))
        self.cluster.exec("ctl", ["gandiva", "rates", "import", "/tmp/rates.json", "--replace"])

    def job(self, job_id: int) -> dict[str, str]:
        """`scontrol show job`, as a mapping."""
        done = self.cluster.exec("ctl", ["scontrol", "-o", "show", "job", str(job_id)], check=False)
        return dict(re.findall(r"(\w[\w:/-]*)=(.*?)(?= \w[\w:/-]*=|$)", done.stdout.strip()))

    def state(self, job_id: int) -> str:
        """Slurm's state, or the accounting's when slurmctld has forgotten it."""
        state = self.job(job_id).get("JobState")
        if state is None:
            command = ["sacct", "-n", "-X", "-P", "-o", "State", "-j", str(job_id)]
            state = self.cluster.exec("ctl", command).stdout.strip().split(" ")[0]
        return state or "UNKNOWN"

    def states(self, job_ids: Iterable[int]) -> dict[int, str]:
        """States of several jobs in one call."""
        wanted = list(job_ids)
        done = self.cluster.exec("ctl", ["squeue", "-h", "-t", "all", "-o", "%A %T"], check=False)
        known = {int(a): b for a, b in (line.split() for line in done.stdout.splitlines())}
        return {job_id: known.get(job_id) or self.state(job_id) for job_id in wanted}

    def wait(self, what: str, condition: Callable[[], bool], timeout_seconds: float = 60.0) -> None:
        """Poll until the condition holds; at the deadline fail, saying what was waited for."""
        begin = time.monotonic()
        while not condition():
            waited = time.monotonic() - begin
            assert waited < timeout_seconds, (
                f"not within {timeout_seconds:g} s: {what}\n{self.queue()}\n{self.log_tail()}"
            )
            time.sleep(0.2 if waited < 10 else 0.5)

    def wait_state(self, job_id: int, *states: str, timeout_seconds: float = 60.0) -> None:
        self.wait(
            f"job {job_id} {' or '.join(states)}", lambda: self.state(job_id) in states, timeout_seconds
        )

    def wait_ended(self, job_ids: Iterable[int], timeout_seconds: float = 120.0) -> dict[int, str]:
        """Wait for the end of all; their final states."""
        wanted = list(job_ids)
        self.wait(
            f"the end of jobs {wanted}",
            lambda: all(state in ENDED for state in self.states(wanted).values()),
            timeout_seconds,
        )
        return self.states(wanted)

    def wait_on_gpu(self, *job_ids: int, timeout_seconds: float = 60.0) -> None:
        """Until each of these has had memory on a GPU."""
        wanted = set(job_ids)
        self.wait(
            f"jobs {sorted(wanted)} on GPUs",
            lambda: wanted <= {h.job_id for h in self.holds()},
            timeout_seconds,
        )

    def output(self, user: str, job_id: int) -> str:
        """What the job has printed so far: nothing before its script starts, which RUNNING precedes."""
        try:
            return self.cluster.read_file("login", f"/home/{user}/{job_id}.out")
        except FileNotFoundError:
            return ""

    def digest(self, user: str, job_id: int) -> str:
        """The final digests of all ranks, as the job printed them, once each: a job that is requeued in its
        last moment prints them again."""
        lines = [line for line in self.output(user, job_id).splitlines() if "digest" in line]
        assert lines, f"job {job_id} printed no digest: {self.output(user, job_id)}"
        return "\n".join(sorted(set(lines)))

    def holds(self) -> list[Hold]:
        """Who held memory on which GPU, on all nodes, since the history was cleared."""
        found = []
        for node in self.nodes:
            done = self.cluster.exec(node, "mockgpu history --json && printf '\\0' && date +%s.%N")
            assert not done.stderr, f"{node}: nothing follows from a history with gaps: {done.stderr}"
            history, now = done.stdout.split("\0")
            found += holds(node, EVENTS.validate_json(history), float(now), self.kept_bytes)
        return found

    def clock(self) -> float:
        """The time of the hosts."""
        return float(self.cluster.exec(self.nodes[0], ["date", "+%s.%N"]).stdout)

    def measured(self, jobs: Sequence[int], seconds: float) -> list[float]:
        """Let this time pass: the part of it that each of these jobs had, of what all of them had on GPUs."""
        begin = self.clock()
        time.sleep(seconds)
        found, end = self.holds(), self.clock()
        held = [held_seconds(found, job, begin, end) for job in jobs]
        return [one / sum(held) for one in held]

    def operations(self) -> list[Operation]:
        """What the controller decided, as its journal has it."""
        done = self.cluster.exec("ctl", [PYTHON, "-c", READ_OPERATIONS], user="gandiva")
        return OPERATIONS.validate_json(done.stdout)

    def report(self, *options: str) -> list[dict[str, Any]]:
        """`gandiva report --json`, as a user on the login node. Its own default begins at midnight."""
        words = ["gandiva", "report", "-a", "-S", "now-1days", "--json", *options]
        done = self.cluster.exec("login", words, user="alice")
        answer = json.loads(done.stdout)
        return list(answer["jobs"])

    def explained(self, job_id: int, user: str = "alice") -> str:
        """What `gandiva explain` says, with its line breaks taken out."""
        done = self.cluster.exec("login", ["gandiva", "explain", str(job_id)], user=user)
        return " ".join(done.stdout.split())

    def queue(self) -> str:
        command = ["squeue", "-a", "-t", "all", "-o", "%.8i %.8u %.10T %.20r %.10M %.6D %R %b"]
        return self.cluster.exec("ctl", command, check=False).stdout

    def log(self) -> str:
        """What the controller has said since this test began, in whole lines."""
        more = self.cluster.controller_log(self.log_end_bytes)
        more = more[: more.rfind("\n") + 1]
        self.log_end_bytes += len(more.encode())
        self._log += more
        return self._log

    def log_tail(self, lines: int = 25) -> str:
        return "\n".join(self.log().splitlines()[-lines:])

    def start_controller(self, **sections: Mapping[str, Any]) -> None:
        """Start the controller with quick slices; `sections` replace whole tables of the settings."""
        self.cluster.start_controller({**QUICK, **sections})

    def lead(self, **sections: Mapping[str, Any]) -> None:
        """See to it that a controller with these settings leads: the one that runs, where it has them."""
        wanted = render.controller_toml(self.cluster.spec, {**QUICK, **sections})
        if self.cluster.controller_running() and self.cluster.controller_settings() == wanted:
            return
        self.cluster.stop_controller()
        self.start_controller(**sections)
        # (One that stands by answers, too, where the test before had controllers of its own.)
        self.wait("the controller to lead", lambda: "leads: policy" in self.log())

    def cancel_all(self) -> None:
        """`scancel` everything and wait until it is gone."""
        # (One scancel takes one user only.)
        self.cluster.exec("ctl", "squeue -h -o %A | sort -u | xargs -r scancel --quiet; true", check=False)
        self.wait(
            "an empty queue",
            lambda: not self.cluster.exec("ctl", ["squeue", "-h"], check=False).stdout.strip(),
            KILLED_AGAIN_SECONDS,
        )
