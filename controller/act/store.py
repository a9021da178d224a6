# SPDX-License-Identifier: GPL-2.0-or-later
"""Have a job's sessions write its state into its checkpoint store: for a migration, a save, or a suspend."""

from controller.act.context import Operation
from controller.act.recorder import Step
from controller.act.resume import once_thawed
from controller.errors import NodeError


async def write_to_store(operation: Operation, began: float) -> None:
    """Of a job that is paused, or runs off its GPUs; there it stays. Done when all its nodes say that one
    generation is published. `began`: when its way to that did. On failure its pause is undone."""
    context, job = operation.context, operation.job
    operation.step(Step.SAVE)
    seconds = context.settings.suspend.save_deadline_seconds
    answers = await once_thawed(
        context,
        job,
        lambda: context.on_nodes(
            job, lambda node: context.nodes.save(node, job.id, deadline_seconds=seconds)
        ),
    )
    found = {(answer.step, answer.generation) for answer in answers.values()}
    if len(found) != 1:
        words = f"job {job.id}: nodes saved different things: {sorted(found)}"
        raise NodeError(min(answers), "not_cooperative", words)
    context.took(job, "save", began)
    now, memory, saved = context.clock.now(), context.memory.change(job.id), next(iter(answers.values()))
    memory.saved_seconds = memory.usage.ran(now)
    message = f"step {saved.step} is generation {saved.generation} of its checkpoint store"
    context.recorder.saved(job.id, memory.saved_seconds, message, now)


def cannot_write(operation: Operation, failure: Exception, seconds: float) -> None:
    """It is not asked to write again for so long: a file system may be full, say."""
    context, job = operation.context, operation.job
    now, memory = context.clock.now(), context.memory.change(job.id)
    memory.unsavable_until = max(memory.unsavable_until or 0.0, now + seconds)
    words = f"its state is not written into its checkpoint store: {failure}"
    context.recorder.event("save-failed", words, now, job.id)
