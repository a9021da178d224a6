# SPDX-License-Identifier: GPL-2.0-or-later
"""How much one plan does."""

MOST_JOBS = 10_000
"""Jobs that one plan goes over; a job that is gone over twice counts twice."""
_LITTLE = MOST_JOBS // 4


class Effort:
    """What has to go over all jobs is put off to the next plan, which is asked for at once, where this plan
    has done much already. So the time of a plan is bounded, and a small cluster is planned in one go."""

    def __init__(self) -> None:
        self._done = 0
        self.put_off = False
        """The next plan is to go on at once."""

    def spend(self, jobs: int) -> None:
        """So many are gone over in any case."""
        self._done += jobs

    def allows(self, jobs: int) -> bool:
        """Whether something that goes over so many is done now. Once that is not so, nothing more is."""
        if self.put_off or (self._done > _LITTLE and self._done + jobs > MOST_JOBS):
            self.put_off = True
            return False
        self._done += jobs
        return True
