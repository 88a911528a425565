"""The rank's half of a snapshot: offer a layout, fill granted slots, restore from slots or files.

The agent owns the slots and says who stages what; a rank fills one only while it is granted, writes
the word *whole* last, and reports it. What is restored is captured again and compared, byte for
byte: "restored" is a measured word.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from surefoot.checkpoint.layout import (
    STATE_BYTES,
    Box,
    Layout,
    box_bytes,
    offsets_of,
    parse,
    state_bytes_for,
    stored_name,
)
from surefoot.checkpoint.reader import Checkpoint
from surefoot.checkpoint.slots import Slot, Word
from surefoot.checkpoint.store import DiskStore
from surefoot.core.numbers import SnapshotId
from surefoot.errors import CorruptCheckpoint, StateError, StateMismatch
from surefoot.journal.shapes import to_json
from surefoot.loop.state import State


class Image:
    """A private copy of the state in the layout of a file: for checks and rewinds, in no slot."""

    def __init__(self, boxes: tuple[Box, ...], layout: Layout) -> None:
        self.boxes = boxes
        self.layout = layout
        self.bytes = memoryview(mmap.mmap(-1, max(1, layout.size)))
        layout.write_header(self.bytes)
        self.views = layout.views(self.bytes)


class Snapshots:
    """One rank's snapshots of one state."""

    def __init__(self, state: State, rank: int, world_size: int, plain: Callable[[], dict[str, Any]]) -> None:
        self._state = state
        self._rank = rank
        self._world_size = world_size
        self._plain = plain
        """All plain values of this rank: the state's and the loop's."""
        self._boxes: tuple[Box, ...] | None = None
        """The boxes that were offered; a difference to the live ones is a changed layout."""
        self._layout: Layout | None = None
        self._slots: list[Slot] = []
        self._views: list[dict[str, memoryview]] = []
        self._granted: int | None = None
        self._room = 0
        self._awaiting = False
        """Whether slots for the newest offer are still to come: those at hand are of another layout."""
        self._crowded = False
        """Whether the plain values no longer fit their room."""
        self.newest: SnapshotId | None = None
        """The newest snapshot this rank has whole in a slot of the present layout."""

    # --- layout -----------------------------------------------------------------------------------

    def offer(self) -> dict[str, Any]:
        """Return this rank's boxes and the hashes of the replicated ones, for `hello`."""
        image = self.capture()
        self._boxes, self._crowded = image.boxes, False
        self._awaiting, self._granted = True, None
        self._room = image.layout.state.stop - image.layout.state.start
        hashes = {
            box.name: xxhash.xxh3_64_hexdigest(image.views[box.name])
            for box in image.boxes
            if box.replicated and self._world_size > 1
        }
        return {"boxes": [to_json(box) for box in image.boxes], "hashes": hashes, "state_bytes": self._room}

    @property
    def outgrown(self) -> bool:
        """Whether the live state no longer fits the layout that was offered."""
        return tuple(self._state.boxes()) != self._boxes or self._crowded

    def adopt(self, staged: Sequence[Box], fds: Sequence[int]) -> None:
        """Take the slots that the agent made, for the boxes that this rank stages."""
        self.release()
        self._awaiting = False
        self._layout = Layout.of(staged, self._rank, self._world_size, self._room)
        for fd in fds:
            slot = Slot(fd)
            slot.map(populate=True)
            self._slots.append(slot)
            self._views.append(self._layout.views(slot.image))

    def release(self) -> None:
        """Let the slots go: the agent has others, or the run is over."""
        self._views.clear()
        for slot in self._slots:
            slot.close()
        self._slots.clear()
        self._granted = None
        self.newest = None

    @property
    def descriptors(self) -> list[int]:
        """The slots' descriptors, to hand back to an agent that takes over; none of another layout's."""
        return [] if self._awaiting else [slot.fd for slot in self._slots]

    # --- staging ----------------------------------------------------------------------------------

    def grant(self, slot: int) -> None:
        """The agent lends this slot until it is staged; one of the layout before comes too late."""
        if not self._awaiting:
            self._granted = slot

    def withdraw(self) -> None:
        """The agent that granted is gone: nothing is granted."""
        self._granted = None

    @property
    def has_slot(self) -> bool:
        """Whether a slot is granted."""
        return self._granted is not None

    def stage(self, id: SnapshotId) -> int | None:
        """Copy the state into the granted slot; return the slot. The word *whole* is written last.

        None means that the plain values outgrew their room: a new layout is due.
        """
        assert self._granted is not None, "nothing is staged without a granted slot"
        assert self._layout is not None
        layout, index = self._layout, self._granted
        slot = self._slots[index]
        slot.word = Word(id.branch, id.step, whole=False)
        layout.write_header(slot.image)
        if layout.write_plain(slot.image, self._plain()) > layout.state.stop - layout.state.start:
            slot.word = None
            self._crowded = True
            return None
        self._state.copy_out(self._views[index])
        slot.word = Word(id.branch, id.step, whole=True)
        self._granted = None
        self.newest = id
        return index

    def capture(self) -> Image:
        """Return a private image of the whole state as it is now."""
        boxes = tuple(self._state.boxes())
        plain = self._plain()
        layout = Layout.of(boxes, self._rank, self._world_size, self._room or STATE_BYTES)
        image = Image(boxes, layout)
        needed = layout.write_plain(image.bytes, plain)
        if needed > layout.state.stop - layout.state.start:
            # Twice what is needed now: counters and lists of a run grow.
            layout = Layout.of(boxes, self._rank, self._world_size, state_bytes_for(2 * needed))
            image = Image(boxes, layout)
            layout.write_plain(image.bytes, plain)
        self._state.copy_out(image.views)
        return image

    # --- restoring --------------------------------------------------------------------------------

    def put_back(self, image: Image) -> dict[str, Any]:
        """Make the live state equal to an image again; return its plain values."""
        plain = image.layout.read_plain(image.bytes)
        self._state.copy_in(image.views, plain["objects"])
        return plain

    def check(self) -> Image:
        """Capture the state, put it back and capture it again: what can't be stored fails here.

        Raises StateError naming the tensors that came back otherwise.
        """
        first = self.capture()
        self.put_back(first)
        second = self.capture()
        if first.bytes != second.bytes:
            self._differs(first.views, second, "capturing it, putting it back and capturing it again")
        return second

    def restore_slots(self, fds: Sequence[int], held: Sequence[Box]) -> dict[str, Any]:
        """Restore what this rank held from the slots of all ranks of the node; return its plain values."""
        slots = [Slot(os.dup(fd)) for fd in fds]
        there: dict[tuple[str, tuple[int, ...]], memoryview] = {}
        plain: dict[str, Any] | None = None
        try:
            for slot in slots:
                layout = parse(slot.image, slot.size)
                there |= {
                    (entry.name, entry.offsets): slot.image[entry.start : entry.stop]
                    for entry in layout.entries
                }
                if layout.rank == self._rank:
                    plain = layout.read_plain(slot.image)
            places = {
                box.name: (stored_name(box, self._rank, self._world_size), offsets_of(box)) for box in held
            }
            lost = [name for name, place in places.items() if place not in there]
            if lost or plain is None:
                raise CorruptCheckpoint(
                    f"the slots lack {', '.join(lost[:20]) or 'the plain values'} of rank {self._rank}"
                )
            return self._copy_in({name: there[place] for name, place in places.items()}, plain)
        finally:
            there.clear()
            for slot in slots:
                slot.close()

    def restore_disk(self, run_dir: Path, name: str) -> dict[str, Any]:
        """Restore from a checkpoint, every chunk verified; return this rank's plain values."""
        checkpoint = Checkpoint.open(DiskStore(run_dir / "checkpoints"), name)
        boxes = checkpoint.boxes(self._rank, self._world_size, live=self._state.boxes())
        tensors = {
            box.name: memoryview(mmap.mmap(-1, max(1, box_bytes(box))))[: box_bytes(box)] for box in boxes
        }
        checkpoint.read(tensors, self._rank)
        plain = checkpoint.plain(self._rank)
        if self._rank >= checkpoint.manifest.world.size:
            # The world has grown: generators are this rank's own, everything else is rank 0's.
            plain = {**plain, "objects": {k: v for k, v in plain["objects"].items() if k != "generators"}}
        return self._copy_in(tensors, plain)

    def _copy_in(self, tensors: Mapping[str, memoryview], plain: dict[str, Any]) -> dict[str, Any]:
        self._state.copy_in(tensors, plain["objects"])
        again = self.capture()
        missing = tensors.keys() ^ again.views.keys()
        if missing:
            raise StateMismatch(
                f"rank {self._rank}: after the restore these tensors are in the snapshot or in the live state "
                f"only: {', '.join(sorted(missing)[:20])}"
            )
        if any(again.views[name] != view for name, view in tensors.items()):
            self._differs(tensors, again, "restoring it")
        return plain

    def _differs(self, before: Mapping[str, memoryview], after: Image, what: str) -> None:
        names = [name for name, view in before.items() if after.views.get(name) != view]
        raise StateError(
            f"rank {self._rank}: the state is not what it was after {what}: "
            f"{', '.join(names[:20]) or 'plain values differ'}; an object's load_state_dict changes what it "
            "is given"
        )
