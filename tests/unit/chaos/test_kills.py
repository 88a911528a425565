"""What a seed kills."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from surefoot.chaos.kills import AGENT, ALL, draw


def test_a_seed_draws_the_same_kills_again() -> None:
    """The same seed gives the same kills, another seed others."""
    assert draw(7, 8, steps=200, ranks=2) == draw(7, 8, steps=200, ranks=2)
    assert draw(7, 8, steps=200, ranks=2) != draw(8, 8, steps=200, ranks=2)


@pytest.mark.parametrize("seed", range(50))
def test_kills_strike_within_the_run_in_order(seed: int) -> None:
    """Every kind comes equally often; steps rise within the run; a start is hit only where one follows."""
    drawn = draw(seed, 9, steps=100, ranks=2)
    kinds = Counter(kill.what if kill.what in (AGENT, ALL) else "one" for kill in drawn)
    assert kinds == {AGENT: 3, ALL: 3, "one": 3}
    steps = [kill.step for kill in drawn if kill.step is not None]
    assert steps == sorted(steps)
    assert all(0 <= step < 99 for step in steps)
    assert all(0 <= kill.part < 1 for kill in drawn)
    assert all(before.ranks for before, kill in pairwise(drawn) if kill.step is None)
    assert drawn[0].step is not None
