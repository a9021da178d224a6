# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva trace`: traces for `gandiva simulate` from a site's own records."""

import argparse
import sys
from pathlib import Path

from controller.cli.common import Subparsers, add_options, new_parser
from controller.cli.outputs import STANDARD_OUTPUT, check_outputs, output_path, writing
from controller.errors import GandivaError

FIELDS = "JobID,Submit,Start,End,ElapsedRaw,AllocTRES,ReqTRES,State,User,Account,Partition"
_ALLOCATED = FIELDS.split(",").index("AllocTRES")

_ABOUT = """\
Writes the site's own jobs between two times as a trace: `sacct --allusers --parsable2 --allocations` with the
fields that `gandiva simulate --trace-format sacct` reads. Jobs that ran under Gandiva, to which Slurm gave
shards, count with the GPUs they asked for. Needs no controller."""

_EXAMPLES = """\
  gandiva trace sacct -S 2026-10-01 -E 2026-11-01 > october.txt
  gandiva simulate --trace october.txt --trace-format sacct --cluster a100:64 --policy tiresias-las"""

_OPTIONS = """
-S --starttime TIME    as sacct takes it
-E --endtime TIME      default: now
-r --partition NAMES   only these partitions
-o --output FILE       default: standard output
--sacct PATH           the program"""


def add_parser(subparsers: Subparsers) -> None:
    parser = new_parser(subparsers, "trace", "traces from the site's records", _ABOUT, _EXAMPLES)
    kinds = parser.add_subparsers(title="sources", metavar="SOURCE", dest="source", required=True)
    sacct = new_parser(kinds, "sacct", "from Slurm's accounting", _ABOUT, _EXAMPLES, run)
    add_options(
        sacct,
        _OPTIONS,
        starttime={"required": True},
        endtime={"default": "now"},
        output={"type": output_path, "default": STANDARD_OUTPUT},
        sacct={"default": "sacct", "help": argparse.SUPPRESS},
    )


def run(args: argparse.Namespace) -> int:
    """Ask sacct, check that the answer is a trace, and write it."""
    import tempfile

    from controller.reports.sacct import run_command
    from controller.simulation.traces import read_trace
    from controller.simulation.traces.base import TraceError

    check_outputs({"--output": args.output}, {})
    command = [args.sacct, "--allusers", "--allocations", "--parsable2", f"--format={FIELDS},AdminComment"]
    command += [f"--starttime={args.starttime}", f"--endtime={args.endtime}"]
    if args.partition:
        command.append(f"--partition={args.partition}")
    answer = run_command(command, 600)
    trace = "".join(map(_line, answer.splitlines()))
    # A trace that cannot be read back must not be written.
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as checked:
        checked.write(trace)
        checked.flush()
        try:
            jobs = read_trace(Path(checked.name), "sacct")
        except TraceError as error:
            message = str(error).replace(checked.name, f"sacct from {args.starttime} to {args.endtime}")
            raise GandivaError(f"{message} (you may not be allowed to see the jobs of others)") from error
    with writing(args.output) as file:
        file.write(trace)
    print(f"gandiva: {len(jobs)} jobs with GPUs", file=sys.stderr)
    return 0


def _line(line: str) -> str:
    """One line of sacct as the trace has it: the request, whose size counts, but is not written, left out.

    Gandiva's jobs are given shards, and floating ones shards of all GPUs of a server: what they run on is the
    number of GPUs in their request.
    """
    from controller.observe.requests import InvalidRequest, is_gandiva, parse_request

    values = line.split("|", FIELDS.count(",") + 1)
    if len(values) != FIELDS.count(",") + 2:
        return line + "\n"
    comment = values.pop()
    if is_gandiva(comment) and values[_ALLOCATED]:
        try:
            gpus = parse_request(comment).size.wanted
        except InvalidRequest as error:
            text = f"gandiva: job {values[0]}: its request is invalid ({error}); left as it is"
            print(text, file=sys.stderr)
        else:
            kept = [one for one in values[_ALLOCATED].split(",") if not one.startswith("gres/")]
            values[_ALLOCATED] = ",".join([*kept, f"gres/gpu={gpus}"])
    return "|".join(values) + "\n"
