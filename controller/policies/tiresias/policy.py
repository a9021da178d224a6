# SPDX-License-Identifier: GPL-2.0-or-later
"""Tiresias-L and Tiresias-G: a job's place follows from the service it has attained.

Source: Tiresias (NSDI'19), pseudocode 1, figures 8 and 9; SPEC 2.2-2.5. A job enters queue 1 and is demoted
when its attained service reaches the limit of its queue; one that starves is promoted to queue 1 and begins
anew there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from controller.model import Job, Phase
from controller.policies.gangs.lanes import Key
from controller.policies.gangs.member import FIXED, RUNNING, WAITING, Member
from controller.policies.gangs.planner import GangPolicy, gpus_words
from controller.policies.gangs.rounding import rounded
from controller.policies.tiresias.gittins import Distribution, SimulatorTable
from controller.policies.tiresias.settings import QueueSettings, TiresiasGittinsSettings, TiresiasLasSettings
from controller.policies.tiresias.skew import fit_pack_limit, skew_fraction

_RUNS = Phase.RUNNING
_TINY = 1e-6
"""Service below which two values count as equal: sums of floating-point times."""


@dataclass(slots=True)
class Account:
    """What a Tiresias policy remembers of one job."""

    queue: int = 0
    position: int = 0
    """Place among its like when queues are ordered by entry."""
    fresh: bool = False
    """Entered its queue with this plan, while running: it stands at the very end until the plan is made."""
    first_run: float | None = None
    forgiven_seconds: float = 0.0
    """Time on GPUs at its last promotion; its copy of t_J starts from there."""
    forgiven_gpu_seconds: float = 0.0
    waiting_since: float | None = None
    """Since when a job that ran before waits."""
    waited_seconds: float = 0.0
    """Waiting that counts for promotion, up to waiting_since."""
    promotions: int = 0


_Number = Annotated[float, Field(allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, le=2**53)]
_SAVED = TypeAdapter(
    tuple[
        _Count,
        int,
        _Number | None,
        _Number,
        _Number,
        _Number | None,
        _Number,
        _Count,
        tuple[_Number, _Number | None, _Count],
    ]
)
"""An account as `dump_account` writes it."""


def _saved(raw: Any) -> Any:
    """The same, checked: it comes from a file. None when it makes no sense, or there is none."""
    if raw is None:
        return None
    try:
        return _SAVED.validate_python(raw)
    except ValidationError:
        return None


@lru_cache(maxsize=1024)
def _waiting_words(queue: int, queues: int, gpus: int, consolidated: bool) -> str:
    place = " on as few nodes as possible" if consolidated else ""
    return f"waits in queue {queue} of {queues} for {gpus_words(gpus)}{place}"


class _Tiresias(GangPolicy[Account]):
    """Queues, demotion, promotion, consolidation."""

    def __init__(self, settings: QueueSettings, limits: list[float]) -> None:
        self._settings = settings
        self._consolidate, self._service = settings.consolidate, settings.service
        self._by_skew = settings.consolidate == "skewed"
        self._knob_ratio = settings.promote_knob_ratio
        # (Fields of a settings model are slower to read, and these are read for every job.)
        self._limits = limits
        self.backfill = settings.backfill
        self.lane_count = len(limits) + 1
        self._by_entry = settings.order == "queue-entry"
        self._exact = settings.demotion == "exact"
        self._first = 0
        self._last = 0
        self._pack_limit = settings.pack_limit_fraction
        self._speeds: dict[str, list[float]] = {}
        self._skews: dict[str, float] = {}
        self._fresh: list[Member[Account]] = []
        self._looked: float | None = None
        """When jobs were seen last, where they are looked at now and then; None: where all that happens is
        told when it happens."""
        super().__init__()

    # -- what is remembered ---------------------------------------------------------------------------

    def load_account(self, job: Job, raw: Any) -> Account:
        saved = _saved(raw)
        if saved is not None:
            queue, position, first_run, seconds, gpu_seconds, since, waited, promotions, _ = saved
            return Account(queue, position, False, first_run, seconds, gpu_seconds, since, waited, promotions)
        self._last += 1
        return Account(position=self._last)

    def dump_account(self, member: Member[Account], now: float) -> Any:
        a, job = member.account, member.job
        since = now if job.accrues_since is None and job.phase is _RUNS else job.accrues_since
        return [
            a.queue,
            a.position,
            a.first_run,
            a.forgiven_seconds,
            a.forgiven_gpu_seconds,
            a.waiting_since,
            a.waited_seconds,
            a.promotions,
            # In case it is gone the next time: service, since when it grows beyond that, and how fast.
            [job.gpu_seconds, since, len(job.running_on)],
        ]

    def shift_times(self, raw: Mapping[str, Any], seconds: float) -> Mapping[str, Any]:
        """The memory after the time of day was set by so much."""

        def moved(time: float | None) -> float | None:
            return None if time is None else time + seconds

        accounts = {}
        for job_id, account in (raw.get("jobs") or {}).items():
            saved = _saved(account)
            if saved is not None:
                first_run, since, (served, accrues_since, gpus) = saved[2], saved[5], saved[8]
                last = [served, moved(accrues_since), gpus]
                head = [*saved[:2], moved(first_run), *saved[3:5]]
                accounts[job_id] = [*head, moved(since), *saved[6:8], last]
        return {**raw, "jobs": accounts, "looked": moved(raw.get("looked"))}

    def load_common(self, raw: Mapping[str, Any]) -> None:
        self._first = int(raw.get("first", 0))
        self._last = int(raw.get("last", 0))
        speeds = raw.get("speeds") or {}
        self._speeds = {str(model): [float(v) for v in values] for model, values in speeds.items()}
        self._skews = {str(model): float(skew) for model, skew in (raw.get("skews") or {}).items()}
        self.reshapes = self._consolidate == "always" or bool(self._skews)
        looked = raw.get("looked")
        self._looked = None if looked is None else float(looked)
        self._refit()

    def dump_common(self) -> Mapping[str, Any]:
        return {
            "looked": self._looked,
            "first": self._first,
            "last": self._last,
            "speeds": {model: list(values) for model, values in self._speeds.items()},
            "skews": dict(self._skews),
        }

    # -- queues ---------------------------------------------------------------------------------------

    def attained(self, member: Member[Account], now: float) -> float:
        """Service since the job was last in queue 1 by promotion, in the unit of the limits."""
        job, account = member.job, member.account
        if self._service == "seconds":
            return job.run_seconds_at(now) - account.forgiven_seconds
        return job.gpu_seconds_at(now) - account.forgiven_gpu_seconds

    def _attained(self, members: Sequence[Member[Account]], now: float) -> list[float]:
        """The same for many: this is asked of every running job at every plan."""
        per_second, values = self._service == "seconds", []
        for member in members:
            job, account = member.job, member.account
            since = job.accrues_since
            if per_second:
                value = job.run_seconds - account.forgiven_seconds
                values.append(value if since is None else value + (now - since))
            else:
                value = job.gpu_seconds - account.forgiven_gpu_seconds
                values.append(value if since is None else value + len(job.running_on) * (now - since))
        return values

    def lane(self, member: Member[Account], now: float) -> int:
        account = member.account
        if account.queue >= self.lane_count:
            account.queue = self.lane_count - 1
        if self._exact and account.queue < len(self._limits):
            while self._outgrown(member, now):
                self._demote(member)
        return account.queue

    def _outgrown(self, member: Member[Account], now: float) -> bool:
        queue = member.account.queue
        return queue < len(self._limits) and self.attained(member, now) >= self._limits[queue] - _TINY

    def _demote(self, member: Member[Account]) -> None:
        account = member.account
        account.queue += 1
        self._last += 1
        account.position = self._last
        if self._by_entry and member.standing is RUNNING:
            account.fresh = True
            self._fresh.append(member)

    def look(self, now: float) -> None:
        if self._exact:
            return
        outgrown = [
            member for member, limit in self._below_limits() if self.attained(member, now) >= limit - _TINY
        ]
        if len(outgrown) > 1:
            outgrown.sort(key=lambda m: (m.job.submit_time, m.job.id))
        for member in outgrown:
            self._demote(member)
            self.moved.add(member.job.id)
            self._enter_lane(member, member.account.queue, member.shape, now)

    def next_look(self, now: float) -> float | None:
        if self._exact:
            return None
        per_second = self._service == "seconds"
        soonest = math.inf
        for member, limit in self._below_limits():
            job = member.job
            since, ran = job.accrues_since, job.run_seconds
            if since is not None:
                ran += now - since
            left = limit - (ran - member.account.forgiven_seconds)
            if not per_second:
                left = math.floor(left / job.request.gpus + _TINY)
            if left < soonest:
                soonest = left
        return None if soonest == math.inf else now + max(0.0, soonest)

    def _below_limits(self) -> list[tuple[Member[Account], float]]:
        """Running jobs that can be demoted, by lane, and the service at which they are."""
        members, found = self._members, []
        for lane, limit in zip(self._lanes, self._limits, strict=False):
            if lane.running_count:
                found += [(members[entry[-2]], limit) for entry in lane.running]
        return found

    def key(self, member: Member[Account], now: float) -> Key:
        job, account = member.job, member.account
        if self._by_entry:
            waits = member.standing is not RUNNING or account.fresh
            return (-job.priority_class, waits, account.position, job.id)
        started = math.inf if account.first_run is None else account.first_run
        return (-job.priority_class, started, job.submit_time, job.id)

    def seen(self, member: Member[Account], now: float) -> None:
        job, account = member.job, member.account
        if account.first_run is None and job.run_seconds > 0:
            account.first_run = job.start_time if job.start_time is not None else now
        waits = member.standing is WAITING and account.waiting_since is None
        if waits and job.run_seconds > account.forgiven_seconds:
            account.waiting_since = now
        if not job.request.model or not self._by_skew:
            return
        skew = skew_fraction(job.profile)
        if skew is not None:
            self._skews[job.request.model] = skew
            self.reshapes = True
        if job.profile.step_seconds and job.phase is _RUNS:
            self._learn_speed(job)

    def first_seen(self, member: Member[Account]) -> bool:
        return member.account.first_run is None

    def began(self, member: Member[Account], now: float) -> None:
        account = member.account
        if account.first_run is None:
            account.first_run = now
        if account.waiting_since is not None:
            account.waited_seconds += now - account.waiting_since
            account.waiting_since = None
        if self._settings.promote_waiting == "since-last-run":
            account.waited_seconds = 0.0
        self._last += 1
        account.position = self._last

    def stopped(self, member: Member[Account], now: float) -> None:
        account = member.account
        if not account.fresh:
            # Before those that wait already. (Who entered the queue just now stays at its end.)
            self._first -= 1
            account.position = self._first
        account.fresh = False
        account.waiting_since = now

    def next_time(self, member: Member[Account], now: float) -> float | None:
        job, account, standing, knob = member.job, member.account, member.standing, self._knob_ratio
        if standing is WAITING and account.queue > 0 and knob > 0:
            ran = job.run_seconds_at(now) - account.forgiven_seconds
            if account.waiting_since is not None and ran > 0:
                return account.waiting_since + max(0.0, knob * ran - account.waited_seconds)
        elif self._exact and (standing is RUNNING or standing is FIXED) and account.queue < len(self._limits):
            rate = 1 if self._service == "seconds" else job.request.gpus
            return now + max(0.0, self._limits[account.queue] - self.attained(member, now)) / rate
        return None

    def due(self, member: Member[Account], now: float) -> bool:
        account = member.account
        if member.standing is WAITING:
            time = self.next_time(member, now)
            if time is not None and time <= now + _TINY:
                # Starved: to queue 1, as if it had never run (its true service is kept in the accounts).
                account.forgiven_seconds = member.job.run_seconds_at(now)
                account.forgiven_gpu_seconds = member.job.gpu_seconds_at(now)
                account.waiting_since, account.waited_seconds = None, 0.0
                account.queue = 0
                account.promotions += 1
                self._last += 1
                account.position = self._last
        return True

    def planned(self, now: float) -> None:
        self._looked = None if self.told else now
        # Who entered a queue while running stood at its very end; if still selected, it now runs with it.
        while self._fresh:
            member = self._fresh.pop(0)
            if member.account.fresh and self._members.get(member.job.id) is member:
                member.account.fresh = False
                self._last += 1
                member.account.position = self._last
                self.moved.add(member.job.id)
                self._enter_lane(member, member.lane, member.shape, now)

    def wake_interval(self) -> float | None:
        return self._settings.interval_seconds if self.dynamic else None

    def waiting_words(self, member: Member[Account]) -> str:
        return _waiting_words(
            member.account.queue + 1,
            self.lane_count,
            member.job.request.gpus,
            member.shape[3:4] == (True,),
        )

    # -- placement ------------------------------------------------------------------------------------

    def consolidated(self, member: Member[Account], now: float) -> bool:
        settings, job = self._settings, member.job
        if job.request.gpus == 1 or self._consolidate == "never":
            return False
        if self._consolidate == "skewed":
            # Of a job that never ran, what is known of others with its model (if its user named one).
            skew = skew_fraction(job.profile)
            if skew is None:
                skew = self._skews.get(job.request.model or "")
            if skew is None or skew <= self._pack_limit:
                return False
        since = member.account.waiting_since
        if since is None:
            since = job.submit_time
        patience = settings.consolidate_wait_seconds
        return not patience or now - since < patience

    def _learn_speed(self, job: Job) -> None:
        """Step time of a model in its widest and its closest placement."""
        model, step_seconds = job.request.model, job.profile.step_seconds
        if job.request.gpus == 1 or model is None or not step_seconds:
            return
        skew = skew_fraction(job.profile)
        if skew is None:
            return
        nodes = len({gpu.node for gpu in job.running_on})
        values = self._speeds.setdefault(f"{model}/{job.request.gpus}", [skew, 0.0, 0.0])
        where = 1 if nodes <= -(-job.gpus // max(1, self._pool.largest)) else 2
        if values[where] != step_seconds:
            values[where] = step_seconds
            self._refit()

    def _refit(self) -> None:
        if self._settings.fit_pack_limit:
            samples = [
                (s, together / spread) for s, together, spread in self._speeds.values() if together and spread
            ]
            self._pack_limit = fit_pack_limit(samples, self._settings.pack_limit_fraction)


class TiresiasLas(_Tiresias):
    """Least attained service, in queues or not."""

    name = "tiresias-las"

    def __init__(self, settings: TiresiasLasSettings | None = None) -> None:
        settings = settings or TiresiasLasSettings()
        self._discretised = settings.discretised
        self.dynamic = not settings.discretised
        super().__init__(settings, settings.queue_limits if settings.discretised else [])

    def key(self, member: Member[Account], now: float) -> Key:
        if self._discretised:
            return super().key(member, now)
        job = member.job
        return (-job.priority_class, round(self.attained(member, now), 6), job.submit_time, job.id)

    def ranks(self, members: Sequence[Member[Account]], lane: int, now: float) -> Sequence[float]:
        return rounded(self._attained(members, now))


class TiresiasGittins(_Tiresias):
    """Gittins index in each queue."""

    name = "tiresias-gittins"
    dynamic = True

    def __init__(
        self, settings: TiresiasGittinsSettings | None = None, samples: Sequence[float] = ()
    ) -> None:
        """`samples`: GPU-seconds of finished jobs to begin with (the file that `distribution` names)."""
        self._gittins = settings or TiresiasGittinsSettings()
        self._given = list(samples)
        self._learned: list[float] = []
        self._fitted: list[float] = []
        self._unfitted = 0
        self._fit()
        super().__init__(self._gittins, self._gittins.queue_limits)

    def index(self, attained: float, queue: int) -> float | None:
        """The job's index; None while there are too few samples."""
        if self._table is not None:
            return self._table.index(attained)
        if len(self._distribution) < self._gittins.samples_needed:
            return None
        match self._gittins.quantum:
            case "sup":
                whole = self._gittins.mode != "textbook"
                return self._distribution.supremum(attained, whole_sizes=whole)
            case "queue":
                quantum = self._limits[queue] if queue < len(self._limits) else math.inf
                return self._distribution.index(attained, quantum)
            case "fixed":
                return self._distribution.index(attained, self._gittins.quantum_gpu_seconds)

    def key(self, member: Member[Account], now: float) -> Key:
        index = self.index(max(0.0, round(self.attained(member, now), 6)), member.account.queue)
        if index is None:
            return super().key(member, now)
        job = member.job
        return (-job.priority_class, -index, job.submit_time, job.id)

    def moves(self) -> bool:
        return self._table is not None or len(self._distribution) >= self._gittins.samples_needed

    def ranks(self, members: Sequence[Member[Account]], lane: int, now: float) -> Sequence[float]:
        settings = self._gittins
        # (Jobs of one lane have one quantum.)
        attained = rounded([served if served > 0 else 0.0 for served in self._attained(members, now)])
        indices: Sequence[float | None]
        if self._table is not None:
            indices = self._table.indices(attained)
        elif settings.quantum == "sup":
            indices = [self.index(service, lane) for service in attained]
        else:
            quantum = settings.quantum_gpu_seconds
            if settings.quantum == "queue":
                quantum = self._limits[lane] if lane < len(self._limits) else math.inf
            indices = self._distribution.indices(attained, quantum)
        return [-(index or 0.0) for index in indices]

    # -- learning -------------------------------------------------------------------------------------

    def gone(self, member: Member[Account], now: float) -> None:
        self._learn(member.job.gpu_seconds_at(now if self._looked is None else self._looked))

    def gone_unseen(self, raw: Any, now: float) -> None:
        saved = _saved(raw)
        if saved is not None:
            gpu_seconds, since, gpus = saved[8]
            # It was on its GPUs as long as anybody knows.
            until = now if self._looked is None else self._looked
            self._learn(gpu_seconds + (0.0 if since is None else (until - since) * gpus))

    def _learn(self, gpu_seconds: float) -> None:
        if self._gittins.learn and gpu_seconds > 0:
            self._learned = [*self._learned, gpu_seconds][-self._gittins.samples_kept :]
            self._unfitted += 1
            if self._unfitted * 20 >= len(self._learned):
                # Not with every job: all keys change.
                self._fitted, self._unfitted = self._learned, 0
                self._fit()
                self.rekey = True

    def _fit(self) -> None:
        sizes = [*self._given, *self._fitted]
        if self._gittins.learn:
            sizes = sizes[-self._gittins.samples_kept :]
        enough = len(sizes) >= self._gittins.samples_needed
        self._distribution = Distribution(sizes)
        settings = self._gittins
        self._table: SimulatorTable | None = None
        if enough and settings.mode != "textbook" and settings.quantum != "sup":
            integer = settings.mode == "tiresias-sim-integer"
            self._table = SimulatorTable(sizes, settings.quantum_gpu_seconds, integer=integer)

    def load_common(self, raw: Mapping[str, Any]) -> None:
        super().load_common(raw)
        self._learned = [float(v) for v in raw.get("learned") or ()]
        self._unfitted = min(int(raw.get("unfitted", 0)), len(self._learned))
        fitted = [float(v) for v in raw.get("fitted") or ()]
        if fitted != self._fitted:
            self._fitted = fitted
            self._fit()

    def dump_common(self) -> Mapping[str, Any]:
        return {
            **super().dump_common(),
            "learned": self._learned,
            "fitted": self._fitted,
            "unfitted": self._unfitted,
        }
