# SPDX-License-Identifier: GPL-2.0-or-later
"""Large files pass the page cache by, where the memory, the place and the file system allow it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from checkpointing.store import Store
from checkpointing.store.files import BLOCK_BYTES, LARGE_BYTES, direct_or_not, set_direct
from checkpointing.store.manifest import PIECE_BYTES
from checkpointing.store.overview import overview
from tests.unit.checkpointing.test_store_crashes import in_child
from tests.unit.checkpointing.watched import Call, Watched
from tests.unit.draws import draws

SIZE = PIECE_BYTES + LARGE_BYTES + BLOCK_BYTES + 5
"""Two pieces, and odd bytes at the end."""


class Transfer(NamedTuple):
    direct: bool
    size_bytes: int


def is_direct(fd: int) -> bool:
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Transfer]]:
    """What os.write and os.preadv have done."""
    found: dict[str, list[Transfer]] = {}
    for name in ("write", "preadv"):
        original, done = getattr(os, name), found.setdefault(name, [])

        def call(fd: int, *arguments: Any, original: Any = original, done: Any = done) -> int:
            direct = is_direct(fd)
            size: int = original(fd, *arguments)
            done.append(Transfer(direct, size))
            return size

        monkeypatch.setattr(os, name, call)
    return found


@pytest.fixture
def direct_path(tmp_path: Path) -> Path:
    """A folder whose file system can pass the page cache by."""
    with (tmp_path / "probe").open("wb") as file:
        if not set_direct(file.fileno(), True):
            pytest.skip("this file system has no O_DIRECT")
    (tmp_path / "probe").unlink()
    return tmp_path


def filled(store: Store, size_bytes: int) -> memoryview:
    """Contents in the store's own memory, as State.save() has them."""
    data = store.buffer(size_bytes)
    data[:] = (os.urandom(1 << 16) * (size_bytes // (1 << 16) + 1))[:size_bytes]
    return data


def test_only_the_odd_bytes_at_the_end_are_in_the_page_cache(
    direct_path: Path, transfers: dict[str, list[Transfer]]
) -> None:
    store = Store(direct_path, rank=0, world_size=1)
    data = filled(store, SIZE)
    store.save(1, {"model": data})
    large = [each for each in transfers["write"] if each.size_bytes >= BLOCK_BYTES]
    assert sum(each.size_bytes for each in large) == SIZE - 5 and all(each.direct for each in large)
    assert Transfer(False, 5) in transfers["write"]
    found = store.restore()
    assert found is not None and found.files[0]["model"] == data
    assert sum(each.size_bytes for each in transfers["preadv"]) == SIZE
    assert all(each.direct for each in transfers["preadv"])


def test_verify_reads_what_is_on_the_disk(direct_path: Path, transfers: dict[str, list[Transfer]]) -> None:
    store = Store(direct_path, rank=0, world_size=1)
    store.save(1, {"model": filled(store, SIZE)})
    assert [row.problem for row in overview(direct_path, every_file=True).rows] == [""]
    assert sum(each.size_bytes for each in transfers["preadv"]) == SIZE
    assert all(each.direct for each in transfers["preadv"])


@pytest.mark.parametrize("begin", [1, 16, 512])
def test_memory_at_any_place(tmp_path: Path, begin: int) -> None:
    store = Store(tmp_path, rank=0, world_size=1)
    data = filled(store, SIZE)
    parts: list[bytes | memoryview] = [
        data[begin : LARGE_BYTES + begin],
        b"odd",
        data[LARGE_BYTES:],
        bytes(data),
    ]
    store.save(1, {"whole": data[begin:], "in-parts": parts})
    found = store.restore()
    assert found is not None
    assert found.files[0] == {"whole": data[begin:], "in-parts": b"".join(parts)}


def refuse_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    original = fcntl.fcntl

    def call(fd: int, command: int, argument: int = 0) -> Any:
        if command == fcntl.F_SETFL and argument & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return original(fd, command, argument)

    monkeypatch.setattr(fcntl, "fcntl", call)


def refuse_the_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("write", "preadv"):
        original = getattr(os, name)

        def call(fd: int, *arguments: Any, original: Any = original) -> int:
            if is_direct(fd):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            size: int = original(fd, *arguments)
            return size

        monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("refuse", [refuse_the_flag, refuse_the_transfer])
def test_a_file_system_without_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    transfers: dict[str, list[Transfer]],
    refuse: Callable[[pytest.MonkeyPatch], None],
) -> None:
    refuse(monkeypatch)
    store = Store(tmp_path, rank=0, world_size=1)
    data = filled(store, SIZE)
    assert store.save(1, {"model": data}) == 1
    found = store.restore()
    assert found is not None and found.files[0]["model"] == data
    assert transfers["preadv"] and not any(each.direct for done in transfers.values() for each in done)


def test_what_is_refused_both_ways_is_an_error(tmp_path: Path) -> None:
    def fail() -> int:
        calls.append(1)
        raise OSError(code, os.strerror(code))

    for code, tries in ((errno.EINVAL, 2), (errno.EIO, 1)):
        calls: list[int] = []
        with (tmp_path / "file").open("wb") as file, pytest.raises(OSError, match=os.strerror(code)):
            direct_or_not(file.fileno(), fail)
        assert len(calls) == tries


def test_killed_at_every_call(direct_path: Path) -> None:
    """As with small files: the generation before is there until the new one is, and all of either. With each
    change at every third call."""
    at, steps = 0, []
    old = filled(Store(direct_path, rank=0, world_size=1), LARGE_BYTES + 5)
    new = bytes(reversed(old))
    while True:
        folder = direct_path / f"killed-{at}"
        Store(folder, rank=0, world_size=1, keep=1).save(1, {"model": old})

        def save(folder: Path = folder, at: int = at) -> None:
            def before(call: Call) -> None:
                if call.number == at:
                    os.kill(os.getpid(), signal.SIGKILL)

            store = Store(folder, rank=0, world_size=1, keep=1, files=Watched(before))
            store.save_async(2, {"model": new}).result(60)

        status = in_child(save)
        found = Store(folder, rank=0, world_size=1).restore()
        assert found is not None
        assert found.files[0]["model"] == (old if found.step == 1 else new)
        steps.append(found.step)
        shutil.rmtree(folder)
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        at += draws(3, 1)
    assert at > 15 and steps == sorted(steps) and set(steps) == {1, 2}


@pytest.mark.parametrize("place", [0, PIECE_BYTES - 1, PIECE_BYTES, SIZE - 6, SIZE - 1])
def test_a_bit_flip_in_a_large_file(tmp_path: Path, place: int) -> None:
    store = Store(tmp_path, rank=0, world_size=1)
    store.save(1, {"model": b"old"})
    store.save(2, {"model": filled(store, SIZE)})
    with (tmp_path / "generation-00000002/rank-00000/model").open("r+b") as file:
        file.seek(place)
        bit = file.read(1)[0] ^ 1
        file.seek(place)
        file.write(bytes([bit]))
    found = store.restore()
    assert found is not None and found.step == 1
    assert [bool(row.problem) for row in overview(tmp_path, every_file=True).rows] == [True, False]


@pytest.mark.parametrize("change", [-1, -LARGE_BYTES, 1])
def test_a_file_whose_length_changes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: int
) -> None:
    """One that grows has all that it had; one that shrinks is refused."""
    store = Store(tmp_path, rank=0, world_size=1)
    data = filled(store, SIZE)
    store.save(1, {"model": data})
    path = tmp_path / "generation-00000001/rank-00000/model"
    original = os.fstat
    seen: list[int] = []

    def fstat(fd: int) -> os.stat_result:
        result = original(fd)
        seen.append(result.st_size)
        if seen.count(SIZE) == 2:  # The first time it is opened, the second time its size is compared.
            os.truncate(path, SIZE + change)
        return result

    monkeypatch.setattr(os, "fstat", fstat)
    found = store.restore()
    assert seen.count(SIZE) == 2
    assert (found.files[0]["model"] if found else None) == (data if change > 0 else None)


def kernel_flags(memory: memoryview) -> set[str]:
    """Of the mapping that this memory begins in: VmFlags of proc_pid_smaps(5)."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    within = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        place = re.match("([0-9a-f]+)-([0-9a-f]+) ", line)
        if place:
            within = int(place[1], 16) <= address < int(place[2], 16)
        elif within and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    raise AssertionError("not mapped")


SHARED, NOT_FOR_CHILDREN, HUGE_PAGES = "sh", "dc", "hg"


def test_no_child_shares_memory_while_a_disk_writes_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, rank=0, world_size=1)
    store.save(1, {"model": filled(store, LARGE_BYTES)})
    original = os.preadv
    during: list[set[str]] = []

    def preadv(fd: int, parts: list[memoryview], begin: int) -> int:
        during.append(kernel_flags(parts[0]))
        return original(fd, parts, begin)

    monkeypatch.setattr(os, "preadv", preadv)
    found = store.restore()
    assert found is not None
    assert during and all(NOT_FOR_CHILDREN in flags for flags in during)
    assert NOT_FOR_CHILDREN not in kernel_flags(found.files[0]["model"])


def test_large_memory_may_have_huge_pages(tmp_path: Path) -> None:
    """Shared memory may not, on most systems."""
    if not Path("/sys/kernel/mm/transparent_hugepage").is_dir():
        pytest.skip("this kernel has none")
    store = Store(tmp_path, rank=0, world_size=1)
    store.save(1, {"model": filled(store, LARGE_BYTES)})
    found = store.restore()
    assert found is not None
    for memory in (store.buffer(LARGE_BYTES), found.files[0]["model"]):
        assert HUGE_PAGES in kernel_flags(memory) and SHARED not in kernel_flags(memory)


def test_children_have_what_was_restored(tmp_path: Path) -> None:
    """And what they write into it is theirs alone."""
    store = Store(tmp_path, rank=0, world_size=1)
    data = filled(store, LARGE_BYTES)
    store.save(1, {"model": data})
    found = store.restore()
    assert found is not None
    model = found.files[0]["model"]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = int(model != data)
            model[:] = bytes(len(model))
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert model == data
