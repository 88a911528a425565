"""What a run holds on its disk: the checkpoints, and what is in one of them.

The journal knows what was committed, marked and pruned; the directories are what is there. Both are
shown side by side, and where they differ the difference is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from surefoot.checkpoint.commit import Found, Problem
from surefoot.checkpoint.index import Index
from surefoot.checkpoint.layout import untag_plain
from surefoot.checkpoint.records import Manifest
from surefoot.core.numbers import SnapshotId, newness
from surefoot.core.orders import DISK, Prune
from surefoot.core.snapshots import Snapshot, find
from surefoot.core.state import RunState

_PREVIEW_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One checkpoint, or what looks like one."""

    name: str
    """Its directory; empty for one that only the journal knows."""
    step: int | None = None
    """None where no manifest tells."""
    branch: int | None = None
    bytes: int = 0
    at_ns: int | None = None
    world_size: int | None = None
    mark: str = ""
    """good, suspect, on probation; empty where it doesn't count."""
    pinned: bool = False
    on_lineage: bool = False
    """Whether it lies on the way to the run's head."""
    resumes: bool = False
    """Whether the next attempt would begin with it, were there no memory left."""
    why_not: str = ""
    """Why it can't be used; empty where it can."""


def checkpoints(state: RunState, run: str, found: Sequence[Found]) -> tuple[Row, ...]:
    """Return every checkpoint, by step and branch; what has no manifest comes last."""
    rows = [_row(state, run, each) for each in found]
    there = {each.manifest.snapshot for each in found if each.manifest is not None} | leaving(state)
    known = (snapshot for snapshot in state.catalogue if DISK in snapshot.tiers and snapshot.id not in there)
    rows += [_missing(state, snapshot) for snapshot in known]
    usable = [row for row in rows if row.on_lineage and not row.why_not and row.mark != "suspect"]
    if usable:
        newest = max(usable, key=lambda row: newness(state.lineage, _id(row)))
        rows = [row if row is not newest else replace(row, resumes=True) for row in rows]
    return tuple(sorted(rows, key=lambda row: (row.step is None, row.step or 0, row.branch or 0, row.name)))


def leaving(state: RunState) -> set[SnapshotId]:
    """Return the snapshots that are being deleted: whether anything of them is left is chance."""
    return {pending.body.snapshot for pending in state.pending if isinstance(pending.body, Prune)}


def _row(state: RunState, run: str, found: Found) -> Row:
    manifest = found.manifest
    if manifest is None:
        return Row(name=found.name, why_not=found.why_not)
    id = manifest.snapshot
    snapshot = find(state.catalogue, id)
    why_not = _why_not(state, run, manifest)
    return Row(
        name=found.name,
        step=id.step,
        branch=id.branch,
        bytes=manifest.bytes,
        at_ns=manifest.at_ns,
        world_size=manifest.world.size,
        mark="" if why_not else _mark(snapshot),
        pinned=snapshot is not None and snapshot.pinned,
        on_lineage=newness(state.lineage, id)[0] >= 0,
        why_not=why_not,
    )


def _why_not(state: RunState, run: str, manifest: Manifest) -> str:
    if manifest.run != run:
        return f"it is of another run ({manifest.run[:8]}…)"
    if state.term_of(manifest.order) != manifest.term:
        order = f"order {manifest.order} of term {manifest.term}"
        return f"the journal knows no {order}: a term that was cut wrote it"
    return ""


def _missing(state: RunState, snapshot: Snapshot) -> Row:
    return Row(
        name="",
        step=snapshot.id.step,
        branch=snapshot.id.branch,
        bytes=snapshot.bytes,
        at_ns=snapshot.at_ns,
        mark=_mark(snapshot),
        pinned=snapshot.pinned,
        on_lineage=newness(state.lineage, snapshot.id)[0] >= 0,
        why_not="the journal knows it, its directory is gone or damaged",
    )


def _mark(snapshot: Snapshot | None) -> str:
    return (snapshot.mark if snapshot is not None else "") or "on probation"


def _id(row: Row) -> SnapshotId:
    assert row.step is not None
    assert row.branch is not None
    return SnapshotId(row.step, row.branch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What reading every byte of a checkpoint has shown."""

    name: str
    bytes: int
    problems: tuple[Problem, ...]
    """None is well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor as a whole, whoever wrote its parts."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    parts: int
    """In how many pieces it is stored."""
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What is in a checkpoint."""

    name: str
    manifest: dict[str, Any]
    """As written, without the plain values."""
    tensors: tuple[Tensor, ...]
    """Plain values left out, largest first."""
    plain: dict[str, str]
    """Path → value in brief, of rank 0."""


def inspect(name: str, manifest: Manifest, manifest_json: Mapping[str, Any], index: Index) -> Inspection:
    """Return what is in a checkpoint; `manifest_json` is the manifest as it was written."""
    pieces: dict[str, list[tuple[str, Any]]] = {}
    for file in index.files:
        for piece in file.pieces:
            if not piece.entry.is_state:
                pieces.setdefault(piece.entry.name, []).append((file.name, piece.entry))
    tensors = []
    for stored, parts in pieces.items():
        entry = parts[0][1]
        tensors.append(
            Tensor(
                name=stored,
                dtype=entry.dtype,
                shape=entry.whole if entry.whole is not None else entry.shape,
                bytes=sum(part.stop - part.start for _, part in parts),
                parts=len(parts),
                files=tuple(sorted({file for file, _ in parts})),
            )
        )
    return Inspection(
        name=name,
        manifest={key: value for key, value in manifest_json.items() if key != "plain"},
        tensors=tuple(sorted(tensors, key=lambda tensor: (-tensor.bytes, tensor.name))),
        plain=dict(_flattened("", untag_plain(manifest.plain))),
    )


def _flattened(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flattened(f"{path}.{key}" if path else str(key), inner)
    else:
        yield path, _brief(value)


def _brief(value: Any) -> str:
    text = repr(value)
    if len(text) <= _PREVIEW_CHARS:
        return text
    if isinstance(value, list | tuple | set | bytes):
        return f"{type(value).__name__} of {len(value):,}"
    return f"{text[: _PREVIEW_CHARS - 1]}…"
