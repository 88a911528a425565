"""The exact bytes of a rank file: a safetensors header, then tensors by falling item size, then name.

A layout follows from the boxes alone, and nothing in its header changes from save to save: the image
of a snapshot in a slot *is* the file on disk, byte for byte, and safetensors and torch.distributed.checkpoint
read it without us. The header is padded with spaces so that data begins on a page; falling item sizes
align every tensor without a gap, since the format forbids gaps and trailing bytes.

What only one rank has is stored as `rank.R.NAME`. The plain values are the U8 tensor `rank.R.state`,
JSON padded with spaces, so its length is the layout's and not the values'.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from xxhash import xxh3_64_hexdigest

from surefoot.errors import CorruptCheckpoint, JournalError, UnstorableState
from surefoot.journal.codec import tag, untag

ITEM_BYTES = {
    "C64": 8, "F64": 8, "I64": 8, "U64": 8,
    "F32": 4, "I32": 4, "U32": 4,
    "BF16": 2, "F16": 2, "I16": 2, "U16": 2,
    "BOOL": 1, "F8_E4M3": 1, "F8_E4M3FNUZ": 1, "F8_E5M2": 1, "F8_E5M2FNUZ": 1, "I8": 1, "U8": 1,
}  # fmt: skip
"""safetensors dtype word → bytes of one item: the words that stock torch readers know."""


Buffer = bytes | bytearray | memoryview

PAGE_BYTES = 4096
STATE_BYTES = 64 << 10
"""Room for a rank's plain values in a new layout; doubled when outgrown."""
HEADER_BYTES_MAX = 100_000_000
"""safetensors reads no longer header."""

_SIZE_MAX = 1 << 63
_DIMENSIONS_MAX = 64
_LOCAL = re.compile(r"rank\.(0|[1-9][0-9]{0,8})\.")
_STATE = re.compile(_LOCAL.pattern + "state")


@dataclass(frozen=True, slots=True)
class Box:
    """One tensor, or this rank's contiguous part of one, as a snapshot stores it."""

    name: str
    """Flattened by keyword, free of wrappers: `model.h.0.w`, `optimizer.state.h.0.w.exp_avg`."""
    dtype: str
    """The safetensors word: F64, F32, F16, BF16, I64 … U8, BOOL, F8_E4M3, F8_E5M2, C64."""
    shape: tuple[int, ...]
    """Of this box; () for a scalar."""
    replicated: bool = False
    """Whether the placement says that every rank holds the same values (formats §6)."""
    whole: tuple[int, ...] | None = None
    """Shape of the whole tensor where this box is a part of it (DTensor shards)."""
    offsets: tuple[int, ...] | None = None
    """Where this box begins in the whole tensor."""


def box_bytes(box: Box) -> int:
    """Return the size of a box's values; raises `UnstorableState` for a dtype no stock reader knows."""
    if box.dtype not in ITEM_BYTES:
        raise UnstorableState(
            f"{box.name} has dtype {box.dtype}: a snapshot stores {', '.join(sorted(ITEM_BYTES))}; "
            "hand it in as its inner tensors or as raw U8"
        )
    return prod(box.shape) * ITEM_BYTES[box.dtype]


def stored_name(box: Box, rank: int, world_size: int) -> str:
    """Return the name of a box in the files: `rank.R.NAME` for what only this rank of several has."""
    local = world_size > 1 and not box.replicated and box.whole is None
    return f"rank.{rank}.{box.name}" if local else box.name


def offsets_of(box: Box) -> tuple[int, ...]:
    """Return where a box begins in its whole tensor; zeros where it is all of it."""
    return (0,) * len(box.shape) if box.offsets is None else box.offsets


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file: what it is and where its bytes lie."""

    name: str
    """As stored."""
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    """Where it begins in the whole tensor; zeros where it is all of it."""
    whole: tuple[int, ...] | None
    """Shape of the whole tensor, for a shard."""
    start: int
    """First byte, counted from the beginning of the file."""
    stop: int

    def check(self) -> None:
        """Raise ValueError if no tensor can be like this."""
        whole = self.shape if self.whole is None else self.whole
        numbers = (*self.shape, *self.offsets, *whole, self.start, self.stop)
        if not (
            self.dtype in ITEM_BYTES
            # JSON's `true` and `1.0` are no whole numbers.
            and all(type(number) is int and 0 <= number < _SIZE_MAX for number in numbers)
            and len(self.shape) == len(self.offsets) == len(whole) <= _DIMENSIONS_MAX
            and all(at + size <= end for size, at, end in zip(self.shape, self.offsets, whole, strict=True))
            and self.stop - self.start == prod(self.shape) * ITEM_BYTES[self.dtype]
        ):
            raise ValueError(f"no tensor is like this: {self}")

    @property
    def is_state(self) -> bool:
        """Whether it holds a rank's plain values."""
        return _STATE.fullmatch(self.name) is not None

    @property
    def local_name(self) -> str:
        """The name as its rank knows it."""
        prefix = _LOCAL.match(self.name)
        return self.name[prefix.end() :] if prefix else self.name


@dataclass(frozen=True, slots=True)
class Layout:
    """The image of one rank file: header, entries in the order of their bytes, size in bytes."""

    rank: int
    header: bytes
    """From byte 0 up to the first tensor, padding included."""
    entries: tuple[Entry, ...]
    size: int

    @classmethod
    def of(cls, boxes: Iterable[Box], rank: int, world_size: int, state_bytes: int = STATE_BYTES) -> Layout:
        """Lay out what `rank` writes, in the same way whatever the order of the boxes.

        Raises `UnstorableState` for an unknown dtype, a reserved name, or two boxes of one name.
        """
        stored: dict[str, Box] = {f"rank.{rank}.state": Box(f"rank.{rank}.state", "U8", (state_bytes,))}
        for box in boxes:
            name = stored_name(box, rank, world_size)
            if name in stored or name == "__metadata__" or _LOCAL.match(box.name):
                raise UnstorableState(
                    f"{name} is stored twice or reserved: every tensor needs a name of its own that begins "
                    "neither with rank.N. nor with __metadata__; rename the keyword"
                )
            box_bytes(box)  # knows the dtype, or raises
            stored[name] = box
        ordered = sorted(stored.items(), key=lambda item: (-ITEM_BYTES[item[1].dtype], item[0]))
        header = _header(ordered)
        entries: list[Entry] = []
        at = len(header)
        for name, box in ordered:
            stop = at + box_bytes(box)
            entry = Entry(name, box.dtype, box.shape, offsets_of(box), box.whole, at, stop)
            entry.check()
            entries.append(entry)
            at = stop
        return cls(rank, header, tuple(entries), at)

    @property
    def hash(self) -> str:
        """16 hex digits over the header: equal hashes are equal images but for the values."""
        return str(xxh3_64_hexdigest(self.header))

    @property
    def state(self) -> Entry:
        """The tensor that holds the plain values."""
        return next(entry for entry in self.entries if entry.is_state)

    def views(self, image: memoryview) -> dict[str, memoryview]:
        """Return the bytes of every tensor in an image by the rank's own names, plain values left out."""
        return {
            entry.local_name: image[entry.start : entry.stop] for entry in self.entries if not entry.is_state
        }

    def write_header(self, image: memoryview) -> None:
        """Make an empty image one of this layout."""
        image[: len(self.header)] = self.header

    def write_plain(self, image: memoryview, plain: Mapping[str, Any]) -> int:
        """Write the plain values and return the bytes they need.

        More than the room of `state` means that nothing was written: a layout with `state_bytes_for`
        that many is due. Raises `UnstorableState` naming the path of what is no plain value.
        """
        packed = _json(tag(dict(plain)))
        raw = packed.encode("utf-8", "backslashreplace")  # a lone surrogate becomes its escape
        room = self.state.stop - self.state.start
        if len(raw) <= room:
            image[self.state.start : self.state.stop] = raw.ljust(room)
        return len(raw)

    def read_plain(self, image: memoryview) -> dict[str, Any]:
        """Return the plain values of an image; raises `CorruptCheckpoint` where they are none."""
        return unpack_plain(image[self.state.start : self.state.stop])


def state_bytes_for(needed: int) -> int:
    """Return the room for plain values of that size: `STATE_BYTES`, doubled until they fit."""
    room = STATE_BYTES
    while room < needed:
        room *= 2
    return room


def unpack_plain(packed: Buffer) -> dict[str, Any]:
    """Return the plain values that `Layout.write_plain` wrote."""
    try:
        tagged = json.loads(bytes(packed))
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(
            f"the plain values of a rank are no JSON: {error}; use another snapshot"
        ) from error
    return untag_plain(tagged)


def untag_plain(tagged: Any) -> dict[str, Any]:
    """Return plain values from their tagged form, as a manifest has rank 0's."""
    try:
        plain = untag(tagged)
        if not isinstance(plain, dict):
            raise TypeError(f"a {type(plain).__name__} instead of an object")
    except (JournalError, ValueError, TypeError) as error:
        raise CorruptCheckpoint(
            f"the plain values of a rank can't be read: {error}; use another snapshot"
        ) from error
    return plain


def _header(stored: Sequence[tuple[str, Box]]) -> bytes:
    sharding: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    at = 0
    for name, box in stored:
        whole = {} if box.whole is None else {"whole": box.whole}  # ours: the stock reader adds it up
        sharding[name] = {"saved_offsets": offsets_of(box), **whole}
        stop = at + box_bytes(box)
        tensors[name] = {"dtype": box.dtype, "shape": box.shape, "data_offsets": (at, stop)}
        at = stop
    # What stock torch writes: without `format` transformers refuses the file, without the sharding
    # information torch.distributed.checkpoint would take every shard for a whole tensor.
    about = {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": _json(sharding)}
    try:
        text = _json({"__metadata__": about, **tensors}).encode()
    except UnicodeEncodeError as error:
        raise UnstorableState(f"a tensor's name is no Unicode text: {error}; rename it") from error
    room = -(8 + len(text)) % PAGE_BYTES
    if len(text) + room > HEADER_BYTES_MAX:
        raise UnstorableState(
            f"{len(stored):,} tensors need a header of {len(text):,} bytes: safetensors reads at most "
            f"{HEADER_BYTES_MAX:,}; hand in fewer, larger tensors"
        )
    return (len(text) + room).to_bytes(8, "little") + text + b" " * room


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- reading a header that anybody may have written -----------------------------------------------


def parse(image: Buffer, size: int) -> Layout:
    """Return the layout of a rank file from its first bytes, its header at least, and its size.

    Trusts nothing: raises `CorruptCheckpoint` saying what is wrong.
    """
    try:
        header_bytes = 8 + int.from_bytes(bytes(image[:8]), "little")
        if not 10 <= header_bytes <= min(size, len(image), 8 + HEADER_BYTES_MAX):
            raise ValueError(f"a header of {header_bytes:,} bytes")
        header = bytes(image[:header_bytes])
        content = json.loads(header[8:].decode(), object_pairs_hook=_no_duplicates)
        if header[8:9] != b"{":
            raise ValueError("no JSON object")
        about = content.pop("__metadata__")
        if not all(isinstance(value, str) for value in about.values()):
            raise TypeError("metadata that is no text")
        sharding = json.loads(about["DCP_SHARDING_INFO"], object_pairs_hook=_no_duplicates)
        entries = sorted(_entries(content, sharding, header_bytes), key=lambda entry: (entry.start, entry.stop))
        at = header_bytes
        for entry in entries:
            entry.check()
            if entry.start != at:
                raise ValueError(f"{entry.name!r} begins at byte {entry.start}, the one before ends at {at}")
            at = entry.stop
        if at != size:
            raise ValueError(f"tensors end at byte {at}, the file at {size}")
        ranks = [int(entry.name.split(".")[1]) for entry in entries if entry.is_state]
        if len(ranks) != 1:
            raise ValueError(f"{len(ranks)} tensors rank.R.state instead of one")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptCheckpoint(
            f"the first bytes are no header of a rank file: {type(error).__name__}: {str(error)[:300]}; "
            "expected what was sealed when it was written; use another snapshot"
        ) from error
    return Layout(ranks[0], header, tuple(entries), size)


def _entries(content: dict[str, Any], sharding: dict[str, Any], data_start: int) -> Iterator[Entry]:
    if content.keys() != sharding.keys():
        raise ValueError("DCP_SHARDING_INFO and the tensors differ in names")
    for name, about in content.items():
        name.encode()
        begin, end = about["data_offsets"]
        place = sharding[name]
        yield Entry(
            name,
            about["dtype"],
            tuple(about["shape"]),
            tuple(place["saved_offsets"]),
            tuple(place["whole"]) if "whole" in place else None,
            data_start + begin,
            data_start + end,
        )


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValueError("a name comes twice")
    return unique
