"""When a durable checkpoint is due, and when a snapshot becomes good."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.core.numbers import SnapshotId
from surefoot.core.schedule import past_probation, save_due
from surefoot.core.settings import Settings
from surefoot.core.snapshots import Snapshot
from surefoot.core.state import RunState

S = 1_000_000_000


def state(*, step: int, at_s: float = 0.0, saved: tuple[int, float] = (0, 0.0), **settings: Any) -> RunState:
    saved_step, saved_s = saved
    return RunState(
        step=step,
        at_ns=int(at_s * S),
        saved_step=saved_step,
        saved_ns=int(saved_s * S),
        settings=Settings(**settings),
    )


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (state(step=1, at_s=299.9), None),
        (state(step=1, at_s=300), "every 300 s"),
        (state(step=1, at_s=1_000, saved=(0, 800)), None),
        (state(step=1, at_s=0.5, save_every_s=0.5), "every 0.5 s"),
        (state(step=7, at_s=1_000, saved=(7, 0)), None),
        (state(step=99, save_every_steps=100), None),
        (state(step=1_100, saved=(100, 0), save_every_steps=1_000), "every 1,000 steps"),
        (state(step=9, at_s=300, save_every_steps=100), "every 300 s"),
        (state(step=1, save_every_s=0.0), "every 0 s"),
    ],
)
def test_save_due(now: RunState, why: str | None) -> None:
    """A save is due after the time or the steps that were set, and never twice at one step."""
    assert save_due(now) == why


def catalogue(*snapshots: tuple[int, int, str]) -> tuple[Snapshot, ...]:
    return tuple(Snapshot(id=SnapshotId(step, branch), mark=mark) for step, branch, mark in snapshots)


def test_past_probation() -> None:
    """What has enough steps after it and isn't marked is good, oldest first."""
    held = catalogue((6, 1, "good"), (7, 1, "suspect"), (9, 1, ""), (9, 2, ""), (10, 1, ""), (11, 1, ""))
    now = RunState(step=110, lineage=((1, 0),), catalogue=held, settings=Settings(probation_steps=100))
    assert past_probation(now) == (SnapshotId(9, 1), SnapshotId(10, 1))


def test_the_beginning_has_no_probation() -> None:
    """The state at step 0 counts as good at once, whatever the number of steps."""
    now = RunState(step=1, lineage=((1, 0),), catalogue=catalogue((0, 1, ""), (1, 1, "")))
    assert past_probation(now) == (SnapshotId(0, 1),)


def test_a_good_mark_of_another_history_hides_nothing() -> None:
    """Behind a good one that was rolled back, others of the lineage may still be on probation."""
    held = catalogue((40, 1, ""), (50, 1, "good"))
    now = RunState(step=9_000, lineage=((1, 0), (2, 45)), catalogue=held)
    assert past_probation(now) == (SnapshotId(40, 1),)


def test_what_was_rolled_back_never_becomes_good() -> None:
    """A snapshot behind the fork is off the lineage: no number of steps makes it good."""
    held = catalogue((40, 1, ""), (50, 1, ""))
    now = RunState(step=9_000, lineage=((1, 0), (2, 40)), catalogue=held)
    assert past_probation(now) == (SnapshotId(40, 1),)
