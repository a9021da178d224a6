# SPDX-License-Identifier: GPL-2.0-or-later
"""The option --study: commands about the trials of `gandiva run`, whose numbers are no job ids."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from controller.errors import GandivaError

if TYPE_CHECKING:
    from controller.api.client import ApiClient
    from controller.reports.advice import Words
    from controller.run.folder import StudyFolder, Supervisor


def client_of_study(args: argparse.Namespace) -> ApiClient:
    """The client for the supervisor of the study. Raises GandivaError where none lives on this host."""
    from controller.api.client import ApiClient
    from controller.api.unix_socket import PREFIX
    from controller.run.folder import living

    supervisor = study_folder(args).supervisor()
    if supervisor is None or not living(supervisor):
        raise GandivaError(f"study {args.study} {_why_not(args, supervisor)}")
    check = f"is process {supervisor.pid}, its supervisor, about to begin or to end, or in another /tmp?"
    return ApiClient(PREFIX + supervisor.socket, deadline_seconds=args.deadline, check=check)


def study_folder(args: argparse.Namespace) -> StudyFolder:
    """What --study names. Raises GandivaError: it is no study, or another source is named too."""
    from controller.run.folder import StudyFolder

    others = [name for name in ("url", "config", "journal") if getattr(args, name, None) is not None]
    if others:
        raise GandivaError(f"--study and --{others[0]} both say what to ask: give one of them")
    study = StudyFolder(args.study)
    if not study.trials.is_dir():
        raise GandivaError(f"{args.study} is not a study: there is no folder {study.trials}")
    return study


def study_of(args: argparse.Namespace) -> StudyFolder | None:
    """What --study names, if it is given. Raises GandivaError."""
    return None if args.study is None else study_folder(args)


def words_of(args: argparse.Namespace) -> Words:
    """What depends on what runs the jobs."""
    if args.study is None:
        from controller.reports.advice import SLURM

        return SLURM
    from controller.reports.study_advice import study_words

    return study_words(args.study)


def takes_effect(args: argparse.Namespace) -> str:
    """When what is asked of trials takes effect; empty: at once. Raises GandivaError."""
    from controller.run.folder import living

    supervisor = study_folder(args).supervisor()
    if supervisor is not None and living(supervisor):
        return ""
    if supervisor is not None and not supervisor.is_here:
        return f"'gandiva run' on host {supervisor.host} carries it out if it runs there, else the next one"
    return f"study {args.study} is not running: it takes effect with the next 'gandiva run'"


def _why_not(args: argparse.Namespace, supervisor: Supervisor | None) -> str:
    """Why no supervisor lives on this host, after the name of the study."""
    if supervisor is not None and not supervisor.is_here:
        folder = shlex.quote(str(args.study.absolute()))
        there = f"ssh -t {supervisor.host} gandiva {args.command} --study {folder}"
        return f"runs on host {supervisor.host} (process {supervisor.pid}): {there}"
    return (
        f"is not running: 'gandiva report --study {args.study}' shows what is known, 'gandiva run' with its "
        "file goes on with it"
    )
