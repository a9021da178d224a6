# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva replay`: one recorded decision, made again and explained."""

import argparse
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

from controller.cli.common import Subparsers, add_options, job_number, new_parser
from controller.errors import GandivaError

_ABOUT = """\
Makes a recorded decision of the controller again, from the snapshot and the policy's memory in the file
alone, and says what it means for each job and why. A file attached to a bug report is enough to see it.

A decision in which a site's own part had a say is made again only with --own-parts: it runs Python code from
the files that the record names."""

_EXAMPLES = """\
  gandiva replay snapshots/tiresias-las/3600.json
  gandiva replay --job 17 decision.json
  gandiva replay --policy fifo decision.json      the same situation under another policy"""

_OPTIONS = """
-j --job JOBID   only this job (repeatable)
--policy NAME    decide by another policy, with its defaults
--own-parts      run a site's own parts of the policy
--json           one JSON object per job and line"""


def add_parser(subparsers: Subparsers) -> None:
    parser = new_parser(subparsers, "replay", "make a recorded decision again", _ABOUT, _EXAMPLES, run)
    parser.add_argument("file", metavar="SNAPSHOT", type=Path, help="the recorded decision (JSON)")
    add_options(parser, _OPTIONS, job={"type": job_number, "action": "append"})


def run(args: argparse.Namespace) -> int:
    """Print the decision. Exit status 0 also where it differs from the recorded one (it says so)."""
    from controller.model import Memory
    from controller.simulation.configure import configure
    from controller.simulation.replay import own_parts, replay
    from controller.simulation.snapshot_file import read_decision

    recorded = read_decision(args.file)
    if args.policy is not None:
        other = configure(None, args.policy, ()).policy
        recorded = replace(recorded, policy=other, memory=Memory())
    elif not args.own_parts and (own := own_parts(recorded.policy)):
        raise GandivaError(f"{args.file}: {own[0]} decided too; --own-parts runs that code of the site's own")
    _, verdicts = replay(recorded)
    shown = [v for v in verdicts if args.job is None or v["job_id"] in args.job]
    if missing := sorted(set(args.job or ()) - {v["job_id"] for v in verdicts}):
        raise GandivaError(f"{args.file}: there is no job {missing[0]} in it")
    if args.json:
        for verdict in shown:
            print(json.dumps(verdict))
        return 0
    snapshot = recorded.snapshot
    gpus = sum(len(node.gpus) for node in snapshot.nodes.values())
    print(
        f"Policy {recorded.policy.name} at {snapshot.time:.3f} s: {len(verdicts)} jobs, {gpus} GPUs on "
        f"{len(snapshot.nodes)} nodes"
    )
    counts = sorted(Counter(v["decision"] for v in verdicts).items())
    print("  " + ", ".join(f"{count} {words}" for words, count in counts) + "\n")
    width = max([len(v["decision"]) for v in shown], default=0)
    for verdict in shown:
        gpus, reason = verdict["on"], verdict["reason"]
        where = " on " + ",".join(gpus[:8]) + "…" * (len(gpus) > 8) if gpus else ""
        mark = "" if verdict["as_recorded"] else "   (recorded otherwise)"
        why = f": {reason}" if reason else ""
        size = f"{verdict['gpus']} GPU{'s' if verdict['gpus'] > 1 else ''}"
        print(f"  job {verdict['job_id']} ({size}) {verdict['decision']:<{width}}{where}{why}{mark}")
    if args.policy is None:
        others = [v["job_id"] for v in verdicts if not v["as_recorded"]]
        named = ", ".join(map(str, others[:10]))
        unlike = f"{len(others)} jobs are decided otherwise than recorded: {named}"
        print("\n" + (unlike if others else "The same decision as recorded."))
    return 0
