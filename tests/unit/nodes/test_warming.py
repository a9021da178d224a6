# SPDX-License-Identifier: GPL-2.0-or-later
"""The files of a job's programs are in the page cache of the node that the job comes to."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from controller.errors import NodeError
from controller.model import JobId
from controller.nodes.remote import RemoteNodes

from .conftest import MIB, NODE, Rig
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
    await nodes.warm(NODE, uid=os.getuid() if uid is None else uid, files=files, deadline_seconds=20.0)


def test_files_that_a_job_has_mapped_are_named(rig: Rig) -> None:
    found: list[str] = []

    async def scenario(nodes: RemoteNodes) -> None:
        await prepare(nodes, 2, [0], [0])
        job = rig.start(2, *QUICK, "--steps", "100000", gpus="0")
        rig.wait_for_steps(job, 2)
        found.extend(await nodes.mapped(NODE, JobId(2), deadline_seconds=20.0))
        assert await nodes.mapped(NODE, JobId(3), deadline_seconds=20.0) == []

    rig.run(scenario)
    assert any(path.endswith("libcuda.so.1") for path in found)
    assert any("python" in path for path in found)
    assert [path for path in found if not Path(path).is_file()] == []


def test_files_are_read_and_what_is_none_is_passed_over(rig: Rig, tmp_path: Path) -> None:
    folder, pipe, link = tmp_path / "folder", tmp_path / "pipe", tmp_path / "link"
    folder.mkdir()
    os.mkfifo(pipe)
    link.symlink_to(tmp_path / "missing")
    file = cold(tmp_path / "library.so")

    async def scenario(nodes: RemoteNodes) -> None:
        await warm(nodes, folder, pipe, link, Path("/dev/zero"), file)

    rig.run(scenario)
    assert cached(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads as another user")
def test_files_are_read_as_the_user_of_the_job(rig: Rig, tmp_path: Path) -> None:
    rig.folder.chmod(0o755)
    own, open_to_all = cold(tmp_path / "private"), cold(tmp_path / "public")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    own.chmod(0o600)
    open_to_all.chmod(0o644)

    async def scenario(nodes: RemoteNodes) -> None:
        await warm(nodes, own, open_to_all, uid=65534)  # nobody

    rig.run(scenario)
    assert (cached(own), cached(open_to_all)) == (False, True)


def test_a_user_that_the_node_does_not_know(rig: Rig, tmp_path: Path) -> None:
    async def scenario(nodes: RemoteNodes) -> None:
        with pytest.raises(NodeError, match="no user has the id 4000000") as caught:
            await warm(nodes, tmp_path / "any", uid=4_000_000)
        assert caught.value.kind == "unsupported"
        with pytest.raises(NodeError, match="files"):
            await nodes.warm(NODE, uid=0, files=["relative"], deadline_seconds=5.0)

    rig.run(scenario)
