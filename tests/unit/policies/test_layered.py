# SPDX-License-Identifier: GPL-2.0-or-later
"""A mapping in versions, against a dict that does the same."""

from __future__ import annotations

import random

import pytest

from controller.layered import Layered


def _same(version: Layered[int, int], known: dict[int, int]) -> None:
    assert version.whole() == known
    assert len(version) == len(known)
    assert bool(version) == bool(known)
    assert sorted(version) == sorted(known)
    for key in range(60):
        assert (key in version) == (key in known)
        assert version.get(key, "none") == known.get(key, "none")


@pytest.mark.parametrize("seed", range(8))
def test_every_version_stays_as_it_was(seed: int) -> None:
    draw = random.Random(seed)
    known = {key: key for key in draw.sample(range(60), draw.randrange(60))}
    version: Layered[int, int] = Layered(known)
    versions = [(version, dict(known))]
    for number in range(100):
        put = dict.fromkeys(draw.sample(range(60), draw.randrange(4)), 1000 + number)
        remove = set(draw.sample(range(60), draw.randrange(6)))
        known = {key: value for key, value in known.items() if key not in remove} | put
        version = version.with_changes(put, remove)
        versions.append((version, known))
    for version, known in versions:
        _same(version, known)


def test_what_is_gone_is_missed() -> None:
    version = Layered({1: 10, 2: 20}).with_changes({}, {1})
    with pytest.raises(KeyError):
        version[1]
    assert version[2] == 20
