# SPDX-License-Identifier: GPL-2.0-or-later
"""The client of the API, for the commands: one deadline for the whole answer, errors with the next step."""

import http.client
import json
import socket
import time as clock
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlencode, urlsplit

from pydantic import ValidationError

from controller.api import messages
from controller.api.access import SCHEME
from controller.api.unix_socket import PREFIX, UnixConnection
from controller.errors import GandivaError
from controller.settings.base import first_wrong

if TYPE_CHECKING:
    from controller.journal import JobFilter

MAX_ANSWER_BYTES = 128 << 20
DOES_IT_RUN = "does it run (systemctl status gandiva on its host)"
"""What to check where a site's controller does not answer."""
_M = TypeVar("_M", bound=messages.Message)


class ApiUnavailable(GandivaError):
    """The controller did not answer, or not in time."""


class ApiRefused(GandivaError):
    """The controller answered with an error, or with something else than an answer."""

    status = 0
    """The HTTP status; 0: it was 200, and the answer was wrong."""


class ApiClient:
    """Asks the controller at `url`, which may be `unix:/path`. Raises ApiUnavailable or ApiRefused."""

    def __init__(
        self, url: str, *, deadline_seconds: float = 10.0, token: str | None = None, check: str = ""
    ) -> None:
        """`token`: sent with every request, for controllers with api.private_data. `check`: the end of the
        message where nothing answers: what to check."""
        self.url = url.rstrip("/")
        self._check = (
            check or f"{DOES_IT_RUN}, and are cluster.controller_host and [api] right in the settings?"
        )
        self._deadline_seconds = deadline_seconds
        self._headers = {"Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = SCHEME + token

    def status(self) -> messages.StatusMessage:
        return self._get("/v1/status", {}, messages.StatusMessage)

    def gpus(self) -> messages.GpusMessage:
        return self._get("/v1/gpus", {}, messages.GpusMessage)

    def jobs(self, which: "JobFilter") -> messages.JobsMessage:
        if len(which.job_ids) > messages.MAX_NAMES:
            half = len(which.job_ids) // 2
            ids = (which.job_ids[:half], which.job_ids[half:])
            some, rest = (self.jobs(replace(which, job_ids=part)) for part in ids)
            found = sorted((*some.jobs, *rest.jobs), key=lambda job: job.job_id)
            more = some.truncated or rest.truncated or len(found) > which.limit
            return rest.model_copy(update={"jobs": found[-which.limit :], "truncated": more})
        lists: dict[str, Sequence[object]] = {"jobs": which.job_ids, "user": which.users}
        lists |= {"account": which.accounts, "partition": which.partitions, "state": which.states}
        query = {key: ",".join(str(name) for name in names) for key, names in lists.items() if names}
        times = {"start": which.start, "end": which.end}
        query |= {key: f"{time:.3f}" for key, time in times.items() if time is not None}
        query["limit"] = str(which.limit)
        return self._get("/v1/jobs", query, messages.JobsMessage)

    def timeline(self, start: float, end: float, limit: int) -> messages.TimelineMessage:
        """Times on GPUs of all jobs that touch a span of time (seconds since the epoch)."""
        query = {"start": f"{start:.3f}", "end": f"{end:.3f}", "limit": str(limit)}
        return self._get("/v1/timeline", query, messages.TimelineMessage)

    def explain(self, job_id: int) -> messages.ExplainMessage:
        return self._get(f"/v1/explain/{job_id}", {}, messages.ExplainMessage)

    def _get(self, path: str, query: Mapping[str, str], kind: type[_M]) -> _M:
        status, body = self._fetch(path + ("?" + urlencode(query) if query else ""))
        if status != http.client.OK:
            refused = ApiRefused(f"the controller at {self.url}: {_error_text(status, body)}")
            refused.status = status
            raise refused
        try:
            return kind.model_validate_json(body)
        except ValidationError as error:
            raise ApiRefused(
                f"{self.url}{path} sent an answer that is not Gandiva's ({first_wrong(error, 'answer')}): is "
                "it the controller, and of the same version?"
            ) from error

    def _fetch(self, target: str) -> tuple[int, bytes]:
        deadline = clock.monotonic() + self._deadline_seconds
        connection, base = self._connection()
        try:
            connection.request("GET", base + target, headers=self._headers)
            response = connection.getresponse()
            body = bytearray()
            while chunk := response.read1(1 << 16):
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    most = f"{MAX_ANSWER_BYTES >> 20} MiB"
                    raise ApiRefused(f"{self.url}{target}: an answer of more than {most}")
                if clock.monotonic() > deadline:
                    raise TimeoutError
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
            return response.status, bytes(body)
        except TimeoutError as error:
            between = "" if self.url.startswith(PREFIX) else ", or a firewall in between"
            raise ApiUnavailable(
                f"no answer from the Gandiva controller at {self.url} within {self._deadline_seconds:g} s: "
                f"is its host overloaded{between}?"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise ApiUnavailable(
                f"cannot reach the Gandiva controller at {self.url} ({_why(error)}): {self._check}"
            ) from error
        finally:
            connection.close()

    def _connection(self) -> tuple[http.client.HTTPConnection, str]:
        """One that is not open yet, and what paths begin with there."""
        if self.url.startswith(PREFIX):
            return UnixConnection(self.url.removeprefix(PREFIX), self._deadline_seconds), ""
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        # Not urllib: it would go through a proxy that the environment names, away from the cluster's network.
        return kind(parts.hostname or "", parts.port, timeout=self._deadline_seconds), parts.path


def _why(error: Exception) -> str:
    if isinstance(error, socket.gaierror):
        return "no such host name"
    if isinstance(error, http.client.HTTPException):
        return f"not an HTTP answer: {type(error).__name__}"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _error_text(status: int, body: bytes) -> str:
    try:
        text = json.loads(body[:10_000])["error"]
    except (ValueError, TypeError, KeyError, RecursionError):
        text = f"HTTP status {status}"
    return str(text)[:1000]
