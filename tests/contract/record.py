# SPDX-License-Identifier: GPL-2.0-or-later
"""Records what Slurm's commands answer in known situations, for the tests of the parsers.

    python -m tests.contract.record CLUSTER        writes tests/contract/recordings/<Slurm version>/

CLUSTER is a running mini cluster without jobs and without a controller; see `gandiva-cluster up`. The
recordings go into the repository, so that the command adapter is tested against each Slurm release without
that release.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from container.cluster import MiniCluster

RECORDINGS = Path(__file__).parent / "recordings"
_VOLATILE = frozenset(
    {
        "boot_time",
        "cpu_load",
        "free_mem",
        "kernel_version",
        "last_backfill",
        "last_update",
        "meta",
        "operating_system",
        "os",
        "selinux_context",
        "slurmd_start_time",
    }
)
"""Says something about the machine of the recording, and nothing about Slurm."""


class Recorder:
    """Brings a cluster into situations and writes down what the commands say."""

    def __init__(self, cluster: MiniCluster) -> None:
        self._cluster = cluster
        version = self._run("root", "scontrol", "--version").split()[1]
        self.folder = RECORDINGS / ".".join(version.split(".")[:2])
        self.folder.mkdir(parents=True, exist_ok=True)
        self._first = 0
        self.replies: dict[str, Any] = {}
        self.errors: dict[str, dict[str, Any]] = {}

    def record(self) -> None:
        """All situations, then the files."""
        self._jobs()
        self._errors()
        for name, reply in self.replies.items():
            (self.folder / f"{name}.json").write_text(_text(_lasting(reply), since=self._first))
        (self.folder / "errors.json").write_text(json.dumps(self.errors, indent=1) + "\n")

    def _jobs(self) -> None:
        gang = self._submit("--gandiva", "--gres=gpu:2", "--nodes=2", "--job-name=gang")
        self._bind(gang, "shard:a100_2:1,shard:a100_3:1", "n1,n2")
        floating = self._submit("--gandiva", "--gres=gpu:1", "--job-name=floating")
        self._bind(floating, ",".join(f"shard:a100_{i}:1" for i in (2, 3)), "n1")
        self._wait(gang, "RUNNING")
        self._wait(floating, "RUNNING")
        self._run("root", "scontrol", "suspend", str(floating))
        ordinary = self._submit("--gres=gpu:2", "--nodelist=n2", "--job-name=ordinary")
        self._wait(ordinary, "RUNNING")
        self._submit("--gandiva", "--gres=gpu:1", "--job-name=waiting")
        self._submit("--gandiva", "--gres=gpu:1", "--job-name=user-hold", "--hold")
        self._submit("--gandiva", "--gpus=4", "--job-name=per-job")
        self._submit("--gandiva", "--gres=gpu:1", "--job-name=array", "--array=2-6%2")
        self._submit("--gandiva", "--gres=gpu:1", "--job-name=after", f"--dependency=afterok:{gang}")
        self._submit("--gandiva", "--gres=gpu:1", "--job-name=later", "--begin=2100-01-01T00:00:00")
        self._submit("--gandiva", "--gres=gpu:1", "--job-name=picky", "--nodelist=n2", "--exclude=n1")
        requeued = self._submit("--gandiva", "--gres=gpu:1", "--job-name=requeued")
        self._bind(requeued, "shard:a100_0:1", "n1")
        self._wait(requeued, "RUNNING")
        self._run("root", "scontrol", "requeuehold", str(requeued))
        self._wait(requeued, "PENDING")
        failed = self._submit("--gandiva", "--gres=gpu:1", "--job-name=failed", script="exit 3")
        self._bind(failed, "shard:a100_1:1", "n1")
        self._wait(failed, "FAILED")
        self._run("root", "scontrol", "update", "nodename=n2", "state=drain", "reason=two words")
        try:
            self.replies["squeue"] = self._json("squeue", "--json", "--states=all")
            self.replies["nodes"] = self._json("scontrol", "show", "nodes", "--json")
            self.replies["job"] = self._json("scontrol", "show", "job", str(gang), "--json")
            unknown = ("scontrol", "show", "job", "999999", "--json")
            self.replies["unknown_job"] = self._json(*unknown, check=False)
        finally:
            self._run("root", "scontrol", "update", "nodename=n2", "state=resume")

    def _errors(self) -> None:
        pending = self._submit("--gandiva", "--gres=gpu:1")
        running = self._submit()
        done = self._submit(script="true")
        self._wait(running, "RUNNING")
        self._wait(done, "COMPLETED")
        for name, words in {
            "unknown-suspend": ("suspend", "999999"),
            "unknown-resume": ("resume", "999999"),
            "unknown-requeue": ("requeuehold", "Incomplete", "999999"),
            "unknown-release": ("release", "999999"),
            "unknown-hold": ("uhold", "999999"),
            "unknown-update": ("update", "JobId=999999", "StartTime=now"),
            "unknown-show": ("show", "job", "999999"),
            "pending-suspend": ("suspend", str(pending)),
            "pending-resume": ("resume", str(pending)),
            "running-resume": ("resume", str(running)),
            "running-bind": ("update", f"JobId={running}", "Gres=shard:a100_1:1", "StartTime=now"),
            "ended-suspend": ("suspend", str(done)),
            "ended-release": ("release", str(done)),
            "ended-update": ("update", f"JobId={done}", "StartTime=now"),
            "pending-bad-node": ("update", f"JobId={pending}", "ReqNodeList=nowhere"),
            "pending-bad-gres": ("update", f"JobId={pending}", "Gres=nothing:1"),
        }.items():
            self._error(name, *words)
        self._cluster.service("ctl", "slurmctld").stop()
        try:
            self._error("down-suspend", "suspend", str(running))
            self._error("down-show", "show", "job", str(running))
        finally:
            self._cluster.service("ctl", "slurmctld").start()

    def _error(self, name: str, *words: str) -> None:
        done = self._cluster.exec("ctl", ["scontrol", *words], user="gandiva", check=False)
        self.errors[name] = {"exit_code": done.exit_code, "stderr": done.stderr, "stdout": done.stdout}

    def _submit(self, *options: str, script: str = "exec sleep 600") -> int:
        words = ("sbatch", "--parsable", "--output=/dev/null", "--mem=50", *options, "--wrap", script)
        job_id = int(self._run("alice", *words).strip().split(";")[0])
        self._first = self._first or job_id
        return job_id

    def _bind(self, job_id: int, gres: str, nodes: str) -> None:
        self._run("root", "scontrol", "update", f"JobId={job_id}", f"Gres={gres}", f"ReqNodeList={nodes}")
        self._run("root", "scontrol", "release", str(job_id))

    def _wait(self, job_id: int, state: str, timeout_seconds: float = 30) -> None:
        def look() -> bool:
            words = ("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--Format=State")
            return state in self._run("root", *words).split()

        _until(look, f"job {job_id} {state}", timeout_seconds)

    def _json(self, *command: str, check: bool = True) -> Any:
        done = self._cluster.exec("ctl", list(command), user="gandiva", check=check)
        return json.loads(done.stdout)

    def _run(self, user: str, *command: str) -> str:
        return self._cluster.exec("login" if user == "alice" else "ctl", list(command), user=user).stdout


def _until(look: Callable[[], bool], what: str, timeout_seconds: float) -> None:
    give_up_at = time.monotonic() + timeout_seconds
    while not look():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"not within {timeout_seconds:g} s: {what}")
        time.sleep(0.2)


def _text(reply: dict[str, Any], since: int) -> str:
    """As JSON, a line for each job and node; without jobs that were there before."""
    parts = []
    for key, value in sorted(reply.items()):
        if isinstance(value, list):
            items = [item for item in value if key != "jobs" or item["job_id"] >= since]
            lines = ",\n".join(json.dumps(item, sort_keys=True) for item in items)
            parts.append(f"{json.dumps(key)}: [\n{lines}\n]")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{" + ",\n".join(parts) + "}\n"


def _lasting(value: Any) -> Any:
    """Without what changes with the machine or the minute."""
    if isinstance(value, dict):
        return {key: _lasting(item) for key, item in value.items() if key not in _VOLATILE}
    if isinstance(value, list):
        return [_lasting(item) for item in value]
    return value


if __name__ == "__main__":
    recorder = Recorder(MiniCluster.attach(sys.argv[1]))
    recorder.record()
    print(f"recorded into {recorder.folder}")
