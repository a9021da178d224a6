# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva run` in an ordinary allocation: what only a real srun, slurmd and time limit can show."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.live.support import EXAMPLES, PYTHON, Site

pytestmark = pytest.mark.live

STEPS = 60
TRIAL = f"{PYTHON} {EXAMPLES}/train_mock.py --steps {STEPS} --memory-mb 500"
STUDY = """\
[policy]
name = "gandiva"
gandiva.slice_seconds = 1.5
[trial]
command = "{command}"
[grid]
seed = {seeds}
"""
FOLDER = "/home/alice/study"


def write(site: Site, text: str) -> None:
    site.cluster.exec("login", f"rm -rf {FOLDER} {FOLDER}.toml", user="alice")
    site.cluster.write_file("login", f"{FOLDER}.toml", text)


def run(site: Site, script: str, *options: str) -> int:
    """A batch job of alice's, without Gandiva."""
    return site.submit("alice", script, "--no-gandiva", "-c", "2", "--mem=2G", *options)


def trials(site: Site) -> dict[str, dict[str, Any]]:
    """What is known of each, by name."""
    said = site.cluster.exec("login", f"cat {FOLDER}/trials/*.json", user="alice").stdout
    return {trial["spec"]["name"]: trial for trial in map(json.loads, said.splitlines())}


def digests(site: Site) -> list[str]:
    """What the trainings computed, each time that one came to its end."""
    said = site.cluster.exec("login", f"cat {FOLDER}/trials/*.out", user="alice").stdout
    return sorted(re.findall(r"done, digest (\w+)", said))


def alone(site: Site, words: Sequence[str]) -> list[str]:
    """The same of trainings that nothing stops."""
    commands = "; ".join(f"{TRIAL} --minibatch-ms 1 {each}" for each in words)
    job = site.submit("bob", commands, "--no-gandiva", "--gres=gpu:4", "-w", "n2")
    assert site.wait_ended([job]) == {job: "COMPLETED"}, site.output("bob", job)
    return sorted(re.findall(r"done, digest (\w+)", site.output("bob", job)))


def test_trials_are_steps_of_two_part_nodes(site: Site) -> None:
    """GPUs 2 and 3 of each, which NVML numbers 0 and 1 there; gangs on one node and on both. The supervisor
    is killed once, and its steps go on. Accounting shows each trial."""
    for node in ("n1", "n2"):
        other = site.submit("carol", "sleep 600", "--no-gandiva", "--gres=gpu:2", "-w", node)
        site.wait_state(other, "RUNNING")
    wide = f"{TRIAL} --minibatch-ms 50 --seed 9 --gpus 2 --rank $SLURM_PROCID --ranks 2"
    text = STUDY.format(command=f"{TRIAL} --minibatch-ms 50 --seed {{seed}}", seeds=[1, 2, 3, 4, 5])
    text += (
        f"[[trials]]\nname = 'two'\ngpus = 2\nwith = {{ seed = 6 }}\n"
        f"command = '{TRIAL} --minibatch-ms 50 --seed 6 --gpus 2'\n"
        f"[[trials]]\nname = 'wide'\ngpus = 4\ncommand = '{wide}'\n"
    )
    write(site, text)
    again = f"gandiva run {FOLDER}.toml & sleep 4; kill -9 $!; gandiva run {FOLDER}.toml"
    job = run(site, again, "--gres=gpu:2", "-N2")
    assert site.wait_ended([job], timeout_seconds=240) == {job: "COMPLETED"}, site.output("alice", job)
    found = trials(site)
    assert {trial["state_name"] for trial in found.values()} == {"COMPLETED"}
    assert not [name for name, trial in found.items() if trial.get("restarts")], "each was started once"
    site.cancel_all()
    words = [*(f"--seed {seed}" for seed in range(1, 6)), "--seed 6 --gpus 2"]
    assert set(alone(site, words)) <= set(digests(site))
    assert len(digests(site)) == 8, "five, the gang on one node, and two ranks of that on both"
    accounting = site.cluster.exec("ctl", ["sacct", "-n", "-P", "-o", "JobName,State", "-j", str(job)]).stdout
    shown = dict(line.split("|") for line in accounting.splitlines())
    assert {name: shown.get(name) for name in found} == dict.fromkeys(found, "COMPLETED"), accounting
