"""Reading a committed checkpoint: nothing reaches the training that differs from what was sealed.

Opening checks the chain from the manifest to the parts to the sizes of the files; reading checks
every chunk it touches in the same pass, holding one chunk at most. A tensor is found wherever it
lies: a replicated one is in the file of whichever rank wrote it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from xxhash import xxh3_64_hexdigest

from surefoot.checkpoint.index import Index, Piece
from surefoot.checkpoint.layout import Box, unpack_plain, untag_plain
from surefoot.checkpoint.records import (
    MANIFEST,
    MANIFEST_BYTES_MAX,
    FileSeal,
    Manifest,
    Part,
    index_file,
    load,
    read_record,
)
from surefoot.checkpoint.store import DiskStore
from surefoot.errors import CorruptCheckpoint, StateMismatch

Want = tuple[int, int, memoryview]
"""Bytes [start, stop) of a file and where they go."""


class Checkpoint:
    """One complete checkpoint: manifest and parts agree, every file is there at its full size."""

    def __init__(self, store: DiskStore, name: str, manifest: Manifest, files: dict[str, FileSeal]) -> None:
        self.store = store
        self.name = name
        self.manifest = manifest
        self.files = files
        """Name → seal of every file of tensors."""

    @classmethod
    def open(cls, store: DiskStore, name: str) -> Checkpoint:
        """Open the checkpoint in that directory of the store.

        Raises `CorruptCheckpoint` saying why it is none or not whole, `CheckpointError` for a newer
        format, `StoreUnavailable` where the store doesn't answer.
        """
        if not store.is_dir(name):
            raise CorruptCheckpoint(
                f"{store.root / name} is no directory: expected a checkpoint; use another one"
            )
        if store.size(f"{name}/{MANIFEST}") is None:
            raise CorruptCheckpoint(
                f"{store.root / name} has no {MANIFEST}: it was never finished, or is being deleted; "
                "use another one"
            )
        manifest = read_record(store, Manifest, f"{name}/{MANIFEST}")
        files: dict[str, FileSeal] = {}
        for part in _parts(store, name, manifest):
            for seal in part.files:
                size = store.size(f"{name}/{seal.name}")
                if size != seal.bytes or seal.name in files:
                    found = "is listed twice" if seal.name in files else f"has {size} bytes"
                    raise differs(store, f"{name}/{seal.name}", found, f"{seal.bytes} bytes, listed once")
                files[seal.name] = seal
        total = sum(seal.bytes for seal in files.values())
        if total != manifest.bytes:
            raise differs(store, name, f"lists files of {total} bytes", f"{manifest.bytes}")
        if store.size(f"{name}/{index_file(manifest.layout)}") is None:
            raise differs(store, name, f"lacks {index_file(manifest.layout)}", "the index of its tensors")
        return cls(store, name, manifest, files)

    @cached_property
    def index(self) -> Index:
        """Where every tensor lies; read when first asked for."""
        path = f"{self.name}/{index_file(self.manifest.layout)}"
        index = read_record(self.store, Index, path)
        indexed = sorted((file.name, file.bytes) for file in index.files)
        sealed = sorted((seal.name, seal.bytes) for seal in self.files.values())
        if index.layout != self.manifest.layout or indexed != sealed:
            raise differs(self.store, path, f"is of layout {index.layout} and {indexed}", f"{sealed}")
        return index

    @property
    def names(self) -> tuple[str, ...]:
        """The name of every tensor as stored, those of the plain values included."""
        return tuple(dict.fromkeys(piece.entry.name for file in self.index.files for piece in file.pieces))

    def boxes(self, rank: int, world_size: int, live: Iterable[Box] = ()) -> tuple[Box, ...]:
        """Return what the checkpoint holds for one rank of a job of that size, plain values left out.

        A job of another size gets what every rank held. Raises `StateMismatch` naming what can't be
        shared out anew then (shards, what was only some ranks' own), or which of the `live` boxes
        are there in another dtype, shape or place.
        """
        saved = self.manifest.world.size
        where = f"{self.store.root / self.name} is from {saved} ranks"
        if world_size != saved:
            pieces = [piece for file in self.index.files for piece in file.pieces]
            stuck = [p.entry.name for p in pieces if not p.entry.is_state and p.ranks != ((0, saved),)]
            if stuck:
                raise StateMismatch(
                    f"{where}, this job has {world_size}: {_some(sorted(set(stuck)))} can't be shared out "
                    f"anew; start with {saved} ranks, or from another checkpoint"
                )
        held = self._held(rank)
        changed = [
            f"{box.name} (there {held[box.name][1].box}, here {box})"
            for box in live
            if box.name in held and not held[box.name][1].fits(box, rank, world_size)
        ]
        if changed:
            raise StateMismatch(
                f"{where} and differs from rank {rank} of {world_size} in {_some(changed)}; expected the same "
                "dtypes, shapes and placements; start with the same model and ranks, or from another checkpoint"
            )
        return tuple(piece.box for _, piece in held.values())

    def plain(self, rank: int) -> dict[str, Any]:
        """Return a rank's plain values; for a rank that the checkpoint hasn't, rank 0's from the manifest."""
        for file in self.index.files:
            for entry in (piece.entry for piece in file.pieces):
                if entry.name == f"rank.{rank}.state":
                    packed = memoryview(bytearray(entry.stop - entry.start))
                    self._read_file(self.files[file.name], [(entry.start, entry.stop, packed)])
                    return unpack_plain(packed)
        return untag_plain(self.manifest.plain)

    def read(self, into: Mapping[str, memoryview], rank: int) -> None:
        """Fill each buffer with the tensor of that name as the rank holds it: C order, native endian.

        `boxes` says which there are. Raises `StateMismatch` before anything is read, naming every
        tensor that isn't there in the buffer's size; `CorruptCheckpoint` naming file, chunk, expected
        and got: the buffers hold nothing of use then.
        """
        held = self._held(rank)
        wanted: dict[str, list[Want]] = {}
        missing = []
        for name, buffer in into.items():
            file, piece = held.get(name, ("", None))
            size = None if piece is None else piece.entry.stop - piece.entry.start
            if piece is None or size != buffer.nbytes:
                missing.append(f"{name} ({buffer.nbytes} bytes asked for, {size or 'nothing'} there)")
            elif size:
                wanted.setdefault(file, []).append((piece.entry.start, piece.entry.stop, buffer.cast("B")))
        if missing:
            raise StateMismatch(
                f"{self.store.root / self.name} does not hold for rank {rank} {_some(missing)}; expected what "
                "it was saved with; start with the same model and ranks, or from another checkpoint"
            )
        for file, wants in wanted.items():
            self._read_file(self.files[file], wants)

    def _held(self, rank: int) -> dict[str, tuple[str, Piece]]:
        """Return (file, piece) by name for all that a rank held; for a rank that wasn't, what all held."""
        saved = self.manifest.world.size
        return {
            piece.entry.local_name: (file.name, piece)
            for file in self.index.files
            for piece in file.pieces
            if not piece.entry.is_state
            and (piece.held_by(rank) if rank < saved else piece.ranks == ((0, saved),))
        }

    def _read_file(self, seal: FileSeal, wants: list[Want]) -> None:
        """Read parts of a file: each chunk that one of them touches once and whole."""
        touched: dict[int, list[Want]] = {}
        for want in wants:
            for chunk in range(want[0] // seal.chunk_bytes, (want[1] - 1) // seal.chunk_bytes + 1):
                touched.setdefault(chunk, []).append(want)
        path = f"{self.name}/{seal.name}"
        bounce = memoryview(bytearray(min(seal.chunk_bytes, seal.bytes)))
        with self.store.open(path) as file:
            for chunk, here in sorted(touched.items(), key=lambda item: item[0]):
                low, high = seal.chunk(chunk)
                start, stop, view = here[0]
                direct = len(here) == 1 and start <= low and high <= stop
                data = view[low - start : high - start] if direct else bounce[: high - low]
                file.read_into(low, data)
                got = xxh3_64_hexdigest(data)
                if got != seal.chunks[chunk]:
                    raise differs(self.store, path, f"has hash {got} in chunk {chunk}", seal.chunks[chunk])
                for start, stop, view in () if direct else here:
                    begin, end = max(start, low), min(stop, high)
                    view[begin - start : end - start] = data[begin - low : end - low]


def differs(store: DiskStore, name: str, found: str, expected: str) -> CorruptCheckpoint:
    """Return the error for bytes that are not what was sealed."""
    return CorruptCheckpoint(
        f"{store.root / name} {found}, expected {expected}: it is not what was written; use another checkpoint"
    )


def _parts(store: DiskStore, name: str, manifest: Manifest) -> Iterator[Part]:
    """Yield the parts that the manifest names, each compared with what the manifest says."""
    for seal in manifest.parts:
        path = f"{name}/{seal.name}"
        data = store.read(path, MANIFEST_BYTES_MAX)
        got = xxh3_64_hexdigest(data)
        if (len(data), got) != (seal.bytes, seal.xxh3):
            raise differs(store, path, f"has {len(data)} bytes and hash {got}", f"{seal.bytes} and {seal.xxh3}")
        part = load(Part, data, path)
        of = (part.run, part.step, part.branch)
        if of != (manifest.run, manifest.step, manifest.branch):
            raise differs(store, path, f"is of (run, step, branch) {of}", "those of the manifest")
        yield part


def _some(names: list[str]) -> str:
    """Return names for a message, the first few of very many."""
    return ", ".join(names[:20]) + (f" and {len(names) - 20:,} more" if len(names) > 20 else "")
