"""Writing an image and sealing what was written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.checkpoints import RUN, save, values_of
from xxhash import xxh3_64_hexdigest

from surefoot.checkpoint import slots
from surefoot.checkpoint.layout import Box
from surefoot.checkpoint.records import CHUNK_BYTES, Part, read_record
from surefoot.checkpoint.slots import IMAGE_OFFSET_BYTES, Slot
from surefoot.checkpoint.store import DiskStore
from surefoot.checkpoint.writer import seal_part, write_image
from surefoot.errors import CheckpointError, StoreUnavailable

NAME = "000000001.b0001.t0001"
FILE = "rank-00000.safetensors"


def filled(size: int) -> Slot:
    slot = Slot(slots.make(size, "test"))
    slot.image[:] = os.urandom(size)
    return slot


@pytest.mark.parametrize("size", [1, CHUNK_BYTES, 2 * CHUNK_BYTES + 3])
def test_an_image_is_written_and_hashed_in_chunks(tmp_path: Path, size: int) -> None:
    """The file is the image byte for byte, the seal has its size and the hash of every chunk."""
    store, slot = DiskStore(tmp_path / "c"), filled(size)
    seal = write_image(store, NAME, FILE, slot.fd, IMAGE_OFFSET_BYTES, size)
    image = bytes(slot.image)
    assert (tmp_path / "c" / NAME / FILE).read_bytes() == image
    assert (seal.name, seal.bytes, seal.chunk_bytes) == (FILE, size, CHUNK_BYTES)
    assert list(seal.chunks) == [
        xxh3_64_hexdigest(image[start : start + CHUNK_BYTES]) for start in range(0, size, CHUNK_BYTES)
    ]
    seal.check()
    slot.close()


def test_a_committed_checkpoint_is_never_written_again(tmp_path: Path) -> None:
    """Writing into a directory with a manifest is refused and changes nothing."""
    store, slot, boxes = DiskStore(tmp_path), filled(10), (Box("w", "F32", (2,)),)
    name = save(store, [boxes], [values_of(boxes)])
    before = (tmp_path / name / FILE).read_bytes()
    with pytest.raises(CheckpointError, match="never written twice"):
        write_image(store, name, FILE, slot.fd, IMAGE_OFFSET_BYTES, 10)
    assert (tmp_path / name / FILE).read_bytes() == before
    slot.close()


def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    """When a write fails the bytes written so far are given back, and the next try may succeed."""

    def full(_: int, what: str) -> None:
        if what.startswith("write") and blocked:
            raise OSError(errno.ENOSPC, "No space left on device")

    blocked = True
    store, slot = DiskStore(tmp_path, full), filled(10)
    with pytest.raises(StoreUnavailable, match="No space left"):
        write_image(store, NAME, FILE, slot.fd, IMAGE_OFFSET_BYTES, 10)
    assert store.names(NAME) == []
    blocked = False
    write_image(store, NAME, FILE, slot.fd, IMAGE_OFFSET_BYTES, 10)
    assert store.names(NAME) == [FILE]
    slot.close()


def test_files_are_durable_before_the_part(tmp_path: Path) -> None:
    """File and directory are synced before a part that lists the file is even created."""
    done: list[str] = []
    store, slot = DiskStore(tmp_path, lambda _, what: done.append(what)), filled(10)
    seal = write_image(store, NAME, FILE, slot.fd, IMAGE_OFFSET_BYTES, 10)
    part = Part(
        run=RUN, step=1, branch=1, attempt=1, term=1, order=1, node="n", files=(seal,), write_ns=5
    )  # fmt: skip
    vouched = seal_part(store, NAME, 3, part)
    file, directory = f"{NAME}/{FILE}", f"fsync dir {NAME}"
    places = [done.index(f"{what} {file}") for what in ("fsync", "rename")]
    places += [done.index(directory, places[1]), done.index(f"create {NAME}/part-00003.json")]
    assert places == sorted(places)
    data = (tmp_path / NAME / "part-00003.json").read_bytes()
    assert (vouched.name, vouched.bytes, vouched.xxh3) == (
        "part-00003.json",
        len(data),
        xxh3_64_hexdigest(data),
    )
    assert read_record(store, Part, f"{NAME}/part-00003.json") == part
    slot.close()
