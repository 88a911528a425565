"""When the managed optimizers stepped: a turn in which one did, or its scaler said no, ends at a boundary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from surefoot.loop.ranks import Scalar


class Boundary:
    """Watches steps through hooks; `close` takes them off again.

    A scaler is watched through its `update`: that is called once a window also if it skipped the step.
    """

    def __init__(self, optimizers: Sequence[Optimizer], scalers: Sequence[Any] = ()) -> None:
        self._always = not optimizers
        self._first = optimizers[0] if optimizers else None
        self._stepped = False
        self._lr: Scalar | None = None
        self._undo: list[Callable[[], None]] = []
        for optimizer in optimizers:
            self._undo.append(optimizer.register_step_post_hook(self._after_step).remove)
        for scaler in scalers:
            self._watch(scaler)

    def stepped(self) -> bool:
        """Tell whether a step was done or skipped since the last call; always, where nothing is managed."""
        stepped, self._stepped = self._stepped, False
        return stepped or self._always

    def lr(self) -> Scalar | None:
        """Return the rate that the first optimizer's last step used, of its first group.

        A float, or a copy on the device of a rate that lives there; None before the first step.
        """
        return self._lr

    def close(self) -> None:
        """Take the hooks off."""
        while self._undo:
            self._undo.pop()()

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        self._stepped = True
        if optimizer is self._first:
            lr = optimizer.param_groups[0]["lr"]  # the scheduler hasn't moved it yet
            on_device = isinstance(lr, Tensor) and lr.device.type != "cpu"
            self._lr = lr.detach().clone() if on_device else float(lr)

    def _watch(self, scaler: Any) -> None:
        update = scaler.update

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._stepped = True
            return update(*args, **kwargs)

        scaler.update = watched
        self._undo.append(lambda: delattr(scaler, "update"))
