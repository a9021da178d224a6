# SPDX-License-Identifier: GPL-2.0-or-later
"""Clarabel's answer is the same on machines with few processor cores and with many."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys

import pytest

from controller.model import JobId
from controller.policies.allocations.allocation import AllocationJob, Given, Pair
from tests.unit.allocations.problems import answer

JOBS = 600
"""With fewer, Clarabel uses one thread anyway."""
TYPES = ("t0", "t1", "t2")


def many_pairs() -> Given:
    draw = random.Random(1)
    jobs = [
        AllocationJob(id=JobId(number), throughput={name: draw.uniform(1, 30) for name in TYPES})
        for number in range(JOBS)
    ]
    pairs = [
        Pair(
            (one.id, other.id),
            {
                name: (
                    one.throughput[name] * draw.uniform(0.5, 1),
                    other.throughput[name] * draw.uniform(0.5, 1),
                )
                for name in TYPES
            },
        )
        for one in jobs
        for other in draw.sample(jobs, 8)
        if one.id < other.id
    ]
    return Given(types=TYPES, workers=dict.fromkeys(TYPES, 66), jobs=tuple(jobs), pairs=tuple(pairs))


def digest() -> str:
    found = answer("gavel-las", many_pairs(), space_sharing=True)
    return hashlib.sha256(repr(list(found.fractions.items())).encode()).hexdigest()


def in_a_process(cores: int, hash_seed: int) -> str:
    code = f"from {__name__} import digest; print(digest())"
    environment = {**os.environ, "RAYON_NUM_THREADS": str(cores), "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.nightly
def test_an_allocation_does_not_depend_on_the_number_of_cores() -> None:
    assert in_a_process(1, 1) == in_a_process(3, 2)
