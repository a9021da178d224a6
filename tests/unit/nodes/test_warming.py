# SPDX-License-Identifier: GPL-2.0-or-later
"""The files of a job's programs are in the page cache of the node that the job comes to."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.agent import warming
from controller.agent.deadline import Deadline
from controller.agent.gpus import GpuReader, NvmlSource
from controller.agent.host_memory import HostMemory
from controller.agent.node import AgentSettings, Node
from controller.agent.warming import READER
from controller.errors import NodeError
from controller.model import JobId
from controller.nodes.protocol import WarmArgs
from controller.nodes.remote import RemoteNodes

from .conftest import MIB, NODE, Rig, eventually
from .test_yield_and_resume import QUICK, prepare


def cached(path: Path) -> bool:
    """Whether all of a file is in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE) as content:
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        address = ctypes.addressof(ctypes.c_char.from_buffer(content))
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages) == 0, ctypes.get_errno()
    return all(page & 1 for page in pages)


def cold(path: Path) -> Path:
    """A file of 2 MiB that is on the disk alone."""
    path.write_bytes(os.urandom(2 * MIB))
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
    if cached(path):
        pytest.skip("the file system keeps all files in memory")
    return path


async def warm(nodes: RemoteNodes, *paths: Path, uid: int | None = None) -> None:
    files = [str(path) for path in paths]
    await nodes.warm(NODE, uid=os.getuid() if uid is None else uid, files=files, deadline_seconds=60.0)


def test_files_that_a_job_has_mapped_are_named(rig: Rig) -> None:
    found: list[str] = []

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = rig.start(2, *QUICK, "--steps", "100000", gpus="0")
        rig.wait_for_steps(job, 2)
        found.extend(await nodes.mapped(NODE, JobId(2), deadline_seconds=60.0))
        assert await nodes.mapped(NODE, JobId(3), deadline_seconds=60.0) == []

    rig.run(scenario)
    assert any(path.endswith("libcuda.so.1") for path in found)
    assert any("python" in path for path in found)
    assert [path for path in found if not Path(path).is_file()] == []


AGENTS_GROUP = 54321
MAPS = """
import mmap, os, sys, time
kept = []
for path, mib in zip(sys.argv[1:], (1, 4, 2, 3)):
    with open(path, "wb+") as file:
        file.truncate(mib << 20)
        kept.append(mmap.mmap(file.fileno(), mib << 20))
os.remove(sys.argv[3])
time.sleep(600)
"""


def test_only_files_on_the_disk_are_named_those_with_the_most_bytes_first(rig: Rig, tmp_path: Path) -> None:
    small, large, removed = (tmp_path / name for name in ("small", "large", "removed"))
    in_memory = Path(f"/dev/shm/gandiva-test-{os.getpid()}")

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        files = [str(file) for file in (small, large, removed, in_memory)]
        rig.start_other(2, sys.executable, "-c", MAPS, *files)
        eventually("the mappings", lambda: large.exists() and not removed.exists() and in_memory.exists())
        named = await nodes.mapped(NODE, JobId(2), deadline_seconds=60.0)
        own = [path for path in named if path.startswith((str(tmp_path), "/dev"))]
        assert own == [str(large), str(small)]

    try:
        rig.run(scenario)
    finally:
        in_memory.unlink(missing_ok=True)


def test_they_are_named_while_the_job_comes_to_its_step(rig: Rig) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = rig.start(2, "--minibatch-ms", "3000", "--steps", "100", "--memory-mb", "64", gpus="0")
        rig.wait_for_steps(job, 1)
        pause = asyncio.create_task(nodes.pause(NODE, job.job_id, floor_step=0, wait_seconds=60.0, sole=True))
        await asyncio.sleep(0)  # It is sent first.
        assert await nodes.mapped(NODE, job.job_id, deadline_seconds=60.0)
        assert not pause.done()
        assert (await pause).all_blocked

    rig.run(scenario)


def test_files_are_read_and_what_is_none_is_passed_over(rig: Rig, tmp_path: Path) -> None:
    folder, pipe, link = tmp_path / "folder", tmp_path / "pipe", tmp_path / "link"
    folder.mkdir()
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "missing")
    file = cold(tmp_path / "library.so")

    screen, terminal = os.openpty()
    os.write(screen, b"typed\n")

    async def scenario(nodes: RemoteNodes) -> None:
        await warm(nodes, folder, pipe, link, Path("/dev/zero"), Path(os.ttyname(terminal)), file)

    rig.run(scenario)
    assert cached(file)
    os.set_blocking(terminal, False)
    assert os.read(terminal, 100) == b"typed\n", "what a device has for another is not taken"
    os.close(screen)
    os.close(terminal)


def test_no_more_is_read_than_there_is_room_for(tmp_path: Path) -> None:
    """Which ones were read is in the sum. (The kernel may drop any page of its cache at any moment.)"""
    sizes = {"too large": 4 * MIB, "first": 2 * MIB, "second": 1 * MIB + 1, "third": MIB // 2}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    paths = "\0".join(str(tmp_path / name) for name in sizes)
    words = (str(3 * MIB), str(os.getuid()), str(os.getgid()), str(os.getgid()))
    program = [sys.executable, "-I", str(READER), *words]
    done = subprocess.run(program, input=paths, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert int(done.stdout) == sizes["first"] + sizes["third"]


@pytest.mark.parametrize(
    ("meminfo", "read_bytes"), [("MemAvailable:   8192 kB\n", 2 * MIB), ("", 0)], ids=["known", "unknown"]
)
def test_a_quarter_of_the_free_memory_is_filled(tmp_path: Path, meminfo: str, read_bytes: int) -> None:
    """And none of it where the node does not say how much that is."""
    node = Node(AgentSettings(NODE, tmp_path / "run", None), GpuReader(NvmlSource()), driver=None)  # type: ignore[arg-type]
    node.host_memory = HostMemory(tmp_path)
    (tmp_path / "meminfo").write_text(meminfo)
    quarter, more = tmp_path / "quarter", tmp_path / "more"
    quarter.write_bytes(bytes(2 * MIB))
    more.write_bytes(b"more")
    args = WarmArgs(uid=os.getuid(), files=(str(quarter), str(more)))
    assert warming.warm(node, args, Deadline(60)) == {"bytes": read_bytes}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that others can enter. What is above `tmp_path` every start of pytest closes to them again."""
    with tempfile.TemporaryDirectory(prefix="gandiva-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads as another user")
def test_files_are_read_as_the_user_of_the_job(rig: Rig, open_folder: Path) -> None:
    names = ("root only", "root's group", "agent's group", "own group", "public")
    files = [cold(open_folder / name) for name in names]
    nobody = pwd.getpwuid(65534)
    for file, mode in zip(files, (0o600, 0o640, 0o640, 0o640, 0o644), strict=True):
        file.chmod(mode)
    os.chown(files[2], 0, AGENTS_GROUP)
    os.chown(files[3], 0, nobody.pw_gid)

    async def scenario(nodes: RemoteNodes) -> None:
        await warm(nodes, *files, uid=nobody.pw_uid)

    groups = os.getgroups()
    os.setgroups([AGENTS_GROUP])
    try:
        rig.run(scenario)
    finally:
        os.setgroups(groups)
    assert [cached(file) for file in files] == [False, False, False, True, True]


def test_a_user_that_the_node_does_not_know(rig: Rig, tmp_path: Path) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        with pytest.raises(NodeError, match="no user has the id 4000000") as caught:
            await warm(nodes, tmp_path / "any", uid=4_000_000)
        assert caught.value.kind == "unsupported"
        with pytest.raises(NodeError, match="files"):
            await nodes.warm(NODE, uid=0, files=["relative"], deadline_seconds=5.0)

    rig.run(scenario)
