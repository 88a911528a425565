"""Small training jobs whose whole future depends on their state."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from surefoot.torch.state import TorchState


class Net(nn.Module):
    """A linear layer, a tied pair, a batch norm, dropout, and a convolution in channels-last order."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.norm = nn.BatchNorm1d(4)
        self.tie = nn.Linear(4, 4, bias=False)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.tie.weight
        self.out = nn.Linear(4, 1)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.conv(x).mean(dim=(2, 3)))
        return self.out(self.drop(self.tied(self.tie(hidden)))).square().mean()


@dataclass
class Job:
    """What a script makes, and hands to Run as `objects`."""

    model: Any
    optimizer: Optimizer
    objects: dict[str, Any]

    @property
    def state(self) -> TorchState:
        """Its state."""
        return TorchState(self.objects)

    def train(self, turns: int) -> list[float]:
        """Take turns on data from the global generators; return loss and LR of each."""
        trace = []
        for _ in range(turns):
            noise = random.random() + float(np.random.rand())  # noqa: NPY002 - the global one is to be restored
            loss = self.model(torch.randn(8, 2, 3, 3) + noise)
            loss.backward()
            self.optimizer.step()
            trace += [loss.item(), float(self.optimizer.param_groups[0]["lr"])]
            if "scheduler" in self.objects:
                self.objects["scheduler"].step()
            if "ema" in self.objects:
                self.objects["ema"].update_parameters(self.model)
            self.optimizer.zero_grad(set_to_none=True)
        return trace


def job(
    optimizer: Callable[[Any], Optimizer], scheduler: Callable[[Any], Any] | None = None, **others: Any
) -> Job:
    """Make a job, as a script does when it starts; `others` are made from the model."""
    model = Net()
    made = optimizer(model.parameters())
    objects = {"model": model, "optimizer": made} | {key: make(model) for key, make in others.items()}
    if scheduler is not None:
        objects["scheduler"] = scheduler(made)
    return Job(model, made, objects)
