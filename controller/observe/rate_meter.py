# SPDX-License-Identifier: GPL-2.0-or-later
"""How fast each job goes where it is now: the median of mini-batches done in its present configuration.

A session tells the median of its last 20 mini-batches, and how many it has done. That median is of the
present configuration alone once 25 were done there: the first five are warm-up. Beside other jobs it counts
only what was done while these computed too.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType

from controller.model import GpuSet, Job, JobId, Rate, Usage
from controller.model.index import Index
from controller.nodes.protocol import RankSample

WARM_UP = 5
"""Mini-batches that do not count, at the beginning in a configuration."""
BLOCK = 20
"""Mini-batches of which a session tells the median."""
BLOCKS = 5
"""The rate is the median of so many of these at most, the last ones."""
LATE_SECONDS = 1.0
"""A session tells its median so late at most; the number of mini-batches it tells at once."""
NEWS_FRACTION = 0.05


def is_news(found: float, before: float | None) -> bool:
    """Whether a rate, or the time of a mini-batch, differs enough from the one before."""
    return before is None or abs(found / before - 1) >= NEWS_FRACTION


@dataclass(slots=True)
class Stay:
    """A job in one configuration."""

    job_id: JobId
    since: float
    gpus: GpuSet
    beside: frozenset[JobId]
    began_at: float
    """When it was seen there first."""
    begun_with: Mapping[int, tuple[int, float]]
    """Mini-batches and samples of each rank by then."""
    looked_at: float
    steps: int = 0
    """Mini-batches of the slowest rank since."""
    step_seconds: float = 0.0
    samples_per_step: float = 1.0
    counted: float = 0.0
    """Mini-batches up to the last block."""
    due: float = 0.0
    """When enough may have been done for the next block."""
    stated: Rate | None = None
    """The last one that was news."""
    blocks: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=BLOCKS))
    """The last ones: samples per second, and how long each took."""

    def goes_on(self, ranks: Sequence[RankSample]) -> bool:
        """Whether these are the same processes."""
        begun = self.begun_with
        return len(ranks) == len(begun) and all(
            rank.rank in begun and rank.steps_done >= begun[rank.rank][0] for rank in ranks
        )

    def note(self, ranks: Sequence[RankSample], now: float) -> None:
        """What the ranks have done since the beginning."""
        done = [(r.steps_done - self.begun_with[r.rank][0], r) for r in ranks]
        self.steps = min(steps for steps, _ in done)
        self.step_seconds = max(rank.step_seconds for rank in ranks)
        samples = math.fsum(
            (r.samples_done - self.begun_with[r.rank][1]) / steps for steps, r in done if steps
        )
        # A job that does not say how many samples a mini-batch has counts mini-batches.
        self.samples_per_step = samples if samples > 0 else 1.0
        self.looked_at = now

    def settled(self) -> float:
        """Mini-batches that are certainly older than the session's median."""
        elapsed = self.looked_at - self.began_at
        return self.steps * (1 - LATE_SECONDS / elapsed) if elapsed > LATE_SECONDS else 0.0

    def wanted(self) -> int:
        """Mini-batches that make the next block."""
        return BLOCK if self.blocks else WARM_UP + BLOCK

    def idle_seconds(self) -> float:
        """How long the job has been on its GPUs without doing mini-batches, as far as its sessions told: it
        loads first."""
        return max(0.0, self.looked_at - self.since - self.steps * self.step_seconds)


class RateMeter:
    """By job. First `see` what has changed, then take the `news`."""

    def __init__(self) -> None:
        self._stays: dict[JobId, Stay] = {}
        self._rates: dict[JobId, Rate] = {}
        self._seen: set[JobId] = set()
        self.step_seconds: dict[JobId, float] = {}
        """Median time of a mini-batch on the slowest rank, when that was news last."""
        self._waiting = Index[JobId, str]()
        """Jobs without a rate, by a node where they are."""
        self.rates: Mapping[JobId, Rate] = MappingProxyType(self._rates)
        """Of jobs that have done enough in their present configuration."""

    def due(self, answered: Set[str], now: float) -> Iterator[JobId]:
        """Jobs on these nodes that may have done enough by now."""
        for name in self._waiting.values & answered:
            for job_id in self._waiting.having(name):
                if self._stays[job_id].due <= now:
                    yield job_id

    def leave(self, job_id: JobId) -> None:
        """The job is not on its GPUs, or on its way off them."""
        stay = self._stays.pop(job_id, None)
        if stay is not None:
            self._rates.pop(job_id, None)
            self._waiting.put(job_id)

    def forget(self, job_id: JobId) -> None:
        """The job is over."""
        self.leave(job_id)
        self.step_seconds.pop(job_id, None)

    def see(self, job: Job, usage: Usage, ranks: Sequence[RankSample], now: float) -> bool:
        """The job runs, and this is what its sessions tell. Whether its mini-batches take another time."""
        step_seconds = max((rank.step_seconds for rank in ranks), default=0.0)
        news = step_seconds > 0 and is_news(step_seconds, self.step_seconds.get(job.id))
        if news:
            self.step_seconds[job.id] = step_seconds
        stay, place = self._stays.get(job.id), (usage.since, job.placement.shares_with, job.placement.gpus)
        if stay is not None and (stay.since, stay.beside, stay.gpus) != place:
            stay = None
        if stay is not None and now < stay.due:
            return news
        if not ranks or usage.since is None or len(ranks) < max(rank.world_size for rank in ranks):
            return news
        if stay is None or not stay.goes_on(ranks):
            self.leave(job.id)
            stay = self._begin(job, usage.since, ranks, now)
        stay.note(ranks, now)
        self._seen.add(job.id)
        return news

    def news(self) -> list[tuple[Stay, Rate]]:
        """Rates that say something new since this was asked last."""
        seen, self._seen = self._seen, set()
        stays = [stay for job_id in seen if (stay := self._stays.get(job_id)) is not None]
        return [(stay, rate) for stay in stays if (rate := self._rate(stay)) is not None]

    def _begin(self, job: Job, since: float, ranks: Sequence[RankSample], now: float) -> Stay:
        stay = Stay(
            job_id=job.id,
            since=since,
            gpus=job.placement.gpus,
            beside=job.placement.shares_with,
            began_at=now,
            begun_with={rank.rank: (rank.steps_done, rank.samples_done) for rank in ranks},
            looked_at=now,
        )
        self._stays[job.id] = stay
        self._waiting.put(job.id, frozenset({gpu.node for gpu in sorted(job.placement.gpus)[:1]}))
        return stay

    def _rate(self, stay: Stay) -> Rate | None:
        settled, wanted = stay.settled(), stay.wanted()
        if settled - stay.counted < wanted or not stay.step_seconds or not self._had_company(stay):
            left = wanted - (settled - stay.counted)
            stay.due = stay.looked_at + max(LATE_SECONDS, left * stay.step_seconds)
            return None
        if not stay.blocks:
            self._waiting.put(stay.job_id)
        stay.counted = settled
        stay.blocks.append((stay.samples_per_step / stay.step_seconds, BLOCK * stay.step_seconds))
        number = len(stay.blocks)
        # The more is known, the more seldom it is looked at.
        stay.due = stay.looked_at + number * BLOCK * stay.step_seconds
        speeds, seconds = zip(*stay.blocks, strict=True)
        rate = Rate(median(speeds), sum(seconds), stay.looked_at, mini_batches=BLOCK * number)
        self._rates[stay.job_id] = rate
        last, speed = stay.stated, rate.samples_per_second
        first_full = last is not None and last.mini_batches < rate.mini_batches == BLOCKS * BLOCK
        if last is not None and not first_full and not is_news(speed, last.samples_per_second):
            return None
        stay.stated = rate
        return rate

    def _had_company(self, stay: Stay) -> bool:
        """Whether all jobs beside it computed during its mini-batches: one that has just come may load its
        data first. Of one without sessions that cannot be seen."""
        seconds = stay.step_seconds * stay.wanted()
        others = (self._stays.get(other) for other in stay.beside)
        return all(other is None or other.steps * other.step_seconds >= seconds for other in others)
