# SPDX-License-Identifier: GPL-2.0-or-later
"""One allocation by Gavel's own code, as its `sweep_policy_runtimes.py` times them;
`benchmarks/allocations.py` starts this.

    PYTHON gavel_shipped.py CLONE POLICY JOBS PROBLEM

Jobs are drawn with Gavel's own generator: one GPU each, a quarter as many GPUs of each type as jobs. PROBLEM
is written first: the same problem as `gandiva allocate` reads it. Then one line of JSON is printed: the CPU
seconds that `get_allocation` took, and what it answered. A small problem is solved before, so that no first
import counts; short ones are solved several times, and the mean counts. With `--draw` nothing is solved.

PYTHON needs cvxpy, ecos, cvxopt, psutil and numpy < 2.3, and CLONE is one of stanford-futuredata/gavel.
Nothing of this project is imported.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import sys
import time
import warnings
from pathlib import Path
from typing import Any

SEED = 2
ENTITIES = 5
SHORT_SECONDS, MOST_TIMES = 0.5, 500
PRICES = {"v100": 2.48, "p100": 1.46, "k80": 0.45}
DEADLINE_RATIO = 20.0
"""Deadlines are so many times what the job takes on a V100."""


class Drawn:
    """The input of one allocation."""

    def __init__(self, count: int, pairs: bool) -> None:
        """`pairs`: throughputs of all pairs of jobs as well."""
        utils = importlib.import_module("utils")
        self.pair = importlib.import_module("job_id_pair").JobIdPair
        known = utils.read_all_throughputs_json_v2("simulation_throughputs.json")
        draw = random.Random(SEED)
        self.jobs = [utils.generate_job(throughputs=known, rng=draw) for _ in range(count)]
        self.ids = [self.pair(number, None) for number in range(count)]
        self.workers = dict.fromkeys(PRICES, count // 4)
        kinds = [(job.job_type, job.scale_factor) for job in self.jobs]
        self.rates: dict[Any, dict[str, Any]] = {
            job_id: {name: known[name][kind]["null"] for name in PRICES}
            for job_id, kind in zip(self.ids, kinds, strict=True)
        }
        if pairs:
            for one in range(count):
                for other in range(one + 1, count):
                    both = {name: known[name][kinds[one]][kinds[other]] for name in PRICES}
                    self.rates[self.pair(one, other)] = both
        self.steps = {job_id: job.total_steps for job_id, job in zip(self.ids, self.jobs, strict=True)}
        self.entity = {job_id: f"entity{draw.randrange(ENTITIES)}" for job_id in self.ids}
        self.weights = {f"entity{number}": draw.randint(1, 3) for number in range(ENTITIES)}

    def deadline(self, job_id: Any) -> float:
        return float(DEADLINE_RATIO * self.steps[job_id] / self.rates[job_id]["v100"])

    def problem(self) -> dict[str, Any]:
        """As `gandiva allocate` reads it."""
        return {
            "types": list(PRICES),
            "workers": self.workers,
            "prices": PRICES,
            "entities": [{"name": name, "weight": weight} for name, weight in self.weights.items()],
            "jobs": [
                {
                    "id": job_id[0],
                    "throughput": self.rates[job_id],
                    "steps_left": self.steps[job_id],
                    "entity": self.entity[job_id],
                    "slo_seconds_left": self.deadline(job_id),
                }
                for job_id in self.ids
            ],
            "pairs": [
                {"jobs": list(key.as_tuple()), "throughput": by_type}
                for key, by_type in self.rates.items()
                if key.is_pair()
            ],
        }

    def members(self) -> dict[str, list[Any]]:
        """The jobs of each entity."""
        return {name: [i for i in self.ids if self.entity[i] == name] for name in self.weights}


def allocate(policy: str, drawn: Drawn) -> dict[Any, dict[str, float]]:
    """Their answer."""
    made: Any
    if policy == "max_min_fairness_strategy_proof_perf":
        module = importlib.import_module("policies.max_min_fairness_strategy_proof")
        made = module.MaxMinFairnessStrategyProofPolicyWithPerf(solver="ECOS")
    elif policy in ("proportional", "isolated"):
        name = policy.capitalize() + "Policy"
        made = getattr(importlib.import_module(f"policies.{policy}"), name)()
    else:
        fair = dict.fromkeys(drawn.weights, "fairness")
        also = {"priority_reweighting_policies": fair} if "water_filling" in policy else {}
        made = importlib.import_module("utils").get_policy(policy, solver="ECOS", seed=SEED, **also)
    rates, sizes, workers = drawn.rates, dict.fromkeys(drawn.ids, 1), drawn.workers
    ones, zeros = dict.fromkeys(drawn.ids, 1.0), dict.fromkeys(drawn.ids, 0.0)
    if "water_filling" in policy:
        found = made.get_allocation(
            rates,
            sizes,
            ones,
            workers,
            entity_weights=drawn.weights,
            entity_to_job_mapping=drawn.members(),
        )
    elif policy.startswith("max_min_fairness"):
        found = made.get_allocation(rates, sizes, ones, workers)
    elif policy.startswith("min_total_duration"):
        found = made.get_allocation(rates, sizes, drawn.steps, workers)
    elif policy.startswith("finish_time_fairness"):
        found = made.get_allocation(rates, sizes, ones, zeros, drawn.steps, workers)
    elif policy == "allox":
        found = made.get_allocation(rates, sizes, zeros, drawn.steps, workers)
    elif policy.endswith("SLOs"):
        deadlines = {job_id: drawn.deadline(job_id) for job_id in drawn.ids}
        found = made.get_allocation(
            rates,
            sizes,
            workers,
            instance_costs=PRICES,
            SLOs=deadlines,
            num_steps_remaining=drawn.steps,
        )
    elif "normalized_by_cost" in policy:
        found = made.get_allocation(rates, sizes, workers, instance_costs=PRICES)
    elif policy == "proportional":
        found = made.get_allocation(rates, workers)
    else:
        found = made.get_allocation(rates, sizes, workers)
    fractions: dict[Any, dict[str, float]] = found[0] if isinstance(found, tuple) else found
    return fractions


def main() -> None:
    """Write the problem, then print what it took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clone", type=lambda text: Path(text).resolve())
    parser.add_argument("policy")
    parser.add_argument("jobs", type=int)
    parser.add_argument("problem", type=lambda text: Path(text).resolve())
    parser.add_argument("--draw", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    os.chdir(args.clone / "scheduler")
    sys.path.insert(0, str(Path.cwd()))
    pairs = "packed" in args.policy or args.policy == "gandiva"
    drawn = Drawn(args.jobs, pairs)
    args.problem.write_text(json.dumps(drawn.problem()))
    if args.draw:
        print("{}")
        return
    times, spent = 0, 0.0
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        allocate(args.policy, Drawn(8, pairs))
        while not times or (spent < SHORT_SECONDS and times < MOST_TIMES):
            begin = time.process_time()
            found = allocate(args.policy, drawn)
            spent, times = spent + time.process_time() - begin, times + 1
    fractions = [
        [[one[0] for one in key.singletons()], {name: float(part) for name, part in row.items()}]
        for key, row in found.items()
        if max(row.values()) > 0
    ]
    print(json.dumps({"seconds": spent / times, "fractions": fractions}))


if __name__ == "__main__":
    main()
