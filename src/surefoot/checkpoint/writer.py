"""From memory to disk: one pass that writes and hashes, then the part that vouches for it.

The order is the promise: every byte of a file is on the disk before it has its name, every name
before the part that lists it, every part before the manifest (`commit`).
"""

from __future__ import annotations

import mmap

from xxhash import xxh3_64_hexdigest

from surefoot.checkpoint.records import CHUNK_BYTES, MANIFEST, FileSeal, Part, PartSeal, dump, part_file
from surefoot.checkpoint.store import DiskStore
from surefoot.errors import CheckpointError


def write_image(store: DiskStore, directory: str, name: str, fd: int, offset: int, size: int) -> FileSeal:
    """Write `size` bytes at `offset` of a slot as a file of the checkpoint, and return its seal.

    The slot must be whole and granted to nobody. Raises `CheckpointError` if that checkpoint is
    committed already, `StoreUnavailable` if the store refuses; nothing is left of the file then.
    """
    if store.size(f"{directory}/{MANIFEST}") is not None:
        raise CheckpointError(
            f"{store.root / directory} is committed: a checkpoint is never written twice; "
            "give the snapshot a step, branch or term of its own"
        )
    store.make_dir(directory)
    image = memoryview(mmap.mmap(fd, offset + size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ))[offset:]
    chunks = []
    with store.create(f"{directory}/{name}") as file:
        for start in range(0, size, CHUNK_BYTES):
            chunk = image[start : start + CHUNK_BYTES]
            chunks.append(xxh3_64_hexdigest(chunk))
            file.write(chunk, start)
    store.sync_dir(directory)
    return FileSeal(name, size, CHUNK_BYTES, tuple(chunks))


def seal_part(store: DiskStore, directory: str, number: int, part: Part) -> PartSeal:
    """Write the part of agent `number`, all its files being on the disk; return its entry of the manifest."""
    data = dump(part)
    name = part_file(number)
    store.put(f"{directory}/{name}", data)
    return PartSeal(name, len(data), xxh3_64_hexdigest(data))
