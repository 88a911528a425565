"""What PyTorch brings to a run: its state by name, its ranks, its boundaries, its loaders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from surefoot.core.settings import Settings
from surefoot.loop.data import Data, Loaders
from surefoot.loop.sources import data_for
from surefoot.torch.dataloader import source_for
from surefoot.torch.optim import Boundary
from surefoot.torch.ranks import ranks
from surefoot.torch.state import TorchState


class WiredTorch:
    """PyTorch's adapters, wired to the objects that a script handed in by name."""

    def __init__(self, objects: Mapping[str, object], settings: Settings) -> None:
        self.state = TorchState(objects)
        self.ranks = ranks(deadline_s=settings.agree_deadline_s)
        managed = list(self.state.optimizers.values())
        self.optimizers = Boundary(managed, list(self.state.scalers.values())) if managed else None
        self.seed = torch.initial_seed()
        """What the script had seeded torch with."""
        modules = (module for model in self.state.models.values() for module in model.modules())
        ddp = any(isinstance(module, DistributedDataParallel) for module in modules)
        self.twice = ddp and self.ranks.world_size >= 3
        """DDP regroups its buckets after the first backward: in a ring of three or more that is seen."""

    def data(self, data: Any, seed: int) -> Data | Loaders:
        """Return what `run.data` will be; DataLoaders are made seekable."""
        return data_for(
            data, seed=seed, rank=self.ranks.rank, world_size=self.ranks.world_size, find=source_for
        )

    def declared(self) -> dict[str, Any]:
        """Return the optimizers' and schedulers' constants."""
        return self.state.declared()

    def accept(self, changes: Mapping[str, Any]) -> None:
        """Apply constants that a person agreed to change over a restored state."""
        self.state.accept(changes)
