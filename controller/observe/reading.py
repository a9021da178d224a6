# SPDX-License-Identifier: GPL-2.0-or-later
"""The requests of jobs as they count on this site: defaults, limits, and those that cannot be read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from controller.model import JobId, Request
from controller.observe.requests import InvalidRequest, parse_request
from controller.settings.schema import RequestsSettings
from controller.slurm.port import SlurmJob

log = logging.getLogger(__name__)


_Asked = tuple[str, str, str]
"""What a request follows from: its text, the account and the QOS of its job."""


class RequestReader:
    """Reads each request once for as long as it is asked for in the same way."""

    def __init__(self, refused: Callable[[JobId, str], None], settings: RequestsSettings) -> None:
        """`refused`: called with each job whose request cannot be read, and why in words."""
        self._refused, self._settings, self._limits = refused, settings, settings.weight_limits
        self._read: dict[JobId, tuple[_Asked, Request | None]] = {}

    def use(self, settings: RequestsSettings) -> None:
        """Other settings. What cannot be read stays so, and was reported."""
        self._settings, self._limits = settings, settings.weight_limits
        self._read = {job_id: read for job_id, read in self._read.items() if read[1] is None}

    def of(self, job: SlurmJob) -> Request | None:
        """The request that counts. None: it cannot be read, and the job stays held."""
        key = (job.request, job.account, job.qos)
        known = self._read.get(job.id)
        if known is None or known[0] != key:
            known = self._read[job.id] = (key, self._parse(job))
        return known[1]

    def forget(self, job_id: JobId) -> None:
        """Slurm does not know the job any more."""
        self._read.pop(job_id, None)

    def _parse(self, job: SlurmJob) -> Request | None:
        given = self._settings
        try:
            request = parse_request(job.request, given.weight, pack=given.pack, migrate=given.migrate)
        except InvalidRequest as error:
            message = f"its request cannot be read and it stays held: {error}; cancel it and submit it again"
            log.error("job %s (user %s): %s", job.id, job.user, message)
            self._refused(job.id, message)
            return None
        if job.duration_seconds is not None:
            request = replace(request, duration_seconds=job.duration_seconds)
        return self._limits.apply(request, job.account, job.qos)
