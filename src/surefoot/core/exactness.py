"""How exactly an attempt came back: measured, never assumed (invariant 15).

Turns that were computed before the restart and are computed again are the proof at hand: their
losses must be equal to the last bit. An attempt is `bit-exact` once such turns were equal,
`same data and state` while nothing was recomputed, `approximate: why` otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

TRAIL = 256
"""Turns remembered: more than lie between two memory snapshots."""


@dataclass(frozen=True, slots=True)
class Exactness:
    """The losses of the newest turns, and the comparison under way since the last restore."""

    trail: tuple[tuple[int, float], ...] = ()
    """(step, loss) of the newest turns of the head, oldest first."""
    expected: tuple[tuple[int, float], ...] = ()
    """Turns of the branch before that are computed again from here on."""
    equal: int = 0
    """Recomputed turns whose loss was equal so far."""
    differs_at: int | None = None
    """The first recomputed turn whose loss was not."""


def restored(exactness: Exactness, step: int) -> Exactness:
    """Begin a comparison: the head is at `step` again."""
    return Exactness(
        trail=tuple(turn for turn in exactness.trail if turn[0] < step),
        expected=tuple(turn for turn in exactness.trail if turn[0] >= step),
    )


def observed(exactness: Exactness, step: int, loss: float | None) -> Exactness:
    """Take in a finished turn; a turn without a loss proves nothing."""
    if loss is None:
        return exactness
    trail = (*exactness.trail[-TRAIL + 1 :], (step, loss))
    expected = exactness.expected
    if not expected:
        return Exactness(trail, expected, exactness.equal, exactness.differs_at)
    while expected and expected[0][0] < step:
        expected = expected[1:]
    if not expected or expected[0][0] != step or exactness.differs_at is not None:
        return replace(exactness, trail=trail, expected=expected)
    before = expected[0][1]
    # By their shortest texts, which have every bit: 0.0 is not -0.0, and NaN went wrong the same way as NaN.
    same = repr(before) == repr(loss)
    return Exactness(trail, expected[1:], exactness.equal + same, exactness.differs_at if same else step)


def word(exactness: Exactness, level: str) -> str:
    """Say how exactly the attempt came back; `level` is what its data source can do."""
    if exactness.differs_at is not None:
        return f"approximate: the loss of step {exactness.differs_at:,} differs from the record"
    if level == "order_only":
        return "approximate: the order of the data is exact, its randomness is not"
    if level == "drawn":
        return "approximate: the data was drawn and discarded up to its place"
    return "bit-exact" if exactness.equal else "same data and state"
