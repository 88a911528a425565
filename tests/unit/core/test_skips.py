from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest

from surefoot.core.skips import Batches, Range, merge
from surefoot.errors import ConfigError


def cut(batches: Batches, count: int, skips: tuple[Range, ...] = (), sample: int = 0) -> list[Range]:
    def walk() -> Iterator[Range]:
        at = sample
        while True:
            start, at = batches.after(at, skips)
            yield start, at

    return list(islice(walk(), count))


def test_merge() -> None:
    """The normal form is sorted and holds no empty, overlapping or touching ranges."""
    assert merge([(7, 9), (3, 3), (1, 2), (8, 12), (2, 4), (20, 19)]) == ((1, 4), (7, 12))
    assert merge([(1, 10), (2, 3)]) == ((1, 10),)
    assert merge([]) == ()


def test_a_short_tail_is_a_batch() -> None:
    """Without drop_last the tail of each epoch is a batch of its own, and batches don't cross epochs."""
    assert cut(Batches(4, length=10), 4) == [(0, 4), (4, 8), (8, 10), (10, 14)]


def test_a_dropped_tail_keeps_its_places() -> None:
    """With drop_last the tail is left out, and the next epoch begins where it always does."""
    assert cut(Batches(4, length=10, drop_last=True), 3) == [(0, 4), (4, 8), (10, 14)]


def test_a_tail_is_cut_down_to_equal_parts() -> None:
    """Three ranks share a tail of five as three; a tail of two is no batch."""
    assert cut(Batches(6, length=11, parts=3), 3) == [(0, 6), (6, 9), (11, 17)]
    assert cut(Batches(6, length=8, parts=3), 2) == [(0, 6), (8, 14)]


def test_an_order_without_end() -> None:
    """Without a length there are no epochs."""
    assert cut(Batches(4), 2, sample=6) == [(6, 10), (10, 14)]


def test_a_batch_begins_behind_what_is_skipped() -> None:
    """A batch that would touch a skipped range begins behind it; what lies between is left out too."""
    assert cut(Batches(4, length=100), 3, ((6, 7),)) == [(0, 4), (7, 11), (11, 15)]
    assert cut(Batches(4, length=100), 2, ((0, 4), (8, 9))) == [(4, 8), (9, 13)]


def test_ranges_that_touch_no_batch_cost_none() -> None:
    """A range that ends where a batch begins, or begins where it ends, doesn't touch it."""
    assert cut(Batches(4), 2, ((4, 8),)) == [(0, 4), (8, 12)]


def test_skips_at_the_edge_of_an_epoch() -> None:
    """A skip into the next epoch shifts that one's batches, one up to the edge leaves them where they are."""
    assert cut(Batches(4, length=10), 2, ((3, 12),)) == [(12, 16), (16, 20)]
    assert cut(Batches(4, length=10), 2, ((3, 10),)) == [(10, 14), (14, 18)]
    assert cut(Batches(4, length=10), 2, ((9, 10),), sample=8) == [(10, 14), (14, 18)]


def test_named_ranges_of_batches() -> None:
    """Of 120 batches with 40-49 and 80-84 skipped exactly the other 105 remain (D11 of the cases)."""
    size = 8
    skips = ((40 * size, 50 * size), (80 * size, 85 * size))
    fed = [start // size for start, _ in cut(Batches(size, length=120 * size), 105, skips)]
    assert fed == [*range(40), *range(50, 80), *range(85, 120)]


def test_a_far_position_costs_nothing() -> None:
    """A position in epoch 10**15 is found as fast as the first: there is nothing to count up to."""
    assert Batches(4, length=10).after(10**16 + 8, ()) == (10**16 + 8, 10**16 + 10)


def test_parts() -> None:
    """The ranks' parts of a batch, one after the other, are the batch."""
    batches = Batches(6, length=11, parts=3)
    assert [batches.part((6, 9), rank) for rank in range(3)] == [(6, 7), (7, 8), (8, 9)]


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ({"batch_size": 5, "parts": 2}, "5 can't be shared by 2 ranks"),
        ({"batch_size": 0}, "batch of 0"),
        ({"batch_size": 8, "length": 7, "drop_last": True}, "7 samples holds no batch: a batch needs 8"),
        ({"batch_size": 8, "length": 3, "parts": 4}, "a batch needs 4"),
        ({"batch_size": 1, "length": 0}, "epoch of 0 samples"),
    ],
)
def test_orders_that_hold_no_batch_are_refused(batches: dict, message: str) -> None:
    """What would be searched for a batch for ever is refused when it is made."""
    with pytest.raises(ConfigError, match=message):
        Batches(**batches)
