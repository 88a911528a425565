"""The loss of a run as its final lineage has it, what was computed and then discarded, and where it restarted.

A turn is kept if its branch leads to the head and it lies before the next branch began (formats §1); the
others were real work too, and are shown beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from surefoot.core.events import Line, Ordered, Restored, RunEnded, StepDone, WorkerExited
from surefoot.core.numbers import Lineage
from surefoot.core.orders import Rollback

Points = tuple[tuple[int, float], ...]
"""(step, loss), by step; a loss may be NaN or infinite."""

START, RESTART, RESUME, ROLLBACK = "start", "restart", "resume", "rollback"


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """Turns of one branch that are not part of the head's lineage."""

    branch: int
    points: Points


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A place where a branch began."""

    step: int
    branch: int
    kind: str
    """start (at step 0), restart (after a fault), resume (after an end), rollback."""
    tier: str | None
    again: int
    """Turns after it that had been done already, and are done again."""
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The loss over the steps."""

    kept: Points
    discarded: tuple[Discarded, ...]
    marks: tuple[Mark, ...]


def curve(lines: Iterable[Line]) -> Curve:
    """Return the curve of a journal; turns without a loss are in none of its points."""
    turns: dict[int, list[tuple[int, float]]] = {}
    marks: list[Mark] = []
    rollbacks: set[int] = set()
    lineage: Lineage = ()
    step, faulty = 0, False
    for line in lines:
        match line.event:
            case StepDone() as event:
                step = event.step + 1
                if event.loss is not None:
                    turns.setdefault(event.branch, []).append((event.step, event.loss))
            case WorkerExited():
                faulty = True
            case RunEnded():
                # A run that was given up after a fault is started again because of the fault all the same.
                faulty = faulty and line.event.word == "failed"
            case Ordered(order=order, body=Rollback()):
                rollbacks.add(order)
            case Restored() as event:
                lineage = event.lineage
                kind = ROLLBACK if event.order in rollbacks else RESTART if faulty else RESUME
                kind = START if event.tier is None else kind
                marks.append(
                    Mark(
                        step=event.step,
                        branch=event.branch,
                        kind=kind,
                        tier=event.tier,
                        again=max(0, step - event.step),
                        at_ns=line.at_ns,
                    )
                )
                step, faulty = event.step, False
    ends = _ends(lineage)
    kept = [point for branch in ends for point in turns.get(branch, ()) if point[0] < ends[branch]]
    discarded = []
    for branch in sorted(turns):
        points = tuple(point for point in turns[branch] if point[0] >= ends.get(branch, 0))
        if points:
            discarded.append(Discarded(branch=branch, points=points))
    return Curve(kept=tuple(kept), discarded=tuple(discarded), marks=tuple(marks))


def _ends(lineage: Lineage) -> dict[int, float]:
    """Return branch → the first step that is no longer its own, for the branches that lead to the head."""
    after = (*lineage[1:], (0, math.inf))
    return {branch: end for (branch, _), (_, end) in zip(lineage, after, strict=False)}
