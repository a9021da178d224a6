# SPDX-License-Identifier: GPL-2.0-or-later
"""The job_submit module in a real Lua, with a stand-in for slurmctld around it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller.slurm_config.lua import literal

HERE = Path(__file__).parent
LUA = HERE.parents[2] / "slurm_plugin" / "lua"

GPU_NODES = [{"model": "a100", "gpus": 4, "count": 2}]
SETTINGS: dict[str, Any] = {
    "version": 1,
    "default": "off",
    "trusted_users": [64030, 997],
    "partitions": [],
    "max_weight": 100,
    "models": ["a100", "h100"],
    "nodes": {
        "gpu": GPU_NODES,
        "both": [*GPU_NODES, {"model": "h100", "gpus": 8, "count": 1}],
        "cpu": [{"model": "", "gpus": 0, "count": 5}],
    },
}
PARTITIONS = {"gpu": {"flag_default": 1}, "both": {"flag_default": 0}, "cpu": {"flag_default": 0}}


@dataclass(frozen=True)
class Answer:
    """What slurmctld got from the module."""

    raised: bool
    rc: int
    problem: str
    said: Sequence[str]
    logged: Sequence[str]
    fields: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def request(self) -> dict[str, Any]:
        """The record for the controller, which must be valid JSON behind its prefix."""
        comment: str = self.fields["admin_comment"]
        assert comment.startswith("gandiva:")
        request: dict[str, Any] = json.loads(comment.removeprefix("gandiva:"))
        return request


class Slurmctld:
    """A Lua process that has loaded the module and answers cases."""

    def __init__(self, lua: str, script: Path | None = None, **settings: Any) -> None:
        """`script`: the site's job_submit.lua; None: the module alone."""
        scripts = [] if script is None else [str(script)]
        self._process = subprocess.Popen(
            [lua, str(HERE / "harness.lua"), str(LUA), *scripts],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.loading = self._ask({**SETTINGS, **settings})["logged"]

    def _ask(self, value: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(literal(value).replace("\n", " ") + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def _case(self, **case: Any) -> Answer:
        answer = self._ask({"partitions": PARTITIONS, **case})
        changes = answer.pop("changes")
        return Answer(**answer, fields=changes["fields"] or {}, environment=changes["environment"] or {})

    def submit(self, options: Mapping[str, str] | Sequence[str] = (), uid: int = 1000, **job: Any) -> Answer:
        """Submit a job with these flags (without the common prefix, or whole entries)."""
        if isinstance(options, Mapping):
            entries = [f"_SLURM_SPANK_OPTION_gandiva_{name}={value}" for name, value in options.items()]
        else:
            entries = list(options)
        if entries:
            job["spank_job_env"] = entries
        return self._case(job=job, uid=uid)

    def modify(self, record: Mapping[str, Any], uid: int = 1000, **job: Any) -> Answer:
        """Change a job."""
        return self._case(job=job, record={"user_id": 1000, "job_state": 0, **record}, uid=uid)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
