"""Which durable checkpoints may go: a pure choice, carried out by agents.

Never the newest good ones, never the state at step 0 before two later ones are good, never a
pinned or a suspect one, and never one of the newest `keep` that could be restored.
"""

from __future__ import annotations

from collections.abc import Iterable

from surefoot.core.numbers import Lineage, SnapshotId, newness
from surefoot.core.orders import DISK
from surefoot.core.snapshots import Snapshot

GOOD_MIN = 2
"""Good checkpoints that always stay; `keep=1` means two as well."""


def prunable(catalogue: Iterable[Snapshot], lineage: Lineage, keep: int) -> tuple[SnapshotId, ...]:
    """Return what may be deleted from DISK, oldest first; nothing with `keep` = -1."""
    if keep < 0:
        return ()
    held = [snapshot for snapshot in catalogue if DISK in snapshot.tiers]
    held.sort(key=lambda snapshot: newness(lineage, snapshot.id))
    good = [
        snapshot.id for snapshot in held if snapshot.mark == "good" and newness(lineage, snapshot.id)[0] >= 0
    ]
    later_good = [id for id in good if id.step > 0]
    usable = [snapshot.id for snapshot in held if snapshot.mark != "suspect"]
    stays = {*good[-GOOD_MIN:], *usable[-max(keep, GOOD_MIN) :]}
    if len(later_good) < GOOD_MIN:
        stays |= {snapshot.id for snapshot in held if snapshot.id.step == 0}
    return tuple(
        snapshot.id
        for snapshot in held
        if snapshot.id not in stays and not snapshot.pinned and snapshot.mark != "suspect"
    )
