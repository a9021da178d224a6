# SPDX-License-Identifier: GPL-2.0-or-later
"""`/run/gpustat/<uuid>`: which job has a GPU now, for dashboards that join GPU metrics with jobs."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path

_UUID = re.compile(r"[A-Za-z0-9-]{1,80}")

log = logging.getLogger(__name__)


class OwnerFiles:
    """Kept right at every switch. Failing to write one is logged, never an error: it only informs."""

    def __init__(self, directory: Path | None) -> None:
        """None: write none."""
        self._directory = directory
        self._claimed: dict[str, int] = {}

    def claim(self, uuids: Iterable[str], job_id: int, uid: int) -> None:
        """The job has these GPUs from now on."""
        for path in self._paths(uuids):
            self._claimed[path.name] = job_id
            try:
                path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                temporary = path.with_name(f".{path.name}.{os.getpid()}")
                temporary.write_text(f"{job_id} {uid}\n")
                temporary.chmod(0o644)
                temporary.replace(path)
            except OSError as error:
                log.warning("cannot write %s: %s", path, error)

    def release(self, uuids: Iterable[str], job_id: int) -> None:
        """The job has these GPUs no more; files that name another job stay."""
        for path in self._paths(uuids):
            if self._claimed.get(path.name) == job_id:
                del self._claimed[path.name]
            with contextlib.suppress(OSError):
                if path.read_text()[:64].split(" ")[0] == str(job_id):
                    path.unlink()

    def sweep(self, present: Collection[int]) -> None:
        """Let go of what jobs held that are gone: the epilog takes their control blocks away, not these.
        Files that others have written (for ordinary jobs) stay."""
        for uuid, job_id in list(self._claimed.items()):
            if job_id not in present:
                self.release([uuid], job_id)

    def _paths(self, uuids: Iterable[str]) -> list[Path]:
        if self._directory is None:
            return []
        return [self._directory / uuid for uuid in uuids if _UUID.fullmatch(uuid)]
