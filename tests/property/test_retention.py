"""What may be deleted, over any catalogue and over whole histories (invariant 10)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.histories import World, few, histories, moments
from tests.property.test_recovery import Tree, holdings, trees, way

from surefoot.core.numbers import SnapshotId, newness
from surefoot.core.orders import Prune
from surefoot.core.recovery import candidates
from surefoot.core.retention import GOOD_MIN, prunable
from surefoot.core.snapshots import Catalogue, find

KEEP = st.sampled_from([-1, 1, 2, 3, 5])


@given(trees(), st.data(), KEEP)
def test_what_must_stay_stays(tree: Tree, data: st.DataObject, keep: int) -> None:
    """Never the two newest good ones, a pinned, a suspect, one of the newest `keep`, the beginning too early.

    That is before two later ones are good. What may go is named once, oldest first.
    """
    catalogue, _ = data.draw(holdings(tree))
    pins = data.draw(st.sets(st.sampled_from(tree.states), max_size=2))
    catalogue = tuple(_pinned(catalogue, pins))
    gone = prunable(catalogue, tree.lineage, keep)
    order = way(tree.lineage)
    on_disk = [s for s in catalogue if "DISK" in s.tiers]
    good = sorted((s.id for s in on_disk if s.mark == "good" and s.id in order), key=order.index)
    usable = sorted((s.id for s in on_disk if s.mark != "suspect" and s.id in order), key=order.index)
    assert len(gone) == len(set(gone))
    assert list(gone) == sorted(gone, key=lambda id: newness(tree.lineage, id))
    for id in gone:
        snapshot = find(catalogue, id)
        assert snapshot is not None
        assert keep > 0
        assert "DISK" in snapshot.tiers
        assert not snapshot.pinned
        assert snapshot.mark != "suspect"
        assert id not in good[-GOOD_MIN:]
        assert id not in usable[-keep:]
        assert id.step > 0 or len([other for other in good if other.step > 0]) >= GOOD_MIN


def _pinned(catalogue: Catalogue, pins: set[SnapshotId]) -> Catalogue:
    return tuple(replace(snapshot, pinned=snapshot.id in pins) for snapshot in catalogue)


@given(trees(), st.data(), KEEP)
def test_deleting_takes_no_way_back(tree: Tree, data: st.DataObject, keep: int) -> None:
    """When all that may go is gone, the newest that could be restored still can be, and no more may go."""
    catalogue, _ = data.draw(holdings(tree))
    gone = set(prunable(catalogue, tree.lineage, keep))
    left = tuple(snapshot for snapshot in catalogue if snapshot.id not in gone)
    before = candidates(tree.lineage, catalogue, (), branch=99)
    assert candidates(tree.lineage, left, (), branch=99)[:1] == before[:1]
    assert prunable(left, tree.lineage, keep) == ()


@few
@given(histories())
def test_there_is_always_a_way_back(world: World) -> None:
    """No deletion is ordered that changes what a restart goes on from, or leaves fewer than `keep` to use."""
    for moment in moments(world.lines):
        gone = {advice.body.snapshot for advice in moment.advice if isinstance(advice.body, Prune)}
        state = moment.after
        if gone:
            left = tuple(snapshot for snapshot in state.catalogue if snapshot.id not in gone)
            before = candidates(state.lineage, state.catalogue, (), branch=99)
            after = candidates(state.lineage, left, (), branch=99)
            assert after[:1] == before[:1]
            assert len(after) >= min(max(state.settings.keep, 1), len(before))
