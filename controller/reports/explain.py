# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva explain`: why a job waits, runs or moved, as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from controller.api.messages import ExplainMessage, JobMessage, LiveJobMessage
from controller.reports import units
from controller.reports.advice import cannot_be_suspended, next_step, not_started_by_slurm, why_not_eligible
from controller.reports.row import Row
from controller.reports.slurm_job import SlurmJob
from controller.reports.text import clean, fit, gpu_list, width

_PHASES = {
    "queued": "waits in the queue",
    "ineligible": "is not eligible yet (dependency, begin time, or held by its user)",
    "starting": "is being started",
    "running": "is on its GPUs",
    "yielded": "is off its GPUs and waits for its turn (Slurm says RUNNING)",
    "suspended": "is suspended and waits for its turn",
    "stuck": "is stuck: suspended in Slurm, but its memory may still be on its GPUs",
    "completing": "is over; Slurm is cleaning up",
    "unknown": "is in an unknown state: one of its nodes does not answer",
}


def explain(
    answer: ExplainMessage, *, rows: int, columns: int, slurm: SlurmJob | None = None
) -> Iterator[str]:
    """Lines for a terminal of `columns`; at most `rows` decisions, slices and events each. `slurm`: the job
    as Slurm has it, where scontrol answers."""
    job, live = answer.job, answer.live
    yield from _wrapped("", _headline(job, live, slurm), columns)
    yield from _facts(answer, columns, slurm)
    if live is not None and answer.rivals:
        yield ""
        yield "On its GPUs now"
        yield from _rivals(answer.rivals)
    if answer.decisions:
        yield ""
        yield "Decisions"
        for taken in answer.decisions[-rows:]:
            yield from _entry(taken.time, taken.action, gpu_list(taken.gpus), taken.reason, columns)
    if answer.slices:
        yield ""
        yield "Times on GPUs"
        for piece in answer.slices[-rows:]:
            end = answer.time if piece.end is None else piece.end
            why = "still there" if piece.end is None else piece.reason
            yield from _entry(
                piece.start, units.duration(end - piece.start), gpu_list(piece.gpus), why, columns
            )
    if answer.events:
        yield ""
        yield "Events"
        for event in answer.events[-rows:]:
            yield from _entry(event.time, event.kind, event.node or "", event.message, columns)


def ordinary(slurm: SlurmJob, columns: int) -> Iterator[str]:
    """A job that Slurm knows and the controller does not."""
    kind = (
        "is a Gandiva job that the controller does not know" if slurm.gandiva else "is an ordinary Slurm job"
    )
    yield from _wrapped(
        "", f"Job {_number(slurm.job_id, slurm)} ({clean(slurm.name)}, {clean(slurm.user)}) {kind}", columns
    )
    facts = [("state", slurm.state + (f" ({slurm.reason})" if slurm.reason else ""))]
    if not slurm.gandiva:
        facts.append(
            (
                "why",
                "submitted without --gandiva: it has its GPUs to itself, and nothing suspends or moves it",
            )
        )
        facts.append(("next", f"scontrol show job {slurm.job_id}, squeue --start -j {slurm.job_id}"))
    elif slurm.over:
        facts.append(("why", "it ended before the controller saw it"))
    else:
        facts.append(("why", "it was submitted a moment ago, or the controller refuses its request"))
        facts.append(
            ("next", "ask again in some seconds; then your administrators: the controller's log names it")
        )
    for name, value in facts:
        yield from _wrapped(f"  {name:<11} ", clean(value), columns)


def _number(job_id: int, slurm: SlurmJob | None) -> str:
    return (
        f"{job_id}, task {clean(slurm.array_task)}" if slurm is not None and slurm.array_task else str(job_id)
    )


def _headline(job: JobMessage | None, live: LiveJobMessage | None, slurm: SlurmJob | None) -> str:
    known = live or job
    assert known is not None
    if live is not None:
        what = _PHASES.get(live.phase, live.phase)
    else:
        assert job is not None
        what = f"is over: {job.state}" if job.end_time is not None else f"is {job.state}"
    return f"Job {_number(known.job_id, slurm)} ({clean(known.name)}, {clean(known.user)}) {what}"


def _facts(answer: ExplainMessage, columns: int, slurm: SlurmJob | None) -> Iterator[str]:
    job, live = answer.job, answer.live
    facts: list[tuple[str, str]] = []
    reason = live.reason if live is not None and live.reason else job.reason if job is not None else ""
    if live is not None and live.phase == "ineligible":
        reason = why_not_eligible(slurm) or reason
    if reason:
        facts.append(("why", clean(reason)))
    known = live or job
    assert known is not None
    weight = units.number(known.weight)
    if job is not None and (limit := Row(job, answer.time).weight_limit):
        whose = "this site" if limit == "site" else clean(limit)
        weight = f"{units.number(Row(job, answer.time).weight_asked)}, counted as {weight} (limit of {whose})"
    asked = f"{known.gpus} GPU{'s' if known.gpus != 1 else ''}, weight {weight}"
    if live is not None and live.priority_class:
        asked += f", priority class {live.priority_class}"
    facts.append(("asked for", asked))
    if live is not None and live.binding:
        floating = len(live.binding) > live.gpus
        bound = gpu_list(live.binding)
        facts.append(("bound to", f"any {live.gpus} of {bound}" if floating else bound))
    if live is not None and live.running_on:
        facts.append(("is on", gpu_list(live.running_on)))
    if live is not None and live.shares_with:
        others = ", ".join(map(str, live.shares_with))
        facts.append(
            ("shares with", f"job{'s' if len(live.shares_with) > 1 else ''} {others}, on the same GPUs")
        )
    if live is not None and live.left_on:
        kept = ", ".join(f"{size >> 20} MiB of {gpu}" for gpu, size in sorted(live.left_on.items()))
        facts.append(("keeps", f"{kept}, while it is off the GPU (CUDA contexts and communicators)"))
    if live is not None and live.failed_suspends is not None:
        facts.append(("note", clean(cannot_be_suspended(live.failed_suspends))))
    elif live is not None and not live.suspendable:
        facts.append(("note", "it could not be suspended a short while ago, so it keeps its GPUs for now"))
    if job is not None:
        row = Row(job, answer.time)
        until = "from submission to start"
        if job.start_time is None:
            until = "so far" if job.end_time is None else "until it ended, without having started"
        facts.append(("waited", f"{units.duration(row.waited)} {until}"))
        if row.elapsed is not None:
            share = units.share(job.run_seconds, row.elapsed)
            part = f" ({share})" if share else ""
            facts.append(
                (
                    "has run",
                    f"{units.duration(job.run_seconds)} of {units.duration(row.elapsed)}{part}, in "
                    f"{units.several(job.slices, 'slice')}, {units.several(job.suspends, 'suspend')}, "
                    f"{units.several(job.moves, 'move')}",
                )
            )
    step_seconds = (live.step_seconds if live else None) or (job.step_seconds if job else None)
    if step_seconds:
        steps = f", {live.steps_done} done" if live and live.steps_done else ""
        facts.append(("mini-batch", units.step(step_seconds) + steps))
    if live is None and job is not None and job.end_time is not None:
        code = Row(job, answer.time).exit_code
        facts.append(("ended", units.moment(job.end_time) + (f", exit code {code}" if code else "")))
    if step := next_step(job, live, slurm, not_started_by_slurm(answer.events)):
        facts.append(("next", clean(step)))
    for name, value in facts:
        yield from _wrapped(f"  {name:<11} ", value, columns)


def _rivals(rivals: Sequence[LiveJobMessage]) -> Iterator[str]:
    for rival in rivals[:20]:
        name = fit(clean(rival.name), 16, left=True)
        yield (
            f"  {rival.job_id:<8} {name} {clean(rival.user):<10} weight {units.number(rival.weight):<5} "
            f"{gpu_list(rival.running_on)}"
        ).rstrip()
    if len(rivals) > 20:
        yield f"  and {len(rivals) - 20} more"


def _entry(time: float, what: str, where: str, why: str, columns: int) -> Iterator[str]:
    words = f"{clean(what):<9} " + (f"{where}  " if where else "")
    yield from _wrapped(f"  {units.moment(time)}  {words}", clean(why), columns)


def _wrapped(head: str, text: str, columns: int) -> Iterator[str]:
    """Text after a head, with hanging indent. After a long head the text is on lines of its own."""
    indent = width(head)
    if columns - indent < 24 and text:
        yield head.rstrip()
        head, indent = " " * 10, 10
    lines = textwrap.wrap(text, max(24, columns - indent), break_on_hyphens=False) or [""]
    yield (head + lines[0]).rstrip()
    for line in lines[1:]:
        yield " " * indent + line
