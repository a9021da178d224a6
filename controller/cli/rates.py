# SPDX-License-Identifier: GPL-2.0-or-later
"""`gandiva rates`: how fast models go in every configuration."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from controller.cli import common

if TYPE_CHECKING:
    from controller.observe.rates import Rates, Table

_DESCRIPTION = """\
How fast models go, by configuration: GPU type, GPUs, nodes, models beside. As
root or as the user of the controller. All actions may be used while it runs."""

_LIST = """\
The rates that were measured, and those that are declared. Where both are shown
for a configuration, what was measured counts. With --estimated also those of
pairs that never ran, as they follow from pairs that did, and what a measured
pair would be taken for."""

_IMPORT = """\
Declare rates: they count where nothing was measured. FILE is one that `gandiva
rates export` wrote, or a table of throughputs in Gavel's format. They are
added to those declared before. The controller takes them over within a cycle."""

_EXPORT = """\
Write all rates that count as JSON, for another site or a simulation."""

_EXAMPLES = """\
  gandiva rates list resnet50
  gandiva rates list --estimated resnet50
  gandiva rates export rates.json
  gandiva rates import simulation_throughputs.json --types v100=a100,k80=t4"""


def add_parser(subparsers: common.Subparsers) -> None:
    parser = common.new_parser(subparsers, "rates", "how fast models go where", _DESCRIPTION, _EXAMPLES)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    shown = common.new_parser(actions, "list", "show rates", _LIST, run=run_list)
    shown.add_argument("models", nargs="*", metavar="MODEL", help="of these alone (default: of all)")
    common.add_options(
        shown,
        """
-n --noheader     without the header
-P --parsable2    with | between columns of any width
--json            as JSON, one object per line
--estimated       also of pairs of models, as other pairs let expect""",
    )
    taken = common.new_parser(actions, "import", "declare rates", _IMPORT, run=run_import)
    taken.add_argument("file", type=Path, metavar="FILE", help="JSON")
    common.add_options(
        taken,
        """
--types NAME=TYPE[,…]   the site's GPU types for those of the file (default: their names)
--gpus-per-node N       Gavel's format: how many GPUs a gang has on one node (default: 8)
--batch-sizes           Gavel's format: count samples, by the batch size in a model's name,
                        for jobs that tell their samples. Else a mini-batch counts as one
--replace               forget what was declared before""",
        gpus_per_node={"default": 8, "type": lambda text: common.count(text, 64)},
        types={"type": types, "default": {}},
    )
    written = common.new_parser(actions, "export", "write rates to a file", _EXPORT, run=run_export)
    written.add_argument("file", type=Path, metavar="FILE", help="JSON; -: standard output")
    for action in (shown, taken, written):
        common.add_config(action)


def types(text: str) -> dict[str, str]:
    """`v100=a100,k80=t4`."""
    if not re.fullmatch(r"[\w.-]+=[\w.-]+(,[\w.-]+=[\w.-]+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=TYPE[,NAME=TYPE]")
    pairs = [pair.split("=") for pair in text.split(",")]
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number]))
        raise argparse.ArgumentTypeError(f"{text!r}: {twice} is there twice")
    return found


def run_list(args: argparse.Namespace) -> int:
    from controller.reports.rates import COLUMNS, rate_row, rates_in_order

    declared, measured, now = _declared(args), _measured(args), time.time()
    tables = [measured.table, declared]
    if args.estimated:
        from controller.observe.estimates import estimated, replaced

        measured_first = _measured(args)
        measured_first.declare(declared)
        tables += [made(measured_first.table, args.models) for made in (estimated, replaced)]
    rows = rates_in_order(*tables, models=args.models)
    common.print_rows([rate_row(*row, now) for row in rows], COLUMNS, args)
    return 0


def run_import(args: argparse.Namespace) -> int:
    from controller.cli.outputs import writing
    from controller.observe.declared import declared_path, rates_json
    from controller.reports.units import several
    from controller.simulation.oracle import read_declared

    found = read_declared(
        args.file, types=args.types, gpus_per_node=args.gpus_per_node, batch_sizes=args.batch_sizes
    )
    before: Table = {} if args.replace else _declared(args)
    models = {model: {**before.get(model, {}), **found.get(model, {})} for model in {**before, **found}}
    path = declared_path(common.journal_path(args))
    rows = ((model, where, rate) for model, known in models.items() for where, rate in known.items())
    with writing(path) as file:
        file.write(rates_json(rows))
    rates = several(sum(map(len, found.values())), "rate")
    print(f"declared in {path}: {rates} of {several(len(found), 'model')}")
    return 0


def run_export(args: argparse.Namespace) -> int:
    from controller.cli.outputs import check_outputs, output_path, writing
    from controller.model import of_one_job
    from controller.observe.declared import rates_json
    from controller.reports.rates import rates_in_order

    path = output_path(str(args.file))
    check_outputs({"FILE": path}, {})
    rates = _measured(args)
    rates.declare(_declared(args))
    known = rates_in_order(rates.table, models=())
    # Beside a job without a model nothing will run again.
    rows = [row for row in known if not any(of_one_job(other) for other in row[1].models_beside)]
    with writing(path) as file:
        file.write(rates_json(rows))
    print(f"{len(rows)} rates", file=sys.stderr)
    return 0


def _declared(args: argparse.Namespace) -> Table:
    from controller.observe.declared import declared_path, read_rates

    path = declared_path(common.journal_path(args))
    return read_rates(path) if path.exists() else {}


def _measured(args: argparse.Namespace) -> Rates:
    """What the controller saved last."""
    from controller.errors import JournalError
    from controller.journal.reader import JournalReader
    from controller.loop.state_store import MODELS_KEY
    from controller.observe.rates import Rates

    path, rates = common.journal_path(args), Rates()
    if path.exists():
        saved = JournalReader(path).state(MODELS_KEY)
        try:
            rates.load(saved["rates"] if saved else ())
        except (ValueError, TypeError, KeyError) as error:
            raise JournalError(f"the journal {path} holds rates that make no sense: {error}") from error
    return rates
