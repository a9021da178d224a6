# SPDX-License-Identifier: GPL-2.0-or-later
"""One job of a report: its journal entry, joined with its accounting."""

from dataclasses import dataclass

from controller.api.messages import JobMessage
from controller.reports.sacct import Accounting, is_final

UNSEEN = "UNKNOWN"
"""State of jobs that Slurm forgot before the controller saw their end. What it has as their end is when it
noticed."""
MAX_SIGNAL = 64


@dataclass(frozen=True, slots=True)
class Row:
    """A job at the time `now` (seconds since the epoch)."""

    job: JobMessage
    now: float
    accounting: Accounting | None = None

    @property
    def job_id(self) -> str:
        return self.accounting.job_id if self.accounting else str(self.job.job_id)

    @property
    def state(self) -> str:
        """A final state comes from Slurm; before that the controller's is newer."""
        return (self._ended or self.job).state

    @property
    def _ended(self) -> Accounting | None:
        """What accounting says of a job that is over."""
        return self.accounting if self.accounting and is_final(self.accounting.state) else None

    @property
    def end_is_slurms(self) -> bool:
        """It is over, and the controller did not see its end."""
        return (self.job.end_time is None or self.job.state == UNSEEN) and self._ended is not None

    @property
    def end_time(self) -> float | None:
        ended = self.accounting.end_time if self.accounting and self.end_is_slurms else None
        return self.job.end_time if ended is None else ended

    @property
    def settled(self) -> JobMessage:
        """The job with the state and the end that accounting knows better."""
        return self.job.model_copy(update={"state": self.state, "end_time": self.end_time})

    @property
    def exit_code(self) -> str:
        """`code:signal`."""
        if self._ended and self._ended.exit_code:
            return self._ended.exit_code
        if (code := self.job.exit_code) is None:
            return ""
        return f"0:{code - 128}" if 128 < code <= 128 + MAX_SIGNAL else f"{code}:0"

    @property
    def elapsed(self) -> float | None:
        """Seconds from the first start; None before it."""
        if self.job.start_time is None:
            return None
        return max(0.0, (self.now if self.end_time is None else self.end_time) - self.job.start_time)

    @property
    def share_fraction(self) -> float | None:
        """Part of `elapsed` that it was on its GPUs; None before the first start."""
        return min(1.0, self.job.run_seconds / self.elapsed) if self.elapsed else None

    @property
    def suspended(self) -> float | None:
        """Seconds since the first start that it was off its GPUs."""
        return None if self.elapsed is None else max(0.0, self.elapsed - self.job.run_seconds)

    @property
    def waited(self) -> float:
        """Seconds from submission to the first start (or the end of a job that never started, or now)."""
        until = self.job.start_time
        if until is None:
            until = self.now if self.end_time is None else self.end_time
        return max(0.0, until - self.job.submit_time)

    @property
    def weight_asked(self) -> float:
        """What its user asked for; the weight that counts may be less."""
        asked = self.job.request.get("weight_asked")
        return float(asked) if isinstance(asked, int | float) else self.job.weight

    @property
    def gpu_range(self) -> str:
        """How few and how many GPUs it may have, `1-4`; empty: as many as it asked for."""
        least, most = (self.job.request.get(name) for name in ("min_gpus", "max_gpus"))
        asked = self.job.gpus
        return f"{least or asked}-{most or asked}" if least or most else ""

    @property
    def sizes(self) -> str:
        """How few and how many GPUs it was on, `1-4`; empty: on none yet."""
        least, most = self.job.least_gpus, self.job.most_gpus
        return f"{least}-{most}" if least != most else str(most or "")

    def asked(self, name: str) -> str:
        """A text of the request, such as `model`; empty where it has none."""
        return str(self.job.request.get(name) or "")
