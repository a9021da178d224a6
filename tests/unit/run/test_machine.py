# SPDX-License-Identifier: GPL-2.0-or-later
"""What a study has to run on: GPUs, host memory, CPUs, and a folder on the host."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from controller.cluster.allocation import Part
from controller.errors import GandivaError
from controller.model import GPU_MODEL
from controller.nodes.protocol import GpuInfo
from controller.run import limits
from controller.run import machine as module
from controller.run.machine import machine, machines, node_name, run_dir


def gpu(index: int, uuid: str, model: str = "NVIDIA A100-SXM4-80GB") -> GpuInfo:
    return GpuInfo(index, uuid, model, 80 << 30)


FOUND = (gpu(3, "GPU-aa"), gpu(0, "GPU-ab"), gpu(1, "GPU-cc"))
"""In PCI order, which is not that of their minor numbers."""


@pytest.fixture(autouse=True)
def name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename="vm"))


def chosen(wanted: Sequence[str] = (), **environ: str) -> list[str]:
    found = machine(FOUND, wanted, environ)
    assert [g.index for g in found.node.gpus] == sorted(id.ordinal for id in found.uuids)
    minor = {gpu.uuid: gpu.index for gpu in FOUND}
    assert all(minor[uuid] == gpu.ordinal for gpu, uuid in found.uuids.items())
    return list(found.uuids.values())


def test_all_gpus_are_used() -> None:
    found = machine(FOUND, (), {})
    assert [(g.index, g.model) for g in found.node.gpus] == [
        *((number, "nvidia_a100-sxm4-80gb") for number in (0, 1, 3))
    ]
    assert list(found.uuids.values()) == ["GPU-aa", "GPU-ab", "GPU-cc"], "in PCI order"
    assert (found.node.name, found.node.up, found.node.memory_allocated_bytes) == ("vm", True, 0)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (("0",), ["GPU-ab"]),
        (("GPU-cc", "3", "3"), ["GPU-aa", "GPU-cc"]),
    ],
)
def test_gpus_are_named_by_minor_number_or_uuid(wanted: Sequence[str], expected: list[str]) -> None:
    """Whatever CUDA_VISIBLE_DEVICES says."""
    assert chosen(wanted, CUDA_VISIBLE_DEVICES="") == expected


@pytest.mark.parametrize("wanted", [("2",), ("0", "GPU-a"), ("-1",), ("",), ("0-1",), ("MIG-x",)])
def test_gpus_that_are_not_there(wanted: Sequence[str]) -> None:
    said = f"there is no GPU {wanted[-1]} on vm; there are: 3, 0, 1"
    with pytest.raises(GandivaError, match=re.escape(said)):
        machine(FOUND, wanted, {})


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0", ["GPU-aa"]),
        ("2,1", ["GPU-ab", "GPU-cc"]),
        (" 1 , 0 ", ["GPU-aa", "GPU-ab"]),
        ("GPU-c", ["GPU-cc"]),
        ("GPU-cc,0", ["GPU-aa", "GPU-cc"]),
        ("1,-1,0", ["GPU-ab"]),
        ("1,,0", ["GPU-ab"]),
        ("1,7,0", ["GPU-ab"]),
        ("1,1,0", ["GPU-ab"]),
        ("1,GPU-a", ["GPU-ab"]),
        ("0x1,0", None),
        ("GPU-a", None),
        ("", None),
        (",0", None),
        ("-1", None),
        ("9" * 5000, None),
        ("NoDevFiles", None),
        ("MIG-GPU-aa/1/0", None),
        ("MIG-5c1fde4b-e2bd", None),
    ],
)
def test_gpus_that_are_visible(visible: str, expected: list[str] | None) -> None:
    """CUDA counts in PCI order, and its list ends at the first word that is no GPU, or one for a second
    time."""
    if expected is not None:
        assert chosen(CUDA_VISIBLE_DEVICES=visible) == expected
        return
    with pytest.raises(
        GandivaError, match=f"no GPU to use on vm: CUDA_VISIBLE_DEVICES={visible} leaves none"
    ):
        machine(FOUND, (), {"CUDA_VISIBLE_DEVICES": visible})
    with pytest.raises(GandivaError, match="no GPU to use on vm"):
        machine([gpu(0, "GPU-a")], (), {"CUDA_VISIBLE_DEVICES": ""})


def test_no_gpu() -> None:
    with pytest.raises(GandivaError, match="no GPU to use on vm: the driver shows no GPU"):
        machine((), (), {})
    with pytest.raises(GandivaError, match="there is no GPU 0 on vm; there are: none"):
        machine((), ("0",), {})


def test_gpus_of_several_models() -> None:
    mixed = (*FOUND, gpu(2, "GPU-v", "Tesla V100"))
    with pytest.raises(GandivaError, match=r"choose those of one with --gpus \(3: NVIDIA A100.*; 2: Tesla V"):
        machine(mixed, (), {})
    assert machine(mixed, ("2",), {}).node.gpus[0].model == "tesla_v100"
    assert len(machine(mixed, (), {"CUDA_VISIBLE_DEVICES": "0,1"}).uuids) == 2


@pytest.mark.parametrize("model", ["(R) X", "é" * 3, "x" * 100, "A100/80"])
def test_any_product_name_is_a_model(model: str) -> None:
    found = machine([gpu(0, "GPU-a", model)], (), {})
    assert re.fullmatch(GPU_MODEL, found.node.gpus[0].model)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("vm.example.org", "vm.example.org"),
        ("_my host_", "my-host_"),
        ("höst(1)", "h-st-1-"),
        ("...", "here"),
        ("", "here"),
        ("x" * 100, "x" * 64),
    ],
)
def test_hosts_with_odd_names(monkeypatch: pytest.MonkeyPatch, host: str, expected: str) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename=host))
    assert node_name() == expected


# Limits.

FEW = 1 << 20
V1, V2 = "9:memory:/a/b\n4:cpu,cpuacct:/a/b\n1:name=systemd:/a\n0::/\n", "0::/a/b\n"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is /proc and /sys/fs/cgroup, on a machine with 64 CPUs."""
    monkeypatch.setattr(limits, "_PROC", tmp_path)
    monkeypatch.setattr(limits, "_GROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    return tmp_path


def write(folder: Path, files: Mapping[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("files", "memory", "cpus"),
    [
        ({}, None, 64),
        ({"self/cgroup": V2}, None, 64),
        ({"self/cgroup": V2, "a/b/memory.max": f"{FEW}", "a/memory.max": "max"}, FEW, 64),
        ({"self/cgroup": V2, "a/b/memory.max": "max", "a/memory.max": f"{FEW}"}, FEW, 64),
        ({"self/cgroup": "0::/\n", "memory.max": f"{FEW}", "cpu.max": "150000 100000"}, FEW, 2),
        ({"self/cgroup": V2, "a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, None, 1),
        ({"self/cgroup": "0::/../x\n", "x/cpu.max": "50000 100000"}, None, 64),
        ({"self/cgroup": V2, "a/b/cpu.max": "900000000 100000", "a/b/memory.max": f"{2**62}"}, None, 64),
        ({"self/cgroup": V1, "memory/a/memory.limit_in_bytes": f"{FEW}"}, FEW, 64),
        ({"self/cgroup": V1, "memory/memory.limit_in_bytes": f"{FEW}"}, FEW, 64),
        ({"self/cgroup": V1, "memory/a/memory.limit_in_bytes": "9223372036854771712"}, None, 64),
        ({"self/cgroup": V1, "cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, None, 64),
        ({"self/cgroup": V1, "cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, None, 4),
    ],
)
def test_the_tightest_limit_counts(
    kernel: Path, files: dict[str, str], memory: int | None, cpus: int
) -> None:
    """Of the process's own control group, and of all above it: both versions, in a container or not."""
    write(kernel, files)
    node = machine(FOUND, (), {}).node
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert (node.memory_bytes, node.cpus) == (memory or physical, cpus)


# The folder on this host.


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of /tmp."""
    monkeypatch.setattr(module, "_TEMPORARY", tmp_path)
    return tmp_path


def mine(path: Path, mode: int = 0o700) -> Path:
    path.mkdir()
    path.chmod(mode)
    return path


def test_a_study_has_one_folder(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is named, and with another umask."""
    monkeypatch.chdir(temporary)
    mine(temporary / "lr")
    (temporary / "link").symlink_to("lr")
    before = os.umask(0)
    try:
        names = ("lr", "./link", f"../{temporary.name}/lr", str(temporary / "lr"))
        (path,) = {run_dir(Path(name)) for name in names}
    finally:
        os.umask(before)
    assert path.parent == temporary / f"gandiva-{os.geteuid()}"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path.parent, path)] == [0o700] * 2
    assert run_dir(temporary / "other") != path


def test_neither_a_logout_nor_a_variable_moves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd-logind empties /run/user/UID and /dev/shm when a user's last session ends, while jobs go on;
    cron and sudo have other variables. The name leaves room for that of a socket."""
    for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(name, "/run/user/0")
    path = run_dir(Path("/nonexistent/study"))
    path.rmdir()
    assert path.parent.parent == Path("/tmp") and len(str(path / "api")) < 60


def test_a_folder_that_a_process_keeps_is_not_cleaned(temporary: Path) -> None:
    """By systemd-tmpfiles, which does that on most machines to what is 10 days old in /tmp."""
    if shutil.which("systemd-tmpfiles") is None:
        pytest.skip("no systemd-tmpfiles here")
    kept, other = mine(temporary / "kept"), mine(temporary / "other")
    for folder in (kept, other):
        file = mine(folder / "7") / "command"
        file.touch()
        os.utime(file, (0, 0))
    config = temporary / "clean.conf"
    config.write_text(f"e {temporary} - - - m:10d\n")
    script = """if True:
        import subprocess, sys
        from pathlib import Path
        from controller.agent.files import keep_whole
        keep_whole(Path(sys.argv[1]))
        subprocess.run(["systemd-tmpfiles", "--clean", sys.argv[2]], check=True)
    """
    subprocess.run([sys.executable, "-c", script, str(kept), str(config)], check=True)
    assert (kept / "7/command").exists() and not (other / "7/command").exists()


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("how", ["link", "dangling", "file", "open", "other"])
def test_a_folder_that_another_user_could_have_made(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, level: int, how: str
) -> None:
    """Nothing is put into it."""
    path = run_dir(temporary)
    place, elsewhere = (path.parent, path)[level], mine(temporary / "elsewhere")
    path.rmdir()
    if level == 0:
        place.rmdir()
    if how == "link":
        place.symlink_to(elsewhere)
    elif how == "dangling":
        place.symlink_to(temporary / "nothing")
    elif how == "file":
        place.touch()
    else:
        mine(place, 0o700 if how == "other" else 0o777)
    if how == "other":
        uid = os.geteuid()
        (temporary / f"gandiva-{uid}").rename(temporary / f"gandiva-{uid + 1}")
        monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(GandivaError, match=f"folder {temporary}/gandiva-"):
        run_dir(temporary)
    assert not (temporary / "nothing").exists() and not list(elsewhere.iterdir())


def test_no_room_for_a_folder(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TEMPORARY", temporary / "no")
    with pytest.raises(GandivaError, match=f"folder {temporary}/no/gandiva-.* for this user alone: No such"):
        run_dir(temporary)


def test_gangs_have_the_same_indices_on_each_node() -> None:
    """GPUs 2 and 3 of one node and 0 and 1 of another hold no gang of 3 or 4."""
    part = Part(4, 2**33)

    def of(*indices: int) -> list[GpuInfo]:
        return [gpu(index, f"GPU-{index}") for index in indices]

    torn = machines({"n1": of(2, 3), "n2": of(0, 1)}, {"n1": part, "n2": part})
    whole = machines({"n1": of(0, 1, 2, 3), "n2": of(0, 1)}, {"n1": part, "n2": part})
    assert [count for count in range(1, 9) if torn.fits(count)] == [1, 2]
    assert [count for count in range(1, 9) if whole.fits(count)] == [1, 2, 3, 4]
    even = machines({name: of(0, 1, 2) for name in "abc"}, dict.fromkeys("abc", part))
    assert [count for count in range(1, 10) if even.fits(count)] == [1, 2, 3, 4, 6, 9]


def test_a_job_without_gpus_is_refused() -> None:
    with pytest.raises(GandivaError, match="no GPU on node n1: submit it with --gres=gpu:N"):
        machines({"n1": []}, {"n1": Part(4, 2**33)})
