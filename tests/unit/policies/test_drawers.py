# SPDX-License-Identifier: GPL-2.0-or-later
"""The index of nodes by free GPUs gives what a look at every node would."""

from __future__ import annotations

import random

from controller.model import GpuId
from controller.policies.moves.drawers import Drawers


def free(draw: random.Random, nodes: int) -> dict[str, list[GpuId]]:
    names = [f"n{number}" for number in range(nodes)]
    return {name: [GpuId(name, ordinal) for ordinal in range(draw.randint(0, 8))] for name in names}


def test_the_fewest_first_and_the_most_first() -> None:
    for seed in range(20):
        draw = random.Random(seed)
        known = free(draw, 30)
        drawers = Drawers(known)
        assert len(drawers) == sum(bool(gpus) for gpus in known.values())
        for _ in range(40):
            least = draw.randint(1, 8)
            most = draw.choice([None, least, least + 2])
            fits = [n for n, gpus in known.items() if least <= len(gpus) <= (most or 8)]
            assert list(drawers.fitting(least, most)) == sorted(fits, key=lambda n: (len(known[n]), n))
            fits = [n for n, gpus in known.items() if len(gpus) >= least]
            assert list(drawers.emptiest(least)) == sorted(fits, key=lambda n: (-len(known[n]), n))
            if fits:
                name = draw.choice(fits)
                before = list(known[name])
                taken = drawers.take(name, least)
                assert taken == set(before[:least])
                if draw.random() < 0.3:
                    drawers.give(name, taken)
                else:
                    known = {**known, name: before[least:]}
                assert list(drawers.of(name)) == known[name]


def test_what_it_was_made_from_stays_as_it_is() -> None:
    known = {"n1": [GpuId("n1", 0), GpuId("n1", 1)], "n2": []}
    drawers = Drawers(known)
    drawers.take("n1", 2)
    assert not drawers and list(drawers.fitting(1)) == []
    assert known["n1"] == [GpuId("n1", 0), GpuId("n1", 1)]
