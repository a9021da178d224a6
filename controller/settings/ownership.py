# SPDX-License-Identifier: GPL-2.0-or-later
"""Files that the daemon loads as its settings name them, and who may write them."""

import stat
from collections.abc import Iterable
from pathlib import Path

from controller.errors import SettingsError
from controller.policies.site import home


def site_files(names: Iterable[str]) -> list[Path]:
    """The files that names of policies and moves stand for. Entry points belong to the Python environment."""
    return [home(name.rpartition(":")[0]) for name in names if ".py:" in name]


def foreign_writer(file: Path, uid: int) -> tuple[str, str] | None:
    """Who else than root and this user can change a file, by itself or by a folder above it, and the command
    that ends that. None: nobody. Raises OSError."""
    named = file.absolute()
    real = named.resolve()
    for place in dict.fromkeys((named, real, *named.parents, *real.parents)):
        status = place.stat()
        mode = status.st_mode
        who = f"{place} ({stat.filemode(mode)}, uid {status.st_uid}, gid {status.st_gid})"
        if status.st_uid not in (0, uid):
            return f"{who} belongs to another user than root and uid {uid}", f"chown root {place}"
        others = stat.S_IWOTH | (stat.S_IWGRP if status.st_gid else 0)
        if mode & others and not (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
            return f"{who} can be written by others than its owner", f"chmod go-w {place}"
    return None


def require_own(names: Iterable[str], uid: int) -> None:
    """Raises SettingsError where others than root and this user can change what these names stand for: the
    daemon has the key to root's agents on all nodes."""
    for file in site_files(names):
        try:
            why = foreign_writer(file, uid)
        except OSError:
            continue  # loading it says what is wrong with it
        if why:
            raise SettingsError(f"{file} is not loaded: {why[0]}; {why[1]}")
