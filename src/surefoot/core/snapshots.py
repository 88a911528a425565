"""The catalogue: what the journal knows of each durable snapshot."""

from __future__ import annotations

from dataclasses import dataclass, replace

from surefoot.core.numbers import SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One snapshot and all its copies."""

    id: SnapshotId
    tiers: tuple[str, ...] = ()
    bytes: int = 0
    at_ns: int = 0
    """When its newest copy became durable."""
    mark: str = ""
    """"" (on probation), "good" or "suspect"."""
    pinned: bool = False
    kept_ns: int = 0
    """Kept step time that the run had when it was at this step (see `core.ledger`)."""


Catalogue = tuple[Snapshot, ...]
"""In the order in which they became durable."""


def find(catalogue: Catalogue, id: SnapshotId) -> Snapshot | None:
    """Return the snapshot of that name, or None."""
    return next((snapshot for snapshot in catalogue if snapshot.id == id), None)


def put(catalogue: Catalogue, snapshot: Snapshot) -> Catalogue:
    """Return the catalogue with this snapshot in place of one of the same name, or behind all others."""
    if find(catalogue, snapshot.id) is None:
        return (*catalogue, snapshot)
    return tuple(snapshot if other.id == snapshot.id else other for other in catalogue)


def marked(catalogue: Catalogue, id: SnapshotId, mark: str) -> Catalogue:
    """Return the catalogue after a mark; `gone` removes the snapshot."""
    snapshot = find(catalogue, id)
    if snapshot is None:
        return catalogue
    if mark == "gone":
        return tuple(other for other in catalogue if other.id != id)
    if mark in ("pinned", "unpinned"):
        return put(catalogue, replace(snapshot, pinned=mark == "pinned"))
    return put(catalogue, replace(snapshot, mark=mark))


def caught_up(catalogue: Catalogue, branch: int, step: int, ns: int) -> Catalogue:
    """Return the catalogue after a turn of `ns` that was told when snapshots behind it were durable already."""
    return tuple(
        replace(snapshot, kept_ns=snapshot.kept_ns + ns)
        if snapshot.id.branch == branch and snapshot.id.step > step
        else snapshot
        for snapshot in catalogue
    )
