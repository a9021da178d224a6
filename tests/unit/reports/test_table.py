# SPDX-License-Identifier: GPL-2.0-or-later
from __future__ import annotations

import json
from typing import Any

import pytest

from controller.api.messages import JobMessage, JobsMessage
from controller.errors import GandivaError
from controller.reports.report import as_json, join, unsuspendable
from controller.reports.row import Row
from controller.reports.sacct import Accounting
from controller.reports.table import (
    BRIEF_FORMAT,
    COLUMNS,
    DEFAULT_FORMAT,
    LONG_FORMAT,
    Layout,
    help_format,
    parse_format,
    render,
)
from controller.reports.text import width

NOW = 10_000.0


def job(job_id: int = 1, **changes: Any) -> JobMessage:
    values: dict[str, Any] = {
        "job_id": job_id,
        "name": "train",
        "user": "alice",
        "account": "vision",
        "partition": "gpu",
        "state": "RUNNING",
        "gpus": 2,
        "weight": 2.0,
        "submit_time": NOW - 1000,
        "start_time": NOW - 900,
        "run_seconds": 600.0,
        "gpu_seconds": 1200.0,
        "slices": 3,
        "suspends": 2,
        "moves": 1,
        "last_gpus": ["n1:0", "n1:1"],
        **changes,
    }
    return JobMessage(**values)


def table(text: str, *rows: Row, **layout: Any) -> list[str]:
    return list(render(rows, Layout(parse_format(text), **layout)))


def test_the_table_looks_like_sacct() -> None:
    rows = [Row(job(), NOW), Row(job(2, name="a-very-long-name", state="COMPLETED", end_time=NOW - 100), NOW)]
    assert table("JobID%-8,JobName%-10,GPUs,State,Elapsed,GPUTime,Share", *rows) == [
        "JobID    JobName    GPUs      State    Elapsed     GPUTime  Share",
        "-------- ---------- ---- ---------- ---------- ----------- ------",
        "1        train         2    RUNNING   00:15:00    00:20:00  66.7%",
        "2        a-very-lo+    2  COMPLETED   00:13:20    00:20:00  75.0%",
    ]


def test_a_limited_weight_is_shown_beside_the_one_asked_for() -> None:
    limited = job(2, weight=4.0, request={"weight_asked": 100.0, "weight_limit": "qos urgent"})
    assert table("JobID%-5,ReqWeight,Weight,WeightLimit", Row(job(), NOW), Row(limited, NOW))[2:] == [
        "1             2      2",
        "2           100      4 qos urgent",
    ]


def test_jobs_that_cannot_be_suspended_are_warned_of() -> None:
    failed = {"tries": 4, "since": NOW - 100, "why": "node n1: \x1b[2Jtwo processes"}
    rows = [Row(job(1), NOW), *(Row(job(n, failed_suspends=failed), NOW) for n in range(2, 30))]
    first, *_, last = unsuspendable(rows)
    assert first.startswith("warning: job 2 (alice) on n1:0-1 could not be suspended since ")
    assert "4 attempts: node n1: ?[2Jtwo processes; it keeps its GPUs; gandiva explain 2 says" in first
    assert last == "warning: and 8 more that cannot be suspended"


def test_times_that_are_not_known_yet() -> None:
    (line,) = table(
        "Start%-10,End%-10,Elapsed%-10,SuspTime%-10,WaitTime%-10,Share%-5,NodeGPUs",
        Row(job(start_time=None, run_seconds=0, last_gpus=[], state="PENDING"), NOW),
        header=False,
    )
    assert line.split() == ["Unknown", "Unknown", "00:00:00", "00:00:00", "00:16:40"]


@pytest.mark.parametrize("text", [DEFAULT_FORMAT, BRIEF_FORMAT, LONG_FORMAT])
def test_all_lines_are_equally_wide(text: str) -> None:
    columns = parse_format(text + ",User%3")  # a last column that is never blank
    names = ["train", "语言模型-训练-大规模", "e\u0301" * 30, "\x1b[2Jevil\nname", ""]
    rows = [
        Row(job(index, name=name, user="longusername", reason=name), NOW) for index, name in enumerate(names)
    ]
    lines = list(render(rows, Layout(columns)))
    assert {width(line) for line in lines} == {sum(c.width for c in columns) + len(columns) - 1}


def test_the_default_fits_an_80_column_terminal() -> None:
    columns = parse_format(DEFAULT_FORMAT)
    assert sum(column.width for column in columns) + len(columns) - 1 <= 80


@pytest.mark.parametrize(
    ("layout", "lines"),
    [
        ({"delimiter": "|"}, ["JobID|State|NodeGPUs", "1|RUNNING|n1:0-1"]),
        ({"delimiter": "|", "trailing": True}, ["JobID|State|NodeGPUs|", "1|RUNNING|n1:0-1|"]),
        ({"delimiter": "|", "header": False}, ["1|RUNNING|n1:0-1"]),
        ({"delimiter": "::"}, ["JobID::State::NodeGPUs", "1::RUNNING::n1:0-1"]),
    ],
)
def test_parsable(layout: dict[str, Any], lines: list[str]) -> None:
    assert table("JobID,State,NodeGPUs", Row(job(), NOW), **layout) == lines


def test_parsable_values_are_never_cut() -> None:
    long = "x" * 500
    assert table("JobName%5", Row(job(name=long), NOW), delimiter="|", header=False) == [long]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("JobID,State", ["JobID", "State"]),
        ("jobid,STATE", ["JobID", "State"]),
        ("Elap,Subm", ["Elapsed", "Submit"]),
        (" JobID , State ", ["JobID", "State"]),
        ("JobID,JobID", ["JobID", "JobID"]),
    ],
)
def test_formats(text: str, names: list[str]) -> None:
    assert [column.name for column in parse_format(text)] == names


def test_widths() -> None:
    right, left, default = parse_format("User%20,User%-5,User")
    assert (right.width, right.left) == (20, False)
    assert (left.width, left.left) == (5, True)
    assert default.width == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no column"),
        (",,", "names no column"),
        ("Colour", "there is no column 'Colour'; the columns are Account, "),
        ("S", "'S' may be any of Share, SharesWith, Sizes, Slices, Start, State, StepTime, Submit"),
        ("User%0", "width of User must be from 1 to 1000"),
        ("User%9999", "width of User must be from 1 to 1000"),
        ("User%x", "not of the form"),
        ("User%", "not of the form"),
        ("User;rm", "not of the form"),
    ],
)
def test_formats_that_make_no_sense(text: str, message: str) -> None:
    with pytest.raises(GandivaError, match=message):
        parse_format(text)


def test_help_format_names_every_column_once() -> None:
    names = help_format().split()
    assert names == [column.name for column in COLUMNS]
    assert names == sorted(names, key=str.lower)


def test_units() -> None:
    row = Row(job(peak_memory_bytes=3 << 30), NOW)
    assert table("MaxGPUMem", row, header=False) == ["        3G"]
    assert table("MaxGPUMem", row, header=False, size_unit="M") == ["     3072M"]


def test_other_columns() -> None:
    row = Row(job(request={"suspend": "requeue", "model": "resnet50"}, phase="running", exit_code=1), NOW)
    line = table("Method,Model,Phase,ExitCode,Account,Partition,Moves,Suspends,JobIDRaw", row, delimiter="|")[
        1
    ]
    assert line == "requeue|resnet50|running|1:0|vision|gpu|1|2|1"


# -- joined with slurmdbd ----------------------------------------------------------------------


def test_jobs_that_share_gpus() -> None:
    assert table("JobID%-5,SharesWith", Row(job(shares_with=[2, 3]), NOW))[-1] == "1     2,3"


def test_slurms_final_word_counts_even_where_the_controller_missed_the_end() -> None:
    accounting = Accounting("12_3", "CANCELLED by 1000", "0:15", NOW - 400)
    (row,) = join(JobsMessage(time=NOW, jobs=[job()]), {1: accounting})
    assert (row.job_id, row.state, row.exit_code, row.end_time) == (
        "12_3",
        "CANCELLED by 1000",
        "0:15",
        NOW - 400,
    )
    assert row.elapsed == 500
    assert row.suspended == 0, "never negative"


def test_before_the_end_the_controller_is_fresher() -> None:
    (row,) = join(
        JobsMessage(time=NOW, jobs=[job(state="SUSPENDED")]), {1: Accounting("1", "RUNNING", "0:0", None)}
    )
    assert row.state == "SUSPENDED" and row.end_time is None


def test_an_exit_code_that_accounting_has_before_the_end_is_none() -> None:
    """A slurmdbd that lags behind, or that never heard of the end."""
    running = {1: Accounting("1", "RUNNING", "0:0", None)}
    (row,) = join(JobsMessage(time=NOW, jobs=[job(state="FAILED", end_time=NOW - 5, exit_code=3)]), running)
    assert (row.state, row.exit_code) == ("FAILED", "3:0")
    (row,) = join(JobsMessage(time=NOW, jobs=[job(state="UNKNOWN", end_time=NOW - 5)]), running)
    assert (row.state, row.exit_code) == ("UNKNOWN", "")


def test_a_requeued_job_is_the_same_one_with_a_later_submit_time() -> None:
    accounting = Accounting("1", "COMPLETED", "0:0", NOW - 100, submit_time=NOW - 500)
    for end_time in (None, NOW - 100):
        (row,) = join(JobsMessage(time=NOW, jobs=[job(end_time=end_time)]), {1: accounting})
        assert row.state == "COMPLETED"


def test_json_has_raw_values() -> None:
    rows = [Row(job(1, name='"quoted"\n'), NOW), Row(job(2, start_time=None), NOW)]
    report = json.loads("\n".join(as_json(rows, truncated=True)))
    assert report["truncated"] is True and report["time"] == NOW
    first, second = report["jobs"]
    assert first["name"] == '"quoted"\n'
    assert first["elapsed_seconds"] == 900 and first["share_fraction"] == pytest.approx(2 / 3)
    assert first["wait_seconds"] == 100 and first["suspended_seconds"] == 300
    assert second["elapsed_seconds"] is None and second["share_fraction"] is None


def test_json_without_jobs_is_valid() -> None:
    assert json.loads("\n".join(as_json([], truncated=False)))["jobs"] == []


def test_json_moves_no_cursor() -> None:
    """JSON lets control characters from U+0080 on pass, and terminals obey them."""
    rows = join(JobsMessage(time=0.0, jobs=[job(name="a\x9b2Jb\x85é")]), {})
    text = "\n".join(as_json(rows, truncated=False))
    assert text.replace("\n", "").isprintable()
    assert json.loads(text)["jobs"][0]["name"] == "a\x9b2Jb\x85é"


def test_the_tasks_of_an_array_stand_together_by_their_numbers() -> None:
    # Slurm gives tasks job ids as they start; the last one keeps the array's.
    ids = {7: "7", 8: "8_10", 9: "9", 10: "8_2", 11: "8_0", 12: "8_[11-20]", 30: "30"}
    accounting = {raw: Accounting(job_id, "RUNNING", "0:0", None) for raw, job_id in ids.items() if raw != 9}
    jobs = JobsMessage(time=NOW, jobs=[job(raw) for raw in ids], truncated=False)
    order = [row.job_id for row in join(jobs, accounting)]
    assert order == ["7", "8_0", "8_2", "8_10", "8_[11-20]", "9", "30"]
    assert [row.job_id for row in join(jobs, {})] == ["7", "8", "9", "10", "11", "12", "30"]


def test_sizes() -> None:
    adaptive = job(
        request={"gpus": 2, "min_gpus": 1, "max_gpus": 4}, gpus=2, last_gpus=["n1:0", "n1:1", "n1:2", "n1:3"]
    )
    most = job(request={"gpus": 2, "max_gpus": 4}, gpus=2, last_gpus=[])
    lines = table("JobID%-5,GPUs,GPURange,NumGPUs", Row(adaptive, NOW), Row(most, NOW), Row(job(), NOW))
    assert [line.split()[1:] for line in lines[2:]] == [["2", "1-4", "4"], ["2", "2-4"], ["2", "2"]]
