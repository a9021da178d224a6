# SPDX-License-Identifier: GPL-2.0-or-later
"""`/run/gpustat/<uuid>`: which job has a GPU now, for dashboards that join GPU metrics with jobs.

`<jobid> <uid>`, a line for each job that is on the GPU, the one that was there first at the top (readers take
the first line). Which of these files are ours is kept beside them in `.gandiva`: so an agent that is started
after one was killed takes away what that one left, and files that others write for ordinary jobs stay.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from controller.agent.deadline import Deadline
from controller.agent.files import locked, rewrite, write_atomically

_UUID = re.compile(r"[A-Za-z0-9-]{1,80}")
_RECORD = ".gandiva"
MAX_RECORD_BYTES = 1 << 20
LOCK_SECONDS = 2.0
"""An agent that hangs must not keep every switch of the node waiting for a file that only informs."""

Owners = dict[str, list[tuple[int, int]]]
"""By UUID: job id and uid."""

log = logging.getLogger(__name__)


class OwnerFiles:
    """Kept right at every switch. Failing to write one is logged, never an error: it only informs."""

    def __init__(self, directory: Path | None) -> None:
        """None: write none."""
        self._directory = directory

    def claim(self, uuids: Iterable[str], job_id: int, uid: int) -> None:
        """The job has these GPUs from now on (and of ours no others)."""
        named = {uuid for uuid in uuids if _UUID.fullmatch(uuid)}
        if named:
            self._keep(lambda uuid, job: job != job_id or uuid in named, dict.fromkeys(named, (job_id, uid)))

    def release(self, uuids: Iterable[str], job_id: int) -> None:
        """The job has these GPUs no more; what other jobs have stays."""
        left = set(uuids)
        self._keep(lambda uuid, job: job != job_id or uuid not in left)

    def sweep(self, present: Collection[int]) -> None:
        """Let go of what jobs held that are gone: the epilog takes their control blocks away, not these."""
        self._keep(lambda _uuid, job: job in present)

    def _keep(self, stays: Callable[[str, int], bool], new: Mapping[str, tuple[int, int]] = {}) -> None:
        """On each GPU the jobs that stay there, and behind them the new one; the files are made to say so."""
        if (folder := self._directory) is None:
            return
        record, doing = folder / _RECORD, "read"
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            with locked(record, Deadline(LOCK_SECONDS)) as file:
                before = _parse(os.pread(file, MAX_RECORD_BYTES, 0))
                owners = {uuid: [job for job in jobs if stays(uuid, job[0])] for uuid, jobs in before.items()}
                for uuid, owner in new.items():
                    owners[uuid] = [*owners.get(uuid, []), owner]
                owners = {uuid: list(dict.fromkeys(jobs)) for uuid, jobs in owners.items() if jobs}
                if owners != before:
                    doing = "write"
                    rewrite(file, json.dumps(owners).encode())
                for uuid in before.keys() | owners.keys():
                    if owners.get(uuid) != before.get(uuid):
                        _write(folder / uuid, owners.get(uuid, []), before.get(uuid, []))
        except OSError as error:
            log.warning("cannot %s file %s: %s; dashboards show old owners", doing, record, error)


def _parse(data: bytes) -> Owners:
    """The record; nothing where it is not what an agent writes."""
    try:
        return {
            str(uuid): [(int(job), int(uid)) for job, uid in jobs]
            for uuid, jobs in json.loads(data or b"{}").items()
            if _UUID.fullmatch(uuid)
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        log.warning("the record of owner files is damaged; begun anew")
        return {}


def _write(path: Path, jobs: list[tuple[int, int]], before: list[tuple[int, int]]) -> None:
    try:
        if jobs:
            write_atomically(path, "".join(f"{job_id} {uid}\n" for job_id, uid in jobs), 0o644)
        elif path.read_text()[:64].split(" ")[0] in {str(job_id) for job_id, _ in before}:
            path.unlink()
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            log.warning("cannot write %s: %s; dashboards show a wrong job for this GPU", path, error)
