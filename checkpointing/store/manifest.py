# SPDX-License-Identifier: MIT
"""The two manifests of a generation. A user, or a broken disk, may have put anything there.

A rank's manifest names its files. The generation's manifest names the ranks' manifests, each with its size
and SHA-256. Each has a checksum of itself, `sha256`, so that one stands for the whole generation.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

FORMAT = "gandiva-checkpoint-1"
MANIFEST = "manifest.json"
OWNER = "owner.json"
MOST_MANIFEST_BYTES = 16 << 20
MOST_RANKS = 65_536
PIECE_BYTES = 16 << 20
"""Of a file; each has a checksum, so that several threads can compute them."""
MOST_FILES = 10_000
MOST_NUMBER = 2**62
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@dataclass(frozen=True)
class FileRecord:
    """One file of one rank. `sha256`: of each piece of PIECE_BYTES, the last one may be shorter."""

    name: str
    size_bytes: int
    sha256: tuple[str, ...]


@dataclass(frozen=True)
class RankManifest:
    """`rank-NNNNN/manifest.json`."""

    attempt: str
    step: int
    rank: int
    world_size: int
    files: tuple[FileRecord, ...]

    @property
    def data_bytes(self) -> int:
        return sum(record.size_bytes for record in self.files)


@dataclass(frozen=True)
class RankRecord:
    """One rank's manifest, as the generation's manifest names it."""

    manifest_bytes: int
    manifest_sha256: str
    data_bytes: int


@dataclass(frozen=True)
class Manifest:
    """`manifest.json` of a generation. `written_at`: UTC, by rank 0's clock; nothing is ordered by it."""

    attempt: str
    step: int
    world_size: int
    written_at: str
    ranks: tuple[RankRecord, ...]

    @property
    def data_bytes(self) -> int:
        return sum(record.data_bytes for record in self.ranks)


def to_json(manifest: RankManifest | Manifest) -> bytes:
    said = {"format": FORMAT, **asdict(manifest)}
    return json.dumps({**said, "sha256": _checksum(said)}, indent=1).encode() + b"\n"


def _checksum(said: Mapping[str, Any]) -> str:
    """Of the compact JSON of all other keys, sorted."""
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def check_file_name(name: object) -> str:
    """A name of a file that a rank may write. Raises ValueError."""
    if not isinstance(name, str) or not FILE_NAME.fullmatch(name) or name in (MANIFEST, OWNER):
        raise ValueError(
            f"{name!r} is no name of a file in a checkpoint: allowed are 1 to 128 letters, digits and ._-, "
            f"the first a letter or a digit, and not {MANIFEST} or {OWNER}"
        )
    return name


def parse(data: bytes) -> Manifest:
    """A generation's manifest. Raises ValueError saying what is wrong."""
    found = _load(data)
    world_size = _number(found, "world_size", 1, MOST_RANKS)
    ranks = tuple(
        RankRecord(
            _number(entry, "manifest_bytes", 1, MOST_MANIFEST_BYTES),
            _text(entry, "manifest_sha256", _SHA256),
            _number(entry, "data_bytes"),
        )
        for entry in _entries(found, "ranks", MOST_RANKS)
    )
    if len(ranks) != world_size:
        raise ValueError(f"it names {len(ranks)} ranks and says world_size {world_size}")
    attempt, at = _text(found, "attempt", RUN_NAME), _text(found, "written_at", _TIME)
    return Manifest(attempt, _number(found, "step"), world_size, at, ranks)


def parse_rank(data: bytes) -> RankManifest:
    """A rank's manifest. Raises ValueError saying what is wrong."""
    found = _load(data)
    files = tuple(
        FileRecord(check_file_name(entry.get("name")), _number(entry, "size_bytes"), _checksums(entry))
        for entry in _entries(found, "files", MOST_FILES)
    )
    if len({record.name for record in files}) != len(files):
        raise ValueError("it names a file twice")
    world_size = _number(found, "world_size", 1, MOST_RANKS)
    return RankManifest(
        _text(found, "attempt", RUN_NAME),
        _number(found, "step"),
        _number(found, "rank", 0, world_size - 1),
        world_size,
        files,
    )


def _load(data: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"it is not of the format {FORMAT}")
    if found.pop("sha256", None) != _checksum(found):
        raise ValueError("its SHA-256 is not the one that it names")
    return found


_T = TypeVar("_T")


def _typed(found: Mapping[str, Any], key: str, kind: type[_T]) -> _T:
    value = found.get(key)
    if type(value) is not kind:
        raise ValueError(f"{key} is missing or is not of type {kind.__name__}")
    return value


def _number(found: Mapping[str, Any], key: str, least: int = 0, most: int = MOST_NUMBER) -> int:
    value = _typed(found, key, int)
    if not least <= value <= most:
        raise ValueError(f"{key} is not a number from {least} to {most}")
    return value


def _text(found: Mapping[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    value = _typed(found, key, str)
    if not pattern.fullmatch(value):
        raise ValueError(f"{key} is not of the form {pattern.pattern}")
    return value


def _checksums(found: Mapping[str, Any]) -> tuple[str, ...]:
    pieces = _typed(found, "sha256", list)
    if not all(isinstance(piece, str) and _SHA256.fullmatch(piece) for piece in pieces):
        raise ValueError("sha256 is not a list of checksums")
    if len(pieces) != -(-_number(found, "size_bytes") // PIECE_BYTES):
        raise ValueError("there is not one checksum for each piece of a file")
    return tuple(pieces)


def _entries(found: Mapping[str, Any], key: str, most: int) -> list[Mapping[str, Any]]:
    entries = _typed(found, key, list)
    if len(entries) > most or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{key} is not a list of at most {most} objects")
    return entries
