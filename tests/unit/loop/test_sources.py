from __future__ import annotations

import functools
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from surefoot.errors import ConfigError, DataExhausted, StateError, StateMismatch
from surefoot.loop.data import Data, Position, Source
from surefoot.loop.sources import FunctionSource, IterableSource, StatefulSource, seeded, source_for


class Epochs:
    """Five shuffled numbers an epoch, from Python's main generator."""

    def __init__(self) -> None:
        self.begun = 0

    def __iter__(self) -> Iterator[tuple[int, float]]:
        self.begun += 1
        order = random.sample(range(5), 5)
        return ((number, random.random()) for number in order)


class Stream:
    """A stateful iterable of four numbers an epoch, which can go on from within one."""

    def __init__(self) -> None:
        self.at = 0
        self.drawn = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 4:
            self.at += 1
            self.drawn += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def draws(place: int) -> tuple[int, float, float]:
    return place, random.random(), float(np.random.rand())  # noqa: NPY002


def take(data: Data, count: int) -> list[Any]:
    return [next(data) for _ in range(count)]


def main_generators() -> tuple[Any, str]:
    with np.printoptions(threshold=10_000):
        return random.getstate(), repr(np.random.get_state())  # noqa: NPY002


def test_seeded_gives_the_generators_back() -> None:
    """A seeded block draws the same each time and leaves Python's and NumPy's generators as they were."""
    random.gauss(0, 1)
    np.random.randn()  # noqa: NPY002, half of a pair is kept for the next call
    before = main_generators()
    with seeded(2**64 - 1):
        first = draws(0)
    with seeded(2**64 - 1):
        assert draws(0) == first
    with pytest.raises(ZeroDivisionError), seeded(3):
        draws(1 // 0)
    assert main_generators() == before


def test_seeded_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that never loaded NumPy only Python's generator is seeded."""
    monkeypatch.delitem(sys.modules, "numpy.random")
    with seeded(3):
        first = random.random()
    assert "numpy.random" not in sys.modules
    with seeded(3):
        assert random.random() == first


def test_a_function_is_exact_from_any_position() -> None:
    """What a function draws at random depends on the place alone."""
    whole = take(Data(FunctionSource(draws, seed=1)), 9)
    data = Data(FunctionSource(draws, seed=1))
    before = main_generators()
    for batch in (6, 0, 3):
        data.seek(Position(batch, batch), [])
        assert take(data, 3) == whole[batch : batch + 3]
    assert main_generators() == before
    data.seek(Position(2, 2), [(3, 5)])
    assert take(data, 2) == [whole[2], whole[5]]
    assert data.drawn == Position(4, 6)


def test_seed_and_rank_count() -> None:
    """Another seed or rank draws other numbers at the same place."""
    sources = [FunctionSource(draws, seed=seed, rank=rank) for seed in (1, 2) for rank in (0, 1)]
    assert len({next(Data(source)) for source in sources}) == 4


def test_an_iterable_goes_on_over_its_epochs() -> None:
    """What can be iterated again begins its next epoch; each epoch is shuffled anew."""
    numbers = [number for number, _ in take(Data(IterableSource(Epochs(), seed=1)), 15)]
    epochs = [numbers[0:5], numbers[5:10], numbers[10:15]]
    assert [sorted(epoch) for epoch in epochs] == [list(range(5))] * 3
    assert epochs[0] != epochs[1] != epochs[2]


def test_an_iterable_is_drawn_up_to_the_position() -> None:
    """Drawn and discarded, an iterable comes to the same items, and the main generators don't notice."""
    whole = take(Data(IterableSource(Epochs(), seed=1)), 14)
    before = main_generators()
    data = Data(IterableSource(Epochs(), seed=1))
    data.seek(Position(7, 7), [])
    assert take(data, 3) == whole[7:10]
    data.seek(Position(3, 3), [])
    assert take(data, 1) == whole[3:4]
    data.seek(Position(5, 5), [(6, 8)])
    assert take(data, 3) == [whole[5], whole[8], whole[9]]
    assert data.drawn == Position(8, 10)
    assert main_generators() == before


def test_going_forward_draws_nothing_twice() -> None:
    """A position ahead is reached from where the iterable stands, without a new beginning."""
    epochs = Epochs()
    data = Data(IterableSource(epochs, seed=1))
    take(data, 2)
    data.seek(Position(4, 4), [])
    take(data, 1)
    assert epochs.begun == 1


def test_a_one_shot_iterator_ends() -> None:
    """An iterator that ends says how far it came and what to pass instead."""
    data = Data(source_for((number for number in range(3)), seed=1))
    assert take(data, 3) == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(DataExhausted, match=r"generator.* ended after 3 batches.*iterated again"):
            next(data)


def test_a_one_shot_iterator_does_not_go_back() -> None:
    """A rollback of what can be drawn only once is refused, not answered with other data."""
    data = Data(source_for(iter(range(9)), seed=1))
    take(data, 4)
    data.seek(Position(2, 2), [])
    with pytest.raises(DataExhausted, match="batch 2 is to be drawn again, 4 were drawn already"):
        next(data)


def test_an_empty_iterable() -> None:
    """What gives nothing is exhausted at once."""
    with pytest.raises(DataExhausted, match="ended after 0 batches"):
        next(Data(source_for([], seed=1)))


def test_a_stateful_iterable_draws_nothing_again() -> None:
    """A restored state goes on in the middle of a later epoch without drawing what came before."""
    data = Data(StatefulSource(Stream(), seed=1))
    whole = take(data, 6)
    data.consume()
    saved = data.capture()
    stream = Stream()
    again = Data(StatefulSource(stream, seed=1))
    again.restore(saved, [])
    assert whole + take(again, 4) == [0, 1, 2, 3] * 2 + [0, 1]
    assert stream.drawn == 4


def test_a_stateful_iterable_rolls_back_and_skips() -> None:
    """A live one goes back by its state; what is skipped is drawn and discarded."""
    data = Data(StatefulSource(Stream(), seed=1))
    take(data, 2)
    data.consume()
    saved = data.capture()
    take(data, 5)
    data.consume()
    data.restore(saved, [(3, 5)])
    assert take(data, 3) == [2, 1, 2]
    assert data.drawn == Position(5, 7)


def test_state_at_the_end_of_an_epoch() -> None:
    """A state that was captured where an epoch ends goes on with the next one."""
    data = Data(StatefulSource(Stream(), seed=1))
    take(data, 4)
    data.consume()
    again = Data(StatefulSource(Stream(), seed=1))
    again.restore(data.capture(), [])
    assert take(again, 2) == [0, 1]


def test_a_state_survives_being_loaded_and_saved() -> None:
    """A save right after a load gives back what was loaded, before the iterable has begun."""

    class Shy(Stream):
        def state_dict(self) -> dict[str, int]:
            assert self.drawn, "can't tell before it has begun"
            return super().state_dict()

    data = Data(StatefulSource(Shy(), seed=1))
    data.restore({"batch": 2, "sample": 2, "unit": "batch", "source": {"place": 2, "state": {"at": 2}}}, [])
    saved = data.capture()
    data.restore(saved, [])
    assert data.capture() == saved
    assert next(data) == 2
    data.consume()
    assert data.capture()["source"] == {"place": 3, "state": {"at": 3}}


def test_a_stateful_iterable_needs_its_state() -> None:
    """Neither a bare position behind it nor the snapshot of other data moves it."""
    source = StatefulSource(Stream(), seed=1)
    data = Data(source)
    take(data, 3)
    data.seek(Position(1, 1), [])
    with pytest.raises(StateError, match="at batch 3 and can go back to 1 only by loading the state"):
        next(data)
    with pytest.raises(StateMismatch, match="no state of the data"):
        source.restore({})


def test_source_for() -> None:
    """Whatever can be read batch by batch is read in the best way that it allows."""
    kinds = [
        ([1, 2, 3], "sequence", "exact", 3, "list[3]"),
        (draws, "function", "exact", None, "draws"),
        (functools.partial(draws, 3), "function", "exact", None, "draws"),
        (Epochs(), "Epochs", "drawn", None, "Epochs"),
        (Stream(), "Stream", "order_only", None, "Stream"),
    ]
    for data, kind, level, length, fingerprint in kinds:
        source = source_for(data, seed=1)
        assert isinstance(source, Source)
        assert source.unit == "batch"
        found = (source.kind, source.level, source.length, source.fingerprint, source.batch_size)
        assert found == (kind, level, length, fingerprint, None)
        assert source_for(source, seed=1) is source


def test_a_sequence_is_exact_over_its_epochs() -> None:
    """A list of batches is read by number, from any position in any epoch."""
    data = Data(source_for(["a", "b", "c"], seed=1))
    data.seek(Position(10**12 + 1, 10**12 + 1), [])
    assert take(data, 3) == ["c", "a", "b"]


@pytest.mark.parametrize("data", [3, "data/train.bin", b"data", None])
def test_what_cannot_be_read(data: Any) -> None:
    """A number, a path or nothing is refused with what would do."""
    with pytest.raises(ConfigError, match=r"can't be read batch by batch\. Expected a DataLoader"):
        source_for(data, seed=1)
