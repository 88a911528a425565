"""The merged index of a layout: which file holds which tensor, where, and for which ranks.

It follows from the layouts of all ranks and what each holds, so it is written once per layout and
hard-linked into each checkpoint. A reader opens it instead of every header; a rank finds there also
what lies in its neighbours' files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xxhash import xxh3_64

from surefoot.checkpoint.layout import Box, Entry, Layout, offsets_of, stored_name
from surefoot.checkpoint.records import FORMAT, dump, index_file, is_directory, rank_file
from surefoot.checkpoint.store import DiskStore
from surefoot.errors import CheckpointError, StoreUnavailable


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor or a part of one in a file, and who holds it in memory."""

    entry: Entry
    ranks: tuple[tuple[int, int], ...]
    """Half-open ranges."""

    def held_by(self, rank: int) -> bool:
        """Tell whether that rank needs it back at a restore."""
        return any(start <= rank < stop for start, stop in self.ranks)

    @property
    def local(self) -> bool:
        """Whether it is stored as one rank's own."""
        return self.entry.local_name != self.entry.name

    @property
    def box(self) -> Box:
        """The box as the ranks that hold it know it."""
        entry = self.entry
        several = sum(stop - start for start, stop in self.ranks) > 1
        replicated = not self.local and (several or entry.whole is None)
        offsets = entry.offsets if entry.whole is not None else None
        return Box(entry.local_name, entry.dtype, entry.shape, replicated, entry.whole, offsets)

    def fits(self, live: Box, rank: int, world_size: int) -> bool:
        """Tell whether a box of that rank of a job of that size is this part of this tensor."""
        entry = self.entry
        if (entry.local_name, entry.dtype, entry.shape) != (live.name, live.dtype, live.shape):
            return False
        if self.local:  # replicas that had diverged are each rank's own, with no place in a whole
            return True
        place = (live.whole or live.shape, offsets_of(live))
        stored = stored_name(live, rank, world_size)
        return stored == entry.name and place == (entry.whole or entry.shape, entry.offsets)


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """One file of tensors."""

    name: str
    bytes: int
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Index:
    """Every tensor of a checkpoint."""

    layout: str
    """The hash of all headers, which names the index."""
    files: tuple[IndexedFile, ...]
    format: int = FORMAT

    def check(self) -> None:
        """Raise ValueError if no files can be like this."""
        for file in self.files:
            for piece in file.pieces:
                piece.entry.check()
                if piece.entry.stop > file.bytes:
                    raise ValueError(f"{piece.entry} lies behind the end of {file.name}")

    @classmethod
    def of(cls, layouts: Sequence[Layout], held: Sequence[Sequence[Box]]) -> Index:
        """Merge the layouts of all ranks; `held` are the boxes each rank holds, by rank too.

        Raises `CheckpointError` naming what is held and not written once, or written and not held.
        """
        holders: dict[_Key, list[int]] = {}
        for layout, boxes in zip(layouts, held, strict=True):
            holders[_key(layout.state)] = [layout.rank]
            for box in boxes:
                key = stored_name(box, layout.rank, len(layouts)), offsets_of(box), box.shape
                holders.setdefault(key, []).append(layout.rank)
        entries = [entry for layout in layouts for entry in layout.entries]
        written = Counter((entry.name, entry.offsets) for entry in entries if entry.stop > entry.start)
        wrong = {name for (name, _), times in written.items() if times > 1}
        wrong |= {name for name, _, _ in holders.keys() ^ set(map(_key, entries))}
        if wrong:
            raise CheckpointError(
                f"no checkpoint can be made of these layouts: {', '.join(sorted(wrong))} "
                "should be written by exactly one of the ranks that hold it; mark what all ranks hold as "
                "replicated, give shards of one tensor offsets of their own, and what differs names of its own"
            )
        files = (
            IndexedFile(
                rank_file(layout.rank),
                layout.size,
                tuple(Piece(entry, _ranges(holders[_key(entry)])) for entry in layout.entries),
            )
            for layout in layouts
        )
        return cls(headers_hash(layout.header for layout in layouts), tuple(files))


_Key = tuple[str, tuple[int, ...], tuple[int, ...]]
"""Name as stored, place and shape: an empty shard may begin where another one does."""


def _key(entry: Entry) -> _Key:
    return entry.name, entry.offsets, entry.shape


def headers_hash(headers: Iterable[bytes]) -> str:
    """Return the hash of a layout: 16 hex digits over the headers of all files, in the order of ranks."""
    hashed = xxh3_64()
    for header in headers:
        hashed.update(header)
    return hashed.hexdigest()


def put_index(store: DiskStore, directory: str, index: Index) -> None:
    """Put the index into a checkpoint's directory, linked to an earlier one's if that has the same bytes."""
    data = dump(index)
    name = index_file(index.layout)
    for earlier in reversed(store.names()):
        if is_directory(earlier) and earlier != directory and _same(store, f"{earlier}/{name}", data):
            try:
                store.link(f"{earlier}/{name}", f"{directory}/{name}")
            except StoreUnavailable:  # no hard links here, or just pruned, or there already
                break
            store.sync_dir(directory)
            return
    store.put(f"{directory}/{name}", data)


def _same(store: DiskStore, name: str, data: bytes) -> bool:
    try:
        return store.size(name) == len(data) and store.read(name, len(data)) == data
    except CheckpointError:
        return False


def _ranges(ranks: Iterable[int]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if merged and merged[-1][1] == rank:
            merged[-1] = (merged[-1][0], rank + 1)
        else:
            merged.append((rank, rank + 1))
    return tuple(merged)
