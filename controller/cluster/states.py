# SPDX-License-Identifier: GPL-2.0-or-later
"""What Slurm's words about a job or a node mean to the controller. Pure functions."""

from collections.abc import Collection, Sequence
from typing import Final

from controller.cluster.port import JobState

USER_HOLD_BEGIN = 4_102_444_800
"""2100-01-01T00:00:00Z. A begin time from here on means: held by its user. (The owner's hold of a job that
is held already changes nothing in Slurm, so the job_submit module expresses it this way;
docs/slurm-facts.md, Holds.)"""

REQUEUE_DELAY_LIMIT_SECONDS = 600
"""A job that the controller requeued may begin this long after that (Slurm's `requeue_delay`, 120 s unless
set): a begin time that close to the submit time, which a requeue resets, is nobody's wish."""

REHELD_WITHIN_SECONDS = 60
"""The job_submit module puts the begin of a requeued job that its owner releases off by this: the controller
holds it again meanwhile (gandiva_modify.lua)."""

REQUEUED_HELD = "job requeued in held state"
"""The reason that slurmctld gives a job after `requeuehold`, from then on (also while it completes) until
it is released."""

_WORDS = {
    JobState.COMPLETING: "COMPLETING STAGE_OUT",
    JobState.CONFIGURING: "CONFIGURING POWER_UP_NODE",
    JobState.PENDING: "PENDING REQUEUED REQUEUE_FED REQUEUE_HOLD SPECIAL_EXIT RESV_DEL_HOLD EXPEDITING",
    JobState.SUSPENDED: "SUSPENDED",
    JobState.RUNNING: "RUNNING RESIZING SIGNALING STOPPED",
    JobState.ENDED: "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED LAUNCH_FAILED NODE_FAIL OUT_OF_MEMORY "
    "PREEMPTED RECONFIG_FAIL REVOKED TIMEOUT",
}
"""slurmctld reports a base state and flags; the first of these that any of them means wins."""
_STATES = {word: state for state, words in _WORDS.items() for word in words.split()}

_NODE_DOWN = frozenset(
    (
        "BLOCKED", "CLOUD_POWERED_DOWN", "DOWN", "DRAIN", "DRAINED", "DRAINING", "ERROR", "FAIL", "FAILING",
        "FUTURE", "INVAL", "INVALID", "INVALID_REG", "MAINT", "MAINTENANCE", "NOT_RESPONDING", "NO_RESPOND",
        "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_DRAIN", "POWER_UP",
        "REBOOT_ISSUED", "REBOOT_REQUESTED", "REBOOT", "RESERVED", "UNKNOWN",
    )
)  # fmt: skip

_POWERED_OFF = frozenset(("CLOUD_POWERED_DOWN", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP"))
POWERED_OFF = (
    "by Slurm's power saving, which wakes no node for held jobs: SuspendExcNodes of slurm.conf has to name it"
)

ADMIN_HOLD = "JobHeldAdmin"
_OPERATOR = "held by an operator (scontrol hold); an operator's scontrol release ends it"
RELEASE = "scontrol release lets it run again"
"""In the words about a hold that the job's owner can end."""
_FAILED_RUN = f"held by Slurm after a failed run ({{}}); {RELEASE}"
_GAVE_UP = "held by Slurm ({})"

_HOLDS: Final = (
    # flag in the state, reason, whose hold it is in words
    ("SPECIAL_EXIT", "", _FAILED_RUN.format("special exit state: RequeueExitHold of slurm.conf")),
    ("REQUEUE_HOLD", REQUEUED_HELD, _FAILED_RUN.format("expedited requeue")),
    ("", "launch failed requeued held", _FAILED_RUN.format("its launch failed, see sinfo -R")),
    ("", ADMIN_HOLD, _OPERATOR),
    *(
        ("", reason, _GAVE_UP.format(reason))
        for reason in ("JobHoldMaxRequeue", "MaxRequeue", "ReservationDeleted", "ReservationInvalid")
    ),
)
"""Holds that are not ours: an operator's, or Slurm gave up on the job. A release by `scontrol` ends all of
them; it leaves the flag REQUEUE_HOLD, and takes the reason (docs/slurm-facts.md, Holds, has the sources)."""


def job_state(words: Collection[str]) -> JobState | None:
    """The state that Slurm's words for it mean. None: none of them is known; the caller decides."""
    known = {_STATES[word] for word in words if word in _STATES}
    return next((state for state in _WORDS if state in known), None)


def is_final(state: str) -> bool:
    """Whether a job in this state (as sacct words it, `CANCELLED by 1000`) is over."""
    word = state.partition(" ")[0]
    return bool(word) and job_state((word,)) in (None, JobState.ENDED)


def state_name(words: Sequence[str]) -> str:
    """The one word Slurm's own tools would show for the state."""
    state = job_state(words)
    return next((word for word in words if _STATES.get(word) is state), words[0] if words else "")


def node_up(words: Collection[str]) -> bool:
    """Whether jobs may start on a node in this state.

    PLANNED (for a job that Slurm's backfill has in mind) is up. RESERVED is not: only jobs with
    `--reservation` may start there, and Gandiva jobs are never such (docs/slurm-facts.md, Reservations).
    """
    return bool(words) and not any(_plain(word) in _NODE_DOWN for word in words)


def powered_off(words: Collection[str]) -> bool:
    """Whether Slurm's power saving has switched the node off, or is switching it."""
    return any(_plain(word) in _POWERED_OFF for word in words)


def _plain(word: str) -> str:
    """Without the suffix characters that sinfo puts behind a state (`idle*`: not responding)."""
    return "NOT_RESPONDING" if word.endswith("*") else word.rstrip("#$@^~!%-+").upper()


def held_by_other(
    words: Collection[str], reason: str, begin_time: float | None, *, waits: bool = True
) -> str:
    """That a job of priority 0 is held by its user, by an operator or by Slurm beyond our own hold, in words;
    empty: it is not.

    Of one that does not wait for an allocation only an operator's hold counts: Slurm would resume it all the
    same, but it was meant to stay off its GPUs.
    """
    if not waits:
        return _OPERATOR if reason == ADMIN_HOLD else ""
    if (begin_time or 0.0) >= USER_HOLD_BEGIN:
        return "held by its user (scontrol hold, sbatch --hold)"
    holds = (whose for flag, why, whose in _HOLDS if flag in ("", *words) and why in ("", reason))
    return next(holds, "")


def begin_reached(begin_time: float | None, submit_time: float, reason: str, now: float) -> bool:
    """Whether a pending job's begin time has come: its user's, or Slurm's after a requeue. Slurm's delay
    after a requeue by the controller does not count."""
    if begin_time is None or begin_time <= now:
        return True
    return reason == REQUEUED_HELD and begin_time - submit_time <= REQUEUE_DELAY_LIMIT_SECONDS
