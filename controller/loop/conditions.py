# SPDX-License-Identifier: GPL-2.0-or-later
"""What is wrong just now: logged and reported once when it begins, and once when it is over."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Set

from controller.act.recorder import Recorder
from controller.cluster.port import OVER, ClusterNode
from controller.errors import NodeError
from controller.model import FailedSuspends, Job, JobId, Trespass, Unsuspendable
from controller.model.clock import Clock
from controller.nodes.port import NodeSample
from controller.observe.node_cache import Sample
from controller.observe.nodes import broken
from controller.observe.observer import Observer
from controller.policies.allocations.settings import named_types, unknown_types
from controller.settings.policies import PolicySettings

log = logging.getLogger(__name__)


class Conditions:
    """Sentences by what they are about, such as `slurm`, `journal`, `node n1`, `gpu n1:0`."""

    def __init__(self, recorder: Recorder, clock: Clock, report: Callable[[tuple[str, ...]], None]) -> None:
        """`report`: called with all sentences whenever these change."""
        self._recorder, self._clock, self._report = recorder, clock, report
        self._known: dict[str, str] = {}

    @property
    def sentences(self) -> tuple[str, ...]:
        return tuple(self._known.values())

    def begin(
        self, where: str, message: str, job_id: JobId | None = None, error: Exception | None = None
    ) -> None:
        """Something is wrong; nothing happens when that is known. `error`: its traceback is logged."""
        if self._known.get(where) == message:
            return
        self._known[where] = message
        log.error("%s; gandiva check says what to look at", message, extra=_fields(where), exc_info=error)
        self._report(self.sentences)
        if where != "journal":
            self._recorder.event("trouble", message, self._clock.now(), job_id)

    def end(self, where: str, why: str = "answers again") -> None:
        """It is not wrong any more; nothing happens when it was not."""
        if self._known.pop(where, None) is not None:
            message = f"{where}: {why}"
            log.warning("%s", message, extra=_fields(where))
            self._report(self.sentences)
            self._recorder.event("recovered", message, self._clock.now())

    def end_all(self, kind: str, is_over: Callable[[str], bool], why: str = "answers again") -> None:
        """End those of this kind whose name says so."""
        for where in list(self._known):
            begins, _, name = where.partition(" ")
            if begins == kind and is_over(name):
                self.end(where, why)


def report_nodes(
    conditions: Conditions, observer: Observer, answers: Mapping[str, Sample], trespass: Trespass
) -> None:
    """Nodes that do not answer, and GPUs that jobs keep from others. `answers`: those of this cycle;
    `trespass`: what becomes of such jobs."""
    nodes = observer.slurm.nodes
    failed = {name: answer for name, answer in answers.items() if isinstance(answer, NodeError)}
    conditions.end_all("node", lambda name: name in answers and name not in failed)
    for name, error in failed.items():
        if name in nodes:
            conditions.begin(f"node {name}", str(error))
    conditions.end_all("node", lambda name: name not in nodes, "is not there any more")
    found = _report_broken(conditions, observer)
    for name, by_index in observer.trespassers.items():
        for index, job_id in by_index.items():
            job = observer.slurm.jobs.get(job_id)
            if f"{name}:{index}" in found:
                continue
            found.add(f"{name}:{index}")
            follows = f"suspend.trespass follows ({trespass.value}) if that lasts half a minute"
            if job is None or job.state in OVER:
                follows = f"the job is over: end its processes on {name} if they stay"
            elif trespass is Trespass.KEEP or not (job.may_requeue or trespass is Trespass.CANCEL):
                follows = "cancelling the job ends it"
            conditions.begin(
                f"gpu {name}:{index}",
                f"job {job_id} (user {'unknown' if job is None else job.user}) has memory on {name}:{index},"
                f" which is not its own now: no other job gets that GPU before the memory is gone; {follows}",
                job_id,
            )
    conditions.end_all("gpu", lambda name: name not in found, "jobs may have it again")


def _report_broken(conditions: Conditions, observer: Observer) -> set[str]:
    """GPUs that are broken, by name. (What processes have there is no fault of the GPU.)"""
    found: set[str] = set()
    for name, bad in observer.bad.items():
        sample = observer.nodes.samples.get(name)
        seen = {gpu.index: gpu for gpu in sample.gpus} if isinstance(sample, NodeSample) else {}
        for gpu in sorted(bad):
            if why := broken(seen.get(gpu.ordinal)):
                found.add(str(gpu))
                text = f"GPU {gpu} is not usable: {why}; jobs that are on it stay there, no other job gets it"
                conditions.begin(f"gpu {gpu}", text)
    return found


def report_partitions(conditions: Conditions, observer: Observer) -> None:
    """Partitions with Gandiva jobs that are not started there."""
    known = {tuple((node.partitions or {}).items()) for node in observer.slurm.nodes.values()}
    obstacles = {name: why for items in known for name, why in items if why}
    found = {name: why for name, why in obstacles.items() if name in observer.slurm.partitions}
    for name, why in found.items():
        conditions.begin(f"partition {name}", f"{why}: its Gandiva jobs stay held")
    conditions.end_all("partition", lambda name: name not in found, "starts Gandiva jobs, or has none")


def report_kept(conditions: Conditions, jobs: Mapping[JobId, Job], looked_at: Set[JobId]) -> None:
    """Jobs that keep their GPUs from others because they cannot be suspended. `looked_at`: with any news."""

    def kept(job: Job | None) -> FailedSuspends | None:
        failed = None if job is None or not job.placement.gpus else job.failed_suspends
        return failed if failed is not None and failed.way_out is Unsuspendable.KEEP else None

    for job_id in looked_at & jobs.keys():
        if failed := kept(job := jobs[job_id]):
            since = time.strftime("%Y-%m-%d %H:%M", time.localtime(failed.since))
            number = len(job.placement.gpus)
            words = (
                f"job {job_id} of user {job.user} keeps {number} GPU{'s'[: number - 1]} and cannot be"
                f" suspended since {since}; gandiva explain says why, suspend.unsuspendable what becomes"
                " of it"
            )
            conditions.begin(f"kept {job_id}", words, job_id)
    why = "does not keep its GPUs any more"
    conditions.end_all("kept", lambda name: kept(jobs.get(JobId(int(name)))) is None, why)


def report_refused(conditions: Conditions, refused: dict[JobId, tuple[int, str]], jobs: Set[JobId]) -> None:
    """Suspends that Slurm refuses: `refused` of the jobs that there are."""
    for job_id in refused.keys() - jobs:
        del refused[job_id]
    if not refused:
        conditions.end("suspends", "Slurm does not refuse them any more")
        return
    first = min(refused)
    conditions.begin(
        "suspends",
        f"Slurm refuses to suspend jobs, such as job {first}: {refused[first][1]}; does the controller's user"
        " still have the right? sacctmgr show user must say AdminLevel Operator (docs/install.md, Rights);"
        " the jobs keep their GPUs, and are tried again more and more rarely",
    )


def report_types(conditions: Conditions, policy: PolicySettings, nodes: Iterable[ClusterNode]) -> None:
    """GPU types that the policy's settings name and no node has."""
    wrong: list[str] = []
    if any(named_types(policy.in_use)):
        types = {gpu.model for node in nodes for gpu in node.gpus}
        wrong = list(unknown_types(policy.in_use, types))
    if wrong:
        conditions.begin("settings", f"{'; '.join(wrong)} of the nodes: what is set for it has no effect")
    else:
        conditions.end("settings", "the nodes have all GPU types that the policy's settings name")


def _fields(where: str) -> dict[str, str]:
    """For the log: `node n1` -> the node."""
    kind, _, name = where.partition(" ")
    return {"node": name} if kind == "node" and name else {}
