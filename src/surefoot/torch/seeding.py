"""Seeds the generators that data code draws from, by number and only while it runs.

These are the main generators of Python, NumPy and PyTorch's CPU, and those that a dataset or a sampler
holds as attributes of its own. Device generators are left alone: samples are made on the CPU.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from surefoot.loop import sources
from surefoot.torch.generators import is_generator


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run a block with the main generators seeded, and give them back as they were."""
    with sources.seeded(seed):
        kept = torch.default_generator.get_state()
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            torch.default_generator.set_state(kept)


def seed_main(seed: int) -> None:
    """Seed the main generators for good: in a loader worker, or inside `seeded`."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)  # noqa: NPY002, the one that users' code draws from
    # Not torch.manual_seed: it seeds every device too, and takes a hundred times as long.
    torch.default_generator.manual_seed(seed)


def generators_of(thing: Any) -> dict[str, Any]:
    """Return the generators that an object has as attributes, by name."""
    attributes = getattr(thing, "__dict__", {})
    return {name: value for name, value in attributes.items() if is_generator(value)}


def seed_one(generator: Any, seed: int) -> None:
    """Seed a generator object of any of the four kinds."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        kind = type(generator.bit_generator)
        generator.bit_generator.state = kind(seed).state
    else:
        generator.seed(seed & 0xFFFF_FFFF)
