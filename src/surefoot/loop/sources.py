"""Sources that need no framework: a function of the place, a sequence, an iterable, a stateful iterable.

Whatever code of the user's runs when something is drawn finds the main generators seeded from (seed,
place, rank) and leaves them as they were: what is drawn depends on its place, not on what was drawn
before, and drawing and discarding changes nothing else.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from surefoot.core.seeds import mix
from surefoot.core.skips import Batches, Range
from surefoot.errors import ConfigError, DataExhausted, StateError, StateMismatch
from surefoot.loop.data import Data, Loaders, Position, Source

_END = object()

Seeded = Callable[[int], AbstractContextManager[None]]
"""Runs a block with the main generators seeded by a number, and gives them back as they were."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run a block with Python's and, where loaded, NumPy's main generators seeded; give them back after."""
    numpy = sys.modules.get("numpy.random")  # a process without NumPy has no such generator to keep
    kept = random.getstate()
    kept_numpy = numpy.get_state(legacy=False) if numpy else None
    random.seed(seed)
    if numpy:
        numpy.seed(seed & 0xFFFF_FFFF)
    try:
        yield
    finally:
        random.setstate(kept)
        if numpy:
            numpy.set_state(kept_numpy)


class FunctionSource:
    """Data as a function of the place: `function(0)`, then `function(1)`, and so on.

    It may draw from the main generators: they are seeded from (seed, place, rank) around each call.
    """

    unit = "batch"
    level = "exact"
    batch_size = None

    def __init__(
        self,
        function: Callable[[int], Any],
        *,
        seed: int,
        rank: int = 0,
        length: int | None = None,
        kind: str = "function",
        fingerprint: str = "",
        seeded: Seeded = seeded,
    ) -> None:
        self.kind = kind
        self.length = length
        self.fingerprint = fingerprint or _name_of(function)
        self._function = function
        self._seed = seed
        self._rank = rank
        self._seeded = seeded

    def seek(self, position: Position, skips: Sequence[Range]) -> Generator[tuple[Any, Position], None, None]:
        """Yield the function's values from a position on."""
        places = Batches(1)
        batch, place = position.batch, position.sample
        while True:
            place, behind = places.after(place, skips)
            with self._seeded(mix(self._seed, place, self._rank)):
                item = self._function(place)
            batch, place = batch + 1, behind
            yield item, Position(batch, place)

    def capture(self) -> dict[str, Any]:
        """Return {}: a place is all it needs."""
        return {}

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Take up nothing."""


class IterableSource:
    """Data that can only be iterated: drawn again and discarded up to a position.

    What ends and can be iterated again goes on with its next epoch.
    """

    unit = "batch"
    level = "drawn"
    length = None
    batch_size = None

    def __init__(self, iterable: Iterable[Any], *, seed: int, rank: int = 0, seeded: Seeded = seeded) -> None:
        self.kind = self.fingerprint = _name_of(type(iterable))
        self._iterable = iterable
        self._seed = seed
        self._rank = rank
        self._seeded = seeded
        self._iterator: Iterator[Any] | None = None
        self._place = 0

    def seek(self, position: Position, skips: Sequence[Range]) -> Generator[tuple[Any, Position], None, None]:
        """Yield what the iterable gives from a position on, over its epochs.

        Raises `DataExhausted` where a one-shot iterator ends, or would have to go back.
        """
        if position.sample < self._place:
            self._rewind(position)
        places = Batches(1)
        batch, place = position.batch, position.sample
        while True:
            place, behind = places.after(place, skips)
            while self._place < place:
                self._draw()
            item = self._draw()
            batch, place = batch + 1, behind
            yield item, Position(batch, place)

    def capture(self) -> dict[str, Any]:
        """Return {}: what comes next is found by drawing up to it."""
        return {}

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Take up nothing."""

    def _rewind(self, position: Position) -> None:
        if self._iterator is self._iterable:
            raise DataExhausted(
                f"The data ({self.kind}) can't go back: batch {position.sample:,} is to be drawn again, "
                f"{self._place:,} were drawn already, and an iterator gives each only once. "
                "Pass something that can be iterated again (a list, a DataLoader, an object whose __iter__ "
                "starts over) or a function of the batch's number."
            )
        self._iterator = None  # first: it may hold workers, which should not live beside the new ones
        self._place = 0

    def _guarded(self) -> AbstractContextManager[None]:
        return self._seeded(mix(self._seed, self._place, self._rank))

    def _begin(self) -> None:
        # Seeded apart from the first draw: a loader that was asked for its state has begun before.
        with self._guarded():
            self._iterator = iter(self._iterable)

    def _next(self) -> Any:
        assert self._iterator is not None
        with self._guarded():
            return next(self._iterator, _END)

    def _draw(self) -> Any:
        if self._iterator is None:
            self._begin()
        item = self._next()
        if item is _END:
            self._begin()  # the next epoch
            item = self._next()
        if item is _END:
            raise DataExhausted(
                f"The data ({self.kind}) ended after {self._place:,} batches and begins no new epoch, but the "
                "loop asks for more. Expected data for every step. Pass something that can be iterated again "
                "(a list, a DataLoader, an object whose __iter__ starts over), or ask for fewer steps."
            )
        self._place += 1
        return item


class StatefulSource(IterableSource):
    """An iterable that tells its state: `state_dict()` and `load_state_dict(state)`.

    A restore loads the state, so nothing is drawn again.
    """

    level = "order_only"
    _iterable: Any  # with the two methods

    _loaded: dict[str, Any] | None = None
    """The state that was restored, until something is drawn from it."""

    def capture(self) -> dict[str, Any]:
        """Return the iterable's state and how many batches it has given."""
        # An iterable that has just loaded a state need not be able to tell it before it has begun.
        if self._loaded is None:
            with self._guarded():  # torchdata starts its workers to tell the first state, with a random seed
                return {"place": self._place, "state": self._iterable.state_dict()}
        return self._loaded

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Load a state. Raises `StateMismatch` if there is none."""
        if "state" not in plain:
            raise StateMismatch(
                f"The snapshot holds no state of the data ({self.kind}), made with data of another kind. "
                "Expected the same kind as before. Go back to it, or start over with --fresh."
            )
        self._iterator = None
        self._iterable.load_state_dict(plain["state"])
        self._place = plain["place"]
        self._loaded = dict(plain)

    def _rewind(self, position: Position) -> None:
        raise StateError(
            f"The data ({self.kind}) is at batch {self._place:,} and can go back to {position.sample:,} only "
            "by loading the state it had there. Restore a snapshot, not the position alone."
        )

    def _draw(self) -> Any:
        self._loaded = None
        return super()._draw()


def source_for(data: Any, *, seed: int, rank: int = 0, world_size: int = 1, seeded: Seeded = seeded) -> Source:
    """Return a source for whatever can be read without torch.

    `rank` and `world_size` count the ranks that load different data. Raises `ConfigError` for the rest.
    """
    del world_size  # nothing here has samples to share among ranks: each rank reads its own data
    if isinstance(data, Source):
        return data
    text = isinstance(data, str | bytes)  # most likely a path
    if isinstance(data, Sequence) and data and not text:
        return FunctionSource(
            lambda place: data[place % len(data)],
            seed=seed,
            rank=rank,
            length=len(data),
            kind="sequence",
            fingerprint=f"{type(data).__name__}[{len(data)}]",
            seeded=seeded,
        )
    if hasattr(data, "__iter__") and not text:
        stateful = hasattr(data, "state_dict") and hasattr(data, "load_state_dict")
        kind = StatefulSource if stateful else IterableSource
        return kind(data, seed=seed, rank=rank, seeded=seeded)
    if callable(data):
        return FunctionSource(data, seed=seed, rank=rank, seeded=seeded)
    raise ConfigError(
        f"data= is a {_name_of(type(data))}, which can't be read batch by batch. Expected a DataLoader, a "
        "sequence of batches, something to iterate, or a function of the batch's number. "
        "Wrap a dataset in a DataLoader."
    )


def data_for(
    data: Any, *, seed: int, rank: int = 0, world_size: int = 1, find: Callable[..., Source] = source_for
) -> Data | Loaders:
    """Return what the loop reads: `Loaders` for a mapping of names, each with its own seed, else `Data`."""
    if isinstance(data, Mapping):
        return Loaders(
            {
                name: Data(find(one, seed=mix(seed, *name.encode()), rank=rank, world_size=world_size))
                for name, one in data.items()
            }
        )
    return Data(find(data, seed=seed, rank=rank, world_size=world_size))


def _name_of(thing: Any) -> str:
    while hasattr(thing, "func"):  # functools.partial
        thing = thing.func
    name = getattr(thing, "__qualname__", None) or type(thing).__qualname__
    return str(name)
