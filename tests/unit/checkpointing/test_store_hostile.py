# SPDX-License-Identifier: GPL-2.0-or-later
"""Damaged and planted files: nothing of them is restored, followed or removed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from checkpointing.store import Store, manifest
from tests.unit.checkpointing.watched import below, check, contents, restored
from tests.unit.draws import draws


@pytest.fixture
def store(quick_path: Path) -> Store:
    """Steps 1 and 2 of two ranks, as rank 0 sees them. The next save has one rank."""
    for step in (1, 2):
        stores = [Store(quick_path / "store", rank=rank, world_size=2, run=f"run{step}") for rank in range(2)]
        saves = [each.save_async(step, contents(step, each.rank)) for each in stores]
        assert [each.result(60) for each in saves] == [step, step]
    return Store(quick_path / "store", rank=0, world_size=1, run="after")


def files_of(generation: Path) -> list[Path]:
    return sorted(path for path in generation.rglob("*") if path.is_file() and path.name != "owner.json")


NEWEST = "generation-00000002"


def test_a_bit_flip_at_every_place(store: Store) -> None:
    """Of manifests each byte, of data each 97th; with each change a fifth of them."""
    tried = 0
    for path in files_of(store.folder / NEWEST):
        good = path.read_bytes()
        for place in range(0, len(good), draws(5, 1) * (1 if path.name == "manifest.json" else 97)):
            bad = bytearray(good)
            bad[place] ^= 1 << place % 8
            path.write_bytes(bad)
            tried += 1
            assert check(store.restore()) == 1, (path, place)
        path.write_bytes(good)
    assert tried > draws(200, 1000)
    assert check(store.restore()) == 2


@pytest.mark.parametrize("percent", [0, 1, 99, 101])
def test_files_of_another_length(store: Store, percent: int) -> None:
    for path in files_of(store.folder / NEWEST):
        good = path.read_bytes()
        path.write_bytes((2 * good)[: len(good) * percent // 100])
        assert check(store.restore()) == 1, path
        path.write_bytes(good)


def test_files_and_folders_that_are_gone(store: Store) -> None:
    for path in [*files_of(store.folder / NEWEST), *(store.folder / NEWEST).glob("rank-*")]:
        path.rename(path.with_name("away"))
        assert check(store.restore()) == 1, path
        path.with_name("away").rename(path)
    assert check(store.restore()) == 2


def test_no_valid_generation_is_none(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    for generation in store.folder.glob("generation-*"):
        (generation / "rank-00001" / "model").write_bytes(b"")
    assert store.restore() is None
    assert "generation 1 is not used: rank-00001: model has 0 bytes, not 22400" in caplog.text


def test_files_of_another_generation_do_not_pass(store: Store) -> None:
    """Each is whole in itself."""
    newest, other = store.folder / NEWEST, store.folder / "generation-00000001"
    for name in ("manifest.json", "rank-00001/manifest.json", "rank-00001/model"):
        good = (newest / name).read_bytes()
        shutil.copy(other / name, newest / name)
        assert check(store.restore()) == 1
        (newest / name).write_bytes(good)
    shutil.rmtree(newest / "rank-00001")
    shutil.copytree(other / "rank-00001", newest / "rank-00001")
    assert check(store.restore()) == 1


@pytest.mark.parametrize(
    "place", ["", "rank-00001", "rank-00001/model", "rank-00001/manifest.json", "manifest.json"]
)
def test_links_are_not_followed(store: Store, quick_path: Path, place: str) -> None:
    """Not even to what would be valid."""
    path = store.folder / NEWEST / place
    path.rename(quick_path / "elsewhere")
    path.symlink_to(quick_path / "elsewhere")
    assert check(store.restore()) == 1


def test_what_is_no_file_blocks_nothing(store: Store) -> None:
    for name in ("manifest.json", "rank-00000/manifest.json", "rank-00000/model"):
        path = store.folder / NEWEST / name
        good = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        assert check(store.restore()) == 1
        path.unlink()
        path.mkdir()
        assert check(store.restore()) == 1
        path.rmdir()
        path.write_bytes(good)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        "[" * 200_000,
        '{"a":' * 100_000,
        '{"format": "gandiva-checkpoint-1"}',
        '{"format": "gandiva-checkpoint-1", "step": ' + "9" * 10_000 + "}",
        "\udc80",
        "NaN",
    ],
    ids=lambda text: text[:12],
)
def test_manifests_that_are_none(store: Store, text: str) -> None:
    (store.folder / NEWEST / "manifest.json").write_text(text, errors="surrogateescape")
    assert check(store.restore()) == 1


def test_a_manifest_that_never_ends(store: Store) -> None:
    with (store.folder / NEWEST / "manifest.json").open("r+b") as file:
        file.truncate(1 << 40)
    assert check(store.restore()) == 1


def signed(**changes: object) -> bytes:
    """A manifest whose own checksum is right."""
    said: dict[str, object] = {
        "format": manifest.FORMAT,
        "attempt": "run-0",
        "step": 1,
        "rank": 0,
        "world_size": 1,
        "files": [{"name": "a", "size_bytes": 1, "sha256": ["0" * 64]}],
        **changes,
    }
    return json.dumps({**said, "sha256": manifest._checksum(said)}).encode()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("step", -1),
        ("step", True),
        ("step", 1.0),
        ("step", 2**63),
        ("rank", 1),
        ("world_size", 0),
        ("world_size", 10**6),
        ("attempt", "../x"),
        ("files", {}),
        ("files", [1]),
        ("files", [{"name": "../a", "size_bytes": 1, "sha256": ["0" * 64]}]),
        ("files", [{"name": "/etc/passwd", "size_bytes": 1, "sha256": ["0" * 64]}]),
        ("files", [{"name": "a", "size_bytes": -1, "sha256": ["0" * 64]}]),
        ("files", [{"name": "a", "size_bytes": 1, "sha256": ["0" * 63]}]),
        ("files", [{"name": "a", "size_bytes": 1, "sha256": ["0" * 64]}] * 2),
        ("files", [{"name": "a", "size_bytes": 1, "sha256": []}]),
        ("files", [{"name": "a", "size_bytes": 1, "sha256": ["0" * 64] * 2}]),
        ("format", "gandiva-checkpoint-2"),
    ],
)
def test_values_that_a_manifest_must_not_have(key: str, value: object) -> None:
    assert manifest.parse_rank(signed()).files[0].name == "a"
    with pytest.raises(ValueError):
        manifest.parse_rank(signed(**{key: value}))


def test_what_is_planted_is_removed_and_what_it_points_to_is_not(store: Store, quick_path: Path) -> None:
    precious = quick_path / "precious"
    (precious / "folder").mkdir(parents=True)
    (precious / "folder" / "file").write_text("kept")
    (store.folder / "writing-x").symlink_to(precious)
    (store.folder / "removing-y").symlink_to(precious)
    (store.folder / "writing-z").mkdir()
    (store.folder / "writing-z" / "rank-00000").symlink_to(precious)
    (store.folder / "writing-z" / "owner.json").symlink_to(precious / "folder" / "file")
    (store.folder / "generation-00000000").symlink_to(precious)
    (store.folder / "unrelated").write_text("kept")
    store.save(3, contents(3))
    assert below(store.folder) == ["generation-00000002", "generation-00000003", "unrelated"]
    assert (precious / "folder" / "file").read_text() == "kept"


def test_folders_nested_without_end_are_left_alone(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    deep = store.folder / "writing-x"
    for _ in range(30):
        deep = deep / "a"
    deep.mkdir(parents=True)
    assert store.save(3, contents(3)) == 3
    assert "cannot remove 'removing-x-" in caplog.text
    assert len(below(store.folder, "removing-x-*")) == 1


def test_pruning_does_not_count_what_is_not_complete(store: Store) -> None:
    (store.folder / NEWEST / "rank-00001" / "model").write_bytes(b"torn")
    store.save(3, contents(3))
    assert check(restored(store.folder)) == 3
    assert below(store.folder) == ["generation-00000001", NEWEST, "generation-00000003"]
    store.save(4, contents(4))
    assert below(store.folder) == ["generation-00000003", "generation-00000004"]
