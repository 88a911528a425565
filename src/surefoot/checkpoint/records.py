"""What lies beside the tensors of a checkpoint: names, parts, manifest (formats §6).

Each is one sealed JSON file. A record that was read has been checked: its seal, its format, and
everything that a reader would otherwise stumble over, so that what holds a `Part` or a `Manifest`
need not look again. The manifest decides what a checkpoint is; directory names are for people.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from surefoot.checkpoint.store import DiskStore
from surefoot.core.numbers import Lineage, SnapshotId
from surefoot.errors import CheckpointError, CorruptCheckpoint, JournalError
from surefoot.journal.codec import from_json, seal, to_json, unseal

FORMAT = 1
MANIFEST = "manifest.json"
MANIFEST_BYTES_MAX = 64 << 20
"""Also of a part and of an index."""
CHUNK_BYTES = 8 << 20
CHUNK_BYTES_MAX = 64 << 20
"""A reader holds one chunk in memory, whatever a part says."""


class Record(Protocol):
    """What is kept in a sealed file of its own."""

    def check(self) -> None:
        """Raise ValueError if it isn't one, though its seal is whole."""
        ...


R = TypeVar("R", bound=Record)

_DIRECTORY = re.compile(r"[0-9]{9,}\.b[0-9]{4,}\.t[0-9]{4,}")
_PART = re.compile(r"part-[0-9]{5,}\.json")
_TENSORS = re.compile(r"(rank-[0-9]{5,}(\.[0-9]+)?|frozen-[0-9a-f]{16})\.safetensors")
_HASH = re.compile(r"[0-9a-f]{16}")


def directory(step: int, branch: int, term: int) -> str:
    """Return the name of a checkpoint's directory: `000012000.b0003.t0007`."""
    return f"{step:09d}.b{branch:04d}.t{term:04d}"


def is_directory(name: str) -> bool:
    """Tell whether a name is one that `directory` gives."""
    return _DIRECTORY.fullmatch(name) is not None


def rank_file(rank: int) -> str:
    """Return the name of what a rank writes."""
    return f"rank-{rank:05d}.safetensors"


def part_file(number: int) -> str:
    """Return the name of the part of the writing agent with that number."""
    return f"part-{number:05d}.json"


def index_file(layout: str) -> str:
    """Return the name of the merged index of a layout."""
    return f"layout-{layout}.json"


@dataclass(frozen=True, slots=True)
class FileSeal:
    """A file of tensors with the hash of each of its chunks."""

    name: str
    bytes: int
    chunk_bytes: int
    chunks: tuple[str, ...]
    """16 hex digits of xxh3_64 each, in order; the last chunk may be shorter."""

    def check(self) -> None:
        """Raise ValueError if no file can be like this."""
        _expect(_TENSORS.fullmatch(self.name), "name of a file", self.name)
        _expect(_count(self.bytes) and _count(self.chunk_bytes), "bytes", (self.bytes, self.chunk_bytes))
        _expect(0 < self.chunk_bytes <= CHUNK_BYTES_MAX, "chunk_bytes", self.chunk_bytes)
        _expect(len(self.chunks) == -(-self.bytes // self.chunk_bytes), "number of chunks", len(self.chunks))
        _expect(all(_HASH.fullmatch(chunk) for chunk in self.chunks), "hashes of", self.name)

    def chunk(self, number: int) -> tuple[int, int]:
        """Return the bytes [start, stop) of a chunk."""
        start = number * self.chunk_bytes
        return start, min(start + self.chunk_bytes, self.bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one agent wrote, when all of it is on the disk."""

    run: str
    step: int
    branch: int
    attempt: int
    term: int
    order: int
    node: str
    files: tuple[FileSeal, ...]
    write_ns: int
    format: int = FORMAT

    def check(self) -> None:
        """Raise ValueError if no part can be like this."""
        for file in self.files:
            file.check()


@dataclass(frozen=True, slots=True)
class PartSeal:
    """A part as the manifest names it."""

    name: str
    bytes: int
    xxh3: str
    """16 hex digits of xxh3_64 over the file."""

    def check(self) -> None:
        """Raise ValueError if no part can be like this."""
        _expect(_PART.fullmatch(self.name), "name of a part", self.name)
        _expect(_count(self.bytes), "bytes", self.bytes)
        _expect(_HASH.fullmatch(self.xxh3), "hash", self.xxh3)


@dataclass(frozen=True, slots=True)
class World:
    """The ranks that a checkpoint is from."""

    size: int
    mesh: tuple[int, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What makes a checkpoint one: written last, and complete in itself but for the tensors."""

    run: str
    step: int
    branch: int
    lineage: Lineage
    attempt: int
    term: int
    order: int
    batch: int
    sample: int
    unit: str
    world: World
    layout: str
    """Hash of all headers, and so of the index."""
    plain: dict[str, Any]
    """Rank 0's plain values, tagged (formats §2)."""
    parts: tuple[PartSeal, ...]
    bytes: int
    """Of all files of tensors."""
    at_ns: int
    versions: dict[str, str]
    skips: tuple[Any, ...] = ()
    """Like `lr_spans` for readers only: the journal decides."""
    lr_spans: tuple[Any, ...] = ()
    format: int = FORMAT

    def check(self) -> None:
        """Raise ValueError if no manifest can be like this."""
        for part in self.parts:
            part.check()
        numbers = (self.step, self.branch, self.attempt, self.term, self.order, self.batch, self.sample)
        _expect(all(map(_count, (*numbers, self.bytes, self.world.size))), "numbers", numbers)
        _expect(isinstance(self.plain, dict), "plain", type(self.plain).__name__)
        _expect(_HASH.fullmatch(self.layout), "layout", self.layout)
        _expect(len({part.name for part in self.parts}) == len(self.parts) > 0, "parts", len(self.parts))

    @property
    def snapshot(self) -> SnapshotId:
        """What the checkpoint holds."""
        return SnapshotId(self.step, self.branch)


def dump(record: Record) -> bytes:
    """Return the file of a record."""
    return seal(to_json(record))


def load(kind: type[R], data: bytes, name: str) -> R:
    """Return the record in a file of that name; raises `CorruptCheckpoint` saying what is wrong."""
    try:
        content = unseal(data)
        if content.get("format", FORMAT) != FORMAT:
            raise CheckpointError(
                f"{name} has format {content['format']}, this surefoot reads {FORMAT}: use the version "
                f"that wrote it ({content.get('versions', 'which it does not say')})"
            )
        record = from_json(kind, content)
        record.check()
    except (JournalError, ValueError, TypeError, AttributeError) as error:
        raise CorruptCheckpoint(
            f"{name} is no {kind.__name__.lower()}: {error}; expected what was sealed when it was written; "
            "use another checkpoint"
        ) from error
    return record


def read_record(store: DiskStore, kind: type[R], name: str) -> R:
    """Read one record; raises as `load`, and `StoreUnavailable`."""
    return load(kind, store.read(name, MANIFEST_BYTES_MAX), name)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _expect(holds: Any, what: str, got: Any) -> None:
    if not holds:
        raise ValueError(f"{what}: {got!r}"[:200])
