"""The numbers a run counts by (formats §1): snapshots, lineages, and which of two is newer.

A *lineage* lists the branches that lead to a head, oldest first: `((1, 0), (2, 40))` says that
branch 1 began at step 0 and that branch 2 left it at step 40, so branch 1's turns from 40 on are
not part of it. A turn (branch, step) is *kept* if its branch is in the head's lineage and the step
lies before the next branch's `from_step`.
"""

from __future__ import annotations

from dataclasses import dataclass

Lineage = tuple[tuple[int, int], ...]
"""((branch, from_step), …), oldest first, so by growing branch; empty before the first state exists."""


@dataclass(frozen=True, slots=True, order=True)
class SnapshotId:
    """Names one consistent copy of the training state: the state before turn `step` of `branch`."""

    step: int
    branch: int

    def __str__(self) -> str:
        return f"step {self.step:,} (branch {self.branch})"


def fork(lineage: Lineage, at: SnapshotId, branch: int) -> Lineage:
    """Return the lineage of `branch`, opened by restoring the snapshot `at` of `lineage`.

    Raises ValueError if `at` is not on the lineage.
    """
    place = place_in(lineage, at)
    if place is None:
        raise ValueError(f"{at} is not on the lineage {lineage}")
    return (*lineage[: place + 1], (branch, at.step))


def place_in(lineage: Lineage, snapshot: SnapshotId) -> int | None:
    """Return the index of the snapshot's branch in the lineage, or None if it is not on it.

    The state *at* the next branch's first step is on the lineage: that branch began with it.
    """
    # From the head back: what is asked about is nearly always young, and a run of a year has many branches.
    for place in range(len(lineage) - 1, -1, -1):
        branch, from_step = lineage[place]
        if branch < snapshot.branch:
            return None
        if branch == snapshot.branch:
            after = lineage[place + 1][1] if place + 1 < len(lineage) else None
            inside = from_step <= snapshot.step and (after is None or snapshot.step <= after)
            return place if inside else None
    return None


def newness(lineage: Lineage, snapshot: SnapshotId) -> tuple[int, int]:
    """Sort key: the newest snapshot of a lineage is the last by (place, step); (-1, …) is off it."""
    place = place_in(lineage, snapshot)
    return (-1 if place is None else place, snapshot.step)
