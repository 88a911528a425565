"""Whole checkpoints for tests, made the way a run makes them: boxes, shares, slots, files, manifest."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_hexdigest

from surefoot.checkpoint import slots
from surefoot.checkpoint.commit import commit
from surefoot.checkpoint.index import Index
from surefoot.checkpoint.layout import Box, Layout, box_bytes
from surefoot.checkpoint.records import Manifest, Part, PartSeal, World, directory, rank_file
from surefoot.checkpoint.sharing import assign
from surefoot.checkpoint.store import DiskStore
from surefoot.checkpoint.writer import seal_part, write_image
from surefoot.journal.codec import tag

RUN = "0" * 32

Values = Mapping[str, bytes]
"""The bytes of a rank's tensors by name."""


def values_of(boxes: Sequence[Box], seed: int = 0) -> dict[str, bytes]:
    """Return bytes for each box, other ones for another name, place or seed."""
    return {box.name: _bytes(f"{box.name} {box.offsets} {seed}", box_bytes(box)) for box in boxes}


def _bytes(of: str, size: int) -> bytes:
    return (xxh3_64_hexdigest(of.encode()).encode() * (size // 16 + 1))[:size]


def manifest_of(layout: str, parts: Sequence[PartSeal], total: int, world_size: int, **fields: Any) -> Manifest:
    """Return a manifest of step 12,000 on branch 3 in term 7."""
    about = Manifest(
        run=RUN, step=12_000, branch=3, lineage=((1, 0), (3, 40)), attempt=2, term=7, order=9, batch=24_000,
        sample=96_000, unit="sample", world=World(world_size), layout=layout, plain=tag({"rank": 0}),
        parts=tuple(parts), bytes=total, at_ns=1, versions={"surefoot": "0.1"},
    )  # fmt: skip
    return replace(about, **fields)


def save(
    store: DiskStore,
    boxes: Sequence[Sequence[Box]],
    values: Sequence[Values],
    plain: Sequence[dict[str, Any]] | None = None,
    **fields: Any,
) -> str:
    """Commit a checkpoint of these boxes and values, both by rank, and return its name."""
    world_size = len(boxes)
    hashes = [{name: xxh3_64_hexdigest(data) for name, data in owned.items()} for owned in values]
    shares = assign(boxes, hashes)
    layouts = [Layout.of(staged, rank, world_size) for rank, staged in enumerate(shares.staged)]
    index = Index.of(layouts, shares.held)
    about = manifest_of(index.layout, (), 0, world_size, **fields)
    name = directory(about.step, about.branch, about.term)
    files = []
    for layout in layouts:
        slot = slots.Slot(slots.make(layout.size, "test"))
        layout.write_header(slot.image)
        layout.write_plain(slot.image, plain[layout.rank] if plain else {"rank": layout.rank})
        for tensor, view in layout.views(slot.image).items():
            view[:] = values[layout.rank][tensor]
        file = rank_file(layout.rank)
        files.append(write_image(store, name, file, slot.fd, slots.IMAGE_OFFSET_BYTES, layout.size))
        slot.close()
    part = Part(
        run=about.run, step=about.step, branch=about.branch, attempt=about.attempt, term=about.term,
        order=about.order, node="n0", files=tuple(files), write_ns=1,
    )  # fmt: skip
    seal = seal_part(store, name, 0, part)
    manifest = replace(about, parts=(seal,), bytes=sum(file.bytes for file in files))
    commit(store, name, manifest, index, lambda: manifest.term)
    return name


def change(store: DiskStore, file: str, offset: int, data: bytes | None = None) -> None:
    """Overwrite bytes of a file in place, as rot does; without `data` the one byte there is changed."""
    path = store.root / file
    with path.open("r+b") as handle:
        handle.seek(offset)
        was = handle.read(1)
        os.pwrite(handle.fileno(), data if data is not None else bytes([was[0] ^ 1]), offset)


def descriptors() -> int:
    """Return how many descriptors this process has open; none of ours waits for the garbage collector."""
    return len(list(Path("/proc/self/fd").iterdir()))
