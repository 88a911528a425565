"""What a turn reports: logged values, where its time went, and when its line may be written.

Losses and norms are summed up to the next boundary and agreed there; a turn's line waits for the
vector that covers it. Values and times are the turn's own. Nothing here forces a device sync: what
was logged is detached at once and becomes a number when the line is made, a turn later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from surefoot.core.events import StepDone
from surefoot.loop.agree import Agreed
from surefoot.loop.beat import Turn
from surefoot.loop.data import Position
from surefoot.loop.ranks import Scalar

_Waiting = tuple[dict[str, Any], Scalar | None, dict[str, Scalar]]
"""A turn's fields, LR and values."""


class Turns:
    """Collects turns on one rank; `read` detaches a value now, without a device sync."""

    def __init__(self, read: Callable[[Any], Scalar]) -> None:
        self._read = read
        self.loss: Scalar = 0.0
        self.weight = 0.0
        self.grad_norm: Scalar = 0.0
        self.norms = 0
        self.forget()

    def forget(self) -> None:
        """Begin anew: nothing of the turns so far will be reported."""
        self._open: list[_Waiting] = []
        self._sent: list[_Waiting] = []
        self._next_turn()
        self._next_sum()

    def _next_turn(self) -> None:
        self._values: dict[str, Scalar] = {}
        self._phase_ns: dict[str, int] = {}
        self._stall_ns = 0

    def _next_sum(self) -> None:
        self.loss, self.weight = 0.0, 0.0
        self.grad_norm, self.norms = 0.0, 0

    def log(self, loss: Any, grad_norm: Any, weight: float, values: Mapping[str, Any]) -> None:
        """Take in what was logged: losses are averaged by weight; of norms and values the last counts."""
        if loss is not None:
            self.loss = self.loss + self._read(loss) * weight
            self.weight += weight
        if grad_norm is not None:
            self.grad_norm, self.norms = self._read(grad_norm), 1
        for name, value in values.items():
            self._values[name] = self._read(value)

    def phase(self, name: str, ns: int) -> None:
        """Charge a named phase to the turn under way."""
        self._phase_ns[name] = self._phase_ns.get(name, 0) + ns

    def stall(self, ns: int) -> None:
        """Charge a wait for a boundary or a snapshot to the turn that comes."""
        self._stall_ns += ns

    def done(
        self,
        *,
        branch: int,
        step: int,
        position: Position,
        began_ns: int,
        end_ns: int,
        data_ns: int,
        lr: Scalar | None,
    ) -> Turn:
        """Close the turn under way; return its record for the beat page. Times are the brain's clock."""
        fields = {
            "branch": branch,
            "step": step,
            "batch": position.batch,
            "sample": position.sample,
            "end_ns": end_ns,
            "data_ns": data_ns,
            "stall_ns": self._stall_ns,
            "phase_ns": self._phase_ns,
        }
        self._open.append((fields, lr, self._values))
        loss = self.loss / self.weight if self.weight else math.nan
        self._next_turn()
        return Turn(
            step=step,
            end_ns=end_ns,
            compute_ns=max(0, end_ns - began_ns - data_ns),  # a batch may be drawn before the turn begins
            data_ns=data_ns,
            batch=position.batch,
            sample=position.sample,
            loss=loss if isinstance(loss, float) else math.nan,
            grad_norm=self.grad_norm if self.norms and isinstance(self.grad_norm, float) else math.nan,
        )

    @property
    def unreported(self) -> bool:
        """Whether there are turns that no vector covers yet."""
        return bool(self._open)

    def sent(self) -> None:
        """The vector over the turns so far has started."""
        self._sent, self._open = self._open, []
        self._next_sum()

    def agreed(self, agreed: Agreed) -> list[StepDone]:
        """Return the lines of the turns that a vector covers; the agreed values are the last one's."""
        lines = []
        last = len(self._sent) - 1
        for index, (fields, lr, values) in enumerate(self._sent):
            lines.append(
                StepDone(
                    **fields,
                    loss=agreed.loss if index == last else None,
                    grad_norm=agreed.grad_norm if index == last else None,
                    lr=None if lr is None else float(lr),
                    values={name: float(value) for name, value in values.items()},
                )
            )
        self._sent = []
        return lines
