# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva explain`: why a job waits, runs or moved, as text."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from controller.api.messages import ExplainMessage, JobMessage, LiveJobMessage, SliceMessage
from controller.reports import units
from controller.reports.advice import SLURM, Words, cannot_be_suspended, not_started_by_slurm
from controller.reports.row import Row
from controller.reports.sacct import Accounting, is_final
from controller.reports.slurm_job import SlurmJob
from controller.reports.text import clean, fit, gpu_list, width

_PHASES = {
    "queued": "waits in the queue",
    "ineligible": "is not eligible yet",
    "starting": "is being started",
    "running": "is on its GPUs",
    "suspended": "is suspended and waits for its turn",
    "suspending": "is on its way off its GPUs",
    "resuming": "is on its way back to its GPUs",
    "stuck": "is stuck: its switch failed or was cut off, and its memory may still be on its GPUs",
    "unknown": "is in an unknown state: one of its nodes does not answer",
}


def explain(
    answer: ExplainMessage,
    *,
    rows: int,
    columns: int,
    slurm: SlurmJob | None = None,
    accounting: Accounting | None = None,
    words: Words = SLURM,
) -> Iterator[str]:
    """Lines for a terminal of `columns`; at most `rows` decisions, slices and events each. `slurm`: the job
    as Slurm has it, where scontrol answers. `accounting`: as sacct has it, once it is over."""
    row = Row(answer.job, answer.time, accounting) if answer.job is not None else None
    job, live = row.settled if row is not None else None, answer.live
    yield from _wrapped("", _headline(job, live, slurm, words), columns)
    yield from _listed(_facts(answer, row, slurm, words), columns)
    if live is not None and answer.rivals:
        yield ""
        yield "On its GPUs now" if live.binding else words.not_started
        yield from _rivals(answer.rivals)
    sections = {
        "Decisions": [(d.time, d.action, gpu_list(d.gpus), d.reason) for d in answer.decisions[-rows:]],
        "Times on GPUs": [_slice(piece, answer.time) for piece in answer.slices[-rows:]],
        "Events": [(e.time, e.kind, e.node or "", e.message) for e in answer.events[-rows:]],
    }
    for title, entries in sections.items():
        if entries:
            yield ""
            yield title
        widest = max([9, *(width(clean(what)) for _, what, _, _ in entries)])
        for time, what, where, why in entries:
            said = f"{fit(clean(what), widest, left=True)} " + (f"{where}  " if where else "")
            yield from _wrapped(f"  {units.moment(time)}  {said}", clean(why), columns)


def _slice(piece: SliceMessage, now: float) -> tuple[float, str, str, str]:
    end, why = (now, "still there") if piece.end is None else (piece.end, piece.reason)
    return piece.start, units.duration(end - piece.start), gpu_list(piece.gpus), why


def ordinary(slurm: SlurmJob, columns: int) -> Iterator[str]:
    """A job that Slurm knows and the controller does not."""
    kind = "a Gandiva job that the controller does not know" if slurm.gandiva else "an ordinary Slurm job"
    named = f"Job {_number(slurm.job_id, slurm)} ({clean(slurm.name)}, {clean(slurm.user)})"
    yield from _wrapped("", f"{named} is {kind}", columns)
    facts = [("state", slurm.state + (f" ({slurm.reason})" if slurm.reason else ""))]
    if not slurm.gandiva:
        why = "submitted without --gandiva: it has its GPUs to itself, and nothing suspends or moves it"
        following = f"scontrol show job {slurm.job_id}, squeue --start -j {slurm.job_id}"
    elif is_final(slurm.state):
        why, following = "it ended before the controller saw it", ""
    else:
        following = "ask again in some seconds; then your administrators: the controller's log names it"
        why = "it was submitted a moment ago, or the controller refuses its request"
    facts += [("why", why), *([("next", following)] if following else [])]
    yield from _listed(((name, clean(value)) for name, value in facts), columns)


def _listed(facts: Iterable[tuple[str, str]], columns: int) -> Iterator[str]:
    for name, value in facts:
        yield from _wrapped(f"  {name:<11} ", value, columns)


def _number(job_id: int, slurm: SlurmJob | None) -> str:
    part = slurm.part if slurm is not None else ""
    return f"{job_id}, {'component' if '+' in part else 'task'} {clean(part)}" if part else str(job_id)


def _headline(
    job: JobMessage | None, live: LiveJobMessage | None, slurm: SlurmJob | None, words: Words
) -> str:
    known = live or job
    assert known is not None
    if isinstance(known, LiveJobMessage):
        what = words.phases.get(known.phase) or _PHASES.get(known.phase, known.phase)
    else:
        what = f"is over: {known.state}" if known.end_time is not None else f"is {known.state}"
    named = f"{words.noun.capitalize()} {_number(known.job_id, slurm)}"
    return f"{named} ({clean(known.name)}, {clean(known.user)}) {what}"


def _facts(
    answer: ExplainMessage, row: Row | None, slurm: SlurmJob | None, words: Words
) -> Iterator[tuple[str, str]]:
    job, live = row.settled if row is not None else None, answer.live
    known = live or job
    assert known is not None
    reason = known.reason or (job.reason if job is not None else "")
    if reason:
        yield "why", clean(reason)
    weight = f"{known.weight:g}"
    if row is not None and (limit := row.asked("weight_limit")):
        whose = "this site" if limit == "site" else clean(limit)
        weight = f"{row.weight_asked:g}, counted as {weight} (limit of {whose})"
    gpus = live.asked_gpus or live.gpus if live is not None else known.gpus
    sizes = f" ({row.gpu_range})" if row is not None and row.gpu_range else ""
    asked = f"{units.several(gpus, 'GPU')}{sizes}, weight {weight}"
    if live is not None and live.priority_class:
        asked += f", priority class {live.priority_class}"
    yield "asked for", asked
    if live is not None:
        yield from _present(live, words.noun)
    if row is not None:
        yield from _past(row)
    step_seconds = (live.step_seconds if live else None) or (job.step_seconds if job else None)
    if step_seconds:
        steps = f", {live.steps_done} done" if live and live.steps_done else ""
        yield "mini-batch", units.step(step_seconds) + steps
    if live is None and row is not None and row.end_time is not None:
        code = f", exit code {row.exit_code}" if row.exit_code else ""
        yield "ended", units.moment(row.end_time) + code
    if step := words.next_step(job, live, slurm, not_started_by_slurm(answer.events)):
        yield "next", clean(step)


def _present(live: LiveJobMessage, noun: str) -> Iterator[tuple[str, str]]:
    if live.binding:
        bound = gpu_list(live.binding)
        yield "bound to", f"any {live.gpus} of {bound}" if len(live.binding) > live.gpus else bound
    if live.running_on:
        grown = 0 < live.asked_gpus < live.gpus
        size = f": {live.gpus} GPUs, more than it asked for" if grown else ""
        yield "is on", gpu_list(live.running_on) + size
    if live.shares_with:
        others = ", ".join(map(str, live.shares_with))
        yield "shares with", f"{noun}{'s' if len(live.shares_with) > 1 else ''} {others}, on the same GPUs"
    if live.left_on:
        kept = ", ".join(f"{size >> 20} MiB of {gpu}" for gpu, size in sorted(live.left_on.items()))
        yield "keeps", f"{kept}, while it is off the GPU (CUDA contexts and communicators)"
    if live.may_migrate:
        state = "its checkpoint store" if live.has_store else "its own checkpoint"
        yield "may migrate", f"to another node, from {state}"
    for gpu, why in live.bad_gpus.items():
        stays = f"; the {noun} stays on it" if gpu in live.running_on else ""
        yield "note", clean(f"no {noun} is put on GPU {gpu}: {why}{stays}")
    if live.failed_suspends is not None:
        yield "note", clean(cannot_be_suspended(live.failed_suspends))
    elif not live.suspendable and not live.bad_gpus.keys() & live.running_on:
        yield "note", "it could not be suspended a short while ago, so it keeps its GPUs for now"


def _past(row: Row) -> Iterator[tuple[str, str]]:
    job = row.job
    until = "from submission to start"
    if job.start_time is None:
        until = "so far" if row.end_time is None else "until it ended, without having started"
    yield "waited", f"{units.duration(row.waited)} {until}"
    if row.elapsed is not None:
        ran = f"{units.duration(job.run_seconds)} of {units.duration(row.elapsed)}"
        if share := units.percent(row.share_fraction, 1):
            ran += f" ({share})"
        parts = ((job.slices, "slice"), (job.suspends, "suspend"), (job.moves, "move"))
        counts = ", ".join(units.several(*each) for each in parts)
        yield "has run", f"{ran}, in {counts}" + (f", on {row.sizes} GPUs" if "-" in row.sizes else "")
    if job.packs or job.trials:
        gain = "" if job.gain is None else f"; measured last: {units.gain(job.gain)} of what was before"
        counts = f"{units.several(job.packs, 'pack')}, {units.several(job.trials, 'trial')}"
        yield "was changed", counts + gain


def _rivals(rivals: Sequence[LiveJobMessage]) -> Iterator[str]:
    for rival in rivals[:20]:
        name = fit(clean(rival.name), 16, left=True)
        yield (
            f"  {rival.job_id:<8} {name} {clean(rival.user):<10} weight {rival.weight:<5g} "
            f"{gpu_list(rival.running_on)}"
        ).rstrip()
    if len(rivals) > 20:
        yield f"  and {len(rivals) - 20} more"


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
