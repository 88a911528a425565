"""When a durable checkpoint is due, and when a snapshot has passed its probation."""

from __future__ import annotations

from surefoot.core.numbers import SnapshotId, newness
from surefoot.core.state import RunState

_NS = 1_000_000_000


def save_due(state: RunState) -> str | None:
    """Return why a durable checkpoint is due at the state's newest step, or None."""
    settings = state.settings
    steps = state.step - state.saved_step
    if settings.save_every_steps is not None and steps >= settings.save_every_steps:
        return f"every {settings.save_every_steps:,} steps"
    if steps > 0 and state.at_ns - state.saved_ns >= settings.save_every_s * _NS:
        return f"every {settings.save_every_s:g} s"
    return None


def past_probation(state: RunState) -> tuple[SnapshotId, ...]:
    """Return the snapshots of the head's lineage that have become good, oldest first."""
    bar = state.step - state.settings.probation_steps
    found = []
    for snapshot in reversed(state.catalogue):
        if snapshot.mark == "suspect" or newness(state.lineage, snapshot.id)[0] < 0:
            continue
        if snapshot.mark == "good":
            break  # what became durable before it was good before it: a turn costs the same after a year
        if snapshot.id.step <= bar or snapshot.id.step == 0:
            found.append(snapshot.id)
    return tuple(reversed(found))
