"""Random generators go on where they were."""

# ruff: noqa: NPY002 - the global generator is what is restored

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.journal.codec import tag, untag
from surefoot.torch import generators


def stored(plain: Any) -> Any:
    """Return plain values as they come back from a snapshot."""
    return untag(json.loads(json.dumps(tag(plain))))


def draw() -> list[float]:
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), *torch.rand(3).tolist()]


def test_the_process_goes_on_where_it_was() -> None:
    """Python's, NumPy's and torch's global generators draw the same again, a half-used Gauss pair included."""
    random.seed(1)
    np.random.seed(1)
    draw()
    state = stored(generators.capture())
    first = draw()
    draw()
    generators.restore(state)
    assert draw() == first


def test_global_states_are_compact() -> None:
    """All global generators together take a fraction of a rank's room for plain values."""
    assert len(json.dumps(tag(generators.capture()))) < 16_000


def test_numpy_is_left_alone_where_the_snapshot_lacks_it() -> None:
    """A snapshot of a process that never imported NumPy restores without touching its generator."""
    state = generators.capture()
    del state["numpy"]
    np.random.seed(3)
    expected = np.random.rand()
    np.random.seed(3)
    generators.restore(state)
    assert np.random.rand() == expected


BITS = [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64]
OBJECTS: list[tuple[Any, Any]] = [
    (torch.Generator().manual_seed(3), lambda g: torch.rand(4, generator=g).tolist()),
    (random.Random(3), lambda g: [g.random(), g.gauss(0, 1)]),
    (np.random.RandomState(3), lambda g: [g.rand(), g.randn()]),
    *[
        (np.random.Generator(bits(3)), lambda g: [g.random(), g.normal(), g.integers(9, dtype=np.int32)])
        for bits in BITS
    ],
]


@pytest.mark.parametrize(("generator", "numbers"), OBJECTS, ids=lambda value: type(value).__name__)
def test_objects_go_on_where_they_were(generator: Any, numbers: Any) -> None:
    """Generator objects of torch, Python and NumPy, whatever bits they draw from, come back exactly."""
    assert generators.is_generator(generator)
    numbers(generator)
    state = stored(generators.state_of(generator))
    first = numbers(generator)
    numbers(generator)
    generators.set_state(generator, state)
    assert numbers(generator) == first


def test_other_objects_are_no_generators() -> None:
    """What isn't a generator is told apart."""
    assert not generators.is_generator(np.random)
    assert not generators.is_generator(3)
