"""What holds for every layout, every share, every header somebody may have written, every flipped byte."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors import deserialize
from tests.checkpoints import change, save, values_of

from surefoot.checkpoint.commit import discover, verify
from surefoot.checkpoint.layout import ITEM_BYTES, Box, Layout, box_bytes, parse
from surefoot.checkpoint.reader import Checkpoint
from surefoot.checkpoint.sharing import assign
from surefoot.checkpoint.slots import Word
from surefoot.checkpoint.store import DiskStore
from surefoot.errors import CorruptCheckpoint

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(
    lambda name: name != "__metadata__"
)
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def boxes(draw: st.DrawFn, max_size: int = 8) -> list[Box]:
    """Return boxes of one rank: plain, replicated, or a part of something larger."""
    made = []
    for name in draw(st.lists(names, unique=True, max_size=max_size)):
        dtype, shape = draw(st.sampled_from(sorted(ITEM_BYTES))), draw(shapes)
        kind = draw(st.sampled_from(["plain", "replicated", "shard"]))
        if kind == "shard" and shape:
            offsets = tuple(draw(st.integers(0, 3)) for _ in shape)
            whole = tuple(at + size + draw(st.integers(0, 2)) for at, size in zip(offsets, shape, strict=True))
            made.append(Box(f"t.{name}", dtype, shape, False, whole, offsets))
        else:
            made.append(Box(f"t.{name}", dtype, shape, kind == "replicated"))
    return made


@given(boxes(), st.integers(0, 2), st.integers(1, 3), st.randoms(use_true_random=False))
def test_a_layout_is_a_file_without_gaps(owned: list[Box], rank: int, more: int, random: Any) -> None:
    """Every layout is read back by us and by safetensors, aligned, gapless, the same for any order of boxes."""
    layout = Layout.of(owned, rank, rank + more)
    assert parse(layout.header, layout.size) == layout
    assert Layout.of(random.sample(owned, len(owned)), rank, rank + more) == layout
    assert len(layout.header) % 4096 == 0
    at = len(layout.header)
    for entry in layout.entries:
        assert entry.start == at
        assert entry.start % ITEM_BYTES[entry.dtype] == 0
        at = entry.stop
    assert at == layout.size
    image = memoryview(bytearray(layout.size))
    layout.write_header(image)
    assert {name for name, _ in deserialize(bytes(image))} == {entry.name for entry in layout.entries}
    assert {name: len(view) for name, view in layout.views(image).items()} == {
        box.name: box_bytes(box) for box in owned
    }


VALID = Layout.of([Box("a", "F32", (2,)), Box("b", "U8", (3,), whole=(6,), offsets=(3,))], 0, 2)
CONTENT = json.loads(VALID.header[8:])

numbers = st.one_of(
    st.integers(-8, 64),
    st.sampled_from([1 << 62, 1 << 63, 1 << 64, -(1 << 63), 10**30, 0.0, 1.0, True, None, "1"]),
)
junk = st.recursive(
    numbers | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
)


def header_of(text: str, length: int | None = None) -> bytes:
    raw = text.encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw


def accept_or_refuse(image: bytes, size: int) -> None:
    """Parse; what is accepted must be a file that safetensors accepts too."""
    try:
        layout = parse(image, size)
    except CorruptCheckpoint:
        return
    assert sum(entry.stop - entry.start for entry in layout.entries) + len(layout.header) == size
    assert all(len(layout.header) <= entry.start <= entry.stop <= size for entry in layout.entries)
    if size < 1 << 20:
        deserialize(layout.header + bytes(size - len(layout.header)))


@given(
    st.sampled_from(["rank.0.a", "b", "rank.0.state", "__metadata__"]),
    st.sampled_from(["dtype", "shape", "data_offsets", "DCP_SHARDING_INFO"]),
    junk,
    st.integers(-9, 9),
)
@example("b", "data_offsets", [8, 8], 0)
@example("b", "data_offsets", [8, 1 << 62], 0)
@example("b", "data_offsets", [-3, 0], 0)
@example("b", "data_offsets", [11, 8], 0)
@example("b", "shape", [1 << 40, 1 << 40], 0)
@example("b", "dtype", "F4", 0)
@example("__metadata__", "DCP_SHARDING_INFO", "{}", 0)
def test_a_changed_member_is_accepted_only_if_whole(name: str, member: str, value: Any, more: int) -> None:
    """Any member may hold anything: what parses has no hole, no overlap and no byte too many."""
    content = {**CONTENT, name: {**CONTENT[name], member: value}}
    text = json.dumps(content)
    header = header_of(text.ljust(len(VALID.header) - 8))
    accept_or_refuse(header, max(0, VALID.size + more))


@given(st.binary(max_size=200), st.integers(0, 1 << 64))
def test_any_bytes_are_refused(raw: bytes, length: int) -> None:
    """Bytes that nobody wrote as a header raise `CorruptCheckpoint` and nothing else."""
    for image in (raw, (length % (1 << 64)).to_bytes(8, "little") + raw, header_of("{", None) + raw):
        accept_or_refuse(image, len(image))
        accept_or_refuse(image, 1 << 40)


@given(st.data())
def test_a_flipped_header_is_accepted_only_if_whole(data: st.DataObject) -> None:
    """A header with some bytes changed is refused, or still describes a file without a hole."""
    header = bytearray(VALID.header)
    for _ in range(data.draw(st.integers(1, 4))):
        header[data.draw(st.integers(0, 700))] = data.draw(st.integers(0, 255))
    accept_or_refuse(bytes(header), VALID.size)


def test_headers_made_to_hurt_are_refused() -> None:
    """Depth, length, duplicates, other encodings, two or no states: refused with `CorruptCheckpoint`."""
    size = VALID.size
    text = VALID.header[8:].decode()
    hurting = [
        b"",
        VALID.header[:8],
        header_of("[" * 100_000),
        header_of('{"a":' * 100_000),
        header_of("{}"),
        header_of("[]"),
        header_of('"{}"'),
        header_of("1" * 5_000),
        header_of(text.replace('"b":', '"rank.0.a":', 1)),
        header_of(text.replace("{", '{"b":{},', 1)),
        header_of(text.replace("rank.0.state", "rank.1.state")),
        header_of(text.replace("rank.0.state", "rank.0.other")),
        header_of(text.replace('"b"', '"\\ud800"').replace('\\"b\\"', '\\"\\\\ud800\\"')),
        header_of(text, 1 << 63),
        header_of(text, 200_000_000),
        header_of(text, len(text) - 1),
        (len(text.encode("utf-16"))).to_bytes(8, "little") + text.encode("utf-16"),
        header_of(" " + text[:-1]),
    ]
    refused = 0
    for image in hurting:
        try:
            parse(image, size)
        except CorruptCheckpoint:
            refused += 1
    # Only the renamed state is a whole file still: of another rank.
    assert refused == len(hurting) - 1


Claims = tuple[list[list[Box]], list[dict[str, str]]]


@st.composite
def node(draw: st.DrawFn) -> Claims:
    """Return what the ranks of a node claim: common tensors, lacking or different on some, and their own."""
    common = [box for box in draw(boxes()) if box.replicated]
    ranks = draw(st.integers(1, 4))
    owned = [[box for box in common if draw(st.integers(0, 5))] for _ in range(ranks)]
    hashes = [{box.name: draw(st.sampled_from("aaaaab")) for box in each} for each in owned]
    for rank, each in enumerate(owned):
        each.append(Box(f"own.{rank}", "U8", (draw(st.integers(0, 9)),)))
    return owned, hashes


@given(node(), st.randoms(use_true_random=False))
def test_shares_are_fair_and_settled(claimed: Claims, random: Any) -> None:
    """Each equal replica is staged once, by a claimant; nothing is lost, whatever the order of arrival."""
    owned, hashes = claimed
    done = assign(owned, hashes)
    shuffled = [random.sample(each, len(each)) for each in owned]
    assert assign(shuffled, [dict(reversed(each.items())) for each in hashes]) == done
    for rank, each in enumerate(owned):
        assert [box.name for box in done.held[rank]] == sorted(box.name for box in each)
        assert set(done.staged[rank]) <= set(done.held[rank])
    for name in {box.name for each in owned for box in each}:
        holders = [rank for rank, each in enumerate(owned) if any(box.name == name for box in each)]
        stagers = [rank for rank, each in enumerate(done.staged) if any(box.name == name for box in each)]
        equal = len({hashes[rank].get(name) for rank in holders}) == 1
        assert (name in done.diverged) == (not equal)
        assert len(stagers) == 1 if equal else stagers == holders


@st.composite
def job(draw: st.DrawFn) -> Sequence[Sequence[Box]]:
    """Return what the ranks of a small job hold: replicated tensors, an uneven shard each, and their own."""
    size = draw(st.integers(1, 3))
    common = [box for box in draw(boxes(max_size=4)) if box.replicated]
    cuts = sorted(draw(st.lists(st.integers(0, 6), min_size=size - 1, max_size=size - 1)))
    bounds = zip([0, *cuts], [*cuts, 6], strict=True)
    shards = [
        Box("shard", "F16", (stop - start, 2), whole=(6, 2), offsets=(start, 0)) for start, stop in bounds
    ]
    return [
        [*common, shard, Box("own", "I64", (draw(st.integers(0, 3)),)), Box(f"only.{rank}", "U8", (2,))]
        for rank, shard in enumerate(shards)
    ]


@settings(max_examples=30)
@given(job(), st.integers(0, 1 << 30))
def test_what_was_saved_comes_back_and_rot_is_found(ranks: Sequence[Sequence[Box]], where: int) -> None:
    """Every rank reads back exactly its tensors; with one byte flipped, anywhere, nothing verifies."""
    values = [
        {**values_of(owned, seed=rank), **values_of([box for box in owned if box.replicated])}
        for rank, owned in enumerate(ranks)
    ]
    with tempfile.TemporaryDirectory() as folder:
        store = DiskStore(Path(folder) / "checkpoints")
        name = save(store, ranks, values)
        checkpoint = Checkpoint.open(store, name)
        for rank, owned in enumerate(ranks):
            found = checkpoint.boxes(rank, len(ranks), live=owned)
            into = {box.name: memoryview(bytearray(box_bytes(box))) for box in found}
            checkpoint.read(into, rank)
            assert {tensor: bytes(view) for tensor, view in into.items()} == values[rank]
        assert verify(store, name) == []
        files = store.names(name)
        file = files[where % len(files)]
        size = store.size(f"{name}/{file}")
        assert size
        change(store, f"{name}/{file}", where % size)
        assert verify(store, name) != []
        assert [found.name for found in discover(store)] == [name]


@given(st.integers(1, (1 << 23) - 1), st.integers(0, (1 << 40) - 1), st.booleans())
def test_words_are_their_bits(branch: int, step: int, whole: bool) -> None:
    """A slot's word comes back from its 64 bits, and no two words share them."""
    word = Word(branch, step, whole)
    assert Word.unpack(word.pack()) == word
    assert 0 < word.pack() < 1 << 64
