"""When a checkpoint begins and ceases to be one: its manifest is written last and deleted first.

Whatever happens between, a reader sees all of it or nothing: parts and index are durable before the
manifest is, and only the holder of the newest term gives it its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from xxhash import xxh3_64_hexdigest

from surefoot.checkpoint.index import Index, headers_hash, put_index
from surefoot.checkpoint.layout import HEADER_BYTES_MAX, Layout, parse
from surefoot.checkpoint.reader import Checkpoint
from surefoot.checkpoint.records import MANIFEST, FileSeal, Manifest, dump, is_directory
from surefoot.checkpoint.store import DiskStore, OldFile
from surefoot.errors import CheckpointError


def commit(
    store: DiskStore, directory: str, manifest: Manifest, index: Index, newest_term: Callable[[], int]
) -> None:
    """Make what was written to `directory` a checkpoint; every part must be durable already.

    `newest_term` looks at the lease, last of all before the manifest gets its name. Raises
    `CheckpointError` if another term has begun, `StoreUnavailable` if the store refuses.
    """
    if index.layout != manifest.layout:
        raise ValueError(f"the index is of layout {index.layout}, the manifest of {manifest.layout}")
    put_index(store, directory, index)
    with store.create(f"{directory}/{MANIFEST}") as file:
        file.write(dump(manifest), 0)
        file.sync()
        newest = newest_term()
        if newest != manifest.term:
            raise CheckpointError(
                f"{store.root / directory} is not committed: term {newest} has begun, this is {manifest.term}; "
                "another process holds the run now and this one has to end"
            )
    store.sync_dir(directory)


@dataclass(frozen=True, slots=True)
class Found:
    """A directory of the store that is named like a checkpoint."""

    name: str
    manifest: Manifest | None
    """None where it doesn't count."""
    why_not: str = ""


def discover(store: DiskStore) -> list[Found]:
    """Return every checkpoint and what looks like one, by name, each whole or with the reason why it isn't.

    Whole means that every part and file is there with the right size; `verify` reads the bytes.
    Raises `StoreUnavailable` where the store can't be listed: nothing found is not the same as nothing there.
    """
    found = []
    for name in filter(is_directory, store.names()):
        try:
            found.append(Found(name, Checkpoint.open(store, name).manifest))
        except CheckpointError as error:
            found.append(Found(name, None, str(error)))
    return found


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing in a checkpoint that is not what was sealed."""

    file: str
    what: str
    chunk: int | None = None
    expected: str = ""
    got: str = ""


def verify(store: DiskStore, name: str) -> list[Problem]:
    """Read every byte of a checkpoint and return all that is wrong with it; nothing is well."""
    try:
        checkpoint = Checkpoint.open(store, name)
        indexed = checkpoint.index.files
    except CheckpointError as error:
        return [Problem(name, str(error))]
    problems: list[Problem] = []
    headers: list[bytes] = []
    for expected in indexed:
        seal = checkpoint.files[expected.name]
        try:
            with store.open(f"{name}/{seal.name}") as file:
                problems += _bad_chunks(file, seal)
                layout = _layout(file, seal)
            headers.append(layout.header)
            if layout.entries != tuple(piece.entry for piece in expected.pieces):
                problems.append(Problem(seal.name, "its header and the index differ"))
        except CheckpointError as error:
            problems.append(Problem(seal.name, str(error)))
    got = headers_hash(headers)
    if got != checkpoint.manifest.layout and len(headers) == len(indexed):
        problems.append(Problem(MANIFEST, "hash of all headers", None, checkpoint.manifest.layout, got))
    strangers = {file for file in store.names(name) if file.endswith(".safetensors")} - checkpoint.files.keys()
    # A stock reader loads every file of tensors in the directory.
    return problems + [Problem(file, "in no part of this checkpoint") for file in sorted(strangers)]


def delete(store: DiskStore, name: str) -> None:
    """Delete a checkpoint, its manifest first: stopped at any point it is whole or none at all.

    Does the rest if a deletion was cut short, nothing if it is gone. Files that others are hard-linked
    to stay with those. Raises `StoreUnavailable` if the store refuses.
    """
    if not is_directory(name):
        raise ValueError(f"{name!r} is not the name of a checkpoint")
    if not store.is_dir(name):
        return
    store.remove(f"{name}/{MANIFEST}")
    store.sync_dir(name)
    for file in store.names(name):
        store.remove(f"{name}/{file}")
    store.remove_dir(name)
    store.sync_dir()


def _bad_chunks(file: OldFile, seal: FileSeal) -> Iterator[Problem]:
    buffer = memoryview(bytearray(min(seal.chunk_bytes, seal.bytes)))
    for number, expected in enumerate(seal.chunks):
        start, stop = seal.chunk(number)
        data = buffer[: stop - start]
        file.read_into(start, data)
        got = xxh3_64_hexdigest(data)
        if got != expected:
            yield Problem(seal.name, f"bytes {start:,} to {stop:,}", number, expected, got)


def _layout(file: OldFile, seal: FileSeal) -> Layout:
    begin = bytearray(8)
    file.read_into(0, memoryview(begin))
    header = bytearray(min(8 + int.from_bytes(begin, "little"), 8 + HEADER_BYTES_MAX, seal.bytes))
    file.read_into(0, memoryview(header))
    return parse(header, seal.bytes)
