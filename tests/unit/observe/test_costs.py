# SPDX-License-Identifier: GPL-2.0-or-later
"""Measured costs: what is the same again is nothing new."""

from controller.model import Costs
from controller.observe.costs import LAST, MeasuredCosts


def test_a_cost_that_stays_the_same_is_no_news() -> None:
    costs = MeasuredCosts()
    for _ in range(LAST):
        costs.see("bert", "start", 2.0)
    table, version = dict(costs.table), costs.version
    costs.see("bert", "start", 2.0)
    assert costs.version == version
    assert dict(costs.table) == table == {"bert": Costs(start_seconds=2.0), "": Costs(start_seconds=2.0)}
    costs.see("bert", "start", 3.0)
    assert costs.version > version
    assert costs.dump()["bert"] == {"start": [*[2.0] * (LAST - 1), 3.0]}


def test_the_model_that_was_measured_last_is_the_last_to_be_dropped() -> None:
    costs = MeasuredCosts()
    for model in ("first", "second", *["first"] * LAST):
        costs.see(model, "start", 1.0)
    assert list(costs.dump()) == ["second", "first", ""] or list(costs.dump()) == ["second", "", "first"]
