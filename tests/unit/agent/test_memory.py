"""The slots of a node's ranks: what is free, what is common, and what a death leaves."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.checkpoints import descriptors
from tests.unit.agent.doubles import Rig, offer

from surefoot.core.numbers import SnapshotId
from surefoot.errors import AgentError, CheckpointError

Make = Callable[..., Rig]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    rigs: list[Rig] = []
    before = descriptors()

    def made(ranks: int = 2, slots: int = 3) -> Rig:
        rigs.append(Rig(tmp_path, ranks, slots))
        return rigs[-1]

    yield made
    for rig in rigs:
        rig.memory.close()
    assert descriptors() == before


def at(step: int, branch: int = 1) -> SnapshotId:
    return SnapshotId(step, branch)


def test_each_rank_has_one_slot_at_a_time(make: Make) -> None:
    """A rank is lent one free slot, and the next when it has given that one back."""
    rig = make()
    lent = rig.memory.grants()
    assert [rank for rank, _ in lent] == [0, 1]
    assert rig.memory.grants() == []
    rig.memory.staged(0, rig.fill(0, 5))
    assert [rank for rank, _ in rig.memory.grants()] == [0]


def test_whole_is_what_all_ranks_have(make: Make) -> None:
    """A snapshot counts when its word is whole on every rank: not before, and whoever has reported it."""
    rig = make()
    assert (rig.memory.newest(), rig.memory.ids()) == (None, [])
    rig.memory.grants()
    rig.fill(0, 5)
    rig.fill(1, 5, whole=False)
    assert rig.memory.ids() == []
    rig.fill(1, 5)
    assert rig.memory.newest() == at(5)


def test_the_newest_common_snapshot_is_never_lent(make: Make) -> None:
    """With two slots the newest stays while the other is filled, time and again."""
    rig = make(slots=2)
    for step in range(1, 9):
        rig.stage(step)
        for rank, slot in rig.memory.grants():
            word = rig.word(rank, slot)
            assert word is None or word.step != step
        assert rig.memory.newest() == at(step)


def test_what_is_being_written_is_never_lent(make: Make) -> None:
    """A locked snapshot stays until it is let go; with two slots staging rests meanwhile."""
    rig = make(slots=2)
    rig.memory.lock(rig.stage(1))
    rig.stage(2)
    assert rig.memory.grants() == []
    assert set(rig.memory.ids()) == {at(1), at(2)}
    rig.memory.unlock(at(1))
    assert len(rig.memory.grants()) == 2


def test_with_three_slots_staging_goes_on_while_one_is_written(make: Make) -> None:
    """Of three slots one is being written, one is the newest, one is free."""
    rig = make()
    rig.memory.lock(rig.stage(1))
    for step in range(2, 7):
        rig.stage(step)
    assert at(1) in rig.memory.ids()
    assert rig.memory.newest() == at(6)


def test_the_slot_that_is_lent_holds_the_oldest(make: Make) -> None:
    """Memory keeps as many of the newest snapshots as it has slots: a bad one has a young elder."""
    rig = make(slots=3)
    rig.memory.lock(rig.stage(1))
    rig.stage(2)
    rig.memory.unlock(at(1))
    for step in (3, 4, 5):
        rig.stage(step)
    assert set(rig.memory.ids()) == {at(3), at(4), at(5)}


def test_a_rank_that_is_ahead_keeps_what_it_staged(make: Make) -> None:
    """What one rank has whole and another is still staging isn't lent: it will be the newest."""
    rig = make(slots=2)
    rig.stage(1)
    rig.memory.grants()
    slot = rig.fill(0, 2)
    rig.memory.staged(0, slot)
    assert rig.memory.grants() == []
    rig.memory.staged(1, rig.fill(1, 2))
    assert rig.memory.newest() == at(2)


def test_newest_goes_by_lineage(make: Make) -> None:
    """After a restore to an earlier step the new branch is newer than later steps of the old one."""
    rig = make()
    rig.stage(10)
    rig.stage(20)
    rig.restored(((1, 0), (2, 10)))
    assert rig.memory.newest() == at(10)
    rig.stage(11, branch=2)
    assert rig.memory.newest() == at(11, 2)


def test_a_death_leaves_the_newest_common_step(make: Make) -> None:
    """After a death what is torn or not on all ranks is emptied, and what is common stays."""
    rig = make()
    rig.stage(1)
    rig.stage(2)
    rig.memory.grants()
    rig.fill(0, 3)
    torn = rig.fill(1, 3, whole=False)
    rig.memory.withdraw()
    rig.memory.wipe()
    assert rig.memory.newest() == at(2)
    assert at(3) not in rig.memory.ids()
    assert rig.word(1, torn) is None
    assert all(word.step < 3 for slot in range(3) if (word := rig.word(0, slot)) is not None)
    assert len(rig.memory.grants()) == 2


def test_two_crashes_never_pair_an_old_turn_with_a_new_one(make: Make) -> None:
    """What a dead rank had alone is emptied, so no mixture of two attempts is ever taken for a snapshot."""
    rig = make()
    rig.stage(1)
    rig.memory.grants()
    rig.fill(0, 2)
    rig.memory.withdraw()
    rig.memory.wipe()
    rig.memory.grants()
    rig.fill(1, 2)
    assert rig.memory.newest() == at(1)


def test_the_same_layout_keeps_its_slots(make: Make) -> None:
    """New ranks that offer what the old ones did find the memory as it was."""
    rig = make()
    rig.stage(5)
    fds = rig.memory.descriptors(at(5))
    rig.lay_out(offer(0), offer(1))
    assert rig.memory.newest() == at(5)
    assert rig.memory.descriptors(at(5)) == fds


def test_a_new_layout_keeps_the_old_memory_until_it_has_its_own(make: Make) -> None:
    """Optimizer state that appears makes new slots; the old snapshot serves until a new one is whole."""
    rig = make()
    rig.stage(5)
    open_before = descriptors()
    rig.lay_out(offer(0, elements=9), offer(1, elements=9))
    assert rig.memory.newest() == at(5)
    assert len(rig.memory.descriptors(at(5))) == 2
    rig.stage(6)
    assert rig.memory.ids() == [at(6)]
    assert descriptors() == open_before


def test_a_layout_that_changes_twice_loses_no_snapshot(make: Make) -> None:
    """Slots that never held anything go first: the last whole snapshot outlives two changes in a row."""
    rig = make()
    rig.stage(5)
    rig.lay_out(offer(0, elements=9), offer(1, elements=9))
    rig.lay_out(offer(0, elements=10), offer(1, elements=10))
    assert rig.memory.newest() == at(5)


def test_what_is_being_written_outlives_a_new_layout(make: Make) -> None:
    """The old slots stay while one of them is being written, and go at the next staging after it."""
    rig = make()
    rig.memory.lock(rig.stage(5))
    rig.lay_out(offer(0, elements=9), offer(1, elements=9))
    rig.stage(6)
    assert at(5) in rig.memory.ids()
    rig.memory.unlock(at(5))
    rig.stage(7)
    assert set(rig.memory.ids()) == {at(6), at(7)}


def test_replicas_that_differ_are_told(make: Make) -> None:
    """What claims to be the same on all ranks and isn't is named, and each keeps its own."""
    rig = make()
    assert rig.lay_out(offer(0, hash="a"), offer(1, hash="b")) == ("shared",)
    staged = [{box.name for box in rig.memory.handed_out(rank)[0]} for rank in (0, 1)]
    assert staged == [{"own", "shared"}] * 2


def test_what_is_shared_is_staged_once_and_held_by_all(make: Make) -> None:
    """One rank stages the shared tensor; every rank gets it back."""
    rig = make()
    staged = sorted(name for rank in (0, 1) for name in (box.name for box in rig.memory.handed_out(rank)[0]))
    assert staged == ["own", "own", "shared"]
    rig.stage(1)
    assert [{box.name for box in held} for held in rig.memory.held(at(1))] == [{"own", "shared"}] * 2


def test_slots_are_taken_over_from_the_ranks(make: Make) -> None:
    """An agent that knows nothing gets the slots back with what they hold."""
    rig, other = make(), make()
    rig.stage(5)
    assert rig.memory._now is not None
    fds = [[os.dup(slot.fd) for slot in slots] for slots in rig.memory._now.slots]
    before = other.memory._now
    assert before is not None
    before.close()
    other.memory.take_over([offer(0), offer(1)], fds)
    assert other.memory.newest() == at(5)


def test_slots_of_another_layout_are_not_taken_over(make: Make) -> None:
    """Slots whose size doesn't fit what the ranks offer are refused."""
    rig, other = make(), make()
    assert rig.memory._now is not None
    fds = [[os.dup(slot.fd) for slot in slots] for slots in rig.memory._now.slots]
    with pytest.raises(AgentError, match="not of the layout they offer"):
        other.memory.take_over([offer(0, elements=90_000), offer(1)], fds)
    for each in fds:
        for fd in each:
            os.close(fd)


def test_short_memory_leaves_what_there_was(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the new slots don't fit, none of them stays, and the old ones are untouched."""
    rig = make()
    rig.stage(5)
    before = descriptors()
    monkeypatch.setattr("surefoot.checkpoint.slots.available_bytes", lambda: 1_000_000)
    with pytest.raises(CheckpointError, match="no memory for the slot"):
        rig.lay_out(offer(0), offer(1, elements=1_000_000))
    assert descriptors() == before
    assert rig.memory.newest() == at(5)


def test_nobody_has_a_snapshot_that_nobody_has(make: Make) -> None:
    """Asking for a snapshot that isn't whole raises instead of giving another."""
    rig = make()
    with pytest.raises(KeyError):
        rig.memory.descriptors(at(9))


@pytest.mark.parametrize("seed", range(20))
def test_at_any_kill_all_ranks_hold_a_common_step(make: Make, seed: int) -> None:
    """From the first common snapshot on there is one at every instant, and it is never older than the last.

    The ranks stage together, each at its own pace; reports lag, and writes lock.
    """
    dice = random.Random(seed)
    rig = make(ranks=3, slots=dice.choice([2, 3, 4]))
    step, newest, locked = 0, 0, None
    for _ in range(40):
        rig.memory.grants()
        if any(rig.granted(rank) is None for rank in range(3)):
            if locked is not None:
                rig.memory.unlock(locked)
                locked = None
            continue
        step += dice.randint(1, 3)
        reports: list[tuple[int, int]] = []
        order = dice.sample(range(3), 3)
        for rank in order:
            rig.fill(rank, step, whole=False)
            assert newest == 0 or rig.memory.newest() == at(newest)
        for rank in order:
            reports.append((rank, rig.fill(rank, step)))
            if dice.random() < 0.5:
                rig.memory.staged(*reports.pop(dice.randrange(len(reports))))
                rig.memory.grants()
            found = rig.memory.newest()
            assert newest == 0 or (found is not None and found.step >= newest)
        for report in reports:
            rig.memory.staged(*report)
        newest = step
        assert rig.memory.newest() == at(step)
        if locked is None and dice.random() < 0.3:
            locked = at(step)
            rig.memory.lock(locked)
        assert locked is None or locked in rig.memory.ids()
