# SPDX-License-Identifier: GPL-2.0-or-later
"""Requests as they count: what users asked for, with the defaults and limits of the site."""

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from controller.cluster.hostlist import expand
from controller.cluster.port import ClusterJob
from controller.cluster.raw import TRIAL_PREFIX
from controller.cluster.request import InvalidRequest, read_message
from controller.model import JobId, Request, Search, Size, SuspendMethod
from controller.settings.schema import RequestsSettings
from gandiva.trials import MAX_PRIORITY, MIN_PRIORITY

log = logging.getLogger(__name__)

_PRIORITY = re.compile(r"[0-9]{1,3}(\.[0-9]{1,4})?", re.ASCII)


def parse_request(admin_comment: str, site: RequestsSettings | None = None) -> Request:
    """The request in an `admin_comment`. `site`: its defaults. Raises InvalidRequest naming the field and
    what is wrong with it."""
    site = site or RequestsSettings()
    message = read_message(admin_comment)
    gpus = message.wanted_gpus
    return Request(
        size=Size(message.min_gpus or gpus, gpus, message.max_gpus or gpus),
        nodes=message.nodes,
        weight=message.weight if "weight" in message.model_fields_set else site.weight,
        may_pack=site.pack if message.pack is None else message.pack,
        may_migrate=site.migrate if message.migrate is None else message.migrate,
        suspend=message.suspend,
        gpu_types=tuple(message.gpu_types),
        model=message.model,
        search=Search(message.search) if message.search else None,
        nodelist=expand(message.nodelist) if message.nodelist else (),
    )


def parse_trial(word: str, search: str) -> Search:
    """What a job is to its search, from the word in its comment that its user wrote (docs/interfaces.md,
    section 2): `gandiva-trial:priority=4,exclusive`. Raises InvalidRequest."""
    found: dict[str, Any] = {}
    for item in word.removeprefix(TRIAL_PREFIX).split(","):
        name, equals, value = item.partition("=")
        if name in found:
            raise InvalidRequest(f"{word}: {name} is there twice")
        if name == "priority" and _PRIORITY.fullmatch(value):
            found[name] = float(value)
        elif name == "exclusive" and not equals:
            found[name] = True
        else:
            raise InvalidRequest(f"{word}: expected {TRIAL_PREFIX}priority=N,exclusive or one of the two")
    if not MIN_PRIORITY <= found.get("priority", 1.0) <= MAX_PRIORITY:
        raise InvalidRequest(f"{word}: a priority is from {MIN_PRIORITY:g} to {MAX_PRIORITY:g}")
    return Search(search, **found)


class RequestReader:
    """Reads each request once for as long as it is asked for in the same way."""

    def __init__(self, refused: Callable[[JobId, str], None], settings: RequestsSettings) -> None:
        """`refused`: called with each job whose request cannot be read, and why in words."""
        self._refused, self._settings = refused, settings
        self._read: dict[JobId, tuple[tuple[str, ...], Request | None]] = {}
        """With what each follows from."""

    def use(self, settings: RequestsSettings) -> None:
        """Other settings. What cannot be read stays so, and was reported."""
        self._settings = settings
        self._read = {job_id: read for job_id, read in self._read.items() if read[1] is None}

    def of(self, job: ClusterJob) -> Request | None:
        """The request that counts. None: it cannot be read, and the job stays held."""
        key = (job.request, job.account, job.qos, job.trial)
        known = self._read.get(job.id)
        if known is None or known[0] != key:
            known = self._read[job.id] = (key, self._parse(job))
        return known[1]

    def method(self, request: Request) -> SuspendMethod:
        """How its job gets off its GPUs."""
        return request.suspend or self._settings.suspend

    def forget(self, job_id: JobId) -> None:
        """Slurm does not know the job any more."""
        self._read.pop(job_id, None)

    def _parse(self, job: ClusterJob) -> Request | None:
        try:
            request = parse_request(job.request, self._settings)
        except InvalidRequest as error:
            message = f"its request cannot be read and it stays held: {error}; cancel it and submit it again"
            log.error("job %s (user %s): %s", job.id, job.user, message)
            self._refused(job.id, message)
            return None
        if job.duration_seconds is not None:
            request = replace(request, duration_seconds=job.duration_seconds)
        if (search := request.search) is not None and job.trial:
            try:
                search = parse_trial(job.trial, search.name)
            except InvalidRequest as error:
                # What cannot be read counts as not said.
                log.warning("job %s (user %s): its comment does not count: %s", job.id, job.user, error)
            # An exclusive job runs beside no other.
            request = replace(request, search=search, may_pack=request.may_pack and not search.exclusive)
        limit, whose = self._settings.weight_limit(job.account, job.qos)
        if request.weight <= limit:
            return request
        return replace(request, weight=limit, weight_asked=request.weight, weight_limit=whose)
