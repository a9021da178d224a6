# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva-confine` on real control groups of both versions, laid out as Slurm does it."""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "slurm_plugin" / "confine" / "confine.c"
MAJOR = 195
BPF, LOAD, ATTACH = 321, 5, 8
ALLOW_OVERRIDE = 1
_NUMBERS = itertools.count(900_000_000)


def bpf(command: int, attributes: bytes) -> int:
    """The system call of x86-64. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    result = int(libc.syscall(BPF, command, buffer, 128))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def attach_as_slurm_does(folder: Path, flags: int, denied: int = -1) -> None:
    """A program that allows all devices but that of one GPU, with the flags of Slurm's own."""
    instructions = [
        (0x61, 0x12, 8, 0),  # r2 = minor
        (0x55, 0x02, 2, denied),  # r2 == denied:
        (0xB7, 0, 0, 0),  # r0 = 0
        (0x95, 0, 0, 0),
        (0xB7, 0, 0, 1),  # r0 = 1
        (0x95, 0, 0, 0),
    ]
    text = b"".join(struct.pack("<BBhi", *instruction) for instruction in instructions)
    code, license_text = ctypes.create_string_buffer(text), ctypes.create_string_buffer(b"GPL")
    words = (15, len(instructions), ctypes.addressof(code), ctypes.addressof(license_text))
    program = bpf(LOAD, struct.pack("<IIQQ", *words))
    group = os.open(folder, os.O_RDONLY)
    bpf(ATTACH, struct.pack("<IIII", group, program, 6, flags))
    os.close(group)
    os.close(program)


class ClusterJob:
    """The control groups of a job, a process in its first step, and its control block."""

    def __init__(self, version: int, mount: Path, folder: Path) -> None:
        self.version = version
        number = next(_NUMBERS) + os.getpid() % 10_000 * 100
        if version == 1:
            self.root = mount / f"slurm_test{number}"
            self.folder = self.root / "uid_1" / f"job_{number}"
        else:
            self.root = mount / f"test{number}.slice"
            self.folder = self.root / "slurmstepd.scope" / f"job_{number}"
        self.block = folder / str(number)
        self.block.mkdir(mode=0o755)
        self.devices = folder / "dev"
        self.devices.mkdir()
        for index in range(4):
            os.mknod(self.devices / f"nvidia{index}", 0o20666, os.makedev(MAJOR, index))
        self.task = self.add_step(0)
        self.process = subprocess.Popen(["sleep", "600"])
        (self.task / "cgroup.procs").write_text(str(self.process.pid))

    def add_batch(self, denied: int) -> Path:
        """A batch script, which has Slurm's rules of the job alone: one GPU is not the job's."""
        task = self.folder / ("step_batch/task_0" if self.version == 1 else "step_batch/user/task_0")
        task.mkdir(parents=True)
        if self.version == 2:
            attach_as_slurm_does(self.folder, ALLOW_OVERRIDE, denied)
        else:
            (self.folder / "devices.deny").write_text(f"c {MAJOR}:{denied} rwm")
        return task

    def add_step(self, number: int) -> Path:
        """As slurmstepd makes it, with all GPUs open; the folder of its task."""
        step = self.folder / f"step_{number}"
        task = step / ("task_0" if self.version == 1 else "user/task_0")
        task.mkdir(parents=True)
        if self.version == 2:
            if not number:
                attach_as_slurm_does(self.folder, ALLOW_OVERRIDE)
            attach_as_slurm_does(step / "user", ALLOW_OVERRIDE)
            attach_as_slurm_does(task, 0)
        else:
            for group in (self.folder, step, task):
                for index in range(4):
                    (group / "devices.allow").write_text(f"c {MAJOR}:{index} rwm")
        return task

    def opens(self, task: Path | None = None) -> list[int]:
        """GPUs whose device a new process of a task can open. (There is no driver: that is another error.)"""
        words = []
        for index in range(4):
            script = f"echo $$ > {task or self.task}/cgroup.procs && exec cat {self.devices}/nvidia{index}"
            words.append(subprocess.run(["sh", "-c", script], capture_output=True, text=True).stderr)
        assert all("No such device" in w or "not permitted" in w for w in words), words
        return [index for index, word in enumerate(words) if "No such device" in word]

    def take(self, tool: Path, gpus: Sequence[int], of: Sequence[int] = range(4)) -> None:
        """Write `turn` and carry it out."""
        signs = [f"{'+' if index in gpus else '-'}{MAJOR}:{index}" for index in of]
        (self.block / "turn").write_text(" ".join(["on" if gpus else "off", *signs]) + "\n")
        done = self.confine(tool)
        assert done.returncode == 0, done.stderr

    def confine(self, tool: Path) -> subprocess.CompletedProcess[str]:
        command = [str(tool), str(self.block), str(self.process.pid)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for folder in sorted(self.root.rglob("*/"), key=lambda path: -len(path.parts)):
            if folder.is_dir():
                folder.rmdir()
        self.root.rmdir()


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    built = tmp_path_factory.mktemp("confine") / "gandiva-confine"
    flags = ["-Wall", "-Wextra", "-Werror", "-std=gnu11", "-D_GNU_SOURCE", "-O2"]
    subprocess.run(["cc", *flags, "-o", str(built), str(SOURCE)], check=True, timeout=120)
    return built


@pytest.fixture(params=[1, 2])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClusterJob]:
    """Skipped where no control group can be made: live tests have those of the host's version in any case."""
    if os.geteuid() != 0:
        pytest.skip("control groups are root's: run as root")
    kind = "cgroup2" if request.param == 2 else "cgroup"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        words = after.split()
        if words[0] == kind and (request.param == 2 or "devices" in words[2].split(",")):
            mount = Path(before.split()[4])
            break
    else:
        pytest.skip(f"no {kind} for devices is mounted")
    try:
        made = ClusterJob(request.param, mount, tmp_path)
    except OSError as error:
        pytest.skip(f"no control group can be made in {mount}: {error}")
    yield made
    made.close()


def test_a_job_opens_the_gpus_of_its_turn_and_no_others(tool: Path, job: ClusterJob) -> None:
    assert job.opens() == [0, 1, 2, 3]
    for gpus in ([2], [3], [], [0, 1], [2], [0, 1, 2, 3]):
        job.take(tool, gpus)
        assert job.opens() == gpus


def test_a_step_is_confined_when_it_is_started(tool: Path, job: ClusterJob) -> None:
    """slurmstepd opens all of the job's GPUs for it, on version 1 in the job's folder too."""
    job.take(tool, [2])
    task = job.add_step(1)
    assert job.opens(task) == [0, 1, 2, 3]
    done = job.confine(tool)
    assert done.returncode == 0, done.stderr
    assert job.opens(task) == job.opens() == [2]
    job.take(tool, [1])
    assert job.opens(task) == job.opens() == [1]


def test_what_slurm_has_closed_stays_closed(tool: Path, job: ClusterJob) -> None:
    """Version 2: a program of the job's folder counts below only where there is no other."""
    task = job.add_batch(denied=3)
    assert job.opens(task) == [0, 1, 2]
    for gpus, opened in (([0], [0, 1, 2]), ([], [1, 2]), ([0], [0, 1, 2])):
        job.take(tool, gpus, of=(0,))
        assert job.opens(task) == opened


def test_no_user_can_keep_it_waiting(tool: Path, job: ClusterJob) -> None:
    """Everybody can open the block's folder, and lock it."""
    theirs = os.open(job.block, os.O_RDONLY)
    try:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        job.take(tool, [2])
    finally:
        os.close(theirs)
    assert job.opens() == [2]
    assert (job.block / "turn.lock").stat().st_mode & 0o777 == 0o600


def test_a_control_group_of_a_users_own_is_no_jobs(tool: Path, job: ClusterJob) -> None:
    """It can have any name; so can another process of the job find itself there."""
    own = job.root / "user.slice" / job.folder.relative_to(job.root) / "step_0"
    own.mkdir(parents=True)
    (own / "cgroup.procs").write_text(str(job.process.pid))
    (job.block / "turn").write_text("on -195:1")
    done = job.confine(tool)
    assert done.returncode == 1 and "no device control group" in done.stderr


def test_other_devices_stay_open(tool: Path, job: ClusterJob) -> None:
    job.take(tool, [1], of=(0, 1))
    assert job.opens() == [1, 2, 3]
    job.take(tool, [])
    script = f"echo $$ > {job.task}/cgroup.procs && : < /dev/null > /dev/zero"
    assert subprocess.run(["sh", "-c", script]).returncode == 0


@pytest.mark.parametrize("text", ["on 195:1", "on +195", "on +195:1x", "on *195:1", "on" + " +1:1" * 257])
def test_a_senseless_turn_changes_nothing(tool: Path, job: ClusterJob, text: str) -> None:
    (job.block / "turn").write_text(text)
    done = job.confine(tool)
    assert done.returncode == 1 and "expected +MAJOR:MINOR or -MAJOR:MINOR" in done.stderr
    assert job.opens() == [0, 1, 2, 3]


def test_a_block_that_others_can_write_is_refused(tool: Path, job: ClusterJob) -> None:
    (job.block / "turn").write_text("on -195:1")
    job.block.chmod(0o777)
    done = job.confine(tool)
    assert done.returncode == 1 and "is not root's alone" in done.stderr


@pytest.mark.usefixtures("job")
def test_this_host_has_what_it_takes(tool: Path) -> None:
    done = subprocess.run([str(tool), "--probe"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
