# SPDX-License-Identifier: GPL-2.0-or-later
"""Room for a gang where there are GPUs enough, but not where it can use them: which of the running jobs
behind it have to stop, the last first."""

from collections.abc import Iterable, Mapping, Sequence

from controller.model import NOWHERE, GpuSet, JobId, Placement, by_node
from controller.policies.budget import TRIED
from controller.policies.mechanisms.row import RUNNING, Key, Row
from controller.policies.placement.draft import Draft
from controller.policies.placement.free import Free
from controller.policies.placement.gangs import accepts, find, own_gpus, spreads


class Clearing:
    """For one scan of the lane. Jobs are counted from the end of the lane on, as far as gangs need."""

    def __init__(self, free: Free, draft: Draft, rows: Mapping[JobId, Row], running: Sequence[Key]) -> None:
        """`running`: keys of the jobs that may be stopped, in order."""
        self._free, self._draft, self._rows, self._running = free, draft, rows, running
        self.stopped: dict[JobId, Placement] = {}
        """Jobs that were stopped, with what they had."""
        self._begin()

    def _begin(self) -> None:
        self._at = len(self._running)
        """Jobs from here on are counted."""
        self._on: dict[str, set[JobId]] = {}
        """Those of them that run, by node."""
        self._gpus: dict[str, int] = {}
        """GPUs that they have, by node."""

    def stop(self, job_id: JobId) -> None:
        self.stopped[job_id] = self._draft.of(job_id)
        self._draft.put(job_id, NOWHERE)

    def make_room(self, row: Row, *, consolidated: bool) -> GpuSet | None:
        """GPUs for the job, after jobs behind it were stopped; None, and nothing done, where that is no
        help."""
        if row.job.placement.allocation:
            return self._where_bound(row)
        if self._at < len(self._running) and self._running[self._at] < row.key:
            self._begin()
        for count in spreads(self._free, row.job, consolidated):
            found = self._on_nodes(row, count, consolidated)
            if found is not None:
                return found
        return None

    def _where_bound(self, row: Row) -> GpuSet | None:
        wanted = row.job.placement.allocation if row.job.floating else own_gpus(row.job)
        there = {job_id for gpu in wanted for job_id in self._free.holders(gpu)}
        rows = [self._rows[job_id] for job_id in there]
        behind = [r for r in rows if r.in_line and r.standing is RUNNING and r.key > row.key]
        victims = [r.id for r in sorted(behind, key=lambda r: r.key, reverse=True)]
        for count in range(1, len(victims) + 1):
            found = self._try(row, victims[:count])
            if found is not None:
                return found
        return None

    def _on_nodes(self, row: Row, count: int, consolidated: bool) -> GpuSet | None:
        """Clear nodes until the gang has a place on so many of them."""
        share = row.job.gpus // count
        good: dict[str, set[str]] = {}
        """Nodes that have room for it once the counted jobs there have stopped, by GPU model."""

        def look(names: Iterable[str]) -> None:
            for name in names:
                node, room = self._free.node(name), self._free.count_on(name) + self._gpus.get(name, 0)
                if node is not None and room >= share and accepts(node, row.job, share):
                    good.setdefault(node.model, set()).add(name)

        look({slot.node.name for slot in self._free.with_room(share)} | self._on.keys())
        # One more node is cleared for a gang that needs the same GPUs on several.
        for wanted in range(count, count + TRIED):
            while not any(len(names) >= wanted for names in good.values()):
                if self._at == 0 or self._running[self._at - 1] < row.key:
                    return None
                look(self._count_next())
            # Nodes where the fewest GPUs are taken from others.
            ranked = (sorted((-self._free.count_on(name), name) for name in names) for names in good.values())
            for chosen in sorted(names[:wanted] for names in ranked if len(names) >= wanted):
                victims = {job_id for _, name in chosen for job_id in self._on.get(name, ())}
                found = self._try(row, sorted(victims), consolidated)
                if found is not None:
                    return found
        return None

    def _count_next(self) -> Iterable[str]:
        """Count one more job; returns its nodes."""
        self._at -= 1
        job_id = self._running[self._at][-1]
        nodes = by_node(self._draft.of(job_id).gpus)
        for name, ordinals in nodes.items():
            self._on.setdefault(name, set()).add(job_id)
            self._gpus[name] = self._gpus.get(name, 0) + len(ordinals)
        return nodes

    def _try(self, row: Row, victims: Sequence[JobId], consolidated: bool = False) -> GpuSet | None:
        """GPUs for the job without these; those of them that are not in its way go on."""
        mark = self._draft.mark()
        had = {job_id: self._draft.of(job_id) for job_id in victims}
        for job_id in victims:
            self._draft.put(job_id, NOWHERE)
        found = find(self._free, row.job, consolidated=consolidated)
        if found is None:
            self._draft.rollback(mark)
            return None
        for job_id, placement in had.items():
            if found.isdisjoint(placement.gpus):
                self._draft.put(job_id, placement)
                continue
            self.stopped[job_id] = placement
            for name, ordinals in by_node(placement.gpus).items():
                if job_id in self._on.get(name, ()):
                    self._on[name].discard(job_id)
                    self._gpus[name] -= len(ordinals)
        return found

    def let_go_on(self) -> None:
        """Those that were stopped, and whose GPUs no job took."""
        for job_id in sorted(self.stopped, key=lambda job_id: self._rows[job_id].key):
            if self._free.all_free(self.stopped[job_id].gpus):
                self._draft.put(job_id, self.stopped[job_id])
