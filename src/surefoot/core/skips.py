"""The arithmetic of the data order: where the next batch lies, given epochs, tails and skipped ranges.

Samples are places in the order over all epochs (formats §1): with `length` places an epoch, epoch e
is [e × length, (e + 1) × length). A batch is a range [start, stop) inside one epoch. Places are never
renumbered: a tail that is dropped and a range that is skipped keep theirs, so a place means the same
sample whatever was left out before it, and the next batch follows from the position alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from surefoot.errors import ConfigError

Range = tuple[int, int]
"""[start, stop), half-open."""

_stop_of = itemgetter(1)


def merge(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return the normal form: in order, none empty, none that overlaps or touches the one before."""
    merged: list[Range] = []
    for start, stop in sorted(ranges):
        if start >= stop:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return tuple(merged)


@dataclass(frozen=True, slots=True)
class Batches:
    """How an order is cut into batches; raises `ConfigError` if no epoch would hold one."""

    batch_size: int
    """Of the global batch, in places; a multiple of `parts`."""
    length: int | None = None
    """Places per epoch; None for an order without end."""
    drop_last: bool = False
    """Whether the short tail of an epoch is left out; else it is a batch, cut down to a multiple of `parts`."""
    parts: int = 1
    """Ranks that share each batch in equal parts."""

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.parts < 1 or self.batch_size % self.parts:
            raise ConfigError(
                f"A global batch of {self.batch_size} can't be shared by {self.parts} ranks. "
                "Expected equal parts of one sample or more. Choose a batch size that the ranks divide."
            )
        if self.length is not None and self.length < self._least:
            raise ConfigError(
                f"An epoch of {self.length} samples holds no batch: a batch needs {self._least} "
                f"(global batch {self.batch_size}, {self.parts} ranks, drop_last={self.drop_last}). "
                "Use a smaller batch, more data or drop_last=False."
            )

    @property
    def _least(self) -> int:
        return self.batch_size if self.drop_last else self.parts

    def after(self, sample: int, skips: Sequence[Range]) -> Range:
        """Return the first batch that begins at `sample` or behind it and touches no skipped range.

        `skips` has to be in normal form (`merge`). A batch that would touch one begins behind it; what
        lies between is left out too. Costs O(log skips), once more for each range it passes.
        """
        start = sample
        while True:
            start, stop = self._cut(start)
            ahead = bisect_right(skips, start, key=_stop_of)
            if ahead == len(skips) or stop <= skips[ahead][0]:
                return start, stop
            start = skips[ahead][1]

    def part(self, batch: Range, rank: int) -> Range:
        """Return the part of a batch that a rank gets: the parts, in order, are the batch."""
        size = (batch[1] - batch[0]) // self.parts
        start = batch[0] + rank * size
        return start, start + size

    def _cut(self, start: int) -> Range:
        """Return the first batch at `start` or behind it as the edges of the epochs allow."""
        if self.length is None:
            return start, start + self.batch_size
        left = self.length - start % self.length
        if left < self._least:
            start, left = start + left, self.length
        size = self.batch_size if left >= self.batch_size else left - left % self.parts
        return start, start + size
