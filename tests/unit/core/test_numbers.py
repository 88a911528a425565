"""Snapshots and lineages: what is on the way to a head, and which of two is newer."""

from __future__ import annotations

import pytest

from surefoot.core.numbers import SnapshotId, fork, newness, place_in

LINEAGE = ((1, 0), (2, 40), (4, 40), (5, 70))
"""Branch 2 was left where it began; branch 3 led nowhere."""


def at(step: int, branch: int) -> SnapshotId:
    return SnapshotId(step, branch)


@pytest.mark.parametrize(
    ("snapshot", "place"),
    [
        (at(0, 1), 0),
        (at(39, 1), 0),
        (at(40, 1), 0),
        (at(41, 1), None),
        (at(40, 2), 1),
        (at(41, 2), None),
        (at(50, 3), None),
        (at(39, 4), None),
        (at(70, 4), 2),
        (at(71, 4), None),
        (at(70, 5), 3),
        (at(10**12, 5), 3),
    ],
)
def test_place_in(snapshot: SnapshotId, place: int | None) -> None:
    """A branch counts from where it began to the state with which the next one begins; the head has no end."""
    assert place_in(LINEAGE, snapshot) == place


def test_nothing_is_on_an_empty_lineage() -> None:
    """Before the first state exists no snapshot is on the lineage."""
    assert place_in((), at(0, 1)) is None


def test_newer_is_later_in_the_lineage_then_in_step() -> None:
    """A later branch is newer whatever its steps, and what is off the lineage is older than all of it."""
    ordered = [at(99, 3), at(0, 1), at(40, 1), at(40, 2), at(40, 4), at(70, 4), at(70, 5), at(71, 5)]
    backwards = ordered[::-1]
    assert sorted(backwards, key=lambda each: newness(LINEAGE, each)) == ordered


def test_newest_is_by_number_never_by_name() -> None:
    """Of steps 900 to 100,000 the newest is 100,000, in whatever order they are found (D18)."""
    found = [at(step, 1) for step in (9_000, 100_000, 900, 10_000, 1_000)]
    assert max(found, key=lambda each: newness(((1, 0),), each)) == at(100_000, 1)


def test_a_fork_leaves_what_it_does_not_descend_from() -> None:
    """The lineage of a new branch ends where it was forked, and goes on with the branch."""
    assert fork(LINEAGE, at(60, 4), 6) == ((1, 0), (2, 40), (4, 40), (6, 60))
    assert fork(LINEAGE, at(40, 1), 6) == ((1, 0), (6, 40))
    assert fork(LINEAGE, at(90, 5), 6) == (*LINEAGE, (6, 90))


def test_no_fork_from_what_is_not_on_the_lineage() -> None:
    """A fork from a turn that was rolled back raises and names it."""
    with pytest.raises(ValueError, match=r"step 41 \(branch 1\) is not on the lineage"):
        fork(LINEAGE, at(41, 1), 6)


def test_a_snapshot_is_named_for_people() -> None:
    """A snapshot's text has its step in groups of three and its branch."""
    assert str(at(12_000, 3)) == "step 12,000 (branch 3)"
