"""Slots: the word, the size that can't change, two views of one memory."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.checkpoints import descriptors

from surefoot.checkpoint import slots
from surefoot.checkpoint.memory import available_bytes
from surefoot.checkpoint.slots import Slot, Word
from surefoot.errors import CheckpointError


@pytest.mark.parametrize(
    "word", [Word(1, 0, False), Word(3, 12_000, True), Word((1 << 23) - 1, (1 << 40) - 1, True)]
)
def test_a_word_fits_64_bits(word: Word) -> None:
    """Every word comes back from 64 bits, none of which is the empty slot's."""
    assert 0 < word.pack() < 1 << 64
    assert Word.unpack(word.pack()) == word


@pytest.mark.parametrize(("branch", "step"), [(0, 1), (1 << 23, 1), (1, 1 << 40), (1, -1)])
def test_a_word_that_does_not_fit_is_refused(branch: int, step: int) -> None:
    """A branch or step out of range raises instead of naming another snapshot."""
    with pytest.raises(ValueError, match="do not fit"):
        Word(branch, step, whole=True).pack()


def test_a_slot_is_shared_memory() -> None:
    """A second view sees word and image of the first; a new slot is empty."""
    mine = Slot(slots.make(10_000, "test"))
    theirs = Slot(os.dup(mine.fd))
    assert (mine.size, theirs.word, len(mine.image)) == (10_000, None, 10_000)
    mine.map(populate=True)
    mine.image[9_999] = 7
    mine.word = Word(1, 5, whole=True)
    assert theirs.word == Word(1, 5, whole=True)
    assert theirs.image[9_999] == 7
    mine.word = None
    assert theirs.word is None
    mine.close()
    theirs.close()


def test_the_word_needs_one_page() -> None:
    """Looking at words maps a page and not the image."""
    slot = Slot(slots.make(64 << 20, "surefoot-lazy"))
    slot.word = Word(1, 1, whole=True)
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if "surefoot-lazy" in line]
    start, stop = lines[0].split()[0].split("-")
    assert (len(lines), int(stop, 16) - int(start, 16)) == (1, slots.IMAGE_OFFSET_BYTES)
    slot.close()


def test_a_slot_keeps_its_size() -> None:
    """Nobody can cut or grow a slot under its readers."""
    fd = slots.make(5_000, "test")
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    assert os.fstat(fd).st_blocks * 512 >= slots.IMAGE_OFFSET_BYTES + 5_000
    os.close(fd)


def test_what_is_no_slot_is_refused(tmp_path: Path) -> None:
    """A descriptor that is a file, unsealed or shorter than a page is refused and closed."""
    before = descriptors()
    for fd in (os.open(tmp_path, os.O_RDONLY), os.memfd_create("x", os.MFD_ALLOW_SEALING)):
        with pytest.raises(CheckpointError, match="no slot"):
            Slot(fd)
    assert descriptors() == before


def test_no_memory_is_an_error_at_once() -> None:
    """A slot that can't be had raises when it is made and leaves no descriptor."""
    before = descriptors()
    with pytest.raises(CheckpointError, match="no memory"):
        slots.make(available_bytes() + (1 << 40), "test")
    assert descriptors() == before


def test_closing_frees_descriptors_and_keeps_views() -> None:
    """A view that somebody still holds stays valid; the descriptors are free once it is gone."""
    before = descriptors()
    slot = Slot(slots.make(100, "test"))
    view = slot.image[:10]
    slot.close()
    view[0] = 1
    del view
    assert descriptors() == before


def test_a_killed_rank_leaves_the_word_it_wrote() -> None:
    """A process that is killed while it fills a slot leaves the word that says so."""
    slot = Slot(slots.make(1 << 20, "test"))
    slot.word = Word(1, 1, whole=True)
    child = os.fork()
    if child == 0:
        slot.word = Word(1, 2, whole=False)
        slot.image[: 1 << 10] = bytes([9]) * (1 << 10)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert slot.word == Word(1, 2, whole=False)
    assert slot.image[0] == 9
    slot.close()
