# SPDX-License-Identifier: GPL-2.0-or-later
"""Which rank a process is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gandiva import _environment


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1)),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, (2, 4)),
        # A step smaller than its job.
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "2"}, (1, 2)),
        # torchrun's workers are children of one task.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "RANK": "3", "WORLD_SIZE": "4"}, (3, 4)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "SLURM_PROCID": "0"}, (1, 2)),
        ({"RANK": "", "WORLD_SIZE": "", "SLURM_PROCID": "0"}, (0, 1)),
    ],
)
def test_place(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], expected: tuple[int, int]) -> None:
    monkeypatch.setattr(_environment, "in_batch_step", lambda _: False)
    assert tuple(_environment.place(environ)) == expected


def test_a_batch_script_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_environment, "in_batch_step", lambda _: True)
    assert tuple(_environment.place({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"})) == (0, 1)
    assert tuple(_environment.place({"SLURM_PROCID": "0", "RANK": "1", "WORLD_SIZE": "4"})) == (1, 4)


@pytest.mark.parametrize("rank, world", [("4", "4"), ("-1", "2"), ("x", "2"), ("0", "0"), ("0", "99999999")])
def test_nonsense_is_refused_by_name(rank: str, world: str) -> None:
    with pytest.raises(ValueError, match="RANK"):
        _environment.place({"RANK": rank, "WORLD_SIZE": world})


def test_the_batch_step_is_seen_in_the_control_group(tmp_path: Path) -> None:
    file = tmp_path / "cgroup"
    assert _environment.in_batch_step({"SLURM_STEP_ID": "-5"}, str(file))
    file.write_text("4:memory:/slurm/uid_1000/job_12/step_batch/task_0\n")
    assert _environment.in_batch_step({}, str(file))
    file.write_text("0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0\n")
    assert not _environment.in_batch_step({}, str(file))
    assert not _environment.in_batch_step({}, str(tmp_path / "none"))


def test_the_control_block_of_another_job_is_not_ours() -> None:
    directory = {"GANDIVA_CONTROL_DIR": "/run/gandiva/12"}
    assert _environment.control_dir(directory) == Path("/run/gandiva/12")
    assert _environment.control_dir({**directory, "SLURM_JOB_ID": "12"}) == Path("/run/gandiva/12")
    assert _environment.control_dir({**directory, "SLURM_JOB_ID": "13"}) is None
    assert _environment.control_dir({"GANDIVA_CONTROL_DIR": "relative/12"}) is None
    assert _environment.control_dir({}) is None


@pytest.mark.parametrize(
    ("environ", "ours"),
    [
        ({"GANDIVA_ALLOCATION": ""}, True),
        ({}, True),
        ({"GANDIVA_ALLOCATION": "8", "SLURM_JOB_ID": "8"}, True),
        ({"GANDIVA_ALLOCATION": "3", "SLURM_JOB_ID": "3"}, True),
        ({"GANDIVA_TRIAL": "4"}, False),
        # Submitted from within it: also where Slurm's number is by chance the trial's.
        ({"GANDIVA_ALLOCATION": "8", "SLURM_JOB_ID": "9"}, False),
        ({"GANDIVA_ALLOCATION": "", "SLURM_JOB_ID": "3"}, False),
    ],
)
def test_a_trial_has_its_own_control_block(environ: dict[str, str], ours: bool) -> None:
    block = "/run/user/1000/gandiva-3f2a/3"
    every = {"GANDIVA_CONTROL_DIR": block, "GANDIVA_TRIAL": "3", **environ}
    assert _environment.control_dir(every) == (Path(block) if ours else None)


@pytest.mark.parametrize(("job", "whose"), [("8", "trial 3"), ("9", "job 9")])
def test_messages_name_the_trial(monkeypatch: pytest.MonkeyPatch, job: str, whose: str) -> None:
    for name, value in {"GANDIVA_TRIAL": "3", "GANDIVA_ALLOCATION": "8", "SLURM_JOB_ID": job}.items():
        monkeypatch.setenv(name, value)
    assert _environment.message_prefix().startswith(f"gandiva: {whose} on ")


def test_a_gandiva_job_submitted_from_within_a_trial_has_its_own() -> None:
    environ = {"GANDIVA_TRIAL": "3", "GANDIVA_ALLOCATION": "", "SLURM_JOB_ID": "12"}
    directory = {"GANDIVA_CONTROL_DIR": "/run/gandiva/12"}
    assert _environment.control_dir({**environ, **directory}) == Path("/run/gandiva/12")


@pytest.mark.parametrize(
    ("text", "expected"), [("0,2\n", (0, 2)), ("3\n", (3,)), ("", None), ("a,b", None), (None, None)]
)
def test_visible_positions(tmp_path: Path, text: str | None, expected: tuple[int, ...] | None) -> None:
    if text is not None:
        (tmp_path / "visible").write_text(text)
    assert _environment.visible_positions(tmp_path) == expected
