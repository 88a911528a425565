"""Which checkpoints may be deleted."""

from __future__ import annotations

import pytest

from surefoot.core.numbers import Lineage, SnapshotId
from surefoot.core.retention import prunable
from surefoot.core.snapshots import Snapshot

LINE: Lineage = ((1, 0),)


def saved(step: int, mark: str = "", branch: int = 1, *, pinned: bool = False, tier: str = "DISK") -> Snapshot:
    return Snapshot(id=SnapshotId(step, branch), tiers=(tier,), mark=mark, pinned=pinned)


def steps(catalogue: list[Snapshot], keep: int, lineage: Lineage = LINE) -> list[int]:
    return [id.step for id in prunable(catalogue, lineage, keep)]


def test_the_newest_stay() -> None:
    """With enough good ones behind them, all but the newest `keep` may go, oldest first."""
    catalogue = [saved(step, "good") for step in (900, 100_000, 1_000, 9_000, 10_000)]
    assert steps(catalogue, 2) == [900, 1_000, 9_000]
    assert steps(catalogue, 4) == [900]


@pytest.mark.parametrize("keep", [1, 2])
def test_two_good_ones_always_stay(keep: int) -> None:
    """The two newest good ones stay, whatever `keep` is and however many newer ones are on probation."""
    catalogue = [saved(10, "good"), saved(20, "good"), saved(30, "good"), saved(40), saved(50), saved(60)]
    assert steps(catalogue, keep) == [10, 40]


def test_the_beginning_stays_until_two_later_ones_are_good() -> None:
    """The state at step 0 stays while fewer than two later ones are good."""
    catalogue = [saved(0, "good"), saved(10, "good"), saved(20), saved(30), saved(40)]
    assert steps(catalogue, 2) == [20]
    catalogue[2] = saved(20, "good")
    assert steps(catalogue, 2) == [0]


def test_pinned_and_suspect_ones_stay() -> None:
    """What a person pinned and what is suspect (evidence) is never deleted."""
    catalogue = [saved(1, pinned=True), saved(2, "suspect"), saved(3), *(saved(n, "good") for n in (4, 5, 6))]
    assert steps(catalogue, 2) == [3, 4]


def test_suspects_do_not_take_the_place_of_usable_ones() -> None:
    """`keep` counts what could be restored: with the three newest suspect, the newest usable one stays."""
    catalogue = [saved(0, "good"), saved(50), *(saved(step, "suspect") for step in (100, 200, 300))]
    assert steps(catalogue, 3) == []


def test_what_was_rolled_back_goes_first() -> None:
    """A checkpoint of a branch that was left is older than every one of the lineage."""
    lineage = ((1, 0), (2, 20))
    catalogue = [saved(30), saved(40), saved(10, "good"), saved(20, "good"), saved(25, branch=2)]
    assert steps(catalogue, 2, lineage) == [30, 40]


def test_good_ones_of_another_history_protect_nothing() -> None:
    """A good mark on a branch that was left doesn't count as one of the two."""
    lineage = ((1, 0), (2, 20))
    catalogue = [
        saved(10, "good"),
        saved(15, "good"),
        saved(30, "good"),
        saved(40, "good"),
        saved(25, branch=2),
    ]
    assert steps(catalogue, 1, lineage) == [30, 40]


def test_minus_one_keeps_all() -> None:
    """With keep = -1 nothing is deleted (D18)."""
    assert steps([saved(step, "good") for step in range(50)], -1) == []


def test_only_what_is_on_disk_is_deleted_from_there() -> None:
    """A snapshot that is in a bucket alone is none of the disk's."""
    catalogue = [saved(1, tier="BUCKET"), *(saved(step, "good") for step in (2, 3, 4))]
    assert steps(catalogue, 2) == [2]
