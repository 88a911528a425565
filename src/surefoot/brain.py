"""The brain: stamp, append, advance, order. The only live caller of `advance`.

Lines are appended in the order in which they advance, by a child that may block (the scribe); the
brain goes on meanwhile. An order is carried out once its line is durable, or, if the store is
silent, after `SILENT_NS`: a sick file system never holds an action, and a `condition_seen` says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from surefoot.core.advance import Advice, advance
from surefoot.core.events import ConditionSeen, Event, Line, Ordered, StepDone
from surefoot.core.state import Pending, RunState
from surefoot.journal.codec import decode, encode

SILENT_NS = 5_000_000_000


class Scribe(Protocol):
    """Appends lines somewhere durable, in its own time."""

    def append(self, first_seq: int, lines: list[bytes], *, sync: bool) -> None:
        """Take lines with consecutive seqs from `first_seq` on; `sync` asks for an fsync at once."""
        ...


class Clock:
    """The brain's clock: Unix time at the start of the term, CLOCK_MONOTONIC from there on."""

    def __init__(self, unix_ns: int, monotonic_ns: Callable[[], int], not_before_ns: int = 0) -> None:
        self._monotonic_ns = monotonic_ns
        self.offset_ns = max(unix_ns, not_before_ns) - monotonic_ns()
        """What to add to CLOCK_MONOTONIC of this node."""

    def now_ns(self) -> int:
        """Return the time; it never goes back."""
        return self._monotonic_ns() + self.offset_ns


class Brain:
    """One run's judgement, live."""

    def __init__(self, state: RunState, scribe: Scribe, clock: Clock, node: str) -> None:
        self.state = state
        self._scribe = scribe
        self._clock = clock
        self._node = node
        self._durable = state.seq
        self._batch: list[bytes] = []
        self._sync = False
        self._waiting: deque[tuple[int, int, Pending]] = deque()
        """(seq, at_ns, order) of orders whose line isn't durable yet."""

    def tell(self, event: Event, origin: tuple[int, int] | None = None) -> None:
        """Take in what has happened: journal it, advance, and order what that leads to.

        A line that a rank sends a second time (its agent was replaced) is known by its origin.
        """
        if origin is not None and origin[1] <= self.state.heard.get(str(origin[0]), 0):
            return
        for advice in self._advance(event, origin):
            number = self.state.orders + 1
            ordered = Ordered(order=number, body=advice.body, reason=advice.reason, fault=advice.fault)
            self._advance(ordered, None)
            pending = Pending(order=number, body=advice.body, reason=advice.reason)
            self._waiting.append((self.state.seq, self.state.at_ns, pending))

    def _advance(self, event: Event, origin: tuple[int, int] | None) -> tuple[Advice, ...]:
        now_ns = max(self._clock.now_ns(), self.state.at_ns)
        raw = encode(Line(self.state.seq + 1, now_ns, event, origin))
        # What a fold will read, not what we hold: a text that was cut is cut for both.
        self.state, advice = advance(self.state, decode(raw))
        self._batch.append(raw)
        self._sync = self._sync or not isinstance(event, StepDone)
        return advice

    def flush(self) -> None:
        """Hand what was told since the last call to the scribe."""
        if self._batch:
            first = self.state.seq - len(self._batch) + 1
            self._scribe.append(first, self._batch, sync=self._sync)
            self._batch, self._sync = [], False

    def durable(self, seq: int) -> None:
        """Take note that every line up to `seq` is on disk."""
        self._durable = max(self._durable, seq)

    @property
    def is_settled(self) -> bool:
        """Whether everything told so far is on disk, or the store has been silent for too long."""
        if not self._batch and self._durable >= self.state.seq:
            return True
        return self._clock.now_ns() - self.state.at_ns >= SILENT_NS

    def due(self) -> list[Pending]:
        """Return the orders that may be carried out now, oldest first; each is returned once."""
        orders = []
        now_ns = self._clock.now_ns()
        silent = False
        while self._waiting:
            seq, at_ns, pending = self._waiting[0]
            if seq > self._durable:
                if now_ns - at_ns < SILENT_NS:
                    break
                silent = True
            self._waiting.popleft()
            orders.append(pending)
        if silent:
            text = (
                "the run directory did not take a line for 5 s; orders are carried out without waiting for it"
            )
            self.tell(ConditionSeen(node=self._node, device=None, kind="store_silent", text=text))
        return orders
