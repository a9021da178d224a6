# SPDX-License-Identifier: GPL-2.0-or-later
"""The checkpoint store where nothing goes wrong, and what a caller can do wrong."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from checkpointing.store import NotPublished, Restored, Store, StoreError, files
from checkpointing.store.manifest import PIECE_BYTES
from checkpointing.store.writing import Content
from tests.unit.checkpointing.watched import Call, Watched, below, check, contents, restored


def ranks(folder: Path, world_size: int, run: str = "run", deadline_seconds: float = 60.0) -> list[Store]:
    return [
        Store(folder, rank=rank, world_size=world_size, run=run, deadline_seconds=deadline_seconds)
        for rank in range(world_size)
    ]


def save_all(stores: list[Store], step: int) -> list[int]:
    return [f.result(60) for f in [store.save_async(step, contents(step, store.rank)) for store in stores]]


def test_what_was_saved_is_restored(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", rank=0, world_size=1)
    assert store.restore() is None
    assert [store.save(step, contents(step)) for step in (10, 20, 30)] == [1, 2, 3]
    assert check(store.restore()) == 30
    assert below(tmp_path / "store") == ["generation-00000002", "generation-00000003"], "the last two"


def test_checksums_are_those_of_the_files(tmp_path: Path) -> None:
    Store(tmp_path, rank=0, world_size=1).save(1, contents(1))
    rank = tmp_path / "generation-00000001" / "rank-00000"
    manifest = json.loads((rank / "manifest.json").read_text())
    assert {f["name"]: f["sha256"][0] for f in manifest["files"]} == {
        name: hashlib.sha256((rank / name).read_bytes()).hexdigest() for name in contents(1)
    }
    top = json.loads((tmp_path / "generation-00000001" / "manifest.json").read_text())
    of_rank = hashlib.sha256((rank / "manifest.json").read_bytes()).hexdigest()
    assert top["ranks"][0]["manifest_sha256"] == of_rank


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, 2 * PIECE_BYTES + 5])
def test_files_of_any_size(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    parts: Content = [data[: size // 3], memoryview(bytearray(data[size // 3 :])), b""]
    store = Store(tmp_path, rank=0, world_size=1)
    store.save(1, {"whole": data, "in-parts": parts})
    found = store.restore()
    assert found is not None and found.files[0] == {"whole": data, "in-parts": data}


def test_several_ranks_write_one_generation(tmp_path: Path) -> None:
    stores = ranks(tmp_path, 3)
    for number in (1, 2, 3):
        assert save_all(stores, 10 * number) == [number] * 3
    for rank in range(3):
        found = restored(tmp_path, rank, 3)
        assert check(found) == 30
        assert found is not None and list(found.files) == [rank]
    assert below(tmp_path) == ["generation-00000002", "generation-00000003"]


def test_another_world_size_reads_the_ranks_it_wants(tmp_path: Path) -> None:
    save_all(ranks(tmp_path, 2), 7)
    grown = Store(tmp_path, rank=3, world_size=4, run="grown")
    found = grown.restore(ranks=lambda world_size: range(world_size))
    assert check(found) == 7 and found is not None and sorted(found.files) == [0, 1]
    own = grown.restore()
    assert own is not None and own.files == {} and own.world_size == 2


def test_ranks_that_differ_publish_nothing(tmp_path: Path) -> None:
    stores = ranks(tmp_path, 2)
    saves = [store.save_async(5 + store.rank, contents(5)) for store in stores]
    with pytest.raises(NotPublished, match=r"rank 1 writes step 6 .* rank 0 step 5"):
        saves[0].result(60)
    with pytest.raises(NotPublished, match="rank 0 gave up"):
        saves[1].result(60)
    assert below(tmp_path) == []
    assert save_all(stores, 7) == [1, 1], "the next one works"


def test_a_missing_rank_is_waited_for_no_longer_than_said(tmp_path: Path) -> None:
    store = ranks(tmp_path, 2, deadline_seconds=0.2)[0]
    with pytest.raises(NotPublished, match="no manifest of rank 1 within the deadline"):
        store.save(1, contents(1))
    assert below(tmp_path) == []
    late = ranks(tmp_path, 2, deadline_seconds=0.2)[1]
    with pytest.raises(NotPublished, match="rank 0 has not published"):
        late.save(1, contents(1, 1))


def test_a_rank_that_fails_ends_the_attempt_for_all(tmp_path: Path) -> None:
    def fail(call: Call) -> None:
        if call.name == "write" and call.number > 8:
            raise OSError(5, "Input/output error")

    stores = ranks(tmp_path, 2)
    stores[1] = Store(tmp_path, rank=1, world_size=2, run="run", files=Watched(fail))
    saves = [store.save_async(1, contents(1, store.rank)) for store in stores]
    with pytest.raises(StoreError, match="Input/output error"):
        saves[1].result(60)
    with pytest.raises(NotPublished, match="rank-00001 could not write its part"):
        saves[0].result(60)
    assert below(tmp_path) == []


def test_two_processes_with_one_rank_are_refused(tmp_path: Path) -> None:
    first = Store(tmp_path, rank=1, world_size=2, run="run", deadline_seconds=60.0)
    second = Store(tmp_path, rank=1, world_size=2, run="run", deadline_seconds=60.0)
    saving = first.save_async(1, contents(1))
    while not below(tmp_path, "writing-*/rank-00001/manifest.json"):
        assert not saving.done()
    with pytest.raises(StoreError, match="has a part of rank 1 already"):
        second.save(1, contents(1))
    assert below(tmp_path, "writing-*/rank-00001/manifest.json"), "the first one's part is left alone"
    first.give_up()
    with pytest.raises(StoreError, match="has not published"):
        saving.result(60)
    first.close()


def test_two_jobs_in_one_store_do_not_disturb_each_other(tmp_path: Path) -> None:
    """All generations are whole and have numbers of their own."""
    stores = [Store(tmp_path, rank=0, world_size=1, run=f"job{n}", keep=100) for n in range(2)]
    with ThreadPoolExecutor(2) as pool:

        def save(store: Store) -> list[int]:
            return [store.save(step, contents(step)) for step in range(10)]

        numbers = [number for found in pool.map(save, stores) for number in found]
    assert sorted(numbers) == list(range(1, 21))
    check(restored(tmp_path))


def test_the_job_goes_on_while_it_is_saved(tmp_path: Path) -> None:
    go = threading.Event()

    def hold(_: Call) -> None:
        assert go.wait(60)

    store = Store(tmp_path, rank=0, world_size=1, files=Watched(hold))
    state = bytearray(contents(1)["model"])
    saving = store.save_async(1, {**contents(1), "model": state})
    with pytest.raises(concurrent.futures.TimeoutError):
        saving.result(0.01)
    state[:] = bytes(len(state))  # the next mini-batch
    go.set()
    assert saving.result(60) == 1
    assert check(store.restore()) == 1
    store.close()


def test_an_error_of_a_save_that_nobody_asks_for_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Call) -> None:
        raise OSError(5, "Input/output error")

    store = Store(tmp_path, rank=0, world_size=1, files=Watched(fail))
    first = store.save_async(1, contents(1))
    store.save_async(2, contents(2))
    store.close()
    assert isinstance(first.exception(), StoreError)
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert "step 1" in caplog.text and "Input/output error" in caplog.text


def test_contents_wait_on_tmpfs_and_leave_nothing_there(
    tmp_path: Path, quick_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    staging = quick_path
    if staging == tmp_path:
        pytest.skip("no /dev/shm")
    store = Store(tmp_path, rank=0, world_size=1, staging=staging)
    buffer = store.buffer(5)
    buffer[:] = b"hello"
    assert not isinstance(buffer.obj, bytearray)
    assert store.save_async(1, contents(1)).result(60) == 1
    assert check(store.restore()) == 1
    assert below(staging) == []
    assert caplog.text == ""


def test_without_room_on_tmpfs_the_contents_stay_in_the_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.statvfs_result((4096, 4096, 1000, 90, 90, 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "fstatvfs", lambda _: full)
    store = Store(tmp_path, rank=0, world_size=1, staging=tmp_path)
    assert isinstance(store.buffer(4096).obj, bytearray)
    assert "only 0 bytes are to be had" in caplog.text


Agreed = Callable[[int], int]


def all_together(count: int) -> Agreed:
    """An `agree` for as many threads: the least of their numbers."""
    barrier = threading.Barrier(count)
    said: list[int] = []

    def agree(value: int) -> int:
        said.append(value)
        barrier.wait(60)
        least = min(said)
        if barrier.wait(60) == 0:
            said.clear()
        barrier.wait(60)
        return least

    return agree


def restore_all(stores: list[Store]) -> list[Restored | None]:
    agree = all_together(len(stores))
    with ThreadPoolExecutor(len(stores)) as pool:
        found: list[Future[Restored | None]] = [pool.submit(s.restore, agree=agree) for s in stores]
        return [each.result(60) for each in found]


def test_ranks_agree_on_a_generation_that_all_of_them_can_read(tmp_path: Path) -> None:
    stores = ranks(tmp_path, 3)
    for step in (1, 2):
        save_all(stores, step)
    assert [check(found) for found in restore_all(stores)] == [2, 2, 2]
    with (tmp_path / "generation-00000002/rank-00001/model").open("r+b") as file:
        file.write(b"?")
    assert [check(found) for found in restore_all(stores)] == [1, 1, 1]
    assert check(stores[0].restore()) == 1, "without agreement every rank looks at all files"
    (tmp_path / "generation-00000001/rank-00002/model").unlink()
    assert restore_all(stores) == [None, None, None]


@pytest.mark.parametrize(
    "name", ["", "..", "a/b", "manifest.json", "owner.json", ".hidden", "x" * 129, "a\n"]
)
def test_names_of_files_are_plain(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no name of a file"):
        Store(tmp_path, rank=0, world_size=1).save(1, {name: b""})


def test_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Store(tmp_path, rank=0, world_size=1, keep=0)
    with pytest.raises(ValueError, match="run 'a/b'"):
        Store(tmp_path, rank=0, world_size=1, run="a/b")
    with pytest.raises(ValueError, match="rank 2 of 2"):
        Store(tmp_path, rank=2, world_size=2)
    with pytest.raises(ValueError, match="step -1"):
        Store(tmp_path, rank=0, world_size=1).save(-1, {})
    with pytest.raises(StoreError, match="cannot be a checkpoint store"):
        Store(tmp_path / "a" / "b", rank=0, world_size=1)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be a checkpoint store"):
        Store(tmp_path / "file", rank=0, world_size=1)


def test_rank_and_run_are_those_of_srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="no srun that started them"):
        Store(tmp_path, rank=1, world_size=2)
    words = {"JOB_ID": "77", "STEP_ID": "2", "RESTART_COUNT": "1", "PROCID": "3", "STEP_NUM_TASKS": "4"}
    for name, value in words.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    store = Store(tmp_path)
    assert (store.rank, store.world_size, store.run) == (3, 4, "77.2.1")


def test_the_run_of_a_trial_is_of_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trials, or two starts of one, may have the same job and step of Slurm's."""

    def run(trial: str, start: str, job: str = "77") -> str:
        block = f"/run/user/1/gandiva-3f2a/{trial}"
        words = {"GANDIVA_TRIAL": trial, "GANDIVA_ALLOCATION": "77", "GANDIVA_CONTROL_DIR": block}
        words |= {"SLURM_JOB_ID": job, "SLURM_STEP_ID": "2", "SLURM_RESTART_COUNT": start}
        for name, value in words.items():
            monkeypatch.setenv(name, value)
        return Store(tmp_path, rank=1, world_size=2).run

    assert run("3", "0") == "trial-gandiva-3f2a.3.0.2"
    assert len({run(trial, start) for trial in "34" for start in "01"}) == 4
    assert run("3", "0", job="78") == "78.2.0"  # submitted by the trial
    run("3", "0")
    monkeypatch.delenv("GANDIVA_CONTROL_DIR")
    with pytest.raises(ValueError, match="no srun that started them"):
        Store(tmp_path, rank=1, world_size=2)


def test_on_gpfs_whole_blocks_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "file").open("wb") as file:
        assert not files.is_gpfs(file.fileno())
        assert files.chunk_bytes(file.fileno()) == files.CHUNK_BYTES
        monkeypatch.setattr(files, "is_gpfs", lambda _: True)
        for block_mib, chunk_mib in ((1, 32), (3, 33), (4, 32), (16, 64)):
            result = os.statvfs_result((block_mib << 20, 1 << 20, 1, 1, 1, 1, 1, 1, 0, 255))
            monkeypatch.setattr(os, "fstatvfs", lambda _, result=result: result)
            assert files.chunk_bytes(file.fileno()) == chunk_mib << 20
