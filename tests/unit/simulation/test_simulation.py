# SPDX-License-Identifier: GPL-2.0-or-later
"""Whole simulations: the live loop and executor, several policies, costs, rounds, files that come out."""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.cli.main import main
from controller.cluster.port import ClusterJob
from controller.cluster.simulated import SimulatedCluster
from controller.errors import GandivaError
from controller.model import JobId, Memory, Plan, Snapshot
from controller.policies.assemble import make_policy
from controller.policies.presets import PRESETS
from controller.policies.protocol import Policy
from controller.settings.loading import parse_settings
from controller.settings.policies import PolicySettings
from controller.settings.schema import Settings
from controller.simulation.cluster_spec import parse_cluster
from controller.simulation.driver import Simulation
from controller.simulation.ground_truth import GroundTruth, Throughputs, read_throughputs
from controller.simulation.metrics import summary
from controller.simulation.outcome import Outcome
from controller.simulation.plots import svg
from controller.simulation.traces import TraceError, TraceJob, read_trace
from tests.unit.draws import draws

IDEAL = """
[requests]
suspend = "requeue"
[simulation]
rpc_seconds = 0.0
start_seconds = 0.0
step_seconds = 0.0
suspend_seconds = 0.0
resume_seconds = 0.0
requeue_seconds = 0.0
restart_seconds = 0.0
checkpoint_bytes_per_second = 0
"""
POLICIES = ["fifo", "fifo-skip", "sjf", "srtf", "srsf", "tiresias-las", "tiresias-gittins"]


def trace(count: int, seed: int = 1, sizes: tuple[int, ...] = (1, 1, 1, 2, 4, 8)) -> list[TraceJob]:
    rng = random.Random(seed)
    jobs, now = [], 0.0
    for number in range(count):
        jobs.append(TraceJob(str(number), now, rng.choice(sizes), float(rng.randint(1, 900)), number + 2))
        now += rng.randint(0, 120)
    return jobs


def run(
    jobs: list[TraceJob],
    text: str,
    policy: str,
    cluster: str = "v100:16",
    gpus: int = 4,
    wrap: Callable[[PolicySettings], Policy] = make_policy,
) -> Outcome:
    made = parse_settings(text)
    chosen = made.policy.model_copy(update={"name": policy})
    made = made.model_copy(update={"policy": chosen})
    spec = parse_cluster(cluster, gpus)
    return Simulation(Path("t"), jobs, spec, made, policy=wrap(chosen)).run()


def check(outcome: Outcome, jobs: list[TraceJob]) -> None:
    """What holds whatever the policy and the costs."""
    assert len(outcome.jobs) == len(jobs)
    for job, given_job in zip(outcome.jobs, jobs, strict=True):
        assert job.id == given_job.id
        assert given_job.duration_seconds is not None
        assert job.start_seconds >= job.submit_seconds - 1e-6
        # The controller sees a start with the delay of its own look at Slurm, at most a second.
        late = 1.1 * (1 + job.preemptions)
        assert job.run_seconds >= given_job.duration_seconds - late
        assert job.jct_seconds >= given_job.duration_seconds - 1e-3
    assert all(0 <= used <= outcome.gpus for _, used in outcome.usage)
    assert outcome.usage[-1][1] == 0
    span = outcome.usage[-1][0] - outcome.usage[0][0]
    assert outcome.gpu_seconds <= outcome.gpus * span + 1e-3


@pytest.mark.parametrize("policy", [*POLICIES, "gandiva"])
@pytest.mark.parametrize("text", [IDEAL, "", '[requests]\nsuspend = "requeue"'])
def test_every_policy_finishes_every_job(policy: str, text: str) -> None:
    sizes = (1, 1, 2, 4) if policy == "gandiva" else (1, 1, 1, 2, 4, 8)
    jobs = trace(40, sizes=sizes)
    check(run(jobs, text, policy), jobs)


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_input_gives_equal_output(policy: str) -> None:
    jobs = trace(30)
    first, second = run(jobs, "", policy), run(jobs, "", policy)
    assert first.jobs == second.jobs and first.usage == second.usage


@settings(max_examples=draws(8, 150))
@given(seed=st.integers(0, 10**6), policy=st.sampled_from(POLICIES), counting=st.booleans())
def test_ideal_runs_lose_no_second(seed: int, policy: str, counting: bool) -> None:
    jobs = trace(25, seed)
    text = IDEAL + ('placement = "count"\n' if counting else "")
    outcome = run(jobs, text, policy)
    check(outcome, jobs)
    for job, given_job in zip(outcome.jobs, jobs, strict=True):
        assert job.run_seconds == pytest.approx(given_job.duration_seconds, abs=1e-3)
    # With nothing to wait for, every policy starts the first job at once.
    assert outcome.jobs[0].start_seconds == outcome.jobs[0].submit_seconds


def test_restarts_cost_what_the_settings_say() -> None:
    jobs = [TraceJob("long", 0, 1, 100, 2), TraceJob("short", 10, 1, 5, 3)]
    text = IDEAL.replace("restart_seconds = 0.0", "restart_seconds = 30.0")
    outcome = run(jobs, text, "srtf", "v100:1", 1)
    long, short = outcome.jobs
    assert (short.start_seconds, short.end_seconds) == (10, 15)
    assert long.preemptions == 1
    assert long.end_seconds == pytest.approx(100 + 5 + 30)


def test_suspend_and_resume_cost_what_the_settings_say() -> None:
    jobs = [TraceJob("long", 0, 1, 100, 2), TraceJob("short", 10, 1, 5, 3)]
    text = "[simulation]\n" + "".join(
        f"{key}_seconds = {value}\n"
        for key, value in {"rpc": 0.0, "start": 0.0, "step": 1.0, "suspend": 2.0, "resume": 3.0}.items()
    )
    long, short = run(jobs, text, "srtf", "v100:1", 1).jobs
    # One mini-batch is still done while it is asked to stop; then 2 s off, and 3 s back.
    assert short.start_seconds == pytest.approx(13)
    assert long.end_seconds == pytest.approx(18 + 3 + 100 - 11, abs=0.1)


SHORT_QUEUE = '[policy.tiresias]\nqueue_limits = [60.0]\n[requests]\nsuspend = "{}"\n'


@pytest.mark.parametrize(("method", "switch_seconds"), [("cooperative", 1.5), ("requeue", 4.0)])
def test_jobs_train_more_than_they_switch_however_short_the_queues(
    method: str, switch_seconds: float
) -> None:
    """With short queues every job that waits is soon before those that run. Counted is work, not time."""
    rng = random.Random(3)
    jobs = [
        TraceJob(str(n), 40.0 * n, rng.choice((1, 1, 2, 4, 8)), rng.uniform(200, 2000), n + 2)
        for n in range(24)
    ]
    outcome = run(jobs, SHORT_QUEUE.format(method), "tiresias-las", "a100:16", 8)
    check(outcome, jobs)
    assert max(job.preemptions for job in outcome.jobs) > 5, "no such case"
    for job in outcome.jobs:
        assert job.run_seconds >= 10 * switch_seconds * job.preemptions, job
    preemptions = sum(job.preemptions for job in outcome.jobs)
    assert len(outcome.decision_seconds) < 4 * (preemptions + 2 * len(jobs))
    switching = sum(job.preemptions * job.gpus for job in outcome.jobs) * switch_seconds
    assert switching < 0.1 * outcome.gpu_seconds


def test_a_requeue_that_takes_long_is_asked_after_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question is a call to slurmctld, and an event of a simulation."""
    asked = 0
    ask = SimulatedCluster.job

    async def counted(cluster: SimulatedCluster, job_id: JobId) -> ClusterJob:
        nonlocal asked
        asked += 1
        return await ask(cluster, job_id)

    monkeypatch.setattr(SimulatedCluster, "job", counted)
    jobs = [TraceJob("long", 0, 1, 100, 2), TraceJob("short", 10, 1, 5, 3)]
    text = '[requests]\nsuspend = "requeue"\n[simulation]\nrequeue_seconds = 20.0\n'
    long, short = run(jobs, text, "srtf", "v100:1", 1).jobs
    assert long.preemptions == 1 and asked < 60
    assert short.start_seconds == pytest.approx(10 + 22 + 0.5, abs=2), "and it is seen soon all the same"


def test_rounds_start_and_end_jobs_on_their_boundaries() -> None:
    jobs = [TraceJob("a", 5, 1, 130, 2), TraceJob("b", 61, 1, 10, 3)]
    a, b = run(jobs, IDEAL + "round_seconds = 60.0\n", "fifo", "v100:1", 1).jobs
    assert (a.start_seconds, a.end_seconds) == (60, 240)
    assert (b.start_seconds, b.end_seconds) == (240, 300)


def test_jobs_that_nothing_starts_are_an_error_not_a_hang() -> None:
    class Idle:
        def plan(self, snapshot: Snapshot, memory: Memory) -> Plan:
            return Plan({})

    with pytest.raises(GandivaError, match="1 of 1 jobs are left that policy fifo never starts"):
        run([TraceJob("a", 0, 1, 10, 2)], "", "fifo", wrap=lambda _settings: Idle())


def test_skewed_models_are_kept_together_and_others_are_not() -> None:
    jobs = [
        TraceJob("first", 0, 1, 10, 2, model="vgg19"),
        TraceJob("a", 20, 3, 100, 3),
        TraceJob("b", 20, 3, 100, 4),
        TraceJob("skewed", 21, 2, 50, 5, model="vgg19"),
        TraceJob("even", 22, 2, 50, 6, model="resnet50"),
    ]
    outcome = run(jobs, "", "tiresias-las", "v100:8", 4)
    by_id = {job.id: job for job in outcome.jobs}
    # The first job showed the model's skew. Now one GPU is free on each node: the model without skew takes
    # both, the skewed one waits for a whole pair.
    assert by_id["even"].start_seconds == pytest.approx(22, abs=2)
    assert by_id["skewed"].start_seconds == pytest.approx(120, abs=3)


def test_a_skewed_model_that_must_be_spread_is_slower() -> None:
    truth = GroundTruth(Throughputs(), "v100")
    assert truth.relative_rate("vgg19", 8, "v100", spread=True) == 0.72
    assert truth.relative_rate("resnet50", 8, "v100", spread=True) == 1.0


def test_throughputs_by_type_gang_placement_and_company(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(
        json.dumps(
            {
                "v100": {"('m', 2)": {"null": 10.0, "('n', 2)": [6.0, 3.0], "('o', 2)": [0.0, 0.0]}},
                "v100_unconsolidated": {"('m', 2)": {"null": 4.0}},
                "k80": {"('m', 2)": {"null": 2.5}},
            }
        )
    )
    truth = GroundTruth(read_throughputs(path), "v100")
    assert truth.steps_per_second("m", 2) == 10
    assert truth.relative_rate("m", 2, "v100", spread=False) == 1
    assert truth.relative_rate("m", 2, "v100", spread=True) == 0.4
    assert truth.relative_rate("m", 2, "k80", spread=False) == 0.25
    assert truth.relative_rate("m", 2, "v100", spread=False, beside=[("n", 2)]) == 0.6
    assert truth.relative_rate("m", 2, "k80", spread=False, beside=[("n", 2)]) == 0.125, "not measured"
    assert truth.relative_rate("m", 2, "v100", spread=False, beside=[("o", 2)]) == 0.5, "measured as 0"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"v100": {"(\'m\', 1)": {"null": 1.0}}, "v100": {"(\'m\', 1)": {"null": 2.0}}}',
            "the key 'v100' is there twice",
        ),
        (
            '{"v100": {"(\'m\', 1)": {"null": 1.0}, "(\'m\', 1)": {"null": 2.0}}}',
            "v100: the key \"('m', 1)\" is there twice",
        ),
        (
            '{"k80": {}, "v100": {"(\'m\', 1)": {"null": 1.0, "null": 2.0}}}',
            "v100.('m', 1): the key 'null' is there twice",
        ),
        (  # the same key in another spelling
            '{"v100": {"(\'m\', 1)": {"null": 1.0}, "(\'m\',1)": {"null": 2.0}}}',
            "v100: ('m',1): null: is there twice",
        ),
        (
            '{"v100": {"(\'m\', 1)": {"(\'n\', 1)": [1.0, 2.0], "(\'n\',1)": [2.0, 1.0]}}}',
            "v100: ('m', 1): ('n',1): is there twice",
        ),
    ],
)
def test_a_key_that_is_there_twice_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(GandivaError) as caught:
        read_throughputs(path)
    assert str(caught.value) == f"{path}: {said}"


@pytest.mark.parametrize("rate", ["NaN", "-1", "1e300", '"x"', "[6.0, NaN]", "[1]", "{}"])
def test_a_rate_that_is_none_is_named(rate: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(f'{{"v100": {{"(\'m\', 1)": {{"null": {rate}}}}}}}')
    said = f"{path}: v100: ('m', 1): null: must be a rate from 0 to below 1e12, or two beside another job"
    with pytest.raises(GandivaError) as caught:
        read_throughputs(path)
    assert str(caught.value) == said


def test_gavel_jobs_run_at_the_speed_of_their_gpus(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"v100": {"('m', 1)": {"null": 10.0}}, "k80": {"('m', 1)": {"null": 2.0}}}))
    jobs = [TraceJob(str(i), 0, 1, None, i + 1, model="m", steps=100.0) for i in range(2)]
    chosen = Settings().policy.model_copy(update={"name": "fifo"})
    made = parse_settings(IDEAL).model_copy(update={"policy": chosen})
    cluster = parse_cluster("v100:1,k80:1", 1)
    first, second = Simulation(Path("t"), jobs, cluster, made, read_throughputs(path)).run().jobs
    assert (first.end_seconds, second.end_seconds) == (10, 50)


NATIVE = "job_id,submit_seconds,duration_seconds,gpus\na,0,100,2\nb,5,50,1\nc,6,300,4\nd,7,20,1\n"
KEYS = {
    *("policy", "jobs", "completed", "makespan_seconds", "avg_jct_seconds", "median_jct_seconds"),
    *("p95_jct_seconds", "p99_jct_seconds", "avg_queueing_seconds", "gpu_utilization_fraction"),
    *("preemptions", "migrations", "decisions", "mean_decision_seconds", "wall_seconds"),
}


def test_the_command_prints_json_and_writes_jobs_and_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(NATIVE)
    out, page = tmp_path / "jobs.csv", tmp_path / "page.html"
    arguments = ["simulate", "--trace", str(path), "--trace-format", "native", "--cluster", "v100:4"]
    arguments += ["--gpus-per-node", "4", "--seed", "3", "--json"]
    arguments += ["--policy", "tiresias-las", "--set", "queue_limits=[50, 500]"]
    assert main([*arguments, "--jobs-out", str(out), "--html", str(page)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer.keys() >= KEYS
    assert (answer["policy"], answer["jobs"], answer["completed"]) == ("tiresias-las", 4, 4)
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["job_id"] for row in rows] == ["a", "b", "c", "d"]
    jct = sum(float(row["jct_seconds"]) for row in rows) / 4
    assert answer["avg_jct_seconds"] == pytest.approx(jct, abs=1e-3)
    text = page.read_text()
    assert text.count("<svg") == 2 and "<script" not in text and "http" not in text


def test_compare_prints_one_table_and_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text(NATIVE)
    arguments = ["simulate", "--trace", str(path), "--trace-format", "native", "--cluster", "v100:4"]
    assert main([*arguments, "--compare", "fifo,srtf"]) == 0
    shown = capsys.readouterr().out
    assert "Policy" in shown and "● fifo  ■ srtf" in shown and "GPUs in use over time" in shown


def test_a_policy_is_compared_with_itself_under_other_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text(NATIVE)
    arguments = ["simulate", "--trace", str(tmp_path / "t.csv"), "--trace-format", "native", "--cluster"]
    labels = ["tiresias-las", "tiresias-las:queue_limits=[60, 600],promote_knob_ratio=0"]
    labels += ["tiresias-las:requests.suspend=cooperative", "gandiva", "fifo"]
    arguments += ["v100:4", "--compare", ",".join(labels)]
    assert main([*arguments, "--jobs-out", str(tmp_path / "jobs.csv"), "--snapshot-every", "1000",
                 "--snapshot-dir", str(tmp_path / "s")]) == 0  # fmt: skip
    shown = capsys.readouterr().out
    assumed = dict(re.findall(r"^  (\S.*?)  +(suspend \(.*?\)|requeue|no preemption)", shown, re.MULTILINE))
    assert assumed == dict(
        zip(labels, ["requeue", "requeue", *["suspend (cooperative)"] * 2, "no preemption"], strict=True)
    )
    with (tmp_path / "jobs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["policy"], row["job_id"]) for row in rows] == [
        (name, id) for name in labels for id in "abcd"
    ]
    assert len(list((tmp_path / "s").iterdir())) == 5, "each has a folder of its own"
    assert main([*arguments, "--json"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["label"] for answer in answers] == labels
    assert [answer["suspend"] for answer in answers][:4] == ["requeue"] * 2 + ["cooperative"] * 2


def test_a_file_of_settings_says_how_all_policies_preempt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text(NATIVE)
    (tmp_path / "s.toml").write_text("[policy]\n")
    arguments = ["simulate", "--trace", str(tmp_path / "t.csv"), "--trace-format", "native", "--json"]
    arguments += ["--cluster", "v100:4", "--policy", "tiresias-las"]
    for options, method in (
        ([], "requeue"),
        (["--set", "requests.suspend=transparent"], "transparent"),
        (["--settings", str(tmp_path / "s.toml")], "cooperative"),
    ):
        assert main([*arguments, *options]) == 0
        assert json.loads(capsys.readouterr().out)["suspend"] == method


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fifo,srtf,fifo", "fifo is there twice"),
        ("queue_limits=[60]", "queue_limits=[60] belongs to no policy: write NAME:queue_limits=[60]"),
        ("fifo,skip=true", "skip=true belongs to no policy"),
        (
            "srtf:nonsense=1",
            "--set nonsense=1: srtf has no such setting; it has backfill; others are named TABLE.KEY",
        ),
        ("tiresias-las:queue_limits=[9,3]", "must be rising numbers"),
        ("tiresias-las:queue_limits=[9", "queue_limits"),
        (":x=1", 'policy.name = ""'),
    ],
)
def test_a_comparison_that_makes_no_sense_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (tmp_path / "t.csv").write_text(NATIVE)
    arguments = ["simulate", "--trace", str(tmp_path / "t.csv"), "--trace-format", "native"]
    assert main([*arguments, "--cluster", "v100:4", "--compare", text]) == 1
    assert message in capsys.readouterr().err


def test_the_description_of_the_site_is_a_cluster_too(tmp_path: Path) -> None:
    text = (Path(__file__).resolve().parents[3] / "configs" / "slurm" / "cluster.toml").read_text()
    (tmp_path / "site.toml").write_text(text)
    spec = parse_cluster(str(tmp_path / "site.toml"), 8)
    assert [node.name for node in spec.nodes] == [f"a{n:02}" for n in range(1, 9)] + ["h01", "h02"]
    assert (spec.of_types(("a100",)), spec.of_types(("h100",)), spec.nodes[0].cpus) == (32, 16, 64)
    (tmp_path / "site.toml").write_text(text.replace('"a100"', '"rtx 6000"'))
    with pytest.raises(GandivaError, match="gpu_model: must be letters, digits and"):
        parse_cluster(str(tmp_path / "site.toml"), 8)


def test_labels_of_a_plot_are_within_it() -> None:
    drawn = svg("Title", [("a", [(3.0, 1.0), (5.0, 2.0)])], lambda x: f"{10**x:,.0f} jobs", str)
    labels = re.findall(r'<text x="([0-9.]+)" y="[0-9.]+" class="m">([^<]+)<', drawn)
    assert labels[0][1] == "1,000 jobs" and labels[-1][1] == "100,000 jobs"
    for middle, label in labels:
        assert float(middle) - 4 * len(label) >= 0 and float(middle) + 4 * len(label) <= 720


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("queue_limits", "must be KEY=VALUE"),
        ("queue_limits=[9, 3]", "must be rising numbers"),
        ("nonsense=1", "--set nonsense=1: tiresias-las has no such setting; it has backfill, queue_limits, "),
        ("simulation.round_seconds=-1", "simulation.round_seconds"),
        ("policy.name=srtf", "--set policy.name=srtf: the policy is tiresias-las already"),
    ],
)
def test_bad_settings_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, message: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(NATIVE)
    arguments = ["simulate", "--trace", str(path), "--trace-format", "native", "--cluster", "v100:4"]
    assert main([*arguments, "--policy", "tiresias-las", "--set", change]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("policy", "change", "key"),
    [
        ("gavel-cost", "prices={a100 = 2.0, h100 = 1.0}", "allocation.prices"),
        ("gavel-makespan", "agnostic_type=h100", "allocation.agnostic_type"),
    ],
)
def test_types_in_the_settings_are_those_of_the_cluster(
    policy: str, change: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("job_id,submit_seconds,duration_seconds,gpus\n1,0,60,1\n")
    command = ["simulate", "--trace", str(trace), "--trace-format", "native"]
    command += ["--cluster", "a100:1,v100:1", "--policy", policy, "--set"]
    assert main([*command, change]) == 1
    said = f"policy.{key}: 'h100' is none of the types a100, v100 of the cluster\n"
    assert capsys.readouterr().err == f"gandiva: {said}"
    assert main([*command, change.replace("h100", "v100")]) == 0


def test_a_comparison_of_nothing_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text(NATIVE)
    arguments = ["simulate", "--trace", str(tmp_path / "t.csv"), "--trace-format", "native"]
    assert main([*arguments, "--cluster", "v100:4", "--compare", ""]) == 1
    assert 'policy.name = ""' in capsys.readouterr().err


def test_a_settings_file_that_is_not_there_is_named_as_this_command_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text(NATIVE)
    arguments = ["simulate", "--trace", str(tmp_path / "t.csv"), "--trace-format", "native"]
    assert main([*arguments, "--cluster", "v100:4", "--settings", str(tmp_path / "none.toml")]) == 1
    said = capsys.readouterr().err
    assert "or name another one with --settings" in said and "GANDIVA_CONFIG" not in said


@pytest.mark.parametrize("option", ["--html", "--jobs-out"])
def test_what_cannot_be_written_is_said_before_anything_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    (tmp_path / "t.csv").write_text(NATIVE)
    other = {"--html": "--jobs-out", "--jobs-out": "--html"}[option]
    arguments = ["simulate", "--trace", str(tmp_path / "t.csv"), "--trace-format", "native"]
    arguments += ["--cluster", "v100:4", other, str(tmp_path / "written"), option]

    def never(_: Simulation) -> Outcome:
        raise AssertionError("simulated")

    monkeypatch.setattr(Simulation, "run", never)
    for place, problem in (("none/x", "there is no folder"), (".", "it is a folder")):
        assert main([*arguments, str(tmp_path / place)]) == 1
        assert problem in capsys.readouterr().err
    assert not (tmp_path / "written").exists()


def test_recorded_decisions_replay_to_the_same_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.csv"
    rows = [f"{j.id},{j.submit_seconds},{j.duration_seconds},{j.gpus}" for j in trace(40, sizes=(1, 2, 4))]
    path.write_text(NATIVE.splitlines()[0] + "\n" + "\n".join(rows) + "\n")
    arguments = ["simulate", "--trace", str(path), "--trace-format", "native", "--cluster", "v100:8"]
    for policy in ("tiresias-las", "gandiva", "fifo"):
        folder = tmp_path / "snapshots"
        options = ["--policy", policy, "--snapshot-every", "200", "--snapshot-dir", str(folder)]
        assert main([*arguments, *options]) == 0
        files = sorted((folder / policy).iterdir())
        assert len(files) > 3
        for file in files:
            capsys.readouterr()
            assert main(["replay", str(file)]) == 0
            assert capsys.readouterr().out.endswith("The same decision as recorded.\n"), file


def test_replay_says_when_the_decision_is_another_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(NATIVE)
    arguments = ["simulate", "--trace", str(path), "--trace-format", "native", "--cluster", "v100:4"]
    folder = tmp_path / "s"
    options = ["--policy", "fifo", "--snapshot-every", "1", "--snapshot-dir", str(folder)]
    assert main([*arguments, *options]) == 0
    file = sorted((folder / "fifo").iterdir())[0]
    content = json.loads(file.read_text())
    content["plan"]["targets"] = {}
    file.write_text(json.dumps(content))
    capsys.readouterr()
    assert main(["replay", str(file)]) == 0
    assert "decided otherwise than recorded" in capsys.readouterr().out
    file.write_text("{}")
    assert main(["replay", str(file)]) == 1
    assert "not a recorded decision" in capsys.readouterr().err


def test_summary_of_known_jobs() -> None:
    jobs = [TraceJob("a", 0, 2, 10, 2), TraceJob("b", 0, 1, 20, 3)]
    values = summary(run(jobs, IDEAL, "fifo", "v100:2", 2))
    assert values["avg_jct_seconds"] == 20 and values["median_jct_seconds"] == 20
    assert values["makespan_seconds"] == 30 and values["avg_queueing_seconds"] == 5
    assert values["gpu_utilization_fraction"] == pytest.approx((20 + 20) / 60)


def test_a_description_of_the_cluster_is_refused_with_all_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[[nodes]]\ngpu_mode = "a100"\ngpus = 0\n')
    with pytest.raises(GandivaError) as caught:
        parse_cluster(str(path), 8)
    assert str(caught.value) == (
        f"{path}: nodes.0.gpu_model: missing, and there is no default; nodes.0.gpus: must be greater"
        " than or equal to 1; nodes.0.gpu_mode: no such key"
        " (keys of [[nodes]]: count, gpu_model, gpus, switch, cpus, memory, partitions; a site's"
        " description has [cluster] and [[partitions]] too)"
    )


@pytest.mark.parametrize("text", ["", ",", ".", "a100", "a100:0", "a100:500000,h100:500001", "c.toml"])
def test_a_cluster_that_cannot_be_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text('[[nodes]]\ngpu_model = "a100"\ngpus = 1024\ncount = 1000\n')
    words = {"a100:0": "no GPUs at all", "a100:500000,h100:500001": "more than 1,000,000 GPUs"}
    words["c.toml"] = "more than 1,000,000 GPUs"
    with pytest.raises(GandivaError, match=words.get(text, "neither entries such as")):
        parse_cluster(text, 8)


def test_steps_without_a_table_of_throughputs_say_which_option_is_missing() -> None:
    job = TraceJob("a", 0, 1, None, 2, model="resnet50", steps=100.0)
    with pytest.raises(TraceError, match="--throughputs names the table"):
        run([job], IDEAL, "fifo", "v100:2", 2)


def test_a_model_that_can_run_nowhere_is_refused_and_names_its_line(tmp_path: Path) -> None:
    """Its types, or all where it names none, have a throughput of 0 for its model."""
    rates = {
        ("k80", "lstm", 1): 4.0,
        ("v100", "lstm", 1): 0.0,
        ("k80", "gan", 1): 0.0,
        ("v100", "gan", 1): 0.0,
    }
    cluster, table = parse_cluster("k80:1,v100:1", 1), Throughputs(rates)
    native = tmp_path / "jobs.csv"
    header = "job_id,submit_seconds,duration_seconds,gpus,model,gpu_types\n1,0,60,1,lstm,\n"
    made = parse_settings('[policy]\nname = "fifo"\n')
    for job, types in (("2,0,60,1,gan,", "k80, v100"), ("2,0,60,1,lstm,v100", "v100")):
        native.write_text(header + job + "\n")
        jobs = read_trace(native, "native")
        said = f"line 3: job 2: the throughput of '{jobs[1].model}' with 1 GPU is 0 on {types} "
        with pytest.raises(TraceError, match=re.escape(said)):
            Simulation(native, jobs, cluster, made, table)
        without = parse_settings('[policy]\nname = "fifo"\n[simulation]\ndrop_unfinishable = true\n')
        assert len(Simulation(native, jobs, cluster, without, table).run().jobs) == 1
    native.write_text(header + "2,0,60,1,lstm,v100+k80\n")
    assert len(Simulation(native, read_trace(native, "native"), cluster, made, table).run().jobs) == 2


@pytest.mark.parametrize("policy", sorted(PRESETS))
@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            "z,30,300,8,,",
            "8 GPUs, in equal parts on nodes of one GPU model, fit nowhere: k80 has 1 x 4; p100 has",
        ),
        ("z,30,300,5,,", "5 GPUs, in equal parts on nodes of one GPU model, fit nowhere"),
        ("z,30,300,4,2,", "4 GPUs on 2 nodes, in equal parts on nodes of one GPU model, fit nowhere"),
        (
            "z,30,300,8,,v100+p100",
            "8 GPUs, in equal parts on nodes of one GPU model, fit nowhere: p100 has 1 x 4; v100",
        ),
    ],
)
def test_a_job_that_fits_no_node_or_type_is_refused_under_every_policy(
    tmp_path: Path, policy: str, row: str, said: str
) -> None:
    native, made = tmp_path / "jobs.csv", f'[policy]\nname = "{policy}"\n'
    native.write_text(
        "job_id,submit_seconds,duration_seconds,gpus,nodes,gpu_types\na,0,600,4,,\n" + row + "\n"
    )
    jobs, cluster = read_trace(native, "native"), parse_cluster("v100:4,p100:4,k80:4", 4)
    place = f"{native}: line 3, column `gpus`: job z: "
    with pytest.raises(TraceError, match=re.escape(place + said)):
        Simulation(native, jobs, cluster, parse_settings(made))
    without = parse_settings(made + "[simulation]\ndrop_unfinishable = true\n")
    outcome = Simulation(native, jobs, cluster, without).run()
    assert (outcome.submitted, [job.id for job in outcome.jobs]) == (2, ["a"])


def crowd(weight: float, **account: str) -> list[TraceJob]:
    """Six long jobs of one user on two GPUs, then four minutes of work of another user."""
    many = [
        TraceJob(f"a{n}", 0.0, 1, 2_880.0, n + 2, user="alice", weight=weight, **account)  # type: ignore[arg-type]
        for n in range(6)
    ]
    return [*many, TraceJob("b", 60.0, 1, 240.0, 8, user="bob", account="physics")]


def others_wait(jobs: list[TraceJob], text: str = "") -> float:
    """How long the other user's job takes."""
    return next(job.jct_seconds for job in run(jobs, text, "gandiva", "v100:2").jobs if job.id == "b")


def test_a_users_weights_slow_others_no_more_than_the_sites_limits_allow() -> None:
    equal = others_wait(crowd(1.0))
    assert others_wait(crowd(100.0)) <= 4.2 * equal, "the site's default limit is 4"
    limited = "[requests.max_weight_by_account]\nml = 1.0"
    assert others_wait(crowd(100.0, account="ml"), limited) == pytest.approx(equal, rel=0.1)
    by_qos = limited + "\n[requests.max_weight_by_qos]\nurgent = 3.0"
    urgent = others_wait(crowd(100.0, account="ml", qos="urgent"), by_qos)
    assert urgent == pytest.approx(others_wait(crowd(3.0)), rel=0.01), "the QOS comes before the account"
