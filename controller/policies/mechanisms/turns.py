# SPDX-License-Identifier: GPL-2.0-or-later
"""Who of the jobs that are bound to a node has its GPUs now: weighted slices (SPEC 1.3).

Within a slice running jobs go on; at its end all compete in order.
"""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass

from controller.model import GpuSet, JobId, Placement, Reason, Why
from controller.policies import budget
from controller.policies.mechanisms.bindings import Bindings
from controller.policies.mechanisms.choosing import Contender, choose, locate
from controller.policies.mechanisms.ranks import Ranks
from controller.policies.mechanisms.row import ASIDE, FIXED, Row, is_guest
from controller.policies.placement.draft import Draft

_PREEMPTED = Why(Reason.PREEMPTED, "its GPUs are for jobs before it")
_OVER = Why(Reason.TURN_OVER, "slice over")
_WAITS = Why(Reason.WAITS_FOR_TURN, "waits for its turn")


@dataclass(slots=True)
class _Lane:
    """Nodes that are sliced together."""

    names: tuple[str, ...]
    contenders: list[Contender]
    usable: Mapping[str, GpuSet]
    start: float | None
    """When the slice began. None: it begins when the switch that is under way is over, else slow switches eat
    the next job's time."""
    going_on: list[Contender]
    """Who runs if the slice is not over."""

    @property
    def some_wait(self) -> bool:
        """Whether not all of them have GPUs."""
        return len(self.going_on) < len(self.contenders)

    def end(self, slice_seconds: float) -> float:
        """When the slice is over, if one is."""
        return self.start + slice_seconds if self.some_wait and self.start is not None else math.inf


class Turns:
    """When slices began, and when those end that jobs wait for."""

    def __init__(
        self,
        bindings: Bindings,
        rows: Mapping[JobId, Row],
        slice_seconds: float,
        starts: dict[str, float],
    ) -> None:
        """`rows`: all jobs. `starts`: when the slice of each node began."""
        self._bindings, self._rows, self._slice_seconds = bindings, rows, slice_seconds
        self.starts = starts
        self._ends: dict[str, float] = {}
        """By the first node of each lane where jobs wait."""
        bindings.changed |= starts.keys()

    def wake(self) -> float:
        return min(self._ends.values(), default=math.inf)

    def give(self, draft: Draft, now: float, ranks: Ranks) -> None:
        """On every node where something changed or a slice is over. Where all slices began together, they
        drift apart with the plans that this takes."""
        due: list[tuple[float, tuple[str, ...], _Lane | None]] = []
        seen: set[str] = set()
        for name in sorted(self._bindings.changed):
            if name not in seen:
                lane = self._look(self._bindings.sliced_with(name), draft, now, ranks)
                seen.update(lane.names)
                for other in lane.names:
                    self._ends.pop(other, None)
                if lane.end(self._slice_seconds) <= now:
                    due.append((lane.end(self._slice_seconds), lane.names, lane))
                else:
                    self._go_on(draft, lane, ranks)
        self._bindings.changed.clear()
        over = [(end, name) for name, end in self._ends.items() if end <= now]
        due += [(end, self._bindings.sliced_with(name), None) for end, name in over]
        left = True
        for _, names, known in sorted(due, key=lambda item: item[:2]):
            if left:
                lane = known or self._look(names, draft, now, ranks)
                self._rotate(draft, lane, now, ranks)
                left = draft.budget.spend(budget.TURN * len(lane.contenders))
            elif known is not None:
                self._go_on(draft, known, ranks)
        draft.budget.more |= self.wake() <= now

    def _look(self, names: tuple[str, ...], draft: Draft, now: float, ranks: Ranks) -> _Lane:
        nodes = self._bindings.fleet.nodes
        usable = {name: nodes[name].usable_gpus for name in names if name in nodes}
        bound = [self._rows[job_id] for job_id in self._bindings.jobs_on(names)]
        # A job that leaves its GPUs, or that nothing may be done with, has no turn; guests have their hosts'.
        seated = (row for row in bound if row.standing is not ASIDE)
        rows = [row for row in seated if not is_guest(row.id, row.job.placement, self._rows)]
        peers = [row for row in rows if row.note is not None]
        for row in rows:
            if row.note is None:
                ranks.begin(row, peers)
        ranks.rekey(rows)
        contenders = [_contender(row, draft.of(row.id)) for row in rows]
        start = max((self.starts[name] for name in names if name in self.starts), default=now)
        switching = any(row.job.switching and not row.job.saving for row in bound)
        going_on = choose(contenders, usable, rotate=False)
        return _Lane(names, contenders, usable, None if switching else start, going_on)

    def _go_on(self, draft: Draft, lane: _Lane, ranks: Ranks) -> None:
        """Running jobs keep their GPUs; what is free goes to the next in line."""
        self._assign(draft, lane, lane.going_on, ranks, _PREEMPTED)

    def _rotate(self, draft: Draft, lane: _Lane, now: float, ranks: Ranks) -> None:
        lane.start = now
        ranks.turned([self._rows[contender.job_id] for contender in lane.contenders])
        self._assign(draft, lane, choose(lane.contenders, lane.usable, rotate=True), ranks, _OVER)

    def _assign(self, draft: Draft, lane: _Lane, chosen: list[Contender], ranks: Ranks, why: Why) -> None:
        """`why`: jobs stop that run."""
        for name in lane.names:
            self.starts.pop(name, None)
            if lane.contenders and lane.start is not None:
                self.starts[name] = lane.start
        self._ends[lane.names[0]] = lane.end(self._slice_seconds)
        located = locate(chosen, lane.usable)
        for contender in lane.contenders:
            gpus = located.get(contender.job_id, frozenset())
            if not contender.pinned and gpus != draft.of(contender.job_id).gpus:
                draft.put(contender.job_id, Placement(gpus, contender.allocation))
        self._say(draft, lane.contenders, located.keys(), ranks, why)

    def _say(
        self, draft: Draft, contenders: list[Contender], chosen: Set[JobId], ranks: Ranks, why: Why
    ) -> None:
        for contender in contenders:
            if contender.job_id in chosen and not contender.running:
                words = ranks.words(self._rows[contender.job_id])
                draft.say(contender.job_id, Why(Reason.ITS_TURN, f"its turn ({words})"))
        waiting = sorted((c for c in contenders if c.job_id not in chosen), key=lambda c: c.key)
        for place, contender in enumerate(waiting, start=1):
            row, line = self._rows[contender.job_id], f"{place} of {len(waiting)} in line"
            if row.job.placement.allocation:
                words = why if contender.running else _WAITS
                draft.say(row.id, Why(words.reason, f"{words}, {line} ({ranks.words(row)})"))
            else:
                names = sorted({gpu.node for gpu in contender.allocation})
                sentence = f"no GPU is free: first turn on {','.join(names)}, {line}"
                draft.say(row.id, Why(Reason.WAITS_FOR_TURN, sentence))


def _contender(row: Row, placement: Placement) -> Contender:
    job = row.job
    running, pinned = bool(placement.gpus), row.standing is FIXED
    last = placement.gpus or job.last
    fixed, node = placement.allocation, ""
    size = len(placement.gpus) or job.gpus
    if len(placement.allocation) > size:
        fixed = last
        # What cannot be suspended cannot move either: it has just the GPUs that it is on.
        if not pinned and (job.may_move or not last):
            fixed, node = frozenset(), next(iter(placement.allocation)).node
    return Contender(row.id, row.key, size, placement.allocation, fixed, node, last, running, pinned)
