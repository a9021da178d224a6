# SPDX-License-Identifier: GPL-2.0-or-later
"""A small file system of its own for each job's `ranks/`, the one place of a control block that users write.

Commands, claims and the agent's notes lie on one file system for all jobs of a node. Could a job's user write
there too, one of them could fill it, or use up its inodes, and no job could be suspended or started any more.
So `ranks/` is the mount point of a tmpfs with limits of its own: a user who fills it has filled only that.
Quotas of tmpfs would do the same, but are new (Linux 6.6) and often left out of a kernel.

The mount is made where jobs and later agents see it: in the mount namespace of process 1, should the agent
have another one. Where nothing may be mounted, `ranks/` is a folder like any other, the log says so, and so
does `gandiva check`. Beside the trials of a study no other user writes: there it is a folder, and nothing is
said.
"""

import contextlib
import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from controller.agent.files import opened, run
from controller.nodes.installed import mounts
from controller.nodes.protocol import APART

ROOM_BYTES = 8 << 20
"""Room for MAX_RANKS files of a page, where a page is the largest there is (64 KiB)."""
ROOM_INODES = 1024
COVERED = "something of a user's is mounted over it"
COMMAND_SECONDS = 20.0

log = logging.getLogger(__name__)


def furnish(ranks: Path, uid: int, *, apart: bool = True) -> None:
    """Make an empty folder of ours the user's; `apart`: on a file system of its own where that can be.

    Raises OSError when it cannot even be given to the user.
    """
    if apart:
        problem = _mount(ranks, uid)
        if not problem:
            return
        log.warning(
            "file %s has no file system of its own (%s): the job's user can fill up the one of all jobs",
            ranks,
            problem,
        )
    os.chown(ranks, uid, -1)  # no look-up of the group: a name service may hang


def is_fresh(ranks: Path, uid: int, *, apart: bool) -> bool:
    """Whether nothing was written there. `apart`: it must have a file system of its own."""
    if apart and mounted(ranks) != 1:
        return False
    with contextlib.suppress(OSError), open_folder(ranks) as folder, os.scandir(folder) as entries:
        return next(entries, None) is None and os.fstat(folder).st_uid == uid
    return False


def owner(ranks: Path) -> int | None:
    """Whose it is; None when it is not there, or a user has mounted something over it."""
    with contextlib.suppress(OSError), open_folder(ranks) as folder:
        return os.fstat(folder).st_uid
    return None


@contextlib.contextmanager
def open_folder(ranks: Path) -> Iterator[int]:
    """Open it for reading. Raises OSError, also when a user has mounted something over it.

    A file system of a user's (FUSE, with allow_other) may never answer: even to ask it for the owner of its
    root hangs. Opened with O_PATH it is not asked anything, and the kernel tells which mount was opened.
    """
    flags = os.O_PATH | os.O_DIRECTORY
    with opened(ranks.parent, flags) as above, opened(ranks, flags) as here:
        mount = _mount_of(here)
        # A user cannot mount a tmpfs where the agent sees it: such a one is ours.
        if mount != _mount_of(above) and all(
            (number, kind) != (mount, "tmpfs") for number, _, kind in mounts()
        ):
            raise OSError(errno.EXDEV, COVERED, str(ranks))
        with opened(".", os.O_RDONLY | os.O_DIRECTORY, folder=here) as folder:
            yield folder


@contextlib.contextmanager
def open_file(folder: int, name: str) -> Iterator[int]:
    """Open a file in it for reading, likewise. Follows no link and waits for no pipe's other end."""
    with opened(name, os.O_PATH, folder=folder) as here:
        if _mount_of(here) != _mount_of(folder):
            raise OSError(errno.EXDEV, COVERED, name)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        file = os.open(f"/proc/self/fd/{here}", flags)
        try:
            yield file
        finally:
            os.close(file)


def _mount_of(descriptor: int) -> int:
    """The kernel's number of the mount that it was opened through."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("mnt_id:"))


def drop(ranks: Path) -> None:
    """Take its file system away; processes that still have files open there keep these, and only these."""
    for enter in (_elsewhere(), ()):
        for _ in range(mounted(ranks)):
            # -l: whatever is in use. -c: look at nothing that a user may have mounted there (FUSE).
            problem = run([*enter, "umount", "-l", "-c", "--", _real(ranks)], COMMAND_SECONDS)
            if problem:
                log.warning("file %s: not unmounted: %s", ranks, problem)


def examine(run_dir: Path) -> str:
    """APART where jobs get file systems of their own, else why not: makes one and takes it away again."""
    ranks = run_dir / f".trash-probe-{os.getpid()}" / "ranks"
    problem = ""
    try:
        ranks.mkdir(parents=True, exist_ok=True)
        problem = _mount(ranks, os.geteuid())
        drop(ranks)
        ranks.rmdir()
        ranks.parent.rmdir()
    except FileNotFoundError:
        pass  # another agent has just begun, and tidied up
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return problem or APART


def mounted(path: Path) -> int:
    """How many file systems are mounted there, one over the other. From the kernel's list: opens nothing."""
    wanted = _real(path)
    try:
        return sum(point == wanted for _, point, _ in mounts())
    except OSError:
        return 0


def _mount(ranks: Path, uid: int) -> str:
    """Returns what is wrong; nothing: it is mounted, and seen from here."""
    options = f"mode=0700,uid={uid},size={ROOM_BYTES},nr_inodes={ROOM_INODES},nosuid,nodev,noexec"
    enter = _elsewhere()
    mount = ("mount", "-i", "-n", "-t", "tmpfs", "-o", options, "gandiva", _real(ranks))
    problem = run([*enter, *mount], COMMAND_SECONDS)
    if not problem and not mounted(ranks):
        run([*enter, "umount", "-l", "-c", "--", _real(ranks)], COMMAND_SECONDS)
        problem = "what process 1 mounts is not seen here: this mount namespace is cut off from it"
    return problem


def _elsewhere() -> tuple[str, ...]:
    """What goes before a command that must be carried out in another mount namespace than ours."""
    try:
        same = Path("/proc/1/ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink()
    except OSError:
        same = True  # not to be told: then it is not to be entered either
    return () if same else ("nsenter", "--mount=/proc/1/ns/mnt", "--")


def _real(path: Path) -> str:
    """As the kernel names it. What is above it is root's; itself it may be anything, and is not looked at."""
    return str(Path(os.path.realpath(path.parent)) / path.name)
