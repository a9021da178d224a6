# SPDX-License-Identifier: GPL-2.0-or-later
"""Leases of simulated jobs. Times worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.errors import SettingsError
from controller.model import Configuration, Rate
from controller.settings.loading import parse_settings
from controller.simulation.cluster_spec import parse_cluster
from controller.simulation.driver import Simulation
from controller.simulation.ground_truth import Throughputs
from controller.simulation.oracle import declared
from controller.simulation.outcome import Outcome
from controller.simulation.traces import TraceJob
from tests.unit.simulation.test_simulation import IDEAL

FIFO = 'name = "fifo"'
ROOT = Path(__file__).resolve().parents[3]

SITE = """
from benchmarks.fidelity.gavel_ways.leases import Leases

class Kind(Leases):
    seconds, failures = 100.0, 0

class Strict(Leases):
    seconds, failures = 100.0, 3
"""


@pytest.fixture(autouse=True)
def site_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leases.py").write_text(SITE)
    monkeypatch.chdir(tmp_path)


def simulate(
    jobs: list[TraceJob],
    table: Throughputs,
    cluster: str,
    leases: str = "Kind",
    policy: str = 'name = "fifo"',
) -> Outcome:
    progress = f'{IDEAL}progress = "./leases.py:{leases}"\n'
    settings = parse_settings(f"{progress}measure_rates = false\n[policy]\n{policy}\n", "s.toml")
    rates: dict[str, dict[Configuration, Rate]] = {}
    for model, where, rate in declared(table):
        rates.setdefault(model, {})[where] = rate
    return Simulation(Path("t"), jobs, parse_cluster(cluster, 4), settings, table, rates=rates).run()


def job(name: str, steps: int, gpus: int = 1, at: float = 0.0, line: int = 2) -> TraceJob:
    return TraceJob(name, at, gpus, None, line, model="m", steps=steps)


def test_a_lease_is_for_whole_steps_and_all_end_with_the_longest() -> None:
    table = Throughputs({("v100", "m", 1): 0.03, ("v100", "m", 2): 0.025})
    # 3 steps in 100 s of one, 2 of the other: both go on at 100 s.
    jobs = [job("a", 5), job("b", 3, gpus=2, line=3)]
    a, b = simulate(jobs, table, "v100:4").jobs
    assert a.end_seconds == pytest.approx(100 + 2 / 0.03)
    assert b.end_seconds == pytest.approx(100 + 1 / 0.025)


def test_a_job_keeps_its_gpus_until_all_leases_end() -> None:
    table = Throughputs({("v100", "m", 1): 0.1, ("v100", "m", 4): 0.1})
    jobs = [job("a", 2), job("b", 10, line=3), job("c", 1, gpus=4, line=4)]
    a, b, c = simulate(jobs, table, "v100:4").jobs
    assert [a.end_seconds, b.end_seconds] == pytest.approx([20, 100])
    assert [c.start_seconds, c.end_seconds] == pytest.approx([100, 110])


def test_a_gang_with_fewer_steps_left_than_gpus_is_dropped() -> None:
    table = Throughputs({("v100", "m", 1): 1.0, ("v100", "m", 4): 1.0})
    jobs = [job("a", 203, gpus=4), job("b", 7, line=3)]
    assert [o.id for o in simulate(jobs, table, "v100:4").jobs] == ["a", "b"]
    outcome = simulate(jobs, table, "v100:4", leases="Strict")
    (b,) = outcome.jobs
    assert outcome.submitted == 2
    assert b.id == "b"
    assert b.start_seconds == pytest.approx(200 + 3 * 3)


PAIRED = f"""name = "{ROOT}/benchmarks/fidelity/gavel_ways/rounds.py:Las"
own = {{ round_seconds = 100.0, space_sharing = true }}
"""


def test_two_on_the_same_gpu_are_done_when_the_later_one_is() -> None:
    table = Throughputs({("v100", "m", 1): 1.0}, {("v100", "m", 1, "m", 1): 0.8})
    jobs = [job("a", 50), job("b", 70, line=3)]
    outcome = simulate(jobs, table, "v100:1", leases="Strict", policy=PAIRED)
    assert [o.start_seconds for o in outcome.jobs] == [0, 0]
    assert [o.end_seconds for o in outcome.jobs] == pytest.approx([70 / 0.8] * 2)


def test_a_job_does_not_ask_for_a_type_that_it_cannot_run_on() -> None:
    table = Throughputs({("v100", "m", 1): 1.0, ("k80", "m", 1): 0.0})
    jobs = [job("a", 90), job("b", 90, line=3)]
    outcome = simulate(jobs, table, "v100:1,k80:1", policy='name = "gavel-las"')
    a, b = outcome.jobs
    assert [a.start_seconds, a.end_seconds] == pytest.approx([0, 90])
    assert b.start_seconds >= 90


def test_nothing_is_measured_where_jobs_do_not_tell() -> None:
    table = Throughputs({("v100", "m", 1): 1.0})
    for measure, expected in (("true", 1), ("false", 0)):
        settings = parse_settings(f"{IDEAL}measure_rates = {measure}\n", "s.toml")
        seen: list[int] = []
        Simulation(
            Path("t"),
            [job("a", 500), job("b", 500, at=200.0, line=3)],
            parse_cluster("v100:2", 2),
            settings,
            table,
            on_cycle=lambda cycle, seen=seen: seen.append(len(cycle.snapshot.rates)),  # type: ignore[misc]
        ).run()
        assert max(seen) == expected


def test_leases_and_rounds_exclude_each_other() -> None:
    with pytest.raises(SettingsError, match="both say when jobs end"):
        parse_settings(f'{IDEAL}progress = "./leases.py:Kind"\nround_seconds = 60.0\n', "s.toml")
