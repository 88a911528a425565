"""Sharded models on two ranks: boxes with their place in the whole, and restores that are computed with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.unit.torch import gang
from torch import nn, optim

from surefoot.checkpoint.layout import Box
from surefoot.torch.state import TorchState

pytestmark = pytest.mark.usefixtures("forked")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))


def fully_sharded() -> Any:
    from torch.distributed.fsdp import fully_shard

    net = model()
    fully_shard(net[0])
    return fully_shard(net)


def wrapped() -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    cpu = torch.device("cpu")
    net = model()
    net[0] = FullyShardedDataParallel(net[0], device_id=cpu, use_orig_params=True)
    return FullyShardedDataParallel(net, device_id=cpu, use_orig_params=True)


def turn(net: nn.Module, optimizer: optim.Optimizer) -> float:
    loss = net(torch.ones(2, 3) * (1 + dist.get_rank())).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def look(net: nn.Module) -> list[float]:
    """Evaluate: a forward without backward leaves the root's parameters whole."""
    with torch.no_grad():
        return net(torch.ones(2, 3)).flatten().tolist()


def buffers(boxes: list[Box]) -> dict[str, memoryview]:
    sizes = {box.name: torch.Size(box.shape).numel() * torch.float32.itemsize for box in boxes}
    return {name: memoryview(bytearray(size)) for name, size in sizes.items()}


def evaluate_and_restore(make: str) -> dict[str, Any]:
    net = globals()[make]()
    optimizer = optim.AdamW(net.parameters(), lr=0.1)
    state = TorchState({"model": net, "optimizer": optimizer})
    turn(net, optimizer)
    look(net)
    boxes = list(state.boxes())
    into = buffers(boxes)
    plain = state.plain()
    state.copy_out(into)
    evaluated = look(net)
    expected = [turn(net, optimizer), turn(net, optimizer)]
    look(net)
    state.copy_in(into, plain)
    fresh = globals()[make]()
    again = optim.AdamW(fresh.parameters(), lr=0.1)
    look(fresh)
    other = TorchState({"model": fresh, "optimizer": again})
    other.copy_in(into, plain)
    return {
        "evaluated": look(net) == evaluated,
        "live": [turn(net, optimizer), turn(net, optimizer)] == expected,
        "fresh": [turn(fresh, again), turn(fresh, again)] == expected,
        "boxes": {box.name: box for box in boxes},
    }


@pytest.mark.parametrize("make", ["fully_sharded", "wrapped"])
def test_a_restore_after_an_evaluation_is_computed_with(tmp_path: Path, make: str) -> None:
    """After train step, evaluation and restore the losses equal the recorded ones; in a fresh process too."""
    for answer in gang.run(evaluate_and_restore, 2, tmp_path, make):
        assert (answer["evaluated"], answer["live"], answer["fresh"]) == (True, True, True)


def test_shards_know_their_place(tmp_path: Path) -> None:
    """Shards of parameters and moments carry whole shape and offsets; a step counter is the rank's own."""
    first, second = (answer["boxes"] for answer in gang.run(evaluate_and_restore, 2, tmp_path, "fully_sharded"))
    assert first["model.0.weight"] == Box("model.0.weight", "F32", (3, 3), False, (5, 3), (0, 0))
    assert second["model.0.weight"] == Box("model.0.weight", "F32", (2, 3), False, (5, 3), (3, 0))
    moment = second["optimizer.state.0.bias.exp_avg"]
    assert (moment.shape, moment.whole, moment.offsets) == ((2,), (5,), (3,))
    # The root was whole after the evaluation, and is captured as the shards that are trained.
    assert second["model.1.weight"] == Box("model.1.weight", "F32", (1, 5), False, (2, 5), (1, 0))
    assert len(second) == 4 * 4
    assert second["optimizer.state.0.bias.step"] == Box("optimizer.state.0.bias.step", "F32", ())


def spread() -> dict[str, Box]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    net = nn.Module()
    kinds: dict[str, list[Any]] = {
        "both": [Replicate(), Replicate()],
        "hybrid": [Replicate(), Shard(0)],
        "square": [Shard(0), Shard(1)],
        "tiny": [Shard(0), Shard(0)],
    }
    for name, placements in kinds.items():
        size = (1, 2) if name == "tiny" else (4, 4)
        net.register_buffer(name, distribute_tensor(torch.ones(size), mesh, placements))
    partial = torch.distributed.tensor.DTensor.from_local(torch.ones(4, 4), mesh, [Partial(), Replicate()])
    net.register_buffer("partial", partial)
    return {box.name.removeprefix("model."): box for box in TorchState({"model": net}).boxes()}


def test_placements_say_what_is_replicated(tmp_path: Path) -> None:
    """Replicate on a mesh dimension claims equal boxes, Shard gives a place, Partial is the rank's own."""
    last = gang.run(spread, 4, tmp_path)[3]
    assert last["both"] == Box("model.both", "F32", (4, 4), True)
    assert last["hybrid"] == Box("model.hybrid", "F32", (2, 4), True, (4, 4), (2, 0))
    assert last["square"] == Box("model.square", "F32", (2, 2), False, (4, 4), (2, 2))
    assert (last["tiny"].shape, last["tiny"].whole) == ((0, 2), (1, 2))
    assert last["partial"] == Box("model.partial", "F32", (4, 4))


class Kept:
    """Gives a tensor as its state, and takes another."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.values: dict[str, Any] = {"shadow": tensor}

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.values = values


def shadow() -> list[float]:
    net = fully_sharded()
    kept = Kept(net[0].bias.detach().clone())
    state = TorchState({"ema": kept})
    into, plain = buffers(list(state.boxes())), state.plain()
    expected = kept.values["shadow"].full_tensor()
    state.copy_out(into)
    kept.values["shadow"].zero_()
    before = kept.values["shadow"]
    state.copy_in(into, plain)
    assert kept.values["shadow"] is not before
    return (kept.values["shadow"].full_tensor() - expected).tolist()


def test_shards_in_a_state_dict_come_back(tmp_path: Path) -> None:
    """An object of any kind may keep shards in its state dict; it gets shards of its own back."""
    assert gang.run(shadow, 2, tmp_path) == [[0.0] * 5] * 2
