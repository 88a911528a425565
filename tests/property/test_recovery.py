"""Which snapshot comes next, over any tree of branches: held against the way to the head, spelled out."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from tests.histories import World, few, histories, moments

from surefoot.core.events import AttemptStarted, Restored
from surefoot.core.numbers import Lineage, SnapshotId, fork, newness, place_in
from surefoot.core.orders import TIERS
from surefoot.core.recovery import candidates
from surefoot.core.snapshots import Catalogue, Snapshot

LENGTH = 6
"""Turns of the head's branch."""


@dataclass(frozen=True)
class Tree:
    """The lineage of a head, and every state that there ever was."""

    lineage: Lineage
    states: tuple[SnapshotId, ...]


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Draw branches that each train a while and are left somewhere on the way to their end."""
    lineage: Lineage = ((1, 0),)
    states: list[SnapshotId] = []
    for branch in range(2, draw(st.integers(2, 7))):
        head, begin = lineage[-1]
        states += [SnapshotId(step, head) for step in range(begin, begin + draw(st.integers(1, LENGTH)))]
        on_the_way = [id for id in states if place_in(lineage, id) is not None]
        lineage = fork(lineage, draw(st.sampled_from(on_the_way)), branch)
    head, begin = lineage[-1]
    states += [SnapshotId(step, head) for step in range(begin, begin + LENGTH)]
    return Tree(lineage, tuple(states))


def way(lineage: Lineage) -> list[SnapshotId]:
    """Return every state on the way to the head, in the order in which they were, turn by turn."""
    ends = [begin for _, begin in lineage[1:]] + [lineage[-1][1] + LENGTH]
    return [
        SnapshotId(step, branch)
        for (branch, begin), end in zip(lineage, ends, strict=True)
        for step in range(begin, end + 1)
    ]


@st.composite
def holdings(draw: st.DrawFn, tree: Tree) -> tuple[Catalogue, list[SnapshotId]]:
    """Draw what is durable, and what is in memory."""
    held = draw(st.lists(st.sampled_from(tree.states), unique=True, max_size=8))
    catalogue = tuple(
        Snapshot(
            id=id,
            tiers=tuple(draw(st.lists(st.sampled_from(["DISK", "PEER", "BUCKET"]), unique=True, min_size=1))),
            mark=draw(st.sampled_from(["", "good", "suspect"])),
        )
        for id in held
    )
    return catalogue, draw(st.lists(st.sampled_from(tree.states), unique=True, max_size=4))


@given(trees(), st.data())
def test_candidates_are_what_the_way_to_the_head_has(tree: Tree, data: st.DataObject) -> None:
    """Every usable copy on the way to the head, none off it, newest state first and nearest copy first."""
    catalogue, memory = data.draw(holdings(tree))
    suspects = data.draw(st.lists(st.sampled_from(tree.states), max_size=2))
    not_after = data.draw(st.none() | st.sampled_from(tree.states))
    order = way(tree.lineage)
    usable = order if not_after is None else order[: order.index(not_after) + 1] if not_after in order else []
    bad = {*suspects, *(snapshot.id for snapshot in catalogue if snapshot.mark == "suspect")}
    copies = {(id, "HOST") for id in memory} | {(s.id, tier) for s in catalogue for tier in s.tiers}
    expected = sorted(
        ((id, tier) for id, tier in copies if id in usable and id not in bad),
        key=lambda copy: (-order.index(copy[0]), TIERS.index(copy[1])),
    )
    found = candidates(tree.lineage, catalogue, memory, branch=99, not_after=not_after, suspects=suspects)
    assert [(each.id, each.tier) for each in found] == expected


@given(trees(), st.data())
def test_a_candidate_goes_on_from_its_own_past(tree: Tree, data: st.DataObject) -> None:
    """A candidate's lineage is the way to its state, and the new branch from there."""
    catalogue, memory = data.draw(holdings(tree))
    order = way(tree.lineage)
    for each in candidates(tree.lineage, catalogue, memory, branch=99):
        assert each.lineage[-1] == (99, each.id.step)
        assert way(each.lineage)[: -LENGTH - 1] == order[: order.index(each.id) + 1]


@given(trees())
def test_newness_is_the_order_of_the_way(tree: Tree) -> None:
    """States of the lineage are as new as they are late on the way; all others are older than those."""
    order = way(tree.lineage)
    backwards = order[::-1]
    assert sorted(backwards, key=lambda id: newness(tree.lineage, id)) == order
    for id in tree.states:
        assert (place_in(tree.lineage, id) is None) == (id not in order)
        if id not in order:
            assert newness(tree.lineage, id) < newness(tree.lineage, order[0])


@few
@given(histories())
def test_attempts_start_from_the_newest_that_may_be_used(world: World) -> None:
    """No attempt starts from a suspect, from what was rolled back, or from less than the newest durable one.

    In particular none starts afresh while there is one that could be used.
    """
    for moment in moments(world.lines):
        event, before = moment.line.event, moment.before
        if isinstance(event, AttemptStarted):
            usable = [
                s.id
                for s in before.catalogue
                if s.mark != "suspect" and place_in(before.lineage, s.id) is not None
            ]
            if event.restore is None:
                assert usable == []
                continue
            assert event.restore not in before.suspects
            mine = newness(before.lineage, event.restore)
            assert mine[0] >= 0
            assert all(newness(before.lineage, id) <= mine for id in usable)


@few
@given(histories())
def test_every_restore_opens_a_branch_of_its_own(world: World) -> None:
    """Each restore's branch is a new one, the last of its lineage, which goes on from the one before."""
    opened: set[int] = set()
    for moment in moments(world.lines):
        event = moment.line.event
        if isinstance(event, Restored):
            assert event.branch not in opened
            opened.add(event.branch)
            assert event.lineage[-1] == (event.branch, event.step)
            if event.tier is None:
                assert event.lineage == ((event.branch, 0),)
            else:
                came_from = SnapshotId(event.step, event.lineage[-2][0])
                assert fork(moment.before.lineage, came_from, event.branch) == event.lineage
    assert world.state.branches == max(opened, default=0)
