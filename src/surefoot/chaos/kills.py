"""What is killed, and when: drawn from a seed, over the whole life of a run.

An instant is a turn and a part of the next one, or a part of a start, in units of what an undisturbed
run takes: so a seed strikes at the same places of a run on a slow machine as on a fast one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

AGENT = "the agent"
ALL = "all ranks"
RANK = "rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One SIGKILL, or one for each rank at once."""

    what: str
    """`AGENT`, `ALL`, or "rank R"."""
    ranks: tuple[int, ...]
    """Those that are killed; none for the agent."""
    step: int | None
    """It strikes once this turn is through; None: while the next ranks are starting."""
    part: float
    """How far into what follows, from 0 to 1."""


def draw(seed: int, kills: int, *, steps: int, ranks: int) -> list[Kill]:
    """Return a seed's kills in the order in which they strike; every kind comes equally often."""
    dice = random.Random(seed)
    kinds = [(RANK, AGENT, ALL)[n % 3] for n in range(kills)]
    dice.shuffle(kinds)
    drawn: list[Kill] = []
    for kind, step in zip(kinds, sorted(dice.choices(range(steps - 1), k=kills)), strict=True):
        hit = {RANK: (dice.randrange(ranks),), ALL: tuple(range(ranks)), AGENT: ()}[kind]
        # Only a kill of ranks is followed by a start.
        starting = bool(drawn) and bool(drawn[-1].ranks) and dice.random() < 1 / 3
        what = f"rank {hit[0]}" if kind == RANK else kind
        drawn.append(Kill(what=what, ranks=hit, step=None if starting else step, part=dice.random()))
    return drawn
