"""Steps are noticed, done and skipped alike."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim
from torch.optim.lr_scheduler import ExponentialLR

from surefoot.torch.optim import Boundary


def sgd(lr: float | torch.Tensor = 0.1) -> optim.SGD:
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return optim.SGD([parameter], lr=lr)


def test_a_step_ends_a_turn_at_a_boundary() -> None:
    """Asked once after a step the answer is yes, then no until the next; of any managed optimizer."""
    first, second = sgd(), sgd()
    boundary = Boundary([first, second])
    assert not boundary.stepped()
    first.step()
    first.step()
    assert boundary.stepped()
    assert not boundary.stepped()
    second.step()
    assert boundary.stepped()


def test_without_optimizers_every_turn_ends_at_one() -> None:
    """Where nothing is managed every turn is a boundary."""
    boundary = Boundary([])
    assert boundary.stepped()
    assert boundary.stepped()
    assert boundary.lr() is None


def test_a_step_that_the_scaler_skipped_counts() -> None:
    """An overflow skips the step, but its window is over and its data used."""
    optimizer, scaler = sgd(), torch.amp.GradScaler("cpu", init_scale=4.0)
    boundary = Boundary([optimizer], [scaler])
    scaler.scale(torch.ones(()))
    optimizer.param_groups[0]["params"][0].grad.fill_(float("inf"))
    scaler.step(optimizer)
    assert boundary.lr() is None
    scaler.update()
    assert boundary.stepped()
    assert scaler.get_scale() == 2.0


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=["float", "tensor"])
def test_the_rate_is_the_one_the_step_used(lr: float | torch.Tensor) -> None:
    """The scheduler has moved the rate since; what is told is what the last step multiplied by."""
    optimizer = sgd(lr)
    other = sgd(0.7)
    scheduler = ExponentialLR(optimizer, 0.5)
    boundary = Boundary([optimizer, other])
    for expected in (0.1, 0.05):
        optimizer.step()
        other.step()
        scheduler.step()
        assert type(boundary.lr()) is float
        assert boundary.lr() == pytest.approx(expected)


def test_the_rate_survives_a_schedulers_patch() -> None:
    """A scheduler that is made later wraps `step`; the hooks go on working."""
    optimizer = sgd()
    boundary = Boundary([optimizer])
    ExponentialLR(optimizer, 0.5)
    optimizer.step()
    assert boundary.stepped()


def test_a_compiled_step_is_noticed() -> None:
    """The hook runs each time where the step is compiled, too."""
    optimizer = sgd(torch.tensor(0.1))
    boundary = Boundary([optimizer])

    @torch.compile(backend="eager")
    def turn() -> None:
        optimizer.step()

    for _ in range(3):
        turn()
        assert boundary.stepped()
    assert not boundary.stepped()


def test_close_leaves_no_trace() -> None:
    """After `close` neither optimizer nor scaler is watched."""
    optimizer, scaler = sgd(), torch.amp.GradScaler("cpu")
    boundary = Boundary([optimizer], [scaler])
    boundary.close()
    boundary.close()
    optimizer.step()
    scaler.scale(torch.ones(()))
    scaler.step(optimizer)
    scaler.update()
    assert not boundary.stepped()
    assert "update" not in vars(scaler)
