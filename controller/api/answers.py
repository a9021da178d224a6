# SPDX-License-Identifier: GPL-2.0-or-later
"""From a path and a query to an answer. No sockets here: `server` does those."""

import json
import math
import re
import threading
import time as clock
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic_core import PydanticSerializationError

from controller import __version__
from controller.api import messages
from controller.api.access import ENVIRONMENT, OPEN, Access, WrongToken
from controller.api.live import LiveState, Published
from controller.api.messages import MAX_NAMES
from controller.api.metrics import CONTENT_TYPE, Metrics
from controller.errors import JournalError
from controller.journal import Event, JobFilter, JobRow, JournalReader
from controller.journal.reader import MAX_JOBS, MAX_SLICES
from controller.model import UNPROFILED, JobId, Phase

MADE_AT_ONCE = 2
"""Answers that are made at the same time. Their threads share Python's global lock with the loop: 32 large
answers at a time made its cycles 25 times longer."""
WAIT_SECONDS = 8.0
"""How long a client waits until its answer is begun."""
EXPLAIN = "/v1/explain/"
OF_JOBS = ("/v1/gpus", "/v1/jobs", "/v1/timeline")
"""Pages that name jobs, beside those of EXPLAIN."""
PRIVATE = (
    "this controller names jobs only to callers with its token (api.private_data): put the token into a file "
    f"and name that in {ENVIRONMENT}"
)
STARTING = "the controller has just started and has not observed the cluster yet: try again"
_JOB_ID = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    content_type: str = "application/json"


class BadQuery(Exception):
    """The request has a mistake; the text says which."""


class Answers:
    """Answers from the journal and the live state; safe to use from many threads."""

    def __init__(
        self,
        live: LiveState,
        journal: JournalReader,
        *,
        metrics: Metrics | None = None,
        stale_seconds: float = 60.0,
        access: Access = OPEN,
    ) -> None:
        """`metrics`: for Prometheus; None: those that `live` has. `stale_seconds`: the controller is
        unhealthy when the loop has completed no cycle for so long. `access`: which callers see jobs; others
        get counts only."""
        self._live = live
        self._metrics = metrics or Metrics(live, journal.path)
        self._journal = journal
        self._stale_seconds = stale_seconds
        self._access = access
        self._slots = threading.BoundedSemaphore(MADE_AT_ONCE)

    def get(self, path: str, query: Mapping[str, Sequence[str]], authorization: str = "") -> Answer:
        """The answer to one GET. Raises nothing."""
        try:
            sees_jobs = self._access.sees_jobs(authorization)
        except WrongToken:
            return _error(401, "wrong token: not that of this controller's api.token_file")
        if path == "/healthz":
            return self._healthz(sees_jobs)
        if not sees_jobs and (path in OF_JOBS or path.startswith(EXPLAIN)):
            return _error(403, PRIVATE)
        if not self._slots.acquire(timeout=WAIT_SECONDS):
            text = f"too many requests at once, none was answered within {WAIT_SECONDS:g} s: try again"
            return _error(503, text)
        try:
            return self._route(path, query, sees_jobs)
        except BadQuery as error:
            return _error(400, str(error))
        except JournalError as error:
            return _error(503, str(error))
        finally:
            self._slots.release()

    def _route(self, path: str, query: Mapping[str, Sequence[str]], sees_jobs: bool) -> Answer:
        if path == "/metrics":
            return Answer(200, self._metrics.exposition(), CONTENT_TYPE)
        if path in ("/v1/status", "/v1/gpus"):
            if (published := self._live.latest) is None:
                return _error(503, STARTING)
            return self._status(published, sees_jobs) if path == "/v1/status" else self._gpus(published)
        if path == "/v1/jobs":
            return self._jobs(query)
        if path == "/v1/timeline":
            return self._timeline(query)
        if path.startswith(EXPLAIN):
            return self._explain(path.removeprefix(EXPLAIN))
        return _error(
            404,
            "no such page: there are /v1/status, /v1/gpus, /v1/jobs, /v1/timeline, /v1/explain/<jobid> and "
            "/metrics",
        )

    def _problems(self, published: Published) -> list[str]:
        problems = list(published.health.problems)
        if published.age_seconds > self._stale_seconds:
            problems.append(f"the loop has completed no cycle for {published.age_seconds:.0f} s")
        return problems

    def _healthz(self, sees_jobs: bool) -> Answer:
        published = self._live.latest
        if published is None and self._live.standby:
            return _plain(200, self._live.standby)
        if published is None:
            return _plain(503, "starting: the cluster has not been observed yet")
        if published.age_seconds > self._stale_seconds:
            why = ("; ".join(published.health.problems) if sees_jobs else "") or "see the log"
            return _plain(503, f"the loop has completed no cycle for {published.age_seconds:.0f} s: {why}")
        return _plain(200, "ok")

    def _gpus(self, published: Published) -> Answer:
        now = {"age_seconds": round(published.age_seconds, 3), "problems": self._problems(published)}
        return _json(published.message.model_copy(update=now))

    def _status(self, published: Published, sees_jobs: bool) -> Answer:
        message = published.message
        problems = self._problems(published)
        events: list[Event] = []
        try:
            events = self._journal.events(limit=20) if sees_jobs else []
        except JournalError as error:
            problems.append(str(error))
        if problems and not sees_jobs:
            hidden = f"{len(problems)} of them, for callers with the controller's token: they may name jobs"
            problems = [hidden]
        return _json(
            messages.StatusMessage.of(
                published.health,
                time=clock.time(),
                version=__version__,
                age_seconds=round(published.age_seconds, 3),
                healthy=not problems,
                problems=problems,
                nodes=len(message.nodes),
                nodes_available=sum(node.available for node in message.nodes),
                gpus=sum(len(node.gpus) for node in message.nodes),
                gpus_by_use=message.uses(),
                jobs_by_phase=Counter(job.phase for job in message.jobs),
                events=events,
            )
        )

    def _jobs(self, query: Mapping[str, Sequence[str]]) -> Answer:
        _only(query, {"jobs", "user", "account", "partition", "state", "start", "end", "limit"})
        limit = _limit(query, MAX_JOBS)
        which = JobFilter(
            job_ids=tuple(_job_id(word) for word in _names(query, "jobs")),
            users=_names(query, "user"),
            accounts=_names(query, "account"),
            partitions=_names(query, "partition"),
            states=_names(query, "state"),
            start=_time(query, "start"),
            end=_time(query, "end"),
            limit=limit,
        )
        now = clock.time()
        rows = self._journal.jobs(which, now=now)
        published = self._live.latest
        jobs = [_job(row, published) for row in rows]
        return _json(messages.JobsMessage(time=now, jobs=jobs, truncated=len(jobs) == limit))

    def _timeline(self, query: Mapping[str, Sequence[str]]) -> Answer:
        _only(query, {"start", "end", "limit"})
        now = clock.time()
        start, end = _time(query, "start"), _time(query, "end")
        limit = _limit(query, MAX_SLICES)
        slices = self._journal.timeline(start or 0.0, now if end is None else end, limit)
        return _json(messages.TimelineMessage.of_slices(slices, now, limit))

    def _explain(self, word: str) -> Answer:
        job_id = JobId(_job_id(word))
        now = clock.time()
        published = self._live.latest
        rows = self._journal.jobs(JobFilter(job_ids=(job_id,)), now=now)
        live = published.jobs.get(job_id) if published else None
        if not rows and live is None:
            return _error(404, f"the controller knows no job {job_id}: is it a Gandiva job?")
        return _json(
            messages.ExplainMessage.of(
                time=now,
                job=_job(rows[0], published) if rows else None,
                live=live,
                rivals=_rivals(live, published) if live and published else [],
                decisions=self._journal.decisions(job_id),
                slices=self._journal.slices(job_id),
                events=self._journal.events(job_id),
            )
        )


def _rivals(job: messages.LiveJobMessage, published: Published) -> list[messages.LiveJobMessage]:
    """Jobs that are on the GPUs of a job that waits for them; of one that waits for a place those that Slurm
    is to start and may refuse."""
    if job.running_on:
        return []
    if not job.binding:
        return [other for _, other in sorted(published.jobs.items()) if other.phase == Phase.STARTING]
    gpus = [(f"{node.name}:{gpu.ordinal}", gpu) for node in published.message.nodes for gpu in node.gpus]
    others = {other for name, gpu in gpus if name in job.binding for other in gpu.running}
    return [published.jobs[other] for other in sorted(others)]


def _job(row: JobRow, published: Published | None) -> messages.JobMessage:
    """What the journal has, and from the last cycle what is newer there."""
    record = row.record
    live = published.jobs.get(record.id) if published and record.end_time is None else None
    if published is None or live is None:
        return messages.JobMessage.of_row(row)
    profile = published.cycle.snapshot.profiles.get(record.id, UNPROFILED)
    return messages.JobMessage.of_row(
        row,
        phase=live.phase,
        reason=live.reason or row.reason,
        shares_with=live.shares_with,
        step_seconds=live.step_seconds or record.step_seconds,
        peak_memory_bytes=profile.peak_memory_bytes or record.peak_memory_bytes,
        failed_suspends=live.failed_suspends,
    )


def _json(message: messages.Message) -> Answer:
    """As JSON. Lone surrogates, which UTF-8 cannot encode, become question marks."""
    try:
        body = message.model_dump_json().encode()
    except PydanticSerializationError:
        body = json.dumps(message.model_dump(), ensure_ascii=False, default=str).encode("utf-8", "replace")
    return Answer(200, body + b"\n")


def _plain(status: int, text: str) -> Answer:
    body = text.replace("\n", " ").encode("utf-8", "replace") + b"\n"
    return Answer(status, body, "text/plain; charset=utf-8")


def _error(status: int, text: str) -> Answer:
    return Answer(status, json.dumps({"error": text}).encode() + b"\n")


def _only(query: Mapping[str, Sequence[str]], known: set[str]) -> None:
    unknown = sorted(set(query) - known)
    if unknown:
        raise BadQuery(f"no such parameter: {unknown[0][:40]}; there are {', '.join(sorted(known))}")


def _names(query: Mapping[str, Sequence[str]], key: str) -> tuple[str, ...]:
    names = tuple(name for value in query.get(key, ()) for name in value.split(",") if name)
    if len(names) > MAX_NAMES:
        raise BadQuery(f"{key}: at most {MAX_NAMES} names")
    return names


def _job_id(word: str) -> int:
    if _JOB_ID.fullmatch(word) is None:
        raise BadQuery(f"{word[:40]!r} is not a job id: expected a number")
    return int(word)


def _limit(query: Mapping[str, Sequence[str]], most: int) -> int:
    if "limit" not in query:
        return most
    word = query["limit"][-1]
    if _JOB_ID.fullmatch(word) is None or int(word) > most:
        raise BadQuery(f"limit={word[:40]}: must be a whole number up to {most}")
    return int(word)


def _time(query: Mapping[str, Sequence[str]], key: str) -> float | None:
    if key not in query:
        return None
    try:
        value = float(query[key][-1])
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e12:
        raise BadQuery(f"{key}={query[key][-1][:40]}: must be a time in seconds since the epoch")
    return value
