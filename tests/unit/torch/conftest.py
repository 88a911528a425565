"""What the tests of `surefoot.torch` share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from tests.unit.torch import gang
from torch._C._distributed_c10d import HashStore


@pytest.fixture(scope="session")
def forked() -> None:
    """Have the process that ranks are forked from, before any test begins to look for its children."""
    gang.start()


@pytest.fixture
def alone() -> Iterator[None]:
    """Make this process a group of one rank."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Draw the same numbers in each test."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
