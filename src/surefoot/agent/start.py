"""How an agent begins: take the lease, fold the journal, see what the disk really holds.

What is durable is derived from manifests, never from a pointer: a checkpoint that was committed just
before its line could be written is found here, and one that is gone is marked so. A manifest counts
if its order is one the journal knows; others are another history's.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from surefoot.brain import Clock
from surefoot.checkpoint.commit import discover
from surefoot.checkpoint.records import MANIFEST, Manifest
from surefoot.checkpoint.store import DiskStore
from surefoot.core.events import Event, SnapshotCommitted, SnapshotMarked, TermStarted
from surefoot.core.numbers import SnapshotId
from surefoot.core.orders import DISK
from surefoot.core.snapshots import find
from surefoot.core.state import RunState
from surefoot.errors import CheckpointError, ForeignRun, RunHeld
from surefoot.journal import cache, lease, rundir
from surefoot.journal.codec import FORMAT


@dataclass(slots=True)
class Start:
    """What an agent knows when it begins."""

    run_dir: Path
    run: str
    node: str
    term: int
    state: RunState
    clock: Clock
    events: list[Event]
    """To be told first: the term, and where disk and journal differ."""
    names: dict[SnapshotId, str] = field(default_factory=dict)
    """Directory of each durable snapshot."""
    written_ns: dict[SnapshotId, int] = field(default_factory=dict)
    """When each was committed, on the brain's clock."""
    passed_over: list[dict[str, Any]] = field(default_factory=list)
    """What looks like a checkpoint and isn't one that counts: {what, why}."""
    unfinished: list[str] = field(default_factory=list)
    """Directories that never had a manifest, or lost it first: a writer or a deletion was cut short."""


def begin(run_dir: Path, lease_s: float) -> Start:
    """Take the run's lease and read its past. Raises RunHeld, ForeignRun, JournalError."""
    run = rundir.read(run_dir)
    if run is None:
        raise ForeignRun(f"{run_dir} holds no run; the first start of a script makes it")
    term = _take(run_dir, run.run, lease_s)
    state = cache.fold(run_dir)
    # What was folded is what counts: a stale writer may still append behind it.
    after = {"term": state.term, "seq": state.seq}
    node = os.uname().nodename
    started = TermStarted(format=FORMAT, term=term, after=after, node=node, versions=versions())
    start = Start(
        run_dir=run_dir,
        run=run.run,
        node=node,
        term=term,
        state=state,
        clock=Clock(time.time_ns(), time.monotonic_ns, state.at_ns),
        events=[started],
    )
    _reconcile(start)
    return start


def _take(run_dir: Path, run: str, lease_s: float) -> int:
    """Take the lease, with some patience: an agent that is going down no longer listens, but still runs."""
    deadline_s = time.monotonic() + lease_s
    while True:
        try:
            return lease.take(run_dir, run, lease_s=lease_s)
        except RunHeld:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)


def versions() -> dict[str, str]:
    """Return what runs here, for the record."""
    return {"surefoot": "0.1.0.dev0", "python": sys.version.split()[0]}


def _reconcile(start: Start) -> None:
    store = DiskStore(start.run_dir / "checkpoints")
    for found in discover(store):
        manifest = found.manifest
        if manifest is None and not _has_manifest(store, found.name):
            start.unfinished.append(found.name)
            continue
        if manifest is None:
            start.passed_over.append({"what": f"checkpoints/{found.name}", "why": found.why_not})
            continue
        why_not = _why_foreign(start, manifest)
        if why_not:
            start.passed_over.append({"what": f"checkpoints/{found.name}", "why": why_not})
            continue
        id = SnapshotId(manifest.step, manifest.branch)
        start.names[id] = found.name
        start.written_ns[id] = manifest.at_ns
        if find(start.state.catalogue, id) is None:
            committed = SnapshotCommitted(step=id.step, branch=id.branch, tier=DISK, bytes=manifest.bytes)
            start.events.append(committed)
    for snapshot in start.state.catalogue:
        if snapshot.id not in start.names:
            id = snapshot.id
            why = "its directory is gone or damaged"
            start.events.append(SnapshotMarked(step=id.step, branch=id.branch, mark="gone", why=why))


def _has_manifest(store: DiskStore, name: str) -> bool:
    """Tell whether that was a checkpoint once: without a manifest there is none (formats §6)."""
    try:
        return not store.is_dir(name) or store.size(f"{name}/{MANIFEST}") is not None
    except CheckpointError:
        return True


def _why_foreign(start: Start, manifest: Manifest) -> str:
    if manifest.run != start.run:
        return f"it is of another run ({manifest.run[:8]}…)"
    state = start.state
    given = state.term_of(manifest.order)
    # A term may carry out what one before it had ordered; what a cut term ordered has another's number now.
    counts = given is not None and given <= manifest.term and manifest.term in dict(state.terms)
    if not counts or manifest.branch > state.branches:
        return (
            f"the journal knows no order {manifest.order} of term {manifest.term}: a term that was cut wrote it"
        )
    return ""
