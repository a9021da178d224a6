# SPDX-License-Identifier: GPL-2.0-or-later
"""The table of rates as text, in the way of sacct, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from controller.model import Configuration, Provenance, Rate
from controller.reports import units
from controller.reports.text import columned

_COLUMNS = (
    ("Model", -24),
    ("GPUType", -10),
    ("GPUs", 4),
    ("Nodes", 5),
    ("Beside", -20),
    ("Rate", 10),
    ("Window", 10),
    ("Batches", 7),
    ("Provenance", -10),
    ("Age", 11),
)
"""Names and widths; negative: to the left."""

Row = tuple[str, Configuration, Rate]


def rates_in_order(*tables: Mapping[str, Mapping[Configuration, Rate]], models: Sequence[str]) -> list[Row]:
    """Of these models (none given: of all), by model and configuration; of one configuration in the order of
    the tables."""
    rows = [
        (model, where, rate)
        for table in tables
        for model, known in table.items()
        if not models or model in models
        for where, rate in known.items()
    ]
    return sorted(rows, key=lambda r: (r[0], r[1].gpu_type, r[1].gpus, r[1].nodes, r[1].models_beside))


def rate_lines(rows: Iterable[Row], now: float, *, header: bool, delimiter: str | None) -> Iterator[str]:
    """`delimiter`: None for fixed width."""
    return columned(_COLUMNS, (_cells(row, now) for row in rows), header=header, delimiter=delimiter)


def _cells(row: Row, now: float) -> list[str]:
    model, where, rate = row
    measured = rate.provenance is Provenance.MEASURED
    return [
        model,
        where.gpu_type,
        str(where.gpus),
        str(where.nodes),
        ",".join(where.models_beside),
        f"{rate.samples_per_second:.4g}/s",
        units.duration(rate.window_seconds) if measured else "",
        str(rate.mini_batches) if measured else "",
        rate.provenance.value,
        units.duration(now - rate.measured_at) if rate.measured_at else "",
    ]


def rate_json(row: Row, now: float) -> dict[str, Any]:
    """One rate."""
    model, where, rate = row
    return {
        "model": model,
        "gpu_type": where.gpu_type,
        "gpus": where.gpus,
        "nodes": where.nodes,
        "models_beside": list(where.models_beside),
        "samples_per_second": rate.samples_per_second,
        "window_seconds": rate.window_seconds,
        "mini_batches": rate.mini_batches,
        "provenance": rate.provenance.value,
        "age_seconds": now - rate.measured_at if rate.measured_at else None,
    }
