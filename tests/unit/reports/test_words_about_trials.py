# SPDX-License-Identifier: GPL-2.0-or-later
"""With --study nothing speaks of Slurm, its commands or its options."""

from __future__ import annotations

import ast
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from controller.api.messages import ExplainMessage, GpusMessage
from controller.cluster.port import JobState
from controller.model import Phase
from controller.reports.explain import explain
from controller.reports.report import unsuspendable
from controller.reports.row import Row
from controller.reports.study_advice import study_words
from controller.reports.top.detail import Detail, lines
from controller.reports.top.view import Page
from tests.unit.structure.sources import modules

from .test_explain_slurm import BROKEN, FAILED
from .test_words_about_jobs import NOW, QUEUED, SUSPENDED, draw, job, live, message

WORDS = study_words(Path("my lr"))
STOP = "gandiva trials stop --study 'my lr' 9"
SLURMS = re.compile(
    r"slurm|scontrol|scancel|sacct|sbatch|squeue|srun|--(mem|nodelist|time|gandiva|partition|qos)"
    r"|administrator|operator",
    re.IGNORECASE,
)

ROOMS = re.compile(r"controller\.(agent|act|loop|observe|policies|api\.answers)\b")
OF_SLURM = re.compile(
    r"\b(sbatch|scontrol|scancel|sacct(mgr)?|squeue)\b|--(mem|nodelist|time|gandiva)\b|\bin Slurm (first|any)"
    r"|Slurm (gave|has (bound|ended)|takes)"
)
ON_CLUSTERS_ALONE = {
    "controller.agent.node",  # names the key of the study file as well
    "controller.agent.host_memory",  # so does this
    "controller.loop.conditions",  # where Slurm suspends
}


def said(answer: ExplainMessage) -> str:
    return " ".join(" ".join(explain(answer, rows=3, columns=200, words=WORDS)).split())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (QUEUED, "With fewer gpus, less memory or no gpu_types in the study file a trial finds room earlier"),
        ({"phase": "starting"}, "it starts within seconds"),
        (SUSPENDED, "is suspended and waits for its turn"),
        (SUSPENDED, "it goes on by itself when its turn comes"),
        (SUSPENDED | {"phase": "yielded"}, "is off its GPUs and waits for its turn why"),
        ({"phase": "suspending"}, "a switch takes seconds"),
        ({"phase": "completing"}, "is over; its processes are being ended"),
        ({"phase": "stuck"}, f"my lr/log say what holds its GPUs; {STOP} ends it"),
        ({"phase": "unknown"}, "gandiva status --study 'my lr' and my lr/log say why"),
        (SUSPENDED | BROKEN, f"when the GPU is in order it goes on there; {STOP} ends it"),
        (BROKEN | {"suspendable": False}, "'gandiva run' with --retry failed starts it again, on other GPUs"),
        ({"suspendable": False}, 'say suspend = "requeue" in the study file'),
        ({"failed_suspends": FAILED}, 'say suspend = "requeue" in the study file'),
    ],
)
def test_what_to_do_about_a_trial(changes: dict[str, Any], words: str) -> None:
    assert words in said(ExplainMessage(time=NOW, live=live(9, **changes)))


def test_what_to_do_about_a_trial_that_is_over() -> None:
    failed = said(ExplainMessage(time=NOW, job=job(state="FAILED", end_time=NOW, exit_code=1)))
    assert "next see the end of its output, my lr/trials/8.out; 'gandiva run' with --retry failed" in failed
    for state in ("COMPLETED", "CANCELLED"):
        assert "next" not in said(ExplainMessage(time=NOW, job=job(state=state, end_time=NOW)))


def test_no_phase_speaks_of_slurm() -> None:
    kinds: tuple[dict[str, Any], ...] = (
        {}, QUEUED, SUSPENDED, BROKEN, SUSPENDED | BROKEN,
        {"suspendable": False}, {"failed_suspends": FAILED},
    )  # fmt: skip
    for phase, kind in product(Phase, kinds):
        trial = live(9, **kind | {"phase": phase.value})
        text = said(ExplainMessage(time=NOW, live=trial, rivals=[live(7)]))
        assert not SLURMS.search(text), text
    for state in JobState:
        text = said(ExplainMessage(time=NOW, job=job(state=state.value, end_time=NOW)))
        assert not SLURMS.search(text), text


def test_a_trial_is_called_one() -> None:
    text = said(ExplainMessage(time=NOW, live=live(9, **BROKEN | {"shares_with": [7]})))
    assert text.startswith("Trial 9 (") and "shares with trial 7," in text
    assert "no trial is put on GPU" in text and "the trial stays on it" in text
    assert list(lines(Detail(9), 80, WORDS)) == ["Asking about trial 9"]
    over = said(ExplainMessage(time=NOW, job=job(state="COMPLETED", end_time=NOW)))
    assert over.startswith("Trial 8 (train, alice) is over")


def test_what_is_said_below_reports_names_no_option_or_command_of_slurms() -> None:
    """It is read in studies too. Descriptions of settings are for clusters."""
    found = set()
    for name, module in modules().items():
        if not ROOMS.match(name) or name.endswith("settings"):
            continue
        for node in ast.walk(module.tree):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.Constant) and not isinstance(node, ast.Expr):
                    found |= {name} if OF_SLURM.search(str(child.value)) else set()
    assert found - ON_CLUSTERS_ALONE == set()


def test_who_has_gpus_and_has_not_started() -> None:
    answer = ExplainMessage(time=NOW, live=live(8, **QUEUED), rivals=[live(7)])
    assert "Have GPUs, and have not started yet" in said(answer)


def test_the_warning_of_the_report_names_the_command() -> None:
    (warning,) = unsuspendable([Row(job(failed_suspends=FAILED), NOW)], WORDS)
    assert warning.startswith("warning: trial 8 (alice)")
    assert warning.endswith("gandiva explain --study 'my lr' 8 says what its user can do")


def test_the_live_view() -> None:
    ill = message(live(7)).model_copy(update={"problems": list("abcde")})
    pages = [
        draw(ill, words=WORDS, height=40),
        draw(ill, words=WORDS, height=40, page=Page.HELP),
        draw(GpusMessage(time=NOW), words=WORDS),
    ]
    pages += [list(lines(Detail(9, ExplainMessage(time=NOW, live=live(9, **QUEUED))), 80, WORDS))]
    for page in pages:
        assert not SLURMS.search("\n".join(page))
    assert any("more problems: gandiva status --study 'my lr'" in line for line in pages[0])
    assert any("stop trials with gandiva trials stop." in line for line in pages[1])
    assert any("The study has no GPUs." in line for line in pages[2])
