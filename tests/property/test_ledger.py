"""The ledger over whole histories: every nanosecond once, and judged by its fate."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from tests.histories import Moment, World, few, histories, moments

from surefoot.core import ledger
from surefoot.core.events import StepDone
from surefoot.core.numbers import Lineage, SnapshotId, place_in


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """Let short histories fill blocks and forget them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "_BLOCK", 3)
        yield


def is_kept(lineage: Lineage, branch: int, step: int) -> bool:
    """The rule of formats §1, spelled out."""
    for place, (other, _) in enumerate(lineage):
        if other == branch:
            return place + 1 == len(lineage) or step < lineage[place + 1][1]
    return False


def turns(found: list[Moment]) -> list[tuple[int, int, int]]:
    """Return (branch, step, step time) of every turn that was ever done."""
    return [
        (moment.line.event.branch, moment.line.event.step, _step_ns(moment))
        for moment in found
        if isinstance(moment.line.event, StepDone)
    ]


def _step_ns(moment: Moment) -> int:
    before, after = moment.before.ledger.accounts, moment.after.ledger.accounts
    return after.get("step", 0) - before.get("step", 0)


@few
@given(histories())
def test_accounts_sum(world: World) -> None:
    """After every line the accounts sum to the time since the first one, to the ns, and none is below zero."""
    for moment in moments(world.lines):
        clock = moment.after.ledger
        assert sum(clock.accounts.values()) == clock.mark_ns - clock.begin_ns
        assert all(ns >= 0 for ns in clock.accounts.values())
        assert moment.before.ledger.mark_ns <= clock.mark_ns <= max(moment.line.at_ns, clock.mark_ns)
        assert clock.ettr is None or 0 <= clock.ettr <= 1


@few
@given(histories())
def test_kept_is_what_the_lineage_keeps(world: World) -> None:
    """`kept` is the time of the final lineage's turns, each once; all other step time is `lost`."""
    found = moments(world.lines)
    done = turns(found)
    lineage, clock = world.state.lineage, world.state.ledger
    kept = [ns for branch, step, ns in done if is_kept(lineage, branch, step)]
    assert clock.kept_ns == sum(kept)
    assert clock.accounts.get("step", 0) == sum(kept)
    assert clock.accounts.get("lost", 0) == sum(ns for _, _, ns in done) - sum(kept)


@few
@given(histories())
def test_a_checkpoint_carries_its_kept_time(world: World) -> None:
    """Each snapshot of the lineage knows the kept time before it, however long its turns are forgotten."""
    done = turns(moments(world.lines))
    lineage = world.state.lineage
    for snapshot in world.state.catalogue:
        id, place = snapshot.id, place_in(lineage, snapshot.id)
        if place is not None:
            before = (*lineage[: place + 1], (0, id.step))
            assert snapshot.kept_ns == sum(ns for branch, step, ns in done if is_kept(before, branch, step)), id


@few
@given(histories())
def test_a_lineage_has_each_turn_once(world: World) -> None:
    """No turn is done twice on one branch, and the head's turns have no gap but those nobody could report."""
    done = [(branch, step) for branch, step, _ in turns(moments(world.lines))]
    assert len(done) == len(set(done))
    head = world.state.head
    if head is not None:
        kept = [step for branch, step in done if is_kept(world.state.lineage, branch, step)]
        assert kept == sorted(set(kept))
        assert all(step < head.step for step in kept)
        assert place_in(world.state.lineage, SnapshotId(head.step, head.branch)) is not None
