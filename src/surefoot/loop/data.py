"""The data of a run: where it is, and how to be there again.

A `Source` can be read from any position: that is all a resume, a rollback and a skip need. `Data` reads
one and counts: `drawn` is what the loop was handed, `position` what finished turns have consumed, and
only the latter is saved. What a loader fetches ahead of the loop counts for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from surefoot.core.skips import Range, merge
from surefoot.errors import ConfigError, StateError, StateMismatch

LEVELS = ("exact", "order_only", "drawn")
"""What a seek brings back: all of it, the order with other random draws in it, what reading up to it gives."""


@dataclass(frozen=True, slots=True)
class Position:
    """What would be drawn next (formats §1); the same on every rank that loads."""

    batch: int = 0
    """Calls of `next` before it."""
    sample: int = 0
    """Its place in the order over all epochs, or a place before it with nothing to be fed between."""


@runtime_checkable
class Source(Protocol):
    """Data that can be read from any position."""

    @property
    def kind(self) -> str:
        """What it reads, for people."""
        ...

    @property
    def unit(self) -> str:
        """What places count: "sample", or "batch" where there are no samples to tell apart."""
        ...

    @property
    def length(self) -> int | None:
        """Places per epoch, where known."""
        ...

    @property
    def level(self) -> str:
        """What a seek brings back, one of `LEVELS`."""
        ...

    @property
    def fingerprint(self) -> str:
        """A word that changes when the data does, the same in every process of the run."""
        ...

    @property
    def batch_size(self) -> int | None:
        """Samples of the global batch; None where `unit` is "batch"."""
        ...

    def seek(self, position: Position, skips: Sequence[Range]) -> Generator[tuple[Any, Position], None, None]:
        """Yield what comes from a position on, without end, each with the position behind it.

        `skips` are in normal form (`core.skips.merge`). Nothing begins before the first `next`; closing the
        generator frees what it holds. Only the newest one may be used. Raises `DataExhausted` at an end.
        """
        ...

    def capture(self) -> dict[str, Any]:
        """Return state that a seek can't derive, as plain values with tensors; {} if there is none."""
        ...

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Take up a captured state; nobody reads the source, and a `seek` to that state's position follows."""
        ...


class Data:
    """What the loop calls `next` on: one source, read from a position on."""

    def __init__(self, source: Source, *, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.source = source
        self.position = Position()
        """What finished turns have consumed."""
        self.drawn = Position()
        """The position behind the newest `next`."""
        self._skips: tuple[Range, ...] = ()
        self._draws: Generator[tuple[Any, Position], None, None] | None = None
        self._clock_ns = clock_ns
        self._waited_ns = 0

    def __iter__(self) -> Data:
        return self

    def __next__(self) -> Any:
        """Return the next batch. After an error the same one is tried again."""
        began_ns = self._clock_ns()
        if self._draws is None:
            self._draws = self.source.seek(self.drawn, self._skips)
        try:
            item, self.drawn = next(self._draws)
        except BaseException:
            self._draws = None  # a generator that raised is over
            raise
        self._waited_ns += self._clock_ns() - began_ns
        return item

    def consume(self) -> None:
        """Count what was drawn as consumed: a turn is finished."""
        self.position = self.drawn

    def take_wait_ns(self) -> int:
        """Return how long the loop has waited for data since the last call."""
        waited_ns, self._waited_ns = self._waited_ns, 0
        return waited_ns

    def seek(self, position: Position, skips: Iterable[Range]) -> None:
        """Go to a position and leave out `skips` from there on; loader workers of before are ended."""
        self.close()
        self.position = self.drawn = position
        self._skips = merge(skips)

    def leave_out(self, skips: Iterable[Range]) -> None:
        """Leave out `skips`, and no others, from the consumed position on."""
        self.seek(self.position, skips)

    def capture(self) -> dict[str, Any]:
        """Return the consumed position and the source's own state, to be stored in a snapshot.

        Raises `StateError` in the middle of a turn if the source has state: it can't be taken back.
        """
        own = self.source.capture()
        if own and self.drawn != self.position:
            raise StateError(
                f"The data's state was asked for in the middle of a turn: {self.source.kind} stands at batch "
                f"{self.drawn.batch:,}, finished turns have consumed {self.position.batch:,}. "
                "Capture at a boundary, after `consume`."
            )
        position = {"batch": self.position.batch, "sample": self.position.sample}
        return {**position, "unit": self.source.unit, "source": own}

    def restore(self, plain: Mapping[str, Any], skips: Iterable[Range]) -> None:
        """Go back to what `capture` returned, leaving out `skips` from there on.

        Raises `StateMismatch` if the positions of the two count different things.
        """
        if plain["unit"] != self.source.unit:
            raise StateMismatch(
                f"The snapshot's data position counts each {plain['unit']}, the data ({self.source.kind}) "
                f"counts each {self.source.unit}. Expected the same kind of data as before. "
                "Go back to it, or start over with --fresh."
            )
        self.close()
        self.source.restore(plain["source"])
        self.seek(Position(plain["batch"], plain["sample"]), skips)

    def close(self) -> None:
        """End the workers that reading has started, if any; the next `next` starts them again."""
        if self._draws is not None:
            self._draws.close()
            self._draws = None

    @property
    def description(self) -> dict[str, Any]:
        """What the journal says of the data (formats §4, attempt_joined)."""
        source = self.source
        return {
            "kind": source.kind,
            "unit": source.unit,
            "length": source.length,
            "level": source.level,
            "fingerprint": source.fingerprint,
            "batch_size": source.batch_size,
        }


class Loaders(Mapping[str, Data]):
    """Several loaders by name, `next(run.data["text"])`; the first one's position is the run's.

    Skips are ranges of the first one's places: the others count other things.
    """

    def __init__(self, by_name: Mapping[str, Data]) -> None:
        if not by_name:
            raise ConfigError(
                "data={} names no loader. Expected one or more. Leave `data` out if there is none"
            )
        self._by_name = dict(by_name)
        self._first = next(iter(self._by_name.values()))

    def __getitem__(self, name: str) -> Data:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def position(self) -> Position:
        """What finished turns have consumed of the first loader."""
        return self._first.position

    @property
    def description(self) -> dict[str, Any]:
        """What the journal says of the first loader, with every fingerprint and the least of their levels."""
        prints = [f"{name}: {data.source.fingerprint}" for name, data in self.items()]
        level = max((data.source.level for data in self.values()), key=LEVELS.index)
        return {**self._first.description, "level": level, "fingerprint": ", ".join(prints)}

    def consume(self) -> None:
        """Count what was drawn from every loader as consumed."""
        for data in self.values():
            data.consume()

    def take_wait_ns(self) -> int:
        """Return how long the loop has waited for any of them since the last call."""
        return sum(data.take_wait_ns() for data in self.values())

    def leave_out(self, skips: Iterable[Range]) -> None:
        """Leave out ranges of the first loader from its consumed position on."""
        self._first.leave_out(skips)

    def capture(self) -> dict[str, Any]:
        """Return every loader's state by name."""
        return {name: data.capture() for name, data in self.items()}

    def restore(self, plain: Mapping[str, Any], skips: Iterable[Range]) -> None:
        """Go back to what `capture` returned. Raises `StateMismatch` if the names are others."""
        if plain.keys() != self.keys():
            raise StateMismatch(
                f"The snapshot holds the loaders {', '.join(plain)}, the run has {', '.join(self)}. "
                "Expected the same names. Name them as before, or start over with --fresh."
            )
        for name, data in self.items():
            data.restore(plain[name], skips if data is self._first else ())

    def close(self) -> None:
        """End the workers of every loader."""
        for data in self.values():
            data.close()
