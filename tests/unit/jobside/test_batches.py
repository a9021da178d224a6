# SPDX-License-Identifier: GPL-2.0-or-later
"""Every sample once in each epoch, in one order, whatever the number of ranks."""

from __future__ import annotations

from itertools import chain, islice

import pytest

from gandiva.batches import Batches

SAMPLES, WHOLE = 50, 8


def batches(rank: int, ranks: int, **sizes: int) -> Batches:
    return Batches(SAMPLES, rank=rank, world_size=ranks, **(sizes or {"global_batch": WHOLE}))


def steps(ranks: int, count: int, done: int = 0, **sizes: int) -> list[list[int]]:
    """What all ranks together train on in each of these steps."""
    all_ranks = [batches(rank, ranks, **sizes) for rank in range(ranks)]
    for each in all_ranks:
        each.load_state_dict({"done": done, "samples": SAMPLES, "seed": 0})
    return [list(chain(*parts)) for parts in zip(*(islice(each, count) for each in all_ranks), strict=True)]


def test_a_global_batch_is_the_same_for_any_number_of_ranks() -> None:
    one = steps(1, 20)
    assert {len(step) for step in one} == {WHOLE}
    assert steps(2, 20) == steps(4, 20) == one
    assert steps(2, 5) + steps(4, 10, done=5 * WHOLE) + steps(2, 5, done=15 * WHOLE) == one


def test_a_batch_of_each_rank_grows_the_global_one_and_leaves_nothing_out() -> None:
    stream = list(chain(*steps(1, 40)))
    found = list(chain(*steps(2, 5, per_rank=4), *steps(4, 5, done=40, per_rank=4)))
    assert found == stream[: len(found)] and len(found) == 5 * 8 + 5 * 16


def test_each_epoch_has_every_sample_once_in_an_order_of_its_own() -> None:
    stream = list(chain(*steps(2, 25)))
    epochs = [stream[begin : begin + SAMPLES] for begin in range(0, 200, SAMPLES)]
    assert all(sorted(epoch) == list(range(SAMPLES)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_the_order_is_the_same_on_every_machine() -> None:
    assert steps(1, 1) == [[2, 1, 26, 42, 11, 4, 0, 7]]


def test_a_loader_that_reads_ahead_does_not_count() -> None:
    found = batches(0, 2)
    ahead = list(islice(found, 5))
    given = found.counted(ahead)
    assert found.done == 0
    next(given)
    next(given)
    assert (found.done, found.state_dict()["done"], found.epoch) == (16, 16, 0)
    other = batches(0, 2)
    other.load_state_dict(found.state_dict())
    assert next(iter(other)) == ahead[2]


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="8 samples cannot be shared alike by 3 ranks"):
        batches(0, 3)
    for sizes in ({"global_batch": 8, "per_rank": 4}, {"global_batch": 0}, {"per_rank": -1}):
        with pytest.raises(ValueError):
            batches(0, 2, **sizes)
    with pytest.raises(ValueError):
        Batches(SAMPLES, rank=0, world_size=1)
    with pytest.raises(ValueError, match="in 50 samples with seed 0, not in 60 with seed 0"):
        Batches(60, per_rank=1, rank=0, world_size=1).load_state_dict(batches(0, 1).state_dict())
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert next(iter(Batches(SAMPLES, global_batch=WHOLE))) == steps(1, 1)[0][4:]
