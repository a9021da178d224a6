# SPDX-License-Identifier: GPL-2.0-or-later
"""`Index` against a table of pairs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.model.index import Index

KEYS, VALUES = range(4), "abcd"
Changes = st.lists(st.tuples(st.sampled_from(KEYS), st.frozensets(st.sampled_from(VALUES))))


def test_an_empty_one() -> None:
    index = Index[int, str]()
    assert (list(index), set(index.values), index.of(1), index.having("a")) == ([], set(), set(), set())
    assert index.having_any("ab") == set()


@given(Changes)
def test_it_answers_as_all_pairs_do(changes: list[tuple[int, frozenset[str]]]) -> None:
    index, pairs = Index[int, str](), set[tuple[int, str]]()
    for key, values in changes:
        before = {value for known, value in pairs if known == key}
        assert index.put(key, values) is (values != before), "whether that is news"
        pairs = {pair for pair in pairs if pair[0] != key} | {(key, value) for value in values}
        assert set(index) == {key for key, _ in pairs}, "a key without values is none"
        assert set(index.values) == {value for _, value in pairs}, "nor is a value that no key has"
        for known in KEYS:
            assert index.of(known) == {value for each, value in pairs if each == known}
        for value in VALUES:
            assert index.having(value) == {each for each, known in pairs if known == value}
        assert index.having_any("ab") == {each for each, known in pairs if known in "ab"}


def test_without_values_a_key_is_taken_out() -> None:
    index = Index[int, str]()
    assert index.put(1, {"a"}) and index.put(2, {"a", "b"}) and index.put(1)
    assert not index.put(1) and not index.put(2, {"b", "a"})
    assert (list(index), index.having("a"), index.having("b")) == ([2], {2}, {2})
