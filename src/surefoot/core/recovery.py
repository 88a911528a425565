"""Which snapshot to go on from (formats §5): newest first, and only what may be used.

After a fault: the newest on the head's lineage that is complete and not suspect; between copies of
one snapshot the nearest tier wins. The caller tries them in order and says what it passed over;
that a snapshot *verifies* is found while it is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from surefoot.core.numbers import Lineage, SnapshotId, fork, newness
from surefoot.core.orders import HOST, TIERS
from surefoot.core.snapshots import Catalogue


@dataclass(frozen=True, slots=True)
class Candidate:
    """A snapshot that may be restored, from where, and the lineage that leads to it."""

    id: SnapshotId
    tier: str
    lineage: Lineage
    """Ends with the branch that the restore will open."""


def candidates(
    lineage: Lineage,
    catalogue: Catalogue,
    memory: Iterable[SnapshotId],
    *,
    branch: int,
    not_after: SnapshotId | None = None,
    suspects: Iterable[SnapshotId] = (),
) -> tuple[Candidate, ...]:
    """Return every usable snapshot, newest first.

    `memory` are those whole in every rank's slots, `branch` is the one the restore opens,
    `not_after` the newest that an order allows, `suspects` ids to leave out that are in memory only.
    """
    places = [(id, HOST) for id in memory]
    places += [(snapshot.id, tier) for snapshot in catalogue for tier in snapshot.tiers]
    left_out = {snapshot.id for snapshot in catalogue if snapshot.mark == "suspect"} | set(suspects)
    limit = newness(lineage, not_after) if not_after is not None else None
    usable = [
        (id, tier)
        for id, tier in places
        if id not in left_out
        and newness(lineage, id)[0] >= 0
        and (limit is None or newness(lineage, id) <= limit)
    ]
    usable.sort(key=lambda place: (newness(lineage, place[0]), -TIERS.index(place[1])), reverse=True)
    return tuple(Candidate(id, tier, fork(lineage, id, branch)) for id, tier in usable)
