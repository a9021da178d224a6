# SPDX-License-Identifier: GPL-2.0-or-later
"""Jobs that no node has taken yet, placed by Algorithm 1 in the order of submission (SPEC 1.8)."""

from bisect import bisect_left, insort
from heapq import heapify, heappop, heapreplace

from controller.model import Job, JobId, Placement, Reason, Why, by_node
from controller.policies.mechanisms import sentences
from controller.policies.mechanisms.bindings import Bindings
from controller.policies.mechanisms.row import Key, Row, Shape
from controller.policies.placement.affinity import get_nodes
from controller.policies.placement.draft import Draft

_UNLIMITED = 1 << 30
"""Jobs per GPU: Slurm's shards are the limit."""


class Queue:
    """Rows by kind: jobs of one kind fit in the same places, so that one search answers for all of them.

    A job that is promised GPUs of a full node is here too: it takes free ones where some come up, until it
    has had its first turn.
    """

    def __init__(self, bindings: Bindings, max_jobs_per_gpu: int) -> None:
        self._bindings, self._max_jobs_per_gpu = bindings, max_jobs_per_gpu
        self._lines: dict[Shape, list[Key]] = {}
        self._rows: dict[JobId, Row] = {}
        self._patient_until: dict[JobId, float] = {}
        self._last_reason: dict[Shape, Why] = {}
        """By kind."""
        self._without_reason: set[JobId] = set()
        """Jobs that came since the reason of their kind was given."""

    def add(self, row: Row, *, patient_until: float | None, promised: bool) -> None:
        """`patient_until`: until then it does not share with jobs of other sizes. None: it does. `promised`:
        GPUs of a full node. Whether these two are so is the end of its shape."""
        first, patient = row.job.share_rank < 0, patient_until is not None
        row.shape, row.in_line = (*row.job.signature, first, patient, promised), True
        if patient_until is not None:
            self._patient_until[row.id] = patient_until
        self._rows[row.id] = row
        self._without_reason.add(row.id)
        insort(self._lines.setdefault(row.shape, []), _key(row.job))
        self._bindings.room = True

    def remove(self, row: Row) -> None:
        if not row.in_line:
            return
        line = self._lines[row.shape]
        del line[bisect_left(line, _key(row.job))]
        if not line:
            del self._lines[row.shape]
        del self._rows[row.id]
        self._patient_until.pop(row.id, None)
        self._without_reason.discard(row.id)
        row.in_line = False

    def place(self, draft: Draft) -> None:
        if not self._bindings.room:
            return
        self._bindings.room = False
        heads = [(line[0], 0, line) for line in self._worth_a_look()]
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
                self._explain(row, line[index:], draft)

    def _worth_a_look(self) -> list[list[Key]]:
        """Lines of jobs that may find a place; of those promised one only who may find free GPUs."""
        if self._bindings.fleet.most_free() > 0:
            return list(self._lines.values())
        found = [line for kind, line in self._lines.items() if not kind[-1]]
        eased = self._on_eased_nodes()
        return [*found, eased] if eased else found

    def _on_eased_nodes(self) -> list[Key]:
        """Jobs with a promise whose nodes are not over-subscribed any more."""
        fleet, eased = self._bindings.fleet, set[JobId]()
        for node in fleet.nodes.values():
            if node.free >= 0:
                eased.update(node.members)
        rows = [self._rows[job_id] for job_id in eased & self._rows.keys()]
        return sorted(
            _key(row.job)
            for row in rows
            if all(fleet.nodes[name].free >= 0 for name in fleet.places[row.id].nodes)
        )

    def _place_one(self, row: Row, draft: Draft) -> bool:
        """Whether the job has a place now."""
        promised, mark = draft.of(row.id).allocation, draft.mark()
        if promised:
            draft.put(row.id, Placement())
            size = row.job.promised_size
            if len(promised) == (size or row.job.gpus) and self._bindings.fleet.all_free(promised):
                draft.put(row.id, Placement(promised, promised))
                words = f"continues on {','.join(sorted(by_node(promised)))}, where it was promised GPUs"
                where = Why(Reason.ITS_TURN, words)
                draft.say(row.id, sentences.resized(row.job) if size else where)
                return True
            if size:  # with another size than it asked for it goes on there, or not at all
                promised, mark = frozenset(), draft.mark()
        most = _UNLIMITED if row.job.share_rank < 0 else self._max_jobs_per_gpu
        choice = get_nodes(row.job, self._bindings.fleet, most, any_size=not row.shape[-2])
        if choice is None or (promised and choice.stage.shares):
            room = self._bindings.room
            draft.rollback(mark)
            self._bindings.room = room
            return bool(promised)
        draft.put(row.id, Placement(frozenset() if choice.stage.shares else choice.binding, choice.binding))
        reason = Reason.WAITS_FOR_TURN if choice.stage.shares else Reason.ITS_TURN
        draft.say(row.id, Why(reason, choice.stage.value))
        return True

    def _explain(self, row: Row, line: list[Key], draft: Draft) -> None:
        """Why the jobs of a kind wait; `row` is one of them."""
        why = self._why(row)
        job_ids = [key[-1] for key in line]
        if self._last_reason.get(row.shape) == why:
            job_ids = [job_id for job_id in job_ids if job_id in self._without_reason]
        self._last_reason[row.shape] = why
        self._without_reason.difference_update(job_ids)
        patient = {} if why.reason is Reason.NO_NODE_FITS else self._patient_until
        for job_id in job_ids:
            until = patient.get(job_id)
            then = f"; from {sentences.clock(until)} on it shares with jobs of other sizes" if until else ""
            draft.say(job_id, why + then)

    def _why(self, row: Row) -> Why:
        """One sentence for a job that no node takes."""
        job, fleet = row.job, self._bindings.fleet
        nodes = ((s.offer, len(s.usable), s.memory_free_bytes) for s in fleet.nodes.values())
        if never := fleet.spreads.why_nowhere(job, nodes):
            return never
        share = job.gpus // fleet.spreads.of(job)[0]
        words = "no node has a free GPU" if share == 1 else f"no node has {share} free GPUs"
        if not row.shape[-2]:
            words += ", and those that it could share are full"
        elif job.gpus in fleet.affinity.values():
            words += f", and those shared by {job.gpus}-GPU jobs are full"
        else:
            words += f", and no {job.gpus}-GPU job is there to take turns with"
        return Why(Reason.WAITS_FOR_GPUS, words)


def _key(job: Job) -> Key:
    """First come, first served, but for a user's first job."""
    return (-job.priority_class, job.behind, job.share_rank, job.submit_time, job.id)
