# SPDX-License-Identifier: GPL-2.0-or-later
"""Slurm's bracket notation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cluster import hostlist
from controller.cluster.hostlist import MAX_NAMES, expand


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("n1", ("n1",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[08-10]", ("n08", "n09", "n10")),
        ("a[1,3],b", ("a1", "a3", "b")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("[6818-6820]", ("6818", "6819", "6820")),
    ],
)
def test_expansion(expression: str, names: tuple[str, ...]) -> None:
    assert expand(expression) == names


@pytest.mark.parametrize(
    "expression", ["", "n1,", ",n1", "n[]", "n[a]", "n[1-2", "n1]", "n[3-1]", "n 1", "n[1-]"]
)
def test_refused(expression: str) -> None:
    with pytest.raises(ValueError):
        expand(expression)


class _Counted(str):
    """A string that counts how often strings of its kind were compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        _Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_name_that_comes_twice_is_found_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """In as many passes as there are names before it, 65,536 names would take minutes."""
    names = [_Counted(f"n{number}") for number in range(2_000)]
    monkeypatch.setattr(hostlist, "_expand_one", lambda *_: [*names, _Counted("n1999")])
    with pytest.raises(ValueError, match="names n1999 twice"):
        expand("whatever")
    assert _Counted.compared < 10_000


@given(st.text(alphabet="n019[]-,.", max_size=20))
def test_anything_is_expanded_within_bounds_or_refused(expression: str) -> None:
    try:
        names = expand(expression)
    except ValueError:
        return
    assert 1 <= len(names) <= MAX_NAMES
    assert all(name and "[" not in name for name in names)
