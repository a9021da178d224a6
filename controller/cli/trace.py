# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva trace`: traces for `gandiva simulate` from a site's own records."""

import argparse
import os
import re
import time
from pathlib import Path

from controller.cli.common import Subparsers, add_options, new_parser, own_name, say
from controller.cli.outputs import STANDARD_OUTPUT, check_outputs, output_path, writing
from controller.errors import GandivaError

FIELDS = "JobID,Submit,Start,End,ElapsedRaw,AllocTRES,ReqTRES,State,User,Account,Partition,QOS"
_BETWEEN = "\x1f"
"""Between values as sacct is asked to print them: constraints and comments have | in them."""
_ALLOCATED, _ASKED, _USER = (FIELDS.split(",").index(name) for name in ("AllocTRES", "ReqTRES", "User"))
_MODEL = re.compile(r"(?:^|&)gandiva_([\w.-]+)$")
"""What the job_submit module puts at the end of a constraint for `gpu:a100:2`."""
_UNTYPED = re.compile(r"(?:^|(?<=,))gres/gpu=([0-9]+)(?=,|$)")

_ABOUT = """\
Writes the site's own jobs between two times as a trace: `sacct --allusers --parsable2 --allocations` with the
fields that `gandiva simulate --trace-format sacct` reads, its times in UTC. Jobs that ran under Gandiva, to
which Slurm gave shards, count with the GPUs they asked for. Needs no controller."""

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
    import tempfile

    from controller.reports.sacct import run_command
    from controller.reports.units import several
    from controller.reports.when import parse_time
    from controller.simulation.traces import LeftOut, NoJobs, TraceError, in_words, read_trace

    check_outputs({"--output": args.output}, {})
    begin, end = (parse_time(text, time.time()) for text in (args.starttime, args.endtime))
    if end < begin:
        raise GandivaError("--endtime is before --starttime")
    command = [args.sacct, "--allusers", "--allocations", "--parsable2"]
    command += [f"--delimiter={_BETWEEN}", f"--format={FIELDS},Constraints,AdminComment"]
    # Slurm's commands run in UTC here; what its user writes is local time.
    utc = [time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) for at in (begin, end)]
    command += [f"--starttime={utc[0]}", f"--endtime={utc[1]}"]
    command += [f"--partition={args.partition}"] if args.partition else []
    # A line with fewer values goes on with a comment.
    between = FIELDS.count(",") + 2
    lines = (line.split(_BETWEEN, between) for line in run_command(command, 600).split("\n"))
    rows = [values for values in lines if len(values) > between]
    trace = "".join(map(_line, rows))
    left_out = LeftOut()
    # A trace that cannot be read back must not be written.
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as checked:
        checked.write(trace)
        checked.flush()
        try:
            jobs = read_trace(Path(checked.name), "sacct", left_out)
        except TraceError as error:
            message = str(error).replace(checked.name, f"sacct from {args.starttime} to {args.endtime}")
            if isinstance(error, NoJobs) and os.geteuid() != 0:
                users = {values[_USER] for values in rows[1:]}
                message += " (you may not be allowed to see the jobs of others)" * (users <= {own_name()})
            raise GandivaError(message) from error
    with writing(args.output) as file:
        file.write(trace)
    more = f"; left out: {words}" if (words := in_words(left_out)) else ""
    say(f"{several(len(jobs), 'job')} with GPUs{more}")
    return 0


def _line(values: list[str]) -> str:
    """What sacct says of a job as the trace has it: constraint and request count, but are not written.

    Gandiva's jobs are given shards, and floating ones shards of all GPUs of a node: what they run on is the
    number of GPUs in their request. The type that an ordinary job asked for is in its constraint.
    """
    from controller.cluster.raw import PREFIX
    from controller.cluster.request import InvalidRequest, read_message

    *values, constraint, comment = values
    ours = comment.startswith(PREFIX)
    if not ours and (model := _MODEL.search(constraint)):
        values[_ASKED] = _UNTYPED.sub(rf"\g<0>,gres/gpu:{model[1]}=\1", values[_ASKED])
    elif ours and values[_ALLOCATED]:
        try:
            request = read_message(comment)
        except InvalidRequest as error:
            say(f"job {values[0]}: its request is invalid ({error}); left as it is")
        else:
            asked = [f"gres/gpu={request.wanted_gpus}"]
            asked += [f"gres/gpu:{kind}={request.wanted_gpus}" for kind in request.gpu_types]
            kept = [one for one in values[_ALLOCATED].split(",") if not one.startswith(("gres/", "node="))]
            kept += [f"node={request.nodes}"] if request.nodes else []
            values[_ALLOCATED], values[_ASKED] = ",".join([*kept, asked[0]]), ",".join(asked)
    return "|".join(values) + "\n"
