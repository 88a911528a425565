from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import pytest

from surefoot.core.skips import Range
from surefoot.errors import ConfigError, StateError, StateMismatch
from surefoot.loop.data import Data, Loaders, Position
from surefoot.loop.sources import FunctionSource, StatefulSource, data_for


class Pairs:
    """Batches of two samples that are their places; notes what was begun and ended."""

    kind = "pairs"
    unit = "sample"
    length = 10
    level = "exact"
    fingerprint = "pairs"
    batch_size = 2

    def __init__(self) -> None:
        self.live = 0
        self.fail_at: int | None = None

    def seek(self, position: Position, skips: Sequence[Range]) -> Generator[tuple[Any, Position], None, None]:
        self.live += 1
        try:
            while True:
                if position.sample == self.fail_at:
                    raise OSError("no such sample")
                here, position = position, Position(position.batch + 1, position.sample + 2)
                yield [here.sample, here.sample + 1], position
        finally:
            self.live -= 1

    def capture(self) -> dict[str, Any]:
        return {}

    def restore(self, plain: Any) -> None:
        assert plain == {}
        assert self.live == 0, "restored under a reader"


class Counter:
    """A stateful iterable without end."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Counter:
        return self

    def __next__(self) -> int:
        self.at += 1
        return self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_only_finished_turns_count() -> None:
    """The position is what finished turns have consumed, however much was drawn in the turn under way."""
    data = Data(Pairs())
    assert next(data) == [0, 1]
    assert (data.position, data.drawn) == (Position(), Position(1, 2))
    next(data)  # several a turn, under accumulation
    data.consume()
    next(data)
    assert data.position == Position(2, 4)
    assert data.capture() == {"batch": 2, "sample": 4, "unit": "sample", "source": {}}


def test_restore_goes_back_to_what_was_consumed() -> None:
    """What a broken-off turn has drawn is drawn again, and the workers of before are ended first."""
    source = Pairs()
    data = Data(source)
    next(data)
    data.consume()
    saved = data.capture()
    next(data)
    data.restore(saved, [])
    assert source.live == 0
    assert next(data) == [2, 3]
    assert source.live == 1


def test_load_and_save_without_a_turn_between() -> None:
    """A save right after a load gives the same position, any number of times (D01 of the cases)."""
    data = Data(FunctionSource(lambda place: place, seed=1))
    data.seek(Position(30, 33), [])
    saved = data.capture()
    for _ in range(3):
        data.restore(saved, [])
        assert data.capture() == saved
    assert next(data) == 33


def test_nothing_begins_before_the_first_next() -> None:
    """Seeking starts no workers: a rank that is restored twice starts them once."""
    source = Pairs()
    data = Data(source)
    data.seek(Position(3, 6), [])
    data.seek(Position(4, 8), [])
    assert source.live == 0
    assert next(data) == [8, 9]


def test_close_ends_what_was_begun() -> None:
    """After close no worker is left, and the next `next` begins again where the loop was."""
    source = Pairs()
    data = Data(source)
    next(data)
    data.close()
    data.close()
    assert source.live == 0
    assert next(data) == [2, 3]


def test_an_error_does_not_end_the_data() -> None:
    """A batch that can't be read is tried again at the next call, it is not passed over."""
    source = Pairs()
    source.fail_at = 2
    data = Data(source)
    next(data)
    for _ in range(2):
        with pytest.raises(OSError, match="no such sample"):
            next(data)
    assert source.live == 0
    source.fail_at = None
    assert next(data) == [2, 3]


def test_waits_are_timed() -> None:
    """The time inside `next` is counted, and counted once."""
    ticks = iter([100, 130, 200, 207, 300, 301])
    data = Data(Pairs(), clock_ns=lambda: next(ticks))
    next(data)
    next(data)
    assert data.take_wait_ns() == 37
    next(data)
    assert (data.take_wait_ns(), data.take_wait_ns()) == (1, 0)


def test_leave_out() -> None:
    """Skips hold from the consumed position on, and a later call withdraws those of the one before."""
    data = Data(FunctionSource(lambda place: place, seed=1))
    next(data)
    data.consume()
    next(data)
    data.leave_out([(3, 5), (1, 2), (4, 6)])
    assert [next(data) for _ in range(3)] == [2, 6, 7]
    data.leave_out([])
    assert next(data) == 1
    assert data.drawn == Position(2, 2)


def test_iter_is_the_data_itself() -> None:
    """A loop over the data draws from where it stands."""
    data = Data(Pairs())
    next(data)
    assert next(iter(data)) == [2, 3]


def test_state_is_captured_at_boundaries_only() -> None:
    """A source with state of its own can't be captured between a `next` and the end of its turn."""
    data = Data(StatefulSource(Counter(), seed=1))
    next(data)
    with pytest.raises(StateError, match=r"middle of a turn.*batch 1.*consumed 0"):
        data.capture()
    data.consume()
    assert data.capture()["source"] == {"place": 1, "state": {"at": 1}}


def test_positions_of_another_unit_are_refused() -> None:
    """Batches are never taken for samples."""
    with pytest.raises(StateMismatch, match=r"counts each sample, the data \(function\) counts each batch"):
        Data(FunctionSource(lambda place: place, seed=1)).restore(Data(Pairs()).capture(), [])


def test_description() -> None:
    """The journal is told what kind of data it is and how well it comes back."""
    assert Data(Pairs()).description == {
        "kind": "pairs",
        "unit": "sample",
        "length": 10,
        "level": "exact",
        "fingerprint": "pairs",
        "batch_size": 2,
    }


def test_loaders_by_name() -> None:
    """Several loaders move each at its own pace; the first one is the run's position, and skips are its own."""
    data = data_for({"text": lambda place: ("text", place), "images": lambda place: ("images", place)}, seed=1)
    assert isinstance(data, Loaders)
    assert list(data) == ["text", "images"]
    assert len(data) == 2
    data.leave_out([(1, 2)])
    drawn = [next(data["text"]), next(data["images"]), next(data["images"]), next(data["text"])]
    assert drawn == [("text", 0), ("images", 0), ("images", 1), ("text", 2)]
    data.consume()
    assert data.position == Position(2, 3)
    saved = data.capture()
    next(data["images"])
    data.restore(saved, [(3, 4)])
    assert [next(data["text"]), next(data["images"])] == [("text", 4), ("images", 2)]
    assert data.take_wait_ns() > 0
    data.close()


def test_loaders_have_seeds_of_their_own() -> None:
    """Two loaders over the same random function don't give the same numbers; one alone has the run's seed."""
    import random

    def draw(_: int) -> float:
        return random.random()

    both = data_for({"a": draw, "b": draw}, seed=1)
    assert isinstance(both, Loaders)
    assert next(both["a"]) != next(both["b"])
    alone = data_for(draw, seed=1)
    assert isinstance(alone, Data)
    assert next(alone) == next(Data(FunctionSource(draw, seed=1)))


def test_loaders_of_other_names_are_refused() -> None:
    """A snapshot of other loaders is refused before any of them has moved; no loader at all is a mistake."""
    saved = Loaders({"text": Data(Pairs())}).capture()
    with pytest.raises(StateMismatch, match="holds the loaders text, the run has words"):
        Loaders({"words": Data(Pairs())}).restore(saved, [])
    with pytest.raises(ConfigError, match="names no loader"):
        data_for({}, seed=1)


def test_description_of_loaders() -> None:
    """The first loader is described, and every fingerprint is told."""
    description = Loaders({"a": Data(Pairs()), "b": Data(StatefulSource(Counter(), seed=1))}).description
    assert (description["unit"], description["fingerprint"]) == ("sample", "a: pairs, b: Counter")
