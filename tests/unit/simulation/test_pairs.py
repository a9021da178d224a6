# SPDX-License-Identifier: GPL-2.0-or-later
"""Pairs in whole simulations: an allocation with space sharing has light jobs run together, in rounds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import pytest

from controller.errors import SettingsError
from controller.model import Configuration, Rate
from controller.policies.assemble import make_policy
from controller.settings.loading import parse_settings
from controller.simulation.cluster_spec import parse_cluster
from controller.simulation.driver import Simulation
from controller.simulation.oracle import declared
from controller.simulation.outcome import Outcome
from controller.simulation.traces import TraceJob
from tests.unit.draws import some
from tests.unit.simulation.test_moves import TRUTH, job

RATES: dict[str, dict[Configuration, Rate]] = {}
for name, where, rate in declared(TRUTH):
    RATES.setdefault(name, {})[where] = rate


def run(jobs: Sequence[TraceJob], gpus: int, suspend: str, policy: str, **settings: object) -> Outcome:
    chosen = {"change_types": suspend == "requeue", "round_seconds": 120.0, **settings}
    lines = [f"{key} = {str(value).lower()}" for key, value in chosen.items()]
    text = f'[requests]\nsuspend = "{suspend}"\n[policy]\nname = "{policy}"\n[policy.{policy}]\n'
    made = parse_settings(text + "\n".join(lines) + "\n")
    return Simulation(Path("t"), jobs, parse_cluster(f"v100:{gpus}", 4), made, TRUTH, rates=RATES).run()


def mean_jct(outcome: Outcome) -> float:
    return fmean(done.jct_seconds for done in outcome.jobs)


def light_jobs() -> list[TraceJob]:
    """Two of three lose 15 % beside another of their kind. More than four GPUs can do at once."""
    draw, submit, jobs = random.Random(5), 0.0, []
    for number in range(18):
        model, seconds = draw.choice(["vae", "vae", "resnext"]), draw.choice([600.0, 1200.0, 2400.0])
        jobs.append(job(number, model, seconds, submit, draw.choice([1, 1, 2])))
        submit += draw.expovariate(1 / 200)
    return jobs


@pytest.mark.parametrize(
    ("policy", "suspend"),
    some(
        itertools.product(("gavel-las", "gavel-hierarchical", "gavel-ftf"), ("cooperative", "requeue")),
        lambda case: case in (("gavel-las", "requeue"), ("gavel-hierarchical", "cooperative")),
    ),
)
def test_space_sharing_ends_light_jobs_earlier(policy: str, suspend: str) -> None:
    jobs = light_jobs()
    alone, shared = (run(jobs, 4, suspend, policy, space_sharing=share) for share in (False, True))
    assert len(shared.jobs) == len(alone.jobs) == 18
    assert mean_jct(shared) < 0.9 * mean_jct(alone)


def test_random_pairs_of_gandiva_as_gavel_has_it() -> None:
    jobs = light_jobs()
    shared, alone = (run(jobs, 4, "requeue", name) for name in ("gavel-gandiva", "isolated"))
    assert mean_jct(shared) < mean_jct(alone)


@pytest.mark.parametrize(
    "text",
    [
        '[policy]\nname = "gavel-las"\nmoves = ["pack"]\n[policy.allocation]\nspace_sharing = true\n',
        '[policy]\nname = "gavel-gandiva"\nmoves = ["pack"]\n',
    ],
)
def test_an_allocation_with_pairs_is_not_followed_by_packing(text: str) -> None:
    with pytest.raises(SettingsError, match="pairs jobs itself"):
        make_policy(parse_settings(text).policy)
