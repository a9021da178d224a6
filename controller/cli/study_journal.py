# SPDX-License-Identifier: GPL-2.0-or-later
"""With --study, what is known of a study whose supervisor is not here to be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.cli import common
from controller.cli.study import study_folder

if TYPE_CHECKING:
    import argparse

    from controller.reports.report import JournalSource


def journal_of_study(args: argparse.Namespace, now: float) -> JournalSource | None:
    """The study's journal; None: its supervisor lives on this host, or there is no --study. Of one on another
    host the user is told how old the journal is. Raises GandivaError."""
    from controller.journal import JournalReader
    from controller.reports.report import JournalSource
    from controller.reports.units import moment
    from controller.run.folder import living

    if args.study is None:
        return None
    path, still = study_folder(args).journal, True
    if (supervisor := study_folder(args).supervisor()) is None:
        return JournalSource(path, now, still=still)
    if living(supervisor):
        return None
    if supervisor.is_here and supervisor.journal.exists():
        path, still = supervisor.journal, False
    if seen := JournalReader(path, still=still).state("heartbeat"):
        now = seen
        if not supervisor.is_here:
            common.say(f"as of {moment(seen)}; 'gandiva run' on host {supervisor.host} knows more")
    return JournalSource(path, now, still=still)
