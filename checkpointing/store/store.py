# SPDX-License-Identifier: MIT
"""The checkpoint store: generations of a job's state in a folder of its user.

    store = Store("/gpfs/home/alice/run7", rank=0, world_size=1)
    found = store.restore()                        # None: there is no valid generation
    saving = store.save_async(step, {"model": data})
    ...
    saving.result(timeout=60)

Contents are bytes here; `state` makes them of models, optimizers and other objects.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gandiva import _environment

from .errors import InvalidGeneration, StoreError
from .files import Files, closing
from .layout import generations, open_root
from .leftovers import prune, remove_leftovers
from .manifest import MOST_FILES, MOST_NUMBER, RUN_NAME, check_file_name
from .reading import Reader, checksum_threads, opened, opened_rank, read_threads
from .staging import buffer
from .writing import Attempt, Content, Deadline, parts_of

Agree = Callable[[int], int]
"""Called by all ranks together: the least of the numbers that they give."""

_log = logging.getLogger("gandiva.checkpoint")
_MOST_ATTEMPT = 19


@dataclass(frozen=True)
class Restored:
    """A generation of which every checked file is what it was. `files`: content by rank and name."""

    number: int
    step: int
    world_size: int
    files: Mapping[int, Mapping[str, memoryview]]


class Store:
    """One rank's view of a store. All ranks of a job make one, and save equally often, the same steps.

    `folder`: made where it is missing, its parents are not. `rank`, `world_size`: of this process, by default
    as torchrun, Open MPI or srun say. `run`: a word that all ranks of one start of the job have in common and
    no other start has; by default from the environment of Slurm or of a trial. `keep`: complete generations
    that are kept. `staging`: a folder on a node-local tmpfs for what waits to be written. `deadline_seconds`:
    how long a rank waits for the others, from the beginning of its save.

    Raises ValueError for an argument, StoreError where the folder cannot be used.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        rank: int | None = None,
        world_size: int | None = None,
        run: str = "",
        keep: int = 2,
        staging: str | os.PathLike[str] | None = None,
        deadline_seconds: float = 600.0,
        files: Files | None = None,
    ) -> None:
        if rank is None or world_size is None:
            self.rank, self.world_size = _environment.place(os.environ)
        else:
            self.rank, self.world_size = _environment.checked_place(rank, world_size, "Store()")
        self.run = run or _run_word(self.world_size)
        if not RUN_NAME.fullmatch(self.run) or len(self.run) > 80:
            raise ValueError(
                f"run {self.run!r}: up to 80 letters, digits and ._-, the first a letter or a digit"
            )
        if keep < 1:
            raise ValueError(f"keep {keep}: at least 1 generation is kept")
        self.folder = Path(folder)
        self.keep = keep
        self.staging = None if staging is None else Path(staging)
        self.deadline_seconds = deadline_seconds
        self._files = files or Files()
        self._saves = 0
        self._last: Future[int] | None = None
        self._deadline: Deadline | None = None
        self._guard = threading.Lock()
        self._make_folder()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="gandiva-checkpoint")
        self._hasher = ThreadPoolExecutor(checksum_threads(), thread_name_prefix="gandiva-checksum")
        self._reading = ThreadPoolExecutor(read_threads(), thread_name_prefix="gandiva-restore")
        self._reader = Reader(self._reading)

    def save(self, step: int, contents: Mapping[str, Content]) -> int:
        """Write this rank's files. Returns the generation's number once it is published, in every rank.

        `contents`: bytes, or a list of parts, by name of the file. They must not change meanwhile.

        Raises:
            ValueError: a name, or a step that is no number from 0.
            SpaceError: the file system or the quota has no room; nothing of the attempt is left.
            NotPublished: another rank failed, or had not written its part within the deadline.
            StoreError: this rank could not write.
        """
        return self._submit(step, contents, copy=False).result()

    def save_async(
        self, step: int, contents: Mapping[str, Content], copy: bool = True, attempt: str = ""
    ) -> Future[int]:
        """The same while the job goes on. `result(timeout)` returns or raises what save() does.

        The contents are copied first, into `staging` where there is one with room. `copy=False`: they belong
        to the store now, and stay unchanged. A save that is still under way is waited for. An error is
        also written to the log, for those who do not ask.

        `attempt`: a word of letters and digits that all ranks give this save, and no other save of this
        start. By default the saves are counted, and all ranks must save equally often.
        """
        return self._submit(step, contents, copy, attempt)

    def buffer(self, size_bytes: int) -> memoryview:
        """Writable memory for contents, in `staging` where there is one with room."""
        return buffer(size_bytes, self.staging)

    def restore(
        self,
        ranks: Callable[[int], Iterable[int]] | None = None,
        agree: Agree | None = None,
    ) -> Restored | None:
        """The newest valid generation, read and checked; None where there is none.

        `ranks`: from the generation's world size, whose files are wanted; by default this rank's, where the
        generation has it. Without `agree` all files of all ranks are checked, so that all ranks choose the
        same generation. With it each rank checks what it reads, and a generation that one of them cannot read
        is used by none.

        Raises StoreError where the folder cannot be read.
        """
        below = MOST_NUMBER
        with self._root() as root:
            while True:
                found = self._newest(root, below, ranks, everything=agree is None)
                if agree is None:
                    return found
                least = agree(found.number if found else 0)
                if least == 0:
                    return None
                if found is None or found.number != least:
                    found = self._load(root, least, ranks, everything=False)
                if agree(1 if found else 0):
                    return found
                below = least

    def give_up(self) -> None:
        """Let the save under way wait for the other ranks no longer. It may be published all the same."""
        if self._deadline is not None:
            self._deadline.give_up()

    def close(self) -> None:
        """Wait for what is being written, and end the threads."""
        self._writer.shutdown()
        self._hasher.shutdown()
        self._reading.shutdown()

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(exist_ok=True)
            with self._root():
                pass
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be a checkpoint store: {error}") from error

    @contextmanager
    def _root(self) -> Iterator[int]:
        try:
            with closing(open_root(self.folder)) as root:
                yield root
        except OSError as error:
            raise StoreError(f"{self.folder}: {error}") from error

    def _submit(
        self, step: int, contents: Mapping[str, Content], copy: bool, attempt: str = ""
    ) -> Future[int]:
        if type(step) is not int or not 0 <= step <= MOST_NUMBER:
            raise ValueError(f"step {step!r} is not a number from 0 to {MOST_NUMBER}")
        if len(contents) > MOST_FILES:
            raise ValueError(f"{len(contents)} files: at most {MOST_FILES} for one rank")
        if attempt and (not re.fullmatch("[A-Za-z][A-Za-z0-9]*", attempt) or len(attempt) > _MOST_ATTEMPT):
            raise ValueError(f"attempt {attempt!r}: up to {_MOST_ATTEMPT} letters and digits, a letter first")
        views = {check_file_name(name): parts_of(content) for name, content in contents.items()}
        with self._guard:
            if self._last is not None:
                self._last.exception()  # Waits, and does not raise: who asked for it has it.
            if copy:
                views = {name: [self._copied(parts)] for name, parts in views.items()}
            name = f"{self.run}-{attempt or f'{self._saves:06d}'}"
            self._saves += not attempt
            self._deadline = Deadline(self.deadline_seconds)
            self._last = self._writer.submit(self._write, name, step, views, self._deadline)
            return self._last

    def _copied(self, parts: list[memoryview]) -> memoryview:
        copy = self.buffer(sum(part.nbytes for part in parts))
        begin = 0
        for part in parts:
            copy[begin : begin + part.nbytes] = part
            begin += part.nbytes
        return copy

    def _write(
        self, name: str, step: int, contents: Mapping[str, list[memoryview]], deadline: Deadline
    ) -> int:
        try:
            with closing(open_root(self.folder)) as root:
                attempt = Attempt(
                    self._files,
                    root,
                    self._hasher,
                    name=name,
                    step=step,
                    rank=self.rank,
                    world_size=self.world_size,
                )
                if self.rank == 0:
                    remove_leftovers(self._files, root, own=attempt.folder)
                number = attempt.run(contents, deadline)
                if self.rank == 0:
                    self._prune(root)
                return number
        except OSError as error:
            _log.error("%s: step %d: %s", self.folder, step, error)
            raise StoreError(f"{self.folder}: {error}") from error
        except StoreError as error:
            _log.error("%s: step %d: %s", self.folder, step, error)
            raise type(error)(f"{self.folder}: step {step}: {error}") from error

    def _prune(self, root: int) -> None:
        """What cannot be removed now will be the next time: the generation is published all the same."""
        try:
            prune(self._files, root, self.keep)
        except OSError as error:
            _log.warning("%s: an old generation cannot be removed: %s", self.folder, error)

    def _newest(
        self, root: int, below: int, ranks: Callable[[int], Iterable[int]] | None, everything: bool
    ) -> Restored | None:
        for number in generations(root):
            if number < below:
                found = self._load(root, number, ranks, everything)
                if found is not None:
                    return found
        return None

    def _load(
        self, root: int, number: int, ranks: Callable[[int], Iterable[int]] | None, everything: bool
    ) -> Restored | None:
        """None, and a line in the log, where it is not valid."""
        try:
            with opened(root, number) as (folder, manifest):
                size = manifest.world_size
                wanted = set(ranks(size)) if ranks else {self.rank} & set(range(size))
                files: dict[int, dict[str, memoryview]] = {}
                for rank in range(size) if everything else sorted(wanted):
                    with opened_rank(folder, manifest, rank) as (rank_folder, found):
                        if rank in wanted:
                            read = self._reader.read
                            files[rank] = {each.name: read(rank_folder, each) for each in found.files}
                        else:
                            for each in found.files:
                                self._reader.check(rank_folder, each)
                return Restored(number, manifest.step, size, files)
        except InvalidGeneration as error:
            _log.warning("%s: generation %d is not used: %s", self.folder, number, error)
            return None


def _run_word(world_size: int) -> str:
    if world_size == 1:
        return uuid.uuid4().hex
    job, step = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_STEP_ID", "")
    start = os.environ.get("SLURM_RESTART_COUNT") or 0
    if number := _environment.trial(os.environ):
        # All trials of an allocation have its job, and mostly its step. (Ranks below `gandiva.ranks`, which
        # are started several times in one start, have no control block.)
        if (block := _environment.control_dir(os.environ)) is not None:
            study = re.sub("[^A-Za-z0-9.-]", "-", block.parent.name)[-40:]
            return f"trial-{study}.{number}.{start}.{step or 0}"
    elif job and step and not _environment.in_batch_step(os.environ):
        return f"{job}.{step}.{start}"
    raise ValueError(
        "several ranks, and no srun that started them: give Store() a `run`, a word that all ranks of this "
        "start have in common and no other start has"
    )
