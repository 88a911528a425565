"""Journals told event by event: lines, and the state that they fold to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from surefoot.core.advance import advance
from surefoot.core.events import (
    AttemptJoined,
    AttemptStarted,
    Event,
    Line,
    OrderDone,
    Ordered,
    Restored,
    SnapshotCommitted,
    StepDone,
    TermStarted,
)
from surefoot.core.numbers import Lineage, SnapshotId
from surefoot.core.orders import DISK, Restart
from surefoot.core.state import RunState

BEGAN_NS = 1_700_000_000_000_000_000
S = 1_000_000_000


class Tale:
    """A journal that is being told."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.state = RunState()
        self.now_ns = BEGAN_NS

    def tell(self, *events: Event, after_s: float = 0.0) -> Tale:
        """Append events, the first of them so long after the last line."""
        self.now_ns += int(after_s * S)
        for event in events:
            line = Line(len(self.lines) + 1, self.now_ns, event)
            self.lines.append(line)
            self.state, _ = advance(self.state, line)
        return self

    def term(self, number: int = 1, **about: Any) -> Tale:
        """Begin a term."""
        after = {"term": number - 1, "seq": len(self.lines)}
        return self.tell(TermStarted(format=1, term=number, after=after, node="n0"), **about)

    def attempt(
        self,
        step: int = 0,
        lineage: Lineage = ((1, 0),),
        *,
        tier: str | None = None,
        level: str = "exact",
        changed: Sequence[dict[str, Any]] = (),
        passed_over: Sequence[dict[str, Any]] = (),
        fault: dict[str, Any] | None = None,
    ) -> Tale:
        """Start the next attempt: ordered, on record, joined, restored."""
        number, order = self.state.attempt.number + 1, self.state.orders + 1
        source = SnapshotId(step, lineage[-2][0]) if len(lineage) > 1 else None
        data = {"kind": "function", "unit": "batch", "level": level}
        self.tell(Ordered(order=order, body=Restart(), reason="started", fault=fault))
        self.tell(
            AttemptStarted(attempt=number, world_size=2, nodes=("n0",), restore=source, order=order),
            AttemptJoined(
                attempt=number, layout="", data=data, code={"script": "gpt/train.py"}, changed=tuple(changed)
            ),
        )
        self.tell(
            Restored(
                branch=lineage[-1][0], lineage=lineage, step=step, batch=step, sample=step, tier=tier,
                passed_over=tuple(passed_over), took_ns=S // 5, order=order,
            ),
            OrderDone(order=order),
            after_s=0.5,
        )  # fmt: skip
        return self

    def turns(
        self, until: int, each_s: float = 0.1, loss: Callable[[int], float | None] = lambda step: 1 / (step + 1)
    ) -> Tale:
        """Do turns on the head up to, and without, `until`."""
        for step in range(self.state.step, until):
            self.now_ns += int(each_s * S)
            done = StepDone(
                branch=self.state.lineage[-1][0], step=step, batch=step + 1, sample=step + 1,
                loss=loss(step), grad_norm=0.5, lr=1e-3, end_ns=self.now_ns,
            )  # fmt: skip
            self.tell(done)
        return self

    def commit(self, step: int, branch: int = 1, **about: Any) -> Tale:
        """Make a snapshot durable."""
        size, took_ns = 3 << 20, 2 * S
        return self.tell(
            SnapshotCommitted(step=step, branch=branch, tier=DISK, bytes=size, write_ns=took_ns), **about
        )


def trained(until: int = 100) -> Tale:
    """Return a new run in its first attempt that has done turns, with its first state durable."""
    return Tale().term().attempt().commit(0).turns(until)
