# SPDX-License-Identifier: GPL-2.0-or-later
"""The rendered files: their content, the whole set, and writing them."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.cli.main import main
from controller.slurm_config.description import ClusterDescription, SlurmConfigError, load, parse
from controller.slurm_config.fragments import PARTS, Options, render, write
from controller.slurm_config.lua import literal

CONFIGS = Path(__file__).parents[3] / "configs/slurm"
SAMPLE = CONFIGS / "mini.toml"


@pytest.fixture
def mini() -> ClusterDescription:
    return load(SAMPLE)


def test_the_sample_files_are_what_the_sample_description_gives() -> None:
    rendered = dict(render(load(CONFIGS / "cluster.toml")))
    folder = CONFIGS / "sample"
    there = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert there == rendered, "make them anew: gandiva config slurm --output-dir configs/slurm/sample --force"


def test_memory_of_jobs_that_name_none_leaves_room_for_others() -> None:
    # Else a job gets its node's whole memory, and nobody can share its GPUs.
    assert "DefMemPerCPU=512" in render(load(SAMPLE))["gandiva/slurm.conf"].splitlines()
    text = SAMPLE.read_text().replace('name = "mini"', 'name = "mini"\ndefault_memory_mib_per_cpu = 77')
    assert "DefMemPerCPU=77" in render(parse(text))["gandiva/slurm.conf"].splitlines()


def test_the_module_trusts_slurms_user_and_the_controller() -> None:
    text = SAMPLE.read_text() + '[gandiva]\ncontroller_users = ["me", 997]\n'
    settings = render(parse(text))["gandiva/gandiva_settings.lua"]
    assert 'trusted_users = { "slurm", "me", 997 },' in settings


def test_one_type_per_gpu_and_its_shards(mini: ClusterDescription) -> None:
    lines = render(mini)["gres.conf"].splitlines()
    assert "NodeName=n[1-2] Name=gpu Type=a100_3 File=/dev/nvidia3" in lines
    assert "NodeName=n[1-2] Name=shard Type=a100_3 Count=16 File=/dev/nvidia3" in lines
    assert sum("Name=gpu" in line for line in lines) == sum("Name=shard" in line for line in lines) == 4


def test_slurm_conf_lists_the_same_gres_as_gres_conf(mini: ClusterDescription) -> None:
    files = render(mini)
    node = next(line for line in files["gandiva/slurm.conf"].splitlines() if line.startswith("NodeName="))
    gres = next(word for word in node.split() if word.startswith("Gres=")).removeprefix("Gres=").split(",")
    told = set()
    for line in files["gres.conf"].splitlines():
        if line.startswith("NodeName="):
            words = dict(word.split("=", 1) for word in line.split())
            told.add(f"{words['Name']}:{words['Type']}:{words.get('Count', 1)}")
    assert set(gres) == told
    assert "Feature=gandiva_a100" in node.split()


def test_a_node_without_gpus_has_neither_gres_nor_the_feature() -> None:
    text = SAMPLE.read_text() + '[[nodes]]\nnames = "c1"\ncpus = 1\nmemory_mib = 1\nfeatures = ["fat"]\n'
    files = render(parse(text))
    assert "NodeName=c1 CPUs=1 RealMemory=1 Feature=fat" in files["gandiva/slurm.conf"]
    assert "NodeName=c1 " not in files["gres.conf"]


def test_several_slurmd_on_one_host() -> None:
    text = SAMPLE.read_text().replace("gpus = 4", 'gpus = 4\nhost = "big"\nports = "[17001-17002]"')
    assert (
        "NodeName=n[1-2] NodeHostname=big Port=[17001-17002] CPUs=16"
        in render(parse(text))["gandiva/slurm.conf"]
    )


def test_a_site_with_its_own_controller_line_gets_none(mini: ClusterDescription) -> None:
    text = SAMPLE.read_text().replace('controller_host = "ctl"\n', "").replace('database_host = "db"\n', "")
    told = render(parse(text))["gandiva/slurm.conf"]
    assert "ClusterName" not in told and "SlurmctldHost" not in told and "StorageHost" not in told
    assert "SlurmctldHost=ctl" in render(mini)["gandiva/slurm.conf"]


def test_plugstack_carries_the_options(mini: ClusterDescription) -> None:
    options = Options(jobside="/j", run_dir="/run/gandiva/%n", spank_plugin="/p/spank_gandiva.so")
    files = render(mini, options)
    last = files["plugstack.conf.d/gandiva.conf"].splitlines()[-1]
    assert last == "required /p/spank_gandiva.so jobside=/j run_dir=/run/gandiva/%n default=off"
    assert "GANDIVA_RUN_DIR=/run/gandiva/%n" in files["gandiva/gandiva.env"].splitlines()


def test_parts_make_up_the_whole(mini: ClusterDescription) -> None:
    together: dict[str, str] = {}
    for part in PARTS:
        together.update(render(mini, parts=[part]))
    assert together == dict(render(mini))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (1.5, "1.5"),
        ("a100", '"a100"'),
        ('x"]=os.exit()--', '"x\\034\\093\\061os.exit\\040\\041--"'),
        ("\n\\", '"\\010\\092"'),
        ([], "{}"),
        ({"end": 1, "a-b": 2, "ok": 3}, '{ ["end"] = 1, ["a-b"] = 2, ok = 3 }'),
    ],
)
def test_lua_literals_cannot_be_broken_out_of(value: object, text: str) -> None:
    assert literal(value) == text  # type: ignore[arg-type]


def test_write_leaves_right_files_alone_and_refuses_to_overwrite(
    tmp_path: Path, mini: ClusterDescription
) -> None:
    files = render(mini)
    assert {str(path.relative_to(tmp_path)) for path in write(files, tmp_path)} == set(files)
    assert write(files, tmp_path) == ()
    mine = tmp_path / "gres.conf"
    mine.write_text("mine\n")
    (tmp_path / "cgroup.conf").unlink()
    with pytest.raises(SlurmConfigError, match=r"gres\.conf: there already, with other content"):
        write(files, tmp_path)
    assert mine.read_text() == "mine\n"
    assert not (tmp_path / "cgroup.conf").exists(), "all or none"
    write(files, tmp_path, force=True)
    assert mine.read_text() == files["gres.conf"]
    assert mine.stat().st_mode & 0o777 == 0o644


def test_what_a_site_has_behind_the_made_lines_stays(tmp_path: Path, mini: ClusterDescription) -> None:
    files, own = render(mini), "NodeName=o1 Name=gpu Type=2080ti File=/dev/nvidia0\n"
    write(files, tmp_path)
    with (tmp_path / "gres.conf").open("a") as gres:
        gres.write(own)
    assert write(files, tmp_path) == ()
    write({**files, "gres.conf": "# other\n" + files["gres.conf"]}, tmp_path, force=True)
    assert (tmp_path / "gres.conf").read_text() == "# other\n" + files["gres.conf"] + own


def _run(*argv: str) -> int:
    return main(["config", "slurm", *argv])


def test_the_command_prints_one_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--cluster", str(SAMPLE), "--part", "gres") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("### gres.conf\n# Made by")
    assert printed.count("###") == 1


def test_the_command_writes_and_then_has_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run("--cluster", str(SAMPLE), "--output-dir", str(tmp_path)) == 0
    assert f"wrote {tmp_path}/gandiva/slurm.conf" in capsys.readouterr().out
    assert _run("--cluster", str(SAMPLE), "--output-dir", str(tmp_path)) == 0
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--cluster", "/nonexistent.toml"], "cannot read /nonexistent.toml: "),
        (["--cluster", str(SAMPLE), "--jobside", "/a b"], "--jobside '/a b': expected an absolute path"),
        (["--cluster", str(SAMPLE), "--run-dir", "run"], "--run-dir 'run': expected an absolute path"),
        (["--cluster", str(SAMPLE), "--output-dir", "/dev/null/x"], "cannot write "),
    ],
)
def test_the_command_refuses_with_one_message(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(*argv) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("gandiva: ") and message in captured.err
