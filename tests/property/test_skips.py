"""The data order as a whole: what is fed, once, and what isn't, and why."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from surefoot.core.skips import Batches, Range, merge
from surefoot.loop.data import Data
from surefoot.loop.sources import FunctionSource

EPOCHS = 3


@st.composite
def cuts(draw: st.DrawFn) -> Batches:
    parts = draw(st.integers(1, 4))
    batch_size = parts * draw(st.integers(1, 5))
    drop_last = draw(st.booleans())
    length = draw(st.integers(batch_size if drop_last else parts, 40))
    return Batches(batch_size, length, drop_last, parts)


@st.composite
def skipped(draw: st.DrawFn) -> tuple[Range, ...]:
    ranges = st.tuples(st.integers(0, 120), st.integers(0, 25)).map(lambda pair: (pair[0], pair[0] + pair[1]))
    return merge(draw(st.lists(ranges, max_size=8)))


def walk(batches: Batches, skips: tuple[Range, ...], sample: int = 0) -> list[Range]:
    """Every batch that begins before the last epoch's end."""
    assert batches.length is not None
    found: list[Range] = []
    while True:
        start, sample = batches.after(sample, skips)
        if start >= EPOCHS * batches.length:
            return found
        found.append((start, sample))


def naive(batches: Batches, skips: tuple[Range, ...]) -> list[Range]:
    """The rule of formats §1, place by place, with a set instead of arithmetic."""
    assert batches.length is not None
    left_out = {place for start, stop in skips for place in range(start, stop)}
    found = []
    for epoch in range(EPOCHS):
        at, end = epoch * batches.length, (epoch + 1) * batches.length
        while at < end:
            size = min(batches.batch_size, end - at)
            if size < batches.batch_size:
                size = 0 if batches.drop_last else size - size % batches.parts
            if not size:
                break
            touched = [place for place in range(at, at + size) if place in left_out]
            if touched:
                at = touched[0]
                while at in left_out:
                    at += 1
            else:
                found.append((at, at + size))
                at += size
    return found


@given(cuts(), skipped())
def test_the_rule_place_by_place(batches: Batches, skips: tuple[Range, ...]) -> None:
    """The arithmetic gives the batches of the rule spelled out."""
    assert walk(batches, skips) == naive(batches, skips)


@given(cuts(), skipped())
def test_what_is_fed_is_fed_once(batches: Batches, skips: tuple[Range, ...]) -> None:
    """No skipped sample is fed, none twice, and no batch crosses an epoch or is larger than a batch."""
    assert batches.length is not None
    behind = 0
    for start, stop in walk(batches, skips):
        assert behind <= start < stop <= start + batches.batch_size
        assert start // batches.length == (stop - 1) // batches.length
        assert all(stop <= skip[0] or skip[1] <= start for skip in skips)
        behind = stop


@given(cuts(), skipped())
def test_what_is_left_out_is_accounted_for(batches: Batches, skips: tuple[Range, ...]) -> None:
    """What is neither fed nor skipped is in a dropped tail, or less than a batch in front of a skip."""
    assert batches.length is not None
    fed = {place for start, stop in walk(batches, skips) for place in range(start, stop)}
    tail_max = batches.batch_size if batches.drop_last else batches.parts
    for place in set(range(EPOCHS * batches.length)) - fed:
        if any(start <= place < stop for start, stop in skips):
            continue
        to_edge = batches.length - place % batches.length
        to_skip = min((start - place for start, _ in skips if start > place), default=batches.batch_size)
        assert to_edge < tail_max or to_skip < batches.batch_size


@given(cuts())
def test_without_skips_every_epoch_is_fed_but_for_its_tail(batches: Batches) -> None:
    """Without skips an epoch leaves out a part of its tail alone: less than a batch, or than the ranks."""
    assert batches.length is not None
    fed = [place for start, stop in walk(batches, ()) for place in range(start, stop)]
    whole = batches.length - batches.length % (batches.batch_size if batches.drop_last else batches.parts)
    if not batches.drop_last:
        tail = batches.length % batches.batch_size
        whole = batches.length - tail % batches.parts
    assert fed == [epoch * batches.length + place for epoch in range(EPOCHS) for place in range(whole)]


@given(cuts(), skipped(), st.data())
def test_a_position_is_enough(batches: Batches, skips: tuple[Range, ...], data: st.DataObject) -> None:
    """From behind any batch the order goes on as if it had never been left."""
    found = walk(batches, skips)
    count = data.draw(st.integers(0, len(found)))
    sample = found[count - 1][1] if count else 0
    assert walk(batches, skips, sample) == found[count:]


@given(cuts(), skipped(), st.integers(1, 4))
def test_parts_make_the_batch(batches: Batches, skips: tuple[Range, ...], times: int) -> None:
    """Whatever the number of ranks, their parts one after the other are the global batch."""
    batches = replace(batches, parts=batches.parts * times, batch_size=batches.batch_size * times, length=160)
    for batch in walk(batches, skips):
        parts = [batches.part(batch, rank) for rank in range(batches.parts)]
        assert [place for part in parts for place in range(*part)] == list(range(*batch))
        assert len({stop - start for start, stop in parts}) == 1


@given(st.data())
def test_full_batches_are_the_same_for_any_number_of_ranks(data: st.DataObject) -> None:
    """With drop_last the ranks that share the global batches don't change them."""
    skips = data.draw(skipped())
    one = Batches(12, 50, drop_last=True)
    assert walk(one, skips) == walk(replace(one, parts=data.draw(st.sampled_from([2, 3, 4, 6, 12]))), skips)


@given(skipped(), st.lists(st.integers(0, 6), min_size=1, max_size=8), st.data())
def test_any_resumes_give_the_same_data(
    skips: tuple[Range, ...], attempts: list[int], data: st.DataObject
) -> None:
    """A run in attempts of any lengths, each drawing ahead what it never consumes, sees the same data."""
    whole = Data(FunctionSource(lambda place: place, seed=1))
    whole.leave_out(skips)
    saved = Data(FunctionSource(lambda place: place, seed=1)).capture()
    seen = []
    for turns in attempts:
        attempt = Data(FunctionSource(lambda place: place, seed=1))
        attempt.restore(saved, skips)
        for _ in range(turns):
            seen.append(next(attempt))
            attempt.consume()
        for _ in range(data.draw(st.integers(0, 3))):
            next(attempt)
        saved = attempt.capture()
    assert seen == [next(whole) for _ in seen]
    assert saved["batch"] == len(seen)
