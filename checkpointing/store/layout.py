# SPDX-License-Identifier: MIT
"""Names in a store, and the folders of a store.

STORE/
    generation-00000007/            published: never changed, removed as a whole
        manifest.json               names each rank's manifest with its checksum
        rank-00000/
            manifest.json           names the files with their checksums
            owner.json              who wrote it; locked while it is written
            model.safetensors …
        rank-00001/ …
    writing-RUN-000008/             an attempt: a killed writer leaves it behind
    removing-WHAT-XXXXXXXX/         on its way out
    lock                            locked for a moment by those who begin an attempt or look for dead ones
"""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

from .files import names

_GENERATION = re.compile(r"generation-(\d{8})")
MOST_GENERATIONS = 99_999_999
WRITING = "writing-"
REMOVING = "removing-"
"""What begins so may be removed by anyone."""
FAILED = ".failed"
LOCK = "lock"


def generation_name(number: int) -> str:
    return f"generation-{number:08d}"


def rank_name(rank: int) -> str:
    return f"rank-{rank:05d}"


def removing_name(what: str) -> str:
    """A name that no earlier removal has left behind."""
    return f"{REMOVING}{what}-{uuid.uuid4().hex[:8]}"


def generations(root: int) -> list[int]:
    """Numbers of what is published, the newest first; nothing is said of whether they are valid."""
    found = (_GENERATION.fullmatch(name) for name in names(root))
    return sorted((int(match[1]) for match in found if match), reverse=True)


def leftovers(root: int) -> list[str]:
    """Folders of attempts and of removals, under way or not."""
    return [name for name in names(root) if name.startswith((WRITING, REMOVING))]


def open_root(folder: Path) -> int:
    """The store's own folder, as its caller names it. Raises OSError."""
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
