# SPDX-License-Identifier: GPL-2.0-or-later
"""Rates of pairs that never ran, from what other pairs showed (Gavel's estimator, SPEC 3.7).

Of every model it is known with some partners which part of its rate alone it keeps beside them. The parts
make a matrix, models by partners in each configuration. It is completed; models whose completed rows point
the same way are alike, and a pair that never ran is taken for the pair of models most like its own that did.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from controller.model import Configuration, Provenance, Rate

Table: TypeAlias = Mapping[str, Mapping[Configuration, Rate]]
Floats: TypeAlias = NDArray[np.float64]

RANK = 10
RIDGE = 1e-2
MOST_SWEEPS = 100
SETTLED = 1e-3
"""The matrix is completed when a sweep changes its entries by less than this (Frobenius norm per entry)."""


def complete(known: Floats, seed: int = 0) -> Floats:
    """The matrix with its missing entries, by alternating least squares.

    Args:
        known: parts from 0 to 1; nan where nothing is known.
        seed: of the first guess.
    """
    measured = ~np.isnan(known)
    filled = np.where(measured, known, 0.0)
    draw = np.random.default_rng(seed)
    left, right = (draw.normal(size=(count, RANK)) for count in known.shape)
    before = left @ right.T
    for _ in range(MOST_SWEEPS):
        left = _fitted(right, filled, measured)
        right = _fitted(left, filled.T, measured.T)
        found = left @ right.T
        if np.linalg.norm(found - before) < SETTLED * max(1, found.size):
            break
        before = found
    return np.where(measured, known, np.clip(left @ right.T, 0.0, 1.0))


def _fitted(basis: Floats, filled: Floats, measured: NDArray[np.bool_]) -> Floats:
    """Each row's coefficients in the basis, by what was measured of it."""
    squares = np.einsum("jk,jl->jkl", basis, basis).reshape(len(basis), -1)
    gram = (measured @ squares).reshape(-1, RANK, RANK) + RIDGE * np.eye(RANK)
    coefficients: Floats = np.linalg.solve(gram, (filled @ basis)[..., None])[..., 0]
    return coefficients


def distances(row: Floats, references: Floats) -> Floats:
    """Cosine distance to each reference: 0 where it points the same way. 1 where one of the two is zero."""
    lengths = np.linalg.norm(references, axis=1) * np.linalg.norm(row)
    cosines = np.divide(references @ row, lengths, out=np.zeros(len(references)), where=lengths > 0)
    found: Floats = np.clip(1.0 - cosines, 0.0, 2.0)
    return found


def estimated(
    table: Table, models: Sequence[str] = (), seed: int = 0
) -> dict[str, dict[Configuration, Rate]]:
    """Rates of pairs that the table does not have, all as estimated: of these models (none given: of all),
    beside any model, where both rates alone are known. What is in the table is not estimated.

    Args:
        table: by model, what was measured or declared.
        seed: which models count as alike of those that nothing is known of.
    """
    names = sorted(table)
    number = {name: i for i, name in enumerate(names)}
    configurations = sorted(
        {where for known in table.values() for where in known if not where.models_beside},
        key=lambda where: (where.gpu_type, where.gpus, where.nodes),
    )
    place = {where: at for at, where in enumerate(configurations)}
    parts = np.full((len(configurations), len(names), len(names)), np.nan)
    for one in names:
        for where, rate in table[one].items():
            alone = replace(where, models_beside=()) if len(where.models_beside) == 1 else where
            if where is alone or alone not in table[one] or where.models_beside[0] not in number:
                continue
            part = rate.samples_per_second / table[one][alone].samples_per_second
            parts[place[alone], number[one], number[where.models_beside[0]]] = min(1.0, part)
    if np.isnan(parts).all():
        return {}
    apart = _apart(np.concatenate(list(parts), axis=1), seed)
    found: dict[str, dict[Configuration, Rate]] = {}
    for at, where in enumerate(configurations):
        measured = ~np.isnan(parts[at])
        if not measured.any():
            continue
        alike = parts[at][_most_alike(measured, apart)]
        present = [name for name in names if where in table[name]]
        beside = {other: replace(where, models_beside=(other,)) for other in present}
        for one in present if not models else [name for name in models if name in present]:
            for other, pair in beside.items():
                i, k = number[one], number[other]
                speed = float(alike[i, k]) * table[one][where].samples_per_second
                if speed > 0 and not measured[i, k]:
                    found.setdefault(one, {})[pair] = Rate(speed, provenance=Provenance.ESTIMATED)
    return found


def _most_alike(measured: NDArray[np.bool_], apart: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """For each pair of models i, k the measured pair j, l with the least `apart[i, j] + apart[k, l]`: the
    first of those that are equal. Returns j and l, each by i and k; at least one pair must be measured."""
    beside = np.where(measured, apart[:, None, :], np.inf)  # k, j, l
    first = (apart[:, None, :] + beside.min(axis=2)).argmin(axis=2)
    return first, beside.argmin(axis=2)[np.arange(len(apart)), first]


def replaced(table: Table, models: Sequence[str] = (), seed: int = 0) -> dict[str, dict[Configuration, Rate]]:
    """What each measured pair of these models (none given: of all) would be taken for if it had not been
    measured."""
    found: dict[str, dict[Configuration, Rate]] = {}
    for model in models or sorted(table):
        for where, rate in table.get(model, {}).items():
            if not where.models_beside or rate.provenance is not Provenance.MEASURED:
                continue
            without = {at: known for at, known in table[model].items() if at != where}
            estimate = estimated({**table, model: without}, [model], seed).get(model, {}).get(where)
            if estimate is not None:
                found.setdefault(model, {})[where] = estimate
    return found


def _apart(known: Floats, seed: int) -> Floats:
    """How unlike each two models are. A model that nothing is known of is like any: which one is drawn."""
    rows = complete(known, seed)
    rows[np.isnan(known).all(axis=1)] = 0.0
    apart = np.stack([distances(row, rows) for row in rows])
    apart += 1e-9 * np.random.default_rng(seed).random(apart.shape)
    np.fill_diagonal(apart, 0.0)
    return apart
