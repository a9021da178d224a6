# SPDX-License-Identifier: GPL-2.0-or-later
"""Declared rates from files: this project's own, or tables of throughputs in Gavel's format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from pathlib import Path

from controller.errors import GandivaError
from controller.model import Configuration, Provenance, Rate
from controller.observe.declared import read_rates
from controller.simulation.ground_truth import Throughputs, read_throughputs
from controller.simulation.traces.formats import model_slug

_SPREAD = "_unconsolidated"
_BATCH = re.compile(r"\(batch size (\d{1,9})\)")


def read_declared(
    path: Path, *, types: Mapping[str, str], gpus_per_node: int = 8, batch_sizes: bool = False
) -> dict[str, dict[Configuration, Rate]]:
    """The rates of a file, by model, all as declared.

    Args:
        types: the site's GPU type for each type of the file; one that is not in it keeps its name.
        gpus_per_node: of a table: a gang is on as few nodes as its size allows. What the table has of
            scattered gangs holds for any larger number of nodes.
        batch_sizes: of a table: a name such as `LM (batch size 10)` says how many samples a mini-batch has,
            and rates are in samples. Else they are in mini-batches per second, as in the table.

    Raises GandivaError: it is neither a file of rates nor a table of throughputs, or has no rate; `types`
    has a type that is not in it, or makes two of its types one.
    """
    said: Iterable[tuple[str, Configuration, Rate]]
    if _is_ours(path):
        ours = read_rates(path)
        said = [(model, where, rate) for model, known in ours.items() for where, rate in known.items()]
        names = {where.gpu_type for _, where, _ in said}
    else:
        theirs = read_throughputs(path)
        names = {key[0].removesuffix(_SPREAD) for key in theirs.alone.keys() | theirs.shared.keys()}
        said = declared(theirs, gpus_per_node=gpus_per_node, batch_sizes=batch_sizes)
    _check_types(path, types, names)
    table: dict[str, dict[Configuration, Rate]] = {}
    for model, where, rate in said:
        here = replace(where, gpu_type=types.get(where.gpu_type, where.gpu_type))
        table.setdefault(model, {})[here] = replace(rate, provenance=Provenance.DECLARED)
    if not table:
        raise GandivaError(f"{path} has no rates")
    return table


def _check_types(path: Path, types: Mapping[str, str], known: Set[str]) -> None:
    if unknown := sorted(types.keys() - known):
        raise GandivaError(f"{path} has no type {unknown[0]!r}; it has {', '.join(sorted(known))}")
    taken: dict[str, str] = {}
    for name in sorted(known):
        here = types.get(name, name)
        if (other := taken.setdefault(here, name)) != name:
            raise GandivaError(
                f"{path}: {other} and {name} would both be {here}: give each a type of its own"
            )


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b'"gandiva_rates"' in file.read(4096)
    except OSError:
        return False  # said by who reads it


def declared(
    throughputs: Throughputs, *, gpus_per_node: int = 8, batch_sizes: bool = False
) -> Iterator[tuple[str, Configuration, Rate]]:
    """The rates of a table; those of 0 are left out. The arguments are those of `read_declared`."""
    alone = (((*key, ()), rate) for key, rate in throughputs.alone.items())
    pairs = (
        ((table_type, model, gang, (model_slug(other),)), rate)
        for (table_type, model, gang, other, other_gang), rate in throughputs.shared.items()
        if other_gang == gang
    )
    for (table_type, model, gang, beside), rate in (*alone, *pairs):
        plain = table_type.removesuffix(_SPREAD)
        fewest = -(-gang // gpus_per_node)
        nodes = range(fewest + 1, gang + 1) if plain != table_type else (fewest,)
        batch = _BATCH.search(model) if batch_sizes else None
        speed = rate * (int(batch[1]) if batch else 1)
        for number in nodes if speed > 0 else ():
            where = Configuration(plain, gang, number, beside)
            yield model_slug(model), where, Rate(speed, provenance=Provenance.DECLARED)
