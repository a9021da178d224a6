# SPDX-License-Identifier: GPL-2.0-or-later
"""The table of rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from controller.model import Configuration, Provenance, Rate
from controller.reports import units
from controller.reports.table import Column


def _measured(row: Mapping[str, Any], text: str) -> str:
    return text if row["provenance"] == Provenance.MEASURED.value else ""


COLUMNS: tuple[Column[Mapping[str, Any]], ...] = (
    Column("Model", 24, lambda r: r["model"], left=True),
    Column("GPUType", 10, lambda r: r["gpu_type"], left=True),
    Column("GPUs", 4, lambda r: str(r["gpus"])),
    Column("Nodes", 5, lambda r: str(r["nodes"])),
    Column("Beside", 20, lambda r: ",".join(r["models_beside"]), left=True),
    Column("Rate", 10, lambda r: f"{r['samples_per_second']:.4g}/s"),
    Column("Window", 10, lambda r: _measured(r, units.duration(r["window_seconds"]))),
    Column("Batches", 7, lambda r: _measured(r, str(r["mini_batches"]))),
    Column("Provenance", 10, lambda r: r["provenance"], left=True),
    Column("Age", 11, lambda r: units.duration(r["age_seconds"])),
)


def rates_in_order(
    *tables: Mapping[str, Mapping[Configuration, Rate]], models: Sequence[str]
) -> list[tuple[str, Configuration, Rate]]:
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


def rate_row(model: str, where: Configuration, rate: Rate, now: float) -> dict[str, Any]:
    """A rate in its configuration, as JSON has it."""
    age_seconds = now - rate.measured_at if rate.measured_at else None
    said = {name: getattr(rate, name) for name in ("samples_per_second", "window_seconds", "mini_batches")}
    more = {"provenance": rate.provenance.value, "age_seconds": age_seconds}
    return {"model": model, **asdict(where), **said, **more}
