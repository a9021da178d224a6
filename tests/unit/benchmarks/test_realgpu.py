# SPDX-License-Identifier: GPL-2.0-or-later
"""The proof for real GPUs, kept alive on mock GPUs; and that it can fail."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import benchmarks.realgpu.__main__ as command
from benchmarks.realgpu import watch
from benchmarks.realgpu.report import FAILED, NOT_RUN, OK, Report, load
from benchmarks.realgpu.rig import Place, Rig, end_remains, make_place, remains, watcher
from benchmarks.realgpu.stages import MOCK, STAGES, Bench, same_as_undisturbed
from tests.unit.draws import some

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534
MEMORY_MIB = 200


@pytest.fixture
def folder() -> Iterator[Path]:
    """Other users may enter it."""
    made = Path(tempfile.mkdtemp(prefix="test-realgpu-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def gpu(folder: Path, mock_gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One small mock GPU, for this process and its children."""
    libraries, devices = folder / "lib", folder / "dev"
    shutil.copytree(mock_gpu, libraries)
    libraries.chmod(0o755)
    devices.mkdir()
    (devices / "nvidia0").touch()
    (devices / "nvidia0").chmod(0o666)
    (folder / "gpus").mkdir()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries))
    monkeypatch.setenv("MOCKGPU_DIR", str(folder / "gpus"))
    monkeypatch.setenv("MOCKGPU_DEV_DIR", str(devices))
    sizes = ["--memory-mib", str(MEMORY_MIB), "--context-memory", "20MiB"]
    made = [str(libraries / "mockgpu"), "init", "--gpus", "1", "--node", "realgpu", *sizes]
    subprocess.run(made, check=True, timeout=60)


def other_user() -> tuple[int, str]:
    """A user without rights and a Python that it can run; where there is none, ourselves."""
    if os.geteuid() == 0:
        for python in (sys.executable, "/usr/bin/python3"):
            try:
                subprocess.run([python, "-c", ""], user=NOBODY, cwd="/", check=True, timeout=60)
            except (OSError, subprocess.SubprocessError):
                continue
            return NOBODY, python
    return os.geteuid(), sys.executable


def run(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "benchmarks.realgpu", "--mock", "--out", str(out), *arguments]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=400)


@pytest.fixture
def place(folder: Path) -> Iterator[Place]:
    uid, python = other_user()
    made = Place(folder / "scratch", 0, uid, python, uuid.uuid4().hex)
    made.scratch.mkdir()
    make_place(made)
    yield made
    assert end_remains(made.mark) == []
    command._unmount_below(made.scratch)


@pytest.mark.parametrize("stages", some(["coop,refuse", ",".join(STAGES)], "coop,refuse".__eq__))
@pytest.mark.usefixtures("gpu")
def test_all_stages_pass_on_a_mock_gpu(folder: Path, stages: str) -> None:
    uid, python = other_user()
    done = run(folder / "out", "--stages", stages, "--uid", str(uid), "--job-python", python)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((folder / "out" / "results.json").read_text())
    chosen = ["start", *stages.split(",")]
    assert list(results["stages"]) == chosen
    assert {stage["status"] for stage in results["stages"].values()} == {OK}
    rows = {
        f"{name}: {row['what']}": row for name, stage in results["stages"].items() for row in stage["rows"]
    }
    for what in (
        "start: a job of uid {uid} can use the GPU",
        "facts: NVML's list, context",
        "coop: 16 MiB, cycle 2, context released: NVML",
        "coop: 16 MiB, cycle 3, context kept: NVML",
        "coop: 16 MiB: digests as undisturbed",
        "refuse: helper: digests as undisturbed",
        "driver: kernel longer than the lock's deadline",
        "driver: 16 MiB: digests as undisturbed",
        "slice: never both jobs on the GPU",
        "slice: the watcher saw each job's memory",
        "slice: job 2: digests as undisturbed",
    ):
        assert what.split(":")[0] not in chosen or rows[what.format(uid=uid)]["verdict"] == OK
    assert "refused" in rows["refuse: helper"]["value"]
    figures = rows["coop: 16 MiB, cycle 2, context released"]["data"]
    assert figures["state_bytes"] == 16 << 20 and figures["session_seconds"] > 0
    table = (folder / "out" / "table.txt").read_text()
    assert "refuse   ok       helper: digests as undisturbed" in table
    if "slice" in chosen:
        assert "slice    ok       never both jobs on the GPU: 0 overlaps" in table
        assert rows["pack: mock + mock"]["data"]["rates"][1] > 0
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["results.json", "table.txt"]


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU")
def test_without_a_gpu_every_stage_says_so(folder: Path) -> None:
    done = run(folder / "out", "--stages", "facts,slice")
    assert done.returncode == 3, done.stdout + done.stderr
    results = json.loads((folder / "out" / "results.json").read_text())
    for stage in ("facts", "slice"):
        (row,) = results["stages"][stage]["rows"]
        assert row["verdict"] == NOT_RUN and "NVML" in row["value"]


def test_results_are_never_overwritten(folder: Path) -> None:
    (folder / "results.json").write_text("earlier")
    done = run(folder, "--stages", "facts")
    assert done.returncode == 2 and "is there already" in done.stderr
    assert (folder / "results.json").read_text() == "earlier"
    done = run(folder / "out", "--stages", "facts,speed")
    assert done.returncode == 2 and "no stage 'speed'; there are facts, link" in done.stderr
    assert not (folder / "out").exists()


@pytest.mark.usefixtures("gpu")
def test_a_stage_that_takes_too_long_is_ended_with_all_its_jobs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "SHORTEST_SECONDS", 0.0)
    found = command._stage("slice", place, True, 5.0)
    assert found["status"] == FAILED
    assert found["rows"][-1]["value"] == "not done within 5 s"
    assert remains(place.mark) == []
    assert command._stage("coop", place, True, -1.0)["status"] == NOT_RUN


@pytest.mark.usefixtures("gpu")
def test_the_watcher_sees_two_jobs_on_one_gpu(place: Place) -> None:
    async def overlap() -> tuple[watch.Verdict, watch.Verdict]:
        async with Rig(place) as rig:
            with watcher(place) as seen:
                words = ("--model", "mock", "--state-mib", "8")
                jobs = [rig.spawn(0, *words, "--no-session", managed=False) for _ in range(2)]
                for job in jobs:
                    await job.more_steps(3)
                pids = [job.process.pid for job in jobs]
                until = time.monotonic() + 60
                while not watch.judge(watch.read_lines(seen), {"1": pids[:1], "2": pids[1:]}).overlaps:
                    assert time.monotonic() < until, "the watcher looks many times a second"
                    await asyncio.sleep(0.05)
            lines = watch.read_lines(seen)
            both = watch.judge(lines, {"1": [pids[0]], "2": [pids[1]]})
            return both, watch.judge(lines, {"1": [pids[0]]})

    both, one = asyncio.run(overlap())
    assert both.overlaps and set(both.overlaps[0].held_bytes) == {"1", "2"}
    assert both.samples > 1 and both.unread == 0 and min(both.seen.values()) >= 8 << 20
    assert not one.overlaps and len(one.strangers) == 1


def _line(at: float, **processes: int | None) -> Mapping[str, Any]:
    return {"time": at, "used": 0, "processes": {name[1:]: size for name, size in processes.items()}}


def test_what_the_watcher_cannot_tell_counts_as_an_overlap() -> None:
    jobs = {"1": [11, 12], "2": [21]}
    apart = [_line(1, p11=5, p12=5), _line(2), _line(3, p21=9)]
    assert watch.judge(apart, jobs).overlaps == ()
    together = _line(4, p12=3, p21=9)
    assert [overlap.time for overlap in watch.judge([*apart, together], jobs).overlaps] == [4]
    assert watch.judge([together], jobs, allowed_bytes=3).overlaps == ()
    (unknown,) = watch.judge([_line(5, p11=None, p21=9)], jobs, allowed_bytes=3).overlaps
    assert unknown.held_bytes["1"] == watch.UNKNOWN_BYTES
    verdict = watch.judge([{"error": "lost"}, {"samples": 7, "longest_gap_seconds": 0.5}], jobs)
    assert (verdict.unread, verdict.samples, verdict.longest_gap_seconds) == (1, 7, 0.5)


class _Undisturbed(Rig):
    """Reference runs that were made before."""

    def __init__(self, place: Place, results: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(place)
        self._results = list(results)

    async def undisturbed(self, runs: Sequence[Sequence[str]], seconds: float) -> list[Mapping[str, Any]]:
        return [self._results.pop(0) for _ in runs]


@pytest.mark.parametrize(
    ("references", "verdict"), [(["a"], OK), (["b", "b"], FAILED), (["b", "c"], NOT_RUN)]
)
def test_a_wrong_digest_fails_unless_undisturbed_runs_differ_too(
    tmp_path: Path, references: list[str], verdict: str
) -> None:
    place = Place(tmp_path, 0, os.geteuid(), sys.executable, "x")
    bench = Bench(place, replace(MOCK), Report("coop", tmp_path / "coop.json"))
    results = [{"steps": 3, "digests": {"state": digest}} for digest in references]
    mine = {"steps": 3, "digests": {"state": "a"}}
    asyncio.run(same_as_undisturbed(bench, _Undisturbed(place, results), [("job", [], mine)]))
    (row,) = load(tmp_path / "coop.json")[1]
    assert row.verdict == verdict


def test_an_end_of_all_that_is_left_leaves_others_alone() -> None:
    mark = uuid.uuid4().hex
    marked = subprocess.Popen(["sleep", "60"], env={**os.environ, "REALGPU_RUN": mark})
    other = subprocess.Popen(["sleep", "60"])
    until = time.monotonic() + 60
    while remains(mark) != [marked.pid] and time.monotonic() < until:
        time.sleep(0.01)  # in the middle of exec a process has no environment
    assert end_remains(mark) == []
    assert marked.wait(timeout=60) != 0
    assert other.poll() is None
    other.kill()
    other.wait()
