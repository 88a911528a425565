from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.torch.seeding import generators_of, seed_main, seed_one, seeded


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: NPY002


def test_seeded_covers_torch_too() -> None:
    """A seeded block draws the same each time and leaves all main generators as they were."""
    with seeded(7):
        kept = draw()
        with seeded(2**64 - 1):
            inner = draw()
        after = draw()
    with seeded(7):
        assert draw() == kept
        with pytest.raises(ZeroDivisionError), seeded(3):
            draw()[1 // 0]
        assert draw() == after
    with seeded(2**64 - 1):
        assert draw() == inner


def test_seed_main_seeds_what_seeded_does() -> None:
    """A worker that is seeded for good draws what the main process draws inside `seeded`."""
    with seeded(9):
        expected = draw()
    with seeded(1):
        seed_main(9)
        assert draw() == expected


@pytest.mark.parametrize(
    ("make", "next_of"),
    [
        (random.Random, lambda generator: generator.random()),
        (np.random.default_rng, lambda generator: generator.random()),
        (lambda: np.random.Generator(np.random.MT19937()), lambda generator: generator.random()),
        (np.random.RandomState, lambda generator: generator.rand()),
        (torch.Generator, lambda generator: float(torch.rand((), generator=generator))),
    ],
)
def test_generator_objects(make: Any, next_of: Any) -> None:
    """A generator of any kind draws by its seed alone once it is seeded, whatever it drew before."""
    one, other = make(), make()
    next_of(one)
    for generator in (one, other):
        seed_one(generator, 2**63 + 5)
    assert next_of(one) == next_of(other)
    seed_one(one, 6)
    assert next_of(one) != next_of(other)


def test_generators_of() -> None:
    """Generators are found by name among an object's attributes, and an object without any has none."""

    class Dataset:
        def __init__(self) -> None:
            self.length = 3
            self.own = random.Random(1)

    dataset = Dataset()
    assert generators_of(dataset) == {"own": dataset.own}
    assert generators_of([1]) == {}
