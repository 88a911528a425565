"""What the ranks agreed on holds at the boundary where it is read, whatever the agent does meanwhile."""

from __future__ import annotations

from typing import Any, cast

from surefoot.core.events import Event
from surefoot.core.numbers import SnapshotId
from surefoot.core.settings import Settings
from surefoot.loop.attempt import Attempt
from surefoot.loop.boundary import Boundary
from surefoot.loop.exits import Exits
from surefoot.loop.ranks import OneRank
from surefoot.loop.snapshots import Snapshots
from surefoot.loop.turns import Turns


class Slots:
    """A slot that is granted until the agent is gone."""

    has_slot = True
    outgrown = False


class Membership:
    """An attempt whose agent dies between two boundaries."""

    settings = Settings()
    stage_every = 1
    acted = 0
    order = None

    def __init__(self, slots: Slots) -> None:
        self.beat = self
        self.slots = slots
        self.agent_dies = False
        self.staged: list[SnapshotId] = []

    def enter(self, *_: Any) -> None:
        """Stand in for the beat page."""

    def emit(self, event: Event) -> None:
        """Drop a line: nobody reads it."""

    emit_once = emit

    def messages(self) -> None:
        if self.agent_dies:
            self.slots.has_slot = False

    def stage(self, id: SnapshotId, **_: Any) -> bool:
        assert self.slots.has_slot, "nothing is staged without a granted slot"
        self.staged.append(id)
        return True


def test_a_slot_holds_until_the_vector_that_told_of_it_is_read() -> None:
    """An agent that dies in between takes no slot away that all ranks have agreed to fill at this boundary."""
    slots = Slots()
    attempt = Membership(slots)
    step = 0
    boundary = Boundary(
        cast("Attempt", attempt),
        OneRank(),
        cast("Snapshots", slots),
        Turns(float),
        Exits(on_error=lambda _: None, on_exit=lambda: None),
        lambda: SnapshotId(step, 1),
        lambda _: None,
    )
    step = 1
    boundary.cross(turn_ns=1)
    attempt.agent_dies = True
    step = 2
    boundary.cross(turn_ns=1)
    assert attempt.staged == [SnapshotId(2, 1)]
    step = 3
    boundary.cross(turn_ns=1)
    assert attempt.staged == [SnapshotId(2, 1)], "the next vector told that there is no slot"
