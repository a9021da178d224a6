# SPDX-License-Identifier: GPL-2.0-or-later
"""What is kept in the journal beyond jobs: what policies remember, promised GPUs, jobs that may share GPUs,
and what was measured of models."""

import logging
import math
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from controller.journal import Journal
from controller.model import GpuId, GpuSet, Job, JobId, Memory, Note, Placement, Profile, StateAt, Target
from controller.observe.measured import Measured
from controller.observe.memory import JobMemories

log = logging.getLogger(__name__)

_PROMISES, _SHARING = "promised-gpus", "shared-gpus"
"""In the place of a policy's name: notes of jobs are the GPUs promised to them, and the jobs beside them."""
_PROMISED_BY = "promised-by"
"""Which policy made the promises: those of another one do not count."""
MODELS_KEY, COSTS_KEY = "models", "costs"
_SIZES = attrgetter("peak_memory_bytes", "state_bytes", "largest_tensor_bytes")
NOTHING: tuple[GpuSet, int] = (frozenset(), 0)
"""No GPUs are promised."""
SAVE_SECONDS = 10.0
"""What is measured of models is saved so often at most."""


class StateStore:
    """Saves it when it changes."""

    def __init__(self, journal: Journal, memory: JobMemories, measured: Measured) -> None:
        self._journal, self._memory, self._measured = journal, memory, measured
        self._saved_version, self._saved_costs = measured.version, measured.costs.version
        self._save_at = -math.inf
        self._policy_name = ""
        self._promised: set[JobId] = set()
        """Jobs that GPUs are promised to."""

    def recall(self, policy_name: str) -> None:
        """What an earlier controller saved. Raises JournalError."""
        same_policy = self._journal.load_state(_PROMISED_BY) == policy_name
        for job_id, note in self._journal.notes(_PROMISES).items():
            self._promise(job_id, *(_read(note) if same_policy else NOTHING))
        self._policy_name = policy_name
        self._journal.save_state(_PROMISED_BY, policy_name)
        for job_id, note in self._journal.notes(_SHARING).items():
            others = frozenset(JobId(other) for other in note or () if isinstance(other, int))
            self._memory.change(job_id).beside = others
        saved, costs = self._journal.load_state(MODELS_KEY), self._journal.load_state(COSTS_KEY)
        try:
            if saved is not None:
                self._load(saved)
            if costs is not None:
                self._measured.costs.load(costs)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            log.error("what was measured of models cannot be read, and is measured anew: %s", error)

    def take(self, targets: Mapping[JobId, Target], jobs: Mapping[JobId, Job]) -> None:
        """Keep the allocations that a plan chose for jobs which are to wait or migrate, and who may share
        GPUs."""
        for job_id, target in targets.items():
            self._let_share(job_id, target.placement, jobs)
            promised, job = NOTHING, jobs.get(job_id)
            waits = not target.placement.gpus and job is not None and not job.placement.allocation
            if waits:
                promised = (target.placement.allocation, 0)
            elif target.keep is StateAt.STORE and target.placement.gpus:
                size = len(target.placement.gpus)
                asked = job.request.size.wanted if job is not None else size
                promised = (target.placement.allocation, size if size != asked else 0)
            memory = self._memory.of(job_id)
            if (memory.promised, memory.promised_size) != promised:
                self._promise(job_id, *promised)
        for job_id in self._promised - targets.keys():
            job = jobs.get(job_id)
            if job is None:
                self._promised.discard(job_id)  # it is over
            elif job.placement.gpus and not job.switching and not job.leaving:
                # What was to take it there has failed, and no plan wants it there any more.
                self._promise(job_id, *NOTHING)

    def _let_share(self, job_id: JobId, wanted: Placement, jobs: Mapping[JobId, Job]) -> None:
        """Two that shared GPUs may until one has left them, whatever the plan is for the other."""
        if not wanted.gpus:
            return
        before, job = self._memory.of(job_id).beside, jobs.get(job_id)
        there = before & job.placement.shares_with if job is not None else frozenset()
        if (others := wanted.shares_with | there) != before:
            self._memory.change(job_id).beside = others
            self._journal.save_note(_SHARING, job_id, tuple(sorted(others)) or None)

    def use(self, policy_name: str) -> None:
        """Another policy decides from now on."""
        for job_id in list(self._memory.known()):
            if self._memory.of(job_id).promised:
                self._promise(job_id, *NOTHING)
        self._policy_name = policy_name
        self._journal.save_state(_PROMISED_BY, policy_name)

    def _promise(self, job_id: JobId, gpus: GpuSet, size: int) -> None:
        memory = self._memory.change(job_id)
        memory.promised, memory.promised_size = gpus, size
        (self._promised.add if gpus else self._promised.discard)(job_id)
        self._journal.save_note(_PROMISES, job_id, _note(gpus, size))

    def save(self, now: float) -> None:
        """What was measured, if that is new, and not just after it was saved: the table may be large."""
        if now < self._save_at:
            return
        if self._measured.version != self._saved_version:
            self._saved_version, self._save_at = self._measured.version, now + SAVE_SECONDS
            self._journal.save_state(MODELS_KEY, self._dump())
        if self._measured.costs.version != self._saved_costs:
            self._saved_costs, self._save_at = self._measured.costs.version, now + SAVE_SECONDS
            self._journal.save_state(COSTS_KEY, self._measured.costs.dump())

    def write_anew(self) -> None:
        """All of it, into a new journal."""
        self._journal.save_state(_PROMISED_BY, self._policy_name)
        self._journal.save_state(MODELS_KEY, self._dump())
        self._journal.save_state(COSTS_KEY, self._measured.costs.dump())
        for job_id in self._memory.known():
            memory = self._memory.of(job_id)
            if memory.promised:
                self._journal.save_note(_PROMISES, job_id, _note(memory.promised, memory.promised_size))
            if memory.beside:
                self._journal.save_note(_SHARING, job_id, tuple(sorted(memory.beside)))

    def _dump(self) -> dict[str, Any]:
        models = {model: _SIZES(profile) for model, profile in self._measured.models.items()}
        return {"models": models, "rates": self._measured.rates.dump()}

    def _load(self, saved: Any) -> None:
        self._measured.models = {
            str(model): Profile(
                peak_memory_bytes=int(peak), state_bytes=int(state), largest_tensor_bytes=int(largest)
            )
            for model, (peak, state, largest) in saved["models"].items()
        }
        self._measured.rates.load(saved["rates"])


def _note(gpus: GpuSet, size: int) -> Note:
    """Names of GPUs; before them the size of the gang, where the job did not ask for so many."""
    names = tuple(str(gpu) for gpu in sorted(gpus))
    return ((size, *names) if size else names) or None


def _read(note: Note) -> tuple[GpuSet, int]:
    size = next((item for item in note or () if isinstance(item, int)), 0)
    names = [item.rpartition(":") for item in note or () if isinstance(item, str)]
    return frozenset(GpuId(node, int(ordinal)) for node, _, ordinal in names if ordinal.isdigit()), size


class PolicyMemory:
    """The memory of one policy, by its name."""

    def __init__(self, journal: Journal, policy_name: str) -> None:
        """Begins with nothing: see `recall`."""
        self._journal, self._name = journal, policy_name
        self._key = f"policy:{policy_name}"
        self._common: dict[str, Any] = {}
        self._notes: dict[JobId, Note] = {}
        self.memory = Memory(self._common, self._notes)
        """All of it, as it is until `take`."""

    def recall(self) -> None:
        """What the journal has. Raises JournalError."""
        common = self._journal.load_state(self._key)
        self._common.update(common if isinstance(common, dict) else {})
        self._notes.update(self._journal.notes(self._name))

    def save(self, changes: Memory) -> None:
        """Write a plan's changes."""
        if changes.common:
            self._journal.save_state(self._key, {**self._common, **changes.common})
        for job_id, note in changes.jobs.items():
            self._journal.save_note(self._name, job_id, note)

    def take(self, changes: Memory) -> None:
        """Remember a plan's changes."""
        self._common.update(changes.common)
        for job_id, note in changes.jobs.items():
            if note is None:
                self._notes.pop(job_id, None)
            else:
                self._notes[job_id] = note

    def write_anew(self) -> None:
        """All of it, into a new journal."""
        self.save(self.memory)
