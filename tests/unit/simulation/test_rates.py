# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs of a simulation go as fast as the ground truth says, and policies measure that."""

from __future__ import annotations

from pathlib import Path

from controller.model import Configuration, Memory, Placement, Plan, Provenance, Rate, Snapshot, Target
from controller.settings.schema import Settings
from controller.simulation.cluster_spec import parse_cluster
from controller.simulation.driver import Simulation
from controller.simulation.ground_truth import Throughputs
from controller.simulation.traces import TraceJob

TRUTH = Throughputs(
    {("v100", "a", 2): 8.0, ("v100_unconsolidated", "a", 2): 6.0, ("v100", "b", 2): 4.0},
    {("v100", "a", 2, "b", 2): 5.0, ("v100", "b", 2, "a", 2): 3.0},
)


class Together:
    """All jobs on one GPU of each node, spread; looks again every minute."""

    def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
        gpus = frozenset(node.gpus[0].id for node in snapshot.nodes.values())
        placements = {i: Placement(gpus, gpus, frozenset(snapshot.jobs) - {i}) for i in snapshot.jobs}
        wanted = {i: Target(p) for i, p in placements.items() if snapshot.jobs[i].placement != p}
        return Plan(wanted, wake_at=snapshot.time + 60)


def test_pairs_and_spread_gangs_are_measured_as_the_table_says() -> None:
    jobs = [
        TraceJob(
            id="1",
            submit_seconds=0,
            gpus=2,
            duration_seconds=None,
            line=1,
            model="a",
            steps=6.0 * 300 + 5.0 * 200,
            nodes=2,
        ),
        TraceJob(
            id="2",
            submit_seconds=300,
            gpus=2,
            duration_seconds=None,
            line=1,
            model="b",
            steps=3.0 * 1000,
            nodes=2,
        ),
    ]
    seen: list[Snapshot] = []
    where = Configuration("v100", 2, 1)
    simulation = Simulation(
        Path("trace.csv"),
        jobs,
        parse_cluster("v100:4", 2),
        Settings(),
        TRUTH,
        policy=Together(),
        rates={"a": {where: Rate(8.0, provenance=Provenance.DECLARED)}},
        on_cycle=lambda cycle: seen.append(cycle.snapshot.kept()),
    )
    simulation.run()
    known = {
        (model, place.nodes, place.models_beside): (round(rate.samples_per_second, 6), rate.provenance.value)
        for model, table in seen[-1].rates.items()
        for place, rate in table.items()
    }
    assert known["a", 1, ()] == (8.0, "declared")
    assert known["a", 2, ()] == (6.0, "measured")
    assert known["a", 2, ("b",)] == (5.0, "measured")
    assert known["b", 2, ("a",)] == (3.0, "measured")
    own = {round(rate.samples_per_second, 6) for snapshot in seen for rate in snapshot.job_rates.values()}
    assert {6.0, 5.0, 3.0} <= own
