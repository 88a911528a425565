"""The catalogue of durable snapshots."""

from __future__ import annotations

from surefoot.core.numbers import SnapshotId
from surefoot.core.snapshots import Snapshot, caught_up, find, marked, put

ONE, TWO = SnapshotId(10, 1), SnapshotId(20, 1)
CATALOGUE = (Snapshot(id=ONE, tiers=("DISK",)), Snapshot(id=TWO, tiers=("DISK",)))


def marks(catalogue: tuple[Snapshot, ...]) -> dict[int, tuple[str, bool]]:
    return {snapshot.id.step: (snapshot.mark, snapshot.pinned) for snapshot in catalogue}


def test_find() -> None:
    """A snapshot is found by step and branch."""
    assert find(CATALOGUE, TWO) is CATALOGUE[1]
    assert find(CATALOGUE, SnapshotId(20, 2)) is None


def test_put_replaces_its_like() -> None:
    """A snapshot of the same name takes the other's place; a new one comes last."""
    again, other = Snapshot(id=ONE, tiers=("BUCKET", "DISK")), Snapshot(id=SnapshotId(10, 2))
    assert put(CATALOGUE, again) == (again, CATALOGUE[1])
    assert put(CATALOGUE, other) == (*CATALOGUE, other)


def test_marks() -> None:
    """Good, suspect and pinned are told apart: a pin survives a verdict, and the other way round."""
    pinned = marked(CATALOGUE, ONE, "pinned")
    assert marks(pinned) == {10: ("", True), 20: ("", False)}
    assert marks(marked(pinned, ONE, "suspect")) == {10: ("suspect", True), 20: ("", False)}
    assert marks(marked(marked(pinned, ONE, "good"), ONE, "unpinned")) == {10: ("good", False), 20: ("", False)}


def test_gone() -> None:
    """What is gone is no longer in the catalogue; a mark of what isn't there changes nothing."""
    assert marked(CATALOGUE, ONE, "gone") == (CATALOGUE[1],)
    assert marked(CATALOGUE, SnapshotId(5, 5), "good") == CATALOGUE


def test_a_turn_that_is_told_late_counts_for_the_snapshots_behind_it() -> None:
    """The time of a turn goes to its branch's snapshots behind it, and to no other."""
    other = Snapshot(id=SnapshotId(30, 2))
    late = caught_up((*CATALOGUE, other), branch=1, step=10, ns=7)
    assert [snapshot.kept_ns for snapshot in late] == [0, 7, 0]
