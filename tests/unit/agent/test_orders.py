"""What orders do on a node, and what an agent takes up from the one before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.agent import doubles
from tests.unit.agent.doubles import Rig

from surefoot.agent import writes
from surefoot.agent.orders import Orders
from surefoot.agent.writes import Writes
from surefoot.core.events import (
    AttemptStarted,
    OrderDone,
    Ordered,
    OrderFailed,
    Restored,
    RunEnded,
    SnapshotCommitted,
    SnapshotMarked,
)
from surefoot.core.numbers import SnapshotId
from surefoot.core.orders import Exclude, Mark, Order, Prune, Restart, Save, Stop
from surefoot.core.state import Pending


class Desk:
    """The orders of a run on a rig, with nobody training."""

    def __init__(self, run_dir: Path) -> None:
        self.rig = Rig(run_dir)
        self.rig.brain.tell(OrderDone(order=1))  # the beginning is saved
        self.writes = Writes(self.rig.start, self.rig.brain, self.rig.memory)
        child = self.writes._child
        assert isinstance(child, doubles.Child)
        self.child = child

    def order(self, body: Order) -> Pending:
        """Put an order on record."""
        brain = self.rig.brain
        brain.tell(Ordered(order=brain.state.orders + 1, body=body, reason="because"))
        return brain.state.pending[-1]

    @property
    def orders(self) -> Orders:
        """What an agent makes of the record."""
        return Orders(self.rig.brain, self.rig.memory, self.writes)

    def last(self, kind: type) -> Any:
        return self.rig.events(kind)[-1]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(writes, "Child", doubles.Child)
    made = Desk(tmp_path)
    yield made
    made.rig.memory.close()


def test_a_mark_is_made_and_done(desk: Desk) -> None:
    """The mark is on record with the order's reason, then the order's outcome."""
    desk.rig.brain.tell(SnapshotCommitted(step=10, branch=1, tier="DISK", bytes=1))
    pending = desk.order(Mark(snapshot=SnapshotId(10, 1), mark="good"))
    desk.orders.carry_out(pending, None)
    assert desk.last(SnapshotMarked) == SnapshotMarked(step=10, branch=1, mark="good", why="because")
    assert desk.last(OrderDone).order == pending.order
    assert desk.rig.brain.state.catalogue[0].mark == "good"


def test_a_stop_with_nobody_there_ends_the_run(desk: Desk) -> None:
    """Where no rank could leave, the run is over at once, with the order's word and code."""
    pending = desk.order(Stop(word="stopped", exit_code=83, why="enough"))
    desk.orders.carry_out(pending, None)
    assert desk.last(OrderDone).order == pending.order
    assert desk.last(RunEnded) == RunEnded(word="stopped", exit_code=83, reason="enough")


def test_an_order_for_ranks_waits_for_ranks(desk: Desk) -> None:
    """With nobody training a save stays pending for the next group."""
    pending = desk.order(Save(why="asked"))
    desk.orders.carry_out(pending, None)
    assert desk.rig.brain.state.pending == (pending,)


def test_an_order_of_a_newer_version_fails_in_words(desk: Desk) -> None:
    """What this version can't carry out is answered, not left hanging."""
    pending = desk.order(Exclude(what="n7"))
    desk.orders.carry_out(pending, None)
    assert desk.last(OrderFailed).outcome == "this version can't carry out 'exclude'"


def test_a_restart_may_be_begun_when_it_is_on_record(desk: Desk) -> None:
    """A new restart is acted on once its line is durable; one of the agent before may be at once."""
    orders = desk.orders
    pending = desk.order(Restart())
    assert orders.restart is None
    orders.carry_out(pending, None)
    assert orders.restart == pending
    assert desk.orders.restart == pending


def test_marks_and_deletions_of_the_agent_before_are_taken_up(desk: Desk) -> None:
    """What was ordered and not done, and needs no rank, is done by the next agent."""
    id = SnapshotId(10, 1)
    desk.rig.brain.tell(SnapshotCommitted(step=10, branch=1, tier="DISK", bytes=1))
    desk.rig.start.names[id] = "000000010.b0001.t0003"
    mark, prune = desk.order(Mark(snapshot=id, mark="good")), desk.order(Prune(snapshot=id))
    desk.orders.take_up()
    assert [event.order for event in desk.rig.events(OrderDone)] == [1, mark.order]
    assert [job.args["directory"] for job in desk.child.of("prune")] == ["000000010.b0001.t0003"]
    assert desk.rig.brain.state.pending == (prune,)


def test_a_restart_whose_attempt_runs_is_done(desk: Desk) -> None:
    """An agent may die between `restored` and the restart's outcome: its successor tells the outcome."""
    pending = desk.order(Restart())
    desk.rig.brain.tell(AttemptStarted(attempt=2, world_size=2, order=pending.order))
    restored = Restored(
        branch=2, lineage=((1, 0), (2, 0)), step=0, batch=0, sample=0, tier="HOST", order=pending.order
    )
    desk.rig.brain.tell(restored)
    desk.orders.take_up()
    assert desk.last(OrderDone).order == pending.order
    assert desk.rig.brain.state.pending == ()
