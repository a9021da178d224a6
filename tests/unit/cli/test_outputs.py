# SPDX-License-Identifier: GPL-2.0-or-later
"""What a command writes is never one of the files that it reads, by whatever name; `-` is standard output."""

from __future__ import annotations

import csv
import io
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from controller.cli.main import main
from controller.cli.outputs import writing
from controller.cli.simulate import _EXAMPLES
from controller.errors import GandivaError

ROOT = Path(__file__).resolve().parents[3]
TRACE = "job_id,submit_seconds,duration_seconds,gpus\na,0,100,1\nb,5,50,2\n"
CLUSTER = '[[nodes]]\ngpu_model = "v100"\ngpus = 4\n'
RATES = "{}"
INPUTS = {"--trace": "t.csv", "--cluster": "c.toml", "--throughputs": "r.json", "--settings": "s.toml"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("GANDIVA_CONFIG", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, text in (("t.csv", TRACE), ("c.toml", CLUSTER), ("r.json", RATES)):
        (tmp_path / name).write_text(text)
    sizes = f'[policy.tiresias-gittins]\ndistribution = "{tmp_path / "sizes.csv"}"\n'
    (tmp_path / "s.toml").write_text(sizes)
    (tmp_path / "sizes.csv").write_text("duration\n5\n")
    return tmp_path


def simulate(*more: str) -> int:
    words = [word for option, name in INPUTS.items() for word in (option, name)]
    return main(["simulate", "--trace-format", "native", "--policy", "fifo", *words, *more])


def other_names(path: Path) -> list[str]:
    """Ways to name a file that is there."""
    link, hard = path.parent / f"link-{path.name}", path.parent / f"hard-{path.name}"
    if not link.exists():
        link.symlink_to(path.name)
        hard.hardlink_to(path)
    folder = path.parent / "folder"
    folder.mkdir(exist_ok=True)
    return [path.name, str(path), f"folder/../{path.name}", str(link), str(hard)]


@pytest.mark.parametrize("option", ["--jobs-out", "--html"])
@pytest.mark.parametrize("read", [*INPUTS.values(), "sizes.csv"])
def test_simulate_overwrites_nothing_that_it_reads(
    site: Path, capsys: pytest.CaptureFixture[str], option: str, read: str
) -> None:
    before = (site / read).read_bytes()
    for name in other_names(site / read):
        assert simulate(option, name) == 1, name
        said = capsys.readouterr()
        assert f"{option} {name} is the file that " in said.err and "overwritten" in said.err
        assert said.out == "" and (site / read).read_bytes() == before


def test_a_file_that_is_open_already_is_known_by_its_descriptor(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (site / "t.csv").open("a") as file:
        assert simulate("--jobs-out", f"/proc/self/fd/{file.fileno()}") == 1
    assert "is the file that --trace names" in capsys.readouterr().err
    assert (site / "t.csv").read_text() == TRACE


def test_two_outputs_are_two_files(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--jobs-out", "out", "--html", "./out") == 1
    assert "--jobs-out and --html name the same file" in capsys.readouterr().err
    assert not (site / "out").exists()


def test_snapshots_overwrite_nothing_that_is_read(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = site / "snapshots" / "fifo"
    folder.mkdir(parents=True)
    (folder / "0.json").hardlink_to(site / "t.csv")
    assert simulate("--snapshot-every", "10") == 1
    assert "--snapshot-dir snapshots/fifo/0.json is the file that --trace names" in capsys.readouterr().err
    assert (site / "t.csv").read_text() == TRACE


def test_a_dash_is_standard_output_and_nothing_else_goes_there(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate("--jobs-out", "-") == 0
    shown = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(shown.out)))
    assert [row["job_id"] for row in rows] == ["a", "b"]
    assert shown.err.startswith("Policy") and not (site / "-").exists()
    assert simulate("--json", "--jobs-out", "-") == 1
    shown = capsys.readouterr()
    assert shown.out == "" and "--json writes to standard output" in shown.err


def test_standard_output_that_is_appended_to_the_trace_is_refused(site: Path) -> None:
    command = [sys.executable, "-m", "controller.cli.main", "simulate", "--trace-format", "native"]
    command += ["--trace", "t.csv", "--cluster", "v100:4", "--jobs-out", "-"]
    with (site / "t.csv").open("a") as trace:
        done = subprocess.run(
            command,
            cwd=site,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=trace,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1 and "is the file that --trace names" in done.stderr
    assert (site / "t.csv").read_text() == TRACE


@pytest.mark.parametrize("read", ["journal", "journal-wal", "s.toml"])
def test_report_overwrites_nothing_that_it_reads(
    site: Path, capsys: pytest.CaptureFixture[str], read: str
) -> None:
    for name in ("journal", "journal-wal"):
        (site / name).write_text("precious")
    before = (site / read).read_bytes()
    for name in other_names(site / read):
        words = ["report", "--journal", "journal", "--config", "s.toml", "--html", name]
        assert main(words) == 1, name
        assert "it would be overwritten" in capsys.readouterr().err
        assert (site / read).read_bytes() == before and (site / name).exists()


def test_config_slurm_overwrites_no_description(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "configs" / "slurm" / "cluster.toml").read_text()
    (site / "gres.conf").write_text(text)
    words = ["config", "slurm", "--cluster", "gres.conf", "--part", "gres", "--output-dir", "."]
    assert main([*words, "--force"]) == 1
    assert "is the file that --cluster names" in capsys.readouterr().err
    assert (site / "gres.conf").read_text() == text


def test_the_daemon_logs_into_none_of_its_files(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "journal").write_text("precious")
    text = f'[journal]\npath = "{site}/journal"\n[log]\nfile = "{site}/link-journal"\n'
    other_names(site / "journal")
    (site / "d.toml").write_text(text)
    assert main(["daemon", "-D", "--config", "d.toml"]) == 1
    assert "log.file" in (said := capsys.readouterr().err) and "journal.path names" in said
    assert (site / "journal").read_text() == "precious"


def test_the_examples_of_the_help_work(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "jobs.csv").write_text(TRACE)
    (site / "site.toml").write_text(CLUSTER)
    examples = _EXAMPLES.replace("\\\n", " ").strip().splitlines()
    assert len(examples) > 3
    for example in examples:
        assert main(shlex.split(example)[1:]) == 0, (example, capsys.readouterr().err)
    assert (site / "jobs.csv").read_text() == TRACE


def test_writing_replaces_the_file_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.html"
    path.write_text("before")
    mask = os.umask(0o027)
    try:
        with writing(path) as file:
            file.write("new")
    finally:
        os.umask(mask)
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(GandivaError, match=r"cannot write .*nowhere"), writing(tmp_path / "nowhere" / "r"):
        pass
    monkeypatch.setattr(
        Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(GandivaError, match="No space left"), writing(path) as file:
        file.write("newer")
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]
