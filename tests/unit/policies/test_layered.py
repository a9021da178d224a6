# SPDX-License-Identifier: GPL-2.0-or-later
"""A mapping in versions, against a dict that does the same."""

from __future__ import annotations

import random

import pytest

from controller.layered import Layered, Small, Version, versioned


def _same(version: Version[int, int], known: dict[int, int], span: int) -> None:
    assert version.whole() == known
    assert len(version) == len(known)
    assert bool(version) == bool(known)
    assert sorted(version) == sorted(known)
    for key in range(span):
        assert (key in version) == (key in known)
        assert version.get(key, "none") == known.get(key, "none")


@pytest.mark.parametrize("span", [60, 300, 700])
@pytest.mark.parametrize("seed", range(4))
def test_every_version_stays_as_it_was(seed: int, span: int) -> None:
    draw = random.Random(seed)
    known = {key: key for key in draw.sample(range(span), draw.randrange(span))}
    version: Version[int, int] = versioned(known)
    versions = [(version, dict(known))]
    for number in range(100):
        put = dict.fromkeys(draw.sample(range(span), draw.randrange(span // 15)), 1000 + number)
        remove = set(draw.sample(range(span), draw.randrange(span // 10)))
        known = {key: value for key, value in known.items() if key not in remove} | put
        version = version.with_changes(put, remove)
        versions.append((version, known))
    for version, known in versions:
        _same(version, known, span)


def test_what_is_given_is_not_kept() -> None:
    for count in (2, 1000):
        given = {key: key for key in range(count)}
        version = versioned(given)
        given[1] = 7
        assert version[1] == 1
        version.whole()[1] = 8
        assert version[1] == 1


def test_it_grows_and_shrinks_from_one_kind_into_the_other() -> None:
    version: Version[int, int] = versioned()
    kinds = []
    for number in range(400):
        version = version.with_changes({number: number})
        kinds.append(type(version))
    assert kinds == sorted(kinds, key=[Small, Layered].index)
    assert {*kinds} == {Small, Layered}
    for number in range(400):
        version = version.with_changes({}, {number})
    assert isinstance(version, Small)
    assert not version


@pytest.mark.parametrize("count", [2, 1000])
def test_what_is_gone_is_missed(count: int) -> None:
    version = versioned({key: 10 * key for key in range(count)}).with_changes({}, {0})
    with pytest.raises(KeyError):
        version[0]
    assert version[1] == 10


@pytest.mark.parametrize("count", [2, 1000])
def test_no_change_is_no_new_version(count: int) -> None:
    version = versioned({key: key for key in range(count)})
    assert version.with_changes({}) is version
