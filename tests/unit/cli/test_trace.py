# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva trace sacct`: what becomes of sacct's lines."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from controller.cli.common import own_name
from controller.cli.main import main
from controller.cli.trace import FIELDS
from controller.simulation.traces import read_trace

REQUEST = (
    'gandiva:{"v":1,"gpus_per_node":2,"nodes":1,"weight":1,"min_gpus":null,"max_gpus":null,"pack":null,"migrate":null,'
    '"suspend":null,"gpu_types":[],"model":"a|b","site":{}}'
)
S = "\x1f"
"""Between the values, as sacct is asked to print them: constraints and comments have | in them."""
TIMES = "2026-11-21T14:58:54|2026-11-21T14:58:55|2026-11-21T14:59:59"


def trace(tmp_path: Path, *lines: str) -> tuple[int, Path]:
    (tmp_path / "answer").write_text(
        "\n".join([f"{FIELDS},Constraints,AdminComment".replace(",", S), *lines]) + "\n"
    )
    (tmp_path / "sacct").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat {tmp_path}/answer\n')
    (tmp_path / "sacct").chmod(0o755)
    out = tmp_path / "trace.txt"
    return main(["trace", "sacct", "-S", "now-1days", "--sacct", f"{tmp_path}/sacct", "-o", str(out)]), out


def line(job: int, tres: str, comment: str, constraint: str = "") -> str:
    values = f"{job}|{TIMES}|60|{tres}|{tres}|COMPLETED|alice|a|gpu|normal".split("|")
    return S.join([*values, constraint, comment])


def test_jobs_of_gandiva_count_with_the_gpus_they_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = trace(
        tmp_path,
        line(1, "cpu=1,gres/gpu=4", ""),
        line(2, "billing=1,cpu=1,gres/shard=4,gres/shard:a100_0=1,node=1", REQUEST.replace("a|b", "bert")),
        line(3, "", REQUEST.replace("a|b", "bert")),
    )
    assert code == 0 and "2 jobs with GPUs" in capsys.readouterr().err
    rows = [row.split("|") for row in out.read_text().splitlines()]
    assert rows[0] == FIELDS.split(","), "requests do not get into the trace"
    assert [row[5] for row in rows[1:]] == ["cpu=1,gres/gpu=4", "billing=1,cpu=1,node=1,gres/gpu=2", ""]
    assert "AdminComment" in (tmp_path / "asked").read_text()


def test_a_request_that_makes_no_sense_is_said_and_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = trace(tmp_path, line(1, "cpu=1,gres/gpu=4", ""), line(2, "gres/shard=4", "gandiva:{|}"))
    assert code == 0 and "job 2: its request is invalid" in capsys.readouterr().err
    assert "|gres/shard=4|" in out.read_text() and "gandiva:" not in out.read_text()


def test_no_jobs_at_all_is_said_of_the_times_that_were_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = trace(tmp_path)
    message = capsys.readouterr().err
    assert code == 1 and not out.exists()
    assert "sacct from now-1days to now: line 1: no jobs" in message and "/tmp" not in message


def test_the_nodes_and_types_of_a_request_count_too(tmp_path: Path) -> None:
    asked = REQUEST.replace("a|b", "bert").replace('"gpu_types":[]', '"gpu_types":["a100","h100"]')
    _, out = trace(tmp_path, line(2, "gres/shard=8,node=3", asked.replace('"nodes":1', '"nodes":2')))
    assert out.read_text().splitlines()[1].split("|")[5:7] == [
        "node=2,gres/gpu=4",
        "gres/gpu=4,gres/gpu:a100=4,gres/gpu:h100=4",
    ]
    (job,) = read_trace(out, "sacct")
    assert (job.gpus, job.nodes, job.gpu_types) == (4, 2, ("a100", "h100"))


@pytest.mark.parametrize(
    ("constraint", "types"),
    [
        ("gandiva_a100", ("a100",)),
        ("(fast|slow)&gandiva_a100", ("a100",)),
        ("fast&gandiva_nvidia_h100.80", ("nvidia_h100.80",)),
        ("gandiva_a100|gandiva_h100", ()),
        ("gandiva_a100&fast", ()),
        ("", ()),
    ],
)
@pytest.mark.public
@pytest.mark.parametrize(
    "comment", ["", "by hand", "by | hand", "two\nlines\n", "two\r\n\r\nof | them\n12|13|", REQUEST]
)
def test_an_ordinary_job_has_the_type_of_the_constraint_that_stands_for_it(
    tmp_path: Path, constraint: str, types: tuple[str, ...], comment: str
) -> None:
    """The job_submit module makes `gpu:a100:2` that. What users write themselves may be more."""
    code, out = trace(tmp_path, line(1, "cpu=2,gres/gpu=2,node=1", comment, constraint))
    assert code == 0 and "gandiva" not in out.read_text() and len(out.read_text().splitlines()) == 2
    assert f"--delimiter={S}" in (tmp_path / "asked").read_text()
    (job,) = read_trace(out, "sacct")
    assert (job.gpus, job.gpu_types) == (2, () if comment == REQUEST else types)


def test_the_end_is_not_before_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "sacct", "-S", "now", "-E", "now-1days", "--sacct", f"{tmp_path}/none"]) == 1
    assert "--endtime is before --starttime" in capsys.readouterr().err


@pytest.mark.parametrize("root", [True, False])
def test_who_may_see_all_jobs_is_not_told_of_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], root: bool
) -> None:
    name = own_name()
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 4711)
    monkeypatch.setattr("controller.cli.trace.own_name", lambda: name)
    mine = line(1, "cpu=1", "").replace("alice", name)
    assert trace(tmp_path, mine)[0] == 1
    said = capsys.readouterr().err
    assert "no job in it ran on GPUs; left out: 1 without GPUs" in said
    assert ("you may not be allowed" in said) is not root
    assert trace(tmp_path, mine, line(2, "cpu=1", ""))[0] == 1
    assert "allowed" not in capsys.readouterr().err, "it sees the jobs of others"
    assert trace(tmp_path, line(1, "gres/gpu=x" + "9" * 7000, "").replace(f"{S}60{S}", f"{S}x{S}"))[0] == 1
    assert "allowed" not in capsys.readouterr().err, "what is wrong is something else"


# -- a simulated site ---------------------------------------------------------------------------

SACCT = """#!{python} -I
import json, os, sys, time
options = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
begin, end = (time.mktime(time.strptime(options[o], "%Y-%m-%dT%H:%M:%S")) for o in ("starttime", "endtime"))
form = {{"standard": "%Y-%m-%dT%H:%M:%S"}}.get(os.environ.get("SLURM_TIME_FORMAT", "standard"), "%s")
fields = options["format"].split(",")
print(options["delimiter"].join(fields))
for job in json.load(open({jobs!r})):
    if begin <= job["End"] and job["Submit"] < end:
        for name in ("Submit", "Start", "End"):
            job[name] = time.strftime(form, time.localtime(job[name]))
        print(options["delimiter"].join(str(job.get(name, "")) for name in fields))
"""
SITE = "v100:8,p100:8"
CLOCKS_GO_BACK = datetime(2026, 10, 25, 1, tzinfo=timezone.utc).timestamp()
"""In Berlin."""


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_what_a_site_accounted_is_simulated_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site of another policy, in the night when clocks are set back: its jobs, by sacct, are the same."""
    monkeypatch.setenv("SLURM_TIME_FORMAT", "%s")
    native = tmp_path / "site.csv"
    header = "job_id,submit_seconds,duration_seconds,gpus,nodes,user,account,qos,partition,gpu_types"
    kinds = [(1, 1, ""), (4, 1, "v100"), (8, 2, ""), (2, 1, "p100"), (2, 2, "v100")]
    jobs = [
        (str(i), i * 1800, 600 + 900 * i, gpus, nodes, f"u{i % 3}", f"a{i % 2}", "high", "gpu", kind)
        for i, (gpus, nodes, kind) in enumerate(kinds * 2)
    ]
    native.write_text("\n".join([header, *(",".join(map(str, job)) for job in jobs)]) + "\n")
    ran = {row[0]: row for row in simulated(capsys, native, "native", "fifo")}
    zero, rows = CLOCKS_GO_BACK - 3 * 3600, []
    for job, submit, _, gpus, nodes, user, account, qos, partition, kind in jobs:
        start, end = (float(ran[job][column]) for column in (3, 4))
        tres = f"cpu={gpus},gres/gpu={gpus},node={nodes}"
        times = {"Submit": zero + submit, "Start": zero + start, "End": zero + end}
        places = {"JobID": job, "User": user, "Account": account, "QOS": qos, "Partition": partition}
        asked = tres + (f",gres/gpu:{kind}={gpus}" if kind else "")
        said = {"State": "COMPLETED", "ElapsedRaw": round(end - start), "AllocTRES": tres, "ReqTRES": asked}
        rows.append({**times, **places, **said})
    (tmp_path / "jobs.json").write_text(json.dumps(rows))
    sacct, out = tmp_path / "sacct", tmp_path / "trace.txt"
    sacct.write_text(SACCT.format(python=sys.executable, jobs=str(tmp_path / "jobs.json")))
    sacct.chmod(0o755)
    when = ["-S", "2026-10-24T23:59:59", "-E", "2026-10-27"]
    assert main(["trace", "sacct", *when, "--sacct", str(sacct), "-o", str(out)]) == 0
    capsys.readouterr()
    again = simulated(capsys, out, "sacct", "gavel-hierarchical")
    assert again == simulated(capsys, native, "native", "gavel-hierarchical") and len(again) == 10


def simulated(capsys: pytest.CaptureFixture[str], path: Path, kind: str, policy: str) -> list[list[str]]:
    words = ["--trace", str(path), "--trace-format", kind, "--cluster", SITE, "--policy", policy]
    assert main(["simulate", *words, "--gpus-per-node", "4", "--jobs-out", "-"]) == 0
    return [line.split(",") for line in capsys.readouterr().out.splitlines()[1:]]
