"""Names free of wrappers, by type and not by text (case D22)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.unit.torch import gang
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from surefoot.torch import names


class Net(nn.Module):
    """Has a real submodule called `module`, one called `_orig_mod`, and a buffer that isn't stored."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)
        self._orig_mod = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)
        self.register_buffer("table", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._orig_mod(self.module(x))


BARE = {
    "table",
    "module.weight",
    "module.bias",
    "_orig_mod.0.weight",
    "_orig_mod.0.bias",
    "_orig_mod.1.weight",
    "_orig_mod.1.bias",
    "_orig_mod.1.running_mean",
    "_orig_mod.1.running_var",
    "_orig_mod.1.num_batches_tracked",
}


def found(root: nn.Module) -> dict[str, names.Found]:
    listed = list(names.tensors(names.walk(root)))
    named = {item.name: item for item in listed}
    assert len(named) == len(listed)
    return named


def test_real_submodules_keep_their_names() -> None:
    """A submodule called like a wrapper's attribute keeps its name; passing buffers are left out."""
    assert set(found(Net())) == BARE


def test_names_are_those_of_the_state_dict() -> None:
    """Without wrappers the names are `state_dict`'s, in its own order of modules."""
    assert set(found(Net())) == set(Net().state_dict())


@pytest.mark.usefixtures("alone")
def test_wrappers_vanish_wherever_they_are() -> None:
    """DDP, DataParallel, compile and activation checkpointing leave no trace, alone or inside each other."""
    net = Net()
    net._orig_mod[0] = checkpoint_wrapper(net._orig_mod[0])
    compiled = torch.compile(net, backend="eager")
    assert set(found(compiled)) == BARE  # type: ignore[arg-type]
    assert set(found(DistributedDataParallel(compiled))) == BARE
    assert set(found(torch.compile(DistributedDataParallel(Net()), backend="eager"))) == BARE  # type: ignore[arg-type]
    assert set(found(DataParallel(Net()))) == BARE
    inner = Net()
    inner.module = torch.compile(inner.module, backend="eager")  # type: ignore[assignment]
    assert set(found(inner)) == BARE


@pytest.mark.usefixtures("alone")
def test_an_average_keeps_its_own_level() -> None:
    """AveragedModel is no wrapper but a model of its own: its counter lies beside `module`."""
    averaged = found(AveragedModel(DistributedDataParallel(Net())))
    assert set(averaged) == {"n_averaged"} | {f"module.{name}" for name in BARE}


def fsdp_names(use_orig_params: bool) -> list[str]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    cpu = torch.device("cpu")
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1] = FullyShardedDataParallel(net[1], device_id=cpu, use_orig_params=use_orig_params)
    whole = FullyShardedDataParallel(net, device_id=cpu, use_orig_params=use_orig_params)
    return sorted(found(whole))


@pytest.mark.usefixtures("forked")
def test_the_older_fsdp_vanishes(tmp_path: Path) -> None:
    """FSDP's wrapper shows the original parameters' names, or its own flat ones where it has no others."""
    original = ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert gang.run(fsdp_names, 2, tmp_path, True) == [original, original]


def test_tied_parameters_come_under_each_name() -> None:
    """A tied tensor is listed under all of its names, and an optimizer's state under the first."""
    net = nn.ModuleDict({"wte": nn.Embedding(3, 2), "head": nn.Linear(2, 3, bias=False)})
    net["head"].weight = net["wte"].weight
    named = found(net)
    assert list(named) == ["wte.weight", "head.weight"]
    known = names.parameters({"model": list(named.values())})
    assert [parameter.name for parameter in known.values()] == ["wte.weight"]


def test_a_shared_module_comes_under_each_name() -> None:
    """One module registered twice has its tensors under both names, as in the state dict."""
    shared = nn.Linear(2, 2)
    net = nn.Sequential(shared, shared)
    assert set(found(net)) == set(net.state_dict())


def test_the_keyword_joins_only_where_names_collide() -> None:
    """Parameters are named without the model's keyword, unless two models have one of that name."""
    models = {
        "g": nn.Sequential(nn.Linear(2, 2)),
        "d": nn.ModuleDict({"0": nn.Linear(2, 2), "out": nn.Linear(2, 1)}),
    }
    known = names.parameters({key: list(names.tensors(names.walk(model))) for key, model in models.items()})
    assert [parameter.name for parameter in known.values()] == [
        "g.0.weight",
        "g.0.bias",
        "d.0.weight",
        "d.0.bias",
        "out.weight",
        "out.bias",
    ]


@pytest.mark.usefixtures("alone")
def test_only_what_ddp_manages_is_replicated() -> None:
    """Below DDP everything is replicated but what it ignores and batch norm's own running statistics."""
    net = Net()
    assert not any(item.replicated for item in found(net).values())
    net._ddp_params_and_buffers_to_ignore = ["module.bias", "table"]  # type: ignore[assignment]
    around = nn.ModuleDict({"ddp": DistributedDataParallel(net), "other": nn.Linear(2, 2)})
    replicated = {name for name, item in found(around).items() if item.replicated}
    assert replicated == {f"ddp.{name}" for name in BARE if "weight" in name or "bias" in name} - {
        "ddp.module.bias"
    }


@pytest.mark.usefixtures("alone")
def test_buffers_that_ddp_does_not_send_are_not_replicated() -> None:
    """With `broadcast_buffers` off each rank's buffers are its own."""
    net = nn.Sequential(nn.Linear(2, 2))
    net.register_buffer("table", torch.zeros(1))
    assert found(DistributedDataParallel(net))["table"].replicated
    with pytest.warns(FutureWarning, match="broadcast_buffers"):
        silent = DistributedDataParallel(net, broadcast_buffers=False)
    assert not found(silent)["table"].replicated
    assert found(silent)["0.weight"].replicated
