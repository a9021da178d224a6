# SPDX-License-Identifier: GPL-2.0-or-later
"""Good traces are read, bad ones give one error naming line and column, and write nothing."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cli.main import main
from controller.errors import GandivaError
from controller.settings.loading import parse_settings
from controller.simulation.cluster_spec import parse_cluster
from controller.simulation.ground_truth import Throughputs
from controller.simulation.traces import FORMATS, LeftOut, TraceError, in_words, read_trace
from controller.simulation.workload import Workload

TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
NATIVE = "job_id,submit_seconds,duration_seconds,gpus\n"
GAVEL = "ResNet-18 (batch size 64)\tpython3 main.py\timage\t--num_steps\t1\t1646\t2\t1\t-1.0\t12.5\n"
SACCT = "JobID|Submit|ElapsedRaw|AllocTRES|User\n"


def write(tmp_path: Path, text: str, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_all_formats_read_what_they_should(tmp_path: Path) -> None:
    (job,) = read_trace(write(tmp_path, TIRESIAS + "7,2,30,5,vgg19,100,3\n"), "tiresias")
    assert (job.id, job.gpus, job.submit_seconds, job.duration_seconds, job.model) == (
        "7",
        2,
        30,
        100,
        "vgg19",
    )
    (job,) = read_trace(write(tmp_path, GAVEL), "gavel")
    assert (job.gpus, job.steps, job.submit_seconds, job.duration_seconds) == (2, 1646, 12.5, None)
    philly = "timestamp,duration,num_gpus\n2017-10-09 07:01:55,66.5,1\n2017-10-09 07:00:55,0.4,4\n"
    first, second = read_trace(write(tmp_path, philly), "philly")
    assert (first.gpus, first.submit_seconds, first.duration_seconds) == (4, 0, 1)
    assert (second.submit_seconds, second.duration_seconds) == (60, 66)
    text = SACCT + (
        "8|2026-10-01T10:00:00|60|billing=4,cpu=4,gres/gpu:a100=2,gres/gpu=2|alice\n"
        "8.batch|2026-10-01T10:00:00|60|cpu=4,gres/gpu=2|\n"
        "9|2026-10-01T10:01:00|50|cpu=4|bob\n"
        "10|2026-10-01T09:59:00|5|gres/gpu:a100=4|bob\n"
    )
    jobs = read_trace(write(tmp_path, text), "sacct")
    assert [(j.id, j.gpus, j.submit_seconds, j.user) for j in jobs] == [
        ("10", 4, 0, "bob"),
        ("8", 2, 60, "alice"),
    ]
    text = "JobID|Submit|ElapsedRaw|AllocTRES|User|Account\n8|2026-10-01T10:00:00|60|gres/gpu=2|alice|ml\n"
    assert [job.account for job in read_trace(write(tmp_path, text), "sacct")] == ["ml"]
    text = "job_id,submit_seconds,duration_seconds,gpus,nodes,gpu_types,weight\n"
    text += "a,1,2,4,2,v100+k80,2\nb,0,2,1,,,\n"
    jobs = read_trace(write(tmp_path, text), "native")
    assert [(j.id, j.nodes, j.gpu_types, j.weight) for j in jobs] == [
        ("b", None, (), 1.0),
        ("a", 2, ("v100", "k80"), 2.0),
    ]


@pytest.mark.parametrize(
    ("trace_format", "text"),
    [
        ("tiresias", TIRESIAS + "1,0,0,5,vgg19,1,3\n2,1,7,5,vgg19,1,3\n"),
        ("gavel", GAVEL.replace("\t2\t", "\t0\t") + GAVEL),
        ("philly", "timestamp,duration,num_gpus\n2017-10-09 07:01:55,66,0\n2017-10-09 07:01:56,6,1\n"),
        ("native", NATIVE + "a,0,1,0\nb,0,1,1\n"),
        ("sacct", SACCT + "1|2026-10-01T10:00:00|60|cpu=1|a\n2|2026-10-01T10:00:00|60|gres/gpu=1|a\n"),
    ],
)
def test_jobs_without_gpus_are_left_out_and_counted(tmp_path: Path, trace_format: str, text: str) -> None:
    left_out = LeftOut()
    assert len(read_trace(write(tmp_path, text), trace_format, left_out)) == 1
    assert in_words(left_out) == "1 without GPUs"


@pytest.mark.public
@pytest.mark.parametrize("duration", ["0", "-5", "", "unknown"])
@pytest.mark.parametrize(
    ("trace_format", "header", "row"),
    [
        ("tiresias", TIRESIAS, "{id},{gpus},0,5,vgg19,{duration},3\n"),
        ("gavel", "", GAVEL.replace("1646\t2", "{duration}\t{gpus}")),
        ("philly", "timestamp,duration,num_gpus\n", "2020-06-10 08:11:0{id},{duration},{gpus}\n"),
        ("native", NATIVE, "{id},0,{duration},{gpus}\n"),
        ("sacct", SACCT, "{id}|2020-06-10T08:11:00|{duration}|cpu=64,gres/gpu={gpus}|a\n"),
    ],
)
def test_how_long_a_job_without_gpus_ran_is_not_read_and_one_of_0_s_never_ran(
    tmp_path: Path, trace_format: str, header: str, row: str, duration: str
) -> None:
    """Helios has both: jobs on CPUs, and jobs that were cancelled before they began."""
    rows = ((1, duration, 0), (2, "0", 8), (3, "60", 1))
    text = header + "".join(row.format(id=i, duration=seconds, gpus=gpus) for i, seconds, gpus in rows)
    left_out = LeftOut()
    (job,) = read_trace(write(tmp_path, text), trace_format, left_out)
    assert job.gpus == 1 and left_out == {"without GPUs": 1, "that never ran": 1}


@pytest.mark.public
def test_of_a_requeued_job_the_last_run_counts(tmp_path: Path) -> None:
    """`sacct -D` writes them all."""
    text = "JobID|Submit|ElapsedRaw|AllocTRES|State\n" + "".join(
        f"{job}|2026-10-01T{at}|{seconds}|gres/gpu=1|{state}\n"
        for job, at, seconds, state in (
            ("16", "10:00:00", 240, "NODE_FAIL"),
            ("17_1", "10:00:00", 0, "CANCELLED by 7"),
            ("18", "10:00:00", 50, "PREEMPTED"),
            ("16", "10:05:00", 30, "NODE_FAIL"),
            ("16.batch", "10:05:00", 30, "CANCELLED"),
            ("16", "10:10:00", 1140, "COMPLETED"),
            ("17_1", "10:11:00", 60, "COMPLETED"),
            ("18", "10:11:00", 0, "PENDING"),
        )
    )
    left_out = LeftOut()
    jobs = read_trace(write(tmp_path, text), "sacct", left_out)
    assert [(j.id, j.submit_seconds, j.duration_seconds) for j in jobs] == [("16", 0, 1140), ("17_1", 60, 60)]
    assert left_out == {"earlier runs of requeued jobs": 4, "that had not ended": 1}


def test_what_sacct_says_of_jobs(tmp_path: Path) -> None:
    at = "|2026-10-01T10:00:00|2026-10-01T11:00:00|"
    text = "JobID|Submit|End|Elapsed|AllocTRES|ReqTRES|State|User|Account|QOS|Partition\n" + "".join(
        f"{line}|a|ml|high|gpu\n"
        for line in (
            f"1{at}1-02:03:04|gres/gpu:a100=4,gres/gpu=4,node=2|gres/gpu=4,node=1|CANCELLED by 7",
            f"2_3{at}01:30|gres/gpu:a100_0=1,gres/gpu:a100_1=1,gres/gpu=2,node=1||TIMEOUT",
            f"3{at}00:00:05|gres/gpu=3,node=2|gres/gpu:v100=3|FAILED",
            f"4{at}00:00:05|gres/gpu:a100=1,gres/gpu:v100=1|gres/gpu:a100=1,gres/gpu:v100=1|FAILED",
            f"5{at.replace('2026-10-01T11:00:00', 'Unknown')}02:00:00|gres/gpu=1||RUNNING",
            f"6+0{at}02:00:00|gres/gpu=1||COMPLETED",
            f"6+1{at}02:00:00|gres/gpu=2||COMPLETED",
            f"6+1.batch{at}02:00:00|gres/gpu=2||COMPLETED",
            f"7{at}00:00:00||gres/gpu=1|CANCELLED",
            f"8{at.replace('T10:00', 'T09:00')}00:01:00|cpu=4,gres/gpumem=5||COMPLETED",
        )
    )
    left_out = LeftOut()
    jobs = read_trace(write(tmp_path, text), "sacct", left_out)
    assert [(j.id, j.gpus, j.duration_seconds, j.nodes, j.gpu_types) for j in jobs] == [
        ("1", 4, 93784, 2, ()),
        ("2_3", 2, 90, 1, ("a100",)),
        ("3", 3, 5, None, ("v100",)),
        ("4", 2, 5, None, ()),
    ]
    assert {job.submit_seconds for job in jobs} == {0}, "the first with GPUs is the zero"
    assert {(j.user, j.account, j.qos, j.partition) for j in jobs} == {("a", "ml", "high", "gpu")}
    assert left_out == {
        "that had not ended": 1,
        "components of heterogeneous jobs": 2,
        "that never ran": 1,
        "without GPUs": 1,
    }


def test_a_job_that_runs_on_is_known_by_its_end_where_the_states_are_not_there(tmp_path: Path) -> None:
    text = "JobID|Submit|End|ElapsedRaw|AllocTRES\n" + "".join(
        f"{job}|2026-10-01T10:00:00|{end}|60|gres/gpu=1\n"
        for job, end in ((1, "Unknown"), (2, "2026-10-02T00:00:00"))
    )
    assert [job.id for job in read_trace(write(tmp_path, text), "sacct")] == ["2"]


def test_types_and_partitions_of_another_cluster_do_not_count(tmp_path: Path) -> None:
    text = "JobID|Submit|ElapsedRaw|AllocTRES|Partition\n" + "".join(
        f"{kind}|2026-10-01T10:00:00|60|gres/gpu:{kind}=1|old\n" for kind in ("v100", "x9")
    )
    path = write(tmp_path, text)
    workload = Workload(
        path,
        read_trace(path, "sacct"),
        parse_cluster("v100:4,p100:4", 4),
        Throughputs(),
        parse_settings("").simulation,
    )
    assert [(job.gpu_types, job.partition) for job in workload.jobs.values()] == [(("v100",), ""), ((), "")]


@pytest.mark.public
@pytest.mark.parametrize(
    ("cluster", "tres", "nodes"),
    [
        ("a100:8", "gres/gpu=2,node=2", None),
        ("a100:16", "gres/gpu=2,node=2", 2),
        ("a100:8,h100:8", "gres/gpu:a100=2,gres/gpu=2,node=2", None),
        ("a100:8,h100:8", "gres/gpu=4,node=2", None),
        ("a100:16", "gres/gpu=32,node=4", None),
    ],
)
def test_a_node_count_that_the_cluster_does_not_have_does_not_count(
    tmp_path: Path, cluster: str, tres: str, nodes: int | None
) -> None:
    """What runs on one node, or does not fit at all, is not kept out by the nodes of another cluster."""
    path = write(tmp_path, SACCT + f"1|2026-10-01T10:00:00|60|{tres}|a\n")
    jobs, simulated = read_trace(path, "sacct"), parse_settings("").simulation
    arguments = (path, jobs, parse_cluster(cluster, 8), Throughputs(), simulated)
    if jobs[0].gpus > 16:
        with pytest.raises(TraceError, match="wants 32 GPUs, the cluster has 16"):
            Workload(*arguments)
        return
    assert [job.nodes for job in Workload(*arguments).jobs.values()] == [nodes]


def test_as_many_gpus_on_smaller_nodes_run_on_more_of_them(tmp_path: Path) -> None:
    path = write(tmp_path, SACCT + "1|2026-10-01T10:00:00|60|gres/gpu=16,node=2|a\n")
    jobs, simulated = read_trace(path, "sacct"), parse_settings("").simulation
    (job,) = Workload(path, jobs, parse_cluster("v100:16", 4), Throughputs(), simulated).jobs.values()
    assert (job.gpus, job.nodes) == (16, None)


@pytest.mark.parametrize(
    ("cluster", "types"),
    [
        ("a100_80:4,a100_40:4", [("a100_80",), ("a100_40",), (), ()]),
        ("a100:4,a100_80:4", [("a100_80",), ("a100",), ("a100",), ()]),
        ("a100:8,h100:4", [("a100",), ("a100",), ("a100",), ("h100",)]),
        ("v100:4,k80:4", [(), (), (), ()]),
    ],
)
def test_a_type_is_that_of_one_gpu_where_the_cluster_does_not_have_it_itself(
    tmp_path: Path, cluster: str, types: list[tuple[str, ...]]
) -> None:
    """`a100_0` is GPU 0 of a node under Gandiva, `a100_80` a site's own type."""
    tres = ("a100_80=4", "a100_40=2", "a100_0=1,gres/gpu:a100_1=1", "h100_1=1")
    text = SACCT + "".join(f"{i}|2026-10-01T10:00:00|60|gres/gpu:{one}|a\n" for i, one in enumerate(tres))
    path = write(tmp_path, text)
    jobs, simulated = read_trace(path, "sacct"), parse_settings("").simulation
    workload = Workload(path, jobs, parse_cluster(cluster, 4), Throughputs(), simulated)
    assert [job.gpu_types for job in workload.jobs.values()] == types


@pytest.mark.parametrize("column", ["Elapsed", "ElapsedRaw"])
@pytest.mark.parametrize("elapsed", ["", " ", "INVALID"])
def test_a_job_of_which_sacct_does_not_know_how_long_it_ran_is_left_out(
    tmp_path: Path, column: str, elapsed: str
) -> None:
    """INVALID: its end is before its start, by clocks that differ."""
    one = "|2026-10-01T10:00:00|{}|gres/gpu=1|a\n"
    good = "60" if column == "ElapsedRaw" else "00:01:00"
    text = SACCT.replace("ElapsedRaw", column) + "1" + one.format(elapsed) + "2" + one.format(good)
    left_out = LeftOut()
    assert [job.id for job in read_trace(write(tmp_path, text), "sacct", left_out)] == ["2"]
    assert in_words(left_out) == "1 whose run time is not known"


def test_either_column_says_how_long_a_job_ran(tmp_path: Path) -> None:
    text = "JobID|Submit|Elapsed|ElapsedRaw|AllocTRES\n" + "".join(
        f"{elapsed}|2026-10-01T10:00:00|{elapsed}|gres/gpu=1\n" for elapsed in ("00:01:00|", "INVALID|60")
    ).replace("00:01:00||2026", "1|2026").replace("INVALID|60|2026", "2|2026")
    jobs = read_trace(write(tmp_path, text), "sacct")
    assert [(job.id, job.duration_seconds) for job in jobs] == [("1", 60), ("2", 60)]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_the_mark_of_a_spreadsheet_at_the_begin_is_no_part_of_a_name(tmp_path: Path, name: str) -> None:
    data = ("\ufeff" + NATIVE + "a,0,1,1\n").encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert [job.id for job in read_trace(tmp_path / name, "native")] == ["a"]


def test_quotes_in_the_names_of_jobs_are_letters_to_sacct_and_gavel(tmp_path: Path) -> None:
    row = "|2026-10-01T10:00:00|60|gres/gpu=1|a|"
    text = SACCT.strip() + "|JobName\n" + f'1{row}"of mine\n2{row}"all"\n'
    assert [job.id for job in read_trace(write(tmp_path, text), "sacct")] == ["1", "2"]
    (job,) = read_trace(write(tmp_path, GAVEL.replace("python3", '"python3')), "gavel")
    assert job.steps == 1646


def test_an_empty_file_of_a_format_without_a_header_has_none(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"the file is empty$"):
        read_trace(write(tmp_path, "\n"), "gavel")


def test_gzip_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress((NATIVE + "a,0,1,1\n").encode()))
    assert len(read_trace(path, "native")) == 1
    path.write_bytes(gzip.compress(b"x" * 1000)[:20])
    with pytest.raises(TraceError, match="line 1: cannot be read"):
        read_trace(path, "native")


@pytest.mark.parametrize(
    ("trace_format", "text", "message"),
    [
        (
            "tiresias",
            "job_id,num_gpu,submit_time\n1,1,0\n",
            "line 1, column `duration`: there is no such column",
        ),
        ("tiresias", TIRESIAS + "1,1,0,5,vgg19,-100,3\n", "line 2, column `duration`: '-100' is not from 0"),
        ("tiresias", TIRESIAS + "1,1,0,5,vgg19,0,3\n", "ran on GPUs; left out: 1 that never ran"),
        (
            "tiresias",
            TIRESIAS + "1,1.5,0,5,vgg19,1,3\n",
            "line 2, column `num_gpu`: '1.5' is not a whole number",
        ),
        ("tiresias", TIRESIAS + "1,-1,0,5,vgg19,1,3\n", "line 2, column `num_gpu`: '-1' is not from 0"),
        ("tiresias", TIRESIAS + "1,0,0,5,vgg19,1,3\n", "no job in it ran on GPUs; left out: 1 without GPUs"),
        (
            "sacct",
            SACCT.replace("ElapsedRaw|", "") + "1|2026-10-01T10:00:00|gres/gpu=1|a\n",
            "nor is Elapsed",
        ),
        (
            "sacct",
            SACCT.replace("Raw", "") + "1|2026-10-01T10:00:00|5 min|gres/gpu=1|a\n",
            "line 2, column `Elapsed`: '5 min' is not a time such as 1-02:03:04",
        ),
        ("tiresias", TIRESIAS + "1,1,nan,5,vgg19,1,3\n", "line 2, column `submit_time`: 'nan' is not from"),
        ("tiresias", TIRESIAS + "1,1,x,5,vgg19,1,3\n", "line 2, column `submit_time`: 'x' is not a number"),
        ("tiresias", TIRESIAS + "1,1,,5,vgg19,1,3\n", "line 2, column `submit_time`: is empty"),
        (
            "tiresias",
            TIRESIAS + "1,1,0,5,v,1,3\n2,1,0,5,v,1,3\n1,1,0,5,v,1,3\n",
            "line 4, column `job_id`: job '1' is on line 2 already",
        ),
        ("tiresias", TIRESIAS + "1,1,0\n", "line 2, column `iterations`: 3 columns instead of 7"),
        ("tiresias", "", "line 1: no jobs: the file is empty"),
        ("tiresias", TIRESIAS, "line 1: no jobs: the file is empty but for its header"),
        ("native", "a" * (10 * 2**20), "line 1: longer than 65536 characters"),
        ("native", NATIVE + "a,0,1,1\n" + "b" * 70000 + ",0,1,1\n", "line 3: longer than 65536 characters"),
        ("native", NATIVE + 'a,0,1,1\n"b,0,1,1\n', "line 3: "),
        ("native", NATIVE + "a\0,0,1,1\n", "line 2: contains a zero byte"),
        ("native", GAVEL, "it looks like --trace-format gavel"),
        ("gavel", TIRESIAS + "1,1,0,5,v,1,3\n", "it looks like --trace-format tiresias"),
        ("philly", NATIVE + "a,0,1,1\n", "column `timestamp`: there is no such column"),
        (
            "philly",
            "timestamp,duration,num_gpus\nnoon,1,1\n",
            "line 2, column `timestamp`: 'noon' is not a time",
        ),
        ("sacct", SACCT + "1|2026-10-01T10:00:00|60|cpu=1|a\n", "no job in it ran on GPUs"),
        (
            "sacct",
            SACCT + f"1|2026-10-01T10:00:00|60|gres/gpu={'9' * 5000}|a\n",
            "line 2, column `AllocTRES`: more than 1000000 GPUs",
        ),
        (
            "sacct",
            SACCT + "1|2026-10-01T10:00:00|60|gres/gpu:a100=999999,gres/gpu:v100=999999|a\n",
            "line 2, column `AllocTRES`: more than 1000000 GPUs",
        ),
        (
            "native",
            NATIVE.strip() + ",nodes\na,0,1,3,2\n",
            "line 2, column `nodes`: 3 GPUs cannot be spread evenly",
        ),
        (
            "native",
            NATIVE.strip() + ",gpus\na,0,1,3,2\n",
            "column `gpus`: there are two columns of this name",
        ),
    ],
)
def test_a_bad_trace_gives_one_error(tmp_path: Path, trace_format: str, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError) as caught:
        read_trace(path, trace_format)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}: line ")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_not_text_at_all(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xff\xfe" * 100)
    with pytest.raises(TraceError, match="line 1: not UTF-8"):
        read_trace(path, "native")


@pytest.mark.parametrize(
    ("trace_format", "right", "wrong", "row"),
    [
        ("native", "weight", "wieght", "a,0,1,1,2"),
        ("native", "gpu_types", "gpu_type", "a,0,1,1,v100"),
        ("native", "", "", "a,0,1,1,"),
        ("tiresias", "model_name", "modelname", "1,1,0,5,v,1,3"),
        ("philly", "cluster", "clusters", "2017-10-09 07:01:55,1,1,a"),
        ("sacct", "User", "user", "1|2026-10-01T10:00:00|60|gres/gpu=1|a"),
        ("sacct", "State", "States", "1|2026-10-01T10:00:00|60|gres/gpu=1|RUNNING"),
        ("sacct", "End", "Ends", "1|2026-10-01T10:00:00|60|gres/gpu=1|Unknown"),
        ("sacct", "NNodes", "nnodes", "1|2026-10-01T10:00:00|60|gres/gpu=1|1"),
    ],
)
def test_a_misspelt_column_is_an_error_that_names_it_and_the_nearest(
    tmp_path: Path, trace_format: str, right: str, wrong: str, row: str
) -> None:
    headers = {"native": NATIVE.strip() + f",{right}", "tiresias": TIRESIAS.strip()}
    headers["sacct"] = SACCT.replace("User\n", right)
    header = headers.get(trace_format, "timestamp,duration,num_gpus,cluster").replace(right or "?", wrong)
    with pytest.raises(TraceError) as caught:
        read_trace(write(tmp_path, f"{header}\n{row}\n"), trace_format)
    assert (caught.value.line, caught.value.column) == (1, wrong)
    said = f"there is no such column; did you mean {right}" if right else "there is no such column (read are"
    assert said in str(caught.value)


def test_columns_that_other_programs_write_beside_ours_are_read_over(tmp_path: Path) -> None:
    """`ReqGRES` and `AllocGRES`: sacct before 21.08."""
    fields = "JobID|JobIDRaw|Submit|SubmitLine|Elapsed|ElapsedRaw|AllocCPUS|AllocTRES|ReqCPUS|ReqTRES|User"
    row = "1|1|2026-10-01T10:00:00|sbatch|00:01|60|4|gres/gpu=1|4||alice"
    text = f"{fields}|UserCPU|UID|Start|ReqGRES|AllocGRES\n{row}|1|1|Unknown|gpu:1|gpu:1\n"
    (job,) = read_trace(write(tmp_path, text), "sacct")
    assert (job.user, job.duration_seconds) == ("alice", 60)


QUOTED = NATIVE.encode().replace(b"gpus", b"gpus,user")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("data", "line", "problem"),
    [
        (NATIVE.encode() + b"a\xff,0,1,1\n", 2, "not UTF-8 text (byte 0xff after 1 characters)"),
        (NATIVE.encode() + b"a,0,1,1\n" * 3 + b"\xe9,0,1,1\n", 5, "not UTF-8 text (byte 0xe9"),
        (b"\xef\xbb\xbf" + NATIVE.encode() + b"\xffa,0,1,1\n", 2, "not UTF-8 text"),
        (NATIVE.encode().replace(b"\n", b"\r\n") + b"a,0,1,1\r\nb,0,x,1\r\n", 3, "'x' is not a number"),
        (b"\xef\xbb\xbf" + NATIVE.encode() + b"\na,0,x,1\n", 3, "'x' is not a number"),
        (QUOTED + b'a,0,1,1,"two\nlines"\nb,0,x,1,c\n', 4, "'x' is not a number"),
        (QUOTED + b'a,0,x,1,"two\nlines"\nb,0,1,1,c\n', 2, "'x' is not a number"),
        (QUOTED + b'a,0,1,1,"two\n\xff lines"\nb,0,1,1,c\n', 3, "not UTF-8 text"),
        (QUOTED + b'a,0,1,1,u\nb,0,1,1,"never\nclosed\n', 3, "a quote is opened and never closed"),
        (QUOTED + b'a,0,1,1,u\nb,0,1,1,"closed"early\n', 3, "expected after"),
    ],
)
def test_the_line_that_is_named_is_the_one_that_is_wrong(
    tmp_path: Path, data: bytes, line: int, problem: str, packed: bool
) -> None:
    path = tmp_path / ("t.csv.gz" if packed else "t.csv")
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(TraceError) as caught:
        read_trace(path, "native")
    assert (caught.value.line, problem in str(caught.value)) == (line, True), str(caught.value)


def test_a_damaged_packed_file_is_an_error(tmp_path: Path) -> None:
    data = bytearray(gzip.compress((NATIVE + "".join(f"{n},0,1,1\n" for n in range(5000))).encode()))
    data[2000:2100] = bytes(100)
    path = tmp_path / "t.csv.gz"
    path.write_bytes(data)
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(path, "native")


@given(text=st.text(max_size=400), trace_format=st.sampled_from(sorted(FORMATS)))
def test_garbage_never_gives_another_exception(
    tmp_path_factory: pytest.TempPathFactory, text: str, trace_format: str
) -> None:
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(GandivaError):
        read_trace(path, trace_format)


def test_the_command_writes_nothing_for_a_bad_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, NATIVE + "a,0,1,64\n")
    out, page = tmp_path / "jobs.csv", tmp_path / "page.html"
    arguments = ["simulate", "--trace", str(path), "--trace-format", "native", "--cluster", "v100:32"]
    arguments += ["--policy", "fifo", "--jobs-out", str(out), "--html", str(page)]
    assert main(arguments) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == (
        f"gandiva: {path}: line 2, column `gpus`: job a wants 64 GPUs, the cluster has 32"
        " (--set simulation.drop_unfinishable=true leaves such jobs out)\n"
    )
    assert not out.exists() and not page.exists()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("v100", "neither entries such as"),
        ("V 100:3", "neither entries such as"),
        ("v100:0", "no GPUs at all"),
        ("/nonexistent.toml", "cannot read"),
    ],
)
def test_bad_clusters(tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: str, message: str) -> None:
    path = write(tmp_path, NATIVE + "a,0,1,1\n")
    assert main(["simulate", "--trace", str(path), "--trace-format", "native", "--cluster", spec]) == 1
    assert message in capsys.readouterr().err
