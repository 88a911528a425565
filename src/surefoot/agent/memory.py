"""The HOST tier: which slot of which rank holds what, which is free, and what all ranks have whole.

The words in the slots are the evidence; they are the ranks' alone to write. The agent decides who may
fill which slot: never the newest snapshot that is whole on all ranks, never one being written, and an
older one only while every rank's last staging is whole. So at any kill all ranks hold a common step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from surefoot.checkpoint.layout import Box, Layout
from surefoot.checkpoint.sharing import Assignment, assign
from surefoot.checkpoint.slots import Slot, make
from surefoot.core.numbers import SnapshotId
from surefoot.errors import AgentError, CheckpointError
from surefoot.journal.shapes import from_json


@dataclass(frozen=True, slots=True)
class Offer:
    """What a rank says a snapshot of it consists of."""

    boxes: tuple[Box, ...]
    hashes: dict[str, str]
    state_bytes: int

    @classmethod
    def of(cls, message: dict[str, Any]) -> Offer:
        """Read an offer as `hello` carries it."""
        boxes = tuple(from_json(Box, box) for box in message["boxes"])
        return cls(boxes, dict(message["hashes"]), int(message["state_bytes"]))


@dataclass(slots=True)
class Generation:
    """The slots of one layout of the ranks."""

    assignment: Assignment
    layouts: tuple[Layout, ...]
    """By local rank."""
    slots: list[list[Slot]]
    """By local rank, then by number."""
    granted: list[int | None] = field(default_factory=list)
    """The slot that each rank may fill now."""

    def whole(self) -> dict[SnapshotId, list[int]]:
        """Return every snapshot that is whole on all ranks, with its slot on each."""
        found: list[dict[SnapshotId, int]] = []
        for slots in self.slots:
            words = ((number, slot.word) for number, slot in enumerate(slots))
            found.append(
                {SnapshotId(word.step, word.branch): number for number, word in words if word and word.whole}
            )
        common = set(found[0]).intersection(*found[1:]) if found else set()
        return {id: [numbers[id] for numbers in found] for id in common}

    def close(self) -> None:
        """Free the slots."""
        for slots in self.slots:
            for slot in slots:
                slot.close()


Newer = Callable[[SnapshotId], tuple[int, int]]
"""Sort key of a snapshot by lineage (core.numbers.newness)."""


class Memory:
    """The slots of this node's ranks."""

    def __init__(self, newness: Newer) -> None:
        self._newness = newness
        self._now: Generation | None = None
        self._before: Generation | None = None
        """The slots of the layout before, until the new one holds a snapshot."""
        self._busy: set[SnapshotId] = set()
        self.wanted: tuple[SnapshotId, ...] = ()
        """Snapshots that wait to be written, oldest first: kept while there are slots enough to go on."""

    def lay_out(self, offers: Sequence[Offer], count: int) -> tuple[str, ...]:
        """Make `count` slots a rank for what the ranks offer, unless they are there already.

        Returns the names of replicas that had diverged. Raises CheckpointError where memory is short.
        """
        assignment, layouts = _layouts(offers)
        if self._now is None or [layout.header for layout in self._now.layouts] != [
            layout.header for layout in layouts
        ]:
            slots: list[list[Slot]] = [[] for _ in layouts]
            try:
                for number in range(count):
                    for layout, own in zip(layouts, slots, strict=True):
                        own.append(Slot(make(layout.size, f"surefoot-rank-{layout.rank}-slot-{number}")))
            except CheckpointError:
                for own in slots:
                    for slot in own:
                        slot.close()
                raise
            if self._before is not None and self._now is not None and not self._now.whole():
                self._now.close()
            else:
                if self._before is not None:
                    self._before.close()
                self._before = self._now
            self._now = Generation(assignment, layouts, slots, [None] * len(layouts))
        else:
            # The ranks are new, or say the same again: nothing is lent to them yet.
            self._now.granted = [None] * len(layouts)
        return assignment.diverged

    def take_over(self, offers: Sequence[Offer], fds: Sequence[Sequence[int]]) -> None:
        """Take slots that the ranks hand back to an agent that knows nothing of them."""
        assignment, layouts = _layouts(offers)
        slots = [[Slot(fd) for fd in each] for each in fds]
        sizes = {(slot.size, layout.size) for each, layout in zip(slots, layouts, strict=True) for slot in each}
        if any(size != expected for size, expected in sizes):
            raise AgentError("the slots that the ranks hand back are not of the layout they offer")
        self._now = Generation(assignment, layouts, slots, [None] * len(layouts))

    def handed_out(self, rank: int) -> tuple[tuple[Box, ...], list[int]]:
        """Return the boxes that a rank stages and the descriptors of its slots."""
        assert self._now is not None
        return self._now.assignment.staged[rank], [slot.fd for slot in self._now.slots[rank]]

    def staged(self, rank: int, slot: int) -> None:
        """A rank gives a slot back, filled."""
        if self._now is not None and self._now.granted[rank] == slot:
            self._now.granted[rank] = None
            if self._before is not None and self._now.whole() and not self._busy:
                self._before.close()
                self._before = None

    def withdraw(self) -> None:
        """The ranks are gone: nothing is lent any more."""
        if self._now is not None:
            self._now.granted = [None] * len(self._now.layouts)

    def grants(self) -> list[tuple[int, int]]:
        """Lend slots to ranks that have none; return (rank, slot) of each."""
        now = self._now
        if now is None or None not in now.granted:
            return []
        whole = now.whole()
        newest = self.newest()
        kept = {id for id in whole if id == newest or id in self._busy}
        for id in self.wanted:
            # One slot always stays free: a store that hangs must not put an end to staging.
            if id in whole and len(kept) < len(now.slots[0]) - 1:
                kept.add(id)
        lent = []
        for rank, slots in enumerate(now.slots):
            if now.granted[rank] is not None:
                continue
            held = {number: slot.word for number, slot in enumerate(slots)}
            ids = {n: SnapshotId(word.step, word.branch) for n, word in held.items() if word and word.whole}
            # A rank that staged what the others haven't yet keeps it: it will be the newest.
            ahead = {
                number
                for number, id in ids.items()
                if id not in whole and (newest is None or self._newness(id) > self._newness(newest))
            }
            free = held.keys() - {whole[id][rank] for id in kept} - ahead
            if free:
                # An empty one, or the oldest: a newest snapshot that is bad has young elders.
                slot = min(free, key=lambda n: (self._newness(ids[n]) if n in ids else (-2, 0), n))
                now.granted[rank] = slot
                lent.append((rank, slot))
        return lent

    @property
    def ranks(self) -> int:
        """How many ranks the slots are of."""
        return len(self._now.layouts) if self._now is not None else 0

    def ids(self) -> list[SnapshotId]:
        """Return every snapshot that all ranks have whole."""
        found = set(self._now.whole()) if self._now is not None else set()
        return list(found | (set(self._before.whole()) if self._before is not None else set()))

    def newest(self) -> SnapshotId | None:
        """Return the newest snapshot of the lineage that all ranks have whole."""
        on_lineage = [id for id in self.ids() if self._newness(id)[0] >= 0]
        return max(on_lineage, key=self._newness, default=None)

    def descriptors(self, id: SnapshotId) -> list[int]:
        """Return the descriptors of a snapshot's slots, in rank order."""
        generation = self._holder(id)
        return [
            slots[number].fd for slots, number in zip(generation.slots, generation.whole()[id], strict=True)
        ]

    def held(self, id: SnapshotId) -> tuple[tuple[Box, ...], ...]:
        """Return the boxes that each rank needs back of a snapshot."""
        return self._holder(id).assignment.held

    def _holder(self, id: SnapshotId) -> Generation:
        for generation in (self._now, self._before):
            if generation is not None and id in generation.whole():
                return generation
        raise KeyError(id)

    def lock(self, id: SnapshotId) -> None:
        """Keep a snapshot: it is being written."""
        self._busy.add(id)

    def unlock(self, id: SnapshotId) -> None:
        """Let a snapshot go again."""
        self._busy.discard(id)

    def wipe(self) -> None:
        """Empty what is newer than the newest common snapshot, or torn: the ranks that wrote it are dead.

        Otherwise a second crash soon after could pair one rank's old turn with another's new one.
        """
        for generation in (self._now, self._before):
            if generation is None:
                continue
            whole = generation.whole()
            for slots in generation.slots:
                for slot in slots:
                    word = slot.word
                    if word is not None and (not word.whole or SnapshotId(word.step, word.branch) not in whole):
                        slot.word = None

    def close(self) -> None:
        """Free everything."""
        for generation in (self._now, self._before):
            if generation is not None:
                generation.close()
        self._now = self._before = None


def _layouts(offers: Sequence[Offer]) -> tuple[Assignment, tuple[Layout, ...]]:
    assignment = assign([offer.boxes for offer in offers], [offer.hashes for offer in offers])
    layouts = tuple(
        Layout.of(staged, rank, len(offers), offer.state_bytes)
        for rank, (staged, offer) in enumerate(zip(assignment.staged, offers, strict=True))
    )
    return assignment, layouts
