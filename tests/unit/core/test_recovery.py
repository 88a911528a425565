"""Which snapshot a restart goes on from."""

from __future__ import annotations

from surefoot.core.numbers import SnapshotId
from surefoot.core.recovery import candidates
from surefoot.core.snapshots import Snapshot


def at(step: int, branch: int = 1) -> SnapshotId:
    return SnapshotId(step, branch)


def on_disk(*ids: SnapshotId, tiers: tuple[str, ...] = ("DISK",), mark: str = "") -> tuple[Snapshot, ...]:
    return tuple(Snapshot(id=id, tiers=tiers, mark=mark) for id in ids)


def test_newest_first() -> None:
    """Of steps 900 to 100,000 the newest comes first, whatever the order of the catalogue (D18)."""
    catalogue = on_disk(*(at(step) for step in (9_000, 100_000, 900, 10_000, 1_000)))
    found = candidates(((1, 0),), catalogue, (), branch=2)
    assert [each.id.step for each in found] == [100_000, 10_000, 9_000, 1_000, 900]


def test_a_candidate_carries_its_lineage() -> None:
    """Each candidate has the lineage of the branch that restoring it would open."""
    newest, oldest = candidates(((1, 0), (2, 40)), on_disk(at(30), at(50, 2)), (), branch=3)
    assert newest.lineage == ((1, 0), (2, 40), (3, 50))
    assert oldest.lineage == ((1, 0), (3, 30))


def test_of_equal_snapshots_the_nearest_copy() -> None:
    """Copies of one snapshot are tried in the order HOST, PEER, DISK, BUCKET."""
    catalogue = on_disk(at(10), tiers=("BUCKET", "DISK", "PEER"))
    found = candidates(((1, 0),), catalogue, [at(10)], branch=2)
    assert [each.tier for each in found] == ["HOST", "PEER", "DISK", "BUCKET"]


def test_memory_wins_only_where_it_is_newest() -> None:
    """An older snapshot in memory comes behind a newer one on disk."""
    found = candidates(((1, 0),), on_disk(at(20)), [at(10)], branch=2)
    assert [(each.id.step, each.tier) for each in found] == [(20, "DISK"), (10, "HOST")]


def test_suspects_are_left_out_wherever_they_are() -> None:
    """A suspect is no candidate, on disk or in memory, marked in the catalogue or known by name only."""
    catalogue = (*on_disk(at(30), mark="suspect"), *on_disk(at(20)), *on_disk(at(10), mark="good"))
    found = candidates(((1, 0),), catalogue, [at(30), at(40)], branch=2, suspects=[at(40)])
    assert [each.id.step for each in found] == [20, 10]


def test_what_was_rolled_back_is_no_candidate() -> None:
    """Turns behind a fork are another history, however new they are."""
    found = candidates(((1, 0), (2, 40)), on_disk(at(90), at(41)), [at(95)], branch=3)
    assert found == ()


def test_not_after_is_the_newest_that_is_allowed() -> None:
    """An order's target itself may be used, and nothing that is newer."""
    catalogue = on_disk(at(10), at(40), at(40, 2), at(60, 2))
    found = candidates(((1, 0), (2, 40)), catalogue, [at(60, 2)], branch=3, not_after=at(40))
    assert [each.id for each in found] == [at(40), at(10)]


def test_a_target_that_is_off_the_lineage_allows_nothing() -> None:
    """A restart to what was rolled back since has no candidate: it never becomes a fresh start in silence."""
    assert candidates(((1, 0), (2, 40)), on_disk(at(10)), (), branch=3, not_after=at(50)) == ()
