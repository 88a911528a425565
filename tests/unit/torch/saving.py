"""Saves a state into the image of a rank file and restores it, as a run does."""

from __future__ import annotations

from dataclasses import dataclass

from surefoot.checkpoint.layout import Layout, state_bytes_for
from surefoot.loop.state import Box, State


@dataclass(frozen=True)
class Saved:
    """A snapshot: the image of one rank file."""

    boxes: dict[str, Box]
    layout: Layout
    image: memoryview

    @property
    def names(self) -> set[str]:
        """The names of its tensors."""
        return set(self.boxes)


def save(state: State) -> Saved:
    """Capture a state."""
    boxes = {box.name: box for box in state.boxes()}
    layout = Layout.of(list(boxes.values()), rank=0, world_size=1, state_bytes=state_bytes_for(1 << 16))
    image = memoryview(bytearray(layout.size))
    layout.write_header(image)
    assert layout.write_plain(image, state.plain()) < 1 << 16
    state.copy_out(layout.views(image))
    return Saved(boxes, layout, image)


def load(state: State, saved: Saved) -> None:
    """Restore a state from a snapshot that nobody may write to."""
    state.copy_in(saved.layout.views(saved.image.toreadonly()), saved.layout.read_plain(saved.image))
