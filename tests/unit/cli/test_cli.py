# SPDX-License-Identifier: GPL-2.0-or-later
"""The command line as people use it: output, errors, exit status."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import pwd
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.api import server as server_module
from controller.api.answers import Answers
from controller.api.server import ApiServer
from controller.cli.main import build_parser, main
from controller.journal import JournalReader
from tests.unit.api import scene

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GANDIVA_CONFIG", "GANDIVA_REPORT_FORMAT", "SLURM_TIME_FORMAT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "no-sacct-here"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("controller.settings.loading.DEFAULT_PATH", tmp_path / "none.toml")
    monkeypatch.setattr(server_module, "POLL_SECONDS", 0.02)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    scene.write_journal(tmp_path / "journal")
    server = ApiServer("127.0.0.1:0", Answers(scene.live_state(), JournalReader(tmp_path / "journal")))
    server.start()
    yield f"http://127.0.0.1:{server.port}"
    server.stop()


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = main(list(argv))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    output = capsys.readouterr()
    return code, output.out, output.err


# -- report ------------------------------------------------------------------------------------


def test_report(capsys: pytest.CaptureFixture[str], url: str) -> None:
    code, out, err = run(capsys, "report", "-a", "-S", "2000-01-01", "--url", url)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "JobID    JobName        User GPUs Weight      State    Elapsed    GPUTime  Share"
    assert set(lines[1]) == {"-", " "}
    assert lines[2].split() == [
        "100",
        "done",
        "alice",
        "2",
        "1",
        "COMPLETED",
        "01:00:00",
        "01:00:00",
        "50.0%",
    ]
    assert [line.split()[0] for line in lines[2:]] == ["100", "101", "102", "103", "104", "105"]
    assert max(len(line) for line in lines) <= 80


@pytest.mark.parametrize(
    ("options", "jobs"),
    [
        (["-a", "-S", "2000-01-01", "-s", "cd"], ["100"]),
        (["-j", "100,103"], ["100", "103"]),
        (["-u", "carol,dave", "-S", "2000-01-01"], ["103", "104", "105"]),
        (["-a", "-A", "vision", "-r", "gpu", "-S", "2000-01-01", "--limit", "1"], ["105"]),
        (["-a", "-S", "2000-01-01", "-E", "2000-01-02"], []),
        (["-a"], ["101", "102", "103", "104", "105"]),
    ],
)
def test_report_filters(
    capsys: pytest.CaptureFixture[str], url: str, options: list[str], jobs: list[str]
) -> None:
    code, out, _ = run(capsys, "report", "-n", "-P", "-o", "JobID", *options, "--url", url)
    assert code == 0
    assert out.split() == jobs


def test_report_shows_ones_own_jobs_unless_told_otherwise(
    capsys: pytest.CaptureFixture[str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    carol = pwd.struct_passwd(("carol", "x", 4242, 4242, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: carol)
    assert run(capsys, "report", "-nPo", "JobID", "--url", url)[1].split() == ["103", "104"]
    assert run(capsys, "report", "-nPo", "JobID", "-j", "101", "--url", url)[1].split() == ["101"]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert len(run(capsys, "report", "-nPo", "JobID", "--url", url)[1].split()) == 5


def test_report_reads_the_journal_where_no_controller_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scene.write_journal(tmp_path / "journal")
    code, out, _ = run(
        capsys, "report", "-nP", "-o", "JobID,State", "-j", "100", "--journal", str(tmp_path / "journal")
    )
    assert (code, out) == (0, "100|COMPLETED\n")


def test_report_joins_sacct(
    capsys: pytest.CaptureFixture[str], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "sacct"
    program.write_text("#!/bin/sh\necho '101|77_1|TIMEOUT|0:1|2023-11-14T22:00:00|2023-11-14T21:00:00'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    options = ["report", "-nP", "-o", "JobID,State,ExitCode", "-j", "101", "--url", url]
    assert run(capsys, *options)[1] == "77_1|TIMEOUT|0:1\n"
    assert run(capsys, *options, "--no-sacct")[1] == "101|RUNNING|\n"
    program.write_text("#!/bin/sh\necho 'slurmdbd is down' >&2; exit 1\n")
    code, out, err = run(capsys, *options)
    assert (code, out) == (0, "101|RUNNING|\n")
    assert err == "gandiva: sacct failed: slurmdbd is down; reporting without it\n"


SACCT = """
101|101_0|RUNNING|0:0|Unknown|Unknown
102|101_1|SUSPENDED|0:0|Unknown|Unknown
103|103_2|RUNNING|0:0|Unknown|Unknown
104|103_7|RUNNING|0:0|Unknown|Unknown
105|103_[8-11%2]|PENDING|0:0|Unknown|Unknown
"""


@pytest.mark.parametrize(
    ("words", "jobs"),
    [
        ("101", "101 102"),
        ("100,101", "100 101 102"),
        ("102", "102"),
        ("101_0", "101"),
        ("101_[0-3]", "101 102"),
        ("101_[1,3],103_[0-2,9]", "102 103 105"),
        ("103_[1-9:2]", "104 105"),
        ("103_10", "105"),
        ("103_[7-8%2]", "104 105"),
        ("101_1,101", "101 102"),
        ("4711", ""),
    ],
)
@pytest.mark.parametrize("tool", ["sacct", "scontrol"])
def test_report_takes_arrays_and_tasks_as_sacct_does(
    capsys: pytest.CaptureFixture[str],
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tool: str,
    words: str,
    jobs: str,
) -> None:
    shown = SACCT
    if tool == "scontrol":
        rows = [line.split("|")[:2] for line in SACCT.split()]
        tasks = [(number, *name.replace("[", "").replace("]", "").split("_")) for number, name in rows]
        shown = "".join(
            f"JobId={n} ArrayJobId={array} ArrayTaskId={task} JobName=x\n" for n, array, task in tasks
        )
    (tmp_path / "answer").write_text(shown)
    (tmp_path / tool).write_text(f"#!/bin/sh\nexec /bin/cat {tmp_path}/answer\n")
    (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    options = ["report", "-nPo", "JobIDRaw", "--url", url, "-j", words]
    options += [] if tool == "sacct" else ["--no-sacct"]
    code, out, err = run(capsys, *options)
    assert (code, err) == (0, "") and sorted(out.split()) == jobs.split()
    if tool == "sacct" and jobs:
        said = [
            json.loads(line)
            for line in run(capsys, "explain", "--json", "--url", url, words)[1].split("\n")[:-1]
        ]
        assert sorted({str((one["live"] or one["job"])["job_id"]) for one in said}) == jobs.split()


@pytest.mark.public
@pytest.mark.parametrize(
    ("words", "jobs", "unknown"),
    [
        ("101_[0-3],101_99", "101 102", ["101_99"]),
        ("7_1,100,103_[50-60]", "100", ["7_1", "103_[50-60]"]),
        ("20+0", "104", []),
        ("20", "104 105", []),
        ("20+[0-1],20+1,101_0", None, []),
        ("20+1,101_0,20+2", "101 105", ["20+2"]),
        ("104.batch", None, []),
    ],
)
@pytest.mark.parametrize("tool", ["sacct", "scontrol"])
def test_a_report_has_the_jobs_that_slurm_knows_and_names_the_others(
    capsys: pytest.CaptureFixture[str],
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tool: str,
    words: str,
    jobs: str | None,
    unknown: list[str],
) -> None:
    shown = SACCT[: SACCT.index("104|")] + "104|20+0|RUNNING|0:0|Unknown|Unknown\n"
    shown += "105|20+1|RUNNING|0:0|Unknown|Unknown\n"
    if tool == "scontrol":
        shown = "JobId=101 ArrayJobId=101 ArrayTaskId=0 JobName=x\nJobId=102 ArrayJobId=101 ArrayTaskId=1\n"
        shown += "JobId=104 HetJobId=20 HetJobOffset=0 JobName=x\nJobId=105 HetJobId=20 HetJobOffset=1\n"
    (tmp_path / "answer").write_text(shown)
    (tmp_path / tool).write_text(f"#!/bin/sh\nexec /bin/cat {tmp_path}/answer\n")
    (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    options = ["report", "-nPo", "JobIDRaw", "--url", url, "-j", words]
    code, out, err = run(capsys, *options, *(["--no-sacct"] if tool == "scontrol" else []))
    if jobs is None:
        assert (code, out) == (2, "") and "is not a job id: 12, or 12_3 or 12_[0-3,7] for tasks" in err
        return
    assert (code, sorted(out.split())) == (0, jobs.split())
    assert err.splitlines() == [
        f"gandiva: Slurm knows no job {word}: neither sacct nor scontrol here" for word in unknown
    ]


def test_several_names_none_of_which_slurm_knows_are_an_error(
    capsys: pytest.CaptureFixture[str], url: str
) -> None:
    code, out, err = run(capsys, "report", "-j", "101_3,101_[5-7]", "--url", url)
    assert (code, out) == (1, "")
    assert (
        err
        == "gandiva: "
        + "; ".join(
            f"Slurm knows no job {word}: neither sacct nor scontrol here" for word in ("101_3", "101_[5-7]")
        )
        + "\n"
    )


def test_a_task_that_slurm_does_not_know_is_said(capsys: pytest.CaptureFixture[str], url: str) -> None:
    for command in (["report", "-j"], ["explain"]):
        code, out, err = run(capsys, *command, "101_3", "--url", url)
        assert (code, out) == (1, "") and "Slurm knows no job 101_3: neither sacct nor scontrol" in err


def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """It alone is in PATH. What it is asked goes into the file that is returned, a line each."""
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n{script}\n')
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "asked"


@pytest.mark.parametrize("command", [["report", "--no-sacct", "-nPo", "JobIDRaw", "-j"], ["explain"]])
def test_a_slurmctld_that_does_not_answer_is_asked_once(
    capsys: pytest.CaptureFixture[str],
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
) -> None:
    asked = scontrol(tmp_path, monkeypatch, "exec /bin/sleep 60")
    monkeypatch.setattr("controller.reports.slurm_job.DEADLINE_SECONDS", 0.3)
    code, out, _ = run(capsys, *command, "100,101,102", "--url", url)
    assert code == 0 and all(number in out for number in ("100", "101", "102"))
    assert len(asked.read_text().splitlines()) == 1


def test_only_so_many_jobs_are_asked_for_one_by_one(
    capsys: pytest.CaptureFixture[str], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = scontrol(tmp_path, monkeypatch, "exit 1")
    unknown = ",".join(str(number) for number in (*range(4000, 4060), 100, 100))
    out = run(capsys, "report", "--no-sacct", "-nPo", "JobIDRaw", "-j", unknown, "--url", url)[1]
    assert out.split() == ["100"]
    assert len(asked.read_text().splitlines()) == 50


def test_explain_asks_once_for_the_tasks_of_an_array(
    capsys: pytest.CaptureFixture[str], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = scontrol(tmp_path, monkeypatch, "echo JobId=101 ArrayJobId=101 ArrayTaskId=0 JobName=x")
    assert run(capsys, "explain", "101_0", "101", "--url", url)[0] == 0
    assert run(capsys, "explain", "101_1", "--url", url)[0] == 1
    assert len(asked.read_text().splitlines()) == 2, "each command once"


def test_an_array_of_many_tasks_is_explained_in_part(
    capsys: pytest.CaptureFixture[str], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = "".join(
        f"JobId={number} ArrayJobId=100 ArrayTaskId={number} JobName=x\\n" for number in range(100, 106)
    )
    scontrol(tmp_path, monkeypatch, f"printf '{tasks}'")
    monkeypatch.setattr("controller.cli.explain.MAX_TASKS", 3)
    code, out, err = run(capsys, "explain", "--json", "100_[0-200]", "101", "--url", url)
    shown = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [(one["live"] or one["job"])["job_id"] for one in shown] == [100, 101, 102, 101]
    assert err == "gandiva: 100_[0-200] is an array; these are 3 of 6 tasks\n"


def test_more_jobs_than_the_controller_takes_at_a_time(
    capsys: pytest.CaptureFixture[str], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = (f"{number}|100_{number}|RUNNING|0:0|Unknown|Unknown" for number in range(3000))
    (tmp_path / "answer").write_text("\n".join(tasks))
    (tmp_path / "sacct").write_text(f"#!/bin/sh\nexec /bin/cat {tmp_path}/answer\n")
    (tmp_path / "sacct").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    out = run(capsys, "report", "-nPo", "JobIDRaw", "-j", "100", "--url", url)[1]
    assert out.split() == ["100", "101", "102", "103", "104", "105"]


def test_report_json(capsys: pytest.CaptureFixture[str], url: str) -> None:
    code, out, _ = run(capsys, "report", "-j", "100", "--json", "--url", url)
    (job,) = json.loads(out)["jobs"]
    assert code == 0 and job["gpu_seconds"] == 3600 and job["share_fraction"] == 0.5


def test_report_says_when_there_is_more(capsys: pytest.CaptureFixture[str], url: str) -> None:
    _, out, err = run(capsys, "report", "-a", "-nPo", "JobID", "--limit", "2", "--url", url)
    assert out.split() == ["104", "105"]
    assert "there are more" in err


def test_report_format_from_the_environment(
    capsys: pytest.CaptureFixture[str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANDIVA_REPORT_FORMAT", "User,JobID")
    assert run(capsys, "report", "-nP", "-j", "100", "--url", url)[1] == "alice|100\n"
    assert run(capsys, "report", "-nP", "-j", "100", "-b", "--url", url)[1].startswith("100|COMPLETED|")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["-o", "Colour"], 1, "gandiva: --format: there is no column 'Colour'"),
        (["-S", "soon"], 1, "gandiva: 'soon' is not a time"),
        (["-S", "2024-05-02", "-E", "2024-05-01"], 1, "gandiva: --endtime is before --starttime"),
        (["-s", "HAPPY"], 1, "gandiva: 'HAPPY' is not a job state"),
        (["-j", "12a"], 2, "'12a' is not a job id"),
        (["-j", ","], 2, "the list is empty"),
        (["--units", "X"], 2, "invalid choice"),
        (["--limit", "0"], 2, "not a whole number"),
        (["--deadline", "nan"], 2, "not a number of seconds"),
        (["--url", "ftp://x"], 1, "gandiva: --url ftp://x: must be a URL"),
        (["--journal", "/nowhere/j"], 1, "gandiva: there is no journal /nowhere/j"),
        (["--no-such-option"], 2, "unrecognized arguments"),
    ],
)
def test_mistakes_give_one_message(
    capsys: pytest.CaptureFixture[str], options: list[str], code: int, message: str
) -> None:
    status, out, err = run(capsys, "report", *options)
    assert (status, out) == (code, "")
    assert message in err and "Traceback" not in err


def test_no_controller(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = tmp_path / "gandiva.toml"
    settings.write_text('[cluster]\ncontroller_host = "127.0.0.1"\n[api]\nlisten = "0.0.0.0:1"\n')
    for command in (["report"], ["explain", "1"], ["status"], ["top", "--once"]):
        code, out, err = run(capsys, *command, "--config", str(settings))
        assert (code, out) == (1, "")
        assert err.startswith(
            "gandiva: cannot reach the Gandiva controller at http://127.0.0.1:1 (Connection refused)"
        )
        assert err.count("\n") == 1


# -- the others --------------------------------------------------------------------------------


def test_explain(capsys: pytest.CaptureFixture[str], url: str) -> None:
    code, out, _ = run(capsys, "explain", "102", "105", "--url", url)
    assert code == 0
    assert "Job 102 (train-102, bob) is suspended and waits for its turn" in out
    assert "no node has 4 free GPUs" in out
    answers = run(capsys, "explain", "--json", "102", "--url", url)[1]
    assert json.loads(answers)["live"]["phase"] == "suspended"
    code, _, err = run(capsys, "explain", "4711", "--url", url)
    assert code == 1 and "there is no job 4711" in err


def test_explain_says_of_a_job_that_is_over_what_the_report_says(
    capsys: pytest.CaptureFixture[str], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "sacct"
    program.write_text("#!/bin/sh\necho '100|100|FAILED|255:0|2023-11-14T19:00:00|2023-11-14T18:00:00'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    report = run(capsys, "report", "-nP", "-o", "State,ExitCode,End", "-j", "100", "--url", url)[1]
    assert report.startswith("FAILED|255:0|")
    said = run(capsys, "explain", "100", "--url", url)[1]
    assert "is over: FAILED" in said and "exit code 255:0" in said
    assert json.loads(run(capsys, "explain", "--json", "100", "--url", url)[1])["job"]["state"] == "FAILED"


def test_status(capsys: pytest.CaptureFixture[str], url: str) -> None:
    code, out, _ = run(capsys, "status", "--url", url)
    assert code == 0 and out.startswith(f"The controller at {url} works.\n")
    assert json.loads(run(capsys, "status", "--json", "--url", url)[1])["policy"] == "gandiva"


def test_top_prints_one_picture_for_pipes(capsys: pytest.CaptureFixture[str], url: str) -> None:
    for options in (["--once"], []):  # the output is no terminal here
        code, out, _ = run(capsys, "top", *options, "--width", "80", "--color", "never", "--url", url)
        assert code == 0
        assert "101 alice train-101" in out and "\x1b" not in out
        assert all(line == line.rstrip() and len(line) <= 80 for line in out.splitlines())
    assert "\x1b[" in run(capsys, "top", "-1", "--color", "always", "--url", url)[1]


def test_config_show_check_and_sample(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "gandiva.toml"
    _, sample, _ = run(capsys, "config", "sample")
    path.write_text(sample + "\n")
    code, out, _ = run(capsys, "config", "check", str(path))
    assert code == 0 and out.startswith(f"{path}: valid\n")
    path.write_text("[loop]\ninterval_seconds = 5.0\n")
    code, out, _ = run(capsys, "config", "show", "--config", str(path))
    assert code == 0 and "interval_seconds = 5.0  # set\n" in out
    shown = json.loads(run(capsys, "config", "show", "--json", "--config", str(path))[1])
    assert shown["loop"]["interval_seconds"] == 5.0 and shown["requests"]["suspend"] == "cooperative"
    path.write_text("[loop]\nintervall_seconds = 5.0\n")
    code, out, err = run(capsys, "config", "check", str(path))
    assert (code, out) == (1, "")
    assert err == f"gandiva: {path}: loop.intervall_seconds: no such key; did you mean interval_seconds?\n"


def test_config_show_without_a_file_shows_the_defaults(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = run(capsys, "config", "show")
    assert (code, err) == (0, "") and "interval_seconds = 1.0" in out
    assert out.startswith(
        f"# in force with the defaults (there is no settings file {tmp_path / 'none.toml'})"
    )
    assert run(capsys, "config", "show", "--config", str(tmp_path / "none.toml"))[0] == 1


def test_the_untouched_sample_sets_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "g.toml"
    path.write_text(run(capsys, "config", "sample")[1])
    shown = run(capsys, "config", "show", "--config", str(path))[1].splitlines()[1:]
    assert [line for line in shown if "# set" in line] == []
    path.write_text('[simulation]\ncheckpoint_bytes = "1GiB"\n')
    shown = run(capsys, "config", "show", "--config", str(path))[1].splitlines()[1:]
    assert [line for line in shown if "# set" in line] == [f"checkpoint_bytes = {2**30}  # set"]


def test_report_without_settings_names_the_file_that_is_not_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, err = run(capsys, "report", "-a", "--deadline", "1")
    assert code == 1 and f"There is no settings file {tmp_path / 'none.toml'} that says where it is" in err


def test_a_gpu_model_that_cannot_be_is_refused_in_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = (ROOT / "configs" / "slurm" / "cluster.toml").read_text()
    path = tmp_path / "c.toml"
    for model in ("rtx 6000", "A100:80", "-6000"):
        path.write_text(text.replace('"a100"', f'"{model}"'))
        code, _, err = run(capsys, "config", "slurm", "--cluster", str(path))
        said = "must be letters, digits and ._-, none of .- first, such as a100 or Tesla-K80"
        assert code == 1 and f"{path}: nodes[0].gpu_model: {said}" in err and f"(got '{model}')" in err


def test_config_slurm_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "config", "slurm", "--help")
    assert code == 0 and "--cluster" in out
    assert run(capsys, "config", "slurm")[0] == 2
    assert "slurm" in run(capsys, "config", "--help")[1]


def test_daemon_is_given_the_settings_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[Any] = []

    class Daemon:
        @staticmethod
        def run(path: Path, *, foreground: bool) -> int:
            calls.append((path, foreground))
            return 3

    monkeypatch.setitem(sys.modules, "controller.daemon.daemon", Daemon)
    monkeypatch.setattr("controller.daemon.daemon", Daemon, raising=False)
    for name in ("y.toml", "z.toml"):
        (tmp_path / name).write_text("")
    assert main(["daemon", "-D", "--config", str(tmp_path / "y.toml")]) == 3
    monkeypatch.setenv("GANDIVA_CONFIG", str(tmp_path / "z.toml"))
    assert main(["daemon"]) == 3
    assert calls == [(tmp_path / "y.toml", True), (tmp_path / "z.toml", False)]


@pytest.mark.parametrize(
    "argv", [[], ["dance"], ["config"], ["config", "dance"], ["explain"], ["explain", "x"]]
)
def test_wrong_usage_is_exit_status_2(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.startswith("usage: gandiva")


@pytest.mark.parametrize(
    "argv", [[], ["report"], ["top"], ["explain"], ["status"], ["config"], ["config", "show"], ["daemon"]]
)
def test_help_is_worth_reading_in_80_columns(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    code, out, _ = run(capsys, *argv, "--help")
    assert code == 0
    assert max(len(line) for line in out.splitlines()) <= 80
    if argv != ["config", "show"]:
        assert "examples:" in out


def test_every_option_has_a_help_text() -> None:
    import argparse

    def check(parser: argparse.ArgumentParser) -> None:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for sub in action.choices.values():
                    check(sub)
            else:
                assert action.help, f"{parser.prog} {action.option_strings or action.dest}"

    check(build_parser(["slurm"]))


# -- as a process ------------------------------------------------------------------------------


def process(*argv: str, **more: Any) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", **more.pop("env", {})}
    return subprocess.run(
        [sys.executable, *argv],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **more,
    )


def test_help_loads_nothing_slow() -> None:
    """What makes --help quick: none of the big packages is imported for it."""
    code = (
        "import sys\nfrom controller.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "slow = {'pydantic', 'rich', 'numpy', 'paramiko', 'sqlite3', 'asyncio', 'http.client'}\n"
        "print('SLOW', sorted(slow & set(sys.modules)), file=sys.stderr)"
    )
    done = process("-c", code)
    assert "commands:" in done.stdout
    assert done.stderr == "SLOW []\n"


def test_a_command_loads_no_other() -> None:
    code = (
        "import sys\nfrom controller.cli.main import COMMANDS, main\n"
        "try:\n    main(['simulate', '--help'])\nexcept SystemExit:\n    pass\n"
        "print([c for c in COMMANDS if f'controller.cli.{c}' in sys.modules], file=sys.stderr)"
    )
    done = process("-c", code)
    assert done.stdout.startswith("usage: gandiva simulate ")
    assert done.stderr == "['simulate']\n"


def test_a_simulation_loads_no_daemon(tmp_path: Path) -> None:
    """What makes its start quick: nothing that only the daemon, reports or other adapters need."""
    (tmp_path / "jobs.csv").write_text("job_id,submit_seconds,duration_seconds,gpus\n1,0,10,1\n")
    code = (
        "import sys\nfrom controller.cli.main import main\n"
        "main('simulate --trace jobs.csv --trace-format native --cluster a100:1 --policy fifo'.split())\n"
        "slow = {'rich', 'numpy', 'paramiko', 'http.client', 'difflib', 'controller.settings.describe'}\n"
        "ours = ('controller.reports', 'controller.api', 'controller.checks', 'controller.daemon.daemon')\n"
        "loaded = slow & set(sys.modules) | {m for m in sys.modules if m.startswith(ours)}\n"
        "print('SLOW', sorted(loaded), file=sys.stderr)"
    )
    done = process("-c", code, cwd=tmp_path)
    assert "fifo" in done.stdout
    assert done.stderr == "SLOW []\n"


def test_plugins_of_pydantic_are_not_looked_for(tmp_path: Path) -> None:
    """It would read the metadata of all that is installed, and run what says that it is one."""
    (tmp_path / "jobs.csv").write_text("job_id,submit_seconds,duration_seconds,gpus\n1,0,10,1\n")
    (tmp_path / "site" / "other-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "site" / "other-1.0.dist-info" / "METADATA").write_text("Name: other\nVersion: 1.0\n")
    (tmp_path / "site" / "other-1.0.dist-info" / "entry_points.txt").write_text("[pydantic]\nother = other\n")
    (tmp_path / "site" / "other.py").write_text("print('PLUGIN')\n")
    words = "simulate --trace jobs.csv --trace-format native --cluster a100:1 --policy fifo"
    path = f"{ROOT}:{tmp_path / 'site'}"
    done = process("-m", "controller.cli.main", *words.split(), cwd=tmp_path, env={"PYTHONPATH": path})
    assert done.returncode == 0 and "fifo" in done.stdout and "PLUGIN" not in done.stdout


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    scene.write_journal(tmp_path / "journal")
    command = (
        f"{sys.executable} -m controller.cli.main report --no-sacct -a --journal {tmp_path}/journal | true"
    )
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""


class Terminal:
    """`gandiva top` on a terminal of its own."""

    def __init__(self, *options: str) -> None:
        self.end, terminal = pty.openpty()
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.before = termios.tcgetattr(self.end)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "controller.cli.main", "top", "-d", "0.1", *options],
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "TERM": "xterm", "LANG": "C.UTF-8"},
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
        self.terminal = terminal
        self.seen = b""

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 60
        while text.encode() not in self.seen:
            ready, _, _ = select.select([self.end], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{text!r} is not in {self.seen[-2000:]!r}"
            self.seen += os.read(self.end, 65536)
        self.seen = self.seen[self.seen.rindex(text.encode()) + len(text) :]

    def press(self, keys: bytes) -> None:
        os.write(self.end, keys)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(60)
        os.close(self.end)
        os.close(self.terminal)


def test_top_on_a_terminal_answers_keys_and_puts_the_terminal_back(url: str) -> None:
    terminal = Terminal("--url", url)
    try:
        terminal.wait_for("101 alice train-101")
        terminal.wait_for("s sort (state)")
        terminal.press(b"ss")
        terminal.wait_for("s sort (user)")
        terminal.press(b"/105\r\x1b[B")
        terminal.wait_for("Enter explain")
        terminal.press(b"\r")
        terminal.wait_for("Job 105 (xxx")
        terminal.wait_for("scancel 105")
        terminal.press(b"q?")
        terminal.wait_for("Nothing here changes a job")
        terminal.press(b"q")
        terminal.press(b"p")
        terminal.wait_for("p go on (PAUSED)")
        terminal.press(b"q")
        terminal.wait_for("\x1b[?1049l")  # the other screen is left
        assert terminal.process.wait(60) == 0
        assert termios.tcgetattr(terminal.end) == terminal.before
    finally:
        terminal.close()


def test_top_killed_puts_the_terminal_back_too(url: str) -> None:
    terminal = Terminal("--url", url)
    try:
        terminal.wait_for("101 alice train-101")
        terminal.process.terminate()
        terminal.wait_for("\x1b[?1049l")
        assert terminal.process.wait(60) == 143
        assert termios.tcgetattr(terminal.end) == terminal.before
    finally:
        terminal.close()


def test_a_terminal_without_unicode(tmp_path: Path) -> None:
    scene.write_journal(tmp_path / "journal")
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    for argv in (["--help"], ["report", "--no-sacct", "-j", "100", "--journal", f"{tmp_path}/journal"]):
        done = process("-m", "controller.cli.main", *argv, env=ascii_only)
        assert (done.returncode, done.stderr) == (0, "")
