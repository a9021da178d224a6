# SPDX-License-Identifier: GPL-2.0-or-later
"""What follows for a job from what is observed: what may be done with it, and on which GPUs it may run."""

from collections.abc import Mapping

from controller.model import Job, JobId, rate_key
from controller.policies.mechanisms.rounds.kinds import scattered
from controller.policies.mechanisms.rounds.member import Member
from controller.policies.mechanisms.rounds.pools import Pools
from controller.policies.mechanisms.rounds.settings import RoundSettings
from controller.policies.mechanisms.rounds.speeds import Speeds
from controller.policies.mechanisms.row import ASIDE, standing


class Eligibility:
    """By the pools, and by the rates of this round."""

    def __init__(
        self,
        settings: RoundSettings,
        pools: Pools,
        members: Mapping[JobId, Member],
        speeds: Speeds,
        *,
        pairs: bool,
    ) -> None:
        """
        Args:
            members: all jobs; it follows what is observed.
            pairs: jobs that share GPUs do so because a round has chosen them together.
        """
        self._settings, self._pools, self._members, self._pairs = settings, pools, members, pairs
        self.speeds = speeds

    def see(self, member: Member) -> None:
        """What may be done with it. A guest that no round has chosen comes and goes with its host."""
        member.gpus, member.shape = member.job.gpus, member.job.signature
        fixed = self._pools.only_closed(member.job)
        member.standing = standing(member.job, self._members, fixed=fixed, guests=not self._pairs)
        self.find_kinds(member)

    def find_kinds(self, member: Member) -> None:
        """Of which kind its GPUs are, and on which it may run. A job that Slurm has bound leaves its type by
        way of a checkpoint only."""
        job, own = member.job, member.job.allocation
        stays, member.hosted = self.stays(job), self._pools.type_of(own)
        kinds = self._pools.accepting(member)
        if self._settings.placement_sensitive:
            least = self._least_nodes(job, member.hosted)
            if least and len({gpu.node for gpu in own}) > least:
                member.hosted = scattered(member.hosted)
            kinds = (*kinds, *(scattered(t) for t in kinds if self._least_nodes(job, t)))
        member.types = (member.hosted,) if stays else kinds
        # Once it is off its GPUs it goes on where Slurm has bound it.
        suspended = job.has_store and len(member.types) == 1
        member.bound = stays or (bool(job.placement.allocation) and suspended)

    def _least_nodes(self, job: Job, gpu_type: str) -> int:
        """How many nodes of the type it needs, where its rates on these and on more are known. Else 0."""
        if job.gpus == 1:
            return 0
        known = self.speeds.on_more_nodes(rate_key(job), job.gpus).get(gpu_type)
        least = self._pools.least_nodes(job, gpu_type) if known else 0
        return least if known and known[0] == least else 0

    def stays(self, job: Job) -> bool:
        """Whether it cannot leave the type where Slurm has bound it."""
        return bool(job.placement.allocation) and not (self._settings.change_types and job.starts_anywhere)

    def wants(self, member: Member) -> bool:
        """Whether an allocation counts the job."""
        job = member.job
        if self._pools.only_closed(job) and self.stays(job):
            return False  # it ends where it is
        return member.standing is not ASIDE or job.switching or job.leaving or job.held_until is not None
