# SPDX-License-Identifier: GPL-2.0-or-later
"""Users' shares through the whole loop: read through the port, in the snapshot, in who runs how long."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from controller.errors import SettingsError
from controller.loop.loop import Cycle
from controller.model import Share
from controller.settings.loading import parse_settings
from controller.simulation.cluster_spec import parse_cluster
from controller.simulation.driver import Simulation, share_tree
from controller.simulation.replay import replay
from controller.simulation.snapshot_file import RecordedDecision, dump_decision, read_decision
from controller.simulation.traces import TraceJob

SETTINGS = """
[policy]
name = "gandiva"
fair_share = {fair_share}
[policy.gandiva]
slice_seconds = 60.0
[simulation]
rpc_seconds = 0.001
start_seconds = 0.0
step_seconds = 0.0
suspend_seconds = 0.0
resume_seconds = 0.0
{more}
"""


def job(name: str, user: str, submit: float = 0.0, duration: float = 900.0, account: str = "") -> TraceJob:
    made = TraceJob(name, submit, 1, duration, 1)
    return replace(made, user=user, account=account)


def slowdowns(jobs: list[TraceJob], fair_share: str, more: str = "") -> dict[str, float]:
    settings = parse_settings(SETTINGS.format(fair_share=fair_share, more=more))
    done = Simulation(Path("t"), jobs, parse_cluster("v100:1", 1), settings).run()
    durations = {one.id: one.duration_seconds or 0.0 for one in jobs}
    return {j.id: (j.end_seconds - j.submit_seconds) / durations[j.id] for j in done.jobs}


def test_twelve_jobs_of_one_user_and_one_of_another() -> None:
    """With the default of four jobs for each GPU; alice's were there before."""
    jobs = [*(job(f"a{i}", "alice") for i in range(12)), job("b", "bob", submit=90.0)]
    assert slowdowns(jobs, "true")["b"] == pytest.approx(2.0, rel=0.1)
    assert slowdowns(jobs, "false")["b"] > 9


def test_shares_of_accounts_come_from_the_settings() -> None:
    jobs = [job("a", "alice", duration=20000.0, account="vision"), job("c", "carol", account="speech")]
    more = "shares = { vision = 3, speech = 1 }"
    assert slowdowns(jobs, "true", more)["c"] == pytest.approx(4.0, rel=0.1)
    assert slowdowns(jobs, "true")["c"] == pytest.approx(2.0, rel=0.1)


def test_water_filling_reads_the_shares_of_accounts_in_any_case() -> None:
    jobs = [job("a", "alice", duration=20000.0, account="vision"), job("c", "carol", account="speech")]
    table = SETTINGS.replace('"gandiva"', '"gavel-hierarchical"')
    table = table.replace("gandiva]", "gavel-hierarchical]").replace("slice_seconds", "round_seconds")
    more = "shares = { vision = 3, speech = 1 }"
    settings = parse_settings(table.format(fair_share="false", more=more))
    done = Simulation(Path("t"), jobs, parse_cluster("v100:1", 1), settings).run()
    ends = {j.id: j.end_seconds for j in done.jobs}
    assert ends["c"] == pytest.approx(4 * 900.0, rel=0.1)


def test_snapshots_have_the_shares_only_where_the_policy_uses_them() -> None:
    for fair_share in (True, False):
        cycles: list[Cycle] = []
        more = 'shares = { "vision/alice" = 3 }'
        settings = parse_settings(SETTINGS.format(fair_share=str(fair_share).lower(), more=more))
        jobs = [job("a", "alice", account="vision"), job("b", "bob", submit=50.0, account="vision")]
        Simulation(Path("t"), jobs, parse_cluster("v100:1", 1), settings, on_cycle=cycles.append).run()
        assert bool(cycles[-1].snapshot.shares) is fair_share


def test_a_recorded_decision_has_the_shares_and_is_made_again(tmp_path: Path) -> None:
    settings = parse_settings(SETTINGS.format(fair_share="true", more='shares = { "vision/alice" = 3 }'))
    kept: list[bytes] = []

    def keep(cycle: Cycle) -> None:
        recorded = RecordedDecision(settings.policy, cycle.snapshot.kept(), cycle.memory, cycle.plan)
        if cycle.plan.targets and len(cycle.snapshot.jobs) == 4:
            kept.append(dump_decision(recorded))

    jobs = [job(f"a{i}", "alice", account="vision") for i in range(3)]
    jobs.append(job("b", "bob", submit=50.0, account="vision"))
    Simulation(Path("t"), jobs, parse_cluster("v100:1", 1), settings, on_cycle=keep).run()
    assert len(kept) > 10
    for content in kept:
        file = tmp_path / "decision.json"
        file.write_bytes(content)
        recorded = read_decision(file)
        assert recorded.policy.fair_share and len(recorded.snapshot.shares) == 3
        assert all(verdict["as_recorded"] for verdict in replay(recorded)[1])


def test_the_tree_of_the_settings() -> None:
    assert share_tree({}) == (Share("root", None, 1.0),)
    assert share_tree({"vision/alice": 2.0, "speech": 3.0}) == (
        Share("root", None, 1.0),
        Share("vision", "root", 1.0),
        Share("speech", "root", 3.0),
        Share("vision/alice", "vision", 2.0, 0.0, 0.0),
    )


def test_a_name_with_two_slashes_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"simulation\.shares"):
        parse_settings(SETTINGS.format(fair_share="true", more='shares = { "a/b/c" = 1 }'))
