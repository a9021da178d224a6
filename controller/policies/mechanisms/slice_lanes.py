# SPDX-License-Identifier: GPL-2.0-or-later
"""Slices: a lane for each server, to which jobs are bound, and GPUs that they have in turn (SPEC 1.3, 1.8).

A job that finds free GPUs is bound to exactly these. Where none is free it is promised all GPUs of a server
of its size, and runs on any of them in turn: it floats. Within a slice running jobs go on; at its end all
compete in order. Servers that a gang spans are one lane, so that its parts start and stop as one.

Source: Gandiva (OSDI'18) 4.1, 4.2, Algorithm 1.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Hashable, Mapping
from heapq import heapify, heappop, heapreplace
from typing import Any

from controller.model import Changes, Job, JobId, Placement, Snapshot, by_node
from controller.policies.mechanisms.row import FIXED, WAITING, Key, Ranking, Row, Shape
from controller.policies.placement.affinity import STAGE_WORDS, Stage, get_nodes
from controller.policies.placement.draft import Draft
from controller.policies.placement.fleet import Fleet, Place, settled_affinity
from controller.policies.placement.servers import refusal
from controller.policies.placement.slots import Contender, choose, locate

_PORTION_JOBS = 500
"""At slice ends so many jobs change turns with one plan; the next plan, asked for at once, takes the rest. So
a decision takes no longer where all slices began together, and the slices drift apart."""


class SliceLanes:
    """The fleet, who is bound to which server, and when their slices end."""

    notes_on_arrival = False

    def __init__(self, *, slice_seconds: float = 60.0, max_jobs_per_gpu: int = 4) -> None:
        """`max_jobs_per_gpu`: on average over a server; more jobs wait in the queue."""
        self._slice_seconds, self._max_jobs_per_gpu = slice_seconds, max_jobs_per_gpu
        self.reset(Snapshot(time=0.0, nodes={}, jobs={}), {})

    # -- what is known --------------------------------------------------------------------------------

    def reset(self, snapshot: Snapshot, common: Mapping[str, Any]) -> None:
        """Begin anew. `common`: affinity and begin of the slice by server."""
        self._fleet = Fleet(snapshot.nodes, _numbers(common.get("affinity"), int))
        self._starts: dict[str, float] = {
            name: min(start, snapshot.time)  # the wall clock may have been set back
            for name, start in _numbers(common.get("slices"), float).items()
            if name in self._fleet.servers
        }
        self._rows: dict[JobId, Row] = {}
        self._on: dict[str, set[JobId]] = {}
        """Jobs bound to each server."""
        self._spanning: dict[str, set[JobId]] = {}
        """Those of them that are bound to other servers too."""
        self._queue: dict[Shape, list[Key]] = {}
        """Jobs without an allocation, by kind: jobs of one kind fit in the same places."""
        self._ends: dict[str, float] = {}
        """When slices end, by the first server of each lane where jobs wait."""
        self._dirty = {*self._fleet.affinity, *self._starts}
        self._room = True
        """Somewhere there may be more room than when the queue was looked at last."""
        self.reasons: dict[JobId, str] = {}

    def nodes_changed(self, snapshot: Snapshot, changed: Changes) -> bool:
        """False: they offer other GPUs than before, so begin anew."""
        for name in changed.nodes:
            if not self._fleet.same_offer(name, snapshot.nodes.get(name)):
                return False
            self._room = True
        return True

    def common(self) -> Mapping[str, Any]:
        """What `reset` takes."""
        return {"affinity": dict(self._fleet.affinity), "slices": dict(self._starts)}

    def change(self, job_id: JobId, before: Placement, after: Placement) -> dict[str, int | None]:
        """For the draft: a job is bound, unbound, or on other GPUs of its allocation. Returns affinities as
        they were."""
        if before.allocation == after.allocation:
            if self._floats(job_id, after) and before.gpus != after.gpus:
                self._fleet.move(job_id, after.gpus)
            self._touch(after)
            return {}
        names = {gpu.node for gpu in before.allocation | after.allocation} & self._fleet.servers.keys()
        was = {name: self._fleet.affinity.get(name) for name in names}
        self._bind(job_id, before, after)
        for gpu in after.allocation:
            if gpu.node in self._fleet.servers and gpu.node not in self._fleet.affinity:
                self._fleet.set_affinity(gpu.node, self._rows[job_id].job.gpus)
        return was

    def restore(self, job_id: JobId, before: Placement, after: Placement, undo: Any) -> None:
        """Take a change back."""
        if before.allocation == after.allocation:
            self.change(job_id, after, before)
            return
        self._bind(job_id, after, before)
        for name, size in undo.items():
            self._fleet.set_affinity(name, size)

    def _bind(self, job_id: JobId, before: Placement, after: Placement) -> None:
        if before.allocation:
            self._fleet.count_out(job_id)
            self._room = True
            for name in {gpu.node for gpu in before.allocation}:
                self._on[name].discard(job_id)
                self._spanning.get(name, set()).discard(job_id)
        if after.allocation:
            self._fleet.count_in(job_id, self._place(self._rows[job_id].job, after))
            names = {gpu.node for gpu in after.allocation}
            for name in names:
                self._on.setdefault(name, set()).add(job_id)
                if len(names) > 1:
                    self._spanning.setdefault(name, set()).add(job_id)
        self._touch(before)
        self._touch(after)

    def _touch(self, placement: Placement) -> None:
        self._dirty.update(gpu.node for gpu in placement.allocation)

    def _floats(self, job_id: JobId, placement: Placement) -> bool:
        return len(placement.allocation) > self._rows[job_id].job.gpus

    def _place(self, job: Job, placement: Placement) -> Place:
        exact = by_node(placement.allocation)
        # Slurm's free memory leaves out what jobs hold that it has bound already.
        memory_bytes = 0 if job.placement.allocation else job.memory_per_node_bytes
        share = job.gpus // len(exact)
        if self._floats(job.id, placement):
            return Place(tuple(exact), share, {}, memory_bytes, placement.gpus)
        return Place(tuple(exact), share, exact, memory_bytes)

    # -- who competes ---------------------------------------------------------------------------------

    def held(self, job: Job) -> Placement:
        """What a job has as far as others are concerned: its allocation, also while suspended."""
        return Placement(job.placement.gpus, job.allocation)

    def know(self, row: Row) -> None:
        """A job came, or is not as it was; called before the draft counts what it has."""
        self._rows[row.id] = row

    def forget(self, row: Row) -> None:
        """The job has left the cluster."""
        self._rows.pop(row.id, None)

    def kept_until(self, job: Job) -> float:
        """Slices bound how often jobs change places."""
        return -math.inf

    def enter(self, row: Row, now: float) -> float:
        """Put the job where it stands; nothing of that changes by itself."""
        if row.standing is WAITING and not row.job.placement.allocation:
            row.shape = _kind(row.job)
            row.lane = "queue"
            insort(self._queue.setdefault(row.shape, []), _queue_key(row.job))
            self._room = True
        self._touch(self.held(row.job))
        return math.inf

    def leave(self, row: Row) -> None:
        """Take it out again."""
        if row.lane is not None:
            line = self._queue[row.shape]
            del line[bisect_left(line, _queue_key(row.job))]
            if not line:
                del self._queue[row.shape]
            row.lane = None
        self._touch(self.held(row.job))

    # -- deciding -------------------------------------------------------------------------------------

    def decide(self, draft: Draft, now: float, ranking: Ranking) -> bool:
        """Who is bound where, and who runs. True: there is more to decide; plan again at once."""
        for name in self._dirty & self._fleet.servers.keys():
            gangs = [
                (self._rows[job_id].job.gpus, share)
                for job_id, share in self._fleet.servers[name].members.items()
            ]
            if self._fleet.set_affinity(name, settled_affinity(self._fleet.affinity.get(name), gangs)):
                self._room = True
        if self._room:
            self._room = False
            self._place_queue(draft)
        return self._take_turns(draft, now, ranking)

    def _place_queue(self, draft: Draft) -> None:
        """Algorithm 1 for each job without an allocation, in order; those promised one try for free GPUs."""
        heads = [(line[0], 0, line) for line in self._lines(draft)]
        heapify(heads)
        while heads:
            key, index, line = heads[0]
            row = self._rows[key[-1]]
            fits = bool(draft.of(row.id).gpus) or self._place_one(row, draft)
            if fits and index + 1 < len(line):
                heapreplace(heads, (line[index + 1], index + 1, line))
                continue
            heappop(heads)
            if not fits:
                # Room only shrinks while this plan is made: no job of its kind finds any.
                words = self._why_queued(row.job)
                self.reasons.update((k[-1], words) for k in line[index:])

    def _lines(self, draft: Draft) -> list[list[Key]]:
        """Jobs that wait for a place, by kind; of those promised one only who may find free GPUs."""
        found: list[list[Key]] = []
        promised: list[Key] = []
        for kind, line in self._queue.items():
            if not kind[-1] or self._fleet.most_free() > 0:
                found.append(line)
            else:
                promised += [key for key in line if self._eased(draft.of(key[-1]))]
        return [*found, sorted(promised)] if promised else found

    def _eased(self, placement: Placement) -> bool:
        """Whether the servers of a promise are not over-subscribed any more."""
        servers = self._fleet.servers
        return all(servers[gpu.node].free >= 0 for gpu in placement.allocation if gpu.node in servers)

    def _place_one(self, row: Row, draft: Draft) -> bool:
        """Whether the job has a place now."""
        promised, mark = draft.of(row.id).allocation, draft.mark()
        if promised:
            draft.put(row.id, Placement())
        choice = get_nodes(row.job, self._fleet, self._max_jobs_per_gpu)
        if choice is None or (promised and choice.stage is Stage.OVERSUBSCRIBE):
            room = self._room
            draft.rollback(mark)
            self._room = room
            return bool(promised)
        shares = choice.stage is Stage.OVERSUBSCRIBE
        draft.put(row.id, Placement(frozenset() if shares else choice.binding, choice.binding))
        self.reasons[row.id] = STAGE_WORDS[choice.stage]
        return True

    def _why_queued(self, job: Job) -> str:
        """One sentence for a job that no server takes."""
        share = -(-job.gpus // (job.request.nodes or 1))
        words: set[str] = set()
        for server in self._fleet.servers.values():
            reason = refusal(job, server, share)
            if reason is None:
                break
            words.add(reason)
        else:
            part = "its" if share == job.gpus else f"{share} of its"
            gpus = "GPU" if job.gpus == 1 else f"{job.gpus} GPUs"
            return f"no server can take {part} {gpus}: " + "; ".join(sorted(words)[:3])
        if job.gpus in self._fleet.affinity.values():
            return f"no server has {share} free GPUs, and those shared by {job.gpus}-GPU jobs are full"
        return f"no server has {share} free GPUs, and no {job.gpus}-GPU job is there to take turns with"

    # -- turns ----------------------------------------------------------------------------------------

    @property
    def contested(self) -> bool:
        """Ranks are asked for at slice ends, not by epochs."""
        return False

    def wake(self) -> float:
        """When the next slice ends."""
        return min(self._ends.values(), default=math.inf)

    def _take_turns(self, draft: Draft, now: float, ranking: Ranking) -> bool:
        over = {name for name, end in self._ends.items() if end <= now}
        seen: set[str] = set()
        due: list[tuple[float, tuple[str, ...]]] = []
        for name in sorted(self._dirty | over):
            if name in seen:
                continue
            names = self._lane_of(name)
            seen.update(names)
            end = min((self._ends.pop(n) for n in names if n in self._ends), default=math.inf)
            if end <= now:
                due.append((end, names))
            else:
                self._give_turns(draft, names, now, ranking, rotate=False)
        self._dirty.clear()
        portion = 0
        for end, names in sorted(due):
            if portion < _PORTION_JOBS:
                portion += self._give_turns(draft, names, now, ranking, rotate=True)
            else:
                self._ends[names[0]] = end
        return portion >= _PORTION_JOBS and len(due) > 1

    def _lane_of(self, name: str) -> tuple[str, ...]:
        """The servers that this one makes a lane with, itself included, in order."""
        names, left = {name}, [name]
        while left:
            for job_id in self._spanning.get(left.pop(), ()):
                for other in self._fleet.places[job_id].nodes:
                    if other not in names:
                        names.add(other)
                        left.append(other)
        return tuple(sorted(names))

    def _give_turns(
        self, draft: Draft, names: tuple[str, ...], now: float, ranking: Ranking, *, rotate: bool
    ) -> int:
        """Returns how many jobs compete there."""
        servers = self._fleet.servers
        usable = {name: servers[name].usable_gpus for name in names if name in servers}
        rows = [self._rows[i] for i in sorted({i for name in names for i in self._on.get(name, ())})]
        peers = [row for row in rows if row.note is not None]
        for row in rows:
            if row.note is None:
                ranking.begin(row, peers)
            row.key = ranking.key(row)
        contenders = [self._contender(row, draft.of(row.id)) for row in rows]
        if not contenders:
            for name in names:
                self._starts.pop(name, None)
            return 0
        chosen = choose(contenders, usable, rotate=rotate)
        start = now if rotate else max((self._starts[n] for n in names if n in self._starts), default=now)
        some_wait = len(chosen) < len(contenders)
        over = now >= start + self._slice_seconds
        if not rotate and some_wait and (over or self._outranked(contenders, chosen)):
            return self._give_turns(draft, names, now, ranking, rotate=True)
        if any(row.job.switching for row in rows):
            # A slice begins when the switch is over, else slow switches eat the next job's time.
            start = now
        for name in names:
            self._starts[name] = start
        if some_wait:
            self._ends[names[0]] = start + self._slice_seconds
        located = locate(chosen, usable)
        for contender in contenders:
            gpus = located.get(contender.job_id, frozenset())
            if not contender.pinned:
                draft.put(contender.job_id, Placement(gpus, contender.allocation))
        self._say_turns(contenders, located.keys())
        return len(contenders)

    def _contender(self, row: Row, placement: Placement) -> Contender:
        job = row.job
        running, pinned = bool(placement.gpus), row.standing is FIXED
        floats = len(placement.allocation) > job.gpus
        last = placement.gpus or job.last
        fixed, server = placement.allocation, ""
        if floats:
            fixed = last
            # What cannot be suspended cannot move either: it has just the GPUs that it is on.
            if not pinned and (job.may_move or not last):
                fixed, server = frozenset(), next(iter(placement.allocation)).node
        return Contender(
            row.id, row.key, job.gpus, placement.allocation, fixed, server, last, running, pinned
        )

    def _outranked(self, contenders: list[Contender], chosen: list[Contender]) -> bool:
        """Whether a job waits for GPUs of a job of a lower class."""
        kept = {c.job_id for c in chosen}
        highest = min(c.key[0] for c in contenders if c.job_id not in kept)
        return any(c.running and not c.pinned and c.key[0] > highest for c in chosen)

    def _say_turns(self, contenders: list[Contender], chosen: Any) -> None:
        waiting = sorted((c for c in contenders if c.job_id not in chosen), key=lambda c: c.key)
        for place, contender in enumerate(waiting, start=1):
            words = "slice over" if contender.running else "waits for its turn"
            self.reasons[contender.job_id] = f"{words}, {place} of {len(waiting)} in line"


def _queue_key(job: Job) -> Key:
    """First come, first served."""
    return (-job.priority_class, job.submit_time, job.id)


def _kind(job: Job) -> tuple[Hashable, ...]:
    """Equal for jobs that fit in the same places."""
    return (
        job.gpus,
        job.request.nodes,
        job.request.gpu_types,
        job.required_nodes,
        job.excluded_nodes,
        job.cpus_per_node,
        job.memory_per_node_bytes,
        bool(job.promised),
    )


def _numbers(raw: Any, kind: type[Any]) -> dict[str, Any]:
    """Numbers by name, from a memory that may be damaged."""
    items = raw.items() if isinstance(raw, Mapping) else ()
    return {str(name): kind(number) for name, number in items if isinstance(number, int | float)}
