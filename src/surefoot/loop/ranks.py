"""What a run needs of the ranks: sum a small vector, broadcast bytes from rank 0 (formats §7, agree)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Scalar = Any
"""A number, or a device scalar that becomes one later without a sync now."""


class Pending(Protocol):
    """A sum under way."""

    def result(self) -> list[float]:
        """Wait for the sum and return it. Raises `RanksError` at the deadline, naming who is missing."""
        ...


class Ranks(Protocol):
    """The group of ranks that act at the same boundaries."""

    rank: int
    world_size: int
    local_rank: int

    def read(self, value: Scalar) -> Scalar:
        """Detach and copy a logged value now, on the current stream, without a device sync."""
        ...

    def start_sum(self, vector: Sequence[Scalar]) -> Pending:
        """Start summing a short vector of float64 over all ranks; one such sum per boundary."""
        ...

    def broadcast(self, data: bytes | None) -> bytes:
        """Return rank 0's bytes on every rank (length first, then the bytes)."""
        ...


class Done:
    """The sum over a single process: there is nothing to wait for."""

    def __init__(self, vector: Sequence[Scalar]) -> None:
        self._values = [float(value) for value in vector]

    def result(self) -> list[float]:
        """Return it."""
        return self._values


class OneRank:
    """A job of a single process without a communicator."""

    rank = 0
    world_size = 1
    local_rank = 0

    def read(self, value: Scalar) -> Scalar:
        """Return the value as a float."""
        return float(value)

    def start_sum(self, vector: Sequence[Scalar]) -> Pending:
        """Return the vector itself: the sum over one rank."""
        return Done(vector)

    def broadcast(self, data: bytes | None) -> bytes:
        """Return the bytes given."""
        if data is None:
            raise ValueError("rank 0 has to give the bytes to broadcast")
        return data
