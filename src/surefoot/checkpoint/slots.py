"""Slots: snapshots in memory that outlive the process that filled them.

A slot is a memfd. Its first page holds one word, (branch, step, filling or whole), in one aligned
8-byte store; the rest is the image of a rank file. The rank writes the word *filling*, the image, and
the word *whole*, and nobody else ever writes any of it: after a death the word is the evidence. A
process that was killed stops between instructions, so *whole* means that every byte was stored.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import dataclass

from surefoot.checkpoint.memory import available_bytes
from surefoot.errors import CheckpointError

IMAGE_OFFSET_BYTES = 4096
"""Where the image begins: on a page of its own, behind the word's."""

_STEP_BITS = 40
_BRANCH_BITS = 23
_FIXED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_SHARED = mmap.MAP_SHARED


@dataclass(frozen=True, slots=True)
class Word:
    """What a slot holds: the state before turn `step` of `branch`, being filled or whole."""

    branch: int
    step: int
    whole: bool

    def pack(self) -> int:
        """Return the word as 64 bits, never 0: that is an empty slot."""
        if not (0 < self.branch < 1 << _BRANCH_BITS and 0 <= self.step < 1 << _STEP_BITS):
            raise ValueError(f"branch {self.branch} and step {self.step} do not fit a slot's word")
        return self.branch << (_STEP_BITS + 1) | self.step << 1 | self.whole

    @classmethod
    def unpack(cls, bits: int) -> Word | None:
        """Return the word that 64 bits hold, or None for an empty slot."""
        if bits == 0:
            return None
        return cls(bits >> (_STEP_BITS + 1), bits >> 1 & (1 << _STEP_BITS) - 1, bool(bits & 1))


def make(size: int, name: str) -> int:
    """Return the descriptor of a new, empty slot for images of `size` bytes; `name` shows in /proc.

    All its memory is taken now, so that no copy into it can fail later; raises `CheckpointError` where
    there isn't enough. The size is sealed: no peer can cut it under a reader.
    """
    available = available_bytes()
    if size > available:
        raise _no_memory(name, size, f"{available:,} are to be had")
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, IMAGE_OFFSET_BYTES + size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _FIXED | fcntl.F_SEAL_SEAL)
    except OSError as error:
        os.close(fd)
        raise _no_memory(name, size, str(error)) from error
    return fd


def _no_memory(name: str, size: int, why: str) -> CheckpointError:
    return CheckpointError(
        f"no memory for the slot {name}: {size:,} bytes were asked for, {why}; give the job more memory, or "
        "use fewer slots"
    )


class Slot:
    """One process's view of a slot; owns the descriptor.

    Looking at the word maps one page; the image is mapped when it is first asked for.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        try:
            sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _FIXED == _FIXED
        except OSError:  # no memfd at all
            sealed = False
        size = os.fstat(fd).st_size - IMAGE_OFFSET_BYTES
        if not sealed or size < 0:
            os.close(fd)
            raise CheckpointError(
                "a descriptor that was handed over is no slot: expected a memfd of at least a page whose size "
                "is sealed; the processes of this run may be of different versions"
            )
        self.size = size
        """Bytes of the image."""
        # A cast to Q stores natively, all 8 bytes at once; struct.pack_into clears the target first.
        self._word = memoryview(mmap.mmap(fd, IMAGE_OFFSET_BYTES, flags=_SHARED)).cast("Q")
        self._image: memoryview | None = None

    @property
    def word(self) -> Word | None:
        """What the slot holds; None while it is empty. Written by the slot's rank alone."""
        return Word.unpack(self._word[0])

    @word.setter
    def word(self, word: Word | None) -> None:
        self._word[0] = 0 if word is None else word.pack()

    def map(self, *, populate: bool = False) -> None:
        """Map the image now; `populate` enters every page into this process's tables, before the first copy."""
        if self._image is None:
            flags = _SHARED | (mmap.MAP_POPULATE if populate else 0)
            # From offset 0: an offset of 4096 can't be mapped where pages are larger.
            whole = mmap.mmap(self.fd, IMAGE_OFFSET_BYTES + self.size, flags=flags)
            self._image = memoryview(whole)[IMAGE_OFFSET_BYTES:]

    @property
    def image(self) -> memoryview:
        """The bytes of the file image."""
        self.map()
        assert self._image is not None
        return self._image

    def close(self) -> None:
        """Give up the descriptor and this view; memory is unmapped when the last view of it is gone."""
        self._image = None
        self._word = memoryview(bytearray(8)).cast("Q")
        os.close(self.fd)
