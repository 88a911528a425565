"""The state of a whole script: what is saved comes back, in place, or nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.torch.jobs import Job, Net, job
from tests.unit.torch.saving import load, save
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import LambdaLR, MultiStepLR, OneCycleLR, ReduceLROnPlateau, SequentialLR
from torch.optim.swa_utils import AveragedModel

from surefoot.errors import StateMismatch, UnstorableState
from surefoot.loop.state import Box, State
from surefoot.torch.state import TorchState


class Warmup:
    """A schedule's rule with state of its own."""

    def __init__(self) -> None:
        self.steps = 4
        self.asked = [0]

    def __call__(self, step: int) -> float:
        self.asked.append(step)
        return min(1.0, (step + 1) / self.steps) / len(self.asked)


class Scaler:
    """Stands in for a GradScaler on the CPU: scale, growth counter, and the steps it skipped."""

    def __init__(self) -> None:
        self.growth = 2.0
        self.values: dict[Any, Any] = {"scale": torch.tensor(1024.0), "good": 0, "skipped": []}

    def state_dict(self) -> dict[Any, Any]:
        return self.values

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.values = values


def adamw(parameters: Any) -> AdamW:
    return AdamW(parameters, lr=0.02)


KINDS: dict[str, Callable[[], Job]] = {
    "function": lambda: job(adamw, lambda o: LambdaLR(o, lambda step: 1 / (1 + step))),
    "callable": lambda: job(adamw, lambda o: LambdaLR(o, Warmup())),
    "one-cycle": lambda: job(adamw, lambda o: OneCycleLR(o, max_lr=0.1, total_steps=20)),
    "one-cycle-sgd": lambda: job(
        lambda p: SGD(p, 0.1, 0.9), lambda o: OneCycleLR(o, max_lr=0.1, total_steps=20)
    ),
    "milestones": lambda: job(adamw, lambda o: MultiStepLR(o, [2, 2, 5])),
    "sequential": lambda: job(
        adamw, lambda o: SequentialLR(o, [LambdaLR(o, Warmup()), MultiStepLR(o, [1, 3])], milestones=[4])
    ),
    "average": lambda: job(adamw, ema=AveragedModel),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_fresh_process_goes_on_bit_for_bit(kind: str) -> None:
    """A job that is made anew and restored trains on exactly as the one that was saved."""
    first = KINDS[kind]()
    first.train(3)
    saved = save(first.state)
    expected = first.train(6)
    second = KINDS[kind]()
    load(second.state, saved)
    assert second.train(6) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_live_job_goes_back_bit_for_bit(kind: str) -> None:
    """A rollback in place replaces no tensor, and the same turns give the same numbers again."""
    one = KINDS[kind]()
    state = one.state
    one.train(3)
    saved = save(state)
    pointers = {id(value) for value in one.optimizer.state.values() for value in value.values()}
    expected = one.train(6)
    load(state, saved)
    assert pointers == {id(value) for value in one.optimizer.state.values() for value in value.values()}
    assert one.train(6) == expected


def test_what_was_restored_is_what_was_saved() -> None:
    """A capture right after a restore gives the same image, byte for byte."""
    first = KINDS["callable"]()
    first.train(3)
    saved = save(first.state)
    first.train(1)
    load(first.state, saved)
    assert save(first.state).image == saved.image


def test_names_are_flat_and_by_keyword() -> None:
    """Tensors are named by keyword and path, optimizer state by the parameter."""
    one = KINDS["average"]()
    one.train(1)
    names = save(one.state).names
    assert {"model.conv.weight", "model.norm.running_mean", "model.tie.weight", "model.tied.weight"} <= names
    assert {"optimizer.state.out.bias.exp_avg", "optimizer.state.tie.weight.step"} <= names
    assert {"ema.n_averaged", "ema.module.out.bias"} <= names
    assert "optimizer.state.tied.weight.step" not in names


def test_it_is_a_state() -> None:
    """TorchState has the protocol that the loop asks for."""
    assert isinstance(TorchState({}), State)


def test_an_empty_state_comes_back() -> None:
    """A script that hands in nothing has generators all the same."""
    state = TorchState({})
    saved = save(state)
    first = torch.rand(3)
    load(state, saved)
    assert torch.equal(torch.rand(3), first)


def test_average_and_raw_weights_are_apart() -> None:
    """Raw weights, averaged weights and the averaging counter are each stored and restored (case D05)."""
    one = KINDS["average"]()
    one.train(3)
    raw, averaged = one.model.out.weight.clone(), one.objects["ema"].module.out.weight.clone()
    saved = save(one.state)
    one.train(2)
    load(one.state, saved)
    assert torch.equal(one.model.out.weight, raw)
    assert torch.equal(one.objects["ema"].module.out.weight, averaged)
    assert one.objects["ema"].n_averaged == 3
    assert not torch.equal(raw, averaged)


def test_a_scaler_is_state() -> None:
    """Scale, growth counter and skipped steps come back (case D04); what is loaded is no slot's memory."""
    scaler, other = Scaler(), Scaler()
    scaler.values |= {"good": 7, "skipped": [3, 9], "history": np.array([1.5, 2.5]), "last": np.float32(0.1)}
    saved = save(TorchState({"scaler": scaler}))
    assert saved.names == {"scaler.scale", "scaler.history", "scaler.last"}
    load(TorchState({"scaler": other}), saved)
    saved.image[saved.layout.state.start - 4096 :] = bytes(len(saved.image) - saved.layout.state.start + 4096)
    assert other.values["scale"] == 1024.0
    assert (other.values["good"], other.values["skipped"]) == (7, [3, 9])
    assert other.values["history"].tolist() == [1.5, 2.5]
    assert type(other.values["last"]) is np.float32
    assert other.values["last"] == np.float32(0.1)


def test_the_stock_scaler_is_known() -> None:
    """A GradScaler is stored by its state dict, and told apart as a scaler."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    state = TorchState({"scaler": scaler})
    assert state.scalers == {"scaler": scaler}
    scaler.scale(torch.ones(()))
    saved = save(state)
    scaler.update(2.0)
    load(state, saved)
    assert scaler.get_scale() == 8.0


def test_generator_objects_go_on() -> None:
    """Generators that are handed in by name draw the same again."""
    made: dict[str, Any] = {"sampling": torch.Generator().manual_seed(1), "augment": np.random.default_rng(1)}
    state = TorchState(made)
    saved = save(state)
    first = torch.rand(3, generator=made["sampling"]), made["augment"].random(3)
    load(state, saved)
    assert torch.equal(torch.rand(3, generator=made["sampling"]), first[0])
    assert (made["augment"].random(3) == first[1]).all()


class Calibrated(nn.Module):
    """Keeps something that is neither parameter nor buffer."""

    def __init__(self, *seen: int) -> None:
        super().__init__()
        self.extra = {"seen": list(seen), "scale": torch.full((2,), float(sum(seen)))}

    def get_extra_state(self) -> Any:
        return self.extra

    def set_extra_state(self, state: Any) -> None:
        self.extra = state


def test_extra_state_of_modules_comes_back() -> None:
    """What a module gives as its extra state is stored under its name."""
    saved = save(TorchState({"model": nn.Sequential(Calibrated(1, 2))}))
    assert saved.names == {"model.0._extra_state.scale"}
    other: Any = Calibrated()
    load(TorchState({"model": nn.Sequential(other)}), saved)
    assert other.extra["seen"] == [1, 2]
    assert other.extra["scale"].tolist() == [3.0, 3.0]


@pytest.mark.usefixtures("alone")
def test_wrappers_come_and_go() -> None:
    """A state saved under DDP and compile fits the bare model and the other way round (case D22)."""
    bare, wrapped = KINDS["function"](), KINDS["function"]()
    wrapped.objects["model"] = torch.compile(DistributedDataParallel(wrapped.model), backend="eager")
    bare.train(2)
    load(wrapped.state, save(bare.state))
    saved = save(wrapped.state)
    expected = bare.train(2)
    load(bare.state, saved)
    assert bare.train(2) == expected
    assert all(box.replicated for name, box in saved.boxes.items() if "weight" in name)


def refusal(state: TorchState, saved: Any) -> str:
    before = save(state).image.tobytes()
    with pytest.raises(StateMismatch) as raised:
        load(state, saved)
    assert save(state).image.tobytes() == before
    return str(raised.value)


def test_every_mismatch_is_listed_and_nothing_changed() -> None:
    """Names, shapes, dtypes, groups and objects that differ are told all at once, before anything moves."""

    def script(width: int, dtype: torch.dtype, name: str) -> TorchState:
        model = nn.ModuleDict({name: nn.Linear(2, width), "last": nn.Linear(2, 2, dtype=dtype)})
        optimizer = SGD(model.parameters(), lr=0.1)
        return TorchState({"model": model, "optimizer": optimizer, f"only_{name}": torch.Generator()})

    saved = save(script(2, torch.float32, "was"))
    text = refusal(script(3, torch.bfloat16, "now"), saved)
    assert "model.was.weight: F32[2,2] in the snapshot, nothing in the script" in text
    assert "model.now.weight: nothing in the snapshot, F32[3,2] in the script" in text
    assert "model.last.bias: F32[2] in the snapshot, BF16[2] in the script" in text
    assert "optimizer group 0: parameters in the snapshot only: was.weight, was.bias" in text
    assert "only_was: in the snapshot, not handed to Run" in text
    assert "only_now: not in the snapshot" in text


def test_an_added_layer_is_refused() -> None:
    """A model that has grown is refused with the new names (case D22)."""
    saved = save(TorchState({"model": nn.Sequential(nn.Linear(2, 2))}))
    text = refusal(TorchState({"model": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))}), saved)
    assert "model.1.weight: nothing in the snapshot, F32[2,2] in the script" in text
    assert "model.0" not in text


def test_tied_weights_that_were_not_tied_are_refused() -> None:
    """One live tensor can't become two different ones."""
    net = Net()
    net.tied = nn.Linear(4, 4, bias=False)
    text = refusal(TorchState({"model": Net()}), save(TorchState({"model": net})))
    assert "model.tied.weight: one tensor with model.tie.weight in the script" in text


def test_another_schedule_is_refused() -> None:
    """A scheduler of another class would take any dict and go on wrong."""
    text = refusal(job(adamw, ReduceLROnPlateau).state, save(KINDS["function"]().state))
    assert "scheduler: a LambdaLR in the snapshot, a ReduceLROnPlateau in the script" in text


def test_missing_bytes_are_refused() -> None:
    """A snapshot whose table names a tensor that isn't there, or has another size, changes nothing."""
    state = TorchState({"model": nn.Linear(2, 2)})
    saved = save(state)
    buffers = saved.layout.views(saved.image)
    del buffers["model.weight"]
    buffers["model.bias"] = buffers["model.bias"][:4]
    with pytest.raises(StateMismatch, match=r"model.weight: 0 bytes .*, 16 .*\n.*model.bias: 4 bytes .*, 8 "):
        state.copy_in(buffers, saved.layout.read_plain(saved.image))


def test_unstorable_values_are_named_with_their_path() -> None:
    """The error names keyword and path of a value that a snapshot can't hold."""
    scaler = Scaler()
    scaler.values["hooks"] = [1, {"f": len}]
    with pytest.raises(UnstorableState, match=r"scaler\.hooks\.1\.f is a "):
        TorchState({"scaler": scaler}).plain()
    with pytest.raises(UnstorableState, match=r"note is a str, which has no state_dict"):
        TorchState({"note": "text"})
    model = nn.Module()
    model.register_buffer("big", torch.zeros(2, dtype=torch.complex128))
    with pytest.raises(UnstorableState, match=r"model\.big has dtype torch.complex128"):
        TorchState({"model": model}).boxes()


def test_two_tensors_of_one_name_are_refused() -> None:
    """Keys that give the same path are told, not merged."""
    scaler = Scaler()
    scaler.values = {1: torch.ones(1), "1": torch.ones(1)}
    with pytest.raises(UnstorableState, match=r"two tensors are called scaler\.1"):
        TorchState({"scaler": scaler}).boxes()


def test_each_capture_sees_what_is_live() -> None:
    """Tensors that were replaced since the last capture are captured as they are now."""
    one = job(adamw)
    state = one.state
    one.train(1)
    save(state)
    one.optimizer.load_state_dict(one.optimizer.state_dict())
    one.model.norm.running_mean = one.model.norm.running_mean.clone()
    one.train(1)
    saved = save(state)
    other = job(adamw)
    load(other.state, saved)
    assert save(other.state).image == saved.image


def test_boxes_follow_what_is_live() -> None:
    """A model that was cast, resized or wrapped since the last look is described as it is now."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    state = TorchState({"model": model})
    assert list(state.boxes()) == [Box("model.0.weight", "F32", (2, 2))]
    model.to(torch.bfloat16)
    assert list(state.boxes()) == [Box("model.0.weight", "BF16", (2, 2))]
    model[0] = nn.Linear(2, 3, bias=False)
    assert list(state.boxes()) == [Box("model.0.weight", "F32", (3, 2))]


def test_a_layout_that_no_longer_fits_is_refused() -> None:
    """Buffers for a tensor that is gone or has another size are an error, not garbage."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    state = TorchState({"model": model})
    saved = save(state)
    del model[1]
    model[0] = nn.Linear(2, 3)
    with pytest.raises(StateMismatch, match=r"model.0.bias, model.0.weight, model.1.bias, model.1.weight"):
        state.copy_out(saved.layout.views(saved.image))


def test_a_neighbours_tensors_are_not_written() -> None:
    """Only tensors that have a buffer are copied: the others are staged by another rank of the node."""
    model = nn.Linear(2, 2)
    buffer = memoryview(bytearray(8))
    TorchState({"model": model}).copy_out({"model.bias": buffer, "loader.position": memoryview(b"theirs")})
    assert torch.equal(torch.frombuffer(buffer, dtype=torch.float32), model.bias)


def test_a_rank_without_generators_keeps_its_own() -> None:
    """A rank of a larger world is restored with rank 0's plain values, generators left out."""
    state = TorchState({"model": nn.Linear(2, 2)})
    saved = save(state)
    plain = saved.layout.read_plain(saved.image)
    del plain["generators"]
    torch.manual_seed(5)
    state.copy_in(saved.layout.views(saved.image), plain)
    assert torch.initial_seed() == 5


def test_gradients_are_dropped_at_a_restore() -> None:
    """Half a window's gradients belong to the turns that are undone."""
    one = job(adamw)
    saved = save(one.state)
    one.model(torch.randn(8, 2, 3, 3)).backward()
    load(one.state, saved)
    assert all(parameter.grad is None for parameter in one.model.parameters())
    alone = TorchState({"model": one.model})
    saved = save(alone)
    one.model(torch.randn(8, 2, 3, 3)).backward()
    load(alone, saved)
    assert all(parameter.grad is None for parameter in one.model.parameters())
