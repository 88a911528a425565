"""Reading a checkpoint: what every rank gets back, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints import change, descriptors, save, values_of
from xxhash import xxh3_64_hexdigest

from surefoot.checkpoint import reader, records
from surefoot.checkpoint.index import Index
from surefoot.checkpoint.layout import Box, box_bytes
from surefoot.checkpoint.reader import Checkpoint
from surefoot.checkpoint.records import CHUNK_BYTES, MANIFEST, Manifest, Part, dump, read_record
from surefoot.checkpoint.store import DiskStore
from surefoot.errors import CheckpointError, CorruptCheckpoint, StateMismatch
from surefoot.journal.codec import seal, to_json

SHARED = (
    Box("model.w", "F32", (3, 5), replicated=True),
    Box("model.b", "F32", (), replicated=True),
    Box("model.z", "F32", (0, 2), replicated=True),
)


def rank_boxes(rank: int) -> tuple[Box, ...]:
    return (
        *SHARED,
        Box("shard", "F16", (2, 2), whole=(4, 2), offsets=(2 * rank, 0)),
        Box("expert", "I64", (2,)),
    )


TWO = (rank_boxes(0), rank_boxes(1))
VALUES = tuple({**values_of(boxes, seed=rank), **values_of(SHARED)} for rank, boxes in enumerate(TWO))


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path / "checkpoints")


def buffers(boxes: tuple[Box, ...]) -> dict[str, memoryview]:
    return {box.name: memoryview(bytearray(box_bytes(box))) for box in boxes}


def restore(store: DiskStore, name: str, rank: int) -> None:
    """Read everything that a rank needs."""
    checkpoint = Checkpoint.open(store, name)
    checkpoint.read(buffers(checkpoint.boxes(rank, len(TWO))), rank)
    checkpoint.plain(rank)


def resealed(store: DiskStore, name: str, **fields: Any) -> None:
    """Write another manifest over a checkpoint's, its seal whole."""
    manifest = read_record(store, Manifest, f"{name}/{MANIFEST}")
    store.put(f"{name}/{MANIFEST}", dump(replace(manifest, **fields)))


def repart(store: DiskStore, name: str, data: bytes) -> None:
    """Write another part over a checkpoint's, and a manifest that vouches for it."""
    vouched = records.PartSeal("part-00000.json", len(data), xxh3_64_hexdigest(data))
    store.put(f"{name}/part-00000.json", data)
    resealed(store, name, parts=(vouched,))


def test_every_rank_gets_what_it_had(store: DiskStore) -> None:
    """Shared tensors come from whichever file holds them, shards and what is a rank's own from its file."""
    plain = [{"rng": (1, 2)}, {"rng": (3, 4)}]
    checkpoint = Checkpoint.open(store, save(store, TWO, VALUES, plain))
    for rank, boxes in enumerate(TWO):
        found = checkpoint.boxes(rank, 2, live=boxes)
        assert {box.name for box in found} == {box.name for box in boxes}
        into = buffers(found)
        checkpoint.read(into, rank)
        assert {name: bytes(view) for name, view in into.items()} == VALUES[rank]
        assert checkpoint.plain(rank) == plain[rank]
    assert checkpoint.names.count("model.w") == 1
    assert {"rank.0.expert", "rank.1.expert", "shard", "rank.1.state"} <= set(checkpoint.names)


def test_chunks_are_read_straight_or_by_way_of_one(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor over many chunks, and many tensors in one, come back; memory is one chunk beside the buffers."""
    boxes = (Box("large", "U8", (2 * CHUNK_BYTES + 5,)), *(Box(f"n{i}", "U8", (i,)) for i in range(5)))
    values = values_of(boxes)
    checkpoint = Checkpoint.open(store, save(store, [boxes], [values]))
    into = buffers(boxes)
    made: list[int] = []

    def counted(size: int) -> bytearray:
        made.append(size)
        return bytearray(size)

    monkeypatch.setattr(reader, "bytearray", counted, raising=False)
    checkpoint.read(into, 0)
    assert {name: bytes(view) for name, view in into.items()} == values
    assert made == [CHUNK_BYTES]


def test_one_tensor_touches_its_chunks_only(store: DiskStore) -> None:
    """Rot in another chunk does not keep a tensor from being read; in its own it always does."""
    boxes = (Box("a", "U8", (CHUNK_BYTES,)), Box("b", "U8", (CHUNK_BYTES,)), Box("c", "U8", (CHUNK_BYTES,)))
    name = save(store, [boxes], [values_of(boxes)])
    change(store, f"{name}/rank-00000.safetensors", 3 * CHUNK_BYTES)
    checkpoint = Checkpoint.open(store, name)
    checkpoint.read(buffers(boxes[:1]), 0)
    got = r"rank-00000.safetensors has hash [0-9a-f]{16} in chunk 3, expected [0-9a-f]{16}"
    with pytest.raises(CorruptCheckpoint, match=got):
        checkpoint.read(buffers(boxes[2:]), 0)


def test_buffers_of_any_kind(store: DiskStore) -> None:
    """A buffer may have items and dimensions of its own as long as it has the size."""
    boxes = (Box("w", "F32", (2, 3)),)
    checkpoint = Checkpoint.open(store, save(store, [boxes], [values_of(boxes)]))
    typed: memoryview = memoryview(bytearray(24)).cast("i", (2, 3))
    checkpoint.read({"w": typed}, 0)
    assert typed.tobytes() == values_of(boxes)["w"]


def test_what_is_not_there_is_named_before_anything_is_read(store: DiskStore) -> None:
    """Unknown names and other sizes are listed, and no buffer has changed."""
    checkpoint = Checkpoint.open(store, save(store, TWO, VALUES))
    good, other, unknown = (memoryview(bytearray(size)) for size in (60, 8, 4))
    listed = r"model\.b \(8 bytes asked for, 4 there\), x \(4 .* nothing there\)"
    with pytest.raises(StateMismatch, match=listed):
        checkpoint.read({"model.w": good, "model.b": other, "x": unknown}, 0)
    assert not any(good)


@pytest.mark.parametrize(
    "live",
    [
        Box("model.w", "BF16", (3, 5), True),
        Box("model.w", "F32", (5, 3), True),
        Box("model.w", "F32", (3, 5), True, (6, 5), (3, 0)),
        Box("model.w", "F32", (3, 5)),
        Box("shard", "F16", (2, 2), whole=(4, 2), offsets=(2, 0)),
        Box("shard", "F16", (2, 2), whole=(8, 2), offsets=(0, 0)),
        Box("expert", "F64", (2,)),
    ],
)
def test_a_changed_box_is_named(store: DiskStore, live: Box) -> None:
    """Another dtype, shape or place of a live tensor is a mismatch that names both sides."""
    checkpoint = Checkpoint.open(store, save(store, TWO, VALUES))
    with pytest.raises(StateMismatch, match=f"{live.name} .there Box.*here Box"):
        checkpoint.boxes(0, 2, live=[live])


def test_another_world_gets_what_all_had(store: DiskStore) -> None:
    """A job of another size restores what was replicated, and rank 0's plain values on new ranks."""
    shared = [{**values_of(SHARED)}] * 2
    checkpoint = Checkpoint.open(store, save(store, [SHARED, SHARED], shared, plain=[{"a": 1}, {"a": 2}]))
    for rank, world_size in ((0, 1), (2, 3), (1, 3)):
        into = buffers(checkpoint.boxes(rank, world_size, live=SHARED))
        checkpoint.read(into, rank)
        assert {name: bytes(view) for name, view in into.items()} == values_of(SHARED)
    assert [checkpoint.plain(rank) for rank in (0, 1, 2)] == [{"a": 1}, {"a": 2}, {"rank": 0}]


def test_another_world_never_loses_a_share(store: DiskStore) -> None:
    """Shards and what was a rank's own are refused by name where the number of ranks differs."""
    checkpoint = Checkpoint.open(store, save(store, TWO, VALUES))
    for world_size in (1, 3):
        with pytest.raises(
            StateMismatch, match=r"rank\.0\.expert, rank\.1\.expert, shard can't be shared out anew"
        ):
            checkpoint.boxes(0, world_size)


def test_one_rank_grown_to_several(store: DiskStore) -> None:
    """What a single rank saved is restored where it is replicated now, not where each rank has its own."""
    boxes = (Box("w", "F32", (2,)),)
    checkpoint = Checkpoint.open(store, save(store, [boxes], [values_of(boxes)]))
    assert checkpoint.boxes(1, 2, live=[Box("w", "F32", (2,), replicated=True)])
    with pytest.raises(StateMismatch):
        checkpoint.boxes(1, 2, live=[Box("w", "F32", (2,))])


def test_diverged_replicas_come_back_apart(store: DiskStore) -> None:
    """Replicas that had drifted apart are each restored to the rank that had them."""
    box = Box("w", "U8", (4,), replicated=True)
    checkpoint = Checkpoint.open(store, save(store, [[box], [box]], [{"w": b"aaaa"}, {"w": b"bbbb"}]))
    for rank, value in enumerate((b"aaaa", b"bbbb")):
        into = buffers(checkpoint.boxes(rank, 2, live=[box]))
        checkpoint.read(into, rank)
        assert bytes(into["w"]) == value


def test_what_some_ranks_share_stays_theirs(store: DiskStore) -> None:
    """A tensor that two of three ranks hold is read by those two, whoever staged it; the third has none."""
    box = Box("stage", "U8", (4,), replicated=True)
    value = {"stage": b"abcd"}
    checkpoint = Checkpoint.open(store, save(store, [[box], [], [box]], [value, {}, value]))
    for rank in (0, 2):
        into = buffers(checkpoint.boxes(rank, 3))
        checkpoint.read(into, rank)
        assert bytes(into["stage"]) == b"abcd"
    assert checkpoint.boxes(1, 3) == ()


def test_an_empty_shard_may_lie_where_another_begins(store: DiskStore) -> None:
    """A rank whose shard is empty gets its own back, also at the place of somebody else's."""
    full, empty = Box("s", "U8", (4,), whole=(4,), offsets=(0,)), Box("s", "U8", (0,), whole=(4,), offsets=(0,))
    checkpoint = Checkpoint.open(store, save(store, [[full], [empty]], [{"s": b"abcd"}, {"s": b""}]))
    for rank, box in enumerate((full, empty)):
        assert checkpoint.boxes(rank, 2, live=[box]) == (box,)


@pytest.mark.parametrize("file", ["manifest.json", "part-00000.json", "rank-00001.safetensors", "layout"])
@pytest.mark.parametrize("how", ["gone", "cut", "grown", "flipped", "link"])
def test_damage_is_noticed(store: DiskStore, tmp_path: Path, file: str, how: str) -> None:
    """A file that is gone, shorter, longer, changed or a link is corrupt, at the latest when it is read."""
    name = save(store, TWO, VALUES)
    path = next((store.root / name).glob(f"{file}*"))
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif how == "grown":
        path.write_bytes(path.read_bytes() + b" ")
    elif how == "flipped":
        change(store, f"{name}/{path.name}", path.stat().st_size // 2)
    else:
        path.rename(tmp_path / "elsewhere")
        if how == "link":
            path.symlink_to(tmp_path / "elsewhere")
    before = descriptors()
    with pytest.raises(CorruptCheckpoint, match=path.name):
        restore(store, name, 1)
    assert descriptors() == before


def test_a_directory_that_is_a_link_is_none(store: DiskStore, tmp_path: Path) -> None:
    """A checkpoint that is a symbolic link to a directory is refused."""
    name = save(store, TWO, VALUES)
    (store.root / name).rename(tmp_path / "moved")
    (store.root / name).symlink_to(tmp_path / "moved")
    with pytest.raises(CorruptCheckpoint, match="no directory"):
        Checkpoint.open(store, name)


@pytest.mark.parametrize(
    "fields",
    [
        {"bytes": 1},
        {"run": "another"},
        {"step": 1},
        {"layout": "0" * 16},
        {"layout": "../../../../etc"},
        {"parts": (records.PartSeal("../../x.json", 1, "0" * 16),)},
        {"parts": (records.PartSeal("part-00007.json", 1, "0" * 16),)},
        {"parts": ()},
        {"step": True},
        {"batch": -1},
        {"plain": [1]},
        {"world": 3},
        {"lineage": 3},
    ],
)
def test_a_manifest_that_contradicts_is_refused(store: DiskStore, fields: dict[str, Any]) -> None:
    """A whole seal is no proof: a manifest that doesn't fit its parts, or leads elsewhere, is corrupt."""
    name = save(store, TWO, VALUES)
    content = json.loads((store.root / name / MANIFEST).read_bytes())
    del content["check"]
    if "parts" in fields:
        fields = {"parts": [to_json(part) for part in fields["parts"]]}
    store.put(f"{name}/{MANIFEST}", seal(content | fields))
    with pytest.raises(CorruptCheckpoint):
        Checkpoint.open(store, name)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "../../../etc/passwd"},
        {"name": "/etc/passwd"},
        {"name": 7},
        {"bytes": -1},
        {"bytes": 1 << 62},
        {"chunk_bytes": 0},
        {"chunk_bytes": 1 << 40},
        {"chunks": ["0" * 16, "0" * 16]},
        {"chunks": ["no hash"]},
        {"chunks": [1]},
    ],
)
def test_a_hostile_part_is_refused(store: DiskStore, fields: dict[str, Any]) -> None:
    """A part that the manifest vouches for still can't lead out of its directory or ask for any memory."""
    name = save(store, TWO, VALUES)
    content = json.loads((store.root / name / "part-00000.json").read_bytes())
    del content["check"]
    content["files"][0] |= fields
    repart(store, name, seal(content))
    with pytest.raises(CorruptCheckpoint):
        Checkpoint.open(store, name)


def test_a_part_that_lists_a_file_twice_is_refused(store: DiskStore) -> None:
    """Two seals of one file can't both be right."""
    name = save(store, TWO, VALUES)
    part = read_record(store, Part, f"{name}/part-00000.json")
    repart(store, name, dump(replace(part, files=(*part.files, part.files[0]))))
    with pytest.raises(CorruptCheckpoint, match="listed twice"):
        Checkpoint.open(store, name)


@pytest.mark.parametrize(
    "fields",
    [{"stop": 1 << 40}, {"start": -8}, {"dtype": "X"}, {"shape": [1 << 62, 1 << 62]}, {"offsets": None}],
)
def test_a_hostile_index_is_refused(store: DiskStore, fields: dict[str, Any]) -> None:
    """An index that points out of its files is corrupt, though its seal is whole."""
    name = save(store, TWO, VALUES)
    manifest = read_record(store, Manifest, f"{name}/{MANIFEST}")
    path = f"{name}/layout-{manifest.layout}.json"
    content = json.loads((store.root / path).read_bytes())
    del content["check"]
    content["files"][0]["pieces"][0]["entry"] |= fields
    store.put(path, seal(content))
    with pytest.raises(CorruptCheckpoint):
        _ = Checkpoint.open(store, name).index


def test_an_index_of_other_files_is_refused(store: DiskStore) -> None:
    """An index has to list the files that the parts list."""
    name = save(store, TWO, VALUES)
    manifest = read_record(store, Manifest, f"{name}/{MANIFEST}")
    path = f"{name}/layout-{manifest.layout}.json"
    index = read_record(store, Index, path)
    store.put(path, dump(replace(index, files=index.files[:1])))
    with pytest.raises(CorruptCheckpoint, match="layout-"):
        _ = Checkpoint.open(store, name).index


@pytest.mark.parametrize("file", ["manifest.json", "part-00000.json"])
def test_a_newer_format_names_its_version(store: DiskStore, file: str) -> None:
    """A record of a higher format is refused with the version that can read it, and never guessed at."""
    name = save(store, TWO, VALUES)
    content = json.loads((store.root / name / file).read_bytes())
    del content["check"]
    data = seal(content | {"format": 2, "versions": {"surefoot": "9.9"}})
    if file == MANIFEST:
        store.put(f"{name}/{file}", data)
    else:
        repart(store, name, data)
    with pytest.raises(CheckpointError, match=r"format 2.*9\.9") as caught:
        Checkpoint.open(store, name)
    assert not isinstance(caught.value, CorruptCheckpoint)
