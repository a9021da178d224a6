# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva simulate`: a trace under one or several policies, before the cluster is touched."""

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from controller.cli.common import Subparsers, add_options, count, new_parser, number_in, say, terminal_columns
from controller.cli.outputs import STANDARD_OUTPUT, check_outputs, output_path, refuse_inputs, writing
from controller.errors import GandivaError
from controller.simulation.collecting import seldom_collected

if TYPE_CHECKING:
    from controller.loop.loop import Cycle
    from controller.settings.schema import Settings
    from controller.simulation.outcome import Outcome

_ABOUT = """\
Runs a trace of jobs under a policy on a simulated cluster: the controller's own loop, policies and executor
on virtual time. Prints what would have become of the jobs. Equal input and seed give equal output.

What a switch costs is in the table [simulation] of the settings. How jobs are preempted is requests.suspend;
where neither --settings nor --set nor --compare says it, gandiva suspends jobs (cooperative) and every other
policy requeues them, as their authors' systems do. The lines below the table say what was assumed."""

_EXAMPLES = """\
  gandiva simulate --trace jobs.csv --trace-format native --cluster a100:64 --policy tiresias-las
  gandiva simulate --trace jobs.csv --trace-format native --cluster site.toml \\
      --compare fifo,gandiva,tiresias-las --html compare.html
  gandiva simulate --trace jobs.csv --trace-format native --cluster a100:64 --jobs-out ends.csv \\
      --compare tiresias-las,tiresias-las:queue_limits=[60],tiresias-las:requests.suspend=cooperative
  gandiva simulate --trace jobs.csv --trace-format native --cluster a100:64 --policy tiresias-las \\
      --set queue_limits=[3600,36000] --set simulation.restart_seconds=60 --json"""


_INPUT = """
--trace FILE          the jobs (.gz is unpacked)
--trace-format {gavel,tiresias,philly,sacct,native}
                      how they are written down
--cluster SPEC        GPUs by type, such as v100:36,k80:36, or a TOML file: [[nodes]] with switches, or
                      the description that `gandiva config slurm` reads
--gpus-per-node N     with v100:36 (default: 8)"""

_POLICIES = """
--policy NAME         a preset, or a site's own such as ./mine.py:MyOrder; default: the one of the settings
--compare NAME[:KEY=VALUE[,KEY=VALUE]],…
                      several, in one table and one plot; settings as --set takes them, for this one alone"""

_OPTIONS = """
--settings FILE       the controller's TOML file; default: the defaults
--set KEY=VALUE       a setting that the policy reads (with --compare: that all of them read), or any
                      other by its whole name (table.key)
--throughputs FILE    steps per second by GPU type, model, gang (JSON)
--rates FILE          rates that policies are told of (default: they learn them all): a file of
                      `gandiva rates export`, or one such as --throughputs takes
--seed N              for policies that draw lots
--json                numbers as JSON, one object per policy and line
--html FILE           write a page with table and plots (-: see --jobs-out)
--jobs-out FILE       write one line per job as CSV (with --compare, its policy first); -: to standard
                      output, and the table to standard error
--snapshot-every S    write a decision every S seconds of virtual time, for `gandiva replay`
--snapshot-dir DIR    where (default: snapshots)"""


def add_parser(subparsers: Subparsers) -> None:
    parser = new_parser(subparsers, "simulate", "a trace of jobs under a policy", _ABOUT, _EXAMPLES, run)
    add_options(
        parser,
        _INPUT,
        **{key: {"required": True} for key in ("trace", "trace_format", "cluster")},
        gpus_per_node={"type": lambda text: count(text, 1024), "default": 8},
    )
    add_options(parser.add_mutually_exclusive_group(), _POLICIES)
    add_options(
        parser,
        _OPTIONS,
        set={"action": "append", "default": [], "dest": "changes"},
        seed={"type": int, "default": 0},
        html={"type": output_path},
        jobs_out={"type": output_path},
        snapshot_every={"type": lambda text: number_in(text, 1e-9, 1e12, "of seconds above 0")},
        snapshot_dir={"default": Path("snapshots")},
    )


@seldom_collected()
def run(args: argparse.Namespace) -> int:
    from controller.simulation.cluster_spec import parse_cluster
    from controller.simulation.configure import compared, configure
    from controller.simulation.driver import Simulation
    from controller.simulation.ground_truth import Throughputs, read_throughputs
    from controller.simulation.oracle import read_declared
    from controller.simulation.traces import LeftOut, in_words, read_trace

    entries = {args.policy: (args.policy, [])} if args.compare is None else compared(args.compare)
    chosen = {
        label: configure(args.settings, policy, [*args.changes, *changes], own_suspend=True)
        for label, (policy, changes) in entries.items()
    }
    notes = dict.fromkeys(said for settings in chosen.values() for said in settings.policy.deprecated)
    for each in notes:
        # One that has no effect with this policy may have one with another that is compared.
        used, idle, _ = each.partition(", and has no effect")
        if not (idle and used in notes):
            say(each)
    inputs = _inputs(args, chosen.values())
    check_outputs({"--jobs-out": args.jobs_out, "--html": args.html}, inputs)
    if args.json and STANDARD_OUTPUT in (args.jobs_out, args.html):
        raise GandivaError("--json writes to standard output: --jobs-out and --html need the name of a file")
    cluster = parse_cluster(args.cluster, args.gpus_per_node)
    throughputs = read_throughputs(args.throughputs) if args.throughputs else Throughputs()
    rates = read_declared(args.rates, types={}, gpus_per_node=args.gpus_per_node) if args.rates else {}
    left_out = LeftOut()
    jobs = read_trace(args.trace, args.trace_format, left_out)
    if words := in_words(left_out):
        say(f"{args.trace}: {len(jobs)} jobs are read; left out: {words}")
    simulations = []
    for named, settings in chosen.items():
        label = named or settings.policy.name
        show, see = _progress(label), _snapshots(args, settings, label, inputs)
        simulation = Simulation(
            args.trace,
            jobs,
            cluster,
            settings,
            throughputs,
            args.seed,
            label,
            rates=rates,
            on_progress=show,
            on_cycle=see,
        )
        simulations.append(simulation)
    outcomes = [simulation.run() for simulation in simulations]
    _write(args, outcomes)
    _print(args, outcomes)
    return 0


def _inputs(args: argparse.Namespace, chosen: "Iterable[Settings]") -> dict[str, Path | None]:
    """All files that are read, by what names them."""
    inputs: dict[str, Path | None] = {"--trace": args.trace, "--cluster": Path(args.cluster)}
    inputs |= {"--throughputs": args.throughputs, "--rates": args.rates, "--settings": args.settings}
    for number, settings in enumerate(chosen, start=1):
        for own in (settings.policy.name, *settings.policy.moves):
            if ".py:" in own:
                inputs[f"{own} ({number})"] = Path(own.rpartition(":")[0])
        if distribution := settings.policy.tiresias_gittins.distribution:
            inputs[f"policy.tiresias-gittins.distribution ({number})"] = Path(distribution)
    return inputs


def _write(args: argparse.Namespace, outcomes: "Sequence[Outcome]") -> None:
    from controller.simulation.metrics import write_jobs

    if args.jobs_out is not None:
        with writing(args.jobs_out) as file:
            write_jobs(outcomes, file, labelled=args.compare is not None)
    if args.html is not None:
        from controller.simulation.plots import page

        with writing(args.html) as file:
            file.write(page(outcomes, f"{args.trace.name} on {args.cluster}"))


def _print(args: argparse.Namespace, outcomes: "Sequence[Outcome]") -> None:
    from controller.simulation.metrics import assumptions, summary, table

    if args.json:
        for outcome in outcomes:
            print(json.dumps(summary(outcome)))
        return
    lines = [*table(outcomes), *assumptions(outcomes)]
    if len(outcomes) > 1:
        from controller.simulation.plots import text_plots

        lines += text_plots(outcomes, terminal_columns())
    taken = STANDARD_OUTPUT in (args.jobs_out, args.html)
    print("\n".join(lines), file=sys.stderr if taken else sys.stdout)


def _progress(name: str) -> Callable[[int, int, float], None]:
    """A bar with the simulated time and the time left, on a terminal only."""
    if not sys.stderr.isatty():
        return lambda _done, _all, _time: None
    from controller.model.clock import shown_seconds

    begin = time.monotonic()
    shown = 0.0

    def show(done: int, total: int, simulated: float) -> None:
        nonlocal shown
        now = time.monotonic()
        if done < total and now - shown < 0.1:
            return
        shown = now
        filled = 24 * done // total
        bar = "#" * filled + "." * (24 - filled)
        end = "\r\x1b[K" if done == total else ""
        words = f"{name} [{bar}] {100 * done // total} % of {total} jobs at {shown_seconds(simulated)}"
        if done:
            words += f", {(now - begin) / done * (total - done):.0f} s left"
        # A line that does not fit would go on below, and could not be wiped.
        text = f"\r{words[: terminal_columns() - 1]}\x1b[K{end}"
        print(text, end="", file=sys.stderr, flush=True)

    return show


def _snapshots(
    args: argparse.Namespace, settings: "Settings", label: str, inputs: Mapping[str, Path | None]
) -> "Callable[[Cycle], None]":
    if args.snapshot_every is None:
        return lambda _cycle: None
    from controller.simulation.snapshot_file import SnapshotWriter

    folder = args.snapshot_dir / re.sub(r"[^A-Za-z0-9._=-]+", "-", label)
    for file in folder.glob("*.json"):
        refuse_inputs("--snapshot-dir", file, inputs)
    return SnapshotWriter(folder, settings.policy, args.snapshot_every).see
