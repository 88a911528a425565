"""The bytes of a rank file: order, names, room for plain values, and stock readers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from surefoot.checkpoint.layout import (
    STATE_BYTES,
    Box,
    Entry,
    Layout,
    parse,
    state_bytes_for,
    stored_name,
)
from surefoot.errors import CorruptCheckpoint, UnstorableState

BOXES = (
    Box("b", "F32", (2, 3)),
    Box("a", "F32", (1,)),
    Box("flags", "BOOL", (5,)),
    Box("step", "I64", ()),
    Box("none", "BF16", (0, 4)),
    Box("shard", "F16", (2, 2), whole=(4, 2), offsets=(2, 0)),
)


def image_of(layout: Layout) -> memoryview:
    image = memoryview(bytearray(layout.size))
    layout.write_header(image)
    layout.write_plain(image, {"n": 1})
    return image


def test_tensors_lie_by_falling_item_size_then_name() -> None:
    """Tensors are sorted by item size, then name, without a gap, from a page on, each aligned to its items."""
    layout = Layout.of(BOXES, rank=0, world_size=1)
    assert [entry.name for entry in layout.entries] == [
        "step",
        "a",
        "b",
        "none",
        "shard",
        "flags",
        "rank.0.state",
    ]
    assert layout.entries[0].start % 4096 == 0
    assert all(a.stop == b.start for a, b in zip(layout.entries, layout.entries[1:], strict=False))
    assert layout.entries[-1].stop == layout.size


def test_order_of_boxes_does_not_matter() -> None:
    """The same boxes give the same bytes in whatever order they come."""
    assert Layout.of(BOXES, 0, 1) == Layout.of(reversed(BOXES), 0, 1)
    assert Layout.of(BOXES, 0, 1).hash != Layout.of(BOXES[1:], 0, 1).hash


def test_header_says_nothing_of_a_save() -> None:
    """The metadata holds the place of every tensor, what stock writers put there, and nothing else."""
    header = Layout.of(BOXES, 0, 1).header
    about = json.loads(header[8:])["__metadata__"]
    assert about.keys() == {"format", "DCP_VERSION", "DCP_SHARDING_INFO"}
    sharding = json.loads(about["DCP_SHARDING_INFO"])
    assert sharding["shard"] == {"saved_offsets": [2, 0], "whole": [4, 2]}
    assert sharding["step"] == {"saved_offsets": []}
    assert sharding.keys() == {*(box.name for box in BOXES), "rank.0.state"}


def test_what_one_rank_has_is_stored_as_its_own() -> None:
    """Of several ranks only replicated tensors and shards keep their name; a single rank's all do."""
    plain, shared, shard = Box("w", "F32", (1,)), Box("w", "F32", (1,), True), Box("w", "F32", (1,), whole=(2,))
    assert [stored_name(box, 3, 4) for box in (plain, shared, shard)] == ["rank.3.w", "w", "w"]
    assert stored_name(plain, 0, 1) == "w"
    layout = Layout.of([plain], 3, 4)
    assert layout.views(image_of(layout)).keys() == {"w"}


@pytest.mark.parametrize(
    "boxes",
    [
        [Box("w", "F32", (1,)), Box("w", "F32", (1,))],
        [Box("rank.1.w", "F32", (1,))],
        [Box("__metadata__", "F32", (1,))],
        [Box("w", "F4", (1,))],
        [Box("w\ud800", "F32", (1,))],
    ],
)
def test_what_cannot_be_stored_is_refused(boxes: list[Box]) -> None:
    """A name that comes twice, is reserved or is no text, and an unknown dtype raise `UnstorableState`."""
    with pytest.raises(UnstorableState):
        Layout.of(boxes, 0, 1)


def test_state_as_a_rank_local_name_is_refused() -> None:
    """A tensor called `state` would be taken for the plain values where it is stored as a rank's own."""
    with pytest.raises(UnstorableState, match=r"rank\.1\.state"):
        Layout.of([Box("state", "U8", (1,))], 1, 2)
    single = Layout.of([Box("state", "U8", (1,))], 0, 1)
    assert single.views(image_of(single)).keys() == {"state"}


def test_plain_values_come_back() -> None:
    """Plain values with what JSON lacks come back equal, and their length never changes the image."""
    layout = Layout.of(BOXES, 0, 1)
    image = image_of(layout)
    odd: dict = {"t": (1, 2), 3: b"\0", "nan": float("inf"), "odd": "\udc80"}
    for plain in (odd, {}, {"x": "y" * 60_000}):
        needed = layout.write_plain(image, plain)
        assert needed <= STATE_BYTES
        assert layout.read_plain(image) == plain


def test_outgrown_plain_values_change_nothing() -> None:
    """Plain values without room are not written; the next layout has room doubled until they fit."""
    layout = Layout.of(BOXES, 0, 1)
    image = image_of(layout)
    before = bytes(image)
    needed = layout.write_plain(image, {"x": "y" * 200_000})
    assert needed > STATE_BYTES
    assert bytes(image) == before
    assert state_bytes_for(needed) == 4 * STATE_BYTES
    larger = Layout.of(BOXES, 0, 1, state_bytes_for(needed))
    assert larger.write_plain(image_of(larger), {"x": "y" * 200_000}) == needed


def test_plain_values_that_are_none_are_refused() -> None:
    """Bytes that are no tagged JSON object are a corrupt snapshot, not a crash."""
    layout = Layout.of((), 0, 1)
    image = image_of(layout)
    for junk in (b"\0", b"[1]", b'{"$new": 1}', b'{"$set": [[1]]}', b"[" * 60_000, b'{"$complex": 1}'):
        image[layout.state.start : layout.state.stop] = junk.ljust(STATE_BYTES)
        with pytest.raises(CorruptCheckpoint):
            layout.read_plain(image)


def test_parse_returns_the_layout() -> None:
    """What was laid out is read back from the header alone."""
    layout = Layout.of(BOXES, rank=2, world_size=4)
    assert parse(layout.header, layout.size) == layout
    assert parse(image_of(layout), layout.size) == layout


def test_safetensors_reads_the_image(tmp_path: Path) -> None:
    """The image is a safetensors file: every tensor has its shape, dtype and bytes."""
    layout = Layout.of(BOXES, 0, 1)
    image = image_of(layout)
    for number, view in enumerate(layout.views(image).values()):
        view[:] = bytes([number % 2]) * len(view)
    (tmp_path / "x.safetensors").write_bytes(image)
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        for box in BOXES:
            assert tuple(file.get_tensor(box.name).shape) == box.shape
            assert file.get_slice(box.name).get_dtype() == box.dtype
        stored = file.get_tensor("b").view(torch.uint8).flatten()
        assert bytes(stored.tolist()) == layout.views(image)["b"]


def test_an_entry_outside_of_its_whole_is_refused() -> None:
    """A box that reaches out of its whole tensor can't be laid out."""
    with pytest.raises(ValueError, match="no tensor is like this"):
        Layout.of([Box("w", "F32", (3,), whole=(4,), offsets=(2,))], 0, 2)
    Entry("w", "F32", (), (), None, 8, 12).check()
