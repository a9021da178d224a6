# SPDX-License-Identifier: GPL-2.0-or-later
"""Which GPUs the ranks below `gandiva.ranks` get, by name."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gandiva import Session
from gandiva.ranks import Devices


class Placed(Session):
    """Of a job that uses the GPUs at these positions now."""

    def __init__(self, positions: Sequence[int] | None) -> None:
        self.positions = positions

    def visible_positions(self) -> Sequence[int] | None:
        return self.positions


TRIAL = {
    "GANDIVA_TRIAL": "3",
    "GANDIVA_ALLOCATION": "77",
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_GPUS": "0,1,2,3",
}


@pytest.mark.parametrize(
    ("environ", "first", "second"),
    [
        # Slurm's cgroup counts from 0, or it gives numbers of the node.
        ({"CUDA_VISIBLE_DEVICES": "1", "SLURM_JOB_GPUS": "2,3"}, ["1"], ["0"]),
        ({"CUDA_VISIBLE_DEVICES": "3", "SLURM_JOB_GPUS": "2,3"}, ["3"], ["2"]),
        # The GPUs of the allocation around a trial are not the trial's.
        ({**TRIAL, "CUDA_VISIBLE_DEVICES": "GPU-d", "GANDIVA_GPUS": "GPU-c,GPU-d"}, ["GPU-d"], ["GPU-c"]),
        ({**TRIAL, "CUDA_VISIBLE_DEVICES": "1", "GANDIVA_GPUS": "2,1"}, ["1"], ["2"]),
    ],
)
def test_a_job_that_moves_is_on_its_gpus(
    environ: dict[str, str], first: list[str], second: list[str]
) -> None:
    session = Placed((1,))
    devices = Devices(environ, session)
    assert devices.now() == first
    session.positions = (0,)
    assert devices.now() == second


def test_a_trial_with_all_of_its_gpus_sees_what_it_was_given() -> None:
    assert Devices({**TRIAL, "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, Placed(None)).now() == ["GPU-a", "GPU-b"]
