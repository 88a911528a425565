"""The beat page: what one rank tells its agent without a message (formats §7).

Shared memory, written by the rank alone, read by its agent at any time and after the rank's death:
where it is (step, phase, when), and a ring of its last turns. Every word is eight bytes, aligned,
stored natively: `struct.pack_into` clears its target first, so a reader would see zeros.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

MAGIC = 0x0001_7465_6562_0A01
HEAD_BYTES = 4096
TURN_WORDS = 8
RING = 1024
SIZE_BYTES = HEAD_BYTES + RING * TURN_WORDS * 8

PHASES = ("start", "restore", "train", "data", "stage", "agree", "save", "named", "end")

# Each word of the head on a cache line of its own.
_MAGIC, _STEP, _PHASE, _BEAT_NS, _TURNS = (8 * line for line in range(5))


@dataclass(frozen=True, slots=True)
class Turn:
    """One finished turn of one rank."""

    step: int
    end_ns: int
    """On the brain's clock."""
    compute_ns: int
    data_ns: int
    batch: int
    sample: int
    loss: float
    """This rank's own; NaN where none was logged."""
    grad_norm: float


def make() -> int:
    """Return the descriptor of a new page."""
    fd = os.memfd_create("surefoot-beat", os.MFD_CLOEXEC)
    os.ftruncate(fd, SIZE_BYTES)
    return fd


class Beat:
    """A beat page, mapped."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, SIZE_BYTES)
        view = memoryview(self._map)
        self._words = view.cast("Q")
        self._floats = view.cast("d")

    def begin(self) -> None:
        """Mark the page as one of this format."""
        self._words[_MAGIC] = MAGIC

    def enter(self, phase: str, step: int, monotonic_ns: int) -> None:
        """Say where the rank is now."""
        words = self._words
        words[_STEP] = step
        words[_PHASE] = PHASES.index(phase)
        words[_BEAT_NS] = monotonic_ns

    def turn(self, turn: Turn) -> None:
        """Record a finished turn; the count is raised last."""
        count = self._words[_TURNS]
        at = (HEAD_BYTES // 8) + (count % RING) * TURN_WORDS
        words, floats = self._words, self._floats
        words[at] = turn.step
        words[at + 1] = turn.end_ns
        words[at + 2] = turn.compute_ns
        words[at + 3] = turn.data_ns
        words[at + 4] = turn.batch
        words[at + 5] = turn.sample
        floats[at + 6] = turn.loss
        floats[at + 7] = turn.grad_norm
        words[_TURNS] = count + 1

    @property
    def valid(self) -> bool:
        """Whether the page is one of this format."""
        return self._words[_MAGIC] == MAGIC

    @property
    def step(self) -> int:
        """The step the rank is in."""
        return self._words[_STEP]

    @property
    def phase(self) -> str:
        """The phase the rank is in."""
        code = self._words[_PHASE]
        return PHASES[code] if code < len(PHASES) else "unknown"

    @property
    def beat_ns(self) -> int:
        """CLOCK_MONOTONIC of the rank's last sign of life."""
        return self._words[_BEAT_NS]

    def turns(self, last: int = RING) -> list[Turn]:
        """Return up to the `last` newest turns, oldest first."""
        count = self._words[_TURNS]
        turns = []
        for index in range(max(0, count - min(last, RING)), count):
            at = (HEAD_BYTES // 8) + (index % RING) * TURN_WORDS
            step, end_ns, compute_ns, data_ns, batch, sample = self._words[at : at + 6].tolist()
            loss, grad_norm = self._floats[at + 6 : at + 8].tolist()
            turns.append(Turn(step, end_ns, compute_ns, data_ns, batch, sample, loss, grad_norm))
        return turns

    def close(self) -> None:
        """Unmap the page; the descriptor stays open."""
        self._words.release()
        self._floats.release()
        self._map.close()
